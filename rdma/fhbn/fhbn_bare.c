// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_bare - queue pairs laid out by hand on the NIC model, without libibverbs; in host or in GPU memory
 *
 * For machines without a card. One allocation holds the whole queue: the ring, the completion queue and both
 * doorbell records.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "rdma/fhbn/fhbn_provider.h"
#include "rdma/nic/nic.h"

enum { ALL_RIGHTS = 15, RECORDS_BYTES = 4096 };

struct bare_qp {
	void *memory;
	int local;
	uint32_t qpn;
};

int fhbn_beside(const char *name, char *path, size_t len)
{
	ssize_t n = readlink("/proc/self/exe", path, len - 1);
	char *slash;

	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= len)
		return 0;
	strcpy(slash + 1, name);
	return access(path, R_OK) == 0;
}

const struct cairn_nic_bare *fhbn_model(void)
{
	const struct cairn_nic_bare *(*get)(void), *model;
	char path[PATH_MAX];
	void *so = RTLD_DEFAULT;

	*(void **)&get = dlsym(so, "cairn_nic_bare");
	if (!get) {
		if (!fhbn_beside("cairn_nic.so", path, sizeof(path))) {
			cairn_error(ENODEV, "fhbn: no cairn_nic.so in the program's directory");
			return NULL;
		}
		so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (so)
			*(void **)&get = dlsym(so, "cairn_nic_bare");
		if (!get) {
			cairn_error(ENODEV, "fhbn: cairn_nic.so: %s", dlerror());
			return NULL;
		}
	}
	model = get();
	if (!model || model->size != sizeof(*model)) {
		cairn_error(ENODEV, "fhbn: cairn_nic.so %s",
			    model ? "is of another build" : "failed to initialise");
		return NULL;
	}
	return model;
}

static int bare_open(const struct cairn_fhbn_open_args *args, void **card)
{
	const struct cairn_nic_bare *model = fhbn_model();

	if (!model)
		return -ENODEV;
	if (model->set_adversary(args->adversary, args->seed))
		return cairn_error(EINVAL, "fhbn: adversary: '%s' is unknown to the model", args->adversary);
	model->set_copy(fhbn_gpu_copy_async, fhbn_gpu_settle);
	*card = (void *)model;
	return 0;
}

static void bare_close(void *card)
{
	const struct cairn_nic_bare *model = card;

	model->set_adversary(NULL, 1);
}

static int bare_add_key(void *card, void *addr, size_t bytes, int is_gpu, uint32_t *lkey, uint32_t *rkey)
{
	const struct cairn_nic_bare *model = card;
	uint32_t key;

	if (is_gpu && model->declare_foreign(addr, bytes))
		return cairn_error(ENOMEM, "fhbn: the model's table of GPU memory is full");
	if (model->add_key(addr, bytes, ALL_RIGHTS, &key)) {
		model->forget_foreign(addr);
		return cairn_error(ENOMEM, "fhbn: the model's key table is full");
	}
	*lkey = *rkey = key;
	return 0;
}

/* Memory that was declared foreign stays foreign, because other keys may cover it. */
static int bare_remove_key(void *card, uint32_t lkey)
{
	const struct cairn_nic_bare *model = card;

	return model->remove_key(lkey) ? cairn_error(EINVAL, "fhbn: lkey: %#x is no key", lkey) : 0;
}

static void bare_destroy(void *card, void *opaque)
{
	const struct cairn_nic_bare *model = card;
	struct bare_qp *qp = opaque;

	if (qp->qpn)
		model->detach(qp->qpn);
	if (qp->local) {
		model->forget_foreign(qp->memory);
		fhbn_gpu_free(qp->memory);
	} else {
		free(qp->memory);
	}
	free(qp);
}

/* Allocates a queue's memory, on the GPU if requested, and marks its completions unused. */
static int get_memory(const struct cairn_nic_bare *model, struct bare_qp *qp, size_t bytes, size_t cq_at,
		      uint32_t num_cqes)
{
	uint8_t *image = aligned_alloc(RECORDS_BYTES, bytes);
	struct cairn_cqe *cqes = (void *)(image + cq_at);
	int ret;

	if (!image)
		return cairn_error(ENOMEM, "fhbn: no memory");
	memset(image, 0, bytes);
	for (uint32_t i = 0; i < num_cqes; i++)
		cqes[i].op_own = CAIRN_CQE_UNUSED;
	qp->memory = image;
	if (!qp->local)
		return 0;
	ret = fhbn_gpu_alloc(bytes, &qp->memory);
	if (ret) {
		qp->local = 0;		/* the memory held is still the host image */
		return ret;
	}
	ret = fhbn_gpu_copy(qp->memory, image, bytes);
	free(image);
	if (ret)
		return ret;
	return model->declare_foreign(qp->memory, bytes) ?
	       cairn_error(ENOMEM, "fhbn: the model's table of GPU memory is full") : 0;
}

static int bare_create(void *card, const struct cairn_fhbn_qp_args *args, void **out, struct fhbn_layout *l)
{
	const struct cairn_nic_bare *model = card;
	size_t sq_bytes = (size_t)args->num_blocks * CAIRN_WQE_BLOCK, cq_at = (sq_bytes + 4095) / 4096 * 4096;
	size_t cq_bytes = (size_t)args->num_blocks * sizeof(struct cairn_cqe);
	size_t records_at = cq_at + (cq_bytes + 4095) / 4096 * 4096;
	struct bare_qp *qp = calloc(1, sizeof(*qp));
	struct cairn_nic_ring ring;
	uint8_t *at;
	int ret;

	if (!qp)
		return cairn_error(ENOMEM, "fhbn: no memory");
	qp->local = args->poster == CAIRN_FHBN_BY_GPU_LOCAL;
	ret = get_memory(model, qp, records_at + RECORDS_BYTES, cq_at, args->num_blocks);
	if (ret)
		goto out_destroy;
	at = qp->memory;
	ring = (struct cairn_nic_ring) {
		.sq = at, .cq = at + cq_at, .record = at + records_at,
		.cq_record = at + records_at + CAIRN_WQE_BLOCK,
		.num_blocks = args->num_blocks, .num_cqes = args->num_blocks,
	};
	*l = (struct fhbn_layout) {
		.sq = ring.sq, .cq = ring.cq, .record = at + records_at + sizeof(uint32_t),
		.cq_record = ring.cq_record, .num_blocks = ring.num_blocks, .num_cqes = ring.num_cqes,
		.local = qp->local,
	};
	ret = model->attach(&ring, &qp->qpn, l->reg);
	if (ret) {
		ret = cairn_error(-ret, "fhbn: the model cannot create a queue pair (%s)", strerror(-ret));
		goto out_destroy;
	}
	l->qpn = qp->qpn;
	l->reg_bytes = (size_t)((char *)l->reg[1] - (char *)l->reg[0]) + CAIRN_WQE_BLOCK;
	*out = qp;
	return 0;

out_destroy:
	bare_destroy(card, qp);
	return ret;
}

static int bare_address(void *card, void *qp, struct cairn_fhbn_address *out)
{
	(void)card;
	(void)qp;
	(void)out;		/* the queue pair number is enough, and the caller has stored it */
	return 0;
}

static int bare_connect(void *card, void *opaque, const struct cairn_fhbn_address *peer)
{
	const struct cairn_nic_bare *model = card;
	struct bare_qp *qp = opaque;

	return model->connect(qp->qpn, peer->qpn) ?
	       cairn_error(EINVAL, "fhbn: queue pair %#x cannot be connected", qp->qpn) : 0;
}

const struct fhbn_ops fhbn_bare_ops = {
	.open = bare_open, .close = bare_close, .add_key = bare_add_key, .remove_key = bare_remove_key,
	.create = bare_create, .address = bare_address, .connect = bare_connect, .destroy = bare_destroy,
};
