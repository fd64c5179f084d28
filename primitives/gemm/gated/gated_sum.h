/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gated_sum - silu(gate) * up of two sums with known errors; for the references of gemm_gated and gemm_fixed
 *
 * With |g' - g| <= E and |u' - u| <= E', and as the slope of silu, s, is at most 1.1,
 *
 *	|s(g') u' - s(g) u| <= 1.1 E (|u| + E') + |s(g)| E'
 *
 * The function itself adds 16 2^-24 (1 + z) |s(g) u|, z = max(-g, min(g, 1)), for its own rounding
 * (silu_mul_ref.c). Where g' is not g, z is at most 88, since beyond that s(g') u' is too small to matter:
 * the first part grows by at most 2^-13 of itself.
 */
#ifndef CAIRN_GATED_SUM_H
#define CAIRN_GATED_SUM_H

#include "primitives/gemm/gemm_sum.h"

static inline double gated_silu(double g)
{
	return g == -INFINITY ? 0 : g / (1 + exp(-g));
}

/* Returns silu(gate) * up. An infinite up has no defined result where silu may underflow. */
static inline struct gemm_sum gated_product(struct gemm_sum gate, struct gemm_sum up)
{
	double s = gated_silu(gate.val), z = gate.val < 0 ? fmin(-gate.val, 1000) : fmin(gate.val, 1);
	struct gemm_sum r = { .val = s * up.val };

	r.undefined = isinf(up.val) && gate.val - gate.error < -80;
	r.error = 1.1 * gate.error * (fabs(up.val) + up.error) + fabs(s) * up.error;
	r.error = (1 + 0x1p-13) * r.error + 16 * 0x1p-24 * (1 + z) * fabs(r.val) + 20 * 0x1p-150;
	return r;
}

#endif
