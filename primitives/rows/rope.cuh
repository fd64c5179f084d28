/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope - helpers shared by the kernels with and without a norm: items of 8 pairs, the table of a row
 */
#ifndef CAIRN_ROPE_CUH
#define CAIRN_ROPE_CUH

#include "primitives/rows/angle.cuh"
#include "primitives/rows/rope.h"
#include "primitives/rows/row.cuh"

/* The launcher of rope_norm.cu. The caller has checked the arguments, replaced strides of 0 and set
 * num_kv_heads to 0 if k is NULL. */
int rope_norm(const struct cairn_rope_args *a, void *stream);

struct item {
	void *at[2];		/* addresses of its two halves, 8 elements each */
	int pair;		/* index of the first of its 8 pairs */
};

template <int dtype> ROW void load(const struct item *item, uint4 *v)
{
	constexpr int n = 8 / row_vec(dtype);

#pragma unroll
	for (int k = 0; k < 2 * n; k++)
		v[k] = ((const uint4 *)item->at[k / n])[k % n];
}

/* Rotates a pair by the angle whose cosine and sine, times scale, are c and s. */
ROW void rope_pair(float c, float s, float *a, float *b)
{
	const float x = *a;

	*a = fmaf(x, c, -__fmul_rn(*b, s));
	*b = fmaf(*b, c, __fmul_rn(x, s));
}

/* Rotates the 16 elements of f, the pairs `pair` .. pair + 7 of a head. */
template <int interleaved> ROW void turn(float *f, int pair, const float *s_cos, const float *s_sin)
{
	float c[8], s[8];

#pragma unroll
	for (int j = 0; j < 8; j += 4) {
		*(float4 *)(c + j) = *(const float4 *)(s_cos + pair + j);
		*(float4 *)(s + j) = *(const float4 *)(s_sin + pair + j);
	}
#pragma unroll
	for (int j = 0; j < 8; j++)
		rope_pair(c[j], s[j], &f[interleaved ? 2 * j : j], &f[interleaved ? 2 * j + 1 : j + 8]);
}

template <int dtype> ROW void store(const struct item *item, const float *f)
{
	constexpr int vec = row_vec(dtype), n = 8 / vec;

#pragma unroll
	for (int k = 0; k < 2 * n; k++)
		((uint4 *)item->at[k / n])[k % n] = row_pack<dtype>(f + k * vec);
}

template <int dtype> ROW void unpack(const uint4 *v, float *f)
{
	constexpr int vec = row_vec(dtype);

#pragma unroll
	for (int k = 0; k < 16 / vec; k++)
		row_unpack<dtype>(v[k], f + k * vec);
}

template <int dtype, int interleaved>
ROW void rotate(const struct item *item, const uint4 *v, const float *s_cos, const float *s_sin)
{
	float f[16];

	unpack<dtype>(v, f);
	turn<interleaved>(f, item->pair, s_cos, s_sin);
	store<dtype>(item, f);
}

/* Fills the table of a row: cosines and sines times scale. freq: inv_freq[threadIdx.x], loaded early. */
ROW void fill_table(const struct cairn_rope_args &a, float position, float freq, float *s_cos, float *s_sin)
{
	for (int p = threadIdx.x; p < a.rotary_dim / 2; p += blockDim.x) {
		float c, s;

		angle_cos_sin(__fmul_rn(position, p == threadIdx.x ? freq : a.inv_freq[p]), &c, &s);
		s_cos[p] = c * a.scale;
		s_sin[p] = s * a.scale;
	}
}

#endif
