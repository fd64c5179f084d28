/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_test - declarations that the files of the test share
 *
 * decode_step_test.c lists the cases, decode_step_inputs_test.c and decode_step_weights_test.c make their
 * models, decode_step_judge_test.c judges the results. Include conformance/harness.h and paged_test.h first.
 */
#ifndef CAIRN_DECODE_STEP_TEST_H
#define CAIRN_DECODE_STEP_TEST_H

#include "fused/decode_step/decode_step.h"

#define STEP_FIELD(name)	offsetof(struct cairn_decode_step_args, name)

enum {
	/* dtype; biases of q, k, v; bias of the output projection */
	F16 = PAGED_FLAGS, BIAS = F16 << 1, BIAS_O = F16 << 2,
	TIED = F16 << 3,		/* lm_head is embed */
	GAPS = F16 << 4,		/* between layers */
	ALIAS = F16 << 5,		/* tokens aliases ids */
	NO_TOKENS = F16 << 6,
	SAMPLE = F16 << 7,		/* some rows are sampled */
	FAR = F16 << 8,			/* positions are unrelated to the number of keys */
	BENCH = F16 << 9, DEVICE = F16 << 10,
	GRAPH = F16 << 11, PERSISTENT = F16 << 12,
	LATENT = F16 << 13,		/* heads of 128 + 64, kv_lora_rank 512 */
	NORMED = F16 << 14,		/* normalize_experts is set */
	POOL = F16 << 15,		/* all weights of layers are in one buffer */
	FAR_LAYERS = F16 << 16,		/* the second layer's weights and pages lie past 2^32 bytes */
	STEEP = F16 << 17,		/* gates from -200 to 200 */
	TIES = F16 << 18,		/* rows 2 i and 2 i + 1 of lm_head are equal */
	DEEP = F16 << 19,		/* one layer, BIAS: logits of attention are about -10240 */
	WINDOWS = F16 << 20,		/* row r of lm_head is 0 outside the r-th part of its columns */
	SHUT = F16 << 21,		/* one layer: gates are -24, ups 2^30; attention adds 0 */
	BALANCE = F16 << 22,		/* one layer, BIAS: values of the first key cancel the others */
};

struct step_shape {
	const char *name;			/* NULL: generated from the numbers */
	/* kv: kv_len of the longest request; inter: of the dense MLP; hq, hkv: query and KV heads */
	int layers, batch, kv, page, hidden, inter, hq, hkv, dim, vocab;
	unsigned flags;
	const int *kv_lens;			/* [batch]; NULL: from kv */
	/* [batch], with SAMPLE: all tokens of these are likely, and nothing else limits the choice */
	const int *top_k;
	/* lora: rank of q; top: experts for each token; shared: shared width; dense: dense layers */
	int lora, experts, top, expert_inter, shared, dense;
	float scaling;			/* 0: 1 */
	int sms;
	/* decode_step_pairs.h */
	int pair;			/* number of the case, or 0 */
	int ends;			/* decode_step_ends.h: 1, or 0 */
	double eps, size;		/* size: deviation of the embedding */
	float scale;			/* sm_scale; 0: from head_dim */
};

void step_shape_at(int index, struct step_shape *s);
void step_setup(struct cairn_op *op);
/*
 * For decode_step_ranks, too: the arguments begin with those of decode_step, and the shape is that of one
 * rank's share, except that vocab is the model's.
 */
void step_setup_shape(struct cairn_op *op, const struct step_shape *s);
int step_form(void *args, int i);
int step_relist(void *args);
int step_judge(const struct cairn_op *op, const void *got, char *why, size_t len);
int step_exact(const void *args, struct cairn_exact *e);
const char *step_reject(void *args, int i, int *want);

/*
 * As cairn_fill(), but a long buffer repeats a short one of prime length, so that no two rows are alike.
 * Drawing every number would take longer than the rest of the test.
 */
void step_repeat(struct cairn_op *op, void *p, int dtype, int64_t count, double scale);
/* Fills with normal values of this deviation; EXACT: integers times the nearest power of two. */
void step_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale);
/*
 * Inputs that are drawn between step_apart() and step_together() differ between the ranks that share a model.
 * In a case without ranks, the two functions do nothing.
 */
static inline void step_apart(struct cairn_op *op)
{
	if (op->ranks)
		cairn_apart(op);
}

static inline void step_together(struct cairn_op *op)
{
	if (op->ranks)
		cairn_together(op);
}

/* Fills all weights of layers; the caller fills embed, final_norm and lm_head. */
void step_weights(struct cairn_op *op, const struct step_shape *s);
/*
 * Makes the choice of experts certain. Among the first num_experts elements of the residual stream, the
 * embedding sets those of the chosen experts to 32 (or 128), and each layer assigns the elements to other
 * experts. The value is so far above the others that rounding cannot change the choice.
 */
void step_decide_experts(struct cairn_op *op, const struct step_shape *s, uint16_t *embed);

#endif
