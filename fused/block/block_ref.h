/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_ref - numbers and error bounds that the references of fused operations share: a value, and how far a
 * correct implementation may be from it when its inputs already have errors
 *
 * The references of cluster_attn, cluster_mla, moe and decode_step use it; that of decode_step chains
 * cairn_block_attn() (cluster_attn), cairn_block_mla() (latent) and cairn_block_moe() (moe).
 *
 * val[i] is computed in double and rounded where the contract rounds; err[i] bounds the distance to val[i] of
 * any implementation that follows the contract. Where the contract rounds, err becomes exactly what the
 * interval [val - err, val + err] rounds to: mostly 0 while err is small, one ulp where the interval contains
 * a tie. So numbers on the grid of dtype (small integers) stay exact through any number of layers.
 */
#ifndef CAIRN_BLOCK_REF_H
#define CAIRN_BLOCK_REF_H

#include <math.h>
#include <stdint.h>

#include "primitives/base/dtype.h"

struct block_row {
	double *val, *err;	/* err may be NULL in an output: no bounds are computed */
};

static inline double block_rounded(double v, int dtype)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

/*
 * Rounds v up or down at random, in proportion to the distances, so that exact values stay exact. key seeds
 * the choice; every use needs a different key.
 */
double block_rounded_either(double v, int dtype, uint64_t key);

/*
 * Adds the magnitudes of the products x[i] y[i] to *magnitude. Returns whether fp32 computes the sum of the
 * products without error in any order: the factors are integers, and *magnitude is at most 2^24.
 */
int block_sums_exactly(const double *x, const double *y, int64_t n, double *magnitude);

/*
 * Rounding is monotone: every number within err of val rounds to a value between the rounded ends of the
 * interval.
 */
static inline void block_round(struct block_row r, int64_t i, int dtype)
{
	double v = block_rounded(r.val[i], dtype);

	if (r.err && r.err[i] > 0)
		r.err[i] = fmax(block_rounded(r.val[i] + r.err[i], dtype) - v,
				v - block_rounded(r.val[i] - r.err[i], dtype));
	r.val[i] = v;
}

/*
 * out[i] = sum_j in[j] w[i,j] + bias[i], not yet rounded; w: [n, k] of dtype, bias may be NULL. The sum of m
 * nonzero terms, in any order, is off by at most (m + 2) 2^-24 times the sum of their magnitudes, as in
 * gemm_ref.c; subnormal factors count as the smallest normal number.
 */
void cairn_block_project(struct block_row out, struct block_row in, const void *w, const void *bias,
			 int64_t n, int64_t k, int dtype);

/* out = in / sqrt(mean(in^2) + eps) * w, rounded. */
void cairn_block_norm(struct block_row out, struct block_row in, const void *w, int64_t n, double eps,
		      int dtype);

/* g holds n gates, then n ups; the first n become silu(gate) * up, rounded. */
void cairn_block_silu_mul(struct block_row g, int64_t n, int dtype);

#endif
