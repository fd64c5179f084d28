// SPDX-License-Identifier: Apache-2.0
/*
 * attn_merge_ref - the reference, in double, and its error bound
 *
 * Let u = 2^-24, d[s] = lse[s] - max, p[s] = w[s] / sum w, and n the number of states with weight. The
 * cut-off compares d as fp32 rounds it, so all implementations agree on the states that have weight.
 *
 *   w     exp(0) is exact. Otherwise d is off by u |d|, and d * log2(e) by 2u |d| more (the constant and the
 *         product); these are absolute errors of the exponent. exp or exp2 itself is off by 2 ulp, 4u.
 *         Rounded up, w has a relative error of e[s] = (4 |d[s]| + 8) u.
 *   sums  n products and n additions of w * o add (n + 1) u of sum p |o|. The sum of w has the error of its
 *         terms, sum p e, and n u for the additions; both are relative to the sum, and therefore to out.
 *   out   1 / sum w and the product with it add 3u |out|; one rounding to out_dtype adds u_out |out| or
 *         half a subnormal. Up to n + 1 fp32 products may be subnormal, which adds 2^-150 for each.
 *   lse   the logarithm turns the relative error of the sum into an absolute one; ln itself is off by 2 ulp,
 *         4u ln(sum w), and the addition of max rounds once, u |lse|; doubled, for second-order terms.
 *
 * A sink is a state with o 0: it adds to n, to the sum of w and to lse, and a term of 0 to out.
 *
 * A state that alone has weight passes unchanged: the exact result is then its value rounded to out_dtype,
 * and the bounds are 0.
 */
#include "fused/attention/merge/attn_merge.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define U	0x1p-24

#define TERMS	(CAIRN_ATTN_MERGE_STATES + 1)	/* with the sink */

/* The states with weight of one row and head. */
struct terms {
	int n, bad;		/* bad: a used lse is NaN or +INFINITY */
	int64_t at[TERMS];	/* element at which o of the state begins; -1: o is 0 */
	double p[TERMS];	/* w / sum w */
	double e[TERMS];	/* relative error of w */
	double sum_error;				/* of sum w, relative */
	double lse, lse_bound;
};

/* Returns the lse of state s, or with s == num_states the sink. */
static float lse_of(const struct cairn_attn_merge_args *a, int s, int64_t row, int64_t head)
{
	if (s == a->num_states)
		return a->sink ? a->sink[head] : -INFINITY;
	return a->lse[s * a->lse_stride + row * a->num_heads + head];
}

/* Computes the weights of a row and head; a has its strides filled in. */
static void weigh(const struct cairn_attn_merge_args *a, int64_t row, int64_t head, struct terms *t)
{
	int used = a->num_states;
	float max = -INFINITY;
	double sum = 0;

	memset(t, 0, sizeof(*t));
	if (a->counts)
		used = a->counts[row] < 0 ? 0 : a->counts[row] < used ? a->counts[row] : used;
	for (int s = 0; s <= a->num_states; s++) {
		float lse = s < used || s == a->num_states ? lse_of(a, s, row, head) : -INFINITY;

		t->bad |= !(lse < INFINITY);
		max = lse > max ? lse : max;
	}
	t->lse = t->bad ? (double)NAN : -INFINITY;
	if (t->bad || max == -INFINITY)
		return;
	for (int s = 0; s <= a->num_states; s++) {
		float lse = s < used || s == a->num_states ? lse_of(a, s, row, head) : -INFINITY;
		float d = lse - max;

		if (!(d >= CAIRN_ATTN_MERGE_CUTOFF))
			continue;
		t->at[t->n] = s == a->num_states ? -1 :
			      s * a->state_stride + row * a->row_stride + head * a->head_stride;
		t->p[t->n] = exp((double)lse - (double)max);
		t->e[t->n] = d == 0 ? 0 : (4 * fabs((double)d) + 8) * U;
		sum += t->p[t->n++];
	}
	t->sum_error = t->n * U;
	for (int k = 0; k < t->n; k++) {
		t->p[k] /= sum;
		t->sum_error += t->p[k] * t->e[k];
	}
	t->lse = max + log(sum);
	t->lse_bound = t->n == 1 ? 0 : 2 * (t->sum_error + 4 * U * log(sum) + U * fabs(t->lse));
}

/* Computes element c of out, and its bound. */
static double merged(const struct cairn_attn_merge_args *a, const struct terms *t, int c, double *bound)
{
	double out = 0, terms = 0, magnitude = 0;

	*bound = 0;
	if (t->bad)
		return (double)NAN;
	for (int k = 0; k < t->n; k++) {
		double x = t->at[k] < 0 ? 0 : cairn_load(a->o, a->dtype, t->at[k] + c);

		out = k ? out + t->p[k] * x : t->p[k] * x;
		magnitude += t->p[k] * fabs(x);
		terms += t->p[k] * t->e[k] * fabs(x);
	}
	if (t->n <= 1) {
		uint64_t bits = 0;

		cairn_store(&bits, a->out_dtype, 0, out);
		return cairn_load(&bits, a->out_dtype, 0);
	}
	if (isfinite(out))
		*bound = terms + (t->n + 1) * U * magnitude + (t->n + 1) * 0x1p-150 +
			 (t->sum_error + 3 * U + cairn_dtype_roundoff(a->out_dtype)) * fabs(out) +
			 cairn_dtype_tiny(a->out_dtype);
	return out;
}

/* Sets exact[0] for out and [1] for lse_out, or, if exact is NULL, writes rounded results. */
static void all_rows(const struct cairn_attn_merge_args *args, struct cairn_exact *exact)
{
	const struct cairn_attn_merge_args a = cairn_attn_merge_strides(args);
	int64_t pairs = (int64_t)a.rows * a.num_heads;

	#pragma omp parallel for schedule(static)
	for (int64_t pair = 0; pair < pairs; pair++) {
		struct terms t;

		weigh(&a, pair / a.num_heads, pair % a.num_heads, &t);
		for (int c = 0; c < a.head_dim; c++) {
			double bound, out = merged(&a, &t, c, &bound);

			if (exact) {
				exact[0].val[pair * a.head_dim + c] = out;
				exact[0].bound[pair * a.head_dim + c] = bound;
			} else {
				cairn_store(a.out, a.out_dtype, pair * a.head_dim + c, out);
			}
		}
		if (a.lse_out && exact) {
			exact[1].val[pair] = t.lse;
			exact[1].bound[pair] = t.lse_bound;
		} else if (a.lse_out) {
			a.lse_out[pair] = (float)t.lse;
		}
	}
}

int cairn_attn_merge_ref(const struct cairn_attn_merge_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_merge_check(a));
	all_rows(a, NULL);
	return 0;
}

int cairn_attn_merge_exact(const struct cairn_attn_merge_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_attn_merge_check(a));
	all_rows(a, exact);
	return 0;
}
