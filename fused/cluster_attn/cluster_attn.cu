// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn - launcher: checks the arguments and calls the kernel of the dataflow
 *
 * AUTO is the grid's dataflow, in which all SMs share all work (cluster_attn_grid.h). It was faster than a
 * cluster for each KV head at every shape measured. For shapes that the grid does not support, AUTO is
 * SPLIT_TOKEN: groups of more than 8 heads, and activations that do not fit into shared memory.
 */
#include "fused/cluster_attn/cluster_attn.h"

#include "primitives/base/launch.h"
#include "fused/cluster_attn/cluster_attn_grid.h"
#include "fused/cluster_attn/cluster_attn_split.h"

extern "C" int cairn_cluster_attn(const struct cairn_cluster_attn_args *args, void *stream)
{
	CAIRN_TRY(cairn_cluster_attn_check(args));
	if (!args->kv.batch)
		return 0;
	if (args->dataflow == CAIRN_CLUSTER_ATTN_AUTO) {
		int ret = cluster_attn_grid(args, stream);

		if (ret != -EOPNOTSUPP)
			return ret;
	}
	return cluster_attn_split(args, stream);
}

extern "C" int cairn_cluster_attn_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_cluster_attn_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "cluster_attn_workspace: bytes: null pointer");
	*bytes = 0;
	if (args->kv.batch && args->dataflow == CAIRN_CLUSTER_ATTN_AUTO) {
		int ret = cluster_attn_grid_workspace(args, bytes);

		if (ret != -EOPNOTSUPP)
			return ret;
	}
	return args->kv.batch ? cluster_attn_split_workspace(args, bytes) : 0;
}
