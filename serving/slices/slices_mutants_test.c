// SPDX-License-Identifier: Apache-2.0
/* slices_mutants_test - cairn_slices_check() refuses slices that would not compute the graph */
#include "conformance/harness.h"
#include "serving/slices/slices.h"
#include "serving/graph/op_graph_test.h"

struct bent {
	struct cairn_op_graph *g;
	struct cairn_slices *s;
	struct cairn_slice_step *second;	/* the program of slice 1 */
};

static void swap(struct cairn_slice_step *a, struct cairn_slice_step *b)
{
	struct cairn_slice_step step = *a;

	*a = *b;
	*b = step;
}

/* Returns the first step of this kind in a program; OP: the one of the operation. */
static struct cairn_slice_step *find(struct cairn_slice_step *step, const struct bent *b,
				     enum cairn_step_kind kind, const char *op)
{
	while (step->kind != kind || (kind == CAIRN_STEP_OP && strcmp(b->g->ops[step->op].name, op)))
		step++;
	return step;
}

static void save_missing(struct bent *b)
{
	b->s->slices[0].num_saves = 0;
}

static void other_value_saved(struct bent *b)
{
	b->s->saves[b->s->slices[0].first_save] = cairn_op_graph_find(b->g, "layers.0.normed");
}

/* The addition of layer 1 writes over this value. */
static void saved_value_overwritten(struct bent *b)
{
	b->s->saves[b->s->slices[1].first_save] = cairn_op_graph_find(b->g, "layers.0.residual_mlp");
}

static void op_missing(struct bent *b)
{
	b->s->slices[b->s->num_slices - 1].num_steps--;
}

static void op_twice(struct bent *b)
{
	b->second[2] = b->second[1];
}

static void op_after_its_reader(struct bent *b)
{
	swap(&b->second[2], &b->second[3]);
}

static void reader_of_attention_before_it(struct bent *b)
{
	swap(&b->second[0], &b->second[1]);
}

/* The cut would separate the attention from nothing. */
static void attention_in_its_own_slice(struct bent *b)
{
	b->s->slices[0].num_steps++;
	b->s->slices[1].first_step++;
	b->s->slices[1].num_steps--;
}

static void queries_before_rotation(struct bent *b)
{
	struct cairn_slice_step *send = find(b->second, b, CAIRN_STEP_SEND_Q, "");

	swap(send, send - 1);
}

static void keys_before_rotation(struct bent *b)
{
	struct cairn_slice_step *send = find(b->second, b, CAIRN_STEP_SEND_KV, "");

	swap(send, send - 1);
}

static void queries_last(struct bent *b)
{
	swap(find(b->second, b, CAIRN_STEP_SEND_Q, ""), find(b->second, b, CAIRN_STEP_SEND_KV, ""));
}

static void queries_not_sent(struct bent *b)
{
	*find(b->second, b, CAIRN_STEP_SEND_Q, "") = b->second[1];
}

static void merged_twice(struct bent *b)
{
	b->second[1] = b->second[0];
}

static void other_attention_merged(struct bent *b)
{
	b->second[0].op = b->s->seams[1].attn;
}

static void keys_not_computed(struct bent *b)
{
	find(b->second, b, CAIRN_STEP_SEND_Q, "")[1].part = CAIRN_PART_Q;
}

static void product_of_parts(struct bent *b)
{
	find(b->second, b, CAIRN_STEP_OP, "layers.0.o_proj")->part = CAIRN_PART_Q;
}

/* The model worker has no cache. */
static void attention_at_the_model(struct bent *b)
{
	struct cairn_slice_step *send = find(b->second, b, CAIRN_STEP_SEND_KV, "");

	*send = (struct cairn_slice_step){ .op = b->s->seams[1].append };
}

#define MUTANT(fn, says)	{ #fn, fn, says }

static const struct mutant {
	const char *name;
	void (*bend)(struct bent *b);
	const char *says;
} mutants[] = {
	{ "none", NULL, NULL },
	MUTANT(save_missing, "layers.0.mlp_norm needs value 'embedded'"),
	MUTANT(other_value_saved, "needs value 'embedded'"),
	MUTANT(saved_value_overwritten, "its cut needs value 'layers.0.residual_mlp'"),
	MUTANT(op_missing, "does not run"),
	MUTANT(op_twice, "'layers.0.o_proj' runs twice"),
	MUTANT(op_after_its_reader, "layers.0.gate_up_proj needs value 'layers.0.mlp_normed'"),
	MUTANT(reader_of_attention_before_it, "layers.0.o_proj needs value 'layers.0.attn'"),
	MUTANT(attention_in_its_own_slice, "slice 0 merges 'layers.0.attn' out of turn"),
	MUTANT(queries_before_rotation, "send_q needs value 'layers.1.qkv_rotated'"),
	MUTANT(keys_before_rotation, "send_kv needs value 'layers.1.qkv_rotated'"),
	MUTANT(queries_last, "sends k and v of 'layers.1.attn' out of turn"),
	MUTANT(queries_not_sent, "'layers.0.o_proj' runs twice"),
	MUTANT(merged_twice, "merges 'layers.0.attn' out of turn"),
	MUTANT(other_attention_merged, "merges 'layers.1.attn' out of turn"),
	MUTANT(keys_not_computed, "'layers.1.qkv_proj' runs twice"),
	MUTANT(attention_at_the_model, "runs 'layers.1.kv_append', which belongs to the attention worker"),
	MUTANT(product_of_parts, "'layers.0.o_proj' cannot run in parts"),
};

static void refused(struct cairn_test *t)
{
	static const int32_t one = 1;
	struct cairn_pass_sizes sizes = { .qo_len = &one, .kv_len = &one, .num_requests = 1, .num_tokens = 1,
		.num_logits = 1 };
	struct subject s;

	memset(sizes.element, 2, sizeof(sizes.element));
	if (open_shape(t, &s, "llama3-8b"))
		return;
	sizes.dims = s.dims;
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		struct bent b = { .g = s.g };
		int ret;

		if (!EXPECT(t, cairn_slices_create(&b.s, s.g, &sizes) == 0))
			break;
		b.second = b.s->steps + b.s->slices[1].first_step;
		if (mutants[i].bend)
			mutants[i].bend(&b);
		ret = cairn_slices_check(b.s, s.g);
		if (!EXPECT(t, ret == (mutants[i].bend ? -EINVAL : 0)))
			cairn_note(t, "%s: returned %d", mutants[i].name, ret);
		if (mutants[i].says)
			EXPECT_CONTAINS(t, cairn_last_error(), mutants[i].says);
		cairn_slices_destroy(b.s);
	}
	cairn_op_graph_destroy(s.g);
}

static const struct cairn_unit units[] = {
	{ "refused", refused },
};

const struct cairn_family cairn_slices_mutants_family = {
	.stage = "serving", .name = "slices_mutants", .units = units, .num_units = ARRAY_SIZE(units),
};
