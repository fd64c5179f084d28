// SPDX-License-Identifier: Apache-2.0
/*
 * kv_model_scheduler - checks the scheduler with an engine of plain arrays
 *
 * Prompts use only two tokens, so that they share many prefixes. Conversations continue; answers end
 * normally, by length, by cancel and by deadline. Every plan is executed and checked (kv_model_engine.h). At
 * the end all requests run until they finish, and nothing may remain allocated. Operation 0 of a list chooses
 * the scheduler's options.
 */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/kv/kv_model.h"
#include "serving/scheduler/kv_model_engine.h"

enum {
	SUBMIT,
	CONTINUE,
	STEP,
	STEPS,
	REPORT,
	SUBMIT_MORE,
	PLAN,
	CANCEL,
	FORK_BEAM,
	STOP_ONE,
	HOLD,
	FETCHED,
	TIME,
	SPECULATE,
	RESET,
	IMPORT,
	NUM_SCHED_OPS
};

static const char *const sched_ops[NUM_SCHED_OPS] = {
	"submit",
	"continue the last conversation",
	"report and plan",
	"report and plan b % 8 times",
	"report",
	"submit",
	"plan",
	"cancel",
	"fork a beam",
	"stop an answer",
	"hold or resume a beam",
	"fetched",
	"time passes",
	"let an answer speculate or not",
	"the device loses its memory",
	"reserve or import",
};

static int submit(struct model_engine *e, const struct kv_op *op, int more)
{
	struct cairn_scheduler_stats st;
	struct cairn_scheduler_request req;
	struct model_request *r = NULL;
	int ret, full;

	for (int i = 0; i < MODEL_REQUESTS && !r; i++)
		r = e->requests[i].there ? NULL : &e->requests[i];
	if (!r || (more && !e->num_said))
		return 0;
	memset(r, 0, sizeof(*r));
	r->order = e->next_order++;
	r->id = r->order * 7919 + op->c % 1024;
	r->salt = op->a % 2;
	r->num_prompt = 1 + (int32_t)(op->b % 12);
	for (int32_t i = 0; i < r->num_prompt; i++)
		r->prompt[i] = (int32_t)(op->c >> i % 5 & 1);
	if (more) {
		r->salt = e->said_salt;
		if (e->num_said + r->num_prompt > MODEL_LEN - 8)
			return 0;
		memmove(r->prompt + e->num_said, r->prompt, (size_t)r->num_prompt * sizeof(*r->prompt));
		memcpy(r->prompt, e->said, (size_t)e->num_said * sizeof(*r->prompt));
		r->num_prompt += e->num_said;
	}
	r->max_new = 1 + (int32_t)(op->b >> 8) % 8;
	r->num_answers = 1;
	r->keep = (op->a >> 4) % 2;
	r->lockstep = (op->a >> 8) % 4 == 0;
	if (!r->lockstep && (op->a >> 12) % 4 == 0)
		r->num_answers = 1 + (int32_t)(op->a >> 16) % MODEL_SEQS;
	r->is_forked = r->num_answers > 1;
	r->speculates = !r->lockstep && (op->a >> 28) % 4 > 0;
	r->pulled = r->was_pulled = (op->b >> 16) % 4 == 0;
	r->movable = (op->b >> 20) % 2;
	if ((op->a >> 20) % 4 == 0)
		r->deadline_ns = e->now + 1 + (op->a >> 24) % 16;
	req = (struct cairn_scheduler_request){
		.id = r->id, .prompt = r->prompt, .num_prompt = r->num_prompt, .max_new_tokens = r->max_new,
		.num_seqs = r->num_answers, .salt = { 0, r->salt }, .deadline_ns = r->deadline_ns,
		.keep = r->keep, .lockstep = r->lockstep, .speculates = r->speculates,
		.pulled = r->pulled, .movable = r->movable,
	};
	cairn_scheduler_stats(e->s, &st);
	full = st.num_queued >= e->opt.max_queued ||
		st.queued_tokens + r->num_prompt > e->opt.max_queued_tokens;
	ret = cairn_scheduler_submit(e->s, &req);
	if (r->num_prompt + r->max_new > e->opt.max_context ||
	    r->num_prompt + r->max_new > e->opt.num_pages * e->opt.page_size)
		return ret == -EINVAL ? 0 : model_wrong(e, "submit of too much", ret, -EINVAL);
	if (ret != (full ? -EAGAIN : 0))
		return model_wrong(e, "submit", ret, full ? -EAGAIN : 0);
	r->there = !ret;
	for (int32_t k = 0; k < r->num_answers; k++)
		r->answers[k].live = 1;
	return 0;
}

static int step(struct model_engine *e, int32_t *rows)
{
	if (model_is_busy(e) && model_report(e))
		return -1;
	return model_plan(e, rows) == -1 ? -1 : 0;
}

static int fetched(struct model_engine *e)
{
	for (int i = 0; i < MODEL_REQUESTS; i++) {
		struct model_request *r = &e->requests[i];
		int ret = r->there ? cairn_scheduler_fetched(e->s, r->id) : 0;

		if (ret && ret != -ENOENT)
			return model_wrong(e, "fetched", ret, 0);
		if (r->there && r->pulled)
			cairn_scheduler_unreserve(e->s, r->id);
		r->pulled = r->reserved = r->fetching = 0;
	}
	return 0;
}

/* Reserves pages for tokens [first, end) of a waiting prompt. */
static int reserve(struct model_engine *e, struct model_request *r, int32_t first, int32_t end)
{
	const int32_t ps = e->opt.page_size, *pages;
	int ret = cairn_scheduler_reserve(e->s, r->id, first, end, &pages);

	if (ret == -EINVAL && (!e->opt.grain || e->opt.repeat_chunk))
		ret = -ENOSPC;
	if (ret && ret != -ENOSPC)
		return model_wrong(e, "reserve", ret, 0);
	r->pulled = !ret;
	if (ret)
		return 0;
	r->first = first;
	r->end = end;
	r->reserved = (end - first + ps - 1) / ps;
	for (int32_t k = 0; k < r->reserved; k++)
		r->pages[k] = pages[k];
	r->from = e->plans + 1;
	return 0;
}

/* Reserves pages for a waiting prompt, if it has none, and fills and imports them as soon as it may. */
static int import(struct model_engine *e, struct model_request *r, uint32_t from, uint32_t num)
{
	const int32_t ps = e->opt.page_size, most = r->num_prompt - 1;
	const int32_t first = most ? (int32_t)(from % (uint32_t)((most + ps - 1) / ps)) * ps : 0;
	const int32_t end = most ? first + 1 + (int32_t)(num % (uint32_t)(most - first)) : 0;
	struct cairn_cache_salt salt = { 0, r->salt };
	int32_t rows, here, cached = cairn_scheduler_cached(e->s, salt, r->prompt, r->num_prompt, &here);
	const uint64_t id = r->id;
	int ret;

	if (!r->pulled || !most)
		return 0;
	if (cached % ps || cached >= r->num_prompt || here % ps || here > cached)
		return model_wrong(e, "cached", cached, r->num_prompt);
	if (!r->reserved && (reserve(e, r, first, end) || ((from >> 8) % 2 && step(e, &rows))))
		return -1;
	/* it may be gone; and plans before the reservation may still use the pages */
	if (!r->there || r->id != id || !r->reserved || e->plans < r->from)
		return 0;
	cairn_scheduler_cached(e->s, salt, r->prompt, r->num_prompt, &here);
	model_fill(e, r);
	ret = cairn_scheduler_import(e->s, r->id);
	if ((ret == -ENOENT) != (r->first > here) || (ret < 0 && ret != -ENOENT))
		return model_wrong(e, "import", ret, here);
	r->pulled = r->reserved = 0;
	return 0;
}

/* Beam search: forks another answer from one and replaces its last token. */
static int fork_beam(struct model_engine *e, struct model_request *r, int32_t index)
{
	struct model_answer *a = &r->answers[index], *c;
	int32_t child;
	int ret;

	if (!r->lockstep || !a->live || a->in_flight || r->num_answers == 3 * MODEL_SEQS)
		return 0;
	ret = cairn_scheduler_fork(e->s, r->id, index, &child);
	if (ret == -EAGAIN)
		return 0;
	if (ret || child != r->num_answers)
		return model_wrong(e, "fork", ret ? ret : child, r->num_answers);
	c = &r->answers[r->num_answers++];
	*c = *a;
	c->held = 0;
	if (!a->told)
		return 0;
	c->gen[c->told - 1] ^= 1;
	ret = cairn_scheduler_set_last(e->s, r->id, child, c->gen[c->told - 1]);
	return ret ? model_wrong(e, "set_last", ret, 0) : 0;
}

static int hold(struct model_engine *e, struct model_request *r, int32_t index, int held)
{
	struct model_answer *a = &r->answers[index];
	int ret;

	if (!r->lockstep || !a->live || a->in_flight || !a->told)
		return 0;
	a->held = held;
	ret = cairn_scheduler_hold(e->s, r->id, index, held);
	return ret ? model_wrong(e, "hold", ret, 0) : 0;
}

/* Returns whether r may still be one unforked sequence for all its answers. */
static int may_be_unforked(const struct model_request *r)
{
	for (int32_t k = 0; k < r->num_answers; k++) {
		if (r->lockstep || r->num_answers == 1 || r->answers[k].drawn)
			return 0;
	}
	return 1;
}

static int cancel(struct model_engine *e, struct model_request *r, int32_t index)
{
	uint64_t id = r->id;
	int ret = index < 0 ? cairn_scheduler_cancel(e->s, id) : cairn_scheduler_stop(e->s, id, index);

	if (index >= 0 && ret == (index ? -ENOENT : -EAGAIN) && may_be_unforked(r))
		return 0;
	if (ret)
		return model_wrong(e, "cancel", ret, 0);
	if (model_events(e))
		return -1;
	r = model_find(e, id);
	if (r && (index < 0 || r->answers[index].live))
		return model_wrong(e, "cancelled, but still live", (int64_t)id, index);
	return 0;
}

static int speculate(struct model_engine *e, struct model_request *r, int32_t index, int on)
{
	int ret = cairn_scheduler_speculate(e->s, r->id, index, on);

	if (ret && (ret != -ENOENT || !may_be_unforked(r)))
		return model_wrong(e, "speculate", ret, 0);
	r->answers[index].eager = !ret && !on;
	return 0;
}

/* Takes back the draws of the last plan. */
static void undo_last(struct model_engine *e)
{
	const struct model_flight *f = &e->flights[--e->num_flights];

	for (int32_t i = f->num_draws - 1; i >= 0; i--) {
		struct model_request *r = model_find(e, f->draws[i].id);
		struct model_answer *a = r ? &r->answers[f->draws[i].index] : NULL;

		if (!a || !a->live)
			continue;
		a->drawn -= f->draws[i].counts;
		a->in_flight -= !f->draws[i].follows;
		a->drafts = 0;
	}
}

/* The device loses all keys and values, with or without the last plans. */
static int reset(struct model_engine *e, int undo)
{
	const int may = !e->opt.host_pages && undo <= e->num_flights;
	int ret = cairn_scheduler_reset(e->s, undo);

	if (ret != (may ? 0 : -EINVAL))
		return model_wrong(e, "reset", ret, may ? 0 : -EINVAL);
	if (!may)
		return 0;
	memset(e->device, 0, sizeof(e->device));
	while (undo--)
		undo_last(e);
	if (model_revoked(e))
		return -1;
	for (int i = 0; i < MODEL_REQUESTS; i++)
		if (e->requests[i].there && e->requests[i].reserved)
			return model_wrong(e, "reserved after a reset", i, 0);
	return 0;
}

static int sched_op(struct model_engine *e, const struct kv_op *op)
{
	struct model_request *r = &e->requests[op->a % MODEL_REQUESTS];
	int32_t rows, index = (int32_t)(op->b % (3 * MODEL_SEQS));

	switch (op->what) {
	case SUBMIT:
	case SUBMIT_MORE:
		return submit(e, op, 0);
	case CONTINUE:
		return submit(e, op, 1);
	case STEP:
		return step(e, &rows);
	case STEPS:
		for (uint32_t k = 0; k < op->b % 8; k++) {
			if (step(e, &rows))
				return -1;
		}
		return 0;
	case REPORT:
		return model_report(e);
	case PLAN:
		return model_plan(e, &rows) == -1 ? -1 : 0;
	case CANCEL:
		return r->there ? cancel(e, r, -1) : 0;
	case FORK_BEAM:
		return r->there ? fork_beam(e, r, index % r->num_answers) : 0;
	case STOP_ONE:
		return r->there && r->answers[index].live ? cancel(e, r, index) : 0;
	case HOLD:
		return r->there ? hold(e, r, index, op->c % 2) : 0;
	case FETCHED:
		return fetched(e);
	case IMPORT:
		return r->there ? import(e, r, op->b, op->c) : 0;
	case RESET:
		return reset(e, (int)(op->c % (e->opt.lanes > 1 ? 4 : 2)));
	case SPECULATE:
		return r->there && r->answers[index].live ? speculate(e, r, index, op->c % 2) : 0;
	default:
		e->now += op->b % 8;
		return 0;
	}
}

/* Runs until no request runs or waits. The clock stands still, so that no deadline passes. */
static int run_dry(struct model_engine *e)
{
	struct cairn_scheduler_stats st;
	int32_t rows;

	for (int i = 0; i < MODEL_REQUESTS; i++) {
		struct model_request *r = &e->requests[i];

		for (int32_t k = 0; r->there && k < r->num_answers; k++) {
			if (r->answers[k].held && hold(e, r, k, 0))
				return -1;
		}
	}
	for (int k = 0; k < 9000; k++) {
		if (step(e, &rows) || fetched(e))
			return -1;
		if (!rows && e->num_flights && model_report(e))
			return -1;
		cairn_scheduler_stats(e->s, &st);
		if (!st.num_running && !st.num_waiting && !e->num_flights)
			break;
	}
	for (int i = 0; i <= e->opt.lanes; i++)	/* executes moves left by the last sequence to end */
		if (step(e, &rows))
			return -1;
	cairn_scheduler_stats(e->s, &st);
	if (st.num_running || st.num_waiting)
		return model_wrong(e, "stuck: running or waiting", st.num_running, st.num_waiting);
	if (st.device.num_seqs || st.host.num_seqs || st.disk.num_seqs)
		return model_wrong(e, "left behind", st.device.num_seqs, st.host.num_seqs);
	for (int i = 0; i < MODEL_REQUESTS; i++) {
		if (e->requests[i].there)
			return model_wrong(e, "a request has never ended", i, 0);
	}
	return cairn_scheduler_verify(e->s) ? model_wrong(e, "verify", -1, 0) : 0;
}

static int sched_run(const struct kv_op *ops, int n, char *why, size_t why_len)
{
	static struct model_engine engine;
	struct model_engine *e = &engine;
	uint32_t a = n ? ops[0].a : 0, b = n ? ops[0].b : 0;
	int i;

	memset(e, 0, sizeof(*e));
	e->why = why;
	e->why_len = why_len;
	e->opt = (struct cairn_scheduler_options){
		.dense_rows = MODEL_ROWS - a % 3, .max_seqs = MODEL_SEQS, .max_context = 36,
		.page_size = 1 + (int32_t)(a >> 2) % 3, .num_pages = 14 + (int32_t)(a >> 4) % 8,
		.host_pages = (a >> 8) % 4 ? 10 + (int32_t)(a >> 10) % 16 : 0, .ahead = (a >> 14) % 4 != 0,
		.max_queued = 8, .max_queued_tokens = 60, .max_passes = (int32_t)(a >> 16) % 4, .window = 5,
		.expected_new = 1 + (int32_t)(a >> 18) % 6, .recompute_ns = 10, .swap_ns = (a >> 21) % 8,
	};
	e->opt.max_chunk = (a >> 28) % 4 ? 0 : 1 + (int32_t)(a >> 30);
	if ((a >> 22) % 2)
		e->opt.repeat_chunk = e->opt.page_size *
			(1 + (int32_t)(a >> 23) % (e->opt.dense_rows / e->opt.page_size));
	if (e->opt.repeat_chunk)
		e->opt.max_chunk = 0;
	else
		e->opt.separate = (int)(a >> 23) % 4 == 0;
	if (n && !e->opt.host_pages && ops[0].c % 4 == 0)
		e->opt.lanes = 2 + (int32_t)(ops[0].c >> 2) % 2;
	if (b % 4 && e->opt.lanes < 2) {
		e->opt.max_drafts = 1 + (int32_t)(b >> 2) % MODEL_DRAFTS;
		e->opt.draft_rows = e->opt.dense_rows - e->opt.max_seqs - (int32_t)(b >> 12) % 2;
		e->right = (int)(b >> 5) % 9;
		e->trees = !e->opt.repeat_chunk && (b >> 9) % 2;
		e->opt.draft = model_draft;
		e->opt.draft_ctx = e;
	}
	e->opt.disk_pages = e->opt.host_pages && (a >> 24) % 2 ? 30 : 0;
	e->opt.grain = (a >> 25) % 8 == 0 ? 0 : (a >> 25) % 2 ? 1 : e->opt.page_size;
	e->opt.max_reserved = 1 + (int32_t)(b >> 14) % 3;
	e->opt.reserved_pages = (b >> 16) % 4 ? e->opt.num_pages : 4;
	if (cairn_scheduler_create(&e->s, &e->opt))
		return 0;
	for (i = 0; i < n; i++) {
		if (sched_op(e, &ops[i]) || model_events(e))
			break;
		if (cairn_scheduler_verify(e->s)) {
			model_wrong(e, "verify", -1, 0);
			break;
		}
	}
	if (i == n && n && run_dry(e))
		i = n - 1;
	cairn_scheduler_destroy(e->s);
	return i;
}

const struct kv_model kv_model_scheduler = { "scheduler", sched_ops, NUM_SCHED_OPS, sched_run };
