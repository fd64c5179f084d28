/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_softmax - the online softmax of a warp's rows in registers, which all attention kernels share
 *
 * mma.m16n8k16, and wgmma for each warp, give lane l rows l / 4 and l / 4 + 8 of 16, and columns 2 (l % 4)
 * and 2 (l % 4) + 1 of every 8. Logits and O stay in these registers from the first key to the last, and P
 * turns from accumulator into A fragment without moving.
 */
#ifndef CAIRN_ATTN_SOFTMAX_CUH
#define CAIRN_ATTN_SOFTMAX_CUH

#include <math_constants.h>

#include "primitives/base/dtype.h"
#include "primitives/ptx/ptx.cuh"

#define ATTN_DEV	static __device__ __forceinline__
#define ATTN_METHOD	static __device__ __forceinline__
#define ATTN_CONST	static constexpr __host__ __device__ int
#define ATTN_LOG2E	1.4426950408889634f
#define ATTN_LN2	0.6931471805599453f
/* maximum, in units of log2, from which attn_softmax_fused() uses the exact form */
#define ATTN_FUSED_LIMIT 64.0f
/* by how much, in units of log2, a logit may exceed the maximum that its row keeps */
#define ATTN_LATE	8

/*
 * Returns p, of which the compiler then knows nothing: otherwise it would compute p again for each copy, or
 * take the sum of p and a product apart, which one multiply-add can compute.
 */
template <class T> ATTN_DEV T *attn_opaque(T *p)
{
	asm("" : "+l"(p));
	return p;
}

/*
 * Turns s = q.k into tanh(x) = 1 - 2 / (1 + e^(2x)), where x = sm_scale q.k / softcap. `twice` is 2 log2(e)
 * sm_scale / softcap. The error is at most 2^-21; times Gemma's softcap of 50, that is 2^-15. tanh.approx
 * would be one instruction instead of two special and three cheap ones, but its relative error of 2^-11 would
 * move these logits by 2^-6.
 */
ATTN_DEV float attn_cap(float s, float twice)
{
	return fmaf(-2, ptx_rcp_approx_ftz(1 + ptx_ex2_approx_ftz(s * twice)), 1);
}

/* Packs two floats into one register of dtype, the first in the low half. */
template <int dtype>
ATTN_DEV uint32_t attn_pack(float lo, float hi)
{
	uint32_t r;

	if (dtype == CAIRN_F16)
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

/* Returns the maximum, and attn_quad_sum() the sum, over the four lanes that share a row. */
ATTN_DEV float attn_quad_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

ATTN_DEV float attn_quad_sum(float x)
{
	x += __shfl_xor_sync(~0u, x, 1);
	return x + __shfl_xor_sync(~0u, x, 2);
}

/* The same over the 32 lanes of a warp. */
ATTN_DEV float attn_warp_max(float x)
{
#pragma unroll
	for (int step = 16; step; step /= 2)
		x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
	return x;
}

ATTN_DEV float attn_warp_sum(float x)
{
#pragma unroll
	for (int step = 16; step; step /= 2)
		x += __shfl_xor_sync(~0u, x, step);
	return x;
}

/* Returns 2^(x scale_log2 + raise). */
template <int raise> ATTN_DEV float attn_power(float x, float scale_log2)
{
	return ptx_ex2_approx_ftz(raise ? fmaf(x, scale_log2, raise) : x * scale_log2);
}

/*
 * Turns row r's logits s into p, relative to the new maximum top, and adds them to l. s holds n8-tiles of
 * keys, before sm_scale, -inf where masked. The maximum is subtracted before the scale is applied, so that
 * logits near fp32's largest number stay finite. p and l are 2^raise times as large as usual.
 */
template <int tiles, int raise>
ATTN_DEV void attn_softmax_row(float (*s)[4], int r, float top, float *m, float *l, float *keep,
			       float scale_log2)
{
	const float base = top == -CUDART_INF_F ? 0 : top;

	*keep = ptx_ex2_approx_ftz((*m - base) * scale_log2);
	*m = top;
	*l *= *keep;
#pragma unroll
	for (int t = 0; t < tiles; t++) {
		s[t][2 * r] = attn_power<raise>(s[t][2 * r] - base, scale_log2);
		s[t][2 * r + 1] = attn_power<raise>(s[t][2 * r + 1] - base, scale_log2);
		*l += s[t][2 * r] + s[t][2 * r + 1];
	}
}

/*
 * Adds the logits of a lane's two rows to the running maximum m and the sum l (over this lane's columns
 * only), and turns the logits into p (attn_softmax_row). keep[] is the factor by which O must be multiplied.
 * A row that has not seen a key yet has m = -inf, and a masked key has p = 0.
 */
template <int tiles, int raise = 0>
ATTN_DEV void attn_softmax(float (*s)[4], float m[2], float l[2], float keep[2], float scale_log2)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float top = m[r];

#pragma unroll
		for (int t = 0; t < tiles; t++)
			top = fmaxf(top, fmaxf(s[t][2 * r], s[t][2 * r + 1]));
		attn_softmax_row<tiles, raise>(s, r, attn_quad_max(top), m + r, l + r, keep + r, scale_log2);
	}
}

/* Returns the maximum of m and this lane's logits of row r, in four chains of comparisons. */
template <int tiles> ATTN_DEV float attn_row_max(float (*s)[4], int r, float m)
{
	float top[4] = { fmaxf(m, s[0][2 * r]), s[0][2 * r + 1], s[1][2 * r], s[1][2 * r + 1] };

#pragma unroll
	for (int i = 4; i < 2 * tiles; i++)
		top[i % 4] = fmaxf(top[i % 4], s[i / 2][2 * r + i % 2]);
	return fmaxf(fmaxf(top[0], top[2]), fmaxf(top[1], top[3]));
}

/*
 * As attn_softmax(), but with one fused multiply-add for the exponent of each logit, which saves a
 * twentieth of the instructions. The product m * scale_log2 is rounded, so p is relative to a maximum with
 * a relative error of 2^-24. That is harmless while the maximum is small; with large logits in rows r of a
 * warp, the warp uses the exact form for these rows. Bit r of `own` says whether the lane's row r belongs to
 * the request. Rows of other requests must not take part in this choice, because the two forms differ in
 * their last bits.
 *
 * A row keeps its maximum m until a logit exceeds it by `late`; keep[] is exactly 1 meanwhile, so that O is
 * seldom rescaled. p is then at most 2^late, which both dtypes and l have room for.
 *
 * An exponential occupies its unit for eight cycles, which other instructions should fill: the maximum of
 * row 1 is computed among the exponentials of row 0, and after(), which turns p into operands, among those
 * of row 1. between() is called after those of row 0.
 *
 * If `shifted`, shift(r) is called before the maximum of row r. It may change the row's logits, and returns
 * what is still to be added to all of them in this lane. That takes no instruction for each logit.
 */
template <int tiles, int late = ATTN_LATE, bool shifted = false, class Between, class After,
	  class Shift = int>
ATTN_DEV void attn_softmax_fused(float (*s)[4], float m[2], float l[2], float keep[2], float scale_log2,
				 int own, Between between, After after, Shift shift = {})
{
	float by[2];
	auto max_of = [&](int r) {
		if constexpr (shifted) {
			by[r] = shift(r);
			return fmaxf(m[r], attn_row_max<tiles>(s, r, -CUDART_INF_F) + by[r]);
		} else {
			return attn_row_max<tiles>(s, r, m[r]);
		}
	};
	float local = max_of(0), next = local;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const bool large = __any_sync(~0u, (own >> r & 1) & (local != -CUDART_INF_F) &
						   !(fabsf(local * scale_log2) < ATTN_FUSED_LIMIT));
		const float most = attn_quad_max(local);
		const float top = (most - m[r]) * scale_log2 > late ? most : m[r];
		/* the old and the new maximum as the logits in s are */
		const float to = shifted ? top - by[r] : top;
		float from = shifted ? m[r] - by[r] : m[r];

		if (large) {
			if (r == 0)
				next = max_of(1);
			attn_softmax_row<tiles, 0>(s, r, to, &from, l + r, keep + r, scale_log2);
			m[r] = top;
			if (r == 1)
				after();
		} else {
			const float base = to == -CUDART_INF_F ? 0 : to * scale_log2;

			keep[r] = to == from ? 1 : ptx_ex2_approx_ftz(fmaf(from, scale_log2, -base));
			m[r] = top;
			l[r] *= keep[r];
			if (r == 0)
				next = max_of(1);
#pragma unroll
			for (int i = 0; i < 2 * tiles; i++) {
				float *x = &s[i / 2][2 * r + i % 2];

				*x = ptx_ex2_approx_ftz(fmaf(*x, scale_log2, -base));
				l[r] += *x;
			}
			if (r == 1)
				after();
		}
		if (r == 0)
			between();
		local = next;
	}
}

template <int head_dim>
ATTN_DEV void attn_rescale(float (*o)[4], const float keep[2])
{
	/* the maximum settles early; from then on all factors of the warp are 1 */
	if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1))
		return;
#pragma unroll
	for (int t = 0; t < head_dim / 8; t++) {
		o[t][0] *= keep[0];
		o[t][1] *= keep[0];
		o[t][2] *= keep[1];
		o[t][3] *= keep[1];
	}
}

/* Packs the p of two n-tiles into the A fragment of 16 keys. */
template <int dtype>
ATTN_DEV void attn_p_fragment(uint32_t a[4], float (*p)[4])
{
	a[0] = attn_pack<dtype>(p[0][0], p[0][1]);
	a[1] = attn_pack<dtype>(p[0][2], p[0][3]);
	a[2] = attn_pack<dtype>(p[1][0], p[1][1]);
	a[3] = attn_pack<dtype>(p[1][2], p[1][3]);
}

/* Packs the p of all n-tiles. */
template <int dtype, int tiles>
ATTN_DEV void attn_p_fragments(uint32_t (*a)[4], float (*p)[4])
{
#pragma unroll
	for (int j = 0; j < tiles / 2; j++)
		attn_p_fragment<dtype>(a[j], p + 2 * j);
}

/*
 * Returns the natural log-sum-exp of a finished row; scale is attn_logit_scale(). The fused multiply-add is
 * explicit: the compiler could fuse either product, and chooses differently in different parts of a kernel.
 */
ATTN_DEV float attn_lse(float m, float l, float scale)
{
	return l > 0 ? fmaf(log2f(l), ATTN_LN2, m * scale) : -CUDART_INF_F;
}

/*
 * Transposes 4 x 4 registers within a quad in two exchanges: lane i of the quad holds two columns of each of
 * the n-tiles 0 to 3 and receives all eight columns of n-tile i.
 */
ATTN_DEV uint4 attn_gather_quad(const uint32_t x[4])
{
	int odd = threadIdx.x & 1, high = threadIdx.x & 2;
	uint32_t a = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1);
	uint32_t b = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
	uint32_t low0 = odd ? a : x[0], low1 = odd ? x[1] : a, high0 = odd ? b : x[2], high1 = odd ? x[3] : b;
	uint32_t c = __shfl_xor_sync(~0u, high ? low0 : high0, 2);
	uint32_t d = __shfl_xor_sync(~0u, high ? low1 : high1, 2);

	return high ? make_uint4(c, d, high0, high1) : make_uint4(low0, low1, c, d);
}

#endif
