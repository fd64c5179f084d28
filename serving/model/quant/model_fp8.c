// SPDX-License-Identifier: Apache-2.0
/*
 * model_fp8 - finds the tensor of a part in a checkpoint, and widens or copies the stored fp8 that model.h
 * describes
 */
#include "serving/model/load/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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
	const int64_t rows = m->whole[p->rows], cols = m->whole[p->cols];
	/* by enum cairn_stored_fp8 */
	static const char *const suffixes[] = { NULL, "_scale_inv", "_scale", "_scale" };
	const int64_t sizes[][2] = {
		{ 1, 1 }, { CAIRN_FP8_BLOCK, CAIRN_FP8_BLOCK }, { 1, cols }, { rows, cols },
	};
	const enum cairn_stored_fp8 kind = m->config.stored_fp8;
	const struct cairn_tensor *found;
	int64_t shape[2];
	int32_t rank = 2;
	char full[128];

	s->block_rows = sizes[kind][0];
	s->block_cols = sizes[kind][1];
	shape[0] = over(rows, s->block_rows);
	shape[1] = over(cols, s->block_cols);
	snprintf(full, sizeof(full), "%s%s", name, suffixes[kind]);
	found = cairn_safetensors_find(st, full);
	if (kind == CAIRN_STORED_TENSOR)		/* [1], or a scalar */
		rank = found && !found->rank ? 0 : 1;
	CAIRN_TRY(cairn_safetensors_get(st, full, rank, shape, &s->factors));
	if (!is_float(s->factors))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   s->factors->file, full, cairn_st_dtype_name(s->factors->dtype));
	return 0;
}

int cairn_model_find_part(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			  const struct cairn_safetensors *st, struct cairn_stored *s)
{
	const int64_t shape[] = { m->whole[p->rows], m->whole[p->cols] };
	int is_matrix = p->cols != CAIRN_D_ONE && p->weight != CAIRN_W_ROUTER && p->weight != CAIRN_W_EMBED &&
			p->weight != CAIRN_W_LM_HEAD;

	s->factors = NULL;
	s->cut = cairn_model_cut(m, p);
	CAIRN_TRY(cairn_safetensors_get(st, name, p->cols == CAIRN_D_ONE ? 1 : 2, shape, &s->tensor));
	if (is_matrix && m->config.stored_fp8 && s->tensor->dtype == CAIRN_ST_F8_E4M3)
		return find_factors(m, p, name, st, s);
	if (!is_float(s->tensor))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   s->tensor->file, name, cairn_st_dtype_name(s->tensor->dtype));
	if (cairn_model_share(m, p) == CAIRN_SHARE_ROWS)
		cairn_model_take_rows(s);
	return 0;
}

/* Returns the index of the factor of an element of the whole matrix. */
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
 * The codes of a row of this rank's part that share a factor: `num` columns from `at` on, at most
 * CAIRN_FP8_BLOCK. No piece has elements of two blocks, because a block has as many columns, or all.
 */
struct piece {
	const uint8_t *codes;
	int64_t at, num;
	double factor;
};

/* Returns the piece of a row that begins at column `at` of the part. */
static struct piece piece_at(const struct cairn_stored *s, int64_t row, int64_t at)
{
	const int64_t whole = s->tensor->shape[1], col = s->cut.first_col + at;
	const int64_t end = (col / CAIRN_FP8_BLOCK + 1) * CAIRN_FP8_BLOCK - s->cut.first_col;

	row += s->cut.first_row;
	return (struct piece){
		.codes = (const uint8_t *)s->tensor->data + row * whole + col, .at = at,
		.num = (end < s->cut.cols ? end : s->cut.cols) - at,
		.factor = factor_at(s, factor_of(s, row, col)),
	};
}

/* Widens a row to `to` from element `to_at` on. Returns the first column that is not finite, or -1. */
static int64_t widen_row(const struct cairn_stored *s, int64_t row, int dtype, char *to, int64_t to_at)
{
	double wide[CAIRN_FP8_BLOCK];
	int64_t bad = -1;
	struct piece p;

	for (int64_t from = 0; from < s->cut.cols; from += p.num) {
		p = piece_at(s, row, from);
		cairn_widen_e4m3(wide, p.codes, p.factor, p.num);
		cairn_narrow(to, dtype, to_at + from, wide, p.num);
		for (int64_t i = 0; i < p.num && bad < 0; i++)
			if ((p.codes[i] & 0x7f) == 0x7f ||
			    !isfinite(cairn_load(to, dtype, to_at + from + i)))
				bad = from + i;
	}
	return bad;
}

/* Returns where an element of this rank's part is in the whole tensor. */
static int64_t element_of(const struct cairn_stored *s, int64_t row, int64_t col)
{
	return (s->cut.first_row + row) * s->tensor->shape[1] + s->cut.first_col + col;
}

int cairn_model_widen(const struct cairn_stored *s, int dtype, int64_t from, int64_t rows, int64_t pitch,
		      char *to)
{
	int64_t bad = INT64_MAX;

	#pragma omp parallel for reduction(min : bad) if (rows * pitch > 65536)
	for (int64_t r = 0; r < rows; r++) {
		int64_t column = widen_row(s, from + r, dtype, to, r * pitch);

		if (column >= 0 && element_of(s, from + r, column) < bad)
			bad = element_of(s, from + r, column);
	}
	return bad < INT64_MAX ? refuse_element(s, bad, dtype) : 0;
}

int cairn_model_keeps_codes(const struct cairn_model *m, const struct cairn_part *p,
			    const struct cairn_place *place, const struct cairn_stored *s)
{
	const int is_blocks = m->config.stored_fp8 == CAIRN_STORED_BLOCKS;
	int32_t n, k;
	int64_t row;

	if (!s->factors || !cairn_weight_fp8(m, p->weight, &n, &k) || s->cut.rows != m->dims[p->rows] ||
	    s->cut.cols != m->dims[p->cols])
		return 0;
	if (cairn_weights_scale_kind(m->weights) == CAIRN_FP8_SCALE_ROWS)
		return !is_blocks;	/* the scale of a whole matrix is repeated for its rows */
	if (!is_blocks || s->cut.first_row % CAIRN_FP8_BLOCK || s->cut.first_col % CAIRN_FP8_BLOCK)
		return 0;		/* blocks of the share are not those of the checkpoint */
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
	struct piece p;

	for (int64_t from = 0; from < s->cut.cols; from += p.num) {
		double largest[1];
		uint8_t most = 0;
		int64_t at = 0;

		p = piece_at(s, row, from);
		for (int64_t i = 0; i < p.num; i++)
			most = (p.codes[i] & 0x7f) > most ? p.codes[i] & 0x7f : most;
		while ((p.codes[at] & 0x7f) != most)
			at++;
		cairn_store(largest, dtype, 0, (double)cairn_e4m3_to_float(most) * p.factor);
		if (most == 0x7f || !isfinite(cairn_load(largest, dtype, 0)))
			return from + at;
	}
	return -1;
}

static int check_codes(const struct cairn_stored *s, int dtype)
{
	int64_t bad = INT64_MAX;

	#pragma omp parallel for reduction(min : bad) if ((int64_t)s->cut.rows * s->cut.cols > 65536)
	for (int64_t r = 0; r < s->cut.rows; r++) {
		int64_t column = not_finite(s, r, dtype);

		if (column >= 0 && element_of(s, r, column) < bad)
			bad = element_of(s, r, column);
	}
	return bad < INT64_MAX ? refuse_element(s, bad, dtype) : 0;
}

/* Copies the codes of this rank's part, whose rows are put together first unless they are contiguous. */
static int copy_codes(const struct cairn_model *m, const struct cairn_stored *s, char *to, void *stream)
{
	const size_t row = (size_t)s->cut.cols, rows = (size_t)s->cut.rows, all = (size_t)s->tensor->shape[1];
	const char *from = (const char *)s->tensor->data + element_of(s, 0, 0);
	char *together;
	int ret;

	if (row == all)
		return CAIRN_TABLE(m->impl, mem_copy, to, from, rows * row, CAIRN_COPY_TO_DEVICE, stream);
	together = malloc(rows * row);
	if (!together)
		return cairn_error(ENOMEM, "model: no memory for %s", s->tensor->name);
	for (size_t i = 0; i < rows; i++)
		memcpy(together + i * row, from + i * all, row);
	ret = CAIRN_TABLE(m->impl, mem_copy, to, together, rows * row, CAIRN_COPY_TO_DEVICE, stream);
	m->impl->stream_sync(stream);
	free(together);
	return ret;
}

int cairn_model_load_codes(const struct cairn_model *m, const struct cairn_part *p,
			   const struct cairn_place *place, const struct cairn_stored *s, float *scratch,
			   int64_t max_factors, void *stream)
{
	const int64_t first = place->first / (int64_t)cairn_dtype_bytes(m->dtype);
	const int by_rows = cairn_weights_scale_kind(m->weights) == CAIRN_FP8_SCALE_ROWS;
	const int64_t rows = s->cut.rows, block = by_rows ? 1 : CAIRN_FP8_BLOCK;
	char *codes = (char *)cairn_model_weight(m, place->layer, p->weight) + first;
	float *scales = (float *)(uintptr_t)cairn_model_scale(m, place->layer, p->weight);
	int64_t across, num;
	int32_t n, k;

	CAIRN_TRY(check_codes(s, m->dtype));
	cairn_weight_fp8(m, p->weight, &n, &k);
	across = block > 1 ? over(k, block) : 1;	/* scales of a row */
	num = over(rows, block) * across;
	scales += first / ((int64_t)n * k) * cairn_weight_scales(m, n, k) + first / k % n / block * across;
	CAIRN_TRY(copy_codes(m, s, codes, stream));
	for (int64_t from = 0, count; from < num; from += count) {
		count = num - from < max_factors ? num - from : max_factors;
		for (int64_t i = 0; i < count; i++)
			scratch[i] = (float)factor_at(s, factor_of(
				s, s->cut.first_row + (from + i) / across * block,
				s->cut.first_col + (from + i) % across * CAIRN_FP8_BLOCK));
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, scales + from, scratch,
				      (size_t)count * sizeof(float), CAIRN_COPY_TO_DEVICE, stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, stream));	/* scratch is reused */
	}
	return 0;
}
