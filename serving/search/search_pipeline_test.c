// SPDX-License-Identifier: Apache-2.0
/* search_pipeline_test - checks the pipelines of all kinds of models, and what bounds their operations */
#include <limits.h>

#include "conformance/harness.h"
#include "serving/model/model_graph.h"
#include "serving/search/search_test.h"

/* Writes the pipeline as text: names with what they cover, then edges; ' marks the next layer, # keys. */
static void describe(const struct cairn_search_pipeline *p, char *text, size_t len)
{
	size_t at = 0;

	for (int32_t o = 0; o < p->num_ops; o++)
		at += (size_t)snprintf(text + at, len - at, "%s%s(%s) ", p->ops[o].name,
				       p->ops[o].whole ? "*" : "", p->ops[o].covers);
	for (int32_t e = 0; e < p->num_edges; e++)
		at += (size_t)snprintf(text + at, len - at, " %s>%s%s%s", p->ops[p->edges[e].from].name,
				       p->ops[p->edges[e].to].name, p->edges[e].lag ? "'" : "",
				       p->edges[e].kind == CAIRN_SEARCH_CACHE ? "#" : "");
}

/* Makes a config that of one rank's share. */
static int share(struct cairn_model_config *c, int ranks)
{
	int32_t kv_shares;

	return ranks > 1 ? cairn_model_share_config(c, "shape", ranks, 0, &kv_shares) : 0;
}

static void shapes(struct cairn_test *t)
{
	static const struct {
		const char *shape;
		int ranks;
		const char *want;
	} all[] = {
		{ "llama3-8b", 1,
		  "qkv(attn_norm qkv_proj rope kv_append) attn(attn) o(o_proj) "
		  "gate_up(mlp_norm gate_up_proj activation) down(down_proj)  "
		  "down>qkv' qkv>attn# attn>o o>gate_up gate_up>down" },
		{ "llama3-8b", 2,
		  "attn_norm(attn_norm) qkv(qkv_proj rope kv_append) attn(attn) o(o_proj) mlp_norm(mlp_norm) "
		  "gate_up(gate_up_proj activation) down(down_proj)  "
		  "down>attn_norm' attn_norm>qkv qkv>attn# attn>o o>mlp_norm mlp_norm>gate_up gate_up>down" },
		{ "mixtral-8x7b", 1,
		  "qkv(attn_norm qkv_proj rope kv_append) attn(attn) o(o_proj) moe*(mlp_norm moe)  "
		  "moe>qkv' qkv>attn# attn>o o>moe" },
		{ "dsv2lite", 1,
		  "q(attn_norm q_proj) kv_a(kv_a_proj mla_append) attn(attn) o(o_proj) moe*(mlp_norm moe)  "
		  "moe>q' q>kv_a kv_a>attn# attn>o o>moe" },
		{ "dsv2lite", 2,
		  "attn_norm(attn_norm) q(q_proj) kv_a(kv_a_proj mla_append) attn(attn) o(o_proj) "
		  "mlp_norm(mlp_norm) moe*(moe)  moe>attn_norm' attn_norm>q q>kv_a kv_a>attn# attn>o "
		  "o>mlp_norm mlp_norm>moe" },
	};
	struct cairn_search_pipeline p;
	struct cairn_model_config c;
	char text[1024];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		if (!EXPECT(t, cairn_model_shape(all[i].shape, &c) == 0 &&
			       share(&c, all[i].ranks) == 0 && cairn_search_pipeline(&p, &c) == 0))
			continue;
		describe(&p, text, sizeof(text));
		if (!EXPECT(t, !strcmp(text, all[i].want)))
			cairn_note(t, "%s: %s", all[i].shape, text);
		EXPECT(t, p.num_layers == c.num_hidden_layers && p.ranks == all[i].ranks);
		for (int32_t o = 0; o < p.num_ops; o++)
			EXPECT(t, p.ops[o].network == (p.ranks > 1 && strstr(p.ops[o].name, "norm") != NULL));
	}
}

/* Models of other sizes have other digests; one layer, and layers with two windows, are refused. */
static void limits(struct cairn_test *t)
{
	struct cairn_search_pipeline a, b;
	struct cairn_model_config c;

	EXPECT(t, cairn_model_shape("llama3-8b", &c) == 0 && cairn_search_pipeline(&a, &c) == 0);
	c.intermediate_size += 128;
	EXPECT(t, cairn_search_pipeline(&b, &c) == 0 && strcmp(a.shape, b.shape));
	c.num_hidden_layers = 1;
	EXPECT(t, cairn_search_pipeline(&b, &c) == -EOPNOTSUPP);
	EXPECT(t, cairn_model_shape("gemma2-9b", &c) == 0 && cairn_search_pipeline(&b, &c) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "different attention windows");
}

/* On a GPU of 700 TFLOP/s and 4400 GB/s, products of 1024 rows are bound by arithmetic. */
static void kinds(struct cairn_test *t)
{
	static const struct {
		const char *shape;
		struct cairn_search_pass pass;
		int want[5];
	} all[] = {
		{ "llama3-8b", { 1024, 384, 1024 }, { C, M, C, C, C } },
		{ "llama3-8b", { 128, 128, 1024 }, { M, M, M, M, M } },
		/* a prompt alone: attention has as many flops for each byte as a product */
		{ "llama3-8b", { 2048, 0, 1 }, { C, C, C, C, C } },
		/* all experts' weights are read for 1024 rows, 2 of 8 chosen: above the ridge */
		{ "mixtral-8x7b", { 1024, 384, 1024 }, { C, M, C, C } },
		{ "mixtral-8x7b", { 256, 128, 1024 }, { C, M, C, M } },
	};
	struct cairn_search_pipeline p;
	struct cairn_model_config c;
	enum cairn_search_kind got[CAIRN_SEARCH_MOST_OPS];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		EXPECT(t, cairn_model_shape(all[i].shape, &c) == 0 && cairn_search_pipeline(&p, &c) == 0);
		EXPECT(t, cairn_search_kinds(&p, &c, &all[i].pass, 700, 4400, got) == 0);
		for (int32_t o = 0; o < p.num_ops; o++)
			if (!EXPECT(t, (int)got[o] == all[i].want[o]))
				cairn_note(t, "%s: %s is bound by %s", all[i].shape, p.ops[o].name,
					   cairn_search_kind_names[got[o]]);
	}
}

/* The times of a problem are the closed forms of its profile. */
static void problem(struct cairn_test *t)
{
	static struct cairn_search_problem p;
	struct cairn_search_pipeline pipeline;
	struct cairn_search_profile *profile = NULL;
	struct cairn_model_config c;
	struct cairn_search_pass pass = { 512, 192, 1024 };
	char path[PATH_MAX];
	double want = 5e-3 + 192 * 1024 * 1e-7;

	closed_profile(t, 512, path, sizeof(path));
	EXPECT(t, cairn_model_shape("llama3-8b", &c) == 0 && cairn_search_pipeline(&pipeline, &c) == 0);
	if (!EXPECT(t, cairn_search_profile_read(&profile, path) == 0))
		return;
	EXPECT(t, cairn_search_problem(&p, &pipeline, &c, profile, &pass, ~0u) == 0);
	EXPECT(t, p.num_sizes == 3 && p.sizes[0] == 128 && p.sizes[2] == 384);
	EXPECT(t, fabs(p.ms[0][1] - closed_ns(0, 256) * 1e-6) < 1e-9);
	EXPECT(t, fabs(cairn_search_attn_ms(&p, 512, 192) - want) < 1e-9);
	for (int i = 0; i < 4; i++)
		want += closed_ns(i, 512) * 1e-6;
	EXPECT(t, fabs(cairn_search_sequential_ms(&p) - want) < 1e-9);
	EXPECT(t, p.num_levels[CAIRN_SEARCH_COMPUTE] == 5 && p.num_levels[CAIRN_SEARCH_MEMORY] == 5 &&
		  p.num_levels[CAIRN_SEARCH_NETWORK] == 1);
	for (int i = 1; i < 5; i++)
		EXPECT(t, fabs(p.levels[CAIRN_SEARCH_COMPUTE][i].r - (1.1 - 0.2 * i)) < 1e-8 &&
			  p.levels[CAIRN_SEARCH_COMPUTE][i].p == p.levels[CAIRN_SEARCH_COMPUTE][i].r &&
			  fabs(p.speed[0][i] - p.levels[CAIRN_SEARCH_COMPUTE][i].r) < 1e-8 &&
			  p.speed[1][i] == p.levels[CAIRN_SEARCH_MEMORY][i].p);
	pass.rows = 500;
	EXPECT(t, cairn_search_problem(&p, &pipeline, &c, profile, &pass, ~0u) == -EINVAL);
	pass.rows = 1024;
	EXPECT(t, cairn_search_problem(&p, &pipeline, &c, profile, &pass, ~0u) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "no row of qkv_m1024");
	cairn_search_profile_free(profile);
}

static const struct cairn_unit units[] = {
	{ "shapes", shapes },
	{ "limits", limits },
	{ "kinds", kinds },
	{ "problem", problem },
};

const struct cairn_family cairn_search_pipeline_family = {
	.stage = "serving",
	.name = "search_pipeline",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
