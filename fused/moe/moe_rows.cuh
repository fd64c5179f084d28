/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows.cuh - declarations that the chain of moe_rows.cu and its two products (moe_rows_product.cuh) share
 *
 * A pair is a row and one of its experts, row * experts_per_token + i. Pairs are sorted by expert; the index
 * in that order is a pair's place. An expert's places begin at a multiple of 16, so some places are unused.
 *
 * Operands of the products are stored in panels of 64 columns, 128 bytes per row, in the order that wgmma
 * reads from shared memory: the 16-byte piece c of row r is at c ^ (r & 7). One bulk copy can therefore fetch
 * any rows of a panel that begin at a multiple of 8. For 8-bit weights, every 16 columns are permuted, see
 * even_odd().
 */
#ifndef CAIRN_MOE_ROWS_CUH
#define CAIRN_MOE_ROWS_CUH

#include <cuda.h>

#include "fused/attention/base/attn_tile.cuh"
#include "fused/moe/moe_call.cuh"

#define PANEL		64		/* columns */
#define PANEL_ROW	128		/* bytes */

/* A tile is up to `size` places of an expert; its index within the expert is its index minus `base`. */
struct tile {
	int32_t expert, first, count;	/* the expert's first place and its number of places */
	int32_t size, base, num, pad[2];	/* base: the expert's first tile; num: its number of tiles */
};

#define MOE_W4_PLACES	32		/* maximum places of a tile of moe_rows_w4.cu */

enum { NUM_TILES, NEXT_GATE_UP, NEXT_DOWN, NUM_COUNTERS };

struct rows {
	struct moe_call a;
	void *n, *x, *h, *shared_h;	/* panels: x of all places, then of all rows for the shared experts */
	/* logits; weights of pairs; weights of places; y of all pairs, then of the shared experts */
	float *logits, *choice_weight, *weight, *y;
	int32_t *choice, *pair;		/* expert of a pair; pair of a place */
	int32_t *next;			/* an expert's next free place */
	int32_t *counters;
	struct tile *tiles;
	void *gemm_workspace;
	size_t gemm_bytes;
	int32_t num_pairs, num_places, shared_rows, num_tiles;	/* num_places, num_tiles: upper bounds */
	int32_t most, weight_bytes;	/* places of a tile; bytes of a weight, except with w4 */
	int32_t adds_x, w4;
	int32_t fragments;		/* x and h are in the order of fragment_at() instead of panels */
	struct cairn_moe_between between;
};

/* Returns the places of each tile when `count` places are divided evenly, a multiple of 16. */
static __host__ __device__ __forceinline__ int32_t tile_size(int32_t count, int32_t most)
{
	return attn_div_up(attn_div_up(count, attn_div_up(count, most)), 16) * 16;
}

/*
 * ldmatrix gives lane t of a quad bytes 4 t .. 4 t + 3 of 16, which are widened to the pairs 4 t, 4 t + 2 and
 * 4 t + 1, 4 t + 3. wgmma reads these registers of A as columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9. Every 16
 * columns of the other operand must match: first the even ones, then the odd ones. An even lane holds the
 * first eight of them, the next lane the others.
 */
ATTN_DEV uint4 even_odd(uint4 v)
{
	const int odd = threadIdx.x & 1;
	const uint32_t even0 = __byte_perm(v.x, v.y, 0x5410), even1 = __byte_perm(v.z, v.w, 0x5410);
	const uint32_t odd0 = __byte_perm(v.x, v.y, 0x7632), odd1 = __byte_perm(v.z, v.w, 0x7632);
	const uint32_t other0 = __shfl_xor_sync(~0u, odd ? even0 : odd0, 1);
	const uint32_t other1 = __shfl_xor_sync(~0u, odd ? even1 : odd1, 1);

	return odd ? make_uint4(other0, other1, odd0, odd1) : make_uint4(even0, even1, other0, other1);
}

/* Returns the offset of a piece of eight columns in panels of `rows` rows. */
ATTN_DEV int64_t panel_at(int64_t rows, int row, int piece)
{
	return (piece / 8 * rows + row) * PANEL_ROW + ((piece ^ row) & 7) * 16;
}

/*
 * For 4-bit weights and few rows, x and h lie in the order in which lanes load operand B of mma.m16n8k16: 8
 * places and 64 columns have 1024 bytes, in each half of which a lane has 16 bytes for two products.
 * Returns the offset of columns 2 t and 2 t + 1 of a piece of eight columns; tiles: the number of 64
 * columns in a row.
 */
ATTN_DEV int64_t fragment_at(int tiles, int place, int piece, int t)
{
	const int step = piece / 2 % 4;

	return ((int64_t)(place / 8) * tiles + piece / 8) * 1024 + step / 2 * 512 + (place % 8 * 4 + t) * 16 +
	       step % 2 * 8 + piece % 2 * 4;
}

/* Returns the maximum number of places of a tile. */
int moe_rows_most(const struct cairn_moe_args *args);
/* Returns whether a call has 4-bit weights and so few rows for each expert that moe_rows_w4.cu is faster. */
int moe_rows_is_w4_of_few(const struct cairn_moe_args *args);
/* Launches both products. */
int moe_rows_products(const struct rows *g, const struct cairn_moe_args *args, void *stream);
/* The same if moe_rows_is_w4_of_few(): moe_rows_w4.cu */
int moe_rows_products_w4(const struct rows *g, const struct cairn_moe_args *args, void *stream);

#endif
