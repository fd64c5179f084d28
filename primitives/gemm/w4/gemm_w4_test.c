// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_w4_test - cases of gemm_w4.h
 *
 * Every small shape runs with all formats and sizes of groups; types, bias, `scale` and sms change from case
 * to case, and the pair cases combine them with rows, columns and k. Both include columns that do not fill 16
 * rows of b, and k that ends within a tile or a group. Codes are random, even those that belong to no
 * element, and scales that belong to no element are NaN. EXACT has scales that are powers of two. POISON has
 * NaN in some rows of a, some elements of bias and some scales. The cases range_* have the smallest and the
 * largest scale of MXFP4. The cases rows_* have rows of a of magnitudes that span the range of
 * bf16, and infinity. Bench rows are the projections of Llama 3 8B.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/w4/gemm_w4_value.h"
#include "primitives/gemm/w4/gemm_w4_widen.h"

#define FIELD(f)	offsetof(struct cairn_gemm_w4_args, f)

static const struct form {
	const char *name;
	int32_t format, group;
} forms[] = {
	{ "int_g128", CAIRN_W4_INT, 128 }, { "mx", CAIRN_W4_MX, 32 }, { "nv", CAIRN_W4_NV, 16 },
	{ "int_g32", CAIRN_W4_INT, 32 }, { "int_g64", CAIRN_W4_INT, 64 }, { "int_g0", CAIRN_W4_INT, 0 },
};

#define NUM_FORMS	((int)ARRAY_SIZE(forms))

/*
 * Rows of a in the cases rows_*. The largest magnitude of BELOW is the last one before 2^27, that of AT 2^27.
 */
enum { LARGE, MIXED, ZERO, SMALL, INFINITE, BELOW, AT, NUM_KINDS };

static const struct {
	const char *name;
	int32_t m, kinds[5];
} row_sets[] = {
	{ "rows_of_all_sizes", 5, { LARGE, MIXED, ZERO, SMALL, INFINITE } },
	{ "rows_large_small", 2, { LARGE, SMALL } }, { "rows_infinite", 1, { INFINITE } },
	{ "rows_mixed_zero", 2, { MIXED, ZERO } }, { "rows_to_2_27", 2, { BELOW, AT } },
};

struct shape {
	int32_t m, n, k, form;
	int32_t dtype, out_dtype, bias, sms;
	float scale;
};

static const int32_t types[][2] = { { CAIRN_BF16, CAIRN_BF16 }, { CAIRN_F16, CAIRN_F16 },
				    { CAIRN_BF16, CAIRN_F32 }, { CAIRN_F16, CAIRN_F32 } };

/* m, n, k; each with all forms */
static const int32_t small[][3] = {
	{ 1, 1, 32 }, { 1, 40, 4192 }, { 2, 17, 96 }, { 3, 130, 160 }, { 5, 16, 1056 }, { 8, 33, 224 },
	{ 9, 65, 64 }, { 17, 129, 288 }, { 33, 24, 416 }, { 65, 136, 96 },
};
static const int32_t on_device[][3] = {
	{ 1, 300, 14336 }, { 8, 5000, 14336 }, { 4, 2200, 2880 }, { 7, 5000, 4096 }, { 16, 500, 2048 },
	{ 31, 257, 4128 }, { 64, 258, 4096 }, { 100, 1000, 1056 }, { 128, 514, 1952 }, { 200, 6000, 160 },
	{ 257, 300, 2880 }, { 513, 520, 1184 }, { 257, 4100, 544 }, { 1030, 1031, 2880 }, { 513, 2055, 96 },
};
/* the first NUM_ALL also with MXFP4, NVFP4 and groups of 32 */
static const int32_t bench[][3] = {
	{ 1, 4096, 14336 }, { 1, 28672, 4096 }, { 1, 14336, 4096 }, { 8, 28672, 4096 }, { 64, 28672, 4096 },
	{ 1, 4096, 4096 }, { 1, 6144, 4096 }, { 4, 4096, 14336 }, { 8, 4096, 14336 },
	{ 16, 28672, 4096 }, { 16, 4096, 14336 }, { 32, 28672, 4096 }, { 64, 4096, 14336 },
	{ 128, 28672, 4096 }, { 256, 28672, 4096 }, { 2048, 28672, 4096 },
	{ 512, 28672, 4096 }, { 1024, 28672, 4096 },
};

#define NUM_ALL		5
#define FIRST_DEVICE	((int)ARRAY_SIZE(small) * NUM_FORMS)
#define FIRST_BENCH	(FIRST_DEVICE + (int)ARRAY_SIZE(on_device) * NUM_FORMS)
#define FIRST_OTHERS	(FIRST_BENCH + (int)ARRAY_SIZE(bench))
#define FIRST_PAIR	(FIRST_OTHERS + 3 * NUM_ALL)
#define NUM_PAIRS	36
#define FAR_CASE	(FIRST_PAIR + NUM_PAIRS)
#define FIRST_RANGE	(FAR_CASE + 1)
#define FIRST_ROWS	(FIRST_RANGE + 4)
#define FIRST_ZERO	(FIRST_ROWS + 2 * (int)ARRAY_SIZE(row_sets))
#define FIRST_ENDS	(FIRST_ZERO + 2)
#define NUM_ENDS	121
#define FIRST_LONG	(FIRST_ENDS + NUM_ENDS)
#define NUM_LONG	36
#define NUM_CASES	(FIRST_LONG + NUM_LONG)

static const int32_t pair_m[] = { 1, 2, 7, 8, 9, 33 }, pair_n[] = { 1, 15, 40, 129 };
static const int32_t pair_k[] = { 32, 64, 160, 288 }, pair_sms[] = { 0, 2 };
static struct cairn_pairs pairs = { .num_factors = 7, .levels = { 6, 4, 2, 6, 4, 4, 2 } };

/* ends of tiles (ends.h) */
static const int32_t ends_k[] = { 32, 64, 96, 192, 288 };
static struct cairn_pairs ends = {
	.num_factors = 5, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 5, 12, 4 },
};

/* sums of many stages */
static const int32_t long_k[] = { 544, 1056, 2080, 4128 }, long_n[] = { 1, 25, 33 };
static struct cairn_pairs longs = { .num_factors = 5, .levels = { CAIRN_FEW_ENDS, 6, 4, 4, 3 } };

/* Codes of more than 2^32 bytes */
#define FAR_UNITS	((1 << 15) + 4)

/* The i-th case of n shapes with a few forms each; types, bias and scale change with i. */
static struct shape listed(const int32_t shape[3], int form, int i)
{
	struct shape s = { shape[0], shape[1], shape[2], form, .bias = i % 3 == 1 };

	s.sms = i % 11 == 7 ? 3 : 0;
	s.dtype = types[(i + i / 4) % 4][0];
	s.out_dtype = types[(i + i / 4) % 4][1];
	s.scale = forms[form].format == CAIRN_W4_NV || i % 4 == 2 ? 2 : 1;
	return s;
}

static struct shape benched(const int32_t shape[3], int form)
{
	return (struct shape){ shape[0], shape[1], shape[2], form, CAIRN_BF16, CAIRN_BF16, .scale = 1 };
}

static struct shape pair_of(int i)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	return (struct shape){ pair_m[level[3]], pair_n[level[4]], pair_k[level[5]], level[0],
			       types[level[1]][0], types[level[1]][1], level[2], pair_sms[level[6]],
			       .scale = forms[level[0]].format == CAIRN_W4_NV ? 0.5f : level[2] ? -2 : 1 };
}

static struct shape ends_of(int i)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	return (struct shape){ cairn_ends[level[0]], cairn_ends[level[1]], ends_k[level[2]], level[3] / 2,
			       types[level[4]][0], types[level[4]][1], level[3] % 2, 0,
			       .scale = forms[level[3] / 2].format == CAIRN_W4_NV ? 2 : 1 };
}

static struct shape long_of(int i)
{
	const int8_t *level = cairn_pairs_row(&longs, i);

	return (struct shape){ cairn_ends[level[0]], long_n[level[4]], long_k[level[2]], level[1],
			       types[level[3]][0], types[level[3]][1], i % 2, 0,
			       .scale = forms[level[1]].format == CAIRN_W4_NV ? 2 : 1 };
}

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, m, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct shape, n, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, k, 32, 30000, 32),
	CAIRN_DRAW_ONE_OF(struct shape, form, 0, 1, 2, 3, 4, 5),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct shape, out_dtype, CAIRN_F32, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct shape, bias, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 0, 1, 2, 3, 24, 64),
	CAIRN_DRAW_ONE_OF(struct shape, scale, 1, 2, 0.5f, -2),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	if (s->out_dtype != CAIRN_F32)
		s->out_dtype = s->dtype;
	return (int64_t)s->m * s->n * s->k <= room * (1 << 22) && (int64_t)s->m * s->n <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 4100,
};

static struct shape shape_of(int i)
{
	struct shape s;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_LONG)
		return long_of(i - FIRST_LONG);
	if (i >= FIRST_ENDS)
		return ends_of(i - FIRST_ENDS);
	if (i >= FIRST_ZERO)		/* a scale of 0 for the tensor */
		return (struct shape){ i == FIRST_ZERO ? 3 : 33, 35, 96, (i - FIRST_ZERO) * 2, CAIRN_BF16,
				       CAIRN_BF16, .bias = 1 };
	if (i >= FIRST_ROWS)
		return (struct shape){ row_sets[(i - FIRST_ROWS) / 2].m, 35, 416, 1 + (i - FIRST_ROWS) % 2,
				       CAIRN_BF16, CAIRN_F32, .scale = 1 };
	if (i >= FIRST_RANGE)
		return (struct shape){ 3, 35, 96, 1, i % 2 ? CAIRN_BF16 : CAIRN_F16, CAIRN_F32, .scale = 1 };
	if (i == FAR_CASE)
		return benched((const int32_t[]){ 1, FAR_UNITS * CAIRN_W4_ROWS, 16384 }, 0);
	if (i >= FIRST_PAIR)
		return pair_of(i - FIRST_PAIR);
	if (i >= FIRST_OTHERS)
		return benched(bench[(i - FIRST_OTHERS) / 3], 1 + (i - FIRST_OTHERS) % 3);
	if (i >= FIRST_BENCH)
		return benched(bench[i - FIRST_BENCH], 0);
	if (i >= FIRST_DEVICE)
		return listed(on_device[(i - FIRST_DEVICE) / NUM_FORMS], (i - FIRST_DEVICE) % NUM_FORMS, i);
	return listed(small[i / NUM_FORMS], i % NUM_FORMS, i);
}

static int is_range(int i)
{
	return i >= FIRST_RANGE && i < FIRST_ROWS;
}

static int has_rows(int i)
{
	return i >= FIRST_ROWS && i < FIRST_ZERO;
}

static int is_huge(int i)
{
	return (i - FIRST_RANGE) / 2;
}

static void describe(int i, struct cairn_case *c)
{
	const struct shape s = shape_of(i);
	const struct form *f = forms + s.form;
	int is_pair = i >= FIRST_PAIR && i < FAR_CASE, is_bench = i >= FIRST_BENCH && i < FIRST_PAIR;

	snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_%s_%s%s%s",
		 is_pair ? "pair_" : i >= FIRST_LONG ? "long_" : i >= FIRST_ENDS ? "ends_" : "",
		 s.m, s.n, s.k, f->name,
		 cairn_dtype_name(s.dtype), s.out_dtype != s.dtype ? "_to_f32" : "", s.bias ? "_bias" : "");
	if (s.sms)
		snprintf(c->name + strlen(c->name), sizeof(c->name) - strlen(c->name), "_sms%d", s.sms);
	if (i >= FIRST_ZERO && i < FIRST_ENDS)
		snprintf(c->name, sizeof(c->name), "scale0_%s_bf16_bias", f->name);
	else if (has_rows(i))
		snprintf(c->name, sizeof(c->name), "%s_%s", row_sets[(i - FIRST_ROWS) / 2].name, f->name);
	else if (is_range(i))
		snprintf(c->name, sizeof(c->name), "range_mx_%s_%s", is_huge(i) ? "huge" : "tiny",
			 cairn_dtype_name(s.dtype));
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (i < FIRST_DEVICE || is_pair)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	if (is_pair)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (i >= FIRST_ENDS)
		c->kinds = i < NUM_CASES ? CAIRN_KIND_BIT(CAIRN_KIND_EXACT) : CAIRN_ALL_KINDS;
	c->far = i == FAR_CASE;
	c->bench = is_bench;
	c->device_only = is_bench || c->far || (i >= FIRST_DEVICE && i < FIRST_BENCH);
	c->bytes = (double)cairn_w4_code_bytes(s.n, s.k) +
		   (double)cairn_w4_scale_bytes(f->format, s.n, s.k, f->group) +
		   2.0 * ((double)s.m * s.k + s.bias * (double)s.n) +
		   (double)s.m * s.n * (double)cairn_dtype_bytes(s.out_dtype);
	c->flops = 2.0 * s.m * s.n * s.k;
}

/* EXTREME: any byte, often zeros of either sign, and the largest values. */
static uint8_t some_codes(struct cairn_op *op)
{
	uint64_t r = cairn_op_rand(op);

	if (op->kind == CAIRN_KIND_EXTREME && r >> 20 & 1)
		return (uint8_t[]){ 0x00, 0x80, 0x08, 0x77, 0xff, 0xf7, 0x01, 0x90 }[r >> 30 & 7];
	return (uint8_t)r;
}

/* Writes a scale to its place in a cell, and a zero point. is_nan: a NaN instead */
static void fill_place(struct cairn_op *op, const struct form *f, uint8_t *cell, int64_t at, int is_nan)
{
	int exact = op->kind == CAIRN_KIND_EXACT, power = (int)cairn_op_range(op, -1, 1);
	uint64_t r = cairn_op_rand(op);
	int negative = r % 5 == 3;
	double v = exact ? ldexp(1, power) : 0.0005 + 1e-6 * (double)(r >> 20 & 1023);

	if (f->format == CAIRN_W4_MX) {
		cell[at] = is_nan ? 255 : (uint8_t)(exact ? 127 + power : 114 + (int)(r >> 20 & 7));
	} else if (f->format == CAIRN_W4_NV) {
		cell[at] = exact ? cairn_float_to_e4m3((float)v) : (uint8_t)((r >> 20) % 0x7f);
		cell[at] = is_nan ? 0x7f : cell[at] | (uint8_t)(negative << 7);
	} else {
		cairn_store(cell, CAIRN_F16, at, is_nan ? (double)NAN : negative ? -v : v);
		cell[2 * CAIRN_W4_ROWS + at] = (uint8_t)((r >> 40) % 17);
	}
}

static void fill_cells(struct cairn_op *op, const struct cairn_gemm_w4_args *g, const struct form *f,
		       uint8_t *cells)
{
	int32_t groups = cairn_w4_groups(g->k, g->group);

	for (int64_t j = 0; j < (int64_t)cairn_w4_units(g->n) * CAIRN_W4_ROWS; j++)
		for (int64_t nth = 0; nth < groups; nth++) {
			int poisoned = op->kind == CAIRN_KIND_POISON && j % 9 == 4 && nth == j % groups;
			uint8_t *cell = cells + cairn_w4_cell(g->format, g->k, g->group, j, nth);

			fill_place(op, f, cell, cairn_w4_place(j), j >= g->n || poisoned);
			if (is_range(op->case_index) && j < g->n && j % 3)
				cell[cairn_w4_place(j)] =
					(uint8_t)(is_huge(op->case_index) ? 255 - j % 3 : j % 3 - 1);
		}
}

/* NaN in about one of four rows of a [rows, k] */
static void poison(struct cairn_op *op, void *p, int dtype, int64_t rows, int64_t k)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		cairn_fill_nan(p, dtype, i * k + cairn_op_range(op, 0, k - 1), 1);
}

/* Units of b past 2^32 bytes */
static void setup_far(struct cairn_op *op, const struct cairn_gemm_w4_args *g, const struct form *f)
{
	int64_t codes = (int64_t)cairn_w4_tiles(g->k) * CAIRN_W4_TILE_BYTES;
	int64_t bytes = cairn_w4_cell_bytes(g->format), cells = cairn_w4_groups(g->k, g->group) * bytes;
	void *a = cairn_in(op, FIELD(a), g->dtype, g->k);
	uint8_t *b = cairn_in_rows(op, FIELD(b), CAIRN_U8, FAR_UNITS, codes, 0);
	uint8_t *scale = cairn_in_rows(op, FIELD(b_scale), CAIRN_U8, FAR_UNITS, cells, 0);
	int32_t unit;

	cairn_out_rows(op, FIELD(out), g->out_dtype, FAR_UNITS, CAIRN_W4_ROWS);
	cairn_fill(op, a, g->dtype, g->k, 1);
	for (int i = 0; (unit = cairn_far_row(FAR_UNITS, i)) >= 0; i++) {
		for (int64_t at = 0; at < codes; at++)
			b[unit * codes + at] = some_codes(op);
		for (int64_t at = 0; at < cells; at += bytes)
			for (int r = 0; r < CAIRN_W4_ROWS; r++)
				fill_place(op, f, scale + unit * cells + at, r, 0);
	}
}

/* For the cases range_*: magnitudes at which the sums are in range, but the scaled codes of `huge` are not */
static void fill_range(struct cairn_op *op, const struct cairn_gemm_w4_args *g, void *a)
{
	int exponent = g->dtype == CAIRN_F16 ? 14 : 100;

	for (int64_t i = 0; i < (int64_t)g->m * g->k; i++)
		cairn_store(a, g->dtype, i, ldexp((double)cairn_op_range(op, -255, 255) / 256,
						  is_huge(op->case_index) ? -14 : exponent));
}

/* For the cases rows_* */
static void fill_rows(struct cairn_op *op, const struct cairn_gemm_w4_args *g, void *a)
{
	static const double largest[NUM_KINDS] = { [MIXED] = 0x1.8p110, [INFINITE] = INFINITY,
						   [BELOW] = 0x1.fep26, [AT] = 0x1p27 };
	const int32_t *kinds = row_sets[(op->case_index - FIRST_ROWS) / 2].kinds;

	for (int64_t i = 0; i < g->m * (int64_t)g->k; i++) {
		const int64_t kind = kinds[i / g->k], wide = cairn_op_range(op, -126, 110);
		const double v = (double)cairn_op_range(op, -255, 255) / 256;
		const int64_t exponent[NUM_KINDS] = { [LARGE] = 110, [SMALL] = -110, [MIXED] = wide };

		if (i % g->k == 77 && largest[kind])
			cairn_store(a, g->dtype, i, largest[kind]);
		else
			cairn_store(a, g->dtype, i, kind == ZERO ? 0 : ldexp(v, (int)exponent[kind]));
	}
}

static void setup(struct cairn_op *op)
{
	const struct shape s = shape_of(op->case_index);
	const struct form *f = forms + s.form;
	struct cairn_gemm_w4_args *g = op->args;
	int64_t block = (1 << 20) + 7, codes, most = (1 << 16) / (s.k + 1);
	void *a, *bias;
	uint8_t *b;

	g->m = s.m;
	g->n = s.n;
	g->k = s.k;
	g->dtype = s.dtype;
	g->out_dtype = s.out_dtype;
	g->format = f->format;
	g->group = f->group;
	g->sms = s.sms;
	g->scale = s.scale;
	if (f->format == CAIRN_W4_NV && op->kind != CAIRN_KIND_EXACT && s.scale != 0)
		g->scale = op->case_index % 2 ? 3.3e-6f : -2.7e-5f;
	if (op->case_index == FAR_CASE) {
		setup_far(op, g, f);
		return;
	}
	if (s.out_dtype == CAIRN_F16 && most > 300 / sqrt(s.k))
		most = (int64_t)(300 / sqrt(s.k));
	codes = cairn_w4_code_bytes(s.n, s.k);
	cairn_out(op, FIELD(out), s.out_dtype, (int64_t)s.m * s.n);
	cairn_shape(op, FIELD(out), { "row", s.m }, { "column", s.n });
	a = cairn_in(op, FIELD(a), s.dtype, (int64_t)s.m * s.k);
	cairn_fill_exact(op, a, s.dtype, (int64_t)s.m * s.k, 1, most);
	if (is_range(op->case_index))
		fill_range(op, g, a);
	if (has_rows(op->case_index))
		fill_rows(op, g, a);
	b = cairn_in(op, FIELD(b), CAIRN_U8, codes);
	for (int64_t i = 0; i < codes && i < block; i++)
		b[i] = some_codes(op);
	for (int64_t i = block; i < codes; i += block)
		memcpy(b + i, b, (size_t)(codes - i < block ? codes - i : block));
	for (int64_t i = 0; i < codes && op->kind == CAIRN_KIND_EXTREME; i += 4)
		cairn_w4_store_word(b + i, cairn_w4_ordered(g->format, cairn_w4_load_word(b + i)));
	fill_cells(op, g, f, cairn_in(op, FIELD(b_scale), CAIRN_U8,
				      cairn_w4_scale_bytes(g->format, g->n, g->k, g->group)));
	if (op->kind == CAIRN_KIND_POISON)
		poison(op, a, s.dtype, s.m, s.k);
	if (!s.bias)
		return;
	bias = cairn_in(op, FIELD(bias), s.dtype, s.n);
	cairn_fill_exact(op, bias, s.dtype, s.n, 1, 1000);
	if (op->kind == CAIRN_KIND_POISON)
		poison(op, bias, s.dtype, s.n, 1);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_w4_exact(args, e);
}

static int peer_exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_w4_peer_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_w4_args *g = args;

	*want = i < 15 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: g->size = 8; return "old_struct";
	case 1: g->out = NULL; return "null_out";
	case 2: g->a = NULL; return "null_a";
	case 3: g->b = NULL; return "null_b";
	case 4: g->b_scale = NULL; return "null_b_scale";
	case 5: g->m = 0; return "m_0";
	case 6: g->n = -1; return "n_negative";
	case 7: g->k = 0; return "k_0";
	case 8: g->format = 3; return "format_3";
	case 9: g->b += 8; return "misaligned_b";
	case 10: g->b_scale += 8; return "misaligned_b_scale";
	case 11: g->a = (const char *)g->a + 8; return "misaligned_a";
	case 12: g->sms = -1; return "sms_negative";
	case 13: g->scale = NAN; return "scale_nan";
	case 14: g->group = -1; return "group_negative";
	case 15: g->k = 16; return "k_16";
	case 16: g->dtype = g->out_dtype = CAIRN_F32; return "dtype_f32";
	case 17: g->out_dtype = CAIRN_F16; return "bf16_to_f16";
	case 18: g->group = 16; return "int_group_16";
	case 19: g->format = CAIRN_W4_MX; g->group = 16; return "mx_group_16";
	case 20: g->format = CAIRN_W4_NV; g->group = 32; return "nv_group_32";
	}
	return NULL;
}

/* Sums with weights rounded to bf16 keep the peers' bound only; those that are 4% off keep neither. */
static void peers_bound(struct cairn_test *t)
{
	enum { N = 16, K = 256 };
	uint16_t a[K] __attribute__((aligned(16)));
	uint8_t b[N * K / 2] __attribute__((aligned(16))), scale[K / 32 * 48] __attribute__((aligned(16)));
	float out[N] __attribute__((aligned(16))), row[K];
	double val[2][N], bound[2][N];
	struct cairn_exact peer = { .val = val[0], .bound = bound[0] };
	struct cairn_exact ours = { .val = val[1], .bound = bound[1] };
	const struct cairn_gemm_w4_args g = { .size = sizeof(g), .out = out, .a = a, .b = b, .b_scale = scale,
					      .m = 1, .n = N, .k = K, .dtype = CAIRN_BF16,
					      .out_dtype = CAIRN_F32, .format = CAIRN_W4_INT, .group = 32,
					      .scale = 1 };
	int outside = 0, far = 0;

	for (int l = 0; l < K; l++)
		a[l] = cairn_double_to_bf16(1 + l % 7);
	for (size_t i = 0; i < sizeof(b); i++)
		b[i] = (uint8_t)cairn_rand(t);
	for (int i = 0; i < K / 32 * N; i++) {
		uint8_t *cell = scale + i / N * 48;

		cairn_store(cell, CAIRN_F16, i % N, 0.5 + 0.001 * (double)(cairn_rand(t) % 500));
		cell[2 * N + i % N] = 0;
	}
	EXPECT(t, cairn_gemm_w4_peer_exact(&g, &peer) == 0);
	EXPECT(t, cairn_gemm_w4_exact(&g, &ours) == 0);
	for (int j = 0; j < N; j++) {
		double sum = 0;

		cairn_w4_row(&g, j, row);
		for (int l = 0; l < K; l++)
			sum += (1 + l % 7) *
			       (double)cairn_bf16_to_float(cairn_double_to_bf16((double)row[l]));
		EXPECT(t, fabs(sum - val[0][j]) <= bound[0][j]);
		outside += fabs(sum - val[1][j]) > bound[1][j];
		far += fabs(sum * 1.04 - val[0][j]) > bound[0][j];
	}
	EXPECT(t, outside > N / 2);
	EXPECT(t, far == N);
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &longs, NUM_LONG);
}

/* Cases for devices widen b of every form in both types, of odd n with a bias, and with a limit of SMs. */
static void widening_is_covered(struct cairn_test *t)
{
	int seen[ARRAY_SIZE(forms)][2] = { { 0 } }, odd = 0, limited = 0;

	for (int i = FIRST_DEVICE; i < FIRST_BENCH; i++) {
		const struct shape s = shape_of(i);

		if (!cairn_gemm_w4_widens(s.m, s.n))
			continue;
		seen[s.form][s.dtype == CAIRN_F16]++;
		odd += s.n % 2 && s.bias && s.out_dtype == s.dtype;
		limited += s.sms > 0;
	}
	for (int f = 0; f < NUM_FORMS; f++)
		EXPECT(t, seen[f][0] && seen[f][1]);
	EXPECT(t, odd && limited);
	for (int32_t n = 1; n < 1 << 20; n *= 2)
		for (int32_t m = 1; m < 4096; m++)
			EXPECT(t, cairn_gemm_w4_widens(m, n) <= cairn_gemm_w4_widens(m + 1, n));
}

static const struct cairn_unit units[] = {
	{ "pairs_are_covered", pairs_are_covered }, { "peers_bound", peers_bound },
	{ "widening_is_covered", widening_is_covered },
};

/* The bits depend on sms only above m = 8. */
static int form(void *args, int i)
{
	struct cairn_gemm_w4_args *a = args;

	a->sms = a->sms ? 0 : 40;
	return i == 0 && a->m <= CAIRN_GEMM_W4_EXACT_M;
}

/* Up to m = 8 the bits of a row do not depend on m. */
static int part(void *args, int i)
{
	struct cairn_gemm_w4_args *a = args;
	int64_t row = (int64_t)a->n * (int64_t)cairn_dtype_bytes(a->out_dtype);
	int32_t first;

	if (a->m > CAIRN_GEMM_W4_EXACT_M || !cairn_part(a->m, row, 1, i, &first, &a->m))
		return 0;
	a->out = (char *)a->out + first * row;
	a->a = (const uint16_t *)a->a + (int64_t)first * a->k;
	return 1;
}

const struct cairn_family cairn_gemm_w4_family = {
	.stage = "primitives",
	.name = "gemm_w4",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm_w4),
	.workspace_op = offsetof(struct cairn_impl, gemm_w4_workspace),
	.args_size = sizeof(struct cairn_gemm_w4_args),
	.sms_field = FIELD(sms),
	.workspace_field = FIELD(workspace),
	/* s and c s may be rounded to dtype; the errors of the few different scales shift results together */
	.errors_may_lean = 1,
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.form = form,
	.part = part,
	.company = { .rows = FIELD(m), .in = { FIELD(a) }, .out = { FIELD(out) } },
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.peer_exact = peer_exact,
	.reject = reject,
	.cost_s = 4,
};
