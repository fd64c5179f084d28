/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_head - a draft module that reads a target model's hidden states: an EAGLE-3 head or an MTP layer
 *
 * For place i of a text a head takes token i + 1 and a state, and gives logits for token i + 2 and the state
 * of place i + 1. The state of a place that the target has computed is the target's feature there
 * (worker_taps.c); that of a later place is the head's own.
 *
 * eagle_head.h and mtp_head.h make heads; head_drafter.h drafts with one.
 */
#ifndef CAIRN_DRAFT_HEAD_H
#define CAIRN_DRAFT_HEAD_H

#include "primitives/base/dtype.h"
#include "serving/engine/worker/worker.h"

struct cairn_draft_head;

/* A pass; all pointers are to the table's memory. */
struct cairn_draft_pass {
	const int32_t *ids, *positions;		/* [num_rows]; the tokens after those of the places */
	char *states;				/* [num_rows, hidden], in; out: those of the next places */
	const int32_t *qo_indptr;		/* [batch + 1] */
	struct cairn_kv_view kv;		/* with max_len set */
	const int32_t *last_rows;		/* [num_last]: rows whose results are wanted */
	float *logits;				/* [num_last, vocab], out */
	char *next;				/* [num_last, hidden], out: their states */
	int32_t num_rows, max_qo_len, num_last;
};

struct cairn_draft_head_ops {
	const char *name;			/* for error texts */
	void (*free)(struct cairn_draft_head *head);
	/* Makes room for passes of this size, which may be a maximum. */
	int (*reserve)(struct cairn_draft_head *head, int32_t max_rows, int32_t max_last);
	int (*run)(struct cairn_draft_head *head, const struct cairn_draft_pass *pass, void *stream);
	/* Returns the target's token for a token of the head, -1: there is none. */
	int32_t (*token)(const struct cairn_draft_head *head, int32_t id);
};

/* Read-only except for the file that makes it. */
struct cairn_draft_head {
	const struct cairn_draft_head_ops *ops;
	const struct cairn_model *target;	/* which must outlive the head */
	struct cairn_worker_taps taps;		/* how the target's features are made */
	int32_t hidden, vocab, max_positions;	/* vocab: of its logits */
	size_t key_bytes;			/* of a row's key, or of its latent */
	int is_latent;				/* otherwise a row's value takes key_bytes, too */
	size_t bytes;				/* of its weights */
};

/* Returns what a token of the cache takes in addition: the target's feature, and what the head stores. */
static inline size_t cairn_draft_head_token_bytes(const struct cairn_draft_head *head)
{
	return (size_t)head->taps.width * cairn_dtype_bytes(head->target->dtype) +
	       head->key_bytes * (head->is_latent ? 1 : 2);
}

/* NULL is legal. */
static inline void cairn_draft_head_free(struct cairn_draft_head *head)
{
	if (head)
		head->ops->free(head);
}

#endif
