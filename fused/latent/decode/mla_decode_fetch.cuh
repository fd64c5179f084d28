/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode_fetch - the producer of mla_decode: Q once, then tiles of 64 keys into two buffers
 *
 * A tile arrives in groups of panels, each with its own mbarrier, so that the product with Q can begin when
 * the first group has arrived. The consumer warpgroups free the left and the right half of a buffer's columns
 * separately; the rotated part is free when both are. Tiles of the second consumer warpgroup begin with the
 * right half, which it frees first.
 *
 * If pages hold whole tiles, TMA copies the tiles; otherwise threads copy the keys one by one. 8-bit keys:
 * mla_decode_convert.cuh.
 */
#ifndef CAIRN_MLA_DECODE_FETCH_CUH
#define CAIRN_MLA_DECODE_FETCH_CUH

#include "fused/latent/decode/mla_decode_view.cuh"

/* Copies `rows` packed rows of Q, as many as the maps' boxes have; behind the call's last row, zeros. */
ATTN_DEV void mla_fetch_q(const struct mla_maps &maps, const struct mla_task &t, uint32_t smem, int rows)
{
	const uint32_t full = mla_q_full(smem);

	ptx_mbarrier_arrive_expect_tx(full, MLA_PANELS * rows * ATTN_PANEL);
	for (int i = 0; i < MLA_PANELS - 1; i++)
		ptx_cp_async_bulk_tensor_2d_g2s(smem + i * MLA_PANEL_BYTES, &maps.latent, i * 64,
						(int32_t)t.at, full);
	ptx_cp_async_bulk_tensor_2d_g2s(smem + (MLA_PANELS - 1) * MLA_PANEL_BYTES, &maps.rope, 0,
					(int32_t)t.at, full);
}

/* Returns the nth group of panels of tile i, in the order in which they are copied and used. */
ATTN_DEV int mla_group(int i, int nth)
{
	return nth < 4 ? nth ^ (i & 1) * 2 : nth;
}

/* Waits until the nth group of panels of tile i may be overwritten. */
ATTN_DEV void mla_wait_free(uint32_t smem, int i, int nth)
{
	if (nth == 0 || nth == 2)
		ptx_mbarrier_wait(mla_free(smem, i & 1, mla_group(i, nth) / 2), ~(i >> 1) & 1);
}

ATTN_DEV int32_t mla_page(const struct mla_call &c, int32_t key)
{
	return c.page_shift >= 0 ? key >> c.page_shift : key / c.page_size;
}

/*
 * Returns the entry for key number `key` of the task's list of pages or slots; -1: no key. An entry is loaded
 * one tile ahead. Nothing may be computed from it until its tile is processed, because the warp would wait
 * for the load.
 */
ATTN_DEV int32_t mla_entry(const struct mla_call &c, const struct mla_task &t, int32_t key)
{
	if (key >= min((t.first + t.count) * MLA_KEYS, t.kv_len))
		return -1;
	return t.keys[c.slots ? key : mla_page(c, key)];
}

/* Returns the row of the pool in which key number `key` lies, from its entry; -1: no key. */
ATTN_DEV int32_t mla_pool_row(const struct mla_call &c, int32_t entry, int32_t key)
{
	return entry < 0 || c.slots ? entry : entry * c.page_size + (key - mla_page(c, key) * c.page_size);
}

/*
 * Starts the copy of group g of tile i. In a cluster, each CTA copies one panel of two to both CTAs; they
 * take turns with the last panel.
 */
template <int fetch>
ATTN_DEV void mla_copy_boxes(const struct mla_maps &maps, uint32_t to, int i, int g, int row, uint32_t mbar)
{
	const int rank = mla_rank<fetch>();

	if (fetch == MLA_CLUSTERS && g < 4)
		ptx_cp_async_bulk_tensor_2d_g2s_multicast(to + rank * MLA_PANEL_BYTES, &maps.panels,
							  (2 * g + rank) * 64, row, mbar, 3);
	else if (fetch == MLA_CLUSTERS && (i >> 1 & 1) == rank)
		ptx_cp_async_bulk_tensor_2d_g2s_multicast(to, &maps.panels, MLA_RANK, row, mbar, 3);
	else if (fetch == MLA_BOXES && g < 4)
		ptx_cp_async_bulk_tensor_3d_g2s(to, &maps.pairs, 0, row, 2 * g, mbar);
	else if (fetch == MLA_BOXES)
		ptx_cp_async_bulk_tensor_2d_g2s(to, &maps.panels, MLA_RANK, row, mbar);
}

/*
 * Copies the tiles of one buffer by TMA, from pages that hold whole tiles; one lane calls this. Each of two
 * warps serves one buffer, so that the first copies of a tile do not queue behind the last copies of the tile
 * before.
 */
template <int fetch>
ATTN_DEV void mla_produce_boxes(const struct mla_call &c, const struct mla_maps &maps,
				const struct mla_task &t, uint32_t smem)
{
	const int buffer = mla_thread() / 32;
	const uint32_t to = smem + MLA_AT_KEYS + buffer * MLA_TILE_BYTES;
	int32_t key = (t.first + buffer) * MLA_KEYS, entry = mla_entry(c, t, key);

	if (buffer == 0)
		mla_fetch_q(maps, t, smem, MLA_ROWS);
	for (int i = buffer; i < t.count; i += 2) {
		const int32_t row = mla_pool_row(c, entry, key);

		key += 2 * MLA_KEYS;
		entry = mla_entry(c, t, key);
#pragma unroll 1
		for (int nth = 0; nth < MLA_GROUPS; nth++) {
			const int g = mla_group(i, nth);
			const uint32_t full = mla_full(smem, buffer, g);

			mla_wait_free(smem, i, nth);
			ptx_mbarrier_arrive_expect_tx(full, (g < 4 ? 2 : 1) * MLA_PANEL_BYTES);
			mla_copy_boxes<fetch>(maps, to + 2 * g * MLA_PANEL_BYTES, i, g, row, full);
		}
	}
}

/* The entries or slots of the four keys of a tile whose 16-byte pieces a thread copies; -1: no key. */
struct mla_four {
	int32_t slot[4];
};

/* Returns the number of the first of the thread's keys of tile i; the others are 16, 32 and 48 further. */
ATTN_DEV int32_t mla_first_key(const struct mla_task &t, int i)
{
	return (t.first + i) * MLA_KEYS + mla_thread() / 8;	/* eight threads copy a key */
}

ATTN_DEV struct mla_four mla_four_entries(const struct mla_call &c, const struct mla_task &t, int i)
{
	struct mla_four four;

#pragma unroll
	for (int k = 0; k < 4; k++)
		four.slot[k] = mla_entry(c, t, mla_first_key(t, i) + k * 16);
	return four;
}

ATTN_DEV struct mla_four mla_four_slots(const struct mla_call &c, const struct mla_task &t,
					struct mla_four entries, int i)
{
#pragma unroll
	for (int k = 0; k < 4; k++)
		entries.slot[k] = mla_pool_row(c, entries.slot[k], mla_first_key(t, i) + k * 16);
	return entries;
}

/* Tells the consumers which keys of tile i are valid. */
ATTN_DEV void mla_write_valid(const struct mla_four &four, uint32_t smem, int i)
{
	const int thread = mla_thread();

	if (thread % 8)
		return;
#pragma unroll
	for (int k = 0; k < 4; k++)
		ptx_st_shared_b16(smem + MLA_AT_VALID + ((i & 1) * MLA_KEYS + k * 16 + thread / 8) * 2,
				  four.slot[k] >= 0);
}

/* Arrives at mbar for the calling threads' stores and, once their copies have landed, for these. */
ATTN_DEV void mla_fetched(uint32_t mbar, bool copies)
{
#ifdef CAIRN_DEBUG
	/* racecheck does not see asynchronous arrivals */
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	if (copies)
		ptx_mbarrier_arrive(mbar);
#else
	if (copies)
		ptx_cp_async_mbarrier_arrive_noinc(mbar);
#endif
	elected_arrive(mbar);
}

/* The producer's 128 threads for 16-bit keys. */
ATTN_DEV void mla_produce_16bit(const struct mla_call &c, const struct mla_task &t, uint32_t smem)
{
	const int piece = mla_thread() % 8, row = mla_thread() / 8;
	struct mla_four next = mla_four_entries(c, t, 0);

	for (int i = 0; i < t.count; i++) {
		const struct mla_four four = mla_four_slots(c, t, next, i);
		const uint32_t to = smem + MLA_AT_KEYS + (i & 1) * MLA_TILE_BYTES +
				    attn_swizzle(row, piece, ATTN_PANEL);
		const uint8_t *key[4];

#pragma unroll
		for (int k = 0; k < 4; k++)
			key[k] = attn_opaque(c.pages + (int64_t)max(four.slot[k], 0) * MLA_KEY_BYTES +
					     piece * 16);
		next = mla_four_entries(c, t, i + 1);
#pragma unroll 1
		for (int nth = 0; nth < MLA_GROUPS; nth++) {
			const int g = mla_group(i, nth);

			mla_wait_free(smem, i, nth);
			if (nth == 0)
				mla_write_valid(four, smem, i);
#pragma unroll
			for (int k = 0; k < 4; k++) {
				const uint8_t *from = key[k] + g * 2 * ATTN_PANEL;
				const uint32_t at = to + g * 2 * MLA_PANEL_BYTES + k * 16 * ATTN_PANEL;
				const uint32_t bytes = four.slot[k] < 0 ? 0 : 16;

				ptx_cp_async_cg(at, from, bytes);
				if (g < MLA_GROUPS - 1)		/* the last group has one panel */
					ptx_cp_async_cg(at + MLA_PANEL_BYTES, from + ATTN_PANEL, bytes);
			}
			mla_fetched(mla_full(smem, i & 1, g), true);
		}
	}
}

#endif
