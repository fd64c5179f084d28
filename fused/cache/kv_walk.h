/* SPDX-License-Identifier: Apache-2.0 */
/* kv_walk - the index arithmetic of a page walk (kv_view.h) for kernels; both nvcc and gcc compile it */
#ifndef CAIRN_KV_WALK_H
#define CAIRN_KV_WALK_H

#include <stdint.h>

#ifdef __CUDACC__
#define KV_FN static __host__ __device__ __forceinline__
#else
#define KV_FN static inline
#endif

/* Returns the keys of a request that has num_pages pages. */
KV_FN int32_t kv_walk_len(int32_t num_pages, int32_t last_page_len, int32_t page_size)
{
	return num_pages > 0 ? (num_pages - 1) * page_size + last_page_len : 0;
}

/* Returns log2 of a power of two (the page walk then shifts instead of dividing), -1 for anything else. */
KV_FN int32_t kv_page_shift(int32_t page_size)
{
	if (page_size & (page_size - 1))
		return -1;
#ifdef __CUDA_ARCH__
	return 31 - __clz(page_size);
#else
	return 31 - __builtin_clz((unsigned int)page_size);
#endif
}

/*
 * Returns the request that row `row` belongs to: the last one that begins at or before it. indptr has
 * batch + 1 entries, and indptr[batch] > row.
 */
KV_FN int32_t kv_owner(const int32_t *indptr, int32_t batch, int32_t row)
{
	int32_t lo = 0, hi = batch;

	while (hi - lo > 1) {
		int32_t mid = (lo + hi) / 2;

		if (indptr[mid] <= row)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

#endif
