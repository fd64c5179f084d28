/* SPDX-License-Identifier: Apache-2.0 */
/* elect - one arrival at an mbarrier for a whole warp, made by an elected lane */
#ifndef CAIRN_ELECT_CUH
#define CAIRN_ELECT_CUH

#include "primitives/ptx/ptx.cuh"

/*
 * Number of lanes of a warp that arrive; an mbarrier is initialised with this count per warp. In DEBUG builds
 * all lanes arrive, because racecheck does not see that one lane can arrive for its warp after __syncwarp().
 */
#ifdef CAIRN_DEBUG
#define ELECTED_LANES	32
#else
#define ELECTED_LANES	1
#endif

/*
 * All 32 lanes must call this. Threads that wait for the phase then see everything that the warp has done
 * before.
 */
static __device__ __forceinline__ void elected_arrive(uint32_t mbar)
{
	__syncwarp();
	if (threadIdx.x % 32 < ELECTED_LANES)
		ptx_mbarrier_arrive(mbar);
}

#endif
