/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster - all-reduce and all-gather among the CTAs of a cluster, as device functions
 *
 *	struct cluster_comm c;
 *	struct cluster_plan plan;
 *
 *	cluster_comm_init(&c, tid, num_threads, bar_id, state, slots, set_bytes);
 *	cluster_sync();						(all threads of all CTAs, once)
 *	cluster_plan_reduce(&plan, &c, ONESHOT, granules, 0, 0);	(once for each shape)
 *	...
 *	cluster_all_reduce<ONESHOT, CAIRN_F32, 0>(&c, &plan, SUM, &buffers);
 *
 * A group of whole warps, the same in every CTA, runs the collectives; tid is the number of a thread in the
 * group, and bar_id is the group's named barrier. Other warps can do other work at the same time. All ranks
 * must make the same calls in the same order. The group must synchronise before a call, after its threads
 * have written the source and read the last result. After a call, every thread of the group sees the result,
 * and the source may be overwritten. cluster_comm.cuh proves that no other synchronisation is needed between
 * calls, or after the last one.
 *
 * Slots: to reduce G granules (and G_ml granules of (m, l), 0 without SOFTMAX) in one piece, set_bytes must
 * be
 *   ONESHOT         16 (N - 1) (G + G_ml)
 *   TWOSHOT, RING   16 (N - 1) (ceil(G / N) + G_ml)
 *   TREE            16 (log2(N) G + (N - 1) G_ml)
 * With less, the reduction runs in pieces. A gather needs no slots: it delivers in place.
 *
 * mbarriers of a set: ONESHOT uses 0, TWOSHOT 0 and 1 (first and second half), TREE one per round, RING one
 * per step. With SOFTMAX, RING and TREE exchange (m, l) first, on mbarrier 31. A gather uses the same ones
 * as the reduction of the same name.
 */
#ifndef CAIRN_CLUSTER_CUH
#define CAIRN_CLUSTER_CUH

#include "primitives/cluster/cluster_comm.cuh"
#include "primitives/cluster/cluster_terms.cuh"

#define CLUSTER_ML_MBAR		31

/* Shared addresses, 16-byte aligned. Addresses returned by cluster_keep() save instructions. */
struct cluster_buffers {
	uint32_t dst, src;		/* may be equal, except with ONESHOT */
	uint32_t dst_ml, src_ml;	/* SOFTMAX: (m, l) of each row, padded to 16 bytes; must differ */
};

/* Everything that depends only on the shape: an integer division would take a notable part of 500 cycles. */
struct cluster_plan {
	struct cluster_grid grid;		/* arranges the threads for the message to each peer */
	struct cairn_cluster_chunks chunks;	/* chunks of one piece */
	uint32_t stride, ml_offset;		/* bytes of a rank's slot; offset of (m, l) in a slot */
	uint32_t from, to, peer;		/* this thread's first granule: offsets in src, slots; peer */
	uint32_t to_step;			/* bytes from the slot at one peer to that at the next */
	uint32_t total, origin;			/* granules in all, and before this piece */
	uint32_t rows, ml_granules, row_magic;	/* of (m, l); row_magic: 2^32 / head_dim, rounded up */
};

/*
 * granules: number of granules, of elements of dtype (RING, TREE: fp32); rows, head_dim: 0 without SOFTMAX.
 */
CLUSTER_FN void cluster_plan_reduce(struct cluster_plan *p, const struct cluster_comm *c, int algo,
				    uint32_t granules, uint32_t rows, uint32_t head_dim)
{
	const uint32_t n = c->size;
	uint32_t room, piece, num_pieces, message;

	granules = cluster_keep(granules);
	p->ml_granules = (rows + 1) / 2;
	room = c->set_bytes / 16 - (n - 1) * p->ml_granules;
	if (n == 1 || algo >= CAIRN_CLUSTER_OFFCHIP)
		piece = granules;
	else if (algo == CAIRN_CLUSTER_TREE)
		piece = room / (uint32_t)cairn_cluster_log2((int)n);
	else
		piece = room / (n - 1) * (algo == CAIRN_CLUSTER_ONESHOT ? 1 : n);
	if (algo == CAIRN_CLUSTER_TREE && piece > 4 * c->num_threads)
		piece = 4 * c->num_threads;
	num_pieces = granules <= piece ? 1 : (granules + piece - 1) / piece;
	piece = (granules + num_pieces - 1) / num_pieces;
	p->chunks = cairn_cluster_chunks((int)piece, (int)n);
	message = algo == CAIRN_CLUSTER_ONESHOT ? piece : (uint32_t)cairn_cluster_chunk_max(&p->chunks);
	p->ml_offset = message * 16;
	p->stride = cluster_keep((message + p->ml_granules) * 16);
	p->grid = cluster_grid(c, message + p->ml_granules);
	p->from = p->grid.col * 16;
	p->to = p->grid.row * p->stride + p->from;
	p->to_step = p->grid.num_rows * p->stride;
	p->peer = cluster_peer(c, p->grid.row + 1);
	p->total = granules;
	p->origin = 0;
	p->rows = rows;
	p->row_magic = head_dim ? 0xffffffffu / head_dim + 1 : 0;
}

/* Returns the row to which 4-byte word w of the piece belongs; exact for fewer than 2^15 elements in all. */
template <int dtype> CLUSTER_FN uint32_t cluster_row(const struct cluster_plan *p, uint32_t w)
{
	return __umulhi((p->origin * 4 + w) * (dtype == CAIRN_F32 ? 1 : 2), p->row_magic);
}

template <int global>
CLUSTER_FN void cluster_reduce_rows(const struct cluster_comm *c, const struct cluster_plan *p,
				    struct cluster_terms t, uint32_t dst_ml)
{
	for (uint32_t row = c->tid; row < p->rows; row += c->num_threads) {
		const struct cluster_terms at = cluster_terms_at(t, 0, row);
		const float2 ml = cluster_reduce_row<global>(&at);

		ptx_st_shared_v2(dst_ml + row * 8, make_uint2(__float_as_uint(ml.x), __float_as_uint(ml.y)));
	}
}

/* Destination of reduced granules: dst of this rank, and with `spread` dst of all peers too. */
struct cluster_results {
	uint32_t dst, first, count;	/* granules [first, first + count) of the piece */
	uint32_t mbar;			/* spread: the mbarrier that counts the bytes at the peers */
};

template <int dtype, int softmax, int spread, int most, int sum>
CLUSTER_FN void cluster_reduce_granules_by(const struct cluster_comm *c, const struct cluster_plan *p,
					   const struct cluster_terms *t, const struct cluster_results *to,
					   float sign)
{
	uint32_t at[most];

#pragma unroll
	for (int r = 0; r < most; r++)
		at[r] = cluster_term<0>(t, r < (int)t->n ? r : t->n - 1);
	for (uint32_t g = c->tid; g < to->count; g += c->num_threads) {
		const uint32_t dst = to->dst + (to->first + g) * 16;
		float w[most];
		uint4 v;

		if constexpr (softmax)
			cluster_row_weights<0, most>(t, cluster_row<dtype>(p, (to->first + g) * 4), w);
		v = cluster_reduce_granule<dtype, softmax, 0, most, sum>(g * 16, at, w, t->n, sign);
		ptx_st_shared_v4(dst, v);
		if (spread)
			for (uint32_t d = 1; d < c->size; d++) {
				const uint32_t peer = cluster_peer(c, d);

				ptx_st_async_v4(ptx_mapa(dst, peer), v, ptx_mapa(to->mbar, peer));
			}
	}
}

template <int dtype, int softmax, int spread>
CLUSTER_FN void cluster_reduce_granules(const struct cluster_comm *c, const struct cluster_plan *p, int op,
					const struct cluster_terms *t, const struct cluster_results *to)
{
	if (!softmax && op != CAIRN_CLUSTER_SUM)
		cluster_reduce_granules_by<dtype, softmax, spread, 16, 0>(c, p, t, to,
									  op == CAIRN_CLUSTER_MIN ? -1 : 1);
	else if (t->n == 2)
		cluster_reduce_granules_by<dtype, softmax, spread, 2, 1>(c, p, t, to, 1);
	else if (t->n <= 4)
		cluster_reduce_granules_by<dtype, softmax, spread, 4, 1>(c, p, t, to, 1);
	else if (t->n <= 8)
		cluster_reduce_granules_by<dtype, softmax, spread, 8, 1>(c, p, t, to, 1);
	else
		cluster_reduce_granules_by<dtype, softmax, spread, 16, 1>(c, p, t, to, 1);
}

/* ---- ONESHOT: every rank sends all of its data to all ranks ---- */

/* Returns the address of granule g of a message, which is `granules` of src followed by (m, l). */
CLUSTER_FN uint32_t cluster_message_at(const struct cluster_buffers *b, uint32_t granules, uint32_t g)
{
	return g < granules ? b->src + g * 16 : b->src_ml + (g - granules) * 16;
}

/* own: address of this rank's own contribution */
CLUSTER_FN struct cluster_terms cluster_slot_terms(const struct cluster_comm *c, const struct cluster_plan *p,
						   const struct cluster_buffers *b, uint32_t own)
{
	const struct cluster_terms t = { c->slots, own, c->slots + p->ml_offset, b->src_ml,
					 p->stride, p->stride, c->rank, c->size };

	return t;
}

/*
 * Sends v to the peers of this thread's row of the grid; `to` advances by `step` from one peer to the next.
 */
CLUSTER_FN void cluster_send(const struct cluster_comm *c, const struct cluster_plan *p, uint32_t to,
			     uint32_t step, uint4 v, uint32_t mbar)
{
	uint32_t peer = p->peer;

	for (uint32_t d = p->grid.row + 1; d < c->size; d += p->grid.num_rows) {
		ptx_st_async_v4(ptx_mapa(to, peer), v, ptx_mapa(mbar, peer));
		to += step;
		peer += p->grid.num_rows;
		peer -= peer >= c->size ? c->size : 0;
	}
}

/*
 * Waits for mbarrier 0 and writes the reduction of word i of all ranks to dst[i], for i < count; `first`
 * words of the piece precede them. Whole warps wait, and lanes without a word repeat the last one: a warp
 * whose halves waited at different barriers would lose 100 cycles.
 */
template <int dtype, int softmax>
CLUSTER_FN void cluster_words(const struct cluster_comm *c, const struct cluster_plan *p, int op,
			      const struct cluster_terms *t, uint32_t dst, uint32_t first, uint32_t count)
{
	const uint32_t i = c->tid < count ? c->tid : count - 1;

	if ((c->tid & ~31u) < count) {
		const struct cluster_terms at =
			cluster_terms_at(*t, i * 4, softmax ? cluster_row<dtype>(p, first + i) : 0);
		const uint32_t word = cluster_await_word_any<dtype, softmax>(c, 0, &at, op);

		if (c->tid < count)
			ptx_st_shared_b32(dst + i * 4, word);
	}
}

/* ONESHOT for small messages: a thread reduces at most one word and sends one granule. */
template <int dtype, int softmax>
CLUSTER_FN void cluster_oneshot_words(struct cluster_comm *c, const struct cluster_plan *p, int op,
				      const struct cluster_buffers *b)
{
	const uint32_t granules = (uint32_t)p->chunks.granules;
	const uint32_t message = granules + (softmax ? p->ml_granules : 0);
	const struct cluster_terms t = cluster_slot_terms(c, p, b, b->src);

	if (p->grid.col < message)
		cluster_send(c, p, c->slots + p->to, p->to_step, ptx_ld_shared_v4(
			     softmax ? cluster_message_at(b, granules, p->grid.col) : b->src + p->from),
			     cluster_mbar(c, 0));
	if (c->tid == c->num_threads - 1)
		ptx_mbarrier_arrive_expect_tx(cluster_mbar(c, 0), (c->size - 1) * message * 16);
	cluster_words<dtype, softmax>(c, p, op, &t, b->dst, 0, granules * 4);
	if (softmax) {
		if (c->tid < p->rows)
			cluster_await(c, 0);
		cluster_reduce_rows<0>(c, p, t, b->dst_ml);
	}
	cluster_end_call(c, 1);
}

CLUSTER_FN int cluster_is_small(const struct cluster_comm *c, const struct cluster_plan *p)
{
	return p->total * 4 <= c->num_threads && p->grid.num_cols >= p->total + p->ml_granules &&
	       (uint32_t)p->chunks.granules == p->total;
}

template <int dtype, int softmax>
CLUSTER_FN void cluster_oneshot(struct cluster_comm *c, const struct cluster_plan *p, int op,
				const struct cluster_buffers *b)
{
	const uint32_t granules = (uint32_t)p->chunks.granules;
	const uint32_t message = granules + (softmax ? p->ml_granules : 0);
	const uint32_t mbar = cluster_mbar(c, 0), to = c->slots + p->grid.row * p->stride;
	const struct cluster_terms t = cluster_slot_terms(c, p, b, b->src);
	const struct cluster_results results = { b->dst, 0, granules, 0 };

	for (uint32_t g = p->grid.col; g < message; g += p->grid.num_cols)
		cluster_send(c, p,
			     softmax && g >= granules ? to + p->ml_offset + (g - granules) * 16 : to + g * 16,
			     p->to_step,
			     ptx_ld_shared_v4(softmax ? cluster_message_at(b, granules, g) : b->src + g * 16),
			     mbar);
	if (c->tid == c->num_threads - 1)
		ptx_mbarrier_arrive_expect_tx(mbar, (c->size - 1) * message * 16);
	cluster_await(c, 0);
	cluster_reduce_granules<dtype, softmax, 0>(c, p, op, &t, &results);
	if (softmax)
		cluster_reduce_rows<0>(c, p, t, b->dst_ml);
	cluster_end_call(c, 1);
}

/* ---- TWOSHOT: rank r reduces chunk r and sends it to all ranks ---- */

template <int dtype, int softmax>
CLUSTER_FN void cluster_twoshot(struct cluster_comm *c, const struct cluster_plan *p, int op,
				const struct cluster_buffers *b)
{
	const uint32_t num_ml = softmax ? p->ml_granules : 0;
	const uint32_t first = (uint32_t)cairn_cluster_chunk(&p->chunks, (int)c->rank);
	const uint32_t count = (uint32_t)cairn_cluster_chunk(&p->chunks, (int)c->rank + 1) - first;
	const uint32_t halfway = cluster_mbar(c, 0), done = cluster_mbar(c, 1);
	const struct cluster_terms t = cluster_slot_terms(c, p, b, b->src + first * 16);
	const struct cluster_results results = { b->dst, first, count, done };

	for (uint32_t d = p->grid.row + 1; d < c->size; d += p->grid.num_rows) {
		const uint32_t peer = cluster_peer(c, d), to = ptx_mapa(c->slots + (d - 1) * p->stride, peer);
		const uint32_t from = (uint32_t)cairn_cluster_chunk(&p->chunks, (int)peer);
		const uint32_t num = (uint32_t)cairn_cluster_chunk(&p->chunks, (int)peer + 1) - from;
		const uint32_t mbar = ptx_mapa(halfway, peer);

#pragma unroll 4
		for (uint32_t g = p->grid.col; g < num; g += p->grid.num_cols)
			ptx_st_async_v4(to + g * 16, ptx_ld_shared_v4(b->src + (from + g) * 16), mbar);
		if constexpr (softmax)
			for (uint32_t g = p->grid.col; g < num_ml; g += p->grid.num_cols)
				ptx_st_async_v4(to + p->ml_offset + g * 16,
						ptx_ld_shared_v4(b->src_ml + g * 16), mbar);
	}
	if (c->tid == c->num_threads - 1) {
		ptx_mbarrier_arrive_expect_tx(halfway, (c->size - 1) * (count + num_ml) * 16);
		ptx_mbarrier_arrive_expect_tx(done, ((uint32_t)p->chunks.granules - count) * 16);
	}
	if (count * 4 <= c->num_threads) {
		/* small: each thread reduces a word, then all send; even an empty phase must be waited for */
		if (count == 0)
			cluster_await(c, 0);
		cluster_words<dtype, softmax>(c, p, op, &t, b->dst + first * 16, first * 4, count * 4);
		ptx_bar_sync(c->bar_id, c->num_threads);
		for (uint32_t g = p->grid.col; g < count; g += p->grid.num_cols)
			cluster_send(c, p, b->dst + (first + g) * 16, 0,
				     ptx_ld_shared_v4(b->dst + (first + g) * 16), done);
	} else {
		cluster_await(c, 0);
		cluster_reduce_granules<dtype, softmax, 1>(c, p, op, &t, &results);
	}
	if (softmax) {
		cluster_await(c, 0);
		cluster_reduce_rows<0>(c, p, t, b->dst_ml);
	}
	cluster_await(c, 1);
	cluster_end_call(c, 3);
}

/* ---- RING and TREE: partial sums, in fp32 ---- */

CLUSTER_FN float4 cluster_as_float4(uint4 v)
{
	return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
			   __uint_as_float(v.w));
}

CLUSTER_FN uint4 cluster_as_uint4(float4 v)
{
	return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
			  __float_as_uint(v.w));
}

CLUSTER_FN float4 cluster_combine(float4 x, float4 y, int op)
{
	if (op == CAIRN_CLUSTER_SUM)
		return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
	if (op == CAIRN_CLUSTER_MAX)
		return make_float4(ptx_max_nan(x.x, y.x), ptx_max_nan(x.y, y.y), ptx_max_nan(x.z, y.z),
				   ptx_max_nan(x.w, y.w));
	return make_float4(ptx_min_nan(x.x, y.x), ptx_min_nan(x.y, y.y), ptx_min_nan(x.z, y.z),
			   ptx_min_nan(x.w, y.w));
}

/* Returns this rank's granule g. SOFTMAX scales it to the common maximum, so that the merge is a sum. */
template <int softmax>
CLUSTER_FN float4 cluster_own(const struct cluster_plan *p, const struct cluster_buffers *b, uint32_t g)
{
	float4 v = cluster_as_float4(ptx_ld_shared_v4(b->src + g * 16));

	if (softmax) {
		const uint32_t row = cluster_row<CAIRN_F32>(p, g * 4);
		const float w = cluster_weight(ptx_ld_shared_f32(b->src_ml + row * 8),
					       ptx_ld_shared_f32(b->dst_ml + row * 8));

		v = make_float4(cluster_weigh(w, v.x), cluster_weigh(w, v.y), cluster_weigh(w, v.z),
				cluster_weigh(w, v.w));
	}
	return v;
}

/* Sends (m, l) of every rank to all ranks, into the end of the set, and writes the merged ones to dst_ml. */
CLUSTER_FN void cluster_exchange_ml(struct cluster_comm *c, const struct cluster_plan *p,
				    const struct cluster_buffers *b)
{
	const uint32_t stride = p->ml_granules * 16, base = c->slots + c->set_bytes - (c->size - 1) * stride;
	const uint32_t mbar = cluster_mbar(c, CLUSTER_ML_MBAR);
	const struct cluster_terms t = { 0, 0, base, b->src_ml, 0, stride, c->rank, c->size };

	for (uint32_t g = p->grid.col; g < p->ml_granules; g += p->grid.num_cols)
		cluster_send(c, p, base + p->grid.row * stride + g * 16, p->grid.num_rows * stride,
			     ptx_ld_shared_v4(b->src_ml + g * 16), mbar);
	if (c->tid == c->num_threads - 1)
		ptx_mbarrier_arrive_expect_tx(mbar, (c->size - 1) * stride);
	cluster_await(c, CLUSTER_ML_MBAR);
	cluster_reduce_rows<0>(c, p, t, b->dst_ml);
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/* Step s receives on mbarrier s, into slot s (first half) or in place (second half). */
template <int softmax>
CLUSTER_FN void cluster_ring(struct cluster_comm *c, const struct cluster_plan *p, int op,
			     const struct cluster_buffers *b)
{
	const int n = (int)c->size;
	const uint32_t next = cluster_peer(c, 1), base = c->slots;
	const uint32_t slot_bytes = (uint32_t)cairn_cluster_chunk_max(&p->chunks) * 16;

	if (c->tid < 2 * (c->size - 1)) {
		const struct cairn_cluster_msg m =
			cairn_cluster_reduce_msg(CAIRN_CLUSTER_RING, n, (int)c->rank, (int)c->tid,
						 &p->chunks);

		ptx_mbarrier_arrive_expect_tx(cluster_mbar(c, c->tid), (uint32_t)m.recv_count * 16);
	}
	if (softmax)
		cluster_exchange_ml(c, p, b);
	for (int step = 0; step < 2 * (n - 1); step++) {
		const struct cairn_cluster_msg m =
			cairn_cluster_reduce_msg(CAIRN_CLUSTER_RING, n, (int)c->rank, step, &p->chunks);
		const uint32_t mbar = ptx_mapa(cluster_mbar(c, step), next);

		if (step)
			cluster_await(c, step - 1);
		for (uint32_t g = c->tid; g < (uint32_t)m.send_count; g += c->num_threads) {
			const uint32_t in_place = b->dst + (m.send_first + g) * 16;
			uint4 v;

			if (step >= n) {
				v = ptx_ld_shared_v4(in_place);
			} else {
				float4 own = cluster_own<softmax>(p, b, m.send_first + g);

				if (step)
					own = cluster_combine(cluster_as_float4(ptx_ld_shared_v4(
						base + (step - 1) * slot_bytes + g * 16)), own, op);
				v = cluster_as_uint4(own);
				if (step == n - 1)
					ptx_st_shared_v4(in_place, v);
			}
			ptx_st_async_v4(ptx_mapa(step >= n - 1 ? in_place : base + step * slot_bytes + g * 16,
						 next),
					v, mbar);
		}
	}
	cluster_await(c, 2 * (n - 1) - 1);
	cluster_end_call(c, ((1u << 2 * (n - 1)) - 1) | (softmax ? 1u << CLUSTER_ML_MBAR : 0));
}

/* Round i receives into slot i, on mbarrier i. A thread keeps its granules, at most `most`, in registers. */
template <int softmax, int most>
CLUSTER_FN void cluster_tree(struct cluster_comm *c, const struct cluster_plan *p, int op,
			     const struct cluster_buffers *b)
{
	const uint32_t base = c->slots, granules = (uint32_t)p->chunks.granules;
	const int rounds = cairn_cluster_log2((int)c->size);
	float4 v[most];

	if (c->tid < (uint32_t)rounds)
		ptx_mbarrier_arrive_expect_tx(cluster_mbar(c, c->tid), granules * 16);
	if (softmax)
		cluster_exchange_ml(c, p, b);
#pragma unroll
	for (int k = 0; k < most; k++)
		if (c->tid + k * c->num_threads < granules)
			v[k] = cluster_own<softmax>(p, b, c->tid + k * c->num_threads);
	for (int i = 0; i < rounds; i++) {
		const uint32_t slot = base + (i * granules + c->tid) * 16;
		const uint32_t to = cluster_peer(c, 1u << i);	/* receives from rank - 2^i */
		const uint32_t dst = ptx_mapa(slot, to), mbar = ptx_mapa(cluster_mbar(c, i), to);

#pragma unroll
		for (int k = 0; k < most; k++)
			if (c->tid + k * c->num_threads < granules)
				ptx_st_async_v4(dst + k * c->num_threads * 16, cluster_as_uint4(v[k]), mbar);
		cluster_await(c, i);
#pragma unroll
		for (int k = 0; k < most; k++)
			if (c->tid + k * c->num_threads < granules)
				v[k] = cluster_combine(v[k], cluster_as_float4(ptx_ld_shared_v4(
					slot + k * c->num_threads * 16)), op);
	}
#pragma unroll
	for (int k = 0; k < most; k++)
		if (c->tid + k * c->num_threads < granules)
			ptx_st_shared_v4(b->dst + (c->tid + k * c->num_threads) * 16, cluster_as_uint4(v[k]));
	cluster_end_call(c, ((1u << rounds) - 1) | (softmax ? 1u << CLUSTER_ML_MBAR : 0));
}

/* ---- all-reduce ---- */

/* A cluster of one CTA: copies; with SOFTMAX, a row without keys becomes zero. */
template <int dtype, int softmax>
CLUSTER_FN void cluster_copy(struct cluster_comm *c, const struct cluster_plan *p,
			     const struct cluster_buffers *b)
{
	const struct cluster_terms t = { 0, 0, 0, b->src_ml, 0, 0, 0, 1 };

	if (softmax)
		cluster_reduce_rows<0>(c, p, t, b->dst_ml);
	for (uint32_t g = c->tid; g < p->total; g += c->num_threads) {
		uint4 v = ptx_ld_shared_v4(b->src + g * 16);

		if (softmax && ptx_ld_shared_f32(b->src_ml + cluster_row<dtype>(p, g * 4) * 8) == -INFINITY)
			v = make_uint4(0, 0, 0, 0);
		ptx_st_shared_v4(b->dst + g * 16, v);
	}
	cluster_end_call(c, 0);
}

/* Reduces one piece. RING and TREE support dtype f32 only. */
template <int algo, int dtype, int softmax>
CLUSTER_FN void cluster_reduce_piece(struct cluster_comm *c, const struct cluster_plan *p, int op_or_softmax,
				     const struct cluster_buffers *b)
{
	const int op = softmax ? CAIRN_CLUSTER_SUM : op_or_softmax;

	static_assert(dtype == CAIRN_F32 || algo == CAIRN_CLUSTER_ONESHOT || algo == CAIRN_CLUSTER_TWOSHOT,
		      "partial sums are fp32");
	if constexpr (algo == CAIRN_CLUSTER_ONESHOT) {
		if (cluster_is_small(c, p))
			cluster_oneshot_words<dtype, softmax>(c, p, op, b);
		else
			cluster_oneshot<dtype, softmax>(c, p, op, b);
	} else if constexpr (algo == CAIRN_CLUSTER_TWOSHOT) {
		cluster_twoshot<dtype, softmax>(c, p, op, b);
	} else if constexpr (algo == CAIRN_CLUSTER_RING) {
		cluster_ring<softmax>(c, p, op, b);
	} else {
		if ((uint32_t)p->chunks.granules <= c->num_threads)
			cluster_tree<softmax, 1>(c, p, op, b);
		else
			cluster_tree<softmax, 4>(c, p, op, b);
	}
}

/* whole->dst = op over all ranks of whole->src. dtype: type of the elements; with softmax, op is ignored. */
template <int algo, int dtype, int softmax>
CLUSTER_FN void cluster_all_reduce(struct cluster_comm *c, const struct cluster_plan *plan, int op,
				   const struct cluster_buffers *whole)
{
	struct cluster_buffers b = *whole;
	struct cluster_plan p = *plan;

	if (c->size == 1) {
		cluster_copy<dtype, softmax>(c, &p, &b);
		return;
	}
	for (;;) {
		const uint32_t granules = (uint32_t)p.chunks.granules;

		cluster_reduce_piece<algo, dtype, softmax>(c, &p, op, &b);
		p.origin += granules;
		if (p.origin >= p.total)
			return;
		b.dst += granules * 16;
		b.src += granules * 16;
		if (p.origin + granules > p.total)
			p.chunks = cairn_cluster_chunks((int)(p.total - p.origin), (int)c->size);
	}
}

#include "primitives/cluster/cluster_gather.cuh"
#endif
