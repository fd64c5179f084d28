// SPDX-License-Identifier: Apache-2.0
/*
 * teach_standard - attention that writes S and P to HBM (Dao et al. 2022, algorithms 0 and 3)
 *
 * Each step is a separate kernel: nothing stays on the chip from one to the next. The paper's proof of
 * theorem 2 lets a product read each operand once. That takes an SRAM as large as the operand. Here a
 * product holds one block of Br rows on the chip while the other operand streams by, once for each of the
 * T = ceil(n / Br) blocks. With n / Br near 4nd / M, these T nd elements are 4 n^2 d^2 / M, which is O(n^2)
 * for d^2 <= M. So the totals are still the paper's Theta(nd + n^2):
 *
 *                                loads                            stores
 *   forward  S = Q K^T           nd (Q) + T nd (K)                n^2
 *            P = softmax(S)      n^2                              n^2
 *            O = P V             n^2 (P) + T nd (V)               nd
 *            together            2 n^2 + (1 + 2T) nd              2 n^2 + nd
 *   backward dV = P^T dO         n^2 (P) + T nd (dO)              nd
 *            dP = dO V^T         nd (dO) + T nd (V)               n^2
 *            dS                  2 n^2 (P, dP)                    n^2
 *            dQ = dS K           n^2 (dS) + T nd (K)              nd
 *            dK = dS^T Q         n^2 (dS) + T nd (Q)              nd
 *            together            5 n^2 + (1 + 4T) nd              2 n^2 + 3nd
 *
 * Both passes allocate 2 n^2 elements of HBM: S and P, then dP and dS. The row of n elements of a softmax
 * must fit SRAM; in the backward pass, two rows.
 */
#include "fused/attention/teach/attn_teach.h"

#include "fused/attention/teach/teach_chip.h"
#include "primitives/base/error.h"

struct sizes {
	int Br, Bc;
};

/* SRAM holds two blocks of Br rows, or one and a tile of S [Br, Bc], which is no larger because Bc <= d. */
static struct sizes sizes(const struct chip *chip, const struct attention *a)
{
	int Br = teach_block_rows(chip_size(chip), 4, a->d);

	return (struct sizes){ Br, Br < a->d ? Br : a->d };
}

/* C = scale A B^T for A and B [n, d], with the causal mask if asked for. */
static int product_abt(struct chip *chip, const struct attention *a, struct hbm *C, float scale,
		       struct hbm *A, struct hbm *B, int causal)
{
	struct sizes s = sizes(chip, a);
	struct block *Ai = chip_sram(chip, s.Br, a->d), *Bj = chip_sram(chip, s.Bc, a->d);
	struct block *Cij = chip_registers(chip, s.Br, s.Bc);

	for (int i = 0; i < a->n; i += s.Br) {
		hbm_load(Ai, A, i);
		for (int j = 0; j < a->n; j += s.Bc) {
			hbm_load(Bj, B, j);
			block_abt(Cij, scale, Ai, Bj);
			if (causal)
				block_mask_causal(Cij, i, j);
			hbm_store_tile(C, i, j, Cij);
		}
	}
	return chip_end_kernel(chip);
}

/* C = scale A B for A [n, n] and B [n, d]. */
static int product_ab(struct chip *chip, const struct attention *a, struct hbm *C, float scale,
		      struct hbm *A, struct hbm *B)
{
	struct sizes s = sizes(chip, a);
	struct block *Aij = chip_sram(chip, s.Br, s.Bc), *Bj = chip_sram(chip, s.Bc, a->d);
	struct block *Ci = chip_sram(chip, s.Br, a->d);

	for (int i = 0; i < a->n; i += s.Br) {
		block_fill(Ci, a->n - i < s.Br ? a->n - i : s.Br, 0);
		for (int j = 0; j < a->n; j += s.Bc) {
			hbm_load_tile(Aij, A, i, j);
			hbm_load(Bj, B, j);
			block_add_ab(Ci, scale, Aij, Bj);
		}
		hbm_store(C, i, Ci);
	}
	return chip_end_kernel(chip);
}

/* C = scale A^T B for A [n, n] and B [n, d]. */
static int product_atb(struct chip *chip, const struct attention *a, struct hbm *C, float scale,
		       struct hbm *A, struct hbm *B)
{
	struct sizes s = sizes(chip, a);
	struct block *Aij = chip_sram(chip, s.Bc, s.Br), *Bi = chip_sram(chip, s.Bc, a->d);
	struct block *Cj = chip_sram(chip, s.Br, a->d);

	for (int j = 0; j < a->n; j += s.Br) {
		block_fill(Cj, a->n - j < s.Br ? a->n - j : s.Br, 0);
		for (int i = 0; i < a->n; i += s.Bc) {
			hbm_load_tile(Aij, A, i, j);
			hbm_load(Bi, B, i);
			block_add_atb(Cj, scale, Aij, Bi);
		}
		hbm_store(C, j, Cj);
	}
	return chip_end_kernel(chip);
}

static int softmax(struct chip *chip, const struct attention *a, struct hbm *P, struct hbm *S)
{
	struct block *row = chip_sram(chip, 1, a->n);
	struct block *m = chip_registers(chip, 1, 1), *l = chip_registers(chip, 1, 1);

	for (int i = 0; i < a->n; i++) {
		hbm_load(row, S, i);
		block_row_max(m, row);
		block_exp(row, m);
		block_row_sum(l, row);
		block_divide_rows(row, l);
		hbm_store(P, i, row);
	}
	return chip_end_kernel(chip);
}

/* dS[i, j] = P[i, j] (dP[i, j] - sum over k of P[i, k] dP[i, k]) */
static int softmax_grad(struct chip *chip, const struct attention *a, struct hbm *dS, struct hbm *P,
			struct hbm *dP)
{
	struct block *p = chip_sram(chip, 1, a->n), *dp = chip_sram(chip, 1, a->n);
	struct block *D = chip_registers(chip, 1, 1);

	for (int i = 0; i < a->n; i++) {
		hbm_load(p, P, i);
		hbm_load(dp, dP, i);
		block_row_dot(D, p, dp);
		block_softmax_grad(dp, p, D);
		hbm_store(dS, i, dp);
	}
	return chip_end_kernel(chip);
}

static int check(const struct chip *chip, const struct attention *a)
{
	if (sizes(chip, a).Br < 1)
		return cairn_error(EINVAL, "SRAM of %lld elements is too small for d = %d",
				   (long long)chip_size(chip), a->d);
	if (a->dropout)
		return cairn_error(EOPNOTSUPP, "standard attention has no dropout here");
	return 0;
}

/* Algorithm 0, with the scale and the causal mask of algorithm 2 in line 1. */
int teach_standard_forward(struct chip *chip, struct attention *a)
{
	struct hbm *S;

	CAIRN_TRY(check(chip, a));
	S = hbm_new(chip, a->n, a->n);
	a->P = hbm_new(chip, a->n, a->n);
	CAIRN_TRY(product_abt(chip, a, S, a->sm_scale, a->Q, a->K, a->causal));		/* line 1 */
	CAIRN_TRY(softmax(chip, a, a->P, S));						/* line 2 */
	return product_ab(chip, a, a->O, 1, a->P, a->V);				/* line 3 */
}

/* Algorithm 3. A masked element of P is 0, which makes the same element of dS 0. */
int teach_standard_backward(struct chip *chip, struct attention *a)
{
	struct hbm *dP, *dS;

	CAIRN_TRY(check(chip, a));
	dP = hbm_new(chip, a->n, a->n);
	dS = hbm_new(chip, a->n, a->n);
	CAIRN_TRY(product_atb(chip, a, a->dV, 1, a->P, a->dO));				/* line 1 */
	CAIRN_TRY(product_abt(chip, a, dP, 1, a->dO, a->V, 0));				/* line 2 */
	CAIRN_TRY(softmax_grad(chip, a, dS, a->P, dP));					/* line 3 */
	CAIRN_TRY(product_ab(chip, a, a->dQ, a->sm_scale, dS, a->K));			/* line 4 */
	return product_atb(chip, a, a->dK, a->sm_scale, dS, a->Q);			/* line 5 */
}
