/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe - the mixture-of-experts block in one call: norm, router, experts, residual; for the few rows of a
 * decode step or the many of a prompt
 *
 *   n       = x / sqrt(mean(x^2) + eps) * norm_weight                  (rmsnorm.h)
 *   l[b,:]  = n w_router^T, plus logit_bias if it is given             fp32
 *   p[b,:]  = softmax(l[b,:]) over all num_experts, or with score 1 sigmoid(l[b,:]); fp32
 *   c[b,:]  = p[b,:], plus route_bias if it is given                   fp32
 *   e[b,i]  = the experts_per_token largest of c[b,:], descending; among equals the lower number first
 *   w[b,i]  = p[b,e[b,i]] * scaling, with `normalize`, p first divided by its sum over i (score 1: + 1e-20)
 *   h[b,i]  = act(n w_gate[e]^T + gate_bias[e], n w_up[e]^T + up_bias[e]) * w[b,i]
 *   act     = silu(gate) * up; or, with activation 1, (up + 1) * gate * sigmoid(alpha * gate), where `gate`
 *             is first limited to at most `limit`, and `up` to the range -limit .. limit
 *   s[b]    = silu(n w_shared_gate^T) * (n w_shared_up^T)              with shared_intermediate > 0
 *   out     = x + sum_i (h[b,i] w_down[e]^T + w[b,i] down_bias[e]) + s[b] w_shared_down^T
 *             with no_residual without x
 *
 *   argument          dtype  shape                                   notes
 *   out               dtype  [batch, hidden]                         out, may alias x exactly
 *   experts           int32  [batch, experts_per_token]              out, optional (NULL): e
 *   x                 dtype  [batch, hidden]                         in
 *   norm_weight       dtype  [hidden]                                in
 *   w_router          dtype  [num_experts, hidden]                   in
 *   w_gate_up         dtype  [num_experts, 2 intermediate, hidden]   in; per expert all gates, then all ups
 *   w_down            dtype  [num_experts, hidden, intermediate]     in
 *   w_shared_gate_up  dtype  [2 shared_intermediate, hidden]         in; NULL with shared_intermediate 0
 *   w_shared_down     dtype  [hidden, shared_intermediate]           in; NULL with shared_intermediate 0
 *   *_scale           f32    see below                               in, one array for each matrix; NULL with
 *                                                                    fp8w 0 and w4 0, or where the matrix is
 *                                                                    NULL
 *   workspace                [workspace_bytes]                       256-byte aligned; zeroed once, or with
 *                                                                    more than CAIRN_MOE_FEW rows, or w4,
 *                                                                    contents undefined
 *   route_bias        f32    [num_experts]                           in, finite; with score 1, may be NULL
 *   logit_bias        f32    [num_experts]                           in, finite, may be NULL
 *   gate_up_bias      dtype  [num_experts, 2 intermediate]           in, finite, may be NULL (0); per
 *                                                                    expert all gates, then all ups
 *   down_bias         dtype  [num_experts, hidden]                   in, finite, may be NULL (0)
 *   gate_up_factor    f32    [num_experts, 2]                        in, finite, may be NULL (1); of an
 *                                                                    expert's gates, and of its ups
 *   down_factor       f32    [num_experts]                           in, finite, may be NULL (1)
 *
 * All arrays are row-major without gaps, all pointers of dtype 16-byte aligned. A call with up to
 * CAIRN_MOE_FEW rows (batch) is one launch that spreads over `sms` SMs (0: all). cluster_attn.h says what
 * "zeroed once" means and which of these calls may run on a device at the same time. A call with more rows,
 * or with w4, is a chain of launches, has no such conditions, and limits its products to sms SMs (gemm.h).
 * eps is as in rmsnorm.h, scaling finite and > 0, normalize 0 or 1.
 *
 * Groups: with num_groups > 1, the experts form num_groups groups of consecutive experts, all of the same
 * size. A row's experts are chosen only from the groups_per_token groups with the largest scores; among
 * equals, the lower group comes first. The score of a group is the largest c of its experts with score 0
 * (DeepSeek-V2), and the sum of its two largest c, in fp32, with score 1 (DeepSeek-V3). Experts of other
 * groups are never chosen, even if all c in the chosen groups are negative or 0; p and its softmax are still
 * over all experts. num_groups 0 or 1 means no groups.
 *
 * With no_residual 1, x is not added: a rank of tensor parallelism has some of the columns of intermediate,
 * and the sum over ranks adds x once (all_reduce_norm.h).
 *
 * The members from route_bias on were added later: a caller whose `size` ends before them gets score 0
 * without groups. no_residual was added after those, and counts as 0 if `size` ends before it. The members
 * from logit_bias on came next, and the factors last; they count as NULL and 0 if `size` ends before them.
 * Any other `size` that ends within the later members is -EINVAL. w4 was a reserved member that had to be
 * 0.
 *
 * 8-bit weights: with fp8w 1, the elements of the experts' four matrices are e4m3 codes of one byte, none of
 * them NaN (0x7f, 0xff); the matrices are 16-byte aligned. The value of an element is its code times its
 * scale, which is finite and may be negative or 0. A matrix [n, k] has the scales of gemm_fp8w.h: with
 * scale_kind 0 it has [n], one for each row; with 1 it has [ceil(n / 128), ceil(k / 128)], one for each
 * block. w_gate_up and w_down have num_experts times as many. With fp8w 0, scale_kind is 0.
 *
 * 4-bit weights: with w4 (enum cairn_moe_w4), w_gate_up and w_down are num_experts matrices in the formats
 * and groups of gemm_w4.h. They are 16-byte aligned, and each expert has cairn_w4_code_bytes(n, k) bytes
 * (gemm_w4_layout.h). Their scales are not f32 but the bytes of b_scale, cairn_w4_scale_bytes() for each
 * expert, 16-byte aligned; their values are finite. All biases and activations are supported. With
 * CAIRN_MOE_W4_NV the factors, which are NVFP4's scales of whole matrices, multiply all elements; they are
 * 4-byte aligned, and NULL with other formats.
 *
 * Supported:   dtype f16, bf16; hidden a multiple of 64, 64..8192; intermediate a multiple of 64, 64..16384;
 *              shared_intermediate a multiple of 64, 0..16384; num_experts 1..256; experts_per_token
 *              1..min(16, num_experts); batch 0..65536, and batch * hidden up to 32768 if batch is at most
 *              CAIRN_MOE_FEW; score 0, 1; route_bias only with score 1; num_groups 0..32, a divisor of
 *              num_experts; with num_groups > 1, groups_per_token 1..num_groups, at least experts_per_token
 *              experts in that many groups and, with score 1, at least two experts in a group; without
 *              groups, groups_per_token 0 or 1; activation 0, 1; w4 0 to 6; w4, gate_up_bias, down_bias and
 *              activation 1 only without shared experts and with fp8w 0. Anything else -EOPNOTSUPP. batch 0
 *              does nothing.
 *              A row of x that is not finite has undefined out and e, and does not affect other rows. With
 *              score 1 and `normalize`, out is undefined in a row whose chosen p have a sum below 2^-60 (the
 *              1e-20, which only matters there, may be left out).
 * Numerics:    n, h and s are rounded to dtype (h and s may keep more bits); products exact, sums, p, c and
 *              weights in fp32, also where a model keeps its router in fp32. Relative errors: p up to
 *              2^-19 (1 + d), d being the logit's magnitude (score 1) or its distance from the largest one;
 *              silu(g), for g above -80, up to 2^-19 (1 + |g|), and sigmoid(alpha * g) likewise, with
 *              |alpha * g|. Biases are added in fp32, and out is rounded once. Scales are
 *              applied in fp32, to weights or to sums; with w4 and more than CAIRN_MOE_FEW rows, scales, and
 *              then codes times scales, may also be rounded to dtype, and must be in its range, as in
 *              gemm_w4.h. w[b,i] may instead multiply, in fp32, the product of an unweighted h with
 *              w_down[e]; where h overflows dtype, with or without its weight, out is undefined.
 * Tolerance:   derived in moe_bounds.c; where the bounds of the logits do not decide the choice of experts, a
 *              request is only checked to be finite.
 * Determinism: bitwise repeatable; row b does not depend on the other rows, but may depend on whether batch
 *              is above CAIRN_MOE_FEW, and with w4 on batch. If it is, or with w4, the grouping of the
 *              router's sums may also depend on sms.
 * Weights:     all inputs but x are constant, as b in gemm.h ("Constant b").
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, as cluster_attn.h; experts_per_token above num_experts is
 *              -EOPNOTSUPP; a negative score, num_groups or groups_per_token, or a num_groups that does not
 *              divide num_experts, is -EINVAL. alpha and limit must be finite and > 0 with activation 1, and
 *              0 without; anything else is -EINVAL.
 * Source:      DeepSeek-V2 2024, section 2.2; Jiang et al. 2024 (Mixtral: normalize, no shared experts);
 *              DeepSeek-V3 2024, section 2.1.2, and transformers' DeepseekV3TopkRouter (score 1);
 *              transformers' GptOssExperts (activation 1).
 */
#ifndef CAIRN_MOE_H
#define CAIRN_MOE_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/rows/quant_fp8w.h"

#define CAIRN_MOE_FEW	8

struct cairn_moe_args {
	size_t size;
	void *out;
	int32_t *experts;
	const void *x, *norm_weight, *w_router, *w_gate_up, *w_down, *w_shared_gate_up, *w_shared_down;
	void *workspace;
	size_t workspace_bytes;
	int32_t batch, hidden, num_experts, experts_per_token, intermediate, shared_intermediate;
	int32_t dtype, normalize;
	float eps, scaling;
	/* scales of 8-bit weights, or, as bytes, of 4-bit weights; otherwise 0 and NULL */
	const float *w_gate_up_scale, *w_down_scale, *w_shared_gate_up_scale, *w_shared_down_scale;
	int32_t fp8w, scale_kind;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
	/* later members: beyond `size` they count as absent, NULL and 0 */
	const float *route_bias;
	int32_t score;			/* enum cairn_moe_score */
	int32_t num_groups, groups_per_token;
	int32_t unused;			/* padding of callers from before no_residual; not read */
	int32_t no_residual;		/* 1: x is not added to out */
	int32_t unused_either;		/* padding of callers from before logit_bias; not read */
	const float *logit_bias;
	const void *gate_up_bias, *down_bias;
	int32_t activation;		/* enum cairn_moe_activation */
	float alpha, limit;
	int32_t w4;			/* enum cairn_moe_w4 */
	const float *gate_up_factor, *down_factor;
};

/*
 * The values of `size` that older callers pass: those whose struct ends before route_bias, before
 * no_residual, before logit_bias, and before the factors. The first includes any padding after `sms`.
 */
#define CAIRN_MOE_FIRST_BYTES	offsetof(struct cairn_moe_args, route_bias)
#define CAIRN_MOE_SECOND_BYTES	offsetof(struct cairn_moe_args, no_residual)
#define CAIRN_MOE_THIRD_BYTES	offsetof(struct cairn_moe_args, logit_bias)
#define CAIRN_MOE_FOURTH_BYTES	offsetof(struct cairn_moe_args, gate_up_factor)
#define CAIRN_MOE_MAX_GROUPS	32

enum cairn_moe_score { CAIRN_MOE_SOFTMAX, CAIRN_MOE_SIGMOID };
enum cairn_moe_activation { CAIRN_MOE_SILU, CAIRN_MOE_CLAMPED };

/* Formats of 4-bit weights (enum cairn_w4_format) with their groups; ROW: a row is one group. */
enum cairn_moe_w4 {
	CAIRN_MOE_W4_NONE, CAIRN_MOE_W4_MX, CAIRN_MOE_W4_INT_ROW, CAIRN_MOE_W4_INT_32, CAIRN_MOE_W4_INT_64,
	CAIRN_MOE_W4_INT_128, CAIRN_MOE_W4_NV,
};

/* How a row's experts are chosen: the later members of the arguments. groups 1: no groups. */
struct cairn_moe_choice {
	const float *bias, *logit_bias;
	int32_t score, groups, groups_per_token;
};

/* Returns the later members, or their defaults if `size` excludes them. `size` must have been checked. */
static inline struct cairn_moe_choice cairn_moe_choice_of(const struct cairn_moe_args *args)
{
	struct cairn_moe_choice c = { NULL, NULL, CAIRN_MOE_SOFTMAX, 1, 1 };

	if (args->size < CAIRN_MOE_SECOND_BYTES)
		return c;
	c.bias = args->route_bias;
	c.score = args->score;
	if (args->num_groups > 1) {
		c.groups = args->num_groups;
		c.groups_per_token = args->groups_per_token;
	}
	if (args->size >= CAIRN_MOE_FOURTH_BYTES)
		c.logit_bias = args->logit_bias;
	return c;
}

/* The biases of the experts' products and the activation between them. */
struct cairn_moe_between {
	const void *gate_up_bias, *down_bias;
	int32_t activation;
	float alpha, limit;
};

/* Returns these members, or their defaults if `size` excludes them. `size` must have been checked. */
static inline struct cairn_moe_between cairn_moe_between_of(const struct cairn_moe_args *args)
{
	struct cairn_moe_between b = { NULL, NULL, CAIRN_MOE_SILU, 0, 0 };

	if (args->size < CAIRN_MOE_FOURTH_BYTES)
		return b;
	b.gate_up_bias = args->gate_up_bias;
	b.down_bias = args->down_bias;
	b.activation = args->activation;
	b.alpha = args->alpha;
	b.limit = args->limit;
	return b;
}

/* Returns whether there are no biases and the activation is silu(gate) * up. */
static inline int cairn_moe_is_plain(const struct cairn_moe_between *b)
{
	return !b->gate_up_bias && !b->down_bias && b->activation == CAIRN_MOE_SILU;
}

/* Returns whether x is added to out. `size` must have been checked. */
static inline int cairn_moe_adds_x(const struct cairn_moe_args *args)
{
	return args->size < CAIRN_MOE_THIRD_BYTES || !args->no_residual;
}

/* Returns how the experts' weights are stored in 4 bits. `size` must have been checked. */
static inline int32_t cairn_moe_w4_of(const struct cairn_moe_args *args)
{
	return args->size < CAIRN_MOE_FOURTH_BYTES ? CAIRN_MOE_W4_NONE : args->w4;
}

/* Returns the factors of gates and ups, or of down, or NULL. `size` must have been checked. */
static inline const float *cairn_moe_factors(const struct cairn_moe_args *args, int is_down)
{
	return args->size < sizeof(*args) ? NULL : is_down ? args->down_factor : args->gate_up_factor;
}

/* Returns the number of scales of a matrix [n, k] of 8 bits. */
static inline int64_t cairn_moe_scales(int32_t scale_kind, int64_t n, int64_t k)
{
	const int64_t block = CAIRN_FP8_BLOCK;

	return scale_kind == CAIRN_FP8_SCALE_ROWS ? n : ((n + block - 1) / block) * ((k + block - 1) / block);
}

#ifdef __cplusplus
extern "C" {
#endif

int cairn_moe(const struct cairn_moe_args *args, void *stream);
int cairn_moe_workspace(const struct cairn_moe_args *args, size_t *bytes);
int cairn_moe_cpu(const struct cairn_moe_args *args, void *stream);
int cairn_moe_ref(const struct cairn_moe_args *args, void *stream);
/* exact[0]: out, exact[1]: experts (when given) */
int cairn_moe_exact(const struct cairn_moe_args *args, struct cairn_exact *exact);
/*
 * Returns whether cairn_moe_exact() gives bounds for this request. In large batches it gives them for a
 * sample; the other requests are only checked to be finite.
 */
int cairn_moe_is_judged(const struct cairn_moe_args *args, int32_t request);
/* Returns 0, or the error that all our tables return for these arguments. Reads no array. */
int cairn_moe_check(const struct cairn_moe_args *args);
/* As cairn_moe_check(), for the scalars alone. */
int cairn_moe_check_shape(const struct cairn_moe_args *args);

#ifdef __cplusplus
}
#endif
#endif
