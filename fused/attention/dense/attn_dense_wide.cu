/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_wide - the instances of attn_dense for more than 128 dimensions, which attn_dense.cu describes
 */
#include "fused/attention/dense/attn_dense_kernel.cuh"

struct attn_dense_kernel attn_dense_192_128(void)
{
	return attn_dense_instance<attn_form<192, 128, 128, 2, 2, 1, 232, 40>>();
}

struct attn_dense_kernel attn_dense_192_128_shared(void)
{
	return attn_dense_instance<attn_form_shared<attn_form<192, 128, 128, 2, 2, 1, 232, 40>>>();
}

struct attn_dense_kernel attn_dense_256_128(void)
{
	return attn_dense_instance<attn_form<256, 128, 64, 2, 2, 1, 232, 40>>();
}

struct attn_dense_kernel attn_dense_128_256(void)
{
	return attn_dense_instance<attn_form<128, 256, 64, 2, 2, 1, 232, 40>>();
}

struct attn_dense_kernel attn_dense_256(void)
{
	return attn_dense_instance<attn_form<256, 256, 80, 2, 2, 1, 232, 40>>();
}
