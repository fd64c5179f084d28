/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_reduce_twoshot - the kernels of TWOSHOT, in their own file to compile in parallel */
#include "primitives/cluster/cluster_reduce_kernel.cuh"

const void *cluster_reduce_twoshot_kernel(int dtype, int softmax)
{
	return cluster_reduce_pick_kernel<CAIRN_CLUSTER_TWOSHOT>(dtype, softmax);
}
