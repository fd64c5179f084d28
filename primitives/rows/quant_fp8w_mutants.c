// SPDX-License-Identifier: Apache-2.0
/* quant_fp8w_mutants - wrong versions of quant_fp8w that the suite must catch */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "primitives/rows/quant_fp8w.h"

#define BENT(family, defect) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}

enum quant_fp8w_bend {
	quant_fp8w_bend_signed_max, quant_fp8w_bend_max_is_240, quant_fp8w_bend_zero_scale_is_0,
	quant_fp8w_bend_truncates, quant_fp8w_bend_ties_away, quant_fp8w_bend_subnormals_flushed,
	quant_fp8w_bend_reciprocal, quant_fp8w_bend_scale_inverted, quant_fp8w_bend_blocks_of_rows,
	quant_fp8w_bend_scales_transposed, quant_fp8w_bend_last_block_missing, quant_fp8w_bend_zeros_positive,
	quant_fp8w_bend_nan_spreads, quant_fp8w_bend_block_tail_of_f32, quant_fp8w_bend_tf32,
	quant_fp8w_bend_scale_in_bf16, quant_fp8w_bend_max_of_1e30, quant_fp8w_bend_512_block_rows,
	quant_fp8w_bend_piece_scales_of_rows, quant_fp8w_bend_pieces_of_64, quant_fp8w_bend_piece_tail,
};

static uint8_t bent_code(float x, enum quant_fp8w_bend bend)
{
	float y = x;
	uint8_t v;

	if (bend == quant_fp8w_bend_truncates || bend == quant_fp8w_bend_ties_away) {
		float lo = fabsf(cairn_e4m3_to_float(cairn_float_to_e4m3(x)));
		uint8_t up = cairn_float_to_e4m3(fabsf(x));

		v = up;
		if (lo > fabsf(x) && bend == quant_fp8w_bend_truncates && up)
			v = up - 1;
		if (bend == quant_fp8w_bend_ties_away && up < 0x7e && lo < fabsf(x) &&
		    fabsf(x) - lo == cairn_e4m3_to_float(up + 1) - fabsf(x))
			v = up + 1;
		return v | (signbit(x) ? 0x80 : 0);
	}
	if (bend == quant_fp8w_bend_subnormals_flushed && fabsf(x) < 0x1p-6f)
		y = copysignf(0, x);
	v = cairn_float_to_e4m3(y);
	return bend == quant_fp8w_bend_zeros_positive && v == 0x80 ? 0 : v;
}

static float bent_load(const struct cairn_quant_fp8w_args *a, int64_t e, enum quant_fp8w_bend bend)
{
	float f = (float)cairn_load(a->w, a->dtype, e);
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bits &= ~0x1fffu;
	if (bend == quant_fp8w_bend_tf32 && a->dtype == CAIRN_F32 && isfinite(f))
		memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Returns whether element j of a row is left out of the maximum. */
static int left_out(const struct cairn_quant_fp8w_args *a, int32_t j, enum quant_fp8w_bend bend)
{
	return bend == quant_fp8w_bend_block_tail_of_f32 && a->dtype == CAIRN_F32 && a->k > 128 &&
	       j >= a->k / 128 * 128;
}

static int bent_quant_fp8w(const struct cairn_quant_fp8w_args *a, enum quant_fp8w_bend bend)
{
	int pieces = a->scale_kind == CAIRN_FP8_SCALE_PIECES;
	int32_t high = a->scale_kind && !pieces && bend != quant_fp8w_bend_blocks_of_rows ? 128 : 1;
	int32_t wide = a->scale_kind ? 128 : a->k;
	int32_t tiles_n, tiles_k;
	int nan = 0;

	CAIRN_TRY(cairn_quant_fp8w_check(a));
	tiles_n = (a->n + high - 1) / high;
	tiles_k = (a->k + wide - 1) / wide;
	for (int32_t q = 0; q < tiles_n * tiles_k - (bend == quant_fp8w_bend_last_block_missing); q++) {
		int32_t i0 = q / tiles_k * high, j0 = q % tiles_k * wide, at = q;
		float max = 0, scale;
		int spoilt = nan;

		nan = 0;
		if (bend == quant_fp8w_bend_512_block_rows && a->scale_kind && q / tiles_k >= 512)
			continue;
		for (int32_t i = i0; i < i0 + high && i < a->n; i++)
			for (int32_t j = j0; j < j0 + wide && j < a->k; j++) {
				float x = bent_load(a, (int64_t)i * a->k + j, bend);

				nan |= isnan(x);
				if (left_out(a, j, bend) ||
				    (pieces && bend == quant_fp8w_bend_pieces_of_64 && j % 128 >= 64))
					continue;
				max = fmaxf(max, bend == quant_fp8w_bend_signed_max ? x : fabsf(x));
			}
		if (bend == quant_fp8w_bend_max_of_1e30)
			max = fminf(max, 1e30f);
		scale = max / (bend == quant_fp8w_bend_max_is_240 ? 240.0f : 448.0f);
		if (scale == 0 && bend != quant_fp8w_bend_zero_scale_is_0)
			scale = 1;
		if (bend == quant_fp8w_bend_scale_in_bf16 && a->scale_kind)
			scale = cairn_bf16_to_float(cairn_double_to_bf16((double)scale));
		if (bend == quant_fp8w_bend_nan_spreads && spoilt)
			scale *= 2;
		if (bend == quant_fp8w_bend_scales_transposed)
			at = q % tiles_k * tiles_n + q / tiles_k;
		if (bend == quant_fp8w_bend_blocks_of_rows && a->scale_kind)
			at = q / tiles_k / 128 * tiles_k + q % tiles_k;
		if (pieces && bend != quant_fp8w_bend_piece_scales_of_rows)
			at = q % tiles_k * a->n + q / tiles_k;
		a->scale[at] = bend == quant_fp8w_bend_scale_inverted ? 1 / scale : scale;
		if (pieces && bend == quant_fp8w_bend_piece_tail && a->k % 128 && q % tiles_k == tiles_k - 1)
			continue;
		for (int32_t i = i0; i < i0 + high && i < a->n; i++)
			for (int32_t j = j0; j < j0 + wide && j < a->k; j++) {
				int64_t e = (int64_t)i * a->k + j;
				float x = bent_load(a, e, bend);

				x = bend == quant_fp8w_bend_reciprocal ? x * (1 / scale) : x / scale;
				a->b[e] = bent_code(x, bend);
			}
	}
	return 0;
}

BENT(quant_fp8w, signed_max)
BENT(quant_fp8w, max_is_240)
BENT(quant_fp8w, zero_scale_is_0)
BENT(quant_fp8w, truncates)
BENT(quant_fp8w, ties_away)
BENT(quant_fp8w, subnormals_flushed)
BENT(quant_fp8w, reciprocal)
BENT(quant_fp8w, scale_inverted)
BENT(quant_fp8w, blocks_of_rows)
BENT(quant_fp8w, scales_transposed)
BENT(quant_fp8w, last_block_missing)
BENT(quant_fp8w, zeros_positive)
BENT(quant_fp8w, nan_spreads)
BENT(quant_fp8w, block_tail_of_f32)
BENT(quant_fp8w, tf32)
BENT(quant_fp8w, scale_in_bf16)
BENT(quant_fp8w, max_of_1e30)
BENT(quant_fp8w, 512_block_rows)
BENT(quant_fp8w, piece_scales_of_rows)
BENT(quant_fp8w, pieces_of_64)
BENT(quant_fp8w, piece_tail)

/* The byte offset of a row of w has only 32 bits. Computes only the rows that a far case judges. */
static int quant_fp8w_offset_32_bits(const struct cairn_quant_fp8w_args *a, void *stream)
{
	int64_t row = (int64_t)a->k * (int64_t)cairn_dtype_bytes(a->dtype), i;
	struct cairn_quant_fp8w_args one = *a;

	one.size = sizeof(one);
	if (cairn_quant_fp8w_check(a) || (a->n - 1) * row <= UINT32_MAX || a->scale_kind)
		return cairn_quant_fp8w_ref(a, stream);
	one.n = 1;
	for (int k = 0; (i = cairn_far_row(a->n, k)) >= 0; k++) {
		one.b = a->b + i * a->k;
		one.scale = a->scale + i;
		one.w = (const char *)a->w + (uint32_t)(i * row);
		CAIRN_TRY(cairn_quant_fp8w_cpu(&one, stream));
	}
	return 0;
}

/* In blocks after the second, rows past the last whole group of 8 keep 0. */
static int quant_fp8w_block_rows_by_8(const struct cairn_quant_fp8w_args *a, void *stream)
{
	int64_t tail = a->n % 8;

	CAIRN_TRY(cairn_quant_fp8w_ref(a, stream));
	if (a->scale_kind && a->n > 256 && a->n % 128 >= 8)
		memset(a->b + (a->n - tail) * a->k, 0, (size_t)(tail * a->k));
	return 0;
}

#define MUTANT(family, defect, what) \
	{ #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

#define MUTANT_OF(family, defect, what) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

/*
 * The last row is left out of the maximum of a block that n and k cut off: its scale is half of what it
 * should be.
 */
static int quant_fp8w_cut_both_ways(const struct cairn_quant_fp8w_args *a, void *stream)
{
	CAIRN_TRY(cairn_quant_fp8w_ref(a, stream));
	if (a->scale_kind == CAIRN_FP8_SCALE_BLOCKS && a->n % 128 == 127 && a->k % 128 == 112)
		a->scale[(int64_t)((a->n + 127) / 128) * ((a->k + 127) / 128) - 1] /= 2;
	return 0;
}

const struct cairn_mutant cairn_quant_fp8w_mutants[] = {
	MUTANT(quant_fp8w, signed_max, "scales by the largest value instead of the largest magnitude"),
	MUTANT(quant_fp8w, max_is_240, "takes 240 for the largest e4m3 value"),
	MUTANT(quant_fp8w, zero_scale_is_0, "stores scale 0 for rows or blocks of zeros"),
	MUTANT(quant_fp8w, truncates, "rounds towards zero"),
	MUTANT(quant_fp8w, ties_away, "rounds ties away from zero"),
	MUTANT(quant_fp8w, subnormals_flushed, "flushes values below 2^-6 to 0"),
	MUTANT(quant_fp8w, reciprocal, "multiplies by 1 / scale instead of dividing"),
	MUTANT(quant_fp8w, scale_inverted, "stores 1 / scale"),
	MUTANT(quant_fp8w, blocks_of_rows, "uses blocks of 1 x 128"),
	MUTANT(quant_fp8w, scales_transposed, "stores the scales as [k blocks, n blocks]"),
	MUTANT(quant_fp8w, last_block_missing, "does not write the last row or block"),
	MUTANT(quant_fp8w, zeros_positive, "writes +0 for -0"),
	MUTANT_OF(quant_fp8w, nan_spreads, "doubles the scale of a row or block after one with a NaN"),
	MUTANT_OF(quant_fp8w, block_tail_of_f32,
		  "with f32 leaves the columns past the last whole block out of the maximum"),
	MUTANT_OF(quant_fp8w, block_rows_by_8, "leaves out the last n % 8 rows of more than two blocks"),
	MUTANT_OF(quant_fp8w, tf32, "cuts f32 weights to TF32"),
	MUTANT_OF(quant_fp8w, scale_in_bf16, "rounds the scales of blocks to bf16"),
	MUTANT_OF(quant_fp8w, 512_block_rows, "leaves out rows of blocks from number 512 on"),
	MUTANT_OF(quant_fp8w, piece_scales_of_rows, "stores the scales of pieces as [n, k pieces]"),
	MUTANT_OF(quant_fp8w, pieces_of_64, "takes the maximum of a piece over its first 64 columns"),
	MUTANT_OF(quant_fp8w, piece_tail, "writes no codes in a piece that k cuts off"),
	MUTANT_OF(quant_fp8w, max_of_1e30, "clamps the largest magnitude to 1e30"),
	MUTANT_OF(quant_fp8w, offset_32_bits, "cuts the offset of a row to 32 bits"),
	{ "quant_fp8w_cut_both_ways", offsetof(struct cairn_impl, quant_fp8w),
	  (void *)quant_fp8w_cut_both_ways,
	  "the scale of a block of 127 x 112 is halved" },
	{ 0 }
};
