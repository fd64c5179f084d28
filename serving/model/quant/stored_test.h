/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored_test - changes the weights of a golden checkpoint in the test's directory; a small model
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_STORED_TEST_H
#define CAIRN_STORED_TEST_H

#include "serving/base/json.h"
#include "serving/model/model_test.h"

/* Opens the cpu table, and sets c to a narrow Llama of two layers. */
static inline int open_small(struct cairn_test *t, struct cairn_impl *impl, struct cairn_model_config *c)
{
	if (open_table(t, "cpu", impl) || !EXPECT(t, cairn_model_shape("llama3-8b", c) == 0))
		return -1;
	c->hidden_size = 256;
	c->intermediate_size = 320;
	c->num_hidden_layers = 2;
	c->vocab_size = 40;
	c->num_attention_heads = 2;
	c->num_key_value_heads = 1;
	return 0;
}

/* Replaces text in the test's copy of a checkpoint's weights; `to` is as long as `from`. */
static inline int patch(struct cairn_test *t, const struct golden *g, const char *from, const char *to)
{
	char path[PATH_MAX + 32], *text, *at;
	size_t n = 0;
	int ret;

	snprintf(path, sizeof(path), "%s/model.safetensors", g->dir);
	if (!EXPECT(t, cairn_read_file(path, 1 << 26, &text, &n) == 0))
		return -1;
	at = memmem(text, n, from, strlen(from));
	if (EXPECT(t, at != NULL)) {
		memcpy(at, to, strlen(to));
		cairn_tmpfile(t, path, sizeof(path), "model.safetensors", text, n);
	}
	ret = at ? 0 : -1;
	free(text);
	return ret;
}

/* Writes bytes over the start of a tensor in the test's copy of a checkpoint. */
static inline int overwrite(struct cairn_test *t, const struct golden *g, const char *name,
			    const void *bytes, size_t count)
{
	char path[PATH_MAX + 32], quoted[128], *text, *at, *offset = NULL;
	size_t n = 0, begin = 0;

	snprintf(path, sizeof(path), "%s/model.safetensors", g->dir);
	snprintf(quoted, sizeof(quoted), "\"%s\"", name);
	if (!EXPECT(t, cairn_read_file(path, 1 << 26, &text, &n) == 0))
		return -1;
	at = memmem(text, n, quoted, strlen(quoted));
	if (at)
		offset = strstr(at, "\"data_offsets\":[");
	if (EXPECT(t, offset && sscanf(offset, "\"data_offsets\":[%zu", &begin) == 1)) {
		memcpy(text + 8 + RECIPE_HEADER + begin, bytes, count);
		cairn_tmpfile(t, path, sizeof(path), "model.safetensors", text, n);
	}
	free(text);
	return offset ? 0 : -1;
}

#endif
