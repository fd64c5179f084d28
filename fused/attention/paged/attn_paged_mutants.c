// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged - wrong implementations that the cases must catch
 *
 * Most are defects of one plain attention (attn_paged_defects.h). The others spoil what the reference
 * computes for a whole call, or give it other arguments.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/paged/attn_paged_defects.h"
#include "fused/cache/kv_cut.h"
#include "primitives/base/rows.h"
#include "primitives/base/nudge.h"
#include "primitives/base/plan_mutants.h"
#include "primitives/base/row_factor.h"

#define DEFINE(name, what) \
	static int attn_##name(const struct cairn_attn_paged_args *a, void *stream) \
	{ \
		(void)stream; \
		return attn_paged_attend(a, ATTN_##name); \
	}
ATTN_DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_paged_" #name, offsetof(struct cairn_impl, attn_paged), (void *)attn_##name, what },

/* Threads that share a tile vote on whether to rescale, even if their rows belong to different requests. */
static int attn_vote_of_the_batch(const struct cairn_attn_paged_args *a, void *stream)
{
	double most = -INFINITY;
	int32_t best = 0;

	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	for (int32_t b = 0; b < a->kv.batch; b++) {
		int64_t stride = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
		double first = a->qo_indptr[b] < a->qo_indptr[b + 1] ?
			cairn_load(a->q, a->dtype, a->qo_indptr[b] * stride) : -INFINITY;

		best = first > most ? b : best;
		most = fmax(first, most);
	}
	for (int32_t b = 0; a->lse && b < a->kv.batch; b++)
		if (b != best)
			nudge(a->lse + (int64_t)a->qo_indptr[b] * a->num_qo_heads,
			      (int64_t)(a->qo_indptr[b + 1] - a->qo_indptr[b]) * a->num_qo_heads);
	return 0;
}

/* A plan cuts the keys of all requests into parts of equal cost, so that the cuts depend on all lengths. */
static int attn_parts_of_the_batch(const struct cairn_attn_paged_args *a, void *stream)
{
	int32_t pages;

	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	pages = a->kv.batch ? a->kv.indptr[a->kv.batch] : 0;
	if (a->lse && a->kv.batch && pages > 2 * a->kv.indptr[1])
		nudge(a->lse, (int64_t)a->qo_indptr[a->kv.batch] * a->num_qo_heads);
	return 0;
}

KV_CUT(attn_paged, far_page_16_bits, 0)
KV_CUT(attn_paged, far_elements_32_bits, (int64_t)a->kv.page_size * a->num_kv_heads * a->head_dim)
KV_CUT(attn_paged, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * a->num_kv_heads * a->head_dim)

KV_KEYS(attn_paged)

static int attn_paged_keys_of_window_16_bits(const struct cairn_attn_paged_args *a, void *stream)
{
	struct cairn_attn_paged_args other;

	CAIRN_TRY(cairn_attn_paged_check(a));
	other = *a;
	other.window &= 0xffff;
	return cairn_attn_paged_ref(&other, stream);
}

/* Computes one request after the other; rows of q are found by a 32-bit offset in bytes. */
static int attn_paged_far_stride_32_bits(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t row = (int64_t)a->num_qo_heads * a->head_dim;

	CAIRN_TRY(cairn_attn_paged_check(a));
	for (int32_t b = 0; b < a->kv.batch; b++) {
		int32_t first = a->qo_indptr[b], n = a->qo_indptr[b + 1] - first, ends[2] = { 0, n };
		struct cairn_attn_paged_args one = *a;
		int64_t at = first * (a->q_stride ? a->q_stride : row) * 2;

		one.size = sizeof(one);
		one.kv = cairn_kv_one(a->kv, b);
		one.qo_indptr = ends;
		one.nnz_qo = n;
		one.q = (const char *)a->q + (a->q_stride ? (int64_t)(uint32_t)at : at);
		one.out = (char *)a->out + first * row * 2;
		one.lse = a->lse ? a->lse + (int64_t)first * a->num_qo_heads : NULL;
		CAIRN_TRY(cairn_attn_paged_ref(&one, stream));
	}
	return 0;
}

/* Rows of out past 2^32 bytes are written at offsets that are cut to 32 bits, over the first rows. */
static int attn_paged_out_32_bits(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t row = (int64_t)a->num_qo_heads * a->head_dim * 2, first = UINT32_MAX / row + 1;
	struct cairn_attn_paged_args one = *a;
	int32_t ends[2] = { 0, 0 };

	one.size = sizeof(one);
	if (cairn_attn_paged_check(a) || a->nnz_qo <= first || a->kv.batch != 1 || a->q_stride)
		return cairn_attn_paged_ref(a, stream);
	CAIRN_TRY(cairn_attn_paged_cpu(a, stream));
	ends[1] = one.nnz_qo = (int32_t)(a->nnz_qo - first);
	one.qo_indptr = ends;
	one.q = (const char *)a->q + first * row;
	one.lse = NULL;
	CAIRN_TRY(cairn_attn_paged_cpu(&one, stream));
	memset((char *)a->out + first * row, 0xff, (size_t)(one.nnz_qo * row));
	return 0;
}

static int attn_plan_serves_once(const struct cairn_attn_paged_args *a, void *stream)
{
	return plan_is_used_up(a->planned) ? cairn_attn_paged_check(a) : cairn_attn_paged_ref(a, stream);
}

static int attn_planned_refused(const struct cairn_attn_paged_args *a, void *stream)
{
	return a->planned ? -EOPNOTSUPP : cairn_attn_paged_ref(a, stream);
}

/* Takes entry k of the list of pages as if indptr began at 0. */
static int attn_lists_from_0(const struct cairn_attn_paged_args *a, void *stream)
{
	struct cairn_attn_paged_args b;

	CAIRN_TRY(cairn_attn_paged_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (b.kv.batch)
		b.kv.indices -= b.kv.indptr[0];
	return cairn_attn_paged_ref(&b, stream);
}

/* Values of the last call that made a plan; the calls that use a plan (`planned` is 1) read them. */
static struct {
	float sm_scale;
	const void *k_pages;
	int64_t keys;
} left;

static int attn_plan_keeps_scale(const struct cairn_attn_paged_args *a, void *stream)
{
	struct cairn_attn_paged_args b;

	CAIRN_TRY(cairn_attn_paged_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (!b.planned)
		left.sm_scale = b.sm_scale;
	b.sm_scale = left.sm_scale;
	return cairn_attn_paged_ref(&b, stream);
}

static int attn_plan_keeps_pages(const struct cairn_attn_paged_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	if (!a->planned)
		left.k_pages = a->kv.k_pages;
	else if (left.k_pages != a->kv.k_pages)		/* these pages are gone */
		memset(a->out, 0xff, (size_t)a->nnz_qo * (size_t)a->num_qo_heads * (size_t)a->head_dim * 2);
	return 0;
}

/* The plan, here the number of keys, lies in memory of the table: a call in another workspace replaces it. */
static int attn_plan_of_last_call(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t keys = 0;

	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	for (int32_t i = 0; i < a->kv.batch; i++)
		keys += cairn_kv_len(&a->kv, i);
	if (!a->planned)
		left.keys = keys;
	else if (left.keys != keys)
		memset(a->out, 0xff, (size_t)a->nnz_qo * (size_t)a->num_qo_heads * (size_t)a->head_dim * 2);
	return 0;
}

/* In a call of two requests with pages of 512 slots or more, all pages are read as the first one. */
static int attn_large_pages_halved(const struct cairn_attn_paged_args *a, void *stream)
{
	struct cairn_attn_paged_args b;
	int32_t *ids;
	int ret;

	CAIRN_TRY(cairn_attn_paged_check(a));
	if (a->kv.page_size < 512 || a->kv.page_size % 2 || a->kv.batch != 2 || a->kv.last_page_len[1] % 2)
		return cairn_attn_paged_ref(a, stream);
	cairn_copy_args(&b, a, sizeof(b));
	ids = kv_cut(&a->kv, UINT64_MAX);
	if (!ids)
		return -ENOMEM;
	for (int32_t i = a->kv.indptr[0]; i < a->kv.indptr[2]; i++)
		ids[i] = a->kv.indices[a->kv.indptr[0]];
	b.kv.indices = ids;
	ret = cairn_attn_paged_ref(&b, stream);
	free(ids);
	return ret;
}

/* With an odd number of SMs above 1, the first head of the first row is left out. */
static int attn_odd_sms(const struct cairn_attn_paged_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	if (a->sms > 1 && a->sms % 2 && a->kv.batch && a->qo_indptr[a->kv.batch])
		memset(a->out, 0, (size_t)a->head_dim * 2);
	return 0;
}

/* With a window of 17 and one key in the last of pages of 64, the last element is 0. */
static int attn_paged_last_row_at_end(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	rows = a->kv.batch ? (int64_t)a->qo_indptr[a->kv.batch] : 0;
	if (rows && (a->window == 17 && a->kv.page_size == 64 &&
	    cairn_kv_len(&a->kv, a->kv.batch - 1) % 64 == 1))
		cairn_store(a->out, a->dtype, rows * a->num_qo_heads * a->head_dim - 1, 0);
	return 0;
}

/* Rounds the normaliser of each row to dtype. */
static int attn_paged_normaliser_in_dtype(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	rows = a->kv.batch ? (int64_t)a->qo_indptr[a->kv.batch] : 0;
	if (a->lse)
		row_factor(a->out, a->dtype, rows * a->num_qo_heads, a->head_dim, a->lse);
	return 0;
}

/*
 * With 8-bit keys and 3 KV heads, in a request of one row whose number of keys is 127 modulo 128, the last
 * element of the row is 0.
 */
static int attn_paged_key_127_of_8_bits(const struct cairn_attn_paged_args *a, void *stream)
{
	struct cairn_attn_paged_args b;
	int64_t row;

	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	cairn_copy_args(&b, a, sizeof(b));
	for (int32_t i = 0; b.kv_fp8 && b.num_kv_heads == 3 && i < b.kv.batch; i++) {
		row = b.qo_indptr[i];
		if (b.qo_indptr[i + 1] - row == 1 && cairn_kv_len(&b.kv, i) % 128 == 127)
			cairn_store(b.out, b.dtype, (row + 1) * b.num_qo_heads * b.head_dim - 1, 0);
	}
	return 0;
}

/* In a large batch, the last request's row is wrong if its last key is alone in a block of 16. */
static int attn_paged_lone_key_of_last_request(const struct cairn_attn_paged_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	if (a->kv.batch > 64 && cairn_kv_len(&a->kv, a->kv.batch - 1) % 16 == 1)
		cairn_store(a->out, a->dtype,
			    (int64_t)a->qo_indptr[a->kv.batch - 1] * a->num_qo_heads * a->head_dim, 0);
	return 0;
}

/* With nnz_kv, the last key of a request that is longer than four times the mean is lost. */
static int attn_last_key_of_a_team(const struct cairn_attn_paged_args *a, void *stream)
{
	struct cairn_attn_paged_args b;
	int32_t *last;
	int ret;

	cairn_copy_args(&b, a, sizeof(b));
	last = malloc(((size_t)a->kv.batch + 1) * sizeof(*last));
	if (!last)
		return cairn_error(ENOMEM, "attn_paged: out of memory");
	for (int32_t i = 0; i < a->kv.batch; i++)
		last[i] = a->kv.last_page_len[i] - (a->nnz_kv && a->kv.last_page_len[i] > 1 &&
						    cairn_kv_len(&a->kv, i) > 4 * a->nnz_kv / a->kv.batch);
	b.kv.last_page_len = last;
	ret = cairn_attn_paged_ref(&b, stream);
	free(last);
	return ret;
}

/* With nnz_kv, requests from number `most` on get nothing. */
static int lose_requests(const struct cairn_attn_paged_args *a, int32_t most, void *stream)
{
	CAIRN_TRY(cairn_attn_paged_ref(a, stream));
	if (a->nnz_kv && a->kv.batch > most) {
		const int64_t row = (int64_t)a->num_qo_heads * a->head_dim * 2, first = a->qo_indptr[most];

		memset((char *)a->out + first * row, 0, (size_t)((a->qo_indptr[a->kv.batch] - first) * row));
	}
	return 0;
}

/* Loses the requests past the 32nd, which a warp counts in its second round. */
static int attn_requests_past_32(const struct cairn_attn_paged_args *a, void *stream)
{
	return lose_requests(a, 32, stream);
}

/* Loses the requests past the 192nd, which a CTA of six warps describes in its second round. */
static int attn_requests_past_192(const struct cairn_attn_paged_args *a, void *stream)
{
	return lose_requests(a, 192, stream);
}

const struct cairn_mutant cairn_attn_paged_mutants[] = {
	ATTN_DEFECTS(LIST)
	LIST(requests_past_32, "with nnz_kv, requests past the 32nd get nothing")
	LIST(requests_past_192, "with nnz_kv, requests past the 192nd get nothing")
	LIST(last_key_of_a_team, "with nnz_kv, the last key of a long request is lost")
	LIST(large_pages_halved, "with pages of 512 slots and more, all pages are the first one")
	LIST(odd_sms, "with an odd number of SMs above 1, a head is left out")
	LIST(plan_serves_once, "the counter of work is not set back, so a second call by a plan does nothing")
	LIST(planned_refused, "a call by a plan is refused")
	LIST(lists_from_0, "the list of pages is read as if indptr began at 0")
	LIST(plan_keeps_scale, "a call by a plan uses the plan's sm_scale")
	LIST(plan_keeps_pages, "a plan keeps the addresses of the pages")
	LIST(plan_of_last_call, "a call by a plan uses the plan of the last call, whatever its workspace")
	LIST(vote_of_the_batch, "the requests decide together whether to rescale")
	LIST(parts_of_the_batch, "the parts of a request's keys depend on the lengths of the others")
	KV_CUT_ROW(attn_paged, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(attn_paged, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(attn_paged, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	KV_CUT_ROW(attn_paged, keys_16_bits, "numbers of keys are cut to 16 bits")
	KV_CUT_ROW(attn_paged, keys_of_window_16_bits, "the window is cut to 16 bits")
	KV_CUT_ROW(attn_paged, far_stride_32_bits, "the offset of a row of q is cut to 32 bits")
	KV_CUT_ROW(attn_paged, out_32_bits, "the offset of a row of out is cut to 32 bits")
	{ "attn_paged_last_row_at_end", offsetof(struct cairn_impl, attn_paged),
	  (void *)attn_paged_last_row_at_end,
	  "with a window of 17 and one key in the last of pages of 64, the last element is 0" },
	{ "attn_paged_lone_key_of_last_request", offsetof(struct cairn_impl, attn_paged),
	  (void *)attn_paged_lone_key_of_last_request,
	  "in a batch above 64, the last request is wrong if its last key begins a block of 16" },
	{ "attn_paged_normaliser_in_dtype", offsetof(struct cairn_impl, attn_paged),
	  (void *)attn_paged_normaliser_in_dtype,
	  "the normaliser is rounded to dtype" },
	{ "attn_paged_key_127_of_8_bits", offsetof(struct cairn_impl, attn_paged),
	  (void *)attn_paged_key_127_of_8_bits,
	  "8-bit keys: the last of three KV heads is wrong for one row of 127 keys" },
	{ 0 }
};
