/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_fp8w - a CTA quantises one row, one block of 128 x 128, or one piece of 1 x 128 of sixteen rows
 *
 * A row or a block is read twice. The second read hits the caches: a row of 16384 bf16 is 32 KB, a block 32
 * KB. These run when a model is loaded; 8 billion weights are 16 GB read and 8 GB written, 6 ms at memory
 * bandwidth.
 *
 * Pieces are those of activations, in each pass. Sixteen lanes read a piece once, and keep it. The scales of
 * a CTA are contiguous. Floor: 1024 x 4096 bf16 moves 12.7 MB: 3.0 us at the copy stream's 4.2 TB/s.
 */
#include "primitives/ptx/fp8.cuh"
#include "primitives/base/launch.h"
#include "primitives/gemm/quant_fp8w.h"
#include "primitives/rows/row.cuh"

#define THREADS	256
#define WARPS	(THREADS / 32)
#define PIECE_LANES	(CAIRN_FP8_BLOCK / 8)
#define PIECES		(THREADS / PIECE_LANES)	/* of a CTA */

ROW float scale_of(float max)
{
	float scale = __fdiv_rn(max, (float)CAIRN_FP8_MAX);

	return scale == 0 ? 1 : scale;
}

/* Loads eight elements from element e on. */
template <int dtype> ROW void load8(const struct cairn_quant_fp8w_args &a, int64_t e, float f[8])
{
	const uint4 *p = (const uint4 *)((const char *)a.w + e * (dtype == CAIRN_F32 ? 4 : 2));

	row_unpack<dtype>(p[0], f);
	if (dtype == CAIRN_F32)
		row_unpack<dtype>(p[1], f + 4);
}

template <int dtype> __global__ void __launch_bounds__(THREADS)
quant_kernel(const __grid_constant__ struct cairn_quant_fp8w_args a, int high, int wide, int tiles_k)
{
	const int i0 = blockIdx.x / tiles_k * high, j0 = blockIdx.x % tiles_k * wide;
	const int rows = min(high, a.n - i0), eights = min(wide, a.k - j0) / 8;
	__shared__ float s_max[WARPS];
	float max = 0, scale, f[8];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	for (int v = threadIdx.x; v < rows * eights; v += THREADS) {
		load8<dtype>(a, (int64_t)(i0 + v / eights) * a.k + j0 + v % eights * 8, f);
#pragma unroll
		for (int j = 0; j < 8; j++)
			max = fmaxf(max, fabsf(f[j]));
	}
#pragma unroll
	for (int step = 16; step > 0; step /= 2)
		max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
	if (threadIdx.x % 32 == 0)
		s_max[threadIdx.x / 32] = max;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		max = fmaxf(max, s_max[w]);
	scale = scale_of(max);
	if (threadIdx.x == 0)
		a.scale[blockIdx.x] = scale;
	for (int v = threadIdx.x; v < rows * eights; v += THREADS) {
		int64_t e = (int64_t)(i0 + v / eights) * a.k + j0 + v % eights * 8;
		uint2 out;

		load8<dtype>(a, e, f);
#pragma unroll
		for (int j = 0; j < 8; j++)
			f[j] = __fdiv_rn(f[j], scale);
		out.x = fp8_narrow(f[0], f[1]) | fp8_narrow(f[2], f[3]) << 16;
		out.y = fp8_narrow(f[4], f[5]) | fp8_narrow(f[6], f[7]) << 16;
		*(uint2 *)(a.b + e) = out;
	}
}

template <int dtype> __global__ void __launch_bounds__(THREADS)
pieces_kernel(const __grid_constant__ struct cairn_quant_fp8w_args a, int blocks)
{
	const int block = blockIdx.x % blocks, lane = threadIdx.x % PIECE_LANES;
	const int64_t row = (int64_t)(blockIdx.x / blocks) * PIECES + threadIdx.x / PIECE_LANES;
	const int64_t e = row * a.k + block * CAIRN_FP8_BLOCK + lane * 8;
	const bool mine = row < a.n && block * CAIRN_FP8_BLOCK + lane * 8 < a.k;
	float max = 0, scale, f[8] = {};
	uint2 out;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (mine)
		load8<dtype>(a, e, f);
#pragma unroll
	for (int j = 0; j < 8; j++)
		max = fmaxf(max, fabsf(f[j]));
#pragma unroll
	for (int step = PIECE_LANES / 2; step > 0; step /= 2)
		max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
	scale = scale_of(max);
	if (!mine)
		return;
	if (lane == 0)
		a.scale[(int64_t)block * a.n + row] = scale;
#pragma unroll
	for (int j = 0; j < 8; j++)
		f[j] = __fdiv_rn(f[j], scale);
	out.x = fp8_narrow(f[0], f[1]) | fp8_narrow(f[2], f[3]) << 16;
	out.y = fp8_narrow(f[4], f[5]) | fp8_narrow(f[6], f[7]) << 16;
	*(uint2 *)(a.b + e) = out;
}

static int pieces(const struct cairn_quant_fp8w_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int blocks = (a->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	const int64_t ctas = ((int64_t)a->n + PIECES - 1) / PIECES * blocks;
	void *params[] = { (void *)a, &blocks };

	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "quant_fp8w: n %d, k %d: too large", a->n, a->k);
	l.grid[0] = (unsigned int)ctas;
	return cairn_launch(a->dtype == CAIRN_F32 ? (const void *)pieces_kernel<CAIRN_F32> :
			    a->dtype == CAIRN_F16 ? (const void *)pieces_kernel<CAIRN_F16> :
			    (const void *)pieces_kernel<CAIRN_BF16>, &l, params);
}

extern "C" int cairn_quant_fp8w(const struct cairn_quant_fp8w_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int high, wide, tiles_k;
	void *params[] = { (void *)a, &high, &wide, &tiles_k };
	int64_t tiles;

	CAIRN_TRY(cairn_quant_fp8w_check(a));
	if (a->n == 0)
		return 0;
	if (a->scale_kind == CAIRN_FP8_SCALE_PIECES)
		return pieces(a, stream);
	high = a->scale_kind ? CAIRN_FP8_BLOCK : 1;
	wide = a->scale_kind ? CAIRN_FP8_BLOCK : a->k;
	tiles_k = (a->k + wide - 1) / wide;
	tiles = (int64_t)((a->n + high - 1) / high) * tiles_k;
	if (tiles > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "quant_fp8w: n %d, k %d: too large", a->n, a->k);
	l.grid[0] = (unsigned int)tiles;
	return cairn_launch(a->dtype == CAIRN_F32 ? (const void *)quant_kernel<CAIRN_F32> :
			    a->dtype == CAIRN_F16 ? (const void *)quant_kernel<CAIRN_F16> :
			    (const void *)quant_kernel<CAIRN_BF16>, &l, params);
}
