// SPDX-License-Identifier: Apache-2.0
/*
 * slices_read - reads the format "cairn-slices 1" (README.md)
 *
 * A member that follows from the graph is made anew and compared, so that what is read can only be what the
 * writer could have written for this graph. Whether the steps compute the graph is then checked as for slices
 * that were made here.
 */
#include "serving/slices/slices_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

struct reader {
	struct cairn_slices *s;
	const struct cairn_op_graph *g;
	const struct cairn_pass_sizes *sizes;
	const char *file;
	char where[48];			/* "slices[3].steps[0]" */
	int32_t step_room;
};

static int bad(const struct reader *r, const char *what)
{
	return cairn_error(EINVAL, "%s: %s: %s", r->file, r->where, what);
}

/* Compares a member with what it must be, and takes the reference to that. */
static int same(const struct reader *r, const json_t *got, json_t *want, const char *what)
{
	int equal = want && json_equal(got, want);

	if (!want)
		return cairn_error(ENOMEM, "slices: no memory");
	json_decref(want);
	return equal ? 0 : bad(r, what);
}

/* Compares an object member by member, so that the text names the first one that differs. */
static int same_members(struct reader *r, json_t *got, json_t *want, const char *name)
{
	const char *key = NULL, *differs = NULL;
	json_t *value;

	if (!want)
		return cairn_error(ENOMEM, "slices: no memory");
	json_object_foreach(want, key, value) {
		if (json_equal(value, json_object_get(got, key)))
			continue;
		differs = key;
		break;
	}
	json_object_foreach(got, key, value)
		differs = differs || json_object_get(want, key) ? differs : key;
	if (differs) {
		char quoted[CAIRN_QUOTE_LEN];

		cairn_error(EINVAL, "%s: %s: %s is not that of the model", r->file, name,
			    cairn_quote(differs, strlen(differs), quoted));
	}
	json_decref(want);
	return differs ? -EINVAL : 0;
}

static int32_t find_op(const struct cairn_op_graph *g, const char *name)
{
	int32_t o = 0;

	while (o < g->num_ops && strcmp(g->ops[o].name, name))
		o++;
	return o < g->num_ops ? o : -1;
}

static int read_step(struct reader *r, const json_t *from)
{
	static const char *const kinds[] = { "op", "send_q", "send_kv", "merge" };
	static const char *const parts[] = { "", "q", "kv" };
	struct cairn_slice_step step = { .op = -1 };
	const char *part = json_string_value(json_object_get(from, "part"));

	for (int i = 0; i < 4 && step.op < 0; i++) {
		const char *name = json_string_value(json_object_get(from, kinds[i]));

		step.kind = (enum cairn_step_kind)i;
		step.op = name ? find_op(r->g, name) : -1;
	}
	for (int i = 1; part && i < 3; i++)
		if (!strcmp(part, parts[i]))
			step.part = (enum cairn_step_part)i;
	if (step.op < 0)
		return bad(r, "is no operation, message or merge of the model");
	CAIRN_TRY(same(r, from, cairn_slices_step(r->g, &step), "differs from this operation of the model"));
	if (r->s->num_steps == r->step_room)
		return bad(r, "has more steps before it than the model has operations");
	r->s->steps[r->s->num_steps++] = step;
	return 0;
}

static int read_saves(struct reader *r, const json_t *from, struct cairn_slice *slice)
{
	const json_t *name;
	size_t i;

	if (!json_is_array(from) || json_array_size(from) > (size_t)r->g->num_values)
		return bad(r, "saves: is no list of values");
	slice->first_save = r->s->num_saves;
	json_array_foreach(from, i, name) {
		int32_t v = json_is_string(name) ? cairn_op_graph_find(r->g, json_string_value(name)) : -1;

		if (v < 0 || (i && v <= r->s->saves[r->s->num_saves - 1]))
			return bad(r, "saves: is no list of values in the order of the model");
		if (r->g->values[v].kind != CAIRN_VALUE_ACTIVATION)
			return bad(r, "saves: has a value that is no activation");
		r->s->saves[r->s->num_saves++] = v;
		slice->num_saves++;
		slice->save_bytes += cairn_value_bytes(&r->g->values[v], r->sizes);
	}
	return 0;
}

static int more_saves(struct cairn_slices *s, const struct cairn_op_graph *g)
{
	int32_t *saves = realloc(s->saves, (size_t)(s->num_saves + g->num_values) * sizeof(*saves));

	if (!saves)
		return cairn_error(ENOMEM, "slices: no memory");
	s->saves = saves;
	return 0;
}

static int read_slice(struct reader *r, json_t *from, int32_t index)
{
	static const struct cairn_slice none;
	struct cairn_slice *slice = &r->s->slices[index];
	const struct cairn_slice *before = index ? slice - 1 : &none;
	json_t *steps = json_object_get(from, "steps"), *step;
	size_t i;

	snprintf(r->where, sizeof(r->where), "slices[%d]", index);
	if (json_object_size(from) != 4 || !json_is_array(steps))
		return bad(r, "is no object of inputs, steps, saves and save_bytes");
	CAIRN_TRY(more_saves(r->s, r->g));
	CAIRN_TRY(same(r, json_object_get(from, "inputs"),
		       cairn_slices_names(r->g, r->s->saves + before->first_save, before->num_saves),
		       "inputs: differs from what the slice before it saves"));
	if (index + 1 < r->s->num_slices)
		CAIRN_TRY(read_saves(r, json_object_get(from, "saves"), slice));
	else
		CAIRN_TRY(same(r, json_object_get(from, "saves"), json_array(), "saves: is not empty, but "
			       "nothing follows"));
	CAIRN_TRY(same(r, json_object_get(from, "save_bytes"), json_integer(slice->save_bytes),
		       "save_bytes: differs from the bytes of what it saves"));
	slice->first_step = r->s->num_steps;
	json_array_foreach(steps, i, step) {
		snprintf(r->where, sizeof(r->where), "slices[%d].steps[%zu]", index, i);
		CAIRN_TRY(read_step(r, step));
		slice->num_steps++;
	}
	return 0;
}

static int read_seams(struct reader *r, json_t *from)
{
	if (json_array_size(from) != (size_t)r->g->num_attn)
		return cairn_error(EINVAL, "%s: seams: has %zu seams, the model has %d attention operators",
				   r->file, json_array_size(from), r->g->num_attn);
	for (int32_t i = 0; i < r->g->num_attn; i++) {
		snprintf(r->where, sizeof(r->where), "seams[%d]", i);
		CAIRN_TRY(cairn_seam_find(&r->s->seams[i], r->g, i));
		CAIRN_TRY(same(r, json_array_get(from, (size_t)i),
			       cairn_slices_seam(r->g, &r->s->seams[i]), "differs from that of the model"));
	}
	return 0;
}

static int read_root(struct reader *r, json_t *root)
{
	const struct cairn_json_at at = { r->file, "" };
	json_t *symbols, *values, *seams, *slices;
	const char *format;
	int64_t tokens;

	CAIRN_TRY(cairn_json_string(root, at, "format", true, &format, NULL));
	if (strcmp(format, "cairn-slices 1"))
		return cairn_error(EINVAL, "%s: format: is %s, not \"cairn-slices 1\"", r->file,
				   CAIRN_QUOTED(format));
	CAIRN_TRY(cairn_json_int(root, at, "tokens", true, r->sizes->num_tokens, r->sizes->num_tokens,
				 &tokens));
	CAIRN_TRY(cairn_json_child(root, at, "symbols", true, JSON_OBJECT, &symbols));
	CAIRN_TRY(cairn_json_child(root, at, "values", true, JSON_OBJECT, &values));
	CAIRN_TRY(cairn_json_child(root, at, "seams", true, JSON_ARRAY, &seams));
	CAIRN_TRY(cairn_json_child(root, at, "slices", true, JSON_ARRAY, &slices));
	if (json_object_size(root) != 6)
		return cairn_error(EINVAL, "%s: has other members than format, tokens, symbols, values, "
				   "seams and slices", r->file);
	CAIRN_TRY(same_members(r, symbols, cairn_slices_symbols(r->g, r->sizes->dims), "symbols"));
	CAIRN_TRY(same_members(r, values, cairn_slices_values(r->g), "values"));
	CAIRN_TRY(read_seams(r, seams));
	if (json_array_size(slices) != (size_t)r->s->num_slices)
		return cairn_error(EINVAL, "%s: slices: has %zu slices, not %d", r->file,
				   json_array_size(slices), r->s->num_slices);
	for (int32_t i = 0; i < r->s->num_slices; i++)
		CAIRN_TRY(read_slice(r, json_array_get(slices, (size_t)i), i));
	return 0;
}

int cairn_slices_read(struct cairn_slices **out, const struct cairn_op_graph *g,
		      const struct cairn_pass_sizes *sizes, const char *text, size_t num_bytes,
		      const char *file)
{
	struct reader r = {
		.s = calloc(1, sizeof(*r.s)), .g = g, .sizes = sizes, .file = file,
		.step_room = 2 * g->num_ops + 3 * g->num_attn,	/* as in cairn_slices_create() */
	};
	json_t *root = NULL;
	int ret = r.s ? cairn_json_parse(text, num_bytes, file, false, &root) :
		  cairn_error(ENOMEM, "slices: no memory");

	if (!ret) {
		r.s->num_slices = g->num_attn + 1;
		r.s->slices = calloc((size_t)r.s->num_slices, sizeof(*r.s->slices));
		r.s->seams = calloc((size_t)r.s->num_slices, sizeof(*r.s->seams));
		r.s->steps = malloc(((size_t)r.step_room + 1) * sizeof(*r.s->steps));
		ret = r.s->slices && r.s->seams && r.s->steps ? read_root(&r, root) :
		      cairn_error(ENOMEM, "slices: no memory");
	}
	json_decref(root);
	if (!ret && cairn_slices_check(r.s, g))
		ret = cairn_error_prefix(-EINVAL, "%s", file);
	if (ret)
		cairn_slices_destroy(r.s);
	else
		*out = r.s;
	return ret;
}
