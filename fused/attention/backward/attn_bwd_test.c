// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bwd_test - named edge cases, a grid of dimensions and lengths, pairs of features, ends of tiles,
 * bench rows
 *
 * The inputs are those of attn_dense, and its reference computes out and lse. Cases too large for the host,
 * and one other, draw out and lse at random: out is small, and lse is close to that of normal logits or so
 * low that weights exceed 1.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/attention/backward/attn_bwd.h"

#define ARGS	struct cairn_attn_bwd_args
#include "fused/attention/dense/attn_dense_inputs.h"
#include "fused/attention/dense/attn_dense_ends.h"

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, hq_, hkv_, qk_, v_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .hq = hq_, .hkv = hkv_, .qk = qk_, .v = v_
#define BENCH_CAUSAL	(BENCH | CAUSAL | DEVICE)
#define DRAWN		LSE	/* out and lse are drawn; only attn_dense uses this bit as LSE */

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, query heads, KV heads, qk_dim, v_dim), other members */
	{ N("one_key", 1, 1, 1, 1, 1, 64, 64) },
	{ N("batch_0", 0, 1, 1, 4, 2, 64, 64) },
	{ N("no_rows", 3, 0, 40, 4, 2, 64, 64) },
	{ N("no_keys", 3, 2, 0, 4, 2, 128, 128) },
	{ N("empty_requests", 6, 1, 1, 4, 2, 64, 64),
		.qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 17, 5) },
	{ N("more_queries_than_keys", 2, 150, 97, 4, 2, 128, 128), .flags = CAUSAL | F16 },
	{ N("one_key_many_queries", 1, 129, 1, 2, 1, 64, 64), .flags = CAUSAL },
	{ N("one_query_many_keys", 2, 1, 300, 4, 2, 128, 128), .flags = CAUSAL },
	{ N("padded_graph", 4, 1, 1, 4, 2, 64, 64), .flags = CAUSAL | PAGED_PADDED,
		.qo_lens = LENS(40, 1, 0, 0), .kv_lens = LENS(90, 33, 0, 7) },
	{ N("mixed_lengths", 7, 1, 1, 8, 2, 128, 128), .flags = CAUSAL,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1, 129), .kv_lens = LENS(300, 70, 33, 54, 3, 1, 257) },
	{ N("mixed_lengths_192_128", 5, 1, 1, 6, 3, 192, 128), .flags = CAUSAL | F16, .layout = HEAD_GAPS,
		.qo_lens = LENS(64, 5, 130, 1, 65), .kv_lens = LENS(64, 200, 131, 90, 65) },
	{ N("rows_63_keys_63", 1, 63, 63, 2, 2, 128, 128), .flags = CAUSAL },
	{ N("rows_64_keys_128", 1, 64, 128, 2, 2, 128, 128), .flags = CAUSAL },
	{ N("rows_129_keys_129", 1, 129, 129, 2, 1, 128, 128), .flags = CAUSAL },
	{ N("rows_128_keys_128", 1, 128, 128, 2, 1, 128, 128), .flags = F16 },
	{ N("rows_193_keys_257_d64", 1, 193, 257, 2, 1, 64, 64), .flags = CAUSAL },
	{ N("rows_70_keys_130_d256", 1, 70, 130, 2, 1, 256, 256), .flags = CAUSAL },
	{ N("group_17", 2, 9, 97, 17, 1, 128, 128), .flags = CAUSAL },
	{ N("logits_any", 2, 40, 97, 4, 2, 128, 128), .flags = CAUSAL, .logits = ANY },
	{ N("logits_equal", 2, 30, 97, 4, 2, 112, 80), .flags = CAUSAL, .logits = EQUAL },
	{ N("logits_one_dominates", 2, 40, 97, 4, 2, 128, 128), .flags = CAUSAL, .logits = TOP },
	{ N("logits_below_minus_5e4", 2, 30, 97, 4, 2, 128, 128), .logits = NEGATIVE },
	{ N("values_subnormal_f16", 2, 3, 97, 4, 2, 64, 64), .flags = CAUSAL | F16, .logits = TINY_V },
	{ N("nan_in_a_query", 3, 40, 60, 6, 2, 128, 128), .flags = CAUSAL, .logits = NAN_Q },
	{ N("nan_in_a_key", 3, 40, 60, 6, 2, 80, 128), .flags = F16, .logits = NAN_K },
	{ N("nan_in_a_value", 3, 40, 60, 6, 2, 128, 80), .logits = NAN_V },
	{ N("out_and_lse_drawn", 2, 40, 97, 4, 2, 128, 128), .flags = CAUSAL | DRAWN },
	{ N("window_1", 1, 150, 150, 4, 2, 128, 128), .flags = CAUSAL, .window = 1 },
	{ N("window_33", 1, 200, 300, 2, 1, 128, 128), .flags = CAUSAL, .window = 33 },
	{ N("window_128", 1, 257, 290, 2, 1, 64, 64), .flags = CAUSAL | F16, .window = 128 },
	{ N("window_without_causal", 2, 70, 190, 4, 2, 64, 64), .window = 40 },
	{ N("window_queries_without_keys", 2, 90, 50, 4, 2, 128, 128), .flags = CAUSAL, .window = 20 },
	{ N("cap_50", 1, 90, 97, 4, 2, 256, 256), .flags = CAUSAL, .cap = 50 },
	{ N("cap_1", 2, 70, 150, 4, 2, 128, 128), .flags = CAUSAL, .cap = 1 },
	{ N("cap_small", 1, 90, 97, 4, 2, 64, 64), .flags = CAUSAL | F16, .cap = 0.05f },
	{ N("sms_1", 3, 70, 150, 4, 2, 128, 128), .flags = CAUSAL, .sms = 1 },
	{ N("sms_24", 5, 140, 200, 8, 2, 64, 64), .flags = CAUSAL | PAGED_RAGGED, .sms = 24 },
	{ N("far_q", 1, 3, 40, 4, 2, 64, 64), .flags = FAR_Q },
	{ N("far_k", 1, 3, 3, 4, 2, 64, 64), .flags = CAUSAL | FAR_K },
	{ N("far_v", 1, 3, 3, 4, 2, 64, 64), .flags = CAUSAL | FAR_V | F16 },
	{ N("far_k_heads", 1, 3, 3, 3, 3, 64, 64), .flags = CAUSAL | FAR_K, .layout = HEADS_FIRST },
	/* too large for host implementations */
	{ N("large_2113", 1, 2113, 2113, 4, 2, 128, 128), .flags = DEVICE },
	{ N("large_mixed", 20, 500, 900, 8, 2, 128, 128), .flags = CAUSAL | DEVICE | PAGED_RAGGED },
	{ N("large_mixed_192_128", 6, 600, 600, 8, 8, 192, 128), .flags = CAUSAL | DEVICE | PAGED_RAGGED },
	{ N("large_window_d256", 3, 500, 1500, 4, 2, 256, 256), .flags = CAUSAL | DEVICE | PAGED_RAGGED,
		.window = 512, .cap = 50 },
	/* bench rows: bytes are those of all inputs and outputs, operations those of five products */
	{ N("h16_d128_b4_s4096_causal_bf16", 4, 4096, 4096, 16, 16, 128, 128), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b1_s16384_causal_bf16", 1, 16384, 16384, 16, 16, 128, 128), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b1_s16384_bf16", 1, 16384, 16384, 16, 16, 128, 128), .flags = BENCH | DEVICE },
	{ N("h32_d64_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 32, 64, 64), .flags = BENCH_CAUSAL },
	{ N("h32_8_d128_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 8, 128, 128), .flags = BENCH_CAUSAL },
};

/* added later: the cases before them keep their numbers */
static const struct shape last[] = {
	{ N("stairs", 2, 40, 500, 4, 4, 64, 64), .flags = CAUSAL, .logits = STAIRS },
	{ N("stairs_cap_50", 2, 40, 300, 4, 4, 64, 64), .flags = CAUSAL, .logits = STAIRS, .cap = 50 },
	{ N("masked_above_all", 3, 70, 150, 4, 2, 128, 128), .flags = CAUSAL, .logits = EDGES },
	{ N("masked_above_all_f16", 3, 70, 70, 4, 2, 64, 64), .flags = CAUSAL | F16, .logits = EDGES },
	{ N("masked_above_all_window", 3, 70, 190, 4, 2, 64, 64), .flags = CAUSAL, .logits = EDGES,
		.window = 48 },
	{ N("masked_above_all_cap", 3, 40, 60, 4, 2, 64, 64), .flags = CAUSAL, .logits = EDGES,
		.cap = 150 },
	{ N("batch_96_with_holes", 96, 2, 130, 2, 1, 64, 64), .flags = CAUSAL,
		.kv_lens = LENS(ATTN_HOLES_96) },
	{ N("batch_2100", 2100, 2, 5, 2, 1, 64, 64), .flags = CAUSAL | PAGED_RAGGED },
	{ N("k_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = CAUSAL, .layout = LONE_K },
	{ N("v_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = CAUSAL, .layout = LONE_V },
	{ N("k_head_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = CAUSAL, .layout = LONE_K_HEAD },
	{ N("v_head_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = CAUSAL, .layout = LONE_V_HEAD },
	{ N("window_largest", 2, 40, 90, 4, 2, 128, 128), .flags = CAUSAL, .window = 0x7fffffff },
	/*
	 * a tile that also has rows without keys: their positions precede the first key
	 */
	{ N("window_rows_without_keys", 1, 9, 4, 1, 1, 64, 64), .flags = CAUSAL, .window = 2 },
	{ N("window_rows_without_keys_93", 2, 93, 50, 4, 2, 128, 128), .flags = CAUSAL, .window = 20 },
	{ N("window_rows_without_keys_all", 2, 93, 50, 4, 2, 128, 128), .window = 20 },
	{ N("window_600_of_66100", 1, 1, 66100, 1, 1, 64, 64), .window = 600 },
	{ N("rows_257", 1, 257, 257, 1, 1, 64, 64), .flags = CAUSAL },
	{ N("rows_321_of_groups_of_3", 1, 107, 130, 3, 1, 64, 64), .flags = CAUSAL },
	{ N("group_6", 2, 5, 20, 6, 1, 64, 64), .flags = CAUSAL },
	{ N("group_7", 1, 5, 20, 14, 2, 64, 80), .flags = CAUSAL | F16 },
	{ N("group_9", 1, 5, 20, 9, 1, 128, 64) },
	{ N("group_12", 1, 3, 20, 24, 2, 64, 64), .flags = CAUSAL },
	{ N("heads_130", 1, 2, 9, 130, 130, 64, 64), .flags = CAUSAL },
	{ N("heads_260_of_2", 1, 2, 9, 260, 2, 64, 64), .flags = CAUSAL | F16 },
	{ N("k_and_v_in_one_buffer", 2, 9, 40, 6, 2, 80, 64), .flags = CAUSAL, .layout = JOINED },
	{ N("v_is_k", 2, 9, 40, 6, 2, 64, 64), .flags = F16, .layout = SAME },
	{ N("group_33_cap_window", 2, 3, 97, 33, 1, 64, 64), .flags = CAUSAL, .window = 40, .cap = 3 },
	{ N("sms_3", 1, 17, 40, 10, 5, 64, 64), .flags = CAUSAL, .sms = 3 },
	{ N("sms_5_of_7", 2, 20, 50, 7, 7, 64, 64), .sms = 5 },
	/* many terms of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 1, 260, 300, 1, 1, 64, 64), .scale = 0.03f, .roundings = 4 },
	{ N("even_weights_f16", 1, 150, 500, 2, 1, 64, 128), .flags = F16, .scale = 0.03f, .roundings = 4 },
	/* more rows of query heads of one KV head than 16 bits count */
	{ N("rows_past_2e16", 1, 1030, 9, 64, 1, 64, 64) },
	/* many rows and many keys, of which those at the limits of a row's range decide */
	{ N("limits_2117", 1, 66, 2117, 1, 1, 64, 64), .flags = CAUSAL | F16, .logits = LIMITS },
	{ N("limits_window_512_d256", 1, 65, 1090, 1, 1, 256, 256), .flags = CAUSAL, .logits = LIMITS,
		.window = 512 },
	{ N("limits_window_64", 1, 129, 300, 2, 1, 128, 64), .flags = F16, .logits = LIMITS, .window = 64 },
};

#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_NAMED	((int)ARRAY_SIZE(named))
static const int dims[] = { 64, 80, 96, 112, 128, 192, 256 };
static const int lengths[][2] = { { 17, 17 }, { 37, 97 } };
#define NUM_GRID	(7 * 7 * 2)
#define NUM_PAIRS	61
#define FIRST_ENDS	(NUM_NAMED + NUM_GRID + NUM_PAIRS + NUM_LAST)

#include "fused/attention/dense/attn_dense_draws.h"
#include "fused/attention/dense/attn_dense_pairs.h"

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS + 1)

static const struct cairn_draw_axis axes[] = {
	DENSE_DRAW_SIZES,
	DENSE_DRAW_FORMS,
};

static int allowed(void *shape, int room)
{
	return dense_draw_fits(shape, room, 3000000);
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .roomy = 8, .many = 4200,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[][2] = { { 4, 4 }, { 6, 2 }, { 3, 1 } };
	int i = index - NUM_NAMED, h;

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index == FIRST_ENDS + NUM_ENDS) {	/* gradients of more than 2^21 elements */
		*s = (struct shape){ N("heads_130_of_130_keys", 1, 3, 130, 130, 130, 128, 128),
				     .flags = CAUSAL };
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		s->flags &= ~DRAWN;
		return;
	}
	if (i >= NUM_GRID + NUM_PAIRS) {
		*s = last[i - NUM_GRID - NUM_PAIRS];
		return;
	}
	if (i >= NUM_GRID) {
		pair_at(i - NUM_GRID, s);
		return;
	}
	memset(s, 0, sizeof(*s));
	s->qk = dims[i % 7];
	s->v = dims[i / 7 % 7];
	s->qo = lengths[i / 49][0];
	s->kv = lengths[i / 49][1];
	s->batch = 1 + i % 3;
	h = (i + i / 7) % 3;
	s->hq = heads[h][0];
	s->hkv = heads[h][1];
	s->layout = (i + i / 49) % NUM_LAYOUTS;
	s->q_gap = i % 7 < 3 ? 16 : 0;
	s->flags = (i % 3 != 1 ? CAUSAL : 0) | (i % 2 ? F16 : 0) | (i % 3 ? PAGED_RAGGED : 0) |
		   (i % 11 < 3 ? PAGED_PADDED : 0);
}

static void describe(int index, struct cairn_case *c)
{
	struct shape s;
	double pairs;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.ends)
		ends_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "b%d_qo%d_kv%d_h%d_%d_d%d_%d_%s_%s%s%s%s%s", s.batch, s.qo,
			 s.kv, s.hq, s.hkv, s.qk, s.v, layout_names[s.layout],
			 s.flags & F16 ? "f16" : "bf16", s.flags & CAUSAL ? "_causal" : "",
			 s.q_gap ? "_gaps" : "", s.flags & PAGED_RAGGED ? "_ragged" : "",
			 s.flags & PAGED_PADDED ? "_padded" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->roundings = s.roundings;
	c->far = !!(s.flags & (FAR_Q | FAR_K | FAR_V));
	if (s.name && s.logits)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if ((index >= FIRST_ENDS && index < NUM_CASES) || s.kv > 60000 || s.roundings ||
		 s.flags & (BENCH | DEVICE | FAR_Q | FAR_K | FAR_V))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	pairs = (double)s.qo * s.kv;
	if (s.flags & CAUSAL)
		pairs = s.qo > s.kv ? 0.5 * s.kv * (s.kv + 1.0) : pairs - 0.5 * s.qo * (s.qo - 1.0);
	c->flops = 2.0 * s.batch * pairs * s.hq * (3 * s.qk + 2 * s.v);
	c->bytes = 2.0 * s.batch * (2.0 * s.kv * s.hkv * (s.qk + s.v) + 2.0 * s.qo * s.hq * (s.qk + s.v));
}

static void declare_grad(struct cairn_op *op, size_t field, const char *name, int dtype, int64_t rows,
			 int heads, int dim)
{
	cairn_out(op, field, dtype, rows * heads * dim);
	cairn_name(op, field, name);
	cairn_shape(op, field, { "row", rows }, { "head", heads }, { "dim", dim });
}

/* Runs the forward pass for out and lse, or draws them. */
static void fill_results(struct cairn_op *op, const struct shape *s, void *out, float *lse)
{
	const struct cairn_attn_bwd_args *a = op->args;
	struct cairn_attn_dense_args f = cairn_attn_bwd_forward(a);
	int64_t rows = s->batch ? a->qo_indptr[s->batch] : 0;

	f.out = out;
	f.lse = lse;
	if (!(s->flags & (DEVICE | DRAWN)) || s->pair) {
		if (cairn_attn_dense_ref(&f, NULL))
			abort();
		return;
	}
	cairn_fill(op, out, a->dtype, rows * s->hq * s->v, 0.1);
	for (int b = 0; b < s->batch; b++)
		for (int i = a->qo_indptr[b]; i < a->qo_indptr[b + 1]; i++) {
			int kv = a->kv_indptr[b + 1] - a->kv_indptr[b], seen = kv;

			if (a->causal)
				seen -= a->qo_indptr[b + 1] - 1 - i;
			if (a->window && seen > a->window)
				seen = a->window;
			for (int h = 0; h < s->hq; h++)
				lse[(int64_t)i * s->hq + h] = seen > 0 ?
					logf((float)seen) + (h % 2 ? -3.5f : 0.5f) : -INFINITY;
		}
}

static void setup(struct cairn_op *op)
{
	const struct cairn_attn_bwd_args *a = op->args;
	enum cairn_kind kind = op->kind;
	struct shape s;
	int64_t rows;
	void *out, *dout;
	float *lse;

	shape_at(op->case_index, &s);
	declare_inputs(op, &s);
	rows = s.batch ? a->qo_indptr[s.batch] : 0;
	out = cairn_in(op, FIELD(out), a->dtype, (int64_t)a->nnz_qo * s.hq * s.v);
	dout = cairn_in(op, FIELD(dout), a->dtype, (int64_t)a->nnz_qo * s.hq * s.v);
	lse = cairn_in(op, FIELD(lse), CAIRN_F32, (int64_t)a->nnz_qo * s.hq);
	declare_grad(op, FIELD(dq), "dq", a->dtype, a->nnz_qo, s.hq, s.qk);
	declare_grad(op, FIELD(dk), "dk", a->dtype, a->nnz_kv, s.hkv, s.qk);
	declare_grad(op, FIELD(dv), "dv", a->dtype, a->nnz_kv, s.hkv, s.v);
	cairn_fill_nan(out, a->dtype, 0, (int64_t)a->nnz_qo * s.hq * s.v);
	cairn_fill_nan(dout, a->dtype, 0, (int64_t)a->nnz_qo * s.hq * s.v);
	cairn_fill_nan(lse, CAIRN_F32, 0, (int64_t)a->nnz_qo * s.hq);
	op->kind = CAIRN_KIND_NORMAL;
	cairn_fill(op, dout, a->dtype, rows * s.hq * s.v, s.logits == TINY_V ? 100 : 1);
	fill_results(op, &s, out, lse);
	op->kind = kind;
}

/*
 * Removes the last row and the last key of the last request that has a row and two keys, if nothing follows
 * it. Its other rows then see no new key, so that their lse still bounds their logits; with new keys p could
 * exceed the range of f16.
 */
static int relist(void *args)
{
	const struct cairn_attn_bwd_args *a = args;
	int32_t *qo = (int32_t *)(uintptr_t)a->qo_indptr, *kv = (int32_t *)(uintptr_t)a->kv_indptr;
	int32_t b = a->batch - 1;

	while (b >= 0 && qo[b + 1] == qo[b] && kv[b + 1] == kv[b])
		b--;
	if (b < 0 || qo[b + 1] == qo[b] || kv[b + 1] - kv[b] < 2)
		return 0;
	for (int32_t k = b + 1; k <= a->batch; k++) {
		qo[k]--;
		kv[k]--;
	}
	return 1;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_bwd_args *a = args;

	*want = i < 24 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->dq = NULL; return "dq_null";
	case 2: a->dk = NULL; return "dk_null";
	case 3: a->dv = NULL; return "dv_null";
	case 4: a->q = NULL; return "q_null";
	case 5: a->k = NULL; return "k_null";
	case 6: a->v = NULL; return "v_null";
	case 7: a->out = NULL; return "out_null";
	case 8: a->dout = NULL; return "dout_null";
	case 9: a->lse = NULL; return "lse_null";
	case 10: a->qo_indptr = NULL; return "qo_indptr_null";
	case 11: a->kv_indptr = NULL; return "kv_indptr_null";
	case 12: a->dq = (char *)a->dq + 8; return "dq_misaligned";
	case 13: a->dk = (char *)a->dk + 8; return "dk_misaligned";
	case 14: a->dv = (char *)a->dv + 2; return "dv_misaligned";
	case 15: a->dout = (const char *)a->dout + 8; return "dout_misaligned";
	case 16: a->out = (const char *)a->out + 8; return "out_misaligned";
	case 17: a->batch = -1; return "batch_negative";
	case 18: a->sm_scale = 0; return "sm_scale_0";
	case 19: a->softcap = -1; return "softcap_negative";
	case 20: a->window = -1; return "window_negative";
	case 21: a->q_stride = a->qk_dim - 8; return "q_stride_short";
	case 22: a->v_head_stride = a->v_dim + 2; return "v_head_stride_odd";
	case 23: a->sms = -1; return "sms_negative";
	case 24: a->dtype = CAIRN_F32; return "dtype_f32";
	case 25: a->qk_dim = 56; return "qk_dim_56";
	case 26: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_bwd_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_attn_bwd_family = {
	.stage = "fused", .name = "attn_bwd",
	.op = offsetof(struct cairn_impl, attn_bwd),
	.workspace_op = offsetof(struct cairn_impl, attn_bwd_workspace),
	.args_size = sizeof(struct cairn_attn_bwd_args),
	.sms_field = offsetof(struct cairn_attn_bwd_args, sms),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.cost_s = 250,
};
