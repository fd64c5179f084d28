// SPDX-License-Identifier: Apache-2.0
/*
 * model - where each weight lies, and how it gets there
 *
 * parts[] says which tensor of a checkpoint is which part of which weight, and its shape; the rest walks
 * it: to lay the weights out, to load them, to make them up. Another architecture is another list.
 */
#include "model.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../primitives/dtype.h"
#include "../primitives/error.h"
#include "safetensors.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define ALIGNMENT	256
#define CHUNK		((size_t)1 << 20)	/* elements converted at once */
#define RANDOM_BLOCK	8388593			/* elements; prime */

enum present { ALWAYS, ATTENTION_BIAS, MLP_BIAS, UNTIED };

/* Parts of one weight follow each other in it, in this order. */
static const struct part {
	const char *name;	/* behind "model.layers.N." for weights of a layer */
	enum cairn_weight weight;
	enum cairn_dim rows, cols;
	enum present present;
} parts[] = {
	{ "model.embed_tokens.weight", CAIRN_W_EMBED, CAIRN_D_VOCAB, CAIRN_D_HIDDEN, ALWAYS },
	{ "input_layernorm.weight", CAIRN_W_ATTN_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, ALWAYS },
	{ "self_attn.q_proj.weight", CAIRN_W_QKV, CAIRN_D_Q, CAIRN_D_HIDDEN, ALWAYS },
	{ "self_attn.k_proj.weight", CAIRN_W_QKV, CAIRN_D_KV, CAIRN_D_HIDDEN, ALWAYS },
	{ "self_attn.v_proj.weight", CAIRN_W_QKV, CAIRN_D_KV, CAIRN_D_HIDDEN, ALWAYS },
	{ "self_attn.q_proj.bias", CAIRN_W_QKV_BIAS, CAIRN_D_Q, CAIRN_D_ONE, ATTENTION_BIAS },
	{ "self_attn.k_proj.bias", CAIRN_W_QKV_BIAS, CAIRN_D_KV, CAIRN_D_ONE, ATTENTION_BIAS },
	{ "self_attn.v_proj.bias", CAIRN_W_QKV_BIAS, CAIRN_D_KV, CAIRN_D_ONE, ATTENTION_BIAS },
	{ "self_attn.o_proj.weight", CAIRN_W_O, CAIRN_D_HIDDEN, CAIRN_D_Q, ALWAYS },
	{ "self_attn.o_proj.bias", CAIRN_W_O_BIAS, CAIRN_D_HIDDEN, CAIRN_D_ONE, ATTENTION_BIAS },
	{ "post_attention_layernorm.weight", CAIRN_W_MLP_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, ALWAYS },
	{ "mlp.gate_proj.weight", CAIRN_W_GATE_UP, CAIRN_D_INTER, CAIRN_D_HIDDEN, ALWAYS },
	{ "mlp.up_proj.weight", CAIRN_W_GATE_UP, CAIRN_D_INTER, CAIRN_D_HIDDEN, ALWAYS },
	{ "mlp.gate_proj.bias", CAIRN_W_GATE_UP_BIAS, CAIRN_D_INTER, CAIRN_D_ONE, MLP_BIAS },
	{ "mlp.up_proj.bias", CAIRN_W_GATE_UP_BIAS, CAIRN_D_INTER, CAIRN_D_ONE, MLP_BIAS },
	{ "mlp.down_proj.weight", CAIRN_W_DOWN, CAIRN_D_HIDDEN, CAIRN_D_INTER, ALWAYS },
	{ "mlp.down_proj.bias", CAIRN_W_DOWN_BIAS, CAIRN_D_HIDDEN, CAIRN_D_ONE, MLP_BIAS },
	{ "model.norm.weight", CAIRN_W_FINAL_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, ALWAYS },
	{ "lm_head.weight", CAIRN_W_LM_HEAD, CAIRN_D_VOCAB, CAIRN_D_HIDDEN, UNTIED },
};

int cairn_table_error(const struct cairn_impl *impl, int ret, const char *what)
{
	const char *text = impl->last_error ? impl->last_error() : cairn_last_error();
	char copy[384];

	snprintf(copy, sizeof(copy), "%s", text && *text ? text : strerror(-ret));
	return cairn_error(-ret, "%s: %s: %s", impl->name, what, copy);
}

/* ---- frequencies, shapes ---- */

/* Every step rounds to float, in the order of transformers' modeling_rope_utils.py. */
void cairn_rope_frequencies(const struct cairn_model_config *c, float *inv_freq)
{
	const struct cairn_rope_config *rope = &c->rope;
	const float pi2 = (float)(2 * M_PI), factor = (float)rope->factor;
	const float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor;
	const float old_len = (float)rope->original_max_position_embeddings;

	for (int32_t i = 0; i < c->head_dim / 2; i++) {
		float f = 1.0f / powf((float)rope->theta, (float)(2 * i) / (float)c->head_dim);
		float wavelen = pi2 / f, smooth;

		if (rope->scaling == CAIRN_ROPE_LINEAR) {
			f /= factor;
		} else if (rope->scaling == CAIRN_ROPE_LLAMA3) {
			if (wavelen >
			    (float)(rope->original_max_position_embeddings / rope->low_freq_factor)) {
				f /= factor;
			} else if (wavelen >=
				   (float)(rope->original_max_position_embeddings / rope->high_freq_factor)) {
				smooth = (old_len / wavelen - low) / (high - low);
				f = (1.0f - smooth) * f / factor + smooth * f;
			}
		}
		inv_freq[i] = f;
	}
}

static const struct { const char *name; struct cairn_model_config config; } shapes[] = {
	{ "llama2-7b", {
		.hidden_size = 4096, .intermediate_size = 11008, .num_hidden_layers = 32,
		.num_attention_heads = 32, .num_key_value_heads = 32, .head_dim = 128, .vocab_size = 32000,
		.max_position_embeddings = 4096, .rope = { .theta = 10000, .factor = 1 },
	} },
	{ "llama3-8b", {
		.hidden_size = 4096, .intermediate_size = 14336, .num_hidden_layers = 32,
		.num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 128, .vocab_size = 128256,
		.max_position_embeddings = 8192, .rope = { .theta = 500000, .factor = 1 },
	} },
	{ "llama32-1b", {
		.hidden_size = 2048, .intermediate_size = 8192, .num_hidden_layers = 16,
		.num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 64, .vocab_size = 128256,
		.max_position_embeddings = 131072, .tie_word_embeddings = true,
		.rope = { .theta = 500000, .scaling = CAIRN_ROPE_LLAMA3, .factor = 32, .low_freq_factor = 1,
			  .high_freq_factor = 4, .original_max_position_embeddings = 8192 },
	} },
};

int cairn_model_shape(const char *name, struct cairn_model_config *config)
{
	char names[128] = "";
	size_t at = 0;

	for (int i = 0; i < COUNT(shapes); i++) {
		if (!strcmp(name, shapes[i].name)) {
			*config = shapes[i].config;
			config->dtype = CAIRN_BF16;
			config->rms_norm_eps = 1e-5;
			config->bos_token_id = -1;
			return 0;
		}
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", shapes[i].name);
	}
	return cairn_error(EINVAL, "shape: '%s' is none of %s", name, names);
}

/* ---- weights ---- */

static int is_present(const struct cairn_model *m, const struct part *p)
{
	switch (p->present) {
	case ATTENTION_BIAS:
		return m->config.attention_bias;
	case MLP_BIAS:
		return m->config.mlp_bias;
	case UNTIED:
		return !m->config.tie_word_embeddings;
	default:
		return 1;
	}
}

static int in_layers(enum cairn_weight w)
{
	return w < CAIRN_W_EMBED;
}

void *cairn_model_weight(const struct cairn_model *m, int32_t layer, enum cairn_weight w)
{
	if (w == CAIRN_W_LM_HEAD && m->config.tie_word_embeddings)
		w = CAIRN_W_EMBED;
	if (!m->elements[w])
		return NULL;
	return m->base + m->offset[w] + (in_layers(w) ? (size_t)layer * m->layer_bytes : 0);
}

static size_t round_up(size_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Sizes and places of all weights: those outside the layers lie behind the last layer. */
static void lay_out(struct cairn_model *m)
{
	size_t element = cairn_dtype_bytes(m->dtype), at = 0;

	for (int i = 0; i < COUNT(parts); i++) {
		if (is_present(m, &parts[i]))
			m->elements[parts[i].weight] += (size_t)m->dims[parts[i].rows] *
							(size_t)m->dims[parts[i].cols];
	}
	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		if (w == CAIRN_W_EMBED) {
			m->layer_bytes = at;
			at *= (size_t)m->config.num_hidden_layers;
		}
		m->offset[w] = at;
		at += round_up(m->elements[w] * element);
	}
	m->bytes = at;
}

static int check_table(const struct cairn_impl *impl)
{
	const struct { const char *name; int have; } ops[] = {
		{ "gemm", impl->gemm != NULL }, { "rmsnorm", impl->rmsnorm != NULL },
		{ "rope", impl->rope != NULL }, { "silu_mul", impl->silu_mul != NULL },
		{ "embedding", impl->embedding != NULL }, { "kv_append", impl->kv_append != NULL },
		{ "attn_paged", impl->attn_paged != NULL }, { "mem_alloc", impl->mem_alloc != NULL },
	};

	for (int i = 0; i < COUNT(ops); i++) {
		if (!ops[i].have)
			return cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", impl->name,
					   ops[i].name);
	}
	return 0;
}

/* Without the padding between weights. */
static int64_t model_bytes(const struct cairn_model *m)
{
	int64_t elements = 0;

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++)
		elements += (int64_t)m->elements[w] * (in_layers(w) ? m->config.num_hidden_layers : 1);
	return elements * (int64_t)cairn_dtype_bytes(m->dtype);
}

/* Dimensions and layout; no memory yet. */
static int describe(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		    const struct cairn_model_config *c)
{
	const struct { const char *name; int32_t size, multiple; } sizes[] = {
		{ "hidden_size", c->hidden_size, 8 }, { "intermediate_size", c->intermediate_size, 8 },
		{ "head_dim", c->head_dim, 16 },
	};
	struct cairn_model *m;

	CAIRN_TRY(check_table(impl));
	for (int i = 0; i < COUNT(sizes); i++) {
		if (sizes[i].size % sizes[i].multiple)
			return cairn_error(EOPNOTSUPP, "%s/config.json: %s: is %d, must be a multiple of %d",
					   dir, sizes[i].name, sizes[i].size, sizes[i].multiple);
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return cairn_error(ENOMEM, "model: no memory");
	m->impl = impl;
	m->config = *c;
	m->dtype = c->dtype == CAIRN_F16 ? CAIRN_F16 : CAIRN_BF16;
	m->dims[CAIRN_D_ONE] = 1;
	m->dims[CAIRN_D_HIDDEN] = c->hidden_size;
	m->dims[CAIRN_D_Q] = c->num_attention_heads * c->head_dim;
	m->dims[CAIRN_D_KV] = c->num_key_value_heads * c->head_dim;
	m->dims[CAIRN_D_QKV] = m->dims[CAIRN_D_Q] + 2 * m->dims[CAIRN_D_KV];
	m->dims[CAIRN_D_INTER] = c->intermediate_size;
	m->dims[CAIRN_D_GATE_UP] = 2 * c->intermediate_size;
	m->dims[CAIRN_D_VOCAB] = c->vocab_size;
	lay_out(m);
	*out = m;
	return 0;
}

/* Memory for the weights, their values still undefined, and the frequencies. */
static int allocate(struct cairn_model *m, void *stream)
{
	size_t freq_bytes = (size_t)m->config.head_dim / 2 * sizeof(float);
	float *inv_freq;
	void *p;
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, m->bytes));
	m->base = p;
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, freq_bytes));
	m->inv_freq = p;
	inv_freq = malloc(freq_bytes);
	if (!inv_freq)
		return cairn_error(ENOMEM, "model: no memory");
	cairn_rope_frequencies(&m->config, inv_freq);
	ret = CAIRN_TABLE(m->impl, mem_copy, m->inv_freq, inv_freq, freq_bytes, CAIRN_COPY_TO_DEVICE, stream);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, stream);
	free(inv_freq);
	return ret;
}

void cairn_model_free(struct cairn_model *m)
{
	if (!m)
		return;
	if (m->inv_freq)
		m->impl->mem_free(m->inv_freq);
	if (m->base)
		m->impl->mem_free(m->base);
	free(m);
}

int64_t cairn_model_step_bytes(const struct cairn_model *m, int32_t rows, int64_t kv_tokens)
{
	int64_t element = (int64_t)cairn_dtype_bytes(m->dtype), layers = m->config.num_hidden_layers;
	int64_t elements = (int64_t)rows * m->dims[CAIRN_D_HIDDEN];

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		if (w == CAIRN_W_EMBED && !m->config.tie_word_embeddings)
			continue;	/* looked up, not read */
		elements += (int64_t)m->elements[w] * (in_layers(w) ? layers : 1);
	}
	elements += kv_tokens * layers * 2 * m->dims[CAIRN_D_KV];
	return elements * element;
}

/* ---- filling the weights ---- */

/* What happens to one part: it goes to m->base + at. */
typedef int (*part_fn)(struct cairn_model *m, const struct part *p, const char *name, size_t at, void *ctx);

static int each_part(struct cairn_model *m, part_fn fn, void *ctx)
{
	size_t element = cairn_dtype_bytes(m->dtype);
	char name[96];

	for (int32_t layer = 0; layer < m->config.num_hidden_layers; layer++) {
		size_t filled[CAIRN_NUM_WEIGHTS] = { 0 };

		for (int i = 0; i < COUNT(parts); i++) {
			const struct part *p = &parts[i];
			size_t at = m->offset[p->weight] + filled[p->weight];

			if (!is_present(m, p) || (!in_layers(p->weight) && layer))
				continue;
			if (in_layers(p->weight)) {
				snprintf(name, sizeof(name), "model.layers.%d.%s", layer, p->name);
				at += (size_t)layer * m->layer_bytes;
			} else {
				snprintf(name, sizeof(name), "%s", p->name);
			}
			CAIRN_TRY(fn(m, p, name, at, ctx));
			filled[p->weight] += (size_t)m->dims[p->rows] * (size_t)m->dims[p->cols] * element;
		}
	}
	return 0;
}

struct loading {
	const struct cairn_safetensors *st;
	void *stream;
	char *from, *to;	/* CHUNK elements each, for conversions */
	cairn_progress progress;
	void *ctx;
	int64_t done;
};

/* Rounds elements to the model's dtype, chunk by chunk. */
static int load_converted(struct cairn_model *m, struct loading *l, const struct cairn_tensor *t, int dtype,
			  char *dst)
{
	size_t in = cairn_dtype_bytes(dtype), out = cairn_dtype_bytes(m->dtype), total = t->num_bytes / in;

	for (size_t first = 0, n; first < total; first += n) {
		n = total - first < CHUNK ? total - first : CHUNK;
		memcpy(l->from, (const char *)t->data + first * in,
		       n * in); /* the file promises no alignment */
		for (size_t i = 0; i < n; i++) {
			double v = cairn_load(l->from, dtype, (int64_t)i);

			cairn_store(l->to, m->dtype, (int64_t)i, v);
			if (isfinite(v) && !isfinite(cairn_load(l->to, m->dtype, (int64_t)i)))
				return cairn_error(EINVAL, "%s: %s: element %zu is %g, too large for %s",
						   t->file, t->name, first + i, v,
						   cairn_dtype_name(m->dtype));
		}
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + first * out, l->to, n * out,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is written again */
	}
	return 0;
}

static int find_part(const struct cairn_model *m, const struct part *p, const char *name,
		     const struct cairn_safetensors *st, const struct cairn_tensor **t)
{
	const int64_t shape[] = { m->dims[p->rows], m->dims[p->cols] };
	int dtype;

	CAIRN_TRY(cairn_safetensors_get(st, name, p->cols == CAIRN_D_ONE ? 1 : 2, shape, t));
	dtype = cairn_st_to_dtype((*t)->dtype);
	if (dtype < 0 || !cairn_dtype_is_float(dtype))
		return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (F32, F16, BF16 are)",
				   (*t)->file, name, cairn_st_dtype_name((*t)->dtype));
	return 0;
}

/* Before memory is asked for: a config that does not fit the weights is told as such. */
static int check_part(struct cairn_model *m, const struct part *p, const char *name, size_t at, void *ctx)
{
	const struct cairn_tensor *t;
	struct loading *l = ctx;

	(void)at;
	return find_part(m, p, name, l->st, &t);
}

static int load_part(struct cairn_model *m, const struct part *p, const char *name, size_t at, void *ctx)
{
	const struct cairn_tensor *t;
	struct loading *l = ctx;
	char *dst = m->base + at;
	int dtype;

	CAIRN_TRY(find_part(m, p, name, l->st, &t));
	dtype = cairn_st_to_dtype(t->dtype);
	if (dtype != m->dtype)
		CAIRN_TRY(load_converted(m, l, t, dtype, dst));
	else
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst, t->data, t->num_bytes, CAIRN_COPY_TO_DEVICE,
				      l->stream));
	l->done += (int64_t)m->dims[p->rows] * m->dims[p->cols] * (int64_t)cairn_dtype_bytes(m->dtype);
	if (l->progress)
		l->progress(l->ctx, l->done, model_bytes(m));
	return 0;
}

static int fill(struct cairn_model *m, struct loading *l)
{
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, stream_create, &l->stream));
	ret = allocate(m, l->stream);
	if (!ret)
		ret = each_part(m, load_part, l);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, l->stream);
	else
		m->impl->stream_sync(l->stream);	/* copies may still read the mapping */
	m->impl->stream_destroy(l->stream);
	return ret;
}

int cairn_model_load(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		     cairn_progress progress, void *ctx)
{
	struct loading l = { .progress = progress, .ctx = ctx };
	struct cairn_safetensors *st = NULL;
	struct cairn_model_config config;
	struct cairn_model *m = NULL;
	int ret;

	CAIRN_TRY(cairn_model_config_load(dir, &config));
	CAIRN_TRY(cairn_safetensors_open(dir, &st));
	l.st = st;
	ret = describe(&m, impl, dir, &config);
	if (ret)
		goto out_close;
	ret = each_part(m, check_part, &l);
	if (ret)
		goto out_free;
	l.from = malloc(CHUNK * sizeof(float));
	l.to = malloc(CHUNK * sizeof(float));
	if (l.from && l.to)
		ret = fill(m, &l);
	else
		ret = cairn_error(ENOMEM, "model: no memory");
out_free:
	free(l.from);
	free(l.to);
	if (ret)
		cairn_model_free(m);
	else
		*out = m;
out_close:
	cairn_safetensors_close(st);
	return ret;
}

static int fill_constant(struct cairn_model *m, const struct part *p, const char *name, size_t at,
			 void *ctx)
{
	size_t n = (size_t)m->dims[p->rows];
	struct loading *l = ctx;

	(void)name;
	if (p->cols != CAIRN_D_ONE)
		return 0;
	for (size_t i = 0; i < n; i++)
		cairn_store(l->to, m->dtype, (int64_t)i, p->present == ALWAYS ? 1.0 : 0.0);
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, m->base + at, l->to, n * cairn_dtype_bytes(m->dtype),
			      CAIRN_COPY_TO_DEVICE, l->stream));
	return CAIRN_TABLE(m->impl, stream_sync, l->stream);
}

/* Values of deviation 0.02: the sum of four uniform ones is near enough to normal. */
static void random_block(char *block, int dtype, uint64_t seed)
{
	for (int64_t i = 0; i < RANDOM_BLOCK; i++) {
		uint64_t z = (seed += 0x9e3779b97f4a7c15);	/* splitmix64 */
		int32_t sum;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
		z = (z ^ z >> 27) * 0x94d049bb133111eb;
		z ^= z >> 31;
		sum = (int32_t)(z & 0xffff) + (int32_t)(z >> 16 & 0xffff) + (int32_t)(z >> 32 & 0xffff) +
		      (int32_t)(z >> 48);
		cairn_store(block, dtype, i, (sum - 131070) * (0.02 / (65536 / sqrt(3))));
	}
}

static int fill_random(struct cairn_model *m, struct loading *l, size_t block)
{
	const struct cairn_impl *impl = m->impl;

	CAIRN_TRY(allocate(m, l->stream));
	if (block > m->bytes)
		block = m->bytes;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, m->base, l->to, block, CAIRN_COPY_TO_DEVICE, l->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, l->stream));
	/* what is filled is a whole number of blocks, and is doubled until the end is reached */
	for (size_t done = block, n; done < m->bytes; done += n) {
		n = m->bytes - done < done ? m->bytes - done : done;
		CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, m->base + done, m->base, n, CAIRN_COPY_ON_DEVICE,
				      l->stream));
	}
	return each_part(m, fill_constant, l);
}

int cairn_model_random(struct cairn_model **out, const struct cairn_impl *impl,
		       const struct cairn_model_config *config, uint64_t seed)
{
	size_t block = RANDOM_BLOCK * cairn_dtype_bytes(CAIRN_BF16);
	struct cairn_model *m = NULL;
	struct loading l = { 0 };
	int ret;

	CAIRN_TRY(describe(&m, impl, "random model", config));
	l.to = malloc(block);	/* also holds the longest vector of ones */
	if (!l.to) {
		ret = cairn_error(ENOMEM, "model: no memory");
		goto out_free;
	}
	random_block(l.to, m->dtype, seed);
	ret = CAIRN_TABLE(impl, stream_create, &l.stream);
	if (ret)
		goto out_free;
	ret = fill_random(m, &l, block);
	if (ret)
		impl->stream_sync(l.stream);
	impl->stream_destroy(l.stream);
out_free:
	free(l.to);
	if (ret)
		cairn_model_free(m);
	else
		*out = m;
	return ret;
}
