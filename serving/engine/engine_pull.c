// SPDX-License-Identifier: Apache-2.0
/*
 * engine_pull - long prompts are computed by prefill workers, which fill pages of the KV cache
 *
 *   submit --> a worker is free, enough of the prompt is not cached, and there are pages for it: they are
 *              reserved, and the request waits in the queue
 *              the worker computes the prompt without its last token, to the reserved pages (pull.h)
 *   step   --> all have come: the reserved pages enter the device's prefix tree
 *              the job has failed, or running sequences need the pages: they are free again
 *          --> the request is admitted like any other, and computes what the tree does not have
 *
 * So the last token of the prompt is always computed here, and gives the first of the answer. A request whose
 * pull fails differs from one that was never pulled in its waiting time alone.
 *
 * Passes in flight, and moves that the next plan carries out, may still use a page when it is reserved. So
 * the pages may be written only when the pass of the next plan is collected.
 */
#include <stdlib.h>

#include "serving/engine/engine_impl.h"
#include "serving/remote/pull/run.h"

#define MOST_PULLS	(CAIRN_LEAD_PREFILL * CAIRN_PULL_JOBS)
#define NEXT_PASS	(-1)

struct engine_pull {
	struct cairn_pull *pull;
	int32_t min_tokens;		/* not cached; fewer are computed here */
	/* Pulls whose pages are in use until pass number `pass`, or that of the next plan, is collected. */
	struct { uint64_t id; int64_t pass; } held[MOST_PULLS];
	int32_t num_held;
	int64_t launched, collected;	/* passes */
	int64_t refused;		/* pulls that ended for want of pages, or of the tokens before them */
};

int engine_pull_check(const struct cairn_engine_options *o)
{
	const char *other = o->attention ? "attention_workers" : o->tap ? "tap" :
			    o->repeatable ? "repeatable" :
			    o->speculation.method == CAIRN_SPECULATE_EAGLE3 ? "eagle3" : NULL;

	if (other)
		return cairn_error(EINVAL, "engine: %s: does not go with prefill_workers", other);
	return !o->cache_grain ? cairn_error(EINVAL, "engine: cache_grain: prefill_workers need a prefix "
					     "tree, by which their keys and values enter") : 0;
}

void engine_pull_options(const struct cairn_engine *e, struct cairn_scheduler_options *so)
{
	const struct cairn_engine_options *o = &e->opt;
	const int32_t prompts = 2 * ((o->max_context + o->page_size - 1) / o->page_size);

	if (!o->prefill)
		return;
	so->max_reserved = MOST_PULLS;
	so->reserved_pages = o->pulled_pages ? o->pulled_pages : prompts;
}

int engine_pull_create(struct cairn_engine *e, const struct cairn_model *model)
{
	const struct cairn_pull_options po = {
		.kv = cairn_worker_kv(e->worker), .max_rows = e->opt.max_rows,
		.max_context = e->opt.max_context,
	};

	if (!e->opt.prefill)
		return 0;
	e->pull = calloc(1, sizeof(*e->pull));
	if (!e->pull)
		return cairn_error(ENOMEM, "engine: no memory");
	e->pull->min_tokens = e->opt.prefill_min ? e->opt.prefill_min : e->opt.max_rows;
	return cairn_pull_create(&e->pull->pull, e->opt.prefill, model, &po);
}

void engine_pull_destroy(struct cairn_engine *e)
{
	if (e->pull)
		cairn_pull_destroy(e->pull->pull);
	free(e->pull);
	e->pull = NULL;
}

/*
 * A worker computes a prompt from its beginning, cached tokens included. That pays only if at most half of
 * the prompt is cached. Workers have no adapters.
 */
int engine_pull_wants(const struct cairn_engine *e, struct request *r, const struct cairn_request *request)
{
	const int32_t len = request->num_prompt - 1;
	int32_t cached;

	if (!e->pull || r->scored_prompt || r->req.adapter || len < e->pull->min_tokens)
		return 0;
	cached = cairn_scheduler_cached(e->scheduler, request->salt, request->prompt, request->num_prompt,
					&r->pulled_first);
	return len - cached >= e->pull->min_tokens && len - cached >= cached &&
	       cairn_pull_has_place(e->pull->pull);
}

void engine_pull_begin(struct cairn_engine *e, struct request *r, const struct cairn_request *request)
{
	struct engine_pull *p = e->pull;
	const int32_t len = request->num_prompt - 1, *pages;

	if (cairn_scheduler_reserve(e->scheduler, r->handle, r->pulled_first, len, &pages))
		return;
	if (cairn_pull_begin(p->pull, r->handle, request->prompt, len, r->pulled_first, pages) != 1) {
		cairn_scheduler_unreserve(e->scheduler, r->handle);
		return;
	}
	r->is_pulled = 1;
	p->held[p->num_held].id = r->handle;
	p->held[p->num_held++].pass = NEXT_PASS;
}

static void release(struct engine_pull *p, uint64_t id)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < p->num_held; i++)
		if (p->held[i].id != id)
			p->held[kept++] = p->held[i];
	p->num_held = kept;
}

void engine_pull_end(struct cairn_engine *e, struct request *r)
{
	if (!r->is_pulled)
		return;
	r->is_pulled = 0;
	release(e->pull, r->handle);
	cairn_pull_drop(e->pull->pull, r->handle);
	cairn_scheduler_unreserve(e->scheduler, r->handle);
}

/* Ends the pulls whose pages the plan that is carried out next gives to running sequences. */
void engine_pull_revoked(struct cairn_engine *e)
{
	uint64_t id;

	while (e->pull && cairn_scheduler_revoked(e->scheduler, &id)) {
		struct request *r = engine_find(e, id);

		if (r)
			engine_pull_end(e, r);
		e->pull->refused++;
	}
}

int engine_pull_take(struct cairn_engine *e)
{
	struct cairn_pulled d;

	while (e->pull && cairn_pull_ended(e->pull->pull, &d)) {
		struct request *r = engine_find(e, d.id);
		int ret = 0;

		if (d.failed)
			cairn_scheduler_unreserve(e->scheduler, d.id);
		else
			ret = cairn_scheduler_import(e->scheduler, d.id);
		e->pull->refused += ret == -ENOENT && r && !r->cancelled;
		if (ret < 0 && ret != -ENOENT)
			return ret;
		if (r && ret > 0)
			r->imported += ret;
		if (r)
			r->is_pulled = 0;
		release(e->pull, d.id);
	}
	return 0;
}

/* Allows writing to the pages that no pass after this one uses. */
static void allow(struct engine_pull *p, int64_t pass)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < p->num_held; i++) {
		if (p->held[i].pass != NEXT_PASS && p->held[i].pass <= pass)
			cairn_pull_allow(p->pull, p->held[i].id);
		else
			p->held[kept++] = p->held[i];
	}
	p->num_held = kept;
}

/*
 * Behind a pass, the stream still has the moves that follow its rows. The next pass comes after them; a plan
 * without rows has no pass, so they are waited for.
 */
int engine_pull_carried(struct cairn_engine *e, int has_rows)
{
	struct engine_pull *p = e->pull;
	int is_new = 0;

	if (!p)
		return 0;
	p->launched += has_rows;
	for (int32_t i = 0; i < p->num_held; i++) {
		if (p->held[i].pass != NEXT_PASS)
			continue;
		p->held[i].pass = p->launched;
		is_new = 1;
	}
	if (is_new && !has_rows)
		CAIRN_TRY(CAIRN_TABLE(e->impl, stream_sync, cairn_worker_stream(e->worker)));
	allow(p, p->collected);
	return 0;
}

void engine_pull_collected(struct cairn_engine *e)
{
	if (e->pull)
		allow(e->pull, ++e->pull->collected);
}

void engine_pull_wait(struct cairn_engine *e)
{
	if (e->pull)
		cairn_pull_wait(e->pull->pull, 1);
}

void engine_pull_stats(const struct cairn_engine *e, struct cairn_engine_stats *stats)
{
	if (!e->pull)
		return;
	cairn_pull_stats(e->pull->pull, &stats->pull);
	stats->pulls_recomputed = stats->pull.failed + e->pull->refused;
}
