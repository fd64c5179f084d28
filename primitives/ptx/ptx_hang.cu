/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_hang - a kernel that hangs, for the test of the time-out of DEBUG builds (ptx_test.c) */
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/ptx/ptx_hang.h"

/* The mbarrier expects one arrival, and no thread arrives. */
static __global__ void hang_kernel(void)
{
	__shared__ uint64_t mbar;

	ptx_mbarrier_init(ptx_smem(&mbar), 1);
	ptx_mbarrier_wait(ptx_smem(&mbar), 0);
}

extern "C" int cairn_ptx_hang(void)
{
#ifdef CAIRN_DEBUG
	struct cairn_launch launch = {};

	CAIRN_TRY(cairn_launch((const void *)hang_kernel, &launch, NULL));
	CAIRN_CUDA(cudaDeviceSynchronize());
	return 0;
#else
	return cairn_error(EOPNOTSUPP, "ptx_hang: %p hangs in builds without DEBUG", (void *)hang_kernel);
#endif
}
