/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_async_test - the cpu table with threads as its streams, which carry out puts and waits of tcp, too
 *
 * Operations on one stream run in their order, and those on two streams at the same time, as on a device. The
 * memory is the host's, but a test must not look at it before it has waited for the stream. So the order of
 * streams can be tested without a device. Streams can be captured: a graph has the operations with their
 * arguments, and each launch enqueues them again. Include conformance/harness.h first.
 */
#ifndef CAIRN_REMOTE_ASYNC_TEST_H
#define CAIRN_REMOTE_ASYNC_TEST_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/abi.h"
#include "rdma/transport/transport.h"
#include "serving/remote/remote_fault.h"

struct async_work {
	struct async_work *next;
	int (*run)(const void *args);
	size_t size;
	_Alignas(16) char args[];
};

struct async_graph {
	struct async_work *first, **last;
};

struct async_stream {
	struct async_stream *next;	/* of those destroyed */
	pthread_t thread;
	struct async_graph *graph;	/* being captured; NULL: none is */
	struct async_work *first, **last;
	uint64_t enqueued, done;
	int ends, ret;			/* ret: of the first operation that has failed */
};

struct async_event {
	struct async_stream *stream;	/* NULL: never recorded */
	uint64_t ticket;		/* occurs when the stream has done so many operations */
};

/* One lock for all streams: these are tests. */
static pthread_mutex_t async_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t async_changed = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t async_puts = PTHREAD_MUTEX_INITIALIZER;	/* a channel takes one at a time */
static struct cairn_impl async_base;
static struct cairn_transport_table async_tcp;
static int is_async;			/* the table is in use */
/* Destroyed streams are kept until the next table is made, to count the calls that still use them. */
static struct async_stream *async_destroyed;
static int async_late_calls;

static void *async_run(void *arg)
{
	struct async_stream *s = arg;

	pthread_mutex_lock(&async_lock);
	for (;;) {
		struct async_work *w = s->first;
		int ret;

		if (!w && s->ends)
			break;
		if (!w) {
			pthread_cond_wait(&async_changed, &async_lock);
			continue;
		}
		s->first = w->next;
		if (!s->first)
			s->last = &s->first;
		pthread_mutex_unlock(&async_lock);
		ret = w->run(w->args);
		free(w);
		pthread_mutex_lock(&async_lock);
		s->ret = s->ret ? s->ret : ret;
		s->done++;
		pthread_cond_broadcast(&async_changed);
	}
	pthread_mutex_unlock(&async_lock);
	return NULL;
}

static int async_enqueue(void *stream, int (*run)(const void *args), const void *args, size_t size)
{
	struct async_work *w = malloc(sizeof(*w) + size);
	struct async_stream *s = stream;

	if (!w)
		return -ENOMEM;
	w->next = NULL;
	w->run = run;
	w->size = size;
	memcpy(w->args, args, size);
	if (s->graph) {
		*s->graph->last = w;
		s->graph->last = &w->next;
		return 0;
	}
	pthread_mutex_lock(&async_lock);
	async_late_calls += s->ends;
	*s->last = w;
	s->last = &w->next;
	s->enqueued++;
	pthread_cond_broadcast(&async_changed);
	pthread_mutex_unlock(&async_lock);
	return 0;
}

static int async_stream_create(void **stream)
{
	struct async_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->last = &s->first;
	*stream = s;
	return -pthread_create(&s->thread, NULL, async_run, s);
}

static void async_stream_destroy(void *stream)
{
	struct async_stream *s = stream;

	pthread_mutex_lock(&async_lock);
	s->ends = 1;
	pthread_cond_broadcast(&async_changed);
	pthread_mutex_unlock(&async_lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&async_lock);
	s->next = async_destroyed;
	async_destroyed = s;
	pthread_mutex_unlock(&async_lock);
}

static int async_until(const struct async_event *e)
{
	pthread_mutex_lock(&async_lock);
	while (e->stream && e->stream->done < e->ticket)
		pthread_cond_wait(&async_changed, &async_lock);
	pthread_mutex_unlock(&async_lock);
	return 0;
}

static int async_stream_sync(void *stream)
{
	struct async_stream *s = stream;
	struct async_event e = { .stream = s };

	pthread_mutex_lock(&async_lock);
	async_late_calls += s->ends;
	e.ticket = s->ends ? s->done : s->enqueued;
	pthread_mutex_unlock(&async_lock);
	async_until(&e);
	return s->ret;
}

static int async_graph_begin(void *stream)
{
	struct async_stream *s = stream;

	s->graph = calloc(1, sizeof(*s->graph));
	if (!s->graph)
		return -ENOMEM;
	s->graph->last = &s->graph->first;
	return 0;
}

static int async_graph_end(void *stream, void **graph)
{
	struct async_stream *s = stream;

	*graph = s->graph;
	s->graph = NULL;
	return 0;
}

static int async_graph_launch(void *graph, void *stream)
{
	const struct async_graph *g = graph;
	int ret = 0;

	for (const struct async_work *w = g->first; w && !ret; w = w->next)
		ret = async_enqueue(stream, w->run, w->args, w->size);
	return ret;
}

static void async_graph_destroy(void *graph)
{
	struct async_graph *g = graph;

	for (struct async_work *w = g->first, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(g);
}

static int async_event_create(void **event)
{
	*event = calloc(1, sizeof(struct async_event));
	return *event ? 0 : -ENOMEM;
}

static int async_event_record(void *event, void *stream)
{
	struct async_event *e = event;

	pthread_mutex_lock(&async_lock);
	e->stream = stream;
	e->ticket = e->stream->enqueued;
	pthread_mutex_unlock(&async_lock);
	return 0;
}

static int async_event_sync(void *event)
{
	return async_until(event);
}

static int async_run_wait(const void *args)
{
	return async_until(args);
}

static int async_stream_wait(void *stream, void *event)
{
	return async_enqueue(stream, async_run_wait, event, sizeof(struct async_event));
}

struct async_move {
	void *dst;
	const void *src;		/* NULL: set the bytes */
	size_t bytes;
	int byte;
};

static int async_run_move(const void *args)
{
	const struct async_move *m = args;

	if (m->src)
		memmove(m->dst, m->src, m->bytes);
	else
		memset(m->dst, m->byte, m->bytes);
	return 0;
}

static int async_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	(void)kind;
	return async_enqueue(stream, async_run_move, &(struct async_move){ dst, src, bytes, 0 },
			     sizeof(struct async_move));
}

static int async_set(void *dst, int byte, size_t bytes, void *stream)
{
	return async_enqueue(stream, async_run_move, &(struct async_move){ dst, NULL, bytes, byte },
			     sizeof(struct async_move));
}

#define ASYNC_OP(op)										\
	static int async_run_##op(const void *args) { return async_base.op(args, NULL); }	\
	static int async_##op(const struct cairn_##op##_args *a, void *stream)			\
	{											\
		return async_enqueue(stream, async_run_##op, a, a->size);			\
	}
ASYNC_OP(kv_append)
ASYNC_OP(attn_bsr)
ASYNC_OP(attn_paged)
ASYNC_OP(mla_paged)

/* ---- the transport ---- */

struct async_wait {
	struct cairn_channel *c;
	struct cairn_stream_wait wait;
};

struct async_put {
	struct cairn_channel *c;
	struct cairn_stream_put put;
};

/* A channel keeps its errors, and the test asks for them. */
static int async_run_channel_wait(const void *args)
{
	const struct async_wait *w = args;

	cairn_transport_find("tcp")->stream_wait(w->c, &w->wait, NULL);
	return 0;
}

static int async_channel_wait(struct cairn_channel *c, const struct cairn_stream_wait *wait, void *stream)
{
	return async_enqueue(stream, async_run_channel_wait, &(struct async_wait){ c, *wait },
			     sizeof(struct async_wait));
}

static int async_run_put(const void *args)
{
	const struct async_put *p = args;

	pthread_mutex_lock(&async_puts);
	cairn_transport_find("tcp")->stream_put(p->c, &p->put, NULL);
	pthread_mutex_unlock(&async_puts);
	return 0;
}

static int async_put(struct cairn_channel *c, const struct cairn_stream_put *put, void *stream)
{
	return async_enqueue(stream, async_run_put, &(struct async_put){ c, *put }, sizeof(struct async_put));
}

/* Makes a table of cpu's one, which must be started. */
static inline void async_make(struct cairn_impl *impl)
{
	for (struct async_stream *s; (s = async_destroyed); free(s))
		async_destroyed = s->next;
	async_late_calls = 0;
	async_base = *impl;
	impl->flags &= ~CAIRN_IMPL_HOST_MEM;
	impl->stream_create = async_stream_create;
	impl->stream_destroy = async_stream_destroy;
	impl->stream_sync = async_stream_sync;
	impl->stream_wait = async_stream_wait;
	impl->event_create = async_event_create;
	impl->event_destroy = free;
	impl->event_record = async_event_record;
	impl->event_sync = async_event_sync;
	impl->graph_begin = async_graph_begin;
	impl->graph_end = async_graph_end;
	impl->graph_launch = async_graph_launch;
	impl->graph_destroy = async_graph_destroy;
	impl->mem_copy = async_copy;
	impl->mem_set = async_set;
	impl->kv_append = async_kv_append;
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
	impl->attn_bsr = async_attn_bsr;
	impl->attn_paged = async_attn_paged;
	impl->mla_paged = async_mla_paged;
	async_tcp = *cairn_transport_find("tcp");
	async_tcp.stream_put = async_put;
	async_tcp.stream_wait = async_channel_wait;
	is_async = 1;
}

#endif
