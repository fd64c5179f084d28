/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_impl - the state of the engine
 *
 * The scheduler knows a request by its handle: (generation, slot) in one number, never given twice, so that a
 * draw which comes home late cannot be taken for one of a request that has its place now.
 */
#ifndef CAIRN_ENGINE_IMPL_H
#define CAIRN_ENGINE_IMPL_H

#include "primitives/base/error.h"
#include "serving/engine/engine.h"
#include "serving/scheduler/tiers.h"
#include "serving/engine/worker.h"

/* One answer to a request. */
struct answer {
	int live;			/* on_finish has not been called */
	int stopping;			/* cairn_engine_stop() before it had a sequence */
	int failed;			/* no token could be drawn */
	int32_t num_given;		/* to on_token */
	int32_t end_token;		/* of the draw that stops it; -1: none */
	int32_t slot;			/* the worker's counters of its tokens; -1: none */
};

struct beams;

struct request {
	struct request *next;		/* in its bucket */
	struct cairn_request req;	/* its arrays lie behind the answers */
	uint64_t handle;
	int32_t num_answers, num_live;
	int started, cancelled, bad;	/* bad: beams whose logits are no numbers */
	/* of its logits */
	int counts;			/* the tokens of its answers are counted */
	int32_t *prompt;		/* to be counted, too; NULL: not so */
	int32_t bias_at, forbidden_at, num_forbidden;
	struct beams *beams;		/* NULL: no beam search */
	struct answer answers[];	/* [num_answers] */
};

struct draw {
	uint64_t handle;
	int32_t index;
};

/* Whose tokens a flight of the worker draws. */
struct engine_flight {
	struct draw *draws;		/* [max_batch] */
	int32_t num_draws;
};

#define NUM_BUCKETS	4096		/* a power of two */

struct cairn_engine {
	const struct cairn_impl *impl;
	const struct cairn_model_config *config;
	struct cairn_engine_options opt;
	struct cairn_scheduler *scheduler;
	struct cairn_worker *worker;
	struct cairn_tiers *tiers;
	struct engine_flight flights[CAIRN_WORKER_FLIGHTS];
	int first_flight;
	struct { struct request *r; uint32_t generation; } *slots;
	int32_t *free_slots, num_slots, num_free;
	struct request *buckets[NUM_BUCKETS];	/* by the caller's id */
	int32_t num_requests;
	struct cairn_sched_event *events;	/* a copy: callbacks may call the scheduler */
	int32_t events_room;
	uint8_t *stops;				/* [max_batch] */
	struct cairn_worker_treat *treats;	/* [max_batch], of the pass being built */
	int32_t *count_slots, num_count_slots;	/* of the worker: those that are free */
	int failed;
	struct cairn_engine_stats stats;
};

/* engine.c */
struct request *engine_find(struct cairn_engine *e, uint64_t handle);	/* NULL: it has finished */
int engine_is_end(const struct cairn_engine *e, const struct request *r, int32_t token);
void engine_finish(struct cairn_engine *e, struct request *r, int32_t index, enum cairn_finish why,
		   int32_t token);

/* engine_treat.c */
int engine_check_sampling(const struct cairn_engine *e, const struct cairn_request *r);
int engine_treat_create(struct cairn_engine *e);
int engine_treat_begin(struct cairn_engine *e, struct request *r, const struct cairn_request *from);
void engine_treat_end(struct cairn_engine *e, struct request *r);
void engine_treat_end_answer(struct cairn_engine *e, struct answer *a);
/* Of the draw number `offset` of an answer. NULL: its logits are as they are. */
const struct cairn_worker_treat *engine_treat(struct cairn_engine *e, struct request *r, int32_t index,
					      int32_t offset, struct cairn_worker_treat *place);

/* engine_beam.c */
int engine_check_beams(const struct cairn_engine *e, const struct cairn_request *r);
int engine_beams_create(const struct cairn_engine *e, struct request *r);
void engine_beams_destroy(struct beams *b);
/* The likeliest tokens after one of its sequences: draw i of a pass. */
int32_t engine_beams_candidates(const struct beams *b);	/* of each row */
void engine_beams_take(const struct cairn_engine *e, struct request *r, int32_t index,
		       const struct cairn_worker_result *w, int32_t i);
/* When all have drawn, and the scheduler has been told: which ones go on. */
int engine_beams_advance(struct cairn_engine *e, struct request *r);

#endif
