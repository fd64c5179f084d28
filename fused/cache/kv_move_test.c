// SPDX-License-Identifier: Apache-2.0
/*
 * kv_move_test - cases of kv_move.h
 *
 * Sources, targets and what must not change are drawn from all of a store and its slots; gaps between layers,
 * and between K and V, are part of what must stay. The bench rows move pages of Llama 3 8B (32 layers, 8
 * heads of 128, 16 tokens: 2 MiB a page over all layers) and of a model with latent attention.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

#define LLAMA_PAGE	(16 * 8 * 128 * 2)
#define LATENT_PAGE	(64 * 576 * 2)

enum { ONE_SIDE = 1, GAPS = 2, FORK = 4, BENCH = 8, DEVICE = 16 };

static const struct shape {
	const char *name;
	int32_t layers, pages, slots, page_bytes, copies, outs, ins, pads, max_ctas;
	unsigned flags;
} shapes[] = {
	{ "one_page", 1, 2, 0, 16, 1, 0, 0, 0, 0, ONE_SIDE },
	{ "moves_0", 3, 5, 2, 256, 0, 0, 0, 0, 0, 0 },
	{ "pads_alone", 3, 5, 2, 256, 0, 0, 0, 7, 0, 0 },
	{ "copies", 3, 40, 0, 4096, 9, 0, 0, 0, 0, 0 },
	{ "copies_gaps", 4, 33, 0, 2064, 11, 0, 0, 3, 0, GAPS },
	{ "copies_of_one_page", 2, 64, 0, 1040, 40, 0, 0, 0, 0, FORK },
	{ "outs", 5, 20, 16, 3072, 0, 13, 0, 0, 0, 0 },
	{ "ins_gaps", 5, 20, 16, 3072, 0, 0, 13, 0, 0, GAPS },
	{ "all_latent", 3, 30, 20, 1152, 6, 7, 8, 5, 0, ONE_SIDE },
	{ "all_latent_gaps", 3, 30, 20, 1152, 6, 7, 8, 5, 0, ONE_SIDE | GAPS },
	{ "all", 7, 50, 24, 8192, 10, 8, 9, 2, 0, 0 },
	{ "all_gaps", 7, 50, 24, 8208, 10, 8, 9, 2, 0, GAPS },
	{ "all_1_cta", 7, 50, 24, 8208, 10, 8, 9, 2, 1, GAPS },
	{ "all_3_ctas", 2, 24, 24, 131088, 4, 5, 6, 2, 3, GAPS },
	{ "many_small", 2, 3000, 900, 16, 800, 300, 300, 100, 0, 0 },
	{ "large_pages", 2, 9, 5, 524288 + 16, 2, 2, 2, 0, 0, 0 },
	{ "every_page_out", 3, 17, 17, 2048, 0, 17, 0, 0, 0, 0 },
	{ "beyond_2_31", 3, 24000, 3, 32768, 20, 3, 0, 1, 0, ONE_SIDE | DEVICE },
	{ "copy_1_page", 32, 4, 0, LLAMA_PAGE, 1, 0, 0, 0, 0, BENCH },
	{ "copy_8_pages", 32, 16, 0, LLAMA_PAGE, 8, 0, 0, 0, 0, BENCH },
	{ "copy_128_pages", 32, 256, 0, LLAMA_PAGE, 128, 0, 0, 0, 0, BENCH | DEVICE },
	{ "out_256_pages", 32, 256, 256, LLAMA_PAGE, 0, 256, 0, 0, 0, BENCH | DEVICE },
	{ "in_256_pages", 32, 256, 256, LLAMA_PAGE, 0, 0, 256, 0, 0, BENCH | DEVICE },
	{ "copy_64_latent", 61, 128, 0, LATENT_PAGE, 64, 0, 0, 0, 0, BENCH | DEVICE | ONE_SIDE },
};

static void describe(int i, struct cairn_case *c)
{
	const struct shape *s = &shapes[i];

	snprintf(c->name, sizeof(c->name), "%s", s->name);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!(s->flags & (BENCH | DEVICE)))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = !!(s->flags & BENCH);
	c->device_only = !!(s->flags & DEVICE);
	c->bytes = 2.0 * (s->copies + s->outs + s->ins) * s->layers * (s->flags & ONE_SIDE ? 1 : 2) *
		   s->page_bytes;
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

/* A place's bits, of all 32; 2^20 different words in a row, then the same again from another one on. */
static void fill(struct cairn_op *op, int32_t *x, int64_t words)
{
	const int64_t block = (1 << 20) + 7;

	for (int64_t i = 0; i < words && i < block; i++)
		x[i] = (int32_t)cairn_op_rand(op);
	for (int64_t i = block; i < words; i += block)
		memcpy(x + i, x, (size_t)(words - i < block ? words - i : block) * 4);
}

static void setup(struct cairn_op *op)
{
	const struct shape *s = &shapes[op->case_index];
	struct cairn_kv_move_args *a = op->args;
	int32_t sides = s->flags & ONE_SIDE ? 1 : 2, num = s->copies + s->outs + s->ins, n = 0, p = 0, q = 0;
	int64_t gap = s->flags & GAPS ? 48 : 0, base_bytes, slot_bytes;
	int32_t *pages = calloc((size_t)s->pages + 1, 4), *slots = calloc((size_t)s->slots + 1, 4), *from,
		*to;
	int32_t *base, *contiguous;

	if (!pages || !slots)
		abort();
	a->num_moves = num + s->pads;
	a->num_layers = s->layers;
	a->num_pages = s->pages;
	a->num_slots = s->slots;
	a->max_ctas = s->max_ctas;
	a->page_bytes = s->page_bytes;
	a->v_offset = sides == 2 ? (int64_t)s->pages * s->page_bytes + gap : 0;
	a->layer_bytes = sides * ((int64_t)s->pages * s->page_bytes + 2 * gap);
	base_bytes = (s->layers - 1) * a->layer_bytes + a->v_offset + (int64_t)s->pages * s->page_bytes;
	slot_bytes = (int64_t)s->slots * s->layers * sides * s->page_bytes;
	base = cairn_inout(op, offsetof(struct cairn_kv_move_args, base), CAIRN_I32, base_bytes / 4);
	contiguous = cairn_inout(op, offsetof(struct cairn_kv_move_args, slots), CAIRN_I32, slot_bytes / 4);
	from = cairn_in(op, offsetof(struct cairn_kv_move_args, from), CAIRN_I32, a->num_moves);
	to = cairn_in(op, offsetof(struct cairn_kv_move_args, to), CAIRN_I32, a->num_moves);
	fill(op, base, base_bytes / 4);
	fill(op, contiguous, slot_bytes / 4);
	shuffle(op, pages, s->pages);
	shuffle(op, slots, s->slots);
	if (s->flags & DEVICE && !(s->flags & BENCH) && s->copies) {	/* the last page is one of them */
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
	for (int32_t i = 0; i < s->pads; i++, n++)
		from[n] = to[n] = i % 2 && s->slots ? ~slots[q % s->slots] : pages[p % s->pages];
	for (int32_t i = n - 1; i > 0; i--) {	/* in any order */
		int32_t j = (int32_t)cairn_op_range(op, 0, i), f = from[i], t = to[i];

		from[i] = from[j];
		to[i] = to[j];
		from[j] = f;
		to[j] = t;
	}
	if (op->kind == CAIRN_KIND_POISON) {	/* NaN in what is written, as a fresh page may hold */
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
	}
	return NULL;
}

const struct cairn_family cairn_kv_move_family = {
	.stage = "fused", .name = "kv_move",
	.op = offsetof(struct cairn_impl, kv_move),
	.args_size = sizeof(struct cairn_kv_move_args),
	.num_cases = ARRAY_SIZE(shapes),
	.exact_is_equal = 1,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
};
