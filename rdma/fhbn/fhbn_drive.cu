/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_drive.cu - posters and receivers in kernels for conformance tests; one kernel for all modes and cards
 */
#include "primitives/base/launch.h"
#include "rdma/fhbn/fhbn.cuh"
#include "rdma/fhbn/fhbn_drive.h"

struct drive_args {
	const struct cairn_fhbn_qp *queues;
	struct fhbn_drive_result *results;
	struct fhbn_memory memory;
	int num_queues, num_posters, count, window;
	uint32_t bytes;
	uint64_t timeout_ns;
};

static __device__ void fill(uint8_t *to, uint64_t seq, uint32_t bytes)
{
	for (uint32_t i = ptx_laneid(); i < bytes; i += 32)
		to[i] = fhbn_pattern(seq, i);
}

static __device__ int is_torn(const uint8_t *p, uint64_t seq, uint32_t bytes)
{
	int bad = 0;

	for (uint32_t i = ptx_laneid(); i < bytes; i += 32)
		bad |= p[i] != fhbn_pattern(seq, i);
	return __any_sync(0xffffffff, bad);
}

static __global__ void drive_kernel(const __grid_constant__ struct drive_args a)
{
	int poster = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32;
	struct fhbn_drive_result *result = &a.results[poster];
	const struct fhbn_memory *m = &a.memory;
	uint64_t seq, *flag;
	int ret = 0, torn = 0;

	if (poster >= a.num_posters)
		return;
	const struct cairn_fhbn_qp q = a.queues[poster % a.num_queues];

	flag = &m->gpu_flags[8 * poster];
	for (seq = 1; !ret && seq <= (uint64_t)a.count; seq++) {
		uint64_t at = ((uint64_t)poster * a.window + seq % a.window) * a.bytes;
		uint32_t bytes = fhbn_pattern_bytes(seq, a.bytes);
		struct cairn_fhbn_request put = cairn_fhbn_write(m->to + at, m->to_rkey, m->from + at,
								 m->from_lkey, bytes);

		fill(m->gpu_from + at, seq, bytes);
		ret = cairn_fhbn_put_signal_warp(&q, q.mode, &put, m->flags + 64 * poster, m->flags_rkey, seq,
						 NULL);
		if (ret || seq % a.window)
			continue;
		ret = cairn_fhbn_wait_signal_warp(flag, seq, a.timeout_ns, &result->fault);
		if (!ret)
			torn += is_torn(m->gpu_to + at, seq, bytes);
	}
	if (ptx_laneid() == 0) {
		result->ret = ret ? ret : cairn_fhbn_flush(&q, q.mode);
		result->torn = torn;
		result->posted = seq - 1;
	}
}

static int run(const struct fhbn_drive *d, struct drive_args *a, struct fhbn_drive_result *results)
{
	int warps = d->warps_per_block, blocks = (d->num_posters + warps - 1) / warps;
	struct cairn_launch launch = { .grid = { (unsigned)blocks }, .block = { 32 * (unsigned)warps } };
	size_t bytes = (size_t)d->num_posters * sizeof(*results);
	void *params[] = { a };

	CAIRN_CUDA(cudaMemcpy((void *)a->queues, d->queues, (size_t)d->num_queues * sizeof(*d->queues),
			      cudaMemcpyHostToDevice));
	CAIRN_CUDA(cudaMemset(a->results, 0, bytes));
	CAIRN_TRY(cairn_launch((const void *)drive_kernel, &launch, params));
	CAIRN_CUDA(cudaDeviceSynchronize());
	CAIRN_CUDA(cudaMemcpy(results, a->results, bytes, cudaMemcpyDeviceToHost));
	return 0;
}

extern "C" int fhbn_drive(const struct fhbn_drive *d, struct fhbn_drive_result *results)
{
	struct drive_args a = {
		NULL, NULL, d->memory, d->num_queues, d->num_posters, d->count, d->window, d->bytes,
		d->timeout_ns,
	};
	int ret = cairn_error(EIO, "fhbn_drive: no device memory");

	if (cudaMalloc((void **)&a.queues, (size_t)d->num_queues * sizeof(*d->queues)) == cudaSuccess &&
	    cudaMalloc((void **)&a.results, (size_t)d->num_posters * sizeof(*results)) == cudaSuccess)
		ret = run(d, &a, results);
	cudaFree((void *)a.queues);
	cudaFree(a.results);
	return ret;
}

static __global__ void list_kernel(const __grid_constant__ struct cairn_fhbn_qp q,
				   const struct cairn_fhbn_request *r, const uint32_t *batch, int num_batches)
{
	for (int i = 0; i < num_batches; i++) {
		/* the batch size is not known at compile time, so this runs the general form of the poster */
		if (cairn_fhbn_post(&q, q.mode, r, batch[i], NULL))
			break;
		r += batch[i];
	}
}

extern "C" int fhbn_drive_list(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *r,
			       const uint32_t *batch, int num_batches)
{
	struct cairn_launch launch = { .grid = { 1 }, .block = { 1 } };
	struct cairn_fhbn_qp view = *q;
	size_t num = 0, batch_bytes = (size_t)num_batches * sizeof(*batch);
	uint8_t *dev = NULL;
	const struct cairn_fhbn_request *dev_r;
	const uint32_t *dev_batch;
	void *params[] = { &view, &dev_r, &dev_batch, &num_batches };
	int ret;

	for (int i = 0; i < num_batches; i++)
		num += batch[i];
	CAIRN_CUDA(cudaMalloc((void **)&dev, num * sizeof(*r) + batch_bytes));
	dev_r = (const struct cairn_fhbn_request *)dev;
	dev_batch = (const uint32_t *)(dev + num * sizeof(*r));
	if (cudaMemcpy(dev, r, num * sizeof(*r), cudaMemcpyHostToDevice) != cudaSuccess ||
	    cudaMemcpy(dev + num * sizeof(*r), batch, batch_bytes, cudaMemcpyHostToDevice) != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_drive_list: copy failed");
	else
		ret = cairn_launch((const void *)list_kernel, &launch, params);
	if (!ret && cudaDeviceSynchronize() != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_drive_list: %s", cudaGetErrorString(cudaGetLastError()));
	cudaFree(dev);
	return ret;
}
