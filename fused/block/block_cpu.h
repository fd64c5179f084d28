/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_cpu - helpers that the CPU forms of fused operations share
 */
#ifndef CAIRN_BLOCK_CPU_H
#define CAIRN_BLOCK_CPU_H

#include "primitives/base/dtype.h"
#include "primitives/base/wide.h"

static inline float block_dot(const float *x, const float *w, int k)
{
	float sum = 0;

	#pragma omp simd reduction(+:sum)
	for (int l = 0; l < k; l++)
		sum += x[l] * w[l];
	return sum;
}

static inline float block_narrowed(float v, int dtype)
{
	uint64_t box = 0;	/* wide enough for any dtype */

	cairn_store(&box, dtype, 0, v);
	return (float)cairn_load(&box, dtype, 0);
}

#endif
