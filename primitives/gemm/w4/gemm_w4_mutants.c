// SPDX-License-Identifier: Apache-2.0
/* gemm_w4_mutants - wrong versions of gemm_w4 that the suite must catch */
#include <math.h>

#include "conformance/harness.h"
#include "primitives/base/args.h"
#include "primitives/base/bend.h"
#include "primitives/gemm/w4/gemm_w4_value.h"

enum gemm_w4_bend {
	gemm_w4_bend_nibbles_swapped, gemm_w4_bend_pairs_swapped, gemm_w4_bend_halves_swapped,
	gemm_w4_bend_zero_plus_1, gemm_w4_bend_zero_is_8, gemm_w4_bend_zero_4_bits,
	gemm_w4_bend_zero_of_next_row, gemm_w4_bend_next_group, gemm_w4_bend_group_0,
	gemm_w4_bend_group_twice, gemm_w4_bend_whole_row_is_128,
	gemm_w4_bend_scale_of_next_row, gemm_w4_bend_place_in_order, gemm_w4_bend_sign_lost,
	gemm_w4_bend_twos_complement, gemm_w4_bend_half_is_0, gemm_w4_bend_top_is_8, gemm_w4_bend_e1m2,
	gemm_w4_bend_e8m0_255_is_2_128, gemm_w4_bend_e8m0_0_is_0, gemm_w4_bend_e8m0_bias_128,
	gemm_w4_bend_scale_sign_lost, gemm_w4_bend_e4m3_nan_is_480, gemm_w4_bend_scale_subnormals_flushed,
	gemm_w4_bend_scale_ignored, gemm_w4_bend_scale_0_is_1, gemm_w4_bend_scale_of_row_8,
	gemm_w4_bend_bias_scaled, gemm_w4_bend_bias_lost, gemm_w4_bend_k_tail,
	gemm_w4_bend_n_tail, gemm_w4_bend_weight_in_dtype, gemm_w4_bend_sum_in_dtype,
	gemm_w4_bend_twice_rounded,
	gemm_w4_bend_nan_scale_is_0, gemm_w4_bend_nan_is_0, gemm_w4_bend_scaled_codes,
	gemm_w4_bend_padding_read,
};

static int bent_code(const struct cairn_gemm_w4_args *g, int64_t j, int64_t l, enum gemm_w4_bend bend)
{
	int64_t at = cairn_w4_nibble(g->k, j, l);

	if (bend == gemm_w4_bend_nibbles_swapped)
		at ^= 1;
	if (bend == gemm_w4_bend_pairs_swapped)
		at ^= 2;
	if (bend == gemm_w4_bend_halves_swapped)
		at ^= 4;
	return cairn_w4_code_at(g->format, g->b, at);
}

static int64_t bent_group(const struct cairn_gemm_w4_args *g, int64_t l, enum gemm_w4_bend bend)
{
	int64_t groups = cairn_w4_groups(g->k, g->group), nth = g->group ? l / g->group : 0;

	if (bend == gemm_w4_bend_next_group)
		nth = nth + 1 < groups ? nth + 1 : nth;
	if (bend == gemm_w4_bend_group_0)
		nth = 0;
	if (bend == gemm_w4_bend_group_twice)
		nth /= 2;
	return nth;
}

static double bent_scale(const struct cairn_gemm_w4_args *g, const uint8_t *cell, int64_t at,
			 enum gemm_w4_bend bend)
{
	double s;

	if (g->format == CAIRN_W4_MX) {
		if (cell[at] == 255 && bend == gemm_w4_bend_e8m0_255_is_2_128)
			return 0x1p128;
		if (cell[at] == 0 && bend == gemm_w4_bend_e8m0_0_is_0)
			return 0;
		s = (double)cairn_e8m0_to_float(cell[at]);
		return bend == gemm_w4_bend_e8m0_bias_128 ? s / 2 : s;
	}
	if (g->format == CAIRN_W4_NV) {
		if ((cell[at] & 0x7f) == 0x7f && bend == gemm_w4_bend_e4m3_nan_is_480)
			return cell[at] & 0x80 ? -480 : 480;
		if (!(cell[at] & 0x78) && bend == gemm_w4_bend_scale_subnormals_flushed)
			return 0;
		s = (double)cairn_e4m3_to_float(cell[at]);
	} else {
		s = cairn_load(cell, CAIRN_F16, at);
	}
	return bend == gemm_w4_bend_scale_sign_lost ? fabs(s) : s;
}

static double bent_e2m1(int code, enum gemm_w4_bend bend)
{
	double v = (double)cairn_e2m1_to_float(code & 7);

	if (bend == gemm_w4_bend_twos_complement)
		return code < 8 ? code : code - 16;
	if (bend == gemm_w4_bend_half_is_0 && (code & 7) == 1)
		v = 0;
	if (bend == gemm_w4_bend_top_is_8 && (code & 7) == 7)
		v = 8;
	if (bend == gemm_w4_bend_e1m2)
		v = (code & 7) / 4.0;
	return code & 8 && bend != gemm_w4_bend_sign_lost ? -v : v;
}

/* c of a code; cell: of its row and group */
static double bent_value(const struct cairn_gemm_w4_args *g, int code, const uint8_t *cell, int64_t at,
			 enum gemm_w4_bend bend)
{
	int zero;

	if (g->format != CAIRN_W4_INT)
		return bent_e2m1(code, bend);
	if (bend == gemm_w4_bend_zero_of_next_row)
		at = (at + 2) % CAIRN_W4_ROWS;
	zero = cell[2 * CAIRN_W4_ROWS + at];
	if (bend == gemm_w4_bend_zero_plus_1)
		zero++;
	if (bend == gemm_w4_bend_zero_is_8)
		zero = 8;
	if (bend == gemm_w4_bend_zero_4_bits)
		zero &= 15;
	return code - zero;
}

static double bent_weight(const struct cairn_gemm_w4_args *g, int64_t j, int64_t l, enum gemm_w4_bend bend)
{
	int64_t nth = bent_group(g, l, bend), at = cairn_w4_place(j);
	const uint8_t *cell = g->b_scale + cairn_w4_cell(g->format, g->k, g->group, j, nth);
	double s, c;

	if (bend == gemm_w4_bend_scale_of_next_row && j + 2 < g->n)
		at = cairn_w4_place((j + 1) % CAIRN_W4_ROWS);
	if (bend == gemm_w4_bend_place_in_order)
		at = j % CAIRN_W4_ROWS;
	s = bent_scale(g, cell, at, bend);
	c = bent_value(g, bent_code(g, j, l, bend), cell, at, bend);
	if (bend == gemm_w4_bend_whole_row_is_128 && !g->group && l >= 128)
		s = 0;
	if (bend == gemm_w4_bend_nan_scale_is_0 && isnan(s))
		s = 0;
	if (bend == gemm_w4_bend_scaled_codes)
		return (double)(float)(c * s);
	return bend == gemm_w4_bend_weight_in_dtype ? rounded(g->dtype, c * s) : c * s;
}

static double bent_element(const struct cairn_gemm_w4_args *g, int64_t i, int64_t j, enum gemm_w4_bend bend)
{
	int64_t k = bend == gemm_w4_bend_k_tail && g->k > 64 ? g->k / 64 * 64 : g->k;
	double sum = 0;

	for (int64_t l = 0; l < k; l++) {
		double x = cairn_load(g->a, g->dtype, i * g->k + l);

		if (bend != gemm_w4_bend_nan_is_0 || !isnan(x))
			sum += x * bent_weight(g, j, l, bend);
		if (bend == gemm_w4_bend_sum_in_dtype && l % 32 == 31)
			sum = rounded(g->dtype, sum);
	}
	/* codes behind the last element, with its scale and the last element of a */
	if (bend == gemm_w4_bend_padding_read && g->k % 64)
		sum += cairn_load(g->a, g->dtype, i * g->k + k - 1) * bent_code(g, j, k, bend) *
		       (double)cairn_w4_scale(g, j, bent_group(g, k - 1, bend));
	if (bend == gemm_w4_bend_bias_scaled && g->bias)
		sum += cairn_load(g->bias, g->dtype, j);
	if (bend != gemm_w4_bend_scale_ignored && !(bend == gemm_w4_bend_scale_0_is_1 && g->scale == 0) &&
	    !(bend == gemm_w4_bend_scale_of_row_8 && g->format == CAIRN_W4_MX && g->bias && i == 8))
		sum *= (double)g->scale;
	if (bend == gemm_w4_bend_twice_rounded)
		sum = rounded(g->dtype, sum);
	if (g->bias && bend != gemm_w4_bend_bias_lost && bend != gemm_w4_bend_bias_scaled)
		sum += cairn_load(g->bias, g->dtype, j);
	return bend == gemm_w4_bend_n_tail && g->n > 16 && j >= g->n / 16 * 16 ? 0 : sum;
}

static int bent_gemm_w4(const struct cairn_gemm_w4_args *g, enum gemm_w4_bend bend)
{
	CAIRN_TRY(cairn_gemm_w4_check(g));
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++)
		cairn_store(g->out, g->out_dtype, e, bent_element(g, e / g->n, e % g->n, bend));
	return 0;
}

BENT(gemm_w4, nibbles_swapped)
BENT(gemm_w4, pairs_swapped)
BENT(gemm_w4, halves_swapped)
BENT(gemm_w4, zero_plus_1)
BENT(gemm_w4, zero_is_8)
BENT(gemm_w4, zero_4_bits)
BENT(gemm_w4, zero_of_next_row)
BENT(gemm_w4, next_group)
BENT(gemm_w4, group_0)
BENT(gemm_w4, group_twice)
BENT(gemm_w4, whole_row_is_128)
BENT(gemm_w4, scale_of_next_row)
BENT(gemm_w4, place_in_order)
BENT(gemm_w4, sign_lost)
BENT(gemm_w4, twos_complement)
BENT(gemm_w4, half_is_0)
BENT(gemm_w4, top_is_8)
BENT(gemm_w4, e1m2)
BENT(gemm_w4, e8m0_255_is_2_128)
BENT(gemm_w4, e8m0_0_is_0)
BENT(gemm_w4, e8m0_bias_128)
BENT(gemm_w4, scale_sign_lost)
BENT(gemm_w4, e4m3_nan_is_480)
BENT(gemm_w4, scale_subnormals_flushed)
BENT(gemm_w4, scale_ignored)
BENT(gemm_w4, scale_0_is_1)
BENT(gemm_w4, scale_of_row_8)
BENT(gemm_w4, bias_scaled)
BENT(gemm_w4, bias_lost)
BENT(gemm_w4, k_tail)
BENT(gemm_w4, n_tail)
BENT(gemm_w4, weight_in_dtype)
BENT(gemm_w4, sum_in_dtype)
BENT(gemm_w4, twice_rounded)
BENT(gemm_w4, nan_scale_is_0)
BENT(gemm_w4, nan_is_0)
BENT(gemm_w4, scaled_codes)
BENT(gemm_w4, padding_read)

/* A tile of 16 x 16 has 15 rows and one column, and lacks its last element. */
static int gemm_w4_corner_of_15_by_1(const struct cairn_gemm_w4_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_ref(a, stream));
	if (a->m % 16 == 15 && a->n % 16 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* The last row loses a long sum if it is alone past whole tiles of 16. */
static int gemm_w4_long_sum_of_last_row(const struct cairn_gemm_w4_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_ref(a, stream));
	if (a->k > 512 && a->m > 16 && a->m % 16 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)(a->m - 1) * a->n, 0);
	return 0;
}

/* The first element is lost if k ends with half a group of 128 after whole ones. */
static int gemm_w4_half_a_group(const struct cairn_gemm_w4_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_ref(a, stream));
	if (a->group == 128 && a->k > 128 && a->k % 128 == 64)
		cairn_store(a->out, a->out_dtype, 0, 0);
	return 0;
}

/* The last column loses a long sum if it is the ninth of its unit of 16 rows of b. */
static int gemm_w4_long_sum_of_ninth_row(const struct cairn_gemm_w4_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_ref(a, stream));
	if (a->k > 512 && a->n % 16 == 9)
		cairn_store(a->out, a->out_dtype, a->n - 1, 0);
	return 0;
}

/* Above 256 rows, for which cuda may widen b, the widened weight lacks the scale of the tensor. */
static int gemm_w4_widened_without_scale(const struct cairn_gemm_w4_args *a, void *stream)
{
	struct cairn_gemm_w4_args g;

	CAIRN_TRY(cairn_gemm_w4_check(a));
	cairn_copy_args(&g, a, sizeof(g));
	if (g.m > 256)
		g.scale = 1;
	return cairn_gemm_w4_ref(&g, stream);
}

/* Above 256 rows, a tile of b that k ends within is not widened. */
static int gemm_w4_widened_without_half_tile(const struct cairn_gemm_w4_args *a, void *stream)
{
	return a->m > 256 ? bent_gemm_w4(a, gemm_w4_bend_k_tail) : cairn_gemm_w4_ref(a, stream);
}

const struct cairn_mutant cairn_gemm_w4_mutants[] = {
	MUTANT(gemm_w4, nibbles_swapped, "swaps rows g and g + 8"),
	MUTANT(gemm_w4, pairs_swapped, "swaps elements 2 t and 2 t + 8 along k"),
	MUTANT(gemm_w4, halves_swapped, "swaps neighbours along k"),
	MUTANT(gemm_w4, zero_plus_1, "adds 1 to the zero points, as GPTQ stores them"),
	MUTANT(gemm_w4, zero_is_8, "takes all zero points for 8"),
	MUTANT(gemm_w4, zero_4_bits, "takes a zero point of 16 for 0"),
	MUTANT(gemm_w4, zero_of_next_row, "uses the zero point of the next row"),
	MUTANT(gemm_w4, next_group, "uses the scale of the next group"),
	MUTANT(gemm_w4, group_0, "uses the scale of the first group for all of k"),
	MUTANT(gemm_w4, group_twice, "takes groups for twice as long"),
	MUTANT(gemm_w4, whole_row_is_128, "with one group takes no more than 128 elements"),
	MUTANT(gemm_w4, scale_of_next_row, "uses the scale of the next row"),
	MUTANT(gemm_w4, place_in_order, "reads the scales of 16 rows in the order of the rows"),
	MUTANT(gemm_w4, sign_lost, "ignores the sign of e2m1"),
	MUTANT(gemm_w4, twos_complement, "reads e2m1 as integers in two's complement"),
	MUTANT(gemm_w4, half_is_0, "takes the subnormal 1/2 for 0"),
	MUTANT(gemm_w4, top_is_8, "takes 6 for 8"),
	MUTANT(gemm_w4, e1m2, "reads e2m1 as e1m2"),
	MUTANT(gemm_w4, e8m0_255_is_2_128, "takes the NaN of e8m0 for 2^128"),
	MUTANT(gemm_w4, e8m0_0_is_0, "takes 2^-127 for 0"),
	MUTANT(gemm_w4, e8m0_bias_128, "reads e8m0 with a bias of 128"),
	MUTANT(gemm_w4, scale_sign_lost, "ignores the signs of the scales"),
	MUTANT(gemm_w4, e4m3_nan_is_480, "takes the NaN of e4m3 for 480"),
	MUTANT(gemm_w4, scale_subnormals_flushed, "reads subnormal scales of e4m3 as 0"),
	MUTANT(gemm_w4, scale_ignored, "does not multiply with the scale of the tensor"),
	MUTANT(gemm_w4, scale_0_is_1, "takes a scale of 0 of the tensor for none"),
	MUTANT(gemm_w4, scale_of_row_8, "with MX and a bias, omits the scale of the tensor in row 8"),
	MUTANT(gemm_w4, bias_scaled, "multiplies the bias with the scale of the tensor"),
	MUTANT(gemm_w4, bias_lost, "adds no bias"),
	MUTANT(gemm_w4, k_tail, "leaves out the last k modulo 64 elements"),
	MUTANT(gemm_w4, n_tail, "leaves out the last n modulo 16 columns"),
	MUTANT(gemm_w4, weight_in_dtype, "rounds scaled weights for every m"),
	MUTANT(gemm_w4, sum_in_dtype, "rounds the sum after every 32 elements"),
	MUTANT(gemm_w4, twice_rounded, "rounds to dtype before the bias is added"),
	MUTANT(gemm_w4, nan_scale_is_0, "takes a scale that is NaN for 0"),
	MUTANT(gemm_w4, nan_is_0, "skips a NaN of a"),
	MUTANT(gemm_w4, scaled_codes, "multiplies codes by their scales in fp32, before the sum"),
	MUTANT(gemm_w4, padding_read, "reads a code behind the last element of a row"),
	{ "gemm_w4_corner_of_15_by_1", offsetof(struct cairn_impl, gemm_w4),
	  (void *)gemm_w4_corner_of_15_by_1,
	  "with 15 rows and one column past whole tiles, the last element is 0" },
	{ "gemm_w4_long_sum_of_last_row", offsetof(struct cairn_impl, gemm_w4),
	  (void *)gemm_w4_long_sum_of_last_row,
	  "sums longer than 512 are lost in a single row past whole tiles" },
	{ "gemm_w4_half_a_group", offsetof(struct cairn_impl, gemm_w4), (void *)gemm_w4_half_a_group,
	  "an element is lost if k ends with half a group of 128" },
	{ "gemm_w4_long_sum_of_ninth_row", offsetof(struct cairn_impl, gemm_w4),
	  (void *)gemm_w4_long_sum_of_ninth_row,
	  "sums longer than 512 are lost in the ninth row of the last 16 rows of b" },
	{ "gemm_w4_widened_without_scale", offsetof(struct cairn_impl, gemm_w4),
	  (void *)gemm_w4_widened_without_scale,
	  "above 256 rows, does not multiply with the scale of the tensor" },
	{ "gemm_w4_widened_without_half_tile", offsetof(struct cairn_impl, gemm_w4),
	  (void *)gemm_w4_widened_without_half_tile,
	  "above 256 rows, leaves out the last k modulo 64 elements" },
	{ 0 }
};
