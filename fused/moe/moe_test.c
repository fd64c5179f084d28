// SPDX-License-Identifier: Apache-2.0
/*
 * moe_test - the cases: named edge cases, shapes of published models, bench rows, a generated series of
 * shapes, and pair cases, which combine any two features; then those of moe_more_cases.h and moe_ends.h
 *
 * A request whose experts are not decided is only checked to be finite (moe_bounds.c); a case fails if the
 * experts of less than half of the sampled requests are decided.
 */
#include <math.h>
#include <stdio.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/moe/moe_test.h"
#include "fused/moe/moe_ends.h"
#include "fused/moe/moe_more_cases.h"
#include "primitives/rows/rmsnorm.h"

#define N(n, ...)	N_OF(n, __VA_ARGS__) /* a second macro level expands DSV2LITE into five arguments */
#define N_OF(case_name, hidden_dim, num_experts, per_token, expert_dim, shared_dim, rows) \
	.name = case_name, .hidden = hidden_dim, .experts = num_experts, .top = per_token, \
	.inter = expert_dim, .shared = shared_dim, .batch = rows
/* hidden_dim, num_experts, per_token, expert_dim, shared_dim */
#define DSV2LITE	2048, 64, 6, 1408, 2816
#define GPT_OSS_20B	2880, 32, 4, 2880, 0
#define QWEN3_30B	2048, 128, 8, 768, 0
#define W4(form)	.w4 = CAIRN_MOE_W4_##form
#define GPT_OSS		(NORMALIZE | LOGIT_BIAS | PRODUCT_BIAS | CLAMPED | NORMAL_ALONE)

static const struct moe_shape named[] = {
	{ N("smallest", 64, 2, 1, 64, 64, 1) },		/* the reject_* cases change this one */
	{ N("batch_0", 64, 4, 2, 64, 64, 0) },
	{ N("one_expert", 64, 1, 1, 64, 0, 2) },
	{ N("one_expert_normalized_f16", 128, 1, 1, 128, 64, 3), .flags = F16 | NORMALIZE, .scaling = 2.5f },
	{ N("all_experts", 128, 5, 5, 64, 0, 3) },
	{ N("all_16_experts", 64, 16, 16, 128, 64, 8), .flags = NORMALIZE },
	{ N("mixtral_like", 256, 8, 2, 448, 0, 4), .flags = NORMALIZE },
	{ N("mixtral_like_f16", 256, 8, 2, 448, 0, 1), .flags = NORMALIZE | F16 },
	{ N("dsv2lite_like", 256, 64, 6, 192, 320, 4) },
	{ N("dsv2lite_like_b8", 256, 64, 6, 128, 192, 8) },
	{ N("dsv3_like", 192, 256, 8, 64, 64, 2), .flags = NORMALIZE, .scaling = 2.5f },
	{ N("experts_256_top_16", 64, 256, 16, 64, 0, 8), .flags = F16 },
	{ N("no_shared", 128, 8, 2, 128, 0, 3) },
	{ N("shared_narrower", 128, 8, 2, 320, 64, 3) },
	{ N("shared_wider", 128, 8, 2, 64, 704, 3), .flags = F16 },
	{ N("scaling_16", 128, 8, 3, 128, 64, 2), .scaling = 16 },
	{ N("scaling_small_normalized", 128, 8, 3, 128, 64, 2), .scaling = 0.03125f, .flags = NORMALIZE },
	{ N("in_place", 192, 8, 2, 128, 64, 8), .flags = IN_PLACE },
	{ N("in_place_f16", 512, 16, 4, 64, 0, 3), .flags = IN_PLACE | F16 | NORMALIZE },
	{ N("experts_not_asked_for", 128, 8, 2, 128, 64, 4), .flags = NO_EXPERTS },
	{ N("all_logits_equal", 64, 8, 3, 64, 0, 3), .flags = TIES },
	{ N("all_logits_equal_64", 128, 64, 6, 64, 64, 8), .flags = TIES | F16 },
	{ N("logits_equal_in_pairs", 64, 8, 3, 64, 64, 8), .flags = PAIRS },
	{ N("logits_equal_in_pairs_64", 192, 64, 5, 64, 0, 4), .flags = PAIRS | NORMALIZE },
	{ N("requests_equal", 128, 16, 4, 128, 64, 8), .flags = SAME },
	{ N("hidden_8192", 8192, 4, 2, 64, 64, 4) },
	{ N("hidden_4096_b8_f16", 4096, 4, 1, 64, 0, 8), .flags = F16 },
	{ N("intermediate_16384", 64, 2, 1, 16384, 0, 2) },
	{ N("shared_16384_f16", 64, 2, 2, 64, 16384, 1), .flags = F16 },
	/* many rows */
	{ N("rows_9", 64, 4, 2, 64, 64, 9) },
	{ N("rows_33_in_place", 128, 8, 3, 64, 0, 33), .flags = IN_PLACE },
	{ N("rows_70_mixtral_like", 256, 8, 2, 192, 0, 70), .flags = NORMALIZE },
	{ N("rows_70_dsv2lite_like", 128, 64, 6, 64, 128, 70) },
	{ N("rows_150_f16", 128, 3, 2, 64, 64, 150), .flags = F16 | NO_EXPERTS },
	{ N("rows_300_one_expert", 64, 1, 1, 64, 0, 300) },
	{ N("rows_129_all_experts", 64, 5, 5, 64, 192, 129), .flags = NORMALIZE, .scaling = 2.5f },
	{ N("rows_200_logits_equal", 64, 8, 3, 64, 0, 200), .flags = TIES },
	{ N("rows_40_logits_equal_in_pairs", 64, 256, 16, 64, 64, 40), .flags = PAIRS | F16 },
	{ N("rows_140_equal", 64, 16, 4, 128, 64, 140), .flags = SAME },
	{ N("rows_1040", 64, 4, 2, 64, 64, 1040) },
	{ N("rows_16_one_expert", 64, 1, 1, 192, 0, 16) },
	{ N("rows_128_one_expert_f16", 320, 1, 1, 64, 128, 128), .flags = F16 },
	{ N("rows_160_one_expert", 64, 1, 1, 192, 0, 160) },
	{ N("rows_161_one_expert_f16", 128, 1, 1, 320, 64, 161), .flags = F16 },
	{ N("dsv2lite_8_experts", 2048, 8, 6, 1408, 2816, 1) },
	/* 8-bit weights */
	{ N("fp8_smallest", 64, 2, 1, 64, 64, 1), .flags = FP8 },
	{ N("fp8_blocks_smallest_f16", 64, 2, 1, 64, 64, 1), .flags = FP8 | BLOCKS | F16 },
	{ N("fp8_batch_0", 64, 4, 2, 64, 64, 0), .flags = FP8 },
	{ N("fp8_mixtral_like", 256, 8, 2, 448, 0, 4), .flags = FP8 | NORMALIZE },
	{ N("fp8_blocks_mixtral_like_f16", 256, 8, 2, 448, 0, 1), .flags = FP8 | BLOCKS | NORMALIZE | F16 },
	{ N("fp8_f16_dsv2lite_like_b8", 256, 64, 6, 128, 192, 8), .flags = FP8 | F16 },
	{ N("fp8_blocks_dsv2lite_like", 256, 64, 6, 192, 320, 4), .flags = FP8 | BLOCKS },
	{ N("fp8_blocks_dsv3_like", 192, 256, 8, 64, 64, 2), .flags = FP8 | BLOCKS | NORMALIZE,
	  .scaling = 2.5f },
	{ N("fp8_blocks_all_16_experts", 64, 16, 16, 128, 64, 8), .flags = FP8 | BLOCKS | NORMALIZE },
	{ N("fp8_in_place", 192, 8, 2, 128, 64, 8), .flags = FP8 | IN_PLACE },
	{ N("fp8_blocks_shared_wider", 320, 8, 2, 64, 704, 3), .flags = FP8 | BLOCKS | F16 | NO_EXPERTS },
	{ N("fp8_blocks_inter_1408", 1088, 3, 2, 1408, 0, 2), .flags = FP8 | BLOCKS },
	{ N("fp8_hidden_8192", 8192, 4, 2, 64, 64, 4), .flags = FP8 },
	{ N("fp8_blocks_hidden_8192_f16", 8192, 4, 1, 64, 0, 2), .flags = FP8 | BLOCKS | F16 },
	{ N("fp8_intermediate_16384", 64, 2, 1, 16384, 0, 2), .flags = FP8 },
	{ N("fp8_blocks_shared_16384_f16", 64, 2, 2, 64, 16384, 1), .flags = FP8 | BLOCKS | F16 },
	{ N("fp8_rows_9", 64, 4, 2, 64, 64, 9), .flags = FP8 },
	{ N("fp8_blocks_rows_33_in_place", 128, 8, 3, 64, 0, 33), .flags = FP8 | BLOCKS | IN_PLACE },
	{ N("fp8_blocks_rows_70_mixtral_like", 256, 8, 2, 192, 0, 70), .flags = FP8 | BLOCKS | NORMALIZE },
	{ N("fp8_rows_70_dsv2lite_like", 128, 64, 6, 64, 128, 70), .flags = FP8 },
	{ N("fp8_rows_150_f16", 320, 3, 2, 64, 64, 150), .flags = FP8 | F16 | NO_EXPERTS },
	{ N("fp8_blocks_rows_150_f16", 320, 3, 2, 320, 64, 150), .flags = FP8 | BLOCKS | F16 },
	{ N("fp8_blocks_rows_300_one_expert", 192, 1, 1, 64, 0, 300), .flags = FP8 | BLOCKS },
	{ N("fp8_rows_129_all_experts", 64, 5, 5, 64, 192, 129), .flags = FP8 | NORMALIZE, .scaling = 2.5f },
	{ N("fp8_rows_144_one_expert", 192, 1, 1, 192, 0, 144), .flags = FP8 },
	{ N("fp8_rows_145_one_expert_f16", 64, 1, 1, 64, 128, 145), .flags = FP8 | F16 },
	{ N("fp8_blocks_rows_112_one_expert_f16", 320, 1, 1, 192, 192, 112), .flags = FP8 | BLOCKS | F16 },
	{ N("fp8_blocks_rows_113_one_expert", 128, 1, 1, 64, 0, 113), .flags = FP8 | BLOCKS },
	{ N("fp8_blocks_rows_64_two_experts", 256, 2, 1, 320, 64, 64), .flags = FP8 | BLOCKS },
	{ N("fp8_blocks_rows_1040", 192, 4, 2, 64, 64, 1040), .flags = FP8 | BLOCKS },
	{ N("fp8_rows_140_equal", 64, 16, 4, 128, 64, 140), .flags = FP8 | SAME },
	/* too large to run on the CPU */
	{ N("large_mixtral_layer", 4096, 8, 2, 14336, 0, 2), .flags = DEVICE | NORMALIZE },
	{ N("large_dsv2lite_b3_f16", DSV2LITE, 3), .flags = DEVICE | F16 },
	{ N("large_dsv2lite_b5_in_place", DSV2LITE, 5), .flags = DEVICE | IN_PLACE },
	{ N("large_dsv2lite_rows_777", DSV2LITE, 777), .flags = DEVICE },
	{ N("large_mixtral_rows_300_f16", 4096, 8, 2, 14336, 0, 300), .flags = DEVICE | NORMALIZE | F16 },
	{ N("fp8_large_mixtral_layer", 4096, 8, 2, 14336, 0, 2), .flags = DEVICE | FP8 | NORMALIZE },
	{ N("fp8_blocks_large_mixtral_b8", 4096, 8, 2, 14336, 0, 8),
	  .flags = DEVICE | FP8 | BLOCKS | NORMALIZE },
	{ N("fp8_blocks_large_dsv2lite_b3_f16", DSV2LITE, 3), .flags = DEVICE | FP8 | BLOCKS | F16 },
	{ N("fp8_large_dsv2lite_b5_in_place", DSV2LITE, 5), .flags = DEVICE | FP8 | IN_PLACE },
	{ N("fp8_blocks_large_dsv2lite_rows_777", DSV2LITE, 777), .flags = DEVICE | FP8 | BLOCKS },
	{ N("fp8_large_mixtral_rows_300_f16", 4096, 8, 2, 14336, 0, 300),
	  .flags = DEVICE | FP8 | NORMALIZE | F16 },
	/* bench rows */
	{ N("dsv2lite_b1", DSV2LITE, 1), .flags = BENCH | DEVICE },
	{ N("dsv2lite_b8", DSV2LITE, 8), .flags = BENCH | DEVICE },
	{ N("dsv2lite_rows_64", DSV2LITE, 64), .flags = BENCH | DEVICE },
	{ N("dsv2lite_rows_1024", DSV2LITE, 1024), .flags = BENCH | DEVICE },
	{ N("mixtral_rows_1024", 4096, 8, 2, 14336, 0, 1024), .flags = BENCH | DEVICE | NORMALIZE },
	{ N("fp8_dsv2lite_b1", DSV2LITE, 1), .flags = BENCH | DEVICE | FP8 },
	{ N("fp8_dsv2lite_b8", DSV2LITE, 8), .flags = BENCH | DEVICE | FP8 },
	{ N("fp8_dsv2lite_rows_64", DSV2LITE, 64), .flags = BENCH | DEVICE | FP8 },
	{ N("fp8_dsv2lite_rows_1024", DSV2LITE, 1024), .flags = BENCH | DEVICE | FP8 },
	{ N("fp8_mixtral_rows_1024", 4096, 8, 2, 14336, 0, 1024), .flags = BENCH | DEVICE | FP8 | NORMALIZE },
	{ N("fp8_blocks_dsv2lite_b1", DSV2LITE, 1), .flags = BENCH | DEVICE | FP8 | BLOCKS },
	{ N("fp8_blocks_dsv2lite_rows_1024", DSV2LITE, 1024), .flags = BENCH | DEVICE | FP8 | BLOCKS },
};

/* a share of the device */
static const struct moe_shape with_sms[] = {
	{ N("sms_1", 128, 8, 2, 128, 64, 3), .sms = 1 },
	{ N("sms_24_dsv2lite_like_b8", 256, 64, 6, 128, 192, 8), .sms = 24 },
	{ N("sms_64_in_place_f16", 512, 16, 4, 64, 0, 3), .sms = 64, .flags = IN_PLACE | F16 },
	{ N("sms_24_fp8_blocks", 256, 8, 2, 192, 128, 4), .sms = 24, .flags = FP8 | BLOCKS },
	{ N("sms_24_rows_70", 256, 8, 2, 192, 64, 70), .sms = 24, .flags = NORMALIZE },
	{ N("sms_3_rows_33_fp8", 128, 8, 3, 64, 0, 33), .sms = 3, .flags = FP8 },
	{ N("rows_1100_one_expert", 64, 4, 1, 64, 0, 1100), .flags = LAST },
	{ N("far_experts", 2112, 256, 1, 4160, 0, 2), .flags = LAST | FAR },
};

#define V3		(SIGMOID | BIAS | NORMALIZE)
#define GROUPS(num, per_token)	.groups = num, .groups_per_token = per_token

/* sigmoids, biases and groups */
static const struct moe_shape routed[] = {
	{ N("route_sigmoid", 128, 16, 4, 64, 64, 3), .flags = SIGMOID },
	{ N("route_sigmoid_normalized_f16", 128, 16, 4, 64, 0, 8), .flags = SIGMOID | NORMALIZE | F16,
	  .scaling = 2.5f },
	{ N("route_sigmoid_bias", 64, 16, 3, 64, 0, 4), .flags = SIGMOID | BIAS },
	{ N("route_sigmoid_group", 64, 8, 3, 64, 0, 4), GROUPS(1, 1), .flags = SIGMOID | BIAS },
	{ N("route_v3_like", 192, 64, 8, 64, 64, 4), GROUPS(8, 4), .flags = V3, .scaling = 2.5f },
	{ N("route_v3_like_256_f16", 64, 256, 8, 64, 64, 8), GROUPS(8, 4), .flags = V3 | F16,
	  .scaling = 2.5f },
	{ N("route_v3_1_of_2", 128, 8, 3, 64, 0, 3), GROUPS(2, 1), .flags = V3 | IN_PLACE },
	{ N("route_v3_groups_of_2", 64, 16, 5, 64, 64, 6), GROUPS(8, 3), .flags = SIGMOID | BIAS },
	{ N("route_v3_groups_of_20", 64, 160, 6, 64, 0, 4), GROUPS(8, 3), .flags = V3 | F16 },
	{ N("route_v3_no_bias", 64, 32, 4, 64, 0, 5), GROUPS(4, 2), .flags = SIGMOID | NORMALIZE },
	{ N("route_v3_negative", 64, 32, 6, 64, 0, 5), GROUPS(4, 2), .flags = V3 | NEGATIVE },
	{ N("route_v3_experts_not_asked_for", 128, 16, 2, 64, 0, 3), GROUPS(4, 2), .flags = V3 | NO_EXPERTS },
	{ N("route_v3_equal", 64, 16, 4, 64, 0, 3), GROUPS(4, 2), .flags = V3 | TIES },
	{ N("route_v3_group_ties", 64, 32, 6, 64, 64, 8), GROUPS(8, 3), .flags = V3 | GROUP_TIES },
	{ N("route_v2_like", 128, 40, 6, 64, 64, 3), GROUPS(8, 3), .scaling = 16 },
	{ N("route_v2_like_160_f16", 64, 160, 6, 64, 0, 8), GROUPS(8, 3), .flags = NORMALIZE | F16 },
	{ N("route_v2_1_of_4", 64, 16, 4, 64, 0, 4), GROUPS(4, 1) },
	{ N("route_v2_groups_of_1", 64, 32, 5, 64, 0, 4), GROUPS(32, 7), .flags = NORMALIZE },
	{ N("route_v2_all_groups", 64, 12, 3, 64, 64, 4), GROUPS(3, 3), .flags = F16 },
	{ N("route_v2_group_ties", 64, 16, 3, 64, 0, 8), GROUPS(4, 1), .flags = GROUP_TIES },
	{ N("route_fp8_blocks_v3", 128, 16, 4, 128, 64, 4), GROUPS(4, 2), .flags = V3 | FP8 | BLOCKS },
	{ N("route_fp8_v2_f16", 64, 16, 4, 64, 0, 2), GROUPS(4, 2), .flags = FP8 | F16 },
	{ N("route_rows_9_v3", 64, 32, 4, 64, 64, 9), GROUPS(8, 4), .flags = V3, .scaling = 2.5f },
	{ N("route_rows_40_v3_256_f16", 64, 256, 8, 64, 0, 40), GROUPS(8, 4), .flags = V3 | F16 },
	{ N("route_rows_20_sigmoid", 64, 16, 4, 64, 64, 20), .flags = SIGMOID },
	{ N("route_rows_20_negative", 64, 20, 4, 64, 0, 20), GROUPS(4, 2),
	  .flags = SIGMOID | BIAS | NEGATIVE },
	{ N("route_rows_24_v3_group_ties", 64, 32, 6, 64, 0, 24), GROUPS(8, 3), .flags = V3 | GROUP_TIES },
	{ N("route_rows_33_v2", 64, 160, 6, 64, 0, 33), GROUPS(8, 3), .scaling = 16 },
	{ N("route_rows_24_v2_group_ties_f16", 64, 16, 3, 64, 0, 24), GROUPS(4, 1),
	  .flags = GROUP_TIES | NORMALIZE | F16 },
	{ N("route_rows_33_fp8_blocks_v3", 64, 16, 4, 64, 64, 33), GROUPS(2, 1),
	  .flags = V3 | FP8 | BLOCKS | IN_PLACE },
	{ N("dsv2lite_v3_routing_b1", DSV2LITE, 1), GROUPS(8, 4), .flags = BENCH | DEVICE | V3 },
	{ N("dsv2lite_v3_routing_rows_64", DSV2LITE, 64), GROUPS(8, 4), .flags = BENCH | DEVICE | V3 },
};

#define NUM_SMS		((int)ARRAY_SIZE(with_sms))
#define NUM_ROUTED	((int)ARRAY_SIZE(routed))
#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_GRID	72
#define NUM_GRID_FP8	24

#define FIRST_PAIR	(NUM_NAMED + NUM_GRID + NUM_GRID_FP8 + NUM_SMS + NUM_ROUTED)
#define NUM_PAIRS	24
#define FIRST_ROUTE_PAIR	(FIRST_PAIR + NUM_PAIRS)
#define FIRST_SUM	(FIRST_ROUTE_PAIR + NUM_ROUTE_PAIRS)

/* the last cases */
static const struct moe_shape last[] = {
	{ N("route_sigmoids_tiny", 64, 16, 4, 64, 0, 4), .flags = SIGMOID | NORMALIZE | FAINT },
	{ N("fp8_subnormal", 64, 4, 2, 64, 64, 3), .flags = FP8 | SUBNORMAL },
	{ N("fp8_blocks_subnormal_rows_20_f16", 64, 4, 2, 64, 0, 20),
	  .flags = FP8 | BLOCKS | SUBNORMAL | F16 },
	{ N("route_biases_low", 64, 32, 6, 64, 0, 4), GROUPS(4, 2), .flags = V3 | LOW },
	{ N("route_biases_low_rows_12_f16", 64, 32, 6, 64, 0, 12), GROUPS(4, 2), .flags = V3 | LOW | F16 },
	{ N("terms_opposite", 64, 4, 2, 64, 64, 3), .flags = OPPOSITE | NORMALIZE },
	{ N("terms_opposite_f16", 64, 4, 2, 64, 0, 2), .flags = OPPOSITE | NORMALIZE | F16 },
	{ N("terms_opposite_rows_12", 64, 4, 2, 64, 64, 12), .flags = OPPOSITE | NORMALIZE },
	{ N("terms_opposite_rows_9_f16", 128, 4, 2, 64, 0, 9), .flags = OPPOSITE | NORMALIZE | F16 },
	{ N("terms_opposite_fp8", 64, 4, 2, 64, 64, 2), .flags = OPPOSITE | NORMALIZE | FP8 },
	{ N("terms_opposite_fp8_blocks_rows_10", 64, 4, 2, 64, 64, 10),
	  .flags = OPPOSITE | NORMALIZE | FP8 | BLOCKS },
	{ N("gates_of_minus_24", 64, 4, 2, 64, 64, 2), .flags = OPPOSITE | SHUT | NORMALIZE },
	{ N("gates_of_minus_24_rows_10", 64, 4, 2, 64, 64, 10), .flags = OPPOSITE | SHUT | NORMALIZE },
	{ N("rows_33000_one_expert", 64, 4, 1, 64, 0, 33000), .flags = LAST },
	{ N("rows_9_hidden_8192", 8192, 2, 1, 64, 0, 9), .flags = NORMAL_ALONE },
	{ N("rows_9_wide_16384_f16", 64, 2, 1, 16384, 16384, 9), .flags = NORMAL_ALONE | F16 },
	{ N("rows_9_fp8_blocks_wide_8256", 64, 2, 1, 8256, 8256, 9), .flags = NORMAL_ALONE | FP8 | BLOCKS },
	{ N("rows_9_fp8_256_top_16", 64, 256, 16, 64, 64, 9), .flags = NORMAL_ALONE | FP8 },
	{ N("route_v3_32_groups_of_2", 64, 64, 7, 64, 0, 4), GROUPS(32, 5), .flags = V3 | NORMAL_ALONE },
	{ N("route_rows_9_v3_32_groups_of_4_f16", 64, 128, 7, 64, 0, 9), GROUPS(32, 5),
	  .flags = V3 | NORMAL_ALONE | F16 },
	{ N("route_v3_136_top_11", 64, 136, 11, 64, 0, 5), GROUPS(8, 3), .flags = V3 | NORMAL_ALONE },
	{ N("eps_smallest", 64, 8, 2, 64, 64, 7), .eps = CAIRN_EPS_MIN },
	{ N("eps_smallest_rows_12", 128, 8, 2, 64, 0, 12), .eps = CAIRN_EPS_MIN },
	{ N("no_residual", 128, 8, 2, 64, 64, 3), .flags = NO_RESIDUAL | NORMAL_ALONE },
	{ N("no_residual_in_place_f16", 64, 8, 3, 128, 0, 8),
	  .flags = NO_RESIDUAL | NORMAL_ALONE | IN_PLACE | F16 },
	{ N("no_residual_rows_20", 64, 8, 2, 64, 64, 20), .flags = NO_RESIDUAL | NORMAL_ALONE },
	{ N("no_residual_fp8_blocks", 128, 8, 2, 128, 64, 4),
	  .flags = NO_RESIDUAL | NORMAL_ALONE | FP8 | BLOCKS },
	{ N("no_residual_fp8_rows_12_f16", 64, 8, 2, 64, 64, 12),
	  .flags = NO_RESIDUAL | NORMAL_ALONE | FP8 | F16 },
	{ N("between", 64, 32, 4, 128, 0, 4), .flags = GPT_OSS },
	{ N("between_b8_f16", 192, 32, 4, 64, 0, 8), .flags = GPT_OSS | F16 | IN_PLACE },
	{ N("between_no_residual", 128, 8, 2, 320, 0, 3), .flags = GPT_OSS | NO_RESIDUAL, .scaling = 2.5f },
	{ N("between_rows_20", 64, 32, 4, 192, 0, 20), .flags = GPT_OSS },
	{ N("between_rows_180_f16", 128, 3, 2, 64, 0, 180), .flags = GPT_OSS | F16, .scaling = 0.25f },
	{ N("between_rows_9_no_residual", 320, 8, 3, 128, 0, 9), .flags = GPT_OSS | NO_RESIDUAL | IN_PLACE },
	{ N("between_not_clamped", 128, 8, 2, 128, 0, 4), .flags = PRODUCT_BIAS | NORMAL_ALONE },
	{ N("between_not_clamped_rows_12", 128, 8, 2, 128, 0, 12), .flags = PRODUCT_BIAS | NORMAL_ALONE },
	{ N("between_no_bias", 128, 8, 2, 128, 0, 4), .flags = CLAMPED | NORMAL_ALONE | F16 },
	{ N("between_no_bias_rows_12", 128, 8, 2, 128, 0, 12), .flags = CLAMPED | NORMAL_ALONE },
	{ N("logit_bias", 128, 72, 3, 64, 64, 5), .flags = LOGIT_BIAS | NORMAL_ALONE },
	{ N("logit_bias_v3_fp8", 128, 16, 4, 64, 64, 4), GROUPS(4, 2),
	  .flags = LOGIT_BIAS | V3 | FP8 | NORMAL_ALONE },
	{ N("logit_bias_v3_rows_12", 64, 16, 4, 64, 64, 12), GROUPS(4, 2),
	  .flags = LOGIT_BIAS | V3 | NORMAL_ALONE },
	/* outputs without x show the errors of the experts' sums and of their weights (bias.c) */
	{ N("errors_without_x", 256, 8, 2, 320, 0, 70), .flags = NO_RESIDUAL | NORMAL_ALONE, .roundings = 5 },
	{ N("errors_without_x_v3_f16", 192, 16, 3, 192, 0, 70),
	  .flags = NO_RESIDUAL | NORMAL_ALONE | V3 | F16, .roundings = 5 },
	/* more pairs of a request and an expert than 16 bits count */
	{ N("pairs_past_2e16", 64, 8, 8, 64, 0, 8300), .flags = NORMAL_ALONE },
	{ N("gpt_oss_20b_b1", GPT_OSS_20B, 1), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("gpt_oss_20b_b8", GPT_OSS_20B, 8), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("gpt_oss_20b_rows_64", GPT_OSS_20B, 64), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("gpt_oss_20b_rows_1024", GPT_OSS_20B, 1024), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("w4_mx", 64, 8, 2, 64, 0, 3), W4(MX) },
	{ N("w4_mx_b8_f16", 320, 8, 3, 192, 0, 8), W4(MX), .flags = F16 | IN_PLACE | NORMALIZE },
	{ N("w4_mx_gpt_oss", 192, 32, 4, 128, 0, 4), W4(MX), .flags = GPT_OSS },
	{ N("w4_mx_hidden_2880", 2880, 4, 1, 64, 0, 2), W4(MX), .flags = GPT_OSS | IN_PLACE },
	{ N("w4_int_row_f16", 128, 4, 2, 192, 0, 5), W4(INT_ROW), .flags = F16 | NO_EXPERTS },
	{ N("w4_int_32", 128, 16, 4, 128, 0, 1), W4(INT_32), .flags = NORMALIZE },
	{ N("w4_int_64_v3", 128, 16, 4, 64, 0, 4), GROUPS(4, 2), W4(INT_64), .flags = V3 },
	{ N("w4_int_128", 320, 8, 2, 192, 0, 2), W4(INT_128), .scaling = 2.5f },
	{ N("w4_sms_3", 128, 8, 3, 64, 0, 4), W4(INT_128), .sms = 3, .flags = NO_RESIDUAL | NORMAL_ALONE },
	{ N("w4_mx_rows_9_f16", 64, 4, 2, 128, 0, 9), W4(MX), .flags = F16 | NORMALIZE },
	{ N("w4_mx_rows_70_gpt_oss", 128, 8, 4, 192, 0, 70), W4(MX), .flags = GPT_OSS },
	{ N("w4_int_row_rows_20", 192, 3, 2, 64, 0, 20), W4(INT_ROW), .flags = IN_PLACE },
	{ N("w4_int_32_rows_33_f16", 128, 8, 3, 64, 0, 33), W4(INT_32), .flags = F16 },
	{ N("w4_int_64_rows_65_one_expert", 64, 1, 1, 320, 0, 65), W4(INT_64), .flags = NO_EXPERTS },
	{ N("w4_int_128_rows_36_sms_24", 192, 4, 2, 192, 0, 36), W4(INT_128), .sms = 24 },
	{ N("w4_nv", 64, 8, 2, 64, 0, 3), W4(NV) },
	{ N("w4_nv_b8_f16", 192, 8, 3, 128, 0, 8), W4(NV), .flags = F16 | IN_PLACE | NORMALIZE },
	{ N("w4_nv_gpt_oss", 128, 16, 4, 64, 0, 4), W4(NV), .flags = GPT_OSS | NO_RESIDUAL },
	{ N("w4_nv_rows_20_f16", 64, 6, 2, 192, 0, 20), W4(NV), .flags = F16 },
	{ N("w4_batch_0", 64, 4, 2, 64, 0, 0), W4(MX), .flags = NORMAL_ALONE },
	/* many rows of an expert, in a tile of each width or in two, also with an odd number of 64 columns */
	{ N("w4_mx_rows_100_one_expert_f16", 64, 1, 1, 64, 0, 100), W4(MX), .flags = F16 | NORMAL_ALONE },
	{ N("w4_nv_rows_120_one_expert", 192, 1, 1, 64, 0, 120), W4(NV), .flags = NORMAL_ALONE },
	{ N("w4_int_row_rows_140_one_expert_f16", 64, 1, 1, 64, 0, 140), W4(INT_ROW),
	  .flags = F16 | NORMAL_ALONE },
	{ N("w4_int_32_rows_200_one_expert", 64, 1, 1, 64, 0, 200), W4(INT_32), .flags = NORMAL_ALONE },
	{ N("w4_nv_rows_64_f16", 320, 3, 1, 192, 0, 64), W4(NV), .flags = F16 | IN_PLACE },
	{ N("w4_gpt_oss_20b_b1", GPT_OSS_20B, 1), W4(MX), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("w4_gpt_oss_20b_b8", GPT_OSS_20B, 8), W4(MX), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("w4_gpt_oss_20b_rows_64", GPT_OSS_20B, 64), W4(MX), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("w4_gpt_oss_20b_rows_1024", GPT_OSS_20B, 1024), W4(MX), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("w4_nv_qwen3_30b_b1", QWEN3_30B, 1), W4(NV), .flags = BENCH | DEVICE | NORMALIZE },
	{ N("w4_qwen3_30b_b1", QWEN3_30B, 1), W4(INT_128), .flags = BENCH | DEVICE | NORMALIZE },
	{ N("gpt_oss_20b_rows_256", GPT_OSS_20B, 256), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("w4_gpt_oss_20b_rows_256", GPT_OSS_20B, 256), W4(MX), .flags = BENCH | DEVICE | GPT_OSS },
	{ N("qwen3_30b_rows_1024", QWEN3_30B, 1024), .flags = BENCH | DEVICE | NORMALIZE },
	{ N("w4_qwen3_30b_rows_1024", QWEN3_30B, 1024), W4(INT_128), .flags = BENCH | DEVICE | NORMALIZE },
	{ N("w4_nv_qwen3_30b_rows_1024", QWEN3_30B, 1024), W4(NV), .flags = BENCH | DEVICE | NORMALIZE },
	{ N("w4_qwen3_30b_rows_64", QWEN3_30B, 64), W4(INT_128), .flags = BENCH | DEVICE | NORMALIZE },
};

#define FIRST_LAST	(FIRST_SUM + (int)ARRAY_SIZE(sums))

enum { F_TYPE, F_FP8, F_NORMALIZE, F_SCALING, F_SHARED, F_EXPERTS, F_IN_PLACE, F_NO_EXPERTS, F_BATCH,
       F_HIDDEN, F_INTER, F_EPS, F_SMS, NUM_FACTORS };
static const unsigned pair_fp8[] = { 0, FP8, FP8 | BLOCKS };
static const float pair_scalings[] = { 1, 2.507f, 0.25f }, pair_eps[] = { 1e-6f, 1e-12f, 1 };
static const int pair_experts[][2] = { { 4, 1 }, { 5, 2 }, { 9, 3 }, { 24, 6 } };
static const int pair_batches[] = { 1, 3, 8, 9, 18 }, pair_hidden[] = { 64, 192, 320 };
static const int pair_inter[] = { 64, 192 }, pair_shared[] = { 0, 64, 192 };
static struct cairn_pairs pairs = { .num_factors = NUM_FACTORS,
				    .levels = { 2, 3, 2, 3, 3, 4, 2, 2, 5, 3, 2, 3, 2 } };

static void pair_of(int i, struct moe_shape *s)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*s = (struct moe_shape){
		.pair = 1, .hidden = pair_hidden[level[F_HIDDEN]],
		.experts = pair_experts[level[F_EXPERTS]][0],
		.top = pair_experts[level[F_EXPERTS]][1], .inter = pair_inter[level[F_INTER]],
		.shared = pair_shared[level[F_SHARED]], .batch = pair_batches[level[F_BATCH]],
		.scaling = pair_scalings[level[F_SCALING]], .eps = pair_eps[level[F_EPS]],
		.sms = level[F_SMS] ? 24 : 0,
		.flags = pair_fp8[level[F_FP8]] | (level[F_TYPE] ? F16 : 0) |
			 (level[F_NORMALIZE] ? NORMALIZE : 0) | (level[F_IN_PLACE] ? IN_PLACE : 0) |
			 (level[F_NO_EXPERTS] ? NO_EXPERTS : 0),
	};
}

static void name_pair(char *name, size_t len, const struct moe_shape *s)
{
	snprintf(name, len, "pair_h%d_e%d_top%d_i%d_s%d_b%d_%s%s%s%s%s%s_eps1e%d%s", s->hidden, s->experts,
		 s->top, s->inter, s->shared, s->batch, s->flags & F16 ? "f16" : "bf16",
		 s->flags & BLOCKS ? "_fp8_blocks" : s->flags & FP8 ? "_fp8" : "",
		 s->flags & NORMALIZE ? "_normalized" : "",
		 s->scaling > 1 ? "_scaling25" : s->scaling < 1 ? "_scaling025" : "",
		 s->flags & IN_PLACE ? "_in_place" : "", s->flags & NO_EXPERTS ? "_no_out" : "",
		 (int)lround(-log10((double)s->eps)), s->sms ? "_sms24" : "");
}

#define FIRST_ENDS	(FIRST_LAST + (int)ARRAY_SIZE(last))

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct moe_shape, batch, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct moe_shape, hidden, 64, 2048, 64),
	CAIRN_DRAW_SIZE(struct moe_shape, inter, 64, 1024, 64),
	CAIRN_DRAW_SIZE(struct moe_shape, shared, 0, 512, 64),
	CAIRN_DRAW_SIZE(struct moe_shape, experts, 1, 256, 1),
	CAIRN_DRAW_SIZE(struct moe_shape, top, 1, 16, 1),
	CAIRN_DRAW_ONE_OF(struct moe_shape, groups, 0, 0, 2, 3, 4, 8, 16, 32),
	CAIRN_DRAW_ONE_OF(struct moe_shape, groups_per_token, 1, 2, 3, 4, 7),
	CAIRN_DRAW_ONE_OF(struct moe_shape, scaling, 1, 2.5f, 0.25f),
	CAIRN_DRAW_ONE_OF(struct moe_shape, sms, 0, 0, 0, 1, 24),
	CAIRN_DRAW_ONE_OF(struct moe_shape, eps, 0, 0, 1e-12f, 1),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, 0, FP8, FP8 | BLOCKS),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, 0, SIGMOID, SIGMOID | BIAS, SIGMOID | BIAS | NEGATIVE),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, NORMALIZE),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, 0, IN_PLACE),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, 0, NO_EXPERTS),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, 0, 0, SAME),
	CAIRN_DRAW_ONE_OF(struct moe_shape, flags, 0, 0, NO_RESIDUAL),
};

static int allowed(void *shape, int room)
{
	struct moe_shape *s = shape;
	const int size = s->groups ? s->experts / s->groups : 0;

	if (!s->groups)
		s->groups_per_token = 0;
	if (s->batch <= CAIRN_MOE_FEW && s->batch * s->hidden > 32768)
		return 0;
	return s->top <= s->experts && (!s->groups || (size >= 2 && s->experts % s->groups == 0 &&
		s->groups_per_token <= s->groups && size * s->groups_per_token >= s->top)) &&
	       (int64_t)s->experts * s->hidden * s->inter <= room * 700000 &&
	       (int64_t)s->batch * s->hidden * (3 * (s->inter * s->top + s->shared) + s->experts) <=
	       room * 10000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct moe_shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 2500,
};

void moe_shape_at(int index, struct moe_shape *s)
{
	static const int hidden[] = { 64, 128, 256, 192, 512, 320, 1024 },
			 inter[] = { 64, 128, 192, 320, 64 };
	static const int experts[] = { 8, 2, 64, 16, 3, 128, 60, 5 }, shared[] = { 0, 64, 192 };
	static const int batch[] = { 1, 2, 8, 3, 1, 4, 7, 5, 6 };
	int i = index - NUM_NAMED;

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (index >= FIRST_LAST) {
		*s = last[index - FIRST_LAST];
		return;
	}
	if (index >= FIRST_SUM) {
		*s = sums[index - FIRST_SUM];
		return;
	}
	if (index >= FIRST_ROUTE_PAIR) {
		route_pair_at(index - FIRST_ROUTE_PAIR, s);
		return;
	}
	if (index >= FIRST_PAIR) {
		pair_of(index - FIRST_PAIR, s);
		return;
	}
	if (i >= NUM_GRID + NUM_GRID_FP8) {
		i -= NUM_GRID + NUM_GRID_FP8;
		*s = i < NUM_SMS ? with_sms[i] : routed[i - NUM_SMS];
		return;
	}
	*s = (struct moe_shape){
		.hidden = hidden[i % 7], .experts = experts[(i + i / 8) % 8], .inter = inter[(i + i / 5) % 5],
		.shared = shared[(i + i / 9) % 3], .batch = batch[i % 9],
		.flags = (i / 2 % 2 ? F16 : 0) | (i / 3 % 2 ? NORMALIZE : 0) | (i % 5 == 4 ? IN_PLACE : 0) |
			 (i % 11 == 7 ? NO_EXPERTS : 0),
		.scaling = i % 4 == 3 ? 1.5f : 1,
	};
	if (i >= NUM_GRID)
		s->flags |= FP8 | (i % 2 ? BLOCKS : 0);
	s->top = 1 + (i / 3) % 8;
	s->top = s->top > s->experts ? s->experts : s->top;
}

/* Bytes: a lower bound on the bytes read. The requests' choices are assumed uniform. */
static void describe(int index, struct cairn_case *c)
{
	static const int others[] = { CAIRN_KIND_EXACT, CAIRN_KIND_EXTREME, CAIRN_KIND_POISON };
	double used, weights, per_weight;
	struct moe_shape s;

	moe_shape_at(index, &s);
	if (s.pair > 1)
		name_route_pair(c->name, sizeof(c->name), &s);
	else if (s.pair)
		name_pair(c->name, sizeof(c->name), &s);
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%s%sh%d_e%d_top%d_i%d_s%d_b%d_%s%s%s",
			 s.ends ? "ends_" : "",
			 s.flags & BLOCKS ? "fp8_blocks_" : s.flags & FP8 ? "fp8_" : "", s.hidden, s.experts,
			 s.top, s.inter, s.shared, s.batch, s.flags & F16 ? "f16" : "bf16",
			 s.flags & NORMALIZE ? "_normalized" : "", s.flags & IN_PLACE ? "_in_place" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->roundings = s.roundings;
	c->sparse = c->bench;
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->far = !!(s.flags & FAR);
	if (s.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.flags & (SUMS | OPPOSITE))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	else if (s.pair > 1)
		c->kinds = CAIRN_KIND_BIT(s.kind);
	else if (s.pair)
		c->kinds |= CAIRN_KIND_BIT(others[index % 3]);
	else if (s.flags & (LAST | SUBNORMAL | FAINT | LOW | NORMAL_ALONE))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.flags & (TIES | PAIRS | GROUP_TIES))	/* decided only where sums are exact */
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	else if ((s.flags & (SIGMOID | BIAS)) == SIGMOID)	/* extreme sigmoids are 0 or 1 */
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.name && !c->device_only)
		c->kinds = CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (!c->device_only)
		c->kinds = CAIRN_KIND_BIT(index % 4) | CAIRN_KIND_BIT((index + 1) % 4);
	used = s.experts * (1 - pow(1 - (double)s.top / s.experts, s.batch));
	weights = 3.0 * s.hidden * s.inter * used + 3.0 * s.hidden * s.shared;
	/*
	 * bytes of a weight with its share of the scales: of groups, of rows (of hidden and intermediate
	 * elements), or of blocks
	 */
	per_weight = s.w4 == CAIRN_MOE_W4_MX ? 0.5 + 1.0 / 32 : s.w4 == CAIRN_MOE_W4_NV ? 0.5 + 1.0 / 16 :
		     s.w4 ? 0.5 + 3.0 / 128 :
		     !(s.flags & FP8) ? 2 :
		     s.flags & BLOCKS ? 1 + 4.0 / (CAIRN_FP8_BLOCK * CAIRN_FP8_BLOCK) :
		     1 + 4 * (2.0 / s.hidden + 1.0 / s.inter) / 3;
	c->bytes = per_weight * weights + 2 * ((double)s.experts * s.hidden + s.hidden +
					       2.0 * s.batch * s.hidden);
	c->flops = 2.0 * s.batch * s.hidden * (3.0 * s.inter * s.top + 3.0 * s.shared + s.experts);
}

/* A rejected call reads no array. */
static void scales_at(struct cairn_moe_args *a, const void *p)
{
	a->w_gate_up_scale = a->w_down_scale = a->w_shared_gate_up_scale = a->w_shared_down_scale = p;
}

static void without_shared(struct cairn_moe_args *a)
{
	a->shared_intermediate = 0;
	a->w_shared_gate_up = a->w_shared_down = NULL;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_moe_args *a = args;

	*want = i < 32 || (i > 43 && i < 57) || (i > 64 && i < 88) || i > 94 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->x = NULL; return "x_null";
	case 3: a->norm_weight = NULL; return "norm_weight_null";
	case 4: a->w_router = NULL; return "w_router_null";
	case 5: a->w_gate_up = NULL; return "w_gate_up_null";
	case 6: a->w_down = NULL; return "w_down_null";
	case 7: a->w_shared_gate_up = NULL; return "w_shared_gate_up_null";
	case 8: a->w_shared_down = NULL; return "w_shared_down_null";
	case 9: a->shared_intermediate = 0; return "w_shared_without_a_width";
	case 10: a->out = (char *)a->out + 8; return "out_misaligned";
	case 11: a->x = (const char *)a->x + 2; return "x_misaligned";
	case 12: a->w_router = (const char *)a->w_router + 4; return "w_router_misaligned";
	case 13: a->w_gate_up = (const char *)a->w_gate_up + 8; return "w_gate_up_misaligned";
	case 14: a->w_shared_down = (const char *)a->w_shared_down + 2; return "w_shared_down_misaligned";
	case 15: a->experts = (int32_t *)((char *)a->experts + 2); return "experts_misaligned";
	case 16: a->workspace = (char *)a->workspace + 16; return "workspace_misaligned";
	case 17: a->batch = -1; return "batch_negative";
	case 18: a->hidden = 0; return "hidden_0";
	case 19: a->num_experts = 0; return "num_experts_0";
	case 20: a->experts_per_token = 0; return "experts_per_token_0";
	case 21: a->intermediate = 0; return "intermediate_0";
	case 22: a->shared_intermediate = -64; return "shared_intermediate_negative";
	case 23: a->eps = 0; return "eps_0";
	case 24: a->eps = NAN; return "eps_nan";
	case 25: a->eps = INFINITY; return "eps_inf";
	case 26: a->scaling = 0; return "scaling_0";
	case 27: a->scaling = -1; return "scaling_negative";
	case 28: a->scaling = INFINITY; return "scaling_inf";
	case 29: a->scaling = NAN; return "scaling_nan";
	case 30: a->normalize = 2; return "normalize_2";
	case 31: a->normalize = -1; return "normalize_negative";
	case 32: a->dtype = CAIRN_F32; return "dtype_f32";
	case 33: a->hidden = 96; return "hidden_96";
	case 34: a->hidden = 8256; return "hidden_8256";
	case 35: a->intermediate = 96; return "intermediate_96";
	case 36: a->intermediate = 16448; return "intermediate_16448";
	case 37: a->shared_intermediate = 32; return "shared_intermediate_32";
	case 38: a->shared_intermediate = 16448; return "shared_intermediate_16448";
	case 39: a->num_experts = 257; return "num_experts_257";
	case 40: a->experts_per_token = 3; return "experts_per_token_above_num_experts";
	case 41: a->experts_per_token = 17; a->num_experts = 64; return "experts_per_token_17";
	case 42: a->batch = 65537; return "batch_65537";
	case 43: a->batch = 8; a->hidden = 8192; return "batch_8_hidden_8192";
	case 44: a->fp8w = 2; return "fp8w_2";
	case 45: a->scale_kind = 1; return "scale_kind_without_fp8w";
	case 46: a->fp8w = 1; a->scale_kind = 2; return "scale_kind_2";
	case 47: a->fp8w = 1; return "fp8w_without_scales";
	case 48: a->w_gate_up_scale = a->w_router; return "scale_without_fp8w";
	case 49: a->w_shared_down_scale = a->w_router; return "shared_scale_without_fp8w";
	case 50: a->sms = -1; return "sms_negative";
	case 51: a->score = -1; return "score_negative";
	case 52: a->score = 1; a->route_bias = (const float *)((const char *)a->w_router + 2);
		return "route_bias_misaligned";
	case 53: a->num_groups = -1; return "num_groups_negative";
	case 54: a->groups_per_token = -1; return "groups_per_token_negative";
	case 55: a->num_groups = 4; a->groups_per_token = 1; return "num_groups_above_num_experts";
	case 56: a->num_experts = 8; a->num_groups = 3; a->groups_per_token = 1;
		return "num_groups_no_divisor";
	case 57: a->score = 2; return "score_2";
	case 58: a->route_bias = a->w_router; return "route_bias_with_softmax";
	case 59: a->num_experts = 64; a->num_groups = 64; a->groups_per_token = 1; return "num_groups_64";
	case 60: a->num_groups = 2; return "groups_per_token_0";
	case 61: a->num_groups = 2; a->groups_per_token = 3; return "groups_per_token_above_num_groups";
	case 62: a->groups_per_token = 2; return "groups_per_token_2_without_groups";
	case 63: a->num_experts = 8; a->experts_per_token = 3; a->num_groups = 4; a->groups_per_token = 1;
		return "groups_with_too_few_experts";
	case 64: a->score = 1; a->num_groups = 2; a->groups_per_token = 1; return "sigmoid_groups_of_1";
	case 65: a->norm_weight = (const char *)a->norm_weight + 8; return "norm_weight_misaligned";
	case 66: a->w_down = (const char *)a->w_down + 8; return "w_down_misaligned";
	case 67: a->w_shared_gate_up = (const char *)a->w_shared_gate_up + 8;
		return "w_shared_gate_up_misaligned";
	case 68: a->eps = -1; return "eps_negative";
	case 69: a->fp8w = -1; return "fp8w_negative";
	case 70: a->fp8w = 1; scales_at(a, a->w_router); a->scale_kind = -1; return "scale_kind_negative";
	case 71: a->fp8w = 1; scales_at(a, a->w_router); a->w_shared_down_scale = NULL;
		return "w_shared_down_scale_null";
	case 72: a->fp8w = 1; scales_at(a, (const char *)a->w_router + 2); return "scales_misaligned";
	case 73: a->size = CAIRN_MOE_FIRST_BYTES + sizeof(void *); return "size_within_later_members";
	case 74: a->eps = 1e-39f; return "eps_subnormal";
	case 75: a->no_residual = 2; return "no_residual_2";
	case 76: a->no_residual = -1; return "no_residual_negative";
	case 77: a->size = CAIRN_MOE_SECOND_BYTES + 4; return "size_within_no_residual";
	case 78: a->size = CAIRN_MOE_THIRD_BYTES + sizeof(void *); return "size_within_the_last_members";
	case 79: a->logit_bias = (const float *)((const char *)a->w_router + 2);
		return "logit_bias_misaligned";
	case 80: a->gate_up_bias = (const char *)a->w_router + 8; return "gate_up_bias_misaligned";
	case 81: a->down_bias = (const char *)a->w_router + 2; return "down_bias_misaligned";
	case 82: a->activation = -1; return "activation_negative";
	case 83: a->activation = 1; return "activation_1_without_limit";
	case 84: a->activation = 1; a->alpha = INFINITY; a->limit = 7; return "alpha_inf";
	case 85: a->activation = 1; a->alpha = 1; a->limit = NAN; return "limit_nan";
	case 86: a->limit = 7; return "limit_without_activation_1";
	case 87: a->alpha = -1; return "alpha_without_activation_1";
	case 88: a->activation = 2; return "activation_2";
	case 89: a->activation = 1; a->alpha = a->limit = 1; return "activation_1_with_shared_experts";
	case 90: a->down_bias = a->w_router; return "down_bias_with_shared_experts";
	case 91: a->gate_up_bias = a->w_router; return "gate_up_bias_with_shared_experts";
	case 92: a->w4 = 1; return "w4_with_shared_experts";
	case 93: a->w4 = 1; a->fp8w = 1; return "w4_with_fp8w";
	case 94: a->w4 = 7; return "w4_7";
	case 95: a->w4 = -1; return "w4_negative";
	case 96: without_shared(a); a->w4 = 1; return "w4_without_scales";
	case 97: without_shared(a); a->w4 = 1;
		a->w_gate_up_scale = a->w_down_scale = (const float *)a->w_router + 1;
		return "w4_scales_misaligned";
	case 98: a->gate_up_factor = a->w_router; return "gate_up_factor_without_nv";
	case 99: without_shared(a); a->w4 = CAIRN_MOE_W4_NV;
		a->w_gate_up_scale = a->w_down_scale = a->w_router;
		a->down_factor = (const float *)((const char *)a->w_router + 2);
		return "down_factor_misaligned";
	case 100: a->size = sizeof(*a) - sizeof(void *); return "size_within_the_factors";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	const struct cairn_moe_args *a = args;
	int defined = 0, judged = 0;

	CAIRN_TRY(cairn_moe_exact(a, e));
	for (int b = 0; b < a->batch; b++) {
		defined += cairn_moe_is_judged(a, b) && !isnan(e[0].val[(int64_t)b * a->hidden]);
		judged += isfinite(e[0].bound[(int64_t)b * a->hidden]);
	}
	if (2 * judged < defined)
		return cairn_error(EINVAL,
				   "moe: experts are decided for %d of %d requests: too few to judge",
				   judged, defined);
	return 0;
}

/*
 * A row does not depend on the batch, as long as the batch stays on the same side of CAIRN_MOE_FEW; with
 * 4-bit weights it may.
 */
static int part(void *args, int i)
{
	struct cairn_moe_args *a = args;
	int64_t row = a->hidden * (int64_t)cairn_dtype_bytes(a->dtype);
	int32_t first;

	if (a->w4 || !cairn_part(a->batch, row, a->batch > CAIRN_MOE_FEW ? CAIRN_MOE_FEW + 1 : 1, i, &first,
			&a->batch))
		return 0;
	a->out = (char *)a->out + first * row;
	a->x = (const char *)a->x + first * row;
	if (a->experts)
		a->experts += (int64_t)first * a->experts_per_token;
	return 1;
}

static int form(void *args, int i)
{
	struct cairn_moe_args *a = args;

	a->sms = a->sms ? 0 : 40;
	return i == 0 && a->batch <= CAIRN_MOE_FEW && !a->w4;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static void route_pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &route_pairs, NUM_ROUTE_PAIRS);
}

static const struct cairn_unit units[] = {
	{ "pairs_are_covered", pairs_are_covered }, { "route_pairs_are_covered", route_pairs_are_covered },
};

/* Calls with more rows, and with 4-bit weights, must accept a workspace of undefined contents. */
static int is_few(const void *args)
{
	const struct cairn_moe_args *a = args;

	return a->batch <= CAIRN_MOE_FEW && !cairn_moe_w4_of(a);
}

const struct cairn_family cairn_moe_family = {
	.stage = "fused", .name = "moe",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, moe),
	.workspace_op = offsetof(struct cairn_impl, moe_workspace),
	.args_size = sizeof(struct cairn_moe_args),
	.sms_field = offsetof(struct cairn_moe_args, sms),
	.workspace_field = MOE_FIELD(workspace),
	.zeroed_workspace = 1, .zeroed_if = is_few, .refuses_small_workspace = 1,
	.first_bytes = CAIRN_MOE_FIRST_BYTES,
	.num_cases = NUM_CASES, .draw = &draws,
	.may_alias = { { MOE_FIELD(out), MOE_FIELD(x) } },
	.company = { .rows = MOE_FIELD(batch), .in = { MOE_FIELD(x) },
		     .out = { MOE_FIELD(out), MOE_FIELD(experts) } },
	.part = part, .form = form,
	.describe = describe, .setup = moe_setup, .exact = exact, .reject = reject,
	.cost_s = 45,
};
