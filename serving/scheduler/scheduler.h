/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler - which sequences take part in which step, and where their keys and values lie
 *
 * Host state alone: it never touches a device. Each step it forms a plan; the engine carries plans out, one
 * after the other, and reports the tokens drawn. What a plan means is what happens if
 *
 *   moves[0 .. num_moves_before) are carried out in their order, then all rows, then the other moves,
 *
 * and all of this after the plan before. The engine may overlap what it likes as long as the result is that
 * one; pages are given out again on this understanding (a page of a sequence that has ended may be written
 * by the very next plan, since the row that still was in flight comes before it).
 *
 * The batch is constant and dense: as long as there is work, a step has dense_rows rows. Each sequence that
 * is decoding gives one; prompts, cut between any two tokens, fill the rest in order of arrival.
 *
 * Ahead by one: with ahead == 1 a plan is formed while the plan before is still running, so that the device
 * never waits for the host. A token that is not known yet is named by the draw that makes it (follows).
 * That a sequence has ended is then seen one step late: it has had one row more, whose token is dropped.
 *
 * Admission: a waiting request is admitted if the memory that the running ones and it will need at the
 * worst moment fits, where each is expected to give as many tokens as finished ones did on average. The
 * expectation may fail. Then a sequence gives way, the one that came last: either its pages are copied to
 * host memory, or it is computed again later; whichever costs less by
 *
 *   swap:       (pages not in host memory yet + all its pages to bring back) * swap_ns
 *   recompute:  (its tokens - those of the prefix that others keep alive) * recompute_ns
 *
 * It comes back before any request that has not started. Order of the others: the longest prefix in the
 * tree first, but nobody is overtaken by more than max_passes later ones. One that begins with a prompt
 * which is being computed waits until that is in the tree.
 *
 * What has been computed stays in a prefix tree until its memory is needed. With a host tier, KV of
 * requests that ask for it (keep) is copied there page by page in the steps that make it, and kept when the
 * device forgets; with a disk tier host memory spills to that, least recent first. A prompt that continues
 * such a conversation has it brought back, each page by one contiguous copy, to be scattered over the
 * layers by the engine.
 *
 * Cost: O(running sequences) per plan; where somebody might be admitted a sort of as many numbers, and for
 * up to `window` of those that wait a walk down the tree when it has changed. Not thread-safe. -ENOMEM from
 * cairn_scheduler_plan or _report: only destroying makes sense afterwards.
 */
#ifndef CAIRN_SCHEDULER_H
#define CAIRN_SCHEDULER_H

#include <stdint.h>

#include "serving/kv/kv_pool.h"
#include "serving/kv/prefix_tree.h"

struct cairn_scheduler;

struct cairn_scheduler_options {
	int32_t dense_rows;		/* rows of a step */
	int32_t max_seqs;		/* running at once; <= dense_rows */
	int32_t max_chunk;		/* rows of one sequence in a step; 0: no limit */
	int32_t max_context;		/* tokens of one sequence, prompt and answer */
	int32_t page_size, num_pages;
	int32_t host_pages, disk_pages;	/* 0: no such tier; disk needs host */
	int32_t grain;			/* of the prefix trees: 1 or page_size; 0: nothing is kept */
	int32_t ahead;			/* 0: a plan after the report of the one before; 1: before it */
	int32_t max_queued;		/* requests waiting that have not started; 0: 1024 */
	int64_t max_queued_tokens;	/* of their prompts; 0: no limit */
	int32_t max_passes;		/* how many later ones may overtake; 0: order of arrival */
	int32_t window;			/* waiting requests looked at for their prefix; 0: 32 */
	int32_t expected_new;		/* tokens of an answer until answers tell; 0: 256 */
	int64_t recompute_ns, swap_ns;	/* of a token; of a page, one way; 0 and 0: 20000, 100000 */
};

struct cairn_scheduler_request {
	uint64_t id;			/* the caller's; of no other request that is there */
	const int32_t *prompt;		/* [num_prompt], copied */
	int32_t num_prompt, max_new_tokens;
	int32_t num_seqs;		/* answers to the prompt; 0: 1 */
	struct cairn_cache_salt salt;
	int64_t deadline_ns;		/* by the clock that plan is given; 0: none */
	int keep;			/* its KV goes to the host tier */
	int lockstep;			/* no plan before the token is known: beam search */
};

enum cairn_move_kind {
	CAIRN_MOVE_COPY,    /* page -> page `to` of the device */
	CAIRN_MOVE_OUT,     /* page -> host slot `to` */
	CAIRN_MOVE_IN,      /* host slot `to` -> page */
	CAIRN_MOVE_SPILL,   /* host slot `page` -> disk slot `to` */
	CAIRN_MOVE_FETCH,   /* disk slot `to` -> host slot `page` */
	CAIRN_MOVE_OFFLOAD, /* page -> host slot `to`, after the rows: layer by layer, as each is done */
	CAIRN_NUM_MOVES
};

struct cairn_move {
	int32_t kind, page, to;
	uint64_t request;		/* of FETCH: who waits for it */
};

/* Moves from and to host slots that follow each other are one contiguous copy, scattered to (gathered from)
 * the pages: how many of m[0 .. num) are the first of these. Within it, order does not matter. */
static inline int32_t cairn_move_run(const struct cairn_move *m, int32_t num)
{
	int32_t n = num > 0;

	while (n && n < num && m->kind != CAIRN_MOVE_COPY && m[n].kind == m->kind && m[n].to == m->to + n)
		n++;
	return n;
}

/* Rows first .. first + num_rows - 1 of a sequence. */
struct cairn_step_item {
	uint64_t request;
	int32_t index;			/* which of its sequences */
	int32_t kv; /* its handle in the pool: pages until the next call of the scheduler */
	int32_t first, num_rows;
	int32_t ids_at;			/* ids[ids_at ..]: its tokens */
	int32_t follows; /* its one row is the token of that draw of the plan before; -1: ids */
	int32_t draw;    /* number of the draw after its last row; -1: none, a part of a prompt */
};

/* Valid until the plan after the next is formed. */
struct cairn_step_plan {
	uint64_t number;
	const struct cairn_step_item *items;
	const int32_t *ids;		/* [num_rows] */
	const struct cairn_move *moves;
	int32_t num_items, num_rows, num_draws;
	int32_t num_decodes;		/* items [0 .. num_decodes) decode */
	int32_t num_moves_before, num_moves;
};

enum cairn_sched_what {
	CAIRN_SCHED_TOKEN,
	CAIRN_SCHED_STOP,		/* ended by its token (which is given), or by _stop */
	CAIRN_SCHED_LENGTH,		/* max_new_tokens; the last token has been given before */
	CAIRN_SCHED_CANCELLED,
	CAIRN_SCHED_EXPIRED,		/* its deadline */
};

struct cairn_sched_event {
	uint64_t request;
	int32_t index, what, token;
};

struct cairn_scheduler_stats {
	int32_t num_running, num_waiting, num_queued;	/* queued: waiting, and never started */
	int64_t queued_tokens;
	int64_t plans, rows, decode_rows, draws, dropped_draws;
	int64_t admitted, overtakes, swapped, recomputed;
	int64_t prompt_tokens, hit_tokens, loaded_tokens;	/* of admissions: all, found, brought back */
	int64_t moves[CAIRN_NUM_MOVES];
	int64_t evicted_pages;		/* of the device's tree */
	double expected_new;
	struct cairn_kv_pool_stats device, host, disk;
};

/* -EINVAL naming the option; -ENOMEM. */
int cairn_scheduler_create(struct cairn_scheduler **out, const struct cairn_scheduler_options *options);
void cairn_scheduler_destroy(struct cairn_scheduler *s);	/* NULL is legal */

/*
 * -EINVAL: an empty prompt, too many tokens for context or pool, an id that is there; -EAGAIN: the queue is
 * full, try again later; -ENOMEM.
 */
int cairn_scheduler_submit(struct cairn_scheduler *s, const struct cairn_scheduler_request *request);

/* Ends all sequences of a request: the next plan has none of their rows. -ENOENT: no such request. */
int cairn_scheduler_cancel(struct cairn_scheduler *s, uint64_t request);
/* Ends one sequence, with CAIRN_SCHED_STOP: a stop string, a beam that is given up. -ENOENT; -EAGAIN: it
 * stands for several answers, their prompt is not computed. */
int cairn_scheduler_stop(struct cairn_scheduler *s, uint64_t request, int32_t index);
/*
 * Beam search (lockstep), between report and plan: a new sequence with the tokens of another one, and another
 * last token for one. A sequence that has given way is forked as it waits. One that is held has no rows: its
 * last token is not known yet, since that depends on the others. -ENOENT; -EINVAL: tokens are in flight;
 * -EAGAIN: max_seqs are running.
 */
int cairn_scheduler_fork(struct cairn_scheduler *s, uint64_t request, int32_t index, int32_t *new_index);
int cairn_scheduler_hold(struct cairn_scheduler *s, uint64_t request, int32_t index, int hold);
int cairn_scheduler_set_last(struct cairn_scheduler *s, uint64_t request, int32_t index, int32_t token);

/*
 * Forms the next plan. num_items == 0: there is nothing to compute now; moves there may be. Otherwise the
 * plan has to be reported. -EBUSY: a report is due first.
 */
int cairn_scheduler_plan(struct cairn_scheduler *s, int64_t now_ns, const struct cairn_step_plan **plan);

/* The tokens of the oldest plan that was not reported, by draw. stops[i] != 0: it ends its sequence, as
 * CAIRN_SCHED_STOP; 2: because what was computed for it is no good, and none of that is kept. May be NULL.
 * -EINVAL: there is no such plan. */
int cairn_scheduler_report(struct cairn_scheduler *s, const int32_t *tokens, const uint8_t *stops);

/* All FETCH moves for this request have been carried out: it waits for that before it is admitted.
 * -ENOENT. */
int cairn_scheduler_fetched(struct cairn_scheduler *s, uint64_t request);

/* What has happened since the last call of this; valid until the next call of the scheduler. */
const struct cairn_sched_event *cairn_scheduler_events(struct cairn_scheduler *s, int32_t *num);

struct cairn_kv_pool *cairn_scheduler_pool(struct cairn_scheduler *s);	/* the device's */
void cairn_scheduler_stats(const struct cairn_scheduler *s, struct cairn_scheduler_stats *stats);

/* Verifies the invariants of scheduler_impl.h, pools and trees included: 0, or -EIO with the broken one. */
int cairn_scheduler_verify(const struct cairn_scheduler *s);

#endif
