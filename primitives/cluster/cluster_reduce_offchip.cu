/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_reduce_offchip - the kernels that reduce through global memory, for comparison */
#include "primitives/cluster/cluster_reduce_kernel.cuh"

static const void *pick_ll(int dtype)
{
	return dtype == CAIRN_F32 ? (const void *)cluster_reduce_kernel<CLUSTER_BY_LL, CAIRN_F32, 0> :
	       dtype == CAIRN_F16 ? (const void *)cluster_reduce_kernel<CLUSTER_BY_LL, CAIRN_F16, 0> :
				    (const void *)cluster_reduce_kernel<CLUSTER_BY_LL, CAIRN_BF16, 0>;
}

const void *cluster_reduce_offchip_kernel(int way, int dtype, int softmax)
{
	return way == CLUSTER_BY_LL ? pick_ll(dtype) :
	       way == CLUSTER_BY_FLAGS ? cluster_reduce_pick_kernel<CLUSTER_BY_FLAGS>(dtype, softmax) :
		cluster_reduce_mail_kernel(way, dtype);
}
