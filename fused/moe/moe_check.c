// SPDX-License-Identifier: Apache-2.0
/*
 * moe - argument checks shared by all of our tables
 */
#include "fused/moe/moe.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rmsnorm.h"

/* Checks the later members, of which a caller has all or none. */
static int check_choice(const struct cairn_moe_args *a)
{
	const struct cairn_moe_choice c = cairn_moe_choice_of(a);

	if (a->size < CAIRN_MOE_SECOND_BYTES)
		return 0;
	if (a->score < 0 || a->num_groups < 0 || a->groups_per_token < 0)
		return cairn_error(EINVAL, "moe: score, num_groups, groups_per_token: must be >= 0");
	if (a->num_groups > 0 && a->num_experts % a->num_groups)
		return cairn_error(EINVAL, "moe: num_groups: %d does not divide num_experts %d",
				   a->num_groups, a->num_experts);
	if (c.score > CAIRN_MOE_SIGMOID)
		return cairn_error(EOPNOTSUPP, "moe: score: %d is not 0 or 1", c.score);
	if (c.groups > CAIRN_MOE_MAX_GROUPS)
		return cairn_error(EOPNOTSUPP, "moe: num_groups: %d is above %d", c.groups,
				   CAIRN_MOE_MAX_GROUPS);
	if (c.groups == 1)
		return a->groups_per_token <= 1 ? 0 :
		       cairn_error(EOPNOTSUPP, "moe: groups_per_token: %d without groups",
				   a->groups_per_token);
	if (c.groups_per_token < 1 || c.groups_per_token > c.groups ||
	    c.groups_per_token * (a->num_experts / c.groups) < a->experts_per_token)
		return cairn_error(EOPNOTSUPP, "moe: groups_per_token: %d is not 1 to num_groups with "
				   "experts_per_token experts", c.groups_per_token);
	if (c.score == CAIRN_MOE_SIGMOID && a->num_experts / c.groups < 2)
		return cairn_error(EOPNOTSUPP, "moe: num_groups: %d leaves one expert in a group; score 1 "
				   "needs two", c.groups);
	return 0;
}

/* Checks the scalars of what is between the products. */
static int check_between(const struct cairn_moe_args *a)
{
	const struct cairn_moe_between b = cairn_moe_between_of(a);
	const int clamped = b.activation == CAIRN_MOE_CLAMPED;

	if (b.activation < 0)
		return cairn_error(EINVAL, "moe: activation: must be >= 0");
	if (b.activation > CAIRN_MOE_CLAMPED)
		return cairn_error(EOPNOTSUPP, "moe: activation: %d is not 0 or 1", b.activation);
	if (clamped && (!(b.alpha > 0 && b.limit > 0) || isinf(b.alpha) || isinf(b.limit)))
		return cairn_error(EINVAL, "moe: alpha, limit: must be finite and > 0 with activation 1");
	if (!clamped && (b.alpha != 0 || b.limit != 0))
		return cairn_error(EINVAL, "moe: alpha, limit: must be 0 without activation 1");
	if (clamped && (a->shared_intermediate || a->fp8w))
		return cairn_error(EOPNOTSUPP, "moe: activation: 1 is not supported with shared_intermediate "
				   "or fp8w");
	return 0;
}

static int check_w4(const struct cairn_moe_args *a)
{
	const int32_t w4 = cairn_moe_w4_of(a);

	if (w4 < 0)
		return cairn_error(EINVAL, "moe: w4: must be >= 0");
	if (w4 > CAIRN_MOE_W4_NV)
		return cairn_error(EOPNOTSUPP, "moe: w4: %d is not 0 to 6", w4);
	if (w4 && (a->shared_intermediate || a->fp8w))
		return cairn_error(EOPNOTSUPP, "moe: w4: not supported with shared_intermediate or fp8w");
	return 0;
}

int cairn_moe_check_shape(const struct cairn_moe_args *a)
{
	if (!a || (a->size != CAIRN_MOE_FIRST_BYTES && a->size != CAIRN_MOE_SECOND_BYTES &&
		   a->size != CAIRN_MOE_THIRD_BYTES && a->size != CAIRN_MOE_FOURTH_BYTES))
		CAIRN_TRY(cairn_check_args(a, sizeof(*a), "moe"));
	if (a->batch < 0 || a->shared_intermediate < 0)
		return cairn_error(EINVAL, "moe: batch, shared_intermediate: must be >= 0");
	if (a->sms < 0)
		return cairn_error(EINVAL, "moe: sms: must be >= 0");
	if (a->hidden < 1 || a->num_experts < 1 || a->experts_per_token < 1 || a->intermediate < 1)
		return cairn_error(EINVAL,
				   "moe: hidden, num_experts, experts_per_token, intermediate: must be >= 1");
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "moe: eps: must be finite and at least 2^-126");
	if (!(a->scaling > 0) || isinf(a->scaling))
		return cairn_error(EINVAL, "moe: scaling: must be finite and > 0");
	if (a->normalize != 0 && a->normalize != 1)
		return cairn_error(EINVAL, "moe: normalize: %d is not 0 or 1", a->normalize);
	if (a->fp8w != 0 && a->fp8w != 1)
		return cairn_error(EINVAL, "moe: fp8w: %d is not 0 or 1", a->fp8w);
	if (a->scale_kind != CAIRN_FP8_SCALE_ROWS && (a->scale_kind != CAIRN_FP8_SCALE_BLOCKS || !a->fp8w))
		return cairn_error(EINVAL, "moe: scale_kind: %d is not 0, or 1 with fp8w", a->scale_kind);
	if (a->size >= CAIRN_MOE_THIRD_BYTES && a->no_residual != 0 && a->no_residual != 1)
		return cairn_error(EINVAL, "moe: no_residual: %d is not 0 or 1", a->no_residual);
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "moe: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->hidden % 64 || a->hidden > 8192)
		return cairn_error(EOPNOTSUPP,
				   "moe: hidden: %d is not a multiple of 64 up to 8192", a->hidden);
	if (a->intermediate % 64 || a->intermediate > 16384)
		return cairn_error(EOPNOTSUPP, "moe: intermediate: %d is not a multiple of 64 up to 16384",
				   a->intermediate);
	if (a->shared_intermediate % 64 || a->shared_intermediate > 16384)
		return cairn_error(EOPNOTSUPP,
				   "moe: shared_intermediate: %d is not a multiple of 64 up to 16384",
				   a->shared_intermediate);
	if (a->num_experts > 256)
		return cairn_error(EOPNOTSUPP, "moe: num_experts: %d is above 256", a->num_experts);
	if (a->experts_per_token > 16 || a->experts_per_token > a->num_experts)
		return cairn_error(EOPNOTSUPP, "moe: experts_per_token: %d is above 16 or num_experts",
				   a->experts_per_token);
	if (a->batch > 65536)
		return cairn_error(EOPNOTSUPP, "moe: batch: %d is above 65536", a->batch);
	if (a->batch <= CAIRN_MOE_FEW && a->batch * a->hidden > 32768)
		return cairn_error(EOPNOTSUPP, "moe: batch: %d times hidden is above 32768", a->batch);
	CAIRN_TRY(check_between(a));
	CAIRN_TRY(check_w4(a));
	return check_choice(a);
}

static int check_biases(const struct cairn_moe_args *a)
{
	const struct cairn_moe_choice c = cairn_moe_choice_of(a);
	const struct cairn_moe_between b = cairn_moe_between_of(a);

	if (c.bias && c.score != CAIRN_MOE_SIGMOID)
		return cairn_error(EOPNOTSUPP, "moe: route_bias: needs score 1");
	if (((uintptr_t)c.bias | (uintptr_t)c.logit_bias) & 3)
		return cairn_error(EINVAL, "moe: route_bias, logit_bias: must be 4-byte aligned");
	if (((uintptr_t)b.gate_up_bias | (uintptr_t)b.down_bias) & 15)
		return cairn_error(EINVAL, "moe: gate_up_bias, down_bias: must be 16-byte aligned");
	if ((b.gate_up_bias || b.down_bias) && (a->shared_intermediate || a->fp8w))
		return cairn_error(EOPNOTSUPP, "moe: gate_up_bias, down_bias: not supported with "
				   "shared_intermediate or fp8w");
	return 0;
}

static int check_factors(const struct cairn_moe_args *a)
{
	const float *gate_up = cairn_moe_factors(a, 0), *down = cairn_moe_factors(a, 1);

	if ((gate_up || down) && cairn_moe_w4_of(a) != CAIRN_MOE_W4_NV)
		return cairn_error(EINVAL, "moe: gate_up_factor, down_factor: only with w4 %d",
				   CAIRN_MOE_W4_NV);
	if (((uintptr_t)gate_up | (uintptr_t)down) & 3)
		return cairn_error(EINVAL, "moe: gate_up_factor, down_factor: must be 4-byte aligned");
	return 0;
}

int cairn_moe_check(const struct cairn_moe_args *a)
{
	int32_t w4, has_scales;

	CAIRN_TRY(cairn_moe_check_shape(a));
	w4 = cairn_moe_w4_of(a);
	has_scales = w4 || a->fp8w;
	if (!a->out || !a->x || !a->norm_weight || !a->w_router || !a->w_gate_up || !a->w_down)
		return cairn_error(EINVAL,
				   "moe: out, x, norm_weight, w_router, w_gate_up, w_down: null pointer");
	if (!a->w_shared_gate_up != !a->shared_intermediate || !a->w_shared_down != !a->shared_intermediate)
		return cairn_error(EINVAL, "moe: w_shared_gate_up, w_shared_down: needed with "
				   "shared_intermediate > 0, NULL with 0");
	if (!a->w_gate_up_scale != !has_scales || !a->w_down_scale != !has_scales)
		return cairn_error(EINVAL, "moe: w_gate_up_scale, w_down_scale: needed with fp8w or w4, NULL "
				   "without");
	if (!a->w_shared_gate_up_scale != !(a->fp8w && a->shared_intermediate) ||
	    !a->w_shared_down_scale != !(a->fp8w && a->shared_intermediate))
		return cairn_error(EINVAL, "moe: w_shared_gate_up_scale, w_shared_down_scale: needed with "
				   "fp8w and shared_intermediate > 0, else NULL");
	if (((uintptr_t)a->out | (uintptr_t)a->x | (uintptr_t)a->norm_weight | (uintptr_t)a->w_router |
	     (uintptr_t)a->w_gate_up | (uintptr_t)a->w_down | (uintptr_t)a->w_shared_gate_up |
	     (uintptr_t)a->w_shared_down) & 15)
		return cairn_error(EINVAL, "moe: pointers of dtype or e4m3 must be 16-byte aligned");
	if (((uintptr_t)a->experts | (uintptr_t)a->w_gate_up_scale | (uintptr_t)a->w_down_scale |
	     (uintptr_t)a->w_shared_gate_up_scale | (uintptr_t)a->w_shared_down_scale) & 3)
		return cairn_error(EINVAL, "moe: experts and scales must be 4-byte aligned");
	if (w4 && ((uintptr_t)a->w_gate_up_scale | (uintptr_t)a->w_down_scale) & 15)
		return cairn_error(EINVAL, "moe: w_gate_up_scale, w_down_scale: must be 16-byte aligned with "
				   "w4");
	if ((uintptr_t)a->workspace & 255)
		return cairn_error(EINVAL, "moe: workspace: must be 256-byte aligned");
	CAIRN_TRY(check_biases(a));
	return check_factors(a);
}
