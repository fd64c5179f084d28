/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsmem - measures distributed shared memory (DSMEM): moves known data within clusters and times it
 *
 * Clusters of cluster_size CTAs run one test. CTA c = cluster * cluster_size + rank owns `bytes` of shared
 * memory, whose 64-bit word i is cairn_dsmem_word(seed, c, i). num_peers = max(cluster_size - 1, 1). In
 * round t of `rounds`, the peer p of rank r is rank cairn_dsmem_peer(r, cluster_size, t), which visits all
 * other ranks in turn (at cluster_size 1 the rank itself, through the cluster's window). A slot is bytes /
 * cluster_size. A weighted sum adds word(i) * cairn_dsmem_weight(i), so that words at a wrong place change
 * it. All sums are modulo 2^64.
 *
 *   test          what it does; sum[c]
 *   LATENCY       One thread per CTA follows `rounds` links of the chain in every rank's shared memory in
 *                 turn, its own included. sum: over the owners, the index of the last link.
 *   LATENCY_SMEM  The same in own shared memory by plain ld.shared. sum: index of the last link.
 *   LATENCY_L2    The same in src, which a kernel has just read in full, to bring it into the L2. sum: index
 *                 of the last link.
 *   LATENCY_HBM   The same in the first sixteenth of src, after the second half of src was read to evict the
 *                 first half (src should be four times the L2). sum: index of the last link.
 *   LOAD          Loads of 16 bytes; rounds must be a multiple of num_peers. The warps of a CTA may start at
 *                 different peers. sum: all words loaded, that is, every peer's shared memory
 *                 rounds / num_peers times.
 *   ST_ASYNC      In round t, slot p of the rank's own memory goes to slot r of peer p's receive buffer,
 *                 which is zero at the start. sum: weighted sum of the receive buffer after all rounds.
 *   BULK          The same by cp.async.bulk.
 *   MULTICAST     In every round, every rank copies its slot of the cluster's part of src (see
 *                 cairn_dsmem_src_offset) to that slot of all receive buffers. sum: weighted sum of the
 *                 buffer.
 *   BARRIER       `rounds` cluster barriers; then `rounds` more, each with a remote store of
 *                 cairn_dsmem_word(seed, sender, t) to the peer before it and a local load after it. sum: the
 *                 values received.
 *   MBARRIER      A token visits all ranks `rounds` times, first as a remote mbarrier arrive without data,
 *                 then as the 8 bytes of an st.async. It starts at rank 0 as cairn_dsmem_word(seed, c of
 *                 rank 0, 0), and every receiver changes it by cairn_dsmem_token(). sum: the last value
 *                 received.
 *   ACTIVE        Every CTA stays long enough for all CTAs that fit to start. sum: 0.
 *
 *   argument     dtype   shape                                       notes
 *   sum          uint64  [num_clusters * cluster_size]               out, judged
 *   time         int64   [num_clusters * cluster_size, 4]            out: start_ns, end_ns, cycles, cycles2
 *   pair_cycles  int32   [num_clusters, cluster_size, cluster_size]  out, LATENCY: [.., reader, owner]; else
 *                                                                    NULL
 *   smid         int32   [num_clusters * cluster_size]               out, -1 if the CTA did not run
 *   resident     int32   [1]                                         out, clusters that fit at once, by query
 *   src          uint64  [src_bytes / 8]                             in, LATENCY_L2, LATENCY_HBM, MULTICAST;
 *                                                                    128-byte aligned; word 16 i holds the
 *                                                                    link that follows link i
 *
 * min(num_clusters, *resident) clusters run, so that no cluster waits for another (ACTIVE: all run, in
 * waves). CTAs that do not run are the last ones; they have sum 0, times and pair_cycles 0 and smid -1.
 * `cycles` counts the SM's clock over the timed part: the chases, or all rounds; cycles2 counts the second
 * part of BARRIER and MBARRIER; both parts lie between start_ns and end_ns. pair_cycles counts one chase, and
 * `cycles` is at least their sum. A table without such a clock, on a CPU, sets all cycles to 0. smem_bytes is
 * a lower bound of the dynamic shared memory per CTA, which determines how many CTAs fit an SM.
 *
 * Supported:   cluster_size 1..16 if the device allows it; bytes a multiple of 128, at most 96 KiB (ST_ASYNC,
 *              BULK, MULTICAST: also a multiple of 16 * cluster_size); rounds 1..4096; at most 2^20 - 1 bytes
 *              through one of the 16 mbarriers (rounds / 16 rounded up, times a slot; MULTICAST: times
 *              bytes).
 * Determinism: sum and resident are repeatable; times and SM numbers are measurements.
 * Errors:      -EINVAL, -EOPNOTSUPP (a cluster size that the device does not allow), -EIO.
 * Source:      ClusterFusion (arXiv 2508.18850) figure 5; differs in: latency for each pair of SMs, all sizes
 *              1..16, pushes (ST_ASYNC, BULK, MULTICAST) too.
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
	size_t size;		/* sizeof(struct cairn_dsmem_args) */
	uint64_t *sum;
	int64_t *time;
	int32_t *pair_cycles, *smid, *resident;
	const void *src;
	int64_t src_bytes;
	uint64_t seed;
	int32_t test;		/* enum cairn_dsmem_test */
	int32_t cluster_size, num_clusters;
	int32_t bytes, rounds, smem_bytes;	/* smem_bytes: lower bound of the shared memory per CTA */
};

#ifdef __CUDACC__
#define CAIRN_DSMEM_INLINE static __host__ __device__ __forceinline__
#else
#define CAIRN_DSMEM_INLINE static inline
#endif

/* Returns word i of a CTA. It is cheap to compute inside a kernel, and in practice all words differ. */
CAIRN_DSMEM_INLINE uint64_t cairn_dsmem_word(uint64_t seed, uint32_t cta, uint32_t i)
{
	uint64_t x = (seed + (((uint64_t)cta << 32) | i)) * 0x9e3779b97f4a7c15ull;

	return x ^ (x >> 29);
}

CAIRN_DSMEM_INLINE uint64_t cairn_dsmem_weight(uint32_t i)
{
	return 2 * (uint64_t)i + 1;
}

/* Returns the link after link i of the chain in shared memory. The stride depends on the owner's rank. */
CAIRN_DSMEM_INLINE uint32_t cairn_dsmem_next_link(uint32_t i, uint32_t links, uint32_t owner)
{
	return (i + 2 * owner + 1) % links;
}

/* Returns the peer of rank r in round t. */
CAIRN_DSMEM_INLINE uint32_t cairn_dsmem_peer(uint32_t r, uint32_t cluster_size, uint32_t t)
{
	return cluster_size == 1 ? 0 : (r + 1 + t % (cluster_size - 1)) % cluster_size;
}

/* Returns the token that `rank` passes on after it has received x. */
CAIRN_DSMEM_INLINE uint64_t cairn_dsmem_token(uint64_t x, uint32_t rank)
{
	return x * 0x9e3779b97f4a7c15ull + rank + 1;
}

/*
 * Offset in bytes of cluster g's part of src (MULTICAST). It is the same in every round, so that no round
 * waits until a receiver has read the round before.
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
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_dsmem_check(const struct cairn_dsmem_args *args);

#ifdef __cplusplus
}
#endif
#endif
