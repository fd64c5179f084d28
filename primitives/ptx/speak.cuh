/* SPDX-License-Identifier: Apache-2.0 */
/* speak - one arrival at an mbarrier for a whole warp */
#ifndef CAIRN_SPEAK_CUH
#define CAIRN_SPEAK_CUH

#include "primitives/ptx/ptx.cuh"

/* Arrivals a warp. racecheck does not see that one lane can speak for its warp. */
#ifdef CAIRN_DEBUG
#define SPEAKERS	32
#else
#define SPEAKERS	1
#endif

/* By all lanes: what the warp has done so far, whoever waits for the phase sees. */
static __device__ __forceinline__ void speak(uint32_t mbar)
{
	__syncwarp();
	if (threadIdx.x % 32 < SPEAKERS)
		ptx_mbarrier_arrive(mbar);
}

#endif
