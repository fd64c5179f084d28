// SPDX-License-Identifier: Apache-2.0
/*
 * teach_chip - HBM that counts, SRAM that is limited, and operations on blocks
 *
 * Each operation sets the shape of its result and then asks proceed() whether to work on elements: a chip
 * that only counts never does, and a chip with a planted fault leaves one operation out.
 */
#include "fused/attention/teach/teach_chip.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/error.h"

struct hbm {
	struct hbm *next;
	struct chip *chip;
	float *x;			/* NULL if the chip only counts */
	int rows, cols;
};

struct on_chip {
	struct block block;		/* the first member, so that a block pointer points to this struct */
	struct on_chip *next;
};

struct chip {
	int64_t M;
	struct chip_counts counts;
	int64_t sram, registers;	/* in use */
	struct hbm *matrices;
	struct on_chip *blocks;
	int count_only, error;
	enum chip_fault fault;
	int64_t fault_at, operations;
};

static void *allocate(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p)
		abort();
	return p;
}

static float *allocate_nan(int64_t count)
{
	float *x = allocate(sizeof(*x) * (size_t)count);

	for (int64_t i = 0; i < count; i++)
		x[i] = NAN;
	return x;
}

struct chip *chip_new(int64_t M)
{
	struct chip *chip = allocate(sizeof(*chip));

	chip->M = M;
	return chip;
}

static void free_blocks(struct chip *chip)
{
	while (chip->blocks) {
		struct on_chip *b = chip->blocks;

		chip->blocks = b->next;
		free(b->block.x);
		free(b);
	}
	chip->sram = chip->registers = 0;
}

void chip_free(struct chip *chip)
{
	free_blocks(chip);
	while (chip->matrices) {
		struct hbm *h = chip->matrices;

		chip->matrices = h->next;
		free(h->x);
		free(h);
	}
	free(chip);
}

int64_t chip_size(const struct chip *chip)
{
	return chip->M;
}

struct chip_counts chip_counts(const struct chip *chip)
{
	return chip->counts;
}

void chip_count_only(struct chip *chip)
{
	chip->count_only = 1;
}

void chip_plant(struct chip *chip, enum chip_fault fault, int64_t at)
{
	chip->fault = fault;
	chip->fault_at = at;
}

int64_t chip_operations(const struct chip *chip)
{
	return chip->operations;
}

int chip_end_kernel(struct chip *chip)
{
	free_blocks(chip);
	return chip->error;
}

/* Counts the operation. Returns its fault, and sets *off to the number of rows by which it is misplaced. */
static enum chip_fault next_operation(struct chip *chip, int *off)
{
	int hit = chip->operations++ == chip->fault_at && chip->fault;

	*off = hit && chip->fault == FAULT_OFF_BY_ONE;
	return hit ? chip->fault : FAULT_NONE;
}

/* Returns whether an operation without a row number works on elements. */
static int proceed(const struct block *b)
{
	int off;

	return next_operation(b->chip, &off) != FAULT_LEFT_OUT && !b->chip->count_only;
}

/* ---- memory ---- */

struct hbm *hbm_new(struct chip *chip, int rows, int cols)
{
	struct hbm *h = allocate(sizeof(*h));

	*h = (struct hbm){ chip->matrices, chip, NULL, rows, cols };
	if (!chip->count_only)
		h->x = allocate_nan((int64_t)rows * cols);
	chip->matrices = h;
	chip->counts.hbm += (int64_t)rows * cols;
	return h;
}

float *hbm_host(struct hbm *h)
{
	return h->x;
}

static struct block *new_block(struct chip *chip, int rows, int cols, int64_t *in_use, int64_t *most)
{
	struct on_chip *b = allocate(sizeof(*b));

	b->block = (struct block){ .chip = chip, .max_rows = rows, .max_cols = cols };
	b->block.x = allocate_nan((int64_t)rows * cols);
	b->next = chip->blocks;
	chip->blocks = b;
	*in_use += (int64_t)rows * cols;
	*most = *in_use > *most ? *in_use : *most;
	if (*in_use > chip->M && !chip->error)
		chip->error = cairn_error(ENOMEM, "a chip with room for %lld elements needs %lld",
					  (long long)chip->M, (long long)*in_use);
	return &b->block;
}

struct block *chip_sram(struct chip *chip, int rows, int cols)
{
	return new_block(chip, rows, cols, &chip->sram, &chip->counts.sram);
}

struct block *chip_registers(struct chip *chip, int rows, int cols)
{
	return new_block(chip, rows, cols, &chip->registers, &chip->counts.registers);
}

/* Returns row + off, or row - 1 where that would leave the matrix, or row if it has no neighbour. */
static int misplaced(int row, int off, int rows, const struct hbm *h)
{
	if (!off)
		return row;
	return row + rows < h->rows ? row + 1 : row ? row - 1 : row;
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

void hbm_load_tile(struct block *b, struct hbm *h, int row, int col)
{
	int off;

	b->rows = least(b->max_rows, h->rows - row);
	b->cols = least(b->max_cols, h->cols - col);
	if (next_operation(h->chip, &off) == FAULT_LEFT_OUT)
		return;
	h->chip->counts.loads += (int64_t)b->rows * b->cols;
	row = misplaced(row, off, b->rows, h);
	for (int r = 0; r < b->rows && h->x; r++)
		for (int c = 0; c < b->cols; c++)
			b->x[r * b->cols + c] = h->x[(int64_t)(row + r) * h->cols + col + c];
}

void hbm_store_tile(struct hbm *h, int row, int col, const struct block *b)
{
	int off;

	if (next_operation(h->chip, &off) == FAULT_LEFT_OUT)
		return;
	h->chip->counts.stores += (int64_t)b->rows * b->cols;
	row = misplaced(row, off, b->rows, h);
	for (int r = 0; r < b->rows && h->x; r++)
		for (int c = 0; c < b->cols; c++)
			h->x[(int64_t)(row + r) * h->cols + col + c] = b->x[r * b->cols + c];
}

void hbm_load(struct block *b, struct hbm *h, int row)
{
	hbm_load_tile(b, h, row, 0);
}

void hbm_store(struct hbm *h, int row, const struct block *b)
{
	hbm_store_tile(h, row, 0, b);
}

void hbm_fill(struct hbm *h, float value)
{
	int off;

	if (next_operation(h->chip, &off) == FAULT_LEFT_OUT)
		return;
	h->chip->counts.stores += (int64_t)h->rows * h->cols;
	for (int64_t i = 0; i < (int64_t)h->rows * h->cols && h->x; i++)
		h->x[i] = value;
}

/* ---- products ---- */

static float dot(const float *a, const float *b, int n)
{
	float sum = 0;

	#pragma omp simd reduction(+:sum)
	for (int i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

void block_abt(struct block *C, float scale, const struct block *A, const struct block *B)
{
	C->rows = A->rows;
	C->cols = B->rows;
	if (!proceed(C))
		return;
	for (int r = 0; r < C->rows; r++)
		for (int c = 0; c < C->cols; c++)
			C->x[r * C->cols + c] = scale * dot(A->x + r * A->cols, B->x + c * B->cols, A->cols);
}

/* Adds a times row k of B to row r of C. */
static void add_row(struct block *C, int r, float a, const struct block *B, int k)
{
	for (int c = 0; c < C->cols; c++)
		C->x[r * C->cols + c] += a * B->x[k * B->cols + c];
}

void block_add_ab(struct block *C, float scale, const struct block *A, const struct block *B)
{
	if (!proceed(C))
		return;
	for (int r = 0; r < C->rows; r++)
		for (int k = 0; k < B->rows; k++)
			add_row(C, r, scale * A->x[r * A->cols + k], B, k);
}

void block_add_atb(struct block *C, float scale, const struct block *A, const struct block *B)
{
	if (!proceed(C))
		return;
	for (int k = 0; k < B->rows; k++)
		for (int r = 0; r < C->rows; r++)
			add_row(C, r, scale * A->x[k * A->cols + r], B, k);
}

/* ---- rows ---- */

void block_fill(struct block *A, int rows, float value)
{
	A->rows = rows;
	A->cols = A->max_cols;
	if (!proceed(A))
		return;
	for (int i = 0; i < A->rows * A->cols; i++)
		A->x[i] = value;
}

void block_copy(struct block *A, const struct block *B)
{
	A->rows = B->rows;
	A->cols = B->cols;
	if (!proceed(A))
		return;
	for (int i = 0; i < A->rows * A->cols; i++)
		A->x[i] = B->x[i];
}

/* Makes x a column with an element for each row of A. */
static void set_column(struct block *x, const struct block *A)
{
	x->rows = A->rows;
	x->cols = 1;
}

void block_row_max(struct block *m, const struct block *S)
{
	set_column(m, S);
	if (!proceed(m))
		return;
	for (int r = 0; r < S->rows; r++) {
		m->x[r] = -INFINITY;
		for (int c = 0; c < S->cols; c++)
			m->x[r] = fmaxf(m->x[r], S->x[r * S->cols + c]);
	}
}

void block_row_sum(struct block *l, const struct block *P)
{
	set_column(l, P);
	if (!proceed(l))
		return;
	for (int r = 0; r < P->rows; r++) {
		l->x[r] = 0;
		for (int c = 0; c < P->cols; c++)
			l->x[r] += P->x[r * P->cols + c];
	}
}

void block_row_dot(struct block *D, const struct block *A, const struct block *B)
{
	set_column(D, A);
	if (!proceed(D))
		return;
	for (int r = 0; r < A->rows; r++)
		D->x[r] = dot(A->x + r * A->cols, B->x + r * B->cols, A->cols);
}

void block_scale_rows(struct block *A, const struct block *x)
{
	if (!proceed(A))
		return;
	for (int r = 0; r < A->rows; r++)
		for (int c = 0; c < A->cols; c++)
			A->x[r * A->cols + c] *= x->x[r];
}

void block_divide_rows(struct block *A, const struct block *x)
{
	if (!proceed(A))
		return;
	for (int r = 0; r < A->rows; r++)
		for (int c = 0; c < A->cols; c++)
			A->x[r * A->cols + c] /= x->x[r];
}

void block_exp(struct block *S, const struct block *m)
{
	if (!proceed(S))
		return;
	for (int r = 0; r < S->rows; r++) {
		for (int c = 0; c < S->cols; c++) {
			float *s = &S->x[r * S->cols + c];

			*s = *s == -INFINITY ? 0 : expf(*s - m->x[r]);
		}
	}
}

void block_softmax_grad(struct block *dP, const struct block *P, const struct block *D)
{
	if (!proceed(dP))
		return;
	for (int r = 0; r < P->rows; r++)
		for (int c = 0; c < P->cols; c++)
			dP->x[r * P->cols + c] = P->x[r * P->cols + c] * (dP->x[r * P->cols + c] - D->x[r]);
}

/* ---- masks ---- */

void block_mask_causal(struct block *S, int i, int j)
{
	int off;

	if (next_operation(S->chip, &off) == FAULT_LEFT_OUT || S->chip->count_only)
		return;
	for (int r = 0; r < S->rows; r++)
		for (int c = 0; c < S->cols; c++)
			if (j + c > i + r + off)
				S->x[r * S->cols + c] = -INFINITY;
}

float dropout_factor(int i, int j, float p, uint64_t seed)
{
	uint64_t x = seed + ((uint64_t)(uint32_t)i << 32 | (uint32_t)j) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;	/* the finaliser of SplitMix64 */
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (float)(x >> 40) * 0x1p-24f < p ? 0 : 1 / (1 - p);
}

void block_dropout(struct block *P, int i, int j, float p, uint64_t seed)
{
	if (!proceed(P))
		return;
	for (int r = 0; r < P->rows; r++)
		for (int c = 0; c < P->cols; c++)
			P->x[r * P->cols + c] *= dropout_factor(i + r, j + c, p, seed);
}
