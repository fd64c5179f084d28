/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_reduce - all-reduce among the CTAs of a thread-block cluster
 *
 *   out[c,k,b,:] = op over r of in[c,k,r,:]        for every rank b: all get the result
 *
 * There are num_clusters clusters of cluster_size CTAs; CTA b of cluster c is rank b. One kernel runs
 * num_calls collectives k = 0, 1, ... in each cluster (so that buffers are reused), and each of them
 * `rounds` times over the same input (so that it can be timed).
 *
 *   argument   dtype  shape                                             notes
 *   out        dtype  [num_clusters, num_calls, cluster_size, len]      out, may not alias in
 *   out_ml     f32    [num_clusters, num_calls, cluster_size, rows, 2]  out; SOFTMAX only, else NULL
 *   cycles     int64  [num_clusters, cluster_size]                      out, optional (NULL)
 *   in         dtype  [num_clusters, num_calls, cluster_size, len]      in
 *   in_ml      f32    [num_clusters, num_calls, cluster_size, rows, 2]  in; SOFTMAX only, else NULL
 *   workspace         [cluster_reduce_workspace()] bytes                256-byte aligned; 0 bytes except
 *                                                                       with OFFCHIP
 * out, out_ml, in and in_ml are 16-byte aligned.
 *
 * Operators
 *   SUM       fp32 sum; NaN and infinities as in IEEE arithmetic.
 *   MAX, MIN  one of the inputs, exactly; NaN if any input is NaN; either zero if +0 and -0 tie.
 *   SOFTMAX   merges softmax states. in is o [.., rows, head_dim] with len = rows * head_dim, in_ml is
 *             (m, l): for the keys of one rank, with logits s_j (natural units) and values v_j,
 *                 m = max_j s_j,   l = sum_j exp(s_j - m),   o = sum_j exp(s_j - m) v_j   (not divided by l).
 *             Merged:  M = max_r m_r, L = sum_r exp(m_r - M) l_r, O = sum_r exp(m_r - M) o_r;
 *                      out_ml is (M, L).
 *             The output of attention is therefore O / L, and its log-sum-exp is M + log L. m is finite or
 *             -INFINITY. A rank with m = -INFINITY has no keys: its l and o do not enter the result and may
 *             be NaN. If no rank has keys: M = -INFINITY, L = 0, O = 0.
 *
 * Algorithms (see cluster_schedule.h for the messages and their bytes)
 *   ONESHOT   every rank sends all of its data to all ranks, then reduces in rank order.
 *   TWOSHOT   rank r reduces chunk r in rank order and sends it to all: reduce-scatter, then all-gather.
 *   RING      reduces and gathers chunks likewise, in 2 (cluster_size - 1) steps between neighbours.
 *   TREE      algorithm 1 of the source: log2(cluster_size) exchanges at doubling strides; cluster_size must
 *             be a power of two. Its order of summation depends on the rank, so ranks may differ by rounding.
 *   OFFCHIP   goes through global memory, as a kernel without clusters would; for comparison.
 *   AUTO      the fastest on-chip algorithm for this size (cairn_cluster_reduce_pick()).
 *
 * Supported:   dtype f32, f16, bf16; cluster_size 1..16 if the device allows it (it need not above 8);
 *              len 1..16384; num_clusters >= 0 (more than can be resident run in waves); num_calls,
 *              rounds >= 1. SOFTMAX: head_dim a multiple of 8 that divides len; rows <= 128.
 *              Anything else -EOPNOTSUPP.
 * Numerics:    fp32 accumulation in a fixed order, rounded once to dtype. exp to 2 ulp of fp32. Partial
 *              results travel in fp32; only inputs and final results travel in a narrower dtype.
 * Tolerance:   SUM   (cluster_size - 1) 2^-24 sum_r |in_r| + u |ref|; MAX, MIN 0; SOFTMAX derived in
 *              cluster_reduce_ref.c (it grows with |m_r - M|). Exact where partial sums are representable.
 * cycles:      SM clock cycles of one collective, averaged over the rounds of the last call: from its input
 *              in the shared memory of this CTA to its result there, visible to all its threads. 0 on a CPU.
 * Determinism: bitwise repeatable; all ranks get the same bits (except with TREE).
 * Errors:      -EINVAL (null pointer, bad shape), -EOPNOTSUPP, -EIO (launch failed; cairn_last_error()).
 * Source:      Luo et al. 2025 (ClusterFusion), section 3.1, algorithm 1; differs in: any cluster size and
 *              operator, the softmax state travels with its values, no barrier between calls.
 */
#ifndef CAIRN_CLUSTER_REDUCE_H
#define CAIRN_CLUSTER_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/cluster/cluster_schedule.h"

#define CAIRN_CLUSTER_REDUCE_MAX_LEN	16384
#define CAIRN_CLUSTER_REDUCE_MAX_ROWS	128

struct cairn_exact;

struct cairn_cluster_reduce_args {
	size_t size;			/* sizeof(struct cairn_cluster_reduce_args) */
	void *out;
	float *out_ml;
	int64_t *cycles;
	const void *in;
	const float *in_ml;
	void *workspace;
	size_t workspace_bytes;
	int32_t num_clusters, num_calls, cluster_size;
	int32_t len, head_dim;		/* elements; head_dim: SOFTMAX only */
	int32_t dtype, op, algo;	/* enum cairn_dtype, cairn_cluster_op, cairn_cluster_algo */
	int32_t rounds;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cluster_reduce(const struct cairn_cluster_reduce_args *args, void *stream);
/* Writes the workspace that args need to *bytes. */
int cairn_cluster_reduce_workspace(const struct cairn_cluster_reduce_args *args, size_t *bytes);
int cairn_cluster_reduce_cpu(const struct cairn_cluster_reduce_args *args, void *stream);
int cairn_cluster_reduce_ref(const struct cairn_cluster_reduce_args *args, void *stream);
/* Fills exact[0] for out, exact[1] for out_ml (SOFTMAX), and the next one for cycles if that is not NULL. */
int cairn_cluster_reduce_exact(const struct cairn_cluster_reduce_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_cluster_reduce_check(const struct cairn_cluster_reduce_args *args);
/* The part of cairn_cluster_reduce_check() that reads only the scalars, for workspace queries. */
int cairn_cluster_reduce_check_shape(const struct cairn_cluster_reduce_args *args);

#ifdef __cplusplus
}
#endif
#endif
