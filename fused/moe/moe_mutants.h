/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_mutants - the list of defects, and the state of a call, which two files share: moe_mutants_route.c
 * chooses experts and weights, moe_mutants.c computes everything else
 */
#ifndef CAIRN_MOE_MUTANTS_H
#define CAIRN_MOE_MUTANTS_H

#include "fused/moe/moe.h"

#define MAX_TOP		16
#define MAX_BATCH	512

#define MOE_DEFECTS(D) \
	D(norm_missing, "router and experts read x without the norm") \
	D(norm_weight_missing, "norm_weight is not applied") \
	D(eps_missing, "eps is not added") \
	D(router_reads_x, "the router reads x, not n") \
	D(logits_in_dtype, "logits are rounded to dtype") \
	D(logits_truncated, "the last 64 columns of a router row are left out of its sum") \
	D(top_k_short, "one expert too few is chosen") \
	D(top_k_off, "the choice begins with the second best") \
	D(ties_to_higher, "among equal logits the higher number is chosen") \
	D(ascending, "experts are used in ascending order") \
	D(last_expert_ignored, "the last expert is never chosen") \
	D(first_64_experts, "experts past the 64th are ignored") \
	D(by_logit_magnitude, "the logits with the largest magnitudes are chosen") \
	D(weights_all_equal, "each expert counts 1/k") \
	D(weights_reversed, "the weights are in the opposite order") \
	D(normalize_always, "weights are divided by their sum without normalize") \
	D(normalize_never, "weights are never divided by their sum") \
	D(scaling_missing, "scaling is not applied") \
	D(scaling_before_norm, "scaling is applied before the division by the sum, where it cancels") \
	D(scaling_of_shared, "the shared experts are scaled as well") \
	D(softmax_over_chosen, "the softmax is over the chosen experts only") \
	D(no_maximum, "exp is applied in fp32 without subtracting the maximum") \
	D(maximum_from_zero, "the search for the largest logit starts at 0") \
	D(weight_twice, "the weight is applied in h and again in the sum") \
	D(weight_missing, "experts are added without a weight") \
	D(weight_before_silu, "the weight is applied to the gate") \
	D(gate_and_up_swapped, "silu is applied to the up instead of the gate") \
	D(gate_up_interleaved, "gates and ups are read as alternating rows") \
	D(silu_missing, "gate times up without silu") \
	D(experts_one_off, "the next expert's weights are read") \
	D(gate_up_stride, "w_gate_up is read with intermediate rows for each expert") \
	D(down_of_first, "all experts use the down weights of the first chosen one") \
	D(down_transposed, "down is read as [intermediate, hidden]") \
	D(down_in_tiles_of_128, "elements past the last whole 128 of intermediate are left out") \
	D(shared_missing, "the shared experts are not added") \
	D(shared_weighted, "the shared experts have the first expert's weight") \
	D(shared_width, "the shared experts are taken to have the width of the others") \
	D(residual_missing, "x is not added") \
	D(residual_is_n, "n is added instead of x") \
	D(residual_zeroed, "out is zeroed before x, which may alias it, is read") \
	D(rounded_each, "the sum is rounded after each expert") \
	D(experts_of_request_0, "all requests have the experts of the first") \
	D(weights_of_request_0, "all requests have the first request's weights") \
	D(overwritten_by_peer, "of two requests with the same first expert only one gets its result") \
	D(batch_of_4, "requests past the fourth are not computed") \
	D(h_in_place, "the first expert's h overwrites n before the others have read it") \
	D(past_the_end, "one element past the end of out is written") \
	D(experts_needed, "experts is written although it is NULL: the call fails") \
	D(experts_missing, "experts is not written") \
	D(experts_sorted, "experts is written in ascending order") \
	D(x_written, "the norm overwrites x") \
	D(nan, "the weight is 0/0 where one expert has all the weight") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(eps_at_least_1e_30, "eps is raised to 1e-30") \
	D(eps_at_least_1e_6, "eps is raised to 1e-6") \
	D(logits_in_tf32, "logits are cut to TF32") \
	D(sums_10_bits_of_gate_up, "the products with w_gate_up are summed with the 10 bits of TF32") \
	D(sums_10_bits_of_down, "the products with w_down are summed with the 10 bits of TF32") \
	D(route_bias_lost_of_many, "the bias is not added above 8 rows") \
	D(route_groups_lost_with_fp8, "weights of 8 bits: experts of all groups are chosen") \
	D(down_rounded, "an expert's product with w_down is rounded to dtype") \
	D(normalize_lost_with_fp8, "weights of 8 bits: weights are not divided by their sum") \
	D(scaling_lost_of_many, "scaling is not applied above 8 rows") \
	D(shared_lost_in_place, "the shared experts are not added where out is x") \
	D(h_in_bf16, "h is rounded to bf16 also in f16") \
	D(scale_in_bf16, "scales of rows are rounded to bf16") \
	D(nothing, "returns success without doing anything") \
	D(fp8_scales_ignored, "codes are used without their scales") \
	D(fp8_scale_divides, "codes are divided by their scale") \
	D(fp8_e5m2, "codes are decoded as e5m2") \
	D(fp8_scale_of_expert_0, "all experts use the first expert's scales") \
	D(fp8_scale_of_next_expert, "the next expert's scales are used") \
	D(fp8_scale_of_slot, "the scales of the expert numbered by the position among the chosen are used") \
	D(fp8_scale_stride, "gates and ups of an expert are taken to have as many scales as its down") \
	D(fp8_scales_transposed, "scales of blocks are read as [k blocks, n blocks]") \
	D(fp8_scale_of_column_block_0, "a row's first block scale is used for the whole row") \
	D(fp8_block_of_64, "blocks have 64 columns along k") \
	D(fp8_half_block, "half a block at the end of a row uses the scale of the block before") \
	D(fp8_subnormal_0, "subnormal codes are taken for 0") \
	D(fp8_scale_of_slice, "128 columns from an eighth of k on share a scale, ignoring block boundaries") \
	D(fp8_up_has_scale_of_gate, "an up uses its gate's scale") \
	D(fp8_blocks_of_ups_apart, "blocks of ups are counted from the first up") \
	D(fp8_shared_scales_ignored, "codes of the shared experts are used without their scales") \
	D(fp8_shared_scale_of_expert, "the shared experts use the first expert's scales") \
	D(cut_off, "cuts the result off instead of rounding it") \
	D(fp8_shared_down_rows, "the shared down always uses scales of rows") \
	D(route_softmax_for_sigmoid, "a softmax is computed where sigmoids are asked for") \
	D(route_bias_ignored, "the bias is not added") \
	D(route_weights_biased, "the weights contain the bias") \
	D(route_bias_on_logits, "the bias is added to the logits") \
	D(route_sigmoid_in_dtype, "sigmoids are rounded to dtype") \
	D(route_normalize_never, "sigmoids are not divided by their sum") \
	D(route_sum_plus_1e_6, "1e-6 is added to the sum of sigmoids that divides them") \
	D(route_normalize_by_all, "sigmoids are divided by the sum over all experts") \
	D(route_groups_ignored, "experts of all groups are chosen") \
	D(route_group_max, "with sigmoids a group counts its best expert alone") \
	D(route_group_sum, "a group counts the sum of all of its experts") \
	D(route_group_two_of_softmax, "with a softmax a group counts its two best experts") \
	D(route_group_unbiased, "groups are compared without the biases") \
	D(route_group_twice_best, "the best expert of a group counts twice") \
	D(route_group_short, "one group too few is chosen") \
	D(route_group_ties_to_higher, "among equal groups the higher one is chosen") \
	D(route_groups_interleaved, "an expert's group is its number modulo num_groups") \
	D(route_masked_zero, "experts of other groups count 0 instead of being left out") \
	D(route_softmax_of_groups, "the softmax is over the experts of the chosen groups only") \
	D(route_past_64, "groups are formed of the first 64 experts") \
	D(route_sum_plus_1e_12, "1e-12 is added to the sum of sigmoids that divides them") \
	D(route_masked_low, "experts of other groups count -1e9 instead of being left out") \
	D(sum_rounded, "the sum of all experts is rounded to dtype before x is added") \
	D(silu_rounded, "silu is rounded to dtype before it is multiplied by the up") \
	D(silu_0_below_20, "silu is 0 for gates below -20") \
	D(out_saturated, "what exceeds the range of f16 becomes its largest number") \
	D(scaling_in_bf16, "scaling is rounded to bf16") \
	D(fp8_scale_magnitude, "the sign of a scale is ignored") \
	D(residual_always, "x is added also with no_residual") \
	D(residual_always_of_many, "above 8 rows x is added also with no_residual") \
	D(residual_always_with_fp8, "weights of 8 bits: x is added also with no_residual") \
	D(residual_always_in_place, "x is added also with no_residual where out is x") \
	D(fp8_scale_0_is_1, "a scale of 0 is taken for 1") \
	D(logit_bias_ignored, "logit_bias is not added") \
	D(logit_bias_lost_of_many, "logit_bias is not added above 8 rows") \
	D(logit_bias_in_choice_only, "the weights do not contain logit_bias") \
	D(gate_up_bias_ignored, "gate_up_bias is not added") \
	D(gate_up_bias_lost_of_many, "gate_up_bias is not added above 8 rows") \
	D(gate_up_bias_of_expert_0, "all experts have the gate_up_bias of the first") \
	D(gate_up_bias_interleaved, "gate_up_bias is read as alternating gates and ups") \
	D(gate_up_bias_after_limit, "gate_up_bias is added behind the limits") \
	D(down_bias_ignored, "down_bias is not added") \
	D(down_bias_lost_of_many, "down_bias is not added above 8 rows") \
	D(down_bias_unweighted, "down_bias is added without the expert's weight") \
	D(down_bias_of_expert_0, "all experts have the down_bias of the first") \
	D(limit_ignored, "activation 1 without limits") \
	D(limit_below_gate, "gates are limited below as well") \
	D(limit_above_up_only, "ups are limited above only") \
	D(up_without_1, "activation 1 multiplies by up, not by up + 1") \
	D(alpha_is_1, "activation 1 has the alpha 1") \
	D(activation_silu, "activation 1 is taken for 0") \
	D(w4_rows_swapped, "4 bits: the codes of rows g and g + 8 are exchanged") \
	D(w4_first_group, "4 bits: a row's first scale and zero point are used for the whole row") \
	D(w4_up_has_scale_of_gate, "4 bits: an up uses its gate's scale") \
	D(w4_zero_8, "4 bits: all zero points are 8") \
	D(w4_scale_magnitude, "4 bits: the sign of a scale is ignored") \
	D(w4_scale_of_expert_0, "4 bits: all experts use the first expert's scales") \
	D(w4_factors_ignored, "4 bits: the factors of gates, ups and down are taken for 1") \
	D(w4_down_factor_ignored, "4 bits: the factor of down is taken for 1") \
	D(w4_factor_of_expert_0, "4 bits: all experts use the first expert's factors") \
	D(w4_up_has_factor_of_gate, "4 bits: ups are multiplied by the factor of gates")

#define NAME(name, what)	MOE_##name,
enum moe_defect { MOE_DEFECTS(NAME) };
#undef NAME

struct moe_mutant {
	const struct cairn_moe_args *a;
	struct cairn_moe_choice how;
	struct cairn_moe_between between;
	enum moe_defect d;
	double *x, *n, *g, *y, *sum, *row;
	int experts[MAX_BATCH][MAX_TOP];
	double weights[MAX_BATCH][MAX_TOP];
};

/* Chooses the experts of request b, whose x and n have been computed, and their weights. */
void moe_mutant_route(struct moe_mutant *s, int b);

#endif
