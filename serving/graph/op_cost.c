// SPDX-License-Identifier: Apache-2.0
/* op_cost - bytes and flops of operations; the rules are in op_cost.h */
#include "serving/graph/op_cost.h"

#include <math.h>

static int64_t rows_of(enum cairn_rows rows, const struct cairn_pass_sizes *s)
{
	int64_t sum = 0;

	switch (rows) {
	case CAIRN_ROWS_TOKENS:
		return s->num_tokens;
	case CAIRN_ROWS_LOGITS:
		return s->num_logits;
	case CAIRN_ROWS_REQUESTS:
		return s->num_requests;
	case CAIRN_ROWS_CACHE:
		for (int32_t i = 0; i < s->num_requests; i++)
			sum += s->kv_len[i];
		return sum;
	default:
		return 1;
	}
}

/* Elements of one row. */
static int64_t row_elements(const struct cairn_graph_value *v, const struct cairn_pass_sizes *s)
{
	return (int64_t)s->dims[v->shape.num] * s->dims[v->shape.height] * s->dims[v->shape.width];
}

int64_t cairn_value_bytes(const struct cairn_graph_value *v, const struct cairn_pass_sizes *s)
{
	return rows_of(v->shape.rows, s) * row_elements(v, s) * s->element[v->role];
}

/* Returns how many cached tokens a request's attention reads: the union of its tokens' windows. */
static int64_t keys_read(int64_t qo_len, int64_t kv_len, int64_t window)
{
	int64_t most = window ? window + qo_len - 1 : kv_len;

	return !qo_len ? 0 : most < kv_len ? most : kv_len;
}

/* Returns the sum over a request's tokens of the keys that each attends to: min(position + 1, window). */
static int64_t pairs(int64_t qo_len, int64_t kv_len, int64_t window)
{
	int64_t first = kv_len - qo_len, full;	/* tokens at positions below `full` see all earlier keys */

	if (!window || window >= kv_len)
		return qo_len * first + qo_len * (qo_len + 1) / 2;
	full = window < first ? first : window;
	return (full - first) * first + (full - first) * (full - first + 1) / 2 + (kv_len - full) * window;
}

static int64_t sum_of(int64_t (*fn)(int64_t, int64_t, int64_t), int32_t window,
		      const struct cairn_pass_sizes *s)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < s->num_requests; i++)
		sum += fn(s->qo_len[i], s->kv_len[i], window);
	return sum;
}

/* Returns the expected share of experts that at least one token chooses. */
static double chosen_share(const struct cairn_pass_sizes *s)
{
	double one = (double)s->dims[CAIRN_D_PER_TOKEN] / s->dims[CAIRN_D_EXPERTS];

	return 1 - pow(1 - one, (double)s->num_tokens);
}

/* Returns the bytes of in[i] that the operation reads or, if `written`, of out[i] that it writes. */
static int64_t touched(const struct cairn_op_graph *g, const struct cairn_graph_op *op, int32_t i,
		       int written, const struct cairn_pass_sizes *s)
{
	const struct cairn_graph_value *v = &g->values[written ? op->out[i] : op->in[i]];
	const int32_t *d = s->dims;
	int64_t element = s->element[v->role], rows = s->num_tokens;
	int attends = op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA;

	if (v->kind == CAIRN_VALUE_CACHE) {
		if (attends)
			rows = sum_of(keys_read, op->window, s);
		return attends || written ? rows * row_elements(v, s) * element : 0;
	}
	if (v->role == CAIRN_ROLE_ACTIVATION && !i) {
		if (op->kind == CAIRN_OP_ROPE)
			return rows * (d[CAIRN_D_Q] + d[CAIRN_D_KV]) * element;
		if (op->kind == CAIRN_OP_KV_APPEND)
			return rows * 2 * d[CAIRN_D_KV] * element;
		if (op->kind == CAIRN_OP_ATTN && !written)
			return rows * d[CAIRN_D_Q] * element;
		if (op->kind == CAIRN_OP_MLA_APPEND)
			return rows * d[CAIRN_D_HEADS] * (d[CAIRN_D_LATENT] - d[CAIRN_D_KV_LORA]) * element;
		if (op->kind == CAIRN_OP_PICK_ROWS)
			return s->num_logits * row_elements(v, s) * element;
	}
	return cairn_value_bytes(v, s);
}

static int64_t weight_bytes(const struct cairn_graph_value *w, const struct cairn_graph_op *op,
			    const struct cairn_pass_sizes *s)
{
	if (op->kind == CAIRN_OP_EMBEDDING)
		return s->num_tokens * s->dims[w->shape.width] * s->element[w->role];
	if (w->weight == CAIRN_W_EXPERTS_GATE_UP || w->weight == CAIRN_W_EXPERTS_DOWN)
		return llround(chosen_share(s) * (double)cairn_value_bytes(w, s));
	if (w->weight == CAIRN_W_ROUTE_BIAS || w->weight == CAIRN_W_SINKS)
		return s->dims[w->shape.width] * (int64_t)sizeof(float);
	return cairn_value_bytes(w, s);
}

/* Returns the flops of one token in a layer's MoE: router, chosen experts and shared experts. */
static int64_t moe_flops(const int32_t *d)
{
	int64_t one = d[CAIRN_D_EXPERT_GATE_UP] + d[CAIRN_D_EXPERT_INTER];
	int64_t shared = d[CAIRN_D_SHARED_GATE_UP] + d[CAIRN_D_SHARED_INTER];

	return 2 * (int64_t)d[CAIRN_D_HIDDEN] * (d[CAIRN_D_EXPERTS] + d[CAIRN_D_PER_TOKEN] * one + shared);
}

static int64_t flops_of(const struct cairn_op_graph *g, const struct cairn_graph_op *op,
			const struct cairn_pass_sizes *s)
{
	const struct cairn_graph_value *out = &g->values[op->out[0]];
	const int32_t *d = s->dims;

	switch (op->kind) {
	case CAIRN_OP_GEMM:
	case CAIRN_OP_LM_HEAD:
		return 2 * rows_of(out->shape.rows, s) * row_elements(out, s) *
		       row_elements(&g->values[op->in[0]], s);
	case CAIRN_OP_ATTN:
		return 2 * sum_of(pairs, op->window, s) * (d[CAIRN_D_Q] + d[CAIRN_D_ATTN]);
	case CAIRN_OP_MLA:
		return 2 * sum_of(pairs, op->window, s) * d[CAIRN_D_HEADS] *
			       (d[CAIRN_D_LATENT] + d[CAIRN_D_KV_LORA]) +
		       2 * s->num_tokens * d[CAIRN_D_KV_B] * d[CAIRN_D_KV_LORA];
	case CAIRN_OP_MOE:
		return s->num_tokens * moe_flops(d);
	default:
		return 0;
	}
}

struct cairn_op_cost cairn_op_cost(const struct cairn_op_graph *g, int32_t id,
				   const struct cairn_pass_sizes *s)
{
	const struct cairn_graph_op *op = &g->ops[id];
	struct cairn_op_cost cost = { 0, 0 };

	if (op->block == CAIRN_BLOCK_HEAD && !s->num_logits)
		return cost;
	for (int32_t i = 0; i < op->num_in; i++)
		cost.bytes += touched(g, op, i, 0, s);
	for (int32_t i = 0; i < op->num_out; i++)
		cost.bytes += touched(g, op, i, 1, s);
	for (int32_t i = 0; i < op->num_weights; i++)
		cost.bytes += weight_bytes(&g->values[op->weights[i]], op, s);
	cost.flops = flops_of(g, op, s);
	return cost;
}
