/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_reduce_mail - the kernels that reduce through mailboxes in global memory, in their own file to
 * compile in parallel
 */
#include "primitives/cluster/cluster_reduce_kernel.cuh"

template <int way> static const void *pick(int dtype)
{
	return dtype == CAIRN_F32 ? (const void *)cluster_reduce_kernel<way, CAIRN_F32, 0> :
	       dtype == CAIRN_F16 ? (const void *)cluster_reduce_kernel<way, CAIRN_F16, 0> :
				    (const void *)cluster_reduce_kernel<way, CAIRN_BF16, 0>;
}

const void *cluster_reduce_mail_kernel(int way, int dtype)
{
	return way == CLUSTER_BY_MAIL ? pick<CLUSTER_BY_MAIL>(dtype) : pick<CLUSTER_BY_MAIL_TWOSHOT>(dtype);
}
