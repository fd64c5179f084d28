// SPDX-License-Identifier: Apache-2.0
/* task - the model, the caches and the index arrays of the operations that are timed (task.h) */
#include "serving/profile/task.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/graph/op_cost.h"
#include "serving/model/model_graph.h"

/* ---- the bed ---- */

/* Fills memory with the model's weights, because zeros would draw less power. */
static int fill(const struct bed *b, char *at, size_t bytes)
{
	for (size_t done = 0, n; done < bytes; done += n) {
		n = bytes - done < b->model->bytes ? bytes - done : b->model->bytes;
		CAIRN_TRY(CAIRN_TABLE(b->impl, mem_copy, at + done, b->model->base, n, CAIRN_COPY_ON_DEVICE,
				      b->stream));
	}
	return 0;
}

/*
 * Refuses a cache that is larger than all memory. Some systems allocate it nevertheless, and end the process
 * only when it has filled the memory that is there.
 */
static int check_memory(const struct bed *b, const struct bed_sizes *s, int64_t tokens)
{
	double bytes = 2.0 * (double)cairn_model_key_bytes(b->model) * (double)tokens *
		       b->config.num_hidden_layers;

	if (s->mem_bytes > 0 && bytes > (double)s->mem_bytes)
		return cairn_error(ENOMEM, "profile: %lld tokens in the cache take %.0f GB, more than the "
				   "memory of %.0f GB", (long long)tokens, bytes * 1e-9,
				   (double)s->mem_bytes * 1e-9);
	return 0;
}

static int open_memory(struct bed *b, const struct bed_sizes *s)
{
	int64_t pages = (s->tokens + s->max_rows) / s->page_size + s->max_batch + 2;

	if (s->ranks > 1)
		CAIRN_TRY(cairn_model_random_rank(&b->model, b->impl, &b->config, s->ranks,
						  CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, 1));
	else
		CAIRN_TRY(cairn_model_random(&b->model, b->impl, &b->config, 1));
	CAIRN_TRY(check_memory(b, s, pages * s->page_size));
	CAIRN_TRY(cairn_kv_store_create(&b->kv, b->model, (int32_t)pages, s->page_size));
	CAIRN_TRY(CAIRN_TABLE(b->impl, stream_create, &b->stream));
	CAIRN_TRY(fill(b, b->kv.base, b->kv.layer_bytes * (size_t)b->config.num_hidden_layers));
	for (int i = 0; i < PROFILE_SIDES; i++) {
		CAIRN_TRY(cairn_scratch_create(&b->scratch[i], b->model, s->max_rows, 1));
		CAIRN_TRY(fill(b, b->scratch[i]->base, b->scratch[i]->bytes));
	}
	return CAIRN_TABLE(b->impl, stream_sync, b->stream);
}

int bed_open(struct bed *b, const struct cairn_impl *impl, const struct cairn_model_config *config,
	     const struct bed_sizes *s)
{
	struct cairn_model_config share = *config;
	int32_t kv_shares;
	int ret;

	memset(b, 0, sizeof(*b));
	b->impl = impl;
	b->config = *config;
	if (s->ranks > 1)
		CAIRN_TRY(cairn_model_share_config(&share, "profile", s->ranks, 0, &kv_shares));
	CAIRN_TRY(cairn_search_pipeline(&b->pipeline, &share));
	if (config->experts.num_experts)
		b->first_layer = config->experts.dense_layers;
	if (s->ranks > 1 && !b->first_layer)
		b->first_layer = 1;	/* the norm of layer 0 sums nothing */
	if (b->first_layer + s->layers < config->num_hidden_layers)
		b->config.num_hidden_layers = b->first_layer + s->layers;
	ret = open_memory(b, s);
	if (ret)
		bed_close(b);
	return ret;
}

void bed_close(struct bed *b)
{
	for (int i = 0; i < PROFILE_SIDES; i++)
		cairn_scratch_destroy(b->scratch[i]);
	cairn_kv_store_destroy(&b->kv, b->model);
	if (b->stream)
		b->impl->stream_destroy(b->stream);
	cairn_model_free(b->model);
	memset(b, 0, sizeof(*b));
}

/* ---- a task ---- */

static const char *short_name(const struct cairn_graph_op *op)
{
	const char *dot = strrchr(op->name, '.');

	return dot ? dot + 1 : op->name;
}

/* Returns whether name is one of the words of a list that spaces separate. */
static int has_word(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = strstr(list, name); at; at = strstr(at + n, name))
		if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' '))
			return 1;
	return 0;
}

static int find_ops(struct task *t, const char *name)
{
	const struct bed *b = t->bed;
	const struct cairn_op_graph *g = b->model->graph;
	const struct cairn_search_op *op = NULL;

	for (int32_t i = 0; i < b->pipeline.num_ops; i++)
		if (!strcmp(b->pipeline.ops[i].name, name))
			op = &b->pipeline.ops[i];
	if (!op)
		return cairn_error(EINVAL, "profile: the pipeline has no operation %s", name);
	t->attends = op->attention;
	t->num_layers = b->config.num_hidden_layers - b->first_layer;
	if (t->num_layers > PROFILE_LAYERS)
		t->num_layers = PROFILE_LAYERS;
	for (int32_t l = 0; l < t->num_layers; l++) {
		t->num_ops = 0;
		for (int32_t o = 0; o < g->num_ops; o++) {
			if (g->ops[o].layer != b->first_layer + l ||
			    !has_word(op->covers, short_name(&g->ops[o])))
				continue;
			if (t->num_ops == PROFILE_COVERS)
				return cairn_error(EINVAL, "profile: %s covers too many operations", name);
			t->waits |= g->ops[o].kind == CAIRN_OP_MOE;
			t->ops[l][t->num_ops++] = o;
		}
	}
	return 0;
}

/* Index arrays, one after the other. */
struct arrays {
	int32_t *qo_indptr, *kv_indptr, *last_page_len, *kv_indices, *positions;
};

static size_t count_numbers(const struct task_shape *s, int32_t pages)
{
	return (size_t)s->requests * (size_t)(3 + pages + s->rows) + 2;
}

static struct arrays lay_out(int32_t *at, const struct task_shape *s, int32_t pages)
{
	struct arrays a = { .qo_indptr = at };

	a.kv_indptr = a.qo_indptr + s->requests + 1;
	a.last_page_len = a.kv_indptr + s->requests + 1;
	a.kv_indices = a.last_page_len + s->requests;
	a.positions = a.kv_indices + (size_t)s->requests * (size_t)pages;
	return a;
}

/* The pages of a request are scattered: page k of request r is number first + k * requests + r. */
static void fill_arrays(struct arrays *a, const struct task_shape *s, int32_t first, int32_t pages,
			int32_t page_size)
{
	for (int32_t r = 0; r <= s->requests; r++) {
		a->qo_indptr[r] = r * s->rows;
		a->kv_indptr[r] = r * pages;
	}
	for (int32_t r = 0; r < s->requests; r++) {
		a->last_page_len[r] = s->keys - (pages - 1) * page_size;
		for (int32_t k = 0; k < pages; k++)
			a->kv_indices[r * pages + k] = first + k * s->requests + r;
		for (int32_t i = 0; i < s->rows; i++)
			a->positions[r * s->rows + i] = s->keys - s->rows + i;
	}
}

static int upload(struct task *t, const struct task_shape *s)
{
	const struct bed *b = t->bed;
	int32_t size = b->kv.page_size, pages = (s->keys + size - 1) / size, bound = 1;
	size_t bytes = count_numbers(s, pages) * sizeof(int32_t);
	struct arrays host, dev;
	int32_t *block;
	int ret;

	if ((int64_t)pages * s->requests > b->kv.num_pages)
		return cairn_error(EINVAL, "profile: %d requests of %d keys do not fit the cache",
				   s->requests, s->keys);
	block = malloc(bytes);
	if (!block)
		return cairn_error(ENOMEM, "profile: no memory");
	host = lay_out(block, s, pages);
	/* appended keys go to the last pages, and attention reads the first ones */
	fill_arrays(&host, s, t->attends ? 0 : b->kv.num_pages - pages * s->requests, pages, size);
	ret = CAIRN_TABLE(b->impl, mem_alloc, &t->arrays, bytes);
	if (!ret)
		ret = CAIRN_TABLE(b->impl, mem_copy, t->arrays, block, bytes, CAIRN_COPY_TO_DEVICE,
				  b->stream);
	if (!ret)
		ret = CAIRN_TABLE(b->impl, stream_sync, b->stream);
	free(block);
	dev = lay_out(t->arrays, s, pages);
	while (bound < s->keys)		/* an engine's bounds are powers of two as well */
		bound *= 2;
	t->batch = (struct cairn_batch){
		.positions = dev.positions, .qo_indptr = dev.qo_indptr, .kv_indptr = dev.kv_indptr,
		.kv_indices = dev.kv_indices, .kv_last_page_len = dev.last_page_len,
		.num_rows = s->requests * s->rows, .batch = s->requests, .max_qo_len = s->rows,
		.max_kv_len = bound, .num_prompts = s->rows > 1 ? s->requests : 0,
		.prompt_rows = s->rows > 1 ? s->requests * s->rows : 0,
		.prompt_past = s->rows > 1 ? s->requests * (s->keys - s->rows) : 0,
	};
	return ret;
}

static int count_cost(struct task *t, const struct task_shape *s)
{
	const struct cairn_model *m = t->bed->model;
	struct cairn_pass_sizes sizes = forward_sizes(m, t->batch.num_rows, 0);
	int32_t *lens = malloc((size_t)s->requests * 2 * sizeof(*lens));

	if (!lens)
		return cairn_error(ENOMEM, "profile: no memory");
	for (int32_t r = 0; r < s->requests; r++) {
		lens[r] = s->rows;
		lens[s->requests + r] = s->keys;
	}
	sizes.num_requests = s->requests;
	sizes.qo_len = lens;
	sizes.kv_len = lens + s->requests;
	for (int role = 0; role < CAIRN_NUM_ROLES; role++)
		if (!sizes.element[role])
			sizes.element[role] = role == CAIRN_ROLE_INDEX ? sizeof(int32_t) :
					      (uint8_t)cairn_dtype_bytes(m->dtype);
	t->bytes = t->flops = 0;
	for (int32_t i = 0; i < t->num_ops; i++) {
		struct cairn_op_cost cost = cairn_op_cost(m->graph, t->ops[0][i], &sizes);

		t->bytes += (double)cost.bytes;
		t->flops += (double)cost.flops;
	}
	free(lens);
	return 0;
}

/* Makes room for the workspaces of the task. Its side must be idle. */
static int reserve(struct task *t)
{
	struct walk w = t->walk;
	struct cairn_scratch *s = w.s;
	int moved;

	w.asking = 1;
	for (int32_t l = 0; l < t->num_layers; l++)
		for (int32_t i = 0; i < t->num_ops; i++)
			CAIRN_TRY(forward_run_op(&w, &w.g->ops[t->ops[l][i]]));
	CAIRN_TRY(forward_reserve(t->bed->impl, &s->lane[0], w.workspace_bytes, t->bed->stream, &moved));
	CAIRN_TRY(forward_reserve(t->bed->impl, &s->attn[0], w.attn_bytes, t->bed->stream, &moved));
	CAIRN_TRY(forward_reserve(t->bed->impl, &s->moe, w.moe_bytes, t->bed->stream, &moved));
	return t->waits ? forward_zero_counters(&t->walk) : 0;
}

int task_open(struct task *t, struct bed *bed, int32_t side, const char *op,
	      const struct task_shape *shape)
{
	int ret;

	memset(t, 0, sizeof(*t));
	t->bed = bed;
	t->side = side;
	CAIRN_TRY(find_ops(t, op));
	ret = upload(t, shape);
	t->walk = (struct walk){
		.m = bed->model, .g = bed->model->graph, .s = bed->scratch[side],
		.buffers = &bed->scratch[side]->buffers, .kv = &bed->kv, .b = &t->batch,
		.stream = bed->stream,
	};
	if (!ret)
		ret = count_cost(t, shape);
	if (!ret)
		ret = reserve(t);
	/* the first calls load code, choose algorithms and leave the plan of attention in the workspace */
	for (int i = 0; !ret && i < t->num_layers; i++)
		ret = task_call(t, i, bed->stream);
	if (!ret)
		ret = CAIRN_TABLE(bed->impl, stream_sync, bed->stream);
	if (ret)
		task_close(t);
	return ret;
}

void task_close(struct task *t)
{
	if (t->arrays)
		t->bed->impl->mem_free(t->arrays);
	memset(t, 0, sizeof(*t));
}

int task_call(struct task *t, int i, void *stream)
{
	const int32_t *ops = t->ops[i % t->num_layers];

	t->walk.stream = stream;
	for (int32_t k = 0; k < t->num_ops; k++)
		CAIRN_TRY(forward_run_op(&t->walk, &t->walk.g->ops[ops[k]]));
	return 0;
}
