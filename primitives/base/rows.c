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
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)(codes[i] & 0x7f) << 20;	/* as cairn_e4m3_to_float() does */
		float f;

		memcpy(&f, &bits, sizeof(f));
		f = (codes[i] & 0x7f) == 0x7f ? NAN : f * 0x1p120f;
		dst[i] = (double)(codes[i] & 0x80 ? -f : f) * scale;
	}
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

/*
 * Four partial sums, of every fourth group of LANES numbers: one alone would wait for its own last addition.
 */
#define LANES	8
typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(8)));

static inline __attribute__((always_inline)) double add_up(const lanes *part)
{
	lanes all = (part[0] + part[1]) + (part[2] + part[3]);
	double sum = 0;

	for (int i = 0; i < LANES; i++)
		sum += all[i];
	return sum;
}

CAIRN_WIDE double cairn_dot(const double *x, const double *y, int64_t n)
{
	lanes part[4] = { 0 };
	double rest = 0;
	int64_t i = 0;

	for (; i + 4 * LANES <= n; i += 4 * LANES) {
		const lanes *u = (const lanes *)(x + i), *v = (const lanes *)(y + i);

		part[0] += u[0] * v[0];
		part[1] += u[1] * v[1];
		part[2] += u[2] * v[2];
		part[3] += u[3] * v[3];
	}
	for (; i + LANES <= n; i += LANES)
		part[0] += *(const lanes *)(x + i) * *(const lanes *)(y + i);
	for (; i < n; i++)
		rest += x[i] * y[i];
	return add_up(part) + rest;
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

CAIRN_WIDE double cairn_dot_squares(const double *x, const double *y, int64_t n)
{
	lanes part[4] = { 0 };
	double rest = 0;
	int64_t i = 0;

	for (; i + 4 * LANES <= n; i += 4 * LANES) {
		const lanes *u = (const lanes *)(x + i), *v = (const lanes *)(y + i);

		part[0] += u[0] * v[0] * (u[0] * v[0]);
		part[1] += u[1] * v[1] * (u[1] * v[1]);
		part[2] += u[2] * v[2] * (u[2] * v[2]);
		part[3] += u[3] * v[3] * (u[3] * v[3]);
	}
	for (; i < n; i++)
		rest += x[i] * y[i] * (x[i] * y[i]);
	return add_up(part) + rest;
}

CAIRN_WIDE double cairn_dot_bounded(const double *x, const double *y, int64_t n, double least_x,
				    double least_y, double *magnitude)
{
	double sum = 0, size = 0;

	#pragma omp simd reduction(+:sum, size)
	for (int64_t i = 0; i < n; i++) {
		double a = fabs(x[i]), b = fabs(y[i]), both = (a > least_x ? a : least_x) *
							      (b > least_y ? b : least_y);

		sum += x[i] * y[i];
		size += a == 0 || b == 0 ? 0 : both;
	}
	*magnitude = size;
	return sum;
}
