// SPDX-License-Identifier: Apache-2.0
/* qkv_append_cpu - gemm, rope and kv_append of the same table, for cpu and for ref */
#include <stdlib.h>
#include <string.h>

#include "fused/qkv/qkv_append_steps.h"
#include "primitives/base/error.h"

struct table {
	int (*gemm)(const struct cairn_gemm_args *args, void *stream);
	int (*rope)(const struct cairn_rope_args *args, void *stream);
	int (*kv_append)(const struct cairn_kv_append_args *args, void *stream);
};

static int run_steps(const struct cairn_qkv_append_args *a, const struct table *t, char *y, void *stream)
{
	const struct qkv_steps steps = qkv_steps_of(a, y);
	const size_t row = (size_t)a->num_qo_heads * (size_t)a->head_dim * 2;

	CAIRN_TRY(t->gemm(&steps.gemm, stream));
	CAIRN_TRY(t->rope(&steps.rope, stream));
	CAIRN_TRY(t->kv_append(&steps.append, stream));
	for (int64_t i = 0; i < a->m; i++)
		memcpy((char *)a->q + i * cairn_qkv_append_q_stride(a) * 2,
		       y + i * (int64_t)steps.gemm.n * 2, row);
	return 0;
}

static int run(const struct cairn_qkv_append_args *a, const struct table *table, void *stream)
{
	char *y;
	int ret;

	CAIRN_TRY(cairn_qkv_append_check(a));
	y = aligned_alloc(64, (qkv_steps_bytes(a) + 63) / 64 * 64);
	if (!y)
		return cairn_error(ENOMEM, "qkv_append: no memory for %d rows of %d", a->m,
				   cairn_qkv_append_n(a));
	ret = run_steps(a, table, y, stream);
	free(y);
	return ret;
}

int cairn_qkv_append_cpu(const struct cairn_qkv_append_args *a, void *stream)
{
	return run(a, &(struct table){ cairn_gemm_cpu, cairn_rope_cpu, cairn_kv_append_cpu }, stream);
}

int cairn_qkv_append_ref(const struct cairn_qkv_append_args *a, void *stream)
{
	return run(a, &(struct table){ cairn_gemm_ref, cairn_rope_ref, cairn_kv_append_ref }, stream);
}
