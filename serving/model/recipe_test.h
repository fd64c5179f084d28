/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_test - makes golden checkpoints whose weights are computed by the rule of tools/golden/golden.py
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

/* Returns the top bits of element i of a tensor whose name has the hash h. */
static inline int recipe_bits(uint64_t h, uint64_t i, int keep)
{
	uint64_t z = h + (i + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (int)((z ^ z >> 31) >> (64 - keep));
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
	/*
	 * codes, rows, tensor: e4m3, with factors of blocks, of rows, or one in all
	 * codes3, rows3, tensor3: the same, but bf16 does not represent the values, and the largest code does
	 * not occur, so that quantising the values gives other factors and codes
	 * awq64, gptq32, pack128, packz128: words of eight codes, with factors of groups of so many columns
	 * (0: of rows), and words of zero points, which pack128 lacks
	 * v16: NVFP4, bytes of two codes, e4m3 factors of 16 columns, and a factor of all, which differs only
	 * among matrices of experts
	 */
	char kind[12], name[96];
	int rows, cols, shift;		/* cols 0: a vector */
	int num;			/* many: bf16 [num, rows, cols]; four: MXFP4; otherwise 0 */
};

/* Reads a line. Returns 0 at the end of the file or at a malformed line. */
static inline int recipe_next(FILE *f, struct recipe_line *l)
{
	memset(l, 0, sizeof(*l));
	if (fscanf(f, " %11s %95s %d", l->kind, l->name, &l->rows) != 3)
		return 0;
	if (*l->kind == 'm' || *l->kind == 'f') {
		l->num = l->rows;
		return fscanf(f, " %d %d %d", &l->rows, &l->cols, &l->shift) == 3;
	}
	return !strcmp(l->kind, "norm") || fscanf(f, " %d %d", &l->cols, &l->shift) == 2;
}

/* Returns whether a line describes e4m3 with factors. */
static inline int recipe_is_e4m3(const struct recipe_line *l)
{
	return strchr("crt", *l->kind) != NULL;
}

/* Returns whether a line describes words of 4-bit codes. */
static inline int recipe_is_w4(const struct recipe_line *l)
{
	return strchr("agpv", *l->kind) != NULL;
}

static inline int recipe_group(const struct recipe_line *l)
{
	int group = atoi(l->kind + strcspn(l->kind, "0123456789"));

	return group ? group : l->cols;
}

/* A tensor that a line describes. */
struct recipe_tensor {
	char name[112], shape[48];
	const char *dtype;
	int rows, cols;
	size_t count, bytes;
};

static inline struct recipe_tensor recipe_stack(const struct recipe_line *l, int scales)
{
	const int is_four = *l->kind == 'f';
	struct recipe_tensor t = { .dtype = is_four ? "U8" : "BF16" };

	snprintf(t.name, sizeof(t.name), "%s%s", l->name, !is_four ? "" : scales ? "_scales" : "_blocks");
	snprintf(t.shape, sizeof(t.shape), is_four ? scales ? "%d,%d,%d" : "%d,%d,%d,16" : "%d,%d,%d", l->num,
		 l->rows, is_four ? l->cols / 32 : l->cols);
	t.count = (size_t)l->num * (size_t)l->rows * (size_t)l->cols / (is_four ? scales ? 32 : 2 : 1);
	t.bytes = t.count * (is_four ? 1 : 2);
	return t;
}

/* Returns how many tensors a line has: codes, factors, 4-bit zero points, and GPTQ's groups of columns. */
static inline int recipe_tensors(const struct recipe_line *l)
{
	if (recipe_is_w4(l))
		return *l->kind == 'g' ? 4 : l->kind[4] == 'z' || strchr("av", *l->kind) ? 3 : 2;
	return recipe_is_e4m3(l) || *l->kind == 'f' ? 2 : 1;	/* f: blocks and scales */
}

static inline struct recipe_tensor recipe_tensor_nvfp4(const struct recipe_line *l, int nth)
{
	static const char *const names[] = { "weight_packed", "weight_scale", "weight_global_scale" };
	static const char *const dtypes[] = { "U8", "F8_E4M3", "F32" };
	struct recipe_tensor t = { .dtype = dtypes[nth], .rows = nth < 2 ? l->rows : 1,
				   .cols = nth == 2 ? 0 : l->cols / (nth ? 16 : 2) };

	snprintf(t.name, sizeof(t.name), "%.*s%s", (int)(strlen(l->name) - strlen("weight")), l->name,
		 names[nth]);
	t.count = (size_t)(t.rows * (t.cols ? t.cols : 1));
	t.bytes = t.count * (nth < 2 ? 1 : 4);
	snprintf(t.shape, sizeof(t.shape), t.cols ? "%d,%d" : "%d", t.rows, t.cols);
	return t;
}

static inline struct recipe_tensor recipe_tensor_w4(const struct recipe_line *l, int nth)
{
	static const char *const names[][4] = {
		{ "qweight", "scales", "qzeros", "g_idx" },
		{ "weight_packed", "weight_scale", "weight_zero_point", NULL },
	};
	const int pack = *l->kind == 'p', groups = l->cols / recipe_group(l);
	const int code_rows = *l->kind == 'a' ? 8 : 1;		/* rows of codes in a word */
	int n = nth == 0 ? l->rows / code_rows : nth == 1 ? l->rows : l->rows / 8;
	int k = nth == 0 ? l->cols / (8 / code_rows) : groups;
	struct recipe_tensor t = { .dtype = nth == 1 ? pack ? "BF16" : "F16" : "I32" };

	snprintf(t.name, sizeof(t.name), "%.*s%s", (int)(strlen(l->name) - strlen("weight")), l->name,
		 names[pack][nth]);
	t.rows = nth == 3 ? l->cols : pack ? n : k;
	t.cols = nth == 3 ? 0 : pack ? k : n;
	t.count = (size_t)(t.rows * (t.cols ? t.cols : 1));
	t.bytes = t.count * (nth == 1 ? 2 : 4);
	snprintf(t.shape, sizeof(t.shape), t.cols ? "%d,%d" : "%d", t.rows, t.cols);
	return t;
}

static inline struct recipe_tensor recipe_tensor(const struct recipe_line *l, int factors)
{
	int codes = recipe_is_e4m3(l);
	struct recipe_tensor t;

	if (*l->kind == 'v')
		return recipe_tensor_nvfp4(l, factors);
	if (recipe_is_w4(l))
		return recipe_tensor_w4(l, factors);
	t = (struct recipe_tensor){ .dtype = codes ? "F8_E4M3" : "BF16" };
	if (*l->kind == 's' || factors)
		t.dtype = "F32";

	if (l->num)
		return recipe_stack(l, factors);
	snprintf(t.name, sizeof(t.name), "%s%s", l->name,
		 !factors ? "" : *l->kind == 'c' ? "_scale_inv" : "_scale");
	t.rows = !factors || *l->kind == 'r' ? l->rows : *l->kind == 't' ? 1 : (l->rows + 127) / 128;
	t.cols = !factors ? l->cols : *l->kind == 'r' ? 1 : *l->kind == 't' ? 0 : (l->cols + 127) / 128;
	t.count = (size_t)(t.rows * (t.cols ? t.cols : 1));
	t.bytes = t.count * (strcmp(t.dtype, "F32") ? codes ? 1 : 2 : 4);
	snprintf(t.shape, sizeof(t.shape), t.cols ? "%d,%d" : "%d", t.rows, t.cols);
	return t;
}

/* Returns the bytes of a line's tensors in the file. */
static inline size_t recipe_bytes(const struct recipe_line *l)
{
	size_t bytes = 0;

	for (int nth = 0; nth < recipe_tensors(l); nth++)
		bytes += recipe_tensor(l, nth).bytes;
	return bytes;
}

static inline void recipe_fill_w4(const struct recipe_line *l, const struct recipe_tensor *t, int nth,
				  int seed, char *to)
{
	uint64_t h = recipe_hash(seed, t->name);
	const int apart = strstr(l->name, ".experts.") ? recipe_bits(h, 0, 2) : 0;
	const float whole = (float)(5 << l->shift) / (float)(4 << 2 * apart);

	for (size_t i = 0; i < t->count && *l->kind == 'v'; i++)
		if (nth == 2)
			memcpy(to, &whole, sizeof(whole));
		else	/* codes; or factors from 1 to 8 with all mantissas */
			to[i] = (char)(nth ? 0x38 + recipe_bits(h, i, 4) : recipe_bits(h, i, 8));
	for (size_t i = 0; i < t->count && *l->kind != 'v'; i++) {
		uint32_t word = nth == 3 ? (uint32_t)i / (uint32_t)recipe_group(l) :
				(uint32_t)recipe_bits(h, i, 32);

		if (nth == 1)
			cairn_store(to, *l->kind == 'p' ? CAIRN_BF16 : CAIRN_F16, (int64_t)i,
				    (8 + recipe_bits(h, i, 3)) / (double)(1 << l->shift));
		else
			memcpy(to + 4 * i, &word, sizeof(word));
	}
}

static inline double recipe_value(const struct recipe_line *l, uint64_t h, size_t i)
{
	const int bits = recipe_bits(h, i, 7);

	return *l->kind == 'n' ? 0.5 + bits / 128.0 : (2 * bits - 127) / (double)(1 << l->shift);
}

static inline void recipe_fill_u8(const struct recipe_line *l, const struct recipe_tensor *t, uint64_t h,
				  char *to)
{
	const int is_scale = strstr(t->name, "_scales") != NULL;

	for (size_t i = 0; i < t->count; i++)
		to[i] = (char)(is_scale ? 127 - l->shift + recipe_bits(h, i, 2) : recipe_bits(h, i, 8));
}

static inline void recipe_fill(const struct recipe_line *l, const struct recipe_tensor *t, int seed, char *to)
{
	const int inexact = l->kind[strlen(l->kind) - 1] == '3', codes = recipe_is_e4m3(l);
	const int is_float = !strcmp(t->dtype, "F32"), most = inexact ? 125 : 126;
	const uint64_t h = recipe_hash(seed, t->name);

	if (!strcmp(t->dtype, "U8")) {
		recipe_fill_u8(l, t, h, to);
		return;
	}
	for (size_t i = 0; i < t->count; i++) {
		if (is_float) {
			float f32 = codes ? (float)(8 + recipe_bits(h, i, 3)) / (float)(1 << l->shift) /
					    (inexact ? 3 : 1) : (float)recipe_value(l, h, i);

			memcpy(to + 4 * i, &f32, sizeof(f32));
		} else if (codes) {
			const int code = recipe_bits(h, i, 8);

			to[i] = (char)((code & 127) > most ? (code & 128) + most : code);
		} else {
			cairn_store(to, CAIRN_BF16, (int64_t)i, recipe_value(l, h, i));
		}
	}
}

/* Writes model.safetensors, in bf16, f32, e4m3 and 4 bits, to the test's directory. */
static inline int recipe_weights(struct cairn_test *t, const char *recipe)
{
	size_t begin = 0, room = RECIPE_HEADER;
	char path[PATH_MAX], *file, *json;
	FILE *f = fopen(recipe, "r");
	struct recipe_line l;
	int seed, at = 0;

	if (!EXPECT(t, f && fscanf(f, "seed %d", &seed) == 1))
		return -1;
	while (recipe_next(f, &l))
		room += recipe_bytes(&l);
	file = calloc(1, 8 + room);
	json = file + 8;
	memset(json, ' ', RECIPE_HEADER);
	rewind(f);
	EXPECT(t, fscanf(f, "seed %d", &seed) == 1);
	while (recipe_next(f, &l)) {
		for (int nth = 0; nth < recipe_tensors(&l); nth++) {
			struct recipe_tensor x = recipe_tensor(&l, nth);

			at += snprintf(json + at, RECIPE_HEADER - (size_t)at, "%c\"%s\":{\"dtype\":\"%s\","
				       "\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", at ? ',' : '{', x.name,
				       x.dtype, x.shape, begin, begin + x.bytes);
			if (recipe_is_w4(&l))
				recipe_fill_w4(&l, &x, nth, seed, json + RECIPE_HEADER + begin);
			else
				recipe_fill(&l, &x, seed, json + RECIPE_HEADER + begin);
			begin += x.bytes;
		}
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

/* Two strings: makes the config of a checkpoint in bf16 announce that its matrices are stored in 4 bits. */
#define RECIPE_STORED(type, method) \
	"\"model_type\": \"" type "\"", \
	"\"model_type\": \"" type "\", \"quantization_config\": {\"bits\": 4, " method "}"
#define RECIPE_NVFP4 \
	"\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\", " \
	"\"config_groups\": {\"a\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, " \
	"\"type\": \"float\", \"strategy\": \"tensor_group\", \"group_size\": 16}}}"

/*
 * Makes the weights of a golden checkpoint, which open_golden() has just opened, with another kind of
 * matrices. inter: replaces 64 as the size of experts, unless it is 0
 */
static inline int recipe_as(struct cairn_test *t, const char *golden, const char *kind, int inter)
{
	char path[PATH_MAX + 64], line[256], name[96];
	int size[3];
	FILE *from, *to;

	snprintf(path, sizeof(path), "%s/serving/golden/%s/recipe.txt", cairn_data_dir(), golden);
	from = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "changed_kind.txt", "", 0);
	to = fopen(path, "w");
	if (!EXPECT(t, from && to))
		return -1;
	while (fgets(line, sizeof(line), from)) {
		const char *end = strstr(line, ".weight ");
		int is_matrix = end && (strstr(line, "_proj.weight ") || end[-2] == 'w');

		if (!is_matrix || sscanf(line, "%*s %95s %d %d %d", name, size, size + 1, size + 2) != 4) {
			fputs(line, to);
			continue;
		}
		for (int i = 0; i < 2 && inter && strstr(name, ".experts."); i++)
			size[i] = size[i] == 64 ? inter : size[i];
		fprintf(to, "%s %s %d %d %d\n", kind, name, size[0], size[1], size[2]);
	}
	fclose(from);
	fclose(to);
	return recipe_weights(t, path);
}

#endif
