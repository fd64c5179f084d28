// SPDX-License-Identifier: Apache-2.0
/* block_ref - projection, norm and silu with error bounds, for the references of fused operations */
#include "fused/block/block_ref.h"

#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/base/wide.h"

#define U32	0x1p-24		/* half an ulp of fp32 */
#define CHUNK	256

double block_rounded_either(double v, int dtype, uint64_t key)
{
	uint64_t box = 0, other;	/* wide enough for any dtype */
	double near, far, share;

	cairn_store(&box, dtype, 0, v);
	near = cairn_load(&box, dtype, 0);
	if (near == v || !isfinite(near))
		return near;
	other = near == 0 ? (v > 0 ? 1 : 0x8001) : (v > near) == (near > 0) ? box + 1 : box - 1;
	far = cairn_load(&other, dtype, 0);
	key *= 0x9e3779b97f4a7c15u;
	key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
	key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
	share = (double)((key ^ (key >> 31)) >> 11) * 0x1p-53;
	return share < (v - near) / (far - near) ? far : near;
}

CAIRN_WIDE int block_sums_exactly(const double *x, const double *y, int64_t n, double *magnitude)
{
	double sum = 0;
	int integers = 1;

	#pragma omp simd reduction(+:sum) reduction(&:integers)
	for (int64_t i = 0; i < n; i++) {
		integers &= x[i] == rint(x[i]) && y[i] == rint(y[i]);
		sum += fabs(x[i] * y[i]);
	}
	*magnitude += sum;
	return integers && *magnitude <= 0x1p24;
}

/* Returns one element of cairn_block_project(), without the bias. */
static double sum_of(const double *x, const void *w, int64_t at, int64_t k, int dtype)
{
	double row[CHUNK], sum = 0;

	for (int64_t j = 0; j < k; j += CHUNK) {
		int64_t n = k - j < CHUNK ? k - j : CHUNK;

		cairn_widen(row, w, dtype, at + j, n);
		sum += cairn_dot(x + j, row, n);
	}
	return sum;
}

/* Sums over the nonzero products: errors that come from in, magnitudes, and the number of products */
struct error_sums {
	double err, mag, terms;
};

static CAIRN_WIDE void add_errors(struct error_sums *s, const double *val, const double *errors,
				  const double *row, int64_t n, double normal)
{
	double err = s->err, mag = s->mag, terms = s->terms;

	#pragma omp simd reduction(+:err, mag, terms)
	for (int64_t j = 0; j < n; j++) {
		double e = errors[j], far = fabs(val[j]) + e, size = fabs(row[j]);
		double most = (far > normal ? far : normal) * (size > normal ? size : normal);
		int there = size != 0 && far != 0;

		err += there ? e * size : 0;
		mag += there ? most : 0;
		terms += there;
	}
	*s = (struct error_sums){ err, mag, terms };
}

/* Returns the bound on the error of the element that sum_of() returns. */
static double error_of(struct block_row in, const void *w, int64_t at, int64_t k, int dtype, double bias)
{
	double normal = dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, row[CHUNK];
	struct error_sums s = { 0 };

	for (int64_t j = 0; j < k; j += CHUNK) {
		int64_t n = k - j < CHUNK ? k - j : CHUNK;

		cairn_widen(row, w, dtype, at + j, n);
		add_errors(&s, in.val + j, in.err + j, row, n, normal);
	}
	return s.err + (s.terms + 2) * (U32 * (s.mag + bias) + 0x1p-150);
}

void cairn_block_project(struct block_row out, struct block_row in, const void *w, const void *bias,
			 int64_t n, int64_t k, int dtype)
{
	#pragma omp parallel for schedule(static) if (n * k > 65536)
	for (int64_t i = 0; i < n; i++) {
		double extra = bias ? cairn_load(bias, dtype, i) : 0;

		out.val[i] = sum_of(in.val, w, i * k, k, dtype) + extra;
		if (out.err)
			out.err[i] = error_of(in, w, i * k, k, dtype, fabs(extra));
	}
}

/*
 * The inverse root decreases as the sum grows, so its extremes are at the extremes of the sum. The fp32 sum
 * of squares has a relative error of at most n u, which the root halves; all other errors are within 16 u
 * (rmsnorm_ref.c).
 */
void cairn_block_norm(struct block_row out, struct block_row in, const void *w, int64_t n, double eps,
		      int dtype)
{
	double sum = 0, low = 0, high = 0, fp32 = (0.5 * (double)n + 16) * U32, s, s_low, s_high;

	for (int64_t j = 0; j < n; j++) {
		double x = fabs(in.val[j]), e = in.err ? in.err[j] : 0, least = fmax(x - e, 0), most = x + e;

		sum += x * x;
		low += least * least;
		high += most * most;
	}
	s = 1 / sqrt(sum / (double)n + eps);
	s_low = 1 / sqrt(high / (double)n + eps) * (1 - fp32);
	s_high = 1 / sqrt(low / (double)n + eps) * (1 + fp32);
	for (int64_t j = 0; j < n; j++) {
		double x = fabs(in.val[j]), e = in.err ? in.err[j] : 0, v = cairn_load(w, dtype, j);

		out.val[j] = in.val[j] * s * v;
		if (out.err)
			out.err[j] = fabs(v) * (fmax((x + e) * s_high - x * s,
						     x * s - (x - e) * s_low) + 0x1p-149);
		block_round(out, j, dtype);
	}
}

/* silu' is at most 1.1 and silu'' at most 0.5; fp32 errors are as in silu_mul_ref.c. */
void cairn_block_silu_mul(struct block_row g, int64_t n, int dtype)
{
	for (int64_t i = 0; i < n; i++) {
		double x = g.val[i], up = g.val[n + i], sigmoid = 1 / (1 + exp(-x)), silu = x * sigmoid;

		g.val[i] = silu * up;
		if (g.err) {
			double ex = g.err[i], eu = g.err[n + i], slope = fabs(sigmoid + silu * (1 - sigmoid));
			double off = fmin(1.1 * ex, slope * ex + 0.25 * ex * ex) +
				     16 * U32 * (1 + fmin(fabs(x), 1000)) * fabs(silu);

			g.err[i] = off * (fabs(up) + eu) + fabs(silu) * eu + 20 * 0x1p-150;
		}
		block_round(g, i, dtype);
	}
}
