/* SPDX-License-Identifier: Apache-2.0 */
/* attn_fp8_batch - how the host reads the operands of attn_fp8 */
#ifndef CAIRN_ATTN_FP8_BATCH_H
#define CAIRN_ATTN_FP8_BATCH_H

#include "fused/attention/base/attn_batch.h"
#include "fused/attention/fp8/attn_fp8.h"

struct attn_batch attn_fp8_batch(const struct cairn_attn_fp8_args *a);
/* Returns the block of row j of request b, counted over the blocks of all heads. */
int64_t attn_fp8_block_at(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int32_t b,
			  int32_t j, int32_t head);
/*
 * attn_fp8_codes() sets `codes` to the codes of row j of request b, as numbers, and returns their scale.
 * attn_fp8_row() sets the results in struct attn_exact_row. If deviation is not NULL, it sets deviation[c] to
 * about the standard deviation of element c in an implementation that rounds P to e4m3 and out to dtype, both
 * without bias.
 */
float attn_fp8_codes(const struct cairn_attn_fp8_args *a, enum attn_operand operand, int32_t b, int32_t j,
		     int32_t head, float *codes);
void attn_fp8_row(const struct cairn_attn_fp8_args *a, int32_t b, int32_t i, int32_t h, int32_t n,
		  struct attn_exact_row *r, double *deviation);

#endif
