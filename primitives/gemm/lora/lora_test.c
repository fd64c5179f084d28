// SPDX-License-Identifier: Apache-2.0
/*
 * lora_test - cases of lora.h
 *
 * Slots change from row to row, stay the same for several rows, or are all equal; some rows have none (-1),
 * and some a number past the last slot. EXACT has small integers and scales that are powers of two. POISON:
 * rows without an adapter have NaN in x, slots that no row uses are NaN, and so are some elements of x and y
 * of the other rows; some scales are 0, which does not hide a NaN; and in f16 the results of some rows
 * overflow. The cases ends_* combine sizes at the ends of tiles (ends.h), the cases slots* many
 * adapters with ranks. Bench rows are projections of Llama 3 8B: q, k and v with rank 16.
 */
#include <stdio.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#define FIELD(f)	offsetof(struct cairn_lora_args, f)

enum order { MIXED, RUNS, ONE, NONE };	/* which adapters the rows have */

static const char *const orders[] = { "mixed", "runs", "one", "none" };

struct shape {
	int32_t m, n, k, rank, parts, slots, dtype;
	enum order order;
	int bench, far;
};

static const struct shape shapes[] = {
	{ 0, 16, 16, 8, 1, 1, CAIRN_BF16, ONE, 0, 0 },
	{ 1, 1, 8, 8, 1, 1, CAIRN_F16, ONE, 0, 0 },
	{ 1, 3, 16, 16, 3, 2, CAIRN_BF16, ONE, 0, 0 },
	{ 5, 40, 24, 8, 2, 3, CAIRN_BF16, MIXED, 0, 0 },
	{ 8, 257, 264, 24, 3, 4, CAIRN_F16, MIXED, 0, 0 },
	{ 9, 48, 520, 64, 3, 3, CAIRN_BF16, RUNS, 0, 0 },
	{ 17, 300, 32, 32, 2, 5, CAIRN_F16, RUNS, 0, 0 },
	{ 12, 33, 96, 16, 1, 2, CAIRN_BF16, NONE, 0, 0 },
	{ 33, 64, 1032, 8, 1, 2, CAIRN_F16, ONE, 0, 0 },
	{ 2, 600, 4096, 16, 3, 2, CAIRN_BF16, RUNS, 0, 0 },
	{ 3, 8, 40, 8, 1, 300, CAIRN_BF16, MIXED, 0, 0 },
	{ .m = (1 << 17) + 4, .n = 16384, .k = 8, .rank = 8, .parts = 1, .slots = 2, .dtype = CAIRN_BF16,
	  .order = MIXED, .far = 1 },
	{ 1, 6144, 4096, 16, 3, 4, CAIRN_BF16, ONE, 1, 0 },
	{ 16, 6144, 4096, 16, 3, 16, CAIRN_BF16, MIXED, 1, 0 },
	{ 128, 6144, 4096, 16, 3, 16, CAIRN_BF16, MIXED, 1, 0 },
	{ 2048, 6144, 4096, 16, 3, 4, CAIRN_BF16, RUNS, 1, 0 },
	{ 64, 6144, 4096, 16, 3, 4, CAIRN_BF16, NONE, 1, 0 },
	{ 1, 28672, 4096, 64, 2, 4, CAIRN_BF16, ONE, 1, 0 },
};

#define FIRST_PAIR	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	22

static const int32_t pair_m[] = { 1, 7, 8, 19 }, pair_n[] = { 3, 24, 261 }, pair_k[] = { 8, 72, 256 };
static const int32_t pair_rank[] = { 8, 16, 56, 64 };
static struct cairn_pairs pairs = { .num_factors = 7, .levels = { 4, 3, 3, 4, 3, 2, 4 } };

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS)
#define NUM_ENDS	61

static const int32_t ends_k[] = { 8, 56, 72, 120, 136, 264 };
static struct cairn_pairs ends = {
	.num_factors = 7, .levels = { CAIRN_FEW_ENDS, CAIRN_NUM_ENDS, 6, 4, 3, 2, 3 },
};

#define FIRST_SLOTS	(FIRST_ENDS + NUM_ENDS)
#define NUM_SLOTS	24

/* slots, rank, rows, order, parts, type */
static struct cairn_pairs slot_table = { .num_factors = 6, .levels = { 6, 4, 3, 3, 3, 2 } };

static struct shape slots_of(int i)
{
	static const int32_t slots[] = { 2, 9, 17, 33, 65, 129 }, m[] = { 17, 1, 65 };
	const int8_t *level = cairn_pairs_row(&slot_table, i);

	return (struct shape){ m[level[2]], 40, 72, pair_rank[level[1]], 1 + level[4], slots[level[0]],
			       level[5] ? CAIRN_F16 : CAIRN_BF16, (enum order)level[3], 0, 0 };
}

#define NUM_CASES	(FIRST_SLOTS + NUM_SLOTS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, m, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, n, 3, 20000, 1),
	CAIRN_DRAW_SIZE(struct shape, k, 8, 20000, 8),
	CAIRN_DRAW_SIZE(struct shape, rank, 8, 64, 8),
	CAIRN_DRAW_ONE_OF(struct shape, parts, 1, 2, 3),
	CAIRN_DRAW_SIZE(struct shape, slots, 1, 300, 1),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct shape, order, MIXED, MIXED, RUNS, RUNS, ONE, NONE),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;
	const int64_t factors = (int64_t)s->rank * (s->parts * s->k + s->n);

	return factors * s->slots <= room * 1000000 && factors * s->m <= room * (1 << 23);
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 4000,
};

static struct shape shape_of(int i)
{
	const int8_t *level;
	struct shape s;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_SLOTS)
		return slots_of(i - FIRST_SLOTS);
	if (i < FIRST_PAIR)
		return shapes[i];
	if (i >= FIRST_ENDS) {
		level = cairn_pairs_row(&ends, i - FIRST_ENDS);
		/* every part has a column */
		return (struct shape){ cairn_ends[level[0]], cairn_ends[level[1]] + level[4],
				       ends_k[level[2]], pair_rank[level[3]], 1 + level[4], 4,
				       level[5] ? CAIRN_F16 : CAIRN_BF16, (enum order)level[6], 0, 0 };
	}
	level = cairn_pairs_row(&pairs, i - FIRST_PAIR);
	return (struct shape){ pair_m[level[0]], pair_n[level[1]], pair_k[level[2]], pair_rank[level[3]],
			       1 + level[4], 4, level[5] ? CAIRN_F16 : CAIRN_BF16,
			       (enum order)level[6], 0, 0 };
}

static void describe(int i, struct cairn_case *c)
{
	const struct shape s = shape_of(i);
	const double adapters = s.order == NONE ? 0 : s.order == MIXED && s.m > s.slots ? s.slots :
				s.order == MIXED ? s.m : 1;

	snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_rank%d_parts%d_%s_%s",
		 i >= FIRST_ENDS ? "ends_" : i >= FIRST_PAIR ? "pair_" : "", s.m, s.n, s.k, s.rank, s.parts,
		 cairn_dtype_name(s.dtype), orders[s.order]);
	if (i >= FIRST_SLOTS)
		snprintf(c->name, sizeof(c->name), "slots%d_m%d_rank%d_parts%d_%s_%s", s.slots, s.m, s.rank,
			 s.parts, cairn_dtype_name(s.dtype), orders[s.order]);
	c->kinds = s.bench || s.far ? CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) :
		   CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	if (i >= FIRST_ENDS && i < NUM_CASES)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = s.bench;
	c->device_only = s.bench || s.far;
	c->far = s.far;
	/* slots, factors once for each adapter in use, x once, y twice */
	c->bytes = 4.0 * s.m + 2 * (adapters * s.rank * ((double)s.parts * s.k + s.n) +
			(s.order == NONE ? 0 : s.m) * ((double)s.k + 2.0 * s.n));
	c->flops = s.order == NONE ? 1 : 2.0 * s.m * s.rank * ((double)s.parts * s.k + s.n);
}

static int32_t slot_of(const struct shape *s, int32_t i)
{
	switch (s->order) {
	case MIXED:
		return i % 11 == 3 ? -1 : i % 7 == 5 ? s->slots : (s->slots - 1 + 2 * i) % s->slots;
	case RUNS:
		return i / 5 % 4 == 2 ? -1 : (i / 5 + 1) % s->slots;
	case ONE:
		return s->slots - 1;
	default:
		return i % 2 ? INT32_MIN : s->slots + i;
	}
}

static int has_slot(const struct shape *s, int32_t i)
{
	return slot_of(s, i) >= 0 && slot_of(s, i) < s->slots;
}

static int is_used(const struct shape *s, int32_t slot)
{
	int used = 0;

	for (int32_t i = 0; i < s->m && !used; i++)
		used = slot_of(s, i) == slot;
	return used;
}

/* Fills matrices of all slots; EXACT: integers up to `most`, so that every partial sum is exact. */
static void fill_factors(struct cairn_op *op, const struct shape *s, void *p, int64_t size, int64_t most,
			 double scale)
{
	cairn_fill_exact(op, p, s->dtype, s->slots * size, scale, most);
	for (int32_t slot = 0; op->kind == CAIRN_KIND_POISON && slot < s->slots; slot++)
		if (!is_used(s, slot))
			cairn_fill_nan(p, s->dtype, slot * size, size);
}

/* Sets row i of x and y to the largest numbers of f16, so that about half of the results are infinite. */
static void make_large(const struct shape *s, void *x, void *y, int64_t i)
{
	for (int64_t l = i * s->k; l < (i + 1) * s->k; l++)
		cairn_store(x, s->dtype, l, copysign(65504, cairn_load(x, s->dtype, l)));
	for (int64_t j = i * s->n; j < (i + 1) * s->n; j++)
		cairn_store(y, s->dtype, j, copysign(65504, cairn_load(y, s->dtype, j)));
}

static void poison(struct cairn_op *op, const struct shape *s, void *x, void *y)
{
	for (int32_t i = 0; i < s->m; i++) {
		if (!has_slot(s, i))
			cairn_fill_nan(x, s->dtype, (int64_t)i * s->k, s->k);
		else if (i % 3 == 1)
			cairn_fill_nan(x, s->dtype, (int64_t)i * s->k + cairn_op_range(op, 0, s->k - 1), 1);
		else if (i % 3 == 2)
			cairn_fill_nan(y, s->dtype, (int64_t)i * s->n + cairn_op_range(op, 0, s->n - 1), 1);
		else if (s->dtype == CAIRN_F16 && i % 2)
			make_large(s, x, y, i);
	}
}

static void setup(struct cairn_op *op)
{
	const struct shape s = shape_of(op->case_index);
	struct cairn_lora_args *a = op->args;
	int32_t *slot;
	void *x, *y;
	float *scale;

	a->m = s.m;
	a->n = s.n;
	a->k = s.k;
	a->rank = s.rank;
	a->num_slots = s.slots;
	a->num_parts = s.parts;
	for (int32_t p = 0; p < s.parts; p++)	/* the first part is the largest, as that of q is */
		a->part_end[p] = s.n - (s.parts - 1 - p) * (s.n / (s.parts + 1) ? s.n / (s.parts + 1) : 1);
	a->dtype = s.dtype;
	if (s.far) {
		y = cairn_inout_rows(op, FIELD(y), s.dtype, s.m, s.n, 1);
		x = cairn_in(op, FIELD(x), s.dtype, (int64_t)s.m * s.k);
	} else {
		y = cairn_inout(op, FIELD(y), s.dtype, (int64_t)s.m * s.n);
		cairn_shape(op, FIELD(y), { "row", s.m }, { "column", s.n });
		cairn_fill_exact(op, y, s.dtype, (int64_t)s.m * s.n, 1, 8);
		x = cairn_in(op, FIELD(x), s.dtype, (int64_t)s.m * s.k);
	}
	cairn_fill_exact(op, x, s.dtype, (int64_t)s.m * s.k, 1, 1);
	fill_factors(op, &s, cairn_in(op, FIELD(a), s.dtype, (int64_t)s.slots * s.parts * s.rank * s.k),
		     (int64_t)s.parts * s.rank * s.k, 1, 0.05);
	fill_factors(op, &s, cairn_in(op, FIELD(b), s.dtype, (int64_t)s.slots * s.n * s.rank),
		     (int64_t)s.n * s.rank, 1, 0.05);
	scale = cairn_in(op, FIELD(scale), CAIRN_F32, s.slots);
	for (int32_t i = 0; i < s.slots; i++)
		scale[i] = op->kind == CAIRN_KIND_EXACT ? (float)(1 << i % 3) / (i % 4 == 2 ? -2 : 2) :
			   op->kind == CAIRN_KIND_POISON && i % 3 == 1 ? 0 : 0.5f + 0.3f * (float)(i % 7);
	slot = cairn_in(op, FIELD(slot), CAIRN_I32, s.m);
	for (int32_t i = 0; i < s.m; i++)
		slot[i] = slot_of(&s, i);
	if (op->kind == CAIRN_KIND_POISON)
		poison(op, &s, x, y);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_lora_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_lora_args *a = args;

	if (!a->m)
		a->m = 1;
	*want = i < 16 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->y = NULL; return "null_y";
	case 2: a->x = NULL; return "null_x";
	case 3: a->a = NULL; return "null_a";
	case 4: a->b = NULL; return "null_b";
	case 5: a->scale = NULL; return "null_scale";
	case 6: a->slot = NULL; return "null_slot";
	case 7: a->m = -1; return "negative_m";
	case 8: a->n = 0; return "n_0";
	case 9: a->k = 0; return "k_0";
	case 10: a->num_slots = 0; return "num_slots_0";
	case 11: a->num_parts = 0; return "num_parts_0";
	case 12: a->part_end[0] = 0; return "part_end_0";
	case 13: a->n++; return "part_end_short";
	case 14: a->y = (char *)a->y + 8; return "misaligned_y";
	case 15: a->a = (const char *)a->a + 2; return "misaligned_a";
	case 16: a->rank = 12; return "rank_12";
	case 17: a->rank = 72; return "rank_72";
	case 18: a->k = 12; return "k_12";
	case 19: a->dtype = CAIRN_F32; return "dtype_f32";
	case 20: a->num_parts = 4; return "num_parts_4";
	}
	return NULL;
}

static int part(void *args, int i)
{
	struct cairn_lora_args *a = args;
	int64_t row = (int64_t)a->n * 2;
	int32_t first;

	if (!cairn_part(a->m, row, 1, i, &first, &a->m))
		return 0;
	a->y = (char *)a->y + first * row;
	a->x = (const char *)a->x + (int64_t)first * a->k * 2;
	a->slot += first;
	return 1;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &slot_table, NUM_SLOTS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_lora_family = {
	.stage = "primitives", .name = "lora",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, lora),
	.workspace_op = offsetof(struct cairn_impl, lora_workspace),
	.workspace_field = offsetof(struct cairn_lora_args, workspace),
	.args_size = sizeof(struct cairn_lora_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.part = part,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
};
