// SPDX-License-Identifier: Apache-2.0
/*
 * attn_fp8_ref - the reference: rows in double, and the bound of the error that the contract allows
 *
 * attn_exact.c explains the bound and its letters. The terms below differ from those, because products of
 * e4m3 are summed with fewer bits, and P has only 4 bits. A step of 32 products may truncate each product,
 * and the sum so far, by A = 2^-13 of the largest of them: cut_off() adds that up. Because an implementation
 * may take the steps in another order, the bound of a sum of n products is at least (n / 32) A times the sum
 * of magnitudes.
 *
 *   logits  d_j is that bound times sm_scale, plus 4E |s_j| for the scales and the exponent. If sum |q k| is
 *           at most 2^13 times the lowest bit of any product, nothing is truncated, and only the second term
 *           counts.
 *   P       rounding p_j to e4m3 adds 2^-4 p_j, at least 2^-18 (relative to the largest p, hence over l), at
 *           most p_j itself. A p_j that cannot be told from the largest one is 2^8, without an error. The sum
 *           l takes p_j before rounding.
 *   P * V   the same bound, for the 128 keys of a block, which are four steps. Blocks whose keys all have the
 *           largest logit, and whose sum |v| is at most 2^13 times the lowest bit, are exact. The sum over
 *           blocks is in fp32 and adds (n / 64 + 32) E of it. l is a sum of n terms: (n + 32) E.
 */
#include "fused/attention/fp8/attn_fp8_batch.h"

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"

#define E	0x1p-23
#define A	0x1p-13
#define BLOCK	ATTN_FP8_BLOCK
#define STEP	32	/* products that a tensor core adds at a time */

int64_t attn_fp8_block_at(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int32_t b,
			  int32_t j, int32_t head)
{
	int32_t nnz = operand == ATTN_Q ? a->nnz_qo : a->nnz_kv;
	int32_t first = operand == ATTN_Q ? a->qo_indptr[b] : a->kv_indptr[b];

	return (int64_t)head * attn_fp8_blocks(nnz, a->batch) + attn_fp8_first_block(first, b) + j / BLOCK;
}

float attn_fp8_codes(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int32_t b, int32_t j,
		     int32_t head, float *codes)
{
	int64_t block = attn_fp8_block_at(a, operand, b, j, head), at = block * BLOCK * a->head_dim;

	if (operand == ATTN_V) {
		for (int c = 0; c < a->head_dim; c++)
			codes[c] = cairn_e4m3_to_float(a->v[at + c * BLOCK + attn_fp8_place(j % BLOCK)]);
		return a->v_scale[block];
	}
	at += (int64_t)(j % BLOCK) * a->head_dim;
	for (int c = 0; c < a->head_dim; c++)
		codes[c] = cairn_e4m3_to_float((operand == ATTN_Q ? a->q : a->k)[at + c]);
	return operand == ATTN_Q ? a->q_scale[block] : a->k_scale[block];
}

/* Returns the lowest bit of any of n codes, which are multiples of 2^-9; 2^8 if all are 0. */
static inline double lowest_bit(const float *x, int n)
{
	uint32_t bits = 1 << 17;

	#pragma omp simd reduction(|:bits)
	for (int c = 0; c < n; c++)
		bits |= (uint32_t)(int32_t)(fabsf(x[c]) * 512);
	return (double)(bits & -bits) / 512;
}

/* A row's weights for the keys of a block, each at the place of its key. */
struct weights {
	double p[BLOCK], error[BLOCK], all[BLOCK], variance[BLOCK];
	int equal;			/* all keys have the largest logit */
};

/*
 * Returns product c of x and y, or, if y is NULL, of x and the weights w. With `most`, the weights are the
 * largest ones that errors allow.
 */
static inline double product(const float *x, const float *y, const struct weights *w, int c, int most)
{
	return (double)x[c] * (y ? (double)y[c] : most ? w->all[c] : w->p[c]);
}

/* As fmax() and fmin(), which gcc does not vectorise: a NaN counts as absent. */
static inline double larger(double x, double y)
{
	return y > x || x != x ? y : x;
}

static inline double smaller(double x, double y)
{
	return y < x || x != x ? y : x;
}

/*
 * Returns a bound for all that the steps of a sum of n products truncate, from the products and the sum so
 * far.
 */
static inline double cut_off(const float *x, const float *y, const struct weights *w, int n)
{
	double lost = 0, sum = 0;

	for (int i = 0; i < n; i += STEP) {
		double top = fabs(sum), step = 0, size[STEP], x_y[STEP];

		for (int c = 0; c < STEP; c++) {
			size[c] = fabs(product(x, y, w, i + c, 1));
			x_y[c] = product(x, y, w, i + c, 0);
		}
		for (int c = 0; c < STEP; c++)
			top = larger(top, size[c]);
		lost += smaller(A * top, fabs(sum));
		for (int c = 0; c < STEP; c++) {
			lost += smaller(A * top, size[c]);
			step += x_y[c];
		}
		sum += step;
	}
	return lost;
}

/*
 * Sets r->s and r->d of n keys, from the row's codes q and their scale. Returns the key with the largest
 * logit.
 */
CAIRN_WIDE static int logits(const struct cairn_attn_fp8_args *a, int32_t b, int32_t g, const float *q,
			    double q_scale, int n, struct attn_exact_row *r)
{
	double q_bit = lowest_bit(q, a->head_dim);
	int dim = a->head_dim, top = 0;
	float x[ATTN_MAX_DIM];

	for (int j = 0; j < n; j++) {
		double scale = a->sm_scale * q_scale * (double)attn_fp8_codes(a, ATTN_K, b, j, g, x);
		double dot = 0, magnitude = 0;

		#pragma omp simd reduction(+:dot, magnitude)
		for (int c = 0; c < dim; c++) {
			dot += (double)q[c] * x[c];
			magnitude += fabs((double)q[c] * x[c]);
		}
		r->s[j] = scale * dot;
		r->d[j] = 4 * E * fabs(r->s[j]);
		if (magnitude > 0x1p13 * q_bit * lowest_bit(x, dim))
			r->d[j] += scale * fmax(dim / STEP * A * magnitude, cut_off(q, x, NULL, dim));
		if (r->s[j] > r->s[top])
			top = j;
	}
	return top;
}

/* Returns the error of an e4m3 weight of e^x, relative to the largest weight. */
static double rounding(double x, double d)
{
	double p = exp(x + d);

	return x == 0 && d < 0x1p-6 ? 0 : fmin(p, fmax(0x1p-4 * p, 0x1p-18));
}

/*
 * Sets the weights of keys j .. end - 1 of a block. Returns the sum of the errors that come from the logits.
 */
static inline double weigh(const struct attn_exact_row *r, int j, int end, double top, double l, double den,
			   double depth, struct weights *w)
{
	double up_sum = 0;

	memset(w, 0, sizeof(*w));
	w->equal = 1;
	for (int t = j; t < end; t++) {
		double s = r->s[t] - top, p = exp(s) / l, round = rounding(s, r->d[t]) / l;
		double up = (exp(fmin(s + r->d[t], 700)) / l - p) / den;
		int at = attn_fp8_place(t - j);

		w->p[at] = p;
		w->error[at] = up + round + p * depth;
		w->all[at] = p + up;
		w->variance[at] = 0.36 * round * round;
		w->equal &= s == 0;
		up_sum += up;
	}
	return up_sum;
}

/* Adds a block of V, with element c of all keys in a row, to the results. */
CAIRN_WIDE static void add_values(const uint8_t *codes, double scale, const struct weights *w, int dim,
				  struct attn_exact_row *r, double *variance)
{
	float x[BLOCK];

	for (int c = 0; c < dim; c++, codes += BLOCK) {
		double sum = 0, error = 0, all = 0, spread = 0, magnitude = 0;

		for (int t = 0; t < BLOCK; t++)	/* places past the last key have no weight */
			x[t] = w->all[t] > 0 ? cairn_e4m3_to_float(codes[t]) : 0;
		#pragma omp simd reduction(+:sum, error, all, spread, magnitude)
		for (int t = 0; t < BLOCK; t++) {
			double v = (double)x[t];

			sum += w->p[t] * v;
			error += w->error[t] * fabs(v);
			all += w->all[t] * fabs(v);
			spread += w->variance[t] * v * v;
			magnitude += fabs(v);
		}
		r->o[c] += scale * sum;
		r->bound[c] += scale * error;
		variance[c] += scale * scale * spread;
		if (!w->equal || magnitude > 0x1p13 * lowest_bit(x, BLOCK))
			r->bound[c] += scale * fmax(BLOCK / STEP * A * all, cut_off(x, NULL, w, BLOCK));
	}
}

CAIRN_WIDE void attn_fp8_row(const struct cairn_attn_fp8_args *a, int32_t b, int32_t i, int32_t h, int32_t n,
			     struct attn_exact_row *r, double *deviation)
{
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype);
	double l = 0, den = 0, up_sum = 0, e_sum = 0, depth = (n + 32) * E, e_max, d_top, q_scale;
	double variance[ATTN_MAX_DIM] = { 0 };
	int dim = a->head_dim, g = h / (a->num_qo_heads / a->num_kv_heads), top;
	float q[ATTN_MAX_DIM];

	memset(r->o, 0, sizeof(r->o));
	memset(r->bound, 0, sizeof(r->bound));
	r->lse = -INFINITY;
	r->lse_bound = 0;
	if (!n)
		return;
	q_scale = attn_fp8_codes(a, ATTN_Q, b, i, h, q);
	top = logits(a, b, g, q, q_scale, n, r);
	d_top = r->d[top];
	e_max = d_top;
	for (int j = 0; j < n; j++) {
		l += exp(r->s[j] - r->s[top]);
		e_max = fmax(e_max, r->s[j] - r->s[top] + r->d[j]);
	}
	for (int j = 0; j < n; j++) {
		e_sum += exp(r->s[j] - r->s[top] + r->d[j] - e_max);
		if (d_top > 0.5)
			r->d[j] = j == top ? 0 : r->d[j] + d_top;
		r->d[j] += 2 * E * (r->s[top] - r->s[j]) + 2 * E;
		den += exp(r->s[j] - r->s[top] - r->d[j]) / l;
	}
	for (int j = 0; j < n; j += BLOCK) {
		int64_t block = attn_fp8_block_at(a, ATTN_V, b, j, g);
		struct weights w;

		up_sum += weigh(r, j, j + BLOCK < n ? j + BLOCK : n, r->s[top], l, den,
				(n / 64.0 + 32) * E, &w);
		add_values(a->v + block * BLOCK * dim, (double)a->v_scale[block], &w, dim, r, variance);
	}
	for (int c = 0; c < dim; c++) {
		r->bound[c] += (up_sum + depth + u) * fabs(r->o[c]) + fmax(tiny, 0x1p-126);
		if (deviation)
			deviation[c] = sqrt(variance[c]) + u * fabs(r->o[c]);
	}
	r->lse = r->s[top] + log(l);
	r->lse_bound = log(e_sum / l) + e_max + depth + E * (fabs(r->s[top]) + fabs(r->lse));
}

static void load(const void *args, enum attn_operand operand, int32_t b, int32_t j, int32_t head, float *x)
{
	const struct cairn_attn_fp8_args *a = args;
	float scale = attn_fp8_codes(a, operand, b, j, head, x);

	for (int c = 0; c < a->head_dim; c++)
		x[c] *= scale;
}

static void exact_row(const void *args, int32_t b, int32_t i, int32_t h, int32_t n, struct attn_exact_row *r)
{
	attn_fp8_row(args, b, i, h, n, r, NULL);
}

static int32_t num_keys(const void *args, int32_t b)
{
	const struct cairn_attn_fp8_args *a = args;

	return a->kv_indptr[b + 1] - a->kv_indptr[b];
}

struct attn_batch attn_fp8_batch(const struct cairn_attn_fp8_args *a)
{
	return (struct attn_batch){
		.name = "attn_fp8", .out = a->out, .lse = a->lse, .qo_indptr = a->qo_indptr,
		.batch = a->batch, .num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads,
		.qk_dim = a->head_dim, .v_dim = a->head_dim, .dtype = a->dtype, .causal = a->causal,
		.sm_scale = a->sm_scale, .args = a, .num_keys = num_keys, .load = load,
		.exact_row = exact_row,
	};
}

int cairn_attn_fp8_ref(const struct cairn_attn_fp8_args *a, void *stream)
{
	struct attn_batch b;

	(void)stream;
	CAIRN_TRY(cairn_attn_fp8_check(a));
	b = attn_fp8_batch(a);
	return attn_batch_exact(&b, NULL);
}

int cairn_attn_fp8_exact(const struct cairn_attn_fp8_args *a, struct cairn_exact *exact)
{
	struct attn_batch b;

	CAIRN_TRY(cairn_attn_fp8_check(a));
	b = attn_fp8_batch(a);
	return attn_batch_exact(&b, exact);
}
