// SPDX-License-Identifier: Apache-2.0
/*
 * attn_restore - sends the rows of a journal to the workers of a new epoch (attn_remote.h)
 *
 * Pages are requests of passes like others: their queries are 0 and the results are not used. So a worker
 * appends the rows as it did at first, and its cache has the same bits again. The rows of a layer are copied
 * from the journal into the table's memory, K and V apart, one copy for each page.
 */
#include "serving/remote/attention/attn_restore.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/remote/remote_fault.h"

struct restore {
	const struct cairn_model *m;
	const struct cairn_journal *j;
	int32_t page_size;
	size_t row;			/* bytes of K and V of a row */
	struct cairn_remote_pass p;
	int32_t *qo_indptr, *kv_indptr, *last, *pages;	/* of the pass: [max_batch (+ 1)] */
	void *stream;
	void *q, *kv, *o, *lse;		/* [max_rows, ...], in the table's memory; kv: K, then V */
	size_t v;			/* bytes from K to V */
	int64_t bytes;
};

/* results: of a layer, as in attn_link.h */
static int open(struct restore *x, const struct cairn_remote_limits *l, size_t results)
{
	const struct cairn_model_config *c = &x->m->config;
	const struct cairn_impl *impl = x->m->impl;
	const size_t rows = (size_t)l->max_rows, batch = (size_t)l->max_batch + 1;
	const size_t head = (size_t)c->head_dim * cairn_dtype_bytes(x->m->dtype);
	const size_t q = (size_t)c->num_attention_heads * head;

	x->row = 2 * (size_t)c->num_key_value_heads * head;
	x->page_size = l->page_size;
	x->qo_indptr = calloc(4 * batch, sizeof(*x->qo_indptr));
	if (!x->qo_indptr)
		return cairn_error(ENOMEM, "kv_journal: no memory for %d requests", l->max_batch);
	x->kv_indptr = x->qo_indptr + batch;
	x->last = x->kv_indptr + batch;
	x->pages = x->last + batch;
	x->v = rows * (x->row / 2);
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &x->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &x->q, rows * q));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &x->kv, rows * x->row));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &x->o, results * rows * q));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &x->lse,
			      results * rows * (size_t)c->num_attention_heads * sizeof(float)));
	return CAIRN_TABLE(impl, mem_set, x->q, 0, rows * q, x->stream);
}

/* The lane keeps the stream of a pass that has failed, and would wait for it after it is destroyed here. */
static void close(struct restore *x, struct cairn_attn_remote *r)
{
	const struct cairn_impl *impl = x->m->impl;
	void *const memory[] = { x->q, x->kv, x->o, x->lse };

	if (x->stream)
		impl->stream_sync(x->stream);
	if (!FAULT(RESTORE_STREAM_KEPT))
		cairn_attn_remote_settled(r, 0);
	for (int i = 0; i < 4; i++)
		if (memory[i])
			impl->mem_free(memory[i]);
	if (x->stream)
		impl->stream_destroy(x->stream);
	free(x->qo_indptr);
}

/* Puts the rows of a layer behind one another: of each request, its last ones. */
static int gather(struct restore *x, int32_t layer)
{
	const size_t half = x->row / 2;

	for (int32_t k = 0; k < 2 * x->p.batch; k++) {
		const int32_t i = k / 2, side = k % 2, at = x->qo_indptr[i], num = x->qo_indptr[i + 1] - at;
		const size_t first = (size_t)(x->last[i] - num);

		CAIRN_TRY(CAIRN_TABLE(x->m->impl, mem_copy,
				      (char *)x->kv + (side ? x->v : 0) + (size_t)at * half,
				      cairn_journal_page(x->j, layer, side, x->pages[i]) + first * half,
				      (size_t)num * half, CAIRN_COPY_TO_DEVICE, x->stream));
	}
	return 0;
}

static int send(struct restore *x, struct cairn_attn_remote *r)
{
	const struct cairn_attn_link *link = cairn_attn_remote_link(r, 0);
	const struct cairn_model_config *c = &x->m->config;
	struct cairn_attn_rows rows = {
		.num_rows = x->p.num_rows, .q = x->q, .k = x->kv, .v = (const char *)x->kv + x->v,
		.q_stride = (int64_t)c->num_attention_heads * c->head_dim,
		.kv_stride = (int64_t)c->num_key_value_heads * c->head_dim,
	};

	x->p.num_pages = x->p.batch;
	x->p.qo_indptr = x->qo_indptr;
	x->p.kv_indptr = x->kv_indptr;
	x->p.last_page_len = x->last;
	x->p.kv_indices = x->pages;
	CAIRN_TRY(cairn_attn_remote_begin(r, 0, &x->p));
	for (rows.layer = 0; rows.layer < c->num_hidden_layers; rows.layer++) {
		if (!rows.layer || !FAULT(RESTORE_FIRST_LAYER))
			CAIRN_TRY(gather(x, rows.layer));
		rows.window = cairn_layer_window(c, rows.layer);
		CAIRN_TRY(link->send_q(link->ctx, &rows, x->stream));
		CAIRN_TRY(link->send_kv(link->ctx, &rows, x->stream));
		CAIRN_TRY(link->receive(link->ctx, rows.layer, x->o, link->previous ? x->lse : NULL,
					x->stream));
		x->bytes += (int64_t)((size_t)x->p.num_rows * x->row);
	}
	x->p = (struct cairn_remote_pass){ 0 };
	return cairn_attn_remote_finish(r, 0, x->stream);
}

/* Adds rows first .. first + num - 1 of a page. */
static void add(struct restore *x, int32_t page, int32_t first, int32_t num)
{
	const int32_t b = x->p.batch++;

	x->pages[b] = page;
	x->last[b] = first + num;
	x->p.num_rows += num;
	x->qo_indptr[b + 1] = x->p.num_rows;
	x->kv_indptr[b + 1] = b + 1;
}

static int send_all(struct restore *x, struct cairn_attn_remote *r, const struct cairn_remote_limits *l)
{
	for (int32_t page = 0; page < l->num_pages; page++) {
		const int32_t fill = cairn_journal_fill(x->j, page) - FAULT(RESTORE_SHORT);

		for (int32_t at = 0, num; at < fill; at += num) {
			num = fill - at < l->max_rows ? fill - at : l->max_rows;
			if (x->p.batch == l->max_batch || x->p.num_rows + num > l->max_rows)
				CAIRN_TRY(send(x, r));
			add(x, page, at, num);
		}
	}
	return x->p.batch ? send(x, r) : 0;
}

int attn_restore(struct cairn_attn_remote *r, const struct cairn_journal *j, const struct cairn_model *m,
		 const struct cairn_remote_limits *limits, int64_t *bytes)
{
	struct restore x = { .m = m, .j = j };
	const int results = cairn_attn_remote_link(r, 0)->previous;
	int ret = open(&x, limits, results ? (size_t)results : 1);

	if (!ret)
		ret = send_all(&x, r, limits);
	*bytes = x.bytes;
	close(&x, r);
	return ret;
}
