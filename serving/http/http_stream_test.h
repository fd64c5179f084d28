/* SPDX-License-Identifier: Apache-2.0 */
/* http_stream_test - exchanges that a test answers itself, and a client that reads streams */
#ifndef CAIRN_HTTP_STREAM_TEST_H
#define CAIRN_HTTP_STREAM_TEST_H

#include "serving/http/http_test.h"

/* Exchanges that the handler keeps for the test to answer. */
static struct kept {
	struct cairn_http_exchange *_Atomic x;
	atomic_int num_gone, num_done;
	_Atomic double gone_s;
} kept[2];

static inline void on_gone(void *ctx)
{
	struct kept *k = ctx;

	atomic_store(&k->gone_s, now_s());
	atomic_fetch_add(&k->num_gone, 1);
}

static inline void on_done(void *ctx)
{
	atomic_fetch_add(&((struct kept *)ctx)->num_done, 1);
}

static inline void keep(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	(void)req;
	cairn_http_watch(x, &(struct cairn_http_watch){ on_gone, on_done, ctx });
	atomic_store(&((struct kept *)ctx)->x, x);
}

static const struct cairn_http_route routes[] = {
	{ "GET", "/a", 0, 0, keep, &kept[0] },
	{ "GET", "/b", 0, 0, keep, &kept[1] },
};

static enum cairn_http_outcome last_outcome;	/* written before done is called */

static inline void on_log(void *ctx, const struct cairn_http_log *entry)
{
	(void)ctx;
	last_outcome = entry->outcome;
}

static inline struct cairn_http *start(struct cairn_test *t, struct cairn_http_options o)
{
	o.log = on_log;
	return serve(t, &o, routes, ARRAY_SIZE(routes));
}

/* Requests the path of kept[which] over HTTP/1.minor and waits for its exchange. */
static inline struct cairn_http_exchange *open_stream(struct cairn_test *t, int fd, int which, int minor)
{
	struct kept *k = &kept[which];
	char text[96];

	atomic_store(&k->x, NULL);
	atomic_store(&k->num_gone, 0);
	atomic_store(&k->num_done, 0);
	snprintf(text, sizeof(text), "GET /%c HTTP/1.%d\r\nHost: a\r\n%s\r\n", 'a' + which, minor,
		 minor ? "" : "Connection: keep-alive\r\n");
	say(fd, text);
	if (!EXPECT(t, WAIT_FOR(atomic_load(&k->x), 5000)))
		exit(3);
	return atomic_load(&k->x);
}

static inline void begin(struct cairn_test *t, struct cairn_http_exchange *x)
{
	EXPECT(t, !cairn_http_stream(x, 200, "text/event-stream", NULL, 0));
}

static inline unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 2654435761u >> 13);
}

static inline void push_all(struct cairn_test *t, struct cairn_http_exchange *x, size_t bytes,
			    size_t *num_full)
{
	char piece[3000];
	uint64_t r = cairn_rand(t);

	for (size_t at = 0; at < bytes;) {
		size_t n = (r = r * 6364136223846793005u + 1442695040888963407u) >> 33;
		int ret;

		n = n % sizeof(piece) % (bytes - at) + 1;
		for (size_t i = 0; i < n; i++)
			piece[i] = (char)pattern(at + i);
		while ((ret = cairn_http_push(x, piece, n)) == -EAGAIN) {
			++*num_full;
			nap_ms(1);
		}
		if (!EXPECT(t, !ret))
			return;
		at += n;
	}
}

struct reading {
	int fd, nap_every;
	size_t bytes, wrong;
	bool ended;
};

/* Reads and decodes chunks, slowly. */
static inline void *read_stream(void *arg)
{
	struct reading *s = arg;
	FILE *f = fdopen(dup(s->fd), "r");
	char line[256];
	size_t size = 0;

	while (fgets(line, sizeof(line), f) && strcmp(line, "\r\n"))
		;
	for (int k = 1; fgets(line, sizeof(line), f); k++) {
		size = strtoul(line, NULL, 16);
		for (size_t i = 0; i < size; i++, s->bytes++)
			s->wrong += (unsigned char)fgetc(f) != pattern(s->bytes);
		s->wrong += fgetc(f) != '\r' || fgetc(f) != '\n';
		if (s->nap_every && k % s->nap_every == 0)
			nap_ms(1);
		s->ended = !size;
		if (!size)
			break;
	}
	fclose(f);
	return NULL;
}

#endif
