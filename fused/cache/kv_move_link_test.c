// SPDX-License-Identifier: Apache-2.0
/*
 * kv_move_link_test - moves pages to and from slots in host memory: correctness, and speed compared with that
 * of the link
 *
 * Correctness is also tested on the cpu table; bench rows need a GPU:
 *
 *   copy_engine_out, copy_engine_in	one contiguous copy of the same size: the link's speed
 *   host_out_ctasN, host_in_ctasN	one launch of kv_move over the link, limited to N CTAs (0: no limit)
 *   pages_in_SHAPE, pages_out_SHAPE	claim NF-10, by three methods:
 *	pieces	a copy for each page, layer and side, as engines without a better method issue
 *	staged	one contiguous copy, and one launch of kv_move between the staging buffer and the pages
 *	cuda	one launch of kv_move over the link, as above
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"

#define TIMES	7
#define STRIDE	5		/* page i goes to slot 5 i mod num_pages; 5 must not divide num_pages */

struct shape {
	const char *name;
	int64_t page_bytes;	/* K of one page in one layer */
	int32_t layers, pages;
};

static const struct shape shapes[] = {
	{ .name = "llama3_8b_page16", .page_bytes = 16 * 8 * 128 * 2, .layers = 32, .pages = 96 },
	{ .name = "llama3_8b_page64", .page_bytes = 64 * 8 * 128 * 2, .layers = 32, .pages = 24 },
	/* tensor parallelism over eight GPUs: each has one KV head */
	{ .name = "llama2_70b_of8_page16", .page_bytes = 16 * 1 * 128 * 2, .layers = 80, .pages = 96 },
};
static const struct shape tiny = { .name = "tiny", .page_bytes = 64, .layers = 3, .pages = 8 };

/* LINK: one contiguous copy. LAUNCH: kv_move over the link. PIECES, STAGED: as above. */
enum way { LINK, LAUNCH, PIECES, STAGED };

/* The memory of a test: pages on the device, slots on the host. */
struct bed {
	struct cairn_impl impl;
	struct cairn_kv_move_args args;	/* slots: in host memory */
	void *stream, *start, *end, *lists;	/* start, end: events; lists: from and to, on the device */
	/* the pages (device), the slots (pinned), their expected contents, a contiguous buffer (device) */
	char *store, *host, *want, *staging;
	int32_t *from, *to;		/* host copies of the lists */
	size_t bytes;			/* of all pages */
	int num_pages;
};

static int copy_pieces(struct bed *b, int back)
{
	const struct cairn_kv_move_args *a = &b->args;

	for (int32_t i = 0; i < a->num_moves; i++) {
		int32_t page = back ? b->to[i] : b->from[i], slot = back ? ~b->from[i] : ~b->to[i];

		for (int32_t part = 0; part < 2 * a->num_layers; part++) {
			char *at = b->store + part / 2 * a->layer_bytes + part % 2 * a->v_offset +
				   page * a->page_bytes;
			char *out = b->host + ((int64_t)slot * a->num_layers * 2 + part) * a->page_bytes;

			CAIRN_TRY(b->impl.mem_copy(back ? at : out, back ? out : at, (size_t)a->page_bytes,
						   back ? CAIRN_COPY_TO_DEVICE : CAIRN_COPY_TO_HOST,
						   b->stream));
		}
	}
	return 0;
}

static int copy_staged(struct bed *b, int back)
{
	struct cairn_kv_move_args a = b->args;

	a.slots = b->staging;
	if (back)
		CAIRN_TRY(b->impl.mem_copy(b->staging, b->host, b->bytes, CAIRN_COPY_TO_DEVICE, b->stream));
	CAIRN_TRY(b->impl.kv_move(&a, b->stream));
	return back ? 0 : b->impl.mem_copy(b->host, b->staging, b->bytes, CAIRN_COPY_TO_HOST, b->stream);
}

static int bed_go(struct bed *b, enum way way, int back)
{
	if (way == LAUNCH)
		return b->impl.kv_move(&b->args, b->stream);
	if (way == PIECES)
		return copy_pieces(b, back);
	if (way == STAGED)
		return copy_staged(b, back);
	return b->impl.mem_copy(back ? b->store : b->host, back ? b->host : b->store, b->bytes,
				back ? CAIRN_COPY_TO_DEVICE : CAIRN_COPY_TO_HOST, b->stream);
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Measures the median after one warm-up run; the host's calls are included. */
static int bed_time(struct bed *b, enum way way, int back, double *ns)
{
	float ms[TIMES], first;

	for (int i = -1; i < TIMES; i++) {
		CAIRN_TRY(b->impl.event_record(b->start, b->stream));
		CAIRN_TRY(bed_go(b, way, back));
		CAIRN_TRY(b->impl.event_record(b->end, b->stream));
		CAIRN_TRY(b->impl.stream_sync(b->stream));
		CAIRN_TRY(b->impl.event_elapsed(i < 0 ? &first : &ms[i], b->start, b->end));
	}
	qsort(ms, TIMES, sizeof(*ms), by_value);
	*ns = (double)ms[TIMES / 2] * 1e6;
	return 0;
}

static int bed_open(struct bed *b, const struct shape *s)
{
	size_t list = (size_t)s->pages * sizeof(int32_t);

	b->num_pages = s->pages;
	b->bytes = (size_t)(s->pages * s->layers * 2 * s->page_bytes);
	CAIRN_TRY(b->impl.stream_create(&b->stream));
	CAIRN_TRY(b->impl.event_create(&b->start));
	CAIRN_TRY(b->impl.event_create(&b->end));
	CAIRN_TRY(b->impl.mem_alloc((void **)&b->store, b->bytes));
	CAIRN_TRY(b->impl.mem_alloc((void **)&b->staging, b->bytes));
	CAIRN_TRY(b->impl.mem_alloc(&b->lists, 2 * list));
	CAIRN_TRY(b->impl.host_alloc((void **)&b->host, b->bytes));
	b->want = malloc(b->bytes);
	b->from = malloc(2 * list);
	if (!b->want || !b->from)
		return cairn_error(ENOMEM, "no memory");
	b->to = b->from + s->pages;
	for (size_t i = 0; i < b->bytes / 4; i++) {
		uint32_t word = (uint32_t)i * 2654435761u;

		memcpy(b->want + 4 * i, &word, 4);
	}
	b->args = (struct cairn_kv_move_args){
		.size = sizeof(b->args), .base = b->store, .slots = b->host, .from = b->lists,
		.to = (int32_t *)b->lists + s->pages, .layer_bytes = 2 * s->pages * s->page_bytes,
		.v_offset = s->pages * s->page_bytes, .page_bytes = s->page_bytes, .num_moves = s->pages,
		.num_layers = s->layers, .num_pages = s->pages, .num_slots = s->pages,
	};
	return 0;
}

static void bed_close(struct bed *b)
{
	free(b->want);
	free(b->from);
	if (b->host)
		b->impl.host_free(b->host);
	if (b->lists)
		b->impl.mem_free(b->lists);
	if (b->staging)
		b->impl.mem_free(b->staging);
	if (b->store)
		b->impl.mem_free(b->store);
	if (b->end)
		b->impl.event_destroy(b->end);
	if (b->start)
		b->impl.event_destroy(b->start);
	if (b->stream)
		b->impl.stream_destroy(b->stream);
}

/* Writes the lists, the expected contents to the source, and other contents to the target. */
static int bed_prepare(struct bed *b, int back)
{
	for (int32_t i = 0; i < b->num_pages; i++) {
		int32_t slot = i * STRIDE % b->num_pages;

		b->from[i] = back ? ~slot : i;
		b->to[i] = back ? i : ~slot;
	}
	CAIRN_TRY(b->impl.mem_copy(b->lists, b->from, 2 * (size_t)b->num_pages * sizeof(int32_t),
				   CAIRN_COPY_TO_DEVICE, b->stream));
	CAIRN_TRY(b->impl.stream_sync(b->stream));
	memcpy(b->host, b->want, b->bytes);
	CAIRN_TRY(b->impl.mem_set(b->staging, 0x22, b->bytes, b->stream));
	if (back)
		return b->impl.mem_set(b->store, 0x11, b->bytes, b->stream);
	CAIRN_TRY(b->impl.mem_copy(b->store, b->host, b->bytes, CAIRN_COPY_TO_DEVICE, b->stream));
	CAIRN_TRY(b->impl.stream_sync(b->stream));
	memset(b->host, 0x11, b->bytes);
	return 0;
}

/* Returns whether the target holds all parts of all pages. */
static int bed_is_right(struct bed *b, int back)
{
	int64_t parts = 2 * b->args.num_layers, bytes = b->args.page_bytes;

	if (back && (b->impl.mem_copy(b->host, b->store, b->bytes, CAIRN_COPY_TO_HOST, b->stream) ||
		     b->impl.stream_sync(b->stream)))
		return 0;
	for (int64_t i = 0; i < b->num_pages * parts; i++) {
		int64_t page = i % b->num_pages, part = i / b->num_pages, slot = page * STRIDE % b->num_pages;
		const char *as_page = (back ? b->host : b->want) + i * bytes;
		const char *as_slot = (back ? b->want : b->host) + (slot * parts + part) * bytes;

		if (memcmp(as_page, as_slot, (size_t)bytes))
			return 0;
	}
	return 1;
}

static int bed_checked_time(struct cairn_test *t, struct bed *b, enum way way, int back, double *ns)
{
	return EXPECT(t, bed_prepare(b, back) == 0) && EXPECT(t, bed_time(b, way, back, ns) == 0) &&
	       EXPECT(t, bed_is_right(b, back));
}

static void bed_row(struct cairn_test *t, const struct bed *b, const char *name, const char *impl, int copies,
		    double ns)
{
	cairn_row(t, name, impl, "\"median_ns\":%.0f,\"bytes\":%zu,\"gbps\":%.2f,\"copies\":%d", ns, b->bytes,
		  (double)b->bytes / ns, copies);
	cairn_note(t, "%-32s %-7s %8.1f us %6.2f GB/s", name, impl, ns * 1e-3, (double)b->bytes / ns);
}

/* Opens a bed on the first GPU. Returns -1 if there is none (the test is skipped) or if it failed. */
static int on_gpu(struct cairn_test *t, struct bed *b, const struct shape *s)
{
	memset(b, 0, sizeof(*b));
	if (cairn_impl_open("cuda", &b->impl) || cairn_impl_start(&b->impl, 0)) {
		cairn_skip(t, "cuda: %s", cairn_last_error());
		return -1;
	}
	if (EXPECT(t, bed_open(b, s) == 0))
		return 0;
	bed_close(b);
	cairn_impl_stop(&b->impl);
	return -1;
}

/*
 * Times pages to pinned host memory and back, by different numbers of CTAs, and checks every result. One
 * contiguous copy by the copy engine shows the link's speed.
 */
static void host_slots(struct cairn_test *t)
{
	static const int32_t ctas[] = { 0, 1, 2, 4, 8, 16, 32, 64 };
	struct bed b;
	double ns;

	if (on_gpu(t, &b, &shapes[0]))
		return;
	for (int back = 0; back < 2; back++) {
		if (!EXPECT(t, bed_time(&b, LINK, back, &ns) == 0))
			break;
		bed_row(t, &b, back ? "copy_engine_in" : "copy_engine_out", "copy", 1, ns);
		for (size_t k = 0; k < ARRAY_SIZE(ctas); k++) {
			char name[64];

			b.args.max_ctas = ctas[k];
			if (!bed_checked_time(t, &b, LAUNCH, back, &ns))
				goto out_close;
			snprintf(name, sizeof(name), "host_%s_ctas%d", back ? "in" : "out", ctas[k]);
			bed_row(t, &b, name, "cuda", 0, ns);
		}
	}
out_close:
	bed_close(&b);
	cairn_impl_stop(&b.impl);
}

/* Claim NF-10: the three methods, both ways, on every shape. */
static void pieces(struct cairn_test *t)
{
	static const struct { enum way way; const char *impl; } ways[] = {
		{ PIECES, "pieces" }, { STAGED, "staged" }, { LAUNCH, "cuda" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct bed b;
		double ns;

		if (on_gpu(t, &b, &shapes[i]))
			return;
		for (size_t k = 0; k < 2 * ARRAY_SIZE(ways); k++) {
			int back = k < ARRAY_SIZE(ways), way = (int)(k % ARRAY_SIZE(ways));
			char name[64];

			if (!bed_checked_time(t, &b, ways[way].way, back, &ns))
				break;
			snprintf(name, sizeof(name), "pages_%s_%s", back ? "in" : "out", shapes[i].name);
			bed_row(t, &b, name, ways[way].impl,
				way ? way == 1 : 2 * shapes[i].layers * shapes[i].pages, ns);
		}
		bed_close(&b);
		cairn_impl_stop(&b.impl);
	}
}

/* Every method must be correct on the cpu table, and the check must notice if one move is missing. */
static void small(struct cairn_test *t)
{
	struct bed b = { .stream = NULL };
	double ns;

	if (!EXPECT(t, cairn_impl_open("cpu", &b.impl) == 0) || !EXPECT(t, cairn_impl_start(&b.impl, 0) == 0))
		return;
	if (EXPECT(t, bed_open(&b, &tiny) == 0)) {
		for (int back = 0; back < 2; back++) {
			EXPECT(t, bed_checked_time(t, &b, LAUNCH, back, &ns));
			EXPECT(t, bed_checked_time(t, &b, PIECES, back, &ns));
			EXPECT(t, bed_checked_time(t, &b, STAGED, back, &ns));
			b.args.num_moves--;
			for (enum way way = LAUNCH; way <= STAGED; way++)
				EXPECT(t, bed_prepare(&b, back) == 0 && bed_go(&b, way, back) == 0 &&
					  !bed_is_right(&b, back));
			b.args.num_moves++;
		}
	}
	bed_close(&b);
	cairn_impl_stop(&b.impl);
}

static const struct cairn_unit units[] = { { "small", small } };

static const struct cairn_unit measures[] = { { "host_slots", host_slots }, { "pieces", pieces } };

const struct cairn_family cairn_kv_move_link_family = {
	.stage = "fused", .name = "kv_move_link", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .timeout_s = 120,
};
