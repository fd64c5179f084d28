// SPDX-License-Identifier: Apache-2.0
/*
 * forward_mutants_test - checks that the tests of logits detect a wrong graph or a wrong placement of buffers
 *
 * Each mutant changes one thing in the graph of a loaded model. The prompt, in chunks, must then have logits
 * outside the bound of the reference, or the pass must fail.
 */
#include "conformance/harness.h"
#include "serving/model/forward/forward_test.h"

static struct cairn_graph_op *op_of(struct cairn_op_graph *g, const char *result)
{
	return &g->ops[g->values[cairn_op_graph_find(g, result)].producer];
}

/* If all logits are wanted, PICK_ROWS does nothing. */
static void drop(struct cairn_op_graph *g, const char *result)
{
	op_of(g, result)->kind = CAIRN_OP_PICK_ROWS;
}

static void rotation_dropped(struct cairn_op_graph *g)
{
	drop(g, "layers.1.qkv_rotated");
}

static void keys_not_appended(struct cairn_op_graph *g)
{
	drop(g, "layers.1.kv");
}

static void addition_dropped(struct cairn_op_graph *g)
{
	op_of(g, "layers.1.residual_attn")->kind = CAIRN_OP_NORM;
}

static void last_addition_dropped(struct cairn_op_graph *g)
{
	op_of(g, "final_normed")->kind = CAIRN_OP_NORM;
}

static void other_layers_keys(struct cairn_op_graph *g)
{
	op_of(g, "layers.1.attn")->layer = 0;
}

static void other_layers_weights(struct cairn_op_graph *g)
{
	op_of(g, "layers.0.gate_up")->layer = 1;
}

static void mlp_reads_the_stream(struct cairn_op_graph *g)
{
	op_of(g, "layers.1.gate_up")->in[0] = cairn_op_graph_find(g, "layers.1.residual_mlp");
}

static void bias_forgotten(struct cairn_op_graph *g)
{
	op_of(g, "layers.0.qkv")->num_weights = 1;
}

static void head_norms_forgotten(struct cairn_op_graph *g)
{
	op_of(g, "layers.0.qkv_rotated")->num_weights = 0;
}

static void windows_forgotten(struct cairn_op_graph *g)
{
	for (int32_t i = 0; i < g->num_attn; i++)
		g->ops[g->attn[i]].window = 0;
}

static void silu_for_gelu(struct cairn_op_graph *g)
{
	op_of(g, "layers.0.mlp")->kind = CAIRN_OP_SILU_MUL;
}

static void output_norm_dropped(struct cairn_op_graph *g)
{
	drop(g, "layers.0.o_normed");
}

static void softcap_dropped(struct cairn_op_graph *g)
{
	drop(g, "logits");
}

static void query_norm_dropped(struct cairn_op_graph *g)
{
	drop(g, "layers.1.q_a_normed");
}

static void latents_not_appended(struct cairn_op_graph *g)
{
	drop(g, "layers.0.q_rotated");
}

static void experts_of_the_layer_before(struct cairn_op_graph *g)
{
	op_of(g, "layers.1.experts")->layer = 0;
}

/* The bias is the last weight of the operation. */
static void route_bias_forgotten(struct cairn_op_graph *g)
{
	for (int32_t o = 0; o < g->num_ops; o++)
		g->ops[o].num_weights -= g->ops[o].kind == CAIRN_OP_MOE;
}

static void sinks_forgotten(struct cairn_op_graph *g)
{
	for (int32_t o = 0; o < g->num_ops; o++)
		g->ops[o].num_weights *= g->ops[o].kind != CAIRN_OP_ATTN;
}

/* The following mutants have wrong lifetimes; the activations are then placed again. */
static void storage_ends_when_written(struct cairn_op_graph *g)
{
	for (int32_t v = 0; v < g->num_values; v++)
		g->values[v].storage_last = g->values[v].producer;
}

static void stream_ends_when_written(struct cairn_op_graph *g)
{
	int32_t v = cairn_op_graph_find(g, "embedded");

	g->values[v].storage_last = g->values[v].producer;
}

#define MUTANT(model, fn)	{ model, #fn, fn }

static const struct mutant {
	const char *model, *name;
	void (*change)(struct cairn_op_graph *g);
} mutants[] = {
	{ "llama3_tiny", "none", NULL },
	MUTANT("llama3_tiny", rotation_dropped),
	MUTANT("llama3_tiny", keys_not_appended),
	MUTANT("llama3_tiny", addition_dropped),
	MUTANT("llama3_tiny", last_addition_dropped),
	MUTANT("llama3_tiny", other_layers_keys),
	MUTANT("llama3_tiny", other_layers_weights),
	MUTANT("llama3_tiny", mlp_reads_the_stream),
	MUTANT("llama3_tiny", storage_ends_when_written),
	MUTANT("llama3_tiny", stream_ends_when_written),
	{ "qwen2_tiny", "none", NULL },
	MUTANT("qwen2_tiny", bias_forgotten),
	{ "qwen3_tiny", "none", NULL },
	MUTANT("qwen3_tiny", head_norms_forgotten),
	{ "gemma2_tiny", "none", NULL },
	MUTANT("gemma2_tiny", windows_forgotten),
	MUTANT("gemma2_tiny", silu_for_gelu),
	MUTANT("gemma2_tiny", output_norm_dropped),
	MUTANT("gemma2_tiny", softcap_dropped),
	{ "mixtral_tiny", "none", NULL },
	MUTANT("mixtral_tiny", experts_of_the_layer_before),
	{ "deepseek_q_tiny", "none", NULL },
	MUTANT("deepseek_q_tiny", query_norm_dropped),
	MUTANT("deepseek_q_tiny", latents_not_appended),
	MUTANT("deepseek_v3_tiny", route_bias_forgotten),
	{ "gpt_oss_tiny", "none", NULL },
	MUTANT("gpt_oss_tiny", sinks_forgotten),
	MUTANT("gpt_oss_tiny", route_bias_forgotten),	/* the bias of down */
};

/* Returns how many logits are outside the bound. A failed pass counts all of its logits. */
static int wrong_logits(struct fixture *f)
{
	static const int chunks[] = { 7, 16, 33, 1, 23 };
	int rows = f->g.num_tokens, wrong = 0;

	for (int at = 0, k = 0, n; at < rows; at += n, k++) {
		n = chunks[k % 5] < rows - at ? chunks[k % 5] : rows - at;
		if (run_pass(f, at, n))
			for (int i = 0; i < n * f->vocab; i++)
				f->logits[at * f->vocab + i] = NAN;
	}
	for (int i = 0; i < rows * f->vocab; i++)
		wrong += !(fabs((double)f->logits[i] - f->exact[i]) <= f->bound[i]);
	return wrong;
}

static void noticed(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		const struct mutant *m = &mutants[i];
		struct fixture f;
		int wrong;

		if (!open_fixture(t, &f, "cpu", m->model, 0, CAIRN_WEIGHTS_PLAIN)) {
			cairn_scratch_destroy(f.s);
			f.s = NULL;
			if (m->change)
				m->change(f.m->graph);
			if (EXPECT(t, cairn_scratch_create(&f.s, f.m, f.g.num_tokens, f.g.num_tokens) == 0)) {
				wrong = wrong_logits(&f);
				cairn_note(t, "%s, %s: %d logits of %d", m->model, m->name, wrong,
					   f.g.num_tokens * f.vocab);
				EXPECT(t, m->change ? wrong > 0 : wrong == 0);
			}
		}
		close_fixture(&f);
	}
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed },
};

const struct cairn_family cairn_forward_mutants_family = {
	.stage = "serving",
	.name = "forward_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 11,
};
