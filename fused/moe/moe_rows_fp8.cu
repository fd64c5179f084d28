// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_fp8 - instances of moe_rows_product.cuh for 8-bit weights and scales of rows
 */
#include "fused/moe/moe_rows_product.cuh"

const void *moe_rows_fp8_kernel(int f16, int down)
{
	if (down)
		return f16 ? (const void *)product_kernel<BITS_8, CAIRN_F16, true> :
		       (const void *)product_kernel<BITS_8, CAIRN_BF16, true>;
	return f16 ? (const void *)product_kernel<BITS_8, CAIRN_F16, false> :
	       (const void *)product_kernel<BITS_8, CAIRN_BF16, false>;
}
