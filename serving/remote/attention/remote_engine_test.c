// SPDX-License-Identifier: Apache-2.0
/*
 * remote_engine_test - an engine with attention workers gives the answers of one without
 *
 * The requests are of all kinds: prompts in chunks, shared prefixes, several answers, beams. With
 * attends_all, tokens and log-probabilities are compared bitwise. If workers attend to previous keys only,
 * greedy tokens are compared where the logits differ by more than rounding.
 */
#include <pthread.h>

#include "conformance/harness.h"
#include "serving/remote/attention/attn_worker.h"
#include "serving/remote/attention/remote_engine_test.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/member/model_digest.h"

static void refused(struct cairn_test *t, struct cairn_model *m, const struct cairn_engine_options *opt,
		    const char *says)
{
	struct cairn_engine *e;

	EXPECT(t, cairn_engine_create(&e, m, opt) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), says);
}

/* no_all: the text with which the engine refuses workers that attend to all keys; NULL: it does not. */
static void same_model(struct cairn_test *t, const char *model, enum cairn_kv_form kv, int32_t workers,
		       const char *no_all)
{
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_options opt = options;
	struct cairn_engine_stats stats;
	struct cairn_lead *lead;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model_as(t, "cpu", model, kv, &impl, &g, &m))
		goto out;
	make_prompts(t, want);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	if (!run_all(t, want, m, &opt, &stats) && open_lead(t, &lead, workers)) {
		opt.attention = lead;
		for (opt.attends_all = 0; opt.attends_all < (no_all ? 1 : 2); opt.attends_all++) {
			if (run_all(t, got, m, &opt, &stats))
				break;
			EXPECT(t, stats.sliced_steps == stats.steps && stats.recoveries == 0);
			EXPECT(t, stats.scheduler.hit_tokens > 0);
			if (opt.attends_all)
				compare_bits(t, want, got);
			else
				compare_tokens(t, want, got,
					       kv == CAIRN_KV_FP8 ? SLACK_FP8 : SLACK);
		}
		if (no_all)
			refused(t, m, &opt, no_all);
		cairn_note(t, "%s, %d workers: %lld steps, %lld tokens of prefixes", model, workers,
			   (long long)stats.steps, (long long)stats.scheduler.hit_tokens);
		cairn_lead_destroy(lead);
	}
	close_model(m, &g);
out:
	free(want);
}

static void same_answers(struct cairn_test *t)
{
#ifdef CAIRN_SANITIZED
	const int is_slow = 1;
#else
	const int is_slow = 0;
#endif

	same_model(t, "llama3_tiny", CAIRN_KV_PLAIN, 2, NULL);
	if (is_slow)
		return;
	same_model(t, "llama3_tiny", CAIRN_KV_FP8, 3, "attention_keys: all: needs at most as many");
	same_model(t, "mistral_tiny", CAIRN_KV_PLAIN, 2, NULL);	/* windows */
	same_model(t, "gemma2_tiny", CAIRN_KV_PLAIN, 1, NULL);	/* windows, softcap, 3 layers */
	same_model(t, "longrope_tiny", CAIRN_KV_PLAIN, 1, NULL);	/* a softmax scale of its own */
}

/*
 * Passes of several lanes are under way together: the same bits, also if workers are lost meanwhile, with and
 * without a journal, and with repeatable if workers attend to previous keys alone.
 */
static void lanes(struct cairn_test *t)
{
	static const struct {
		int32_t lanes, workers;
		int repeatable, loses, journal;
	} cases[] = {
		{ 2, 2, 0, 0, 0 }, { 3, 1, 0, 1, 0 }, { 2, 1, 1, 1, 0 }, { CAIRN_LANES_AUTO, 1, 0, 0, 0 },
		{ 1, 2, 0, 1, 1 }, { 3, 1, 0, 1, 1 }, { 2, 1, 1, 1, 1 },
	};
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, "cpu", "mistral_tiny", &impl, &g, &m))
		goto out;
	make_prompts(t, want);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct cairn_engine_options opt = options;

		opt.repeatable = cases[i].repeatable;
		opt.num_pages = opt.repeatable ? 60 : 30;
		opt.max_passes = 4;
		if (!open_lead(t, &opt.attention, cases[i].workers))
			break;
		opt.attends_all = !cases[i].repeatable;
		run_all(t, want, m, &opt, &stats);
		opt.lanes = cases[i].lanes;
		opt.kv_journal = cases[i].journal ? 1 << 28 : 0;
		memcpy(got->prompts, want->prompts, sizeof(got->prompts));
		got->victim = cases[i].loses ? opt.attention : NULL;
		run_all(t, got, m, &opt, &stats);
		EXPECT(t, stats.recoveries == 2 * cases[i].loses && stats.sliced_steps >= stats.steps);
		EXPECT(t, !cases[i].journal || (stats.restored_bytes > 0 && stats.journal_bytes > 0));
		EXPECT(t, stats.scheduler.hit_tokens > 0 || opt.repeatable);
		compare_bits(t, want, got);
		cairn_lead_destroy(opt.attention);
	}
	close_model(m, &g);
out:
	free(want);
}

/*
 * Several model workers: the bits of one process, also if a model worker or an attention worker is lost
 * meanwhile, and with windows, several answers, beams, log-probabilities and treated draws.
 */
static void model_workers(struct cairn_test *t)
{
	static const struct {
		int32_t models, lanes, workers;
		int loses, of_model;
	} cases[] = {
		{ 2, 2, 2, 1, 1 }, { 3, 3, 1, 1, 0 }, { 2, 3, 1, 0, 0 },
	};
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_options opt = options;
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, "cpu", "mistral_tiny", &impl, &g, &m))
		goto out;
	make_prompts(t, want);
	want->treated = 1;
	*got = *want;
	opt.num_pages = 30;
	opt.max_passes = 4;
	run_all(t, want, m, &opt, &stats);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *const model[] = { "--model", g.dir, NULL };
		struct cairn_lead_options o = {
			.attention = cases[i].workers, .model = cases[i].models - 1, .table = "cpu",
			.beat_ms = 20000, .join_ms = 60000, .model_options = model,
			.config = cairn_share_digest(&m->config),
		};

		if (!EXPECT(t, cairn_model_digest(m, &o.weights) == 0) ||
		    !create_lead(t, &opt.attention, &o))
			break;
		opt.attends_all = 1;
		opt.lanes = cases[i].lanes;
		got->victim = cases[i].loses ? opt.attention : NULL;
		got->of_model = cases[i].of_model;
		run_all(t, got, m, &opt, &stats);
		/* the second loss may come when its lane has nothing left to do */
		EXPECT(t, stats.recoveries >= cases[i].loses && stats.recoveries <= 2 * cases[i].loses);
		EXPECT(t, cases[i].loses || stats.sliced_steps == stats.steps);	/* else a launch may fail */
		EXPECT(t, stats.scheduler.hit_tokens > 0);
		compare_bits(t, want, got);
		cairn_lead_destroy(opt.attention);
	}
	close_model(m, &g);
out:
	free(want);
}

/* With repeatable, a loss changes no bit, although workers attend to previous keys alone. */
static void repeatable_model(struct cairn_test *t, const char *model, int32_t workers, const char *no_all)
{
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_options opt = options;
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, "cpu", model, &impl, &g, &m))
		goto out;
	make_prompts(t, want);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	opt.repeatable = 1;
	opt.num_pages = 60;
	if (open_lead(t, &opt.attention, workers)) {
		run_all(t, want, m, &opt, &stats);
		EXPECT(t, stats.recoveries == 0);
		got->victim = opt.attention;
		run_all(t, got, m, &opt, &stats);
		EXPECT(t, stats.recoveries == 2);
		compare_bits(t, want, got);
		opt.attends_all = 1;
		if (no_all)
			refused(t, m, &opt, no_all);
		cairn_lead_destroy(opt.attention);
	}
	close_model(m, &g);
out:
	free(want);
}

static void stripes_not_repeatable(struct cairn_test *t)
{
	struct cairn_engine_options opt = options;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	opt.repeatable = 1;
	if (open_model(t, "cpu", "deepseek_tiny", &impl, &g, &m))
		return;
	if (open_lead(t, &opt.attention, 2)) {
		refused(t, m, &opt, "engine: repeatable: 2 attention workers divide the pages of 1 heads");
		cairn_lead_destroy(opt.attention);
	}
	close_model(m, &g);
}

/* Tokens of latent attention cannot be compared as above: rounding decides which experts are chosen. */
static void repeatable(struct cairn_test *t)
{
	repeatable_model(t, "mistral_tiny", 2, NULL);
	repeatable_model(t, "deepseek_tiny", 1, "attention_keys: all: latent attention");
	stripes_not_repeatable(t);
}

struct queue_worker {
	pthread_t thread;
	struct cairn_attn_worker_options o;
};

static void *work(void *arg)
{
	struct queue_worker *w = arg;

	cairn_attn_worker_run(&w->o);
	return NULL;
}

/*
 * A host table that acts as a device's, over tcp: the engine and its workers, which are threads of this
 * process, take the order of streams. The same bits, with lanes and after losses.
 */
static void queued(struct cairn_test *t)
{
	static const struct { int32_t lanes, workers; int loses, journal; } cases[] = {
		{ 1, 1, 0, 0 }, { 2, 2, 0, 0 }, { 1, 1, 1, 0 }, { 3, 1, 1, 1 },
	};
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	const struct cairn_lead_options o = {
		.attention = 1, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 20000, .join_ms = 60000,
	};
	struct cairn_engine_options opt = options;
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_model(t, "cpu", "mistral_tiny", &impl, &g, &m))
		goto out;
	make_prompts(t, want);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	opt.num_pages = 30;
	opt.max_passes = 4;
	run_all(t, want, m, &opt, &stats);
	impl.flags &= ~CAIRN_IMPL_HOST_MEM;
	cairn_share_streams_over = "tcp";
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const int num = cases[i].workers + 2 * cases[i].loses;
		struct cairn_lead_options lead = o;
		struct queue_worker workers[4] = { 0 };
		char join[32];

		lead.attention = cases[i].workers;
		if (!create_lead(t, &opt.attention, &lead))
			break;
		snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(opt.attention));
		for (int k = 0; k < num; k++) {
			workers[k].o = (struct cairn_attn_worker_options){
				.impl = &impl, .member = { .join = join, .join_ms = 20000 },
			};
			EXPECT(t, !pthread_create(&workers[k].thread, NULL, work, &workers[k]));
		}
		opt.lanes = cases[i].lanes;
		opt.attends_all = 1;
		opt.kv_journal = cases[i].journal ? 1 << 28 : 0;
		got->loses = cases[i].loses ? opt.attention : NULL;
		run_all(t, got, m, &opt, &stats);
		EXPECT(t, stats.recoveries == 2 * cases[i].loses);
		EXPECT(t, !cases[i].journal || (stats.restored_bytes > 0 && stats.journal_bytes > 0));
		compare_bits(t, want, got);
		cairn_lead_destroy(opt.attention);
		for (int k = 0; k < num; k++)
			pthread_join(workers[k].thread, NULL);
	}
	cairn_share_streams_over = "nvlink";
	impl.flags |= CAIRN_IMPL_HOST_MEM;
	close_model(m, &g);
out:
	free(want);
}

/*
 * Workers on GPUs give the tokens of a run without workers, up to rounding: with one and two lanes, and if
 * workers are killed while the model's GPU waits for their results.
 */
static void cuda(struct cairn_test *t)
{
	static const struct {
		const char *model;
		int32_t workers, lanes;
		int all, loses, journal;
	} cases[] = {
		{ "llama3_tiny", 1, 1, 0, 0, 0 }, { "llama3_tiny", 2, 2, 0, 0, 0 },
		{ "llama3_tiny", 1, 1, 1, 0, 0 }, { "mistral_tiny", 2, 1, 0, 1, 0 },
		{ "mistral_tiny", 1, 2, 0, 1, 0 }, { "mistral_tiny", 2, 2, 0, 1, 1 },
	};
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_stats stats;

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);	/* as the command does */
	if (!cairn_transport_gpus())
		cairn_skip(t, "needs a CUDA device");
	for (size_t i = 0; i < ARRAY_SIZE(cases) && cairn_transport_gpus() && EXPECT(t, want != NULL); i++) {
		struct cairn_engine_options opt = options;
		struct cairn_model *m;
		struct cairn_impl impl;
		struct golden g;

		if (open_model(t, "cuda", cases[i].model, &impl, &g, &m))
			break;
		opt.page_size = 16;
		opt.num_pages = 60;
		opt.max_passes = 4;
		make_prompts(t, want);
		memcpy(got->prompts, want->prompts, sizeof(got->prompts));
		if (!run_all(t, want, m, &opt, &stats) &&
		    open_lead_as(t, &opt.attention, "cuda", cases[i].workers)) {
			opt.attends_all = cases[i].all;
			opt.lanes = cases[i].lanes;
			opt.kv_journal = cases[i].journal ? 1 << 28 : 0;
			got->victim = cases[i].loses ? opt.attention : NULL;
			run_all(t, got, m, &opt, &stats);
			EXPECT(t, stats.recoveries == 2 * cases[i].loses);
			EXPECT(t, stats.graph_steps > 0 || cases[i].loses);
			EXPECT(t, !cases[i].journal || (stats.restored_bytes > 0 && stats.journal_bytes > 0));
			compare_tokens(t, want, got, SLACK);
			cairn_lead_destroy(opt.attention);
		}
		close_model(m, &g);
	}
	free(want);
}

static const struct cairn_unit units[] = {
	{ "same_answers", same_answers }, { "repeatable", repeatable }, { "lanes", lanes },
	{ "queued", queued }, { "cuda", cuda },
	{ "model_workers", model_workers },
};

const struct cairn_family cairn_remote_engine_family = {
	.stage = "serving", .name = "remote_engine", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 48, .waits = 1,
};
