// SPDX-License-Identifier: Apache-2.0
/*
 * comm_measure_test.c - rows of `cairn bench primitives.comm`: collectives between two GPUs
 *
 * Both ranks are in this process, each on its GPU. A row is the time of one call in a graph of GRAPH_CALLS
 * calls that follow each other, in which the residual is updated in place as in a model. impl nccl:
 * ncclAllReduce, then our rmsnorm with the residual. With one GPU both ranks share it and the names begin
 * with one_gpu_; this tests the code and says nothing about a link.
 */
#include "conformance/harness.h"
#include "primitives/comm/comm_measure_test.h"

#ifdef CONFIG_CUDA
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "primitives/base/launch.h"
#ifdef CONFIG_NCCL
#include <dlfcn.h>

#include "rdma/transport/transport_nccl.h"
#endif

#define GRAPH_CALLS	50
#define SAMPLES		25
#define DIM		4096
#define MAX_ROWS	4096

struct nccl {
#ifdef CONFIG_NCCL
	const struct nccl_functions *n;
	ncclComm_t comm[2];
	ncclResult_t (*all_reduce)(const void *from, void *to, size_t count, ncclDataType_t type,
				   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
#endif
};

struct pair {
	int gpu[2], num_gpus;
	cudaStream_t stream[2];
	struct cairn_comm comm[2];
	uint16_t *x[2], *residual[2], *out[2], *weight[2], *sum[2];
	uint16_t *host_x[2], *host_residual, *host_weight, *got;
	struct nccl nccl;
};

/* ---- opening ---- */

static pthread_barrier_t met;
static uint8_t board[2][CAIRN_COMM_EXCHANGE];

struct opening {
	struct pair *p;
	int rank, ret;
	char text[256];
};

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	const struct opening *o = arg;

	memcpy(board[o->rank], mine, bytes);
	pthread_barrier_wait(&met);
	for (int r = 0; r < 2; r++)
		memcpy((uint8_t *)all + (size_t)r * bytes, board[r], bytes);
	pthread_barrier_wait(&met);
	return 0;
}

static void *open_rank(void *arg)
{
	struct opening *o = arg;
	struct cairn_comm_args a = { .size = sizeof(a), .exchange = exchange, .arg = o, .rank = o->rank,
				     .ranks = 2 };

	if (cudaSetDevice(o->p->gpu[o->rank]) != cudaSuccess)
		cudaGetLastError();	/* the table finds out too */
	o->ret = cairn_impl_cuda.comm_open(&a, &o->p->comm[o->rank]);
	snprintf(o->text, sizeof(o->text), "%s", cairn_last_error());
	return NULL;
}

static int open_comms(struct pair *p)
{
	struct opening o[2] = { { .p = p, .rank = 0 }, { .p = p, .rank = 1 } };
	pthread_t other;

	pthread_barrier_init(&met, NULL, 2);
	if (pthread_create(&other, NULL, open_rank, &o[1]))
		return cairn_error(ENOMEM, "cannot create a thread");
	open_rank(&o[0]);
	pthread_join(other, NULL);
	pthread_barrier_destroy(&met);
	for (int r = 0; r < 2; r++)
		if (o[r].ret)
			return cairn_error(-o[r].ret, "rank %d: %s", r, o[r].text);
	return 0;
}

static int alloc_rank(struct pair *p, int r)
{
	const size_t bytes = (size_t)MAX_ROWS * DIM * 2;
	uint16_t **arrays[] = { &p->x[r], &p->residual[r], &p->out[r], &p->sum[r], &p->weight[r] };

	CAIRN_CUDA(cudaSetDevice(p->gpu[r]));
	CAIRN_CUDA(cudaStreamCreateWithFlags(&p->stream[r], cudaStreamNonBlocking));
	for (size_t i = 0; i < ARRAY_SIZE(arrays); i++)
		CAIRN_CUDA(cudaMalloc((void **)arrays[i], i < 4 ? bytes : DIM * 2));
	return 0;
}

static void random_row(struct cairn_test *t, uint16_t *to, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = cairn_double_to_bf16((double)(int64_t)(cairn_rand(t) % 4001) / 1000 - 2);
}

static int open_pair(struct cairn_test *t, struct pair *p)
{
	const size_t count = (size_t)MAX_ROWS * DIM;

	memset(p, 0, sizeof(*p));
	if (cudaGetDeviceCount(&p->num_gpus) != cudaSuccess || !p->num_gpus) {
		cudaGetLastError();
		return cairn_error(ENODEV, "no CUDA device");
	}
	p->gpu[1] = p->num_gpus > 1;
	for (int r = 0; r < 2; r++)
		CAIRN_TRY(alloc_rank(p, r));
	p->host_x[0] = malloc(5 * count * 2 + DIM * 2);
	if (!p->host_x[0])
		return cairn_error(ENOMEM, "no memory");
	p->host_x[1] = p->host_x[0] + count;
	p->host_residual = p->host_x[1] + count;
	p->got = p->host_residual + count;
	p->host_weight = p->got + 2 * count;
	random_row(t, p->host_x[0], 2 * count);
	random_row(t, p->host_residual, count);
	random_row(t, p->host_weight, DIM);
	return open_comms(p);
}

static void close_pair(struct pair *p)
{
	for (int r = 0; r < 2; r++) {
		cudaSetDevice(p->gpu[r]);
		if (p->stream[r])
			cudaStreamSynchronize(p->stream[r]);
	}
	for (int r = 0; r < 2; r++) {
		if (p->comm[r].handle)
			cairn_impl_cuda.comm_close(&p->comm[r]);
#ifdef CONFIG_NCCL
		if (p->nccl.comm[r])
			p->nccl.n->CommAbort(p->nccl.comm[r]);
#endif
		cudaSetDevice(p->gpu[r]);
		if (p->stream[r])
			cudaStreamDestroy(p->stream[r]);
		cudaFree(p->x[r]);
		cudaFree(p->residual[r]);
		cudaFree(p->out[r]);
		cudaFree(p->sum[r]);
		cudaFree(p->weight[r]);
	}
	cudaSetDevice(p->gpu[0]);
	free(p->host_x[0]);
}

/* ---- calls ---- */

typedef int (*call_fn)(struct pair *p, int r, int32_t rows);

static int call_ours(struct pair *p, int r, int32_t rows)
{
	const struct cairn_all_reduce_norm_args a = {
		.size = sizeof(a), .out = p->out[r], .residual = p->residual[r], .x = p->x[r],
		.weight = p->weight[r], .comm = p->comm[r], .rows = rows, .dim = DIM, .dtype = CAIRN_BF16,
		.eps = 1e-5f,
	};

	return cairn_impl_cuda.all_reduce_norm(&a, p->stream[r]);
}

#ifdef CONFIG_NCCL
static int open_nccl(struct pair *p)
{
	struct nccl *n = &p->nccl;
	ncclResult_t result;

	if (p->num_gpus < 2)
		return cairn_error(ENODEV, "NCCL does not connect a GPU with itself");
	CAIRN_TRY(nccl_load(&n->n));
	n->all_reduce = (__typeof__(n->all_reduce))dlsym(n->n->lib, "ncclAllReduce");
	if (!n->all_reduce)
		return cairn_error(ENODEV, "libnccl.so.2 has no ncclAllReduce");
	result = n->n->CommInitAll(n->comm, 2, p->gpu);
	if (result != ncclSuccess)
		return nccl_failed(n->n, result, "ncclCommInitAll");
	return 0;
}

static int reduce_nccl(struct pair *p, int r, int32_t rows)
{
	ncclResult_t result = p->nccl.all_reduce(p->x[r], p->sum[r], (size_t)rows * DIM, ncclBfloat16,
						 ncclSum, p->nccl.comm[r], p->stream[r]);

	return result == ncclSuccess ? 0 : nccl_failed(p->nccl.n, result, "ncclAllReduce");
}

static int call_nccl(struct pair *p, int r, int32_t rows)
{
	const struct cairn_rmsnorm_args a = {
		.size = sizeof(a), .out = p->out[r], .residual = p->residual[r], .x = p->sum[r],
		.weight = p->weight[r], .rows = rows, .dim = DIM, .dtype = CAIRN_BF16, .eps = 1e-5f,
	};

	CAIRN_TRY(reduce_nccl(p, r, rows));
	return cairn_impl_cuda.rmsnorm(&a, p->stream[r]);
}

/* Makes NCCL connect the ranks for this size: outside a group, or in a graph, it would wait for the peer. */
static int warm_nccl(struct pair *p, int32_t rows)
{
	int ret = 0;

	if (p->nccl.n->GroupStart() != ncclSuccess)
		return cairn_error(EIO, "ncclGroupStart failed");
	for (int r = 0; r < 2 && !ret; r++)
		ret = reduce_nccl(p, r, rows);
	if (p->nccl.n->GroupEnd() != ncclSuccess)
		return cairn_error(EIO, "ncclGroupEnd failed");
	return ret;
}
#else
static int open_nccl(struct pair *p)
{
	(void)p;
	return cairn_error(ENODEV, "this build has no NCCL headers");
}

static int call_nccl(struct pair *p, int r, int32_t rows)
{
	(void)p;
	(void)r;
	(void)rows;
	return -ENODEV;
}

static int warm_nccl(struct pair *p, int32_t rows)
{
	return call_nccl(p, 0, rows);
}
#endif

static int upload(struct pair *p, int32_t rows)
{
	const size_t bytes = (size_t)rows * DIM * 2;

	for (int r = 0; r < 2; r++) {
		CAIRN_CUDA(cudaSetDevice(p->gpu[r]));
		CAIRN_CUDA(cudaMemcpy(p->x[r], p->host_x[r], bytes, cudaMemcpyHostToDevice));
		CAIRN_CUDA(cudaMemcpy(p->residual[r], p->host_residual, bytes, cudaMemcpyHostToDevice));
		CAIRN_CUDA(cudaMemcpy(p->weight[r], p->host_weight, DIM * 2, cudaMemcpyHostToDevice));
	}
	return 0;
}

static int both(struct pair *p, int32_t rows, call_fn call)
{
	int ret = call == call_nccl ? warm_nccl(p, rows) : 0;

	for (int r = 0; r < 2 && !ret; r++) {
		CAIRN_CUDA(cudaSetDevice(p->gpu[r]));
		ret = call(p, r, rows);
	}
	for (int r = 0; r < 2; r++) {
		CAIRN_CUDA(cudaSetDevice(p->gpu[r]));
		CAIRN_CUDA(cudaStreamSynchronize(p->stream[r]));
		CAIRN_TRY(ret);
		CAIRN_TRY(cairn_impl_cuda.comm_error(&p->comm[r]));
	}
	return 0;
}

/* Judges out of one call; slack is what NCCL's rounding of the sum may add. */
static int judge(struct cairn_test *t, struct pair *p, int32_t rows, double slack)
{
	const struct cairn_all_reduce_norm_args a = {
		.size = sizeof(a), .out = p->got, .residual = p->host_residual, .x = p->host_x[0],
		.weight = p->host_weight, .comm = { p, 0, 2 }, .rows = rows, .dim = DIM, .dtype = CAIRN_BF16,
		.eps = 1e-5f,
	};
	struct cairn_all_reduce_norm_args b = a;
	const struct cairn_all_reduce_norm_args *all[] = { &a, &b };
	const size_t count = (size_t)rows * DIM;
	struct cairn_exact exact[2] = { 0 };
	double *memory = malloc(4 * count * sizeof(double)), worst = 0;
	int64_t bad = 0;

	if (!EXPECT(t, memory != NULL))
		return 0;
	for (int i = 0; i < 2; i++)
		exact[i] = (struct cairn_exact){ .val = memory + 2 * i * count,
						 .bound = memory + (2 * i + 1) * count };
	b.x = p->host_x[1];
	b.comm.rank = 1;
	EXPECT(t, cairn_all_reduce_norm_exact(all, exact) == 0);
	for (int r = 0; r < 2; r++) {
		cudaSetDevice(p->gpu[r]);
		EXPECT(t, cudaMemcpy(p->got, p->out[r], count * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
		for (size_t i = 0; i < count; i++) {
			double err = fabs(cairn_bf16_to_float(p->got[i]) - exact[0].val[i]);

			bad += !(err <= exact[0].bound[i] + slack);
			worst = err > worst ? err : worst;
		}
	}
	cairn_note(t, "%d rows: largest error %.3g", rows, worst);
	free(memory);
	return EXPECT(t, bad == 0);
}

/* ---- time ---- */

static int capture(struct pair *p, int r, int32_t rows, call_fn call, cudaGraphExec_t *exec)
{
	cudaGraph_t graph;
	cudaError_t err;
	int ret = 0;

	CAIRN_CUDA(cudaSetDevice(p->gpu[r]));
	CAIRN_CUDA(cudaStreamBeginCapture(p->stream[r], cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < GRAPH_CALLS && !ret; i++)
		ret = call(p, r, rows);
	CAIRN_CUDA(cudaStreamEndCapture(p->stream[r], &graph));
	CAIRN_TRY(ret);
	err = cudaGraphInstantiate(exec, graph, 0);
	cudaGraphDestroy(graph);
	CAIRN_CUDA(err);
	/*
	 * The first launch would upload the graph, and so allocate memory that both devices map. It would
	 * wait for the other rank's graph, which waits for this one.
	 */
	CAIRN_CUDA(cudaGraphUpload(*exec, p->stream[r]));
	CAIRN_CUDA(cudaStreamSynchronize(p->stream[r]));
	return 0;
}

static int replay(struct pair *p, cudaGraphExec_t exec[2], cudaEvent_t event[2], float *ms)
{
	CAIRN_CUDA(cudaSetDevice(p->gpu[1]));
	CAIRN_CUDA(cudaGraphLaunch(exec[1], p->stream[1]));
	CAIRN_CUDA(cudaSetDevice(p->gpu[0]));
	CAIRN_CUDA(cudaEventRecord(event[0], p->stream[0]));
	CAIRN_CUDA(cudaGraphLaunch(exec[0], p->stream[0]));
	CAIRN_CUDA(cudaEventRecord(event[1], p->stream[0]));
	CAIRN_CUDA(cudaStreamSynchronize(p->stream[0]));
	CAIRN_CUDA(cudaStreamSynchronize(p->stream[1]));
	CAIRN_CUDA(cudaEventElapsedTime(ms, event[0], event[1]));
	return cairn_impl_cuda.comm_error(&p->comm[0]);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int time_calls(struct pair *p, int32_t rows, call_fn call, double *ns)
{
	cudaGraphExec_t exec[2] = { NULL, NULL };
	cudaEvent_t event[2];
	float ms = 0;
	int ret = 0;

	CAIRN_CUDA(cudaSetDevice(p->gpu[0]));
	CAIRN_CUDA(cudaEventCreate(&event[0]));
	CAIRN_CUDA(cudaEventCreate(&event[1]));
	for (int r = 0; r < 2 && !ret; r++)
		ret = capture(p, r, rows, call, &exec[r]);
	for (int i = -5; i < SAMPLES && !ret; i++) {
		ret = replay(p, exec, event, &ms);
		if (i >= 0)
			ns[i] = (double)ms * 1e6 / GRAPH_CALLS;
	}
	for (int i = 0; i < 2; i++) {
		if (exec[i])
			cudaGraphExecDestroy(exec[i]);
		cudaEventDestroy(event[i]);
	}
	qsort(ns, SAMPLES, sizeof(*ns), ascending);
	return ret;
}

static void row(struct cairn_test *t, struct pair *p, int32_t rows, const char *impl, call_fn call,
		double slack)
{
	double ns[SAMPLES];
	char name[96];

	snprintf(name, sizeof(name), "%sall_reduce_norm_rows%d_dim%d_bf16",
		 p->num_gpus > 1 ? "" : "one_gpu_", rows, DIM);
	if (!EXPECT(t, upload(p, rows) == 0) || !EXPECT(t, both(p, rows, call) == 0) ||
	    !judge(t, p, rows, slack) || !EXPECT(t, time_calls(p, rows, call, ns) == 0)) {
		cairn_note(t, "%s, %s: %s", name, impl, cairn_last_error());
		return;
	}
	cairn_row(t, name, impl, "\"gpus\":%d,\"bytes\":%d,\"n\":%d,\"min_ns\":%.1f,\"median_ns\":%.1f,"
		  "\"p95_ns\":%.1f,\"gbps\":%.2f", p->num_gpus, rows * DIM * 2, SAMPLES, ns[0],
		  ns[SAMPLES / 2], ns[SAMPLES * 95 / 100], (double)rows * DIM * 2 / ns[SAMPLES / 2]);
}

/* The two measures have processes of their own, so that neither keeps the other's rows. */
static void measure(struct cairn_test *t, const char *impl, int (*prepare)(struct pair *p), call_fn call,
		    double slack)
{
	/* 16 KB, 64 KB, 256 KB, 1 MB, and two of prompts: 4 MB, 32 MB */
	static const int32_t sizes[] = { 2, 8, 32, 128, 512, 4096 };
	struct pair p;
	int ret = open_pair(t, &p);

	if (!ret && prepare)
		ret = prepare(&p);
	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_last_error());
	for (size_t i = 0; i < ARRAY_SIZE(sizes) && !ret; i++) {
		if (p.num_gpus < 2 && sizes[i] > 32)	/* both ranks' CTAs must be resident */
			break;
		row(t, &p, sizes[i], impl, call, slack);
	}
	close_pair(&p);
}

void comm_measure_all_reduce_norm(struct cairn_test *t)
{
	measure(t, "cuda", NULL, call_ours, 0);
}

void comm_measure_nccl(struct cairn_test *t)
{
	measure(t, "nccl", open_nccl, call_nccl, 0.06);
}

#else

void comm_measure_all_reduce_norm(struct cairn_test *t)
{
	cairn_skip(t, "this build has no CUDA");
}

void comm_measure_nccl(struct cairn_test *t)
{
	cairn_skip(t, "this build has no CUDA");
}

#endif
