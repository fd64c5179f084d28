// SPDX-License-Identifier: Apache-2.0
/*
 * teach_flash2 - FlashAttention-2 (Dao 2023): algorithm 1, forward, and algorithm 2, backward
 *
 * In the forward pass, the loops change places: the outer loop runs over blocks of Q and O, which stay on the
 * chip until they are complete. O is kept unnormalised: a step only scales it by e^(m_old - m), and it is
 * divided by l once, at the end. Each row writes one statistic to HBM instead of two, L = m + log(l):
 * exp(S - L) is P. In the backward pass the loops are those of FlashAttention, and a separate pass computes
 * D.
 *
 * The paper leaves the block sizes open. Here those of the outer loop are large and those of the inner loop
 * at most d, as in FlashAttention: forward, Br = M / 4d and Bc = min(Br, d); backward, Bc = M / 8d and
 * Br = min(Bc, d). So the forward pass reads K and V Tr = ceil(n / Br) times, where FlashAttention reads Q
 * and O, and writes O, that many times:
 *
 *                                      loads                            stores
 *   forward   Q; O, L                  nd                               nd + n
 *             K, V                     Tr 2nd
 *             together                 (1 + 2 Tr) nd                    nd + n
 *   backward  D = rowsum(dO o O)       2nd                              n
 *             dQ = 0                                                    nd
 *             K, V; dK, dV             2nd                              2nd
 *             Q, dO, dQ, L, D; dQ      Tc (3nd + 2n)                    Tc nd
 *             together                 4nd + Tc (3nd + 2n)              (3 + Tc) nd + n
 *
 * That is 8 n^2 d^2 / M and 32 n^2 d^2 / M elements, up to lower terms. HBM holds L, n elements, and D in the
 * backward pass, n more.
 *
 * With causal, a tile whose keys all follow its queries is skipped and never loaded. Row block i,
 * the rows from i Br on, sees the keys before end(i) = min(n, (i + 1) Br), in ceil(end(i) / Bc) blocks:
 *
 *   forward   K, V        2d sum over i of min(n, Bc ceil(end(i) / Bc))         instead of Tr 2nd
 *   backward  Q, ...      (3d + 2) sum over j of n - Br floor(j Bc / Br)        instead of Tc (3nd + 2n)
 *             dQ          d times the same sum                                  instead of Tc nd
 *
 * If Bc divides Br and Br divides n, the first is (Tr + 1) nd: half of all tiles, and half of the diagonal.
 * If Br divides Bc and Bc divides n, the second sum is (Tc + 1) n / 2. Only a tile that the diagonal crosses
 * needs the mask.
 */
#include "fused/attention/teach/attn_teach.h"

#include <math.h>

#include "fused/attention/teach/teach_chip.h"
#include "primitives/base/error.h"

static int check(const struct chip *chip, const struct attention *a, int blocks)
{
	if (teach_block_rows(chip_size(chip), blocks, a->d) < 1)
		return cairn_error(EINVAL, "SRAM of %lld elements is too small for d = %d",
				   (long long)chip_size(chip), a->d);
	if (a->dropout)
		return cairn_error(EOPNOTSUPP, "FlashAttention-2 has no dropout here");
	return 0;
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* Algorithm 1, with the scale and the causal mask. */
int teach_flash2_forward(struct chip *chip, struct attention *a)
{
	int n = a->n, d = a->d, Br = teach_block_rows(chip_size(chip), 4, d), Bc = least(Br, d);
	struct block *Qi = chip_sram(chip, Br, d), *Oi = chip_sram(chip, Br, d);
	struct block *Kj = chip_sram(chip, Bc, d), *Vj = chip_sram(chip, Bc, d);
	struct block *S = chip_registers(chip, Br, Bc), *P = S;
	struct block *m = chip_registers(chip, Br, 1), *l = chip_registers(chip, Br, 1);
	struct block *mt = chip_registers(chip, Br, 1), *lt = chip_registers(chip, Br, 1);
	struct block *rescale = chip_registers(chip, Br, 1), *Li = chip_registers(chip, Br, 1);

	CAIRN_TRY(check(chip, a, 4));
	a->L = hbm_new(chip, n, 1);
	for (int i = 0; i < n; i += Br) {				/* line 3 */
		int end = least(i + Br, n), keys = a->causal ? end : n;

		hbm_load(Qi, a->Q, i);					/* line 4 */
		block_fill(Oi, end - i, 0);				/* line 5 */
		block_fill(l, end - i, 0);
		block_fill(m, end - i, -INFINITY);
		for (int j = 0; j < keys; j += Bc) {			/* line 6 */
			hbm_load(Kj, a->K, j);				/* line 7 */
			hbm_load(Vj, a->V, j);
			block_abt(S, a->sm_scale, Qi, Kj);		/* line 8 */
			if (a->causal && j + Bc > i + 1)
				block_mask_causal(S, i, j);
			block_row_max(mt, S);				/* line 9 */
			for (int r = 0; r < end - i; r++) {
				float m_old = m->x[r];

				m->x[r] = fmaxf(m_old, mt->x[r]);
				rescale->x[r] = expf(m_old - m->x[r]);
			}
			block_exp(P, m);
			block_row_sum(lt, P);
			for (int r = 0; r < end - i; r++)
				l->x[r] = rescale->x[r] * l->x[r] + lt->x[r];
			block_scale_rows(Oi, rescale);			/* line 10 */
			block_add_ab(Oi, 1, P, Vj);
		}
		block_divide_rows(Oi, l);				/* line 12 */
		block_copy(Li, m);					/* line 13 */
		for (int r = 0; r < end - i; r++)
			Li->x[r] += logf(l->x[r]);
		hbm_store(a->O, i, Oi);					/* line 14 */
		hbm_store(a->L, i, Li);					/* line 15 */
	}
	return chip_end_kernel(chip);
}

/*
 * Line 4 of algorithm 2, a separate kernel: D = rowsum(dO o O), as in line 19 of FlashAttention's algorithm
 * 4.
 */
static int compute_D(struct chip *chip, const struct attention *a, struct hbm *D)
{
	int Br = teach_block_rows(chip_size(chip), 4, a->d);
	struct block *Oi = chip_sram(chip, Br, a->d), *dOi = chip_sram(chip, Br, a->d);
	struct block *Di = chip_registers(chip, Br, 1);

	for (int i = 0; i < a->n; i += Br) {
		hbm_load(Oi, a->O, i);
		hbm_load(dOi, a->dO, i);
		block_row_dot(Di, dOi, Oi);
		hbm_store(D, i, Di);
	}
	return chip_end_kernel(chip);
}

/*
 * Algorithm 2. Line 9 of the paper also loads O, but nothing reads it: D replaces it. dQ is loaded only once,
 * here; line 15 of the paper names that load a second time.
 */
int teach_flash2_backward(struct chip *chip, struct attention *a)
{
	int n = a->n, d = a->d, Bc = teach_block_rows(chip_size(chip), 8, d), Br = least(Bc, d);
	struct block *Kj, *Vj, *dKj, *dVj, *Qi, *dOi, *dQi, *P, *S, *dP, *dS, *Li, *Di;
	struct hbm *D;

	CAIRN_TRY(check(chip, a, 8));
	D = hbm_new(chip, n, 1);
	hbm_fill(a->dQ, 0);						/* line 3 */
	CAIRN_TRY(compute_D(chip, a, D));				/* line 4 */
	Kj = chip_sram(chip, Bc, d);
	Vj = chip_sram(chip, Bc, d);
	dKj = chip_sram(chip, Bc, d);
	dVj = chip_sram(chip, Bc, d);
	Qi = chip_sram(chip, Br, d);
	dOi = chip_sram(chip, Br, d);
	dQi = chip_sram(chip, Br, d);
	P = S = chip_registers(chip, Br, Bc);
	dP = dS = chip_registers(chip, Br, Bc);
	Li = chip_registers(chip, Br, 1);
	Di = chip_registers(chip, Br, 1);
	for (int j = 0; j < n; j += Bc) {				/* line 5 */
		int first = a->causal ? j / Br * Br : 0;	/* the first row block that sees key j */

		hbm_load(Kj, a->K, j);					/* line 6 */
		hbm_load(Vj, a->V, j);
		block_fill(dKj, Kj->rows, 0);				/* line 7 */
		block_fill(dVj, Vj->rows, 0);
		for (int i = first; i < n; i += Br) {			/* line 8 */
			hbm_load(Qi, a->Q, i);				/* line 9 */
			hbm_load(dOi, a->dO, i);
			hbm_load(dQi, a->dQ, i);
			hbm_load(Li, a->L, i);
			hbm_load(Di, D, i);
			block_abt(S, a->sm_scale, Qi, Kj);		/* line 10 */
			if (a->causal && j + Bc > i + 1)
				block_mask_causal(S, i, j);
			block_exp(S, Li);				/* line 11; from here on S is P */
			block_add_atb(dVj, 1, P, dOi);			/* line 12 */
			block_abt(dP, 1, dOi, Vj);			/* line 13 */
			block_softmax_grad(dP, P, Di);			/* line 14; from here on dP is dS */
			block_add_ab(dQi, a->sm_scale, dS, Kj);		/* line 15 */
			hbm_store(a->dQ, i, dQi);
			block_add_atb(dKj, a->sm_scale, dS, Qi);	/* line 16 */
		}
		hbm_store(a->dK, j, dKj);				/* line 18 */
		hbm_store(a->dV, j, dVj);
	}
	return chip_end_kernel(chip);
}
