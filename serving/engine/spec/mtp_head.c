// SPDX-License-Identifier: Apache-2.0
/*
 * mtp_head - runs a layer for multi-token prediction (mtp_head.h)
 *
 * A pass embeds the tokens, normalises embeddings and states, puts the two of each row next to each other and
 * multiplies them by eh_proj. The results enter a forward pass of the layer, a model of one layer.
 */
#include "serving/engine/spec/mtp_head.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

struct mtp_head {
	struct cairn_draft_head base;	/* first, so that a head's address is this one's */
	const struct cairn_impl *impl;
	struct cairn_model *m;
	/* for max_rows rows */
	int32_t max_rows;
	struct cairn_scratch *scratch;
	char *pair;	/* [2 * max_rows, hidden]: norms of the embeddings, then of the states */
	char *embedded, *joined;	/* [max_rows, hidden]; [max_rows, 2 * hidden] */
	int32_t *order;			/* [2 * max_rows]: rows of pair in the order of joined */
	void *workspace;
	size_t workspace_bytes;
};

#define TABLE(h, fn, ...) CAIRN_TABLE((h)->impl, fn, __VA_ARGS__)

static struct mtp_head *of(struct cairn_draft_head *head)
{
	return (struct mtp_head *)head;
}

struct cairn_model *cairn_mtp_head_model(struct cairn_draft_head *head)
{
	return of(head)->m;
}

static int32_t token(const struct cairn_draft_head *head, int32_t id)
{
	return id >= 0 && id < head->vocab ? id : -1;
}

/* ---- memory ---- */

static void free_memory(struct mtp_head *h)
{
	void *const memory[] = { h->pair, h->embedded, h->joined, h->order };

	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			h->impl->mem_free(memory[i]);
	}
	h->pair = h->embedded = h->joined = NULL;
	h->order = NULL;
	cairn_scratch_destroy(h->scratch);
	h->scratch = NULL;
}

static void free_head(struct cairn_draft_head *head)
{
	struct mtp_head *h = of(head);

	free_memory(h);
	if (h->workspace)
		h->impl->mem_free(h->workspace);
	cairn_model_free(h->m);
	free(h);
}

static int alloc(const struct mtp_head *h, size_t bytes, char **out)
{
	void *p;

	CAIRN_TRY(TABLE(h, mem_alloc, &p, bytes));
	*out = p;
	return TABLE(h, mem_set, p, 0, bytes, NULL);
}

static int upload_order(struct mtp_head *h)
{
	const size_t bytes = 2 * (size_t)h->max_rows * sizeof(*h->order);
	int32_t *order = malloc(bytes);
	int ret;

	if (!order)
		return cairn_error(ENOMEM, "mtp: no memory for %d rows", h->max_rows);
	for (int32_t i = 0; i < 2 * h->max_rows; i++)
		order[i] = i % 2 * h->max_rows + i / 2;
	ret = TABLE(h, mem_copy, h->order, order, bytes, CAIRN_COPY_TO_DEVICE, NULL);
	if (!ret)
		ret = TABLE(h, stream_sync, NULL);
	free(order);
	return ret;
}

static int reserve(struct cairn_draft_head *head, int32_t max_rows, int32_t max_last)
{
	struct mtp_head *h = of(head);
	const size_t rows = (size_t)max_rows;
	const size_t row = (size_t)head->hidden * cairn_dtype_bytes(h->m->dtype);
	char *order;

	free_memory(h);
	h->max_rows = max_rows;
	CAIRN_TRY(cairn_scratch_create(&h->scratch, h->m, max_rows, max_last));
	CAIRN_TRY(alloc(h, 2 * rows * row, &h->pair));
	CAIRN_TRY(alloc(h, rows * row, &h->embedded));
	CAIRN_TRY(alloc(h, 2 * rows * row, &h->joined));
	CAIRN_TRY(alloc(h, 2 * rows * sizeof(*h->order), &order));
	h->order = (int32_t *)order;
	return upload_order(h);
}

/* Grows the workspace of the product with eh_proj. */
static int need(struct mtp_head *h, size_t bytes, void *stream)
{
	void *p;

	if (bytes <= h->workspace_bytes)
		return 0;
	CAIRN_TRY(TABLE(h, stream_sync, stream));
	CAIRN_TRY(TABLE(h, mem_alloc, &p, bytes));
	if (h->workspace)
		h->impl->mem_free(h->workspace);
	h->workspace = p;
	h->workspace_bytes = bytes;
	return 0;
}

/* ---- passes ---- */

static int pick(const struct mtp_head *h, void *out, const void *table, const int32_t *ids, int32_t rows,
		int32_t table_rows, void *stream)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = out, .table = table, .ids = ids, .rows = rows,
		.dim = h->base.hidden, .vocab = table_rows, .dtype = h->m->dtype,
	};

	return TABLE(h, embedding, &args, stream);
}

static int norm(const struct mtp_head *h, void *out, const void *x, enum cairn_weight w, int32_t rows,
		void *stream)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = out, .x = x, .weight = cairn_model_weight(h->m, 0, w),
		.rows = rows, .dim = h->base.hidden, .dtype = h->m->dtype,
		.eps = (float)h->m->config.rms_norm_eps,
	};

	return TABLE(h, rmsnorm, &args, stream);
}

/* Writes what enters the layer to h->embedded. */
static int join(struct mtp_head *h, const struct cairn_draft_pass *p, void *stream)
{
	const int32_t rows = p->num_rows, hidden = h->base.hidden;
	char *second = h->pair + (size_t)h->max_rows * (size_t)hidden * cairn_dtype_bytes(h->m->dtype);
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = h->embedded, .a = h->joined,
		.b = cairn_model_weight(h->m, 0, CAIRN_W_EH_PROJ), .m = rows, .n = hidden, .k = 2 * hidden,
		.dtype = h->m->dtype, .out_dtype = h->m->dtype,
	};
	size_t bytes = 0;

	CAIRN_TRY(pick(h, h->embedded, cairn_model_weight(h->m, 0, CAIRN_W_EMBED), p->ids, rows,
		       h->m->config.vocab_size, stream));
	CAIRN_TRY(norm(h, h->pair, h->embedded, CAIRN_W_E_NORM, rows, stream));
	CAIRN_TRY(norm(h, second, p->states, CAIRN_W_H_NORM, rows, stream));
	CAIRN_TRY(pick(h, h->joined, h->pair, h->order, 2 * rows, 2 * h->max_rows, stream));
	if (h->impl->gemm_workspace)
		CAIRN_TRY(TABLE(h, gemm_workspace, &args, &bytes));
	CAIRN_TRY(need(h, bytes, stream));
	args.workspace = h->workspace;
	args.workspace_bytes = h->workspace_bytes;
	return TABLE(h, gemm, &args, stream);
}

static int run(struct cairn_draft_head *head, const struct cairn_draft_pass *p, void *stream)
{
	struct mtp_head *h = of(head);
	const struct cairn_kv_store kv = {
		.base = p->kv.k_pages, .num_pages = p->kv.num_pages, .page_size = p->kv.page_size,
	};
	const struct cairn_batch batch = {
		.logits = p->logits, .ids = p->ids, .positions = p->positions, .qo_indptr = p->qo_indptr,
		.kv_indptr = p->kv.indptr, .kv_indices = p->kv.indices,
		.kv_last_page_len = p->kv.last_page_len, .logit_rows = p->last_rows, .num_rows = p->num_rows,
		.batch = p->kv.batch, .num_logits = p->num_last, .max_qo_len = p->max_qo_len,
		.max_kv_len = p->kv.max_len, .inputs = h->embedded, .states = p->states, .normed = h->joined,
	};
	int moved;

	if (p->num_rows < 1 || p->num_rows > h->max_rows)
		return cairn_error(EINVAL, "mtp: a pass of %d rows, at most %d", p->num_rows, h->max_rows);
	CAIRN_TRY(join(h, p, stream));
	CAIRN_TRY(cairn_scratch_reserve(h->scratch, &kv, &batch, stream, &moved));
	CAIRN_TRY(cairn_forward(h->scratch, &kv, &batch, stream));
	return p->num_last ? pick(h, p->next, p->states, p->last_rows, p->num_last, p->num_rows, stream) : 0;
}

/* ---- making it ---- */

int cairn_mtp_head_load(struct cairn_draft_head **out, const struct cairn_model *target, const char *dir)
{
	static const struct cairn_draft_head_ops ops = {
		.name = "mtp", .free = free_head, .reserve = reserve, .run = run, .token = token,
	};
	struct mtp_head *h = calloc(1, sizeof(*h));
	int ret;

	if (!h)
		return cairn_error(ENOMEM, "mtp: no memory");
	h->base.ops = &ops;
	h->base.target = target;
	h->impl = target->impl;
	ret = cairn_model_load_mtp(&h->m, target->impl, dir, target->weights, NULL, NULL);
	if (!ret && (h->m->config.hidden_size != target->config.hidden_size ||
		     h->m->config.vocab_size != target->config.vocab_size || h->m->dtype != target->dtype))
		ret = cairn_error(EINVAL, "%s/config.json: hidden_size, vocab_size or dtype differs from "
				  "the model's", dir);
	if (ret) {
		free_head(&h->base);
		return ret;
	}
	h->base.hidden = h->base.taps.width = target->config.hidden_size;
	h->base.vocab = target->config.vocab_size;
	h->base.max_positions = h->m->config.max_position_embeddings;
	h->base.key_bytes = cairn_model_key_bytes(h->m);
	h->base.is_latent = 1;
	h->base.bytes = h->m->bytes;
	*out = &h->base;
	return 0;
}
