/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_reduce_oneshot - the kernels of ONESHOT, in their own file to compile in parallel */
#include "primitives/cluster/cluster_reduce_kernel.cuh"

const void *cluster_reduce_oneshot_kernel(int dtype, int softmax)
{
	return cluster_reduce_pick_kernel<CAIRN_CLUSTER_ONESHOT>(dtype, softmax);
}
