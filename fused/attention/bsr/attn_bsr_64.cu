/* SPDX-License-Identifier: Apache-2.0 */
/* attn_bsr_64 - the instances of attn_bsr for head_dim 64 */
#include "fused/attention/bsr/attn_bsr_kernel.cuh"

struct attn_bsr_kernel attn_bsr_64(void)
{
	return attn_bsr_instance<attn_bsr_form<64, 128, 3, 2, 208, 88, 0>,
				 attn_bsr_form<64, 128, 3, 2, 208, 88, 3>>();
}
