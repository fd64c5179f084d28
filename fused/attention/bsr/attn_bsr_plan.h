/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_plan - how a call of attn_bsr is divided into work: lists, units, runs
 *
 * Kernels and tests share this code: nvcc compiles these functions into attn_bsr, gcc into
 * attn_bsr_plan_test.c.
 *
 * List        A block row of a part. It serves all KV heads, or one if each KV head has its own lists.
 * Packed rows The query heads of one KV head read the same keys, so each pair of a token of a block row and
 *             such a head is one row: packed row r is token r / group, head r % group.
 * Unit        A row tile of a list for one KV head, with all keys that its tokens may see. It costs
 *             ATTN_UNIT_COST plus one for each key tile.
 * Run         The work that a CTA takes at a time. If there are many units and none is longer than a CTA's
 *             share, each run is one unit, and CTAs draw runs from a counter. Otherwise there is one run for
 *             each CTA, and all runs have equal cost; a run may then end within a unit, between two of its
 *             key tiles. A front that promises results independent of other lists sets `uncut` if there are
 *             others; then each run is always one unit.
 *
 * A unit that is cut is computed as several pieces, and each piece gives its own state (O and lse). A run has
 * at most two pieces of cut units, its first and its last. So room for two pieces for each CTA is enough,
 * whatever the lengths are.
 */
#ifndef CAIRN_ATTN_BSR_PLAN_H
#define CAIRN_ATTN_BSR_PLAN_H

#include "fused/attention/bsr/attn_bsr.h"
#include "fused/attention/base/attn_tile.h"

#define ATTN_UNIT_COST	2	/* in key tiles: the first loads and the results */
#define ATTN_MANY	4	/* from this many units per CTA on, runs are whole units */

/* The parameters of the division of a call that the host computes. */
struct attn_division {
	int32_t rows, keys;			/* packed rows of a row tile, keys of a key tile: 2^n */
	int32_t group, heads;			/* query heads of a KV head; KV heads */
	int32_t section;			/* KV heads whose keys the L2 can hold together */
	int32_t ctas;
	int32_t uncut;				/* runs are whole units */
	int32_t skip;				/* lists of up to this many packed rows have no unit */
	uint32_t magic;				/* attn_magic(group) */
	int32_t lists[CAIRN_ATTN_PARTS + 1];	/* number of the first list of each part */
	/*
	 * Slots that TMA copies at a time: 2^n. 0: threads copy; -1: they do, and the offsets of slots in
	 * units of 16 bytes need more than 32 bits.
	 */
	int32_t box[CAIRN_ATTN_PARTS];
	/* keys = step_blocks * block_n + step_slots */
	int32_t step_blocks[CAIRN_ATTN_PARTS], step_slots[CAIRN_ATTN_PARTS];
	int32_t box_q;				/* TMA copies Q of full row tiles */
};

/* A unit: a row tile, and the keys that its tokens may see. Kernels move its 32 bytes as two vectors. */
struct attn_unit {
	int32_t part __attribute__((aligned(16))), row, kv_head;
	int32_t row0;			/* its first packed row in the block row */
	int32_t begin, num_tiles;	/* its first key, a multiple of attn_grain(); its key tiles */
	int32_t cut;			/* the first run that begins within it; 0: none */
	int32_t hidden;			/* number of keys from `begin` on that no token of it sees */
};

/* The begin of a run, which ends where the next one begins. */
struct attn_run {
	int32_t unit __attribute__((aligned(8))), tile;
};

/* The head of the plan. */
struct attn_plan_head {
	int32_t units __attribute__((aligned(16))), runs;
	int32_t whole;			/* runs are whole units, drawn from the counter */
	int32_t next;			/* the counter, which begins at the number of CTAs */
};

/* Returns n / power rounded up, for a power of two: a division takes 20 instructions. */
ATTN_FN int32_t attn_shift_up(int32_t n, int32_t power)
{
#ifdef __CUDA_ARCH__
	return (n + power - 1) >> (31 - __clz(power));
#else
	return (n + power - 1) >> __builtin_ctz((unsigned int)power);
#endif
}

/* A list: its part, index head and block row; the places of its tokens; its keys. */
struct attn_list {
	int32_t part, head, row;
	int32_t first, tokens, len;
};

/* Returns the list of a block row of a part for index head `head`. */
ATTN_FN struct attn_list attn_bsr_list_at(const struct cairn_attn_bsr_args *a, const struct attn_division *d,
					  int32_t part, int32_t head, int32_t row)
{
	const struct cairn_attn_part *p = &a->part[part];
	const int32_t i = head * p->rows + row;
	struct attn_list l = { part, head, row, 0, 0, 0 };
	int64_t first, end;
	int32_t blocks, last;

	first = p->row_indptr ? p->row_indptr[l.row] : (int64_t)l.row * p->block_m;
	end = p->row_indptr ? p->row_indptr[l.row + 1] : first + p->block_m;
	if (end > a->nnz_qo)
		end = a->nnz_qo;
	l.first = (int32_t)first;
	l.tokens = end > first ? (int32_t)(end - first) : 0;
	if (l.tokens * d->group <= d->skip)
		l.tokens = 0;
	/* last_len is read even if the list is empty, so that this load waits for no other */
	last = p->last_len ? p->last_len[i] : p->block_n;
	blocks = p->blk_indptr[i + l.head + 1] - p->blk_indptr[i + l.head];
	l.len = blocks > 0 ? (blocks - 1) * p->block_n + last : 0;
	return l;
}

/* Returns list i of all parts. */
ATTN_FN struct attn_list attn_bsr_list(const struct cairn_attn_bsr_args *a, const struct attn_division *d,
				       int32_t i)
{
	int32_t part = 0, head = 0;

	while (i >= d->lists[part + 1])
		part++;
	i -= d->lists[part];
	if (a->part[part].index_heads > 1)
		head = i / a->part[part].rows;
	return attn_bsr_list_at(a, d, part, head, i - head * a->part[part].rows);
}

/* Returns the number of KV heads that a list serves. */
ATTN_FN int32_t attn_list_heads(const struct cairn_attn_bsr_args *a, const struct attn_division *d,
				int32_t part)
{
	return a->part[part].index_heads > 1 ? 1 : d->heads;
}

ATTN_FN int32_t attn_list_tiles(const struct attn_division *d, const struct attn_list *l)
{
	return attn_shift_up(l->tokens * d->group, d->rows);
}

/*
 * Returns the index of a unit within its list. Units are ordered by sections of heads whose keys the L2 can
 * hold together; within a section, the last row tiles come first, because they see the most keys.
 */
ATTN_FN int32_t attn_unit_of(const struct attn_division *d, int32_t heads, int32_t tiles, int32_t tile,
			     int32_t head)
{
	int32_t first = head / d->section * d->section;
	int32_t in_section = heads - first < d->section ? heads - first : d->section;

	return first * tiles + (tiles - 1 - tile) * in_section + head - first;
}

ATTN_FN void attn_unit_find(const struct attn_division *d, int32_t heads, int32_t tiles, int32_t i,
			    int32_t *tile, int32_t *head)
{
	int32_t first = 0, in_section = heads, row_tile;

	if (d->section < heads) {
		first = i / (tiles * d->section) * d->section;
		in_section = heads - first < d->section ? heads - first : d->section;
		i -= first * tiles;
	}
	row_tile = i / in_section;
	*tile = tiles - 1 - row_tile;
	*head = first + i - row_tile * in_section;
}

/* Returns the token at a place of a part. */
ATTN_FN int32_t attn_bsr_token(const struct cairn_attn_part *p, int32_t place)
{
	return p->q_index ? p->q_index[place] : place;
}

/* Returns the position of token `ordinal` of a list. */
ATTN_FN int64_t attn_bsr_position(const struct cairn_attn_bsr_args *a, const struct attn_list *l,
				  int32_t ordinal)
{
	const struct cairn_attn_part *p = &a->part[l->part];

	if (a->q_pos)
		return a->q_pos[attn_bsr_token(p, l->first + ordinal)];
	return (int64_t)l->len - 1 + (p->kv_pos0 ? p->kv_pos0[l->row] : 0) - (l->tokens - 1 - ordinal);
}

ATTN_FN int32_t attn_within(int64_t n, int32_t len)
{
	return n < 0 ? 0 : n > len ? len : (int32_t)n;
}

/*
 * attn_bsr_first() and attn_bsr_end() return the range of keys that a token at `position` may see; bits may
 * hide some of them. With key_pos, positions are not consecutive, and the range is the whole list.
 */
ATTN_FN int32_t attn_bsr_first(const struct cairn_attn_bsr_args *a, const struct attn_list *l,
			       int64_t position)
{
	const struct cairn_attn_part *p = &a->part[l->part];

	if (p->key_pos || !a->window)
		return 0;
	return attn_within(position - a->window + 1 - (p->kv_pos0 ? p->kv_pos0[l->row] : 0), l->len);
}

ATTN_FN int32_t attn_bsr_end(const struct cairn_attn_bsr_args *a, const struct attn_list *l, int64_t position)
{
	const struct cairn_attn_part *p = &a->part[l->part];

	if (p->key_pos || !(p->mask_mode & CAIRN_ATTN_CAUSAL))
		return l->len;
	return attn_within(position + 1 - (p->kv_pos0 ? p->kv_pos0[l->row] : 0), l->len);
}

/* Returns the alignment, in keys, of the first key of a unit: 2^n. */
ATTN_FN int32_t attn_grain(const struct attn_division *d, int32_t part)
{
	return d->box[part] > 16 ? d->box[part] : 16;
}

/* Returns unit i of a list; the planner sets `cut`. */
ATTN_FN struct attn_unit attn_bsr_unit(const struct cairn_attn_bsr_args *a, const struct attn_division *d,
				       const struct attn_list *l, int32_t i)
{
	int32_t heads = attn_list_heads(a, d, l->part), tiles = attn_list_tiles(d, l), tile, head;
	int32_t begin = l->len, end = 0, first, last;
	struct attn_unit u = { l->part, l->row, 0, 0, 0, 1, 0, 0 };

	attn_unit_find(d, heads, tiles, i, &tile, &head);
	u.kv_head = heads > 1 ? head : l->head;
	u.row0 = tile * d->rows;
	first = attn_token(u.row0, d->magic);
	last = attn_token(u.row0 + d->rows - 1, d->magic);
	if (last >= l->tokens)
		last = l->tokens - 1;
	/* without q_pos, the first token determines the begin of the range, the last token its end */
	for (int32_t t = first; t <= last; t += a->q_pos || t == last ? 1 : last - t) {
		int64_t position = attn_bsr_position(a, l, t);
		int32_t sees = attn_bsr_first(a, l, position), until = attn_bsr_end(a, l, position);

		begin = sees < begin ? sees : begin;
		end = until > end ? until : end;
	}
	if (end > begin) {
		u.hidden = begin & (attn_grain(d, l->part) - 1);
		u.begin = begin - u.hidden;
		u.num_tiles = attn_shift_up(end - u.begin, d->keys);
	}
	return u;
}

/* Returns whether each run is one unit, given the number of units and the cost of all and of the longest. */
ATTN_FN int32_t attn_plan_whole(const struct attn_division *d, int32_t units, int32_t cost, int32_t most)
{
	return d->uncut || (units >= ATTN_MANY * d->ctas && (int64_t)most * d->ctas <= cost);
}

/*
 * Returns the number of runs if they are not units: one for each CTA, but none cheaper than a unit of one key
 * tile.
 */
ATTN_FN int32_t attn_plan_runs(const struct attn_division *d, int32_t cost)
{
	int32_t most = cost / (ATTN_UNIT_COST + 1);

	return most < 1 ? 1 : most < d->ctas ? most : d->ctas;
}

/* Returns cost * i / runs, the cost of all work before run i, without a division of 64 bits. */
ATTN_FN int32_t attn_run_at(int32_t cost, int32_t runs, int32_t i)
{
	return cost / runs * i + cost % runs * i / runs;
}

/* Returns the key tile of a unit that lies `cost` after the unit's begin. */
ATTN_FN int32_t attn_tile_at(int32_t cost)
{
	return cost > ATTN_UNIT_COST ? cost - ATTN_UNIT_COST : 0;
}

/*
 * Returns where the state of a piece of run i goes (each run has two slots); -1: the piece is a whole unit.
 */
ATTN_FN int32_t attn_piece_slot(const struct attn_unit *u, int32_t i, int32_t from, int32_t to)
{
	return from > 0 ? 2 * i : to < u->num_tiles ? 2 * i + 1 : -1;
}

#endif
