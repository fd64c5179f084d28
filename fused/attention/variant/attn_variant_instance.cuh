/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_instance - the instances of a built-in text, compiled ahead
 *
 * The includer defines ATTN_TEXT (the text's name), ATTN_FILE (its path), and ATTN_LOGIT, ATTN_KEEP and so on
 * for the hooks that the text has.
 */
#include "fused/attention/variant/attn_variant_kernel.cuh"
#include "fused/attention/variant/attn_variant_instances.h"

namespace ATTN_TEXT {
#include ATTN_FILE
}

#define ATTN_HOOKS	attn_variant_hooks_here
#include "fused/attention/variant/attn_variant_hooks.cuh"

#define JOIN_(a, b)	a##b
#define JOIN(a, b)	JOIN_(a, b)

template <int dtype, int head_dim, enum attn_variant_kind kind>
static __global__ __launch_bounds__((head_dim == 64 && kind != VARIANT_IN_PLACE ? 4 : 3) * 128, 1) void
attn_variant_kernel(const __grid_constant__ struct attn_variant_call a,
		    const __grid_constant__ struct attn_dense_plan plan,
		    const __grid_constant__ struct attn_dense_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];

	attn_variant_run<dtype, head_dim, struct attn_variant_hooks_here, kind>(a, plan, maps, s_all);
}

template <int dtype, int head_dim>
static __global__ __launch_bounds__(ATTN_MERGERS) void
attn_variant_merge_kernel(const __grid_constant__ struct attn_variant_call a,
			  const __grid_constant__ struct attn_dense_plan plan)
{
	__shared__ struct attn_row_tile tiles[ATTN_MERGERS / 32];

	attn_variant_merge<dtype, head_dim, struct attn_variant_hooks_here>(a, plan, tiles);
}

#ifdef ATTN_KEY
template <int dtype, int head_dim>
static __global__ __launch_bounds__(ATTN_KEY_THREADS) void
attn_variant_keys_kernel(const __grid_constant__ struct attn_variant_call a,
			 const __grid_constant__ struct attn_dense_plan plan)
{
	attn_variant_rotate_keys<dtype, head_dim, struct attn_variant_hooks_here>(a, plan);
}
#endif

template <int dtype, int head_dim> static struct attn_variant_kernels kernels_of(void)
{
	return { (const void *)attn_variant_kernel<dtype, head_dim, VARIANT_WHOLE>,
		 (const void *)attn_variant_kernel<dtype, head_dim, VARIANT_SLICE>,
#ifdef ATTN_KEY
		 (const void *)attn_variant_kernel<dtype, head_dim, VARIANT_IN_PLACE>,
		 (const void *)attn_variant_keys_kernel<dtype, head_dim>,
#else
		 nullptr, nullptr,
#endif
		 (const void *)attn_variant_merge_kernel<dtype, head_dim> };
}

/* Returns the kernels of this text for a dtype and head dimension. */
struct attn_variant_kernels JOIN(attn_variant_, ATTN_TEXT)(int32_t dtype, int32_t head_dim)
{
	if (head_dim == 64)
		return dtype == CAIRN_F16 ? kernels_of<CAIRN_F16, 64>() : kernels_of<CAIRN_BF16, 64>();
	return dtype == CAIRN_F16 ? kernels_of<CAIRN_F16, 128>() : kernels_of<CAIRN_BF16, 128>();
}
