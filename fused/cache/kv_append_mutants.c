// SPDX-License-Identifier: Apache-2.0
/*
 * kv_append_mutants - wrong implementations that the cases must catch: one plain append with a switch for
 * each defect
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/cache/kv_append.h"
#include "fused/cache/kv_cut.h"
#include "primitives/base/bend.h"
#include "primitives/base/fp8.h"

#define DEFECTS(D) \
	D(slot_plus_one, "each key lands one slot late") \
	D(slot_from_zero, "new keys begin at key 0 instead of kv_len - qo_len") \
	D(stays_on_page, "the first slot of a page is written to the page before it") \
	D(page_table_identity, "page ids are assumed to be in order") \
	D(values_from_keys, "V is written from k") \
	D(values_missing, "V is not written") \
	D(k_stride_ignored, "rows of k are assumed to be contiguous") \
	D(v_stride_of_rows, "rows of v are assumed to be contiguous") \
	D(neighbour_overwritten, "eight elements too many are written") \
	D(head_0_only, "only the first KV head is written") \
	D(last_row_missing, "the last row of the batch is not written") \
	D(padding_written, "rows past qo_indptr[batch] are written to the last request") \
	D(request_0_only, "all rows are assumed to be the first request's") \
	D(nan_cleaned, "NaN is copied as 0") \
	D(rounded_to_f16, "bf16 values are rounded to f16") \
	D(v_with_k_stride, "rows of v are read with k_stride") \
	D(k_with_v_stride, "rows of k are read with v_stride") \
	D(page_id_16_bits, "page ids are kept in 16 bits") \
	D(last_slot_of_large_page, "the last row of a call does not reach the last slot of pages of 128") \
	D(page_512_as_256, "pages of 512 and more are addressed as pages of 256") \
	D(page_128_as_64, "pages of 128 are addressed as pages of 64") \
	D(page_32_by_48, "with pages of 48, the page of a key is found by a shift, as if they had 32 slots") \
	D(heads_5_as_4, "of five KV heads only four are written") \
	D(tail_of_8_lost, "rows whose length is no multiple of 16 lose their last 8 elements") \
	D(f32_through_bf16, "f32 values are rounded to bf16") \
	D(subnormals_flushed, "subnormal values become 0") \
	D(signalling_quieted, "values pass through a floating-point register, which quiets NaNs") \
	D(requests_of_256, "rows of requests from number 256 on go to request 255") \
	D(full_page_empty, "a full last page of 24 or 40 slots counts as empty") \
	D(row_of_16_kib, "bytes of a row past 16384 are not written") \
	D(page_by_float, "the page of a key is found by a product with a float reciprocal") \
	D(last_gap_read, "the last row is read up to its stride") \
	D(fp8_k_scale_missing, "K is not divided by its scale") \
	D(fp8_v_scale_missing, "V is not divided by its scale") \
	D(fp8_k_scale_needs_v_scale, "K is divided by its scale only if V has one") \
	D(fp8_scales_exchanged, "K is divided by the scale of V, and V by that of K") \
	D(fp8_scale_of_head_0, "all heads have the scale of the first") \
	D(fp8_heads_of_128, "the head of an element is found as if heads had 128 elements") \
	D(fp8_multiplied, "values are multiplied by the scale") \
	D(fp8_reciprocal, "values are multiplied by the scale's reciprocal, which is rounded") \
	D(fp8_quotient_in_dtype, "the quotient is rounded to bf16 before it is rounded to e4m3") \
	D(fp8_not_saturated, "magnitudes above 448 become NaN") \
	D(fp8_infinity_nan, "an infinity becomes NaN") \
	D(fp8_nan_is_448, "a NaN becomes 448") \
	D(fp8_largest_240, "magnitudes above 240 become 240") \
	D(fp8_ties_away, "a quotient in the middle of two codes becomes the larger one") \
	D(fp8_cut_off, "quotients are cut off instead of rounded") \
	D(fp8_subnormals_lost, "quotients below 2^-6 become 0") \
	D(fp8_subnormal_input_lost, "subnormal values are divided as zeros") \
	D(fp8_through_f16, "quotients are rounded to f16 before they are rounded to e4m3") \
	D(fp8_minus_0_lost, "a negative zero becomes 0") \
	D(fp8_bytes_doubled, "codes are written two bytes apart")

#define NAME(name, what)	APPEND_##name,
enum append_defect { DEFECTS(NAME) };

/* Returns v as some defects change it. */
static double changed(double v, int dtype, enum append_defect x)
{
	if (x == APPEND_nan_cleaned)
		return isnan(v) ? 0 : v;
	if (x == APPEND_rounded_to_f16)
		return rounded(CAIRN_F16, v);
	if (x == APPEND_f32_through_bf16)
		return rounded(CAIRN_BF16, v);
	if (x == APPEND_subnormals_flushed && fabs(v) < (dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126))
		return 0;
	return v;
}

/* Returns e4m3's code of a quotient. */
static uint8_t code_of(float v, enum append_defect x)
{
	float magnitude = fabsf(v), own, next;
	uint8_t code = cairn_float_to_e4m3(v), sign = code & 0x80;

	if (isnan(v))
		return x == APPEND_fp8_nan_is_448 ? 0x7e : code;
	if ((x == APPEND_fp8_not_saturated && magnitude >= 464) || (x == APPEND_fp8_infinity_nan && isinf(v)))
		return 0x7f;
	if (x == APPEND_fp8_largest_240 && magnitude > 240)
		return sign | 0x77;
	if (x == APPEND_fp8_subnormals_lost && magnitude < 0x1p-6f)
		return sign;
	if (x == APPEND_fp8_minus_0_lost && code == 0x80)
		return 0;
	own = fabsf(cairn_e4m3_to_float(code));
	if (x == APPEND_fp8_cut_off && own > magnitude)
		return code - 1;
	next = (code & 0x7f) < 0x7e ? fabsf(cairn_e4m3_to_float(code + 1)) : own;
	if (x == APPEND_fp8_ties_away && own < magnitude && magnitude - own == next - magnitude)
		return code + 1;
	return code;
}

/* Converts element c of a row of K or V (side 1) to e4m3. */
static uint8_t converted(const struct cairn_kv_append_args *a, const void *rows, int64_t from, int64_t c,
			 int side, enum append_defect x)
{
	const float *scale = side != (x == APPEND_fp8_scales_exchanged) ? a->v_scale : a->k_scale;
	float v = (float)cairn_load(rows, a->dtype, from), s;

	if (x == (side ? APPEND_fp8_v_scale_missing : APPEND_fp8_k_scale_missing) ||
	    (x == APPEND_fp8_k_scale_needs_v_scale && !side && !a->v_scale))
		scale = NULL;
	if (x == APPEND_fp8_subnormal_input_lost && fabsf(v) < 0x1p-126f)
		v = copysignf(0, v);
	if (!scale)
		return code_of(v, x);
	s = scale[x == APPEND_fp8_scale_of_head_0 ? 0 :
		  x == APPEND_fp8_heads_of_128 ? c / 128 % a->num_kv_heads : c / a->head_dim];
	if (x == APPEND_fp8_multiplied)
		return code_of(v * s, x);
	if (x == APPEND_fp8_through_f16)
		return code_of((float)rounded(CAIRN_F16, (double)(v / s)), x);
	if (x == APPEND_fp8_reciprocal)
		return code_of(v * (1 / s), x);
	return code_of(x == APPEND_fp8_quotient_in_dtype ? (float)rounded(CAIRN_BF16, (double)(v / s)) :
		       v / s, x);
}

/* Copies element c of a new row of K or V (side 1): its bits, or its code, or with some defects its value. */
static void copy_element(const struct cairn_kv_append_args *a, void *pages, int64_t to, const void *rows,
			 int64_t from, int64_t c, int side, enum append_defect x)
{
	int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype);

	if (a->kv_fp8) {
		if (x == APPEND_fp8_bytes_doubled)
			to = 2 * to % ((int64_t)a->kv.num_pages * a->kv.page_size * a->num_kv_heads *
				       a->head_dim);
		((uint8_t *)pages)[to] = converted(a, rows, from, c, side, x);
		return;
	}
	if (x == APPEND_nan_cleaned || x == APPEND_rounded_to_f16 || x == APPEND_f32_through_bf16 ||
	    x == APPEND_subnormals_flushed || x == APPEND_signalling_quieted)
		cairn_store(pages, a->dtype, to, changed(cairn_load(rows, a->dtype, from), a->dtype, x));
	else
		memcpy((char *)pages + to * esize, (const char *)rows + from * esize, (size_t)esize);
}

/* Reads the gap that follows the last row, where a next row would begin. */
static void read_last_gap(const struct cairn_kv_append_args *a, int64_t row)
{
	volatile uint64_t sink = 0;

	for (int64_t c = row; a->nnz_qo && c < a->k_stride; c++)
		sink += (uint64_t)cairn_load(a->k, a->dtype, (a->nnz_qo - 1) * a->k_stride + c);
}

static int append(const struct cairn_kv_append_args *a, enum append_defect x)
{
	int64_t row, k_stride, v_stride, written;
	int rows;

	CAIRN_TRY(cairn_kv_append_check(a));
	row = (int64_t)a->num_kv_heads * a->head_dim;
	k_stride = a->k_stride && x != APPEND_k_stride_ignored ? a->k_stride : row;
	v_stride = a->v_stride && x != APPEND_v_stride_of_rows ? a->v_stride : row;
	if (x == APPEND_v_with_k_stride)
		v_stride = k_stride < v_stride ? k_stride : v_stride;
	if (x == APPEND_k_with_v_stride)
		k_stride = k_stride < v_stride ? k_stride : v_stride;
	rows = x == APPEND_padding_written ? a->nnz_qo : a->kv.batch ? a->qo_indptr[a->kv.batch] : 0;
	written = x == APPEND_head_0_only ? a->head_dim : x == APPEND_neighbour_overwritten ? row + 8 : row;
	if (x == APPEND_heads_5_as_4 && a->num_kv_heads == 5)
		written = 4 * a->head_dim;
	if (x == APPEND_last_gap_read)
		read_last_gap(a, row);
	if (x == APPEND_row_of_16_kib && written > 16384 / (int64_t)cairn_dtype_bytes(a->dtype))
		written = 16384 / (int64_t)cairn_dtype_bytes(a->dtype);
	if (x == APPEND_tail_of_8_lost)
		written = row / 16 * 16;
	for (int i = 0; i < rows - (x == APPEND_last_row_missing); i++) {
		int b = 0, pages, key, nth, slot, size, last;
		int64_t to;

		while (x != APPEND_request_0_only && b < a->kv.batch - 1 && a->qo_indptr[b + 1] <= i &&
		       !(x == APPEND_requests_of_256 && b == 255))
			b++;
		pages = a->kv.indptr[b + 1] - a->kv.indptr[b];
		size = a->kv.page_size;
		last = a->kv.last_page_len[b];
		if (x == APPEND_full_page_empty && (size == 24 || size == 40))
			last %= size;
		key = (pages - 1) * size + last - a->qo_indptr[b + 1] + i;
		if (x == APPEND_slot_from_zero)
			key = i - a->qo_indptr[b];
		if (x == APPEND_slot_plus_one)
			key++;
		if (x == APPEND_last_slot_of_large_page && i == rows - 1 && size >= 128 && last == size)
			continue;
		key = key < pages * a->kv.page_size ? key : pages * a->kv.page_size - 1;
		if (key < 0)
			continue;
		if (x == APPEND_page_128_as_64 && size == 128)
			size = 64;
		if (x == APPEND_page_512_as_256 && size >= 512)
			size = 256;
		nth = key / (x == APPEND_page_32_by_48 && size == 48 ? 32 : size);
		if (x == APPEND_page_by_float)
			nth = (int)((float)key * (1 / (float)size));
		nth = nth < pages ? nth : pages - 1;
		slot = key % size;
		if (x == APPEND_stays_on_page && nth && !slot)
			nth--;
		nth += a->kv.indptr[b];
		to = x == APPEND_page_table_identity ? nth : a->kv.indices[nth];
		if (x == APPEND_page_id_16_bits)
			to = (uint16_t)to;
		to = to * size + slot;
		for (int64_t c = 0; c < written; c++) {
			int64_t at = c < row ? c : row - 1, key_at = i * k_stride + at, put = to * row + c;

			copy_element(a, a->kv.k_pages, put, a->k, key_at, at, 0, x);
			if (x == APPEND_values_from_keys)
				copy_element(a, a->kv.v_pages, put, a->k, key_at, at, 1, x);
			else if (x != APPEND_values_missing)
				copy_element(a, a->kv.v_pages, put, a->v, i * v_stride + at, at, 1, x);
		}
	}
	return 0;
}

#define DEFINE(name, what) \
	static int append_##name(const struct cairn_kv_append_args *a, void *stream) \
	{ \
		(void)stream; \
		return append(a, APPEND_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "kv_append_" #name, offsetof(struct cairn_impl, kv_append), (void *)append_##name, what },

KV_CUT(kv_append, far_page_16_bits, 0)
KV_CUT(kv_append, far_elements_32_bits, (int64_t)a->kv.page_size * a->num_kv_heads * a->head_dim)
KV_CUT(kv_append, far_bytes_32_bits,
       (int64_t)cairn_dtype_bytes(a->dtype) * a->kv.page_size * a->num_kv_heads * a->head_dim)

KV_KEYS(kv_append)

/* With one row for each request, treats the rows of V as contiguous if those of K are. */
static int kv_append_v_stride_needs_k(const struct cairn_kv_append_args *a, void *stream)
{
	struct cairn_kv_append_args other = *a;

	CAIRN_TRY(cairn_kv_append_check(a));
	other.size = sizeof(other);
	if (!a->k_stride && a->nnz_qo == a->kv.batch)
		other.v_stride = 0;
	return cairn_kv_append_ref(&other, stream);
}

static int kv_append_requests_of_512(const struct cairn_kv_append_args *a, void *stream)
{
	struct cairn_kv_append_args other = *a;

	CAIRN_TRY(cairn_kv_append_check(a));
	other.size = sizeof(other);
	other.kv.batch = a->kv.batch > 512 ? 512 : a->kv.batch;
	return cairn_kv_append_ref(&other, stream);
}

static int kv_append_far_rows_32_bits(const struct cairn_kv_append_args *a, void *stream)
{
	struct cairn_kv_append_args other = *a;

	CAIRN_TRY(cairn_kv_append_check(a));
	other.size = sizeof(other);
	other.v_stride = a->v_stride >> 31 ? a->v_stride % (1 << 30) : a->v_stride;
	return cairn_kv_append_ref(&other, stream);
}

/* Takes entry k of the list of pages as if indptr began at 0. */
static int kv_append_lists_from_0(const struct cairn_kv_append_args *a, void *stream)
{
	struct cairn_kv_append_args other = *a;

	CAIRN_TRY(cairn_kv_append_check(a));
	other.size = sizeof(other);
	if (a->kv.batch)
		other.kv.indices -= a->kv.indptr[0];
	return cairn_kv_append_ref(&other, stream);
}

static int kv_append_same_refused(const struct cairn_kv_append_args *a, void *stream)
{
	CAIRN_TRY(cairn_kv_append_check(a));
	return a->k == a->v ? -EINVAL : cairn_kv_append_ref(a, stream);
}

/* With 3 heads and 129 rows, the last page of V lacks the last element of the last row. */
static int kv_append_v_of_3_heads_at_end(const struct cairn_kv_append_args *a, void *stream)
{
	int32_t b = a->kv.batch - 1;

	CAIRN_TRY(cairn_kv_append_ref(a, stream));
	if (b >= 0 && a->num_kv_heads == 3 && a->qo_indptr[b + 1] - a->qo_indptr[b] == 129 && !a->kv_fp8) {
		int64_t slot = cairn_kv_slot(&a->kv, b, cairn_kv_len(&a->kv, b) - 1);

		cairn_store(a->kv.v_pages, a->dtype, (slot + 1) * 3 * a->head_dim - 1, 0.5);
	}
	return 0;
}

const struct cairn_mutant cairn_kv_append_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(kv_append, same_refused, "a call in which v is k is refused")
	KV_CUT_ROW(kv_append, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(kv_append, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(kv_append, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	KV_CUT_ROW(kv_append, keys_16_bits, "numbers of keys are cut to 16 bits")
	KV_CUT_ROW(kv_append, v_stride_needs_k, "in a decode step, v_stride is ignored if k_stride is 0")
	KV_CUT_ROW(kv_append, lists_from_0, "the list of pages is read as if indptr began at 0")
	KV_CUT_ROW(kv_append, requests_of_512, "rows of requests from number 512 on are left out")
	KV_CUT_ROW(kv_append, far_rows_32_bits, "the offset of a row of V is cut to 32 bits")
	{ "kv_append_v_of_3_heads_at_end", offsetof(struct cairn_impl, kv_append),
	  (void *)kv_append_v_of_3_heads_at_end,
	  "with 3 heads and 129 rows, the last element of V is wrong" },
	{ 0 }
};
