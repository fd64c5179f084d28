/* SPDX-License-Identifier: Apache-2.0 */
/*
 * body.cuh - start and end of a kernel body that runs as its own kernel or inside a persistent kernel
 *
 * As its own kernel, a body waits for the preceding kernel (griddepcontrol.wait) and counts its own calls.
 * Linked into a persistent kernel, it waits until all CTAs have ended the previous body: one warp of each CTA
 * polls their counter in global memory (a grid barrier) and then completes a phase of an mbarrier, on which
 * all other warps wait.
 */
#ifndef CAIRN_BODY_CUH
#define CAIRN_BODY_CUH

#include "primitives/ptx/ptx.cuh"

#define BODY static __device__ __forceinline__

/* Lives in shared memory for the body that is running, to save registers. */
struct body_state {
	uint64_t mbar;
	uint32_t parity;
	uint32_t number;		/* phase number of this body's LL words */
	uint32_t all; /* value of the grid barrier's counter when all CTAs have ended the previous body */
};

struct body_link {
	/* grid barrier: count of CTAs that have ended a body, added up over the bodies of a call */
	uint32_t *arrived;
	const struct body_state *state;
};

/* Returns the phase number of the LL words; own: that of a kernel that counts for itself. */
template <int linked> BODY uint32_t body_number(const struct body_link &l, uint32_t own)
{
	return linked ? l.state->number : own;
}

/* Waits until the previous body's results are visible. Every thread that reads them must call this. */
template <int linked> BODY void body_wait(const struct body_link &l)
{
	if (linked)
		ptx_mbarrier_wait(ptx_smem(&l.state->mbar), l.state->parity);
	else
		ptx_griddepcontrol_wait();
}

/*
 * Waits for the grid barrier and releases the CTA's other warps. One warp of each CTA calls it, after its
 * last work that other CTAs wait for.
 */
BODY void body_grid_wait(const struct body_link &l)
{
	if (threadIdx.x % 32 == 0) {
		const uint32_t all = l.state->all;
#ifdef CAIRN_DEBUG
		const int64_t start = ptx_clock64();
#else
		const int64_t start = 0;
#endif

		while (ptx_ld_acquire_gpu_u32(l.arrived) < all)
			ptx_spin_check(start, "grid barrier between bodies (CTAs)", all, 0);
		ptx_mbarrier_arrive(ptx_smem(&l.state->mbar));
	}
	__syncwarp();
}

/*
 * Invalidates `count` mbarriers from `first` on, because their shared memory is about to be reused. All warps
 * call it.
 */
BODY void body_end_mbarriers(uint32_t first, int count, int thread, int warps)
{
	const int warp = __shfl_sync(~0u, thread / 32, 0);

#pragma unroll 1
	for (int i = warp; i < count; i += warps)
		if (thread % 32 == 0)
			ptx_mbarrier_inval(first + i * 8);
}

/*
 * Arrives at the grid barrier. One thread calls it, after a CTA barrier with all threads that have written.
 */
BODY void body_end(const struct body_link &l)
{
	ptx_red_release_gpu_add_u32(l.arrived, 1);
}

#endif
