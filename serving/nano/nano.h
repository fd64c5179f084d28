/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano - runs a pass of a model as nano-batches on several streams
 *
 * The pass forks from the caller's stream, which is its lane 0, and joins it at the end, also after an error.
 * nano_schedule.h says which operation waits for which, and where nano-batches have memory of their own.
 * Waits become events between streams; nothing is copied. A captured pass contains all lanes.
 *
 * Results: those of cairn_forward(), bitwise, on tables on which a row's results do not depend on other rows
 * nor on bounds (ref, cpu). On other tables the grouping of sums may depend on the number of rows, requests
 * and keys of a call (gemm.h, attn_paged.h).
 *
 * Ranks of tensor parallelism must have the same plans and make the same passes; collectives of all
 * nano-batches are then ordered (nano_schedule.h).
 *
 * Errors: -EINVAL, naming the member or the argument; -EOPNOTSUPP; those of the table's operations.
 */
#ifndef CAIRN_NANO_H
#define CAIRN_NANO_H

#include "serving/nano/nano_rows.h"

struct cairn_nano;

/*
 * Makes a plan ready for passes over this scratch, which then holds the activations of its passes, too. More
 * than one plan may use a scratch. The plan is copied. If the activations need more memory, they move: no
 * pass may be in flight, and passes captured earlier hold stale addresses. -EOPNOTSUPP: the table has no
 * streams that wait for events, rows of an activation are not multiples of 16 bytes, or ranks share rows.
 */
int cairn_nano_create(struct cairn_nano **out, struct cairn_scratch *scratch,
		      const struct cairn_nano_plan *plan);
/* The passes must have ended. NULL is legal. */
void cairn_nano_destroy(struct cairn_nano *nano);

const struct cairn_nano_plan *cairn_nano_plan_of(const struct cairn_nano *nano);	/* without places */

/* As cairn_scratch_reserve(), for a pass of this plan. */
int cairn_nano_reserve(struct cairn_nano *nano, const struct cairn_kv_store *kv,
		       const struct cairn_nano_pass *pass, void *stream, int *moved);
/*
 * Runs the pass: asynchronous on stream; allocates nothing. Before whole.on_layer is called, all lanes join
 * `stream`, and they continue after what it enqueues there; nano-batches may then be layers ahead.
 */
int cairn_nano_forward(struct cairn_nano *nano, const struct cairn_kv_store *kv,
		       const struct cairn_nano_pass *pass, void *stream);

#endif
