/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_fp8w - a CTA quantises one row, one block of 128 x 128, or one piece of 1 x 128 of 32 rows
 *
 * Blocks, rows of fp32 and rows of more than 16384 elements are read twice. The second read hits the caches:
 * a block is 32 KB of bf16. These run when a model is loaded; 8 billion weights are 16 GB read and 8 GB
 * written, 6 ms at memory bandwidth.
 *
 * Other rows, and pieces, are also those of activations, which every pass quantises, so threads read them
 * once and keep them in registers. Sixteen lanes share a piece, and the scales of a CTA are contiguous.
 * Floor: 1024 x 4096 bf16 moves 12.7 MB: 3.0 us at the copy stream's 4.2 TB/s.
 */
#include "primitives/base/launch.h"
#include "primitives/rows/quant_row.cuh"

#define THREADS	256
#define PIECES		(THREADS / QUANT_PIECE_LANES)	/* that the threads of a CTA hold at a time */
#define TURNS		2			/* pieces of a thread */
#define MOST_ROW	16384			/* elements that a CTA can hold */

/* Returns the largest value of all threads of the CTA. */
template <int WARPS> ROW float cta_max(float max)
{
	__shared__ float s_max[WARPS];

	max = quant_lanes_max<32>(max);
	if (threadIdx.x % 32 == 0)
		s_max[threadIdx.x / 32] = max;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		max = fmaxf(max, s_max[w]);
	return max;
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
	float max = 0, scale, inverse, f[8];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	for (int v = threadIdx.x; v < rows * eights; v += THREADS) {
		load8<dtype>(a, (int64_t)(i0 + v / eights) * a.k + j0 + v % eights * 8, f);
		max = quant_max(max, f);
	}
	scale = quant_scale(cta_max<THREADS / 32>(max));
	inverse = quant_inverse(scale);
	if (threadIdx.x == 0)
		a.scale[blockIdx.x] = scale;
	for (int v = threadIdx.x; v < rows * eights; v += THREADS) {
		int64_t e = (int64_t)(i0 + v / eights) * a.k + j0 + v % eights * 8;

		load8<dtype>(a, e, f);
		*(uint2 *)(a.b + e) = quant_codes(f, scale, inverse);
	}
}

/* A row of at most CTA * MOST * 8 elements, of 16 bits. */
template <int dtype, int CTA, int MOST> __global__ void __launch_bounds__(CTA)
row_kernel(const __grid_constant__ struct cairn_quant_fp8w_args a)
{
	const int64_t first = (int64_t)blockIdx.x * a.k;
	const uint4 *w = (const uint4 *)((const char *)a.w + first * 2);
	const int eights = a.k / 8;
	float max = 0, scale, inverse, f[8];
	uint4 held[MOST] = {};

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int i = 0; i < MOST; i++)
		if (threadIdx.x + i * CTA < eights)
			held[i] = w[threadIdx.x + i * CTA];
#pragma unroll
	for (int i = 0; i < MOST; i++) {
		row_unpack<dtype>(held[i], f);
		max = quant_max(max, f);
	}
	scale = quant_scale(cta_max<CTA / 32>(max));
	inverse = quant_inverse(scale);
	if (threadIdx.x == 0)
		a.scale[blockIdx.x] = scale;
#pragma unroll
	for (int i = 0; i < MOST; i++) {
		if (threadIdx.x + i * CTA < eights) {
			row_unpack<dtype>(held[i], f);
			*(uint2 *)(a.b + first + 8 * (threadIdx.x + i * CTA)) =
				quant_codes(f, scale, inverse);
		}
	}
}

template <int dtype> __global__ void __launch_bounds__(THREADS)
pieces_kernel(const __grid_constant__ struct cairn_quant_fp8w_args a, int blocks)
{
	const int block = blockIdx.x % blocks, lane = threadIdx.x % QUANT_PIECE_LANES;
	const int64_t first = (int64_t)(blockIdx.x / blocks) * PIECES * TURNS +
			      threadIdx.x / QUANT_PIECE_LANES;
	const int64_t column = block * CAIRN_FP8_BLOCK + lane * 8;
	float max[TURNS], f[TURNS][8] = {};

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int i = 0; i < TURNS; i++)
		if (first + i * PIECES < a.n && column < a.k)
			load8<dtype>(a, (first + i * PIECES) * a.k + column, f[i]);
#pragma unroll
	for (int i = 0; i < TURNS; i++)
		max[i] = quant_lanes_max<QUANT_PIECE_LANES>(quant_max(0, f[i]));
#pragma unroll
	for (int i = 0; i < TURNS; i++) {
		const int64_t row = first + i * PIECES;
		const float scale = quant_scale(max[i]);

		if (row >= a.n || column >= a.k)
			continue;
		if (lane == 0)
			a.scale[(int64_t)block * a.n + row] = scale;
		*(uint2 *)(a.b + row * a.k + column) = quant_codes(f[i], scale, quant_inverse(scale));
	}
}

static int pieces(const struct cairn_quant_fp8w_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int blocks = (a->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	const int64_t ctas = ((int64_t)a->n + PIECES * TURNS - 1) / (PIECES * TURNS) * blocks;
	void *params[] = { (void *)a, &blocks };

	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "quant_fp8w: n %d, k %d: too large", a->n, a->k);
	l.grid[0] = (unsigned int)ctas;
	return cairn_launch(a->dtype == CAIRN_F32 ? (const void *)pieces_kernel<CAIRN_F32> :
			    a->dtype == CAIRN_F16 ? (const void *)pieces_kernel<CAIRN_F16> :
			    (const void *)pieces_kernel<CAIRN_BF16>, &l, params);
}

template <int dtype> static const void *row_form(int32_t k, unsigned int *threads)
{
	*threads = k <= 8192 ? 256 : 512;
	return k <= 4096 ? (const void *)row_kernel<dtype, 256, 2> :
	       k <= 8192 ? (const void *)row_kernel<dtype, 256, 4> :
	       (const void *)row_kernel<dtype, 512, 4>;
}

static int rows(const struct cairn_quant_fp8w_args *a, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };
	const void *form = a->dtype == CAIRN_F16 ? row_form<CAIRN_F16>(a->k, &l.block[0]) :
			   row_form<CAIRN_BF16>(a->k, &l.block[0]);

	l.grid[0] = (unsigned int)a->n;
	return cairn_launch(form, &l, params);
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
	if (a->scale_kind == CAIRN_FP8_SCALE_ROWS && a->dtype != CAIRN_F32 &&
	    a->k <= MOST_ROW)
		return rows(a, stream);
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
