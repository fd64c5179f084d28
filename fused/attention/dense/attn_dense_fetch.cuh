/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_fetch - the producer of attn_dense: a warp that chooses row tiles and fetches Q, K, V by TMA
 *
 * Every copy is one box of 64 elements by the rows of a tile; the tensor map pads a dimension that is not a
 * multiple of 64 with zeros. A box may extend past the keys of its request, into another request or into rows
 * that may hold NaN. K may keep such rows, because the logits of their keys are overwritten. In V, the warp
 * overwrites them with zeros, so that p = 0 is never multiplied by a NaN.
 */
#ifndef CAIRN_ATTN_DENSE_FETCH_CUH
#define CAIRN_ATTN_DENSE_FETCH_CUH

#include <cuda.h>

#include "primitives/ptx/ptx_copy.cuh"
#include "fused/attention/dense/attn_dense.h"
#include "fused/attention/forward/attn_range.cuh"

/* Q as [token][query head][qk_dim], K and V as [KV head][key][dim]; k_shared: [1][key][64 elements] */
struct attn_dense_maps {
	CUtensorMap q, k, v, k_shared;
};

/*
 * The order in which CTAs take row tiles: by sections of heads whose keys the L2 can hold together, and
 * within a section those with the most keys first.
 */
struct attn_dense_plan {
	const int32_t *qo_indptr, *kv_indptr;
	int32_t *counter;		/* the next row tile; NULL: CTAs take them in order, back and forth */
	int32_t batch, units, row_tiles;	/* requests; units of heads per request; row tiles per unit */
	int32_t extra;			/* requests after these, none of which has a key */
	int32_t section;		/* pairs of request and unit whose keys the L2 can hold together */
	int32_t group;			/* query heads of a KV head; a unit has 2^shift of them */
};

/*
 * Returns the number of this CTA's nth row tile, which may be past the last row tile. `ctas` CTAs in a row,
 * those of a cluster or of the slices of a row tile, take the same number.
 */
ATTN_DEV int attn_dense_take(const struct attn_dense_plan &plan, int nth, int ctas)
{
	const int cta = blockIdx.x / ctas, all = gridDim.x / ctas;
	int i = nth * all + (nth & 1 ? all - 1 - cta : cta);

	if (plan.counter && nth > 0) {
		if (threadIdx.x % 32 == 0)
			i = gridDim.x + atomicAdd(plan.counter, 1);
		i = __shfl_sync(~0u, i, 0);
	}
	return i;
}

/* The producer's view of a row tile. */
struct attn_dense_walk {
	/* number of key tiles; 0: no row, or no row that sees a key; -1: past the last row tile */
	int32_t num_tiles;
	int32_t q_row, head;		/* first token, first query head */
	int32_t row, kv_head;		/* row of K and V at which the first key tile begins; KV head */
	int32_t first;			/* the row of the request's first key */
	int32_t left;			/* keys of the request from `row` on */
	int32_t request;
};

/*
 * Writes the results of tokens that see no key; called by warp `first` of `step` warps. The consumers never
 * get a row tile that has only such rows; in other row tiles they write the same zeros. If there are more
 * warps than requests, `share` warps write the rows of a request.
 */
ATTN_DEV void attn_dense_write_empty(const struct attn_dense_plan &plan, const struct attn_call &a, int first,
				     int step)
{
	const int chunks = a.v_dim / 8, requests = plan.batch + plan.extra, share = max(1, step / requests);
	const int at = first % share * 32 + threadIdx.x % 32;

	for (int b = first / share; b < requests; b += max(1, step / share)) {
		int qo_first = plan.qo_indptr[b], qo_len = plan.qo_indptr[b + 1] - qo_first;
		int kv_len = plan.kv_indptr[b + 1] - plan.kv_indptr[b];
		int64_t empty = kv_len == 0 ? qo_len : a.causal ? max(0, qo_len - kv_len) : 0;
		uint4 *out = (uint4 *)a.out + (int64_t)qo_first * a.num_qo_heads * chunks;

		empty *= a.num_qo_heads;
		for (int64_t i = at; i < empty * chunks; i += 32 * share)
			out[i] = make_uint4(0, 0, 0, 0);
		for (int64_t i = at; a.lse && i < empty; i += 32 * share)
			a.lse[(int64_t)qo_first * a.num_qo_heads + i] = -CUDART_INF_F;
	}
}

/* Finds row tile i and describes it to the consumers, unless it has no keys. V: see attn_forward.cuh */
template <class F, class V = struct attn_range>
ATTN_DEV struct attn_dense_walk attn_dense_find(const struct attn_dense_plan &plan,
						const typename V::call &a, int i, struct attn_row_tile *tile)
{
	int pairs = plan.batch * plan.units, first, in_section, b, end;
	struct attn_dense_walk w = {};
	struct attn_row_tile t = {};

	t.num_tiles = w.num_tiles = -1;
	if (i < pairs * plan.row_tiles) {
		first = i / (plan.section * plan.row_tiles) * plan.section;
		in_section = min(plan.section, pairs - first);
		i -= first * plan.row_tiles;
		t.row0 = (plan.row_tiles - 1 - i / in_section) * F::ctas * F::rows;
		first += i % in_section;
		w.request = t.request = b = first / plan.units;
		t.head = w.head = first % plan.units << a.shift;
		w.kv_head = w.head / plan.group;
		t.qo_first = plan.qo_indptr[b];
		t.qo_len = plan.qo_indptr[b + 1] - t.qo_first;
		w.num_tiles = 0;
		if (t.row0 >= t.qo_len << a.shift)
			return w;
		w.row = w.first = t.kv_first = plan.kv_indptr[b];
		t.kv_len = plan.kv_indptr[b + 1] - w.row;
		V::template keys_of<F>(a, &t, &end);
		if (end <= t.begin)
			return w;
		if (F::ctas > 1)
			t.row0 += ptx_cluster_ctarank() * F::rows;
		t.num_tiles = w.num_tiles = attn_div_up(end - t.begin, F::keys);
		w.q_row = t.qo_first + (t.row0 >> a.shift);
		w.row += t.begin;
		w.left = t.kv_len - t.begin;
	}
	if (threadIdx.x % 32 == 0)
		*tile = t;
	__syncwarp();
	return w;
}

/*
 * Starts the copy of 64 columns, from column x on, of a tile of K or V. In a cluster, each CTA copies its
 * share of the keys to all CTAs.
 */
template <class F>
ATTN_DEV void attn_dense_copy_panel(uint32_t s_panel, const CUtensorMap *map, int x, int row, int head,
				    uint32_t mbar)
{
	constexpr int share = F::keys / F::ctas;
	const int first = F::ctas > 1 ? ptx_cluster_ctarank() * share : 0;

	if (F::ctas == 1)
		ptx_cp_async_bulk_tensor_3d_g2s(s_panel, map, x, row, head, mbar);
	else
		ptx_cp_async_bulk_tensor_3d_g2s_multicast(s_panel + first * ATTN_PANEL, map, x, row + first,
							  head, mbar, (1 << F::ctas) - 1);
}

/* Starts the copy of a K tile, whose mbarrier counts its bytes. */
template <class F>
ATTN_DEV void attn_dense_copy_k(const struct attn_dense_maps &maps, uint32_t s_tile, int row, int head,
				uint32_t mbar)
{
	constexpr int own = F::qk_panels - F::shared;

	ptx_mbarrier_arrive_expect_tx(mbar, F::k_bytes);
#pragma unroll
	for (int i = 0; i < own; i++)
		attn_dense_copy_panel<F>(s_tile + i * F::keys * ATTN_PANEL, &maps.k, i * 64, row, head, mbar);
	if (F::shared)
		ptx_cp_async_bulk_tensor_3d_g2s(s_tile + own * F::keys * ATTN_PANEL, &maps.k_shared, 0, row,
						0, mbar);
}

/* Starts the copy of a V tile, whose mbarrier counts its bytes. */
template <class F>
ATTN_DEV void attn_dense_issue_v(const CUtensorMap *map, uint32_t s_tile, int row, int head, uint32_t mbar)
{
	ptx_mbarrier_arrive_expect_tx(mbar, F::v_bytes);
#pragma unroll
	for (int i = 0; i < F::v_panels; i++)
		attn_dense_copy_panel<F>(s_tile + i * F::keys * ATTN_PANEL, map, i * 64, row, head, mbar);
}

/* Starts the copy of Q, if there is a row tile, and hands the tile's description to the consumers. */
template <class F>
ATTN_DEV void attn_dense_copy_q(const CUtensorMap *map, uint32_t s_q, const struct attn_dense_walk &w,
				uint32_t mbar)
{
	if (w.num_tiles < 0) {
		ptx_mbarrier_arrive(mbar);
		return;
	}
	ptx_mbarrier_arrive_expect_tx(mbar, F::q_bytes);
#pragma unroll
	for (int i = 0; i < F::qk_panels; i++)
		ptx_cp_async_bulk_tensor_3d_g2s(s_q + i * F::rows * ATTN_PANEL, map, i * 64, w.head,
						w.q_row, mbar);
}

/*
 * Copies a V tile, of which `left` keys belong to the request. If the tile holds more keys, waits for the
 * copy and overwrites the other keys with zeros.
 */
template <class F>
ATTN_DEV void attn_dense_copy_v(const CUtensorMap *map, const struct attn_smem<struct attn_row_tile> &s,
				int stage, int row, int head, int left, uint32_t *phase)
{
	const int own = F::ctas > 1 ? stage : 0;	/* a CTA may be a stage ahead of the other */
	uint32_t s_tile = s.v + stage * F::v_bytes, full = s.full_v + 8 * stage, landed = s.landed + 8 * own;

	if (threadIdx.x % 32 == 0)
		attn_dense_issue_v<F>(map, s_tile, row, head, left < F::keys ? landed : full);
	if (left >= F::keys)
		return;
	ptx_mbarrier_wait(landed, *phase >> own & 1);
	*phase ^= 1 << own;
	for (int i = left * 8 + threadIdx.x % 32; i < F::keys * 8; i += 32) {
#pragma unroll
		for (int panel = 0; panel < F::v_panels; panel++)
			ptx_st_shared_v4(s_tile + panel * F::keys * ATTN_PANEL + i * 16,
					 make_uint4(0, 0, 0, 0));
	}
	ptx_fence_proxy_async_shared_cta();
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		ptx_mbarrier_arrive(full);
}

/* Returns where the nth tile of a ring lies, for the producer. */
template <int stages> ATTN_DEV struct attn_place attn_dense_place(uint32_t nth)
{
	return { (int)(nth % stages), ~(nth / stages) & 1 };
}

/* Fetches Q of the nth row tile, once the consumers have released its buffer. */
template <class F>
ATTN_DEV void attn_dense_fetch_q(const struct attn_dense_maps &maps,
				 const struct attn_smem<struct attn_row_tile> &s,
				 const struct attn_dense_walk &w, int nth)
{
	const struct attn_place q = attn_dense_place<F::q_stages>(nth);

	ptx_mbarrier_wait(s.empty_q + 8 * q.stage, q.phase);
	if (threadIdx.x % 32 == 0)
		attn_dense_copy_q<F>(&maps.q, s.q + q.stage * F::q_bytes, w, s.full_q + 8 * q.stage);
}

/* Fetches the nth tile of K, once the consumers have released its stage. */
template <class F>
ATTN_DEV void attn_dense_fetch_k(const struct attn_dense_maps &maps,
				 const struct attn_smem<struct attn_row_tile> &s, int row, int kv_head,
				 int nth)
{
	const struct attn_place k = attn_dense_place<F::stages>(nth);

	ptx_mbarrier_wait(s.empty_k + 8 * k.stage, k.phase);
	if (threadIdx.x % 32 == 0)
		attn_dense_copy_k<F>(maps, s.k + k.stage * F::k_bytes, row, kv_head, s.full_k + 8 * k.stage);
}

/* Fetches the nth tile of V, of which `left` keys belong to the request, in the same way. */
template <class F>
ATTN_DEV void attn_dense_fetch_v(const struct attn_dense_maps &maps,
				 const struct attn_smem<struct attn_row_tile> &s, int row, int kv_head,
				 int left, int nth, uint32_t *landed)
{
	const struct attn_place v = attn_dense_place<F::stages>(nth);

	ptx_mbarrier_wait(s.empty_v + 8 * v.stage, v.phase);
	attn_dense_copy_v<F>(&maps.v, s, v.stage, row, kv_head, left, landed);
}

/* Restores the view of a row tile from its description, so that two views need not be in registers. */
ATTN_DEV struct attn_dense_walk attn_dense_recall(const struct attn_dense_plan &plan,
						  const struct attn_row_tile &t)
{
	struct attn_dense_walk w = {};

	w.num_tiles = t.num_tiles;
	w.row = t.kv_first + t.begin;
	w.kv_head = t.head / plan.group;
	w.first = t.kv_first;
	w.left = t.kv_len - t.begin;
	w.request = t.request;
	return w;
}

/* The order in which a producer takes row tiles. */
struct attn_dense_order {
	int32_t next;			/* the row tile that it examines next */
	int32_t drawn, found;		/* row tiles drawn; those of them that have keys */
};

template <class F, class V>
ATTN_DEV void attn_dense_draw(const struct attn_dense_plan &plan, const typename V::call &a,
			      struct attn_dense_order *o)
{
	o->next = attn_dense_take(plan, o->drawn++, F::ctas * V::slices(a));
}

/*
 * Finds the next row tile with keys, starting with the one that was drawn, and describes it to the consumers.
 */
template <class F, class V>
ATTN_DEV struct attn_dense_walk attn_dense_seek(const struct attn_dense_plan &plan, const typename V::call &a,
						const struct attn_smem<struct attn_row_tile> &s,
						struct attn_dense_order *o)
{
	for (;;) {
		struct attn_dense_walk w =
			attn_dense_find<F, V>(plan, a, o->next, &s.tiles[o->found % ATTN_NUM_TILES]);

		if (w.num_tiles != 0) {
			o->found++;
			return w;
		}
		attn_dense_draw<F, V>(plan, a, o);
	}
}

/*
 * The producer warp: fetches Q, K and V of its row tiles in order, as far ahead as the stages allow. With two
 * buffers of Q, it finds the next row tile and fetches its Q at the third key tile of this one, when the
 * consumers have finished the row tile before; with one buffer, it fetches Q after the first K of the row
 * tile.
 */
template <class F, class V = struct attn_range>
ATTN_DEV void attn_dense_produce(const struct attn_dense_plan &plan, const typename V::call &a,
				 const struct attn_dense_maps &maps,
				 const struct attn_smem<struct attn_row_tile> &s)
{
	constexpr bool early = F::q_stages > 1;
	struct attn_dense_order order = {};
	struct attn_dense_walk w;
	uint32_t landed = 0;
	int tiles = 0;			/* key tiles of all earlier row tiles */
	int before = 0;			/* offset, in keys, of the key tile whose V is fetched next */

	attn_dense_draw<F, V>(plan, a, &order);
	w = attn_dense_seek<F, V>(plan, a, s, &order);
	if (early)
		attn_dense_fetch_q<F>(maps, s, w, 0);
	while (w.num_tiles > 0) {
		/* draw the next row tile early: the latency overlaps the fetch of this one */
		attn_dense_draw<F, V>(plan, a, &order);
		for (int i = 0; i <= w.num_tiles; i++) {
			const int behind = attn_key_tile<V>(i, w.num_tiles) * F::keys;

			if (i < w.num_tiles)
				attn_dense_fetch_k<F>(maps, s, w.row + behind, w.kv_head, tiles + i);
			if (!early && i == 0)
				attn_dense_fetch_q<F>(maps, s, w, order.found - 1);
			if (early && i == min(2, w.num_tiles)) {
				struct attn_dense_walk ahead = attn_dense_seek<F, V>(plan, a, s, &order);

				attn_dense_fetch_q<F>(maps, s, ahead, order.found - 1);
			}
			if (i > 0)
				attn_dense_fetch_v<F>(maps, s, w.row + before, w.kv_head, w.left - before,
						      tiles + i - 1, &landed);
			before = behind;
		}
		tiles += w.num_tiles;
		if (early)
			w = attn_dense_recall(plan, s.tiles[(order.found - 1) % ATTN_NUM_TILES]);
		else
			w = attn_dense_seek<F, V>(plan, a, s, &order);
	}
	if (!early)
		attn_dense_fetch_q<F>(maps, s, w, order.found - 1);
}

#endif
