// SPDX-License-Identifier: Apache-2.0
/* pt2_test - the golden program: its graph, its sizes, its results, its cuts */
#include "conformance/harness.h"
#include "serving/pt2/pt2_eval.h"
#include "serving/pt2/pt2_test.h"

static int open_golden_program(struct cairn_test *t, struct cairn_pt2 **p, int64_t *symbols)
{
	char path[PATH_MAX];

	golden_pt2(path, "mixed.pt2");
	if (!EXPECT(t, cairn_pt2_open(p, path) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return -1;
	}
	cairn_pt2_symbols(*p, symbols);
	return 0;
}

static void graph(struct cairn_test *t)
{
	int64_t symbols[CAIRN_PT2_SYMBOLS], size[CAIRN_PT2_RANK], num;
	const struct cairn_pt2_value *v;
	struct cairn_pt2 *p;
	int attends = 0;

	if (open_golden_program(t, &p, symbols))
		return;
	EXPECT(t, p->num_inputs == 1 && p->num_outputs == 1 && p->exprs.num_symbols == 1);
	EXPECT(t, p->exprs.symbols[0].least == 2 && p->exprs.symbols[0].most == 64 && symbols[0] == 6);
	v = &p->values[p->inputs[0]];
	EXPECT(t, v->dtype == CAIRN_PT2_I64 && v->rank == 2 && v->kind == CAIRN_PT2_INPUT);
	symbols[0] = 11;
	EXPECT(t, cairn_pt2_shape(p, p->outputs[0], symbols, size, &num) == 0);
	EXPECT(t, num == 11 * 32 && size[0] == 1 && size[1] == 11 && size[2] == 32);
	for (int32_t n = 0; n < p->num_nodes; n++)
		attends += p->nodes[n].op->role == CAIRN_PT2_ATTENDS;
	EXPECT(t, attends == 2);
	cairn_pt2_close(p);
}

/* The whole program has PyTorch's results, and its slices have its bits. */
static void results(struct cairn_test *t)
{
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	struct cairn_pt2_slices *s = NULL;
	struct cairn_pt2 *p;
	char path[PATH_MAX];
	double worst = 1;

	if (open_golden_program(t, &p, symbols))
		return;
	golden_pt2(path, "mixed.json");
	if (!EXPECT(t, cairn_pt2_slices_create(&s, p, symbols) == 0) ||
	    !EXPECT(t, cairn_pt2_expect(p, s, path, &worst) == 0))
		cairn_note(t, "%s", cairn_last_error());
	cairn_note(t, "differs from PyTorch by %.2g of the largest result", worst);
	EXPECT(t, worst < 1e-6);
	golden_pt2(path, "mixed.pt2");
	EXPECT(t, cairn_pt2_expect(p, s, path, &worst) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "mixed.pt2: is no list of ids and logits");
	cairn_pt2_slices_destroy(s);
	cairn_pt2_close(p);
}

static int64_t bytes_of(const struct cairn_pt2 *p, int32_t value, const int64_t *symbols)
{
	int64_t size[CAIRN_PT2_RANK], num;

	return cairn_pt2_shape(p, value, symbols, size, &num) ? -1 :
	       num * cairn_pt2_dtype_bytes(p->values[value].dtype);
}

/*
 * Six tokens of 8 floats: the first cut saves the stream, the second one the stream with what the parallel
 * MLP has added to it while attention was under way. Both query heads of the second attention share one head
 * of keys and values, which are sent once.
 */
static void cuts(struct cairn_test *t)
{
	int64_t symbols[CAIRN_PT2_SYMBOLS], at;
	struct cairn_pt2_slices *s = NULL;
	struct cairn_pt2 *p;
	int32_t cut, symbol;

	if (open_golden_program(t, &p, symbols))
		return;
	if (EXPECT(t, cairn_pt2_slices_create(&s, p, symbols) == 0) && EXPECT(t, s->num_slices == 3)) {
		const struct cairn_pt2_seam *seam = &s->seams[1];

		EXPECT(t, s->slices[0].num_saves == 1 && s->slices[0].save_bytes == 6 * 8 * 4);
		EXPECT(t, s->slices[1].num_saves == 1 && s->slices[1].save_bytes == 6 * 8 * 4);
		EXPECT(t, bytes_of(p, seam->q, symbols) == 6 * 8 * 4);
		EXPECT(t, bytes_of(p, seam->k, symbols) == 6 * 4 * 4);
		EXPECT(t, bytes_of(p, seam->v, symbols) == 6 * 4 * 4);
		EXPECT(t, seam->num_ops > 2 && s->seams[0].num_ops == 0);
		EXPECT(t, cairn_pt2_slices_vary(s, p, symbols, &cut, &symbol, &at) == 0 && cut == -1);
	}
	cairn_pt2_slices_destroy(s);
	cairn_pt2_close(p);
}

static void ops_are_sorted_and_run(struct cairn_test *t)
{
	static const char *const some[] = {
		"aten.__and__.Tensor", "aten._to_copy.default", "aten._unsafe_view.default",
		"aten.add.Tensor", "aten.addmm.default", "aten.alias.default", "aten.arange.default",
		"aten.arange.start", "aten.arange.start_step", "aten.bitwise_and.Tensor", "aten.bmm.default",
		"aten.cat.default", "aten.chunk.default", "aten.clone.default", "aten.contiguous.default",
		"aten.cos.default", "aten.cumsum.default", "aten.detach.default", "aten.diff.default",
		"aten.div.Tensor", "aten.dropout.default", "aten.embedding.default", "aten.eq.Tensor",
		"aten.exp.default", "aten.expand.default", "aten.full.default", "aten.ge.Tensor",
		"aten.gelu.default", "aten.gt.Tensor", "aten.index.Tensor", "aten.layer_norm.default",
		"aten.le.Tensor", "aten.linear.default", "aten.logical_and.default", "aten.lt.Tensor",
		"aten.matmul.default", "aten.mean.dim", "aten.mm.default", "aten.mul.Tensor",
		"aten.ne.Scalar", "aten.neg.default", "aten.new_ones.default", "aten.ones.default",
		"aten.permute.default", "aten.pow.Tensor_Scalar", "aten.relu.default", "aten.reshape.default",
		"aten.rms_norm.default", "aten.rsqrt.default", "aten.scaled_dot_product_attention.default",
		"aten.select.int", "aten.sigmoid.default", "aten.silu.default", "aten.sin.default",
		"aten.slice.Tensor", "aten.softmax.int", "aten.split.Tensor",
		"aten.split_with_sizes.default", "aten.squeeze.dim", "aten.sub.Tensor", "aten.t.default",
		"aten.tanh.default", "aten.to.device", "aten.to.dtype", "aten.to.dtype_layout",
		"aten.transpose.int", "aten.unbind.int", "aten.unsqueeze.default", "aten.view.default",
		"aten.zeros.default",
	};

	for (size_t i = 0; i < ARRAY_SIZE(some); i++)
		if (!EXPECT(t, cairn_pt2_op(some[i]) && (!pt2_eval_compute(some[i]) !=
							 !pt2_eval_arrange(some[i]))))
			cairn_note(t, "%s", some[i]);
	EXPECT(t, cairn_pt2_op("torch.ops.aten.sym_size.int") && cairn_pt2_op("_operator.sub"));
	EXPECT(t, cairn_pt2_op("aten._assert_scalar.default") && !cairn_pt2_op("aten.add") &&
	       !cairn_pt2_op(""));
}

/* ---- sizes ---- */

static void expressions(struct cairn_test *t)
{
	static const struct { const char *text; int64_t value; } good[] = {
		{ "Integer(-7)", -7 }, { "Symbol('s0', positive=True, integer=True)", 5 },
		{ "Add(Integer(1), Mul(Integer(2), Symbol('s0')), Integer(-3))", 8 },
		{ "Pow(Symbol('s0'), Integer(3))", 125 }, { "Max(Integer(2), Symbol('s0'), Integer(9))", 9 },
		{ "Min(Symbol('s1'), Symbol('s0'))", 5 }, { "FloorDiv(Integer(-7), Integer(2))", -4 },
		{ "Mod(Integer(-7), Integer(2))", 1 }, { "PythonMod(Symbol('s1'), Symbol('s0'))", 2 },
		{ "s0", 5 }, { "32*(s0 - 1) + -s1", 121 }, { "2**3*s0//3 % 5", 3 }, { "Max(1, s0 - 9)", 1 },
		{ "(s0 + 7)//2 - (3)", 3 }, { "-2**2", -4 }, { "CleanDiv(Integer(6), Integer(3))", 2 },
		{ "Mul(Integer(2), Symbol('s0'), evaluate=False)", 10 },
	};
	static const struct { const char *text, *says; } bad[] = {
		{ "", "malformed" }, { "Integer(", "malformed" }, { "Integer(x)", "malformed" },
		{ "Integer(1) ", NULL }, { "Integer(1))", "malformed at \")\"" },
		{ "Integer(99999999999999999999)", "malformed" }, { "Symbol(s0)", "malformed" },
		{ "Symbol('s0', positive)", "malformed" }, { "s0 +", "malformed" },
		{ "(s0", "malformed" }, { "s0/2", "malformed at \"/2\"" }, { "s0 s1", "malformed" },
		{ "1.5", "malformed" }, { "Pow(Integer(2))", "malformed" },
		{ "Pow(Integer(2), Integer(3), Integer(4))", "malformed" },
		{ "ceiling(Integer(2))", "has the unknown function \"ceiling\"" },
		{ "Pow(Integer(2), Integer(63))", "has the exponent 63" },
		{ "Pow(Integer(2), Integer(-1))", "has the exponent -1" },
		{ "Mul(Integer(4611686018427387904), Integer(2))", "does not fit 64 bits" },
		{ "Add(Integer(9223372036854775807), Integer(1))", "does not fit 64 bits" },
		{ "FloorDiv(Integer(1), Integer(0))", "has a quotient 1 / 0" },
		{ "Mod(Integer(-9223372036854775808), Integer(-1))", "has a quotient" },
		{ "CleanDiv(Integer(7), Integer(2))", "has a quotient 7 / 2" },
		{ "Symbol('a_name_of_more_than_thirty_one_bytes')", "more than 31 bytes" },
	};
	const int64_t values[CAIRN_PT2_SYMBOLS] = { 5, 7 };
	struct cairn_pt2_exprs e = { .num_terms = 0 };
	char deep[8192] = "";
	int64_t value;
	int32_t x;

	EXPECT(t, cairn_pt2_symbol(&e, "s0") == 0 && cairn_pt2_symbol(&e, "s1") == 1);
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		x = cairn_pt2_expr_parse(&e, good[i].text);
		if (!EXPECT(t, x >= 0 && cairn_pt2_expr_value(&e, x, values, &value) == 0 &&
			    value == good[i].value))
			cairn_note(t, "%s", good[i].text);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		x = cairn_pt2_expr_parse(&e, bad[i].text);
		if (x >= 0)
			x = cairn_pt2_expr_value(&e, x, values, &value);
		if (!EXPECT(t, bad[i].says ? x == -EINVAL : x == 0))
			cairn_note(t, "%s", bad[i].text);
		if (bad[i].says)
			EXPECT_CONTAINS(t, cairn_last_error(), bad[i].says);
	}
	for (int i = 0; i < 1000; i++)
		strcat(deep, "Add(");
	EXPECT(t, cairn_pt2_expr_parse(&e, deep) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "nested more than 512 deep");
	memset(deep, '-', 4000);
	EXPECT(t, cairn_pt2_expr_parse(&e, deep) == -EINVAL);
	memset(deep, '(', 4000);
	EXPECT(t, cairn_pt2_expr_parse(&e, deep) == -EINVAL);
	for (int i = 0; i < CAIRN_PT2_SYMBOLS - 2; i++) {
		snprintf(deep, sizeof(deep), "Symbol('u%d')", i);
		EXPECT(t, cairn_pt2_expr_parse(&e, deep) >= 0);
	}
	EXPECT(t, cairn_pt2_expr_parse(&e, "Symbol('one_more')") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "more than 64 symbols");
	cairn_pt2_exprs_free(&e);
}

static const struct cairn_unit units[] = {
	{ "graph", graph }, { "results", results }, { "cuts", cuts },
	{ "ops_are_sorted_and_run", ops_are_sorted_and_run }, { "expressions", expressions },
};

const struct cairn_family cairn_pt2_family = {
	.stage = "serving", .name = "pt2", .units = units, .num_units = ARRAY_SIZE(units),
};
