/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_schedule - the bytes that cross DSMEM in the dataflows of cluster_attn
 *
 * Kernel, test and report share this file, as they do attn_tile.h. Bytes are those that all ranks of one
 * cluster send together in a call; a call has a cluster for each KV head. N: ranks, B: batch, g: query heads
 * of a KV head, d: head_dim, S: keys of all requests together, D: hidden, e: bytes of dtype.
 *
 *   primitive                      bytes of all ranks; size: bytes that one rank holds
 *   gather (source: algorithm 2)   size N (N-1)       T (N-1) for T = N size in all, shares even or not
 *   reduce (source: algorithm 1)   size N log2 N      a tree: log2 N exchanges, one after the other
 *   reduce, one shot               size N (N-1)       one exchange
 *   reduce, two shots              2 size (N-1)       two: each rank reduces 1/N of it and sends that to all
 *
 * Two shots send as much as the tree at N = 2 and less for larger N, since 2 (N-1) < N log2 N (6 and 8 at N =
 * 4).
 *
 *   SPLIT_TOKEN   gather of q, k, v       T = B (g + 2) d e
 *                 reduce of (m, l, o)     two shots. First: w states of B g (d + 2) 4 bytes a rank; w: number
 *                                         of a rank's warps with a state; second: a, B g d e
 *   SPLIT_HEAD    gather of q, k, v       T as above: a rank does not own both halves that a rotation pairs
 *                 reduce of the logits    size = g S 4
 *
 * The source counts elements, for g = 1 and B = 1, without (m, l):
 *
 *   SplitToken    gather(3 d / N) + reduce(d)        SplitHead    reduce(S) + reduce(D)
 *
 * The last term of SplitHead sums partial outputs over a cluster, before they are added over clusters. Cairn
 * does both sums at once, through global memory in a fixed order. In the source as in Cairn, the traffic of
 * SplitHead grows with S.
 */
#ifndef CAIRN_CLUSTER_ATTN_SCHEDULE_H
#define CAIRN_CLUSTER_ATTN_SCHEDULE_H

#include <stdint.h>

#include "primitives/cluster/cluster_schedule.h"

struct cluster_attn_traffic {
	int64_t gather, reduce;		/* bytes of all ranks of a cluster */
};

/* Returns the bytes that all ranks send; total: bytes of all ranks' shares together. */
CAIRN_CLUSTER_INLINE int64_t cluster_attn_gather_bytes(int n, int64_t total)
{
	return total * (n - 1);
}

/* algo: ONESHOT, TWOSHOT or TREE (a power of two) of enum cairn_cluster_algo; size: bytes of one rank. */
CAIRN_CLUSTER_INLINE int64_t cluster_attn_reduce_bytes(int algo, int n, int64_t size)
{
	return algo == CAIRN_CLUSTER_TREE ? size * n * cairn_cluster_log2(n) :
	       algo == CAIRN_CLUSTER_TWOSHOT ? 2 * size * (n - 1) : size * n * (n - 1);
}

/* states: w above. A kernel that sends (m, l) again with each vector of o sends more than this. */
CAIRN_CLUSTER_INLINE struct cluster_attn_traffic
cluster_attn_token_traffic(int n, int states, int batch, int group, int head_dim, int dtype_bytes)
{
	const int64_t heads = (int64_t)batch * group;
	struct cluster_attn_traffic t;

	t.gather = cluster_attn_gather_bytes(n, (heads + 2 * batch) * head_dim * dtype_bytes);
	t.reduce = (n - 1) * heads * (states * (head_dim + 2) * 4 + head_dim * dtype_bytes);
	return t;
}

/* keys: of all requests together. algo: the reduction of the logits. */
CAIRN_CLUSTER_INLINE struct cluster_attn_traffic
cluster_attn_head_traffic(int algo, int n, int batch, int group, int head_dim, int64_t keys, int dtype_bytes)
{
	struct cluster_attn_traffic t;

	t.gather = cluster_attn_gather_bytes(n, (int64_t)batch * (group + 2) * head_dim * dtype_bytes);
	t.reduce = cluster_attn_reduce_bytes(algo, n, group * keys * 4);
	return t;
}

/* The source's totals, in elements. */
CAIRN_CLUSTER_INLINE int64_t cluster_attn_source_token(int n, int head_dim)
{
	return (int64_t)3 * head_dim * (n - 1) + (int64_t)head_dim * n * cairn_cluster_log2(n);
}

CAIRN_CLUSTER_INLINE int64_t cluster_attn_source_head(int n, int64_t keys, int hidden)
{
	return (keys + hidden) * n * cairn_cluster_log2(n);
}

#endif
