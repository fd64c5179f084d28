// SPDX-License-Identifier: Apache-2.0
/* moe_rows_int - instances of moe_rows_product.cuh for weights in integers of 4 bits */
#include "fused/moe/moe_rows_product.cuh"

const void *moe_rows_int_kernel(int f16, int down)
{
	if (down)
		return f16 ? (const void *)product_kernel<BITS_4_INT, CAIRN_F16, true> :
		       (const void *)product_kernel<BITS_4_INT, CAIRN_BF16, true>;
	return f16 ? (const void *)product_kernel<BITS_4_INT, CAIRN_F16, false> :
	       (const void *)product_kernel<BITS_4_INT, CAIRN_BF16, false>;
}
