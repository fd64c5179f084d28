/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows_product - the two products of moe_rows.cu: 256 rows of weights times up to 160 places
 *
 *   out^T = w x^T: weights are the wgmma operand with 64 rows, because few places would not fill one
 *   gate_up   64 gates and their 64 ups per warpgroup: h = silu(gate) * up * weight, to panels; kinds with
 *             has_between() add biases first, if there are any, and may use activation 1
 *   down      128 rows per warpgroup: y, fp32
 *
 * One CTA per SM takes items (a tile of places and 256 rows of weights) from a counter. Items of the shared
 * experts take longest; they are spread among the first items of the others, which wait for memory more than
 * they multiply. Items that read the same weights are neighbours. Two consumer warpgroups multiply, each 2 x
 * 64 rows by n columns, where n is the smallest width that holds the tile's places. One producer thread
 * fetches stages as far ahead as the ring allows, even those of the next item. The first weights of down are
 * prefetched into the L2 while gate_up still runs.
 *
 * Weights arrive by TMA, panels of x or h by bulk copies. 16-bit weights are multiplied from shared memory.
 * Those of 8 bits are loaded into registers (ldmatrix) and widened there, one part of k while the preceding
 * part is multiplied. With up to 64 places, registers are free and a part is 64 of k. Codes of 4 bits are
 * decoded likewise (moe_rows_codes.cuh).
 *
 * Scales of rows are applied to sums at the end. With scales of blocks, a stage is a block along k: sums
 * restart with each stage, and at its end are scaled and added to the total. While one warpgroup does this,
 * the other multiplies.
 *
 * Shared memory        16 bits                8 bits, scales of rows   scales of blocks   4 bits
 *   weights of a stage 256 rows of 128 bytes  the same                 the same           19 KiB
 *   x of a stage       a panel of 160 rows    2 panels of 144 rows     2 panels of 112    2 panels of 144
 *   stages             4                      3                        3                  4
 *   total              208 KiB                204 KiB                  180 KiB            220 KiB
 *   and for each stage the item that is in progress, and two mbarriers
 * mbarriers: full expects one arrival and a byte count; empty expects one arrival from each of the 8 consumer
 * warps. Registers per thread: 168 at the start, then 232 in consumers and 40 in the producer warpgroup; no
 * spills. Optimisation history: NOTES.md.
 */
#ifndef CAIRN_MOE_ROWS_PRODUCT_CUH
#define CAIRN_MOE_ROWS_PRODUCT_CUH

#include "primitives/ptx/fp8.cuh"
#include "primitives/rows/row.cuh"
#include "fused/moe/moe_rows_codes.cuh"
#include "fused/moe/moe_rows_wgmma.cuh"

#define PREFETCH	8		/* stages */

/* Returns the smallest width that holds `places` places. */
ATTN_DEV int width_of(int places)
{
	return places <= 16 ? 16 : places <= 32 ? 32 : places <= 64 ? 64 : places <= 96 ? 96 :
	       (places + 15) / 16 * 16;
}

ATTN_DEV struct work find_work(const struct product &p, int item, int routed_items, int shared_items)
{
	/*
	 * Every `every`-th of the first items belongs to the shared experts while there are any. With few
	 * rows they come first, because choose has prefetched their weights into the L2.
	 */
	const int every = p.shared_tiles <= 1 ? 1 :
			  max(1, (routed_items + shared_items) / (2 * shared_items));
	const int before = min(shared_items, (item + every - 1) / every);
	struct work w;
	struct tile t;
	int local;

	w.shared = item % every == 0 && before < shared_items;
	if (w.shared) {
		t = { 0, 0, p.batch, tile_size(p.batch, p.most), 0, p.shared_tiles, { 0, 0 } };
		local = before;
	} else {
		t = p.tiles[(item - before) / p.side[0].items];
		local = item - before - t.base * p.side[0].items;
	}
	w.expert = t.expert;
	w.row0 = local / t.num;
	local %= t.num;
	w.first = t.first + local * t.size;
	w.count = min(t.size, t.count - local * t.size);
	w.n = width_of(w.count);
	return w;
}

/* Prefetches the beginning of down's first item into the L2 while gate_up still runs. */
template <int kind>
ATTN_DEV void prefetch(const struct product &p, const struct work &w)
{
	const struct side &side = p.side[w.shared];
	constexpr int per_stage = stage_panels(kind) * PANEL;

	for (int k = 0; k < min(side.k, PREFETCH * per_stage); k += per_stage)
#pragma unroll
		for (int i = 0; i < (is_4(kind) ? BOXES : 2); i++)
			if (is_4(kind))
				ptx_cp_async_bulk_prefetch_tensor_3d(&side.w, 0, k / CAIRN_W4_TILE_K,
								     box_unit<true>(side, w, i));
			else
				ptx_cp_async_bulk_prefetch_tensor_3d(&side.w, k, (w.row0 * 2 + i) * HALF_ROWS,
								     w.expert);
}

/*
 * The producer. down may read the results of sort before griddepcontrol.wait, because gate_up lets down begin
 * only after it has itself waited for sort.
 */
template <int kind, bool down>
ATTN_DEV void fetch(const struct product &p, const struct shared &s)
{
	constexpr int per_stage = stage_panels(kind) * PANEL;
	const int routed_items = *p.num_tiles * p.side[0].items;
	const int shared_items = p.shared_tiles * p.side[1].items;
	struct turn turn = { 0, 1 };
	int slot = 0, item = atomicAdd(p.next, 1);

	if (down) {
		if (item < routed_items + shared_items)
			prefetch<kind>(p, find_work(p, item, routed_items, shared_items));
		ptx_griddepcontrol_wait();
	}
	while (item < routed_items + shared_items) {
		struct work w = find_work(p, item, routed_items, shared_items);
		const struct side &side = p.side[is_4(kind) ? 0 : w.shared];
		const char *in = side.in + (int64_t)w.first * PANEL_ROW;
		const int64_t panel_bytes = (int64_t)side.in_rows * PANEL_ROW;
		const int bytes = (w.count + 15) / 16 * 16 * PANEL_ROW;
		const int row = w.row0 * (down ? 2 * HALF_ROWS : HALF_ROWS);
		const int matrix = w.expert * (down ? 1 : 2);

		item = atomicAdd(p.next, 1);	/* the reply arrives before it is needed */
		for (int k = 0; k < side.k; k += per_stage) {
			const uint32_t at = s.stages + turn.stage * stage_bytes(kind);
			const uint32_t full = s.full + turn.stage * 8;
			const int panels = min(stage_panels(kind), (side.k - k) / PANEL);

			ptx_mbarrier_wait(s.empty + turn.stage * 8, turn.phase);
			if (k == 0)
				s.work[slot] = w;
			ptx_mbarrier_arrive_expect_tx(full, panels * bytes + (is_4(kind) ? codes_bytes(p) :
									      2 * HALF_BYTES));
			if (is_4(kind))
				fetch_codes<kind, down>(p, side, w, k, at, full);
#pragma unroll
			for (int i = 0; i < 2 && !is_4(kind); i++)
				ptx_cp_async_bulk_tensor_3d_g2s(at + i * HALF_BYTES, &side.w, k,
								row + i * (down ? HALF_ROWS : HALF_ROWS / 2),
								matrix, full);
#pragma unroll
			for (int i = 0; i < stage_panels(kind); i++)
				if (i < panels)
					ptx_cp_async_bulk_g2s(at + weight_bytes(kind) +
							      i * most_places(kind) * PANEL_ROW,
							      in + (k / PANEL + i) * panel_bytes, bytes,
							      full);
			advance<kind>(&turn);
		}
		slot = slot + 1 == num_stages(kind) ? 0 : slot + 1;
	}
	ptx_mbarrier_wait(s.empty + turn.stage * 8, turn.phase);
	s.work[slot].n = 0;
	ptx_mbarrier_arrive(s.full + turn.stage * 8);
}

/* Multiplies the stages from shared memory, one after the other. */
template <int dtype, int n>
ATTN_DEV void multiply_16(float (*sum)[MOST], const struct shared &s, struct turn *turn, int k)
{
	constexpr int kind = BITS_16;
	uint32_t last = 0;

	for (int at = 0; at < k; at += PANEL) {
		const uint32_t s_stage = s.stages + turn->stage * stage_bytes(kind);
		const uint64_t a = wgmma_desc(s_stage + threadIdx.x / 128 * HALF_BYTES, 0);
		const uint64_t b = wgmma_desc(s_stage + 2 * HALF_BYTES, 0);

		ptx_mbarrier_wait(s.full + turn->stage * 8, turn->phase);
		wgmma_keep<n / 2>(sum[0]);
		wgmma_keep<n / 2>(sum[1]);
		ptx_wgmma_fence();
#pragma unroll
		for (int i = 0; i < PANEL / 16; i++)
#pragma unroll
			for (int m = 0; m < 2; m++)
				wgmma_rows_ss<dtype, n>(sum[m], a + m * (64 * PANEL_ROW >> 4) + i * 2,
							b + i * 2, 1);
		ptx_wgmma_commit_group();
		wgmma_keep<n / 2>(sum[0]);
		wgmma_keep<n / 2>(sum[1]);
		ptx_wgmma_wait_group<1>();
		if (at)
			elected_arrive(last);
		last = s.empty + turn->stage * 8;
		advance<kind>(turn);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<n / 2>(sum[0]);
	wgmma_keep<n / 2>(sum[1]);
	elected_arrive(last);
}

/* Loads 32 bytes of 64 rows from piece `piece` on: raw[0], [1]: the first piece of a row and of row + 8. */
ATTN_DEV void load_bytes(uint32_t raw[4], uint32_t s_rows, int piece)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;

	ptx_ldmatrix_x4(raw, s_rows + attn_swizzle(warp * 16 + lane % 16, piece + lane / 16, PANEL_ROW));
}

/* Widens the A fragment of 16 of k. */
template <int dtype> ATTN_DEV void widen(uint32_t a[4], const uint32_t raw[2])
{
	fp8_widen_even_odd<dtype>(raw[0], &a[0], &a[2]);
	fp8_widen_even_odd<dtype>(raw[1], &a[1], &a[3]);
}

/*
 * d[m] += 64 rows times n places over `panels` panels of a stage, for m = first .. last. Short products
 * widen more at a time, so that there are fewer waits for loads and products.
 */
template <int kind, int dtype, int n, int panels, int first, int last>
ATTN_DEV void multiply_wide(float (*d)[MOST], uint32_t s_stage)
{
	/* steps of 16 multiplied at a time; steps of 32 loaded at a time */
	constexpr int batch = n <= FEW ? 4 : kind == BITS_8 ? 1 : 2, ahead = n <= FEW ? panels * 2 : 1;
	const uint32_t s_a = s_stage + threadIdx.x / 128 * HALF_BYTES;
	const uint64_t b = wgmma_desc(s_stage + 2 * HALF_BYTES, 0);
	uint32_t raw[ahead][2][4], a[2][batch][2][4];

#pragma unroll
	for (int i = 0; i < panels * PANEL / 16; i += batch) {
		const uint64_t b_i = b + i / 4 * (most_places(kind) * PANEL_ROW >> 4) + i % 4 * 2;

#pragma unroll
		for (int l = 0; l < ahead && i % (2 * ahead) == 0; l++)
#pragma unroll
			for (int m = first; m <= last; m++)
				load_bytes(raw[l][m], s_a + m * 64 * PANEL_ROW, i + 2 * l);
#pragma unroll
		for (int j = 0; j < batch; j++)
#pragma unroll
			for (int m = first; m <= last; m++)
				widen<dtype>(a[i / batch % 2][j][m],
					     raw[(i + j) / 2 % ahead][m] + (i + j) % 2 * 2);
#pragma unroll
		for (int m = first; m <= last; m++)
			wgmma_keep<n / 2>(d[m]);
		ptx_wgmma_fence();
#pragma unroll
		for (int j = 0; j < batch; j++)
#pragma unroll
			for (int m = first; m <= last; m++)
				wgmma_rows_rs<dtype, n>(d[m], a[i / batch % 2][j][m], b_i + j * 2, 1);
		ptx_wgmma_commit_group();
#pragma unroll
		for (int m = first; m <= last; m++)
			wgmma_keep<n / 2>(d[m]);
		ptx_wgmma_wait_group<1>();	/* the other half of a is free */
	}
	ptx_wgmma_wait_group<0>();
#pragma unroll
	for (int m = first; m <= last; m++)
		wgmma_keep<n / 2>(d[m]);
}

template <int dtype, int n>
ATTN_DEV void multiply_8(float (*sum)[MOST], const struct shared &s, struct turn *turn, int k)
{
	constexpr int kind = BITS_8;

	for (int at = 0; at < k; at += 2 * PANEL) {
		const uint32_t s_stage = s.stages + turn->stage * stage_bytes(kind);

		ptx_mbarrier_wait(s.full + turn->stage * 8, turn->phase);
		if (k - at > PANEL)
			multiply_wide<kind, dtype, n, 2, 0, 1>(sum, s_stage);
		else
			multiply_wide<kind, dtype, n, 1, 0, 1>(sum, s_stage);
		elected_arrive(s.empty + turn->stage * 8);
		advance<kind>(turn);
	}
}

/* scales: of this warpgroup's first and second 64 rows, one for each stage */
template <int dtype, int n>
ATTN_DEV void multiply_blocks(float (*sum)[MOST], const struct shared &s, struct turn *turn, int k,
			      const float *const scales[2])
{
	constexpr int kind = BITS_8_BLOCKS;

	for (int at = 0; at < k; at += 2 * PANEL) {
		const uint32_t s_stage = s.stages + turn->stage * stage_bytes(kind);
		const float scale[2] = { scales[0][at / CAIRN_FP8_BLOCK], scales[1][at / CAIRN_FP8_BLOCK] };
		float part[2][MOST];

		ptx_mbarrier_wait(s.full + turn->stage * 8, turn->phase);
#pragma unroll
		for (int m = 0; m < 2; m++) {
#pragma unroll
			for (int i = 0; i < n / 2; i++)
				part[m][i] = 0;
			if (k - at > PANEL && m == 0)
				multiply_wide<kind, dtype, n, 2, 0, 0>(part, s_stage);
			else if (k - at > PANEL)
				multiply_wide<kind, dtype, n, 2, 1, 1>(part, s_stage);
			else if (m == 0)
				multiply_wide<kind, dtype, n, 1, 0, 0>(part, s_stage);
			else
				multiply_wide<kind, dtype, n, 1, 1, 1>(part, s_stage);
			if (m == 1)
				elected_arrive(s.empty + turn->stage * 8);
#pragma unroll
			for (int i = 0; i < n / 2; i++)
				sum[m][i] += scale[m] * part[m][i];
		}
		advance<kind>(turn);
	}
}

ATTN_DEV float silu(float x)
{
	return __fdividef(x, 1 + __expf(-x));
}

/* The biases of the gates and ups of a thread's two rows (row and row + 8) of a tile's expert. */
struct biases {
	float gate[2], up[2];
};

template <int kind, int dtype>
ATTN_DEV struct biases load_biases(const struct product &p, const struct side &side, const struct work &w,
				   int row)
{
	struct biases b = {};

	if constexpr (has_between(kind)) {
#pragma unroll
		for (int half = 0; half < 2 && p.between.gate_up_bias; half++) {
			const uint16_t *from = (const uint16_t *)p.between.gate_up_bias +
					       (int64_t)w.expert * 2 * side.height + row + half * 8;

			b.gate[half] = row_element<dtype>(from, 0);
			b.up[half] = row_element<dtype>(from + side.height, 0);
		}
	}
	return b;
}

/* Returns h before its weight. half: which of the thread's two rows */
template <int kind>
ATTN_DEV float activated(const struct product &p, const struct biases &b, int half, float gate, float up)
{
	return has_between(kind) ?
	       moe_activated(p.between, gate + b.gate[half], up + b.up[half]) : silu(gate) * up;
}

/* Writes this warp's 16 columns of h for a tile's places; `column`: the first of its warpgroup's 64 */
template <int kind, int dtype, int places>
ATTN_DEV void write_h(const struct product &p, const struct side &side, const struct work &w,
		      const float (*sum)[MOST], int column)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	float weight[(places + 31) / 32];
	struct biases b;

	if (column >= side.height)
		return;
	b = load_biases<kind, dtype>(p, side, w, column + warp * 16 + lane / 4);
#pragma unroll
	for (int i = 0; i < (places + 31) / 32; i++)
		weight[i] = w.shared ? 1 : i * 32 + lane < w.count ? p.weight[w.first + i * 32 + lane] : 0;
#pragma unroll
	for (int j = 0; j < places / 8; j += 2) {
		uint32_t x[4];
		uint4 eight;
		int place;

		if (j * 8 >= w.count)
			break;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int from = (j + i) % 4 * 8 + lane % 4 * 2;
			float w0 = __shfl_sync(~0u, weight[(j + i) / 4], from);
			float w1 = __shfl_sync(~0u, weight[(j + i) / 4], from + 1);

#pragma unroll
			for (int half = 0; half < 2; half++) {
				const float *gate = sum[0] + (j + i) * 4 + half * 2;
				const float *up = sum[1] + (j + i) * 4 + half * 2;

				x[i * 2 + half] = ptx_movmatrix_trans(attn_pack<dtype>(
					activated<kind>(p, b, half, gate[0], up[0]) * w0,
					activated<kind>(p, b, half, gate[1], up[1]) * w1));
			}
		}
		/*
		 * lanes 0 and 1: 16 columns of a place of the first eight; lanes 2 and 3: of the second eight
		 */
		eight = attn_gather_quad(x);
		if (is_8(kind))
			eight = even_odd(eight);
		place = (j + lane % 4 / 2) * 8 + lane / 4;
		if (place < w.count)
			*(uint4 *)((char *)side.out + panel_at(side.out_rows, w.first + place,
							       column / 8 + warp * 2 + lane % 2)) = eight;
	}
}

/* Writes y of a tile's places; `row`: the first of the warpgroup's 128 rows of weights */
template <int places>
ATTN_DEV void write_y(const struct product &p, const struct side &side, const struct work &w,
		      const float (*sum)[MOST], int row)
{
	const int lane = threadIdx.x % 32;
	int32_t to[(places + 31) / 32];

	row += threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
	for (int i = 0; i < (places + 31) / 32; i++) {
		const int place = w.first + i * 32 + lane;

		to[i] = w.shared ? place : i * 32 + lane < w.count ? p.pair[place] : 0;
	}
#pragma unroll
	for (int j = 0; j < places / 8; j++) {
		if (j * 8 >= w.count)
			break;
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int place = j * 8 + lane % 4 * 2 + e;
			const int pair = __shfl_sync(~0u, to[j / 4], place % 32);
			float *y = (float *)side.out + (int64_t)pair * p.hidden + row;

			if (place >= w.count)
				continue;
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (row + i / 2 * 64 + i % 2 * 8 < p.hidden)
					y[i / 2 * 64 + i % 2 * 8] = sum[i / 2][j * 4 + i % 2 * 2 + e];
		}
	}
}

/* Multiplies if n is a width above `least` and up to `places`. */
template <int kind, int dtype, int least, int places, int n>
ATTN_DEV void multiply(float (*sum)[MOST], const struct product &p, const struct shared &s,
		       struct turn *turn, int k, const float *const scales[2])
{
	if constexpr (n <= least || n > places)
		return;
	else if constexpr (is_16(kind))
		multiply_16<dtype, n>(sum, s, turn, k);
	else if constexpr (is_4(kind))
		multiply_4<kind, dtype, n>(sum, p, s, turn, k);
	else if constexpr (kind == BITS_8)
		multiply_8<dtype, n>(sum, s, turn, k);
	else
		multiply_blocks<dtype, n>(sum, s, turn, k, scales);
}

template <int kind, int dtype, bool down, int least, int places>
ATTN_DEV void do_work(const struct product &p, const struct shared &s, const struct work &w,
		      struct turn *turn)
{
	const struct side &side = p.side[w.shared];
	const int group = threadIdx.x / 128, warp_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
	/* first of this warpgroup's rows; its second 64 are ups, or the rows that follow */
	const int first = (w.row0 * 2 + group) * (down ? HALF_ROWS : HALF_ROWS / 2);
	const float *scales[2] = {};
	float sum[2][MOST] = {}, scale[4];

#pragma unroll
	for (int m = 0; m < 2 && is_8(kind); m++) {
		int row = down ? min(first + m * 64, side.height - 64) :
			  min(first, side.height - 64) + m * side.height;

		scales[m] = side.scales + w.expert * side.expert_scales +
			    (kind == BITS_8 ? row + warp_row :
			     row / CAIRN_FP8_BLOCK * attn_div_up(side.k, CAIRN_FP8_BLOCK));
	}
#pragma unroll
	for (int i = 0; i < 4 && kind == BITS_8; i++)
		scale[i] = scales[i / 2][i % 2 * 8];
#define CASE(n) \
	case n: \
		multiply<kind, dtype, least, places, n>(sum, p, s, turn, side.k, scales); \
		break
	switch (w.n) {
	CASE(16);
	CASE(32);
	CASE(64);
	CASE(96);
	CASE(112);
	CASE(128);
	CASE(144);
	CASE(160);
	}
#undef CASE
	if (kind == BITS_8)
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < places / 8; j++) {
				sum[i / 2][j * 4 + i % 2 * 2] *= scale[i];
				sum[i / 2][j * 4 + i % 2 * 2 + 1] *= scale[i];
			}
	apply_factors<kind, down, places>(sum, p, w.expert);
	if (down)
		write_y<places>(p, side, w, sum, first);
	else
		write_h<kind, dtype, places>(p, side, w, sum, first);
}

template <int kind, int dtype, bool down>
ATTN_DEV void consume(const struct product &p, const struct shared &s)
{
	struct turn turn = { 0, 0 };

	for (int slot = 0;; slot = slot + 1 == num_stages(kind) ? 0 : slot + 1) {
		struct work w;

		ptx_mbarrier_wait(s.full + turn.stage * 8, turn.phase);
		w = s.work[slot];
		if (!w.n)
			return;
		if (w.n <= FEW)
			do_work<kind, dtype, down, 0, FEW>(p, s, w, &turn);
		else
			do_work<kind, dtype, down, FEW, most_places(kind)>(p, s, w, &turn);
	}
}

template <int kind, int dtype, bool down>
static __global__ __launch_bounds__(THREADS, 1)
void product_kernel(const __grid_constant__ struct product p)
{
	extern __shared__ __align__(1024) uint8_t s_mem[];
	const struct shared s = lay_out<kind>(s_mem);

	if (threadIdx.x == 0) {
		for (int i = 0; i < num_stages(kind); i++) {
			ptx_mbarrier_init(s.full + i * 8, 1);
			ptx_mbarrier_init(s.empty + i * 8, CONSUMERS / 32 * ELECTED_LANES);
		}
		ptx_fence_mbarrier_init_release_cluster();
		ptx_prefetch_tensormap(&p.side[0].w);
		if (is_4(kind))
			ptx_prefetch_tensormap(&p.side[0].cells);
		if (p.shared_tiles)
			ptx_prefetch_tensormap(&p.side[1].w);
	}
	__syncthreads();
	if (!down || threadIdx.x < CONSUMERS)
		ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (threadIdx.x >= CONSUMERS) {
		ptx_setmaxnreg_dec<PRODUCER_REGS>();
		if (threadIdx.x == CONSUMERS)
			fetch<kind, down>(p, s);
	} else {
		ptx_setmaxnreg_inc<CONSUMER_REGS>();
		consume<kind, dtype, down>(p, s);
	}
}

/* Kernels for 8-bit weights, with scales of rows and of blocks */
const void *moe_rows_fp8_kernel(int f16, int down);
const void *moe_rows_fp8_blocks_kernel(int f16, int down);
/* The kernel of gate_up for 16-bit weights, with biases and activations */
const void *moe_rows_between_kernel(int f16);
/* Kernels for 4-bit weights */
const void *moe_rows_int_kernel(int f16, int down);
const void *moe_rows_mx_kernel(int f16, int down);
const void *moe_rows_nv_kernel(int f16, int down);

#endif
