/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_stream - the stream of stages that each compute warp consumes, and the loader warps that fetch it
 *
 * Eight warps compute. Each has its own stream: the 4 KiB stages of weights, keys and values that it needs
 * until the end of the launch, in order. The stream does not depend on computed results. A second warp, the
 * loader, therefore keeps the compute warp's ring full in any phase: while CTAs wait for each other and
 * exchange results, the next phase's weights arrive. struct cursor, which only the loader has, is the
 * position in the stream up to which loads have been started.
 *
 * A stage is 16 rows x 128 columns of a matrix, 16 (head_dim 64: 32) keys of one KV head, or that many
 * values.
 */
#ifndef CAIRN_GRID_STREAM_CUH
#define CAIRN_GRID_STREAM_CUH

#include "primitives/base/dtype.h"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/rows/row.cuh"
#include "fused/attention/base/attn_tile.cuh"
#include "fused/grid/grid.h"

#define GRID		static __device__ __forceinline__
#define STAGE_ROWS	16
#define STAGE_K		128
#define WORK_BAR	1		/* named barrier of the compute warps */
#define WORKERS		(GRID_WARPS * 32)

/* How results travel (grid_exchange.cuh). GRID_WIDE: also behind grid barriers, for up to 16 requests. */
enum grid_way { GRID_BY_LL, GRID_BY_BARRIER, GRID_WIDE };

/*
 * GRID_WIDE: pairs of CTAs, each a cluster, share rows and divide k. Each CTA holds half of the activations,
 * which otherwise fill shared memory, and so has a ring of twice the length.
 */
#define GRID_TEAM(way)		((way) == GRID_WIDE ? 2 : 1)
/*
 * Floats from one request's 16 sums to those of the next; the padding keeps four writing lanes on different
 * banks.
 */
#define SUM_ROW(way)		((way) == GRID_BY_LL ? STAGE_ROWS : STAGE_ROWS + 4)
/* Stages of a unit of rows; activations are read from shared memory once for all of them. */
#define GRID_TALL(way)		((way) == GRID_WIDE ? 2 : 1)
#define GRID_PAIR_BUFS		4		/* number of units whose sums may be in flight */

extern __shared__ __align__(1024) uint8_t grid_mem[];

/* ---- the stream ---- */

GRID int grid_kind_of(const struct grid_args &a, int phase)
{
	return phase == a.s.num_layers * GRID_KINDS ? (int)GRID_HEAD : phase % GRID_KINDS;
}

GRID const char *grid_layer(const struct grid_args &a, const void *p, int phase)
{
	return (const char *)p + phase / GRID_KINDS * a.s.layer_stride_bytes;
}

/* A product's matrix. GRID_GATE_UP: `rows` pairs of a gate row and an up row. */
struct grid_matrix {
	const char *w;
	int rows, k;
};

GRID struct grid_matrix grid_matrix(const struct grid_args &a, int phase, int kind)
{
	struct grid_matrix m;
	const void *w = kind == GRID_QKV ? a.s.w_qkv : kind == GRID_OUT ? a.s.w_o :
			kind == GRID_GATE_UP ? a.s.w_gate_up : a.s.w_down;

	m.w = kind == GRID_HEAD ? (const char *)a.s.lm_head : grid_layer(a, w, phase);
	m.rows = kind == GRID_QKV ? a.qkv_dim : kind == GRID_GATE_UP ? a.s.intermediate :
		 kind == GRID_HEAD ? a.s.vocab : a.s.hidden;
	m.k = kind == GRID_OUT ? a.q_dim : kind == GRID_DOWN ? a.s.intermediate : a.s.hidden;
	return m;
}

/*
 * Returns this CTA's or pair's part of a product's rows: the first row and the count. Both are even, because
 * an LL word holds two results.
 */
template <int way>
GRID int2 grid_share(int rows)
{
	const uint32_t nth = blockIdx.x / GRID_TEAM(way), of = gridDim.x / GRID_TEAM(way);
	/* no overflow: below 2^24 rows and 2^8 SMs */
	uint32_t twos = (uint32_t)rows / 2, first = twos * nth / of;

	return make_int2((int)first * 2, (int)(twos * (nth + 1) / of - first) * 2);
}

template <int way>
GRID int grid_rank(void)
{
	return (int)blockIdx.x % GRID_TEAM(way);
}

/* Returns a compute warp's first stage along k; it takes every GRID_STAGE_STEP-th. */
template <int way>
GRID int grid_first_stage(int warp)
{
	return grid_rank<way>() * GRID_WARPS + warp;
}

#define GRID_STAGE_STEP(way)	(GRID_WARPS * GRID_TEAM(way))

/* Returns grid_share() of each kind of product, kept in shared memory for the compute warps. */
GRID const int2 *grid_shares(void)
{
	return (const int2 *)(grid_mem + GRID_SHARES);
}

template <int way>
GRID void share_out(const struct grid_args &a)
{
	if (threadIdx.x <= GRID_HEAD)
		((int2 *)(grid_mem + GRID_SHARES))[threadIdx.x] =
			grid_share<way>(grid_matrix(a, 0, threadIdx.x).rows);
}

GRID int grid_unit(int kind)		/* rows, or pairs of rows, that a stage covers */
{
	return kind == GRID_GATE_UP ? STAGE_ROWS / 2 : STAGE_ROWS;
}

/*
 * One request, one KV head and a share of its old keys; or 2 or 4 heads, each with its part of the warps.
 * Neighbouring heads are adjacent in memory, and loading them at the same time is faster.
 */
struct grid_task {
	const int32_t *pages;
	int request, head, split;	/* head: the first one */
	int old_len;			/* keys before the new one; -1: not even a new one */
	int first_tile, end_tile;
};

struct grid_lens {
	int first_page, end_page, last_page_len;
};

template <int way>
GRID int heads_of_task(const struct grid_args &a)
{
	return way == GRID_WIDE ? a.task_heads : 1;
}

/* Returns the number of warps that share the keys of a head. */
template <int way>
GRID int head_warps(const struct grid_args &a)
{
	return way == GRID_WIDE ? a.head_warps : GRID_WARPS;
}

/* Returns the head of the task that warp `warp` works on, and the warp's index among that head's warps. */
template <int way>
GRID int2 head_of_warp(const struct grid_args &a, int warp)
{
	return way == GRID_WIDE ? make_int2(warp / head_warps<way>(a), warp % head_warps<way>(a)) :
				  make_int2(0, warp);
}

/* Returns the number of tasks of a request, without splits. */
template <int way>
GRID int tasks_of_request(const struct grid_args &a)
{
	return way == GRID_WIDE ? a.request_tasks : a.s.num_kv_heads;
}

template <int way>
GRID struct grid_lens grid_load_lens(const struct grid_args &a, int task)
{
	const int request = task / a.num_splits / tasks_of_request<way>(a);
	const struct grid_lens l = { __ldg(a.s.kv.indptr + request), __ldg(a.s.kv.indptr + request + 1),
				     __ldg(a.s.kv.last_page_len + request) };

	return l;
}

template <int head_dim, int way>
GRID struct grid_task grid_make_task(const struct grid_args &a, int task, const struct grid_lens &l)
{
	constexpr int keys = GRID_STAGE_BYTES / (2 * head_dim);
	struct grid_task t;
	int tiles;

	t.split = task % a.num_splits;
	task /= a.num_splits;
	t.head = task % tasks_of_request<way>(a) * heads_of_task<way>(a);
	t.request = task / tasks_of_request<way>(a);
	t.pages = a.s.kv.indices + l.first_page;
	t.old_len = kv_walk_len(l.end_page - l.first_page, l.last_page_len, a.s.kv.page_size) - 1;
	tiles = t.old_len > 0 ? (t.old_len + keys - 1) / keys : 0;
	t.first_tile = (int)((uint32_t)tiles * t.split / a.num_splits);
	t.end_tile = (int)((uint32_t)tiles * (t.split + 1) / a.num_splits);
	return t;
}

struct cursor {
	int phase, kind;		/* phase == a.end_phase: end of the stream */
	/* a union in this order, because members that are not needed at the same time share a register */
	union {
		struct {
			int stage, num_stages;		/* along k */
			int unit, count, k;		/* this CTA's rows done, and all of them; columns */
			int below;			/* 1: the second of the GRID_TALL stages of a unit */
			const char *src;		/* the unit's first row */
		};
		struct {
			int tile, end_tile;
			int task, old_len, head;
			const int32_t *pages;
		};
	};
	int values;			/* 1: the keys of this tile have been issued; the values are next */
};

GRID int loader_of(void)		/* the warp that this one loads for */
{
	return (int)threadIdx.x / 32 - GRID_WARPS;
}

#define NO_PAGE		~0u

/* Returns this lane's key in the warp's tile at the cursor, or `further` tiles after it; -1: none. */
template <int head_dim>
GRID int cursor_key(const struct cursor &c, int further)
{
	constexpr int keys = GRID_STAGE_BYTES / (2 * head_dim);
	const int tile = c.tile + further, lane = threadIdx.x % 32, key = tile * keys + lane;

	return lane < keys && tile < c.end_tile && key < c.old_len ? key : -1;
}

/*
 * Returns the key's page. The load is issued as early as possible, and its value is used as late as possible.
 */
template <int head_dim>
GRID uint32_t cursor_page(const struct grid_args &a, const struct cursor &c, int further)
{
	const int key = cursor_key<head_dim>(c, further);

	return key < 0 ? NO_PAGE : (uint32_t)__ldg(c.pages + key / a.s.kv.page_size);
}

/* Returns the key's slot. */
template <int head_dim>
GRID uint32_t cursor_slot(const struct grid_args &a, const struct cursor &c, uint32_t page)
{
	const int key = cursor_key<head_dim>(c, 0);

	return key < 0 ? NO_PAGE : page * (uint32_t)a.s.kv.page_size + (uint32_t)(key % a.s.kv.page_size);
}

/*
 * The task after the one at the cursor; after the last task, the first one of the next layer. Finding its
 * keys takes two dependent loads, which would stall the stream; they are issued while stages are in flight.
 */
struct next_task {
	struct grid_lens lens;
	uint32_t page;			/* cursor_page() of its first keys */
	int task, known;		/* known: 1: lens, 2: lens and page */
};

/* Moves to this warp's first keys of the first task from c.task on that has keys for this warp. */
template <int head_dim, int way>
GRID bool cursor_task(const struct grid_args &a, struct cursor &c, const struct next_task &next)
{
	for (; c.task < a.num_tasks; c.task += gridDim.x) {
		struct grid_task t = grid_make_task<head_dim, way>(a, c.task,
							      c.task == next.task && next.known ?
							      next.lens : grid_load_lens<way>(a, c.task));

		c.tile = t.first_tile + head_of_warp<way>(a, loader_of()).y;
		if (c.tile >= t.end_tile)
			continue;
		c.end_tile = t.end_tile;
		c.old_len = t.old_len;
		c.head = t.head + head_of_warp<way>(a, loader_of()).x;
		c.pages = t.pages;
		c.values = 0;
		return true;
	}
	return false;
}

template <int way>
GRID bool cursor_matrix(const struct grid_args &a, struct cursor &c)
{
	struct grid_matrix m = grid_matrix(a, c.phase, c.kind);
	int2 rows = grid_share<way>(m.rows);

	c.stage = grid_first_stage<way>(loader_of());
	c.num_stages = (m.k + STAGE_K - 1) / STAGE_K;
	c.unit = c.below = 0;
	c.count = rows.y;
	c.k = m.k;
	c.src = m.w + (int64_t)rows.x * m.k * 2;
	return c.stage < c.num_stages && c.count > 0;
}

/* Loads the next missing part of *next. */
template <int head_dim, int way>
GRID void load_next_task(const struct grid_args &a, struct next_task &next)
{
	struct cursor c = {};

	if (next.known == 0 && next.task < a.num_tasks) {
		if (a.first_launch)
			ptx_griddepcontrol_wait(); /* an earlier kernel may still write the index arrays */
		next.lens = grid_load_lens<way>(a, next.task);
	} else if (next.known == 1) {
		c.task = next.task;
		if (cursor_task<head_dim, way>(a, c, next) && c.task == next.task)
			next.page = cursor_page<head_dim>(a, c, 0);
	}
	next.known++;
}

/* Moves to this warp's first item of the phase at c.phase, or of the first phase after it that has any. */
template <int head_dim, int way>
GRID void cursor_enter(const struct grid_args &a, struct cursor &c, struct next_task &next)
{
	for (; c.phase < a.end_phase; c.phase++) {
		c.kind = grid_kind_of(a, c.phase);
		if (c.kind != GRID_ATTN && cursor_matrix<way>(a, c))
			return;
		if (c.kind == GRID_ATTN) {
			if (next.known == 0)
				load_next_task<head_dim, way>(a, next);
			c.task = blockIdx.x;
			if (cursor_task<head_dim, way>(a, c, next))
				return;
		}
	}
}

template <int head_dim, int way>
GRID void cursor_next(const struct grid_args &a, struct cursor &c, struct next_task &next)
{
	if (c.kind == GRID_ATTN) {
		c.values ^= 1;
		if (c.values)
			return;
		c.tile += head_warps<way>(a);
		if (c.tile < c.end_tile)
			return;
		c.task += gridDim.x;
		if (cursor_task<head_dim, way>(a, c, next))
			return;
	} else {
		if (GRID_TALL(way) > 1 && !c.below && c.unit + grid_unit(c.kind) < c.count) {
			c.below = 1;
			return;
		}
		c.below = 0;
		c.stage += GRID_STAGE_STEP(way);
		if (c.stage < c.num_stages)
			return;
		c.stage = grid_first_stage<way>(loader_of());
		c.unit += GRID_TALL(way) * grid_unit(c.kind);
		c.src += (int64_t)GRID_TALL(way) * grid_unit(c.kind) * c.k * 2;
		if (c.unit < c.count)
			return;
	}
	c.phase++;
	cursor_enter<head_dim, way>(a, c, next);
}

/* A ring: stages, each with an mbarrier for "full" and one for "empty" */
struct ring {
	uint32_t stages, mbars, count, slot, parity;
};

GRID struct ring ring_of(const struct grid_args &a, int warp)
{
	uint32_t base = ptx_smem(grid_mem);
	struct ring r = { base + a.at_rings + warp * a.stages * GRID_STAGE_BYTES,
			  base + GRID_MBARS + warp * GRID_MAX_STAGES * 16, (uint32_t)a.stages, 0, 0 };

	return r;
}

/*
 * If the activations of a large batch leave little room for the ring, keys and values have a ring of their
 * own in the memory of the activations, which attention does not need. The ring is usable once the preceding
 * product no longer needs the activations.
 */
template <int way>
GRID bool has_key_ring(const struct grid_args &a)
{
	return way == GRID_WIDE && a.key_stages;
}

GRID struct ring key_ring_of(const struct grid_args &a, int warp)
{
	uint32_t base = ptx_smem(grid_mem);
	struct ring r = { base + a.at_a + warp * a.key_stages * GRID_STAGE_BYTES,
			  base + GRID_MBARS + (warp * GRID_MAX_STAGES + a.stages) * 16,
			  (uint32_t)a.key_stages, 0, 0 };

	return r;
}

GRID void ring_advance(struct ring &r)
{
	if (++r.slot == r.count) {
		r.slot = 0;
		r.parity ^= 1;
	}
}

/*
 * Starts the loads of the item at the cursor, in the layout of attn_swizzle(). Missing rows become zeros.
 * key_slot: slot of the key that this lane loads; NO_PAGE: none.
 */
template <int head_dim, int way>
GRID void load_stage(const struct grid_args &a, const struct cursor &c, uint32_t key_slot, uint32_t to)
{
	int lane = threadIdx.x % 32;

	if (c.kind == GRID_ATTN) {
		constexpr int chunks = head_dim / 8, per_pass = 32 / chunks;
		int row = lane / chunks, chunk = lane % chunks, layer = c.phase / GRID_KINDS;
		const char *pages = (const char *)(c.values ? a.s.kv.v_pages : a.s.kv.k_pages) +
				    layer * a.s.kv_stride_bytes;
		uint32_t column = (c.head * head_dim + chunk * 8) * 2,
			 slot_bytes = a.s.num_kv_heads * head_dim * 2;

#pragma unroll
		for (int i = 0; i < GRID_STAGE_BYTES / (head_dim * 2); i += per_pass) {
			uint32_t from = __shfl_sync(~0u, key_slot, i + row);
			uint64_t at = (uint64_t)(from == NO_PAGE ? 0 : from) * slot_bytes + column;

			ptx_cp_async_cg(to + attn_swizzle(i + row, chunk, head_dim * 2), pages + at,
					from == NO_PAGE ? 0 : 16);
		}
	} else {
		const int above = GRID_TALL(way) > 1 && c.below ? grid_unit(c.kind) : 0;
		int half = lane / 16, piece = lane % 16, left = c.count - c.unit - above,
		    at = c.stage * STAGE_K + piece * 8;
		int64_t second = (int64_t)(c.kind == GRID_GATE_UP ? a.s.intermediate : 8) * c.k * 2;
		const char *src = c.src + ((int64_t)(above + half) * c.k + at) * 2;
		uint64_t policy = ptx_createpolicy_evict_first();

#pragma unroll
		for (int i = 0; i < 8; i++) {
			int row = 2 * i + half;
			int valid = at < c.k && (c.kind == GRID_GATE_UP ? (row & 7) : row) < left;
			const char *from = src + (i / 4) * second + (int64_t)(i % 4) * 4 * c.k;

			ptx_cp_async_cg_hint(to + attn_swizzle(row, piece, STAGE_K * 2),
					     valid ? from : (const char *)a.s.w_qkv, valid ? 16 : 0, policy);
		}
	}
}

#ifndef GRID_IN_FLIGHT
/*
 * number of stages in flight, less one: enough to cover memory latency, and too few to delay other loads by a
 * queue
 */
#define GRID_IN_FLIGHT	1
#endif

/* racecheck supports neither copies that arrive on an mbarrier nor one lane that arrives for its warp */
#ifdef CAIRN_DEBUG
#define LOADER_WAITS	1
#define RELEASERS	32		/* lanes that arrive when a stage is consumed */
#else
#define LOADER_WAITS	0
#define RELEASERS	1
#endif

/* State of a loader warp */
struct loader {
	/* the next stage to fill; the oldest stage in flight */
	struct ring ring, oldest;
	struct cursor at;
	struct next_task next;
	/* slot of this lane's key at the cursor; page of its key in the warp's next tile */
	uint32_t key_slot, next_page;
	/* while keys use their own ring: slot and parity of the weights' ring */
	uint32_t weights;
	int in_flight, on_keys;
};

/* Starts the loads of the item at the cursor into an empty stage. */
template <int head_dim, int way>
GRID void loader_load(const struct grid_args &a, struct loader &l)
{
	const uint32_t full = l.ring.mbars + l.ring.slot * 16;

	load_stage<head_dim, way>(a, l.at, l.key_slot, l.ring.stages + l.ring.slot * GRID_STAGE_BYTES);
	if (LOADER_WAITS) {
		ptx_cp_async_commit_group();
		ptx_cp_async_wait_group<0>();
		ptx_mbarrier_arrive(full);
	} else {
		ptx_cp_async_mbarrier_arrive_noinc(full);
	}
	ring_advance(l.ring);
}

/* Looks up the keys at the cursor; enters: the cursor has entered another task. */
template <int head_dim, int way>
GRID void loader_keys(const struct grid_args &a, struct loader &l, int enters)
{
	/* with LL words a warp has few tiles, of one task */
	const int looks_ahead = way != GRID_BY_LL, after = l.at.task + (int)gridDim.x;

	if (enters ? l.next.known == 2 && l.next.task == l.at.task : looks_ahead)
		l.key_slot = cursor_slot<head_dim>(a, l.at, enters ? l.next.page : l.next_page);
	else
		l.key_slot = cursor_slot<head_dim>(a, l.at, cursor_page<head_dim>(a, l.at, 0));
	if (looks_ahead)
		l.next_page = cursor_page<head_dim>(a, l.at, head_warps<way>(a));
	if (way == GRID_BY_LL || !enters)
		return;
	if (l.next.task != (after < a.num_tasks ? after : (int)blockIdx.x))
		l.next.known = 0;
	l.next.task = after < a.num_tasks ? after : (int)blockIdx.x;
}

template <int head_dim, int way>
GRID void loader_next(const struct grid_args &a, struct loader &l)
{
	const int phase = l.at.phase, task = l.at.task;		/* task is only compared within one phase */

	cursor_next<head_dim, way>(a, l.at, l.next);
	if (l.at.kind == GRID_ATTN && !l.at.values)
		loader_keys<head_dim, way>(a, l, l.at.phase != phase || l.at.task != task);
}

/*
 * Runs before the CTA's first barrier: sets up the mbarriers and starts the first loads, if they are weights.
 */
template <int head_dim, int way>
GRID void loader_start(const struct grid_args &a, struct loader &l)
{
	l.ring = l.oldest = ring_of(a, loader_of());
	l.next = {};
	l.next.task = blockIdx.x;
	l.at = {};
	l.key_slot = l.next_page = NO_PAGE;
	l.weights = 0;
	l.in_flight = l.on_keys = 0;
	if (threadIdx.x % 32 < a.stages + a.key_stages) {
		ptx_mbarrier_init(l.ring.mbars + threadIdx.x % 32 * 16, 32);
		ptx_mbarrier_init(l.ring.mbars + threadIdx.x % 32 * 16 + 8, RELEASERS);
	}
	if (has_key_ring<way>(a) && threadIdx.x == WORKERS)
		ptx_mbarrier_init(ptx_smem(grid_mem) + GRID_FREE, 1);
	if (way == GRID_WIDE && threadIdx.x <= WORKERS + GRID_PAIR_BUFS)
		ptx_mbarrier_init(ptx_smem(grid_mem) + GRID_PAIR_MBARS + (threadIdx.x - WORKERS) * 8, 1);
	if (way == GRID_WIDE)
		ptx_fence_mbarrier_init_release_cluster();
	__syncwarp();
	l.at.phase = a.first_phase;
	cursor_enter<head_dim, way>(a, l.at, l.next);
	if (l.at.phase == a.end_phase)
		return;
	if (l.at.kind == GRID_ATTN) {
		loader_keys<head_dim, way>(a, l, 1);
		return;
	}
	loader_load<head_dim, way>(a, l);
	l.in_flight = 1;
	loader_next<head_dim, way>(a, l);
}

/* Switches between the ring of weights and the ring of keys, after all loads of the old ring have landed. */
GRID void loader_switch(const struct grid_args &a, struct loader &l)
{
	for (; l.in_flight; l.in_flight--, ring_advance(l.oldest))
		ptx_mbarrier_wait(l.oldest.mbars + l.oldest.slot * 16, l.oldest.parity);
	l.on_keys ^= 1;
	if (l.on_keys) {
		l.weights = l.ring.slot | l.ring.parity << 8;
		l.ring = key_ring_of(a, loader_of());
		if (l.at.phase > a.first_phase)
			ptx_mbarrier_wait(ptx_smem(grid_mem) + GRID_FREE, 0);
	} else {
		l.ring = ring_of(a, loader_of());
		l.ring.slot = l.weights & 255;
		l.ring.parity = l.weights >> 8;
	}
	l.oldest = l.ring;
}

/* Runs the rest of the stream. */
template <int head_dim, int way>
GRID void run_loader(const struct grid_args &a, struct loader &l)
{
	const int most = min(GRID_IN_FLIGHT, a.stages - 1);

	while (l.at.phase < a.end_phase) {
		if (has_key_ring<way>(a) && l.on_keys != (l.at.kind == GRID_ATTN))
			loader_switch(a, l);
		/* passes at once in the first round, when the ring is empty */
		ptx_mbarrier_wait(l.ring.mbars + l.ring.slot * 16 + 8, l.ring.parity ^ 1);
		loader_load<head_dim, way>(a, l);
		if (LOADER_WAITS) {
			l.in_flight = 0;
			l.oldest = l.ring;
		} else if (l.in_flight < most) {
			l.in_flight++;
		} else {
			if (l.next.known < 2)
				load_next_task<head_dim, way>(a, l.next);
			ptx_mbarrier_wait(l.oldest.mbars + l.oldest.slot * 16, l.oldest.parity);
			ring_advance(l.oldest);
		}
		loader_next<head_dim, way>(a, l);
	}
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
}

/* Waits for the ring's oldest stage; returns its address. */
GRID uint32_t ring_wait(const struct ring &r)
{
	ptx_mbarrier_wait(r.mbars + r.slot * 16, r.parity);
	return r.stages + r.slot * GRID_STAGE_BYTES;
}

/* Releases `stages` stages, which all lanes have consumed. */
GRID void ring_release(struct ring &r, int stages)
{
	__syncwarp();
	for (int i = 0; i < stages; i++) {
		if (threadIdx.x % 32 < RELEASERS)
			ptx_mbarrier_arrive(r.mbars + r.slot * 16 + 8);
		ring_advance(r);
	}
}

GRID void work_sync(void)
{
	ptx_bar_sync(WORK_BAR, WORKERS);
}
#endif
