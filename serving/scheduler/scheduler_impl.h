/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler_impl - the state of the scheduler
 *
 *                        admit                 a token that stops, max_new_tokens, cancel, deadline
 *   submit --> WAITING ---------> RUNNING ------------------------------------------------------------> gone
 *                  ^                 |
 *                  +----- preempt ---+
 *
 * A sequence has the known tokens t[0 .. num_known) and in_flight more that are drawn but not reported. The
 * keys and values of tokens [0 .. computed) are in the pool, or will be once the plans formed so far are
 * done. Running a sequence means computing its other tokens: many for a prompt, one for a decoding sequence.
 * With drafts in flight, the last `drafted` of these computed tokens are not known to be the sequence's.
 *
 * Invariants between calls (cairn_scheduler_verify() checks each):
 *   1. A sequence is exactly once either in the queue, without a handle in the pool, or in running[], with a
 *      handle that has `computed` tokens. Queue and running[] are in order of arrival. num_queued,
 *      queued_tokens, num_preempted and promised_seqs are sums over the sequences.
 *   2. computed - drafted <= num_known + in_flight; an answer never exceeds max_new tokens, those in flight
 *      and drafts included; in_flight <= number of unreported plans; with drafts in flight it is 1. A shadow
 *      (scheduler_tiers.c) has fewer tokens than the sequence, those in flight included.
 *   3. num_running + promised_seqs <= max_seqs: an admitted request has room for all its answers.
 *   4. passed <= max_passes.
 *   5. With lanes, a sequence is in flight in one plan at most, and running sequences have a lane.
 *   6. The pins of the trees are those of the sequences. Pools and trees keep their own invariants.
 *   7. The handles in the device's pool are those of the running sequences and of the reservations, whose
 *      pages number num_reserved_pages <= reserved_pages.
 *   8. num_tails sequences have a tail; they wait, and nobody else has the page.
 */
#ifndef CAIRN_SCHEDULER_IMPL_H
#define CAIRN_SCHEDULER_IMPL_H

#include "primitives/base/error.h"
#include "serving/kv/kv_fault.h"
#include "serving/scheduler/scheduler.h"

#define NOWHERE	(-1)
#define SCHED_PLANS	4		/* buffers of plans, used in turn: more than are ever unreported */

struct sched_request {
	uint64_t id;
	int64_t arrival, deadline_ns;	/* arrival: 0, 1, 2, ... in order of submission */
	struct cairn_cache_salt salt;
	int32_t num_prompt, max_new;
	int32_t unforked;		/* answers not forked yet: they share the prompt's sequence */
	int32_t num_live, next_index;	/* live sequences; index of the next one */
	int keep, lockstep, scored, speculates, movable;
	int32_t lane;			/* NOWHERE: none yet */
	int is_forked;			/* has several answers; each computes the prompt's last row */
};

/* The pages that a sequence may take if none is free; each kind includes those before it. */
enum sched_from { SCHED_CACHED, SCHED_RESERVED, SCHED_RUNNING };

/* Where the keys of a waiting request may come from, besides the trees. */
enum sched_fetching {
	SCHED_FETCHING = 1,		/* waits for the disk */
	SCHED_FETCHED,			/* has them, or does without */
	SCHED_PULLED,			/* waits for an import; neither holds up nor counts as overtaken */
};

struct sched_seq {
	struct sched_request *req;
	struct sched_seq *prev, *next;	/* neighbours in the queue */
	int32_t index;			/* number of the answer */
	/*
	 * is_waiting: in the queue; was_running: preempted at least once; is_cached: the prompt is in the
	 * device's tree; is_fetching: enum sched_fetching; is_held: by cairn_scheduler_hold(); is_bad: the KV
	 * must not be kept
	 */
	int is_waiting, was_running, is_cached, is_fetching, is_held, is_bad;
	int32_t num_known, in_flight, computed, drafted;	/* tokens; see the top of this file */
	int speculates;			/* waits for its tokens, and may have drafts */
	int32_t proposal;		/* its entry of proposals[] while a plan is formed; -1: none */
	int32_t kv, shadow;		/* handles in the device's and the host's pool; NOWHERE: none */
	int32_t adopted;		/* number of leading pages found in the tree, which are shared */
	int32_t imported;		/* tokens that an import has brought for it */
	int32_t tail, tail_end;		/* scheduler_import.c: a page, or NOWHERE; the tokens up to its end */
	int32_t node, host_node;	/* pinned nodes; CAIRN_PREFIX_NONE: none */
	int32_t passed;			/* how often later requests have overtaken it */
	int32_t peeked;			/* length of its prefix in the tree, at version peeked_version */
	uint64_t peeked_version;
	uint64_t planned;		/* number of the last plan that has rows of it */
	uint64_t put_off;		/* last plan that held it back to wait for another's prompt */
	int32_t draw[SCHED_PLANS];	/* its draw in the unreported plan of this buffer; -1: none */
	int32_t tokens[];		/* [num_prompt + max_new] */
};

/* Pages for keys and values that are computed elsewhere. */
struct reservation {
	uint64_t request;
	int32_t kv;			/* handle in the device's pool; NOWHERE: taken back, not told yet */
	int32_t first, num_tokens;	/* tokens of the prompt; first: whole pages */
};

struct tier {
	struct cairn_kv_pool *pool;
	struct cairn_prefix_tree *tree;	/* NULL: no KV is kept */
};

/* A plan and its arrays; draws: the sequence of each draw, NULL once the sequence has ended. */
struct plan_buffer {
	struct cairn_step_plan plan;
	struct cairn_step_item *items;
	int32_t *ids, *parents;
	struct cairn_move *moves;
	int32_t moves_room;
	int32_t num_extra;		/* rows that need logits beyond one per running sequence */
	int32_t num_drafts;
	/* num_drafts draws come next, and have no sequence; the drafts are ids[ids_at ..] */
	struct { struct sched_seq *seq; uint64_t request; int32_t index, num_drafts, ids_at; } *draws;
};

struct move_list {
	struct cairn_move *moves;
	int32_t num, room;
};

/* The memory that one sequence is expected to need. */
struct demand {
	int32_t left;			/* expected number of tokens still to generate */
	int32_t own;			/* tokens in its unshared pages, computed or not */
};

struct cairn_scheduler {
	struct cairn_scheduler_options opt;
	struct tier device, host, disk;
	struct sched_seq *queue, *queue_end;
	struct sched_seq **running;	/* [num_running], in order of arrival */
	int32_t num_running, promised_seqs;	/* promised: answers of running requests, not forked yet */
	int32_t num_waiting, num_queued, num_preempted;	/* in the queue; never started; preempted */
	/* prompt tokens of queued requests; arrival of the next request; lower bound of all deadlines */
	int64_t queued_tokens, next_arrival, next_deadline;
	uint64_t plan_number;		/* number of the last plan formed; the first is 1 */
	int32_t unreported;		/* plans formed and not reported */
	struct plan_buffer plans[SCHED_PLANS];	/* by sched_buffer() of their number */
	int32_t lane, used_lanes;	/* of the plan being formed; lanes that requests may enter */
	/* known tokens of each lane's requests; valid only while a plan admits requests or changes lanes */
	int64_t lane_tokens[CAIRN_SCHED_LANES];
	struct move_list before, after;	/* moves of the next plan */
	struct reservation *reservations;	/* [max_reserved], oldest first */
	int32_t num_reservations, num_reserved_pages;	/* pages: of those that have a handle */
	int32_t num_tails;
	struct cairn_sched_draft *proposals;	/* [max_seqs] */
	int32_t *drafts, *parents;	/* [max_seqs * max_drafts] */
	int32_t *drawn_rows;		/* scratch: [max_drafts] */
	struct demand *demands;		/* [2 * max_seqs + 2], sorted by left, descending */
	int32_t num_demands;
	int32_t *path_tokens, *path_pages;	/* scratch: [max_context + 1], [2 * (max_context + 1)] */
	struct cairn_sched_event *events;
	int32_t num_events, events_room;
	int was_prompt[CAIRN_SCHED_LANES];	/* repeat_chunk: the last plan was a chunk of a prompt */
	int events_read, failed;	/* all events have been read; plan or report has failed */
	double expected_new;		/* current mean of an answer's tokens */
	struct cairn_scheduler_stats stats;
};

/* Returns the buffer of a plan. */
static inline int sched_buffer(uint64_t number)
{
	return (int)(number % SCHED_PLANS);
}

/* Returns how many pages so many tokens fill; the last one perhaps in part. */
static inline int32_t sched_pages(const struct cairn_scheduler *s, int64_t tokens)
{
	return (int32_t)((tokens + s->opt.page_size - 1) / s->opt.page_size);
}

/* Returns whether the sequence belongs to the plan being formed. */
static inline int sched_is_of_lane(const struct cairn_scheduler *s, const struct sched_seq *q)
{
	return q->req->lane == s->lane;
}

/* scheduler.c */
void sched_remove_running(struct cairn_scheduler *s, struct sched_seq *q);
int sched_insert_running(struct cairn_scheduler *s, struct sched_seq *q);
void sched_enqueue(struct cairn_scheduler *s, struct sched_seq *q);
void sched_dequeue(struct cairn_scheduler *s, struct sched_seq *q);
int sched_finish(struct cairn_scheduler *s, struct sched_seq *q, int what, int32_t token);
int sched_fork(struct cairn_scheduler *s, struct sched_seq *q, struct sched_seq **child);
struct sched_seq *sched_find(struct cairn_scheduler *s, uint64_t request, int32_t index);	/* -1: any */
int sched_younger(const struct sched_seq *a, const struct sched_seq *b);

/* scheduler_draft.c */
int sched_propose(struct cairn_scheduler *s);
/* Gives q, which has just got its row, the drafted rows for which there is room. */
int sched_add_drafts(struct cairn_scheduler *s, struct plan_buffer *b, struct sched_seq *q);
/* Discards the rows whose draft was wrong. accepted: number of drafts drawn. */
int sched_settle(struct cairn_scheduler *s, struct sched_seq *q, int32_t accepted);

/* scheduler_memory.c */
int sched_move(struct cairn_scheduler *s, struct move_list *list, int kind, int32_t page, int32_t to);
int sched_grow(struct cairn_scheduler *s, struct sched_seq *q, int64_t len, enum sched_from from);
int sched_preempt(struct cairn_scheduler *s, struct sched_seq *q);
void sched_forecast(struct cairn_scheduler *s);
int sched_fits(struct cairn_scheduler *s, const struct sched_seq *q, int32_t found, int reserved);
void sched_expect(struct cairn_scheduler *s, const struct sched_seq *q);

/* scheduler_import.c */
/* Takes back the youngest tail, or else the youngest reservation. Returns 0 if there is neither. */
int sched_revoke(struct cairn_scheduler *s);
/* Returns how many of q's tokens are there if its tail follows the first `found`, which are in pages. */
int64_t sched_add_tail(const struct cairn_scheduler *s, const struct sched_seq *q, int64_t found,
		       int32_t *pages);
void sched_drop_tail(struct cairn_scheduler *s, struct sched_seq *q);	/* does nothing if it has none */

/* scheduler_lanes.c */
/* Counts the tokens of each lane's requests, to which sched_enter_lane() adds. */
void sched_weigh_lanes(struct cairn_scheduler *s);
/* Lets movable requests leave this plan's lane, of which nothing is in flight. */
void sched_leave_lane(struct cairn_scheduler *s);
/* Gives a request its lane when it is first considered. Returns whether this plan is of its lane. */
int sched_enter_lane(struct cairn_scheduler *s, struct sched_seq *q);
/* Returns the plan that must be reported before the next one of this lane is formed; 0: none. */
uint64_t sched_blocks(const struct cairn_scheduler *s, int32_t lane);

/* scheduler_tiers.c */
int sched_place(struct cairn_scheduler *s, struct sched_seq *q);
int sched_keep_prompt(struct cairn_scheduler *s, struct sched_seq *q);
int sched_keep_all(struct cairn_scheduler *s, struct sched_seq *q);
int sched_swap_out(struct cairn_scheduler *s, struct sched_seq *q, int64_t len);
int sched_offload(struct cairn_scheduler *s, struct sched_seq *q);
int sched_fetch(struct cairn_scheduler *s, struct sched_seq *q, int32_t found);
int64_t sched_usable(const struct cairn_scheduler *s, const struct sched_seq *q, int64_t len);
void sched_unpin(struct cairn_scheduler *s, struct sched_seq *q);
void sched_drop_shadow(struct cairn_scheduler *s, struct sched_seq *q);

#endif
