// SPDX-License-Identifier: Apache-2.0
/*
 * attn_batch_exact - the reference of a batch: attn_exact.c for each row of each head
 *
 * Above 2^30 products in q.k the reference computes the first and last row of each request and a fixed
 * pseudo-random sample of the others, each for all heads. The remaining rows have an infinite bound: their
 * results need only be finite. Rows that see no key are always checked exactly.
 */
#include "fused/attention/base/attn_batch.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int keys_seen(const struct attn_batch *a, int b, int i)
{
	int kv_len = a->num_keys(a->args, b);
	int n = a->causal ? i + 1 + kv_len - (a->qo_indptr[b + 1] - a->qo_indptr[b]) : kv_len;

	return n > 0 ? n : 0;
}

/* Returns the first key in the window of row i. */
static int first_seen(const struct attn_batch *a, int b, int i)
{
	int position = i + a->num_keys(a->args, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]);

	return a->window && position >= a->window ? position - a->window + 1 : 0;
}

static void list_keys(const struct attn_batch *a, int b, int g, struct attn_key *keys)
{
	for (int j = 0; a->key && j < a->num_keys(a->args, b); j++) {
		keys[j] = a->key(a->args, b, j, g);
		keys[j].k_scale = a->k_scale ? a->k_scale[g] : 1;
		keys[j].v_scale = a->v_scale ? a->v_scale[g] : 1;
	}
}

/* Computes row i of request b, head h; r->keys lists the keys of its KV head. */
static void attend(const struct attn_batch *a, int b, int i, int h, struct attn_exact_row *r)
{
	int64_t at = (a->qo_indptr[b] + i) * a->q_stride + (int64_t)h * a->qk_dim;
	int n = keys_seen(a, b, i), first = first_seen(a, b, i);
	const struct attn_numerics numerics = {
		.dtype = a->dtype, .kv_fp8 = a->kv_fp8, .qk_dim = a->qk_dim, .v_dim = a->v_dim,
		.sm_scale = a->sm_scale, .softcap = a->softcap, .merges = a->merges,
	};

	if (a->exact_row) {
		a->exact_row(a->args, b, i, h, n, r);
		return;
	}
	attn_exact_row(&numerics, (const char *)a->q + at * (int64_t)cairn_dtype_bytes(a->dtype),
		       r->keys + (n ? first : 0), n ? n - first : 0, r);
}

/*
 * Returns 0 to compute all rows of all heads, or n to compute one of them in n, and the first and the last
 * row of each request for one head.
 */
static uint32_t sample_step(const struct attn_batch *a)
{
	double products = 0;

	for (int b = 0; b < a->batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			products += (double)(keys_seen(a, b, i) - first_seen(a, b, i)) *
				    a->num_qo_heads * a->qk_dim;
	if (a->head_step > 1)
		products /= a->head_step;
	return attn_exact_step(products);
}

static int left_out(const struct attn_batch *a, int b, int i, int h, uint32_t step)
{
	int last = a->qo_indptr[b + 1] - a->qo_indptr[b] - 1;

	if (!step || ((i == 0 || i == last) && h == (b + i) % a->num_qo_heads))
		return 0;
	return ((uint32_t)((a->qo_indptr[b] + i) * a->num_qo_heads + h) * 2654435761u >> 8) % step != 0;
}

int attn_batch_has_head(const struct attn_batch *a, int kv_head)
{
	return a->head_step <= 1 || kv_head % a->head_step == 0 || kv_head == a->num_kv_heads - 1;
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
	for (int64_t c = 0; seen && a->q && c < dim; c++)
		query |= !isfinite(cairn_load(a->q, a->dtype, row * a->q_stride + h * dim + c));
	return query ? 1 : 2 * seen;
}

/* Marks results that depend on a NaN or an infinity as undefined ("Not numbers" in the header). */
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
	int max_kv = 1, no_memory = 0, group = a->num_qo_heads / a->num_kv_heads;

	for (int b = 0; b < a->batch; b++)
		max_kv = a->num_keys(a->args, b) > max_kv ? a->num_keys(a->args, b) : max_kv;
	#pragma omp parallel reduction(|:no_memory)
	{
		struct attn_exact_row *r = attn_exact_row_new(max_kv);

		int at_b = -1, at_g = -1;	/* the request and KV head whose keys r->keys lists */

		no_memory |= !r;
		for (int b = 0; b < a->batch; b++) {
			int rows = (a->qo_indptr[b + 1] - a->qo_indptr[b]) * a->num_qo_heads;

			#pragma omp for schedule(dynamic) nowait
			for (int k = 0; k < rows; k++) {
				int len = rows / a->num_kv_heads, g = k / len, i = k % len / group;
				int h = g * group + k % len % group;
				int64_t at = ((int64_t)a->qo_indptr[b] + i) * a->num_qo_heads + h;
				int skip = exact && keys_seen(a, b, i) &&
					   (left_out(a, b, i, h, step) || !attn_batch_has_head(a, g));

				if (!r || (exact && !cairn_is_wanted(exact, at * a->v_dim, a->v_dim)))
					continue;
				if (!skip && (at_b != b || at_g != g))
					list_keys(a, b, g, r->keys);
				if (!skip) {
					at_b = b;
					at_g = g;
					attend(a, b, i, h, r);
				}
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
