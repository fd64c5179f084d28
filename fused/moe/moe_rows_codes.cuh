/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows_codes - 4-bit weights in the products of moe_rows_product.cuh, for many rows
 *
 * A stage covers 128 of k. It holds the codes and the cells (gemm_w4_layout.h) of 256 rows of weights, in
 * four boxes of 64 rows each, and then two panels of x. A word of codes is a lane's part of operand A of one
 * wgmma. The lane decodes the word, multiplies it by its scale, which is rounded to dtype (w4_scaled()), and
 * fills one set of registers while the product of the other set runs. One set belongs to a warpgroup's first
 * 64 rows, the other to its second 64: larger sets would not leave enough registers for 144 places
 * (NOTES.md).
 *
 * A box that reaches past an expert's rows also holds rows of the next matrix, or zeros after the last one.
 * Their sums are not used. Elements past k arrive as zeros and are not used either.
 */
#ifndef CAIRN_MOE_ROWS_CODES_CUH
#define CAIRN_MOE_ROWS_CODES_CUH

#include "primitives/gemm/w4/gemm_w4.cuh"
#include "fused/moe/moe_rows_stage.cuh"
#include "fused/moe/moe_rows_wgmma.cuh"

/* Returns the first unit of a box: gates or ups of a warpgroup; down: rows in order. */
template <bool down> ATTN_DEV int box_unit(const struct side &side, const struct work &w, int box)
{
	const int units = side.height / CAIRN_W4_ROWS;

	return down ? w.expert * units + (w.row0 * BOXES + box) * BOX_UNITS :
	       (w.expert * 2 + box % 2) * units + (w.row0 * 2 + box / 2) * BOX_UNITS;
}

/* Returns the bytes that fetch_codes() fetches. */
ATTN_DEV int codes_bytes(const struct product &p)
{
	return BOXES * (BOX_CODES + BOX_UNITS * p.stage_cells);
}

/* Fetches the weights of a stage, from k on, to shared memory at `at`. */
template <int kind, bool down>
ATTN_DEV void fetch_codes(const struct product &p, const struct side &side, const struct work &w, int k,
			  uint32_t at, uint32_t full)
{
	const int cell = (k >> p.shift) * (cairn_w4_cell_bytes(format_of(kind)) / 2);

#pragma unroll 1	/* the producer has few registers */
	for (int box = 0; box < BOXES; box++) {
		const int unit = box_unit<down>(side, w, box);

		ptx_cp_async_bulk_tensor_3d_g2s(at + box * BOX_CODES, &side.w, 0, k / CAIRN_W4_TILE_K, unit,
						full);
		ptx_cp_async_bulk_tensor_2d_g2s(at + BOXES * BOX_CODES + box * BOX_CELLS, &side.cells, cell,
						unit, full);
	}
}

/*
 * Multiplies the stages of an item. A product ends before the set of registers that it reads is filled again;
 * all end once within 64 of k, because the compiler must see products end within one iteration.
 */
template <int kind, int dtype, int n>
ATTN_DEV void multiply_4(float (*sum)[MOST], const struct product &p, const struct shared &s,
			 struct turn *turn, int k)
{
	constexpr int format = format_of(kind);
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, box = threadIdx.x / 128 * 2;
	uint32_t a[2][4], last = 0;

	for (int at = 0; at < k; at += PANEL) {
		const int panel = at / PANEL % 2, stage = turn->stage * stage_bytes(kind);
		const uint8_t *codes = s.memory + stage + box * BOX_CODES + warp * UNIT_CODES +
				       panel * CAIRN_W4_TILE_BYTES + lane * 16;
		const uint8_t *cells = s.memory + stage + BOXES * BOX_CODES + box * BOX_CELLS +
				       warp * p.stage_cells;
		const uint64_t b = wgmma_desc(s.stages + stage + weight_bytes(kind), 0) +
				   panel * (most_places(kind) * PANEL_ROW >> 4);
		struct w4_scales scales[2];
		uint4 words[2];

		if (!panel)
			ptx_mbarrier_wait(s.full + turn->stage * 8, turn->phase);
#pragma unroll
		for (int m = 0; m < 2; m++)
			words[m] = *(const uint4 *)(codes + m * BOX_CODES);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int m = i % 2, c = i / 2;
			const int cell = (panel * PANEL + c * 16 >> p.shift) * cairn_w4_cell_bytes(format);

			if (c % 2 == 0 || format == CAIRN_W4_NV)
				scales[m] = w4_load_scales<format, dtype>(cells + m * BOX_CELLS + cell,
									  lane / 4);
			w4_scaled<format, dtype>(w4_word(words[m], c), scales[m], true, a[m]);
			if (i == 0) {
				ptx_wgmma_wait_group<0>();
				wgmma_keep<n / 2>(sum[0]);
				wgmma_keep<n / 2>(sum[1]);
				if (at && !panel)
					elected_arrive(last);
			}
			wgmma_keep<n / 2>(sum[m]);
			ptx_wgmma_fence();
			wgmma_rows_rs<dtype, n>(sum[m], a[m], b + c * 2, 1);
			ptx_wgmma_commit_group();
			wgmma_keep<n / 2>(sum[m]);
			ptx_wgmma_wait_group<1>();	/* the product that reads the other set */
		}
		if (panel || at + PANEL >= k) {
			last = s.empty + turn->stage * 8;
			advance<kind>(turn);
		}
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<n / 2>(sum[0]);
	wgmma_keep<n / 2>(sum[1]);
	elected_arrive(last);
}

/* Multiplies the sums by the factors of the expert, which only NVFP4 has. */
template <int kind, bool down, int places>
ATTN_DEV void apply_factors(float (*sum)[MOST], const struct product &p, int expert)
{
	if constexpr (kind == BITS_4_NV) {
#pragma unroll
		for (int m = 0; m < 2; m++) {
			const float factor = p.factors ? p.factors[down ? expert : 2 * expert + m] : 1;

#pragma unroll
			for (int i = 0; i < places / 2; i++)
				sum[m][i] *= factor;
		}
	}
}

#endif
