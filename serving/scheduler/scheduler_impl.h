/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler_impl - the state of the scheduler
 *
 *                        admit                 a token that stops, max_new_tokens, cancel, deadline
 *   submit --> WAITING ---------> RUNNING ------------------------------------------------------------> gone
 *                  ^                 |
 *                  +----- preempt ---+
 *
 * Of a sequence with the tokens t[0 .. num_known) and in_flight more that are drawn but not reported, [0,
 * computed) have their keys and values in the pool, or will have when the plans formed so far are done. To
 * compute the rest is all that running means: a prompt is a long rest, a decoding sequence has a rest of
 * one.
 *
 * Invariants, between calls (cairn_scheduler_verify() checks each):
 *   1. A sequence is in the queue (then it has no handle in the pool) or in running[] (then its handle has
 *      `computed` tokens), once. Both are in order of arrival. num_queued, queued_tokens, num_preempted,
 *      promised_seqs are the sums.
 *   2. computed <= num_known + in_flight; answers never exceed max_new, those in flight included;
 *      in_flight <= number of plans that are not reported.
 *   3. num_running + promised_seqs <= max_seqs: an admitted request finds places for all its answers.
 *   4. passed <= max_passes.
 *   5. The trees' pins are those of the sequences. Pools and trees hold their own invariants.
 */
#ifndef CAIRN_SCHEDULER_IMPL_H
#define CAIRN_SCHEDULER_IMPL_H

#include "primitives/base/error.h"
#include "serving/kv/kv_fault.h"
#include "serving/scheduler/scheduler.h"

#define NOWHERE	(-1)

struct sched_request {
	uint64_t id;
	int64_t arrival, deadline_ns;
	struct cairn_cache_salt salt;
	int32_t num_prompt, max_new;
	int32_t unforked;		/* answers that still share the first one's prompt */
	int32_t num_live, next_index;
	int keep, lockstep;
};

struct sched_seq {
	struct sched_request *req;
	struct sched_seq *prev, *next;	/* in the queue */
	int32_t index;
	int is_waiting, was_running, is_cached, is_fetching, is_held, is_bad;
	int32_t num_known, in_flight, computed;
	int32_t kv, shadow;		/* handles in the device's and the host's pool; NOWHERE */
	int32_t adopted;		/* pages that it found: not its own */
	int32_t node, host_node;	/* pinned; CAIRN_PREFIX_NONE */
	int32_t passed;
	int32_t peeked;			/* length of its prefix in the tree, when that had this version: */
	uint64_t peeked_version;
	uint64_t planned;		/* number of the last plan that has rows of it */
	uint64_t put_off;		/* of the last plan in which it waited for another's prompt */
	int32_t draw[2]; /* its draw in the plans of even and odd number, while not reported; -1 */
	int32_t tokens[];		/* [num_prompt + max_new] */
};

struct tier {
	struct cairn_kv_pool *pool;
	struct cairn_prefix_tree *tree;	/* NULL: nothing is kept */
};

struct plan_buffer {
	struct cairn_step_plan plan;
	struct cairn_step_item *items;
	int32_t *ids;
	struct cairn_move *moves;
	int32_t moves_room;
	struct { struct sched_seq *seq; uint64_t request; int32_t index; } *draws;
};

struct move_list {
	struct cairn_move *moves;
	int32_t num, room;
};

/* What one sequence will need: for the prediction. */
struct demand {
	int32_t left;			/* tokens that it is expected still to give */
	int32_t own;			/* tokens that it has, or has to compute, in pages of its own */
};

struct cairn_scheduler {
	struct cairn_scheduler_options opt;
	struct tier device, host, disk;
	struct sched_seq *queue, *queue_end;
	struct sched_seq **running;
	int32_t num_running, promised_seqs;
	int32_t num_waiting, num_queued, num_preempted;
	int64_t queued_tokens, next_arrival, next_deadline;
	uint64_t plan_number;		/* of the last plan formed; the first is 1 */
	int32_t unreported;
	struct plan_buffer plans[2];
	struct move_list before, after;	/* of the next plan */
	struct demand *demands;		/* [max_seqs + 1], by left, descending */
	int32_t num_demands;
	int32_t *path_tokens, *path_pages;
	struct cairn_sched_event *events;
	int32_t num_events, events_room;
	int events_read, failed;
	double expected_new;
	struct cairn_scheduler_stats stats;
};

/* scheduler.c */
void sched_remove_running(struct cairn_scheduler *s, struct sched_seq *q);
int sched_insert_running(struct cairn_scheduler *s, struct sched_seq *q);
void sched_enqueue(struct cairn_scheduler *s, struct sched_seq *q);
void sched_dequeue(struct cairn_scheduler *s, struct sched_seq *q);
int sched_finish(struct cairn_scheduler *s, struct sched_seq *q, int what, int32_t token);
int sched_fork(struct cairn_scheduler *s, struct sched_seq *q, struct sched_seq **child);
int sched_younger(const struct sched_seq *a, const struct sched_seq *b);

/* scheduler_memory.c */
int sched_move(struct cairn_scheduler *s, struct move_list *list, int kind, int32_t page, int32_t to);
int sched_grow(struct cairn_scheduler *s, struct sched_seq *q, int64_t len, int may_preempt);
int sched_preempt(struct cairn_scheduler *s, struct sched_seq *q);
void sched_forecast(struct cairn_scheduler *s);
int sched_fits(struct cairn_scheduler *s, const struct sched_seq *q, int32_t found);
void sched_expect(struct cairn_scheduler *s, const struct sched_seq *q);

/* scheduler_tiers.c */
int sched_place(struct cairn_scheduler *s, struct sched_seq *q);
int sched_keep_prompt(struct cairn_scheduler *s, struct sched_seq *q);
int sched_keep_all(struct cairn_scheduler *s, struct sched_seq *q);
int sched_swap_out(struct cairn_scheduler *s, struct sched_seq *q, int64_t len);
int sched_offload(struct cairn_scheduler *s, struct sched_seq *q);
int sched_fetch(struct cairn_scheduler *s, struct sched_seq *q, int32_t found);
void sched_unpin(struct cairn_scheduler *s, struct sched_seq *q);
void sched_drop_shadow(struct cairn_scheduler *s, struct sched_seq *q);

#endif
