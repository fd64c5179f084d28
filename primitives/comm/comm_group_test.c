// SPDX-License-Identifier: Apache-2.0
/* comm_group_test - ranks on the GPUs of this process, each with a communicator of the table cuda */
#include "primitives/comm/comm_group_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/tables.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define MAX	CAIRN_COMM_MAX_RANKS

static pthread_barrier_t met;
static uint8_t board[MAX][CAIRN_COMM_EXCHANGE];

struct opening {
	struct comm_group *g;
	int rank, ret;
	char text[256];
};

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	const struct opening *o = arg;

	memcpy(board[o->rank], mine, bytes);
	pthread_barrier_wait(&met);
	for (int r = 0; r < o->g->ranks; r++)
		memcpy((uint8_t *)all + (size_t)r * bytes, board[r], bytes);
	pthread_barrier_wait(&met);
	return 0;
}

static void *open_rank(void *arg)
{
	struct opening *o = arg;
	struct cairn_comm_args a = { .size = sizeof(a), .exchange = exchange, .arg = o, .rank = o->rank,
				     .ranks = o->g->ranks };

	if (cudaSetDevice(o->g->gpu[o->rank]) != cudaSuccess)
		cudaGetLastError();	/* clears the error; comm_open() reports its own */
	o->ret = cairn_impl_cuda.comm_open(&a, &o->g->comm[o->rank]);
	snprintf(o->text, sizeof(o->text), "%s", cairn_last_error());
	return NULL;
}

static int open_comms(struct comm_group *g)
{
	struct opening o[MAX] = { { .g = g } };
	pthread_t others[MAX];

	pthread_barrier_init(&met, NULL, (unsigned int)g->ranks);
	for (int r = 1; r < g->ranks; r++) {
		o[r] = (struct opening){ .g = g, .rank = r };
		if (pthread_create(&others[r], NULL, open_rank, &o[r]))
			abort();	/* the threads that exist wait for this one */
	}
	open_rank(&o[0]);
	for (int r = 1; r < g->ranks; r++)
		pthread_join(others[r], NULL);
	pthread_barrier_destroy(&met);
	for (int r = 0; r < g->ranks; r++)
		if (o[r].ret)
			return cairn_error(-o[r].ret, "rank %d: %s", r, o[r].text);
	return 0;
}

static int alloc_rank(struct comm_group *g, int r)
{
	uint16_t **arrays[] = { &g->x[r], &g->residual[r], &g->out[r], &g->sum[r], &g->weight[r] };

	CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
	CAIRN_CUDA(cudaStreamCreateWithFlags(&g->stream[r], cudaStreamNonBlocking));
	for (int i = 0; i < 5; i++)
		CAIRN_CUDA(cudaMalloc((void **)arrays[i], i < 4 ? COMM_MAX_BYTES : COMM_DIM * 2));
	return 0;
}

/* Fills with values in -2 .. 2; count is a multiple of 4. */
static void fill(uint64_t *seed, uint16_t *to, size_t count)
{
	uint16_t values[4096];

	for (int i = 0; i < 4096; i++)
		values[i] = cairn_double_to_bf16(i / 1024.0 - 2);
	for (size_t i = 0; i < count; i += 4) {
		uint64_t z = *seed += 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		for (int j = 0; j < 4; j++)
			to[i + (size_t)j] = values[z >> (16 * j) & 4095];
	}
}

int comm_group_open(struct comm_group *g, int ranks, uint64_t seed)
{
	int gpus = 0;

	memset(g, 0, sizeof(*g));
	if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) {
		cudaGetLastError();
		return cairn_error(ENODEV, "no CUDA device");
	}
	if (ranks > gpus && (ranks > 2 || gpus > 1))
		return cairn_error(ENODEV, "needs %d GPUs", ranks);
	g->gpus = gpus < ranks ? gpus : ranks;
	g->ranks = ranks;
	for (int r = 0; r < ranks; r++) {
		g->gpu[r] = gpus < ranks ? 0 : r;
		CAIRN_TRY(alloc_rank(g, r));
	}
	g->host_x[0] = malloc((size_t)(ranks + 2) * COMM_MAX_BYTES + COMM_DIM * 2);
	if (!g->host_x[0])
		return cairn_error(ENOMEM, "no memory");
	for (int r = 1; r < ranks; r++)
		g->host_x[r] = g->host_x[r - 1] + COMM_MAX_COUNT;
	g->host_residual = g->host_x[ranks - 1] + COMM_MAX_COUNT;
	g->got = g->host_residual + COMM_MAX_COUNT;
	g->host_weight = g->got + COMM_MAX_COUNT;
	fill(&seed, g->host_x[0], (size_t)(ranks + 1) * COMM_MAX_COUNT);
	fill(&seed, g->host_weight, COMM_DIM);
	return open_comms(g);
}

int comm_group_upload(struct comm_group *g, size_t bytes)
{
	for (int r = 0; r < g->ranks; r++) {
		CAIRN_CUDA(cudaSetDevice(g->gpu[r]));
		CAIRN_CUDA(cudaMemcpy(g->x[r], g->host_x[r], bytes, cudaMemcpyHostToDevice));
		CAIRN_CUDA(cudaMemcpy(g->residual[r], g->host_residual, bytes, cudaMemcpyHostToDevice));
		CAIRN_CUDA(cudaMemcpy(g->weight[r], g->host_weight, COMM_DIM * 2, cudaMemcpyHostToDevice));
		CAIRN_CUDA(cudaMemset(g->out[r], 0xff, bytes));
		CAIRN_CUDA(cudaDeviceSynchronize());	/* streams do not wait for the fill */
	}
	return 0;
}

void comm_group_close(struct comm_group *g)
{
	for (int r = 0; r < g->ranks; r++) {
		cudaSetDevice(g->gpu[r]);
		if (g->stream[r])
			cudaStreamSynchronize(g->stream[r]);
	}
	comm_nccl_close(g);
	for (int r = 0; r < g->ranks; r++) {
		if (g->comm[r].handle)
			cairn_impl_cuda.comm_close(&g->comm[r]);
		cudaSetDevice(g->gpu[r]);
		if (g->stream[r])
			cudaStreamDestroy(g->stream[r]);
		cudaFree(g->x[r]);
		cudaFree(g->residual[r]);
		cudaFree(g->out[r]);
		cudaFree(g->sum[r]);
		cudaFree(g->weight[r]);
	}
	cudaSetDevice(0);
	free(g->host_x[0]);
}
