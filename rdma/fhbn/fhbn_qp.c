// SPDX-License-Identifier: Apache-2.0
/* fhbn_qp - queue pairs for a poster on CPU or GPU, independent of the provider */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "rdma/fhbn/fhbn_provider.h"

struct cairn_fhbn_nic {
	const struct fhbn_ops *ops;
	void *card;
};

struct cairn_fhbn_queue {
	struct cairn_fhbn_nic *nic;
	void *qp;			/* the provider's object */
	struct fhbn_layout layout;
	struct cairn_fhbn_qp view;
	int on_gpu;
	void *mapped[5];		/* addresses mapped for the GPU */
	int num_mapped;
};

#ifndef CONFIG_CUDA
int fhbn_gpu_alloc(size_t bytes, void **out)
{
	(void)bytes;
	(void)out;
	return cairn_error(ENODEV, "built without CUDA");
}

int fhbn_gpu_map(void *addr, size_t bytes, int is_io, void **out)
{
	(void)addr;
	(void)is_io;
	return fhbn_gpu_alloc(bytes, out);
}

int fhbn_gpu_copy(void *to, const void *from, size_t bytes)
{
	(void)to;
	(void)from;
	return fhbn_gpu_alloc(bytes, NULL);
}

int fhbn_gpu_copy_async(void *to, const void *from, size_t bytes)
{
	return fhbn_gpu_copy(to, from, bytes);
}

int fhbn_gpu_settle(void)
{
	return 0;
}

int fhbn_gpu_is(const void *p)
{
	(void)p;
	return 0;
}

void fhbn_gpu_free(void *p)
{
	(void)p;
}

void fhbn_gpu_unmap(void *addr)
{
	(void)addr;
}
#endif

int cairn_fhbn_open(const struct cairn_fhbn_open_args *args, struct cairn_fhbn_nic **out)
{
	struct cairn_fhbn_nic *nic;
	int ret;

	if (!args || !out)
		return cairn_error(EINVAL, "fhbn: args, out: must be given");
	if (args->provider != CAIRN_FHBN_BARE && args->provider != CAIRN_FHBN_VERBS)
		return cairn_error(EINVAL, "fhbn: provider: %d is unknown", (int)args->provider);
	nic = calloc(1, sizeof(*nic));
	if (!nic)
		return cairn_error(ENOMEM, "fhbn: no memory");
	nic->ops = args->provider == CAIRN_FHBN_BARE ? &fhbn_bare_ops : &fhbn_verbs_ops;
	ret = nic->ops->open(args, &nic->card);
	if (ret) {
		free(nic);
		return ret;
	}
	*out = nic;
	return 0;
}

void cairn_fhbn_close(struct cairn_fhbn_nic *nic)
{
	if (!nic)
		return;
	nic->ops->close(nic->card);
	free(nic);
}

int cairn_fhbn_register(struct cairn_fhbn_nic *nic, void *addr, size_t bytes, uint32_t *lkey, uint32_t *rkey)
{
	if (!nic || !addr || !bytes || !lkey || !rkey)
		return cairn_error(EINVAL, "fhbn: nic, addr, bytes, lkey, rkey: must be given");
	return nic->ops->add_key(nic->card, addr, bytes, fhbn_gpu_is(addr), lkey, rkey);
}

int cairn_fhbn_unregister(struct cairn_fhbn_nic *nic, uint32_t lkey)
{
	return nic->ops->remove_key(nic->card, lkey);
}

/* Stores the GPU's address of one part of the layout, mapping it unless it is in GPU memory. */
static int map_one(struct cairn_fhbn_queue *q, void *addr, size_t bytes, int is_io, void *out)
{
	void *gpu = NULL;

	CAIRN_TRY(fhbn_gpu_map(addr, bytes, is_io, &gpu));
	q->mapped[q->num_mapped++] = addr;
	memcpy(out, &gpu, sizeof(gpu));
	return 0;
}

static int map_all(struct cairn_fhbn_queue *q)
{
	const struct fhbn_layout *l = &q->layout;
	struct cairn_fhbn_qp *v = &q->view;
	uint64_t between = (uint64_t)(l->reg[1] - l->reg[0]);

	if (!l->local) {
		CAIRN_TRY(map_one(q, l->sq, (size_t)l->num_blocks * CAIRN_WQE_BLOCK, 0, &v->sq.segs));
		CAIRN_TRY(map_one(q, l->record, sizeof(*v->record), 0, &v->record));
		CAIRN_TRY(map_one(q, l->cq, (size_t)l->num_cqes * sizeof(*v->cq), 0, &v->cq));
		CAIRN_TRY(map_one(q, l->cq_record, sizeof(*v->cq_record), 0, &v->cq_record));
	}
	CAIRN_TRY(map_one(q, l->reg[0], l->reg_bytes, l->reg_is_io, &v->reg[0]));
	v->reg[1] = v->reg[0] + between;
	return fhbn_gpu_alloc(sizeof(*v->state), (void **)&v->state);
}

static int make_view(struct cairn_fhbn_queue *q, const struct cairn_fhbn_qp_args *args)
{
	const struct fhbn_layout *l = &q->layout;

	q->view = (struct cairn_fhbn_qp) {
		.sq = { l->sq, l->num_blocks, l->qpn }, .record = l->record, .reg = { l->reg[0], l->reg[1] },
		.cq = l->cq, .cq_record = l->cq_record, .timeout_ns = args->timeout_ns,
		.num_cqes = l->num_cqes, .mode = args->mode | (l->local ? 0 : CAIRN_FHBN_SYS),
	};
	if (q->on_gpu)
		return map_all(q);
	q->view.state = calloc(1, sizeof(*q->view.state));
	return q->view.state ? 0 : cairn_error(ENOMEM, "fhbn: no memory");
}

static int check_args(const struct cairn_fhbn_qp_args *a)
{
	const uint32_t modes = CAIRN_FHBN_SYS | CAIRN_FHBN_SHARED | CAIRN_FHBN_BELL_WQE |
			       CAIRN_FHBN_BLUEFLAME | CAIRN_FHBN_QUIET;

	if ((unsigned)a->poster > CAIRN_FHBN_BY_GPU_LOCAL)
		return cairn_error(EINVAL, "fhbn: poster: %d is unknown", (int)a->poster);
	if (a->num_blocks < CAIRN_FHBN_MIN_BLOCKS || a->num_blocks > 32768 ||
	    a->num_blocks & (a->num_blocks - 1))
		return cairn_error(EINVAL, "fhbn: num_blocks: %u is not a power of two from %d to 32768",
				   a->num_blocks, CAIRN_FHBN_MIN_BLOCKS);
	if (a->mode & ~modes)
		return cairn_error(EINVAL, "fhbn: mode: %#x has unknown bits", a->mode);
	if (!a->timeout_ns)
		return cairn_error(EINVAL, "fhbn: timeout_ns: must be > 0");
	return 0;
}

int cairn_fhbn_queue_create(struct cairn_fhbn_nic *nic, const struct cairn_fhbn_qp_args *args,
			    struct cairn_fhbn_queue **out)
{
	struct cairn_fhbn_queue *q;
	int ret;

	if (!nic || !args || !out)
		return cairn_error(EINVAL, "fhbn: nic, args, out: must be given");
	CAIRN_TRY(check_args(args));
	q = calloc(1, sizeof(*q));
	if (!q)
		return cairn_error(ENOMEM, "fhbn: no memory");
	q->nic = nic;
	q->on_gpu = args->poster != CAIRN_FHBN_BY_CPU;
	ret = nic->ops->create(nic->card, args, &q->qp, &q->layout);
	if (!ret)
		ret = make_view(q, args);
	if (ret) {
		cairn_fhbn_queue_destroy(q);
		return ret;
	}
	*out = q;
	return 0;
}

int cairn_fhbn_queue_address(struct cairn_fhbn_queue *q, struct cairn_fhbn_address *out)
{
	memset(out, 0, sizeof(*out));
	out->qpn = q->layout.qpn;
	return q->nic->ops->address(q->nic->card, q->qp, out);
}

int cairn_fhbn_queue_connect(struct cairn_fhbn_queue *q, const struct cairn_fhbn_address *peer)
{
	return q->nic->ops->connect(q->nic->card, q->qp, peer);
}

/* The queue's kernels must have ended. The card releases the queue before its memory is freed. */
void cairn_fhbn_queue_destroy(struct cairn_fhbn_queue *q)
{
	if (!q)
		return;
	while (q->num_mapped)
		fhbn_gpu_unmap(q->mapped[--q->num_mapped]);
	if (q->qp)
		q->nic->ops->destroy(q->nic->card, q->qp);
	if (q->on_gpu)
		fhbn_gpu_free(q->view.state);
	else
		free(q->view.state);
	free(q);
}

const struct cairn_fhbn_qp *cairn_fhbn_queue_view(const struct cairn_fhbn_queue *q)
{
	return &q->view;
}

int cairn_fhbn_queue_state(const struct cairn_fhbn_queue *q, struct cairn_fhbn_state *out)
{
	struct cairn_fhbn_state s;

	if (q->on_gpu)
		CAIRN_TRY(fhbn_gpu_copy(&s, q->view.state, sizeof(s)));
	else
		s = *q->view.state;
	*out = s;
	return 0;
}

int cairn_fhbn_queue_error(const struct cairn_fhbn_queue *q)
{
	struct cairn_fhbn_state s;

	CAIRN_TRY(cairn_fhbn_queue_state(q, &s));
	return cairn_fhbn_fault_error(&s.fault);
}
