/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_test - golden checkpoints with computed weights; tools/golden.py has the same rule
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RECIPE_TEST_H
#define CAIRN_RECIPE_TEST_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/dtype.h"

#define RECIPE_HEADER	((size_t)1 << 15)	/* bytes of the JSON header */

/* Returns the top seven bits of element i of a tensor whose name has the hash h. */
static inline int recipe_bits(uint64_t h, uint64_t i)
{
	uint64_t z = h + (i + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (int)((z ^ z >> 31) >> 57);
}

static inline uint64_t recipe_hash(int seed, const char *name)
{
	uint64_t h = 0xcbf29ce484222325u;
	char text[128];

	snprintf(text, sizeof(text), "%d/%s", seed, name);
	for (const char *c = text; *c; c++)
		h = (h ^ (uint8_t)*c) * 0x100000001b3u;
	return h;
}

struct recipe_line {
	char kind[8], name[96];
	int rows, cols, shift;		/* cols 0: a vector */
};

/* Reads a line. Returns 0 at the end of the file or at a malformed line. */
static inline int recipe_next(FILE *f, struct recipe_line *l)
{
	memset(l, 0, sizeof(*l));
	if (fscanf(f, " %7s %95s %d", l->kind, l->name, &l->rows) != 3)
		return 0;
	return !strcmp(l->kind, "norm") || fscanf(f, " %d %d", &l->cols, &l->shift) == 2;
}

/* Writes model.safetensors, in bf16, to the test's directory. */
static inline int recipe_weights(struct cairn_test *t, const char *recipe)
{
	size_t begin = 0, room = RECIPE_HEADER, n;
	char path[PATH_MAX], *file, *json;
	FILE *f = fopen(recipe, "r");
	struct recipe_line l;
	int seed, at = 0;

	if (!EXPECT(t, f && fscanf(f, "seed %d", &seed) == 1))
		return -1;
	while (recipe_next(f, &l))
		room += 2 * (size_t)(l.rows * (l.cols ? l.cols : 1));
	file = calloc(1, 8 + room);
	json = file + 8;
	memset(json, ' ', RECIPE_HEADER);
	rewind(f);
	EXPECT(t, fscanf(f, "seed %d", &seed) == 1);
	while (recipe_next(f, &l)) {
		uint64_t h = recipe_hash(seed, l.name);
		char shape[32];

		n = (size_t)(l.rows * (l.cols ? l.cols : 1));
		snprintf(shape, sizeof(shape), l.cols ? "%d,%d" : "%d", l.rows, l.cols);
		at += snprintf(json + at, RECIPE_HEADER - (size_t)at,
			       "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
			       at ? ',' : '{', l.name, shape, begin, begin + 2 * n);
		for (size_t i = 0; i < n; i++) {
			int bits = recipe_bits(h, i);
			double v = *l.kind == 'n' ? 0.5 + bits / 128.0 :
				   (2 * bits - 127) / (double)(1 << l.shift);

			cairn_store(json + RECIPE_HEADER + begin, CAIRN_BF16, (int64_t)i, v);
		}
		begin += 2 * n;
	}
	fclose(f);
	json[at++] = '}';
	json[at] = ' ';
	memcpy(file, &(uint64_t){ RECIPE_HEADER }, 8);
	snprintf(path, sizeof(path), "%s/model.safetensors", cairn_tmpdir(t));
	unlink(path);		/* may be a link to another checkpoint's file */
	cairn_tmpfile(t, path, sizeof(path), "model.safetensors", file, 8 + RECIPE_HEADER + begin);
	free(file);
	return EXPECT(t, at < (int)RECIPE_HEADER && begin + RECIPE_HEADER == room) ? 0 : -1;
}

#endif
