// SPDX-License-Identifier: Apache-2.0
#include "fused/attention/paged/attn_paged_defects.h"

#include <math.h>
#include <string.h>

#include "primitives/base/cut_off.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"

#define TILE	16	/* keys between two updates of the maximum */

/* Returns v rounded to dtype if `yes`, else to fp32. */
static double rounded(double v, int dtype, int yes)
{
	uint64_t box = 0;

	if (!yes)
		return (float)v;
	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

/* Returns v with 11 significant bits, as TF32 has, or as an f16. */
static double narrow_sum(double v, int f16)
{
	uint64_t box = 0;

	if (f16)
		return rounded(v, CAIRN_F16, 1);
	memcpy(&box, &(float){ (float)v }, sizeof(float));
	box = (box + 0x1000) & ~0x1fffull;
	return cairn_load(&box, CAIRN_F32, 0);
}

/* Returns q k; some defects narrow the sum after every 16 products. */
static double dot_of(const double *q, const double *k, int64_t dim, enum attn_defect x)
{
	double sum = 0;

	if (x != ATTN_qk_sums_f16 && x != ATTN_qk_sums_10_bits)
		return cairn_dot(q, k, dim);
	for (int64_t c = 0; c < dim; c += 16)
		sum = narrow_sum(sum + cairn_dot(q + c, k + c, 16), x == ATTN_qk_sums_f16);
	return sum;
}

struct keys {
	int first_page, num_pages, len, slots;		/* slots: those of all listed pages */
};

static struct keys keys_of(const struct cairn_attn_paged_args *a, int b, enum attn_defect x)
{
	struct keys k;
	int request = x == ATTN_page_table_of_request_0 ? 0 : b, last = a->kv.last_page_len[b];

	k.first_page = a->kv.indptr[request];
	k.num_pages = a->kv.indptr[request + 1] - k.first_page;
	k.slots = k.num_pages * a->kv.page_size;
	k.len = a->kv.indptr[b + 1] - a->kv.indptr[b];
	if (x == ATTN_last_page_whole || k.len == 0)
		last = a->kv.page_size;
	k.len = (k.len - 1) * a->kv.page_size + last;
	if (x == ATTN_last_page_ignored && k.len > a->kv.page_size)
		k.len -= last;
	if (x == ATTN_length_of_request_0)
		k.len = (a->kv.indptr[1] - a->kv.indptr[0] - 1) * a->kv.page_size + a->kv.last_page_len[0];
	if (x == ATTN_bound_taken_for_length)
		k.len = a->kv.max_len;
	if (x == ATTN_key_lost_behind_hole && b > 64 && k.len > 64 &&
	    a->kv.indptr[b] == a->kv.indptr[b - 1])
		k.len--;
	k.len = k.len > k.slots ? k.slots : k.len < 0 ? 0 : k.len;
	return k;
}

static int64_t key_at(const struct cairn_attn_paged_args *a, const struct keys *k, int j, int h,
		      enum attn_defect x)
{
	int size = x == ATTN_page_128_as_64 && a->kv.page_size == 128 ? 64 : a->kv.page_size;
	int group = a->num_qo_heads / a->num_kv_heads, head = h / group, nth = j / size;
	int heads = x == ATTN_kv_heads_padded && a->num_kv_heads == 3 ? 4 : a->num_kv_heads;
	int64_t page, slots = (int64_t)a->kv.num_pages * a->kv.page_size;

	if (x == ATTN_page_size_less_one && a->kv.page_size > 1)
		nth = j / (a->kv.page_size - 1);
	nth = nth < k->num_pages ? nth : k->num_pages - 1;
	if (x == ATTN_page_32_second_ignored && a->kv.page_size == 32 && nth == 1 &&
	    k->first_page + k->num_pages == a->kv.indptr[a->kv.batch])
		nth = 0;
	page = a->kv.indices[k->first_page + nth];
	if (x == ATTN_page_id_16_bits)
		page = (uint16_t)page;
	if (x == ATTN_page_table_identity)
		page = k->first_page + nth;
	if (x == ATTN_head_modulo)
		head = h % a->num_kv_heads;
	if (x == ATTN_head_of_group_0)
		head = 0;
	if (x == ATTN_heads_by_shift) {
		while (group & (group - 1))
			group &= group - 1;
		head = h / group % a->num_kv_heads;
	}
	return ((page * size + j % size) * heads + head) % (slots * a->num_kv_heads) * a->head_dim;
}

/* Reads a key or a value of `dim` elements, without its scale. */
static void load(const struct cairn_attn_paged_args *a, double *v, const void *pages, int64_t at, int64_t dim,
		 enum attn_defect x)
{
	int64_t all = (int64_t)a->kv.num_pages * a->kv.page_size * a->num_kv_heads * dim;

	if (!a->kv_fp8) {
		cairn_widen(v, pages, a->dtype, at, dim);
		return;
	}
	if (x == ATTN_fp8_bytes_doubled)
		at *= 2;
	if (x == ATTN_fp8_heads_doubled)
		at += at / dim % a->num_kv_heads * dim;
	for (int64_t c = 0; c < dim; c++) {
		uint8_t code = ((const uint8_t *)pages)[(at + c) % all];

		v[c] = (double)cairn_e4m3_to_float(x == ATTN_fp8_sign_lost ? code & 0x7f : code);
		if (x == ATTN_fp8_subnormals_lost && fabs(v[c]) < 0x1p-6)
			v[c] = 0;
		if (x == ATTN_fp8_bias_8)
			v[c] /= 2;
	}
	for (int64_t c = 0; c < dim && x == ATTN_fp8_pairs_exchanged && pages == a->kv.v_pages; c += 2) {
		double even = v[c];

		v[c] = v[c + 1];
		v[c + 1] = even;
	}
}

/* Returns v rounded to e4m3 if `yes`. */
static double in_e4m3(double v, int yes)
{
	return yes ? (double)cairn_e4m3_to_float(cairn_float_to_e4m3((float)v)) : v;
}

/* Returns the scale of K, or of V, for query head h. rows: packed rows of the request. */
static double scale_of(const struct cairn_attn_paged_args *a, int h, int of_v, int rows, enum attn_defect x)
{
	const float *scale = of_v != (x == ATTN_fp8_scales_exchanged) ? a->v_scale : a->k_scale;
	int g = h / (a->num_qo_heads / a->num_kv_heads);

	if (!scale || x == (of_v ? ATTN_fp8_v_scale_missing : ATTN_fp8_k_scale_missing) ||
	    (x == ATTN_fp8_k_scale_needs_v_scale && !of_v && !a->v_scale) ||
	    (x == ATTN_fp8_v_scale_needs_k_scale && of_v && !a->k_scale) ||
	    (x == ATTN_fp8_v_scale_missing_prefill && of_v && rows > 16))
		return 1;
	if (x == ATTN_fp8_scale_of_head_0)
		g = 0;
	if (x == ATTN_fp8_scale_of_query_head)
		g = h % a->num_kv_heads;
	return (double)scale[g] * (x == ATTN_fp8_k_scale_squared && !of_v ? (double)scale[g] : 1);
}

static int visible(const struct cairn_attn_paged_args *a, int b, int i, int len, enum attn_defect x)
{
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b], n = len;

	if ((a->causal || x == ATTN_causal_always) && x != ATTN_causal_ignored)
		n = i + 1 + (x == ATTN_causal_from_the_top ? 0 : len - qo_len);
	if (a->causal && x == ATTN_causal_edge_one_short && n > 1)
		n--;
	if (a->causal && x == ATTN_causal_edge_one_far)
		n++;
	if (x == ATTN_keys_65536 && n > 65536)
		n = 65536;
	return n < 0 ? 0 : n > len ? len : n;
}

/* Returns the first key that row i of request b, with len keys, sees. */
static int first_key(const struct cairn_attn_paged_args *a, int b, int i, int len, enum attn_defect x)
{
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b], first;
	int64_t position = (int64_t)i + len - qo_len;

	if (x == ATTN_first_key_dropped)
		return 1;
	if (!a->window || x == ATTN_window_ignored || (x == ATTN_window_with_causal_only && !a->causal))
		return 0;
	if (x == ATTN_window_of_tokens || (x == ATTN_window_of_tokens_page_48 && a->kv.page_size == 48))
		position = i;
	if (x == ATTN_window_of_last_row)
		position = len - 1;
	if (x == ATTN_window_of_tile_unsigned && position - i % 8 < 0)
		return len;
	position += (x == ATTN_window_one_short) - (x == ATTN_window_one_far) +
		    (x == ATTN_window_one_short_group_3 && a->num_qo_heads == 3 * a->num_kv_heads);
	first = position >= a->window ? (int)(position - a->window + 1) : 0;
	if (x == ATTN_window_from_page)
		first -= first % a->kv.page_size;
	if (x == ATTN_window_from_tile)
		first -= first % TILE;
	return first;
}

/*
 * Returns whether the row's window begins in a later part of 512 keys than the window of the first of its 16
 * rows.
 */
static int is_behind_part(const struct cairn_attn_paged_args *a, int b, int i, int h, int len,
			  enum attn_defect x)
{
	int group = a->num_qo_heads / a->num_kv_heads, row = i * group + h % group;
	int first = first_key(a, b, i, len, x);

	return visible(a, b, i, len, x) > first &&
	       first / 512 > first_key(a, b, row / 16 * 16 / group, len, x) / 512;
}

/* Returns the logit of a visible key. dot: q k before the scale. */
static double logit(const struct cairn_attn_paged_args *a, double dot, double scale, enum attn_defect x)
{
	double cap = (double)a->softcap, v = dot * scale, t;

	if (!(cap > 0) || x == ATTN_cap_ignored)
		return v;
	if (x == ATTN_cap_ignored_groups_past_16 && a->num_qo_heads > 16 * a->num_kv_heads)
		return v;
	if (x == ATTN_cap_ignored_group_7 && a->num_qo_heads == 7 * a->num_kv_heads)
		return v;
	if (x == ATTN_cap_before_scale || (x == ATTN_cap_before_scale_causal && a->causal))
		return cap * tanh(dot / cap) * scale;
	if (x == ATTN_cap_clamps)
		return fmin(fmax(v, -cap), cap);
	t = tanh(v / cap);
	if (x == ATTN_cap_twice)
		t = tanh(t);
	if (x == ATTN_cap_approximate)
		t *= 1 + 0x1p-11 * sin(1e3 * v);
	return x == ATTN_cap_not_multiplied ? t : cap * t;
}

/* Computes row i of request b, head h, and writes it as row `row`. */
static void attend_row(const struct cairn_attn_paged_args *a, int b, int i, int h, int64_t row,
		       enum attn_defect x)
{
	int64_t packed = (int64_t)a->num_qo_heads * a->head_dim, dim = a->head_dim,
		at = row * a->num_qo_heads + (x == ATTN_head_7_bits ? h & 127 : h);
	int64_t stride = a->q_stride && x != ATTN_q_stride_ignored &&
			 !(x == ATTN_q_stride_ignored_d256 && dim == 256) ? a->q_stride : packed;
	int64_t q_at = (a->qo_indptr[b] + i) * stride + h * dim;
	double m = x == ATTN_sentinel ? -5e4 : -INFINITY, l = 0, scale = a->sm_scale, lse;
	double o[256] = { 0 }, q[256];
	const void *values = x == ATTN_values_from_keys ? a->kv.k_pages : a->kv.v_pages;
	struct keys k = keys_of(a, b, x);
	int rows = (a->qo_indptr[b + 1] - a->qo_indptr[b]) * (a->num_qo_heads / a->num_kv_heads);
	double k_scale = scale_of(a, h, 0, rows, x), v_scale = scale_of(a, h, 1, rows, x);
	int n = visible(a, b, i, k.len, x), first = first_key(a, b, i, k.len, x), read = n, empty = !n;
	int from = first;	/* the first key that is read, even if the row does not see it */

	if (x == ATTN_scale_missing)
		scale = 1;
	if (x == ATTN_scale_squared)
		scale *= scale;
	if (x == ATTN_scale_log2_twice)
		scale *= 1.4426950408889634;
	if (!(x == ATTN_fp8_cap_unscaled && a->softcap > 0))
		scale *= k_scale;
	if (x == ATTN_masked_times_value && n)
		read = k.slots < n + TILE ? k.slots : n + TILE;
	if (x == ATTN_last_tile_not_merged && n > TILE)
		read = n = (n - 1) / TILE * TILE;
	if (x == ATTN_empty_row_mean && !n)
		read = k.len;
	if (x == ATTN_window_masked_times_value || (x == ATTN_cap_of_masked && a->softcap > 0))
		from = first > TILE / 2 ? first - TILE / 2 : 0;
	if (x == ATTN_cap_of_masked && a->softcap > 0)
		read = k.len;
	cairn_widen(q, a->q, a->dtype, q_at, dim);
	for (int c = 0; c < dim; c++)
		q[c] = in_e4m3(q[c], a->kv_fp8 && x == ATTN_fp8_q_in_e4m3);
	if (a->kv_fp8 && x == ATTN_fp8_masked_times_value && n)
		read = k.slots < n + TILE ? k.slots : n + TILE;
	for (int tile = from; tile < read; tile += TILE) {
		double s[TILE], top = m, keep, loaded[256];
		int count = read - tile < TILE ? read - tile : TILE;

		for (int j = 0; j < count; j++) {
			load(a, loaded, a->kv.k_pages, key_at(a, &k, tile + j, h, x), dim, x);
			s[j] = dot_of(q, loaded, dim, x);
			if (tile + j >= first && tile + j < n)
				s[j] = rounded(logit(a, s[j], scale, x), a->dtype, x == ATTN_logits_in_dtype);
			else
				s[j] = x == ATTN_empty_row_mean ? 0 :
				       x == ATTN_cap_of_masked && a->softcap > 0 ? -(double)a->softcap :
				       -INFINITY;
			top = s[j] > top ? s[j] : top;
		}
		if (x == ATTN_no_maximum)
			top = 0;
		if (x == ATTN_maximum_rises_by_95 && m > -INFINITY && top < m + 95)
			top = m;
		keep = m == top ? 1 : exp(m - top);	/* 1 also if both are -infinity */
		m = top;
		l = rounded(l * (x == ATTN_l_not_rescaled ? 1 : keep), a->dtype, x == ATTN_l_in_dtype);
		for (int c = 0; c < dim; c++)
			o[c] *= x == ATTN_o_not_rescaled && keep > 0 ? 1 : keep;
		for (int j = 0; j < count; j++) {
			double p = (float)exp(s[j] - top);

			if (x == ATTN_l_of_rounded_p)
				p = rounded(p, a->dtype, 1);
			p = in_e4m3(p, a->kv_fp8 && x == ATTN_fp8_p_in_e4m3);
			l = rounded(l + p, a->dtype, x == ATTN_l_in_dtype);
			if (x == ATTN_p_cut_off || (x == ATTN_p_cut_off_long && n - first > 32))
				p = cut_off(a->dtype, p);
			load(a, loaded, values, key_at(a, &k, tile + j, h, x), dim, x);
			cairn_add_scaled(o, p, loaded, dim);
		}
		for (int c = 0; c < dim; c++)
			o[c] = rounded(o[c], a->dtype, x == ATTN_o_in_dtype);
		for (int c = 0; c < dim && (x == ATTN_pv_sums_f16 || x == ATTN_pv_sums_10_bits); c++)
			o[c] = narrow_sum(o[c], x == ATTN_pv_sums_f16);
	}
	if (x == ATTN_empty_row_untouched && empty)
		return;
	if (x == ATTN_window_behind_part && is_behind_part(a, b, i, h, k.len, x))
		o[0] = m = NAN;
	for (int c = 0; c < (x == ATTN_second_half_missing ? dim / 2 : dim); c++) {
		double v = l > 0 || x == ATTN_empty_row_nan ? o[c] / l * v_scale : 0;

		cairn_store(a->out, a->dtype, at * dim + c, x == ATTN_cut_off ? cut_off(a->dtype, v) : v);
	}
	if (!a->lse)
		return;
	lse = l > 0 ? (x == ATTN_lse_without_max ? 0 : m) + log(l) : -INFINITY;
	if (x == ATTN_lse_unscaled_window && first > 0)
		lse += log((double)n / (n - first));
	if ((x == ATTN_cap_lse_uncapped || (x == ATTN_lse_uncapped_d64 && dim == 64)) && a->softcap > 0 &&
	    fabs(m) < (double)a->softcap)
		lse += (double)a->softcap * atanh(m / (double)a->softcap) - m;
	if (x == ATTN_fp8_lse_unscaled && l > 0)
		lse += m / k_scale - m;
	if (x == ATTN_lse_base_2)
		lse *= 1.4426950408889634;
	if (empty && (x == ATTN_empty_lse_zero || x == ATTN_empty_lse_plus))
		lse = x == ATTN_empty_lse_zero ? 0 : INFINITY;
	a->lse[x == ATTN_lse_transposed ? h * (int64_t)a->qo_indptr[a->kv.batch] + row : at] = (float)lse;
}

/* Returns whether n elements of x from element `at` on contain a NaN. */
static int has_nan(const void *x, int dtype, int64_t at, int64_t n)
{
	for (int64_t c = 0; c < n; c++)
		if (isnan(cairn_load(x, dtype, at + c)))
			return 1;
	return 0;
}

/* Sets rows first .. end - 1 of out to NaN. */
static void spoil(const struct cairn_attn_paged_args *a, int64_t first, int64_t end)
{
	int64_t row = (int64_t)a->num_qo_heads * a->head_dim;

	for (int64_t c = first * row; c < end * row; c++)
		cairn_store(a->out, a->dtype, c, NAN);
}

static void spread_nan(const struct cairn_attn_paged_args *a, enum attn_defect x)
{
	int64_t row = (int64_t)a->num_qo_heads * a->head_dim, stride = a->q_stride ? a->q_stride : row;

	for (int b = 0; b < a->kv.batch; b++) {
		struct keys k = keys_of(a, b, x);
		int found = 0;

		for (int i = a->qo_indptr[b]; i < a->qo_indptr[b + 1]; i++) {
			found |= has_nan(a->q, a->dtype, i * stride, row);
			if (x == ATTN_nan_of_row_spreads && has_nan(a->q, a->dtype, i * stride, row))
				spoil(a, i, i + 1);
		}
		for (int j = 0; j < k.len; j++) {
			for (int side = 0; side < 2 && a->head_dim <= 256; side++) {
				double v[256], sum = 0;

				load(a, v, side ? a->kv.v_pages : a->kv.k_pages, key_at(a, &k, j, 0, x),
				     a->head_dim, x);
				for (int c = 0; c < a->head_dim; c++)
					sum += v[c];
				found |= isnan(sum);
			}
		}
		if (found && x == ATTN_nan_of_request_spreads && b + 1 < a->kv.batch)
			spoil(a, a->qo_indptr[b + 1], a->qo_indptr[b + 2]);
	}
}

int attn_paged_attend(const struct cairn_attn_paged_args *a, enum attn_defect x)
{
	static int calls;
	int64_t bytes = 0;

	CAIRN_TRY(cairn_attn_paged_check(a));
	if (x == ATTN_nothing)
		return 0;
	for (int b = 0; b < a->kv.batch; b++) {
		int len = a->qo_indptr[b + 1] - a->qo_indptr[b];

		if (b == a->kv.batch - 1 && x == ATTN_last_row_missing)
			len--;
		for (int i = 0; i < len; i++)
			for (int h = 0; h < a->num_qo_heads; h++)
				attend_row(a, b, i, h, a->qo_indptr[b] + i, x);
		bytes += (int64_t)len * a->num_qo_heads * a->head_dim * 2;
	}
	if (x == ATTN_nan_of_row_spreads || x == ATTN_nan_of_request_spreads)
		spread_nan(a, x);
	if (x == ATTN_row_past_the_end)	/* writes only the row's first elements, past the buffer */
		memset((char *)a->out + bytes, 0, 64);
	if (x == ATTN_not_repeatable && bytes && calls++ % 2)
		*(uint16_t *)a->out ^= 1;
	if (x == ATTN_input_written && bytes)
		cairn_store((void *)a->q, a->dtype, 0, 2 * cairn_load(a->q, a->dtype, 0) + 1);
	return 0;
}
