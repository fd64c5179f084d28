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
#define ATTN_FIXED ATTN_FN constexpr	/* a constant expression where its arguments are constants */
#else
#define ATTN_FN static inline
#define ATTN_FIXED ATTN_FN
#endif

/*
 * A call whose requests all have at most this many packed rows runs the decode kernels, which split keys over
 * CTAs. In other calls, only requests of up to ATTN_DECODE_TILE packed rows may do so.
 */
#define ATTN_DECODE_ROWS	32
#define ATTN_DECODE_TILE	16	/* rows of a decode tile */
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
 * Equal shares of the tiles of all requests (attn_paged_shares.cu). The tiles form one sequence, request
 * after request; each share is a part of it, and the first `more` shares have a tile more than the others.
 */
struct attn_shares {
	uint32_t num, tiles, more;	/* tiles: of each share, without the one that the first `more` have */
};

/* Returns shares of `total` > 0 tiles, at most `most` > 0 of them, none of which is empty. */
ATTN_FN struct attn_shares attn_shares_of(uint32_t total, uint32_t most)
{
	struct attn_shares s;

	s.num = total < most ? total : most;
	s.tiles = total / s.num;
	s.more = total - s.tiles * s.num;
	return s;
}

/* Returns the first tile of a share; that of share s.num is the number of all tiles. */
ATTN_FN uint32_t attn_share_begin(struct attn_shares s, uint32_t share)
{
	return share * s.tiles + (share < s.more ? share : s.more);
}

/* Returns the share that a tile is in. */
ATTN_FN uint32_t attn_share_at(struct attn_shares s, uint32_t tile)
{
	const uint32_t longer = s.more * (s.tiles + 1);

	return tile < longer ? tile / (s.tiles + 1) : s.more + (tile - longer) / s.tiles;
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
 * attn_share() by attn_magic(ranks), without a division. Where total * ranks^2 >= 2^32, it may be one larger,
 * for this worker's end and the next one's begin alike.
 */
ATTN_FN int32_t attn_share_by(int32_t total, uint32_t magic, int32_t rank)
{
	return attn_token((int32_t)((uint32_t)total * (uint32_t)rank), magic);
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

/* Returns the keys of a warp's step. With head_dim 256, there are not enough registers for 32 keys. */
ATTN_FIXED int32_t attn_decode_keys(int32_t head_dim, int32_t kv_fp8)
{
	return kv_fp8 && head_dim < 256 ? 32 : 16;
}

/*
 * The widths of a decode CTA: one warp, or as many as have rings that fill a quarter of an SM's shared
 * memory, half of it, or all. Wide CTAs win with few tasks, because the hardware fills one SM before it uses
 * the next. Narrow ones win with many: their prologues and epilogues overlap, they have fewer states to
 * merge, and their last round of tiles leaves fewer warps idle. With one warp a task, there is nothing to
 * merge.
 */
enum { ATTN_ONE, ATTN_QUARTER, ATTN_HALF, ATTN_WHOLE, ATTN_WIDTHS };

/* Returns the warps of a decode CTA, 0 if there is no kernel of this width. */
ATTN_FIXED int32_t attn_decode_warps(int32_t head_dim, int32_t kv_fp8, int32_t width)
{
	int32_t whole = head_dim == 256 ? 6 : kv_fp8 ? 12 : 8, narrow = kv_fp8 && head_dim == 128;

	return width == ATTN_WHOLE ? whole : width == ATTN_HALF ? whole / 2 :
	       !narrow ? 0 : width == ATTN_QUARTER ? whole / 4 : 1;
}

/*
 * Returns the warps of a CTA that attends to several tasks in turn (attn_paged_shares.cu), half an SM. With
 * 8-bit keys of 128 dimensions, six warps would not get the registers that the loop over the tasks needs.
 */
ATTN_FIXED int32_t attn_shares_warps(int32_t head_dim, int32_t kv_fp8)
{
	return kv_fp8 && head_dim == 128 ? 4 : attn_decode_warps(head_dim, kv_fp8, ATTN_HALF);
}

/*
 * The division of decode work over the device: the size of the cluster over which the keys of a task
 * (request, KV head, row tile) are split, and the width of its CTAs.
 */
struct attn_split {
	int32_t cluster_size, width;
};

/*
 * Combines two lower bounds of a time. The result is little more than the larger one unless they are close.
 */
ATTN_FN double attn_both(double a, double b)
{
	return sqrt(sqrt(a * a * a * a + b * b * b * b));
}

/* Costs of decoding at head_dim 128 on an H200, in ns. The first three are for a key of a KV head. */
struct attn_costs {
	double sm, memory, warp;	/* of an SM, of memory for the whole device, of a warp */
	double cta;			/* of a CTA beside its keys: prologue, merge of its warps' states */
};

ATTN_FN struct attn_costs attn_decode_costs(int32_t kv_fp8, int32_t warps)
{
	/* a warp alone in its CTA waits for no other */
	struct attn_costs c = {
		kv_fp8 ? 5.4 : 6.9, kv_fp8 ? 0.052 : 0.104, !kv_fp8 ? 34.5 : warps > 1 ? 58.5 : 40,
		2450 + 60.0 * warps,
	};

	return c;
}

/* Returns the estimated time of merging the states of a cluster's CTAs, in ns. */
ATTN_FN double attn_merge_cost(int32_t cluster_size)
{
	return cluster_size > 1 ? 1050 + 180 * cluster_size : 0;
}

/*
 * Returns the estimated time, in ns, of a wave: CTAs that run at once, each with `tiles` tiles, of `keys`
 * keys in all. `sharing` of them share an SM. The walk over the keys takes little more than the longest of
 * three times: a warp's for its rounds of tiles, an SM's for the tiles of its CTAs, and memory's for all
 * keys. The rest is the prologue and the merge of the states of a CTA's warps.
 */
ATTN_FN double attn_decode_wave(int32_t head_dim, int32_t kv_fp8, int32_t warps, int32_t tiles, double keys,
				int64_t ctas, int32_t sharing)
{
	const struct attn_costs cost = attn_decode_costs(kv_fp8, warps);
	int32_t tile = attn_decode_keys(head_dim, kv_fp8);
	double walk = attn_both(cost.warp * tile * attn_div_up(tiles, warps),
				cost.sm * tile * tiles * sharing);

	return cost.cta + head_dim / 128.0 * attn_both(walk, cost.memory * keys * (double)ctas);
}

/*
 * Chooses the split with the least estimated time. resident[width][c] is the number of CTAs that the device
 * holds at once in clusters of c (0: not granted). The last wave may be partial. After the waves, the states
 * of a cluster's CTAs are merged. The constants are fitted to an H200 at head_dim 128. With 16-bit keys, they
 * repeat nearly all choices of an earlier fit to sweeps of batches 1 to 128 and 1K to 64K keys, which were
 * the fastest or within 6% of it; attn_tile_test.c has sizes that were measured.
 */
ATTN_FN struct attn_split attn_decode_split(int64_t num_tasks, int32_t max_kv_len, int32_t head_dim,
					    int32_t kv_fp8,
					    const int32_t resident[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1])
{
	int32_t sms = resident[ATTN_WHOLE][1];
	int32_t num_tiles = attn_div_up(max_kv_len, attn_decode_keys(head_dim, kv_fp8));
	struct attn_split best = { 1, ATTN_HALF };
	double least = -1;		/* none yet; NVRTC has no HUGE_VAL */

	for (int32_t width = 0; width < ATTN_WIDTHS; width++) {
		int32_t warps = attn_decode_warps(head_dim, kv_fp8, width);
		int32_t sharing = sms > 0 ? attn_div_up(resident[width][1], sms) : 1;

		for (int32_t c = 1; c <= (width == ATTN_ONE ? 1 : ATTN_MAX_CLUSTER) && warps; c++) {
			int32_t room = resident[width][c], tiles = attn_div_up(num_tiles, c);
			double time = attn_merge_cost(c), each = (double)max_kv_len / c;
			int64_t waves, rest;

			if (room < c)
				continue;
			waves = num_tasks * c / room;
			rest = num_tasks * c % room;
			time += (double)waves * attn_decode_wave(head_dim, kv_fp8, warps, tiles, each, room,
								 sharing);
			if (rest)
				time += attn_decode_wave(head_dim, kv_fp8, warps, tiles, each, rest,
							 (int32_t)((rest * sharing + room - 1) / room));
			if (least < 0 || time < least) {
				least = time;
				best.cluster_size = c;
				best.width = width;
			}
		}
	}
	return best;
}

/*
 * The division of decode work of uneven lengths (attn_paged_uneven.cu): the most CTAs of a team, a power of
 * two; the width of CTAs; and the most keys of a CTA.
 */
struct attn_teams {
	int32_t most, width, share;
};

/*
 * Returns the estimated time, in ns, of a launch whose tasks have teams; `room` CTAs run at once. It takes
 * little more than the longer of two times: that of a CTA with a whole share, beside another on its SM, and
 * that of all CTAs, which memory, the SMs and the prologues limit.
 */
ATTN_FN double attn_teams_time(struct attn_teams t, int64_t num_tasks, double mean_kv_len, int32_t head_dim,
			       int32_t kv_fp8, int32_t room)
{
	int32_t warps = attn_decode_warps(head_dim, kv_fp8, t.width), sharing = t.width == ATTN_HALF ? 2 : 1;
	const struct attn_costs cost = attn_decode_costs(kv_fp8, warps);
	int32_t tile = attn_decode_keys(head_dim, kv_fp8);
	double keys = mean_kv_len * (double)num_tasks, size = head_dim / 128.0;
	double rounds = attn_div_up(attn_div_up(t.share, tile), warps);
	/* sizes are rounded up to a power of two */
	double ctas = (double)num_tasks + 0.7 * keys / t.share;
	double longest = cost.cta + size * attn_both(cost.warp * tile * rounds, cost.sm * t.share * sharing);
	double all = cost.cta * ctas / room +
		     size * attn_both(cost.memory * keys, cost.sm * keys * sharing / room);

	return attn_merge_cost(t.most) + attn_both(longest, all);
}

/*
 * Returns whether teams pay. They do if the longest task has at least twice as many keys as the mean, and if
 * a single CTA of half an SM would work on it for more than a third of the time in which memory delivers the
 * keys of all tasks. Shorter tasks fill the device without teams.
 */
ATTN_FN int attn_wants_teams(int64_t num_tasks, int32_t max_kv_len, double mean_kv_len, int32_t head_dim,
			     int32_t kv_fp8)
{
	int32_t warps = attn_decode_warps(head_dim, kv_fp8, ATTN_HALF);
	const struct attn_costs cost = attn_decode_costs(kv_fp8, warps);

	return 2 * mean_kv_len <= max_kv_len &&
	       3 * cost.warp / warps * max_kv_len > cost.memory * mean_kv_len * (double)num_tasks;
}

/*
 * Returns whether equal shares of all keys (attn_paged_shares.cu) are faster than teams. They balance better,
 * but cost some 3 us more: a CTA first finds its share, and merges through global memory. With fewer tasks
 * than CTAs that run at once, teams balance well enough.
 */
ATTN_FN int attn_wants_shares(int64_t num_tasks, int32_t max_kv_len, double mean_kv_len, int32_t head_dim,
			      int32_t kv_fp8, int32_t resident)
{
	return num_tasks >= resident &&
	       attn_wants_teams(num_tasks, max_kv_len, mean_kv_len, head_dim, kv_fp8);
}

/*
 * Chooses the division of tasks of uneven lengths. A CTA's share is at least 1.5 times the number of keys
 * that each CTA would get if the CTAs that run at once divided all keys evenly, but never more than the
 * longest task: most CTAs get less than a full share, and no CTA should have to wait until another one ends.
 * The result's `most` is 1 if there should be no teams, or if the device grants no clusters.
 * attn_tile_test.c has batches that were measured.
 */
ATTN_FN struct attn_teams attn_decode_teams(int64_t num_tasks, int32_t max_kv_len, double mean_kv_len,
					    int32_t head_dim, int32_t kv_fp8,
					    const int32_t resident[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1])
{
	struct attn_teams best = { 1, ATTN_HALF, max_kv_len };
	double least = -1;

	if (!attn_wants_teams(num_tasks, max_kv_len, mean_kv_len, head_dim, kv_fp8))
		return best;
	for (int32_t width = ATTN_HALF; width <= ATTN_WHOLE; width++) {
		for (int32_t c = 2; c <= ATTN_MAX_CLUSTER; c *= 2) {
			int32_t room = resident[width][c];
			struct attn_teams t = { c, width, attn_div_up(max_kv_len, c) };
			double time, even;

			if (room < c)
				continue;
			even = 1.5 * mean_kv_len * (double)num_tasks / room;
			if (t.share < even)
				t.share = even < max_kv_len ? (int32_t)even : max_kv_len;
			time = attn_teams_time(t, num_tasks, mean_kv_len, head_dim, kv_fp8, room);
			if (least < 0 || time < least) {
				least = time;
				best = t;
			}
		}
	}
	return best;
}

#endif
