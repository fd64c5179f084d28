/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_gather - all-gather among the CTAs of a thread-block cluster
 *
 *   out[c,k,b,r,:] = in[c,k,r,:]        for all ranks b, r
 *
 * There are num_clusters clusters of cluster_size CTAs; CTA b of cluster c is rank b. One kernel runs
 * num_calls collectives k = 0, 1, ... in each cluster (so that buffers are reused), and each of them
 * `rounds` times over the same input (so that it can be timed).
 *
 *   argument   dtype  shape                                                       notes
 *   out        dtype  [num_clusters, num_calls, cluster_size, cluster_size, len]  out, may not alias in
 *   cycles     int64  [num_clusters, cluster_size]                                out, optional (NULL)
 *   in         dtype  [num_clusters, num_calls, cluster_size, len]                in
 *   workspace         [cluster_gather_workspace()] bytes                          256-byte aligned; 0 bytes
 *                                                                                 except with OFFCHIP
 * out and in are 16-byte aligned.
 *
 * Algorithms (see cluster_schedule.h for the messages and their bytes)
 *   ONESHOT   every rank sends its block to all ranks. TWOSHOT is a synonym: there is nothing to reduce.
 *   RING      cluster_size - 1 steps between neighbours.
 *   TREE      algorithm 2 of the source: log2(cluster_size) exchanges, with messages that double in size;
 *             cluster_size must be a power of two.
 *   OFFCHIP   goes through global memory, as a kernel without clusters would; for comparison.
 *   AUTO      the fastest on-chip algorithm for this size, which is ONESHOT.
 *
 * Supported:   dtype f32, f16, bf16; cluster_size 1..16 if the device allows it (it need not above 8);
 *              len >= 1, where (cluster_size + 1) * len elements of dtype fit in 216 KiB, because the result
 *              lies in the shared memory of one SM; num_clusters >= 0 (more than can be resident run in
 *              waves); num_calls, rounds >= 1. Anything else -EOPNOTSUPP.
 * Numerics:    bits are copied; NaNs keep their payload.
 * Tolerance:   none.
 * cycles:      SM clock cycles of one collective, averaged over the rounds of the last call: from its input
 *              in the shared memory of this CTA to its result there, visible to all its threads. 0 on a CPU.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, bad shape), -EOPNOTSUPP, -EIO (launch failed; cairn_last_error()).
 * Source:      Luo et al. 2025 (ClusterFusion), section 3.1, algorithm 2; differs in: the blocks of the
 *              result are in rank order, any cluster size (except with TREE), no barrier between calls if two
 *              results fit in shared memory.
 */
#ifndef CAIRN_CLUSTER_GATHER_H
#define CAIRN_CLUSTER_GATHER_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/cluster/cluster_schedule.h"

#define CAIRN_CLUSTER_GATHER_MAX_BYTES	(216 << 10)

struct cairn_exact;

struct cairn_cluster_gather_args {
	size_t size;			/* sizeof(struct cairn_cluster_gather_args) */
	void *out;
	int64_t *cycles;
	const void *in;
	void *workspace;
	size_t workspace_bytes;
	int32_t num_clusters, num_calls, cluster_size;
	int32_t len;			/* elements of a block */
	int32_t dtype, algo;		/* enum cairn_dtype, cairn_cluster_algo */
	int32_t rounds;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cluster_gather(const struct cairn_cluster_gather_args *args, void *stream);
/* Writes the workspace that args need to *bytes. */
int cairn_cluster_gather_workspace(const struct cairn_cluster_gather_args *args, size_t *bytes);
int cairn_cluster_gather_cpu(const struct cairn_cluster_gather_args *args, void *stream);
int cairn_cluster_gather_ref(const struct cairn_cluster_gather_args *args, void *stream);
/* Fills exact[0] for out, and exact[1] for cycles if that is not NULL. */
int cairn_cluster_gather_exact(const struct cairn_cluster_gather_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_cluster_gather_check(const struct cairn_cluster_gather_args *args);
/* The part of cairn_cluster_gather_check() that reads only the scalars, for workspace queries. */
int cairn_cluster_gather_check_shape(const struct cairn_cluster_gather_args *args);

#ifdef __cplusplus
}
#endif
#endif
