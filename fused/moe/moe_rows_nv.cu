// SPDX-License-Identifier: Apache-2.0
/* moe_rows_nv - instances of moe_rows_product.cuh for weights in NVFP4 */
#include "fused/moe/moe_rows_product.cuh"

const void *moe_rows_nv_kernel(int f16, int down)
{
	if (down)
		return f16 ? (const void *)product_kernel<BITS_4_NV, CAIRN_F16, true> :
		       (const void *)product_kernel<BITS_4_NV, CAIRN_BF16, true>;
	return f16 ? (const void *)product_kernel<BITS_4_NV, CAIRN_F16, false> :
	       (const void *)product_kernel<BITS_4_NV, CAIRN_BF16, false>;
}
