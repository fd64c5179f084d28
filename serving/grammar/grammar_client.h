/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_client - the engine's side of the grammar process: what grammar.c and grammar_link.c share */
#ifndef CAIRN_GRAMMAR_CLIENT_H
#define CAIRN_GRAMMAR_CLIENT_H

#include "serving/grammar/grammar_wire.h"

#define GRAMMAR_SLOT_BITS	20	/* of a constraint's number: its place in entries */

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
	struct cairn_out_queue out;
	struct grammar_in in;
	struct entry *entries;		/* [num_entries] */
	uint32_t *free_entries, num_entries, num_free;
	uint64_t generation, step;
	int stepped;			/* the process has answered the step */
	int32_t num_masks;		/* of the last step that succeeded */
	struct cairn_mask_source masks;
	struct cairn_grammar_stats stats;
};

static inline struct entry *grammar_find(const struct cairn_grammar *g, uint64_t id)
{
	uint64_t slot = id & ((1u << GRAMMAR_SLOT_BITS) - 1);

	return id && slot < g->num_entries && g->entries[slot].id == id ? &g->entries[slot] : NULL;
}

/* grammar_link.c: reads and sends what can be. After an error the process is of no use. */
int grammar_exchange(struct cairn_grammar *g);
/* Ends the process. Everything that was open is lost. */
void grammar_fail(struct cairn_grammar *g);

#endif
