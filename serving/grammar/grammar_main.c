// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_main - `cairn grammar`: the process that holds the library
 *
 * One thread takes messages and computes steps, with helpers; compilers work beside it. The process ends when
 * its socket is closed. It never answers a constraint that it has not compiled, and a violation of the
 * protocol ends it.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/grammar/grammar_process.h"

#define MAX_MEMORY	(8ull << 30)	/* address space: more is a constraint that has exploded */
#define MAX_THREADS	16
#define MAX_EOS		64
#define EXIT_USAGE	2

static void put_text(struct grammar *g, enum grammar_message kind, uint64_t id, const char *why)
{
	struct grammar_frame f = { .kind = (uint16_t)kind, .id = id };

	grammar_put(&g->out, &f, why, strnlen(why, GRAMMAR_MAX_ERROR), NULL, 0);
}

static int open_constraint(struct grammar *g, const struct grammar_frame *f, const char *text)
{
	size_t num_after = (size_t)f->num_after, num_bytes = (size_t)f->bytes - num_after;
	struct opened **bucket = &g->buckets[f->id * 0x9e3779b97f4a7c15u >> 54];
	struct job *job = calloc(1, sizeof(*job));
	struct opened *o;

	if (opened_find(g, f->id)) {
		free(job);
		return cairn_error(EINVAL, "grammar: a constraint is opened twice");
	}
	o = opened_new(f->id, f->num_seqs, text + num_bytes, f->num_after);
	if (job)
		*job = (struct job){ .id = f->id, .kind = (enum cairn_constraint_kind)f->constraint,
				     .text = malloc(num_bytes + 1), .num_bytes = num_bytes };
	if (!job || !job->text || !o) {
		if (o)
			opened_free(g, o);
		if (job)
			grammar_job_free(job);
		return cairn_error(ENOMEM, "grammar: no memory for a constraint");
	}
	memcpy(job->text, text, num_bytes);
	o->next = *bucket;
	*bucket = o;
	grammar_compile(g, job);
	return 0;
}

static void close_constraint(struct grammar *g, uint64_t id)
{
	struct opened **at = &g->buckets[id * 0x9e3779b97f4a7c15u >> 54], *o;

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	o = *at;
	if (!o)
		return;
	*at = o->next;
	opened_free(g, o);
}

static void answer(struct grammar *g, struct job *job)
{
	struct grammar_frame f = { .kind = GRAMMAR_OPENED, .id = job->id, .num = job->was_cached,
				   .ns = job->ns };
	struct opened *o = opened_find(g, job->id);

	if (!o) {			/* closed meanwhile */
		compiled_put(g, job->compiled);
	} else if (job->compiled) {
		o->compiled = job->compiled;
		grammar_put(&g->out, &f, NULL, 0, NULL, 0);
	} else {
		put_text(g, GRAMMAR_REFUSED, job->id, job->why);
		close_constraint(g, job->id);
	}
	grammar_job_free(job);
}

static int take(struct grammar *g, const struct grammar_frame *f, const char *text)
{
	struct grammar_frame done = { .kind = GRAMMAR_STEPPED, .id = f->id, .num = f->num };

	switch (f->kind) {
	case GRAMMAR_OPEN:
		return open_constraint(g, f, text);
	case GRAMMAR_CLOSE:
		close_constraint(g, f->id);
		return 0;
	case GRAMMAR_STEP:
		if (f->num < 0 || f->num > g->memory.max_masks)
			return cairn_error(EINVAL, "grammar: a step of %d items", f->num);
		done.ns = cairn_clock_ns();
		grammar_step(g, f->num);
		done.ns = cairn_clock_ns() - done.ns;
		grammar_put(&g->out, &done, NULL, 0, NULL, 0);
		return 0;
	default:
		return cairn_error(EINVAL, "grammar: message %d is not for this process", f->kind);
	}
}

/* Takes messages and outcomes until the engine's process is gone. */
static int loop(struct grammar *g)
{
	struct grammar_frame f;
	const char *text;
	struct job *job;
	uint64_t count;
	int ret, ms;

	for (;;) {
		struct pollfd p[2] = { { GRAMMAR_SOCKET, POLLIN, 0 }, { g->wake_fd, POLLIN, 0 } };

		CAIRN_TRY(grammar_compile_limit(g, &job, &ms));
		if (job)
			answer(g, job);
		ret = grammar_flush(&g->out, GRAMMAR_SOCKET);
		if (ret < 0)
			return ret;
		if (ret)
			p[0].events |= POLLOUT;
		poll(p, 2, ms);
		if (p[1].revents && read(g->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
			return cairn_error(EIO, "grammar: %s", strerror(errno));
		while ((job = grammar_compile_done(g)))
			answer(g, job);
		while ((ret = grammar_fill(&g->in, GRAMMAR_SOCKET)) > 0) {
			while ((ret = grammar_next(&g->in, &f, &text)) > 0)
				CAIRN_TRY(take(g, &f, text));
			if (ret < 0)
				return ret;
		}
		if (ret < 0)
			return ret;
	}
}

static int map_memory(struct grammar *g)
{
	void *base;

	grammar_lay_out(&g->memory, NULL, g->opt.max_masks, g->opt.vocab_size);
	base = mmap(NULL, g->memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, GRAMMAR_MEMORY, 0);
	if (base == MAP_FAILED)
		return cairn_error(EIO, "grammar: the shared memory: %s", strerror(errno));
	grammar_lay_out(&g->memory, base, g->opt.max_masks, g->opt.vocab_size);
	return 0;
}

static int start(struct grammar *g)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct grammar_frame ready = { .kind = GRAMMAR_READY };

	g->threads = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
	g->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (g->wake_fd < 0)
		return cairn_error(EIO, "grammar: eventfd: %s", strerror(errno));
	CAIRN_TRY(map_memory(g));
	CAIRN_TRY(llguidance_load(&g->lib));
	CAIRN_TRY(vocabulary_open(&g->vocab, &g->lib, &g->opt));
	CAIRN_TRY(grammar_compile_start(g));
	ready.num = g->opt.vocab_size;
	grammar_put(&g->out, &ready, NULL, 0, NULL, 0);
	return 0;
}

/* The loop runs in a thread with a large stack. */
static void *run(void *arg)
{
	struct grammar *g = arg;
	int ret = start(g);

	if (ret) {
		put_text(g, GRAMMAR_UNUSABLE, 0, cairn_last_error());
		grammar_flush(&g->out, GRAMMAR_SOCKET);
	} else {
		ret = loop(g);
		if (ret != -EPIPE)
			fprintf(stderr, "cairn grammar: %s\n", cairn_last_error());
	}
	/* other threads may still be compiling */
	_exit(ret == -EPIPE ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* Reads the arguments that spawn() in grammar_link.c gives: the model's folder, four numbers, end tokens. */
static int read_arguments(int argc, char **argv, struct cairn_grammar_options *o, int32_t *eos)
{
	long long numbers[4];
	char *at;

	for (int i = 0; i < 4; i++) {
		numbers[i] = argc == 7 ? strtoll(argv[2 + i], &at, 10) : 0;
		if (numbers[i] < 1 || *at || numbers[i] > (i == 2 ? INT64_MAX : 1 << 22))
			return 0;
	}
	*o = (struct cairn_grammar_options){
		.model_dir = argv[1], .vocab_size = (int32_t)numbers[0], .max_masks = (int32_t)numbers[1],
		.cache_bytes = numbers[2], .compile_ms = (int32_t)numbers[3], .eos = eos,
	};
	at = argv[6];
	do {
		long id = strtol(at, &at, 10);

		if (id < 0 || id >= o->vocab_size || (*at && *at != ',') || o->num_eos == MAX_EOS)
			return 0;
		eos[o->num_eos++] = (int32_t)id;
	} while (*at++);
	return 1;
}

int cairn_cmd_grammar(int argc, char **argv)
{
	static struct grammar g;
	static int32_t eos[MAX_EOS];
	struct rlimit memory = { MAX_MEMORY, MAX_MEMORY }, core = { 0, 0 };
	pthread_attr_t attr;
	pthread_t thread;
	int ret;

	if (!read_arguments(argc, argv, &g.opt, eos)) {
		fputs("cairn grammar: is started by the engine, not by hand\n", stderr);
		return EXIT_USAGE;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
#ifndef CAIRN_SANITIZED
	setrlimit(RLIMIT_AS, &memory);
#else
	(void)memory;
#endif
	setrlimit(RLIMIT_CORE, &core);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, GRAMMAR_STACK);
	ret = pthread_create(&thread, &attr, run, &g);
	pthread_attr_destroy(&attr);
	if (ret) {
		fprintf(stderr, "cairn grammar: no thread: %s\n", strerror(ret));
		return EXIT_FAILURE;
	}
	pthread_join(thread, NULL);
	return EXIT_FAILURE;
}
