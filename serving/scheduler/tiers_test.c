// SPDX-License-Identifier: Apache-2.0
/* tiers_test - random moves, many through the disk, have the same result as moves done one by one */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_test.h"
#include "serving/scheduler/tiers.h"

enum { PAGES = 12, SLOTS = 5, PLACES = 16, MOVES = 400, OFFLOADS = 3 };

struct room {
	struct cairn_model *m;
	struct cairn_kv_store kv;
	struct cairn_tiers *tiers;
	void *stream;
	char *bytes;			/* one page on one side of a layer, page_bytes */
	size_t page_bytes;
	/* expected contents: all bytes of a page, slot or place have this value */
	uint8_t pages[PAGES], slots[SLOTS], places[PLACES];
	struct cairn_move moves[MOVES];
	int32_t num_moves;
};

/* Returns the number of parts of a page: each side of each layer. */
static int num_parts(const struct room *r)
{
	return r->m->config.num_hidden_layers * (r->kv.v_offset ? 2 : 1);
}

static char *part(const struct room *r, int page, int k)
{
	int sides = r->kv.v_offset ? 2 : 1;

	return r->kv.base + (size_t)(k / sides) * r->kv.layer_bytes + (size_t)(k % sides) * r->kv.v_offset +
	       (size_t)page * r->page_bytes;
}

static void fill(struct cairn_test *t, struct room *r)
{
	for (int p = 0; p < PAGES; p++) {
		r->pages[p] = (uint8_t)cairn_rand(t);
		memset(r->bytes, r->pages[p], r->page_bytes);
		for (int k = 0; k < num_parts(r); k++)
			EXPECT(t, r->m->impl->mem_copy(part(r, p, k), r->bytes, r->page_bytes,
						       CAIRN_COPY_TO_DEVICE, r->stream) == 0 &&
				  r->m->impl->stream_sync(r->stream) == 0);
	}
}

static int check(struct cairn_test *t, struct room *r)
{
	int num_wrong = 0;

	for (int p = 0; p < PAGES; p++) {
		int wrong = 0;

		for (int k = 0; k < num_parts(r); k++) {
			EXPECT(t, r->m->impl->mem_copy(r->bytes, part(r, p, k), r->page_bytes,
						       CAIRN_COPY_TO_HOST, r->stream) == 0 &&
				  r->m->impl->stream_sync(r->stream) == 0);
			for (size_t i = 0; i < r->page_bytes; i++)
				wrong |= (uint8_t)r->bytes[i] != r->pages[p];
		}
		num_wrong += wrong;
	}
	return num_wrong;
}

static void add(struct room *r, int kind, int page, int to)
{
	r->moves[r->num_moves++] = (struct cairn_move){ .kind = kind, .page = page, .to = to };
	if (kind == CAIRN_MOVE_COPY)
		r->pages[to] = r->pages[page];
	else if (kind == CAIRN_MOVE_OUT || kind == CAIRN_MOVE_OFFLOAD)
		r->slots[to] = r->pages[page];
	else if (kind == CAIRN_MOVE_IN)
		r->pages[page] = r->slots[to];
	else if (kind == CAIRN_MOVE_SPILL)
		r->places[to] = r->slots[page];
	else
		r->slots[page] = r->places[to];
}

/* Executes a plan without rows. The last `behind` moves are those after the rows. */
static void carry_out(struct cairn_test *t, struct room *r, int behind)
{
	struct cairn_step_plan plan = {
		.moves = r->moves, .num_moves_before = r->num_moves - behind, .num_moves = r->num_moves,
	};

	EXPECT(t, cairn_tiers_before(r->tiers, &plan) == 0 && cairn_tiers_after(r->tiers, &plan) == 0);
	r->num_moves = 0;
}

/* Makes random moves. With reads 0 no slot is read to the device, so only writes can wait for the disk. */
static void any_moves(struct cairn_test *t, struct room *r, int reads)
{
	static const int kinds[] = {
		CAIRN_MOVE_COPY, CAIRN_MOVE_OUT, CAIRN_MOVE_OUT, CAIRN_MOVE_IN, CAIRN_MOVE_SPILL,
		CAIRN_MOVE_SPILL, CAIRN_MOVE_FETCH,
	};

	while (r->num_moves < MOVES - OFFLOADS) {
		int kind = kinds[cairn_rand(t) % ARRAY_SIZE(kinds)], page = (int)(cairn_rand(t) % PAGES);
		int slot = (int)(cairn_rand(t) % SLOTS), place = (int)(cairn_rand(t) % PLACES);

		if (kind == CAIRN_MOVE_IN && !reads)
			continue;
		if (kind == CAIRN_MOVE_COPY)
			add(r, kind, page, (page + 1) % PAGES);
		else if (kind == CAIRN_MOVE_OUT || kind == CAIRN_MOVE_IN)
			add(r, kind, page, slot);
		else
			add(r, kind, slot, place);
	}
	for (int i = 0; i < OFFLOADS; i++)
		add(r, CAIRN_MOVE_OFFLOAD, i, i);
	carry_out(t, r, OFFLOADS);
}

static void in_order(struct cairn_test *t, const char *table)
{
	struct cairn_tiers_options opt = {
		.host_pages = SLOTS, .disk_pages = PLACES, .disk_dir = cairn_tmpdir(t),
	};
	struct room *r = calloc(1, sizeof(*r));
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, table, "llama2_tiny", &impl, &g, &r->m))
		goto out;
	EXPECT(t, impl.stream_create(&r->stream) == 0);
	EXPECT(t, cairn_kv_store_create(&r->kv, r->m, PAGES, 2) == 0);
	r->page_bytes = 2 * (size_t)r->m->dims[CAIRN_D_KV] * cairn_dtype_bytes(r->m->dtype);
	r->bytes = malloc(r->page_bytes);
	if (!EXPECT(t, cairn_tiers_create(&r->tiers, r->m, &r->kv, r->stream, &opt) == 0))
		goto out_model;
	fill(t, r);
	for (int i = 0; i < SLOTS; i++)
		add(r, CAIRN_MOVE_OUT, i, i);
	for (int i = 0; i < PLACES; i++)
		add(r, CAIRN_MOVE_SPILL, i % SLOTS, i);
	carry_out(t, r, 0);
	for (int round = 0; round < 8; round++) {
		int wrong;

		fill(t, r);
		any_moves(t, r, round % 2);
		wrong = check(t, r);
		for (int i = 0; i < SLOTS; i++)
			add(r, CAIRN_MOVE_IN, i, i);
		for (int i = 0; i < PLACES; i++) {
			if (i == PLACES / 2) {
				carry_out(t, r, 0);
				wrong += check(t, r);
			}
			add(r, CAIRN_MOVE_FETCH, i % SLOTS, i);
			add(r, CAIRN_MOVE_IN, i % SLOTS + i % 2 * SLOTS, i % SLOTS);
		}
		carry_out(t, r, 0);
		wrong += check(t, r);
		if (!EXPECT(t, wrong == 0))
			cairn_note(t, "round %d: %d wrong pages", round, wrong);
	}
	cairn_tiers_destroy(r->tiers);
out_model:
	free(r->bytes);
	cairn_kv_store_destroy(&r->kv, r->m);
	impl.stream_destroy(r->stream);
	close_model(r->m, &g);
out:
	free(r);
}

#define TABLE(table) static void in_order_##table(struct cairn_test *t) { in_order(t, #table); }
TABLE(ref)
TABLE(cpu)
TABLE(cuda)
TABLE(late)
#define UNIT(table)	{ "in_order_" #table, in_order_##table }

static const struct cairn_unit units[] = { UNIT(ref), UNIT(cpu), UNIT(cuda), UNIT(late) };

const struct cairn_family cairn_tiers_family = {
	.stage = "serving",
	.name = "tiers",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
