// SPDX-License-Identifier: Apache-2.0
/* search_stage1 - sizes of the nano-batches, their decoding rows, and the order of operations (NOTES.md) */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/search/search_fault.h"
#include "serving/search/search_stage.h"

struct stage1 {
	struct cairn_search_milp m;
	double most_rate;
	int32_t start_size[CAIRN_SEARCH_MOST_SPLIT];	/* index of the size with which the search starts */
	/* columns: of nano-batch i, whether its size is b, and the rate if it is; rate * decoding rows */
	int32_t is_size[CAIRN_SEARCH_MOST_SPLIT][CAIRN_SEARCH_MOST_SIZES];
	int32_t size_rate[CAIRN_SEARCH_MOST_SPLIT][CAIRN_SEARCH_MOST_SIZES];
	int32_t decode_rate[CAIRN_SEARCH_MOST_SPLIT];
};

/*
 * Returns the least sum of cost[b] over `nanos` sizes b that together are all rows, or INFINITY; picks[i], if
 * not NULL, is then the index of the i-th size.
 */
static double least_cut(const struct cairn_search_problem *p, int32_t nanos, const double *cost,
			int32_t *picks)
{
	enum { MOST = CAIRN_SEARCH_MOST_SIZES + 1 };
	double best[CAIRN_SEARCH_MOST_SPLIT + 1][MOST * CAIRN_SEARCH_MOST_SPLIT];
	int32_t by[CAIRN_SEARCH_MOST_SPLIT + 1][MOST * CAIRN_SEARCH_MOST_SPLIT];
	int32_t tiles = p->pass.rows / CAIRN_SEARCH_TILE;

	if (tiles >= MOST * CAIRN_SEARCH_MOST_SPLIT)
		return INFINITY;
	for (int32_t t = 0; t <= tiles; t++)
		best[0][t] = t ? INFINITY : 0;
	for (int32_t n = 1; n <= nanos; n++)
		for (int32_t t = 0; t <= tiles; t++) {
			best[n][t] = INFINITY;
			for (int32_t b = 0; b < p->num_sizes; b++) {
				int32_t rest = t - p->sizes[b] / CAIRN_SEARCH_TILE;

				if (rest < 0 || !(best[n - 1][rest] + cost[b] < best[n][t]))
					continue;
				best[n][t] = best[n - 1][rest] + cost[b];
				by[n][t] = b;
			}
		}
	for (int32_t n = nanos, t = tiles; picks && n > 0 && isfinite(best[nanos][tiles]); n--) {
		picks[n - 1] = by[n][t];
		t -= p->sizes[by[n][t]] / CAIRN_SEARCH_TILE;
	}
	return best[nanos][tiles];
}

/* Sets most_rate by the least time that the operations of each kind need together, and the first sizes. */
static int bound_rate(struct stage1 *x, const struct cairn_search_problem *p, int32_t nanos)
{
	double least = 0, cost[CAIRN_SEARCH_MOST_SIZES], even[CAIRN_SEARCH_MOST_SIZES];

	for (int kind = 0; kind < CAIRN_NUM_SEARCH_KINDS; kind++) {
		double fixed = 0;

		for (int32_t b = 0; b < p->num_sizes; b++)
			cost[b] = 0;
		for (int32_t o = 0; o < p->num_ops; o++) {
			if (p->kinds[o] != (enum cairn_search_kind)kind)
				continue;
			if (p->ops[o].attention)
				fixed += cairn_search_attn_ms(p, p->pass.rows, p->pass.decode) +
					 (nanos - 1) * p->base_ms;
			else if (p->ops[o].whole)
				fixed += p->whole_ms[o];
			for (int32_t b = 0; b < p->num_sizes && !p->ops[o].attention && !p->ops[o].whole; b++)
				cost[b] += p->ms[o][b];
		}
		least = fmax(least, fixed + least_cut(p, nanos, cost, NULL));
	}
	/* The search starts from sizes that are nearly equal. */
	for (int32_t b = 0; b < p->num_sizes; b++)
		even[b] = (double)p->sizes[b] * p->sizes[b];
	if (!isfinite(least_cut(p, nanos, even, x->start_size)))
		return cairn_error(ERANGE, "search: %d rows cannot be cut into %d of the profile's sizes",
				   p->pass.rows, nanos);
	x->most_rate = cairn_search_sequential_ms(p) / least * (1 + 1e-9);
	return 0;
}

/* Every nano-batch has one size, and all together have the rows of the pass. */
static void add_sizes(struct stage1 *x, const struct cairn_search_problem *p, int32_t nanos)
{
	struct cairn_lp *lp = x->m.lp;

	for (int32_t i = 0; i < nanos; i++)
		for (int32_t b = 0; b < p->num_sizes; b++) {
			x->is_size[i][b] = cairn_lp_col(lp, 0, 1, true, "y_%d_%d", i, p->sizes[b]);
			x->size_rate[i][b] = cairn_lp_col(lp, 0, x->most_rate, false, "z_%d_%d", i,
							  p->sizes[b]);
			cairn_lp_start(lp, x->is_size[i][b], b == x->start_size[i]);
			cairn_lp_row(lp, '<', 0, "z_if_y_%d_%d", i, b);
			cairn_lp_term(lp, x->size_rate[i][b], 1);
			cairn_lp_term(lp, x->is_size[i][b], -x->most_rate);
		}
	for (int32_t i = 0; i < nanos; i++) {
		cairn_lp_row(lp, '=', 1, "one_size_%d", i);
		for (int32_t b = 0; b < p->num_sizes; b++)
			cairn_lp_term(lp, x->is_size[i][b], 1);
		cairn_lp_row(lp, '=', 0, "rate_%d", i);
		for (int32_t b = 0; b < p->num_sizes; b++)
			cairn_lp_term(lp, x->size_rate[i][b], 1);
		cairn_lp_term(lp, x->m.rate, -1);
	}
	cairn_lp_row(lp, FAULT(ROWS_LOST) ? '<' : '=', (double)p->pass.rows / CAIRN_SEARCH_TILE, "rows");
	for (int32_t i = 0; i < nanos; i++)
		for (int32_t b = 0; b < p->num_sizes; b++)
			cairn_lp_term(lp, x->is_size[i][b], (double)p->sizes[b] / CAIRN_SEARCH_TILE);
	/* implied by the rows before, for every solution in integers */
	cairn_lp_row(lp, FAULT(ROWS_LOST) ? '<' : '=', 0, "rows_rate");
	for (int32_t i = 0; i < nanos; i++)
		for (int32_t b = 0; b < p->num_sizes; b++)
			cairn_lp_term(lp, x->size_rate[i][b], (double)p->sizes[b] / CAIRN_SEARCH_TILE);
	cairn_lp_term(lp, x->m.rate, -(double)p->pass.rows / CAIRN_SEARCH_TILE);
}

/* Adds rate * (rows of nano-batch i) * factor to the last row. */
static void add_rows_term(struct stage1 *x, const struct cairn_search_problem *p, int32_t i, double factor)
{
	for (int32_t b = 0; b < p->num_sizes; b++)
		cairn_lp_term(x->m.lp, x->size_rate[i][b], factor * p->sizes[b]);
}

/* Decoding rows are counted in tiles, so that all coefficients are near 1. */
static void add_decodes(struct stage1 *x, const struct cairn_search_problem *p, int32_t nanos)
{
	struct cairn_lp *lp = x->m.lp;

	for (int32_t i = 0; i < nanos; i++)
		x->decode_rate[i] = cairn_lp_col(lp, 0, x->most_rate * p->pass.rows / CAIRN_SEARCH_TILE,
						 false, "g_%d", i);
	cairn_lp_row(lp, FAULT(DECODE_LOST) ? '<' : '=', 0, "decode");
	for (int32_t i = 0; i < nanos; i++)
		cairn_lp_term(lp, x->decode_rate[i], 1);
	cairn_lp_term(lp, x->m.rate, -(double)p->pass.decode / CAIRN_SEARCH_TILE);
	for (int32_t i = 0; i < nanos && !FAULT(DECODE_UNBOUNDED); i++) {
		cairn_lp_row(lp, '>', 0, "decode_%d", i);
		add_rows_term(x, p, i, 1.0 / CAIRN_SEARCH_TILE);
		cairn_lp_term(lp, x->decode_rate[i], -1);
	}
}

static void add_durations(struct stage1 *x, const struct cairn_search_problem *p)
{
	struct cairn_lp *lp = x->m.lp;
	double unit = x->m.unit_ms;

	for (int32_t i = 0; i < x->m.parts->num_parts; i++) {
		int32_t o = x->m.parts->parts[i].op, nano = x->m.parts->parts[i].nano;

		cairn_lp_row(lp, '=', 0, "time_%s", cairn_search_part_name(&x->m, i));
		cairn_lp_term(lp, x->m.share[i], -1);
		if (p->ops[o].attention) {
			cairn_lp_term(lp, x->m.rate, p->base_ms / unit);
			cairn_lp_term(lp, x->decode_rate[nano],
				      (p->request_ms - p->row_ms) * CAIRN_SEARCH_TILE / unit);
			add_rows_term(x, p, nano, p->row_ms / unit);
		} else if (p->ops[o].whole) {
			cairn_lp_term(lp, x->m.rate, p->whole_ms[o] / unit);
		} else {
			for (int32_t b = 0; b < p->num_sizes; b++)
				cairn_lp_term(lp, x->size_rate[nano][b], p->ms[o][b] / unit);
		}
	}
}

static void add_order(struct stage1 *x, const struct cairn_search_problem *p)
{
	const struct cairn_search_parts *s = x->m.parts;

	for (int32_t i = 0; i < s->num_parts; i++)
		for (int32_t j = i + 1; j < s->num_parts; j++)
			if (s->together[i][j] && p->kinds[s->parts[i].op] == p->kinds[s->parts[j].op] &&
			    !FAULT(KIND_OVERLAPS))
				cairn_lp_start(x->m.lp, cairn_search_milp_apart(&x->m, i, j, -1), 1);
}

/* Sets whole numbers of decoding rows whose shares are those of the solution, by largest remainders. */
static void take_decodes(const struct stage1 *x, const struct cairn_search_problem *p, const double *values,
			 struct cairn_search_schedule *s)
{
	double rest[CAIRN_SEARCH_MOST_SPLIT];
	int32_t left = p->pass.decode;

	for (int32_t i = 0; i < s->nanos; i++) {
		double rows = values[x->decode_rate[i]] / values[x->m.rate] * CAIRN_SEARCH_TILE;

		s->decode[i] = (int32_t)(rows + 1e-4);
		if (s->decode[i] > s->size[i])
			s->decode[i] = s->size[i];
		rest[i] = rows - s->decode[i];
		left -= s->decode[i];
	}
	while (left > 0 && !FAULT(DECODE_LOST)) {
		int32_t most = -1;

		for (int32_t i = 0; i < s->nanos; i++)
			if (s->decode[i] < s->size[i] && (most < 0 || rest[i] > rest[most]))
				most = i;
		if (most < 0)
			return;
		s->decode[most]++;
		rest[most]--;
		left--;
	}
}

static void take_sizes(const struct stage1 *x, const struct cairn_search_problem *p, const double *values,
		       struct cairn_search_schedule *s)
{
	s->nanos = x->m.parts->nanos;
	for (int32_t i = 0; i < s->nanos; i++)
		for (int32_t b = 0; b < p->num_sizes; b++)
			if (values[x->is_size[i][b]] > 0.5)
				s->size[i] = p->sizes[b];
}

int cairn_search_stage1(const struct cairn_search_problem *p, const struct cairn_search_parts *parts,
			const struct cairn_search_limits *limits, struct cairn_search_schedule *out)
{
	struct stage1 x = { .most_rate = 0 };
	struct cairn_search_schedule s = { .ideal = true };
	struct cairn_lp_answer a = { .values = NULL };
	int ret;

	CAIRN_TRY(bound_rate(&x, p, parts->nanos));
	ret = cairn_search_milp_open(&x.m, p, parts, x.most_rate);
	if (!ret) {
		add_sizes(&x, p, parts->nanos);
		add_decodes(&x, p, parts->nanos);
		add_durations(&x, p);
		cairn_search_milp_deps(&x.m, limits->span);
		cairn_search_milp_kinds(&x.m);
		add_order(&x, p);
		ret = cairn_search_milp_solve(&x.m, limits, "stage1", &s, &a);
	}
	if (!ret) {
		take_sizes(&x, p, a.values, &s);
		take_decodes(&x, p, a.values, &s);
		*out = s;
	}
	free(a.values);
	cairn_lp_destroy(x.m.lp);
	return ret;
}
