// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_between - instances of moe_rows_product.cuh for gates and ups with biases and activation 1, and
 * 16-bit weights
 */
#include "fused/moe/moe_rows_product.cuh"

const void *moe_rows_between_kernel(int f16)
{
	return f16 ? (const void *)product_kernel<BITS_16_BETWEEN, CAIRN_F16, false> :
	       (const void *)product_kernel<BITS_16_BETWEEN, CAIRN_BF16, false>;
}
