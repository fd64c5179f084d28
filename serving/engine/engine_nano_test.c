// SPDX-License-Identifier: Apache-2.0
/*
 * engine_nano_test - an engine whose passes run as nano-batches gives the answers of a sequential one
 *
 * Tokens and log-probabilities are compared bitwise, with prompts in chunks, prefix hits, preemption, pages
 * on the host, penalties, and log-probabilities of prompts.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_test.h"
#include "serving/plan/plan_engine.h"

#define JOBS	7
#define PROMPT	70
#define NEW	12

struct crowd {
	int32_t prompts[JOBS][PROMPT];
	struct answer answers[JOBS];
	float scores[JOBS][PROMPT];
	int together;			/* all requests arrive at once, with prompts of one length */
};

static struct crowd *now;

static void score(void *ctx, int32_t position, const struct cairn_token *token)
{
	now->scores[(struct answer *)ctx - now->answers][position] = token->logprob;
}

/* Runs all requests; those that arrive later find others decoding. */
static void run_all(struct cairn_test *t, struct crowd *c, struct cairn_model *m,
		    const struct cairn_engine_options *opt, struct cairn_engine_stats *stats)
{
	const struct golden none = { 0 };
	struct cairn_engine *e;
	int busy = 1, next = 0;

	now = c;
	memset(stats, 0, sizeof(*stats));
	if (!EXPECT(t, cairn_engine_create(&e, m, opt) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	for (int step = 0; busy || next < JOBS; step++) {
		for (; next < JOBS && (c->together || 2 * next <= step + 6); next++) {
			int len = c->together ? PROMPT : PROMPT - 5 * next;
			struct cairn_request r = request(&none, len, NEW, &c->answers[next]);

			r.prompt = c->prompts[next];
			r.ignore_eos = 1;
			r.sampling.num_logprobs = 1;
			r.keep = opt->host_pages > 0;
			if (next % 3 == 1) {
				r.sampling.temperature = 1;
				r.sampling.seed = 7;
				r.sampling.repetition_penalty = 1.1f;
			}
			if (next == 4 && !opt->repeatable && !c->together) {
				r.prompt_logprobs = 1;
				r.on_prompt = score;
			}
			EXPECT(t, cairn_engine_submit(e, &r) == 0);
		}
		if (!EXPECT(t, cairn_engine_step(e, &busy) == 0)) {
			cairn_note(t, "%s", cairn_last_error());
			break;
		}
	}
	EXPECT(t, cairn_engine_verify(e) == 0);
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
}

static void compare(struct cairn_test *t, const struct crowd *want, const struct crowd *got,
		    const char *what)
{
	for (int i = 0; i < JOBS; i++) {
		const struct answer *a = &want->answers[i], *b = &got->answers[i];

		if (!EXPECT(t, a->num_ids == NEW && b->num_ids == NEW &&
			    !memcmp(a->ids, b->ids, NEW * sizeof(*a->ids)) &&
			    !memcmp(a->logprob, b->logprob, NEW * sizeof(*a->logprob)) &&
			    !memcmp(want->scores[i], got->scores[i], sizeof(got->scores[i]))))
			cairn_note(t, "%s: answer %d", what, i);
	}
}

static const struct cairn_nano_plan
	pipeline = { .num_batches = 2, .num_lanes = 2 },
	three = { .num_batches = 3, .num_lanes = 3, .rows = { 2, 1, 1 }, .least_rows = 5 },
	shared = { .num_batches = 3, .num_lanes = 2, .rows = { 1, 1, 1 }, .decodes = { 1, 2, 1 } };

#define ENGINE	.max_context = 128, .decode = CAIRN_DECODE_UNFUSED, .max_batch = 16, .page_size = 4

static const struct setting {
	const char *what;
	const struct cairn_nano_plan *plan;
	struct cairn_engine_options opt;
} settings[] = {
	{ "chunks", &pipeline, { ENGINE, .max_rows = 24 } },
	{ "many rows", &three, { ENGINE, .max_rows = 128 } },
	{ "decoding rows shared out", &shared, { ENGINE, .max_rows = 40 } },
	{ "preempted", &shared, { ENGINE, .max_rows = 32, .num_pages = 70, .expected_new = 1 } },
	{ "on the host", &pipeline, { ENGINE, .max_rows = 32, .num_pages = 70, .expected_new = 1,
				      .host_pages = 200, .recompute_ns = 1000000, .swap_ns = 1 } },
	{ "repeatable", &pipeline, { ENGINE, .max_rows = 32, .repeatable = 1 } },
};

static void compare_engines(struct cairn_test *t, const char *table, const char *model, size_t num)
{
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, table, model, &impl, &g, &m))
		goto out;
	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < PROMPT; k++)	/* some share a prefix */
			want->prompts[i][k] = k < i % 3 * 16 ? 3 + k : 3 + (int32_t)(cairn_rand(t) % 180);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	for (size_t i = 0; i < num; i++) {
		const struct setting *s = &settings[i];
		struct cairn_engine_options opt = s->opt;
		struct cairn_nano_plans plans = { .num = 1 };
		struct cairn_engine_stats stats;

		memset(want->scores, 0, sizeof(want->scores));
		memset(got->scores, 0, sizeof(got->scores));
		run_all(t, want, m, &opt, &stats);
		EXPECT(t, stats.nano_steps == 0);
		plans.plans = s->plan;
		opt.nano = &plans;
		run_all(t, got, m, &opt, &stats);
		cairn_note(t, "%s, %s: %lld steps, %lld as nano-batches, %lld from graphs; %lld recomputed, "
			   "%lld swapped", table, s->what, (long long)stats.steps,
			   (long long)stats.nano_steps, (long long)stats.graph_steps,
			   (long long)stats.scheduler.recomputed, (long long)stats.scheduler.swapped);
		EXPECT(t, stats.nano_steps > 5);
		/* a pass that copies pages to the host layer by layer is not a graph */
		EXPECT(t, opt.host_pages || (stats.graph_steps > 0) == on_device(&impl));
		EXPECT(t, (stats.layer_offloads > 0) == (opt.host_pages > 0));
		compare(t, want, got, s->what);
	}
	close_model(m, &g);
out:
	free(want);
}

/* ---- plans from a file ---- */

/* Entries for passes with some shares of decoding rows; the last one has no gain. */
static char *plan_text(const char *shape)
{
	static const char *const ops[] = { "qkv", "attn", "o", "gate_up", "down" };
	static const struct {
		int rows, eighths, context;
		double ms;
	} of[] = { { 20, 0, 64, 30 }, { 20, 1, 64, 30 }, { 20, 2, 64, 30 }, { 8, 7, 64, 30 },
		   { 20, 3, 64, 33 } };
	char *text = malloc(1 << 16);
	size_t n;

	if (!text)
		return NULL;
	n = (size_t)sprintf(text, "{\"v\":2,\"gpu\":\"G\",\"impl\":\"late\",\"kernels\":\"K\","
			    "\"shape\":\"%s\",\"ranks\":1,\"sms\":132,\"entries\":[", shape);
	for (size_t i = 0; i < ARRAY_SIZE(of); i++) {
		int decode = of[i].rows * of[i].eighths / 8, first = of[i].rows / 2 - (int)i % 2 * 3;

		n += (size_t)sprintf(text + n, "%s{\"rows\":%d,\"decode_eighths\":%d,\"context\":%d,"
				     "\"cuts\":[%d],\"decode\":[%d,%d],\"sequential_ms\":33,"
				     "\"predicted_ms\":30,\"gap\":0,\"measured_sequential_ms\":33,"
				     "\"measured_ms\":%g,\"parts\":[", i ? "," : "", of[i].rows,
				     of[i].eighths, of[i].context, first, first * decode / of[i].rows,
				     decode - first * decode / of[i].rows, of[i].ms);
		for (int k = 0; k < 10; k++)
			n += (size_t)sprintf(text + n, "%s{\"op\":\"%s\",\"nano\":%d,\"start\":%.2f,"
					     "\"r\":0.5,\"how\":\"%s\",\"sms\":%d}", k ? "," : "",
					     ops[k / 2], k % 2, k * 0.15 + 0.1,
					     i % 2 ? "priority" : "green", k / 2 == 1 ? 40 : 92);
		n += (size_t)sprintf(text + n, "]}");
	}
	sprintf(text + n, "]}");
	return text;
}

/* An engine with plans from a file gives the same answers, and passes without a plan are sequential. */
static void from_file(struct cairn_test *t)
{
	struct cairn_engine_options opt = { ENGINE, .max_rows = 24 };
	struct cairn_plan_file_for here = { "G", "late", "K", NULL, 1, false };
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_search_pipeline ops;
	struct cairn_plan_engine *plans;
	struct cairn_engine_stats stats;
	char path[PATH_MAX], *text;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, "late", "llama3_tiny", &impl, &g, &m))
		return;
	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < PROMPT; k++)
			want->prompts[i][k] = 3 + (int32_t)(cairn_rand(t) % 180);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	run_all(t, want, m, &opt, &stats);
	EXPECT(t, cairn_search_pipeline(&ops, &m->config) == 0);
	text = plan_text(ops.shape);
	cairn_tmpfile(t, path, sizeof(path), "plan.json", text, strlen(text));
	free(text);
	if (!EXPECT(t, cairn_plan_engine_open(&plans, path, &m->config, &here) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	EXPECT(t, cairn_plan_engine_plans(plans)->num == 4);
	opt.nano = cairn_plan_engine_plans(plans);
	run_all(t, got, m, &opt, &stats);
	cairn_note(t, "%lld of %lld steps as nano-batches", (long long)stats.nano_steps,
		   (long long)stats.steps);
	EXPECT(t, stats.nano_steps > 5 && stats.nano_steps < stats.steps);
	compare(t, want, got, "from a file");
	opt.repeatable = 1;
	EXPECT(t, cairn_engine_create(&(struct cairn_engine *){ NULL }, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "nano: plans that depend on the pass");
	cairn_plan_engine_close(plans);
	close_model(m, &g);
	free(want);
}

/* Each step takes another of two plans, or none. */
static int32_t next_plan(const void *ctx, int32_t rows, int32_t decodes, int32_t context)
{
	int *calls = *(int *const *)ctx;

	/* a pass has at least one row for each nano-batch, and keys for each decoding row */
	return rows < 1 || decodes > rows || (decodes > 0) != (context > 0) ? 99 : ++*calls % 3 - 1;
}

/*
 * Passes of one shape by different plans have graphs of their own: a graph of other cuts would read the index
 * arrays of other nano-batches.
 */
static void plans_alternate(struct cairn_test *t)
{
	const struct cairn_nano_plan all[] = {
		pipeline, { .num_batches = 2, .num_lanes = 2, .rows = { 1, 3 } },
	};
	struct cairn_engine_options opt = { ENGINE, .max_rows = 512 };
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	int calls = 0, *ctx = &calls;
	const struct cairn_nano_plans plans = { .plans = all, .num = 2, .pick = next_plan, .ctx = &ctx };
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, "late", "llama3_tiny", &impl, &g, &m))
		return;
	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < PROMPT; k++)
			want->prompts[i][k] = 3 + (int32_t)(cairn_rand(t) % 180);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	want->together = got->together = 1;
	run_all(t, want, m, &opt, &stats);
	opt.nano = &plans;
	run_all(t, got, m, &opt, &stats);
	EXPECT(t, calls == stats.steps && stats.nano_steps > 5 && stats.nano_steps < stats.steps);
	cairn_note(t, "%lld of %lld steps from %lld graphs", (long long)stats.graph_steps,
		   (long long)stats.steps, (long long)stats.captures);
	EXPECT(t, stats.graph_steps >= 5 && stats.captures == 3);
	compare(t, want, got, "alternating plans");
	close_model(m, &g);
	free(want);
}

static void llama_cpu(struct cairn_test *t)
{
	compare_engines(t, "cpu", "llama3_tiny", ARRAY_SIZE(settings));
}

static void llama_late(struct cairn_test *t)
{
	char table[32];

	compare_engines(t, "late", "llama3_tiny", ARRAY_SIZE(settings));
	snprintf(table, sizeof(table), "late%u", 1 + (unsigned)(cairn_rand(t) % 100000));
	compare_engines(t, table, "gemma2_tiny", 1);
}

static void mixtral_late(struct cairn_test *t)
{
	compare_engines(t, "late", "mixtral_tiny", 3);
}

static void latent_late(struct cairn_test *t)
{
	compare_engines(t, "late", "deepseek_tiny", 1);
}

/* A bad plan is refused; a pass that decode_step runs takes no notice of the plan. */
static void refused(struct cairn_test *t)
{
	const struct cairn_nano_plan bad = { .num_batches = 2 };
	struct cairn_nano_plans plans = { .plans = &bad, .num = 1 };
	struct cairn_engine_options opt = { ENGINE, .nano = &plans };
	struct cairn_engine_stats stats;
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, c != NULL) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		goto out;
	EXPECT(t, cairn_engine_create(&e, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "nano_plan: num_lanes is 0");
	plans.plans = &pipeline;
	opt.decode = CAIRN_DECODE_AUTO;
	run_all(t, c, m, &opt, &stats);
	EXPECT(t, stats.fused_steps > 0 && stats.nano_steps > 0);
	EXPECT(t, stats.fused_steps + stats.nano_steps <= stats.steps);
	close_model(m, &g);
out:
	free(c);
}

static const struct cairn_unit units[] = {
	{ "llama_cpu", llama_cpu },
	{ "llama_late", llama_late },
	{ "mixtral_late", mixtral_late },
	{ "latent_late", latent_late },
	{ "from_file", from_file },
	{ "plans_alternate", plans_alternate },
	{ "refused", refused },
};

const struct cairn_family cairn_engine_nano_family = {
	.stage = "serving",
	.name = "engine_nano",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 4,
};
