// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_mutants - wrong implementations that the cases must catch
 *
 * All mutants share one plain attention, which computes one token and head at a time. A switch selects the
 * defect, one that lists, parts and masks invite. attn_paged_defects.h has those of a row's numerics.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/kept.h"
#include "primitives/base/plan_mutants.h"
#include "fused/attention/bsr/attn_bsr.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "primitives/base/row_factor.h"

/* D(name, description) */
#define DEFECTS(D) \
	D(block_is_slot, "the number of a block is taken for that of its first slot") \
	D(offset_32_bits, "offsets of K and V are cut to 32 bits") \
	D(elements_32_bits, "numbers of elements of K and V are cut to 32 bits") \
	D(lists_kept, "where lists begin and end is read once for each address") \
	D(q_offset_32_bits, "offsets of q are cut to 32 bits") \
	D(block_stride_ignored, "blocks are assumed to follow each other") \
	D(slot_stride_ignored, "slots are assumed to follow each other") \
	D(head_stride_ignored, "heads are assumed to follow each other") \
	D(last_len_ignored, "the whole last block is read") \
	D(last_len_of_row_0, "all lists end like the first row's") \
	D(last_len_of_head_0, "all heads' lists end like the first head's") \
	D(last_slot_lost, "the last key of a list is dropped") \
	D(tail_times_zero, "p = 0 is multiplied by the unused slots of the last block") \
	D(zeros_past_end_seen, "the list is filled up to a multiple of 8 with keys of logit 0 and value 0") \
	D(box_crosses_block, "16 keys are read from consecutive slots, also where a block of 8 slots ends") \
	D(list_of_head_0, "all heads have the lists of the first") \
	D(list_of_query_head, "lists are looked up by query head") \
	D(heads_rows_apart, "the lists of a head begin rows, not rows + 1, after those of the one before") \
	D(row_starts_late, "block rows begin one place late") \
	D(row_indptr_ignored, "block rows are block_m tokens long, whatever row_indptr says") \
	D(repeats_skipped, "a block that is listed again is skipped") \
	D(repeats_skipped_next, "a block that is listed twice in a row is skipped") \
	D(last_part_lost, "the last part is left out") \
	D(parts_unweighted, "parts are averaged, not merged") \
	D(parts_max_of_first, "the maximum of the first part serves all parts") \
	D(q_index_ignored, "places are taken for tokens") \
	D(q_index_at_read_only, "out is written at the place, not at the token") \
	D(q_index_of_part_0, "the places of part 0 serve all parts") \
	D(kv_pos0_ignored, "keys are counted from 0") \
	D(kv_pos0_of_row_0, "keys of all rows are counted from the first row's position") \
	D(key_pos_by_ordinal, "key_pos is indexed by the key's number in the list") \
	D(key_pos_ignored, "positions of keys are their numbers in the list") \
	D(q_pos_ignored, "the last token is assumed to be at the last key") \
	D(q_pos_by_place, "q_pos is indexed by the place") \
	D(position_of_first_token, "all tokens of a block row have the position of the first") \
	D(msb_first, "bits are numbered from the highest of a byte") \
	D(lines_unaligned, "lines of bits follow each other without a gap") \
	D(line_of_first_token, "all tokens of a block row have the bits of the first") \
	D(bits_ignored, "the bits are not applied") \
	D(bits_or_causal, "with mask_mode 3, one of the two masks suffices") \
	D(mask_indptr_ignored, "the bits of all rows begin where those of the first do") \
	D(mask_indptr_31_bits, "bits from byte 2^31 on are taken from the beginning") \
	D(mask_indptr_32_bits, "bits from byte 2^32 on are taken from the beginning") \
	D(ancestors_all, "a token sees all keys before the last that its bits admit") \
	D(parent_only, "of the keys that bits admit, the last two are seen, and those before a 0") \
	D(mask_of_last_part, "the mask_mode of the last part serves all parts") \
	D(causal_edge_one_short, "the key at the token's own position is masked") \
	D(causal_edge_one_far, "one key after the token's position is seen") \
	D(window_ignored, "all keys are visible") \
	D(window_one_short, "the window lacks its oldest key") \
	D(window_by_ordinal, "the window is applied to a key's number in the list") \
	D(window_of_part_0, "the window is applied to part 0 only") \
	D(window_with_causal_only, "the window is ignored without a causal mask") \
	D(window_behind_part, "two parts of 512 keys, in neither of which a row sees a key, give it NaN") \
	D(window_overflows, "position + window is computed in 32 bits") \
	D(k_scale_missing, "K of 8 bits is not scaled") \
	D(v_scale_missing, "V of 8 bits is not scaled") \
	D(v_scale_needs_k_scale, "V is scaled only if K is") \
	D(k_scale_needs_v_scale, "K is scaled only if V is") \
	D(scale_of_head_0, "all heads have the scales of the first") \
	D(scale_of_part_0, "all parts have the scales of the first") \
	D(scales_exchanged, "K has the scales of V, and V those of K") \
	D(subnormals_lost, "subnormal codes of 8 bits count as 0") \
	D(cap_ignored, "logits are not capped") \
	D(cap_before_scale, "q k is capped before it is scaled") \
	D(lse_of_last_part, "lse is that of the last part alone") \
	D(lse_base_2, "lse is a base-2 logarithm") \
	D(empty_row_nan, "a token without a key is divided by 0") \
	D(empty_lse_zero, "lse of a token without a key is 0") \
	D(other_tokens_written, "tokens that no row holds are set to 0") \
	D(rows_past_1024_lost, "block rows past 1024 are left out") \
	D(keys_16_bits, "numbers of keys are cut to 16 bits") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(q_stride_ignored, "rows of q are assumed to be contiguous") \
	D(lines_of_words, "lines of bits of more than 1024 keys begin at multiples of 32 bits") \
	D(bits_of_128_tokens, "tokens past the 128th of a block row have the bits of the first ones") \
	D(row_larger_than_call, "a block row larger than the call loses its last token in the first part") \
	D(bits_8192, "bits past the 8192nd of a line are taken from its beginning") \
	D(positions_16_bits, "positions are kept in 16 bits") \
	D(positions_from_0, "positions of tokens below 0 count as 0") \
	D(nan_spreads, "a NaN in a key spreads to another block row") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	BSR_##name,
enum bsr_defect { DEFECTS(NAME) };

/* A token's block row, the places of that row, and the token's own place. */
struct where {
	int64_t row, first, end, place;
};

/* Finds the token's block row; returns 0 if there is none. */
static int find(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p, int32_t token,
		enum bsr_defect x, struct where *w)
{
	const int32_t *index = x == BSR_q_index_of_part_0 ? a->part[0].q_index : p->q_index;
	int64_t late = x == BSR_row_starts_late && p->row_indptr;

	for (w->row = 0; w->row < p->rows; w->row++) {
		w->first = w->row * p->block_m;
		w->end = w->first + p->block_m;
		if (p->row_indptr && x != BSR_row_indptr_ignored) {
			w->first = p->row_indptr[w->row] + late;
			w->end = p->row_indptr[w->row + 1] + late;
		}
		if (x == BSR_row_larger_than_call && p == &a->part[0] && w->end > a->nnz_qo && p->rows == 1)
			w->end = a->nnz_qo - 1;
		w->end = w->end > a->nnz_qo ? a->nnz_qo : w->end;
		for (w->place = w->first; w->place < w->end; w->place++)
			if ((index && x != BSR_q_index_ignored ? index[w->place] : w->place) == token)
				return !(x == BSR_rows_past_1024_lost && w->row >= 1024);
	}
	return 0;
}

/* The list of a block row: its first entry and its keys. */
struct list {
	const int32_t *blocks;
	int64_t len, all;		/* all: len plus the unused slots of the last block */
};

static struct list list_of(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p, int64_t row,
			   int h, int g, enum bsr_defect x)
{
	int64_t head = p->index_heads > 1 ? g : 0, at, last;
	const int32_t *indptr = p->blk_indptr;
	struct list l;

	if (x == BSR_list_of_head_0)
		head = 0;
	if (x == BSR_list_of_query_head && p->index_heads > 1)
		head = h % p->index_heads;
	at = head * (p->rows + (x == BSR_heads_rows_apart ? 0 : 1)) + row;
	if (x == BSR_lists_kept && p == a->part)
		indptr = kept(indptr, (int64_t)p->index_heads * (p->rows + 1));
	l.blocks = p->blk_indices + indptr[at];
	l.all = (int64_t)(indptr[at + 1] - indptr[at]) * p->block_n;
	last = (x == BSR_last_len_of_head_0 ? 0 : head) * p->rows + (x == BSR_last_len_of_row_0 ? 0 : row);
	l.len = l.all;
	if (l.all > 0 && p->last_len && x != BSR_last_len_ignored)
		l.len -= p->block_n - p->last_len[last];
	if (x == BSR_last_slot_lost && l.len > 1)
		l.len--;
	if (x == BSR_keys_16_bits)
		l.len &= 0xffff;
	return l;
}

static int64_t element(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p, int64_t block,
		       int64_t slot, int g, enum bsr_defect x)
{
	int64_t head = cairn_attn_head_stride(p, a->head_dim);
	int64_t stride = cairn_attn_slot_stride(p, a->num_kv_heads, a->head_dim);
	int64_t blocks = cairn_attn_block_stride(p, a->num_kv_heads, a->head_dim), at;

	if (x == BSR_head_stride_ignored)
		head = a->head_dim;
	if (x == BSR_slot_stride_ignored)
		stride = (int64_t)a->num_kv_heads * a->head_dim;
	if (x == BSR_block_stride_ignored)
		blocks = p->block_n * stride;
	if (x == BSR_block_is_slot)
		blocks = stride;
	at = block * blocks + slot * stride + g * head;
	if (x == BSR_elements_32_bits)
		return (uint32_t)at;
	return x == BSR_offset_32_bits ? (int64_t)((uint32_t)(at * 2) / 2) : at;
}

static void load(const struct cairn_attn_bsr_args *a, double *v, const void *from, int64_t at, double scale,
		 enum bsr_defect x)
{
	if (!a->kv_fp8) {
		cairn_widen(v, from, a->dtype, at, a->head_dim);
		return;
	}
	for (int c = 0; c < a->head_dim; c++) {
		v[c] = (double)cairn_e4m3_to_float(((const uint8_t *)from)[at + c]) * scale;
		if (x == BSR_subnormals_lost && fabs(v[c]) < 0x1p-6 * scale)
			v[c] = 0;
	}
}

static double scale_of(const struct cairn_attn_bsr_args *a, int part, int g, int of_v, enum bsr_defect x)
{
	const struct cairn_attn_part *p = &a->part[x == BSR_scale_of_part_0 ? 0 : part];
	const float *scale = (x == BSR_scales_exchanged) != of_v ? p->v_scale : p->k_scale;

	if ((x == BSR_v_scale_needs_k_scale && of_v && !p->k_scale) ||
	    (x == BSR_k_scale_needs_v_scale && !of_v && !p->v_scale))
		return 1;
	if (!scale || x == (of_v ? BSR_v_scale_missing : BSR_k_scale_missing))
		return 1;
	return (double)scale[x == BSR_scale_of_head_0 ? 0 : g];
}

static int bit(const struct cairn_attn_part *p, const struct where *w, int64_t len, int64_t n,
	       enum bsr_defect x)
{
	int64_t line = (len + 7) / 8, token = x == BSR_line_of_first_token ? 0 : w->place - w->first;
	int64_t at = p->mask_indptr[x == BSR_mask_indptr_ignored ? 0 : w->row];
	const uint8_t *bits = p->mask + (x == BSR_mask_indptr_31_bits ? at & INT32_MAX :
					 x == BSR_mask_indptr_32_bits ? (uint32_t)at : at);

	if (x == BSR_lines_unaligned)
		return bits[(token * len + n) / 8] >> (token * len + n) % 8 & 1;
	if (x == BSR_lines_of_words && len > 1024)
		line = (line + 3) / 4 * 4;
	if (x == BSR_bits_of_128_tokens)
		token %= 128;
	bits += token * line;
	if (x == BSR_bits_8192)
		n %= 8192;
	if (x == BSR_msb_first)
		return bits[n / 8] >> (7 - n % 8) & 1;
	if (x == BSR_ancestors_all)
		for (int64_t later = n + 1; later < len; later++)
			if (bits[later / 8] >> later % 8 & 1)
				return 1;
	if (x == BSR_parent_only && n > 0 && n + 2 < len && bits[n / 8] >> n % 8 & 1) {
		int after = 0, zeros = 0;

		for (int64_t later = n + 1; later < len; later++)
			after += bits[later / 8] >> later % 8 & 1;
		for (int64_t before = 0; before < n; before++)
			zeros += !(bits[before / 8] >> before % 8 & 1);
		if (after > 1 && zeros)
			return 0;
	}
	return bits[n / 8] >> n % 8 & 1;
}

static int64_t token_position(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p,
			      const struct where *w, int32_t token, int64_t len, enum bsr_defect x)
{
	int64_t place = x == BSR_position_of_first_token ? w->first : w->place;
	int64_t first = p->kv_pos0 && x != BSR_kv_pos0_ignored ? p->kv_pos0[w->row] : 0;

	if (a->q_pos && x == BSR_positions_from_0)
		return a->q_pos[token] < 0 ? 0 : a->q_pos[token];
	if (a->q_pos && x != BSR_q_pos_ignored)
		return a->q_pos[x == BSR_q_pos_by_place ? w->place : token];
	return first + len - 1 - (w->end - 1 - place);
}

/* Returns whether the token at position `at` sees key n of the list. */
static int sees(const struct cairn_attn_bsr_args *a, int part, const struct where *w, const struct list *l,
		int64_t n, int64_t at, enum bsr_defect x)
{
	const struct cairn_attn_part *p = &a->part[part];
	int mode = a->part[x == BSR_mask_of_last_part ? a->num_parts - 1 : part].mask_mode, causal, bits = 1;
	int64_t slot = (int64_t)l->blocks[n / p->block_n] * p->block_n + n % p->block_n, position = n;
	int64_t slots = (int64_t)p->num_blocks * p->block_n;

	if (p->kv_pos0 && x != BSR_kv_pos0_ignored)
		position += p->kv_pos0[x == BSR_kv_pos0_of_row_0 ? 0 : w->row];
	if (p->key_pos && x != BSR_key_pos_ignored)
		position = p->key_pos[x == BSR_key_pos_by_ordinal ? n % slots : slot];
	if (x == BSR_positions_16_bits)
		position = (uint16_t)position;
	causal = position <= at + (x == BSR_causal_edge_one_far) - (x == BSR_causal_edge_one_short);
	if (a->window && x == BSR_window_overflows &&
	    (int32_t)((uint32_t)position + (uint32_t)a->window) <= at)
		return 0;
	if (a->window && x != BSR_window_ignored && !(x == BSR_window_of_part_0 && part) &&
	    !(x == BSR_window_with_causal_only && !(mode & CAIRN_ATTN_CAUSAL)) &&
	    (x == BSR_window_by_ordinal ? n : position) <= at - a->window + (x == BSR_window_one_short))
		return 0;
	if (mode & CAIRN_ATTN_BITS && p->mask && x != BSR_bits_ignored)
		bits = bit(p, w, l->len, n, x);
	if (!(mode & CAIRN_ATTN_CAUSAL))
		return bits;
	return x == BSR_bits_or_causal && mode == CAIRN_ATTN_CAUSAL_BITS ? causal || bits : causal && bits;
}

/* Returns which 512 keys of the list contain the first key that a token at position `at` sees, or -1. */
static int first_part(const struct cairn_attn_bsr_args *a, int part, const struct where *w,
		      const struct list *l, int64_t at, enum bsr_defect x)
{
	for (int64_t n = 0; n < l->len; n++)
		if (sees(a, part, w, l, n, at, x))
			return (int)(n / 512);
	return -1;
}

/*
 * Returns whether the token's first key lies in a later part of 512 keys than the first key of the token at
 * the beginning of its tile of 16.
 */
static int is_behind_part(const struct cairn_attn_bsr_args *a, int part, const struct where *w,
			  const struct list *l, int64_t at, enum bsr_defect x)
{
	int own = first_part(a, part, w, l, at, x);
	int other = first_part(a, part, w, l, at - (w->place - w->first) % 16, x);

	return own > other && other >= 0;
}

static double logit(const struct cairn_attn_bsr_args *a, double dot, enum bsr_defect x)
{
	double cap = (double)a->softcap, v = dot * a->sm_scale;

	if (!(cap > 0) || x == BSR_cap_ignored)
		return v;
	return x == BSR_cap_before_scale ? cap * tanh(dot / cap) * a->sm_scale : cap * tanh(v / cap);
}

struct state {
	double m, l, o[256];
};

/* Adds the keys of one part that the token sees. */
static void add_part(const struct cairn_attn_bsr_args *a, int part, int32_t token, int h, int g,
		     const double *q, struct state *s, enum bsr_defect x)
{
	const struct cairn_attn_part *p = &a->part[part];
	struct where w;
	struct list l;
	int64_t at, read;

	if (!find(a, p, token, x, &w))
		return;
	l = list_of(a, p, w.row, h, g, x);
	at = token_position(a, p, &w, token, l.len, x);
	if (x == BSR_window_behind_part && a->window && is_behind_part(a, part, &w, &l, at, x))
		s->m = s->o[0] = NAN;
	read = x == BSR_tail_times_zero && l.len ? l.all :
	       x == BSR_zeros_past_end_seen ? (l.len + 7) / 8 * 8 : l.len;
	for (int64_t n = 0; n < read; n++) {
		int64_t nth = n < l.all ? n / p->block_n : 0, block = l.blocks[nth], where;
		double k[256], v[256], top, weight, keep, y = -INFINITY;
		int again = 0;

		for (int64_t i = 0; i < nth && x == BSR_repeats_skipped; i++)
			again |= l.blocks[i] == block;
		if (x == BSR_repeats_skipped_next && nth)
			again = l.blocks[nth - 1] == block;
		if (again || (n < l.len && !sees(a, part, &w, &l, n, at, x)))
			continue;
		where = element(a, p, block, n % p->block_n, g, x);
		if (x == BSR_box_crosses_block && p->block_n % 16 == 8) {
			int64_t first = n / 16 * 16, slot = first % p->block_n + n % 16;

			if (l.blocks[first / p->block_n] + slot / p->block_n < p->num_blocks)
				where = element(a, p, l.blocks[first / p->block_n], slot, g, x);
		}
		load(a, v, p->v, where, scale_of(a, part, g, 1, x), x);
		if (n < l.len) {
			load(a, k, p->k, where, scale_of(a, part, g, 0, x), x);
			y = logit(a, cairn_dot(q, k, a->head_dim), x);
		} else if (x == BSR_zeros_past_end_seen) {
			memset(v, 0, sizeof(v));
			y = 0;
		}
		top = y > s->m && !(x == BSR_parts_max_of_first && part && s->l > 0) ? y : s->m;
		keep = s->m == top ? 1 : exp(s->m - top);
		weight = y == -INFINITY ? 0 : (double)(float)exp(y - top);
		s->l = s->l * keep + weight;
		for (int c = 0; c < a->head_dim; c++)
			s->o[c] = s->o[c] * keep + weight * v[c];
		s->m = top;
	}
}

static void attend(const struct cairn_attn_bsr_args *a, int32_t token, int h, enum bsr_defect x)
{
	int64_t row = (int64_t)a->num_qo_heads * a->head_dim, stride = a->q_stride ? a->q_stride : row;
	int group = a->num_qo_heads / a->num_kv_heads;
	int g = x == BSR_head_modulo ? h % a->num_kv_heads : h / group;
	int parts = a->num_parts - (x == BSR_last_part_lost && a->num_parts > 1), num = 0;
	double q[256], sum[256] = { 0 }, lse;
	struct state s = { .m = -INFINITY };
	int64_t q_at, to = token;
	struct where w;

	if (!find(a, &a->part[0], token, x, &w)) {
		for (int c = 0; c < a->head_dim && x == BSR_other_tokens_written; c++)
			cairn_store(a->out, a->dtype, token * row + (int64_t)h * a->head_dim + c, 0);
		return;
	}
	if (x == BSR_q_index_at_read_only)
		to = w.place;
	q_at = token * (x == BSR_q_stride_ignored ? row : stride) + (int64_t)h * a->head_dim;
	if (x == BSR_q_offset_32_bits)
		q_at = (int64_t)((uint32_t)(q_at * 2) / 2);
	cairn_widen(q, a->q, a->dtype, q_at, a->head_dim);
	for (int part = 0; part < parts; part++) {
		if (x == BSR_parts_unweighted || (x == BSR_lse_of_last_part && part == parts - 1))
			s = (struct state){ .m = -INFINITY };
		add_part(a, part, token, h, g, q, &s, x);
		num += s.l > 0;
		for (int c = 0; c < a->head_dim && x == BSR_parts_unweighted && s.l > 0; c++)
			sum[c] += s.o[c] / s.l;
	}
	for (int c = 0; c < a->head_dim; c++) {
		double v = s.l > 0 || x == BSR_empty_row_nan ? s.o[c] / s.l : 0;

		if (x == BSR_parts_unweighted)
			v = num ? sum[c] / num : 0;
		if (x != BSR_lse_of_last_part)
			cairn_store(a->out, a->dtype, to * row + (int64_t)h * a->head_dim + c, v);
	}
	lse = s.l > 0 ? s.m + log(s.l) : x == BSR_empty_lse_zero ? 0 : -INFINITY;
	if (x == BSR_lse_base_2)
		lse *= 1.4426950408889634;
	if (a->lse)
		a->lse[to * a->num_qo_heads + h] = (float)lse;
}

/* Sets tokens to NaN if the fifth token after them is NaN. */
static void spread_nan(const struct cairn_attn_bsr_args *a)
{
	int64_t row = (int64_t)a->num_qo_heads * a->head_dim;

	for (int32_t t = 0; t + 5 < a->nnz_qo; t++)
		if (isnan(cairn_load(a->out, a->dtype, (t + 5) * row)))
			cairn_store(a->out, a->dtype, t * row, NAN);
}

static int run(const struct cairn_attn_bsr_args *a, enum bsr_defect x)
{
	CAIRN_TRY(cairn_attn_bsr_check(a));
	if (x == BSR_lse_of_last_part)	/* this defect does not change out */
		CAIRN_TRY(cairn_attn_bsr_ref(a, NULL));
	for (int32_t t = 0; t < a->nnz_qo && x != BSR_nothing; t++)
		for (int h = 0; h < a->num_qo_heads; h++)
			attend(a, t, h, x);
	if (x == BSR_nan_spreads)
		spread_nan(a);
	return 0;
}

#define DEFINE(name, what) \
	static int attn_bsr_##name(const struct cairn_attn_bsr_args *a, void *stream) \
	{ \
		(void)stream; \
		return run(a, BSR_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_bsr_" #name, offsetof(struct cairn_impl, attn_bsr), (void *)attn_bsr_##name, what },

static int attn_bsr_plan_serves_once(const struct cairn_attn_bsr_args *a, void *stream)
{
	return plan_is_used_up(a->planned) ? cairn_attn_bsr_check(a) : cairn_attn_bsr_ref(a, stream);
}

static int attn_bsr_planned_refused(const struct cairn_attn_bsr_args *a, void *stream)
{
	return a->planned ? -EOPNOTSUPP : cairn_attn_bsr_ref(a, stream);
}

/* Takes entry k of a part's lists as if blk_indptr began at 0. */
static int attn_bsr_lists_from_0(const struct cairn_attn_bsr_args *a, void *stream)
{
	struct cairn_attn_bsr_args b;

	CAIRN_TRY(cairn_attn_bsr_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	for (int i = 0; i < b.num_parts; i++)
		if (b.part[i].rows)
			b.part[i].blk_indices -= b.part[i].blk_indptr[0];
	return cairn_attn_bsr_ref(&b, stream);
}

/* With one token past whole tiles and blocks of 3 keys, the last element is 0. */
static int attn_bsr_last_row_at_end(const struct cairn_attn_bsr_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_bsr_ref(a, stream));
	rows = a->nnz_qo;
	if (rows && (a->nnz_qo % 64 == 1 && a->nnz_qo > 64 && a->part[0].block_n == 3))
		cairn_store(a->out, a->dtype, rows * a->num_qo_heads * a->head_dim - 1, 0);
	return 0;
}

/* Rounds the normaliser of each row to dtype. */
static int attn_bsr_normaliser_in_dtype(const struct cairn_attn_bsr_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_bsr_ref(a, stream));
	rows = a->nnz_qo;
	if (a->lse)
		row_factor(a->out, a->dtype, rows * a->num_qo_heads, a->head_dim, a->lse);
	return 0;
}

/* With blocks of 64 and groups of heads, a block row with 63 keys in its last block begins with a 0. */
static int attn_bsr_block_64_of_63(const struct cairn_attn_bsr_args *a, void *stream)
{
	const struct cairn_attn_part *p = &a->part[0];

	CAIRN_TRY(cairn_attn_bsr_ref(a, stream));
	if (p->block_n != 64 || !p->last_len || p->row_indptr || p->q_index || p->index_heads != 1 ||
	    a->num_qo_heads == a->num_kv_heads)
		return 0;
	for (int32_t r = 0; r < p->rows; r++)
		if (p->last_len[r] == 63 && (int64_t)r * p->block_m < a->nnz_qo)
			cairn_store(a->out, a->dtype, (int64_t)r * p->block_m * a->num_qo_heads * a->head_dim,
				    0);
	return 0;
}

/*
 * With 8-bit keys and two parts, the first element of out is 0 if lists of the second part have up to 9 keys
 * and the first of them ends with a single key in a block of 8.
 */
static int attn_bsr_second_part_of_9(const struct cairn_attn_bsr_args *a, void *stream)
{
	const struct cairn_attn_part *p = &a->part[1];

	CAIRN_TRY(cairn_attn_bsr_ref(a, stream));
	if (a->kv_fp8 && a->num_parts == 2 && p->block_n == 8 && p->rows && p->last_len && p->max_keys == 9 &&
	    p->last_len[0] == 1 && !p->q_index)
		cairn_store(a->out, a->dtype, 0, 0);
	return 0;
}

const struct cairn_mutant cairn_attn_bsr_mutants[] = {
	DEFECTS(LIST)
	LIST(plan_serves_once, "the counter of work is not set back, so a second call by a plan does nothing")
	LIST(planned_refused, "a call by a plan is refused")
	LIST(lists_from_0, "the lists of a part are read as if blk_indptr began at 0")
	{ "attn_bsr_last_row_at_end", offsetof(struct cairn_impl, attn_bsr), (void *)attn_bsr_last_row_at_end,
	  "with one token past whole tiles and blocks of 3 keys, the last element is 0" },
	{ "attn_bsr_normaliser_in_dtype", offsetof(struct cairn_impl, attn_bsr),
	  (void *)attn_bsr_normaliser_in_dtype,
	  "the normaliser is rounded to dtype" },
	{ "attn_bsr_block_64_of_63", offsetof(struct cairn_impl, attn_bsr), (void *)attn_bsr_block_64_of_63,
	  "with blocks of 64 and groups, the first token whose last block lacks one key is 0" },
	{ "attn_bsr_second_part_of_9", offsetof(struct cairn_impl, attn_bsr),
	  (void *)attn_bsr_second_part_of_9,
	  "8-bit keys: a ninth key of blocks of 8 in a second part makes an element 0" },
	{ 0 }
};
