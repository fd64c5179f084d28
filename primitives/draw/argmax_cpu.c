// SPDX-License-Identifier: Apache-2.0
/*
 * argmax_cpu - scans a row in blocks: first finds the block's maximum, without branches, and then the index
 * of the maximum, but only if it exceeds that of all blocks before
 */
#include <math.h>

#include "primitives/draw/argmax.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define BLOCK	1024

static int32_t first_largest(const struct cairn_argmax_args *a, int32_t row)
{
	float best = -INFINITY;
	int32_t at = -1;

	for (int32_t j = 0; j < a->vocab; j += BLOCK) {
		int32_t n = a->vocab - j < BLOCK ? a->vocab - j : BLOCK;
		float v[BLOCK], top = -INFINITY;
		int32_t k;

		cairn_load_row(v, a->logits, a->dtype, (int64_t)row * a->vocab + j, n);
		for (k = 0; k < n; k++)
			top = v[k] > top ? v[k] : top;	/* false for NaN */
		if (!(top > best) && at >= 0)
			continue;
		for (k = 0; k < n && !(v[k] == top); k++)
			;
		if (k == n)	/* the block has only NaN */
			continue;
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
