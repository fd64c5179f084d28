// SPDX-License-Identifier: Apache-2.0
/* rows - rows of numbers in double, for the references */
#include "primitives/base/rows.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"

#define CHUNK	256

CAIRN_WIDE void cairn_widen(double *dst, const void *p, int dtype, int64_t first, int64_t n)
{
	float part[CHUNK];

	for (int64_t from = 0; from < n; from += CHUNK) {
		int64_t len = n - from < CHUNK ? n - from : CHUNK;

		cairn_load_row(part, p, dtype, first + from, len);
		for (int64_t i = 0; i < len; i++)
			dst[from + i] = (double)part[i];
	}
}

CAIRN_WIDE void cairn_widen_e4m3(double *dst, const uint8_t *codes, double scale, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		dst[i] = (double)cairn_e4m3_to_float(codes[i]) * scale;
}

CAIRN_WIDE void cairn_narrow(void *p, int dtype, int64_t first, const double *src, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		if (dtype == CAIRN_F32)
			((float *)p)[first + i] = (float)src[i];
		else if (dtype == CAIRN_BF16)
			((uint16_t *)p)[first + i] = cairn_double_to_bf16(src[i]);
		else if (dtype == CAIRN_F16)
			((uint16_t *)p)[first + i] = cairn_double_to_f16(src[i]);
		else
			cairn_store(p, dtype, first + i, src[i]);
	}
}

/* Keeps four partial sums, each over a quarter of the row, so that additions need not wait for each other. */
CAIRN_WIDE double cairn_dot(const double *x, const double *y, int64_t n)
{
	const int64_t q = n / 4;
	double a = 0, b = 0, c = 0, d = 0;

	#pragma omp simd reduction(+:a, b, c, d)
	for (int64_t i = 0; i < q; i++) {
		a += x[i] * y[i];
		b += x[q + i] * y[q + i];
		c += x[2 * q + i] * y[2 * q + i];
		d += x[3 * q + i] * y[3 * q + i];
	}
	for (int64_t i = 4 * q; i < n; i++)
		a += x[i] * y[i];
	return (a + b) + (c + d);
}

/* The products of three rows of x with two of y */
static inline __attribute__((always_inline)) void
three_by_two(double *out, int64_t stride, const double *x, int64_t x_stride, const double *y, int64_t n)
{
	const double *first = x, *second = x + x_stride, *third = second + x_stride, *even = y, *odd = y + n;
	double a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;

	#pragma omp simd reduction(+:a, b, c, d, e, f)
	for (int64_t i = 0; i < n; i++) {
		a += first[i] * even[i];
		b += first[i] * odd[i];
		c += second[i] * even[i];
		d += second[i] * odd[i];
		e += third[i] * even[i];
		f += third[i] * odd[i];
	}
	out[0] = a;
	out[1] = b;
	out[stride] = c;
	out[stride + 1] = d;
	out[2 * stride] = e;
	out[2 * stride + 1] = f;
}

CAIRN_WIDE void cairn_products(double *out, int64_t stride, const double *x, int64_t x_stride, int64_t rows,
			       const double *y, int64_t cols, int64_t n)
{
	for (int64_t j = 0; j < cols; j += 2) {	/* these rows of y stay in the cache */
		const int64_t num = cols - j < 2 ? 1 : 2, tiled = num < 2 ? 0 : rows / 3 * 3;

		for (int64_t i = 0; i < tiled; i += 3)
			three_by_two(out + i * stride + j, stride, x + i * x_stride, x_stride, y + j * n, n);
		for (int64_t i = tiled; i < rows; i++)
			for (int64_t c = 0; c < num; c++)
				out[i * stride + j + c] = cairn_dot(x + i * x_stride, y + (j + c) * n, n);
	}
}

CAIRN_WIDE void cairn_add_scaled(double *y, double a, const double *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] += a * x[i];
}

CAIRN_WIDE void cairn_add_rows(double *y, const double *a, const double *x, int64_t stride, int64_t rows,
			       int64_t n)
{
	int64_t r = 0;

	for (; r + 4 <= rows; r += 4) {
		const double *p = x + r * stride, *q = p + stride, *s = q + stride, *t = s + stride;

		for (int64_t i = 0; i < n; i++)
			y[i] = y[i] + a[r] * p[i] + a[r + 1] * q[i] + a[r + 2] * s[i] + a[r + 3] * t[i];
	}
	for (; r < rows; r++)
		for (int64_t i = 0; i < n; i++)
			y[i] += a[r] * x[r * stride + i];
}

static inline double square(double x)
{
	return x * x;
}

CAIRN_WIDE double cairn_dot_squares(const double *x, const double *y, int64_t n)
{
	const int64_t half = n / 2;
	double a = 0, b = 0;

	#pragma omp simd reduction(+:a, b)
	for (int64_t i = 0; i < half; i++) {
		a += square(x[i] * y[i]);
		b += square(x[half + i] * y[half + i]);
	}
	for (int64_t i = 2 * half; i < n; i++)
		a += square(x[i] * y[i]);
	return a + b;
}

/* |x|, at least `least` if it is not 0 */
static inline double size_of(double x, double least)
{
	double a = fabs(x);

	return a == 0 ? 0 : a > least ? a : least;
}

CAIRN_WIDE double cairn_dot_bounded(const double *x, const double *y, int64_t n, double least_x,
				    double least_y, double *magnitude)
{
	const int64_t half = n / 2;
	double a = 0, b = 0, size_a = 0, size_b = 0;

	#pragma omp simd reduction(+:a, b, size_a, size_b)
	for (int64_t i = 0; i < half; i++) {
		a += x[i] * y[i];
		b += x[half + i] * y[half + i];
		size_a += size_of(x[i], least_x) * size_of(y[i], least_y);
		size_b += size_of(x[half + i], least_x) * size_of(y[half + i], least_y);
	}
	for (int64_t i = 2 * half; i < n; i++) {
		a += x[i] * y[i];
		size_a += size_of(x[i], least_x) * size_of(y[i], least_y);
	}
	*magnitude = size_a + size_b;
	return a + b;
}
