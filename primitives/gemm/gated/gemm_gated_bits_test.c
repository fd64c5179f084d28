// SPDX-License-Identifier: Apache-2.0
/* gemm_gated_bits_test - gemm_gated has the bits of gemm followed by silu_mul of the same table */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/open_table_test.h"
#include "primitives/rows/silu_mul.h"

/* A product, its arrays in the table's memory. y: gate and up; two: what gemm and silu_mul give */
struct product {
	struct cairn_impl impl;
	struct cairn_gemm_gated_args args;
	void *stream, *y, *two;
	size_t bytes;			/* of out */
};

static uint16_t any(struct cairn_test *t)
{
	const uint64_t r = cairn_rand(t);

	return (uint16_t)((r & 0x8000) | (0x3a00 + r % 0x580));	/* bf16 from 2^-11 to 1, of either sign */
}

/* Fills count numbers in the table's memory. */
static int fill(struct cairn_test *t, struct product *p, const void *at, size_t count)
{
	uint16_t *x = malloc(count * sizeof(*x));
	int ret = x ? 0 : -ENOMEM;

	for (size_t i = 0; x && i < count; i++)
		x[i] = any(t);
	if (!ret)
		ret = p->impl.mem_copy((void *)at, x, count * sizeof(*x), CAIRN_COPY_TO_DEVICE, p->stream);
	if (!ret)
		ret = p->impl.stream_sync(p->stream);
	free(x);
	return ret;
}

static int open_product(struct cairn_test *t, struct product *p, int m, int n, int k, int bias)
{
	struct cairn_gemm_gated_args *g = &p->args;

	*g = (struct cairn_gemm_gated_args){ .size = sizeof(*g), .m = m, .n = n, .k = k,
					     .dtype = CAIRN_BF16 };
	p->bytes = (size_t)m * (size_t)n * 2;
	if (p->impl.mem_alloc(&g->out, p->bytes) || p->impl.mem_alloc(&p->two, p->bytes) ||
	    p->impl.mem_alloc(&p->y, 2 * p->bytes) ||
	    p->impl.mem_alloc((void **)&g->a, (size_t)m * (size_t)k * 2) ||
	    p->impl.mem_alloc((void **)&g->b, (size_t)n * (size_t)k * 4) ||
	    (bias && p->impl.mem_alloc((void **)&g->bias, (size_t)n * 4)))
		return -ENOMEM;
	if (bias)
		CAIRN_TRY(fill(t, p, g->bias, (size_t)n * 2));
	CAIRN_TRY(fill(t, p, g->a, (size_t)m * (size_t)k));
	return fill(t, p, g->b, (size_t)n * (size_t)k * 2);
}

static void close_product(struct product *p)
{
	void *const memory[] = { p->args.out, p->two, p->y, (void *)p->args.a, (void *)p->args.b,
				 (void *)p->args.bias };

	for (size_t i = 0; i < ARRAY_SIZE(memory); i++) {
		if (memory[i])
			p->impl.mem_free(memory[i]);
	}
	p->two = p->y = NULL;
}

static void compare(struct cairn_test *t, struct product *p)
{
	struct cairn_gemm_args product = cairn_gemm_gated_product(&p->args);
	const struct cairn_silu_mul_args silu = {
		.size = sizeof(silu), .out = p->two, .x = p->y, .rows = p->args.m, .dim = p->args.n,
		.dtype = CAIRN_BF16,
	};
	char *x = malloc(2 * p->bytes);

	product.out = p->y;
	if (EXPECT(t, x != NULL) && EXPECT(t, p->impl.gemm_gated(&p->args, p->stream) == 0) &&
	    EXPECT(t, p->impl.gemm(&product, p->stream) == 0) &&
	    EXPECT(t, p->impl.silu_mul(&silu, p->stream) == 0) &&
	    EXPECT(t, p->impl.mem_copy(x, p->args.out, p->bytes, CAIRN_COPY_TO_HOST, p->stream) == 0) &&
	    EXPECT(t, p->impl.mem_copy(x + p->bytes, p->two, p->bytes, CAIRN_COPY_TO_HOST, p->stream) == 0) &&
	    EXPECT(t, p->impl.stream_sync(p->stream) == 0) &&
	    !EXPECT(t, !memcmp(x, x + p->bytes, p->bytes)))
		cairn_note(t, "m %d, n %d, k %d", p->args.m, p->args.n, p->args.k);
	free(x);
}

static void bits(struct cairn_test *t, const char *table)
{
	static const int shapes[][4] = {	/* m, n, k, bias */
		{ 1, 520, 4096, 0 }, { 3, 1000, 264, 1 }, { 8, 4096, 520, 0 }, { 9, 520, 72, 1 },
		{ 16, 2056, 520, 0 }, { 24, 4504, 264, 0 }, { 33, 520, 2056, 0 }, { 48, 1544, 520, 1 },
		{ 5, 264, 4096, 0 }, { 8, 136, 14344, 0 },
	};
	struct product p = { .stream = NULL };

	if (open_table_and_stream(t, table, &p.impl, &p.stream))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		const int *s = shapes[i];

		if (EXPECT(t, open_product(t, &p, s[0], s[1], s[2], s[3]) == 0))
			compare(t, &p);
		close_product(&p);
	}
	p.impl.stream_destroy(p.stream);
}

static void cpu(struct cairn_test *t)
{
	bits(t, "cpu");
}

static void ref(struct cairn_test *t)
{
	bits(t, "ref");
}

static void cuda(struct cairn_test *t)
{
	bits(t, "cuda");
}

static const struct cairn_unit units[] = { { "ref", ref }, { "cpu", cpu }, { "cuda", cuda } };

const struct cairn_family cairn_gemm_gated_bits_family = {
	.stage = "primitives",
	.name = "gemm_gated_bits",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
