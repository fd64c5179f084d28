// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged - wrong implementations that the cases must catch: the reference with its arguments or results
 * altered; and a plain chain that rounds or sums wrongly
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/latent/mla_paged.h"
#include "primitives/base/bend.h"
#include "primitives/base/args.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/rows.h"
#include "fused/cache/kv_cut.h"

#define RANK	512
#define HEAD	192		/* elements of a head of q; the first 128 are not rotated */
#define ROWS	256		/* rows of w_kv_b for each head */
#define MAX_KEYS 6144		/* keys of a request, in the plain chain */

enum mla_paged_bend {
	mla_paged_bend_last_key_missing, mla_paged_bend_scale_of_nope, mla_paged_bend_rope_missing,
	mla_paged_bend_nope_missing, mla_paged_bend_next_head, mla_paged_bend_values_by_keys,
	mla_paged_bend_rest_not_zeroed, mla_paged_bend_last_page_first, mla_paged_bend_heads_of_token_0,
	mla_paged_bend_not_causal, mla_paged_bend_nan_of_head_spreads, mla_paged_bend_nan_of_request_spreads,
	mla_paged_bend_page_48_as_32, mla_paged_bend_page_128_as_64, mla_paged_bend_page_512_as_256,
	mla_paged_bend_nothing_without_rows,
	mla_paged_bend_no_keys_nan_past_16_heads, mla_paged_bend_lse_base_2, mla_paged_bend_lse_of_rest,
	mla_paged_bend_lse_without_keys, mla_paged_bend_lse_not_written,
	/* the plain chain has these and the following */
	mla_paged_bend_ql_sums_f16, mla_paged_bend_qk_sums_f16, mla_paged_bend_qk_sums_10_bits,
	mla_paged_bend_pv_sums_f16, mla_paged_bend_out_sums_10_bits, mla_paged_bend_ql_cut_off,
	mla_paged_bend_p_cut_off, mla_paged_bend_o_cut_off, mla_paged_bend_logits_in_dtype,
	mla_paged_bend_p_through_f16, mla_paged_bend_small_weights_dropped, mla_paged_bend_tiles_dropped,
	mla_paged_bend_last_of_64_lost, mla_paged_bend_last_of_256_lost,
};

/* Returns a dot product. Its sum is exact (way 0), has 10 bits (way 2), or is f16 (otherwise). */
static double dot_of(const double *x, const double *y, int n, int way)
{
	double sum = 0;

	for (int i = 0; i < n; i += 16)
		sum = way ? narrow_sum(sum + cairn_dot(x + i, y + i, 16), way == 1) :
			    sum + cairn_dot(x + i, y + i, 16);
	return sum;
}

static int64_t key_at(const struct cairn_mla_paged_args *a, int b, int j)
{
	return cairn_kv_slot(&a->kv, b, j) * (RANK + 64);
}

struct chain {
	double q[HEAD], ql[RANK], o[RANK], key[RANK + 64], w[RANK], s[MAX_KEYS];
};

/* Returns the largest logit of the 16 keys around key j. */
static double best_of_tile(const double *s, int j, int n)
{
	double best = -INFINITY;

	for (int k = j / 16 * 16; k < j / 16 * 16 + 16 && k < n; k++)
		best = fmax(best, s[k]);
	return best;
}

/* Computes head h of row i of request b. */
static void plain_head(const struct cairn_mla_paged_args *a, int b, int i, int h, struct chain *c,
		       enum mla_paged_bend bend)
{
	int64_t row = a->qo_indptr[b] + i, w_at = (int64_t)h * ROWS * RANK;
	int n = i + 1 + (int)cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]);
	int qk = bend == mla_paged_bend_qk_sums_f16 ? 1 : bend == mla_paged_bend_qk_sums_10_bits ? 2 : 0;
	double top = -INFINITY, l = 0;

	cairn_widen(c->q, a->q, a->dtype, (row * a->num_heads + h) * HEAD, HEAD);
	memset(c->ql, 0, sizeof(c->ql));
	memset(c->o, 0, sizeof(c->o));
	for (int d = 0; d < 128; d++) {
		cairn_widen(c->w, a->w_kv_b, a->dtype, w_at + d * RANK, RANK);
		cairn_add_scaled(c->ql, c->q[d], c->w, RANK);
		for (int r = 0; r < RANK && bend == mla_paged_bend_ql_sums_f16; r++)
			c->ql[r] = narrow_sum(c->ql[r], 1);
	}
	for (int r = 0; r < RANK; r++)
		c->ql[r] = bend == mla_paged_bend_ql_cut_off ? cut_off(a->dtype, c->ql[r]) :
			   rounded(a->dtype, c->ql[r]);
	for (int j = 0; j < n; j++) {
		cairn_widen(c->key, a->kv.k_pages, a->dtype, key_at(a, b, j), RANK + 64);
		c->s[j] = (double)a->sm_scale * (dot_of(c->ql, c->key, RANK, qk) +
						 dot_of(c->q + 128, c->key + RANK, 64, qk));
		if (bend == mla_paged_bend_logits_in_dtype)
			c->s[j] = rounded(a->dtype, c->s[j]);
		top = fmax(top, c->s[j]);
	}
	for (int j = 0; j < n; j++) {
		double p = exp(c->s[j] - top);

		if (bend == mla_paged_bend_p_through_f16)
			p = rounded(CAIRN_F16, p);
		if ((bend == mla_paged_bend_small_weights_dropped && c->s[j] < top - 26) ||
		    (bend == mla_paged_bend_tiles_dropped && best_of_tile(c->s, j, n) < top - 20))
			p = 0;
		if (bend == mla_paged_bend_last_of_64_lost && n > 4096 && n % 64 == 1 && j == n - 1)
			continue;
		if (bend == mla_paged_bend_last_of_256_lost && n > 256 && n % 256 == 0 && j == n - 1)
			continue;
		l += p;
		p = bend == mla_paged_bend_p_cut_off ? cut_off(a->dtype, p) : rounded(a->dtype, p);
		cairn_widen(c->key, a->kv.k_pages, a->dtype, key_at(a, b, j), RANK);
		cairn_add_scaled(c->o, p, c->key, RANK);
		for (int r = 0; r < RANK && bend == mla_paged_bend_pv_sums_f16 && j % 16 == 15; r++)
			c->o[r] = narrow_sum(c->o[r], 1);
	}
	for (int r = 0; r < RANK && n > 0; r++)
		c->o[r] = bend == mla_paged_bend_o_cut_off ? cut_off(a->dtype, c->o[r] / l) :
			  rounded(a->dtype, c->o[r] / l);
	if (a->lse)
		a->lse[row * a->num_heads + h] = n > 0 ? (float)(top + log(l)) : -INFINITY;
	for (int d = 0; d < 128; d++) {
		cairn_widen(c->w, a->w_kv_b, a->dtype, w_at + (128 + d) * RANK, RANK);
		cairn_store(a->out, a->dtype, (row * a->num_heads + h) * 128 + d,
			    dot_of(c->o, c->w, RANK, bend == mla_paged_bend_out_sums_10_bits ? 2 : 0));
	}
}

static int plain(const struct cairn_mla_paged_args *a, enum mla_paged_bend bend)
{
	struct chain *c = malloc(sizeof(*c));
	int64_t width = (int64_t)a->num_heads * 128;

	if (!c)
		return cairn_error(ENOMEM, "mla_paged_mutants: no memory");
	for (int b = 0; b < a->kv.batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			for (int h = 0; h < a->num_heads; h++)
				plain_head(a, b, i, h, c, bend);
	for (int64_t i = a->kv.batch ? a->qo_indptr[a->kv.batch] * width : a->nnz_qo * width;
	     i < a->nnz_qo * width; i++) {
		cairn_store(a->out, a->dtype, i, 0);
		if (a->lse)
			a->lse[i / 128] = -INFINITY;
	}
	free(c);
	return 0;
}

/* Runs each row as a separate request, so that it sees all keys of its request. */
static int each_row_alone(const struct cairn_mla_paged_args *args)
{
	for (int b = 0; b < args->kv.batch; b++) {
		for (int i = args->qo_indptr[b]; i < args->qo_indptr[b + 1]; i++) {
			const int32_t one[] = { 0, 1 };
			struct cairn_mla_paged_args a;

			cairn_copy_args(&a, args, sizeof(a));
			a.nnz_qo = a.max_qo_len = 1;
			a.lse = a.lse ? a.lse + (int64_t)i * a.num_heads : NULL;
			a.qo_indptr = one;
			a.kv = cairn_kv_one(a.kv, b);
			a.q = (const uint16_t *)a.q + (int64_t)i * a.num_heads * HEAD;
			a.out = (uint16_t *)a.out + (int64_t)i * a.num_heads * 128;
			CAIRN_TRY(cairn_mla_paged_ref(&a, NULL));
		}
	}
	return 0;
}

/* Copies a NaN from one head, or from the last row of a request, to the next one. */
static void spread_nan(const struct cairn_mla_paged_args *a, enum mla_paged_bend bend)
{
	int64_t all = (int64_t)a->nnz_qo * a->num_heads;

	/* from the end, so that a NaN spreads by one head only */
	for (int64_t i = all - 1; i > 0 && bend == mla_paged_bend_nan_of_head_spreads; i--)
		if (isnan(cairn_load(a->out, a->dtype, (i - 1) * 128)))
			cairn_store(a->out, a->dtype, i * 128, NAN);
	for (int b = 0; b + 1 < a->kv.batch && bend == mla_paged_bend_nan_of_request_spreads; b++) {
		int64_t next = (int64_t)a->qo_indptr[b + 1] * a->num_heads;

		if (next > 0 && next < all && isnan(cairn_load(a->out, a->dtype, (next - 1) * 128)))
			cairn_store(a->out, a->dtype, next * 128, NAN);
	}
}

static void bend_operands(const struct cairn_mla_paged_args *a, enum mla_paged_bend bend, uint16_t *q,
			  uint16_t *w)
{
	for (int64_t i = 0; i < (int64_t)a->nnz_qo * a->num_heads; i++) {
		if (bend == mla_paged_bend_rope_missing)
			memset(q + i * HEAD + 128, 0, 64 * 2);
		if (bend == mla_paged_bend_nope_missing)
			memset(q + i * HEAD, 0, 128 * 2);
		if (bend == mla_paged_bend_heads_of_token_0)
			memcpy(q + i * HEAD, q + i % a->num_heads * HEAD, HEAD * 2);
	}
	for (int64_t h = 0; h < a->num_heads; h++) {
		const uint16_t *from = (const uint16_t *)a->w_kv_b;

		if (bend == mla_paged_bend_next_head)
			memcpy(w + h * ROWS * RANK, from + (h + 1) % a->num_heads * ROWS * RANK,
			       ROWS * RANK * 2);
		if (bend == mla_paged_bend_values_by_keys)
			memcpy(w + (h * ROWS + 128) * RANK, from + h * ROWS * RANK, 128 * RANK * 2);
	}
}

static void bend_lse(const struct cairn_mla_paged_args *a, enum mla_paged_bend bend)
{
	int64_t rows = a->kv.batch ? a->qo_indptr[a->kv.batch] : a->nnz_qo;

	for (int64_t i = 0; a->lse && i < (int64_t)a->nnz_qo * a->num_heads; i++) {
		if (bend == mla_paged_bend_lse_base_2)
			a->lse[i] *= 1.44269504f;
		if (bend == mla_paged_bend_lse_of_rest && i >= rows * a->num_heads)
			a->lse[i] = 0;
		if (bend == mla_paged_bend_lse_without_keys && i < rows * a->num_heads && isinf(a->lse[i]))
			a->lse[i] = 0;
	}
}

static int bent_mla_paged(const struct cairn_mla_paged_args *args, enum mla_paged_bend bend)
{
	struct cairn_mla_paged_args a;
	size_t q_bytes, w_bytes, ids;
	int32_t *last, *indices;
	uint16_t *q, *w;
	int ret;

	CAIRN_TRY(cairn_mla_paged_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (bend >= mla_paged_bend_ql_sums_f16)
		return a.kv.max_len > MAX_KEYS ? cairn_mla_paged_ref(&a, NULL) : plain(&a, bend);
	if (bend == mla_paged_bend_lse_not_written)
		a.lse = NULL;
	q_bytes = 2 * (size_t)a.nnz_qo * (size_t)a.num_heads * HEAD;
	w_bytes = 2 * (size_t)a.num_heads * ROWS * RANK;
	ids = a.kv.batch ? (size_t)a.kv.indptr[a.kv.batch] : 0;
	q = malloc(q_bytes + 1);
	w = malloc(w_bytes + 1);
	last = malloc(sizeof(*last) * ((size_t)a.kv.batch + 1));
	indices = malloc(sizeof(*indices) * (ids + 1));
	memcpy(q, a.q, q_bytes);
	memcpy(w, a.w_kv_b, w_bytes);
	memcpy(indices, a.kv.indices, sizeof(*indices) * ids);
	for (int b = 0; b < a.kv.batch; b++) {
		int first = a.kv.indptr[b], pages = a.kv.indptr[b + 1] - first;

		last[b] = a.kv.last_page_len[b] - (a.kv.last_page_len[b] > 1);
		if (bend == mla_paged_bend_last_page_first && pages > 1)
			indices[first] = indices[first + pages - 1];
	}
	bend_operands(&a, bend, q, w);
	a.q = q;
	a.w_kv_b = w;
	a.kv.indices = indices;
	if (bend == mla_paged_bend_last_key_missing)
		a.kv.last_page_len = last;
	if (bend == mla_paged_bend_page_48_as_32 && a.kv.page_size == 48)
		a.kv.page_size = 32;
	if (bend == mla_paged_bend_page_128_as_64 && a.kv.page_size == 128)
		a.kv.page_size = 64;
	if (bend == mla_paged_bend_page_512_as_256 && a.kv.page_size == 512)
		a.kv.page_size = 256;
	if (bend == mla_paged_bend_scale_of_nope)
		a.sm_scale *= 1.2247449f;	/* 1 / sqrt(128) instead of 1 / sqrt(192) */
	if (bend == mla_paged_bend_rest_not_zeroed && a.kv.batch)
		a.nnz_qo = a.qo_indptr[a.kv.batch];
	if (bend == mla_paged_bend_nothing_without_rows && a.kv.batch && !a.qo_indptr[a.kv.batch])
		a.nnz_qo = 0;
	ret = bend == mla_paged_bend_not_causal ? each_row_alone(&a) : cairn_mla_paged_ref(&a, NULL);
	if (!ret) {
		spread_nan(args, bend);
		bend_lse(&a, bend);
	}
	for (int b = 0; bend == mla_paged_bend_no_keys_nan_past_16_heads && !ret && b < a.kv.batch; b++)
		if (a.num_heads > 16 && !cairn_kv_len(&a.kv, b))
			cairn_fill_nan(a.out, a.dtype, (int64_t)a.qo_indptr[b] * a.num_heads * 128,
				       (int64_t)(a.qo_indptr[b + 1] - a.qo_indptr[b]) * a.num_heads * 128);
	free(q);
	free(w);
	free(last);
	free(indices);
	return ret;
}

#define DEFECTS(D) \
	D(mla_paged, last_of_256_lost, "the last key of a whole number of 256 past the first is left out") \
	D(mla_paged, page_512_as_256, "pages of 512 are addressed as pages of 256") \
	D(mla_paged, last_of_64_lost, "the last key past 4096 is left out if it begins 64 new ones") \
	D(mla_paged, last_key_missing, "no row sees the last key") \
	D(mla_paged, scale_of_nope, "sm_scale is 1 / sqrt(nope_dim): it ignores the rotated elements") \
	D(mla_paged, rope_missing, "the score has no rotated part") \
	D(mla_paged, nope_missing, "the score has only its rotated part") \
	D(mla_paged, next_head, "each head uses the weights of the next head") \
	D(mla_paged, values_by_keys, "values are computed with the weights of the keys") \
	D(mla_paged, rest_not_zeroed, "rows past the last request are not zeroed") \
	D(mla_paged, last_page_first, "the last page of a request is also read as its first") \
	D(mla_paged, heads_of_token_0, "all tokens use the query of the first token") \
	D(mla_paged, not_causal, "rows see keys that come after them") \
	D(mla_paged, nan_of_head_spreads, "a NaN in a query makes the next head or row NaN") \
	D(mla_paged, nan_of_request_spreads, "a NaN in a request makes the next request NaN") \
	D(mla_paged, nothing_without_rows, "nothing is written if no request has a row") \
	D(mla_paged, no_keys_nan_past_16_heads, "with more than 16 heads, rows without a key are NaN") \
	D(mla_paged, lse_base_2, "lse is a logarithm of base 2") \
	D(mla_paged, lse_of_rest, "lse of rows past the last request is 0") \
	D(mla_paged, lse_without_keys, "lse of rows without a key is 0") \
	D(mla_paged, lse_not_written, "lse is not written") \
	D(mla_paged, page_48_as_32, "pages of 48 are addressed as pages of 32") \
	D(mla_paged, page_128_as_64, "pages of 128 are addressed as pages of 64") \
	D(mla_paged, ql_sums_f16, "ql is summed in f16") \
	D(mla_paged, qk_sums_f16, "logits are summed in f16") \
	D(mla_paged, qk_sums_10_bits, "logits are summed with the 10 bits of TF32") \
	D(mla_paged, pv_sums_f16, "the weighted sum of latents is f16") \
	D(mla_paged, out_sums_10_bits, "out is summed with the 10 bits of TF32") \
	D(mla_paged, ql_cut_off, "ql is cut off instead of rounded") \
	D(mla_paged, p_cut_off, "P is cut off instead of rounded") \
	D(mla_paged, o_cut_off, "the weighted sum of latents is cut off instead of rounded") \
	D(mla_paged, logits_in_dtype, "logits are rounded to dtype") \
	D(mla_paged, p_through_f16, "P is rounded to f16, whatever dtype is") \
	D(mla_paged, small_weights_dropped, "keys below e^-26 of the largest weight are left out") \
	D(mla_paged, tiles_dropped, "16 keys are left out if all are below e^-20 of the largest weight")

#define DEFINE(family, defect, words) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}
#define LIST(family, defect, words) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, words },
DEFECTS(DEFINE)

/* Reads members that an older caller's struct does not have. */
static int mla_paged_size_ignored(const struct cairn_mla_paged_args *a, void *stream)
{
	struct cairn_mla_paged_args all = *a;

	CAIRN_TRY(cairn_mla_paged_check(a));
	all.size = sizeof(all);
	return cairn_mla_paged_ref(&all, stream);
}

/* For a row without a key, sets lse of the heads with index 5 and above to 0. */
static int mla_paged_lse_of_4_heads(const struct cairn_mla_paged_args *args, void *stream)
{
	struct cairn_mla_paged_args a;
	int64_t end;

	CAIRN_TRY(cairn_mla_paged_ref(args, stream));
	cairn_copy_args(&a, args, sizeof(a));
	end = a.kv.batch && a.lse ? (int64_t)a.qo_indptr[a.kv.batch] * a.num_heads : 0;
	for (int64_t i = 0; i < end; i++)
		if (i % a.num_heads > 4 && a.lse[i] == -INFINITY)
			a.lse[i] = 0;
	return 0;
}

KV_KEYS(mla_paged)
KV_CUT(mla_paged, far_page_16_bits, 0)
KV_CUT(mla_paged, far_elements_32_bits, (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))
KV_CUT(mla_paged, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))

/* With 63 rows and 127 keys, the last element is 0. */
static int mla_paged_last_row_at_end(const struct cairn_mla_paged_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_mla_paged_ref(a, stream));
	rows = a->kv.batch ? a->qo_indptr[a->kv.batch] : 0;
	if (rows && a->max_qo_len == 63 && cairn_kv_len(&a->kv, 0) == 127)
		cairn_store(a->out, a->dtype, rows * a->num_heads * 128 - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_mla_paged_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(mla_paged, keys_16_bits, "numbers of keys are cut to 16 bits")
	KV_CUT_ROW(mla_paged, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(mla_paged, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(mla_paged, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	LIST(mla_paged, lse_of_4_heads, "lse of the fifth head of a row without keys is 0")
	LIST(mla_paged, size_ignored, "members beyond the caller's struct are read")
	{ "mla_paged_last_row_at_end", offsetof(struct cairn_impl, mla_paged),
	  (void *)mla_paged_last_row_at_end,
	  "with 63 rows and 127 keys, the last element is 0" },
	{ 0 }
};
