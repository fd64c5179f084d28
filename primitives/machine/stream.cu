/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream - measures device memory: kernels that read, write or copy at full bandwidth
 *
 * Floors: 4.8 TB/s by the datasheet; for small sizes a launch and one round trip to memory, about 1.4 us.
 *
 * All three kernels are one-shot grids of CTAs of 256 threads: the hardware gives the next CTA to whichever
 * SM is free, whereas a persistent grid waits for its slowest SM.
 *   READ   each warp reads one block of 4 KiB: every lane issues eight loads of 16 bytes, bypassing the L1,
 *          before the first use; 6 CTAs per SM (40 registers) keep up to 192 KiB in flight
 *   WRITE  each thread writes 16 bytes
 *   COPY   each thread copies 16 bytes with an evict-first load and a streaming store, so that in the L2
 *          neither evicts lines that the other needs soon
 *
 * H200, inputs rotated past the L2: read 2 / 8 / 32 / 128 MiB / 1 GiB in 1.94 / 3.46 / 9.01 / 31.1 / 235 us
 * (4.56 TB/s at 1 GiB); write 4.68 TB/s; copy 4.24 TB/s of traffic.
 *
 * Optimisation history: NOTES.md.
 */
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/machine/stream.h"

#define THREADS		256
#define READ_LOADS	(CAIRN_STREAM_BLOCK / 512)	/* 16-byte loads per lane for a warp's block */

static __device__ __forceinline__ uint64_t add_words(uint64_t sum, uint4 v)
{
	return sum + (((uint64_t)v.y << 32) | v.x) + (((uint64_t)v.w << 32) | v.z);
}

/* Each warp sums one block, with all its loads in flight at once. */
__global__ void __launch_bounds__(THREADS)
stream_read_kernel(const __grid_constant__ struct cairn_stream_args a, int64_t num_blocks)
{
	int64_t block = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
	int64_t first = block * CAIRN_STREAM_BLOCK + (threadIdx.x & 31) * 16;
	const char *p = (const char *)a.src + first;
	uint64_t sum = 0;
	uint4 v[READ_LOADS];

	if (block >= num_blocks)
		return;
	if (block + 1 < num_blocks) {
#pragma unroll
		for (int i = 0; i < READ_LOADS; i++)
			v[i] = ptx_ld_global_nc_no_allocate_v4(p + 512 * i);
	} else {
#pragma unroll
		for (int i = 0; i < READ_LOADS; i++)
			v[i] = first + 512 * i < a.bytes ? ptx_ld_global_nc_no_allocate_v4(p + 512 * i) :
			       make_uint4(0, 0, 0, 0);
	}
#pragma unroll
	for (int i = 0; i < READ_LOADS; i++)
		sum = add_words(sum, v[i]);
#pragma unroll
	for (int i = 16; i; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	if ((threadIdx.x & 31) == 0)
		a.sum[block] = sum;
}

__global__ void __launch_bounds__(THREADS)
stream_write_kernel(const __grid_constant__ struct cairn_stream_args a)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	uint64_t x = (a.seed + 2 * (uint64_t)i) * CAIRN_STREAM_MULT, y = x + CAIRN_STREAM_MULT;

	if (i < a.bytes / 16)
		((uint4 *)a.dst)[i] = make_uint4((uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y,
						 (uint32_t)(y >> 32));
}

__global__ void __launch_bounds__(THREADS)
stream_copy_kernel(const __grid_constant__ struct cairn_stream_args a)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

	if (i < a.bytes / 16)
		__stcs((uint4 *)a.dst + i,
		       ptx_ld_global_nc_no_allocate_hint_v4((const uint4 *)a.src + i,
							    ptx_createpolicy_evict_first()));
}

extern "C" int cairn_stream(const struct cairn_stream_args *args, void *stream)
{
	struct cairn_launch launch = { 0 };
	int64_t num_blocks, units, per_cta;
	void *params[] = { (void *)args, &num_blocks };
	const void *kernel;

	CAIRN_TRY(cairn_stream_check(args));
	if (args->op == CAIRN_STREAM_ADD)
		return cairn_stream_add(args, stream);
	num_blocks = cairn_stream_num_blocks(args->bytes);
	kernel = args->op == CAIRN_STREAM_READ ? (const void *)stream_read_kernel :
		 args->op == CAIRN_STREAM_WRITE ? (const void *)stream_write_kernel :
		 (const void *)stream_copy_kernel;
	units = args->op == CAIRN_STREAM_READ ? num_blocks : args->bytes / 16;
	per_cta = args->op == CAIRN_STREAM_READ ? THREADS / 32 : THREADS;
	if ((units + per_cta - 1) / per_cta > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "stream: bytes: %lld needs too many CTAs",
				   (long long)args->bytes);
	launch.grid[0] = (unsigned int)((units + per_cta - 1) / per_cta);
	launch.block[0] = THREADS;
	launch.stream = stream;
	return cairn_launch(kernel, &launch, params);
}
