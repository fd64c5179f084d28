// SPDX-License-Identifier: Apache-2.0
/*
 * silu_mul_cpu - computes in fp32, in parallel over chunks of rows
 *
 * For g < 0 the product is computed as up t g t / (1 + t t) with t = exp(g / 2): exp(g) itself would be
 * subnormal below -87, where a large up can still bring the result back into range. gelu differs only in the
 * argument of exp.
 */
#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "primitives/rows/quant_fp8w.h"
#include "primitives/rows/silu_mul.h"

#define CHUNK	1024
#define GELU_1	1.5957691216057308f	/* 2 sqrt(2 / pi) */
#define GELU_3	0.044715f

/*
 * Returns exp(x) for x <= 0, and NaN for NaN, by arithmetic that vectorises: 2^n exp(r), |r| <= ln(2) / 2.
 * The power of two is multiplied in two halves, because it may be too small for one.
 */
static inline float exp_of_negative(float x)
{
	float n, r, p, low, high;
	uint32_t bits;
	int32_t e;

	x = x < -110 ? -110 : x;	/* exp is 0 in fp32 */
	n = x * 1.44269504f + 0x1.8p23f;	/* an integer in the low bits */
	memcpy(&bits, &n, sizeof(bits));
	e = (int32_t)(bits - 0x4b400000);
	n -= 0x1.8p23f;
	r = x - n * 0x1.62e4p-1f;	/* this part of ln(2) has few bits: the product is exact */
	r -= n * 0x1.7f7d1cp-20f;
	p = 1.0f / 720 + r * (1.0f / 5040);
	p = 1.0f / 120 + r * p;
	p = 1.0f / 24 + r * p;
	p = 1.0f / 6 + r * p;
	p = 0.5f + r * p;
	p = 1 + (r + r * r * p);
	bits = (uint32_t)((e >> 1) + 127) << 23;
	memcpy(&low, &bits, sizeof(low));
	bits = (uint32_t)(e - (e >> 1) + 127) << 23;
	memcpy(&high, &bits, sizeof(high));
	return p * low * high;
}

/*
 * Computes up to CHUNK elements of row i, and writes them to `out` from element `to` on. The loops contain no
 * calls, so that compilers vectorise them.
 */
CAIRN_WIDE static void chunk_of_row(const struct cairn_silu_mul_args *a, int32_t i, int32_t first, void *out,
				    int64_t to)
{
	int32_t n = a->dim - first < CHUNK ? a->dim - first : CHUNK;
	int64_t at = 2 * (int64_t)i * a->dim + first;
	float g[CHUNK], up[CHUNK], t[CHUNK];

	cairn_load_row(g, a->x, a->dtype, at, n);
	cairn_load_row(up, a->x, a->dtype, at + a->dim, n);
	for (int32_t j = 0; j < n; j++) {
		float z;

		g[j] = g[j] < -256 ? -256 : g[j];	/* t is 0 here, and -INFINITY * 0 would be NaN */
		z = a->activation ? GELU_1 * g[j] * (1 + GELU_3 * (g[j] * g[j])) : g[j];
		t[j] = g[j] < 0 ? 0.5f * z : -z;
	}
	for (int32_t j = 0; j < n; j++)
		t[j] = exp_of_negative(t[j]);
	for (int32_t j = 0; j < n; j++) {
		float s = g[j] < 0 ? t[j] : 1, d = 1 + (g[j] < 0 ? t[j] * t[j] : t[j]);

		g[j] = up[j] * s / d * g[j] * s;
	}
	cairn_store_row(out, a->dtype, to, g, n);
}

/* Computes row i on the stack, copies it to out if that is given, and quantises it. */
static void quantised_row(const struct cairn_silu_mul_args *a, int32_t i)
{
	uint16_t row[CAIRN_SILU_MUL_MOST_Q];
	struct cairn_quant_fp8w_args quant = {
		.size = sizeof(quant), .b = a->q, .scale = a->q_scale, .w = row, .n = a->rows, .k = a->dim,
		.dtype = a->dtype, .scale_kind = a->q_kind,
	};

	for (int32_t first = 0; first < a->dim; first += CHUNK)
		chunk_of_row(a, i, first, row, first);
	if (a->out)
		memcpy((uint16_t *)a->out + (int64_t)i * a->dim, row, (size_t)a->dim * sizeof(*row));
	cairn_quant_fp8w_cpu_row(&quant, i);
}

int cairn_silu_mul_cpu(const struct cairn_silu_mul_args *args, void *stream)
{
	struct cairn_silu_mul_args a;
	int32_t chunks;

	(void)stream;
	CAIRN_TRY(cairn_silu_mul_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	chunks = (a.dim + CHUNK - 1) / CHUNK;
	if (a.q) {
		#pragma omp parallel for schedule(static) if (a.rows > 1)
		for (int32_t i = 0; i < a.rows; i++)
			quantised_row(&a, i);
		return 0;
	}
	#pragma omp parallel for schedule(static) collapse(2) if (a.rows * (int64_t)chunks > 4)
	for (int32_t i = 0; i < a.rows; i++)
		for (int32_t c = 0; c < chunks; c++)
			chunk_of_row(&a, i, c * CHUNK, a.out, (int64_t)i * a.dim + c * CHUNK);
	return 0;
}
