// SPDX-License-Identifier: Apache-2.0
/* serve_frames - checks and handles the frames that the worker sends */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/engine/engine.h"
#include "serving/serve/front/serve_front.h"

static bool is_open(const struct serve_slot *slot, int32_t index)
{
	return index >= 0 && index < slot->num_seqs && slot->open[index / 64] >> index % 64 & 1;
}

/* Returns an answer of a slot's request; NULL: the job has ended. */
static struct serve_choice *choice_of(const struct serve_slot *slot, int32_t index)
{
	const struct serve_part *p = slot->part;

	return p ? &p->job->choices[(p - p->job->parts) * p->job->req.n + slot->first + index] : NULL;
}

/* Counts a token that belongs to the text or ends an answer. p and c NULL: the job has ended. */
static void count_token(struct serve *s, struct serve_part *p, struct serve_choice *c)
{
	int64_t now = serve_now_ns();

	cairn_metric_add(s->metrics, CAIRN_GENERATION_TOKENS, 0, 1);
	s->has_served = true;
	if (!p)
		return;
	if (!p->first_ns) {
		p->first_ns = now;
		cairn_metric_observe(s->metrics, CAIRN_TIME_TO_FIRST_TOKEN,
				     (double)(now - p->job->begin_ns) * 1e-9);
	}
	if (c->last_ns)
		cairn_metric_observe(s->metrics, CAIRN_INTER_TOKEN_LATENCY,
				     (double)(now - c->last_ns) * 1e-9);
	else
		c->first_ns = now;
	c->last_ns = p->job->last_ns = now;
}

/* Handles a TOKEN whose TOP frames have all arrived. */
static void token(struct serve *s, const struct cairn_wire_frame *f)
{
	struct serve_slot *slot = serve_slot_of(s, f->request);
	struct serve_part *p = slot ? slot->part : NULL;
	struct serve_choice *c;
	bool stopped, over;

	if (f->kind == CAIRN_WIRE_PROMPT) {
		if (p && serve_take_prompt(p, &s->token))
			serve_end_job(s, p->job);
		return;
	}
	c = slot ? choice_of(slot, f->token.index) : NULL;
	count_token(s, p, c);
	if (!p)
		return;
	over = serve_take_token(p->job, (int32_t)(c - p->job->choices), &s->token, &stopped);
	if (stopped && is_open(slot, f->token.index)) {
		struct cairn_wire_frame stop = { .kind = CAIRN_WIRE_STOP, .request = f->request,
						 .index = f->token.index };

		cairn_wire_put(&s->out, &stop);
	}
	if (over)
		serve_end_job(s, p->job);
}

/* Returns whether this is the next token of a prompt whose log-probabilities were requested. */
static bool is_next_of_prompt(const struct serve_slot *slot, const struct cairn_wire_frame *f)
{
	const struct serve_part *p = slot->part;
	size_t next = p ? p->num_scored + 1 : 0;

	return !p || (serve_is_scored(p) && (int64_t)f->token.index == (int64_t)next && next < p->num_ids &&
		      p->ids[next] == f->token.id && f->token.rank >= 0);
}

/* Returns whether this answer may have a token now: its prompt's log-probabilities must come first. */
static bool may_have_token(const struct serve_slot *slot, const struct cairn_wire_frame *f)
{
	const struct serve_part *p = slot->part;

	return is_open(slot, f->token.index) &&
	       (!p || !serve_is_scored(p) || p->num_scored + 1 == p->num_ids);
}

static int begin_token(struct serve *s, const struct cairn_wire_frame *f)
{
	struct serve_slot *slot = serve_slot_of(s, f->request);

	if (!slot || f->token.id < 0 ||
	    (f->kind == CAIRN_WIRE_TOKEN ? !may_have_token(slot, f) : !is_next_of_prompt(slot, f)) ||
	    f->token.id >= s->config.vocab_size || f->count > CAIRN_API_MAX_LOGPROBS)
		return -EINVAL;
	s->token = (struct serve_logprob){ .id = f->token.id, .logprob = f->token.logprob,
					   .rank = f->token.rank };
	s->head = *f;
	s->missing = f->count;
	if (!s->missing)
		token(s, f);
	return 0;
}

static int top(struct serve *s, const struct cairn_wire_frame *f)
{
	for (int32_t i = 0; i < f->count; i++) {
		if (f->pairs[i].id < 0 || f->pairs[i].id >= s->config.vocab_size)
			return -EINVAL;
		s->token.top[s->token.num_top++] = f->pairs[i];
	}
	if (!s->missing)
		token(s, &s->head);
	return 0;
}

static int finish(struct serve *s, const struct cairn_wire_frame *f)
{
	static const enum cairn_api_finish whys[] = {
		[CAIRN_FINISH_STOP] = CAIRN_API_STOP, [CAIRN_FINISH_LENGTH] = CAIRN_API_LENGTH,
		[CAIRN_FINISH_CANCELLED] = CAIRN_API_ABORT,
	};
	struct serve_slot *slot = serve_slot_of(s, f->request);
	struct serve_choice *c;
	struct cairn_api_error e;
	struct serve_part *p;

	if (!slot || !is_open(slot, f->finish.index) || f->finish.why < 0 ||
	    f->finish.why > CAIRN_FINISH_CONSTRAINT ||
	    f->finish.token < -1 || f->finish.token >= s->config.vocab_size)
		return -EINVAL;
	slot->open[f->finish.index / 64] &= ~(1ull << f->finish.index % 64);
	p = slot->part;
	c = choice_of(slot, f->finish.index);
	if (!--slot->num_open)
		serve_free_slot(s, slot);
	if (f->finish.token >= 0)
		count_token(s, p, c);
	if (!p)
		return 0;
	if (f->finish.why >= CAIRN_FINISH_EXPIRED) {
		if (f->finish.why == CAIRN_FINISH_EXPIRED)
			serve_refuse_late(s, &e);
		else if (f->finish.why == CAIRN_FINISH_CONSTRAINT)
			cairn_api_refuse(&e, 500, "constraint_failed", p->job->req.constraint_param,
					 "the answer cannot go on as %s demands: the grammar process has "
					 "failed, or no token is left to draw", p->job->req.constraint_param ?
					 p->job->req.constraint_param : "its constraint");
		else
			cairn_api_refuse(&e, 500, "model_failed", NULL, "the model's output is not a number");
		serve_fail(p->job, &e);
		serve_end_job(s, p->job);
		return 0;
	}
	if (serve_take_finish(p->job, (int32_t)(c - p->job->choices), whys[f->finish.why],
			      f->finish.token))
		serve_end_job(s, p->job);
	return 0;
}

static int started(struct serve *s, const struct cairn_wire_frame *f)
{
	struct serve_slot *slot = serve_slot_of(s, f->request);
	struct serve_part *p = slot ? slot->part : NULL;

	if (!slot || f->cached_tokens < 0 || (p && !p->resumed &&
					      ((size_t)f->cached_tokens > p->num_ids || p->started)))
		return -EINVAL;
	if (!p || p->started)
		return 0;
	p->started = true;
	p->cached = (size_t)f->cached_tokens < p->num_ids ? f->cached_tokens : (int32_t)p->num_ids;
	p->start_ns = serve_now_ns();
	serve_unqueue(s, p);
	cairn_metric_add(s->metrics, CAIRN_PROMPT_TOKENS, 0, (uint64_t)p->num_ids);
	cairn_metric_observe(s->metrics, CAIRN_QUEUE_TIME, (double)(p->start_ns - p->job->begin_ns) * 1e-9);
	return 0;
}

/* An error of the engine begins with a field's name. Writes the field's name in the API, or "", to field. */
static void name_field(const char *text, char *field, size_t len)
{
	static const char *const names[][2] = {
		{ "max_new_tokens", "max_tokens" }, { "min_new_tokens", "min_tokens" },
		{ "num_logprobs", "logprobs" }, { "bias", "logit_bias" }, { "num_bias", "logit_bias" },
		{ "num_seqs", "n" }, { "beam_width", "use_beam_search" }, { "stop_ids", "stop_token_ids" },
	};
	size_t n = strcspn(text, ": [");

	snprintf(field, len, "%.*s", text[n] && n < len ? (int)n : 0, text);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(field, names[i][0]))
			snprintf(field, len, "%s", names[i][1]);
	}
}

/* Returns whether an error of the grammar process or of the engine is about the constraint. */
static bool is_of_constraint(const char *field)
{
	static const char *const names[] = { "json", "regex", "choice", "grammar", "constraint",
					     "constraints" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(field, names[i]))
			return true;
	return false;
}

/* Handles REFUSED: the engine rejects a request. */
static int refused(struct serve *s, const struct cairn_wire_frame *f)
{
	struct serve_slot *slot = serve_slot_of(s, f->request);
	struct cairn_api_error e;
	struct serve_part *p;

	if (!slot || slot->num_open != slot->num_seqs)
		return -EINVAL;
	p = slot->part;
	serve_free_slot(s, slot);
	if (!p)
		return 0;
	if (f->error == EAGAIN) {
		cairn_api_refuse(&e, 429, "queue_full", NULL, "%s", s->text);
		e.retry_after_s = 1;
	} else if (f->error == EINVAL || f->error == EOPNOTSUPP) {
		char field[64];

		name_field(s->text, field, sizeof(field));
		if (p->job->req.constraint_param && is_of_constraint(field))
			snprintf(field, sizeof(field), "%s", p->job->req.constraint_param);
		if (!strcmp(field, "prompt_logprobs") && p->job->req.prompt_logprobs < 0)
			strcpy(field, "echo");
		cairn_api_refuse(&e, 400, f->error == EINVAL ? "invalid_value" : "unsupported_value", field,
				 "%s", s->text);
	} else {
		cairn_api_refuse(&e, 500, p->job->req.constraint.kind ? "constraint_failed" : NULL, NULL,
				 "%s", s->text);
	}
	p->job->refused = e.status != 500;
	serve_fail(p->job, &e);
	serve_end_job(s, p->job);
	return 0;
}

static int text(struct serve *s, const struct cairn_wire_frame *f)
{
	memcpy(s->text + s->num_text, f->text, (size_t)f->count);
	s->num_text += (size_t)f->count;
	s->text[s->num_text] = 0;
	if (s->missing)
		return 0;
	if (s->head.kind == CAIRN_WIRE_REFUSED)
		return refused(s, &s->head);
	serve_worker_gone(s, s->text);
	return 0;
}

static int begin_text(struct serve *s, const struct cairn_wire_frame *f)
{
	s->head = *f;
	s->missing = f->count;
	s->num_text = 0;
	s->text[0] = 0;
	if (s->missing)
		return 0;
	if (f->kind == CAIRN_WIRE_REFUSED)
		return refused(s, f);
	serve_worker_gone(s, "it did not say why");
	return 0;
}

static int step(struct serve *s, const struct cairn_wire_frame *f)
{
	int64_t now = serve_now_ns();

	if (f->step.rows < 0 || f->step.num_pages < 1 || f->step.used_pages < 0)
		return -EINVAL;
	if (f->step.rows || !f->step.busy)	/* busy without rows is no progress */
		atomic_store(&s->beat_ns, now);
	atomic_store(&s->busy, f->step.busy != 0);
	if (f->step.rows) {
		atomic_store(&s->step_ns, now);
		cairn_metric_observe(s->metrics, CAIRN_ITERATION_TOKENS, f->step.rows);
	}
	cairn_metric_set(s->metrics, CAIRN_NUM_REQUESTS_RUNNING, f->step.running);
	cairn_metric_set(s->metrics, CAIRN_NUM_REQUESTS_WAITING, f->step.waiting);
	cairn_metric_set(s->metrics, CAIRN_KV_CACHE_USAGE, (double)f->step.used_pages / f->step.num_pages);
	return 0;
}

/* Adds the growth of this worker's counters to the metrics, which span all workers. */
static int stats(struct serve *s, const struct cairn_wire_frame *f)
{
	const struct cairn_wire_frame *last = &s->stats;

	if (f->stats.prompt_tokens < last->stats.prompt_tokens ||
	    f->stats.hit_tokens < last->stats.hit_tokens || f->stats.preemptions < last->stats.preemptions)
		return -EINVAL;
	cairn_metric_add(s->metrics, CAIRN_PREFIX_CACHE_QUERIES, 0,
			 (uint64_t)(f->stats.prompt_tokens - last->stats.prompt_tokens));
	cairn_metric_add(s->metrics, CAIRN_PREFIX_CACHE_HITS, 0,
			 (uint64_t)(f->stats.hit_tokens - last->stats.hit_tokens));
	cairn_metric_add(s->metrics, CAIRN_NUM_PREEMPTIONS, 0,
			 (uint64_t)(f->stats.preemptions - last->stats.preemptions));
	s->stats = *f;
	return 0;
}

static int drafts(struct serve *s, const struct cairn_wire_frame *f)
{
	const struct cairn_wire_frame *last = &s->drafts;

	if (f->drafts.num < last->drafts.num || f->drafts.tokens < last->drafts.tokens ||
	    f->drafts.accepted < last->drafts.accepted)
		return -EINVAL;
	cairn_metric_add(s->metrics, CAIRN_SPEC_DRAFTS, 0, (uint64_t)(f->drafts.num - last->drafts.num));
	cairn_metric_add(s->metrics, CAIRN_SPEC_DRAFT_TOKENS, 0,
			 (uint64_t)(f->drafts.tokens - last->drafts.tokens));
	cairn_metric_add(s->metrics, CAIRN_SPEC_ACCEPTED, 0,
			 (uint64_t)(f->drafts.accepted - last->drafts.accepted));
	s->drafts = *f;
	return 0;
}

static int accepted(struct serve *s, const struct cairn_wire_frame *f)
{
	for (int i = 0; i < 6 && f->count < CAIRN_NUM_SPEC_POSITIONS - i; i++) {
		int64_t *last = &s->accepted[f->count + i];

		if (f->accepted[i] < *last)
			return -EINVAL;
		cairn_metric_add(s->metrics, CAIRN_SPEC_ACCEPTED_PER_POS, f->count + i,
				 (uint64_t)(f->accepted[i] - *last));
		*last = f->accepted[i];
	}
	return 0;
}

static int masks(struct serve *s, const struct cairn_wire_frame *f)
{
	static const enum cairn_metric metrics[] = {
		CAIRN_CONSTRAINTS_COMPILED, CAIRN_CONSTRAINT_CACHE_HITS, CAIRN_CONSTRAINTS_REFUSED,
		CAIRN_GRAMMAR_RESTARTS, CAIRN_MASKS_COMPUTED, CAIRN_MASK_TIME,
	};
	const int64_t now[] = { f->masks.compiled, f->masks.cache_hits, f->masks.refused, f->masks.restarts,
				f->masks.masks, f->masks.mask_ns / 1000000 };
	const int64_t last[] = { s->masks.masks.compiled, s->masks.masks.cache_hits, s->masks.masks.refused,
				 s->masks.masks.restarts, s->masks.masks.masks,
				 s->masks.masks.mask_ns / 1000000 };

	for (size_t i = 0; i < sizeof(now) / sizeof(now[0]); i++)
		if (now[i] < last[i])
			return -EINVAL;
	for (size_t i = 0; i < sizeof(now) / sizeof(now[0]); i++)
		cairn_metric_add(s->metrics, metrics[i], 0, (uint64_t)(now[i] - last[i]));
	s->masks = *f;
	return 0;
}

static int pulls(struct serve *s, const struct cairn_wire_frame *f)
{
	static const enum cairn_metric metrics[] = {
		CAIRN_PULLED_PROMPTS, CAIRN_PULLED_PAGES, CAIRN_PULLED_BYTES, CAIRN_PULL_CHECKSUM_ERRORS,
		CAIRN_PULLS_RECOMPUTED,
	};
	const struct cairn_wire_frame *l = &s->pulls;
	const int64_t now[] = { f->pulls.prompts, f->pulls.pages, f->pulls.bytes, f->pulls.checksum_errors,
				f->pulls.recomputed };
	const int64_t last[] = { l->pulls.prompts, l->pulls.pages, l->pulls.bytes, l->pulls.checksum_errors,
				 l->pulls.recomputed };

	for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
		if (now[i] < last[i] || f->pulls.workers < 0)
			return -EINVAL;
	for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
		cairn_metric_add(s->metrics, metrics[i], 0, (uint64_t)(now[i] - last[i]));
	cairn_metric_set(s->metrics, CAIRN_PREFILL_WORKERS, (double)f->pulls.workers);
	s->pulls = *f;
	return 0;
}

static int events(struct serve *s, const struct cairn_wire_frame *f)
{
	const struct cairn_wire_frame *last = &s->events;

	if (f->events.published < last->events.published || f->events.lost < last->events.lost)
		return -EINVAL;
	cairn_metric_add(s->metrics, CAIRN_KV_EVENTS_PUBLISHED, 0,
			 (uint64_t)(f->events.published - last->events.published));
	cairn_metric_add(s->metrics, CAIRN_KV_EVENTS_LOST, 0,
			 (uint64_t)(f->events.lost - last->events.lost));
	s->events = *f;
	return 0;
}

/*
 * Adds the energy used since the last POWER, which an earlier worker may have sent: the card keeps counting
 * when no worker runs. A smaller count than before means that the driver was loaded anew.
 */
static int power(struct serve *s, const struct cairn_wire_frame *f)
{
	if (f->power.energy_mj < 0 || f->power.power_mw < 0)
		return -EINVAL;
	if (s->energy_mj && f->power.energy_mj > s->energy_mj)
		cairn_metric_add(s->metrics, CAIRN_GPU_ENERGY, 0,
				 (uint64_t)(f->power.energy_mj - s->energy_mj));
	s->energy_mj = f->power.energy_mj;
	cairn_metric_set(s->metrics, CAIRN_GPU_POWER, f->power.power_mw * 1e-3);
	return 0;
}

/* Handles the next frame of an incomplete message. Any other frame is a protocol violation. */
static int go_on(struct serve *s, const struct cairn_wire_frame *f)
{
	int is_token = s->head.kind == CAIRN_WIRE_TOKEN || s->head.kind == CAIRN_WIRE_PROMPT;
	int want = is_token ? CAIRN_WIRE_TOP : CAIRN_WIRE_TEXT;

	if (f->kind != want || f->request != s->head.request || f->count > s->missing)
		return -EINVAL;
	s->missing -= f->count;
	return want == CAIRN_WIRE_TOP ? top(s, f) : text(s, f);
}

int serve_take_frame(struct serve *s, const struct cairn_wire_frame *f)
{
	if (s->missing)
		return go_on(s, f);
	if (f->kind == CAIRN_WIRE_READY || f->kind == CAIRN_WIRE_FAILED)
		return f->kind == CAIRN_WIRE_READY ? serve_worker_ready(s, f) : begin_text(s, f);
	if (atomic_load(&s->state) != SERVE_READY)
		return -EINVAL;
	switch (f->kind) {
	case CAIRN_WIRE_STARTED:
		return started(s, f);
	case CAIRN_WIRE_TOKEN:
	case CAIRN_WIRE_PROMPT:
		return begin_token(s, f);
	case CAIRN_WIRE_FINISH:
		return finish(s, f);
	case CAIRN_WIRE_REFUSED:
		return begin_text(s, f);
	case CAIRN_WIRE_STEP:
		return step(s, f);
	case CAIRN_WIRE_STATS:
		return stats(s, f);
	case CAIRN_WIRE_DRAFTS:
		return drafts(s, f);
	case CAIRN_WIRE_ACCEPTED:
		return accepted(s, f);
	case CAIRN_WIRE_MASKS:
		return masks(s, f);
	case CAIRN_WIRE_EVENTS:
		return events(s, f);
	case CAIRN_WIRE_PULLS:
		return pulls(s, f);
	case CAIRN_WIRE_POWER:
		return power(s, f);
	default:
		return -EINVAL;
	}
}
