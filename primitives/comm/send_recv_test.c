// SPDX-License-Identifier: Apache-2.0
/*
 * send_recv_test - cases of send_recv.h
 *
 * Patterns: a ring in both directions, a pipeline (the last rank sends nothing, the first receives nothing),
 * one pair while the others only take part, and each rank with itself. Elements are random 32-bit words. The
 * cases ends_* combine sizes at the ends of tiles (ends.h) and of a mailbox of a host table.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "primitives/comm/send_recv.h"

#include <stdio.h>

#define FIELD(f)	offsetof(struct cairn_send_recv_args, f)

enum pattern { RING, RING_BACK, PIPELINE, PAIR, SELF, NUM_PATTERNS };
static const char *const pattern_names[] = { "ring", "ring_back", "pipeline", "pair", "self" };

struct shape {
	int32_t ranks;
	int64_t bytes;
	enum pattern pattern;
	enum cairn_trouble trouble;
	int device_only;
};

#define NUM_GRID	(CAIRN_COMM_MAX_RANKS * NUM_PATTERNS)

static const struct shape singles[] = {
	{ .ranks = 2, .bytes = 16, .pattern = RING },
	{ .ranks = 3, .bytes = 0, .pattern = RING },
	{ .ranks = 2, .bytes = 65552, .pattern = RING },
	{ .ranks = 3, .bytes = 3 * 1048576 - 16, .pattern = RING_BACK },
	{ .ranks = 2, .bytes = 16 * 1048576, .pattern = RING, .device_only = 1 },
	/* more than two stages of copy engines */
	{ .ranks = 2, .bytes = 40 * 1048576 + 16, .pattern = RING, .device_only = 1 },
	{ .ranks = 2, .bytes = 48, .pattern = RING, .trouble = CAIRN_TROUBLE_ABSENT },
	/* rank 2 sends nothing to the others */
	{ .ranks = 3, .bytes = 48, .pattern = PAIR, .trouble = CAIRN_TROUBLE_ABSENT },
	{ .ranks = 2, .bytes = 48, .pattern = RING, .trouble = CAIRN_TROUBLE_ABORT },
	/* rank 2 neither sends nor receives, and waits nevertheless */
	{ .ranks = 4, .bytes = 48, .pattern = PAIR, .trouble = CAIRN_TROUBLE_ABSENT },
	/* whole pages, at which a rank can be held (ranks.h) */
	{ .ranks = 3, .bytes = 20480, .pattern = RING },
};
#define FIRST_ENDS	(NUM_GRID + (int)ARRAY_SIZE(singles))
#define NUM_ENDS	55

/* bytes, ranks, pattern */
static struct cairn_pairs ends = { .num_factors = 3, .levels = { 11, 4, NUM_PATTERNS } };

static void ends_at(int i, struct shape *s)
{
	static const int64_t bytes[] = { 16, 112, 144, 240, 272, 1008, 1040, 4080, 4112, 65520,
					 1048576 + 16 };
	static const int32_t ends_ranks[] = { 2, 3, 4, 8 };
	const int8_t *level = cairn_pairs_row(&ends, i);

	*s = (struct shape){ .bytes = bytes[level[0]], .ranks = ends_ranks[level[1]],
			     .pattern = (enum pattern)level[2] };
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, ranks, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct shape, bytes, 16, 2000000, 16),
	CAIRN_DRAW_ONE_OF(struct shape, pattern, RING, RING_BACK, PIPELINE, PAIR, SELF),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return s->ranks * s->bytes <= room * 3000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 800, .few = 1,
};

static void shape_of(int i, struct shape *s)
{
	if (i >= NUM_CASES)
		cairn_draw_shape(&draws, i - NUM_CASES, s);
	else if (i >= FIRST_ENDS)
		ends_at(i - FIRST_ENDS, s);
	else if (i >= NUM_GRID)
		*s = singles[i - NUM_GRID];
	else
		*s = (struct shape){ .ranks = i / NUM_PATTERNS + 1, .bytes = 224 + i * 48,
				     .pattern = (enum pattern)(i % NUM_PATTERNS) };
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
	snprintf(c->name, sizeof(c->name), "%sn%d_bytes%lld_%s", s.trouble == CAIRN_TROUBLE_ABSENT ?
		 "absent_" : s.trouble == CAIRN_TROUBLE_ABORT ? "abort_" :
		 i >= FIRST_ENDS ? "ends_" : "", s.ranks, (long long)s.bytes,
		 pattern_names[s.pattern]);
	c->bytes = 2.0 * (double)s.bytes;
	c->device_only = s.device_only;
}

static void connect(const struct cairn_op *op, enum pattern pattern, int32_t *to, int32_t *from)
{
	const int32_t n = op->ranks, r = op->rank;

	switch (pattern) {
	case RING:
		*to = (r + 1) % n;
		*from = (r + n - 1) % n;
		break;
	case RING_BACK:
		*to = (r + n - 1) % n;
		*from = (r + 1) % n;
		break;
	case PIPELINE:
		*to = r + 1 < n ? r + 1 : -1;
		*from = r - 1;
		break;
	case PAIR:			/* rank 0 to rank 1 */
		*to = r == 0 && n > 1 ? 1 : -1;
		*from = r == 1 ? 0 : -1;
		break;
	default:
		*to = *from = r;
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_send_recv_args *a = op->args;
	struct shape s;
	uint32_t *x;

	shape_of(op->case_index, &s);
	connect(op, s.pattern, &a->to, &a->from);
	a->bytes = s.bytes;
	cairn_out(op, FIELD(out), CAIRN_I32, s.bytes / 4);
	cairn_shape(op, FIELD(out), { "word", s.bytes / 4 });
	x = cairn_in(op, FIELD(x), CAIRN_I32, s.bytes / 4);
	cairn_apart(op);
	for (int64_t i = 0; i < s.bytes / 4; i++)
		x[i] = (uint32_t)cairn_op_rand(op);
}

static int exact_ranks(const void *const *args, int32_t rank, struct cairn_exact *exact)
{
	return cairn_send_recv_exact((const struct cairn_send_recv_args *const *)args, rank, exact);
}

/* The refused calls begin with a ring of two ranks, or with the case of one rank. */
static const char *reject(void *args, int i, int *want)
{
	struct cairn_send_recv_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->x = NULL; return "null_x";
	case 3: a->bytes = -16; return "negative_bytes";
	case 4: a->to = -2; return "to_minus_2";
	case 5: a->from = a->comm.ranks; return "from_too_large";
	case 6: a->to = a->comm.rank; return "only_to_is_own";
	case 7: a->x = (const char *)a->x + 8; return "misaligned_x";
	case 8: a->comm.handle = NULL; return "no_comm";
	case 9: a->comm.ranks++; return "more_ranks";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 10: a->bytes += 8; return "bytes_8";
	case 11: a->comm.ranks = 9; return "ranks_9";
	}
	return NULL;
}

static void ends_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "ends_are_covered", ends_are_covered } };

const struct cairn_family cairn_send_recv_family = {
	.stage = "primitives", .name = "send_recv",
	.op = offsetof(struct cairn_impl, send_recv),
	.args_size = sizeof(struct cairn_send_recv_args),
	.units = units, .num_units = ARRAY_SIZE(units),
	.num_cases = NUM_CASES, .draw = &draws,
	.describe = describe, .setup = setup, .reject = reject,
	.comm_field = FIELD(comm),
	.ranks = ranks, .exact_ranks = exact_ranks, .trouble = trouble,
};
