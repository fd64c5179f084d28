// SPDX-License-Identifier: Apache-2.0
/* gemm_fp8w_mutants - wrong versions of gemm_fp8w that the suite must catch */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/fp8w/gemm_fp8w.h"

#define BENT(family, defect) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}

enum gemm_fp8w_bend {
	gemm_fp8w_bend_e5m2, gemm_fp8w_bend_subnormals_flushed, gemm_fp8w_bend_scale_of_next_row,
	gemm_fp8w_bend_scale_of_column_block_0, gemm_fp8w_bend_scales_transposed,
	gemm_fp8w_bend_scale_of_last_block, gemm_fp8w_bend_scale_divides, gemm_fp8w_bend_bias_scaled,
	gemm_fp8w_bend_k_tail, gemm_fp8w_bend_weight_in_bf16, gemm_fp8w_bend_sum_in_dtype,
	gemm_fp8w_bend_sign_lost, gemm_fp8w_bend_block_of_64, gemm_fp8w_bend_twice_rounded,
	gemm_fp8w_bend_scale_in_bf16, gemm_fp8w_bend_scale_in_tf32, gemm_fp8w_bend_sum_in_tf32,
	gemm_fp8w_bend_bias_lost_with_blocks, gemm_fp8w_bend_last_block_of_f32, gemm_fp8w_bend_nan_is_0,
	gemm_fp8w_bend_tiny_scale_is_0, gemm_fp8w_bend_scale_clamped, gemm_fp8w_bend_scale_0_is_1,
	gemm_fp8w_bend_scale_0_skips, gemm_fp8w_bend_scaled_codes, gemm_fp8w_bend_scaled_a,
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
	if (bend == gemm_fp8w_bend_last_block_of_f32 && g->out_dtype == CAIRN_F32 && g->k % 128 && lb)
		lb -= lb == blocks_k - 1;
	if (bend == gemm_fp8w_bend_scale_of_last_block)
		lb = blocks_k - 1;
	if (bend == gemm_fp8w_bend_block_of_64)
		lb = l / 64 % blocks_k;
	return (double)g->b_scale[bend == gemm_fp8w_bend_scales_transposed ? lb * blocks_n + jb :
				  jb * blocks_k + lb];
}

/* Returns the scale that the defect uses. */
static double bent_value(double s, enum gemm_fp8w_bend bend)
{
	if (bend == gemm_fp8w_bend_scale_divides)
		return 1 / s;
	if (bend == gemm_fp8w_bend_scale_in_bf16)
		return cairn_bf16_to_float(cairn_double_to_bf16(s));
	return bend == gemm_fp8w_bend_scale_in_tf32 ? tf32(s) : s;
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

			s = bent_value(bent_scale(g, j, l, bend), bend);
			if (bend == gemm_fp8w_bend_tiny_scale_is_0 && fabs(s) < 1e-6)
				s = 0;
			if (bend == gemm_fp8w_bend_scale_clamped)
				s = fmax(-4096, fmin(4096, s));
			if (bend == gemm_fp8w_bend_scale_0_is_1 && s == 0)
				s = 1;
			if (bend == gemm_fp8w_bend_scale_0_skips && s == 0)
				continue;
			if (bend == gemm_fp8w_bend_scaled_a)
				x = (double)(float)(x * s);
			else
				w *= s;
			if (bend == gemm_fp8w_bend_scaled_codes)
				w = (double)(float)w;
			if (bend == gemm_fp8w_bend_weight_in_bf16)
				w = cairn_bf16_to_float(cairn_double_to_bf16(w));
			if (bend != gemm_fp8w_bend_nan_is_0 || !isnan(x))
				sum += x * w;
			if (bend == gemm_fp8w_bend_sum_in_tf32)
				sum = tf32(sum);
			if (bend == gemm_fp8w_bend_sum_in_dtype && l % 128 == 127)
				sum = cairn_bf16_to_float(cairn_double_to_bf16(sum));
		}
		if (bend == gemm_fp8w_bend_twice_rounded)
			sum = cairn_bf16_to_float(cairn_double_to_bf16(sum));
		if (g->bias && !(bend == gemm_fp8w_bend_bias_lost_with_blocks && g->scale_kind))
			sum += cairn_load(g->bias, g->dtype, j) *
			       (bend == gemm_fp8w_bend_bias_scaled ? s : 1);
		cairn_store(g->out, g->out_dtype, e, sum);
	}
	return 0;
}

BENT(gemm_fp8w, tiny_scale_is_0)
BENT(gemm_fp8w, scale_clamped)
BENT(gemm_fp8w, scale_0_is_1)
BENT(gemm_fp8w, scale_0_skips)
BENT(gemm_fp8w, scaled_codes)
BENT(gemm_fp8w, scaled_a)
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
BENT(gemm_fp8w, scale_in_bf16)
BENT(gemm_fp8w, scale_in_tf32)
BENT(gemm_fp8w, sum_in_tf32)
BENT(gemm_fp8w, bias_lost_with_blocks)
BENT(gemm_fp8w, last_block_of_f32)
BENT(gemm_fp8w, nan_is_0)

#define MUTANT(family, defect, what) \
	{ #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

#define MUTANT_OF(family, defect, what) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

static int gemm_fp8w_scale_magnitude(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	struct cairn_gemm_fp8w_args other = *g;
	int64_t count;
	float *scale;
	int ret;

	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	other.size = sizeof(other);
	count = g->scale_kind ? ((g->n + 127) / 128) * (int64_t)((g->k + 127) / 128) : g->n;
	scale = malloc((size_t)count * sizeof(*scale));
	if (!scale)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < count; i++)
		scale[i] = fabsf(g->b_scale[i]);
	other.b_scale = scale;
	ret = cairn_gemm_fp8w_ref(&other, stream);
	free(scale);
	return ret;
}

/* The offset of a row of b has only 31 bits. */
static int gemm_fp8w_offset_31_bits(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	struct cairn_gemm_fp8w_args one = *g;

	one.size = sizeof(one);
	if (cairn_gemm_fp8w_check(g) || g->m > 1 || (g->n - 1) * (int64_t)g->k <= INT32_MAX)
		return cairn_gemm_fp8w_ref(g, stream);
	one.n = 1;
	for (int64_t i = 0; i < g->n; i++) {
		one.out = (char *)g->out + i * (int64_t)cairn_dtype_bytes(g->out_dtype);
		one.b = g->b + (i * g->k & INT32_MAX);
		one.b_scale = g->b_scale + i;
		CAIRN_TRY(cairn_gemm_fp8w_cpu(&one, stream));
	}
	return 0;
}

/* A tile of 16 x 64 has one row and 63 columns, and lacks its last element. */
static int gemm_fp8w_corner_of_1_by_63(const struct cairn_gemm_fp8w_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8w_ref(a, stream));
	if (a->m > 16 && a->m % 16 == 1 && a->n % 64 == 63)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* The last row loses a long sum if it is alone past whole tiles of 16. */
static int gemm_fp8w_long_sum_of_last_row(const struct cairn_gemm_fp8w_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8w_ref(a, stream));
	if (a->k > 512 && a->m > 16 && a->m % 16 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)(a->m - 1) * a->n, 0);
	return 0;
}

const struct cairn_mutant cairn_gemm_fp8w_mutants[] = {
	MUTANT(gemm_fp8w, e5m2, "reads the codes as e5m2"),
	MUTANT(gemm_fp8w, subnormals_flushed, "reads subnormal codes as 0"),
	MUTANT(gemm_fp8w, scale_of_next_row, "uses the scale of the next row"),
	MUTANT(gemm_fp8w, scale_of_column_block_0, "uses the scale of a row's first block for the whole row"),
	MUTANT(gemm_fp8w, scales_transposed, "reads the scales as [k blocks, n blocks]"),
	MUTANT(gemm_fp8w, scale_of_last_block, "uses the scale of a row's last block for the whole row"),
	MUTANT(gemm_fp8w, scale_divides, "divides by the scale"),
	MUTANT(gemm_fp8w, bias_scaled, "scales the bias as well"),
	MUTANT(gemm_fp8w, k_tail, "leaves out the last k modulo 64 elements"),
	MUTANT(gemm_fp8w, weight_in_bf16, "rounds scaled weights to bf16 for every m"),
	MUTANT(gemm_fp8w, sum_in_dtype, "rounds the sum to bf16 after each block"),
	MUTANT(gemm_fp8w, sign_lost, "ignores the signs of the weights"),
	MUTANT(gemm_fp8w, block_of_64, "uses blocks of 64 along k"),
	MUTANT(gemm_fp8w, twice_rounded, "rounds to bf16 before the bias is added"),
	MUTANT_OF(gemm_fp8w, scale_in_bf16, "rounds the scales to bf16"),
	MUTANT_OF(gemm_fp8w, scale_in_tf32, "cuts the scales to TF32"),
	MUTANT_OF(gemm_fp8w, sum_in_tf32, "cuts the sum to TF32 after each product"),
	MUTANT_OF(gemm_fp8w, bias_lost_with_blocks, "adds no bias with scales of blocks"),
	MUTANT_OF(gemm_fp8w, last_block_of_f32,
		  "with output in f32 a part of a block uses the scale of the block before"),
	MUTANT_OF(gemm_fp8w, nan_is_0, "skips a NaN of a"),
	MUTANT(gemm_fp8w, scale_magnitude, "ignores the signs of the scales"),
	MUTANT_OF(gemm_fp8w, tiny_scale_is_0, "takes a scale below 1e-6 for 0"),
	MUTANT_OF(gemm_fp8w, scale_clamped, "clamps scales to -4096..4096"),
	MUTANT_OF(gemm_fp8w, scale_0_is_1, "takes a scale of 0 for 1"),
	MUTANT_OF(gemm_fp8w, scale_0_skips, "skips a block with a scale of 0, and a NaN of a in it"),
	MUTANT_OF(gemm_fp8w, scaled_codes, "multiplies codes by their scales in fp32, before the sum"),
	MUTANT_OF(gemm_fp8w, scaled_a, "multiplies a by the scales in fp32, before the sum"),
	MUTANT_OF(gemm_fp8w, offset_31_bits, "cuts the offset of a row of b to 31 bits"),
	{ "gemm_fp8w_corner_of_1_by_63", offsetof(struct cairn_impl, gemm_fp8w),
	  (void *)gemm_fp8w_corner_of_1_by_63,
	  "with one row and 63 columns past whole tiles, the last element is 0" },
	{ "gemm_fp8w_long_sum_of_last_row", offsetof(struct cairn_impl, gemm_fp8w),
	  (void *)gemm_fp8w_long_sum_of_last_row,
	  "sums longer than 512 are lost in a single row past whole tiles" },
	{ 0 }
};
