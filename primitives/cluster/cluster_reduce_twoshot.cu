/* SPDX-License-Identifier: Apache-2.0 */
#include "primitives/cluster/cluster_reduce_kernel.cuh"

const void *cluster_reduce_twoshot_kernel(int dtype, int softmax)
{
	return cluster_reduce_pick_kernel<CAIRN_CLUSTER_TWOSHOT>(dtype, softmax);
}
