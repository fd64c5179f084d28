// SPDX-License-Identifier: Apache-2.0
/*
 * serve_resume - goes on with the answers of a worker that has failed
 *
 * The front knows each request and the tokens of its answers so far. When a worker fails, its requests stay
 * with the link, and streams stay open. When the next worker is ready, each answer that has not ended is
 * submitted again as a request of its own: the prompt and the answer's tokens, the number of tokens still to
 * come, and the seed of this answer, so that its draws are numbered on (num_given in engine.h). What a client
 * has got is never sent again, and nothing is left out. A beam search, and a prompt whose log-probabilities
 * have not all come, begin anew, because nothing of their answers has been sent.
 *
 * Two bounds keep a request that makes every worker fail from doing so for ever: a job that has got no token
 * from MOST_FUTILE workers fails, and so do all jobs if more than --resume-limit workers fail in a minute.
 */
#include <string.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"
#include "serving/serve/resume/serve_resume_fault.h"

#define MOST_FUTILE	4
#define MINUTE_NS	60000000000ll

/*
 * Records a failure. Returns whether more than `num` workers have failed in the last minute, that is, whether
 * the failure `num` failures before this one is less than a minute old.
 */
static bool too_many(struct serve *s)
{
	const int64_t now = serve_now_ns();
	const uint64_t num = (uint64_t)s->opt.resume_limit;	/* at most SERVE_MOST_RESUMES */
	int64_t *oldest;
	bool many;

	if (!num)
		return true;
	oldest = &s->failed_ns[s->num_failures++ % num];
	many = s->num_failures > num && now - *oldest < MINUTE_NS && !FAULT(ENDLESS);
	*oldest = now;
	return many;
}

static void fail(struct serve *s, struct serve_job *job, const char *why)
{
	struct cairn_api_error e;

	cairn_api_refuse(&e, 500, "worker_failed", NULL, "the worker has failed: %s", why);
	serve_fail(job, &e);
	serve_end_job(s, job);
}

void serve_hold_all(struct serve *s, const char *why)
{
	int num = 0;

	if (!atomic_load(&s->was_ready) || too_many(s)) {
		serve_fail_all(s, why);
		return;
	}
	for (struct serve_job *job = s->live, *next; job; job = next) {
		next = job->next_live;
		if (++job->futile > MOST_FUTILE && !FAULT(FUTILE))
			fail(s, job, why);
		else
			num++;
	}
	serve_free_slots(s);
	if (num)
		serve_log_print(s->log, "cairn serve: %d requests go on with the next worker", num);
}

/* Returns whether the part begins anew. */
static bool is_whole(const struct serve_part *p)
{
	return p->job->req.use_beam_search || (serve_is_scored(p) && p->num_scored + 1 < p->num_ids);
}

static void begin_anew(struct serve_part *p)
{
	p->num_scored = 0;
	if (p->job->req.prompt_logprobs >= 0)
		p->prompt_logprobs.len = strlen("[null");
}

/* Submits one answer again. Returns whether the job has ended. */
static bool resume_answer(struct serve *s, struct serve_part *p, int32_t index)
{
	struct serve_job *job = p->job;
	struct serve_choice *c = &job->choices[(p - job->parts) * job->req.n + index];
	struct serve_slot *slot;

	if (c->finish)
		return false;
	if (c->num_taken >= (size_t)p->max_tokens) {	/* only the end was still to come */
		bool over = serve_take_finish(job, (int32_t)(c - job->choices), CAIRN_API_LENGTH, -1);

		if (over)
			serve_end_job(s, job);
		return over;
	}
	slot = serve_take_slot(s, p, index, 1);
	if (!slot) {
		fail(s, job, "too many answers were running");
		return true;
	}
	serve_put_request(s, p, slot, &(struct serve_given){
		.ids = c->taken, .num = FAULT(TOKENS_LOST) ? 0 : (int32_t)c->num_taken - FAULT(LAST_LOST),
		.max_tokens = p->max_tokens - (FAULT(LENGTH_KEPT) ? 0 : (int32_t)c->num_taken),
		.seed = cairn_answer_seed(job->seed, FAULT(SEED_OF_FIRST) ? 0 : index),
	});
	return false;
}

static void resume(struct serve *s, struct serve_job *job)
{
	for (int32_t i = 0; i < job->num_parts; i++) {
		struct serve_part *p = &job->parts[i];

		p->resumed = true;
		if (is_whole(p)) {
			struct serve_slot *slot = serve_take_slot(s, p, 0, (int32_t)job->req.n);

			begin_anew(p);
			if (!slot) {
				fail(s, job, "too many answers were running");
				return;
			}
			serve_put_request(s, p, slot, NULL);
			continue;
		}
		for (int32_t k = 0; k < (FAULT(FIRST_ONLY) ? 1 : job->req.n); k++)
			if (resume_answer(s, p, k))
				return;
	}
}

void serve_resume_all(struct serve *s)
{
	for (struct serve_job *job = s->live, *next; job; job = next) {
		next = job->next_live;
		resume(s, job);
	}
}
