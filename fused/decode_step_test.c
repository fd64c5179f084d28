// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_test - small models of one to three layers through a grid of shapes, named edges, single
 * layers of published models
 *
 * Kinds: EXACT has small integers for the residual stream, weights that are integers times a power of two,
 * and with one layer logits of attention so far apart that one key takes all; EXTREME has a residual stream
 * of zeros, of tiny, huge and very unequal numbers, row by row. Gaps between layers hold NaN in all kinds.
 *
 * Tokens are also held against the implementation's own logits: argmax and sample are exact there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../conformance/harness.h"
#include "decode_step.h"
#include "paged_test.h"

enum {
	F16 = PAGED_FLAGS, BIAS = F16 << 1, BIAS_O = F16 << 2,	/* of q, k, v; of the output projection */
	TIED = F16 << 3,		/* lm_head is embed */
	GAPS = F16 << 4,		/* between layers */
	ALIAS = F16 << 5,		/* tokens takes the place of ids */
	NO_TOKENS = F16 << 6,
	SAMPLE = F16 << 7,		/* some rows are sampled */
	FAR = F16 << 8,			/* positions that have nothing to do with the number of keys */
	BENCH = F16 << 9, DEVICE = F16 << 10,
	GRAPH = F16 << 11, PERSISTENT = F16 << 12,
};

struct shape {
	const char *name;			/* NULL: made of the numbers */
	int layers, batch, kv, page, hidden, inter, hq, hkv, dim, vocab;
	unsigned flags;
	const int *kv_lens;
};

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(n, l, b, k, p, h, i, q, g, d, v) \
	.name = n, .layers = l, .batch = b, .kv = k, .page = p, .hidden = h, .inter = i, .hq = q, .hkv = g, \
	.dim = d, .vocab = v
#define LLAMA2_7B	4096, 11008, 32, 32, 128, 1024
#define LLAMA3_8B	4096, 14336, 32, 8, 128, 1024
#define LLAMA32_1B	2048, 8192, 32, 8, 64, 1024
#define QWEN2_7B	3584, 18944, 28, 4, 128, 1024
/* A layer of a published model, in both forms, alone and as a batch. */
#define LAYER(n, f, ...) \
	{ N("layer_" n "_b1_kv1024", 1, 1, 1024, 16, __VA_ARGS__), .flags = DEVICE | BENCH | (f) }, \
	{ N("layer_" n "_b1_kv1024_graph", 1, 1, 1024, 16, __VA_ARGS__), \
		.flags = DEVICE | BENCH | GRAPH | (f) }, \
	{ N("layer_" n "_b1_kv1024_persistent", 1, 1, 1024, 16, __VA_ARGS__), \
		.flags = DEVICE | BENCH | PERSISTENT | (f) }, \
	{ N("layer_" n "_b1_kv9001_graph", 1, 1, 9001, 16, __VA_ARGS__), .flags = DEVICE | GRAPH | (f) }, \
	{ N("layer_" n "_b1_kv9001_persistent", 1, 1, 9001, 16, __VA_ARGS__), \
		.flags = DEVICE | PERSISTENT | (f) }, \
	{ N("layer_" n "_b8_kv777_graph", 1, 8, 777, 16, __VA_ARGS__), \
		.flags = DEVICE | GRAPH | PAGED_RAGGED | (f) }, \
	{ N("layer_" n "_b8_kv777_persistent", 1, 8, 777, 16, __VA_ARGS__), \
		.flags = DEVICE | PERSISTENT | PAGED_RAGGED | (f) }

static const struct shape named[] = {
	{ N("one_key", 1, 1, 1, 1, 64, 64, 1, 1, 64, 8) },	/* reject_* alter this one */
	{ N("batch_0", 2, 0, 9, 16, 64, 64, 2, 1, 64, 8) },
	{ N("no_tokens", 1, 2, 9, 16, 64, 64, 2, 1, 64, 16), .flags = NO_TOKENS },
	{ N("page_full", 2, 3, 64, 16, 128, 192, 4, 2, 64, 64), .flags = BIAS },
	{ N("page_opens", 2, 3, 65, 16, 128, 192, 4, 2, 64, 64) },
	{ N("first_page_opens", 1, 2, 17, 16, 128, 192, 4, 4, 64, 64), .flags = F16 },
	{ N("no_spare_page", 2, 2, 33, 8, 128, 64, 4, 1, 64, 72), .flags = PAGED_FULL },
	{ N("page_1000", 1, 2, 1203, 1000, 128, 128, 4, 2, 64, 64) },
	{ N("lengths_apart", 2, 8, 1, 16, 128, 192, 8, 2, 64, 136), .flags = ALIAS,
		.kv_lens = LENS(1, 900, 2, 16, 17, 15, 300, 1) },
	{ N("bound_above_length", 2, 4, 40, 16, 128, 192, 4, 2, 64, 64), .flags = PAGED_PADDED },
	{ N("far_positions", 1, 3, 30, 16, 128, 64, 4, 2, 128, 64), .flags = FAR },
	{ N("group_1_wide", 1, 2, 70, 16, 64, 64, 16, 16, 64, 64), .flags = GAPS },
	{ N("group_8", 1, 2, 70, 16, 128, 64, 16, 2, 128, 64), .flags = BIAS | BIAS_O },
	{ N("all_biases", 3, 2, 40, 16, 128, 192, 4, 2, 64, 200), .flags = BIAS | BIAS_O | GAPS },
	{ N("tied", 2, 2, 40, 16, 128, 192, 4, 2, 64, 1000), .flags = TIED },
	{ N("sampled_batch_8", 1, 8, 20, 16, 128, 64, 4, 2, 64, 4000), .flags = SAMPLE | ALIAS },
	{ N("sampled_vocab_8", 1, 5, 20, 3, 64, 64, 2, 2, 64, 8), .flags = SAMPLE },
	{ N("hidden_1024", 1, 1, 100, 16, 1024, 448, 32, 8, 64, 504), .flags = F16 },
	{ N("inter_2112", 1, 3, 20, 16, 192, 2112, 4, 2, 64, 64), },
	{ N("vocab_4000_three_layers", 3, 1, 50, 64, 256, 448, 8, 2, 64, 4000), .flags = F16 | GAPS },
	LAYER("llama2_7b", F16, LLAMA2_7B),
	LAYER("llama3_8b", 0, LLAMA3_8B),
	LAYER("llama32_1b", 0, LLAMA32_1B),
	LAYER("qwen2_7b", BIAS, QWEN2_7B),
};

#define NUM_GRID	72
#define NUM_NAMED	((int)ARRAY_SIZE(named))

static void shape_at(int index, struct shape *s)
{
	static const int heads[][2] = { { 4, 4 }, { 8, 2 }, { 14, 2 }, { 6, 1 }, { 32, 8 } };
	static const int hidden[] = { 64, 128, 256, 192, 512, 320 }, inter[] = { 192, 64, 448, 128, 320 };
	static const int vocab[] = { 8, 136, 1000, 56, 520 }, pages[] = { 16, 1, 64, 3 };
	static const int batch[] = { 1, 3, 8, 2, 5 }, kv[] = { 17, 1, 54, 130, 15, 300 };
	int i = index - NUM_NAMED, h;

	if (i < 0) {
		*s = named[index];
		return;
	}
	memset(s, 0, sizeof(*s));
	h = (i + i / 5) % 5;
	s->layers = 1 + i % 3;
	s->batch = batch[(i + i / 15) % 5];
	s->kv = kv[(i + i / 6) % 6];
	s->page = pages[(i + i / 4) % 4];
	s->hidden = hidden[(i + i / 12) % 6];
	s->inter = inter[(i + i / 10) % 5];
	s->hq = heads[h][0];
	s->hkv = heads[h][1];
	s->dim = h == 4 || (i / 2) % 2 ? 64 : 128;
	s->vocab = vocab[(i + i / 20) % 5];
	s->flags = (i % 2 ? F16 : 0) | (i % 3 ? PAGED_RAGGED : 0) | (i % 4 == 1 ? BIAS : 0) |
		   (i % 5 < 2 ? GAPS : 0) | (i % 7 == 3 ? ALIAS : 0) | (i % 8 == 5 ? SAMPLE : 0) |
		   (i % 11 == 4 ? PAGED_PADDED : 0) |
		   (i % 13 == 6 && i % 7 != 3 ? TIED : 0) |
		   (i / 3 % 3 == 1 ? GRAPH : i / 3 % 3 == 2 ? PERSISTENT : 0);
}

static void describe(int index, struct cairn_case *c)
{
	double weights, row;
	struct shape s;

	shape_at(index, &s);
	if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "l%d_b%d_kv%d_p%d_h%d_i%d_q%d_%d_d%d_v%d_%s%s%s%s%s%s",
			 s.layers, s.batch, s.kv, s.page, s.hidden, s.inter, s.hq, s.hkv, s.dim, s.vocab,
			 s.flags & F16 ? "f16" : "bf16", s.flags & BIAS ? "_bias" : "",
			 s.flags & SAMPLE ? "_sample" : "", s.flags & GAPS ? "_gaps" : "",
			 s.flags & PAGED_RAGGED ? "_ragged" : "",
			 s.flags & GRAPH ? "_graph" : s.flags & PERSISTENT ? "_persistent" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	if (s.flags & DEVICE)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 4);
	row = 2.0 * s.hkv * s.dim;
	weights = s.layers * ((double)s.hidden * ((double)s.hq * s.dim * 2 + row) + 3.0 * s.hidden * s.inter) +
		  (double)s.vocab * s.hidden;
	c->bytes = 2 * (weights + (double)s.layers * s.batch * s.kv * row);
	c->flops = 2.0 * s.batch * (weights + 2.0 * s.layers * s.kv * s.hq * s.dim);
}

#define FIELD(name)	offsetof(struct cairn_decode_step_args, name)

/* Normal with this deviation; of kind EXACT integers times the power of two that comes nearest to it. */
static void fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale)
{
	int exponent = (int)lround(log2(scale / 2.6));
	enum cairn_kind kind = op->kind;

	if (kind == CAIRN_KIND_EXTREME)		/* what is extreme is the residual stream */
		op->kind = CAIRN_KIND_NORMAL;
	cairn_fill(op, p, dtype, count, scale);
	op->kind = kind;
	for (int64_t i = 0; i < count && kind == CAIRN_KIND_EXACT; i++)
		cairn_store(p, dtype, i, ldexp(cairn_load(p, dtype, i), exponent));
}

/* A weight of every layer: rows * cols elements at each multiple of the stride, NaN between them. */
static void weight(struct cairn_op *op, const struct shape *s, size_t field, int64_t count, double scale)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t stride = a->layer_stride_bytes / 2;
	uint16_t *p = cairn_in(op, field, a->dtype, (s->layers - 1) * stride + count);

	for (int i = 0; i < s->layers; i++)
		fill(op, p + i * stride, a->dtype, count, scale);
}

/* Rows of the embedding: what the residual stream begins with. */
static void fill_embed(struct cairn_op *op, const struct shape *s, void *embed)
{
	static const double sizes[] = { 0, 0x1p-22, 2e-3, 1, 700, 12000 };
	struct cairn_decode_step_args *a = op->args;
	enum cairn_kind kind = op->kind;

	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;
	cairn_fill(op, embed, a->dtype, (int64_t)s->vocab * s->hidden, 1);
	op->kind = kind;
	for (int64_t i = 0; kind == CAIRN_KIND_EXTREME && i < (int64_t)s->vocab * s->hidden; i++) {
		double size = sizes[i / s->hidden % 6];
		double v = cairn_load(embed, a->dtype, i) * size * (i % 61 == 7 ? 40 : 1);

		if (a->dtype == CAIRN_BF16 && size == 12000)
			v *= 1e9;
		cairn_store(embed, a->dtype, i, a->dtype == CAIRN_F16 ? fmax(fmin(v, 6e4), -6e4) : v);
	}
}

static void fill_pages(struct cairn_op *op, const struct shape *s, const struct paged *p, size_t field)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t row = (int64_t)s->hkv * s->dim, stride = a->kv_stride_bytes / 2;
	uint16_t *pages = cairn_inout(op, field, a->dtype,
				      (s->layers - 1) * stride + p->num_pages * (int64_t)s->page * row);
	enum cairn_kind kind = op->kind;

	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;
	for (int i = 0; i < s->layers; i++) {
		paged_fill(op, p, pages + i * stride, a->dtype, row);
		for (int b = 0; b < s->batch; b++)	/* written, not read */
			cairn_fill_nan(pages + i * stride, a->dtype,
				       paged_slot(p, b, p->kv_len[b] - 1) * row, row);
	}
	op->kind = kind;
}

static void fill_sampling(struct cairn_op *op, int batch)
{
	float *temperature = cairn_in(op, FIELD(temperature), CAIRN_F32, batch);
	float *top_p = cairn_in(op, FIELD(top_p), CAIRN_F32, batch);
	float *min_p = cairn_in(op, FIELD(min_p), CAIRN_F32, batch);
	int32_t *top_k = cairn_in(op, FIELD(top_k), CAIRN_I32, batch);
	uint64_t *seed = cairn_in(op, FIELD(seed), CAIRN_I64, batch);
	uint64_t *offset = cairn_in(op, FIELD(offset), CAIRN_I64, batch);

	for (int b = 0; b < batch; b++) {
		temperature[b] = b % 3 == 1 ? 0 : 0.7f + 0.3f * (float)b;
		top_p[b] = b % 2 ? 1 : 0.9f;
		min_p[b] = b % 4 == 2 ? 0.05f : 0;
		top_k[b] = b % 4 == 3 ? 5 : 0;
		seed[b] = cairn_op_rand(op);
		offset[b] = cairn_op_rand(op) % 1000;
	}
}

static void set_lengths(struct cairn_op *op, const struct shape *s, struct paged *p)
{
	p->batch = s->batch;
	p->page_size = s->page;
	p->flags = s->flags;
	p->max_kv = 1;
	for (int b = 0; b < s->batch; b++) {
		p->qo_len[b] = 1;
		p->kv_len[b] = s->kv_lens ? s->kv_lens[b] :
			       b && s->flags & PAGED_RAGGED ? (int)cairn_op_range(op, 1, s->kv) : s->kv;
		p->max_kv = p->kv_len[b] > p->max_kv ? p->kv_len[b] : p->max_kv;
	}
}

static void set_scalars(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t largest = (int64_t)s->hidden * (s->hq + 2 * s->hkv) * s->dim;
	int64_t mlp = 2 * (int64_t)s->hidden * s->inter;
	int pad = s->flags & PAGED_PADDED ? 5 : 0, gap = s->flags & GAPS ? 24 : 0;

	largest = largest > mlp ? largest : mlp;
	a->layer_stride_bytes = 2 * (largest + gap);
	a->kv_stride_bytes = 2 * ((int64_t)p->num_pages * s->page * s->hkv * s->dim + 3 * gap);
	a->batch = s->batch;
	a->max_kv_len = p->max_kv * (pad ? 3 : 1) + pad;
	a->num_pages = p->num_pages;
	a->page_size = s->page;
	a->num_layers = s->layers;
	a->hidden = s->hidden;
	a->intermediate = s->inter;
	a->num_qo_heads = s->hq;
	a->num_kv_heads = s->hkv;
	a->head_dim = s->dim;
	a->vocab = s->vocab;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->form = s->flags & GRAPH ? CAIRN_DECODE_STEP_GRAPH :
		  s->flags & PERSISTENT ? CAIRN_DECODE_STEP_PERSISTENT : CAIRN_DECODE_STEP_AUTO;
	a->eps = op->case_index % 3 ? 1e-5f : 1e-6f;
	/* in the first layer the key that takes all is no matter of rounding; in others it may be */
	a->sm_scale = (float)((op->kind == CAIRN_KIND_EXACT && s->layers == 1 ? 64 : 1) / sqrt(s->dim));
}

static void fill_index(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	float *inv_freq = cairn_in(op, FIELD(inv_freq), CAIRN_F32, s->dim / 2);
	int32_t *positions = cairn_in(op, FIELD(positions), CAIRN_I32, s->batch), *ids;

	for (int i = 0; i < s->dim / 2; i++)
		inv_freq[i] = (float)pow(op->case_index % 2 ? 500000 : 10000, -2.0 * i / s->dim);
	for (int b = 0; b < s->batch; b++)
		positions[b] = s->flags & FAR ? (int32_t)cairn_op_range(op, 0, 100000) : p->kv_len[b] - 1;
	if (s->flags & ALIAS) {
		ids = cairn_inout(op, FIELD(ids), CAIRN_I32, s->batch);
		cairn_alias(op, FIELD(tokens), FIELD(ids));
	} else {
		ids = cairn_in(op, FIELD(ids), CAIRN_I32, s->batch);
		if (!(s->flags & NO_TOKENS))
			cairn_out(op, FIELD(tokens), CAIRN_I32, s->batch);
	}
	for (int b = 0; b < s->batch; b++)	/* the last row and the first, and equal ones now and then */
		ids[b] = b == 0 ? s->vocab - 1 : b == 5 ? 0 : (int32_t)cairn_op_range(op, 0, s->vocab - 1);
}

static void setup(struct cairn_op *op)
{
	struct cairn_decode_step_args *a = op->args;
	struct paged p = { 0 };
	struct shape s;
	int64_t q, kv;
	void *embed, *head;

	shape_at(op->case_index, &s);
	set_lengths(op, &s, &p);
	paged_kv_tables(op, &p, FIELD(kv_indptr));
	set_scalars(op, &s, &p);
	q = (int64_t)s.hq * s.dim;
	kv = (int64_t)s.hkv * s.dim;
	cairn_out(op, FIELD(logits), CAIRN_F32, (int64_t)s.batch * s.vocab);
	fill_pages(op, &s, &p, FIELD(k_pages));
	fill_pages(op, &s, &p, FIELD(v_pages));
	fill_index(op, &s, &p);
	embed = cairn_in(op, FIELD(embed), a->dtype, (int64_t)s.vocab * s.hidden);
	fill_embed(op, &s, embed);
	if (s.flags & TIED) {
		cairn_alias(op, FIELD(lm_head), FIELD(embed));
	} else {
		head = cairn_in(op, FIELD(lm_head), a->dtype, (int64_t)s.vocab * s.hidden);
		fill(op, head, a->dtype, (int64_t)s.vocab * s.hidden, 1 / sqrt(s.hidden));
	}
	fill(op, cairn_in(op, FIELD(final_norm), a->dtype, s.hidden), a->dtype, s.hidden, 1);
	weight(op, &s, FIELD(attn_norm), s.hidden, 1);
	weight(op, &s, FIELD(w_qkv), s.hidden * (q + 2 * kv), 1 / sqrt(s.hidden));
	if (s.flags & BIAS)
		weight(op, &s, FIELD(b_qkv), q + 2 * kv, 1);
	weight(op, &s, FIELD(w_o), s.hidden * q, 2 / sqrt((double)q));
	if (s.flags & BIAS_O)
		weight(op, &s, FIELD(b_o), s.hidden, 1);
	weight(op, &s, FIELD(mlp_norm), s.hidden, 1);
	weight(op, &s, FIELD(w_gate_up), 2 * (int64_t)s.hidden * s.inter, 1 / sqrt(s.hidden));
	weight(op, &s, FIELD(w_down), (int64_t)s.hidden * s.inter, 2 / sqrt(s.inter));
	if (s.flags & SAMPLE)
		fill_sampling(op, s.batch);
}

/* Tokens are exact functions of the logits beside them. */
static int judge(const struct cairn_op *op, const void *got, char *why, size_t len)
{
	const struct cairn_decode_step_args *a = got;
	int32_t want[PAGED_MAX_BATCH];
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = want, .logits = a->logits, .rows = a->batch, .vocab = a->vocab,
		.dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = want, .logits = a->logits, .temperature = a->temperature,
		.top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = a->seed, .offset = a->offset,
		.rows = a->batch, .vocab = a->vocab,
	};

	(void)op;
	if (!a->tokens || cairn_argmax_ref(&argmax, NULL))
		return 0;
	for (int b = 0; b < a->batch; b++) {
		char text[256] = "";

		if (a->temperature && a->temperature[b] > 0) {
			if (cairn_sample_judge(&sample, b, a->tokens[b], text, sizeof(text))) {
				snprintf(why, len, "request %d: token %d: %s", b, a->tokens[b], text);
				return 1;
			}
		} else if (a->tokens[b] != want[b]) {
			snprintf(why, len, "request %d: token %d, its logits are largest at %d", b,
				 a->tokens[b], want[b]);
			return 1;
		}
	}
	return 0;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_decode_step_args *a = args;

	*want = i < 42 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->logits = NULL; return "logits_null";
	case 2: a->k_pages = NULL; return "k_pages_null";
	case 3: a->v_pages = NULL; return "v_pages_null";
	case 4: a->ids = NULL; return "ids_null";
	case 5: a->embed = NULL; return "embed_null";
	case 6: a->lm_head = NULL; return "lm_head_null";
	case 7: a->final_norm = NULL; return "final_norm_null";
	case 8: a->attn_norm = NULL; return "attn_norm_null";
	case 9: a->w_qkv = NULL; return "w_qkv_null";
	case 10: a->w_o = NULL; return "w_o_null";
	case 11: a->mlp_norm = NULL; return "mlp_norm_null";
	case 12: a->w_gate_up = NULL; return "w_gate_up_null";
	case 13: a->w_down = NULL; return "w_down_null";
	case 14: a->inv_freq = NULL; return "inv_freq_null";
	case 15: a->positions = NULL; return "positions_null";
	case 16: a->kv_indptr = NULL; return "kv_indptr_null";
	case 17: a->kv_indices = NULL; return "kv_indices_null";
	case 18: a->kv_last_page_len = NULL; return "kv_last_page_len_null";
	case 19: a->logits = (float *)((char *)a->logits + 4); return "logits_misaligned";
	case 20: a->k_pages = (char *)a->k_pages + 8; return "k_pages_misaligned";
	case 21: a->w_qkv = (const char *)a->w_qkv + 2; return "w_qkv_misaligned";
	case 22: a->lm_head = (const char *)a->lm_head + 8; return "lm_head_misaligned";
	case 23: a->b_o = (const char *)a->w_o + 4; return "b_o_misaligned";
	case 24: a->batch = -1; return "batch_negative";
	case 25: a->max_kv_len = -1; return "max_kv_len_negative";
	case 26: a->num_pages = -1; return "num_pages_negative";
	case 27: a->page_size = 0; return "page_size_0";
	case 28: a->num_layers = 0; return "num_layers_0";
	case 29: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 30: a->hidden = 0; return "hidden_0";
	case 31: a->vocab = 0; return "vocab_0";
	case 32: a->form = 3; return "form_3";
	case 33: a->form = -1; return "form_negative";
	case 34: a->eps = 0; return "eps_0";
	case 35: a->sm_scale = NAN; return "sm_scale_nan";
	case 36: a->layer_stride_bytes += 8; return "layer_stride_not_16";
	case 37: a->layer_stride_bytes = -16; return "layer_stride_negative";
	case 38: a->num_layers = 2; a->kv_stride_bytes = 16; return "kv_stride_short";
	case 39: a->kv_stride_bytes += 8; return "kv_stride_not_16";
	case 40: a->temperature = a->inv_freq; return "temperature_alone";
	case 41: a->workspace = (char *)a->workspace + 16; return "workspace_misaligned";
	case 42: a->dtype = CAIRN_F32; return "dtype_f32";
	case 43: a->batch = 9; return "batch_9";
	case 44: a->head_dim = 96; return "head_dim_96";
	case 45: a->head_dim = 256; return "head_dim_256";
	case 46: a->hidden = 96; return "hidden_96";
	case 47: a->hidden = 16448; return "hidden_16448";
	case 48: a->intermediate = 96; return "intermediate_96";
	case 49: a->intermediate = 65600; return "intermediate_65600";
	case 50: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	case 51: a->num_qo_heads = 9 * a->num_kv_heads; return "group_9";
	case 52: a->vocab = 12; return "vocab_12";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_decode_step_exact(args, e);
}

const struct cairn_family cairn_decode_step_family = {
	.stage = "fused", .name = "decode_step",
	.op = offsetof(struct cairn_impl, decode_step),
	.workspace_op = offsetof(struct cairn_impl, decode_step_workspace),
	.args_size = sizeof(struct cairn_decode_step_args),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_NAMED + NUM_GRID,
	.zeroed_workspace = 1,
	.describe = describe, .setup = setup, .exact = exact, .judge = judge, .reject = reject,
};
