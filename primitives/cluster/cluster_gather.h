/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_gather - all-gather among the CTAs of a thread-block cluster
 *
 *   out[c,k,b,r,:] = in[c,k,r,:]        for all ranks b, r
 *
 * num_clusters clusters of cluster_size CTAs; CTA b of cluster c is rank b. A cluster makes num_calls
 * collectives k = 0, 1, ... one after another inside one kernel (so that buffers are reused), each of
 * them `rounds` times over the same input (so that it can be timed).
 *
 *   argument   dtype  shape                                                       notes
 *   out        dtype  [num_clusters, num_calls, cluster_size, cluster_size, len]  out, may not alias in
 *   cycles     int64  [num_clusters, cluster_size]                                out, optional (NULL)
 *   in         dtype  [num_clusters, num_calls, cluster_size, len]                in
 *   workspace         [cluster_gather_workspace()] bytes                          256-byte aligned
 * out and in are 16-byte aligned.
 *
 * Algorithms (cluster_schedule.h says who sends what to whom, and how many bytes)
 *   ONESHOT   everyone sends its block to all. TWOSHOT is a synonym: there is nothing to reduce.
 *   RING      cluster_size - 1 steps between neighbours.
 *   TREE      algorithm 2 of the source: log2(cluster_size) exchanges, the message doubling. cluster_size a
 *             power of two.
 *   OFFCHIP   through global memory: what a kernel without clusters would do, here for comparison.
 *   AUTO      the fastest of them on chip for this size (cluster.cuh).
 *
 * Supported:   dtype f32, f16, bf16; cluster_size 1..16 as far as the device grants it (above 8 it need not);
 *              len >= 1 with (cluster_size + 1) * len elements of dtype in 216 KiB: the result lies in the
 *              shared memory of one SM; num_clusters >= 0 (more than can be resident run in waves);
 *              num_calls, rounds >= 1. Anything else -EOPNOTSUPP.
 * Numerics:    bits are copied, NaNs with their payload.
 * Tolerance:   none.
 * cycles:      SM clock cycles of one collective, averaged over the rounds of the last call: from its input
 *              in the shared memory of this CTA to its result there, visible to all its threads. 0 on a host.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, bad shape), -EOPNOTSUPP, -EIO (launch failed; cairn_last_error()).
 * Source:      Luo et al. 2025 (ClusterFusion), section 3.1, algorithm 2; differs in: blocks arrive in the
 *              order of ranks, any cluster size (but for TREE), no barrier between calls as
 *              long as two results fit.
 */
#ifndef CAIRN_CLUSTER_GATHER_H
#define CAIRN_CLUSTER_GATHER_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/cluster/cluster_schedule.h"

#define CAIRN_CLUSTER_GATHER_MAX_BYTES	(216 << 10)

struct cairn_exact;

struct cairn_cluster_gather_args {
	size_t size;
	void *out;
	int64_t *cycles;
	const void *in;
	void *workspace;
	size_t workspace_bytes;
	int32_t num_clusters, num_calls, cluster_size;
	int32_t len;
	int32_t dtype, algo;		/* enum cairn_dtype, cairn_cluster_algo */
	int32_t rounds;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cluster_gather(const struct cairn_cluster_gather_args *args, void *stream);
int cairn_cluster_gather_workspace(const struct cairn_cluster_gather_args *args, size_t *bytes);
int cairn_cluster_gather_cpu(const struct cairn_cluster_gather_args *args, void *stream);
int cairn_cluster_gather_ref(const struct cairn_cluster_gather_args *args, void *stream);
/* exact[0]: out */
int cairn_cluster_gather_exact(const struct cairn_cluster_gather_args *args, struct cairn_exact *exact);
/* What every implementation refuses: 0, -EINVAL or -EOPNOTSUPP with the text set. */
int cairn_cluster_gather_check(const struct cairn_cluster_gather_args *args);

#ifdef __cplusplus
}
#endif
#endif
