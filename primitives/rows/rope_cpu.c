// SPDX-License-Identifier: Apache-2.0
/* rope_cpu - computes the sines and cosines of a row once and rotates all of its heads; rows in parallel */
#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rope.h"

#define MAX_PAIRS	256

/* v *= norm / its root mean square */
static void normalise(const struct cairn_rope_args *a, const void *norm, float *v)
{
	float sum = 0, s;

	for (int32_t j = 0; j < a->head_dim; j++)
		sum += v[j] * v[j];
	s = 1 / sqrtf(sum / (float)a->head_dim + a->norm_eps);
	for (int32_t j = 0; j < a->head_dim; j++)
		v[j] = v[j] * s * (float)cairn_load(norm, a->dtype, j);
}

static void rotate(const struct cairn_rope_args *a, void *x, const void *norm, int64_t at, const float *c,
		   const float *s)
{
	int32_t half = a->rotary_dim / 2, n = norm ? a->head_dim : a->rotary_dim;
	int32_t step = a->interleaved ? 2 : 1, other = a->interleaved ? 1 : half;
	float v[2 * MAX_PAIRS];

	cairn_load_row(v, x, a->dtype, at, n);
	if (norm)
		normalise(a, norm, v);
	for (int32_t p = 0; p < half; p++) {
		float xa = v[p * step], xb = v[p * step + other];

		v[p * step] = (xa * c[p] - xb * s[p]) * a->scale;
		v[p * step + other] = (xb * c[p] + xa * s[p]) * a->scale;
	}
	for (int32_t j = 0; j < n; j++)
		cairn_store(x, a->dtype, at + j, v[j]);
}

int cairn_rope_cpu(const struct cairn_rope_args *a, void *stream)
{
	int64_t q_stride, k_stride;

	(void)stream;
	CAIRN_TRY(cairn_rope_check(a));
	q_stride = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
	k_stride = a->k_stride ? a->k_stride : (int64_t)a->num_kv_heads * a->head_dim;
	#pragma omp parallel for schedule(static) if (a->nnz > 1)
	for (int32_t i = 0; i < a->nnz; i++) {
		float c[MAX_PAIRS], s[MAX_PAIRS];

		for (int32_t p = 0; p < a->rotary_dim / 2; p++) {
			float angle = (float)a->positions[i] * a->inv_freq[p];

			c[p] = cosf(angle);
			s[p] = sinf(angle);
		}
		for (int32_t h = 0; h < a->num_qo_heads; h++)
			rotate(a, a->q, a->q_norm, i * q_stride + (int64_t)h * a->head_dim, c, s);
		for (int32_t h = 0; a->k && h < a->num_kv_heads; h++)
			rotate(a, a->k, a->k_norm, i * k_stride + (int64_t)h * a->head_dim, c, s);
	}
	return 0;
}
