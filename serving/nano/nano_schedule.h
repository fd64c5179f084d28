/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_schedule - the operations of an overlapped pass in the order of launch, and what each must wait for
 *
 * A step is an operation of the graph for one nano-batch or for all rows. Two steps conflict if they touch
 * the same memory and one of them writes. What they touch:
 *
 *   activations    steps of the same storage conflict if they have rows in common: one of them is whole, or
 *                  both are of one nano-batch
 *   cache          a nano-batch's attention reads the keys that it and the nano-batches before it append,
 *                  since a request may span a cut. So append of i conflicts with attention of j >= i of the
 *                  same layer. Appends of different nano-batches write different slots, and attention of i
 *                  reads no key that append of j > i writes: no request of a pass reads the keys that
 *                  another request of it appends (scheduler.h holds such requests back).
 *   attn plan      The layers share the plan of attention that the first of them left in the workspace of
 *                  its nano-batch, so attention of one nano-batch is ordered from layer to layer.
 *   moe            calls are ordered: they share counters, and two at once could deadlock (cluster_attn.h)
 *   collectives    calls are ordered, also those of different nano-batches, and in the order of launch, which
 *                  is the same on all ranks because they have the same plan; see below
 *   workspaces     each lane has its own
 *
 * Run operation by operation, nano-batch after nano-batch, the steps compute what the sequential pass
 * computes. So does every order that keeps the order of all conflicting steps, and the schedule is such an
 * order. Between lanes, a step waits for each conflicting earlier one, unless other waits already imply it.
 *
 * Collectives. A rank in a collective waits for the same call of all others. Two of them at once could
 * deadlock, even with mailboxes of their own: rank 0 may give its SMs to that of nano-batch 0 and rank 1 to
 * that of nano-batch 1, and each then waits for the one that the other cannot start. So a collective waits
 * until the one launched before it has ended, on whichever lanes both are. A rank therefore has at most one
 * under way, and a call has the same number on all ranks. The two mailboxes in turn of a communicator need
 * just that (comm_device.h): a rank may begin call n while another is still in call n - 1, but not in n - 2.
 * Other operations run beside a collective, and they end by themselves. moe, whose CTAs wait for each other,
 * never does: it runs for all rows, between the collectives before and after it.
 *
 * Storages that share bytes (buffers.h) add no conflicts. Storages that a whole step touches are shared: they
 * have the rows of all nano-batches in order. All other storages are split: each nano-batch has memory of its
 * own for its rows of them. Otherwise nano-batches that run far apart could reuse no memory, as rows of
 * different values lie at different bytes. Two storages have bytes in common only if all users of one come
 * after all users of the other, for split storages the users of the same nano-batch.
 */
#ifndef CAIRN_NANO_SCHEDULE_H
#define CAIRN_NANO_SCHEDULE_H

#include "serving/graph/buffers.h"
#include "serving/nano/nano_plan.h"

struct nano_step {
	int32_t op, batch, lane;	/* batch: CAIRN_NANO_WHOLE: all rows */
	int32_t event;			/* recorded after the step; -1: no other lane waits for it */
	int32_t first_wait, num_waits;	/* schedule->waits[first_wait ...]: events of other lanes */
	int32_t ends_layer;		/* this step is the last of the attention half of this layer; -1 */
	int32_t clock[CAIRN_NANO_LANES];	/* steps of each lane that are over when this one starts */
};

struct nano_schedule {
	struct nano_step *steps;	/* in the order of launch; those of the head come last, on lane 0 */
	int32_t *waits;
	/* When storages are in use, for cairn_buffers_place_lives(), counted in steps of each lane. */
	struct cairn_life *lives;	/* [num_values], of shared storages */
	struct cairn_life *split_lives;	/* [num_values, num_batches] */
	uint8_t *shared, *split;	/* [num_values] */
	int32_t num_batches, num_steps, num_waits, num_events;
};

/* -EINVAL: the text names the member, or the operation and the nano-batch. -ENOMEM. */
int nano_schedule_create(struct nano_schedule *schedule, const struct cairn_op_graph *g,
			 const struct cairn_nano_plan *plan);
/* Does nothing if *schedule is zeroed. */
void nano_schedule_free(struct nano_schedule *schedule);

#endif
