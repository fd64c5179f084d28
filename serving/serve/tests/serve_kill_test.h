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

/* Waits until each client has an answer to the request that it has sent by now, or to an earlier one. */
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

#endif
