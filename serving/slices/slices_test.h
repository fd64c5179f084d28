/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slices_test - random graphs with attention operators, for the tests of this folder
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_SLICES_TEST_H
#define CAIRN_SLICES_TEST_H

#include <stdio.h>
#include <string.h>

#include "serving/slices/slices_impl.h"

/* Dimensions get sizes at random, so that cheap and expensive values alternate. */
struct random_graph {
	struct cairn_op_graph *g;
	int32_t dims[CAIRN_NUM_DIMS], length;
	struct cairn_pass_sizes sizes;
	int32_t live[64], num_live;		/* activations, to choose inputs from */
	uint8_t read[256], gone[256];		/* [value]: has a reader; is overwritten */
	int32_t num_ops;
};

static inline int32_t add_value(struct random_graph *r, enum cairn_value_kind kind, enum cairn_dim width)
{
	struct cairn_graph_value v = {
		.kind = kind, .role = kind == CAIRN_VALUE_WEIGHT ? CAIRN_ROLE_WEIGHT :
			kind == CAIRN_VALUE_CACHE ? CAIRN_ROLE_CACHE : CAIRN_ROLE_ACTIVATION,
		.shape = { .rows = kind == CAIRN_VALUE_WEIGHT ? CAIRN_ROWS_ONE : CAIRN_ROWS_TOKENS,
			   .width = width },
		.layer = -1, .weight = kind == CAIRN_VALUE_WEIGHT ? CAIRN_W_O : CAIRN_W_NONE,
	};

	snprintf(v.name, sizeof(v.name), "v%d", r->g->num_values);
	return cairn_op_graph_value(r->g, &v);
}

static inline int32_t add_op(struct random_graph *r, struct cairn_graph_op op)
{
	snprintf(op.name, sizeof(op.name), "op%d", r->num_ops++);
	for (int32_t i = 0; i < op.num_in; i++)
		r->read[op.in[i]] = 1;
	return cairn_op_graph_op(r->g, &op);
}

static inline int32_t add_live(struct random_graph *r, enum cairn_dim width)
{
	int32_t v = add_value(r, CAIRN_VALUE_ACTIVATION, width);

	r->live[r->num_live++] = v;
	return v;
}

/* Returns a value that exists; prefers one without a reader. */
static inline int32_t pick(struct cairn_test *t, struct random_graph *r)
{
	int32_t v = -1;

	for (int tries = 0; tries < 100; tries++) {
		v = r->live[cairn_rand(t) % (uint64_t)r->num_live];
		if (!r->gone[v] && (!r->read[v] || cairn_rand(t) % 3 == 0))
			return v;
	}
	for (int32_t i = r->num_live - 1; r->gone[v]; i--)
		v = r->live[i];
	return v;
}

static inline enum cairn_dim some_width(struct cairn_test *t)
{
	static const enum cairn_dim widths[] = {
		CAIRN_D_HIDDEN, CAIRN_D_QKV, CAIRN_D_INTER, CAIRN_D_HEAD, CAIRN_D_QKV, CAIRN_D_LATENT,
	};

	return widths[cairn_rand(t) % ARRAY_SIZE(widths)];
}

/* The weight is value 0 and the paging value 1 of every random graph. */
static inline void add_plain(struct cairn_test *t, struct random_graph *r)
{
	int32_t x = pick(t, r), y = pick(t, r), out;

	switch (cairn_rand(t) % 3) {
	case 0:
		out = add_live(r, some_width(t));
		add_op(r, (struct cairn_graph_op){ .kind = CAIRN_OP_GEMM, .num_in = 1, .in = { x },
			.num_out = 1, .out = { out }, .num_weights = 1, .weights = { 0 } });
		break;
	case 1:
		out = add_live(r, r->g->values[x].shape.width);
		add_op(r, (struct cairn_graph_op){ .kind = CAIRN_OP_ROPE, .num_in = 2, .in = { x, y },
			.num_out = 1, .out = { out } });
		break;
	default:	/* the second result may take the storage of the second input */
		out = add_live(r, some_width(t));
		add_live(r, r->g->values[y].shape.width);
		add_op(r, (struct cairn_graph_op){ .kind = CAIRN_OP_ADD_NORM, .num_in = 2, .in = { x, y },
			.num_out = 2, .out = { out, out + 1 }, .num_weights = 1, .weights = { 0 },
			.overwrites = { 0, x != y && r->g->values[y].kind != CAIRN_VALUE_INPUT &&
				cairn_rand(t) % 2 ? 2 : 0 } });
		r->gone[y] |= r->g->ops[r->g->num_ops - 1].overwrites[1] > 0;
	}
}

static inline void add_attention(struct cairn_test *t, struct random_graph *r)
{
	int32_t q = pick(t, r), kv = cairn_rand(t) % 2 ? q : pick(t, r);
	int32_t before = add_value(r, CAIRN_VALUE_CACHE, CAIRN_D_CACHE);
	int32_t cache = add_value(r, CAIRN_VALUE_CACHE, CAIRN_D_CACHE), out = add_live(r, some_width(t));

	add_op(r, (struct cairn_graph_op){ .kind = CAIRN_OP_KV_APPEND, .num_in = 3, .in = { kv, before, 1 },
		.num_out = 1, .out = { cache }, .overwrites = { 2 } });
	add_op(r, (struct cairn_graph_op){ .kind = CAIRN_OP_ATTN, .num_in = 3, .in = { q, cache, 1 },
		.num_out = 1, .out = { out } });
}

/* Reads whatever nobody has read, so that the graph is well-formed. */
static inline void add_end(struct random_graph *r)
{
	for (;;) {
		int32_t x = -1, y = -1, out;

		for (int32_t i = 0; i < r->num_live; i++) {
			if (r->read[r->live[i]] || r->gone[r->live[i]])
				continue;
			y = x;
			x = r->live[i];
		}
		out = y >= 0 ? add_live(r, CAIRN_D_HEAD) : add_value(r, CAIRN_VALUE_OUTPUT, CAIRN_D_HEAD);
		add_op(r, (struct cairn_graph_op){ .kind = y >= 0 ? CAIRN_OP_ROPE : CAIRN_OP_SILU_MUL,
			.num_in = y >= 0 ? 2 : 1, .in = { x, y }, .num_out = 1, .out = { out } });
		if (y < 0)
			return;
	}
}

/* Makes a graph with attns attention operators and about `plain` other operations. */
static inline int open_random(struct cairn_test *t, struct random_graph *r, int attns, int plain)
{
	*r = (struct random_graph){ .length = 1 };
	for (int d = 1; d < CAIRN_NUM_DIMS; d++)
		r->dims[d] = 1 + (int32_t)(cairn_rand(t) % 6);
	r->dims[CAIRN_D_ONE] = 1;
	r->sizes = (struct cairn_pass_sizes){ .dims = r->dims, .qo_len = &r->length, .kv_len = &r->length,
		.num_requests = 1, .num_tokens = 1, .num_logits = 1 };
	memset(r->sizes.element, 1, sizeof(r->sizes.element));
	CAIRN_TRY(cairn_op_graph_create(&r->g));
	add_value(r, CAIRN_VALUE_WEIGHT, CAIRN_D_HIDDEN);
	add_value(r, CAIRN_VALUE_INPUT, CAIRN_D_ONE);
	r->live[r->num_live++] = add_value(r, CAIRN_VALUE_INPUT, CAIRN_D_HIDDEN);
	add_op(r, (struct cairn_graph_op){ .kind = CAIRN_OP_NORM, .num_in = 1, .in = { 2 }, .num_out = 1,
		.out = { add_live(r, CAIRN_D_HIDDEN) }, .num_weights = 1, .weights = { 0 } });
	while (attns || plain) {
		if (attns && cairn_rand(t) % (uint64_t)(attns + plain) < (uint64_t)attns) {
			add_attention(t, r);
			attns--;
		} else {
			add_plain(t, r);
			plain--;
		}
	}
	add_end(r);
	return cairn_op_graph_finish(r->g);
}

#endif
