/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_fetch - the producer warpgroup of attn_bsr: takes runs, fetches Q, K and V, computes the masks
 *
 * attn_bsr_copy.cuh copies keys. Block ids are loaded one key tile ahead, because the copies depend on them.
 * Completed copies arrive at the mbarriers of the consumers or, with 8-bit keys, at those of the converter
 * (attn_bsr_convert.cuh).
 *
 * Slots past the end of a list, and those before all windows of a row tile, may hold NaN. K may keep such
 * slots, because the logits of their keys are overwritten; in V they must be zeros, so that p = 0 is never
 * multiplied by a NaN. So if a box holds such slots, threads copy that tile of V.
 */
#ifndef CAIRN_ATTN_BSR_FETCH_CUH
#define CAIRN_ATTN_BSR_FETCH_CUH

#include "fused/attention/bsr/attn_bsr_convert.cuh"

#define ATTN_BAR_PRODUCER	8	/* for the producer's 128 threads */

/*
 * The lane's key in the tile after the one that is being fetched; its block is being loaded. n is its number
 * in the list, nth that of its block.
 */
struct attn_key_ahead {
	int32_t n, nth, slot, block;
};

/* Starts to load the block of the lane's key `own` of the piece's first tile. */
ATTN_DEV struct attn_key_ahead attn_first_key(const struct attn_bsr_walk &w, int own)
{
	const int32_t n = own < 0 ? w.len : w.begin + own, nth = n / w.block_n;

	return { n, nth, n - nth * w.block_n, n < w.len ? w.blocks[nth] : 0 };
}

/*
 * Returns the key that was looked up ahead, and starts to load the block of the lane's key in the next tile.
 */
template <class F>
ATTN_DEV struct attn_key_at attn_next_key(const struct attn_bsr_walk &w, struct attn_key_ahead *a)
{
	const bool exists = a->n < w.len;
	const struct attn_key_at key = { a->block, exists ? a->slot : -1 };

	a->n += exists ? F::keys : 0;
	a->nth += w.step_blocks;
	a->slot += w.step_slots;
	if (a->slot >= w.block_n) {
		a->slot -= w.block_n;
		a->nth++;
	}
	a->block = a->n < w.len ? w.blocks[a->nth] : 0;
	return key;
}

/* Returns a word whose bits below bit n are set. */
ATTN_DEV uint32_t attn_bits_below(int32_t n)
{
	return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}

/*
 * Computes which keys of the key tile that begins at `key` the thread's token sees, and writes the result as
 * bits for the consumers, unless all tokens are known to see all of them. own is the key whose location the
 * thread holds; positions is shared memory through which the threads exchange the positions of these keys.
 */
template <class F>
ATTN_DEV void attn_decide(const struct attn_bsr_call &c, const struct attn_bsr_walk &w, int key,
			  const struct attn_key_at &own, const struct attn_bsr_token &t, int32_t *positions,
			  uint4 *bits, uint8_t *all_seen)
{
	constexpr int words = F::keys / 32;
	const struct cairn_attn_part *p = &c.a.part[w.part];
	uint32_t word[4] = { ~0u, ~0u, ~0u, ~0u };
	bool all = true;

	if (key >= w.all_first && key + F::keys <= w.all_end)
		return;
	if (w.positions) {
		if (own.slot >= 0)
			positions[attn_own_key<F>()] = p->key_pos[(int64_t)own.block * p->block_n + own.slot];
		ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	}
	if (w.has_token) {
#pragma unroll
		for (int i = 0; i < words; i++)
			word[i] = attn_bits_below(t.end - key - 32 * i) &
				  ~attn_bits_below(t.first - key - 32 * i);
		if (w.positions) {
			bool causal = p->mask_mode & CAIRN_ATTN_CAUSAL;

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
		bits[attn_producer_thread()] = make_uint4(word[0], word[1], word[2], word[3]);
	}
	all = __all_sync(~0u, all);
	if (threadIdx.x % 32 == 0)
		all_seen[attn_producer_thread() / 32] = all;
}

/* Returns a range of keys that every token of a row tile sees: the largest one that is cheap to find. */
ATTN_DEV int2 attn_seen_by_all(const struct attn_bsr_call &c, const struct attn_list &list, int token,
			       int tokens)
{
	const struct cairn_attn_part *p = &c.a.part[list.part];

	if (p->key_pos || p->mask_mode & CAIRN_ATTN_BITS || (c.a.q_pos && tokens > 1))
		return make_int2(0, 0);
	/* positions ascend: the last token's range begins last, the first token's ends first */
	return make_int2(attn_bsr_first(&c.a, &list, attn_bsr_position(&c.a, &list, token + tokens - 1)),
			 attn_bsr_end(&c.a, &list, attn_bsr_position(&c.a, &list, token)));
}

/* Begins a piece: looks up the thread's part, list and token, and describes the piece to the consumers. */
template <class F>
ATTN_DEV struct attn_bsr_walk attn_begin(const struct attn_bsr_call &c, const struct attn_bsr_maps &maps,
					 const struct attn_unit &u, int32_t from, int32_t to, int32_t slot,
					 struct attn_bsr_tile *tile, struct attn_bsr_token *mine,
					 int32_t *tokens)
{
	const struct cairn_attn_part *p = &c.a.part[u.part];
	const struct attn_list list =
		attn_bsr_list_at(&c.a, &c.d, u.part, p->index_heads > 1 ? u.kv_head : 0, u.row);
	const int first = attn_token(u.row0, c.d.magic);
	const int thread = attn_producer_thread(), token = first + thread;
	const int rows = min(u.row0 + F::rows, list.tokens * c.d.group);
	const int own = attn_own_key<F>();
	const int2 seen = attn_seen_by_all(c, list, first, attn_token(rows - 1, c.d.magic) + 1 - first);
	struct attn_bsr_walk w;
	bool cut_short;		/* the last box ends behind the list */

	w.part = u.part;
	w.map = &maps.of[0][u.part];
	w.box = c.d.box[u.part];
	w.head = u.kv_head * p->head_stride;
	w.blocks = p->blk_indices + p->blk_indptr[list.head * (p->rows + 1) + u.row];
	w.len = list.len;
	w.begin = u.begin + from * F::keys;
	w.num_tiles = to - from;
	w.hidden = from ? 0 : u.hidden;
	w.box_from = w.box <= 0 ? w.num_tiles : w.hidden > 0;
	cut_short = w.begin + w.num_tiles * F::keys > w.len && w.len & (w.box - 1);
	w.box_to = max(w.box_from, w.num_tiles - cut_short);
	w.box_key = own >= 0 && !(own & (w.box - 1)) ? own : -1;
	w.block_n = p->block_n;
	w.positions = p->key_pos;
	w.step_blocks = c.d.step_blocks[u.part];
	w.step_slots = c.d.step_slots[u.part];
	w.all_first = seen.x;
	w.all_end = seen.y;
	w.has_token = token * c.d.group < rows;
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
			  u.part, slot, w.box_from > 0 || w.box_to < w.num_tiles, seen.x, seen.y,
			  p->k_scale ? p->k_scale[u.kv_head] : 1,
			  p->v_scale ? p->v_scale[u.kv_head] : 1 };
	ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	return w;
}

/* Copies Q of a full row tile, whose tokens are consecutive, by TMA. mbar counts the bytes. */
template <class F>
ATTN_DEV void attn_copy_q(const struct attn_bsr_maps &maps, int32_t head, int32_t token, uint32_t s_q,
			  uint32_t mbar)
{
	if (attn_producer_thread())
		return;
	ptx_mbarrier_expect_tx(mbar, F::q_bytes);
#pragma unroll
	for (int i = 0; i < F::qk_panels; i++)
		ptx_cp_async_bulk_tensor_3d_g2s(s_q + i * F::rows * ATTN_PANEL, &maps.q, i * 64, head, token,
						mbar);
}

/*
 * Copies Q of a row tile by threads. What the tile's rows past those of the block row hold reaches no result.
 */
template <class F>
ATTN_DEV void attn_gather_q(const struct attn_bsr_call &c, const struct attn_bsr_tile &t, uint32_t s_q,
			    const int32_t *tokens)
{
	constexpr int chunks = F::qk / 8;
	const int thread = attn_producer_thread(), first = attn_token(t.row0, c.d.magic);

	const int own = min(F::rows, t.rows - t.row0) * chunks;

#pragma unroll 4
	for (int i = thread; i < own; i += 128) {
		int in_tile = i / chunks, chunk = i % chunks, row = t.row0 + in_tile;
		int token = attn_token(row, c.d.magic);
		int64_t at = tokens[token - first] * c.a.q_stride +
			     (int64_t)(t.head + row - token * c.d.group) * F::qk;

		ptx_cp_async_cg(s_q + attn_panel_at<F::rows>(in_tile, chunk),
				(const uint16_t *)c.a.q + at + chunk * 8, 16);
	}
}

/*
 * The producer's positions in the rings of K and V, or in the ring for 8-bit keys. nth counts its pieces so
 * far, which gives its position in the ring of Q. `k` always counts the tiles of K.
 */
struct attn_bsr_rings {
	struct attn_place k, v, raw;
	int nth;
	struct attn_bsr_converter own;	/* used if the producer also converts */
};

/* The destination of a tile, and the mbarrier at which its copies arrive. */
struct attn_target {
	uint32_t tile, full;
};

/* Waits until there is room for the next tile of K or V. */
template <class F>
ATTN_DEV struct attn_target attn_wait_room(const struct attn_smem<struct attn_bsr_tile> &s,
					   const struct attn_bsr_rings &r, enum attn_raw kind)
{
	struct attn_bsr_extra<F> *x = attn_extra<F>(s);

	if (F::raw_stages) {
		ptx_mbarrier_wait(ptx_smem(&x->empty[r.raw.stage]), r.raw.phase);
		if (attn_producer_thread() == 0)
			x->kind[r.raw.stage] = kind;
		return { ptx_smem(x->raw) + r.raw.stage * F::raw_bytes, ptx_smem(&x->full[r.raw.stage]) };
	}
	if (kind == ATTN_RAW_K) {
		ptx_mbarrier_wait(s.empty_k + 8 * r.k.stage, r.k.phase);
		return { s.k + r.k.stage * F::k_bytes, s.full_k + 8 * r.k.stage };
	}
	ptx_mbarrier_wait(s.empty_v + 8 * r.v.stage, r.v.phase);
	return { s.v + r.v.stage * F::v_bytes, s.full_v + 8 * r.v.stage };
}

/* Waits for a free buffer of Q and returns its index. */
template <class F>
ATTN_DEV int attn_wait_q(const struct attn_smem<struct attn_bsr_tile> &s, int nth)
{
	ptx_mbarrier_wait(s.empty_q + 8 * (nth % F::q_stages), ~(nth / F::q_stages) & 1);
	return nth % F::q_stages;
}

/* Advances in the ring for 8-bit keys. If there is no converter, converts the tile that has been fetched. */
template <class F, int dtype>
ATTN_DEV void attn_pass_raw(const struct attn_smem<struct attn_bsr_tile> &s, struct attn_bsr_rings *r)
{
	attn_advance<F::raw_stages>(&r->raw);
	if (!F::converter_regs)
		attn_convert_tile<F, dtype>(s, &r->own);
}

/* Fetches K of key tile i of a piece, and computes the masks of the tile. */
template <class F, int dtype>
ATTN_DEV void attn_fetch_k(const struct attn_bsr_call &c, const struct attn_bsr_walk &w, int i,
			   const struct attn_key_at &key, const struct attn_smem<struct attn_bsr_tile> &s,
			   struct attn_bsr_rings *r)
{
	const struct attn_target to = attn_wait_room<F>(s, *r, ATTN_RAW_K);
	const int ring = r->k.stage + (int)(r->k.phase ^ 1) * F::stages;
	struct attn_bsr_extra<F> *x = attn_extra<F>(s);

	if (w.box > 0)
		attn_copy_box<F::qk * F::element_bytes>(w, 0, key, to.tile, to.full);
	else
		attn_gather_keys<F>(c, w, 0, key, to.tile);
	attn_decide<F>(c, w, w.begin + i * F::keys, key, x->mine[attn_producer_thread()], x->positions[i % 2],
		       x->bits[ring], (uint8_t *)&x->all_seen[ring]);
	attn_fetched(to.full, w.box <= 0);
	attn_advance<F::stages>(&r->k);
	if constexpr (F::raw_stages > 0)
		attn_pass_raw<F, dtype>(s, r);
}

/* A piece: the run that it belongs to, and key tiles from .. min(to, key tiles of the unit) - 1 of a unit. */
struct attn_piece {
	int32_t run, unit, from, to;
};

/*
 * If CTAs draw runs, draws the next one. Thread 0 gets its number, but must not use it yet, because that
 * would wait for memory.
 */
template <class F>
ATTN_DEV int32_t attn_draw(const struct attn_bsr_call &c, const struct attn_bsr_extra<F> *x)
{
	return x->whole && attn_producer_thread() == 0 ? atomicAdd(&c.w.head->next, 1) : 0;
}

/* Loads a word into the L1 as well; the caller need not use it. */
ATTN_DEV uint32_t attn_touch_word(const int32_t *word)
{
	uint32_t value;

	asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
	return value;
}

/*
 * Thread 0 brings what attn_begin() will read into the L1: the unit of the run that it has drawn (far) or,
 * one key tile later, what describes the list of this unit.
 */
template <class F>
ATTN_DEV void attn_touch(const struct attn_bsr_call &c, const struct attn_bsr_extra<F> *x, int32_t drawn,
			 bool far)
{
	const struct attn_unit *u = c.w.units + drawn;
	const struct cairn_attn_part *p;
	int32_t head, i;

	if (attn_producer_thread() || !x->whole || drawn >= x->runs)
		return;
	if (far) {
		attn_touch_word(&u->part);
		return;
	}
	p = &c.a.part[u->part];
	head = p->index_heads > 1 ? u->kv_head : 0;
	i = head * p->rows + u->row;
	attn_touch_word(p->blk_indptr + i + head);
	if (p->row_indptr)
		attn_touch_word(p->row_indptr + u->row);
	if (p->last_len)
		attn_touch_word(p->last_len + i);
	if (p->kv_pos0)
		attn_touch_word(p->kv_pos0 + u->row);
}

/* Finds the piece after *at, whose unit is -1 at first. Returns whether there is one. */
template <class F>
ATTN_DEV bool attn_find_piece(const struct attn_bsr_call &c, struct attn_bsr_extra<F> *x,
			      struct attn_piece *at, int32_t drawn)
{
	if (x->whole) {
		if (at->unit >= 0) {
			if (attn_producer_thread() == 0) {
				x->next = drawn;
				/* there are as many draws as runs; the last one resets the counter */
				if (drawn == c.d.ctas + x->runs - 1)
					c.w.head->next = c.d.ctas;
			}
			ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
			at->run = x->next;
		}
		*at = { at->run, at->run, 0, 0x7fffffff };
		return at->run < x->runs;
	}
	if (at->run >= x->runs)
		return false;
	at->unit = at->unit < 0 ? x->begin.unit : at->unit + 1;
	at->from = at->unit == x->begin.unit ? x->begin.tile : 0;
	at->to = at->unit == x->end.unit ? x->end.tile : 0x7fffffff;
	return at->unit < x->end.unit || (at->unit == x->end.unit && at->from < x->end.tile);
}

/* Begins piece `at`, which *w then describes. attn_fetch_q() must follow. */
template <class F>
ATTN_DEV void attn_begin_piece(const struct attn_bsr_call &c, const struct attn_bsr_maps &maps,
			       const struct attn_smem<struct attn_bsr_tile> &s,
			       const struct attn_bsr_rings *r, const struct attn_piece &at,
			       struct attn_bsr_walk *w)
{
	const struct attn_unit u = c.w.units[at.unit];
	const int32_t to = min(at.to, u.num_tiles), nth = r->nth % F::tiles;
	struct attn_bsr_extra<F> *x = attn_extra<F>(s);

	*w = attn_begin<F>(c, maps, u, at.from, to, attn_piece_slot(&u, at.run, at.from, to), &s.tiles[nth],
			   &x->mine[attn_producer_thread()], x->tokens[nth]);
}

/* Fetches Q of the piece that has been begun. */
template <class F>
ATTN_DEV void attn_fetch_q(const struct attn_bsr_call &c, const struct attn_bsr_maps &maps,
			   const struct attn_smem<struct attn_bsr_tile> &s, struct attn_bsr_rings *r)
{
	const int buffer = attn_wait_q<F>(s, r->nth);
	const struct attn_bsr_tile &t = s.tiles[r->nth % F::tiles];
	const int32_t *tokens = attn_extra<F>(s)->tokens[r->nth % F::tiles];
	const uint32_t s_q = s.q + buffer * F::q_bytes, full = s.full_q + 8 * buffer;
	const bool box = c.d.box_q && t.rows - t.row0 >= F::rows;

	if (box)
		attn_copy_q<F>(maps, t.head, tokens[0], s_q, full);
	else
		attn_gather_q<F>(c, t, s_q, tokens);
	attn_fetched(full, !box);
	r->nth++;
}

/* Fetches V of key tile i of a piece. If one of its boxes holds slots that may be NaN, threads copy it. */
template <class F, int dtype>
ATTN_DEV void attn_fetch_v(const struct attn_bsr_call &c, const struct attn_bsr_walk &w, int i,
			   struct attn_key_at key, const struct attn_smem<struct attn_bsr_tile> &s,
			   struct attn_bsr_rings *r)
{
	const struct attn_target to = attn_wait_room<F>(s, *r, ATTN_RAW_V);
	/* box_from <= i < box_to, by one comparison */
	const bool boxes = (unsigned int)(i - w.box_from) < (unsigned int)(w.box_to - w.box_from);

	if (i == 0 && attn_own_key<F>() < w.hidden)
		key.slot = -1;
	if (boxes)
		attn_copy_box<F::v * F::element_bytes>(w, 1, key, to.tile, to.full);
	else
		attn_gather_keys<F>(c, w, 1, key, to.tile);
	attn_fetched(to.full, !boxes);
	if constexpr (F::raw_stages > 0)
		attn_pass_raw<F, dtype>(s, r);
	else
		attn_advance<F::stages>(&r->v);
}

/*
 * Fetches the key tiles of piece *w: the K of each tile, followed by the V of the tile before. It draws the
 * next run two tiles before the end, so that nothing waits for the round trip to memory, and touches what
 * describes it, which gains nothing with one consumer warpgroup. It begins the next piece before the last V,
 * which has no room until the consumers have finished a step. If Q has only one buffer, that buffer is in use
 * until the last product with K, so the Q of the next piece follows its first K. Sets *at and *w to the next
 * piece, and returns whether there is one.
 */
template <class F, int dtype>
ATTN_DEV bool attn_fetch(const struct attn_bsr_call &c, const struct attn_bsr_maps &maps,
			 const struct attn_smem<struct attn_bsr_tile> &s, struct attn_bsr_rings *r,
			 struct attn_piece *at, struct attn_bsr_walk *w)
{
	const struct attn_bsr_walk piece = *w;
	const int last = piece.num_tiles - 1;
	struct attn_key_ahead ahead = attn_first_key(piece, attn_own_key<F>());
	struct attn_key_at before = {}, key = attn_next_key<F>(piece, &ahead);
	int32_t drawn = 0;
	bool more = false;

	for (int i = 0; i <= last; i++) {
		if (F::groups > 1 && last >= 2 && i >= last - 1)
			attn_touch<F>(c, attn_extra<F>(s), drawn, i < last);
		attn_fetch_k<F, dtype>(c, piece, i, key, s, r);
		if (F::q_stages == 1 && i == 0)
			attn_fetch_q<F>(c, maps, s, r);
		if (i == max(0, last - 2))
			drawn = attn_draw<F>(c, attn_extra<F>(s));
		if (i > 0)
			attn_fetch_v<F, dtype>(c, piece, i - 1, before, s, r);
		before = key;
		key = attn_next_key<F>(piece, &ahead);
		if (i == last)
			more = attn_find_piece<F>(c, attn_extra<F>(s), at, drawn);
	}
	if (more)
		attn_begin_piece<F>(c, maps, s, r, *at, w);
	if (more && F::q_stages > 1)
		attn_fetch_q<F>(c, maps, s, r);
	attn_fetch_v<F, dtype>(c, piece, last, before, s, r);
	return more;
}

/* The producer: takes runs and fetches their pieces in order, as far ahead as the stages allow. */
template <class F, int dtype>
ATTN_DEV void attn_bsr_produce(const struct attn_bsr_call &c, const struct attn_bsr_maps &maps,
			       const struct attn_smem<struct attn_bsr_tile> &s)
{
	struct attn_bsr_rings r = { { 0, 1 }, { 0, 1 }, { 0, 1 }, 0, {} };
	struct attn_piece at = { (int32_t)blockIdx.x, -1 };
	struct attn_bsr_extra<F> *x = attn_extra<F>(s);
	struct attn_bsr_walk w;
	bool more;
	int buffer;

	if (F::raw_stages && !F::converter_regs)
		r.own = attn_begin_convert<F>();
	if (attn_producer_thread() == 0) {
		x->runs = __ldcg(&c.w.head->runs);
		x->whole = __ldcg(&c.w.head->whole);
		if (!x->whole && at.run < x->runs) {
			x->begin = c.w.runs[at.run];
			x->end = c.w.runs[at.run + 1];
		}
	}
	ptx_bar_sync(ATTN_BAR_PRODUCER, 128);
	more = attn_find_piece<F>(c, x, &at, 0);
	if (more)
		attn_begin_piece<F>(c, maps, s, &r, at, &w);
	if (more && F::q_stages > 1)
		attn_fetch_q<F>(c, maps, s, &r);
	while (more)
		more = attn_fetch<F, dtype>(c, maps, s, &r, &at, &w);
	if (F::converter_regs)
		attn_fetched(attn_wait_room<F>(s, r, ATTN_RAW_END).full, false);
	buffer = attn_wait_q<F>(s, r.nth);
	if (attn_producer_thread() == 0)
		s.tiles[r.nth % F::tiles].num_tiles = -1;
	attn_fetched(s.full_q + 8 * buffer, true);
}

#endif
