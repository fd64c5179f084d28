// SPDX-License-Identifier: Apache-2.0
/* gemm_rows_test - in gemm and gemm_fp8w, the bits of a row depend neither on its place nor on other rows */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/open_table_test.h"

/* A product of a table, its arrays on the host and, behind the arguments, in the table's memory. */
struct product {
	struct cairn_impl impl;
	struct cairn_gemm_fp8w_args args;
	int plain;			/* b holds bf16, and the operation is gemm */
	void *stream;
	uint16_t *a, *out;
};

/* m, n, k; scale: enum cairn_fp8_scale, or PLAIN */
struct shape {
	int m, n, k, scale;
};

#define PLAIN	(-1)

static size_t bytes_of(int64_t rows, int64_t columns)
{
	return (size_t)(rows * columns) * sizeof(uint16_t);
}

/* bf16 between 2^-7 and 1 in magnitude, of either sign */
static uint16_t any(struct cairn_test *t)
{
	uint64_t r = cairn_rand(t);

	return (uint16_t)((r & 0x8000) | (0x3c00 + r % 0x380));
}

/* Calls the operation or, if bytes is not NULL, asks for its workspace. */
static int call(const struct product *p, size_t *bytes)
{
	const struct cairn_gemm_fp8w_args *g = &p->args;
	struct cairn_gemm_args plain = {
		.size = sizeof(plain), .out = g->out, .a = g->a, .b = g->b, .workspace = g->workspace,
		.workspace_bytes = g->workspace_bytes, .m = g->m, .n = g->n, .k = g->k, .dtype = g->dtype,
		.out_dtype = g->out_dtype,
	};

	if (!bytes)
		return p->plain ? p->impl.gemm(&plain, p->stream) : p->impl.gemm_fp8w(g, p->stream);
	if (p->plain)
		return p->impl.gemm_workspace ? p->impl.gemm_workspace(&plain, bytes) : 0;
	return p->impl.gemm_fp8w_workspace ? p->impl.gemm_fp8w_workspace(g, bytes) : 0;
}

/* Fills b and, with codes below 2 in magnitude, its scales. */
static int fill_b(struct cairn_test *t, struct product *p)
{
	const struct cairn_gemm_fp8w_args *g = &p->args;
	size_t bytes = bytes_of(g->n, g->k) / (p->plain ? 1 : 2), scales = p->plain ? 0 : (size_t)g->n;
	float *scale = malloc((scales + 1) * sizeof(*scale));
	uint16_t *b = malloc(bytes);
	int ret = scale && b ? 0 : -ENOMEM;

	for (size_t i = 0; !ret && i < bytes / 2; i++)
		b[i] = p->plain ? any(t) : (uint16_t)(cairn_rand(t) & 0xbfbf);
	for (size_t i = 0; !ret && i < scales; i++)
		scale[i] = 0x1p-24f * (float)(1 + cairn_rand(t) % (1 << 20));
	if (!ret)
		ret = p->impl.mem_copy((void *)g->b, b, bytes, CAIRN_COPY_TO_DEVICE, p->stream);
	if (!ret && scales)
		ret = p->impl.mem_copy((void *)g->b_scale, scale, scales * sizeof(*scale),
				       CAIRN_COPY_TO_DEVICE, p->stream);
	if (!ret)
		ret = p->impl.stream_sync(p->stream);
	free(b);
	free(scale);
	return ret;
}

static int open_product(struct cairn_test *t, struct product *p, const struct shape *s)
{
	struct cairn_gemm_fp8w_args *g = &p->args;
	size_t bytes = 0;

	p->plain = s->scale == PLAIN;
	*g = (struct cairn_gemm_fp8w_args){
		.size = sizeof(*g), .m = s->m, .n = s->n, .k = s->k, .dtype = CAIRN_BF16,
		.out_dtype = CAIRN_BF16, .scale_kind = p->plain ? 0 : s->scale,
	};
	p->a = malloc(bytes_of(s->m, s->k));
	p->out = malloc(bytes_of(s->m, s->n));
	/* there are at most as many scales as rows of b */
	if (!p->a || !p->out || p->impl.mem_alloc((void **)&g->a, bytes_of(s->m, s->k)) ||
	    p->impl.mem_alloc((void **)&g->b, bytes_of(s->n, s->k)) ||
	    p->impl.mem_alloc((void **)&g->b_scale, (size_t)s->n * sizeof(float)) ||
	    p->impl.mem_alloc(&g->out, bytes_of(s->m, s->n)) || call(p, &bytes) ||
	    (bytes && p->impl.mem_alloc(&g->workspace, bytes)))
		return -1;
	g->workspace_bytes = bytes;
	return fill_b(t, p);
}

static void close_product(struct product *p)
{
	void *const memory[] = { (void *)p->args.a, (void *)p->args.b, (void *)p->args.b_scale, p->args.out,
				 p->args.workspace };

	for (size_t i = 0; i < ARRAY_SIZE(memory); i++) {
		if (memory[i])
			p->impl.mem_free(memory[i]);
	}
	free(p->a);
	free(p->out);
}

static int multiply(struct product *p)
{
	const struct cairn_gemm_fp8w_args *g = &p->args;

	return p->impl.mem_copy((void *)g->a, p->a, bytes_of(g->m, g->k), CAIRN_COPY_TO_DEVICE, p->stream) ||
	       call(p, NULL) ||
	       p->impl.mem_copy(p->out, g->out, bytes_of(g->m, g->n), CAIRN_COPY_TO_HOST, p->stream) ||
	       p->impl.stream_sync(p->stream);
}

/* Moves one row to up to eight places among new random rows; its results must have the same bits at each. */
static void move_row(struct cairn_test *t, struct product *p)
{
	const struct cairn_gemm_fp8w_args *g = &p->args;
	int step = (g->m + 7) / 8, first = 1;
	uint16_t *row = malloc(bytes_of(1, g->k)), *want = malloc(bytes_of(1, g->n));

	for (int64_t i = 0; row && i < g->k; i++)
		row[i] = any(t);
	for (int at = 0; EXPECT(t, row && want) && at < g->m; at = at + step < g->m ? at + step : g->m) {
		uint16_t *got = p->out + (int64_t)at * g->n;

		for (int64_t i = 0; i < (int64_t)g->m * g->k; i++)
			p->a[i] = any(t);
		memcpy(p->a + (int64_t)at * g->k, row, bytes_of(1, g->k));
		if (!EXPECT(t, multiply(p) == 0))
			break;
		if (first)
			memcpy(want, got, bytes_of(1, g->n));
		first = 0;
		if (!EXPECT(t, !memcmp(want, got, bytes_of(1, g->n))))
			cairn_note(t, "m %d, n %d, k %d, %s, place %d", g->m, g->n, g->k,
				   p->plain ? "gemm" : g->scale_kind ? "blocks" : "rows", at);
	}
	free(row);
	free(want);
}

static void rows(struct cairn_test *t, const char *table, const struct shape *shapes, size_t num)
{
	struct product p = { .stream = NULL };

	if (open_table_and_stream(t, table, &p.impl, &p.stream))
		return;
	for (size_t i = 0; i < num; i++) {
		if (EXPECT(t, open_product(t, &p, &shapes[i]) == 0))
			move_row(t, &p);
		close_product(&p);
	}
	p.impl.stream_destroy(p.stream);
}

#define ROWS	CAIRN_FP8_SCALE_ROWS
#define BLOCKS	CAIRN_FP8_SCALE_BLOCKS

static void cpu(struct cairn_test *t)
{
	static const struct shape shapes[] = {
		{ 5, 48, 200, PLAIN }, { 16, 130, 512, PLAIN }, { 130, 70, 264, PLAIN },
		{ 5, 48, 208, ROWS }, { 16, 130, 512, BLOCKS }, { 37, 70, 272, ROWS },
		{ 300, 33, 144, BLOCKS },
	};

	rows(t, "cpu", shapes, ARRAY_SIZE(shapes));
}

/* Each kernel of ours and cuBLASLt's algorithms, with few columns, so that these may split k. */
static void cuda(struct cairn_test *t)
{
	static const struct shape shapes[] = {
		{ 4, 4096, 2048, PLAIN }, { 8, 512, 8192, PLAIN }, { 16, 4096, 2048, PLAIN },
		{ 64, 1024, 8192, PLAIN }, { 64, 6144, 4096, PLAIN }, { 128, 1024, 8192, PLAIN },
		{ 256, 4096, 4096, PLAIN }, { 512, 512, 14336, PLAIN }, { 512, 6144, 4096, PLAIN },
	};

	rows(t, "cuda", shapes, ARRAY_SIZE(shapes));
}

/* Each kernel of gemm_fp8w, with CTAs that share tiles, or do not, and with b widened for cuBLASLt */
static void fp8w_cuda(struct cairn_test *t)
{
	static const struct shape shapes[] = {
		{ 5, 4096, 2048, ROWS }, { 8, 512, 8192, BLOCKS }, { 9, 4096, 2048, BLOCKS },
		{ 32, 512, 8192, ROWS }, { 33, 1030, 8192, ROWS }, { 64, 14336, 1040, BLOCKS },
		{ 65, 1024, 8192, BLOCKS }, { 256, 4096, 4096, BLOCKS }, { 256, 6144, 4096, ROWS },
		{ 512, 512, 14336, ROWS }, { 512, 6144, 4096, ROWS }, { 512, 1024, 8192, BLOCKS },
		{ 512, 6144, 4096, BLOCKS }, { 700, 1024, 4096, ROWS },
	};

	rows(t, "cuda", shapes, ARRAY_SIZE(shapes));
}

static const struct cairn_unit units[] = {
	{ "cpu", cpu },
	{ "cuda", cuda },
	{ "fp8w_cuda", fp8w_cuda },
};

const struct cairn_family cairn_gemm_rows_family = {
	.stage = "primitives", .name = "gemm_rows", .units = units, .num_units = ARRAY_SIZE(units),
};
