/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_call - the leading members of struct cairn_moe_args. Kernels for 16-bit weights take only these; those
 * for 8-bit weights also take struct moe_scales
 */
#ifndef CAIRN_MOE_CALL_CUH
#define CAIRN_MOE_CALL_CUH

#include "fused/moe/moe.h"

struct moe_call {
	size_t size;
	void *out;
	int32_t *experts;
	const void *x, *norm_weight, *w_router, *w_gate_up, *w_down, *w_shared_gate_up, *w_shared_down;
	void *workspace;
	size_t workspace_bytes;
	int32_t batch, hidden, num_experts, experts_per_token, intermediate, shared_intermediate;
	int32_t dtype, normalize;
	float eps, scaling;
};
static_assert(sizeof(struct moe_call) == offsetof(struct cairn_moe_args, w_gate_up_scale) &&
	      offsetof(struct moe_call, scaling) == offsetof(struct cairn_moe_args, scaling), "its front");

/* Returns silu(gate) * up, or what activation 1 computes from them. */
static __device__ __forceinline__ float moe_activated(const struct cairn_moe_between &b, float gate, float up)
{
	float slope = 1;

	if (b.activation == CAIRN_MOE_CLAMPED) {
		gate = fminf(gate, b.limit);
		up = fmaxf(fminf(up, b.limit), -b.limit) + 1;
		slope = b.alpha;
	}
	return gate / (1 + expf(-slope * gate)) * up;
}

/* Scales of 8-bit weights: one for each row or each block, expert after expert */
struct moe_scales {
	const float *gate_up, *down, *shared_gate_up, *shared_down;
	int64_t expert_gate_up, expert_down;	/* number of scales of one expert */
	int32_t blocks;
};

static inline struct moe_scales moe_scales_of(const struct cairn_moe_args *a)
{
	const int64_t pairs = a->intermediate, hidden = a->hidden;

	return { a->w_gate_up_scale, a->w_down_scale, a->w_shared_gate_up_scale, a->w_shared_down_scale,
		 cairn_moe_scales(a->scale_kind, 2 * pairs, hidden),
		 cairn_moe_scales(a->scale_kind, hidden, pairs), a->scale_kind == CAIRN_FP8_SCALE_BLOCKS };
}

/* Returns the number of scales from one row (or row of blocks) of a matrix of k columns to the next. */
static __host__ __device__ __forceinline__ int moe_row_scales(const struct moe_scales &s, int k)
{
	return s.blocks ? (k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK : 1;
}

/* Returns the index of the first scale of `row`. With blocks, add c / 128 for the scale of column c. */
static __host__ __device__ __forceinline__ int moe_scale_at(const struct moe_scales &s, int row, int k)
{
	return (s.blocks ? row / CAIRN_FP8_BLOCK : row) * moe_row_scales(s, k);
}

#endif
