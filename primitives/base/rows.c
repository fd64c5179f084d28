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

CAIRN_WIDE double cairn_dot(const double *x, const double *y, int64_t n)
{
	double sum = 0;

	#pragma omp simd reduction(+:sum)
	for (int64_t i = 0; i < n; i++)
		sum += x[i] * y[i];
	return sum;
}

CAIRN_WIDE void cairn_add_scaled(double *y, double a, const double *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] += a * x[i];
}

CAIRN_WIDE double cairn_dot_squares(const double *x, const double *y, int64_t n)
{
	double sum = 0;

	#pragma omp simd reduction(+:sum)
	for (int64_t i = 0; i < n; i++)
		sum += x[i] * y[i] * (x[i] * y[i]);
	return sum;
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
