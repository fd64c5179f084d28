// SPDX-License-Identifier: Apache-2.0
/* eagle_head - loads an EAGLE-3 head and runs it with the table's operations (eagle_head.h) */
#include "serving/engine/spec/eagle_head.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/checkpoint/safetensors.h"

enum weight {
	W_EMBED, W_FC, W_HIDDEN_NORM, W_INPUT_NORM, W_QKV, W_O, W_MLP_NORM, W_GATE_UP, W_DOWN, W_NORM,
	W_LM_HEAD, NUM_WEIGHTS
};

struct eagle_head {
	struct cairn_draft_head base;	/* first, so that a head's address is this one's */
	const struct cairn_impl *impl;
	struct cairn_model_config config;
	int dtype;
	char *weights[NUM_WEIGHTS];
	const void *embed;		/* weights[W_EMBED], or the target's */
	float *inv_freq;
	int32_t *tokens;		/* [draft_vocab_size], on the host */
	/* scratch, for max_rows rows */
	int32_t max_rows, max_last;
	char *scratch;
	char *embedded, *pair, *joined, *qkv, *attn, *out, *gate_up, *inter, *last;
	int32_t *order;			/* [2 * max_rows]: rows of pair in the order of joined */
	void *workspace;
	size_t workspace_bytes;
};

#define TABLE(h, fn, ...) CAIRN_TABLE((h)->impl, fn, __VA_ARGS__)

static int64_t q_width(const struct eagle_head *h)
{
	return (int64_t)h->config.num_attention_heads * h->config.head_dim;
}

static int64_t kv_width(const struct eagle_head *h)
{
	return (int64_t)h->config.num_key_value_heads * h->config.head_dim;
}

static size_t element(const struct eagle_head *h)
{
	return cairn_dtype_bytes(h->dtype);
}

static struct eagle_head *of(struct cairn_draft_head *head)
{
	return (struct eagle_head *)head;
}

/* ---- loading ---- */

static int device_alloc(const struct eagle_head *h, size_t bytes, char **out)
{
	void *p;

	CAIRN_TRY(TABLE(h, mem_alloc, &p, bytes));
	*out = p;
	return 0;
}

/* Writes a tensor of this shape, cols 0: a vector, to host memory in the head's dtype. */
static int read_tensor(const struct eagle_head *h, const struct cairn_safetensors *st, const char *name,
		       int64_t rows, int64_t cols, char *to)
{
	const int64_t shape[2] = { rows, cols };
	const struct cairn_tensor *t;
	int from;

	CAIRN_TRY(cairn_safetensors_get(st, name, cols ? 2 : 1, shape, &t));
	from = cairn_st_to_dtype(t->dtype);
	if (from < 0)
		return cairn_error(EOPNOTSUPP, "%s: %s: is stored as %s", t->file, name,
				   cairn_st_dtype_name(t->dtype));
	if (from == h->dtype) {
		memcpy(to, t->data, t->num_bytes);
		return 0;
	}
	for (int64_t i = 0; i < rows * (cols ? cols : 1); i++)
		cairn_store(to, h->dtype, i, cairn_load(t->data, from, i));
	return 0;
}

/* Loads up to three tensors with the same number of columns as one matrix. */
static int load_weight(struct eagle_head *h, const struct cairn_safetensors *st, enum weight w,
		       const char *const *names, const int64_t *rows, int num, int64_t cols)
{
	size_t row = (size_t)(cols ? cols : 1) * element(h), at = 0, bytes = 0;
	char *host;
	int ret = 0;

	for (int i = 0; i < num; i++)
		bytes += (size_t)rows[i] * row;
	host = malloc(bytes);
	if (!host)
		return cairn_error(ENOMEM, "eagle: no memory for %zu bytes", bytes);
	for (int i = 0; !ret && i < num; i++) {
		ret = read_tensor(h, st, names[i], rows[i], cols, host + at);
		at += (size_t)rows[i] * row;
	}
	if (!ret)
		ret = device_alloc(h, bytes, &h->weights[w]);
	if (!ret)
		ret = TABLE(h, mem_copy, h->weights[w], host, bytes, CAIRN_COPY_TO_DEVICE, NULL);
	if (!ret)
		ret = TABLE(h, stream_sync, NULL);
	h->base.bytes += ret ? 0 : bytes;
	free(host);
	return ret;
}

#define LAYER	"midlayer."

static int load_weights(struct eagle_head *h, const struct cairn_safetensors *st)
{
	const struct cairn_model_config *c = &h->config;
	const int64_t d = c->hidden_size, q = q_width(h), kv = kv_width(h), inter = c->intermediate_size;
	const struct {
		enum weight w;
		const char *names[3];
		int64_t rows[3];
		int num;
		int64_t cols;
	} all[] = {
		{ W_FC, { "fc.weight" }, { d }, 1, CAIRN_MAX_TAPS * (int64_t)c->target_hidden_size },
		{ W_HIDDEN_NORM, { LAYER "hidden_norm.weight" }, { d }, 1, 0 },
		{ W_INPUT_NORM, { LAYER "input_layernorm.weight" }, { d }, 1, 0 },
		{ W_QKV, { LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight",
			   LAYER "self_attn.v_proj.weight" }, { q, kv, kv }, 3, 2 * d },
		{ W_O, { LAYER "self_attn.o_proj.weight" }, { d }, 1, q },
		{ W_MLP_NORM, { LAYER "post_attention_layernorm.weight" }, { d }, 1, 0 },
		{ W_GATE_UP, { LAYER "mlp.gate_proj.weight", LAYER "mlp.up_proj.weight" }, { inter, inter },
		  2, d },
		{ W_DOWN, { LAYER "mlp.down_proj.weight" }, { d }, 1, inter },
		{ W_NORM, { "norm.weight" }, { d }, 1, 0 },
		{ W_LM_HEAD, { "lm_head.weight" }, { c->draft_vocab_size }, 1, d },
		{ W_EMBED, { "embed_tokens.weight" }, { c->vocab_size }, 1, d },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i].w == W_EMBED && d == h->base.target->config.hidden_size &&
		    !cairn_safetensors_find(st, all[i].names[0]))
			continue;
		CAIRN_TRY(load_weight(h, st, all[i].w, all[i].names, all[i].rows, all[i].num, all[i].cols));
	}
	h->embed = h->weights[W_EMBED] ? h->weights[W_EMBED] :
		   cairn_model_weight(h->base.target, 0, CAIRN_W_EMBED);
	return 0;
}

static int load_tokens(struct eagle_head *h, const struct cairn_safetensors *st)
{
	const int64_t num = h->config.draft_vocab_size;
	const struct cairn_tensor *t = cairn_safetensors_find(st, "d2t");

	h->tokens = malloc((size_t)num * sizeof(*h->tokens));
	if (!h->tokens)
		return cairn_error(ENOMEM, "eagle: no memory for %lld tokens", (long long)num);
	if (t || num != h->config.vocab_size)
		CAIRN_TRY(cairn_safetensors_get(st, "d2t", 1, &num, &t));
	if (t && t->dtype != CAIRN_ST_I64)
		return cairn_error(EOPNOTSUPP, "%s: d2t: is stored as %s, must be I64", t->file,
				   cairn_st_dtype_name(t->dtype));
	for (int64_t i = 0; i < num; i++) {
		int64_t more = 0;

		if (t)
			memcpy(&more, (const char *)t->data + i * 8, sizeof(more));
		if (more < -i || more >= h->config.vocab_size - i)
			return cairn_error(EINVAL, "%s: d2t[%lld]: leads to no token below %d", t->file,
					   (long long)i, h->config.vocab_size);
		h->tokens[i] = (int32_t)(i + more);
	}
	return 0;
}

static int check_config(struct eagle_head *h, const char *dir)
{
	const struct cairn_model_config *c = &h->config, *t = &h->base.target->config;
	const int32_t n = t->stages > 1 ? t->whole_layers : t->num_hidden_layers;
	const int32_t usual[CAIRN_MAX_TAPS] = { 2, n / 2, n - 3 };

	if (!c->draft_vocab_size)
		return cairn_error(EINVAL, "%s/config.json: architectures: is no EAGLE-3 head", dir);
	if (c->vocab_size != t->vocab_size || c->target_hidden_size != t->hidden_size)
		return cairn_error(EINVAL, "%s/config.json: vocab_size %d, target_hidden_size %d: the model "
				   "has %d and %d", dir, c->vocab_size, c->target_hidden_size, t->vocab_size,
				   t->hidden_size);
	if (c->hidden_size % 16)
		return cairn_error(EOPNOTSUPP, "%s/config.json: hidden_size: %d is no multiple of 16", dir,
				   c->hidden_size);
	if (t->latent.kv_lora_rank || c->num_hidden_layers != 1)
		return cairn_error(EOPNOTSUPP, "%s/config.json: %s", dir, c->num_hidden_layers != 1 ?
				   "num_hidden_layers: only 1 is supported" :
				   "an EAGLE-3 head for a model with latent attention");
	memcpy(h->base.taps.layers, c->num_taps ? c->taps : usual, sizeof(usual));
	for (int k = 0; k < CAIRN_MAX_TAPS; k++) {
		if (h->base.taps.layers[k] < 1 || h->base.taps.layers[k] >= n)
			return cairn_error(EINVAL, "%s/config.json: eagle_aux_hidden_state_layer_ids: the "
					   "model has no layer %d with one before it", dir,
					   h->base.taps.layers[k]);
	}
	return 0;
}

static int load(struct eagle_head *h, const char *dir)
{
	struct cairn_safetensors *st;
	size_t bytes;
	float *freq;
	char *p;
	int ret;

	CAIRN_TRY(cairn_model_config_load(dir, &h->config));
	CAIRN_TRY(check_config(h, dir));
	CAIRN_TRY(cairn_safetensors_open(dir, &st));
	ret = load_weights(h, st);
	if (!ret)
		ret = load_tokens(h, st);
	cairn_safetensors_close(st);
	if (ret)
		return ret;
	h->base.taps.mix = h->weights[W_FC];
	h->base.taps.width = h->config.hidden_size;
	bytes = (size_t)h->config.head_dim / 2 * sizeof(*freq);
	freq = malloc(bytes);
	if (!freq)
		return cairn_error(ENOMEM, "eagle: no memory");
	cairn_rope_frequencies(&h->config, freq);
	ret = device_alloc(h, bytes, &p);
	h->inv_freq = ret ? NULL : (float *)p;
	if (!ret)
		ret = TABLE(h, mem_copy, h->inv_freq, freq, bytes, CAIRN_COPY_TO_DEVICE, NULL);
	if (!ret)
		ret = TABLE(h, stream_sync, NULL);
	free(freq);
	return ret;
}

static void free_head(struct cairn_draft_head *head)
{
	struct eagle_head *h = of(head);

	for (int i = 0; i < NUM_WEIGHTS; i++) {
		if (h->weights[i])
			h->impl->mem_free(h->weights[i]);
	}
	if (h->inv_freq)
		h->impl->mem_free(h->inv_freq);
	if (h->scratch)
		h->impl->mem_free(h->scratch);
	if (h->workspace)
		h->impl->mem_free(h->workspace);
	free(h->tokens);
	free(h);
}

static int32_t token(const struct cairn_draft_head *head, int32_t id)
{
	const struct eagle_head *h = (const struct eagle_head *)head;

	return id >= 0 && id < head->vocab ? h->tokens[id] : -1;
}

/* ---- passes ---- */

static size_t lay_out(struct eagle_head *h, char *base, int32_t rows, int32_t last)
{
	const struct { char **at; int64_t num, width; } parts[] = {
		{ &h->embedded, rows, h->config.hidden_size }, { &h->pair, 2 * rows, h->config.hidden_size },
		{ &h->joined, rows, 2 * h->config.hidden_size },
		{ &h->qkv, rows, q_width(h) + 2 * kv_width(h) },
		{ &h->attn, rows, q_width(h) }, { &h->out, rows, h->config.hidden_size },
		{ &h->gate_up, rows, 2 * h->config.intermediate_size },
		{ &h->inter, rows, h->config.intermediate_size }, { &h->last, last, h->config.hidden_size },
	};
	size_t used = 0;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		*parts[i].at = base + used;
		used += ((size_t)(parts[i].num * parts[i].width) * element(h) + 255) / 256 * 256;
	}
	h->order = (int32_t *)(base + used);
	return used + 2 * (size_t)rows * sizeof(*h->order);
}

static int reserve(struct cairn_draft_head *head, int32_t max_rows, int32_t max_last)
{
	struct eagle_head *h = of(head);
	size_t bytes = lay_out(h, NULL, max_rows, max_last);
	int32_t *order = malloc(2 * (size_t)max_rows * sizeof(*order));
	int ret;

	if (!order)
		return cairn_error(ENOMEM, "eagle: no memory for %d rows", max_rows);
	for (int32_t i = 0; i < 2 * max_rows; i++)
		order[i] = i % 2 * max_rows + i / 2;
	if (h->scratch)
		h->impl->mem_free(h->scratch);
	h->scratch = NULL;
	ret = device_alloc(h, bytes, &h->scratch);
	if (!ret) {
		lay_out(h, h->scratch, max_rows, max_last);
		h->max_rows = max_rows;
		h->max_last = max_last;
		ret = TABLE(h, mem_set, h->scratch, 0, bytes, NULL);
	}
	if (!ret)
		ret = TABLE(h, mem_copy, h->order, order, 2 * (size_t)max_rows * sizeof(*order),
			    CAIRN_COPY_TO_DEVICE, NULL);
	if (!ret)
		ret = TABLE(h, stream_sync, NULL);
	free(order);
	return ret;
}

/* Grows the workspace, which operations on one stream share. */
static int need(struct eagle_head *h, size_t bytes, void *stream)
{
	char *p;

	if (bytes <= h->workspace_bytes)
		return 0;
	CAIRN_TRY(TABLE(h, stream_sync, stream));
	CAIRN_TRY(device_alloc(h, bytes, &p));
	if (h->workspace)
		h->impl->mem_free(h->workspace);
	h->workspace = p;
	h->workspace_bytes = bytes;
	return 0;
}

static int gemm(struct eagle_head *h, void *out, const void *a, enum weight w, int32_t m, int64_t n,
		int64_t k, int32_t out_dtype, void *stream)
{
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = out, .a = a, .b = h->weights[w], .m = m, .n = (int32_t)n,
		.k = (int32_t)k, .dtype = h->dtype, .out_dtype = out_dtype,
	};
	size_t bytes = 0;

	if (h->impl->gemm_workspace)
		CAIRN_TRY(TABLE(h, gemm_workspace, &args, &bytes));
	CAIRN_TRY(need(h, bytes, stream));
	args.workspace = h->workspace;
	args.workspace_bytes = h->workspace_bytes;
	return TABLE(h, gemm, &args, stream);
}

static int norm(const struct eagle_head *h, void *out, void *residual, const void *x, enum weight w,
		int32_t rows, void *stream)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = out, .residual = residual, .x = x, .weight = h->weights[w],
		.rows = rows, .dim = h->config.hidden_size, .dtype = h->dtype,
		.eps = (float)h->config.rms_norm_eps,
	};

	return TABLE(h, rmsnorm, &args, stream);
}

static int pick(const struct eagle_head *h, void *out, const void *table, const int32_t *ids,
		int32_t rows, int32_t table_rows, void *stream)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = out, .table = table, .ids = ids, .rows = rows,
		.dim = h->config.hidden_size, .vocab = table_rows, .dtype = h->dtype,
	};

	return TABLE(h, embedding, &args, stream);
}

static int attend(struct eagle_head *h, const struct cairn_draft_pass *p, void *stream)
{
	const struct cairn_model_config *c = &h->config;
	const int64_t stride = q_width(h) + 2 * kv_width(h);
	char *k = h->qkv + (size_t)q_width(h) * element(h), *v = k + (size_t)kv_width(h) * element(h);
	struct cairn_rope_args rope = {
		.size = sizeof(rope), .q = h->qkv, .k = k, .inv_freq = h->inv_freq, .positions = p->positions,
		.q_stride = stride, .k_stride = stride, .nnz = p->num_rows,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .rotary_dim = c->head_dim, .dtype = h->dtype, .scale = 1,
	};
	struct cairn_kv_append_args append = {
		.size = sizeof(append), .k = k, .v = v, .qo_indptr = p->qo_indptr, .kv = p->kv,
		.k_stride = stride, .v_stride = stride, .nnz_qo = p->num_rows,
		.num_kv_heads = c->num_key_value_heads, .head_dim = c->head_dim, .dtype = h->dtype,
	};
	struct cairn_attn_paged_args attn = {
		.size = sizeof(attn), .out = h->attn, .q = h->qkv, .qo_indptr = p->qo_indptr, .kv = p->kv,
		.q_stride = stride, .nnz_qo = p->num_rows, .max_qo_len = p->max_qo_len,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = h->dtype, .causal = 1,
		.sm_scale = (float)cairn_softmax_scale(c),
	};
	size_t bytes = 0;

	CAIRN_TRY(TABLE(h, rope, &rope, stream));
	CAIRN_TRY(TABLE(h, kv_append, &append, stream));
	if (h->impl->attn_paged_workspace)
		CAIRN_TRY(TABLE(h, attn_paged_workspace, &attn, &bytes));
	CAIRN_TRY(need(h, bytes, stream));
	attn.workspace = h->workspace;
	attn.workspace_bytes = h->workspace_bytes;
	return TABLE(h, attn_paged, &attn, stream);
}

static int run(struct cairn_draft_head *head, const struct cairn_draft_pass *p, void *stream)
{
	struct eagle_head *h = of(head);
	const struct cairn_model_config *c = &h->config;
	const int64_t d = c->hidden_size, inter = c->intermediate_size;
	const int64_t q = q_width(h), qkv = q + 2 * kv_width(h);
	char *second = h->pair + (size_t)h->max_rows * (size_t)d * element(h);
	const int32_t rows = p->num_rows;
	struct cairn_silu_mul_args silu = {
		.size = sizeof(silu), .out = h->inter, .x = h->gate_up, .rows = rows, .dim = (int32_t)inter,
		.dtype = h->dtype,
	};

	if (rows < 1 || rows > h->max_rows || p->num_last > h->max_last)
		return cairn_error(EINVAL, "eagle: a pass of %d rows with %d results, at most %d and %d",
				   rows, p->num_last, h->max_rows, h->max_last);
	CAIRN_TRY(pick(h, h->embedded, h->embed, p->ids, rows, c->vocab_size, stream));
	CAIRN_TRY(norm(h, h->pair, NULL, h->embedded, W_INPUT_NORM, rows, stream));
	CAIRN_TRY(norm(h, second, NULL, p->states, W_HIDDEN_NORM, rows, stream));
	CAIRN_TRY(pick(h, h->joined, h->pair, h->order, 2 * rows, 2 * h->max_rows, stream));
	CAIRN_TRY(gemm(h, h->qkv, h->joined, W_QKV, rows, qkv, 2 * d, h->dtype, stream));
	CAIRN_TRY(attend(h, p, stream));
	CAIRN_TRY(gemm(h, h->out, h->attn, W_O, rows, d, q, h->dtype, stream));
	CAIRN_TRY(norm(h, h->embedded, p->states, h->out, W_MLP_NORM, rows, stream));
	CAIRN_TRY(gemm(h, h->gate_up, h->embedded, W_GATE_UP, rows, 2 * inter, d, h->dtype, stream));
	CAIRN_TRY(TABLE(h, silu_mul, &silu, stream));
	CAIRN_TRY(gemm(h, h->out, h->inter, W_DOWN, rows, d, inter, h->dtype, stream));
	CAIRN_TRY(norm(h, h->embedded, p->states, h->out, W_NORM, rows, stream));
	if (!p->num_last)
		return 0;
	CAIRN_TRY(pick(h, h->last, h->embedded, p->last_rows, p->num_last, rows, stream));
	CAIRN_TRY(pick(h, p->next, p->states, p->last_rows, p->num_last, rows, stream));
	return gemm(h, p->logits, h->last, W_LM_HEAD, p->num_last, c->draft_vocab_size, d, CAIRN_F32, stream);
}

/* ---- making it ---- */

int cairn_eagle_head_load(struct cairn_draft_head **out, const struct cairn_model *target, const char *dir)
{
	static const struct cairn_draft_head_ops ops = {
		.name = "eagle", .free = free_head, .reserve = reserve, .run = run, .token = token,
	};
	struct eagle_head *h;
	int ret;

	if (!target->impl->kv_append || !target->impl->attn_paged)
		return cairn_error(EOPNOTSUPP, "eagle: %s lacks kv_append or attn_paged", target->impl->name);
	h = calloc(1, sizeof(*h));
	if (!h)
		return cairn_error(ENOMEM, "eagle: no memory");
	h->base.ops = &ops;
	h->base.target = target;
	h->impl = target->impl;
	h->dtype = target->dtype;
	ret = load(h, dir);
	if (ret) {
		free_head(&h->base);
		return ret;
	}
	h->base.hidden = h->config.hidden_size;
	h->base.vocab = h->config.draft_vocab_size;
	h->base.max_positions = h->config.max_position_embeddings;
	h->base.key_bytes = (size_t)kv_width(h) * element(h);
	*out = &h->base;
	return 0;
}
