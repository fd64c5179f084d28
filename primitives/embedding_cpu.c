// SPDX-License-Identifier: Apache-2.0
/* embedding_cpu - a memcpy a row */
#include <string.h>

#include "dtype.h"
#include "embedding.h"
#include "error.h"

int cairn_embedding_cpu(const struct cairn_embedding_args *a, void *stream)
{
	size_t bytes;

	(void)stream;
	CAIRN_TRY(cairn_embedding_check(a));
	bytes = (size_t)a->dim * cairn_dtype_bytes(a->dtype);
	#pragma omp parallel for schedule(static) if (a->rows * bytes > 1 << 16)
	for (int32_t i = 0; i < a->rows; i++) {
		char *dst = (char *)a->out + i * bytes;

		if (a->ids[i] < 0 || a->ids[i] >= a->vocab)
			memset(dst, 0, bytes);
		else
			memcpy(dst, (const char *)a->table + (size_t)a->ids[i] * bytes, bytes);
	}
	return 0;
}
