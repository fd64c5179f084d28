// SPDX-License-Identifier: Apache-2.0
/*
 * late_runtime - streams, events and graphs of a table that runs operations as late as possible
 *
 * A stream runs its work items only when a call forces it to (stream_sync, event_sync, event_elapsed,
 * mem_free, a full queue, a copy to memory that is not from host_alloc), and only as far as that call needs.
 * A copy from host_alloc memory reads the contents when the copy runs; other host memory is read at the call,
 * as in CUDA. With CAIRN_LATE=N, N > 0, streams also advance at pseudo-random times (seed N), in any order
 * that the events allow.
 *
 * Between graph_begin and graph_end the items of a stream are recorded with their addresses; each launch
 * enqueues all of them. A stream that waits for an event of the capture becomes a branch of it, as in CUDA,
 * and must have been joined when the capture ends; each launch runs branches on streams of their own. Calls
 * of its thread that CUDA rejects during a capture are rejected and invalidate the capture.
 *
 * Calls of several threads take turns. A stream runs its items in order. Tickets number the items; the first
 * `done` items are finished. Device memory is open only while an item runs.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"
#include "conformance/abi.h"
#include "conformance/late/late.h"

#define MAX_QUEUE	1024
#define MAX_BRANCHES	16

/* ---- threads ---- */

static pthread_mutex_t calls = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int late_begin(void)
{
	pthread_mutex_lock(&calls);
	return 0;
}

void late_end(const int *call)
{
	(void)call;
	pthread_mutex_unlock(&calls);
}

/* ---- failures ---- */

static char lost_text[512];

/* Records a failure that is final: every later call fails. */
static int lose(const char *text)
{
	if (!lost_text[0])
		snprintf(lost_text, sizeof(lost_text), "%s", text);
	return -EIO;
}

int late_lost(void)
{
	return lost_text[0] ? cairn_error(EIO, "%s", lost_text) : 0;
}

/* ---- work items and streams ---- */

struct list {
	struct work *first, **end;
};

struct stream {
	struct stream *next;		/* list of all streams ever created; destroyed ones are reused */
	int used;
	struct list list;
	uint64_t queued, done;
	struct graph *capture;		/* the graph being captured, or NULL */
	int branch;			/* of that graph */
};

struct graph {
	struct list list;		/* the items of all branches, in the order of the calls */
	uint64_t number;		/* of the capture, from 1 on */
	int spoilt, num_branches;
	/* The streams of the capture; after it, from branch 1 on, those on which launches run. */
	struct stream *streams[MAX_BRANCHES];
	uint64_t count[MAX_BRANCHES];	/* items of each branch */
	/* known[a][b]: items of branch b that are done when the last item of branch a is */
	uint64_t known[MAX_BRANCHES][MAX_BRANCHES];
};

struct event {
	struct stream *stream;		/* NULL: never recorded */
	uint64_t ticket;
	uint64_t capture;		/* number of the capture that has recorded it; 0: none */
	int branch;			/* of that capture */
	uint64_t known[MAX_BRANCHES];
	struct timespec at;
	int pending, gone;		/* number of queued records; whether the event was destroyed */
};

static struct stream *streams;
static struct graph *capturing;
static pthread_t capturer;		/* its thread */
static uint64_t seed, num_captures;

static void append(struct list *l, struct work *w)
{
	w->next = NULL;
	*l->end = w;
	l->end = &w->next;
}

struct work *late_new_work(int (*run)(struct work *w), size_t size)
{
	struct work *w = calloc(1, sizeof(*w) + size);

	if (!w) {
		cairn_error(ENOMEM, "late: no memory for %zu bytes of arguments", size);
		return NULL;
	}
	w->run = run;
	w->size = size;
	w->waits_branch = -1;
	return w;
}

static int late_stream_create(void **stream)
{
	LATE_CALL;
	struct stream *s = streams;

	CAIRN_TRY(late_lost());
	while (s && s->used)
		s = s->next;
	if (!s) {
		s = calloc(1, sizeof(*s));
		if (!s)
			return cairn_error(ENOMEM, "late: no memory for a stream");
		s->next = streams;
		s->list.end = &s->list.first;
		streams = s;
	}
	s->used = 1;
	*stream = s;
	return 0;
}

/* A part of the device is all of it: every order of streams is allowed anyway. */
static int late_stream_create_part(void **stream, int32_t sms, int32_t priority)
{
	(void)sms;
	(void)priority;
	return late_stream_create(stream);
}

/* NULL stands for a default stream, created on first use. */
static struct stream *stream_of(void *stream)
{
	static void *none;

	if (!stream && !none)
		late_stream_create(&none);
	return stream ? stream : none;
}

/* Runs items until the first `ticket` items of s are done. */
static int run_until(struct stream *s, uint64_t ticket)
{
	static int depth;

	if (lost_text[0] || s->done >= ticket)
		return late_lost();
	if (!depth++)
		late_open(1);
	while (!lost_text[0] && s->done < ticket) {
		struct work *w = s->list.first;

		if (w->waits_for && run_until(w->waits_for, w->ticket))
			break;
		if (w->run && w->run(w)) {
			lose(cairn_last_error());
			break;
		}
		s->list.first = w->next;
		if (!w->next)
			s->list.end = &s->list.first;
		s->done++;
		free(w);
	}
	if (!--depth)
		late_open(0);
	return late_lost();
}

static int run_all(void)
{
	for (struct stream *s = streams; s; s = s->next)
		CAIRN_TRY(run_until(s, s->queued));
	return 0;
}

/* With CAIRN_LATE, advances each stream by a random number of items, often none. */
static int stir(void)
{
	for (struct stream *s = streams; seed && s; s = s->next) {
		uint64_t z = (seed += 0x9e3779b97f4a7c15u);

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		if (z >> 62 == 0 && s->done < s->queued)
			CAIRN_TRY(run_until(s, s->done + 1 + z % (s->queued - s->done)));
	}
	return 0;
}

int late_enqueue(void *stream, struct work *w)
{
	struct stream *s = stream_of(stream);

	if (s->capture) {
		w->branch = s->branch;
		s->capture->known[s->branch][s->branch] = ++s->capture->count[s->branch];
		append(&s->capture->list, w);
		return 0;
	}
	append(&s->list, w);
	s->queued++;
	if (s->queued - s->done > MAX_QUEUE)
		CAIRN_TRY(run_until(s, s->done + 1));
	return stir();
}

/* Rejects a call that takes effect at once, if a stream is being captured. */
static int refuse_capture(const char *what)
{
	if (!capturing || !pthread_equal(capturer, pthread_self()))
		return 0;
	capturing->spoilt = 1;
	return cairn_error(EINVAL, "late: %s: not allowed while a stream is captured", what);
}

/* Queued items still run, and events recorded on the stream still refer to its tickets. */
static void late_stream_destroy(void *stream)
{
	LATE_CALL;
	struct stream *s = stream;

	s->used = 0;
}

static int late_stream_sync(void *stream)
{
	LATE_CALL;
	struct stream *s = stream_of(stream);

	CAIRN_TRY(late_lost());
	CAIRN_TRY(refuse_capture("stream_sync"));
	return run_until(s, s->queued);
}

/* ---- memory of the table ---- */

static int late_mem_alloc(void **ptr, size_t bytes)
{
	LATE_CALL;

	CAIRN_TRY(late_lost());
	CAIRN_TRY(refuse_capture("mem_alloc"));
	return late_add(ptr, bytes, 0);
}

static void late_mem_free(void *ptr)
{
	LATE_CALL;

	if (ptr && !refuse_capture("mem_free")) {
		run_all();
		if (late_remove(ptr, 0))
			lose(cairn_last_error());
	}
}

static int late_host_alloc(void **ptr, size_t bytes)
{
	LATE_CALL;

	CAIRN_TRY(late_lost());
	CAIRN_TRY(refuse_capture("host_alloc"));
	return late_add(ptr, bytes, 1);
}

/* Does not wait for copies, because no table guarantees that it waits: a copy that runs later fails. */
static void late_host_free(void *ptr)
{
	LATE_CALL;

	if (ptr && late_remove(ptr, 1))
		lose(cairn_last_error());
}

static int run_copy(struct work *w)
{
	/* an item of a graph may outlive the memory that it names */
	if ((late_in_arena(w->dst) && !late_holds_any(w->dst, w->bytes)) ||
	    (late_in_arena(w->src) && !late_holds_any(w->src, w->bytes)))
		return cairn_error(EIO, "late: mem_copy: to or from memory that was freed");
	if (w->src)
		memmove(w->dst, w->src, w->bytes);
	else
		memset(w->dst, w->byte, w->bytes);
	return 0;
}

static int late_mem_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	LATE_CALL;
	const void *host = kind == CAIRN_COPY_TO_HOST ? dst : kind == CAIRN_COPY_TO_DEVICE ? src : NULL;
	const int pageable = host && !late_holds(host, bytes, 1);
	const int staged = pageable && kind == CAIRN_COPY_TO_DEVICE;
	struct stream *s = stream_of(stream);
	struct work *w;

	CAIRN_TRY(late_lost());
	if (kind < 0 || kind > CAIRN_COPY_ON_DEVICE)
		return cairn_error(EINVAL, "late: mem_copy: kind %d", kind);
	if ((kind != CAIRN_COPY_TO_HOST && !late_holds(dst, bytes, 0)) ||
	    (kind != CAIRN_COPY_TO_DEVICE && !late_holds(src, bytes, 0)))
		return cairn_error(EINVAL, "late: mem_copy: %zu bytes are not all in device memory", bytes);
	if (pageable && late_in_arena(host))
		return cairn_error(EINVAL, "late: mem_copy: %zu bytes are not all in host memory", bytes);
	if (pageable && s->capture)
		return refuse_capture("mem_copy with memory that is not from host_alloc");
	w = late_new_work(run_copy, staged ? bytes : 0);
	if (!w)
		return -ENOMEM;
	w->dst = dst;
	w->src = staged ? memcpy(w->data, src, bytes) : src;
	w->bytes = bytes;
	CAIRN_TRY(late_enqueue(s, w));
	return pageable && !staged ? run_until(s, s->queued) : 0;
}

static int late_mem_set(void *dst, int byte, size_t bytes, void *stream)
{
	LATE_CALL;
	struct work *w;

	CAIRN_TRY(late_lost());
	if (!late_holds_any(dst, bytes))
		return cairn_error(EINVAL, "late: mem_set: %zu bytes are not all in device memory", bytes);
	w = late_new_work(run_copy, 0);
	if (!w)
		return -ENOMEM;
	w->dst = dst;
	w->byte = byte;
	w->bytes = bytes;
	return late_enqueue(stream, w);
}

/* ---- events ---- */

static int late_event_create(void **event)
{
	LATE_CALL;
	*event = calloc(1, sizeof(struct event));
	return *event ? late_lost() : cairn_error(ENOMEM, "late: no memory for an event");
}

static void late_event_destroy(void *event)
{
	LATE_CALL;
	struct event *e = event;

	e->gone = 1;
	if (!e->pending)
		free(e);
}

static int run_record(struct work *w)
{
	struct event *e = w->event;

	clock_gettime(CLOCK_MONOTONIC, &e->at);
	if (!--e->pending && e->gone)
		free(e);
	return 0;
}

static int late_event_record(void *event, void *stream)
{
	LATE_CALL;
	struct stream *s = stream_of(stream);
	struct event *e = event;
	struct work *w;

	CAIRN_TRY(late_lost());
	e->capture = s->capture ? s->capture->number : 0;
	if (s->capture) {
		e->branch = s->branch;
		memcpy(e->known, s->capture->known[s->branch], sizeof(e->known));
		return 0;
	}
	w = late_new_work(run_record, 0);
	if (!w)
		return -ENOMEM;
	w->event = e;
	e->pending++;
	e->stream = s;
	e->ticket = s->queued + 1;
	return late_enqueue(s, w);
}

/* Rejects an event that a capture has recorded: it stands for no work outside of that capture. */
static int refuse_captured(const struct event *e, const char *what)
{
	return e->capture ? cairn_error(EINVAL, "late: %s: the event was recorded in a capture", what) : 0;
}

/* Waits for an event of the capture; the stream becomes a branch of it. */
static int wait_in_capture(struct stream *s, const struct event *e)
{
	struct graph *g = capturing;
	struct work *w;

	if (!s->capture) {
		if (g->num_branches == MAX_BRANCHES)
			return refuse_capture("stream_wait with more than 16 streams");
		s->capture = g;
		s->branch = g->num_branches;
		g->streams[g->num_branches++] = s;
	}
	w = late_new_work(NULL, 0);
	if (!w)
		return -ENOMEM;
	w->waits_branch = e->branch;
	w->ticket = e->known[e->branch];
	CAIRN_TRY(late_enqueue(s, w));
	for (int i = 0; i < MAX_BRANCHES; i++)
		if (e->known[i] > g->known[s->branch][i])
			g->known[s->branch][i] = e->known[i];
	return 0;
}

/* Waits for the latest record before this call; later records have no effect. */
static int late_stream_wait(void *stream, void *event)
{
	LATE_CALL;
	struct stream *s = stream_of(stream);
	struct event *e = event;
	struct work *w;

	CAIRN_TRY(late_lost());
	if (capturing && e->capture == capturing->number)
		return wait_in_capture(s, e);
	if (s->capture)
		return refuse_capture("stream_wait for an event that is not of the capture");
	CAIRN_TRY(refuse_captured(e, "stream_wait"));
	if (!e->stream || e->stream->done >= e->ticket)
		return 0;
	w = late_new_work(NULL, 0);
	if (!w)
		return -ENOMEM;
	w->waits_for = e->stream;
	w->ticket = e->ticket;
	return late_enqueue(s, w);
}

static int late_event_sync(void *event)
{
	LATE_CALL;
	struct event *e = event;

	CAIRN_TRY(late_lost());
	CAIRN_TRY(refuse_capture("event_sync"));
	CAIRN_TRY(refuse_captured(e, "event_sync"));
	return e->stream ? run_until(e->stream, e->ticket) : 0;
}

static int late_event_elapsed(float *ms, void *start, void *end)
{
	LATE_CALL;
	struct event *a = start, *b = end;

	if (!a->stream || !b->stream)
		return cairn_error(EINVAL, "late: event_elapsed: the event was never recorded");
	CAIRN_TRY(late_event_sync(start));
	CAIRN_TRY(late_event_sync(end));
	return cairn_offer.host->event_elapsed(ms, &a->at, &b->at);
}

/* ---- graphs ---- */

static void free_graph(struct graph *g)
{
	for (struct work *w = g->list.first, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(g);
}

static void late_graph_destroy(void *graph)
{
	LATE_CALL;
	struct graph *g = graph;

	for (int i = 1; i < g->num_branches; i++)
		late_stream_destroy(g->streams[i]);
	free_graph(g);
}

static int late_graph_begin(void *stream)
{
	LATE_CALL;
	struct stream *s = stream_of(stream);
	struct graph *g;

	CAIRN_TRY(late_lost());
	CAIRN_TRY(refuse_capture("graph_begin"));
	g = calloc(1, sizeof(*g));
	if (!g)
		return cairn_error(ENOMEM, "late: no memory for a graph");
	g->list.end = &g->list.first;
	g->number = ++num_captures;
	g->streams[0] = s;
	g->num_branches = 1;
	s->capture = capturing = g;
	capturer = pthread_self();
	s->branch = 0;
	return 0;
}

/* Ends the capture: its streams are free again. Returns an error if it is invalid. */
static int end_capture(struct graph *g, const struct stream *s)
{
	int joined = 1;

	for (int i = 0; i < g->num_branches; i++) {
		g->streams[i]->capture = NULL;
		joined &= g->known[0][i] == g->count[i];
	}
	capturing = NULL;
	if (g->spoilt)
		return cairn_error(EINVAL,
				   "late: graph_end: invalidated by a call that a capture does not allow");
	if (g->streams[0] != s)
		return cairn_error(EINVAL, "late: graph_end: the capture did not begin on this stream");
	if (!joined)
		return cairn_error(EINVAL, "late: graph_end: a stream of the capture has not been joined");
	return 0;
}

static int late_graph_end(void *stream, void **graph)
{
	LATE_CALL;
	struct stream *s = stream_of(stream);
	struct graph *g = s->capture;
	int ret;

	CAIRN_TRY(late_lost());
	if (!g)
		return cairn_error(EINVAL, "late: graph_end: the stream is not captured");
	ret = end_capture(g, s);
	if (ret) {
		free_graph(g);
		return ret;
	}
	for (int i = 1; i < g->num_branches; i++) {
		void *own = NULL;

		ret = late_stream_create(&own);
		if (ret) {
			g->num_branches = i;
			late_graph_destroy(g);
			return ret;
		}
		g->streams[i] = own;
	}
	*graph = g;
	return 0;
}

static int late_graph_launch(void *graph, void *stream)
{
	LATE_CALL;
	struct stream *streams_of[MAX_BRANCHES];
	uint64_t before[MAX_BRANCHES];
	const struct graph *g = graph;

	CAIRN_TRY(late_lost());
	CAIRN_TRY(refuse_capture("graph_launch"));
	for (int i = 0; i < g->num_branches; i++) {
		streams_of[i] = i ? g->streams[i] : stream_of(stream);
		before[i] = streams_of[i]->queued;
	}
	for (const struct work *w = g->list.first; w; w = w->next) {
		struct work *copy = late_new_work(w->run, w->size);

		if (!copy)
			return -ENOMEM;
		memcpy(copy, w, sizeof(*w) + w->size);
		if (w->waits_branch >= 0) {
			copy->waits_for = streams_of[w->waits_branch];
			copy->ticket = before[w->waits_branch] + w->ticket;
		}
		CAIRN_TRY(late_enqueue(streams_of[w->branch], copy));
	}
	return 0;
}

/* ---- the block ---- */

static int late_init(int device)
{
	LATE_CALL;
	const char *text = getenv("CAIRN_LATE");

	if (device != 0)
		return cairn_error(ENODEV, "late: device %d: there is only device 0", device);
	seed = text ? strtoull(text, NULL, 10) : 0;
	CAIRN_TRY(late_reserve());
	return late_lost();
}

static int late_device_info(struct cairn_device_info *info)
{
	CAIRN_TRY(cairn_offer.host->device_info(info));
	snprintf(info->name, sizeof(info->name), "late");
	return 0;
}

static const char *late_last_error(void)
{
	return cairn_last_error();
}

const struct cairn_impl late_runtime = {
	.size = sizeof(struct cairn_impl), .abi_version = CAIRN_ABI_VERSION, .name = "late", .version = "1",
	.last_error = late_last_error, .init = late_init, .device_info = late_device_info,
	.mem_alloc = late_mem_alloc, .mem_free = late_mem_free, .host_alloc = late_host_alloc,
	.host_free = late_host_free, .mem_copy = late_mem_copy, .mem_set = late_mem_set,
	.stream_create = late_stream_create, .stream_destroy = late_stream_destroy,
	.stream_sync = late_stream_sync, .event_create = late_event_create,
	.event_destroy = late_event_destroy, .event_record = late_event_record,
	.event_sync = late_event_sync, .event_elapsed = late_event_elapsed, .graph_begin = late_graph_begin,
	.graph_end = late_graph_end, .graph_launch = late_graph_launch, .graph_destroy = late_graph_destroy,
	.stream_wait = late_stream_wait, .stream_create_part = late_stream_create_part,
};
