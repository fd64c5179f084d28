// SPDX-License-Identifier: Apache-2.0
/* op_graph_test - checks that all models' graphs are well-formed; queries, orders and text */
#include "conformance/harness.h"
#include "serving/graph/op_graph_test.h"

/* Counts definitions and uses in list order, independently of what finish computed. */
static void judge_values(struct cairn_test *t, const struct subject *s)
{
	const struct cairn_op_graph *g = s->g;
	int *defined = calloc(2 * (size_t)g->num_values, sizeof(int)), *used = defined + g->num_values;
	int late = 0, twice = 0, unused = 0, layers = 0;

	for (int32_t v = 0; v < g->num_values; v++)
		defined[v] = g->values[v].kind == CAIRN_VALUE_INPUT ||
			     g->values[v].kind == CAIRN_VALUE_WEIGHT ||
			     (g->values[v].kind == CAIRN_VALUE_CACHE && g->values[v].producer < 0);
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		for (int32_t i = 0; i < op->num_in; i++) {
			late += !defined[op->in[i]];
			used[op->in[i]]++;
		}
		for (int32_t i = 0; i < op->num_weights; i++)
			used[op->weights[i]]++;
		for (int32_t i = 0; i < op->num_out; i++) {
			twice += defined[op->out[i]]++;
			EXPECT(t, g->values[op->out[i]].producer == o);
		}
	}
	for (int32_t v = 0; v < g->num_values; v++) {
		enum cairn_value_kind kind = g->values[v].kind;

		EXPECT(t, cairn_op_graph_find(g, g->values[v].name) == v);
		EXPECT(t, g->values[v].num_consumers <= used[v] && !g->values[v].num_consumers == !used[v]);
		unused += !used[v] && kind != CAIRN_VALUE_SCRATCH && kind != CAIRN_VALUE_OUTPUT;
		EXPECT(t, defined[v] == 1);
	}
	EXPECT(t, late == 0 && twice == 0 && unused == 0);
	EXPECT(t, g->num_attn == s->c.num_hidden_layers);
	for (int32_t i = 0; i < g->num_attn; i++) {
		const struct cairn_graph_op *op = &g->ops[g->attn[i]];

		layers += op->layer == i && op->window == cairn_layer_window(&s->c, i) &&
			  op->kind == (s->c.latent.kv_lora_rank ? CAIRN_OP_MLA : CAIRN_OP_ATTN);
	}
	EXPECT(t, layers == s->c.num_hidden_layers);
	free(defined);
}

/* The weights of the graph are those of the model, each with its number of elements. */
static void judge_weights(struct cairn_test *t, const struct cairn_model *m, int has_scales)
{
	int seen[CAIRN_NUM_WEIGHTS] = { 0 };

	for (int32_t v = 0; v < m->graph->num_values; v++) {
		const struct cairn_graph_value *w = &m->graph->values[v];

		if (w->kind != CAIRN_VALUE_WEIGHT)
			continue;
		seen[w->weight]++;
		EXPECT(t, (size_t)m->dims[w->shape.num] * (size_t)m->dims[w->shape.height] *
			  (size_t)m->dims[w->shape.width] == m->elements[w->weight]);
		EXPECT(t, (has_scales && w->role == CAIRN_ROLE_MATRIX) ==
			  !!cairn_model_scale(m, w->layer, w->weight));
	}
	for (int w = 1; w < CAIRN_NUM_WEIGHTS; w++)
		EXPECT(t, !seen[w] == !m->elements[w]);
}

static void weights_are_the_models(struct cairn_test *t)
{
	struct cairn_impl impl;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(golden_names); i++) {
		/* experts with biases have no 8-bit weights */
		const int has_scales = strncmp(golden_names[i], "gpt_oss", 7) != 0;
		struct cairn_model *m;
		struct golden golden;

		if (open_golden(t, &golden, golden_names[i]))
			return;
		if (EXPECT(t, cairn_model_load_as(&m, &impl, golden.dir,
						  has_scales ? CAIRN_WEIGHTS_FP8 : CAIRN_WEIGHTS_PLAIN,
						  CAIRN_KV_PLAIN, NULL, NULL) == 0)) {
			judge_weights(t, m, has_scales);
			cairn_model_free(m);
		}
		close_golden(&golden);
	}
}

static void models_are_well_formed(struct cairn_test *t)
{
	struct subject s[NUM_MODELS];
	int num = open_subjects(t, s);

	for (int i = 0; i < num; i++) {
		if (s[i].g)
			judge_values(t, &s[i]);
	}
	close_subjects(s, num);
}

static int reached_ops(const struct cairn_op_graph *g, const uint8_t *reached)
{
	int sum = 0;

	for (int32_t o = 0; o < g->num_ops; o++)
		sum += reached[o];
	return sum;
}

static void queries(struct cairn_test *t)
{
	struct cairn_op_graph *g;
	int32_t first, last, v;
	struct subject s;
	uint8_t *reached;

	if (open_shape(t, &s, "llama3-8b"))
		return;
	g = s.g;
	reached = malloc((size_t)g->num_ops);
	/* ten operations per layer; before them the embedding; then two picks, a norm and the lm_head */
	EXPECT(t, g->num_ops == 32 * 10 + 5);
	cairn_op_graph_reach(g, cairn_op_graph_find(g, "ids"), reached);
	EXPECT(t, reached_ops(g, reached) == g->num_ops);
	cairn_op_graph_reach(g, cairn_op_graph_find(g, "logit_rows"), reached);
	EXPECT(t, reached_ops(g, reached) == 4);
	cairn_op_graph_reach(g, cairn_op_graph_find(g, "layers.30.kv_before"), reached);
	EXPECT(t, reached_ops(g, reached) == 10 - 3 + 10 + 4);
	EXPECT(t, !reached[g->values[cairn_op_graph_find(g, "layers.30.qkv_rotated")].producer]);
	EXPECT(t, reached[g->attn[30]] && reached[g->attn[31]] && !reached[g->attn[29]]);
	/* The residual stream stays in one place until its rows are picked. */
	v = cairn_op_graph_find(g, "layers.17.residual_mlp");
	EXPECT(t, g->values[v].storage == cairn_op_graph_find(g, "embedded"));
	cairn_op_graph_lifetime(g, v, &first, &last);
	EXPECT(t, first == 0 && last == g->values[cairn_op_graph_find(g, "final_normed")].producer);
	cairn_op_graph_lifetime(g, cairn_op_graph_find(g, "layers.2.gate_up"), &first, &last);
	EXPECT(t, last == first + 1);
	v = cairn_op_graph_find(g, "layers.2.qkv_rotated");
	EXPECT(t, g->values[v].num_consumers == 2);
	EXPECT(t, g->consumers[g->values[v].first_consumer + 1] == g->attn[2]);
	EXPECT(t, cairn_op_graph_find(g, "layers.32.qkv") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "unknown value 'layers.32.qkv'");
	free(reached);
	cairn_op_graph_destroy(g);
}

/* A model of one layer: all its operations, and some of its values. */
static void text_is_stable(struct cairn_test *t)
{
	static const char expected[] =
		"input ids [tokens] index\n"
		"input positions [tokens] index\n"
		"input paging [requests] index\n"
		"input logit_rows [logits] index\n"
		"weight w_embed [vocab, hidden] weight\n";
	static const char ops[] =
		"embedded = embedding(ids; w_embed)  # embedding\n"
		"layers.0.normed = norm(embedded; layers.0.w_attn_norm)  # layers.0.attn_norm\n"
		"layers.0.qkv = gemm(layers.0.normed; layers.0.w_qkv)  # layers.0.qkv_proj\n"
		"layers.0.qkv_rotated@layers.0.qkv = rope(layers.0.qkv, positions)  # layers.0.rope\n"
		"layers.0.kv@layers.0.kv_before = kv_append(layers.0.qkv_rotated, layers.0.kv_before, paging)"
		"  # layers.0.kv_append\n"
		"layers.0.attn = attn(layers.0.qkv_rotated, layers.0.kv, paging) window 16  # layers.0.attn\n"
		"layers.0.o = gemm(layers.0.attn; layers.0.w_o)  # layers.0.o_proj\n"
		"layers.0.mlp_normed, layers.0.residual_mlp@embedded = add_norm(layers.0.o, embedded; "
		"layers.0.w_mlp_norm)  # layers.0.mlp_norm\n"
		"layers.0.gate_up = gemm(layers.0.mlp_normed; layers.0.w_gate_up)  # layers.0.gate_up_proj\n"
		"layers.0.mlp = silu_mul(layers.0.gate_up)  # layers.0.activation\n"
		"layers.0.down = gemm(layers.0.mlp; layers.0.w_down)  # layers.0.down_proj\n"
		"picked_x = pick_rows(layers.0.down, logit_rows) forwards  # pick_x\n"
		"picked_residual = pick_rows(layers.0.residual_mlp, logit_rows) forwards  # pick_residual\n"
		"final_normed, final_residual@picked_residual = add_norm(picked_x, picked_residual; "
		"w_final_norm)  # final_norm\n"
		"logits_raw = lm_head(final_normed; w_embed)  # lm_head\n"
		"logits@logits_raw = softcap(logits_raw)  # softcap\n";
	struct cairn_op_graph *g;
	struct subject s;
	char *text = NULL;
	size_t bytes;
	FILE *file;

	EXPECT(t, cairn_model_shape("llama32-1b", &s.c) == 0);
	s.c.num_hidden_layers = 1;
	s.c.window = 16;
	s.c.windowed[0] = 1;
	s.c.logit_softcap = 30;
	if (!EXPECT(t, cairn_model_graph(&g, &s.c) == 0))
		return;
	file = open_memstream(&text, &bytes);
	cairn_op_graph_print(g, file);
	fclose(file);
	EXPECT(t, !strncmp(text, expected, sizeof(expected) - 1));
	EXPECT_CONTAINS(t, text, "\nweight layers.0.w_gate_up [gate_up, hidden] matrix\n");
	EXPECT_CONTAINS(t, text, "\ncache layers.0.kv [cached, cache] cache\n");
	EXPECT_CONTAINS(t, text, "\nscratch final_residual [logits, hidden] activation\n");
	EXPECT_CONTAINS(t, text, ops);
	free(text);
	cairn_op_graph_destroy(g);
}

/* Swaps the producers of two values in the list order. Returns what check_order says. */
static int swapped(const struct cairn_op_graph *g, const char *a, const char *b)
{
	int32_t *order = malloc((size_t)g->num_ops * sizeof(*order));
	int32_t x = g->values[cairn_op_graph_find(g, a)].producer;
	int32_t y = g->values[cairn_op_graph_find(g, b)].producer;
	int ret;

	for (int32_t o = 0; o < g->num_ops; o++)
		order[o] = o == x ? y : o == y ? x : o;
	ret = cairn_op_graph_check_order(g, order);
	free(order);
	return ret;
}

static void orders_are_checked(struct cairn_test *t)
{
	int32_t twice[] = { 0, 0 };
	struct subject s;

	if (open_shape(t, &s, "dsv2lite"))
		return;
	EXPECT(t, swapped(s.g, "layers.4.q", "layers.4.q") == 0);
	EXPECT(t, swapped(s.g, "layers.4.q", "layers.4.latents") == 0);
	EXPECT(t, swapped(s.g, "layers.4.q", "layers.4.q_rotated") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "value 'layers.4.q' is used by 'layers.4.mla_append' before "
			"'layers.4.q_proj' defines it");
	EXPECT(t, swapped(s.g, "layers.4.attn", "layers.4.o") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "value 'layers.4.attn' is used");
	EXPECT(t, cairn_op_graph_check_order(s.g, twice) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "order[1]");
	cairn_op_graph_destroy(s.g);
	if (open_shape(t, &s, "llama3-8b"))
		return;
	EXPECT(t, swapped(s.g, "picked_x", "picked_residual") == 0);
	EXPECT(t, swapped(s.g, "layers.1.qkv_rotated", "layers.1.kv") == -EINVAL);
	cairn_op_graph_destroy(s.g);
}

static const struct cairn_unit units[] = {
	{ "models_are_well_formed", models_are_well_formed },
	{ "weights_are_the_models", weights_are_the_models },
	{ "queries", queries },
	{ "text_is_stable", text_is_stable },
	{ "orders_are_checked", orders_are_checked },
};

const struct cairn_family cairn_op_graph_family = {
	.stage = "serving",
	.name = "op_graph",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
