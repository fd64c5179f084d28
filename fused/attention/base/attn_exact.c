// SPDX-License-Identifier: Apache-2.0
/*
 * attn_exact - the attention of one row of one head, in double, and its error bound
 *
 * The bound follows the values through any implementation that keeps to the contract. E = 2^-23 is the error
 * of one fp32 addition, twice the usual 2^-24 because tensor cores truncate; u is half an ulp of dtype.
 *
 *   logits  s_j is a sum of qk_dim products over the elements of k_j, with an error of at most
 *           (qk_dim + 4) E sm_scale sum |q k|. If q and k_j are integers with sum |q k| <= 2^24, the sum is
 *           exact in any order, and only the scale adds an error, 4E |s_j|. Computing exp2 of differences
 *           from a running maximum adds 2E |s_j - max|, and exp2 itself 2E. Call the total d_j. An error
 *           common to all logits cancels in p. So where logits are so large that d is not small, errors count
 *           relative to the error of the largest logit: 0 for the largest, d_j + d_max for the others.
 *   softcap softcap tanh(. / softcap) never widens the error d_j, and narrows it where tanh saturates; the
 *           quotient, tanh itself (4E) and the product add 6E softcap.
 *   p       p_j becomes at most p_j e^(d_j), and the normaliser at least D = sum p_j e^(-d_j) of its value.
 *           With up_j = p_j (e^(d_j) - 1), out moves by at most sum up_j (|v_j| + |out|) / D.
 *   P * V   rounding p_j to dtype adds u p_j |v_j|, or, for a p_j that underflows dtype, half of dtype's
 *           smallest step (relative to the largest p, hence over l = sum exp(s_j - max)). Sums of kv_len
 *           terms, rescaled each time the maximum moves, add (1.5 kv_len + 32) E of sum p_j |v_j| and,
 *           through l, of |out|. If all logits are exactly 0, P is 1 and not rounded.
 *   slack   slack of K adds sm_scale sum |q| slack to the error of the logit; slack of V adds p_j slack to
 *           out.
 *   merges  each merge rounds the results of some keys: u of sum p_j |v_j|, or half the smallest step. The
 *           weights come from the lse of these results, which adds 4E (|lse| + |s_j - lse| + 4) to the error
 *           of each logit.
 *   8 bits  e4m3 is exact in dtype; the scale of a head multiplies logits, and O, within the bounds above.
 *   out     one rounding adds u |out|, or half the smallest step.
 *   lse     ln sum p_j e^(d_j), (1.5 kv_len + 32) E as above, and the rounding of its parts,
 *           E (|max| + |lse|).
 */
#include "fused/attention/base/attn_exact.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"

#define E	0x1p-23

/* Returns whether the n elements of x are integers. */
static int all_integers(const float *x, int n)
{
	int yes = 1;

	#pragma omp simd reduction(&:yes)
	for (int c = 0; c < n; c++)
		yes &= x[c] == rintf(x[c]);
	return yes;
}

/* Caps logit s and updates its error bound d. */
static void bend_logit(double cap, double *s, double *d)
{
	double v = cap * tanh(*s / cap), up = cap * tanh((*s + *d) / cap), down = cap * tanh((*s - *d) / cap);

	*d = fmax(up - v, v - down) + 6 * E * cap;
	*s = v;
}

static void load_key(const struct attn_numerics *a, float *x, const void *key, int dim)
{
	if (!a->kv_fp8)
		cairn_load_row(x, key, a->dtype, 0, dim);
	for (int c = 0; a->kv_fp8 && c < dim; c++)
		x[c] = cairn_e4m3_to_float(((const uint8_t *)key)[c]);
}

/* Returns what the slack of a key adds to the error of q k. */
static double slack_of(const struct attn_numerics *a, const float *q, const void *slack)
{
	float x[ATTN_MAX_DIM];
	double sum = 0;

	if (!slack)
		return 0;
	cairn_load_row(x, slack, a->dtype, 0, a->qk_dim);
	for (int c = 0; c < a->qk_dim; c++)
		sum += fabs((double)q[c] * x[c]);
	return sum;
}

CAIRN_WIDE void attn_exact_row(const struct attn_numerics *a, const void *q_row, const struct attn_key *keys,
			       int n, struct attn_exact_row *r)
{
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype);
	double l = 0, den = 0, up_sum = 0, e_sum = 0, depth = (1.5 * n + 32) * E, e_max, d_top;
	float q[ATTN_MAX_DIM], x[ATTN_MAX_DIM], slack[ATTN_MAX_DIM];
	int dim = a->qk_dim, top = 0, integers, zeros = 1;

	for (int c = 0; c < a->v_dim; c++)
		r->o[c] = r->bound[c] = 0;
	r->lse = -INFINITY;
	r->lse_bound = 0;
	if (!n)
		return;
	cairn_load_row(q, q_row, a->dtype, 0, dim);
	integers = all_integers(q, dim);
	for (int j = 0; j < n; j++) {
		double dot = 0, magnitude = 0, scale = (double)a->sm_scale * (double)keys[j].k_scale;

		load_key(a, x, keys[j].k, dim);
		#pragma omp simd reduction(+:dot, magnitude)
		for (int c = 0; c < dim; c++) {
			dot += (double)q[c] * x[c];
			magnitude += fabs((double)q[c] * x[c]);
		}
		r->s[j] = scale * dot;
		r->d[j] = (dim + 4) * E * scale * magnitude;
		if (integers && magnitude <= 0x1p24 && all_integers(x, dim))
			r->d[j] = 4 * E * fabs(r->s[j]);
		r->d[j] += scale * slack_of(a, q, keys[j].k_slack);
		zeros &= dot == 0 && r->d[j] == 0;
		if (a->softcap > 0)
			bend_logit(a->softcap, &r->s[j], &r->d[j]);
		if (r->s[j] > r->s[top])
			top = j;
	}
	d_top = r->d[top];
	e_max = d_top;
	for (int j = 0; j < n; j++) {
		l += exp(r->s[j] - r->s[top]);
		e_max = fmax(e_max, r->s[j] - r->s[top] + r->d[j]);
	}
	r->lse = r->s[top] + log(l);
	for (int j = 0; j < n; j++) {
		e_sum += exp(r->s[j] - r->s[top] + r->d[j] - e_max);
		if (d_top > 0.5)
			r->d[j] = j == top ? 0 : r->d[j] + d_top;
		r->d[j] += 2 * E * (r->s[top] - r->s[j]) + 2 * E;
		if (a->merges)
			r->d[j] += 4 * E * a->merges * (fabs(r->lse) + fabs(r->s[j] - r->lse) + 4);
		den += exp(r->s[j] - r->s[top] - r->d[j]) / l;
	}
	for (int j = 0; j < n; j++) {
		double p = exp(r->s[j] - r->s[top]) / l;
		double up = (exp(fmin(r->s[j] - r->s[top] + r->d[j], 700)) / l - p) / den;
		double scale = (double)keys[j].v_scale;
		double w = up + p * (((zeros ? 0 : 1) + a->merges) * u + depth) +
			   (zeros ? 0 : fmax(tiny, 0x1p-126) / l);

		up_sum += up;
		load_key(a, x, keys[j].v, a->v_dim);
		for (int c = 0; c < a->v_dim; c++) {
			r->o[c] += p * scale * x[c];
			r->bound[c] += w * scale * fabs(x[c]);
		}
		if (!keys[j].v_slack)
			continue;
		cairn_load_row(slack, keys[j].v_slack, a->dtype, 0, a->v_dim);
		for (int c = 0; c < a->v_dim; c++)
			r->bound[c] += (p + w) * (double)slack[c];
	}
	for (int c = 0; c < a->v_dim; c++)
		r->bound[c] += (up_sum + depth + u) * fabs(r->o[c]) + (1 + a->merges) * fmax(tiny, 0x1p-126);
	r->lse_bound = log(e_sum / l) + e_max + depth + E * (fabs(r->s[top]) + fabs(r->lse));
	if (a->merges)
		r->lse_bound += 4 * E * a->merges * (fabs(r->lse) + 4);
}

struct attn_exact_row *attn_exact_row_new(int max_keys)
{
	size_t n = max_keys > 0 ? (size_t)max_keys : 1;
	struct attn_exact_row *r = malloc(sizeof(*r) + n * (2 * sizeof(double) + sizeof(struct attn_key)));

	if (r) {
		r->s = (double *)(r + 1);
		r->d = r->s + n;
		r->keys = (struct attn_key *)(r->d + n);
	}
	return r;
}
