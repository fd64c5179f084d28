/* SPDX-License-Identifier: Apache-2.0 */
/* attn_bsr_128 - the instances of attn_bsr for head_dim 128 */
#include "fused/attention/bsr/attn_bsr_kernel.cuh"

struct attn_bsr_kernel attn_bsr_128(int few)
{
	if (few)
		return attn_bsr_instance<attn_bsr_form<128, 128, 1, 2, 2, 240, 240, 0>,
					 attn_bsr_form<128, 128, 1, 2, 2, 240, 240, 3>>();
	return attn_bsr_instance<attn_bsr_form<128, 128, 2, 2, 2, 208, 88, 0>,
				 attn_bsr_form<128, 128, 2, 2, 1, 200, 104, 3>>();
}
