// SPDX-License-Identifier: Apache-2.0
/* model_random - models with random weights */
#include "serving/model/load/model_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/forward/forward.h"

#define RANDOM_GROUP	128	/* of weights in 4 bits */
#define RANDOM_BLOCK	8388593			/* elements; a prime */

static int fill_constant(struct cairn_model *m, const struct cairn_part *p, const char *name,
			 struct cairn_place place, void *ctx)
{
	char *dst = (char *)cairn_model_weight(m, place.layer, p->weight) + place.first;
	const int dtype = cairn_weight_dtype(m, p->weight);
	size_t n = (size_t)m->dims[p->rows];
	struct loading *l = ctx;

	(void)name;
	if (p->cols != CAIRN_D_ONE)
		return 0;
	for (size_t i = 0; i < n; i++)
		cairn_store(l->to, dtype, (int64_t)i,
			    cairn_weight_is_bias(p->weight) ? 0 : 1 - m->config.norm_offset);
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst, l->to, n * cairn_dtype_bytes(dtype),
			      CAIRN_COPY_TO_DEVICE, l->stream));
	return CAIRN_TABLE(m->impl, stream_sync, l->stream);
}

/* Fills a block with values of standard deviation 0.02. The sum of four uniform values is close enough to
 * normal. */
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

/* Fills `bytes` bytes by repeating the block that l->to has twice, from byte `first` of it on. */
static int repeat(const struct cairn_impl *impl, const struct loading *l, char *to, size_t bytes,
		  size_t block, size_t first)
{
	const char *from = (const char *)l->to + first % block;

	block = block < bytes ? block : bytes;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, to, from, block, CAIRN_COPY_TO_DEVICE, l->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, l->stream));
	/* Doubles the filled part, always a whole number of blocks, until the end is reached. */
	for (size_t done = block, n; done < bytes; done += n) {
		n = bytes - done < done ? bytes - done : done;
		CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, to + done, to, n, CAIRN_COPY_ON_DEVICE, l->stream));
	}
	return 0;
}

#define SHIFT	16	/* minimum distance, in elements, between the random values of two matrices */

/* Returns the layer of the whole model. */
static int32_t layer_of(const struct cairn_model *m, const struct cairn_part *p, struct cairn_place place)
{
	return place.layer + (p->weight < CAIRN_W_EMBED ? m->config.first_layer : 0);
}

static int quantise_random(struct cairn_model *m, const struct cairn_part *p, const char *name,
			   struct cairn_place place, void *ctx)
{
	size_t shift = (size_t)(layer_of(m, p, place) * CAIRN_NUM_WEIGHTS + (int32_t)p->weight) * SHIFT;
	struct loading *l = ctx;

	(void)name;
	return place.last ? model_load_quantise(m, l, p->weight, place.layer,
				     l->staging + shift * cairn_dtype_bytes(m->dtype)) : 0;
}

static int fill_random_w4(struct cairn_model *m, const struct cairn_part *p, const char *name,
			  struct cairn_place place, void *ctx)
{
	const struct loading *l = ctx;
	const uint64_t nth = (uint64_t)(layer_of(m, p, place) * CAIRN_NUM_WEIGHTS + (int32_t)p->weight);

	(void)name;
	return place.last ? cairn_model_random_w4(m, place.layer, p->weight, l->seed + (nth << 40),
						  l->stream) : 0;
}

/* Gives each weight of a stage the bytes that it has in the whole model, which has no memory. */
static int fill_as_whole(struct cairn_model *m, const struct loading *l, size_t block,
			 struct cairn_model *all)
{
	int ret = 0;

	all->base = m->base;		/* only to compute places from it */
	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		const size_t bytes = (size_t)cairn_weight_bytes(m, (enum cairn_weight)w);
		int32_t layer, end;

		cairn_weight_layers(m, (enum cairn_weight)w, &layer, &end);
		for (; layer < end && m->elements[w] && !ret; layer++) {
			const int32_t of_all = layer + (w < CAIRN_W_EMBED ? m->config.first_layer : 0);
			const char *at = cairn_model_weight(all, of_all, (enum cairn_weight)w);

			ret = repeat(m->impl, l, cairn_model_weight(m, layer, (enum cairn_weight)w), bytes,
				     block, (size_t)(at - all->base));
		}
	}
	all->base = NULL;
	return ret;
}

/* all: the whole model without memory, if m is a stage; or NULL */
static int fill_random(struct cairn_model *m, struct loading *l, size_t block, struct cairn_model *all)
{
	const int32_t layers = all ? all->config.num_hidden_layers : m->config.num_hidden_layers;
	size_t shifts = (size_t)(layers * CAIRN_NUM_WEIGHTS) * SHIFT * cairn_dtype_bytes(m->dtype), most = 0;
	int32_t n, k;

	CAIRN_TRY(model_load_allocate(m, l->stream));
	CAIRN_TRY(repeat(m->impl, l, m->base, m->bytes, block, 0));
	if (all)
		CAIRN_TRY(fill_as_whole(m, l, block, all));
	CAIRN_TRY(model_load_staging(m, l, shifts));
	for (int w = 0; w < CAIRN_NUM_WEIGHTS && l->staging; w++)
		if (cairn_weight_fp8(m, (enum cairn_weight)w, &n, &k) && m->elements[w] > most)
			most = m->elements[w];
	if (l->staging) {
		CAIRN_TRY(repeat(m->impl, l, l->staging, most * cairn_dtype_bytes(m->dtype) + shifts, block,
				 0));
		CAIRN_TRY(cairn_model_each_part(m, quantise_random, l));
	}
	CAIRN_TRY(cairn_model_each_part(m, fill_random_w4, l));
	CAIRN_TRY(cairn_model_each_part(m, fill_constant, l));
	return CAIRN_TABLE(m->impl, stream_sync, l->stream);
}

static int random_share(struct cairn_model **out, const struct cairn_impl *impl,
			const struct cairn_model_config *config, struct model_share share,
			enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed)
{
	size_t block = RANDOM_BLOCK * cairn_dtype_bytes(CAIRN_BF16);
	struct cairn_model_config c = *config;
	struct cairn_model *m = NULL, *all = NULL;
	struct loading l = { .seed = seed };
	int ret;

	c.w4.group = weights == CAIRN_WEIGHTS_W4 ? RANDOM_GROUP : 0;
	share.keeps_mxfp4 = model_load_keeps_mxfp4(impl, &c, NULL, &share, weights);
	CAIRN_TRY(model_load_describe(&m, impl, "random model", &c, share, weights, kv));
	ret = cairn_forward_check(m, "random model");
	if (!ret && share.of == OF_LAYERS) {
		struct model_share one = model_load_whole;

		one.keeps_mxfp4 = share.keeps_mxfp4;
		ret = model_load_describe(&all, impl, "random model", &c, one, weights, kv);
	}
	if (ret)
		goto out_free;
	l.to = malloc(2 * block);	/* also holds the longest vector of ones */
	if (!l.to) {
		ret = cairn_error(ENOMEM, "model: no memory");
		goto out_free;
	}
	random_block(l.to, m->dtype, seed);
	memcpy((char *)l.to + block, l.to, block);
	ret = CAIRN_TABLE(impl, stream_create, &l.stream);
	if (ret)
		goto out_free;
	ret = fill_random(m, &l, block, all);
	if (ret)
		impl->stream_sync(l.stream);
	if (l.staging)
		impl->mem_free(l.staging);
	impl->stream_destroy(l.stream);
out_free:
	free(l.to);
	cairn_model_free(all);
	if (ret)
		cairn_model_free(m);
	else
		*out = m;
	return ret;
}

int cairn_model_random(struct cairn_model **out, const struct cairn_impl *impl,
		       const struct cairn_model_config *config, uint64_t seed)
{
	return cairn_model_random_as(out, impl, config, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, seed);
}

int cairn_model_random_as(struct cairn_model **out, const struct cairn_impl *impl,
			  const struct cairn_model_config *config, enum cairn_weights weights,
			  enum cairn_kv_form kv, uint64_t seed)
{
	return random_share(out, impl, config, model_load_whole, weights, kv, seed);
}

int cairn_model_random_rank(struct cairn_model **out, const struct cairn_impl *impl,
			    const struct cairn_model_config *config, int32_t ranks,
			    enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed)
{
	const struct model_share share = { .rank = 0, .ranks = ranks, .of = OF_WEIGHTS };

	return random_share(out, impl, config, share, weights, kv, seed);
}

int cairn_model_random_context(struct cairn_model **out, const struct cairn_impl *impl,
			       const struct cairn_model_config *config, int32_t rank, int32_t ranks,
			       enum cairn_exchange exchange, enum cairn_weights weights,
			       enum cairn_kv_form kv, uint64_t seed)
{
	const struct model_share share = {
		.rank = rank, .ranks = ranks, .of = OF_CONTEXT, .exchange = exchange,
	};

	return random_share(out, impl, config, share, weights, kv, seed);
}

int cairn_model_random_stage(struct cairn_model **out, const struct cairn_impl *impl,
			     const struct cairn_model_config *config, int32_t stage, int32_t stages,
			     enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed)
{
	const struct model_share share = { .rank = stage, .ranks = stages, .of = OF_LAYERS };

	return random_share(out, impl, config, share, weights, kv, seed);
}
