/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_fetch - the producer warpgroup of attn_bsr: takes runs, gathers Q, K and V, computes the masks
 *
 * Each warp gathers a quarter of a key tile, 16 bytes a lane. Each lane holds the offset of one of the warp's
 * keys, and the lanes that copy that key get the offset by a shuffle. Slots past the end of a list are filled
 * with zeros. Block ids are loaded one key tile ahead, because the copies depend on them.
 *
 * cp.async copies 16-bit keys to where wgmma reads them, and each thread's copies arrive at the mbarrier when
 * they have landed. 8-bit keys are copied to a separate ring; the warp that copied a tile converts it while
 * the next tiles are in flight.
 */
#ifndef CAIRN_ATTN_BSR_FETCH_CUH
#define CAIRN_ATTN_BSR_FETCH_CUH

#include "primitives/ptx/ptx_copy.cuh"
#include "fused/attention/base/attn_widen.cuh"
#include "fused/attention/bsr/attn_bsr_view.cuh"

#define ATTN_BAR_PRODUCER	8	/* for the producer's 128 threads */
/* the producer's arrivals at full_*: one by each thread for its copies, one by each warp for its stores */
#define ATTN_ARRIVALS		(128 + 4 * ELECTED_LANES)

/* A producer thread's description of the piece that it fetches. */
struct attn_bsr_walk {
	const struct cairn_attn_part *p;
	const uint8_t *k, *v;			/* block 0 of the KV head */
	const int32_t *blocks;			/* the list */
	int32_t len;				/* keys of the list */
	int32_t begin, num_tiles;		/* first key to fetch; number of key tiles */
	bool has_token;				/* the thread has a token, see attn_bsr_token */
};

/* Arrives at mbar for the calling threads' stores and, once their copies have landed, for these. */
ATTN_DEV void attn_fetched(uint32_t mbar, bool copies)
{
#ifdef CAIRN_DEBUG
	/* racecheck does not see asynchronous arrivals */
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	copies = false;
#endif
	if (copies)
		ptx_cp_async_mbarrier_arrive_noinc(mbar);
	else
		ptx_mbarrier_arrive(mbar);
	elected_arrive(mbar);
}

/* Returns the key of a key tile whose offset this lane holds for its warp; -1: none. */
template <class F> ATTN_DEV int attn_own_key(void)
{
	constexpr int share = F::keys / 4;

	const int lane = attn_thread() % 32, warp = attn_thread() / 32;

	return lane < share ? warp * share + lane : -1;
}

/* A lane's key: its number in the list, its block, its byte offset from block 0 of the KV head (-1: none). */
struct attn_key_at {
	int32_t n, block;
	int64_t offset;
};

/* Returns the block that holds key n of the list, 0 past its end. */
ATTN_DEV int32_t attn_block_of(const struct attn_bsr_walk &w, int32_t n)
{
	return n < w.len ? w.blocks[n / w.p->block_n] : 0;
}

/* Computes the offset of the lane's key from *block, then starts to load the block of its next key. */
template <class F, int fp8>
ATTN_DEV struct attn_key_at attn_next_key(const struct attn_bsr_walk &w, int32_t n, int32_t *block)
{
	struct attn_key_at key = { n, *block, -1 };

	if (n < w.len)
		key.offset = (*block * w.p->block_stride + n % w.p->block_n * w.p->slot_stride) *
			     (fp8 ? 1 : 2);
	*block = attn_block_of(w, n + F::keys);
	return key;
}

/*
 * Copies a warp's share of a tile: `pieces` 16-byte pieces a key, at_once keys by one instruction. `to` is
 * the address of the lane's first piece. Keys are row_bytes apart, and the number of the key, shifted by 4,
 * is XORed into the address bits of `swizzle`. Most tiles have no missing key and skip the test of offsets.
 */
template <class F, int pieces, int row_bytes, int swizzle>
ATTN_DEV void attn_gather(uint32_t to, const uint8_t *base, int64_t offset)
{
	constexpr int at_once = 32 / pieces, share = F::keys / 4;
	const int lane = attn_thread() % 32;
	const bool whole = __all_sync(~0u, offset >= 0 || lane >= share);
	const int first = lane / pieces;

	base += lane % pieces * 16;
#pragma unroll 4
	for (int i = 0; i < share; i += at_once) {
		int64_t at = __shfl_sync(~0u, (long long)offset, first + i);
		uint32_t dst = (to ^ (i << 4 & swizzle)) + i * row_bytes;

		if (whole)
			ptx_cp_async_cg(dst, base + at, 16);
		else
			ptx_cp_async_cg(dst, at < 0 ? base : base + at, at < 0 ? 0 : 16);
	}
}

/* Copies 16-bit keys to where wgmma reads them. */
template <class F, int dim>
ATTN_DEV void attn_gather_16bit(uint32_t s_tile, const uint8_t *base, int64_t offset)
{
	constexpr int pieces = dim / 8;
	const int thread = attn_thread(), lane = thread % 32;
	const int row = thread / 32 * (F::keys / 4) + lane / pieces;

	attn_gather<F, pieces, ATTN_PANEL, 0x70>(s_tile + attn_panel_at<F::keys>(row, lane % pieces), base,
						 offset);
}

/* Copies 8-bit keys to the ring. */
template <class F, int dim>
ATTN_DEV void attn_gather_8bit(uint32_t s_raw, const uint8_t *base, int64_t offset)
{
	constexpr int pieces = dim / 16;
	const int thread = attn_thread(), lane = thread % 32;
	const int row = thread / 32 * (F::keys / 4) + lane / pieces;

	/* a lane's keys are all even or all odd */
	attn_gather<F, pieces, dim, 0>(s_raw + attn_raw_at<dim>(row, lane % pieces), base, offset);
}

/* Returns a word whose bits below bit n are set. */
ATTN_DEV uint32_t attn_bits_below(int32_t n)
{
	return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}

/*
 * Computes which keys of the key tile that begins at `key` the thread's token sees, and writes the result as
 * bits for the consumers. own: the key whose offset the thread holds; positions: shared memory through which
 * the threads exchange the positions of these keys.
 */
template <class F>
ATTN_DEV void attn_decide(const struct attn_bsr_call &c, const struct attn_bsr_walk &w, int key,
			  const struct attn_key_at &own, const struct attn_bsr_token &t, int32_t *positions,
			  uint4 *bits, uint8_t *all_seen)
{
	constexpr int words = F::keys / 32;
	uint32_t word[4] = { ~0u, ~0u, ~0u, ~0u };
	bool all = true;

	if (w.p->key_pos) {
		int at = attn_own_key<F>();

		if (at >= 0 && own.n < w.len)
			positions[at] = w.p->key_pos[(int64_t)own.block * w.p->block_n +
						     own.n % w.p->block_n];
		ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	}
	if (w.has_token) {
#pragma unroll
		for (int i = 0; i < words; i++)
			word[i] = attn_bits_below(t.end - key - 32 * i) &
				  ~attn_bits_below(t.first - key - 32 * i);
		if (w.p->key_pos) {
			bool causal = w.p->mask_mode & CAIRN_ATTN_CAUSAL;

#pragma unroll
			for (int i = 0; i < words; i++) {
				uint32_t seen = 0;

				for (int j = 0; j < 32; j++) {
					int64_t at = positions[32 * i + j];
					bool sees = (!causal || at <= t.position) &&
						    (!c.a.window || at > t.position - c.a.window);

					seen |= (uint32_t)sees << j;
				}
				word[i] &= seen;
			}
		}
		if (t.line) {
#pragma unroll
			for (int i = 0; i < 4 * words; i++) {
				uint32_t eight = key + 8 * i < w.len ? t.line[key / 8 + i] : 0;

				word[i / 4] &= eight << i % 4 * 8 | ~(0xffu << i % 4 * 8);
			}
		}
#pragma unroll
		for (int i = 0; i < words; i++)
			all &= word[i] == ~0u;
		bits[attn_thread()] = make_uint4(word[0], word[1], word[2], word[3]);
	}
	all = __all_sync(~0u, all);
	if (threadIdx.x % 32 == 0)
		all_seen[attn_thread() / 32] = all;
}

/* Begins a piece: looks up the thread's part, list and token, and describes the piece to the consumers. */
template <class F>
ATTN_DEV struct attn_bsr_walk attn_begin(const struct attn_bsr_call &c, const struct attn_unit &u,
					 int32_t from, int32_t to, int32_t slot, struct attn_bsr_tile *tile,
					 struct attn_bsr_token *mine, int32_t *tokens)
{
	const struct cairn_attn_part *p = &c.a.part[u.part];
	const int32_t i = c.d.lists[u.part] + (p->index_heads > 1 ? u.kv_head : 0) * p->rows + u.row;
	const struct attn_list list = attn_bsr_list(&c.a, &c.d, i);
	const int thread = attn_thread(), token = attn_token(u.row0, c.d.magic) + thread;
	const int64_t head = u.kv_head * p->head_stride * (c.a.kv_fp8 ? 1 : 2);
	struct attn_bsr_walk w;

	w.p = p;
	w.k = (const uint8_t *)p->k + head;
	w.v = (const uint8_t *)p->v + head;
	w.blocks = p->blk_indices + p->blk_indptr[list.head * (p->rows + 1) + u.row];
	w.len = list.len;
	w.begin = u.begin + from * F::keys;
	w.num_tiles = to - from;
	w.has_token = token * c.d.group < min(u.row0 + F::rows, list.tokens * c.d.group);
	if (w.has_token) {
		int64_t position = attn_bsr_position(&c.a, &list, token);
		const uint8_t *line = NULL;

		if (p->mask_mode & CAIRN_ATTN_BITS)
			line = p->mask + p->mask_indptr[u.row] + (int64_t)token * attn_div_up(w.len, 8);
		*mine = { position, line, attn_bsr_first(&c.a, &list, position),
			  attn_bsr_end(&c.a, &list, position) };
		tokens[thread] = attn_bsr_token(p, list.first + token);
	}
	if (thread == 0)
		*tile = { w.begin, w.num_tiles, u.row0, list.tokens * c.d.group, u.kv_head * c.d.group,
			  u.part, slot, p->k_scale ? p->k_scale[u.kv_head] : 1,
			  p->v_scale ? p->v_scale[u.kv_head] : 1 };
	ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	return w;
}

/* Copies Q of a row tile; rows past those of the block row become zeros. */
template <class F>
ATTN_DEV void attn_gather_q(const struct attn_bsr_call &c, const struct attn_bsr_tile &t, uint32_t s_q,
			    const int32_t *tokens)
{
	constexpr int chunks = F::qk / 8;
	const int thread = attn_thread(), first = attn_token(t.row0, c.d.magic);

#pragma unroll 4
	for (int i = thread; i < F::rows * chunks; i += 128) {
		int in_tile = i / chunks, chunk = i % chunks, row = t.row0 + in_tile;
		int token = attn_token(row, c.d.magic);
		bool own = row < t.rows;
		int64_t at = own ? tokens[token - first] * c.a.q_stride +
				   (int64_t)(t.head + row - token * c.d.group) * F::qk : 0;

		ptx_cp_async_cg(s_q + attn_panel_at<F::rows>(in_tile, chunk),
				(const uint16_t *)c.a.q + at + chunk * 8, own ? 16 : 0);
	}
}

/* The producer's places in the rings of K and V, and its pieces so far, which tell its place in that of Q. */
struct attn_bsr_rings {
	struct attn_place k, v;
	int nth;
};

/* Waits for a free buffer of Q and returns its index. */
template <class F>
ATTN_DEV int attn_wait_q(const struct attn_smem<struct attn_bsr_tile> &s, int nth)
{
	ptx_mbarrier_wait(s.empty_q + 8 * (nth % F::q_stages), ~(nth / F::q_stages) & 1);
	return nth % F::q_stages;
}

/* Computes the masks of key tile i of a piece, whose K has been copied, and hands it to the consumers. */
template <class F>
ATTN_DEV void attn_hand_on_k(const struct attn_bsr_call &c, const struct attn_bsr_walk &w, int i,
			     const struct attn_key_at &key, const struct attn_smem<struct attn_bsr_tile> &s,
			     struct attn_bsr_rings *r, bool copies)
{
	struct attn_bsr_extra<F> *x = attn_extra<F>(s);
	int ring = r->k.stage + (int)(r->k.phase ^ 1) * F::stages;

	attn_decide<F>(c, w, w.begin + i * F::keys, key, x->mine[attn_thread()], x->positions[i % 2],
		       x->bits[ring], (uint8_t *)&x->all_seen[ring]);
	attn_fetched(s.full_k + 8 * r->k.stage, copies);
	attn_advance<F::stages>(&r->k);
}

/* Fetches the key tiles of a piece: the K of each tile, and after it the V of the tile before. */
template <class F>
ATTN_DEV void attn_fetch_16bit(const struct attn_bsr_call &c, const struct attn_bsr_walk &w,
			       const struct attn_smem<struct attn_bsr_tile> &s, struct attn_bsr_rings *r)
{
	const int own = attn_own_key<F>(), first = own < 0 ? w.len : w.begin + own;
	int32_t block = attn_block_of(w, first);
	struct attn_key_at key = { w.len, 0, -1 };

	for (int i = 0; i <= w.num_tiles; i++) {
		int64_t before = key.offset;

		if (i < w.num_tiles) {
			key = attn_next_key<F, 0>(w, own < 0 ? w.len : first + i * F::keys, &block);
			ptx_mbarrier_wait(s.empty_k + 8 * r->k.stage, r->k.phase);
			attn_gather_16bit<F, F::qk>(s.k + r->k.stage * F::k_bytes, w.k, key.offset);
			attn_hand_on_k<F>(c, w, i, key, s, r, true);
		}
		if (i == 0)
			continue;
		ptx_mbarrier_wait(s.empty_v + 8 * r->v.stage, r->v.phase);
		attn_gather_16bit<F, F::v>(s.v + r->v.stage * F::v_bytes, w.v, before);
		attn_fetched(s.full_v + 8 * r->v.stage, true);
		attn_advance<F::stages>(&r->v);
	}
}

/*
 * Fetches the key tiles of a piece of 8-bit keys. Tiles K 0, V 0, K 1, V 1, ... pass through a ring of
 * F::raw_stages stages; while one of them is converted, the others are in flight.
 */
template <class F, int dtype>
ATTN_DEV void attn_fetch_8bit(const struct attn_bsr_call &c, const struct attn_bsr_walk &w,
			      const struct attn_smem<struct attn_bsr_tile> &s, struct attn_bsr_rings *r)
{
	constexpr int ahead = F::raw_stages - 1;
	const int own = attn_own_key<F>(), first = own < 0 ? w.len : w.begin + own, tiles = 2 * w.num_tiles;
	const uint32_t raw = ptx_smem(attn_extra<F>(s)->raw);
	int32_t block = attn_block_of(w, first);
	struct attn_key_at key = { w.len, 0, -1 }, before = key;
	int in = 0, out = 0;		/* places in the ring */

	static_assert(ahead == 0 || ahead == 2, "`before` is the key of the tile that is converted");
	for (int i = 0; i < tiles + ahead; i++) {
		int k = i - ahead;

		if (i < tiles && i % 2 == 0) {
			before = key;
			key = attn_next_key<F, 1>(w, own < 0 ? w.len : first + i / 2 * F::keys, &block);
		} else if (i == tiles) {
			before = key;
		}
		if (i < tiles) {
			attn_gather_8bit<F, F::qk>(raw + in * F::raw_bytes, i % 2 ? w.v : w.k, key.offset);
			in = in == ahead ? 0 : in + 1;
		}
		ptx_cp_async_commit_group();
		if (k < 0)
			continue;
		ptx_cp_async_wait_group<ahead>();
		__syncwarp();
		if (k % 2 == 0) {
			ptx_mbarrier_wait(s.empty_k + 8 * r->k.stage, r->k.phase);
			attn_convert_8bit<dtype, F::keys, F::qk>(s.k + r->k.stage * F::k_bytes,
								 raw + out * F::raw_bytes, attn_thread());
			attn_hand_on_k<F>(c, w, k / 2, ahead ? before : key, s, r, false);
		} else {
			ptx_mbarrier_wait(s.empty_v + 8 * r->v.stage, r->v.phase);
			attn_convert_8bit<dtype, F::keys, F::v>(s.v + r->v.stage * F::v_bytes,
								raw + out * F::raw_bytes, attn_thread());
			attn_fetched(s.full_v + 8 * r->v.stage, false);
			attn_advance<F::stages>(&r->v);
		}
		out = out == ahead ? 0 : out + 1;
	}
}

/* Fetches the key tiles from .. to - 1 of a unit. */
template <class F, int dtype>
ATTN_DEV void attn_fetch(const struct attn_bsr_call &c, const struct attn_unit &u, int32_t from, int32_t to,
			 int32_t slot, const struct attn_smem<struct attn_bsr_tile> &s,
			 struct attn_bsr_rings *r)
{
	struct attn_bsr_tile *tile = &s.tiles[r->nth % ATTN_NUM_TILES];
	int32_t *tokens = attn_extra<F>(s)->tokens[r->nth % ATTN_NUM_TILES];
	struct attn_bsr_walk w = attn_begin<F>(c, u, from, to, slot, tile,
						    &attn_extra<F>(s)->mine[attn_thread()], tokens);
	const int buffer = attn_wait_q<F>(s, r->nth);

	attn_gather_q<F>(c, *tile, s.q + buffer * F::q_bytes, tokens);
	attn_fetched(s.full_q + 8 * buffer, true);
	if constexpr (F::raw_stages > 0)
		attn_fetch_8bit<F, dtype>(c, w, s, r);
	else
		attn_fetch_16bit<F>(c, w, s, r);
	r->nth++;
}

/* A run: its first unit and key tile, and those at which it ends. */
struct attn_run_range {
	struct attn_run begin, end;
};

ATTN_DEV struct attn_run_range attn_range_of(const struct attn_bsr_call &c, int32_t run)
{
	/* read anew each time, so that the range does not occupy registers during the fetch */
	if (__ldcg(&c.w.head->whole))
		return { { run, 0 }, { run + 1, 0 } };
	int4 range = make_int4(__ldcg(&c.w.runs[run].unit), __ldcg(&c.w.runs[run].tile),
			       __ldcg(&c.w.runs[run + 1].unit), __ldcg(&c.w.runs[run + 1].tile));

	return { { range.x, range.y }, { range.z, range.w } };
}

/* Returns the run after this one. */
ATTN_DEV int32_t attn_next_run(const struct attn_bsr_call &c, int32_t *s_next)
{
	if (!__ldcg(&c.w.head->whole))
		return __ldcg(&c.w.head->runs);
	/* all threads have read the previous *s_next */
	ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	if (attn_thread() == 0)
		*s_next = atomicAdd(&c.w.head->next, 1);
	ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	return *s_next;
}

/* The producer: takes runs and fetches their pieces in order, as far ahead as the stages allow. */
template <class F, int dtype>
ATTN_DEV void attn_bsr_produce(const struct attn_bsr_call &c, const struct attn_smem<struct attn_bsr_tile> &s)
{
	struct attn_bsr_rings r = { { 0, 1 }, { 0, 1 }, 0 };
	int buffer;

	for (int32_t run = blockIdx.x; run < __ldcg(&c.w.head->runs);
	     run = attn_next_run(c, &attn_extra<F>(s)->next)) {
		for (int32_t i = attn_range_of(c, run).begin.unit;; i++) {
			struct attn_run_range w = attn_range_of(c, run);
			int32_t from = i == w.begin.unit ? w.begin.tile : 0, to = w.end.tile;
			struct attn_unit u;

			if (i > w.end.unit || (i == w.end.unit && !to))
				break;
			u = c.w.units[i];
			to = i == w.end.unit ? to : u.num_tiles;
			if (from < to)
				attn_fetch<F, dtype>(c, u, from, to, attn_piece_slot(&u, run, from, to), s,
						     &r);
		}
	}
	buffer = attn_wait_q<F>(s, r.nth);
	if (attn_thread() == 0)
		s.tiles[r.nth % ATTN_NUM_TILES].num_tiles = -1;
	attn_fetched(s.full_q + 8 * buffer, true);
}

#endif
