// SPDX-License-Identifier: Apache-2.0
/* engine_score_test - log-probabilities of prompt tokens, compared with the model's reference */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"
#include "serving/model/ref/model_ref.h"

enum { LEN = 40, VOCAB = 512, NUM = 6 };

struct scored {
	struct answer answers[2];	/* must be first: the callbacks get answers[0] */
	struct cairn_test *t;
	int num;			/* positions 1 .. num have been reported */
	float logprob[LEN];
	int32_t id[LEN], rank[LEN], num_top[LEN], top[LEN][CAIRN_MAX_LOGPROBS];
	float top_logprob[LEN][CAIRN_MAX_LOGPROBS];
};

static void take_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	struct scored *s = ctx;

	/* each position once, in order, and before the answer */
	if (!EXPECT(s->t, position == s->num + 1 && position < LEN && !s->answers[0].num_ids))
		return;
	s->num = position;
	s->id[position] = token->id;
	s->logprob[position] = token->logprob;
	s->rank[position] = token->rank;
	s->num_top[position] = token->num_top;
	for (int i = 0; i < token->num_top; i++) {
		s->top[position][i] = token->top[i];
		s->top_logprob[position][i] = token->top_logprob[i];
	}
}

/*
 * The rank of token `id` is 1 + the number of likelier ones, or 0 if these are CAIRN_LOGPROBS_MAX or more.
 * Tokens within slack of it may be on either side.
 */
static void judge_rank(struct cairn_test *t, const double *l, int vocab, int32_t id, double slack,
		       int32_t rank)
{
	int better = 0, near = 0;

	for (int j = 0; j < vocab; j++) {
		better += l[j] > l[id] + slack;
		near += j != id && fabs(l[j] - l[id]) <= slack;
	}
	if (!EXPECT(t, rank ? rank > better && rank <= better + near + 1 && rank <= CAIRN_LOGPROBS_MAX :
			      better + near >= CAIRN_LOGPROBS_MAX))
		cairn_note(t, "token %d: rank %d, %d are better and %d as good", id, rank, better, near);
}

/* exact, bound: logits of the prompt and their allowed errors */
static void judge(struct cairn_test *t, const struct scored *s, const struct cairn_request *r,
		  const double *exact, const double *bound, int vocab)
{
	int num = r->prompt_logprobs ? r->num_prompt - 1 : 0;

	/* logits off by up to b move a log-probability by up to 2 b: its own logit, and the log of the sum */
	EXPECT(t, s->num == num);
	for (int i = 1; i <= num; i++) {
		const double *l = exact + (size_t)(i - 1) * (size_t)vocab;
		double most = -INFINITY, sum = 0, slack = 0, own;

		for (int j = 0; j < vocab; j++)
			most = fmax(most, l[j]);
		for (int j = 0; j < vocab; j++) {
			sum += exp(l[j] - most);
			slack = fmax(slack, 2 * bound[(size_t)(i - 1) * (size_t)vocab + (size_t)j]);
		}
		EXPECT(t, s->id[i] == r->prompt[i]);
		own = l[r->prompt[i]] - most - log(sum);
		if (!EXPECT(t, fabs((double)s->logprob[i] - own) <= slack + logprob_error(own)))
			cairn_note(t, "token %d: %g, want %g", i, (double)s->logprob[i], own);
		judge_rank(t, l, vocab, r->prompt[i], slack, s->rank[i]);
		EXPECT(t, s->num_top[i] == r->prompt_logprobs - 1);
		for (int k = 0; k < s->num_top[i]; k++) {
			double want = l[s->top[i][k]] - most - log(sum);
			int better = 0;

			EXPECT(t, fabs((double)s->top_logprob[i][k] - want) <= slack + logprob_error(want));
			for (int j = 0; j < vocab; j++)
				better += l[j] - most - log(sum) > want + slack;
			EXPECT(t, better <= k);
		}
	}
}

/* Submits the requests at once, with cached prefixes of the same prompt, few pages, and the plan's limit
 * of logits. */
static void run(struct cairn_test *t, const char *table, const struct cairn_engine_options *opt, int counts)
{
	double *exact = calloc((size_t)LEN * VOCAB, sizeof(*exact));
	double *bound = calloc((size_t)LEN * VOCAB, sizeof(*bound));
	struct scored *s = calloc(NUM, sizeof(*s));
	struct cairn_request reqs[NUM];
	struct cairn_engine_stats stats;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		goto out;
	if (!EXPECT(t, m->config.vocab_size <= VOCAB && g.num_tokens >= LEN) ||
	    !EXPECT(t, cairn_model_ref_bound(g.dir, g.tokens, LEN, m->dtype, exact, bound) == 0) ||
	    !EXPECT(t, cairn_engine_create(&e, m, opt) == 0))
		goto out_model;
	for (int i = 0; i < NUM; i++) {
		static const int32_t lens[NUM] = { LEN, LEN, 33, 2, LEN, 1 }, ks[NUM] = { 0, 1, 4, 21, 3, 2 };

		reqs[i] = request(&g, lens[i], i == 2 ? 12 : 3, s[i].answers);
		s[i].t = t;
		reqs[i].num_seqs = i == 4 ? 2 : 1;
		reqs[i].ignore_eos = 1;
		reqs[i].prompt_logprobs = ks[i];
		reqs[i].on_prompt = take_prompt;
		reqs[i].sampling.num_logprobs = i % 2;
		/* scored rows beside draws with penalties must have the model's own logits */
		reqs[i].sampling.repetition_penalty = counts && i % 2 ? 1.3f : 0;
		EXPECT(t, cairn_engine_submit(e, &reqs[i]) == 0);
		if (!i)
			EXPECT(t, cairn_engine_run(e) == 0);	/* its prompt is cached */
	}
	EXPECT(t, cairn_engine_run(e) == 0 && cairn_engine_verify(e) == 0);
	for (int i = 0; i < NUM; i++) {
		EXPECT(t, s[i].answers[0].num_finished == 1 &&
				  s[i].answers[0].num_ids == reqs[i].max_new_tokens);
		judge(t, &s[i], &reqs[i], exact, bound, m->config.vocab_size);
	}
	cairn_engine_stats(e, &stats);
	EXPECT(t, stats.scheduler.device.num_seqs == 0);
	cairn_engine_destroy(e);
out_model:
	close_model(m, &g);
out:
	free(s);
	free(bound);
	free(exact);
}

static void roomy(struct cairn_test *t, const char *table)
{
	struct cairn_engine_options opt = {
		.max_batch = 8, .max_context = 96, .max_rows = 32, .page_size = 8,
	};

	run(t, table, &opt, 0);
	opt.cache_grain = 1;
	run(t, table, &opt, 1);
}

static void scarce(struct cairn_test *t, const char *table)
{
	struct cairn_engine_options opt = {
		.max_batch = 3, .max_context = 64, .max_rows = 16, .page_size = 4, .num_pages = 18,
	};

	run(t, table, &opt, 0);
	opt.host_pages = 40;
	opt.in_turn = 1;
	run(t, table, &opt, 1);
}

static void roomy_ref(struct cairn_test *t)
{
	roomy(t, "ref");
}

static void roomy_cpu(struct cairn_test *t)
{
	roomy(t, "cpu");
}

static void roomy_cuda(struct cairn_test *t)
{
	roomy(t, "cuda");
}

static void roomy_late(struct cairn_test *t)
{
	roomy(t, "late");
}

static void scarce_cpu(struct cairn_test *t)
{
	scarce(t, "cpu");
}

static void refused(struct cairn_test *t)
{
	struct cairn_engine_options opt = { .max_batch = 4, .max_context = 64, .page_size = 8 };
	struct cairn_request r;
	struct answer a;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		r = request(&g, 5, 3, &a);
		r.prompt_logprobs = 2 + CAIRN_MAX_LOGPROBS;
		EXPECT(t, cairn_engine_submit(e, &r) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "prompt_logprobs: ");
		r.prompt_logprobs = 1;
		r.beam_width = r.num_seqs = 2;
		EXPECT(t, cairn_engine_submit(e, &r) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "prompt_logprobs: ");
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "roomy_ref", roomy_ref },   { "roomy_cpu", roomy_cpu },   { "roomy_cuda", roomy_cuda },
	{ "roomy_late", roomy_late }, { "scarce_cpu", scarce_cpu }, { "refused", refused },
};

const struct cairn_family cairn_engine_score_family = {
	.stage = "serving", .name = "engine_score", .units = units, .num_units = ARRAY_SIZE(units),
};
