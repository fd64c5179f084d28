// SPDX-License-Identifier: Apache-2.0
/* mutants_fp8 - wrong versions of quant_fp8w and gemm_fp8w */
#include "primitives/base/fp8.h"
#include "conformance/harness.h"

#define BENT(family, defect) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}

/* ---- quant_fp8w ---- */

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

/* ---- gemm_fp8w ---- */

enum gemm_fp8w_bend {
	gemm_fp8w_bend_e5m2, gemm_fp8w_bend_subnormals_flushed, gemm_fp8w_bend_scale_of_next_row,
	gemm_fp8w_bend_scale_of_column_block_0, gemm_fp8w_bend_scales_transposed,
	gemm_fp8w_bend_scale_of_last_block, gemm_fp8w_bend_scale_divides, gemm_fp8w_bend_bias_scaled,
	gemm_fp8w_bend_k_tail, gemm_fp8w_bend_weight_in_bf16, gemm_fp8w_bend_sum_in_dtype,
	gemm_fp8w_bend_sign_lost, gemm_fp8w_bend_block_of_64, gemm_fp8w_bend_twice_rounded,
};

static double bent_weight(uint8_t v, enum gemm_fp8w_bend bend)
{
	if (bend == gemm_fp8w_bend_e5m2)
		return cairn_f16_to_float((uint16_t)(v << 8));
	if (bend == gemm_fp8w_bend_subnormals_flushed && !(v & 0x78))
		return 0;
	if (bend == gemm_fp8w_bend_sign_lost)
		v &= 0x7f;
	return (double)cairn_e4m3_to_float(v);
}

static double bent_scale(const struct cairn_gemm_fp8w_args *g, int64_t j, int64_t l, enum gemm_fp8w_bend bend)
{
	int64_t blocks_k = (g->k + 127) / 128, blocks_n = (g->n + 127) / 128, jb = j / 128, lb = l / 128;

	if (!g->scale_kind)
		return (double)g->b_scale[bend == gemm_fp8w_bend_scale_of_next_row ? (j + 1) % g->n : j];
	if (bend == gemm_fp8w_bend_scale_of_column_block_0)
		lb = 0;
	if (bend == gemm_fp8w_bend_scale_of_last_block)
		lb = blocks_k - 1;
	if (bend == gemm_fp8w_bend_block_of_64)
		lb = l / 64 % blocks_k;
	return (double)g->b_scale[bend == gemm_fp8w_bend_scales_transposed ? lb * blocks_n + jb :
				  jb * blocks_k + lb];
}

static int bent_gemm_fp8w(const struct cairn_gemm_fp8w_args *g, enum gemm_fp8w_bend bend)
{
	int64_t k = g->k;

	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	if (bend == gemm_fp8w_bend_k_tail && k > 64)
		k = k / 64 * 64;
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++) {
		int64_t i = e / g->n, j = e % g->n;
		double sum = 0, s = 1;

		for (int64_t l = 0; l < k; l++) {
			double x = cairn_load(g->a, g->dtype, i * g->k + l);
			double w = bent_weight(g->b[j * g->k + l], bend);

			s = bent_scale(g, j, l, bend);
			if (bend == gemm_fp8w_bend_scale_divides)
				s = 1 / s;
			w *= s;
			if (bend == gemm_fp8w_bend_weight_in_bf16)
				w = cairn_bf16_to_float(cairn_double_to_bf16(w));
			sum += x * w;
			if (bend == gemm_fp8w_bend_sum_in_dtype && l % 128 == 127)
				sum = cairn_bf16_to_float(cairn_double_to_bf16(sum));
		}
		if (bend == gemm_fp8w_bend_twice_rounded)
			sum = cairn_bf16_to_float(cairn_double_to_bf16(sum));
		if (g->bias)
			sum += cairn_load(g->bias, g->dtype, j) *
			       (bend == gemm_fp8w_bend_bias_scaled ? s : 1);
		cairn_store(g->out, g->out_dtype, e, sum);
	}
	return 0;
}

BENT(gemm_fp8w, e5m2)
BENT(gemm_fp8w, subnormals_flushed)
BENT(gemm_fp8w, scale_of_next_row)
BENT(gemm_fp8w, scale_of_column_block_0)
BENT(gemm_fp8w, scales_transposed)
BENT(gemm_fp8w, scale_of_last_block)
BENT(gemm_fp8w, scale_divides)
BENT(gemm_fp8w, bias_scaled)
BENT(gemm_fp8w, k_tail)
BENT(gemm_fp8w, weight_in_bf16)
BENT(gemm_fp8w, sum_in_dtype)
BENT(gemm_fp8w, sign_lost)
BENT(gemm_fp8w, block_of_64)
BENT(gemm_fp8w, twice_rounded)

#define MUTANT(family, defect, what) \
	{ #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

const struct cairn_mutant cairn_fp8_mutants[] = {
	MUTANT(quant_fp8w, signed_max, "the largest value instead of the largest magnitude"),
	MUTANT(quant_fp8w, max_is_240, "240 as the largest e4m3 value"),
	MUTANT(quant_fp8w, zero_scale_is_0, "zeros have scale 0"),
	MUTANT(quant_fp8w, truncates, "rounds towards zero"),
	MUTANT(quant_fp8w, ties_away, "ties away from zero"),
	MUTANT(quant_fp8w, subnormals_flushed, "below 2^-6 everything is 0"),
	MUTANT(quant_fp8w, reciprocal, "times 1 / scale"),
	MUTANT(quant_fp8w, scale_inverted, "stores 1 / scale"),
	MUTANT(quant_fp8w, blocks_of_rows, "blocks of 1 x 128"),
	MUTANT(quant_fp8w, scales_transposed, "scales as [k blocks, n blocks]"),
	MUTANT(quant_fp8w, last_block_missing, "the last row or block is not written"),
	MUTANT(quant_fp8w, zeros_positive, "-0 becomes +0"),
	MUTANT(gemm_fp8w, e5m2, "reads the codes as e5m2"),
	MUTANT(gemm_fp8w, subnormals_flushed, "subnormal codes are 0"),
	MUTANT(gemm_fp8w, scale_of_next_row, "the scale of the next row"),
	MUTANT(gemm_fp8w, scale_of_column_block_0, "the scale of a row's first block for all of it"),
	MUTANT(gemm_fp8w, scales_transposed, "scales as [k blocks, n blocks]"),
	MUTANT(gemm_fp8w, scale_of_last_block, "the scale of a row's last block for all of it"),
	MUTANT(gemm_fp8w, scale_divides, "divides by the scale"),
	MUTANT(gemm_fp8w, bias_scaled, "scales the bias, too"),
	MUTANT(gemm_fp8w, k_tail, "k modulo 64 is left out"),
	MUTANT(gemm_fp8w, weight_in_bf16, "rounds scaled weights to bf16 at every m"),
	MUTANT(gemm_fp8w, sum_in_dtype, "the sum goes through bf16 at each block"),
	MUTANT(gemm_fp8w, sign_lost, "magnitudes of the weights"),
	MUTANT(gemm_fp8w, block_of_64, "blocks of 64 along k"),
	MUTANT(gemm_fp8w, twice_rounded, "rounds before the bias"),
	{ 0 }
};
