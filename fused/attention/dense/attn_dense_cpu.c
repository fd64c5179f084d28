// SPDX-License-Identifier: Apache-2.0
/* attn_dense_cpu - the CPU table: attn_batch_cpu.c over the keys that attn_dense_ref.c finds */
#include "fused/attention/dense/attn_dense.h"

#include "primitives/base/error.h"
#include "fused/attention/base/attn_batch.h"

int cairn_attn_dense_cpu(const struct cairn_attn_dense_args *a, void *stream)
{
	struct attn_batch b;

	(void)stream;
	CAIRN_TRY(cairn_attn_dense_check(a));
	b = attn_dense_batch(a);
	attn_batch_cpu(&b);
	return 0;
}
