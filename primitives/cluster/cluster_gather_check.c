// SPDX-License-Identifier: Apache-2.0
/* cluster_gather - argument checks shared by all of our tables */
#include "primitives/cluster/cluster_gather.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_cluster_gather_check_shape(const struct cairn_cluster_gather_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "cluster_gather"));
	if (a->num_clusters < 0 || a->num_calls < 1 || a->rounds < 1 || a->cluster_size < 1 || a->len < 1)
		return cairn_error(EINVAL, "cluster_gather: num_clusters %d, num_calls %d, rounds %d, "
				   "cluster_size %d, len %d: must be >= 0, 1, 1, 1, 1",
				   a->num_clusters, a->num_calls, a->rounds, a->cluster_size, a->len);
	if (a->algo < 0 || a->algo >= CAIRN_CLUSTER_NUM_ALGOS)
		return cairn_error(EINVAL, "cluster_gather: algo: %d is unknown", a->algo);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "cluster_gather: dtype: %d is not supported", a->dtype);
	if (a->cluster_size > CAIRN_CLUSTER_MAX_SIZE)
		return cairn_error(EOPNOTSUPP, "cluster_gather: cluster_size: %d is above 16",
				   a->cluster_size);
	if (a->algo == CAIRN_CLUSTER_TREE && !cairn_cluster_is_pow2(a->cluster_size))
		return cairn_error(EOPNOTSUPP, "cluster_gather: cluster_size: TREE needs a power of two,"
				   " not %d", a->cluster_size);
	if ((a->cluster_size + 1) * (double)a->len * (double)cairn_dtype_bytes(a->dtype) >
	    CAIRN_CLUSTER_GATHER_MAX_BYTES)
		return cairn_error(EOPNOTSUPP, "cluster_gather: len: %d in %d ranks do not fit the shared "
				   "memory of an SM", a->len, a->cluster_size);
	return 0;
}

int cairn_cluster_gather_check(const struct cairn_cluster_gather_args *a)
{
	CAIRN_TRY(cairn_cluster_gather_check_shape(a));
	if (a->num_clusters && (!a->out || !a->in))
		return cairn_error(EINVAL, "cluster_gather: out, in: must not be null");
	if (a->num_clusters && (((uintptr_t)a->out | (uintptr_t)a->in) & 15))
		return cairn_error(EINVAL, "cluster_gather: out, in: must be 16-byte aligned");
	return 0;
}
