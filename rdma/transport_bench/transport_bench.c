// SPDX-License-Identifier: Apache-2.0
/* transport_bench.c - runs the bench's kernels at two ends on two GPUs, or on one if there is only one */
#include "rdma/transport_bench/transport_bench_pair.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/launch.h"
#include "rdma/transport/transport_cuda.h"

static int open_end(struct bench_pair *p, int i)
{
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = p->gpu[i] };
	void *arrived;

	CAIRN_TRY(transport_device_alloc(p->gpu[i], 2 * p->half, (void **)&p->memory[i]));
	CAIRN_TRY(transport_device_alloc(p->gpu[i], 64, &arrived));
	p->arrived[i] = arrived;
	CAIRN_TRY(transport_host_alloc(p->gpu[i], sizeof(*p->result[i]), (void **)&p->result[i]));
	CAIRN_CUDA(cudaSetDevice(p->gpu[i]));
	CAIRN_CUDA(cudaStreamCreateWithFlags((cudaStream_t *)&p->stream[i], cudaStreamNonBlocking));
	CAIRN_TRY(p->table->open(&o, &p->t[i]));
	CAIRN_TRY(p->table->region_register(p->t[i], p->memory[i], 2 * p->half, CAIRN_MEMORY_DEVICE,
					    &p->region[i]));
	return p->table->channel_create(p->t[i], &p->c[i]);
}

int bench_pair_open(struct bench_pair *p, uint64_t half)
{
	struct cairn_blob key, address;
	int num = 0, i;

	memset(p, 0, sizeof(*p));
	if (cudaGetDeviceCount(&num) != cudaSuccess || !num) {
		cudaGetLastError();
		return cairn_error(ENODEV, "no CUDA device");
	}
	p->gpu[1] = num > 1;
	p->num_gpus = num > 1 ? 2 : 1;
	p->half = half;
	p->next = 1;
	p->table = cairn_transport_find("nvlink");
	for (i = 0; i < 2; i++) {
		CAIRN_TRY(bench_load(p->gpu[i]));
		CAIRN_TRY(open_end(p, i));
	}
	for (i = 0; i < 2; i++) {
		CAIRN_TRY(p->table->region_key(p->region[!i], &key));
		CAIRN_TRY(p->table->remote_import(p->t[i], &key, &p->remote[i]));
		CAIRN_TRY(p->table->channel_address(p->c[!i], &address));
		CAIRN_TRY(p->table->channel_connect(p->c[i], &address, 1000));
	}
	return 0;
}

void bench_pair_close(struct bench_pair *p)
{
	int i;

	for (i = 0; i < 2; i++)
		if (p->t[i])
			p->table->close(p->t[i]);
	for (i = 0; i < 2; i++) {
		if (p->stream[i])
			cudaStreamDestroy(p->stream[i]);
		transport_device_free(p->gpu[i], p->memory[i]);
		transport_device_free(p->gpu[i], p->arrived[i]);
		transport_host_free(p->gpu[i], p->result[i], sizeof(*p->result[i]));
	}
}

static int fill_args(struct bench_pair *p, int rank, const struct bench_args *what, struct bench_args *a)
{
	*a = *what;
	a->rank = (uint32_t)rank;
	a->half = p->half;
	a->timeout_ns = 5000000000ull;
	a->first = p->next;
	a->arrived = p->arrived[rank];
	a->result = p->result[rank];
	memset(a->result, 0, sizeof(*a->result));
	CAIRN_TRY(p->table->channel_device(p->c[rank], &a->c));
	CAIRN_TRY(p->table->region_device(p->region[rank], &a->local));
	return p->table->remote_device(p->remote[rank], &a->remote);
}

static int outcome(const struct bench_pair *p)
{
	int i;

	for (i = 0; i < 2; i++) {
		if (p->result[i]->code)
			return cairn_error((int)p->result[i]->code, "rank %d: %s", i,
					   strerror((int)p->result[i]->code));
		if (p->result[i]->errors)
			return cairn_error(EIO, "rank %d: %llu rounds with a wrong payload", i,
					   (unsigned long long)p->result[i]->errors);
	}
	return 0;
}

/* Runs both kernels, rank 1's first. *ms: rank 0's time, measured with events. */
int bench_pair_run(struct bench_pair *p, const struct bench_args *what, float *ms)
{
	cudaEvent_t begin, end;
	struct bench_args a[2];
	int i, ret = 0;

	for (i = 0; i < 2; i++)
		CAIRN_TRY(fill_args(p, i, what, &a[i]));
	p->next += what->rounds * (what->num_samples ? what->num_samples : 1);
	CAIRN_CUDA(cudaSetDevice(p->gpu[0]));
	CAIRN_CUDA(cudaEventCreate(&begin));
	CAIRN_CUDA(cudaEventCreate(&end));
	for (i = 0; i < 2; i++)
		CAIRN_CUDA(cudaMemsetAsync(p->arrived[i], 0, 64, p->stream[i]));
	ret = bench_start(p->gpu[1], &a[1], p->stream[1]);
	cudaSetDevice(p->gpu[0]);
	cudaEventRecord(begin, p->stream[0]);
	if (!ret)
		ret = bench_start(p->gpu[0], &a[0], p->stream[0]);
	cudaEventRecord(end, p->stream[0]);
	for (i = 0; i < 2; i++) {
		cudaError_t err = cudaStreamSynchronize(p->stream[i]);

		if (err != cudaSuccess && !ret)
			ret = cairn_cuda_error(err, "the bench's kernels", __FILE__, __LINE__);
	}
	if (!ret && ms && cudaEventElapsedTime(ms, begin, end) != cudaSuccess)
		ret = cairn_error(EIO, "cudaEventElapsedTime failed");
	cudaEventDestroy(begin);
	cudaEventDestroy(end);
	return ret ? ret : outcome(p);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void bench_spread(double *v, int n, struct bench_spread *s)
{
	qsort(v, (size_t)n, sizeof(*v), compare);
	*s = (struct bench_spread) { v[0], v[n / 2], v[n * 95 / 100], n };
}

int bench_pair_pingpong(struct bench_pair *p, uint32_t way, uint64_t bytes, uint32_t num_ctas,
			uint64_t rounds,
			struct bench_spread *one_way)
{
	struct bench_args what = {
		.way = way, .bytes = bytes, .num_ctas = num_ctas, .rounds = rounds,
		.num_samples = BENCH_SAMPLES,
	};
	double v[BENCH_SAMPLES];
	int i, n = 0;

	CAIRN_TRY(bench_pair_run(p, &what, NULL));
	for (i = BENCH_SAMPLES / 4; i < BENCH_SAMPLES; i++)	/* the first quarter is warm-up */
		v[n++] = (double)p->result[0]->ns[i] / (double)rounds / 2;
	bench_spread(v, n, one_way);
	return 0;
}

int bench_pair_stream(struct bench_pair *p, uint32_t way, uint64_t bytes, uint32_t num_ctas, uint64_t puts,
		      int num, struct bench_spread *ns)
{
	struct bench_args what = { .way = way, .bytes = bytes, .num_ctas = num_ctas, .rounds = puts };
	double v[32];
	float ms;
	int i;

	CAIRN_TRY(bench_fill(p->gpu[0], p->memory[0], bytes, p->next, p->stream[0]));
	for (i = -1; i < num && i < 32; i++) {
		CAIRN_TRY(bench_pair_run(p, &what, &ms));
		if (i >= 0)
			v[i] = (double)ms * 1e6 / (double)puts;
	}
	/* compared at rank 0, which can access both buffers */
	CAIRN_TRY(bench_equal(p->gpu[0], p->memory[0], p->memory[1] + p->half, bytes, p->stream[0]));
	bench_spread(v, num, ns);
	return 0;
}
