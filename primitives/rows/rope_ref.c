// SPDX-License-Identifier: Apache-2.0
/*
 * rope_ref - the reference, in double, and the bound
 *
 * The angle is the fp32 product of position and frequency, rounded once, and thereby the same number
 * everywhere: at a position of 100000 the exact product would be another rotation. Sine and cosine to
 * 2 ulp of 1, two products, a difference and the scale: within 8 2^-24 of (|x[a]| + |x[b]|) |scale|. Then
 * one rounding to dtype, or to its subnormals. What is not rotated is left alone, to the bit.
 *
 * A norm errs as rmsnorm's does (rmsnorm_ref.c): by (head_dim / 2 + 16) 2^-24 of each of the two terms.
 */
#include "primitives/rows/rope.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MAX_DIM	512

static int check_stride(int64_t stride, int32_t heads, int32_t head_dim, const char *what)
{
	if (heads < 1)
		return cairn_error(EINVAL, "rope: %s: has %d heads", what, heads);
	if (stride && (stride % 8 || stride < (int64_t)heads * head_dim))
		return cairn_error(EINVAL, "rope: %s_stride: %lld is not a multiple of 8 that holds a row",
				   what, (long long)stride);
	return 0;
}

int cairn_rope_check(const struct cairn_rope_args *a)
{
	if (!a || a->size < sizeof(*a))
		return cairn_error(EINVAL, "rope: args: null or too short");
	if (a->nnz < 0 || a->head_dim < 1 || a->rotary_dim < 1 || a->rotary_dim > a->head_dim)
		return cairn_error(EINVAL, "rope: nnz %d, head_dim %d, rotary_dim %d: no such shape", a->nnz,
				   a->head_dim, a->rotary_dim);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "rope: dtype: %d is not supported", a->dtype);
	if (a->head_dim % 16 || a->rotary_dim % 16 || a->head_dim > MAX_DIM)
		return cairn_error(EOPNOTSUPP,
				   "rope: head_dim %d, rotary_dim %d: not multiples of 16 up to 512",
				   a->head_dim, a->rotary_dim);
	if (!isfinite(a->scale))
		return cairn_error(EINVAL, "rope: scale: must be finite");
	CAIRN_TRY(check_stride(a->q_stride, a->num_qo_heads, a->head_dim, "q"));
	if (a->k)
		CAIRN_TRY(check_stride(a->k_stride, a->num_kv_heads, a->head_dim, "k"));
	if ((a->q_norm || (a->k && a->k_norm)) && !(a->norm_eps > 0 && isfinite(a->norm_eps)))
		return cairn_error(EINVAL, "rope: norm_eps: must be > 0 and finite");
	if (a->nnz == 0)
		return 0;
	if (!a->q || !a->inv_freq || !a->positions)
		return cairn_error(EINVAL, "rope: q, inv_freq, positions: must not be null");
	if (((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->q_norm | (uintptr_t)a->k_norm) & 15)
		return cairn_error(EINVAL, "rope: q, k, q_norm, k_norm: must be 16-byte aligned");
	return 0;
}

/* One of q and k: what is rotated, and by which weights it is normalised before. */
struct part {
	void *x;
	const void *norm;
	int32_t heads;
	int64_t stride;
};

static struct part part_of(const struct cairn_rope_args *a, int k)
{
	struct part p = { k ? a->k : a->q, k ? a->k_norm : a->q_norm, k ? a->num_kv_heads : a->num_qo_heads,
			  k ? a->k_stride : a->q_stride };

	if (!p.stride)
		p.stride = (int64_t)p.heads * a->head_dim;
	return p;
}

/* The head whose elements begin at `at`, normalised if it is to be. */
static void load_head(const struct cairn_rope_args *a, const struct part *part, int64_t at, double *x)
{
	double sum = 0;

	for (int32_t j = 0; j < a->head_dim; j++) {
		x[j] = cairn_load(part->x, a->dtype, at + j);
		sum += x[j] * x[j];
	}
	for (int32_t j = 0; part->norm && j < a->head_dim; j++)
		x[j] *= 1 / sqrt(sum / a->head_dim + (double)a->norm_eps) *
			cairn_load(part->norm, a->dtype, j);
}

/*
 * visit() takes the exact new value of element i and how far from it, before the last rounding, one may be.
 */
static void each_head(const struct cairn_rope_args *a, const struct part *part, int32_t row, int32_t head,
		      void (*visit)(void *ctx, int64_t i, double v, double room), void *ctx)
{
	double x[MAX_DIM], u = 0x1p-24 * (part->norm ? a->head_dim / 2.0 + 24 : 8), scale = a->scale;
	double tiny = 4 * 0x1p-150 * (1 + fabs(scale));
	int64_t at = row * part->stride + (int64_t)head * a->head_dim;
	int32_t half = a->rotary_dim / 2;

	load_head(a, part, at, x);
	/* s x may be subnormal before the weight enlarges it */
	for (int32_t j = 0; part->norm && j < a->head_dim; j++)
		tiny = fmax(tiny, 0x1p-148 * fabs(cairn_load(part->norm, a->dtype, j)) * (1 + fabs(scale)));
	for (int32_t p = 0; p < half; p++) {
		int32_t ia = a->interleaved ? 2 * p : p, ib = a->interleaved ? 2 * p + 1 : p + half;
		float angle = (float)a->positions[row] * a->inv_freq[p];
		double c = cos((double)angle), s = sin((double)angle), xa = x[ia], xb = x[ib];
		double room = u * (fabs(xa) + fabs(xb)) * fabs(scale) + tiny;

		visit(ctx, at + ia, (xa * c - xb * s) * scale, room);
		visit(ctx, at + ib, (xb * c + xa * s) * scale, room);
	}
	for (int32_t j = a->rotary_dim; part->norm && j < a->head_dim; j++)
		visit(ctx, at + j, x[j], u * fabs(x[j]) + tiny);
}

static void each_element(const struct cairn_rope_args *a, int k,
			 void (*visit)(void *ctx, int64_t i, double v, double room), void *ctx)
{
	struct part part = part_of(a, k);

	#pragma omp parallel for
	for (int32_t i = 0; i < a->nnz; i++)
		for (int32_t h = 0; h < part.heads; h++)
			each_head(a, &part, i, h, visit, ctx);
}

struct sink {
	struct cairn_exact *exact;
	void *x;
	int dtype;
};

static void to_exact(void *ctx, int64_t i, double v, double room)
{
	const struct sink *s = ctx;

	s->exact->val[i] = v;
	s->exact->bound[i] = isfinite(v) ? room + cairn_dtype_roundoff(s->dtype) * fabs(v) +
					   cairn_dtype_tiny(s->dtype) : 0;
}

static void to_memory(void *ctx, int64_t i, double v, double room)
{
	const struct sink *s = ctx;

	(void)room;
	cairn_store(s->x, s->dtype, i, v);
}

int cairn_rope_exact(const struct cairn_rope_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_rope_check(a));
	for (int k = 0; k < (a->k ? 2 : 1); k++)
		each_element(a, k, to_exact, &(struct sink) { .exact = &exact[k], .dtype = a->dtype });
	return 0;
}

int cairn_rope_ref(const struct cairn_rope_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_rope_check(a));
	for (int k = 0; k < (a->k ? 2 : 1); k++)
		each_element(a, k, to_memory, &(struct sink) { .x = k ? a->k : a->q, .dtype = a->dtype });
	return 0;
}
