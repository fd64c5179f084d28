// SPDX-License-Identifier: Apache-2.0
/* gemm_mutants - wrong versions of gemm that the suite must catch */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/cut_off.h"
#include "primitives/gemm/gemm.h"
#include "primitives/base/nudge.h"

enum defect { TRANSPOSED, NO_BIAS, SHIFTED_BIAS, K_TAIL, BF16_SUMS, ROWS_LESS_1, TWICE_ROUNDED, TF32,
	      COLUMN_TAIL, CUT_OFF, TF32_SUMS, F16_SUMS, PRODUCTS_IN_DTYPE, TF32_B, K_TAIL_WITH_BIAS,
	      BIAS_OF_8_ROWS, BIAS_TO_F32_IN_BF16, TAIL_OF_LIMITED, NAN_IS_0, VECTORS_IN_F16,
	      PARTS_IN_DTYPE };

static double through_bf16(double x)
{
	return cairn_bf16_to_float(cairn_double_to_bf16(x));
}

static double through(int dtype, double x)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, x);
	return cairn_load(&box, dtype, 0);
}

/* The sum after the product of a and b, both at column l, has been added. */
static double added(const struct cairn_gemm_args *g, enum defect d, double sum, double a, double b, int64_t l)
{
	if (d == NAN_IS_0 && (isnan(a) || isnan(b)))
		return sum;
	if (d == TF32 && g->dtype == CAIRN_F32)
		return sum + tf32(a) * tf32(b);
	if (d == TF32_B && g->dtype == CAIRN_F32)
		return sum + a * tf32(b);
	if (d == BF16_SUMS)
		return through_bf16(sum + a * b);
	if (d == F16_SUMS && g->dtype == CAIRN_F16)
		return through(CAIRN_F16, sum + a * b);
	if (d == TF32_SUMS)
		return tf32(sum + a * b);
	if (d == PRODUCTS_IN_DTYPE)
		return sum + through(g->dtype, a * b);
	sum += a * b;
	/* four parts of a long k are kept in out_dtype before they are added */
	if (d == PARTS_IN_DTYPE && g->k >= 8192 && g->m <= 8 && l % (g->k / 4) == 0)
		return through(g->out_dtype, sum);
	/* a vector of 8 is summed in f16, as by half2 instructions, before it is widened */
	return d == VECTORS_IN_F16 && g->dtype == CAIRN_F16 && l % 8 == 7 ? through(CAIRN_F16, sum) : sum;
}

static double bias_of(const struct cairn_gemm_args *g, enum defect d, int64_t i, int64_t j)
{
	double bias = cairn_load(g->bias, g->dtype, d == SHIFTED_BIAS ? (j + 1) % g->n : j);

	if (d == NO_BIAS || (d == BIAS_OF_8_ROWS && i >= 8))
		return 0;
	return d == BIAS_TO_F32_IN_BF16 && g->out_dtype == CAIRN_F32 ? through_bf16(bias) : bias;
}

static int bent_gemm(const struct cairn_gemm_args *g, enum defect d)
{
	int64_t m = g->m, n = g->n, k = g->k;
	int64_t end_k = d == K_TAIL && k > 64 ? k / 64 * 64 : k,
		end_m = d == ROWS_LESS_1 && m > 1 ? m - 1 : m;
	int64_t end_n = (d == COLUMN_TAIL || (d == TAIL_OF_LIMITED && g->sms && g->bias)) && n > 8 ?
			n / 8 * 8 : n;

	CAIRN_TRY(cairn_gemm_check(g));
	if (d == K_TAIL_WITH_BIAS && g->bias && k > 16)
		end_k = k / 16 * 16;
	for (int64_t i = 0; i < end_m; i++)
		for (int64_t j = 0; j < end_n; j++) {
			double sum = 0;

			for (int64_t l = 0; l < end_k; l++) {
				double a = cairn_load(g->a, g->dtype, i * k + l);
				double b = cairn_load(g->b, g->dtype,
						      d == TRANSPOSED ? l * n + j : j * k + l);

				sum = added(g, d, sum, a, b, l);
			}
			if (g->bias)
				sum += bias_of(g, d, i, j);
			cairn_store(g->out, g->out_dtype, i * n + j,
				    d == TWICE_ROUNDED ? through_bf16(sum) :
				    d == CUT_OFF ? cut_off(g->out_dtype, sum) : sum);
		}
	return 0;
}

#define BENT(name, defect) \
static int name(const struct cairn_gemm_args *g, void *stream) { (void)stream; return bent_gemm(g, defect); }
BENT(transposed, TRANSPOSED)
BENT(no_bias, NO_BIAS)
BENT(shifted_bias, SHIFTED_BIAS)
BENT(k_tail, K_TAIL)
BENT(bf16_sums, BF16_SUMS)
BENT(rows_less_1, ROWS_LESS_1)
BENT(twice_rounded, TWICE_ROUNDED)
BENT(tf32_inputs, TF32)
BENT(column_tail, COLUMN_TAIL)
BENT(parts_in_dtype, PARTS_IN_DTYPE)
BENT(cut, CUT_OFF)
BENT(tf32_sums, TF32_SUMS)
BENT(f16_sums, F16_SUMS)
BENT(products_in_dtype, PRODUCTS_IN_DTYPE)
BENT(tf32_b, TF32_B)
BENT(k_tail_with_bias, K_TAIL_WITH_BIAS)
BENT(bias_of_8_rows, BIAS_OF_8_ROWS)
BENT(bias_in_bf16, BIAS_TO_F32_IN_BF16)
BENT(tail_of_limited, TAIL_OF_LIMITED)
BENT(nan_is_0, NAN_IS_0)
BENT(vectors_in_f16, VECTORS_IN_F16)

static int past_the_end(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(g, stream));
	cairn_store(g->out, g->out_dtype, (int64_t)g->m * g->n, 0);
	return 0;
}

/* Every second call writes nothing, so that the previous call's output remains. */
static int stale_output(const struct cairn_gemm_args *g, void *stream)
{
	static int calls;

	return calls++ & 1 ? 0 : cairn_gemm_ref(g, stream);
}

static int nan_for_zero(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(g, stream));
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++)
		if (cairn_load(g->out, g->out_dtype, e) == 0)
			cairn_store(g->out, g->out_dtype, e, NAN);
	return 0;
}

#define GEMM(name, fn, what)	{ "gemm_" name, offsetof(struct cairn_impl, gemm), (void *)fn, what }

static int fewer_sms(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(g, stream));
	if (g->sms && g->m <= 4 && g->out_dtype == CAIRN_F32)
		nudge(g->out, g->n);
	return 0;
}

/* Calls the reference with a copy of b that `change` has changed. */
static int with_other_b(const struct cairn_gemm_args *g, void *stream,
			void (*change)(const struct cairn_gemm_args *g, void *b))
{
	struct cairn_gemm_args other = *g;
	size_t bytes;
	void *b;
	int ret;

	CAIRN_TRY(cairn_gemm_check(g));
	other.size = sizeof(other);
	bytes = (size_t)g->n * (size_t)g->k * cairn_dtype_bytes(g->dtype);
	b = aligned_alloc(16, bytes);
	if (!b)
		return cairn_error(ENOMEM, "no memory");
	memcpy(b, g->b, bytes);
	change(g, b);
	other.b = b;
	ret = cairn_gemm_ref(&other, stream);
	free(b);
	return ret;
}

/* Represents an fp32 number by two numbers of the tensor core. */
static void in_19_bits(const struct cairn_gemm_args *g, void *b)
{
	for (int64_t i = 0; g->dtype == CAIRN_F32 && i < (int64_t)g->n * g->k; i++) {
		double x = cairn_load(b, CAIRN_F32, i), high = tf32(x);

		cairn_store(b, CAIRN_F32, i, high + through_bf16(x - high));
	}
}

static void no_infinity_of_zeros(const struct cairn_gemm_args *g, void *b)
{
	for (int64_t e = 0; e < (int64_t)g->n * g->k; e++) {
		int zeros = isinf(cairn_load(b, g->dtype, e));

		for (int64_t i = 0; zeros && i < g->m; i++)
			zeros = cairn_load(g->a, g->dtype, i * g->k + e % g->k) == 0;
		if (zeros)
			cairn_store(b, g->dtype, e, 0);
	}
}

static int gemm_b_in_19_bits(const struct cairn_gemm_args *g, void *stream)
{
	return with_other_b(g, stream, in_19_bits);
}

/* Cuts the factors of large products of f32 to TF32. */
static int gemm_tf32_if_large(const struct cairn_gemm_args *g, void *stream)
{
	struct cairn_gemm_args other = *g;
	int64_t m = g->m, n = g->n, k = g->k;
	float *factors, *b;
	int ret;

	if (cairn_gemm_check(g) || g->dtype != CAIRN_F32 || m < 256 || n < 1024 || k < 1024)
		return cairn_gemm_ref(g, stream);
	factors = aligned_alloc(64, (size_t)((m + n) * k + 64) * sizeof(*factors) / 64 * 64);
	if (!factors)
		return cairn_error(ENOMEM, "no memory");
	b = factors + (m * k + 15) / 16 * 16;
	for (int64_t i = 0; i < m * k; i++)
		factors[i] = tf32((double)((const float *)g->a)[i]);
	for (int64_t i = 0; i < n * k; i++)
		b[i] = tf32((double)((const float *)g->b)[i]);
	other.size = sizeof(other);
	other.a = factors;
	other.b = b;
	ret = cairn_gemm_cpu(&other, stream);
	free(factors);
	return ret;
}

static int gemm_zeros_skipped(const struct cairn_gemm_args *g, void *stream)
{
	return with_other_b(g, stream, no_infinity_of_zeros);
}

static int gemm_last_of_odd_sms(const struct cairn_gemm_args *g, void *stream)
{
	int64_t last = (int64_t)g->m * g->n - 1;

	CAIRN_TRY(cairn_gemm_ref(g, stream));
	if (g->sms > 1 && g->sms % 2)
		cairn_store(g->out, g->out_dtype, last, 2 * cairn_load(g->out, g->out_dtype, last) + 1);
	return 0;
}

/*
 * The byte offset of a row of a, or of b if a has one row, has only 32 bits. Computes only the rows that a
 * far case judges.
 */
static int gemm_offset_32_bits(const struct cairn_gemm_args *g, void *stream)
{
	int64_t row = (int64_t)g->k * (int64_t)cairn_dtype_bytes(g->dtype), rows = g->m > 1 ? g->m : g->n;
	int64_t out = (int64_t)cairn_dtype_bytes(g->out_dtype) * (g->m > 1 ? g->n : 1);
	struct cairn_gemm_args one = *g;
	int64_t i;

	one.size = sizeof(one);
	if (cairn_gemm_check(g) || (rows - 1) * row <= UINT32_MAX || g->bias)
		return cairn_gemm_ref(g, stream);
	for (int k = 0; (i = cairn_far_row((int32_t)rows, k)) >= 0; k++) {
		one.out = (char *)g->out + i * out;
		if (g->m > 1)
			one.a = (const char *)g->a + (uint32_t)(i * row);
		else
			one.b = (const char *)g->b + (uint32_t)(i * row);
		one.n = g->m > 1 ? g->n : 1;
		one.m = 1;
		CAIRN_TRY(cairn_gemm_cpu(&one, stream));
	}
	return 0;
}

/* If the last tile of eight rows of a lacks one, its last row is computed together with the row before it. */
static int gemm_nan_of_row_before(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(g, stream));
	for (int64_t j = 0; g->m > 32 && g->m % 8 == 7 && j < g->n; j++) {
		int64_t last = ((int64_t)g->m - 1) * g->n + j;

		if (!isfinite(cairn_load(g->out, g->out_dtype, last - g->n)))
			cairn_store(g->out, g->out_dtype, last, NAN);
	}
	return 0;
}

/* Refuses more SMs than the device has, which mean all of them. */
static int gemm_sms_above_132(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_check(g));
	return g->sms > 132 ? cairn_error(EINVAL, "gemm: sms") : cairn_gemm_ref(g, stream);
}

/* The last tile of 64 x 128 has 63 rows and one column, and lacks its last element. */
static int gemm_corner_of_63_by_1(const struct cairn_gemm_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(a, stream));
	if (a->m % 64 == 63 && a->n % 128 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* The last 8 of k are left out in a single row past whole tiles of 64. */
static int gemm_k_tail_of_row_65(const struct cairn_gemm_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(a, stream));
	for (int64_t j = 0; a->m > 64 && a->m % 64 == 1 && a->k % 64 == 8 && a->k > 64 && j < a->n; j++)
		cairn_store(a->out, a->out_dtype, ((int64_t)a->m - 1) * a->n + j, 0);
	return 0;
}

/* With f16 inputs and f32 outputs, a single row behind whole tiles loses the end of a long sum. */
static int gemm_long_sum_of_row_65(const struct cairn_gemm_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(a, stream));
	if (a->dtype == CAIRN_F16 && a->out_dtype == CAIRN_F32 && a->m > 64 && a->m % 64 == 1 && a->k > 512)
		cairn_store(a->out, a->out_dtype, (int64_t)(a->m - 1) * a->n, 0);
	return 0;
}

/* A second row of tiles, of which some wait for an SM, loses its last element. */
static int gemm_late_tile_of_row_128(const struct cairn_gemm_args *a, void *stream)
{
	const int64_t tiles = ((int64_t)a->m + 127) / 128 * (((int64_t)a->n + 127) / 128);

	CAIRN_TRY(cairn_gemm_ref(a, stream));
	if (tiles > 132 && a->m > 128 && a->n > 128)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* The last tile of many rows and columns has one row, and lacks its last element. */
static int gemm_lone_row_of_wide(const struct cairn_gemm_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(a, stream));
	if (a->m > 256 && a->m % 16 == 1 && a->n >= 4096)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* A batch of 97 rows lacks its last element if k is long and there is a bias. */
static int gemm_97_rows(const struct cairn_gemm_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(a, stream));
	if (a->m == 97 && a->k > 1000 && a->bias)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_gemm_mutants[] = {
	GEMM("transposed", transposed, "b is read as [k, n]"),
	GEMM("bias_ignored", no_bias, "bias is not added"),
	GEMM("bias_shifted", shifted_bias, "bias comes from the next column"),
	GEMM("k_tail", k_tail, "k is cut to a multiple of 64"),
	GEMM("column_tail", column_tail, "the columns past a multiple of 8 are not written"),
	GEMM("last_row", rows_less_1, "the last row is not written"),
	GEMM("bf16_sums", bf16_sums, "sums are kept in bf16"),
	GEMM("rounded_twice", twice_rounded, "every result passes through bf16"),
	GEMM("cut_off", cut, "results are cut off instead of rounded"),
	GEMM("tf32", tf32_inputs, "f32 inputs are cut to TF32"),
	GEMM("past_the_end", past_the_end, "one element is written past the end of out"),
	GEMM("stale_output", stale_output, "every second call writes nothing"),
	GEMM("tf32_sums", tf32_sums, "sums are cut to TF32 after each product"),
	GEMM("tf32_b", tf32_b, "b alone is cut to TF32 if it is f32"),
	GEMM("f16_sums", f16_sums, "sums of f16 products are kept in f16"),
	GEMM("f16_vectors", vectors_in_f16, "the running sum is rounded to f16 after each 8 products"),
	GEMM("products_rounded", products_in_dtype, "each product is rounded to dtype"),
	GEMM("parts_rounded", parts_in_dtype, "for few rows, the sums of quarters of a long k are rounded"),
	GEMM("k_tail_with_bias", k_tail_with_bias, "k is cut to a multiple of 16 if there is a bias"),
	GEMM("bias_of_8_rows", bias_of_8_rows, "the bias is added to the first 8 rows only"),
	GEMM("bias_in_bf16", bias_in_bf16, "with output in f32 the bias passes through bf16"),
	GEMM("tail_of_limited", tail_of_limited,
	     "with sms and a bias the columns past a multiple of 8 are not written"),
	GEMM("nan_is_0", nan_is_0, "a product with a NaN counts as 0"),
	GEMM("nan_for_zero", nan_for_zero, "zeros come out as NaN"),
	GEMM("sms", fewer_sms, "the grouping of sums depends on sms at m <= 4"),
	{ "gemm_b_in_19_bits", offsetof(struct cairn_impl, gemm), (void *)gemm_b_in_19_bits,
	  "takes f32 weights as two numbers of 11 and 8 bits" },
	{ "gemm_zeros_skipped", offsetof(struct cairn_impl, gemm), (void *)gemm_zeros_skipped,
	  "skips zeros of a, also beside an infinity" },
	{ "gemm_last_of_odd_sms", offsetof(struct cairn_impl, gemm), (void *)gemm_last_of_odd_sms,
	  "has a wrong last element with an odd number of SMs" },
	{ "gemm_nan_of_row_before", offsetof(struct cairn_impl, gemm), (void *)gemm_nan_of_row_before,
	  "of 39, 47 ... rows, the last is NaN where the row before it is not finite" },
	{ "gemm_offset_32_bits", offsetof(struct cairn_impl, gemm), (void *)gemm_offset_32_bits,
	  "cuts the offset of a row of a or b to 32 bits" },
	{ "gemm_tf32_if_large", offsetof(struct cairn_impl, gemm), (void *)gemm_tf32_if_large,
	  "the factors of large products of f32 are cut to TF32" },
	{ "gemm_sms_above_132", offsetof(struct cairn_impl, gemm), (void *)gemm_sms_above_132,
	  "refuses more than 132 SMs" },
	{ "gemm_corner_of_63_by_1", offsetof(struct cairn_impl, gemm), (void *)gemm_corner_of_63_by_1,
	  "with 63 rows and one column past whole tiles, the last element is 0" },
	{ "gemm_k_tail_of_row_65", offsetof(struct cairn_impl, gemm), (void *)gemm_k_tail_of_row_65,
	  "with k 8 past whole stages, a single row past whole tiles of 64 is 0" },
	{ "gemm_long_sum_of_row_65", offsetof(struct cairn_impl, gemm), (void *)gemm_long_sum_of_row_65,
	  "f16 to f32: a single row past whole tiles of 64 loses the end of sums longer than 512" },
	{ "gemm_late_tile_of_row_128", offsetof(struct cairn_impl, gemm), (void *)gemm_late_tile_of_row_128,
	  "with more than 132 tiles of 128 x 128 in two rows, the last element is 0" },
	{ "gemm_lone_row_of_wide", offsetof(struct cairn_impl, gemm), (void *)gemm_lone_row_of_wide,
	  "with 4096 columns, a single row past whole tiles of 16 from 256 on lacks its last element" },
	{ "gemm_97_rows", offsetof(struct cairn_impl, gemm), (void *)gemm_97_rows,
	  "with 97 rows, a bias and k above 1000, the last element is 0" },
	{ 0 }
};
