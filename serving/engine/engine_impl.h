/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_impl - the state of the engine
 *
 * The scheduler identifies a request by its handle, (generation, slot) in one number. A handle is never
 * reused, so a late draw cannot be mistaken for a draw of the request that now has the slot.
 */
#ifndef CAIRN_ENGINE_IMPL_H
#define CAIRN_ENGINE_IMPL_H

#include "primitives/base/error.h"
#include "serving/engine/engine.h"
#include "serving/engine/lanes/lane_costs.h"
#include "serving/scheduler/tiers.h"
#include "serving/engine/worker/worker.h"
#include "serving/lora/lora.h"

/* Speculation for one answer (engine_spec.c). */
struct answer_spec {
	float tried, right;		/* drafts that could be right, and those that were; decaying sums */
	int paused;
	int32_t pause, resume_at;	/* tokens: of the last pause; of the answer at its end */
	int32_t trials, idle;		/* steps that must have drafts; steps since the last proposal */
};

/* Tokens of an answer that its constraint has not been told yet (engine_mask.c). */
struct answer_mask {
	int32_t tokens[CAIRN_MAX_DRAFTS + 1];	/* [num], drawn since masks were last computed */
	int32_t num;
	int lost;			/* it has no masks any more */
};

/* One answer to a request. */
struct answer {
	int live;			/* on_finish has not been called yet */
	int stopping;			/* cairn_engine_stop() was called before it had a sequence */
	int failed;			/* no token could be drawn; 2: under its constraint */
	int32_t num_given;		/* tokens passed to on_token */
	int32_t end_token;		/* the token that ended it; -1: none */
	int32_t slot;			/* the worker's token counters; -1: none */
	struct answer_spec spec;
	struct answer_mask mask;
};

struct beams;

struct request {
	struct request *next;		/* next in its bucket */
	struct cairn_request req;	/* stop_ids point behind the answers */
	uint64_t handle;
	int32_t num_answers, num_live;	/* all answers; those that are live */
	int started, cancelled, bad;	/* bad: the logits of a beam are NaN */
	int is_pulled;			/* waits for its keys and values (engine_pull.c) */
	int32_t pulled_first;		/* the first prompt token that is pulled */
	int32_t imported;		/* prompt tokens whose keys and values were pulled into the tree */
	/* treatment of its logits: */
	int counts;			/* token counters are needed */
	int32_t *scored_prompt;		/* prompt tokens, with prompt_logprobs; otherwise NULL */
	int32_t num_scored;		/* last prompt position whose log-probabilities a pass computes */
	int32_t *prompt;		/* prompt tokens that the penalties count; NULL: none */
	int32_t *given;			/* [req.num_given], which penalties count as drawn; NULL: none */
	int32_t bias_at, forbidden_at, num_forbidden;	/* where its lists are on the device */
	struct beams *beams;		/* NULL: no beam search */
	struct answer answers[];	/* [num_answers] */
};

struct draw {
	uint64_t handle;
	int32_t index;
	/* The draws of drafted rows come after that of row 0 of their tree; the plan keeps their drafts. */
	int32_t num_drafts;
	const int32_t *drafts, *parents;	/* [num_drafts] */
	int32_t slot;			/* token counters of a drafted row; -1: none */
	int32_t number;			/* number of the draw within its answer */
	int masked;
	const uint32_t *mask;		/* the mask that was used, once a masked draw has been made */
	int32_t place;			/* in a tree: the slot of the row's key; -1: not in a tree */
};

/* The answers whose tokens a pass in flight draws. */
struct engine_flight {
	struct draw *draws;		/* [max_draws] */
	int32_t num_draws;
	struct draw *scored;		/* [max_batch]; index: the prompt position */
	int32_t num_scored;
	/* with speculation: rows, padded, of a pass that only decodes, else 0; whether it has drafts */
	int32_t timed_rows;
	int drafted;
	int64_t launched;
};

struct engine_spec;

#define ENGINE_FLIGHTS	(CAIRN_WORKER_FLIGHTS > CAIRN_MAX_LANES ? CAIRN_WORKER_FLIGHTS : CAIRN_MAX_LANES)
#define NUM_BUCKETS	4096		/* a power of two */

struct cairn_engine {
	const struct cairn_impl *impl;
	const struct cairn_model_config *config;
	const struct cairn_lora *lora;	/* adapters of the model; NULL: none */
	struct cairn_engine_options opt;
	struct cairn_scheduler *scheduler;
	struct cairn_worker *worker;	/* that of the lane in turn */
	struct cairn_worker *lanes[CAIRN_MAX_LANES];	/* [num_lanes]; without lanes there is one */
	int32_t num_models;		/* model workers: number i > 0, of another process, computes lane i */
	int32_t num_lanes, lane;
	int32_t used_lanes;		/* that new requests may enter */
	struct cairn_lane_costs lane_costs;
	struct cairn_worker_stats lane_stats;	/* at the last measurement */
	int64_t next_choice;		/* step */
	struct cairn_tiers *tiers;
	struct engine_flight flights[ENGINE_FLIGHTS];	/* with lanes: by lane */
	int first_flight;
	struct { struct request *r; uint32_t generation; } *slots;	/* [num_slots] */
	int32_t *free_slots, num_slots, num_free;	/* free_slots: stack of num_free */
	struct request *buckets[NUM_BUCKETS];	/* by the caller's id */
	int32_t num_requests;
	struct cairn_sched_event *events;	/* a copy, because callbacks may call the scheduler */
	int32_t events_room;
	uint8_t *stops;				/* [max_draws], for cairn_scheduler_report() */
	struct cairn_worker_treat *treats;	/* [max_draws], of the pass being built */
	int32_t (*paths)[CAIRN_MAX_DRAFTS];	/* [max_draws], of the pass: the drafts up to each row */
	int32_t *moves_from, *moves_to, num_moves;	/* [max_draws]: rows of trees that were drawn */
	int32_t *count_slots, num_count_slots;	/* free counter slots of the worker */
	int can_score;			/* passes have an operation list */
	struct cairn_mask_item *mask_items;	/* [max_draws] */
	int32_t max_draws;		/* max_batch and the drafted rows of a pass */
	struct engine_spec *spec;	/* NULL: no speculation */
	struct engine_pull *pull;	/* NULL: no prefill workers */
	int32_t chain_rows;		/* rows of a part with drafts */
	int failed;
	struct cairn_engine_stats stats;
};

/* engine.c */
struct request *engine_find(struct cairn_engine *e, uint64_t handle);	/* NULL: it has finished */
int engine_is_end(const struct cairn_engine *e, const struct request *r, int32_t token);
void engine_finish(struct cairn_engine *e, struct request *r, int32_t index, enum cairn_finish why,
		   int32_t token);

/* engine_remote.c */
int engine_remote_check(const struct cairn_engine_options *o, const struct cairn_model *m);
/* Does the moves of a plan, in place of the tiers. */
int engine_remote_copies(struct cairn_engine *e, const struct cairn_step_plan *p);
/*
 * After the loss of an attention worker: takes other workers and has all sequences computed again; with a
 * journal, calls engine_remote_restore(). undone: the flight whose launch has failed; NULL: none
 */
int engine_remote_recover(struct cairn_engine *e, struct engine_flight *undone);
/*
 * The same with a journal: takes other workers, restores their caches, and launches again the passes that
 * have not ended. is_launching: the current lane's launch has failed; its pass is launched last.
 */
int engine_remote_restore(struct cairn_engine *e, int is_launching);

/* engine_lanes.c */
int engine_lanes_check(struct cairn_engine_options *o);
int engine_lanes_create(struct cairn_engine *e, struct cairn_model *model,
			const struct cairn_worker_options *first);
void engine_lanes_destroy(struct cairn_engine *e);
int engine_lanes_in_flight(const struct cairn_engine *e);	/* passes of all lanes */
/* Gives all lanes turns until the pass of the lane in turn has ended. */
int engine_lanes_finish(struct cairn_engine *e);
/* Chooses, at times, how many lanes new requests may enter. */
void engine_lanes_choose(struct cairn_engine *e);

/* engine_pull.c; without prefill workers these do nothing */
int engine_pull_check(const struct cairn_engine_options *o);
void engine_pull_options(const struct cairn_engine *e, struct cairn_scheduler_options *so);
int engine_pull_create(struct cairn_engine *e, const struct cairn_model *model);
void engine_pull_destroy(struct cairn_engine *e);
/* Returns whether a worker should compute the prompt; the request is then submitted as one that waits. */
int engine_pull_wants(const struct cairn_engine *e, struct request *r, const struct cairn_request *request);
/* Gives the prompt to a worker. If no worker or no pages are free, the engine computes the prompt itself. */
void engine_pull_begin(struct cairn_engine *e, struct request *r, const struct cairn_request *request);
/* Drops the request's pull and frees its pages; does nothing if the request has no pull. */
void engine_pull_end(struct cairn_engine *e, struct request *r);
int engine_pull_take(struct cairn_engine *e);		/* imports the pages of the pulls that have ended */
/* To be called before a plan is carried out: drops the pulls whose pages that plan has taken back. */
void engine_pull_revoked(struct cairn_engine *e);
/*
 * To be called after a plan is carried out, and after a pass is collected: they let the workers write the
 * reserved pages that no earlier pass or move uses any more.
 */
int engine_pull_carried(struct cairn_engine *e, int has_rows);
void engine_pull_collected(struct cairn_engine *e);
void engine_pull_wait(struct cairn_engine *e);		/* waits until a pull has ended, at most 1 ms */
void engine_pull_stats(const struct cairn_engine *e, struct cairn_engine_stats *stats);

/* engine_treat.c */
int engine_check_sampling(const struct cairn_engine *e, const struct cairn_request *r);
int engine_treat_create(struct cairn_engine *e);
int engine_treat_begin(struct cairn_engine *e, struct request *r, const struct cairn_request *from);
void engine_treat_end(struct cairn_engine *e, struct request *r);
void engine_treat_end_answer(struct cairn_engine *e, struct answer *a);
/* Returns the treatment of draw number `offset` of an answer; NULL: its logits are not changed. */
const struct cairn_worker_treat *engine_treat(struct cairn_engine *e, struct request *r, int32_t index,
					      int32_t offset, struct cairn_worker_treat *place);
/*
 * The same for the row after `num` drafts; its draw is number `offset`. Counters, if any, are copies in a
 * slot of their own.
 */
const struct cairn_worker_treat *engine_treat_draft(struct cairn_engine *e, struct request *r,
						    int32_t index, int32_t offset,
						    const int32_t *drafts, int32_t num,
						    struct cairn_worker_treat *place);
/*
 * d[1 .. num] are the draws of an answer's drafted rows. `last` is the row of the last draw that counts: its
 * counters become the answer's. Frees the other slots. a: NULL if the answer has ended.
 */
void engine_treat_drawn(struct cairn_engine *e, struct answer *a, struct draw *d, int32_t num, int32_t last);

/* engine_spec_rows.c: the rows of a plan's item with drafts, and their draws */
void engine_spec_add(struct cairn_engine *e, struct request *r, const struct cairn_step_plan *p,
		     const struct cairn_step_item *item, struct engine_flight *f,
		     struct cairn_worker_part *part);
/*
 * Finds which draws of drafted rows count: sets path[1 ..] to their rows and returns how many there are;
 * path[0] is 0, row 0. Lists the moves of their keys, and updates the statistics.
 */
int32_t engine_spec_take(struct cairn_engine *e, struct draw *d, const int32_t *tokens,
			 int32_t path[CAIRN_TREE_ROWS]);
int engine_spec_move(struct cairn_engine *e);	/* launches the moves listed */

/* engine_mask.c */
int engine_mask_create(struct cairn_engine *e);
int engine_mask_check(const struct cairn_engine *e, const struct cairn_request *r);
/* Tells the constraint of a request the tokens that its answer already has. */
int engine_mask_resume(struct cairn_engine *e, struct request *r, const int32_t *given);
/* Drops the drafts that the constraints of their answers exclude. */
int engine_mask_cut(struct cairn_engine *e, struct cairn_sched_draft *drafts, int32_t num);
/* Makes the masked draws of the pass that was launched last, once those before it are collected. */
int engine_mask_draw(struct cairn_engine *e, struct engine_flight *f);
/* Returns whether the draw may have given this token. */
int engine_mask_allows(const struct cairn_engine *e, const struct draw *d, int32_t token);
void engine_mask_took(struct answer *a, int32_t token);

/* engine_spec.c */
int engine_spec_create(struct cairn_engine *e);		/* checks the options and sets max_draws */
int engine_spec_create_model(struct cairn_engine *e, const struct cairn_worker_options *engine);
void engine_spec_destroy(struct engine_spec *s);
void engine_spec_options(struct cairn_engine *e, struct cairn_scheduler_options *so);
void engine_spec_stats(const struct cairn_engine *e, struct cairn_speculation_stats *stats);
int engine_spec_begin(const struct cairn_engine *e, struct request *r);	/* returns whether it speculates */
/* Counts that `accepted` of an answer's num drafts were drawn. failed: none of the next ones was right. */
void engine_spec_took(struct cairn_engine *e, struct answer *a, int32_t num, int32_t accepted, int failed);
void engine_spec_tree(struct cairn_engine *e, int32_t moved);	/* counts a tree; moved: its moves */
const struct cairn_worker_taps *engine_spec_taps(const struct cairn_engine *e);	/* NULL: none */
int engine_spec_trees(const struct cairn_engine *e);	/* returns whether drafts may form trees */
/* Lets an answer speculate again when its pause is over. */
int engine_spec_resume(struct cairn_engine *e, const struct request *r, int32_t index, struct answer *a);
void engine_spec_end(struct cairn_engine *e, const struct request *r, int32_t index);	/* of an answer */
/* Measure the time of a pass. */
void engine_spec_launched(const struct cairn_engine *e, struct engine_flight *f,
			  const struct cairn_step_plan *p);
void engine_spec_collected(struct cairn_engine *e, const struct engine_flight *f);

/* engine_step.c */
/* Makes a part draw token number `offset` of the answer, after a row that follows the `num` drafts. */
void engine_add_draw(struct cairn_engine *e, struct request *r, const struct cairn_step_item *item,
		     int32_t offset, const int32_t *drafts, int32_t num, struct engine_flight *f,
		     struct cairn_worker_part *part);

/* engine_beam.c */
int engine_check_beams(const struct cairn_engine *e, const struct cairn_request *r);
int engine_beams_create(const struct cairn_engine *e, struct request *r);
void engine_beams_destroy(struct beams *b);
int32_t engine_beams_candidates(const struct beams *b);	/* number of most likely tokens needed per row */
/* Takes the most likely tokens after beam `index` from draw i of a pass. */
void engine_beams_take(const struct cairn_engine *e, struct request *r, int32_t index,
		       const struct cairn_worker_result *w, int32_t i);
/* Once all beams have drawn and the scheduler has their tokens: chooses the next beams. */
int engine_beams_advance(struct cairn_engine *e, struct request *r);

#endif
