/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_choose - selects a row's experts from its logits, for both kernels that route: by a plain softmax
 * (choose_softmax), or by sigmoids, with a bias, or within groups (choose_experts)
 *
 * One warp takes one row; a lane's element i is expert lane + 32 i. Experts are compared by keys, integers in
 * the order of c (moe.h); key 0 marks an expert that is already taken or does not exist.
 */
#ifndef CAIRN_MOE_CHOOSE_CUH
#define CAIRN_MOE_CHOOSE_CUH

#include <math_constants.h>

#include "fused/attention/base/attn_tile.cuh"
#include "primitives/rows/row.cuh"
#include "fused/moe/moe.h"

/* plain: a softmax without groups, which has no route_bias */
struct moe_choose {
	const float *bias, *logit_bias;
	int32_t plain, sigmoids, groups, groups_per_token;
};

static inline struct moe_choose moe_choose_of(const struct cairn_moe_args *a)
{
	const struct cairn_moe_choice c = cairn_moe_choice_of(a);

	return { c.bias, c.logit_bias, c.score == CAIRN_MOE_SOFTMAX && c.groups == 1,
		 c.score == CAIRN_MOE_SIGMOID, c.groups, c.groups_per_token };
}

/* Adds logit_bias to the logits that a lane has of a row. */
template <int most>
ATTN_DEV void choose_add_bias(float (&logit)[most], const struct moe_choose &c, int num)
{
	const int lane = threadIdx.x % 32;

	if (!c.logit_bias)
		return;
#pragma unroll
	for (int i = 0; i < most; i++)
		if (lane + 32 * i < num)
			logit[i] += __ldg(c.logit_bias + lane + 32 * i);
}

/* Maps floats to integers with the same order, none of them 0. */
ATTN_DEV uint32_t choose_key(float v)
{
	uint32_t bits = __float_as_uint(v + 0.0f);	/* turns -0 into +0, so that zeros compare equal */

	return max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u);
}

ATTN_DEV float choose_value(uint32_t key)
{
	return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

ATTN_DEV float choose_sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

/* Takes the expert with the largest key (among equals, the first) and returns that key in all lanes. */
template <int most>
ATTN_DEV uint32_t choose_next(uint32_t (&key)[most], uint32_t *expert)
{
	const int lane = threadIdx.x % 32;
	uint32_t best = 0, at = ~0u;

#pragma unroll
	for (int i = 0; i < most; i++)
		best = max(best, key[i]);
	best = __reduce_max_sync(~0u, best);
#pragma unroll
	for (int i = most - 1; i >= 0; i--)
		if (key[i] == best)
			at = lane + 32 * i;
	*expert = at = __reduce_min_sync(~0u, at);
#pragma unroll
	for (int i = 0; i < most; i++)
		if (lane + 32 * i == (int)at)
			key[i] = 0;
	return best;
}

/* Returns the sum of a row's exp(logit - top). */
template <int most>
ATTN_DEV float choose_sum(const float (&logit)[most], float top, int num)
{
	const int lane = threadIdx.x % 32;
	float sum = 0;

#pragma unroll
	for (int i = 0; i < most; i++)
		if (lane + 32 * i < num)
			sum += expf(logit[i] - top);
	return row_warp_sum(sum);
}

/* Selects a row's k experts from its num logits: lane n < k gets the n-th one and its weight. */
template <int most>
ATTN_DEV void choose_softmax(const float (&logit)[most], int num, int k, int normalize, float scaling,
			     uint32_t *expert, float *weight)
{
	const int lane = threadIdx.x % 32;
	uint32_t key[most], first = 0;
	float top, sum, mine = 0, chosen;

#pragma unroll
	for (int i = 0; i < most; i++) {
		key[i] = lane + 32 * i < num ? choose_key(logit[i]) : 0;
		first = max(first, key[i]);
	}
	top = choose_value(__reduce_max_sync(~0u, first));
	sum = choose_sum<most>(logit, top, num);
#pragma unroll 1
	for (int n = 0; n < k; n++) {
		uint32_t at, best = choose_next<most>(key, &at);

		if (lane == n) {
			mine = choose_value(best);
			*expert = at;
		}
	}
	mine = lane < k ? expf(mine - top) / sum : 0;
	chosen = row_warp_sum(mine);
	*weight = (normalize ? mine / chosen : mine) * scaling;
}

/* Sets the keys of all experts outside the groups with the largest scores to 0. */
template <int most>
ATTN_DEV void choose_groups(uint32_t (&key)[most], const struct moe_choose &c, int size)
{
	const int lane = threadIdx.x % 32;
	uint32_t mine = 0, chosen = 0;		/* key of group `lane`; bit g: group g is chosen */

#pragma unroll 1
	for (int g = 0; g < c.groups; g++) {
		uint32_t first = 0, second = 0;	/* the two largest keys of a lane, then of the group */
		float score;

#pragma unroll
		for (int i = 0; i < most; i++) {
			int at = lane + 32 * i - g * size;
			uint32_t now = at >= 0 && at < size ? key[i] : 0;

			second = max(second, min(first, now));
			first = max(first, now);
		}
		uint32_t top = __reduce_max_sync(~0u, first);
		uint32_t owner = __reduce_min_sync(~0u, first == top ? lane : 32);

		score = choose_value(top);
		if (c.sigmoids)		/* two experts with equal keys both count */
			score += choose_value(__reduce_max_sync(~0u, lane == (int)owner ? second : first));
		mine = lane == g ? choose_key(score) : mine;
	}
#pragma unroll 1
	for (int k = 0; k < c.groups_per_token; k++) {
		uint32_t best = __reduce_max_sync(~0u, mine);
		uint32_t g = __reduce_min_sync(~0u, mine == best ? lane : 32);

		chosen |= 1u << g;
		mine = lane == (int)g ? 0 : mine;
	}
#pragma unroll
	for (int i = 0; i < most; i++)
		key[i] = chosen >> min((lane + 32 * i) / size, 31) & 1 ? key[i] : 0;
}

/* As choose_softmax(), with sigmoids or groups. */
template <int most>
ATTN_DEV void choose_experts(const float (&logit)[most], const struct moe_choose &c, int num, int k,
			     int normalize, float scaling, uint32_t *expert, float *weight)
{
	const int lane = threadIdx.x % 32;
	float top = -CUDART_INF_F, sum = 1, mine = 0, p = 0, chosen;
	uint32_t key[most];

#pragma unroll
	for (int i = 0; i < most; i++) {
		const int e = lane + 32 * i;
		float score = logit[i];

		if (c.sigmoids)
			score = choose_sigmoid(score) + (c.bias && e < num ? __ldg(c.bias + e) : 0);
		key[i] = e < num ? choose_key(score) : 0;
		top = e < num ? fmaxf(top, logit[i]) : top;
	}
	if (!c.sigmoids) {
#pragma unroll
		for (int s = 16; s; s /= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
		sum = choose_sum<most>(logit, top, num);
	}
	if (c.groups > 1)
		choose_groups<most>(key, c, num / c.groups);
#pragma unroll 1
	for (int n = 0; n < k; n++) {
		float from = 0;
		uint32_t at;

		choose_next<most>(key, &at);
#pragma unroll
		for (int i = 0; i < most; i++)
			if (lane + 32 * i == (int)at)
				from = logit[i];
		from = __shfl_sync(~0u, from, at % 32);
		if (lane == n) {
			mine = from;
			*expert = at;
		}
	}
	if (lane < k)
		p = c.sigmoids ? choose_sigmoid(mine) : expf(mine - top) / sum;
	chosen = row_warp_sum(p) + (c.sigmoids ? 1e-20f : 0);
	*weight = (normalize ? p / chosen : p) * scaling;
}

#endif
