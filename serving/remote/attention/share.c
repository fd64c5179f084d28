// SPDX-License-Identifier: Apache-2.0
/* share - the heads of an attention worker, and its model (share.h) */
#include "serving/remote/attention/share.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/digest.h"

const char *cairn_share_streams_over = "nvlink";

uint64_t cairn_share_digest(const struct cairn_model_config *c)
{
	const int32_t sizes[] = {
		c->hidden_size, c->intermediate_size, c->num_hidden_layers, c->num_attention_heads,
		c->num_key_value_heads, c->head_dim, c->vocab_size, c->window, c->latent.kv_lora_rank,
		c->experts.num_experts, (int32_t)c->arch,
	};
	const double numbers[] = {
		cairn_softmax_scale(c), c->attn_softcap, c->rms_norm_eps, c->rope.theta, c->rope.factor,
	};
	uint64_t h = cairn_digest(CAIRN_DIGEST_START, sizes, sizeof(sizes));

	h = cairn_digest(h, numbers, sizeof(numbers));
	return cairn_digest(h, c->windowed, sizeof(c->windowed));
}

/* Copies the scales of some heads from the table's memory. */
static int copy_scales(float *to, const struct cairn_model *m, struct cairn_heads heads)
{
	const int32_t layers = m->config.num_hidden_layers;
	void *stream;
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, stream_create, &stream));
	ret = 0;
	for (int32_t i = 0; i < 2 * layers && !ret; i++)
		ret = CAIRN_TABLE(m->impl, mem_copy, to + (size_t)i * (size_t)heads.num,
				  cairn_model_kv_scale(m, i % layers, i / layers) + heads.first,
				  (size_t)heads.num * sizeof(*to), CAIRN_COPY_TO_HOST, stream);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, stream);
	m->impl->stream_destroy(stream);
	return ret;
}

int cairn_share_assign(struct cairn_control_assign *a, float **scales, const struct cairn_model *m,
		       const struct cairn_remote_limits *l, int previous, int32_t workers, int32_t i)
{
	const struct cairn_model_config *c = &m->config;
	const int32_t all = cairn_share_heads(c);
	const struct cairn_part_of_cache part = cairn_part_of(all, workers, i);
	const struct cairn_heads heads = part.heads;
	const double scalar = c->query_scalar > 0 ? c->query_scalar : c->head_dim;
	const int yarn = c->rope.scaling == CAIRN_ROPE_YARN || c->rope.scaling == CAIRN_ROPE_LONGROPE;

	*a = (struct cairn_control_assign){
		.config = cairn_share_digest(c), .first_head = heads.first, .num_heads = heads.num,
		.num_layers = c->num_hidden_layers, .num_kv_heads = all,
		.head_dim = c->head_dim, .num_pages = l->num_pages, .page_size = l->page_size,
		.dtype = m->dtype, .kv_fp8 = m->kv == CAIRN_KV_FP8,
		.group = c->num_attention_heads / all, .max_rows = l->max_rows,
		.max_batch = l->max_batch, .max_context = l->max_context, .previous = previous,
		.lanes = (uint32_t)(l->lanes ? l->lanes : 1),
		.stripe = part.stripe, .stripes = part.stripes, .kv_lora_rank = c->latent.kv_lora_rank,
		.nope_dim = c->latent.nope_dim, .rope_dim = c->latent.rope_dim, .v_dim = c->latent.v_dim,
		.window = c->window, .query_scalar = scalar,
		.attention_factor = c->latent.kv_lora_rank ? sqrt(cairn_softmax_scale(c) * sqrt(scalar)) :
				    yarn ? c->rope.attention_factor : 1,
		.softcap = c->attn_softcap,
	};
	memcpy(a->windowed, c->windowed, sizeof(a->windowed));
	*scales = NULL;
	if (!a->kv_fp8 || !cairn_model_kv_scale(m, 0, 0))
		return 0;
	a->num_bytes = (uint32_t)(2 * sizeof(float)) * (uint32_t)a->num_layers * (uint32_t)a->num_heads;
	*scales = malloc(a->num_bytes);
	return *scales ? copy_scales(*scales, m, heads) : cairn_error(ENOMEM, "share: no memory");
}

/* A factor is one of longrope, which cairn_softmax_scale() squares with latent attention, too. */
int cairn_share_model(struct cairn_model *m, const struct cairn_impl *impl,
		      const struct cairn_control_assign *a, const void *scales)
{
	const struct cairn_share_sizes sizes = cairn_share_sizes(a);
	void *stream, *p;
	int ret;

	memset(m, 0, sizeof(*m));
	m->impl = impl;
	m->dtype = a->dtype;
	m->kv = a->kv_fp8 ? CAIRN_KV_FP8 : CAIRN_KV_PLAIN;
	m->ranks = 1;
	m->config.num_hidden_layers = a->num_layers;
	m->config.num_attention_heads = a->num_heads * a->group;
	m->config.num_key_value_heads = a->num_heads;
	m->config.head_dim = a->head_dim;
	m->config.window = a->window;
	memcpy(m->config.windowed, a->windowed, sizeof(m->config.windowed));
	m->config.query_scalar = a->query_scalar;
	m->config.rope.scaling = CAIRN_ROPE_LONGROPE;
	m->config.rope.attention_factor = a->attention_factor;
	m->config.attn_softcap = a->softcap;
	m->dims[CAIRN_D_HEAD] = a->head_dim;
	m->dims[CAIRN_D_HEADS] = m->config.num_attention_heads;
	m->dims[CAIRN_D_Q] = m->dims[CAIRN_D_ATTN] = m->config.num_attention_heads * a->head_dim;
	m->dims[CAIRN_D_KV] = a->num_heads * a->head_dim;
	if (a->kv_lora_rank) {
		m->config.latent = (struct cairn_latent_config){
			.kv_lora_rank = a->kv_lora_rank, .nope_dim = a->nope_dim, .rope_dim = a->rope_dim,
			.v_dim = a->v_dim,
		};
		m->dims[CAIRN_D_ATTN] = m->config.num_attention_heads * a->v_dim;
		m->dims[CAIRN_D_LATENT] = a->kv_lora_rank + a->rope_dim;
		m->dims[CAIRN_D_KV] = m->dims[CAIRN_D_LATENT];	/* elements between two rows */
	}
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EINVAL, "share: dtype is %d", a->dtype);
	if (sizes.weight_bytes) {
		CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p,
				      cairn_share_granules((size_t)a->num_layers * sizes.weight_bytes)));
		m->base = p;
		m->bytes = (size_t)a->num_layers * sizes.weight_bytes;
		m->layer_bytes = sizes.weight_bytes;
		m->elements[CAIRN_W_KV_B] = sizes.weight_bytes / cairn_dtype_bytes(a->dtype);
	}
	if (!a->num_bytes)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, a->num_bytes));
	m->kv_scales = p;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &stream));
	ret = CAIRN_TABLE(impl, mem_copy, p, scales, a->num_bytes, CAIRN_COPY_TO_DEVICE, stream);
	if (!ret)
		ret = CAIRN_TABLE(impl, stream_sync, stream);
	impl->stream_destroy(stream);
	return ret;
}

void cairn_share_model_free(struct cairn_model *m)
{
	if (m->kv_scales)
		m->impl->mem_free(m->kv_scales);
	if (m->base)
		m->impl->mem_free(m->base);
	memset(m, 0, sizeof(*m));
}

struct cairn_share_results cairn_share_results(const struct cairn_control_assign *a)
{
	const struct cairn_share_sizes s = cairn_share_sizes(a);
	const size_t mine = (size_t)(a->num_heads * a->group), all = (size_t)(a->num_kv_heads * a->group);
	const size_t first = (size_t)(a->first_head * a->group), head = s.o / mine;
	const size_t rows = (size_t)a->max_rows * (a->previous ? 2 : 1);
	const size_t o = (rows * all * head + 255) / 256 * 256;

	return (struct cairn_share_results){
		.o = first * head, .lse = o + first * sizeof(float), .o_stride = all * head,
		.lse_stride = all * sizeof(float),
		.bytes = o + (a->previous ? (rows * all * sizeof(float) + 255) / 256 * 256 : 0),
	};
}

struct cairn_share_sizes cairn_share_sizes(const struct cairn_control_assign *a)
{
	const size_t element = cairn_dtype_bytes(a->dtype), rows = (size_t)a->max_rows;
	const size_t heads = (size_t)a->num_heads * (size_t)a->group, dim = (size_t)a->head_dim;
	struct cairn_share_sizes s = {
		.q = heads * dim * element, .k = (size_t)a->num_heads * dim * element, .sides = 2,
		.o = heads * dim * element, .lse = a->previous ? heads * sizeof(float) : 0,
	};

	if (a->kv_lora_rank) {
		s.k = (size_t)(a->kv_lora_rank + a->rope_dim) * element;
		s.sides = 1;
		s.o = heads * (size_t)a->v_dim * element;
		s.weight_bytes = heads * (size_t)(a->nope_dim + a->v_dim) * (size_t)a->kv_lora_rank * element;
	}
	s.q_bytes = rows * s.q;
	s.kv_bytes = (size_t)s.sides * rows * s.k;
	s.page_bytes = (size_t)(s.sides * a->page_size) * (a->kv_fp8 ? s.k / element : s.k);
	s.result_bytes = rows * (s.o + s.lse);
	return s;
}
