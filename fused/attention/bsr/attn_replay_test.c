// SPDX-License-Identifier: Apache-2.0
/*
 * attn_replay_test - a captured call of attn_bsr, replayed with other lists of other lengths (claim FI-6)
 *
 * The call is captured once. Then lists are written into the arrays that it reads, and the graph is launched.
 * The result must be bitwise equal to that of a call outside the graph with the same lists. Other cases check
 * the results of such calls. The bench row needs a GPU; the same code also runs on the cpu table, which has
 * no graphs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"
#include "fused/attention/bsr/attn_bsr.h"

#define REPLAYS	8
#define BLOCK	16		/* slots */

struct shape {
	int batch, heads, kv_heads, dim;
	int blocks, longest;	/* of the pool, and of a list */
};

static const struct shape serving = { 16, 32, 8, 128, 1024, 320 }, tiny = { 5, 4, 2, 64, 30, 20 };

/* The lists of all requests. On the device, the three arrays have the same distances from each other. */
struct lists {
	int32_t *indptr, *last_len, *indices;
};

/* CAPTURED: the call in the graph; DIRECT: the same call outside the graph. */
enum { CAPTURED, DIRECT, CALLS };

struct bed {
	struct cairn_impl impl;
	const struct shape *s;
	void *stream, *graph;
	uint16_t *host;			/* as large as the pool */
	void *q, *k, *v, *out[CALLS], *workspace[CALLS], *got[CALLS];
	struct lists lists[CALLS], drawn;
	struct cairn_attn_bsr_args args[CALLS];
	size_t list_bytes, out_bytes;
};

static void place(struct lists *l, const struct shape *s, void *base)
{
	l->indptr = base;
	l->last_len = l->indptr + s->batch + 1;
	l->indices = l->last_len + s->batch;
}

/* Allocates `count` elements on the device and fills them with random numbers. */
static int open_numbers(struct cairn_test *t, struct bed *b, void **x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		b->host[i] = cairn_double_to_bf16((double)(cairn_rand(t) % 4001) / 1000 - 2);
	CAIRN_TRY(b->impl.mem_alloc(x, 2 * count));
	CAIRN_TRY(b->impl.mem_copy(*x, b->host, 2 * count, CAIRN_COPY_TO_DEVICE, b->stream));
	return b->impl.stream_sync(b->stream);
}

static int open_call(struct bed *b, int call)
{
	struct cairn_attn_bsr_args *a = &b->args[call];
	const struct shape *s = b->s;
	void *base;

	CAIRN_TRY(b->impl.mem_alloc(&base, b->list_bytes));
	place(&b->lists[call], s, base);
	CAIRN_TRY(b->impl.mem_alloc(&b->out[call], b->out_bytes));
	*a = (struct cairn_attn_bsr_args){
		.size = sizeof(*a), .out = b->out[call], .q = b->q, .num_parts = 1, .nnz_qo = s->batch,
		.num_qo_heads = s->heads, .num_kv_heads = s->kv_heads, .head_dim = s->dim,
		.dtype = CAIRN_BF16, .sm_scale = 0.1f,
	};
	a->part[0] = (struct cairn_attn_part){
		.k = b->k, .v = b->v, .blk_indptr = b->lists[call].indptr,
		.blk_indices = b->lists[call].indices, .last_len = b->lists[call].last_len,
		.rows = s->batch, .block_m = 1, .block_n = BLOCK, .index_heads = 1,
		.num_blocks = s->blocks, .max_keys = s->longest * BLOCK,
	};
	if (!b->impl.attn_bsr_workspace)
		return 0;
	CAIRN_TRY(b->impl.attn_bsr_workspace(a, &a->workspace_bytes));
	if (a->workspace_bytes)
		CAIRN_TRY(b->impl.mem_alloc(&b->workspace[call], a->workspace_bytes));
	a->workspace = b->workspace[call];
	return 0;
}

static int bed_open(struct cairn_test *t, struct bed *b)
{
	const struct shape *s = b->s;
	size_t pool = (size_t)s->blocks * BLOCK * (size_t)s->kv_heads * (size_t)s->dim;
	size_t row = (size_t)s->heads * (size_t)s->dim;

	b->list_bytes = (size_t)(2 * s->batch + 1 + s->batch * s->longest) * sizeof(int32_t);
	b->out_bytes = 2 * (size_t)s->batch * row;
	b->host = malloc(2 * (pool > s->batch * row ? pool : s->batch * row));
	b->drawn.indptr = calloc(1, b->list_bytes);
	b->got[CAPTURED] = malloc(b->out_bytes);
	b->got[DIRECT] = malloc(b->out_bytes);
	if (!b->host || !b->drawn.indptr || !b->got[CAPTURED] || !b->got[DIRECT])
		abort();
	place(&b->drawn, s, b->drawn.indptr);
	CAIRN_TRY(b->impl.stream_create(&b->stream));
	CAIRN_TRY(open_numbers(t, b, &b->q, s->batch * row));
	CAIRN_TRY(open_numbers(t, b, &b->k, pool));
	CAIRN_TRY(open_numbers(t, b, &b->v, pool));
	CAIRN_TRY(open_call(b, CAPTURED));
	return open_call(b, DIRECT);
}

static void bed_close(struct bed *b)
{
	void *device[] = { b->q, b->k, b->v, b->out[0], b->out[1], b->workspace[0], b->workspace[1],
			   b->lists[0].indptr, b->lists[1].indptr };

	if (b->graph)
		b->impl.graph_destroy(b->graph);
	for (size_t i = 0; i < ARRAY_SIZE(device); i++)
		if (device[i])
			b->impl.mem_free(device[i]);
	if (b->stream)
		b->impl.stream_destroy(b->stream);
	free(b->host);
	free(b->drawn.indptr);
	free(b->got[CAPTURED]);
	free(b->got[DIRECT]);
	cairn_impl_stop(&b->impl);
}

/* Draws lists: some requests have one block or none, others up to the longest list. */
static void draw_lists(struct cairn_test *t, struct bed *b)
{
	const struct shape *s = b->s;
	int32_t total = 0;

	for (int r = 0; r < s->batch; r++) {
		int32_t most = cairn_rand(t) % 3 ? s->longest : 1;
		int32_t num = (int32_t)(cairn_rand(t) % (uint64_t)(most + 1));

		b->drawn.indptr[r] = total;
		b->drawn.last_len[r] = num ? 1 + (int32_t)(cairn_rand(t) % BLOCK) : 0;
		for (int32_t i = 0; i < num; i++)
			b->drawn.indices[total++] = (int32_t)(cairn_rand(t) % (uint64_t)s->blocks);
	}
	b->drawn.indptr[s->batch] = total;
}

static int write_lists(struct bed *b, int call)
{
	return b->impl.mem_copy(b->lists[call].indptr, b->drawn.indptr, b->list_bytes, CAIRN_COPY_TO_DEVICE,
				b->stream);
}

/* Captures the call. For a table without graphs it captures nothing, and replay() calls directly. */
static int capture(struct cairn_test *t, struct bed *b)
{
	int ret;

	draw_lists(t, b);
	CAIRN_TRY(write_lists(b, CAPTURED));
	CAIRN_TRY(b->impl.attn_bsr(&b->args[CAPTURED], b->stream));
	CAIRN_TRY(b->impl.stream_sync(b->stream));
	ret = b->impl.graph_begin(b->stream);
	if (ret == -EOPNOTSUPP)
		return 0;
	CAIRN_TRY(ret);
	CAIRN_TRY(b->impl.attn_bsr(&b->args[CAPTURED], b->stream));
	return b->impl.graph_end(b->stream, &b->graph);
}

/*
 * Runs both calls on the drawn lists and fetches the results. With `stale`, the captured call keeps its old
 * lists.
 */
static int replay(struct bed *b, int stale)
{
	if (!stale)
		CAIRN_TRY(write_lists(b, CAPTURED));
	CAIRN_TRY(write_lists(b, DIRECT));
	for (int call = 0; call < CALLS; call++)
		CAIRN_TRY(b->impl.mem_set(b->out[call], 0xff, b->out_bytes, b->stream));
	if (b->graph)
		CAIRN_TRY(b->impl.graph_launch(b->graph, b->stream));
	else
		CAIRN_TRY(b->impl.attn_bsr(&b->args[CAPTURED], b->stream));
	CAIRN_TRY(b->impl.attn_bsr(&b->args[DIRECT], b->stream));
	for (int call = 0; call < CALLS; call++)
		CAIRN_TRY(b->impl.mem_copy(b->got[call], b->out[call], b->out_bytes, CAIRN_COPY_TO_HOST,
					   b->stream));
	return b->impl.stream_sync(b->stream);
}

/* Returns the number of replays that are bitwise equal to a direct call, or -1 if something failed. */
static int equal_replays(struct cairn_test *t, struct bed *b, int stale)
{
	int equal = 0;

	if (!EXPECT(t, capture(t, b) == 0))
		return -1;
	for (int i = 0; i < REPLAYS; i++) {
		draw_lists(t, b);
		if (!EXPECT(t, replay(b, stale) == 0))
			return -1;
		equal += !memcmp(b->got[CAPTURED], b->got[DIRECT], b->out_bytes);
	}
	return equal;
}

static void replays(struct cairn_test *t)
{
	struct bed b = { .s = &serving };
	int equal = -1;

	if (cairn_impl_open("cuda", &b.impl) || cairn_impl_start(&b.impl, 0)) {
		cairn_skip(t, "cuda: %s", cairn_last_error());
		return;
	}
	if (EXPECT(t, bed_open(t, &b) == 0))
		equal = equal_replays(t, &b, 0);
	if (EXPECT(t, b.graph != NULL) && equal >= 0) {
		cairn_row(t, "h32_8_b16_page16_bf16", "cuda", "\"replays\":%d,\"equal\":%d", REPLAYS, equal);
		cairn_note(t, "%d of %d replays equal a direct call", equal, REPLAYS);
	}
	bed_close(&b);
}

/* The check must pass on the cpu table, and must detect a call that keeps its old lists. */
static void small(struct cairn_test *t)
{
	for (int stale = 0; stale < 2; stale++) {
		struct bed b = { .s = &tiny };

		if (!EXPECT(t, cairn_impl_open("cpu", &b.impl) == 0) ||
		    !EXPECT(t, cairn_impl_start(&b.impl, 0) == 0))
			return;
		if (EXPECT(t, bed_open(t, &b) == 0))
			EXPECT(t, equal_replays(t, &b, stale) == (stale ? 0 : REPLAYS));
		bed_close(&b);
	}
}

static const struct cairn_unit units[] = { { "small", small } };

static const struct cairn_unit measures[] = { { "replays", replays } };

const struct cairn_family cairn_attn_replay_family = {
	.stage = "fused", .name = "attn_replay", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .timeout_s = 120,
};
