/* SPDX-License-Identifier: Apache-2.0 */
/*
 * body.cuh - what differs for a kernel's body between being a kernel and being one of several in
 * a persistent kernel
 *
 * As a kernel it waits for the kernel before it, and counts its calls for itself. Linked, in a persistent
 * kernel, it waits for all CTAs to have ended the body before it: one warp of each CTA looks at their counter
 * in global memory and then completes a phase of an mbarrier, at which all other warps wait.
 */
#ifndef CAIRN_BODY_CUH
#define CAIRN_BODY_CUH

#include "primitives/ptx/ptx.cuh"

#define BODY static __device__ __forceinline__

/* In shared memory, for the body that is under way: registers are short. */
struct body_state {
	uint64_t mbar;
	uint32_t parity;
	uint32_t number;		/* that this body's words have */
	uint32_t all;			/* CTAs, counted anew for each body, that have to be done before it */
};

struct body_link {
	uint32_t *meetings;		/* CTAs that are done */
	const struct body_state *state;
};

/* The number of the words; own: of a kernel that counts for itself */
template <int linked> BODY uint32_t body_number(const struct body_link &l, uint32_t own)
{
	return linked ? l.state->number : own;
}

/* Whatever comes before has come: by whoever reads what it wrote. */
template <int linked> BODY void body_wait(const struct body_link &l)
{
	if (linked)
		ptx_mbarrier_wait(ptx_smem(&l.state->mbar), l.state->parity);
	else
		ptx_griddepcontrol_wait();
}

/* By one warp of a CTA, after what it has to do for others */
BODY void body_meet(const struct body_link &l)
{
	if (threadIdx.x % 32 == 0) {
		const uint32_t all = l.state->all;
#ifdef CAIRN_DEBUG
		const int64_t start = ptx_clock64();
#else
		const int64_t start = 0;
#endif

		while (ptx_ld_acquire_gpu_u32(l.meetings) < all)
			ptx_spin_check(start, "bodies (CTAs)", all, 0);
		ptx_mbarrier_arrive(ptx_smem(&l.state->mbar));
	}
	__syncwarp();
}

/* By all warps: shared memory with these mbarriers is going to be used for something else. */
BODY void body_end_mbarriers(uint32_t first, int count, int thread, int warps)
{
	const int warp = __shfl_sync(~0u, thread / 32, 0);

#pragma unroll 1
	for (int i = warp; i < count; i += warps)
		if (thread % 32 == 0)
			ptx_mbarrier_inval(first + i * 8);
}

/* By one thread, after a barrier of all that have written */
BODY void body_end(const struct body_link &l)
{
	ptx_red_release_gpu_add_u32(l.meetings, 1);
}

#endif
