/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_split - the stream of a warp and the placement of data. Both dataflows that use a cluster for
 * each KV head share them
 *
 * Every warp has its own stream: the 4 KiB stages of w_qkv, keys, values and w_o that it will multiply, in
 * order, from the first instruction to the last. Nothing in the stream depends on a computed result, so the
 * warp refills its ring as soon as a stage is consumed: while CTAs exchange q, k, v or partial attention, the
 * data of the next phase arrive. struct split_cursor is the position up to which loads have been issued.
 *
 * A stage is 16 rows x 128 columns of a matrix, or 4096 bytes of keys or of values (by_head, the SPLIT_HEAD
 * dataflow: 16 keys and their values).
 *
 * q, k, v of the cluster's heads lie in shared memory as [request][group + 2][head_dim], split_at(). The
 * attended heads replace q in place.
 */
#ifndef CAIRN_CLUSTER_ATTN_SPLIT_CUH
#define CAIRN_CLUSTER_ATTN_SPLIT_CUH

#include "primitives/rows/angle.cuh"
#include "primitives/cluster/cluster_offchip.cuh"
#include "primitives/rows/row.cuh"
#include "fused/attention/base/attn_tile.cuh"
#include "fused/cluster_attn/cluster_attn_split.h"

#define SPLIT			static __device__ __forceinline__
#define SPLIT_WARPS		8
#define SPLIT_THREADS		(SPLIT_WARPS * 32)
#define SPLIT_STAGE_BYTES	4096
#define SPLIT_ROWS		16	/* rows of a stage of weights */
#define SPLIT_K			128
#define SPLIT_STAGES		2	/* stages of a warp's ring */

/* Returns how many 16-row units of w_qkv a warp sums up at once, at most. wide: more than 8 requests */
static constexpr __host__ __device__ int split_pass(int wide)
{
	return wide ? 2 : 4;
}

/*
 * Floats between the partial sums of one request and the next in a pass. The padding of 4 spreads the
 * requests over all banks.
 */
static constexpr __host__ __device__ int split_sum_row(int wide)
{
	return split_pass(wide) * SPLIT_ROWS + 4;
}

struct split_args {
	struct cairn_cluster_attn_args a;
	int32_t size;			/* CTAs of a cluster */
	int32_t group, rows;		/* query heads of a KV head; (group + 2) * head_dim */
	/* by_head: columns of a head that one rank attends over, a power of two */
	int32_t own_dim;
	uint32_t magic;			/* attn_magic(task_heads) */
	/* each rank's share: its first unit of 16 rows of w_qkv and of w_o; the next entry is the end */
	int16_t first_unit[CAIRN_CLUSTER_MAX_SIZE + 1], first_out[CAIRN_CLUSTER_MAX_SIZE + 1];
	int32_t pass_units;		/* units of 16 rows of w_qkv that are summed up at once */
	int32_t n_stride;		/* bytes of a row of n in shared memory; 0: n comes with the stream */
	/*
	 * a task of attention is a request, or half the heads of a request with a large group (keys are then
	 * read twice)
	 */
	int32_t half_shift, task_heads, tasks;
	int32_t team_warps, wave;	/* warps that share a task's tiles; tasks between two merges */
	int32_t num_states;		/* attention states in a wave */
	int32_t page_shift;
	int32_t out_chunks;		/* stages for 16 rows of w_o */
	/* heads whose partial results are summed up at once; number of such groups */
	int32_t radix, num_groups;
	int32_t sum_units;		/* units of w_o that a warp completes for each ticket */
	uint32_t s_scratch, s_ml, s_qkv, s_n, s_table, s_mbar, s_red;
	uint32_t s_slots, s_slot_mbar;	/* by_head; all s_ members are byte offsets in shared memory */
	uint32_t smem;
	/* pointers into the workspace */
	/* [num_groups + 1][units of w_o], the last row for all groups; zero between calls */
	uint32_t *tickets;
	float *part;			/* [num_kv_heads][batch][hidden] */
	char *n;			/* [cluster][batch][hidden] of dtype */
	char *box;			/* offchip: [cluster], box_bytes each */
	size_t box_bytes;
};

/* Defined in cluster_attn_split_head.cu. */
const void *cluster_attn_split_head_kernel(int dtype, int head_dim, int wide);

struct split_request {
	int32_t first_page, old_len;	/* keys before the new one; -1: no request */
	int32_t first_tile, end_tile;	/* this rank's share of the tiles of old keys */
};

/* A thread's coordinates */
struct split_cta {
	int lane, warp, quad, t;
	int rank, head;			/* the KV head of this cluster */
	uint32_t base;			/* shared memory address of the CTA's dynamic memory */
};

/* ---- addresses ---- */

SPLIT uint32_t split_swap(int request, int head)
{
	return (head & 7) ^ (request & 1) << 2;
}

/*
 * Returns the address of the 8 elements that begin at 8 * chunk. The swizzle spreads eight heads of a request
 * at one chunk over eight different groups of four banks (ldmatrix), and also four chunks of two requests
 * (split_load_attended).
 */
template <int head_dim> SPLIT uint32_t split_at(const struct split_args &g, const struct split_cta &c,
						int request,
						int head, uint32_t chunk)
{
	return c.base + g.s_qkv + (uint32_t)(request * g.rows + head * head_dim) * 2 +
	       ((chunk ^ split_swap(request, head)) << 4);
}

SPLIT struct split_request split_load_request(const struct split_args &g, const struct split_cta &c, int b)
{
	const uint4 v = ptx_ld_shared_v4(c.base + g.s_table + b * 16);
	const struct split_request r = { (int32_t)v.x, (int32_t)v.y, (int32_t)v.z, (int32_t)v.w };

	return r;
}

/* Returns the row of w_qkv that is row v of the cluster's heads (query heads, key, value). */
template <int head_dim> SPLIT int split_row(const struct split_args &g, const struct split_cta &c, int v)
{
	const int q_rows = g.group * head_dim;
	int row = c.head * q_rows + v;

	if (v >= q_rows)
		row = (g.a.num_qo_heads + c.head) * head_dim + v - q_rows;
	if (v >= q_rows + head_dim)
		row += (g.a.num_kv_heads - 1) * head_dim;
	return row;
}

/* Returns this warp's units [first, end) of 16 rows of w_o. */
SPLIT int2 split_out_units(const struct split_args &g, const struct split_cta &c)
{
	const int first = g.first_out[c.rank], count = g.first_out[c.rank + 1] - first;

	return make_int2(first + count * c.warp / SPLIT_WARPS, first + count * (c.warp + 1) / SPLIT_WARPS);
}

/* ---- the stream ---- */

enum split_phase { SPLIT_QKV, SPLIT_KEYS, SPLIT_OUT, SPLIT_END };

struct split_cursor {
	int phase, stage;		/* stage: of the ring, the next to be consumed and refilled */
	/* QKV: units [first, end) of the pass; sub: unit within the pass, -1: n. OUT: units [first, end) */
	int first, end, sub, chunk;
	/* index of this lane's first 16-byte piece of the stage, counted from the start of the matrix */
	uint32_t at;
	int task, tile;			/* KEYS: the tile to be loaded next */
	/*
	 * slots of this lane's key: in the tile to be loaded next, and in the tile whose values are loaded
	 * next
	 */
	uint32_t next_slot, slot;
	int values;
};

/* Returns the address of the stage that is consumed and refilled next. */
SPLIT uint32_t split_stage(const struct split_cta &c, const struct split_cursor &s)
{
	return c.base + (c.warp * SPLIT_STAGES + s.stage) * SPLIT_STAGE_BYTES;
}

/*
 * A stage has 16 rows of 256 bytes; piece i of row r lies at i ^ 4 (r & 1), so eight lanes that read together
 * hit all banks. Returns this lane's offset in the first two rows.
 */
SPLIT uint32_t split_stage_to(const struct split_cta &c)
{
	return (c.lane / 16) * 256 + ((c.lane % 16) ^ (c.lane / 16) << 2) * 16;
}

/* Loads 16 rows, two at a time. If bytes is 0, nothing is read and zeros are written. */
SPLIT void split_fetch_rows(const struct split_cta &c, uint32_t dst, const char *src, int64_t two_rows,
			    int bytes)
{
	/* cheaper to repeat, as one instruction, than to keep in two registers */
	const uint64_t policy = ptx_createpolicy_evict_first();

	dst += split_stage_to(c);
#pragma unroll
	for (int i = 0; i < SPLIT_ROWS; i += 2) {
		ptx_cp_async_cg_hint(dst + i * 256, src, bytes, policy);
		src += two_rows;
		if (i == SPLIT_ROWS / 2 - 2)
			/* keeps the compiler from computing all addresses ahead, which costs registers */
			asm volatile("" : "+l"(src));
	}
}

/* Returns the index of this lane's first 16-byte piece of unit `unit` of w_qkv, at the columns of `chunk`. */
template <int head_dim>
SPLIT uint32_t split_qkv_at(const struct split_args &g, const struct split_cta &c, int unit, int chunk)
{
	return split_row<head_dim>(g, c, unit * SPLIT_ROWS + c.lane / 16) * (g.a.hidden / 8) +
	       chunk * (SPLIT_K / 8) + c.lane % 16;
}

/* Moves to the next unit: 16 rows on or, from the end of a head's q or k, to the start of its k or v. */
template <int head_dim>
SPLIT void split_next_unit(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	const int row = (s.first + s.sub) * SPLIT_ROWS, q_rows = g.group * head_dim;
	int rows = SPLIT_ROWS;

	if (row == q_rows)
		rows += (g.a.num_qo_heads + c.head) * head_dim - (c.head + 1) * q_rows;
	if (row == q_rows + head_dim)
		rows += (g.a.num_kv_heads - 1) * head_dim;
	s.at += rows * (g.a.hidden / 8);
}

/* Loads the requests' n, as 16 rows in the layout of a matrix. */
SPLIT void split_fetch_n(const struct split_args &g, const struct split_cta &c,
			 const struct split_cursor &s, uint32_t dst)
{
	const int column = s.chunk * SPLIT_K + c.lane % 16 * 8;
	const char *src = g.n + ((int64_t)(c.head * g.a.kv.batch + c.lane / 16) * g.a.hidden + column) * 2;

	dst += split_stage_to(c);
#pragma unroll
	for (int i = 0; i < SPLIT_ROWS; i += 2) {
		ptx_cp_async_cg(dst + i * 256, src, column < g.a.hidden &&
				c.lane / 16 + i < g.a.kv.batch ? 16 : 0);
		src += g.a.hidden * 4;
		if (i == SPLIT_ROWS / 2 - 2)
			asm volatile("" : "+l"(src));
	}
}

/*
 * Loads `keys` rows of columns [first_chunk * 8, + dim) of a head's keys or values; lane i holds the slot of
 * key i. A missing key becomes zeros, so NaN in unused slots of the pages never reaches a product.
 */
template <int dim, int keys>
SPLIT void split_fetch_keys(const struct split_args &g, const struct split_cta &c, const void *pages,
			    uint32_t slot,
			    uint32_t dst)
{
	constexpr int chunks = dim / 8, per_pass = 32 / chunks;
	const uint32_t slot_bytes = g.a.num_kv_heads * dim * 2;
	const char *src = (const char *)pages + c.head * dim * 2 + c.lane % chunks * 16;
	int from = c.lane / chunks;

	dst += attn_swizzle(from, c.lane % chunks, dim * 2);
#pragma unroll 4
	for (int i = 0; i < keys; i += per_pass) {
		const uint32_t at = __shfl_sync(~0u, slot, from);

		ptx_cp_async_cg((dst ^ (i & 7) << 4) + i * dim * 2, src + (uint64_t)at * slot_bytes,
				at == ~0u ? 0 : 16);
		from += per_pass;
	}
}

/*
 * by_head: loads this rank's columns of 16 keys and, 2048 bytes on, of their values, as rows of 128 bytes.
 * Loads at least 16 columns; those beyond own_dim are zeros.
 */
SPLIT void split_fetch_own(const struct split_args &g, const struct split_cta &c, int head_dim, uint32_t slot,
			   uint32_t dst)
{
	const int own = g.own_dim / 8, chunks = max(own, 2), row = c.lane / chunks, chunk = c.lane % chunks;
	const uint32_t slot_bytes = g.a.num_kv_heads * head_dim * 2;
	const uint32_t column = (c.head * head_dim + c.rank * g.own_dim + chunk * 8) * 2;

	for (int i = 0; i < 16; i += 32 / chunks) {
		const uint32_t from = __shfl_sync(~0u, slot, i + row), ok = from != ~0u && chunk < own;
		const uint64_t at = ok ? (uint64_t)from * slot_bytes + column : 0;

		ptx_cp_async_cg(dst + attn_swizzle(i + row, chunk, 128), (const char *)g.a.kv.k_pages + at,
				ok ? 16 : 0);
		ptx_cp_async_cg(dst + 2048 + attn_swizzle(i + row, chunk, 128),
				(const char *)g.a.kv.v_pages + at,
				ok ? 16 : 0);
	}
}

/* Moves to this warp's next tile and looks up its slots, long before they are needed. */
template <int keys, int by_head>
SPLIT void split_next_tile(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	const int step = by_head ? SPLIT_WARPS : g.team_warps;
	struct split_request r;
	int key, page;

	s.tile += step;
	for (;;) {
		r = split_load_request(g, c, max(s.task, 0) >> g.half_shift);
		if (s.task >= 0 && s.tile < r.end_tile)
			break;
		s.task += SPLIT_WARPS / step;
		if (s.task >= g.tasks)
			return;
		s.tile = split_load_request(g, c, s.task >> g.half_shift).first_tile + c.warp % step;
	}
	key = s.tile * keys + c.lane;
	s.next_slot = ~0u;
	if (c.lane < keys && key < r.old_len) {
		page = g.page_shift >= 0 ? key >> g.page_shift : key / g.a.kv.page_size;
		s.next_slot = (uint32_t)__ldg(g.a.kv.indices + r.first_page +
					      page) * (uint32_t)g.a.kv.page_size +
			      (uint32_t)(key - page * g.a.kv.page_size);
	}
}

template <int head_dim>
SPLIT void split_enter_out(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	const int2 units = split_out_units(g, c);

	s.first = units.x;
	s.end = units.y;
	s.chunk = 0;
	s.at = (units.x * SPLIT_ROWS + c.lane / 16) * (g.a.num_qo_heads * (head_dim / 8)) +
	       c.head * g.group * (head_dim / 8) + c.lane % 16;
	s.phase = units.x < units.y ? SPLIT_OUT : SPLIT_END;
}

/* Enters the phase after w_qkv. The tiles of keys are known once split_first_tile() has been called. */
template <int head_dim>
SPLIT void split_enter_keys(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	s.phase = SPLIT_KEYS;
	if (s.task >= g.tasks)
		split_enter_out<head_dim>(g, c, s);
}

template <int head_dim, int by_head>
SPLIT void split_first_tile(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	split_next_tile<by_head ? 16 : SPLIT_STAGE_BYTES / (2 * head_dim), by_head>(g, c, s);
	if (s.phase == SPLIT_KEYS)
		split_enter_keys<head_dim>(g, c, s);
}

template <int head_dim, int by_head>
SPLIT void split_start(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	s.first = g.first_unit[c.rank];
	s.end = min(s.first + g.pass_units, g.first_unit[c.rank + 1]);
	s.phase = c.warp * SPLIT_K < g.a.hidden && s.first < s.end ? SPLIT_QKV : SPLIT_KEYS;
	s.stage = 0;
	s.sub = g.n_stride ? 0 : -1;
	s.chunk = c.warp;
	s.at = split_qkv_at<head_dim>(g, c, s.first, s.chunk);
	s.values = 0;
	s.task = (by_head ? 0 : c.warp / g.team_warps) - (by_head ? 1 : SPLIT_WARPS / g.team_warps);
	s.tile = 0;
	s.slot = s.next_slot = ~0u;
}

/*
 * Makes the lane number opaque to the compiler, so that addresses are recomputed where they are used instead
 * of staying in registers through the whole kernel.
 */
SPLIT struct split_cta split_opaque(struct split_cta c)
{
	asm volatile("" : "+r"(c.lane));
	c.quad = c.lane / 4;
	c.t = c.lane % 4;
	return c;
}

/*
 * Starts the loads of the item at the cursor and advances the cursor. Commits one cp.async group, which is
 * empty at the end of the stream.
 */
template <int head_dim, int by_head>
SPLIT void split_issue(const struct split_args &g, const struct split_cta &cta, struct split_cursor &s)
{
	const struct split_cta c = split_opaque(cta);
	constexpr int keys = by_head ? 16 : SPLIT_STAGE_BYTES / (2 * head_dim);
	const uint32_t dst = split_stage(c, s);

	if (s.phase == SPLIT_QKV) {
		if (s.sub < 0)
			split_fetch_n(g, c, s, dst);
		else
			split_fetch_rows(c, dst, (const char *)g.a.w_qkv + s.at * 16ull,
					 (int64_t)g.a.hidden * 4,
					 s.chunk * SPLIT_K + c.lane % 16 * 8 < g.a.hidden ? 16 : 0);
		if (s.first + ++s.sub < s.end) {
			if (s.sub > 0)
				split_next_unit<head_dim>(g, c, s);
		} else {
			s.sub = g.n_stride ? 0 : -1;
			s.chunk += SPLIT_WARPS;
			if (s.chunk * SPLIT_K >= g.a.hidden) {
				const int end = g.first_unit[c.rank + 1];

				s.chunk = c.warp;
				s.first = s.end;
				s.end = min(s.end + g.pass_units, end);
				if (s.first == end)
					split_enter_keys<head_dim>(g, c, s);
			}
			if (s.phase == SPLIT_QKV)
				s.at = split_qkv_at<head_dim>(g, c, s.first, s.chunk);
		}
	} else if (s.phase == SPLIT_KEYS) {
		if constexpr (by_head) {
			split_fetch_own(g, c, head_dim, s.next_slot, dst);
			split_next_tile<keys, 1>(g, c, s);
		} else {
			s.slot = s.values ? s.slot : s.next_slot;
			split_fetch_keys<head_dim, keys>(g, c, s.values ? g.a.kv.v_pages : g.a.kv.k_pages,
							 s.slot, dst);
			if (!s.values)
				split_next_tile<keys, 0>(g, c, s);
			s.values ^= 1;
		}
		if (!s.values && s.task >= g.tasks)
			split_enter_out<head_dim>(g, c, s);
	} else if (s.phase == SPLIT_OUT) {
		const int pitch = g.a.num_qo_heads * (head_dim / 8);

		split_fetch_rows(c, dst, (const char *)g.a.w_o + s.at * 16ull, pitch * 32ll,
				 s.chunk * SPLIT_K + c.lane % 16 * 8 < g.group * head_dim ? 16 : 0);
		s.at += SPLIT_K / 8;
		if (++s.chunk == g.out_chunks) {
			s.at += SPLIT_ROWS * pitch - g.out_chunks * (SPLIT_K / 8);
			s.chunk = 0;
			if (++s.first == s.end)
				s.phase = SPLIT_END;
		}
	}
	ptx_cp_async_commit_group();
	s.stage ^= 1;
}
#endif
