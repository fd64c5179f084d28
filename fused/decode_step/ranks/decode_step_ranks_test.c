// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ranks_test - cases of decode_step_ranks.h
 *
 * A shape is that of one rank's share, except that vocab is the model's. Every number of ranks occurs with
 * each of three flavours. The named cases are edge cases, troubles, and shares of published models; the cases
 * ends_* combine sizes at the ends of tiles and pages. The inputs are made as those of decode_step; shares of
 * weights, pages and page ids differ between the ranks.
 */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/cache/paged_test.h"
#include "fused/decode_step/decode_step_test.h"
#include "fused/decode_step/ranks/decode_step_ranks.h"

#define COMM_FIELD	offsetof(struct cairn_decode_step_ranks_args, comm)
#define NUM_STEP_REJECTS	77	/* those of step_reject() */

struct shape {
	struct step_shape step;
	int ranks;
	enum cairn_trouble trouble;
};

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(case_name, num_ranks, num_layers, requests, kv_len, page_size, hidden_dim, mlp_dim, qo_heads, \
	  kv_heads, dims, vocab_size, ...) \
	{ .ranks = num_ranks, .step = { .name = case_name, .layers = num_layers, .batch = requests, \
	  .kv = kv_len, .page = page_size, .hidden = hidden_dim, .inter = mlp_dim, .hq = qo_heads, \
	  .hkv = kv_heads, .dim = dims, .vocab = vocab_size, __VA_ARGS__ } }
#define TROUBLE(case_name, num_ranks, what) \
	{ .ranks = num_ranks, .trouble = CAIRN_TROUBLE_##what, .step = { .name = case_name, .layers = 1, \
	  .batch = 2, .kv = 9, .page = 16, .hidden = 64, .inter = 64, .hq = 1, .hkv = 1, .dim = 64, \
	  .vocab = 48 } }

static const struct shape named[] = {
	/* the reject_* cases change this one; vocab is a multiple of 8 for 2 and 3 ranks */
	N("one_key", 2, 1, 1, 1, 1, 64, 64, 1, 1, 64, 48),
	N("batch_0", 2, 2, 0, 9, 16, 64, 64, 2, 1, 64, 16),
	N("no_tokens", 2, 1, 2, 9, 16, 64, 64, 2, 1, 64, 32, .flags = NO_TOKENS),
	N("tied", 3, 2, 2, 20, 16, 64, 64, 2, 1, 64, 72, .flags = TIED),
	N("no_keys", 3, 2, 5, 1, 16, 64, 64, 2, 1, 64, 48, .kv_lens = LENS(33, 0, 17, 0, 5)),
	N("no_keys_in_a_page", 2, 1, 3, 1, 16, 128, 64, 2, 1, 128, 64, .flags = PAGED_HELD | SAMPLE,
	  .kv_lens = LENS(0, 1, 40)),
	N("lengths_apart", 2, 2, 8, 1, 16, 64, 64, 2, 1, 64, 64, .flags = ALIAS,
	  .kv_lens = LENS(1, 300, 2, 16, 17, 15, 130, 1)),
	N("no_spare_page", 2, 2, 2, 33, 8, 64, 64, 4, 1, 64, 64, .flags = PAGED_FULL),
	N("bound_above_length", 2, 1, 4, 40, 16, 64, 64, 2, 1, 64, 32, .flags = PAGED_PADDED),
	N("far_positions", 2, 1, 3, 30, 16, 64, 64, 2, 1, 128, 32, .flags = FAR),
	N("bias_of_output_f16", 3, 3, 2, 9, 16, 128, 64, 2, 1, 64, 48, .flags = BIAS_O | F16),
	N("group_8", 2, 1, 2, 40, 16, 64, 64, 8, 1, 128, 32, .flags = BIAS),
	N("one_rank_all_biases", 1, 2, 3, 33, 16, 128, 128, 4, 2, 64, 72,
	  .flags = BIAS | BIAS_O | GAPS | SAMPLE),
	N("sampled_batch_8", 4, 1, 8, 20, 16, 64, 64, 1, 1, 64, 2048, .flags = SAMPLE | ALIAS),
	N("no_keys_batch_2", 2, 2, 2, 1, 16, 64, 64, 2, 1, 64, 32, .kv_lens = LENS(0, 33)),
	N("sampled_batch_2", 2, 1, 2, 20, 16, 128, 64, 2, 1, 128, 1024, .flags = SAMPLE | ALIAS | BIAS_O),
	N("nan_in_a_key", 3, 2, 3, 20, 16, 64, 64, 2, 1, 64, 72, .pair = 3),
	N("nan_in_a_value", 2, 1, 4, 20, 16, 64, 64, 2, 1, 64, 64, .pair = 1, .flags = F16),
	N("graph", 2, 2, 2, 20, 16, 128, 64, 2, 1, 64, 64, .flags = GRAPH),
	N("persistent", 2, 2, 2, 20, 16, 128, 64, 2, 1, 64, 64, .flags = PERSISTENT),
	N("sms_24", 2, 1, 2, 20, 16, 64, 64, 2, 1, 64, 32, .sms = 24),
	N("gates_steep", 3, 1, 2, 9, 16, 64, 64, 1, 1, 64, 48, .flags = STEEP),
	N("inter_2112", 2, 1, 2, 9, 16, 64, 2112, 2, 1, 64, 32),
	/* the widest sums that batches of 1 and 2 may have, and the widest of all */
	N("hidden_8192", 2, 1, 1, 9, 16, 8192, 64, 1, 1, 64, 16),
	N("hidden_4096_f16", 3, 1, 2, 9, 16, 4096, 64, 1, 1, 64, 24, .flags = F16 | BIAS_O),
	N("hidden_16384", 2, 1, 2, 3, 16, 16384, 64, 1, 1, 64, 16),
	/* the logits of a rank exceed a mailbox */
	N("vocab_66000", 2, 1, 8, 3, 16, 64, 64, 1, 1, 64, 66000, .flags = TIED),
	TROUBLE("absent_of_2", 2, ABSENT), TROUBLE("absent_of_3", 3, ABSENT),
	TROUBLE("abort_of_2", 2, ABORT), TROUBLE("abort_of_3", 3, ABORT),
	TROUBLE("killed_of_2", 2, KILLED), TROUBLE("killed_of_3", 3, KILLED),
	/* a layer, and the share that one of two ranks has */
	N("layer_llama3_8b_b1_kv1024", 2, 1, 1, 1024, 16, 4096, 7168, 16, 4, 128, 4096,
	  .flags = DEVICE | PERSISTENT),
	N("layer_llama3_8b_b2_kv777", 2, 1, 2, 777, 16, 4096, 7168, 16, 4, 128, 4096,
	  .flags = DEVICE | PERSISTENT | PAGED_RAGGED),
	N("layers_llama3_8b_b1_kv9001_f16", 2, 2, 1, 9001, 16, 4096, 7168, 16, 4, 128, 4096,
	  .flags = DEVICE | PERSISTENT | F16),
	N("layer_llama3_70b_b1_kv1024", 2, 1, 1, 1024, 16, 8192, 14336, 32, 4, 128, 4096,
	  .flags = DEVICE | PERSISTENT),
	N("layers_llama32_1b_b2_kv300", 2, 4, 2, 300, 16, 2048, 4096, 16, 4, 64, 4096,
	  .flags = DEVICE | PERSISTENT | SAMPLE),
	N("layer_qwen2_7b_b1_kv1024", 2, 1, 1, 1024, 16, 3584, 9472, 14, 2, 128, 4096,
	  .flags = DEVICE | PERSISTENT | BIAS),
};

static const struct step_shape flavours[] = {
	{ .layers = 2, .batch = 3, .kv = 20, .page = 16, .hidden = 128, .inter = 64, .hq = 2, .hkv = 1,
	  .dim = 64, .vocab = 24, .flags = BIAS | BIAS_O | PAGED_RAGGED },
	{ .layers = 1, .batch = 1, .kv = 33, .page = 3, .hidden = 192, .inter = 128, .hq = 4, .hkv = 2,
	  .dim = 128, .vocab = 40, .flags = F16 | SAMPLE },
	{ .layers = 3, .batch = 2, .kv = 17, .page = 1, .hidden = 64, .inter = 64, .hq = 1, .hkv = 1,
	  .dim = 64, .vocab = 8, .flags = GAPS | PAGED_RAGGED | ALIAS },
};

#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_GRID	(CAIRN_COMM_MAX_RANKS * (int)ARRAY_SIZE(flavours))
#define FIRST_ENDS	(NUM_NAMED + NUM_GRID)
#define NUM_ENDS	43
#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

enum {
	ENDS_BATCH, ENDS_HEADS, ENDS_SIZES, ENDS_PAGE, ENDS_RANKS, ENDS_SHIFT, ENDS_TYPE, ENDS_FORM,
	ENDS_BIAS, ENDS_VOCAB, NUM_ENDS_FACTORS
};

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { 8, 5, 4, 4, 4, 4, 4, 3, 3, 3 },
};

static void ends_at(int i, struct shape *s)
{
	static const int ranks[] = { 2, 3, 4, 5 }, pages[] = { 16, 1, 64, 3 }, vocab[] = { 8, 24, 72 };
	static const int heads[][2] = { { 1, 1 }, { 3, 3 }, { 6, 3 }, { 8, 1 }, { 5, 1 } };
	static const int sizes[][2] = { { 64, 64 }, { 192, 64 }, { 64, 192 }, { 320, 128 } };
	static const unsigned forms[] = { 0, GRAPH, PERSISTENT }, biases[] = { 0, BIAS, BIAS | BIAS_O };
	/* the lengths of a case begin anywhere in the first part */
	static const int lens[] = { 17, 64, 33, 1, 65, 15, 129, 63, 16, 17, 1, 64, 33, 65 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){ .ranks = ranks[level[ENDS_RANKS]], .step = {
		.ends = 1, .layers = 1 + level[ENDS_TYPE] / 2, .batch = 1 + level[ENDS_BATCH],
		.kv_lens = lens + 2 * level[ENDS_SHIFT], .page = pages[level[ENDS_PAGE]],
		.hidden = sizes[level[ENDS_SIZES]][0], .inter = sizes[level[ENDS_SIZES]][1],
		.hq = heads[level[ENDS_HEADS]][0], .hkv = heads[level[ENDS_HEADS]][1], .dim = 64,
		.flags = (level[ENDS_TYPE] % 2 ? F16 : 0) | forms[level[ENDS_FORM]] |
			 biases[level[ENDS_BIAS]],
	} };
	s->step.kv = s->step.kv_lens[0];
	s->step.vocab = s->ranks * vocab[level[ENDS_VOCAB]];
}

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, ranks, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct shape, step.layers, 1, 4, 1),
	CAIRN_DRAW_SIZE(struct shape, step.batch, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct shape, step.kv, 1, 600, 1),
	CAIRN_DRAW_SIZE(struct shape, step.page, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, step.hidden, 64, 8192, 64),
	CAIRN_DRAW_SIZE(struct shape, step.inter, 64, 1024, 64),
	CAIRN_DRAW_SIZE(struct shape, step.hkv, 1, 4, 1),
	CAIRN_DRAW_SIZE(struct shape, step.hq, 1, 8, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, step.dim, 64, 128),
	CAIRN_DRAW_SIZE(struct shape, step.vocab, 8, 800, 8),	/* of a rank, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, BIAS, BIAS_O, BIAS | BIAS_O),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, GAPS),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, SAMPLE),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, GRAPH, PERSISTENT),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, 0, 0, ALIAS, TIED, NO_TOKENS),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, PAGED_RAGGED),
	CAIRN_DRAW_ONE_OF(struct shape, step.flags, 0, 0, PAGED_PADDED, PAGED_SPARE),
};

static int allowed(void *shape, int room)
{
	struct shape *of = shape;
	struct step_shape *s = &of->step;
	int64_t n = (int64_t)of->ranks * of->ranks;	/* each rank's process judges the whole model */

	s->hq *= s->hkv;
	s->vocab *= of->ranks;
	return s->batch * s->hidden <= 32768 &&
	       n * s->batch * s->layers * s->hidden * (s->hq * s->dim + 3 * s->inter) <= room * 2000000 &&
	       n * s->hidden * s->vocab <= room * 400000 &&
	       n * s->layers * s->batch * (s->kv + s->page) * s->hkv * s->dim <= room * 300000 &&
	       n * s->layers * s->batch * s->kv * s->hq * s->dim <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 300, .few = 1,
};

static void shape_at(int i, struct shape *s)
{
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, s);
	} else if (i >= FIRST_ENDS) {
		ends_at(i - FIRST_ENDS, s);
	} else if (i >= NUM_NAMED) {
		i -= NUM_NAMED;
		*s = (struct shape){ .ranks = i / (int)ARRAY_SIZE(flavours) + 1,
				     .step = flavours[i % (int)ARRAY_SIZE(flavours)] };
		s->step.vocab *= s->ranks;
	} else {
		*s = named[i];
	}
}

static int32_t ranks(int i)
{
	struct shape s;

	shape_at(i, &s);
	return s.ranks;
}

static enum cairn_trouble trouble(int i)
{
	struct shape s;

	shape_at(i, &s);
	return s.trouble;
}

static unsigned kinds_of(int i, const struct shape *s)
{
	/* a rank is held in the middle of a copy with NORMAL alone, which takes long */
	if (i >= FIRST_ENDS && i < NUM_CASES)
		return CAIRN_KIND_BIT((i - FIRST_ENDS) % 4 ? CAIRN_KIND_POISON : CAIRN_KIND_NORMAL);
	if (i >= NUM_CASES || s->trouble || s->step.flags & (DEVICE | STEEP) || s->step.hidden > 512 ||
	    s->step.vocab > 60000)
		return CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (s->step.pair)
		return CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s->step.name)
		return CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	return CAIRN_KIND_BIT((i - NUM_NAMED) % CAIRN_NUM_KINDS);
}

static void describe(int i, struct cairn_case *c)
{
	double weights, kv;
	struct step_shape s;
	struct shape of;

	shape_at(i, &of);
	s = of.step;
	if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%sn%d_l%d_b%d_kv%d_p%d_h%d_i%d_q%d_%d_d%d_v%d_%s%s%s%s%s",
			 s.ends ? "ends_" : "", of.ranks, s.layers, s.batch, s.kv, s.page, s.hidden, s.inter,
			 s.hq, s.hkv, s.dim, s.vocab, s.flags & F16 ? "f16" : "bf16",
			 s.flags & BIAS ? "_bias" : "", s.flags & SAMPLE ? "_sample" : "",
			 s.flags & GAPS ? "_gaps" : "",
			 s.flags & GRAPH ? "_graph" : s.flags & PERSISTENT ? "_persistent" : "");
	c->device_only = !!(s.flags & DEVICE);
	c->kinds = kinds_of(i, &of);
	weights = s.layers * (double)s.hidden * (2.0 * s.hq * s.dim + 2.0 * s.hkv * s.dim + 3.0 * s.inter) +
		  (double)s.vocab / of.ranks * s.hidden;
	kv = (double)s.layers * s.batch * s.kv * s.dim;
	c->bytes = 2 * (weights + kv * 2 * s.hkv);
	c->flops = 2 * (s.batch * weights + 2 * kv * s.hq);
}

static void setup(struct cairn_op *op)
{
	struct shape s;

	shape_at(op->case_index, &s);
	step_setup_shape(op, &s.step);
}

static int exact_ranks(const void *const *args, int32_t rank, struct cairn_exact *exact)
{
	return cairn_decode_step_ranks_exact((const struct cairn_decode_step_ranks_args *const *)args, rank,
					     exact);
}

/* Bad arguments of decode_step, and what ranks add. Both ranks make each of these calls. */
static const char *reject(void *args, int i, int *want)
{
	struct cairn_decode_step_ranks_args *a = args;

	if (i < NUM_STEP_REJECTS) {
		const char *name = step_reject(args, i, want);

		if (a->step.kv_lora_rank > 0 || a->step.num_experts > 0)
			*want = -EOPNOTSUPP;
		return name;
	}
	*want = i < NUM_STEP_REJECTS + 8 ? -EINVAL : -EOPNOTSUPP;
	switch (i - NUM_STEP_REJECTS) {
	case 0: a->step.size = sizeof(a->step); return "size_of_decode_step";
	case 1: a->comm.handle = NULL; return "no_comm";
	case 2: a->comm.rank = a->comm.ranks; return "rank_too_large";
	case 3: a->comm.rank = -1; return "rank_negative";
	case 4: a->comm.rank ^= 1; return "other_rank";
	case 5: a->comm.ranks++; return "more_ranks";
	case 6: a->comm.ranks = 0; return "ranks_0";
	case 7: a->comm.rank = 1; a->step.b_o = a->step.w_o; return "b_o_on_rank_1";
	case 8: a->comm.ranks = 9; return "ranks_9";
	case 9: a->step.vocab = 40; return "vocab_40_of_2";
	}
	return NULL;
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_decode_step_ranks_family = {
	.stage = "fused", .name = "decode_step_ranks",
	.op = offsetof(struct cairn_impl, decode_step_ranks),
	.workspace_op = offsetof(struct cairn_impl, decode_step_ranks_workspace),
	.args_size = sizeof(struct cairn_decode_step_ranks_args),
	.sms_field = STEP_FIELD(sms), .workspace_field = STEP_FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.zeroed_workspace = 1, .refuses_small_workspace = 1,
	.may_alias = { { STEP_FIELD(tokens), STEP_FIELD(ids) } },
	.company = { .rows = STEP_FIELD(kv.batch), .in = { STEP_FIELD(ids) },
		     .out = { STEP_FIELD(logits), STEP_FIELD(tokens) } },
	.form = step_form,
	.describe = describe, .setup = setup, .judge = step_judge, .reject = reject, .relist = step_relist,
	.comm_field = COMM_FIELD, .agree = { STEP_FIELD(logits), STEP_FIELD(tokens) },
	.ranks = ranks, .exact_ranks = exact_ranks, .trouble = trouble,
	.cost_s = 15, .cheap_factor = 2,
};
