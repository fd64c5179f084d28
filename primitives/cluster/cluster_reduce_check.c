// SPDX-License-Identifier: Apache-2.0
/* cluster_reduce - argument checks shared by all of our tables */
#include "primitives/cluster/cluster_reduce.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int check_pointers(const struct cairn_cluster_reduce_args *a)
{
	if (!a->out || !a->in)
		return cairn_error(EINVAL, "cluster_reduce: out, in: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->in | (uintptr_t)a->out_ml | (uintptr_t)a->in_ml) & 15)
		return cairn_error(EINVAL, "cluster_reduce: out, in, out_ml, in_ml: must be 16-byte aligned");
	if (a->op == CAIRN_CLUSTER_SOFTMAX ? !a->out_ml || !a->in_ml : a->out_ml || a->in_ml)
		return cairn_error(EINVAL, "cluster_reduce: out_ml, in_ml: SOFTMAX needs them, else null");
	return 0;
}

int cairn_cluster_reduce_check_shape(const struct cairn_cluster_reduce_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "cluster_reduce"));
	if (a->num_clusters < 0 || a->num_calls < 1 || a->rounds < 1 || a->cluster_size < 1 || a->len < 1)
		return cairn_error(EINVAL, "cluster_reduce: num_clusters %d, num_calls %d, rounds %d, "
				   "cluster_size %d, len %d: must be >= 0, 1, 1, 1, 1",
				   a->num_clusters, a->num_calls, a->rounds, a->cluster_size, a->len);
	if (a->op < 0 || a->op >= CAIRN_CLUSTER_NUM_OPS || a->algo < 0 || a->algo >= CAIRN_CLUSTER_NUM_ALGOS)
		return cairn_error(EINVAL, "cluster_reduce: op %d, algo %d: unknown", a->op, a->algo);
	if (a->op == CAIRN_CLUSTER_SOFTMAX && (a->head_dim < 1 || a->len % a->head_dim))
		return cairn_error(EINVAL, "cluster_reduce: head_dim: %d does not divide len %d", a->head_dim,
				   a->len);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "cluster_reduce: dtype: %d is not supported", a->dtype);
	if (a->cluster_size > CAIRN_CLUSTER_MAX_SIZE)
		return cairn_error(EOPNOTSUPP, "cluster_reduce: cluster_size: %d is above 16",
				   a->cluster_size);
	if (a->len > CAIRN_CLUSTER_REDUCE_MAX_LEN)
		return cairn_error(EOPNOTSUPP, "cluster_reduce: len: %d is above 16384", a->len);
	if (a->algo == CAIRN_CLUSTER_TREE && !cairn_cluster_is_pow2(a->cluster_size))
		return cairn_error(EOPNOTSUPP, "cluster_reduce: cluster_size: TREE needs a power of two,"
				   " not %d", a->cluster_size);
	if (a->op == CAIRN_CLUSTER_SOFTMAX &&
	    (a->head_dim % 8 || a->len / a->head_dim > CAIRN_CLUSTER_REDUCE_MAX_ROWS))
		return cairn_error(EOPNOTSUPP, "cluster_reduce: head_dim: %d is not a multiple of 8, "
				   "or makes more than 128 rows", a->head_dim);
	return 0;
}

int cairn_cluster_reduce_check(const struct cairn_cluster_reduce_args *a)
{
	CAIRN_TRY(cairn_cluster_reduce_check_shape(a));
	return a->num_clusters ? check_pointers(a) : 0;
}
