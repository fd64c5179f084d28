// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_plan_test - tests the division of calls into units and runs (attn_bsr_plan.h) on the host
 *
 * Calls are drawn at random: one to three parts, ragged rows, lists of very different lengths, one list for
 * all heads or one for each, with and without masks and positions.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/bsr/attn_bsr_plan.h"

#define MAX_ROWS	24
#define MAX_HEADS	6
#define MAX_UNITS	20000
#define MAX_RUNS	(MAX_UNITS + 1)

/* A drawn call and its plan. */
struct drawn {
	struct cairn_attn_bsr_args a;
	struct attn_division d;
	int32_t row_indptr[CAIRN_ATTN_PARTS][MAX_ROWS + 1];
	int32_t blk_indptr[CAIRN_ATTN_PARTS][MAX_HEADS * (MAX_ROWS + 1)];
	struct attn_unit units[MAX_UNITS];
	int32_t costs[MAX_UNITS], list_of[MAX_UNITS], num_units, cost, most, whole, num_runs;
	struct attn_run runs[MAX_RUNS];
};

static int draw(uint32_t *seed, int low, int high)
{
	*seed = *seed * 1664525u + 1013904223u;
	return low + (int)((*seed >> 8) % (uint32_t)(high - low + 1));
}

static void draw_call(struct drawn *w, uint32_t *seed)
{
	struct cairn_attn_bsr_args *a = &w->a;

	memset(w, 0, sizeof(*w));
	a->num_parts = draw(seed, 1, 3);
	a->nnz_qo = draw(seed, 1, 400);
	w->d.group = draw(seed, 1, 9);
	w->d.heads = a->num_kv_heads = draw(seed, 1, MAX_HEADS);
	w->d.rows = 128;
	w->d.keys = draw(seed, 0, 1) ? 128 : 64;
	w->d.section = draw(seed, 1, w->d.heads);
	w->d.ctas = draw(seed, 1, 132);
	w->d.magic = attn_magic((uint32_t)w->d.group);
	a->window = draw(seed, 0, 2) ? 0 : draw(seed, 1, 500);
	for (int k = 0; k < a->num_parts; k++) {
		struct cairn_attn_part *p = &a->part[k];
		int longest = draw(seed, 0, 3) ? 40 : 2000;

		p->rows = draw(seed, 0, MAX_ROWS);
		p->block_n = draw(seed, 1, 20);
		w->d.box[k] = draw(seed, 0, 1) ? 8 << draw(seed, 0, w->d.keys == 128 ? 4 : 3) : 0;
		p->index_heads = draw(seed, 0, 1) ? 1 : w->d.heads;
		p->mask_mode = draw(seed, 0, 1);
		p->row_indptr = w->row_indptr[k];
		p->blk_indptr = w->blk_indptr[k];
		for (int r = 0; r < p->rows; r++)
			w->row_indptr[k][r + 1] = draw(seed, w->row_indptr[k][r], r == p->rows - 1 ?
						       a->nnz_qo : (w->row_indptr[k][r] + a->nnz_qo) / 2);
		for (int i = 0, at = 0; i < p->index_heads * (p->rows + 1); i++) {
			w->blk_indptr[k][i] = at;
			at += (i + 1) % (p->rows + 1) ? draw(seed, 0, longest) : 0;
		}
		w->d.lists[k + 1] = w->d.lists[k] + p->rows * p->index_heads;
	}
}

static int32_t last_up_to(const int32_t *before, int32_t n, int32_t x)
{
	int32_t i = 0;

	while (i + 1 < n && before[i + 1] <= x)
		i++;
	return i;
}

static void plan(struct drawn *w)
{
	for (int32_t i = 0; i < w->d.lists[w->a.num_parts]; i++) {
		struct attn_list l = attn_bsr_list(&w->a, &w->d, i);
		int32_t n = attn_list_tiles(&w->d, &l) * attn_list_heads(&w->a, &w->d, l.part);

		for (int32_t k = 0; k < n; k++, w->num_units++) {
			struct attn_unit u = attn_bsr_unit(&w->a, &w->d, &l, k);
			int32_t cost = ATTN_UNIT_COST + u.num_tiles;

			w->units[w->num_units] = u;
			w->list_of[w->num_units] = i;
			w->costs[w->num_units] = w->cost;
			w->cost += cost;
			w->most = cost > w->most ? cost : w->most;
		}
	}
	w->whole = attn_plan_whole(&w->d, w->num_units, w->cost, w->most);
	w->num_runs = w->whole || !w->num_units ? w->num_units : attn_plan_runs(&w->d, w->cost);
	for (int32_t i = 0; i <= w->num_runs; i++) {
		int32_t at = w->num_units ? attn_run_at(w->cost, w->num_runs, i) : 0, unit = i;

		if (!w->whole && i < w->num_runs)
			unit = last_up_to(w->costs, w->num_units, at);
		else if (!w->whole)
			unit = w->num_units;
		w->runs[i].unit = unit;
		if (!w->whole && i < w->num_runs)
			w->runs[i].tile = attn_tile_at(at - w->costs[unit]);
	}
}

/* Checks that each row tile and head of each list is one unit, with the keys that its tokens may see. */
static void check_units(struct cairn_test *t, const struct drawn *w)
{
	for (int32_t i = 0; i < w->num_units; i++) {
		const struct attn_unit *u = &w->units[i];
		struct attn_list l = attn_bsr_list(&w->a, &w->d, w->list_of[i]);
		int32_t heads = attn_list_heads(&w->a, &w->d, u->part), tiles = attn_list_tiles(&w->d, &l);
		int32_t first = i, end = u->begin + u->num_tiles * w->d.keys;

		while (first > 0 && w->list_of[first - 1] == w->list_of[i])
			first--;
		EXPECT(t, first + attn_unit_of(&w->d, heads, tiles, u->row0 / w->d.rows,
					       heads > 1 ? u->kv_head : 0) == i);
		EXPECT(t, u->part == l.part && u->row == l.row && (heads > 1 || u->kv_head == l.head));
		EXPECT(t, !w->d.box[l.part] || u->begin % w->d.box[l.part] == 0);
		EXPECT(t, u->begin % 16 == 0 && u->num_tiles >= 1);
		for (int32_t k = u->row0 / w->d.group; k < l.tokens && k * w->d.group < u->row0 + w->d.rows;
		     k++) {
			int64_t position = attn_bsr_position(&w->a, &l, k);
			int32_t sees = attn_bsr_first(&w->a, &l, position);
			int32_t until = attn_bsr_end(&w->a, &l, position);

			EXPECT(t, sees >= until || (sees >= u->begin && until <= end));
		}
	}
}

/* Checks that the pieces of all runs cover each key tile of each unit once, and that no two share a slot. */
static void check_runs(struct cairn_test *t, const struct drawn *w)
{
	static uint8_t used[2 * MAX_RUNS];
	int32_t unit = 0, tile = 0, dearest = 0;

	memset(used, 0, sizeof(used));
	EXPECT(t, w->whole || w->num_runs <= w->d.ctas);
	for (int32_t i = 0; i < w->num_runs; i++) {
		struct attn_run begin = w->runs[i], end = w->runs[i + 1];
		int32_t cost = 0;

		for (int32_t k = begin.unit; k < end.unit + (end.tile > 0); k++) {
			int32_t from = k == begin.unit ? begin.tile : 0;
			int32_t to = k == end.unit ? end.tile : w->units[k].num_tiles;
			int32_t slot = attn_piece_slot(&w->units[k], i, from, to);

			if (from >= to)
				continue;
			EXPECT(t, k == unit && from == tile);
			EXPECT(t, slot < 0 ? from == 0 && to == w->units[k].num_tiles : !used[slot]++);
			cost += to - from + (from ? 0 : ATTN_UNIT_COST);
			tile = to < w->units[k].num_tiles ? to : 0;
			unit += tile == 0;
		}
		dearest = cost > dearest ? cost : dearest;
	}
	EXPECT(t, unit == w->num_units && tile == 0);
	/* a run costs at most its share, plus two roundings and the cost of a unit */
	if (!w->whole && w->num_runs)
		EXPECT(t, dearest <= w->cost / w->num_runs + 2 + ATTN_UNIT_COST);
}

static void every_key_tile_belongs_to_one_run(struct cairn_test *t)
{
	struct drawn *w = malloc(sizeof(*w));
	int whole = 0, cut = 0;
	uint32_t seed = 1;

	if (!w)
		abort();
	for (int i = 0; i < 400; i++) {
		draw_call(w, &seed);
		plan(w);
		check_units(t, w);
		check_runs(t, w);
		whole += w->whole;
		cut += !w->whole && w->num_units < w->num_runs;
	}
	EXPECT(t, whole > 20 && cut > 20);
	free(w);
}

static const struct cairn_unit units[] = {
	{ "every_key_tile_belongs_to_one_run", every_key_tile_belongs_to_one_run },
};

const struct cairn_family cairn_attn_bsr_plan_family = {
	.stage = "fused", .name = "attn_bsr_plan", .units = units, .num_units = ARRAY_SIZE(units),
};
