// SPDX-License-Identifier: Apache-2.0
/*
 * pick_ids_test - cases of pick_ids.h
 *
 * The pair cases combine sizes, the host's ids (none, apart, in place) and indices beyond num_drawn.
 * The cases ends_* do so for sizes at the ends of tiles (ends.h), of both numbers.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>

enum { ALL_HOST = 1, ALL_DRAWN = 2, NO_HOST = 4, IN_PLACE = 8, BEYOND = 16, BENCH = 32 };

static const struct shape {
	const char *name;
	int32_t rows, num_drawn;
	unsigned flags;
} shapes[] = {
	{ "one_row", 1, 1, 0 },
	{ "rows_0", 0, 4, 0 },
	{ "none_drawn", 40, 0, ALL_HOST },
	{ "all_drawn_no_host", 64, 64, ALL_DRAWN | NO_HOST },
	{ "no_host_some_drawn", 70, 9, NO_HOST },
	{ "rows255", 255, 200, 0 },
	{ "rows256", 256, 1, 0 },
	{ "rows257_in_place", 257, 256, IN_PLACE },
	{ "rows1000_beyond", 1000, 128, BEYOND },
	{ "rows5000_in_place_beyond", 5000, 333, IN_PLACE | BEYOND },
	{ "rows256_drawn", 256, 256, ALL_DRAWN | BENCH },
	{ "rows8192", 8192, 1024, BENCH },
	{ "none_drawn_beyond", 40, 0, ALL_HOST | BEYOND },
};

#define FIRST_PAIR	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	30

static const int32_t pair_rows[] = { 1, 7, 33, 257, 1030, 70000 }, pair_drawn[] = { 0, 1, 31, 300, 66000 };
static const unsigned pair_hosts[] = { 0, NO_HOST, IN_PLACE }, pair_from[] = { 0, ALL_DRAWN, ALL_HOST };

/* Without drawn tokens, no row can refer to one. */
static int pair_forbidden(const int8_t *level)
{
	return level[1] == 0 && (level[3] == 0 || level[3] == 1 || level[4] == 1);
}

static struct cairn_pairs pairs = { .num_factors = 5, .levels = { 6, 5, 3, 3, 2 },
				    .forbidden = pair_forbidden };

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS)
#define NUM_ENDS	120

/* rows; tokens; host's ids (3), and where most ids come from (drawn, either) */
static const int32_t ends_rows[] = { 1, 17, 63, 65, 127, 129, 255, 257, 191, 96, 1025, 2049 };
static struct cairn_pairs ends = { .num_factors = 3, .levels = { 12, CAIRN_NUM_ENDS, 6 } };

static struct shape ends_at(int i)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	return (struct shape){ .rows = ends_rows[level[0]], .num_drawn = cairn_ends[level[1]],
			       .flags = pair_hosts[level[2] / 2] | (level[2] % 2 ? ALL_DRAWN : BEYOND) };
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 140000, 1),
	CAIRN_DRAW_SIZE(struct shape, num_drawn, 1, 140000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, NO_HOST, IN_PLACE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, ALL_DRAWN, ALL_HOST),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, BEYOND),
};

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.many = 8000,
};

static struct shape shape_of(int i)
{
	const int8_t *level;
	struct shape s;

	if (i < FIRST_PAIR)
		return shapes[i];
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_ENDS)
		return ends_at(i - FIRST_ENDS);
	level = cairn_pairs_row(&pairs, i - FIRST_PAIR);
	return (struct shape){ .rows = pair_rows[level[0]], .num_drawn = pair_drawn[level[1]],
			       .flags = pair_hosts[level[2]] | pair_from[level[3]] |
					(level[4] ? BEYOND : 0) };
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);

	snprintf(c->name, sizeof(c->name), "%s", s.name ? s.name : "");
	if (!s.name)
		snprintf(c->name, sizeof(c->name), "%s_rows%d_drawn%d%s%s%s",
			 i < FIRST_ENDS ? "pair" : "ends", s.rows, s.num_drawn,
			 s.flags & NO_HOST ? "_no_host" : s.flags & IN_PLACE ? "_in_place" : "",
			 s.flags & ALL_DRAWN ? "_all_drawn" : s.flags & ALL_HOST ? "_all_host" : "",
			 s.flags & BEYOND ? "_beyond" : "");
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (i < FIRST_ENDS || i >= NUM_CASES)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	c->bench = !!(s.flags & BENCH);
	c->bytes = 12.0 * s.rows + 4.0 * s.num_drawn;
}

/* EXTREME: any 32-bit id, and failed draws (-1). */
static int32_t some_id(struct cairn_op *op)
{
	if (op->kind == CAIRN_KIND_EXTREME)
		return cairn_op_rand(op) % 4 ? (int32_t)cairn_op_rand(op) : -1;
	return (int32_t)cairn_op_range(op, 0, 128255);
}

static void setup(struct cairn_op *op)
{
	struct shape shape = shape_of(op->case_index), *s = &shape;
	struct cairn_pick_ids_args *a = op->args;
	int32_t *from, *drawn, *host, lo = s->flags & ALL_DRAWN ? 0 : -1, hi = s->num_drawn - 1;

	a->rows = s->rows;
	a->num_drawn = s->num_drawn;
	if (s->flags & IN_PLACE) {
		host = cairn_inout(op, offsetof(struct cairn_pick_ids_args, ids), CAIRN_I32, s->rows);
		cairn_alias(op, offsetof(struct cairn_pick_ids_args, host_ids),
			    offsetof(struct cairn_pick_ids_args, ids));
	} else {
		cairn_out(op, offsetof(struct cairn_pick_ids_args, ids), CAIRN_I32, s->rows);
		host = s->flags & NO_HOST ? NULL :
		       cairn_in(op, offsetof(struct cairn_pick_ids_args, host_ids), CAIRN_I32, s->rows);
	}
	cairn_shape(op, offsetof(struct cairn_pick_ids_args, ids), { "row", s->rows });
	from = cairn_in(op, offsetof(struct cairn_pick_ids_args, from), CAIRN_I32, s->rows);
	drawn = cairn_in(op, offsetof(struct cairn_pick_ids_args, drawn), CAIRN_I32, s->num_drawn);
	for (int32_t i = 0; i < s->num_drawn; i++)
		drawn[i] = some_id(op);
	for (int32_t i = 0; i < s->rows; i++) {
		from[i] = s->flags & ALL_HOST || (lo < 0 && cairn_op_rand(op) % 3 == 0) ? -1 :
			  (int32_t)cairn_op_range(op, lo, hi);
		if (op->kind == CAIRN_KIND_EXTREME && from[i] < 0)
			from[i] = i % 4 ? -(int32_t)cairn_op_range(op, 1, INT32_MAX) : INT32_MIN;
		if (s->flags & BEYOND && cairn_op_rand(op) % 5 == 0)
			from[i] = cairn_op_rand(op) % 2 ? s->num_drawn : INT32_MAX;
		if (host)
			host[i] = some_id(op);
	}
	if (!s->rows)
		return;
	/* the last row takes the last token, or one behind it, whichever rows the others take */
	if (op->case_index >= FIRST_ENDS)
		from[s->rows - 1] = s->num_drawn - (s->flags & ALL_DRAWN ? 1 : op->case_index % 2);
	/* row 0 is the same with every seed, so that it does not show whether the others have changed */
	from[0] = s->num_drawn && (op->case_index % 2 || s->flags & ALL_DRAWN) && !(s->flags & ALL_HOST) ?
		  0 : -1;
	if (s->num_drawn)
		drawn[0] = 7;
	if (host)
		host[0] = 9;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_pick_ids_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_pick_ids_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->ids = NULL; return "null_ids";
	case 2: a->from = NULL; return "null_from";
	case 3: a->drawn = NULL; return "null_drawn";
	case 4: a->rows = -1; return "negative_rows";
	case 5: a->num_drawn = -1; return "negative_num_drawn";
	}
	return NULL;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_pick_ids_family = {
	.stage = "primitives", .name = "pick_ids",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, pick_ids),
	.args_size = sizeof(struct cairn_pick_ids_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.may_alias = { { offsetof(struct cairn_pick_ids_args, ids),
			 offsetof(struct cairn_pick_ids_args, host_ids) } },
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
};
