/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_test - what the files of the test share: a case as numbers
 *
 * decode_step_test.c lists them, decode_step_inputs_test.c and decode_step_weights_test.c make models of
 * them, decode_step_judge_test.c judges.
 * Include conformance/harness.h and paged_test.h first.
 */
#ifndef CAIRN_DECODE_STEP_TEST_H
#define CAIRN_DECODE_STEP_TEST_H

#include "fused/decode_step/decode_step.h"

#define STEP_FIELD(name)	offsetof(struct cairn_decode_step_args, name)

enum {
	F16 = PAGED_FLAGS, BIAS = F16 << 1, BIAS_O = F16 << 2,	/* of q, k, v; of the output projection */
	TIED = F16 << 3,		/* lm_head is embed */
	GAPS = F16 << 4,		/* between layers */
	ALIAS = F16 << 5,		/* tokens takes the place of ids */
	NO_TOKENS = F16 << 6,
	SAMPLE = F16 << 7,		/* some rows are sampled */
	FAR = F16 << 8,			/* positions that have nothing to do with the number of keys */
	BENCH = F16 << 9, DEVICE = F16 << 10,
	GRAPH = F16 << 11, PERSISTENT = F16 << 12,
	LATENT = F16 << 13,		/* 128 + 64 a head, kv_lora_rank 512 */
	NORMED = F16 << 14,		/* the experts' weights are */
	POOL = F16 << 15,		/* all weights of layers lie in one buffer */
	OLD = F16 << 16,		/* the struct of version 1, and junk behind it */
};

struct step_shape {
	const char *name;			/* NULL: made of the numbers */
	int layers, batch, kv, page, hidden, inter, hq, hkv, dim, vocab;
	unsigned flags;
	const int *kv_lens;
	/* lora: of q; dense: layers before the experts */
	int lora, experts, top, expert_inter, shared, dense;
	float scaling;			/* 0: 1 */
};

void step_shape_at(int index, struct step_shape *s);
void step_setup(struct cairn_op *op);
int step_judge(const struct cairn_op *op, const void *got, char *why, size_t len);
int step_exact(const void *args, struct cairn_exact *e);
const char *step_reject(void *args, int i, int *want);

/* Normal with this deviation; of kind EXACT integers times the power of two that comes nearest to it. */
void step_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale);
/* All weights of layers; embed, final_norm and lm_head are the caller's. */
void step_weights(struct cairn_op *op, const struct step_shape *s);
/*
 * An expert is chosen because the residual stream holds 32 (or 128) at its place, of the first num_experts
 * elements, as the row of the embedding says, another place in each layer: far enough above the others
 * that it is decided.
 */
void step_decide_experts(struct cairn_op *op, const struct step_shape *s, uint16_t *embed);

#endif
