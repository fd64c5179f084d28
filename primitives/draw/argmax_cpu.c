// SPDX-License-Identifier: Apache-2.0
/*
 * argmax_cpu - scans a row in blocks: finds the block's maximum without branches, and the index of the
 * maximum only if it exceeds that of all earlier blocks
 */
#include <math.h>

#include "primitives/draw/argmax.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define BLOCK	1024
#define LANES	64

/* Returns the largest of n numbers, ignoring NaN. The lanes let compilers vectorise without reordering. */
static inline float largest(const float *v, int32_t n)
{
	float part[LANES], top = -INFINITY;

	for (int k = 0; k < LANES; k++)
		part[k] = -INFINITY;
	for (; n >= LANES; n -= LANES, v += LANES)
		for (int k = 0; k < LANES; k++)
			part[k] = v[k] > part[k] ? v[k] : part[k];	/* false for NaN */
	for (int32_t k = 0; k < n; k++)
		part[k] = v[k] > part[k] ? v[k] : part[k];
	for (int k = 0; k < LANES; k++)
		top = part[k] > top ? part[k] : top;
	return top;
}

static inline int has_number(const float *v, int32_t n)
{
	int32_t count = 0;

	for (int32_t k = 0; k < n; k++)
		count += v[k] == v[k];
	return count > 0;
}

CAIRN_WIDE static int32_t first_largest(const struct cairn_argmax_args *a, int32_t row)
{
	float best = -INFINITY;
	int32_t at = -1;

	for (int32_t j = 0; j < a->vocab; j += BLOCK) {
		int32_t n = a->vocab - j < BLOCK ? a->vocab - j : BLOCK;
		float v[BLOCK], top;
		int32_t k;

		cairn_load_row(v, a->logits, a->dtype, (int64_t)row * a->vocab + j, n);
		top = largest(v, n);
		if (!(top > best) && at >= 0)
			continue;
		if (top == -INFINITY && !has_number(v, n))
			continue;
		for (k = 0; v[k] != top; k++)
			;
		best = top;
		at = j + k;
	}
	return at;
}

int cairn_argmax_cpu(const struct cairn_argmax_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_argmax_check(a));
	#pragma omp parallel for schedule(static) if (a->rows > 1)
	for (int32_t i = 0; i < a->rows; i++)
		a->out[i] = first_largest(a, i);
	return 0;
}
