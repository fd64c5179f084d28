// SPDX-License-Identifier: Apache-2.0
/* attn_variant_create - creates and destroys variants of callers' texts */
#include "fused/attention/variant/text/attn_variant_create.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "fused/attention/variant/text/attn_variant_compile.h"
#include "fused/attention/variant/text/attn_variant_scan.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MOST_TEXT	(64 << 10)

static void free_text(struct attn_variant_text *t)
{
	for (int i = 0; i < 2; i++) {
		if (t->library[i])
			dlclose(t->library[i]);
		for (int k = 0; k < 2; k++) {
			if (t->instances[i][k].loaded)
				t->unload(t->instances[i][k].loaded);
			free(t->instances[i][k].cubin);
		}
	}
	free(t->text);
	free(t->name);
	free(t);
}

/* Takes the text and the kernel of a compiled file. */
static int take_image(struct attn_variant_text *t, const void *data, size_t bytes)
{
	struct attn_variant_image image;
	struct attn_variant_instance *instance;

	CAIRN_TRY(attn_variant_image_read(data, bytes, t->name, &image));
	if ((image.dtype != CAIRN_F16 && image.dtype != CAIRN_BF16) ||
	    (image.head_dim != 64 && image.head_dim != 128)) {
		attn_variant_image_free(&image);
		return cairn_error(EINVAL, "%s: compiled for an unknown dtype or dimension", t->name);
	}
	t->text = image.text;
	instance = &t->instances[image.dtype == CAIRN_BF16][image.head_dim == 128];
	instance->cubin = image.cubin;
	instance->cubin_bytes = image.cubin_bytes;
	return 0;
}

static int fill(struct attn_variant_text *t, const void *data, size_t bytes, int32_t *variant)
{
	if (attn_variant_is_image(data, bytes)) {
		CAIRN_TRY(take_image(t, data, bytes));
	} else {
		if (bytes > MOST_TEXT)
			return cairn_error(EINVAL, "%s: more than %d bytes", t->name, MOST_TEXT);
		if (memchr(data, 0, bytes))
			return cairn_error(EINVAL, "%s: has a byte of value 0", t->name);
		t->text = calloc(1, bytes + 1);
		if (!t->text)
			return cairn_error(ENOMEM, "%s: no memory", t->name);
		memcpy(t->text, data, bytes);
	}
	CAIRN_TRY(attn_variant_scan(t->text, t->name, &t->hooks));
	CAIRN_TRY(attn_variant_compile_host(t));
	return attn_variant_add(t, variant);
}

int cairn_attn_variant_create(const void *data, size_t bytes, const char *name, int32_t *variant)
{
	struct attn_variant_text *t;
	int ret;

	if (!data || !name || !variant)
		return cairn_error(EINVAL, "attn_variant_create: null pointer");
	t = calloc(1, sizeof(*t));
	if (!t)
		return cairn_error(ENOMEM, "%s: no memory", name);
	t->name = strdup(name);
	ret = t->name ? fill(t, data, bytes, variant) : cairn_error(ENOMEM, "%s: no memory", name);
	if (ret)
		free_text(t);
	return ret;
}

void cairn_attn_variant_destroy(int32_t variant)
{
	struct attn_variant_text *t = attn_variant_remove(variant);

	if (t)
		free_text(t);
}

int cairn_attn_variant_build(const char *text, const char *name, int32_t dtype, int32_t head_dim,
			     const char *path)
{
	struct attn_variant_image image;
	int ret;

	CAIRN_TRY(attn_variant_compile_device(text, name, dtype, head_dim, &image));
	ret = attn_variant_image_write(&image, path);
	attn_variant_image_free(&image);
	return ret;
}
