/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks - tensor parallelism within one host: one process a rank
 *
 *   rank 0: engine, scheduler, worker --- plans ---> ranks 1 .. n-1: a worker each
 *
 * Rank 0 decides; the others make the same passes with their shares of the weights (cairn_model_load_rank).
 * They decide nothing. Each pass is a plan (plan.h) on an inherited socketpair; no port is opened. Page ids
 * are the same on all ranks. The partial sums of o and down are added by all_reduce_norm, in the place of the
 * norm that follows them: cairn_tp_table() makes a table in which rmsnorm with a residual does this. So
 * the forward pass, the worker and the engine are those of one rank.
 *
 * Every rank computes all logits and draws the same tokens. Rank 0 compares those of all ranks after each
 * pass; a difference ends the group: "rank 1 drew 5, rank 0 drew 7". If a rank ends, its socket closes, and
 * rank 0 gets -ECONNRESET; if rank 0 ends, the others end too. Waits in collectives have the communicator's
 * time-out, those on sockets CAIRN_TP_START_S or CAIRN_TP_PASS_S.
 *
 * Not shared among ranks, and refused by name: latent attention, experts, biases after a partial sum, 8-bit
 * weights and caches (cairn_model_load_rank); passes that treat logits (plan.h); moves of pages (engine.h).
 *
 * Errors: -EINVAL, -EOPNOTSUPP, -ENOMEM, -EIO, -ECONNRESET (a rank has ended), -ETIMEDOUT.
 */
#ifndef CAIRN_TP_H
#define CAIRN_TP_H

#include "serving/engine/worker.h"

#define CAIRN_TP_START_S	600	/* until a rank has loaded its weights */
#define CAIRN_TP_PASS_S	60	/* until a rank has made a pass */
#define CAIRN_TP_END_S	10	/* until a rank has ended that should; it is killed then */

struct cairn_tp;

/*
 * Forks ranks - 1 processes and returns in all of them, with *rank set to 0 in the calling one. Must be
 * called before a table is started and before threads exist. The new processes are killed when the calling
 * one dies.
 */
int cairn_tp_fork(struct cairn_tp **out, int32_t ranks, int32_t *rank);
/* Closes the sockets, at which the other ranks end; rank 0 waits for them. NULL is legal. */
void cairn_tp_close(struct cairn_tp *r);

/*
 * Opens the communicator and replaces operations of *impl, which has been started. Called by all ranks. There
 * is one such table in a process.
 */
int cairn_tp_table(struct cairn_tp *r, struct cairn_impl *impl);

/* In rank 0: what the engine tells of its passes; valid until cairn_tp_close(). */
const struct cairn_worker_tap *cairn_tp_tap(struct cairn_tp *r);
/* In the other ranks: creates a worker and makes passes until rank 0 closes. Returns 0 then, or an error. */
int cairn_tp_follow(struct cairn_tp *r, struct cairn_model *model);

#endif
