/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_offchip - the same collectives through global memory, as a kernel without clusters would make them
 *
 * For comparison. The CTAs of a group are launched as a cluster, so that all are resident, but meet and
 * exchange in global memory (in practice the L2). No atomics; the order of reduction is that of the ranks.
 *   WORDS          8 bytes hold a word and the number of the call, a word a thread; readers poll the data
 *                  itself. One trip to the L2 and one back, no fence; twice the bytes.
 *   MAIL           the same with two words in 16 bytes, any number of them.
 *   MAIL_TWOSHOT   in two trips: rank r reduces the r-th chunk and mails it to all.
 *   FLAGS          16-byte stores and loads, a flag a rank with release and acquire at gpu scope.
 * Mailboxes come in two sets, by the argument in cluster_comm.cuh; a word is never mistaken for an older
 * one, for each call has its number. WORDS has more sets, used in turn: a call takes 770 cycles or 1040 by where in
 * the L2 its words lie, which nobody can choose, so that one place is no measure.
 *
 * Tried and lost: the small way through DSMEM. Strong stores and loads at cluster scope take the long way:
 * 2270 cycles among 2 ranks, where st.async takes a quarter of that; and racecheck takes the polling for a race.
 */
#ifndef CAIRN_CLUSTER_OFFCHIP_CUH
#define CAIRN_CLUSTER_OFFCHIP_CUH

#include "cluster.cuh"

#define CLUSTER_OFFCHIP_FLAGS	256	/* bytes; a word a rank */

#define CLUSTER_WORDS_SETS	16

/* Go on from enum cairn_cluster_algo: a kernel each */
enum cluster_offchip_way {
	CLUSTER_BY_FLAGS = CAIRN_CLUSTER_OFFCHIP,
	CLUSTER_BY_WORDS,
	CLUSTER_BY_MAIL,
	CLUSTER_BY_MAIL_TWOSHOT,
};

/* The fastest as measured (cluster_reduce.cu, cluster_gather.cu) */
CAIRN_CLUSTER_INLINE int cluster_offchip_pick_reduce(int n, uint32_t granules, int softmax)
{
	if (!softmax && granules <= 64)
		return CLUSTER_BY_WORDS;
	return !softmax && n > 8 && granules <= 1024 ? CLUSTER_BY_MAIL_TWOSHOT : CLUSTER_BY_FLAGS;
}

CAIRN_CLUSTER_INLINE int cluster_offchip_pick_gather(int n, uint32_t granules)
{
	return n * granules <= 1024 ? CLUSTER_BY_MAIL : CLUSTER_BY_FLAGS;
}

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

/* To be followed by cluster_sync(). mails: in both sets together, 0 for FLAGS. */
CLUSTER_FN void cluster_mailbox_init(struct cluster_mailbox *box, const struct cluster_comm *c, void *memory,
				     uint32_t mails)
{
	box->flags = (uint32_t *)memory;
	box->data = (unsigned char *)memory + CLUSTER_OFFCHIP_FLAGS;
	box->epoch = 1;
	box->set = 0;
	if (c->tid == 0)
		ptx_st_relaxed_gpu_u32(box->flags + c->rank, 0);
	/* what lies there must not look like a call's number */
	for (uint32_t i = c->rank * c->num_threads + c->tid; i < mails; i += c->size * c->num_threads)
		ptx_st_relaxed_gpu_v2_u64(box->data + (size_t)i * 16, make_uint4(0, 0, 0, 0));
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

/* From global to shared memory, all of it in flight */
CLUSTER_FN void cluster_fetch(const struct cluster_comm *c, uint32_t dst, const unsigned char *src,
			      uint32_t granules)
{
	for (uint32_t g = c->tid; g < granules; g += c->num_threads)
		ptx_cp_async_cg(dst + g * 16, src + (size_t)g * 16, 16);
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
}

CLUSTER_FN unsigned char *cluster_mailbox_set(const struct cluster_mailbox *box, size_t granules)
{
	return box->data + (box->set ? granules * 16 : 0);
}

/* Granules of a set: n messages and a result, twice for mails */
CAIRN_CLUSTER_INLINE size_t cluster_offchip_reduce_granules(size_t n, size_t granules, size_t ml_granules)
{
	return 2 * (n + 1) * granules + n * ml_granules;
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
	const uint32_t first = parts ? (uint32_t)cairn_cluster_chunk(&p->chunks, (int)c->rank) : 0;
	const uint32_t end = parts ? (uint32_t)cairn_cluster_chunk(&p->chunks, (int)c->rank + 1) : granules;
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

CLUSTER_FN void cluster_mail_end_call(const struct cluster_comm *c, struct cluster_mailbox *box)
{
	box->epoch++;
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* ---- a word and the number of the call in 8 bytes ---- */

/*
 * Cycles from the store to the first look. A load that comes too early is in the way of what it looks for; what is
 * best was measured (512 places of mailboxes, medians): 2 ranks 774, 4 977 -> 873, 8 1085 -> 1015, 16 1109 -> 1028.
 */
CLUSTER_FN int64_t cluster_words_pause(int most)
{
	return most <= 2 ? 0 : most <= 4 ? 40 : most <= 8 ? 120 : 40;
}

/* A word a thread at most, no SOFTMAX. most: >= size; all loads are in flight at once, without branches. */
template <int dtype, int most>
CLUSTER_FN void cluster_words_all_reduce(const struct cluster_comm *c, struct cluster_mailbox *box, uint32_t words,
					 int op, const struct cluster_buffers *b)
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif
	uint64_t *at = (uint64_t *)box->data + (size_t)box->set * c->size * words + c->tid;

	if (c->tid < words) {
		uint32_t raw[most];
		int missing;

		ptx_st_relaxed_gpu_u64(at + (size_t)c->rank * words,
				       (uint64_t)box->epoch << 32 | ptx_ld_shared_b32(b->src + c->tid * 4));
		if (cluster_words_pause(most))
			for (int64_t now = ptx_clock64(); ptx_clock64() - now < cluster_words_pause(most);)
				;
		do {
			uint64_t v[most];

			missing = 0;
#pragma unroll
			for (uint32_t r = 0; r < most; r++)
				v[r] = ptx_ld_relaxed_gpu_u64(at + (size_t)(r < c->size ? r : c->size - 1) * words);
#pragma unroll
			for (uint32_t r = 0; r < most; r++) {
				missing |= (uint32_t)(v[r] >> 32) != box->epoch;
				raw[r] = (uint32_t)v[r];
			}
			ptx_spin_check(start, "words (number of the call)", box->epoch, 0);
		} while (missing);
		ptx_st_shared_b32(b->dst + c->tid * 4, op == CAIRN_CLUSTER_SUM ?
				  cluster_reduce_raw<dtype, 0, most, 0, 1>(raw, NULL, c->size, 1) :
				  cluster_reduce_raw<dtype, 0, most, 0, 0>(raw, NULL, c->size,
									   op == CAIRN_CLUSTER_MIN ? -1 : 1));
	}
	box->epoch++;
	box->set = (box->set + 1) % CLUSTER_WORDS_SETS;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* ---- mails: .x and .z are words, .y and .w the number of the call that each belongs to ---- */

#ifndef CLUSTER_MAIL_FLIGHT
#define CLUSTER_MAIL_FLIGHT	16	/* loads that a thread has in flight: while it reduces, */
#endif
#ifndef CLUSTER_MAIL_FETCH
#define CLUSTER_MAIL_FETCH	16	/* while it only fetches */
#endif

CLUSTER_FN uint4 cluster_mail(uint2 words, uint32_t epoch)
{
	return make_uint4(words.x, epoch, words.y, epoch);
}

/* Pairs [0, pairs) of words, but [skip, skip_end) */
CLUSTER_FN void cluster_mail_send(const struct cluster_comm *c, unsigned char *to, uint32_t src, uint32_t pairs,
				  uint32_t skip, uint32_t skip_end, uint32_t epoch)
{
#pragma unroll 4
	for (uint32_t i = c->tid; i < pairs; i += c->num_threads)
		if (i < skip || i >= skip_end)
			ptx_st_relaxed_gpu_v2_u64(to + i * 16, cluster_mail(ptx_ld_shared_v2(src + i * 8), epoch));
}

/* Until v[r][j], loaded from first + r * stride + at[j], are all of this call. What has come is not loaded again. */
template <int ranks, int batch>
CLUSTER_FN void cluster_mail_await(uint4 (*v)[batch], const unsigned char *first, uint32_t stride, const uint32_t *at,
				   uint32_t epoch)
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif

	for (;;) {
		uint32_t missing = 0;

#pragma unroll
		for (int r = 0; r < ranks; r++)
#pragma unroll
			for (int j = 0; j < batch; j++)
				missing |= (v[r][j].y ^ epoch) | (v[r][j].w ^ epoch);
		if (!missing)
			break;
#pragma unroll
		for (int r = 0; r < ranks; r++)
#pragma unroll
			for (int j = 0; j < batch; j++)
				if (v[r][j].y != epoch || v[r][j].w != epoch)
					v[r][j] = ptx_ld_relaxed_gpu_v2_u64(first + (r * stride + at[j]));
		ptx_spin_check(start, "mails (number of the call)", epoch, 0);
	}
}

/* Mails [0, pairs) to dst, but [skip, skip_end) */
template <int batch>
CLUSTER_FN void cluster_mail_fetch(const struct cluster_comm *c, uint32_t dst, const unsigned char *from,
				   uint32_t pairs, uint32_t skip, uint32_t skip_end, uint32_t epoch)
{
	for (uint32_t first = c->tid; first < pairs; first += batch * c->num_threads) {
		uint32_t at[batch];
		uint4 v[1][batch];

#pragma unroll
		for (int j = 0; j < batch; j++) {
			const uint32_t i = first + j * c->num_threads;

			at[j] = i * 16;
			v[0][j] = cluster_mail(make_uint2(0, 0), epoch);
			if (i < pairs && (i < skip || i >= skip_end))
				v[0][j] = ptx_ld_relaxed_gpu_v2_u64(from + at[j]);
		}
		cluster_mail_await<1, batch>(v, from, 0, at, epoch);
#pragma unroll
		for (int j = 0; j < batch; j++) {
			const uint32_t i = first + j * c->num_threads;

			if (i < pairs && (i < skip || i >= skip_end))
				ptx_st_shared_v2(dst + i * 8, make_uint2(v[0][j].x, v[0][j].z));
		}
	}
}

CLUSTER_FN void cluster_mail_fetch_any(const struct cluster_comm *c, uint32_t dst, const unsigned char *from,
				       uint32_t pairs, uint32_t skip, uint32_t skip_end, uint32_t epoch)
{
	if (pairs <= 4 * c->num_threads)
		cluster_mail_fetch<4>(c, dst, from, pairs, skip, skip_end, epoch);
	else
		cluster_mail_fetch<CLUSTER_MAIL_FETCH>(c, dst, from, pairs, skip, skip_end, epoch);
}

/* Pairs [first, end) of all ranks, reduced to b->dst, and if `results` is not NULL mailed there too. most: >= size */
template <int dtype, int most, int batch>
CLUSTER_FN void cluster_mail_reduce(const struct cluster_comm *c, const unsigned char *mails, uint32_t pairs, int op,
				    const struct cluster_buffers *b, uint32_t first, uint32_t end,
				    unsigned char *results, uint32_t epoch)
{
	for (uint32_t i = first + c->tid; i < end; i += batch * c->num_threads) {
		uint4 v[most][batch], own[batch];
		uint32_t at[batch];

#pragma unroll
		for (int j = 0; j < batch; j++) {	/* past the end, the first one again */
			const uint32_t k = i + j * c->num_threads < end ? i + j * c->num_threads : i;

			at[j] = k * 16;
			own[j] = cluster_mail(ptx_ld_shared_v2(b->src + k * 8), epoch);
		}
#pragma unroll
		for (int r = 0; r < most; r++)
#pragma unroll
			for (int j = 0; j < batch; j++) {
				v[r][j] = own[j];
				if (r < (int)c->size && r != (int)c->rank)
					v[r][j] = ptx_ld_relaxed_gpu_v2_u64(mails + (r * pairs * 16 + at[j]));
			}
		cluster_mail_await<most, batch>(v, mails, pairs * 16, at, epoch);
#pragma unroll
		for (int j = 0; j < batch; j++) {
			uint32_t raw[2][most], out[2];

#pragma unroll
			for (int r = 0; r < most; r++) {
				raw[0][r] = v[r][j].x;
				raw[1][r] = v[r][j].z;
			}
#pragma unroll
			for (int k = 0; k < 2; k++)
				out[k] = op == CAIRN_CLUSTER_SUM ?
					cluster_reduce_raw<dtype, 0, most, 0, 1>(raw[k], NULL, c->size, 1) :
					cluster_reduce_raw<dtype, 0, most, 0, 0>(raw[k], NULL, c->size,
										 op == CAIRN_CLUSTER_MIN ? -1 : 1);
			if (results)
				ptx_st_relaxed_gpu_v2_u64(results + at[j],
							  cluster_mail(make_uint2(out[0], out[1]), epoch));
			ptx_st_shared_v2(b->dst + at[j] / 2, make_uint2(out[0], out[1]));
		}
	}
}

/* way: MAIL or MAIL_TWOSHOT; dst and src not the same. No SOFTMAX. */
template <int way, int dtype, int most>
CLUSTER_FN void cluster_mail_all_reduce(const struct cluster_comm *c, struct cluster_mailbox *box, uint32_t granules,
					int op, const struct cluster_buffers *b)
{
	const int twoshot = way == CLUSTER_BY_MAIL_TWOSHOT;
	const uint32_t pairs = 2 * granules;
	const struct cairn_cluster_chunks k = cairn_cluster_chunks((int)pairs, (int)c->size);
	const uint32_t first = twoshot ? (uint32_t)cairn_cluster_chunk(&k, (int)c->rank) : 0;
	const uint32_t end = twoshot ? (uint32_t)cairn_cluster_chunk(&k, (int)c->rank + 1) : pairs;
	unsigned char *set = cluster_mailbox_set(box, cluster_offchip_reduce_granules(c->size, granules, 0));
	unsigned char *results = twoshot ? set + (size_t)c->size * pairs * 16 : NULL;

	cluster_mail_send(c, set + (size_t)c->rank * pairs * 16, b->src, pairs, first, twoshot ? end : first, box->epoch);
	if (end - first <= c->num_threads)
		cluster_mail_reduce<dtype, most, 1>(c, set, pairs, op, b, first, end, results, box->epoch);
	else
		cluster_mail_reduce<dtype, most, CLUSTER_MAIL_FLIGHT / most>(c, set, pairs, op, b, first, end, results,
									     box->epoch);
	if (twoshot)
		cluster_mail_fetch_any(c, b->dst, results, pairs, first, end, box->epoch);
	cluster_mail_end_call(c, box);
}

/* dst: [size][granules] */
CLUSTER_FN void cluster_mail_gather(const struct cluster_comm *c, struct cluster_mailbox *box, uint32_t dst,
				    uint32_t src, uint32_t granules)
{
	const uint32_t pairs = 2 * granules, first = c->rank * pairs, all = c->size * pairs;
	unsigned char *set = cluster_mailbox_set(box, (size_t)c->size * pairs);

	cluster_mail_send(c, set + (size_t)first * 16, src, pairs, 0, 0, box->epoch);
	for (uint32_t g = c->tid; g < granules; g += c->num_threads)
		ptx_st_shared_v4(dst + (c->rank * granules + g) * 16, ptx_ld_shared_v4(src + g * 16));
	cluster_mail_fetch_any(c, dst, set, all, first, first + pairs, box->epoch);
	cluster_mail_end_call(c, box);
}
#endif
