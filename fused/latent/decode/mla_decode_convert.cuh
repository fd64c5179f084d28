/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode_convert - the producer of mla_decode for 8-bit keys, which threads convert to dtype
 *
 * Two warpgroups convert, so that each scheduler of the SM has two warps for it: one alone would wait for its
 * own instructions. A thread loads halves of groups of panels a few halves before it converts them. They wait
 * in registers or, where Q leaves space (mla_decode_few.cuh), in shared memory.
 *
 * Four threads convert a key. Of each panel, a thread has 16 codes, which become two pieces of 16 bytes.
 * Eight threads store at the same time. Their two keys have numbers that differ in bit 0 (for codes) and in
 * bit 2 (for the rotated part), so that the swizzle sends them to different banks.
 *
 * MLA_PAIRS_8: the two CTAs of a cluster need the same keys. Each converts 32 keys of a tile and sends them
 * to the other CTA, too, by stores that count as bytes at its mbarrier. Eight threads convert a key, each of
 * them eight codes of a panel, and store whole lines: parts of lines take longer between SMs.
 */
#ifndef CAIRN_MLA_DECODE_CONVERT_CUH
#define CAIRN_MLA_DECODE_CONVERT_CUH

#include "fused/latent/decode/mla_decode.h"
#include "fused/latent/decode/mla_decode_fetch.cuh"
#include "primitives/ptx/fp8.cuh"

#define MLA_FP8_AT_ROPE	(MLA_RANK + 16)		/* the rotated part's first byte in a key */
#define MLA_STAGES	5			/* in shared memory, of half of a group each */

static_assert(2 * MLA_GROUPS % MLA_STAGES == 0 && MLA_STAGES <= MLA_PANELS,
	      "a half of a group has the same stage in every tile, and a stage lies in a panel of Q");

/* Threads of a key; bytes that one of them converts of a panel; pieces that these become. */
static constexpr __host__ __device__ int mla_key_threads(int fetch) { return 4 * mla_sharers(fetch); }
static constexpr __host__ __device__ int mla_codes(int fetch) { return 64 / mla_key_threads(fetch); }
static constexpr __host__ __device__ int mla_pieces(int fetch) { return mla_codes(fetch) / 8; }

/* A thread's place: the number of its key in a tile, its number among the key's threads. */
struct mla_place {
	int row, part;
};

template <int fetch> ATTN_DEV struct mla_place mla_find_place(void)
{
	const int n = mla_copier() / mla_key_threads(fetch), part = mla_copier() % mla_key_threads(fetch);

	if (fetch == MLA_PAIRS_8)
		return { mla_rank<fetch>() * (MLA_KEYS / 2) + n, part };
	return { (n & ~7) + (n % 8 / 2 ^ n % 2 * 5), part };
}

/* A key's data. codes: the thread's first ones */
struct mla_source {
	const uint8_t *codes;
	bool valid;
};

template <int fetch>
ATTN_DEV struct mla_source mla_find_source(const struct mla_call &c, const struct mla_place &at, int32_t slot)
{
	const uint8_t *key = c.pages + (int64_t)max(slot, 0) * MLA_FP8_KEY_BYTES;

	return { attn_opaque(key + at.part * mla_codes(fetch)), slot >= 0 };
}

/* What a thread has loaded of a panel: codes, or half of its part of the rotated part. */
template <int fetch> struct mla_raw {
	uint32_t word[mla_codes(fetch) / 4];
};

/* Loads half p of group g: a panel's codes, or half of the thread's part of the rotated part. */
template <int fetch>
ATTN_DEV struct mla_raw<fetch> mla_load_8bit(const struct mla_source &x, const struct mla_place &at, int g,
					     int p)
{
	const uint8_t *from = x.codes + (g < 4 ? g * CAIRN_MLA_FP8_GROUP + p * 64 : MLA_FP8_AT_ROPE);
	struct mla_raw<fetch> raw = {};

	if (!x.valid)
		return raw;
	if constexpr (fetch == MLA_PAIRS_8) {
		uint2 v = ptx_ld_global_nc_no_allocate_v2(from + (g < 4 ? 0 : at.part * 8 + p * 8));

		raw = { { v.x, v.y } };
	} else {
		uint4 v = ptx_ld_global_nc_no_allocate_v4(from + (g < 4 ? 0 : p * 64));

		raw = { { v.x, v.y, v.z, v.w } };
	}
	return raw;
}

/* Loads the scales of a key's groups. */
template <int fetch> ATTN_DEV float4 mla_load_scales(const struct mla_source &x, const struct mla_place &at)
{
	if (!x.valid)
		return make_float4(0, 0, 0, 0);
	return __ldg((const float4 *)(x.codes - at.part * mla_codes(fetch) + MLA_RANK));
}

/* Converts four codes to dtype, after multiplication by their scale. */
template <int dtype> ATTN_DEV uint2 mla_widen(uint32_t four, float scale)
{
	uint32_t pair[2];
	float x[4];

	fp8_widen<CAIRN_F16>(four, &pair[0], &pair[1]);
#pragma unroll
	for (int i = 0; i < 2; i++)
		asm("{.reg .b16 l, h;\n\t"
		    "mov.b32 {l, h}, %2;\n\t"
		    "cvt.f32.f16 %0, l;\n\t"
		    "cvt.f32.f16 %1, h;}" : "=f"(x[2 * i]), "=f"(x[2 * i + 1]) : "r"(pair[i]));
	return make_uint2(attn_pack<dtype>(x[0] * scale, x[1] * scale),
			  attn_pack<dtype>(x[2] * scale, x[3] * scale));
}

/* Converts eight codes to the 16 bytes of a piece. */
template <int dtype> ATTN_DEV uint4 mla_widen_8(uint32_t low, uint32_t high, float scale)
{
	const uint2 a = mla_widen<dtype>(low, scale), b = mla_widen<dtype>(high, scale);

	return make_uint4(a.x, a.y, b.x, b.y);
}

/* Writes a piece to shared memory and, with MLA_PAIRS_8, to that of the other CTA, `peer` bytes further. */
template <int fetch> ATTN_DEV void mla_put_piece(uint32_t at, uint4 piece, uint32_t full, uint32_t peer)
{
	ptx_st_shared_v4(at, piece);
	if (fetch == MLA_PAIRS_8)
		ptx_st_async_v4(at + peer, piece, full + peer);
}

/* Writes a panel of a tile. */
template <int dtype, int fetch>
ATTN_DEV void mla_store_8bit(const struct mla_raw<fetch> &raw, uint32_t s_panel, const struct mla_place &at,
			     float scale, uint32_t full, uint32_t peer)
{
	constexpr int pieces = mla_pieces(fetch);

#pragma unroll
	for (int n = 0; n < pieces; n++)
		mla_put_piece<fetch>(s_panel + (attn_swizzle(at.row, at.part * pieces, ATTN_PANEL) ^ n * 16),
				     mla_widen_8<dtype>(raw.word[2 * n], raw.word[2 * n + 1], scale), full,
				     peer);
}

/*
 * Prefetches a part of a key into the L2: 656 bytes from a multiple of 16 on lie in at most six lines of 128
 * bytes.
 */
template <int fetch>
ATTN_DEV void mla_prefetch_8bit(const struct mla_call &c, const struct mla_place &at, int32_t slot)
{
	constexpr int lines = 8 / mla_key_threads(fetch);
	const uint8_t *key = c.pages + (int64_t)slot * MLA_FP8_KEY_BYTES;

	for (int line = at.part * lines, n = 0; n < lines && slot >= 0; n++)
		ptx_prefetch_global_L2(key + min((line + n) * 128, MLA_FP8_KEY_BYTES - 1));
}

/* Returns the key of a tile about which a thread of a pair tells the consumers; both CTAs tell of all. */
ATTN_DEV int mla_told(void) { return mla_copier() / 4; }

/* Returns whether the key of tile i is valid about which the thread tells. slot: that of its own key */
template <int fetch>
ATTN_DEV bool mla_is_valid(const struct mla_call &c, const struct mla_task &t, int32_t slot, int i)
{
	if (fetch != MLA_PAIRS_8 || !c.slots)
		return slot >= 0;
	return mla_entry(c, t, (t.first + i) * MLA_KEYS + mla_told()) >= 0;
}

template <int fetch>
ATTN_DEV void mla_put_valid(uint32_t smem, const struct mla_place &at, int buffer, bool valid)
{
	if (mla_copier() % 4 == 0)
		ptx_st_shared_b16(smem + MLA_AT_VALID + (buffer * MLA_KEYS +
				  (fetch != MLA_PAIRS_8 ? at.row : mla_told())) * 2, valid);
}

/*
 * Returns how many halves of groups a thread loads before it converts them. Unless they are staged in shared
 * memory, they wait in the thread's 48 registers, and more of them would spill.
 */
static constexpr __host__ __device__ int mla_ahead(int fetch, bool staged)
{
	return staged ? MLA_STAGES : fetch == MLA_PAIRS_8 ? 4 : 2;
}

/* What a thread knows of the tile that it converts and of the next one, which it begins to load. */
template <int fetch, bool staged> struct mla_converter {
	struct mla_place at;
	struct mla_source source;		/* of the tile that is loaded now */
	float4 scales;
	struct mla_raw<fetch> raw[staged ? 1 : mla_ahead(fetch, staged)];
						/* [0] is converted next */
	uint32_t stage;				/* the thread's 16 bytes of the first stage */
	int32_t key, slot;			/* of the next tile */
	uint32_t peer;
	bool valid;
};

/* Begins to copy half p of group g to a stage: zeros if the key is not valid. none: nothing to copy */
template <int fetch>
ATTN_DEV void mla_stage_8bit(const struct mla_source &x, uint32_t stage, int g, int p, bool none)
{
	if (!none)
		ptx_cp_async_cg(stage, x.codes + (g < 4 ? g * CAIRN_MLA_FP8_GROUP : MLA_FP8_AT_ROPE) + p * 64,
				x.valid ? 16 : 0);
	ptx_cp_async_commit_group();
}

/* Loads the half of a group that is the mla_ahead()th after the given one, or begins to. */
template <int odd, int step, int fetch, bool staged>
ATTN_DEV void mla_load_later(struct mla_converter<fetch, staged> *x, const struct mla_call &c,
			     const struct mla_task &t, int i)
{
	constexpr int ahead = mla_ahead(fetch, staged), later = step + ahead, nth = later / 2 % MLA_GROUPS;
	constexpr bool next = later >= 2 * MLA_GROUPS;
	constexpr int g = nth < 4 ? nth ^ (next ? odd ^ 1 : odd) * 2 : nth;

	if (later == 2 * MLA_GROUPS) {
		x->source = mla_find_source<fetch>(c, x->at, x->slot);
		x->valid = mla_is_valid<fetch>(c, t, x->slot, i + 1);
	}
	/* no group of this tile needs its scale any more: the fourth one has read it */
	if (step == (ahead < 4 ? 2 * MLA_GROUPS - ahead : 6))
		x->scales = mla_load_scales<fetch>(x->source, x->at);
	if constexpr (staged) {
		/*
		 * The stage is that of the given half, which has been read. Nothing is copied behind the last
		 * tile: the consumers write results to the same place.
		 */
		mla_stage_8bit<fetch>(x->source, x->stage + later % MLA_STAGES * MLA_PANEL_BYTES, g,
				      later % 2, next && i + 1 >= t.count);
	} else {
#pragma unroll
		for (int n = 0; n < ahead - 1; n++)
			x->raw[n] = x->raw[n + 1];
		x->raw[ahead - 1] = mla_load_8bit<fetch>(x->source, x->at, g, later % 2);
	}
}

/* Reads the given half of a group, which must have arrived, from its stage. */
template <int step, int fetch>
ATTN_DEV struct mla_raw<fetch> mla_take_stage(uint32_t stage)
{
	const uint4 v = ptx_ld_shared_v4(stage + step % MLA_STAGES * MLA_PANEL_BYTES);

	return { { v.x, v.y, v.z, v.w } };
}

/* Converts half p of the nth group of panels of tile i, an odd one or an even one. */
template <int dtype, int odd, int nth, int p, int fetch, bool staged>
ATTN_DEV void mla_convert_half(struct mla_converter<fetch, staged> *x, const struct mla_call &c,
			       const struct mla_task &t, uint32_t s_group, float scale, uint32_t full, int i)
{
	constexpr int step = 2 * nth + p;
	const struct mla_raw<fetch> raw = x->raw[0];

	if constexpr (staged) {		/* read one half early, so as not to wait for it */
		ptx_cp_async_wait_group<MLA_STAGES - 2>();
		x->raw[0] = mla_take_stage<step + 1, fetch>(x->stage);
	}
	if constexpr (nth < 4) {
		mla_store_8bit<dtype, fetch>(raw, s_group + p * MLA_PANEL_BYTES, x->at, scale, full, x->peer);
	} else if constexpr (fetch != MLA_PAIRS_8) {
		mla_put_piece<fetch>(s_group + (attn_swizzle(x->at.row, x->at.part, ATTN_PANEL) ^ p * 64),
				     make_uint4(raw.word[0], raw.word[1], raw.word[2], raw.word[3]), full, 0);
	} else if constexpr (p == 0) {
		const struct mla_raw<fetch> &other = x->raw[1];

		mla_put_piece<fetch>(s_group + attn_swizzle(x->at.row, x->at.part, ATTN_PANEL),
				     make_uint4(raw.word[0], raw.word[1], other.word[0], other.word[1]), full,
				     x->peer);
	}
	if (p)
		mla_fetched(full, false);
	mla_load_later<odd, step>(x, c, t, i);
}

/* Converts the nth group of panels of tile i, an odd one or an even one. */
template <int dtype, int odd, int nth, int fetch, bool staged>
ATTN_DEV void mla_convert_group(struct mla_converter<fetch, staged> *x, const struct mla_call &c,
				const struct mla_task &t, uint32_t smem, int i)
{
	constexpr int g = nth < 4 ? nth ^ odd * 2 : nth;
	const float scale = g == 0 ? x->scales.x : g == 1 ? x->scales.y : g == 2 ? x->scales.z : x->scales.w;
	uint32_t s_group, full;

	/* hide smem from the compiler: it would keep addresses of all groups in registers */
	asm volatile("" : "+r"(smem));
	s_group = smem + MLA_AT_KEYS + odd * MLA_TILE_BYTES + 2 * g * MLA_PANEL_BYTES;
	full = mla_full(smem, odd, g);
	if (nth == 0 || nth == 2)
		ptx_mbarrier_wait(mla_free(smem, odd, g / 2), ~(i >> 1) & 1);
	if (nth == 0)
		mla_put_valid<fetch>(smem, x->at, odd, x->valid);
	if (fetch == MLA_PAIRS_8 && mla_copier() == 0)
		ptx_mbarrier_arrive_expect_tx(full, (g < 4 ? 2 : 1) * (MLA_PANEL_BYTES / 2));
	mla_convert_half<dtype, odd, nth, 0>(x, c, t, s_group, scale, full, i);
	mla_convert_half<dtype, odd, nth, 1>(x, c, t, s_group, scale, full, i);
}

/* Converts tile i, an odd one or an even one. */
template <int dtype, int odd, int fetch, bool staged>
ATTN_DEV void mla_convert_tile(struct mla_converter<fetch, staged> *x, const struct mla_call &c,
			       const struct mla_task &t, uint32_t smem, int i)
{
	const int32_t key = x->key + MLA_KEYS, entry = mla_entry(c, t, key);

	mla_convert_group<dtype, odd, 0>(x, c, t, smem, i);
	mla_convert_group<dtype, odd, 1>(x, c, t, smem, i);
	mla_convert_group<dtype, odd, 2>(x, c, t, smem, i);
	mla_convert_group<dtype, odd, 3>(x, c, t, smem, i);
	mla_convert_group<dtype, odd, 4>(x, c, t, smem, i);
	x->key = key;
	x->slot = mla_pool_row(c, entry, key);
	mla_prefetch_8bit<fetch>(c, x->at, x->slot);
}

/* The producer's 256 threads. few: Q has at most 32 rows, and leaves space for stages. */
template <int dtype, int fetch, bool few>
ATTN_DEV void mla_produce_8bit(const struct mla_call &c, const struct mla_task &t, uint32_t smem)
{
	struct mla_converter<fetch, few> x;

	if (t.count == 0)
		return;
	x.at = mla_find_place<fetch>();
	x.stage = smem + MLA_PANEL_BYTES / 2 + mla_copier() * 16;
	x.peer = fetch == MLA_PAIRS_8 ? ptx_mapa(smem, ptx_cluster_ctarank() ^ 1) - smem : 0;
	x.key = t.first * MLA_KEYS + x.at.row;
	x.slot = mla_pool_row(c, mla_entry(c, t, x.key), x.key);
	x.source = mla_find_source<fetch>(c, x.at, x.slot);
	x.scales = mla_load_scales<fetch>(x.source, x.at);
	x.valid = mla_is_valid<fetch>(c, t, x.slot, 0);
#pragma unroll
	for (int n = 0; n < mla_ahead(fetch, few); n++)
		if constexpr (few)
			mla_stage_8bit<fetch>(x.source, x.stage + n * MLA_PANEL_BYTES, n / 2, n % 2, false);
		else
			x.raw[n] = mla_load_8bit<fetch>(x.source, x.at, n / 2, n % 2);
	x.key += MLA_KEYS;
	x.slot = mla_pool_row(c, mla_entry(c, t, x.key), x.key);
	mla_prefetch_8bit<fetch>(c, x.at, x.slot);
	if constexpr (few) {
		ptx_cp_async_wait_group<MLA_STAGES - 1>();
		x.raw[0] = mla_take_stage<0, fetch>(x.stage);
	}
	for (int i = 0; i < t.count; i += 2) {
		mla_convert_tile<dtype, 0>(&x, c, t, smem, i);
		if (i + 1 < t.count)
			mla_convert_tile<dtype, 1>(&x, c, t, smem, i + 1);
	}
}

#endif
