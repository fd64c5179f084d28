// SPDX-License-Identifier: Apache-2.0
/* figures - computes and writes the rows of Lamina's figures (figures.h) */
#include "serving/disagg/figures.h"

#include <math.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "serving/disagg/disagg_fault.h"

#define ALPHA		0.2
#define BALANCE_BATCH	64
#define BALANCE_WORKERS	4

double cairn_disagg_bandwidth(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *model_gpu,
			      const struct cairn_disagg_gpu *attn_gpu, int32_t rows, int32_t keys,
			      double alpha, double latency_us)
{
	double layers = m->config.num_hidden_layers, groups = (double)m->dims[CAIRN_D_Q] / (m->kv / 4);
	double bytes = (2 + 2 / groups) * 2 * m->dims[CAIRN_D_Q] * rows * layers;
	double us = layers * (cairn_disagg_slice_us(m, model_gpu, 1, rows) +
			      cairn_disagg_attn_us(m, attn_gpu, 1, rows, (int64_t)rows * keys)) +
		    cairn_disagg_head_us(m, model_gpu, 1, rows);
	double left = alpha * us - 2 * layers * latency_us;

	return left > 0 ? bytes / left * 1e-3 : INFINITY;
}

void cairn_disagg_rotate(int32_t lanes, struct cairn_disagg_rotation *out)
{
	enum { LAYERS = 24, PASSES = 4 };
	int32_t replicas = lanes - 1;
	/* 840 is a multiple of 1 to 7, so all times are whole */
	struct cairn_lane_times times = { .slice = 840000, .attn = 840000 / replicas };
	int64_t pass = LAYERS * (times.slice + times.attn);
	int32_t passes[CAIRN_MOST_LANES] = { 0 };
	struct cairn_lanes l;

	memset(out, 0, sizeof(*out));
	out->is_exact = true;
	cairn_lanes_init(&l, lanes, replicas, LAYERS);
	for (int32_t i = 0; i < lanes; i++)
		cairn_lanes_start(&l, i, i * times.attn, &times);
	for (int32_t i; (i = cairn_lanes_run(&l)) >= 0;) {
		out->is_exact &= l.lanes[i].arrival == i * times.attn + ++passes[i] * pass;
		if (passes[i] < PASSES)
			cairn_lanes_start(&l, i, 0, &times);
	}
	for (int32_t i = 0; i < lanes; i++)
		out->waited += l.lanes[i].waited;
	for (int32_t i = 0; i < replicas; i++)
		out->idle += l.replica[i].idle;
	out->idle += l.attn.idle;
}

double cairn_disagg_pass_us(const struct cairn_disagg_system *s, int32_t lanes, int32_t rows, int32_t keys)
{
	enum { WARM = 3, PASSES = 20 };
	struct cairn_lane_times times;
	struct cairn_lanes l;
	int64_t begin = 0, end = 0;

	if (cairn_disagg_times(s, rows, (int64_t)rows * keys, &times))
		return NAN;
	cairn_lanes_init(&l, lanes, 1, s->model->config.num_hidden_layers);
	for (int32_t i = 0; i < lanes; i++)
		cairn_lanes_start(&l, i, 0, &times);
	for (int32_t i = 1; i <= (WARM + PASSES) * lanes; i++) {
		int32_t lane = cairn_lanes_run(&l);

		end = l.lanes[lane].arrival;
		if (i == WARM * lanes)
			begin = end;
		cairn_lanes_start(&l, lane, end, &times);
	}
	return (double)(end - begin) / CAIRN_PS_PER_US / PASSES;
}

static double over_mean(const double *load, int32_t n)
{
	double most = 0, sum = 0;

	for (int32_t i = 0; i < n; i++) {
		most = fmax(most, load[i]);
		sum += load[i];
	}
	return most * n / sum;
}

void cairn_disagg_balance(const struct cairn_trace *trace, const struct cairn_disagg_model *m,
			  int32_t workers, int32_t batch, struct cairn_disagg_balance *out)
{
	memset(out, 0, sizeof(*out));
	for (int32_t at = 0; at + batch <= trace->num_requests; at += batch) {
		double turn[CAIRN_MOST_LANES] = { 0 }, least[CAIRN_MOST_LANES] = { 0 };

		for (int32_t i = 0; i < batch; i++) {
			const struct cairn_trace_request *q = &trace->requests[at + i];
			int32_t best = 0;

			for (int32_t w = 1; w < workers; w++)
				best = least[w] < least[best] ? w : best;
			turn[i % workers] += q->prompt + q->answer / 2.0;
			least[best] += q->prompt + q->answer / 2.0;
		}
		out->in_turn += over_mean(turn, workers);
		out->least_loaded += over_mean(least, workers);
		out->batches++;
	}
	out->in_turn /= out->batches;
	out->least_loaded /= out->batches;
	out->heads = cairn_disagg_share(m, workers) * workers;
}

static void begin(FILE *f, const char *figure)
{
	fprintf(f, "{\"v\":1,\"op\":\"disagg_sim\",\"impl\":\"simulated\",\"ok\":true,\"simulated\":true,"
		"\"gpu\":\"\",\"driver\":\"\",\"source\":\"%s\",\"case\":\"%s", cairn_source_digest(),
		figure);
}

/* JSON has no infinity. */
static void write_number(FILE *f, const char *key, double value)
{
	if (isfinite(value))
		fprintf(f, ",\"%s\":%.6g", key, value);
	else
		fprintf(f, ",\"%s\":null", key);
}

static void write_ratio(FILE *f, const char *key, double value)
{
	if (isfinite(value))
		fprintf(f, ",\"%s\":%.4f", key, value);
	else
		fprintf(f, ",\"%s\":null", key);
}

static void write_gpus(FILE *f, const struct cairn_disagg_gpu *model_gpu,
		       const struct cairn_disagg_gpu *attn_gpu)
{
	fprintf(f, ",\"model_gpu\":\"%s\",\"attn_gpu\":\"%s\"", model_gpu->name, attn_gpu->name);
}

static void write_bandwidths(FILE *f, const char *model_name, const struct cairn_disagg_model *m,
			     const struct cairn_disagg_hardware *hw, int32_t x, int32_t y)
{
	static const int32_t rows[] = { 1, 50, 100, 150, 200, 250, 300 }, keys[] = { 1024, 2048, 4096, 8192 };

	for (int32_t i = 0; i < 7; i++)
		for (int32_t k = 0; k < 4; k++) {
			begin(f, "fig4");
			fprintf(f, "_%s_b%d_kv%d_%s_%s\"", model_name, rows[i], keys[k], hw->gpus[x].name,
				hw->gpus[y].name);
			write_gpus(f, &hw->gpus[x], &hw->gpus[y]);
			write_number(f, "needed_gbps", cairn_disagg_bandwidth(m, &hw->gpus[x], &hw->gpus[y],
									      rows[i], keys[k], ALPHA, 0));
			write_number(f, "needed_gbps_latency",
				     cairn_disagg_bandwidth(m, &hw->gpus[x], &hw->gpus[y], rows[i], keys[k],
							    ALPHA, hw->link.base_us));
			write_number(f, "latency_us", hw->link.base_us);
			fprintf(f, "}\n");
		}
}

/* The runs that `cairn bench serving.disagg_layer serving.disagg` measures: 1024 keys a request. */
static void write_runs(FILE *f, const char *model_name, const struct cairn_disagg_model *m,
		       const struct cairn_disagg_hardware *hw, int32_t x, int32_t y)
{
	static const struct { int32_t b, lanes, rows; } runs[] = {
		{ 0, 1, 64 }, { 0, 1, 128 }, { 1, 1, 64 }, { 1, 1, 128 }, { 1, 1, 256 }, { 1, 2, 128 },
	};

	for (int32_t i = 0; i < 6; i++) {
		struct cairn_disagg_system s = {
			m, &hw->gpus[x], &hw->gpus[y], hw->link, 1, 1, runs[i].b,
		};

		begin(f, "run");
		fprintf(f, "_%s_%s%d_b%d_kv1024_%s_%s\"", model_name, runs[i].b ? "lanes" : "whole",
			runs[i].lanes, runs[i].rows, hw->gpus[x].name, hw->gpus[y].name);
		write_gpus(f, &hw->gpus[x], &hw->gpus[y]);
		fprintf(f, ",\"attention_workers\":%d,\"lanes\":%d,\"requests_a_lane\":%d", runs[i].b,
			runs[i].lanes, runs[i].rows);
		write_number(f, "pass_us", cairn_disagg_pass_us(&s, runs[i].lanes, runs[i].rows, 1024));
		fprintf(f, "}\n");
	}
}

void cairn_disagg_write_figures(FILE *f, const char *trace_name, const char *model_name,
				const struct cairn_trace *trace, const struct cairn_disagg_model *m,
				const struct cairn_disagg_hardware *hw,
				const struct cairn_disagg_limits *limits)
{
	struct cairn_disagg_rotation r;
	struct cairn_disagg_balance b;

	for (int32_t x = 0; x < hw->num_gpus; x++)
		for (int32_t y = 0; y < hw->num_gpus; y++)
			if (cairn_disagg_allows(limits, &hw->gpus[x], &hw->gpus[y])) {
				write_bandwidths(f, model_name, m, hw, x, y);
				write_runs(f, model_name, m, hw, x, y);
			}
	for (int32_t n = 2; n <= CAIRN_MOST_LANES; n++) {
		cairn_disagg_rotate(n, &r);
		begin(f, "fig8");
		fprintf(f, "_lanes%d\"", n);
		write_number(f, "waited_ns", (double)r.waited * 1e-3);
		write_number(f, "idle_ns", (double)r.idle * 1e-3);
		fprintf(f, ",\"exact\":%s}\n", r.is_exact ? "true" : "false");
	}
	if (trace->num_requests < BALANCE_BATCH)
		return;
	cairn_disagg_balance(trace, m, BALANCE_WORKERS, BALANCE_BATCH, &b);
	begin(f, "fig9");
	fprintf(f, "_%s_%s_b%d_workers%d\"", trace_name, model_name, BALANCE_BATCH, BALANCE_WORKERS);
	write_ratio(f, "in_turn", b.in_turn);
	write_ratio(f, "least_loaded", b.least_loaded);
	write_ratio(f, "heads", b.heads);
	fprintf(f, "}\n");
}

static void write_way(FILE *f, const char *figure, const char *trace_name, const char *model_name,
		      const struct cairn_disagg_way *w)
{
	begin(f, figure);
	fprintf(f, "_%s_%s", trace_name, model_name);
	if (!strcmp(figure, "fig11"))
		fprintf(f, "_%s_%d_%s_%d_r%d_lanes%d", w->model_gpu->name, w->a, w->attn_gpu->name, w->b,
			w->replicas, w->lanes);
	fprintf(f, "\"");
	write_gpus(f, w->model_gpu, w->attn_gpu);
	fprintf(f, ",\"a\":%d,\"b\":%d,\"replicas\":%d,\"lanes\":%d", w->a, w->b, w->replicas, w->lanes);
	write_number(f, "tokens_per_s", w->result.tokens_per_s);
	write_number(f, "tbt_ms", w->result.tbt_ms);
	write_number(f, "p99_tbt_ms", w->result.p99_tbt_ms);
	write_number(f, "batch", w->result.batch);
	write_number(f, "dollars_per_hour", w->dollars_per_hour);
	write_number(f, "tokens_per_dollar", w->tokens_per_dollar);
}

/* Whether no better way has the same GPUs. */
static bool is_first(const struct cairn_disagg_advice *advice, int32_t way)
{
	const struct cairn_disagg_way *w = &advice->ways[way];

	for (int32_t i = 0; i < way; i++) {
		const struct cairn_disagg_way *v = &advice->ways[i];

		if (v->model_gpu == w->model_gpu && v->attn_gpu == w->attn_gpu && v->a == w->a &&
		    v->b == w->b)
			return false;
	}
	return true;
}

void cairn_disagg_write_advice(FILE *f, const char *trace_name, const char *model_name,
			       const struct cairn_disagg_advice *advice, bool all)
{
	const struct cairn_disagg_way *apart = advice->apart, *whole = advice->whole;
	const struct cairn_disagg_way *model = advice->same_model;
	double same = advice->same_tokens_per_s;
	double batch = apart && whole ? apart->result.batch / apart->dollars_per_hour : 0;
	double whole_batch = apart && whole ? whole->result.batch / whole->dollars_per_hour : 0;

	for (int32_t i = 0; all && i < advice->num_ways; i++)
		if (advice->ways[i].runs && is_first(advice, i)) {
			write_way(f, "fig11", trace_name, model_name, &advice->ways[i]);
			fprintf(f, "}\n");
		}
	if (!apart || !whole)
		return;
	write_way(f, "fig10", trace_name, model_name, apart);
	fprintf(f, ",\"whole_gpu\":\"%s\",\"whole_tp\":%d", whole->model_gpu->name, whole->a);
	write_number(f, "whole_tokens_per_dollar", whole->tokens_per_dollar);
	write_number(f, "whole_batch_per_dollar", whole_batch);
	write_ratio(f, "gain_per_dollar", apart->tokens_per_dollar / whole->tokens_per_dollar);
	write_ratio(f, "batch_gain_per_dollar", batch / whole_batch);
	write_ratio(f, "same_gpus_gain", same > 0 ? apart->result.tokens_per_s / same : 0);
	fprintf(f, ",\"do\":%s", advice->do_it ? "true" : "false");
	if (model) {
		write_ratio(f, "model_gpu_gain_per_dollar",
			    apart->tokens_per_dollar / model->tokens_per_dollar);
		write_ratio(f, "model_gpu_batch_gain_per_dollar",
			    batch / (model->result.batch / model->dollars_per_hour));
	}
	fprintf(f, "}\n");
}
