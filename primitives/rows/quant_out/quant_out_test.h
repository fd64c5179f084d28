/* SPDX-License-Identifier: Apache-2.0 */
/* quant_out_test - cases of operations that also give their output in e4m3: buffers, names and the judge */
#ifndef CAIRN_QUANT_OUT_TEST_H
#define CAIRN_QUANT_OUT_TEST_H

#include "conformance/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "primitives/rows/quant_fp8w.h"

/* What a case asks for. */
enum quant_out { OUT_PLAIN, OUT_AND_ROWS, OUT_AND_PIECES, ONLY_ROWS, ONLY_PIECES };

static inline int32_t quant_out_kind(int what)
{
	return what == OUT_AND_PIECES || what == ONLY_PIECES ? CAIRN_FP8_SCALE_PIECES : CAIRN_FP8_SCALE_ROWS;
}

static inline int quant_out_has_out(int what)
{
	return what < ONLY_ROWS;
}

static inline const char *quant_out_tag(int what)
{
	static const char *const tags[] = { "", "_q_rows", "_q_pieces", "_only_q_rows", "_only_q_pieces" };

	return tags[what];
}

/* Returns the number of scales. */
static inline int64_t quant_out_scales(int what, int32_t rows, int32_t dim)
{
	int32_t pieces = (dim + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	return quant_out_kind(what) == CAIRN_FP8_SCALE_PIECES ? (int64_t)pieces * rows : rows;
}

/* Returns the bytes of q and q_scale. */
static inline double quant_out_bytes(int what, int32_t rows, int32_t dim)
{
	return what == OUT_PLAIN ? 0 : (double)rows * dim + 4 * (double)quant_out_scales(what, rows, dim);
}

/* Declares the outputs q and q_scale, behind all others. */
static inline void quant_out_declare(struct cairn_op *op, int what, size_t q, size_t q_scale, int32_t rows,
				     int32_t dim)
{
	int64_t scales;

	if (what == OUT_PLAIN)
		return;
	scales = quant_out_scales(what, rows, dim);
	cairn_out(op, q, CAIRN_U8, (int64_t)rows * dim);
	cairn_shape(op, q, { "row", rows }, { "dim", dim });
	cairn_out(op, q_scale, CAIRN_F32, scales);
	if (quant_out_kind(what) == CAIRN_FP8_SCALE_PIECES)
		cairn_shape(op, q_scale, { "piece", rows ? scales / rows : 0 }, { "row", rows });
	else
		cairn_shape(op, q_scale, { "row", rows });
}

/* One of the two outputs, as quant_fp8w makes it of out and as the operation has made it. */
struct quant_out_pair {
	const double *val, *bound;
	const void *got;
	int dtype;
};

static inline int quant_out_is_bad(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct quant_out_pair *x = arg;
	double got = cairn_load(x->got, x->dtype, i);

	if (isinf(x->bound[i]) || got == x->val[i])
		return 0;
	if (why)
		snprintf(why, why_len, "got %.9g, but quant_fp8w makes %.9g of out", got, x->val[i]);
	return 1;
}

/* Judges q and q_scale by `out`, the implementation's own: quant has all arguments. As cairn_family.judge. */
static inline int quant_out_judge(const struct cairn_op *op, const struct cairn_quant_fp8w_args *quant,
				  size_t q, size_t q_scale, char *why, size_t why_len)
{
	const int64_t count = (int64_t)quant->n * quant->k;
	const int what = quant->scale_kind == CAIRN_FP8_SCALE_PIECES ? OUT_AND_PIECES : OUT_AND_ROWS;
	const size_t scales = (size_t)quant_out_scales(what, quant->n, quant->k);
	double *x = malloc(2 * ((size_t)count + scales + 1) * sizeof(*x));
	struct cairn_exact e[2] = { { 0 } };
	int bad = 1;

	if (!x) {
		snprintf(why, why_len, "no memory");
		return 1;
	}
	e[0].val = x;
	e[0].bound = x + count;
	e[1].val = e[0].bound + count;
	e[1].bound = e[1].val + scales;
	if (cairn_quant_fp8w_exact(quant, e)) {
		snprintf(why, why_len, "%s", cairn_last_error());
	} else {
		const struct quant_out_pair codes = { e[0].val, e[0].bound, quant->b, CAIRN_U8 };
		const struct quant_out_pair scale = { e[1].val, e[1].bound, quant->scale, CAIRN_F32 };

		bad = cairn_judge_each(op, q_scale, quant_out_is_bad, &scale, why, why_len) ||
		      cairn_judge_each(op, q, quant_out_is_bad, &codes, why, why_len);
	}
	free(x);
	return bad;
}

#endif
