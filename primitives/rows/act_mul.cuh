/* SPDX-License-Identifier: Apache-2.0 */
/*
 * act_mul - the gated activation, as silu_mul.h defines it: act(g) * up
 *
 * With z = g (silu) or 2 y (gelu), act(g) is g / (1 + exp(-z)). Only the argument of exp differs.
 *
 * act_mul_vec(), 16-bit dtypes: that formula, by one ex2.approx and one rcp.approx (2 ulp each). While z is
 * not below ACT_LEAST, exp(-z) is finite and no intermediate value underflows: a 16-bit g, also a subnormal
 * one, times 1 / (1 + exp(-z)) keeps its digits in fp32.
 * act_mul(), all others: for g < 0 the product is up t g t / (1 + t t) with t = exp(z / 2), for g >= 0 it is
 * up g / (1 + exp(-z)). No intermediate value overflows, and none underflows before the result does (see
 * silu_mul.h). It takes three times as many instructions.
 */
#ifndef CAIRN_ACT_MUL_CUH
#define CAIRN_ACT_MUL_CUH

#include "primitives/rows/row.cuh"

#define GELU_1	1.5957691216057308f	/* 2 sqrt(2 / pi) */
#define GELU_3	0.044715f
#define ACT_LEAST -80.f

/* Returns 1 / d for d from 1 to 2^126; unlike __fdividef(), it does not prepare for a subnormal d. */
ROW float act_inverse(float d)
{
	float r;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
	return r;
}

/* Returns the argument z of the activation of g. */
template <int gelu> ROW float act_argument(float g)
{
	return gelu ? GELU_1 * g * (1 + GELU_3 * (g * g)) : g;
}

template <int gelu> ROW float act_mul(float g, float up)
{
	bool negative = g < 0;
	float t, s, d, z;

	if (g < -256)	/* t is 0 here, and -INFINITY * 0 would be NaN. False for NaN. */
		g = -256;
	z = act_argument<gelu>(g);
	t = __expf(negative ? 0.5f * z : -z);
	s = negative ? t : 1;
	d = 1 + t * s;
	return up * s * act_inverse(d) * g * s;
}

/* Returns exp(-z) for z not below ACT_LEAST, or NaN. */
ROW float act_exp(float z)
{
	float e;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * -1.4426950408889634f));
	return e;
}

/* Returns act(g) * up for numbers of a 16-bit dtype, with the bits that act_mul_vec() gives. */
template <int gelu> ROW float act_mul_16(float g, float up)
{
	const float z = act_argument<gelu>(g);

	return z < ACT_LEAST ? act_mul<gelu>(g, up) : g * act_inverse(1 + act_exp(z)) * up;
}

/* Sets g to act(g) * up, element by element, for a vector of dtype. */
template <int dtype, int gelu> ROW void act_mul_vec(float g[row_vec(dtype)], const float up[row_vec(dtype)])
{
	constexpr int vec = row_vec(dtype);
	float r[vec], least = 0;

#pragma unroll
	for (int j = 0; j < vec && dtype != CAIRN_F32; j++) {
		const float z = act_argument<gelu>(g[j]);

		least = fminf(least, z);
		r[j] = g[j] * act_inverse(1 + act_exp(z)) * up[j];
	}
#pragma unroll
	for (int j = 0; j < vec && (dtype == CAIRN_F32 || least < ACT_LEAST); j++)
		if (dtype == CAIRN_F32 || act_argument<gelu>(g[j]) < ACT_LEAST)
			r[j] = act_mul<gelu>(g[j], up[j]);
#pragma unroll
	for (int j = 0; j < vec; j++)
		g[j] = r[j];
}

#undef GELU_1
#undef GELU_3

#endif
