/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sliced_bench_test - a decoding pass of many requests over a cache that nothing has filled, for measures
 *
 * Each request has one row, and KEYS keys with that of the row. Include conformance/harness.h and
 * serving/bench/load_test.h first.
 */
#ifndef CAIRN_SLICED_BENCH_TEST_H
#define CAIRN_SLICED_BENCH_TEST_H

#include <stdlib.h>

#include "serving/slices/sliced_test.h"

#define MOST	256		/* requests */
#define KEYS	1024
#define PAGE	16
#define PAGES	(KEYS / PAGE)	/* of a request */

struct lists {
	int32_t ids[MOST], positions[MOST], qo_indptr[MOST + 1], kv_indptr[MOST + 1];
	int32_t last_page_len[MOST], past_last_len[MOST], kv_indices[MOST * PAGES];
};

struct bench {
	struct cairn_impl impl;
	struct cairn_model *m;
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;
	struct cairn_slices *slices;
	void *stream, *dev, *dev_logits;
	struct cairn_batch b;
	struct cairn_attn_past past;
	float *logits[2];		/* of the first pass, and of the last */
	size_t logits_bytes;
	struct lists host;
	int32_t batch;			/* requests */
};

/* first: number of the first page of the pass */
static inline void make_lists(struct bench *x, int32_t first)
{
	const int32_t batch = x->batch, pages = batch * PAGES;
	struct lists *l = &x->host;

	for (int32_t i = 0; i < batch; i++) {
		l->ids[i] = 97 * i % x->m->config.vocab_size;
		l->positions[i] = KEYS - 1;
		l->qo_indptr[i] = i;
		l->kv_indptr[i] = i * PAGES;
		l->last_page_len[i] = PAGE;
		l->past_last_len[i] = PAGE - 1;
	}
	l->qo_indptr[batch] = batch;
	l->kv_indptr[batch] = pages;
	for (int32_t i = 0; i < pages; i++)
		l->kv_indices[i] = first + (int32_t)((int64_t)i * 1009 % pages);
}

/* Prepares passes of x->batch requests of the model. num_pages: of a cache here */
static inline int prepare(struct bench *x, int32_t num_pages, int32_t first_page)
{
	const size_t vocab = (size_t)x->m->config.vocab_size;
	const struct lists *d;

	x->logits_bytes = (size_t)x->batch * vocab * sizeof(float);
	make_lists(x, first_page);
	CAIRN_TRY(cairn_kv_store_create(&x->kv, x->m, num_pages, PAGE));
	CAIRN_TRY(cairn_scratch_create(&x->scratch, x->m, x->batch, x->batch));
	CAIRN_TRY(x->impl.stream_create(&x->stream));
	CAIRN_TRY(x->impl.mem_alloc(&x->dev, sizeof(x->host)));
	CAIRN_TRY(x->impl.mem_alloc(&x->dev_logits, x->logits_bytes));
	for (int i = 0; i < 2; i++)
		x->logits[i] = malloc(x->logits_bytes);
	/* 0x3c3c is about 2^-6 in bf16 */
	CAIRN_TRY(x->impl.mem_set(x->kv.base, 0x3c, x->kv.layer_bytes *
				  (size_t)x->m->config.num_hidden_layers, x->stream));
	CAIRN_TRY(x->impl.mem_copy(x->dev, &x->host, sizeof(x->host), CAIRN_COPY_TO_DEVICE, x->stream));
	CAIRN_TRY(x->impl.stream_sync(x->stream));
	d = x->dev;
	x->b = (struct cairn_batch){
		.logits = x->dev_logits, .ids = d->ids, .positions = d->positions,
		.qo_indptr = d->qo_indptr, .kv_indptr = d->kv_indptr, .kv_indices = d->kv_indices,
		.kv_last_page_len = d->last_page_len, .num_rows = x->batch, .batch = x->batch,
		.num_logits = x->batch, .max_qo_len = 1, .max_kv_len = KEYS,
	};
	x->past = (struct cairn_attn_past){
		d->qo_indptr, d->kv_indptr, d->kv_indices, d->past_last_len, NULL, x->batch,
	};
	return written_slices(&x->slices, x->m);
}

static inline int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Frees all but the model. */
static inline void close_passes(struct bench *x)
{
	if (x->stream)
		x->impl.stream_destroy(x->stream);
	if (x->dev)
		x->impl.mem_free(x->dev);
	if (x->dev_logits)
		x->impl.mem_free(x->dev_logits);
	cairn_slices_destroy(x->slices);
	cairn_scratch_destroy(x->scratch);
	if (x->kv.base)
		cairn_kv_store_destroy(&x->kv, x->m);
	free(x->logits[0]);
	free(x->logits[1]);
}

#endif
