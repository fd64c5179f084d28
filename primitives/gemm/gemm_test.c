// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_test - cases of gemm.h
 *
 * Shapes are chosen at the edges of kernels: one row, a row more than a tensor-core tile, columns that fill
 * no tile, k of one vector, k that is no multiple of any unrolling. Every shape runs in bf16; small ones in
 * all types, with and without bias, to fp32 and not. The bench rows are the projections of Llama models
 * (fused QKV 6144, MLP 14336 and both halves of it 28672, head 128256; Llama 2: 11008) at the batch sizes
 * where decoding lives, and the square products that are the ceiling of arithmetic.
 */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"

#define SMALL	300000		/* products up to which all variants run */

struct shape {
	int m, n, k, bench, device_only;
};

static const struct shape shapes[] = {
	{ 1, 1, 8, 0, 0 }, { 1, 8, 8, 0, 0 }, { 1, 96, 64, 0, 0 }, { 1, 320, 200, 0, 0 },
	{ 1, 1000, 4096, 0, 0 }, { 1, 4096, 64, 0, 0 }, { 1, 33, 6008, 0, 0 },
	{ 2, 1, 64, 0, 0 }, { 2, 96, 200, 0, 0 }, { 2, 1000, 64, 0, 0 }, { 2, 320, 4096, 0, 0 },
	{ 3, 8, 200, 0, 0 }, { 3, 320, 64, 0, 0 }, { 3, 1000, 8, 0, 0 },
	{ 5, 96, 4096, 0, 0 }, { 5, 1000, 200, 0, 0 }, { 5, 320, 8, 0, 0 },
	{ 8, 1, 200, 0, 0 }, { 8, 320, 64, 0, 0 }, { 8, 4096, 200, 0, 0 }, { 8, 1000, 4096, 0, 0 },
	{ 9, 96, 200, 0, 0 }, { 16, 8, 4096, 0, 0 }, { 16, 1000, 64, 0, 0 },
	{ 17, 8, 64, 0, 0 }, { 17, 320, 200, 0, 0 }, { 17, 1000, 64, 0, 0 },
	{ 64, 96, 200, 0, 0 }, { 64, 320, 64, 0, 0 }, { 64, 1000, 200, 0, 0 },
	/* many tiles a cluster; more CTAs in one than k has stages; long sums */
	{ 10, 20000, 72, 0, 0 }, { 32, 9000, 520, 0, 0 }, { 29, 17000, 200, 0, 0 }, { 31, 34000, 64, 0, 0 },
	{ 25, 130, 6008, 0, 0 }, { 57, 257, 14344, 0, 0 }, { 33, 5000, 10008, 0, 1 },
	{ 64, 2050, 11008, 0, 1 },
	{ 129, 1, 8, 0, 0 }, { 129, 96, 64, 0, 0 }, { 129, 320, 200, 0, 0 }, { 129, 1000, 64, 0, 0 },
	/* bench rows, in bf16 */
	{ 1, 4096, 4096, 1, 0 }, { 1, 6144, 4096, 1, 1 }, { 1, 14336, 4096, 1, 1 }, { 1, 28672, 4096, 1, 1 },
	{ 1, 4096, 14336, 1, 1 }, { 1, 11008, 4096, 1, 1 }, { 1, 4096, 11008, 1, 1 },
	{ 1, 128256, 4096, 1, 1 },
	{ 2, 4096, 4096, 1, 1 }, { 4, 4096, 4096, 1, 1 },
	{ 8, 4096, 4096, 1, 1 }, { 8, 14336, 4096, 1, 1 }, { 8, 4096, 14336, 1, 1 },
	{ 16, 4096, 4096, 1, 1 }, { 16, 6144, 4096, 1, 1 }, { 16, 14336, 4096, 1, 1 },
	{ 16, 28672, 4096, 1, 1 }, { 16, 4096, 14336, 1, 1 },
	{ 32, 4096, 4096, 1, 1 }, { 32, 28672, 4096, 1, 1 }, { 32, 4096, 14336, 1, 1 },
	{ 64, 4096, 4096, 1, 1 }, { 64, 6144, 4096, 1, 1 }, { 64, 14336, 4096, 1, 1 },
	{ 64, 28672, 4096, 1, 1 }, { 64, 4096, 14336, 1, 1 },
	{ 4096, 4096, 4096, 1, 1 }, { 8192, 8192, 8192, 1, 1 },
};

static const struct {
	int dtype, out_dtype, bias;
} variants[] = {
	{ CAIRN_BF16, CAIRN_BF16, 0 },	/* of all shapes */
	{ CAIRN_F16, CAIRN_F16, 1 },	/* of all but the bench rows, some of which come without bias below */
	{ CAIRN_F32, CAIRN_F32, 0 },	/* these and the rest of small shapes */
	{ CAIRN_F32, CAIRN_F32, 1 },
	{ CAIRN_F16, CAIRN_F16, 0 },
	{ CAIRN_BF16, CAIRN_BF16, 1 },
	{ CAIRN_BF16, CAIRN_F32, 0 },
	{ CAIRN_BF16, CAIRN_F32, 1 },
	{ CAIRN_F16, CAIRN_F32, 0 },
	{ CAIRN_F16, CAIRN_F32, 1 },
};

struct row {
	struct shape s;
	int dtype, out_dtype, bias;
};

static int f16_row(const struct shape *s)
{
	return (s->m == 1 && s->n == 4096 && s->k == 4096) || (s->m == 1 && s->n == 14336) || s->m == 8192;
}

static int has_variant(const struct shape *s, int v)
{
	if (s->bench)
		return v == 0 || (v == 4 && f16_row(s));
	return v < 2 || (double)s->m * s->n * s->k <= SMALL;
}

/* Row i of shapes x variants as far as they exist; their number if i < 0. */
static int find_row(int i, struct row *r)
{
	int count = 0;

	for (size_t k = 0; k < ARRAY_SIZE(shapes); k++)
		for (size_t v = 0; v < ARRAY_SIZE(variants); v++) {
			if (!has_variant(&shapes[k], v))
				continue;
			if (count++ != i)
				continue;
			r->s = shapes[k];
			r->dtype = variants[v].dtype;
			r->out_dtype = variants[v].out_dtype;
			r->bias = variants[v].bias;
		}
	return count;
}

static void describe(int i, struct cairn_case *c)
{
	struct row r;
	double m, n, k;

	find_row(i, &r);
	m = r.s.m;
	n = r.s.n;
	k = r.s.k;
	snprintf(c->name, sizeof(c->name), "m%d_n%d_k%d_%s%s%s", r.s.m, r.s.n, r.s.k,
		 cairn_dtype_name(r.dtype), r.out_dtype != r.dtype ? "_to_f32" : "", r.bias ? "_bias" : "");
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!r.s.bench)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	c->bench = r.s.bench;
	c->ceiling = r.s.m >= 4096;
	c->device_only = r.s.device_only;
	c->bytes = (m * k + n * k + r.bias * n) * cairn_dtype_bytes(r.dtype) +
		   m * n * cairn_dtype_bytes(r.out_dtype);
	c->flops = 2 * m * n * k;
}

static void setup(struct cairn_op *op)
{
	struct cairn_gemm_args *g = op->args;
	int64_t m, n, k;
	struct row r;

	find_row(op->case_index, &r);
	m = g->m = r.s.m;
	n = g->n = r.s.n;
	k = g->k = r.s.k;
	g->dtype = r.dtype;
	g->out_dtype = r.out_dtype;
	cairn_out(op, offsetof(struct cairn_gemm_args, out), r.out_dtype, m * n);
	cairn_fill(op, cairn_in(op, offsetof(struct cairn_gemm_args, a), r.dtype, m * k), r.dtype, m * k, 1);
	cairn_fill(op, cairn_in(op, offsetof(struct cairn_gemm_args, b), r.dtype, n * k),
		   r.dtype, n * k, 0.05);
	if (r.bias)
		cairn_fill(op, cairn_in(op, offsetof(struct cairn_gemm_args, bias), r.dtype, n),
			   r.dtype, n, 1);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_args *g = args;

	*want = i < 6 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0:
		g->out = NULL;
		return "out_null";
	case 1:
		g->a = NULL;
		return "a_null";
	case 2:
		g->b = NULL;
		return "b_null";
	case 3:
		g->m = 0;
		return "m_0";
	case 4:
		g->n = -1;
		return "n_negative";
	case 5:
		g->k = 0;
		return "k_0";
	case 6:
		g->k = 12;
		return "k_12";
	case 7:
		g->dtype = CAIRN_I32;
		return "dtype_i32";
	case 8:
		g->dtype = CAIRN_BF16;
		g->out_dtype = CAIRN_F16;
		return "bf16_to_f16";
	}
	return NULL;
}

/* The family needs a constant; number_of_cases() below holds it to the tables above. */
#define NUM_CASES	259

static void number_of_cases(struct cairn_test *t)
{
	struct row r;
	int n = find_row(-1, &r);

	cairn_note(t, "%d cases", n);
	EXPECT(t, n == NUM_CASES);
}

/* b stored transposed, a row of b doubled: what must follow, without a reference. */
static void columns_follow_rows_of_b(struct cairn_test *t)
{
	enum { M = 3, N = 40, K = 72 };
	static float a[M * K], b[N * K], out[M * N], again[M * N];
	struct cairn_gemm_args g = { sizeof(g), out, a, b, NULL, NULL, 0, M, N, K, CAIRN_F32, CAIRN_F32 };

	for (int i = 0; i < M * K; i++)
		a[i] = (float)(cairn_rand(t) % 17) - 8;
	for (int i = 0; i < N * K; i++)
		b[i] = (float)(cairn_rand(t) % 17) - 8;
	EXPECT(t, cairn_gemm_cpu(&g, NULL) == 0);
	for (int l = 0; l < K; l++)
		b[7 * K + l] *= 2;
	g.out = again;
	EXPECT(t, cairn_gemm_cpu(&g, NULL) == 0);
	for (int i = 0; i < M; i++)
		out[i * N + 7] *= 2;
	EXPECT(t, !memcmp(out, again, sizeof(out)));
}

static const struct cairn_unit units[] = {
	{ "number_of_cases", number_of_cases },
	{ "columns_follow_rows_of_b", columns_follow_rows_of_b },
};

const struct cairn_family cairn_gemm_family = {
	.stage = "primitives",
	.name = "gemm",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm),
	.workspace_op = offsetof(struct cairn_impl, gemm_workspace),
	.args_size = sizeof(struct cairn_gemm_args),
	.workspace_field = offsetof(struct cairn_gemm_args, workspace),
	.num_cases = NUM_CASES,
	.exact_is_equal = 1,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
};
