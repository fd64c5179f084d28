// SPDX-License-Identifier: Apache-2.0
/*
 * rope_ref - the reference, in double, and the bound
 *
 * The angle is the fp32 product of position and frequency, rounded once, and thereby the same number
 * everywhere: at a position of 100000 the exact product would be another rotation. Sine and cosine to
 * 2 ulp of 1, two products, a difference and the scale: within 8 2^-24 of (|x[a]| + |x[b]|) |scale|. Then
 * one rounding to dtype, or to its subnormals. What is not rotated is left alone, to the bit.
 */
#include "rope.h"

#include <math.h>

#include "dtype.h"
#include "error.h"

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
	if (a->head_dim % 16 || a->rotary_dim % 16 || a->head_dim > 512)
		return cairn_error(EOPNOTSUPP,
				   "rope: head_dim %d, rotary_dim %d: not multiples of 16 up to 512",
				   a->head_dim, a->rotary_dim);
	if (!isfinite(a->scale))
		return cairn_error(EINVAL, "rope: scale: must be finite");
	CAIRN_TRY(check_stride(a->q_stride, a->num_qo_heads, a->head_dim, "q"));
	if (a->k)
		CAIRN_TRY(check_stride(a->k_stride, a->num_kv_heads, a->head_dim, "k"));
	if (a->nnz == 0)
		return 0;
	if (!a->q || !a->inv_freq || !a->positions)
		return cairn_error(EINVAL, "rope: q, inv_freq, positions: must not be null");
	if (((uintptr_t)a->q | (uintptr_t)a->k) & 15)
		return cairn_error(EINVAL, "rope: q, k: must be 16-byte aligned");
	return 0;
}

/* Calls visit() for each rotated pair: places of its elements in x, and their exact new values. */
static void each_pair(const struct cairn_rope_args *a, const void *x, int32_t heads, int64_t stride,
		      void (*visit)(void *ctx, int64_t ia, int64_t ib, double va, double vb, double room),
		      void *ctx)
{
	int32_t half = a->rotary_dim / 2;

	if (!stride)
		stride = (int64_t)heads * a->head_dim;
	#pragma omp parallel for
	for (int32_t i = 0; i < a->nnz; i++)
		for (int32_t h = 0; h < heads; h++)
			for (int32_t p = 0; p < half; p++) {
				int64_t at = i * stride + (int64_t)h * a->head_dim;
				int64_t ia = at + (a->interleaved ? 2 * p : p);
				int64_t ib = at + (a->interleaved ? 2 * p + 1 : p + half);
				float angle = (float)a->positions[i] * a->inv_freq[p];
				double c = cos((double)angle), s = sin((double)angle);
				double xa = cairn_load(x, a->dtype, ia), xb = cairn_load(x, a->dtype, ib);

				visit(ctx, ia, ib, (xa * c - xb * s) * a->scale, (xb * c + xa * s) * a->scale,
				      8 * 0x1p-24 * (fabs(xa) + fabs(xb)) * fabs((double)a->scale) +
				      4 * 0x1p-150 * (1 + fabs((double)a->scale)));
			}
}

struct sink {
	struct cairn_exact *exact;
	void *x;
	int dtype;
};

static void to_exact(void *ctx, int64_t ia, int64_t ib, double va, double vb, double room)
{
	const struct sink *s = ctx;
	double u = cairn_dtype_roundoff(s->dtype), tiny = cairn_dtype_tiny(s->dtype);

	s->exact->val[ia] = va;
	s->exact->val[ib] = vb;
	s->exact->bound[ia] = room + u * fabs(va) + tiny;
	s->exact->bound[ib] = room + u * fabs(vb) + tiny;
}

static void to_memory(void *ctx, int64_t ia, int64_t ib, double va, double vb, double room)
{
	const struct sink *s = ctx;

	(void)room;
	cairn_store(s->x, s->dtype, ia, va);
	cairn_store(s->x, s->dtype, ib, vb);
}

int cairn_rope_exact(const struct cairn_rope_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_rope_check(a));
	each_pair(a, a->q, a->num_qo_heads, a->q_stride, to_exact,
		  &(struct sink) { .exact = &exact[0], .dtype = a->dtype });
	if (a->k)
		each_pair(a, a->k, a->num_kv_heads, a->k_stride, to_exact,
			  &(struct sink) { .exact = &exact[1], .dtype = a->dtype });
	return 0;
}

int cairn_rope_ref(const struct cairn_rope_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_rope_check(a));
	each_pair(a, a->q, a->num_qo_heads, a->q_stride, to_memory,
		  &(struct sink) { .x = a->q, .dtype = a->dtype });
	if (a->k)
		each_pair(a, a->k, a->num_kv_heads, a->k_stride, to_memory,
			  &(struct sink) { .x = a->k, .dtype = a->dtype });
	return 0;
}
