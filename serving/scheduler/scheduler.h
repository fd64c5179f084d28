/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler - decides which sequences run in which step, and where their keys and values are stored
 *
 * The scheduler is pure host state: it never touches a device. Each step it forms a plan; the engine carries
 * the plans out in order and reports the tokens drawn. The meaning of a plan is defined by executing
 *
 *   moves[0 .. num_moves_before) in order, then all rows, then the remaining moves,
 *
 * after everything in the previous plan. The engine may overlap operations as long as the result is the same.
 * Page reuse relies on this order: the next plan may already write to a page of a sequence that has ended,
 * because the sequence's last row in flight is ordered before it.
 *
 * The batch is constant and dense: a step has dense_rows rows as long as there is enough work. Each decoding
 * sequence contributes one row; prompts, cut between any two tokens, fill the remaining rows in order of
 * arrival.
 *
 * Planning ahead: with ahead == 1 a plan is formed while the previous one is still running, so that the
 * device never waits for the host. A row whose token is not known yet names the draw that produces it
 * (follows). The end of a sequence is then noticed one step late, after one extra row, whose token is
 * dropped.
 *
 * Admission: a waiting request is admitted if its memory and that of the running sequences fit at the
 * predicted peak; each answer is expected to be as long as the average finished answer. When that prediction
 * fails, the sequence that arrived last is preempted. Either its pages are swapped out to host memory or it
 * is recomputed later, whichever costs less:
 *
 *   swap:       (pages not in host memory yet + all pages to swap back in) * swap_ns
 *   recompute:  (its tokens - those of the prefix that others keep alive) * recompute_ns
 *
 * Each row of a scored prompt needs logits. A plan has logits for max_seqs rows, draws included. One is
 * reserved for each running sequence and for each that a running request will fork. A chunk of a scored
 * prompt may use the others, but only half of them while requests are waiting.
 *
 * A preempted sequence resumes before any request that has not started. Among requests that have not started,
 * the one with the longest prefix in the tree goes first, but a request is overtaken by at most max_passes
 * later ones. A request whose prompt shares a prefix with a prompt being computed is held back until that
 * prefix is in the tree.
 *
 * Computed KV stays in a prefix tree until its memory is needed. With a host tier, the KV of requests that
 * ask for it (keep) is copied to host memory page by page in the steps that produce it, and stays there after
 * the device has evicted it. With a disk tier, host memory spills to disk, least recently used first. When a
 * prompt continues such a conversation, its KV is loaded back; each page is one contiguous copy, which the
 * engine scatters over the layers.
 *
 * Repeatable: with repeat_chunk, how a sequence is cut into passes depends on the sequence alone. So do the
 * bits of its results if decoding passes are padded to one shape. A plan then has either one row of each
 * decoding sequence or one chunk of one prompt; the two kinds alternate. A chunk begins at a multiple of
 * repeat_chunk and ends at the next multiple or at the end of the prompt. A preempted answer is recomputed
 * row by row, as it was first computed, and the trees hold only whole chunks of prompts.
 *
 * Separate: a plan has, as with repeat_chunk, either rows of decoding sequences or those of one prompt, and
 * the two kinds alternate. Chunks, trees and answers that are computed again are as without it.
 *
 * Speculation: a sequence that speculates may have drafted rows behind its decoding row. Their tokens are
 * proposals for the next ones (`draft` in the options), and a token is drawn after each row. The rows form a
 * tree: the decoding row is number 0, draft k is row k + 1, and each draft follows an earlier row, its
 * parent. The draw of row 0 counts; that of another row counts if its parent's counts and equals the row's
 * draft. So the tokens are those of a sequence without drafts. Row i of the tree is stored as the sequence's
 * row `first` + i. When the tokens are drawn, and before it carries out the next plan, the engine must move
 * the keys and values of the rows whose draft was drawn to the places right behind row 0, in order; in a
 * chain they are there. The report cuts all other rows off. Such a sequence has rows in a plan only when all
 * its tokens are known, and the next plan should be formed after the report (in_turn in the plan).
 *
 * Lanes: with `lanes` > 1 as many plans are in flight, each of its own sequences. When a request is first
 * considered, it enters the lane whose sequences have the fewest tokens; if it is movable, it later leaves
 * its lane for one that has fewer tokens even with it. A lane's next plan is formed after its last one has
 * been reported, so no row follows a draw. Lanes are queues of their own: requests of other lanes neither
 * hold one up nor overtake it. The meaning of plans is the same as above, whatever their lanes: a plan may
 * write pages that an earlier one in flight still reads, or share pages that it fills. The engine must
 * therefore carry plans out in order within each layer of the model.
 *
 * Cost: O(running sequences) per plan. A plan that may admit requests also sorts that many numbers and, if
 * the tree has changed, looks up the prefixes of up to `window` waiting requests. Not thread-safe. After
 * -ENOMEM from cairn_scheduler_plan or cairn_scheduler_report the scheduler can only be destroyed.
 */
#ifndef CAIRN_SCHEDULER_H
#define CAIRN_SCHEDULER_H

#include <stdint.h>

#include "serving/kv/kv_pool.h"
#include "serving/kv/prefix_tree.h"

struct cairn_scheduler;

/* A sequence that the next plan could give drafted rows. */
struct cairn_sched_draft {
	uint64_t request;
	int32_t index;
	int32_t kv;			/* device pool handle */
	const int32_t *tokens;		/* [num_tokens], prompt and answer so far */
	int32_t num_tokens, num_prompt;
	int32_t *drafts;		/* out, [num]: proposals for the next tokens */
	int32_t *parents;		/* out, [num]: the row that draft k follows; set to a chain, k */
	int32_t room, num;		/* maximum drafts; out: number of drafts, 0 .. room */
	int32_t depth;			/* set to room; for the drafter's use */
};

struct cairn_scheduler_options {
	int32_t dense_rows;		/* maximum rows of a step */
	int32_t max_seqs;		/* sequences running at once; <= dense_rows */
	int32_t max_chunk;		/* maximum rows of one sequence in a step; 0: no limit */
	/*
	 * rows per chunk of a prompt: replaces max_chunk and is the granularity of the trees; a multiple of
	 * page_size, at most dense_rows; 0: not repeatable
	 */
	int32_t repeat_chunk;
	int separate;			/* no plan has rows of a prompt beside others */
	int32_t max_context;		/* maximum tokens of one sequence, prompt and answer */
	int32_t page_size, num_pages;	/* tokens per page; pages on the device */
	int32_t host_pages, disk_pages;	/* 0: no such tier; disk needs host */
	int32_t grain;			/* prefix tree granularity: 1 or page_size; 0: no trees */
	/* receives the changes of the device's prefix tree; NULL: none. Needs grain page_size. */
	const struct cairn_prefix_listener *listener;
	int32_t ahead;			/* 1: form a plan before the previous one is reported; 0: after */
	int32_t max_queued;		/* maximum requests that have not started; 0: 1024 */
	int64_t max_queued_tokens;	/* maximum sum of their prompt tokens; 0: no limit */
	int32_t max_passes;		/* later requests that may overtake one; 0: strictly in order */
	int32_t window;			/* waiting requests whose prefix is looked up; 0: 32 */
	int32_t expected_new;		/* initial estimate of an answer's tokens; 0: 256 */
	int64_t recompute_ns, swap_ns;	/* per token; per page and direction; both 0: 20000, 100000 */
	/*
	 * Speculation: the drafts of one sequence and the drafted rows of a plan, at most dense_rows -
	 * max_seqs; 0: none. `draft` is called at most once per plan, with all sequences that could have
	 * drafts; an error of it fails the plan.
	 */
	int32_t max_drafts, draft_rows;
	int (*draft)(void *ctx, struct cairn_sched_draft *drafts, int32_t num);
	void *draft_ctx;
	int32_t lanes;			/* 0: 1; not with a host tier or drafts; ahead is ignored if > 1 */
	int32_t max_reserved, reserved_pages;	/* reservations at once, and pages of all of them; 0: none */
};

#define CAIRN_SCHED_LANES	3	/* most */

struct cairn_scheduler_request {
	uint64_t id;			/* chosen by the caller, unique among current requests */
	const int32_t *prompt;		/* [num_prompt], copied */
	int32_t num_prompt, max_new_tokens;	/* both >= 1; max_new_tokens: of each answer */
	int32_t num_seqs;		/* number of answers to the prompt; 0: 1 */
	struct cairn_cache_salt salt;
	int64_t deadline_ns;		/* on the clock passed to cairn_scheduler_plan; 0: none */
	int keep;			/* keep its KV in the host tier */
	int scored;			/* every row of its prompt needs logits */
	int lockstep;			/* for beam search: plan a row only once its token is known */
	int speculates;			/* its answers may have drafted rows; not with lockstep */
	int pulled;			/* waits for cairn_scheduler_import(); later requests go ahead */
	int movable;			/* may change its lane between two plans, while it has one answer */
	int in_first_lane;		/* must be in lane 0, which it then does not leave */
};

enum cairn_move_kind {
	CAIRN_MOVE_COPY,    /* device page -> device page `to` */
	CAIRN_MOVE_OUT,     /* device page -> host slot `to` */
	CAIRN_MOVE_IN,      /* host slot `to` -> device page */
	CAIRN_MOVE_SPILL,   /* host slot `page` -> disk slot `to` */
	CAIRN_MOVE_FETCH,   /* disk slot `to` -> host slot `page` */
	CAIRN_MOVE_OFFLOAD, /* as OUT, but after the rows, and layer by layer if possible */
	CAIRN_MOVE_PULL,    /* in no plan: stats count the pages that imports bring into the tree */
	CAIRN_NUM_MOVES
};

struct cairn_move {
	int32_t kind, page, to;		/* enum cairn_move_kind, which explains page and to */
	uint64_t request;		/* FETCH only: the request that waits for it */
};

/*
 * Returns how many moves at the start of m[0 .. num) use consecutive host slots. They form one contiguous
 * copy that is scattered to (or gathered from) the pages; their order does not matter.
 */
static inline int32_t cairn_move_run(const struct cairn_move *m, int32_t num)
{
	int32_t n = num > 0;

	while (n && n < num && m->kind != CAIRN_MOVE_COPY && m[n].kind == m->kind && m[n].to == m->to + n)
		n++;
	return n;
}

/* Rows first .. first + num_rows - 1 of one sequence. */
struct cairn_step_item {
	uint64_t request;
	int32_t index;			/* which sequence of the request */
	int32_t kv; /* device pool handle; its pages are valid until the next scheduler call */
	int32_t first, num_rows;
	int32_t ids_at;			/* its tokens are ids[ids_at ..] */
	int32_t follows; /* draw of the previous plan that gives the token of its only row; -1: use ids */
	int32_t draw;    /* draw made from its last row; -1: none, as the prompt is unfinished */
	/* The last num_drafts rows are drafted. `draw` is that of the row before them, row 0 of the tree; the
	 * draws of the drafted rows come next. */
	int32_t num_drafts;
};

/*
 * Finds the drafts that were drawn. ids and parents, [num], are those of drafted rows 1 .. num; tokens,
 * [num + 1], the draws of rows 0 .. num. Sets path to the rows of these drafts, from row 0 on, and returns
 * their number. The draw of the last of them (or of row 0) counts, too.
 */
static inline int32_t cairn_drafts_accepted(const int32_t *ids, const int32_t *parents, const int32_t *tokens,
					    int32_t num, int32_t *path)
{
	int32_t n = 0, row = 0;

	for (int32_t k = 0; k < num; k++) {
		if (parents[k] == row && ids[k] == tokens[row])
			path[n++] = row = k + 1;
	}
	return n;
}

/* Valid until the plan after the next one is formed; with lanes, until the lane's next one is. */
struct cairn_step_plan {
	uint64_t number;		/* 1, 2, ... */
	const struct cairn_step_item *items;	/* [num_items] */
	const int32_t *ids;		/* [num_rows] */
	const int32_t *parents;		/* [num_rows], of drafted rows: the parent's number in the tree */
	const struct cairn_move *moves;	/* [num_moves] */
	int32_t num_items, num_rows, num_draws;
	int32_t num_decodes;		/* items [0 .. num_decodes) decode */
	int32_t lane;
	int in_turn;			/* the next plan leaves out some of its sequences before the report */
	int32_t num_moves_before, num_moves;
};

enum cairn_sched_what {
	CAIRN_SCHED_TOKEN,
	CAIRN_SCHED_STOP,		/* ended by the given token, or by cairn_scheduler_stop (token -1) */
	CAIRN_SCHED_LENGTH,		/* reached max_new_tokens; a TOKEN event has given its last token */
	CAIRN_SCHED_CANCELLED,
	CAIRN_SCHED_EXPIRED,		/* its deadline has passed */
};

struct cairn_sched_event {
	uint64_t request;
	int32_t index, what, token;	/* what: enum cairn_sched_what; token -1: none */
};

struct cairn_scheduler_stats {
	int32_t num_running, num_waiting, num_queued;	/* queued: waiting and never started */
	int64_t queued_tokens;		/* prompt tokens of the queued requests */
	/* totals since creation; swapped, recomputed: preemptions of each kind */
	int64_t plans, rows, decode_rows, draws, dropped_draws;
	/* items with drafted rows; drafted rows in all; drafts that were drawn */
	int64_t drafts, draft_tokens, accepted_tokens;
	int64_t admitted, overtakes, swapped, recomputed;
	/* tokens of admitted prompts: all; found in the device tree, without those imported for the
	 * request itself; loaded from the host */
	int64_t prompt_tokens, hit_tokens, loaded_tokens;
	int64_t imported_tokens;	/* into the device tree */
	int64_t moves[CAIRN_NUM_MOVES];	/* by enum cairn_move_kind */
	int64_t evicted_pages;		/* from the device tree */
	double expected_new;		/* current mean of an answer's tokens */
	struct cairn_kv_pool_stats device, host, disk;
};

/* Errors: -EINVAL, naming the option; -ENOMEM. */
int cairn_scheduler_create(struct cairn_scheduler **out, const struct cairn_scheduler_options *options);
void cairn_scheduler_destroy(struct cairn_scheduler *s);	/* NULL is legal */

/*
 * Submits a request. Errors: -EINVAL (the prompt is empty, prompt and answer exceed the context or the pool,
 * or the id is in use), -EAGAIN (the queue is full; try again later), -ENOMEM.
 */
int cairn_scheduler_submit(struct cairn_scheduler *s, const struct cairn_scheduler_request *request);

/* Ends all sequences of a request; the next plan has no rows of it. -ENOENT: no such request. */
int cairn_scheduler_cancel(struct cairn_scheduler *s, uint64_t request);
/*
 * Ends one sequence with CAIRN_SCHED_STOP, for a stop string or a discarded beam. Errors: -ENOENT; -EAGAIN
 * (the prompt of several answers is not computed yet, so they still share one sequence).
 */
int cairn_scheduler_stop(struct cairn_scheduler *s, uint64_t request, int32_t index);
/*
 * For beam search (lockstep requests), to be called between report and plan. _fork adds a sequence with the
 * tokens of another; _set_last replaces a sequence's last token; _hold suspends a sequence, which gets no
 * rows while its last token depends on the other beams. The fork of a preempted sequence enters the queue.
 * Errors: -ENOENT; -EINVAL (_fork, _set_last: tokens are in flight, or the last token has been computed);
 * -EAGAIN (_fork: max_seqs are running, or the request has not started).
 */
int cairn_scheduler_fork(struct cairn_scheduler *s, uint64_t request, int32_t index, int32_t *new_index);
int cairn_scheduler_hold(struct cairn_scheduler *s, uint64_t request, int32_t index, int hold);
int cairn_scheduler_set_last(struct cairn_scheduler *s, uint64_t request, int32_t index, int32_t token);
/* Sets whether a sequence may have drafted rows; if not, it is planned ahead like any other. -ENOENT. */
int cairn_scheduler_speculate(struct cairn_scheduler *s, uint64_t request, int32_t index, int on);

/*
 * Forms the next plan. If num_items is 0, there is nothing to compute now, but there may be moves, and the
 * plan must not be reported. Every other plan must be reported. -EBUSY: an earlier plan must be reported
 * first.
 */
int cairn_scheduler_plan(struct cairn_scheduler *s, int64_t now_ns, const struct cairn_step_plan **plan);
/* The same for one lane. -EBUSY: the lane's last plan must be reported first. */
int cairn_scheduler_plan_lane(struct cairn_scheduler *s, int32_t lane, int64_t now_ns,
			      const struct cairn_step_plan **plan);
/* From now on, requests enter the first `lanes` lanes only, and movable ones leave the others. */
void cairn_scheduler_use_lanes(struct cairn_scheduler *s, int32_t lanes);

/*
 * Reports the tokens of the oldest unreported plan, indexed by draw. stops may be NULL; stops[i] != 0 ends
 * the sequence of draw i with CAIRN_SCHED_STOP; 2 means that its KV is invalid and must not be kept. -EINVAL:
 * there is no unreported plan.
 */
int cairn_scheduler_report(struct cairn_scheduler *s, const int32_t *tokens, const uint8_t *stops);

/*
 * For a device that has lost all keys and values: every running sequence goes back to the queue and computes
 * its tokens again, and the device's tree is emptied. With `undo`, the last plan was not carried out: its
 * draws are taken back, it is not to be reported, and its number is used again. Earlier plans were carried
 * out, and are to be reported. With lanes, `undo` is the number of the last plans that were not carried out.
 * -EINVAL: more than are unreported; there is a host tier.
 */
int cairn_scheduler_reset(struct cairn_scheduler *s, int undo);

/*
 * Returns the length of the longest prefix of a prompt, in whole pages and without the prompt's last token,
 * that the prefix tree of the device or of the host has now. *on_device: that of the device's tree alone.
 */
int32_t cairn_scheduler_cached(const struct cairn_scheduler *s, struct cairn_cache_salt salt,
			       const int32_t *tokens, int32_t num_tokens, int32_t *on_device);
/*
 * Imports: the keys and values of a request that was submitted as `pulled` are computed elsewhere.
 *
 * _reserve takes pages for tokens [first, num_tokens) of the request's prompt, and returns them in *pages,
 * valid until the next call of the scheduler. `first` is a multiple of page_size, and the prompt's last token
 * must not be among these tokens. If the request could be admitted beside all that runs, _reserve takes free
 * pages and, if these do not suffice, evicts cached ones. Plans formed before may still use the pages: the
 * engine must not write them until the next plan has been carried out.
 *
 * _import puts the pages, which now hold these keys and values, into the device's prefix tree, and returns
 * how many tokens the tree did not have. Like every prefix there, they may be evicted before the request is
 * admitted. A last page that is not full is kept for the request alone, until it is admitted or a running
 * sequence finds no other page. _unreserve frees the pages instead; it does nothing if there are none, and
 * the request may have ended. After either, whatever it returns, the reservation has ended, and the request
 * waits no longer.
 *
 * A running sequence that finds no other page takes back the youngest reservation, and its request waits no
 * longer. After each plan, and before carrying it out, call _revoked until it returns 0: it returns 1 for
 * each reservation taken back since, whose pages must not be written any more.
 *
 * Errors: -ENOENT (the request does not wait for an import, or has no reservation; _import: the tree has
 * lost the tokens before `first`), -ENOSPC (no room, or too many reservations), -EINVAL (the range; no tree;
 * repeat_chunk), -ENOMEM.
 */
int cairn_scheduler_reserve(struct cairn_scheduler *s, uint64_t request, int32_t first, int32_t num_tokens,
			    const int32_t **pages);
int cairn_scheduler_import(struct cairn_scheduler *s, uint64_t request);
void cairn_scheduler_unreserve(struct cairn_scheduler *s, uint64_t request);
int cairn_scheduler_revoked(struct cairn_scheduler *s, uint64_t *request);

/*
 * Reports that all FETCH moves for this request are done. Before that, the request is not admitted, nor is
 * the preempted answer that they are for. -ENOENT: no such request, or it is not waiting.
 */
int cairn_scheduler_fetched(struct cairn_scheduler *s, uint64_t request);

/* Returns the events since the last call of this function; valid until the next call of the scheduler. */
const struct cairn_sched_event *cairn_scheduler_events(struct cairn_scheduler *s, int32_t *num);

struct cairn_kv_pool *cairn_scheduler_pool(struct cairn_scheduler *s);	/* the device pool */
void cairn_scheduler_stats(const struct cairn_scheduler *s, struct cairn_scheduler_stats *stats);

/* Checks the invariants of scheduler_impl.h, pools and trees included: 0, or -EIO naming the broken one. */
int cairn_scheduler_verify(const struct cairn_scheduler *s);

#endif
