// SPDX-License-Identifier: Apache-2.0
/*
 * kv_move_link_test - pages to and from slots in host memory: right, and as fast as the link
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../conformance/harness.h"
#include "../conformance/registry.h"

#define PAGE_BYTES	(16 * 8 * 128 * 2)
#define LAYERS		32
#define PAGES		96
#define PAGE_ALL	((size_t)LAYERS * 2 * PAGE_BYTES)
#define TIMES		5

struct bed {
	struct cairn_impl impl;
	struct cairn_kv_move_args args;
	void *stream, *start, *end, *lists;
	char *store, *host, *want;
	int32_t from[PAGES], to[PAGES];
};

static int bed_time(struct bed *b, int copy, int kind, double *ns)
{
	*ns = 1e30;
	for (int i = 0; i <= TIMES; i++) {
		float ms;

		CAIRN_TRY(b->impl.event_record(b->start, b->stream));
		if (copy)
			CAIRN_TRY(b->impl.mem_copy(kind == CAIRN_COPY_TO_HOST ? b->host : b->store,
						   kind == CAIRN_COPY_TO_HOST ? b->store : b->host,
						   PAGES * PAGE_ALL, kind, b->stream));
		else
			CAIRN_TRY(b->impl.kv_move(&b->args, b->stream));
		CAIRN_TRY(b->impl.event_record(b->end, b->stream));
		CAIRN_TRY(b->impl.stream_sync(b->stream));
		CAIRN_TRY(b->impl.event_elapsed(&ms, b->start, b->end));
		if (i && (double)ms * 1e6 < *ns)
			*ns = (double)ms * 1e6;
	}
	return 0;
}

static int bed_list(struct bed *b)
{
	CAIRN_TRY(b->impl.mem_copy(b->lists, b->from, sizeof(b->from), CAIRN_COPY_TO_DEVICE, b->stream));
	CAIRN_TRY(b->impl.mem_copy((char *)b->lists + sizeof(b->from), b->to, sizeof(b->to),
				   CAIRN_COPY_TO_DEVICE, b->stream));
	return b->impl.stream_sync(b->stream);
}

static int bed_open(struct bed *b)
{
	CAIRN_TRY(b->impl.stream_create(&b->stream));
	CAIRN_TRY(b->impl.event_create(&b->start));
	CAIRN_TRY(b->impl.event_create(&b->end));
	CAIRN_TRY(b->impl.mem_alloc((void **)&b->store, PAGES * PAGE_ALL));
	CAIRN_TRY(b->impl.mem_alloc(&b->lists, sizeof(b->from) + sizeof(b->to)));
	CAIRN_TRY(b->impl.host_alloc((void **)&b->host, PAGES * PAGE_ALL));
	b->want = malloc(PAGES * PAGE_ALL);
	if (!b->want)
		return cairn_error(ENOMEM, "no memory");
	for (size_t i = 0; i < PAGES * PAGE_ALL / 4; i++) {
		uint32_t word = (uint32_t)i * 2654435761u;

		memcpy(b->want + 4 * i, &word, 4);
	}
	b->args = (struct cairn_kv_move_args){
		.size = sizeof(b->args), .base = b->store, .slots = b->host, .from = b->lists,
		.to = (int32_t *)b->lists + PAGES, .layer_bytes = (int64_t)2 * PAGES * PAGE_BYTES,
		.v_offset = (int64_t)PAGES * PAGE_BYTES, .page_bytes = PAGE_BYTES, .num_moves = PAGES,
		.num_layers = LAYERS, .num_pages = PAGES, .num_slots = PAGES,
	};
	return 0;
}

static void bed_close(struct bed *b)
{
	free(b->want);
	if (b->host)
		b->impl.host_free(b->host);
	if (b->lists)
		b->impl.mem_free(b->lists);
	if (b->store)
		b->impl.mem_free(b->store);
	if (b->end)
		b->impl.event_destroy(b->end);
	if (b->start)
		b->impl.event_destroy(b->start);
	if (b->stream)
		b->impl.stream_destroy(b->stream);
}

static void bed_row(struct cairn_test *t, const char *name, const char *impl, double ns)
{
	cairn_row(t, name, impl, "\"median_ns\":%.0f,\"bytes\":%.0f,\"gbps\":%.2f", ns,
		  (double)PAGES * PAGE_ALL, PAGES * PAGE_ALL / ns);
	cairn_note(t, "%-28s %-7s %8.1f us %6.2f GB/s", name, impl, ns * 1e-3, PAGES * PAGE_ALL / ns);
}

/* Page i <-> slot 5 i mod PAGES, what is to be copied in its place, and another thing where it goes. */
static int bed_prepare(struct bed *b, int back)
{
	for (int32_t i = 0; i < PAGES; i++) {
		b->from[i] = back ? ~(i * 5 % PAGES) : i;
		b->to[i] = back ? i : ~(i * 5 % PAGES);
	}
	CAIRN_TRY(bed_list(b));
	memcpy(b->host, b->want, PAGES * PAGE_ALL);
	if (back)
		return b->impl.mem_set(b->store, 0x11, PAGES * PAGE_ALL, b->stream);
	CAIRN_TRY(b->impl.mem_copy(b->store, b->host, PAGES * PAGE_ALL, CAIRN_COPY_TO_DEVICE, b->stream));
	CAIRN_TRY(b->impl.stream_sync(b->stream));
	memset(b->host, 0x11, PAGES * PAGE_ALL);
	return 0;
}

/* All parts of all pages, in whatever place they are now. */
static int bed_is_right(struct bed *b, int back)
{
	if (back && (b->impl.mem_copy(b->host, b->store, PAGES * PAGE_ALL, CAIRN_COPY_TO_HOST, b->stream) ||
		     b->impl.stream_sync(b->stream)))
		return 0;
	for (int64_t part = 0; part < (int64_t)PAGES * LAYERS * 2; part++) {
		int64_t page = part % PAGES, side = part / PAGES, slot = page * 5 % PAGES;
		const char *as_page = (back ? b->host : b->want) + part * PAGE_BYTES;
		const char *as_slot = (back ? b->want : b->host) + (slot * LAYERS * 2 + side) * PAGE_BYTES;

		if (memcmp(as_page, as_slot, PAGE_BYTES))
			return 0;
	}
	return 1;
}

/*
 * Out to pinned host memory and back into other pages, by so many CTAs; each way checked whole. Beside them
 * what one contiguous copy by the copy engine takes: the link's speed.
 */
static void host_slots(struct cairn_test *t)
{
	static const int32_t ctas[] = { 0, 1, 2, 4, 8, 16, 32, 64 };
	struct bed b = { .stream = NULL };
	double ns;

	if (cairn_impl_open("cuda", &b.impl) || cairn_impl_start(&b.impl, 0)) {
		cairn_skip(t, "no CUDA device: %s", cairn_last_error());
		return;
	}
	if (!EXPECT(t, bed_open(&b) == 0))
		goto out_close;
	for (int back = 0; back < 2; back++) {
		if (!EXPECT(t, bed_time(&b, 1, back ? CAIRN_COPY_TO_DEVICE : CAIRN_COPY_TO_HOST, &ns) == 0))
			break;
		bed_row(t, back ? "copy_engine_in" : "copy_engine_out", "copy", ns);
		for (size_t k = 0; k < ARRAY_SIZE(ctas); k++) {
			char name[64];

			b.args.max_ctas = ctas[k];
			if (!EXPECT(t, bed_prepare(&b, back) == 0) ||
			    !EXPECT(t, bed_time(&b, 0, 0, &ns) == 0) ||
			    !EXPECT(t, bed_is_right(&b, back)))
				goto out_close;
			snprintf(name, sizeof(name), "host_%s_ctas%d", back ? "in" : "out", ctas[k]);
			bed_row(t, name, "cuda", ns);
		}
	}
out_close:
	bed_close(&b);
	cairn_impl_stop(&b.impl);
}

static const struct cairn_unit measures[] = { { "host_slots", host_slots } };

const struct cairn_family cairn_kv_move_link_family = {
	.stage = "fused", .name = "kv_move_link",
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .timeout_s = 120,
};
