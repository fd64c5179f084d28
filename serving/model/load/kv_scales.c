// SPDX-License-Identifier: Apache-2.0
/*
 * kv_scales - reads the scales of an 8-bit KV cache from a checkpoint
 *
 * Quantised checkpoints store a scale for the keys and one for the values of each layer, as one number or one
 * for each KV head. The names are those of vLLM and of llm-compressor.
 */
#include "serving/model/load/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

const char *const cairn_kv_names[] = { "plain", "fp8", NULL };

/* Returns a layer's scale tensor, for K (side 0) or V (side 1); NULL: the layer has none. */
static const struct cairn_tensor *find(const struct cairn_safetensors *st, int32_t layer, int side)
{
	static const char *const names[][2] = {
		{ "attn.k_scale", "attn.v_scale" }, { "k_scale", "v_scale" },
		{ "k_proj.k_scale", "v_proj.v_scale" },
	};
	const struct cairn_tensor *t = NULL;
	char name[128];

	for (size_t i = 0; !t && i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(name, sizeof(name), "model.layers.%d.self_attn.%s", layer, names[i][side]);
		t = cairn_safetensors_find(st, name);
	}
	return t;
}

/* Sets the scales of this rank's heads from a tensor that has one number in all or one per head. */
static int read_scales(const struct cairn_model *m, const struct cairn_tensor *t, float *scales)
{
	const int32_t heads = cairn_model_cached_heads(m), all = m->config.num_key_value_heads * m->kv_shares;
	const int32_t first = m->rank * m->kv_shares / m->ranks * heads + cairn_model_first_head(m);
	int dtype = cairn_st_to_dtype(t->dtype);
	size_t bytes;

	if (dtype != CAIRN_F32 && dtype != CAIRN_F16 && dtype != CAIRN_BF16)
		return cairn_error(EINVAL, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   t->file, t->name, cairn_st_dtype_name(t->dtype));
	bytes = cairn_dtype_bytes(dtype);
	if (t->num_bytes != bytes && t->num_bytes != (size_t)all * bytes)
		return cairn_error(EINVAL, "%s: %s: has %zu elements, must have 1 or %d "
				   "(num_key_value_heads)", t->file, t->name, t->num_bytes / bytes, all);
	for (int32_t g = 0; g < heads; g++) {
		const char *from = (const char *)t->data +
				   (t->num_bytes == bytes ? 0 : (size_t)(first + g) * bytes);
		uint64_t aligned = 0;

		memcpy(&aligned, from, bytes);	/* the file guarantees no alignment */
		scales[g] = (float)cairn_load(&aligned, dtype, 0);
		if (!(scales[g] > 0) || isinf(scales[g]))
			return cairn_error(EINVAL, "%s: %s: element %d is %g, must be finite and > 0",
					   t->file, t->name, first + g, (double)scales[g]);
	}
	return 0;
}

static int upload(struct cairn_model *m, const float *scales, size_t bytes)
{
	void *stream, *p;
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, bytes));
	m->kv_scales = p;
	CAIRN_TRY(CAIRN_TABLE(m->impl, stream_create, &stream));
	ret = CAIRN_TABLE(m->impl, mem_copy, p, scales, bytes, CAIRN_COPY_TO_DEVICE, stream);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, stream);
	m->impl->stream_destroy(stream);
	return ret;
}

int cairn_model_load_kv_scales(struct cairn_model *m, const struct cairn_safetensors *st)
{
	int32_t layers = m->config.num_hidden_layers, heads = cairn_model_cached_heads(m);
	size_t num = 2 * (size_t)layers * (size_t)heads;
	float *scales;
	int any = 0, ret = 0;

	if (m->kv != CAIRN_KV_FP8)
		return 0;
	scales = malloc(num * sizeof(*scales));
	if (!scales)
		return cairn_error(ENOMEM, "model: no memory");
	for (size_t i = 0; i < num; i++)
		scales[i] = 1;
	for (int32_t i = 0; !ret && i < 2 * layers; i++) {
		const struct cairn_tensor *t = find(st, m->config.first_layer + i % layers, i / layers);

		any |= t != NULL;
		if (t)
			ret = read_scales(m, t, scales + (size_t)i * (size_t)heads);
	}
	if (!ret && any)
		ret = upload(m, scales, num * sizeof(*scales));
	free(scales);
	return ret;
}

const float *cairn_model_kv_scale(const struct cairn_model *m, int32_t layer, int of_v)
{
	const int64_t heads = cairn_model_cached_heads(m);

	return m->kv_scales ? m->kv_scales + (of_v * m->config.num_hidden_layers + layer) * heads : NULL;
}
