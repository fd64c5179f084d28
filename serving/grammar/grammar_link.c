// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_link - starts the grammar process, exchanges messages with it, and starts it anew when it fails
 *
 *   none --first open--> STARTING --READY--> READY --end, time limit, violation--> none --delay--> STARTING
 *
 * A failed process is killed and reaped before the next one starts. The delay before the next one is 0 after
 * a process that was READY, and doubles from 0.1 s to 10 s after those that were not. One that says that it
 * is UNUSABLE is not started again. */
#include "serving/grammar/grammar_client.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"

#define MS		1000000ll
#define FIRST_DELAY	(100 * MS)
#define MAX_DELAY	(10000 * MS)
#define START_NS	(120000 * MS)	/* to load a vocabulary */

extern char **environ;

static int spawn(struct cairn_grammar *g)
{
	char vocab[16], masks[16], cache[24], compile[16];
	char *argv[] = { "cairn", "grammar", g->dir, vocab, masks, cache, compile, g->eos, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int fds[2], high[2], ret;

	snprintf(vocab, sizeof(vocab), "%d", g->opt.vocab_size);
	snprintf(masks, sizeof(masks), "%d", g->opt.max_masks);
	snprintf(cache, sizeof(cache), "%lld", (long long)g->opt.cache_bytes);
	snprintf(compile, sizeof(compile), "%d", g->opt.compile_ms);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds))
		return cairn_error(EIO, "grammar: socketpair: %s", strerror(errno));
	/* copies above the two numbers that they get in the process, so that neither overwrites the other */
	high[0] = fcntl(fds[1], F_DUPFD_CLOEXEC, GRAMMAR_MEMORY + 1);
	high[1] = fcntl(g->memory_fd, F_DUPFD_CLOEXEC, GRAMMAR_MEMORY + 1);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, high[0], GRAMMAR_SOCKET);
	posix_spawn_file_actions_adddup2(&actions, high[1], GRAMMAR_MEMORY);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	/* helpers of a step must not spin while they wait: other processes need the processors */
	ret = setenv("OMP_WAIT_POLICY", "passive", 0) || setenv("OMP_STACKSIZE", "256M", 0) ? errno :
	      posix_spawn(&g->pid, "/proc/self/exe", &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	for (int i = 0; i < 2; i++)
		if (high[i] >= 0)
			close(high[i]);
	close(fds[1]);
	if (ret) {
		g->pid = -1;
		close(fds[0]);
		return cairn_error(EIO, "grammar: the process cannot be started: %s", strerror(ret));
	}
	g->fd = fds[0];
	g->started = cairn_clock_ns();
	g->is_ready = 0;
	g->in.begin = g->in.end = 0;
	free(g->out.data);
	g->out = (struct cairn_out_queue){ 0 };
	return 0;
}

void grammar_fail(struct cairn_grammar *g)
{
	if (g->fd >= 0)
		close(g->fd);
	g->fd = -1;
	if (g->pid > 0) {
		kill(g->pid, SIGKILL);
		while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	g->pid = -1;
	for (uint32_t i = 0; i < g->num_entries; i++)
		if (g->entries[i].id && g->entries[i].state != CAIRN_GRAMMAR_REFUSED)
			g->entries[i].state = CAIRN_GRAMMAR_LOST;
	g->num_masks = 0;
	g->delay = g->is_ready ? 0 : !g->delay ? FIRST_DELAY : g->delay < MAX_DELAY / 2 ? 2 * g->delay :
		   MAX_DELAY;
	g->is_ready = 0;
	g->next_start = cairn_clock_ns() + g->delay;
}

static void set_unusable(struct cairn_grammar *g, const char *text, int32_t num)
{
	snprintf(g->unusable, sizeof(g->unusable), "%.*s", num, text);
	if (!g->unusable[0])
		snprintf(g->unusable, sizeof(g->unusable), "the grammar process did not say why it ended");
	for (uint32_t i = 0; i < g->num_entries; i++) {
		struct entry *e = &g->entries[i];

		if (!e->id || e->state == CAIRN_GRAMMAR_REFUSED)
			continue;
		e->state = CAIRN_GRAMMAR_REFUSED;
		e->why = strdup(g->unusable);
	}
}

static int take(struct cairn_grammar *g, const struct grammar_frame *f, const char *text)
{
	struct entry *e = grammar_find(g, f->id);

	switch (f->kind) {
	case GRAMMAR_READY:
		if (g->is_ready || f->num != g->opt.vocab_size)
			return -EINVAL;
		g->is_ready = 1;
		return 0;
	case GRAMMAR_UNUSABLE:
		set_unusable(g, text, f->bytes);
		return -EINVAL;
	case GRAMMAR_OPENED:
	case GRAMMAR_REFUSED:
		if (!g->is_ready || (e && e->state != CAIRN_GRAMMAR_OPENING))
			return -EINVAL;
		if (f->kind == GRAMMAR_OPENED) {
			g->stats.compiled += !f->num;
			g->stats.cache_hits += !!f->num;
			g->stats.compile_ns += f->ns > 0 ? f->ns : 0;
		} else {
			g->stats.refused++;
		}
		if (!e)			/* closed meanwhile */
			return 0;
		e->state = f->kind == GRAMMAR_OPENED ? CAIRN_GRAMMAR_OPEN : CAIRN_GRAMMAR_REFUSED;
		if (f->kind == GRAMMAR_REFUSED)
			e->why = strndup(text, (size_t)f->bytes);
		return 0;
	case GRAMMAR_STEPPED:
		if (!g->is_ready || g->stepped || f->id != g->step)
			return -EINVAL;
		g->stepped = 1;
		return 0;
	default:
		return -EINVAL;
	}
}

int grammar_exchange(struct cairn_grammar *g)
{
	struct grammar_frame f;
	const char *text;
	int ret;

	while ((ret = grammar_fill(&g->in, g->fd)) > 0) {
		while ((ret = grammar_next(&g->in, &f, &text)) > 0)
			CAIRN_TRY(take(g, &f, text));
		if (ret < 0)
			return ret;
	}
	if (ret == 0 && g->is_ready)
		ret = grammar_flush(&g->out, g->fd);
	return ret < 0 ? ret : 0;
}

void cairn_grammar_poll(struct cairn_grammar *g)
{
	int64_t now = cairn_clock_ns();

	if (g->fd >= 0 && (grammar_exchange(g) || (!g->is_ready && now > g->started + START_NS)))
		grammar_fail(g);
	if (g->fd >= 0 || !g->is_wanted || g->unusable[0] || now < g->next_start)
		return;
	g->stats.restarts += g->was_started;
	g->was_started = 1;
	if (spawn(g))
		grammar_fail(g);
}
