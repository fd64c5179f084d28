/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows_stage - kinds of weights of the products of moe_rows_product.cuh, and their ring of stages in
 * shared memory
 */
#ifndef CAIRN_MOE_ROWS_STAGE_CUH
#define CAIRN_MOE_ROWS_STAGE_CUH

#include "primitives/gemm/w4/gemm_w4_layout.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"
#include "fused/moe/moe_rows.cuh"

#define CONSUMERS	256
#define THREADS		(CONSUMERS + 128)
#define CONSUMER_REGS	232
#define PRODUCER_REGS	40
#define HALF_ROWS	128		/* rows of weights of a warpgroup */
#define HALF_BYTES	(HALF_ROWS * PANEL_ROW)
#define MOST		80		/* maximum sums of 64 rows that a thread holds */
#define FEW		64		/* up to this number of places, registers are free */

/* 4 bits: a box has the codes, or the cells, of 64 rows of a stage; a unit's cells have at most 192 bytes */
#define BOXES		4
#define BOX_UNITS	4
#define UNIT_CODES	(2 * CAIRN_W4_TILE_BYTES)
#define BOX_CODES	(BOX_UNITS * UNIT_CODES)
#define BOX_CELLS	(BOX_UNITS * 192)

/* Those of 4 bits have the order of enum cairn_w4_format. */
enum { BITS_16, BITS_8, BITS_8_BLOCKS, BITS_16_BETWEEN, BITS_4_INT, BITS_4_MX, BITS_4_NV };

ATTN_CONST is_16(int kind) { return kind == BITS_16 || kind == BITS_16_BETWEEN; }
ATTN_CONST is_8(int kind) { return kind == BITS_8 || kind == BITS_8_BLOCKS; }
ATTN_CONST is_4(int kind) { return kind >= BITS_4_INT; }
ATTN_CONST format_of(int kind) { return kind - BITS_4_INT; }
static_assert(format_of(BITS_4_INT) == CAIRN_W4_INT && format_of(BITS_4_MX) == CAIRN_W4_MX &&
	      format_of(BITS_4_NV) == CAIRN_W4_NV, "formats of 4 bits");

/* Returns whether gates and ups may have biases and activation 1. */
ATTN_CONST has_between(int kind) { return kind == BITS_16_BETWEEN || is_4(kind); }

/* Panels of x (64 of k each) in a stage; stages; maximum places of a tile */
ATTN_CONST stage_panels(int kind) { return is_16(kind) ? 1 : 2; }
ATTN_CONST num_stages(int kind) { return is_8(kind) ? 3 : 4; }
ATTN_CONST most_places(int kind) { return is_16(kind) ? 160 : kind == BITS_8_BLOCKS ? 112 : 144; }

/* Bytes of the weights of a stage, which x follows; bytes of a stage */
ATTN_CONST weight_bytes(int kind) { return is_4(kind) ? BOXES * (BOX_CODES + BOX_CELLS) : 2 * HALF_BYTES; }
ATTN_CONST stage_bytes(int kind)
{
	return weight_bytes(kind) + stage_panels(kind) * most_places(kind) * PANEL_ROW;
}
static_assert(weight_bytes(BITS_4_INT) % 1024 == 0 && stage_bytes(BITS_4_INT) % 1024 == 0 &&
	      most_places(BITS_4_INT) * PANEL_ROW % 1024 == 0, "panels of x are aligned for wgmma");
static_assert(BOX_CODES % 128 == 0 && BOX_CELLS % 128 == 0, "boxes are aligned for TMA");
static_assert(192 >= 128 / 32 * 3 * CAIRN_W4_ROWS && 192 >= 128 / 16 * CAIRN_W4_ROWS, "cells of a stage");

/* Routed or shared experts, as operands of one of the products */
struct side {
	CUtensorMap w;			/* [experts, or 2 of them][rows][k]; 4 bits: [units][tiles] */
	CUtensorMap cells;		/* 4 bits: [units][cells] */
	const char *in;			/* panels */
	void *out;			/* panels, or y */
	const float *scales;
	int64_t expert_scales;
	int32_t in_rows, out_rows;	/* rows of panels */
	int32_t k, height, items; /* columns; rows (gate_up: pairs of rows) of an expert; items of a tile */
};

struct product {
	struct side side[2];		/* 0: routed, 1: shared */
	const float *weight;		/* weight of the pair at each place */
	const int32_t *pair, *num_tiles;
	const struct tile *tiles;
	int32_t *next;
	int32_t hidden, batch, shared_tiles, most;
	struct cairn_moe_between between;	/* has_between() */
	/* 4 bits: factors of gates and ups, or of down, or NULL */
	const float *factors;
	int32_t stage_cells, shift;	/* a unit's bytes of cells in a stage; a group has 2^shift elements */
};

/* An item of work; n 0: no more items */
struct work {
	int32_t shared, expert, row0, first, count, n;
};

struct shared {
	uint32_t stages, full, empty;
	const uint8_t *memory;		/* the stages */
	struct work *work;
};

ATTN_CONST smem_bytes(int kind)
{
	return num_stages(kind) * (stage_bytes(kind) + 16 + (int)sizeof(struct work));
}

template <int kind> ATTN_DEV struct shared lay_out(uint8_t *s_mem)
{
	struct shared s;

	s.memory = s_mem;
	s.stages = ptx_smem(s_mem);
	s.full = s.stages + num_stages(kind) * stage_bytes(kind);
	s.empty = s.full + num_stages(kind) * 8;
	s.work = (struct work *)(s_mem + num_stages(kind) * (stage_bytes(kind) + 16));
	return s;
}

/* A position in the ring of stages; the producer starts with phase 1, consumers with phase 0. */
struct turn {
	int stage;
	uint32_t phase;
};

template <int kind> ATTN_DEV void advance(struct turn *t)
{
	t->stage++;
	if (t->stage == num_stages(kind)) {
		t->stage = 0;
		t->phase ^= 1;
	}
}

#endif
