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

#include "fused/attention/base/attn_panel.cuh"
#include "fused/attention/paged/attn_paged_walk.cuh"

#define GROUPS		2			/* warpgroups that multiply; one more fetches */
#define THREADS		((GROUPS + 1) * 128)
#define ROWS		ATTN_PREFILL_ROWS
static_assert(ROWS == GROUPS * 64, "a warpgroup has 64 rows");
#define MIN_BOX		32			/* slots; smaller boxes are slower than threads */

/* Keys of a tile, bytes of a K or V tile and of Q, stages of K and of V, shared memory of a CTA. */
template <int dim> ATTN_CONST tile_keys(void) { return dim == 256 ? 64 : 128; }
template <int dim> ATTN_CONST tile_bytes(void) { return tile_keys<dim>() * dim * 2; }
template <int dim> ATTN_CONST q_bytes(void) { return ROWS * dim * 2; }
template <int dim> ATTN_CONST num_stages(void) { return dim == 256 ? 2 : dim == 128 ? 3 : 4; }
template <int dim> ATTN_CONST tiles_bytes(void) { return 2 * num_stages<dim>() * tile_bytes<dim>(); }
template <int dim> ATTN_CONST smem_bytes(void) { return q_bytes<dim>() + tiles_bytes<dim>() + 256; }

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
};

/* Shared memory: 32-bit addresses, and a pointer to the tile's description. */
struct shared {
	uint32_t q, k, v;		/* k and v: [stages] tiles */
	uint32_t full_q, empty_q, full_k, empty_k, full_v, empty_v;	/* mbarriers; k and v: [stages] */
	struct tile *tile;
};

template <int dim>
ATTN_DEV struct shared lay_out(uint8_t *s_all)
{
	uint32_t at = ptx_smem(s_all) + q_bytes<dim>() + tiles_bytes<dim>();
	struct shared s;

	s.q = ptx_smem(s_all);
	s.k = s.q + q_bytes<dim>();
	s.v = s.k + num_stages<dim>() * tile_bytes<dim>();
	s.full_q = at;
	s.empty_q = at + 8;
	s.full_k = at + 16;
	s.empty_k = at + 48;
	s.full_v = at + 80;
	s.empty_v = at + 112;
	s.tile = (struct tile *)(s_all + q_bytes<dim>() + tiles_bytes<dim>() + 160);
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
template <int dim>
ATTN_DEV void gather_tile(const struct cairn_attn_paged_args &a, const void *pages, int head, uint32_t s_tile,
			  uint32_t slot)
{
	constexpr int keys = tile_keys<dim>(), share = keys / 4, chunks = dim / 8, per_pass = 32 / chunks;
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

/* The same by the copy engine: lane i of the first warp passes the first slot of box i and starts the box. */
template <int dim>
ATTN_DEV void copy_tile(const CUtensorMap *map, int box, int head, uint32_t s_tile, uint32_t slot,
			uint32_t mbar)
{
	constexpr int keys = tile_keys<dim>(), panels = dim / 64;
	int i = threadIdx.x % 128, row = i / panels * box, panel = i % panels;

	if (i == 0)
		ptx_mbarrier_arrive_expect_tx(mbar, tile_bytes<dim>());
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
template <int dim> ATTN_DEV bool in_boxes(const struct walk &w, int i)
{
	constexpr int keys = tile_keys<dim>();

	return w.box && w.begin + i * keys >= w.low && w.begin + (i + 1) * keys <= w.high;
}

/* Returns the slot of this lane's key of tile i, or of the first key of this lane's box. */
template <int dim>
ATTN_DEV uint32_t tile_slot(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    const struct walk &w, int i)
{
	constexpr int keys = tile_keys<dim>(), share = keys / 4, panels = dim / 64;
	int lane = threadIdx.x % 32, key = w.begin + i * keys, nth;

	if (in_boxes<dim>(w, i)) {
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

template <int dim>
ATTN_DEV void fill(const struct cairn_attn_paged_args &a, const void *pages, const CUtensorMap *map,
		   const struct walk &w, int i, int head, uint32_t s_tile, uint32_t slot, uint32_t mbar)
{
	if (in_boxes<dim>(w, i)) {
		copy_tile<dim>(map, w.box, head, s_tile, slot, mbar);
		return;
	}
	gather_tile<dim>(a, pages, head, s_tile, slot);
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

/* The producer warpgroup: fetches Q, K and V of its row tiles in order, as far ahead as the stages allow. */
template <int dim>
ATTN_DEV void produce(const struct cairn_attn_paged_args &a, const struct plan &plan, const struct maps &maps,
		      const struct shared &s, int group, uint32_t magic)
{
	constexpr int keys = tile_keys<dim>(), bytes = tile_bytes<dim>();
	constexpr int stages = num_stages<dim>();
	struct place k = { 0, 1 }, v = { 0, 1 };
	int b, head, row_tile, q = 0;
	struct walk w;

	w.page_shift = kv_page_shift(a.kv.page_size);
	w.box = plan.box;

	for (int nth = 0; nth_tile(a, plan, nth, &b, &head, &row_tile); nth++) {
		struct attn_request r = attn_load_request(a, b, head, group, magic);
		int rows = r.qo_len * group, row0 = row_tile * ROWS, num_tiles;
		uint32_t slot, next, old;

		if (row0 >= rows)
			continue;
		w.first = attn_row_first(a, r, row0);
		w.end = attn_row_sees(a, r, min(rows, row0 + ROWS) - 1);
		w.low = attn_row_first(a, r, 0);
		w.high = r.kv_len;
		w.begin = w.box ? w.first & -w.box : w.first;
		num_tiles = w.end > w.first ? attn_div_up(w.end - w.begin, keys) : 0;
		next = tile_slot<dim>(a, r, w, 0);
		slot = next;
		for (int i = 0; i <= num_tiles; i++) {
			old = slot;
			slot = next;
			if (i < num_tiles) {
				ptx_mbarrier_wait(s.empty_k + 8 * k.stage, k.phase);
				fill<dim>(a, a.kv.k_pages, &maps.k, w, i, head, s.k + k.stage * bytes, slot,
					  s.full_k + 8 * k.stage);
				next = tile_slot<dim>(a, r, w, i + 1);
				advance<stages>(&k);
			}
			if (i == 0) {
				ptx_mbarrier_wait(s.empty_q, ~q & 1);
				gather_q<dim>(a, r, s.q, row0, rows);
				arrive_copied(s.full_q);
				if (threadIdx.x % 128 == 0) {
					*s.tile = (struct tile){ r.qo_first, r.qo_len, r.kv_len, head, row0,
								 w.begin, num_tiles };
					ptx_mbarrier_arrive(s.full_q);
				}
				q++;
			} else {
				ptx_mbarrier_wait(s.empty_v + 8 * v.stage, v.phase);
				fill<dim>(a, a.kv.v_pages, &maps.v, w, i - 1, head, s.v + v.stage * bytes,
					  old, s.full_v + 8 * v.stage);
				advance<stages>(&v);
			}
		}
	}
	ptx_mbarrier_wait(s.empty_q, ~q & 1);
	arrive_copied(s.full_q);
	if (threadIdx.x % 128 == 0) {
		s.tile->num_tiles = -1;
		ptx_mbarrier_arrive(s.full_q);
	}
	ptx_cp_async_wait_group<0>();
}

#endif
