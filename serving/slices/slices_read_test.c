// SPDX-License-Identifier: Apache-2.0
/* slices_read_test - slices are read as they were written; a file of other slices is refused by its member */
#include <jansson.h>

#include "conformance/harness.h"
#include "serving/graph/op_graph_test.h"
#include "serving/slices/slices.h"

static const int32_t one = 1;

static struct cairn_pass_sizes sizes_of(const int32_t *dims)
{
	struct cairn_pass_sizes sizes = { .dims = dims, .qo_len = &one, .kv_len = &one, .num_requests = 1,
		.num_tokens = 1, .num_logits = 1 };

	memset(sizes.element, 2, sizeof(sizes.element));
	return sizes;
}

/* Returns the text of the graph's slices; the caller frees it. */
static char *text_of(struct cairn_test *t, const struct subject *s, struct cairn_slices **made)
{
	const struct cairn_pass_sizes sizes = sizes_of(s->dims);
	char *text = NULL;
	size_t len;
	FILE *file = open_memstream(&text, &len);

	*made = NULL;
	EXPECT(t, file && cairn_slices_create(made, s->g, &sizes) == 0);
	EXPECT(t, *made && cairn_slices_write(*made, s->g, &sizes, file) == 0);
	if (file)
		fclose(file);
	return text;
}

static int same_slices(const struct cairn_slices *a, const struct cairn_slices *b)
{
	int32_t n = a->num_slices;

	return n == b->num_slices && a->num_steps == b->num_steps && a->num_saves == b->num_saves &&
	       !memcmp(a->slices, b->slices, (size_t)n * sizeof(*a->slices)) &&
	       !memcmp(a->seams, b->seams, (size_t)(n - 1) * sizeof(*a->seams)) &&
	       !memcmp(a->steps, b->steps, (size_t)a->num_steps * sizeof(*a->steps)) &&
	       !memcmp(a->saves, b->saves, (size_t)a->num_saves * sizeof(*a->saves));
}

static void as_written(struct cairn_test *t)
{
	struct subject s[NUM_MODELS];
	int num = open_subjects(t, s);

	for (int i = 0; i < num; i++) {
		const struct cairn_pass_sizes sizes = sizes_of(s[i].dims);
		struct cairn_slices *made, *read = NULL;
		char *text;

		if (!s[i].g)
			continue;
		text = text_of(t, &s[i], &made);
		if (EXPECT(t, cairn_slices_read(&read, s[i].g, &sizes, text, strlen(text), "f") == 0))
			EXPECT(t, same_slices(made, read));
		else
			cairn_note(t, "%s: %s", s[i].name, cairn_last_error());
		cairn_slices_destroy(made);
		cairn_slices_destroy(read);
		free(text);
	}
	close_subjects(s, num);
}

/* ---- files of other slices ---- */

static json_t *slice(json_t *root, int i)
{
	return json_array_get(json_object_get(root, "slices"), (size_t)i);
}

static json_t *saves(json_t *root)
{
	return json_object_get(slice(root, 0), "saves");
}

static json_t *steps(json_t *root, int i)
{
	return json_object_get(slice(root, i), "steps");
}

static json_t *step(json_t *root, int i, int k)
{
	return json_array_get(steps(root, i), (size_t)k);
}

static void put(json_t *object, const char *key, json_t *value)
{
	json_object_set_new(object, key, value);
}

static void other_format(json_t *r) { put(r, "format", json_string("cairn-slices 2")); }
static void other_tokens(json_t *r) { put(r, "tokens", json_integer(2)); }
static void no_slices(json_t *r) { json_object_del(r, "slices"); }
static void more_members(json_t *r) { put(r, "also", json_true()); }
static void other_symbol(json_t *r) { put(json_object_get(r, "symbols"), "hidden", json_integer(4095)); }
static void symbol_missing(json_t *r) { json_object_del(json_object_get(r, "symbols"), "qkv"); }
static void symbol_added(json_t *r) { put(json_object_get(r, "symbols"), "h\n", json_integer(1)); }
static void value_missing(json_t *r) { json_object_del(json_object_get(r, "values"), "layers.3.o"); }
static void seam_missing(json_t *r) { json_array_remove(json_object_get(r, "seams"), 31); }
static void slice_missing(json_t *r) { json_array_remove(json_object_get(r, "slices"), 32); }
static void slice_a_number(json_t *r) { json_array_set(json_object_get(r, "slices"), 4, json_true()); }
static void slice_has_more(json_t *r) { put(slice(r, 4), "also", json_true()); }
static void nothing_comes_in(json_t *r) { put(slice(r, 1), "inputs", json_array()); }
static void saves_unknown(json_t *r) { put(slice(r, 0), "saves", json_pack("[s]", "layers.99.o")); }
static void saves_a_number(json_t *r) { put(slice(r, 0), "saves", json_pack("[i]", 7)); }
static void saves_a_weight(json_t *r) { put(slice(r, 0), "saves", json_pack("[s]", "w_embed")); }
static void saves_twice(json_t *r) { json_array_append_new(saves(r), json_string("embedded")); }
static void saves_at_the_end(json_t *r) { put(slice(r, 32), "saves", json_pack("[s]", "embedded")); }
static void other_bytes(json_t *r) { put(slice(r, 2), "save_bytes", json_integer(8190)); }
static void step_no_object(json_t *r) { json_array_set(steps(r, 0), 0, json_true()); }
static void unknown_op(json_t *r) { put(step(r, 1, 1), "op", json_string("layers.0.p_proj")); }
static void other_op(json_t *r) { put(step(r, 1, 1), "op", json_string("layers.1.o_proj")); }
static void other_kind(json_t *r) { put(step(r, 1, 1), "kind", json_string("norm")); }
static void other_input(json_t *r) { put(step(r, 1, 1), "in", json_pack("[s]", "layers.0.o")); }
static void other_part(json_t *r) { put(step(r, 1, 7), "part", json_string("v")); }
static void part_added(json_t *r) { put(step(r, 1, 1), "part", json_string("q")); }
static void part_forgotten(json_t *r) { json_object_del(step(r, 1, 7), "part"); }
static void merge_of_another(json_t *r) { put(step(r, 1, 0), "merge", json_string("layers.1.attn")); }
static void step_missing(json_t *r) { json_array_remove(steps(r, 32), 1); }

static void attention_as_a_step(json_t *r)
{
	json_t *append = json_pack("{s:s, s:s, s:[s,s,s], s:[], s:[s]}", "op", "layers.1.kv_append",
				   "kind", "kv_append", "in", "layers.1.qkv_rotated", "layers.1.kv_before",
				   "paging", "weights", "out", "layers.1.kv");

	json_array_insert_new(steps(r, 1), 12, append);
}

static void endless_steps(json_t *r)
{
	for (int i = 0; i < 2000; i++)
		json_array_append(steps(r, 0), step(r, 0, 0));
}

#define REFUSED(fn, says)	{ #fn, fn, says }

static const struct {
	const char *name;
	void (*bend)(json_t *root);
	const char *says;
} refused[] = {
	REFUSED(other_format, "f: format: is \"cairn-slices 2\", not \"cairn-slices 1\""),
	REFUSED(other_tokens, "f: tokens"),
	REFUSED(no_slices, "f: slices"),
	REFUSED(more_members, "f: has other members than"),
	REFUSED(other_symbol, "f: symbols: \"hidden\" is not that of the model"),
	REFUSED(symbol_missing, "f: symbols: \"qkv\" is not that of the model"),
	REFUSED(symbol_added, "f: symbols: \"h\\x0a\" is not that of the model"),
	REFUSED(value_missing, "f: values: \"layers.3.o\" is not that of the model"),
	REFUSED(seam_missing, "f: seams: has 31 seams, the model has 32 attention operators"),
	REFUSED(slice_missing, "f: slices: has 32 slices, not 33"),
	REFUSED(slice_a_number, "f: slices[4]: is no object"),
	REFUSED(slice_has_more, "f: slices[4]: is no object of inputs, steps, saves and save_bytes"),
	REFUSED(nothing_comes_in, "f: slices[1]: inputs: differs from what the slice before it saves"),
	REFUSED(saves_unknown, "f: slices[0]: saves: is no list of values in the order of the model"),
	REFUSED(saves_a_number, "f: slices[0]: saves: is no list of values in the order of the model"),
	REFUSED(saves_a_weight, "f: slices[0]: saves: has a value that is no activation"),
	REFUSED(saves_twice, "f: slices[0]: saves: is no list of values in the order of the model"),
	REFUSED(saves_at_the_end, "f: slices[32]: saves: is not empty, but nothing follows"),
	REFUSED(other_bytes, "f: slices[2]: save_bytes: differs from the bytes of what it saves"),
	REFUSED(step_no_object, "f: slices[0].steps[0]: is no operation, message or merge"),
	REFUSED(unknown_op, "f: slices[1].steps[1]: is no operation, message or merge"),
	REFUSED(other_op, "f: slices[1].steps[1]: differs from this operation of the model"),
	REFUSED(other_kind, "f: slices[1].steps[1]: differs from this operation of the model"),
	REFUSED(other_input, "f: slices[1].steps[1]: differs from this operation of the model"),
	REFUSED(other_part, "f: slices[1].steps[7]: differs from this operation of the model"),
	REFUSED(part_added, "'layers.0.o_proj' cannot run in parts"),
	REFUSED(part_forgotten, "'layers.1.qkv_proj' runs twice"),
	REFUSED(merge_of_another, "f: slices[1].steps[0]: differs from this operation of the model"),
	REFUSED(step_missing, "f: slices: slice 32: "),
	REFUSED(attention_as_a_step, "runs 'layers.1.kv_append', which belongs to the attention worker"),
	REFUSED(endless_steps, "has more steps before it than the model has operations"),
};

static void bent(struct cairn_test *t)
{
	struct cairn_slices *made, *read = NULL;
	struct cairn_pass_sizes sizes;
	struct subject s;
	char *text;

	if (open_shape(t, &s, "llama3-8b"))
		return;
	sizes = sizes_of(s.dims);
	text = text_of(t, &s, &made);
	for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
		json_t *root = json_loads(text, 0, NULL);
		char *other;

		refused[i].bend(root);
		other = json_dumps(root, 0);
		if (!EXPECT(t, cairn_slices_read(&read, s.g, &sizes, other, strlen(other), "f") == -EINVAL))
			cairn_note(t, "%s", refused[i].name);
		EXPECT_CONTAINS(t, cairn_last_error(), refused[i].says);
		free(other);
		json_decref(root);
	}
	for (size_t len = 0; len < strlen(text); len += 20011)
		EXPECT(t, cairn_slices_read(&read, s.g, &sizes, text, len, "f") == -EINVAL);
	free(text);
	cairn_slices_destroy(made);
	cairn_op_graph_destroy(s.g);
}

static const struct cairn_unit units[] = {
	{ "as_written", as_written },
	{ "bent", bent },
};

const struct cairn_family cairn_slices_read_family = {
	.stage = "serving", .name = "slices_read", .units = units, .num_units = ARRAY_SIZE(units),
};
