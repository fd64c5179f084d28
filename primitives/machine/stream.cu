/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream - the ceilings of device memory
 *
 * Floors: the data sheet's 4.8 TB/s; for small sizes a launch and one trip to memory, about 1.4 us.
 *
 * All three are one-shot grids of 256 threads: the hardware hands a CTA to whichever SM is free, which
 * evens out what a persistent grid leaves to the slowest SM.
 *   READ   a warp takes a block of 4 KiB, eight loads of 16 bytes a lane before the first use, past the L1;
 *          6 CTAs an SM (40 registers) keep up to 192 KiB in flight
 *   WRITE  16 bytes a thread
 *   COPY   16 bytes a thread; evict-first loads and streaming stores, so that in the L2 neither pushes out
 *          what the other is about to need
 *
 * H200, inputs rotated past the L2: read 2 / 8 / 32 / 128 MiB / 1 GiB in 1.94 / 3.46 / 9.01 / 31.1 / 235 us
 * (4.56 TB/s at 1 GiB); write 4.68; copy 4.24 TB/s of traffic.
 *
 * Tried and lost (1 GiB, TB/s):
 *   - read: persistent grids with the next block in registers 4.32 to 4.48 (but 1.96 us at 2 MiB, as now);
 *     two or four blocks a warp 4.53, 4.49; cp.async rings of 96 to 192 KiB an SM 4.45 to 4.51; cp.async.bulk
 *     in pieces of 4 / 8 / 16 / 32 KiB 1.98, 3.96 to 4.38, 4.47, 4.49; L2::256B prefetch 4.02 to 4.25;
 *     an evict-first policy 4.52
 *   - write: several stores a thread 4.58 to 4.65; persistent grids 4.34 to 4.42; .cs, .wt,
 *     evict-first: no difference
 *   - copy: 4 / 8 pairs a thread 4.22 / 3.80; plain loads and stores 4.10; evict-first stores 4.22; bulk
 *     copies both ways through shared memory 3.88 to 4.01; persistent grids 3.52 to 3.95
 */
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/machine/stream.h"

#define THREADS		256
#define READ_LOADS	(CAIRN_STREAM_BLOCK / 512)	/* 16-byte loads of a lane for its warp's block */

static __device__ __forceinline__ uint64_t add_words(uint64_t sum, uint4 v)
{
	return sum + (((uint64_t)v.y << 32) | v.x) + (((uint64_t)v.w << 32) | v.z);
}

/* A block a warp, all of it in flight at once. */
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
	num_blocks = cairn_stream_num_blocks(args->bytes);
	kernel = args->op == CAIRN_STREAM_READ ? (const void *)stream_read_kernel :
		 args->op == CAIRN_STREAM_WRITE ? (const void *)stream_write_kernel :
		 (const void *)stream_copy_kernel;
	units = args->op == CAIRN_STREAM_READ ? num_blocks : args->bytes / 16;
	per_cta = args->op == CAIRN_STREAM_READ ? THREADS / 32 : THREADS;
	if ((units + per_cta - 1) / per_cta > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "stream: %lld bytes", (long long)args->bytes);
	launch.grid[0] = (unsigned int)((units + per_cta - 1) / per_cta);
	launch.block[0] = THREADS;
	launch.stream = stream;
	return cairn_launch(kernel, &launch, params);
}
