// SPDX-License-Identifier: Apache-2.0
/* model_fp8 - finds the tensor of a part in a checkpoint, and widens the block fp8 that model.h describes */
#include "serving/model/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

static int is_float(const struct cairn_tensor *t)
{
	int dtype = cairn_st_to_dtype(t->dtype);

	return dtype >= 0 && cairn_dtype_is_float(dtype);
}

static int64_t blocks(int64_t n)
{
	return (n + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
}

/* Finds the factors of a matrix that is stored in 8 bits. */
static int find_factors(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			const struct cairn_safetensors *st, struct cairn_stored *s)
{
	const int64_t shape[] = { blocks(m->dims[p->rows]), blocks(m->dims[p->cols]) };
	char full[128];

	snprintf(full, sizeof(full), "%s_scale_inv", name);
	CAIRN_TRY(cairn_safetensors_get(st, full, 2, shape, &s->factors));
	if (!is_float(s->factors))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   s->factors->file, full, cairn_st_dtype_name(s->factors->dtype));
	return 0;
}

int cairn_model_find_part(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			  const struct cairn_safetensors *st, struct cairn_stored *s)
{
	const int64_t shape[] = { m->dims[p->rows], m->dims[p->cols] };
	int is_matrix = p->cols != CAIRN_D_ONE && p->weight != CAIRN_W_ROUTER && p->weight != CAIRN_W_EMBED &&
			p->weight != CAIRN_W_LM_HEAD;

	s->factors = NULL;
	CAIRN_TRY(cairn_safetensors_get(st, name, p->cols == CAIRN_D_ONE ? 1 : 2, shape, &s->tensor));
	if (is_matrix && m->config.stored_fp8 && s->tensor->dtype == CAIRN_ST_F8_E4M3)
		return find_factors(m, p, name, st, s);
	if (!is_float(s->tensor))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   s->tensor->file, name, cairn_st_dtype_name(s->tensor->dtype));
	return 0;
}

/* Widens a row to elements `at` .. of `to`; returns the first column that dtype does not represent, or -1. */
static int64_t widen_row(const struct cairn_stored *s, int64_t row, int dtype, char *to, int64_t at)
{
	const int64_t cols = s->tensor->shape[1], first = row / CAIRN_FP8_BLOCK * blocks(cols);
	const uint8_t *codes = (const uint8_t *)s->tensor->data + row * cols;
	const int of_factors = cairn_st_to_dtype(s->factors->dtype);
	const size_t bytes = cairn_dtype_bytes(of_factors);
	double wide[CAIRN_FP8_BLOCK], factor[1];
	int64_t bad = -1;

	for (int64_t from = 0; from < cols; from += CAIRN_FP8_BLOCK) {
		int64_t n = cols - from < CAIRN_FP8_BLOCK ? cols - from : CAIRN_FP8_BLOCK;
		const char *p = (const char *)s->factors->data +
				(size_t)(first + from / CAIRN_FP8_BLOCK) * bytes;

		memcpy(factor, p, bytes);	/* the file guarantees no alignment */
		cairn_widen_e4m3(wide, codes + from, cairn_load(factor, of_factors, 0), n);
		cairn_narrow(to, dtype, at + from, wide, n);
		for (int64_t i = 0; i < n && bad < 0; i++)
			if ((codes[from + i] & 0x7f) == 0x7f ||
			    !isfinite(cairn_load(to, dtype, at + from + i)))
				bad = from + i;
	}
	return bad;
}

int cairn_model_widen(const struct cairn_stored *s, int dtype, int64_t from, int64_t rows, char *to)
{
	const int64_t cols = s->tensor->shape[1];
	int64_t bad = INT64_MAX;

	#pragma omp parallel for reduction(min : bad) if (rows * cols > 65536)
	for (int64_t r = 0; r < rows; r++) {
		int64_t column = widen_row(s, from + r, dtype, to, r * cols);

		if (column >= 0 && (from + r) * cols + column < bad)
			bad = (from + r) * cols + column;
	}
	if (bad < INT64_MAX)
		return cairn_error(EINVAL, "%s: %s: element %lld, a code times its factor, is not a number "
				   "that %s represents", s->tensor->file, s->tensor->name, (long long)bad,
				   cairn_dtype_name(dtype));
	return 0;
}
