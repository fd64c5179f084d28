// SPDX-License-Identifier: Apache-2.0
/* pairs_test - tests that the rows of pairs.c are complete, few, allowed, and never change */
#include <string.h>

#include "conformance/harness.h"
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

static const struct cairn_unit units[] = {
	{ "rows_cover_all_pairs", rows_cover_all_pairs },
	{ "rows_are_not_forbidden", rows_are_not_forbidden },
	{ "rows_never_change", rows_never_change },
};

const struct cairn_family cairn_pairs_family = {
	.stage = "conformance", .name = "pairs", .units = units, .num_units = ARRAY_SIZE(units),
};
