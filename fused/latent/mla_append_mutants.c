// SPDX-License-Identifier: Apache-2.0
/*
 * mla_append - wrong implementations that the cases must catch: the reference with its arguments or results
 * altered
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/latent/mla_append.h"
#include "fused/cache/kv_cut.h"

enum mla_append_bend {
	mla_append_bend_q_unrotated, mla_append_bend_norm_weight_missing, mla_append_bend_next_position,
	mla_append_bend_half_pairs, mla_append_bend_eps_large, mla_append_bend_first_head_alone,
	mla_append_bend_one_slot_early, mla_append_bend_norm_missing, mla_append_bend_rope_of_row_0,
	mla_append_bend_eps_missing, mla_append_bend_eps_at_least, mla_append_bend_eps_1e6,
	mla_append_bend_position_16_bits, mla_append_bend_nan_spreads, mla_append_bend_page_48_as_32,
	mla_append_bend_heads_of_128, mla_append_bend_requests_of_256, mla_append_bend_requests_of_512,
	mla_append_bend_positions_counted_on,
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

/* Lets a NaN in a head of q make the whole head NaN. old: q before the call. */
static void spread_nan(const struct cairn_mla_append_args *a, const uint16_t *old)
{
	int64_t head = a->nope_dim + a->rope_dim;

	for (int64_t i = 0; i < (int64_t)a->qo_indptr[a->kv.batch] * a->num_heads * head; i++)
		if (isnan(cairn_load(old, a->dtype, i)))
			cairn_fill_nan(a->q, a->dtype, i / head * head + a->nope_dim, a->rope_dim);
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
	a.size = sizeof(a);
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
	for (int i = 0; i < a.nnz_qo && bend == mla_append_bend_position_16_bits; i++)
		positions[i] = (uint16_t)positions[i];
	for (int i = 2049; i < a.nnz_qo && bend == mla_append_bend_positions_counted_on; i++)
		positions[i] = positions[i - 1] + 1;
	a.positions = positions;
	if (bend == mla_append_bend_requests_of_512 && a.kv.batch > 512)
		a.kv.batch = 512;
	if (bend == mla_append_bend_eps_missing)
		a.eps = 1e-37f;
	if (bend == mla_append_bend_eps_at_least)
		a.eps = a.eps > 1e-9f ? a.eps : 1e-9f;
	if (bend == mla_append_bend_eps_1e6)
		a.eps = 1e-6f;
	if (bend == mla_append_bend_page_48_as_32 && a.kv.page_size == 48)
		a.kv.page_size = 32;
	if (bend == mla_append_bend_requests_of_256 && a.kv.batch > 256)
		a.kv.batch = 256;
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
	for (size_t i = 0; !ret && bend == mla_append_bend_heads_of_128 && i < q_bytes / 2; i++)
		if (i / head % (size_t)a.num_heads >= 128)
			((uint16_t *)a.q)[i] = q[i];
	if (!ret && bend == mla_append_bend_nan_spreads)
		spread_nan(&a, q);
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
	D(mla_append, rope_of_row_0, "all rows are rotated by the position of the first row") \
	D(mla_append, eps_missing, "eps is not added") \
	D(mla_append, heads_of_128, "only the first 128 heads of a query are rotated") \
	D(mla_append, requests_of_512, "rows of requests from number 512 on are left out") \
	D(mla_append, positions_counted_on, "positions from row 2049 on are those that follow row 2048") \
	D(mla_append, requests_of_256, "rows of requests from number 256 on are left out") \
	D(mla_append, eps_at_least, "eps is at least 1e-9") \
	D(mla_append, eps_1e6, "eps is always 1e-6") \
	D(mla_append, position_16_bits, "positions are kept in 16 bits") \
	D(mla_append, nan_spreads, "a NaN in a query reaches all of its rotated elements") \
	D(mla_append, page_48_as_32, "pages of 48 are addressed as pages of 32")

#define DEFINE(family, defect, words) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}
#define LIST(family, defect, words) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, words },
DEFECTS(DEFINE)

KV_CUT(mla_append, far_page_16_bits, 0)
KV_CUT(mla_append, far_elements_32_bits, (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))
KV_CUT(mla_append, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))

/* Computes the rows of the only request from `first` on or, with `before`, those before it. */
static int some_rows(const struct cairn_mla_append_args *a, int32_t first, int before, uint16_t *q)
{
	int64_t head = (int64_t)a->num_heads * (a->nope_dim + a->rope_dim);
	int32_t left = a->qo_indptr[1] - first, rows = before ? first : left;
	int32_t len = (int32_t)cairn_kv_len(&a->kv, 0) - (before ? left : 0);
	int32_t pages = (len + a->kv.page_size - 1) / a->kv.page_size;
	int32_t qo[2] = { 0, rows }, kv[2] = { 0, pages }, last = len - (pages - 1) * a->kv.page_size;
	struct cairn_mla_append_args b = *a;

	b.size = sizeof(b);
	b.nnz_qo = rows;
	b.qo_indptr = qo;
	b.kv.indptr = kv;
	b.kv.last_page_len = &last;
	b.q = q;
	if (!before) {
		b.latent = (const uint16_t *)a->latent + (int64_t)first * (a->kv_lora_rank + a->rope_dim);
		b.positions += first;
		b.q = q + first * head;
	}
	return cairn_mla_append_cpu(&b, NULL);
}

/* Rows of q that begin past 2^31 or 2^32 elements are accessed `lost` elements too early. */
static int short_offsets(const struct cairn_mla_append_args *a, int64_t lost)
{
	int64_t head = (int64_t)a->num_heads * (a->nope_dim + a->rope_dim), first = lost / head + 1;

	CAIRN_TRY(cairn_mla_append_check(a));
	if (a->kv.batch != 1 || !a->nnz_qo || a->qo_indptr[1] <= first)
		return cairn_mla_append_ref(a, NULL);
	CAIRN_TRY(some_rows(a, (int32_t)first, 1, a->q));
	return some_rows(a, (int32_t)first, 0, (uint16_t *)a->q - lost);
}

static int mla_append_q_32_bits(const struct cairn_mla_append_args *a, void *stream)
{
	(void)stream;
	return short_offsets(a, (int64_t)1 << 32);
}

static int mla_append_q_31_bits(const struct cairn_mla_append_args *a, void *stream)
{
	(void)stream;
	return short_offsets(a, (int64_t)1 << 31);
}

const struct cairn_mutant cairn_mla_append_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(mla_append, q_32_bits, "numbers of elements of q are cut to 32 bits")
	KV_CUT_ROW(mla_append, q_31_bits, "numbers of elements of q are cut to 31 bits")
	KV_CUT_ROW(mla_append, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(mla_append, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(mla_append, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	{ 0 }
};
