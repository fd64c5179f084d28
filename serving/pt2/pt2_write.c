// SPDX-License-Identifier: Apache-2.0
/* pt2_write - writes the slices of a program as JSON (serving/slices/README.md) */
#include <errno.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/pt2/pt2_slices.h"

/* jansson takes NULL for whatever could not be allocated, so that only the last call needs a check. */
static json_t *names_of(const struct cairn_pt2 *p, const int32_t *values, int32_t num)
{
	json_t *list = json_array();

	for (int32_t i = 0; i < num; i++)
		if (json_array_append_new(list, json_string(p->values[values[i]].name))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static json_t *symbols_of(const struct cairn_pt2 *p, const int64_t *symbols)
{
	json_t *all = json_object();

	for (int32_t i = 0; i < p->exprs.num_symbols; i++)
		if (json_object_set_new(all, p->exprs.symbols[i].name, json_integer(symbols[i]))) {
			json_decref(all);
			return NULL;
		}
	return all;
}

static json_t *shape_of(const struct cairn_pt2 *p, int32_t value, const int64_t *symbols)
{
	int64_t size[CAIRN_PT2_RANK], num;
	json_t *list = json_array();

	if (cairn_pt2_shape(p, value, symbols, size, &num)) {
		json_decref(list);
		return NULL;
	}
	for (int32_t i = 0; i < p->values[value].rank; i++)
		json_array_append_new(list, json_integer(size[i]));
	return list;
}

static json_t *values_of(const struct cairn_pt2 *p, const int64_t *symbols)
{
	static const char *const kinds[] = { "input", "weight", "constant", "activation" };
	json_t *all = json_object();
	int failed = !all;

	for (int32_t v = 0; v < p->num_values && !failed; v++) {
		const struct cairn_pt2_value *x = &p->values[v];
		json_t *value = json_pack("{s:s, s:s, s:o, s:s*}", "kind", kinds[x->kind], "dtype",
					  cairn_pt2_dtype_name(x->dtype), "shape",
					  shape_of(p, v, symbols), "name", x->weight);

		failed = json_object_set_new(all, x->name, value);
	}
	if (!failed)
		return all;
	json_decref(all);
	return NULL;
}

static json_t *op_of(const struct cairn_pt2 *p, int32_t node)
{
	const struct cairn_pt2_node *n = &p->nodes[node];

	return json_pack("{s:s, s:s, s:O, s:o, s:o}", "op", n->name, "kind", n->op->target, "args", n->args,
			 "in", names_of(p, p->ids + n->first_in, n->num_in),
			 "out", names_of(p, p->ids + n->first_out, n->num_out));
}

static json_t *step_of(const struct cairn_pt2 *p, const struct cairn_slice_step *step)
{
	static const char *const kinds[] = { "op", "send_q", "send_kv", "merge" };
	const struct cairn_pt2_node *n = &p->nodes[step->op];

	if (step->kind == CAIRN_STEP_OP)
		return op_of(p, step->op);
	if (step->kind == CAIRN_STEP_MERGE)
		return json_pack("{s:s, s:o}", "merge", n->name, "out",
				 names_of(p, p->ids + n->first_out, n->num_out));
	return json_pack("{s:s}", kinds[step->kind], n->name);
}

static json_t *slice_of(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p, int32_t index)
{
	static const struct cairn_slice none;
	const struct cairn_slice *slice = &s->slices[index], *before = index ? slice - 1 : &none;
	json_t *steps = json_array();

	for (int32_t i = 0; i < slice->num_steps; i++)
		if (json_array_append_new(steps, step_of(p, &s->steps[slice->first_step + i]))) {
			json_decref(steps);
			return NULL;
		}
	return json_pack("{s:o, s:o, s:o, s:I}",
			 "inputs", names_of(p, s->saves + before->first_save, before->num_saves),
			 "steps", steps, "saves", names_of(p, s->saves + slice->first_save, slice->num_saves),
			 "save_bytes", (json_int_t)slice->save_bytes);
}

static json_t *seam_of(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p, int32_t index)
{
	const struct cairn_pt2_seam *seam = &s->seams[index];
	json_t *ops = json_array();

	for (int32_t i = 0; i < seam->num_ops; i++)
		if (json_array_append_new(ops, op_of(p, s->far[seam->first_op + i]))) {
			json_decref(ops);
			return NULL;
		}
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "attention", op_of(p, seam->attn),
			 "q", names_of(p, &seam->q, 1), "k", names_of(p, &seam->k, 1),
			 "v", names_of(p, &seam->v, 1), "ops", ops);
}

static json_t *all(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p, const int64_t *symbols)
{
	json_t *slices = json_array(), *seams = json_array();
	int failed = !slices || !seams;

	for (int32_t i = 0; i < s->num_slices && !failed; i++)
		failed = json_array_append_new(slices, slice_of(s, p, i));
	for (int32_t i = 0; i + 1 < s->num_slices && !failed; i++)
		failed = json_array_append_new(seams, seam_of(s, p, i));
	if (failed) {
		json_decref(slices);
		json_decref(seams);
		return NULL;
	}
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "format", "cairn-slices 1", "source",
			 "torch.export", "symbols", symbols_of(p, symbols), "values", values_of(p, symbols),
			 "seams", seams, "slices", slices, "outputs",
			 names_of(p, p->outputs, p->num_outputs));
}

int cairn_pt2_slices_write(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p,
			   const int64_t *symbols, FILE *file)
{
	json_t *root = all(s, p, symbols);
	int ret;

	if (!root)
		return cairn_error(ENOMEM, "pt2: no memory");
	ret = json_dumpf(root, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER) || fputc('\n', file) == EOF ?
	      cairn_error(EIO, "slices: cannot write: %s", strerror(errno)) : 0;
	json_decref(root);
	return ret;
}
