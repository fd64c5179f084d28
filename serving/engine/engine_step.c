// SPDX-License-Identifier: Apache-2.0
/*
 * engine_step - forms and launches a plan while the previous pass runs
 *
 *   step n     plan n | launch pass n, behind pass n-1 | wait for pass n-1 | its tokens: callbacks, report
 *   device     [---------- pass n-1 ----------][---------- pass n ----------]
 *
 * A plan refers to tokens that pass n-1 has not drawn yet by the number of their draw (follows). The end of
 * an answer is noticed one pass late, and its row in flight is dropped. A step with in_turn launches, waits
 * and reports; so does one whose plan has sequences that may get drafts, because these need the last token.
 * A beam runs only in every other pass, because the host must choose its last token first. A pass with masked
 * draws is launched in the same place, but draws only once pass n-1 is collected (engine_mask.c).
 *
 * With lanes (engine_lanes.c), each step is one of a single lane, in turn:
 *
 *   step n     passes of all lanes take turns until that of lane j has ended; its tokens: callbacks, report |
 *              plan and launch the next one of lane j
 *
 * Host and device follow the order of the plans. What a plan assumes about pages is true when its pass
 * starts, because one stream orders all passes and moves. Page tables are copied when a pass is built.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/base/clock.h"
#include "serving/engine/engine_impl.h"

int engine_is_end(const struct cairn_engine *e, const struct request *r, int32_t token)
{
	for (int32_t i = 0; !r->req.ignore_eos && i < e->config->num_eos; i++) {
		if (e->config->eos_token_ids[i] == token)
			return 1;
	}
	for (int32_t i = 0; i < r->req.num_stop_ids; i++) {
		if (r->req.stop_ids[i] == token)
			return 1;
	}
	return 0;
}

/* Sequences of a beam search end one by one without a callback; when the whole search is cancelled or
 * expires, reports each answer of the request as ended. */
static void report_beams(struct cairn_engine *e, struct request *r, int what)
{
	enum cairn_finish why = what == CAIRN_SCHED_EXPIRED ? CAIRN_FINISH_EXPIRED : CAIRN_FINISH_CANCELLED;
	int32_t num = r->num_answers;

	if (what != CAIRN_SCHED_CANCELLED && what != CAIRN_SCHED_EXPIRED)
		return;
	for (int32_t i = 0; i < num; i++)
		engine_finish(e, r, i, why, -1);
}

/* Reports answers that have ended. The events are copied first, because callbacks may call the scheduler. */
static int report_ends(struct cairn_engine *e)
{
	static const enum cairn_finish why[] = {
		[CAIRN_SCHED_STOP] = CAIRN_FINISH_STOP, [CAIRN_SCHED_LENGTH] = CAIRN_FINISH_LENGTH,
		[CAIRN_SCHED_CANCELLED] = CAIRN_FINISH_CANCELLED,
		[CAIRN_SCHED_EXPIRED] = CAIRN_FINISH_EXPIRED,
	};
	const struct cairn_sched_event *ev;
	int32_t num;

	for (;;) {
		ev = cairn_scheduler_events(e->scheduler, &num);
		if (!num)
			return 0;
		if (num > e->events_room) {
			void *room = realloc(e->events, 2 * (size_t)num * sizeof(*ev));

			if (!room)
				return cairn_error(ENOMEM, "engine: no memory for %d events", num);
			e->events = room;
			e->events_room = 2 * num;
		}
		memcpy(e->events, ev, (size_t)num * sizeof(*ev));
		for (int32_t i = 0; i < num; i++) {
			struct cairn_sched_event *now = &e->events[i];
			struct request *r;

			if (now->what == CAIRN_SCHED_TOKEN)
				continue;
			r = engine_find(e, now->request);
			if (r && r->beams)
				report_beams(e, r, now->what);
			else if (r && now->index < r->num_answers && r->answers[now->index].live)
				engine_finish(e, r, now->index,
					      r->answers[now->index].failed == 2 ? CAIRN_FINISH_CONSTRAINT :
					      r->answers[now->index].failed ? CAIRN_FINISH_FAILED :
					      why[now->what], r->answers[now->index].end_token);
		}
	}
}

/* Processes the token of row d. Returns 0; 1 if it ends its answer; 2 if moreover the KV must not be kept. */
static int take_token(struct cairn_engine *e, const struct draw *d, const struct cairn_worker_result *w,
		      int32_t i)
{
	struct request *r = engine_find(e, d->handle);
	struct answer *a = r && !r->beams ? &r->answers[d->index] : NULL;
	struct cairn_token token = { .id = w->tokens[i] };

	if (r && r->beams && !r->cancelled) {
		e->stats.new_tokens++;
		engine_beams_take(e, r, d->index, w, i);
		r->bad |= token.id < 0 || token.id >= e->config->vocab_size;
		return r->bad ? 2 : 0;
	}
	if (!a || !a->live || r->cancelled)
		return 0;	/* drawn after the answer had ended */
	if (a->stopping)
		return 1;
	e->stats.new_tokens++;
	if (token.id < 0 || token.id >= e->config->vocab_size || !engine_mask_allows(e, d, token.id)) {
		a->failed = d->masked ? 2 : 1;
		return 2;
	}
	if (engine_is_end(e, r, token.id)) {
		a->end_token = token.id;
		return 1;
	}
	a->num_given++;
	if (d->masked)
		engine_mask_took(a, token.id);
	if (r->req.sampling.num_logprobs) {
		token.logprob = w->logprob[i];
		token.num_top = r->req.sampling.num_logprobs - 1;
		token.top = w->top + (size_t)i * (size_t)w->k;
		token.top_logprob = w->top_logprob + (size_t)i * (size_t)w->k;
		/* the vocabulary is smaller than k */
		while (token.num_top && token.top[token.num_top - 1] < 0)
			token.num_top--;
	}
	return r->req.on_token && r->req.on_token(r->req.ctx, d->index, &token) ? 1 : 0;
}

/* Processes the log-probabilities of prompt tokens. */
static void take_scored(struct cairn_engine *e, const struct engine_flight *f,
			const struct cairn_worker_result *w)
{
	for (int32_t i = 0; i < w->num_scored; i++) {
		struct request *r = engine_find(e, f->scored[i].handle);
		size_t at = (size_t)(w->num_tokens + i);
		struct cairn_token token = { .logprob = w->logprob[at], .top = w->top + at * (size_t)w->k,
					     .top_logprob = w->top_logprob + at * (size_t)w->k };

		if (!r || r->cancelled || !r->req.on_prompt)
			continue;
		token.id = r->scored_prompt[f->scored[i].index];
		token.num_top = r->req.prompt_logprobs - 1;
		for (int32_t k = 0; k < CAIRN_LOGPROBS_MAX && !token.rank; k++)
			token.rank = token.top[k] == token.id ? k + 1 : 0;
		while (token.num_top && token.top[token.num_top - 1] < 0)
			token.num_top--;
		r->req.on_prompt(r->req.ctx, f->scored[i].index, &token);
	}
}

/* Processes draw i of a pass and those of the drafted rows behind its row, as far as they count. */
static int take_draws(struct cairn_engine *e, struct draw *d, const struct cairn_worker_result *w, int32_t i)
{
	int32_t path[CAIRN_TREE_ROWS], accepted = engine_spec_take(e, d, w->tokens + i, path);
	struct request *r;
	struct answer *a;

	memset(e->stops + i, 0, (size_t)d->num_drafts + 1);
	for (int32_t k = 0; k <= accepted; k++) {
		e->stops[i + path[k]] = (uint8_t)take_token(e, d + path[k], w, i + path[k]);
		if (e->stops[i + path[k]])
			return 0;
	}
	r = engine_find(e, d->handle);		/* a callback may have ended it */
	a = r && !r->beams ? &r->answers[d->index] : NULL;
	return e->spec && a && a->live && !r->cancelled ? engine_spec_resume(e, r, d->index, a) : 0;
}

/* Returns the flight of the pass with so many passes in flight before it; with lanes, of the lane in turn. */
static struct engine_flight *flight_behind(struct cairn_engine *e, int num)
{
	return &e->flights[e->num_lanes > 1 ? e->lane : (e->first_flight + num) % CAIRN_WORKER_FLIGHTS];
}

/* Waits for the oldest pass and processes its tokens. */
static int collect(struct cairn_engine *e)
{
	struct engine_flight *f = flight_behind(e, 0);
	struct cairn_worker_result w;
	int64_t start;

	CAIRN_TRY(cairn_worker_collect(e->worker, &w));
	CAIRN_TRY(cairn_tiers_collected(e->tiers));
	engine_pull_collected(e);
	engine_spec_collected(e, f);
	start = cairn_clock_ns();
	e->first_flight = (e->first_flight + 1) % CAIRN_WORKER_FLIGHTS;
	take_scored(e, f, &w);
	for (int32_t i = 0; i < w.num_tokens; i += 1 + f->draws[i].num_drafts)
		CAIRN_TRY(take_draws(e, &f->draws[i], &w, i));
	CAIRN_TRY(engine_spec_move(e));
	CAIRN_TRY(cairn_scheduler_report(e->scheduler, w.tokens, e->stops));
	CAIRN_TRY(report_ends(e));
	for (int32_t i = 0; i < w.num_tokens; i++) {
		struct request *r = engine_find(e, f->draws[i].handle);

		if (r && r->beams && !r->cancelled)
			CAIRN_TRY(engine_beams_advance(e, r));
	}
	e->stats.report_ns += cairn_clock_ns() - start;
	return 0;
}

/* Row p of a prompt gives the log-probabilities of token p + 1. A recomputed row is not scored again. */
static void score(struct request *r, int32_t first, int32_t end, struct engine_flight *f,
		  struct cairn_worker_part *part)
{
	int32_t from = first < r->num_scored ? r->num_scored : first;
	int32_t to = end < r->req.num_prompt ? end : r->req.num_prompt - 1;

	if (!r->scored_prompt || from >= to)
		return;
	part->targets = r->scored_prompt + from + 1;
	part->score_from = from - first;
	part->num_scored = to - from;
	part->score_k = CAIRN_LOGPROBS_MAX;	/* the ranks need them */
	r->num_scored = to;
	for (int32_t at = from + 1; at <= to; at++)
		f->scored[f->num_scored++] = (struct draw){ .handle = r->handle, .index = at };
}

void engine_add_draw(struct cairn_engine *e, struct request *r, const struct cairn_step_item *item,
		     int32_t offset, const int32_t *drafts, int32_t num, struct engine_flight *f,
		     struct cairn_worker_part *part)
{
	struct cairn_worker_treat *t = &e->treats[f->num_draws];

	part->draw = &r->req.sampling;
	part->seed = cairn_answer_seed(r->req.sampling.seed, item->index);
	part->offset = (uint64_t)offset;
	part->treat = num ? engine_treat_draft(e, r, item->index, offset, drafts, num, t) :
		      engine_treat(e, r, item->index, offset, t);
	f->draws[f->num_draws++] = (struct draw){
		.handle = item->request, .index = item->index, .place = -1,
		.slot = num ? t->slot : -1, .number = offset, .masked = t->masked,
	};
}

static int add_item(struct cairn_engine *e, const struct cairn_step_plan *p, int32_t i,
		    struct engine_flight *f)
{
	const struct cairn_step_item *item = &p->items[i];
	struct request *r = engine_find(e, item->request);
	struct cairn_worker_part part = {
		.ids = p->ids + item->ids_at, .follows = item->follows,
		.num_rows = item->num_rows - item->num_drafts,
		.position = item->first, .decodes = i < p->num_decodes,
	};
	int32_t end = item->first + part.num_rows, of_prompt;

	if (!r)
		return cairn_error(EIO, "engine: a plan has rows of a request that has finished");
	part.adapter = r->req.adapter;
	of_prompt = r->req.num_prompt < end ? r->req.num_prompt - item->first : part.num_rows;
	if (of_prompt > 0)
		e->stats.prompt_tokens += of_prompt;
	part.pages = cairn_kv_pool_pages(cairn_scheduler_pool(e->scheduler), item->kv, &part.num_pages);
	score(r, item->first, end, f, &part);
	if (item->num_drafts) {
		engine_spec_add(e, r, p, item, f, &part);
		return 0;
	}
	if (item->draw >= 0)
		engine_add_draw(e, r, item, end - r->req.num_prompt + r->req.num_given, NULL, 0, f, &part);
	cairn_worker_add(e->worker, &part);
	return 0;
}

/* Returns how many prompt tokens a cache had, if its rows begin at `first`; pulled ones are not counted. */
static int32_t cached(const struct request *r, int32_t first)
{
	return first > r->imported ? first - r->imported : 0;
}

static int launch(struct cairn_engine *e, const struct cairn_step_plan *p)
{
	struct engine_flight *f = flight_behind(e, cairn_worker_in_flight(e->worker));
	int ret;

	if (p->num_draws > e->num_count_slots)
		return cairn_error(EIO, "engine: %d slots of token counters are left for %d draws",
				   e->num_count_slots, p->num_draws);
	f->num_draws = f->num_scored = 0;
	cairn_worker_begin(e->worker);
	for (int32_t i = 0; i < p->num_items; i++)
		CAIRN_TRY(add_item(e, p, i, f));
	e->stats.steps++;
	if (cairn_tiers_by_layer(e->tiers))
		cairn_worker_on_layer(e->worker, cairn_tiers_layer, e->tiers);
	engine_spec_launched(e, f, p);
	ret = cairn_worker_launch(e->worker);
	if (ret && cairn_worker_restores(e->worker) && cairn_worker_lost(e->worker))
		ret = engine_remote_restore(e, 1);
	CAIRN_TRY(ret);
	/* Called only after the rows are built, because a callback may cancel the request. */
	for (int32_t i = 0; i < p->num_items; i++) {
		struct request *r = engine_find(e, p->items[i].request);

		if (!r || r->started)
			continue;
		r->started = 1;
		if (r->req.on_started && !r->cancelled)
			r->req.on_started(r->req.ctx, cached(r, p->items[i].first));
	}
	return 0;
}

/* Tells the scheduler which requests' pages have arrived from the disk. */
static int take_fetched(struct cairn_engine *e)
{
	uint64_t request;
	int ret;

	while (cairn_tiers_fetched(e->tiers, &request)) {
		ret = cairn_scheduler_fetched(e->scheduler, request);
		if (ret && ret != -ENOENT)	/* -ENOENT: cancelled meanwhile */
			return ret;
	}
	return 0;
}

/* Makes the draw of the pass just launched, whose masks follow from the tokens of all passes before it. */
static int draw_masked(struct cairn_engine *e)
{
	while (cairn_worker_in_flight(e->worker) > 1)
		CAIRN_TRY(collect(e));
	return engine_mask_draw(e, &e->flights[e->first_flight]);
}

static int tell_moves(const struct cairn_engine *e, const struct cairn_step_plan *p)
{
	const struct cairn_engine_tap *tap = e->opt.tap;

	if (!tap || !p->num_moves)
		return 0;
	tap->moves(tap->worker.ctx, p->moves, p->num_moves_before, p->num_moves);
	return p->num_items ? 0 : tap->worker.launch(tap->worker.ctx);
}

/* Launches a plan. Sets *launched unless an attention worker is lost, and the plan taken back. */
static int carry_out(struct cairn_engine *e, const struct cairn_step_plan *p, int *launched)
{
	int in_flight = cairn_worker_in_flight(e->worker), ret = 0;

	engine_pull_revoked(e);
	CAIRN_TRY(tell_moves(e, p));
	CAIRN_TRY(e->opt.attention || e->opt.stripes ? engine_remote_copies(e, p) :
		  cairn_tiers_before(e->tiers, p));
	if (p->num_items)
		ret = launch(e, p);
	if (ret && cairn_worker_lost(e->worker) && !cairn_worker_restores(e->worker))
		return engine_remote_recover(e, flight_behind(e, in_flight));
	*launched = !ret && p->num_items;
	if (!ret && !e->opt.attention && !e->opt.stripes)
		ret = cairn_tiers_after(e->tiers, p);
	if (!ret)
		ret = engine_pull_carried(e, *launched);
	return ret;
}

/*
 * A step of one lane: ends and collects its pass, while the other lanes take their turns, then forms and
 * launches its next one.
 */
static int step_lane(struct cairn_engine *e, int *busy)
{
	const struct cairn_step_plan *p;
	int64_t start = cairn_clock_ns(), planned;
	int launched = 0;

	e->worker = e->lanes[e->lane];
	/* A pass that has ended has drawn: it is collected before a loss is looked at. */
	if (cairn_worker_in_flight(e->worker))
		CAIRN_TRY(engine_lanes_finish(e));
	if (cairn_worker_in_flight(e->worker))
		CAIRN_TRY(collect(e));
	if (cairn_worker_lost(e->worker))
		CAIRN_TRY(engine_remote_recover(e, NULL));
	CAIRN_TRY(report_ends(e));
	engine_lanes_choose(e);
	planned = cairn_clock_ns();
	CAIRN_TRY(cairn_scheduler_plan_lane(e->scheduler, e->lane, start, &p));
	e->stats.plan_ns += cairn_clock_ns() - planned;
	CAIRN_TRY(carry_out(e, p, &launched));
	CAIRN_TRY(report_ends(e));
	e->lane = (e->lane + 1) % e->num_lanes;
	*busy = e->num_requests > 0 || engine_lanes_in_flight(e) > 0;
	return 0;
}

static int step(struct cairn_engine *e, int *busy)
{
	const struct cairn_step_plan *p;
	int64_t start = cairn_clock_ns(), planned;
	int left, launched = 0;

	if (cairn_worker_lost(e->worker))
		CAIRN_TRY(engine_remote_recover(e, NULL));
	CAIRN_TRY(take_fetched(e));
	CAIRN_TRY(engine_pull_take(e));
	CAIRN_TRY(report_ends(e));
	CAIRN_TRY(cairn_scheduler_plan(e->scheduler, start, &p));
	planned = cairn_clock_ns();
	e->stats.plan_ns += planned - start;
	CAIRN_TRY(carry_out(e, p, &launched));
	e->stats.launch_ns += cairn_clock_ns() - planned;
	CAIRN_TRY(report_ends(e));
	/* Leave one pass in flight, which the next plan follows. If this plan is empty, nothing follows:
	 * collect the pass. */
	left = launched && !e->opt.in_turn && !p->in_turn;
	if (cairn_worker_in_flight(e->worker) <= left && !p->num_items && e->num_requests) {
		CAIRN_TRY(cairn_tiers_wait(e->tiers));	/* all requests wait for the disk, or to be pulled */
		engine_pull_wait(e);
	}
	if (cairn_worker_masks(e->worker))
		CAIRN_TRY(draw_masked(e));
	while (cairn_worker_in_flight(e->worker) > left)
		CAIRN_TRY(collect(e));
	*busy = e->num_requests > 0 || cairn_worker_in_flight(e->worker) > 0;
	return *busy ? 0 : cairn_worker_idle(e->worker);
}

int cairn_engine_step(struct cairn_engine *e, int *busy)
{
	int64_t start = cairn_clock_ns();
	int ret;

	if (e->failed)
		return cairn_error(EINVAL, "engine: an earlier step has failed");
	ret = e->num_lanes > 1 ? step_lane(e, busy) : step(e, busy);
	e->failed = ret != 0;
	e->stats.last_step_ns = cairn_clock_ns();
	e->stats.host_ns += e->stats.last_step_ns - start;
	return ret;
}
