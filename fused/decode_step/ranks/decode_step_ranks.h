/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_ranks - decode_step of a model that several ranks share (tensor parallelism)
 *
 * Each rank has some of the heads, some columns of the MLP and some of the vocabulary. In the terms of
 * decode_step.h, for rank r of n:
 *
 *   each layer:
 *     p[r]  = attention of rank r's heads to the norm of x, times its columns of w_o
 *     x     = x + (p[0] + p[1] + ... + p[n-1]), b_o being part of p[0]
 *     p[r]  = (silu(g) * u) w_down^T, of rank r's columns of the MLP
 *     x     = x + (p[0] + p[1] + ... + p[n-1])
 *   logits  = those of all ranks' rows of lm_head, one rank after the other
 *
 * The arguments are those of decode_step, and the ranks. step.size is the size of the whole struct.
 *
 *   argument              of this rank
 *   step.num_qo_heads     its query heads: heads r * num_qo_heads .. (r + 1) * num_qo_heads - 1 of the model
 *   step.num_kv_heads     its KV heads; also of step.kv, whose pages hold nothing else
 *   step.intermediate     its columns of the MLP
 *   step.w_qkv, b_qkv     the rows of its query heads, then of its KV heads' keys, then of their values
 *   step.w_o, w_down      [hidden, its columns]
 *   step.w_gate_up        [2 step.intermediate, hidden]; gates, ups
 *   step.b_o              whole, on rank 0; NULL on the others
 *   step.lm_head          [step.vocab / n, hidden], rows r * step.vocab / n and following
 *   comm                  the ranks; all make the same calls in the same order (comm.h)
 *
 * Everything else has the same value, and arrays the same contents, on all ranks: embed, norms, ids,
 * positions, the lengths of requests, how tokens are drawn, and all other scalars. Pages may lie at other
 * places. logits and tokens are complete, and have the same bits, on every rank.
 *
 * Supported:   as decode_step, without latent attention and experts; ranks 1..8; step.vocab a multiple of
 *              8 * ranks. Anything else -EOPNOTSUPP. The CUDA table has only the form PERSISTENT, and only
 *              batches of 1 and 2 whose results travel as LL words (fused/grid/grid.h): otherwise the
 *              workspace query and the call return -EOPNOTSUPP.
 * Numerics:    as decode_step. p travels in fp32, is summed in fp32 in the order of the ranks, and rounded
 *              with x, once.
 * Tolerance:   that of decode_step for the whole model.
 * Determinism: bitwise repeatable. A request does not depend on the others, but the grouping of its sums may
 *              depend on ranks, kv.batch, kv.max_len, sms and the device.
 * Waiting:     on every other rank, at most the communicator's time-out (comm.h).
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, -ETIMEDOUT, -ECANCELED.
 * Source:      Shoeybi et al. 2019 (Megatron-LM, tensor parallelism); Luo et al. 2025, section 3.
 */
#ifndef CAIRN_DECODE_STEP_RANKS_H
#define CAIRN_DECODE_STEP_RANKS_H

#include "fused/decode_step/decode_step.h"
#include "primitives/comm/comm.h"

struct cairn_decode_step_ranks_args {
	struct cairn_decode_step_args step;
	struct cairn_comm comm;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_decode_step_ranks(const struct cairn_decode_step_ranks_args *args, void *stream);
int cairn_decode_step_ranks_workspace(const struct cairn_decode_step_ranks_args *args, size_t *bytes);
int cairn_decode_step_ranks_cpu(const struct cairn_decode_step_ranks_args *args, void *stream);
int cairn_decode_step_ranks_cpu_workspace(const struct cairn_decode_step_ranks_args *args, size_t *bytes);
/* all[r]: the arguments of rank r. exact: as of cairn_decode_step_exact(), with the pages of rank `rank`. */
int cairn_decode_step_ranks_exact(const struct cairn_decode_step_ranks_args *const *all, int32_t rank,
				  struct cairn_exact *exact);
/* The argument checks of all our tables: as cairn_decode_step_check() and cairn_decode_step_check_shape(). */
int cairn_decode_step_ranks_check(const struct cairn_decode_step_ranks_args *args);
int cairn_decode_step_ranks_check_shape(const struct cairn_decode_step_ranks_args *args);

#ifdef __cplusplus
}
#endif
#endif
