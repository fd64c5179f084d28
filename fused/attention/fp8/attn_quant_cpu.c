// SPDX-License-Identifier: Apache-2.0
/* attn_quant_cpu - the CPU table: one block at a time, whose rows in fp32 fit a core's cache */
#include "fused/attention/fp8/attn_quant.h"

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"

#define BLOCK	ATTN_FP8_BLOCK
#define MAX_DIM	128

/* The rows of a block, and the destinations of its codes and its scale. */
struct block {
	const void *x;
	int64_t first, stride;
	uint8_t *codes;
	float *scale;
	int32_t rows;
};

/* One stage of the transform; inner loops run over neighbouring elements. */
static inline void stage(float *y, int dim, int b)
{
	for (int at = 0; at < dim; at += 2 * b)
		for (int c = at; c < at + b; c++) {
			float sum = y[c] + y[c + b], difference = y[c] - y[c + b];

			y[c] = sum;
			y[c + b] = difference;
		}
}

/* Loads the rows, rotated by the signs if they are not NULL. Returns the largest magnitude. */
static CAIRN_WIDE float load(const struct cairn_attn_quant_args *a, const struct block *k,
			     const uint8_t *signs, float (*y)[MAX_DIM])
{
	float factor[MAX_DIM], max = 0;

	for (int c = 0; signs && c < a->head_dim; c++)
		factor[c] = signs[c / 8] >> c % 8 & 1 ? -1 : 1;
	for (int i = 0; i < k->rows; i++) {
		cairn_load_row(y[i], k->x, a->dtype, k->first + i * k->stride, a->head_dim);
		if (signs) {
			for (int c = 0; c < a->head_dim; c++)
				y[i][c] *= factor[c];
			for (int b = 1; b < a->head_dim; b *= 2)
				stage(y[i], a->head_dim, b);
		}
		for (int c = 0; c < a->head_dim; c++)
			max = fabsf(y[i][c]) > max ? fabsf(y[i][c]) : max;
	}
	return max;
}

/* Sets the block's scale. Returns the factor from its elements to their codes. */
static float set_scale(const struct block *k, float max, float norm)
{
	if (max < ATTN_QUANT_LEAST) {
		*k->scale = 1;
		return 0;
	}
	*k->scale = max * norm;
	return ATTN_QUANT_MAX / max;
}

static CAIRN_WIDE void quantise_rows(const struct cairn_attn_quant_args *a, const struct block *k)
{
	const int dim = a->head_dim;
	float y[BLOCK][MAX_DIM], inverse;

	inverse = set_scale(k, load(a, k, a->signs, y), attn_quant_norm(dim, a->signs != NULL));
	for (int i = 0; i < k->rows; i++)
		for (int c = 0; c < dim; c++)
			k->codes[i * dim + c] = cairn_narrow_e4m3(y[i][c] * inverse);
	memset(k->codes + k->rows * dim, 0, (size_t)(BLOCK - k->rows) * (size_t)dim);
}

static CAIRN_WIDE void quantise_columns(const struct cairn_attn_quant_args *a, const struct block *k)
{
	const int dim = a->head_dim;
	float y[BLOCK][MAX_DIM], inverse;

	inverse = set_scale(k, load(a, k, NULL, y), attn_quant_norm(dim, 0));
	memset(k->codes, 0, (size_t)BLOCK * (size_t)dim);
	for (int i = 0; i < k->rows; i++)
		for (int c = 0; c < dim; c++)
			k->codes[c * BLOCK + attn_fp8_place(i)] = cairn_narrow_e4m3(y[i][c] * inverse);
}

/* Quantises block i of request b, head `head`, of q (operand 0), k (1) or v (2). */
static void quantise(const struct cairn_attn_quant_args *a, int operand, int b, int head, int i)
{
	const int32_t *indptr = operand ? a->kv_indptr : a->qo_indptr;
	int32_t nnz = operand ? a->nnz_kv : a->nnz_qo, left = indptr[b + 1] - indptr[b] - i * BLOCK;
	int64_t head_stride = operand == 0 ? a->head_dim : operand == 1 ? attn_quant_k_head_stride(a) :
			      attn_quant_v_head_stride(a);
	int64_t at = (int64_t)head * attn_fp8_blocks(nnz, a->batch) + attn_fp8_first_block(indptr[b], b) + i;
	struct block k = {
		.x = operand == 0 ? a->q : operand == 1 ? a->k : a->v,
		.stride = operand == 0 ? attn_quant_q_stride(a) : operand == 1 ? attn_quant_k_stride(a) :
			  attn_quant_v_stride(a),
		.codes = (operand == 0 ? a->q8 : operand == 1 ? a->k8 : a->v8) + at * BLOCK * a->head_dim,
		.scale = (operand == 0 ? a->q_scale : operand == 1 ? a->k_scale : a->v_scale) + at,
		.rows = left < BLOCK ? left : BLOCK,
	};

	k.first = ((int64_t)indptr[b] + i * BLOCK) * k.stride + head * head_stride;
	if (operand == 2)
		quantise_columns(a, &k);
	else
		quantise_rows(a, &k);
}

int cairn_attn_quant_cpu(const struct cairn_attn_quant_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_quant_check(a));
	for (int operand = 0; operand < 3; operand++) {
		const int32_t *indptr = operand ? a->kv_indptr : a->qo_indptr;
		int heads = operand ? a->num_kv_heads : a->num_qo_heads;

		for (int b = 0; b < a->batch; b++) {
			int blocks = (indptr[b + 1] - indptr[b] + BLOCK - 1) / BLOCK;

			#pragma omp parallel for schedule(dynamic) if (heads * blocks > 1)
			for (int t = 0; t < heads * blocks; t++)
				quantise(a, operand, b, t / blocks, t % blocks);
		}
	}
	return 0;
}
