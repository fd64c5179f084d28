/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_text - what the text of a variant sees: struct attn_x and a few functions
 *
 * The same text is compiled three times: `real` is double in the reference, float in the CPU table and in
 * kernels. The includer defines `real` first; the reference also defines ATTN_EXACT.
 */
#ifndef CAIRN_ATTN_VARIANT_TEXT_H
#define CAIRN_ATTN_VARIANT_TEXT_H

#ifdef __CUDACC__
#define HOOK		static __device__ __forceinline__
#define attn_infinity	__int_as_float(0x7f800000)
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#define HOOK		static inline
#define attn_infinity	((real)INFINITY)
#endif

/* The query and the key for which a hook is called. Members that mean nothing to a hook are 0. */
struct attn_x {
	int q_pos, k_pos;		/* the last query has the position of the last key; k_pos < kv_len */
	int head, kv_head;		/* query head, and the KV head that it reads */
	int request, row;		/* number of the request; row of q, counted over all requests */
	int qo_len, kv_len;		/* queries and keys of the request */
	real distance;			/* k_pos - q_pos; kernels need no conversion to get it */
	real near, step;		/* near + step = distance; near is the same for neighbouring keys */
	const float *p;			/* the call's 8 scalars */
	const float *const *t;		/* the call's 4 arrays; NULL where the caller gave none */
};

/*
 * Each function's error is at most 2^-20: absolute in attn_tanh and in the factors of attn_rotate, relative
 * to cap in attn_cap_at, relative to 16 slopes in attn_bias, and relative to the result in the others. Angles
 * up to 2^20 are legal.
 *
 *   attn_cap_at(s, cap)   cap * tanh(s / cap)
 *   attn_bias(x, slope)   slope * x->distance, in fewer instructions
 *   attn_rotate()         turns the pair (*a, *b) by an angle
 *   attn_at(t, i)         t[i], which a kernel may keep in a register
 *   attn_bit(words, i)    bit i, least significant first, of words of 32 bits
 */
#ifdef __CUDACC__

HOOK real attn_exp(real v)
{
	return ptx_ex2_approx_ftz(v * 1.4426950408889634f);
}

HOOK real attn_tanh(real v)
{
	return fmaf(-2, ptx_rcp_approx_ftz(1 + ptx_ex2_approx_ftz(v * 2.8853900817779268f)), 1);
}

HOOK real attn_cap_at(real s, real cap)
{
	return fmaf(-2 * cap, ptx_rcp_approx_ftz(1 + ptx_ex2_approx_ftz(s * (2.8853900817779268f / cap))),
		    cap);
}

HOOK real attn_bias(const struct attn_x *x, real slope)
{
	return fmaf(slope, x->step, slope * x->near);
}

HOOK float attn_at(const float *t, int i)
{
	return __ldg(t + i);
}

HOOK real attn_sigmoid(real v)
{
	return ptx_rcp_approx_ftz(1 + attn_exp(-v));
}

/*
 * The angle is reduced to -pi .. pi, where sin.approx and cos.approx have absolute errors of 2^-20.9. Adding
 * and subtracting 1.5 * 2^23 rounds to an integer without the slow rounding instruction.
 */
HOOK void attn_rotate(real *a, real *b, float angle)
{
	float turns = fmaf(angle, 0.15915494309189535f, 0x1.8p23f) - 0x1.8p23f;
	float rest = fmaf(turns, 1.7484555e-7f, fmaf(turns, -6.2831855f, angle));
	float c = __cosf(rest), s = __sinf(rest), first = *a;

	*a = first * c - *b * s;
	*b = *b * c + first * s;
}

#else

/*
 * In the reference: the error that the functions below make, as a fraction of the largest one they may make:
 * -1, 0 or 1.
 */
#ifdef ATTN_EXACT
static __thread double attn_nudge;
#define ATTN_NUDGE	(attn_nudge * 0x1p-20)
#else
#define ATTN_NUDGE	0
#endif

HOOK real attn_exp(real v)
{
	return (real)exp(v) * (1 + ATTN_NUDGE);
}

HOOK real attn_tanh(real v)
{
	return (real)tanh(v) + ATTN_NUDGE;
}

HOOK real attn_cap_at(real s, real cap)
{
	return cap * attn_tanh(s / cap);
}

HOOK real attn_bias(const struct attn_x *x, real slope)
{
	return slope * (x->distance + 16 * ATTN_NUDGE);
}

HOOK float attn_at(const float *t, int i)
{
	return t[i];
}

HOOK real attn_sigmoid(real v)
{
	return 1 / (1 + (real)exp(-v)) * (1 + ATTN_NUDGE);
}

HOOK void attn_rotate(real *a, real *b, float angle)
{
	real c = (real)cos((double)angle), s = (real)sin((double)angle), first = *a;

	*a = first * c - *b * s;
	*b = *b * c + first * s;
}

#endif

HOOK int attn_bit(const float *words, int i)
{
#ifdef __CUDACC__
	return __float_as_uint(words[(unsigned int)i / 32]) >> i % 32 & 1;
#else
	uint32_t word;

	memcpy(&word, words + i / 32, sizeof(word));
	return word >> i % 32 & 1;
#endif
}

#ifndef __CUDACC__

/* The hooks of a text; NULL: it has none. */
struct attn_hooks {
	real (*head_slope)(const struct attn_x *x);
	real (*logit)(const struct attn_x *x, real s);
	real (*logit_cap)(const struct attn_x *x);
	int (*keep)(const struct attn_x *x);
	void (*range)(const struct attn_x *x, int *lo, int *hi);
	void (*query)(const struct attn_x *x, real *a, real *b, int pair);
	void (*key)(const struct attn_x *x, real *a, real *b, int pair);
	real (*sink)(const struct attn_x *x);
	real (*weight)(const struct attn_x *x, real s);
	real (*output)(const struct attn_x *x, real o, int c);
	void (*nudge)(double share);	/* sets attn_nudge of this thread; NULL without ATTN_EXACT */
};

#endif
#endif
