// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step - launcher: runs a step as the phases of grid.cu, in one launch or in one launch per phase,
 * then argmax or sampling; models with latent attention or experts go to decode_step_moe.cu
 */
#include "fused/decode_step/decode_step.h"

#include "primitives/base/launch.h"
#include "fused/decode_step/decode_step_draw.h"
#include "fused/decode_step/decode_step_grid.h"
#include "fused/decode_step/decode_step_moe.h"

/* Plans the grid's part of the workspace, then the sampler's. */
static int plan(const struct cairn_decode_step_args *args, struct grid_args *g,
		size_t *bytes, size_t *draw_bytes)
{
	*bytes = *draw_bytes = 0;
	if (!args->kv.batch)
		return 0;
	if (!args->kv_lora_rank && args->num_qo_heads / args->num_kv_heads > GRID_MAX_GROUP)
		return cairn_error(EOPNOTSUPP, "decode_step: num_qo_heads: more than %d for each KV head",
				   GRID_MAX_GROUP);
	g->s = decode_step_grid(args);
	CAIRN_TRY(decode_step_is_moe(args) ? decode_step_moe_workspace(args, bytes) :
		  grid_plan(g, (char *)args->workspace, bytes));
	return decode_step_draw_workspace(args, draw_bytes);
}

extern "C" int cairn_decode_step_workspace(const struct cairn_decode_step_args *args, size_t *bytes)
{
	struct grid_args g = {};
	size_t grid_bytes, draw_bytes;

	CAIRN_TRY(cairn_decode_step_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "decode_step_workspace: bytes: null pointer");
	CAIRN_TRY(plan(args, &g, &grid_bytes, &draw_bytes));
	*bytes = grid_bytes + draw_bytes;
	return 0;
}

extern "C" int cairn_decode_step(const struct cairn_decode_step_args *args, void *stream)
{
	struct grid_args g = {};
	size_t grid_bytes, draw_bytes;

	CAIRN_TRY(cairn_decode_step_check(args));
	CAIRN_TRY(plan(args, &g, &grid_bytes, &draw_bytes));
	if (!args->kv.batch)
		return 0;
	if (!args->workspace || args->workspace_bytes < grid_bytes + draw_bytes)
		return cairn_error(EINVAL, "decode_step: workspace: needs %zu bytes",
				   grid_bytes + draw_bytes);
	CAIRN_TRY(decode_step_is_moe(args) ? decode_step_moe(args, stream) :
		  grid_launch(&g, 0, args->num_layers * GRID_KINDS + 1,
			      args->form != CAIRN_DECODE_STEP_GRAPH, stream));
	return decode_step_draw(args, (char *)args->workspace + grid_bytes, draw_bytes, stream);
}
