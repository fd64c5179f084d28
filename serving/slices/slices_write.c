// SPDX-License-Identifier: Apache-2.0
/* slices_write - writes slices as JSON, format "cairn-slices 1" (README.md) */
#include "serving/slices/slices_json.h"

#include <errno.h>
#include <string.h>

#include "primitives/base/error.h"

/* jansson takes NULL for whatever could not be allocated, so that only the last call needs a check. */
static json_t *name_of(const struct cairn_op_graph *g, int32_t value)
{
	return json_string(g->values[value].name);
}

json_t *cairn_slices_names(const struct cairn_op_graph *g, const int32_t *values, int32_t num)
{
	json_t *list = json_array();

	for (int32_t i = 0; i < num; i++)
		if (json_array_append_new(list, name_of(g, values[i]))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

json_t *cairn_slices_symbols(const struct cairn_op_graph *g, const int32_t *dims)
{
	json_t *symbols = json_object();
	int failed = !symbols;

	for (int32_t v = 0; v < g->num_values && !failed; v++) {
		const struct cairn_shape *s = &g->values[v].shape;
		const enum cairn_dim used[] = { s->num, s->height, s->width };

		for (int i = 0; i < 3; i++)
			if (used[i] != CAIRN_D_ONE)
				failed |= json_object_set_new(symbols, cairn_dim_name(used[i]),
							      json_integer(dims[used[i]]));
	}
	if (!failed)
		return symbols;
	json_decref(symbols);
	return NULL;
}

static json_t *shape_of(const struct cairn_shape *s)
{
	const enum cairn_dim dims[] = { s->num, s->height, s->width };
	json_t *list = json_array();
	int failed = !list;

	if (*cairn_rows_name(s->rows))
		failed |= json_array_append_new(list, json_string(cairn_rows_name(s->rows)));
	for (int i = 0; i < 3; i++)
		if (dims[i] != CAIRN_D_ONE)
			failed |= json_array_append_new(list, json_string(cairn_dim_name(dims[i])));
	if (!failed)
		return list;
	json_decref(list);
	return NULL;
}

json_t *cairn_slices_values(const struct cairn_op_graph *g)
{
	json_t *values = json_object();
	int failed = !values;

	for (int32_t v = 0; v < g->num_values && !failed; v++) {
		const struct cairn_graph_value *value = &g->values[v];

		failed = json_object_set_new(values, value->name,
					     json_pack("{s:s, s:s, s:o}", "kind",
						       cairn_value_kind_name(value->kind), "role",
						       cairn_value_role_name(value->role), "shape",
						       shape_of(&value->shape)));
	}
	if (!failed)
		return values;
	json_decref(values);
	return NULL;
}

json_t *cairn_slices_step(const struct cairn_op_graph *g, const struct cairn_slice_step *step)
{
	static const char *const kinds[] = { "op", "send_q", "send_kv", "merge" };
	static const char *const parts[] = { NULL, "q", "kv" };
	const struct cairn_graph_op *op = &g->ops[step->op];

	if (step->kind == CAIRN_STEP_MERGE)
		return json_pack("{s:s, s:o}", "merge", op->name, "out",
				 cairn_slices_names(g, op->out, op->num_out));
	if (step->kind != CAIRN_STEP_OP)
		return json_pack("{s:s}", kinds[step->kind], op->name);
	return json_pack("{s:s, s:s, s:s*, s:o, s:o, s:o}",
			 "op", op->name, "kind", cairn_op_kind_name(op->kind), "part", parts[step->part],
			 "in", cairn_slices_names(g, op->in, op->num_in),
			 "weights", cairn_slices_names(g, op->weights, op->num_weights),
			 "out", cairn_slices_names(g, op->out, op->num_out));
}

static json_t *slice_of(const struct cairn_slices *s, const struct cairn_op_graph *g, int32_t index)
{
	static const struct cairn_slice none;
	const struct cairn_slice *slice = &s->slices[index], *before = index ? slice - 1 : &none;
	json_t *steps = json_array();
	int failed = !steps;

	for (int32_t i = 0; i < slice->num_steps && !failed; i++)
		failed = json_array_append_new(steps, cairn_slices_step(g, &s->steps[slice->first_step + i]));
	if (failed) {
		json_decref(steps);
		return NULL;
	}
	return json_pack("{s:o, s:o, s:o, s:I}",
			 "inputs", cairn_slices_names(g, s->saves + before->first_save, before->num_saves),
			 "steps", steps,
			 "saves", cairn_slices_names(g, s->saves + slice->first_save, slice->num_saves),
			 "save_bytes", (json_int_t)slice->save_bytes);
}

json_t *cairn_slices_seam(const struct cairn_op_graph *g, const struct cairn_seam *seam)
{
	return json_pack("{s:s, s:s, s:o, s:o}", "attention", g->ops[seam->attn].name, "append",
			 g->ops[seam->append].name, "q", name_of(g, seam->q), "kv", name_of(g, seam->kv));
}

static json_t *all(const struct cairn_slices *s, const struct cairn_op_graph *g,
		   const struct cairn_pass_sizes *sizes)
{
	json_t *slices = json_array(), *seams = json_array();
	int failed = !slices || !seams;

	for (int32_t i = 0; i < s->num_slices && !failed; i++)
		failed = json_array_append_new(slices, slice_of(s, g, i));
	for (int32_t i = 0; i + 1 < s->num_slices && !failed; i++)
		failed = json_array_append_new(seams, cairn_slices_seam(g, &s->seams[i]));
	if (failed) {
		json_decref(slices);
		json_decref(seams);
		return NULL;
	}
	return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o}", "format", "cairn-slices 1", "tokens",
			 (json_int_t)sizes->num_tokens, "symbols", cairn_slices_symbols(g, sizes->dims),
			 "values", cairn_slices_values(g), "seams", seams, "slices", slices);
}

int cairn_slices_write(const struct cairn_slices *s, const struct cairn_op_graph *g,
		       const struct cairn_pass_sizes *sizes, FILE *file)
{
	json_t *root = all(s, g, sizes);
	int ret;

	if (!root)
		return cairn_error(ENOMEM, "slices: no memory");
	ret = json_dumpf(root, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER) || fputc('\n', file) == EOF ?
	      cairn_error(EIO, "slices: cannot write: %s", strerror(errno)) : 0;
	json_decref(root);
	return ret;
}
