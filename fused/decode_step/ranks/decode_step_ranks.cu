// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ranks - launcher: runs a step of several ranks as phases of grid.cu in one launch, then argmax
 * or sampling on every rank; a single rank is decode_step
 */
#include "fused/decode_step/ranks/decode_step_ranks.h"

#include "primitives/base/launch.h"
#include "fused/decode_step/decode_step_draw.h"
#include "fused/decode_step/decode_step_grid.h"
#include "fused/decode_step/ranks/decode_step_ranks_parts.h"

/* Plans the grid's part of the workspace, then the sampler's. `step` has the whole vocabulary. */
static int plan(const struct cairn_decode_step_args *step, int32_t ranks, struct grid_args *g, size_t *bytes,
		size_t *draw_bytes)
{
	*bytes = *draw_bytes = 0;
	if (!step->kv.batch)
		return 0;
	if (step->form == CAIRN_DECODE_STEP_GRAPH)
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: form: GRAPH, and several ranks need "
				   "PERSISTENT");
	g->s = decode_step_grid(step);
	g->s.vocab = step->vocab / ranks;
	CAIRN_TRY(grid_plan(g, (char *)step->workspace, bytes));
	if (!g->by_ll)
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: kv.batch: results of %d requests and "
				   "hidden %d do not travel as LL words", step->kv.batch, step->hidden);
	if (grid_rank_words(*g) > COMM_WORDS)
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: num_layers: the sums of %d layers exceed "
				   "a mailbox", step->num_layers);
	return decode_step_draw_workspace(step, draw_bytes);
}

extern "C" int cairn_decode_step_ranks_workspace(const struct cairn_decode_step_ranks_args *args,
						 size_t *bytes)
{
	struct cairn_decode_step_args step;
	struct grid_args g = {};
	size_t draw_bytes;

	CAIRN_TRY(cairn_decode_step_ranks_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "decode_step_ranks_workspace: bytes: null pointer");
	step = decode_step_ranks_step(args);
	if (args->comm.ranks == 1)
		return cairn_decode_step_workspace(&step, bytes);
	CAIRN_TRY(plan(&step, args->comm.ranks, &g, bytes, &draw_bytes));
	*bytes += draw_bytes;
	return 0;
}

extern "C" int cairn_decode_step_ranks(const struct cairn_decode_step_ranks_args *args, void *stream)
{
	struct cairn_decode_step_args step;
	struct grid_args g = {};
	size_t bytes, draw_bytes;

	CAIRN_TRY(cairn_decode_step_ranks_check(args));
	CAIRN_TRY(comm_cuda_device(&args->comm, "decode_step_ranks", &g.comm));
	step = decode_step_ranks_step(args);
	if (args->comm.ranks == 1)
		return cairn_decode_step(&step, stream);
	CAIRN_TRY(plan(&step, args->comm.ranks, &g, &bytes, &draw_bytes));
	if (!step.kv.batch)
		return 0;
	if (!step.workspace || step.workspace_bytes < bytes + draw_bytes)
		return cairn_error(EINVAL, "decode_step_ranks: workspace: needs %zu bytes",
				   bytes + draw_bytes);
	CAIRN_TRY(grid_launch(&g, 0, step.num_layers * GRID_KINDS + 1, 1, stream));
	return decode_step_draw(&step, (char *)step.workspace + bytes, draw_bytes, stream);
}
