/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_offchip - the collectives through global memory, as a kernel without clusters would run them
 *
 * This is the comparison for the on-chip collectives. The CTAs of a group are launched as a cluster, so that
 * all are resident, but synchronise and exchange data in global memory (in practice the L2). There are no
 * atomics, and reductions are in rank order.
 *   LL             LL words: 8 bytes hold a word and the call number, one word per thread; readers poll the
 *                  data itself. Takes one store to the L2, one load from it and no fence, but twice the
 *                  bytes.
 *   MAIL           LL words in pairs: a mail is 16 bytes with two words and a call number for each. For any
 *                  number of words.
 *   MAIL_TWOSHOT   two rounds of mails: rank r reduces chunk r and mails it to all ranks.
 *   FLAGS          16-byte stores and loads, and one flag per rank with release and acquire at gpu scope.
 * Mailboxes come in two sets, for the reason given in cluster_comm.cuh. An older word cannot be mistaken for
 * a new one, because words carry the call number. LL has more sets, which are used in turn, because a call
 * among 2 ranks takes 520 or 670 cycles depending on where in the L2 its words lie. Software cannot choose
 * that, so measuring a single place would not be fair.
 *
 * The cluster size should be a compile-time constant: LL of 256 B then takes 534 / 587 / 650 / 967 cycles
 * (sizes 2 / 4 / 8 / 16). The instance for any size, which always loads 16 words per thread, takes 853 / 867
 * / 968 / 1045. MAIL of 4 KB among 2 ranks takes 1155 cycles with a constant size and 4600 without.
 *
 * Optimisation history: NOTES.md.
 */
#ifndef CAIRN_CLUSTER_OFFCHIP_CUH
#define CAIRN_CLUSTER_OFFCHIP_CUH

#include "primitives/cluster/cluster.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define CLUSTER_OFFCHIP_FLAGS	256	/* bytes reserved for the flags, one 4-byte word per rank */

#define CLUSTER_LL_SETS	16

/* Continues enum cairn_cluster_algo; there is a kernel for each. */
enum cluster_offchip_way {
	CLUSTER_BY_FLAGS = CAIRN_CLUSTER_OFFCHIP,
	CLUSTER_BY_LL,
	CLUSTER_BY_MAIL,
	CLUSTER_BY_MAIL_TWOSHOT,
};

/* Both return the fastest way as measured (cluster_reduce.cu, cluster_gather.cu). */
CAIRN_CLUSTER_INLINE int cluster_offchip_pick_reduce(int n, uint32_t granules, int softmax)
{
	if (softmax || granules > (n <= 2 ? 1024 : 512))
		return CLUSTER_BY_FLAGS;
	if (granules <= 64)
		return CLUSTER_BY_LL;
	return n <= 4 || (n <= 8 && granules <= 128) ? CLUSTER_BY_MAIL : CLUSTER_BY_MAIL_TWOSHOT;
}

CAIRN_CLUSTER_INLINE int cluster_offchip_pick_gather(int n, uint32_t granules)
{
	if (granules <= 32)
		return CLUSTER_BY_LL;
	return n * granules <= 1024 ? CLUSTER_BY_MAIL : CLUSTER_BY_FLAGS;
}

struct cluster_mailbox {
	unsigned char *data;		/* the sets, in global memory */
	uint32_t *flags;		/* one per rank: the number of flag barriers the rank has reached */
	uint32_t epoch;			/* number of the next flag barrier or call */
	uint32_t set;			/* set of the next call */
};

/* Returns the bytes of global memory that a group needs: flags, and two sets of `granules`. */
CAIRN_CLUSTER_INLINE size_t cluster_offchip_bytes(size_t granules)
{
	return CLUSTER_OFFCHIP_FLAGS + 2 * granules * 16;
}

/* The caller must call cluster_sync() afterwards. mails: 16-byte units in all sets together, 0 for FLAGS. */
CLUSTER_FN void cluster_mailbox_init(struct cluster_mailbox *box, const struct cluster_comm *c, void *memory,
				     uint32_t mails)
{
	box->flags = (uint32_t *)memory;
	box->data = (unsigned char *)memory + CLUSTER_OFFCHIP_FLAGS;
	box->epoch = 1;
	box->set = 0;
	if (c->tid == 0)
		ptx_st_relaxed_gpu_u32(box->flags + c->rank, 0);
	/* old contents of the memory must not look like a call number */
	for (uint32_t i = c->rank * c->num_threads + c->tid; i < mails; i += c->size * c->num_threads)
		ptx_st_relaxed_gpu_v2_u64(box->data + (size_t)i * 16, make_uint4(0, 0, 0, 0));
}

/*
 * Flag barrier among the ranks of the group: whatever any of their threads wrote before it is visible to all
 * of their threads after it.
 */
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

/*
 * Copies granules [0, granules) except [skip, skip_end) from global to shared memory, all in flight at once.
 */
CLUSTER_FN void cluster_fetch(const struct cluster_comm *c, uint32_t dst, const unsigned char *src,
			      uint32_t granules, uint32_t skip, uint32_t skip_end)
{
	for (uint32_t g = c->tid; g < granules; g += c->num_threads)
		if (g < skip || g >= skip_end)
			ptx_cp_async_cg(dst + g * 16, src + (size_t)g * 16, 16);
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
}

CLUSTER_FN unsigned char *cluster_mailbox_set(const struct cluster_mailbox *box, size_t granules)
{
	return box->data + (box->set ? granules * 16 : 0);
}

/* Returns the granules of a set: n messages and a result, twice that for mails. */
CAIRN_CLUSTER_INLINE size_t cluster_offchip_reduce_granules(size_t n, size_t granules, size_t ml_granules)
{
	return 2 * (n + 1) * granules + n * ml_granules;
}

/* Writes reduced granule g to b->dst, and also to `result` if that is not NULL. */
CLUSTER_FN void cluster_flags_put(const struct cluster_buffers *b, unsigned char *result, uint32_t g, uint4 v)
{
	ptx_st_shared_v4(b->dst + g * 16, v);
	if (result)
		*(uint4 *)(result + (size_t)g * 16) = v;
}

/* Reduces granules [first, end) of all ranks; reads this rank's own from global memory as well. */
template <int dtype, int softmax, int most>
CLUSTER_FN void cluster_flags_granules(const struct cluster_comm *c, const struct cluster_plan *p, int op,
				       const struct cluster_buffers *b, const struct cluster_terms *t,
				       uint32_t first, uint32_t end, unsigned char *result)
{
	const float sign = op == CAIRN_CLUSTER_MIN ? -1 : 1;
	uint32_t at[most];

#pragma unroll
	for (uint32_t r = 0; r < most; r++)
		at[r] = cluster_term<1>(t, r < t->n ? r : t->n - 1);
	for (uint32_t g = first + c->tid; g < end; g += c->num_threads) {
		const uint64_t base = t->base + g * 16;
		float w[most];

		if constexpr (softmax)
			cluster_row_weights<1, most>(t, cluster_row<dtype>(p, g * 4), w);
		cluster_flags_put(
			b, result, g, softmax || op == CAIRN_CLUSTER_SUM ?
			cluster_reduce_granule<dtype, softmax, 1, most, 1>(base, at, w, t->n, 1) :
			cluster_reduce_granule<dtype, softmax, 1, most, 0>(base, at, w, t->n, sign));
	}
}

/*
 * As above, for few ranks: this rank's own granules are read from shared memory, and a thread has `batch`
 * granules of each rank in flight, without branches. set: [size][granules]
 */
template <int dtype, int most, int batch>
CLUSTER_FN void cluster_flags_few(const struct cluster_comm *c, const unsigned char *set, uint32_t granules,
				  int op, const struct cluster_buffers *b, uint32_t first, uint32_t end,
				  unsigned char *result)
{
	const unsigned char *from[most];

#pragma unroll
	for (uint32_t r = 0; r < most; r++)
		from[r] = r < c->size && r != c->rank ? set + (size_t)r * granules * 16 :
			(const unsigned char *)ptx_cvta_shared_u64(b->src);
	for (uint32_t g = first + c->tid; g < end; g += batch * c->num_threads) {
		uint4 v[batch][most];

#pragma unroll
		for (int k = 0; k < batch; k++) {
			const uint32_t id = g + k * c->num_threads < end ? g + k * c->num_threads : end - 1;

#pragma unroll
			for (int r = 0; r < most; r++)
				v[k][r] = *(const uint4 *)(from[r] + (size_t)id * 16);
		}
#pragma unroll
		for (int k = 0; k < batch; k++) {
			const uint32_t id = g + k * c->num_threads;
			uint32_t raw[4][most], out[4];

#pragma unroll
			for (int r = 0; r < most; r++) {
				raw[0][r] = v[k][r].x;
				raw[1][r] = v[k][r].y;
				raw[2][r] = v[k][r].z;
				raw[3][r] = v[k][r].w;
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				out[i] = op == CAIRN_CLUSTER_SUM ?
					cluster_reduce_raw<dtype, 0, most, 0, 1>(raw[i], NULL, c->size, 1) :
					cluster_reduce_raw<dtype, 0, most, 0, 0>(
						raw[i], NULL, c->size, op == CAIRN_CLUSTER_MIN ? -1 : 1);
			if (id < end)
				cluster_flags_put(b, result, id, make_uint4(out[0], out[1], out[2], out[3]));
		}
	}
}

/* Copies granules [0, granules) except [skip, skip_end) from shared to global memory. */
CLUSTER_FN void cluster_flags_send(const struct cluster_comm *c, unsigned char *to, uint32_t src,
				   uint32_t granules, uint32_t skip, uint32_t skip_end)
{
	for (uint32_t g = c->tid; g < granules; g += 4 * c->num_threads) {
		uint4 v[4];

#pragma unroll
		for (uint32_t k = 0; k < 4; k++)
			if (g + k * c->num_threads < granules)
				v[k] = ptx_ld_shared_v4(src + (g + k * c->num_threads) * 16);
#pragma unroll
		for (uint32_t k = 0; k < 4; k++) {
			const uint32_t id = g + k * c->num_threads;

			if (id < granules && (id < skip || id >= skip_end))
				*(uint4 *)(to + (size_t)id * 16) = v[k];
		}
	}
}

/*
 * FLAGS: after one flag barrier, every rank reads and reduces everything. If there is much data, every rank
 * reduces one part instead and fetches the other parts after a second flag barrier.
 */
template <int dtype, int softmax>
CLUSTER_FN void cluster_offchip_reduce(struct cluster_comm *c, struct cluster_mailbox *box,
				       const struct cluster_plan *p, int op, const struct cluster_buffers *b)
{
	const uint32_t n = c->size, granules = p->total, message = granules + (softmax ? p->ml_granules : 0);
	const size_t set_granules = cluster_offchip_reduce_granules(n, granules, message - granules);
	unsigned char *set = cluster_mailbox_set(box, set_granules);
	const struct cluster_terms t = { (uint64_t)set, 0, (uint64_t)set + granules * 16, 0, message * 16,
					 message * 16, ~0u, n };
	const int parts = (n - 1) * granules > (softmax ? 2048 : 6144), few = !softmax && n <= 4;
	unsigned char *result = parts ? set + (size_t)n * message * 16 : NULL;
	const uint32_t first = parts ? (uint32_t)cairn_cluster_chunk(&p->chunks, (int)c->rank) : 0;
	const uint32_t end = parts ? (uint32_t)cairn_cluster_chunk(&p->chunks, (int)c->rank + 1) : granules;

	cluster_flags_send(c, set + (size_t)c->rank * message * 16, b->src, granules, first,
			   parts && few ? end : first);
	if (softmax)
		for (uint32_t g = c->tid; g < p->ml_granules; g += c->num_threads)
			*(uint4 *)(set + ((size_t)c->rank * message + granules + g) * 16) =
				ptx_ld_shared_v4(b->src_ml + g * 16);
	cluster_meet(c, box);
	if (few && n <= 2)
		cluster_flags_few<dtype, 2, 8>(c, set, granules, op, b, first, end, result);
	else if (few)
		cluster_flags_few<dtype, 4, 4>(c, set, granules, op, b, first, end, result);
	else if (n <= 4)
		cluster_flags_granules<dtype, softmax, 4>(c, p, op, b, &t, first, end, result);
	else if (n <= 8)
		cluster_flags_granules<dtype, softmax, 8>(c, p, op, b, &t, first, end, result);
	else
		cluster_flags_granules<dtype, softmax, 16>(c, p, op, b, &t, first, end, result);
	if (softmax)
		cluster_reduce_rows<1>(c, p, t, b->dst_ml);
	if (parts) {
		cluster_meet(c, box);
		cluster_fetch(c, b->dst, result, granules, first, end);
	}
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* dst: [size][granules]; one set of dst is enough, because only this rank writes it */
CLUSTER_FN void cluster_offchip_gather(struct cluster_comm *c, struct cluster_mailbox *box, uint32_t dst,
				       uint32_t src, uint32_t granules)
{
	unsigned char *set = cluster_mailbox_set(box, (size_t)c->size * granules);

	for (uint32_t g = c->tid; g < granules; g += c->num_threads)
		*(uint4 *)(set + ((size_t)c->rank * granules + g) * 16) = ptx_ld_shared_v4(src + g * 16);
	cluster_meet(c, box);
	cluster_fetch(c, dst, set, c->size * granules, 0, 0);
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

CLUSTER_FN void cluster_mail_end_call(const struct cluster_comm *c, struct cluster_mailbox *box)
{
	box->epoch++;
	box->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* ---- LL words: a word and the call number in 8 bytes ---- */

/*
 * Returns the number of cycles to wait between the store and the first poll, because polling too early delays
 * the data.
 */
CLUSTER_FN int64_t cluster_ll_pause(int most)
{
	return most <= 2 ? 0 : most <= 8 ? 20 : 180;
}

/*
 * Sends this thread's word to all ranks and returns theirs in raw, by rank. most >= size; all loads are in
 * flight, without branches.
 */
template <int most>
CLUSTER_FN void cluster_ll_exchange(const struct cluster_comm *c, const struct cluster_mailbox *box,
				    uint32_t words, uint32_t word, uint32_t *raw)
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif
	uint64_t *at = (uint64_t *)box->data + (size_t)box->set * c->size * words + c->tid;
	int missing;

	ptx_st_relaxed_gpu_u64(at + (size_t)c->rank * words, (uint64_t)box->epoch << 32 | word);
	if (cluster_ll_pause(most))
		for (int64_t now = ptx_clock64(); ptx_clock64() - now < cluster_ll_pause(most);)
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
		ptx_spin_check(start, "LL words (call number)", box->epoch, 0);
	} while (missing);
}

CLUSTER_FN void cluster_ll_end_call(const struct cluster_comm *c, struct cluster_mailbox *box)
{
	box->epoch++;
	box->set = (box->set + 1) % CLUSTER_LL_SETS;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* For at most one word per thread; does not support SOFTMAX. */
template <int dtype, int most>
CLUSTER_FN void cluster_ll_all_reduce(const struct cluster_comm *c, struct cluster_mailbox *box,
				      uint32_t words, int op, const struct cluster_buffers *b)
{
	if (c->tid < words) {
		uint32_t raw[most];

		cluster_ll_exchange<most>(c, box, words, ptx_ld_shared_b32(b->src + c->tid * 4), raw);
		ptx_st_shared_b32(b->dst + c->tid * 4, op == CAIRN_CLUSTER_SUM ?
				  cluster_reduce_raw<dtype, 0, most, 0, 1>(raw, NULL, c->size, 1) :
				  cluster_reduce_raw<dtype, 0, most, 0, 0>(raw, NULL, c->size,
									   op == CAIRN_CLUSTER_MIN ? -1 : 1));
	}
	cluster_ll_end_call(c, box);
}

/* For at most one word per thread. dst: [size][words] */
template <int most>
CLUSTER_FN void cluster_ll_gather(const struct cluster_comm *c, struct cluster_mailbox *box, uint32_t dst,
				  uint32_t src, uint32_t words)
{
	if (c->tid < words) {
		uint32_t raw[most];

		cluster_ll_exchange<most>(c, box, words, ptx_ld_shared_b32(src + c->tid * 4), raw);
#pragma unroll
		for (uint32_t r = 0; r < most; r++)
			if (r < c->size)
				ptx_st_shared_b32(dst + (r * words + c->tid) * 4, raw[r]);
	}
	cluster_ll_end_call(c, box);
}

/* ---- mails: .x and .z are words, .y and .w the call number of each ---- */

#define CLUSTER_MAIL_FETCH	16	/* loads in flight per thread where it only copies */

CLUSTER_FN uint4 cluster_mail(uint2 words, uint32_t epoch)
{
	return make_uint4(words.x, epoch, words.y, epoch);
}

/* Mails pairs [0, pairs) of words except [skip, skip_end). */
CLUSTER_FN void cluster_mail_send(const struct cluster_comm *c, unsigned char *to, uint32_t src,
				  uint32_t pairs, uint32_t skip, uint32_t skip_end, uint32_t epoch)
{
#pragma unroll 4
	for (uint32_t i = c->tid; i < pairs; i += c->num_threads)
		if (i < skip || i >= skip_end)
			ptx_st_relaxed_gpu_v2_u64(to + i * 16,
						  cluster_mail(ptx_ld_shared_v2(src + i * 8), epoch));
}

/*
 * Waits until all v[r][j], which are loaded from first + r * stride + at[j], carry this call's number. Mails
 * that have arrived are not loaded again.
 */
template <int ranks, int batch>
CLUSTER_FN void cluster_mail_await(uint4 (*v)[batch], const unsigned char *first, uint32_t stride,
				   const uint32_t *at, uint32_t epoch)
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
		ptx_spin_check(start, "mails (call number)", epoch, 0);
	}
}

/* Copies the words of mails [0, pairs) except [skip, skip_end) to dst. */
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

/*
 * Reduces pairs [first, end) of all ranks to b->dst, and also mails them to `results` if that is not NULL.
 * most >= size
 */
template <int dtype, int most, int batch>
CLUSTER_FN void cluster_mail_reduce(const struct cluster_comm *c, const unsigned char *mails, uint32_t pairs,
				    int op, const struct cluster_buffers *b, uint32_t first, uint32_t end,
				    unsigned char *results, uint32_t epoch)
{
	for (uint32_t i = first + c->tid; i < end; i += batch * c->num_threads) {
		uint4 v[most][batch], own[batch];
		uint32_t at[batch];

#pragma unroll
		for (int j = 0; j < batch; j++) {	/* past the end, repeat the first pair */
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
					cluster_reduce_raw<dtype, 0, most, 0, 0>(
						raw[k], NULL, c->size, op == CAIRN_CLUSTER_MIN ? -1 : 1);
			if (results)
				ptx_st_relaxed_gpu_v2_u64(results + at[j],
							  cluster_mail(make_uint2(out[0], out[1]), epoch));
			ptx_st_shared_v2(b->dst + at[j] / 2, make_uint2(out[0], out[1]));
		}
	}
}

/* way: MAIL or MAIL_TWOSHOT; dst and src must differ. Does not support SOFTMAX. */
template <int way, int dtype, int most>
CLUSTER_FN void cluster_mail_all_reduce(const struct cluster_comm *c, struct cluster_mailbox *box,
					uint32_t granules, int op, const struct cluster_buffers *b)
{
	const int twoshot = way == CLUSTER_BY_MAIL_TWOSHOT;
	const uint32_t pairs = 2 * granules;
	const struct cairn_cluster_chunks k = cairn_cluster_chunks((int)pairs, (int)c->size);
	const uint32_t first = twoshot ? (uint32_t)cairn_cluster_chunk(&k, (int)c->rank) : 0;
	const uint32_t end = twoshot ? (uint32_t)cairn_cluster_chunk(&k, (int)c->rank + 1) : pairs;
	unsigned char *set = cluster_mailbox_set(box, cluster_offchip_reduce_granules(c->size, granules, 0));
	unsigned char *results = twoshot ? set + (size_t)c->size * pairs * 16 : NULL;

	cluster_mail_send(c, set + (size_t)c->rank * pairs * 16, b->src, pairs, first, twoshot ? end : first,
			  box->epoch);
	/* choose a batch no larger than the work, because loads that repeat past the end cost time too */
	if (most > 8 || end - first <= c->num_threads)
		cluster_mail_reduce<dtype, most, 1>(c, set, pairs, op, b, first, end, results, box->epoch);
	else if (most > 2 || end - first <= 2 * c->num_threads)
		cluster_mail_reduce<dtype, most, 2>(c, set, pairs, op, b, first, end, results, box->epoch);
	else if (end - first <= 4 * c->num_threads)
		cluster_mail_reduce<dtype, most, 4>(c, set, pairs, op, b, first, end, results, box->epoch);
	else
		cluster_mail_reduce<dtype, most, 8>(c, set, pairs, op, b, first, end, results, box->epoch);
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
