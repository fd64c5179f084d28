// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fixed_rows_test - no result of gemm_fixed changes its bits with m, n, sms or its place
 *
 * The results of one large call are compared with those of calls that have parts of its rows and columns and
 * other numbers of SMs, so that the kernel takes every width of tile, tiles of one and of two warpgroups, and
 * CTAs that run alone and in pairs.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/open_table_test.h"

/* The large product on a table: arrays in the table's memory, and its results on the host */
struct product {
	struct cairn_impl impl;
	struct cairn_gemm_fixed_args args;
	void *stream;
	uint32_t *want, *got;
};

struct shape {
	int m, n, k, silu;
};

/* A part of the product: rows and columns of out, and the SMs of the call */
struct part {
	int row, m, col, n, sms;
};

/* bf16 between 2^-7 and 1 in magnitude, of either sign */
static uint16_t any(struct cairn_test *t)
{
	uint64_t r = cairn_rand(t);

	return (uint16_t)((r & 0x8000) | (0x3c00 + r % 0x380));
}

static int fill(struct cairn_test *t, const struct product *p, void *to, size_t count)
{
	uint16_t *x = malloc(count * sizeof(*x));
	int ret = x ? 0 : -ENOMEM;

	for (size_t i = 0; x && i < count; i++)
		x[i] = any(t);
	if (!ret)
		ret = p->impl.mem_copy(to, x, count * sizeof(*x), CAIRN_COPY_TO_DEVICE, p->stream);
	if (!ret)
		ret = p->impl.stream_sync(p->stream);
	free(x);
	return ret;
}

/* Calls the operation and fetches the results of its rows, packed. */
static int call(const struct product *p, const struct cairn_gemm_fixed_args *g, uint32_t *out)
{
	const size_t bytes = (size_t)g->m * (size_t)cairn_gemm_fixed_width(g) * sizeof(*out);

	return p->impl.mem_set(g->out, 0xff, bytes, p->stream) || p->impl.gemm_fixed(g, p->stream) ||
	       p->impl.mem_copy(out, g->out, bytes, CAIRN_COPY_TO_HOST, p->stream) ||
	       p->impl.stream_sync(p->stream);
}

static int open_product(struct cairn_test *t, struct product *p, const struct shape *s)
{
	struct cairn_gemm_fixed_args *g = &p->args;
	size_t out, bytes = 0;

	*g = (struct cairn_gemm_fixed_args){
		.size = sizeof(*g), .m = s->m, .n = s->n, .k = s->k, .dtype = CAIRN_BF16,
		.out_dtype = CAIRN_F32,
		.epilogue = s->silu ? CAIRN_GEMM_FIXED_SILU_MUL : CAIRN_GEMM_FIXED_PLAIN,
	};
	out = (size_t)s->m * (size_t)cairn_gemm_fixed_width(g) * sizeof(*p->want);
	p->want = malloc(out);
	p->got = malloc(out);
	if (!p->want || !p->got || p->impl.mem_alloc((void **)&g->a, (size_t)s->m * (size_t)s->k * 2) ||
	    p->impl.mem_alloc((void **)&g->b, (size_t)s->n * (size_t)s->k * 2) ||
	    p->impl.mem_alloc(&g->out, out) ||
	    (p->impl.gemm_fixed_workspace && p->impl.gemm_fixed_workspace(g, &bytes)) ||
	    (bytes && p->impl.mem_alloc(&g->workspace, bytes)))
		return -1;
	g->workspace_bytes = bytes;
	return fill(t, p, (void *)g->a, (size_t)s->m * (size_t)s->k) ||
	       fill(t, p, (void *)g->b, (size_t)s->n * (size_t)s->k);
}

static void close_product(struct product *p)
{
	void *const memory[] = { (void *)p->args.a, (void *)p->args.b, p->args.out, p->args.workspace };

	for (size_t i = 0; i < ARRAY_SIZE(memory); i++)
		if (memory[i])
			p->impl.mem_free(memory[i]);
	free(p->want);
	free(p->got);
}

/* Columns of SILU_MUL have two rows of b each, so that such parts have all columns. */
static void compare(struct cairn_test *t, struct product *p, struct part part)
{
	struct cairn_gemm_fixed_args g = p->args;
	const int64_t width = cairn_gemm_fixed_width(&p->args);
	int64_t differ = 0, narrow;

	if (g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL) {
		part.col = 0;
		part.n = g.n;
	}
	g.m = part.m;
	g.n = part.n;
	g.sms = part.sms;
	g.a = (const uint16_t *)g.a + (int64_t)part.row * g.k;
	g.b = (const uint16_t *)g.b + (int64_t)part.col * g.k;
	if (!EXPECT(t, call(p, &g, p->got) == 0))
		return;
	narrow = cairn_gemm_fixed_width(&g);
	for (int64_t i = 0; i < part.m; i++)
		for (int64_t j = 0; j < narrow; j++)
			differ += p->want[(part.row + i) * width + part.col + j] != p->got[i * narrow + j];
	if (!EXPECT(t, differ == 0))
		cairn_note(t, "%lld results of rows %d + %d, columns %d + %d, k %d, %d SMs",
			   (long long)differ, part.row, part.m, part.col, part.n, g.k, part.sms);
}

/* Compares parts of all sizes up to the whole with the whole. */
static void compare_parts(struct cairn_test *t, struct product *p)
{
	static const int ms[] = { 1, 2, 8, 16, 33, 63, 64, 65, 100, 128, 129, 200, 256, 300, 511, 512, 777,
				  1024, 1500, 2048 };
	static const int sms[] = { 0, 1, 2, 5, 17, 64, 96, 131 };
	const struct cairn_gemm_fixed_args *g = &p->args;

	if (!EXPECT(t, call(p, g, p->want) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(ms) && ms[i] <= g->m; i++)
		for (size_t k = 0; k < ARRAY_SIZE(sms); k++) {
			const int n = k % 2 ? g->n : 1 + (int)(cairn_rand(t) % (uint64_t)g->n);
			struct part part = { .m = ms[i], .n = n, .sms = sms[k] };

			/* few SMs: few results, so that the test stays short */
			if (sms[k] && sms[k] < 17 && (double)ms[i] * n * g->k > 4e9)
				continue;
			part.row = (int)(cairn_rand(t) % (uint64_t)(g->m - ms[i] + 1));
			part.col = (int)(cairn_rand(t) % (uint64_t)(g->n - n + 1));
			compare(t, p, part);
		}
}

static void rows(struct cairn_test *t, const char *table, const struct shape *shapes, size_t num)
{
	struct product p = { .stream = NULL };

	if (open_table_and_stream(t, table, &p.impl, &p.stream))
		return;
	for (size_t i = 0; i < num; i++) {
		if (EXPECT(t, open_product(t, &p, &shapes[i]) == 0))
			compare_parts(t, &p);
		close_product(&p);
	}
	p.impl.stream_destroy(p.stream);
}

static void cpu(struct cairn_test *t)
{
	static const struct shape shapes[] = { { 70, 90, 136, 0 }, { 40, 64, 72, 1 } };

	rows(t, "cpu", shapes, ARRAY_SIZE(shapes));
}

static void cuda(struct cairn_test *t)
{
	static const struct shape shapes[] = {
		{ 2048, 1024, 4096, 0 }, { 2048, 6144, 1024, 0 }, { 600, 1000, 14336, 0 },
		{ 1100, 3072, 2048, 1 }, { 300, 4096, 200, 0 },
	};

	rows(t, "cuda", shapes, ARRAY_SIZE(shapes));
}

static const struct cairn_unit units[] = {
	{ "cpu", cpu },
	{ "cuda", cuda },
};

const struct cairn_family cairn_gemm_fixed_rows_family = {
	.stage = "primitives", .name = "gemm_fixed_rows", .units = units, .num_units = ARRAY_SIZE(units),
};
