// SPDX-License-Identifier: Apache-2.0
/* load_test - runs the load of load_test.h through the engine and its scheduler */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/bench/load_test.h"
#include "serving/model/model_test.h"

enum { MAX_SAMPLES = 16384 };

struct run {
	const struct load *load;
	int32_t first_wave, num_started, num_finished, num_wrong;
	struct client {
		struct run *run;
		int32_t prompt, want, got;
	} *clients;
	double *plan, *launch, *report, *host;	/* [num_samples] us, one per counted step */
	int num_samples;
	/* step i is in [i % LOAD_STEPS]; begin: length of the gap before the pass; end: of the pass */
	struct load_step last[LOAD_STEPS];
	int64_t num_steps;
	struct cairn_nvml *card;		/* NULL: its energy cannot be measured */
	struct cairn_meter *meter;		/* of the counted time; NULL outside it */
};

static int take(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct client *c = ctx;

	(void)index;
	(void)token;
	c->got++;
	return 0;
}

static void begun(void *ctx, int32_t cached)
{
	struct client *c = ctx;

	(void)cached;
	c->run->num_started++;
}

static void ended(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct client *c = ctx;

	(void)index;
	(void)token;
	c->run->num_finished++;
	c->run->num_wrong += why != CAIRN_FINISH_LENGTH || c->got != c->want;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double percentile(double *v, int n, int percent)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n ? v[(n - 1) * percent / 100] : 0;
}

/*
 * Chooses the prompt lengths of the first wave. In step `filled`, in which its last request begins, the
 * progress of the wave's requests must be spread evenly over an answer. Request i begins in step `step`: the
 * i requests before it decode with one row each, and its prompt takes the other rows. Until `filled` it
 * generates filled - step tokens, so its prompt has `in` plus its intended progress minus that number.
 * `filled` depends on all these lengths and is found by fixed-point iteration.
 */
static void plan_first_wave(const struct load *l, struct run *r)
{
	double filled = 0;

	for (int round = 0; round < 50; round++) {
		double step = 0;

		for (int32_t i = 0; i < r->first_wave; i++) {
			struct client *c = &r->clients[i];
			double progress = (double)(i * 197ll % r->first_wave) * l->out / r->first_wave;
			double prompt = l->in + progress - (filled - step);

			c->prompt = prompt < 1 ? 1 : (int32_t)prompt;
			c->want = l->in + l->out - c->prompt;
			step += (double)c->prompt / (l->rows - i);
		}
		filled = (filled + step) / 2;
	}
}

static int submit_all(struct cairn_test *t, struct cairn_engine *e, struct run *r, int32_t vocab)
{
	const struct load *l = r->load;
	int32_t *prompt = malloc((size_t)(l->in + l->out) * sizeof(*prompt));
	int ret = prompt ? 0 : cairn_error(ENOMEM, "load: no memory");

	for (int32_t i = 0; i < l->num_requests; i++)
		r->clients[i] = (struct client){ .run = r, .prompt = l->in, .want = l->out };
	if (l->num_requests > r->first_wave)
		plan_first_wave(l, r);
	for (int32_t i = 0; !ret && i < l->num_requests; i++) {
		struct cairn_request req = {
			.id = (uint64_t)i, .prompt = prompt, .num_prompt = r->clients[i].prompt,
			.max_new_tokens = r->clients[i].want, .ignore_eos = 1, .sampling = { .top_p = 1 },
			.keep = l->host_pages > 0,
			.on_token = take, .on_started = begun, .on_finish = ended, .ctx = &r->clients[i],
		};

		for (int32_t k = 0; k < req.num_prompt; k++)
			prompt[k] = (int32_t)(cairn_rand(t) % (uint64_t)vocab);
		ret = cairn_engine_submit(e, &req);
	}
	free(prompt);
	return ret;
}

/*
 * Computes when the last passes began and ended, from each pass's length and the gap before it. The first
 * pass ends when its step's wait does.
 */
static void lay_out_last(const struct run *r, struct load_result *out)
{
	int64_t first = r->num_steps > LOAD_STEPS ? r->num_steps - LOAD_STEPS : 0;
	double zero = r->last[first % LOAD_STEPS].at, end = 0;

	for (int64_t i = first; i < r->num_steps; i++) {
		struct load_step *s = &out->last[out->num_last++];
		double gap, busy;

		*s = r->last[i % LOAD_STEPS];
		gap = s->begin;
		busy = s->end;
		s->at -= zero;
		end = i == first ? s->at + s->plan + s->launch + s->wait : end + gap + busy;
		s->end = end;
		s->begin = end - busy;
	}
}

/* Makes one step and records its times if the step counts. */
static int timed_step(struct cairn_engine *e, struct run *r, int counted, struct cairn_engine_stats *now,
		      int *busy)
{
	struct cairn_engine_stats before = *now;
	int64_t start = cairn_clock_ns();
	int at = r->num_samples;

	CAIRN_TRY(cairn_engine_step(e, busy));
	cairn_engine_stats(e, now);
	if (!counted)
		return 0;
	r->last[r->num_steps++ % LOAD_STEPS] = (struct load_step){
		.at = (double)start * 1e-3, .plan = (double)(now->plan_ns - before.plan_ns) * 1e-3,
		.launch = (double)(now->launch_ns - before.launch_ns) * 1e-3,
		.wait = (double)(now->wait_ns - before.wait_ns) * 1e-3,
		.report = (double)(now->report_ns - before.report_ns) * 1e-3,
		.begin = (double)(now->idle_ns - before.idle_ns) * 1e-3,
		.end = (double)(now->busy_ns - before.busy_ns) * 1e-3,
	};
	if (at == MAX_SAMPLES)
		return 0;
	r->plan[at] = (double)(now->plan_ns - before.plan_ns) * 1e-3;
	r->launch[at] = (double)(now->launch_ns - before.launch_ns) * 1e-3;
	r->report[at] = (double)(now->report_ns - before.report_ns) * 1e-3;
	r->host[at] = r->plan[at] + r->launch[at] + r->report[at];
	r->num_samples++;
	return 0;
}

static void difference(struct load_result *out, const struct cairn_engine_stats *a,
		       const struct cairn_engine_stats *b, struct run *r)
{
	const struct cairn_scheduler_stats *x = &a->scheduler, *y = &b->scheduler;
	int n = r->num_samples;

	out->steps = b->steps - a->steps;
	out->prompt_tokens = b->prompt_tokens - a->prompt_tokens;
	out->new_tokens = b->new_tokens - a->new_tokens;
	out->idle_share = (double)(b->idle_ns - a->idle_ns) /
			  (double)(b->idle_ns - a->idle_ns + b->busy_ns - a->busy_ns + 1);
	out->max_idle_us = (double)b->max_idle_ns * 1e-3;
	out->plan_us = percentile(r->plan, n, 50);
	out->launch_us = percentile(r->launch, n, 50);
	out->report_us = percentile(r->report, n, 50);
	out->host_us = percentile(r->host, n, 50);
	out->host_p95_us = percentile(r->host, n, 95);
	out->graph_steps = b->graph_steps - a->graph_steps;
	out->nano_steps = b->nano_steps - a->nano_steps;
	out->layer_offloads = b->layer_offloads - a->layer_offloads;
	out->offloaded = y->moves[CAIRN_MOVE_OFFLOAD] - x->moves[CAIRN_MOVE_OFFLOAD];
	out->preempted = y->swapped + y->recomputed - x->swapped - x->recomputed;
	out->running = (double)(y->decode_rows - x->decode_rows) / (double)(y->plans - x->plans + 1);
}

static int counted_run(struct cairn_test *t, struct cairn_engine *e, struct run *r, int32_t vocab,
		       struct load_result *out)
{
	struct cairn_engine_stats now, begin;
	int64_t start = cairn_clock_ns(), counting = 0;
	int busy = 1, waiting = 1;

	CAIRN_TRY(submit_all(t, e, r, vocab));
	cairn_engine_stats(e, &now);
	begin = now;
	while (busy && waiting) {
		CAIRN_TRY(timed_step(e, r, counting > 0, &now, &busy));
		waiting = now.scheduler.num_waiting > 0 || r->load->num_requests == r->first_wave;
		if (!counting && r->num_started >= r->first_wave && now.scheduler.num_running) {
			if (r->card)
				CAIRN_TRY(cairn_meter_start(&r->meter, r->card, CAIRN_ENERGY_NS));
			begin = now;
			counting = cairn_clock_ns();
			out->fill_seconds = (double)(counting - start) * 1e-9;
		}
		if (counting && r->load->max_s > 0 &&
		    (double)(cairn_clock_ns() - counting) * 1e-9 > r->load->max_s)
			break;
	}
	out->seconds = (double)(cairn_clock_ns() - counting) * 1e-9;
	if (r->meter)
		cairn_meter_stop(r->meter, &out->energy);
	r->meter = NULL;
	difference(out, &begin, &now, r);
	lay_out_last(r, out);
	if (r->load->at_end)
		return r->load->at_end(e, r->load->ctx);
	return r->load->max_s > 0 ? 0 : cairn_engine_run(e);
}

int load_open_as(struct cairn_test *t, const char *shape, enum cairn_weights weights, enum cairn_kv_form kv,
		 struct cairn_impl *impl, struct cairn_model **m)
{
	struct cairn_model_config c;

	if (open_table(t, "cuda", impl))
		return -1;
	return EXPECT(t, cairn_model_shape(shape, &c) == 0) &&
	       EXPECT(t, cairn_model_random_as(m, impl, &c, weights, kv, 1) == 0) ? 0 : -1;
}

int load_open(struct cairn_test *t, const char *shape, struct cairn_impl *impl,
	      struct cairn_model **m)
{
	return load_open_as(t, shape, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, impl, m);
}

int load_run(struct cairn_test *t, struct cairn_model *m, const struct load *load, struct load_result *out)
{
	int32_t page = load->page_size ? load->page_size : 16;
	int32_t pages = (load->in + load->out + page - 1) / page + 1;
	struct cairn_engine_options opt = {
		.max_batch = load->max_batch, .max_rows = load->rows, .max_context = load->in + load->out,
		.page_size = page, .num_pages = pages * load->max_batch, .expected_new = load->out,
		.max_queued = load->num_requests, .host_pages = load->host_pages, .timeline = 1,
		.nano = load->nano,
	};
	struct run r = { .load = load };
	double *samples = calloc(4 * MAX_SAMPLES, sizeof(*samples));
	struct cairn_engine *e = NULL;
	int ret = 0;

	memset(out, 0, sizeof(*out));
	if (cairn_power_open(&r.card, m->impl))
		cairn_energy_unknown(&out->energy);
	r.first_wave = (int32_t)((int64_t)load->rows * load->out / (load->in + load->out));
	if (r.first_wave > load->max_batch)
		r.first_wave = load->max_batch;
	if (r.first_wave > load->num_requests)
		r.first_wave = load->num_requests;
	r.clients = calloc((size_t)load->num_requests, sizeof(*r.clients));
	r.plan = samples;
	r.launch = samples + MAX_SAMPLES;
	r.report = samples + 2 * MAX_SAMPLES;
	r.host = samples + 3 * MAX_SAMPLES;
	if (!samples || !r.clients)
		ret = cairn_error(ENOMEM, "load: no memory");
	if (!ret)
		ret = cairn_engine_create(&e, m, &opt);
	if (!ret)
		ret = counted_run(t, e, &r, m->config.vocab_size, out);
	out->num_finished = r.num_finished;
	out->num_wrong = r.num_wrong;
	if (r.meter)
		cairn_meter_stop(r.meter, &out->energy);
	cairn_nvml_close(r.card);
	cairn_engine_destroy(e);
	free(r.clients);
	free(samples);
	return ret;
}
