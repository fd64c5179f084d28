// SPDX-License-Identifier: Apache-2.0
/*
 * attn_fp8_cpu - the CPU table: attn_batch_cpu.c over the codes, which are exact in fp32, times their scales
 */
#include "fused/attention/fp8/attn_fp8_batch.h"

#include "primitives/base/error.h"

int cairn_attn_fp8_cpu(const struct cairn_attn_fp8_args *a, void *stream)
{
	struct attn_batch b;

	(void)stream;
	CAIRN_TRY(cairn_attn_fp8_check(a));
	b = attn_fp8_batch(a);
	attn_batch_cpu(&b);
	return 0;
}
