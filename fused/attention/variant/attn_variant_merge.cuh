/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_merge - merges the states of the slices of row tiles into out and lse; a warp merges one row
 *
 * The state of a row is O, not divided, and its maximum and sum as attn_softmax.cuh keeps them; with
 * weight() it is O alone. The states are added in the order of their keys. The lanes read the maxima of up to
 * 32 states at once; they do not read O of states without weight. The sink and output() come last.
 */
#ifndef CAIRN_ATTN_VARIANT_MERGE_CUH
#define CAIRN_ATTN_VARIANT_MERGE_CUH

#include "fused/attention/variant/attn_variant_view.cuh"

/* The front that describes whole row tiles. */
template <class H> struct attn_variant_whole : attn_variant_view<H, VARIANT_WHOLE> {
	template <class F>
	ATTN_METHOD void keys_of(const struct attn_variant_call &a, struct attn_row_tile *t, int *end)
	{
		attn_variant_tile_keys<F, H>(a, t, end);
	}
};

/* The states of a row that have been added so far; O and the sum are relative to the maximum. */
template <int vec> struct attn_added {
	float m, l, o[vec];
};

/*
 * Takes up the sums of up to 32 states, of which each lane has one, (-infinity, 0) if there are fewer.
 * Returns the factor of this lane's O.
 */
template <int vec> ATTN_DEV float attn_add_sums(struct attn_added<vec> *r, float2 sums, float scale_log2)
{
	const float top = fmaxf(r->m, attn_warp_max(sums.x)), base = top == -CUDART_INF_F ? 0 : top;
	const float keep = ptx_ex2_approx_ftz((r->m - base) * scale_log2);
	const float weight = ptx_ex2_approx_ftz((sums.x - base) * scale_log2);

	r->m = top;
	r->l = fmaf(r->l, keep, attn_warp_sum(sums.y * weight));
#pragma unroll
	for (int i = 0; i < vec; i++)
		r->o[i] *= keep;
	return weight;
}

/* Adds a lane's elements of O of n states, `step` rows apart; lane k has the factor of state k. */
template <int vec>
ATTN_DEV void attn_add_outputs(struct attn_added<vec> *r, const float *o, int64_t step, int n, float weight)
{
#pragma unroll 8
	for (int k = 0; k < n; k++) {
		const float w = __shfl_sync(~0u, weight, k);
		const float2 *from = (const float2 *)(o + k * step * 32 * vec) + threadIdx.x % 32 * (vec / 2);

#pragma unroll
		for (int i = 0; i < vec / 2; i++) {
			const float2 two = w > 0 ? from[i] : make_float2(0, 0);

			r->o[2 * i] = fmaf(w, two.x, r->o[2 * i]);
			r->o[2 * i + 1] = fmaf(w, two.y, r->o[2 * i + 1]);
		}
	}
}

/* Merges the states of a packed row, one for each of its slices. */
template <int dtype, int dim, class H>
ATTN_DEV void attn_merge_row(const struct attn_variant_call &a, const struct attn_row_tile &t, int row,
			     int slices)
{
	typedef struct attn_variant_view<H, VARIANT_WHOLE> V;
	constexpr int vec = dim / 32;
	const int lane = threadIdx.x % 32;
	const float scale_log2 = V::scale(a, t).log2, scale = V::bends ? 1 : a.sm_scale;
	const struct attn_x x = attn_variant_x(a, t, row);
	const int64_t at = attn_row_at(a, t, row);
	uint32_t *out = (uint32_t *)a.out + (at * dim + lane * vec) / 2;
	struct attn_added<vec> r = { -CUDART_INF_F };
	float lse = 0, factor;

	for (int first = 0; first < slices; first += 32) {
		const int64_t state = first * a.state_rows + at;
		const int n = min(32, slices - first);
		float2 sums = make_float2(-CUDART_INF_F, 0);
		float weight = 1;

		if (!H::has_weight) {
			if (lane < n)
				sums = a.state_sums[state + lane * a.state_rows];
			weight = attn_add_sums<vec>(&r, sums, scale_log2);
		}
		attn_add_outputs<vec>(&r, a.state_o + state * dim, a.state_rows, n, weight);
	}
	factor = V::close(x, r.m, r.l, scale, &lse);
#pragma unroll
	for (int i = 0; i < vec / 2; i++) {
		const int c = lane * vec + 2 * i;

		out[i] = attn_pack<dtype>(H::output(x, r.o[2 * i] * factor, c),
					  H::output(x, r.o[2 * i + 1] * factor, c + 1));
	}
	if (a.lse && lane == 0)
		a.lse[at] = lse;
}

/*
 * The program of the kernel that follows attn_variant_run() if there are slices. Each warp has a description
 * in `tiles`. The rows of a row tile go to CTAs that are far apart, because many tiles have few rows.
 */
template <int dtype, int head_dim, class H>
ATTN_DEV void attn_variant_merge(const struct attn_variant_call &a, const struct attn_dense_plan &plan,
				 struct attn_row_tile *tiles)
{
	constexpr bool rotates = H::has_query || H::has_key;
	typedef struct attn_variant_form<head_dim, rotates> F;
	constexpr int warps = ATTN_MERGERS / 32;
	const int items = plan.batch * plan.units * plan.row_tiles, warp = threadIdx.x / 32;
	struct attn_row_tile *t = tiles + warp;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	for (int i = blockIdx.x; i < items * attn_div_up(a.tile_rows, warps); i += gridDim.x) {
		const struct attn_dense_walk w =
			attn_dense_find<F, struct attn_variant_whole<H>>(plan, a, i % items, t);
		const int in_tile = i / items * warps + warp, all = w.num_tiles;

		/* as attn_variant_cut() */
		if (all > 0 && in_tile < min(F::rows, (t->qo_len << a.shift) - t->row0))
			attn_merge_row<dtype, head_dim, H>(a, *t, t->row0 + in_tile,
							   attn_div_up(all, attn_div_up(all, a.slices)));
		__syncwarp();
	}
}

#endif
