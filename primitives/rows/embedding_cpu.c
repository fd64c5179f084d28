// SPDX-License-Identifier: Apache-2.0
/* embedding_cpu - copies a row by memcpy, or multiplies each element by the scale */
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "primitives/rows/embedding.h"

#define CHUNK	1024

CAIRN_WIDE static void scaled(const struct cairn_embedding_args *a, int32_t row)
{
	int64_t to = (int64_t)row * a->dim, from = (int64_t)a->ids[row] * a->dim;
	float x[CHUNK];

	for (int32_t c = 0; c < a->dim; c += CHUNK) {
		int32_t n = a->dim - c < CHUNK ? a->dim - c : CHUNK;

		cairn_load_row(x, a->table, a->dtype, from + c, n);
		for (int32_t j = 0; j < n; j++)
			x[j] *= a->scale;
		cairn_store_row(a->out, a->dtype, to + c, x, n);
	}
}

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
		else if (a->scale != 0)
			scaled(a, i);
		else
			memcpy(dst, (const char *)a->table + (size_t)a->ids[i] * bytes, bytes);
	}
	return 0;
}
