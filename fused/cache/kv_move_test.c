// SPDX-License-Identifier: Apache-2.0
/*
 * kv_move_test - makes random moves within a store and its slots
 *
 * Whatever no move writes must stay unchanged, including the gaps between layers and between K and V. The
 * cases ends_* combine sizes at the ends of tiles (ends.h): moves, 16-byte units of a page, layers. The
 * bench rows move pages of Llama 3 8B (32 layers, 8 KV heads of 128, 16 tokens: 2 MiB a page over all layers)
 * and of a model with latent attention.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#define LLAMA_PAGE	(16 * 8 * 128 * 2)
#define LATENT_PAGE	(64 * 576 * 2)

enum { ONE_SIDE = 1, GAPS = 2, FORK = 4, BENCH = 8, DEVICE = 16, FAR = 32,
       APART = 64 /* V of all layers behind K of all layers, past 2^32 bytes if FAR */,
       FAR_LAYERS = 128 /* a layer begins past 2^32 bytes */ };

struct shape {
	const char *name;		/* NULL: a pair case */
	/* copies: page to page; outs: page to slot; ins: slot to page; turns: slot to slot; pads: none */
	int32_t layers, pages, slots, page_bytes, copies, outs, ins, pads, max_ctas, turns;
	unsigned flags;
};

static const struct shape shapes[] = {
	{ .name = "one_page", .layers = 1, .pages = 2, .page_bytes = 16, .copies = 1, .flags = ONE_SIDE },
	{ .name = "moves_0", .layers = 3, .pages = 5, .slots = 2, .page_bytes = 256 },
	{ .name = "pads_alone", .layers = 3, .pages = 5, .slots = 2, .page_bytes = 256, .pads = 7 },
	{ .name = "slots_alone", .layers = 3, .slots = 9, .page_bytes = 1040, .turns = 4, .flags = ONE_SIDE },
	{ .name = "copies", .layers = 3, .pages = 40, .page_bytes = 4096, .copies = 9 },
	{ .name = "copies_gaps", .layers = 4, .pages = 33, .page_bytes = 2064, .copies = 11, .pads = 3,
	  .flags = GAPS },
	{ .name = "copies_of_one_page", .layers = 2, .pages = 64, .page_bytes = 1040, .copies = 40,
	  .flags = FORK },
	{ .name = "outs", .layers = 5, .pages = 20, .slots = 16, .page_bytes = 3072, .outs = 13 },
	{ .name = "ins_gaps", .layers = 5, .pages = 20, .slots = 16, .page_bytes = 3072, .ins = 13,
	  .flags = GAPS },
	{ .name = "all_latent", .layers = 3, .pages = 30, .slots = 20, .page_bytes = 1152, .copies = 6,
	  .outs = 7, .ins = 8, .pads = 5, .flags = ONE_SIDE },
	{ .name = "all_latent_gaps", .layers = 3, .pages = 30, .slots = 20, .page_bytes = 1152, .copies = 6,
	  .outs = 7, .ins = 8, .pads = 5, .flags = ONE_SIDE | GAPS },
	{ .name = "all", .layers = 7, .pages = 50, .slots = 24, .page_bytes = 8192, .copies = 10, .outs = 8,
	  .ins = 9, .pads = 2, .turns = 3 },
	{ .name = "all_gaps", .layers = 7, .pages = 50, .slots = 24, .page_bytes = 8208, .copies = 10,
	  .outs = 8, .ins = 9, .pads = 2, .turns = 3, .flags = GAPS },
	{ .name = "all_1_cta", .layers = 7, .pages = 50, .slots = 24, .page_bytes = 8208, .copies = 10,
	  .outs = 8, .ins = 9, .pads = 2, .max_ctas = 1, .flags = GAPS },
	{ .name = "all_3_ctas", .layers = 2, .pages = 24, .slots = 24, .page_bytes = 131088, .copies = 4,
	  .outs = 5, .ins = 6, .pads = 2, .max_ctas = 3, .flags = GAPS },
	{ .name = "many_small", .layers = 2, .pages = 3000, .slots = 900, .page_bytes = 16, .copies = 800,
	  .outs = 300, .ins = 300, .pads = 100 },
	{ .name = "large_pages", .layers = 2, .pages = 9, .slots = 5, .page_bytes = 524288 + 16, .copies = 2,
	  .outs = 2, .ins = 2 },
	{ .name = "every_page_out", .layers = 3, .pages = 17, .slots = 17, .page_bytes = 2048, .outs = 17 },
	{ .name = "beyond_2_31", .layers = 3, .pages = 24000, .slots = 3, .page_bytes = 32768, .copies = 20,
	  .outs = 3, .pads = 1, .flags = ONE_SIDE | DEVICE },
	{ .name = "copy_1_page", .layers = 32, .pages = 4, .page_bytes = LLAMA_PAGE, .copies = 1,
	  .flags = BENCH },
	{ .name = "copy_8_pages", .layers = 32, .pages = 16, .page_bytes = LLAMA_PAGE, .copies = 8,
	  .flags = BENCH | DEVICE },
	{ .name = "copy_128_pages", .layers = 32, .pages = 256, .page_bytes = LLAMA_PAGE, .copies = 128,
	  .flags = BENCH | DEVICE },
	{ .name = "out_256_pages", .layers = 32, .pages = 256, .slots = 256, .page_bytes = LLAMA_PAGE,
	  .outs = 256, .flags = BENCH | DEVICE },
	{ .name = "in_256_pages", .layers = 32, .pages = 256, .slots = 256, .page_bytes = LLAMA_PAGE,
	  .ins = 256, .flags = BENCH | DEVICE },
	{ .name = "copy_64_latent", .layers = 61, .pages = 128, .page_bytes = LATENT_PAGE, .copies = 64,
	  .flags = BENCH | DEVICE | ONE_SIDE },
	/* pages and slots that begin past 2^32 bytes, and have numbers past 2^16 */
	{ .name = "far_pages_and_slots", .layers = 2, .pages = 70000, .slots = 70000, .page_bytes = 32768,
	  .copies = 1, .outs = 1, .ins = 1, .flags = ONE_SIDE | FAR },
	{ .name = "far_layers", .layers = 2, .pages = 40, .slots = 9, .page_bytes = 1024, .copies = 1,
	  .outs = 1, .ins = 1, .flags = ONE_SIDE | FAR | FAR_LAYERS },
	{ .name = "far_sides", .layers = 2, .pages = 40, .slots = 9, .page_bytes = 1024, .copies = 1,
	  .outs = 1, .ins = 1, .flags = FAR | APART },
	{ .name = "sides_apart_70_layers", .layers = 70, .pages = 20, .slots = 16, .page_bytes = 48,
	  .copies = 3, .outs = 3, .ins = 3, .flags = APART },
	/* pages and slots that begin past 2^32 units of 16 bytes */
	{ .name = "far_units", .layers = 2, .pages = (1 << 21) + 9, .slots = (1 << 20) + 9,
	  .page_bytes = 32768, .copies = 1, .outs = 1, .ins = 1, .flags = ONE_SIDE | FAR },
	/* more moves, and more layers, than a grid has rows */
	{ .name = "moves_past_2e16", .layers = 1, .pages = 140100, .page_bytes = 16, .copies = 70000,
	  .flags = ONE_SIDE },
	/* few CTAs and so many parts that some CTAs get one more than others */
	{ .name = "all_7_ctas", .layers = 5, .pages = 60, .slots = 30, .page_bytes = 48, .copies = 12,
	  .outs = 9, .ins = 10, .turns = 3, .max_ctas = 7 },
	/* the bytes of all moves are past 2^36, but nearly all moves do nothing */
	{ .name = "units_past_2e32", .layers = 1, .pages = 10, .page_bytes = 1 << 18, .copies = 4,
	  .pads = (1 << 18) + 20, .flags = ONE_SIDE },
	{ .name = "layers_past_2e16", .layers = 66000, .pages = 4, .slots = 2, .page_bytes = 16, .copies = 1,
	  .outs = 1, .flags = ONE_SIDE },
};

/* the last cases, after those of every number of moves */
static const struct shape last[] = {
	{ .name = "pages_past_1_mib", .layers = 1, .pages = 3, .slots = 2, .page_bytes = (1 << 20) + 4112,
	  .copies = 1, .flags = ONE_SIDE },
	/* numbers of layers of models that are odd */
	{ .name = "layers_61_latent", .layers = 61, .pages = 12, .slots = 5, .page_bytes = 48, .copies = 2,
	  .outs = 1, .ins = 1, .flags = ONE_SIDE | GAPS },
	{ .name = "layers_9_without_slots", .layers = 9, .pages = 9, .page_bytes = 32, .copies = 3,
	  .flags = ONE_SIDE },
	{ .name = "layers_27", .layers = 27, .pages = 12, .slots = 5, .page_bytes = 32, .copies = 2,
	  .outs = 1, .ins = 1 },
	{ .name = "one_page_pads_alone", .layers = 3, .pages = 1, .page_bytes = 64, .pads = 2 },
	{ .name = "one_slot_one_page", .layers = 130, .pages = 1, .slots = 1, .page_bytes = 16, .outs = 1 },
};

#define NUM_NAMED	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	22
#define NUM_COUNTS	64	/* every number of moves from 2 to 65 */
#define NUM_LAST	((int)ARRAY_SIZE(last))

/* Any two features occur together in some case. */
enum { PAIR_BYTES, PAIR_MOVES, PAIR_LAYERS, PAIR_CTAS, PAIR_PADS, PAIR_SIDES, PAIR_GAPS, PAIR_FORK };

static struct cairn_pairs pair_table = { .num_factors = 8, .levels = { 5, 4, 4, 3, 3, 2, 2, 2 } };

#define FIRST_ENDS	(NUM_NAMED + NUM_PAIRS + NUM_COUNTS + NUM_LAST)
#define NUM_ENDS	64

enum { ENDS_MOVES, ENDS_UNITS, ENDS_LAYERS, ENDS_CTAS, ENDS_PLACES, ENDS_SIDES, NUM_ENDS_FACTORS };

static const int32_t ends_units[] = { 1, 7, 9, 15, 17, 31, 33, 63, 65, 129 };
static const int32_t ends_layers[] = { 1, 2, 3, 5, 9 };

/* Forbids cases that would cost more than many others together. */
static int ends_forbidden(const int8_t *level)
{
	const int m = level[ENDS_MOVES], u = level[ENDS_UNITS], l = level[ENDS_LAYERS];

	return m >= 0 && u >= 0 && l >= 0 && cairn_ends[m] * ends_units[u] * ends_layers[l] > 26000;
}

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { CAIRN_FEW_ENDS, 10, 5, 4, 4, 2 },
	.forbidden = ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	static const int32_t ctas[] = { 0, 1, 3, 16 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);
	const int32_t moves = cairn_ends[level[ENDS_MOVES]], places = level[ENDS_PLACES];

	*s = (struct shape){
		.layers = ends_layers[level[ENDS_LAYERS]], .pages = 2 * moves + 1, .slots = 2 * moves + 1,
		.page_bytes = 16 * ends_units[level[ENDS_UNITS]], .max_ctas = ctas[level[ENDS_CTAS]],
		.flags = level[ENDS_SIDES] ? 0 : ONE_SIDE,
	};
	s->outs = places == 1 ? moves : places == 3 ? moves / 3 : 0;
	s->ins = places == 2 ? moves : places == 3 ? moves / 4 : 0;
	s->turns = places == 3 ? moves / 5 : 0;
	s->copies = moves - s->outs - s->ins - s->turns;
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, layers, 1, 90, 1),
	CAIRN_DRAW_SIZE(struct shape, page_bytes, 16, 20000, 16),
	CAIRN_DRAW_SIZE(struct shape, copies, 0, 400, 1),
	CAIRN_DRAW_SIZE(struct shape, outs, 0, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, ins, 0, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, turns, 0, 100, 1),
	CAIRN_DRAW_ONE_OF(struct shape, pads, 0, 0, 1, 2, 7),
	CAIRN_DRAW_ONE_OF(struct shape, max_ctas, 0, 0, 1, 3, 16, 132),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, GAPS, APART, ONE_SIDE, ONE_SIDE | GAPS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, 0, FORK),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	s->pages = 2 * s->copies + s->outs + s->ins + 1;
	s->slots = s->outs + s->ins + 2 * s->turns + 1;
	return s->copies + s->outs + s->ins + s->turns > 0 &&
	       ((int64_t)s->pages + s->slots) * s->layers * s->page_bytes <= room * 600000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 8000,
};

static void shape_at(int index, struct shape *s)
{
	static const int32_t bytes[] = { 4096, 16, 48, 1040, 6160 }, layers[] = { 3, 1, 2, 7 };
	static const int32_t ctas[] = { 0, 1, 5 }, pads[] = { 0, 1, 6 };
	const int8_t *level;

	if (index < NUM_NAMED) {
		*s = shapes[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (index >= NUM_NAMED + NUM_PAIRS + NUM_COUNTS) {
		*s = last[index - NUM_NAMED - NUM_PAIRS - NUM_COUNTS];
		return;
	}
	if (index >= NUM_NAMED + NUM_PAIRS) {
		*s = (struct shape){ .layers = 1, .pages = 140, .page_bytes = 16, .flags = ONE_SIDE,
				     .copies = 2 + index - NUM_NAMED - NUM_PAIRS };
		return;
	}
	level = cairn_pairs_row(&pair_table, index - NUM_NAMED);
	*s = (struct shape){
		.layers = layers[level[PAIR_LAYERS]], .pages = 37, .slots = 11,
		.page_bytes = bytes[level[PAIR_BYTES]], .pads = pads[level[PAIR_PADS]],
		.max_ctas = ctas[level[PAIR_CTAS]], .turns = 1,
		.copies = level[PAIR_MOVES] % 3 == 0 ? 7 : 0, .outs = level[PAIR_MOVES] == 1 ? 9 : 0,
		.ins = level[PAIR_MOVES] == 2 ? 9 : 0,
	};
	if (level[PAIR_MOVES] == 3) {
		s->outs = 3;
		s->ins = 5;
	}
	s->flags = (level[PAIR_SIDES] ? ONE_SIDE : 0) | (level[PAIR_GAPS] ? GAPS : 0) |
		   (level[PAIR_FORK] ? FORK : 0);
}

static void describe(int i, struct cairn_case *c)
{
	struct shape shape, *s = &shape;

	shape_at(i, s);
	if (s->name)
		snprintf(c->name, sizeof(c->name), "%s", s->name);
	else if (i >= FIRST_ENDS)
		snprintf(c->name, sizeof(c->name), "ends_bytes%d_l%d_c%d_o%d_i%d_t%d_ctas%d%s", s->page_bytes,
			 s->layers, s->copies, s->outs, s->ins, s->turns, s->max_ctas,
			 s->flags & ONE_SIDE ? "_one_side" : "");
	else if (i >= NUM_NAMED + NUM_PAIRS)
		snprintf(c->name, sizeof(c->name), "moves_%d", s->copies);
	else
		snprintf(c->name, sizeof(c->name), "pair_%d_bytes%d_l%d_c%d_o%d_i%d", i - NUM_NAMED + 1,
			 s->page_bytes, s->layers, s->copies, s->outs, s->ins);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->far = !!(s->flags & FAR);
	if (!(s->flags & (BENCH | DEVICE | FAR)) && (i < FIRST_ENDS || i >= NUM_CASES))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = !!(s->flags & BENCH);
	c->device_only = !!(s->flags & DEVICE);
	c->bytes = 2.0 * (s->copies + s->outs + s->ins + s->turns) * s->layers * s->page_bytes *
		   (s->flags & ONE_SIDE ? 1 : 2);
}

static void shuffle(struct cairn_op *op, int32_t *v, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		v[i] = i;
	for (int32_t i = n - 1; i > 0; i--) {
		int32_t j = (int32_t)cairn_op_range(op, 0, i), t = v[i];

		v[i] = v[j];
		v[j] = t;
	}
}

/* Fills x with random 32-bit words: a block of 2^20 + 7 of them, repeated. */
static void fill(struct cairn_op *op, int32_t *x, int64_t words)
{
	const int64_t block = (1 << 20) + 7;

	for (int64_t i = 0; i < words && i < block; i++)
		x[i] = (int32_t)cairn_op_rand(op);
	for (int64_t i = block; i < words; i += block)
		memcpy(x + i, x, (size_t)(words - i < block ? words - i : block) * 4);
}

/* Touches and fills all layers and sides of a place. */
static void fill_place(struct cairn_op *op, int32_t *x, int64_t at, int64_t layer, int64_t side,
		       const struct shape *s)
{
	int sides = s->flags & ONE_SIDE ? 1 : 2;

	for (int32_t l = 0; l < s->layers * sides; l++) {
		int64_t first = at + l / sides * layer + l % sides * side;

		cairn_touch(op, x, first, s->page_bytes / 4);
		fill(op, x + first, s->page_bytes / 4);
	}
}

static void setup_far(struct cairn_op *op, const struct shape *s)
{
	struct cairn_kv_move_args *a = op->args;
	const int32_t from[] = { s->pages - 1, s->pages > 65537 ? 65537 : 17, ~(s->slots - 1) };
	const int32_t to[] = { 3, s->slots > 65538 ? ~65538 : ~1, s->pages - 2 };
	int64_t words = s->page_bytes / 4, layer = s->pages * words, side = 0, slot, sides;
	int32_t *base, *slots;

	if (s->flags & FAR_LAYERS)
		layer += 1 << 30;
	if (s->flags & APART)
		side = s->layers * layer + (1 << 30);
	sides = side ? 2 : 1;
	slot = s->layers * sides * words;
	a->layer_bytes = layer * 4;
	a->v_offset = side * 4;
	base = cairn_inout_far(op, offsetof(struct cairn_kv_move_args, base), CAIRN_I32,
			       side + (s->layers - 1) * layer + s->pages * words);
	slots = cairn_inout_far(op, offsetof(struct cairn_kv_move_args, slots), CAIRN_I32, s->slots * slot);
	cairn_shape(op, offsetof(struct cairn_kv_move_args, base), { "side", sides }, { "layer", s->layers },
		    { "page", s->pages }, { "word", words });
	cairn_stride(op, offsetof(struct cairn_kv_move_args, base), "side", side);
	cairn_stride(op, offsetof(struct cairn_kv_move_args, base), "layer", layer);
	cairn_shape(op, offsetof(struct cairn_kv_move_args, slots), { "slot", s->slots },
		    { "layer", s->layers }, { "side", sides }, { "word", words });
	memcpy(cairn_in(op, offsetof(struct cairn_kv_move_args, from), CAIRN_I32, 3), from, sizeof(from));
	memcpy(cairn_in(op, offsetof(struct cairn_kv_move_args, to), CAIRN_I32, 3), to, sizeof(to));
	for (int k = 0; k < 6; k++) {
		int32_t place = k < 3 ? from[k] : to[k - 3];

		if (place < 0)
			fill_place(op, slots, ~place * slot, sides * words, words, s);
		else
			fill_place(op, base, place * words, layer, side, s);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_kv_move_args *a = op->args;
	struct shape shape, *s = &shape;
	int32_t sides, num, n = 0, p = 0, q = 0, *pages, *slots, *from, *to, *base, *contiguous;
	int64_t gap, base_bytes, slot_bytes;

	shape_at(op->case_index, s);
	sides = s->flags & ONE_SIDE ? 1 : 2;
	num = s->copies + s->outs + s->ins + s->turns;
	gap = s->flags & GAPS ? 48 : 0;
	pages = calloc((size_t)s->pages + 1, 4);
	slots = calloc((size_t)s->slots + 1, 4);
	if (!pages || !slots)
		abort();
	a->num_moves = num + s->pads;
	a->num_layers = s->layers;
	a->num_pages = s->pages;
	a->num_slots = s->slots;
	a->max_ctas = s->max_ctas;
	a->page_bytes = s->page_bytes;
	if (s->flags & FAR) {
		setup_far(op, s);
		free(pages);
		free(slots);
		return;
	}
	a->v_offset = sides == 2 ? (int64_t)s->pages * s->page_bytes + gap : 0;
	a->layer_bytes = sides * ((int64_t)s->pages * s->page_bytes + 2 * gap);
	if (s->flags & APART) {
		a->layer_bytes = (int64_t)s->pages * s->page_bytes;
		a->v_offset = s->layers * a->layer_bytes;
	}
	base_bytes = (s->layers - 1) * a->layer_bytes + a->v_offset + (int64_t)s->pages * s->page_bytes;
	slot_bytes = (int64_t)s->slots * s->layers * sides * s->page_bytes;
	base = cairn_inout(op, offsetof(struct cairn_kv_move_args, base), CAIRN_I32, base_bytes / 4);
	contiguous = cairn_inout(op, offsetof(struct cairn_kv_move_args, slots), CAIRN_I32, slot_bytes / 4);
	cairn_shape(op, offsetof(struct cairn_kv_move_args, base), { "layer", s->layers }, { "side", sides },
		    { "page", s->pages }, { "word", s->page_bytes / 4 });
	cairn_stride(op, offsetof(struct cairn_kv_move_args, base), "layer", a->layer_bytes / 4);
	cairn_stride(op, offsetof(struct cairn_kv_move_args, base), "side", a->v_offset / 4);
	cairn_shape(op, offsetof(struct cairn_kv_move_args, slots), { "slot", s->slots },
		    { "layer", s->layers }, { "side", sides }, { "word", s->page_bytes / 4 });
	from = cairn_in(op, offsetof(struct cairn_kv_move_args, from), CAIRN_I32, a->num_moves);
	to = cairn_in(op, offsetof(struct cairn_kv_move_args, to), CAIRN_I32, a->num_moves);
	fill(op, base, base_bytes / 4);
	fill(op, contiguous, slot_bytes / 4);
	shuffle(op, pages, s->pages);
	shuffle(op, slots, s->slots);
	if (s->flags & DEVICE && !(s->flags & BENCH) && s->copies) {	/* copy the last page too */
		for (int32_t i = 0; i < s->pages; i++)
			if (pages[i] == s->pages - 1)
				pages[i] = pages[0];
		pages[0] = s->pages - 1;
	}
	for (int32_t i = 0; i < s->copies; i++) {
		from[n] = s->flags & FORK && i ? from[0] : pages[p++];
		to[n++] = pages[p++];
	}
	for (int32_t i = 0; i < s->outs; i++) {
		from[n] = pages[p++];
		to[n++] = ~slots[q++];
	}
	for (int32_t i = 0; i < s->ins; i++) {
		from[n] = ~slots[q++];
		to[n++] = pages[p++];
	}
	for (int32_t i = 0; i < s->turns; i++) {
		from[n] = ~slots[q++];
		to[n++] = ~slots[q++];
	}
	for (int32_t i = 0; i < s->pads; i++, n++)
		from[n] = to[n] = i % 2 && s->slots ? ~slots[q % s->slots] : pages[p % s->pages];
	for (int32_t i = n - 1; i > 0; i--) {	/* shuffle the list */
		int32_t j = (int32_t)cairn_op_range(op, 0, i), f = from[i], t = to[i];

		from[i] = from[j];
		to[i] = to[j];
		from[j] = f;
		to[j] = t;
	}
	if (op->kind == CAIRN_KIND_POISON) {	/* NaN in the target pages, as in fresh memory */
		for (int32_t i = 0; i < n; i++) {
			if (to[i] == from[i] || to[i] < 0)
				continue;
			for (int32_t l = 0; l < s->layers * sides; l++)
				memset((char *)base + l / sides * a->layer_bytes + l % sides * a->v_offset +
				       (int64_t)to[i] * s->page_bytes, 0xff, (size_t)s->page_bytes);
		}
	}
	free(pages);
	free(slots);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_kv_move_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_kv_move_args *a = args;

	*want = i < 11 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 16; return "old_struct";
	case 1: a->base = NULL; return "null_base";
	case 2: a->from = NULL; return "null_from";
	case 3: a->to = NULL; return "null_to";
	case 4: a->num_slots = 3; a->slots = NULL; return "null_slots";
	case 5: a->num_moves = -1; return "negative_moves";
	case 6: a->num_layers = 0; return "no_layers";
	case 7: a->page_bytes = 0; return "no_page_bytes";
	case 8: a->base = (char *)a->base + 4; return "misaligned_base";
	case 9: a->max_ctas = -1; return "negative_max_ctas";
	case 10: a->v_offset = -16; return "negative_v_offset";
	case 11: a->page_bytes = 24; return "page_bytes_24";
	case 12: a->layer_bytes += 8; return "layer_bytes_odd";
	case 13: a->v_offset = 8; return "v_offset_8";
	case 14: a->num_moves = 1 << 20; a->num_layers = 1 << 20; return "too_many";
	case 15: a->num_moves = a->num_layers = 1 << 15; a->v_offset = 16; return "too_many_with_v";
	}
	return NULL;
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_kv_move_family = {
	.stage = "fused", .name = "kv_move",
	.cost_s = 10,
	.op = offsetof(struct cairn_impl, kv_move),
	.args_size = sizeof(struct cairn_kv_move_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.exact_is_equal = 1,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
};
