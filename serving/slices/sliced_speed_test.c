// SPDX-License-Identifier: Apache-2.0
/*
 * sliced_speed_test - measures what slices and the merge of partial attention add to a decoding pass
 *
 *   llama3_8b_b64_kv1024
 *	random weights, bf16: 64 requests with 1024 keys each, one row each, logits for all. The times are
 *	medians of 30 replays of a captured pass: whole; in slices with all attention at a local worker; and
 *	in slices with the attention to previous keys there, which adds a merge and two copies to each layer.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/bench/load_test.h"
#include "serving/slices/sliced_bench_test.h"

#define BATCH	64
#define REPLAYS	30

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

static void llama3_8b_b64_kv1024(struct cairn_test *t)
{
	static const struct form forms[] = {
		{ 0, 0, 0 }, { 1, 0, CAIRN_SLICED_ROWS }, { 1, 0, CAIRN_SLICED_PARTS },
		{ 1, 1, CAIRN_SLICED_ROWS }, { 1, 1, CAIRN_SLICED_PARTS },
	};
	static struct bench x;
	double us[ARRAY_SIZE(forms)], far[ARRAY_SIZE(forms)], layers;

	x = (struct bench){ .batch = BATCH };
	if (load_open(t, "llama3-8b", &x.impl, &x.m))
		return;
	if (!EXPECT(t, prepare(&x, BATCH * PAGES, 0) == 0))
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
	close_passes(&x);
	cairn_model_free(x.m);
}

static const struct cairn_unit measures[] = {
	{ "llama3_8b_b64_kv1024", llama3_8b_b64_kv1024 },
};

const struct cairn_family cairn_sliced_speed_family = {
	.stage = "serving", .name = "sliced_speed", .measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
