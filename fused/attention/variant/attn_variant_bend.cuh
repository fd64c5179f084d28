/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_bend - the hooks head_slope() and logit_cap(): slopes and caps of logits
 *
 * s holds n8-tiles of keys as in attn_softmax.cuh. Logit i of a lane's row `half` belongs to the key that
 * lies i / 2 * 8 + i % 2 keys after the lane's first key.
 */
#ifndef CAIRN_ATTN_VARIANT_BEND_CUH
#define CAIRN_ATTN_VARIANT_BEND_CUH

#include "fused/attention/base/attn_softmax.cuh"

/* Replaces each logit v of a row by v scale + slope (near + i / 2 * 8 + i % 2). */
template <int keys>
ATTN_DEV void attn_add_slope(float (*s)[4], int half, float scale, float slope, float near)
{
	const float bias = slope * near;

#pragma unroll
	for (int i = 0; i < keys / 4; i++) {
		float *v = &s[i / 2][2 * half + i % 2];

		*v = fmaf(*v, scale, fmaf(slope, (float)(i / 2 * 8 + i % 2), bias));
	}
}

/*
 * Adds slope (i / 2 * 8 + i % 2) to each logit of a row: one instruction for each, because the second factor
 * is a constant of it. What remains of the bias is the same for all of the lane's logits.
 */
template <int keys> ATTN_DEV void attn_add_steps(float (*s)[4], int half, float slope)
{
#pragma unroll
	for (int i = 1; i < keys / 4; i++) {
		float *v = &s[i / 2][2 * half + i % 2];

		*v = fmaf(slope, (float)(i / 2 * 8 + i % 2), *v);
	}
}

/* Replaces each logit v of a row by cap tanh(v scale / cap); attn_cap() has the formula. */
template <int keys>
ATTN_DEV void attn_cap_row(float (*s)[4], int half, float scale, float cap)
{
	const float twice = 2 * ATTN_LOG2E * scale * ptx_rcp_approx_ftz(cap);

#pragma unroll
	for (int i = 0; i < keys / 4; i++) {
		float *v = &s[i / 2][2 * half + i % 2];

		*v = fmaf(-2 * cap, ptx_rcp_approx_ftz(1 + ptx_ex2_approx_ftz(*v * twice)), cap);
	}
}

#endif
