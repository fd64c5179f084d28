// SPDX-License-Identifier: Apache-2.0
/*
 * engine_lanes - several batches whose passes are under way together (rotational staggered pipelining)
 *
 * A lane is a worker with a batch of its own. While the attention workers attend for one lane, this process
 * computes a slice of another. Lanes take turns, one slice each, in the order in which their passes were
 * launched, so that a pass never overtakes an earlier one in any layer. The lane that ends its pass gets the
 * next plan at once and goes to the end of the order, while the others are in the middle of their passes:
 *
 *   model worker   0.3 | 1.3 | 0.4, tokens, plan, 0.0 | 1.4, tokens, plan, 1.0 | 0.1 | 1.1 | ...
 *   attention            0.3 | 1.3                          0.0                  1.0 | 0.1 | ...
 *
 * (lane.slice, of a model with four attention operators). So there is no bubble between two passes.
 *
 * With several model workers, lane i is computed by number i, whole passes at a time, while this process
 * takes turns for its own lanes. It waits for the tokens of a lane in the order of the lanes, as above.
 */
#include "serving/engine/engine_impl.h"

#define MEASURED_STEPS	16	/* between two choices */

_Static_assert(CAIRN_MAX_LANES == CAIRN_SCHED_LANES, "the scheduler has as many lanes as the workers");

int engine_lanes_check(struct cairn_engine_options *o)
{
	const int32_t models = o->attention ? cairn_lead_models(o->attention) : 1;

	if (o->lanes < CAIRN_LANES_AUTO || o->lanes > CAIRN_MAX_LANES)
		return cairn_error(EINVAL, "engine: lanes: is %d, must be 1..%d", o->lanes, CAIRN_MAX_LANES);
	if (models > 1 && o->slices)
		return cairn_error(EOPNOTSUPP, "engine: slices: not with several model_workers, which make "
				   "their own slices of the model");
	if (models > 1 && (o->lanes == CAIRN_LANES_AUTO || o->lanes < models))
		return cairn_error(EINVAL, "engine: lanes: %d model_workers need at least %d", models,
				   models);
	if (o->kv_journal < 0 || (o->kv_journal && !o->attention))
		return cairn_error(EINVAL, "engine: kv_journal: %s", o->attention ? "is negative" :
				   "needs attention_workers");
	if (o->lanes && o->lanes != 1 && !o->attention)
		return cairn_error(EINVAL, "engine: lanes: need attention_workers");
	if (o->lanes && o->lanes != 1 && o->speculation.method)
		return cairn_error(EINVAL, "engine: lanes: exclude speculative decoding");
	return 0;
}

int engine_lanes_create(struct cairn_engine *e, struct cairn_model *model,
			const struct cairn_worker_options *first)
{
	struct cairn_worker_options wo = *first;

	wo.lanes = e->num_lanes;
	for (int32_t i = 0; i < e->num_lanes; i++) {
		wo.lane = i;
		wo.first = e->lanes[0];
		wo.model = i < e->num_models ? i : 0;
		CAIRN_TRY(cairn_worker_create(&e->lanes[i], model, &wo));
	}
	e->worker = e->lanes[0];
	cairn_scheduler_use_lanes(e->scheduler, e->used_lanes);
	return 0;
}

void engine_lanes_destroy(struct cairn_engine *e)
{
	for (int32_t i = e->num_lanes; i-- > 0;)
		cairn_worker_destroy(e->lanes[i]);
}

int engine_lanes_in_flight(const struct cairn_engine *e)
{
	int num = 0;

	for (int32_t i = 0; i < e->num_lanes; i++)
		num += cairn_worker_in_flight(e->lanes[i]);
	return num;
}

int engine_lanes_finish(struct cairn_engine *e)
{
	int under_way, mine = 1, ret = 0;

	for (int32_t i = e->lane; mine; i = (i + 1) % e->num_lanes) {
		ret = cairn_worker_turn(e->lanes[i], &under_way);
		if (ret && !cairn_worker_lost(e->worker))
			return ret;
		if (!ret && i == e->lane)
			mine = under_way;
		if (!ret)
			continue;
		CAIRN_TRY(engine_remote_recover(e, NULL));
		if (!cairn_worker_in_flight(e->worker))		/* its plan is taken back */
			return 0;
		i = (e->lane + e->num_lanes - 1) % e->num_lanes;	/* all begin again, in their order */
	}
	return 0;
}

void engine_lanes_choose(struct cairn_engine *e)
{
	struct cairn_worker_stats now, *last = &e->lane_stats;
	int64_t turns;
	int32_t best;

	if (e->opt.lanes != CAIRN_LANES_AUTO)
		return;
	if (e->stats.steps < e->next_choice)
		return;
	cairn_worker_stats(e->lanes[0], &now);
	turns = now.turns - last->turns;
	if (!turns)
		return;
	e->next_choice = e->stats.steps + MEASURED_STEPS * e->used_lanes;
	cairn_lane_costs_add(&e->lane_costs, e->used_lanes, &(struct cairn_lane_turn){
		.rows = (double)(now.turn_rows - last->turn_rows) / (double)turns,
		.model_ns = (double)(now.turn_ns - last->turn_ns) / (double)turns,
		.wait_ns = (double)(now.turn_wait_ns - last->turn_wait_ns) / (double)turns,
		.attn_ns = (double)(now.attn_ns - last->attn_ns) / (double)turns,
	});
	*last = now;
	best = cairn_lane_costs_best(&e->lane_costs, e->used_lanes, e->num_lanes);
	e->stats.lane_changes += best != e->used_lanes;
	e->used_lanes = best;
	cairn_scheduler_use_lanes(e->scheduler, best);
}
