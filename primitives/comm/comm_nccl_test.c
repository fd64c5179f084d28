// SPDX-License-Identifier: Apache-2.0
/*
 * comm_nccl_test - NCCL's collectives for comm_measure_test.c: ncclAllReduce, then our rmsnorm with the
 * residual; and groups of ncclSend and ncclRecv
 */
#include "primitives/comm/comm_group_test.h"

#include <stdlib.h>

#include "conformance/tables/tables.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#ifdef CONFIG_NCCL
#include <dlfcn.h>

#include "rdma/transport/transport_nccl.h"

struct comm_nccl {
	const struct nccl_functions *n;
	ncclComm_t comm[CAIRN_COMM_MAX_RANKS];
	ncclResult_t (*all_reduce)(const void *from, void *to, size_t count, ncclDataType_t type,
				   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
};

#define NCCL(c, expr) do { ncclResult_t r_ = (expr); \
		if (r_ != ncclSuccess) return nccl_failed((c)->n, r_, #expr); } while (0)

int comm_nccl_open(struct comm_group *g)
{
	struct comm_nccl *c;

	if (g->gpus < g->ranks)
		return cairn_error(ENODEV, "NCCL does not connect a GPU with itself");
	c = g->nccl = calloc(1, sizeof(*c));
	if (!c)
		return cairn_error(ENOMEM, "no memory");
	CAIRN_TRY(nccl_load(&c->n));
	c->all_reduce = (__typeof__(c->all_reduce))dlsym(c->n->lib, "ncclAllReduce");
	if (!c->all_reduce)
		return cairn_error(ENODEV, "libnccl.so.2 has no ncclAllReduce");
	NCCL(c, c->n->CommInitAll(c->comm, g->ranks, g->gpu));
	return 0;
}

void comm_nccl_close(struct comm_group *g)
{
	for (int r = 0; g->nccl && r < g->ranks; r++)
		if (g->nccl->comm[r])
			g->nccl->n->CommAbort(g->nccl->comm[r]);
	free(g->nccl);
	g->nccl = NULL;
}

static int reduce(struct comm_group *g, int r, size_t bytes)
{
	struct comm_nccl *c = g->nccl;

	NCCL(c, c->all_reduce(g->x[r], g->sum[r], bytes / 2, ncclBfloat16, ncclSum, c->comm[r],
			      g->stream[r]));
	return 0;
}

/* Sends to all ranks, or in a ring. */
static int move(struct comm_group *g, enum comm_op op, int r, size_t bytes)
{
	const size_t block = op == COMM_ALL_TO_ALL ? bytes / (size_t)g->ranks : bytes;
	struct comm_nccl *c = g->nccl;
	char *out = (char *)g->out[r], *x = (char *)g->x[r];

	NCCL(c, c->n->GroupStart());
	for (int i = 0; i < (op == COMM_ALL_TO_ALL ? g->ranks : 1); i++) {
		const int to = op == COMM_ALL_TO_ALL ? i : (r + 1) % g->ranks;
		const int from = op == COMM_ALL_TO_ALL ? i : (r + g->ranks - 1) % g->ranks;
		const size_t at = (size_t)i * block;

		NCCL(c, c->n->Send(x + at, block, ncclInt8, to, c->comm[r], g->stream[r]));
		NCCL(c, c->n->Recv(out + at, block, ncclInt8, from, c->comm[r], g->stream[r]));
	}
	NCCL(c, c->n->GroupEnd());
	return 0;
}

int comm_nccl_call(struct comm_group *g, enum comm_op op, int r, size_t bytes)
{
	const struct cairn_rmsnorm_args a = {
		.size = sizeof(a), .out = g->out[r], .residual = g->residual[r], .x = g->sum[r],
		.weight = g->weight[r], .rows = (int32_t)(bytes / 2 / COMM_DIM), .dim = COMM_DIM,
		.dtype = CAIRN_BF16, .eps = 1e-5f,
	};

	if (op != COMM_ALL_REDUCE_NORM)
		return move(g, op, r, bytes);
	CAIRN_TRY(reduce(g, r, bytes));
	return cairn_impl_cuda.rmsnorm(&a, g->stream[r]);
}

int comm_nccl_warm(struct comm_group *g, enum comm_op op, size_t bytes)
{
	struct comm_nccl *c = g->nccl;
	int ret = 0;

	NCCL(c, c->n->GroupStart());
	for (int r = 0; r < g->ranks && !ret; r++)
		ret = op == COMM_ALL_REDUCE_NORM ? reduce(g, r, bytes) : move(g, op, r, bytes);
	NCCL(c, c->n->GroupEnd());
	return ret;
}

#else

int comm_nccl_open(struct comm_group *g)
{
	(void)g;
	return cairn_error(ENODEV, "this build has no NCCL headers");
}

void comm_nccl_close(struct comm_group *g)
{
	(void)g;
}

int comm_nccl_call(struct comm_group *g, enum comm_op op, int r, size_t bytes)
{
	(void)g;
	(void)op;
	(void)r;
	(void)bytes;
	return -ENODEV;
}

int comm_nccl_warm(struct comm_group *g, enum comm_op op, size_t bytes)
{
	return comm_nccl_call(g, op, 0, bytes);
}

#endif
