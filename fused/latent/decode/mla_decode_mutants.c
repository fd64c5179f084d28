// SPDX-License-Identifier: Apache-2.0
/*
 * mla_decode - wrong implementations that the cases must catch: a plain chain, in double, with one mistake
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/kept.h"
#include "fused/latent/decode/mla_decode.h"
#include "primitives/base/bend.h"
#include "primitives/base/args.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "fused/cache/kv_cut.h"
#include "primitives/base/row_factor.h"

#define RANK	512
#define ROPE	64
#define DIM	(RANK + ROPE)
#define MAX_KEYS 6144		/* keys of a row, in the plain chain */

enum bend {
	last_key_missing, rope_missing, latent_missing, rope_from_latent, value_of_head_0, heads_of_token_0,
	last_dims_of_key_lost, last_dims_of_out_lost, scale_of_192, not_causal, causal_from_the_first_key,
	last_page_first, page_48_as_32, page_128_as_64, last_of_64_lost, tile_of_64_lost,
	part_weights_lost, part_max_lost, rest_not_zeroed, nothing_without_rows,
	lse_base_2, lse_of_rest, lse_without_keys, lse_not_written, lse_before_scale, no_keys_nan,
	nan_of_head_spreads, nan_of_request_spreads, tail_times_zero,
	rope_of_head_0, latent_stride_needs_rope, rope_stride_needs_latent, strides_equal,
	fourth_scale, scale_magnitude,
	scale_of_first_key, scale_after_rope, codes_without_subnormals, codes_by_64,
	no_key_as_slot_0, no_key_ends_list, no_key_ends_long_list, repeated_slot_once, next_list_read,
	list_of_request, slot_as_key,
	qk_sums_f16, qk_sums_10_bits, pv_sums_f16, p_cut_off, out_cut_off, logits_in_dtype, p_through_f16,
	sum_of_rounded_p, small_weights_dropped, tiles_dropped,
};

struct chain {
	double q[DIM], o[RANK], key[DIM], s[MAX_KEYS];
	int64_t slot[MAX_KEYS];
	float wide[MAX_KEYS][DIM];	/* a row's converted 8-bit keys, which its heads share */
};

static double product(const double *x, const double *y, int n, enum bend bend)
{
	double sum = 0;

	if (bend != qk_sums_f16 && bend != qk_sums_10_bits)
		return cairn_dot(x, y, n);
	for (int i = 0; i < n; i += 16)
		sum = narrow_sum(sum + cairn_dot(x + i, y + i, 16), bend == qk_sums_f16);
	return sum;
}

static void load_8bit(const struct cairn_mla_decode_args *a, int64_t slot, double *key, enum bend bend)
{
	const uint8_t *pool = a->kv.k_pages, *row = pool + slot * CAIRN_MLA_FP8_BYTES;
	const uint8_t *scales = (bend == scale_of_first_key ? pool : row) + RANK;
	float scale;

	for (int l = 0; l < RANK; l++) {
		int g = bend == codes_by_64 ? l / 64 % 4 : l / CAIRN_MLA_FP8_GROUP;
		float v = cairn_e4m3_to_float(row[l]);

		memcpy(&scale, scales + 4 * (bend == fourth_scale && g == 3 ? 2 : g), sizeof(scale));
		if (bend == codes_without_subnormals && fabsf(v) < 0x1p-6f)
			v = 0;
		if (bend == scale_magnitude)
			scale = fabsf(scale);
		key[l] = rounded(a->dtype, (double)v * (double)scale);
	}
	cairn_widen(key + RANK, row + RANK + (bend == scale_after_rope ? 0 : 16), a->dtype, 0, ROPE);
}

/* Converts the first n keys of the list from 8 bits. */
static void widen_keys(const struct cairn_mla_decode_args *a, struct chain *c, int n, enum bend bend)
{
	for (int j = 0; j < n; j++) {
		if (c->slot[j] < 0)
			continue;
		load_8bit(a, c->slot[j], c->key, bend);
		cairn_narrow(c->wide, CAIRN_F32, (int64_t)j * DIM, c->key, DIM);
	}
}

/* Puts key j of the list into c->key. */
static void load_key(const struct cairn_mla_decode_args *a, struct chain *c, int j)
{
	if (a->kv_fp8)
		cairn_widen(c->key, c->wide, CAIRN_F32, (int64_t)j * DIM, DIM);
	else
		cairn_widen(c->key, a->kv.k_pages, a->dtype, c->slot[j] * DIM, DIM);
}

/* Puts the key of a slot outside the list into c->key. */
static void load_slot(const struct cairn_mla_decode_args *a, struct chain *c, int64_t slot, enum bend bend)
{
	if (a->kv_fp8)
		load_8bit(a, slot, c->key, bend);
	else
		cairn_widen(c->key, a->kv.k_pages, a->dtype, slot * DIM, DIM);
}

static int64_t page_slot(const struct cairn_mla_decode_args *a, int b, int j, enum bend bend)
{
	int32_t size = a->kv.page_size, pages = a->kv.indptr[b + 1] - a->kv.indptr[b], page;

	if (bend == page_48_as_32 && size == 48)
		size = 32;
	if (bend == page_128_as_64 && size == 128)
		size = 64;
	page = j / size < pages ? j / size : pages - 1;
	if (bend == last_page_first && page == 0 && pages > 1)
		page = pages - 1;
	return (int64_t)a->kv.indices[a->kv.indptr[b] + page] * size + j % size;
}

/* Lists the slots of row i of request b in c->slot; returns their number. */
static int list_pages(const struct cairn_mla_decode_args *a, int b, int i, struct chain *c, enum bend bend)
{
	int qo = a->qo_indptr[b + 1] - a->qo_indptr[b], len = (int)cairn_kv_len(&a->kv, b);
	int n = bend == not_causal ? len : bend == causal_from_the_first_key ? i + 1 : i + 1 + len - qo;

	n = n < 0 ? 0 : n > len ? len : n;
	for (int j = 0; j < n; j++)
		c->slot[j] = page_slot(a, b, j, bend);
	if (bend == last_key_missing && n > 1)
		n--;
	if (bend == last_of_64_lost && n > 4096 && n % 64 == 1)
		n--;
	for (int j = 64; j < 128 && bend == tile_of_64_lost && n > 128; j++)
		c->slot[j] = -1;
	return n;
}

static int list_slots(const struct cairn_mla_decode_args *a, int b, int i, struct chain *c, enum bend bend)
{
	int64_t row = a->qo_indptr[b] + (bend == list_of_request ? 0 : i);
	int n = a->num_slots, more = bend == next_list_read && row + 1 < a->nnz_qo;

	for (int j = 0; j < n + more; j++) {
		c->slot[j] = a->slots[row * n + j];
		if (c->slot[j] < 0 && (bend == no_key_ends_list ||
				       (bend == no_key_ends_long_list && j > 1024)))
			return j;
		if (c->slot[j] < 0 && bend == no_key_as_slot_0)
			c->slot[j] = 0;
		if (c->slot[j] >= 0 && bend == slot_as_key)
			c->slot[j] = page_slot(a, b, (int)c->slot[j] % (int)cairn_kv_len(&a->kv, b), bend);
		for (int k = 0; k < j && bend == repeated_slot_once; k++)
			if (c->slot[k] == c->slot[j])
				c->slot[j] = -1;
	}
	return n + more;
}

static void load_query(const struct cairn_mla_decode_args *a, int64_t at, int h, struct chain *c,
		       enum bend bend)
{
	int64_t from = bend == heads_of_token_0 ? h : at, rope = bend == rope_of_head_0 ? at - h : from;

	int64_t latent_stride = cairn_mla_latent_stride(a), rope_stride = cairn_mla_rope_stride(a);

	if (bend == latent_stride_needs_rope && !a->q_rope_stride)
		latent_stride = RANK;
	if (bend == rope_stride_needs_latent && !a->q_latent_stride)
		rope_stride = ROPE;
	if (bend == strides_equal && a->q_latent_stride && a->q_rope_stride)
		rope_stride = latent_stride;
	cairn_widen(c->q, a->q_latent, a->dtype, from * latent_stride, RANK);
	cairn_widen(c->q + RANK, a->q_rope, a->dtype, rope * rope_stride, ROPE);
	if (bend == rope_from_latent)
		memcpy(c->q + RANK, c->q + RANK - ROPE, ROPE * sizeof(double));
	for (int l = 0; l < DIM; l++)
		if ((bend == rope_missing && l >= RANK) || (bend == latent_missing && l < RANK) ||
		    (bend == last_dims_of_key_lost && l >= RANK - ROPE && l < RANK))
			c->q[l] = 0;
}

/* Returns the largest logit of the 16 keys around key j. */
static double best_of_tile(const double *s, int j, int n)
{
	double best = -INFINITY;

	for (int k = j / 16 * 16; k < j / 16 * 16 + 16 && k < n; k++)
		best = fmax(best, s[k]);
	return best;
}

static double weight_of(const struct cairn_mla_decode_args *a, const struct chain *c, int j, int n,
			double top, enum bend bend)
{
	double p = exp(c->s[j] - top);

	if (bend == part_max_lost && j < n / 2)		/* relative to the maximum of its own part */
		p = exp(c->s[j] - fmax(c->s[0], -1e30));
	if (bend == p_through_f16)
		p = rounded(CAIRN_F16, p);
	if ((bend == small_weights_dropped && c->s[j] < top - 26) ||
	    (bend == tiles_dropped && best_of_tile(c->s, j, n) < top - 20))
		p = 0;
	return bend == sum_of_rounded_p ? cut_off(a->dtype, p) : p;
}

/* Adds up the values of keys first .. end - 1 in c->o; returns the sum of their weights. */
static double add_values(const struct cairn_mla_decode_args *a, struct chain *c, int first, int end, int n,
			 double top, enum bend bend)
{
	double sum = 0;

	for (int j = first; j < end; j++) {
		double p = weight_of(a, c, j, n, top, bend);

		if (c->slot[j] < 0)
			continue;
		sum += p;
		p = bend == p_cut_off ? cut_off(a->dtype, p) : rounded(a->dtype, p);
		load_key(a, c, j);
		cairn_add_scaled(c->o, p, c->key, RANK);
		for (int l = 0; l < RANK && bend == pv_sums_f16 && j % 16 == 15; l++)
			c->o[l] = narrow_sum(c->o[l], 1);
	}
	return sum;
}

/* The mean of the results of both halves of the keys, as if their weights were equal. */
static double mean_of_parts(const struct cairn_mla_decode_args *a, struct chain *c, int n, double top)
{
	double first[RANK], sum;

	sum = add_values(a, c, 0, n / 2, n, top, part_weights_lost);
	for (int l = 0; l < RANK; l++) {
		first[l] = sum > 0 ? c->o[l] / sum : 0;
		c->o[l] = 0;
	}
	sum = add_values(a, c, n / 2, n, n, top, part_weights_lost);
	for (int l = 0; l < RANK && sum > 0; l++)
		c->o[l] = (first[l] + c->o[l] / sum) / 2;
	return sum > 0;
}

static void finish_row(const struct cairn_mla_decode_args *a, int64_t at, struct chain *c, double top,
		       double l, enum bend bend)
{
	double lse = l > 0 ? top + log(l) : -INFINITY;

	for (int k = 0; k < RANK; k++) {
		double v = l > 0 ? c->o[k] / l : bend == no_keys_nan ? NAN : 0;

		if (bend == last_dims_of_out_lost && k >= RANK - ROPE)
			v = 0;
		if (bend == out_cut_off)
			v = cut_off(a->dtype, v);
		cairn_store(a->out, a->dtype, at * RANK + k, v);
	}
	if (!a->lse || bend == lse_not_written)
		return;
	if (bend == lse_base_2)
		lse *= 1.44269504;
	if (bend == lse_without_keys && isinf(lse))
		lse = 0;
	if (bend == lse_before_scale && l > 0)
		lse = top / (double)a->sm_scale + log(l);
	a->lse[at] = (float)lse;
}

/* Computes head h of row i of request b. */
static void plain_head(const struct cairn_mla_decode_args *a, int b, int i, int h, struct chain *c,
		       enum bend bend)
{
	int64_t at = ((int64_t)a->qo_indptr[b] + i) * a->num_heads + h;
	int n = a->num_slots ? list_slots(a, b, i, c, bend) : list_pages(a, b, i, c, bend);
	double top = -INFINITY, l;

	if (a->kv_fp8 && h == 0)
		widen_keys(a, c, n, bend);
	load_query(a, at, h, c, bend);
	memset(c->o, 0, sizeof(c->o));
	for (int j = 0; j < n; j++) {
		c->s[j] = -INFINITY;
		if (c->slot[j] < 0)
			continue;
		load_key(a, c, j);
		c->s[j] = (double)a->sm_scale * (bend == scale_of_192 ? 1.0607 : 1) *
			  product(c->q, c->key, DIM, bend);
		if (bend == logits_in_dtype)
			c->s[j] = rounded(a->dtype, c->s[j]);
		top = isnan(c->s[j]) ? c->s[j] : fmax(top, c->s[j]);
	}
	if (top == -INFINITY)
		l = 0;
	else if (bend == part_weights_lost && n > 128)
		l = mean_of_parts(a, c, n, top);
	else
		l = add_values(a, c, 0, n, n, top, bend);
	if (isnan(top))
		l = 1;
	if (bend == value_of_head_0 && h > 0)
		for (int k = 0; k < RANK; k++)
			c->o[k] = cairn_load(a->out, a->dtype, (at - h) * RANK + k) * l;
	/* the slots of the last tile past the end, as far as they are in the last page */
	for (int j = n; bend == tail_times_zero && !a->num_slots && n && j % 64 && j % a->kv.page_size; j++) {
		load_slot(a, c, page_slot(a, b, j, bend), bend);
		cairn_add_scaled(c->o, 0, c->key, RANK);
	}
	finish_row(a, at, c, top, l, bend);
}

/* Copies a NaN from one head, or from the last row of a request, to the next one. */
static void spread_nan(const struct cairn_mla_decode_args *a, enum bend bend)
{
	int64_t all = (int64_t)a->nnz_qo * a->num_heads;

	/* from the end, so that a NaN spreads by one head only */
	for (int64_t i = all - 1; i > 0 && bend == nan_of_head_spreads; i--)
		if (isnan(cairn_load(a->out, a->dtype, (i - 1) * RANK)))
			cairn_store(a->out, a->dtype, i * RANK, NAN);
	for (int b = 0; b + 1 < a->kv.batch && bend == nan_of_request_spreads; b++) {
		int64_t next = (int64_t)a->qo_indptr[b + 1] * a->num_heads;

		if (next > 0 && next < all && isnan(cairn_load(a->out, a->dtype, (next - 1) * RANK)))
			cairn_store(a->out, a->dtype, next * RANK, NAN);
	}
}

static void write_rest(const struct cairn_mla_decode_args *a, enum bend bend)
{
	int64_t first = (int64_t)a->qo_indptr[a->kv.batch] * a->num_heads;

	if (bend == rest_not_zeroed || (bend == nothing_without_rows && !first))
		return;
	for (int64_t i = first; i < (int64_t)a->nnz_qo * a->num_heads; i++) {
		for (int l = 0; l < RANK; l++)
			cairn_store(a->out, a->dtype, i * RANK + l, 0);
		if (a->lse && bend != lse_not_written)
			a->lse[i] = bend == lse_of_rest ? 0 : -INFINITY;
	}
}

static int bent(const struct cairn_mla_decode_args *args, enum bend bend)
{
	struct cairn_mla_decode_args a;
	struct chain *c;
	int most = 0;

	CAIRN_TRY(cairn_mla_decode_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.kv.batch || !a.nnz_qo)
		return 0;
	for (int b = 0; b < a.kv.batch && !a.num_slots; b++)
		most = (int)cairn_kv_len(&a.kv, b) > most ? (int)cairn_kv_len(&a.kv, b) : most;
	if ((a.num_slots ? a.num_slots + 1 : most) > MAX_KEYS)
		return cairn_mla_decode_ref(&a, NULL);
	c = malloc(sizeof(*c));
	if (!c)
		return cairn_error(ENOMEM, "mla_decode_mutants: no memory");
	write_rest(&a, bend);
	for (int b = 0; b < a.kv.batch; b++)
		for (int i = 0; i < a.qo_indptr[b + 1] - a.qo_indptr[b]; i++)
			for (int h = 0; h < a.num_heads; h++)
				plain_head(&a, b, i, h, c, bend);
	spread_nan(&a, bend);
	free(c);
	return 0;
}

#define DEFECTS(D) \
	D(last_key_missing, "no row sees its last key") \
	D(rope_missing, "the score has no rotated part") \
	D(latent_missing, "the score has only its rotated part") \
	D(rope_from_latent, "the rotated part of the query is taken from the latent part") \
	D(value_of_head_0, "all heads of a token get the result of head 0") \
	D(heads_of_token_0, "all tokens use the query of the first token") \
	D(last_dims_of_key_lost, "the score lacks the last 64 dimensions of the latent") \
	D(last_dims_of_out_lost, "the last 64 dimensions of out are 0") \
	D(scale_of_192, "the logits are a sixteenth too large") \
	D(not_causal, "rows see keys that come after them") \
	D(causal_from_the_first_key, "row i of a request sees the first i + 1 keys") \
	D(last_page_first, "the last page of a request is also read as its first") \
	D(page_48_as_32, "pages of 48 are addressed as pages of 32") \
	D(page_128_as_64, "pages of 128 are addressed as pages of 64") \
	D(last_of_64_lost, "the last key past 4096 is left out if it begins 64 new ones") \
	D(tile_of_64_lost, "with more than two tiles of 64 keys the second one is left out") \
	D(part_weights_lost, "two parts of the keys are merged without their weights") \
	D(part_max_lost, "the weights of the first half of the keys are relative to the first key") \
	D(rest_not_zeroed, "rows past the last request are not zeroed") \
	D(nothing_without_rows, "nothing is written if no request has a row") \
	D(lse_base_2, "lse is a logarithm of base 2") \
	D(lse_of_rest, "lse of rows past the last request is 0") \
	D(lse_without_keys, "lse of rows without a key is 0") \
	D(lse_not_written, "lse is not written") \
	D(lse_before_scale, "lse has the maximum before the scale") \
	D(no_keys_nan, "rows without a key are NaN") \
	D(nan_of_head_spreads, "a NaN in a query makes the next head or row NaN") \
	D(nan_of_request_spreads, "a NaN in a request makes the next request NaN") \
	D(tail_times_zero, "slots past the last key are multiplied by 0") \
	D(latent_stride_needs_rope, "q_latent_stride counts only if q_rope_stride is given") \
	D(rope_stride_needs_latent, "q_rope_stride counts only if q_latent_stride is given") \
	D(strides_equal, "rows of q_rope are as far apart as those of q_latent") \
	D(rope_of_head_0, "all heads of a token use the rotated part of head 0") \
	D(fourth_scale, "the last 128 codes use the third scale") \
	D(scale_magnitude, "the signs of the scales of 8-bit keys are ignored") \
	D(scale_of_first_key, "all keys use the scales of the pool's first key") \
	D(scale_after_rope, "the rotated part is read from where the scales are") \
	D(codes_without_subnormals, "subnormal codes count as 0") \
	D(codes_by_64, "scales change every 64 codes") \
	D(no_key_as_slot_0, "a number below 0 stands for slot 0") \
	D(no_key_ends_list, "a number below 0 ends the list") \
	D(no_key_ends_long_list, "a number below 0 behind 1024 others ends the list") \
	D(repeated_slot_once, "a slot that is listed twice counts once") \
	D(next_list_read, "a list has one number more, the first of the next list") \
	D(list_of_request, "all rows of a request use the list of its first row") \
	D(slot_as_key, "numbers of a list count the keys of the request") \
	D(qk_sums_f16, "logits are summed in f16") \
	D(qk_sums_10_bits, "logits are summed with the 10 bits of TF32") \
	D(pv_sums_f16, "the weighted sum of latents is f16") \
	D(p_cut_off, "P is cut off instead of rounded") \
	D(out_cut_off, "out is cut off instead of rounded") \
	D(logits_in_dtype, "logits are rounded to dtype") \
	D(p_through_f16, "P is rounded to f16, whatever dtype is") \
	D(sum_of_rounded_p, "P is cut off before it is summed") \
	D(small_weights_dropped, "keys below e^-26 of the largest weight are left out") \
	D(tiles_dropped, "16 keys are left out if all are below e^-20 of the largest weight")

#define DEFINE(defect, words) \
	static int mla_decode_##defect(const struct cairn_mla_decode_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent(a, defect); \
	}
#define LIST(defect, words) \
	{ "mla_decode_" #defect, offsetof(struct cairn_impl, mla_decode), (void *)mla_decode_##defect, \
	  words },
DEFECTS(DEFINE)

KV_KEYS(mla_decode)
KV_CUT(mla_decode, far_page_16_bits, 0)
KV_CUT(mla_decode, far_elements_32_bits, (int64_t)a->kv.page_size * DIM)
KV_CUT(mla_decode, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * DIM)

static int mla_decode_lists_needed(const struct cairn_mla_decode_args *a, void *stream)
{
	CAIRN_TRY(cairn_mla_decode_check(a));
	return a->kv.indptr ? cairn_mla_decode_ref(a, stream) : -EINVAL;
}

/* Takes rows of q_rope that are more than 4096 elements apart for packed. */
static int mla_decode_rope_stride_12_bits(const struct cairn_mla_decode_args *args, void *stream)
{
	struct cairn_mla_decode_args a;

	CAIRN_TRY(cairn_mla_decode_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (a.q_rope_stride > 4096)
		a.q_rope_stride = a.rope_dim;
	return cairn_mla_decode_ref(&a, stream);
}

KV_CUT(mla_decode, fp8_far_32_bits, a->kv_fp8 ? (int64_t)a->kv.page_size * CAIRN_MLA_FP8_BYTES : -1)

/* Keeps a list of slots as long as its address is the same, if there is one row. */
static int mla_decode_slots_kept(const struct cairn_mla_decode_args *args, void *stream)
{
	struct cairn_mla_decode_args a;

	CAIRN_TRY(cairn_mla_decode_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (a.num_slots && a.nnz_qo == 1)
		a.slots = kept(a.slots, a.num_slots);
	return cairn_mla_decode_ref(&a, stream);
}

/* With 17 heads and one key past whole tiles of 64, the last element is 0. */
static int mla_decode_last_row_at_end(const struct cairn_mla_decode_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_mla_decode_ref(a, stream));
	rows = a->kv.batch ? a->qo_indptr[a->kv.batch] : 0;
	if (rows && a->num_heads == 17 && !a->num_slots && cairn_kv_len(&a->kv, 0) % 64 == 1)
		cairn_store(a->out, a->dtype, rows * 17 * 512 - 1, 0);
	return 0;
}

/* Rounds the normaliser of each row to dtype. */
static int mla_decode_normaliser_in_dtype(const struct cairn_mla_decode_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_mla_decode_ref(a, stream));
	rows = a->kv.batch ? a->qo_indptr[a->kv.batch] : 0;
	if (a->lse)
		row_factor(a->out, a->dtype, rows * a->num_heads, 512, a->lse);
	return 0;
}

/* With keys of 8 bits, a slot alone behind whole tiles of 64 spoils the last element. */
static int mla_decode_lone_last_slot(const struct cairn_mla_decode_args *a, void *stream)
{
	struct cairn_mla_decode_args b;
	int64_t rows;

	CAIRN_TRY(cairn_mla_decode_ref(a, stream));
	cairn_copy_args(&b, a, sizeof(b));
	rows = b.kv.batch ? b.qo_indptr[b.kv.batch] : 0;
	if (b.kv_fp8 && b.num_slots > 64 && b.num_slots % 64 == 1 && rows)
		cairn_store(b.out, b.dtype, rows * b.num_heads * 512 - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_mla_decode_mutants[] = {
	DEFECTS(LIST)
	LIST(lists_needed, "a call with slots and without lists of pages is refused")
	LIST(rope_stride_12_bits, "a stride of q_rope above 4096 is ignored")
	LIST(fp8_far_32_bits, "the offset of a page of 8-bit keys is cut to 32 bits")
	LIST(slots_kept, "a single row's list of slots is read once for each address")
	KV_CUT_ROW(mla_decode, keys_16_bits, "numbers of keys are cut to 16 bits")
	KV_CUT_ROW(mla_decode, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(mla_decode, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(mla_decode, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	{ "mla_decode_last_row_at_end", offsetof(struct cairn_impl, mla_decode),
	  (void *)mla_decode_last_row_at_end,
	  "with 17 heads and one key past whole tiles, the last element is 0" },
	{ "mla_decode_normaliser_in_dtype", offsetof(struct cairn_impl, mla_decode),
	  (void *)mla_decode_normaliser_in_dtype,
	  "the normaliser is rounded to dtype" },
	{ "mla_decode_lone_last_slot", offsetof(struct cairn_impl, mla_decode),
	  (void *)mla_decode_lone_last_slot,
	  "8-bit keys: a single slot past whole tiles of 64 makes the last element 0" },
	{ 0 }
};
