// SPDX-License-Identifier: Apache-2.0
/*
 * qkv_append_mutants - wrong implementations that the cases must catch: the three steps, one of which is
 * changed by a switch for each defect
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/qkv/qkv_append_steps.h"

#define DEFECTS(D) \
	D(keys_and_values_swapped, "K gets the values, and V the keys") \
	D(values_from_keys, "V gets the keys") \
	D(keys_not_rotated, "keys are not rotated") \
	D(queries_not_rotated, "queries are not rotated") \
	D(values_rotated, "values are rotated, too") \
	D(interleaved, "neighbouring elements are rotated together") \
	D(half_rotated, "only the first half of a head is rotated") \
	D(next_position, "positions are one too large") \
	D(position_of_row_0, "all rows have the position of the first") \
	D(no_bias, "the bias is left out") \
	D(bias_of_queries, "keys and values have the bias of the first queries") \
	D(bias_after_rotation, "the bias is added after the rotation") \
	D(k_tail, "k is cut to a multiple of 64") \
	D(small_left_out, "elements of the last row of a below 2^-4 count as 0") \
	D(rows_less_1, "the last row of q is not written") \
	D(last_of_9_rows, "above 8 rows, the last element of q is 0") \
	D(last_head_of_queries, "the last head of queries is not written") \
	D(gaps_overwritten, "the gaps between rows of q get keys and values") \
	D(q_stride_ignored, "rows of q are assumed to be contiguous") \
	D(padding_appended, "rows past the last request are appended to it") \
	D(first_key_repeated, "K of all new rows of a request is that of its first") \
	D(page_table_identity, "page ids are assumed to be in order") \
	D(head_0_only, "only the first KV head of K is appended") \
	D(k_scale_missing, "K is not divided by its scale") \
	D(v_scale_of_k, "V is divided by the scale of K") \
	D(scale_of_head_0, "all heads of K have the scale of the first") \
	D(stale_output, "every second call writes nothing") \
	D(rows_unchecked, "takes one row too many")

#define NAME(name, what)	QKV_##name,
enum qkv_defect { DEFECTS(NAME) };

static uint16_t *element(const struct qkv_steps *s, int64_t row, int64_t col)
{
	return (uint16_t *)s->gemm.out + row * s->gemm.n + col;
}

static void set(const struct qkv_steps *s, int64_t row, int64_t col, double v)
{
	cairn_store(element(s, row, col), s->gemm.dtype, 0, v);
}

static double get(const struct qkv_steps *s, int64_t row, int64_t col)
{
	return cairn_load(element(s, row, col), s->gemm.dtype, 0);
}

static void product(const struct cairn_qkv_append_args *a, const struct qkv_steps *s, enum qkv_defect d)
{
	const int64_t end = d == QKV_k_tail && a->k > 64 ? a->k / 64 * 64 : a->k;

	for (int64_t i = 0; i < a->m; i++) {
		for (int64_t j = 0; j < s->gemm.n; j++) {
			double sum = 0;

			for (int64_t l = 0; l < end; l++) {
				double x = cairn_load(a->a, a->dtype, i * a->k + l);

				if (d == QKV_small_left_out && i == a->m - 1 && fabs(x) < 0x1p-4)
					continue;
				sum += x * cairn_load(a->b, a->dtype, j * a->k + l);
			}
			if (a->bias && d != QKV_no_bias && d != QKV_bias_after_rotation)
				sum += cairn_load(a->bias, a->dtype, d == QKV_bias_of_queries ?
						  j % ((int64_t)a->num_qo_heads * a->head_dim) : j);
			set(s, i, j, sum);
		}
	}
}

static int rotate(const struct cairn_qkv_append_args *a, struct qkv_steps *s, enum qkv_defect d)
{
	int32_t positions[CAIRN_QKV_APPEND_M];

	for (int32_t i = 0; i < a->m; i++)
		positions[i] = a->positions[d == QKV_position_of_row_0 ? 0 : i] + (d == QKV_next_position);
	s->rope.positions = positions;
	if (d == QKV_keys_not_rotated)
		s->rope.k = NULL;
	if (d == QKV_values_rotated)
		s->rope.num_kv_heads *= 2;
	s->rope.interleaved = d == QKV_interleaved;
	if (d == QKV_half_rotated && a->head_dim % 32 == 0)
		s->rope.rotary_dim = a->head_dim / 2;
	if (d == QKV_queries_not_rotated) {
		s->rope.q = s->rope.k;
		s->rope.num_qo_heads = a->num_kv_heads;
		s->rope.k = NULL;
	}
	CAIRN_TRY(cairn_rope_ref(&s->rope, NULL));
	for (int64_t i = 0; d == QKV_bias_after_rotation && a->bias && i < a->m; i++)
		for (int64_t j = 0; j < s->gemm.n; j++)
			set(s, i, j, get(s, i, j) + cairn_load(a->bias, a->dtype, j));
	return 0;
}

/* Appends by kv_append with other arguments. */
static int append(const struct cairn_qkv_append_args *a, struct qkv_steps *s, enum qkv_defect d)
{
	const int32_t batch = a->kv.batch, pages = batch ? a->kv.indptr[batch] : 0;
	int32_t *qo = malloc(sizeof(*qo) * ((size_t)batch + 1));
	int32_t *ids = malloc(sizeof(*ids) * ((size_t)pages + 1));
	float *scales = malloc(sizeof(*scales) * (size_t)a->num_kv_heads);
	struct cairn_kv_append_args *p = &s->append;
	int ret = -ENOMEM;

	if (qo && ids && scales) {
		memcpy(qo, a->qo_indptr, sizeof(*qo) * ((size_t)batch + 1));
		for (int32_t i = 0; i < pages; i++)
			ids[i] = d == QKV_page_table_identity ? i % a->kv.num_pages : a->kv.indices[i];
		for (int32_t g = 0; a->k_scale && g < a->num_kv_heads; g++)
			scales[g] = a->k_scale[0];
		if (d == QKV_padding_appended && batch && a->m > qo[batch] &&
		    cairn_kv_len(&a->kv, batch - 1) >= a->m - qo[batch - 1])
			qo[batch] = a->m;
		p->qo_indptr = qo;
		p->kv.indices = ids;
		if (d == QKV_keys_and_values_swapped || d == QKV_values_from_keys) {
			const void *v = p->v;

			p->v = p->k;
			p->k = d == QKV_values_from_keys ? p->k : v;
		}
		if (d == QKV_k_scale_missing)
			p->k_scale = NULL;
		if (d == QKV_v_scale_of_k)
			p->v_scale = a->k_scale;
		if (d == QKV_scale_of_head_0 && a->k_scale)
			p->k_scale = scales;
		ret = cairn_kv_append_ref(p, NULL);
	}
	free(qo);
	free(ids);
	free(scales);
	return ret;
}

/* Changes what was appended to K. old: the pages of K before */
static void damage(const struct cairn_qkv_append_args *a, enum qkv_defect d, const char *old)
{
	const int64_t size = a->kv_fp8 ? 1 : 2, width = (int64_t)a->num_kv_heads * a->head_dim * size;
	const int64_t kept = d == QKV_head_0_only ? a->head_dim * size : 0;

	for (int32_t b = 0; b < a->kv.batch; b++) {
		const int32_t rows = a->qo_indptr[b + 1] - a->qo_indptr[b];
		const int64_t len = cairn_kv_len(&a->kv, b);

		for (int64_t key = len - rows; key < len; key++) {
			const int64_t at = cairn_kv_slot(&a->kv, b, key) * width;
			char *k = (char *)a->kv.k_pages + at;

			if (d == QKV_head_0_only)
				memcpy(k + kept, old + at + kept, (size_t)(width - kept));
			else if (d == QKV_first_key_repeated && key + 1 < len)
				memcpy((char *)a->kv.k_pages + cairn_kv_slot(&a->kv, b, key + 1) * width, k,
				       (size_t)width);
		}
	}
}

static void write_queries(const struct cairn_qkv_append_args *a, const struct qkv_steps *s, enum qkv_defect d)
{
	const int64_t width = (int64_t)a->num_qo_heads * a->head_dim;
	const int64_t stride = d == QKV_q_stride_ignored ? width : cairn_qkv_append_q_stride(a);
	const int64_t rows = a->m - (d == QKV_rows_less_1 && a->m > 1);

	for (int64_t i = 0; i < rows; i++) {
		int64_t cols = width;

		if (d == QKV_last_head_of_queries && a->num_qo_heads > 1)
			cols -= a->head_dim;
		if (d == QKV_gaps_overwritten && i + 1 < rows)
			cols = stride < s->gemm.n ? stride : s->gemm.n;
		memcpy((uint16_t *)a->q + i * stride, element(s, i, 0), (size_t)cols * 2);
	}
	if (d == QKV_last_of_9_rows && a->m > 8)
		((uint16_t *)a->q)[(rows - 1) * stride + width - 1] = 0;
}

static int bent(const struct cairn_qkv_append_args *a, enum qkv_defect d)
{
	static int calls;
	const size_t pages = (size_t)a->kv.num_pages * (size_t)a->kv.page_size * (size_t)a->num_kv_heads *
			     (size_t)a->head_dim * (a->kv_fp8 ? 1 : 2);
	void *y = malloc(qkv_steps_bytes(a)), *old = malloc(pages + 1);
	int ret = y && old ? 0 : -ENOMEM;

	if (!ret && !(d == QKV_stale_output && calls++ & 1)) {
		struct qkv_steps s = qkv_steps_of(a, y);

		memcpy(old, a->kv.k_pages, pages);
		product(a, &s, d);
		ret = rotate(a, &s, d);
		if (!ret)
			ret = append(a, &s, d);
		if (!ret) {
			damage(a, d, old);
			write_queries(a, &s, d);
		}
	}
	free(y);
	free(old);
	return ret;
}

static int checked(const struct cairn_qkv_append_args *a, enum qkv_defect d)
{
	if (d == QKV_rows_unchecked)
		return a && a->size >= sizeof(*a) && a->m == CAIRN_QKV_APPEND_M + 1 ? 0 :
		       cairn_qkv_append_ref(a, NULL);
	CAIRN_TRY(cairn_qkv_append_check(a));
	return bent(a, d);
}

#define DEFINE(name, what) \
	static int qkv_append_##name(const struct cairn_qkv_append_args *a, void *stream) \
	{ \
		(void)stream; \
		return checked(a, QKV_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "qkv_append_" #name, offsetof(struct cairn_impl, qkv_append), (void *)qkv_append_##name, what },

const struct cairn_mutant cairn_qkv_append_mutants[] = {
	DEFECTS(LIST)
	{ 0 }
};
