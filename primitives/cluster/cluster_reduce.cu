/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_reduce - launcher of all-reduce; the kernel is in cluster_reduce_kernel.cuh
 *
 * Schedule (cluster.cuh): all warps send, each thread one granule of 16 bytes to one peer at a time; the last
 * thread arms the mbarrier; the threads that reduce wait at it; a call ends with the group's named barrier.
 *
 *   shared memory     bytes                            mbarriers (2 sets of 32)   arrivals      waits
 *   state             512                              ONESHOT 0                  last thread   reducers
 *   src, dst          16 G each                        TWOSHOT 0, 1               last thread   reducers, all
 *   src_ml, dst_ml    16 G_ml each                     RING    step               thread step   all
 *   slots             2 * set_bytes (cluster.cuh)      TREE    round              thread round  all
 * G: granules of a message; G_ml: those of its (m, l). mbarriers expect 1 arrival and the bytes.
 *
 * 256 threads, or 128 if more would find nothing to send or reduce; 1 CTA per SM; no spills, no local memory.
 *
 * H200, SM cycles of one all-reduce in fp32, one cluster alone (all clusters at once: within 10%):
 *
 *   cluster size                  2      4      8     16
 *   256 B   ONESHOT             348    394    481    686
 *           TREE                377    632    872   1147
 *           TWOSHOT             632    674    853   1053
 *           RING                516   1960   4356   9319
 *           OFFCHIP             534    587    650    967     over 16 mailbox locations
 *   4 KB    TWOSHOT             842   1011   1116   1374     at size 2: TREE 591, ONESHOT 734
 *           OFFCHIP            1156   1446   2524   2843
 *   16 KB   TWOSHOT            1443   1984   2303   2652
 *           OFFCHIP            2553   3415   4929   5522
 *   64 KB   TWOSHOT            3866   5626   8007   9508
 *           OFFCHIP            6080   7869   8667  10436
 *
 * Floors. Small: an LDS (30), the hop (about 180 from st.async to the completed phase), LDS and sum (40),
 * STS and barrier (35): 290. Large: the bytes a rank sends, 2 (N-1)/N of size, at 12.7 B/clk per SM, the
 * rate of DSMEM when all SMs use it (3.0 TB/s at cluster size 4): 16 KB at size 4 takes 1935. A cluster
 * alone gets about 20 B/clk. ONESHOT is slower than TWOSHOT if a rank has to send more than 8 KB
 * (cairn_cluster_reduce_pick()).
 *
 * Optimisation history: NOTES.md.
 */
#include "primitives/cluster/cluster_reduce_kernel.cuh"
#include "primitives/base/launch.h"

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
		return cluster_reduce_offchip_kernel(a->algo, a->dtype, softmax);
	}
}

/*
 * Barriers among fewer warps are faster, so a CTA has no more threads than it has granules to send or words
 * to reduce at once.
 */
static unsigned int num_threads(const struct cairn_cluster_reduce_args *a)
{
	const uint32_t granules = (cluster_reduce_wire_bytes(a) + 15) / 16,
		       peers = (uint32_t)a->cluster_size - 1;

	return granules * (peers > 4 ? peers : 4) <= CLUSTER_REDUCE_THREADS / 2 ? CLUSTER_REDUCE_THREADS / 2 :
		CLUSTER_REDUCE_THREADS;
}

/* Returns the bytes of one cluster's mailboxes, a multiple of 256. */
static size_t mailbox_bytes(const struct cairn_cluster_reduce_args *a)
{
	const struct cluster_reduce_smem p = cluster_reduce_smem(a);
	const size_t n = (size_t)a->cluster_size;
	const int way = cluster_offchip_pick_reduce(a->cluster_size, p.granules,
						    a->op == CAIRN_CLUSTER_SOFTMAX);
	const size_t set = way == CLUSTER_BY_LL ? CLUSTER_LL_SETS * n * p.granules :
			   cluster_offchip_reduce_granules(n, p.granules, p.ml_granules);

	return (cluster_offchip_bytes(set) + 255) / 256 * 256;
}

extern "C" int cairn_cluster_reduce_workspace(const struct cairn_cluster_reduce_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_cluster_reduce_check_shape(args));
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

	CAIRN_TRY(cairn_cluster_reduce_check(args));
	CAIRN_TRY(cairn_cluster_reduce_workspace(args, &need));
	if (args->num_clusters == 0)
		return 0;
	a = *args;
	if (need && (!a.workspace || a.workspace_bytes < need))
		return cairn_error(EINVAL, "cluster_reduce: workspace: %zu bytes needed", need);
	a.workspace_bytes = need;
	if (a.algo == CAIRN_CLUSTER_AUTO)
		a.algo = cairn_cluster_reduce_pick(a.cluster_size, (int)cluster_reduce_wire_bytes(&a));
	else if (a.algo == CAIRN_CLUSTER_OFFCHIP)
		a.algo = cluster_offchip_pick_reduce(a.cluster_size, cluster_reduce_smem(&a).granules,
						     a.op == CAIRN_CLUSTER_SOFTMAX);
	launch.grid[0] = (unsigned int)a.num_clusters * (unsigned int)a.cluster_size;
	launch.block[0] = num_threads(&a);
	launch.smem = cluster_reduce_smem(&a).bytes;
	launch.cluster = a.cluster_size;
	launch.stream = stream;
	active = cairn_max_active_clusters(pick_kernel(&a), &launch);
	if (active < 0)
		return active;
	if (active == 0)
		return cairn_error(EOPNOTSUPP, "cluster_reduce: cluster_size: this device does not allow "
				   "%d with %zu bytes of shared memory", a.cluster_size, launch.smem);
	return cairn_launch(pick_kernel(&a), &launch, params);
}
