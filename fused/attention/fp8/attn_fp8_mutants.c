// SPDX-License-Identifier: Apache-2.0
/*
 * attn_fp8_mutants - wrong implementations that the cases must catch
 *
 * All mutants share one plain attention over codes, which computes one row at a time, in blocks of 128 keys
 * as a kernel does, and rounds P as the contract says. A switch selects the defect, one that scales, blocks
 * and 8 bits invite.
 */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/fp8/attn_fp8_batch.h"
#include "primitives/base/fp8.h"

#define BLOCK	ATTN_FP8_BLOCK

/* D(name, description) */
#define DEFECTS(D) \
	D(q_scale_of_block_0, "q has the scale of the request's first block") \
	D(k_scale_of_block_0, "all keys have the scale of the request's first block") \
	D(v_scale_of_block_0, "all values have the scale of the request's first block") \
	D(k_scale_of_next, "keys have the scale of the next block") \
	D(q_scale_of_head_0, "q has the scale of the first head") \
	D(q_scale_of_group, "all heads of a group have the scale of its first") \
	D(v_scale_of_head_0, "values have the scale of the first head") \
	D(v_scale_in_p, "V's scale is multiplied into P, which saturates") \
	D(v_scale_once, "O takes V's scale of the last block") \
	D(v_scale_relative, "O has the scale of V's first block, and later blocks their ratio to it") \
	D(scales_by_all_blocks, "scales are found as if the blocks of all requests followed each other") \
	D(p_without_2_8, "P is rounded without the factor 2^8") \
	D(p_2_9, "the factor of P is 2^9: the largest weights saturate") \
	D(p_2_8_in_lse, "the factor 2^8 is left in l") \
	D(p_truncated, "P is rounded towards zero") \
	D(p_2_bits, "P has one bit less") \
	D(l_of_p_scaled_twice, "l lacks the factor that P has") \
	D(p_of_old_max, "P is relative to the maximum before its block, and saturates") \
	D(subnormals_lost, "codes below 2^-6 count as 0") \
	D(e5m2, "codes are read as e5m2") \
	D(v_in_order, "keys of V are read in their order") \
	D(v_8_by_8, "V is read transposed in tiles of 8 x 8") \
	D(blocks_without_request, "a request's first block is indptr / 128") \
	D(blocks_of_qo, "K has the blocks of the queries") \
	D(one_sum, "P V is summed with 13 bits over all keys") \
	D(qk_in_11_bits, "q k is summed with 11 bits") \
	D(causal_ignored, "the mask is not applied") \
	D(causal_from_the_top, "the mask is aligned with the first key, not the last") \
	D(causal_edge_one_short, "the last visible key is masked") \
	D(causal_edge_one_far, "one key of the future is visible") \
	D(causal_one_far_at_block, "one key of the future is visible where it begins a block") \
	D(keys_of_request_0, "all requests have the keys of the first") \
	D(bound_taken_for_length, "rows behind the last key of a block are seen") \
	D(last_block_lost, "keys past the last whole block are dropped") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(heads_by_shift, "the group is rounded down to a power of two") \
	D(scale_missing, "sm_scale is not applied") \
	D(lse_base_2, "lse is a base-2 logarithm") \
	D(lse_without_max, "lse is ln l alone") \
	D(lse_transposed, "lse is written [heads, rows]") \
	D(empty_row_untouched, "a row without a key is not written") \
	D(empty_row_nan, "a row without a key is divided by 0") \
	D(sentinel, "the running maximum starts at -5e4 instead of minus infinity") \
	D(o_not_rescaled, "O is not rescaled when the maximum rises") \
	D(l_not_rescaled, "l is not rescaled when the maximum rises") \
	D(o_in_dtype, "O is kept in dtype between blocks") \
	D(mask_of_first_half, "rows 64 to 127 of a tile have the causal mask of rows 0 to 63") \
	D(row_past_the_end, "rows past the last request are written") \
	D(offset_q_32_bits, "offsets of q are cut to 31 bits") \
	D(offset_k_32_bits, "offsets of K are cut to 31 bits") \
	D(offset_v_32_bits, "offsets of V are cut to 31 bits") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	FP8_##name,
enum fp8_defect { DEFECTS(NAME) };

static double decode(uint8_t code, enum fp8_defect x)
{
	if (x == FP8_subnormals_lost && (code & 0x7f) < 8)
		return 0;
	if (x == FP8_e5m2)
		return cairn_load((const uint8_t[]){ 0, code }, CAIRN_F16, 0);
	return (double)cairn_e4m3_to_float(code);
}

/* Returns sum + term, keeping only `bits` bits below the larger of the two. */
static double add(double sum, double term, int bits)
{
	double unit = ldexp(1, ilogb(fmax(fabs(sum), fmax(fabs(term), 0x1p-300))) - bits);

	return trunc(sum / unit) * unit + trunc(term / unit) * unit;
}

static int64_t block_of(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int b, int j,
			int head,
			enum fp8_defect x)
{
	int32_t nnz = operand == ATTN_Q ? a->nnz_qo : a->nnz_kv, blocks = attn_fp8_blocks(nnz, a->batch);
	const int32_t *indptr = operand == ATTN_Q || x == FP8_blocks_of_qo ? a->qo_indptr : a->kv_indptr;
	int32_t first = attn_fp8_first_block(indptr[b], x == FP8_blocks_without_request ? 0 : b) + j / BLOCK;

	return (int64_t)head * blocks + (first < blocks ? first : blocks - 1);
}

/* Reads row j of an operand, without its scale. */
static void read(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int b, int j, int head,
		 double *y, enum fp8_defect x)
{
	const uint8_t *codes = operand == ATTN_Q ? a->q : operand == ATTN_K ? a->k : a->v;
	int64_t at = block_of(a, operand, b, j, head, x) * BLOCK * a->head_dim;
	int dim = a->head_dim;

	if ((x == FP8_offset_q_32_bits && operand == ATTN_Q) ||
	    (x == FP8_offset_k_32_bits && operand == ATTN_K) ||
	    (x == FP8_offset_v_32_bits && operand == ATTN_V))
		at &= 0x7fffffff;
	j %= BLOCK;
	for (int c = 0; c < dim; c++) {
		int64_t place = operand != ATTN_V ? j * dim + c : x == FP8_v_in_order ? c * BLOCK + j :
				x == FP8_v_8_by_8 ? (j / 8 * 8 + c % 8) * dim + c / 8 * 8 + j % 8 :
				c * BLOCK + attn_fp8_place(j);

		y[c] = decode(codes[at + place], x);
	}
}

static double scale_of(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int b, int j, int head,
		       enum fp8_defect x)
{
	const float *scale = operand == ATTN_Q ? a->q_scale : operand == ATTN_K ? a->k_scale : a->v_scale;
	const int32_t *indptr = operand == ATTN_Q ? a->qo_indptr : a->kv_indptr;
	int group = a->num_qo_heads / a->num_kv_heads, behind = 0;
	int64_t at;

	if ((x == FP8_q_scale_of_block_0 && operand == ATTN_Q) ||
	    (x == FP8_k_scale_of_block_0 && operand == ATTN_K) ||
	    (x == FP8_v_scale_of_block_0 && operand == ATTN_V))
		j = 0;
	if (x == FP8_k_scale_of_next && operand == ATTN_K && j + BLOCK < indptr[b + 1] - indptr[b])
		j += BLOCK;
	if ((x == FP8_q_scale_of_head_0 && operand == ATTN_Q) ||
	    (x == FP8_v_scale_of_head_0 && operand == ATTN_V))
		head = 0;
	if (x == FP8_q_scale_of_group && operand == ATTN_Q)
		head -= head % group;
	at = block_of(a, operand, b, j, head, x);
	if (x != FP8_scales_by_all_blocks)
		return (double)scale[at];
	for (int i = 0; i < b; i++)
		behind += (indptr[i + 1] - indptr[i] + BLOCK - 1) / BLOCK;
	return (double)scale[at - attn_fp8_first_block(indptr[b], b) + behind];
}

static double round_p(double p, enum fp8_defect x)
{
	double factor = x == FP8_p_without_2_8 ? 1 : x == FP8_p_2_9 ? 512 : 256;
	uint8_t code = cairn_float_to_e4m3((float)(p * factor));

	if (x == FP8_p_truncated && code && (double)cairn_e4m3_to_float(code) > p * factor)
		code--;
	if (x == FP8_p_2_bits)
		code = (code + 1) & ~1;
	return (double)cairn_e4m3_to_float(code) / factor;
}

static int kv_head(const struct cairn_attn_fp8_args *a, int h, enum fp8_defect x)
{
	int group = a->num_qo_heads / a->num_kv_heads;

	if (x == FP8_head_modulo)
		return h % a->num_kv_heads;
	while (x == FP8_heads_by_shift && group & (group - 1))
		group &= group - 1;
	return h / group % a->num_kv_heads;
}

/* Returns the end of the keys that row i of request b sees. */
static int end_of(const struct cairn_attn_fp8_args *a, int b, int i, int kv_len, enum fp8_defect x)
{
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b], end = kv_len;
	int whole = (kv_len + BLOCK - 1) / BLOCK * BLOCK;

	if (x == FP8_last_block_lost && kv_len > BLOCK)
		kv_len = end = kv_len / BLOCK * BLOCK;
	if (a->causal && x != FP8_causal_ignored)
		end = x == FP8_causal_from_the_top ? i + 1 : i + 1 + kv_len - qo_len;
	if (a->causal && x == FP8_mask_of_first_half && i % 128 >= 64)
		end -= 64;
	if (a->causal && x == FP8_causal_edge_one_short && end > 1)
		end--;
	if (a->causal && (x == FP8_causal_edge_one_far ||
			  (x == FP8_causal_one_far_at_block && end % BLOCK == 0)))
		end++;
	if (x == FP8_bound_taken_for_length && !a->causal)
		return whole;
	return end < 0 ? 0 : end > kv_len ? kv_len : end;
}

/* The state of a row between its blocks. */
struct state {
	double m, l, o[256];
};

/* Adds keys j .. end - 1, which lie in one block. */
static void add_block(const struct cairn_attn_fp8_args *a, struct state *t, int b, const double *q,
		      double q_scale, int g, int j, int end, enum fp8_defect x)
{
	double s[BLOCK], f[256] = { 0 }, k[256], v[256], top = t->m, base, keep, v_scale;

	for (int i = j; i < end; i++) {
		double dot = 0;

		read(a, ATTN_K, b, i, g, k, x);
		for (int c = 0; c < a->head_dim; c++)
			dot = x == FP8_qk_in_11_bits ? add(dot, q[c] * k[c], 11) : dot + q[c] * k[c];
		s[i - j] = dot * q_scale * scale_of(a, ATTN_K, b, i, g, x) *
			   (double)(x == FP8_scale_missing ? 1 : a->sm_scale);
		top = s[i - j] > top ? s[i - j] : top;
	}
	keep = t->m == top ? 1 : exp(t->m - top);
	base = x == FP8_p_of_old_max && t->m > -INFINITY ? t->m : top;
	t->l *= x == FP8_l_not_rescaled && keep > 0 ? 1 : keep;
	v_scale = scale_of(a, ATTN_V, b, j, g, x);
	for (int i = j; i < end; i++) {
		double p = exp(s[i - j] - base), r;

		t->l += exp(s[i - j] - top);
		r = x == FP8_v_scale_in_p ? round_p(p * v_scale, x) / v_scale : round_p(p, x);
		r *= base == top ? 1 : exp(base - top);
		read(a, ATTN_V, b, i, g, v, x);
		for (int c = 0; c < a->head_dim; c++)
			f[c] += r * v[c];
	}
	for (int c = 0; c < a->head_dim; c++) {
		t->o[c] *= x == FP8_o_not_rescaled && keep > 0 ? 1 : keep;
		if (x == FP8_v_scale_once)
			t->o[c] *= j ? v_scale / scale_of(a, ATTN_V, b, j - BLOCK, g, x) : 1;
		if (x == FP8_v_scale_relative && isinf((float)(v_scale / scale_of(a, ATTN_V, b, 0, g, x))))
			t->o[c] = INFINITY;
		t->o[c] = x == FP8_one_sum ? add(t->o[c], f[c] * v_scale, 13) : t->o[c] + f[c] * v_scale;
		if (x == FP8_o_in_dtype) {
			uint64_t box = 0;

			cairn_store(&box, a->dtype, 0, t->o[c]);
			t->o[c] = cairn_load(&box, a->dtype, 0);
		}
	}
	t->m = top;
}

static void attend_row(const struct cairn_attn_fp8_args *a, int b, int i, int h, enum fp8_defect x)
{
	int from = x == FP8_keys_of_request_0 ? 0 : b, kv_len = a->kv_indptr[from + 1] - a->kv_indptr[from];
	int64_t row = a->qo_indptr[b] + i, at = row * a->num_qo_heads + h;
	struct state t = { .m = x == FP8_sentinel ? -5e4 : -INFINITY };
	int end = end_of(a, b, i, kv_len, x), g = kv_head(a, h, x);
	double q[256], q_scale, lse;

	read(a, ATTN_Q, b, i, h, q, x == FP8_blocks_of_qo ? FP8_nothing : x);
	q_scale = scale_of(a, ATTN_Q, b, i, h, x);
	for (int j = 0; j < end; j += BLOCK)
		add_block(a, &t, from, q, q_scale, g, j, j + BLOCK < end ? j + BLOCK : end, x);
	if (x == FP8_empty_row_untouched && !end)
		return;
	if (x == FP8_l_of_p_scaled_twice)
		t.l /= 256;
	for (int c = 0; c < a->head_dim; c++)
		cairn_store(a->out, a->dtype, at * a->head_dim + c,
			    t.l > 0 || x == FP8_empty_row_nan ? t.o[c] / t.l : 0);
	if (!a->lse)
		return;
	lse = t.l > 0 ? (x == FP8_lse_without_max ? 0 : t.m) + log(t.l) : -INFINITY;
	if (x == FP8_lse_base_2)
		lse *= 1.4426950408889634;
	if (x == FP8_p_2_8_in_lse)
		lse += 8 * 0.6931471805599453;
	a->lse[x == FP8_lse_transposed ? h * (int64_t)a->qo_indptr[a->batch] + row : at] = (float)lse;
}

static int attend(const struct cairn_attn_fp8_args *a, enum fp8_defect x)
{
	static int calls;
	int64_t bytes;

	CAIRN_TRY(cairn_attn_fp8_check(a));
	if (x == FP8_nothing || !a->batch)
		return 0;
	for (int b = 0; b < a->batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			for (int h = 0; h < a->num_qo_heads; h++)
				attend_row(a, b, i, h, x);
	bytes = (int64_t)a->qo_indptr[a->batch] * a->num_qo_heads * a->head_dim * 2;
	if (x == FP8_row_past_the_end)
		memset((char *)a->out + bytes, 0, 64);
	if (x == FP8_not_repeatable && bytes && calls++ % 2)
		*(uint16_t *)a->out ^= 1;
	return 0;
}

#define DEFINE(name, what) \
	static int attn_fp8_##name(const struct cairn_attn_fp8_args *a, void *stream) \
	{ \
		(void)stream; \
		return attend(a, FP8_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_fp8_" #name, offsetof(struct cairn_impl, attn_fp8), (void *)attn_fp8_##name, what },

/* With groups of 7 heads and 63 keys past whole tiles, the last element is 0. */
static int attn_fp8_last_row_at_end(const struct cairn_attn_fp8_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_fp8_ref(a, stream));
	rows = a->batch ? (int64_t)a->qo_indptr[a->batch] : 0;
	if (rows && (a->num_qo_heads == 7 * a->num_kv_heads &&
	    (a->kv_indptr[a->batch] - a->kv_indptr[a->batch - 1]) % 64 == 63))
		cairn_store(a->out, a->dtype, rows * a->num_qo_heads * a->head_dim - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_attn_fp8_mutants[] = {
	DEFECTS(LIST)
	{ "attn_fp8_last_row_at_end", offsetof(struct cairn_impl, attn_fp8), (void *)attn_fp8_last_row_at_end,
	  "with groups of 7 heads and 63 keys past whole tiles, the last element is 0" },
	{ 0 }
};
