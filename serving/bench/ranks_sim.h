/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_sim - simulates how long several ranks of context parallelism take for a prompt
 *
 * Each rank has a stream that computes and a link over which it sends. Work on one of them runs in the order
 * in which it was submitted, and starts when what it waits for has ended. A layer is what ranks_context.c or
 * ranks_ring.c enqueues:
 *
 *   heads    products of the rank's rows | exchange of q, k and v | attention of the rank's heads | exchange
 *   ring     products | own keys to slots | attention to own keys, while the keys of all ranks travel |
 *            slots to pages | attention to the others' keys | merge of both results
 *
 * Products take row_ns for each row. Attention takes pair_ns for each pair of a row and a key that it sees,
 * with all heads. A message takes alpha_ns and the time of its bytes; the messages of a rank share its link.
 * Exchanges wait for all ranks. Copies and merges take the time of the bytes that they read and write, and
 * each of the RING_LAUNCHES operations that a ring adds to a layer takes launch_ns. The rows of a piece all
 * see the same keys of others, so the units of attention (attn_bsr_plan.h) are equally long, and the last
 * ones end half a unit late on average; own keys give units of all lengths, the longest first. Left out:
 * contention in switches, GPUs of different speed, and that collectives slow down computation.
 */
#ifndef CAIRN_RANKS_SIM_H
#define CAIRN_RANKS_SIM_H

#include <stdint.h>

#define RING_LAUNCHES	6	/* kv_move, attn_bsr and its merge, kv_move, merge of attn_bsr, attn_merge */

enum cairn_sim_way { CAIRN_SIM_HEADS, CAIRN_SIM_ZIGZAG, CAIRN_SIM_CONTIGUOUS };

struct cairn_sim_costs {
	int32_t layers;
	double row_ns, pair_ns;		/* of a layer, on one rank */
	double alpha_ns, gb_per_s;	/* of a message of a ring; alpha_ns also of an exchange */
	double exchange_gb_per_s;	/* of an exchange by LL words (primitives/comm) */
	double copy_gb_per_s, merge_gb_per_s;	/* bytes read and written */
	double launch_ns;
	/* SMs; tokens of a unit of attention, which has one KV head. 0 SMs: units end at the same time */
	int32_t sms, unit_tokens, kv_heads;
	int32_t q_bytes, kv_bytes, out_bytes;	/* of a row in a layer: queries; keys and values; results */
};

/*
 * Fits row_ns and pair_ns to two measured times of one rank, for prompts of a < b tokens. -EINVAL: no
 * positive costs fit them.
 */
int cairn_sim_fit(struct cairn_sim_costs *costs, int64_t a, double a_ns, int64_t b, double b_ns);
/* Returns the time in ns that n ranks (1 .. CAIRN_COMM_MAX_RANKS) take for a prompt computed in one pass. */
double cairn_sim_prefill(const struct cairn_sim_costs *costs, enum cairn_sim_way way, int32_t n,
			 int64_t tokens);

#endif
