/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm - sums the ranks' partial rows, adds the residual, and normalises: what tensor parallelism
 * does after each product whose weights are divided by columns
 *
 *   s[i,:] = ((x_0[i,:] + x_1[i,:]) + x_2[i,:]) + ...      x_r: x of rank r, ranks in ascending order
 *   residual given:  t[i,:] = s[i,:] + residual[i,:], rounded to dtype, stored back to residual
 *   no residual:     t[i,:] = s[i,:], rounded to dtype
 *   out[i,j] = t[i,j] / sqrt(mean_j(t[i,j]^2) + eps) * (weight_offset + weight[j])
 *
 *   argument   dtype  shape        notes
 *   out        dtype  [rows, dim]  out, 16-byte aligned; may be x itself
 *   residual   dtype  [rows, dim]  in and out, optional (NULL), 16-byte aligned, overlaps nothing
 *   x          dtype  [rows, dim]  in, 16-byte aligned; this rank's partial sums
 *   weight     dtype  [dim]        in, 16-byte aligned
 *   comm                           the ranks; all make the same calls in the same order (comm.h)
 *
 * residual, weight and all scalars are equal on all ranks. out and residual then have the same bits on all.
 *
 * Supported:   ranks 1..8; dtype f16, bf16, f32; dim a multiple of 8, 8..16384. Anything else -EOPNOTSUPP.
 *              rows 0 is legal and does nothing.
 *              eps is finite and at least CAIRN_EPS_MIN, weight_offset finite.
 * Numerics:    partial sums travel in dtype, at every size. Sums in fp32, in the order above; one rounding of
 *              s + residual; the sum of squares uses t after rounding; one rounding at the end. All partial
 *              sums and the sum of squares must fit fp32. For a row with an infinity or a NaN, results are
 *              the formula's values in IEEE arithmetic.
 * Tolerance:   residual: k 2^-24 sum |terms| + u |t|, k the number of additions; it is the correctly rounded
 *              sum if k is 1 or if fp32 holds all partial sums exactly. out: the effect of that error, and
 *              the bound of rmsnorm (all_reduce_norm_ref.c).
 * Determinism: bitwise repeatable; a row depends neither on the other rows nor on their number.
 * Weights:     weight is constant, as b in gemm.h ("Constant b").
 * Waiting:     on every other rank, at most the communicator's time-out (comm.h).
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, -ETIMEDOUT, -ECANCELED.
 * Source:      one-shot all-reduce as in FlashInfer's trtllm_allreduce_fusion, with sums in rank order.
 */
#ifndef CAIRN_ALL_REDUCE_NORM_H
#define CAIRN_ALL_REDUCE_NORM_H

#include "primitives/comm/comm.h"
#include "primitives/rows/rmsnorm.h"

struct cairn_all_reduce_norm_args {
	size_t size;
	void *out, *residual;
	const void *x, *weight;
	struct cairn_comm comm;
	int32_t rows, dim;
	int32_t dtype;
	float eps, weight_offset;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_all_reduce_norm(const struct cairn_all_reduce_norm_args *args, void *stream);
int cairn_all_reduce_norm_cpu(const struct cairn_all_reduce_norm_args *args, void *stream);
int cairn_all_reduce_norm_ref(const struct cairn_all_reduce_norm_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_all_reduce_norm_check(const struct cairn_all_reduce_norm_args *args);
/* all[r]: the arguments of rank r. exact[0]: out, exact[1]: residual (if given), of any rank. */
int cairn_all_reduce_norm_exact(const struct cairn_all_reduce_norm_args *const *all,
				struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
