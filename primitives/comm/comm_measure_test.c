// SPDX-License-Identifier: Apache-2.0
/*
 * comm_measure_test.c - rows of `cairn bench primitives.comm`: collectives between the GPUs of a host
 *
 * All ranks are in this process, each on its GPU. A row is the time of one call in a graph of GRAPH_CALLS
 * calls that follow each other; all_reduce_norm updates the residual in place as in a model. bytes, of one
 * rank: its rows (all_reduce_norm), the blocks that it sends to all ranks together (all_to_all), its message
 * to the next rank of a ring (send_recv). impl nccl: comm_nccl_test.c. With one GPU two ranks share it and
 * the names begin with one_gpu_; this tests the code and says nothing about a link.
 *
 * Each measure has a process of its own, so that a measure that hangs does not cost the rows of the others.
 */
#include "conformance/harness.h"
#include "primitives/comm/comm_measure_test.h"

#ifdef CONFIG_CUDA
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "primitives/base/launch.h"
#include "primitives/comm/comm_group_test.h"

#define GRAPH_CALLS	50
#define SAMPLES		25
#define MAX		CAIRN_COMM_MAX_RANKS
#define DIM		COMM_DIM
#define JUDGED_ROWS	256		/* in double precision on the host */

static int32_t rows_of(size_t bytes)
{
	return (int32_t)(bytes / 2 / DIM);
}

static int call_ours(struct comm_group *g, enum comm_op op, int r, size_t bytes)
{
	const int64_t block = (int64_t)bytes / g->ranks;
	const int32_t row_bytes = block < 4096 ? (int32_t)block : 4096;
	const struct cairn_all_reduce_norm_args reduce = {
		.size = sizeof(reduce), .out = g->out[r], .residual = g->residual[r], .x = g->x[r],
		.weight = g->weight[r], .comm = g->comm[r], .rows = rows_of(bytes), .dim = DIM,
		.dtype = CAIRN_BF16, .eps = 1e-5f,
	};
	const struct cairn_all_to_all_args all = {
		.size = sizeof(all), .out = g->out[r], .x = g->x[r], .comm = g->comm[r], .out_block = block,
		.out_stride = row_bytes, .x_block = block, .x_stride = row_bytes,
		.rows = (int32_t)(block / row_bytes), .row_bytes = row_bytes,
	};
	const struct cairn_send_recv_args send = {
		.size = sizeof(send), .out = g->out[r], .x = g->x[r], .comm = g->comm[r],
		.bytes = (int64_t)bytes, .to = (r + 1) % g->ranks, .from = (r + g->ranks - 1) % g->ranks,
	};

	return op == COMM_ALL_REDUCE_NORM ? cairn_impl_cuda.all_reduce_norm(&reduce, g->stream[r]) :
	       op == COMM_ALL_TO_ALL ? cairn_impl_cuda.all_to_all(&all, g->stream[r]) :
	       cairn_impl_cuda.send_recv(&send, g->stream[r]);
}

static int all_ranks(struct comm_group *g, enum comm_op op, size_t bytes, comm_call call)
{
	int ret = 0;

	for (int r = 0; r < g->ranks && !ret; r++) {
		CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
		ret = call(g, op, r, bytes);
	}
	for (int r = 0; r < g->ranks; r++) {
		CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
		CAIRN_CUDA(cudaStreamSynchronize(g->stream[r]));
		CAIRN_TRY(ret);
		CAIRN_TRY(cairn_impl_cuda.comm_error(&g->comm[r]));
	}
	return 0;
}

/* ---- results ---- */

static int fetch(struct comm_group *g, int r, size_t bytes)
{
	CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
	CAIRN_CUDA(cudaMemcpy(g->got, g->out[r], bytes, cudaMemcpyDeviceToHost));
	return 0;
}

/*
 * Judges the first rows of out. slack: added to the bound for NCCL, which rounds each of ranks - 1 partial
 * sums to bf16. Partial sums are below 2 * ranks.
 */
static int judge_sums(struct cairn_test *t, struct comm_group *g, size_t bytes, double slack)
{
	const int32_t rows = rows_of(bytes) < JUDGED_ROWS ? rows_of(bytes) : JUDGED_ROWS;
	const size_t count = (size_t)rows * DIM;
	struct cairn_all_reduce_norm_args args[MAX];
	const struct cairn_all_reduce_norm_args *all[MAX];
	struct cairn_exact exact[2] = { { 0 } };
	double *memory = malloc(4 * count * sizeof(double)), worst = 0;
	int64_t bad = 0;

	if (!EXPECT(t, memory != NULL))
		return 0;
	for (int i = 0; i < 2; i++)
		exact[i] = (struct cairn_exact){ .val = memory + 2 * i * count,
						 .bound = memory + (2 * i + 1) * count };
	for (int r = 0; r < g->ranks; r++) {
		args[r] = (struct cairn_all_reduce_norm_args){
			.size = sizeof(args[r]), .out = g->got, .residual = g->host_residual,
			.x = g->host_x[r], .weight = g->host_weight, .comm = { g, r, g->ranks },
			.rows = rows, .dim = DIM, .dtype = CAIRN_BF16, .eps = 1e-5f,
		};
		all[r] = &args[r];
	}
	EXPECT(t, cairn_all_reduce_norm_exact(all, exact) == 0);
	for (int r = 0; r < g->ranks; r++) {
		bad += fetch(g, r, count * 2) != 0;
		for (size_t i = 0; i < count; i++) {
			double err = fabs(cairn_bf16_to_float(g->got[i]) - exact[0].val[i]);

			bad += !(err <= exact[0].bound[i] + slack);
			worst = err > worst ? err : worst;
		}
	}
	cairn_note(t, "%d rows: largest error %.3g", rows, worst);
	free(memory);
	return EXPECT(t, bad == 0);
}

static int judge_copies(struct cairn_test *t, struct comm_group *g, enum comm_op op, size_t bytes)
{
	const size_t block = bytes / (size_t)g->ranks;
	int bad = 0;

	for (int r = 0; r < g->ranks; r++) {
		const char *got = (const char *)g->got;

		bad += fetch(g, r, bytes) != 0;
		for (int s = 0; op == COMM_ALL_TO_ALL && s < g->ranks; s++)
			bad += memcmp(got + (size_t)s * block,
				      (const char *)g->host_x[s] + (size_t)r * block, block) != 0;
		if (op == COMM_SEND_RECV)
			bad += memcmp(got, g->host_x[(r + g->ranks - 1) % g->ranks], bytes) != 0;
	}
	return EXPECT(t, bad == 0);
}

/* ---- time ---- */

static int capture(struct comm_group *g, enum comm_op op, int r, size_t bytes, comm_call call,
		   cudaGraphExec_t *exec)
{
	cudaGraph_t graph;
	cudaError_t err;
	int ret = 0;

	CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
	CAIRN_CUDA(cudaStreamBeginCapture(g->stream[r], cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < GRAPH_CALLS && !ret; i++)
		ret = call(g, op, r, bytes);
	CAIRN_CUDA(cudaStreamEndCapture(g->stream[r], &graph));
	CAIRN_TRY(ret);
	err = cudaGraphInstantiate(exec, graph, 0);
	cudaGraphDestroy(graph);
	CAIRN_CUDA(err);
	/*
	 * The first launch would upload the graph, and so allocate memory that all devices map. It would
	 * wait for the other ranks' graphs, which wait for this one.
	 */
	CAIRN_CUDA(cudaGraphUpload(*exec, g->stream[r]));
	CAIRN_CUDA(cudaStreamSynchronize(g->stream[r]));
	return 0;
}

/*
 * Captures the calls of all ranks before any of them runs. Capturing also loads the kernels, and loading one
 * may wait for the other GPUs, where ranks would wait for this one.
 */
static int capture_all(struct comm_group *g, enum comm_op op, size_t bytes, comm_call call,
		       cudaGraphExec_t *exec)
{
	CAIRN_TRY(comm_group_upload(g, bytes));
	if (call == comm_nccl_call)
		CAIRN_TRY(comm_nccl_warm(g, op, bytes));
	for (int r = 0; r < g->ranks; r++)
		CAIRN_TRY(capture(g, op, r, bytes, call, &exec[r]));
	/* Warming up NCCL has filled out with results, which must not hide what the judged call leaves. */
	return comm_group_upload(g, bytes);
}

/* Rank 0 comes last, so that it waits for nobody's launch. */
static int replay(struct comm_group *g, cudaGraphExec_t *exec, cudaEvent_t event[2], float *ms)
{
	for (int r = g->ranks - 1; r >= 0; r--) {
		CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
		if (!r)
			CAIRN_CUDA(cudaEventRecord(event[0], g->stream[0]));
		CAIRN_CUDA(cudaGraphLaunch(exec[r], g->stream[r]));
	}
	CAIRN_CUDA(cudaEventRecord(event[1], g->stream[0]));
	for (int r = 0; r < g->ranks; r++)
		CAIRN_CUDA(cudaStreamSynchronize(g->stream[r]));
	CAIRN_CUDA(cudaEventElapsedTime(ms, event[0], event[1]));
	return cairn_impl_cuda.comm_error(&g->comm[0]);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int time_calls(struct comm_group *g, cudaGraphExec_t *exec, double *ns)
{
	cudaEvent_t event[2];
	float ms = 0;
	int ret = 0;

	CAIRN_CUDA(cudaSetDevice(g->gpu[0]));
	CAIRN_CUDA(cudaEventCreate(&event[0]));
	CAIRN_CUDA(cudaEventCreate(&event[1]));
	for (int i = -5; i < SAMPLES && !ret; i++) {
		ret = replay(g, exec, event, &ms);
		if (i >= 0)
			ns[i] = (double)ms * 1e6 / GRAPH_CALLS;
	}
	cudaEventDestroy(event[0]);
	cudaEventDestroy(event[1]);
	qsort(ns, SAMPLES, sizeof(*ns), ascending);
	return ret;
}

/* ---- rows ---- */

static const char *const op_names[] = { "all_reduce_norm", "all_to_all", "send_recv" };

/* The first rows, of all_reduce_norm on two GPUs, are named without the number of ranks. */
static void name_case(char *name, size_t len, const struct comm_group *g, enum comm_op op, size_t bytes)
{
	char ranks[16] = "one_gpu_", size[32];

	if (g->gpus == g->ranks)
		snprintf(ranks, sizeof(ranks), "n%d_", g->ranks);
	if (g->gpus == 2 && op == COMM_ALL_REDUCE_NORM)
		ranks[0] = 0;
	snprintf(size, sizeof(size), op == COMM_ALL_REDUCE_NORM ? "rows%d_dim4096_bf16" : "%dkb",
		 op == COMM_ALL_REDUCE_NORM ? rows_of(bytes) : (int)(bytes >> 10));
	snprintf(name, len, "%s%s_%s", ranks, op_names[op], size);
}

static int judge(struct cairn_test *t, struct comm_group *g, enum comm_op op, size_t bytes, double slack)
{
	return op == COMM_ALL_REDUCE_NORM ? judge_sums(t, g, bytes, slack) : judge_copies(t, g, op, bytes);
}

/* Returns 0 if the following sizes are not worth a try. */
static int row(struct cairn_test *t, struct comm_group *g, enum comm_op op, size_t bytes, const char *impl,
	       comm_call call)
{
	const double slack = call == comm_nccl_call ? 0.03 * g->ranks : 0;
	cudaGraphExec_t exec[MAX] = { NULL };
	double ns[SAMPLES], moved = (double)bytes;
	char name[96];
	int done;

	name_case(name, sizeof(name), g, op, bytes);
	done = EXPECT(t, capture_all(g, op, bytes, call, exec) == 0) &&
	       EXPECT(t, all_ranks(g, op, bytes, call) == 0) && judge(t, g, op, bytes, slack) &&
	       EXPECT(t, time_calls(g, exec, ns) == 0);
	for (int r = 0; r < g->ranks; r++)
		if (exec[r])
			cudaGraphExecDestroy(exec[r]);
	if (!done) {
		cairn_note(t, "%s, %s: %s", name, impl, cairn_last_error());
		return 0;
	}
	if (op == COMM_ALL_TO_ALL)
		moved *= (double)(g->ranks - 1) / g->ranks;
	cairn_row(t, name, impl, "\"gpus\":%d,\"ranks\":%d,\"bytes\":%zu,\"n\":%d,\"min_ns\":%.1f,"
		  "\"median_ns\":%.1f,\"p95_ns\":%.1f,\"gbps\":%.2f", g->gpus, g->ranks, bytes, SAMPLES,
		  ns[0], ns[SAMPLES / 2], ns[SAMPLES * 95 / 100], moved / ns[SAMPLES / 2]);
	return 1;
}

static void measure(struct cairn_test *t, int ranks, const char *impl, int (*prepare)(struct comm_group *g),
		    comm_call call)
{
	/* 16 KB, 64 KB, 256 KB, 1 MB, and two of prompts: 4 MB, 32 MB */
	static const size_t kb[] = { 16, 64, 256, 1024, 4096, 32768 };
	struct comm_group g;
	int ret = comm_group_open(&g, ranks, 1), goes_on = 1;

	if (!ret && prepare)
		ret = prepare(&g);
	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_last_error());
	for (int op = 0; op < (int)ARRAY_SIZE(op_names); op++)
		for (size_t i = 0; i < ARRAY_SIZE(kb) && !ret && goes_on; i++) {
			if (g.gpus < ranks && kb[i] > 256)	/* all ranks' CTAs must be resident */
				break;
			goes_on = row(t, &g, (enum comm_op)op, kb[i] << 10, impl, call);
		}
	comm_group_close(&g);
}

void comm_measure_ours(struct cairn_test *t, int ranks)
{
	measure(t, ranks, "cuda", NULL, call_ours);
}

void comm_measure_nccl(struct cairn_test *t, int ranks)
{
	measure(t, ranks, "nccl", comm_nccl_open, comm_nccl_call);
}

#else

void comm_measure_ours(struct cairn_test *t, int ranks)
{
	(void)ranks;
	cairn_skip(t, "this build has no CUDA");
}

void comm_measure_nccl(struct cairn_test *t, int ranks)
{
	comm_measure_ours(t, ranks);
}

#endif
