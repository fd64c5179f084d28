// SPDX-License-Identifier: Apache-2.0
/* gemm_rows_test - the bits of a row depend neither on its place nor on the other rows */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"

/* A product of a table, its arrays on the host and, behind the arguments, in the table's memory. */
struct product {
	struct cairn_impl impl;
	struct cairn_gemm_args args;
	void *stream;
	uint16_t *a, *b, *out;
};

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

static int open_product(struct cairn_test *t, struct product *p, int m, int n, int k)
{
	struct cairn_gemm_args *g = &p->args;
	size_t bytes = 0;

	*g = (struct cairn_gemm_args){
		.size = sizeof(*g), .m = m, .n = n, .k = k, .dtype = CAIRN_BF16, .out_dtype = CAIRN_BF16,
	};
	p->a = malloc(bytes_of(m, k));
	p->b = malloc(bytes_of(n, k));
	p->out = malloc(bytes_of(m, n));
	if (!p->a || !p->b || !p->out || p->impl.mem_alloc((void **)&g->a, bytes_of(m, k)) ||
	    p->impl.mem_alloc((void **)&g->b, bytes_of(n, k)) || p->impl.mem_alloc(&g->out, bytes_of(m, n)) ||
	    (p->impl.gemm_workspace && p->impl.gemm_workspace(g, &bytes)) ||
	    (bytes && p->impl.mem_alloc(&g->workspace, bytes)))
		return -1;
	g->workspace_bytes = bytes;
	for (int64_t i = 0; i < (int64_t)n * k; i++)
		p->b[i] = any(t);
	return p->impl.mem_copy((void *)g->b, p->b, bytes_of(n, k), CAIRN_COPY_TO_DEVICE, p->stream);
}

static void close_product(struct product *p)
{
	void *const memory[] = { (void *)p->args.a, (void *)p->args.b, p->args.out, p->args.workspace };

	for (size_t i = 0; i < ARRAY_SIZE(memory); i++) {
		if (memory[i])
			p->impl.mem_free(memory[i]);
	}
	free(p->a);
	free(p->b);
	free(p->out);
}

static int multiply(struct product *p)
{
	const struct cairn_gemm_args *g = &p->args;

	return p->impl.mem_copy((void *)g->a, p->a, bytes_of(g->m, g->k), CAIRN_COPY_TO_DEVICE, p->stream) ||
	       p->impl.gemm(g, p->stream) ||
	       p->impl.mem_copy(p->out, g->out, bytes_of(g->m, g->n), CAIRN_COPY_TO_HOST, p->stream) ||
	       p->impl.stream_sync(p->stream);
}

/* Gives one row all places in turn, at most eight of them, among ever new rows. */
static void move_row(struct cairn_test *t, struct product *p)
{
	const struct cairn_gemm_args *g = &p->args;
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
			cairn_note(t, "m %d, n %d, k %d, place %d", g->m, g->n, g->k, at);
	}
	free(row);
	free(want);
}

static void rows(struct cairn_test *t, const char *table, const int (*shapes)[3], size_t num)
{
	struct product p = { .stream = NULL };
	int ret = cairn_impl_open(table, &p.impl);

	if (!ret)
		ret = cairn_impl_start(&p.impl, 0);
	if (ret == -ENODEV) {
		cairn_skip(t, "no device");
		return;
	}
	if (!EXPECT(t, ret == 0) || !EXPECT(t, p.impl.stream_create(&p.stream) == 0))
		return;
	for (size_t i = 0; i < num; i++) {
		if (EXPECT(t, open_product(t, &p, shapes[i][0], shapes[i][1], shapes[i][2]) == 0))
			move_row(t, &p);
		close_product(&p);
	}
	p.impl.stream_destroy(p.stream);
}

static void cpu(struct cairn_test *t)
{
	static const int shapes[][3] = { { 5, 48, 200 }, { 16, 130, 512 }, { 130, 70, 264 } };

	rows(t, "cpu", shapes, ARRAY_SIZE(shapes));
}

/* Each kernel of ours and cuBLASLt's algorithms, with few columns, so that these may split k. */
static void cuda(struct cairn_test *t)
{
	static const int shapes[][3] = {
		{ 4, 4096, 2048 }, { 8, 512, 8192 }, { 16, 4096, 2048 }, { 64, 1024, 8192 },
		{ 64, 6144, 4096 }, { 128, 1024, 8192 }, { 256, 4096, 4096 }, { 512, 512, 14336 },
		{ 512, 6144, 4096 },
	};

	rows(t, "cuda", shapes, ARRAY_SIZE(shapes));
}

static const struct cairn_unit units[] = {
	{ "cpu", cpu },
	{ "cuda", cuda },
};

const struct cairn_family cairn_gemm_rows_family = {
	.stage = "primitives", .name = "gemm_rows", .units = units, .num_units = ARRAY_SIZE(units),
};
