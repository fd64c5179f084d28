// SPDX-License-Identifier: Apache-2.0
/*
 * engine_pull - long prompts are computed by prefill workers, and their keys and values imported
 *
 *   submit --> a worker is free, and enough of the prompt is not cached: the request waits in the queue
 *              the worker computes whole pages of it, which come to pulled pages in host memory (pull.h)
 *   step   --> all have come: import, the next plans move them into the device's prefix tree
 *              the job has failed: nothing is imported
 *          --> the request is admitted like any other, and computes what the tree does not have
 *
 * While others decode, a plan moves at most import_bytes, so that their next tokens do not wait for a
 * whole prompt; its request is admitted when all have been planned.
 *
 * So the last tokens of the prompt, and the first of the answer, are always computed here; a request whose
 * pull fails differs from one that was never pulled in its waiting time alone.
 *
 * Pulled pages are released when the pass whose plan has moved the last of them is collected.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "serving/engine/engine_impl.h"
#include "serving/remote/pull/run.h"

#define MOST_USES	(CAIRN_LEAD_PREFILL * CAIRN_PULL_JOBS)
#define NOT_MOVED	(-1)

#define IMPORT_BYTES	((int64_t)64 << 20)	/* 1.3 ms over a PCIe 5 link of 16 lanes */

/* A pulled prompt; of its tokens, those before `done` are imported. */
struct import {
	struct cairn_pulled d;
	int32_t done;
};

struct engine_pull {
	struct cairn_pull *pull;
	int32_t min_tokens;		/* not cached; fewer are computed here */
	/* Pages that a plan moves: of job `id`, by pass number `pass`, or by the next plan. */
	struct { uint64_t id; int64_t pass; } uses[MOST_USES];
	int32_t num_uses;
	struct import imports[MOST_USES];	/* not ended yet, oldest first */
	int32_t num_imports;
	size_t page_bytes;
	int64_t launched, collected;	/* passes */
	int64_t refused;		/* imports for which there was no room */
	int64_t parts;			/* of prompts, that were imported at a time */
};

int engine_pull_check(const struct cairn_engine_options *o)
{
	const char *other = o->attention ? "attention_workers" : o->tap ? "tap" :
			    o->repeatable ? "repeatable" :
			    o->speculation.method == CAIRN_SPECULATE_EAGLE3 ? "eagle3" : NULL;

	if (other)
		return cairn_error(EINVAL, "engine: %s: does not go with prefill_workers", other);
	if (o->import_bytes < 0)
		return cairn_error(EINVAL, "engine: import_bytes: %lld", (long long)o->import_bytes);
	return !o->cache_grain ? cairn_error(EINVAL, "engine: cache_grain: prefill_workers need a prefix "
					     "tree, by which their keys and values enter") : 0;
}

int32_t engine_pull_pages(const struct cairn_engine_options *o)
{
	const int32_t prompts = 2 * ((o->max_context + o->page_size - 1) / o->page_size);

	if (!o->prefill)
		return 0;
	return o->pulled_pages ? o->pulled_pages : prompts < o->num_pages ? prompts : o->num_pages;
}

int engine_pull_create(struct cairn_engine *e, const struct cairn_model *model)
{
	struct cairn_pull_options po = {
		.page_size = e->opt.page_size, .max_rows = e->opt.max_rows,
		.max_context = e->opt.max_context, .num_pages = engine_pull_pages(&e->opt),
	};

	if (!e->opt.prefill)
		return 0;
	e->pull = calloc(1, sizeof(*e->pull));
	if (!e->pull)
		return cairn_error(ENOMEM, "engine: no memory");
	e->pull->min_tokens = e->opt.prefill_min ? e->opt.prefill_min : e->opt.max_rows;
	po.pages = cairn_tiers_pulled(e->tiers, &po.page_bytes);
	e->pull->page_bytes = po.page_bytes;
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
 * the prompt is cached.
 */
int engine_pull_offer(struct cairn_engine *e, struct request *r, const struct cairn_request *request)
{
	const int32_t ps = e->opt.page_size, len = (request->num_prompt - 1) / ps * ps;
	int32_t first, cached;

	if (!e->pull || r->scored_prompt || len < e->pull->min_tokens)
		return 0;
	cached = cairn_scheduler_cached(e->scheduler, request->salt, request->prompt, request->num_prompt,
					&first);
	if (len - cached < e->pull->min_tokens || len - cached < cached)
		return 0;
	r->is_pulled = cairn_pull_begin(e->pull->pull, r->handle, request->prompt, len, first);
	return r->is_pulled;
}

void engine_pull_end(struct cairn_engine *e, struct request *r)
{
	if (r->is_pulled)
		cairn_pull_drop(e->pull->pull, r->handle);
	r->is_pulled = 0;
}

/* Returns how many tokens the next plan may move: all, if nobody waits for it. */
static int32_t tokens_to_move(const struct cairn_engine *e)
{
	const int64_t bytes = e->opt.import_bytes ? e->opt.import_bytes : IMPORT_BYTES;
	const int64_t pages = bytes / (int64_t)e->pull->page_bytes;
	struct cairn_scheduler_stats stats;

	cairn_scheduler_stats(e->scheduler, &stats);
	if (!stats.num_running || pages > INT32_MAX / e->opt.page_size)
		return INT32_MAX;
	return (pages ? (int32_t)pages : 1) * e->opt.page_size;
}

/* The pages are released with those that the next plan moves: plans before may still be reading some. */
static void release_later(struct engine_pull *p, uint64_t id)
{
	p->uses[p->num_uses].id = id;
	p->uses[p->num_uses++].pass = NOT_MOVED;
}

/*
 * Imports up to `most` tokens of a prompt. Returns 1 if nothing more is to be imported, because all is or
 * because there is no room, and 0 if something is.
 */
static int import(struct cairn_engine *e, struct request *r, struct import *m, int32_t most)
{
	const struct cairn_pulled *d = &m->d;
	const int32_t left = d->num_tokens - m->done, end = m->done + (left < most ? left : most);
	struct engine_pull *p = e->pull;
	int ret;

	ret = cairn_scheduler_import(e->scheduler, d->id, m->done, end,
				     d->page + (m->done - d->first) / e->opt.page_size);
	if (ret < 0 && m->done == d->first)
		cairn_pull_release(p->pull, d->id);
	else if (ret < 0 || end == d->num_tokens)
		release_later(p, d->id);
	if (ret < 0) {
		p->refused += ret == -ENOSPC || ret == -ENOENT;
		return ret == -ENOSPC || ret == -ENOENT ? 1 : ret;
	}
	if (r)
		r->imported += ret;
	p->parts++;
	m->done = end;
	return end == d->num_tokens;
}

/* The request may be admitted. */
static int end_pull(struct cairn_engine *e, uint64_t id)
{
	struct request *r = engine_find(e, id);
	int ret;

	if (r)
		r->is_pulled = 0;
	ret = cairn_scheduler_fetched(e->scheduler, id);
	return ret == -ENOENT ? 0 : ret;	/* -ENOENT: cancelled meanwhile */
}

/* Imports from the oldest prompt. Returns 1 if that was the last of it. */
static int import_oldest(struct cairn_engine *e, int32_t most)
{
	struct engine_pull *p = e->pull;
	const uint64_t id = p->imports[0].d.id;
	int ret = import(e, engine_find(e, id), &p->imports[0], most);

	if (ret <= 0)
		return ret;
	p->num_imports--;
	memmove(p->imports, p->imports + 1, (size_t)p->num_imports * sizeof(p->imports[0]));
	CAIRN_TRY(end_pull(e, id));
	return 1;
}

int engine_pull_take(struct cairn_engine *e)
{
	struct engine_pull *p = e->pull;
	struct cairn_pulled d;
	int32_t most;
	int ret = 1;

	if (!p)
		return 0;
	while (cairn_pull_ended(p->pull, &d)) {
		if (d.failed)
			CAIRN_TRY(end_pull(e, d.id));
		else
			p->imports[p->num_imports++] = (struct import){ .d = d, .done = d.first };
	}
	most = p->num_imports ? tokens_to_move(e) : 0;
	while (p->num_imports && ret == 1 && most > 0) {
		const int32_t before = p->imports[0].done, end = p->imports[0].d.num_tokens;

		ret = import_oldest(e, most);
		if (most != INT32_MAX)
			most -= end - before;	/* below 0 if it is not the last of it */
	}
	return ret < 0 ? ret : 0;
}

/* Releases the pages that passes up to this one have moved. */
static void release(struct engine_pull *p, int64_t pass)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < p->num_uses; i++) {
		if (p->uses[i].pass != NOT_MOVED && p->uses[i].pass <= pass)
			cairn_pull_release(p->pull, p->uses[i].id);
		else
			p->uses[kept++] = p->uses[i];
	}
	p->num_uses = kept;
}

/* The moves of a plan without rows are done when it has been carried out. */
void engine_pull_carried(struct cairn_engine *e, int has_rows)
{
	struct engine_pull *p = e->pull;

	if (!p)
		return;
	p->launched += has_rows;
	for (int32_t i = 0; i < p->num_uses; i++)
		if (p->uses[i].pass == NOT_MOVED)
			p->uses[i].pass = has_rows ? p->launched : p->collected;
	release(p, p->collected);
}

void engine_pull_collected(struct cairn_engine *e)
{
	if (e->pull)
		release(e->pull, ++e->pull->collected);
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

int64_t engine_pull_parts(const struct cairn_engine *e)
{
	return e->pull ? e->pull->parts : 0;
}
