// SPDX-License-Identifier: Apache-2.0
/*
 * engine_spec_test - the answers with speculation are those without, bit for bit
 *
 * A longer run: cairn check --repeat N serving.engine_spec.random_cpu, some 1000 tokens each.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/spec/engine_spec_test.h"

static void random_cpu(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 0, 4);
}

/*
 * With `repeatable` an answer does not depend on the rows beside its own, drafted ones included, on any
 * table: drafts of all kinds give the bits of an engine with the same options whose drafter is silent.
 */
static void repeatable(struct cairn_test *t, const char *table, int rounds)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, c) || open_model(t, table, "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->seed = cairn_rand(t);
	c->num_jobs = JOBS;
	for (int k = 0; k < rounds; k++) {
		crowd_make_engine(c);
		c->opt.repeatable = 1;
		c->opt.cache_grain = c->opt.cache_grain == 1 ? 0 : c->opt.cache_grain;
		c->opt.nano = NULL;
		for (int i = 0; i < JOBS; i++)
			crowd_make_job(c, i);
		c->depth = 1 + crowd_below(c, 7);
		c->silent = 1;
		crowd_run(t, c, 1);
		EXPECT(t, !c->stats.speculation.draft_tokens);
		for (int i = 0; i < JOBS; i++)
			memcpy(c->jobs[i].want, c->jobs[i].got, sizeof(c->jobs[i].got));
		c->silent = 0;
		c->right = 0.2 + 0.2 * crowd_below(c, 5);
		crowd_run(t, c, 1);
		crowd_compare(t, c);
	}
	EXPECT(t, c->accepted > 0 && c->accepted < c->drafts);
	close_model(c->m, &g);
	free(c);
}

static void repeatable_cuda(struct cairn_test *t)
{
	repeatable(t, "cuda", 4);
}

static void repeatable_cpu(struct cairn_test *t)
{
	repeatable(t, "cpu", 2);
}

#define TREE_DEPTH	5

/*
 * Greedy answers with drafts, judged by the logits of the naive computation: for tables on which the bits
 * depend on the rows of a pass. Half of the drafts repeat what was said, the others are random tokens; with
 * branches, two of them follow each row.
 */
static int32_t repeat(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
		      int32_t *drafts, int32_t *parents, int32_t room)
{
	static const struct cairn_speculation ngram = { .lookup_min = 1, .lookup_max = 3 };
	struct crowd *c = ctx;
	int32_t depth = c->branches > 1 && room > TREE_DEPTH ? TREE_DEPTH : room, found;

	(void)id, (void)index;
	found = crowd_below(c, 2) ? cairn_ngram_draft(&ngram, tokens, num, drafts, parents, room, depth) : 0;
	if (found)
		return found;
	for (int32_t k = 0; k < room; k++) {
		drafts[k] = crowd_below(c, c->m->config.vocab_size);
		parents[k] = c->branches > 1 ? k / 2 : k;
	}
	return room;
}

static void judged(struct cairn_test *t, const char *table, enum cairn_kv_form kv, double slack,
		   int32_t branches)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_engine_options opt = {
		.max_batch = 5, .max_rows = 64, .max_context = PROMPT + NEW, .page_size = 8,
		.speculation = { CAIRN_SPECULATE_CALLER, .num_tokens = branches > 1 ? TREE_DEPTH : 9,
				 .branches = branches, .always = 1, .draft = repeat, .ctx = c },
	};
	struct cairn_impl impl;
	struct cairn_engine *e;
	struct naive n;
	struct golden g;

	if (!EXPECT(t, c) || open_model_as(t, table, "llama3_tiny", kv, &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->seed = cairn_rand(t);
	c->branches = branches;
	if (!naive_open_as(t, &n, g.dir, kv) && EXPECT(t, cairn_engine_create(&e, c->m, &opt) == 0)) {
		for (int i = 0; i < JOBS; i++) {
			crowd_make_job(c, i);
			c->jobs[i].r.beam_width = 0;
			c->jobs[i].r.num_seqs = 1;
			c->jobs[i].r.sampling.temperature = 0;
			c->jobs[i].r.ctx = c->jobs[i].got;
			EXPECT(t, cairn_engine_submit(e, &c->jobs[i].r) == 0);
		}
		EXPECT(t, cairn_engine_run(e) == 0 && cairn_engine_verify(e) == 0);
		for (int i = 0; i < JOBS; i++)
			naive_judge(t, &n, &c->jobs[i].r, c->jobs[i].got, slack);
		cairn_engine_stats(e, &c->stats);
		EXPECT(t, c->stats.speculation.accepted_tokens > 0 && c->stats.speculation.drafts > 20);
		cairn_engine_destroy(e);
	}
	naive_close(&n);
	close_model(c->m, &g);
	free(c);
}

/* The bound on the difference of logits computed in two ways is that of engine_treat_test.c. */
static void judged_cuda(struct cairn_test *t)
{
	judged(t, "cuda", CAIRN_KV_PLAIN, 0.3, 0);
}

static void judged_trees_cuda(struct cairn_test *t)
{
	judged(t, "cuda", CAIRN_KV_PLAIN, 0.3, 2);
}

static void judged_trees_cpu(struct cairn_test *t)
{
	judged(t, "cpu", CAIRN_KV_PLAIN, 0.3, 2);
}

static void judged_cpu(struct cairn_test *t)
{
	judged(t, "cpu", CAIRN_KV_PLAIN, 0.3, 0);
}

static void random_late(struct cairn_test *t)
{
	crowd_of_model(t, "late", "llama3_tiny", CAIRN_KV_PLAIN, 0, 2);
}

static void random_kv_fp8(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "llama3_tiny", CAIRN_KV_FP8, 0, 2);
}

static void random_latent(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "deepseek_tiny", CAIRN_KV_PLAIN, 0, 1);
}

static void random_window(struct cairn_test *t)
{
	crowd_of_model(t, "cpu", "gemma2_tiny", CAIRN_KV_PLAIN, 0, 1);
}

/* Drafts of another model are mostly wrong; answers stay the same, even when pages run out. */
static void random_model(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;
	struct golden g, other;

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	if (!open_golden(t, &other, "llama2_tiny") &&
	    EXPECT(t, cairn_model_load(&c->drafter, &impl, other.dir, NULL, NULL) == 0)) {
		crowd_rounds(t, c, 2);
		EXPECT(t, c->drafts > 0 && c->accepted < c->drafts / 2);
		cairn_model_free(c->drafter);
		close_golden(&other);
	}
	close_model(c->m, &g);
	free(c);
}

/* A model drafts its own greedy answers without an error: it has the keys of the right tokens. */
static void own_drafts(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->seed = cairn_rand(t);
	c->drafter = c->m;
	c->num_jobs = JOBS;
	for (int k = 0; k < 3; k++) {
		crowd_make_engine(c);
		for (int i = 0; i < JOBS; i++) {
			crowd_make_job(c, i);
			c->jobs[i].r.sampling = (struct cairn_sampling){ .top_p = 1 };
			c->jobs[i].r.beam_width = 0;
		}
		c->depth = 1 + crowd_below(c, 7);
		crowd_run(t, c, 0);
		crowd_run(t, c, 1);
		crowd_compare(t, c);
	}
	EXPECT(t, c->drafts > 100 && c->accepted == c->drafts);
	cairn_note(t, "%lld of %lld drafts right", (long long)c->accepted, (long long)c->drafts);
	close_model(c->m, &g);
	free(c);
}

static const struct cairn_unit units[] = {
	{ "repeatable_cpu", repeatable_cpu }, { "repeatable_cuda", repeatable_cuda },
	{ "judged_cpu", judged_cpu }, { "judged_cuda", judged_cuda },
	{ "judged_trees_cpu", judged_trees_cpu }, { "judged_trees_cuda", judged_trees_cuda },
	{ "random_model", random_model }, { "own_drafts", own_drafts },
	{ "random_cpu", random_cpu },
	{ "random_late", random_late },
	{ "random_kv_fp8", random_kv_fp8 },
	{ "random_latent", random_latent },
	{ "random_window", random_window },
};

const struct cairn_family cairn_engine_spec_family = {
	.stage = "serving",
	.name = "engine_spec",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 4,
};
