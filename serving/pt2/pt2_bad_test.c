// SPDX-License-Identifier: Apache-2.0
/*
 * pt2_bad_test - programs that cannot be converted are refused by one line that names the cause
 *
 * Each case changes one thing in the golden program. Random changes may have any effect but a crash, a leak
 * or an access outside memory.
 */
#include "conformance/harness.h"
#include "serving/pt2/pt2_test.h"

struct golden_program {
	struct cairn_zip *zip;
	json_t *root;
	struct zip_member members[64];
	size_t num;
	const char *model;
};

static int open_program(struct cairn_test *t, struct golden_program *g)
{
	char path[PATH_MAX];

	memset(g, 0, sizeof(*g));
	golden_pt2(path, "mixed.pt2");
	if (!EXPECT(t, cairn_zip_open(&g->zip, path) == 0) || !EXPECT(t, cairn_zip_count(g->zip) < 64))
		return -1;
	g->num = cairn_zip_count(g->zip);
	for (size_t i = 0; i < g->num; i++) {
		const struct cairn_zip_file *f = cairn_zip_at(g->zip, i);

		g->members[i] = (struct zip_member){ f->name, f->data, f->num_bytes };
		if (strstr(f->name, "/models/"))
			g->model = f->name;
	}
	g->root = golden_json(t, g->zip);
	return EXPECT(t, g->root && g->model) ? 0 : -1;
}

static void close_program(struct golden_program *g)
{
	json_decref(g->root);
	cairn_zip_close(g->zip);
}

/* Opens the archive with another graph, then cuts and runs it. Returns the first error. */
static int try_program(const struct golden_program *g, const json_t *root, int run)
{
	struct zip_member members[64];
	double ids[] = { 3, 1, 4, 1, 5, 9 };
	const struct cairn_pt2_tensor input = { .rank = 2, .size = { 1, 6 }, .num = 6, .data = ids };
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	struct cairn_pt2_slices *s = NULL;
	struct cairn_pt2_results r;
	struct cairn_pt2 *p = NULL;
	char *text = json_dumps(root, JSON_COMPACT);
	struct archive a;
	int ret;

	memcpy(members, g->members, sizeof(members));
	for (size_t i = 0; i < g->num; i++)
		if (members[i].name == g->model)
			members[i] = (struct zip_member){ g->model, text, strlen(text) };
	a = zip_make(members, g->num, 0);
	ret = cairn_pt2_open_mem(&p, a.bytes, a.num_bytes, "p.pt2");
	if (!ret) {
		cairn_pt2_symbols(p, symbols);
		ret = cairn_pt2_slices_create(&s, p, symbols);
	}
	if (!ret && run && p->num_inputs == 1)
		ret = cairn_pt2_fit(p, &input, symbols);
	if (!ret && run && p->num_inputs == 1) {
		ret = cairn_pt2_run(&r, p, s, &input, symbols);
		if (!ret)
			cairn_pt2_results_free(&r);
	}
	cairn_pt2_slices_destroy(s);
	cairn_pt2_close(p);
	free(a.bytes);
	free(text);
	return ret;
}

/* ---- one change ---- */

static json_t *get(json_t *root, const char *key)
{
	json_t *module = json_object_get(root, "graph_module");
	json_t *graph = json_object_get(module, "graph");

	return json_object_get(graph, key) ? json_object_get(graph, key) :
	       json_object_get(json_object_get(module, "signature"), key);
}

/* Returns the first node of a target. */
static json_t *node(json_t *root, const char *target)
{
	json_t *n;
	size_t i;

	json_array_foreach(get(root, "nodes"), i, n)
		if (strstr(json_string_value(json_object_get(n, "target")), target))
			return n;
	return NULL;
}

static json_t *arg(json_t *root, const char *target, size_t i)
{
	return json_object_get(json_array_get(json_object_get(node(root, target), "inputs"), i), "arg");
}

/* The metadata of the embedding's result. */
static json_t *meta(json_t *root)
{
	return json_object_get(get(root, "tensor_values"), "embedding");
}

static void put(json_t *object, const char *key, json_t *value)
{
	json_object_set_new(object, key, value);
}

static void put_size(json_t *root, json_t *size)
{
	json_array_set_new(json_object_get(meta(root), "sizes"), 1, size);
}

static void put_expr(json_t *root, const char *text)
{
	put_size(root, json_pack("{s:{s:s}}", "as_expr", "expr_str", text));
}

static void add_spec(json_t *root, const char *list, json_t *spec)
{
	json_array_append_new(get(root, list), spec);
}

static void put_output(json_t *root, const char *kind, const char *key)
{
	add_spec(root, "output_specs",
		 json_pack("{s:{s:{s:s}, s:s}}", kind, "arg", "name", "embedding", key, "cache"));
}

static void major_9(json_t *r) { put(json_object_get(r, "schema_version"), "major", json_integer(9)); }
static void no_graph(json_t *r) { json_object_del(r, "graph_module"); }

static void no_nodes(json_t *r)
{
	json_object_del(json_object_get(json_object_get(r, "graph_module"), "graph"), "nodes");
}

static void unknown(json_t *r) { put(node(r, "silu"), "target", json_string("torch.ops.my.op\n.default")); }

static void in_place(json_t *r)
{
	put(node(r, "silu"), "target", json_string("torch.ops.aten.silu_.default"));
}

static void buffer_written(json_t *r) { put_output(r, "buffer_mutation", "buffer_name"); }
static void input_written(json_t *r) { put_output(r, "user_input_mutation", "user_input_name"); }

static void output_unknown(json_t *r)
{
	add_spec(r, "output_specs",
		 json_pack("{s:{s:{s:{s:s}}}}", "user_output", "arg", "as_tensor", "name", "x"));
}

static void input_object(json_t *r)
{
	add_spec(r, "input_specs", json_pack("{s:{s:{s:s}}}", "custom_obj", "arg", "name", "x"));
}

static void input_twice(json_t *r)
{
	json_array_append(get(r, "input_specs"), json_array_get(get(r, "input_specs"), 0));
}

static void input_unknown(json_t *r)
{
	add_spec(r, "input_specs",
		 json_pack("{s:{s:{s:s}, s:s}}", "parameter", "arg", "name", "x", "parameter_name", "x"));
}

static void input_missing(json_t *r) { json_array_remove(get(r, "input_specs"), 0); }

static void control_flow(json_t *r)
{
	json_object_clear(arg(r, "silu", 0));
	put(arg(r, "silu", 0), "as_graph", json_object());
}

static void argument_unknown(json_t *r)
{
	put(json_object_get(arg(r, "silu", 0), "as_tensor"), "name", json_string("nothing"));
}

static void argument_later(json_t *r)
{
	put(json_object_get(arg(r, "embedding", 1), "as_tensor"), "name", json_string("rms_norm"));
}

static void argument_empty(json_t *r) { json_object_clear(arg(r, "silu", 0)); }

static void nodes_swapped(json_t *r)
{
	json_t *n = json_incref(json_array_get(get(r, "nodes"), 2));

	json_array_remove(get(r, "nodes"), 2);
	json_array_append_new(get(r, "nodes"), n);
}

static void node_twice(json_t *r) { json_array_append(get(r, "nodes"), node(r, "silu")); }

static void node_missing(json_t *r)
{
	json_array_remove(get(r, "nodes"), json_array_size(get(r, "nodes")) - 1);
}

static void node_a_number(json_t *r) { json_array_set_new(get(r, "nodes"), 3, json_integer(1)); }
static void no_result(json_t *r) { put(node(r, "silu"), "outputs", json_array()); }
static void dtype_complex(json_t *r) { put(meta(r), "dtype", json_integer(9)); }
static void dtype_large(json_t *r) { put(meta(r), "dtype", json_integer(1000000)); }
static void sparse(json_t *r) { put(meta(r), "layout", json_integer(1)); }

static void nine_dimensions(json_t *r)
{
	for (int i = 0;
	i < 6;
	i++) json_array_append_new(json_object_get(meta(r), "sizes"), json_pack("{s:i}", "as_int", 1));
}

static void size_negative(json_t *r) { put_size(r, json_pack("{s:i}", "as_int", -6)); }
static void size_huge(json_t *r) { put_size(r, json_pack("{s:I}", "as_int", (json_int_t)1 << 61)); }
static void size_large(json_t *r) { put_size(r, json_pack("{s:I}", "as_int", (json_int_t)1 << 50)); }
static void size_text(json_t *r) { put_size(r, json_string("6")); }
static void size_function(json_t *r) { put_expr(r, "ceiling(Symbol('s0'))"); }
static void size_malformed(json_t *r) { put_expr(r, "Add(Integer(1)"); }
static void size_quotient(json_t *r) { put_expr(r, "FloorDiv(Integer(1), Add(Integer(2), Integer(-2)))"); }

static void range_empty(json_t *r)
{
	json_t *ranges = json_object_get(r, "range_constraints");

	json_object_clear(ranges);
	put(ranges, "s0", json_pack("{s:i, s:i}", "min_val", 9, "max_val", 8));
}

static void sym_unknown(json_t *r) { json_object_clear(get(r, "sym_int_values")); }

static void no_attention(json_t *r)
{
	put(node(r, "scaled_dot"), "target", json_string("torch.ops.aten.add.Tensor"));
	put(node(r, "scaled_dot"), "target", json_string("torch.ops.aten.add.Tensor"));
}

/* The second attention has a mask. */
static void mask_of_weights(json_t *r)
{
	json_t *n, *mask;
	size_t i;

	json_array_foreach(get(r, "nodes"), i, n) {
		mask = json_object_get(json_array_get(json_object_get(n, "inputs"), 3), "arg");
		if (!strstr(json_string_value(json_object_get(n, "target")), "scaled_dot") ||
		    !json_object_get(mask, "as_tensor"))
			continue;
		put(json_object_get(mask, "as_tensor"), "name", json_string("rms_norm"));
	}
}

static void query_of_positions(json_t *r)
{
	json_object_clear(arg(r, "scaled_dot", 0));
	put(arg(r, "scaled_dot", 0), "as_tensor", json_pack("{s:s}", "name", "ids"));
}

#define BAD(fn, says)	{ #fn, fn, says }

static const struct {
	const char *name;
	void (*change)(json_t *root);
	const char *says;
} bad[] = {
	BAD(major_9, "p.pt2: schema_version.major"), BAD(no_graph, "p.pt2: graph_module"),
	BAD(no_nodes, "p.pt2: graph_module.graph.nodes"),
	BAD(unknown, "(\"torch.ops.my.op\\x0a.default\"): the operation is not known"),
	BAD(in_place, "(\"torch.ops.aten.silu_.default\"): the operation writes in place"),
	BAD(buffer_written, "the program has a \"buffer_mutation\" of \"cache\"; export it without a cache"),
	BAD(input_written, "the program has a \"user_input_mutation\" of \"cache\""),
	BAD(output_unknown, "an output is no tensor that the program computes"),
	BAD(input_object, "inputs of kind \"custom_obj\" are not read"),
	BAD(input_twice, "is given twice"), BAD(input_unknown, "\"x\" is no tensor of the program"),
	BAD(input_missing, "reads a tensor that does not exist before it"),
	BAD(control_flow, "arguments of kind \"as_graph\" are not read"),
	BAD(argument_unknown, "reads a tensor that does not exist before it"),
	BAD(argument_later, "reads a tensor that does not exist before it"),
	BAD(argument_empty, "has an argument without a name or a kind"),
	BAD(nodes_swapped, "reads a tensor that does not exist before it"),
	BAD(node_twice, "writes a tensor that exists already"), BAD(node_missing, "no node writes it"),
	BAD(node_a_number, "nodes[3]: has no target, inputs or outputs"),
	BAD(no_result, "has no result"), BAD(dtype_complex, "has the dtype 9, which is not read"),
	BAD(dtype_large, "has the dtype 1000000"), BAD(sparse, "value \"embedding\": is no strided tensor"),
	BAD(nine_dimensions, "has no sizes, or more than 8"), BAD(size_negative, "size 1 is -6"),
	BAD(size_huge, "its bytes do not fit 62 bits"), BAD(size_large, "value \"embedding\" has "),
	BAD(size_text, "has a size that is neither as_int nor as_expr"),
	BAD(size_function, "value \"embedding\": its size has the unknown function \"ceiling\""),
	BAD(size_malformed, "its size is malformed"), BAD(size_quotient, "has a quotient 1 / 0"),
	BAD(range_empty, "range_constraints: \"s0\": has no value"),
	BAD(sym_unknown, "names an unknown symbolic size"),
	BAD(no_attention, "p.pt2: has no scaled_dot_product_attention"),
	BAD(mask_of_weights, "its mask \"rms_norm\" depends on parameters"),
	BAD(query_of_positions, "its query is no tensor that depends on parameters"),
};

static void changed(struct cairn_test *t)
{
	struct golden_program g;

	if (open_program(t, &g))
		goto out;
	EXPECT(t, try_program(&g, g.root, 1) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		json_t *root = json_deep_copy(g.root);

		bad[i].change(root);
		if (!EXPECT(t, try_program(&g, root, 0) == -EINVAL))
			cairn_note(t, "%s", bad[i].name);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].says);
		json_decref(root);
	}
out:
	close_program(&g);
}

/* ---- archives ---- */

static int try_members(const struct zip_member *members, size_t num)
{
	struct archive a = zip_make(members, num, 1);
	double ids[] = { 1, 2 };
	const struct cairn_pt2_tensor input = { .rank = 2, .size = { 1, 2 }, .num = 2, .data = ids };
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	struct cairn_pt2_results r;
	struct cairn_pt2 *p = NULL;
	int ret = cairn_pt2_open_mem(&p, a.bytes, a.num_bytes, "p.pt2");

	if (!ret)
		ret = cairn_pt2_fit(p, &input, symbols);
	if (!ret)
		ret = cairn_pt2_run(&r, p, NULL, &input, symbols);
	if (!ret)
		cairn_pt2_results_free(&r);
	cairn_pt2_close(p);
	free(a.bytes);
	return ret;
}

static struct zip_member *member(struct golden_program *g, const char *part)
{
	for (size_t i = 0; i < g->num; i++)
		if (strstr(g->members[i].name, part))
			return &g->members[i];
	return NULL;
}

/* Replaces `from` by `to`, which is as long, in a copy of a member. */
static char *replaced(struct zip_member *m, const char *from, const char *to)
{
	char *copy = strndup(m->data, m->num_bytes), *at = strstr(copy, from);

	memcpy(at, to, strlen(to));
	m->data = copy;
	return copy;
}

static void archives(struct cairn_test *t)
{
	struct zip_member kept, *m;
	struct golden_program g;
	char *copy;

	if (open_program(t, &g))
		goto out;
	EXPECT(t, try_members(g.members, g.num) == 0);
	m = member(&g, "weights/weight_3");
	kept = *m;
	m->num_bytes -= 4;
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "bytes, and its shape needs");
	*m = kept;
	m->name = "mixed/data/weights/other";
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "has no data of");
	*m = kept;
	m = member(&g, "weights_config");
	kept = *m;
	copy = replaced(m, "\"use_pickle\": false", "\"use_pickle\": true ");
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "is pickled, and pickles are not opened");
	free(copy);
	*m = kept;
	m->name = "mixed/models/other.json";
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "has more than one model");
	*m = kept;
	m = member(&g, "/models/");
	kept = *m;
	m->name = "mixed/models.json";
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "p.pt2: has no models/NAME.json");
	m->name = "serialized_exported_program.json";	/* as before PyTorch 2.8: the weights are pickled */
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "has no data of");
	*m = kept;
	m->num_bytes /= 2;
	EXPECT(t, try_members(g.members, g.num) == -EINVAL);
	*m = kept;
out:
	close_program(&g);
}

/* ---- random changes ---- */

static json_t *random_leaf(struct cairn_test *t)
{
	static const char *const texts[] = {
		"", "embedding", "ids", "torch.ops.aten.add.Tensor", "torch.ops.aten.cat.default",
		"torch.ops.aten.scaled_dot_product_attention.default", "torch.ops.aten.unbind.int", "as_int",
	};

	switch (cairn_rand(t) % 6) {
	case 0:
		return json_integer((json_int_t)(cairn_rand(t) % 9) - 2);
	case 1:
		return json_integer((json_int_t)cairn_rand(t));
	case 2:
		return json_string(texts[cairn_rand(t) % ARRAY_SIZE(texts)]);
	case 3:
		return json_array();
	case 4:
		return json_object();
	default:
		return json_null();
	}
}

/* Changes one member somewhere below; returns 0 if there was none. */
static int change(struct cairn_test *t, json_t *at)
{
	size_t size = json_is_array(at) ? json_array_size(at) : json_object_size(at);
	size_t i = size ? cairn_rand(t) % size : 0;
	void *iter = json_object_iter(at);
	json_t *child;

	if (!size)
		return 0;
	for (size_t k = 0; k < i && iter; k++)
		iter = json_object_iter_next(at, iter);
	child = iter ? json_object_iter_value(iter) : json_array_get(at, i);
	if (cairn_rand(t) % 8 && change(t, child))
		return 1;
	if (iter && cairn_rand(t) % 4 == 0)
		json_object_del(at, json_object_iter_key(iter));
	else if (iter)
		json_object_set_new(at, json_object_iter_key(iter), random_leaf(t));
	else if (cairn_rand(t) % 4 == 0)
		json_array_append(at, child);
	else
		json_array_set_new(at, i, random_leaf(t));
	return 1;
}

static void random_changes(struct cairn_test *t)
{
	struct golden_program g;
	int refused = 0;

	if (open_program(t, &g))
		goto out;
	for (int i = 0; i < 120; i++) {
		json_t *root = json_deep_copy(g.root), *module = json_object_get(root, "graph_module");
		int ret;

		change(t, i % 2 ? get(root, "nodes") : json_object_get(module, "graph"));
		ret = try_program(&g, root, 1);
		EXPECT(t, ret == 0 || ret == -EINVAL || ret == -ENOMEM);
		refused += ret != 0;
		json_decref(root);
	}
	cairn_note(t, "%d of 120 changes are noticed", refused);
	EXPECT(t, refused > 30);
out:
	close_program(&g);
}

static const struct cairn_unit units[] = {
	{ "changed", changed }, { "archives", archives }, { "random_changes", random_changes },
};

const struct cairn_family cairn_pt2_bad_family = {
	.stage = "serving", .name = "pt2_bad", .units = units, .num_units = ARRAY_SIZE(units),
};
