// SPDX-License-Identifier: Apache-2.0
/*
 * engine_spec_test - the answers with speculation are those without, bit for bit
 *
 * Random engines run random requests twice: without speculation, then with a drafter that knows the answers
 * of the first run and is right as often as it is told to be, so that every number of accepted drafts occurs.
 * A longer run: cairn check --repeat N serving.engine_spec.random_cpu, some 1000 tokens each.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

enum { JOBS = 10, PROMPT = 60, NEW = 40, ANSWERS = 3 };

struct job {
	struct cairn_request r;
	int32_t prompt[PROMPT], stop_ids[3];
	struct cairn_logit_bias bias[2];
	int stop_at, cancel_at, end_at;		/* as in struct answer */
	struct answer want[ANSWERS], got[ANSWERS];
};

struct crowd {
	struct cairn_model *m, *drafter;	/* drafter: NULL: the drafts are made from the answers */
	struct cairn_engine_options opt;
	struct job jobs[JOBS];
	double right;			/* share of the drafts that are right */
	uint64_t seed;
	struct cairn_engine_stats stats;	/* of the last run; the following are sums */
	int64_t tokens, accepted, drafts, fused;
	int64_t swapped, recomputed;
	int num_jobs, silent;		/* silent: the drafter proposes nothing */
	int32_t depth;			/* maximum drafts; 0: random, and sometimes as many as pay */
	int may_fail;			/* the drafter may see another answer than that of the first run */
};

static uint64_t draw(uint64_t *seed)
{
	uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	return z ^ (z >> 29);
}

static int32_t below(struct crowd *c, int32_t n)
{
	return (int32_t)((draw(&c->seed) >> 16) % (uint64_t)n);
}

/* Proposes the tokens of the run without speculation, each one with the chance of an error. */
static int32_t propose(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
		       int32_t *drafts, int32_t room)
{
	struct crowd *c = ctx;
	struct job *j = &c->jobs[id];
	const struct answer *want = &j->want[index];
	int32_t at = num - j->r.num_prompt;

	if (c->silent)
		return 0;
	if (memcmp(tokens, j->prompt, (size_t)j->r.num_prompt * sizeof(*tokens)) ||
	    memcmp(tokens + j->r.num_prompt, want->ids, (size_t)at * sizeof(*tokens)))
		return c->may_fail ? 0 : room + 1;	/* not the answer so far: fails the step */
	if (!c->depth && !below(c, 8))
		room = below(c, room + 1);
	for (int32_t k = 0; k < room; k++) {
		int32_t token = at + k < want->num_ids ? want->ids[at + k] : want->end_token;

		drafts[k] = token >= 0 && below(c, 1000) < (int)(1000 * c->right) ? token :
			    below(c, c->m->config.vocab_size);
	}
	return room;
}

static int32_t never_right(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
			   int32_t *drafts, int32_t room)
{
	(void)ctx, (void)id, (void)index, (void)tokens, (void)num;
	for (int32_t k = 0; k < room; k++)	/* forbidden by the request's biases */
		drafts[k] = 5;
	return room;
}

static void make_job(struct crowd *c, int i)
{
	struct job *j = &c->jobs[i];
	struct cairn_sampling *s = &j->r.sampling;
	int32_t vocab = c->m->config.vocab_size, base = below(c, 3);

	memset(j, 0, sizeof(*j));
	for (int k = 0; k < PROMPT; k++)	/* many prompts share a prefix */
		j->prompt[k] = k < 40 ? (base * 31 + k * k) % vocab : below(c, vocab);
	j->r = (struct cairn_request){
		.id = (uint64_t)i, .prompt = j->prompt, .num_prompt = 1 + below(c, PROMPT),
		.max_new_tokens = 1 + below(c, NEW), .num_seqs = below(c, 4) ? 1 : 1 + below(c, ANSWERS),
		.sampling = { .top_p = 1, .seed = draw(&c->seed) }, .ignore_eos = below(c, 2),
		.on_token = take, .on_finish = done, .on_started = started,
		.keep = c->opt.host_pages && below(c, 2),
	};
	if (below(c, 3)) {
		s->temperature = 0.3f + 0.1f * (float)below(c, 10);
		s->top_k = below(c, 2) * below(c, 50);
		s->top_p = below(c, 2) ? 1 : 0.9f;
		s->min_p = below(c, 3) ? 0 : 0.02f;
	}
	s->num_logprobs = below(c, 2) * (1 + below(c, 5));
	s->repetition_penalty = below(c, 6) ? 0 : 1.3f;
	s->presence_penalty = below(c, 8) ? 0 : 0.7f;
	s->frequency_penalty = below(c, 6) ? 0 : 0.4f;
	j->bias[0] = (struct cairn_logit_bias){ below(c, vocab / 2), 2 };
	j->bias[1] = (struct cairn_logit_bias){ vocab / 2 + below(c, vocab / 2), -3 };
	s->bias = j->bias;
	s->num_bias = below(c, 4) ? 0 : 2;
	s->min_new_tokens = below(c, 3) ? 0 : below(c, j->r.max_new_tokens);
	for (int k = 0; k < 3; k++)
		j->stop_ids[k] = below(c, vocab);
	j->r.stop_ids = j->stop_ids;
	j->r.num_stop_ids = below(c, 4);
	j->stop_at = below(c, 3) ? 0 : 1 + below(c, NEW);
	if (j->r.num_seqs == 1 && !below(c, 4))
		*(below(c, 2) ? &j->cancel_at : &j->end_at) = 1 + below(c, NEW);
	if (j->r.num_seqs > 1 || below(c, 8) || s->num_logprobs > 1 || s->repetition_penalty != 0 ||
	    s->presence_penalty != 0 || s->frequency_penalty != 0)
		return;
	j->r.beam_width = 2;
	j->stop_at = j->cancel_at = j->end_at = 0;
}

/* Runs all jobs; some arrive while others decode. */
static void run_all(struct cairn_test *t, struct crowd *c, int again)
{
	struct cairn_engine_options opt = c->opt;
	struct cairn_engine *e;
	int busy = 1, next = 0;

	if (again)
		opt.speculation = (struct cairn_speculation){
			.method = CAIRN_SPECULATE_CALLER,
			.num_tokens = c->depth ? c->depth : 1 + below(c, 7),
			.always = c->depth || below(c, 8) > 0, .draft = propose, .ctx = c,
		};
	if (again && c->drafter) {
		opt.speculation.method = CAIRN_SPECULATE_DRAFT_MODEL;
		opt.speculation.model = c->drafter;
	}
	if (!EXPECT(t, cairn_engine_create(&e, c->m, &opt) == 0))
		return;
	for (int step = 0; busy || next < c->num_jobs; step++) {
		for (; next < c->num_jobs && (next < 4 || 3 * (next - 4) <= step); next++) {
			struct job *j = &c->jobs[next];
			struct answer *a = again ? j->got : j->want;

			for (int k = 0; k < ANSWERS; k++) {
				memset(&a[k], 0, sizeof(a[k]));
				a[k].cached = -1;
				a[k].engine = e;
				a[k].id = j->r.id;
				a[k].stop_at = j->stop_at;
				a[k].cancel_at = j->cancel_at;
				a[k].end_at = j->end_at;
			}
			j->r.ctx = a;
			EXPECT(t, cairn_engine_submit(e, &j->r) == 0);
		}
		if (!EXPECT(t, cairn_engine_step(e, &busy) == 0))
			break;
		if (step % 4 == 0)
			EXPECT(t, cairn_engine_verify(e) == 0);
	}
	cairn_engine_stats(e, &c->stats);
	EXPECT(t, c->stats.scheduler.num_running == 0 && c->stats.scheduler.device.num_seqs == 0);
	EXPECT(t, again || !c->stats.speculation.drafts);
	c->drafts += c->stats.speculation.draft_tokens;
	c->accepted += c->stats.speculation.accepted_tokens;
	c->fused += c->stats.fused_steps;
	c->swapped += again ? c->stats.scheduler.swapped : 0;
	c->recomputed += again ? c->stats.scheduler.recomputed : 0;
	cairn_engine_destroy(e);
}

static int same(const struct answer *a, const struct answer *b)
{
	size_t n = (size_t)a->num_ids;

	if (a->num_ids != b->num_ids || a->why != b->why || a->end_token != b->end_token ||
	    a->num_finished != b->num_finished || memcmp(a->ids, b->ids, n * sizeof(*a->ids)) ||
	    memcmp(a->logprob, b->logprob, n * sizeof(*a->logprob)))
		return 0;
	for (size_t i = 0; i < n; i++) {
		size_t top = (size_t)a->num_top[i];

		if (a->num_top[i] != b->num_top[i] ||
		    memcmp(a->top[i], b->top[i], top * sizeof(a->top[i][0])) ||
		    memcmp(a->top_logprob[i], b->top_logprob[i], top * sizeof(a->top_logprob[i][0])))
			return 0;
	}
	return 1;
}

static void compare(struct cairn_test *t, struct crowd *c)
{
	for (int i = 0; i < c->num_jobs; i++) {
		const struct job *j = &c->jobs[i];

		for (int k = 0; k < j->r.num_seqs; k++) {
			c->tokens += j->want[k].num_ids;
			EXPECT(t, j->want[k].num_finished == 1);
			if (!EXPECT(t, same(&j->want[k], &j->got[k])))
				cairn_note(t, "job %d, answer %d: %d tokens, not %d; end %d, not %d", i, k,
					   j->got[k].num_ids, j->want[k].num_ids, j->got[k].why,
					   j->want[k].why);
		}
	}
}

static const struct cairn_nano_plan nano = {
	.num_batches = 3, .num_lanes = 2, .rows = { 1, 1, 1 }, .decodes = { 1, 2, 1 },
};
static const struct cairn_nano_plans plans = { .plans = &nano, .num = 1 };

static void make_engine(struct crowd *c)
{
	static const int32_t grains[] = { 0, 1, -1 };
	/* Latent attention expands the keys of chunks of 16 rows and more, and the chunks' size depends on
	 * when passes are reported. */
	int32_t most = c->m->config.latent.kv_lora_rank ? 15 : 48;
	int32_t page = 1 + below(c, 5), swaps = below(c, 2);

	c->opt = (struct cairn_engine_options){
		.max_batch = 3 + below(c, 4), .max_rows = 8 + below(c, most - 7), .page_size = page,
		.max_context = PROMPT + NEW, .num_pages = (PROMPT + NEW) * (4 + below(c, 6)) / 4 / page + 1,
		.in_turn = !below(c, 4), .cache_grain = grains[below(c, 3)], .expected_new = 1,
		.host_pages = below(c, 2) * 120, .recompute_ns = swaps ? 100000 : 1,
		.swap_ns = swaps ? 1 : 100000, .decode = CAIRN_DECODE_UNFUSED, .no_graphs = below(c, 2),
		.repeatable = !below(c, 4), .nano = below(c, 3) ? NULL : &plans,
	};
	if (c->opt.repeatable && c->opt.cache_grain == 1)
		c->opt.cache_grain = 0;
	c->right = (double)below(c, 6) / 5;
}

static void one_model(struct cairn_test *t, const char *table, const char *model, enum cairn_kv_form kv,
		      int rounds)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, c) || open_model_as(t, table, model, kv, &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->seed = cairn_rand(t);
	c->num_jobs = JOBS;
	for (int k = 0; k < rounds; k++) {
		make_engine(c);
		for (int i = 0; i < JOBS; i++)
			make_job(c, i);
		run_all(t, c, 0);
		run_all(t, c, 1);
		compare(t, c);
	}
	EXPECT(t, c->drafts > 0 && c->fused == 0);
	cairn_note(t, "%s, %s: %lld tokens; %lld of %lld drafts right; %lld swapped, %lld recomputed", table,
		   model, (long long)c->tokens, (long long)c->accepted, (long long)c->drafts,
		   (long long)c->swapped, (long long)c->recomputed);
	close_model(c->m, &g);
	free(c);
}

static void random_cpu(struct cairn_test *t)
{
	one_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 4);
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
		make_engine(c);
		c->opt.repeatable = 1;
		c->opt.cache_grain = c->opt.cache_grain == 1 ? 0 : c->opt.cache_grain;
		c->opt.nano = NULL;
		for (int i = 0; i < JOBS; i++)
			make_job(c, i);
		c->depth = 1 + below(c, 7);
		c->silent = 1;
		run_all(t, c, 1);
		EXPECT(t, !c->stats.speculation.draft_tokens);
		for (int i = 0; i < JOBS; i++)
			memcpy(c->jobs[i].want, c->jobs[i].got, sizeof(c->jobs[i].got));
		c->silent = 0;
		c->right = 0.2 + 0.2 * below(c, 5);
		run_all(t, c, 1);
		compare(t, c);
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

/*
 * Greedy answers with drafts, judged by the logits of the naive computation: for tables on which the bits
 * depend on the rows of a pass. Half of the drafts repeat what was said, the others are random tokens.
 */
static int32_t repeat(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
		      int32_t *drafts, int32_t room)
{
	static const struct cairn_speculation ngram = { .lookup_min = 1, .lookup_max = 3 };
	struct crowd *c = ctx;

	(void)id, (void)index;
	if (below(c, 2) && cairn_ngram_draft(&ngram, tokens, num, drafts, room))
		return room;
	for (int32_t k = 0; k < room; k++)
		drafts[k] = below(c, c->m->config.vocab_size);
	return room;
}

static void judged(struct cairn_test *t, const char *table, enum cairn_kv_form kv, double slack)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_engine_options opt = {
		.max_batch = 5, .max_rows = 64, .max_context = PROMPT + NEW, .page_size = 8,
		.speculation = { CAIRN_SPECULATE_CALLER, .num_tokens = 9, .always = 1, .draft = repeat,
				 .ctx = c },
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
	if (!naive_open_as(t, &n, g.dir, kv) && EXPECT(t, cairn_engine_create(&e, c->m, &opt) == 0)) {
		for (int i = 0; i < JOBS; i++) {
			make_job(c, i);
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
	judged(t, "cuda", CAIRN_KV_PLAIN, 0.3);
}

static void judged_cpu(struct cairn_test *t)
{
	judged(t, "cpu", CAIRN_KV_PLAIN, 0.3);
}

static void random_late(struct cairn_test *t)
{
	one_model(t, "late", "llama3_tiny", CAIRN_KV_PLAIN, 2);
}

static void random_kv_fp8(struct cairn_test *t)
{
	one_model(t, "cpu", "llama3_tiny", CAIRN_KV_FP8, 2);
}

static void random_latent(struct cairn_test *t)
{
	one_model(t, "cpu", "deepseek_tiny", CAIRN_KV_PLAIN, 1);
}

static void random_window(struct cairn_test *t)
{
	one_model(t, "cpu", "gemma2_tiny", CAIRN_KV_PLAIN, 1);
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
		c->seed = cairn_rand(t);
		c->num_jobs = JOBS;
		for (int k = 0; k < 2; k++) {
			make_engine(c);
			for (int i = 0; i < JOBS; i++)
				make_job(c, i);
			run_all(t, c, 0);
			run_all(t, c, 1);
			compare(t, c);
		}
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
		make_engine(c);
		for (int i = 0; i < JOBS; i++) {
			make_job(c, i);
			c->jobs[i].r.sampling = (struct cairn_sampling){ .top_p = 1 };
			c->jobs[i].r.beam_width = 0;
		}
		c->depth = 1 + below(c, 7);
		run_all(t, c, 0);
		run_all(t, c, 1);
		compare(t, c);
	}
	EXPECT(t, c->drafts > 100 && c->accepted == c->drafts);
	cairn_note(t, "%lld of %lld drafts right", (long long)c->accepted, (long long)c->drafts);
	close_model(c->m, &g);
	free(c);
}

/* ---- operations that treat drafted rows wrongly ---- */

static const struct cairn_impl *right_impl;

/* Gives a row the offset of the row before it if both have one seed, or one more than is right. */
static int sample_at(const struct cairn_sample_args *args, void *stream, int twice)
{
	struct cairn_sample_args other = *args;
	uint64_t offsets[256];

	memcpy(offsets, args->offset, (size_t)args->rows * sizeof(*offsets));
	for (int32_t i = 1; i < args->rows; i++) {
		if (args->seed[i] == args->seed[i - 1])
			offsets[i] = twice ? args->offset[i - 1] : args->offset[i] + 1;
	}
	other.offset = offsets;
	return right_impl->sample(&other, stream);
}

static int one_draw_at_two_depths(const struct cairn_sample_args *args, void *stream)
{
	return sample_at(args, stream, 1);
}

static int next_draw_drawn(const struct cairn_sample_args *args, void *stream)
{
	return sample_at(args, stream, 0);
}

/* Two consecutive positions in one pass become equal. */
static int at_one_position(const struct cairn_rope_args *args, void *stream)
{
	struct cairn_rope_args other = *args;
	int32_t positions[256];

	memcpy(positions, args->positions, (size_t)args->nnz * sizeof(*positions));
	for (int32_t i = 1; i < args->nnz; i++)
		positions[i] -= args->positions[i] == args->positions[i - 1] + 1;
	other.positions = positions;
	return right_impl->rope(&other, stream);
}

/* Appends only the first of the few rows of a pass with drafts, at the place of the last. */
static int one_row_appended(const struct cairn_kv_append_args *args, void *stream)
{
	static const int32_t one[] = { 0, 1 };
	struct cairn_kv_append_args other = *args;

	if (args->kv.batch == 1 && args->nnz_qo <= 8)
		other.qo_indptr = one;
	return right_impl->kv_append(&other, stream);
}

static int log_of_the_row_before(const struct cairn_logprobs_args *args, void *stream)
{
	int ret = right_impl->logprobs(args, stream);

	for (int32_t i = args->rows - 1; i > 0; i--)
		args->chosen[i] = args->chosen[i - 1];
	return ret;
}

static int forbidden_in_one_row(const struct cairn_penalize_args *args, void *stream)
{
	struct cairn_penalize_args other = *args;
	int32_t num[256];

	for (int32_t i = 0; i < args->rows; i++)
		num[i] = args->num_forbidden && !i ? args->num_forbidden[0] : 0;
	if (args->num_forbidden)
		other.num_forbidden = num;
	return right_impl->penalize(&other, stream);
}

static int forks_are_empty(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args other = *args;
	int32_t from[256];

	for (int32_t i = 0; i < args->num_copies; i++)
		from[i] = -1;
	other.copy_from = from;
	return right_impl->token_counts(&other, stream);
}

static int drafts_not_counted(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args other = *args;

	if (args->num_copies && args->copy_from[0] >= 0)
		other.num_tokens = other.num_segments = 0;
	return right_impl->token_counts(&other, stream);
}

#define MUTANT(op, fn)	{ #fn, offsetof(struct cairn_impl, op), (void *)fn }

static const struct {
	const char *name;
	size_t op;
	void *fn;
} mutants[] = {
	MUTANT(sample, one_draw_at_two_depths), MUTANT(sample, next_draw_drawn),
	MUTANT(rope, at_one_position), MUTANT(kv_append, one_row_appended),
	MUTANT(logprobs, log_of_the_row_before), MUTANT(penalize, forbidden_in_one_row),
	MUTANT(token_counts, forks_are_empty), MUTANT(token_counts, drafts_not_counted),
};

/* One request that samples, whose drafts are all right: then only its drafted rows can go wrong. */
static void make_single(struct crowd *c, int max_new)
{
	struct job *j = &c->jobs[0];

	for (int i = 0; i < JOBS; i++)
		make_job(c, i);
	j->stop_at = j->cancel_at = j->end_at = 0;
	j->r.num_prompt = 30;
	j->r.max_new_tokens = max_new;
	j->r.num_seqs = 1;
	j->r.beam_width = 0;
	j->r.ignore_eos = 1;
	j->r.sampling = (struct cairn_sampling){
		.temperature = 1, .top_p = 1, .seed = 7, .num_logprobs = 2, .min_new_tokens = max_new / 2,
		.bias = j->bias, .num_bias = 2, .repetition_penalty = 1.5f, .frequency_penalty = 1,
	};
	for (int k = 0; k < 2; k++)	/* likely as soon as it is allowed */
		j->bias[k] = (struct cairn_logit_bias){ j->stop_ids[k] = 10 + k, 6 };
	c->num_jobs = 1;
	c->depth = 4;
}

static void noticed(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl, whole;
	struct golden g;

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	whole = impl;
	right_impl = &whole;
	c->seed = cairn_rand(t);
	c->opt = (struct cairn_engine_options){
		.max_batch = 1, .max_rows = 64, .max_context = PROMPT + NEW, .decode = CAIRN_DECODE_UNFUSED,
	};
	make_single(c, 24);
	c->jobs[0].r.num_stop_ids = 2;
	c->right = 1;
	run_all(t, c, 0);
	run_all(t, c, 1);
	compare(t, c);
	EXPECT(t, c->jobs[0].want[0].num_ids >= 12 && c->accepted >= 8);
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		impl = whole;
		memcpy((char *)&impl + mutants[i].op, &mutants[i].fn, sizeof(mutants[i].fn));
		c->may_fail = 1;
		run_all(t, c, 1);
		if (!EXPECT(t, !same(&c->jobs[0].want[0], &c->jobs[0].got[0])))
			cairn_note(t, "%s", mutants[i].name);
	}
	impl = whole;
	close_model(c->m, &g);
	free(c);
}

/* ---- how much is accepted ---- */

/* Opens a crowd of one request with n tokens, none of which ends it. */
static struct crowd *open_single(struct cairn_test *t, struct cairn_impl *impl, struct golden *g, int n)
{
	struct crowd *c = calloc(1, sizeof(*c));

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", impl, g, &c->m)) {
		free(c);
		return NULL;
	}
	c->seed = cairn_rand(t);
	c->opt = (struct cairn_engine_options){
		.max_batch = 1, .max_rows = 64, .max_context = PROMPT + NEW, .decode = CAIRN_DECODE_UNFUSED,
	};
	make_single(c, n);
	c->jobs[0].r.num_stop_ids = 0;
	c->jobs[0].r.sampling.num_bias = 0;
	run_all(t, c, 0);
	EXPECT(t, c->jobs[0].want[0].num_ids == n);
	return c;
}

/* 33 tokens with four drafts a step: the prompt gives one, each step then 5 if all are right, 1 if none. */
static void counts(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct golden g;
	struct crowd *c = open_single(t, &impl, &g, 33);
	const struct cairn_speculation_stats *s = c ? &c->stats.speculation : NULL;

	if (!c)
		return;
	c->right = 1;
	run_all(t, c, 1);
	compare(t, c);
	/* 1 + 6 * 5 = 31, and a last step with one draft, as only two tokens are left */
	EXPECT(t, c->stats.steps == 8 && s->drafts == 7 && s->draft_tokens == 25 && s->accepted_tokens == 25);
	EXPECT(t, s->accepted_per_position[0] == 7 && s->accepted_per_position[3] == 6);
	EXPECT(t, c->stats.new_tokens == 33 && c->stats.scheduler.accepted_tokens == 25);
	c->right = 0;
	run_all(t, c, 1);
	compare(t, c);
	/* random drafts among 192 tokens are right now and then */
	EXPECT(t, s->accepted_tokens < 10 && c->stats.steps >= 23 && s->drafts >= 20);
	close_model(c->m, &g);
	free(c);
}

/* Drafts that are never right are given up, and tried anew after a pause. */
static void given_up(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct golden g;
	struct crowd *c = open_single(t, &impl, &g, NEW);
	struct cairn_engine_options opt;
	struct cairn_engine_stats stats;
	struct cairn_engine *e;

	if (!c)
		return;
	opt = c->opt;
	opt.max_context = 512;
	opt.speculation = (struct cairn_speculation){
		.method = CAIRN_SPECULATE_CALLER, .num_tokens = 4, .draft = never_right,
	};
	c->jobs[0].r.max_new_tokens = 480;
	c->jobs[0].r.sampling.temperature = 0;
	c->jobs[0].r.sampling.num_bias = 1;
	c->jobs[0].bias[0] = (struct cairn_logit_bias){ 5, -1000 };
	c->jobs[0].r.ctx = c->jobs[0].got;
	if (EXPECT(t, cairn_engine_create(&e, c->m, &opt) == 0)) {
		EXPECT(t, cairn_engine_submit(e, &c->jobs[0].r) == 0 && cairn_engine_run(e) == 0);
		cairn_engine_stats(e, &stats);
		cairn_note(t, "%lld steps with drafts, %lld pauses", (long long)stats.speculation.drafts,
			   (long long)stats.speculation.pauses);
		EXPECT(t, stats.new_tokens == 480 && stats.speculation.accepted_tokens == 0);
		/* after 64, 128 and 256 tokens */
		EXPECT(t, stats.speculation.pauses >= 3 && stats.speculation.drafts < 150);
		cairn_engine_destroy(e);
	}
	close_model(c->m, &g);
	free(c);
}

static const struct cairn_unit units[] = {
	{ "repeatable_cpu", repeatable_cpu }, { "repeatable_cuda", repeatable_cuda },
	{ "judged_cpu", judged_cpu }, { "judged_cuda", judged_cuda },
	{ "random_model", random_model }, { "own_drafts", own_drafts },
	{ "noticed", noticed }, { "counts", counts }, { "given_up", given_up },
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
	.cost_s = 6,
};
