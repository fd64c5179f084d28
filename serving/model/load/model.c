// SPDX-License-Identifier: Apache-2.0
/*
 * model - loads weights from a checkpoint, or generates random ones, at the places that model_layout.c gives
 */
#include "serving/model/load/model_impl.h"

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

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define CHUNK		((size_t)1 << 20)	/* elements converted at once */
#define RANDOM_GROUP	128	/* of weights in 4 bits */
#define FIRST_BLOCKS	"model.layers.0.mlp.experts.gate_up_proj_blocks"
#define RANDOM_BLOCK	8388593			/* elements; a prime */

const char *const cairn_weights_names[] = { "plain", "fp8", "fp8-blocks", "w4", NULL };
const char *const cairn_exchange_names[] = { "auto", "heads", "ring", "blocks", NULL };

int cairn_table_error(const struct cairn_impl *impl, int ret, const char *what)
{
	const char *text = impl->last_error ? impl->last_error() : cairn_last_error();
	char copy[384];

	snprintf(copy, sizeof(copy), "%s", text && *text ? text : strerror(-ret));
	return cairn_error(-ret, "%s: %s: %s", impl->name, what, copy);
}

/* What to make of a checkpoint: the part of one of the ranks, or the layer for multi-token prediction. */
struct share {
	int32_t rank, ranks;
	enum { OF_WEIGHTS, OF_CONTEXT, OF_LAYERS, MTP_LAYER } of;	/* what ranks share */
	enum cairn_exchange exchange;			/* OF_CONTEXT */
	int keeps_mxfp4;
};

static const struct share whole = { .ranks = 1, .of = OF_WEIGHTS };

/*
 * Creates a model with its graph, dimensions and layout, but without weights. impl may be NULL. c: the config
 * of the whole model.
 */
static int describe(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		    const struct cairn_model_config *c, struct share share, enum cairn_weights weights,
		    enum cairn_kv_form kv)
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

/* Allocates the weights without initialising them, and uploads the rotary frequencies. */
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

/* ---- filling the weights ---- */

struct loading {
	const struct cairn_safetensors *st;
	void *stream;
	char *from, *to;	/* CHUNK elements each, for conversions */
	char *staging;		/* in the table's memory: the weight being quantised; NULL: none is */
	/*
	 * [num_hidden_layers, CAIRN_NUM_WEIGHTS]: whether an 8-bit weight must be quantised while loading, or
	 * keeps the codes and factors of the checkpoint. NULL: all must be quantised.
	 */
	uint8_t *requantised;
	cairn_progress progress;
	void *ctx;
	int64_t done, total;
	uint64_t seed;		/* of random weights */
};

/* Rounds the elements to the dtype `want`, chunk by chunk. */
static int load_converted(struct cairn_model *m, struct loading *l, const struct cairn_tensor *t, int want,
			  char *dst)
{
	const int dtype = cairn_st_to_dtype(t->dtype);
	size_t in = cairn_dtype_bytes(dtype), out = cairn_dtype_bytes(want), total = t->num_bytes / in;

	for (size_t first = 0, n; first < total; first += n) {
		n = total - first < CHUNK ? total - first : CHUNK;
		memcpy(l->from, (const char *)t->data + first * in,
		       n * in); /* the file guarantees no alignment */
		for (size_t i = 0; i < n; i++) {
			double v = cairn_load(l->from, dtype, (int64_t)i);

			cairn_store(l->to, want, (int64_t)i, v);
			if (isfinite(v) && !isfinite(cairn_load(l->to, want, (int64_t)i)))
				return cairn_error(EINVAL, "%s: %s: element %zu is %g, too large for %s",
						   t->file, t->name, first + i, v,
						   cairn_dtype_name(want));
		}
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + first * out, l->to, n * out,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is reused */
	}
	return 0;
}

/* Widens this rank's part of a matrix that is stored in 8 bits, some rows at a time, to rows of `pitch`. */
static int load_widened(struct cairn_model *m, struct loading *l, const struct cairn_stored *s, int64_t pitch,
			char *dst)
{
	const int64_t most = (int64_t)CHUNK > pitch ? (int64_t)CHUNK / pitch : 1;
	const size_t row = (size_t)pitch * cairn_dtype_bytes(m->dtype);

	if (pitch > s->cut.cols)
		memset(l->to, 0, (size_t)most * row);
	for (int64_t first = 0, n; first < s->cut.rows; first += n) {
		n = s->cut.rows - first < most ? s->cut.rows - first : most;
		CAIRN_TRY(cairn_model_widen(s, m->dtype, first, n, pitch, l->to));
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + (size_t)first * row, l->to, (size_t)n * row,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is reused */
	}
	return 0;
}

static int is_requantised(const struct loading *l, int32_t layer, int weight)
{
	return !l->requantised || l->requantised[layer * CAIRN_NUM_WEIGHTS + weight];
}

/*
 * Checks, before any allocation, that the part fits the config, and marks its weight for quantisation if the
 * part cannot keep its codes.
 */
static int check_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
		      struct cairn_place place, void *ctx)
{
	struct cairn_stacked stacked;
	struct cairn_stored s;
	struct loading *l = ctx;

	if (p->present == CAIRN_STACKED)
		return place.copy ? 0 : cairn_model_find_stacked(m, p, name, l->st, &stacked);
	if (cairn_weight_w4(m, p->weight).num)
		return cairn_model_check_w4(m, p, name, l->st);
	CAIRN_TRY(cairn_model_find_part(m, p, name, l->st, &s));
	if (l->requantised && !cairn_model_keeps_codes(m, p, &place, &s))
		l->requantised[place.layer * CAIRN_NUM_WEIGHTS + (int)p->weight] = 1;
	return 0;
}

/* Quantises a weight. from: the whole weight in the model's dtype, in the table's memory. */
static int quantise(struct cairn_model *m, const struct loading *l, enum cairn_weight w, int32_t layer,
		    const char *from)
{
	struct cairn_quant_fp8w_args args = {
		.size = sizeof(args), .b = cairn_model_weight(m, layer, w),
		.scale = (float *)(uintptr_t)cairn_model_scale(m, layer, w), .w = from, .dtype = m->dtype,
		.scale_kind = cairn_weights_scale_kind(m->weights),
	};
	int32_t num = cairn_weight_fp8(m, w, &args.n, &args.k);

	for (int32_t i = 0; i < num; i++) {
		CAIRN_TRY(CAIRN_TABLE(m->impl, quant_fp8w, &args, l->stream));
		args.b += (int64_t)args.n * args.k;
		args.scale += cairn_weight_scales(m, args.n, args.k);
		from += (int64_t)args.n * args.k * (int64_t)cairn_dtype_bytes(m->dtype);
		args.w = from;
	}
	return 0;
}

/* Loads a part of which a rank has only some columns. */
static int load_columns(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			struct cairn_stored *s, char *dst)
{
	const int want = cairn_weight_dtype(m, p->weight);
	void *memory;
	int ret = cairn_model_take_columns(s, m->dims[p->cols], &memory);

	if (!ret && cairn_st_to_dtype(s->tensor->dtype) != want)
		ret = load_converted(m, l, s->tensor, want, dst);
	else if (!ret)
		ret = CAIRN_TABLE(m->impl, mem_copy, dst, s->tensor->data, s->tensor->num_bytes,
				  CAIRN_COPY_TO_DEVICE, l->stream);
	m->impl->stream_sync(l->stream);	/* the copy reads the memory, even if a later one failed */
	free(memory);
	return ret;
}

/* Loads what a rank has of a part to memory in the part's dtype, with rows of `pitch` elements. */
static int load_values(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
		       struct cairn_stored *s, int32_t pitch, char *dst)
{
	const int want = cairn_weight_dtype(m, p->weight);

	if (s->factors)
		return load_widened(m, l, s, pitch, dst);
	if (s->cut.cols < m->whole[p->cols])
		return load_columns(m, l, p, s, dst);
	if (cairn_st_to_dtype(s->tensor->dtype) != want)
		return load_converted(m, l, s->tensor, want, dst);
	return CAIRN_TABLE(m->impl, mem_copy, dst, s->tensor->data, s->tensor->num_bytes,
			   CAIRN_COPY_TO_DEVICE, l->stream);
}

/* Returns the bytes in which the staging holds a whole matrix [n, cols], before its codes. */
static size_t staged_bytes(const struct cairn_model *m, int32_t n, int32_t cols)
{
	return ((size_t)n * (size_t)cols * cairn_dtype_bytes(m->dtype) + 255) / 256 * 256;
}

/*
 * Quantises a whole matrix, of which the rank has some columns, with one scale per row. Codes and scales are
 * then those of a process that has the whole model.
 */
static int load_whole_rows(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			   const struct cairn_place *place, struct cairn_stored *s)
{
	const struct cairn_cut cut = s->cut;
	const int32_t cols = m->whole[p->cols];
	struct cairn_quant_fp8w_args args = {
		.size = sizeof(args), .w = l->staging, .dtype = m->dtype, .scale_kind = CAIRN_FP8_SCALE_ROWS,
		.k = cols,
	};
	uint8_t *codes = cairn_model_weight(m, place->layer, p->weight);
	int64_t nth;
	int32_t k;

	cairn_weight_fp8(m, p->weight, &args.n, &k);
	nth = place->first / (int64_t)cairn_dtype_bytes(m->dtype) / ((int64_t)args.n * k);
	args.b = (uint8_t *)l->staging + staged_bytes(m, args.n, cols);
	args.scale = (float *)(uintptr_t)cairn_model_scale(m, place->layer, p->weight) + nth * args.n;
	s->cut = (struct cairn_cut){ .rows = cut.rows, .cols = cols };
	CAIRN_TRY(load_values(m, l, p, s, cols, l->staging));
	CAIRN_TRY(CAIRN_TABLE(m->impl, quant_fp8w, &args, l->stream));
	codes += nth * args.n * k;
	return cairn_model_keep_columns(m, &cut, args.b, cols, codes, args.n, k, l->stream);
}

/* Reports that a part is loaded. */
static void advance(const struct cairn_model *m, struct loading *l, const struct cairn_part *p)
{
	l->done += (int64_t)m->dims[p->rows] * m->dims[p->cols] *
		   (int64_t)cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	if (l->progress)
		l->progress(l->ctx, l->done, l->total);
}

/* Loads one expert's part of a tensor that holds all experts of the layer, some rows at a time. */
static int load_stacked(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			const char *name, const struct cairn_place *place)
{
	const int64_t cols = m->dims[p->cols], most = (int64_t)CHUNK > cols ? (int64_t)CHUNK / cols : 1;
	const size_t row = (size_t)cols * cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	char *dst = (char *)cairn_model_weight(m, place->layer, p->weight) + place->first;
	struct cairn_stacked s;

	CAIRN_TRY(cairn_model_find_stacked(m, p, name, l->st, &s));
	if (cairn_weight_w4(m, p->weight).num)
		return cairn_model_load_w4_stacked(m, p, &s, place, l->stream);
	for (int64_t first = 0, n; first < m->dims[p->rows]; first += n) {
		n = m->dims[p->rows] - first < most ? m->dims[p->rows] - first : most;
		CAIRN_TRY(cairn_model_unstack(m, p, &s, place->copy, first, n, l->to));
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + (size_t)first * row, l->to, (size_t)n * row,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is reused */
	}
	return 0;
}

/* Loads a part that has a tensor of its own and is not kept in 4 bits. */
static int load_wide_part(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			  const char *name, const struct cairn_place *place)
{
	const size_t element = cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	struct cairn_stored s;
	int32_t n, k;
	int is_8_bits = cairn_weight_fp8(m, p->weight, &n, &k) > 0, is_absent;
	int fp8 = is_8_bits && is_requantised(l, place->layer, (int)p->weight);
	int by_rows = fp8 && cairn_model_whole_columns(m, p->weight);
	char *dst = fp8 ? l->staging : cairn_model_weight(m, place->layer, p->weight);

	dst += place->first;
	CAIRN_TRY(cairn_model_find_part(m, p, name, l->st, &s));
	is_absent = cairn_model_share(m, p) == CAIRN_SHARE_ON_0 && m->rank;
	if (is_absent || s.cut.rows < m->dims[p->rows])		/* or the last rows are padding */
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_set, dst, 0, (size_t)m->dims[p->rows] *
				      (size_t)m->dims[p->cols] * element, l->stream));
	if (by_rows)
		CAIRN_TRY(load_whole_rows(m, l, p, place, &s));
	else if (is_8_bits && !fp8)
		CAIRN_TRY(cairn_model_load_codes(m, p, place, &s, (float *)l->to, CHUNK, l->stream));
	else if (!is_absent)
		CAIRN_TRY(load_values(m, l, p, &s, m->dims[p->cols], dst));
	/* the stream orders this before the next use of the staging */
	if (fp8 && !by_rows && place->last)
		CAIRN_TRY(quantise(m, l, p->weight, place->layer, l->staging));
	return 0;
}

static int load_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
		     struct cairn_place place, void *ctx)
{
	struct loading *l = ctx;

	if (p->present == CAIRN_STACKED)
		CAIRN_TRY(load_stacked(m, l, p, name, &place));
	else if (cairn_weight_w4(m, p->weight).num)
		CAIRN_TRY(cairn_model_load_w4(m, p, name, &place, l->st, l->stream));
	else
		CAIRN_TRY(load_wide_part(m, l, p, name, &place));
	advance(m, l, p);
	return 0;
}

/* Returns whether the weight must be quantised in any layer. */
static int any_requantised(const struct cairn_model *m, const struct loading *l, int weight)
{
	int any = 0;

	for (int32_t layer = 0; layer < m->config.num_hidden_layers; layer++)
		any |= is_requantised(l, layer, weight);
	return any;
}

/* Allocates staging for the largest weight to be quantised (all experts of a layer count as one weight), or
 * for a whole matrix and its codes, plus `more` bytes. */
static int get_staging(struct cairn_model *m, struct loading *l, size_t more)
{
	size_t most = 0, bytes;
	int32_t n, k, cols;
	void *p;

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		if (!cairn_weight_fp8(m, (enum cairn_weight)w, &n, &k) || !any_requantised(m, l, w))
			continue;
		bytes = m->elements[w] * cairn_dtype_bytes(m->dtype);
		most = bytes > most ? bytes : most;
		cols = cairn_model_whole_columns(m, (enum cairn_weight)w);
		bytes = staged_bytes(m, n, cols) + (size_t)n * (size_t)cols;
		most = bytes > most ? bytes : most;
	}
	if (!most)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, most + more));
	l->staging = p;
	return 0;
}

static int add_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
		    struct cairn_place place, void *ctx)
{
	struct loading *l = ctx;

	(void)name;
	(void)place;
	l->total += (int64_t)m->dims[p->rows] * m->dims[p->cols] *
		    (int64_t)cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	return 0;
}

static int fill(struct cairn_model *m, struct loading *l)
{
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, stream_create, &l->stream));
	ret = allocate(m, l->stream);
	if (!ret)
		ret = get_staging(m, l, 0);
	if (!ret)
		ret = cairn_model_each_part(m, add_part, l);
	if (!ret)
		ret = cairn_model_each_part(m, load_part, l);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, l->stream);
	else
		m->impl->stream_sync(l->stream);	/* copies may still read the mapping */
	if (l->staging)
		m->impl->mem_free(l->staging);
	m->impl->stream_destroy(l->stream);
	return ret;
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

/* Returns whether the experts stay in MXFP4. st NULL: those of a random model, which are stored nowhere. */
static int keeps_mxfp4(const struct cairn_impl *impl, const struct cairn_model_config *c,
		       const struct cairn_safetensors *st, const struct share *share,
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
	ret = describe(&m, NULL, dir, &config, whole, weights, CAIRN_KV_PLAIN);
	if (!ret)
		ret = cairn_model_each_part(m, check_part, &l);
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
		      struct share share, enum cairn_weights weights, enum cairn_kv_form kv,
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
	share.keeps_mxfp4 = keeps_mxfp4(impl, &config, st, &share, weights);
	ret = describe(&m, impl, dir, &config, share, weights, kv);
	if (ret)
		goto out_close;
	l.requantised = calloc((size_t)config.num_hidden_layers, CAIRN_NUM_WEIGHTS);
	ret = l.requantised ? cairn_model_each_part(m, check_part, &l) :
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
		ret = fill(m, &l);
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
	return load_share(out, impl, dir, whole, weights, kv, progress, ctx);
}

int cairn_model_load_rank(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			  int32_t rank, int32_t ranks, enum cairn_weights weights, enum cairn_kv_form kv,
			  cairn_progress progress, void *ctx)
{
	const struct share share = { .rank = rank, .ranks = ranks, .of = OF_WEIGHTS };

	if (ranks < 1 || rank < 0 || rank >= ranks)
		return cairn_error(EINVAL, "model: rank %d of %d", rank, ranks);
	return load_share(out, impl, dir, share, weights, kv, progress, ctx);
}

int cairn_model_load_context(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			     int32_t rank, int32_t ranks, enum cairn_exchange exchange,
			     enum cairn_weights weights, enum cairn_kv_form kv, cairn_progress progress,
			     void *ctx)
{
	const struct share share = { .rank = rank, .ranks = ranks, .of = OF_CONTEXT, .exchange = exchange };

	if (ranks < 1 || rank < 0 || rank >= ranks)
		return cairn_error(EINVAL, "model: rank %d of %d", rank, ranks);
	return load_share(out, impl, dir, share, weights, kv, progress, ctx);
}

int cairn_model_load_stage(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			   int32_t stage, int32_t stages, enum cairn_weights weights, enum cairn_kv_form kv,
			   cairn_progress progress, void *ctx)
{
	const struct share share = { .rank = stage, .ranks = stages, .of = OF_LAYERS };

	if (stages < 1 || stage < 0 || stage >= stages)
		return cairn_error(EINVAL, "model: stage %d of %d", stage, stages);
	return load_share(out, impl, dir, share, weights, kv, progress, ctx);
}

int cairn_model_load_mtp(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			 enum cairn_weights weights, cairn_progress progress, void *ctx)
{
	const struct share share = { .rank = 0, .ranks = 1, .of = MTP_LAYER };

	return load_share(out, impl, dir, share, weights, CAIRN_KV_PLAIN, progress, ctx);
}

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
	return place.last ? quantise(m, l, p->weight, place.layer,
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

	CAIRN_TRY(allocate(m, l->stream));
	CAIRN_TRY(repeat(m->impl, l, m->base, m->bytes, block, 0));
	if (all)
		CAIRN_TRY(fill_as_whole(m, l, block, all));
	CAIRN_TRY(get_staging(m, l, shifts));
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
			const struct cairn_model_config *config, struct share share,
			enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed)
{
	size_t block = RANDOM_BLOCK * cairn_dtype_bytes(CAIRN_BF16);
	struct cairn_model_config c = *config;
	struct cairn_model *m = NULL, *all = NULL;
	struct loading l = { .seed = seed };
	int ret;

	c.w4.group = weights == CAIRN_WEIGHTS_W4 ? RANDOM_GROUP : 0;
	share.keeps_mxfp4 = keeps_mxfp4(impl, &c, NULL, &share, weights);
	CAIRN_TRY(describe(&m, impl, "random model", &c, share, weights, kv));
	ret = cairn_forward_check(m, "random model");
	if (!ret && share.of == OF_LAYERS) {
		struct share one = whole;

		one.keeps_mxfp4 = share.keeps_mxfp4;
		ret = describe(&all, impl, "random model", &c, one, weights, kv);
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
	return random_share(out, impl, config, whole, weights, kv, seed);
}

int cairn_model_random_rank(struct cairn_model **out, const struct cairn_impl *impl,
			    const struct cairn_model_config *config, int32_t ranks,
			    enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed)
{
	const struct share share = { .rank = 0, .ranks = ranks, .of = OF_WEIGHTS };

	return random_share(out, impl, config, share, weights, kv, seed);
}

int cairn_model_random_context(struct cairn_model **out, const struct cairn_impl *impl,
			       const struct cairn_model_config *config, int32_t rank, int32_t ranks,
			       enum cairn_exchange exchange, enum cairn_weights weights,
			       enum cairn_kv_form kv, uint64_t seed)
{
	const struct share share = { .rank = rank, .ranks = ranks, .of = OF_CONTEXT, .exchange = exchange };

	return random_share(out, impl, config, share, weights, kv, seed);
}

int cairn_model_random_stage(struct cairn_model **out, const struct cairn_impl *impl,
			     const struct cairn_model_config *config, int32_t stage, int32_t stages,
			     enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed)
{
	const struct share share = { .rank = stage, .ranks = stages, .of = OF_LAYERS };

	return random_share(out, impl, config, share, weights, kv, seed);
}
