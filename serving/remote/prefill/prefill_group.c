// SPDX-License-Identifier: Apache-2.0
/* prefill_group - the shared memory of a prefill worker's stages, and who fills it (prefill_group.h) */
#include "serving/remote/prefill/prefill_group.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/remote/pull/run.h"
#include "serving/remote/remote_fault.h"

#define ALIGNMENT	4096
/* A pass on n stages has CHUNKS * (n - 1) chunks, because n - 1 steps are lost between two passes. */
#define CHUNKS		8

/* A layer on its way: the device writes it to pinned memory, and from there it is copied when it has come. */
struct hop {
	char *pinned;			/* room for both sides of a chunk */
	void *event;
	int is_under_way;
	size_t bytes, at[2];		/* of a side; where they go */
	int32_t job, layer;
	int64_t tokens;
};

struct cairn_prefill_group {
	struct cairn_model_config whole;
	int32_t chunk_rows;
	int fd;
	struct cairn_tp *tp;
	struct cairn_model *stage;
	struct cairn_tp_watch watch;

	/* of a worker: */
	char *map;			/* tokens, [jobs, layers], and behind them the pages of all layers */
	size_t map_bytes, head_bytes, page_bytes;
	struct cairn_kv_store kv;
	int32_t job_pages;
	struct hop hops[2];
	int next_hop;
	struct cairn_worker_part part;	/* of the pass under way */
};

static size_t aligned(size_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int cairn_prefill_group_create(struct cairn_prefill_group **out, const struct cairn_model_config *whole)
{
	struct cairn_prefill_group *g = calloc(1, sizeof(*g));

	if (!g)
		return cairn_error(ENOMEM, "prefill: no memory");
	g->whole = *whole;
	g->fd = memfd_create("prefill", MFD_CLOEXEC);
	if (g->fd < 0) {
		free(g);
		return cairn_error(errno, "prefill: no shared memory: %s", strerror(errno));
	}
	*out = g;
	return 0;
}

static void unmap(struct cairn_prefill_group *g)
{
	for (int i = 0; i < 2; i++) {
		if (g->hops[i].pinned)
			g->stage->impl->host_free(g->hops[i].pinned);
		if (g->hops[i].event)
			g->stage->impl->event_destroy(g->hops[i].event);
		g->hops[i] = (struct hop){ 0 };
	}
	if (g->map)
		munmap(g->map, g->map_bytes);
	g->map = NULL;
}

void cairn_prefill_group_destroy(struct cairn_prefill_group *g)
{
	if (!g)
		return;
	unmap(g);
	close(g->fd);
	free(g);
}

const struct cairn_model_config *cairn_prefill_group_config(const struct cairn_prefill_group *g)
{
	return &g->whole;
}

int cairn_prefill_group_sum(struct cairn_prefill_group *g, uint64_t mine, uint64_t *sum)
{
	uint64_t all[CAIRN_COMM_MAX_RANKS];

	*sum = 0;
	CAIRN_TRY(cairn_tp_exchange(g->tp, &mine, all, sizeof(mine)));
	for (int32_t r = 0; r < cairn_tp_ranks(g->tp); r++)
		*sum += all[r];
	return 0;
}

/* ---- memory ---- */

static _Atomic int64_t *tokens_of(const struct cairn_prefill_group *g, int32_t job)
{
	return (_Atomic int64_t *)(void *)g->map + job * g->whole.num_hidden_layers;
}

int64_t cairn_prefill_group_tokens(const struct cairn_prefill_group *g, int32_t job, int32_t layer)
{
	return atomic_load(&tokens_of(g, job)[layer]);
}

void cairn_prefill_group_clear(struct cairn_prefill_group *g, int32_t job)
{
	for (int32_t l = 0; l < g->whole.num_hidden_layers && !FAULT(CLEARED_NOT); l++)
		atomic_store(&tokens_of(g, job)[l], 0);
}

char *cairn_prefill_group_base(const struct cairn_prefill_group *g)
{
	return g->map + g->head_bytes;
}

static int create_hops(struct cairn_prefill_group *g, int32_t chunk_pages)
{
	const struct cairn_impl *impl = g->stage->impl;
	void *p;

	if (impl->flags & CAIRN_IMPL_HOST_MEM)
		return 0;
	if (!impl->host_alloc || !impl->host_free || !impl->event_sync)
		return cairn_error(EOPNOTSUPP, "%s: prefill workers need host_alloc and event_sync",
				   impl->name);
	for (int i = 0; i < 2; i++) {
		CAIRN_TRY(CAIRN_TABLE(impl, host_alloc, &p, 2 * (size_t)chunk_pages * g->page_bytes));
		g->hops[i].pinned = p;
		CAIRN_TRY(CAIRN_TABLE(impl, event_create, &g->hops[i].event));
	}
	return 0;
}

int cairn_prefill_group_map(struct cairn_prefill_group *g, const struct cairn_worker *worker,
			    const struct cairn_worker_options *o)
{
	const size_t layers = (size_t)g->whole.num_hidden_layers;
	void *map;

	unmap(g);
	g->kv = *cairn_worker_kv(worker);
	g->job_pages = o->num_pages / CAIRN_PULL_JOBS;
	g->page_bytes = cairn_model_key_bytes(g->stage) * (size_t)o->page_size;
	g->head_bytes = aligned(CAIRN_PULL_JOBS * layers * sizeof(int64_t));
	g->map_bytes = aligned(g->head_bytes + layers * g->kv.layer_bytes);
	if (ftruncate(g->fd, (off_t)g->map_bytes))	/* all ranks set the same size */
		return cairn_error(errno, "prefill: no shared memory of %zu bytes: %s", g->map_bytes,
				   strerror(errno));
	map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	if (map == MAP_FAILED)
		return cairn_error(errno, "prefill: no shared memory of %zu bytes: %s", g->map_bytes,
				   strerror(errno));
	g->map = map;
	return create_hops(g, (g->chunk_rows + o->page_size - 1) / o->page_size);
}

/* ---- copies ---- */

static void mark(struct cairn_prefill_group *g, int32_t job, int32_t layer, int64_t tokens)
{
	atomic_store(&tokens_of(g, job)[layer], tokens);
}

/* Copies a layer that the device has written to where all see it. */
static int land(struct cairn_prefill_group *g, struct hop *h)
{
	if (!h->is_under_way)
		return 0;
	h->is_under_way = 0;
	CAIRN_TRY(CAIRN_TABLE(g->stage->impl, event_sync, h->event));
	for (size_t side = 0; side < (g->kv.v_offset ? 2 : 1); side++)
		memcpy(cairn_prefill_group_base(g) + h->at[side], h->pinned + side * h->bytes, h->bytes);
	mark(g, h->job, h->layer, h->tokens);
	return 0;
}

int cairn_prefill_group_part(struct cairn_prefill_group *g, const struct cairn_worker_part *part)
{
	g->part = *part;
	return 0;
}

/* Copies what this process has of a side to `to`. */
static int copy_side(const struct cairn_prefill_group *g, char *to, size_t from, size_t bytes, void *stream)
{
	if (g->hops[0].pinned)
		return CAIRN_TABLE(g->stage->impl, mem_copy, to, g->kv.base + from, bytes, CAIRN_COPY_TO_HOST,
				   stream);
	CAIRN_TRY(CAIRN_TABLE(g->stage->impl, stream_sync, stream));
	memcpy(to, g->kv.base + from, bytes);
	return 0;
}

int cairn_prefill_group_chunk(void *group, int32_t first, int32_t end, int32_t layer, void *stream)
{
	struct cairn_prefill_group *g = group;
	struct hop *h = &g->hops[g->next_hop];
	const int32_t size = g->kv.page_size, page = (g->part.position + first) / size;
	const int32_t pages = (g->part.position + end + size - 1) / size - page;
	const int32_t of_all = layer + !FAULT(STAGE_LAYERS_FROM_0) * g->stage->config.first_layer;
	const int32_t job = g->part.pages[page] / g->job_pages;
	const int64_t tokens = g->part.position + (FAULT(CHUNK_IS_PASS) ? g->part.num_rows : end);
	const size_t bytes = (size_t)pages * g->page_bytes;
	const size_t within = (size_t)g->part.pages[page] * g->page_bytes;

	CAIRN_TRY(land(g, h));
	for (size_t side = 0; side < (g->kv.v_offset ? 2 : 1); side++) {
		const size_t at = side * g->kv.v_offset + within;

		h->at[side] = (size_t)of_all * g->kv.layer_bytes + at;
		CAIRN_TRY(copy_side(g, h->pinned ? h->pinned + side * bytes :
				    cairn_prefill_group_base(g) + h->at[side],
				    (size_t)layer * g->kv.layer_bytes + at, bytes, stream));
	}
	if (!h->pinned) {
		mark(g, job, of_all, tokens);
		return 0;
	}
	h->bytes = bytes;
	h->job = job;
	h->layer = of_all;
	h->tokens = tokens;
	h->is_under_way = 1;
	CAIRN_TRY(CAIRN_TABLE(g->stage->impl, event_record, h->event, stream));
	g->next_hop ^= 1;
	return land(g, &g->hops[g->next_hop]);		/* the layer before, while this one is computed */
}

int cairn_prefill_group_collected(struct cairn_prefill_group *g)
{
	CAIRN_TRY(land(g, &g->hops[g->next_hop]));
	return land(g, &g->hops[g->next_hop ^ 1]);
}

/* ---- ranks ---- */

static int on_created(void *ctx, const struct cairn_worker *worker, const struct cairn_worker_options *o)
{
	return cairn_prefill_group_map(ctx, worker, o);
}

static int on_part(void *ctx, const struct cairn_worker_part *part)
{
	return cairn_prefill_group_part(ctx, part);
}

static int on_collected(void *ctx)
{
	return cairn_prefill_group_collected(ctx);
}

void cairn_prefill_group_join(struct cairn_prefill_group *g, struct cairn_tp *tp, struct cairn_model *stage,
			      int32_t chunk_rows)
{
	unmap(g);
	g->tp = tp;
	g->stage = stage;
	g->chunk_rows = chunk_rows;
	g->watch = (struct cairn_tp_watch){ g, on_created, on_part, cairn_prefill_group_chunk, on_collected };
}

int cairn_prefill_group_follow(struct cairn_prefill_group *g)
{
	cairn_tp_set_watch(g->tp, &g->watch);
	return cairn_tp_follow(g->tp, g->stage, NULL, NULL);
}

int32_t cairn_prefill_group_rows(const struct cairn_prefill_group *g)
{
	return CHUNKS * (cairn_tp_ranks(g->tp) - 1) * g->chunk_rows;
}

/* An epoch takes -ECONNRESET for the end of its lead, and not for that of a rank. */
static int as_failure(int ret)
{
	char why[512];

	if (ret != -ECONNRESET)
		return ret;
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	return cairn_error(EIO, "%s", why);
}

int cairn_prefill_group_worker(struct cairn_prefill_group *g, struct cairn_worker **out,
			       const struct cairn_worker_options *options)
{
	const struct cairn_tiers_options none = { 0 };
	const struct cairn_engine_tap *tap = cairn_tp_tap(g->tp);
	struct cairn_worker_options o = *options;

	o.tap = &tap->worker;
	o.chunk_rows = g->chunk_rows;
	CAIRN_TRY(cairn_worker_create(out, g->stage, &o));
	CAIRN_TRY(cairn_prefill_group_map(g, *out, &o));
	return as_failure(tap->create(tap->worker.ctx, &o, &none));
}

int cairn_prefill_group_pass(struct cairn_prefill_group *g, struct cairn_worker *w,
			     const struct cairn_worker_part *part)
{
	struct cairn_worker_result result;

	cairn_worker_begin(w);
	cairn_worker_add(w, part);
	CAIRN_TRY(cairn_prefill_group_part(g, part));
	cairn_worker_on_chunk(w, cairn_prefill_group_chunk, g);
	CAIRN_TRY(as_failure(cairn_worker_launch(w)));
	CAIRN_TRY(as_failure(cairn_worker_collect(w, &result)));
	return cairn_prefill_group_collected(g);
}
