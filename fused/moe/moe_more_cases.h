/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_more_cases - two series at the end of the cases: pair cases (pairs.h) that also combine the features of
 * routing, and sums that need more than the 11 bits of TF32
 *
 * Include pairs.h and moe_test.h first. The pair cases of moe_test.c are older and have no routing features.
 */
#ifndef CAIRN_MOE_MORE_CASES_H
#define CAIRN_MOE_MORE_CASES_H

#include <math.h>
#include <stdio.h>

#define NUM_ROUTE_PAIRS	32

enum {
	R_GROUPS, R_BATCH, R_CHOICE, R_EXPERTS, R_KIND, R_FP8, R_SCALING, R_EPS, R_TYPE, R_NORMALIZE,
	R_SHARED, R_IN_PLACE, R_NO_EXPERTS, R_HIDDEN, R_INTER, R_SMS, NUM_ROUTE_FACTORS
};

static const unsigned route_choices[] = { SIGMOID | BIAS, 0, SIGMOID, SIGMOID | BIAS | NEGATIVE };
static const int route_groups[][2] = { { 4, 2 }, { 0, 0 }, { 2, 1 }, { 8, 3 }, { 4, 4 } };
static const int route_experts[][2] = { { 16, 3 }, { 8, 2 }, { 40, 5 }, { 72, 6 } };

/*
 * Excludes sigmoids with fewer than two experts in a group, equal groups where there are no groups, choices
 * of eps for kinds that have their own eps, and many wide experts, which would only cost time.
 */
static int route_forbidden(const int8_t *level)
{
	int groups = level[R_GROUPS] < 0 ? 1 : route_groups[level[R_GROUPS]][0];
	int experts = level[R_EXPERTS] < 0 ? 40 : route_experts[level[R_EXPERTS]][0];

	if (level[R_CHOICE] >= 0 && route_choices[level[R_CHOICE]] & SIGMOID && groups > 1 &&
	    experts / groups < 2)
		return 1;
	if (level[R_KIND] == 1 && groups == 0)
		return 1;
	if (level[R_KIND] >= 0 && level[R_KIND] < 2 && level[R_EPS] > 0)
		return 1;
	return level[R_EXPERTS] == 3 && (level[R_HIDDEN] == 1 || level[R_INTER] == 1);
}

static struct cairn_pairs route_pairs = {
	.num_factors = NUM_ROUTE_FACTORS, .levels = { 5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2 },
	.forbidden = route_forbidden,
};

static void route_pair_at(int i, struct moe_shape *s)
{
	static const unsigned fp8[] = { 0, FP8, FP8 | BLOCKS };
	static const float scalings[] = { 1, 2.5f, 0.25f }, eps[] = { 1e-6f, 1e-12f, 1 };
	static const int batches[] = { 3, 1, 8, 9, 18 };
	const int8_t *level = cairn_pairs_row(&route_pairs, i);

	*s = (struct moe_shape){
		.pair = 2 + i, .hidden = level[R_HIDDEN] ? 192 : 64,
		.experts = route_experts[level[R_EXPERTS]][0], .top = route_experts[level[R_EXPERTS]][1],
		.inter = level[R_INTER] ? 128 : 64, .shared = level[R_SHARED] ? 64 : 0,
		.batch = batches[level[R_BATCH]], .scaling = scalings[level[R_SCALING]],
		.sms = level[R_SMS] ? 24 : 0, .groups = route_groups[level[R_GROUPS]][0],
		.groups_per_token = route_groups[level[R_GROUPS]][1], .eps = eps[level[R_EPS]],
		.kind = level[R_KIND] == 2 ? CAIRN_KIND_POISON : CAIRN_KIND_EXACT,
	};
	s->flags = route_choices[level[R_CHOICE]] | fp8[level[R_FP8]] | (level[R_TYPE] ? F16 : 0) |
		   (level[R_NORMALIZE] ? NORMALIZE : 0) | (level[R_IN_PLACE] ? IN_PLACE : 0) |
		   (level[R_NO_EXPERTS] ? NO_EXPERTS : 0) | (level[R_KIND] == 1 ? GROUP_TIES : 0);
}

static void name_route_pair(char *name, size_t len, const struct moe_shape *s)
{
	snprintf(name, len, "route_pair_%d_h%d_e%d_top%d_g%d_%d_b%d_%s%s%s%s", s->pair - 1, s->hidden,
		 s->experts, s->top, s->groups, s->groups_per_token, s->batch,
		 s->flags & F16 ? "f16" : "bf16",
		 s->flags & BLOCKS ? "_fp8_blocks" : s->flags & FP8 ? "_fp8" : "",
		 s->flags & SIGMOID ? "_sigmoid" : "", s->flags & BIAS ? "_bias" : "");
}

#define SUMS_OF(case_name, hidden_dim, num_experts, expert_dim, shared_dim, rows, more) \
	{ .name = case_name, .hidden = hidden_dim, .experts = num_experts, .top = 1, .inter = expert_dim, \
	  .shared = shared_dim, .batch = rows, .flags = SUMS | NORMALIZE | (more) }

/* Each request has one expert of weight 1, and its h are integers. */
static const struct moe_shape sums[] = {
	SUMS_OF("sums_of_22_bits", 128, 4, 64, 64, 3, 0),
	SUMS_OF("sums_of_21_bits_f16", 64, 4, 128, 0, 8, F16),
	SUMS_OF("sums_of_22_bits_rows_20", 64, 4, 64, 64, 20, 0),
	SUMS_OF("sums_of_21_bits_rows_9_f16", 128, 8, 64, 0, 9, F16),
	SUMS_OF("sums_of_13_bits_fp8", 64, 4, 64, 64, 2, FP8),
	SUMS_OF("sums_of_13_bits_fp8_blocks_rows_20_f16", 64, 4, 64, 64, 20, FP8 | BLOCKS | F16),
};

#endif
