/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_w4_inputs - experts' weights in 4 bits for the cases of moe_test
 *
 * Codes are random; scales differ by up to a factor of four. With INT, scales may be negative or 0, and
 * zero points are 0 to 16. With NV, scales may also be negative or 0, and the factors have the weights'
 * size, which e4m3 does not. Weights for EXACT are 0 except for `some` elements of a row, which are 1, 2 or
 * their negatives times a power of two.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_MOE_W4_INPUTS_H
#define CAIRN_MOE_W4_INPUTS_H

#include <math.h>
#include <string.h>

#include "fused/moe/moe_w4.h"
#include "primitives/base/dtype.h"
#include "primitives/base/fp8.h"

/* Returns the bytes of the scales and zero points of one expert's matrix. */
static int64_t moe_w4_cells(const struct cairn_moe_args *a, int32_t n, int32_t k)
{
	return cairn_w4_scale_bytes(cairn_moe_w4_format(a->w4), n, k, cairn_moe_w4_group(a->w4));
}

#define NV_SCALE	16	/* in the middle of the range of e4m3 */

/* Fills a cell; size: deviation of the weights; exact: powers of two, and zero points of 8. */
static void fill_cell(struct cairn_op *op, int32_t format, uint8_t *cell, double size, int exact)
{
	for (int i = 0; i < CAIRN_W4_ROWS; i++) {
		const int64_t power = cairn_op_range(op, -1, 1), part = cairn_op_range(op, 500, 1500);
		double v = exact ? ldexp(1, (int)power) : size * (double)part / 1000;

		if (format == CAIRN_W4_MX) {	/* the codes' deviation is 2.9 */
			cell[i] = (uint8_t)(127 + power + (exact ? 0 : lround(log2(size / 2.9))));
			continue;
		}
		v *= part % 32 == 9 ? 0 : part % 5 == 2 ? -1 : 1;
		if (format == CAIRN_W4_NV) {
			cell[i] = cairn_float_to_e4m3((float)(exact ? v : v / size * NV_SCALE));
			continue;
		}
		v /= exact ? 1 : 4.6;
		cairn_store(cell, CAIRN_F16, i, v);
		cell[2 * CAIRN_W4_ROWS + i] = exact ? 8 : (uint8_t)cairn_op_range(op, 0, 16);
	}
}

/* Sets an element of a matrix to v, -2 to 2, where zero points are 8. */
static void set_code(const struct cairn_gemm_w4_args *g, uint8_t *b, int64_t j, int64_t l, int64_t v)
{
	const int64_t at = cairn_w4_nibble(g->k, j, l), size = v < 0 ? -v : v;
	const int64_t code = g->format == CAIRN_W4_INT ? 8 + v : size * 2 + (v < 0 ? 8 : 0);
	const int shift = at % 8 * 4;
	uint8_t *word = b + at / 8 * 4;
	const uint32_t old = cairn_w4_nibbles(g->format, cairn_w4_load_word(word));

	cairn_w4_store_word(word, cairn_w4_ordered(g->format, (old & ~(15u << shift)) |
							      (uint32_t)code << shift));
}

/* some: 0, or for EXACT the number of elements of a row that are not 0 */
static void moe_fill_w4(struct cairn_op *op, uint8_t *codes, uint8_t *cells, int32_t num, int32_t n,
			int32_t k, double size, int some)
{
	const struct cairn_moe_args *a = op->args;
	const struct cairn_gemm_w4_args g = cairn_moe_w4_matrix(a->w4, codes, cells, 0, n, k);
	const int64_t bytes = cairn_w4_code_bytes(n, k);

	for (int64_t at = 0; at < num * bytes; at += 8) {
		uint64_t r = cairn_op_rand(op);

		memcpy(codes + at, &r, sizeof(r));
	}
	if (some)
		memset(codes, g.format == CAIRN_W4_INT ? 0x88 : 0, (size_t)(num * bytes));
	for (int64_t i = 0; i < (int64_t)num * n * some; i++) {
		int64_t v = cairn_op_range(op, 1, 2), row = i / some, l = cairn_op_range(op, 0, k - 1);

		set_code(&g, codes + row / n * bytes, row % n, l, cairn_op_rand(op) & 1 ? v : -v);
	}
	for (int64_t at = 0; at < num * moe_w4_cells(a, n, k); at += cairn_w4_cell_bytes(g.format))
		fill_cell(op, g.format, cells + at, size, some > 0);
}

/* Fills the factors of NV. size, exact: as in fill_cell() */
static void moe_fill_factors(struct cairn_op *op, float *factors, int64_t num, double size, int exact)
{
	for (int64_t i = 0; i < num; i++) {
		const int64_t power = cairn_op_range(op, -1, 1), part = cairn_op_range(op, 500, 1500);

		factors[i] = exact ? ldexpf(1, (int)power) :
			     (float)(size / 2.9 / NV_SCALE * (double)part / 1000 * (part % 5 == 2 ? -1 : 1));
	}
}

/*
 * Multiplies all scales by `factor`, as far as the format allows; MX: by the nearest power of two; NV: the
 * factors, 2 of each expert's gates and ups or 1 of its down.
 */
static void moe_times_w4(const struct cairn_moe_args *a, uint8_t *cells, float *factors, int64_t num_factors,
			 int32_t num, int32_t n, int32_t k, double factor)
{
	const int32_t format = cairn_moe_w4_format(a->w4);

	for (int64_t i = 0; i < num_factors; i++)
		factors[i] *= (float)factor;
	if (num_factors)
		return;
	for (int64_t at = 0; at < num * moe_w4_cells(a, n, k); at += cairn_w4_cell_bytes(format))
		for (int i = 0; i < CAIRN_W4_ROWS; i++) {
			uint8_t *cell = cells + at;

			if (format == CAIRN_W4_MX)
				cell[i] = (uint8_t)fmax(1, fmin(cell[i] + round(log2(factor)), 254));
			else
				cairn_store(cell, CAIRN_F16, i,
					    fmax(-6e4, fmin(cairn_load(cell, CAIRN_F16, i) * factor, 6e4)));
		}
}

static void moe_poison_w4(const struct cairn_moe_args *a, uint8_t *cells, int64_t expert, int32_t n,
			  int32_t k)
{
	const int64_t bytes = moe_w4_cells(a, n, k);

	cairn_fill_nan(cells, CAIRN_U8, expert * bytes, bytes);
}

#endif
