/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid - the decode step as phases on all SMs: what launchers and kernel share
 *
 * Phases of layer i are 5 i .. 5 i + 4, after the last layer comes GRID_HEAD. One CTA an SM; each phase is
 * shared out over all of them.
 */
#ifndef CAIRN_GRID_H
#define CAIRN_GRID_H

#include "fused/decode_step/decode_step.h"

enum grid_kind { GRID_QKV, GRID_ATTN, GRID_OUT, GRID_GATE_UP, GRID_DOWN, GRID_HEAD };

#define GRID_KINDS		5		/* of a layer */
#define GRID_WARPS		8
#define GRID_MAX_GROUP		8		/* query heads of a KV head */
#define GRID_MAX_BATCH		16
#define GRID_WORDS_BATCH	2		/* up to which results travel as words, */
#define GRID_WORDS_HIDDEN	8192		/* and batch * hidden */
#define GRID_STAGE_BYTES	4096		/* of a warp's ring */
#define GRID_MAX_STAGES		6
/* in shared memory: an mbarrier; before it a float a warp, and a word; */
#define GRID_FREE		64
#define GRID_PAIR_MBARS		72		/* of a pair: the norm's, and those of GRID_PAIR_BUFS sums */
#define GRID_MBARS		128		/* the mbarriers of the rings, */
#define GRID_SHARES		896		/* then what rows this CTA has, */
#define GRID_SUMS		1024		/* and the sums of products */

struct grid_args {
	struct cairn_decode_step_args s;
	/* [batch, hidden], what the call begins with; NULL: rows of s.embed */
	const void *x;
	void *out;			/* not NULL: the call's last phase, OUT or DOWN, writes here */
	/* the workspace */
	uint32_t *meetings;		/* CTAs that came to one, in all calls so far */
	/*
	 * [CTAs], of all calls so far: phases, which give the words their numbers, and meetings.
	 * A CTA counts for itself.
	 */
	uint2 *calls;
	uint32_t *tickets;		/* [batch, num_kv_heads]: splits that are done */
	float *part_o;			/* [tasks][group][head_dim] */
	float2 *part_ml;		/* [tasks][group] */
	void *qkv, *attn, *act, *x_mid, *x_out;		/* [batch][...] of dtype; attn, act: see a_index() */
	/* in place of all these if `by_words`: what each kind of phase makes */
	uint64_t *words[GRID_HEAD];
	uint64_t *part_words;		/* and parts, [tasks][group][head_dim + 2] */
	int32_t by_words;
	float per_hidden;		/* 1 / hidden */
	int32_t call_first, call_end;	/* phases of the call */
	int32_t first_phase, end_phase;	/* of this launch */
	/* of the call: nothing but weights may be read before its predecessor ended */
	int32_t first_launch;
	int32_t qkv_dim, q_dim, group;
	/* task = (request * request_tasks + KV head / task_heads) * num_splits + split */
	int32_t num_splits, num_tasks;
	int32_t stages;			/* of a ring, */
	/* of one for keys in place of the activations; 0: they have none of their own */
	int32_t key_stages;
	int32_t sum_bufs;
	int32_t a_bytes;		/* of shared memory for activations */
	/*
	 * offsets in shared memory, of: states of attention, cosines and sines,
	 * what comes from the other of a pair, activations, rings
	 */
	int32_t at_ml, at_o, at_rope, at_pair, at_a, at_rings;
	/* KV heads of a task, warps of each; tasks of a request: 1, all and num_kv_heads up to 8 requests */
	int32_t task_heads, head_warps, request_tasks;
};

/* In attention, bytes in place of the sums: (m, l) of states, then heads */
static inline __host__ __device__ int32_t grid_heads_at(const struct grid_args &a)
{
	return a.group * GRID_WARPS * 8;
}

#define GRID_HEAD_ROW(head_dim)	((head_dim) * 2 + 16)

/* Where the workspace's parts lie, and the geometry; ws may be NULL. Returns bytes, or -errno. */
int grid_plan(struct grid_args *a, char *ws, size_t *bytes);
/* persistent: one launch of phases [first, end); else one launch a phase. */
int grid_launch(struct grid_args *a, int32_t first, int32_t end, int persistent, void *stream);

#endif
