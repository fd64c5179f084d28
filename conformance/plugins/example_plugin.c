// SPDX-License-Identifier: Apache-2.0
/*
 * example_plugin - the smallest implementation: one operation, on host memory
 *
 *   gcc -I. -shared -fPIC -o mine.so mine.c && cairn check --impl ./mine.so
 *
 * Operations that the table lacks are skipped. Without CAIRN_IMPL_HOST_MEM the pointers would be to device
 * memory and `stream` would be a cudaStream_t.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "conformance/abi.h"

static int embedding(const struct cairn_embedding_args *a, void *stream)
{
	size_t row = (size_t)a->dim * (a->dtype == 0 ? 4 : 2);

	(void)stream;
	if (a->size < sizeof(*a) || a->rows < 0 || a->dim < 1 || a->vocab < 1)
		return -EINVAL;
	if (!a->out || !a->table || !a->ids || ((uintptr_t)a->out | (uintptr_t)a->table) % 16)
		return -EINVAL;
	if (!isfinite(a->scale))
		return -EINVAL;
	if (cairn_unknown_byte(a, sizeof(*a)))	/* a newer caller asks for what we do not have */
		return -EOPNOTSUPP;
	/* unscaled rows only */
	if (a->dim % 8 || a->dtype < 0 || a->dtype > 2 || a->scale != 0)
		return -EOPNOTSUPP;
	for (int i = 0; i < a->rows; i++) {
		char *out = (char *)a->out + i * row;

		if (a->ids[i] >= 0 && a->ids[i] < a->vocab)
			memcpy(out, (const char *)a->table + (size_t)a->ids[i] * row, row);
		else
			memset(out, 0, row);
	}
	return 0;
}

static const struct cairn_impl impl = {
	.size = sizeof(impl), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM,
	.name = "example", .version = "1", .embedding = embedding,
};

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
