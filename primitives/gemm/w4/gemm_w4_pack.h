/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_pack - converts 4-bit weights from the layouts of checkpoints to that of gemm_w4, on the host
 *
 * The results are b, of cairn_w4_code_bytes(), and b_scale, of cairn_w4_scale_bytes() (gemm_w4_layout.h).
 * Places that belong to no element become 0.
 *
 * checkpoint  codes                    zero points                   scales                group
 * AWQ         int32 [k, n / 8]         int32 [groups, n / 8]         f16 [groups, n]       32, 64, 128 or k
 * GPTQ        int32 [k / 8, n]         int32 [groups, n / 8]         f16 [groups, n]       likewise
 * packed      int32 [n, k / 8]         int32 [n / 8, groups], NULL   f16 [n, groups]       likewise
 * MXFP4       uint8 [n, k / 2]         none                          e8m0 [n, k / 32]      32
 * NVFP4       uint8 [n, k / 2]         none                          e4m3 [n, k / 16]      16
 *
 * AWQ: bits 4 i of a word belong to row 8 w + (0, 2, 4, 6, 1, 3, 5, 7)[i]. GPTQ: bits 4 i of a word of codes
 * belong to element 8 w + i along k, of one of zero points to row 8 w + i; a zero point is stored less one,
 * unless `zeros_as_they_are` (checkpoint_format gptq_v2). Packed (compressed-tensors, pack-quantized): bits
 * 4 i of a word of codes belong to element 8 w + i along k, of one of zero points to row 8 w + i; without
 * zero points all are 8. A group number for each element along k (`g_idx`, optional) must be that of groups
 * in order: activation order (desc_act) is refused. MXFP4, NVFP4: the low half of a byte comes first.
 *
 * `n` and `k` are rows and columns of the weight as gemm_w4 has it: out_features and in_features.
 * Errors: -EINVAL (null pointer, size, group index), -EOPNOTSUPP (what gemm_w4 does not support, desc_act),
 * with a text that names the tensor.
 */
#ifndef CAIRN_GEMM_W4_PACK_H
#define CAIRN_GEMM_W4_PACK_H

#include <stdint.h>

#include "primitives/gemm/w4/gemm_w4_layout.h"

struct cairn_w4_checkpoint {
	const void *codes, *zeros, *scales;	/* aligned as their elements are */
	const int32_t *g_idx;			/* GPTQ: [k], or NULL */
	int32_t n, k;
	int32_t group;				/* elements of k that share a scale, or 0: all */
	int32_t zeros_as_they_are;
};

int cairn_w4_pack_awq(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale);
int cairn_w4_pack_gptq(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale);
int cairn_w4_pack_rows(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale);
int cairn_w4_pack_mxfp4(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale);
int cairn_w4_pack_nvfp4(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale);

#endif
