// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_fp8 - the products of moe_rows_product.cuh with weights of 8 bits
 */
#include "moe_rows_product.cuh"

#define OF(blocks_or_rows, dtype) \
	(down ? (const void *)product_kernel<blocks_or_rows, dtype, true> : \
	 (const void *)product_kernel<blocks_or_rows, dtype, false>)

const void *moe_rows_fp8_kernel(int f16, int blocks, int down)
{
	if (blocks)
		return f16 ? OF(BITS_8_BLOCKS, CAIRN_F16) : OF(BITS_8_BLOCKS, CAIRN_BF16);
	return f16 ? OF(BITS_8, CAIRN_F16) : OF(BITS_8, CAIRN_BF16);
}
