// SPDX-License-Identifier: Apache-2.0
/*
 * rope_ref - the reference, in double, and the bound
 *
 * The angle is the fp32 product of position and frequency, rounded once. It is therefore the same number in
 * every implementation. (At position 100000, the exact product would give a different rotation.) The errors
 * of sine and cosine (2 ulp of 1), two products, a difference and the scale are together at most 8 * 2^-24
 * (|x[a]| + |x[b]|) |scale|. One rounding to dtype, or to its subnormals, follows. Elements that are not
 * rotated must keep their bits.
 *
 * The error of a norm is that of rmsnorm (rmsnorm_ref.c): (head_dim / 2 + 16) 2^-24 of each of the two terms.
 */
#include "primitives/rows/rope.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

#define MAX_DIM	512

/* One of the tensors q and k, and the weights of its norm. */
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

/* Loads the head whose elements begin at `at` and normalises it if it has a norm. */
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
 * Calls visit() for each changed element i of a head, with its exact new value v and `room`, the error that
 * is allowed before the last rounding.
 */
static void each_head(const struct cairn_rope_args *a, const struct part *part, int32_t row, int32_t head,
		      void (*visit)(void *ctx, int64_t i, double v, double room), void *ctx)
{
	double x[MAX_DIM], u = 0x1p-24 * (part->norm ? a->head_dim / 2.0 + 24 : 8), scale = a->scale;
	double tiny = 4 * 0x1p-150 * (1 + fabs(scale));
	int64_t at = row * part->stride + (int64_t)head * a->head_dim;
	int32_t half = a->rotary_dim / 2;

	load_head(a, part, at, x);
	/* the product of 1 / rms and x may be subnormal before the weight enlarges it */
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
	s->exact->bound[i] = isfinite(v) ? room + cairn_rounding(s->dtype, fabs(v) + room) : 0;
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
