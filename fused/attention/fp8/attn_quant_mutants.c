// SPDX-License-Identifier: Apache-2.0
/*
 * attn_quant_mutants - wrong implementations that the cases must catch
 *
 * All mutants share one plain quantisation, which computes one block at a time; a switch selects the defect.
 */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/fp8/attn_quant.h"
#include "primitives/base/fp8.h"

#define BLOCK	ATTN_FP8_BLOCK

/* D(name, description) */
#define DEFECTS(D) \
	D(sign_on_q_only, "k is transformed without its signs") \
	D(signs_from_the_top, "bit 7 of a byte of signs is its first") \
	D(signs_behind, "signs are applied behind the transform") \
	D(rotated_v, "v is rotated as well") \
	D(never_rotated, "signs are ignored") \
	D(unnormalised, "the scale of rotated blocks lacks 1 / sqrt(head_dim)") \
	D(normalised_twice, "rotated rows are divided by head_dim") \
	D(last_stage_lost, "the stage head_dim / 2 of the transform is missing") \
	D(stages_from_the_top, "the stages run from head_dim / 2 to 1: other bits") \
	D(scale_of_block_0, "all blocks of a head have the scale of the first") \
	D(scale_of_head_0, "all heads have the scale of the first") \
	D(scale_of_neighbour, "the maximum takes rows of the next request") \
	D(scale_signed, "the maximum is that of the numbers, not their magnitudes") \
	D(scale_power_of_2, "the scale is rounded up to a power of two") \
	D(scale_256, "the largest code is 256") \
	D(scale_inverted, "scales are written as 448 / max") \
	D(scale_divided, "the code is y / scale: other bits") \
	D(zero_scale, "a block of zeros has scale 0") \
	D(no_least, "the smallest maxima have a scale too") \
	D(truncates, "codes are rounded towards zero") \
	D(ties_away, "ties are rounded away from zero") \
	D(subnormals_lost, "codes below 2^-6 become 0") \
	D(zeros_positive, "negative zeros lose their sign") \
	D(pad_unwritten, "rows past a request's end are not written") \
	D(pad_of_neighbour, "rows past a request's end hold those of the next request") \
	D(gap_written, "a block of no request is written") \
	D(blocks_of_all_rows, "blocks are cut at multiples of 128 of all rows, not of a request's") \
	D(blocks_without_request, "the first block of a request is indptr / 128") \
	D(last_block_lost, "a request's last block is lost if it is not whole") \
	D(v_in_order, "keys of v lie in their order") \
	D(v_8_by_8, "v is transposed in tiles of 8 x 8 only") \
	D(v_not_transposed, "v is not transposed") \
	D(q_stride_ignored, "rows of q are assumed to be contiguous") \
	D(k_stride_ignored, "rows of K are assumed to be contiguous") \
	D(v_stride_of_k, "rows of V are k_stride apart") \
	D(offset_of_heads_32_bits, "the first element of a head is numbered by 32 bits") \
	D(k_head_stride_ignored, "heads of K are assumed to be contiguous") \
	D(v_head_stride_of_k, "heads of V are k_head_stride apart") \
	D(kv_heads_of_q, "K has as many heads as q: the first ones twice") \
	D(qo_indptr_for_keys, "keys begin where the request's queries begin") \
	D(f16_as_bf16, "f16 is read as bf16") \
	D(offset_q_32_bits, "offsets of q are cut to 32 bits") \
	D(offset_k_32_bits, "offsets of K are cut to 32 bits") \
	D(offset_v_32_bits, "offsets of V are cut to 32 bits") \
	D(not_repeatable, "every other call differs in one code") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	QUANT_##name,
enum quant_defect { DEFECTS(NAME) };

/* One of q, k and v: 0, 1, 2. */
struct tensor {
	int which, heads, blocks;
	uint8_t *codes;
	float *scale;
	const void *x;
	const int32_t *indptr;
	int64_t stride, head_stride;
};

static float element(const struct cairn_attn_quant_args *a, const struct tensor *t, int64_t row, int head,
		     int c, enum quant_defect x)
{
	int64_t at = row * t->stride + c + (x == QUANT_offset_of_heads_32_bits ?
		     (int64_t)(uint32_t)(head * t->head_stride) : head * t->head_stride);

	if ((x == QUANT_offset_q_32_bits && t->which == 0) ||
	    (x == QUANT_offset_k_32_bits && t->which == 1) ||
	    (x == QUANT_offset_v_32_bits && t->which == 2))
		at = (int64_t)((uint32_t)(at * 2) / 2);
	return (float)cairn_load(t->x, x == QUANT_f16_as_bf16 ? CAIRN_BF16 : a->dtype, at);
}

static void negate(const struct cairn_attn_quant_args *a, float *y, enum quant_defect x)
{
	for (int c = 0; c < a->head_dim; c++) {
		int bit = x == QUANT_signs_from_the_top ? 7 - c % 8 : c % 8;

		if (a->signs[c / 8] >> bit & 1)
			y[c] = -y[c];
	}
}

static void rotate(const struct cairn_attn_quant_args *a, const struct tensor *t, float *y,
		   enum quant_defect x)
{
	int dim = a->head_dim, last = x == QUANT_last_stage_lost ? dim / 4 : dim / 2;

	if (x != QUANT_signs_behind && !(x == QUANT_sign_on_q_only && t->which))
		negate(a, y, x);
	for (int s = 1; s <= last; s *= 2) {
		int b = x == QUANT_stages_from_the_top ? dim / 2 / s : s;

		for (int c = 0; c < dim; c++)
			if (!(c & b)) {
				float first = y[c];

				y[c] = first + y[c + b];
				y[c + b] = first - y[c + b];
			}
	}
	if (x == QUANT_signs_behind)
		negate(a, y, x);
}

static uint8_t narrow(float v, enum quant_defect x)
{
	uint8_t code = cairn_float_to_e4m3(v);

	if (x == QUANT_truncates && fabsf(cairn_e4m3_to_float(code)) > fabsf(v))
		code--;
	if (x == QUANT_ties_away && fabsf(v) < 448 && (code & 0x7f) < 0x7e &&
	    2 * fabsf(v) == fabsf(cairn_e4m3_to_float(code)) + fabsf(cairn_e4m3_to_float(code + 1)))
		code++;
	if (x == QUANT_subnormals_lost && (code & 0x7f) < 8)
		code &= 0x80;
	if (x == QUANT_zeros_positive && code == 0x80)
		code = 0;
	return code;
}

static int64_t place_of(int dim, int i, int c, enum quant_defect x)
{
	if (x == QUANT_v_not_transposed)
		return i * dim + c;
	if (x == QUANT_v_in_order)
		return c * BLOCK + i;
	if (x == QUANT_v_8_by_8)	/* transposes each 8 x 8 tile, but not the order of the tiles */
		return (i / 8 * 8 + c % 8) * dim + c / 8 * 8 + i % 8;
	return c * BLOCK + attn_fp8_place(i);
}

/* Quantises rows first .. first + rows - 1 of all rows as block `at` of a head; `more` rows follow them. */
static void quantise(const struct cairn_attn_quant_args *a, const struct tensor *t, int head, int64_t first,
		     int rows, int more, int block, enum quant_defect x)
{
	int rotated = a->signs && x != QUANT_never_rotated && (t->which < 2 || x == QUANT_rotated_v);
	int dim = a->head_dim, looked = rows, zero, tail = BLOCK - rows < more ? BLOCK - rows : more;
	int64_t at = (int64_t)head * t->blocks + block;
	float y[BLOCK][256], max = 0, norm, inverse, *scale = &t->scale[at];

	memset(y, 0, sizeof(y));
	for (int i = 0; i < rows + tail; i++) {
		for (int c = 0; c < dim; c++)
			y[i][c] = element(a, t, first + i, head, c, x);
		if (rotated)
			rotate(a, t, y[i], x);
	}
	if (x == QUANT_scale_of_neighbour)
		looked += tail;
	for (int i = 0; i < looked; i++)
		for (int c = 0; c < dim; c++)
			max = fmaxf(max, x == QUANT_scale_signed ? y[i][c] : fabsf(y[i][c]));
	norm = attn_quant_norm(dim, rotated && x != QUANT_unnormalised);
	if (x == QUANT_normalised_twice && rotated)
		norm /= (float)sqrt(dim);
	zero = max < (x == QUANT_no_least ? 0x1p-140f : ATTN_QUANT_LEAST);
	inverse = zero ? 0 : (x == QUANT_scale_256 ? 256 : ATTN_QUANT_MAX) / max;
	*scale = zero ? (x == QUANT_zero_scale ? 0 : 1) : max * norm;
	if (x == QUANT_scale_256 && !zero)
		*scale *= 448.0f / 256;
	if (x == QUANT_scale_power_of_2 && !zero) {
		float power = exp2f(ceilf(log2f(*scale)));

		inverse *= *scale / power;
		*scale = power;
	}
	if (x == QUANT_scale_of_block_0 && block && !zero)
		*scale = t->scale[(int64_t)head * t->blocks];
	if (x == QUANT_scale_of_head_0)
		*scale = t->scale[block];
	if (x == QUANT_scale_inverted && !zero)
		*scale = inverse;
	for (int i = 0; i < BLOCK; i++)
		for (int c = 0; c < dim; c++) {
			int64_t place = t->which == 2 ? place_of(dim, i, c, x) : i * dim + c;
			float v = y[i][c] * inverse;

			if (i >= rows && x == QUANT_pad_unwritten)
				continue;
			if (x == QUANT_scale_divided && !zero)
				v = y[i][c] / (max / ATTN_QUANT_MAX);
			t->codes[at * BLOCK * dim + place] =
				i < rows || x == QUANT_pad_of_neighbour ? narrow(v, x) : 0;
		}
}

static void run_request(const struct cairn_attn_quant_args *a, const struct tensor *t, int b,
			enum quant_defect x)
{
	int first = t->indptr[b], len = t->indptr[b + 1] - first, all = t->indptr[a->batch];
	int block = x == QUANT_blocks_without_request ? first / BLOCK : attn_fp8_first_block(first, b);

	if (t->which && x == QUANT_qo_indptr_for_keys && a->qo_indptr[b] + len <= all)
		first = a->qo_indptr[b];
	for (int i = 0, rows; i < len; i += rows, block++) {
		rows = len - i < BLOCK ? len - i : BLOCK;
		if (x == QUANT_blocks_of_all_rows && i == 0 && first % BLOCK && rows > BLOCK - first % BLOCK)
			rows = BLOCK - first % BLOCK;
		if (x == QUANT_last_block_lost && rows < BLOCK && i)
			return;
		if (block >= t->blocks)
			return;
		for (int head = 0; head < t->heads; head++)
			quantise(a, t, x == QUANT_kv_heads_of_q && t->which ? head / 2 : head, first + i,
				 rows, all - first - i - rows, block, x);
	}
	/* the block number after a request's last block may be unused */
	if (x == QUANT_gap_written && block < t->blocks &&
	    (b + 1 == a->batch || block < attn_fp8_first_block(t->indptr[b + 1], b + 1)))
		t->codes[(int64_t)block * BLOCK * a->head_dim] ^= 1;
}

static int run(const struct cairn_attn_quant_args *a, enum quant_defect x)
{
	static int calls;
	struct tensor t[3] = {
		{ 0, a->num_qo_heads, 0, a->q8, a->q_scale, a->q, a->qo_indptr, 0, a->head_dim },
		{ 1, a->num_kv_heads, 0, a->k8, a->k_scale, a->k, a->kv_indptr, 0, 0 },
		{ 2, a->num_kv_heads, 0, a->v8, a->v_scale, a->v, a->kv_indptr, 0, 0 },
	};

	CAIRN_TRY(cairn_attn_quant_check(a));
	if (x == QUANT_nothing || !a->batch)
		return 0;
	t[0].blocks = attn_fp8_blocks(a->nnz_qo, a->batch);
	t[1].blocks = t[2].blocks = attn_fp8_blocks(a->nnz_kv, a->batch);
	t[0].stride = x == QUANT_q_stride_ignored ? (int64_t)a->num_qo_heads * a->head_dim :
		attn_quant_q_stride(a);
	t[1].stride = x == QUANT_k_stride_ignored ? (int64_t)a->num_kv_heads * a->head_dim :
		attn_quant_k_stride(a);
	t[2].stride = x == QUANT_v_stride_of_k ? attn_quant_k_stride(a) : attn_quant_v_stride(a);
	t[1].head_stride = x == QUANT_k_head_stride_ignored ? a->head_dim : attn_quant_k_head_stride(a);
	t[2].head_stride = x == QUANT_v_head_stride_of_k ? attn_quant_k_head_stride(a) :
							   attn_quant_v_head_stride(a);
	for (int i = 0; i < 3; i++)
		for (int b = 0; b < a->batch; b++)
			run_request(a, &t[i], b, x);
	if (x == QUANT_not_repeatable && a->qo_indptr[a->batch] && calls++ % 2)
		a->q8[(int64_t)attn_fp8_first_block(0, 0) * BLOCK * a->head_dim] ^= 1;
	return 0;
}

#define DEFINE(name, what) \
	static int attn_quant_##name(const struct cairn_attn_quant_args *a, void *stream) \
	{ \
		(void)stream; \
		return run(a, QUANT_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_quant_" #name, offsetof(struct cairn_impl, attn_quant), (void *)attn_quant_##name, what },

const struct cairn_mutant cairn_attn_quant_mutants[] = {
	DEFECTS(LIST)
	{ 0 }
};
