// SPDX-License-Identifier: Apache-2.0
/*
 * grammar - the engine's side of the grammar process: constraints and steps
 *
 * Everything but a step goes through queues and never blocks. A step waits for at most step_ms.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/grammar/grammar_client.h"
#include "serving/grammar/llguidance.h"

#define MS		1000000ll

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
		void *entries = num > 1u << GRAMMAR_SLOT_BITS ? NULL :
				realloc(g->entries, num * sizeof(**e));
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
	(*e)->id = ++g->generation << GRAMMAR_SLOT_BITS | (uint64_t)(*e - g->entries);
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
	const struct entry *e = grammar_find(g, id);

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
	struct entry *e = grammar_find(g, id);

	if (!e)
		return;
	if (g->fd >= 0 && (e->state == CAIRN_GRAMMAR_OPENING || e->state == CAIRN_GRAMMAR_OPEN)) {
		grammar_put(&g->out, &f, NULL, 0, NULL, 0);
		cairn_grammar_poll(g);
		e = grammar_find(g, id);
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

		CAIRN_TRY(grammar_exchange(g));
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
	const struct entry *e = grammar_find(g, from->constraint);
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
		grammar_fail(g);
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
	grammar_fail(g);
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
