// SPDX-License-Identifier: Apache-2.0
/*
 * first_token_test - time to the first token with and without the prefix cache: a row of `cairn bench`
 *
 *   prefix_8k	llama3-8b with random weights: a prompt of 8128 tokens, and one that differs from it only in
 *		the last 64; the median of five of each
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/bench/load_test.h"

struct first {
	int64_t submitted, first_ns;
	int32_t cached;
};

static int take_first(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct first *f = ctx;

	(void)index;
	(void)token;
	if (!f->first_ns)
		f->first_ns = cairn_clock_ns() - f->submitted;
	return 0;
}

static void note_cached(void *ctx, int32_t cached)
{
	struct first *f = ctx;

	f->cached = cached;
}

enum { PREFIX = 8064, OWN = 64, TRIALS = 5 };

/* Returns the time in ms to the first token of prompt[PREFIX + OWN], or -1 on failure. */
static double time_first(struct cairn_test *t, struct cairn_engine *e, const int32_t *prompt, int want_cached)
{
	struct first f = { .cached = -1 };
	struct cairn_request r = {
		.prompt = prompt, .num_prompt = PREFIX + OWN, .max_new_tokens = 2, .ignore_eos = 1,
		.sampling = { .top_p = 1 }, .on_token = take_first, .on_started = note_cached, .ctx = &f,
	};

	f.submitted = cairn_clock_ns();
	if (!EXPECT(t, cairn_engine_submit(e, &r) == 0) || !EXPECT(t, cairn_engine_run(e) == 0))
		return -1;
	EXPECT(t, f.cached == want_cached);
	return (double)f.first_ns * 1e-6;
}

static void fill_prompt(struct cairn_test *t, int32_t *prompt, int first, int32_t vocab)
{
	for (int i = first; i < PREFIX + OWN; i++)
		prompt[i] = (int32_t)(cairn_rand(t) % (uint64_t)vocab);
}

static int by_ms(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void prefix_8k(struct cairn_test *t)
{
	struct cairn_engine_options opt = {
		.max_batch = 4, .max_context = PREFIX + OWN + 16, .max_rows = 2048,
		.num_pages = 16 * (PREFIX + OWN + 64) / 16,
	};
	static int32_t prompt[PREFIX + OWN];
	double miss[TRIALS], hit[TRIALS];
	struct cairn_engine *e;
	struct cairn_impl impl;
	struct cairn_model *m;

	if (load_open(t, "llama3-8b", &impl, &m))
		return;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		for (int i = -1; i < TRIALS; i++) {	/* trial -1 is a warm-up */
			double ms;

			fill_prompt(t, prompt, 0, m->config.vocab_size);
			ms = time_first(t, e, prompt, 0);
			if (i >= 0)
				miss[i] = ms;
			fill_prompt(t, prompt, PREFIX, m->config.vocab_size);
			ms = time_first(t, e, prompt, PREFIX);
			if (i >= 0)
				hit[i] = ms;
		}
		qsort(miss, TRIALS, sizeof(*miss), by_ms);
		qsort(hit, TRIALS, sizeof(*hit), by_ms);
		EXPECT(t, hit[TRIALS / 2] < miss[TRIALS / 2] / 10);
		cairn_row(t, "prefix_8k", "cuda",
			  "\"prompt_tokens\":%d,\"shared_tokens\":%d,\"miss_ms\":%.3f,\"hit_ms\":%.3f,"
			  "\"hit_pct\":%.2f", PREFIX + OWN, PREFIX, miss[TRIALS / 2], hit[TRIALS / 2],
			  100 * hit[TRIALS / 2] / miss[TRIALS / 2]);
		cairn_engine_destroy(e);
	}
	cairn_model_free(m);
}

static const struct cairn_unit measures[] = {
	{ "prefix_8k", prefix_8k },
};

const struct cairn_family cairn_first_token_family = {
	.stage = "serving",
	.name = "first_token",
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
