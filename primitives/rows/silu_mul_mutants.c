// SPDX-License-Identifier: Apache-2.0
/* silu_mul_mutants - wrong versions of silu_mul, one defect each */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/args.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "primitives/rows/quant_out/quant_out_mutants.h"
#include "primitives/rows/silu_mul.h"
#include "primitives/base/nudge.h"

enum silu_mul_bend {
	silu_mul_bend_halves_swapped, silu_mul_bend_halves_interleaved, silu_mul_bend_gelu,
	silu_mul_bend_sigmoid, silu_mul_bend_nan_at_minus_infinity, silu_mul_bend_exp_overflows,
	silu_mul_bend_vanishes_early, silu_mul_bend_rounded_twice, silu_mul_bend_last_row_missing,
	silu_mul_bend_hard_silu, silu_mul_bend_silu_always, silu_mul_bend_gelu_erf, silu_mul_bend_gelu_quick,
	silu_mul_bend_gelu_no_cube, silu_mul_bend_gelu_twice, silu_mul_bend_gelu_rounded,
	silu_mul_bend_gelu_nan, silu_mul_bend_gelu_cancels,
	silu_mul_bend_cut_off, silu_mul_bend_tf32_product, silu_mul_bend_sigmoid_in_f16,
	silu_mul_bend_nan_gate_is_0, silu_mul_bend_nan_up_is_0,
	silu_mul_bend_nan_at_gate_0, silu_mul_bend_nan_at_up_0, silu_mul_bend_infinity_at_up_0,
	silu_mul_bend_subnormal_gate_is_0, silu_mul_bend_clamped,
	silu_mul_bend_gelu_tail, silu_mul_bend_saturates,
};

static double bent_silu(double g, enum silu_mul_bend bend)
{
	switch (bend) {
	case silu_mul_bend_gelu:
		return 0.5 * g * (1 + tanh(0.7978845608 * (g + 0.044715 * g * g * g)));
	case silu_mul_bend_sigmoid:
		return 1 / (1 + exp(-g));
	case silu_mul_bend_nan_at_minus_infinity:
		return g / (1 + exp(-g));
	case silu_mul_bend_exp_overflows:
		return (double)((float)g * expf((float)g) / (1 + expf((float)g)));
	case silu_mul_bend_vanishes_early:
		return g < -88 ? 0 : g / (1 + exp(-g));
	case silu_mul_bend_hard_silu:
		return g * fmin(fmax(g + 3, 0), 6) / 6;
	default:
		return g == -INFINITY ? 0 : g / (1 + exp(-g));
	}
}

/* activation 1, the tanh form of gelu */
static double bent_gelu(double g, enum silu_mul_bend bend)
{
	double y = sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g), v;

	switch (bend) {
	case silu_mul_bend_silu_always:
		return g == -INFINITY ? 0 : g / (1 + exp(-g));
	case silu_mul_bend_gelu_erf:
		return g == -INFINITY ? 0 : 0.5 * g * erfc(-g / sqrt(2));
	case silu_mul_bend_gelu_quick:
		return g == -INFINITY ? 0 : g / (1 + exp(-1.702 * g));
	case silu_mul_bend_gelu_no_cube:
		return g == -INFINITY ? 0 : g / (1 + exp(-2 * sqrt(2 / acos(-1)) * g));
	case silu_mul_bend_gelu_nan:
		return g / (1 + exp(-2 * y));
	case silu_mul_bend_gelu_cancels:
		return g == -INFINITY ? 0 : (double)(0.5f * (float)g * (1 + tanhf((float)y)));
	default:
		v = g == -INFINITY ? 0 : g / (1 + exp(-2 * y));
		return bend == silu_mul_bend_gelu_twice && v != 0 ? bent_gelu(v, silu_mul_bend_gelu) : v;
	}
}

/* act(g) up, for the defects that concern both */
static double bent_product(const struct cairn_silu_mul_args *a, double g, double up, enum silu_mul_bend bend)
{
	double v;

	if ((bend == silu_mul_bend_nan_gate_is_0 && isnan(g)) ||
	    (bend == silu_mul_bend_nan_up_is_0 && isnan(up) && g < -88))
		return 0;
	if ((bend == silu_mul_bend_nan_at_gate_0 && g == 0) || (bend == silu_mul_bend_nan_at_up_0 && up == 0))
		return 0;
	if ((bend == silu_mul_bend_infinity_at_up_0 && isinf(g) && up == 0) ||
	    (bend == silu_mul_bend_subnormal_gate_is_0 && fabs(g) < 0x1p-126 && g != 0))
		return 0;
	if (bend == silu_mul_bend_clamped)
		g = fmin(fmax(g, -20), isnan(g) ? g : 20);
	v = a->activation ? bent_gelu(g, bend) : bent_silu(g, bend);
	if (bend == silu_mul_bend_rounded_twice || (bend == silu_mul_bend_gelu_rounded && a->activation))
		v = rounded(a->dtype, v);
	if (bend == silu_mul_bend_sigmoid_in_f16 && g != 0 && isfinite(g))
		v = g * rounded(CAIRN_F16, v / g);
	if (bend == silu_mul_bend_tf32_product)
		return tf32(v) * tf32(up);
	if (bend == silu_mul_bend_saturates)
		return saturated(a->dtype, v * up);
	return v * up;
}

/*
 * Returns whether the call asks for e4m3. Mutants that spoil out do nothing in such a call, so a case without
 * e4m3 must catch them. The mutants of e4m3 come last in the list.
 */
static int asks_for_q(const struct cairn_silu_mul_args *a)
{
	return a->size >= sizeof(*a) && a->q;
}

static int bent_silu_mul(const struct cairn_silu_mul_args *a, enum silu_mul_bend bend)
{
	int64_t rows = a->rows - (bend == silu_mul_bend_last_row_missing);

	CAIRN_TRY(cairn_silu_mul_check(a));
	if (asks_for_q(a))
		return cairn_silu_mul_ref(a, NULL);
	for (int64_t i = 0; i < rows; i++)
		for (int32_t j = 0; j < a->dim; j++) {
			int64_t gate = 2 * i * a->dim + j, up = gate + a->dim, t = gate;
			double v;

			if (bend == silu_mul_bend_halves_swapped) {
				gate = up;
				up = t;
			}
			if (bend == silu_mul_bend_halves_interleaved) {
				gate = 2 * (i * a->dim + j);
				up = gate + 1;
			}
			if (bend == silu_mul_bend_gelu_tail && a->activation && a->dim % 16 &&
			    j >= a->dim - 8)
				continue;
			v = bent_product(a, cairn_load(a->x, a->dtype, gate),
					 cairn_load(a->x, a->dtype, up), bend);
			cairn_store(a->out, a->dtype, i * a->dim + j,
				    bend == silu_mul_bend_cut_off ? cut_off(a->dtype, v) : v);
		}
	return 0;
}

BENT(silu_mul, halves_swapped)
BENT(silu_mul, halves_interleaved)
BENT(silu_mul, gelu)
BENT(silu_mul, sigmoid)
BENT(silu_mul, nan_at_minus_infinity)
BENT(silu_mul, exp_overflows)
BENT(silu_mul, vanishes_early)
BENT(silu_mul, rounded_twice)
BENT(silu_mul, last_row_missing)
BENT(silu_mul, hard_silu)
BENT(silu_mul, silu_always)
BENT(silu_mul, gelu_erf)
BENT(silu_mul, gelu_quick)
BENT(silu_mul, gelu_no_cube)
BENT(silu_mul, gelu_twice)
BENT(silu_mul, gelu_rounded)
BENT(silu_mul, gelu_nan)
BENT(silu_mul, gelu_cancels)
BENT(silu_mul, cut_off)
BENT(silu_mul, tf32_product)
BENT(silu_mul, sigmoid_in_f16)
BENT(silu_mul, nan_gate_is_0)
BENT(silu_mul, nan_up_is_0)
BENT(silu_mul, nan_at_gate_0)
BENT(silu_mul, nan_at_up_0)
BENT(silu_mul, infinity_at_up_0)
BENT(silu_mul, subnormal_gate_is_0)
BENT(silu_mul, clamped)
BENT(silu_mul, gelu_tail)
BENT(silu_mul, saturates)

static int silu_mul_few_rows(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (a->dtype == CAIRN_F32 && a->rows > 0 && a->rows < 4)
		nudge(a->out, a->dim);
	return 0;
}

static int silu_mul_rows_16_bits(const struct cairn_silu_mul_args *a, void *stream)
{
	struct cairn_silu_mul_args other;

	CAIRN_TRY(cairn_silu_mul_check(a));
	cairn_copy_args(&other, a, sizeof(other));
	other.rows &= 0xffff;
	return cairn_silu_mul_ref(&other, stream);
}

static int silu_mul_up_times_gate(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	for (int64_t i = 0; !a->activation && i < (int64_t)a->rows * a->dim; i++) {
		int64_t at = i / a->dim * 2 * a->dim + i % a->dim;
		float gate = (float)cairn_load(a->x, a->dtype, at);
		float up = (float)cairn_load(a->x, a->dtype, at + a->dim);

		if (gate < 0 && gate > -80)
			cairn_store(a->out, a->dtype, i, up * gate * (1 / (1 + expf(-gate))));
	}
	return 0;
}

static int silu_mul_up_times_positive_gate(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	for (int64_t i = 0; !a->activation && i < (int64_t)a->rows * a->dim; i++) {
		int64_t at = i / a->dim * 2 * a->dim + i % a->dim;
		float gate = (float)cairn_load(a->x, a->dtype, at);
		float up = (float)cairn_load(a->x, a->dtype, at + a->dim);

		if (gate > 0 && isinf(up * gate))
			cairn_store(a->out, a->dtype, i, up * gate);
	}
	return 0;
}

/* Gets the tail of a row wrong if its length is not a multiple of 1024. */
static int silu_mul_tail_of_chunks(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	for (int64_t i = 0; a->dim > 3072 && a->dim % 1024 == 8 && i < a->rows; i++)
		cairn_store(a->out, a->dtype, (i + 1) * a->dim - 1, 0);
	return 0;
}

static int silu_mul_second_chunk(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	for (int64_t i = 0; a->dim == 1032 && i < a->rows; i++)
		cairn_store(a->out, a->dtype, i * a->dim + 1024, 0);
	return 0;
}

/* Keeps only 32 bits of the byte offset of a row of out. Computes only the rows that a far case judges. */
static int silu_mul_offset_32_bits(const struct cairn_silu_mul_args *a, void *stream)
{
	int64_t row = (int64_t)a->dim * (int64_t)cairn_dtype_bytes(a->dtype), i;
	struct cairn_silu_mul_args one;

	if (cairn_silu_mul_check(a) || (a->rows - 1) * row <= UINT32_MAX)
		return cairn_silu_mul_ref(a, stream);
	cairn_copy_args(&one, a, sizeof(one));
	one.rows = 1;
	for (int k = 0; (i = cairn_far_row(a->rows, k)) >= 0; k++) {
		one.out = (char *)a->out + (uint32_t)(i * row);
		one.x = (const char *)a->x + 2 * i * row;
		CAIRN_TRY(cairn_silu_mul_cpu(&one, stream));
	}
	return 0;
}

/* 63 rows past whole tiles of 64, and 8 elements past whole tiles of 512. */
static int silu_mul_corner_of_63_by_8(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (a->rows % 64 == 63 && a->dim > 8 && a->dim % 512 == 8)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim - 1, 0);
	return 0;
}

static int silu_mul_gelu_of_97_rows(const struct cairn_silu_mul_args *a, void *stream)
{
	CAIRN_TRY(cairn_silu_mul_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (a->rows == 97 && a->activation && a->dim > 1024)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim - 1, 0);
	return 0;
}

QUANT_OUT_MUTANTS(silu_mul)

const struct cairn_mutant cairn_silu_mul_mutants[] = {
	MUTANT(silu_mul, halves_swapped, "swaps gate and up"),
	MUTANT(silu_mul, halves_interleaved, "treats gate and up as interleaved"),
	MUTANT(silu_mul, gelu, "uses the tanh form of GELU instead of silu"),
	MUTANT(silu_mul, sigmoid, "computes the sigmoid without the factor g"),
	MUTANT(silu_mul, hard_silu, "uses the piecewise linear approximation of silu"),
	MUTANT(silu_mul, nan_at_minus_infinity, "gives NaN for a gate of -INFINITY"),
	MUTANT(silu_mul, exp_overflows, "computes exp(g) / (1 + exp(g)): NaN from 89 on"),
	MUTANT(silu_mul, vanishes_early, "gives 0 below -88, where a large up still matters"),
	MUTANT(silu_mul, rounded_twice, "rounds silu to dtype before the product"),
	MUTANT(silu_mul, last_row_missing, "does not write the last row"),
	MUTANT(silu_mul, silu_always, "ignores `activation`"),
	MUTANT(silu_mul, gelu_erf, "uses exact GELU instead of its tanh form"),
	MUTANT(silu_mul, gelu_quick, "uses the sigmoid approximation of GELU"),
	MUTANT(silu_mul, gelu_no_cube, "omits the cubic term"),
	MUTANT(silu_mul, gelu_twice, "applies the activation twice"),
	MUTANT(silu_mul, gelu_rounded, "rounds gelu to dtype before the product"),
	MUTANT(silu_mul, gelu_nan, "gives NaN for a gate of -INFINITY"),
	MUTANT(silu_mul, gelu_cancels, "computes 1 + tanh in fp32, which cancels to 0 below -5"),
	MUTANT(silu_mul, cut_off, "cuts the result off instead of rounding it"),
	MUTANT(silu_mul, tf32_product, "cuts the factors of the last product to TF32"),
	MUTANT(silu_mul, sigmoid_in_f16, "rounds the sigmoid to f16"),
	MUTANT(silu_mul, nan_gate_is_0, "gives 0 for a gate of NaN"),
	MUTANT(silu_mul, nan_up_is_0, "gives 0 for a NaN in up where the gate is below -88"),
	MUTANT(silu_mul, nan_at_gate_0, "gives 0 for a gate of 0, even beside a NaN"),
	MUTANT(silu_mul, nan_at_up_0, "gives 0 for an up of 0, even beside a NaN"),
	MUTANT(silu_mul, infinity_at_up_0, "gives 0 for an infinite gate and an up of 0"),
	MUTANT(silu_mul, subnormal_gate_is_0, "takes a subnormal gate for 0"),
	MUTANT(silu_mul, clamped, "clamps gates to -20..20"),
	MUTANT(silu_mul, gelu_tail,
	       "leaves out the last vector of a row with gelu unless dim is a multiple of 16"),
	MUTANT(silu_mul, saturates, "stores a finite result where it overflows f16 or bf16"),
	MUTANT(silu_mul, few_rows, "gives other bits if there are fewer than 4 rows"),
	MUTANT(silu_mul, rows_16_bits, "cuts the number of rows to 16 bits"),
	MUTANT(silu_mul, up_times_gate, "multiplies up by the gate first, which overflows"),
	MUTANT(silu_mul, up_times_positive_gate, "multiplies up by a positive gate first, which overflows"),
	MUTANT(silu_mul, second_chunk, "loses what is behind 1024 elements if that is a single vector"),
	MUTANT(silu_mul, tail_of_chunks, "loses the last element of rows that end 8 past a multiple of 1024"),
	MUTANT(silu_mul, offset_32_bits, "cuts the offset of a row of out to 32 bits"),
	{ "silu_mul_corner_of_63_by_8", offsetof(struct cairn_impl, silu_mul),
	  (void *)silu_mul_corner_of_63_by_8,
	  "with 63 rows and 8 elements past whole tiles, the last element is 0" },
	{ "silu_mul_gelu_of_97_rows", offsetof(struct cairn_impl, silu_mul),
	  (void *)silu_mul_gelu_of_97_rows,
	  "gelu of 97 rows of more than 1024 elements has a wrong last element" },
	QUANT_OUT_LINES(silu_mul),
	{ 0 }
};
