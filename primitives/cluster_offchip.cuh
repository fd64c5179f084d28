/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_offchip - the same collectives through global memory, as a kernel without clusters would make them
 *
 * For comparison. The CTAs of a group are launched as a cluster, so that all are resident, but meet and
 * exchange in global memory (in practice the L2). No atomics; the order of reduction is that of the ranks.
 *   small   a word a thread at most: 8 bytes hold a word and the number of the call; readers poll the data
 *           itself. One trip to the L2 and one back, no fence.
 *   large   16-byte stores and loads, a flag a rank with release and acquire at gpu scope.
 * Mailboxes come in two sets, by the argument in cluster_comm.cuh; a word is never mistaken for an older
 * one, for each call has its number.
 *
 * Tried and lost: the small way through DSMEM. Strong stores and loads at cluster scope take the long way:
 * 2270 cycles among 2 ranks, where st.async takes a quarter of that; and racecheck takes the polling for a race.
 */
#ifndef CAIRN_CLUSTER_OFFCHIP_CUH
#define CAIRN_CLUSTER_OFFCHIP_CUH

#include "cluster.cuh"

#define CLUSTER_OFFCHIP_FLAGS	256	/* bytes; a word a rank */

struct cluster_mailbox {
	unsigned char *data;
	uint32_t *flags;
	uint32_t epoch;			/* of the next meeting or call */
	uint32_t set;
};

/* Bytes of global memory a group needs: flags, and two sets of `granules`. */
CAIRN_CLUSTER_INLINE size_t cluster_offchip_bytes(size_t granules)
{
	return CLUSTER_OFFCHIP_FLAGS + 2 * granules * 16;
}

/* To be followed by cluster_sync(). words: 8-byte mailboxes in both sets together, 0 if messages are large. */
CLUSTER_FN void cluster_mailbox_init(struct cluster_mailbox *box, const struct cluster_comm *c, void *memory,
				     uint32_t words)
{
	box->flags = (uint32_t *)memory;
	box->data = (unsigned char *)memory + CLUSTER_OFFCHIP_FLAGS;
	box->epoch = 1;
	box->set = 0;
	if (c->tid == 0)
		ptx_st_relaxed_gpu_u32(box->flags + c->rank, 0);
	/* what lies in the mailboxes for words must not look like a call's number */
	for (uint32_t i = c->rank * c->num_threads + c->tid; i < words; i += c->size * c->num_threads)
		ptx_st_relaxed_gpu_u64((uint64_t *)box->data + i, 0);
}

/* What any thread of any rank wrote before, all threads of all ranks may read after. */
CLUSTER_FN void cluster_meet(const struct cluster_comm *c, struct cluster_mailbox *box)
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif

	ptx_bar_sync(c->bar_id, c->num_threads);
	if (c->tid == 0)
		ptx_st_release_gpu_u32(box->flags + c->rank, box->epoch);
	if (c->tid < c->size)
		while ((int32_t)(ptx_ld_acquire_gpu_u32(box->flags + c->tid) - box->epoch) < 0)
			ptx_spin_check(start, "flag of rank (rank, epoch)", c->tid, box->epoch);
	box->epoch++;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* From global to shared memory, eight loads a thread in flight */
CLUSTER_FN void cluster_fetch(const struct cluster_comm *c, uint32_t dst, const unsigned char *src, uint32_t granules)
{
	for (uint32_t first = c->tid; first < granules; first += 8 * c->num_threads) {
		uint4 v[8];

#pragma unroll
		for (uint32_t k = 0; k < 8; k++)
			if (first + k * c->num_threads < granules)
				v[k] = *(const uint4 *)(src + (size_t)(first + k * c->num_threads) * 16);
#pragma unroll
		for (uint32_t k = 0; k < 8; k++)
			if (first + k * c->num_threads < granules)
				ptx_st_shared_v4(dst + (first + k * c->num_threads) * 16, v[k]);
	}
}

CLUSTER_FN unsigned char *cluster_mailbox_set(const struct cluster_mailbox *box, size_t granules)
{
	return box->data + (box->set ? granules * 16 : 0);
}

/* Granules of a set: n messages, and the result of the two-phase way; the small way needs twice its data. */
CAIRN_CLUSTER_INLINE size_t cluster_offchip_reduce_granules(size_t n, size_t granules, size_t ml_granules)
{
	return n * (2 * granules + ml_granules) + granules;
}

/* Granules [first, end) of all ranks, reduced to `result` in global memory, or if that is NULL to dst */
template <int dtype, int softmax, int most>
CLUSTER_FN void cluster_offchip_granules(struct cluster_comm *c, const struct cluster_plan *p, int op,
					 const struct cluster_terms *t, uint32_t first, uint32_t end,
					 unsigned char *result, uint32_t dst)
{
	constexpr int batch = most <= 4 && !softmax ? 4 : 1;
	const float sign = op == CAIRN_CLUSTER_MIN ? -1 : 1;
	uint32_t at[most];

#pragma unroll
	for (uint32_t r = 0; r < most; r++)
		at[r] = cluster_term<1>(t, r < t->n ? r : t->n - 1);
	for (uint32_t g = first + c->tid; g < end; g += batch * c->num_threads) {
		uint4 v[batch];

#pragma unroll
		for (int k = 0; k < batch; k++) {	/* no branch: all loads in flight */
			const uint32_t id = g + k * c->num_threads < end ? g + k * c->num_threads : end - 1;
			const uint64_t base = t->base + id * 16;
			float w[most];

			if constexpr (softmax)
				cluster_row_weights<1, most>(t, cluster_row<dtype>(p, id * 4), w);
			v[k] = softmax || op == CAIRN_CLUSTER_SUM ?
				cluster_reduce_granule<dtype, softmax, 1, most, 1>(base, at, w, t->n, 1) :
				cluster_reduce_granule<dtype, softmax, 1, most, 0>(base, at, w, t->n, sign);
		}
#pragma unroll
		for (int k = 0; k < batch; k++) {
			const uint32_t id = g + k * c->num_threads;

			if (id < end && result)
				*(uint4 *)(result + (size_t)id * 16) = v[k];
			else if (id < end)
				ptx_st_shared_v4(dst + id * 16, v[k]);
		}
	}
}

/* One meeting, and everyone reads and reduces everything; above 32 KB two meetings, and everyone a part. */
template <int dtype, int softmax>
CLUSTER_FN void cluster_offchip_reduce(struct cluster_comm *c, struct cluster_mailbox *box, const struct cluster_plan *p,
				       int op, const struct cluster_buffers *b)
{
	const uint32_t n = c->size, granules = p->total, message = granules + (softmax ? p->ml_granules : 0);
	unsigned char *set = cluster_mailbox_set(box, cluster_offchip_reduce_granules(n, granules, message - granules));
	unsigned char *result = set + (size_t)n * message * 16;
	const int parts = (n - 1) * granules > 2048;
	const struct cairn_cluster_chunks k = cairn_cluster_chunks((int)granules, (int)n);
	const uint32_t first = parts ? (uint32_t)cairn_cluster_chunk(&k, (int)c->rank) : 0;
	const uint32_t end = parts ? (uint32_t)cairn_cluster_chunk(&k, (int)c->rank + 1) : granules;
	const struct cluster_terms t = { (uint64_t)set, 0, (uint64_t)set + granules * 16, 0, message * 16, message * 16,
					 ~0u, n };

	for (uint32_t g = c->tid; g < message; g += c->num_threads)
		*(uint4 *)(set + ((size_t)c->rank * message + g) * 16) =
			ptx_ld_shared_v4(cluster_message_at(b, granules, g));
	cluster_meet(c, box);
	if (n <= 4)
		cluster_offchip_granules<dtype, softmax, 4>(c, p, op, &t, first, end, parts ? result : NULL, b->dst);
	else
		cluster_offchip_granules<dtype, softmax, 16>(c, p, op, &t, first, end, parts ? result : NULL, b->dst);
	if (softmax)
		cluster_reduce_rows<1>(c, p, t, b->dst_ml);
	if (parts) {
		cluster_meet(c, box);
		cluster_fetch(c, b->dst, result, granules);
	}
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/*
 * words[k] = the word at first + k * step, k < count <= most, once it is of this call. All loads of a
 * round are in flight at once, without branches: one trip to the L2 a round, not one a word.
 */
template <int most>
CLUSTER_FN void cluster_poll_words(const uint64_t *first, uint32_t step, uint32_t count, uint32_t epoch, uint32_t *words)
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif
	uint64_t v[most];
	int missing;

	do {
		missing = 0;
#pragma unroll
		for (uint32_t k = 0; k < most; k++)
			v[k] = ptx_ld_relaxed_gpu_u64(first + (size_t)(k < count ? k : count - 1) * step);
#pragma unroll
		for (uint32_t k = 0; k < most; k++)
			missing |= (uint32_t)(v[k] >> 32) != epoch;
		ptx_spin_check(start, "words (number of the call)", epoch, 0);
	} while (missing);
#pragma unroll
	for (uint32_t k = 0; k < most; k++)
		words[k] = (uint32_t)v[k];
}

/* At most a word a thread, no SOFTMAX */
template <int dtype>
CLUSTER_FN void cluster_offchip_reduce_small(struct cluster_comm *c, struct cluster_mailbox *box, uint32_t words, int op,
					     const struct cluster_buffers *b)
{
	uint64_t *at = (uint64_t *)box->data + (box->set ? (size_t)c->size * words : 0) + c->tid;

	if (c->tid < words) {
		uint32_t raw[CAIRN_CLUSTER_MAX_SIZE] = { 0 };

		ptx_st_relaxed_gpu_u64(at + (size_t)c->rank * words,
				       (uint64_t)box->epoch << 32 | ptx_ld_shared_b32(b->src + c->tid * 4));
		if (c->size <= 4)
			cluster_poll_words<4>(at, words, c->size, box->epoch, raw);
		else
			cluster_poll_words<16>(at, words, c->size, box->epoch, raw);
		ptx_st_shared_b32(b->dst + c->tid * 4, op == CAIRN_CLUSTER_SUM ?
				  cluster_reduce_raw<dtype, 0, 16, 0, 1>(raw, NULL, c->size, 1) :
				  cluster_reduce_raw<dtype, 0, 16, 0, 0>(raw, NULL, c->size,
									 op == CAIRN_CLUSTER_MIN ? -1 : 1));
	}
	box->epoch++;
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* A block of at most a word a thread; dst: [size][words] */
CLUSTER_FN void cluster_offchip_gather_small(struct cluster_comm *c, struct cluster_mailbox *box, uint32_t dst,
					     uint32_t src, uint32_t words)
{
	const uint32_t all = c->size * words;
	uint64_t *set = (uint64_t *)box->data + (box->set ? all : 0);

	if (c->tid < words)
		ptx_st_relaxed_gpu_u64(set + c->rank * words + c->tid,
				       (uint64_t)box->epoch << 32 | ptx_ld_shared_b32(src + c->tid * 4));
	for (uint32_t first = c->tid; first < all; first += 8 * c->num_threads) {
		const uint32_t left = (all - first + c->num_threads - 1) / c->num_threads;
		uint32_t got[8];

		cluster_poll_words<8>(set + first, c->num_threads, left, box->epoch, got);
#pragma unroll
		for (uint32_t k = 0; k < 8; k++)
			if (k < left)
				ptx_st_shared_b32(dst + (first + k * c->num_threads) * 4, got[k]);
	}
	box->epoch++;
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* dst: [size][granules], one set is enough: nobody else writes it */
CLUSTER_FN void cluster_offchip_gather(struct cluster_comm *c, struct cluster_mailbox *box, uint32_t dst,
				       uint32_t src, uint32_t granules)
{
	unsigned char *set = cluster_mailbox_set(box, (size_t)c->size * granules);

	for (uint32_t g = c->tid; g < granules; g += c->num_threads)
		*(uint4 *)(set + ((size_t)c->rank * granules + g) * 16) = ptx_ld_shared_v4(src + g * 16);
	cluster_meet(c, box);
	cluster_fetch(c, dst, set, c->size * granules);
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}
#endif
