/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks - tensor, context and pipeline parallelism: one process a rank
 *
 *   rank 0: engine, scheduler, worker, tiers --- plans ---> ranks 1 .. n-1: a worker and tiers each
 *
 * Rank 0 makes all decisions; the others make the same calls with their shares of the weights
 * (cairn_model_load_rank), with their layers (cairn_model_load_stage), or with all weights and their share of
 * the rows (cairn_model_load_context). Each step is a plan (plan.h) on an inherited socketpair; no port is
 * opened. Page ids, host slots and places of lists are therefore the same on all ranks. With tensor
 * parallelism a rank's outputs of o and down are partial sums, so the forward pass calls all_reduce_norm for
 * the norm that follows. With context parallelism it exchanges heads by all_to_all (ranks_context.c), or keys
 * travel by send_recv (ranks_ring.c); ranks may also have both (serving/engine/worker/worker_context.c), and
 * may each hold some of the pages (ranks_stripes.c). The stages of a pipeline pass rows on by send_recv
 * (serving/pipeline/pipeline.h). cairn_tp_table() makes a table in which these operations have the
 * communicator. The worker and the engine are the same as without ranks.
 *
 * Every rank has the logits of all tokens, if need be by all_to_all from those of the others, and draws the
 * same tokens; in a pipeline the last stage draws, and all ranks get its tokens. Rank 0 compares those of all
 * ranks after each pass; a difference ends the group: "rank 1 drew 5, rank 0 drew 7".
 *
 * Failure. A rank that ends, that has been stopped (SIGSTOP) for a second, or that is silent for timeout_ms
 * in a collective, at the end of a pass or at a beat, ends the group. A thread of each rank watches its
 * sockets and, on one node, the state of the other processes, so that the end of a rank also ends waits in
 * collectives, by comm_abort(). The error of rank 0 names the pass, the operation and the rank. A rank that
 * fails tells rank 0 why before it ends. No rank continues after an error: all ranks must be started anew.
 *
 * Several nodes. Ranks of another node are reached over a channel (rendezvous.h) instead of a socketpair. The
 * communicators of our tables do not go beyond one host, so ranks on another host are refused by name: nodes
 * are programs that a launcher has started on one host.
 *
 * Models that cannot be shared are refused when they are loaded. decode_step is used in a ring only, whose
 * ranks each compute decoding passes whole.
 *
 * Errors: -EINVAL, -EOPNOTSUPP, -ENOMEM, -EIO, -ECONNRESET (a rank has ended), -ETIMEDOUT.
 */
#ifndef CAIRN_TP_H
#define CAIRN_TP_H

#include "serving/engine/engine.h"
#include "serving/ranks/rendezvous.h"

#define CAIRN_TP_START_S	600	/* until a rank has loaded its weights */
#define CAIRN_TP_END_S	10	/* until a rank has ended that should; it is killed then */

struct cairn_tp;

/*
 * Forks the other ranks of this node and returns in all of them. Must be called before a table is started and
 * before threads exist. The new processes are killed when the calling one dies. rendezvous: how to find the
 * ranks of other nodes, of which node 0 has rank 0; NULL: there are none. timeout_ms: 0 for
 * CAIRN_COMM_TIMEOUT_MS.
 */
int cairn_tp_fork(struct cairn_tp **out, int32_t ranks, const struct cairn_rendezvous *rendezvous,
		  int32_t timeout_ms);
/*
 * Rank 0 tells the others to end and waits for them, or kills them if there was an error. Call it before the
 * table is stopped. NULL is legal.
 */
void cairn_tp_close(struct cairn_tp *tp);
int32_t cairn_tp_rank(const struct cairn_tp *tp);
int32_t cairn_tp_ranks(const struct cairn_tp *tp);
int32_t cairn_tp_local_rank(const struct cairn_tp *tp);		/* counts the ranks of this node */

/*
 * Checks that all ranks have the same table, device and model (a digest of at most 63 characters), opens the
 * communicator, and replaces all_reduce_norm, all_to_all and send_recv of *impl, which has been started.
 * Called by all ranks. There is one such table in a process.
 */
int cairn_tp_table(struct cairn_tp *tp, struct cairn_impl *impl, const char *model);

/* In rank 0: what the engine tells of its steps; valid until cairn_tp_close(). */
const struct cairn_engine_tap *cairn_tp_tap(struct cairn_tp *tp);
/* In rank 0, while no pass is in flight: returns an error if a rank has ended or does not answer. */
int cairn_tp_beat(struct cairn_tp *tp);

/* Gathers `bytes` bytes of each rank, in the order of the ranks. All ranks call it. */
int cairn_tp_exchange(struct cairn_tp *tp, const void *mine, void *all, size_t bytes);

/* What another rank is told of its worker in cairn_tp_follow(). */
struct cairn_tp_watch {
	void *ctx;
	/* a worker was created: the first one, or another one, if rank 0 has created another one */
	int (*created)(void *ctx, const struct cairn_worker *worker, const struct cairn_worker_options *o);
	int (*part)(void *ctx, const struct cairn_worker_part *part);	/* each part of a pass */
	/* as cairn_worker_on_chunk() */
	int (*chunk)(void *ctx, int32_t first, int32_t end, int32_t layer, void *stream);
	int (*collected)(void *ctx);
};

/* In the other ranks, before cairn_tp_follow(); *watch must outlive it. */
void cairn_tp_set_watch(struct cairn_tp *tp, const struct cairn_tp_watch *watch);
/*
 * In the other ranks: creates a worker, with `context` if it is not NULL (worker.h: so it must be in rank 0's
 * engine), and carries out plans until rank 0 closes; if rank 0 creates another worker, so does this rank.
 * Returns 0 then; -ECONNRESET if rank 0 has ended without that. After another error call cairn_tp_fail().
 *
 * plans: of nano-batches; may be NULL. If rank 0's engine has any, these must have the same digest.
 */
int cairn_tp_follow(struct cairn_tp *tp, struct cairn_model *model, struct cairn_model *context,
		    const struct cairn_nano_plans *plans);
/*
 * In the other ranks, which carry out no plans but make the calls of rank 0 by themselves: waits until rank 0
 * closes. Errors as above.
 */
int cairn_tp_wait(struct cairn_tp *tp);
/*
 * In the other ranks: tells rank 0 of the last error, and waits a few seconds until it has noticed. A rank 0
 * that has been stopped (SIGSTOP) is killed: it would hold the group's devices for ever. In rank 0:
 * cairn_tp_close() then kills the others instead of waiting for them.
 */
void cairn_tp_fail(struct cairn_tp *tp);

#endif
