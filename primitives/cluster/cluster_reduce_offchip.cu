/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_reduce_offchip - the kernels that reduce through global memory, for comparison */
#include "primitives/cluster/cluster_reduce_kernel.cuh"

template <int way> static const void *pick_mail(int dtype)
{
	return dtype == CAIRN_F32 ? (const void *)cluster_reduce_kernel<way, CAIRN_F32, 0> :
	       dtype == CAIRN_F16 ? (const void *)cluster_reduce_kernel<way, CAIRN_F16, 0> :
				    (const void *)cluster_reduce_kernel<way, CAIRN_BF16, 0>;
}

const void *cluster_reduce_offchip_kernel(int way, int dtype, int softmax)
{
	return way == CLUSTER_BY_LL ? pick_mail<CLUSTER_BY_LL>(dtype) :
	       way == CLUSTER_BY_MAIL ? pick_mail<CLUSTER_BY_MAIL>(dtype) :
	       way == CLUSTER_BY_MAIL_TWOSHOT ? pick_mail<CLUSTER_BY_MAIL_TWOSHOT>(dtype) :
		cluster_reduce_pick_kernel<CLUSTER_BY_FLAGS>(dtype, softmax);
}
