/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_inputs - inputs that the tests of mla_paged, mla_decode and mla_prefill share
 *
 * Include conformance/harness.h and paged_test.h first.
 */
#ifndef CAIRN_MLA_INPUTS_H
#define CAIRN_MLA_INPUTS_H

#include <math.h>

#include "fused/attention/base/attn_word.h"

/* The operands of a case: q [nnz, heads, 192], pages of 576 elements a slot. */
struct mla_inputs {
	void *q, *pages;
	int dtype, heads;
	const struct paged *p;
};

enum mla_nan { MLA_NO_NAN, MLA_NAN_Q, MLA_NAN_LATENT, MLA_NAN_ROTATED };

/*
 * Sets elements first .. first + n - 1 to 16..31 units, and the last n / 2 of them to the first n / 2 times
 * `mirror`. The sign depends only on the element's place, so that products of two such vectors add up.
 */
static inline void mla_fill_mirrored(struct cairn_op *op, void *x, int dtype, int64_t first, int n,
				     double mirror, double unit)
{
	for (int c = 0; c < n / 2; c++) {
		double v = (double)cairn_op_range(op, 16, 31) * unit * (c % 3 ? 1 : -1);

		cairn_store(x, dtype, first + c, v);
		cairn_store(x, dtype, first + n / 2 + c, mirror * v);
	}
}

static inline void mla_set_pair(void *x, int dtype, int64_t first, int n, double v)
{
	cairn_store(x, dtype, first, v);
	cairn_store(x, dtype, first + n / 2, 0);
}

/* Sets an element of the second request to NaN, in the last head of its last query row or in its last key. */
static inline void mla_add_nan(const struct mla_inputs *x, enum mla_nan where)
{
	int64_t head = (int64_t)(x->p->qo_len[0] + x->p->qo_len[1]) * x->heads - 1;
	int64_t key = paged_slot(x->p, 1, x->p->kv_len[1] - 1) * 576;

	if (where == MLA_NAN_Q)
		cairn_fill_nan(x->q, x->dtype, head * 192 + 191, 1);
	else
		cairn_fill_nan(x->pages, x->dtype, key + (where == MLA_NAN_LATENT ? 511 : 575), 1);
}

/*
 * Gives the last key that each row sees, and the key behind it, far larger logits than the others, as
 * attn_fill_limits() does. The rotated part of a key is twice its word, that of a row's queries the sum of
 * the words of the two keys. q_rope has heads that are `stride` elements apart; rope is the rotated part of
 * the first slot, and slots are slot_bytes apart.
 */
static inline void mla_fill_limits(const struct paged *p, int heads, int dtype, void *q_rope, int64_t stride,
				   char *rope, int64_t slot_bytes)
{
	for (int b = 0, row = 0; b < p->batch; b++) {
		const int kv = p->kv_len[b];

		for (int j = 0; j < kv; j++)
			for (int c = 0; c < 64; c++)
				cairn_store(rope + paged_slot(p, b, j) * slot_bytes, dtype, c,
					    2 * attn_word(j, c));
		for (int i = 0; i < p->qo_len[b]; i++, row++) {
			const int end = kv - p->qo_len[b] + i + 1;

			for (int n = 0; n < heads * 64; n++) {
				int sum = (end > 0 ? attn_word(end - 1, n % 64) : 0) +
					  (end >= 0 && end < kv ? attn_word(end, n % 64) : 0);

				cairn_store(q_rope, dtype, ((int64_t)row * heads + n / 64) * stride + n % 64,
					    sum);
			}
		}
	}
}

/*
 * Aligns the rotated elements of the first request's keys from 2^16 on, or of its last key, with the
 * query, so that their logits are about 18.
 */
static inline void mla_fill_late(const struct mla_inputs *x)
{
	for (int j = x->p->kv_len[0] > 65536 ? 65536 : x->p->kv_len[0] - 1; j < x->p->kv_len[0]; j++)
		for (int c = 0; c < 64; c++)
			cairn_store(x->pages, x->dtype, paged_slot(x->p, 0, j) * 576 + 512 + c,
				    4 * cairn_load(x->q, x->dtype, 128 + c));
}

/* Returns the step of key j of n: a random one, or one that falls or rises by tiles of 16 keys. */
static inline int mla_step_of(struct cairn_op *op, int b, int j, int n, int most)
{
	int tiles = (n - 1) / 16, tile = b == 1 ? j / 16 : tiles - j / 16;

	return b ? most * tile / tiles : j == n / 3 ? 0 : (int)cairn_op_range(op, 1, most);
}

/*
 * A key at step x has logit -x, and its latent is e^x times as large as that of a key at step 0. So all keys
 * contribute about equally to the result. Only the first rotated element contributes to logits. There are
 * fewer steps for f16, whose range is smaller.
 */
static inline void mla_fill_steps(struct cairn_op *op, const struct mla_inputs *x)
{
	int most = x->dtype == CAIRN_F16 ? 9 : 30;

	for (int64_t i = 0; i < (int64_t)x->p->nnz * x->heads * 192; i++)
		cairn_store(x->q, x->dtype, i, i % 192 == 128);
	for (int b = 0; b < x->p->batch; b++)
		for (int j = 0; j < x->p->kv_len[b]; j++) {
			int64_t at = paged_slot(x->p, b, j) * 576;
			int step = mla_step_of(op, b, j, x->p->kv_len[b], most);

			for (int c = 0; c < 512; c++)
				cairn_store(x->pages, x->dtype, at + c,
					    exp(step) * cairn_load(x->pages, x->dtype, at + c));
			cairn_store(x->pages, x->dtype, at + 512, -step);
		}
}

#endif
