// SPDX-License-Identifier: Apache-2.0
/* gemm_fp8_mutants - wrong versions of gemm_fp8 that the suite must catch */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/fp8.h"
#include "primitives/base/nudge.h"
#include "primitives/gemm/fp8/gemm_fp8.h"

enum defect { E5M2, SUBNORMALS_FLUSHED, SIGN_LOST, A_SCALE_ROW_MAJOR, A_STRIDE_IGNORED, A_SCALE_NEXT_ROW,
	      A_SCALE_BLOCK_0, A_SCALE_IGNORED, B_SCALES_TRANSPOSED, B_SCALE_BLOCK_0, B_SCALE_OF_TILE,
	      B_SCALE_IGNORED, B_SCALE_NEXT, SCALE_LATE, SCALE_LAST, SCALES_SWAPPED, SCALE_IN_BF16,
	      SCALE_DIVIDES, SCALE_MAGNITUDE, SCALE_0_SKIPS, SCALE_0_IS_1, SCALE_CLAMPED, TENSOR_AS_ROWS,
	      NOT_PROMOTED, SUM_IN_DTYPE, SUM_IN_TF32, K_TAIL, STAGE_TWICE, NO_BIAS, BIAS_SCALED,
	      BIAS_SHIFTED, NAN_IS_0, NAN_IS_480, LAST_ROW, COLUMN_TAIL, SECOND_BATCH, CUT_OFF, SATURATES };

static double code(uint8_t v, enum defect d)
{
	if (d == E5M2)
		return cairn_f16_to_float((uint16_t)(v << 8));
	if (d == SUBNORMALS_FLUSHED && !(v & 0x78))
		return 0;
	if (d == SIGN_LOST)
		v &= 0x7f;
	if ((v & 0x7f) == 0x7f && (d == NAN_IS_0 || d == NAN_IS_480))
		return d == NAN_IS_0 ? 0 : v & 0x80 ? -480 : 480;
	return (double)cairn_e4m3_to_float(v);
}

static double scale_of_a(const struct cairn_gemm_fp8_args *g, enum defect d, int64_t i, int64_t l)
{
	int64_t blocks = (g->k + 127) / 128, stride = cairn_gemm_fp8_a_scale_stride(g), at = l / 128;

	if (d == A_SCALE_IGNORED)
		return 1;
	if (g->scale_kind != CAIRN_FP8_SCALE_BLOCKS)
		return (double)cairn_gemm_fp8_a_scale(g, d == A_SCALE_NEXT_ROW ? (i + 1) % g->m : i, l);
	if (d == A_STRIDE_IGNORED)
		stride = g->m;
	if (d == A_SCALE_BLOCK_0)
		at = 0;
	if (d == A_SCALE_ROW_MAJOR)
		return (double)g->a_scale[(i * blocks + at) % (stride * blocks)];
	if (d == A_SCALE_NEXT_ROW)
		i = (i + 1) % g->m;
	return (double)g->a_scale[at * stride + i];
}

static double scale_of_b(const struct cairn_gemm_fp8_args *g, enum defect d, int64_t j, int64_t l)
{
	int64_t blocks_k = (g->k + 127) / 128, blocks_n = (g->n + 127) / 128, jb = j / 128, lb = l / 128;

	if (d == B_SCALE_IGNORED)
		return 1;
	if (d == TENSOR_AS_ROWS && g->scale_kind == CAIRN_FP8_SCALE_TENSOR && j)
		return 0;
	if (g->scale_kind != CAIRN_FP8_SCALE_BLOCKS)
		return (double)cairn_gemm_fp8_b_scale(g, d == B_SCALE_NEXT ? (j + 1) % g->n : j, l);
	if (d == B_SCALE_BLOCK_0)
		lb = 0;
	if (d == B_SCALE_OF_TILE)	/* both batches of a tile of 256 take the first one's */
		jb = jb / 2 * 2;
	if (d == B_SCALE_NEXT)
		jb = (jb + 1) % blocks_n;
	return (double)g->b_scale[d == B_SCALES_TRANSPOSED ? lb * blocks_n + jb : jb * blocks_k + lb];
}

/* Returns the product of the scales that the defect uses for a[i,l] b[j,l]. */
static double scale_of(const struct cairn_gemm_fp8_args *g, enum defect d, int64_t i, int64_t j, int64_t l)
{
	double a, b;

	if (d == SCALE_LATE && l >= 128)	/* that of the stage before */
		l -= 128;
	if (d == SCALE_LAST)
		l = (g->k - 1) / 128 * 128;
	a = scale_of_a(g, d, i, l);
	b = scale_of_b(g, d, j, l);
	if (d == SCALES_SWAPPED && g->scale_kind == CAIRN_FP8_SCALE_ROWS) {
		a = (double)g->a_scale[j % g->m];
		b = (double)g->b_scale[i % g->n];
	}
	if (d == SCALE_IN_BF16)
		a = cairn_bf16_to_float(cairn_double_to_bf16(a));
	if (d == SCALE_CLAMPED)
		a = fmax(-0x1p100, fmin(0x1p100, a));
	if (d == SCALE_0_IS_1 && a == 0)
		a = 1;
	return d == SCALE_DIVIDES ? a / b : d == SCALE_MAGNITUDE ? fabs(a * b) : a * b;
}

/* Returns a chunk's sum as a tensor core of few bits computes it, if it adds to `before`. */
static double few_bits(double before, double chunk)
{
	int exponent;

	frexp(before, &exponent);
	return before + ldexp(trunc(ldexp(chunk, 13 - exponent)), exponent - 13);
}

static double element(const struct cairn_gemm_fp8_args *g, enum defect d, int64_t i, int64_t j)
{
	int64_t end = d == K_TAIL && g->k > 128 ? g->k / 128 * 128 : g->k;
	double sum = 0, scale = 1;

	for (int64_t l = 0; l < end; l += 128) {
		double chunk = 0;

		scale = scale_of(g, d, i, j, l);
		if (d == SCALE_0_SKIPS && scale == 0)
			continue;
		for (int64_t c = l; c < l + 128 && c < end; c++) {
			/* the ring's fifth stage still holds the first one */
			int64_t at = d == STAGE_TWICE && l == 512 ? c - 512 : c;

			chunk += code(g->a[i * g->k + at], d) * code(g->b[j * g->k + at], d);
		}
		sum = d == NOT_PROMOTED ? few_bits(sum, chunk * scale) : sum + chunk * scale;
		if (d == SUM_IN_TF32)
			sum = tf32(sum);
		if (d == SUM_IN_DTYPE)
			sum = cairn_bf16_to_float(cairn_double_to_bf16(sum));
	}
	if (g->bias && d != NO_BIAS)
		sum += cairn_load(g->bias, g->dtype, d == BIAS_SHIFTED ? (j + 1) % g->n : j) *
		       (d == BIAS_SCALED ? scale : 1);
	return sum;
}

static int bent(const struct cairn_gemm_fp8_args *g, enum defect d)
{
	int64_t end_m, end_n;

	CAIRN_TRY(cairn_gemm_fp8_check(g));
	end_m = d == LAST_ROW && g->m % 64 == 1 && g->m > 1 ? g->m - 1 : g->m;
	end_n = d == COLUMN_TAIL ? g->n / 8 * 8 : g->n;
	for (int64_t i = 0; i < end_m; i++)
		for (int64_t j = 0; j < end_n; j++) {
			/* columns 128 to 255 of a tile are those before */
			double v = element(g, d, i, d == SECOND_BATCH && j % 256 >= 128 ? j - 128 : j);

			cairn_store(g->out, g->out_dtype, i * g->n + j,
				    d == CUT_OFF ? cut_off(g->out_dtype, v) :
				    d == SATURATES ? saturated(g->out_dtype, v) : v);
		}
	return 0;
}

#define BENT(name, defect) \
static int name(const struct cairn_gemm_fp8_args *g, void *stream) { (void)stream; return bent(g, defect); }
BENT(e5m2, E5M2)
BENT(subnormals_flushed, SUBNORMALS_FLUSHED)
BENT(sign_lost, SIGN_LOST)
BENT(a_scale_row_major, A_SCALE_ROW_MAJOR)
BENT(a_stride_ignored, A_STRIDE_IGNORED)
BENT(a_scale_next_row, A_SCALE_NEXT_ROW)
BENT(a_scale_block_0, A_SCALE_BLOCK_0)
BENT(a_scale_ignored, A_SCALE_IGNORED)
BENT(b_scales_transposed, B_SCALES_TRANSPOSED)
BENT(b_scale_block_0, B_SCALE_BLOCK_0)
BENT(b_scale_of_tile, B_SCALE_OF_TILE)
BENT(b_scale_ignored, B_SCALE_IGNORED)
BENT(b_scale_next, B_SCALE_NEXT)
BENT(scale_late, SCALE_LATE)
BENT(scale_last, SCALE_LAST)
BENT(scales_swapped, SCALES_SWAPPED)
BENT(scale_in_bf16, SCALE_IN_BF16)
BENT(scale_divides, SCALE_DIVIDES)
BENT(scale_magnitude, SCALE_MAGNITUDE)
BENT(scale_0_skips, SCALE_0_SKIPS)
BENT(scale_0_is_1, SCALE_0_IS_1)
BENT(scale_clamped, SCALE_CLAMPED)
BENT(tensor_as_rows, TENSOR_AS_ROWS)
BENT(not_promoted, NOT_PROMOTED)
BENT(sum_in_dtype, SUM_IN_DTYPE)
BENT(sum_in_tf32, SUM_IN_TF32)
BENT(k_tail, K_TAIL)
BENT(stage_twice, STAGE_TWICE)
BENT(no_bias, NO_BIAS)
BENT(bias_scaled, BIAS_SCALED)
BENT(bias_shifted, BIAS_SHIFTED)
BENT(nan_is_0, NAN_IS_0)
BENT(nan_is_480, NAN_IS_480)
BENT(last_row, LAST_ROW)
BENT(column_tail, COLUMN_TAIL)
BENT(second_batch, SECOND_BATCH)
BENT(cut, CUT_OFF)
BENT(saturates, SATURATES)

static int past_the_end(const struct cairn_gemm_fp8_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8_ref(g, stream));
	cairn_store(g->out, g->out_dtype, (int64_t)g->m * g->n, 0);
	return 0;
}

static int stale(const struct cairn_gemm_fp8_args *g, void *stream)
{
	static int calls;

	CAIRN_TRY(cairn_gemm_fp8_check(g));
	return calls++ & 1 ? 0 : cairn_gemm_fp8_ref(g, stream);
}

/* The sum of column 0 of the last row is grouped in another way in some calls. */
static int regrouped(const struct cairn_gemm_fp8_args *g, void *stream, int in_this_call)
{
	CAIRN_TRY(cairn_gemm_fp8_ref(g, stream));
	if (in_this_call && g->out_dtype == CAIRN_F32)
		nudge((float *)g->out + (int64_t)(g->m - 1) * g->n, g->n);
	return 0;
}

static int split_by_sms(const struct cairn_gemm_fp8_args *g, void *stream)
{
	return regrouped(g, stream, g->sms > 90);
}

static int split_by_m(const struct cairn_gemm_fp8_args *g, void *stream)
{
	return regrouped(g, stream, g->m <= 16);
}

/* Up to 16 rows, whole chunks of k are added from the last one on. */
static int backwards(const struct cairn_gemm_fp8_args *g, void *stream)
{
	return regrouped(g, stream, g->m <= 16 && g->k > 128 && g->k % 128 == 0);
}

/* Few columns leave SMs idle, so the call splits its sums. */
static int split_by_n(const struct cairn_gemm_fp8_args *g, void *stream)
{
	return regrouped(g, stream, g->n <= 128);
}

/* Many columns take another kernel. */
static int split_above_4096(const struct cairn_gemm_fp8_args *g, void *stream)
{
	return regrouped(g, stream, g->n > 4096);
}

static int split_above_32768(const struct cairn_gemm_fp8_args *g, void *stream)
{
	return regrouped(g, stream, g->n > 32768);
}

/* The byte offset of a row of a, or of b if a has one row, has only 32 bits. */
static int offset_32_bits(const struct cairn_gemm_fp8_args *g, void *stream)
{
	int64_t rows = g->m > 1 ? g->m : g->n, out = 2 * (g->m > 1 ? g->n : 1);
	struct cairn_gemm_fp8_args one = *g;

	one.size = sizeof(one);
	if (cairn_gemm_fp8_check(g) || (rows - 1) * (int64_t)g->k <= UINT32_MAX ||
	    g->scale_kind != CAIRN_FP8_SCALE_BLOCKS)
		return cairn_gemm_fp8_ref(g, stream);
	one.a_scale_stride = cairn_gemm_fp8_a_scale_stride(g);
	one.m = 1;
	one.n = g->m > 1 ? g->n : 1;
	for (int64_t i = 0; i < rows; i++) {
		one.out = (char *)g->out + i * out;
		if (g->m > 1) {
			one.a = g->a + (uint32_t)(i * g->k);
			one.a_scale = g->a_scale + i;
		} else {
			one.b = g->b + (uint32_t)(i * g->k);
			one.b_scale = g->b_scale + i / 128 * ((g->k + 127) / 128);
		}
		CAIRN_TRY(cairn_gemm_fp8_cpu(&one, stream));
	}
	return 0;
}

#define FP8(name, fn, what) \
	{ "gemm_fp8_" name, offsetof(struct cairn_impl, gemm_fp8), (void *)fn, what }

/* A tile of 64 x 64 has one row and one column, and lacks its only element if there is a bias. */
static int gemm_fp8_corner_of_65_by_1(const struct cairn_gemm_fp8_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8_ref(a, stream));
	if (a->bias && a->m > 64 && a->m % 64 == 1 && a->n > 64 && a->n % 64 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* The last row loses a long sum if it is alone past whole tiles of 16. */
static int gemm_fp8_long_sum_of_last_row(const struct cairn_gemm_fp8_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8_ref(a, stream));
	if (a->k > 512 && a->m > 16 && a->m % 16 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)(a->m - 1) * a->n, 0);
	return 0;
}

/* Rows from 4096 on get no bias. */
static int gemm_fp8_bias_of_4096_rows(const struct cairn_gemm_fp8_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8_ref(a, stream));
	if (a->bias && a->m > 4096)
		cairn_store(a->out, a->out_dtype, 4096 * (int64_t)a->n,
			    cairn_load(a->out, a->out_dtype, 4096 * (int64_t)a->n) -
			    cairn_load(a->bias, a->dtype, 0));
	return 0;
}

const struct cairn_mutant cairn_gemm_fp8_mutants[] = {
	FP8("e5m2", e5m2, "reads the codes as e5m2"),
	FP8("subnormals_flushed", subnormals_flushed, "reads subnormal codes as 0"),
	FP8("sign_lost", sign_lost, "ignores the signs of the codes"),
	FP8("a_scale_row_major", a_scale_row_major, "reads the scales of pieces as [m, k blocks]"),
	FP8("a_stride_ignored", a_stride_ignored, "ignores a_scale_stride"),
	FP8("a_scale_next_row", a_scale_next_row, "uses the next row's scale of a"),
	FP8("a_scale_block_0", a_scale_block_0, "uses a row's first scale of a for the whole row"),
	FP8("a_scale_ignored", a_scale_ignored, "does not scale a"),
	FP8("b_scales_transposed", b_scales_transposed, "reads the scales of b as [k blocks, n blocks]"),
	FP8("b_scale_block_0", b_scale_block_0, "uses a row's first scale of b for the whole row"),
	FP8("b_scale_of_tile", b_scale_of_tile, "uses one scale of b for 256 rows of b"),
	FP8("b_scale_ignored", b_scale_ignored, "does not scale b"),
	FP8("b_scale_next", b_scale_next, "uses the next row's or block's scale of b"),
	FP8("scale_late", scale_late, "uses the scales of the stage before"),
	FP8("scale_last", scale_last, "uses the scales of the last stage for all"),
	FP8("scales_swapped", scales_swapped, "with scales of rows, swaps those of a and b"),
	FP8("scale_in_bf16", scale_in_bf16, "rounds the scales of a to bf16"),
	FP8("scale_divides", scale_divides, "divides by the scale of b"),
	FP8("scale_magnitude", scale_magnitude, "ignores the signs of scales"),
	FP8("scale_0_skips", scale_0_skips, "skips a chunk with a scale of 0, and a NaN in it"),
	FP8("scale_0_is_1", scale_0_is_1, "takes a scale of 0 for 1"),
	FP8("scale_clamped", scale_clamped, "clamps the scales of a to 2^100"),
	FP8("tensor_as_rows", tensor_as_rows, "with one scale for b, scales row 0 only"),
	FP8("not_promoted", not_promoted, "adds all chunks with 14 bits"),
	FP8("sum_in_dtype", sum_in_dtype, "rounds the sum to bf16 after each chunk"),
	FP8("sum_in_tf32", sum_in_tf32, "cuts the sum to TF32 after each chunk"),
	FP8("k_tail", k_tail, "k is cut to a multiple of 128"),
	FP8("stage_twice", stage_twice, "the fifth stage of the ring is read before it has arrived"),
	FP8("no_bias", no_bias, "bias is not added"),
	FP8("bias_scaled", bias_scaled, "scales the bias as well"),
	FP8("bias_shifted", bias_shifted, "bias comes from the next column"),
	FP8("nan_is_0", nan_is_0, "a NaN code counts as 0"),
	FP8("nan_is_480", nan_is_480, "a NaN code counts as 480"),
	FP8("last_row", last_row, "a single row past a multiple of 64 is not written"),
	FP8("column_tail", column_tail, "the columns past a multiple of 8 are not written"),
	FP8("second_batch", second_batch, "columns 128 to 255 of a tile are those before"),
	FP8("cut_off", cut, "results are cut off instead of rounded"),
	FP8("saturates", saturates, "finite results stand where f16 or bf16 overflows"),
	FP8("past_the_end", past_the_end, "one element is written past the end of out"),
	FP8("stale_output", stale, "every second call writes nothing"),
	FP8("split_by_sms", split_by_sms, "with more than 90 SMs, sums are split"),
	FP8("split_by_m", split_by_m, "up to 16 rows, sums are split"),
	FP8("backwards", backwards, "up to 16 rows, whole chunks are added in another order"),
	FP8("split_by_n", split_by_n, "up to 128 columns, sums are split"),
	FP8("split_above_4096", split_above_4096, "above 4096 columns, sums are split"),
	FP8("split_above_32768", split_above_32768, "above 32768 columns, sums are split"),
	FP8("offset_32_bits", offset_32_bits, "cuts the offset of a row of a or b to 32 bits"),
	{ "gemm_fp8_corner_of_65_by_1", offsetof(struct cairn_impl, gemm_fp8),
	  (void *)gemm_fp8_corner_of_65_by_1,
	  "with a bias, and one row and column past whole tiles, the last element is 0" },
	{ "gemm_fp8_bias_of_4096_rows", offsetof(struct cairn_impl, gemm_fp8),
	  (void *)gemm_fp8_bias_of_4096_rows, "row 4096 gets no bias" },
	{ "gemm_fp8_long_sum_of_last_row", offsetof(struct cairn_impl, gemm_fp8),
	  (void *)gemm_fp8_long_sum_of_last_row,
	  "sums longer than 512 are lost in a single row past whole tiles" },
	{ 0 }
};
