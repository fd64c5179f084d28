// SPDX-License-Identifier: Apache-2.0
/*
 * model_fp8 - finds the tensor of a part in a checkpoint, and widens or copies the stored fp8 that model.h
 * describes
 */
#include "serving/model/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"

static int is_float(const struct cairn_tensor *t)
{
	int dtype = cairn_st_to_dtype(t->dtype);

	return dtype >= 0 && cairn_dtype_is_float(dtype);
}

static int64_t over(int64_t n, int64_t block)
{
	return (n + block - 1) / block;
}

/* Finds the factors of a matrix that is stored in 8 bits. */
static int find_factors(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			const struct cairn_safetensors *st, struct cairn_stored *s)
{
	const int64_t rows = m->dims[p->rows], cols = m->dims[p->cols];
	/* by enum cairn_stored_fp8 */
	static const char *const suffixes[] = { NULL, "_scale_inv", "_scale", "_scale" };
	const int64_t sizes[][2] = {
		{ 1, 1 }, { CAIRN_FP8_BLOCK, CAIRN_FP8_BLOCK }, { 1, cols }, { rows, cols },
	};
	const enum cairn_stored_fp8 kind = m->config.stored_fp8;
	int64_t shape[2];
	char full[128];

	s->block_rows = sizes[kind][0];
	s->block_cols = sizes[kind][1];
	shape[0] = over(rows, s->block_rows);
	shape[1] = over(cols, s->block_cols);
	snprintf(full, sizeof(full), "%s%s", name, suffixes[kind]);
	CAIRN_TRY(cairn_safetensors_get(st, full, kind == CAIRN_STORED_TENSOR ? 1 : 2, shape, &s->factors));
	if (!is_float(s->factors))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   s->factors->file, full, cairn_st_dtype_name(s->factors->dtype));
	return 0;
}

enum cairn_share cairn_model_share(const struct cairn_model *m, const struct cairn_part *p)
{
	if (m->ranks <= 1)
		return CAIRN_SHARE_WHOLE;
	switch (p->weight) {
	case CAIRN_W_QKV:
	case CAIRN_W_QKV_BIAS:
	case CAIRN_W_GATE_UP:
	case CAIRN_W_GATE_UP_BIAS:
		return CAIRN_SHARE_ROWS;
	case CAIRN_W_O_BIAS:
	case CAIRN_W_DOWN_BIAS:
		return CAIRN_SHARE_ON_0;
	case CAIRN_W_O:
	case CAIRN_W_DOWN:
		return CAIRN_SHARE_COLS;
	default:
		return CAIRN_SHARE_WHOLE;
	}
}

int cairn_model_find_part(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			  const struct cairn_safetensors *st, struct cairn_stored *s)
{
	const enum cairn_share share = cairn_model_share(m, p);
	/* of k and v, several ranks may have the same rows */
	const int32_t shares = p->rows == CAIRN_D_KV ? m->kv_shares : m->ranks;
	const int64_t shape[] = { m->dims[p->rows] * (share == CAIRN_SHARE_ROWS ? shares : 1),
				  m->dims[p->cols] * (share == CAIRN_SHARE_COLS ? m->ranks : 1) };
	int is_matrix = p->cols != CAIRN_D_ONE && p->weight != CAIRN_W_ROUTER && p->weight != CAIRN_W_EMBED &&
			p->weight != CAIRN_W_LM_HEAD;

	s->factors = NULL;
	CAIRN_TRY(cairn_safetensors_get(st, name, p->cols == CAIRN_D_ONE ? 1 : 2, shape, &s->tensor));
	if (is_matrix && m->config.stored_fp8 && s->tensor->dtype == CAIRN_ST_F8_E4M3)
		return find_factors(m, p, name, st, s);
	if (!is_float(s->tensor))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   s->tensor->file, name, cairn_st_dtype_name(s->tensor->dtype));
	if (share == CAIRN_SHARE_ROWS) {
		s->share = *s->tensor;
		s->share.shape[0] /= shares;
		s->share.num_bytes /= (size_t)shares;
		s->share.data = (const char *)s->tensor->data +
				(size_t)(m->rank * shares / m->ranks) * s->share.num_bytes;
		s->tensor = &s->share;
	}
	return 0;
}

/* Returns the index of the factor of an element. */
static int64_t factor_of(const struct cairn_stored *s, int64_t row, int64_t column)
{
	return row / s->block_rows * over(s->tensor->shape[1], s->block_cols) + column / s->block_cols;
}

/* Returns factor i. */
static double factor_at(const struct cairn_stored *s, int64_t i)
{
	const int dtype = cairn_st_to_dtype(s->factors->dtype);
	const size_t bytes = cairn_dtype_bytes(dtype);
	double factor[1];

	memcpy(factor, (const char *)s->factors->data + (size_t)i * bytes, bytes);	/* may be unaligned */
	return cairn_load(factor, dtype, 0);
}

static int refuse_element(const struct cairn_stored *s, int64_t element, int dtype)
{
	return cairn_error(EINVAL, "%s: %s: element %lld, a code times its factor, is not a number that %s "
			   "represents", s->tensor->file, s->tensor->name, (long long)element,
			   cairn_dtype_name(dtype));
}

/*
 * Pieces of CAIRN_FP8_BLOCK columns are widened and tested, because no piece has elements of two blocks: a
 * block has as many columns, or all.
 *
 * Widens a row to `to` from element `at` on. Returns the first column that is not finite in dtype, or
 * -1.
 */
static int64_t widen_row(const struct cairn_stored *s, int64_t row, int dtype, char *to, int64_t at)
{
	const int64_t cols = s->tensor->shape[1];
	const uint8_t *codes = (const uint8_t *)s->tensor->data + row * cols;
	double wide[CAIRN_FP8_BLOCK];
	int64_t bad = -1;

	for (int64_t from = 0; from < cols; from += CAIRN_FP8_BLOCK) {
		int64_t n = cols - from < CAIRN_FP8_BLOCK ? cols - from : CAIRN_FP8_BLOCK;

		cairn_widen_e4m3(wide, codes + from, factor_at(s, factor_of(s, row, from)), n);
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
	return bad < INT64_MAX ? refuse_element(s, bad, dtype) : 0;
}

int cairn_model_keeps_codes(const struct cairn_model *m, const struct cairn_part *p,
			    const struct cairn_place *place, const struct cairn_stored *s)
{
	const int is_blocks = m->config.stored_fp8 == CAIRN_STORED_BLOCKS;
	int32_t n, k;
	int64_t row;

	if (!s->factors || !cairn_weight_fp8(m, p->weight, &n, &k))
		return 0;
	if (m->weights == CAIRN_WEIGHTS_FP8)
		return !is_blocks;	/* the scale of a whole matrix is repeated for its rows */
	if (!is_blocks)
		return 0;
	row = place->first / (int64_t)cairn_dtype_bytes(m->dtype) / k % n;
	return row % CAIRN_FP8_BLOCK == 0 &&
	       (m->dims[p->rows] % CAIRN_FP8_BLOCK == 0 || row + m->dims[p->rows] == n);
}

/*
 * Returns a column of the row whose value is not finite in dtype, in the first piece that has one, or -1.
 * Only the largest code of each piece is tested, because its value is the largest.
 */
static int64_t not_finite(const struct cairn_stored *s, int64_t row, int dtype)
{
	const int64_t cols = s->tensor->shape[1];
	const uint8_t *codes = (const uint8_t *)s->tensor->data + row * cols;

	for (int64_t from = 0; from < cols; from += CAIRN_FP8_BLOCK) {
		int64_t n = cols - from < CAIRN_FP8_BLOCK ? cols - from : CAIRN_FP8_BLOCK, at = 0;
		double factor = factor_at(s, factor_of(s, row, from)), largest[1];
		uint8_t most = 0;

		for (int64_t i = 0; i < n; i++)
			most = (codes[from + i] & 0x7f) > most ? codes[from + i] & 0x7f : most;
		while ((codes[from + at] & 0x7f) != most)
			at++;
		cairn_store(largest, dtype, 0, (double)cairn_e4m3_to_float(most) * factor);
		if (most == 0x7f || !isfinite(cairn_load(largest, dtype, 0)))
			return from + at;
	}
	return -1;
}

static int check_codes(const struct cairn_stored *s, int dtype)
{
	const int64_t rows = s->tensor->shape[0], cols = s->tensor->shape[1];
	int64_t bad = INT64_MAX;

	#pragma omp parallel for reduction(min : bad) if (rows * cols > 65536)
	for (int64_t r = 0; r < rows; r++) {
		int64_t column = not_finite(s, r, dtype);

		if (column >= 0 && r * cols + column < bad)
			bad = r * cols + column;
	}
	return bad < INT64_MAX ? refuse_element(s, bad, dtype) : 0;
}

int cairn_model_load_codes(const struct cairn_model *m, const struct cairn_part *p,
			   const struct cairn_place *place, const struct cairn_stored *s, float *scratch,
			   int64_t max_factors, void *stream)
{
	const int64_t first = place->first / (int64_t)cairn_dtype_bytes(m->dtype);
	const int64_t rows = s->tensor->shape[0];
	const int is_one = m->config.stored_fp8 == CAIRN_STORED_TENSOR;
	char *codes = (char *)cairn_model_weight(m, place->layer, p->weight) + first;
	float *scales = (float *)(uintptr_t)cairn_model_scale(m, place->layer, p->weight);
	int64_t num, row;
	int32_t n, k;

	CAIRN_TRY(check_codes(s, m->dtype));
	cairn_weight_fp8(m, p->weight, &n, &k);
	scales += first / ((int64_t)n * k) * cairn_weight_scales(m, n, k);
	row = first / k % n;
	if (m->weights == CAIRN_WEIGHTS_FP8) {
		scales += row;
		num = rows;
	} else {
		scales += row / CAIRN_FP8_BLOCK * over(k, CAIRN_FP8_BLOCK);
		num = over(rows, CAIRN_FP8_BLOCK) * over(k, CAIRN_FP8_BLOCK);
	}
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, codes, s->tensor->data, s->tensor->num_bytes,
			      CAIRN_COPY_TO_DEVICE, stream));
	for (int64_t from = 0, count; from < num; from += count) {
		count = num - from < max_factors ? num - from : max_factors;
		for (int64_t i = 0; i < count; i++)
			scratch[i] = (float)factor_at(s, is_one ? 0 : from + i);
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, scales + from, scratch,
				      (size_t)count * sizeof(float), CAIRN_COPY_TO_DEVICE, stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, stream));	/* scratch is reused */
	}
	return 0;
}
