/* SPDX-License-Identifier: Apache-2.0 */
/* quant_out_mutants - defects of operations that also give their output in e4m3; applied to right results */
#ifndef CAIRN_QUANT_OUT_MUTANTS_H
#define CAIRN_QUANT_OUT_MUTANTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/abi.h"
#include "primitives/base/args.h"
#include "primitives/base/fp8.h"
#include "primitives/rows/quant_fp8w.h"

enum quant_out_bend {
	quant_out_bend_scale_of_next_row, quant_out_bend_max_unrounded, quant_out_bend_max_of_128,
	quant_out_bend_tail_missing, quant_out_bend_pieces_transposed, quant_out_bend_zeros_positive,
	quant_out_bend_alone_unrounded, quant_out_bend_alone_missing, quant_out_bend_last_warp_left_out,
};

/* Quantises row i again, with the maximum taken over `most` elements of the row or piece, times factor. */
static inline void quant_out_again(const struct cairn_quant_fp8w_args *a, int64_t i, int32_t most,
				   float factor)
{
	const int pieces = a->scale_kind == CAIRN_FP8_SCALE_PIECES;
	const int32_t wide = pieces ? CAIRN_FP8_BLOCK : a->k;

	for (int32_t j0 = 0; j0 < a->k; j0 += wide) {
		float max = 0, scale;

		for (int32_t j = j0; j < j0 + wide && j < a->k && j < j0 + most; j++)
			max = fmaxf(max, fabsf((float)cairn_load(a->w, a->dtype, i * a->k + j)));
		scale = max * factor / (float)CAIRN_FP8_MAX;
		scale = scale == 0 ? 1 : scale;
		a->scale[pieces ? (int64_t)(j0 / wide) * a->n + i : i] = scale;
		for (int32_t j = j0; j < j0 + wide && j < a->k; j++)
			a->b[i * a->k + j] = cairn_float_to_e4m3(
				(float)cairn_load(a->w, a->dtype, i * a->k + j) / scale);
	}
}

/* Stores the scale of each piece where [rows, pieces] has it. */
static inline void quant_out_transpose(const struct cairn_quant_fp8w_args *a)
{
	const int32_t pieces = (a->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	float *old = malloc((size_t)a->n * (size_t)pieces * sizeof(*old));

	if (!old)
		return;
	memcpy(old, a->scale, (size_t)a->n * (size_t)pieces * sizeof(*old));
	for (int64_t i = 0; i < a->n; i++)
		for (int32_t p = 0; p < pieces; p++)
			a->scale[i * pieces + p] = old[p * (int64_t)a->n + i];
	free(old);
}

/* Applies a defect to right results. alone: the caller has left out the output of 16 bits, now at w. */
static inline void quant_out_spoil(const struct cairn_quant_fp8w_args *a, enum quant_out_bend bend,
				   int alone)
{
	const int32_t whole = a->k / CAIRN_FP8_BLOCK * CAIRN_FP8_BLOCK;
	const float first = a->n ? a->scale[0] : 0;
	const float nearly = 1 + 0x1p-12f;	/* what rounding may have taken from the largest number */

	if (bend == quant_out_bend_pieces_transposed && a->scale_kind == CAIRN_FP8_SCALE_PIECES)
		quant_out_transpose(a);
	for (int64_t i = 0; i < a->n; i++) {
		uint8_t *row = a->b + i * a->k;

		if (bend == quant_out_bend_scale_of_next_row && a->scale_kind == CAIRN_FP8_SCALE_ROWS)
			a->scale[i] = i + 1 < a->n ? a->scale[i + 1] : first;
		if (bend == quant_out_bend_max_unrounded || (bend == quant_out_bend_alone_unrounded && alone))
			quant_out_again(a, i, a->k, nearly);
		if (bend == quant_out_bend_max_of_128)
			quant_out_again(a, i, CAIRN_FP8_BLOCK, 1);
		if (bend == quant_out_bend_last_warp_left_out && a->k > 8192)
			quant_out_again(a, i, a->k - 256, 1);
		if (bend == quant_out_bend_tail_missing)
			memset(row + whole, 0, (size_t)(a->k - whole));
		if (bend == quant_out_bend_alone_missing && alone)
			memset(row, 0, (size_t)a->k);
		for (int32_t j = 0; bend == quant_out_bend_zeros_positive && j < a->k; j++)
			row[j] = row[j] == 0x80 ? 0 : row[j];
	}
}

/*
 * Defines what computes right results, with out in memory of its own if the caller leaves it out, and applies
 * a defect.
 */
#define QUANT_OUT_WITH(family) \
	static int family##_with_q(const struct cairn_##family##_args *args, enum quant_out_bend bend) \
	{ \
		struct cairn_quant_fp8w_args quant; \
		struct cairn_##family##_args a; \
		int ret; \
		\
		if (cairn_##family##_check(args)) \
			return cairn_##family##_ref(args, NULL); \
		cairn_copy_args(&a, args, sizeof(a)); \
		if (!a.q) \
			return cairn_##family##_ref(args, NULL); \
		if (!a.out) \
			a.out = calloc((size_t)a.rows + 1, (size_t)a.dim * cairn_dtype_bytes(a.dtype)); \
		if (!a.out) \
			return cairn_error(ENOMEM, "no memory"); \
		ret = cairn_##family##_ref(&a, NULL); \
		quant = (struct cairn_quant_fp8w_args){ \
			.b = a.q, .scale = a.q_scale, .w = a.out, .n = a.rows, .k = a.dim, .dtype = a.dtype, \
			.scale_kind = a.q_kind, \
		}; \
		if (!ret) \
			quant_out_spoil(&quant, bend, !args->out); \
		if (!args->out) \
			free(a.out); \
		return ret; \
	}

/* Defines the mutants of an operation, and below their lines in its list. */
#define QUANT_OUT_MUTANT(family, defect) \
	static int family##_q_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return family##_with_q(a, quant_out_bend_##defect); \
	}
#define QUANT_OUT_MUTANTS(family) \
	QUANT_OUT_WITH(family) \
	QUANT_OUT_MUTANT(family, scale_of_next_row) QUANT_OUT_MUTANT(family, max_unrounded) \
	QUANT_OUT_MUTANT(family, max_of_128) QUANT_OUT_MUTANT(family, tail_missing) \
	QUANT_OUT_MUTANT(family, pieces_transposed) QUANT_OUT_MUTANT(family, zeros_positive) \
	QUANT_OUT_MUTANT(family, alone_unrounded) QUANT_OUT_MUTANT(family, alone_missing) \
	QUANT_OUT_MUTANT(family, last_warp_left_out)

#define QUANT_OUT_LINE(family, defect, what) \
	{ #family "_q_" #defect, offsetof(struct cairn_impl, family), (void *)family##_q_##defect, what }
#define QUANT_OUT_LINES(family) \
	QUANT_OUT_LINE(family, scale_of_next_row, "stores the scale of the next row"), \
	QUANT_OUT_LINE(family, max_unrounded, "takes the scale before rounding to dtype"), \
	QUANT_OUT_LINE(family, max_of_128, "takes the scale of a row from its first 128 elements"), \
	QUANT_OUT_LINE(family, tail_missing, "writes no codes past the last whole piece of 128"), \
	QUANT_OUT_LINE(family, pieces_transposed, "stores the scales of pieces as [rows, pieces]"), \
	QUANT_OUT_LINE(family, zeros_positive, "writes +0 for -0 in e4m3"), \
	QUANT_OUT_LINE(family, alone_unrounded, "without out takes the scale before rounding to dtype"), \
	QUANT_OUT_LINE(family, alone_missing, "gives codes of 0 without out"), \
	QUANT_OUT_LINE(family, last_warp_left_out, "leaves the last 256 of many elements out of the scale")

#endif
