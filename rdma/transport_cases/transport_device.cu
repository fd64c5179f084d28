// SPDX-License-Identifier: Apache-2.0
/*
 * transport_device.cu - kernels of both ends for the device cases (transport_cases_device.c)
 *
 * Rank 0 puts. Rank 1 checks every byte as soon as it has seen the signal, clears the payload and answers. A
 * CTA has 256 threads; there is one CTA except in mode GRID. Results are the number of wrong bytes, the
 * rounds done and the first error number.
 */
#include "primitives/base/launch.h"
#include "rdma/transport/transport_bulk.cuh"
#include "rdma/transport_cases/transport_device.h"

#define THREADS	256

/* Thread 0 of the CTA waits; all threads get the result. */
TRANSPORT_FN int wait_all(const struct device_args &a, uint32_t slot, uint64_t value, uint64_t *seen)
{
	__shared__ uint64_t s_value;
	__shared__ int s_code;
	struct cairn_signal s = { 0, 0 };

	if (!threadIdx.x) {
		s_code = transport_wait(&a.c, slot, value, a.timeout_ns, &s);
		s_value = s.value;
	}
	__syncthreads();
	int code = s_code;
	*seen = s_value;
	__syncthreads();
	return code;
}

TRANSPORT_FN void failed(const struct device_args &a, int code)
{
	if (code)
		atomicCAS((unsigned long long *)&a.result->code, 0ull, (unsigned long long)code);
}

TRANSPORT_FN uint64_t check(const uint8_t *p, uint64_t bytes, uint64_t seed, uint64_t thread,
			    uint64_t threads)
{
	uint64_t wrong = 0;

	for (uint64_t i = thread; i < bytes; i += threads)
		wrong += p[i] != device_byte(seed, i);
	for (uint64_t i = thread; i < DEVICE_GUARD; i += threads)
		wrong += (p[bytes + i] != 0xee) + (p[-1 - (int64_t)i] != 0xee);
	return wrong;
}

TRANSPORT_FN void count(const struct device_args &a, uint64_t wrong)
{
	if (wrong)
		atomicAdd((unsigned long long *)&a.result->errors, (unsigned long long)wrong);
}

TRANSPORT_FN void payloads(const struct device_args &a)
{
	uint8_t *mine = (uint8_t *)a.local.addr, *in = mine + a.half;
	struct transport_grid g = transport_grid(0, 1, NULL);
	uint64_t i, k, bytes, from, to, seen;
	int code = 0;

	for (i = 1; i <= a.rounds; i++) {
		device_round(i, a.half, &bytes, &from, &to);
		if (a.rank) {
			code = wait_all(a, 0, i, &seen);
			if (code)
				break;
			count(a, check(in + to, bytes, i, threadIdx.x, THREADS) + (seen != i &&
										   !threadIdx.x));
			__syncthreads();
			for (k = threadIdx.x; k < bytes; k += THREADS)
				in[to + k] = 0xee;
			failed(a, transport_put(&a.c, &a.local, 0, &a.remote, 0, 0, 1, i, &g, a.timeout_ns));
		} else {
			for (k = threadIdx.x; k < bytes; k += THREADS)
				mine[from + k] = device_byte(i, k);
			__syncthreads();
			failed(a, transport_put(&a.c, &a.local, from, &a.remote, a.half + to, bytes, 0, i, &g,
						a.timeout_ns));
			code = wait_all(a, 1, i, &seen);
			if (code)
				break;
		}
	}
	failed(a, code);
	if (!threadIdx.x)
		a.result->rounds = i - 1;
}

/* Fills this CTA's share of a payload; a barrier must follow. */
TRANSPORT_FN void fill_share(uint8_t *p, uint64_t bytes, uint64_t seed, uint32_t num_ctas)
{
	uint64_t at, n = transport_share(bytes, blockIdx.x, num_ctas, &at), k;

	for (k = at + threadIdx.x; k < at + n; k += THREADS)
		p[k] = device_byte(seed, k);
}

/* Every put has its own cell, and rank 0 does not wait. Rank 1 checks all payloads that the value it sees
 * covers. */
TRANSPORT_FN void stream(const struct device_args &a)
{
	uint64_t thread = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
	uint64_t threads = (uint64_t)a.num_ctas * THREADS, bytes = a.cell - 2 * DEVICE_GUARD, i, k, seen = 0;
	struct transport_grid g = transport_grid(blockIdx.x, a.num_ctas, a.arrived);
	uint8_t *mine = (uint8_t *)a.local.addr, *in = mine + a.half;
	int code = 0;

	for (i = 0; i < a.rounds && !a.rank; i++)
		fill_share(mine + i * a.cell + DEVICE_GUARD, bytes, i + 1, a.num_ctas);
	__syncthreads();
	for (i = 0; i < a.rounds && !a.rank; i++) {
		uint64_t at = i * a.cell + DEVICE_GUARD;

		failed(a, transport_put(&a.c, &a.local, at, &a.remote, a.half + at, bytes, 0, i + 1, &g,
					a.timeout_ns));
	}
	__syncthreads();
	if (!thread && !a.rank)
		code = transport_flush(&a.c, a.timeout_ns);
	for (i = 0; i < a.rounds && a.rank && !code; i = seen) {
		code = wait_all(a, 0, i + 1, &seen);
		if (code || seen > a.rounds)
			break;
		for (k = i; k < seen; k++)
			count(a, check(in + k * a.cell + DEVICE_GUARD, bytes, k + 1, thread, threads));
	}
	failed(a, code);
	if (!thread)
		a.result->rounds = a.rank ? i : a.rounds;
}

TRANSPORT_FN void words(const struct device_args &a)
{
	uint64_t i, want;
	struct cairn_signal s;
	int code = 0;

	if (threadIdx.x)
		return;
	for (i = 1; i <= a.rounds && !code; i++) {
		want = device_word(i, 0);
		if (!a.rank)
			code = transport_signal(&a.c, 0, i, want, a.timeout_ns);
		if (!code)
			code = transport_wait_word(&a.c, !a.rank, i, a.timeout_ns, &s);
		if (code)
			break;
		count(a, (s.value != i) + (s.word != (a.rank ? want : ~want)));
		if (a.rank)
			code = transport_signal(&a.c, 1, i, ~s.word, a.timeout_ns);
	}
	failed(a, code);
	a.result->rounds = i - 1;
}

/* All CTAs put one payload with one signal; all CTAs of the other end check it. */
TRANSPORT_FN void grid(const struct device_args &a, uint32_t smem)
{
	uint64_t thread = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
	uint64_t threads = (uint64_t)a.num_ctas * THREADS, bytes = a.half - 2 * DEVICE_GUARD - 32, i, k, seen;
	struct transport_grid g = transport_grid(blockIdx.x, a.num_ctas, a.arrived);
	uint8_t *mine = (uint8_t *)a.local.addr;
	uint64_t pieces = 0;
	int code = 0;

	if (a.mode == DEVICE_BULK)
		transport_bulk_init(smem);
	for (i = 1; i <= a.rounds && !code; i++) {
		uint64_t at = DEVICE_GUARD + (i & 1 ? 0 : 16);

		if (a.rank) {
			code = wait_all(a, 0, i, &seen);
			if (code)
				break;
			count(a, check(mine + a.half + at, bytes, i, thread, threads));
			__syncthreads();
			/* the bytes that this thread has checked */
			for (k = thread; k < bytes; k += threads)
				mine[a.half + at + k] = 0xee;
			failed(a, transport_put(&a.c, &a.local, 0, &a.remote, 0, 0, 1, i, &g, a.timeout_ns));
			continue;
		}
		fill_share(mine + at, bytes, i, a.num_ctas);
		__syncthreads();
		if (a.mode == DEVICE_BULK)
			failed(a, transport_put_bulk(&a.c, &a.local, at, &a.remote, a.half + at, bytes,
						     0, i, &g,
						     a.timeout_ns, smem, &pieces));
		else
			failed(a, transport_put(&a.c, &a.local, at, &a.remote, a.half + at, bytes, 0, i, &g,
						a.timeout_ns));
		code = wait_all(a, 1, i, &seen);
	}
	failed(a, code);
	if (!thread)
		a.result->rounds = i - 1;
}

__global__ void __launch_bounds__(THREADS, 1)
transport_device_kernel(const __grid_constant__ struct device_args a)
{
	extern __shared__ __align__(128) uint8_t s_stages[];

	switch (a.mode) {
	case DEVICE_PAYLOAD:
		payloads(a);
		break;
	case DEVICE_STREAM:
		stream(a);
		break;
	case DEVICE_WORDS:
		words(a);
		break;
	case DEVICE_GRID:
	case DEVICE_BULK:
		grid(a, ptx_smem(s_stages));
		break;
	case DEVICE_TIMEOUT:
		if (!threadIdx.x) {
			uint64_t begin = ptx_globaltimer();
			struct cairn_signal s;

			a.result->code = transport_wait(&a.c, 9, 1, a.timeout_ns, &s);
			a.result->waited_ns = ptx_globaltimer() - begin;
		}
		break;
	}
}

extern "C" int device_load(int gpu)
{
	struct cudaFuncAttributes attributes;

	CAIRN_CUDA(cudaSetDevice(gpu));
	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, (const void *)transport_device_kernel));
	return 0;
}

extern "C" int device_start(int gpu, const struct device_args *a, void **stream_out)
{
	struct cairn_launch launch = {
		.grid = { a->num_ctas }, .block = { THREADS },
		.smem = a->mode == DEVICE_BULK ? TRANSPORT_BULK_SMEM : 0,
	};
	void *params[] = { (void *)a };
	cudaStream_t s;
	int ret;

	CAIRN_CUDA(cudaSetDevice(gpu));
	CAIRN_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	launch.stream = s;
	ret = cairn_launch((const void *)transport_device_kernel, &launch, params);
	if (ret) {
		cudaStreamDestroy(s);
		return ret;
	}
	*stream_out = s;
	return 0;
}

extern "C" int device_join(int gpu, void *s)
{
	cudaError_t err;

	CAIRN_CUDA(cudaSetDevice(gpu));
	err = cudaStreamSynchronize((cudaStream_t)s);
	cudaStreamDestroy((cudaStream_t)s);
	CAIRN_CUDA(err);
	return 0;
}
