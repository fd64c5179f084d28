/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_call - struct cairn_moe_args as far as weights of 16 bits need it: what else it comes to have is no
 * argument of these kernels
 */
#ifndef CAIRN_MOE_CALL_CUH
#define CAIRN_MOE_CALL_CUH

#include "moe.h"

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

#endif
