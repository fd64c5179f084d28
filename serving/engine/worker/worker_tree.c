// SPDX-License-Identifier: Apache-2.0
/*
 * worker_tree - passes with token trees, and moves of the rows that count
 *
 *   tokens of the sequence    t0 .. t[n-1] | r0  r1  r2  r3  r4    one part: row 0 is due, others are drafts
 *   places of their keys       0 .. n-1    | n  n+1 n+2 n+3 n+4
 *   parents                                |     0   1   0   3
 *   positions                              | n  n+1 n+2 n+1 n+2
 *
 * If r3 and r4 are drawn, their keys and values move to the places n+1 and n+2. The rows pass through staging
 * memory, because a place may be both source and target, and kv_move writes in no order. kv_move takes single
 * rows for pages.
 */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "serving/engine/worker/worker_impl.h"

#define LINE_BYTES	(CAIRN_TREE_ROWS / 8)

static size_t lay_out(const struct cairn_worker *w, struct tree_arrays *a, char *base)
{
	size_t batch = (size_t)w->opt.max_batch;
	size_t pages = (size_t)((w->opt.max_context + w->opt.page_size - 1) / w->opt.page_size);
	char *at = base;

	a->mask_indptr = worker_carve(&at, batch * sizeof(*a->mask_indptr));
	a->past_indptr = worker_carve(&at, (batch + 1) * sizeof(*a->past_indptr));
	a->slot_indptr = worker_carve(&at, (batch + 1) * sizeof(*a->slot_indptr));
	a->past_last = worker_carve(&at, batch * sizeof(*a->past_last));
	a->slot_pos0 = worker_carve(&at, batch * sizeof(*a->slot_pos0));
	a->slots = worker_carve(&at, batch * sizeof(*a->slots));
	a->mask = worker_carve(&at, batch * LINE_BYTES);
	a->past_indices = worker_carve(&at, batch * pages * sizeof(*a->past_indices));
	return (size_t)(at - base);
}

/* Returns the bytes of a row's K, or V, in one layer. */
static int64_t row_bytes(const struct cairn_worker *w)
{
	return (int64_t)cairn_model_key_bytes(w->model);
}

/* Returns the bytes of half of a feature. */
static int64_t feature_bytes(const struct cairn_worker *w)
{
	return !w->opt.taps ? 0 :
	       (int64_t)w->opt.taps->width / 2 * (int64_t)cairn_dtype_bytes(w->model->dtype);
}

static int check(const struct cairn_worker *w)
{
	const char *missing = !w->impl->attn_bsr ? "attn_bsr" : !w->impl->kv_move ? "kv_move" : NULL;

	if (missing)
		return cairn_error(EOPNOTSUPP, "worker: trees: %s has no operation %s", w->impl->name,
				   missing);
	if (w->opt.repeatable || w->opt.nano || w->opt.slices || w->opt.tap)
		return cairn_error(EINVAL, "worker: trees: not with repeatable, nano, slices or tap");
	if (w->by_steps || w->model->config.latent.kv_lora_rank)
		return cairn_error(EOPNOTSUPP, "worker: trees: not with latent attention");
	return 0;
}

/* Asks the table, without a row, whether attn_bsr supports the model's sizes. */
static int probe(const struct cairn_worker *w)
{
	const struct cairn_model_config *c = &w->model->config;
	struct cairn_attn_bsr_args args = {
		.size = sizeof(args), .out = w->staging, .q = w->staging, .num_parts = 1,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = w->model->dtype, .kv_fp8 = w->model->kv == CAIRN_KV_FP8,
		.sm_scale = 1,
		.part[0] = {
			.k = w->staging, .v = w->staging, .blk_indptr = w->tree_dev.slot_indptr,
			.blk_indices = w->tree_dev.slots, .mask = w->tree_dev.mask,
			.mask_indptr = w->tree_dev.mask_indptr, .block_m = 1, .block_n = 1, .index_heads = 1,
			.mask_mode = CAIRN_ATTN_BITS,
		},
	};
	size_t bytes;

	return w->impl->attn_bsr_workspace ? TABLE(w, attn_bsr_workspace, &args, &bytes) :
	       TABLE(w, attn_bsr, &args, NULL);
}

int worker_tree_create(struct cairn_worker *w)
{
	size_t batch = (size_t)w->opt.max_batch, block, lists = 4 * batch * sizeof(*w->moves);
	size_t rows = batch * (size_t)w->model->config.num_hidden_layers * 2 * (size_t)row_bytes(w);
	size_t features = w->opt.taps ? batch * 2 * (size_t)feature_bytes(w) : 0;
	struct cairn_batch_trees *t = &w->batch_trees;
	void *p;

	CAIRN_TRY(check(w));
	w->trees = calloc(batch, sizeof(*w->trees));
	if (!w->trees)
		return cairn_error(ENOMEM, "worker: no memory for trees");
	block = lay_out(w, &w->tree_dev, NULL);
	CAIRN_TRY(TABLE(w, mem_alloc, &p, block));
	w->tree_dev_block = p;
	lay_out(w, &w->tree_dev, p);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		CAIRN_TRY(worker_host_alloc(w, block, &p));
		w->flights[i].tree_block = p;
		lay_out(w, &w->flights[i].trees, p);
	}
	CAIRN_TRY(TABLE(w, mem_alloc, &p, rows > features ? rows : features));
	w->staging = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, lists));
	w->moves = p;
	CAIRN_TRY(worker_host_alloc(w, lists, &p));
	w->moves_host = p;
	t->past_indptr = w->tree_dev.past_indptr;
	t->past_indices = w->tree_dev.past_indices;
	t->past_last_page_len = w->tree_dev.past_last;
	t->slot_indptr = w->tree_dev.slot_indptr;
	t->slots = w->tree_dev.slots;
	t->slot_pos0 = w->tree_dev.slot_pos0;
	t->mask_indptr = w->tree_dev.mask_indptr;
	t->mask = w->tree_dev.mask;
	return probe(w);
}

void worker_tree_destroy(struct cairn_worker *w)
{
	void *const memory[] = { w->tree_dev_block, w->staging, w->moves };

	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			w->impl->mem_free(memory[i]);
	}
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++)
		worker_host_free(w, w->flights[i].tree_block);
	worker_host_free(w, w->moves_host);
	free(w->trees);
}

/* Sets the positions of the part that is being added; its rows are the last of the pass. */
void worker_tree_add(struct cairn_worker *w, const struct cairn_worker_part *part)
{
	int32_t *positions = w->flight->host.positions + w->batch.num_rows - part->num_rows;

	for (int32_t i = 1; i < part->num_rows; i++)
		positions[i] = positions[part->parents[i]] + 1;
	w->trees[w->num_trees].request = w->batch.batch - 1;
	w->trees[w->num_trees++].parents = part->parents;
}

/* Writes the slots of a tree's rows, and for each row a line of bits: itself, its parent and so on. */
static void put_tree(const struct cairn_worker *w, int32_t b, const int32_t *parents, int32_t past)
{
	const struct arrays *a = &w->flight->host;
	struct tree_arrays *t = &w->flight->trees;
	const int32_t *pages = a->kv_indices + a->kv_indptr[b];
	int32_t rows = a->qo_indptr[b + 1] - a->qo_indptr[b], line = (rows + 7) / 8;
	uint64_t seen[CAIRN_TREE_ROWS];

	for (int32_t i = 0; i < rows; i++) {
		int32_t place = past + i;

		t->slots[t->slot_indptr[b] + i] = pages[place / w->opt.page_size] * w->opt.page_size +
						  place % w->opt.page_size;
		seen[i] = (i ? seen[parents[i]] : 0) | (uint64_t)1 << i;
		for (int32_t k = 0; k < line; k++)
			t->mask[t->mask_indptr[b] + i * line + k] = (uint8_t)(seen[i] >> 8 * k);
	}
	t->slot_indptr[b + 1] = t->slot_indptr[b] + rows;
	t->slot_pos0[b] = past + CAIRN_TREE_ROWS;
}

int worker_tree_prepare(struct cairn_worker *w)
{
	const struct arrays *a = &w->flight->host;
	struct tree_arrays *t = &w->flight->trees;
	int32_t next = 0, used = 0, size = w->opt.page_size;
	int64_t bits = 0;

	if (!w->num_trees)
		return 0;
	t->past_indptr[0] = t->slot_indptr[0] = 0;
	for (int32_t b = 0; b < w->batch.batch; b++) {
		int is_tree = next < w->num_trees && w->trees[next].request == b;
		int32_t rows = a->qo_indptr[b + 1] - a->qo_indptr[b];
		int32_t pages = a->kv_indptr[b + 1] - a->kv_indptr[b];
		int32_t len = pages ? (pages - 1) * size + a->last_page_len[b] : 0;

		t->mask_indptr[b] = bits;
		t->slot_indptr[b + 1] = t->slot_indptr[b];
		t->slot_pos0[b] = 0;
		if (is_tree) {
			if (rows > CAIRN_TREE_ROWS)
				return cairn_error(EINVAL, "worker: a tree of %d rows, at most %d", rows,
						   CAIRN_TREE_ROWS);
			len -= rows;
			pages = (len + size - 1) / size;
			put_tree(w, b, w->trees[next++].parents, len);
			bits += (int64_t)rows * ((rows + 7) / 8);
		}
		memcpy(t->past_indices + used, a->kv_indices + a->kv_indptr[b],
		       (size_t)pages * sizeof(*t->past_indices));
		used += pages;
		t->past_indptr[b + 1] = used;
		t->past_last[b] = len ? (len - 1) % size + 1 : 0;
	}
	w->batch.trees = &w->batch_trees;
	return TABLE(w, mem_copy, w->tree_dev_block, w->flight->tree_block,
		     (size_t)((char *)(t->past_indices + used) - w->flight->tree_block), CAIRN_COPY_TO_DEVICE,
		     w->stream);
}

/* Moves rows of a store through staging memory; the lists are on the device. */
static int move(const struct cairn_worker *w, const struct cairn_kv_store *kv, int32_t layers, int64_t bytes,
		int32_t num)
{
	struct cairn_kv_move_args args = {
		.size = sizeof(args), .base = kv->base, .slots = w->staging, .from = w->moves,
		.to = w->moves + num, .layer_bytes = (int64_t)kv->layer_bytes,
		.v_offset = (int64_t)kv->v_offset, .page_bytes = bytes, .num_moves = num,
		.num_layers = layers,
		.num_pages = kv->num_pages * kv->page_size, .num_slots = w->opt.max_batch,
	};

	CAIRN_TRY(TABLE(w, kv_move, &args, w->stream));
	args.from += 2 * num;
	args.to += 2 * num;
	return TABLE(w, kv_move, &args, w->stream);
}

int cairn_worker_move_rows(struct cairn_worker *w, const int32_t *from, const int32_t *to, int32_t num)
{
	int32_t *lists = w->moves_host;

	if (num < 1)
		return 0;
	if (!w->staging || num > w->opt.max_batch)
		return cairn_error(EINVAL, "worker: %d moves of rows, at most %d", num,
				   w->staging ? w->opt.max_batch : 0);
	for (int32_t i = 0; i < num; i++) {
		lists[i] = from[i];
		lists[num + i] = lists[2 * num + i] = ~i;
		lists[3 * num + i] = to[i];
	}
	CAIRN_TRY(TABLE(w, mem_copy, w->moves, lists, 4 * (size_t)num * sizeof(*lists), CAIRN_COPY_TO_DEVICE,
			w->stream));
	CAIRN_TRY(move(w, &w->kv, w->model->config.num_hidden_layers, row_bytes(w), num));
	return w->opt.taps ? move(w, &w->features, 1, feature_bytes(w), num) : 0;
}
