// SPDX-License-Identifier: Apache-2.0
/*
 * model - how each weight gets to where model_layout.c says that it lies: from a checkpoint, or made up
 */
#include "model_impl.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../primitives/dtype.h"
#include "../primitives/error.h"
#include "safetensors.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define CHUNK		((size_t)1 << 20)	/* elements converted at once */
#define RANDOM_BLOCK	8388593			/* elements; prime */

int cairn_table_error(const struct cairn_impl *impl, int ret, const char *what)
{
	const char *text = impl->last_error ? impl->last_error() : cairn_last_error();
	char copy[384];

	snprintf(copy, sizeof(copy), "%s", text && *text ? text : strerror(-ret));
	return cairn_error(-ret, "%s: %s: %s", impl->name, what, copy);
}

static int check_table(const struct cairn_impl *impl, const struct cairn_model_config *c)
{
	/* in order: what a list of operations needs, what latent attention needs, what both do */
	const struct { const char *name; int have, list, latent; } ops[] = {
		{ "gemm", impl->gemm != NULL, 1, 0 }, { "rmsnorm", impl->rmsnorm != NULL, 1, 0 },
		{ "rope", impl->rope != NULL, 1, 0 }, { "silu_mul", impl->silu_mul != NULL, 1, 0 },
		{ "embedding", impl->embedding != NULL, 1, 0 },
		{ "kv_append", impl->kv_append != NULL, 1, 0 },
		{ "attn_paged", impl->attn_paged != NULL, 1, 0 },
		{ "decode_step, without which latent attention cannot be", impl->decode_step != NULL, 0, 1 },
		{ "mem_alloc", impl->mem_alloc != NULL, 1, 1 },
	};

	for (int i = 0; i < COUNT(ops); i++) {
		if (!ops[i].have && (c->latent.kv_lora_rank ? ops[i].latent : ops[i].list))
			return cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", impl->name,
					   ops[i].name);
	}
	return 0;
}

/* Dimensions and layout; no memory yet. */
static int describe(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		    const struct cairn_model_config *c)
{
	const struct { const char *name; int32_t size, multiple; } sizes[] = {
		{ "hidden_size", c->hidden_size, 8 }, { "intermediate_size", c->intermediate_size, 8 },
		{ "head_dim", c->head_dim, 16 }, { "q_lora_rank", c->latent.q_lora_rank, 8 },
		{ "kv_lora_rank", c->latent.kv_lora_rank, 8 }, { "v_head_dim", c->latent.v_dim, 8 },
		{ "moe_intermediate_size", c->experts.intermediate_size, 8 },
	};
	struct cairn_model *m;

	CAIRN_TRY(check_table(impl, c));
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
	cairn_model_lay_out(m);
	*out = m;
	return 0;
}

/* Memory for the weights, their values still undefined, and the frequencies. */
static int allocate(struct cairn_model *m, void *stream)
{
	size_t freq_bytes = (size_t)cairn_rope_dim(&m->config) / 2 * sizeof(float);
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

/* ---- filling the weights ---- */

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

static int find_part(const struct cairn_model *m, const struct cairn_part *p, const char *name,
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
static int check_part(struct cairn_model *m, const struct cairn_part *p, const char *name, int64_t at,
		      void *ctx)
{
	const struct cairn_tensor *t;
	struct loading *l = ctx;

	(void)at;
	return find_part(m, p, name, l->st, &t);
}

static int load_part(struct cairn_model *m, const struct cairn_part *p, const char *name, int64_t at,
		     void *ctx)
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
		l->progress(l->ctx, l->done, cairn_model_bytes(m));
	return 0;
}

static int fill(struct cairn_model *m, struct loading *l)
{
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, stream_create, &l->stream));
	ret = allocate(m, l->stream);
	if (!ret)
		ret = cairn_model_each_part(m, load_part, l);
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
	ret = cairn_model_each_part(m, check_part, &l);
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

static int fill_constant(struct cairn_model *m, const struct cairn_part *p, const char *name, int64_t at,
			 void *ctx)
{
	size_t n = (size_t)m->dims[p->rows];
	struct loading *l = ctx;

	(void)name;
	if (p->cols != CAIRN_D_ONE)
		return 0;
	for (size_t i = 0; i < n; i++)
		cairn_store(l->to, m->dtype, (int64_t)i, cairn_weight_is_bias(p->weight) ? 0 : 1);
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
	return cairn_model_each_part(m, fill_constant, l);
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
