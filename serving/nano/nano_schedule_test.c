// SPDX-License-Identifier: Apache-2.0
/*
 * nano_schedule_test - steps that touch the same memory are ordered, and bad plans are refused
 *
 * The check is independent of the schedule's clocks: which step comes before which follows from lanes and
 * waits alone, and what a step touches from the placed bytes of its rows.
 */
#include <math.h>

#include "conformance/harness.h"
#include "serving/graph/op_graph_test.h"
#include "serving/nano/nano_test.h"

#define ROWS	64		/* of each nano-batch */

struct judge {
	const struct cairn_op_graph *g;
	const struct nano_schedule *c;
	struct cairn_buffers shared, split;
	struct cairn_pass_sizes sizes, row;
	uint64_t *before;	/* bit x of row y: step x comes before step y */
	size_t words;
};

static int comes_before(const struct judge *j, int32_t x, int32_t y)
{
	return j->before[(size_t)y * j->words + (size_t)x / 64] >> x % 64 & 1;
}

static void put_before(struct judge *j, int32_t x, int32_t y)
{
	for (size_t i = 0; i < j->words; i++)
		j->before[(size_t)y * j->words + i] |= j->before[(size_t)x * j->words + i];
	j->before[(size_t)y * j->words + (size_t)x / 64] |= 1ull << x % 64;
}

static void find_order(struct judge *j)
{
	int32_t last[CAIRN_NANO_LANES], recorder[20000];

	memset(last, 0xff, sizeof(last));
	for (int32_t y = 0; y < j->c->num_steps; y++) {
		const struct nano_step *step = &j->c->steps[y];

		if (last[step->lane] >= 0)
			put_before(j, last[step->lane], y);
		for (int32_t i = 0; i < step->num_waits; i++)
			put_before(j, recorder[j->c->waits[step->first_wait + i]], y);
		if (step->event >= 0)
			recorder[step->event] = y;
		last[step->lane] = y;
	}
}

struct range {
	int64_t begin, end;
};

/* Returns the bytes of a value that the step touches; empty: not in the pass's memory. */
static struct range bytes_of(const struct judge *j, const struct nano_step *x, int32_t value)
{
	const struct cairn_graph_value *v = &j->g->values[value];
	int64_t at = j->shared.offset[v->storage], all = cairn_value_bytes(v, &j->sizes);
	int64_t row = all / j->sizes.num_tokens, own = j->split.offset[v->storage];

	if (own >= 0) {
		at = j->shared.bytes + ROWS * (j->split.bytes * x->batch + own);
		return (struct range){ at, at + ROWS * row };
	}
	if (at < 0)
		return (struct range){ 0, 0 };
	if (x->batch < 0 || v->shape.rows != CAIRN_ROWS_TOKENS)
		return (struct range){ at, at + all };
	return (struct range){ at + x->batch * ROWS * row, at + (x->batch + 1) * ROWS * row };
}

/* Returns whether x touches bytes that y writes; an operation that forwards may write to its input. */
static int meets(const struct judge *j, const struct nano_step *x, const struct nano_step *y)
{
	const struct cairn_graph_op *a = &j->g->ops[x->op], *b = &j->g->ops[y->op];

	for (int32_t i = 0; i < b->num_out + b->forwards; i++) {
		struct range w = bytes_of(j, y, i < b->num_out ? b->out[i] : b->in[0]);

		for (int32_t k = 0; k < a->num_in + a->num_out; k++) {
			struct range r = bytes_of(j, x, k < a->num_in ? a->in[k] : a->out[k - a->num_in]);

			if (r.begin < w.end && w.begin < r.end)
				return 1;
		}
	}
	return 0;
}

static int is_append(const struct cairn_graph_op *op)
{
	return op->kind == CAIRN_OP_KV_APPEND || op->kind == CAIRN_OP_MLA_APPEND;
}

static int is_attn(const struct cairn_graph_op *op)
{
	return op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA;
}

/* Returns whether x must come before y, whatever the memory: x is earlier in the sequential pass. */
static int must_precede(const struct judge *j, const struct nano_step *x, const struct nano_step *y)
{
	const struct cairn_graph_op *a = &j->g->ops[x->op], *b = &j->g->ops[y->op];

	if (x->op >= y->op)
		return 0;
	for (int32_t i = 0; i < b->num_in; i++)
		for (int32_t k = 0; k < a->num_out; k++)
			if (b->in[i] == a->out[k] && j->g->values[b->in[i]].kind != CAIRN_VALUE_CACHE &&
			    (x->batch < 0 || y->batch < 0 || x->batch == y->batch))
				return 1;
	if (a->layer == b->layer && is_append(a) && is_attn(b))
		return x->batch <= y->batch;
	if (is_attn(a) && is_attn(b))
		return x->batch == y->batch;
	return a->kind == CAIRN_OP_MOE && b->kind == CAIRN_OP_MOE;
}

/* Two operations whose CTAs wait for others may not run at the same time. */
static int exclude(const struct cairn_graph_op *a, const struct cairn_graph_op *b)
{
	return (a->collective || a->kind == CAIRN_OP_MOE) && (b->collective || b->kind == CAIRN_OP_MOE);
}

static void judge(struct cairn_test *t, const struct subject *s, const struct cairn_nano_plan *plan)
{
	struct nano_schedule c;
	struct judge j = {
		.g = s->g, .c = &c,
		.sizes = { .dims = s->dims, .num_tokens = (int64_t)ROWS * plan->num_batches, .num_logits = 8,
			   .element = { [CAIRN_ROLE_ACTIVATION] = 2, [CAIRN_ROLE_LOGITS] = 4 } },
	};
	struct cairn_buffers sequential = { 0 };
	double bytes;
	int unordered = 0, missing = 0, free_pairs = 0;

	j.row = j.sizes;
	j.row.num_tokens = 1;
	if (!EXPECT(t, nano_schedule_create(&c, s->g, plan) == 0) ||
	    !EXPECT(t, cairn_buffers_place_lives(&j.shared, s->g, &j.sizes, c.lives, 1, c.shared) == 0) ||
	    !EXPECT(t, cairn_buffers_place_lives(&j.split, s->g, &j.row, c.split_lives, c.num_batches,
						 c.split) == 0) ||
	    !EXPECT(t, cairn_buffers_place(&sequential, s->g, &j.sizes) == 0))
		return;
	j.words = (size_t)(c.num_steps + 63) / 64;
	j.before = calloc((size_t)c.num_steps * j.words, sizeof(*j.before));
	find_order(&j);
	for (int32_t y = 0; y < c.num_steps; y++) {
		for (int32_t x = 0; x < y; x++) {
			int ordered = comes_before(&j, x, y);
			const struct nano_step *a = &c.steps[x], *b = &c.steps[y];

			free_pairs += !ordered;
			missing += (!ordered && must_precede(&j, a, b)) || must_precede(&j, b, a);
			unordered += !ordered && (meets(&j, a, b) || meets(&j, b, a) ||
						  exclude(&j.g->ops[a->op], &j.g->ops[b->op]));
		}
	}
	bytes = (double)(j.shared.bytes + j.split.bytes * j.sizes.num_tokens);
	EXPECT(t, missing == 0 && unordered == 0);
	EXPECT(t, plan->num_batches == 1 || plan->num_lanes == 1 || free_pairs > 0);
	cairn_note(t, "%s, %d nano-batches on %d lanes: %d steps, %d waits; %.2f times the memory", s->name,
		   plan->num_batches, plan->num_lanes, c.num_steps, c.num_waits,
		   bytes / (double)sequential.bytes);
	EXPECT(t, bytes <= 2 * (double)sequential.bytes || strstr(s->name, "_tiny"));
	free(j.before);
	cairn_buffers_free(&j.shared);
	cairn_buffers_free(&j.split);
	cairn_buffers_free(&sequential);
	nano_schedule_free(&c);
}

static void steps_are_ordered(struct cairn_test *t)
{
	struct subject s[NUM_MODELS];
	int num = open_subjects(t, s);

	for (int i = 0; i < num; i++) {
		int k = 1 + i % 4, lanes = 1 + (int)(cairn_rand(t) % 4);
		struct cairn_nano_plan plan = { .num_batches = k, .num_lanes = lanes };
		struct cairn_nano_place places[160];

		if (!s[i].g || s[i].c.num_hidden_layers > 36)
			continue;
		judge(t, &s[i], &plan);
		random_plan(t, s[i].g, k, lanes, &plan, places, ARRAY_SIZE(places));
		judge(t, &s[i], &plan);
	}
	close_subjects(s, num);
}

/* Ranks run at most one collective at a time, on whichever lanes, and other operations beside it. */
static void collectives_are_ordered(struct cairn_test *t)
{
	static const char *const shapes[] = { "llama3-8b", "gemma2-9b", "dsv2lite", "gpt-oss-20b" };

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct subject s = { .name = shapes[i] };
		struct cairn_nano_plan plan = { .num_batches = 3, .num_lanes = 4 };
		struct cairn_nano_place places[160];
		int32_t kv_shares;

		if (!EXPECT(t, cairn_model_shape(shapes[i], &s.c) == 0 &&
			       cairn_model_share_config(&s.c, shapes[i], 4, 0, &kv_shares) == 0 &&
			       cairn_model_graph(&s.g, &s.c) == 0))
			continue;
		cairn_model_dims(&s.c, s.dims);
		random_plan(t, s.g, 3, 4, &plan, places, ARRAY_SIZE(places));
		judge(t, &s, &plan);
		cairn_op_graph_destroy(s.g);
	}
}

/* The steps of a layer come in the order of their starts where nothing keeps them from it. */
static void starts_give_the_order(struct cairn_test *t)
{
	static const struct cairn_nano_place later[] = {
		{ "qkv_proj", 0, 0, 0.6 }, { "qkv_proj", 1, 1, 0.5 },
	};
	struct cairn_nano_plan plan = {
		.num_batches = 2, .num_lanes = 2, .places = later, .num_places = 2,
	};
	struct nano_schedule c;
	struct subject s;
	int32_t at[2] = { -1, -1 }, ends = 0;

	if (open_shape(t, &s, "llama32-1b") || !EXPECT(t, nano_schedule_create(&c, s.g, &plan) == 0))
		return;
	for (int32_t i = 0; i < c.num_steps; i++) {
		if (!strcmp(s.g->ops[c.steps[i].op].name, "layers.0.qkv_proj"))
			at[c.steps[i].batch] = i;
		if (c.steps[i].ends_layer >= 0)
			EXPECT(t, c.steps[i].ends_layer == ends++);
	}
	EXPECT(t, at[1] >= 0 && at[1] < at[0]);
	EXPECT(t, ends == s.c.num_hidden_layers);
	EXPECT(t, !strcmp(s.g->ops[c.steps[c.num_steps - 1].op].name, "lm_head"));
	nano_schedule_free(&c);
	cairn_op_graph_destroy(s.g);
}

static void refusals(struct cairn_test *t)
{
	static const struct cairn_nano_place unknown = { "qkv", 0, 0, 0 }, no_name = { NULL, 0, 0, 0 },
		batch = { "rope", 2, 0, 0 }, lane = { "rope", 0, 2, 0 }, start = { "rope", 0, 0, -1 },
		nan = { "rope", 0, 0, NAN }, attn = { "attn", CAIRN_NANO_WHOLE, 0, 0 },
		append = { "kv_append", CAIRN_NANO_WHOLE, 0, 0 },
		both[] = { { "rope", 0, 0, 0 }, { "rope", CAIRN_NANO_WHOLE, 0, 0 } };
	const struct {
		struct cairn_nano_plan plan;
		const char *text;
	} bad[] = {
		{ { .num_batches = 0, .num_lanes = 1 }, "num_batches" },
		{ { .num_batches = 9, .num_lanes = 1 }, "num_batches" },
		{ { .num_batches = 2, .num_lanes = 0 }, "num_lanes" },
		{ { .num_batches = 2, .num_lanes = 9 }, "num_lanes" },
		{ { .num_batches = 2, .num_lanes = 2, .least_rows = -1 }, "least_rows" },
		{ { .num_batches = 2, .num_lanes = 2, .rows = { 1, 0 } }, "rows" },
		{ { .num_batches = 2, .num_lanes = 2, .rows = { 1, -1 } }, "rows[1]" },
		{ { .num_batches = 2, .num_lanes = 2, .rows = { 1, 1 }, .decodes = { -1 } }, "decodes[0]" },
		{ { .num_batches = 2, .num_lanes = 2, .decodes = { 1, 1 } }, "rows" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &unknown, .num_places = 1 }, "'qkv'" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &no_name, .num_places = 1 }, "operation ''" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &batch, .num_places = 1 }, "batch is 2" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &lane, .num_places = 1 }, "lane is 2" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &start, .num_places = 1 }, "start" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &nan, .num_places = 1 }, "start" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &attn, .num_places = 1 }, "'attn'" },
		{ { .num_batches = 2, .num_lanes = 2, .places = &append, .num_places = 1 }, "'kv_append'" },
		{ { .num_batches = 2, .num_lanes = 2, .places = both, .num_places = 2 }, "'rope'" },
		{ { .num_batches = 2, .num_lanes = 2, .lanes = { { 8, 0 } } }, "lanes[0]" },
		{ { .num_batches = 2, .num_lanes = 2, .lanes = { { 0, 1 } } }, "lanes[0]" },
		{ { .num_batches = 2, .num_lanes = 2, .lanes = { { 0 }, { 0, 2 } } }, "lanes[1].priority" },
	};
	static const struct cairn_nano_place moe = { "moe", CAIRN_NANO_WHOLE, 1, 0 };
	const struct cairn_nano_plan waits = { .num_batches = 2, .num_lanes = 2, .places = &moe,
					       .num_places = 1, .lanes = { { 0 }, { 16, 0 } } };
	struct nano_schedule c;
	struct subject s;

	if (open_shape(t, &s, "llama32-1b"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		EXPECT(t, nano_schedule_create(&c, s.g, &bad[i].plan) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].text);
	}
	cairn_op_graph_destroy(s.g);
	if (open_shape(t, &s, "mixtral-8x7b"))
		return;
	EXPECT(t, nano_schedule_create(&c, s.g, &waits) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "'moe' needs all SMs, but lane 1 has a part of them");
	cairn_op_graph_destroy(s.g);
}

static const struct cairn_unit units[] = {
	{ "steps_are_ordered", steps_are_ordered },
	{ "collectives_are_ordered", collectives_are_ordered },
	{ "starts_give_the_order", starts_give_the_order },
	{ "refusals", refusals },
};

const struct cairn_family cairn_nano_schedule_family = {
	.stage = "serving",
	.name = "nano_schedule",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
