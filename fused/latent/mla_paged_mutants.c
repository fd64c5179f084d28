// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged - wrong implementations that the cases must catch: the reference with its arguments or results
 * altered
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/latent/mla_paged.h"

#define RANK	512
#define HEAD	192		/* elements of a head of q; the first 128 are not rotated */
#define ROWS	256		/* rows of w_kv_b for each head */

enum mla_paged_bend {
	mla_paged_bend_last_key_missing, mla_paged_bend_scale_of_nope, mla_paged_bend_rope_missing,
	mla_paged_bend_nope_missing, mla_paged_bend_next_head, mla_paged_bend_values_by_keys,
	mla_paged_bend_rest_not_zeroed, mla_paged_bend_last_page_first, mla_paged_bend_heads_of_token_0,
	mla_paged_bend_not_causal,
};

/* Runs each row as a request of its own, so that it sees all keys of its request. */
static int each_row_alone(const struct cairn_mla_paged_args *args)
{
	for (int b = 0; b < args->kv.batch; b++) {
		for (int i = args->qo_indptr[b]; i < args->qo_indptr[b + 1]; i++) {
			const int32_t one[] = { 0, 1 };
			struct cairn_mla_paged_args a = *args;

			a.nnz_qo = a.max_qo_len = 1;
			a.qo_indptr = one;
			a.kv = cairn_kv_one(a.kv, b);
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
	if (bend == mla_paged_bend_scale_of_nope)
		a.sm_scale *= 1.2247449f;	/* 1 / sqrt(128) instead of 1 / sqrt(192) */
	if (bend == mla_paged_bend_rest_not_zeroed && a.kv.batch)
		a.nnz_qo = a.qo_indptr[a.kv.batch];
	ret = bend == mla_paged_bend_not_causal ? each_row_alone(&a) : cairn_mla_paged_ref(&a, NULL);
	free(q);
	free(w);
	free(last);
	free(indices);
	return ret;
}

#define DEFECTS(D) \
	D(mla_paged, last_key_missing, "no row sees the last key") \
	D(mla_paged, scale_of_nope, "sm_scale is 1 / sqrt(nope_dim): it ignores the rotated elements") \
	D(mla_paged, rope_missing, "the score has no rotated part") \
	D(mla_paged, nope_missing, "the score has only its rotated part") \
	D(mla_paged, next_head, "each head uses the weights of the next head") \
	D(mla_paged, values_by_keys, "values are computed with the weights of the keys") \
	D(mla_paged, rest_not_zeroed, "rows past the last request are not zeroed") \
	D(mla_paged, last_page_first, "the last page of a request is also read as its first") \
	D(mla_paged, heads_of_token_0, "all tokens use the query of the first token") \
	D(mla_paged, not_causal, "rows see keys that come after them")

#define DEFINE(family, defect, words) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}
#define LIST(family, defect, words) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, words },
DEFECTS(DEFINE)

const struct cairn_mutant cairn_mla_paged_mutants[] = { DEFECTS(LIST) { 0 } };
