// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_w4_ref - the reference in double, and the error bound
 *
 * The bound is that of gemm_ref.c, because the products, a times a code's value, are exact in fp32 here, too.
 * The sum of a group is multiplied by the group's scale and by `scale`, and is added to a total; k + 12
 * covers these roundings. Above EXACT_M, rounding s, c s and scale c s to dtype changes each by at most v of
 * it, or by w, half the spacing of dtype's subnormals. The change of s is multiplied by c, at most 16 in
 * magnitude, and both that and the change of c s by `scale`.
 *
 * Up to EXACT_M, an implementation may compute the sums of e2m1 formats 2^r too small, so that they may
 * become subnormal. A subnormal product loses up to 2^-149. That is 2^(r - 149) |scale s| in out, where
 * |scale s| is at most 2 |b|, because |c| is at least 1/2 if it is not 0. Subnormal products add up exactly.
 * Each of up to k additions to a total loses up to 2^-150, which is 2^(r - 150) |scale| in out.
 */
#include "primitives/gemm/w4/gemm_w4.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/base/wide.h"
#include "primitives/gemm/gemm_walk.h"
#include "primitives/gemm/w4/gemm_w4_value.h"

/* scale c s of row j of b */
static void load_row(const void *args, int64_t j, double *b)
{
	const struct cairn_gemm_w4_args *g = args;
	int64_t group = g->group ? g->group : g->k;
	double scaled[16];

	for (int64_t first = 0; first < g->k; first += group) {
		const double scale = (double)g->scale * (double)cairn_w4_scale(g, j, first / group);
		const int64_t end = first + group < g->k ? first + group : g->k;
		float values[16];

		cairn_w4_values(g, j, first / group, values);
		for (int code = 0; code < 16; code++)
			scaled[code] = scale * (double)values[code];
		for (int64_t l = first; l < end; l++)
			b[l] = scaled[cairn_w4_code(g->format, g->b, g->k, j, l)];
	}
}

/* The largest change of the sum when weights are rounded to dtype */
static CAIRN_WIDE double moved_by(const struct cairn_gemm_w4_args *g, const double *a, const double *b)
{
	double v = cairn_dtype_roundoff(g->dtype), w = cairn_dtype_tiny(g->dtype), moved = 0;
	double relative = (1 + v) * (1 + v) * (1 + v) - 1, absolute = (1 + 17 * fabs((double)g->scale)) * w;

	#pragma omp simd reduction(+:moved)
	for (int l = 0; l < g->k; l++)
		moved += b[l] == 0 ? 0 : fabs(a[l]) * (relative * fabs(b[l]) + absolute);
	return moved;
}

/* The largest change of the sum when it is computed 2^r too small */
static CAIRN_WIDE double lost_small(const struct cairn_gemm_w4_args *g, const double *b)
{
	double sum = 0, up = g->dtype == CAIRN_F16 ? 0x1p14 : 0x1p26;

	#pragma omp simd reduction(+:sum)
	for (int l = 0; l < g->k; l++)
		sum += fabs(b[l]);
	return up * (0x1p-148 * sum + 0x1p-150 * g->k * fabs((double)g->scale));
}

/*
 * Sets element [i, j] from rows a of g->a and b of g->b. rounds: weights may be rounded to dtype. exact NULL:
 * writes the rounded result to out.
 */
static void set_element(const struct cairn_gemm_w4_args *g, int rounds, int64_t i, int64_t j, const double *a,
			const double *b, struct cairn_exact *exact)
{
	double normal = g->dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, mag, moved = 0;
	double bias = g->bias ? cairn_load(g->bias, g->dtype, j) : 0;
	double u = cairn_dtype_roundoff(g->out_dtype), tiny = cairn_dtype_tiny(g->out_dtype);
	int64_t e = i * g->n + j;

	if (!exact) {
		cairn_store(g->out, g->out_dtype, e, cairn_dot(a, b, g->k) + bias);
		return;
	}
	exact->val[e] = cairn_dot_bounded(a, b, g->k, normal, rounds ? normal : 0, &mag) + bias;
	if (rounds)
		moved = moved_by(g, a, b);
	else if (g->format != CAIRN_W4_INT)
		moved = lost_small(g, b);
	exact->bound[e] = !isfinite(exact->val[e]) ? 0 :
			  (g->k + 12) * 0x1p-24 * (mag + fabs(bias)) + g->k * 0x1p-150 + moved +
			  u * fabs(exact->val[e]) + tiny;
}

static void element(const void *args, int64_t i, int64_t j, const double *a, const double *b,
		    struct cairn_exact *exact)
{
	const struct cairn_gemm_w4_args *g = args;

	set_element(g, g->m > CAIRN_GEMM_W4_EXACT_M, i, j, a, b, exact);
}

static void peer_element(const void *args, int64_t i, int64_t j, const double *a, const double *b,
			 struct cairn_exact *exact)
{
	set_element(args, 1, i, j, a, b, exact);
}

static struct cairn_gemm_walk walk_of(const struct cairn_gemm_w4_args *g)
{
	return (struct cairn_gemm_walk){ "gemm_w4", g, g->a, g->m, g->n, g->k, g->dtype, load_row, element };
}

static int walk(const struct cairn_gemm_w4_args *g, struct cairn_exact *exact)
{
	const struct cairn_gemm_walk w = walk_of(g);

	return cairn_gemm_walk(&w, exact);
}

int cairn_gemm_w4_ref(const struct cairn_gemm_w4_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_w4_check(g));
	return walk(g, NULL);
}

int cairn_gemm_w4_exact(const struct cairn_gemm_w4_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_w4_check(g));
	return walk(g, exact);
}

int cairn_gemm_w4_peer_exact(const struct cairn_gemm_w4_args *g, struct cairn_exact *exact)
{
	struct cairn_gemm_walk w;

	CAIRN_TRY(cairn_gemm_w4_check(g));
	w = walk_of(g);
	w.element = peer_element;
	return cairn_gemm_walk(&w, exact);
}
