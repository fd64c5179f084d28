/* SPDX-License-Identifier: Apache-2.0 */
/* latent_find - numbers the row tiles of a batch, for the kernels of mla_paged and mla_decode */
#ifndef CAIRN_LATENT_FIND_CUH
#define CAIRN_LATENT_FIND_CUH

#include "fused/attention/base/attn_tile.cuh"

/*
 * Returns *base plus the sum of `own` over the calling thread and those before it in the CTA, and adds the
 * sum over all of them to *base. s_warp: [threads / 32]. All threads must call it; before the next call, they
 * must synchronise.
 */
template <int threads> ATTN_DEV int32_t latent_upto(int32_t own, int32_t *s_warp, int32_t *base)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int32_t upto = own, before = *base;

#pragma unroll
	for (int s = 1; s < 32; s *= 2) {
		int32_t x = __shfl_up_sync(~0u, upto, s);

		upto += lane >= s ? x : 0;
	}
	if (lane == 31)
		s_warp[warp] = upto;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < threads / 32; w++) {
		before += w < warp ? s_warp[w] : 0;
		*base += s_warp[w];
	}
	return upto + before;
}

#endif
