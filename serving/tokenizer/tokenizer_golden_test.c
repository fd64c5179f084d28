/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_golden - opens variants of the golden tokenizers */
#include "serving/tokenizer/tokenizer_golden_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer.h"

static int read_golden(const char *name, json_t **out)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/serving/golden/%s.json", cairn_srcdir(), name);
	return cairn_json_read(path, 16 << 20, true, out);
}

int cairn_golden_open(struct cairn_golden *g)
{
	int ret;

	memset(g, 0, sizeof(*g));
	ret = read_golden("tokenizer", &g->root);
	if (!ret)
		ret = read_golden("bytelevel", &g->bytelevel);
	if (!ret)
		ret = read_golden("spm", &g->spm);
	if (ret)
		cairn_golden_close(g);
	return ret;
}

void cairn_golden_close(struct cairn_golden *g)
{
	json_decref(g->root);
	json_decref(g->bytelevel);
	json_decref(g->spm);
	memset(g, 0, sizeof(*g));
}

static void rename_tokens(json_t *vocab, json_t *renames)
{
	const char *from;
	json_t *to;

	json_object_foreach(renames, from, to) {
		json_object_set(vocab, json_string_value(to), json_object_get(vocab, from));
		json_object_del(vocab, from);
	}
}

static void merges_as_strings(json_t *model)
{
	const json_t *pairs = json_object_get(model, "merges");
	json_t *list = json_array(), *pair;
	size_t i;

	json_array_foreach(pairs, i, pair)
		json_array_append_new(list,
				      json_sprintf("%s %s",
						   json_string_value(json_array_get(pair, 0)),
						   json_string_value(json_array_get(pair, 1))));
	json_object_set_new(model, "merges", list);
}

char *cairn_golden_file(const struct cairn_golden *g, size_t i)
{
	json_t *row = json_array_get(json_object_get(g->root, "variants"), i), *file, *model,
	       *value;
	const char *base, *key;
	char *text;

	if (!row)
		return NULL;
	base = json_string_value(json_object_get(row, "base"));
	file = json_deep_copy(!strcmp(base, "spm") ? g->spm : g->bytelevel);
	model = json_object_get(file, "model");
	json_object_foreach(json_object_get(row, "patch"), key, value) {
		if (!strcmp(key, "model"))
			json_object_update(model, value);
		else if (!strcmp(key, "rename"))
			rename_tokens(json_object_get(model, "vocab"), value);
		else if (!strcmp(key, "string_merges"))
			merges_as_strings(model);
		else
			json_object_set(file, key, value);
	}
	text = json_dumps(file, JSON_COMPACT);
	json_decref(file);
	return text;
}

struct cairn_tokenizer *cairn_golden_tokenizer(const struct cairn_golden *g, const char *name)
{
	const json_t *variants = json_object_get(g->root, "variants"), *row;
	struct cairn_tokenizer *tok = NULL;
	char *file;
	size_t i;

	json_array_foreach(variants, i, row) {
		if (strcmp(json_string_value(json_object_get(row, "name")), name))
			continue;
		file = cairn_golden_file(g, i);
		if (!file || cairn_tokenizer_open_mem(file, strlen(file), name, &tok))
			tok = NULL;
		free(file);
		return tok;
	}
	cairn_error(EINVAL, "no variant is called %s", name);
	return NULL;
}
