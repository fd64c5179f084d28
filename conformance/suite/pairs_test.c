// SPDX-License-Identifier: Apache-2.0
/*
 * pairs_test - tests that the rows of pairs.c are complete, few, allowed, and never change, and that draw.c
 * draws sizes of all kinds
 */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/families.h"
#include "conformance/suite/pairs.h"

static int no_two_with_0(const int8_t *level)
{
	return level[0] == 2 && level[1] == 0;
}

/* The third factor follows from the first two: level 1 only if both are 1. */
static int conjunction(const int8_t *level)
{
	return level[2] == 1 && (level[0] == 0 || level[1] == 0);
}

/* No row may contain level 0 of the first factor, but this shows only when the last factor is chosen. */
static int dead_end(const int8_t *level)
{
	return level[0] == 0 && level[3] >= 0;
}

static void rows_cover_all_pairs(struct cairn_test *t)
{
	static struct cairn_pairs many = { .num_factors = 12,
					   .levels = { 3, 2, 2, 2, 4, 2, 2, 5, 2, 3, 2, 2 } };
	static struct cairn_pairs two = { .num_factors = 2, .levels = { 4, 3 } };
	static struct cairn_pairs one_level = { .num_factors = 3, .levels = { 2, 1, 2 } };

	/* 20 is the least possible number: 5 times 4 pairs of levels */
	cairn_pairs_check(t, &many, 21);
	cairn_pairs_check(t, &two, 12);
	cairn_pairs_check(t, &one_level, 4);
}

static void rows_are_not_forbidden(struct cairn_test *t)
{
	static struct cairn_pairs a = { .num_factors = 3, .levels = { 3, 2, 2 }, .forbidden = no_two_with_0 };
	static struct cairn_pairs b = { .num_factors = 4, .levels = { 2, 2, 2, 3 },
					.forbidden = conjunction };
	static struct cairn_pairs c = { .num_factors = 4, .levels = { 3, 2, 2, 2 }, .forbidden = dead_end };

	cairn_pairs_check(t, &a, 6);
	cairn_pairs_check(t, &b, 8);
	cairn_pairs_check(t, &c, 6);
	for (int i = 0; i < cairn_pairs_count(&c); i++)
		EXPECT(t, cairn_pairs_row(&c, i)[0] != 0);
}

/* The names of published cases depend on these rows. */
static void rows_never_change(struct cairn_test *t)
{
	static struct cairn_pairs p = { .num_factors = 4, .levels = { 3, 2, 2, 3 },
					.forbidden = no_two_with_0 };
	char text[128] = "";

	for (int i = 0; i < cairn_pairs_count(&p); i++)
		for (int f = 0; f < 5; f++)
			text[strlen(text)] = f == 4 ? ' ' : (char)('0' + cairn_pairs_row(&p, i)[f]);
	cairn_note(t, "%s", text);
	EXPECT(t, !strcmp(text, "0000 0111 1012 1100 2102 2110 0102 1001 2101 "));
}

struct drawn {
	int32_t rows;
	int64_t dim;
	float scale;
	unsigned flags;
	int double_rows;	/* set by allowed() */
};

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct drawn, rows, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct drawn, dim, 8, 4096, 8),
	CAIRN_DRAW_ONE_OF(struct drawn, scale, 0, 0.5f),
	CAIRN_DRAW_ONE_OF(struct drawn, flags, 0, 1, 2),
	CAIRN_DRAW_ONE_OF(struct drawn, flags, 0, 4),
};

static int at_most_a_million(void *shape, int room)
{
	struct drawn *s = shape;

	s->double_rows = 2 * s->rows;
	return s->rows * s->dim <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct drawn), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = at_most_a_million,
};

/* Sizes of all magnitudes are drawn, mostly where tiles end; a number always draws the same shape. */
static void drawn_sizes(struct cairn_test *t)
{
	int least = 0, large = 0, behind = 0, before = 0, costly = 0, flags[8] = { 0 }, good = 1;

	for (int i = 0; i < 4000; i++) {
		struct drawn s, again;

		cairn_draw_shape(&draws, i, &s);
		cairn_draw_shape(&draws, i, &again);
		good &= !memcmp(&s, &again, sizeof(s)) && s.double_rows == 2 * s.rows;
		good &= s.rows >= 1 && s.rows <= 5000 && s.dim >= 8 && s.dim <= 4096 && s.dim % 8 == 0 &&
			s.rows * s.dim <= 8000000 && (s.scale == 0 || s.scale == 0.5f) && s.flags < 7;
		least += s.rows == 1;
		large += s.rows > 2500;
		behind += s.rows % 64 == 1 && s.rows > 1 && s.dim % 64 == 8;
		before += s.rows % 64 == 63 && s.dim % 64 == 56;
		costly += s.rows * s.dim > 1000000;
		flags[s.flags & 7]++;
	}
	EXPECT(t, good);
	EXPECT(t, costly > 10 && costly < 4000 / 16);
	EXPECT(t, least > 200 && least < 1500 && large > 20 && behind > 20 && before > 5);
	for (int k = 0; k < 7; k++)
		EXPECT(t, (flags[k] > 200) == (k != 3));
}

static void drawn_numbers(struct cairn_test *t)
{
	EXPECT(t, cairn_draw_named("primitives.gemm.drawn_17_m3_n5_k8.exact") == 17);
	EXPECT(t, cairn_draw_named("*.drawn_17*") == 17);
	EXPECT(t, cairn_draw_named("primitives.gemm.drawn_*") == -1);
	EXPECT(t, cairn_draw_named("primitives.gemm.m3_n5_k8.exact") == -1);
	EXPECT(t, cairn_draw_first(1) == cairn_draw_first(1) && cairn_draw_first(1) != cairn_draw_first(2));
}

/* Every family names its drawn cases by number and sizes, and draws none that only some tables can run. */
static void drawn_names(struct cairn_test *t)
{
	int families = 0;

	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		families += (*f)->draw != NULL;
		for (int i = 0; (*f)->draw && i < 10; i++) {
			struct cairn_case c = { 0 };
			char start[32];

			cairn_draw_describe(*f, 1000 * i, &c);
			snprintf(start, sizeof(start), "drawn_%d_", 1000 * i);
			if (!EXPECT(t, !strncmp(c.name, start, strlen(start)) && !c.device_only && !c.far &&
				    !c.bench && c.kinds && !(c.kinds & (c.kinds - 1))))
				cairn_note(t, "%s.%s", (*f)->name, c.name);
		}
	}
	EXPECT(t, families >= 40);
}

static const struct cairn_unit units[] = {
	{ "rows_cover_all_pairs", rows_cover_all_pairs },
	{ "rows_are_not_forbidden", rows_are_not_forbidden },
	{ "rows_never_change", rows_never_change },
	{ "drawn_sizes", drawn_sizes },
	{ "drawn_numbers", drawn_numbers },
	{ "drawn_names", drawn_names },
};

const struct cairn_family cairn_pairs_family = {
	.stage = "conformance", .name = "pairs", .units = units, .num_units = ARRAY_SIZE(units),
};
