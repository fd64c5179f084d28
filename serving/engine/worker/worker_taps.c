// SPDX-License-Identifier: Apache-2.0
/*
 * worker_taps - features of keys: three hidden states of a row, mixed by a matrix, or its last hidden state,
 * stored beside its key
 *
 * The pass copies the hidden states of all its rows, layer by layer. The embedding operation puts the three
 * of each row next to each other, and one product mixes them. kv_append stores the halves of the result where
 * the row's key and value would be in a cache of one layer. So sequences that share pages of keys share
 * features, and what copies pages or moves rows on the device does so for both.
 *
 * A stage of a pipeline has the states that enter its layers. At the end of a pass the first stage, whose
 * process drafts, gets those of the others.
 */
#include <string.h>

#include "primitives/base/dtype.h"
#include "serving/engine/worker/worker_impl.h"

static size_t element(const struct cairn_worker *w)
{
	return cairn_dtype_bytes(w->model->dtype);
}

static int alloc(const struct cairn_worker *w, size_t bytes, char **out)
{
	void *p;

	CAIRN_TRY(TABLE(w, mem_alloc, &p, bytes));
	*out = p;
	return TABLE(w, mem_set, p, 0, bytes, w->stream);
}

/* Returns whether a feature is a mixture of three states, and not the last one. */
static int mixes(const struct cairn_worker *w)
{
	return w->opt.taps->layers[0] > 0;
}

/* Returns whether this worker keeps the features. */
static int has_features(const struct cairn_worker *w)
{
	return !w->model->config.stage;
}

static int32_t num_layers(const struct cairn_worker *w)
{
	const struct cairn_model_config *c = &w->model->config;

	return c->stages > 1 ? c->whole_layers : c->num_hidden_layers;
}

static int check(const struct cairn_worker *w)
{
	const struct cairn_worker_taps *t = w->opt.taps;

	if (w->opt.nano || w->opt.slices)
		return cairn_error(EINVAL, "worker: taps: not with nano or slices");
	if (w->by_steps)
		return cairn_error(EOPNOTSUPP, "worker: taps: %s has no list of operations", w->impl->name);
	for (int32_t k = 0; k < CAIRN_MAX_TAPS && mixes(w); k++) {
		if (t->layers[k] < 1 || t->layers[k] >= num_layers(w))
			return cairn_error(EINVAL, "worker: taps: the model has no layer %d with one before "
					   "it", t->layers[k]);
	}
	return 0;
}

/* Makes the memory in which three states of each row are put next to each other. */
static int create_mix(struct cairn_worker *w)
{
	size_t rows = (size_t)w->opt.max_rows;
	char *order;
	void *host;
	int ret;

	CAIRN_TRY(alloc(w, CAIRN_MAX_TAPS * rows * (size_t)w->model->config.hidden_size * element(w),
			&w->tap_joined));
	CAIRN_TRY(alloc(w, CAIRN_MAX_TAPS * rows * sizeof(*w->tap_order), &order));
	w->tap_order = (int32_t *)order;
	CAIRN_TRY(worker_host_alloc(w, CAIRN_MAX_TAPS * rows * sizeof(*w->tap_order), &host));
	for (size_t i = 0; i < CAIRN_MAX_TAPS * rows; i++)
		((int32_t *)host)[i] = (int32_t)(i % CAIRN_MAX_TAPS * rows + i / CAIRN_MAX_TAPS);
	ret = TABLE(w, mem_copy, w->tap_order, host, CAIRN_MAX_TAPS * rows * sizeof(*w->tap_order),
		    CAIRN_COPY_TO_DEVICE, w->stream);
	if (!ret)
		ret = TABLE(w, stream_sync, w->stream);
	worker_host_free(w, host);
	return ret;
}

int worker_taps_create(struct cairn_worker *w)
{
	const struct cairn_worker_taps *t = w->opt.taps;
	size_t hidden = (size_t)w->model->config.hidden_size * element(w);
	size_t slots = (size_t)w->opt.num_pages * (size_t)w->opt.page_size;
	size_t half = slots * (size_t)t->width / 2 * element(w), rows = (size_t)w->opt.max_rows;
	struct cairn_kv_store *f = &w->features;

	CAIRN_TRY(check(w));
	CAIRN_TRY(alloc(w, (mixes(w) ? CAIRN_MAX_TAPS : 1) * rows * hidden, &w->tap_rows));
	if (!has_features(w))
		return 0;
	*f = (struct cairn_kv_store){ .layer_bytes = 2 * half, .v_offset = half,
				      .num_pages = w->opt.num_pages, .page_size = w->opt.page_size };
	CAIRN_TRY(alloc(w, 2 * half, &f->base));
	CAIRN_TRY(alloc(w, rows * (size_t)t->width * element(w), &w->tap_mixed));
	return mixes(w) ? create_mix(w) : 0;
}

void worker_taps_destroy(struct cairn_worker *w)
{
	void *const memory[] = {
		w->features.base, w->tap_rows, w->tap_joined, w->tap_mixed, w->tap_order, w->tap_workspace,
	};

	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			w->impl->mem_free(memory[i]);
	}
}

const struct cairn_kv_store *cairn_worker_features(const struct cairn_worker *w)
{
	return &w->features;
}

void worker_taps_prepare(struct cairn_worker *w)
{
	const struct cairn_model_config *c = &w->model->config;
	struct cairn_batch *b = &w->batch;

	if (!w->opt.taps || (!mixes(w) && c->stages > 1))	/* the last stage has its last states */
		return;
	if (!mixes(w)) {
		b->states = w->tap_rows;
		b->normed = w->tap_mixed;
		return;
	}
	b->num_taps = CAIRN_MAX_TAPS;
	for (int32_t k = 0; k < CAIRN_MAX_TAPS; k++)
		b->tap_layers[k] = w->opt.taps->layers[k] - c->first_layer;	/* others' are out of range */
	b->taps = w->tap_rows;
	b->tap_bytes = (size_t)w->opt.max_rows * (size_t)w->model->config.hidden_size * element(w);
}

static struct cairn_gemm_args product(const struct cairn_worker *w)
{
	return (struct cairn_gemm_args){
		.size = sizeof(struct cairn_gemm_args), .out = w->tap_mixed, .a = w->tap_joined,
		.b = w->opt.taps->mix, .workspace = w->tap_workspace,
		.workspace_bytes = w->tap_workspace_bytes,
		.m = w->batch.num_rows, .n = w->opt.taps->width,
		.k = CAIRN_MAX_TAPS * w->model->config.hidden_size, .dtype = w->model->dtype,
		.out_dtype = w->model->dtype,
	};
}

int worker_taps_reserve(struct cairn_worker *w, int *moved)
{
	struct cairn_gemm_args gemm;
	size_t bytes = 0;
	void *p;

	if (!w->opt.taps || !mixes(w) || !has_features(w) || !w->impl->gemm_workspace)
		return 0;
	gemm = product(w);
	CAIRN_TRY(TABLE(w, gemm_workspace, &gemm, &bytes));
	if (bytes <= w->tap_workspace_bytes)
		return 0;
	CAIRN_TRY(TABLE(w, stream_sync, w->stream));
	CAIRN_TRY(TABLE(w, mem_alloc, &p, bytes));
	if (w->tap_workspace)
		w->impl->mem_free(w->tap_workspace);
	w->tap_workspace = p;
	w->tap_workspace_bytes = bytes;
	*moved = 1;
	return 0;
}

/* Mixes the three states of each row. */
static int mix(struct cairn_worker *w)
{
	const struct cairn_batch *b = &w->batch;
	struct cairn_embedding_args join = {
		.size = sizeof(join), .out = w->tap_joined, .table = w->tap_rows, .ids = w->tap_order,
		.rows = CAIRN_MAX_TAPS * b->num_rows, .dim = w->model->config.hidden_size,
		.vocab = CAIRN_MAX_TAPS * w->opt.max_rows, .dtype = w->model->dtype,
	};
	const struct cairn_gemm_args gemm = product(w);

	CAIRN_TRY(TABLE(w, embedding, &join, w->stream));
	return TABLE(w, gemm, &gemm, w->stream);
}

/* Gives the first stage the states that stage s has: `from` there, `to` here. All stages call it. */
static int bring_from(struct cairn_worker *w, int32_t s, char *to, const char *from)
{
	const int32_t stage = w->model->config.stage;
	const struct cairn_send_recv_args args = {
		.size = sizeof(args), .out = to, .x = from,
		.bytes = w->batch.num_rows * (int64_t)w->model->config.hidden_size * (int64_t)element(w),
		.to = stage == s ? 0 : -1, .from = stage ? -1 : s,
	};

	return s ? TABLE(w, send_recv, &args, w->stream) : 0;
}

/* Returns the stage of the layer that a tap's states enter. */
static int32_t stage_of(const struct cairn_model_config *c, int32_t layer)
{
	int32_t s = 0;

	while (s < c->stages - 1 && cairn_stage_first(c->whole_layers, s + 1, c->stages) <= layer)
		s++;
	return s;
}

/* Gives the first stage of a pipeline the states of the pass. */
static int bring(struct cairn_worker *w)
{
	const struct cairn_model_config *c = &w->model->config;
	const size_t bytes = (size_t)w->opt.max_rows * (size_t)c->hidden_size * element(w);

	if (c->stages <= 1)
		return 0;
	if (!mixes(w))
		return bring_from(w, c->stages - 1, w->tap_mixed, cairn_pipeline_normed(w->pipeline));
	for (size_t k = 0; k < CAIRN_MAX_TAPS; k++)
		CAIRN_TRY(bring_from(w, stage_of(c, w->opt.taps->layers[k]), w->tap_rows + k * bytes,
				     w->tap_rows + k * bytes));
	return 0;
}

int worker_taps_after(struct cairn_worker *w)
{
	const struct cairn_batch *b = &w->batch;
	struct cairn_kv_append_args append = {
		.size = sizeof(append), .k = w->tap_mixed, .qo_indptr = b->qo_indptr,
		.kv = cairn_batch_kv(b, &w->features, 0), .nnz_qo = b->num_rows, .num_kv_heads = 1,
		.dtype = w->model->dtype,
	};

	if (!w->opt.taps)
		return 0;
	CAIRN_TRY(bring(w));
	if (!has_features(w))
		return 0;
	append.head_dim = w->opt.taps->width / 2;
	append.v = w->tap_mixed + (size_t)append.head_dim * element(w);
	append.k_stride = append.v_stride = w->opt.taps->width;
	if (mixes(w))
		CAIRN_TRY(mix(w));
	return TABLE(w, kv_append, &append, w->stream);
}
