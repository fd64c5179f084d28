// SPDX-License-Identifier: Apache-2.0
/*
 * mla_append - wrong implementations that the cases must catch: the reference with its arguments or results
 * altered
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/latent/mla_append.h"

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

/* Returns the element of the pages at which row i of request b begins. */
static int64_t slot_at(const struct cairn_mla_append_args *a, int b, int i)
{
	int64_t key = cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]) + i;

	return cairn_kv_slot(&a->kv, b, key) * (a->kv_lora_rank + a->rope_dim);
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
	last = malloc(sizeof(*last) * ((size_t)a.kv.batch + 1));
	memcpy(q, a.q, q_bytes);
	for (int i = 0; i < a.kv_lora_rank; i++)
		cairn_store(ones, a.dtype, i, 1);
	for (int i = 0; i < a.nnz_qo; i++)
		positions[i] = a.positions[bend == mla_append_bend_rope_of_row_0 ? 0 : i] +
			       (bend == mla_append_bend_next_position);
	for (int b = 0; b < a.kv.batch; b++)
		last[b] = a.kv.last_page_len[b] -
			  (cairn_kv_len(&a.kv, b) > a.qo_indptr[b + 1] - a.qo_indptr[b] &&
			   a.kv.last_page_len[b] > 1);
	a.positions = positions;
	if (bend == mla_append_bend_norm_weight_missing)
		a.norm_weight = ones;
	if (bend == mla_append_bend_one_slot_early)
		a.kv.last_page_len = last;
	if (bend == mla_append_bend_eps_large)
		a.eps = 0.1f;
	/* pairs half a head apart: swaps an element with its wrong partner before the call, and back after */
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
	for (int b = 0; !ret && bend == mla_append_bend_norm_missing && b < a.kv.batch; b++)
		for (int i = 0; i < a.qo_indptr[b + 1] - a.qo_indptr[b]; i++)
			memcpy((uint16_t *)a.kv.k_pages + slot_at(&a, b, i),
			       (const uint16_t *)a.latent + (size_t)(a.qo_indptr[b] + i) * width,
			       2 * (size_t)a.kv_lora_rank);
	free(q);
	free(ones);
	free(positions);
	free(last);
	return ret;
}

#define DEFECTS(D) \
	D(mla_append, q_unrotated, "queries are not rotated") \
	D(mla_append, norm_weight_missing, "the norm is computed without its weights") \
	D(mla_append, next_position, "the rotation is by position + 1") \
	D(mla_append, half_pairs, "pairs are half a head apart instead of interleaved") \
	D(mla_append, eps_large, "eps is 0.1") \
	D(mla_append, first_head_alone, "only the first head of a query is rotated") \
	D(mla_append, one_slot_early, "the new key is written one slot early, over the previous key") \
	D(mla_append, norm_missing, "the latent is cached without its norm") \
	D(mla_append, rope_of_row_0, "all rows are rotated by the position of the first row")

#define DEFINE(family, defect, words) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}
#define LIST(family, defect, words) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, words },
DEFECTS(DEFINE)

const struct cairn_mutant cairn_mla_append_mutants[] = { DEFECTS(LIST) { 0 } };
