/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_tile - the index arithmetic of paged attention: lengths, packed rows, shares, swizzle, schedule
 *
 * Kernels and tests share this code: nvcc compiles these functions into attn_paged, gcc into
 * attn_tile_test.c.
 *
 * Packed rows: the num_qo_heads / num_kv_heads query heads (the group) of one KV head read the same keys, so
 * each pair of a query token and a head of the group is one row of a tile. Packed row r of a request is token
 * r / group, head r % group. The rows of one token are neighbours. The end of the keys that a row sees never
 * decreases as r grows.
 */
#ifndef CAIRN_ATTN_TILE_H
#define CAIRN_ATTN_TILE_H

#include <math.h>
#include <stdint.h>

#include "fused/cache/kv_walk.h"

#ifdef __CUDACC__
#define ATTN_FN static __host__ __device__ __forceinline__
#else
#define ATTN_FN static inline
#endif

/*
 * A request of up to this many packed rows is decode work (its keys are split over a cluster); others are
 * prefill.
 */
#define ATTN_DECODE_ROWS	32
#define ATTN_DECODE_TILE	16	/* rows of a decode tile, and keys of a warp's step */
#define ATTN_MAX_CLUSTER	16

/* Returns the end of the keys that a token (0 .. qo_len-1) sees; later tokens count as the last one. */
ATTN_FN int32_t attn_visible(int32_t token, int32_t qo_len, int32_t kv_len, int32_t causal)
{
	int32_t n = causal ? token + 1 + kv_len - qo_len : kv_len;

	return n < 0 ? 0 : n > kv_len ? kv_len : n;
}

/* Returns the first key that the token sees, 0 without a window. It never decreases from token to token. */
ATTN_FN int32_t attn_first_key(int32_t token, int32_t qo_len, int32_t kv_len, int32_t window)
{
	int32_t n = token + 1 + kv_len - qo_len;

	return window > 0 && n > window ? n - window : 0;
}

ATTN_FN int32_t attn_div_up(int32_t a, int32_t b)
{
	return (a + b - 1) / b;
}

/* Returns the first tile of worker `rank` (of up to 16); the tiles of rank - 1 end there. total < 2^28. */
ATTN_FN int32_t attn_share(int32_t total, int32_t ranks, int32_t rank)
{
	return (int32_t)((uint32_t)total * (uint32_t)rank / (uint32_t)ranks);
}

/*
 * attn_token() divides a packed row by the group through a multiplication by attn_magic(group): the group is
 * known only at run time, and every read, write and mask of a row needs the quotient. Exact while row * group
 * < 2^32.
 */
ATTN_FN uint32_t attn_magic(uint32_t group)
{
	return group == 1 ? 0 : 0xffffffffu / group + 1;
}

ATTN_FN int32_t attn_token(int32_t row, uint32_t magic)
{
	return magic ? (int32_t)((uint64_t)(uint32_t)row * magic >> 32) : row;
}

/*
 * Returns the byte offset of 16-byte chunk `chunk` of row `row` in a tile whose rows have `row_bytes` bytes
 * (128, 256, 512). Eight rows at one column, which ldmatrix reads together, fall into eight different groups
 * of four banks; so do eight neighbouring chunks of a row, which cp.async writes. In a tile aligned to its
 * rows, moving by 2 k chunks from chunk 0 or 1 is address ^ (k << 5), and moving by r < 8 rows from a
 * multiple of 8 is (address ^ (r << 4)) + r * row_bytes, so that loops advance by immediates.
 */
ATTN_FN uint32_t attn_swizzle(uint32_t row, uint32_t chunk, uint32_t row_bytes)
{
	return row * row_bytes + ((chunk ^ (row & 7)) << 4);
}

/* Returns the number of warps of a decode CTA, whose rings fill an SM's shared memory, or half of it. */
ATTN_FN int32_t attn_decode_warps(int32_t head_dim, int32_t wide)
{
	return (head_dim == 256 ? 6 : 8) / (wide ? 1 : 2);
}

/*
 * The division of decode work over the device: the size of the cluster over which the keys of a task
 * (request, KV head, row tile) are split, and the width of its CTAs. A wide CTA occupies an SM alone, two
 * narrow ones share an SM. Wide CTAs win with few tasks, because the hardware fills one SM before it uses the
 * next; narrow ones win with many, because their prologues and epilogues overlap.
 */
struct attn_split {
	int32_t cluster_size, wide;
};

/*
 * Combines two lower bounds of a time. The result is little more than the larger one unless they are close.
 */
ATTN_FN double attn_both(double a, double b)
{
	return sqrt(sqrt(a * a * a * a + b * b * b * b));
}

/*
 * Chooses the split with the least estimated time. resident[wide][c] is the number of CTAs that the device
 * holds at once in clusters of c (0: not granted). A wave of CTAs takes the time that memory needs for all
 * their keys or that a CTA needs for its own keys, whichever is longer; the last wave may be partial. The
 * constants, in ns, are fitted to sweeps of all sizes on an H200 at head_dim 128 (512 bytes a key): for
 * batches 1 to 128 and 1K to 64K keys the choice was the fastest, or within 6% of it.
 */
ATTN_FN struct attn_split attn_decode_split(int64_t num_tasks, int32_t max_kv_len, int32_t head_dim,
					    const int32_t resident[2][ATTN_MAX_CLUSTER + 1])
{
	const double dim = head_dim / 128.0, memory = 0.1 * dim;	/* per key, all CTAs together */
	const double walk[2] = { 15.4 * dim, 8.0 * dim };	/* per key, each CTA: narrow, wide */
	const double alone = 11.5 * dim;			/* per key, a narrow CTA alone on its SM */
	const double wave[2] = { 1550, 2000 };			/* prologue and epilogue: narrow, wide */

	struct attn_split best = { 0, 0 };
	double least = 0;

	for (int32_t wide = 0; wide < 2; wide++) {
		int32_t step = ATTN_DECODE_TILE * attn_decode_warps(head_dim, wide);

		for (int32_t c = 1; c <= ATTN_MAX_CLUSTER; c++) {
			int32_t room = resident[wide][c];
			double keys = attn_div_up(attn_div_up(max_kv_len, step), c) * step;
			double time = c > 1 ? 1100 + 220 * c : 0, pace;
			int64_t waves, rest;

			if (room < c)
				continue;
			waves = num_tasks * c / room;
			rest = num_tasks * c % room;
			pace = attn_both(walk[wide], memory * room);
			time += (double)waves * (wave[wide] + pace * keys);
			pace = !wide && rest * 2 <= room ? alone : walk[wide];
			if (rest)
				time += wave[wide] + attn_both(pace, memory * (double)rest) * keys;
			if (!best.cluster_size || time < least) {
				least = time;
				best.cluster_size = c;
				best.wide = wide;
			}
		}
	}
	if (!best.cluster_size)
		best.cluster_size = 1;
	return best;
}

#endif
