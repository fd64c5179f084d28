/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows - rows of numbers in double, for the references
 *
 * A reference converts a row once and then uses it in many products. The functions are also compiled for
 * wider vectors (wide.h) and sum in an order that vectorises.
 */
#ifndef CAIRN_ROWS_H
#define CAIRN_ROWS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "primitives/base/dtype.h"

/* dst[i] = element first + i of an array of a float dtype */
void cairn_widen(double *dst, const void *p, int dtype, int64_t first, int64_t n);
/* dst[i] = scale times the value of e4m3 code i */
void cairn_widen_e4m3(double *dst, const uint8_t *codes, double scale, int64_t n);
/* The inverse of cairn_widen(): rounds each number once, as cairn_store() does */
void cairn_narrow(void *p, int dtype, int64_t first, const double *src, int64_t n);

double cairn_dot(const double *x, const double *y, int64_t n);
/*
 * out[i * stride + j] = dot product of row i of x and row j of y; rows of x are x_stride apart, those of y n.
 * Each row is loaded a half or a third as often as with cairn_dot().
 */
void cairn_products(double *out, int64_t stride, const double *x, int64_t x_stride, int64_t rows,
		    const double *y, int64_t cols, int64_t n);
/* Returns the sum of the squares of the products. */
double cairn_dot_squares(const double *x, const double *y, int64_t n);
/* y += a x */
void cairn_add_scaled(double *y, double a, const double *x, int64_t n);
/* y += a[r] times row r of x, in the order of the rows, which are `stride` apart. */
void cairn_add_rows(double *y, const double *a, const double *x, int64_t stride, int64_t rows, int64_t n);

/*
 * Also sets *magnitude to the sum of |x| |y| over the nonzero products. An |x| below least_x counts as
 * least_x, and a |y| below least_y as least_y.
 */
double cairn_dot_bounded(const double *x, const double *y, int64_t n, double least_x, double least_y,
			 double *magnitude);

/* Returns the exponent of the lowest bit of v, which is normal and not 0. */
static inline int cairn_low_bit(double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	return (int)(bits >> 52 & 0x7ff) - 1023 - 52 + __builtin_ctzll(bits | 1ull << 52);
}

/*
 * Returns the largest error of rounding a number of at most this magnitude to dtype: half the distance
 * between neighbours there. This can be half of roundoff times the magnitude; the simpler, wider bound would
 * hide small errors that were made before the rounding.
 */
static inline double cairn_rounding(int dtype, double most)
{
	uint64_t bits;
	double power;

	memcpy(&bits, &most, sizeof(bits));
	bits &= 0x7ffull << 52;		/* the largest power of 2 that is not above it */
	memcpy(&power, &bits, sizeof(power));
	return fmax(cairn_dtype_roundoff(dtype) * power, cairn_dtype_tiny(dtype));
}

#endif
