// SPDX-License-Identifier: Apache-2.0
/*
 * engine_remote - attention by workers of other processes: copies of pages, and the loss of a worker
 *
 * A worker that is lost takes its heads of all keys and values with it. The pass under way ends with an error
 * before it draws; earlier passes have drawn. So the engine takes the plan of that pass back, sets all
 * sequences back (cairn_scheduler_reset()), and goes on as after a preemption: prompts and answers so far are
 * computed again. What was drawn stays drawn: no callback is made twice, and no token is drawn with another
 * key.
 */
#include "serving/engine/engine_impl.h"

int engine_remote_check(const struct cairn_engine_options *o)
{
	const int fused = o->decode == CAIRN_DECODE_GRAPH || o->decode == CAIRN_DECODE_PERSISTENT;
	const char *other = o->host_pages ? "host_pages" : o->nano ? "nano" : o->tap ? "tap" :
			    o->speculation.method ? "speculative" : fused ? "decode" : NULL;

	return other ? cairn_error(EINVAL, "engine: %s: does not go with attention_workers", other) : 0;
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

int engine_remote_recover(struct cairn_engine *e, struct engine_flight *undone)
{
	for (int32_t i = 0; undone && i < undone->num_scored; i++) {
		struct request *r = engine_find(e, undone->scored[i].handle);

		/* the rows before position `index` are to be scored again */
		if (r && r->num_scored >= undone->scored[i].index)
			r->num_scored = undone->scored[i].index - 1;
	}
	CAIRN_TRY(cairn_worker_restart(e->worker));
	e->stats.recoveries++;
	return cairn_scheduler_reset(e->scheduler, undone != NULL);
}
