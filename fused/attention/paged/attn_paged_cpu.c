// SPDX-License-Identifier: Apache-2.0
/* attn_paged_cpu - the CPU table: attn_batch_cpu.c over the keys that attn_paged_ref.c finds */
#include "fused/attention/paged/attn_paged.h"

#include "primitives/base/error.h"
#include "fused/attention/base/attn_batch.h"

int cairn_attn_paged_cpu(const struct cairn_attn_paged_args *a, void *stream)
{
	struct attn_batch b;

	(void)stream;
	CAIRN_TRY(cairn_attn_paged_check(a));
	b = attn_paged_batch(a);
	attn_batch_cpu(&b);
	return 0;
}
