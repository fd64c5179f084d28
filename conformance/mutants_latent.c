// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_latent - wrong versions of mla_append and mla_paged: the reference, with arguments or results bent
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

#define RANK	512
#define HEAD	192		/* of q, of which 128 are not rotated */
#define ROWS	256		/* of w_kv_b, for each head */

/* ---- mla_append ---- */

enum mla_append_bend {
	mla_append_bend_q_unrotated, mla_append_bend_norm_weight_missing, mla_append_bend_next_position,
	mla_append_bend_half_pairs, mla_append_bend_eps_large, mla_append_bend_first_head_alone,
	mla_append_bend_one_slot_early, mla_append_bend_norm_missing, mla_append_bend_rope_of_row_0,
};

static void swap16(uint16_t *a, uint16_t *b)
{
	uint16_t x = *a;

	*a = *b;
	*b = x;
}

static int64_t keys_of(const struct cairn_mla_append_args *a, int b)
{
	int pages = a->kv_indptr[b + 1] - a->kv_indptr[b];

	return pages ? (int64_t)(pages - 1) * a->page_size + a->kv_last_page_len[b] : 0;
}

/* Where row i of request b goes, in elements. */
static int64_t slot_at(const struct cairn_mla_append_args *a, int b, int i)
{
	int64_t key = keys_of(a, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]) + i;
	int64_t page = a->kv_indices[a->kv_indptr[b] + key / a->page_size];

	return (page * a->page_size + key % a->page_size) * (a->kv_lora_rank + a->rope_dim);
}

static int bent_mla_append(const struct cairn_mla_append_args *args, enum mla_append_bend bend)
{
	struct cairn_mla_append_args a = *args;
	size_t q_bytes, width = (size_t)(a.kv_lora_rank + a.rope_dim), head = (size_t)(a.nope_dim +
										       a.rope_dim);
	int32_t *positions, *last;
	uint16_t *q, *ones;
	int ret;

	CAIRN_TRY(cairn_mla_append_check(args));
	q_bytes = 2 * (size_t)a.nnz_qo * (size_t)a.num_heads * head;
	q = malloc(q_bytes + 1);
	ones = malloc(2 * (size_t)a.kv_lora_rank);
	positions = malloc(sizeof(*positions) * ((size_t)a.nnz_qo + 1));
	last = malloc(sizeof(*last) * ((size_t)a.batch + 1));
	memcpy(q, a.q, q_bytes);
	for (int i = 0; i < a.kv_lora_rank; i++)
		cairn_store(ones, a.dtype, i, 1);
	for (int i = 0; i < a.nnz_qo; i++)
		positions[i] = a.positions[bend == mla_append_bend_rope_of_row_0 ? 0 : i] +
			       (bend == mla_append_bend_next_position);
	for (int b = 0; b < a.batch; b++)
		last[b] = a.kv_last_page_len[b] - (keys_of(&a, b) > a.qo_indptr[b + 1] - a.qo_indptr[b] &&
						   a.kv_last_page_len[b] > 1);
	a.positions = positions;
	if (bend == mla_append_bend_norm_weight_missing)
		a.norm_weight = ones;
	if (bend == mla_append_bend_one_slot_early)
		a.kv_last_page_len = last;
	if (bend == mla_append_bend_eps_large)
		a.eps = 0.1f;
	/* pairs p and p + half instead of neighbours: elements change places before, and back after */
	for (int64_t i = 0; bend == mla_append_bend_half_pairs && i < (int64_t)a.nnz_qo * a.num_heads; i++)
		swap16((uint16_t *)a.q + i * (int64_t)head + a.nope_dim + 1,
		       (uint16_t *)a.q + i * (int64_t)head + a.nope_dim + a.rope_dim / 2);
	ret = cairn_mla_append_ref(&a, NULL);
	for (int64_t i = 0; bend == mla_append_bend_half_pairs && i < (int64_t)a.nnz_qo * a.num_heads; i++)
		swap16((uint16_t *)a.q + i * (int64_t)head + a.nope_dim + 1,
		       (uint16_t *)a.q + i * (int64_t)head + a.nope_dim + a.rope_dim / 2);
	if (!ret && bend == mla_append_bend_q_unrotated)
		memcpy(a.q, q, q_bytes);
	for (size_t i = 0; !ret && bend == mla_append_bend_first_head_alone && i < q_bytes / 2; i++)
		if (i / head % (size_t)a.num_heads)
			((uint16_t *)a.q)[i] = q[i];
	for (int b = 0; !ret && bend == mla_append_bend_norm_missing && b < a.batch; b++)
		for (int i = 0; i < a.qo_indptr[b + 1] - a.qo_indptr[b]; i++)
			memcpy((uint16_t *)a.pages + slot_at(&a, b, i),
			       (const uint16_t *)a.kv + (size_t)(a.qo_indptr[b] + i) * width,
			       2 * (size_t)a.kv_lora_rank);
	free(q);
	free(ones);
	free(positions);
	free(last);
	return ret;
}

/* ---- mla_paged ---- */

enum mla_paged_bend {
	mla_paged_bend_last_key_missing, mla_paged_bend_scale_of_nope, mla_paged_bend_rope_missing,
	mla_paged_bend_nope_missing, mla_paged_bend_next_head, mla_paged_bend_values_by_keys,
	mla_paged_bend_rest_not_zeroed, mla_paged_bend_last_page_first, mla_paged_bend_heads_of_token_0,
	mla_paged_bend_not_causal,
};

/* All rows of a request see all of its keys: each row is a request of its own. */
static int each_row_alone(const struct cairn_mla_paged_args *args)
{
	for (int b = 0; b < args->batch; b++) {
		for (int i = args->qo_indptr[b]; i < args->qo_indptr[b + 1]; i++) {
			const int32_t one[] = { 0, 1 };
			struct cairn_mla_paged_args a = *args;

			a.batch = a.nnz_qo = a.max_qo_len = 1;
			a.qo_indptr = one;
			a.kv_indptr += b;
			a.kv_last_page_len += b;
			a.q = (const uint16_t *)a.q + (int64_t)i * a.num_heads * HEAD;
			a.out = (uint16_t *)a.out + (int64_t)i * a.num_heads * 128;
			CAIRN_TRY(cairn_mla_paged_ref(&a, NULL));
		}
	}
	return 0;
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

static int bent_mla_paged(const struct cairn_mla_paged_args *args, enum mla_paged_bend bend)
{
	struct cairn_mla_paged_args a = *args;
	size_t q_bytes, w_bytes, ids;
	int32_t *last, *indices;
	uint16_t *q, *w;
	int ret;

	CAIRN_TRY(cairn_mla_paged_check(args));
	q_bytes = 2 * (size_t)a.nnz_qo * (size_t)a.num_heads * HEAD;
	w_bytes = 2 * (size_t)a.num_heads * ROWS * RANK;
	ids = a.batch ? (size_t)a.kv_indptr[a.batch] : 0;
	q = malloc(q_bytes + 1);
	w = malloc(w_bytes + 1);
	last = malloc(sizeof(*last) * ((size_t)a.batch + 1));
	indices = malloc(sizeof(*indices) * (ids + 1));
	memcpy(q, a.q, q_bytes);
	memcpy(w, a.w_kv_b, w_bytes);
	memcpy(indices, a.kv_indices, sizeof(*indices) * ids);
	for (int b = 0; b < a.batch; b++) {
		int first = a.kv_indptr[b], pages = a.kv_indptr[b + 1] - first;

		last[b] = a.kv_last_page_len[b] - (a.kv_last_page_len[b] > 1);
		if (bend == mla_paged_bend_last_page_first && pages > 1)
			indices[first] = indices[first + pages - 1];
	}
	bend_operands(&a, bend, q, w);
	a.q = q;
	a.w_kv_b = w;
	a.kv_indices = indices;
	if (bend == mla_paged_bend_last_key_missing)
		a.kv_last_page_len = last;
	if (bend == mla_paged_bend_scale_of_nope)
		a.sm_scale *= 1.2247449f;	/* 1 / sqrt(128) instead of 1 / sqrt(192) */
	if (bend == mla_paged_bend_rest_not_zeroed && a.batch)
		a.nnz_qo = a.qo_indptr[a.batch];
	ret = bend == mla_paged_bend_not_causal ? each_row_alone(&a) : cairn_mla_paged_ref(&a, NULL);
	free(q);
	free(w);
	free(last);
	free(indices);
	return ret;
}

#define APPEND(D) \
	D(mla_append, q_unrotated, "queries stay as they are") \
	D(mla_append, norm_weight_missing, "the norm has no weights") \
	D(mla_append, next_position, "rotated by the position after") \
	D(mla_append, half_pairs, "an element's partner is half a head away") \
	D(mla_append, eps_large, "another eps") \
	D(mla_append, first_head_alone, "only the first head of a query is rotated") \
	D(mla_append, one_slot_early, "the new key lies where the last one was") \
	D(mla_append, norm_missing, "the latent is cached as it comes") \
	D(mla_append, rope_of_row_0, "all rows are rotated by the first one's position")
#define PAGED(D) \
	D(mla_paged, last_key_missing, "no row sees the last key") \
	D(mla_paged, scale_of_nope, "the scale counts the elements that are not rotated alone") \
	D(mla_paged, rope_missing, "the score has no rotated part") \
	D(mla_paged, nope_missing, "the score has a rotated part alone") \
	D(mla_paged, next_head, "heads have their neighbour's weights") \
	D(mla_paged, values_by_keys, "values come by the weights of keys") \
	D(mla_paged, rest_not_zeroed, "rows of no request keep what they hold") \
	D(mla_paged, last_page_first, "the first page of a request is its last one") \
	D(mla_paged, heads_of_token_0, "all tokens have the first one's query") \
	D(mla_paged, not_causal, "rows see keys that come after them")

#define DEFINE(family, defect, words) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}
#define LIST(family, defect, words) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, words },
APPEND(DEFINE)
PAGED(DEFINE)

const struct cairn_mutant cairn_latent_mutants[] = { APPEND(LIST) PAGED(LIST) { 0 } };
