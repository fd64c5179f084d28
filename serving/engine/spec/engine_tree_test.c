// SPDX-License-Identifier: Apache-2.0
/* engine_tree_test - the answers with token trees are those without speculation, bit for bit */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/spec/engine_spec_test.h"
#include "serving/engine/spec/spec_tree.h"

static void random_cpu(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 4, 4);
}

static void random_late(struct cairn_test *t)
{
	crowd_of_model(t, "late", "llama3_tiny", CAIRN_KV_PLAIN, 3, 1);
}

static void random_kv_fp8(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "llama3_tiny", CAIRN_KV_FP8, 4, 2);
}

static void random_window(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "gemma2_tiny", CAIRN_KV_PLAIN, 3, 1);
}

static void random_sinks(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "gpt_oss_tiny", CAIRN_KV_PLAIN, 3, 1);
}

/* The likely tokens of another model, or what followed in other places: mostly wrong, and as trees. */
static void drafters(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;
	struct golden g, other;

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->branches = 4;
	c->by_ngram = 1;
	crowd_rounds(t, c, 2);
	EXPECT(t, c->trees > 0);
	c->by_ngram = 0;
	c->trees = 0;
	if (!open_golden(t, &other, "llama2_tiny") &&
	    EXPECT(t, cairn_model_load(&c->drafter, &impl, other.dir, NULL, NULL) == 0)) {
		crowd_rounds(t, c, 2);
		EXPECT(t, c->trees > 0 && c->accepted < c->drafts / 2);
		cairn_model_free(c->drafter);
		close_golden(&other);
	}
	close_model(c->m, &g);
	free(c);
}

/*
 * A model that drafts for itself at temperature 1: the likely tokens beside the most likely one raise the
 * number of tokens of a step.
 */
static double accepted_with(struct cairn_test *t, struct crowd *c, int32_t branches)
{
	c->branches = branches;
	c->accepted = c->drafts = c->trees = 0;
	crowd_run(t, c, 0);
	crowd_run(t, c, 1);
	crowd_compare(t, c);
	cairn_note(t, "%d branches: %lld drafts right in %lld steps", branches, (long long)c->accepted,
		   (long long)c->stats.speculation.drafts);
	return (double)c->accepted / (double)c->stats.speculation.drafts;
}

static void leaves_help(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	double chain, tree;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->seed = cairn_rand(t);
	c->drafter = c->m;
	c->num_jobs = JOBS;
	c->depth = 3;
	crowd_make_engine(c);
	c->opt.repeatable = 0;
	c->opt.nano = NULL;
	c->opt.max_rows = 200;
	for (int i = 0; i < JOBS; i++) {
		crowd_make_job(c, i);
		c->jobs[i].r.beam_width = 0;
		c->jobs[i].r.max_new_tokens = NEW;
		c->jobs[i].r.sampling = (struct cairn_sampling){ .temperature = 0.7f, .top_p = 1, .top_k = 8,
								 .seed = 5 };
	}
	chain = accepted_with(t, c, 0);
	tree = accepted_with(t, c, 4);
	EXPECT(t, tree > 1.05 * chain);
	close_model(c->m, &g);
	free(c);
}

static const struct cairn_unit units[] = {
	{ "random_cpu", random_cpu },
	{ "random_late", random_late },
	{ "random_kv_fp8", random_kv_fp8 },
	{ "random_window", random_window }, { "random_sinks", random_sinks },
	{ "drafters", drafters }, { "leaves_help", leaves_help },
};

const struct cairn_family cairn_engine_tree_family = {
	.stage = "serving",
	.name = "engine_tree",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 3,
};
