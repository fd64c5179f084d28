// SPDX-License-Identifier: Apache-2.0
/* cluster_attn_grid - cluster_attn AUTO: the first three phases of a layer by grid.cu, in one launch */
#include "fused/cluster_attn/cluster_attn_grid.h"

#include "primitives/base/error.h"
#include "fused/grid/grid.h"

static struct grid_step step_of(const struct cairn_cluster_attn_args *args)
{
	struct grid_step s = {};

	s.kv = args->kv;
	s.positions = args->positions;
	s.inv_freq = args->inv_freq;
	s.attn_norm = args->norm_weight;
	s.w_qkv = args->w_qkv;
	s.b_qkv = args->b_qkv;
	s.w_o = args->w_o;
	s.b_o = args->b_o;
	s.num_layers = 1;
	s.hidden = args->hidden;
	s.num_qo_heads = args->num_qo_heads;
	s.num_kv_heads = args->num_kv_heads;
	s.head_dim = args->head_dim;
	s.dtype = args->dtype;
	s.eps = args->eps;
	s.sm_scale = args->sm_scale;
	s.sms = args->sms;
	return s;
}

static int plan(const struct cairn_cluster_attn_args *args, struct grid_args *g, size_t *bytes)
{
	g->s = step_of(args);
	g->x = args->x;
	g->out = args->out;
	if (args->num_qo_heads / args->num_kv_heads > GRID_MAX_GROUP)
		return cairn_error(EOPNOTSUPP, "cluster_attn: num_qo_heads: more than %d for each KV head",
				   GRID_MAX_GROUP);
	return grid_plan(g, (char *)args->workspace, bytes);
}

int cluster_attn_grid_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes)
{
	struct grid_args g = {};

	return plan(args, &g, bytes);
}

int cluster_attn_grid(const struct cairn_cluster_attn_args *args, void *stream)
{
	struct grid_args g = {};
	size_t bytes;

	CAIRN_TRY(plan(args, &g, &bytes));
	if (!args->workspace || args->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_attn: workspace: needs %zu bytes", bytes);
	return grid_launch(&g, GRID_QKV, GRID_OUT + 1, 1, stream);
}
