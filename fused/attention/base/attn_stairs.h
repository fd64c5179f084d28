/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_stairs - logits that rise or fall over 12 stretches of keys, for the tests of attention
 *
 * A test multiplies the values of a stretch by attn_stair_weight(), so that all stretches contribute about
 * equally to the result, as far as dtype's range allows. So an implementation gives a wrong result if it
 * loses earlier keys when its maximum rises, or later keys far below the maximum.
 */
#ifndef CAIRN_ATTN_STAIRS_H
#define CAIRN_ATTN_STAIRS_H

#include <math.h>
#include <stdint.h>

#define ATTN_STRETCHES	12
#define ATTN_STAIRS	8

/* Returns the logit of stretch t of staircase `stairs`. Steps are smaller for f16, whose range is smaller. */
static inline double attn_stair(int stairs, int t, int f16)
{
	switch (stairs % ATTN_STAIRS) {
	case 0: return f16 ? t - 5 : 6 * t - 30;		/* rises in small steps */
	case 1: return t < 6 ? 0 : f16 ? 9 : 70;
	case 2: return f16 ? 9 - 0.75 * t : 60 - 5 * t;		/* falls */
	case 3: return t < 6 ? 100 : f16 ? 91 : 30;
	case 4: return f16 ? t / 3 * 3 : -100 + t / 3 * 20;
	case 5: return t < 4 ? -100 : t < 8 ? -8 : 150;		/* steps beyond the range of exp in fp32 */
	case 6: return t < 4 ? -60 : t < 8 ? -45 : -5;		/* steps beyond the range of exp in f16 */
	default: return t / 2 % 2 * (f16 ? 8 : 40);		/* up and down */
	}
}

/* Returns the stretch of key j of n. */
static inline int attn_stretch(int j, int n)
{
	return (int)((int64_t)j * ATTN_STRETCHES / n);
}

/* Returns the factor of a stretch's values. cap: the softcap of the logits, or 0. */
static inline double attn_stair_weight(int stairs, int t, int f16, double cap)
{
	double s = attn_stair(stairs, t, f16), top = s;

	for (int i = 0; i < ATTN_STRETCHES; i++)
		top = fmax(top, attn_stair(stairs, i, f16));
	if (cap > 0) {
		s = cap * tanh(s / cap);
		top = cap * tanh(top / cap);
	}
	return exp(fmin(top - s, f16 ? 9 : 70));
}

#endif
