/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_load_test - many concurrent streams and their readers
 *
 * Client and server run in one process, so measurements include both. An event has 160 bytes: the time at
 * which it was pushed, its number in its stream, and filler. The client checks every byte.
 */
#ifndef CAIRN_HTTP_LOAD_TEST_H
#define CAIRN_HTTP_LOAD_TEST_H

#include <sys/epoll.h>

#include "serving/http/http_parse.h"
#include "serving/http/http_test.h"

#define EVENT		160
#define MAX_STREAMS	256
#define BUCKETS		100000

struct stream {
	struct cairn_http_exchange *x;
	uint64_t seq, dropped;
};

static struct load {
	struct stream streams[MAX_STREAMS];
	atomic_int num_streams;
	struct reader {
		int fd, blank;		/* blank: bytes seen of the empty line that ends the head */
		struct http_chunks chunks;
		char event[EVENT];
		size_t at;
		uint64_t seq;
	} readers[MAX_STREAMS];
	int num_readers, epoll_fd;
	atomic_bool stop;
	uint64_t events, wrong, ends;
	uint32_t *latency_us;		/* [BUCKETS] histogram; the last bucket holds all larger values */
} load;

static inline void keep(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	(void)ctx;
	(void)req;
	cairn_http_stream(x, 200, "text/event-stream", NULL, 0);
	load.streams[load.num_streams] = (struct stream){ .x = x };
	atomic_fetch_add(&load.num_streams, 1);
}

static inline void small(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	(void)ctx;
	(void)req;
	if (cairn_http_answer(x, 200, "application/json", NULL, 0, "{\"ok\":true}", 11))
		cairn_http_abort(x);
}

static const struct cairn_http_route routes[] = {
	{ "GET", "/stream", 0, 0, keep, NULL },
	{ "GET", "/small", 0, 0, small, NULL },
	{ "POST", "/small", CAIRN_HTTP_JSON, 0, small, NULL },
};

static inline uint64_t now_us(void)
{
	return (uint64_t)(now_s() * 1e6);
}

static inline int push_event(struct stream *s)
{
	char event[EVENT + 1];
	int ret;

	snprintf(event, sizeof(event), "data: %016llx %016llx %0*d\n\n", (unsigned long long)now_us(),
		 (unsigned long long)s->seq, EVENT - 42, 7);
	ret = cairn_http_push(s->x, event, EVENT);
	if (!ret)
		s->seq++;
	else
		s->dropped++;
	return ret;
}

static inline void check_event(struct reader *r)
{
	static char filler[EVENT + 1];
	unsigned long long time, seq;
	uint64_t took;

	if (!filler[0])
		snprintf(filler, sizeof(filler), "%0*d\n\n", EVENT - 42, 7);
	if (sscanf(r->event, "data: %16llx %16llx ", &time, &seq) != 2 || seq != r->seq ||
	    memcmp(r->event + 40, filler, EVENT - 40)) {
		load.wrong++;
		return;
	}
	took = now_us() - time;
	load.latency_us[took < BUCKETS ? took : BUCKETS - 1]++;
	r->seq++;
	load.events++;
}

static inline void take_bytes(struct reader *r, const char *bytes, size_t n)
{
	const char *data, *why;
	size_t used, len;
	int ret = 0;

	for (; n && r->blank < 4; bytes++, n--)
		r->blank = *bytes == "\r\n\r\n"[r->blank] ? r->blank + 1 : *bytes == '\r';
	for (; n && !ret; bytes += used, n -= used) {
		ret = http_unchunk(&r->chunks, bytes, n, &used, &data, &len, &why);
		for (; len; data++, len--) {
			r->event[r->at++] = *data;
			if (r->at == EVENT)
				check_event(r);
			r->at %= EVENT;
		}
	}
	load.wrong += ret < 0;
	load.ends += ret > 0;
}

static inline void *read_all(void *arg)
{
	(void)arg;
	while (!atomic_load(&load.stop) || load.ends + load.wrong < (uint64_t)load.num_readers) {
		struct epoll_event events[64];
		int n = epoll_wait(load.epoll_fd, events, 64, 100);

		for (int i = 0; i < n; i++) {
			struct reader *r = events[i].data.ptr;
			static char bytes[32768];
			ssize_t k = recv(r->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

			if (k > 0)
				take_bytes(r, bytes, (size_t)k);
			else if (!k || errno != EAGAIN)
				load.wrong++;
		}
	}
	return NULL;
}

/* Opens num streams; the first num_readers of them are read. */
static inline void open_streams(struct cairn_test *t, struct cairn_http *http, int num, int num_readers,
				int *fds)
{
	memset(&load, 0, sizeof(load));
	load.latency_us = calloc(BUCKETS, sizeof(*load.latency_us));
	load.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	load.num_readers = num_readers;
	for (int i = 0; i < num; i++) {
		struct epoll_event e = { .events = EPOLLIN, .data.ptr = &load.readers[i] };

		fds[i] = load.readers[i].fd = dial(http);
		say(fds[i], "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
		if (!EXPECT(t, fds[i] >= 0 && WAIT_FOR(atomic_load(&load.num_streams) > i, 5000)))
			exit(3);
		if (i < num_readers)
			epoll_ctl(load.epoll_fd, EPOLL_CTL_ADD, fds[i], &e);
	}
}

static inline int percentile_us(double p)
{
	uint64_t sum = 0;

	for (int i = 0; i < BUCKETS; i++) {
		sum += load.latency_us[i];
		if ((double)sum >= p * (double)load.events)
			return i;
	}
	return BUCKETS;
}

#endif
