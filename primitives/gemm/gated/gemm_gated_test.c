// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_gated_test - cases of gemm_gated.h
 *
 * Shapes lie at the limits of the kernels: one row, one row more than the kernel for few rows takes and than
 * a tile has, columns that do not fill a tile, k of one vector. Each shape runs in bf16 without bias and in
 * f16 with bias. EXACT has eight positive elements in each row of a, one in each eighth, and positive gate:
 * the sums of gate are from 40 to 136, where silu(g) is g in double too, and all sums fit dtype. POISON has
 * NaN in some rows of a and b. The bench rows are gate and up of Llama-3-8B for decoding.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"

#define FIELD(f)	offsetof(struct cairn_gemm_gated_args, f)

struct row {
	int m, n, k, sms, bias, dtype, bench, device_only, pair;
};

#define S(m, n, k, ...)	{ m, n, k, .dtype = CAIRN_BF16, ##__VA_ARGS__ }

static const struct row named[] = {
	S(1, 8, 8), S(1, 24, 200), S(1, 1000, 4096), S(2, 8, 72), S(3, 136, 136), S(5, 520, 4104),
	S(8, 8, 16392), S(8, 272, 200), S(8, 4096, 72), S(9, 8, 8), S(9, 104, 72), S(16, 168, 264),
	S(17, 40, 520), S(31, 504, 72), S(32, 4504, 520), S(33, 72, 200), S(40, 2056, 64),
	S(48, 520, 520), S(48, 8, 6008), S(29, 8504, 200), S(10, 10000, 72),
	S(1, 320, 4096, .sms = 1), S(4, 160, 72, .sms = 3), S(9, 48, 200, .sms = 2),
	S(32, 4504, 72, .sms = 24), S(48, 136, 4104, .sms = 64),
	S(33, 5000, 5000, .device_only = 1), S(8, 14336, 1032, .device_only = 1),
	S(48, 14336, 1032, .device_only = 1),
};

static const int prompts[] = { 1, 2, 4, 8, 16, 32, 48 };

#define NUM_NAMED	29
#define FIRST_BENCH	(2 * NUM_NAMED)
#define FIRST_PAIR	(FIRST_BENCH + (int)ARRAY_SIZE(prompts))
#define NUM_PAIRS	30
#define NUM_CASES	(FIRST_PAIR + NUM_PAIRS)

static const int pair_m[] = { 1, 7, 9, 33, 47 }, pair_n[] = { 8, 16, 40, 72, 264 };
static const int pair_k[] = { 8, 24, 72, 136, 520 }, pair_sms[] = { 0, 2, 5 };
static struct cairn_pairs pairs = { .num_factors = 6, .levels = { 2, 2, 5, 5, 5, 3 } };

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, m, 1, CAIRN_GEMM_GATED_M, 1),
	CAIRN_DRAW_SIZE(struct row, n, 8, 40000, 8),
	CAIRN_DRAW_SIZE(struct row, k, 8, 30000, 8),
	CAIRN_DRAW_ONE_OF(struct row, sms, 0, 0, 0, 0, 2, 3, 24, 64),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, bias, 0, 1),
};

static int allowed(void *shape, int room)
{
	const struct row *r = shape;

	return (int64_t)r->m * r->n * r->k <= room * (1 << 24);
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes), .allowed = allowed,
	.many = 400,
};

static struct row row_of(int i)
{
	struct row r = { .dtype = CAIRN_BF16 };

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &r);
	} else if (i >= FIRST_PAIR) {
		const int8_t *level = cairn_pairs_row(&pairs, i - FIRST_PAIR);

		r = (struct row){ pair_m[level[2]], pair_n[level[3]], pair_k[level[4]], pair_sms[level[5]],
				  .bias = level[1], .dtype = level[0] ? CAIRN_F16 : CAIRN_BF16, .pair = 1 };
	} else if (i >= FIRST_BENCH) {
		r = (struct row){ prompts[i - FIRST_BENCH], 14336, 4096, .dtype = CAIRN_BF16, .bench = 1,
				  .device_only = 1 };
	} else {
		r = named[i / 2];
		r.dtype = i % 2 ? CAIRN_F16 : CAIRN_BF16;
		r.bias = i % 2;
	}
	return r;
}

static void describe(int i, struct cairn_case *c)
{
	const struct row r = row_of(i);
	const double m = r.m, n = r.n, k = r.k;
	char sms[16] = "";

	if (r.sms)
		snprintf(sms, sizeof(sms), "_sms%d", r.sms);
	snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_%s%s%s", r.pair ? "pair_" : "", r.m, r.n, r.k,
		 cairn_dtype_name(r.dtype), r.bias ? "_bias" : "", sms);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!r.bench && m * n * k <= 1 << 22)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME) | CAIRN_KIND_BIT(CAIRN_KIND_POISON) |
			    CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = r.bench;
	c->device_only = r.device_only;
	c->bytes = (m * k + 2 * n * k + r.bias * 2 * n + m * n) * 2;
	c->flops = 4 * m * n * k;
}

static void fill_exact(struct cairn_op *op, void *p, int dtype, int64_t count, int from, int to)
{
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, dtype, i, cairn_op_range(op, from, to));
}

static void fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale, int from, int to)
{
	if (op->kind == CAIRN_KIND_EXACT)
		fill_exact(op, p, dtype, count, from, to);
	else
		cairn_fill(op, p, dtype, count, scale);
}

/* POISON: about one row in four has a NaN. */
static void poison(struct cairn_op *op, void *p, int dtype, int64_t rows, int64_t k)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		cairn_store(p, dtype, i * k + cairn_op_range(op, 0, k - 1), NAN);
}

static void setup(struct cairn_op *op)
{
	struct cairn_gemm_gated_args *g = op->args;
	const struct row r = row_of(op->case_index);
	const int64_t m = r.m, n = r.n, k = r.k;
	char *a, *b, *bias;

	g->m = r.m;
	g->n = r.n;
	g->k = r.k;
	g->dtype = r.dtype;
	g->sms = r.sms;
	cairn_out(op, FIELD(out), r.dtype, m * n);
	cairn_shape(op, FIELD(out), { "row", m }, { "column", n });
	a = cairn_in(op, FIELD(a), r.dtype, m * k);
	fill(op, a, r.dtype, m * k, 1, 0, 0);
	for (int64_t i = 0; op->kind == CAIRN_KIND_EXACT && i < m * 8; i++)
		cairn_store(a, r.dtype, i * (k / 8) + cairn_op_range(op, 0, k / 8 - 1),
			    cairn_op_range(op, 1, 2));
	b = cairn_in(op, FIELD(b), r.dtype, 2 * n * k);
	fill(op, b, r.dtype, n * k, 0.05, 5, 8);
	fill(op, b + n * k * 2, r.dtype, n * k, 0.05, -4, 4);
	if (r.bias) {
		bias = cairn_in(op, FIELD(bias), r.dtype, 2 * n);
		fill(op, bias, r.dtype, 2 * n, 1, 1, 8);
	}
	if (op->kind != CAIRN_KIND_POISON)
		return;
	poison(op, a, r.dtype, m, k);
	poison(op, b, r.dtype, 2 * n, k);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_gated_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_gated_args *g = args;

	*want = i < 9 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: g->size = 8; return "size_too_small";
	case 1: g->out = NULL; return "out_null";
	case 2: g->a = NULL; return "a_null";
	case 3: g->b = NULL; return "b_null";
	case 4: g->m = 0; return "m_0";
	case 5: g->n = -8; return "n_negative";
	case 6: g->k = 0; return "k_0";
	case 7: g->sms = -1; return "sms_negative";
	case 8: g->b = (const char *)g->b + 2; return "b_misaligned";
	case 9: g->m = CAIRN_GEMM_GATED_M + 1; return "m_49";
	case 10: g->n = 12; return "n_12";
	case 11: g->k = 12; return "k_12";
	case 12: g->dtype = CAIRN_F32; return "dtype_f32";
	}
	return NULL;
}

/* The bits depend on sms only above m = 4. */
static int form(void *args, int i)
{
	struct cairn_gemm_gated_args *g = args;

	g->sms = g->sms ? 0 : 40;
	return i == 0 && g->m <= 4;
}

static void counts(struct cairn_test *t)
{
	EXPECT(t, ARRAY_SIZE(named) == NUM_NAMED);
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
}

static const struct cairn_unit units[] = { { "counts", counts } };

const struct cairn_family cairn_gemm_gated_family = {
	.stage = "primitives",
	.name = "gemm_gated",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm_gated),
	.args_size = sizeof(struct cairn_gemm_gated_args),
	.sms_field = FIELD(sms),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.form = form,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 20,
};
