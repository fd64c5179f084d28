/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_comm - the state shared by all cluster collectives: a rank, two sets of mbarriers and receive slots
 *
 * All data travels by st.async: a thread sends 16 bytes from registers, and the receiver's mbarrier counts
 * them. Data is therefore in registers before it is sent, no proxy fence is needed, and a wait is one
 * try_wait.
 *
 * Why no cluster barrier is needed between calls: slots and mbarriers come in two sets, and call k uses set
 * k % 2.
 *   (1) When a rank has completed call k, all ranks have entered call k, because it has received data that
 *       each of them sent in that call. (All algorithms here have that property.)
 *   (2) When a rank has entered call k, all its threads have completed call k - 1, because a call ends with
 *       the group's barrier, after the last read of a slot and the last wait on an mbarrier.
 *   (3) So a message of call k + 1 reaches a receiver that is in call k or later, which has finished using
 *       that set in call k - 1. A message of call k + 2 is not sent before its receiver has entered call
 *       k + 1. A set therefore never holds messages of two calls, and the bytes of a call cannot complete
 *       another call's phase.
 *   (4) The mbarrier may be armed (arrive and expect_tx) after the first bytes have arrived: the phase cannot
 *       complete before that one arrival, and the byte count is signed.
 *   (5) A rank that has completed its last call has received everything that was sent to it, so it may exit.
 *
 * (1) fails if a rank skips a call, and (3) if a call does not involve all ranks; so all ranks must make all
 * calls.
 */
#ifndef CAIRN_CLUSTER_COMM_CUH
#define CAIRN_CLUSTER_COMM_CUH

#include "primitives/cluster/cluster_schedule.h"
#include "primitives/ptx/ptx.cuh"

#define CLUSTER_FN		static __device__ __forceinline__
#define CLUSTER_STATE_BYTES	512		/* 2 sets of 32 mbarriers */

struct cluster_comm {
	uint32_t rank, size;			/* rank in the cluster; CTAs of the cluster */
	uint32_t tid, num_threads;		/* thread in the group; threads of the group */
	uint32_t bar_id;			/* named barrier of the group */
	uint32_t set;				/* set of the next call, 0 or 1 */
	uint32_t mbars, slots;			/* shared addresses in that set */
	uint32_t phases;			/* bit i: parity of the phase of that set's mbarrier i */
	uint32_t other_phases;			/* the same of the other set */
	uint32_t mbars_sum, slots_sum;		/* sums of both sets' addresses: sum - one = the other */
	uint32_t set_bytes;			/* bytes of one set of slots */
};

/*
 * Returns v, which must be the same in all lanes, in a register that ptxas keeps. ptxas recomputes a value in
 * every call if it can. For a shared memory address this takes an S2R, which costs 50 of the 400 cycles of a
 * small exchange. ptxas cannot recompute the result of a shuffle.
 */
CLUSTER_FN uint32_t cluster_keep(uint32_t v)
{
	return __shfl_sync(~0u, v, 0);
}

CLUSTER_FN void cluster_sync(void)
{
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

/*
 * state is the shared address of CLUSTER_STATE_BYTES bytes, 8-byte aligned; slots is that of 2 * set_bytes
 * bytes, 16-byte aligned, where set_bytes is a multiple of 16. Offsets are the same in all CTAs. All threads
 * of the cluster must call cluster_sync() afterwards.
 */
CLUSTER_FN void cluster_comm_init(struct cluster_comm *c, uint32_t tid, uint32_t num_threads, uint32_t bar_id,
				  uint32_t state, uint32_t slots, uint32_t set_bytes)
{
	c->rank = ptx_cluster_ctarank();
	c->size = ptx_cluster_nctarank();
	c->tid = tid;
	c->num_threads = num_threads;
	c->bar_id = bar_id;
	c->set = 0;
	c->mbars = cluster_keep(state);
	c->slots = cluster_keep(slots);
	c->phases = 0;
	c->other_phases = 0;
	c->mbars_sum = cluster_keep(2 * state + CLUSTER_STATE_BYTES / 2);
	c->slots_sum = cluster_keep(2 * slots + set_bytes);
	c->set_bytes = set_bytes;
	for (uint32_t i = tid; i < CLUSTER_STATE_BYTES / 8; i += num_threads)
		ptx_mbarrier_init(state + 8 * i, 1);
	ptx_fence_mbarrier_init_release_cluster();
}

CLUSTER_FN uint32_t cluster_mbar(const struct cluster_comm *c, uint32_t i)
{
	return c->mbars + i * 8;
}

CLUSTER_FN uint32_t cluster_peer(const struct cluster_comm *c, uint32_t d)
{
	return (uint32_t)cairn_cluster_wrap((int)c->rank, (int)d, (int)c->size);
}

CLUSTER_FN void cluster_await(const struct cluster_comm *c, uint32_t i)
{
	ptx_mbarrier_wait(cluster_mbar(c, i), c->phases >> i & 1);
}

/* Ends a call; all threads of the group call it last. mbars: bit i is set if the call used mbarrier i. */
CLUSTER_FN void cluster_end_call(struct cluster_comm *c, uint32_t mbars)
{
	const uint32_t phases = c->phases ^ mbars;

	c->phases = c->other_phases;
	c->other_phases = phases;
	c->mbars = c->mbars_sum - c->mbars;
	c->slots = c->slots_sum - c->slots;
	c->set ^= 1;
	ptx_bar_sync(c->bar_id, c->num_threads);
}

/*
 * The group's threads arranged in rows, each of which sends to one peer at a time. A row has a thread for
 * each of `count` granules if the group is large enough.
 */
struct cluster_grid {
	uint32_t row, col, num_rows, num_cols;	/* this thread's place; size of the grid */
};

CLUSTER_FN struct cluster_grid cluster_grid(const struct cluster_comm *c, uint32_t count)
{
	uint32_t shift = count > 1 ? 32 - __clz(count - 1) : 0;
	struct cluster_grid g = { 0, c->tid, 1, c->num_threads };

	if (1u << shift < c->num_threads) {
		g.num_cols = 1u << shift;
		g.num_rows = c->num_threads >> shift;
		g.row = c->tid >> shift;
		g.col = c->tid & (g.num_cols - 1);
		if (g.row >= g.num_rows)
			g.row = CAIRN_CLUSTER_MAX_SIZE;	/* threads past the last whole row are idle */
	}
	return g;
}
#endif
