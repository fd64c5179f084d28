/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_prefill_fetch - the producer warpgroup of the prefill kernel: chooses the next tile, fetches its Q, K
 * and V
 *
 * Key tiles are fetched in one of two ways. If the page size is a power of two of at least MIN_BOX slots, the
 * copy engine (TMA) fetches them in boxes of one page by 64 elements: lane i of the first warp starts box i,
 * and no other work is left. Otherwise all four warps copy 16 bytes a thread and write zeros for keys that do
 * not exist. They also do so for a tile that extends past the keys of the request or before its first window,
 * where slots may hold NaN or not exist.
 */
#ifndef CAIRN_ATTN_PREFILL_FETCH_CUH
#define CAIRN_ATTN_PREFILL_FETCH_CUH

#include <cuda.h>

#include "fused/attention/paged/attn_widen.cuh"
#include "fused/attention/paged/attn_paged_walk.cuh"

#define GROUPS		2			/* warpgroups that multiply; one more fetches */
#define THREADS		((GROUPS + 1) * 128)
#define ROWS		ATTN_PREFILL_ROWS
static_assert(ROWS == GROUPS * 64, "a warpgroup has 64 rows");
#define MIN_BOX		32			/* slots; smaller boxes are slower than threads */

/*
 * The form of a kernel: keys of a tile, bytes of a K or V tile and of Q, stages of K and of V; of 8-bit keys
 * also the ring of codes; shared memory of a CTA.
 */
template <int dim_, bool fp8_> struct form {
	static constexpr int dim = dim_, keys = dim == 256 ? 64 : 128;
	static constexpr bool fp8 = fp8_;
	static constexpr int stages = dim == 256 || (fp8 && dim == 128) ? 2 : dim == 128 ? 3 : 4;
	static constexpr int bytes = keys * dim * 2, q_bytes = ROWS * dim * 2;
	static constexpr int raw_stages = !fp8 ? 0 : dim == 256 ? 2 : 4, raw_bytes = keys * dim;
	static constexpr int data_bytes = q_bytes + 2 * stages * bytes + raw_stages * raw_bytes;
	static constexpr int smem_bytes = data_bytes + 256;
};

/*
 * A debug build serves compute-sanitizer's racecheck, which does not see asynchronous arrivals of
 * cp.async, nor that an elected lane arrives for its warp, and which miscounts after bar.arrive. The turns
 * order no memory, so a debug build leaves them out.
 */
#ifdef CAIRN_DEBUG
#define COPIER_WAITS	1
#define RELEASERS	32		/* lanes of a warp that arrive when it releases a stage */
#define TURNS		0
#else
#define COPIER_WAITS	0
#define RELEASERS	1
#define TURNS		1
#endif

/* The order in which CTAs take tiles: the device's list, or computed if all requests are alike. */
struct plan {
	const int32_t *list;		/* { entries, 0, then request and row tile of each }; NULL: none */
	int32_t batch, row_tiles;	/* requests, row tiles of each; without a list */
	int32_t section;		/* pairs of request and KV head whose keys the L2 can hold together */
	int32_t box;			/* keys that the copy engine fetches at once; 0: threads copy */
};

/* K and V pages as [slots][heads * head_dim], in boxes of plan.box slots and 64 elements. */
struct maps {
	CUtensorMap k, v;
};

/* A tile's description, from the producer to the consumers. */
struct tile {
	int32_t qo_first, qo_len, kv_len, head;
	int32_t row0, begin, num_tiles;	/* first packed row, first key, key tiles; num_tiles -1: the end */
	struct attn_scales scales;	/* of the KV head */
};

/* Shared memory: 32-bit addresses, and a pointer to the tile's description. */
struct shared {
	uint32_t q, k, v, raw;		/* k and v: [stages] tiles; raw: [raw_stages] tiles of codes */
	uint32_t full_q, empty_q, full_k, empty_k, full_v, empty_v;	/* mbarriers; k and v: [stages] */
	struct tile *tile;
};

template <class F>
ATTN_DEV struct shared lay_out(uint8_t *s_all)
{
	uint32_t at = ptx_smem(s_all) + F::data_bytes;
	struct shared s;

	s.q = ptx_smem(s_all);
	s.k = s.q + F::q_bytes;
	s.v = s.k + F::stages * F::bytes;
	s.raw = s.v + F::stages * F::bytes;
	s.full_q = at;
	s.empty_q = at + 8;
	s.full_k = at + 16;
	s.empty_k = at + 48;
	s.full_v = at + 80;
	s.empty_v = at + 112;
	s.tile = (struct tile *)(s_all + F::data_bytes + 160);
	return s;
}

/* A position in a ring of tiles. In the first round a consumer waits for phase 0, a producer for phase 1. */
struct place {
	int stage;
	uint32_t phase;
};

template <int stages> ATTN_DEV void advance(struct place *p)
{
	p->stage++;
	if (p->stage == stages) {
		p->stage = 0;
		p->phase ^= 1;
	}
}

/*
 * Finds the nth tile of this CTA: request, KV head and row tile. Returns 0 if there is none. Tiles are
 * ordered from the longest to the shortest, as far as lengths are known. The CTAs take them in alternating
 * directions, which balances their work.
 */
ATTN_DEV int nth_tile(const struct cairn_attn_paged_args &a, const struct plan &plan, int nth, int *b,
		      int *head, int *row_tile)
{
	int cta = nth & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x, i = nth * gridDim.x + cta;
	int pairs, first, in_section;

	if (plan.list) {
		if (i >= plan.list[0] * a.num_kv_heads)
			return 0;
		*head = i % a.num_kv_heads;
		i /= a.num_kv_heads;
		*b = plan.list[2 + 2 * i];
		*row_tile = plan.list[3 + 2 * i];
		return 1;
	}
	pairs = plan.batch * a.num_kv_heads;
	if (i >= pairs * plan.row_tiles)
		return 0;
	first = i / (plan.section * plan.row_tiles) * plan.section;
	in_section = min(plan.section, pairs - first);
	i -= first * plan.row_tiles;
	*row_tile = plan.row_tiles - 1 - i / in_section;
	first += i % in_section;
	*b = first / a.num_kv_heads;
	*head = first % a.num_kv_heads;
	return 1;
}

template <int dim>
ATTN_DEV void gather_q(const struct cairn_attn_paged_args &a, const struct attn_request &r, uint32_t s_q,
		       int row0, int rows)
{
	constexpr int chunks = dim / 8;

#pragma unroll 4
	for (int i = threadIdx.x % 128; i < ROWS * chunks; i += 128) {
		int in_tile = i / chunks, chunk = i % chunks, row = row0 + in_tile;
		int64_t at = row < rows ? attn_q_row(a, r, row) + chunk * 8 : 0;

		ptx_cp_async_cg(s_q + attn_panel_at<ROWS>(in_tile, chunk), (const uint16_t *)a.q + at,
				row < rows ? 16 : 0);
	}
}

/*
 * Starts the copy of this warp's share of a tile's keys; lane i passes the slot of the share's key i, or ~0
 * for a key that does not exist. Such a key becomes a row of zeros, so that p = 0 is never multiplied by a
 * NaN of an unused slot.
 */
template <class F>
ATTN_DEV void gather_tile(const struct cairn_attn_paged_args &a, const void *pages, int head, uint32_t s_tile,
			  uint32_t slot)
{
	constexpr int dim = F::dim, keys = F::keys, share = keys / 4;
	constexpr int chunks = dim / 8, per_pass = 32 / chunks;
	int lane = threadIdx.x % 32, row = lane / chunks, chunk = lane % chunks;
	uint32_t slot_bytes = a.num_kv_heads * dim * 2;
	const char *from = (const char *)pages + head * dim * 2 + chunk * 16;

	/* share is a multiple of 8, so that the swizzle of row + i is that of row ^ i below 8 */
	s_tile += attn_panel_at<keys>(threadIdx.x % 128 / 32 * share + row, chunk);
#pragma unroll
	for (int i = 0; i < share; i += per_pass) {
		uint32_t key = __shfl_sync(~0u, slot, i + row), bytes = key == ~0u ? 0 : 16;

		ptx_cp_async_cg((s_tile ^ (i & 7) << 4) + i * ATTN_PANEL,
				from + (uint64_t)(key == ~0u ? 0 : key) * slot_bytes, bytes);
	}
}

/* The same for keys of 8 bits: copies their codes to the ring. */
template <class F>
ATTN_DEV void gather_codes(const struct cairn_attn_paged_args &a, const void *pages, int head, uint32_t s_raw,
			   uint32_t slot)
{
	constexpr int dim = F::dim, share = F::keys / 4, pieces = dim / 16, per_pass = 32 / pieces;
	int lane = threadIdx.x % 32, row = lane / pieces, piece = lane % pieces;
	uint32_t slot_bytes = a.num_kv_heads * dim;
	const char *from = (const char *)pages + head * dim + piece * 16;

	/* share is even, and so is per_pass: the swizzle of row + i is that of row */
	s_raw += attn_raw_at<dim>(threadIdx.x % 128 / 32 * share + row, piece);
#pragma unroll
	for (int i = 0; i < share; i += per_pass) {
		uint32_t key = __shfl_sync(~0u, slot, i + row), bytes = key == ~0u ? 0 : 16;

		ptx_cp_async_cg(s_raw + i * dim, from + (uint64_t)(key == ~0u ? 0 : key) * slot_bytes, bytes);
	}
}

/*
 * Copies a tile of 16-bit keys by the copy engine: lane i of the first warp passes the first slot of box i
 * and starts the box.
 */
template <class F>
ATTN_DEV void copy_tile(const CUtensorMap *map, int box, int head, uint32_t s_tile, uint32_t slot,
			uint32_t mbar)
{
	constexpr int dim = F::dim, keys = F::keys, panels = dim / 64;
	int i = threadIdx.x % 128, row = i / panels * box, panel = i % panels;

	if (i == 0)
		ptx_mbarrier_arrive_expect_tx(mbar, F::bytes);
	else
		ptx_mbarrier_arrive(mbar);
	if (i < 32)
		__syncwarp();
	if (i < keys / box * panels)
		ptx_cp_async_bulk_tensor_2d_g2s(s_tile + panel * keys * ATTN_PANEL + row * ATTN_PANEL, map,
						head * dim + panel * 64, (int)slot, mbar);
}

/* The producer's walk over the keys of a row tile. */
struct walk {
	int32_t begin;			/* first key of the first key tile, a multiple of box */
	int32_t first, end;		/* the rows of the tile see the keys first .. end-1 */
	int32_t low, high;		/* some row of the request sees low .. high-1: boxes may hold these */
	int32_t page_shift, box;
};

/* Returns whether tile i is fetched in boxes: only if it holds no slot that may be NaN. */
template <class F> ATTN_DEV bool in_boxes(const struct walk &w, int i)
{
	constexpr int keys = F::keys;

	return w.box && w.begin + i * keys >= w.low && w.begin + (i + 1) * keys <= w.high;
}

/* Returns the slot of this lane's key of tile i, or of the first key of this lane's box. */
template <class F>
ATTN_DEV uint32_t tile_slot(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    const struct walk &w, int i)
{
	constexpr int keys = F::keys, share = keys / 4, panels = F::dim / 64;
	int lane = threadIdx.x % 32, key = w.begin + i * keys, nth;

	if (in_boxes<F>(w, i)) {
		nth = lane / panels * w.box;
		return attn_slot(a, r, w.page_shift, key + nth, nth < keys ? w.high : 0);
	}
	nth = threadIdx.x % 128 / 32 * share + lane;
	return attn_slot(a, r, w.page_shift, key + nth, lane < share && key + nth >= w.first ? w.end : 0);
}

/* Arrives at mbar once all copies that this thread has started are complete. */
ATTN_DEV void arrive_copied(uint32_t mbar)
{
	if (!COPIER_WAITS) {
		ptx_cp_async_mbarrier_arrive_noinc(mbar);
		return;
	}
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	ptx_mbarrier_arrive(mbar);
}

template <class F>
ATTN_DEV void fill(const struct cairn_attn_paged_args &a, const void *pages, const CUtensorMap *map,
		   const struct walk &w, int i, int head, uint32_t s_tile, uint32_t slot, uint32_t mbar)
{
	if (in_boxes<F>(w, i)) {
		copy_tile<F>(map, w.box, head, s_tile, slot, mbar);
		return;
	}
	gather_tile<F>(a, pages, head, s_tile, slot);
	if (!w.box) {
		arrive_copied(mbar);
		return;
	}
	/* an edge tile among tiles fetched in boxes: the producer fences, because the consumers do not */
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	ptx_fence_proxy_async_shared_cta();
	ptx_mbarrier_arrive(mbar);
}

/* The producer's places in the rings of K and V, and the number of row tiles that it has described. */
struct places {
	struct place k, v;
	int q;
};

/* Fetches Q of a row tile, and describes the tile to the consumers. */
template <class F>
ATTN_DEV void fetch_q(const struct cairn_attn_paged_args &a, const struct attn_request &r,
		      const struct tile &t, const struct shared &s, struct places *at)
{
	ptx_mbarrier_wait(s.empty_q, ~at->q & 1);
	gather_q<F::dim>(a, r, s.q, t.row0, r.qo_len * r.group);
	arrive_copied(s.full_q);
	if (threadIdx.x % 128 == 0) {
		*s.tile = t;
		ptx_mbarrier_arrive(s.full_q);
	}
	at->q++;
}

/* Fetches Q, K and V of a row tile with keys of 16 bits. */
template <class F>
ATTN_DEV void fetch_16bit(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			  const struct maps &maps, const struct walk &w, const struct tile &t,
			  const struct shared &s, struct places *at)
{
	uint32_t next = tile_slot<F>(a, r, w, 0), slot = next, old;

	for (int i = 0; i <= t.num_tiles; i++) {
		old = slot;
		slot = next;
		if (i < t.num_tiles) {
			ptx_mbarrier_wait(s.empty_k + 8 * at->k.stage, at->k.phase);
			fill<F>(a, a.kv.k_pages, &maps.k, w, i, r.head, s.k + at->k.stage * F::bytes, slot,
				s.full_k + 8 * at->k.stage);
			next = tile_slot<F>(a, r, w, i + 1);
			advance<F::stages>(&at->k);
		}
		if (i == 0) {
			fetch_q<F>(a, r, t, s, at);
			continue;
		}
		ptx_mbarrier_wait(s.empty_v + 8 * at->v.stage, at->v.phase);
		fill<F>(a, a.kv.v_pages, &maps.v, w, i - 1, r.head, s.v + at->v.stage * F::bytes, old,
			s.full_v + 8 * at->v.stage);
		advance<F::stages>(&at->v);
	}
}

/* Converts the tile of codes at s_raw to the next tile of K or V. */
template <int dtype, class F>
ATTN_DEV void hand_on(uint32_t s_tiles, uint32_t s_raw, uint32_t full, uint32_t empty, struct place *at)
{
	ptx_mbarrier_wait(empty + 8 * at->stage, at->phase);
	attn_convert_8bit<dtype, F::keys, F::dim>(s_tiles + at->stage * F::bytes, s_raw, threadIdx.x % 128);
	ptx_mbarrier_arrive(full + 8 * at->stage);
	advance<F::stages>(at);
}

/*
 * The same with keys of 8 bits. The tiles K(0), V(0), K(1), ... pass through the ring of codes. A warp waits
 * for its own copies only: each converts what it has copied.
 */
template <int dtype, class F>
ATTN_DEV void fetch_8bit(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			 const struct walk &w, const struct tile &t, const struct shared &s,
			 struct places *at)
{
	constexpr int ahead = F::raw_stages - 1;
	uint32_t next = tile_slot<F>(a, r, w, 0), slot = next;
	int in = 0, out = 0;		/* places in the ring of codes */

	if (!t.num_tiles)
		fetch_q<F>(a, r, t, s, at);
	for (int i = 0; i < 2 * t.num_tiles + ahead && t.num_tiles; i++) {
		if (i < 2 * t.num_tiles) {
			if (i % 2 == 0) {
				slot = next;
				next = tile_slot<F>(a, r, w, i / 2 + 1);
			}
			gather_codes<F>(a, i % 2 ? a.kv.v_pages : a.kv.k_pages, r.head,
					s.raw + in * F::raw_bytes, slot);
			in = in == ahead ? 0 : in + 1;
		}
		ptx_cp_async_commit_group();
		if (i < ahead)
			continue;
		ptx_cp_async_wait_group<ahead>();
		__syncwarp();
		if ((i - ahead) % 2 == 0)
			hand_on<dtype, F>(s.k, s.raw + out * F::raw_bytes, s.full_k, s.empty_k, &at->k);
		else
			hand_on<dtype, F>(s.v, s.raw + out * F::raw_bytes, s.full_v, s.empty_v, &at->v);
		if (i == ahead)
			fetch_q<F>(a, r, t, s, at);
		__syncwarp();		/* all lanes have read what the next copy overwrites */
		out = out == ahead ? 0 : out + 1;
	}
}

/* The producer warpgroup: fetches Q, K and V of its row tiles in order, as far ahead as the stages allow. */
template <int dtype, class F>
ATTN_DEV void produce(const struct cairn_attn_paged_args &a, const struct plan &plan, const struct maps &maps,
		      const struct shared &s, int group, uint32_t magic)
{
	struct places at = { { 0, 1 }, { 0, 1 }, 0 };
	int b, head, row_tile;
	struct walk w;

	w.page_shift = kv_page_shift(a.kv.page_size);
	w.box = plan.box;

	for (int nth = 0; nth_tile(a, plan, nth, &b, &head, &row_tile); nth++) {
		struct attn_request r = attn_load_request(a, b, head, group, magic);
		int rows = r.qo_len * group, row0 = row_tile * ROWS, num_tiles;
		struct tile t;

		if (row0 >= rows)
			continue;
		w.first = attn_row_first(a, r, row0);
		w.end = attn_row_sees(a, r, min(rows, row0 + ROWS) - 1);
		w.low = attn_row_first(a, r, 0);
		w.high = r.kv_len;
		w.begin = w.box ? w.first & -w.box : w.first;
		num_tiles = w.end > w.first ? attn_div_up(w.end - w.begin, F::keys) : 0;
		t = { r.qo_first, r.qo_len, r.kv_len, head, row0, w.begin, num_tiles,
		      attn_scales_of<F::fp8>(a, head) };
		if constexpr (F::fp8)
			fetch_8bit<dtype, F>(a, r, w, t, s, &at);
		else
			fetch_16bit<F>(a, r, maps, w, t, s, &at);
	}
	ptx_mbarrier_wait(s.empty_q, ~at.q & 1);
	arrive_copied(s.full_q);
	if (threadIdx.x % 128 == 0) {
		s.tile->num_tiles = -1;
		ptx_mbarrier_arrive(s.full_q);
	}
	ptx_cp_async_wait_group<0>();
}

#endif
