/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_engine_test - questions for an engine with ranks, for ranks_engine_test.c and ranks_mutants_test.c
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RANKS_ENGINE_TEST_H
#define CAIRN_RANKS_ENGINE_TEST_H

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

static inline int take(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct answer *a = &((struct asked *)ctx)->answers[index];

	if (a->num_ids < MAX_NEW) {
		a->ids[a->num_ids] = token->id;
		a->logprob[a->num_ids++] = token->logprob;
	}
	return 0;
}

static inline void take_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	(void)position;
	((struct asked *)ctx)->answers[0].prompt_logprob += token->logprob;
}

static inline void finished(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	(void)why;
	(void)token;
	((struct asked *)ctx)->answers[index].num_finished++;
}

/* Question i: a few lines to look something up in, which several questions share, and an end of its own. */
static inline void write_question(char *text, size_t len, int i)
{
	static const char *const colours[] = { "red", "blue", "teal", "pink", "gold", "grey" };
	int at = 0, table = i / 6;

	for (int k = 0; k < 6; k++)
		at += snprintf(text + at, len - (size_t)at, "%s owl: %d\n", colours[k],
			       100 + 37 * k + 11 * table);
	snprintf(text + at, len - (size_t)at, "What stands beside %s owl?\n", colours[i % 6]);
}

static inline void greedy(struct cairn_request *r, int i)
{
	r->keep = i % 2;
}

/* Two answers each, which share pages and copy the last one. */
static inline void forked(struct cairn_request *r, int i)
{
	r->num_seqs = 1 + i % 2;
	r->sampling.num_logprobs = 1;
}

static inline void treated(struct cairn_request *r, int i)
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

static inline int ask_all(struct cairn_test *t, struct cairn_engine *e, const struct setting *s,
			  struct asked *all, const struct cairn_tokenizer *tokenizer)
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

/* tap: NULL for an engine without ranks. */
static inline int answer_all(struct cairn_test *t, struct cairn_session *s,
			     const struct cairn_engine_tap *tap, const struct setting *setting,
			     struct asked *all, struct cairn_engine_stats *stats)
{
	struct cairn_engine_options eo = setting->eo;
	struct cairn_engine *e = NULL;
	int ret;

	eo.tap = tap;
	eo.context = s->context;
	eo.stripes &= tap != NULL;
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

/* Runs the ranks other than 0: all settings, one engine after the other. */
static inline void be_other_rank(const struct cairn_common_options *o, struct cairn_tp *tp)
{
	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	_exit(cairn_session_follow(o, tp, NULL, 0, NULL, "test"));
}

static inline void free_asked(struct asked *all)
{
	for (int i = 0; i < NUM; i++)
		free(all[i].ids);
	free(all);
}

#define SMALL	.max_batch = 4, .max_rows = 64, .max_context = 256, .max_queued = 4 * NUM

/* Pages are so few that each kind of move occurs. */
static const struct setting moving = {
	{ SMALL, .num_pages = 24, .cache_grain = 1, .host_pages = 12, .disk_pages = 200,
	  .recompute_ns = 1000000000, .swap_ns = 1 }, greedy, NUM, 1,
};

#endif
