/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_ablation - measures passes of a plan file against sequential ones, and what each part of a plan brings
 *
 * A pass has the entry's rows: decoding requests with `context` keys each, and one prompt with the other
 * rows. All layers run, with random weights, but not the head, so that times compare with those that were
 * predicted. Passes are launched as an engine launches passes with prompts: operation by operation, without
 * waiting.
 *
 *   sequential   one operation after another
 *   split        the plan's cuts, but one operation after another: what cutting costs
 *   streams      the plan's order on two lanes that share the GPU as it likes
 *   plan         the plan as it is; left out where this is `streams`
 *
 * They take turns, and a turn lasts `seconds`; ms is the median over its turns, so that a clock that falls
 * meanwhile hits all of them.
 *
 * The ranks of a shared model measure together: all of them call nano_ablation_run() with the same plan and
 * options, and each gets its own times.
 *
 * Errors: -EINVAL, -EOPNOTSUPP (plan_engine.h); -ENOMEM: the pass does not fit the device; those of the
 * table.
 */
#ifndef CAIRN_NANO_ABLATION_H
#define CAIRN_NANO_ABLATION_H

#include "conformance/tables/energy.h"
#include "serving/model/model.h"
#include "serving/plan/plan_engine.h"

#define NANO_ABLATION_HOWS	4

struct nano_ablation_options {
	double seconds;
	int turns;			/* 1 .. 15 */
	int32_t page_size;
};

struct nano_ablation_how {
	const char *name;		/* "sequential", "split", "streams", "plan" */
	double ms;			/* of a pass */
	struct cairn_energy energy;	/* of its last turn */
};

struct nano_ablation {
	/* The first is sequential, the last the plan. */
	struct nano_ablation_how hows[NANO_ABLATION_HOWS];
	int num;
	/* All layers use one layer's cache, because the device cannot hold more. It exceeds any cache of the
	 * device, so the times stay the same. */
	int shared_cache;
};

/* Measures an entry and sets its measured times. The model must have the plan's shape. */
int nano_ablation_run(struct nano_ablation *out, const struct cairn_model *model,
		      struct cairn_plan_file *file, int32_t entry,
		      const struct nano_ablation_options *options);

#endif
