/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_schedule - the messages of the cluster collectives: sender, receiver and range for every step
 *
 * The kernels, the CPU versions and the tests share these functions. The tests run on a CPU for every cluster
 * size and therefore check the very schedule that the kernels run.
 *
 * Data is counted in granules of 16 bytes, the unit of a vector store and of a bulk copy: a buffer of
 * len elements is padded to whole granules. In each step every rank sends one message and receives one.
 *
 *   all-reduce of G granules over N ranks     steps       sent by a rank       all ranks, bytes; size = 16 G
 *   ONESHOT                                   N - 1       (N-1) G              size N (N-1)
 *   TWOSHOT, RING                             2 (N - 1)   2 (N-1)/N G          size 2 (N-1)
 *   TREE (algorithm 1)                        log2 N      log2(N) G            size N log2 N
 *
 *   all-gather of G granules per rank
 *   ONESHOT, RING, TREE (algorithm 2)         N - 1, N - 1, log2 N   (N-1) G       size N (N-1)
 *
 * The totals of TREE and of the all-gather are the source's Traffic_Reduce and Traffic_Gather. RING and TREE
 * of the all-reduce send partial sums, in fp32 for every data type; the other algorithms send the data
 * unchanged.
 */
#ifndef CAIRN_CLUSTER_SCHEDULE_H
#define CAIRN_CLUSTER_SCHEDULE_H

#include <stdint.h>

#define CAIRN_CLUSTER_MAX_SIZE	16	/* CTAs, on sm_90; sizes above 8 are not portable */
#define CAIRN_CLUSTER_GRANULE	16	/* bytes */

enum cairn_cluster_op {
	CAIRN_CLUSTER_SUM = 0,
	CAIRN_CLUSTER_MAX = 1,
	CAIRN_CLUSTER_MIN = 2,
	CAIRN_CLUSTER_SOFTMAX = 3,
	CAIRN_CLUSTER_NUM_OPS
};

enum cairn_cluster_algo {
	CAIRN_CLUSTER_AUTO = 0,
	CAIRN_CLUSTER_ONESHOT = 1,
	CAIRN_CLUSTER_TWOSHOT = 2,
	CAIRN_CLUSTER_RING = 3,
	CAIRN_CLUSTER_TREE = 4,
	CAIRN_CLUSTER_OFFCHIP = 5,
	CAIRN_CLUSTER_NUM_ALGOS
};

#ifdef __CUDACC__
#define CAIRN_CLUSTER_INLINE static __host__ __device__ __forceinline__
#else
#define CAIRN_CLUSTER_INLINE static inline
#endif

CAIRN_CLUSTER_INLINE int cairn_cluster_is_pow2(int n)
{
	return n > 0 && !(n & (n - 1));
}

/* Returns the smallest k with 2^k >= n. */
CAIRN_CLUSTER_INLINE int cairn_cluster_log2(int n)
{
	int k = 0;

	while (1 << k < n)
		k++;
	return k;
}

/* Returns (rank + d) mod n for -n <= d <= n, without a division. */
CAIRN_CLUSTER_INLINE int cairn_cluster_wrap(int rank, int d, int n)
{
	int r = rank + d;

	return r < 0 ? r + n : r >= n ? r - n : r;
}

/*
 * Divides a buffer of `granules` into n chunks of `per` granules; the first `rest` chunks have one more.
 * Chunk c begins at granule c * per + min(c, rest).
 */
struct cairn_cluster_chunks {
	int32_t granules, per, rest;
};

CAIRN_CLUSTER_INLINE struct cairn_cluster_chunks cairn_cluster_chunks(int granules, int n)
{
	struct cairn_cluster_chunks k = { granules, granules / n, granules % n };

	return k;
}

/* Returns the first granule of chunk c, which ends where chunk c + 1 begins. */
CAIRN_CLUSTER_INLINE int cairn_cluster_chunk(const struct cairn_cluster_chunks *k, int c)
{
	return c * k->per + (c < k->rest ? c : k->rest);
}

CAIRN_CLUSTER_INLINE int cairn_cluster_chunk_max(const struct cairn_cluster_chunks *k)
{
	return k->per + (k->rest > 0);
}

/*
 * The messages a rank sends and receives in one step: ranges of granules (all-reduce) or blocks
 * (all-gather).
 */
struct cairn_cluster_msg {
	int32_t to, from;			/* ranks */
	int32_t send_first, send_count;
	int32_t recv_first, recv_count;
};

/* ---- all-reduce ---- */

CAIRN_CLUSTER_INLINE int cairn_cluster_reduce_steps(int algo, int n)
{
	return algo == CAIRN_CLUSTER_ONESHOT ? n - 1 :
	       algo == CAIRN_CLUSTER_TWOSHOT || algo == CAIRN_CLUSTER_RING ? 2 * (n - 1) :
	       algo == CAIRN_CLUSTER_TREE ? cairn_cluster_log2(n) : 0;
}

/* Returns 1 if the step delivers final values in place, 0 if the receiver combines them with its own. */
CAIRN_CLUSTER_INLINE int cairn_cluster_reduce_is_final(int algo, int n, int step)
{
	return (algo == CAIRN_CLUSTER_TWOSHOT || algo == CAIRN_CLUSTER_RING) && step >= n - 1;
}

/*
 * Returns the message of `rank` in one step of an all-reduce.
 *   TWOSHOT  first half: all ranks send chunk c to rank c; second half: rank c sends chunk c, reduced, to all
 *   RING     first half: rank b adds its own values to chunk b - step and passes it on, so that chunk c is
 *            complete at rank c - 1, summed in the order c, c + 1, ..., c - 1; second half: the complete
 *            chunks travel round the ring
 * ONESHOT and TWOSHOT send to the next rank first, so that every rank has a different first target.
 */
CAIRN_CLUSTER_INLINE struct cairn_cluster_msg
cairn_cluster_reduce_msg(int algo, int n, int rank, int step, const struct cairn_cluster_chunks *k)
{
	struct cairn_cluster_msg m = { 0, 0, 0, k->granules, 0, k->granules };
	const int half = step >= n - 1;
	const int s = half ? step - (n - 1) : step;
	int send = 0, recv = 0;

	switch (algo) {
	case CAIRN_CLUSTER_TREE:
		m.to = cairn_cluster_wrap(rank, 1 << step, n);
		m.from = cairn_cluster_wrap(rank, -(1 << step), n);
		return m;
	case CAIRN_CLUSTER_RING:
		m.to = cairn_cluster_wrap(rank, 1, n);
		m.from = cairn_cluster_wrap(rank, -1, n);
		send = cairn_cluster_wrap(rank, half - s, n);
		recv = cairn_cluster_wrap(send, -1, n);
		break;
	default:
		m.to = cairn_cluster_wrap(rank, 1 + s, n);
		m.from = cairn_cluster_wrap(rank, -1 - s, n);
		if (algo == CAIRN_CLUSTER_ONESHOT)
			return m;
		send = half ? rank : m.to;
		recv = half ? m.from : rank;
	}
	m.send_first = cairn_cluster_chunk(k, send);
	m.send_count = cairn_cluster_chunk(k, send + 1) - m.send_first;
	m.recv_first = cairn_cluster_chunk(k, recv);
	m.recv_count = cairn_cluster_chunk(k, recv + 1) - m.recv_first;
	return m;
}

/* Returns the bytes that all ranks together send through DSMEM. */
CAIRN_CLUSTER_INLINE int64_t cairn_cluster_reduce_bytes(int algo, int n, int granules)
{
	const struct cairn_cluster_chunks k = cairn_cluster_chunks(granules, n);
	int64_t sum = 0;
	int rank, step;

	for (step = 0; step < cairn_cluster_reduce_steps(algo, n); step++)
		for (rank = 0; rank < n; rank++)
			sum += cairn_cluster_reduce_msg(algo, n, rank, step, &k).send_count;
	return sum * CAIRN_CLUSTER_GRANULE;
}

/* Returns AUTO's choice: TWOSHOT if ONESHOT sent more than 8 KB per rank (measured: cluster_reduce.cu). */
CAIRN_CLUSTER_INLINE int cairn_cluster_reduce_pick(int n, int bytes)
{
	return (n - 1) * (int64_t)bytes > 8192 ? CAIRN_CLUSTER_TWOSHOT : CAIRN_CLUSTER_ONESHOT;
}

/* ---- all-gather: a message holds blocks first, first + 1, ..., first + count - 1, all modulo n ---- */

CAIRN_CLUSTER_INLINE int cairn_cluster_gather_steps(int algo, int n)
{
	return algo == CAIRN_CLUSTER_OFFCHIP ? 0 : algo == CAIRN_CLUSTER_TREE ? cairn_cluster_log2(n) : n - 1;
}

/*
 * TREE: with stride = 2^step, rank b holds blocks b - stride + 1 .. b and sends them all to rank b + stride.
 */
CAIRN_CLUSTER_INLINE struct cairn_cluster_msg
cairn_cluster_gather_msg(int algo, int n, int rank, int step)
{
	struct cairn_cluster_msg m = { 0, 0, rank, 1, 0, 1 };

	switch (algo) {
	case CAIRN_CLUSTER_TREE:
		m.to = cairn_cluster_wrap(rank, 1 << step, n);
		m.from = cairn_cluster_wrap(rank, -(1 << step), n);
		m.send_first = cairn_cluster_wrap(rank, 1 - (1 << step), n);
		m.recv_first = cairn_cluster_wrap(m.from, 1 - (1 << step), n);
		m.send_count = m.recv_count = 1 << step;
		break;
	case CAIRN_CLUSTER_RING:
		m.to = cairn_cluster_wrap(rank, 1, n);
		m.from = cairn_cluster_wrap(rank, -1, n);
		m.send_first = cairn_cluster_wrap(rank, -step, n);
		m.recv_first = cairn_cluster_wrap(m.send_first, -1, n);
		break;
	default:
		m.to = cairn_cluster_wrap(rank, 1 + step, n);
		m.from = cairn_cluster_wrap(rank, -1 - step, n);
		m.recv_first = m.from;
	}
	return m;
}

CAIRN_CLUSTER_INLINE int64_t cairn_cluster_gather_bytes(int algo, int n, int granules)
{
	return algo == CAIRN_CLUSTER_OFFCHIP ? 0 : (int64_t)n * (n - 1) * granules * CAIRN_CLUSTER_GRANULE;
}

#endif
