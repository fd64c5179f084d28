// SPDX-License-Identifier: Apache-2.0
/*
 * teach_flash1 - FlashAttention (Dao et al. 2022): algorithms 1 and 2, forward, and algorithm 4, backward
 *
 * The outer loop runs over blocks of K and V, the inner loop over blocks of Q and O. After each block of
 * keys, O is the finished output of attention to the keys so far, so each step reads O from HBM, scales it
 * and writes it back. FlashAttention-2 changes this.
 *
 * In the forward pass, Bc = M / 4d rows of K and of V fill half of SRAM, and Br = min(Bc, d) rows of Q and of
 * O take at most the other half. Br is at most d so that the tile S [Br, Bc] holds no more than M / 4
 * elements. In the backward pass, K, V, dK, dV and Q, O, dO, dQ are on the chip: Bc = M / 8d.
 *
 * Elements moved, with Tc = ceil(n / Bc): each step of the outer loop reads all rows of the inner operands.
 *
 *                                         loads                             stores
 *   forward   O = 0, l = 0, m = -inf                                        nd + 2n
 *             K, V                        2nd
 *             Q, O, l, m; O, l, m         Tc (2nd + 2n)                     Tc (nd + 2n)
 *             together                    2nd + Tc (2nd + 2n)               (1 + Tc) (nd + 2n)
 *   backward  dQ = dK = dV = 0                                              3nd
 *             K, V; dK, dV                2nd                               2nd
 *             Q, O, dO, dQ, l, m; dQ      Tc (4nd + 2n)                     Tc nd
 *             together                    2nd + Tc (4nd + 2n)               (5 + Tc) nd
 *
 * With Tc near 4nd / M the forward pass moves 3nd Tc = 12 n^2 d^2 / M elements, up to lower terms, and the
 * backward pass 5nd (8nd / M) = 40 n^2 d^2 / M: theorems 2 and 5, Theta(n^2 d^2 / M). HBM holds l and m
 * besides the inputs and outputs, 2n elements; the backward pass allocates nothing. Masks change no count.
 */
#include "fused/attention/teach/attn_teach.h"

#include <math.h>

#include "fused/attention/teach/teach_chip.h"
#include "primitives/base/error.h"

/* Rows of the blocks of the inner loop: Br. */
static int inner_rows(int outer_rows, int d)
{
	return outer_rows < d ? outer_rows : d;
}

static int too_small(const struct chip *chip, const struct attention *a)
{
	return cairn_error(EINVAL, "SRAM of %lld elements is too small for d = %d",
			   (long long)chip_size(chip), a->d);
}

/* On-chip state of a forward pass. */
struct forward {
	int Br, Bc;
	struct block *Qi, *Oi, *Kj, *Vj;		/* SRAM */
	struct block *S, *P;				/* registers; P takes the place of S */
	struct block *li, *mi;
	struct block *lt, *mt;				/* of this tile alone; the paper's have a tilde */
	struct block *keep, *add;			/* factors of merge_statistics() */
};

/* Allocates the blocks, and l and m; sets O, l and m in HBM to their initial values. */
static int begin_forward(struct chip *chip, struct attention *a, struct forward *f)
{
	f->Bc = teach_block_rows(chip_size(chip), 4, a->d);
	f->Br = inner_rows(f->Bc, a->d);
	if (f->Bc < 1)
		return too_small(chip, a);
	f->Kj = chip_sram(chip, f->Bc, a->d);
	f->Vj = chip_sram(chip, f->Bc, a->d);
	f->Qi = chip_sram(chip, f->Br, a->d);
	f->Oi = chip_sram(chip, f->Br, a->d);
	f->S = f->P = chip_registers(chip, f->Br, f->Bc);
	f->li = chip_registers(chip, f->Br, 1);
	f->mi = chip_registers(chip, f->Br, 1);
	f->lt = chip_registers(chip, f->Br, 1);
	f->mt = chip_registers(chip, f->Br, 1);
	f->keep = chip_registers(chip, f->Br, 1);
	f->add = chip_registers(chip, f->Br, 1);
	a->l = hbm_new(chip, a->n, 1);
	a->m = hbm_new(chip, a->n, 1);
	hbm_fill(a->O, 0);
	hbm_fill(a->l, 0);
	hbm_fill(a->m, -INFINITY);
	return 0;
}

/*
 * Merges the statistics of a tile into those of its rows:
 *   m_new = max(m, mt),   l_new = e^(m - m_new) l + e^(mt - m_new) lt.
 * The new O is keep O + add P V. O is normalised by l, so keep is the first term over l_new, and add is
 * e^(mt - m_new) / l_new. Where a tile masks a whole row, mt is -INFINITY and its terms are 0.
 * m_new is finite, because every row sees key 0, which is in the first tile.
 */
static void merge_statistics(struct forward *f)
{
	f->keep->rows = f->add->rows = f->mi->rows;
	for (int r = 0; r < f->mi->rows; r++) {
		float m_new = fmaxf(f->mi->x[r], f->mt->x[r]);
		float old = expf(f->mi->x[r] - m_new) * f->li->x[r], tile = expf(f->mt->x[r] - m_new);
		float l_new = old + tile * f->lt->x[r];

		f->keep->x[r] = old / l_new;
		f->add->x[r] = tile / l_new;
		f->mi->x[r] = m_new;
		f->li->x[r] = l_new;
	}
}

/* Algorithm 1: without scale, mask and dropout. */
int teach_flash1_simple(struct chip *chip, struct attention *a)
{
	struct forward f;

	if (a->sm_scale != 1 || a->causal || a->dropout)
		return cairn_error(EOPNOTSUPP, "algorithm 1 has no scale, mask or dropout");
	CAIRN_TRY(begin_forward(chip, a, &f));				/* lines 1 and 2 */
	for (int j = 0; j < a->n; j += f.Bc) {				/* lines 3 to 5 */
		hbm_load(f.Kj, a->K, j);				/* line 6 */
		hbm_load(f.Vj, a->V, j);
		for (int i = 0; i < a->n; i += f.Br) {			/* line 7 */
			hbm_load(f.Qi, a->Q, i);			/* line 8 */
			hbm_load(f.Oi, a->O, i);
			hbm_load(f.li, a->l, i);
			hbm_load(f.mi, a->m, i);
			block_abt(f.S, 1, f.Qi, f.Kj);			/* line 9 */
			block_row_max(f.mt, f.S);			/* line 10 */
			block_exp(f.P, f.mt);
			block_row_sum(f.lt, f.P);
			merge_statistics(&f);				/* line 11 */
			block_scale_rows(f.Oi, f.keep);			/* line 12 */
			block_scale_rows(f.P, f.add);
			block_add_ab(f.Oi, 1, f.P, f.Vj);
			hbm_store(a->O, i, f.Oi);
			hbm_store(a->l, i, f.li);			/* line 13 */
			hbm_store(a->m, i, f.mi);
		}
	}
	return chip_end_kernel(chip);
}

/* Algorithm 2: the whole forward pass. l sums the undropped P, because dropout follows the softmax. */
int teach_flash1_forward(struct chip *chip, struct attention *a)
{
	struct forward f;

	CAIRN_TRY(begin_forward(chip, a, &f));				/* lines 1 to 3 */
	for (int j = 0; j < a->n; j += f.Bc) {				/* lines 4 to 6 */
		hbm_load(f.Kj, a->K, j);				/* line 7 */
		hbm_load(f.Vj, a->V, j);
		for (int i = 0; i < a->n; i += f.Br) {			/* line 8 */
			hbm_load(f.Qi, a->Q, i);			/* line 9 */
			hbm_load(f.Oi, a->O, i);
			hbm_load(f.li, a->l, i);
			hbm_load(f.mi, a->m, i);
			block_abt(f.S, a->sm_scale, f.Qi, f.Kj);	/* line 10 */
			if (a->causal)
				block_mask_causal(f.S, i, j);		/* line 11 */
			block_row_max(f.mt, f.S);			/* line 12 */
			block_exp(f.P, f.mt);
			block_row_sum(f.lt, f.P);
			merge_statistics(&f);				/* line 13 */
			if (a->dropout)
				block_dropout(f.P, i, j, a->dropout, a->seed);	/* line 14 */
			block_scale_rows(f.Oi, f.keep);			/* line 15 */
			block_scale_rows(f.P, f.add);
			block_add_ab(f.Oi, 1, f.P, f.Vj);
			hbm_store(a->O, i, f.Oi);
			hbm_store(a->l, i, f.li);			/* line 16 */
			hbm_store(a->m, i, f.mi);
		}
	}
	return chip_end_kernel(chip);
}

/*
 * Algorithm 4: computes S and P again from Q, K, l and m, tile by tile.
 *
 * The gradient of softmax needs D[i] = sum over j of P[i, j] dP[i, j], a sum over a whole row. It equals
 * sum over c of dO[i, c] O[i, c], a product of two rows of length d, because O = P V and dP = dO V^T. With
 * dropout both sums hold P o Z.
 */
int teach_flash1_backward(struct chip *chip, struct attention *a)
{
	int n = a->n, d = a->d;
	int Bc = teach_block_rows(chip_size(chip), 8, d), Br = inner_rows(Bc, d);	/* line 2 */
	struct block *Kj = chip_sram(chip, Bc, d), *Vj = chip_sram(chip, Bc, d);
	struct block *dKj = chip_sram(chip, Bc, d), *dVj = chip_sram(chip, Bc, d);
	struct block *Qi = chip_sram(chip, Br, d), *Oi = chip_sram(chip, Br, d);
	struct block *dOi = chip_sram(chip, Br, d), *dQi = chip_sram(chip, Br, d);
	struct block *P = chip_registers(chip, Br, Bc), *S = P;
	struct block *dP = chip_registers(chip, Br, Bc), *dS = dP;
	struct block *PZ = chip_registers(chip, Br, Bc);		/* P dropped: P o Z */
	struct block *li = chip_registers(chip, Br, 1), *mi = chip_registers(chip, Br, 1);
	struct block *Di = chip_registers(chip, Br, 1);

	if (Bc < 1)
		return too_small(chip, a);
	hbm_fill(a->dQ, 0);						/* line 5 */
	hbm_fill(a->dK, 0);
	hbm_fill(a->dV, 0);
	for (int j = 0; j < n; j += Bc) {				/* line 6 */
		hbm_load(Kj, a->K, j);					/* line 7 */
		hbm_load(Vj, a->V, j);
		block_fill(dKj, Kj->rows, 0);				/* line 8 */
		block_fill(dVj, Vj->rows, 0);
		for (int i = 0; i < n; i += Br) {			/* line 9 */
			hbm_load(Qi, a->Q, i);				/* line 10 */
			hbm_load(Oi, a->O, i);
			hbm_load(dOi, a->dO, i);
			hbm_load(dQi, a->dQ, i);
			hbm_load(li, a->l, i);
			hbm_load(mi, a->m, i);
			block_abt(S, a->sm_scale, Qi, Kj);		/* line 11 */
			if (a->causal)
				block_mask_causal(S, i, j);		/* line 12 */
			block_exp(S, mi);				/* line 13; from here on S is P */
			block_divide_rows(P, li);
			block_copy(PZ, P);
			if (a->dropout)
				block_dropout(PZ, i, j, a->dropout, a->seed);	/* lines 14 and 15 */
			block_add_atb(dVj, 1, PZ, dOi);			/* line 16 */
			block_abt(dP, 1, dOi, Vj);			/* line 17 */
			if (a->dropout)
				block_dropout(dP, i, j, a->dropout, a->seed);	/* line 18 */
			block_row_dot(Di, dOi, Oi);			/* line 19 */
			block_softmax_grad(dP, P, Di);			/* line 20; from here on dP is dS */
			block_add_ab(dQi, a->sm_scale, dS, Kj);		/* line 21 */
			hbm_store(a->dQ, i, dQi);
			block_add_atb(dKj, a->sm_scale, dS, Qi);	/* line 22 */
		}
		hbm_store(a->dK, j, dKj);				/* line 24 */
		hbm_store(a->dV, j, dVj);
	}
	return chip_end_kernel(chip);
}
