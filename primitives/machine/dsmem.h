/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsmem - what distributed shared memory can do, as an operation: it moves known data, and times it
 *
 * Clusters of cluster_size CTAs run one test. CTA c = cluster * cluster_size + rank owns `bytes` of shared
 * memory, 64-bit word i of which is cairn_dsmem_word(seed, c, i). num_peers = max(cluster_size - 1, 1); in
 * round t of `rounds` rank r talks to rank cairn_dsmem_peer(r, cluster_size, t): all others in turn (at
 * cluster_size 1: itself, through the cluster's window). A slot is bytes / cluster_size. "Weighted" sums are
 * of word(i) * cairn_dsmem_weight(i): words at the wrong place show. All sums are modulo 2^64.
 *
 *   test          what is done, and sum[c]
 *   LATENCY       One thread a CTA follows `rounds` links of the chain in every rank's shared memory in turn,
 *                 its own included. Sum over the owners of the index of the last link.
 *   LATENCY_SMEM  The same in own shared memory by plain ld.shared. Index of the last link.
 *   LATENCY_L2    The same in src, all of it touched before. Index of the last link.
 *   LATENCY_HBM   The same in the first sixteenth of src, after the second half has been read past it (src
 *                 should be four times the L2). Index of the last link.
 *   LOAD          Loads of 16 bytes; rounds must be a multiple of num_peers. The warps of a CTA may go round
 *                 the peers from different starts. Sum of all words loaded: all of every peer's shared
 *                 memory, rounds / num_peers times.
 *   ST_ASYNC      Round t: slot p of one's own memory goes to slot r of peer p's receive buffer (zero
 *                 before). Weighted sum of the receive buffer after all rounds.
 *   BULK          The same by cp.async.bulk.
 *   MULTICAST     Every round, every rank copies its slot of the cluster's part of src (see
 *                 cairn_dsmem_src_offset) to that slot of everyone's receive buffer. Weighted sum of that.
 *   BARRIER       `rounds` cluster barriers; then `rounds` more, each with a remote store of
 *                 cairn_dsmem_word(seed, sender, t) to the peer before it and a local load after it. Sum of
 *                 the values received.
 *   MBARRIER      A token goes `rounds` times round the ranks: first as a remote mbarrier arrive alone, then
 *                 as the 8 bytes of an st.async, starting at rank 0 as cairn_dsmem_word(seed, c of rank 0, 0)
 *                 and changed by every receiver (cairn_dsmem_token). The last value received.
 *   ACTIVE        Every CTA stays until all that fit have started. 0.
 *
 *   argument     dtype   shape                                        notes
 *   sum          uint64  [num_clusters * cluster_size]                out, judged
 *   time         int64   [num_clusters * cluster_size, 4]             out: start_ns, end_ns, cycles, cycles2
 *   pair_cycles  int32   [num_clusters, cluster_size, cluster_size]   out, LATENCY: [.., reader, owner];
 *                                                                     else NULL
 *   smid         int32   [num_clusters * cluster_size]                out, -1 where a CTA did not run
 *   resident     int32   [1]                                          out, clusters that fit at once,
 *                                                                     as asked
 *   src          uint64  [src_bytes / 8]                              in, LATENCY_L2, LATENCY_HBM, MULTICAST;
 *                                                                     128-byte aligned;
 *                                                                     word 16 i: link after i
 *
 * min(num_clusters, *resident) clusters run, so that none waits for another (ACTIVE: all, in waves). CTAs
 * that do not run have sum 0, times 0 and smid -1; they are the last ones. `cycles` counts the SM's clock
 * over the timed part: the chases, or all rounds; cycles2 the second part of BARRIER and MBARRIER.
 * smem_bytes: dynamic shared memory to ask for at least; it sets how many CTAs fit an SM.
 *
 * Supported:   cluster_size 1..16 as the device grants it; bytes a multiple of 128, at most 96 KiB (ST_ASYNC,
 *              BULK, MULTICAST: of 16 * cluster_size too); rounds 1..4096; at most 2^20 - 1 bytes through one
 *              of the 16 mbarriers (rounds / 16 rounded up, times a slot; MULTICAST: times bytes).
 * Determinism: of sum and resident; times and places are measurements.
 * Errors:      -EINVAL, -EOPNOTSUPP (a cluster size that the device does not grant), -EIO.
 * Source:      ClusterFusion (arXiv 2508.18850) figure 5; differs in: by SM pair, all
 *              sizes 1..16, pushes too.
 */
#ifndef CAIRN_DSMEM_H
#define CAIRN_DSMEM_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_DSMEM_MAX_ROUNDS	4096
#define CAIRN_DSMEM_MAX_BYTES	(96 * 1024)
#define CAIRN_DSMEM_NUM_BARS	16
#define CAIRN_DSMEM_LINK	128	/* bytes from link to link */

enum cairn_dsmem_test {
	CAIRN_DSMEM_LATENCY, CAIRN_DSMEM_LATENCY_SMEM, CAIRN_DSMEM_LATENCY_L2, CAIRN_DSMEM_LATENCY_HBM,
	CAIRN_DSMEM_LOAD, CAIRN_DSMEM_ST_ASYNC, CAIRN_DSMEM_BULK, CAIRN_DSMEM_MULTICAST,
	CAIRN_DSMEM_BARRIER, CAIRN_DSMEM_MBARRIER, CAIRN_DSMEM_ACTIVE, CAIRN_DSMEM_NUM_TESTS
};

enum { CAIRN_DSMEM_START_NS, CAIRN_DSMEM_END_NS, CAIRN_DSMEM_CYCLES, CAIRN_DSMEM_CYCLES2,
       CAIRN_DSMEM_NUM_TIMES };

struct cairn_dsmem_args {
	size_t size;
	uint64_t *sum;
	int64_t *time;
	int32_t *pair_cycles, *smid, *resident;
	const void *src;
	int64_t src_bytes;
	uint64_t seed;
	int32_t test;		/* enum cairn_dsmem_test */
	int32_t cluster_size, num_clusters;
	int32_t bytes, rounds, smem_bytes;
};

#ifdef __CUDACC__
#define CAIRN_DSMEM_INLINE static __host__ __device__ __forceinline__
#else
#define CAIRN_DSMEM_INLINE static inline
#endif

/* Word i of CTA c: cheap enough to be made inside a kernel, and different everywhere. */
CAIRN_DSMEM_INLINE uint64_t cairn_dsmem_word(uint64_t seed, uint32_t cta, uint32_t i)
{
	uint64_t x = (seed + (((uint64_t)cta << 32) | i)) * 0x9e3779b97f4a7c15ull;

	return x ^ (x >> 29);
}

CAIRN_DSMEM_INLINE uint64_t cairn_dsmem_weight(uint32_t i)
{
	return 2 * (uint64_t)i + 1;
}

/* The chain in shared memory: from link i of `links` by a stride that depends on the owner's rank. */
CAIRN_DSMEM_INLINE uint32_t cairn_dsmem_next_link(uint32_t i, uint32_t links, uint32_t owner)
{
	return (i + 2 * owner + 1) % links;
}

/* Whom rank r talks to in round t. */
CAIRN_DSMEM_INLINE uint32_t cairn_dsmem_peer(uint32_t r, uint32_t cluster_size, uint32_t t)
{
	return cluster_size == 1 ? 0 : (r + 1 + t % (cluster_size - 1)) % cluster_size;
}

/* What `rank` makes of a token it has received. */
CAIRN_DSMEM_INLINE uint64_t cairn_dsmem_token(uint64_t x, uint32_t rank)
{
	return x * 0x9e3779b97f4a7c15ull + rank + 1;
}

/*
 * Cluster g's part of src (MULTICAST), in bytes: the same in every round, so that no
 * round waits for a reader.
 */
CAIRN_DSMEM_INLINE int64_t cairn_dsmem_src_offset(int64_t src_bytes, int32_t bytes, int32_t g)
{
	return g % (src_bytes / bytes) * bytes;
}

#ifdef __cplusplus
extern "C" {
#endif

int cairn_dsmem(const struct cairn_dsmem_args *args, void *stream);
int cairn_dsmem_cpu(const struct cairn_dsmem_args *args, void *stream);
int cairn_dsmem_ref(const struct cairn_dsmem_args *args, void *stream);
/* 0, or -EINVAL with a text: what every implementation here checks first. */
int cairn_dsmem_check(const struct cairn_dsmem_args *args);

#ifdef __cplusplus
}
#endif
#endif
