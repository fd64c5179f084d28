// SPDX-License-Identifier: Apache-2.0
/* op_graph_bad_test - malformed graphs are refused with an error that names the value or the operation */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/graph/op_graph.h"

enum { IN, W, A, B, C, D, OUT, NUM_V };

/* Values: in, w, a, b, c, d, out. Each of ops[] is { from, to, overwrites }; from -1 ends the list. */
struct chain {
	const char *what;
	int ops[6][3];
	const char *says;
	int output;	/* another value that is an output, or 0 */
};

static int build_chain(struct cairn_op_graph **out, const struct chain *c, const char *name_of_d)
{
	const char *names[NUM_V] = { "in", "w", "a", "b", "c", name_of_d, "out" };
	struct cairn_op_graph *g;
	int ret;

	CAIRN_TRY(cairn_op_graph_create(&g));
	for (int v = 0; v < NUM_V; v++) {
		struct cairn_graph_value value = {
			.kind = v == IN ? CAIRN_VALUE_INPUT : v == W ? CAIRN_VALUE_WEIGHT :
				v == OUT || (v && v == c->output) ? CAIRN_VALUE_OUTPUT :
				CAIRN_VALUE_ACTIVATION,
			.shape = { .rows = CAIRN_ROWS_TOKENS, .width = v == C ? CAIRN_D_Q : CAIRN_D_HIDDEN },
		};

		snprintf(value.name, sizeof(value.name), "%s", names[v]);
		cairn_op_graph_value(g, &value);
	}
	for (int o = 0; o < 6 && c->ops[o][0] >= 0; o++) {
		struct cairn_graph_op op = {
			.kind = CAIRN_OP_NORM, .num_in = 1, .in = { c->ops[o][0] }, .num_out = 1,
			.out = { c->ops[o][1] }, .overwrites = { c->ops[o][2] }, .num_weights = 1,
			.weights = { W },
		};

		snprintf(op.name, sizeof(op.name), "op%d", o);
		cairn_op_graph_op(g, &op);
	}
	ret = cairn_op_graph_finish(g);
	if (ret)
		cairn_op_graph_destroy(g);
	else
		*out = g;
	return ret;
}

static void malformed_graphs_are_refused(struct cairn_test *t)
{
	static const struct chain good = {
		.what = "good", .ops = { { IN, A }, { A, B }, { B, C }, { C, D }, { D, OUT }, { -1 } },
	};
#define BAD(...)	.ops = { __VA_ARGS__, { -1 } }
	static const struct chain bad[] = {
		{ .what = "defined twice",
		  .ops = { { IN, A }, { A, B }, { B, C }, { C, D }, { D, OUT }, { C, B } },
		  .says = "value 'b' is defined twice, by 'op1' and by 'op5'" },
		{ .what = "late", BAD({ IN, A }, { B, C }, { A, B }, { C, D }, { D, OUT }),
		  .says = "value 'b' is used by 'op1' before 'op2' defines it" },
		{ .what = "a cycle", BAD({ IN, A }, { D, B }, { B, C }, { C, D }, { A, OUT }),
		  .says = "is part of a cycle" },
		{ .what = "of itself", BAD({ IN, A }, { A, B }, { C, C }, { B, D }, { D, OUT }),
		  .says = "value 'c' is part of a cycle" },
		{ .what = "never defined", BAD({ IN, A }, { A, B }, { C, D }, { D, OUT }), .output = B,
		  .says = "value 'c', which 'op2' reads, is not defined" },
		{ .what = "never read", BAD({ IN, A }, { A, B }, { B, C }, { B, D }, { D, OUT }),
		  .says = "nothing reads value 'c'" },
		{ .what = "unknown", BAD({ IN, A }, { 99, B }, { B, C }, { C, D }, { D, OUT }),
		  .says = "'op1': input 0 is value number 99, which is unknown" },
		{ .what = "to the input", BAD({ A, IN }), .says = "'op0' writes value 'in', which is input" },
		{ .what = "weight as input", BAD({ W, A }, { A, OUT }),
		  .says = "'op0' reads the weight 'w' as a value" },
		{ .what = "in place of input", BAD({ IN, A, 1 }, { A, B }, { B, C }, { C, D }, { D, OUT }),
		  .says = "'op0' overwrites value 'in', an input of the pass" },
		{ .what = "other shape", BAD({ IN, A }, { A, B }, { B, C, 1 }, { C, D }, { D, OUT }),
		  .says = "'op2': value 'c' does not have the shape of 'b'" },
		{ .what = "no such input", BAD({ IN, A }, { A, B, 2 }, { B, C }, { C, D }, { D, OUT }),
		  .says = "stores value 'b' in place of input 1" },
		{ .what = "overwritten", BAD({ IN, A }, { A, B, 1 }, { B, C }, { A, D }, { C, OUT }),
		  .output = D,
		  .says = "value 'a' is overwritten by 'op1' before 'op3' reads it" },
	};
	struct cairn_op_graph *g = NULL;

	EXPECT(t, build_chain(&g, &good, "d") == 0);
	EXPECT(t, cairn_op_graph_finish(g) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "is finished already");
	cairn_op_graph_destroy(g);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		cairn_note(t, "%s", bad[i].what);
		if (EXPECT(t, build_chain(&g, &bad[i], "d") == -EINVAL))
			EXPECT_CONTAINS(t, cairn_last_error(), bad[i].says);
	}
	EXPECT(t, build_chain(&g, &good, "a") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "value 'a' is declared twice");
	EXPECT(t, build_chain(&g, &good, "") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "value 5 has no name");
}

static void malformed_values_are_refused(struct cairn_test *t)
{
	static const struct { struct cairn_graph_value value; const char *says; } bad[] = {
		{ { .kind = CAIRN_NUM_VALUE_KINDS }, "value 'v': kind: is 6, must be below 6" },
		{ { .role = CAIRN_NUM_ROLES }, "value 'v': role: is " },
		{ { .shape.rows = CAIRN_NUM_ROWS }, "value 'v': shape.rows: is " },
		{ { .shape.num = CAIRN_NUM_DIMS }, "value 'v': shape.num: is " },
		{ { .shape.height = CAIRN_NUM_DIMS }, "value 'v': shape.height: is " },
		{ { .shape.width = CAIRN_NUM_DIMS }, "value 'v': shape.width: is " },
		{ { .kind = CAIRN_VALUE_WEIGHT, .weight = CAIRN_NUM_WEIGHTS }, "value 'v': weight: is " },
		{ { .layer = -2 }, "value 'v': layer: is -2" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct cairn_graph_value value = bad[i].value;
		struct cairn_op_graph *g;

		if (!EXPECT(t, cairn_op_graph_create(&g) == 0))
			return;
		strcpy(value.name, "v");
		EXPECT(t, cairn_op_graph_value(g, &value) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].says);
		cairn_op_graph_destroy(g);
	}
}

static const struct cairn_unit units[] = {
	{ "malformed_graphs_are_refused", malformed_graphs_are_refused },
	{ "malformed_values_are_refused", malformed_values_are_refused },
};

const struct cairn_family cairn_op_graph_bad_family = {
	.stage = "serving",
	.name = "op_graph_bad",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
