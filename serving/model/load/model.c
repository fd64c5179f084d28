// SPDX-License-Identifier: Apache-2.0
/*
 * model - describes a model, and loads it from a checkpoint
 */
#include "serving/model/load/model_load.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/forward/forward.h"
#include "serving/lora/lora.h"
#include "serving/model/model_graph.h"
#include "serving/model/checkpoint/safetensors.h"

#define FIRST_BLOCKS	"model.layers.0.mlp.experts.gate_up_proj_blocks"

const char *const cairn_weights_names[] = { "plain", "fp8", "fp8-blocks", "w4", "w8a8", "w8a8-blocks",
					    NULL };
const char *const cairn_exchange_names[] = { "auto", "heads", "ring", "blocks", NULL };

int cairn_table_error(const struct cairn_impl *impl, int ret, const char *what)
{
	const char *text = impl->last_error ? impl->last_error() : cairn_last_error();
	char copy[384];

	snprintf(copy, sizeof(copy), "%s", text && *text ? text : strerror(-ret));
	return cairn_error(-ret, "%s: %s: %s", impl->name, what, copy);
}

const struct model_share model_load_whole = { .ranks = 1, .of = OF_WEIGHTS };

int model_load_describe(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			const struct cairn_model_config *c, struct model_share share,
			enum cairn_weights weights, enum cairn_kv_form kv)
{
	struct cairn_model *m = calloc(1, sizeof(*m));
	int ret;

	if (!m)
		return cairn_error(ENOMEM, "model: no memory");
	m->impl = impl;
	m->config = *c;
	m->dtype = c->dtype == CAIRN_F16 ? CAIRN_F16 : CAIRN_BF16;
	m->weights = weights;
	m->kv = kv;
	m->keeps_mxfp4 = share.keeps_mxfp4;
	m->rank = share.of == OF_WEIGHTS ? share.rank : 0;
	m->ranks = share.of == OF_WEIGHTS ? share.ranks : 1;
	m->context_rank = share.of == OF_CONTEXT ? share.rank : 0;
	m->context_ranks = share.of == OF_CONTEXT ? share.ranks : 1;
	m->exchange = share.exchange;
	m->kv_shares = 1;
	cairn_model_dims(c, m->whole);
	ret = m->ranks > 1 ? cairn_model_share_config(&m->config, dir, m->ranks,
						      cairn_model_columns_together(m), &m->kv_shares) :
	      m->context_ranks > 1 ? cairn_model_check_context(m, dir) :
	      share.of == OF_LAYERS ? cairn_model_stage_config(&m->config, dir, share.rank, share.ranks) : 0;
	if (!ret)
		ret = cairn_model_graph(&m->graph, &m->config);
	if (ret)
		goto out_free;
	ret = cairn_model_check_form(m, dir);
	if (!ret && c->w4.stored == CAIRN_STORED_NVFP4) {
		m->factors_w4 = calloc((size_t)c->num_hidden_layers, CAIRN_NUM_WEIGHTS * sizeof(float));
		ret = m->factors_w4 ? 0 : cairn_error(ENOMEM, "model: no memory");
	}
	if (ret)
		goto out_free;
	cairn_model_lay_out(m);
	ret = impl ? cairn_model_check_table(m, dir) : 0;
	if (ret)
		goto out_free;
	*out = m;
	return 0;

out_free:
	cairn_model_free(m);
	return ret;
}

int model_load_allocate(struct cairn_model *m, void *stream)
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
	cairn_lora_free(m->impl, m->lora);
	if (m->inv_freq)
		m->impl->mem_free(m->inv_freq);
	if (m->kv_scales)
		m->impl->mem_free(m->kv_scales);
	if (m->base)
		m->impl->mem_free(m->base);
	cairn_op_graph_destroy(m->graph);
	free(m->factors_w4);
	free(m);
}

/* Sets *weights to the form that a checkpoint's weights get if *weights is asked for, or refuses. */
static int settle_form(const struct cairn_model_config *c, const char *dir, enum cairn_weights *weights)
{
	if (*weights == CAIRN_WEIGHTS_W4 && !c->w4.stored)
		return cairn_error(EINVAL, "%s/config.json: quantization_config: the weights are not stored "
				   "in 4 bits, so the form w4 cannot keep them", dir);
	if (c->w4.stored && cairn_weights_are_fp8(*weights))
		return cairn_error(EINVAL, "%s/config.json: quantization_config: the weights are stored in 4 "
				   "bits and stay so; the form %s is not supported", dir,
				   cairn_weights_names[*weights]);
	if (c->w4.stored)
		*weights = CAIRN_WEIGHTS_W4;
	return 0;
}

int model_load_keeps_mxfp4(const struct cairn_impl *impl, const struct cairn_model_config *c,
			   const struct cairn_safetensors *st, const struct model_share *share,
			   enum cairn_weights weights)
{
	const int32_t most = c->experts.intermediate_size / CAIRN_MX_GROUP;	/* ranks that share experts */

	return c->stored_mxfp4 && weights == CAIRN_WEIGHTS_PLAIN &&
	       (share->of != OF_WEIGHTS || share->ranks <= most) &&
	       (!st || cairn_safetensors_find(st, FIRST_BLOCKS)) && cairn_model_moe_has_mxfp4(impl, c);
}

int cairn_model_verify(const char *dir)
{
	enum cairn_weights weights = CAIRN_WEIGHTS_PLAIN;
	struct cairn_model_config config;
	struct cairn_model *m = NULL;
	struct loading l = { 0 };
	struct cairn_safetensors *st = NULL;
	int ret;

	CAIRN_TRY(cairn_model_config_load(dir, &config));
	CAIRN_TRY(settle_form(&config, dir, &weights));
	CAIRN_TRY(cairn_safetensors_open(dir, &st));
	l.st = st;
	ret = model_load_describe(&m, NULL, dir, &config, model_load_whole, weights, CAIRN_KV_PLAIN);
	if (!ret)
		ret = cairn_model_each_part(m, model_load_check_part, &l);
	if (!ret)
		ret = cairn_model_check_layers(&config, dir, st);
	cairn_model_free(m);
	cairn_safetensors_close(st);
	return ret;
}

int cairn_model_load(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		     cairn_progress progress, void *ctx)
{
	return cairn_model_load_as(out, impl, dir, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, progress, ctx);
}

static int load_share(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		      struct model_share share, enum cairn_weights weights, enum cairn_kv_form kv,
		      cairn_progress progress, void *ctx)
{
	struct loading l = { .progress = progress, .ctx = ctx };
	struct cairn_safetensors *st = NULL;
	struct cairn_model_config config;
	struct cairn_model *m = NULL;
	int ret;

	CAIRN_TRY(cairn_model_config_load(dir, &config));
	if (config.draft_vocab_size)
		return cairn_error(EINVAL, "%s/config.json: architectures: is an EAGLE-3 head, which drafts "
				   "for a model and is none", dir);
	if (share.of == MTP_LAYER)
		CAIRN_TRY(cairn_model_config_mtp(dir, &config));
	CAIRN_TRY(settle_form(&config, dir, &weights));
	CAIRN_TRY(cairn_safetensors_open(dir, &st));
	l.st = st;
	share.keeps_mxfp4 = model_load_keeps_mxfp4(impl, &config, st, &share, weights);
	ret = model_load_describe(&m, impl, dir, &config, share, weights, kv);
	if (ret)
		goto out_close;
	l.requantised = calloc((size_t)config.num_hidden_layers, CAIRN_NUM_WEIGHTS);
	ret = l.requantised ? cairn_model_each_part(m, model_load_check_part, &l) :
	      cairn_error(ENOMEM, "model: no memory");
	if (!ret && share.of != MTP_LAYER)
		ret = cairn_model_check_layers(&config, dir, st);
	if (!ret)	/* last, because a config that contradicts the weights is the better error */
		ret = cairn_forward_check(m, dir);
	if (ret)
		goto out_free;
	l.from = malloc(CHUNK * sizeof(float));
	l.to = malloc(CHUNK * sizeof(float));
	if (l.from && l.to)
		ret = model_load_fill(m, &l);
	else
		ret = cairn_error(ENOMEM, "model: no memory");
	if (!ret)
		ret = cairn_model_load_kv_scales(m, st);
out_free:
	free(l.requantised);
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

int cairn_model_load_as(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			enum cairn_weights weights, enum cairn_kv_form kv, cairn_progress progress,
			void *ctx)
{
	return load_share(out, impl, dir, model_load_whole, weights, kv, progress, ctx);
}

int cairn_model_load_rank(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			  int32_t rank, int32_t ranks, enum cairn_weights weights, enum cairn_kv_form kv,
			  cairn_progress progress, void *ctx)
{
	const struct model_share share = { .rank = rank, .ranks = ranks, .of = OF_WEIGHTS };

	if (ranks < 1 || rank < 0 || rank >= ranks)
		return cairn_error(EINVAL, "model: rank %d of %d", rank, ranks);
	return load_share(out, impl, dir, share, weights, kv, progress, ctx);
}

int cairn_model_load_context(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			     int32_t rank, int32_t ranks, enum cairn_exchange exchange,
			     enum cairn_weights weights, enum cairn_kv_form kv, cairn_progress progress,
			     void *ctx)
{
	const struct model_share share = {
		.rank = rank, .ranks = ranks, .of = OF_CONTEXT, .exchange = exchange,
	};

	if (ranks < 1 || rank < 0 || rank >= ranks)
		return cairn_error(EINVAL, "model: rank %d of %d", rank, ranks);
	return load_share(out, impl, dir, share, weights, kv, progress, ctx);
}

int cairn_model_load_stage(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			   int32_t stage, int32_t stages, enum cairn_weights weights, enum cairn_kv_form kv,
			   cairn_progress progress, void *ctx)
{
	const struct model_share share = { .rank = stage, .ranks = stages, .of = OF_LAYERS };

	if (stages < 1 || stage < 0 || stage >= stages)
		return cairn_error(EINVAL, "model: stage %d of %d", stage, stages);
	return load_share(out, impl, dir, share, weights, kv, progress, ctx);
}

int cairn_model_load_mtp(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			 enum cairn_weights weights, cairn_progress progress, void *ctx)
{
	const struct model_share share = { .rank = 0, .ranks = 1, .of = MTP_LAYER };

	return load_share(out, impl, dir, share, weights, CAIRN_KV_PLAIN, progress, ctx);
}
