// SPDX-License-Identifier: Apache-2.0
/*
 * attn_batch_exact - attention one row of one head at a time, in double, and its error bound
 *
 * The bound follows the values through any implementation that keeps to the contract. E = 2^-23 is the error
 * of one fp32 addition, twice the usual 2^-24 because tensor cores truncate; u is half an ulp of dtype.
 *
 *   logits  s_j is a sum of qk_dim products, with an error of at most (qk_dim + 4) E sm_scale sum |q k|
 *           over the elements of k_j. Going through exp2 of differences from a running maximum adds
 *           2E |s_j - max|, and exp2 itself 2E. Call the sum d_j. An error common to all logits cancels in
 *           p, so where logits are so large that d is not small, errors are counted relative to that of the
 *           largest logit: d_j + d_max for the others, 0 for the largest.
 *   softcap the error d_j goes through softcap tanh(. / softcap), which never widens it and narrows it where
 *           it saturates; the quotient, tanh itself (4E) and the product add 6E softcap.
 *   p       p_j becomes at most p_j e^(d_j), and the normaliser at least D = sum p_j e^(-d_j) of its value.
 *           With up_j = p_j (e^(d_j) - 1), out moves by at most sum up_j (|v_j| + |out|) / D.
 *           The sum is exact, whatever its order, if q and k_j are integers with sum |q k| <= 2^24; then the
 *           scale alone counts, 4E |s_j|.
 *   P * V   rounding p_j to dtype: u p_j |v_j|, and for a p_j that underflows dtype half of dtype's smallest
 *           step (relative to the largest p, hence over l = sum exp(s_j - max)). The sums of kv_len terms,
 *           with a rescale each time the maximum moves: (1.5 kv_len + 32) E of sum p_j |v_j|, and of |out|
 *           through l. If all logits are exactly 0, P is 1 and not rounded.
 *   out     one rounding: u |out|, or half the smallest step.
 *   lse     ln sum p_j e^(d_j), the same depth, and the rounding of its parts: E (|max| + |lse|).
 *
 * Above 2^33 products in q.k the reference computes the first and last row of each request and a fixed
 * pseudo-random sample of the others, all heads of each. The remaining rows have an infinite bound: only that
 * their results are finite is judged. Rows that see no key are always judged exactly.
 */
#include "fused/attention/attn_batch.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define E	0x1p-23

static int keys_seen(const struct attn_batch *a, int b, int i)
{
	int kv_len = a->num_keys(a->args, b);
	int n = a->causal ? i + 1 + kv_len - (a->qo_indptr[b + 1] - a->qo_indptr[b]) : kv_len;

	return n > 0 ? n : 0;
}

/* Returns the first key that the window of row i leaves. */
static int first_seen(const struct attn_batch *a, int b, int i)
{
	int position = i + a->num_keys(a->args, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]);

	return a->window && position >= a->window ? position - a->window + 1 : 0;
}

/* Returns whether the n elements of x are integers. */
static int all_integers(const float *x, int n)
{
	int yes = 1;

	#pragma omp simd reduction(&:yes)
	for (int c = 0; c < n; c++)
		yes &= x[c] == rintf(x[c]);
	return yes;
}

struct row {
	double *s, *d;			/* [kv_len] logits and bounds of their errors */
	double o[ATTN_BATCH_MAX_DIM], bound[ATTN_BATCH_MAX_DIM];
	double lse, lse_bound;
};

/* Caps logit s and updates its error bound d. */
static void bend_logit(double cap, double *s, double *d)
{
	double v = cap * tanh(*s / cap), up = cap * tanh((*s + *d) / cap), down = cap * tanh((*s - *d) / cap);

	*d = fmax(up - v, v - down) + 6 * E * cap;
	*s = v;
}

/* Computes row i of request b, head h: o, lse and their bounds. */
static CAIRN_WIDE void attend(const struct attn_batch *a, int b, int i, int h, struct row *r)
{
	int64_t q_at = (a->qo_indptr[b] + i) * a->q_stride + (int64_t)h * a->qk_dim;
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype);
	int n = keys_seen(a, b, i), first = first_seen(a, b, i), top = first;
	int dim = a->qk_dim, g = h / (a->num_qo_heads / a->num_kv_heads);
	double l = 0, den = 0, up_sum = 0, e_sum = 0, depth = (1.5 * (n - first) + 32) * E, e_max, d_top;
	float q[ATTN_BATCH_MAX_DIM], x[ATTN_BATCH_MAX_DIM];
	int integers, zeros = 1;

	for (int c = 0; c < a->v_dim; c++)
		r->o[c] = r->bound[c] = 0;
	r->lse = -INFINITY;
	r->lse_bound = 0;
	if (!n)
		return;
	cairn_load_row(q, a->q, a->dtype, q_at, dim);
	integers = all_integers(q, dim);
	for (int j = first; j < n; j++) {
		double dot = 0, magnitude = 0;

		cairn_load_row(x, a->key(a->args, b, j, g).k, a->dtype, 0, dim);
		#pragma omp simd reduction(+:dot, magnitude)
		for (int c = 0; c < dim; c++) {
			dot += (double)q[c] * x[c];
			magnitude += fabs((double)q[c] * x[c]);
		}
		r->s[j] = a->sm_scale * dot;
		r->d[j] = (dim + 4) * E * a->sm_scale * magnitude;
		if (integers && magnitude <= 0x1p24 && all_integers(x, dim))
			r->d[j] = 4 * E * fabs(r->s[j]);
		zeros &= dot == 0 && r->d[j] == 0;
		if (a->softcap > 0)
			bend_logit(a->softcap, &r->s[j], &r->d[j]);
		if (r->s[j] > r->s[top])
			top = j;
	}
	d_top = r->d[top];
	e_max = d_top;
	for (int j = first; j < n; j++) {
		l += exp(r->s[j] - r->s[top]);
		e_max = fmax(e_max, r->s[j] - r->s[top] + r->d[j]);
	}
	for (int j = first; j < n; j++) {
		e_sum += exp(r->s[j] - r->s[top] + r->d[j] - e_max);
		if (d_top > 0.5)
			r->d[j] = j == top ? 0 : r->d[j] + d_top;
		r->d[j] += 2 * E * (r->s[top] - r->s[j]) + 2 * E;
		den += exp(r->s[j] - r->s[top] - r->d[j]) / l;
	}
	for (int j = first; j < n; j++) {
		double p = exp(r->s[j] - r->s[top]) / l;
		double up = (exp(fmin(r->s[j] - r->s[top] + r->d[j], 700)) / l - p) / den;
		double w = up + p * ((zeros ? 0 : u) + depth) + (zeros ? 0 : fmax(tiny, 0x1p-126) / l);

		up_sum += up;
		cairn_load_row(x, a->key(a->args, b, j, g).v, a->dtype, 0, a->v_dim);
		for (int c = 0; c < a->v_dim; c++) {
			r->o[c] += p * x[c];
			r->bound[c] += w * fabs(x[c]);
		}
	}
	for (int c = 0; c < a->v_dim; c++)
		r->bound[c] += (up_sum + depth + u) * fabs(r->o[c]) + fmax(tiny, 0x1p-126);
	r->lse = r->s[top] + log(l);
	r->lse_bound = log(e_sum / l) + e_max + depth + E * (fabs(r->s[top]) + fabs(r->lse));
}

/* Returns 0 if all rows are computed, or n: one row in n, and the first and last of each request. */
static uint32_t sample_step(const struct attn_batch *a)
{
	double products = 0;

	for (int b = 0; b < a->batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			products += (double)(keys_seen(a, b, i) - first_seen(a, b, i)) *
				    a->num_qo_heads * a->qk_dim;
	return products <= 0x1p33 ? 0 : (uint32_t)(products * 0x1p-33) + 1;
}

static int left_out(const struct attn_batch *a, int b, int i, uint32_t step)
{
	if (!step || i == 0 || i == a->qo_indptr[b + 1] - a->qo_indptr[b] - 1)
		return 0;
	return ((uint32_t)(a->qo_indptr[b] + i) * 2654435761u >> 8) % step != 0;
}

static void undefine(const struct attn_batch *a, struct cairn_exact *exact, int64_t at)
{
	for (int64_t c = at * a->v_dim; c < (at + 1) * a->v_dim; c++) {
		exact[0].val[c] = NAN;
		exact[0].bound[c] = INFINITY;
	}
	if (a->lse) {
		exact[1].val[at] = NAN;
		exact[1].bound[at] = INFINITY;
	}
}

/*
 * Returns 2 if the exact results of row i of request b, head h, are not numbers because of a key or a value,
 * 1 if the query is the reason, else 0.
 */
static int not_a_number(const struct attn_batch *a, const struct cairn_exact *exact, int b, int i,
			int h)
{
	int64_t row = a->qo_indptr[b] + i, at = row * a->num_qo_heads + h;
	int64_t dim = a->qk_dim;
	int seen = 0, query = 0;

	if (!cairn_is_wanted(exact, at * a->v_dim, a->v_dim))
		return 0;
	for (int64_t c = at * a->v_dim; c < (at + 1) * a->v_dim; c++)
		seen |= !isfinite(exact[0].val[c]);
	for (int64_t c = 0; seen && c < dim; c++)
		query |= !isfinite(cairn_load(a->q, a->dtype, row * a->q_stride + h * dim + c));
	return query ? 1 : 2 * seen;
}

/* What reads a NaN or an infinity is undefined: see "Not numbers" in the header. */
static void undefine_rows(const struct attn_batch *a, struct cairn_exact *exact)
{
	int group = a->num_qo_heads / a->num_kv_heads;

	for (int b = 0; b < a->batch; b++)
		for (int g = 0; g < a->num_kv_heads; g++) {
			int rows = (a->qo_indptr[b + 1] - a->qo_indptr[b]) * group, all = 0, why;
			int64_t first = (int64_t)a->qo_indptr[b] * a->num_qo_heads + g * group;

			for (int k = 0; k < rows; k++) {
				why = not_a_number(a, exact, b, k / group, g * group + k % group);
				all |= why == 2;
				if (why == 1)
					undefine(a, exact, first + k / group * a->num_qo_heads + k % group);
			}
			for (int k = 0; all && k < rows; k++)
				undefine(a, exact, first + k / group * a->num_qo_heads + k % group);
		}
}

int attn_batch_exact(const struct attn_batch *a, struct cairn_exact *exact)
{
	uint32_t step = exact ? sample_step(a) : 0;
	int max_kv = 1, no_memory = 0;

	for (int b = 0; b < a->batch; b++)
		max_kv = a->num_keys(a->args, b) > max_kv ? a->num_keys(a->args, b) : max_kv;
	#pragma omp parallel reduction(|:no_memory)
	{
		struct row *r = malloc(sizeof(*r) + 2 * sizeof(double) * (size_t)max_kv);

		no_memory |= !r;
		if (r) {
			r->s = (double *)(r + 1);
			r->d = r->s + max_kv;
		}
		for (int b = 0; b < a->batch; b++) {
			int rows = (a->qo_indptr[b + 1] - a->qo_indptr[b]) * a->num_qo_heads;

			#pragma omp for schedule(dynamic) nowait
			for (int k = 0; k < rows; k++) {
				int i = k / a->num_qo_heads, h = k % a->num_qo_heads;
				int64_t at = ((int64_t)a->qo_indptr[b] + i) * a->num_qo_heads + h;
				int skip = exact && left_out(a, b, i, step) && keys_seen(a, b, i);

				if (!r || (exact && !cairn_is_wanted(exact, at * a->v_dim, a->v_dim)))
					continue;
				if (!skip)
					attend(a, b, i, h, r);
				for (int c = 0; c < a->v_dim; c++) {
					if (!exact) {
						cairn_store(a->out, a->dtype, at * a->v_dim + c, r->o[c]);
						continue;
					}
					exact[0].val[at * a->v_dim + c] = skip ? 0 : r->o[c];
					exact[0].bound[at * a->v_dim + c] = skip ? INFINITY : r->bound[c];
				}
				if (a->lse && !exact) {
					a->lse[at] = (float)r->lse;
				} else if (a->lse) {
					exact[1].val[at] = skip ? 0 : r->lse;
					exact[1].bound[at] = skip ? INFINITY : r->lse_bound;
				}
			}
		}
		free(r);
	}
	if (exact && !no_memory)
		undefine_rows(a, exact);
	return no_memory ? cairn_error(ENOMEM, "%s: no memory for %d logits", a->name, max_kv) : 0;
}
