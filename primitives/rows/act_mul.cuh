/* SPDX-License-Identifier: Apache-2.0 */
/*
 * act_mul - the gated activation of one element, as silu_mul.h defines it: act(g) * up
 *
 * exp: for g < 0 the product is up t g t / (1 + t t) with t = exp(g / 2), for g >= 0 it is up g / (1 +
 * exp(-g)). No intermediate value overflows, and none underflows before the result does (see silu_mul.h).
 * Each case takes one ex2.approx and one approximate division (2 ulp each), by a number from 1 to 2. gelu
 * differs only in the argument of exp; it has its own instances.
 */
#ifndef CAIRN_ACT_MUL_CUH
#define CAIRN_ACT_MUL_CUH

#include "primitives/rows/row.cuh"

#define GELU_1	1.5957691216057308f	/* 2 sqrt(2 / pi) */
#define GELU_3	0.044715f

/* Returns 1 / d for d from 1 to 2; unlike __fdividef(), it does not prepare for a subnormal d. */
ROW float act_inverse(float d)
{
	float r;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
	return r;
}

template <int gelu> ROW float act_mul(float g, float up)
{
	bool negative = g < 0;
	float t, s, d, z;

	if (g < -256)	/* t is 0 here, and -INFINITY * 0 would be NaN. False for NaN. */
		g = -256;
	z = gelu ? GELU_1 * g * (1 + GELU_3 * (g * g)) : g;
	t = __expf(negative ? 0.5f * z : -z);
	s = negative ? t : 1;
	d = 1 + t * s;
	return up * s * act_inverse(d) * g * s;
}

#undef GELU_1
#undef GELU_3

#endif
