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
#include "fused/latent/mla_append_fp8_test.h"
#include "fused/cache/kv_cut.h"

enum mla_append_bend {
	mla_append_bend_q_unrotated, mla_append_bend_norm_weight_missing, mla_append_bend_next_position,
	mla_append_bend_half_pairs, mla_append_bend_eps_large, mla_append_bend_first_head_alone,
	mla_append_bend_one_slot_early, mla_append_bend_norm_missing, mla_append_bend_rope_of_row_0,
	mla_append_bend_eps_missing, mla_append_bend_eps_at_least, mla_append_bend_eps_1e6,
	mla_append_bend_eps_at_least_1e_30,
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

/* If a head of q held a NaN, sets all its rotated elements to NaN. old: q before the call. */
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
	if (bend == mla_append_bend_eps_at_least_1e_30)
		a.eps = a.eps > 1e-30f ? a.eps : 1e-30f;
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
	/*
	 * pairs half a head apart: swaps each element with its wrong partner before the call, and back after
	 * it
	 */
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
	for (int b = 0; !ret && !a.kv_fp8 && bend == mla_append_bend_norm_missing && b < a.kv.batch; b++)
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
	D(mla_append, eps_at_least_1e_30, "eps is at least 1e-30") \
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

/* Computes the rows of the only request from `first` on or, with `before`, the rows before `first`. */
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

/* Keys of 656 bytes */
enum fp8_bend {
	fp8_bend_one_scale, fp8_bend_scale_inverted, fp8_bend_fourth_scale, fp8_bend_truncated,
	fp8_bend_rounded_before, fp8_bend_rope_first, fp8_bend_largest_240, fp8_bend_nan_scale,
	fp8_bend_zero_scale, fp8_bend_infinite_448, fp8_bend_signed_max, fp8_bend_small_unscaled,
};

/* Returns the scale of group g. */
static float fp8_bent_scale(const double *c, int g, enum fp8_bend bend)
{
	const double *x = c + g * CAIRN_MLA_FP8_GROUP;
	double most = fp8_most(x), of_row = 0;

	for (int k = 0; k < 4; k++)
		of_row = fmax(of_row, fp8_most(c + k * CAIRN_MLA_FP8_GROUP));
	if (bend == fp8_bend_one_scale)
		most = of_row;
	if (bend == fp8_bend_largest_240)
		most *= 448.0 / 240;
	if (bend == fp8_bend_signed_max) {
		most = 0;
		for (int j = 0; j < CAIRN_MLA_FP8_GROUP; j++)
			most = isfinite(x[j]) ? fmax(most, x[j]) : most;
	}
	if (bend == fp8_bend_nan_scale && isnan(x[0]))
		return NAN;
	if (most >= (double)CAIRN_MLA_APPEND_LEAST && !(bend == fp8_bend_small_unscaled && most < 1e-6))
		return (float)(most / 448);
	return bend == fp8_bend_zero_scale ? 0 : 1;
}

/* Returns x / scale as e4m3, rounded toward zero if bend says so. */
static uint8_t fp8_bent_code(double x, float scale, enum fp8_bend bend)
{
	double q = scale == 0 ? 0 : x / (double)scale;
	uint8_t code = cairn_float_to_e4m3((float)q);

	if (bend == fp8_bend_truncated && fabs((double)cairn_e4m3_to_float(code)) > fabs(q))
		code--;
	return !isfinite(x) ? isinf(x) && bend == fp8_bend_infinite_448 ? 0x7e : 0x7f : code;
}

static void fp8_bent_key(const struct cairn_mla_append_args *a, int row, uint8_t *key, enum fp8_bend bend)
{
	double c[FP8_RANK];
	float scale[4];
	uint8_t rope[128];

	fp8_latent(a, row, c);
	for (int j = 0; bend == fp8_bend_rounded_before && j < FP8_RANK; j++) {
		uint64_t x = 0;

		cairn_store(&x, a->dtype, 0, c[j]);
		c[j] = cairn_load(&x, a->dtype, 0);
	}
	for (int g = 0; g < 4; g++) {
		scale[g] = fp8_bent_scale(c, g, bend);
		for (int j = g * CAIRN_MLA_FP8_GROUP; j < (g + 1) * CAIRN_MLA_FP8_GROUP; j++)
			key[j] = fp8_bent_code(c[j], scale[g], bend);
		if (bend == fp8_bend_scale_inverted)
			scale[g] = 1 / scale[g];
	}
	if (bend == fp8_bend_fourth_scale)
		scale[3] = scale[2];
	memcpy(rope, key + FP8_ROPE_AT, sizeof(rope));
	memcpy(key + FP8_RANK + (bend == fp8_bend_rope_first ? sizeof(rope) : 0), scale, sizeof(scale));
	if (bend == fp8_bend_rope_first)
		memcpy(key + FP8_RANK, rope, sizeof(rope));
}

/* Runs the reference, then writes its 8-bit keys again with the defect. */
static int bent_fp8(const struct cairn_mla_append_args *args, enum fp8_bend bend)
{
	struct cairn_mla_append_args a;

	CAIRN_TRY(cairn_mla_append_ref(args, NULL));
	cairn_copy_args(&a, args, sizeof(a));
	for (int b = 0; a.kv_fp8 && b < a.kv.batch; b++)
		for (int i = a.qo_indptr[b]; i < a.qo_indptr[b + 1]; i++) {
			int64_t key = cairn_kv_len(&a.kv, b) - a.qo_indptr[b + 1] + i;

			fp8_bent_key(&a, i, (uint8_t *)a.kv.k_pages +
				     cairn_kv_slot(&a.kv, b, key) * CAIRN_MLA_FP8_BYTES, bend);
		}
	return 0;
}

#define FP8_DEFECTS(D) \
	D(fp8, one_scale, "all groups of an 8-bit key have the scale of the largest element of the row") \
	D(fp8, scale_inverted, "8-bit keys store 1 / scale") \
	D(fp8, fourth_scale, "the fourth scale of an 8-bit key is the third") \
	D(fp8, truncated, "codes of 8-bit keys are rounded toward zero") \
	D(fp8, rounded_before, "the latent is rounded to dtype before it becomes codes") \
	D(fp8, rope_first, "the rotated part of an 8-bit key lies before the scales") \
	D(fp8, largest_240, "the largest element of a group becomes 240, not 448") \
	D(fp8, nan_scale, "the scale of a group of NaN is NaN") \
	D(fp8, zero_scale, "the scale of a group of zeros is 0") \
	D(fp8, infinite_448, "an element of an 8-bit key that is infinite becomes 448") \
	D(fp8, small_unscaled, "groups below 1e-6 have scale 1") \
	D(fp8, signed_max, "the scale follows the largest element instead of the largest magnitude")

#define FP8_DEFINE(family, defect, words) \
	static int mla_append_fp8_##defect(const struct cairn_mla_append_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_fp8(a, fp8_bend_##defect); \
	}
#define FP8_LIST(family, defect, words) \
	{ "mla_append_fp8_" #defect, offsetof(struct cairn_impl, mla_append), \
	  (void *)mla_append_fp8_##defect, words },
FP8_DEFECTS(FP8_DEFINE)

/* Changes the 16-bit elements first .. end - 1 of each new key, whose width is in elements. */
static void bend_keys(const struct cairn_mla_append_args *a, int first, int end, int width,
		      uint16_t (*bend)(uint16_t))
{
	for (int b = 0; b < a->kv.batch; b++)
		for (int i = a->qo_indptr[b]; i < a->qo_indptr[b + 1]; i++) {
			int64_t key = cairn_kv_len(&a->kv, b) - a->qo_indptr[b + 1] + i;
			uint16_t *x = (uint16_t *)a->kv.k_pages + cairn_kv_slot(&a->kv, b, key) * width;

			for (int c = first; c < end; c++)
				x[c] = bend(x[c]);
		}
}

static uint16_t nothing_of(uint16_t x)
{
	(void)x;
	return 0;
}

static uint16_t without_subnormals(uint16_t x)
{
	return x & 0x7c00 ? x : x & 0x8000;
}

/* Sets the last 64 elements of c to 0 if the rank is above 576 and no multiple of 128. */
static int mla_append_rank_by_128(const struct cairn_mla_append_args *args, void *stream)
{
	struct cairn_mla_append_args a;

	CAIRN_TRY(cairn_mla_append_ref(args, stream));
	cairn_copy_args(&a, args, sizeof(a));
	if (a.kv_lora_rank > 576 && a.kv_lora_rank % 128)
		bend_keys(&a, a.kv_lora_rank - 64, a.kv_lora_rank, a.kv_lora_rank + a.rope_dim, nothing_of);
	return 0;
}

/* Sets subnormal numbers of f16 in the rotated part of an 8-bit key to 0. */
static int mla_append_subnormals_lost(const struct cairn_mla_append_args *args, void *stream)
{
	const int width = CAIRN_MLA_FP8_BYTES / 2;
	struct cairn_mla_append_args a;

	CAIRN_TRY(cairn_mla_append_ref(args, stream));
	cairn_copy_args(&a, args, sizeof(a));
	if (a.dtype == CAIRN_F16 && a.kv_fp8)
		bend_keys(&a, width - a.rope_dim, width, width, without_subnormals);
	return 0;
}

/* With 8-bit keys and 17 heads, the last element of head 16 of row 16 is 0. */
static int mla_append_fp8_row_17_of_head_17(const struct cairn_mla_append_args *a, void *stream)
{
	struct cairn_mla_append_args b;

	CAIRN_TRY(cairn_mla_append_ref(a, stream));
	cairn_copy_args(&b, a, sizeof(b));
	if (b.kv_fp8 && b.num_heads == 17 && b.nnz_qo > 16)
		cairn_store(b.q, b.dtype, (int64_t)17 * 17 * (b.nope_dim + b.rope_dim) - 1, 0);
	return 0;
}

/* With keys of 8 bits, eps is 1e-6. */
static int mla_append_fp8_eps_1e6(const struct cairn_mla_append_args *a, void *stream)
{
	struct cairn_mla_append_args b;

	CAIRN_TRY(cairn_mla_append_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (b.kv_fp8)
		b.eps = 1e-6f;
	return cairn_mla_append_ref(&b, stream);
}

const struct cairn_mutant cairn_mla_append_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(mla_append, rank_by_128, "ranks that 128 does not divide lose their last 64 elements")
	KV_CUT_ROW(mla_append, subnormals_lost, "in 8-bit keys, subnormal numbers of f16 become 0")
	FP8_DEFECTS(FP8_LIST)
	KV_CUT_ROW(mla_append, q_32_bits, "numbers of elements of q are cut to 32 bits")
	KV_CUT_ROW(mla_append, q_31_bits, "numbers of elements of q are cut to 31 bits")
	KV_CUT_ROW(mla_append, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(mla_append, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(mla_append, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	{ "mla_append_fp8_row_17_of_head_17", offsetof(struct cairn_impl, mla_append),
	  (void *)mla_append_fp8_row_17_of_head_17,
	  "8-bit keys: the 17th of 17 heads is wrong in the 17th row" },
	{ "mla_append_fp8_eps_1e6", offsetof(struct cairn_impl, mla_append),
	  (void *)mla_append_fp8_eps_1e6, "with keys of 8 bits, eps is 1e-6" },
	{ 0 }
};
