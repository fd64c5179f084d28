/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_merge_own - cases of attn_merge with own keys, and their q, k and v
 *
 * attn_merge_test.c includes this file after struct shape. q of a row and head is k, with noise, times a
 * factor that brings the own key's lse to a chosen distance from that of a state: equal, near, far above or
 * below, near the cut-off, or beyond it.
 */
#ifndef CAIRN_ATTN_MERGE_OWN_H
#define CAIRN_ATTN_MERGE_OWN_H

#include <math.h>

static const struct shape own_cases[] = {
	{ S("own", 1, 9, 8, 128, BF16, BF16), .kv = 2, .flags = LSE | OWN },
	{ S("own", 3, 7, 6, 64, F16, F32), .kv = 3, .flags = LSE | OWN | EMPTY | COUNTS },
	{ S("own", 2, 5, 5, 256, BF16, F16), .kv = 1, .flags = LSE | OWN | EMPTY },
	{ S("own_empty", 2, 5, 4, 128, BF16, BF16), .kv = 4, .flags = LSE | OWN | NONE },
	{ S("own_sink", 3, 7, 4, 128, F16, F16), .kv = 4, .flags = LSE | OWN | SINK | EMPTY },
	{ S("own_sink_bad", 1, 5, 6, 64, BF16, F32), .kv = 2, .flags = LSE | OWN | SINK | BAD_SINK | EMPTY },
	{ S("own_in_place", 2, 40, 8, 128, BF16, BF16), .kv = 2, .flags = LSE | OWN | IN_PLACE },
	{ S("own_in_place", 1, 9, 4, 64, F16, F16), .kv = 1, .flags = OWN | IN_PLACE | CAPPED },
	{ S("own_gaps", 3, 7, 6, 72, BF16, F16), .kv = 2, .flags = LSE | OWN | GAPS | COUNTS },
	{ S("own_gaps", 2, 7, 4, 128, F16, F16), .kv = 4, .flags = LSE | OWN | GAPS | SINK },
	{ S("own_capped", 2, 7, 8, 96, BF16, BF16), .kv = 4, .flags = LSE | OWN | CAPPED },
	{ S("own_capped", 5, 7, 4, 24, F16, BF16), .kv = 1, .flags = LSE | OWN | CAPPED | EMPTY },
	{ S("own_bad", 2, 19, 3, 64, F16, F32), .kv = 1, .flags = LSE | OWN | BAD_OWN },
	{ S("own_bad", 7, 9, 4, 128, BF16, BF16), .kv = 2, .flags = LSE | OWN | BAD | BAD_OWN | CAPPED },
	{ S("own_many", 64, 5, 4, 128, BF16, BF16), .kv = 2, .flags = LSE | OWN | EMPTY },
	{ S("own_many", 17, 5, 2, 8, F16, F16), .kv = 1, .flags = LSE | OWN | COUNTS | SINK },
	{ S("own_rows_first", 6, 5, 6, 192, BF16, BF16), .kv = 3, .flags = LSE | OWN | ROWS_FIRST },
	{ S("own_no_rows", 1, 0, 4, 64, BF16, BF16), .kv = 2, .flags = LSE | OWN },
	{ S("own_large", 2, 4096, 32, 128, BF16, BF16), .kv = 8, .flags = LSE | OWN | DEVICE | EMPTY },
	{ S("own_large", 5, 999, 8, 64, F16, F16), .kv = 8, .flags = LSE | OWN | DEVICE | IN_PLACE },
	{ S("own_decode", 1, 128, 32, 128, BF16, BF16), .kv = 8, .flags = OWN | BENCH | DEVICE },
};

/* Sets the strides and scalars of a shape with own keys. */
static void set_own(struct cairn_attn_merge_args *a, const struct shape *s, int case_index)
{
	a->num_kv_heads = s->kv;
	a->sm_scale = 1 / sqrtf((float)s->dim);
	a->softcap = s->flags & CAPPED ? 30 : 0;
	if (s->flags & GAPS) {
		a->q_stride = (int64_t)s->heads * s->dim + 8;
		a->kv_stride = case_index % 2 ? 0 : (int64_t)s->kv * s->dim + 24;
	}
}

/*
 * Returns the lse that the own key of a row and KV head should have; at: the lse of one of its states. If
 * states or values are spoiled, the difference of the two stays away from the cut-off, near which a state may
 * or may not have weight.
 */
static double own_target(struct cairn_op *op, const struct shape *s, double at)
{
	static const double far[] = { 0, 1, -2, 4, -8, 30, -60, 85, -86, 88, -90, 100 };
	const int spoiled = (s->flags & (BAD | BAD_OWN)) != 0;
	int64_t i = cairn_op_range(op, 0, spoiled ? 4 : 11);

	if (spoiled && op->kind == CAIRN_KIND_EXTREME)
		at = 0.5;
	at = fabs(at) < 1000 ? at + far[i] : far[i];
	return s->flags & CAPPED ? fmax(-29, fmin(29, at)) : at;
}

/*
 * Fills q, k and v; the lse of states has been drawn. The query heads of a row that share a KV head have one
 * target, so that v may be NaN where it has no weight for any of them.
 */
static void fill_own(struct cairn_op *op, const struct shape *s, const float *lse)
{
	struct cairn_attn_merge_args *a = op->args;
	const int64_t heads = s->heads, dim = s->dim, group = heads / s->kv, rows = s->rows;
	const int64_t q_stride = a->q_stride ? a->q_stride : heads * dim;
	const int64_t kv_stride = a->kv_stride ? a->kv_stride : s->kv * dim;
	const int64_t q_num = rows ? (rows - 1) * q_stride + heads * dim : 0;
	const int64_t kv_num = rows ? (rows - 1) * kv_stride + s->kv * dim : 0;
	void *q = cairn_in(op, offsetof(struct cairn_attn_merge_args, q), s->dtype, q_num);
	void *k = cairn_in(op, offsetof(struct cairn_attn_merge_args, k), s->dtype, kv_num);
	void *v = cairn_in(op, offsetof(struct cairn_attn_merge_args, v), s->dtype, kv_num);

	cairn_fill_nan(q, s->dtype, 0, q_num);
	cairn_fill_nan(k, s->dtype, 0, kv_num);
	cairn_fill_nan(v, s->dtype, 0, kv_num);
	for (int64_t i = 0; i < rows * s->kv; i++) {
		const int64_t at = i / s->kv * kv_stride + i % s->kv * dim;
		const int64_t first = i / s->kv * heads + i % s->kv * group;
		const double near = (double)lse[first], target = own_target(op, s, near);
		double logit = s->flags & CAPPED ? 30 * atanh(target / 30) : target;

		for (int64_t c = 0; c < dim; c++)
			cairn_store(k, s->dtype, at + c, (double)cairn_op_range(op, -300, 300) / 200);
		cairn_fill(op, (char *)v + at * (int64_t)cairn_dtype_bytes(s->dtype), s->dtype, dim, 1);
		for (int64_t h = 0; h < group; h++) {
			const int64_t q_at = i / s->kv * q_stride + (i % s->kv * group + h) * dim;
			double sum = 1e-3, scale = logit / (double)a->sm_scale;

			for (int64_t c = 0; c < dim; c++)
				sum += cairn_load(k, s->dtype, at + c) * cairn_load(k, s->dtype, at + c);
			for (int64_t c = 0; c < dim; c++)
				cairn_store(q, s->dtype, q_at + c, scale / sum *
					    (cairn_load(k, s->dtype, at + c) +
					     (double)cairn_op_range(op, -40, 40) / 1000));
		}
	}
}

/* Sets an element of q or of v of every third row and head to NaN or an infinity. */
static void spoil_own(struct cairn_op *op)
{
	const double bad[] = { NAN, INFINITY, -INFINITY };
	const struct cairn_attn_merge_args a = cairn_attn_merge_strides(op->args);
	const int64_t group = a.num_heads / a.num_kv_heads;

	for (int64_t pair = 0; pair < (int64_t)a.rows * a.num_heads; pair += 3) {
		int64_t row = pair / a.num_heads, head = pair % a.num_heads;
		int64_t c = cairn_op_range(op, 0, a.head_dim - 1);

		if (pair % 2)
			cairn_store((void *)(uintptr_t)a.q, a.dtype, row * a.q_stride + head * a.head_dim + c,
				    bad[pair / 3 % 3]);
		else
			cairn_store((void *)(uintptr_t)a.v, a.dtype,
				    row * a.kv_stride + head / group * a.head_dim + c, bad[pair / 6 % 3]);
	}
}

/* Returns the lse of an own key, in double. */
static double own_lse_of(const struct cairn_attn_merge_args *a, int64_t row, int64_t head)
{
	const int64_t group = a->num_heads / a->num_kv_heads, dim = a->head_dim;
	double sum = 0;

	for (int64_t c = 0; c < dim; c++)
		sum += cairn_load(a->q, a->dtype, row * a->q_stride + head * dim + c) *
		       cairn_load(a->k, a->dtype, row * a->kv_stride + head / group * dim + c);
	sum *= (double)a->sm_scale;
	return a->softcap > 0 ? (double)a->softcap * tanh(sum / (double)a->softcap) : sum;
}

/* Sets v to NaN where the own key surely has no weight in any head that uses it. max: of the states' lse. */
static void poison_own(const struct cairn_op *op, const float *max)
{
	const struct cairn_attn_merge_args a = cairn_attn_merge_strides(op->args);
	const int64_t group = a.num_heads / a.num_kv_heads;

	for (int64_t i = 0; i < (int64_t)a.rows * a.num_kv_heads; i++) {
		int64_t row = i / a.num_kv_heads, head = i % a.num_kv_heads * group, used = 0;

		for (int64_t h = head; h < head + group; h++)
			used += !(own_lse_of(&a, row, h) - (double)max[row * a.num_heads + h] <
				  (double)CAIRN_ATTN_MERGE_CUTOFF - 1);
		if (!used)
			cairn_fill_nan((void *)(uintptr_t)a.v, a.dtype,
				       row * a.kv_stride + head / group * a.head_dim, a.head_dim);
	}
}

/* Adds valid own keys to the arguments of a case without any; reject_own() then makes one member invalid. */
static void give_own(struct cairn_attn_merge_args *a)
{
	a->dtype = CAIRN_BF16;
	a->q = a->k = a->v = a->o;
	a->num_kv_heads = 1;
	a->sm_scale = 1;
}

/* Makes the i-th call with own keys that must be refused; see reject(). */
static const char *reject_own(struct cairn_attn_merge_args *a, int i, int *want)
{
	*want = i < 16 ? -EINVAL : -EOPNOTSUPP;
	give_own(a);
	switch (i) {
	case 0: a->k = NULL; return "k_null";
	case 1: a->v = NULL; return "v_null";
	case 2: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 3: a->k = (const char *)a->k + 2; return "k_misaligned";
	case 4: a->v = (const char *)a->v + 4; return "v_misaligned";
	case 5: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 6: a->q_stride = 12; return "q_stride_odd";
	case 7: a->num_heads = 2; a->q_stride = 8; return "q_stride_short";
	case 8: a->kv_stride = -8; return "kv_stride_negative";
	case 9: a->num_heads = a->num_kv_heads = 2; a->kv_stride = 8; return "kv_stride_short";
	case 10: a->sm_scale = 0; return "sm_scale_0";
	case 11: a->sm_scale = NAN; return "sm_scale_nan";
	case 12: a->sm_scale = INFINITY; return "sm_scale_inf";
	case 13: a->softcap = -1; return "softcap_negative";
	case 14: a->softcap = NAN; return "softcap_nan";
	case 15: a->size = CAIRN_ATTN_MERGE_SECOND_BYTES + 8; return "size_within_own";
	case 16: a->dtype = CAIRN_F32; return "own_f32";
	case 17: a->head_dim = 264; return "own_head_dim_264";
	case 18: a->num_heads = 3; a->num_kv_heads = 2; return "own_heads_3_of_2";
	}
	return NULL;
}

#endif
