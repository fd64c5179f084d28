// SPDX-License-Identifier: Apache-2.0
/*
 * mla_prefill - wrong implementations that the cases must catch: the reference with its arguments or results
 * altered; and a plain chain, chunk by chunk, that rounds, sums, masks or merges wrongly
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/cache/kv_cut.h"
#include "fused/latent/prefill/mla_prefill.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/rows.h"
#include "primitives/base/row_factor.h"

#define RANK	512
#define HEAD	192		/* elements of a head of q; the first 128 are not rotated */
#define ROWS	256		/* rows of w_kv_b for each head */
#define MAX_KEYS 4096		/* keys of a request, in the plain chain */

enum mla_prefill_bend {
	mla_prefill_bend_last_key_missing, mla_prefill_bend_scale_of_nope, mla_prefill_bend_rope_missing,
	mla_prefill_bend_nope_missing, mla_prefill_bend_next_head, mla_prefill_bend_values_by_keys,
	mla_prefill_bend_rest_not_zeroed, mla_prefill_bend_last_page_first,
	mla_prefill_bend_heads_of_token_0, mla_prefill_bend_nan_of_head_spreads,
	mla_prefill_bend_nan_of_request_spreads, mla_prefill_bend_page_48_as_32,
	mla_prefill_bend_page_128_as_64, mla_prefill_bend_nothing_without_rows,
	mla_prefill_bend_nothing_if_last, mla_prefill_bend_lse_base_2, mla_prefill_bend_lse_of_rest,
	mla_prefill_bend_no_lse_of_chunks,
	/* the plain chain has these and the following */
	mla_prefill_bend_k_cut_off, mla_prefill_bend_v_cut_off, mla_prefill_bend_k_sums_f16,
	mla_prefill_bend_v_sums_10_bits, mla_prefill_bend_qk_sums_f16, mla_prefill_bend_qk_sums_10_bits,
	mla_prefill_bend_pv_sums_f16, mla_prefill_bend_p_cut_off, mla_prefill_bend_logits_in_dtype,
	mla_prefill_bend_p_through_f16, mla_prefill_bend_small_weights_dropped,
	mla_prefill_bend_tiles_dropped, mla_prefill_bend_rope_from_nope,
	mla_prefill_bend_rope_of_key_1024_lost, mla_prefill_bend_v_of_head_0,
	mla_prefill_bend_not_causal, mla_prefill_bend_past_causal, mla_prefill_bend_new_keys_from_0,
	mla_prefill_bend_chunk_lse_lost, mla_prefill_bend_last_chunk_lost,
	mla_prefill_bend_chunk_first_key_lost, mla_prefill_bend_chunk_last_key_twice,
	mla_prefill_bend_merge_base_2, mla_prefill_bend_merge_without_max,
	mla_prefill_bend_chunk_without_key_nan, mla_prefill_bend_merged_pairwise,
};
#define BEND(name)	(bend == mla_prefill_bend_##name)

/* Returns a dot product. Its sum is exact (way 0), has 10 bits (way 2), or is f16 (otherwise). */
static double dot_of(const double *x, const double *y, int n, int way)
{
	double sum = 0;

	for (int i = 0; i < n; i += 16)
		sum = way ? narrow_sum(sum + cairn_dot(x + i, y + i, 16), way == 1) :
			    sum + cairn_dot(x + i, y + i, 16);
	return sum;
}

/* The keys of one request and head, and the results of the chunks of one row. */
struct chain {
	enum mla_prefill_bend bend;
	const struct cairn_mla_prefill_args *a;
	int64_t past_first;		/* number of past keys of earlier requests */
	int rows, num, past;
	int one;			/* whether there is one chunk */
	double w[ROWS * RANK];
	double k[MAX_KEYS][HEAD], v[MAX_KEYS][128], s[MAX_KEYS];
	double q[HEAD], o[128], sum[128], top, weight;	/* sum, top, weight: of the chunks so far */
};

static void expand_key(struct chain *c, int b, int j)
{
	const struct cairn_mla_prefill_args *a = c->a;
	enum mla_prefill_bend bend = c->bend;
	int64_t at = cairn_kv_slot(&a->kv, b, j) * (RANK + 64);
	double latent[RANK];

	cairn_widen(latent, a->kv.k_pages, a->dtype, at, RANK);
	cairn_widen(c->k[j] + 128, a->kv.k_pages, a->dtype, at + RANK, 64);
	for (int r = 0; r < ROWS; r++) {
		int way = r < 128 ? BEND(k_sums_f16) : 2 * BEND(v_sums_10_bits);
		double x = dot_of(latent, c->w + r * RANK, RANK, way);
		int cut = r < 128 ? BEND(k_cut_off) : BEND(v_cut_off);

		x = cut ? cut_off(a->dtype, x) : rounded(a->dtype, x);
		if (r < 128)
			c->k[j][r] = x;
		else
			c->v[j][r - 128] = x;
	}
	if (BEND(rope_from_nope))
		memcpy(c->k[j] + 128, c->k[j] + 64, sizeof(double) * 64);
	if (BEND(rope_of_key_1024_lost) && j == 1024)
		memset(c->k[j] + 128, 0, sizeof(double) * 64);
}

/* Returns the largest logit of the 16 keys around key j. */
static double best_of_tile(const double *s, int j, int n)
{
	double best = -INFINITY;

	for (int k = j / 16 * 16; k < j / 16 * 16 + 16 && k < n; k++)
		best = fmax(best, s[k]);
	return best;
}

/* Sets c->o to the result of keys first .. end - 1, and returns its lse. */
static double attend(struct chain *c, int first, int end)
{
	enum mla_prefill_bend bend = c->bend;
	int dtype = c->a->dtype, qk = BEND(qk_sums_f16) ? 1 : 2 * BEND(qk_sums_10_bits);
	double top = -INFINITY, l = 0;

	memset(c->o, 0, sizeof(c->o));
	for (int j = first; j < end; j++) {
		c->s[j] = (double)c->a->sm_scale * dot_of(c->q, c->k[j], HEAD, qk);
		if (BEND(logits_in_dtype))
			c->s[j] = rounded(dtype, c->s[j]);
		top = fmax(top, c->s[j]);
	}
	for (int j = first; j < end; j++) {
		double p = exp(c->s[j] - top);

		if (BEND(p_through_f16))
			p = rounded(CAIRN_F16, p);
		if ((BEND(small_weights_dropped) && c->s[j] < top - 26) ||
		    (BEND(tiles_dropped) && best_of_tile(c->s, j, end) < top - 20))
			p = 0;
		l += p;
		p = BEND(p_cut_off) ? cut_off(dtype, p) : rounded(dtype, p);
		cairn_add_scaled(c->o, p, c->v[j], 128);
		for (int d = 0; d < 128 && BEND(pv_sums_f16) && j % 16 == 15; d++)
			c->o[d] = narrow_sum(c->o[d], 1);
	}
	for (int d = 0; d < 128; d++)
		c->o[d] = l > 0 ? c->o[d] / l : BEND(chunk_without_key_nan) && !c->one ? (double)NAN : 0;
	return l > 0 ? top + log(l) : -INFINITY;
}

/* Merges the result of some keys into the result so far. */
static void add_part(struct chain *c, double lse)
{
	enum mla_prefill_bend bend = c->bend;
	double top = BEND(merge_without_max) ? 0 : fmax(c->top, lse), old, new;

	if (lse == -INFINITY && !BEND(chunk_without_key_nan))
		return;
	if (top == -INFINITY)
		top = 0;
	old = BEND(merge_base_2) ? exp2(c->top - top) : exp(c->top - top);
	new = BEND(merge_base_2) ? exp2(lse - top) : exp(lse - top);
	if (BEND(chunk_lse_lost))
		old = c->weight > 0, new = 1;
	if (BEND(merge_without_max))
		old = c->weight > 0, new = (double)expf((float)lse);
	for (int d = 0; d < 128; d++)
		c->sum[d] = old * c->sum[d] + new * rounded(c->a->dtype, c->o[d]);
	c->weight = old * c->weight + new;
	c->top = top;
	for (int d = 0; d < 128 && BEND(merged_pairwise); d++)
		c->sum[d] = rounded(CAIRN_BF16, c->sum[d]);
}

/* Computes head h of row i of request b. */
static void plain_row(struct chain *c, int b, int i, int h)
{
	enum mla_prefill_bend bend = c->bend;
	const struct cairn_mla_prefill_args *a = c->a;
	int64_t at = ((int64_t)(a->qo_indptr[b] - a->qo_indptr[0]) + i) * a->num_heads + h;
	int seen = i + 1 + c->num - c->rows, new_first = c->past, chunk = cairn_mla_prefill_chunk(a);
	double lse;

	cairn_widen(c->q, a->q, a->dtype, at * HEAD, HEAD);
	memset(c->sum, 0, sizeof(c->sum));
	c->weight = 0;
	c->top = -INFINITY;
	seen = seen < 0 ? 0 : BEND(not_causal) ? c->num : seen;
	if (BEND(new_keys_from_0) && !c->one) {
		seen -= new_first;
		new_first = 0;
	}
	lse = attend(c, c->one ? 0 : new_first, seen);
	add_part(c, lse);
	for (int64_t first = -(c->past_first % chunk); !c->one && first < c->past; first += chunk) {
		int from = first > 0 ? (int)first : 0;
		int end = first + chunk < c->past ? (int)first + chunk : c->past;

		if (BEND(last_chunk_lost) && end == c->past && first > 0)
			continue;
		if (BEND(chunk_first_key_lost) && first > 0)
			from++;
		if (BEND(chunk_last_key_twice) && first > 0)
			from--;
		if (BEND(past_causal))
			end -= c->rows - 1 - i;
		lse = attend(c, from, end);
		add_part(c, lse);
	}
	lse = c->weight > 0 ? c->top + log(c->weight) : -INFINITY;
	for (int d = 0; d < 128; d++)
		cairn_store(a->out, a->dtype, at * 128 + d,
			    c->weight > 0 ? c->sum[d] / c->weight : c->sum[d]);
	if (a->lse)
		a->lse[at] = (float)lse;
}

static int plain(const struct cairn_mla_prefill_args *a, enum mla_prefill_bend bend)
{
	struct chain *c = malloc(sizeof(*c));
	int64_t width = (int64_t)a->num_heads * 128, used = 0;

	if (!c)
		return cairn_error(ENOMEM, "mla_prefill_mutants: no memory");
	c->a = a;
	c->bend = bend;
	c->past_first = 0;
	c->one = cairn_mla_prefill_parts(a) == 1;
	for (int b = 0; b < a->kv.batch; b++) {
		c->rows = a->qo_indptr[b + 1] - a->qo_indptr[b];
		c->num = (int)cairn_kv_len(&a->kv, b);
		c->past = c->num > c->rows ? c->num - c->rows : 0;
		used += c->rows;
		for (int h = 0; h < a->num_heads && c->rows; h++) {
			cairn_widen(c->w, a->w_kv_b, a->dtype, (int64_t)h * ROWS * RANK, ROWS * RANK);
			if (BEND(v_of_head_0))
				cairn_widen(c->w + 128 * RANK, a->w_kv_b, a->dtype, 128 * RANK, 128 * RANK);
			for (int j = 0; j < c->num; j++)
				expand_key(c, b, j);
			for (int i = 0; i < c->rows; i++)
				plain_row(c, b, i, h);
		}
		c->past_first += c->past;
	}
	for (int64_t i = used * width; i < a->nnz_qo * width; i++)
		cairn_store(a->out, a->dtype, i, 0);
	for (int64_t i = used * a->num_heads; a->lse && i < (int64_t)a->nnz_qo * a->num_heads; i++)
		a->lse[i] = -INFINITY;
	free(c);
	return 0;
}

/* Copies a NaN from one head, or from the last row of a request, to the next one. */
static void spread_nan(const struct cairn_mla_prefill_args *a, enum mla_prefill_bend bend)
{
	int64_t all = (int64_t)a->nnz_qo * a->num_heads;

	/* from the end, so that a NaN spreads by one head only */
	for (int64_t i = all - 1; i > 0 && BEND(nan_of_head_spreads); i--)
		if (isnan(cairn_load(a->out, a->dtype, (i - 1) * 128)))
			cairn_store(a->out, a->dtype, i * 128, NAN);
	for (int b = 0; b + 1 < a->kv.batch && BEND(nan_of_request_spreads); b++) {
		int64_t next = (int64_t)(a->qo_indptr[b + 1] - a->qo_indptr[0]) * a->num_heads;

		if (next > 0 && next < all && isnan(cairn_load(a->out, a->dtype, (next - 1) * 128)))
			cairn_store(a->out, a->dtype, next * 128, NAN);
	}
}

static void bend_operands(const struct cairn_mla_prefill_args *a, enum mla_prefill_bend bend, uint16_t *q,
			  uint16_t *w)
{
	const uint16_t *from = a->w_kv_b;

	for (int64_t i = 0; i < (int64_t)a->nnz_qo * a->num_heads; i++) {
		if (BEND(rope_missing))
			memset(q + i * HEAD + 128, 0, 64 * 2);
		if (BEND(nope_missing))
			memset(q + i * HEAD, 0, 128 * 2);
		if (BEND(heads_of_token_0))
			memcpy(q + i * HEAD, q + i % a->num_heads * HEAD, HEAD * 2);
	}
	for (int64_t h = 0; h < a->num_heads; h++) {
		if (BEND(next_head))
			memcpy(w + h * ROWS * RANK, from + (h + 1) % a->num_heads * ROWS * RANK,
			       ROWS * RANK * 2);
		if (BEND(values_by_keys))
			memcpy(w + (h * ROWS + 128) * RANK, from + h * ROWS * RANK, 128 * RANK * 2);
	}
}

static void bend_lse(const struct cairn_mla_prefill_args *a, enum mla_prefill_bend bend)
{
	int64_t pairs = (int64_t)a->nnz_qo * a->num_heads;
	int64_t used = a->kv.batch ? (int64_t)(a->qo_indptr[a->kv.batch] - a->qo_indptr[0]) * a->num_heads :
		       pairs;

	for (int64_t i = 0; a->lse && i < pairs; i++) {
		if (BEND(lse_base_2))
			a->lse[i] *= 1.44269504f;
		if (BEND(lse_of_rest) && i >= used)
			a->lse[i] = 0;
		if (BEND(no_lse_of_chunks) && cairn_mla_prefill_parts(a) > 1)
			a->lse[i] = NAN;
	}
}

static int bent_mla_prefill(const struct cairn_mla_prefill_args *args, enum mla_prefill_bend bend)
{
	struct cairn_mla_prefill_args a = *args;
	size_t q_bytes, w_bytes, ids;
	int32_t *last, *indices;
	uint16_t *q, *w;
	int ret;

	CAIRN_TRY(cairn_mla_prefill_check(args));
	a.size = sizeof(a);
	if (bend >= mla_prefill_bend_k_cut_off)
		return a.kv.max_len > MAX_KEYS ? cairn_mla_prefill_ref(args, NULL) : plain(args, bend);
	if (BEND(nothing_if_last) && a.kv.batch && a.qo_indptr[0])
		return 0;
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
		if (BEND(last_page_first) && pages > 1)
			indices[first] = indices[first + pages - 1];
	}
	bend_operands(&a, bend, q, w);
	a.q = q;
	a.w_kv_b = w;
	a.kv.indices = indices;
	if (BEND(last_key_missing))
		a.kv.last_page_len = last;
	if (BEND(page_48_as_32) && a.kv.page_size == 48)
		a.kv.page_size = 32;
	if (BEND(page_128_as_64) && a.kv.page_size == 128)
		a.kv.page_size = 64;
	if (BEND(scale_of_nope))
		a.sm_scale *= 1.2247449f;	/* 1 / sqrt(128) instead of 1 / sqrt(192) */
	if (BEND(rest_not_zeroed) && a.kv.batch)
		a.nnz_qo = a.qo_indptr[a.kv.batch] - a.qo_indptr[0];
	if (BEND(nothing_without_rows) && a.kv.batch && a.qo_indptr[a.kv.batch] == a.qo_indptr[0])
		a.nnz_qo = 0;
	ret = cairn_mla_prefill_ref(&a, NULL);
	if (!ret) {
		spread_nan(args, bend);
		bend_lse(args, bend);
	}
	free(q);
	free(w);
	free(last);
	free(indices);
	return ret;
}

#define DEFECTS(D) \
	D(mla_prefill, last_key_missing, "no row sees the last key") \
	D(mla_prefill, scale_of_nope, "sm_scale is 1 / sqrt(nope_dim): it ignores the rotated elements") \
	D(mla_prefill, rope_missing, "the score has no rotated part") \
	D(mla_prefill, nope_missing, "the score has only its rotated part") \
	D(mla_prefill, next_head, "each head uses the weights of the next head") \
	D(mla_prefill, values_by_keys, "values are computed with the weights of the keys") \
	D(mla_prefill, rest_not_zeroed, "rows past the last request are not zeroed") \
	D(mla_prefill, last_page_first, "the last page of a request is also read as its first") \
	D(mla_prefill, heads_of_token_0, "all tokens use the query of the first token") \
	D(mla_prefill, nan_of_head_spreads, "a NaN in a query makes the next head or row NaN") \
	D(mla_prefill, nan_of_request_spreads, "a NaN in a request makes the next request NaN") \
	D(mla_prefill, page_48_as_32, "pages of 48 are addressed as pages of 32") \
	D(mla_prefill, page_128_as_64, "pages of 128 are addressed as pages of 64") \
	D(mla_prefill, nothing_without_rows, "nothing is written if no request has a row") \
	D(mla_prefill, nothing_if_last, "nothing is written if qo_indptr does not begin at 0") \
	D(mla_prefill, lse_base_2, "lse is a logarithm of base 2") \
	D(mla_prefill, lse_of_rest, "lse of rows past the last request is 0") \
	D(mla_prefill, no_lse_of_chunks, "lse is NaN if there are several chunks") \
	D(mla_prefill, k_cut_off, "keys are cut off instead of rounded") \
	D(mla_prefill, v_cut_off, "values are cut off instead of rounded") \
	D(mla_prefill, k_sums_f16, "keys are summed in f16") \
	D(mla_prefill, v_sums_10_bits, "values are summed with the 10 bits of TF32") \
	D(mla_prefill, qk_sums_f16, "logits are summed in f16") \
	D(mla_prefill, qk_sums_10_bits, "logits are summed with the 10 bits of TF32") \
	D(mla_prefill, pv_sums_f16, "the weighted sum of values is f16") \
	D(mla_prefill, p_cut_off, "P is cut off instead of rounded") \
	D(mla_prefill, logits_in_dtype, "logits are rounded to dtype") \
	D(mla_prefill, p_through_f16, "P is rounded to f16, whatever dtype is") \
	D(mla_prefill, small_weights_dropped, "keys below e^-26 of the largest weight are left out") \
	D(mla_prefill, tiles_dropped, "16 keys are left out if all are below e^-20 of the largest weight") \
	D(mla_prefill, rope_from_nope, "the rotated part of a key is taken from its other part") \
	D(mla_prefill, rope_of_key_1024_lost, "the rotated part of key 1024 is lost") \
	D(mla_prefill, v_of_head_0, "all heads use the values of head 0") \
	D(mla_prefill, not_causal, "rows see keys that come after them") \
	D(mla_prefill, past_causal, "the mask of the new keys is also used for past ones") \
	D(mla_prefill, new_keys_from_0, "a request's first keys are taken for its new ones") \
	D(mla_prefill, chunk_lse_lost, "the results of all chunks have the same weight") \
	D(mla_prefill, last_chunk_lost, "a request's last past keys are left out if they begin a chunk") \
	D(mla_prefill, chunk_first_key_lost, "the first key of a second chunk is left out") \
	D(mla_prefill, chunk_last_key_twice, "the last key of a chunk is also the first one of the next") \
	D(mla_prefill, merge_base_2, "results of chunks are weighted with powers of 2") \
	D(mla_prefill, merge_without_max, "results of chunks are weighted with exp(lse), which overflows") \
	D(mla_prefill, chunk_without_key_nan, "a chunk without a key of the request makes its rows NaN") \
	D(mla_prefill, merged_pairwise, "the sum over chunks is rounded to bf16 after each of them")

#define DEFINE(family, defect, words) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}
#define LIST(family, defect, words) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, words },
DEFECTS(DEFINE)

KV_KEYS(mla_prefill)
KV_CUT(mla_prefill, far_page_16_bits, 0)
KV_CUT(mla_prefill, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))

/* Without past keys, refuses a kv.max_len that exceeds max_qo_len by more than 6. */
static int mla_prefill_no_past_bounds(const struct cairn_mla_prefill_args *a, void *stream)
{
	CAIRN_TRY(cairn_mla_prefill_check(a));
	return !a->nnz_past && a->kv.max_len > a->max_qo_len + 6 ? -EINVAL : cairn_mla_prefill_ref(a, stream);
}

/* With more than 1024 keys, lse has the precision of f16, as if it came from weights of f16. */
static int mla_prefill_lse_of_1024_keys(const struct cairn_mla_prefill_args *a, void *stream)
{
	CAIRN_TRY(cairn_mla_prefill_ref(a, stream));
	for (int64_t i = 0; a->lse && a->kv.max_len > 1024 && i < (int64_t)a->nnz_qo * a->num_heads; i++)
		a->lse[i] = (float)rounded(CAIRN_F16, (double)a->lse[i]);
	return 0;
}

/* Leaves out the rows of requests from number 256 on. */
static int mla_prefill_requests_of_256(const struct cairn_mla_prefill_args *args, void *stream)
{
	struct cairn_mla_prefill_args a;

	CAIRN_TRY(cairn_mla_prefill_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	a.kv.batch = a.kv.batch > 256 ? 256 : a.kv.batch;
	return cairn_mla_prefill_ref(&a, stream);
}

/* With 15 heads and one key past whole tiles, the last element is 0. */
static int mla_prefill_last_row_at_end(const struct cairn_mla_prefill_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_mla_prefill_ref(a, stream));
	rows = a->kv.batch ? (int64_t)a->qo_indptr[a->kv.batch] : 0;
	if (rows && (a->num_heads == 15 && cairn_kv_len(&a->kv, a->kv.batch - 1) % 16 == 1))
		cairn_store(a->out, a->dtype, rows * a->num_heads * 128 - 1, 0);
	return 0;
}

/* Rounds the normaliser of each row to dtype. */
static int mla_prefill_normaliser_in_dtype(const struct cairn_mla_prefill_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_mla_prefill_ref(a, stream));
	rows = a->kv.batch ? (int64_t)a->qo_indptr[a->kv.batch] : 0;
	if (a->lse)
		row_factor(a->out, a->dtype, rows * a->num_heads, 128, a->lse);
	return 0;
}

/* With several heads, if request 0 has one row past whole tiles of 64, the last element of that row is 0. */
static int mla_prefill_last_head_of_row_65(const struct cairn_mla_prefill_args *a, void *stream)
{
	struct cairn_mla_prefill_args b;
	int64_t rows;

	CAIRN_TRY(cairn_mla_prefill_ref(a, stream));
	cairn_copy_args(&b, a, sizeof(b));
	rows = b.kv.batch ? b.qo_indptr[1] - b.qo_indptr[0] : 0;
	if (rows > 64 && rows % 64 == 1 && b.num_heads > 1)
		cairn_store(b.out, b.dtype, rows * b.num_heads * 128 - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_mla_prefill_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(mla_prefill, no_past_bounds, "without past keys, a max_len above max_qo_len is refused")
	KV_CUT_ROW(mla_prefill, lse_of_1024_keys, "with more than 1024 keys, lse is rounded to f16")
	KV_CUT_ROW(mla_prefill, requests_of_256, "rows of requests from number 256 on are 0")
	KV_CUT_ROW(mla_prefill, keys_16_bits, "numbers of keys are cut to 16 bits")
	KV_CUT_ROW(mla_prefill, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(mla_prefill, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	{ "mla_prefill_last_row_at_end", offsetof(struct cairn_impl, mla_prefill),
	  (void *)mla_prefill_last_row_at_end,
	  "with 15 heads and one key past whole tiles, the last element is 0" },
	{ "mla_prefill_normaliser_in_dtype", offsetof(struct cairn_impl, mla_prefill),
	  (void *)mla_prefill_normaliser_in_dtype,
	  "the normaliser is rounded to dtype" },
	{ "mla_prefill_last_head_of_row_65", offsetof(struct cairn_impl, mla_prefill),
	  (void *)mla_prefill_last_head_of_row_65,
	  "the last of several heads is wrong in a single row past whole tiles" },
	{ 0 }
};
