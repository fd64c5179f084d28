// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_compile - compiles constraints in separate threads, and keeps them for later requests
 *
 * The library has limits that refuse most constraints that would take long. A constraint that still takes
 * longer than compile_ms is refused; its thread runs on, and its result is dropped. When all threads are in
 * that state the process ends, and is started anew.
 *
 * The cache is bounded by the memory of the process as the allocator reports it: while more than cache_bytes
 * are in use, the constraints that have gone unused longest are dropped, down to the last one used.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/grammar/grammar_process.h"

#ifdef CAIRN_SANITIZED
static size_t bytes_in_use(void) { return 0; }	/* the sanitizer's allocator does not report it */
#else
static size_t bytes_in_use(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}
#endif

static uint64_t hash_of(const struct job *job)
{
	uint64_t h = 0xcbf29ce484222325u + (uint64_t)job->kind;

	for (size_t i = 0; i < job->num_bytes; i++)
		h = (h ^ (uint8_t)job->text[i]) * 0x100000001b3u;
	return h;
}

static void compiled_free(struct grammar *g, struct compiled *c)
{
	if (c->matcher)
		g->lib.free_matcher(c->matcher);
	free(c->text);
	free(c);
}

/* ---- the cache; call with the lock held ---- */

static void unlink_compiled(struct grammar *g, struct compiled *c)
{
	*(c->prev ? &c->prev->next : &g->cache) = c->next;
	*(c->next ? &c->next->prev : &g->cache_tail) = c->prev;
	c->prev = c->next = NULL;
}

static void link_first(struct grammar *g, struct compiled *c)
{
	c->next = g->cache;
	*(g->cache ? &g->cache->prev : &g->cache_tail) = c;
	g->cache = c;
}

static struct compiled *find(struct grammar *g, const struct job *job, uint64_t hash)
{
	for (struct compiled *c = g->cache; c; c = c->next) {
		if (c->hash != hash || c->kind != job->kind || c->num_bytes != job->num_bytes ||
		    memcmp(c->text, job->text, job->num_bytes))
			continue;
		unlink_compiled(g, c);
		link_first(g, c);
		c->refs++;
		return c;
	}
	return NULL;
}

/* Drops what has gone unused longest while too much memory is in use. */
static void shrink(struct grammar *g)
{
	while (g->cache_tail != g->cache &&
	       bytes_in_use() > g->base_bytes + (size_t)g->opt.cache_bytes) {
		struct compiled *c = g->cache_tail;

		unlink_compiled(g, c);
		if (!--c->refs)
			compiled_free(g, c);
	}
}

void compiled_put(struct grammar *g, struct compiled *c)
{
	int last;

	if (!c)
		return;
	pthread_mutex_lock(&g->lock);
	last = !--c->refs;
	pthread_mutex_unlock(&g->lock);
	if (last)
		compiled_free(g, c);
}

/* ---- compiling ---- */

/* Puts the library's reason on one line, behind the name of the kind. */
static void refuse(struct job *job, const char *why)
{
	static const char tail[] = " <non-verbose/>";	/* in place of the library's state */
	int n = snprintf(job->why, sizeof(job->why), "%s: ", grammar_kind_name(job->kind));
	char *end;

	if (!strncmp(why, "NoExtension", 11))
		why = "no text satisfies it";

	for (; *why && n < GRAMMAR_MAX_ERROR; why++) {
		int is_space = (uint8_t)*why <= ' ' || (uint8_t)*why == 0x7f;

		if (!is_space || job->why[n - 1] != ' ')
			job->why[n++] = is_space ? ' ' : *why;
	}
	while (n && job->why[n - 1] == ' ')
		n--;
	job->why[n] = 0;
	end = strstr(job->why, tail);
	if (end)
		memmove(end, end + sizeof(tail) - 1, strlen(end) - sizeof(tail) + 2);
}

/* Computes a first mask with a copy: some constraints fail only there. */
static int try_mask(const struct grammar *g, struct job *job, const struct llg_matcher *matcher)
{
	size_t bytes = (size_t)g->vocab.words * sizeof(uint32_t);
	struct llg_matcher *copy = g->lib.clone_matcher(matcher);
	uint32_t *mask = malloc(bytes);
	int ok = mask && g->lib.matcher_get_mask_byte_size(copy) == bytes &&
		 !g->lib.matcher_compute_mask_into(copy, mask, bytes);
	const char *why = g->lib.matcher_get_error(copy);

	if (!ok)
		refuse(job, why ? why : "no mask can be computed");
	g->lib.free_matcher(copy);
	free(mask);
	return ok;
}

static struct compiled *compile(struct grammar *g, struct job *job, uint64_t hash)
{
	struct compiled *c = calloc(1, sizeof(*c));
	struct llg_init init = { 0 };
	char *source = NULL;
	const char *word;

	if (!c || grammar_source(job->kind, job->text, job->num_bytes, &word, &source)) {
		snprintf(job->why, sizeof(job->why), "%.*s", GRAMMAR_MAX_ERROR,
			 c ? cairn_last_error() : "no memory");
		free(c);
		return NULL;
	}
	g->lib.constraint_init_set_defaults(&init, g->vocab.tokenizer);
	init.log_buffer_level = init.log_stderr_level = 0;
	init.limits.max_lexer_states = 50000;	/* up to 2 kB each */
	init.limits.verbose_errors = false;
	*c = (struct compiled){ .kind = job->kind, .num_bytes = job->num_bytes, .hash = hash, .refs = 1 };
	c->matcher = g->lib.new_matcher(&init, word, source);
	free(source);
	if (g->lib.matcher_get_error(c->matcher)) {
		refuse(job, g->lib.matcher_get_error(c->matcher));
	} else if (try_mask(g, job, c->matcher)) {
		c->text = job->text;		/* the key of the cache */
		job->text = NULL;
		return c;
	}
	compiled_free(g, c);
	return NULL;
}

static void do_job(struct grammar *g, struct job *job)
{
	int64_t begun = cairn_clock_ns();
	uint64_t hash = hash_of(job);

	pthread_mutex_lock(&g->lock);
	job->compiled = find(g, job, hash);
	pthread_mutex_unlock(&g->lock);
	job->was_cached = job->compiled != NULL;
	if (!job->compiled)
		job->compiled = compile(g, job, hash);
	job->ns = cairn_clock_ns() - begun;
}

static void wake_loop(const struct grammar *g)
{
	uint64_t one = 1;
	ssize_t n = write(g->wake_fd, &one, sizeof(one));

	(void)n;	/* it fails only if the counter is full, so a wake-up is pending anyway */
}

static void *compile_all(void *arg)
{
	struct compiler *me = arg;
	struct grammar *g = me->g;

	pthread_mutex_lock(&g->lock);
	for (;;) {
		struct job *job;

		while (!g->waiting)
			pthread_cond_wait(&g->more, &g->lock);
		job = g->waiting;
		g->waiting = job->next;
		if (!g->waiting)
			g->waiting_tail = &g->waiting;
		me->job = job;
		me->begun = cairn_clock_ns();
		me->given_up = 0;
		pthread_mutex_unlock(&g->lock);
		wake_loop(g);			/* to watch the time limit */
		do_job(g, job);
		pthread_mutex_lock(&g->lock);
		me->job = NULL;
		if (job->compiled && !job->was_cached) {
			link_first(g, job->compiled);
			job->compiled->refs++;
			shrink(g);
		}
		if (me->given_up) {
			if (job->compiled)
				job->compiled->refs--;	/* the cache has another */
			grammar_job_free(job);
			continue;
		}
		job->next = g->done;
		g->done = job;
		wake_loop(g);
	}
	return NULL;
}

int grammar_compile_start(struct grammar *g)
{
	pthread_attr_t attr;
	int ret = 0;

	g->waiting_tail = &g->waiting;
	g->base_bytes = bytes_in_use();
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->more, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, GRAMMAR_STACK);
	for (int i = 0; !ret && i < GRAMMAR_COMPILERS; i++) {
		g->compilers[i].g = g;
		ret = pthread_create(&g->compilers[i].thread, &attr, compile_all, &g->compilers[i]);
	}
	pthread_attr_destroy(&attr);
	return ret ? cairn_error(EIO, "grammar: no thread: %s", strerror(ret)) : 0;
}

void grammar_compile(struct grammar *g, struct job *job)
{
	pthread_mutex_lock(&g->lock);
	job->next = NULL;
	*g->waiting_tail = job;
	g->waiting_tail = &job->next;
	pthread_cond_signal(&g->more);
	pthread_mutex_unlock(&g->lock);
}

struct job *grammar_compile_done(struct grammar *g)
{
	struct job *job;

	pthread_mutex_lock(&g->lock);
	job = g->done;
	if (job)
		g->done = job->next;
	pthread_mutex_unlock(&g->lock);
	return job;
}

int grammar_compile_limit(struct grammar *g, struct job **late, int *ms)
{
	int64_t now = cairn_clock_ns(), limit = (int64_t)g->opt.compile_ms * 1000000;
	int stuck = 0;

	*late = NULL;
	*ms = -1;
	pthread_mutex_lock(&g->lock);
	for (int i = 0; i < GRAMMAR_COMPILERS; i++) {
		struct compiler *c = &g->compilers[i];
		int64_t left = c->begun + limit - now;

		stuck += c->job && c->given_up;
		if (!c->job || c->given_up)
			continue;
		if (left <= 0 && !*late) {
			*late = calloc(1, sizeof(**late));
			c->given_up = 1;
			stuck++;
			if (*late) {
				(*late)->id = c->job->id;
				(*late)->kind = c->job->kind;
				snprintf((*late)->why, sizeof((*late)->why), "%s: takes longer than %d ms to "
					 "compile", grammar_kind_name(c->job->kind), g->opt.compile_ms);
			}
		} else if (*ms < 0 || left / 1000000 < *ms) {
			*ms = left > 0 ? (int)(left / 1000000) + 1 : 0;
		}
	}
	pthread_mutex_unlock(&g->lock);
	return stuck == GRAMMAR_COMPILERS ?
	       cairn_error(ETIMEDOUT, "grammar: all compilers are stuck") : 0;
}

void grammar_job_free(struct job *job)
{
	free(job->text);
	free(job);
}
