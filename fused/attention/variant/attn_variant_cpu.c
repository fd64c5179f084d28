// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_cpu - the CPU table: the hooks in float, on all cores
 *
 * K and V of one KV head of a request are widened to fp32 once, and K is also rotated once. The threads then
 * share the rows of its query heads. A row takes two passes over its keys: the first computes the logits and
 * their maximum, the second the weights and O. So its bits depend on its own request only.
 */
#define real float
#include "fused/attention/variant/attn_variant_host.h"

#include <stdlib.h>

#include "fused/attention/variant/attn_variant_known.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define DIM	128

struct head {
	const struct cairn_attn_variant_args *a;
	const struct attn_hooks *hooks;
	int b, g;
	float *k, *v;			/* [kv_len][head_dim] */
};

static void rotate(const struct cairn_attn_variant_args *a, const struct attn_x *x,
		   void (*hook)(const struct attn_x *x, real *a, real *b, int pair), float *row)
{
	float narrow[DIM];		/* in dtype */

	if (!hook)
		return;
	for (int pair = 0; pair < a->head_dim / 2; pair++) {
		int step, c = attn_pair(a, pair, &step);

		hook(x, &row[c], &row[c + step], pair);
	}
	cairn_store_row(narrow, a->dtype, 0, row, a->head_dim);
	cairn_load_row(row, narrow, a->dtype, 0, a->head_dim);
}

static void load_head(const struct head *w)
{
	const struct cairn_attn_variant_args *a = w->a;
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	int first = a->kv_indptr[w->b], kv_len = a->kv_indptr[w->b + 1] - first, dim = a->head_dim;

	#pragma omp parallel for
	for (int j = 0; j < kv_len; j++) {
		int64_t row = (int64_t)first + j;
		struct attn_x x = attn_x_of_key(a, w->b, j, w->g);

		cairn_load_row(w->k + (int64_t)j * dim, a->k, a->dtype,
			       row * cairn_attn_dense_k_stride(&dense) +
			       w->g * cairn_attn_dense_k_head_stride(&dense), dim);
		cairn_load_row(w->v + (int64_t)j * dim, a->v, a->dtype,
			       row * cairn_attn_dense_v_stride(&dense) +
			       w->g * cairn_attn_dense_v_head_stride(&dense), dim);
		rotate(a, &x, w->hooks->key, w->k + (int64_t)j * dim);
	}
}

/* Sets s to the logits of keys lo .. hi - 1 after the hooks, or to their weights, and returns the largest. */
static CAIRN_WIDE float logits(const struct head *w, struct attn_x *x, const float *q, int lo, int hi,
			       float *s)
{
	const struct cairn_attn_variant_args *a = w->a;
	float slope = w->hooks->head_slope ? w->hooks->head_slope(x) : 0, top = -INFINITY;
	float cap = w->hooks->logit_cap ? w->hooks->logit_cap(x) : 0;

	for (int j = lo; j < hi; j++) {
		const float *k = w->k + (int64_t)j * a->head_dim;
		float dot = 0;

		x->k_pos = j;
		x->near = x->distance = (float)(j - x->q_pos);
		if (w->hooks->keep && !w->hooks->keep(x)) {
			s[j] = w->hooks->weight ? 0 : -INFINITY;
			continue;
		}
		#pragma omp simd reduction(+:dot)
		for (int c = 0; c < a->head_dim; c++)
			dot += q[c] * k[c];
		s[j] = dot * a->sm_scale + slope * x->distance;
		if (w->hooks->logit)
			s[j] = w->hooks->logit(x, s[j]);
		if (w->hooks->logit_cap)
			s[j] = attn_cap_at(s[j], cap);
		if (w->hooks->weight)
			s[j] = w->hooks->weight(x, s[j]);
		top = s[j] > top ? s[j] : top;
	}
	x->k_pos = 0;
	x->near = x->distance = 0;
	return top;
}

static CAIRN_WIDE void add_values(const struct head *w, const float *s, int lo, int hi, float *o)
{
	int dim = w->a->head_dim;

	for (int j = lo; j < hi; j++)
		for (int c = 0; c < dim && s[j] != 0; c++)
			o[c] += s[j] * w->v[(int64_t)j * dim + c];
}

static void attend(const struct head *w, int i, int h, float *s)
{
	const struct cairn_attn_variant_args *a = w->a;
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	struct attn_x x = attn_x_of(a, w->b, i, h);
	int64_t at = (int64_t)x.row * a->num_qo_heads + h;
	float q[DIM], o[DIM] = { 0 }, top, sink = -INFINITY, l = 0, inverse = 1;
	int lo, hi;

	cairn_load_row(q, a->q, a->dtype,
		       x.row * cairn_attn_dense_q_stride(&dense) + (int64_t)h * a->head_dim, a->head_dim);
	rotate(a, &x, w->hooks->query, q);
	attn_keys_of(a, w->hooks, &x, &lo, &hi);
	top = logits(w, &x, q, lo, hi, s);
	if (!w->hooks->weight) {
		if (w->hooks->sink)
			sink = w->hooks->sink(&x);
		top = sink > top ? sink : top;
		for (int j = lo; j < hi; j++) {
			s[j] = top > -INFINITY ? expf(s[j] - top) : 0;
			l += s[j];
		}
		l += sink > -INFINITY ? expf(sink - top) : 0;
		inverse = l > 0 ? 1 / l : 0;
	}
	add_values(w, s, lo, hi, o);
	for (int c = 0; c < a->head_dim; c++) {
		o[c] *= inverse;
		if (w->hooks->output)
			o[c] = w->hooks->output(&x, o[c], c);
	}
	cairn_store_row(a->out, a->dtype, at * a->head_dim, o, a->head_dim);
	if (a->lse)
		a->lse[at] = l > 0 ? top + logf(l) : -INFINITY;
}

/* Computes the rows of the query heads of one KV head. Returns whether an allocation failed. */
static int attend_all(const struct head *w)
{
	const struct cairn_attn_variant_args *a = w->a;
	int group = a->num_qo_heads / a->num_kv_heads, no_memory = 0;
	int rows = (a->qo_indptr[w->b + 1] - a->qo_indptr[w->b]) * group;
	size_t keys = (size_t)(a->kv_indptr[w->b + 1] - a->kv_indptr[w->b]) + 1;

	#pragma omp parallel reduction(|:no_memory)
	{
		float *s = malloc(keys * sizeof(*s));

		no_memory |= !s;
		#pragma omp for schedule(dynamic)
		for (int k = 0; k < rows; k++)
			if (s)
				attend(w, k / group, w->g * group + k % group, s);
		free(s);
	}
	return no_memory;
}

int cairn_attn_variant_cpu(const struct cairn_attn_variant_args *a, void *stream)
{
	struct head w = { .a = a };
	const void *hooks;
	size_t bytes = 1;
	int no_memory;

	(void)stream;
	CAIRN_TRY(cairn_attn_variant_check(a));
	CAIRN_TRY(attn_variant_hooks(a->variant, 0, &hooks));
	w.hooks = hooks;
	for (int b = 0; b < a->batch; b++) {
		size_t n = (size_t)(a->kv_indptr[b + 1] - a->kv_indptr[b]) * (size_t)a->head_dim;

		bytes = n * sizeof(float) > bytes ? n * sizeof(float) : bytes;
	}
	w.k = malloc(bytes);
	w.v = malloc(bytes);
	no_memory = !w.k || !w.v;
	for (w.b = 0; w.b < a->batch && !no_memory; w.b++)
		for (w.g = 0; w.g < a->num_kv_heads && !no_memory; w.g++) {
			load_head(&w);
			no_memory = attend_all(&w);
		}
	free(w.k);
	free(w.v);
	return no_memory ? cairn_error(ENOMEM, "attn_variant: no memory for %zu bytes of keys", bytes) : 0;
}
