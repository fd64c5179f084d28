/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_fp8_inputs - 8-bit operands for the tests of attn_fp8: blocks, scales, patterns of codes
 *
 * Include conformance/harness.h first. Blocks that no request owns, their scales, and rows of q and k past a
 * request's end are NaN.
 */
#ifndef CAIRN_ATTN_FP8_INPUTS_H
#define CAIRN_ATTN_FP8_INPUTS_H

#include <math.h>
#include <string.h>

#include "primitives/base/fp8.h"
#include "fused/attention/fp8/attn_fp8.h"

/* One of q, k and v. */
struct operand {
	uint8_t *codes;
	float *scale;
	const int32_t *indptr;
	int batch, heads, dim, blocks, transposed, far;
};

static inline int64_t block_at(const struct operand *x, int b, int j, int head)
{
	return (int64_t)head * x->blocks + attn_fp8_first_block(x->indptr[b], b) + j / ATTN_FP8_BLOCK;
}

static inline void set_code(const struct operand *x, int b, int j, int head, int c, double v)
{
	int64_t at = block_at(x, b, j, head) * ATTN_FP8_BLOCK * x->dim;

	j %= ATTN_FP8_BLOCK;
	x->codes[at + (x->transposed ? c * ATTN_FP8_BLOCK + attn_fp8_place(j) : j * x->dim + c)] =
		cairn_float_to_e4m3((float)v);
}

static inline int len_of(const struct operand *x, int b)
{
	return x->indptr[b + 1] - x->indptr[b];
}

/* Sets all codes and scales to NaN, and zeroes the blocks of v that a request owns. */
static inline void clear_operand(struct cairn_op *op, const struct operand *x)
{
	int64_t block = (int64_t)ATTN_FP8_BLOCK * x->dim;

	cairn_fill_nan(x->scale, CAIRN_F32, 0, (int64_t)x->heads * x->blocks);
	if (!x->far)
		memset(x->codes, 0x7f, (size_t)(x->heads * x->blocks * block));
	for (int b = 0; b < x->batch; b++)
		for (int head = 0; head < x->heads; head++)
			for (int j = 0; j < len_of(x, b); j += ATTN_FP8_BLOCK) {
				uint8_t *at = x->codes + block_at(x, b, j, head) * block;

				if (x->far)
					cairn_touch(op, x->codes, at - x->codes, block);
				memset(at, x->transposed ? 0 : 0x7f, (size_t)block);
				x->scale[block_at(x, b, j, head)] = 1;
			}
}

/* Quantises normal numbers, whose size differs from block to block: `least` times 1, 2 or 4. */
static inline void fill_normal(struct cairn_op *op, const struct operand *x, double least)
{
	static float y[ATTN_FP8_BLOCK][256];

	for (int b = 0; b < x->batch; b++)
		for (int head = 0; head < x->heads; head++)
			for (int j = 0; j < len_of(x, b); j += ATTN_FP8_BLOCK) {
				int rows = len_of(x, b) - j, block = j / ATTN_FP8_BLOCK;
				double size = least * (1 << (block + head) % 3);
				float max = 0;

				rows = rows < ATTN_FP8_BLOCK ? rows : ATTN_FP8_BLOCK;
				for (int i = 0; i < rows; i++) {
					cairn_fill(op, y[i], CAIRN_F32, x->dim, size);
					for (int c = 0; c < x->dim; c++)
						max = fmaxf(max, fabsf(y[i][c]));
				}
				x->scale[block_at(x, b, j, head)] = max / 448;
				for (int i = 0; i < rows; i++)
					for (int c = 0; c < x->dim; c++)
						set_code(x, b, j + i, head, c,
							 (double)(y[i][c] * (448 / max)));
			}
}

/*
 * As fill_normal(), but fast enough for operands of many millions of elements: each code comes from one byte
 * of a random word, and codes are only about normally distributed.
 */
static inline void fill_quickly(struct cairn_op *op, const struct operand *x, double least)
{
	int64_t block = (int64_t)ATTN_FP8_BLOCK * x->dim;
	uint8_t code[256];

	/* the sum of the byte's two halves is about normally distributed, with a deviation of 6.5 */
	for (int i = 0; i < 256; i++)
		code[i] = cairn_float_to_e4m3((float)(16 * (i / 16 + i % 16 - 15)));
	for (int b = 0; b < x->batch; b++)
		for (int head = 0; head < x->heads; head++)
			for (int j = 0; j < len_of(x, b); j += ATTN_FP8_BLOCK) {
				int64_t at = block_at(x, b, j, head);
				uint8_t *p = x->codes + at * block;

				x->scale[at] = (float)(least * (1 << (j / ATTN_FP8_BLOCK + head) % 3) / 104);
				for (int64_t i = 0; i < block; i += 8) {
					uint64_t word = cairn_op_rand(op);

					for (int k = 0; k < 8; k++)
						p[i + k] = code[word >> 8 * k & 255];
				}
			}
}

/* Sets all codes to integers from -most to most, and scales to `unit` times 1, 2, 4 or 8. */
static inline void fill_integers(struct cairn_op *op, const struct operand *x, int most, double unit)
{
	for (int b = 0; b < x->batch; b++)
		for (int head = 0; head < x->heads; head++)
			for (int j = 0; j < len_of(x, b); j++) {
				int block = j / ATTN_FP8_BLOCK;

				x->scale[block_at(x, b, j, head)] =
					(float)(unit * (1 << (block + b + head) % 4));
				for (int c = 0; c < x->dim; c++)
					set_code(x, b, j, head, c, (double)cairn_op_range(op, -most, most));
			}
}

/* Sets all codes to odd integers from 1 to 15. */
static inline void fill_positive(struct cairn_op *op, const struct operand *x)
{
	for (int b = 0; b < x->batch; b++)
		for (int head = 0; head < x->heads; head++)
			for (int j = 0; j < len_of(x, b); j++)
				for (int c = 0; c < x->dim; c++)
					set_code(x, b, j, head, c,
						 (double)(2 * cairn_op_range(op, 0, 7) + 1));
}

/* Sets one code of all rows of an operand, and the others to 0. */
static inline void fill_channel(const struct operand *x, int channel, double v)
{
	for (int b = 0; b < x->batch; b++)
		for (int head = 0; head < x->heads; head++)
			for (int j = 0; j < len_of(x, b); j++)
				for (int c = 0; c < x->dim; c++)
					set_code(x, b, j, head, c, c == channel ? v : 0);
}

/* Multiplies all scales by `by`. */
static inline void scale_operand(const struct operand *x, double by)
{
	for (int64_t i = 0; i < (int64_t)x->heads * x->blocks; i++)
		x->scale[i] = (float)(x->scale[i] * by);
}

#endif
