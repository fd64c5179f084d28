// SPDX-License-Identifier: Apache-2.0
/* slices_test - slices of all models, and of random graphs against all their cuts */
#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/slices/slices_test.h"
#include "serving/graph/op_graph_test.h"

static const int32_t one = 1;

static struct cairn_pass_sizes one_token(const int32_t *dims)
{
	return (struct cairn_pass_sizes){
		.dims = dims, .qo_len = &one, .kv_len = &one, .num_requests = 1, .num_tokens = 1,
		.num_logits = 1,
		.element = { [CAIRN_ROLE_ACTIVATION] = 2, [CAIRN_ROLE_WEIGHT] = 2, [CAIRN_ROLE_MATRIX] = 2,
			     [CAIRN_ROLE_CACHE] = 2, [CAIRN_ROLE_LOGITS] = 4, [CAIRN_ROLE_INDEX] = 4 },
	};
}

/* Between its layers a model needs the residual stream and nothing else. */
static void judge_model(struct cairn_test *t, const struct subject *s)
{
	const struct cairn_pass_sizes sizes = one_token(s->dims);
	struct cairn_slices *slices = NULL;
	int bad = 0;

	if (!EXPECT(t, cairn_slices_create(&slices, s->g, &sizes) == 0)) {
		cairn_note(t, "%s: %s", s->name, cairn_last_error());
		return;
	}
	EXPECT(t, slices->num_slices == s->c.num_hidden_layers + 1);
	for (int32_t i = 0; i + 1 < slices->num_slices; i++) {
		const struct cairn_slice *slice = &slices->slices[i];
		const struct cairn_graph_value *v = &s->g->values[slices->saves[slice->first_save]];

		bad += slice->num_saves != 1 || slice->save_bytes != 2 * s->c.hidden_size ||
		       s->g->values[v->storage].storage != cairn_op_graph_find(s->g, "embedded");
	}
	if (!EXPECT(t, !bad))
		cairn_note(t, "%s: %d cuts save something else", s->name, bad);
	cairn_slices_destroy(slices);
}

static void models(struct cairn_test *t)
{
	struct subject s[NUM_MODELS];
	int num = open_subjects(t, s);

	for (int i = 0; i < num; i++)
		if (s[i].g)
			judge_model(t, &s[i]);
	close_subjects(s, num);
}

static const char *step_text(const struct cairn_op_graph *g, const struct cairn_slice_step *step, char *text,
			     size_t len)
{
	static const char *const kinds[] = { "", "send_q ", "send_kv ", "merge " };
	static const char *const parts[] = { "", " (q)", " (kv)" };

	snprintf(text, len, "%s%s%s", kinds[step->kind], g->ops[step->op].name,
		 step->kind == CAIRN_STEP_OP ? parts[step->part] : "");
	return text;
}

/* Expects the steps of one slice; the list ends with NULL. */
static void expect_steps(struct cairn_test *t, const char *shape, int32_t slice, const char *const *want)
{
	struct cairn_slices *slices = NULL;
	struct cairn_pass_sizes sizes;
	struct subject s;
	char text[128];
	int32_t n = 0;

	if (open_shape(t, &s, shape))
		return;
	sizes = one_token(s.dims);
	if (EXPECT(t, cairn_slices_create(&slices, s.g, &sizes) == 0)) {
		const struct cairn_slice *x = &slices->slices[slice];

		for (; want[n] && n < x->num_steps; n++) {
			step_text(s.g, &slices->steps[x->first_step + n], text, sizeof(text));
			if (!EXPECT(t, !strcmp(text, want[n])))
				cairn_note(t, "%s: step %d is %s, not %s", shape, n, text, want[n]);
		}
		EXPECT(t, !want[n] && n == x->num_steps);
	}
	cairn_slices_destroy(slices);
	cairn_op_graph_destroy(s.g);
}

static void queries_leave_first(struct cairn_test *t)
{
	expect_steps(t, "llama3-8b", 1, (const char *const[]){
		"merge layers.0.attn", "layers.0.o_proj", "layers.0.mlp_norm", "layers.0.gate_up_proj",
		"layers.0.activation", "layers.0.down_proj", "layers.1.attn_norm", "layers.1.qkv_proj (q)",
		"layers.1.rope (q)", "send_q layers.1.attn", "layers.1.qkv_proj (kv)", "layers.1.rope (kv)",
		"send_kv layers.1.attn", NULL });
	expect_steps(t, "dsv3", 0, (const char *const[]){
		"embedding", "layers.0.attn_norm", "layers.0.q_a_proj", "layers.0.q_norm", "layers.0.q_proj",
		"send_q layers.0.attn", "layers.0.kv_a_proj", "send_kv layers.0.attn", NULL });
}

/* ---- random graphs ---- */

static int on(uint32_t before, int32_t op)
{
	return (int)(before >> op & 1);
}

/* Whether slices.h allows the cut at seam `at` after the operations `before`, given as bits. */
static int allowed(const struct cairn_op_graph *g, const struct cairn_seam *seams, int32_t at,
		   uint32_t before)
{
	const int32_t sent[] = { g->values[seams[at].q].producer, g->values[seams[at].kv].producer };

	for (int i = 0; i < 2; i++)
		if (sent[i] >= 0 && !on(before, sent[i]))
			return 0;
	for (int32_t i = 0; i < g->num_attn; i++)
		if (on(before, seams[i].attn) != (i < at) || on(before, seams[i].append) != (i < at))
			return 0;
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		for (int32_t i = 0; i < op->num_in && on(before, o); i++) {
			const struct cairn_graph_value *v = &g->values[op->in[i]];
			int gone = 0;

			for (int32_t k = 0; k < op->num_out; k++)
				gone |= op->overwrites[k] == i + 1;
			for (int32_t k = 0; k < v->num_consumers && gone; k++)
				if (!on(before, g->consumers[v->first_consumer + k]))
					return 0;
			if (v->producer >= 0 && !on(before, v->producer))
				return 0;
		}
	}
	return 1;
}

struct price {
	int64_t bytes;
	int32_t values, before;
};

static struct price price_of(const struct random_graph *r, const struct cairn_seam *seam, uint32_t before)
{
	struct price p = { .before = __builtin_popcount(before) };

	for (int32_t v = 0; v < r->g->num_values; v++) {
		const struct cairn_graph_value *value = &r->g->values[v];
		int saved = 0;

		if (value->producer < 0 || !on(before, value->producer))
			continue;
		for (int32_t i = 0; i < value->num_consumers; i++) {
			int32_t reader = r->g->consumers[value->first_consumer + i];

			saved |= !on(before, reader) && reader != seam->attn && reader != seam->append;
		}
		p.values += saved;
		p.bytes += saved ? cairn_value_bytes(value, &r->sizes) : 0;
	}
	return p;
}

static int better(struct price a, struct price b)
{
	if (a.bytes != b.bytes)
		return a.bytes < b.bytes;
	return a.values != b.values ? a.values < b.values : a.before > b.before;
}

static struct price best_price(const struct random_graph *r, const struct cairn_seam *seams, int32_t at)
{
	struct price best = { .bytes = INT64_MAX };

	for (uint32_t before = 0; before < 1u << r->g->num_ops; before++) {
		struct price p;

		if (!allowed(r->g, seams, at, before))
			continue;
		p = price_of(r, &seams[at], before);
		if (better(p, best))
			best = p;
	}
	return best;
}

/* Counts the operations of slices 0 to `last`, and the attentions that these slices merge. */
static int32_t ops_before(const struct cairn_slices *s, int32_t last)
{
	int32_t num = 2 * last;		/* each attention, and what appends to its cache */

	for (int32_t i = 0; i <= last; i++)
		for (int32_t k = 0; k < s->slices[i].num_steps; k++) {
			const struct cairn_slice_step *step = &s->steps[s->slices[i].first_step + k];

			num += step->kind == CAIRN_STEP_OP && step->part != CAIRN_PART_KV;
		}
	return num;
}

static void judge_random(struct cairn_test *t, const struct random_graph *r, int *shadows)
{
	struct cairn_slices *s = NULL;

	if (!EXPECT(t, cairn_slices_create(&s, r->g, &r->sizes) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	for (int32_t i = 0; i + 1 < s->num_slices; i++) {
		struct price best = best_price(r, s->seams, i);
		const struct cairn_slice *slice = &s->slices[i];
		const struct cairn_slice_step *last = &s->steps[slice->first_step + slice->num_steps - 1];

		if (!EXPECT(t, slice->save_bytes == best.bytes && slice->num_saves == best.values &&
			    ops_before(s, i) == best.before))
			cairn_note(t, "cut %d: %lld bytes, %d values, %d operations; best %lld, %d, %d", i,
				   (long long)slice->save_bytes, slice->num_saves, ops_before(s, i),
				   (long long)best.bytes, best.values, best.before);
		*shadows += last->kind == CAIRN_STEP_OP;
	}
	cairn_slices_destroy(s);
}

/*
 * Operations are listed in an order in which they can run, so every graph can be cut at each attention.
 * Returns the number of graphs judged.
 */
static int judge_graphs(struct cairn_test *t, int *shadows)
{
	int graphs = 0;

	for (int i = 0; i < 12000; i++) {
		struct random_graph r;
		int attns = 1 + (int)(cairn_rand(t) % 2);

		if (!EXPECT(t, open_random(t, &r, attns, (int)(cairn_rand(t) % 4)) == 0))
			cairn_note(t, "graph %d: %s", i, cairn_last_error());
		else if (r.g->num_ops <= 11)
			judge_random(t, &r, shadows), graphs++;
		cairn_op_graph_destroy(r.g);
	}
	return graphs;
}

static void random_graphs(struct cairn_test *t)
{
	int shadows = 0, graphs = judge_graphs(t, &shadows);

	cairn_note(t, "%d graphs; %d slices have work that no message waits for", graphs, shadows);
	EXPECT(t, graphs > 10000 && shadows > 1000);
}

static void large_graphs(struct cairn_test *t)
{
	for (int i = 0; i < 300; i++) {
		struct random_graph r;
		struct cairn_slices *s = NULL;

		int attns = 1 + (int)(cairn_rand(t) % 6), plain = (int)(cairn_rand(t) % 12);

		if (EXPECT(t, open_random(t, &r, attns, plain) == 0) &&
		    EXPECT(t, cairn_slices_create(&s, r.g, &r.sizes) == 0))
			EXPECT(t, cairn_slices_check(s, r.g) == 0);
		cairn_slices_destroy(s);
		cairn_op_graph_destroy(r.g);
	}
}

static const struct cairn_unit units[] = {
	{ "models", models },
	{ "queries_leave_first", queries_leave_first },
	{ "random_graphs", random_graphs },
	{ "large_graphs", large_graphs },
};

/* ---- measures: rows of every model and of random graphs; a row is ok if each cut is minimal ---- */

static void measure_models(struct cairn_test *t)
{
	struct subject s[NUM_MODELS];
	int num = open_subjects(t, s);

	for (int i = 0; i < num; i++) {
		const struct cairn_pass_sizes sizes = one_token(s[i].dims);
		struct cairn_slices *slices = NULL;
		int64_t begin = cairn_clock_ns();
		char name[96];

		if (!s[i].g || !EXPECT(t, cairn_slices_create(&slices, s[i].g, &sizes) == 0))
			continue;
		begin = cairn_clock_ns() - begin;
		judge_model(t, &s[i]);
		snprintf(name, sizeof(name), "model_%s", s[i].name);
		for (char *c = strchr(name, ' '); c; c = strchr(c, ' '))
			*c = '_';
		cairn_host_row(t, name, "host", "\"attentions\":%d,\"slices\":%d,\"saved_bytes\":%lld,"
			       "\"create_ms\":%.3f", s[i].c.num_hidden_layers, slices->num_slices,
			       (long long)slices->slices[0].save_bytes, (double)begin * 1e-6);
		cairn_slices_destroy(slices);
	}
	close_subjects(s, num);
}

static void measure_random(struct cairn_test *t)
{
	int shadows = 0, graphs = judge_graphs(t, &shadows);

	cairn_host_row(t, "random_graphs", "host", "\"graphs\":%d,\"shadows\":%d", graphs, shadows);
}

static const struct cairn_unit measures[] = {
	{ "models", measure_models }, { "random_graphs", measure_random },
};

const struct cairn_family cairn_slices_family = {
	.stage = "serving", .name = "slices", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
};
