/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm - what both kernels have in common: the units of a row, their sum with the residual, and
 * the norm
 *
 * A row is a sequence of 32-bit units (an fp32 element, or two of 16 bits), and three of them are a word. A
 * row has 1 << shift parts of up to THREADS words, or more in long rows; all_reduce_norm.cu has a CTA of a
 * cluster for each. Squares are summed by thread, then by warp, then over the parts in their order. How a row
 * is divided depends on dim and dtype alone, so that bits depend neither on the number of rows nor on the
 * kernel.
 */
#ifndef CAIRN_ALL_REDUCE_NORM_CUH
#define CAIRN_ALL_REDUCE_NORM_CUH

#include "primitives/base/launch.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/comm_device.cuh"
#include "primitives/rows/row.cuh"

#define THREADS		192
#define WARPS		(THREADS / 32)
#define UNITS		3	/* of a word */
#define MAX_CLUSTER	8

struct reduce_args {
	struct comm_device c;
	const uint32_t *x, *weight;
	uint32_t *out, *residual;	/* residual may be NULL */
	int32_t rows, units, words;	/* units and words of a row */
	int32_t part;			/* words of a part */
	int32_t shift;			/* a row has 1 << shift parts */
	float dim, eps, weight_offset;
};

/* elements of a unit */
static __host__ __device__ constexpr int unit_elements(int dtype)
{
	return dtype == CAIRN_F32 ? 1 : 2;
}

template <int dtype> ROW void unit_unpack(uint32_t u, float *f)
{
	if (dtype == CAIRN_F32)
		f[0] = __uint_as_float(u);
	else
		row_unpack2<dtype>(u, f);
}

template <int dtype> ROW uint32_t unit_pack(const float *f)
{
	return dtype == CAIRN_F32 ? __float_as_uint(f[0]) : row_pack2<dtype>(f[0], f[1]);
}

/* Loads the units of word w; those beyond the row are 0. */
ROW void load_units(const uint32_t *row, const struct reduce_args &a, int w, uint32_t u[UNITS])
{
#pragma unroll
	for (int j = 0; j < UNITS; j++)
		u[j] = w >= 0 && w * UNITS + j < a.units ? row[w * UNITS + j] : 0;
}

template <int dtype> ROW void word_unpack(uint4 v, float *f)
{
	constexpr int n = unit_elements(dtype);

	unit_unpack<dtype>(v.x, f);
	unit_unpack<dtype>(v.y, f + n);
	unit_unpack<dtype>(v.z, f + 2 * n);
}

/* Adds the residual, of which `old` are the units, to t, and rounds. sum: units of the result. */
template <int dtype>
ROW void round_sum(const struct reduce_args &a, const uint32_t *old, float *t, uint32_t *sum)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float f[n];

		unit_unpack<dtype>(old[j], f);
#pragma unroll
		for (int e = 0; e < n; e++)
			f[e] = a.residual ? t[j * n + e] + f[e] : t[j * n + e];
		sum[j] = unit_pack<dtype>(f);
		unit_unpack<dtype>(sum[j], t + j * n);
	}
}

/* Returns the sum of squares of a row from those of its warps, with the same bits in every thread. */
ROW float sum_parts(const float2 *part, uint32_t parts)
{
	float sum[WARPS] = { 0 };

	for (uint32_t i = 0; i < parts; i++) {
#pragma unroll
		for (int k = 0; k < WARPS / 2; k++) {
			const float2 two = part[i * (WARPS / 2) + k];

			sum[2 * k] += two.x;
			sum[2 * k + 1] += two.y;
		}
	}
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + (sum[4] + sum[5]);
}

/* Scales unit j of a word. weight, sum: units of the word */
template <int dtype>
ROW uint32_t norm_unit(const struct reduce_args &a, int j, float scale, const uint32_t *weight,
		       const uint32_t *sum)
{
	constexpr int n = unit_elements(dtype);
	float t[n], g[n];

	unit_unpack<dtype>(sum[j], t);
	unit_unpack<dtype>(weight[j], g);
#pragma unroll
	for (int e = 0; e < n; e++)
		t[e] = t[e] * scale * (a.weight_offset + g[e]);
	return unit_pack<dtype>(t);
}

/* all_reduce_norm_long.cu: for calls of several ranks that are long enough. */
int all_reduce_norm_is_long(const struct cairn_all_reduce_norm_args *a);
int all_reduce_norm_long(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream);

#endif
