// SPDX-License-Identifier: Apache-2.0
/*
 * bias_test - the judges of mean errors (bias.c) and of the size of errors (bias.c) must fail
 * implementations that truncate, or round too much, and pass those that round once
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/suite/op_case.h"
#include "primitives/base/cut_off.h"

#define ROWS	64
#define DIM	128
#define N	(ROWS * DIM)

enum { NEAREST, TWICE, CUT_OFF, DOWN, FACTOR_OF_A_ROW, FACTOR_CUT_OFF, EQUAL_ROWS_CUT_OFF };

static double rounded_to(int dtype, double v)
{
	uint64_t bits = 0;

	cairn_store(&bits, dtype, 0, v);
	return cairn_load(&bits, dtype, 0);
}

static double down(int dtype, double v)
{
	uint64_t bits = 0;

	cairn_store(&bits, dtype, 0, v);
	if (cairn_load(&bits, dtype, 0) > v)
		bits += v > 0 ? -1 : 1;		/* sign and magnitude */
	return cairn_load(&bits, dtype, 0);
}

static double uniform(struct cairn_test *t)
{
	return (double)(cairn_rand(t) >> 11) * 0x1p-53;
}

/* Returns the judge's verdict on values that were computed as `how` says. */
static int judged(struct cairn_test *t, int dtype, int how, double size)
{
	double *val = malloc(2 * N * sizeof(*val)), *bound = val + N, factor = 1;
	struct cairn_exact exact = { .val = val, .bound = bound };
	uint16_t *got = malloc(N * sizeof(*got));
	struct cairn_bias b = { 0 };
	int ret;

	if (!val || !got)
		abort();
	for (int i = 0; i < N; i++) {
		double v = size * (4 * uniform(t) - 2), x = v;

		if (i % DIM == 0)
			factor = 0.5 + uniform(t);
		if (how == TWICE)
			x = (double)(float)(v * (1 + 0x1p-20 * (uniform(t) - 0.5)));
		if (how == FACTOR_OF_A_ROW)
			x = v * rounded_to(dtype, factor) / factor;
		if (how == FACTOR_CUT_OFF)
			x = v * cut_off(dtype, factor) / factor;
		if (how == EQUAL_ROWS_CUT_OFF)
			x = cut_off(dtype, v = i < DIM ? v : val[i % DIM]);
		if (how == CUT_OFF || how == DOWN)
			x = how == DOWN ? down(dtype, v) : cut_off(dtype, v);
		val[i] = v;
		bound[i] = 1;
		cairn_store(got, dtype, i, x);
	}
	ret = cairn_judge_bias(dtype, N, got, &exact, &b);
	cairn_note(t, "%s, way %d: mean %+.4f, limit %.4f", cairn_dtype_name(dtype), how, b.mean, b.limit);
	free(val);
	free(got);
	return ret;
}

static void rounding_passes(struct cairn_test *t)
{
	for (int dtype = CAIRN_F16; dtype <= CAIRN_BF16; dtype++)
		for (int how = 0; how < 2; how++)
			for (int round = 0; round < 8; round++)
				EXPECT(t, !judged(t, dtype, how, round < 4 ? 1 : 300));
}

/* All elements of a row share the rounding error of one factor. It must count once, not once per element. */
static void shared_errors_pass(struct cairn_test *t)
{
	for (int dtype = CAIRN_F16; dtype <= CAIRN_BF16; dtype++)
		for (int round = 0; round < 8; round++)
			EXPECT(t, !judged(t, dtype, FACTOR_OF_A_ROW, 1));
}

static void truncation_fails(struct cairn_test *t)
{
	for (int dtype = CAIRN_F16; dtype <= CAIRN_BF16; dtype++) {
		EXPECT(t, judged(t, dtype, CUT_OFF, 1));
		EXPECT(t, judged(t, dtype, DOWN, 1));
		EXPECT(t, judged(t, dtype, FACTOR_CUT_OFF, 1));
	}
}

/* Outputs with few elements, with equal rows, and values near the subnormals must not be judged. */
static void little_is_not_judged(struct cairn_test *t)
{
	EXPECT(t, !judged(t, CAIRN_F16, CUT_OFF, 0x1p-14));
	EXPECT(t, !judged(t, CAIRN_BF16, CUT_OFF, 0x1p-110));
	EXPECT(t, !judged(t, CAIRN_BF16, EQUAL_ROWS_CUT_OFF, 1));
}

/* ---- the size of errors, and what rows share of it (bias.c) ---- */

enum { TERMS, SUMS, FACTOR, WEIGHT_OF_A_PART, TF32_TERMS };

#define PARTS	16

/* Judges sums of PARTS products, each of a random weight and a random number. */
static int sums_judged(struct cairn_test *t, int dtype, int how, double most)
{
	double *val = malloc(2 * N * sizeof(*val)), *bound = val + N, weight[PARTS], factor = 1;
	struct cairn_exact exact = { .val = val, .bound = bound };
	float *got = malloc(N * sizeof(*got));		/* or of 16 bits */
	struct cairn_rounding r;
	int ret;

	if (!val || !got)
		abort();
	for (int i = 0; i < N; i++) {
		double sum = 0, computed = 0;

		for (int k = 0; k < PARTS && i % DIM == 0; k++)
			weight[k] = 0.5 + uniform(t);
		if (i % DIM == 0)
			factor = 0.5 + uniform(t);
		for (int k = 0; k < PARTS; k++) {
			double v = 4 * uniform(t) - 2, w = weight[k];

			sum += w * v;
			if (how == TERMS || (how == WEIGHT_OF_A_PART && k < PARTS / 2))
				w = how == TERMS ? rounded_to(dtype, w) :
				    w * rounded_to(dtype, factor) / factor;
			if (how == TF32_TERMS)
				w = (double)tf32(w);
			computed += w * v;
			if (how == SUMS)
				computed = rounded_to(dtype, computed);
		}
		if (how == FACTOR)
			computed *= rounded_to(dtype, factor) / factor;
		val[i] = sum;
		bound[i] = 1;
		cairn_store(got, dtype, i, computed);
	}
	ret = cairn_judge_rounding(dtype, ROWS, DIM, got, &exact, most, &r);
	cairn_note(t, "%s, way %d: size %.2f, common %.3f", cairn_dtype_name(dtype), how, r.size, r.common);
	free(val);
	free(got);
	return ret;
}

/* Rounded terms are permitted; rounded sums, factors of a row, and weights of half a row's terms are not. */
static void only_terms_may_be_rounded(struct cairn_test *t)
{
	for (int dtype = CAIRN_F16; dtype <= CAIRN_BF16; dtype++) {
		EXPECT(t, !sums_judged(t, dtype, TERMS, 4));
		for (int how = SUMS; how <= WEIGHT_OF_A_PART; how++)
			EXPECT(t, sums_judged(t, dtype, how, 4));
	}
}

/* In f32, a sum may round after each term, but its terms may not be those of TF32. */
static void sums_of_f32(struct cairn_test *t)
{
	EXPECT(t, !sums_judged(t, CAIRN_F32, SUMS, PARTS + 2));
	EXPECT(t, sums_judged(t, CAIRN_F32, TF32_TERMS, PARTS + 2));
}

static const struct cairn_unit units[] = {
	{ "rounding_passes", rounding_passes },
	{ "shared_errors_pass", shared_errors_pass },
	{ "truncation_fails", truncation_fails },
	{ "little_is_not_judged", little_is_not_judged },
	{ "only_terms_may_be_rounded", only_terms_may_be_rounded },
	{ "sums_of_f32", sums_of_f32 },
};

const struct cairn_family cairn_bias_family = {
	.stage = "conformance", .name = "bias", .units = units, .num_units = ARRAY_SIZE(units),
};
