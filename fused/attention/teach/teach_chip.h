/* SPDX-License-Identifier: Apache-2.0 */
/*
 * teach_chip - the machine of the FlashAttention papers: a large slow HBM and a small fast SRAM
 *
 * A matrix in HBM is opaque: hbm_load() and hbm_store() are the only way to its elements, and they count each
 * element that they move. Arithmetic works on blocks, which are on the chip: in SRAM, which holds M elements,
 * or in registers, which hold M more. On a GPU the blocks of Q, K, V and O lie in shared memory, and tiles of
 * S and P, with the statistics of their rows, in registers; the register file of an SM is at least as large
 * as its shared memory (A100: 256 KB against 192 KB, with the L1 cache).
 *
 * A chip remembers its first error, for example an allocation beyond M; chip_end_kernel() returns it. All
 * memory belongs to the chip.
 */
#ifndef CAIRN_TEACH_CHIP_H
#define CAIRN_TEACH_CHIP_H

#include <stdint.h>

struct chip;
struct hbm;

/* A matrix on the chip, row after row. Operations set the shape of their result, within the maximum. */
struct block {
	struct chip *chip;
	float *x;
	int rows, cols;
	int max_rows, max_cols;
};

/* All in elements. */
struct chip_counts {
	int64_t loads, stores;		/* moved from HBM to the chip, and back */
	int64_t hbm;			/* allocated in HBM */
	int64_t sram, registers;	/* the most that were in use at the same time */
};

/* Faults that a test plants into one operation. The shape of the result stays right. */
enum chip_fault {
	FAULT_NONE,
	FAULT_LEFT_OUT,			/* the operation does nothing, and moves nothing */
	FAULT_OFF_BY_ONE,		/* a load, a store or a mask is one row off */
};

struct chip *chip_new(int64_t M);
void chip_free(struct chip *chip);
int64_t chip_size(const struct chip *chip);			/* M */
struct chip_counts chip_counts(const struct chip *chip);
/* From now on, operations only count. The chip keeps no data, so long sequences cost little. */
void chip_count_only(struct chip *chip);
/* Plants a fault into the operation of number `at`, counted from 0. */
void chip_plant(struct chip *chip, enum chip_fault fault, int64_t at);
int64_t chip_operations(const struct chip *chip);		/* operations so far */

/* HBM. A matrix starts as NaN. */
struct hbm *hbm_new(struct chip *chip, int rows, int cols);
float *hbm_host(struct hbm *h);		/* the host's view, which is not counted; not for algorithms */
/* Loads rows row, row + 1, ... of h: as many as b can hold, or as h has left. */
void hbm_load(struct block *b, struct hbm *h, int row);
void hbm_store(struct hbm *h, int row, const struct block *b);
/* The same for a tile of h, which also starts at a column. */
void hbm_load_tile(struct block *b, struct hbm *h, int row, int col);
void hbm_store_tile(struct hbm *h, int row, int col, const struct block *b);
void hbm_fill(struct hbm *h, float value);			/* stores value to all elements */

/* A block lives until the end of its kernel. */
struct block *chip_sram(struct chip *chip, int rows, int cols);
struct block *chip_registers(struct chip *chip, int rows, int cols);
int chip_end_kernel(struct chip *chip);				/* 0, or the chip's first error */

/* C = scale A B^T, C += scale A B, and C += scale A^T B. */
void block_abt(struct block *C, float scale, const struct block *A, const struct block *B);
void block_add_ab(struct block *C, float scale, const struct block *A, const struct block *B);
void block_add_atb(struct block *C, float scale, const struct block *A, const struct block *B);

/* Rows. x, m, l and D have one column, with an element for each row of the other operands. */
void block_fill(struct block *A, int rows, float value);
void block_copy(struct block *A, const struct block *B);
void block_row_max(struct block *m, const struct block *S);				/* rowmax(S) */
void block_row_sum(struct block *l, const struct block *P);				/* rowsum(P) */
void block_row_dot(struct block *D, const struct block *A, const struct block *B);	/* rowsum(A o B) */
void block_scale_rows(struct block *A, const struct block *x);				/* A = diag(x) A */
void block_divide_rows(struct block *A, const struct block *x);				/* A = diag(x)^-1 A */
/* S = exp(S - m). The exponential of -INFINITY is 0 for any m, also for -INFINITY. */
void block_exp(struct block *S, const struct block *m);
/* dP = P o (dP - D). This replaces the gradient of P by that of S, where P = softmax(S). */
void block_softmax_grad(struct block *dP, const struct block *P, const struct block *D);

/*
 * Masks, for a tile of S or P that starts at row i and column j of the whole matrix. The causal mask is
 * -INFINITY where the key follows the query; the dropout mask multiplies by dropout_factor().
 */
void block_mask_causal(struct block *S, int i, int j);
void block_dropout(struct block *P, int i, int j, float p, uint64_t seed);

/*
 * Element [i, j] of the dropout mask Z: 0 with probability p, else 1 / (1 - p). The mask is a function of
 * seed, i and j, so that a backward pass computes it again, tile by tile.
 */
float dropout_factor(int i, int j, float p, uint64_t seed);

#endif
