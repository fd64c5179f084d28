/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_seqs - the sequences for which a drafter stores keys, in a pool of pages of its own
 *
 * A sequence is identified by request and index. If entries or pages run out, the least recently used
 * sequence loses its keys, unless it takes part in the current call.
 *
 * Not thread-safe. Errors: those of the pool; -ENOMEM.
 */
#ifndef CAIRN_DRAFT_SEQS_H
#define CAIRN_DRAFT_SEQS_H

#include "serving/engine/speculate.h"
#include "serving/kv/kv_pool.h"
#include "serving/scheduler/scheduler.h"

#define CAIRN_DRAFT_FEW_ROWS	(CAIRN_MAX_DRAFTS + 2)	/* of a sequence in an ordinary call */

struct cairn_draft_seq {
	uint64_t request;
	int32_t index, kv;		/* kv: handle in the pool; -1: the entry is free */
	int32_t computed;		/* rows that need not be computed again; 0: the sequence is new */
	int64_t used;			/* number of the last call with this sequence */
};

struct cairn_draft_seqs {
	struct cairn_kv_pool *pool;
	struct cairn_draft_seq *all;	/* [max] */
	int32_t max;
	int64_t calls;			/* the drafter counts its calls here */
};

/* On an error *s can be destroyed. */
int cairn_draft_seqs_create(struct cairn_draft_seqs *s, int32_t max, int32_t num_pages, int32_t page_size);
void cairn_draft_seqs_destroy(struct cairn_draft_seqs *s);	/* a zeroed *s is legal */

/* Returns a sequence that has keys, or NULL. */
struct cairn_draft_seq *cairn_draft_seqs_find(struct cairn_draft_seqs *s, uint64_t request, int32_t index);
/* Finds or opens a sequence for this call. *seq NULL: all entries take part in this call. */
int cairn_draft_seqs_use(struct cairn_draft_seqs *s, uint64_t request, int32_t index,
			 struct cairn_draft_seq **seq);
/* Cuts a sequence off behind its computed rows, and makes room for `len`. *fits 0: there are no pages. */
int cairn_draft_seqs_resize(struct cairn_draft_seqs *s, struct cairn_draft_seq *seq, int32_t len, int *fits);
/* Frees the pages of a sequence that has ended; does nothing if there is none. */
void cairn_draft_seqs_end(struct cairn_draft_seqs *s, uint64_t request, int32_t index);

/*
 * Makes a chain of drafts a tree: adds likely[j], up to `branches` tokens, beside draft j. Tokens below 0 and
 * from vocab on are left out.
 */
void cairn_draft_branches(struct cairn_sched_draft *p, const int32_t (*likely)[CAIRN_MAX_BRANCHES],
			  int32_t branches, int32_t vocab);

#endif
