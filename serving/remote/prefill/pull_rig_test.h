/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pull_rig_test - a lead, prefill workers and pulls in one process, beside a worker that computes the same
 *
 * Random prompts are pulled from a random page on, and their tokens in each page compared with those of the
 * local worker, bit by bit. pull_mutants_test.c includes this file with the modules under other names.
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_PULL_RIG_TEST_H
#define CAIRN_PULL_RIG_TEST_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/tables/program.h"
#include "serving/base/clock.h"
#include "serving/engine/worker/worker.h"
#include "serving/engine/engine_test.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/control/address.h"
#include "serving/remote/prefill/prefill_worker.h"
#include "serving/remote/pull/pull.h"
#include "serving/remote/pull/run.h"

enum { PULL_WORKERS = 3, PULL_PAGE = 4, PULL_ROWS = 8, PULL_CONTEXT = 160, PULL_WEIGHTS = 5,
       PULL_MOST = PULL_CONTEXT / PULL_PAGE, PULL_PAGES = 2 * PULL_MOST };

/* Passes are slow with sanitizers. */
#ifdef CAIRN_SANITIZED
#define PULL_IS_SLOW	1
#else
#define PULL_IS_SLOW	0
#endif

/* What rigs are opened with: a table that seems to have a device's memory; the workers' transport. */
static int pull_as_device;
static const char *pull_transport;

struct pull_worker {
	pthread_t thread;
	struct cairn_prefill_worker_options o;
	int ret;
	char text[256];
};

struct pull_rig {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_model *m;
	struct cairn_prefill_group *group;	/* the worker is its rank 0, with `stage`; or NULL */
	struct cairn_model *stage;
	struct cairn_worker *local;
	struct cairn_lead *lead;
	struct cairn_pull *pull;
	char join[32];
	struct pull_worker workers[PULL_WORKERS];
	int num_workers;
	struct cairn_kv_store kv;
	size_t page_bytes;		/* of all layers */
	uint64_t last_id;
	int32_t ids[PULL_CONTEXT];	/* of the last prompt */
	int32_t num_tokens, first;
};

static inline void *pull_work(void *arg)
{
	struct pull_worker *w = arg;

	w->ret = cairn_prefill_worker_run(&w->o);
	snprintf(w->text, sizeof(w->text), "%s", w->ret ? cairn_last_error() : "");
	return NULL;
}

static inline void pull_add_worker(struct pull_rig *r)
{
	struct pull_worker *w = &r->workers[r->num_workers++];

	w->o = (struct cairn_prefill_worker_options){
		.member = { .join = r->join, .join_ms = 5000, .transport = pull_transport },
		.model = r->m, .weights = PULL_WEIGHTS,
	};
	pthread_create(&w->thread, NULL, pull_work, w);
}

/* Waits until so many workers take jobs. Returns whether they do. */
static inline int pull_await(struct pull_rig *r, int workers)
{
	struct cairn_pull_stats stats = { .workers = -1 };

	for (int i = 0; i < 30000 && stats.workers != workers; i++) {
		cairn_pull_stats(r->pull, &stats);
		if (stats.workers != workers)
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
	return stats.workers == workers;
}

/* Opens model, lead and pulls for `ranks` workers, and starts `workers`. Returns 0 if all is there. */
static inline int pull_open(struct cairn_test *t, struct pull_rig *r, const char *model, int ranks,
			    int workers, int lease_ms)
{
	const struct cairn_lead_options o = {
		.prefill = ranks, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 20000,
		.weights = PULL_WEIGHTS, .config = 0,
	};
	const struct cairn_worker_options wo = {
		.max_batch = 1, .max_rows = PULL_ROWS, .max_context = PULL_CONTEXT,
		.num_pages = PULL_CONTEXT / PULL_PAGE, .page_size = PULL_PAGE, .no_graphs = 1,
		.decode = CAIRN_DECODE_UNFUSED,
	};
	const struct cairn_pull_options po = {
		.kv = &r->kv, .max_rows = PULL_ROWS, .max_context = PULL_CONTEXT, .lease_ms = lease_ms,
	};
	int ret;

	memset(r, 0, sizeof(*r));
	if (open_model(t, "cpu", model, &r->impl, &r->g, &r->m))
		return -1;
	if (pull_as_device)
		r->impl.flags &= ~CAIRN_IMPL_HOST_MEM;
	ret = cairn_lead_create(&r->lead, &o);
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	if (ret)
		return ret;
	r->page_bytes = cairn_model_key_bytes(r->m) * PULL_PAGE * (size_t)r->m->config.num_hidden_layers *
			(cairn_model_is_latent(r->m) ? 1 : 2);
	snprintf(r->join, sizeof(r->join), "127.0.0.1:%d", cairn_lead_port(r->lead));
	ret = cairn_worker_create(&r->local, r->m, &wo);
	if (!ret)
		ret = cairn_kv_store_create(&r->kv, r->m, PULL_PAGES, PULL_PAGE);
	if (!ret)
		ret = cairn_pull_create(&r->pull, r->lead, r->m, &po);
	for (int i = 0; i < workers && !ret; i++)
		pull_add_worker(r);
	if (!EXPECT(t, ret == 0 && pull_await(r, workers < ranks ? workers : ranks))) {
		cairn_note(t, "%s", cairn_last_error());
		return -1;
	}
	return 0;
}

static inline void pull_close(struct pull_rig *r)
{
	cairn_pull_destroy(r->pull);
	cairn_lead_destroy(r->lead);
	for (int i = 0; i < r->num_workers; i++)
		pthread_join(r->workers[i].thread, NULL);
	cairn_worker_destroy(r->local);
	if (r->m) {
		cairn_kv_store_destroy(&r->kv, r->m);
		close_model(r->m, &r->g);
	}
}

/* Draws a prompt that fills at least `least` pages, and the page from which it is wanted. */
static inline void pull_draw(struct cairn_test *t, struct pull_rig *r, int32_t least)
{
	const int32_t most = PULL_CONTEXT / PULL_PAGE;
	const int32_t pages = least + (int32_t)(cairn_rand(t) % (uint64_t)(most - least + 1));

	r->num_tokens = pages * PULL_PAGE - (pages > least ? (int32_t)(cairn_rand(t) % PULL_PAGE) : 0);
	r->first = (int32_t)(cairn_rand(t) % 2 * (cairn_rand(t) % (uint64_t)pages)) * PULL_PAGE;
	for (int32_t i = 0; i < r->num_tokens; i++)
		r->ids[i] = (int32_t)(cairn_rand(t) % 190);
}

/* Returns how many pages the last prompt fills; the last one perhaps in part. */
static inline int32_t pull_pages(const struct pull_rig *r)
{
	return (r->num_tokens + PULL_PAGE - 1) / PULL_PAGE;
}

/* Returns a page of a job: two that follow each other have different ones, and pages are not in order. */
static inline int32_t pull_page(uint64_t id, int32_t k)
{
	return (int32_t)(id % 2) * PULL_MOST + 7 * k % PULL_MOST;
}

/* Begins a job whose pages may not be written yet. */
static inline int pull_begin_held(struct pull_rig *r)
{
	int32_t pages[PULL_MOST];

	r->last_id++;
	for (int32_t k = 0; k < pull_pages(r) - r->first / PULL_PAGE; k++)
		pages[k] = pull_page(r->last_id, k);
	return cairn_pull_begin(r->pull, r->last_id, r->ids, r->num_tokens, r->first, pages);
}

static inline int pull_begin(struct pull_rig *r)
{
	const int ret = pull_begin_held(r);

	cairn_pull_allow(r->pull, r->last_id);
	return ret;
}

/* Returns how many parts a page has: a side of a layer each. */
static inline size_t pull_parts(const struct pull_rig *r)
{
	return (size_t)r->m->config.num_hidden_layers * (r->kv.v_offset ? 2 : 1);
}

static inline char *pull_part_of(const struct pull_rig *r, const struct cairn_kv_store *kv, int32_t page,
				 size_t part)
{
	const size_t sides = kv->v_offset ? 2 : 1, bytes = r->page_bytes / pull_parts(r);

	return kv->base + part / sides * kv->layer_bytes + part % sides * kv->v_offset + (size_t)page * bytes;
}

/* Returns where a part of a job's page is. */
static inline char *pull_part(const struct pull_rig *r, uint64_t id, int32_t k, size_t part)
{
	return pull_part_of(r, &r->kv, pull_page(id, k), part);
}

/* Waits until a job ends. Returns 0 if none does. */
static inline int pull_end_of(struct pull_rig *r, struct cairn_pulled *d)
{
	for (int i = 0; i < 3000; i++) {
		if (cairn_pull_ended(r->pull, d))
			return 1;
		cairn_pull_wait(r->pull, 10);
	}
	return 0;
}

static inline int pull_compute(struct pull_rig *r)
{
	int32_t pages[PULL_CONTEXT / PULL_PAGE];
	struct cairn_worker_result result;
	struct cairn_worker_part part = {
		.follows = -1, .pages = pages, .num_pages = pull_pages(r),
	};

	for (int32_t i = 0; i < part.num_pages; i++)
		pages[i] = i;
	for (; part.position < r->num_tokens; part.position += part.num_rows) {
		part.ids = r->ids + part.position;
		part.num_rows = r->num_tokens - part.position;
		part.num_rows = part.num_rows < PULL_ROWS ? part.num_rows : PULL_ROWS;
		cairn_worker_begin(r->local);
		cairn_worker_add(r->local, &part);
		CAIRN_TRY(cairn_worker_launch(r->local));
		CAIRN_TRY(cairn_worker_collect(r->local, &result));
	}
	return 0;
}

/* Computes the last prompt here. Returns how many pages of d differ, or -errno. */
static inline int64_t pull_compare(struct pull_rig *r, const struct cairn_pulled *d)
{
	const struct cairn_kv_store *kv = cairn_worker_kv(r->local);
	const int32_t first = r->first / PULL_PAGE;
	const size_t token_bytes = r->page_bytes / pull_parts(r) / PULL_PAGE;
	int64_t bad = 0;

	CAIRN_TRY(pull_compute(r));
	for (int32_t page = first; page < pull_pages(r); page++) {
		const int32_t left = r->num_tokens - page * PULL_PAGE;
		const size_t bytes = token_bytes * (size_t)(left < PULL_PAGE ? left : PULL_PAGE);
		int same = 1;

		for (size_t part = 0; part < pull_parts(r); part++)
			same &= !memcmp(pull_part(r, d->id, page - first, part),
					pull_part_of(r, kv, page, part), bytes);
		bad += !same;
	}
	return bad;
}

/* Pulls prompts one after the other. Returns how many pages differ; -1: a pull has failed. */
static inline int64_t pull_many(struct cairn_test *t, struct pull_rig *r, int num)
{
	struct cairn_pulled d;
	int64_t bad = 0;

	for (int i = 0; i < num && !bad; i++) {
		pull_draw(t, r, 1);
		if (pull_begin(r) != 1 || !pull_end_of(r, &d) || d.id != r->last_id || d.failed)
			return -1;
		bad = pull_compare(r, &d);
	}
	return bad;
}

#endif
