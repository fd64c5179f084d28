// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8_ref - the reference in double, and the error bound
 *
 * A chunk of 128 products may be summed by tensor cores. In each step of 32 products, each product, and the
 * sum so far, loses at most A = 2^-13 of the largest of them by truncation: cut_off() adds up these losses.
 * For that largest one, a code that is subnormal or 0 counts as 2^-6, because products are aligned by the
 * exponents of their codes. An implementation may take the steps in another order, so that the bound of a
 * chunk is at least (128 / 32) A sum |a b|. If sum |a b| is at most 2^13 times the lowest bit of any product,
 * nothing is truncated. The same bound covers an implementation that sums a chunk in fp32: 128 2^-24
 * sum |a b| is less, and exact where nothing is truncated.
 *
 * The scaled chunks are added in fp32. The product of two scales, its product with a chunk and each addition
 * round once: (k / 128 + 8) 2^-23 of the sum of magnitudes covers them, the bias, and kinds of scales that
 * multiply whole sums.
 */
#include "primitives/gemm/fp8/gemm_fp8.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "primitives/base/wide.h"

#define A	0x1p-13
#define CHUNK	CAIRN_GEMM_FP8_CHUNK
#define STEP	32		/* products that a tensor core adds at a time */

/* Only a sample of a large case's elements is judged: each takes the sums of all its steps. */
static int left_out(const struct cairn_gemm_fp8_args *g, int64_t e)
{
	const double products = (double)g->m * g->n * g->k;

	return products > CAIRN_GEMM_FP8_JUDGED &&
	       ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % (uint64_t)ceil(products / CAIRN_GEMM_FP8_JUDGED);
}

/* Widens a row of codes, with zeros up to the end of the last chunk. */
static void widen(float *to, const uint8_t *from, int32_t k)
{
	for (int32_t l = 0; l < k; l++)
		to[l] = cairn_e4m3_to_float(from[l]);
	for (int32_t l = k; l % CHUNK; l++)
		to[l] = 0;
}

/* Returns the lowest bit that is set in any of x, finite codes; 256 if none is. */
static inline double lowest_bit(const float *x)
{
	uint32_t bits = 1 << 17;

	#pragma omp simd reduction(|:bits)
	for (int c = 0; c < CHUNK; c++)
		bits |= (uint32_t)(int32_t)(fabsf(x[c]) * 512);
	return (double)(bits & -bits) / 512;
}

static inline double larger(double a, double b)
{
	return a > b ? a : b;
}

static inline double smaller(double a, double b)
{
	return a < b ? a : b;
}

/* Returns what truncation can cost in a chunk. */
static inline double cut_off(const float *x, const float *y)
{
	double lost = 0, sum = 0;

	for (int l = 0; l < CHUNK; l += STEP) {
		double top = fabs(sum), step = 0, size[STEP], least = 0x1p-6;

		#pragma omp simd reduction(+:step) reduction(max:top)
		for (int c = 0; c < STEP; c++) {
			double product = (double)x[l + c] * y[l + c];

			size[c] = fabs(product);
			step += product;
			top = larger(top, larger(fabs((double)x[l + c]), least) *
					  larger(fabs((double)y[l + c]), least));
		}
		lost += smaller(A * top, fabs(sum));
		#pragma omp simd reduction(+:lost)
		for (int c = 0; c < STEP; c++)
			lost += smaller(A * top, size[c]);
		sum += step;
	}
	return lost;
}

/* Adds chunk l of element [i, j], whose rows are a and b, to the sum, its magnitude and its error. */
static CAIRN_WIDE void add_chunk(const struct cairn_gemm_fp8_args *g, int64_t i, int64_t j, int64_t l,
				 const float *a, const float *b, double *sum, double *mag, double *error)
{
	double scale = (double)cairn_gemm_fp8_a_scale(g, i, l) * cairn_gemm_fp8_b_scale(g, j, l);
	double dot = 0, size = 0;

	#pragma omp simd reduction(+:dot, size)
	for (int c = 0; c < CHUNK; c++) {
		dot += (double)a[l + c] * b[l + c];
		size += fabs((double)a[l + c] * b[l + c]);
	}
	*sum += scale * dot;
	*mag += fabs(scale) * size;
	/* 7: the largest code times the smallest normal one, as which a 0 counts */
	if (error && isfinite(size) && larger(size, 7) > 0x1p13 * lowest_bit(a + l) * lowest_bit(b + l))
		*error += fabs(scale) * larger(CHUNK / STEP * A * size, cut_off(a + l, b + l));
}

/* Sets element [i, j] from the widened rows a and b. exact NULL: writes the rounded result to out. */
static void element(const struct cairn_gemm_fp8_args *g, int64_t i, int64_t j, const float *a, const float *b,
		    struct cairn_exact *exact)
{
	double bias = g->bias ? cairn_load(g->bias, g->dtype, j) : 0, sum = 0, mag = 0, error = 0;
	int64_t e = i * g->n + j;

	for (int64_t l = 0; l < g->k; l += CHUNK)
		add_chunk(g, i, j, l, a, b, &sum, &mag, exact ? &error : NULL);
	sum += bias;
	if (!exact) {
		cairn_store(g->out, g->out_dtype, e, sum);
		return;
	}
	exact->val[e] = sum;
	exact->bound[e] = !isfinite(sum) ? 0 :
			  error + (g->k / CHUNK + 8) * 0x1p-23 * (mag + fabs(bias)) +
			  cairn_dtype_roundoff(g->out_dtype) * fabs(sum) + cairn_dtype_tiny(g->out_dtype);
}

static size_t padded(int32_t k)
{
	return ((size_t)k + CHUNK - 1) / CHUNK * CHUNK;
}

static void one_row(const struct cairn_gemm_fp8_args *g, int64_t i, float *a, float *b,
		    struct cairn_exact *exact)
{
	widen(a, g->a + i * g->k, g->k);
	for (int64_t j = 0; j < g->n; j++) {
		if (exact && left_out(g, i * g->n + j)) {
			exact->val[i * g->n + j] = 0;
			exact->bound[i * g->n + j] = INFINITY;
			continue;
		}
		widen(b, g->b + j * g->k, g->k);
		element(g, i, j, a, b, exact);
	}
}

static int all_rows(const struct cairn_gemm_fp8_args *g, struct cairn_exact *exact)
{
	int no_memory = 0;

	#pragma omp parallel reduction(|:no_memory) if ((int64_t)g->m * g->n * g->k > 1 << 17)
	{
		float *a = malloc(sizeof(*a) * 2 * padded(g->k));

		no_memory |= !a;
		#pragma omp for schedule(dynamic)
		for (int64_t i = 0; i < g->m; i++)
			if (a)
				one_row(g, i, a, a + padded(g->k), exact);
		free(a);
	}
	return no_memory ? cairn_error(ENOMEM, "gemm_fp8: no memory for rows of %d", g->k) : 0;
}

/* Sets only the elements that the case names. */
static int wanted_elements(const struct cairn_gemm_fp8_args *g, struct cairn_exact *exact)
{
	float *a = malloc(sizeof(*a) * 2 * padded(g->k)), *b = a + padded(g->k);

	if (!a)
		return cairn_error(ENOMEM, "gemm_fp8: no memory for rows of %d", g->k);
	for (int r = 0; r < exact->num_wanted; r++)
		for (int64_t i = 0; i < exact->wanted[r].count; i++) {
			int64_t e = exact->wanted[r].first + i;

			widen(a, g->a + e / g->n * g->k, g->k);
			widen(b, g->b + e % g->n * g->k, g->k);
			element(g, e / g->n, e % g->n, a, b, exact);
		}
	free(a);
	return 0;
}

int cairn_gemm_fp8_ref(const struct cairn_gemm_fp8_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_fp8_check(g));
	return all_rows(g, NULL);
}

int cairn_gemm_fp8_exact(const struct cairn_gemm_fp8_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_fp8_check(g));
	return exact->num_wanted ? wanted_elements(g, exact) : all_rows(g, exact);
}
