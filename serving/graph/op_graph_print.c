// SPDX-License-Identifier: Apache-2.0
/* op_graph_print - prints a graph as text: one line per value, then one per operation */
#include "serving/graph/op_graph.h"

const char *cairn_op_kind_name(enum cairn_op_kind kind)
{
	static const char *const names[CAIRN_NUM_OP_KINDS] = {
		"embedding", "norm", "add_norm", "gemm", "lm_head", "rope", "kv_append", "attn", "silu_mul",
		"gelu_mul", "moe", "mla_append", "mla", "pick_rows", "softcap", "gather",
	};

	return names[kind];
}

const char *cairn_value_kind_name(enum cairn_value_kind kind)
{
	static const char *const names[CAIRN_NUM_VALUE_KINDS] = {
		"input", "weight", "cache", "activation", "scratch", "output",
	};

	return names[kind];
}

const char *cairn_dim_name(enum cairn_dim dim)
{
	static const char *const names[CAIRN_NUM_DIMS] = {
		"one", "hidden", "head", "q", "kv", "qkv", "attn", "inter", "gate_up", "q_lora", "latent",
		"kv_lora", "kv_b", "experts", "expert_inter", "shared_inter", "vocab", "heads", "cache",
		"expert_gate_up", "shared_gate_up", "per_token", "head_vocab", "two_hidden",
	};

	return names[dim];
}

const char *cairn_rows_name(enum cairn_rows rows)
{
	static const char *const names[CAIRN_NUM_ROWS] = { "", "tokens", "logits", "requests", "cached" };

	return names[rows];
}

const char *cairn_value_role_name(enum cairn_value_role role)
{
	static const char *const names[CAIRN_NUM_ROLES] = {
		"activation", "weight", "matrix", "cache", "logits", "index",
	};

	return names[role];
}

static void print_value(const struct cairn_op_graph *g, int32_t id, FILE *file)
{
	const struct cairn_graph_value *v = &g->values[id];
	const enum cairn_dim dims[] = { v->shape.num, v->shape.height, v->shape.width };
	const char *between = *cairn_rows_name(v->shape.rows) ? ", " : "";

	fprintf(file, "%s %s [%s", cairn_value_kind_name(v->kind), v->name,
		cairn_rows_name(v->shape.rows));
	for (int i = 0; i < 3; i++) {
		if (dims[i] == CAIRN_D_ONE)
			continue;
		fprintf(file, "%s%s", between, cairn_dim_name(dims[i]));
		between = ", ";
	}
	fprintf(file, "] %s\n", cairn_value_role_name(v->role));
}

static void print_op(const struct cairn_op_graph *g, const struct cairn_graph_op *op, FILE *file)
{
	for (int32_t i = 0; i < op->num_out; i++) {
		fprintf(file, "%s%s", i ? ", " : "", g->values[op->out[i]].name);
		if (op->overwrites[i])
			fprintf(file, "@%s", g->values[op->in[op->overwrites[i] - 1]].name);
	}
	fprintf(file, " = %s(", cairn_op_kind_name(op->kind));
	for (int32_t i = 0; i < op->num_in; i++)
		fprintf(file, "%s%s", i ? ", " : "", g->values[op->in[i]].name);
	for (int32_t i = 0; i < op->num_weights; i++)
		fprintf(file, "%s%s", i ? ", " : "; ", g->values[op->weights[i]].name);
	fprintf(file, ")%s", op->forwards ? " forwards" : "");
	if (op->window)
		fprintf(file, " window %d", op->window);
	fprintf(file, "  # %s\n", op->name);
}

void cairn_op_graph_print(const struct cairn_op_graph *g, FILE *file)
{
	for (int32_t v = 0; v < g->num_values; v++)
		print_value(g, v, file);
	for (int32_t o = 0; o < g->num_ops; o++)
		print_op(g, &g->ops[o], file);
}
