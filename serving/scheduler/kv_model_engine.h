/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_model_engine - an engine of plain arrays that executes the plans of a scheduler and checks them
 *
 * Instead of the keys and values of a position, its memory holds a digest of the salt and of all tokens up to
 * that position. Before it executes a row, it checks everything that the row's attention would read: a page
 * that was lost, not copied, not loaded back or allocated twice, or that belongs to another tenant, is
 * detected at once. With repeat_chunk the digest also records how the position was computed: with which rows
 * of a prompt, or as a decoding row. A drawn token is a hash of request, answer and position, except behind
 * a draft that was not drawn: there it is the opposite, so that a draw that must not count is noticed.
 */
#ifndef CAIRN_KV_MODEL_ENGINE_H
#define CAIRN_KV_MODEL_ENGINE_H

#include <stddef.h>

#include "serving/scheduler/scheduler.h"

enum {
	MODEL_PAGES = 64,
	MODEL_PAGE = 4,
	MODEL_LEN = 40,
	MODEL_ROWS = 8,
	MODEL_SEQS = 4,
	MODEL_REQUESTS = 24,
	MODEL_DRAFTS = 3,		/* maximum of one sequence in a plan */
	MODEL_DRAWS = MODEL_ROWS + 2
};

struct model_answer {
	int live, held;
	int32_t drawn, told;		/* tokens drawn by executed plans; tokens reported in events */
	int32_t gen[MODEL_LEN];
	int in_flight, drafts;		/* drafts: its rows in flight have drafted ones among them */
	int eager;			/* does not speculate now */
};

struct model_request {
	int there, rowed;		/* rowed: has had a row */
	uint64_t id, order;
	uint32_t salt;
	int32_t num_prompt, max_new, num_answers, overtaken;
	int32_t prompt[MODEL_LEN];
	int64_t deadline_ns;
	int lockstep, keep, is_forked, speculates;
	int pulled, was_pulled;		/* waits for an import; was submitted to wait for one */
	int fetching;			/* the disk fetches pages for it, or for one of its answers */
	/*
	 * Its reservation, of tokens [first, end): pages[0 .. reserved) may be written once plan number
	 * `from` is carried out.
	 */
	int32_t first, end, reserved, pages[MODEL_LEN];
	uint64_t from;
	int32_t lane;			/* of its last rows */
	int movable;
	struct model_answer answers[3 * MODEL_SEQS];
};

/* The rows of an item with drafts: depth; whether the drafts up to the row are drawn. Row 0 has no draft. */
struct model_tree {
	int32_t depth[MODEL_DRAFTS + 1];
	int counts[MODEL_DRAFTS + 1];
};

struct model_flight {
	int32_t num_draws, num_moves, lane;
	struct { uint64_t *from, *to; } moves[MODEL_ROWS];	/* keys of drafts that are drawn */
	/* follows: after a drafted row; counts: all drafts on the path to it are drawn */
	struct { uint64_t id; int32_t index, token; int follows, counts; } draws[MODEL_DRAWS];
};

struct model_engine {
	struct cairn_scheduler *s;
	struct cairn_scheduler_options opt;
	uint64_t device[MODEL_PAGES][MODEL_PAGE], host[MODEL_PAGES][MODEL_PAGE],
		disk[MODEL_PAGES][MODEL_PAGE];
	uint64_t plans;			/* carried out */
	struct model_request requests[MODEL_REQUESTS];
	struct model_flight flights[CAIRN_SCHED_LANES];
	int num_flights;
	int32_t lane;			/* whose plan is formed next */
	int right;			/* of eight drafted tokens, those that will be drawn */
	int trees;			/* drafts form trees */
	uint64_t next_order;
	int64_t now;
	/* The last answer that ended normally; the next turn of a conversation continues it. */
	int32_t said[MODEL_LEN], num_said;
	uint32_t said_salt;
	char *why;
	size_t why_len;
};

int model_wrong(struct model_engine *e, const char *what, int64_t got, int64_t want);
struct model_request *model_find(struct model_engine *e, uint64_t id);
int model_stops(const struct model_request *r, int32_t index, int32_t place);
/* Fills a request's reserved pages with the digests of its tokens, and the rest with a wrong one. */
void model_fill(struct model_engine *e, const struct model_request *r);
/* The scheduler's function `draft`; ctx: the engine. Fails if it is not given the answer's tokens. */
int model_draft(void *ctx, struct cairn_sched_draft *drafts, int32_t num);
/*
 * Forms the next lane's plan and executes it. *rows: its number of rows. Returns 0, the scheduler's -EBUSY,
 * or -1 if a check failed.
 */
int model_plan(struct model_engine *e, int32_t *rows);
/* Takes note of the reservations that the scheduler has taken back. Returns -1 if one is wrong. */
int model_revoked(struct model_engine *e);
/* Returns whether a plan must be reported before the next one can be formed. */
int model_is_busy(const struct model_engine *e);
int model_report(struct model_engine *e);
/* Reads the events and checks each. Returns -1 if one is wrong. */
int model_events(struct model_engine *e);

#endif
