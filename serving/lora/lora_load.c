// SPDX-License-Identifier: Apache-2.0
/*
 * lora_load - loads adapters beside a model
 *
 * All memory is zeroed first, so that ranks below the largest, and matrices that an adapter lacks, add zero.
 */
#include "serving/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/lora/lora_config.h"
#include "serving/base/json.h"
#include "serving/model/checkpoint/safetensors.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define ALIGNMENT	256
#define PREFIX		"base_model.model.model.layers."

/* The matrices that an adapter may change: part `part` of the packed weight number `place`. */
static const struct module {
	const char *name;
	int place, part;
} modules[] = {
	{ "self_attn.q_proj", 0, 0 }, { "self_attn.k_proj", 0, 1 }, { "self_attn.v_proj", 0, 2 },
	{ "self_attn.o_proj", 1, 0 }, { "mlp.gate_proj", 2, 0 }, { "mlp.up_proj", 2, 1 },
	{ "mlp.down_proj", 3, 0 },
};

struct loading {
	struct cairn_model *m;
	struct cairn_lora *lora;
	void *stream;
	int32_t slot;			/* of the adapter being loaded */
	int32_t rank;			/* its own */
	const char *file;		/* of its tensors */
	uint8_t *seen;			/* [layers, modules]: 1: has A, 2: has B */
};

static size_t aligned(size_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Sets the shapes and places of all matrices; lora->num and lora->rank are known. */
static void lay_out(const struct cairn_model *m, struct cairn_lora *lora)
{
	const int32_t *d = m->dims, q = d[CAIRN_D_Q], kv = d[CAIRN_D_KV], inter = d[CAIRN_D_INTER];
	const struct cairn_lora_weight shapes[CAIRN_LORA_WEIGHTS] = {
		{ .n = d[CAIRN_D_QKV], .k = d[CAIRN_D_HIDDEN], .num_parts = 3,
		  .part_end = { q, q + kv, q + 2 * kv } },
		{ .n = d[CAIRN_D_HIDDEN], .k = d[CAIRN_D_ATTN], .num_parts = 1,
		  .part_end = { d[CAIRN_D_HIDDEN] } },
		{ .n = 2 * inter, .k = d[CAIRN_D_HIDDEN], .num_parts = 2, .part_end = { inter, 2 * inter } },
		{ .n = d[CAIRN_D_HIDDEN], .k = inter, .num_parts = 1, .part_end = { d[CAIRN_D_HIDDEN] } },
	};
	const size_t row = (size_t)(lora->num * lora->rank) * cairn_dtype_bytes(m->dtype);

	for (int i = 0; i < CAIRN_LORA_WEIGHTS; i++) {
		struct cairn_lora_weight *w = &lora->of[i];

		*w = shapes[i];
		w->a = lora->layer_bytes;
		w->b = w->a + aligned(row * (size_t)w->num_parts * (size_t)w->k);
		lora->layer_bytes = w->b + aligned(row * (size_t)w->n);
	}
	lora->bytes = lora->layer_bytes * (size_t)m->config.num_hidden_layers;
}

/* ---- tensors ---- */

/* Writes `count` elements of t from `first` on to element `at` of to, in the model's dtype. */
static int convert(const struct loading *l, const struct cairn_tensor *t, int64_t first, int64_t count,
		   char *to, int64_t at)
{
	const int from = cairn_st_to_dtype(t->dtype), dtype = l->m->dtype;
	const size_t bytes = cairn_dtype_bytes(from);
	uint64_t one = 0;		/* the file guarantees no alignment */

	for (int64_t i = 0; i < count; i++) {
		double v;

		memcpy(&one, (const char *)t->data + (size_t)(first + i) * bytes, bytes);
		v = cairn_load(&one, from, 0);
		cairn_store(to, dtype, at + i, v);
		if (!isfinite(cairn_load(to, dtype, at + i)))
			return cairn_error(EINVAL, "%s: %s: element %lld is %g, not a number that %s "
					   "represents", t->file, t->name, (long long)(first + i), v,
					   cairn_dtype_name(dtype));
	}
	return 0;
}

/* Returns the address of a layer's matrices. */
static char *matrices(const struct loading *l, int64_t layer, size_t offset)
{
	return l->lora->base + (size_t)layer * l->lora->layer_bytes + offset;
}

/* Loads A, whose rows are contiguous in memory, or B, whose rows are filled up to the largest rank. */
static int load_tensor(const struct loading *l, const struct cairn_tensor *t, int64_t layer,
		       const struct module *mod, int is_b)
{
	const struct cairn_lora_weight *w = &l->lora->of[mod->place];
	const size_t element = cairn_dtype_bytes(l->m->dtype);
	const int64_t rank = l->lora->rank, before = mod->part ? w->part_end[mod->part - 1] : 0;
	const int64_t rows = is_b ? w->part_end[mod->part] - before : l->rank, cols = is_b ? l->rank : w->k;
	const int64_t pitch = is_b ? rank : cols;
	const int64_t first = is_b ? (l->slot * (int64_t)w->n + before) * rank :
			      (l->slot * (int64_t)w->num_parts + mod->part) * rank * w->k;
	char *to = matrices(l, layer, is_b ? w->b : w->a) + (size_t)first * element, *room;
	const int dtype = cairn_st_to_dtype(t->dtype);
	int ret = 0;

	if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols)
		return cairn_error(EINVAL, "%s: %s: the shape must be [%lld, %lld]", t->file, t->name,
				   (long long)rows, (long long)cols);
	if (dtype < 0 || !cairn_dtype_is_float(dtype))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   t->file, t->name, cairn_st_dtype_name(t->dtype));
	room = calloc((size_t)(rows * pitch), element);
	if (!room)
		return cairn_error(ENOMEM, "lora: no memory");
	for (int64_t i = 0; i < rows && !ret; i++)
		ret = convert(l, t, i * cols, cols, room, i * pitch);
	if (!ret)
		ret = CAIRN_TABLE(l->m->impl, mem_copy, to, room, (size_t)(rows * pitch) * element,
				  CAIRN_COPY_TO_DEVICE, l->stream);
	if (!ret)
		ret = CAIRN_TABLE(l->m->impl, stream_sync, l->stream);
	free(room);
	return ret;
}

/* Finds the layer and the matrix that a tensor belongs to. Returns NULL if it is none of an adapter. */
static const struct module *parse_name(const char *name, int64_t layers, int64_t *layer, int *is_b)
{
	char *end;

	if (strncmp(name, PREFIX, strlen(PREFIX)) || name[strlen(PREFIX)] < '0' || name[strlen(PREFIX)] > '9')
		return NULL;
	*layer = strtol(name + strlen(PREFIX), &end, 10);
	if (*end++ != '.' || *layer >= layers)
		return NULL;
	for (int i = 0; i < COUNT(modules); i++) {
		const size_t n = strlen(modules[i].name);

		if (strncmp(end, modules[i].name, n))
			continue;
		*is_b = !strcmp(end + n, ".lora_B.weight");
		return *is_b || !strcmp(end + n, ".lora_A.weight") ? &modules[i] : NULL;
	}
	return NULL;
}

static int load_tensors(struct loading *l, const struct cairn_safetensors *st)
{
	const int64_t layers = l->m->config.num_hidden_layers;

	if (!cairn_safetensors_count(st))
		return cairn_error(EINVAL, "%s: has no tensors", l->file);
	for (size_t i = 0; i < cairn_safetensors_count(st); i++) {
		const struct cairn_tensor *t = cairn_safetensors_at(st, i);
		const struct module *mod;
		int64_t layer;
		int is_b;

		mod = parse_name(t->name, layers, &layer, &is_b);
		if (!mod)
			return cairn_error(EOPNOTSUPP, "%s: %s: is no matrix of an adapter of this model's "
					   "%lld layers (q, k, v, o, gate, up and down are)", l->file,
					   CAIRN_QUOTED(t->name), (long long)layers);
		CAIRN_TRY(load_tensor(l, t, layer, mod, is_b));
		l->seen[layer * COUNT(modules) + (mod - modules)] |= is_b ? 2 : 1;
	}
	for (int64_t i = 0; i < layers * COUNT(modules); i++)
		if (l->seen[i] == 1 || l->seen[i] == 2)
			return cairn_error(EINVAL, "%s: " PREFIX "%lld.%s.lora_%c.weight: is missing",
					   l->file, (long long)(i / COUNT(modules)),
					   modules[i % COUNT(modules)].name, l->seen[i] == 1 ? 'B' : 'A');
	return 0;
}

static int load_adapter(struct loading *l, const struct cairn_adapter *a, const struct cairn_lora_config *c,
			int32_t slot)
{
	const size_t modules_of_all = (size_t)l->m->config.num_hidden_layers * COUNT(modules);
	struct cairn_safetensors *st = NULL;
	const float scale = (float)c->scale;
	char path[4096];
	int ret;

	if ((size_t)snprintf(path, sizeof(path), "%s/adapter_model.safetensors", a->dir) >= sizeof(path))
		return cairn_error(EINVAL, "%.64s...: the path is too long", a->dir);
	CAIRN_TRY(cairn_safetensors_open(path, &st));
	l->slot = slot;
	l->rank = c->rank;
	l->file = path;
	memset(l->seen, 0, modules_of_all);
	ret = load_tensors(l, st);
	if (!ret)
		ret = CAIRN_TABLE(l->m->impl, mem_copy, l->lora->scale + slot, &scale, sizeof(scale),
				  CAIRN_COPY_TO_DEVICE, l->stream);
	if (!ret)
		ret = CAIRN_TABLE(l->m->impl, stream_sync, l->stream);
	cairn_safetensors_close(st);
	return ret;
}

/* ---- all adapters ---- */

static int check_model(const struct cairn_model *m, int32_t num)
{
	if (m->lora)
		return cairn_error(EINVAL, "lora: the model has adapters already");
	if (num < 1 || num > CAIRN_MAX_ADAPTERS)
		return cairn_error(EINVAL, "lora: %d adapters, must be 1 to %d", num, CAIRN_MAX_ADAPTERS);
	if (cairn_model_is_latent(m) || m->config.experts.num_experts)
		return cairn_error(EOPNOTSUPP, "lora: adapters are not supported with %s",
				   cairn_model_is_latent(m) ? "latent attention" : "experts");
	if (m->ranks > 1)
		return cairn_error(EOPNOTSUPP, "lora: adapters are not supported with several ranks");
	if (!m->impl->lora)
		return cairn_error(EOPNOTSUPP, "%s: the table has no operation lora", m->impl->name);
	return 0;
}

static int allocate(struct loading *l)
{
	const struct cairn_impl *impl = l->m->impl;
	void *p;

	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, l->lora->bytes));
	l->lora->base = p;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, (size_t)l->lora->num * sizeof(float)));
	l->lora->scale = p;
	return CAIRN_TABLE(impl, mem_set, l->lora->base, 0, l->lora->bytes, l->stream);
}

static int load_all(struct loading *l, const struct cairn_adapter *adapters,
		    const struct cairn_lora_config *configs)
{
	int ret;

	CAIRN_TRY(CAIRN_TABLE(l->m->impl, stream_create, &l->stream));
	ret = allocate(l);
	for (int32_t i = 0; i < l->lora->num && !ret; i++)
		ret = load_adapter(l, &adapters[i], &configs[i], i);
	l->m->impl->stream_sync(l->stream);
	l->m->impl->stream_destroy(l->stream);
	return ret;
}

int cairn_model_load_adapters(struct cairn_model *m, const struct cairn_adapter *adapters, int32_t num)
{
	struct cairn_lora_config *configs;
	struct loading l = { .m = m };
	int32_t rank = 1;
	int ret = 0;

	CAIRN_TRY(check_model(m, num));
	configs = calloc((size_t)num, sizeof(*configs));
	l.lora = calloc(1, sizeof(*l.lora));
	l.seen = malloc((size_t)m->config.num_hidden_layers * COUNT(modules));
	if (!configs || !l.lora || !l.seen)
		ret = cairn_error(ENOMEM, "lora: no memory");
	for (int32_t i = 0; i < num && !ret; i++) {
		ret = cairn_lora_config_load(adapters[i].dir, &configs[i]);
		rank = configs[i].rank > rank ? configs[i].rank : rank;
	}
	if (!ret) {
		l.lora->num = num;
		l.lora->rank = (rank + 7) / 8 * 8;
		lay_out(m, l.lora);
		ret = load_all(&l, adapters, configs);
	}
	free(configs);
	free(l.seen);
	if (ret)
		cairn_lora_free(m->impl, l.lora);
	else
		m->lora = l.lora;
	return ret;
}

void cairn_lora_free(const struct cairn_impl *impl, struct cairn_lora *lora)
{
	if (!lora)
		return;
	if (lora->base)
		impl->mem_free(lora->base);
	if (lora->scale)
		impl->mem_free(lora->scale);
	free(lora);
}
