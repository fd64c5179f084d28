// SPDX-License-Identifier: Apache-2.0
/*
 * engine_remote - attention by workers of other processes: copies of pages, and the loss of a worker
 *
 * A lost worker takes its heads of all keys and values with it. The pass under way ends with an error before
 * it draws; earlier passes have already drawn. So the engine takes back the plan of that pass, resets all
 * sequences (cairn_scheduler_reset()), and goes on as after a preemption: prompts and answers so far are
 * computed again. With lanes, this happens to all passes under way, because a pass draws at its end. Tokens
 * drawn before are kept: no callback is made twice, and no token is drawn with another key.
 *
 * With a journal, the caches are restored to their state after the passes that have ended. The other passes
 * are launched again with the index arrays that are still on the device, so the scheduler does not notice.
 */
#include "serving/engine/engine_impl.h"

#include "serving/remote/attention/share.h"

#define MOST_ATTEMPTS	4	/* to go on after losses while passes begin again */

int engine_remote_check(const struct cairn_engine_options *o, const struct cairn_model *m)
{
	const int32_t heads = cairn_share_heads(&m->config);
	const int fused = o->decode == CAIRN_DECODE_GRAPH || o->decode == CAIRN_DECODE_PERSISTENT;
	const char *other = o->host_pages ? "host_pages" : o->nano ? "nano" : o->tap ? "tap" :
			    o->masks ? "masks" : fused ? "decode" :
			    o->speculation.head ? cairn_speculate_names[o->speculation.method] : NULL;

	if (other)
		return cairn_error(EINVAL, "engine: %s: does not go with attention_workers", other);
	if (o->repeatable && !(m->impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "engine: repeatable: attention workers need a table with host "
				   "memory so far, as their passes are not padded");
	if (o->lanes == CAIRN_LANES_AUTO && !(m->impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "engine: lanes: auto: needs a table with host memory so far, "
				   "because only there the host knows when a turn has ended");
	if (o->repeatable && cairn_lead_attention(o->attention) > heads)
		return cairn_error(EOPNOTSUPP, "engine: repeatable: %d attention workers divide the pages of "
				   "%d heads of keys by their numbers, which another run gives otherwise",
				   cairn_lead_attention(o->attention), heads);
	/* a chain's parts attend to keys that other parts of the pass append */
	return o->speculation.method && !o->attends_all ?
	       cairn_error(EINVAL, "engine: speculative: needs attention workers that attend to all keys") :
	       0;
}

int engine_remote_copies(struct cairn_engine *e, const struct cairn_step_plan *p)
{
	for (int32_t i = 0; i < p->num_moves; i++) {
		if (p->moves[i].kind != CAIRN_MOVE_COPY)
			return cairn_error(EIO, "engine: a plan moves pages between tiers");
		CAIRN_TRY(cairn_worker_copy_page(e->worker, p->moves[i].page, p->moves[i].to));
	}
	return 0;
}

/* Frees the counters of drafted rows whose pass was not launched. */
static void drop_drafts(struct cairn_engine *e, struct engine_flight *f)
{
	for (int32_t i = 0; i < f->num_draws; i += 1 + f->draws[i].num_drafts)
		engine_treat_drawn(e, NULL, &f->draws[i], f->draws[i].num_drafts, 0);
}

/* Takes back a pass that has drawn nothing. */
static void undo(struct cairn_engine *e, struct engine_flight *f)
{
	for (int32_t i = 0; i < f->num_scored; i++) {
		struct request *r = engine_find(e, f->scored[i].handle);

		/* the rows before position `index` are to be scored again */
		if (r && r->num_scored >= f->scored[i].index)
			r->num_scored = f->scored[i].index - 1;
	}
	drop_drafts(e, f);
}

/* Launches the passes again that had not ended, in their order. */
static int relaunch(struct cairn_engine *e, int is_launching)
{
	for (int32_t i = 0; i < e->num_lanes; i++) {
		const int32_t lane = (e->lane + i + is_launching) % e->num_lanes;
		const int fails = is_launching && lane == e->lane;

		if (!fails && (e->num_lanes == 1 || !cairn_worker_in_flight(e->lanes[lane])))
			continue;	/* without lanes, passes in flight have ended */
		if (e->num_lanes > 1)
			cairn_worker_drop(e->lanes[lane]);
		CAIRN_TRY(cairn_worker_relaunch(e->lanes[lane]));
	}
	return 0;
}

int engine_remote_restore(struct cairn_engine *e, int is_launching)
{
	int ret;

	for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
		CAIRN_TRY(cairn_worker_restart(e->lanes[0]));
		e->stats.recoveries++;
		ret = relaunch(e, is_launching);
		if (!ret || !cairn_worker_lost(e->lanes[0]))
			return ret;
	}
	return ret;
}

int engine_remote_recover(struct cairn_engine *e, struct engine_flight *undone)
{
	int num = undone != NULL;

	if (cairn_worker_restores(e->lanes[0]))
		return engine_remote_restore(e, 0);
	if (undone)
		undo(e, undone);
	for (int32_t i = 0; i < e->num_lanes && e->num_lanes > 1; i++) {
		if (!cairn_worker_in_flight(e->lanes[i]))
			continue;
		undo(e, &e->flights[i]);
		cairn_worker_drop(e->lanes[i]);
		num++;
	}
	CAIRN_TRY(cairn_worker_restart(e->lanes[0]));
	e->stats.recoveries++;
	return cairn_scheduler_reset(e->scheduler, num);
}
