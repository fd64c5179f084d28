// SPDX-License-Identifier: Apache-2.0
/*
 * sharing_speed_test - measures the speed-up from sharing a prompt's pages among its answers while memory is
 * the limit: claim AT-12
 *
 *   llama3_8b_n4
 *	random weights, bf16: prompts of 1024 random tokens with four sampled answers of 128 each, as one
 *	request for four answers, and as four requests that share nothing (no prefix tree). The pool has
 *	room for 32 unshared sequences. The row has answer tokens per second, from the first step to the last.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/bench/load_test.h"
#include "serving/model/model_test.h"

struct crowd {
	int32_t prompts, in, out, answers;	/* answers: per prompt; in, out: tokens of each */
	int32_t rows, max_batch, page_size, num_pages;
	float temperature;
	enum cairn_decode_path decode;
};

struct outcome {
	double seconds, running;	/* running: mean number of decoding sequences per step */
	int64_t steps, prompt_tokens, new_tokens, preempted;
	int32_t num_finished, num_wrong;
	uint64_t sum;			/* checksum of all tokens and their positions */
};

struct talk {
	struct outcome *outcome;
	int32_t want, got[8];
};

static int take(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct talk *talk = ctx;

	talk->outcome->sum += (uint64_t)token->id * (uint64_t)++talk->got[index];
	return 0;
}

static void ended(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct talk *talk = ctx;

	(void)token;
	talk->outcome->num_finished++;
	talk->outcome->num_wrong += why != CAIRN_FINISH_LENGTH || talk->got[index] != talk->want;
}

/* Submits all requests; with n requests per prompt, request k has prompt k / n. */
static int submit(struct cairn_engine *e, const struct crowd *c, int32_t vocab, int together,
		  struct talk *talks)
{
	int32_t each = together ? 1 : c->answers, *prompt = malloc((size_t)c->in * sizeof(*prompt));
	int ret = prompt ? 0 : cairn_error(ENOMEM, "sharing: no memory");

	for (int32_t k = 0; !ret && k < c->prompts * each; k++) {
		struct cairn_request req = {
			.id = (uint64_t)k, .prompt = prompt, .num_prompt = c->in, .max_new_tokens = c->out,
			.num_seqs = c->answers / each, .ignore_eos = 1,
			.sampling = { .temperature = c->temperature, .top_p = 1, .seed = (uint64_t)k },
			.on_token = take, .on_finish = ended, .ctx = &talks[k],
		};

		for (int32_t i = 0; i < c->in; i++) {
			uint64_t at = (uint64_t)(k / each * c->in + i + 1);

			prompt[i] = (int32_t)((at * 0x9e3779b97f4a7c15u >> 33) % (uint64_t)vocab);
		}
		ret = cairn_engine_submit(e, &req);
	}
	free(prompt);
	return ret;
}

/* Computes all answers to all prompts. Returns 0, or -errno with the error text set. */
static int serve(struct cairn_model *m, const struct crowd *c, int together, struct outcome *out)
{
	struct cairn_engine_options opt = {
		.max_batch = c->max_batch, .max_rows = c->rows, .max_context = c->in + c->out,
		.page_size = c->page_size, .num_pages = c->num_pages, .cache_grain = -1,
		.expected_new = c->out, .max_queued = c->prompts * c->answers, .decode = c->decode,
	};
	struct talk *talks = calloc((size_t)(c->prompts * c->answers), sizeof(*talks));
	struct cairn_engine_stats st;
	struct cairn_engine *e = NULL;
	int64_t start;
	int ret = talks ? 0 : cairn_error(ENOMEM, "sharing: no memory");

	*out = (struct outcome){ 0 };
	for (int32_t i = 0; talks && i < c->prompts * c->answers; i++)
		talks[i] = (struct talk){ .outcome = out, .want = c->out };
	if (!ret)
		ret = cairn_engine_create(&e, m, &opt);
	if (!ret)
		ret = submit(e, c, m->config.vocab_size, together, talks);
	start = cairn_clock_ns();
	if (!ret)
		ret = cairn_engine_run(e);
	out->seconds = (double)(cairn_clock_ns() - start) * 1e-9;
	if (!ret) {
		cairn_engine_stats(e, &st);
		out->steps = st.steps;
		out->prompt_tokens = st.prompt_tokens;
		out->new_tokens = st.new_tokens;
		out->preempted = st.scheduler.swapped + st.scheduler.recomputed;
		out->running = (double)st.scheduler.decode_rows / (double)(st.scheduler.plans + 1);
	}
	cairn_engine_destroy(e);
	free(talks);
	return ret;
}

/* Serves the crowd both ways and checks that every answer is complete. */
static int both(struct cairn_test *t, struct cairn_model *m, const struct crowd *c, struct outcome *shared,
		struct outcome *apart)
{
	int32_t all = c->prompts * c->answers;
	int64_t tokens = (int64_t)all * c->out;

	return EXPECT(t, serve(m, c, 0, apart) == 0) && EXPECT(t, serve(m, c, 1, shared) == 0) &&
	       EXPECT(t, apart->num_finished == all && !apart->num_wrong) &&
	       EXPECT(t, shared->num_finished == all && !shared->num_wrong) &&
	       EXPECT(t, shared->new_tokens == tokens && apart->new_tokens == tokens);
}

static void llama3_8b_n4(struct cairn_test *t)
{
	struct crowd c = { .prompts = 4, .in = 1024, .out = 128, .answers = 4, .rows = 1024, .max_batch = 256,
			   .page_size = 16, .temperature = 1 };
	struct outcome shared, apart;
	struct cairn_model *m;
	struct cairn_impl impl;

	if (load_open(t, "llama3-8b", &impl, &m))
		return;
	c.num_pages = 32 * (c.in + c.out) / c.page_size;
	if (both(t, m, &c, &shared, &apart)) {		/* warm-up, which loads the kernels */
		c.prompts = 48;
		if (both(t, m, &c, &shared, &apart))
			cairn_row(t, "llama3_8b_n4", "cuda",
				  "\"shared_tokens_per_s\":%.0f,\"apart_tokens_per_s\":%.0f,"
				  "\"shared_running\":%.1f,\"apart_running\":%.1f,"
				  "\"shared_prompt_tokens\":%lld,\"apart_prompt_tokens\":%lld,"
				  "\"shared_steps\":%lld,\"apart_steps\":%lld,"
				  "\"preempted\":%lld,\"answers\":%d,\"num_pages\":%d",
				  (double)shared.new_tokens / shared.seconds,
				  (double)apart.new_tokens / apart.seconds, shared.running, apart.running,
				  (long long)shared.prompt_tokens, (long long)apart.prompt_tokens,
				  (long long)shared.steps, (long long)apart.steps,
				  (long long)(shared.preempted + apart.preempted), c.answers, c.num_pages);
	}
	cairn_model_free(m);
}

/*
 * Does the same with a small model on the host. A shared prompt is computed once, except for its last token,
 * which each answer computes to draw its first token. More sequences decode at once in the same pages, and
 * the tokens are equal.
 */
static void small(struct cairn_test *t)
{
	struct crowd c = { .prompts = 12, .in = 24, .out = 8, .answers = 4, .rows = 32, .max_batch = 24,
			   .page_size = 4, .num_pages = 40, .decode = CAIRN_DECODE_UNFUSED };
	struct outcome shared, apart;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama2_tiny"))
		return;
	if (EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0)) {
		if (both(t, m, &c, &shared, &apart)) {
			cairn_note(t, "shared: %.1f sequences decode at once, %lld steps, %lld prompt tokens",
				   shared.running, (long long)shared.steps, (long long)shared.prompt_tokens);
			cairn_note(t, "apart: %.1f sequences decode at once, %lld steps, %lld prompt tokens",
				   apart.running, (long long)apart.steps, (long long)apart.prompt_tokens);
			EXPECT(t, shared.sum == apart.sum && shared.sum);
			EXPECT(t, !shared.preempted && !apart.preempted);
			EXPECT(t, shared.prompt_tokens == c.prompts * (c.in + c.answers - 1));
			EXPECT(t, apart.prompt_tokens == c.prompts * c.in * c.answers);
			EXPECT(t, shared.running > 1.5 * apart.running && 3 * shared.steps < 2 * apart.steps);
		}
		cairn_model_free(m);
	}
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "small", small },
};

static const struct cairn_unit measures[] = {
	{ "llama3_8b_n4", llama3_8b_n4 },
};

const struct cairn_family cairn_sharing_speed_family = {
	.stage = "serving",
	.name = "sharing_speed",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
