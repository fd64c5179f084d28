/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid - the decode step as phases on all SMs: declarations shared by the launchers and the kernel
 *
 * Phases 5 i .. 5 i + 4 are layer i; GRID_HEAD follows the last layer. There is one CTA on each of the call's
 * SMs, and every phase is divided over all of them. CTAs wait for each other, so all CTAs of a launch must be
 * resident at once; grid_launch() checks that the device can hold them. Launches that run at the same time
 * are all resident if their SMs add up to at most the device's. Above 8 requests CTAs form pairs; another
 * launch may then leave a single free SM in a GPC, where no pair fits.
 */
#ifndef CAIRN_GRID_H
#define CAIRN_GRID_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"
#include "primitives/comm/comm_device.h"

enum grid_kind { GRID_QKV, GRID_ATTN, GRID_OUT, GRID_GATE_UP, GRID_DOWN, GRID_HEAD };

#define GRID_KINDS		5		/* phases of a layer */
#define GRID_WARPS		8
#define GRID_MAX_GROUP		8		/* query heads of a KV head */
#define GRID_MAX_BATCH		16
#define GRID_LL_BATCH	2		/* results travel as LL words up to this batch, */
#define GRID_LL_HIDDEN	8192		/* and up to this batch * hidden */
#define GRID_STAGE_BYTES	4096		/* size of one stage of a warp's ring */
#define GRID_MAX_STAGES		6
/* Offsets in shared memory, in bytes. 0: a float for each warp, then a flag; GRID_FREE: an mbarrier */
#define GRID_FREE		64
#define GRID_PAIR_MBARS		72		/* pairs: mbarriers of the norm and of units' sums */
#define GRID_MBARS		128		/* the mbarriers of the rings */
#define GRID_SHARES		896		/* this CTA's rows of each kind of product */
#define GRID_SUMS		1024		/* the sums of products */

/*
 * The model and the batch, as launchers get them from their callers. Shapes and dtypes are those of
 * decode_step.h. Pointers to weights and pages are those of layer 0. A call without GRID_HEAD may leave
 * embed, ids, lm_head, final_norm, logits and vocab 0; one that runs only attention also mlp_norm, w_gate_up,
 * w_down and intermediate.
 */
struct grid_step {
	struct cairn_kv_view kv;
	const int32_t *positions, *ids;
	const float *inv_freq;
	const void *embed, *lm_head, *final_norm;
	const void *attn_norm, *w_qkv, *b_qkv, *w_o, *b_o, *mlp_norm, *w_gate_up, *w_down;
	float *logits;
	int64_t layer_stride_bytes, kv_stride_bytes;
	int32_t num_layers, hidden, intermediate, num_qo_heads, num_kv_heads, head_dim, vocab, dtype;
	float eps, sm_scale;
	int32_t sms;			/* SMs of the call, one CTA each; 0: all */
};

struct grid_args {
	struct grid_step s;
	/* [batch, hidden], the input of the call; NULL: rows of s.embed */
	const void *x;
	void *out;			/* if not NULL, the call's last phase (OUT or DOWN) writes here */
	/* pointers into the workspace */
	uint32_t *arrived;		/* grid barrier: arrivals of CTAs, counted over all calls so far */
	/*
	 * [CTAs]. Each CTA counts for itself, over all calls so far. x: phases (LL words carry this number);
	 * y: grid barriers
	 */
	uint2 *calls;
	uint32_t *tickets;		/* [batch, num_kv_heads]: splits that have finished */
	float *part_o;			/* [tasks][group][head_dim] */
	float2 *part_ml;		/* [tasks][group] */
	void *qkv, *attn, *act, *x_mid, *x_out;		/* [batch][...] of dtype; attn, act: see a_index() */
	/* used instead of these if by_ll: the LL words that each kind of phase writes */
	uint64_t *ll[GRID_HEAD];
	uint64_t *part_ll;		/* LL words of partial attention, [tasks][group][head_dim + 2] */
	int32_t by_ll;
	float per_hidden;		/* 1 / hidden */
	int32_t call_first, call_end;	/* phases of the call */
	int32_t first_phase, end_phase;	/* phases of this launch */
	/* first launch of the call: reads only weights before griddepcontrol.wait */
	int32_t first_launch;
	int32_t qkv_dim, q_dim, group;
	/* task = (request * request_tasks + KV head / task_heads) * num_splits + split */
	int32_t num_splits, num_tasks;
	int32_t stages;			/* stages of a ring */
	/* stages of a ring for keys that takes the activations' place; 0: keys use the ring of the weights */
	int32_t key_stages;
	int32_t sum_bufs;
	int32_t a_bytes;		/* bytes of shared memory for activations */
	/*
	 * offsets in shared memory: (m, l) and O of attention states, cosines and sines, data from the other
	 * CTA of a pair, activations, rings
	 */
	int32_t at_ml, at_o, at_rope, at_pair, at_a, at_rings;
	/* KV heads of a task; warps of each; tasks of a request. Up to 8 requests: 1, all, num_kv_heads */
	int32_t task_heads, head_warps, request_tasks;
	/*
	 * comm.ranks > 1: several ranks share the model, and s has the sizes and weights of this one
	 * (grid_ranks.cuh); vocab is its share. 0: none do
	 */
	struct comm_device comm;
};

/*
 * During attention, the memory of the sums holds (m, l) of the states and then the heads. Returns the offset
 * of the heads.
 */
static inline __host__ __device__ int32_t grid_heads_at(const struct grid_args &a)
{
	return a.group * GRID_WARPS * 8;
}

#define GRID_HEAD_ROW(head_dim)	((head_dim) * 2 + 16)

/* Sets the geometry and the addresses in the workspace; ws may be NULL. Sets *bytes; returns 0 or -errno. */
int grid_plan(struct grid_args *a, char *ws, size_t *bytes);
/* Returns the LL words of a mailbox (comm_device.h) that a step of several ranks needs. */
static inline __host__ __device__ int64_t grid_rank_words(const struct grid_args &a)
{
	return (int64_t)a.s.kv.batch * (2 * (int64_t)a.s.num_layers * a.s.hidden + a.s.vocab) / 2;
}

/* Runs phases [first, end): in one launch if persistent, otherwise in one launch for each phase. */
int grid_launch(struct grid_args *a, int32_t first, int32_t end, int persistent, void *stream);

#endif
