/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_teach - FlashAttention line by line, on the CPU, with every access to HBM counted
 *
 * One head of attention over matrices [n, d]: S = sm_scale Q K^T, P = softmax(S) by rows, O = P V. With
 * causal, query i sees the keys j <= i. Dropout replaces P by P o Z in O = (P o Z) V. The gradients dQ, dK
 * and dV are those of a loss whose gradient with respect to O is dO.
 *
 * Each algorithm is written as its paper writes it; comments give the paper's line numbers. It runs on the
 * machine of teach_chip.h and takes its block sizes from M, the size of SRAM. Its header derives how many
 * elements it loads and stores. README.md is the guide.
 *
 * The block sizes differ from those of the papers in one respect. FlashAttention rounds M / 4d up, and uses
 * the same sizes for the backward pass, which holds eight blocks, as for the forward pass, which holds four.
 * That is right up to a constant factor, but the blocks do not fit. Here, M / 4d is rounded down, and a
 * backward pass uses M / 8d.
 */
#ifndef CAIRN_ATTN_TEACH_H
#define CAIRN_ATTN_TEACH_H

#include <stdint.h>

struct chip;
struct hbm;

struct attention {
	int n, d, causal;
	float sm_scale;				/* tau in the papers */
	float dropout;				/* the probability p_drop; only FlashAttention has it */
	uint64_t seed;				/* R, the state of the generator */
	struct hbm *Q, *K, *V, *dO;		/* [n, d], in */
	struct hbm *O, *dQ, *dK, *dV;		/* [n, d], out */
	/* allocated and written by a forward pass, for its backward pass */
	struct hbm *P;				/* [n, n], standard attention */
	struct hbm *l, *m;			/* [n], FlashAttention: P[i,j] = exp(S[i,j] - m[i]) / l[i] */
	struct hbm *L;				/* [n], FlashAttention-2: P[i,j] = exp(S[i,j] - L[i]) */
};

/*
 * All return 0; -EINVAL if the smallest blocks exceed M; -ENOMEM if an allocation on the chip exceeds M; or
 * -EOPNOTSUPP if dropout is set and the algorithm has none. A backward pass must follow the forward pass of
 * its paper.
 */
int teach_standard_forward(struct chip *chip, struct attention *a);
int teach_standard_backward(struct chip *chip, struct attention *a);
/* Algorithm 1 of FlashAttention: sm_scale must be 1, without mask and dropout. */
int teach_flash1_simple(struct chip *chip, struct attention *a);
int teach_flash1_forward(struct chip *chip, struct attention *a);
int teach_flash1_backward(struct chip *chip, struct attention *a);
int teach_flash2_forward(struct chip *chip, struct attention *a);
int teach_flash2_backward(struct chip *chip, struct attention *a);

/* Returns the rows of a block [rows, d] such that `blocks` blocks fit M. */
static inline int teach_block_rows(int64_t M, int blocks, int d)
{
	return (int)(M / ((int64_t)blocks * d));
}

/* The results in double, and bounds for the errors of all algorithms above; [n, d] or [n]. */
struct teach_exact {
	double *O, *lse, *dQ, *dK, *dV;
	double *O_bound, *lse_bound, *dQ_bound, *dK_bound, *dV_bound;
};

/* Reads Q, K, V and dO; a's other matrices may be NULL. */
struct teach_exact *teach_exact_new(const struct attention *a);
void teach_exact_free(struct teach_exact *e);

#endif
