/* SPDX-License-Identifier: Apache-2.0 */
/* attn_bsr_64 - the instances of attn_bsr for head_dim 64 */
#include "fused/attention/bsr/attn_bsr_kernel.cuh"

struct attn_bsr_kernel attn_bsr_64(int few)
{
	if (few)
		return attn_bsr_instance<attn_bsr_form<64, 128, 1, 3, 2, 240, 240>,
					 attn_bsr_form<64, 128, 1, 3, 2, 240, 144, 3, 112>>();
	return attn_bsr_instance<attn_bsr_form<64, 128, 2, 3, 2, 208, 88>,
				 attn_bsr_form<64, 128, 2, 3, 2, 200, 72, 3, 40>>();
}
