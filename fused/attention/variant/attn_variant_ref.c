// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_ref - the reference: the hooks in double, a row at a time, and the bounds of errors
 *
 * E and the terms without an explanation are those of attn_exact.c. F = 2^-20 is the error of a function of
 * attn_variant_text.h.
 *
 *   q', k'  The hook's exact result is rounded to dtype. A rotation in fp32 may err by 2F (|a| + |b|); where
 *           that changes the rounding, the element may be the neighbouring number. slack is the distance to
 *           it, usually 0. Slacks add sm_scale (sum |q'| slack_k + |k'| slack_q + slack_q slack_k) to the
 *           error of a logit.
 *   slope   The bias errs by 16F |slope|, and the sum by 8E (|s| + |z|). A cap errs by F c, as logit() may.
 *   logit   The hook maps an error d of s to at most the largest |f(s') - f(s)| over s' = s - d, s + d, while
 *           its functions err by -F and F; this assumes that f is monotone from s - d to s + d. Its own
 *           operations add 8E (|s| + |f(s)|).
 *   weight  The same, and p_j is rounded to dtype. No term is relative to a maximum.
 *   sink    counts as a key without a value. Joining it last adds 4E (|max| + 1) to the error of all logits.
 *   output  maps the error of a sum as logit() does, before the last rounding.
 */
#define real double
#include "fused/attention/variant/attn_variant_host.h"

#include <math.h>
#include <stdlib.h>

#include "fused/attention/variant/attn_variant_known.h"
#include "fused/attention/base/attn_exact.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define E	0x1p-23
#define F	0x1p-20
#define DIM	128

/* Rotated rows of an operand, and how far each element may be from its value. */
struct rows {
	float *x, *slack;
};

struct work {
	const struct cairn_attn_variant_args *a;
	const struct attn_hooks *hooks;
	struct rows k;			/* all keys of the request and KV head */
	double *s, *d;			/* [kv_len + 1] logits and errors; the last one may be the sink */
	int *key;			/* [kv_len + 1] the key of a logit, -1: the sink */
	double o[DIM], bound[DIM], lse, lse_bound;
};

static double rounded(double v, int dtype)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

/* Sets dim elements of x and slack to a row of an operand, rotated by `hook` if not NULL. */
static void load(const struct cairn_attn_variant_args *a, const void *from, int64_t at,
		 const struct attn_x *x, void (*hook)(const struct attn_x *x, real *a, real *b, int pair),
		 float *to, float *slack)
{
	cairn_load_row(to, from, a->dtype, at, a->head_dim);
	for (int c = 0; c < a->head_dim; c++)
		slack[c] = 0;
	for (int pair = 0; hook && pair < a->head_dim / 2; pair++) {
		int step, c = attn_pair(a, pair, &step);
		double first = to[c], second = to[c + step], off = 2 * F * (fabs(first) + fabs(second));
		double v[2] = { first, second };

		hook(x, &v[0], &v[1], pair);
		for (int i = 0; i < 2; i++) {
			to[c + i * step] = (float)rounded(v[i], a->dtype);
			slack[c + i * step] = (float)(rounded(v[i] + off, a->dtype) -
						      rounded(v[i] - off, a->dtype));
		}
	}
}

/* Applies f, the hook logit() or weight() or NULL, to *s, whose error is *d. */
static void bend(const struct work *w, double (*f)(const struct attn_x *x, real s), const struct attn_x *x,
		 double *s, double *d)
{
	double v, most = 0;

	if (!f)
		return;
	w->hooks->nudge(0);
	v = f(x, *s);
	for (int i = 0; i < 4; i++) {
		w->hooks->nudge(i % 2 ? 1 : -1);
		most = fmax(most, fabs(f(x, i / 2 ? *s + *d : *s - *d) - v));
	}
	w->hooks->nudge(0);
	*d = most + 8 * E * (fabs(*s) + fabs(v));
	*s = v;
}

/* Applies head_slope() to *s, whose error is *d. */
static void add_slope(const struct work *w, const struct attn_x *x, double *s, double *d)
{
	double slope, v;

	if (!w->hooks->head_slope)
		return;
	slope = w->hooks->head_slope(x);
	v = *s + slope * x->distance;
	*d += 16 * F * fabs(slope) + 8 * E * (fabs(*s) + fabs(v));
	*s = v;
}

/* Applies logit_cap(). */
static void limit(const struct work *w, const struct attn_x *x, double *s, double *d)
{
	double cap, v;

	if (!w->hooks->logit_cap)
		return;
	cap = w->hooks->logit_cap(x);
	v = cap * tanh(*s / cap);
	*d = fmax(fabs(cap * tanh((*s - *d) / cap) - v), fabs(cap * tanh((*s + *d) / cap) - v)) + F * cap +
	     8 * E * (fabs(*s) + fabs(v));
	*s = v;
}

/* Sets s, d and key of the logits that the query sees, and returns their number. */
static CAIRN_WIDE int logits(const struct work *w, struct attn_x *x, const float *q, const float *q_slack)
{
	const struct cairn_attn_variant_args *a = w->a;
	int lo, hi, n = 0, dim = a->head_dim;

	attn_keys_of(a, w->hooks, x, &lo, &hi);
	for (int j = lo; j < hi; j++) {
		const float *k = w->k.x + (int64_t)j * dim, *slack = w->k.slack + (int64_t)j * dim;
		double dot = 0, sum = 0, off = 0;

		x->k_pos = j;
		x->near = x->distance = j - x->q_pos;
		if (w->hooks->keep && !w->hooks->keep(x))
			continue;
		#pragma omp simd reduction(+:dot, sum, off)
		for (int c = 0; c < dim; c++) {
			dot += (double)q[c] * k[c];
			sum += fabs((double)q[c] * k[c]);
			off += fabs((double)q[c]) * slack[c] + q_slack[c] * (fabs((double)k[c]) + slack[c]);
		}
		w->s[n] = a->sm_scale * dot;
		w->d[n] = a->sm_scale * ((dim + 4) * E * sum + off);
		add_slope(w, x, &w->s[n], &w->d[n]);
		bend(w, w->hooks->logit, x, &w->s[n], &w->d[n]);
		limit(w, x, &w->s[n], &w->d[n]);
		bend(w, w->hooks->weight, x, &w->s[n], &w->d[n]);
		w->key[n++] = j;
	}
	x->k_pos = 0;
	x->near = x->distance = 0;
	if (w->hooks->sink && w->hooks->sink(x) > -INFINITY) {
		w->s[n] = w->hooks->sink(x);
		w->d[n] = 4 * E * fabs(w->s[n]);
		w->key[n++] = -1;
	}
	return n;
}

/* Adds p times the value of a key to o, and the error `off` of p to the bound. */
static void add_value(struct work *w, int b, int g, int key, double p, double off)
{
	const struct cairn_attn_variant_args *a = w->a;
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	int64_t at = ((int64_t)a->kv_indptr[b] + key) * cairn_attn_dense_v_stride(&dense) +
		     g * cairn_attn_dense_v_head_stride(&dense);
	float v[DIM];

	if (key < 0)
		return;
	cairn_load_row(v, a->v, a->dtype, at, a->head_dim);
	for (int c = 0; c < a->head_dim; c++) {
		w->o[c] += p * v[c];
		w->bound[c] += off * fabs((double)v[c]);
	}
}

/* Sets o, lse and their bounds by the softmax of n logits; attn_exact.c explains the bounds. */
static void soften(struct work *w, int b, int g, int n)
{
	double u = cairn_dtype_roundoff(w->a->dtype), tiny = fmax(cairn_dtype_tiny(w->a->dtype), 0x1p-126);
	double l = 0, den = 0, up_sum = 0, e_sum = 0, depth = (1.5 * n + 32) * E, e_max, d_top, max;
	int top = 0, sink = w->key[n - 1] < 0;

	for (int j = 0; j < n; j++)
		if (w->s[j] > w->s[top])
			top = j;
	max = w->s[top];
	for (int j = 0; sink && j < n; j++)
		w->d[j] += 4 * E * (fabs(max) + 1);
	e_max = d_top = w->d[top];
	for (int j = 0; j < n; j++) {
		l += exp(w->s[j] - max);
		e_max = fmax(e_max, w->s[j] - max + w->d[j]);
	}
	w->lse = max + log(l);
	for (int j = 0; j < n; j++) {
		e_sum += exp(w->s[j] - max + w->d[j] - e_max);
		if (d_top > 0.5)
			w->d[j] = j == top ? 0 : w->d[j] + d_top;
		w->d[j] += 2 * E * (max - w->s[j]) + 2 * E;
		den += exp(w->s[j] - max - w->d[j]) / l;
	}
	for (int j = 0; j < n; j++) {
		double p = exp(w->s[j] - max) / l;
		double up = (exp(fmin(w->s[j] - max + w->d[j], 700)) / l - p) / den;

		up_sum += up;
		add_value(w, b, g, w->key[j], p, up + p * (u + depth) + tiny / l);
	}
	for (int c = 0; c < w->a->head_dim; c++)
		w->bound[c] += (up_sum + depth) * fabs(w->o[c]);
	w->lse_bound = log(e_sum / l) + e_max + depth + E * (fabs(max) + fabs(w->lse));
}

/* The same without a softmax: s holds the weights. */
static void weigh(struct work *w, int b, int g, int n)
{
	double u = cairn_dtype_roundoff(w->a->dtype), tiny = fmax(cairn_dtype_tiny(w->a->dtype), 0x1p-126);
	double depth = (1.5 * n + 32) * E;

	for (int j = 0; j < n; j++)
		add_value(w, b, g, w->key[j], w->s[j], w->d[j] + (u + depth) * fabs(w->s[j]) + tiny);
}

/* Applies output() and adds the error of the last rounding. */
static void finish(struct work *w, const struct attn_x *x)
{
	double u = cairn_dtype_roundoff(w->a->dtype), tiny = fmax(cairn_dtype_tiny(w->a->dtype), 0x1p-126);

	for (int c = 0; c < w->a->head_dim; c++) {
		double o = w->o[c], off = w->bound[c], most = 0;

		if (w->hooks->output) {
			w->hooks->nudge(0);
			w->o[c] = w->hooks->output(x, o, c);
			for (int i = 0; i < 4; i++) {
				w->hooks->nudge(i % 2 ? 1 : -1);
				most = fmax(most, fabs(w->hooks->output(x, i / 2 ? o + off : o - off, c) -
						       w->o[c]));
			}
			w->hooks->nudge(0);
			w->bound[c] = most + 8 * E * (fabs(o) + fabs(w->o[c]));
		}
		w->bound[c] += u * fabs(w->o[c]) + tiny;
	}
}

static void attend(struct work *w, int b, int i, int h)
{
	const struct cairn_attn_variant_args *a = w->a;
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	struct attn_x x = attn_x_of(a, b, i, h);
	float q[DIM], slack[DIM];
	int n;

	load(a, a->q, x.row * cairn_attn_dense_q_stride(&dense) + (int64_t)h * a->head_dim, &x,
	     w->hooks->query, q, slack);
	for (int c = 0; c < a->head_dim; c++)
		w->o[c] = w->bound[c] = 0;
	w->lse = -INFINITY;
	w->lse_bound = 0;
	n = logits(w, &x, q, slack);
	if (n && w->hooks->weight)
		weigh(w, b, x.kv_head, n);
	else if (n)
		soften(w, b, x.kv_head, n);
	finish(w, &x);
}

/* Loads and rotates all keys of a request and KV head. */
static void load_keys(const struct work *w, int b, int g)
{
	const struct cairn_attn_variant_args *a = w->a;
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);

	#pragma omp parallel for
	for (int j = 0; j < a->kv_indptr[b + 1] - a->kv_indptr[b]; j++) {
		struct attn_x x = attn_x_of_key(a, b, j, g);
		int64_t at = ((int64_t)a->kv_indptr[b] + j) * cairn_attn_dense_k_stride(&dense) +
			     g * cairn_attn_dense_k_head_stride(&dense);

		load(a, a->k, at, &x, w->hooks->key, w->k.x + (int64_t)j * a->head_dim,
		     w->k.slack + (int64_t)j * a->head_dim);
	}
}

/*
 * Writes the results of row `at`, counted over all heads, to out and lse or to exact. skip: the row is not
 * computed.
 */
static void store(const struct work *w, int64_t at, int skip, struct cairn_exact *exact)
{
	const struct cairn_attn_variant_args *a = w->a;

	for (int c = 0; c < a->head_dim; c++) {
		if (!exact) {
			cairn_store(a->out, a->dtype, at * a->head_dim + c, w->o[c]);
			continue;
		}
		exact[0].val[at * a->head_dim + c] = skip ? 0 : w->o[c];
		exact[0].bound[at * a->head_dim + c] = skip ? INFINITY : w->bound[c];
	}
	if (a->lse && !exact) {
		a->lse[at] = (float)w->lse;
	} else if (a->lse) {
		exact[1].val[at] = skip ? 0 : w->lse;
		exact[1].bound[at] = skip ? INFINITY : w->lse_bound;
	}
}

/*
 * Returns 0 to compute all rows of all heads, or n to compute one of them in n, and the first and the last
 * row of each request for one head.
 */
static uint32_t sample_step(const struct cairn_attn_variant_args *a)
{
	double products = 0;

	for (int b = 0; b < a->batch; b++)
		products += (double)(a->qo_indptr[b + 1] - a->qo_indptr[b]) *
			    (a->kv_indptr[b + 1] - a->kv_indptr[b]) * a->num_qo_heads * a->head_dim;
	return attn_exact_step(products);
}

static int left_out(const struct cairn_attn_variant_args *a, int b, int i, int h, uint32_t step)
{
	int last = a->qo_indptr[b + 1] - a->qo_indptr[b] - 1;

	if (!step || ((i == 0 || i == last) && h == (b + i) % a->num_qo_heads))
		return 0;
	return ((uint32_t)((a->qo_indptr[b] + i) * a->num_qo_heads + h) * 2654435761u >> 8) % step != 0;
}

/* Computes all rows of the query heads of KV head g of request b. Returns whether an allocation failed. */
static int attend_all(const struct work *shared, int b, int g, uint32_t step, struct cairn_exact *exact)
{
	const struct cairn_attn_variant_args *a = shared->a;
	int group = a->num_qo_heads / a->num_kv_heads, rows = (a->qo_indptr[b + 1] - a->qo_indptr[b]) * group;
	size_t n = (size_t)(a->kv_indptr[b + 1] - a->kv_indptr[b]) + 1;
	int no_memory = 0;

	#pragma omp parallel reduction(|:no_memory)
	{
		struct work w = *shared;

		w.s = malloc(n * sizeof(*w.s));
		w.d = malloc(n * sizeof(*w.d));
		w.key = malloc(n * sizeof(*w.key));
		no_memory |= !w.s || !w.d || !w.key;
		#pragma omp for schedule(dynamic)
		for (int k = 0; k < rows; k++) {
			int i = k / group, h = g * group + k % group;
			int skip = exact && left_out(a, b, i, h, step);

			if (w.s && w.d && w.key && !skip)
				attend(&w, b, i, h);
			store(&w, ((int64_t)a->qo_indptr[b] + i) * a->num_qo_heads + h, skip, exact);
		}
		free(w.s);
		free(w.d);
		free(w.key);
	}
	return no_memory;
}

static int run(const struct cairn_attn_variant_args *a, struct cairn_exact *exact)
{
	uint32_t step = exact ? sample_step(a) : 0;
	struct work w = { .a = a };
	const void *hooks;
	size_t most = 1;
	int no_memory;

	CAIRN_TRY(attn_variant_hooks(a->variant, 1, &hooks));
	w.hooks = hooks;
	for (int b = 0; b < a->batch; b++) {
		size_t n = (size_t)(a->kv_indptr[b + 1] - a->kv_indptr[b]);

		most = n > most ? n : most;
	}
	w.k.x = malloc(most * (size_t)a->head_dim * sizeof(float));
	w.k.slack = malloc(most * (size_t)a->head_dim * sizeof(float));
	no_memory = !w.k.x || !w.k.slack;
	for (int b = 0; b < a->batch && !no_memory; b++)
		for (int g = 0; g < a->num_kv_heads && !no_memory; g++) {
			load_keys(&w, b, g);
			no_memory = attend_all(&w, b, g, step, exact);
		}
	free(w.k.x);
	free(w.k.slack);
	return no_memory ? cairn_error(ENOMEM, "attn_variant: no memory for %zu keys", most) : 0;
}

int cairn_attn_variant_ref(const struct cairn_attn_variant_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_variant_check(a));
	return run(a, NULL);
}

int cairn_attn_variant_exact(const struct cairn_attn_variant_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_attn_variant_check(a));
	return run(a, exact);
}
