/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan - what one step of the engine does on a device, as plain bytes, from rank 0 to the other ranks
 *
 * A plan is a header and records, in the byte order of the host. A record is one call that the engine makes
 * of its worker or its tiers, and the receiver makes the same calls in the same order:
 *
 *   LISTS      cairn_worker_add_lists(), with the places that it returned
 *   UNLIST     cairn_worker_remove_lists()
 *   MOVES      the moves of pages before and after the pass (tiers.h); at most one record
 *   PART       cairn_worker_add(), with everything that the part points to
 *   DRAW       cairn_worker_add_draw()
 *
 * A plan with parts is a pass; one without has only lists and moves. Lists come before the parts. Records
 * begin at multiples of 8 bytes. A float is sent as its bits. The receiver checks a plan like untrusted
 * input: every length, every range, and a digest.
 *
 * Errors: -EINVAL (a plan that is not well formed; the text names the member), -EOPNOTSUPP, -ENOMEM.
 */
#ifndef CAIRN_PLAN_H
#define CAIRN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "serving/engine/worker/worker.h"
#include "serving/scheduler/scheduler.h"

#define CAIRN_PLAN_MAX	((size_t)64 << 20)	/* bytes of a plan */

enum cairn_plan_kind {
	CAIRN_PLAN_LISTS = 1, CAIRN_PLAN_UNLIST, CAIRN_PLAN_MOVES, CAIRN_PLAN_PART, CAIRN_PLAN_DRAW,
};

/* The lists of a request. UNLIST has only numbers and places. */
struct cairn_plan_lists {
	const struct cairn_logit_bias *bias;		/* [num_bias] */
	const int32_t *forbidden;			/* [num_forbidden] */
	int32_t num_bias, num_forbidden, bias_at, forbidden_at;
};

/* ---- writing ---- */

/* The plan that rank 0 builds. Zeroed before the first use. */
struct cairn_plan_out {
	unsigned char *bytes;	/* [len] */
	size_t len, room;
	int ret;		/* of the first record that could not be added */
};

void cairn_plan_begin(struct cairn_plan_out *p, uint64_t number);
void cairn_plan_put_lists(struct cairn_plan_out *p, enum cairn_plan_kind kind,
			  const struct cairn_plan_lists *lists);
void cairn_plan_put_moves(struct cairn_plan_out *p, const struct cairn_move *moves, int32_t num_before,
			  int32_t num);
void cairn_plan_put_part(struct cairn_plan_out *p, const struct cairn_worker_part *part);
void cairn_plan_put_draw(struct cairn_plan_out *p, int32_t row, const struct cairn_worker_part *part);
/* Completes the header. p->bytes, [p->len], is then the plan. */
int cairn_plan_finish(struct cairn_plan_out *p);
void cairn_plan_out_free(struct cairn_plan_out *p);

/* ---- reading ---- */

/* What a plan is checked against: the receiver's own worker and tiers, and the plans before. */
struct cairn_plan_limits {
	int32_t max_batch, max_rows, max_context, num_pages, page_size, vocab, host_pages, disk_pages;
	int32_t num_drawn;	/* draws of the previous pass, which a row may follow */
	uint64_t number;	/* of this plan: 1, 2, ... */
};

/* A record. Its pointers are valid until the plan is read again or freed, and as long as the bytes are. */
struct cairn_plan_item {
	enum cairn_plan_kind kind;
	struct cairn_plan_lists lists;			/* LISTS, UNLIST */
	struct cairn_worker_part part;			/* PART, DRAW */
	int32_t row;					/* DRAW */
	struct cairn_sampling draw;			/* what part points to */
	struct cairn_worker_treat treat;
};

/* A plan that has been read. Zeroed before the first use. */
struct cairn_plan {
	struct cairn_plan_item *items;			/* [num_items], without MOVES */
	int32_t num_items, room;
	const struct cairn_move *moves;			/* [num_moves]; their requests are 0 */
	int32_t num_moves_before, num_moves;
	int32_t num_parts, num_draws;
};

/* Reads and checks a plan; after an error nothing of it may be used. bytes: aligned to 8. */
int cairn_plan_read(struct cairn_plan *plan, const unsigned char *bytes, size_t len,
		    const struct cairn_plan_limits *limits);
void cairn_plan_free(struct cairn_plan *plan);

#endif
