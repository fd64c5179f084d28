// SPDX-License-Identifier: Apache-2.0
/*
 * grammar - the engine's side: starts the grammar process, talks to it, and starts it anew when it has failed
 *
 *   none --first open--> STARTING --READY--> READY --end, time limit, violation--> none --delay--> STARTING
 *
 * A failed process is killed and reaped before the next one starts. The delay before the next one is 0 after
 * a process that was READY, and doubles from 0.1 s to 10 s after those that were not. One that says that it
 * is UNUSABLE is not started again.
 *
 * Everything but a step goes through queues and never blocks. A step waits for at most step_ms.
 */
#include "serving/grammar/grammar.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/grammar/grammar_wire.h"
#include "serving/grammar/llguidance.h"

#define MS		1000000ll
#define FIRST_DELAY	(100 * MS)
#define MAX_DELAY	(10000 * MS)
#define START_NS	(120000 * MS)	/* to load a vocabulary */
#define SLOT_BITS	20

extern char **environ;

/* A constraint that the caller has opened and not closed. */
struct entry {
	uint64_t id;			/* 0: free */
	enum cairn_grammar_state state;
	int32_t num_seqs;
	char *why;			/* REFUSED */
};

struct cairn_grammar {
	struct cairn_grammar_options opt;
	char *dir;
	char eos[1024];
	int fd, memory_fd, pid;
	int is_ready;
	int is_wanted, was_started;	/* a constraint has been opened; a process has been started */
	int64_t started, next_start, delay;
	char unusable[GRAMMAR_MAX_ERROR + 1];	/* "": usable */
	struct grammar_memory memory;
	void *base;
	struct grammar_out out;
	struct grammar_in in;
	struct entry *entries;		/* [num_entries] */
	uint32_t *free_entries, num_entries, num_free;
	uint64_t generation, step;
	int stepped;			/* the process has answered the step */
	int32_t num_masks;		/* of the last step that succeeded */
	struct cairn_mask_source masks;
	struct cairn_grammar_stats stats;
};

static struct entry *find(const struct cairn_grammar *g, uint64_t id)
{
	uint64_t slot = id & ((1u << SLOT_BITS) - 1);

	return id && slot < g->num_entries && g->entries[slot].id == id ? &g->entries[slot] : NULL;
}

/* ---- the process ---- */

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
	g->out = (struct grammar_out){ 0 };
	return 0;
}

/* Ends the process. Everything that was open is lost. */
static void fail(struct cairn_grammar *g)
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
	struct entry *e = find(g, f->id);

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

/* Reads and sends what can be. Returns 0, or an error after which the process is of no use. */
static int exchange(struct cairn_grammar *g)
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

	if (g->fd >= 0 && (exchange(g) || (!g->is_ready && now > g->started + START_NS)))
		fail(g);
	if (g->fd >= 0 || !g->is_wanted || g->unusable[0] || now < g->next_start)
		return;
	g->stats.restarts += g->was_started;
	g->was_started = 1;
	if (spawn(g))
		fail(g);
}

int cairn_grammar_fd(const struct cairn_grammar *g)
{
	return g->fd;
}

int cairn_grammar_pid(const struct cairn_grammar *g)
{
	return g->pid;
}

/* ---- constraints ---- */

static int take_entry(struct cairn_grammar *g, struct entry **e)
{
	uint32_t num = g->num_entries ? 2 * g->num_entries : 64;

	if (!g->num_free) {
		void *entries = num <= 1u << SLOT_BITS ? realloc(g->entries, num * sizeof(**e)) : NULL;
		void *places = entries ? realloc(g->free_entries, num * sizeof(*g->free_entries)) : NULL;

		if (entries)
			g->entries = entries;
		if (!places)
			return cairn_error(ENOMEM, "grammar: no memory for %u constraints", num);
		g->free_entries = places;
		memset(g->entries + g->num_entries, 0, (num - g->num_entries) * sizeof(**e));
		for (uint32_t i = num; i-- > g->num_entries;)
			g->free_entries[g->num_free++] = i;
		g->num_entries = num;
	}
	*e = &g->entries[g->free_entries[--g->num_free]];
	(*e)->id = ++g->generation << SLOT_BITS | (uint64_t)(*e - g->entries);
	return 0;
}

static int check(const struct cairn_constraint *c, int32_t num_seqs)
{
	if (c->kind <= CAIRN_CONSTRAINT_NONE || c->kind >= CAIRN_NUM_CONSTRAINT_KINDS || num_seqs < 1 ||
	    num_seqs > GRAMMAR_MAX_SEQS)
		return cairn_error(EINVAL, "constraint: kind %d for %d answers", c->kind, num_seqs);
	if (c->num_bytes > CAIRN_GRAMMAR_MAX_TEXT)
		return cairn_error(EINVAL, "constraint: has %zu bytes, at most %d are allowed", c->num_bytes,
				   CAIRN_GRAMMAR_MAX_TEXT);
	if (c->num_after > CAIRN_GRAMMAR_MAX_AFTER)
		return cairn_error(EINVAL, "constraint: the text before it has %zu bytes, at most %d are "
				   "allowed", c->num_after, CAIRN_GRAMMAR_MAX_AFTER);
	if (memchr(c->text, 0, c->num_bytes) || (c->num_after && memchr(c->after, 0, c->num_after)))
		return cairn_error(EINVAL, "constraint: has a NUL");
	return 0;
}

int cairn_grammar_open(struct cairn_grammar *g, const struct cairn_constraint *c, int32_t num_seqs,
		       uint64_t *id)
{
	struct grammar_frame f = { .kind = GRAMMAR_OPEN, .constraint = (int32_t)c->kind,
				   .num_seqs = num_seqs, .num_after = (int32_t)c->num_after };
	struct entry *e = NULL;

	CAIRN_TRY(check(c, num_seqs));
	g->is_wanted = 1;
	cairn_grammar_poll(g);
	CAIRN_TRY(take_entry(g, &e));
	f.id = *id = e->id;
	e->num_seqs = num_seqs;
	e->why = NULL;
	e->state = CAIRN_GRAMMAR_OPENING;
	if (g->unusable[0]) {
		e->state = CAIRN_GRAMMAR_REFUSED;
		e->why = strdup(g->unusable);
		return 0;
	}
	if (g->fd < 0) {
		e->state = CAIRN_GRAMMAR_LOST;
		return 0;
	}
	grammar_put(&g->out, &f, c->text, c->num_bytes, c->after, c->num_after);
	cairn_grammar_poll(g);
	return 0;
}

int cairn_grammar_is_usable(const struct cairn_grammar *g)
{
	return !g->unusable[0];
}

enum cairn_grammar_state cairn_grammar_state(const struct cairn_grammar *g, uint64_t id)
{
	const struct entry *e = find(g, id);

	if (!e)
		return CAIRN_GRAMMAR_LOST;
	if (e->state == CAIRN_GRAMMAR_REFUSED)
		cairn_error(g->unusable[0] ? EOPNOTSUPP : EINVAL, "%s", e->why ? e->why : "no memory");
	if (e->state == CAIRN_GRAMMAR_LOST)
		cairn_error(EIO, "the grammar process has failed");
	return e->state;
}

void cairn_grammar_close(struct cairn_grammar *g, uint64_t id)
{
	struct grammar_frame f = { .kind = GRAMMAR_CLOSE, .id = id };
	struct entry *e = find(g, id);

	if (!e)
		return;
	if (g->fd >= 0 && (e->state == CAIRN_GRAMMAR_OPENING || e->state == CAIRN_GRAMMAR_OPEN)) {
		grammar_put(&g->out, &f, NULL, 0, NULL, 0);
		cairn_grammar_poll(g);
		e = find(g, id);
	}
	free(e->why);
	*e = (struct entry){ 0 };
	g->free_entries[g->num_free++] = (uint32_t)(e - g->entries);
}

/* ---- steps ---- */

/* Sends the step and waits for its end. */
static int wait_for_step(struct cairn_grammar *g, int32_t num)
{
	struct grammar_frame f = { .kind = GRAMMAR_STEP, .id = ++g->step, .num = num };
	int64_t end = cairn_clock_ns() + g->opt.step_ms * MS, left;

	g->stepped = 0;
	grammar_put(&g->out, &f, NULL, 0, NULL, 0);
	for (;;) {
		struct pollfd p = { g->fd, POLLIN, 0 };

		CAIRN_TRY(exchange(g));
		if (g->stepped)
			return 0;
		left = end - cairn_clock_ns();
		if (left <= 0)
			return cairn_error(ETIMEDOUT, "grammar: a step takes more than %d ms",
					   g->opt.step_ms);
		if (g->out.begin < g->out.end)
			p.events |= POLLOUT;
		poll(&p, 1, (int)(left / MS) + 1);
	}
}

/* Writes an item into the shared memory. Returns 0 if it has no place there or is not open. */
static int put_item(struct cairn_grammar *g, const struct cairn_mask_item *from, int32_t at, int32_t first)
{
	struct grammar_item *to = &g->memory.items[at];
	const struct entry *e = find(g, from->constraint);
	int32_t masks = from->wants_masks ? 1 + from->num_drafts : 0;

	if (!e || e->state != CAIRN_GRAMMAR_OPEN || from->num_tokens > GRAMMAR_MAX_TOKENS ||
	    from->num_drafts > GRAMMAR_MAX_TOKENS || at >= g->memory.max_masks ||
	    first + masks > g->memory.max_masks)
		return 0;
	to->id = from->constraint;
	to->draw = from->draw;
	to->seq = from->seq;
	to->num_tokens = from->num_tokens;
	to->num_drafts = from->num_drafts;
	to->wants_masks = from->wants_masks;
	to->num_valid = -1;
	to->first_mask = first;
	if (from->num_tokens)
		memcpy(to->tokens, from->tokens, (size_t)from->num_tokens * sizeof(*to->tokens));
	if (from->num_drafts)
		memcpy(to->drafts, from->drafts, (size_t)from->num_drafts * sizeof(*to->drafts));
	return 1;
}

static int step(void *ctx, struct cairn_mask_item *items, int32_t num)
{
	struct cairn_grammar *g = ctx;
	int32_t sent = 0, first = 0;
	int64_t begun = cairn_clock_ns();

	cairn_grammar_poll(g);
	for (int32_t i = 0; i < num; i++) {
		items[i].num_valid = -1;
		items[i].first_mask = 0;
		if (!g->is_ready || !put_item(g, &items[i], sent, first))
			continue;
		items[i].num_valid = sent++;
		items[i].first_mask = first;
		first += items[i].wants_masks ? 1 + items[i].num_drafts : 0;
	}
	g->num_masks = 0;
	if (!sent)
		return 0;
	if (wait_for_step(g, sent)) {
		fail(g);
		for (int32_t i = 0; i < num; i++)
			items[i].num_valid = -1;
		return 0;
	}
	for (int32_t i = 0; i < num; i++) {
		int32_t valid = items[i].num_valid < 0 ? -1 : g->memory.items[items[i].num_valid].num_valid;

		items[i].num_valid = valid < -1 || valid > items[i].num_drafts ? -1 : valid;
	}
	g->num_masks = first;
	if (first) {
		g->stats.masks += first;
		g->stats.mask_ns += cairn_clock_ns() - begun;
	}
	return 0;
}

static const uint32_t *mask(void *ctx, int32_t i, uint64_t constraint, int32_t seq, int64_t draw)
{
	struct cairn_grammar *g = ctx;
	struct grammar_head head;

	if (i < 0 || i >= g->num_masks)
		return NULL;
	head = g->memory.heads[i];
	if (!head.is_set || head.id != constraint || head.seq != seq || head.draw != draw)
		return NULL;
	return g->memory.masks + (int64_t)i * g->memory.words;
}

const struct cairn_mask_source *cairn_grammar_masks(struct cairn_grammar *g)
{
	return &g->masks;
}

void cairn_grammar_stats(const struct cairn_grammar *g, struct cairn_grammar_stats *stats)
{
	*stats = g->stats;
}

/* ---- start and end ---- */

int cairn_grammar_library(void)
{
	char path[8192];

	return llguidance_find(path, sizeof(path));
}

static int map_memory(struct cairn_grammar *g)
{
	grammar_lay_out(&g->memory, NULL, g->opt.max_masks, g->opt.vocab_size);
	g->memory_fd = memfd_create("cairn-grammar", MFD_CLOEXEC);
	if (g->memory_fd < 0 || ftruncate(g->memory_fd, (off_t)g->memory.bytes))
		return cairn_error(EIO, "grammar: shared memory: %s", strerror(errno));
	g->base = mmap(NULL, g->memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->memory_fd, 0);
	if (g->base == MAP_FAILED)
		return cairn_error(ENOMEM, "grammar: shared memory: %s", strerror(errno));
	grammar_lay_out(&g->memory, g->base, g->opt.max_masks, g->opt.vocab_size);
	return 0;
}

static int set_eos(struct cairn_grammar *g)
{
	size_t used = 0;

	if (g->opt.num_eos < 1)
		return cairn_error(EOPNOTSUPP, "constraints need a model with end-of-sequence tokens");
	for (int32_t i = 0; i < g->opt.num_eos; i++) {
		int n = snprintf(g->eos + used, sizeof(g->eos) - used, "%s%d", i ? "," : "", g->opt.eos[i]);

		used += (size_t)n;
		if (used >= sizeof(g->eos))
			return cairn_error(EINVAL, "grammar: %d end-of-sequence tokens", g->opt.num_eos);
	}
	g->opt.eos = NULL;
	return 0;
}

int cairn_grammar_create(struct cairn_grammar **out, const struct cairn_grammar_options *options)
{
	struct cairn_grammar *g;
	int ret = 0;

	CAIRN_TRY(cairn_grammar_library());
	g = calloc(1, sizeof(*g));
	if (!g)
		return cairn_error(ENOMEM, "grammar: no memory");
	g->opt = *options;
	g->opt.cache_bytes = g->opt.cache_bytes ? g->opt.cache_bytes : 64 << 20;
	g->opt.compile_ms = g->opt.compile_ms ? g->opt.compile_ms : 1000;
	g->opt.step_ms = g->opt.step_ms ? g->opt.step_ms : 5000;
	g->fd = g->memory_fd = g->pid = -1;
	g->base = MAP_FAILED;
	g->masks = (struct cairn_mask_source){ g, g->opt.vocab_size, step, mask };
	g->dir = strdup(options->model_dir);
	if (!g->dir)
		ret = cairn_error(ENOMEM, "grammar: no memory");
	if (!ret)
		ret = set_eos(g);
	if (!ret)
		ret = map_memory(g);
	if (ret) {
		cairn_grammar_destroy(g);
		return ret;
	}
	*out = g;
	return 0;
}

void cairn_grammar_destroy(struct cairn_grammar *g)
{
	if (!g)
		return;
	fail(g);
	for (uint32_t i = 0; i < g->num_entries; i++)
		free(g->entries[i].why);
	if (g->base != MAP_FAILED)
		munmap(g->base, g->memory.bytes);
	if (g->memory_fd >= 0)
		close(g->memory_fd);
	free(g->out.data);
	free(g->entries);
	free(g->free_entries);
	free(g->dir);
	free(g);
}
