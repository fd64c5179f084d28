// SPDX-License-Identifier: Apache-2.0
/*
 * sliced_speed_test - measures what slices and the merge of partial attention add to a decoding pass
 *
 *   llama3_8b_b64_kv1024
 *	random weights, bf16: 64 requests with 1024 keys each, one row each, logits for all. The times are
 *	medians of 30 replays of a captured pass: whole; in slices with all attention at a local worker; and
 *	in slices with the attention to previous keys there, which adds two operations and two copies to each
 *	layer.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/bench/load_test.h"
#include "serving/slices/sliced_test.h"

#define BATCH	64
#define KEYS	1024
#define PAGE	16
#define PAGES	(KEYS / PAGE)
#define REPLAYS	30

struct lists {
	int32_t ids[BATCH], positions[BATCH], qo_indptr[BATCH + 1], kv_indptr[BATCH + 1];
	int32_t last_page_len[BATCH], past_last_len[BATCH], kv_indices[BATCH * PAGES];
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
};

static struct lists make_lists(const struct bench *x)
{
	struct lists l;

	for (int32_t i = 0; i < BATCH; i++) {
		l.ids[i] = 97 * i % x->m->config.vocab_size;
		l.positions[i] = KEYS - 1;
		l.qo_indptr[i] = i;
		l.kv_indptr[i] = i * PAGES;
		l.last_page_len[i] = PAGE;
		l.past_last_len[i] = PAGE - 1;
	}
	l.qo_indptr[BATCH] = BATCH;
	l.kv_indptr[BATCH] = BATCH * PAGES;
	for (int32_t i = 0; i < BATCH * PAGES; i++)
		l.kv_indices[i] = (int32_t)((int64_t)i * 1009 % (BATCH * PAGES));
	return l;
}

static int prepare(struct bench *x)
{
	const struct lists host = make_lists(x), *d;
	const size_t vocab = (size_t)x->m->config.vocab_size;

	x->logits_bytes = BATCH * vocab * sizeof(float);
	CAIRN_TRY(cairn_kv_store_create(&x->kv, x->m, BATCH * PAGES, PAGE));
	CAIRN_TRY(cairn_scratch_create(&x->scratch, x->m, BATCH, BATCH));
	CAIRN_TRY(x->impl.stream_create(&x->stream));
	CAIRN_TRY(x->impl.mem_alloc(&x->dev, sizeof(host)));
	CAIRN_TRY(x->impl.mem_alloc(&x->dev_logits, x->logits_bytes));
	for (int i = 0; i < 2; i++)
		x->logits[i] = malloc(x->logits_bytes);
	/* 0x3c3c is about 2^-6 in bf16 */
	CAIRN_TRY(x->impl.mem_set(x->kv.base, 0x3c, x->kv.layer_bytes *
				  (size_t)x->m->config.num_hidden_layers, x->stream));
	CAIRN_TRY(x->impl.mem_copy(x->dev, &host, sizeof(host), CAIRN_COPY_TO_DEVICE, x->stream));
	CAIRN_TRY(x->impl.stream_sync(x->stream));
	d = x->dev;
	x->b = (struct cairn_batch){
		.logits = x->dev_logits, .ids = d->ids, .positions = d->positions,
		.qo_indptr = d->qo_indptr, .kv_indptr = d->kv_indptr, .kv_indices = d->kv_indices,
		.kv_last_page_len = d->last_page_len, .num_rows = BATCH, .batch = BATCH,
		.num_logits = BATCH, .max_qo_len = 1, .max_kv_len = KEYS,
	};
	x->past = (struct cairn_attn_past){
		d->qo_indptr, d->kv_indptr, d->kv_indices, d->past_last_len, NULL, BATCH,
	};
	return written_slices(&x->slices, x->m);
}

static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Replays a captured pass. Sets *us to its median time. */
static int replay(struct bench *x, void *graph, double *us)
{
	void *begin = NULL, *end = NULL;
	float ms[REPLAYS];
	int ret = x->impl.event_create(&begin);

	if (!ret)
		ret = x->impl.event_create(&end);
	for (int i = -3; i < REPLAYS && !ret; i++) {
		ret = x->impl.event_record(begin, x->stream);
		if (!ret)
			ret = x->impl.graph_launch(graph, x->stream);
		if (!ret)
			ret = x->impl.event_record(end, x->stream);
		if (!ret)
			ret = x->impl.event_elapsed(&ms[i < 0 ? 0 : i], begin, end);
	}
	if (begin)
		x->impl.event_destroy(begin);
	if (end)
		x->impl.event_destroy(end);
	qsort(ms, REPLAYS, sizeof(*ms), compare_floats);
	*us = 1e3 * (double)ms[REPLAYS / 2];
	return ret;
}

struct form {
	int sliced, previous;
	enum cairn_sliced_form form;
};

static int enqueue(struct bench *x, struct cairn_sliced *s, struct cairn_attn_local *w)
{
	return s ? cairn_sliced_forward(s, &x->b, cairn_attn_local_link(w), x->stream) :
	       cairn_forward(x->scratch, &x->kv, &x->b, x->stream);
}

/* Times a pass of this form; its logits go to x->logits[1]. */
static int time_form(struct bench *x, const struct form *f, double *us)
{
	struct cairn_attn_local *w = NULL;
	struct cairn_sliced *s = NULL;
	void *graph = NULL;
	int ret = 0, moved;

	if (f->sliced) {
		ret = cairn_sliced_create(&s, x->scratch, x->slices, f->form);
		if (!ret)
			ret = cairn_attn_local_create(&w, x->m, &x->kv, BATCH, f->previous);
		if (!ret)
			ret = cairn_attn_local_begin(w, &x->b, &x->past, x->stream, &moved);
		if (!ret)
			ret = cairn_sliced_reserve(s, &x->b, cairn_attn_local_link(w), x->stream, &moved);
	} else {
		ret = cairn_scratch_reserve(x->scratch, &x->kv, &x->b, x->stream, &moved);
	}
	if (!ret)
		ret = enqueue(x, s, w);
	if (!ret)
		ret = x->impl.graph_begin(x->stream);
	if (!ret) {
		int end;

		ret = enqueue(x, s, w);
		end = x->impl.graph_end(x->stream, &graph);
		ret = ret ? ret : end;
	}
	if (!ret)
		ret = replay(x, graph, us);
	if (!ret)
		ret = x->impl.mem_copy(x->logits[1], x->dev_logits, x->logits_bytes, CAIRN_COPY_TO_HOST,
				       x->stream);
	if (!ret)
		ret = x->impl.stream_sync(x->stream);
	if (graph)
		x->impl.graph_destroy(graph);
	cairn_attn_local_destroy(w);
	cairn_sliced_destroy(s);
	return ret;
}

/* Returns the largest difference of the logits, as a fraction of the largest one. */
static double difference(const struct bench *x)
{
	double worst = 0, most = 0;

	for (size_t i = 0; i < x->logits_bytes / sizeof(float); i++) {
		double d = fabs((double)x->logits[0][i] - (double)x->logits[1][i]);

		worst = d <= worst ? worst : d;
		most = fmax(most, fabs((double)x->logits[0][i]));
	}
	return worst / most;
}

static void close_bench(struct bench *x)
{
	if (x->stream)
		x->impl.stream_destroy(x->stream);
	if (x->dev)
		x->impl.mem_free(x->dev);
	if (x->dev_logits)
		x->impl.mem_free(x->dev_logits);
	cairn_slices_destroy(x->slices);
	cairn_scratch_destroy(x->scratch);
	if (x->m)
		cairn_kv_store_destroy(&x->kv, x->m);
	cairn_model_free(x->m);
	free(x->logits[0]);
	free(x->logits[1]);
}

static void llama3_8b_b64_kv1024(struct cairn_test *t)
{
	static const struct form forms[] = {
		{ 0, 0, 0 }, { 1, 0, CAIRN_SLICED_ROWS }, { 1, 0, CAIRN_SLICED_PARTS },
		{ 1, 1, CAIRN_SLICED_ROWS }, { 1, 1, CAIRN_SLICED_PARTS },
	};
	struct bench x = { .stream = NULL };
	double us[ARRAY_SIZE(forms)], far[ARRAY_SIZE(forms)], layers;

	if (load_open(t, "llama3-8b", &x.impl, &x.m))
		return;
	if (!EXPECT(t, prepare(&x) == 0))
		goto out;
	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		if (!EXPECT(t, time_form(&x, &forms[i], &us[i]) == 0))
			goto out;
		if (!i)
			memcpy(x.logits[0], x.logits[1], x.logits_bytes);
		far[i] = difference(&x);
		EXPECT(t, i < 2 ? far[i] == 0 : far[i] < 0.05);
	}
	layers = x.m->config.num_hidden_layers;
	cairn_row(t, "llama3_8b_b64_kv1024", "cuda",
		  "\"whole_us\":%.1f,\"rows_us\":%.1f,\"parts_us\":%.1f,\"previous_rows_us\":%.1f,"
		  "\"previous_parts_us\":%.1f,\"layer_rows_us\":%.2f,\"layer_parts_us\":%.2f,"
		  "\"layer_previous_rows_us\":%.2f,\"layer_previous_parts_us\":%.2f,"
		  "\"parts_difference\":%.3g,\"previous_difference\":%.3g", us[0], us[1], us[2], us[3], us[4],
		  (us[1] - us[0]) / layers, (us[2] - us[0]) / layers, (us[3] - us[0]) / layers,
		  (us[4] - us[0]) / layers, far[2], far[3]);
out:
	close_bench(&x);
}

static const struct cairn_unit measures[] = {
	{ "llama3_8b_b64_kv1024", llama3_8b_b64_kv1024 },
};

const struct cairn_family cairn_sliced_speed_family = {
	.stage = "serving", .name = "sliced_speed", .measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
