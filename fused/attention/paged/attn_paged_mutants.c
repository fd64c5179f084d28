// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged - wrong implementations that the cases must catch
 *
 * All mutants share one plain online-softmax attention. A switch selects the defect, one that some library
 * has shipped; without a defect the code is correct.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/cache/kv_cut.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "primitives/base/nudge.h"
#include "primitives/base/plan_mutants.h"
#include "primitives/base/row_factor.h"

#define TILE	16	/* keys between two updates of the maximum */

/* D(name, description) */
#define DEFECTS(D) \
	D(causal_edge_one_short, "the last visible key is masked") \
	D(causal_edge_one_far, "one key of the future is visible") \
	D(causal_from_the_top, "the mask is aligned with the first key, not the last") \
	D(causal_ignored, "the mask is not applied") \
	D(causal_always, "the mask is applied to requests without it") \
	D(last_page_ignored, "keys of the last page are dropped") \
	D(last_page_whole, "last_page_len is ignored: the whole last page is read") \
	D(first_key_dropped, "the walk begins at key 1") \
	D(page_size_less_one, "the page of a key is found by page_size - 1") \
	D(page_table_identity, "page ids are assumed to be in order: a stale page table") \
	D(page_table_of_request_0, "all requests read the pages of the first") \
	D(length_of_request_0, "all requests have the length of the first") \
	D(bound_taken_for_length, "max_len is used as kv_len where the pages allow it") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(head_of_group_0, "all query heads of all groups read KV head 0") \
	D(q_stride_ignored, "rows of q are assumed to be contiguous") \
	D(scale_missing, "sm_scale is not applied") \
	D(scale_squared, "sm_scale is applied twice") \
	D(scale_log2_twice, "both sm_scale and the exponent are multiplied by log2(e)") \
	D(values_from_keys, "P is multiplied by K") \
	D(o_in_dtype, "O is kept in dtype between tiles") \
	D(l_in_dtype, "the sum of p is kept in dtype") \
	D(o_not_rescaled, "O is not rescaled when the maximum rises") \
	D(l_not_rescaled, "l is not rescaled when the maximum rises") \
	D(no_maximum, "exp of the logits, without subtracting their maximum") \
	D(sentinel, "the running maximum starts at -5e4 instead of minus infinity") \
	D(empty_row_nan, "a row without a key is divided by 0") \
	D(empty_row_untouched, "a row without a key is not written") \
	D(empty_row_mean, "a row whose keys are all masked gets the mean of V") \
	D(empty_lse_zero, "lse of a row without a key is 0") \
	D(empty_lse_plus, "lse of a row without a key is plus infinity") \
	D(lse_base_2, "lse is a base-2 logarithm") \
	D(lse_without_max, "lse is ln l alone") \
	D(lse_transposed, "lse is written [heads, rows]") \
	D(masked_times_value, "p = 0 is multiplied by V of slots that hold no key") \
	D(second_half_missing, "the upper half of head_dim is not written") \
	D(row_past_the_end, "one row too many is written") \
	D(last_row_missing, "the last row of the batch is not written") \
	D(head_7_bits, "out is written at the number of the head cut to 7 bits") \
	D(keys_65536, "keys from 2^16 on are left out") \
	D(last_tile_not_merged, "the state of the last tile is lost") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(input_written, "q is scaled in place") \
	D(window_ignored, "all keys are visible") \
	D(window_one_short, "the window lacks its oldest key") \
	D(window_one_far, "the window has one key too many") \
	D(window_of_tokens, "the window is counted from the row's index in its request, not its position") \
	D(window_of_last_row, "all rows of a request have the window of the last row") \
	D(window_from_page, "the window begins at the start of its oldest key's page") \
	D(window_from_tile, "the window begins at the start of its oldest key's tile") \
	D(window_of_tile_unsigned, "tokens that share a tile with one before the first key see none") \
	D(window_with_causal_only, "the window is ignored without the causal mask") \
	D(window_behind_part, "two parts of 512 keys, in neither of which a row sees a key, give it NaN") \
	D(window_masked_times_value, "p = 0 is multiplied by V of keys before the window") \
	D(cap_ignored, "logits are not capped") \
	D(cap_twice, "logits are capped twice") \
	D(cap_before_scale, "q k is capped before it is scaled") \
	D(cap_clamps, "logits are clamped to the cap") \
	D(cap_not_multiplied, "the tanh is not multiplied by softcap") \
	D(cap_of_masked, "masked keys are capped too: their logit is -softcap, not minus infinity") \
	D(cap_approximate, "tanh.approx: a relative error of 2^-11") \
	D(cap_lse_uncapped, "lse is computed from the logits before the cap") \
	D(cut_off, "cuts the result off instead of rounding it") \
	D(window_one_short_group_3, "with 3 query heads for a KV head, the window lacks its oldest key") \
	D(window_of_tokens_page_48, "with pages of 48, the window is counted from the row's index") \
	D(cap_before_scale_causal, "with a causal mask, q k is capped before it is scaled") \
	D(cap_ignored_groups_past_16, "with more than 16 query heads for a KV head, logits are not capped") \
	D(cap_ignored_group_7, "with 7 query heads for a KV head, logits are not capped") \
	D(page_128_as_64, "pages of 128 are addressed as two pages of 64") \
	D(page_32_second_ignored, "with pages of 32, the last request's second page is read as its first") \
	D(heads_by_shift, "the group is rounded down to a power of two") \
	D(kv_heads_padded, "three KV heads are taken to be four apart") \
	D(q_stride_ignored_d256, "with head_dim 256, rows of q are assumed to be contiguous") \
	D(lse_uncapped_d64, "with head_dim 64, lse is computed from the logits before the cap") \
	D(lse_unscaled_window, "with a window, lse is that of all keys") \
	D(page_id_16_bits, "page ids are kept in 16 bits") \
	D(qk_sums_f16, "q k is summed in f16") \
	D(qk_sums_10_bits, "q k is summed with the 10 bits of TF32") \
	D(pv_sums_f16, "P V is summed in f16") \
	D(pv_sums_10_bits, "P V is summed with the 10 bits of TF32") \
	D(logits_in_dtype, "logits are rounded to dtype") \
	D(l_of_rounded_p, "the sum is that of the rounded p") \
	D(p_cut_off, "P is cut off instead of rounded") \
	D(p_cut_off_long, "of rows with more than 32 keys P is cut off instead of rounded") \
	D(nan_of_row_spreads, "a NaN in a query makes all heads of its row NaN") \
	D(nan_of_request_spreads, "a NaN in a request makes the next request NaN") \
	D(key_lost_behind_hole, "past 64 requests, one behind a request without a key loses its last") \
	D(maximum_rises_by_95, "the running maximum rises only by 95 or more, so that exp overflows below") \
	D(fp8_k_scale_missing, "K of 8 bits is not scaled") \
	D(fp8_v_scale_missing, "V of 8 bits is not scaled") \
	D(fp8_v_scale_missing_prefill, "with more than 16 packed rows, V of 8 bits is not scaled") \
	D(fp8_k_scale_needs_v_scale, "K is scaled only if V is") \
	D(fp8_v_scale_needs_k_scale, "V is scaled only if K is") \
	D(fp8_scales_exchanged, "K has the scales of V, and V those of K") \
	D(fp8_scale_of_head_0, "all heads have the scales of the first") \
	D(fp8_scale_of_query_head, "the scale of query head h, not of its KV head") \
	D(fp8_k_scale_squared, "the scale of K is applied twice") \
	D(fp8_cap_unscaled, "logits are capped before they are multiplied by the scale of K") \
	D(fp8_lse_unscaled, "lse lacks the scale of K") \
	D(fp8_subnormals_lost, "subnormal codes are read as 0") \
	D(fp8_sign_lost, "codes of negative numbers are read as positive") \
	D(fp8_bias_8, "codes are read with the exponent bias of another e4m3") \
	D(fp8_bytes_doubled, "elements of pages are taken to be two bytes apart") \
	D(fp8_heads_doubled, "KV heads are taken to be two bytes an element apart") \
	D(fp8_pairs_exchanged, "even and odd channels of V are exchanged") \
	D(fp8_masked_times_value, "p = 0 is multiplied by codes of slots that hold no key") \
	D(fp8_p_in_e4m3, "P is rounded to e4m3") \
	D(fp8_q_in_e4m3, "q is rounded to e4m3") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	ATTN_##name,
enum attn_defect { DEFECTS(NAME) };

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

static int attend(const struct cairn_attn_paged_args *a, enum attn_defect x)
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

#define DEFINE(name, what) \
	static int attn_##name(const struct cairn_attn_paged_args *a, void *stream) \
	{ \
		(void)stream; \
		return attend(a, ATTN_##name); \
	}
DEFECTS(DEFINE)

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

/* The second half of the rows is written at a 32-bit offset in bytes. */
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

/* What the last call that made a plan has left for the calls that use it. */
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

/* The second half of each page of 512 slots and more is read as its first half. */
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

/* With keys of 8 bits, the last of three KV heads is wrong for a row of 127 keys past whole 128. */
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

const struct cairn_mutant cairn_attn_paged_mutants[] = {
	DEFECTS(LIST)
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
