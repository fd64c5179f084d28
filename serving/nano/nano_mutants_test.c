// SPDX-License-Identifier: Apache-2.0
/*
 * nano_mutants_test - the comparison with the sequential pass detects a wrong schedule and wrong index arrays
 *
 * Each mutant changes one thing in a prepared plan or pass. On table late, the pass must then differ from the
 * sequential one in one of a few orders, or fail. Order l runs lane l as early as its waits allow: the table
 * runs only what must come before, so nothing hides that a wait is missing.
 */
#include "conformance/harness.h"
#include "serving/nano/nano_test.h"

/* Two decoding rows, then prompts; the cut lies inside the second prompt, with a full page before it. */
static const struct scene_request requests[] = { { 1, 14 }, { 1, 33 }, { 12, 5 }, { 40, 7 } };
static const int32_t cut[] = { 34 };

/* ---- missing waits ---- */

static int is_op(const struct scene *s, int32_t step_op, const char *name)
{
	const char *dot = strrchr(s->m->graph->ops[step_op].name, '.');

	return !strcmp(dot ? dot + 1 : s->m->graph->ops[step_op].name, name);
}

static const struct nano_step *recorder(const struct nano_schedule *c, int32_t event)
{
	int32_t i = 0;

	while (c->steps[i].event != event)
		i++;
	return &c->steps[i];
}

/* Drops the waits of `after` for `before`; batches -1: any. Returns how many there were. */
static int drop(const struct scene *s, struct cairn_nano *n, const char *before, int before_batch,
		const char *after, int after_batch)
{
	struct nano_schedule *c = &n->schedule;
	int dropped = 0;

	for (int32_t i = 0; i < c->num_steps; i++) {
		struct nano_step *x = &c->steps[i];

		if (!is_op(s, x->op, after) || (after_batch >= 0 && x->batch != after_batch))
			continue;
		for (int32_t k = 0; k < x->num_waits; k++) {
			const struct nano_step *from = recorder(c, c->waits[x->first_wait + k]);

			if (!is_op(s, from->op, before) || (before_batch >= 0 && from->batch != before_batch))
				continue;
			c->waits[x->first_wait + k--] = c->waits[x->first_wait + --x->num_waits];
			dropped++;
		}
	}
	return dropped;
}

/* Each class: the plan puts both operations on different lanes, so that the wait is there. */
#define WAIT(fn, before, before_batch, after, after_batch) \
	static int fn(struct scene *s, struct cairn_nano *n) \
	{ return drop(s, n, before, before_batch, after, after_batch); }
WAIT(qkv_to_rope, "qkv_proj", -1, "rope", -1)
WAIT(append_to_attn, "kv_append", 1, "attn", 1)
WAIT(append_to_next_attn, "kv_append", 0, "attn", 1)
WAIT(attn_to_o, "attn", -1, "o_proj", -1)
WAIT(o_to_norm, "o_proj", -1, "mlp_norm", -1)
WAIT(down_to_next_layer, "down_proj", -1, "attn_norm", -1)
WAIT(latents_to_append, "kv_a_proj", -1, "mla_append", -1)
WAIT(latent_append_to_next_attn, "mla_append", 0, "attn", 1)
WAIT(norm_to_moe, "mlp_norm", 1, "moe", -1)
WAIT(moe_to_next_layer, "moe", -1, "attn_norm", -1)
WAIT(layers_to_head, "down_proj", -1, "pick_x", -1)
WAIT(embedding_to_layers, "embedding", -1, "attn_norm", 1)

/* Events of attention are recorded one step of their lanes too early. */
static int events_early(struct scene *s, struct cairn_nano *n)
{
	struct nano_schedule *c = &n->schedule;
	int moved = 0;

	for (int32_t i = 0; i < c->num_steps; i++) {
		int32_t before = i - 1;

		while (before >= 0 && c->steps[before].lane != c->steps[i].lane)
			before--;
		if (c->steps[i].event < 0 || before < 0 || !is_op(s, c->steps[i].op, "attn"))
			continue;
		for (int32_t k = 0; k < c->num_waits && c->steps[before].event >= 0; k++)
			if (c->waits[k] == c->steps[i].event)
				c->waits[k] = c->steps[before].event;
		if (c->steps[before].event < 0)
			c->steps[before].event = c->steps[i].event;
		c->steps[i].event = -1;
		moved++;
	}
	return moved;
}

/* ---- missing joins: the table leaves out waits ---- */

static struct cairn_impl plain;
static const struct cairn_nano *deaf;

/* Leaves out the waits by which lanes 2 and 3, those of the second nano-batch, join the caller's stream. */
static int wait_unless_join(void *stream, void *event)
{
	return event == deaf->joined[2] || event == deaf->joined[3] ? 0 : plain.stream_wait(stream, event);
}

/* Without logits, nothing else on the caller's stream needs the second nano-batch. */
static int joins_missing(struct scene *s, struct cairn_nano *n)
{
	plain = s->impl;
	s->impl.stream_wait = wait_unless_join;
	deaf = n;
	return 1;
}

static void without_logits(struct scene *s, struct cairn_nano_pass *pass)
{
	s->only_cache = 1;
	pass->whole.num_logits = 0;
}

/* ---- memory ---- */

/* All nano-batches have the same memory for their own activations. */
static int shared_storage(struct scene *s, struct cairn_nano *n)
{
	(void)s;
	n->split.bytes = 0;
	return 1;
}

/* A nano-batch's own activations share memory as if its operations ran one after the other. */
static int lanes_share_storage(struct scene *s, struct cairn_nano *n)
{
	const struct cairn_op_graph *g = s->m->graph;
	struct cairn_life *lives = calloc((size_t)g->num_values, sizeof(*lives));
	struct cairn_pass_sizes row = forward_sizes(s->m, 1, 1);
	int ret;

	for (int32_t v = 0; lives && v < g->num_values; v++) {
		cairn_op_graph_lifetime(g, v, &lives[v].begin[0], &lives[v].end[0]);
		lives[v].end[0]++;
	}
	cairn_buffers_free(&n->split);
	ret = lives ? cairn_buffers_place_lives(&n->split, g, &row, lives, 1, n->schedule.split) : -1;
	free(lives);
	return !ret;
}

/* ---- index arrays and rows ---- */

/* The earlier nano-batch's part of a request that spans the cut ends a row early. */
static void cut_off_by_one(struct scene *s, struct cairn_nano_pass *pass)
{
	s->host.nano[0].qo_indptr[pass->batch[0].batch]--;
	s->host.nano[0].last_page_len[pass->batch[0].batch - 1]--;
}

/* The keys of that part end at the last row of the whole request. */
static void keys_too_long(struct scene *s, struct cairn_nano_pass *pass)
{
	int32_t last = pass->batch[0].batch - 1;

	s->host.nano[0].last_page_len[last] = s->host.last_page_len[s->batch.batch - 1];
	s->host.nano[0].kv_indptr[last + 1] += s->host.kv_indptr[s->batch.batch] -
		s->host.kv_indptr[s->batch.batch - 1] -
		(s->host.nano[0].kv_indptr[last + 1] - s->host.nano[0].kv_indptr[last]);
}

/* The same by one key. */
static void one_key_too_many(struct scene *s, struct cairn_nano_pass *pass)
{
	s->host.nano[0].last_page_len[pass->batch[0].batch - 1]++;
}

static void row_in_two_nano_batches(struct scene *s, struct cairn_nano_pass *pass)
{
	(void)s;
	pass->first_row[1]--;
	pass->batch[1].num_rows++;
}

static void row_in_none(struct scene *s, struct cairn_nano_pass *pass)
{
	(void)s;
	pass->first_row[1]++;
	pass->batch[1].num_rows--;
}

static void positions_of_the_whole(struct scene *s, struct cairn_nano_pass *pass)
{
	pass->batch[1].positions = s->batch.positions;
}

static void ids_of_the_next_row(struct scene *s, struct cairn_nano_pass *pass)
{
	(void)s;
	pass->whole.ids--;
}

static void pages_of_the_first(struct scene *s, struct cairn_nano_pass *pass)
{
	for (int32_t i = pass->batch[1].batch; i >= 0; i--)
		s->host.nano[1].kv_indptr[i] -= s->host.nano[1].kv_indptr[0];
}

/* ---- all mutants ---- */

static const struct mutant {
	const char *model, *name;
	int (*change)(struct scene *s, struct cairn_nano *n);	/* returns 0 if there is nothing to change */
	void (*spoil)(struct scene *s, struct cairn_nano_pass *pass);
	int bad;
} mutants[] = {
#define MUTANT(model, fn)	{ model, #fn, fn, NULL, 1 }
#define SPOILT(model, fn)	{ model, #fn, NULL, fn, 1 }
	{ "llama3_tiny", "none", NULL, NULL, 0 },
	{ "llama3_tiny", "none, without logits", NULL, without_logits, 0 },
	MUTANT("llama3_tiny", qkv_to_rope),
	MUTANT("llama3_tiny", append_to_attn),
	MUTANT("llama3_tiny", append_to_next_attn),
	MUTANT("llama3_tiny", attn_to_o),
	MUTANT("llama3_tiny", o_to_norm),
	MUTANT("llama3_tiny", down_to_next_layer),
	MUTANT("llama3_tiny", layers_to_head),
	MUTANT("llama3_tiny", embedding_to_layers),
	MUTANT("llama3_tiny", events_early),
	{ "llama3_tiny", "joins_missing", joins_missing, without_logits, 1 },
	MUTANT("llama3_tiny", shared_storage),
	SPOILT("llama3_tiny", cut_off_by_one),
	SPOILT("llama3_tiny", keys_too_long),
	SPOILT("llama3_tiny", one_key_too_many),
	SPOILT("llama3_tiny", row_in_two_nano_batches),
	SPOILT("llama3_tiny", row_in_none),
	SPOILT("llama3_tiny", positions_of_the_whole),
	SPOILT("llama3_tiny", ids_of_the_next_row),
	SPOILT("llama3_tiny", pages_of_the_first),
	{ "deepseek_tiny", "none", NULL, NULL, 0 },
	MUTANT("deepseek_tiny", latents_to_append),
	MUTANT("deepseek_tiny", latent_append_to_next_attn),
	MUTANT("deepseek_tiny", norm_to_moe),
	MUTANT("deepseek_tiny", moe_to_next_layer),
	SPOILT("deepseek_tiny", one_key_too_many),
	{ "deepseek_q_tiny", "none", NULL, NULL, 0 },
	MUTANT("deepseek_q_tiny", lanes_share_storage),
};

/* Neighbours in a layer run on different lanes, and both nano-batches at about the same time. */
static void apart(const struct scene *s, struct cairn_nano_plan *plan, struct cairn_nano_place *places,
		  int most)
{
	static const char *const on_first[] = {
		"qkv_proj", "kv_append", "o_proj", "down_proj", "mla_append", "q_a_proj", "q_proj",
	};
	const struct cairn_op_graph *g = s->m->graph;

	*plan = (struct cairn_nano_plan){ .num_batches = 2, .num_lanes = 4, .places = places };
	for (int32_t o = 0; o < g->num_ops; o++) {
		const char *name = strrchr(g->ops[o].name, '.') + 1;
		int first = 0, known = g->ops[o].layer < 0 || g->ops[o].kind == CAIRN_OP_MOE;

		for (int i = 0; i < plan->num_places && !known; i++)
			known = !strcmp(places[i].op, name);
		for (size_t i = 0; i < ARRAY_SIZE(on_first) && !known; i++)
			first |= !strcmp(on_first[i], name);
		for (int i = 0; i < 2 && !known && plan->num_places < most; i++)
			places[plan->num_places++] = (struct cairn_nano_place){
				.op = name, .batch = i, .lane = 2 * i + !first, .start = o * 0.01,
			};
	}
}

/* Runs the mutant in each order; returns the first that detects it, or -1. */
static int detected(struct cairn_test *t, struct scene *s, const struct mutant *m)
{
	struct cairn_nano_place places[64];
	struct cairn_nano_cuts cuts = cuts_at(s, 2, cut);
	struct cairn_nano_plan plan;
	int found = -1;

	apart(s, &plan, places, ARRAY_SIZE(places));
	for (s->first_lane = 0; s->first_lane < plan.num_lanes && found < 0; s->first_lane++) {
		struct cairn_impl before = s->impl;
		struct cairn_nano *n = NULL;

		if (!EXPECT(t, cairn_nano_create(&n, s->s, &plan) == 0))
			return -1;
		if (m->change)
			EXPECT(t, m->change(s, n) > 0);
		s->spoil = m->spoil;
		if (run_nano(s, n, &cuts) != 0)
			found = s->first_lane;
		s->impl = before;
		s->spoil = NULL;
		s->only_cache = 0;
		for (int l = 1; l < plan.num_lanes; l++)
			EXPECT(t, s->impl.stream_sync(n->streams[l]) == 0);
		cairn_nano_destroy(n);
	}
	return found;
}

static void noticed(struct cairn_test *t)
{
	struct scene s;
	int open = 0;

	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		const struct mutant *m = &mutants[i];
		int order;

		if (!i || strcmp(m->model, mutants[i - 1].model)) {
			if (open)
				close_scene(&s);
			open = 1;
			if (open_scene(t, &s, "late", m->model) ||
			    run_scene(t, &s, requests, ARRAY_SIZE(requests)))
				break;
		}
		order = detected(t, &s, m);
		cairn_note(t, "%s, %s: first detected by order %d", m->model, m->name, order);
		EXPECT(t, m->bad ? order >= 0 : order < 0);
	}
	if (open)
		close_scene(&s);
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed },
};

const struct cairn_family cairn_nano_mutants_family = {
	.stage = "serving",
	.name = "nano_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 2,
};
