// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_mutants - defects of the attention block that occur in practice
 *
 * The mutants are one plain implementation with a switch for each defect. The first twelve are the defects of
 * a published fused kernel, as far as an operation table can express them: what is a race on a GPU goes wrong
 * here always, or whenever the race could show. The others are the usual ways to get one of the seven
 * operations wrong.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/cut_off.h"
#include "fused/cluster_attn/cluster_attn.h"
#include "fused/cache/kv_cut.h"

#define TILE	32	/* keys of a pipeline stage */

/* Name, and the defect in words */
#define DEFECTS(D) \
	D(reduction_for_four, "cluster sums are right for size 4 only: 2 adds nothing, 8 counts 8 times") \
	D(residual_n_in_place, "in place, with more than 8192 columns, n is added instead of x") \
	D(residual_twice, "in place, x is read again after out has overwritten it") \
	D(residual_race, "in place, only the last cluster's read-modify-write survives") \
	D(late_cluster_erases, "with several requests a late cluster zeroes the sums of earlier heads") \
	D(stale_tile, "the last tile of V still holds the data of two tiles before") \
	D(stale_receive_buffer, "part of v is the previous request's, left in the receive buffer") \
	D(phase_passed_early, "attention starts before the last quarter of q has arrived") \
	D(input_overwritten, "q overwrites the first elements of n before v is computed") \
	D(merge_from_zero, "the running maximum starts at 0: weights of logits below -126 (base 2) vanish") \
	D(half_accumulation, "out is summed over the heads in dtype") \
	D(wrong_now_and_then, "every third call has a wrong v") \
	D(page_index_wraps, "the index of a slot wraps around, here at 2^16") \
	D(key_not_appended, "k is not written to the cache") \
	D(value_not_appended, "v is not written to the cache") \
	D(key_appended_unrotated, "k is appended before its rotation") \
	D(appended_one_early, "k and v overwrite the last old key") \
	D(appended_to_page_in_order, "the page of the new key is not looked up in kv.indices") \
	D(append_writes_too_much, "the append writes eight elements too many") \
	D(append_first_head_only, "only the first KV head is appended") \
	D(append_without_key, "a request without a key appends to the slot before its first") \
	D(new_key_not_seen, "attention reads only the old keys") \
	D(new_key_twice, "the new key counts twice") \
	D(one_key_too_many, "a slot past the end is read") \
	D(new_slot_read, "the new key is read from the cache before it is written") \
	D(last_page_whole, "last_page_len is ignored") \
	D(bound_for_length, "max_len is used as the length where the pages allow it") \
	D(length_of_request_0, "all requests have the length of the first") \
	D(page_table_of_request_0, "all requests read the first request's pages") \
	D(page_table_identity, "page ids are taken to be ascending from 0") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(head_0, "all query heads read KV head 0") \
	D(k_for_v, "v is projected with the rows of k") \
	D(query_of_request_0, "all requests use the first request's q") \
	D(q_not_rotated, "q is not rotated") \
	D(k_not_rotated, "k is not rotated") \
	D(v_rotated, "v is rotated too") \
	D(rotated_interleaved, "the rotation pairs neighbouring elements instead of halves") \
	D(rotated_backwards, "the angle has the wrong sign") \
	D(position_from_length, "the position is taken to be kv_len - 1") \
	D(position_of_request_0, "all requests use the first request's position") \
	D(bias_qkv_missing, "b_qkv is not added") \
	D(bias_after_rotation, "b_qkv is added after the rotation") \
	D(bias_o_missing, "b_o is not added") \
	D(bias_o_per_head, "b_o is added by every cluster") \
	D(residual_missing, "x is not added") \
	D(residual_normalised, "n is added instead of x") \
	D(norm_missing, "x is projected without the norm") \
	D(norm_weight_missing, "norm_weight is not applied") \
	D(norm_of_a_quarter, "only the squares of one CTA's part are summed") \
	D(eps_missing, "eps is not added") \
	D(eps_outside, "eps is added to the root instead of the mean") \
	D(scale_missing, "sm_scale is not applied") \
	D(scale_from_head_dim, "sm_scale is taken to be 1 / sqrt(head_dim)") \
	D(split_not_merged, "the keys of the last rank are left out") \
	D(merged_without_weights, "the partial results of two ranks are averaged without weights") \
	D(o_not_rescaled, "O is not rescaled when the maximum rises") \
	D(last_16384_keys, "of more keys, the last 16384 are read") \
	D(group_of_16_batch_16, "of 16 requests with 16 heads in a group, the last has a wrong q") \
	D(n_truncated, "n is truncated instead of rounded") \
	D(n_not_rounded, "n stays fp32") \
	D(q_and_k_rounded_once, "q and k are not rounded before the rotation") \
	D(a_through_bf16, "f16 is rounded to bf16 after attention") \
	D(last_row_missing, "the last request is not written") \
	D(row_past_the_end, "out is written past its end") \
	D(input_written, "the norm overwrites x") \
	D(counter_left, "a counter is not reset, so every second call does nothing") \
	D(cut_off, "cuts the result off instead of rounding it") \
	D(bias_o_with_b_qkv, "b_o is added only if there is a b_qkv") \
	D(bias_qkv_with_b_o, "b_qkv is added only if there is a b_o") \
	D(bias_k_group_3, "with 3 query heads for a KV head, k has no bias") \
	D(eps_at_least, "eps is at least 1e-9") \
	D(eps_at_least_1e_30, "eps is at least 1e-30") \
	D(eps_1e5, "eps is always 1e-5") \
	D(group_by_shift, "the group is rounded down to a power of two") \
	D(page_48_as_32, "pages of 48 are addressed as pages of 32") \
	D(page_128_as_64, "pages of 128 are addressed as pages of 64") \
	D(position_10_bits, "positions are kept in 10 bits") \
	D(position_15_bits, "positions are kept in 15 bits") \
	D(position_16_bits, "positions are kept in 16 bits") \
	D(position_20_bits, "positions are kept in 20 bits") \
	D(length_16_bits, "numbers of keys are kept in 16 bits") \
	D(key_16_bits, "the number of an old key is kept in 16 bits") \
	D(key_15_bits_split, "the number of an old key is kept in 15 bits, but not with AUTO") \
	D(append_without_key_in_place, "in place, a page without a key gets one, but not with AUTO") \
	D(norm_sum_f16, "the squares are summed in f16") \
	D(qk_sums_f16, "q k is summed in f16") \
	D(sums_10_bits_of_qkv, "the products with w_qkv are summed with the 10 bits of TF32") \
	D(sums_10_bits_of_qk, "q k is summed with the 10 bits of TF32") \
	D(sums_10_bits_of_pv, "P V is summed with the 10 bits of TF32") \
	D(sums_10_bits_of_out, "the products with w_o are summed with the 10 bits of TF32") \
	D(a_cut_off, "a is cut off instead of rounded") \
	D(nan_of_key_spreads, "a NaN in a key makes the out of the next request NaN") \
	D(position_17_bits, "positions are kept in 17 bits") \
	D(heads_past_64, "with more than 64 heads positions are 0") \
	D(sms_offchip, "off chip, a share of the device rotates by 0") \
	D(maximum_from_minus_10000, "the running maximum begins at -10000") \
	D(scale_in_dtype, "sm_scale is rounded to dtype") \
	D(small_weights_lost, "weights below e^-20 are taken for 0") \
	D(frequencies_of_10000, "inv_freq is not read: frequencies are the powers of 10000, or 0") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	BAD_##name,
enum defect { DEFECTS(NAME) };

/* State of the current request */
struct work {
	const struct cairn_cluster_attn_args *a;
	enum defect bad;
	int b, len, ranks;
	int64_t nq, nk;
	double spread;			/* the first element of the previous request's attention */
	double *x, *n, *qkv, *before, *att, *out;	/* before: q, k, v of the previous request */
};

static double rounded(double v, int dtype)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

/* Returns the slot of key j for reading. */
static int64_t slot_of(const struct work *w, int j)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int first = a->kv.indptr[w->bad == BAD_page_table_of_request_0 ? 0 : w->b];
	int total = a->kv.indptr[a->kv.batch], size = a->kv.page_size, nth;
	int64_t slot;

	if (w->bad == BAD_page_48_as_32 && size == 48)
		size = 32;
	if (w->bad == BAD_page_128_as_64 && size == 128)
		size = 64;
	if (w->bad == BAD_key_16_bits)
		j &= 0xffff;
	if (w->bad == BAD_key_15_bits_split && a->dataflow != CAIRN_CLUSTER_ATTN_AUTO)
		j &= 0x7fff;
	nth = first + j / size;
	nth = nth < total ? nth : total - 1;
	slot = w->bad == BAD_page_table_identity ? nth : a->kv.indices[nth];
	slot = slot * size + j % size;
	return w->bad == BAD_page_index_wraps ? slot & 0xffff : slot;
}

static void norm(struct work *w)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int n = w->bad == BAD_norm_of_a_quarter ? a->hidden / 4 : a->hidden;
	double sum = 0, s;

	for (int j = 0; j < n; j++) {
		sum += w->x[j] * w->x[j];
		if (w->bad == BAD_norm_sum_f16 && j % 16 == 15)
			sum = rounded(sum, CAIRN_F16);
	}
	s = 1 / sqrt(sum / n + (w->bad == BAD_eps_missing ? 0 : w->bad == BAD_eps_1e5 ? 1e-5 :
				w->bad == BAD_eps_at_least ? fmax(1e-9, a->eps) :
				w->bad == BAD_eps_at_least_1e_30 ? fmax(1e-30, a->eps) : (double)a->eps));
	if (w->bad == BAD_eps_outside)
		s = 1 / (sqrt(sum / n) + (double)a->eps);
	if (w->bad == BAD_norm_missing)
		s = 1;
	for (int j = 0; j < a->hidden; j++) {
		double v = w->x[j] * s;

		if (w->bad != BAD_norm_weight_missing && w->bad != BAD_norm_missing)
			v *= cairn_load(a->norm_weight, a->dtype, j);
		w->n[j] = w->bad == BAD_n_not_rounded ? (float)v : rounded(v, a->dtype);
		if (w->bad == BAD_n_truncated && fabs(w->n[j]) > fabs(v))
			w->n[j] = rounded(w->n[j] * (1 - 1.5 * cairn_dtype_roundoff(a->dtype)), a->dtype);
	}
}

/* Returns sum in[j] w[row,j] over j of [first, end); narrow: truncated to TF32 after every eighth product. */
static double dot(const double *in, const void *w, int dtype, int64_t row, int64_t k, int64_t first,
		  int64_t end, int narrow)
{
	double sum = 0;
	float v[64];

	for (int64_t j = first; j < end; j += 64) {
		int n = end - j < 64 ? (int)(end - j) : 64;

		cairn_load_row(v, w, dtype, row * k + j, n);
		for (int i = 0; i < n; i++) {
			sum += in[j + i] * (double)v[i];
			if (narrow && i % 8 == 7)
				sum = tf32(sum);
		}
	}
	return sum;
}

/* The published loop: strides 1, 2, 3 ... up to ranks - 2; each step passes on the sum so far. */
static double reduced_for_four(const struct work *w, int64_t row)
{
	double sum[16], passed[16];
	int n = w->ranks;

	for (int r = 0; r < n; r++)
		sum[r] = dot(w->n, w->a->w_qkv, w->a->dtype, row, w->a->hidden, (int64_t)w->a->hidden * r / n,
			     (int64_t)w->a->hidden * (r + 1) / n, 0);
	for (int stride = 1; stride < n - 1; stride++) {
		for (int r = 0; r < n; r++)
			passed[r] = sum[(r - stride + n) % n];
		for (int r = 0; r < n; r++)
			sum[r] += passed[r];
	}
	return sum[0];
}

static void project(struct work *w)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int with_bias = a->b_qkv && w->bad != BAD_bias_qkv_missing && w->bad != BAD_bias_after_rotation &&
			(w->bad != BAD_bias_qkv_with_b_o || a->b_o);
	int k_biased = w->bad != BAD_bias_k_group_3 || a->num_qo_heads != 3 * a->num_kv_heads;

	memcpy(w->before, w->qkv, sizeof(double) * (size_t)(w->nq + 2 * w->nk));
	for (int64_t i = 0; i < w->nq + 2 * w->nk; i++) {
		int64_t row = w->bad == BAD_k_for_v && i >= w->nq + w->nk ? i - w->nk : i;
		double v;

		if (i == w->nq + w->nk && w->bad == BAD_input_overwritten)
			memcpy(w->n, w->qkv, sizeof(double) * 64);
		v = w->bad == BAD_reduction_for_four ? reduced_for_four(w, row) :
		    dot(w->n, a->w_qkv, a->dtype, row, a->hidden, 0, a->hidden,
			w->bad == BAD_sums_10_bits_of_qkv);
		if (with_bias && (k_biased || i < w->nq || i >= w->nq + w->nk))
			v += cairn_load(a->b_qkv, a->dtype, row);
		if (w->bad != BAD_q_and_k_rounded_once || i >= w->nq + w->nk)
			v = rounded(v, a->dtype);
		w->qkv[i] = v;
	}
}

static void rotate(const struct work *w, double *x, int position)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int half = a->head_dim / 2;

	for (int p = 0; p < half; p++) {
		float freq = w->bad == BAD_frequencies_of_10000 && a->inv_freq[p] > 0 ?
			     powf(10000, -2.0f * (float)p / (float)a->head_dim) : a->inv_freq[p];
		float angle = (float)position * freq;
		int i = w->bad == BAD_rotated_interleaved ? 2 * p : p;
		int k = w->bad == BAD_rotated_interleaved ? 2 * p + 1 : p + half;
		double c = cos((double)angle), s = sin((double)angle), lo = x[i], hi = x[k];

		if (w->bad == BAD_rotated_backwards)
			s = -s;
		x[i] = rounded(lo * c - hi * s, a->dtype);
		x[k] = rounded(hi * c + lo * s, a->dtype);
	}
}

static void rotate_all(struct work *w)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int heads = a->num_qo_heads + a->num_kv_heads + (w->bad == BAD_v_rotated ? a->num_kv_heads : 0);
	int position = a->positions[w->bad == BAD_position_of_request_0 ? 0 : w->b];

	if (w->bad == BAD_position_17_bits)
		position &= 0x1ffff;
	if ((w->bad == BAD_heads_past_64 && a->num_qo_heads > 64) ||
	    (w->bad == BAD_sms_offchip && a->sms && a->offchip))
		position = 0;
	if (w->bad == BAD_position_10_bits)
		position &= 0x3ff;
	if (w->bad == BAD_position_15_bits)
		position &= 0x7fff;
	if (w->bad == BAD_position_16_bits)
		position &= 0xffff;
	if (w->bad == BAD_position_20_bits)
		position &= 0xfffff;
	if (w->bad == BAD_position_from_length)
		position = w->len - 1;
	for (int h = 0; h < heads; h++) {
		if ((w->bad == BAD_q_not_rotated && h < a->num_qo_heads) ||
		    (w->bad == BAD_k_not_rotated && h >= a->num_qo_heads))
			continue;
		rotate(w, w->qkv + (int64_t)h * a->head_dim, position);
	}
	if (a->b_qkv && w->bad == BAD_bias_after_rotation)
		for (int64_t i = 0; i < w->nq + 2 * w->nk; i++)
			w->qkv[i] = rounded(w->qkv[i] + cairn_load(a->b_qkv, a->dtype, i), a->dtype);
}

static void append(const struct work *w, const double *k, const double *v)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int key = w->bad == BAD_appended_one_early && w->len > 1 ? w->len - 2 : w->len - 1;
	int nth = a->kv.indptr[w->b] + key / a->kv.page_size;
	int64_t page = w->bad == BAD_appended_to_page_in_order ? nth : a->kv.indices[nth];
	int64_t slot = page * a->kv.page_size + key % a->kv.page_size;
	int64_t n = w->bad == BAD_append_first_head_only ? a->head_dim :
		    w->bad == BAD_append_writes_too_much ? w->nk + 8 : w->nk;

	for (int64_t i = 0; i < n; i++) {
		int64_t from = i < w->nk ? i : w->nk - 1;

		if (w->bad != BAD_key_not_appended)
			cairn_store(a->kv.k_pages, a->dtype, slot * w->nk + i, k[from]);
		if (w->bad != BAD_value_not_appended)
			cairn_store(a->kv.v_pages, a->dtype, slot * w->nk + i, v[from]);
	}
}

static int keys_read(const struct work *w)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int room = (a->kv.indptr[w->b + 1] - a->kv.indptr[w->b]) * a->kv.page_size, n = w->len;

	switch (w->bad) {
	case BAD_new_key_not_seen: n--; break;
	case BAD_one_key_too_many: case BAD_new_key_twice: n++; break;
	case BAD_last_page_whole: n = room; break;
	case BAD_bound_for_length: n = a->kv.max_len; break;
	case BAD_length_of_request_0:
		n = (a->kv.indptr[1] - a->kv.indptr[0] - 1) * a->kv.page_size + a->kv.last_page_len[0];
		break;
	case BAD_split_not_merged: n -= n / w->ranks < n ? n / w->ranks : 0; break;
	default: break;
	}
	return w->bad == BAD_new_key_twice ? n : n < room ? n : room;
}

/* Returns element c of key or value j. */
static double key(const struct work *w, const void *pages, const double *fresh, int j, int g, int c)
{
	int newest = j == w->len - 1 || (w->bad == BAD_new_key_twice && j == w->len);

	if (newest && w->bad != BAD_new_slot_read)
		return fresh[(int64_t)g * w->a->head_dim + c];
	return cairn_load(pages, w->a->dtype, (slot_of(w, j) * w->a->num_kv_heads + g) * w->a->head_dim + c);
}

/* o = softmax over keys first .. end - 1 of head h, which reads KV head g. */
static void attend_keys(struct work *w, int h, int g, int first, int end, double *o)
{
	const struct cairn_cluster_attn_args *a = w->a;
	const double *q = w->qkv + (int64_t)h * a->head_dim, *k = w->qkv + w->nq, *v = k + w->nk;
	double scale = a->sm_scale, l = 0, top = w->bad == BAD_merge_from_zero ? 0 :
		     w->bad == BAD_maximum_from_minus_10000 ? -1e4 : -INFINITY;
	int dim = a->head_dim, seen = w->bad == BAD_phase_passed_early && w->ranks > 1 ? dim * 3 / 4 : dim;
	int last_tile = (end - 1) / TILE;

	if (w->bad == BAD_group_of_16_batch_16 && w->b == 15 && a->num_qo_heads == 16 * a->num_kv_heads)
		q = w->qkv;
	if (w->bad == BAD_scale_missing)
		scale = 1;
	if (w->bad == BAD_scale_from_head_dim)
		scale = 1 / sqrt(dim);
	if (w->bad == BAD_scale_in_dtype)
		scale = rounded(scale, a->dtype);
	memset(o, 0, sizeof(double) * (size_t)dim);
	if (w->bad == BAD_last_16384_keys && end - first > 16384)
		first = end - 16384;
	for (int j = first; j < end; j++) {
		int stale = w->bad == BAD_stale_tile && last_tile > 1 && j / TILE == last_tile;
		int from = stale ? j - 2 * TILE : j;
		double s = 0, p, keep;

		for (int c = 0; c < seen; c++)
			s = w->bad == BAD_sums_10_bits_of_qk && c % 8 == 7 ?
			    tf32(s + q[c] * key(w, a->kv.k_pages, k, j, g, c)) :
			    w->bad == BAD_qk_sums_f16 && c % 16 == 15 ?
			    rounded(s + q[c] * key(w, a->kv.k_pages, k, j, g, c), CAIRN_F16) :
			    s + q[c] * key(w, a->kv.k_pages, k, j, g, c);
		s *= scale;
		keep = s > top ? exp(top - s) : 1;
		top = fmax(top, s);
		p = exp(s - top);
		if (w->bad == BAD_small_weights_lost && s - top < -20)
			p = 0;
		if (p < 0x1p-126)	/* as fp32 does with subnormals flushed to zero */
			p = 0;
		l = l * keep + p;
		if (w->bad == BAD_o_not_rescaled && j > first)
			keep = 1;
		for (int c = 0; c < dim; c++)
			o[c] = o[c] * keep + p * key(w, a->kv.v_pages, v, from, g, c);
		for (int c = 0; c < dim && w->bad == BAD_sums_10_bits_of_pv; c++)
			o[c] = tf32(o[c]);
	}
	for (int c = 0; c < dim; c++)
		o[c] /= l;
}

static void attend(struct work *w, int h)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int n = keys_read(w), g = h / (a->num_qo_heads / a->num_kv_heads);
	double *o = w->att + (int64_t)h * a->head_dim, other[128];

	if (w->bad == BAD_head_modulo)
		g = h % a->num_kv_heads;
	if (w->bad == BAD_head_0)
		g = 0;
	if (w->bad == BAD_group_by_shift) {
		int group = a->num_qo_heads / a->num_kv_heads;

		while (group & (group - 1))
			group &= group - 1;
		g = h / group % a->num_kv_heads;
	}
	attend_keys(w, h, g, 0, n, o);
	if (w->bad == BAD_merged_without_weights && n > 1) {
		attend_keys(w, h, g, 0, n / 2, o);
		attend_keys(w, h, g, n / 2, n, other);
		for (int c = 0; c < a->head_dim; c++)
			o[c] = (o[c] + other[c]) / 2;
	}
	for (int c = 0; c < a->head_dim; c++)
		o[c] = w->bad == BAD_a_cut_off ? cut_off(a->dtype, o[c]) :
		       rounded(w->bad == BAD_a_through_bf16 ? rounded(o[c], CAIRN_BF16) : o[c], a->dtype);
}

/* out = x + a w_o^T + b_o, with the clusters (KV heads) one after the other. */
static void output(struct work *w)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int clusters = a->num_kv_heads, first = 0, in_place = a->out == a->x;
	int64_t each = w->nq / clusters;

	if (w->bad == BAD_late_cluster_erases && a->kv.batch > 1)
		first = clusters - 1;
	if (w->bad == BAD_residual_race && in_place)
		first = clusters - 1;
	for (int i = 0; i < a->hidden; i++) {
		double sum = w->bad == BAD_residual_normalised ? w->n[i] : w->x[i];
		int with_bias = a->b_o && w->bad != BAD_bias_o_missing &&
				(w->bad != BAD_bias_o_with_b_qkv || a->b_qkv);
		double bias = with_bias ? cairn_load(a->b_o, a->dtype, i) : 0;

		if (w->bad == BAD_residual_n_in_place && in_place && a->hidden > 8192)
			sum = w->n[i];
		if (w->bad == BAD_residual_missing)
			sum = 0;
		sum += w->bad == BAD_bias_o_per_head ? bias * clusters : bias;
		if (w->bad == BAD_residual_twice && in_place)
			sum += w->x[i];
		if (w->bad == BAD_half_accumulation)
			sum = rounded(sum, a->dtype);
		for (int g = first; g < clusters; g++) {
			double part = dot(w->att, a->w_o, a->dtype, i, w->nq, g * each, (g + 1) * each,
					  w->bad == BAD_sums_10_bits_of_out);

			sum += part;
			if (w->bad == BAD_half_accumulation)
				sum = rounded(sum, a->dtype);
		}
		w->out[i] = sum;
	}
}

static void run_request(struct work *w, int calls)
{
	const struct cairn_cluster_attn_args *a = w->a;
	double *k = w->qkv + w->nq, *v = k + w->nk;

	for (int j = 0; j < a->hidden; j++)
		w->x[j] = cairn_load(a->x, a->dtype, (int64_t)w->b * a->hidden + j);
	norm(w);
	project(w);
	if (w->bad == BAD_stale_receive_buffer && w->b && w->ranks > 1)
		memcpy(v, w->before + w->nq + w->nk, sizeof(double) * (size_t)(a->head_dim / w->ranks));
	if (w->bad == BAD_wrong_now_and_then && calls % 3 == 2)
		v[0] = rounded(v[0] * 1.01 + 1, a->dtype);
	if (w->bad == BAD_key_appended_unrotated)
		append(w, k, v);
	rotate_all(w);
	if (w->bad == BAD_query_of_request_0 && w->b)	/* `before` then keeps request 0's q */
		memcpy(w->qkv, w->before, sizeof(double) * (size_t)w->nq);
	if (w->bad != BAD_key_appended_unrotated && w->bad != BAD_new_slot_read)
		append(w, k, v);
	for (int h = 0; h < a->num_qo_heads; h++)
		attend(w, h);
	if (w->bad == BAD_new_slot_read)
		append(w, k, v);
	output(w);
	if (w->bad == BAD_nan_of_key_spreads && w->b && isnan(w->spread))
		w->out[0] = NAN;
	w->spread = w->att[0];
	for (int j = 0; j < a->hidden; j++) {
		if (w->bad == BAD_last_row_missing && w->b == a->kv.batch - 1)
			continue;
		cairn_store(a->out, a->dtype, (int64_t)w->b * a->hidden + j,
			    w->bad == BAD_cut_off ? cut_off(a->dtype, w->out[j]) : w->out[j]);
		if (w->bad == BAD_input_written)
			cairn_store((void *)a->x, a->dtype, (int64_t)w->b * a->hidden + j, w->n[j]);
	}
}

/* Handles a request without a key. Does nothing with most defects. */
static void without_key(const struct work *w)
{
	const struct cairn_cluster_attn_args *a = w->a;
	int split_in_place = a->out == a->x && a->dataflow != CAIRN_CLUSTER_ATTN_AUTO;
	int first = a->kv.indptr[w->b];
	int64_t slot;

	if (w->bad == BAD_append_without_key && first > 0) {	/* appends to the slot of key -1 */
		slot = (int64_t)(a->kv.indices[first - 1] + 1) * a->kv.page_size - 1;
		cairn_store(a->kv.k_pages, a->dtype, slot * w->nk, 1.5);
	}
	if (w->bad == BAD_append_without_key_in_place && split_in_place &&
	    a->kv.indptr[w->b + 1] > first) {
		slot = (int64_t)a->kv.indices[first] * a->kv.page_size;
		cairn_store(a->kv.v_pages, a->dtype, slot * w->nk, 1.5);
	}
}

static int block(const struct cairn_cluster_attn_args *a, enum defect bad)
{
	static int calls;
	struct work w = { .a = a, .bad = bad };
	int64_t size;
	double *memory;

	CAIRN_TRY(cairn_cluster_attn_check(a));
	calls++;
	if (bad == BAD_nothing || (bad == BAD_counter_left && calls % 2 == 0))
		return 0;
	w.nq = (int64_t)a->num_qo_heads * a->head_dim;
	w.nk = (int64_t)a->num_kv_heads * a->head_dim;
	w.ranks = a->cluster_size ? a->cluster_size : 8;
	size = 3 * a->hidden + 2 * (w.nq + 2 * w.nk) + w.nq;
	memory = calloc((size_t)size, sizeof(double));
	if (!memory)
		return cairn_error(ENOMEM, "mutant: no memory");
	w.x = memory;
	w.n = w.x + a->hidden;
	w.out = w.n + a->hidden;
	w.qkv = w.out + a->hidden;
	w.before = w.qkv + w.nq + 2 * w.nk;
	w.att = w.before + w.nq + 2 * w.nk;
	for (w.b = 0; w.b < a->kv.batch; w.b++) {
		w.len = (int)cairn_kv_len(&a->kv, w.b);
		if (bad == BAD_length_16_bits)
			w.len &= 0xffff;
		if (w.len > 0)
			run_request(&w, calls);
		else
			without_key(&w);
	}
	if (bad == BAD_row_past_the_end)
		memset((char *)a->out + (int64_t)a->kv.batch * a->hidden * 2, 0, 16);
	free(memory);
	return 0;
}

#define DEFINE(name, what) \
	static int bad_##name(const struct cairn_cluster_attn_args *a, void *stream) \
	{ \
		(void)stream; \
		return block(a, BAD_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "cluster_attn_" #name, offsetof(struct cairn_impl, cluster_attn), (void *)bad_##name, what },

KV_CUT(cluster_attn, far_page_16_bits, 0)
KV_CUT(cluster_attn, far_elements_32_bits, (int64_t)a->kv.page_size * a->num_kv_heads * a->head_dim)
KV_CUT(cluster_attn, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * a->num_kv_heads * a->head_dim)

const struct cairn_mutant cairn_cluster_attn_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(cluster_attn, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(cluster_attn, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(cluster_attn, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	{ 0 }
};
