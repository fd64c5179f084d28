// SPDX-License-Identifier: Apache-2.0
/* pt2 - opens an exported program and checks its graph (pt2.h) */
#include "serving/pt2/pt2_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define MAX_JSON	((size_t)256 << 20)
#define MAX_VALUES	(1 << 22)

/* ---- names ---- */

/* A hash table of value + 1 by name, open addressing. */
struct cairn_pt2_names {
	uint32_t mask;
	int32_t at[];
};

static uint32_t hash(const char *name)
{
	uint32_t h = 2166136261u;

	while (*name)
		h = (h ^ (unsigned char)*name++) * 16777619u;
	return h;
}

static int32_t *slot(const struct cairn_pt2 *p, const char *name)
{
	uint32_t i = hash(name) & p->names->mask;

	while (p->names->at[i] && strcmp(p->values[p->names->at[i] - 1].name, name))
		i = (i + 1) & p->names->mask;
	return &p->names->at[i];
}

int32_t cairn_pt2_find(const struct cairn_pt2 *p, const char *name)
{
	return *slot(p, name) - 1;
}

/* ---- values ---- */

int64_t cairn_pt2_dtype_bytes(enum cairn_pt2_dtype dtype)
{
	static const int8_t bytes[] = {
		[CAIRN_PT2_U8] = 1, [CAIRN_PT2_I8] = 1, [CAIRN_PT2_I16] = 2, [CAIRN_PT2_I32] = 4,
		[CAIRN_PT2_I64] = 8, [CAIRN_PT2_F16] = 2, [CAIRN_PT2_F32] = 4, [CAIRN_PT2_F64] = 8,
		[CAIRN_PT2_BOOL] = 1, [CAIRN_PT2_BF16] = 2,
	};

	return (unsigned)dtype < sizeof(bytes) ? bytes[dtype] : 0;
}

const char *cairn_pt2_dtype_name(enum cairn_pt2_dtype dtype)
{
	static const char *const names[] = {
		[CAIRN_PT2_U8] = "u8", [CAIRN_PT2_I8] = "i8", [CAIRN_PT2_I16] = "i16",
		[CAIRN_PT2_I32] = "i32", [CAIRN_PT2_I64] = "i64", [CAIRN_PT2_F16] = "f16",
		[CAIRN_PT2_F32] = "f32", [CAIRN_PT2_F64] = "f64", [CAIRN_PT2_BOOL] = "bool",
		[CAIRN_PT2_BF16] = "bf16",
	};

	return names[dtype];
}

int cairn_pt2_shape(const struct cairn_pt2 *p, int32_t value, const int64_t *symbols,
		    int64_t size[CAIRN_PT2_RANK], int64_t *num)
{
	const struct cairn_pt2_value *v = &p->values[value];
	int64_t bytes = cairn_pt2_dtype_bytes(v->dtype);

	*num = 1;
	for (int32_t i = 0; i < v->rank; i++) {
		if (cairn_pt2_expr_value(&p->exprs, v->size[i], symbols, &size[i]))
			return cairn_error_prefix(-EINVAL, "%s: value %s", p->path, CAIRN_QUOTED(v->name));
		if (size[i] < 0)
			return cairn_error(EINVAL, "%s: value %s: size %d is %lld", p->path,
					   CAIRN_QUOTED(v->name), i, (long long)size[i]);
		if (__builtin_mul_overflow(*num, size[i], num) ||
		    __builtin_mul_overflow(bytes, size[i], &bytes) || bytes >> 62)
			return cairn_error(EINVAL, "%s: value %s: its bytes do not fit 62 bits", p->path,
					   CAIRN_QUOTED(v->name));
	}
	return 0;
}

/* Reads {"as_int": 4} or {"as_expr": {"expr_str": ..., "hint": {"as_int": 6}}}. Returns an expression. */
int32_t pt2_read_size(struct cairn_pt2 *p, const json_t *from)
{
	const json_t *expr = json_object_get(from, "as_expr"), *fixed = json_object_get(from, "as_int");
	const char *text = json_string_value(json_object_get(expr, "expr_str"));
	const json_t *hint = json_object_get(json_object_get(expr, "hint"), "as_int");
	int32_t size, symbol;

	if (json_is_integer(fixed))
		return cairn_pt2_expr_int(&p->exprs, json_integer_value(fixed));
	if (!text)
		return cairn_error(EINVAL, "has a size that is neither as_int nor as_expr");
	size = cairn_pt2_expr_parse(&p->exprs, text);
	symbol = size < 0 ? -1 : cairn_pt2_expr_symbol(&p->exprs, size);
	if (symbol >= 0 && json_is_integer(hint))
		p->exprs.symbols[symbol].hint = json_integer_value(hint);
	return size;
}

static int read_meta(struct cairn_pt2 *p, struct cairn_pt2_value *v, const json_t *meta)
{
	const json_t *sizes = json_object_get(meta, "sizes"), *size;
	json_int_t dtype = json_integer_value(json_object_get(meta, "dtype"));
	size_t i;

	v->dtype = (enum cairn_pt2_dtype)(dtype > 0 && dtype < 100 ? dtype : 0);
	if (!cairn_pt2_dtype_bytes(v->dtype))
		return cairn_error(EINVAL, "has the dtype %lld, which is not read", (long long)dtype);
	if (json_integer_value(json_object_get(meta, "layout")) != 7)
		return cairn_error(EINVAL, "is no strided tensor");
	if (!json_is_array(sizes) || json_array_size(sizes) > CAIRN_PT2_RANK)
		return cairn_error(EINVAL, "has no sizes, or more than %d", CAIRN_PT2_RANK);
	v->rank = (int32_t)json_array_size(sizes);
	json_array_foreach(sizes, i, size) {
		v->size[i] = pt2_read_size(p, size);
		if (v->size[i] < 0)
			return v->size[i];
	}
	return 0;
}

/* Reads the metadata of all tensors, so that values are known by name. */
static int read_values(struct cairn_pt2 *p, json_t *graph, struct cairn_json_at at)
{
	json_t *tensors, *meta;
	const char *name;
	uint32_t room = 64;

	CAIRN_TRY(cairn_json_child(graph, at, "tensor_values", true, JSON_OBJECT, &tensors));
	if (json_object_size(tensors) > MAX_VALUES)
		return cairn_error(EINVAL, "%s: tensor_values has more than %d tensors", p->path, MAX_VALUES);
	while (room < 2 * json_object_size(tensors))
		room *= 2;
	p->values = calloc(json_object_size(tensors) + 1, sizeof(*p->values));
	p->names = calloc(1, sizeof(*p->names) + room * sizeof(*p->names->at));
	if (!p->values || !p->names)
		return cairn_error(ENOMEM, "%s: no memory", p->path);
	p->names->mask = room - 1;
	json_object_foreach(tensors, name, meta) {
		struct cairn_pt2_value *v = &p->values[p->num_values];
		int ret = read_meta(p, v, meta);

		if (ret)
			return cairn_error_prefix(ret == -ENOMEM ? ret : -EINVAL, "%s: value %s", p->path,
						  CAIRN_QUOTED(name));
		v->name = name;
		v->kind = CAIRN_PT2_RESULT;
		v->producer = -1;
		*slot(p, name) = ++p->num_values;
	}
	return 0;
}

/* ---- file ---- */

static int read_ranges(struct cairn_pt2 *p, struct cairn_json_at at)
{
	json_t *ranges, *range;
	const char *name;

	CAIRN_TRY(cairn_json_child(p->root, at, "range_constraints", true, JSON_OBJECT, &ranges));
	json_object_foreach(ranges, name, range) {
		const json_t *least = json_object_get(range, "min_val");
		const json_t *most = json_object_get(range, "max_val");
		int32_t symbol = cairn_pt2_symbol(&p->exprs, name);
		struct cairn_pt2_symbol *s;

		if (symbol < 0)
			return cairn_error_prefix(-EINVAL, "%s: range_constraints", p->path);
		s = &p->exprs.symbols[symbol];
		if (json_is_integer(least) && json_integer_value(least) > 0)
			s->least = json_integer_value(least);
		if (json_is_integer(most))
			s->most = json_integer_value(most);
		if (s->most < s->least || (s->hint && (s->hint < s->least || s->hint > s->most)))
			return cairn_error(EINVAL, "%s: range_constraints: %s: has no value, or not that of "
					   "the example", p->path, CAIRN_QUOTED(name));
	}
	return 0;
}

static int read_program(struct cairn_pt2 *p)
{
	struct cairn_json_at at = { p->path, "" };
	json_t *version, *module, *graph, *signature;
	int64_t major;

	CAIRN_TRY(cairn_json_child(p->root, at, "schema_version", true, JSON_OBJECT, &version));
	CAIRN_TRY(cairn_json_int(version, (struct cairn_json_at){ p->path, "schema_version." }, "major", true,
				 8, 8, &major));
	CAIRN_TRY(cairn_json_child(p->root, at, "graph_module", true, JSON_OBJECT, &module));
	at.where = "graph_module.";
	CAIRN_TRY(cairn_json_child(module, at, "graph", true, JSON_OBJECT, &graph));
	CAIRN_TRY(cairn_json_child(module, at, "signature", true, JSON_OBJECT, &signature));
	at.where = "graph_module.graph.";
	CAIRN_TRY(read_values(p, graph, at));
	CAIRN_TRY(read_ranges(p, (struct cairn_json_at){ p->path, "" }));
	return pt2_read_graph(p, graph, signature);
}

static int parse_file(struct cairn_pt2 *p, const struct cairn_zip_file *f, json_t **root)
{
	if (f->num_bytes > MAX_JSON)
		return cairn_error(EINVAL, "%s: %s has %zu bytes, more than %zu", p->path,
				   CAIRN_QUOTED(f->name), f->num_bytes, MAX_JSON);
	CAIRN_TRY(cairn_zip_verify(p->zip, f));
	return cairn_json_parse(f->data, f->num_bytes, p->path, false, root);
}

static int ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

/* Finds the JSON of the one model; all files lie in a folder named for the archive, or in none. */
static int find_model(struct cairn_pt2 *p, const struct cairn_zip_file **model)
{
	*model = NULL;
	for (size_t i = 0; i < cairn_zip_count(p->zip); i++) {
		const struct cairn_zip_file *f = cairn_zip_at(p->zip, i);
		const char *slash = strchr(f->name, '/');
		const char *rest = !strncmp(f->name, "models/", 7) || !slash ? f->name : slash + 1;
		int is_model = !strcmp(rest, "serialized_exported_program.json") ||
			       (!strncmp(rest, "models/", 7) && !strchr(rest + 7, '/') &&
				ends_with(rest, ".json"));

		if (!is_model)
			continue;
		if (*model)
			return cairn_error(EINVAL, "%s: has more than one model: %s and %s", p->path,
					   CAIRN_QUOTED((*model)->name), CAIRN_QUOTED(f->name));
		*model = f;
		free(p->prefix);
		p->prefix = strndup(f->name, (size_t)(rest - f->name));
		if (!p->prefix)
			return cairn_error(ENOMEM, "%s: no memory", p->path);
	}
	return *model ? 0 : cairn_error(EINVAL, "%s: has no models/NAME.json: is it a file of "
					"torch.export.save()?", p->path);
}

/* Reads the configs of weights and constants of the model; the old layout has none. */
static int read_weight_configs(struct cairn_pt2 *p, const char *model)
{
	static const char *const folders[] = { "weights", "constants" };
	const char *name = strrchr(model, '/') ? strrchr(model, '/') + 1 : model;
	char path[512];

	for (int i = 0; i < 2; i++) {
		const struct cairn_zip_file *f;
		json_t *root = NULL;

		snprintf(path, sizeof(path), "%sdata/%s/%.*s_%s_config.json", p->prefix, folders[i],
			 (int)(strlen(name) - strlen(".json")), name, folders[i]);
		f = cairn_zip_find(p->zip, path);
		if (!f)
			continue;
		CAIRN_TRY(parse_file(p, f, &root));
		p->weights[i] = json_incref(json_object_get(root, "config"));
		json_decref(root);
		if (!json_is_object(p->weights[i]))
			return cairn_error(EINVAL, "%s: %s: has no config", p->path, CAIRN_QUOTED(path));
	}
	return 0;
}

static int open_program(struct cairn_pt2 **out, const void *bytes, size_t num_bytes, const char *path)
{
	const struct cairn_zip_file *model = NULL;
	struct cairn_pt2 *p = calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return cairn_error(ENOMEM, "%s: no memory", path);
	p->path = strdup(path);
	ret = !p->path ? cairn_error(ENOMEM, "%s: no memory", path) :
	      bytes ? cairn_zip_open_mem(&p->zip, bytes, num_bytes, path) : cairn_zip_open(&p->zip, path);
	if (!ret)
		ret = find_model(p, &model);
	if (!ret)
		ret = parse_file(p, model, &p->root);
	if (!ret)
		ret = read_program(p);
	if (!ret)
		ret = read_weight_configs(p, model->name);
	if (ret)
		cairn_pt2_close(p);
	else
		*out = p;
	return ret;
}

int cairn_pt2_open(struct cairn_pt2 **out, const char *path)
{
	return open_program(out, NULL, 0, path);
}

int cairn_pt2_open_mem(struct cairn_pt2 **out, const void *bytes, size_t num_bytes, const char *name)
{
	return open_program(out, bytes, num_bytes, name);
}

void cairn_pt2_close(struct cairn_pt2 *p)
{
	if (!p)
		return;
	cairn_pt2_exprs_free(&p->exprs);
	for (int i = 0; i < 2; i++)
		json_decref(p->weights[i]);
	json_decref(p->syms);
	json_decref(p->root);
	cairn_zip_close(p->zip);
	free(p->values);
	free(p->nodes);
	free(p->ids);
	free(p->inputs);
	free(p->outputs);
	free(p->names);
	free(p->path);
	free(p->prefix);
	free(p);
}

/* ---- weights ---- */

static int is_contiguous(const json_t *meta)
{
	const json_t *sizes = json_object_get(meta, "sizes"), *strides = json_object_get(meta, "strides");
	json_int_t want = 1, offset = json_integer_value(json_object_get(json_object_get(meta,
						       "storage_offset"), "as_int"));

	for (size_t i = json_array_size(sizes); i-- > 0;) {
		json_int_t size = json_integer_value(json_object_get(json_array_get(sizes, i), "as_int"));
		json_int_t stride = json_integer_value(json_object_get(json_array_get(strides, i), "as_int"));

		if (size != 1 && stride != want)
			return 0;
		if (__builtin_mul_overflow(want, size, &want))
			return 0;
	}
	return !offset;
}

int cairn_pt2_weight(const struct cairn_pt2 *p, int32_t value, const void **data, size_t *num_bytes)
{
	const struct cairn_pt2_value *v = &p->values[value];
	int64_t symbols[CAIRN_PT2_SYMBOLS] = { 0 }, size[CAIRN_PT2_RANK], num;
	const struct cairn_zip_file *f = NULL;
	const json_t *entry = NULL;
	const char *name;
	char path[512];

	for (int i = 0; i < 2 && !f; i++) {
		entry = v->weight ? json_object_get(p->weights[i], v->weight) : NULL;
		name = json_string_value(json_object_get(entry, "path_name"));
		if (!name)
			continue;
		if (json_is_true(json_object_get(entry, "use_pickle")))
			return cairn_error(EINVAL, "%s: %s is pickled, and pickles are not opened", p->path,
					   CAIRN_QUOTED(v->weight));
		snprintf(path, sizeof(path), "%sdata/%s/%s", p->prefix, i ? "constants" : "weights", name);
		f = cairn_zip_find(p->zip, path);
	}
	if (!f)
		return cairn_error(EINVAL, "%s: has no data of %s", p->path, CAIRN_QUOTED(v->name));
	if (!is_contiguous(json_object_get(entry, "tensor_meta")))
		return cairn_error(EINVAL, "%s: %s is not contiguous", p->path, CAIRN_QUOTED(v->weight));
	CAIRN_TRY(cairn_pt2_shape(p, value, symbols, size, &num));
	if (f->num_bytes != (size_t)(num * cairn_pt2_dtype_bytes(v->dtype)))
		return cairn_error(EINVAL, "%s: %s has %zu bytes, and its shape needs %lld", p->path,
				   CAIRN_QUOTED(v->weight), f->num_bytes,
				   (long long)(num * cairn_pt2_dtype_bytes(v->dtype)));
	CAIRN_TRY(cairn_zip_verify(p->zip, f));
	*data = f->data;
	*num_bytes = f->num_bytes;
	return 0;
}
