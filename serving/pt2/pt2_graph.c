// SPDX-License-Identifier: Apache-2.0
/* pt2_graph - reads the inputs, nodes and outputs of an exported program (pt2.h) */
#include "serving/pt2/pt2_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

/* Returns the only key of a union, and its value; NULL if it is none. */
static const char *union_of(const json_t *from, json_t **value)
{
	void *i = json_object_iter((json_t *)(uintptr_t)from);

	if (json_object_size(from) != 1 || !i)
		return NULL;
	*value = json_object_iter_value(i);
	return json_object_iter_key(i);
}

/* ---- inputs and outputs ---- */

/* Marks a value as one that exists before the program runs. */
static int give(struct cairn_pt2 *p, const char *name, enum cairn_pt2_kind kind, const char *weight)
{
	int32_t v = name ? cairn_pt2_find(p, name) : -1;

	if (v < 0)
		return cairn_error(EINVAL, "%s: input_specs: %s is no tensor of the program", p->path,
				   name ? CAIRN_QUOTED(name) : "an input");
	if (p->values[v].kind != CAIRN_PT2_RESULT)
		return cairn_error(EINVAL, "%s: input_specs: %s is given twice", p->path, CAIRN_QUOTED(name));
	p->values[v].kind = kind;
	p->values[v].weight = weight;
	return 0;
}

static int read_input(struct cairn_pt2 *p, const json_t *spec)
{
	json_t *s = NULL;
	const char *kind = union_of(spec, &s);
	const char *name = text_of(json_object_get(s, "arg"), "name");
	const char *weight;

	if (!kind)
		return cairn_error(EINVAL, "%s: input_specs: has an input without a kind", p->path);
	if (!strcmp(kind, "constant_input"))
		return 0;
	if (!strcmp(kind, "user_input")) {
		const json_t *tensor = json_object_get(json_object_get(s, "arg"), "as_tensor");

		if (!tensor)
			return cairn_error(EINVAL, "%s: input_specs: an input of the program is no tensor",
					   p->path);
		CAIRN_TRY(give(p, text_of(tensor, "name"), CAIRN_PT2_INPUT, NULL));
		p->inputs[p->num_inputs++] = cairn_pt2_find(p, text_of(tensor, "name"));
		return 0;
	}
	weight = text_of(s, !strcmp(kind, "parameter") ? "parameter_name" :
			 !strcmp(kind, "buffer") ? "buffer_name" : "tensor_constant_name");
	if (!weight)
		return cairn_error(EINVAL, "%s: input_specs: inputs of kind %s are not read", p->path,
				   CAIRN_QUOTED(kind));
	return give(p, name, strcmp(kind, "parameter") ? CAIRN_PT2_CONSTANT : CAIRN_PT2_WEIGHT, weight);
}

static int read_output(struct cairn_pt2 *p, const json_t *spec)
{
	json_t *s = NULL;
	const char *kind = union_of(spec, &s), *target;
	const char *name = text_of(json_object_get(json_object_get(s, "arg"), "as_tensor"), "name");
	int32_t v;

	if (!kind)
		return cairn_error(EINVAL, "%s: output_specs: has an output without a kind", p->path);
	if (strcmp(kind, "user_output")) {
		target = text_of(s, "buffer_name");
		target = target ? target : text_of(s, "user_input_name");
		target = target ? target : text_of(s, "parameter_name");
		return cairn_error(EINVAL, "%s: output_specs: the program has a %s of %s; export it "
				   "without a cache that is written in place", p->path, CAIRN_QUOTED(kind),
				   target ? CAIRN_QUOTED(target) : "an input");
	}
	v = name ? cairn_pt2_find(p, name) : -1;
	if (v < 0 || p->values[v].kind != CAIRN_PT2_RESULT)
		return cairn_error(EINVAL, "%s: output_specs: an output is no tensor that the program "
				   "computes", p->path);
	p->values[v].is_output = true;
	p->outputs[p->num_outputs++] = v;
	return 0;
}

/* ---- nodes ---- */

static int node_error(const struct cairn_pt2 *p, const struct cairn_pt2_node *n, const char *what)
{
	return cairn_error(EINVAL, "%s: node %s (%s): %s", p->path, CAIRN_QUOTED(n->name),
			   CAIRN_QUOTED(n->target), what);
}

static int add_id(struct cairn_pt2 *p, int32_t v)
{
	/* doubles at each power of two */
	if (!(p->num_ids & (p->num_ids - 1)) || !p->ids) {
		int32_t room = p->num_ids ? 2 * p->num_ids : 1;
		int32_t *ids = realloc(p->ids, (size_t)room * sizeof(*ids));

		if (!ids)
			return cairn_error(ENOMEM, "%s: no memory", p->path);
		p->ids = ids;
	}
	p->ids[p->num_ids++] = v;
	return 0;
}

/* A node reads only what exists. */
static int add_in(struct cairn_pt2 *p, struct cairn_pt2_node *n, const json_t *tensor)
{
	const char *name = text_of(tensor, "name");
	int32_t v = name ? cairn_pt2_find(p, name) : -1;

	if (v < 0 || (p->values[v].kind == CAIRN_PT2_RESULT && p->values[v].producer < 0))
		return node_error(p, n, "reads a tensor that does not exist before it");
	n->num_in++;
	return add_id(p, v);
}

static int read_list(struct cairn_pt2 *p, struct cairn_pt2_node *n, json_t *list, int optional)
{
	json_t *item;
	size_t i;

	if (!json_is_array(list))
		return node_error(p, n, "has an argument that is no list of tensors");
	json_array_foreach(list, i, item) {
		const json_t *tensor = optional ? json_object_get(item, "as_tensor") : item;

		if (tensor || !optional)
			CAIRN_TRY(add_in(p, n, tensor));
	}
	return 0;
}

static int check_sym(struct cairn_pt2 *p, struct cairn_pt2_node *n, const json_t *arg)
{
	const char *name = text_of(arg, "as_name");

	return !name || json_object_get(p->syms, name) ? 0 :
	       node_error(p, n, "names an unknown symbolic size");
}

static int read_arg(struct cairn_pt2 *p, struct cairn_pt2_node *n, const json_t *named)
{
	static const char *const plain[] = {
		"as_none", "as_int", "as_ints", "as_float", "as_floats", "as_string", "as_bool", "as_bools",
		"as_scalar_type", "as_memory_format", "as_layout", "as_device", "as_sym_bool",
		"as_sym_float",
	};
	json_t *value = NULL, *item;
	const char *kind = union_of(json_object_get(named, "arg"), &value);
	size_t i;

	if (!kind || !text_of(named, "name"))
		return node_error(p, n, "has an argument without a name or a kind");
	if (!strcmp(kind, "as_tensor"))
		return add_in(p, n, value);
	if (!strcmp(kind, "as_tensors") || !strcmp(kind, "as_optional_tensors"))
		return read_list(p, n, value, !strcmp(kind, "as_optional_tensors"));
	if (!strcmp(kind, "as_optional_tensor"))
		return json_object_get(value, "as_tensor") ?
		       add_in(p, n, json_object_get(value, "as_tensor")) : 0;
	if (!strcmp(kind, "as_sym_int"))
		return check_sym(p, n, value);
	if (!strcmp(kind, "as_sym_ints")) {
		json_array_foreach(value, i, item)
			CAIRN_TRY(check_sym(p, n, item));
		return 0;
	}
	for (i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (!strcmp(kind, plain[i]))
			return 0;
	return cairn_error(EINVAL, "%s: node %s (%s): arguments of kind %s are not read", p->path,
			   CAIRN_QUOTED(n->name), CAIRN_QUOTED(n->target), CAIRN_QUOTED(kind));
}

static int add_out(struct cairn_pt2 *p, struct cairn_pt2_node *n, const json_t *tensor)
{
	const char *name = text_of(tensor, "name");
	int32_t v = name ? cairn_pt2_find(p, name) : -1;

	if (v < 0)
		return node_error(p, n, "has a result that is no tensor of the program");
	if (p->values[v].kind != CAIRN_PT2_RESULT || p->values[v].producer >= 0)
		return node_error(p, n, "writes a tensor that exists already");
	p->values[v].producer = p->num_nodes;
	n->num_out++;
	return add_id(p, v);
}

static int read_outs(struct cairn_pt2 *p, struct cairn_pt2_node *n, const json_t *outs)
{
	json_t *out, *value = NULL, *tensor;
	size_t i, k;

	json_array_foreach(outs, i, out) {
		const char *kind = union_of(out, &value);

		if (kind && !strcmp(kind, "as_tensor"))
			CAIRN_TRY(add_out(p, n, value));
		else if (kind && !strcmp(kind, "as_tensors"))
			json_array_foreach(value, k, tensor)
				CAIRN_TRY(add_out(p, n, tensor));
		else if (n->op->role != CAIRN_PT2_DROPPED)
			return node_error(p, n, "has a result that is no tensor");
	}
	if (!n->num_out != (n->op->role == CAIRN_PT2_DROPPED))
		return node_error(p, n, n->num_out ? "has tensors as results" : "has no result");
	return 0;
}

/* Returns whether the operation has a name such as aten.copy_.default: it writes to its first argument. */
static int writes_in_place(const char *target)
{
	const char *dot = strrchr(target, '.');

	return dot && dot > target && dot[-1] == '_' && dot - target > 2 && dot[-2] != '_';
}

static int read_node(struct cairn_pt2 *p, const json_t *from, size_t index)
{
	struct cairn_pt2_node *n = &p->nodes[p->num_nodes];
	json_t *args = json_object_get(from, "inputs"), *outs = json_object_get(from, "outputs"), *arg;
	size_t i;

	*n = (struct cairn_pt2_node){ .name = text_of(from, "name"), .target = text_of(from, "target"),
				      .args = args, .first_in = p->num_ids };
	if (!n->target || !json_is_array(args) || !json_is_array(outs))
		return cairn_error(EINVAL, "%s: nodes[%zu]: has no target, inputs or outputs", p->path,
				   index);
	n->name = n->name ? n->name : "";	/* older files have no names */
	n->op = cairn_pt2_op(n->target);
	if (!n->op)
		return node_error(p, n, writes_in_place(n->target) ? "the operation writes in place" :
				  "the operation is not known");
	json_array_foreach(args, i, arg)
		CAIRN_TRY(read_arg(p, n, arg));
	n->first_out = p->num_ids;
	CAIRN_TRY(read_outs(p, n, outs));
	if (n->op->role == CAIRN_PT2_DROPPED)
		p->num_ids = n->first_in;
	else
		p->num_nodes++;
	return 0;
}

static int read_syms(struct cairn_pt2 *p, json_t *graph)
{
	json_t *syms = json_object_get(graph, "sym_int_values"), *sym;
	const char *name;

	p->syms = json_object();
	json_object_foreach(syms, name, sym) {
		int32_t expr = pt2_read_size(p, sym);

		if (expr < 0)
			return cairn_error_prefix(expr, "%s: sym_int_values: %s", p->path,
						  CAIRN_QUOTED(name));
		if (json_object_set_new(p->syms, name, json_integer(expr)))
			return cairn_error(ENOMEM, "%s: no memory", p->path);
	}
	return p->syms ? 0 : cairn_error(ENOMEM, "%s: no memory", p->path);
}

int pt2_read_graph(struct cairn_pt2 *p, json_t *graph, json_t *signature)
{
	const struct cairn_json_at at = { p->path, "graph_module.graph." };
	const struct cairn_json_at of_signature = { p->path, "graph_module.signature." };
	json_t *nodes, *inputs, *outputs, *item;
	size_t i;

	CAIRN_TRY(cairn_json_child(graph, at, "nodes", true, JSON_ARRAY, &nodes));
	CAIRN_TRY(cairn_json_child(signature, of_signature, "input_specs", true, JSON_ARRAY, &inputs));
	CAIRN_TRY(cairn_json_child(signature, of_signature, "output_specs", true, JSON_ARRAY, &outputs));
	p->nodes = calloc(json_array_size(nodes) + 1, sizeof(*p->nodes));
	p->outputs = calloc(json_array_size(outputs) + 1, sizeof(*p->outputs));
	p->inputs = calloc(json_array_size(inputs) + 1, sizeof(*p->inputs));
	if (!p->nodes || !p->outputs || !p->inputs)
		return cairn_error(ENOMEM, "%s: no memory", p->path);
	CAIRN_TRY(read_syms(p, graph));
	json_array_foreach(inputs, i, item)
		CAIRN_TRY(read_input(p, item));
	json_array_foreach(nodes, i, item)
		CAIRN_TRY(read_node(p, item, i));
	json_array_foreach(outputs, i, item)
		CAIRN_TRY(read_output(p, item));
	for (int32_t v = 0; v < p->num_values; v++)
		if (p->values[v].kind == CAIRN_PT2_RESULT && p->values[v].producer < 0)
			return cairn_error(EINVAL, "%s: value %s: no node writes it", p->path,
					   CAIRN_QUOTED(p->values[v].name));
	return 0;
}

int cairn_pt2_sym(const struct cairn_pt2 *p, const char *name, const int64_t *symbols, int64_t *value)
{
	const json_t *expr = json_object_get(p->syms, name);

	if (!expr)
		return cairn_error(EINVAL, "%s: %s is no symbolic size", p->path, CAIRN_QUOTED(name));
	return cairn_pt2_expr_value(&p->exprs, (int32_t)json_integer_value(expr), symbols, value);
}

const json_t *cairn_pt2_arg(const struct cairn_pt2_node *n, const char *name)
{
	const json_t *named;
	size_t i;

	json_array_foreach(n->args, i, named)
		if (!strcmp(text_of(named, "name"), name))
			return json_object_get(named, "arg");
	return NULL;
}
