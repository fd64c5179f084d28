// SPDX-License-Identifier: Apache-2.0
/* transport_nccl_bench.c - times NCCL's send and receive, and its device API, between two GPUs */
#include "rdma/transport_bench/transport_nccl_bench.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/launch.h"
#include "rdma/transport/transport_cuda.h"
#include "rdma/transport_bench/transport_nccl_device.h"

#define GRAPH_ROUNDS	50	/* round trips in a graph */
#define DEVICE_HALF	(1u << 20)

struct nccl_bench {
	const struct nccl_functions *n;
	ncclComm_t comm[2];
	uint64_t half;
	uint8_t *memory[2];		/* two halves: source, destination */
	void *window[2];		/* from ncclMemAlloc */
	cudaStream_t stream[2];
	struct bench_result *result[2];
	struct nccl_device *device[2];
};

#define NCCL(b, expr) do { ncclResult_t r_ = (expr); \
		if (r_ != ncclSuccess) return nccl_failed((b)->n, r_, #expr); } while (0)

int nccl_bench_open(struct nccl_bench **out, uint64_t half)
{
	const int gpus[2] = { 0, 1 };
	struct nccl_bench *b;
	int num = 0, i;

	if (cudaGetDeviceCount(&num) != cudaSuccess || num < 2) {
		cudaGetLastError();
		return cairn_error(ENODEV, "NCCL does not connect a GPU with itself: needs 2 CUDA devices");
	}
	b = calloc(1, sizeof(*b));
	if (!b)
		return cairn_error(ENOMEM, "no memory");
	*out = b;
	b->half = half;
	CAIRN_TRY(nccl_load(&b->n));
	for (i = 0; i < 2; i++) {
		CAIRN_TRY(transport_device_alloc(i, 2 * half, (void **)&b->memory[i]));
		CAIRN_TRY(transport_host_alloc(i, sizeof(*b->result[i]), (void **)&b->result[i]));
		CAIRN_CUDA(cudaSetDevice(i));
		CAIRN_CUDA(cudaStreamCreateWithFlags(&b->stream[i], cudaStreamNonBlocking));
	}
	NCCL(b, b->n->CommInitAll(b->comm, 2, gpus));
	return 0;
}

/* Collective calls are made by both ranks concurrently. */
struct collective {
	struct nccl_bench *b;
	int rank, ret;
	char text[256];
};

static void *open_device(void *arg)
{
	struct collective *c = arg;
	struct nccl_bench *b = c->b;
	ncclResult_t (*alloc)(void **, size_t) = (ncclResult_t (*)(void **, size_t))dlsym(b->n->lib,
											  "ncclMemAlloc");

	if (cudaSetDevice(c->rank) != cudaSuccess || !alloc ||
	    alloc(&b->window[c->rank], 2 * DEVICE_HALF) != ncclSuccess)
		c->ret = cairn_error(ENODEV, "ncclMemAlloc failed");
	else
		c->ret = nccl_device_open(b->n, b->comm[c->rank], c->rank, b->window[c->rank],
					  2 * DEVICE_HALF,
					  &b->device[c->rank]);
	strncpy(c->text, cairn_last_error(), sizeof(c->text) - 1);
	return NULL;
}

static void *close_device(void *arg)
{
	struct collective *c = arg;
	struct nccl_bench *b = c->b;
	ncclResult_t (*give_back)(void *) = (ncclResult_t (*)(void *))dlsym(b->n->lib, "ncclMemFree");

	nccl_device_close(b->device[c->rank]);
	cudaSetDevice(c->rank);
	if (b->window[c->rank])
		give_back(b->window[c->rank]);
	return NULL;
}

static int both(struct nccl_bench *b, void *(*fn)(void *arg))
{
	struct collective c[2] = { { .b = b, .rank = 0 }, { .b = b, .rank = 1 } };
	pthread_t other;

	if (pthread_create(&other, NULL, fn, &c[1]))
		return cairn_error(ENOMEM, "cannot create a thread");
	fn(&c[0]);
	pthread_join(other, NULL);
	if (c[0].ret || c[1].ret)
		return cairn_error(c[0].ret ? -c[0].ret : -c[1].ret, "%s", c[0].ret ? c[0].text : c[1].text);
	return 0;
}

void nccl_bench_close(struct nccl_bench *b)
{
	int i;

	if (!b)
		return;
	if (b->window[0] || b->window[1])
		both(b, close_device);
	for (i = 0; i < 2; i++) {
		if (b->comm[i])
			b->n->CommAbort(b->comm[i]);
		if (b->stream[i])
			cudaStreamDestroy(b->stream[i]);
		transport_device_free(i, b->memory[i]);
		transport_host_free(i, b->result[i], 0);
	}
	free(b);
}

int nccl_bench_version(const struct nccl_bench *b)
{
	int version = 0;

	b->n->GetVersion(&version);
	return version;
}

/* Enqueues one rank's part of `rounds` round trips. */
static int enqueue_pingpong(struct nccl_bench *b, int i, uint64_t bytes, int rounds)
{
	uint8_t *from = b->memory[i], *to = b->memory[i] + b->half;
	int k;

	for (k = 0; k < 2 * rounds; k++)
		if ((k & 1) == i)	/* rank 1 sends back what it received */
			NCCL(b, b->n->Send(i ? to : from, bytes, ncclInt8, !i, b->comm[i], b->stream[i]));
		else
			NCCL(b, b->n->Recv(to, bytes, ncclInt8, !i, b->comm[i], b->stream[i]));
	return 0;
}

static int capture(struct nccl_bench *b, int i, uint64_t bytes, cudaGraphExec_t *exec)
{
	cudaGraph_t graph;
	cudaError_t err;
	int ret;

	CAIRN_CUDA(cudaSetDevice(i));
	CAIRN_CUDA(cudaStreamBeginCapture(b->stream[i], cudaStreamCaptureModeThreadLocal));
	ret = enqueue_pingpong(b, i, bytes, GRAPH_ROUNDS);
	CAIRN_CUDA(cudaStreamEndCapture(b->stream[i], &graph));
	if (ret)
		return ret;
	err = cudaGraphInstantiate(exec, graph, 0);
	cudaGraphDestroy(graph);
	CAIRN_CUDA(err);
	return 0;
}

static int launch_both(struct nccl_bench *b, cudaGraphExec_t exec[2], cudaEvent_t event[2], float *ms)
{
	CAIRN_CUDA(cudaSetDevice(1));
	CAIRN_CUDA(cudaGraphLaunch(exec[1], b->stream[1]));
	CAIRN_CUDA(cudaSetDevice(0));
	CAIRN_CUDA(cudaEventRecord(event[0], b->stream[0]));
	CAIRN_CUDA(cudaGraphLaunch(exec[0], b->stream[0]));
	CAIRN_CUDA(cudaEventRecord(event[1], b->stream[0]));
	CAIRN_CUDA(cudaStreamSynchronize(b->stream[0]));
	CAIRN_CUDA(cudaStreamSynchronize(b->stream[1]));
	CAIRN_CUDA(cudaEventElapsedTime(ms, event[0], event[1]));
	return 0;
}

/* Checks that the data returned equals the data sent. */
static int check(struct nccl_bench *b, uint64_t bytes)
{
	return bench_equal(0, b->memory[0], b->memory[0] + b->half, bytes, b->stream[0]);
}

int nccl_bench_pingpong(struct nccl_bench *b, uint64_t bytes, struct bench_spread *one_way)
{
	cudaGraphExec_t exec[2] = { NULL, NULL };
	cudaEvent_t event[2];
	double v[24];
	float ms;
	int i, ret = 0;

	CAIRN_TRY(bench_fill(0, b->memory[0], bytes, bytes, b->stream[0]));
	CAIRN_CUDA(cudaEventCreate(&event[0]));
	CAIRN_CUDA(cudaEventCreate(&event[1]));
	/* connect now: it cannot be done within a graph */
	NCCL(b, b->n->GroupStart());
	for (i = 0; i < 2; i++) {
		if (i)
			NCCL(b, b->n->Recv(b->memory[i] + b->half, bytes, ncclInt8, 0, b->comm[i],
					   b->stream[i]));
		else
			NCCL(b, b->n->Send(b->memory[i], bytes, ncclInt8, 1, b->comm[i], b->stream[i]));
	}
	NCCL(b, b->n->GroupEnd());
	NCCL(b, b->n->GroupStart());
	for (i = 0; i < 2; i++) {
		if (i)
			NCCL(b, b->n->Send(b->memory[i] + b->half, bytes, ncclInt8, 0, b->comm[i],
					   b->stream[i]));
		else
			NCCL(b, b->n->Recv(b->memory[i] + b->half, bytes, ncclInt8, 1, b->comm[i],
					   b->stream[i]));
	}
	NCCL(b, b->n->GroupEnd());
	for (i = 0; i < 2 && !ret; i++)
		ret = capture(b, i, bytes, &exec[i]);
	for (i = -4; i < 24 && !ret; i++) {
		ret = launch_both(b, exec, event, &ms);
		if (i >= 0)
			v[i] = (double)ms * 1e6 / GRAPH_ROUNDS / 2;
	}
	for (i = 0; i < 2; i++) {
		if (exec[i])
			cudaGraphExecDestroy(exec[i]);
		cudaEventDestroy(event[i]);
	}
	CAIRN_TRY(ret);
	CAIRN_TRY(check(b, bytes));
	bench_spread(v, 24, one_way);
	return 0;
}

int nccl_bench_stream(struct nccl_bench *b, uint64_t bytes, int sends, int num, struct bench_spread *ns)
{
	cudaEvent_t event[2];
	double v[32];
	float ms;
	int i, k;

	CAIRN_TRY(bench_fill(0, b->memory[0], bytes, bytes + 1, b->stream[0]));
	CAIRN_CUDA(cudaSetDevice(0));
	CAIRN_CUDA(cudaEventCreate(&event[0]));
	CAIRN_CUDA(cudaEventCreate(&event[1]));
	for (i = -2; i < num && i < 32; i++) {
		CAIRN_CUDA(cudaSetDevice(0));
		CAIRN_CUDA(cudaEventRecord(event[0], b->stream[0]));
		for (k = 0; k < sends; k++) {
			NCCL(b, b->n->GroupStart());
			NCCL(b, b->n->Send(b->memory[0], bytes, ncclInt8, 1, b->comm[0], b->stream[0]));
			NCCL(b, b->n->Recv(b->memory[1] + b->half, bytes, ncclInt8, 0, b->comm[1],
					   b->stream[1]));
			NCCL(b, b->n->GroupEnd());
		}
		CAIRN_CUDA(cudaSetDevice(0));
		CAIRN_CUDA(cudaEventRecord(event[1], b->stream[0]));
		CAIRN_CUDA(cudaStreamSynchronize(b->stream[0]));
		CAIRN_CUDA(cudaStreamSynchronize(b->stream[1]));
		CAIRN_CUDA(cudaEventElapsedTime(&ms, event[0], event[1]));
		if (i >= 0)
			v[i] = (double)ms * 1e6 / sends;
	}
	cudaEventDestroy(event[0]);
	cudaEventDestroy(event[1]);
	/* send the data back, to compare it with the source */
	NCCL(b, b->n->GroupStart());
	NCCL(b, b->n->Send(b->memory[1] + b->half, bytes, ncclInt8, 0, b->comm[1], b->stream[1]));
	NCCL(b, b->n->Recv(b->memory[0] + b->half, bytes, ncclInt8, 1, b->comm[0], b->stream[0]));
	NCCL(b, b->n->GroupEnd());
	CAIRN_TRY(check(b, bytes));
	bench_spread(v, num, ns);
	return 0;
}

int nccl_bench_device(struct nccl_bench *b, int way, uint64_t bytes, uint32_t num_ctas,
		      struct bench_spread *one_way)
{
	const uint64_t rounds = 100;
	double v[BENCH_SAMPLES];
	int i, n = 0;

	if (!b->device[0])
		CAIRN_TRY(both(b, open_device));
	for (i = 1; i >= 0; i--) {
		memset(b->result[i], 0, sizeof(*b->result[i]));
		CAIRN_TRY(nccl_device_start(b->device[i], way, bytes, DEVICE_HALF, num_ctas, rounds,
					    BENCH_SAMPLES,
					    b->result[i], b->stream[i]));
	}
	for (i = 0; i < 2; i++)
		CAIRN_CUDA(cudaStreamSynchronize(b->stream[i]));
	for (i = 0; i < 2; i++)
		if (b->result[i]->errors)
			return cairn_error(EIO, "rank %d: %llu rounds with a wrong payload", i,
					   (unsigned long long)b->result[i]->errors);
	for (i = BENCH_SAMPLES / 4; i < BENCH_SAMPLES; i++)
		v[n++] = (double)b->result[0]->ns[i] / (double)rounds / 2;
	bench_spread(v, n, one_way);
	return 0;
}
