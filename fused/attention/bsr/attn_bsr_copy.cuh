/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_copy - how the producer of attn_bsr copies the keys of a tile to shared memory
 *
 * A tile lies in groups of eight keys, [group][panel][key][128 bytes], with the swizzle of wgmma.cuh. So one
 * TMA box can hold any number of groups of a block. Each warp copies a quarter of a tile; each lane holds the
 * location of one of the warp's keys. Lanes without a key have own = -1.
 *
 * Boxes    If block_n is a multiple of 8, a box holds as many slots as divide both block_n and a tile. The
 *          lane with the first key of a box starts it. A box past the end of the list arrives as zeros.
 * Threads  Otherwise, lanes copy 16 bytes each and get the offset of their key from the lane that holds it
 *          by a shuffle. Keys past the end of the list become zeros.
 *
 * 16-bit keys go where wgmma reads them. 8-bit keys go to a ring of the same layout with half as many bytes;
 * the converter then writes them, as 16-bit keys, where wgmma reads them.
 */
#ifndef CAIRN_ATTN_BSR_COPY_CUH
#define CAIRN_ATTN_BSR_COPY_CUH

#include "primitives/ptx/ptx_copy.cuh"
#include "fused/attention/bsr/attn_bsr_view.cuh"

/* the producer's arrivals at full_*: one by each thread for its copies, one by each warp for its stores */
#define ATTN_ARRIVALS		(128 + 4 * ELECTED_LANES)

/* A producer thread's description of the piece that it fetches. */
struct attn_bsr_walk {
	int32_t part;				/* index of the part */
	const CUtensorMap *map;			/* of K; the map of V is CAIRN_ATTN_PARTS elements further */
	int64_t head;				/* element of slot 0 of block 0 at which the KV head begins */
	const int32_t *blocks;			/* the list */
	int32_t box;				/* of struct attn_division */
	int32_t len;				/* keys of the list */
	int32_t begin, num_tiles;		/* first key to fetch; number of key tiles */
	int32_t hidden;				/* number of first keys that no token sees: V needs zeros */
	int32_t box_from, box_to;		/* boxes copy V of these key tiles, threads the others */
	int32_t box_key;			/* the lane's key, if a box begins with it; otherwise -1 */
	int32_t block_n;			/* of the part */
	int32_t step_blocks, step_slots;	/* keys of a tile = step_blocks * block_n + step_slots */
	int32_t all_first, all_end;		/* every token sees at least these keys of the list */
	bool positions;				/* the part has key_pos */
	bool has_token;				/* the thread has a token, see attn_bsr_token */
};

/* Arrives at mbar for the calling threads' stores and, once their own copies have landed, for these. */
ATTN_DEV void attn_fetched(uint32_t mbar, bool copies)
{
#ifdef CAIRN_DEBUG
	/* racecheck does not see asynchronous arrivals */
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	copies = false;
#endif
	if (copies) {
		ptx_cp_async_mbarrier_arrive_noinc(mbar);
		elected_arrive(mbar);
		return;
	}
	__syncwarp();
	if (threadIdx.x % 32 < ELECTED_LANES)
		ptx_mbarrier_arrive_count(mbar, 32 / ELECTED_LANES + 1);
}

/* As attn_thread(), but by an unsigned remainder, which takes a single instruction. */
ATTN_DEV int attn_producer_thread(void)
{
	unsigned int thread;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
	return (int)(thread % 128);
}

/* The lanes that copy a key by 16 bytes each, and the keys that a warp copies by one instruction. */
template <class F> ATTN_CONST attn_key_lanes(void)
{
	return F::qk * F::element_bytes / 16;
}

template <class F> ATTN_CONST attn_keys_at_once(void)
{
	return 32 / attn_key_lanes<F>();
}

/*
 * Returns the key of a key tile whose location this lane holds for its warp; -1: none. The first lanes that
 * copy a key together hold the first keys of all instructions, the next ones the second keys, and so on: each
 * lane then finds the location of its next key by a shuffle within its group, with a constant index.
 */
template <class F> ATTN_DEV int attn_own_key(void)
{
	constexpr int share = F::keys / 4, lanes = attn_key_lanes<F>();
	const int thread = attn_producer_thread(), lane = thread % 32;
	const int own = lane % lanes * attn_keys_at_once<F>() + lane / lanes;

	return own < share ? thread / 32 * share + own : -1;
}

/* A lane's key: its block, and its slot in the block (-1: there is no such key). */
struct attn_key_at {
	int32_t block, slot;
};

/* Returns the byte offset of 16-byte piece `piece` of a key in a tile of key_bytes a key. */
template <int key_bytes> ATTN_DEV uint32_t attn_piece_at(int key, int piece)
{
	constexpr int row_bytes = key_bytes < ATTN_PANEL ? key_bytes : ATTN_PANEL, pieces = row_bytes / 16;
	const int swizzle = row_bytes == ATTN_PANEL ? key & 7 : 0;

	return key / 8 * (8 * key_bytes) + piece / pieces * (8 * row_bytes) + (key & 7) * row_bytes +
	       ((piece % pieces ^ swizzle) << 4);
}

/*
 * Returns the address of a piece of the key that lies i keys after the key of piece `to`. That key's number
 * in its group, plus i % 8, must be below 8.
 */
template <int key_bytes> ATTN_DEV uint32_t attn_keys_on(uint32_t to, int i)
{
	constexpr int row_bytes = key_bytes < ATTN_PANEL ? key_bytes : ATTN_PANEL;
	constexpr int swizzle = row_bytes == ATTN_PANEL ? 0x70 : 0;

	return (to ^ (i << 4 & swizzle)) + i / 8 * (8 * key_bytes) + i % 8 * row_bytes;
}

/*
 * Copies the warp's keys of K (v is 0) or V by threads. key: the lane's key. Most tiles have no missing key
 * and take the fast path, with three instructions for each copy of a lane; for them, all offsets must fit 32
 * bits in units of 16 bytes.
 */
template <class F>
ATTN_DEV void attn_gather_keys(const struct attn_bsr_call &c, const struct attn_bsr_walk &w, int v,
			       const struct attn_key_at &key, uint32_t s_tile)
{
	constexpr int bytes = F::element_bytes, unit = 16 / bytes, share = F::keys / 4;
	constexpr int key_bytes = F::qk * bytes, lanes = attn_key_lanes<F>();
	constexpr int at_once = attn_keys_at_once<F>();
	const struct cairn_attn_part *p = &c.a.part[w.part];
	const int thread = attn_producer_thread(), lane = thread % 32, first = lane / lanes;
	const uint8_t *base = (const uint8_t *)(v ? p->v : p->k) + w.head * bytes + lane % lanes * 16;
	const uint32_t to = s_tile + attn_piece_at<key_bytes>(thread / 32 * share + first, lane % lanes);
	const bool none = key.slot < 0;

	static_assert(at_once <= 8, "an instruction copies keys of one group");
	if (!w.box && __all_sync(~0u, !none || (share < 32 && attn_own_key<F>() < 0))) {
		const uint32_t offset = (uint32_t)key.block * (uint32_t)((uint64_t)p->block_stride / unit) +
					(uint32_t)key.slot * (uint32_t)((uint64_t)p->slot_stride / unit);

		base = attn_opaque(base);
#pragma unroll
		for (int i = 0; i < share; i += at_once) {
			uint32_t at = __shfl_sync(~0u, offset, i / at_once, lanes);

			ptx_cp_async_cg(attn_keys_on<key_bytes>(to, i), base + (uint64_t)at * 16, 16);
		}
		return;
	}
	const int64_t offset = none ? -1 : (key.block * p->block_stride + key.slot * p->slot_stride) * bytes;

#pragma unroll 1
	for (int i = 0; i < share; i += at_once) {
		int64_t at = __shfl_sync(~0u, (long long)offset, i / at_once, lanes);

		ptx_cp_async_cg(attn_keys_on<key_bytes>(to, i), at < 0 ? base : base + at, at < 0 ? 0 : 16);
	}
}

/* Starts the box of K or V that begins with the lane's key of the tile; mbar counts its bytes. */
template <int key_bytes>
ATTN_DEV void attn_copy_box(const struct attn_bsr_walk &w, int v, const struct attn_key_at &key,
			    uint32_t s_tile, uint32_t mbar)
{
	if (w.box_key < 0)
		return;
	ptx_mbarrier_expect_tx(mbar, w.box * key_bytes);
	ptx_cp_async_bulk_tensor_5d_g2s(s_tile + w.box_key * key_bytes, w.map + v * CAIRN_ATTN_PARTS,
					(int32_t)w.head, 0, 0, key.slot >> 3, key.slot < 0 ? -1 : key.block,
					mbar);
}

#endif
