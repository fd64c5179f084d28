// SPDX-License-Identifier: Apache-2.0
/* buffers_test - activations that are needed at the same time never share memory */
#include "conformance/harness.h"
#include "serving/graph/buffers.h"
#include "serving/graph/op_graph_test.h"

/* Returns the bytes of a layout in which each kind of activation has one buffer, shared by all layers. */
static int64_t separate_bytes(const struct subject *s, const struct cairn_pass_sizes *sizes)
{
	const struct cairn_model_config *c = &s->c;
	int dense = !c->experts.num_experts || c->experts.dense_layers;
	const enum cairn_dim latent[] = { CAIRN_D_Q, CAIRN_D_LATENT, CAIRN_D_Q_LORA };
	int64_t width = 3 * (int64_t)c->hidden_size + s->dims[CAIRN_D_ATTN];

	for (int i = 0; i < 3 && c->latent.kv_lora_rank; i++)
		width += s->dims[latent[i]];
	width += c->latent.kv_lora_rank ? 0 : s->dims[CAIRN_D_QKV];
	width += dense ? s->dims[CAIRN_D_GATE_UP] + s->dims[CAIRN_D_INTER] : 0;
	return 2 * (sizes->num_tokens * width + sizes->num_logits * 2 * c->hidden_size);
}

/* Returns whether operation o is a product that may compute the activation after it, too. */
static int before_activation(const struct cairn_op_graph *g, int32_t o)
{
	return o + 1 < g->num_ops && g->ops[o].kind == CAIRN_OP_GEMM &&
	       g->ops[o + 1].kind == CAIRN_OP_SILU_MUL && g->ops[o + 1].in[0] == g->ops[o].out[0];
}

/*
 * Returns the last operation that needs the value's memory: a reader of the value, or of a forwarded copy; or
 * the activation whose result such a reader may write.
 */
static int32_t needed_until(const struct cairn_op_graph *g, int32_t v)
{
	int32_t last = g->values[v].producer;

	for (int32_t o = 0; o < g->num_ops; o++) {
		for (int32_t i = 0; i < g->ops[o].num_in; i++) {
			if (g->ops[o].in[i] != v)
				continue;
			last = o + before_activation(g, o) > last ? o + before_activation(g, o) : last;
			if (g->ops[o].kind == CAIRN_OP_PICK_ROWS && i == 0) {
				int32_t more = needed_until(g, g->ops[o].out[0]);

				last = more > last ? more : last;
			}
		}
	}
	return last;
}

static void judge_buffers(struct cairn_test *t, const struct subject *s, int64_t tokens, int64_t logits)
{
	struct cairn_pass_sizes sizes = {
		.dims = s->dims, .num_tokens = tokens, .num_logits = logits,
		.element = { [CAIRN_ROLE_ACTIVATION] = 2, [CAIRN_ROLE_LOGITS] = 4 },
	};
	const struct cairn_op_graph *g = s->g;
	int32_t *last = calloc((size_t)g->num_values, sizeof(*last));
	struct cairn_buffers b = { 0 };
	int overlaps = 0;

	if (!EXPECT(t, cairn_buffers_place(&b, g, &sizes) == 0))
		return;
	for (int32_t v = 0; v < g->num_values; v++) {
		const struct cairn_graph_value *value = &g->values[v];

		last[v] = b.offset[v] < 0 ? -1 : needed_until(g, v);
		EXPECT(t, b.offset[v] < 0 || (b.offset[v] % CAIRN_BUFFER_ALIGNMENT == 0 &&
			  b.offset[v] + cairn_value_bytes(value, &sizes) <= b.bytes));
		if (value->kind == CAIRN_VALUE_SCRATCH || value->kind == CAIRN_VALUE_ACTIVATION)
			EXPECT(t, b.offset[v] >= 0 || value->role == CAIRN_ROLE_LOGITS);
		else
			EXPECT(t, b.offset[v] < 0);
	}
	for (int32_t v = 0; v < g->num_values; v++) {
		const struct cairn_graph_value *x = &g->values[v];

		for (int32_t u = 0; u < v && b.offset[v] >= 0; u++) {
			const struct cairn_graph_value *y = &g->values[u];
			int in_place = y->storage == x->storage;
			int64_t x_end = b.offset[v] + cairn_value_bytes(x, &sizes);
			int64_t y_end = b.offset[u] + cairn_value_bytes(y, &sizes);

			if (b.offset[u] < 0 || last[v] < y->producer || last[u] < x->producer)
				continue;
			/*
			 * Both values are live at once. They may share memory only in place: the operation
			 * that computes x is then the last reader of y.
			 */
			if (in_place)
				overlaps += b.offset[u] != b.offset[v] || last[u] != x->producer;
			else
				overlaps += b.offset[v] < y_end && b.offset[u] < x_end;
		}
	}
	EXPECT(t, overlaps == 0);
	/* The heuristic reaches the minimum for all published shapes. */
	EXPECT(t, b.least <= b.bytes && b.bytes <= separate_bytes(s, &sizes));
	EXPECT(t, b.bytes == b.least || strstr(s->name, "_tiny"));
	cairn_note(t, "%s, %d tokens, %d logits: %lld bytes; each kind on its own %lld", s->name,
		   (int)tokens, (int)logits, (long long)b.bytes,
		   (long long)separate_bytes(s, &sizes));
	free(last);
	cairn_buffers_free(&b);
}

static void buffers_do_not_overlap(struct cairn_test *t)
{
	struct subject s[NUM_MODELS];
	int num = open_subjects(t, s);

	for (int i = 0; i < num; i++) {
		if (!s[i].g)
			continue;
		judge_buffers(t, &s[i], 1024, 64);
		judge_buffers(t, &s[i], 128, 128);
		judge_buffers(t, &s[i], 8, 0);
	}
	close_subjects(s, num);
}

static const struct cairn_unit units[] = {
	{ "buffers_do_not_overlap", buffers_do_not_overlap },
};

const struct cairn_family cairn_buffers_family = {
	.stage = "serving",
	.name = "buffers",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
