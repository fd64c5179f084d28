// SPDX-License-Identifier: Apache-2.0
/*
 * attn_dense_mutants - wrong implementations that the cases must catch
 *
 * All mutants share one plain attention, which computes one row at a time. A switch selects the defect, one
 * that contiguous keys invite: strides, heads, dimensions that are not multiples of 64, neighbouring
 * requests, tiles. attn_paged_defects.h has those of the numerics that both share, except those that
 * depend on the size of a tile.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/dense/attn_dense.h"
#include "primitives/base/rows.h"
#include "primitives/base/row_factor.h"

#define TILE	128	/* keys of a tile */

/* D(name, description) */
#define DEFECTS(D) \
	D(causal_ignored, "the mask is not applied") \
	D(causal_from_the_top, "the mask is aligned with the first key, not the last") \
	D(causal_edge_one_short, "the last visible key is masked") \
	D(own_key_of_long_f16, "with many keys, rows of f16 that end one past a tile lack their own key") \
	D(causal_edge_one_far, "one key of the future is visible") \
	D(causal_one_far_at_tile, "one key of the future is visible where it begins a tile") \
	D(keys_of_request_0, "all requests have the keys of the first") \
	D(length_of_request_0, "all requests have as many keys as the first") \
	D(bound_taken_for_length, "max_kv_len is taken for every request's number of keys") \
	D(neighbour_times_zero, "p = 0 is multiplied by V of the next request") \
	D(neighbour_seen, "keys of the next request in the last tile are seen") \
	D(row_257_lost, "a single packed row past a multiple of 64 is lost from the fifth tile on") \
	D(last_tile_lost, "keys past the last whole tile are dropped") \
	D(first_tile_twice, "the first tile is counted twice if there are three") \
	D(qo_indptr_for_keys, "keys begin where the request's queries begin") \
	D(q_stride_ignored, "rows of q are assumed to be contiguous") \
	D(k_stride_ignored, "rows of K are assumed to be contiguous") \
	D(v_stride_of_k, "rows of V are k_stride apart") \
	D(k_head_stride_ignored, "heads of K are assumed to be contiguous") \
	D(v_head_stride_of_k, "heads of V are k_head_stride apart") \
	D(v_stride_without_heads, "v_stride 0 is taken for num_kv_heads * v_dim, whatever v_head_stride is") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(heads_by_shift, "the group is rounded down to a power of two") \
	D(keys_65536, "keys from 2^16 on are left out") \
	D(qk_tail_dropped, "channels past the last multiple of 64 are left out of q k") \
	D(qk_tail_16_dropped, "channels past the last multiple of 32 are left out of q k") \
	D(qk_reads_on, "qk_dim 80, 96 and 112 are rounded up to 128: q k goes on into the next head") \
	D(v_tail_unwritten, "channels past the last multiple of 64 are not written") \
	D(v_dim_of_qk, "v_dim is taken to be qk_dim") \
	D(out_heads_by_qk, "heads of out are qk_dim apart") \
	D(scale_of_v_dim, "sm_scale is replaced by 1 / sqrt(v_dim) where the dimensions differ") \
	D(scale_missing, "sm_scale is not applied") \
	D(window_ignored, "all keys are visible") \
	D(window_one_short, "the window lacks its oldest key") \
	D(window_one_far, "the window has one key too many") \
	D(window_from_tile, "the window begins at the start of its oldest key's tile") \
	D(window_of_tokens, "the window is counted from the row's index in its request, not its position") \
	D(window_with_causal_only, "the window is ignored without the causal mask") \
	D(window_behind_part, "two parts of 512 keys, in neither of which a row sees a key, give it NaN") \
	D(window_outside_times_zero, "p = 0 is multiplied by V of keys before the window") \
	D(cap_ignored, "logits are not capped") \
	D(cap_before_scale, "q k is capped before it is scaled") \
	D(cap_ignored_d192, "with qk_dim 192, logits are not capped") \
	D(lse_base_2, "lse is a base-2 logarithm") \
	D(lse_without_max, "lse is ln l alone") \
	D(lse_transposed, "lse is written [heads, rows]") \
	D(empty_row_untouched, "a row without a key is not written") \
	D(empty_row_nan, "a row without a key is divided by 0") \
	D(empty_lse_zero, "lse of a row without a key is 0") \
	D(sentinel, "the running maximum starts at -5e4 instead of minus infinity") \
	D(lazy_rescale_late, "O is rescaled only if the maximum rose by 8, l always") \
	D(o_not_rescaled, "O is not rescaled when the maximum rises") \
	D(sums_of_10_bits, "q k is summed with the 10 bits of TF32") \
	D(o_in_dtype, "O is kept in dtype between tiles") \
	D(mask_of_first_half, "rows 64 to 127 of a tile have the causal mask of rows 0 to 63") \
	D(row_past_the_end, "a tile's rows past the last request are written") \
	D(keys_16_bits, "numbers of keys are cut to 16 bits") \
	D(offset_k_32_bits, "offsets of K are cut to 32 bits") \
	D(offset_v_32_bits, "offsets of V are cut to 32 bits") \
	D(offset_q_32_bits, "offsets of q are cut to 32 bits") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(maximum_rises_by_95, "the running maximum rises only by 95 or more, so that exp overflows below") \
	D(v_head_stride_needs_k, "v_head_stride is ignored if k_head_stride is 0") \
	D(requests_of_512, "requests from number 512 on are left out") \
	D(element_of_v_32_bits, "numbers of elements of V are cut to 32 bits") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	DENSE_##name,
enum dense_defect { DEFECTS(NAME) };

static double tf32(double v)
{
	float f = (float)v;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bits = (bits + 0x1000) & ~0x1fffu;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static double in_dtype(double v, int dtype)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

static int kv_head(const struct cairn_attn_dense_args *a, int h, enum dense_defect x)
{
	int group = a->num_qo_heads / a->num_kv_heads;

	if (x == DENSE_head_modulo)
		return h % a->num_kv_heads;
	while (x == DENSE_heads_by_shift && group & (group - 1))
		group &= group - 1;
	return h / group % a->num_kv_heads;
}

static int64_t k_at(const struct cairn_attn_dense_args *a, int64_t row, int g, enum dense_defect x)
{
	int64_t stride = cairn_attn_dense_k_stride(a), head = cairn_attn_dense_k_head_stride(a), at;

	if (x == DENSE_k_stride_ignored)
		stride = (int64_t)a->num_kv_heads * a->qk_dim;
	if (x == DENSE_k_head_stride_ignored)
		head = a->qk_dim;
	at = row * stride + g * head;
	return x == DENSE_offset_k_32_bits ? (int64_t)((uint32_t)(at * 2) / 2) : at;
}

static int64_t v_at(const struct cairn_attn_dense_args *a, int64_t row, int g, enum dense_defect x)
{
	int64_t stride = cairn_attn_dense_v_stride(a), head = cairn_attn_dense_v_head_stride(a), at;

	if (x == DENSE_v_stride_of_k)
		stride = cairn_attn_dense_k_stride(a);
	if (x == DENSE_v_head_stride_of_k)
		head = cairn_attn_dense_k_head_stride(a);
	if (x == DENSE_v_stride_without_heads && !a->v_stride)
		stride = (int64_t)a->num_kv_heads * a->v_dim;
	if (x == DENSE_v_head_stride_needs_k && !a->k_head_stride)
		head = a->v_dim;
	at = row * stride + g * head;
	if (x == DENSE_element_of_v_32_bits)
		return (uint32_t)at;
	return x == DENSE_offset_v_32_bits ? (int64_t)((uint32_t)(at * 2) / 2) : at;
}

/* The keys first .. end - 1 of request b that a row sees, in rows of K from `row` on. */
struct span {
	int64_t row;
	int len, first, end, read_from, read_to;	/* len: keys of the request */
};

static struct span span_of(const struct cairn_attn_dense_args *a, int b, int i, enum dense_defect x)
{
	int request = x == DENSE_keys_of_request_0 ? 0 : b, qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b];
	int left = a->kv_indptr[a->batch] - a->kv_indptr[b];	/* rows of K from this request's first on */
	int64_t position;
	struct span s;

	s.row = x == DENSE_qo_indptr_for_keys ? a->qo_indptr[b] : a->kv_indptr[request];
	s.len = a->kv_indptr[request + 1] - a->kv_indptr[request];
	if (x == DENSE_qo_indptr_for_keys && s.row + s.len > a->kv_indptr[a->batch])
		s.row = a->kv_indptr[a->batch] - s.len;
	if (x == DENSE_length_of_request_0)
		s.len = a->kv_indptr[1] - a->kv_indptr[0];
	if (x == DENSE_bound_taken_for_length)
		s.len = a->max_kv_len;
	if (x == DENSE_keys_16_bits)
		s.len &= 0xffff;
	if (x == DENSE_neighbour_seen)
		s.len = (s.len + TILE - 1) / TILE * TILE;
	s.len = s.len > left && request == b ? left : s.len;
	if (x == DENSE_last_tile_lost && s.len > TILE)
		s.len = s.len / TILE * TILE;
	position = (int64_t)i + s.len - qo_len;
	s.end = s.len;
	if (a->causal && x != DENSE_causal_ignored)
		s.end = x == DENSE_causal_from_the_top ? i + 1 : (int)position + 1;
	if (a->causal && x == DENSE_mask_of_first_half && i % 128 >= 64)
		s.end -= 64;
	if (a->causal && x == DENSE_causal_edge_one_short && s.end > 1)
		s.end--;
	if (a->causal && x == DENSE_own_key_of_long_f16 && a->dtype == CAIRN_F16 && qo_len > 64 &&
	    s.end > 2048 && s.end % TILE == 1)
		s.end--;
	if (a->causal && (x == DENSE_causal_edge_one_far ||
			  (x == DENSE_causal_one_far_at_tile && s.end % TILE == 0)))
		s.end++;
	if (x == DENSE_keys_65536 && s.end > 65536)
		s.end = 65536;
	s.end = s.end < 0 ? 0 : s.end > s.len ? s.len : s.end;
	if (x == DENSE_window_of_tokens)
		position = i;
	position += (x == DENSE_window_one_short) - (x == DENSE_window_one_far);
	s.first = a->window && position >= a->window ? (int)(position - a->window + 1) : 0;
	if (x == DENSE_window_ignored || (x == DENSE_window_with_causal_only && !a->causal))
		s.first = 0;
	if (x == DENSE_window_from_tile)
		s.first -= s.first % 16;
	s.read_from = x == DENSE_window_outside_times_zero ? s.first - s.first % 16 : s.first;
	s.read_to = s.end;
	if (x == DENSE_neighbour_times_zero && s.end > s.first)
		s.read_to = left < s.end + 16 ? left : s.end + 16;
	return s;
}

/*
 * Returns whether the row's window begins in a later part of 512 keys than the window of the first of its 16
 * rows.
 */
static int is_behind_part(const struct cairn_attn_dense_args *a, int b, int i, int h, const struct span *s,
			  enum dense_defect x)
{
	int group = a->num_qo_heads / a->num_kv_heads, row = i * group + h % group;

	return s->end > s->first && s->first / 512 > span_of(a, b, row / 16 * 16 / group, x).first / 512;
}

static double logit(const struct cairn_attn_dense_args *a, const double *q, const double *k,
		    enum dense_defect x)
{
	double cap = (double)a->softcap, scale = x == DENSE_scale_missing ? 1 : a->sm_scale, dot = 0;
	int n = a->qk_dim;

	if (x == DENSE_scale_of_v_dim && a->qk_dim != a->v_dim)
		scale = 1 / sqrt(a->v_dim);
	if (x == DENSE_qk_tail_dropped)
		n -= n % 64;
	if (x == DENSE_qk_tail_16_dropped)
		n -= n % 32;
	if (x == DENSE_qk_reads_on && n > 64 && n < 128)
		n = 128;
	for (int c = 0; c < n; c += 16) {
		dot += cairn_dot(q + c, k + c, 16);
		if (x == DENSE_sums_of_10_bits)
			dot = tf32(dot);
	}
	if (!(cap > 0) || x == DENSE_cap_ignored || (x == DENSE_cap_ignored_d192 && a->qk_dim == 192))
		return dot * scale;
	if (x == DENSE_cap_before_scale)
		return cap * tanh(dot / cap) * scale;
	return cap * tanh(dot * scale / cap);
}

static void widen_key(const struct cairn_attn_dense_args *a, double *k, int64_t at, enum dense_defect x)
{
	int64_t n = a->qk_dim, count = ((int64_t)a->nnz_kv - 1) * cairn_attn_dense_k_stride(a) +
			(a->num_kv_heads - 1) * cairn_attn_dense_k_head_stride(a) + a->qk_dim;

	if (x == DENSE_qk_reads_on && n > 64 && n < 128)
		n = at + 128 <= count ? 128 : count - at;
	memset(k, 0, sizeof(double) * 256);
	cairn_widen(k, a->k, a->dtype, at, n);
}

/* Computes row i of request b, head h. */
static void attend_row(const struct cairn_attn_dense_args *a, int b, int i, int h, enum dense_defect x)
{
	int64_t stride = x == DENSE_q_stride_ignored ? (int64_t)a->num_qo_heads * a->qk_dim :
			 cairn_attn_dense_q_stride(a);
	int64_t row = a->qo_indptr[b] + i, at = row * a->num_qo_heads + h;
	int64_t q_at = row * stride + h * a->qk_dim;
	int64_t out_at = row * a->num_qo_heads * a->v_dim + (int64_t)h * a->v_dim;
	double m = x == DENSE_sentinel ? -5e4 : -INFINITY, l = 0, o[256] = { 0 }, q[256], k[256], v[256], lse;
	struct span s = span_of(a, b, i, x);
	int g = kv_head(a, h, x), v_dim = a->v_dim, again = 0;

	if (x == DENSE_v_dim_of_qk && a->qk_dim < v_dim)
		v_dim = a->qk_dim;
	if (x == DENSE_offset_q_32_bits)
		q_at = (int64_t)((uint32_t)(q_at * 2) / 2);
	memset(q, 0, sizeof(q));
	cairn_widen(q, a->q, a->dtype, q_at, a->qk_dim);
	if (x == DENSE_qk_reads_on && h + 1 < a->num_qo_heads && a->qk_dim > 64 && a->qk_dim < 128)
		cairn_widen(q, a->q, a->dtype, q_at, 128);
	for (int j = s.read_from; j < s.read_to; j++) {
		double logit_j = -INFINITY, top, keep, p;

		if (j >= s.first && j < s.end) {
			widen_key(a, k, k_at(a, s.row + j, g, x), x);
			logit_j = logit(a, q, k, x);
		}
		top = logit_j > m ? logit_j : m;
		if (x == DENSE_lazy_rescale_late && m > -INFINITY && top < m + 8)
			top = m;
		if (x == DENSE_maximum_rises_by_95 && m > -INFINITY && top < m + 95)
			top = m;
		keep = m == top ? 1 : exp(m - top);	/* 1 also if both are -infinity */
		if (x == DENSE_lazy_rescale_late && logit_j > m && top == m)
			l *= exp(m - logit_j);
		m = top;
		p = logit_j == -INFINITY ? 0 : (float)exp(logit_j - m);
		l = l * keep + p;
		cairn_widen(v, a->v, a->dtype, v_at(a, s.row + j, g, x), a->v_dim);
		for (int c = 0; c < v_dim; c++) {
			o[c] *= x == DENSE_o_not_rescaled && keep > 0 ? 1 : keep;
			o[c] += p * v[c];
			if (x == DENSE_o_in_dtype && j % 16 == 15)
				o[c] = in_dtype(o[c], a->dtype);
		}
		if (x == DENSE_first_tile_twice && s.end > 2 * TILE && j == TILE - 1 && !again++)
			j = -1;
	}
	if (x == DENSE_empty_row_untouched && !s.end)
		return;
	if (x == DENSE_window_behind_part && is_behind_part(a, b, i, h, &s, x))
		o[0] = m = NAN;
	if (x == DENSE_out_heads_by_qk && a->qk_dim < a->v_dim)
		out_at = row * a->num_qo_heads * a->v_dim + (int64_t)h * a->qk_dim;
	if (x == DENSE_v_tail_unwritten)
		v_dim -= v_dim % 64;
	for (int c = 0; c < v_dim; c++)
		cairn_store(a->out, a->dtype, out_at + c, l > 0 || x == DENSE_empty_row_nan ? o[c] / l : 0);
	if (!a->lse)
		return;
	lse = l > 0 ? (x == DENSE_lse_without_max ? 0 : m) + log(l) :
	      x == DENSE_empty_lse_zero ? 0 : -INFINITY;
	if (x == DENSE_lse_base_2)
		lse *= 1.4426950408889634;
	a->lse[x == DENSE_lse_transposed ? h * (int64_t)a->qo_indptr[a->batch] + row : at] = (float)lse;
}

/* Returns whether the packed row lies alone in the last of five or more tiles of 64. */
static int is_single_row(const struct cairn_attn_dense_args *a, int b, int i, int h)
{
	int group = a->num_qo_heads / a->num_kv_heads, row = i * group + h % group;

	return row >= 256 && row % 64 == 0 && row + 1 == (a->qo_indptr[b + 1] - a->qo_indptr[b]) * group;
}

static int attend(const struct cairn_attn_dense_args *a, enum dense_defect x)
{
	static int calls;
	int64_t bytes;

	CAIRN_TRY(cairn_attn_dense_check(a));
	if (x == DENSE_nothing)
		return 0;
	for (int b = 0; b < (x == DENSE_requests_of_512 && a->batch > 512 ? 512 : a->batch); b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			for (int h = 0; h < a->num_qo_heads; h++)
				if (x != DENSE_row_257_lost || !is_single_row(a, b, i, h))
					attend_row(a, b, i, h, x);
	if (!a->batch)
		return 0;
	bytes = (int64_t)a->qo_indptr[a->batch] * a->num_qo_heads * a->v_dim * 2;
	if (x == DENSE_row_past_the_end)
		memset((char *)a->out + bytes, 0, 64);
	if (x == DENSE_not_repeatable && bytes && calls++ % 2)
		*(uint16_t *)a->out ^= 1;
	return 0;
}

#define DEFINE(name, what) \
	static int attn_dense_##name(const struct cairn_attn_dense_args *a, void *stream) \
	{ \
		(void)stream; \
		return attend(a, DENSE_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_dense_" #name, offsetof(struct cairn_impl, attn_dense), (void *)attn_dense_##name, what },

static int attn_dense_same_buffer_refused(const struct cairn_attn_dense_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_dense_check(a));
	return a->k == a->v ? -EINVAL : cairn_attn_dense_ref(a, stream);
}

/*
 * If K and V have equal row strides, and V begins within the first row of K, takes the rows of V for packed
 * ones.
 */
static int attn_dense_joined_rows_packed(const struct cairn_attn_dense_args *a, void *stream)
{
	struct cairn_attn_dense_args b;

	CAIRN_TRY(cairn_attn_dense_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (a->v > a->k && (const char *)a->v < (const char *)a->k + 2 * cairn_attn_dense_k_stride(a) &&
	    a->k_stride == a->v_stride)
		b.v_stride = 0;
	return cairn_attn_dense_ref(&b, stream);
}

/* With an odd number of SMs above 1, the first head of the first row is left out. */
static int attn_dense_odd_sms(const struct cairn_attn_dense_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_dense_ref(a, stream));
	if (a->sms > 1 && a->sms % 2 && a->batch && a->qo_indptr[a->batch])
		memset(a->out, 0, (size_t)a->v_dim * 2);
	return 0;
}

/* With 3 KV heads, one row past whole tiles and 63 keys past whole tiles, the last element is 0. */
static int attn_dense_last_row_at_end(const struct cairn_attn_dense_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_dense_ref(a, stream));
	rows = a->batch ? (int64_t)a->qo_indptr[a->batch] : 0;
	if (rows && ((a->qo_indptr[a->batch] - a->qo_indptr[a->batch - 1]) % 64 == 1 &&
	    (a->kv_indptr[a->batch] - a->kv_indptr[a->batch - 1]) % 64 == 63 && a->num_kv_heads == 3))
		cairn_store(a->out, a->dtype, rows * a->num_qo_heads * a->v_dim - 1, 0);
	return 0;
}

/* Rounds the normaliser of each row to dtype. */
static int attn_dense_normaliser_in_dtype(const struct cairn_attn_dense_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_dense_ref(a, stream));
	rows = a->batch ? (int64_t)a->qo_indptr[a->batch] : 0;
	if (a->lse)
		row_factor(a->out, a->dtype, rows * a->num_qo_heads, a->v_dim, a->lse);
	return 0;
}

/*
 * With 7 query heads for a KV head, sets the first element of request 0's last token to 0 if a multiple of
 * 128 tokens precede it.
 */
static int attn_dense_lone_token_of_7_heads(const struct cairn_attn_dense_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_dense_ref(a, stream));
	if (a->batch && a->num_qo_heads == 7 * a->num_kv_heads && a->qo_indptr[1] > 128 &&
	    a->qo_indptr[1] % 128 == 1)
		cairn_store(a->out, a->dtype,
			    (int64_t)(a->qo_indptr[1] - 1) * a->num_qo_heads * a->v_dim, 0);
	return 0;
}

const struct cairn_mutant cairn_attn_dense_mutants[] = {
	DEFECTS(LIST)
	LIST(same_buffer_refused, "a call in which V is K is refused")
	LIST(joined_rows_packed, "rows of V that lie between those of K are taken for packed")
	LIST(odd_sms, "with an odd number of SMs above 1, a head is left out")
	{ "attn_dense_last_row_at_end", offsetof(struct cairn_impl, attn_dense),
	  (void *)attn_dense_last_row_at_end,
	  "with 3 KV heads, one row past whole tiles and 63 keys past whole tiles, the last element is 0" },
	{ "attn_dense_lone_token_of_7_heads", offsetof(struct cairn_impl, attn_dense),
	  (void *)attn_dense_lone_token_of_7_heads,
	  "with 7 query heads for a KV head, a token alone past tiles of 128 rows is wrong" },
	{ "attn_dense_normaliser_in_dtype", offsetof(struct cairn_impl, attn_dense),
	  (void *)attn_dense_normaliser_in_dtype,
	  "the normaliser is rounded to dtype" },
	{ 0 }
};
