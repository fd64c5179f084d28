/* SPDX-License-Identifier: Apache-2.0 */
/* fhbn_pair - queues of one card connected pairwise, and the memory to move, for tests; include
 * conformance/harness.h first */
#ifndef CAIRN_FHBN_PAIR_H
#define CAIRN_FHBN_PAIR_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/fhbn/fhbn_drive.h"
#include "rdma/fhbn/fhbn_host.h"
#include "rdma/fhbn/fhbn_provider.h"
#include "rdma/nic/nic.h"

#define PAIR_QUEUES	32
#define PAIR_BYTES	(1u << 20)
#define MS		1000000ull
#define TIMEOUT		(5000 * MS)	/* of operations that should finish quickly */

/* from: source; to: destination; the sequence numbers are separate from both. */
struct pair {
	struct cairn_fhbn_nic *nic;
	struct cairn_fhbn_queue *queue[PAIR_QUEUES], *peer[PAIR_QUEUES];
	int num;
	uint8_t *from, *to;
	uint64_t *flags;		/* [PAIR_BYTES / 8] */
	uint32_t from_lkey, to_rkey, flags_rkey, other;
	int keys, on_gpu;		/* on_gpu: all memory that data moves between is GPU memory */
	int mapped;			/* regions mapped for the GPU so far */
};

/* If the model is preloaded, it is a card for libmlx5; otherwise its engine is used directly. */
static inline enum cairn_fhbn_provider pair_provider(void)
{
	return dlsym(RTLD_DEFAULT, "cairn_nic_bare") ? CAIRN_FHBN_VERBS : CAIRN_FHBN_BARE;
}

static inline int pair_memory(int on_gpu, void *out)
{
	void *p = NULL;
	int ret = 0;

	if (on_gpu)
		ret = fhbn_gpu_alloc(PAIR_BYTES, &p);
	else
		p = aligned_alloc(4096, PAIR_BYTES);
	if (!ret && !p)
		ret = -ENOMEM;
	if (!ret && !on_gpu)
		memset(p, 0, PAIR_BYTES);
	memcpy(out, &p, sizeof(p));
	return ret;
}

static inline void pair_free(int on_gpu, void *p)
{
	if (on_gpu)
		fhbn_gpu_free(p);
	else
		free(p);
}

static inline void pair_close(struct pair *p)
{
	while (p->num > 0) {
		p->num--;
		cairn_fhbn_queue_destroy(p->queue[p->num]);
		cairn_fhbn_queue_destroy(p->peer[p->num]);
	}
	if (p->keys > 0)
		cairn_fhbn_unregister(p->nic, p->from_lkey);
	if (p->keys > 1)
		cairn_fhbn_unregister(p->nic, p->to_rkey);
	if (p->keys > 2)
		cairn_fhbn_unregister(p->nic, p->flags_rkey);
	cairn_fhbn_close(p->nic);
	for (int i = 0; p->on_gpu && i < 3; i++)
		fhbn_model()->forget_foreign((void *[]){ p->from, p->to, p->flags }[i]);
	while (p->mapped > 0)
		fhbn_gpu_unmap((void *[]){ p->from, p->to, p->flags }[--p->mapped]);
	pair_free(p->on_gpu, p->from);
	pair_free(p->on_gpu, p->to);
	pair_free(p->on_gpu, p->flags);
	memset(p, 0, sizeof(*p));
}

static inline int pair_connect(struct pair *p, int i)
{
	struct cairn_fhbn_address a, b;
	int ret = cairn_fhbn_queue_address(p->queue[i], &a);

	ret = ret ? ret : cairn_fhbn_queue_address(p->peer[i], &b);
	ret = ret ? ret : cairn_fhbn_queue_connect(p->peer[i], &a);
	return ret ? ret : cairn_fhbn_queue_connect(p->queue[i], &b);
}

/*
 * Opens and connects `num` pairs of queues. on_gpu: all memory that is moved is GPU memory. Returns 0, or
 * -errno with a text.
 */
static inline int pair_open(struct pair *p, const char *adversary, uint64_t seed,
			    const struct cairn_fhbn_qp_args *args, int num, int on_gpu)
{
	const struct cairn_fhbn_open_args open = {
		.provider = pair_provider(), .adversary = adversary, .seed = seed, .gid_index = 1,
	};
	const struct cairn_nic_bare *model = fhbn_model();
	struct cairn_fhbn_qp_args other = *args;
	int ret;

	memset(p, 0, sizeof(*p));
	p->on_gpu = on_gpu;
	if (!model)
		return -ENODEV;
	if (open.provider == CAIRN_FHBN_VERBS) {
		model->set_adversary(adversary, seed);
		model->set_copy(fhbn_gpu_copy_async, fhbn_gpu_settle);
	}
	ret = cairn_fhbn_open(&open, &p->nic);
	if (ret)
		return ret;
	ret = pair_memory(on_gpu, &p->from);
	ret = ret ? ret : pair_memory(on_gpu, &p->to);
	ret = ret ? ret : pair_memory(on_gpu, &p->flags);
	ret = ret ? ret : cairn_fhbn_register(p->nic, p->from, PAIR_BYTES, &p->from_lkey, &p->other);
	p->keys += !ret;
	ret = ret ? ret : cairn_fhbn_register(p->nic, p->to, PAIR_BYTES, &p->other, &p->to_rkey);
	p->keys += !ret;
	ret = ret ? ret : cairn_fhbn_register(p->nic, p->flags, PAIR_BYTES, &p->other, &p->flags_rkey);
	p->keys += !ret;
	/* neither libmlx5 nor the model recognises GPU memory, so declare it */
	if (!ret && on_gpu && open.provider == CAIRN_FHBN_VERBS)
		ret = model->declare_foreign(p->from, PAIR_BYTES) ||
		      model->declare_foreign(p->to, PAIR_BYTES) ||
		      model->declare_foreign(p->flags, PAIR_BYTES) ? -ENOMEM : 0;
	other.poster = CAIRN_FHBN_BY_CPU;
	for (int i = 0; !ret && i < num; i++) {
		ret = cairn_fhbn_queue_create(p->nic, args, &p->queue[i]);
		if (ret)
			break;
		ret = cairn_fhbn_queue_create(p->nic, &other, &p->peer[i]);
		if (ret) {
			cairn_fhbn_queue_destroy(p->queue[i]);
			break;
		}
		p->num++;
		ret = pair_connect(p, i);
	}
	if (ret)
		pair_close(p);
	return ret;
}

/* Opens a pair for a test: skips the test if there is no such device and fails it for any other error. */
static inline int pair_open_or_skip(struct cairn_test *t, struct pair *p, const char *adversary,
				    uint32_t blocks, uint32_t mode, int num)
{
	const struct cairn_fhbn_qp_args args = {
		.poster = CAIRN_FHBN_BY_CPU, .num_blocks = blocks, .mode = mode, .timeout_ns = TIMEOUT,
	};
	int ret = pair_open(p, adversary, cairn_rand(t), &args, num, 0);

	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, ret == 0);
	return ret;
}

/* Returns the kernels' addresses of the memory; host memory is mapped for them once. */
static inline int pair_for_gpu(struct pair *p, struct fhbn_memory *m)
{
	void *host[] = { p->from, p->to, p->flags }, *gpu[] = { p->from, p->to, p->flags };
	int ret = 0;

	for (int i = 0; !ret && !p->on_gpu && i < 3; i++) {
		ret = fhbn_gpu_map(host[i], PAIR_BYTES, 0, &gpu[i]);
		p->mapped += !ret;
	}
	*m = (struct fhbn_memory) {
		(uintptr_t)p->from, (uintptr_t)p->to, (uintptr_t)p->flags, gpu[0], gpu[1], gpu[2],
		p->from_lkey, p->to_rkey, p->flags_rkey,
	};
	return ret;
}

static inline const struct nic_stats *pair_stats(void)
{
	const struct cairn_nic_bare *model = fhbn_model();

	return model ? model->stats() : NULL;
}

/* Returns the number of rules broken since `before`, without rules about bytes that the card ignores. */
static inline uint64_t pair_rules_but_reserved(const struct nic_stats *before)
{
	static const enum nic_rule reserved[] = {
		NIC_RULE_wqe_signature, NIC_RULE_wqe_stream, NIC_RULE_raddr_reserved,
	};
	uint64_t num = pair_stats()->rules - before->rules;

	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
		num -= pair_stats()->by_rule[reserved[i]] - before->by_rule[reserved[i]];
	return num;
}

#endif
