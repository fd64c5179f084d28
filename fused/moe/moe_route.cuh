/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_route - selects the experts of each request from its logits, by four warps of each CTA, with the same
 * result in all CTAs
 */
#ifndef CAIRN_MOE_ROUTE_CUH
#define CAIRN_MOE_ROUTE_CUH

#include "fused/moe/moe.cuh"
#include "fused/moe/moe_choose.cuh"

/*
 * Loads one request's logits (a lane has those of experts lane, lane + 32, ...) and waits until all have
 * arrived.
 */
template <int most>
MOE void load_logits(const struct moe_args &g, int request, uint32_t number, float (&logit)[most])
{
	const int lane = threadIdx.x % 32;
	const uint64_t *ll = g.logits + (int64_t)request * g.a.num_experts;
	int64_t start = moe_clock();
	uint32_t missing;

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
}

/* Records that the request has chosen this lane's expert, and the expert's weight. */
MOE void note_expert(const struct moe_args &g, int request, uint32_t expert, float weight)
{
	struct moe_small *s = moe_small();
	const int lane = threadIdx.x % 32;

	s->weight[request][lane] = weight;
	atomicOr(&s->mask[expert], 1u << request);
	atomicOr(&s->slots[expert], (uint32_t)lane << 4 * request);
	if (g.a.experts && blockIdx.x == 0)
		g.a.experts[request * g.a.experts_per_token + lane] = (int)expert;
}

/* One warp selects a request's experts and their weights. most: logits per lane, including missing ones */
template <int most>
MOE void route_request(const struct moe_args &g, const struct moe_choose &c, int request, uint32_t number)
{
	const auto &a = g.a;
	const int k = a.experts_per_token;
	uint32_t expert = 0;
	float logit[most], weight;

	load_logits<most>(g, request, number, logit);
	choose_add_bias<most>(logit, c, a.num_experts);
	if (c.plain)
		choose_softmax<most>(logit, a.num_experts, k, a.normalize, a.scaling, &expert, &weight);
	else
		choose_experts<most>(logit, c, a.num_experts, k, a.normalize, a.scaling, &expert, &weight);
	if ((int)threadIdx.x % 32 < k)
		note_expert(g, request, expert, weight);
}

/*
 * Lists the distinct experts. Only the first route warp calls this. teams: number of teams that share a CTA's
 * gates and ups.
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
	ptx_mbarrier_arrive(ptx_smem(&s->routed));	/* each lane releases its writes */
}

/*
 * The body of the route warps. A thread that has waited for `routed` may read the picks. By default c is
 * plain, so that no code for the other ways to choose is compiled.
 */
template <int linked, int teams = 1>
MOE void moe_routing(const struct moe_args &g, const struct body_link &link,
		     const struct moe_choose &c = { NULL, NULL, 1, 0, 1, 1 })
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
			route_request<2>(g, c, b, body_number<linked>(link, number));
		else
			route_request<MOE_MAX_EXPERTS / 32>(g, c, b, body_number<linked>(link, number));
	ptx_bar_sync(MOE_ROUTE_BAR, MOE_ROUTERS);
	if (warp == 0)
		list_picks<teams>(g);
}

#endif
