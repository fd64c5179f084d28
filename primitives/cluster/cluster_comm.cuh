/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_comm - what all cluster collectives stand on: a rank's state, two sets of mbarriers and slots
 *
 * Everything travels by st.async: one thread sends 16 bytes from registers and the receiver's mbarrier counts
 * them. So nothing is sent before it was read, no proxy fence is needed, and a wait is one try_wait.
 *
 * Why there is no cluster barrier between calls. Slots and mbarriers come in two sets; call k uses set k % 2.
 *   (1) A rank that has completed call k knows that all ranks have entered call k, for it has something
 *       that every one of them sent in it. (All algorithms here have that property.)
 *   (2) A rank that has entered call k has completed call k - 1, with all its threads: a call ends with the
 *       group's barrier, after the last read of a slot and the last wait on an mbarrier.
 *   (3) So a message of call k + 1 finds its receiver in call k or later, done with the set's last use in
 *       call k - 1; and a message of call k + 2 is not sent before its receiver has entered call k + 1.
 *       Hence a set never holds messages of two calls, and no phase is completed by another's bytes.
 *   (4) Arming (arrive and expect_tx) may come after the first bytes: until that one arrival the phase cannot
 *       complete, and the byte count is signed.
 *   (5) A rank that has completed its last call has received all that was ever sent to it: it may exit.
 *
 * (1) fails for a rank that is let off a call, and (3) for two calls of which one does not involve all ranks;
 * so all ranks make all calls.
 */
#ifndef CAIRN_CLUSTER_COMM_CUH
#define CAIRN_CLUSTER_COMM_CUH

#include "primitives/cluster/cluster_schedule.h"
#include "primitives/ptx/ptx.cuh"

#define CLUSTER_FN		static __device__ __forceinline__
#define CLUSTER_STATE_BYTES	512		/* 2 sets of 32 mbarriers */

struct cluster_comm {
	uint32_t rank, size;			/* in the cluster */
	uint32_t tid, num_threads;		/* in the group */
	uint32_t bar_id;
	uint32_t set;				/* of the next call: 0 or 1; all below is of that set */
	uint32_t mbars, slots;			/* shared memory */
	uint32_t phases;			/* bit i: parity of mbarrier i's current phase */
	uint32_t other_phases;			/* of the other set */
	uint32_t mbars_sum, slots_sum;		/* both sets' addresses, added; less one's: the other's */
	uint32_t set_bytes;
};

/*
 * v, the same in all lanes, in a register for good. Where a value can be worked out anew, ptxas does so in
 * every call rather than keep it: for an address of shared memory that is an S2R, 50 cycles of the 400
 * that a small exchange takes. What came out of a shuffle it must keep.
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
 * state: CLUSTER_STATE_BYTES, 8-byte aligned; slots: 2 * set_bytes, 16-byte aligned, set_bytes a multiple
 * of 16; the same offsets in all CTAs. To be followed by cluster_sync() by all threads of the cluster.
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

/* mbars: those of this call. Its last act, by all threads of the group. */
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

/* The group in rows of threads, a thread for each of `count` granules if it has so many: a row a peer. */
struct cluster_grid {
	uint32_t row, col, num_rows, num_cols;
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
			g.row = CAIRN_CLUSTER_MAX_SIZE;	/* beyond the last whole row: idle */
	}
	return g;
}
#endif
