// SPDX-License-Identifier: Apache-2.0
/* attn_variant_test - the built-in variants: edge cases, pairs of features, ends of tiles, bench rows */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/base/attn_ends.h"
#include "fused/attention/variant/attn_variant_inputs.h"
#include "fused/attention/variant/attn_variant_pairs.h"

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(name_, variant_, batch_, qo_, kv_, hq_, hkv_, dim_) \
	.name = name_, .variant = CAIRN_VARIANT_##variant_, .batch = batch_, .qo = qo_, .kv = kv_, \
	.hq = hq_, .hkv = hkv_, .dim = dim_
#define BOTH		(CAUSAL | LSE)
#define BENCH_CAUSAL	(BENCH | CAUSAL | DEVICE)
#define B16(name, variant, ...) \
	{ N(name "_h16_d128_b16_s1024_causal_bf16", variant, 16, 1024, 1024, 16, 16, 128), \
		.flags = BENCH_CAUSAL, __VA_ARGS__ }

static const struct shape named[] = {
	/* N(name, variant, batch, query rows, keys, query heads, KV heads, head_dim), other members */
	{ N("plain_one_key", PLAIN, 1, 1, 1, 1, 1, 64), .flags = LSE },
	{ N("plain_batch_0", PLAIN, 0, 1, 1, 4, 2, 64), .flags = LSE },
	{ N("plain_no_rows", PLAIN, 3, 0, 40, 4, 2, 64), .flags = LSE },
	{ N("plain_no_keys", PLAIN, 3, 2, 0, 4, 2, 128), .flags = LSE },
	{ N("plain_rows_without_keys", PLAIN, 2, 150, 97, 4, 2, 128), .flags = BOTH | F16 },
	{ N("plain_mixed", PLAIN, 7, 1, 1, 8, 2, 128), .flags = BOTH | PAGED_PADDED,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1, 129), .kv_lens = LENS(300, 70, 33, 54, 3, 1, 257) },
	/* windows of one key and of about a tile; rows without a key */
	{ N("window_1", PLAIN, 1, 150, 150, 4, 2, 128), .flags = BOTH, .p0 = 1 },
	{ N("window_127", PLAIN, 1, 257, 290, 2, 1, 128), .flags = BOTH, .p0 = 127 },
	{ N("window_128", PLAIN, 1, 257, 290, 2, 1, 128), .flags = BOTH | F16, .p0 = 128 },
	{ N("window_97_d64", PLAIN, 2, 200, 310, 4, 2, 64), .flags = BOTH, .p0 = 97 },
	{ N("window_without_causal", PLAIN, 2, 70, 190, 4, 2, 64), .flags = LSE, .p0 = 40 },
	{ N("window_rows_without_keys", PLAIN, 2, 93, 50, 4, 2, 128), .flags = BOTH, .p0 = 20 },
	{ N("window_first_rows_without_keys", PLAIN, 1, 400, 60, 2, 2, 128), .flags = LSE, .p0 = 9 },
	{ N("window_wider_than_keys", PLAIN, 3, 20, 90, 4, 2, 64), .flags = BOTH, .p0 = 1000 },
	/* sinks in requests without keys; no sinks and large ones; sinks with windows */
	{ N("sink_no_keys", PLAIN, 3, 2, 0, 4, 2, 128), .flags = LSE | SINK },
	{ N("sink_rows_without_keys", PLAIN, 2, 150, 97, 4, 2, 128), .flags = BOTH | SINK },
	{ N("sink_none_or_large", PLAIN, 2, 70, 300, 8, 2, 64), .flags = BOTH | SINK | SINK_NONE },
	{ N("sink_window_48", PLAIN, 6, 1, 1, 8, 2, 128), .flags = BOTH | PAGED_PADDED | SINK, .p0 = 48,
		.qo_lens = LENS(1, 70, 0, 17, 3, 1), .kv_lens = LENS(300, 170, 33, 54, 0, 1) },
	{ N("sink_keys_1025", PLAIN, 1, 3, 1025, 4, 1, 128), .flags = BOTH | SINK },
	/* rotations: positions after a cache, edges of tiles, one query */
	{ N("rope_one_query", ROPE, 2, 1, 300, 8, 2, 128), .flags = BOTH },
	{ N("rope_keys_4100", ROPE, 1, 3, 4100, 4, 1, 64), .flags = BOTH | F16 },
	{ N("rope_129", ROPE, 2, 129, 129, 4, 4, 128), .flags = BOTH },
	{ N("rope_interleaved_129", ROPE, 2, 129, 140, 3, 3, 128), .flags = BOTH | INTERLEAVED | F16 },
	{ N("rope_mixed", ROPE, 6, 1, 1, 8, 2, 64), .flags = BOTH | PAGED_PADDED | INTERLEAVED,
		.qo_lens = LENS(1, 70, 0, 17, 3, 200), .kv_lens = LENS(300, 170, 33, 54, 0, 97) },
	{ N("rope_mixed_d128", ROPE, 6, 1, 1, 8, 2, 128), .flags = BOTH | PAGED_PADDED,
		.qo_lens = LENS(1, 70, 0, 17, 3, 200), .kv_lens = LENS(300, 170, 33, 54, 0, 97) },
	{ N("alibi_keys_1100", ALIBI, 2, 3, 1100, 12, 4, 128), .flags = BOTH },
	{ N("alibi_rows_193", ALIBI, 1, 193, 193, 4, 2, 64), .flags = BOTH },
	{ N("alibi_future", ALIBI, 2, 70, 97, 6, 6, 128), .flags = LSE | F16 },
	{ N("softcap_1", SOFTCAP, 2, 70, 150, 4, 2, 128), .flags = BOTH, .p0 = 1 },
	{ N("softcap_50", SOFTCAP, 2, 70, 150, 4, 2, 64), .flags = BOTH | F16, .p0 = 50 },
	{ N("softcap_small", SOFTCAP, 1, 90, 97, 4, 2, 128), .flags = LSE, .p0 = 0.05f },
	{ N("sigmoid_0", SIGMOID, 2, 70, 150, 4, 2, 128), .flags = CAUSAL },
	{ N("sigmoid_bias", SIGMOID, 3, 40, 300, 8, 2, 64), .flags = F16 | PAGED_RAGGED, .p0 = -5.7f },
	{ N("sigmoid_no_keys", SIGMOID, 3, 200, 3, 4, 2, 128), .flags = CAUSAL | PAGED_RAGGED },
	{ N("bits_rows_129", BITS, 2, 129, 290, 4, 2, 128), .flags = LSE },
	{ N("bits_causal", BITS, 3, 70, 97, 4, 2, 64), .flags = BOTH | F16 | PAGED_RAGGED },
	/* too large for host implementations */
	{ N("large_plain", PLAIN, 40, 700, 3000, 16, 4, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_window_sink", PLAIN, 5, 700, 3000, 8, 4, 64), .flags = BOTH | DEVICE | PAGED_RAGGED | SINK,
		.p0 = 1024 },
	{ N("large_rope", ROPE, 12, 900, 900, 16, 16, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_rope_interleaved", ROPE, 12, 900, 900, 16, 4, 64),
		.flags = BOTH | DEVICE | PAGED_RAGGED | INTERLEAVED },
	{ N("large_alibi", ALIBI, 12, 900, 900, 16, 4, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_bits", BITS, 4, 700, 900, 8, 2, 128), .flags = LSE | DEVICE | PAGED_RAGGED },
	/* bench rows: bytes are those of K, V, q and out */
	B16("plain", PLAIN),
	B16("window1024", PLAIN, .p0 = 1024),
	B16("alibi", ALIBI),
	B16("softcap", SOFTCAP, .p0 = 50),
	B16("rope", ROPE),
	B16("sigmoid", SIGMOID, .p0 = -7),
	{ N("rope_h32_8_b1_kv16384_bf16", ROPE, 1, 1, 16384, 32, 8, 128), .flags = BENCH_CAUSAL },
	{ N("rope_h16_d128_b4_s4096_causal_bf16", ROPE, 4, 4096, 4096, 16, 16, 128), .flags = BENCH_CAUSAL },
	{ N("plain_h16_d128_b4_s4096_causal_bf16", PLAIN, 4, 4096, 4096, 16, 16, 128),
		.flags = BENCH_CAUSAL },
	{ N("alibi_h32_d64_b4_s4096_causal_bf16", ALIBI, 4, 4096, 4096, 32, 32, 64), .flags = BENCH_CAUSAL },
	{ N("plain_h32_d64_b4_s4096_causal_bf16", PLAIN, 4, 4096, 4096, 32, 32, 64), .flags = BENCH_CAUSAL },
};

/* The last cases. */
static const struct shape last[] = {
	{ N("sink_huge", PLAIN, 2, 5, 150, 8, 2, 64), .flags = BOTH | SINK | SINK_HUGE },
	{ N("sink_huge_window_20", PLAIN, 3, 40, 30, 4, 4, 128), .flags = BOTH | F16 | SINK | SINK_HUGE,
		.p0 = 20 },
	/* windows of the rows of a tile begin on both sides of 256, 512 and 1024 keys */
	{ N("window_80_of_600", PLAIN, 1, 16, 600, 2, 2, 64), .flags = BOTH, .p0 = 80 },
	{ N("window_61_of_1100", PLAIN, 1, 430, 1100, 1, 1, 64), .flags = BOTH, .p0 = 61 },
	{ N("window_59_of_1100_group_3", PLAIN, 1, 150, 1100, 3, 1, 64), .flags = BOTH, .p0 = 59 },
	{ N("group_6", PLAIN, 2, 5, 20, 6, 1, 64), .flags = BOTH },
	{ N("alibi_group_7", ALIBI, 1, 5, 20, 14, 2, 64), .flags = BOTH | F16 },
	{ N("rope_group_9", ROPE, 1, 5, 20, 9, 1, 128), .flags = LSE },
	{ N("softcap_group_12", SOFTCAP, 1, 3, 20, 24, 2, 64), .flags = BOTH, .p0 = 20 },
	{ N("alibi_heads_130", ALIBI, 1, 2, 9, 130, 130, 64), .flags = BOTH },
	{ N("heads_260_of_2", PLAIN, 1, 2, 9, 260, 2, 64), .flags = BOTH | F16 },
	/* keys past 2^16, which decide the result */
	{ N("window_600_of_66100", PLAIN, 1, 1, 66100, 1, 1, 64), .flags = BOTH, .p0 = 600 },
	/* positions that bf16 would round, of keys with large weights */
	{ N("alibi_future_700", ALIBI, 1, 700, 700, 1, 1, 64), .flags = LSE },
	{ N("alibi_keys_past_2e16", ALIBI, 1, 1, 66100, 1, 1, 64), .flags = BOTH },
	{ N("window_1100_of_1300", PLAIN, 1, 3, 1300, 2, 1, 64), .flags = BOTH, .p0 = 1100 },
	{ N("window_largest", PLAIN, 2, 9, 40, 4, 2, 64), .flags = BOTH, .p0 = 0x1p24f },
	{ N("bits_of_2200_keys", BITS, 1, 3, 2200, 2, 1, 64), .flags = LSE },
	{ N("bits_of_66100_keys", BITS, 1, 1, 66100, 1, 1, 64), .flags = LSE },
	/* positions beyond any table of sines */
	{ N("rope_keys_9000", ROPE, 1, 2, 9000, 2, 1, 64), .flags = BOTH | F16 },
	{ N("rope_interleaved_keys_66100", ROPE, 1, 1, 66100, 1, 1, 64), .flags = BOTH | F16 | INTERLEAVED },
	{ N("far_rows", PLAIN, 1, 3, 3, 4, 2, 64), .flags = BOTH | FAR },
	{ N("far_heads_rope", ROPE, 1, 3, 3, 3, 3, 64), .flags = BOTH | FAR | F16, .layout = HEADS_FIRST },
	{ N("sms_3", PLAIN, 1, 17, 40, 10, 5, 64), .flags = BOTH, .sms = 3 },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", PLAIN, 1, 70, 700, 1, 1, 128), .flags = LSE, .scale = 0.02f, .roundings = 4 },
	{ N("sink_even_weights_f16", PLAIN, 1, 20, 700, 4, 2, 64), .flags = LSE | F16 | SINK, .scale = 0.03f,
		.roundings = 4 },
	/* few rows and many keys: slices of the keys, of which short requests have empty ones */
	{ N("slices_plain", PLAIN, 5, 1, 1, 8, 2, 128), .flags = BOTH | PAGED_PADDED | SINK,
		.qo_lens = LENS(1, 3, 0, 2, 40), .kv_lens = LENS(2900, 40, 700, 0, 1030) },
	{ N("slices_rope", ROPE, 4, 1, 1, 8, 2, 128), .flags = BOTH | PAGED_PADDED,
		.qo_lens = LENS(1, 2, 3, 70), .kv_lens = LENS(3001, 0, 33, 1537) },
	{ N("slices_rope_interleaved", ROPE, 2, 1, 1, 3, 1, 64), .flags = BOTH | F16 | INTERLEAVED,
		.layout = ROW_GAPS, .qo_lens = LENS(5, 1), .kv_lens = LENS(4003, 97) },
	{ N("slices_rope_2608", ROPE, 1, 2, 2608, 8, 2, 128), .flags = BOTH },
	{ N("slices_rope_sms_5", ROPE, 1, 2, 2600, 2, 2, 128), .flags = BOTH, .sms = 5 },
	/* 64 rows of a KV head, the most whose keys are rotated in shared memory, and 65 */
	{ N("slices_rope_rows_64", ROPE, 4, 1, 1, 8, 2, 128), .flags = BOTH | INTERLEAVED | PAGED_PADDED,
		.qo_lens = LENS(1, 2, 16, 3), .kv_lens = LENS(1300, 0, 2100, 33) },
	{ N("slices_rope_rows_65", ROPE, 1, 65, 1100, 1, 1, 64), .flags = BOTH },
	{ N("slices_sigmoid", SIGMOID, 3, 1, 1, 8, 2, 128), .flags = CAUSAL, .p0 = -4,
		.qo_lens = LENS(1, 9, 2), .kv_lens = LENS(2300, 100, 1) },
	{ N("slices_alibi", ALIBI, 1, 3, 3000, 6, 2, 64), .flags = BOTH | F16 },
	{ N("slices_softcap", SOFTCAP, 2, 1, 2200, 8, 1, 128), .flags = BOTH, .p0 = 3 },
	{ N("slices_bits", BITS, 1, 9, 1900, 4, 2, 64), .flags = LSE },
	/* rows that see the keys of some slices only, or none */
	{ N("slices_window_300", PLAIN, 1, 50, 2500, 4, 4, 128), .flags = BOTH, .p0 = 300 },
	{ N("slices_rows_without_keys", PLAIN, 1, 1100, 900, 1, 1, 64), .flags = BOTH | F16 | SINK },
	/* many slices, and one logit above all others in some */
	{ N("slices_sink_huge", PLAIN, 1, 1, 16000, 4, 1, 64), .flags = BOTH | SINK | SINK_HUGE },
	{ N("slices_large_logits", PLAIN, 1, 2, 9000, 4, 2, 128), .flags = BOTH, .scale = 30 },
	{ N("slices_even_weights", PLAIN, 1, 2, 3000, 4, 2, 64), .flags = LSE, .scale = 0.02f,
		.roundings = 4 },
};

#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_PAIRS	70

#define FIRST_ENDS	(NUM_NAMED + NUM_PAIRS + (int)ARRAY_SIZE(last))
#define NUM_ENDS	164

enum { ENDS_VARIANT = ATTN_ENDS_FACTORS, ENDS_LAYOUT, NUM_ENDS_FACTORS };

/* Only the plain variant has windows. */
static int ends_forbidden(const int8_t *level)
{
	return (level[ENDS_WINDOW] > 0 && level[ENDS_VARIANT] > 1) || attn_ends_forbidden(level);
}

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { ATTN_ENDS_LEVELS, 6, NUM_LAYOUTS },
	.forbidden = ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	/* plain, sink, rope, softcap, sigmoid, bits */
	static const int variants[] = { 0, 3, 4, 7, 8, 9 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);
	const struct pair_variant *v = &pair_variant[variants[level[ENDS_VARIANT]]];
	const int window = attn_ends_windows[level[ENDS_WINDOW]];

	*s = (struct shape){
		.ends = i + 1, .name = v->name, .variant = v->variant, .batch = 2,
		.qo = attn_ends_rows[level[ENDS_ROWS]].qo, .kv = attn_ends_keys[level[ENDS_KEYS]],
		.hq = attn_ends_qo_heads(level), .hkv = attn_ends_kv_heads(level),
		.dim = level[ENDS_FEATURES] & ENDS_THIRD ? 128 : 64, .layout = level[ENDS_LAYOUT],
		.p0 = window ? (float)window : v->p0,
		.flags = v->flags | (level[ENDS_FEATURES] & ENDS_NOT_CAUSAL ? 0 : CAUSAL) |
			 (level[ENDS_FEATURES] & ENDS_F16 ? F16 : 0) |
			 (v->variant == CAIRN_VARIANT_SIGMOID ? 0 : LSE),
	};
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_ONE_OF(struct shape, variant, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9),	/* number in pair_variant */
	CAIRN_DRAW_SIZE(struct shape, p0, 1, 3000, 1),		/* a window, in the variants that have one */
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 1, 700, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 9000, 1),
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 20, 1),
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 40, 1),		/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, dim, 64, 128),
	CAIRN_DRAW_SIZE(struct shape, layout, 0, NUM_LAYOUTS - 1, 1),
	CAIRN_DRAW_ONE_OF(struct shape, q_gap, 0, 0, 8),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 1, 2, 24),
	CAIRN_DRAW_ONE_OF(struct shape, flags, CAUSAL, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, LSE, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, PAGED_PADDED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED),
};

/* Where there is more room, most shapes have one request and few heads, but many rows with many keys. */
static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	const struct pair_variant *v = &pair_variant[s->variant];
	int64_t products, least = 0;

	s->pair = 1;
	s->name = v->name;
	s->p0 = v->variant == CAIRN_VARIANT_PLAIN && v->p0 > 0 ? s->p0 : v->p0;
	s->flags |= v->flags;
	if (v->variant == CAIRN_VARIANT_SIGMOID)
		s->flags &= ~(unsigned)LSE;
	s->variant = v->variant;
	s->hq *= s->hkv;
	if (room > 1 && s->batch % 4) {
		s->batch = s->hkv = 1;
		s->hq = 1 + s->hq % 2;
		least = room * 2000000 / 6;
	}
	products = (int64_t)s->batch * s->qo * (s->kv + 16) * s->hq * s->dim;
	return products >= least && products <= room * 2000000 &&
	       (int64_t)s->batch * s->kv * s->hkv * s->dim <= room * 500000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 5100,
};

static void shape_at(int i, struct shape *s)
{
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, s);
		return;
	}
	if (i >= FIRST_ENDS) {
		ends_at(i - FIRST_ENDS, s);
		return;
	}
	if (i < NUM_NAMED)
		*s = named[i];
	else if (i >= NUM_NAMED + NUM_PAIRS)
		*s = last[i - NUM_NAMED - NUM_PAIRS];
	else
		pair_at(i - NUM_NAMED, s);
}

static void describe(int index, struct cairn_case *c)
{
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_%s_qo%d_kv%d_h%d_%d_d%d_p%d_%s%s", s.name, s.qo,
			 s.kv, s.hq, s.hkv, s.dim, abs((int)s.p0), s.flags & F16 ? "f16" : "bf16",
			 s.flags & CAUSAL ? "_causal" : "");
	else
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	describe_shape(&s, c);
}

static void setup(struct cairn_op *op)
{
	struct shape s;

	shape_at(op->case_index, &s);
	declare_case(op, &s);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_variant_args *a = args;

	*want = i < 18 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->k = NULL; return "k_null";
	case 3: a->qo_indptr = NULL; return "qo_indptr_null";
	case 4: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 5: a->t[1] = (const float *)((uintptr_t)a->q + 2); return "t_misaligned";
	case 6: a->batch = -1; return "batch_negative";
	case 7: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 8: a->sm_scale = NAN; return "sm_scale_nan";
	case 9: a->v_stride = 4; return "v_stride_odd";
	case 10: a->sms = -1; return "sms_negative";
	case 11: a->variant = -1; return "variant_negative";
	case 12: a->p[7] = INFINITY; return "p_infinite";
	case 13: a->variant = CAIRN_VARIANT_ROPE; return "rope_without_array";
	case 14: a->variant = CAIRN_VARIANT_ALIBI; return "alibi_without_array";
	case 15: a->variant = CAIRN_VARIANT_SOFTCAP; return "softcap_0";
	case 16: a->p[0] = -1; return "window_negative";
	case 17: a->variant = CAIRN_VARIANT_SIGMOID; return "sigmoid_with_lse";
	case 18: a->dtype = CAIRN_F32; return "dtype_f32";
	case 19: a->head_dim = 96; return "head_dim_96";
	case 20: a->variant = CAIRN_VARIANT_BUILT_IN; return "variant_unknown";
	case 21: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	case 22: a->sm_scale = 0x1p-65f; return "sm_scale_tiny";
	}
	return NULL;
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_attn_variant_family = {
	.stage = "fused", .name = "attn_variant",
	.op = offsetof(struct cairn_impl, attn_variant),
	.workspace_op = offsetof(struct cairn_impl, attn_variant_workspace),
	.args_size = sizeof(struct cairn_attn_variant_args),
	.sms_field = FIELD(sms),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = {
		.rows = FIELD(nnz_qo), .requests = FIELD(batch), .indptr = FIELD(qo_indptr),
		.stride = FIELD(q_stride), .in = { FIELD(q) }, .out = { FIELD(out), FIELD(lse) },
		.keys = FIELD(kv_indptr),
	},
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.cost_s = 10,
};
