// SPDX-License-Identifier: Apache-2.0
/*
 * all_to_all_test - cases of all_to_all.h
 *
 * The layouts are those of the header: to heads, back to rows, and gathering. `spread` leaves gaps between
 * rows and blocks, which must keep their bytes. Elements are random 32-bit words, so that every bit counts.
 * The cases ends_* combine sizes at the ends of tiles (ends.h).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/comm/all_to_all.h"

#include <stdio.h>

#define FIELD(f)	offsetof(struct cairn_all_to_all_args, f)

enum layout { TO_HEADS, TO_ROWS, GATHER, SPREAD, NUM_LAYOUTS };
static const char *const layout_names[] = { "to_heads", "to_rows", "gather", "spread" };

struct shape {
	int32_t ranks, rows, row_bytes;
	enum layout layout;
	enum cairn_trouble trouble;
	int device_only;
};

#define NUM_GRID	(CAIRN_COMM_MAX_RANKS * NUM_LAYOUTS)

static const struct shape singles[] = {
	{ .ranks = 2, .rows = 1, .row_bytes = 16, .layout = TO_HEADS },
	{ .ranks = 3, .rows = 1, .row_bytes = 16, .layout = GATHER },
	{ .ranks = 2, .rows = 0, .row_bytes = 32, .layout = GATHER },
	{ .ranks = 2, .rows = 300, .row_bytes = 256, .layout = TO_HEADS },
	/* more than a mailbox, of a host table and of a device */
	{ .ranks = 2, .rows = 9, .row_bytes = 65536, .layout = TO_ROWS },
	{ .ranks = 4, .rows = 90, .row_bytes = 4112, .layout = SPREAD },
	{ .ranks = 2, .rows = 2000, .row_bytes = 2048, .layout = TO_HEADS, .device_only = 1 },
	{ .ranks = 2, .rows = 3, .row_bytes = 64, .layout = TO_HEADS, .trouble = CAIRN_TROUBLE_ABSENT },
	{ .ranks = 3, .rows = 3, .row_bytes = 64, .layout = GATHER, .trouble = CAIRN_TROUBLE_ABORT },
	/* many rows, with gaps */
	{ .ranks = 3, .rows = 260, .row_bytes = 32, .layout = SPREAD },
	{ .ranks = 2, .rows = 65541, .row_bytes = 16, .layout = SPREAD },
	/* a row is a page, at which a rank can be held (ranks.h) */
	{ .ranks = 3, .rows = 2, .row_bytes = 4096, .layout = TO_ROWS },
	/* through boxes of a device: more than one box; the other rank does not come */
	{ .ranks = 2, .rows = 4200, .row_bytes = 4112, .layout = TO_ROWS, .device_only = 1 },
	{ .ranks = 2, .rows = 2001, .row_bytes = 2048, .layout = GATHER, .trouble = CAIRN_TROUBLE_ABSENT,
	  .device_only = 1 },
};
#define FIRST_ENDS	(NUM_GRID + (int)ARRAY_SIZE(singles))
#define NUM_ENDS	60

/* rows, row_bytes, ranks, layout */
static struct cairn_pairs ends = { .num_factors = 4, .levels = { CAIRN_FEW_ENDS, 10, 4, NUM_LAYOUTS } };

static void ends_at(int i, struct shape *s)
{
	static const int32_t units[] = { 1, 3, 7, 9, 15, 17, 31, 33, 63, 65 }, ends_ranks[] = { 2, 3, 5, 8 };
	const int8_t *level = cairn_pairs_row(&ends, i);

	*s = (struct shape){ .rows = cairn_ends[level[0]], .row_bytes = 16 * units[level[1]],
			     .ranks = ends_ranks[level[2]], .layout = (enum layout)level[3] };
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, ranks, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct shape, row_bytes, 16, 65536, 16),
	CAIRN_DRAW_ONE_OF(struct shape, layout, TO_HEADS, TO_ROWS, GATHER, SPREAD),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->ranks * s->ranks * s->rows * s->row_bytes <= room * 3000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 500, .few = 1,
};

static void shape_of(int i, struct shape *s)
{
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, s);
		return;
	}
	if (i >= FIRST_ENDS) {
		ends_at(i - FIRST_ENDS, s);
		return;
	}
	if (i >= NUM_GRID) {
		*s = singles[i - NUM_GRID];
		return;
	}
	*s = (struct shape){ .ranks = i / NUM_LAYOUTS + 1, .rows = 5, .row_bytes = 48 + i % 5 * 16,
			     .layout = (enum layout)(i % NUM_LAYOUTS) };
}

static int32_t ranks(int i)
{
	struct shape s;

	shape_of(i, &s);
	return s.ranks;
}

static enum cairn_trouble trouble(int i)
{
	struct shape s;

	shape_of(i, &s);
	return s.trouble;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s;

	shape_of(i, &s);
	snprintf(c->name, sizeof(c->name), "%sn%d_rows%d_bytes%d_%s", s.trouble == CAIRN_TROUBLE_ABSENT ?
		 "absent_" : s.trouble == CAIRN_TROUBLE_ABORT ? "abort_" :
		 i >= FIRST_ENDS ? "ends_" : "", s.ranks, s.rows, s.row_bytes,
		 layout_names[s.layout]);
	c->bytes = 2.0 * s.ranks * s.rows * s.row_bytes;
	c->device_only = s.device_only;
}

static void random_words(struct cairn_op *op, uint32_t *p, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		p[i] = (uint32_t)cairn_op_rand(op);
}

/* Sets blocks and strides, and *out and *x to the bytes that the arrays have. */
static void lay_out(struct cairn_all_to_all_args *a, const struct shape *s, int64_t *out, int64_t *x)
{
	const int64_t row = s->row_bytes, block = s->rows * row;

	a->out_block = a->x_block = block;
	a->out_stride = a->x_stride = row;
	*out = *x = s->ranks * block;
	switch (s->layout) {
	case TO_HEADS:
		a->x_block = row;
		a->x_stride = s->ranks * row;
		break;
	case TO_ROWS:
		a->out_block = row;
		a->out_stride = s->ranks * row;
		break;
	case GATHER:
		a->x_block = 0;
		*x = block;
		break;
	default:
		a->out_stride = row + 16;
		a->out_block = s->rows * a->out_stride + 32;
		a->x_stride = row + 32;
		a->x_block = s->rows * a->x_stride + 16;
		*out = s->ranks * a->out_block;
		*x = s->ranks * a->x_block;
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_all_to_all_args *a = op->args;
	int64_t out, x;
	struct shape s;
	void *p;

	shape_of(op->case_index, &s);
	lay_out(a, &s, &out, &x);
	a->rows = s.rows;
	a->row_bytes = s.row_bytes;
	cairn_out(op, FIELD(out), CAIRN_I32, out / 4);
	cairn_shape(op, FIELD(out), { "word", out / 4 });
	p = cairn_in(op, FIELD(x), CAIRN_I32, x / 4);
	cairn_apart(op);
	random_words(op, p, x / 4);
}

static int exact_ranks(const void *const *args, int32_t rank, struct cairn_exact *exact)
{
	return cairn_all_to_all_exact((const struct cairn_all_to_all_args *const *)args, rank, exact);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_all_to_all_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->x = NULL; return "null_x";
	case 3: a->rows = -1; return "negative_rows";
	case 4: a->row_bytes = 0; return "no_row_bytes";
	case 5: a->row_bytes = 8; return "row_bytes_8";
	case 6: a->x = (const char *)a->x + 8; return "misaligned_x";
	case 7: a->out_stride = a->row_bytes - 16; return "short_out_stride";
	case 8: a->x_stride += 8; return "misaligned_x_stride";
	case 9: a->out_block = -16; return "negative_out_block";
	case 10: a->comm.handle = NULL; return "no_comm";
	case 11: a->comm.rank ^= 1; return "other_rank";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 12: a->row_bytes = a->out_stride = a->x_stride = 65552; return "row_bytes_65552";
	case 13: a->comm.ranks = 9; return "ranks_9";
	}
	return NULL;
}

static int part(void *args, int i)
{
	struct cairn_all_to_all_args *a = args;
	int32_t first;

	if (!cairn_part(a->rows, 16, 1, i, &first, &a->rows))
		return 0;
	a->out = (char *)a->out + first * a->out_stride;
	a->x = (const char *)a->x + first * a->x_stride;
	return 1;
}

static void ends_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "ends_are_covered", ends_are_covered } };

const struct cairn_family cairn_all_to_all_family = {
	.stage = "primitives", .name = "all_to_all",
	.op = offsetof(struct cairn_impl, all_to_all),
	.args_size = sizeof(struct cairn_all_to_all_args),
	.units = units, .num_units = ARRAY_SIZE(units),
	.num_cases = NUM_CASES, .draw = &draws,
	.part = part,
	.describe = describe, .setup = setup, .reject = reject,
	.comm_field = FIELD(comm),
	.ranks = ranks, .exact_ranks = exact_ranks, .trouble = trouble,
};
