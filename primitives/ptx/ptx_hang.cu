/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_hang - a kernel that waits in vain, for the test of the time-outs of DEBUG builds (ptx_test.c) */
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/ptx/ptx_hang.h"

/* One arrival is expected and none comes. */
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
	return cairn_error(EOPNOTSUPP, "ptx_hang: only DEBUG builds come back from %p", (void *)hang_kernel);
#endif
}
