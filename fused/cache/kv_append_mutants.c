// SPDX-License-Identifier: Apache-2.0
/*
 * kv_append - wrong implementations that the cases must catch: one plain append with a switch of defects
 */
#include <math.h>

#include "conformance/harness.h"
#include "fused/cache/kv_append.h"

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
	D(rounded_to_f16, "bf16 values are rounded to f16")

#define NAME(name, what)	APPEND_##name,
enum append_defect { DEFECTS(NAME) };

static double rounded_to_f16(double v)
{
	uint64_t box = 0;

	cairn_store(&box, CAIRN_F16, 0, v);
	return cairn_load(&box, CAIRN_F16, 0);
}

static int append(const struct cairn_kv_append_args *a, enum append_defect x)
{
	int64_t row, k_stride, v_stride, written;
	int rows;

	CAIRN_TRY(cairn_kv_append_check(a));
	row = (int64_t)a->num_kv_heads * a->head_dim;
	k_stride = a->k_stride && x != APPEND_k_stride_ignored ? a->k_stride : row;
	v_stride = a->v_stride && x != APPEND_v_stride_of_rows ? a->v_stride : row;
	rows = x == APPEND_padding_written ? a->nnz_qo : a->kv.batch ? a->qo_indptr[a->kv.batch] : 0;
	written = x == APPEND_head_0_only ? a->head_dim : x == APPEND_neighbour_overwritten ? row + 8 : row;
	for (int i = 0; i < rows - (x == APPEND_last_row_missing); i++) {
		int b = 0, pages, key, nth, slot;
		int64_t to;

		while (x != APPEND_request_0_only && b < a->kv.batch - 1 && a->qo_indptr[b + 1] <= i)
			b++;
		pages = a->kv.indptr[b + 1] - a->kv.indptr[b];
		key = (pages - 1) * a->kv.page_size + a->kv.last_page_len[b] - a->qo_indptr[b + 1] + i;
		if (x == APPEND_slot_from_zero)
			key = i - a->qo_indptr[b];
		if (x == APPEND_slot_plus_one)
			key++;
		key = key < pages * a->kv.page_size ? key : pages * a->kv.page_size - 1;
		if (key < 0)
			continue;
		nth = key / a->kv.page_size;
		slot = key % a->kv.page_size;
		if (x == APPEND_stays_on_page && nth && !slot)
			nth--;
		nth += a->kv.indptr[b];
		to = x == APPEND_page_table_identity ? nth : a->kv.indices[nth];
		to = to * a->kv.page_size + slot;
		for (int64_t c = 0; c < written; c++) {
			int64_t at = c < row ? c : row - 1;
			double k = cairn_load(a->k, a->dtype, i * k_stride + at);
			double v = cairn_load(a->v, a->dtype, i * v_stride + at);

			if (x == APPEND_values_from_keys)
				v = k;
			if (x == APPEND_nan_cleaned)
				v = isnan(v) ? 0 : v;
			if (x == APPEND_rounded_to_f16)
				v = rounded_to_f16(v);
			cairn_store(a->kv.k_pages, a->dtype, to * row + c, k);
			if (x != APPEND_values_missing)
				cairn_store(a->kv.v_pages, a->dtype, to * row + c, v);
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

const struct cairn_mutant cairn_kv_append_mutants[] = { DEFECTS(LIST) { 0 } };
