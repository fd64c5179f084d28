// SPDX-License-Identifier: Apache-2.0
#include "conformance/dropin/dropin_arrays.h"

static int count(const struct dropin_count *a, void *stream)
{
	(void)stream;
	for (int32_t i = 0; i < a->count; i++)
		a->to[i] = a->first + i * a->step;
	return 0;
}

static int lines(const struct dropin_lines *a, void *stream)
{
	(void)stream;
	for (int32_t b = 0; b < a->batch; b++) {
		int32_t first = a->qo_indptr[b];
		int64_t keys = dropin_keys(a, b);

		a->lines_indptr[b] = first * a->line_bytes;
		for (int32_t i = 0; i < a->qo_indptr[b + 1] - first; i++)
			for (int64_t n = 0; n < (keys + 7) / 8; n++)
				a->lines[a->lines_indptr[b] + i * ((keys + 7) / 8) + n] =
					dropin_line_byte(a, b, i, keys, n);
	}
	return 0;
}

static int base2(const struct dropin_base2 *a, void *stream)
{
	(void)stream;
	for (int64_t i = 0; i < a->count; i++)
		a->lse[i] *= DROPIN_LOG2E;
	return 0;
}

static int pack(const struct dropin_pack *a, void *stream)
{
	(void)stream;
	for (int32_t s = 0; s < a->segments; s++)
		for (int64_t n = 0; n < (dropin_pack_count(a, s) + 7) / 8; n++)
			dropin_pack_byte(a, s, n);
	return 0;
}

const struct dropin_arrays dropin_arrays_host = { count, lines, base2, pack };
