/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_plan - how a pass runs as nano-batches
 *
 * A nano-batch is some consecutive rows of a pass. A plan says into how many nano-batches a pass is cut, and
 * on which lane and when each operation of a layer runs for each nano-batch. A lane is a stream: its
 * operations run one after the other, those of different lanes at the same time.
 *
 * Times are in periods, a period being the time from one layer to the next: with start s an operation of
 * layer l runs at l + s. Times only decide the order in which operations are launched, and so the order on
 * each lane. An operation that must wait for another one is launched after it, whatever the plan says, so
 * every plan gives the results of the sequential pass.
 *
 * An operation without a place in the plan runs on lane i % num_lanes for nano-batch i. If it is the j-th of
 * the n operations of its layer, it starts at j / n + i / num_batches. A plan without any places is therefore
 * a pipeline.
 *
 * Embedding and head, which belong to no layer, run on lane 0 for all rows. MOE always runs for all rows at
 * once: two calls would read the weights of most experts twice, and its sums may depend on the number of rows
 * (moe.h). Attention and the appends to the cache always run for each nano-batch, because nothing else has
 * lists of its requests. Collectives of several ranks run one at a time, on whichever lanes.
 */
#ifndef CAIRN_NANO_PLAN_H
#define CAIRN_NANO_PLAN_H

#include <stdint.h>

#define CAIRN_NANO_BATCHES	8	/* most nano-batches */
#define CAIRN_NANO_LANES	8
#define CAIRN_NANO_WHOLE	(-1)	/* one call for the rows of all nano-batches */

struct cairn_nano_place {
	const char *op;			/* name within a layer, such as "qkv_proj" */
	int32_t batch;			/* nano-batch, or CAIRN_NANO_WHOLE, which leaves no other place */
	int32_t lane;
	double start;			/* in periods, finite, >= 0 */
};

/* Where a lane runs: stream_create_part's arguments (abi.h). Zero: a plain stream. */
struct cairn_nano_lane {
	int32_t sms, priority;
};

struct cairn_nano_plan {
	int32_t num_batches;		/* 1 .. CAIRN_NANO_BATCHES */
	int32_t num_lanes;		/* 1 .. CAIRN_NANO_LANES; lane 0 is the stream of the pass */
	/* Shares of the rows of a pass, all 0: equal ones; else each > 0. */
	int32_t rows[CAIRN_NANO_BATCHES];
	/* Shares of its decoding rows, which then change places; all 0: rows keep their order. */
	int32_t decodes[CAIRN_NANO_BATCHES];
	int32_t least_rows;		/* a pass with fewer rows runs sequentially; 0: num_batches */
	const struct cairn_nano_place *places;
	int32_t num_places;
	/* lanes[0], the stream of the pass, is zero. MOE, whose CTAs wait for each other, needs all SMs. */
	struct cairn_nano_lane lanes[CAIRN_NANO_LANES];
};

/* Plans for different passes. */
struct cairn_nano_plans {
	const struct cairn_nano_plan *plans;
	int32_t num;
	/*
	 * Returns the index of the plan for a pass, or -1 to run it sequentially. decodes: its decoding rows;
	 * context: their mean number of keys, 0 without any. NULL: every pass takes the first plan.
	 */
	int32_t (*pick)(const void *ctx, int32_t rows, int32_t decodes, int32_t context);
	const void *ctx;
	/*
	 * The digest tells these plans and the choices of pick from others. It must be the same on all
	 * ranks, so that they cut a pass alike and run their collectives in one order. 0: unknown, and not
	 * for several ranks.
	 */
	uint64_t digest;
};

/* Checks all but the places. -EINVAL: the text names the member. */
int cairn_nano_plan_check(const struct cairn_nano_plan *plan);

#endif
