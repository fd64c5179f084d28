// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_mutants - wrong implementations that the cases must catch
 *
 * All mutants share one plain attention, which computes one row at a time in double. A switch selects the
 * defect, one that the hooks invite. attn_dense_mutants.c has the mutants of everything that attn_variant
 * shares with attn_dense.
 */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/variant/attn_variant.h"
#include "primitives/base/row_factor.h"

#define TILE	128	/* keys of a tile */
#define SLICE	512	/* keys of a slice */

/* D(name, description) */
#define DEFECTS(D) \
	D(rope_by_ordinal, "queries are rotated by their index in the request, not their position") \
	D(rope_key_by_ordinal, "keys are rotated by their row of K, counted over all requests") \
	D(rope_other_pairing, "the pairs are those of the other pairing") \
	D(rope_pairing_of_instance, "instances have one pairing each, and their key in the cache lacks it") \
	D(rope_query_only, "keys are not rotated") \
	D(rope_backwards, "q and k are rotated the other way") \
	D(rope_frequency_of_next_pair, "pairs have the frequency of the next pair") \
	D(rope_last_tile_unrotated, "keys past the last whole tile are not rotated") \
	D(alibi_slope_of_kv_head, "the slope is that of the KV head") \
	D(alibi_sign, "the bias grows with the distance") \
	D(alibi_of_distance, "keys of the future are biased by the size of the distance") \
	D(alibi_by_ordinal, "the distance is counted from the row's index in its request") \
	D(alibi_before_scale, "the bias is multiplied by sm_scale") \
	D(alibi_in_tile, "the bias lacks what all keys of a tile of 128 share") \
	D(alibi_of_eight, "eight consecutive keys have the bias of the first") \
	D(cap_twice, "the cap is applied twice") \
	D(cap_missing, "the cap is not applied") \
	D(cap_before_scale, "q k is capped before it is scaled") \
	D(sink_per_part, "the sink is added once for each tile of keys") \
	D(sink_in_max_only, "the sink raises the maximum, but is not added to the sum") \
	D(sink_not_in_max, "the sum is relative to the largest logit of a key, which the sink may exceed") \
	D(sink_not_in_lse, "lse lacks the sink") \
	D(sink_of_kv_head, "the sink is that of the KV head") \
	D(sink_without_keys, "a row without keys has no sink") \
	D(sigmoid_normalised, "sigmoid's weights are divided by their sum") \
	D(sigmoid_without_bias, "the bias is left out") \
	D(sigmoid_hidden_half, "hidden keys have a weight of one half") \
	D(range_short, "the window lacks its oldest key") \
	D(range_far, "the window has one key too many") \
	D(range_from_tile, "the window begins at the start of a tile") \
	D(range_of_first_row, "all rows have the window of the first row of their 64") \
	D(range_behind_part, "two parts of 512 keys, in neither of which a row sees a key, give it NaN") \
	D(empty_tile_untouched, "rows whose window holds no key are not written") \
	D(bits_msb_first, "bits are read from the most significant one on") \
	D(bits_row_of_request, "the line of bits is counted from the request's first row") \
	D(bits_ignored, "all keys are seen") \
	D(bits_or_causal, "a key is seen if either its bit or the causal mask says so") \
	D(rope_of_8192, "keys past the 8192nd are not rotated") \
	D(range_of_1024, "a window of more than 1024 keys lacks its oldest one") \
	D(bits_of_64_words, "lines of bits have at most 64 words") \
	D(p_of_float_16, "p[0] is rounded to 8 bits") \
	D(slice_missing, "with more than 1024 keys, those past the last whole slice of 512 are left out") \
	D(slices_equal, "slices of 512 keys have equal weights") \
	D(slices_of_sigmoid, "the weights of sigmoid are divided by the number of slices of 512 keys") \
	D(slice_lse, "lse is that of the first 512 keys") \
	D(rope_by_slice, "keys are rotated by their place in a slice of 512") \
	D(rope_rows_of_step, "of each tile of 128 keys, only the first 112 are rotated") \
	D(rope_of_stage, "keys are rotated as those three tiles of 128 before them")

#define NAME(name, what)	VARIANT_##name,
enum variant_defect { DEFECTS(NAME) };

/* A row of one head, and the keys that it sees. */
struct row {
	int b, i, h, g, qo_len, kv_len, position, first, end;
	int64_t token;
};

static int is_pair_of(const struct cairn_attn_variant_args *a, enum variant_defect x)
{
	if (x == VARIANT_rope_other_pairing)
		return !a->interleaved;
	return x == VARIANT_rope_pairing_of_instance ? a->head_dim == 64 : a->interleaved != 0;
}

static double narrow(double v, int dtype)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

static void rotate(const struct cairn_attn_variant_args *a, double *v, int position, enum variant_defect x)
{
	int half = a->head_dim / 2, interleaved = is_pair_of(a, x);

	for (int n = 0; n < half; n++) {
		int p = interleaved ? 2 * n : n, q = interleaved ? p + 1 : n + half;
		int at = x == VARIANT_rope_frequency_of_next_pair && n + 1 < half ? n + 1 : n;
		float angle = (float)position * a->t[0][at];
		double c = cos((double)angle), s = sin((double)angle), first = v[p];

		if (x == VARIANT_rope_backwards)
			s = -s;
		v[p] = narrow(first * c - v[q] * s, a->dtype);
		v[q] = narrow(v[q] * c + first * s, a->dtype);
	}
}

static int sees(const struct cairn_attn_variant_args *a, const struct row *r, int j, enum variant_defect x)
{
	int line = x == VARIANT_bits_row_of_request ? r->i : (int)r->token, words = (int)a->p[0];
	const int most = x == VARIANT_bits_of_64_words ? 64 : INT32_MAX;
	int causal = !a->causal || j <= r->position, bit = j % 32;
	uint32_t word;

	words = words < most ? words : most;
	if (x == VARIANT_slice_missing && r->kv_len > 1024 && j >= r->kv_len / SLICE * SLICE)
		return 0;
	if (a->variant != CAIRN_VARIANT_BITS || x == VARIANT_bits_ignored)
		return causal && j >= r->first;
	memcpy(&word, a->t[0] + (int64_t)line * words + j / 32, sizeof(word));
	if (x == VARIANT_bits_msb_first)
		bit = 31 - bit;
	if (x == VARIANT_bits_or_causal && a->causal)
		return causal || (word >> bit & 1);
	return causal && (word >> bit & 1);
}

static double logit(const struct cairn_attn_variant_args *a, const struct row *r, int j, double dot,
		    enum variant_defect x)
{
	double s = dot * (double)a->sm_scale, cap = (double)a->p[0], distance = j - r->position, slope;

	if (x == VARIANT_p_of_float_16)
		cap = narrow(cap, CAIRN_BF16);
	if (a->variant == CAIRN_VARIANT_SOFTCAP && x != VARIANT_cap_missing) {
		s = cap * tanh((x == VARIANT_cap_before_scale ? dot : s) / cap) *
		    (x == VARIANT_cap_before_scale ? (double)a->sm_scale : 1);
		s = x == VARIANT_cap_twice ? cap * tanh(s / cap) : s;
	}
	if (a->variant == CAIRN_VARIANT_ALIBI) {
		slope = (double)a->t[0][x == VARIANT_alibi_slope_of_kv_head ? r->g : r->h];
		if (x == VARIANT_alibi_by_ordinal)
			distance = j - r->i;
		if (x == VARIANT_alibi_in_tile)
			distance = j % 128;
		if (x == VARIANT_alibi_of_eight)
			distance -= j % 8;
		if (x == VARIANT_alibi_sign || (x == VARIANT_alibi_of_distance && distance > 0))
			distance = -distance;
		s += slope * distance * (x == VARIANT_alibi_before_scale ? (double)a->sm_scale : 1);
	}
	if (a->variant == CAIRN_VARIANT_SIGMOID)
		s = 1 / (1 + exp(-(s + (x == VARIANT_sigmoid_without_bias ? 0 : cap))));
	return s;
}

static struct row row_of(const struct cairn_attn_variant_args *a, int b, int i, int h, enum variant_defect x)
{
	struct row r = { .b = b, .i = i, .h = h, .token = a->qo_indptr[b] + i };
	int of = x == VARIANT_range_of_first_row ? i / 64 * 64 : i, position, window = (int)a->p[0];

	r.g = h / (a->num_qo_heads / a->num_kv_heads);
	r.qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b];
	r.kv_len = a->kv_indptr[b + 1] - a->kv_indptr[b];
	r.position = i + r.kv_len - r.qo_len;
	position = of + r.kv_len - r.qo_len;
	if (a->variant == CAIRN_VARIANT_PLAIN && window > 0)
		r.first = position - window + 1 + (x == VARIANT_range_short) - (x == VARIANT_range_far);
	r.first = r.first < 0 ? 0 : r.first;
	if (x == VARIANT_range_of_1024 && r.first > 0 && window > 1024)
		r.first++;
	if (x == VARIANT_range_from_tile)
		r.first -= r.first % 16;
	return r;
}

static void load_key(const struct cairn_attn_variant_args *a, const struct row *r, int j, double *k,
		     enum variant_defect x)
{
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	int64_t row = (int64_t)a->kv_indptr[r->b] + j;
	int tail = x == VARIANT_rope_last_tile_unrotated && j >= r->kv_len / TILE * TILE;

	for (int c = 0; c < a->head_dim; c++)
		k[c] = cairn_load(a->k, a->dtype, row * cairn_attn_dense_k_stride(&dense) +
				  r->g * cairn_attn_dense_k_head_stride(&dense) + c);
	tail |= x == VARIANT_rope_of_8192 && j >= 8192;
	tail |= x == VARIANT_rope_rows_of_step && j % TILE >= TILE - 16;
	if (a->variant == CAIRN_VARIANT_ROPE && x != VARIANT_rope_query_only && !tail)
		rotate(a, k, x == VARIANT_rope_key_by_ordinal ? (int)row :
		       x == VARIANT_rope_by_slice ? j % SLICE :
		       x == VARIANT_rope_of_stage && j >= 3 * TILE ? j - 3 * TILE : j, x);
}

static void add_value(const struct cairn_attn_variant_args *a, const struct row *r, int j, double p,
		      double *o)
{
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	int64_t at = ((int64_t)a->kv_indptr[r->b] + j) * cairn_attn_dense_v_stride(&dense) +
		     r->g * cairn_attn_dense_v_head_stride(&dense);

	for (int c = 0; c < a->head_dim; c++)
		o[c] += p * cairn_load(a->v, a->dtype, at + c);
}

/* Returns the logits of the row's keys in s (-infinity: hidden), and the largest. */
static double all_logits(const struct cairn_attn_variant_args *a, const struct row *r, double *s,
			 enum variant_defect x)
{
	struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	double q[128], k[128], top = -INFINITY;

	for (int c = 0; c < a->head_dim; c++)
		q[c] = cairn_load(a->q, a->dtype, r->token * cairn_attn_dense_q_stride(&dense) +
				  (int64_t)r->h * a->head_dim + c);
	if (a->variant == CAIRN_VARIANT_ROPE)
		rotate(a, q, x == VARIANT_rope_by_ordinal ? r->i : r->position, x);
	for (int j = 0; j < r->kv_len; j++) {
		double dot = 0;

		s[j] = -INFINITY;
		if (!sees(a, r, j, x))
			continue;
		load_key(a, r, j, k, x);
		for (int c = 0; c < a->head_dim; c++)
			dot += q[c] * k[c];
		s[j] = logit(a, r, j, dot, x);
		top = s[j] > top ? s[j] : top;
	}
	return top;
}

/* Returns the first key that the first of the 16 rows around r sees. */
static int first_of_tile(const struct cairn_attn_variant_args *a, const struct row *r, enum variant_defect x)
{
	int group = a->num_qo_heads / a->num_kv_heads, row = r->i * group + r->h % group;

	return row_of(a, r->b, row / 16 * 16 / group, r->h, x).first;
}

/* Subtracts from each logit the lse of its slice, relative to top. */
static void level_slices(const struct row *r, double *s, double top)
{
	for (int first = 0; first < r->kv_len; first += SLICE) {
		const int end = first + SLICE < r->kv_len ? first + SLICE : r->kv_len;
		double l = 0;

		for (int j = first; j < end; j++)
			l += exp(s[j] - top);
		for (int j = first; j < end && l > 0; j++)
			s[j] -= log(l);
	}
}

static void attend_row(const struct cairn_attn_variant_args *a, const struct row *r, double *s,
		       enum variant_defect x)
{
	int64_t at = r->token * a->num_qo_heads + r->h;
	double o[128] = { 0 }, top = all_logits(a, r, s, x), l = 0, own, sink = -INFINITY,
	       first = 0;
	int weighs = a->variant == CAIRN_VARIANT_SIGMOID, empty = !(top > -INFINITY);

	if (x == VARIANT_empty_tile_untouched && empty && r->kv_len)
		return;
	if (a->variant == CAIRN_VARIANT_PLAIN && a->t[0])
		sink = (double)a->t[0][x == VARIANT_sink_of_kv_head ? r->g : r->h];
	if (x == VARIANT_sink_without_keys && empty)
		sink = -INFINITY;
	if (sink > top && (x != VARIANT_sink_not_in_max || empty))
		top = sink;
	if (x == VARIANT_slices_equal && !weighs && top > -INFINITY)
		level_slices(r, s, top);
	for (int j = 0; j < r->kv_len; j++) {
		double p = weighs ? (s[j] > -INFINITY ? s[j] : 0) : s[j] > -INFINITY ? exp(s[j] - top) : 0;

		if (x == VARIANT_sigmoid_hidden_half && weighs && s[j] == -INFINITY)
			p = 0.5;
		if (x == VARIANT_slices_of_sigmoid && weighs)
			p /= 1 + r->kv_len / SLICE;
		l += p;
		first += j < SLICE ? p : 0;
		if (p != 0)
			add_value(a, r, j, narrow(p, CAIRN_F32), o);
	}
	if (x == VARIANT_range_behind_part && !empty && r->first / 512 > first_of_tile(a, r, x) / 512)
		o[0] = NAN;
	own = l;
	if (sink > -INFINITY && x != VARIANT_sink_in_max_only)
		l += (double)expf((float)(sink - top)) *
		     (x == VARIANT_sink_per_part ? 1 + r->kv_len / TILE : 1);
	for (int c = 0; c < a->head_dim; c++)
		cairn_store(a->out, a->dtype, at * a->head_dim + c,
			    weighs && x != VARIANT_sigmoid_normalised ? o[c] : l > 0 ? o[c] / l : 0);
	if (x == VARIANT_sink_not_in_lse)
		l = own;
	if (x == VARIANT_slice_lse)
		l = first;
	if (a->lse)
		a->lse[at] = l > 0 ? (float)(top + log(l)) : -INFINITY;
}

static int attend(const struct cairn_attn_variant_args *a, enum variant_defect x)
{
	static double s[1 << 14];

	CAIRN_TRY(cairn_attn_variant_check(a));
	for (int b = 0; b < a->batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			for (int h = 0; h < a->num_qo_heads; h++) {
				struct row r = row_of(a, b, i, h, x);

				attend_row(a, &r, s, x);
			}
	return 0;
}

#define DEFINE(name, what) \
	static int attn_variant_##name(const struct cairn_attn_variant_args *a, void *stream) \
	{ \
		(void)stream; \
		return attend(a, VARIANT_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_variant_" #name, offsetof(struct cairn_impl, attn_variant), (void *)attn_variant_##name, \
	  what },

/* Reads the slopes of alibi once for each address. */
static int attn_variant_alibi_slopes_kept(const struct cairn_attn_variant_args *a, void *stream)
{
	static float slopes[64];
	static const float *at;
	struct cairn_attn_variant_args b;

	CAIRN_TRY(cairn_attn_variant_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (a->variant != CAIRN_VARIANT_ALIBI || a->num_qo_heads > 64)
		return cairn_attn_variant_ref(a, stream);
	if (at != a->t[0])
		memcpy(slopes, a->t[0], (size_t)a->num_qo_heads * sizeof(slopes[0]));
	at = a->t[0];
	b.t[0] = slopes;
	return cairn_attn_variant_ref(&b, stream);
}

/* With 63 rows and one key past whole tiles, the last element is 0. */
static int attn_variant_last_row_at_end(const struct cairn_attn_variant_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_variant_ref(a, stream));
	rows = a->batch ? (int64_t)a->qo_indptr[a->batch] : 0;
	if (rows && ((a->qo_indptr[a->batch] - a->qo_indptr[a->batch - 1]) % 64 == 63 &&
	    (a->kv_indptr[a->batch] - a->kv_indptr[a->batch - 1]) % 64 == 1))
		cairn_store(a->out, a->dtype, rows * a->num_qo_heads * a->head_dim - 1, 0);
	return 0;
}

/* Rounds the normaliser of each row to dtype. */
static int attn_variant_normaliser_in_dtype(const struct cairn_attn_variant_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_variant_ref(a, stream));
	rows = a->batch ? (int64_t)a->qo_indptr[a->batch] : 0;
	if (a->lse)
		row_factor(a->out, a->dtype, rows * a->num_qo_heads, a->head_dim, a->lse);
	return 0;
}

const struct cairn_mutant cairn_attn_variant_mutants[] = {
	DEFECTS(LIST)
	LIST(alibi_slopes_kept, "the slopes are read once for each address")
	{ "attn_variant_last_row_at_end", offsetof(struct cairn_impl, attn_variant),
	  (void *)attn_variant_last_row_at_end,
	  "with 63 rows and one key past whole tiles, the last element is 0" },
	{ "attn_variant_normaliser_in_dtype", offsetof(struct cairn_impl, attn_variant),
	  (void *)attn_variant_normaliser_in_dtype,
	  "the normaliser is rounded to dtype" },
	{ 0 }
};
