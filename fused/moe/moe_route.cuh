/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_route - selects the experts of each request from its logits; four warps of each CTA do it, with the
 * same result in all CTAs
 */
#ifndef CAIRN_MOE_ROUTE_CUH
#define CAIRN_MOE_ROUTE_CUH

#include "fused/moe/moe.cuh"

/* Maps floats to integers with the same order, none of them 0. */
MOE uint32_t order_of(float v)
{
	uint32_t bits = __float_as_uint(v + 0.0f);	/* turns -0 into +0, so that zeros compare equal */

	return max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u);
}

MOE float float_of(uint32_t order)
{
	return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

/*
 * Selects one request's experts and their weights, by one warp. most: logits of a lane; missing ones are
 * skipped.
 */
template <int most>
MOE void route_request(const struct moe_args &g, int request, uint32_t number)
{
	struct moe_small *s = moe_small();
	const int lane = threadIdx.x % 32;
	const uint64_t *ll = g.logits + (int64_t)request * g.a.num_experts;
	uint32_t order[most], missing, first = 0, expert = 0;
	float logit[most], sum = 0, top, mine = 0, chosen;
	int64_t start = moe_clock();

	do {
		missing = 0;
#pragma unroll
		for (int i = 0; i < most; i++) {
			uint64_t w = (uint64_t)number << 32;

			if (lane + 32 * i < g.a.num_experts)
				w = ptx_ld_relaxed_gpu_u64(ll + lane + 32 * i);
			missing |= (uint32_t)(w >> 32) ^ number;
			logit[i] = __uint_as_float((uint32_t)w);
		}
		ptx_spin_check(start, "logits (request, number)", request, number);
	} while (__any_sync(~0u, missing != 0));
#pragma unroll
	for (int i = 0; i < most; i++) {
		order[i] = lane + 32 * i < g.a.num_experts ? order_of(logit[i]) : 0;
		first = max(first, order[i]);
	}
	first = __reduce_max_sync(~0u, first);
	top = float_of(first);
#pragma unroll
	for (int i = 0; i < most; i++)
		if (lane + 32 * i < g.a.num_experts)
			sum += expf(logit[i] - top);
	sum = row_warp_sum(sum);
#pragma unroll 1
	for (int k = 0; k < g.a.experts_per_token; k++) {
		uint32_t best = 0, at = ~0u;

#pragma unroll
		for (int i = 0; i < most; i++)
			best = max(best, order[i]);
		best = __reduce_max_sync(~0u, best);
#pragma unroll
		for (int i = most - 1; i >= 0; i--)
			if (order[i] == best)
				at = lane + 32 * i;
		at = __reduce_min_sync(~0u, at);
#pragma unroll
		for (int i = 0; i < most; i++)
			if (lane + 32 * i == (int)at)
				order[i] = 0;
		if (lane == k) {
			mine = float_of(best);
			expert = at;
		}
	}
	mine = lane < g.a.experts_per_token ? expf(mine - top) / sum : 0;
	chosen = row_warp_sum(mine);
	if (lane >= g.a.experts_per_token)
		return;
	s->weight[request][lane] = (g.a.normalize ? mine / chosen : mine) * g.a.scaling;
	atomicOr(&s->mask[expert], 1u << request);
	atomicOr(&s->slots[expert], (uint32_t)lane << 4 * request);
	if (g.a.experts && blockIdx.x == 0)
		g.a.experts[request * g.a.experts_per_token + lane] = (int)expert;
}

/*
 * Lists the distinct experts; the first route warp does it. teams: teams of a CTA that share its gates and
 * ups.
 */
template <int teams>
MOE void list_picks(const struct moe_args &g)
{
	const int lane = threadIdx.x % 32;
	struct moe_small *s = moe_small();
	int n = 0;

#pragma unroll 1
	for (int first = 0; first < g.a.num_experts; first += 32) {
		uint32_t mask = first + lane < g.a.num_experts ? s->mask[first + lane] : 0;
		uint32_t chosen = __ballot_sync(~0u, mask != 0);

		if (mask) {
			struct moe_pick *p = &s->pick[n + __popc(chosen & ((1u << lane) - 1))];

			p->expert = first + lane;
			p->mask = mask;
			p->slots = s->slots[first + lane];
		}
		n += __popc(chosen);
	}
	if (lane == 0) {
		s->num_picks = n;
		s->units = units_of(n * g.a.intermediate, teams * gridDim.x, teams * MOE_STAGE_ROWS / 2);
	}
	ptx_mbarrier_arrive(ptx_smem(&s->routed));	/* each lane releases what it wrote */
}

/* The body of the route warps. A thread that has waited for `routed` may read the picks. */
template <int linked, int teams = 1>
MOE void moe_routing(const struct moe_args &g, const struct body_link &link)
{
	const int warp = ((int)threadIdx.x - 2 * MOE_WORKERS) / 32;
	struct moe_small *s = moe_small();
	uint32_t number = 0;

	for (int i = (int)threadIdx.x - 2 * MOE_WORKERS; i < MOE_MAX_EXPERTS; i += MOE_ROUTERS)
		s->mask[i] = s->slots[i] = 0;
	ptx_bar_sync(MOE_ROUTE_BAR, MOE_ROUTERS);
	if (!linked) {
		ptx_griddepcontrol_wait();
		number = __ldcg(g.calls + blockIdx.x) + 1;
	}
#pragma unroll 1
	for (int b = warp; b < g.a.batch && g.a.num_experts; b += MOE_ROUTERS / 32)
		if (g.a.num_experts <= 64)
			route_request<2>(g, b, body_number<linked>(link, number));
		else
			route_request<MOE_MAX_EXPERTS / 32>(g, b, body_number<linked>(link, number));
	ptx_bar_sync(MOE_ROUTE_BAR, MOE_ROUTERS);
	if (warp == 0)
		list_picks<teams>(g);
}

#endif
