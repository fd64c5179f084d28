/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_engine_test - requests of all kinds, run with and without workers, and comparisons of their answers
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_REMOTE_ENGINE_TEST_H
#define CAIRN_REMOTE_ENGINE_TEST_H

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "rdma/transport/transport.h"
#include "serving/engine/engine_test.h"
#include "serving/remote/lead/lead.h"

#define JOBS	6
#define ANSWERS	3
#define PROMPT	48
#define NEW	8
#define SLACK		0.06
/* with an 8-bit cache, a pass attends to its own keys before they are rounded to it */
#define SLACK_FP8	1.0

struct crowd {
	int32_t prompts[JOBS][PROMPT];
	struct answer answers[JOBS][ANSWERS];
	struct cairn_lead *victim;	/* a worker of it is killed twice; NULL: none is */
	struct cairn_lead *loses;	/* declares its first worker lost twice; NULL: does not */
	int32_t of_model;		/* it is this model worker; 0: an attention worker */
	int treated;			/* some draws have counters of tokens, or lists */
};

static inline struct cairn_request job(struct crowd *c, int i)
{
	const struct golden none = { 0 };
	struct cairn_request r = request(&none, PROMPT - 5 * i, NEW, c->answers[i]);

	r.prompt = c->prompts[i];
	r.sampling.num_logprobs = i == 4 ? 0 : 5;
	if (i == 1)
		r.num_seqs = ANSWERS;
	if (i == 4) {
		r.beam_width = ANSWERS;
		r.num_seqs = 2;
	}
	if (c->treated && i == 3)
		r.sampling.presence_penalty = 0.5f;
	if (c->treated && i == 5)
		r.sampling.min_new_tokens = NEW;
	r.ignore_eos = !(c->treated && i == 5);
	for (int k = 0; k < ANSWERS; k++)
		memset(&c->answers[i][k], 0, sizeof(c->answers[i][k]));
	return r;
}

static inline int run_all(struct cairn_test *t, struct crowd *c, struct cairn_model *m,
		   const struct cairn_engine_options *opt, struct cairn_engine_stats *stats)
{
	struct cairn_engine *e;
	int busy = 1, next = 0, ret = cairn_engine_create(&e, m, opt);

	if (!EXPECT(t, ret == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return ret;
	}
	for (int step = 0; !ret && (busy || next < JOBS); step++) {
		for (; next < JOBS && 2 * next <= step + 3; next++) {
			struct cairn_request r = job(c, next);

			EXPECT(t, cairn_engine_submit(e, &r) == 0);
		}
		ret = cairn_engine_step(e, &busy);
		if (c->victim && (step == 7 || step == 19))
			kill(cairn_lead_pid(c->victim, c->of_model ?
					    cairn_lead_model_rank(c->victim, c->of_model) :
					    1 + step % cairn_lead_attention(c->victim)), SIGKILL);
		if (c->loses && (step == 7 || step == 19)) {
			cairn_error(EIO, "by the test");
			cairn_lead_report(c->loses, 1);
		}
	}
	if (!EXPECT(t, ret == 0 && cairn_engine_verify(e) == 0))
		cairn_note(t, "%s", cairn_last_error());
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
	return ret;
}

/* Returns the number of answers in which a token or a log-probability differs. */
static inline int count_changed(struct cairn_test *t, const struct crowd *want, const struct crowd *got)
{
	int changed = 0;

	for (int i = 0; i < JOBS; i++) {
		for (int k = 0; k < ANSWERS; k++) {
			const struct answer *a = &want->answers[i][k], *b = &got->answers[i][k];

			if (a->num_ids == b->num_ids && !memcmp(a->ids, b->ids, sizeof(a->ids)) &&
			    !memcmp(a->logprob, b->logprob, sizeof(a->logprob)))
				continue;
			cairn_note(t, "job %d, answer %d", i, k);
			changed++;
		}
	}
	return changed;
}

static inline void compare_bits(struct cairn_test *t, const struct crowd *want, const struct crowd *got)
{
	EXPECT(t, count_changed(t, want, got) == 0);
}

/* Returns by how much the log-probability of a token was below that of the most likely one. */
static inline double below_best(const struct answer *a, int at, int32_t id)
{
	for (int i = 0; i < a->num_top[at]; i++)
		if (a->top[at][i] == id)
			return (double)a->top_logprob[at][0] - (double)a->top_logprob[at][i];
	return INFINITY;
}

/*
 * Greedy answers must be equal up to a token for which the logits do not decide by more than the slack,
 * the rounding of two partial results; behind it the answers are those to different texts. Adds the tokens
 * before it to *equal. Returns the number of answers for which this does not hold.
 */
static inline int count_wrong(struct cairn_test *t, const struct crowd *want, const struct crowd *got,
			      double slack, int *equal)
{
	int wrong = 0;

	for (int i = 0; i < JOBS; i++) {
		for (int k = 0; k < (i == 4 ? 0 : ANSWERS); k++) {	/* beams choose by sums */
			const struct answer *a = &want->answers[i][k], *b = &got->answers[i][k];
			int at = 0;

			while (at < a->num_ids && a->ids[at] == b->ids[at])
				at++;
			*equal += at;
			if (a->num_ids == b->num_ids &&
			    (at == a->num_ids || below_best(a, at, b->ids[at]) <= slack))
				continue;
			cairn_note(t, "job %d, answer %d, token %d: %.3f below the best", i, k, at,
				   at < a->num_ids ? below_best(a, at, b->ids[at]) : 0);
			wrong++;
		}
	}
	return wrong;
}

static inline void compare_tokens(struct cairn_test *t, const struct crowd *want, const struct crowd *got,
				  double slack)
{
	int equal = 0;

	EXPECT(t, count_wrong(t, want, got, slack, &equal) == 0);
	cairn_note(t, "%d of %d tokens are equal", equal, (JOBS - 2 + ANSWERS) * NEW);
	EXPECT(t, equal > (JOBS - 2 + ANSWERS) * NEW / 2);
}

static inline void make_prompts(struct cairn_test *t, struct crowd *c)
{
	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < PROMPT; k++)	/* some share a prefix */
			c->prompts[i][k] = k < i % 3 * 16 ? 3 + k : 3 + (int32_t)(cairn_rand(t) % 180);
}

static const struct cairn_engine_options options = {
	.max_context = 128, .decode = CAIRN_DECODE_UNFUSED, .max_batch = 8, .page_size = 4, .max_rows = 24,
	.num_pages = 22, .expected_new = 1,
};

/* Starts a lead; returns 0 if there is none: a skip if this machine cannot have one, else a failure. */
static inline int create_lead(struct cairn_test *t, struct cairn_lead **lead,
			      const struct cairn_lead_options *o)
{
	int ret = cairn_lead_create(lead, o);

	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	else if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_last_error());
	return !ret;
}

/* Workers on GPUs are on those behind the first one, in turn. */
static inline int open_lead_as(struct cairn_test *t, struct cairn_lead **lead, const char *table,
			       int32_t workers)
{
	const struct cairn_lead_options o = {
		.attention = workers, .table = table, .beat_ms = 20000, .join_ms = 60000,
		.first_device = 1, .num_devices = strcmp(table, "cpu") ? cairn_transport_gpus() : 0,
	};

	return create_lead(t, lead, &o);
}

static inline int open_lead(struct cairn_test *t, struct cairn_lead **lead, int32_t workers)
{
	return open_lead_as(t, lead, "cpu", workers);
}

#endif
