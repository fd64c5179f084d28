// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_w4_pack_test - packs checkpoints of each kind, and reads the result back by a routine of this file
 *
 * The tests make a weight, write it in the layout of the checkpoint as its writers do, pack it, and compare
 * every element's code, scale and zero point with the weight. unpack() follows the text of gemm_w4_layout.h
 * from a lane and a code to the element, so that it shares no code with what it tests.
 */
#include "primitives/gemm/w4/gemm_w4_pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

/* A weight, an element or scale per array element, and what is packed of it. The arrays follow each other. */
struct weight {
	int n, k, group, groups, bytes;		/* bytes: of a scale */
	uint8_t *codes, *zeros, *back, *back_zeros;
	uint16_t *scales, *back_scales;
	uint8_t *stored_codes, *stored_zeros, *stored_scales;
	uint8_t *b, *b_scale;
	int32_t *g_idx;
};

static void *room(size_t count)
{
	return calloc(count + 16, 1);
}

static void open_weight(struct cairn_test *t, struct weight *w, int n, int k, int group, int bytes)
{
	size_t nk = (size_t)n * (size_t)k, cells;

	*w = (struct weight){ .n = n, .k = k, .group = group, .groups = group ? (k + group - 1) / group : 1,
			      .bytes = bytes };
	cells = (size_t)n * (size_t)w->groups;
	w->codes = room(nk);
	w->back = room(nk);
	w->zeros = room(cells);
	w->back_zeros = room(cells);
	w->scales = room(2 * cells);
	w->back_scales = room(2 * cells);
	w->stored_codes = room(nk / 2);
	w->stored_zeros = room(cells);
	w->stored_scales = room(2 * cells);
	w->g_idx = room(4 * (size_t)k);
	w->b = room((size_t)cairn_w4_code_bytes(n, k));
	w->b_scale = room((size_t)cairn_w4_scale_bytes(CAIRN_W4_INT, n, k, group));
	for (size_t i = 0; i < nk; i++)
		w->codes[i] = cairn_rand(t) & 15;
	for (size_t i = 0; i < cells; i++) {
		w->zeros[i] = cairn_rand(t) & 15;
		w->scales[i] = (uint16_t)(cairn_rand(t) & (bytes == 2 ? 0xffff : 0xff));
	}
}

static void close_weight(struct weight *w)
{
	free(w->codes);
	free(w->back);
	free(w->zeros);
	free(w->back_zeros);
	free(w->scales);
	free(w->back_scales);
	free(w->stored_codes);
	free(w->stored_zeros);
	free(w->stored_scales);
	free(w->g_idx);
	free(w->b);
	free(w->b_scale);
}

static struct cairn_w4_checkpoint checkpoint_of(const struct weight *w)
{
	return (struct cairn_w4_checkpoint){ .codes = w->stored_codes, .zeros = w->stored_zeros,
					     .scales = w->stored_scales, .n = w->n, .k = w->k,
					     .group = w->group };
}

/* Returns a code of a word; nibbles: of INT */
static int code_of(uint32_t v, int p, int nibbles)
{
	static const int bits[8][4] = {
		{ 0, 1, 2, 9 }, { 26, 27, 28, 3 }, { 4, 5, 6, 13 }, { 14, 7, 8, 15 },
		{ 16, 17, 18, 25 }, { 10, 11, 12, 19 }, { 20, 21, 22, 29 }, { 30, 23, 24, 31 },
	};
	int code = 0;

	for (int i = 0; i < 4; i++)
		code |= (int)(v >> (nibbles ? 4 * p + i : bits[p][i]) & 1) << i;
	return code;
}

/* Reads the packed weight back. Counts what lies at places of no element and is not 0. */
static int unpack(struct weight *w)
{
	int tiles = (w->k + 63) / 64, units = (w->n + 15) / 16, cell = w->bytes == 2 ? 48 : 16, bad = 0;
	const uint8_t *b = w->b;

	for (int unit = 0; unit < units; unit++)
		for (int tile = 0; tile < tiles; tile++)
			for (int lane = 0; lane < 32; lane++)
				for (int word = 0; word < 4; word++, b += 4) {
					uint32_t v = b[0] | b[1] << 8 | b[2] << 16 | (uint32_t)b[3] << 24;

					for (int p = 0; p < 8; p++) {
						int code = code_of(v, p, w->bytes == 2);
						int row = unit * 16 + lane / 4 + (p % 2 ? 8 : 0);
						int l = tile * 64 + word * 16 + lane % 4 * 2 + p / 4 +
							(p / 2 % 2 ? 8 : 0);

						if (row < w->n && l < w->k)
							w->back[row * w->k + l] = (uint8_t)code;
						else
							bad += code != 0;
					}
				}
	for (int unit = 0; unit < units; unit++)
		for (int nth = 0; nth < w->groups; nth++) {
			const uint8_t *at = w->b_scale + (unit * w->groups + nth) * cell;

			for (int r = 0; r < 16; r++) {
				int row = unit * 16 + r, place = r < 8 ? 2 * r : 2 * (r - 8) + 1;
				int s = w->bytes == 2 ? at[2 * place] | at[2 * place + 1] << 8 : at[place];
				int zero = w->bytes == 2 ? at[32 + place] : 0;

				if (row >= w->n) {
					bad += s || zero;
					continue;
				}
				w->back_scales[row * w->groups + nth] = (uint16_t)s;
				w->back_zeros[row * w->groups + nth] = (uint8_t)zero;
			}
		}
	return bad;
}

/* more: what is added to the zero points */
static void compare(struct cairn_test *t, struct weight *w, int more)
{
	int wrong[3] = { 0, 0, 0 };

	EXPECT(t, unpack(w) == 0);
	for (int i = 0; i < w->n * w->k; i++)
		wrong[0] += w->back[i] != w->codes[i];
	for (int i = 0; i < w->n * w->groups; i++) {
		wrong[1] += w->back_scales[i] != w->scales[i];
		wrong[2] += w->bytes == 2 && w->back_zeros[i] != w->zeros[i] + more;
	}
	if (!EXPECT(t, !wrong[0] && !wrong[1] && !wrong[2]))
		cairn_note(t, "n %d, k %d, group %d: %d codes, %d scales, %d zero points are wrong", w->n,
			   w->k, w->group, wrong[0], wrong[1], wrong[2]);
}

static void put(uint8_t *stored, size_t word, int place, int nibble)
{
	stored[word * 4 + (size_t)place / 2] |= (uint8_t)(nibble << place % 2 * 4);
}

/* AWQ's own loop: bits 4 i of the word of 8 columns get column order[i]. */
static void store_awq_row(const uint8_t *row, int stride, int n, uint8_t *stored, size_t first)
{
	static const int order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

	for (int col = 0; col < n / 8; col++)
		for (int i = 0; i < 8; i++)
			put(stored, first + (size_t)col, i, row[(col * 8 + order[i]) * stride]);
}

static void store_scales(struct weight *w)
{
	for (int j = 0; j < w->n; j++)
		for (int nth = 0; nth < w->groups; nth++)
			memcpy(w->stored_scales + 2 * (nth * w->n + j), w->scales + j * w->groups + nth, 2);
}

static void store_awq(struct weight *w)
{
	for (int l = 0; l < w->k; l++)
		store_awq_row(w->codes + l, w->k, w->n, w->stored_codes, (size_t)(l * (w->n / 8)));
	for (int nth = 0; nth < w->groups; nth++)
		store_awq_row(w->zeros + nth, w->groups, w->n, w->stored_zeros, (size_t)(nth * (w->n / 8)));
	store_scales(w);
}

static void store_gptq(struct weight *w)
{
	for (int j = 0; j < w->n; j++) {
		for (int l = 0; l < w->k; l++)
			put(w->stored_codes, (size_t)(l / 8 * w->n + j), l % 8, w->codes[j * w->k + l]);
		for (int nth = 0; nth < w->groups; nth++)
			put(w->stored_zeros, (size_t)(nth * (w->n / 8) + j / 8), j % 8,
			    w->zeros[j * w->groups + nth]);
	}
	store_scales(w);
}

static void store_fp4(struct weight *w)
{
	for (int i = 0; i < w->n * w->k; i++)
		w->stored_codes[i / 2] |= (uint8_t)(w->codes[i] << i % 2 * 4);
	for (int i = 0; i < w->n * w->groups; i++)
		w->stored_scales[i] = (uint8_t)w->scales[i];
}

/* Codes in rows as a pack of 8 along k; zero points as a pack of 8 rows. */
static void store_packed(struct weight *w)
{
	for (int j = 0; j < w->n; j++) {
		for (int l = 0; l < w->k; l++)
			put(w->stored_codes, (size_t)(j * (w->k / 8) + l / 8), l % 8, w->codes[j * w->k + l]);
		for (int nth = 0; nth < w->groups; nth++)
			put(w->stored_zeros, (size_t)(j / 8 * w->groups + nth), j % 8,
			    w->zeros[j * w->groups + nth]);
	}
	memcpy(w->stored_scales, w->scales, 2 * (size_t)(w->n * w->groups));
}

static const int shapes[][3] = {	/* n, k, group */
	{ 8, 32, 32 }, { 24, 160, 32 }, { 40, 192, 64 }, { 16, 224, 128 }, { 56, 96, 0 }, { 64, 256, 128 },
};

static void awq(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct cairn_w4_checkpoint c;
		struct weight w;

		open_weight(t, &w, shapes[i][0], shapes[i][1], shapes[i][2], 2);
		store_awq(&w);
		c = checkpoint_of(&w);
		EXPECT(t, cairn_w4_pack_awq(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 0);
		close_weight(&w);
	}
}

static void gptq(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct cairn_w4_checkpoint c;
		struct weight w;

		open_weight(t, &w, shapes[i][0], shapes[i][1], shapes[i][2], 2);
		store_gptq(&w);
		c = checkpoint_of(&w);
		EXPECT(t, cairn_w4_pack_gptq(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 1);
		c.zeros_as_they_are = 1;
		for (int l = 0; l < w.k; l++)
			w.g_idx[l] = w.group ? l / w.group : 0;
		c.g_idx = w.g_idx;
		EXPECT(t, cairn_w4_pack_gptq(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 0);
		close_weight(&w);
	}
}

static void packed(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct cairn_w4_checkpoint c;
		struct weight w;

		open_weight(t, &w, shapes[i][0], shapes[i][1], shapes[i][2], 2);
		store_packed(&w);
		c = checkpoint_of(&w);
		EXPECT(t, cairn_w4_pack_rows(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 0);
		memset(w.zeros, 8, (size_t)(w.n * w.groups));
		c.zeros = NULL;
		EXPECT(t, cairn_w4_pack_rows(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 0);
		close_weight(&w);
	}
}

static void mxfp4(struct cairn_test *t)
{
	static const int sizes[][2] = { { 1, 32 }, { 17, 96 }, { 40, 2880 } };

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct cairn_w4_checkpoint c;
		struct weight w;

		open_weight(t, &w, sizes[i][0], sizes[i][1], 32, 1);
		store_fp4(&w);
		c = checkpoint_of(&w);
		EXPECT(t, cairn_w4_pack_mxfp4(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 0);
		close_weight(&w);
	}
}

static void nvfp4(struct cairn_test *t)
{
	static const int sizes[][2] = { { 1, 32 }, { 33, 160 }, { 16, 64 } };

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct cairn_w4_checkpoint c;
		struct weight w;

		open_weight(t, &w, sizes[i][0], sizes[i][1], 16, 1);
		store_fp4(&w);
		c = checkpoint_of(&w);
		EXPECT(t, cairn_w4_pack_nvfp4(&c, w.b, w.b_scale) == 0);
		compare(t, &w, 0);
		close_weight(&w);
	}
}

static void refused(struct cairn_test *t, int got, int want, const char *text)
{
	EXPECT(t, got == want);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
}

static void bad_checkpoints(struct cairn_test *t)
{
	struct cairn_w4_checkpoint good, c;
	struct weight w;

	open_weight(t, &w, 16, 128, 32, 2);
	good = checkpoint_of(&w);
	for (int l = 0; l < w.k; l++)
		w.g_idx[l] = l / 32;
	w.g_idx[32] = 0;
	c = good;
	c.g_idx = w.g_idx;
	refused(t, cairn_w4_pack_gptq(&c, w.b, w.b_scale), -EOPNOTSUPP, "desc_act");
	c = good;
	c.n = 12;
	refused(t, cairn_w4_pack_awq(&c, w.b, w.b_scale), -EINVAL, "awq: n 12 is not a multiple of 8");
	c = good;
	c.k = 48;
	refused(t, cairn_w4_pack_gptq(&c, w.b, w.b_scale), -EOPNOTSUPP, "gptq: k 48 is not a multiple of 32");
	c = good;
	c.group = 256;
	refused(t, cairn_w4_pack_awq(&c, w.b, w.b_scale), -EOPNOTSUPP, "awq: groups of 256");
	refused(t, cairn_w4_pack_nvfp4(&good, w.b, w.b_scale), -EOPNOTSUPP, "nvfp4: groups of 32");
	c = good;
	c.zeros = NULL;
	refused(t, cairn_w4_pack_awq(&c, w.b, w.b_scale), -EINVAL, "awq: a tensor of the weight is missing");
	c = good;
	c.n = 0;
	refused(t, cairn_w4_pack_mxfp4(&c, w.b, w.b_scale), -EINVAL, "mxfp4: n 0");
	close_weight(&w);
}

static const struct cairn_unit units[] = {
	{ "awq", awq }, { "gptq", gptq }, { "packed", packed }, { "mxfp4", mxfp4 }, { "nvfp4", nvfp4 },
	{ "bad_checkpoints", bad_checkpoints },
};

const struct cairn_family cairn_gemm_w4_pack_family = {
	.stage = "primitives", .name = "gemm_w4_pack", .units = units, .num_units = ARRAY_SIZE(units),
};
