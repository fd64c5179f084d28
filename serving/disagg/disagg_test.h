/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disagg_test - checks the simulation against closed forms and a plain loop
 *
 * Each function returns NULL, or says what is wrong. disagg_mutants_test.c runs them on faulty modules, too.
 */
#ifndef CAIRN_DISAGG_TEST_H
#define CAIRN_DISAGG_TEST_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serving/disagg/advise.h"

/* A GPU with round rates, on which a test can compute by hand. */
static const struct cairn_disagg_gpu plain_gpu = {
	.name = "plain", .dollars_per_hour = 4, .memory_gb = 100,
	.products = { 1, 4000 }, .light = { 1, 4000 }, .attention = { 2, 4000 }, .tflops = 800,
};
static const struct cairn_disagg_rate plain_link = { 5, 50 };

static inline int64_t draw(uint64_t *rng, int64_t lo, int64_t hi)
{
	*rng = *rng * 6364136223846793005u + 1442695040888963407u;
	return lo + (int64_t)((*rng >> 33) % (uint64_t)(hi - lo + 1));
}

/* Runs equal lanes until they are steady. Returns the picoseconds of a pass, or -1 if lanes differ. */
static inline int64_t steady_pass(int32_t n, int32_t replicas, int32_t layers,
				  const struct cairn_lane_times *t)
{
	enum { PASSES = 40 };
	int64_t ends[CAIRN_MOST_LANES] = { 0 }, took[CAIRN_MOST_LANES] = { 0 };
	int32_t passes[CAIRN_MOST_LANES] = { 0 };
	struct cairn_lanes l;

	cairn_lanes_init(&l, n, replicas, layers);
	for (int32_t i = 0; i < n; i++)
		cairn_lanes_start(&l, i, 0, t);
	for (int32_t i; (i = cairn_lanes_run(&l)) >= 0;) {
		took[i] = l.lanes[i].arrival - ends[i];
		ends[i] = l.lanes[i].arrival;
		if (++passes[i] < PASSES / 2 || passes[0] < PASSES)
			cairn_lanes_start(&l, i, 0, t);
		if (!i && passes[0] == PASSES)
			break;
	}
	for (int32_t i = 1; i < n; i++)
		if (took[i] != took[0])
			return -1;
	return took[0];
}

/* The simulation takes as long as the closed form, to the picosecond. */
static inline const char *lanes_follow_formula(void)
{
	uint64_t rng = 1;

	for (int32_t i = 0; i < 600; i++) {
		int32_t n = (int32_t)draw(&rng, 1, i % 4 ? 3 : CAIRN_MOST_LANES);
		int32_t replicas = n > 1 && draw(&rng, 0, 1) ? n - 1 : 1, layers = replicas * 12;
		struct cairn_lane_times t = { .slice = draw(&rng, 1, 10000), .attn = draw(&rng, 1, 5000) };
		int64_t got;

		if (i % 3) {	/* a third has no network */
			t.query = draw(&rng, 0, 5000);
			t.output = draw(&rng, 0, 5000);
			t.link_to = draw(&rng, 0, 10000);
			t.link_back = draw(&rng, 0, 10000);
		}
		got = steady_pass(n, replicas, layers, &t);
		if (fabs((double)got - layers * cairn_lanes_cycle(n, replicas, &t)) > 1e-3)
			return "lanes: a pass does not take as long as the closed form";
	}
	return NULL;
}

/* A trace of random lengths. */
static inline struct cairn_trace *some_trace(int32_t num, int32_t prompt, int32_t answer, uint64_t seed)
{
	struct cairn_trace *t = calloc(1, sizeof(*t));

	t->requests = calloc((size_t)num, sizeof(*t->requests));
	t->num_requests = num;
	for (int32_t i = 0; i < num; i++) {
		struct cairn_trace_request *q = &t->requests[i];

		q->prompt = (int32_t)draw(&seed, prompt / 2, prompt * 3 / 2);
		q->answer = (int32_t)draw(&seed, 1, answer * 2 - 1);
		t->longest_answer = q->answer > t->longest_answer ? q->answer : t->longest_answer;
		t->longest = q->prompt + q->answer > t->longest ? q->prompt + q->answer : t->longest;
	}
	return t;
}

/* Tokens per second of a whole engine, by a loop over passes that visits every request in each. */
static inline double engine_by_hand(const struct cairn_trace *trace, const struct cairn_disagg_system *s,
				    const struct cairn_replay_options *opt, int64_t pages)
{
	int32_t next = 0, num = trace->num_requests, *left = calloc((size_t)num, sizeof(*left));
	int64_t now = 0, from = -1, tokens = 0, first = 0;

	for (;;) {
		int32_t rows = 0;
		int64_t keys = 0, taken = 0;
		struct cairn_lane_times t;

		for (int32_t i = 0; i < next; i++) {
			const struct cairn_trace_request *q = &trace->requests[i];

			rows += left[i] > 0;
			keys += left[i] ? q->prompt + q->answer - left[i] : 0;
			taken += left[i] ? (q->prompt + q->answer + opt->page_size - 1) / opt->page_size : 0;
		}
		for (; next < num && rows < opt->most_rows; next++, rows++) {
			const struct cairn_trace_request *q = &trace->requests[next];

			taken += (q->prompt + q->answer + opt->page_size - 1) / opt->page_size;
			if (taken > pages)
				break;
			left[next] = q->answer;
			keys += q->prompt;
			if (from < 0 && next + 1 >= num / 4) {
				from = now;
				first = tokens;
			}
		}
		if (!rows || (next == num && now > from))
			break;
		cairn_disagg_times(s, rows, keys, &t);
		now += s->model->config.num_hidden_layers * (t.slice + t.attn) + t.head;
		for (int32_t i = 0; i < next; i++) {
			tokens += left[i] > 0;
			left[i] -= left[i] > 0;
		}
	}
	free(left);
	return (double)(tokens - first) / ((double)(now - from) * 1e-12);
}

static inline int open_8b(struct cairn_disagg_model *m)
{
	struct cairn_model_config c;

	return cairn_model_shape("llama3-8b", &c) || cairn_disagg_model_open(m, &c);
}

/* A whole engine, whose memory, and then whose largest batch, bounds the requests. */
static inline const char *replay_is_the_loop(void)
{
	struct cairn_trace *trace = some_trace(400, 2000, 60, 3);
	struct cairn_disagg_gpu gpu = plain_gpu;
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_system s = { &m, &gpu, &gpu, plain_link, 1, 1, 0 };
	struct cairn_replay_options opt = { .lanes = 1, .page_size = 16, .memory_share = 1 };
	struct cairn_replay_result r;
	const char *why = open_8b(&m) ? "replay: no model" : NULL;

	gpu.memory_gb = 30;
	for (int32_t i = 0; !why && i < 2; i++) {
		int64_t pages = (int64_t)((30e9 - 2 * 8030261248.0) / 131072) / 16;
		double hand;

		opt.most_rows = i ? 20 : 1024;
		hand = engine_by_hand(trace, &s, &opt, pages);
		if (cairn_replay(trace, &s, &opt, &r))
			why = "replay: fails";
		else if (r.room != pages)
			why = "replay: has other pages";
		else if (fabs(r.tokens_per_s / hand - 1) > 1e-9)
			why = "replay: differs from the loop";
		else if (r.batch > opt.most_rows || (!i && r.batch < 40))
			why = "replay: has another batch";
	}
	cairn_trace_free(trace);
	cairn_disagg_model_close(&m);
	return why;
}

/* Lanes share the requests evenly, and no token takes longer than the bound. */
static inline const char *replay_shares_out(void)
{
	struct cairn_trace *trace = some_trace(600, 1000, 100, 5);
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_system s = { &m, &plain_gpu, &plain_gpu, plain_link, 1, 1, 1 };
	struct cairn_replay_options opt = { .lanes = 2, .page_size = 16, .most_rows = 64, .memory_share = 1 };
	struct cairn_replay_result one, two, bound;
	const char *why = open_8b(&m) ? "replay: no model" : NULL;

	if (!why && cairn_replay(trace, &s, &opt, &two))
		why = "replay: two lanes fail";
	opt.lanes = 1;
	opt.most_rows = 128;
	if (!why && cairn_replay(trace, &s, &opt, &one))
		why = "replay: one lane fails";
	/* full lanes: the batch is that of one lane; and two overlap, so that more than one worker is busy */
	if (!why && !(two.batch > 120 && one.batch > 120))
		why = "replay: lanes are not full";
	if (!why && !(two.model_busy + two.attn_busy > 1.05 && one.model_busy + one.attn_busy < 1))
		why = "replay: lanes do not overlap";
	opt.tbt_ms = one.tbt_ms / 2;
	if (!why && cairn_replay(trace, &s, &opt, &bound))
		why = "replay: fails with a bound";
	if (!why && !(bound.p99_tbt_ms <= opt.tbt_ms && bound.batch < one.batch))
		why = "replay: exceeds the bound";
	opt.tbt_ms = 0.01;
	if (!why && cairn_replay(trace, &s, &opt, &bound) != -ERANGE)
		why = "replay: keeps a bound that nothing can keep";
	cairn_trace_free(trace);
	cairn_disagg_model_close(&m);
	return why;
}

static inline bool is_near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * fabs(b);
}

/* A product of n rows by plain_gpu. */
static inline double product_us(double n, double in, double out)
{
	return 1 + hypot(2 * (n * in + in * out + n * out) / 4000e3, 2 * n * in * out / 800e6);
}

/* Llama-3-8B: 8 KV heads of 128, 32 layers. */
static inline const char *costs_are_closed_forms(void)
{
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_system s = { &m, &plain_gpu, &plain_gpu, plain_link, 1, 1, 3 };
	struct cairn_lane_times t;
	const double h = 4096, qkv = 6144, kv = 1024, i = 14336, n = 4096;
	double attn = 3.0 / 8 * (5000 * 4096 + 10 * (2 * 8192 + 8)) / 4000e3;
	double light = 2 * (4 * n * h + h) + n * 4 + 4 * n * (h + kv) + 2 * (4 * n * h + h) + 6 * n * i;
	double products = product_us(n, h, qkv) + product_us(n, h, h) + product_us(n, h, 2 * i) +
			  product_us(n, i, h);
	double apart = 1 + 4 + 5 * 0.8 + 10 * (2 * 8192 + 4096 + 8320) / 4000e3;
	const char *why = NULL;

	if (open_8b(&m))
		return "costs: no model";
	if (m.query != 8192 || m.kv != 4096 || m.output != 8320 || m.token_bytes != 131072 ||
	    m.weights != 2 * (int64_t)8030261248)
		why = "costs: other bytes";
	else if (!is_near(cairn_disagg_share(&m, 3), 3.0 / 8) ||
		 !is_near(cairn_disagg_share(&m, 8), 1.0 / 8) ||
		 !is_near(cairn_disagg_share(&m, 16), 1.0 / 16) ||
		 !is_near(cairn_disagg_share(&m, 23), 1.0 / 16))
		why = "costs: other shares of b workers";
	else if (cairn_disagg_room(&m, &plain_gpu, 3, 0.5, 0) != (int64_t)(50e9 / (131072 * 3.0 / 8)) ||
		 cairn_disagg_room(&m, &plain_gpu, 1, 0.1, m.weights) != 0 ||
		 cairn_disagg_weights(&m, 4) != m.weights / 4)
		why = "costs: other room";
	/* kv_append is light and reads no keys of its own */
	light += 2 * 4 + 8 * n * kv;
	if (!why && fabs(cairn_disagg_slice_us(&m, &plain_gpu, 1, 4096) -
			 (5 + 9 * 0.8 + products + light / 4000e3)) > 0.01)
		why = "costs: another slice";
	cairn_disagg_times(&s, 10, 5000, &t);
	if (!why && (t.query != llround((5 + 10 * 8192 / 50e3) * 1e6) ||
		     t.output != llround((5 + 10 * 8320 / 50e3) * 1e6) ||
		     t.link_to != llround(10 * 12288 / 50e3 * 1e6) ||
		     t.link_back != llround(10 * 8320 / 50e3 * 1e6) ||
		     fabs((double)t.attn * 1e-6 - 2.8 - attn) > 1e-3))
		why = "costs: other times";
	apart += cairn_disagg_slice_us(&m, &plain_gpu, 1, 10);
	if (!why && fabs((double)t.slice * 1e-6 - apart) > 1e-3)
		why = "costs: another slice without attention";
	cairn_disagg_model_close(&m);
	return why;
}

/* With GPUs of equal speed the cheap one is best; 8B in 18 GB needs two GPUs to have room for keys. */
static inline const char *advice_follows_prices(void)
{
	struct cairn_trace *trace = some_trace(300, 1000, 30, 7);
	struct cairn_disagg_hardware hw = { .num_gpus = 2, .link = plain_link };
	struct cairn_disagg_limits limits = {
		.most_gpus = 4, .most_lanes = 3,
		.replay = { .page_size = 16, .most_rows = 256, .memory_share = 1 },
	};
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_advice v = { .ways = NULL };
	const char *why = open_8b(&m) ? "advice: no model" : NULL;

	hw.gpus[0] = hw.gpus[1] = plain_gpu;
	hw.gpus[0].dollars_per_hour = 40;
	hw.gpus[0].products.gbps = hw.gpus[0].attention.gbps = 4400;
	hw.gpus[0].memory_gb = hw.gpus[1].memory_gb = 18;
	if (!why && cairn_disagg_advise(&v, trace, &m, &hw, &limits))
		why = "advice: fails";
	if (!why && (!v.whole || v.whole->model_gpu != &hw.gpus[1] || v.whole->a < 2))
		why = "advice: the best whole engine is another one";
	if (!why && (!v.apart || v.apart->model_gpu != &hw.gpus[1] || v.apart->attn_gpu != &hw.gpus[1]))
		why = "advice: the best disaggregated system has dear GPUs";
	if (!why && v.do_it != (v.apart->tokens_per_dollar > v.whole->tokens_per_dollar))
		why = "advice: another verdict";
	for (int32_t i = 1; !why && i < v.num_ways; i++)
		if (i != v.num_whole && v.ways[i].runs &&
		    v.ways[i].tokens_per_dollar > v.ways[i - 1].tokens_per_dollar)
			why = "advice: not in order";
	cairn_disagg_advice_free(&v);
	cairn_trace_free(trace);
	cairn_disagg_model_close(&m);
	return why;
}

#endif
