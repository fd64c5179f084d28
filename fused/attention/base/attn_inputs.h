/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_inputs - patterns of q, K and V for the tests of the attention families
 *
 * Include conformance/harness.h first. The exact answers of these patterns are known by construction, and
 * their bounds stay tight.
 */
#ifndef CAIRN_ATTN_INPUTS_H
#define CAIRN_ATTN_INPUTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fused/attention/base/attn_stairs.h"
#include "fused/attention/base/attn_tile.h"
#include "fused/attention/base/attn_word.h"
#include "primitives/base/fp8.h"

/* Patterns of the logits; LARGE_V and TINY_V are patterns of the values. */
enum { PLAIN, ANY, EQUAL, TOP, NEGATIVE, HUGE_LOGITS, LARGE_V, TINY_V, NUM_LOGITS };
/*
 * Never chosen by the case index: a NaN in the second request, attn_fill_stairs(), attn_fill_edges(),
 * attn_fill_limits().
 */
enum { NAN_Q = NUM_LOGITS, NAN_K, NAN_V, STAIRS, EDGES, LIMITS };

/* The inputs of a call. Row i of q begins at element i * q_stride; its heads follow each other. */
struct attn_inputs {
	struct cairn_op *op;
	void *q, *k, *v;
	int64_t q_stride;
	int dtype, kv_fp8, rows, batch, heads, kv_heads, qk_dim, v_dim;	/* kv_fp8: k and v are e4m3 */
	const int *qo_len, *kv_len;	/* [batch] */
	const void *of;			/* passed to the two functions below */
	/* return the first element of key j of request b, and of its value, for a KV head */
	int64_t (*k_at)(const void *of, int b, int j, int kv_head);
	int64_t (*v_at)(const void *of, int b, int j, int kv_head);
};

/* Stores v to an element of k or v, and loads one. */
static inline void attn_store_kv(const struct attn_inputs *in, void *x, int64_t at, double v)
{
	if (in->kv_fp8)
		((uint8_t *)x)[at] = cairn_float_to_e4m3((float)v);
	else
		cairn_store(x, in->dtype, at, v);
}

static inline double attn_load_kv(const struct attn_inputs *in, const void *x, int64_t at)
{
	return in->kv_fp8 ? (double)cairn_e4m3_to_float(((const uint8_t *)x)[at]) :
			    cairn_load(x, in->dtype, at);
}

/* Sets element c of all heads of row i of q. */
static inline void attn_set_q(const struct attn_inputs *in, int i, int c, double v)
{
	for (int h = 0; h < in->heads; h++)
		cairn_store(in->q, in->dtype, i * in->q_stride + (int64_t)h * in->qk_dim + c, v);
}

/* Overwrites q and K, which hold random numbers, so that the logits have the pattern. sm_scale must be 1. */
static inline void attn_fill_logits(const struct attn_inputs *in, int logits)
{
	double large = in->dtype == CAIRN_F16 ? 32768 : 0x1p60;
	double unit = logits == HUGE_LOGITS ? large : logits == NEGATIVE ? 256 : 4;
	size_t esize = cairn_dtype_bytes(in->dtype);
	int c0 = (int)cairn_op_range(in->op, 0, in->qk_dim - 2);

	for (int i = 0; i < in->rows; i++) {
		memset((char *)in->q + i * in->q_stride * (int64_t)esize, 0,
		       (size_t)(in->heads * in->qk_dim) * esize);
		if (logits != EQUAL)
			attn_set_q(in, i, c0, unit);
		if (logits == NEGATIVE)	/* a small random part added to the large one */
			attn_set_q(in, i, c0 + 1, 1);
	}
	for (int b = 0; b < in->batch && logits != EQUAL; b++) {
		int top = in->kv_len[b] ? (int)cairn_op_range(in->op, 0, in->kv_len[b] - 1) : 0;

		for (int j = 0; j < in->kv_len[b]; j++) {
			double v = j == top ? 512 : cairn_op_range(in->op, -4, 4);

			if (logits == NEGATIVE)
				v = -256 - 2.0 * (double)cairn_op_range(in->op, 0, 3);
			if (logits == HUGE_LOGITS && b % 2)
				v = -large * (double)(j == top ? 1 : cairn_op_range(in->op, 2, 16)) / 16;
			else if (logits == HUGE_LOGITS)
				v = j == top ? large : large * (double)cairn_op_range(in->op, -8, 6) / 8;
			for (int g = 0; g < in->kv_heads; g++)
				attn_store_kv(in, in->k, in->k_at(in->of, b, j, g) + c0, v);
		}
	}
}

/* Sets q so that all its heads and rows have the numbers in channel 0 of K as logits. sm_scale must be 1. */
static inline void attn_take_channel_0(const struct attn_inputs *in)
{
	for (int i = 0; i < in->rows; i++) {
		memset((char *)in->q + i * in->q_stride * (int64_t)cairn_dtype_bytes(in->dtype), 0,
		       (size_t)(in->heads * in->qk_dim) * cairn_dtype_bytes(in->dtype));
		attn_set_q(in, i, 0, 1);
	}
}

/* Overwrites q and K and scales V: each request and KV head gets a staircase of logits (attn_stairs.h). */
static inline void attn_fill_stairs(const struct attn_inputs *in, double cap)
{
	int f16 = in->dtype == CAIRN_F16;

	attn_take_channel_0(in);
	for (int b = 0; b < in->batch; b++)
		for (int n = 0; n < in->kv_len[b] * in->kv_heads; n++) {
			int j = n / in->kv_heads, g = n % in->kv_heads, stairs = b * in->kv_heads + g;
			int t = attn_stretch(j, in->kv_len[b]);
			int64_t k = in->k_at(in->of, b, j, g), v = in->v_at(in->of, b, j, g);
			double weight = attn_stair_weight(stairs, t, f16, cap);

			for (int c = 0; c < in->qk_dim; c++)
				attn_store_kv(in, in->k, k + c, c ? 0 : attn_stair(stairs, t, f16));
			for (int c = 0; c < in->v_dim; c++)
				attn_store_kv(in, in->v, v + c, weight * attn_load_kv(in, in->v, v + c));
		}
}

/*
 * Overwrites q and channel 0 of K, so that logits are small except those of the last three keys of every
 * third request and of the first key of the second request after it. Where the mask hides one of these keys
 * from a row, its logit is far above all that the row sees.
 */
static inline void attn_fill_edges(const struct attn_inputs *in)
{
	attn_take_channel_0(in);
	for (int b = 0; b < in->batch; b++)
		for (int n = 0; n < in->kv_len[b] * in->kv_heads; n++) {
			int j = n / in->kv_heads;
			int large = b % 3 == 0 ? j >= in->kv_len[b] - 3 : b % 3 == 2 && !j;

			attn_store_kv(in, in->k, in->k_at(in->of, b, j, n % in->kv_heads),
				      large ? 200 : (double)cairn_op_range(in->op, -4, 4));
		}
}

/*
 * Overwrites q and K, so that each row weighs the keys at the limits of its range far more than the others:
 * the first and the last key that it sees, and the keys before and behind these, which the mask hides. With
 * other data, one key among thousands may change a result by less than its bound. K has the words of the
 * keys (attn_word.h), q the sum of the words of those four keys. The logits of the four are then near qk_dim,
 * those of other keys near 2 sqrt(qk_dim); sm_scale turns qk_dim into 10. Keys that are NaN stay so.
 */
static inline void attn_fill_limits(const struct attn_inputs *in, int causal, int window, float *sm_scale)
{
	for (int b = 0, row = 0; b < in->batch; b++) {
		const int qo = in->qo_len[b], kv = in->kv_len[b];

		for (int n = 0; n < kv * in->kv_heads; n++) {
			int64_t at = in->k_at(in->of, b, n / in->kv_heads, n % in->kv_heads);

			for (int c = 0; c < in->qk_dim && !isnan(attn_load_kv(in, in->k, at)); c++)
				attn_store_kv(in, in->k, at + c, attn_word(n / in->kv_heads, c));
		}
		for (int i = 0; i < qo; i++, row++) {
			const int end = attn_visible(i, qo, kv, causal);
			const int first = attn_first_key(i, qo, kv, window);
			const int keys[] = { first - 1, first, end - 1, end };

			for (int c = 0; c < in->qk_dim; c++) {
				int sum = 0;

				for (int k = 0; k < 4; k++)
					sum += keys[k] >= 0 && keys[k] < kv ? attn_word(keys[k], c) : 0;
				attn_set_q(in, row, c, sum);
			}
		}
	}
	*sm_scale = 10 / (float)in->qk_dim;
}

/* Scales all n elements of v, so that they are close to the format's largest number, or subnormal. */
static inline void attn_scale_values(const struct attn_inputs *in, int64_t n, int logits)
{
	int f16 = in->dtype == CAIRN_F16;
	double factor = logits == TINY_V ? (in->kv_fp8 ? 0x1p-8 : f16 ? 0x1p-22 : 0x1p-128) :
			in->kv_fp8 ? 150 : f16 ? 12000 : 0x1p100;

	for (int64_t i = 0; i < n; i++) {
		double v = attn_load_kv(in, in->v, i) * factor;

		attn_store_kv(in, in->v, i, f16 && fabs(v) > 6e4 ? copysign(6e4, v) : v);
	}
}

/* Sets an element of the second request's last query row, or of its last key or value, to NaN. */
static inline void attn_add_nan(const struct attn_inputs *in, int where)
{
	int last = in->kv_len[1] - 1, dtype = in->kv_fp8 ? CAIRN_U8 : in->dtype;

	if (where == NAN_Q)
		cairn_fill_nan(in->q, in->dtype,
			       (in->qo_len[0] + in->qo_len[1] - 1) * in->q_stride + in->qk_dim, 1);
	else if (where == NAN_K)
		cairn_fill_nan(in->k, dtype, in->k_at(in->of, 1, last, 0) + in->qk_dim - 1, 1);
	else
		cairn_fill_nan(in->v, dtype, in->v_at(in->of, 1, last, 0) + in->v_dim - 1, 1);
}

/* Sets one query head or one key; the second half of the channels repeats the first half, times `mirror`. */
static inline void attn_fill_mirrored(const struct attn_inputs *in, void *x, int64_t at, double first,
				      double mirror)
{
	int half = in->qk_dim / 2, codes = in->kv_fp8 && x == in->k;

	for (int c = 0; c < half; c++) {
		double v = (double)cairn_op_range(in->op, 64, 127) * (c % 3 ? 1 : -1);

		if (codes) {		/* e4m3 has four significant bits */
			v = 8 * trunc(v / 8);
			attn_store_kv(in, x, at + c, c ? v : first);
			attn_store_kv(in, x, at + half + c, c ? mirror * v : 0);
			continue;
		}
		cairn_store(x, in->dtype, at + c, c ? v : first);
		cairn_store(x, in->dtype, at + half + c, c ? mirror * v : 0);
	}
}

/*
 * Overwrites q, K and V with integers whose sums need up to 22 bits. Channels c and c + qk_dim / 2 of q are
 * equal and those of K opposite, so that q k exceeds 2^20 and then cancels. The result is 0 (all keys have
 * the same weight) or, unless `equal`, a small integer from one channel. Two neighbouring keys have opposite
 * values of up to 2^14, so that P V exceeds 2^17 and then cancels. Sums with fewer than 24 bits give wrong
 * results for all of these. Keys and values of 8 bits have four significant bits each.
 */
static inline void attn_fill_exact(const struct attn_inputs *in, int equal)
{
	double unit = in->kv_fp8 ? 16 : in->dtype == CAIRN_F16 ? 8 : 64;
	int least = in->kv_fp8 ? 8 : in->dtype == CAIRN_F16 ? 1024 : 128, most = 2 * least - 1;

	for (int i = 0; i < in->rows; i++)
		for (int h = 0; h < in->heads; h++)
			attn_fill_mirrored(in, in->q, i * in->q_stride + (int64_t)h * in->qk_dim,
					   equal ? 0 : h % 2 ? -1 : 1, 1);
	for (int b = 0; b < in->batch; b++)
		for (int n = 0; n < in->kv_len[b] * in->kv_heads; n++) {
			int j = n / in->kv_heads, g = n % in->kv_heads;
			int64_t at = in->v_at(in->of, b, j, g);
			int64_t before = j ? in->v_at(in->of, b, j - 1, g) : at;

			attn_fill_mirrored(in, in->k, in->k_at(in->of, b, j, g),
					   (double)cairn_op_range(in->op, -12, 12), -1);
			for (int c = 0; c < in->v_dim; c++) {
				double v = (double)cairn_op_range(in->op, least, most) *
					   (cairn_op_range(in->op, 0, 1) ? unit : -unit);

				if (j % 2)
					v = -attn_load_kv(in, in->v, before + c);
				attn_store_kv(in, in->v, at + c, v);
			}
		}
}

#endif
