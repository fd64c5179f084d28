// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_engine_test - an engine with ranks gives the answers of an engine without
 *
 * All that an engine can ask of a device is asked: pages that are copied, swapped, offloaded and fetched from
 * the disk; penalties, biases, forbidden tokens and log-probabilities; several answers, beams, drafts.
 * Prompts are questions that the embedded model answers with certainty, so that the last bits of logits,
 * which are rounded elsewhere with ranks, do not decide.
 */
#include "conformance/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/suite/threads.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "serving/cli/session_ranks.h"

#define NUM	24	/* questions, at most */
#define MAX_NEW	24
#define TOP	2
/*
 * Logits are at most some 30 here. They are products of a bf16 vector, whose numbers may be rounded to the
 * other side: a step of 2^-8 of each would change a logit by 0.12 at most.
 */
#define CLOSE	0.12f

struct answer {
	int32_t ids[MAX_NEW];
	int num_ids, num_finished;
	float logprob[MAX_NEW], prompt_logprob;	/* prompt_logprob: the sum */
};

struct asked {
	struct cairn_request req;
	struct answer answers[2];
	int32_t *ids;
};

struct setting {
	struct cairn_engine_options eo;
	/* changes request i */
	void (*ask)(struct cairn_request *r, int i);
	int num;			/* questions */
	int moves;			/* moves of each kind must have occurred */
};

static int take(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct answer *a = &((struct asked *)ctx)->answers[index];

	if (a->num_ids < MAX_NEW) {
		a->ids[a->num_ids] = token->id;
		a->logprob[a->num_ids++] = token->logprob;
	}
	return 0;
}

static void take_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	(void)position;
	((struct asked *)ctx)->answers[0].prompt_logprob += token->logprob;
}

static void finished(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	(void)why;
	(void)token;
	((struct asked *)ctx)->answers[index].num_finished++;
}

/* Question i: a few lines to look something up in, which several questions share, and an end of its own. */
static void write_question(char *text, size_t len, int i)
{
	static const char *const colours[] = { "red", "blue", "teal", "pink", "gold", "grey" };
	int at = 0, table = i / 6;

	for (int k = 0; k < 6; k++)
		at += snprintf(text + at, len - (size_t)at, "%s owl: %d\n", colours[k],
			       100 + 37 * k + 11 * table);
	snprintf(text + at, len - (size_t)at, "What stands beside %s owl?\n", colours[i % 6]);
}

static void greedy(struct cairn_request *r, int i)
{
	r->keep = i % 2;
}

static void treated(struct cairn_request *r, int i)
{
	static const struct cairn_logit_bias bias[] = { { 5, -4 }, { 77, 1.5f } };
	struct cairn_sampling *s = &r->sampling;

	s->num_logprobs = 1 + TOP * (i % 2);
	s->repetition_penalty = i % 3 ? 1.02f : 0;
	s->presence_penalty = i % 4 ? 0 : 0.05f;
	s->min_new_tokens = i % 5 ? 0 : 2;
	s->bias = bias;
	s->num_bias = i % 2 ? 2 : 0;
	r->prompt_logprobs = i % 6 ? 0 : 1;
	r->num_seqs = r->prompt_logprobs ? 1 : 2;
	if (i % 7 == 1) {
		*s = (struct cairn_sampling){ .top_p = 1 };
		r->beam_width = 3;
		r->length_penalty = 1;
	}
}

static int ask_all(struct cairn_test *t, struct cairn_engine *e, const struct setting *s, struct asked *all,
		   const struct cairn_tokenizer *tokenizer)
{
	char text[1024];
	size_t n;

	for (int i = 0; i < s->num; i++) {
		struct asked *a = &all[i];

		write_question(text, sizeof(text), i);
		if (!EXPECT(t, cairn_tokenizer_encode(tokenizer, text, strlen(text), CAIRN_ENCODE_ADD_SPECIAL,
						      &a->ids, &n) == 0))
			return -1;
		a->req = (struct cairn_request){
			.id = (uint64_t)i, .prompt = a->ids, .num_prompt = (int32_t)n, .max_new_tokens = 12,
			.num_seqs = 1, .sampling = { .top_p = 1, .seed = (uint64_t)i }, .on_token = take,
			.on_finish = finished, .on_prompt = take_prompt, .ctx = a,
		};
		s->ask(&a->req, i);
	}
	/* twice, so that the second time finds pages that were evicted */
	for (int i = 0; i < 2 * s->num; i++) {
		if (i == s->num)
			CAIRN_TRY(cairn_engine_run(e));
		all[i % s->num].req.id = (uint64_t)i;
		CAIRN_TRY(cairn_engine_submit(e, &all[i % s->num].req));
	}
	return cairn_engine_run(e);
}

static int answer_all(struct cairn_test *t, struct cairn_session *s, struct cairn_tp *tp,
		      const struct setting *setting, struct asked *all, struct cairn_engine_stats *stats)
{
	struct cairn_engine_options eo = setting->eo;
	struct cairn_engine *e = NULL;
	int ret;

	eo.tap = tp ? cairn_tp_tap(tp) : NULL;
	if (eo.speculation.method == CAIRN_SPECULATE_DRAFT_MODEL)
		eo.speculation.model = s->drafter;
	ret = cairn_engine_create(&e, s->model, &eo);
	if (!ret)
		ret = ask_all(t, e, setting, all, s->tokenizer);
	if (!ret)
		cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
	return ret;
}

static void compare(struct cairn_test *t, int num, struct asked *whole, struct asked *shared)
{
	for (int i = 0; i < num; i++)
		for (int k = 0; k < whole[i].req.num_seqs; k++) {
			const struct answer *a = &whole[i].answers[k], *b = &shared[i].answers[k];

			if (!EXPECT(t, a->num_finished == 2 && b->num_finished == 2 && a->num_ids > 1) ||
			    !EXPECT(t, a->num_ids == b->num_ids &&
				       !memcmp(a->ids, b->ids, (size_t)a->num_ids * sizeof(*a->ids))))
				cairn_note(t, "question %d, answer %d: %d and %d tokens", i, k, a->num_ids,
					   b->num_ids);
			for (int n = 0; n < a->num_ids; n++)
				if (!EXPECT(t, fabsf(a->logprob[n] - b->logprob[n]) <= CLOSE))
					cairn_note(t, "question %d: %g and %g", i, (double)a->logprob[n],
						   (double)b->logprob[n]);
			EXPECT(t, fabsf(a->prompt_logprob - b->prompt_logprob) <=
				  0.01f * fabsf(a->prompt_logprob));
		}
}

static void check_counts(struct cairn_test *t, const struct setting *s,
			 const struct cairn_engine_stats *stats)
{
	if (s->eo.speculation.method) {
		EXPECT(t, stats->speculation.accepted_tokens > 0);
		return;
	}
	for (int k = 0; k < CAIRN_NUM_MOVES && s->moves; k++)
		if (!EXPECT(t, stats->scheduler.moves[k] > 0))
			cairn_note(t, "no moves of kind %d", k);
}

/* What the ranks other than 0 do: all settings, one engine after the other. */
static void be_other_rank(const struct cairn_common_options *o, struct cairn_tp *tp)
{
	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	_exit(cairn_session_follow(o, tp, NULL, 0, "test"));
}

static void run_setting(struct cairn_test *t, const struct setting *setting, int ranks)
{
	const struct cairn_common_options o = { .impl = "cpu", .tp = ranks, .collective_s = 60 };
	const struct cairn_common_options one = { .impl = "cpu" };
	struct asked *whole = calloc(NUM, sizeof(*whole)), *shared = calloc(NUM, sizeof(*shared));
	struct cairn_session s = { 0 }, w = { 0 };
	struct cairn_engine_stats stats = { 0 }, unused;
	struct cairn_tp *tp = NULL;
	int is_draft = setting->eo.speculation.method == CAIRN_SPECULATE_DRAFT_MODEL;

	if (!EXPECT(t, cairn_ranks_fork(&tp, &o) == 0))
		return;
	if (cairn_tp_rank(tp))
		be_other_rank(&o, tp);
	cairn_set_threads(1);
	if (EXPECT(t, !cairn_session_start_rank(&s, &o, tp, NULL, 0) && !cairn_session_load(&s, NULL)) &&
	    EXPECT(t, !is_draft || !cairn_model_load(&s.drafter, &s.impl, s.dir, NULL, NULL)) &&
	    EXPECT(t, answer_all(t, &s, tp, setting, shared, &stats) == 0))
		check_counts(t, setting, &stats);
	cairn_tp_close(tp);
	if (EXPECT(t, !cairn_session_start_rank(&w, &one, NULL, NULL, 0) && !cairn_session_load(&w, NULL)) &&
	    EXPECT(t, !is_draft || !cairn_model_load(&w.drafter, &w.impl, w.dir, NULL, NULL)) &&
	    EXPECT(t, answer_all(t, &w, NULL, setting, whole, &unused) == 0))
		compare(t, setting->num, whole, shared);
	for (int i = 0; i < NUM; i++) {
		free(whole[i].ids);
		free(shared[i].ids);
	}
	free(whole);
	free(shared);
	cairn_session_close(&w);
	cairn_session_close(&s);
}

#define SMALL	.max_batch = 4, .max_rows = 64, .max_context = 256, .max_queued = 4 * NUM

static void moves(struct cairn_test *t)
{
	const struct setting s = { { SMALL, .num_pages = 24, .cache_grain = 1, .host_pages = 12,
					      .disk_pages = 200, .recompute_ns = 1000000000, .swap_ns = 1 },
				   greedy, NUM, 1 };

	run_setting(t, &s, 2);
}

static void treats(struct cairn_test *t)
{
	const struct setting s = { { SMALL }, treated, 8, 0 };

	run_setting(t, &s, 2);
}

static void drafts(struct cairn_test *t)
{
	struct setting s = { { SMALL, .speculation = { .method = CAIRN_SPECULATE_NGRAM, .always = 1 } },
			     treated, 8, 0 };

	run_setting(t, &s, 2);
	s.eo.speculation.method = CAIRN_SPECULATE_DRAFT_MODEL;
	s.ask = greedy;
	run_setting(t, &s, 2);
}

static const struct cairn_unit units[] = {
	{ "moves", moves }, { "treats", treats }, { "drafts", drafts },
};

const struct cairn_family cairn_ranks_engine_family = {
	.stage = "serving", .name = "ranks_engine",
	.units = units, .num_units = ARRAY_SIZE(units),
};
