// SPDX-License-Identifier: Apache-2.0
/* dsmem - argument checks shared by all of our tables */
#include "primitives/machine/dsmem.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_dsmem_check(const struct cairn_dsmem_args *a)
{
	int pushes, multicast, from_src;
	int64_t per_bar;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "dsmem"));
	pushes = a->test == CAIRN_DSMEM_ST_ASYNC || a->test == CAIRN_DSMEM_BULK;
	multicast = a->test == CAIRN_DSMEM_MULTICAST;
	from_src = multicast || a->test == CAIRN_DSMEM_LATENCY_L2 || a->test == CAIRN_DSMEM_LATENCY_HBM;
	if (a->test < 0 || a->test >= CAIRN_DSMEM_NUM_TESTS)
		return cairn_error(EINVAL, "dsmem: test: %d is unknown", a->test);
	if (!a->sum || !a->time || !a->smid || !a->resident ||
	    (a->test == CAIRN_DSMEM_LATENCY && !a->pair_cycles))
		return cairn_error(EINVAL, "dsmem: sum, time, smid, resident, pair_cycles: null pointer");
	if (a->cluster_size < 1 || a->num_clusters < 1 || a->smem_bytes < 0)
		return cairn_error(EINVAL, "dsmem: cluster_size %d, num_clusters %d, smem_bytes %d: "
				   "must be >= 1, >= 1, >= 0",
				   a->cluster_size, a->num_clusters, a->smem_bytes);
	if (a->cluster_size > 16)
		return cairn_error(EOPNOTSUPP, "dsmem: cluster_size: %d is above 16", a->cluster_size);
	if (a->bytes < CAIRN_DSMEM_LINK || a->bytes > CAIRN_DSMEM_MAX_BYTES || a->bytes % CAIRN_DSMEM_LINK ||
	    ((pushes || multicast) && a->bytes % (16 * a->cluster_size)))
		return cairn_error(EINVAL, "dsmem: bytes: %d is out of range or not aligned", a->bytes);
	if (a->rounds < 1 || a->rounds > CAIRN_DSMEM_MAX_ROUNDS)
		return cairn_error(EINVAL, "dsmem: rounds: %d is not from 1 to %d", a->rounds,
				   CAIRN_DSMEM_MAX_ROUNDS);
	if (a->test == CAIRN_DSMEM_LOAD && a->cluster_size > 2 && a->rounds % (a->cluster_size - 1))
		return cairn_error(EINVAL, "dsmem: rounds: %d is not a multiple of %d peers", a->rounds,
				   a->cluster_size - 1);
	per_bar = (a->rounds + CAIRN_DSMEM_NUM_BARS - 1) / CAIRN_DSMEM_NUM_BARS * (int64_t)a->bytes;
	if (pushes)
		per_bar /= a->cluster_size;
	if ((pushes || multicast) && per_bar >= 1 << 20)
		return cairn_error(EINVAL, "dsmem: rounds: %d send more bytes than an mbarrier counts",
				   a->rounds);
	if (from_src && (!a->src || a->src_bytes < (multicast ? a->bytes : 16 * CAIRN_DSMEM_LINK)))
		return cairn_error(EINVAL, "dsmem: src: null, or src_bytes %lld is too small",
				   (long long)a->src_bytes);
	return 0;
}
