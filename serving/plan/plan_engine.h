/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_engine - plan files as an engine takes them: entries become plans of nano-batches (nano_plan.h)
 *
 * An entry becomes a plan if its measured gain is at least CAIRN_SEARCH_LEAST_GAIN. Its cuts become shares of
 * the rows of a pass, its decoding rows shares of the decoding rows. A part's place is that of all operations
 * of the graph that it covers, in their order.
 *
 * Lanes: operations bound by arithmetic run on lane 0, the stream of the pass, attention on lane 1, and the
 * collectives of several ranks on lane 2. Lane 1 or 2 gets the higher priority if the entry has a part on it
 * whose `how` is priority. Each number of SMs that green parts have gets a lane of its own, with the higher
 * priority if it is for collectives; if that takes more than CAIRN_NANO_LANES, a part takes the lane with the
 * nearest number. moe, whose CTAs wait for each other, always runs on lane 0.
 *
 * Errors: those of plan_file.h; -EINVAL: an entry lacks an operation of the pipeline, or names another one;
 * -EOPNOTSUPP: a way to run parts that no engine has (queue, coresident).
 */
#ifndef CAIRN_PLAN_ENGINE_H
#define CAIRN_PLAN_ENGINE_H

#include "serving/nano/nano_plan.h"
#include "serving/plan/plan_file.h"

struct cairn_plan_engine;

/*
 * path: a plan file, or a folder that holds one under its usual name (cairn_plan_file_name()). want->shape
 * and want->ranks are not read: config, that of a rank's share, has them. -ENOENT: no entry of the file has
 * such a gain.
 */
int cairn_plan_engine_open(struct cairn_plan_engine **out, const char *path,
			   const struct cairn_model_config *config, const struct cairn_plan_file_for *want);
void cairn_plan_engine_close(struct cairn_plan_engine *plans);	/* NULL is legal */

/* For struct cairn_engine_options; valid until plans is closed, after the engine. */
const struct cairn_nano_plans *cairn_plan_engine_plans(const struct cairn_plan_engine *plans);

/* One entry as a plan, measured or not. Places and the names in them belong to the plan. */
struct cairn_plan_lanes {
	struct cairn_nano_plan plan;
	struct cairn_nano_place *places;
	char (*names)[CAIRN_SEARCH_NAME];
};
int cairn_plan_lanes_make(struct cairn_plan_lanes *out, const struct cairn_plan_file *file, int32_t entry,
		     const struct cairn_search_pipeline *pipeline);
void cairn_plan_lanes_free(struct cairn_plan_lanes *lanes);	/* does nothing if *lanes is zeroed */

#endif
