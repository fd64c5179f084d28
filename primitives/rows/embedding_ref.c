// SPDX-License-Identifier: Apache-2.0
/*
 * embedding_ref - the reference; a copy is exact, and the contract fixes both roundings of a scaled value, so
 * every bound is 0
 */
#include "primitives/rows/embedding.h"

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static double element(const struct cairn_embedding_args *a, int32_t row, int32_t j)
{
	int32_t id = a->ids[row];
	uint64_t box = 0;
	double v;

	if (id < 0 || id >= a->vocab)
		return 0;
	v = cairn_load(a->table, a->dtype, (int64_t)id * a->dim + j);
	if (a->scale == 0)
		return v;
	cairn_store(&box, a->dtype, 0, (float)v * a->scale);
	return cairn_load(&box, a->dtype, 0);
}

int cairn_embedding_exact(const struct cairn_embedding_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_embedding_check(a));
	for (int32_t i = 0; i < a->rows; i++)
		for (int32_t j = 0; cairn_is_wanted(exact, (int64_t)i * a->dim, 1) && j < a->dim; j++) {
			exact->val[(int64_t)i * a->dim + j] = element(a, i, j);
			exact->bound[(int64_t)i * a->dim + j] = 0;
		}
	return 0;
}

int cairn_embedding_ref(const struct cairn_embedding_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_embedding_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		size_t row = (size_t)a->dim * cairn_dtype_bytes(a->dtype), id = (size_t)a->ids[i];

		for (int32_t j = 0; j < a->dim; j++)
			cairn_store(a->out, a->dtype, (int64_t)i * a->dim + j, element(a, i, j));
		/* cairn_store() does not keep the payload of a NaN */
		if (a->scale == 0 && id < (size_t)a->vocab)
			memcpy((char *)a->out + (size_t)i * row, (const char *)a->table + id * row, row);
	}
	return 0;
}
