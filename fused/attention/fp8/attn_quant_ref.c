// SPDX-License-Identifier: Apache-2.0
/* attn_quant_ref - the reference; attn_quant.h defines every bit of the result */
#include "fused/attention/fp8/attn_quant.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

#define BLOCK	ATTN_FP8_BLOCK
#define MAX_DIM	128

/* One tensor of a call; `out` and `scale_out` number the outputs of exact[]. */
struct part {
	uint8_t *codes;
	float *scale;
	const void *x;
	const int32_t *indptr;
	int64_t stride, head_stride;
	int32_t heads, blocks, rotated, transposed, out, scale_out;
};

static void rotate(const struct cairn_attn_quant_args *a, float *y)
{
	for (int c = 0; c < a->head_dim; c++)
		if (a->signs[c / 8] >> c % 8 & 1)
			y[c] = -y[c];
	for (int b = 1; b < a->head_dim; b *= 2)
		for (int c = 0; c < a->head_dim; c++)
			if (!(c & b)) {
				float x = y[c];

				y[c] = x + y[c + b];
				y[c + b] = x - y[c + b];
			}
}

static void put(const struct part *p, struct cairn_exact *exact, int64_t at, uint8_t code, int defined)
{
	if (!exact) {
		p->codes[at] = code;
		return;
	}
	exact[p->out].val[at] = defined ? code : NAN;
	exact[p->out].bound[at] = defined ? 0 : INFINITY;
}

/* Quantises `rows` rows of a head, from row `first` of x on, as block `at` of all heads. */
static void quantise(const struct cairn_attn_quant_args *a, const struct part *p, int head, int64_t first,
		     int rows, int64_t at, struct cairn_exact *exact)
{
	float y[BLOCK][MAX_DIM], max = 0, inverse;
	int dim = a->head_dim, defined = 1, zero;

	for (int i = 0; i < rows; i++) {
		cairn_load_row(y[i], p->x, a->dtype, (first + i) * p->stride + head * p->head_stride, dim);
		if (p->rotated)
			rotate(a, y[i]);
		for (int c = 0; c < dim; c++) {
			max = fmaxf(max, fabsf(y[i][c]));
			defined &= isfinite(y[i][c]) != 0;
		}
	}
	zero = max < ATTN_QUANT_LEAST;
	inverse = zero ? 0 : ATTN_QUANT_MAX / max;
	max = zero ? 1 : max * attn_quant_norm(dim, p->rotated);
	if (exact) {
		exact[p->scale_out].val[at] = defined ? (double)max : NAN;
		exact[p->scale_out].bound[at] = defined ? 0 : INFINITY;
	} else {
		p->scale[at] = max;
	}
	for (int i = 0; i < BLOCK; i++)
		for (int c = 0; c < dim; c++) {
			int64_t place = p->transposed ? c * BLOCK + attn_fp8_place(i) : i * dim + c;

			put(p, exact, at * BLOCK * dim + place,
			    i < rows ? cairn_float_to_e4m3(y[i][c] * inverse) : 0, defined);
		}
}

static void run_part(const struct cairn_attn_quant_args *a, const struct part *p, struct cairn_exact *exact)
{
	for (int b = 0; b < a->batch; b++) {
		int first = p->indptr[b], len = p->indptr[b + 1] - first;

		#pragma omp parallel for collapse(2) schedule(static)
		for (int head = 0; head < p->heads; head++)
			for (int i = 0; i < len; i += BLOCK) {
				int64_t at = (int64_t)head * p->blocks + attn_fp8_first_block(first, b) +
					     i / BLOCK;
				int64_t codes = (int64_t)BLOCK * a->head_dim;

				if (!exact || cairn_is_wanted(&exact[p->out], at * codes, codes))
					quantise(a, p, head, first + i, len - i < BLOCK ? len - i : BLOCK,
						 at, exact);
			}
	}
}

/* Runs all three tensors. */
static void run(const struct cairn_attn_quant_args *a, struct cairn_exact *exact)
{
	const int32_t q_blocks = attn_fp8_blocks(a->nnz_qo, a->batch);
	const int32_t kv_blocks = attn_fp8_blocks(a->nnz_kv, a->batch);
	const struct part parts[] = {
		{ a->q8, a->q_scale, a->q, a->qo_indptr, attn_quant_q_stride(a), a->head_dim,
		  a->num_qo_heads, q_blocks, a->signs != NULL, 0, 0, 3 },
		{ a->k8, a->k_scale, a->k, a->kv_indptr, attn_quant_k_stride(a),
		  attn_quant_k_head_stride(a), a->num_kv_heads, kv_blocks, a->signs != NULL, 0, 1, 4 },
		{ a->v8, a->v_scale, a->v, a->kv_indptr, attn_quant_v_stride(a),
		  attn_quant_v_head_stride(a), a->num_kv_heads, kv_blocks, 0, 1, 2, 5 },
	};

	for (int i = 0; i < 3; i++)
		run_part(a, &parts[i], exact);
}

int cairn_attn_quant_ref(const struct cairn_attn_quant_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_quant_check(a));
	run(a, NULL);
	return 0;
}

int cairn_attn_quant_exact(const struct cairn_attn_quant_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_attn_quant_check(a));
	run(a, exact);
	return 0;
}
