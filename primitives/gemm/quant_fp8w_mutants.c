// SPDX-License-Identifier: Apache-2.0
/* quant_fp8w_mutants - wrong versions of quant_fp8w that the suite must catch */
#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/quant_fp8w.h"

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

static int bent_quant_fp8w(const struct cairn_quant_fp8w_args *a, enum quant_fp8w_bend bend)
{
	int32_t high = a->scale_kind && bend != quant_fp8w_bend_blocks_of_rows ? 128 : 1;
	int32_t wide = a->scale_kind ? 128 : a->k;
	int32_t tiles_n, tiles_k;

	CAIRN_TRY(cairn_quant_fp8w_check(a));
	tiles_n = (a->n + high - 1) / high;
	tiles_k = (a->k + wide - 1) / wide;
	for (int32_t q = 0; q < tiles_n * tiles_k - (bend == quant_fp8w_bend_last_block_missing); q++) {
		int32_t i0 = q / tiles_k * high, j0 = q % tiles_k * wide, at = q;
		float max = 0, scale;

		for (int32_t i = i0; i < i0 + high && i < a->n; i++)
			for (int32_t j = j0; j < j0 + wide && j < a->k; j++) {
				float x = (float)cairn_load(a->w, a->dtype, (int64_t)i * a->k + j);

				max = fmaxf(max, bend == quant_fp8w_bend_signed_max ? x : fabsf(x));
			}
		scale = max / (bend == quant_fp8w_bend_max_is_240 ? 240.0f : 448.0f);
		if (scale == 0 && bend != quant_fp8w_bend_zero_scale_is_0)
			scale = 1;
		if (bend == quant_fp8w_bend_scales_transposed)
			at = q % tiles_k * tiles_n + q / tiles_k;
		if (bend == quant_fp8w_bend_blocks_of_rows && a->scale_kind)
			at = q / tiles_k / 128 * tiles_k + q % tiles_k;
		a->scale[at] = bend == quant_fp8w_bend_scale_inverted ? 1 / scale : scale;
		for (int32_t i = i0; i < i0 + high && i < a->n; i++)
			for (int32_t j = j0; j < j0 + wide && j < a->k; j++) {
				int64_t e = (int64_t)i * a->k + j;
				float x = (float)cairn_load(a->w, a->dtype, e);

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

#define MUTANT(family, defect, what) \
	{ #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

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
	{ 0 }
};
