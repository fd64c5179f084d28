// SPDX-License-Identifier: Apache-2.0
/*
 * engine_sliced_test - an engine whose passes run in slices gives the answers of one whose passes are whole
 *
 * Tokens and log-probabilities are compared bitwise, with prompts in chunks, prefix hits, preemption, pages
 * on the host, and drafted rows.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_test.h"
#include "serving/model/forward/forward_impl.h"

#define JOBS	5
#define PROMPT	48
#define NEW	10

struct crowd {
	int32_t prompts[JOBS][PROMPT];
	struct answer answers[JOBS];
};

/* Runs all requests; those that arrive later find others decoding. */
static void run_all(struct cairn_test *t, struct crowd *c, struct cairn_model *m,
		    const struct cairn_engine_options *opt, struct cairn_engine_stats *stats)
{
	const struct golden none = { 0 };
	struct cairn_engine *e;
	int busy = 1, next = 0;

	memset(stats, 0, sizeof(*stats));
	if (!EXPECT(t, cairn_engine_create(&e, m, opt) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	for (int step = 0; busy || next < JOBS; step++) {
		for (; next < JOBS && 2 * next <= step + 3; next++) {
			struct cairn_request r = request(&none, PROMPT - 5 * next, NEW, &c->answers[next]);

			r.prompt = c->prompts[next];
			r.ignore_eos = 1;
			r.sampling.num_logprobs = 1;
			r.keep = opt->host_pages > 0;
			EXPECT(t, cairn_engine_submit(e, &r) == 0);
		}
		if (!EXPECT(t, cairn_engine_step(e, &busy) == 0)) {
			cairn_note(t, "%s", cairn_last_error());
			break;
		}
	}
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
}

static void compare(struct cairn_test *t, const struct crowd *want, const struct crowd *got)
{
	for (int i = 0; i < JOBS; i++) {
		const struct answer *a = &want->answers[i], *b = &got->answers[i];

		if (!EXPECT(t, a->num_ids == NEW && b->num_ids == NEW &&
			    !memcmp(a->ids, b->ids, NEW * sizeof(*a->ids)) &&
			    !memcmp(a->logprob, b->logprob, NEW * sizeof(*a->logprob))))
			cairn_note(t, "answer %d", i);
	}
}

/* Returns the number of drafted rows. */
static int64_t compare_engines(struct cairn_test *t, const char *table, const char *model, int32_t host_pages)
{
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_options opt = {
		.max_context = 128, .decode = CAIRN_DECODE_UNFUSED, .max_batch = 8, .page_size = 4,
		.max_rows = 24, .num_pages = 24, .expected_new = 1, .host_pages = host_pages,
		.recompute_ns = host_pages ? 1000000 : 0, .swap_ns = host_pages ? 1 : 0,
	};
	struct cairn_engine_stats stats;
	struct cairn_slices *slices = NULL;
	struct cairn_pass_sizes sizes;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	int64_t drafts = 0;
	int exact;

	if (!EXPECT(t, want != NULL) || open_model(t, table, model, &impl, &g, &m))
		goto out;
	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < PROMPT; k++)	/* some share a prefix */
			want->prompts[i][k] = k < i % 3 * 16 ? 3 + k : 3 + (int32_t)(cairn_rand(t) % 180);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	sizes = forward_sizes(m, 1, 1);
	if (EXPECT(t, cairn_slices_create(&slices, m->graph, &sizes) == 0)) {
		run_all(t, want, m, &opt, &stats);
		EXPECT(t, stats.sliced_steps == 0);
		opt.slices = slices;
		run_all(t, got, m, &opt, &stats);
		cairn_note(t, "%s, %s: %lld of %lld steps sliced, %lld from graphs; %lld recomputed, %lld "
			   "swapped", table, model, (long long)stats.sliced_steps, (long long)stats.steps,
			   (long long)stats.graph_steps, (long long)stats.scheduler.recomputed,
			   (long long)stats.scheduler.swapped);
		EXPECT(t, (stats.layer_offloads > 0) == (host_pages > 0));
		EXPECT(t, stats.sliced_steps == stats.steps && stats.steps > 5);
		compare(t, want, got);
		/* speculate.h says where drafts change no bit */
		exact = impl.flags & CAIRN_IMPL_HOST_MEM && !m->config.latent.kv_lora_rank;
		opt.speculation = (struct cairn_speculation){
			.method = exact ? CAIRN_SPECULATE_NGRAM : CAIRN_SPECULATE_OFF,
			.lookup_min = 1, .lookup_max = 2, .always = 1,
		};
		run_all(t, got, m, &opt, &stats);
		EXPECT(t, stats.sliced_steps == stats.steps);
		drafts = stats.speculation.draft_tokens;
		compare(t, want, got);
	}
	cairn_slices_destroy(slices);
	close_model(m, &g);
out:
	free(want);
	return drafts;
}

static void same_answers(struct cairn_test *t)
{
	EXPECT(t, compare_engines(t, "cpu", "llama3_tiny", 0) > 0);
	EXPECT(t, compare_engines(t, "cpu", "llama3_tiny", 200) > 0);
	compare_engines(t, "late", "gemma2_tiny", 0);
	compare_engines(t, "cpu", "deepseek_q_tiny", 0);
}

static void same_answers_cuda(struct cairn_test *t)
{
	compare_engines(t, "cuda", "llama3_tiny", 0);
	compare_engines(t, "cuda", "llama3_tiny", 200);
	compare_engines(t, "cuda", "gemma2_tiny", 0);
	compare_engines(t, "cuda", "deepseek_q_tiny", 0);
}

static const struct cairn_unit units[] = {
	{ "same_answers", same_answers },
	{ "same_answers_cuda", same_answers_cuda },
};

const struct cairn_family cairn_engine_sliced_family = {
	.stage = "serving", .name = "engine_sliced", .units = units, .num_units = ARRAY_SIZE(units),
};
