/* SPDX-License-Identifier: Apache-2.0 */
/* serve_kill_test - clients that ask without end while workers are killed */
#ifndef CAIRN_SERVE_KILL_TEST_H
#define CAIRN_SERVE_KILL_TEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/serve/tests/serve_test.h"

#define LOAD_CLIENTS	4

static inline int find_worker(const struct server *s)
{
	char log[1 << 15], *p, *last = NULL;

	for (p = log_of(s, log, sizeof(log)); (p = strstr(p, "(worker ")); p += 8)
		last = p;
	return last ? atoi(last + 8) : -1;
}

/* Returns the worker that the log names last. The log is written a moment after the server is ready. */
static inline int worker_of(const struct server *s)
{
	return WAIT_FOR(find_worker(s) > 0, 5000) ? find_worker(s) : -1;
}

struct load {
	const struct server *s;
	atomic_bool stop;
	atomic_int served, failed, refused, wrong;
	atomic_int clients, ended[LOAD_CLIENTS];	/* ended: requests of each client, answered */
};

/* A client's thread, which keeps sending requests; each answer must be complete or a well-formed error. */
static inline void *ask_without_end(void *arg)
{
	struct load *l = arg;
	struct reply *r = malloc(sizeof(*r));
	int client = atomic_fetch_add(&l->clients, 1);

	for (int i = 0; !atomic_load(&l->stop); i++, atomic_store(&l->ended[client], i)) {
		bool stream = i % 2;
		int status = post(l->s, "/v1/completions",
				  stream ? "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":40,"
					   "\"stream\":true}" :
					   "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":40}",
				  r);
		bool done = strstr(r->body ? r->body : "", stream ? "[DONE]" : "\"completion_tokens\":40");
		bool error = status && strstr(r->body, "{\"error\":{");

		if (status == 200 && done && !error)
			atomic_fetch_add(&l->served, 1);
		else if ((status == 500 && is_error(r)) || (status == 200 && stream && error && !done))
			atomic_fetch_add(&l->failed, 1);
		else if (status == 503 && is_error(r)) {
			atomic_fetch_add(&l->refused, 1);
			nap_ms(5);
		} else if (atomic_fetch_add(&l->wrong, 1) == 0)
			cairn_note(l->s->t, "status %d: %.300s", status, r->text);
	}
	free(r);
	return NULL;
}

static inline long descriptors_of(int pid)
{
	char path[64];
	long n = 0;

	for (int fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
		n += !access(path, F_OK) || errno == EACCES;
	}
	return n;
}

/* Waits until each client has got at least one more answer. */
static inline bool all_answered(struct load *l, int ms)
{
	int before[LOAD_CLIENTS];

	for (int i = 0; i < LOAD_CLIENTS; i++)
		before[i] = atomic_load(&l->ended[i]);
	for (int i = 0; i < LOAD_CLIENTS; i++)
		if (!WAIT_FOR(atomic_load(&l->ended[i]) > before[i], ms))
			return false;
	return true;
}

/* ---- streams of questions whose answers are known ---- */

enum { MOST_STREAMS = 8 };

struct streams {
	int num;
	void (*body)(char *to, size_t len, int i);	/* writes the request of stream i */
	const char *named;		/* the log's words before the processes of two workers */
	const struct server *server;
	char want[MOST_STREAMS][512];	/* the answers */
	pthread_t threads[MOST_STREAMS];
	atomic_int served, lost, changed, stop;
};

/* Returns whether there is an answer; -1: no worker is ready. */
static inline int stream_ask(const struct streams *x, int i, char *text, size_t len)
{
	struct reply *r = calloc(1, sizeof(*r));
	char body[1024];
	json_t *root;
	int ok;

	x->body(body, sizeof(body), i);
	ok = r && post(x->server, "/v1/completions", body, r) == 200;
	root = ok ? json_of(r) : NULL;
	snprintf(text, len, "%s", root ? json_string_value(at_path(root, "choices.0.text")) : "");
	json_decref(root);
	ok = ok ? 1 : r && r->status == 503 ? -1 : 0;
	free(r);
	return ok;
}

/* Asks each question once: the answers of this server are the right ones. */
static inline void streams_learn(struct cairn_test *t, struct streams *x, const struct server *s)
{
	x->server = s;
	for (int i = 0; i < x->num; i++)
		EXPECT(t, stream_ask(x, i, x->want[i], sizeof(x->want[i])) == 1);
}

struct stream {
	struct streams *x;
	int i;
};

static inline void *stream_run(void *arg)
{
	struct stream *m = arg;
	char text[512];

	while (!atomic_load(&m->x->stop)) {
		int ok = stream_ask(m->x, m->i, text, sizeof(text));

		if (ok < 0) {
			nap_ms(5);
			continue;
		}
		atomic_fetch_add(!ok ? &m->x->lost :
				 strcmp(text, m->x->want[m->i]) ? &m->x->changed : &m->x->served, 1);
	}
	free(m);
	return NULL;
}

static inline void streams_start(struct streams *x, const struct server *s)
{
	x->server = s;
	atomic_store(&x->served, 0);
	atomic_store(&x->lost, 0);
	atomic_store(&x->changed, 0);
	atomic_store(&x->stop, 0);
	for (int i = 0; i < x->num; i++) {
		struct stream *m = malloc(sizeof(*m));

		*m = (struct stream){ x, i };
		pthread_create(&x->threads[i], NULL, stream_run, m);
	}
}

static inline void streams_end(struct streams *x)
{
	atomic_store(&x->stop, 1);
	for (int i = 0; i < x->num; i++)
		pthread_join(x->threads[i], NULL);
}

/* Notes and expects that all answers came and were right. */
static inline void streams_judge(struct cairn_test *t, struct streams *x)
{
	const int served = atomic_load(&x->served), lost = atomic_load(&x->lost);
	const int changed = atomic_load(&x->changed);

	cairn_note(t, "%d answers are right, %d lost, %d changed", served, lost, changed);
	EXPECT(t, served && !lost && !changed);
}

/* The row of a measure: answers under this many kills, and losses that the server noticed. */
static inline void streams_row(struct cairn_test *t, struct streams *x, const char *name, int kills,
			       double noticed)
{
	const int lost = atomic_load(&x->lost), changed = atomic_load(&x->changed);

	cairn_host_row(t, name, "cpu", "\"kills\":%d,\"answers\":%d,\"lost\":%d,\"changed\":%d,"
		       "\"recoveries\":%.0f", kills, atomic_load(&x->served) + lost + changed, lost, changed,
		       noticed);
}

/* Reads the workers' processes from the last line of the log that names two. Returns the number of lines. */
static inline int streams_workers(const struct streams *x, const struct server *s, int pids[2])
{
	static char text[1 << 16];
	int n = 0, first, second;

	for (char *at = log_of(s, text, sizeof(text)); (at = strstr(at, x->named)); at++) {
		if (sscanf(at + strlen(x->named), "%d, %d", &first, &second) != 2)
			continue;
		pids[0] = first;
		pids[1] = second;
		n++;
	}
	return n;
}

/* Has `hit` end or stop a process while there is work, and waits until the log names the next workers. */
static inline void streams_kill(struct cairn_test *t, const struct streams *x, int i,
				void (*hit)(const int pids[2], int i))
{
	const int before = atomic_load(&x->served);
	int pids[2], lines;

	EXPECT(t, WAIT_FOR(atomic_load(&x->served) > before, 60000));
	lines = streams_workers(x, x->server, pids);
	if (!EXPECT(t, lines > 0))
		return;
	hit(pids, i);
	EXPECT(t, WAIT_FOR(streams_workers(x, x->server, pids) > lines, 60000));
}

#endif
