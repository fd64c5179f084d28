/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_reduce - the launcher, and what was measured
 *
 * HEADER
 */
#include "cluster_reduce_kernel.cuh"
#include "launch.h"

static const void *pick_kernel(const struct cairn_cluster_reduce_args *a)
{
	const int softmax = a->op == CAIRN_CLUSTER_SOFTMAX;

	switch (a->algo) {
	case CAIRN_CLUSTER_ONESHOT:
		return cluster_reduce_oneshot_kernel(a->dtype, softmax);
	case CAIRN_CLUSTER_TWOSHOT:
		return cluster_reduce_twoshot_kernel(a->dtype, softmax);
	case CAIRN_CLUSTER_RING:
		return softmax ? (const void *)cluster_reduce_kernel<CAIRN_CLUSTER_RING, CAIRN_F32, 1> :
				 (const void *)cluster_reduce_kernel<CAIRN_CLUSTER_RING, CAIRN_F32, 0>;
	case CAIRN_CLUSTER_TREE:
		return softmax ? (const void *)cluster_reduce_kernel<CAIRN_CLUSTER_TREE, CAIRN_F32, 1> :
				 (const void *)cluster_reduce_kernel<CAIRN_CLUSTER_TREE, CAIRN_F32, 0>;
	default:
		return cluster_reduce_offchip_kernel(a->dtype, softmax);
	}
}

/* Barriers among few warps are cheaper: no more than there are messages to send and words to reduce at once. */
static unsigned int num_threads(const struct cairn_cluster_reduce_args *a)
{
	const uint32_t granules = (cluster_reduce_wire_bytes(a) + 15) / 16, peers = (uint32_t)a->cluster_size - 1;

	return granules * (peers > 4 ? peers : 4) <= CLUSTER_REDUCE_THREADS / 2 ? CLUSTER_REDUCE_THREADS / 2 :
		CLUSTER_REDUCE_THREADS;
}

/* Bytes of one cluster's mailboxes, a multiple of 256 */
static size_t mailbox_bytes(const struct cairn_cluster_reduce_args *a)
{
	const struct cluster_reduce_smem p = cluster_reduce_smem(a);

	return (cluster_offchip_bytes(cluster_offchip_reduce_granules(a->cluster_size, p.granules, p.ml_granules)) + 255) /
	       256 * 256;
}

extern "C" int cairn_cluster_reduce_workspace(const struct cairn_cluster_reduce_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_cluster_reduce_check(args));
	*bytes = args->algo == CAIRN_CLUSTER_OFFCHIP ? (size_t)args->num_clusters * mailbox_bytes(args) : 0;
	return 0;
}

extern "C" int cairn_cluster_reduce(const struct cairn_cluster_reduce_args *args, void *stream)
{
	struct cairn_cluster_reduce_args a;
	struct cairn_launch launch = {};
	void *params[] = { &a };
	size_t need;
	int active;

	CAIRN_TRY(cairn_cluster_reduce_workspace(args, &need));
	if (args->num_clusters == 0)
		return 0;
	a = *args;
	if (need && (!a.workspace || a.workspace_bytes < need))
		return cairn_error(EINVAL, "cluster_reduce: workspace: %zu bytes needed", need);
	a.workspace_bytes = need;
	if (a.algo == CAIRN_CLUSTER_AUTO)
		a.algo = cairn_cluster_reduce_pick(a.cluster_size, (int)cluster_reduce_wire_bytes(&a));
	launch.grid[0] = (unsigned int)a.num_clusters * (unsigned int)a.cluster_size;
	launch.block[0] = num_threads(&a);
	launch.smem = cluster_reduce_smem(&a).bytes;
	launch.cluster = a.cluster_size;
	launch.stream = stream;
	active = cairn_max_active_clusters(pick_kernel(&a), &launch);
	if (active < 0)
		return active;
	if (active == 0)
		return cairn_error(EOPNOTSUPP, "cluster_reduce: cluster_size: this device does not grant %d with %zu bytes "
				   "of shared memory", a.cluster_size, launch.smem);
	return cairn_launch(pick_kernel(&a), &launch, params);
}
