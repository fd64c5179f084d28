// SPDX-License-Identifier: Apache-2.0
/*
 * model_stacked - reads the experts of gpt-oss, which a checkpoint stores in one tensor for each layer
 *
 *   X            [num_experts, cols, rows]           values, each matrix transposed
 *   X_blocks     [num_experts, rows, cols / 32, 16]  MXFP4: two e2m1 in a byte, the low half first
 *   X_scales     [num_experts, rows, cols / 32]      MXFP4: e8m0, the exponent of 32 elements, biased by 127
 *   X_bias       [num_experts, rows]
 *
 * Rows of gate_up_proj alternate: the gate of an element, then its up. The packed weight has all gates, then
 * all ups. MXFP4 that is not kept in 4 bits is widened: bf16 represents all of its values exactly, if they
 * are finite.
 */
#include "serving/model/load/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp4.h"

#define BLOCK	32		/* elements that share a scale */
#define LARGE	252		/* the smallest scale, 2^125, that may overflow f32 */

static int is_gate_up(const struct cairn_part *p)
{
	return p->weight == CAIRN_W_EXPERTS_GATE_UP || p->weight == CAIRN_W_EXPERTS_GATE_UP_BIAS;
}

static int check_dtype(const struct cairn_tensor *t, int want_bytes)
{
	const int dtype = cairn_st_to_dtype(t->dtype);
	const int is_byte = t->dtype == CAIRN_ST_U8 || t->dtype == CAIRN_ST_F8_E8M0;

	if (want_bytes ? is_byte : dtype >= 0 && cairn_dtype_is_float(dtype))
		return 0;
	return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (%s)", t->file, t->name,
			   cairn_st_dtype_name(t->dtype), want_bytes ? "U8 is" : "F32, F16, BF16 are");
}

/* Finds the blocks and the scales of a matrix. */
static int find_blocks(const struct cairn_model *m, const char *name, int64_t rows, int64_t cols,
		       const struct cairn_safetensors *st, struct cairn_stacked *s)
{
	const int64_t shape[] = { m->whole[CAIRN_D_EXPERTS], rows, cols / BLOCK, BLOCK / 2 };
	char full[128];

	if (cols % BLOCK)
		return cairn_error(EOPNOTSUPP, "%s: rows of %lld elements are not divisible into blocks "
				   "of %d", name, (long long)cols, BLOCK);
	snprintf(full, sizeof(full), "%s_blocks", name);
	CAIRN_TRY(cairn_safetensors_get(st, full, 4, shape, &s->tensor));
	snprintf(full, sizeof(full), "%s_scales", name);
	CAIRN_TRY(cairn_safetensors_get(st, full, 3, shape, &s->scales));
	CAIRN_TRY(check_dtype(s->tensor, 1));
	return check_dtype(s->scales, 1);
}

int cairn_model_find_stacked(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			     const struct cairn_safetensors *st, struct cairn_stacked *s)
{
	const int64_t num = m->whole[CAIRN_D_EXPERTS], rows = m->whole[p->rows], cols = m->whole[p->cols];
	const int is_bias = p->cols == CAIRN_D_ONE;
	const int64_t vectors[] = { num, rows }, matrices[] = { num, cols, rows };

	s->scales = NULL;
	if (!is_bias && (m->keeps_mxfp4 || (m->config.stored_mxfp4 && !cairn_safetensors_find(st, name))))
		return find_blocks(m, name, rows, cols, st, s);
	CAIRN_TRY(cairn_safetensors_get(st, name, is_bias ? 2 : 3, is_bias ? vectors : matrices, &s->tensor));
	return check_dtype(s->tensor, 0);
}

/* Returns element i of a tensor of values, whose data may be unaligned. */
static double value_at(const struct cairn_tensor *t, int64_t i)
{
	const int dtype = cairn_st_to_dtype(t->dtype);
	const size_t bytes = cairn_dtype_bytes(dtype);
	double box = 0;

	memcpy(&box, (const char *)t->data + (size_t)i * bytes, bytes);
	return cairn_load(&box, dtype, 0);
}

/* Returns an element of MXFP4, counted over all experts; NaN if its scale is NaN. */
static double four_at(const struct cairn_stacked *s, int64_t i)
{
	const int byte = ((const uint8_t *)s->tensor->data)[i / 2], code = i % 2 ? byte >> 4 : byte & 15;
	const uint8_t scale = ((const uint8_t *)s->scales->data)[i / BLOCK];

	return (double)cairn_e2m1_to_float(code) * (double)cairn_e8m0_to_float(scale);
}

/* Which rows and columns of an expert's whole matrix this rank has; the rest of its part is zeros. */
struct stacked_cut {
	int64_t first_col, cols;
	int64_t first, width, padded;	/* of gates: the first, their number, and that with padding */
};

static struct stacked_cut cut_of(const struct cairn_model *m, const struct cairn_part *p)
{
	const enum cairn_share share = cairn_model_share(m, p);
	struct stacked_cut c = { .cols = m->whole[p->cols] };
	int32_t first, width;

	cairn_model_expert_columns(m, &first, &width);
	c.padded = m->dims[CAIRN_D_EXPERT_INTER];
	c.first = first;
	c.width = width;
	if (share == CAIRN_SHARE_COLS) {
		c.first_col = first;
		c.cols = width;
	} else if (share == CAIRN_SHARE_ON_0 && m->rank) {
		c.cols = 0;
	}
	return c;
}

/* Returns the row of the whole matrix that row `row` of the part is, or -1 if the row is padding. */
static int64_t whole_row(const struct cairn_part *p, const struct stacked_cut *c, int64_t row)
{
	const int64_t is_up = row >= c->padded, pair = row - is_up * c->padded;

	if (!is_gate_up(p))
		return row;
	return pair < c->width ? 2 * (c->first + pair) + is_up : -1;
}

int cairn_model_unstack(const struct cairn_model *m, const struct cairn_part *p,
			const struct cairn_stacked *s, int32_t expert, int64_t first, int64_t rows, char *to)
{
	const int64_t pitch = m->dims[p->cols], all_rows = m->whole[p->rows], all_cols = m->whole[p->cols];
	const struct stacked_cut c = cut_of(m, p);
	const int dtype = cairn_weight_dtype(m, p->weight);
	int64_t bad = -1;

	memset(to, 0, (size_t)(rows * pitch) * cairn_dtype_bytes(dtype));
	/* values are transposed, so that the inner loop reads elements that are close to each other */
	#pragma omp parallel for reduction(max : bad) if (rows * c.cols > 65536)
	for (int64_t col = 0; col < c.cols; col++) {
		for (int64_t r = 0; r < rows; r++) {
			int64_t row = whole_row(p, &c, first + r), column = c.first_col + col;
			int64_t at = s->scales || all_cols == 1 ?
				     (expert * all_rows + row) * all_cols + column :
				     (expert * all_cols + column) * all_rows + row;
			double v;

			if (row < 0)
				continue;
			v = s->scales ? four_at(s, at) : value_at(s->tensor, at);
			cairn_store(to, dtype, r * pitch + col, v);
			if (!isfinite(cairn_load(to, dtype, r * pitch + col)))
				bad = at > bad ? at : bad;
		}
	}
	if (bad >= 0)
		return cairn_error(EINVAL, "%s: %s: element %lld is not a number that %s represents",
				   s->tensor->file, s->tensor->name, (long long)bad, cairn_dtype_name(dtype));
	return 0;
}

int cairn_model_unstack_codes(const struct cairn_model *m, const struct cairn_part *p,
			      const struct cairn_stacked *s, int32_t expert, uint8_t *codes, uint8_t *scales)
{
	const int64_t cols = m->dims[p->cols];
	const struct stacked_cut c = cut_of(m, p);

	for (int64_t r = 0; r < m->dims[p->rows]; r++) {
		const int64_t row = whole_row(p, &c, r);
		const int64_t at = (expert * m->whole[p->rows] + row) * m->whole[p->cols] + c.first_col;

		if (row < 0)
			continue;
		memcpy(codes + r * cols / 2, (const uint8_t *)s->tensor->data + at / 2, (size_t)c.cols / 2);
		memcpy(scales + r * cols / BLOCK, (const uint8_t *)s->scales->data + at / BLOCK,
		       (size_t)c.cols / BLOCK);
		for (int64_t l = 0; l < c.cols; l++)
			if (scales[(r * cols + l) / BLOCK] >= LARGE && !isfinite((float)four_at(s, at + l)))
				return cairn_error(EINVAL, "%s: %s: element %lld is not finite",
						   s->tensor->file, s->tensor->name, (long long)(at + l));
	}
	return 0;
}
