// SPDX-License-Identifier: Apache-2.0
/* qkv_append_bits_test - qkv_append has the bits of gemm, rope and kv_append of the same table */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/open_table_test.h"
#include "fused/qkv/qkv_append_steps.h"

#define PAGE		16
#define MAX_REQUESTS	48
#define MAX_ARRAYS	16

/* A layer of 4 heads of queries and 2 of keys; its arrays in the table's memory */
struct layer {
	struct cairn_impl impl;
	void *stream;
	struct cairn_qkv_append_args args;
	void *array[MAX_ARRAYS];	/* all of them, to be freed */
	int num_arrays;
	size_t q_bytes, page_bytes;	/* of q, of the pages of K or V */
};

static void *room(struct cairn_test *t, struct layer *l, size_t bytes)
{
	void *at = NULL;

	if (EXPECT(t, l->num_arrays < MAX_ARRAYS) && EXPECT(t, l->impl.mem_alloc(&at, bytes) == 0))
		l->array[l->num_arrays++] = at;
	return at;
}

/* Returns a copy of x in the table's memory. */
static void *copy_in(struct cairn_test *t, struct layer *l, const void *x, size_t bytes)
{
	void *at = room(t, l, bytes);

	if (at)
		EXPECT(t, l->impl.mem_copy(at, x, bytes, CAIRN_COPY_TO_DEVICE, l->stream) == 0 &&
		       l->impl.stream_sync(l->stream) == 0);
	return at;
}

/* Returns count numbers of bf16 from 2^-5 to 1, of either sign. */
static void *numbers(struct cairn_test *t, struct layer *l, size_t count)
{
	uint16_t *x = malloc(count * sizeof(*x));
	void *at = NULL;

	for (size_t i = 0; x && i < count; i++) {
		const uint64_t r = cairn_rand(t);

		x[i] = (uint16_t)((r & 0x8000) | (0x3d00 + r % 0x280));
	}
	if (EXPECT(t, x != NULL))
		at = copy_in(t, l, x, count * sizeof(*x));
	free(x);
	return at;
}

/* rows rows of as many requests, or of one; the pages are in descending order */
static void lists(struct cairn_test *t, struct layer *l, int rows, int one)
{
	struct cairn_qkv_append_args *a = &l->args;
	int32_t qo[MAX_REQUESTS + 1] = { 0 }, indptr[MAX_REQUESTS + 1] = { 0 }, last[MAX_REQUESTS];
	int32_t indices[MAX_REQUESTS * 5], positions[MAX_REQUESTS], pages = 0;

	a->kv.batch = one ? 1 : rows;
	for (int32_t b = 0; b < a->kv.batch; b++) {
		qo[b + 1] = one ? rows : b + 1;
		last[b] = one ? 3 : 1 + b * 5 % PAGE;
		pages += one ? 5 : 1 + b % 4;
		indptr[b + 1] = pages;
	}
	for (int32_t i = 0; i < pages; i++)
		indices[i] = pages - 1 - i;
	for (int32_t i = 0; i < rows; i++)
		positions[i] = 1000 + 37 * i;
	a->kv.num_pages = pages;
	a->kv.page_size = PAGE;
	a->qo_indptr = copy_in(t, l, qo, sizeof(qo));
	a->kv.indptr = copy_in(t, l, indptr, sizeof(indptr));
	a->kv.last_page_len = copy_in(t, l, last, sizeof(last));
	a->kv.indices = copy_in(t, l, indices, sizeof(indices));
	a->positions = copy_in(t, l, positions, sizeof(positions));
}

static void open_layer(struct cairn_test *t, struct layer *l, const int *shape)
{
	struct cairn_qkv_append_args *a = &l->args;
	const float scales[2] = { 0.75f, 1.5f };
	float freq[256];
	size_t n;

	*a = (struct cairn_qkv_append_args){
		.size = sizeof(*a), .m = shape[0], .head_dim = shape[2], .k = shape[3], .num_qo_heads = 4,
		.num_kv_heads = 2, .dtype = CAIRN_BF16, .kv_fp8 = shape[5],
	};
	n = (size_t)cairn_qkv_append_n(a);
	for (int p = 0; p < a->head_dim / 2; p++)
		freq[p] = 1.0f / (float)(1 + p * p);
	lists(t, l, a->m, shape[1]);
	a->inv_freq = copy_in(t, l, freq, sizeof(freq));
	a->a = numbers(t, l, (size_t)a->m * (size_t)a->k);
	a->b = numbers(t, l, n * (size_t)a->k);
	if (shape[4])
		a->bias = numbers(t, l, n);
	if (a->kv_fp8)
		a->k_scale = a->v_scale = copy_in(t, l, scales, sizeof(scales));
	l->q_bytes = (size_t)a->m * (size_t)a->num_qo_heads * (size_t)a->head_dim * 2;
	l->page_bytes = (size_t)a->kv.num_pages * PAGE * (size_t)a->num_kv_heads * (size_t)a->head_dim *
			(a->kv_fp8 ? 1 : 2);
	a->q = room(t, l, l->q_bytes);
	a->kv.k_pages = room(t, l, l->page_bytes);
	a->kv.v_pages = room(t, l, l->page_bytes);
	if (a->kv.k_pages && a->kv.v_pages)
		EXPECT(t, l->impl.mem_set(a->kv.k_pages, 0, l->page_bytes, l->stream) == 0 &&
		       l->impl.mem_set(a->kv.v_pages, 0, l->page_bytes, l->stream) == 0);
}

static void close_layer(struct layer *l)
{
	while (l->num_arrays > 0)
		l->impl.mem_free(l->array[--l->num_arrays]);
}

/* Copies the results to x: q, then the pages of K and V. */
static int results(const struct layer *l, char *x)
{
	CAIRN_TRY(l->impl.mem_copy(x + l->q_bytes, l->args.kv.k_pages, l->page_bytes, CAIRN_COPY_TO_HOST,
				   l->stream));
	CAIRN_TRY(l->impl.mem_copy(x + l->q_bytes + l->page_bytes, l->args.kv.v_pages, l->page_bytes,
				   CAIRN_COPY_TO_HOST, l->stream));
	CAIRN_TRY(l->impl.mem_copy(x, l->args.q, l->q_bytes, CAIRN_COPY_TO_HOST, l->stream));
	return l->impl.stream_sync(l->stream);
}

/* Runs the three operations; their queries are copied to q. y: room for the rows of q, k and v */
static int three(const struct layer *l, void *y)
{
	const struct qkv_steps s = qkv_steps_of(&l->args, y);
	const size_t row = l->q_bytes / (size_t)l->args.m;

	CAIRN_TRY(l->impl.gemm(&s.gemm, l->stream));
	CAIRN_TRY(l->impl.rope(&s.rope, l->stream));
	CAIRN_TRY(l->impl.kv_append(&s.append, l->stream));
	for (int32_t i = 0; i < l->args.m; i++)
		CAIRN_TRY(l->impl.mem_copy((char *)l->args.q + (size_t)i * row,
					   (char *)y + (size_t)i * (size_t)s.gemm.n * 2, row,
					   CAIRN_COPY_ON_DEVICE, l->stream));
	return 0;
}

static void compare(struct cairn_test *t, struct layer *l)
{
	const size_t bytes = l->q_bytes + 2 * l->page_bytes;
	void *y = room(t, l, qkv_steps_bytes(&l->args));
	char *one = malloc(bytes), *two = malloc(bytes);

	if (EXPECT(t, one && two && y) &&
	    EXPECT(t, l->impl.qkv_append(&l->args, l->stream) == 0) && EXPECT(t, results(l, one) == 0) &&
	    EXPECT(t, l->impl.mem_set(l->args.kv.k_pages, 0, l->page_bytes, l->stream) == 0) &&
	    EXPECT(t, l->impl.mem_set(l->args.kv.v_pages, 0, l->page_bytes, l->stream) == 0) &&
	    EXPECT(t, three(l, y) == 0) && EXPECT(t, results(l, two) == 0) &&
	    (!EXPECT(t, !memcmp(one, two, l->q_bytes)) ||
	     !EXPECT(t, !memcmp(one + l->q_bytes, two + l->q_bytes, 2 * l->page_bytes))))
		cairn_note(t, "m %d, head_dim %d, k %d", l->args.m, l->args.head_dim, l->args.k);
	free(one);
	free(two);
}

static void bits(struct cairn_test *t, const char *table)
{
	static const int shapes[][6] = {	/* rows, all of one request, head_dim, k, bias, kv_fp8 */
		{ 1, 1, 128, 4096, 0, 0 }, { 3, 0, 64, 264, 1, 0 }, { 8, 1, 128, 520, 0, 1 },
		{ 9, 1, 128, 72, 1, 0 }, { 16, 0, 48, 520, 0, 0 }, { 24, 0, 128, 264, 0, 1 },
		{ 33, 0, 64, 2056, 0, 0 }, { 48, 1, 256, 520, 1, 0 },
		{ 8, 1, 32, 14344, 0, 0 },
	};
	struct layer l = { .stream = NULL };

	if (open_table_and_stream(t, table, &l.impl, &l.stream))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		open_layer(t, &l, shapes[i]);
		compare(t, &l);
		close_layer(&l);
	}
	l.impl.stream_destroy(l.stream);
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

const struct cairn_family cairn_qkv_append_bits_family = {
	.stage = "fused",
	.name = "qkv_append_bits",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
