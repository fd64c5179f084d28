/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_defects.h - one plain online-softmax attention, with a switch for each defect
 *
 * Each defect is one that some library has shipped; without a defect the code is correct.
 */
#ifndef CAIRN_ATTN_PAGED_DEFECTS_H
#define CAIRN_ATTN_PAGED_DEFECTS_H

#include "fused/attention/paged/attn_paged.h"

/* D(name, description) */
#define ATTN_DEFECTS(D) \
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

#define ATTN_DEFECT(name, what)	ATTN_##name,
enum attn_defect { ATTN_DEFECTS(ATTN_DEFECT) };

int attn_paged_attend(const struct cairn_attn_paged_args *a, enum attn_defect x);

#endif
