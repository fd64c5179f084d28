// SPDX-License-Identifier: Apache-2.0
/*
 * transport_bench.cu - one persistent kernel at each end: ping-pong and streams over transport.cuh
 *
 * Ping-pong: rank 0 and rank 1 put to each other alternately. A sample is `rounds` round trips, timed at rank
 * 0 by the global timer; half a round trip is one way. In each round the putting CTA stamps the first and
 * last words of the payload with the round's number; the other end checks both. If several CTAs put one
 * payload together, all of them wait for the answer before the next round.
 */
#include "primitives/base/launch.h"
#include "rdma/transport_bench/transport_bench.h"
#include "rdma/transport/transport_bulk.cuh"

#define THREADS		256
#define ONE_WARP	32

TRANSPORT_FN void bench_failed(const struct bench_args &a, int code)
{
	if (code)
		atomicCAS((unsigned long long *)&a.result->code, 0ull, (unsigned long long)code);
}

/* The bare flag, polled and stored by one thread. */
TRANSPORT_FN int flag_round(const struct bench_args &a, uint64_t i)
{
	uint64_t begin = ptx_globaltimer();
	uint32_t spin = 0;

	if (!a.rank)
		asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(&a.c.theirs[0].value),
			     "l"(i) : "memory");
	while (transport_ld_relaxed_sys_u64(&a.c.mine[0].value) < i)
		if (++spin % 1024 == 0 && ptx_globaltimer() - begin > a.timeout_ns)
			return ETIMEDOUT;
	if (a.rank)
		asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(&a.c.theirs[0].value),
			     "l"(i) : "memory");
	return 0;
}

TRANSPORT_FN int word_round(const struct bench_args &a, uint64_t i)
{
	struct cairn_signal s;
	int code = 0;

	if (!a.rank)
		code = transport_signal(&a.c, 0, i, i * 3, a.timeout_ns);
	if (!code)
		code = transport_wait_word(&a.c, 0, i, a.timeout_ns, &s);
	if (code)
		return code;
	if (s.word != i * (a.rank ? 3 : 5))
		atomicAdd((unsigned long long *)&a.result->errors, 1ull);
	return a.rank ? transport_signal(&a.c, 0, i, i * 5, a.timeout_ns) : 0;
}

TRANSPORT_FN int wait_cta(const struct bench_args &a, uint64_t i, int *s_code)
{
	struct cairn_signal s;

	if (!threadIdx.x)
		*s_code = transport_wait(&a.c, 0, i, a.timeout_ns, &s);
	__syncthreads();
	return *s_code;
}

/*
 * Stamps round i into the payload's first and last 8 bytes (bytes is a multiple of 8); the CTAs whose shares
 * contain them do it. Call it after the previous put was issued; a barrier must follow, at the latest in the
 * wait.
 */
TRANSPORT_FN void stamp(const struct bench_args &a, uint64_t i)
{
	uint64_t *out = (uint64_t *)a.local.addr, last = a.bytes - 8, at;
	uint64_t n = transport_share(a.bytes, blockIdx.x, a.num_ctas, &at);

	if (threadIdx.x)
		return;
	if (!blockIdx.x)
		out[0] = i;
	if (last && last - at < n)
		out[last / 8] = ~i;
}

/* Loaded by otherwise idle warps and compared one round later, to hide the latency of the load. */
struct seen {
	uint64_t word, want;
};

TRANSPORT_FN void look(const struct bench_args &a, uint64_t i, struct seen *s)
{
	const uint64_t *in = (const uint64_t *)(a.local.addr + a.half), last = a.bytes / 8 - 1;

	if (blockIdx.x || (threadIdx.x != 32 && threadIdx.x != 64) || (threadIdx.x == 64 && !last))
		return;
	if (s->word != s->want)
		atomicAdd((unsigned long long *)&a.result->errors, 1ull);
	s->word = transport_ld_relaxed_sys_u64(threadIdx.x == 32 ? in : in + last);
	s->want = threadIdx.x == 32 ? i : ~i;
}

TRANSPORT_FN int put_and_stamp(const struct bench_args &a, uint64_t i, struct transport_grid *g)
{
	int code = transport_put(&a.c, &a.local, 0, &a.remote, a.half, a.bytes, 0, i, g, a.timeout_ns);

	stamp(a, i + 1);
	return code;
}

TRANSPORT_FN int put_round(const struct bench_args &a, uint64_t i, struct transport_grid *g, struct seen *s,
			   int *s_code)
{
	int code = 0;

	if (!a.rank)
		bench_failed(a, put_and_stamp(a, i, g));
	code = wait_cta(a, i, s_code);
	if (code)
		return code;
	look(a, i, s);
	if (a.rank)
		bench_failed(a, put_and_stamp(a, i, g));
	return 0;
}

TRANSPORT_FN int one_round(const struct bench_args &a, uint64_t i, struct transport_grid *g, struct seen *s,
			   int *s_code)
{
	if (a.way == BENCH_PUT)
		return put_round(a, i, g, s, s_code);
	if (threadIdx.x)
		return 0;
	return a.way == BENCH_FLAG ? flag_round(a, i) : word_round(a, i);
}

__global__ void __launch_bounds__(THREADS,
				  1) transport_pingpong_kernel(const __grid_constant__ struct bench_args a)
{
	struct transport_grid g = transport_grid(blockIdx.x, a.num_ctas, a.arrived);
	__shared__ int s_code;
	struct seen seen = { 0, 0 };
	uint64_t i = a.first, begin;
	int code = 0;

	stamp(a, i);
	__syncthreads();
	for (uint32_t k = 0; k < a.num_samples && !code; k++) {
		begin = ptx_globaltimer();
		for (uint64_t r = 0; r < a.rounds && !code; r++)
			code = one_round(a, i++, &g, &seen, &s_code);
		if (!threadIdx.x && !blockIdx.x)
			a.result->ns[k] = ptx_globaltimer() - begin;
	}
	bench_failed(a, code);
	if (seen.word != seen.want)
		atomicAdd((unsigned long long *)&a.result->errors, 1ull);
}

__global__ void __launch_bounds__(THREADS,
				  1) transport_stream_kernel(const __grid_constant__ struct bench_args a)
{
	extern __shared__ __align__(128) uint8_t s_stages[];
	struct transport_grid g = transport_grid(blockIdx.x, a.num_ctas, a.arrived);
	__shared__ int s_code;
	uint64_t count = 0;
	int code = 0;

	if (a.rank) {
		code = wait_cta(a, a.first + a.rounds - 1, &s_code);
		bench_failed(a, code);
		return;
	}
	if (a.way == BENCH_STREAM_BULK)
		transport_bulk_init(ptx_smem(s_stages));
	for (uint64_t r = 0; r < a.rounds && !code; r++)
		if (a.way == BENCH_STREAM_BULK)
			code = transport_put_bulk(&a.c, &a.local, 0, &a.remote, a.half, a.bytes, 0,
						  a.first + r,
						  &g, a.timeout_ns, ptx_smem(s_stages), &count);
		else
			code = transport_put(&a.c, &a.local, 0, &a.remote, a.half, a.bytes, 0,
					     a.first + r, &g,
					     a.timeout_ns);
	bench_failed(a, code);
}

/* Kernels must be loaded before: one loaded at its first launch would wait for running kernels, and these
 * for it. */
static int load(const void *kernel)
{
	struct cudaFuncAttributes attributes;

	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, kernel));
	return 0;
}

extern "C" int bench_load(int gpu)
{
	CAIRN_CUDA(cudaSetDevice(gpu));
	CAIRN_TRY(load((const void *)transport_pingpong_kernel));
	return load((const void *)transport_stream_kernel);
}

extern "C" int bench_start(int gpu, const struct bench_args *a, void *stream)
{
	int is_stream = a->way == BENCH_STREAM || a->way == BENCH_STREAM_BULK;
	unsigned int threads = a->way == BENCH_PUT || a->way == BENCH_STREAM ? THREADS :
		a->way == BENCH_STREAM_BULK ? 2 * ONE_WARP : ONE_WARP;
	struct cairn_launch launch = {
		.grid = { a->rank && is_stream ? 1u : a->num_ctas }, .block = { threads },
		.smem = a->way == BENCH_STREAM_BULK ? TRANSPORT_BULK_SMEM : 0, .stream = stream,
	};
	void *params[] = { (void *)a };

	CAIRN_CUDA(cudaSetDevice(gpu));
	return cairn_launch(is_stream ? (const void *)transport_stream_kernel :
			    (const void *)transport_pingpong_kernel, &launch, params);
}

__global__ void transport_fill_kernel(uint64_t *p, uint64_t words, uint64_t seed)
{
	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
	     i += (uint64_t)gridDim.x * blockDim.x)
		p[i] = (i + seed) * 0x9e3779b97f4a7c15ull;
}

__global__ void transport_compare_kernel(const uint64_t *a, const uint64_t *b, uint64_t words,
					 uint32_t *differ)
{
	uint32_t n = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
	     i += (uint64_t)gridDim.x * blockDim.x)
		n += a[i] != b[i];
	if (n)
		atomicAdd(differ, n);
}

extern "C" int bench_fill(int gpu, void *p, uint64_t bytes, uint64_t seed, void *stream)
{
	struct cairn_launch launch = { .grid = { 264 }, .block = { THREADS }, .stream = stream };
	uint64_t words = bytes / 8;
	void *params[] = { &p, &words, &seed };

	CAIRN_CUDA(cudaSetDevice(gpu));
	return cairn_launch((const void *)transport_fill_kernel, &launch, params);
}

extern "C" int bench_equal(int gpu, const void *a, const void *b, uint64_t bytes, void *stream)
{
	struct cairn_launch launch = { .grid = { 264 }, .block = { THREADS }, .stream = stream };
	uint64_t words = bytes / 8;
	uint32_t *differ, n = 0;
	void *params[] = { &a, &b, &words, &differ };
	cudaError_t err;
	int ret;

	CAIRN_CUDA(cudaSetDevice(gpu));
	CAIRN_CUDA(cudaMalloc((void **)&differ, sizeof(*differ)));
	cudaMemsetAsync(differ, 0, sizeof(*differ), (cudaStream_t)stream);
	ret = cairn_launch((const void *)transport_compare_kernel, &launch, params);
	cudaMemcpyAsync(&n, differ, sizeof(n), cudaMemcpyDeviceToHost, (cudaStream_t)stream);
	err = cudaStreamSynchronize((cudaStream_t)stream);
	cudaFree(differ);
	if (ret)
		return ret;
	CAIRN_CUDA(err);
	return n ? cairn_error(EIO, "%u words differ from what was put", n) : 0;
}
