// SPDX-License-Identifier: Apache-2.0
/*
 * throughput_test - measures the throughput of the engine: rows of `cairn bench`
 *
 *   llama3_8b_1024_512, llama32_1b_1024_512
 *	prompts of 1024 random tokens, answers of 512, random weights, bf16: tokens per second, prompts and
 *	answers together, while the engine is full (load_test.h). optimal is the rate of a device that only
 *	multiplies: the FLOP/s of the table's own gemm (8192 cubed, the best of 40 calls in the same run),
 *	divided by 2 FLOP for each of the model's parameters. A step has as many rows as the device's memory
 *	allows, at most 1024 (2048 with the smaller model). host_us: host time of a step for planning,
 *	launching and reporting tokens; idle_pct: share of time from the end of a pass to the beginning of the
 *	next. Also the time of each operation of a step, measured between two events, which prevents overlap.
 *   llama3_8b_1024_512_kv_fp8
 *	the first case with keys and values in 8 bits.
 *   llama3_8b_1024_512_w8a8, llama3_8b_1024_512_w8a8_blocks
 *	the same with weights and activations of products in 8 bits. They have no optimal_pct, because the
 *	table's gemm multiplies 16 bits.
 *   llama3_8b_1024_512_nano
 *	the first case with the plans for this GPU in the folder plans/, where `cairn search` writes them;
 *	skipped without one. nano_steps: steps that a plan has run.
 *   llama3_8b_keep
 *	the first case with the KV of all requests stored in host memory as it is computed, for later turns
 *	of a conversation. gb_per_s is the traffic over the link to the host.
 *   decode_256
 *	256 sequences of the smaller model, decoding only, so that a step is a CUDA graph: the host's share
 *	of a step. Also a timeline of the last steps in us: the start of the step on the host, the times of
 *	planning, launching, waiting and reporting, and begin and end of the pass for which it waited.
 *
 * The three totals and decode_256 have the energy of the counted time, if the card has a counter: joules of
 * all of it, mj_per_token for each token that tokens_per_s counts (decode_256: each new token).
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/bench/load_test.h"
#include "serving/model/model_test.h"
#include "serving/plan/plan_engine.h"

/*
 * Returns the FLOP/s of the fastest single call of the table's gemm, so that power throttling caused by
 * earlier calls does not count. The operands are weights, because simpler numbers would draw less power and
 * run faster.
 */
static double gemm_rate(struct cairn_test *t, const struct cairn_impl *impl, const struct cairn_model *m)
{
	enum { N = 8192, RUNS = 40 };
	size_t bytes = (size_t)N * N * 2, workspace = 0;
	struct cairn_gemm_args args = { .size = sizeof(args), .m = N, .n = N, .k = N, .dtype = CAIRN_BF16,
					.out_dtype = CAIRN_BF16 };
	void *out = NULL, *w = NULL, *stream, *from, *to;
	float ms = 0, best = 0;

	if (!EXPECT(t, m->bytes >= 2 * bytes && impl->mem_alloc(&out, bytes) == 0))
		return 0;
	args.out = out;
	args.a = m->base;
	args.b = m->base + bytes;
	if (!EXPECT(t, impl->stream_create(&stream) == 0) ||
	    !EXPECT(t, impl->event_create(&from) == 0 && impl->event_create(&to) == 0))
		return 0;
	if (impl->gemm_workspace)
		EXPECT(t, impl->gemm_workspace(&args, &workspace) == 0);
	if (workspace)
		EXPECT(t, impl->mem_alloc(&w, workspace) == 0);
	args.workspace = w;
	args.workspace_bytes = workspace;
	for (int i = 0; i < RUNS; i++) {
		EXPECT(t, impl->event_record(from, stream) == 0 && impl->gemm(&args, stream) == 0 &&
			  impl->event_record(to, stream) == 0 && impl->event_sync(to) == 0);
		EXPECT(t, impl->event_elapsed(&ms, from, to) == 0);
		best = best > 0 && best < ms ? best : ms;
	}
	impl->event_destroy(from);
	impl->event_destroy(to);
	impl->stream_destroy(stream);
	impl->mem_free(out);
	if (w)
		impl->mem_free(w);
	return 2.0 * N * N * N / ((double)best * 1e-3);
}

/* ---- operations ---- */

enum what { WHAT_GEMM, WHAT_QUANT, WHAT_HEAD, WHAT_ATTN, WHAT_NORM, WHAT_ROPE, WHAT_APPEND, WHAT_SILU,
	    WHAT_OTHER, NUM_WHATS };

static const char *const what_names[] = { "gemm", "quant", "lm_head", "attn_paged", "rmsnorm", "rope",
					  "kv_append", "silu_mul", "other" };

enum { MAX_TIMED = 1 << 15 };

static struct {
	const struct cairn_impl *real;
	void *from[MAX_TIMED], *to[MAX_TIMED];
	int what[MAX_TIMED], num;
} timed;

static int begin(enum what what, void *stream)
{
	if (timed.num == MAX_TIMED)
		return cairn_error(ENOMEM, "operations: too many");
	timed.what[timed.num] = (int)what;
	CAIRN_TRY(timed.real->event_create(&timed.from[timed.num]));
	CAIRN_TRY(timed.real->event_create(&timed.to[timed.num]));
	return timed.real->event_record(timed.from[timed.num], stream);
}

static int end(void *stream)
{
	return timed.real->event_record(timed.to[timed.num++], stream);
}

#define TIMED(fn, w) \
	static int timed_##fn(const struct cairn_##fn##_args *args, void *stream) \
	{ \
		CAIRN_TRY(begin(w, stream)); \
		CAIRN_TRY(timed.real->fn(args, stream)); \
		return end(stream); \
	}
TIMED(gemm, args->out_dtype == CAIRN_F32 ? WHAT_HEAD : WHAT_GEMM)
TIMED(gemm_gated, WHAT_GEMM)
TIMED(qkv_append, WHAT_GEMM)
TIMED(gemm_fp8, WHAT_GEMM)
TIMED(quant_fp8w, WHAT_QUANT)
TIMED(attn_paged, WHAT_ATTN)
TIMED(rmsnorm, WHAT_NORM)
TIMED(rope, WHAT_ROPE)
TIMED(kv_append, WHAT_APPEND)
TIMED(silu_mul, WHAT_SILU)
TIMED(embedding, WHAT_OTHER)
TIMED(argmax, WHAT_OTHER)

struct profile {
	struct cairn_impl *impl, real;
	double ms[NUM_WHATS];
	int64_t rows, decode_rows;
	int steps;
};

/* Runs some steps of the full engine with every operation timed. */
static int profile_steps(struct cairn_engine *e, void *ctx)
{
	struct profile *p = ctx;
	struct cairn_engine_stats a, b;
	int busy, ret = 0;
	float ms;

	p->real = *p->impl;
	timed.real = &p->real;
	p->impl->gemm = timed_gemm;
	if (p->impl->gemm_gated)
		p->impl->gemm_gated = timed_gemm_gated;
	if (p->impl->qkv_append)
		p->impl->qkv_append = timed_qkv_append;
	p->impl->gemm_fp8 = timed_gemm_fp8;
	p->impl->quant_fp8w = timed_quant_fp8w;
	p->impl->attn_paged = timed_attn_paged;
	p->impl->rmsnorm = timed_rmsnorm;
	p->impl->rope = timed_rope;
	p->impl->kv_append = timed_kv_append;
	p->impl->silu_mul = timed_silu_mul;
	p->impl->embedding = timed_embedding;
	p->impl->argmax = timed_argmax;
	cairn_engine_stats(e, &a);
	for (p->steps = 0; !ret && p->steps < 40; p->steps++)
		ret = cairn_engine_step(e, &busy);
	cairn_engine_stats(e, &b);
	p->rows = b.scheduler.rows - a.scheduler.rows;
	p->decode_rows = b.scheduler.decode_rows - a.scheduler.decode_rows;
	for (int i = 0; !ret && i < timed.num; i++) {
		ret = p->real.event_elapsed(&ms, timed.from[i], timed.to[i]);
		p->ms[timed.what[i]] += (double)ms;
	}
	return ret;
}

static double tokens_per_s(const struct load_result *r)
{
	return (double)(r->prompt_tokens + r->new_tokens) / r->seconds;
}

/* Writes the members of a row about the energy of the counted time, in which there were so many tokens. */
static const char *energy_members(const struct load_result *r, int64_t tokens, char *json, size_t len)
{
	size_t n;

	cairn_energy_members(&r->energy, r->seconds, json, len);
	n = strlen(json);
	if (r->energy.watts > 0)
		n += (size_t)snprintf(json + n, len - n, ",\"mj_per_token\":%.4g",
				      1e3 * r->energy.watts * r->seconds / (double)tokens);
	if (r->energy.sm_mhz > 0)
		snprintf(json + n, len - n, ",\"sm_mhz\":%.0f", r->energy.sm_mhz);
	return json;
}

static int64_t kv_bytes_per_token(const struct cairn_model *m)
{
	return 2ll * (int64_t)cairn_model_key_bytes(m) * m->config.num_hidden_layers;
}

/* Returns the batch for this many rows per step: a little more than the sequences that decode at once. */
static int32_t batch_of_rows(int32_t rows)
{
	return rows * 9 / 25;
}

/*
 * Returns the rows per step, l->rows less a multiple of 64, with which the KV of a full batch, the weights
 * and 4 GiB of other buffers fit into nine tenths of the memory; 0 if nothing fits.
 */
static int32_t rows_that_fit(const struct load *l, int64_t memory, int64_t weights, int64_t kv_per_token)
{
	int64_t room = memory / 10 * 9 - weights - (4ll << 30);
	int64_t pages = (l->in + l->out + l->page_size - 1) / l->page_size + 1;	/* as in load_run() */
	int64_t seqs = room / (pages * l->page_size * kv_per_token), rows = l->rows;

	while (rows > 0 && batch_of_rows((int32_t)rows) > seqs)
		rows -= 64;
	return rows > 0 ? (int32_t)rows : 0;
}

/* Sets the rows and the batch of the load. Returns nonzero if the test is skipped or has failed. */
static int fit(struct cairn_test *t, const struct cairn_impl *impl, const struct cairn_model *m,
	       struct load *l)
{
	struct cairn_device_info info = { .size = sizeof(info) };

	if (!EXPECT(t, impl->device_info(&info) == 0))
		return -1;
	l->rows = rows_that_fit(l, info.mem_bytes, (int64_t)m->bytes, kv_bytes_per_token(m));
	l->max_batch = batch_of_rows(l->rows);
	if (l->rows <= 0)
		cairn_skip(t, "the device has too little memory");
	return l->rows > 0 ? 0 : -1;
}

static void throughput(struct cairn_test *t, const char *shape, const char *name, enum cairn_weights weights,
		       enum cairn_kv_form kv, struct load *load)
{
	struct profile p = { 0 };
	struct load_result r;
	struct cairn_impl impl;
	struct cairn_model *m;
	double rate = 0, optimal;
	char what[64], share[96] = "", energy[CAIRN_ENERGY_MEMBERS + 64];

	if (load_open_as(t, shape, weights, kv, &impl, &m))
		return;
	if (fit(t, &impl, m, load))
		goto out;
	if (weights == CAIRN_WEIGHTS_PLAIN)
		rate = gemm_rate(t, &impl, m);
	p.impl = &impl;
	load->at_end = profile_steps;
	load->ctx = &p;
	if (!EXPECT(t, load_run(t, m, load, &r) == 0) || !EXPECT(t, r.num_wrong == 0 && r.steps > 0))
		goto out;
	if (rate > 0) {
		optimal = rate / 2 / ((double)m->bytes / (double)cairn_dtype_bytes(m->dtype));
		snprintf(share, sizeof(share),
			 "\"optimal_per_s\":%.0f,\"optimal_pct\":%.1f,\"gemm_tflops\":%.1f,", optimal,
			 100 * tokens_per_s(&r) / optimal, rate * 1e-12);
	}
	cairn_row(t, name, "cuda",
		  "\"tokens_per_s\":%.0f,%s\"new_per_s\":%.0f,\"seconds\":%.1f,\"fill_s\":%.1f,"
		  "\"steps\":%lld,\"step_ms\":%.3f,"
		  "\"rows\":%d,\"decoding\":%.1f,\"plan_us\":%.1f,\"launch_us\":%.1f,\"report_us\":%.1f,"
		  "\"host_us\":%.1f,\"host_p95_us\":%.1f,\"idle_pct\":%.3f,\"max_idle_us\":%.1f,"
		  "\"preempted\":%lld,\"nano_steps\":%lld%s",
		  tokens_per_s(&r), share, (double)r.new_tokens / r.seconds, r.seconds, r.fill_seconds,
		  (long long)r.steps, 1e3 * r.seconds / (double)r.steps,
		  load->rows, r.running, r.plan_us, r.launch_us, r.report_us, r.host_us, r.host_p95_us,
		  100 * r.idle_share, r.max_idle_us, (long long)r.preempted, (long long)r.nano_steps,
		  energy_members(&r, r.prompt_tokens + r.new_tokens, energy, sizeof(energy)));
	for (int i = 0; i < NUM_WHATS; i++) {
		if (!p.ms[i])
			continue;
		snprintf(what, sizeof(what), "%s_%s", name, what_names[i]);
		cairn_row(t, what, "cuda", "\"ms\":%.4f,\"rows\":%.0f,\"decode_rows\":%.0f",
			  p.ms[i] / p.steps, (double)p.rows / p.steps, (double)p.decode_rows / p.steps);
	}
out:
	cairn_model_free(m);
}

static const struct load of_8b = {
	.in = 1024, .out = 512, .rows = 1024, .num_requests = 4096, .max_s = 10, .page_size = 64,
};

static void llama3_8b(struct cairn_test *t)
{
	struct load l = of_8b;

	throughput(t, "llama3-8b", "llama3_8b_1024_512", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, &l);
}

static void llama3_8b_nano(struct cairn_test *t)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	struct cairn_plan_file_for here = { info.name, "cuda", cairn_kernel_digest(), NULL, 1, false };
	struct cairn_plan_engine *plans;
	struct cairn_model_config c;
	struct load l = of_8b;
	struct cairn_impl impl;

	if (open_table(t, "cuda", &impl) || !EXPECT(t, impl.device_info(&info) == 0) ||
	    !EXPECT(t, cairn_model_shape("llama3-8b", &c) == 0))
		return;
	if (cairn_plan_engine_open(&plans, "plans", &c, &here)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	l.nano = cairn_plan_engine_plans(plans);
	throughput(t, "llama3-8b", "llama3_8b_1024_512_nano", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, &l);
	cairn_plan_engine_close(plans);
}

static void llama3_8b_kv_fp8(struct cairn_test *t)
{
	struct load l = of_8b;

	throughput(t, "llama3-8b", "llama3_8b_1024_512_kv_fp8", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_FP8, &l);
}

static void llama3_8b_w8a8(struct cairn_test *t)
{
	struct load l = of_8b;

	throughput(t, "llama3-8b", "llama3_8b_1024_512_w8a8", CAIRN_WEIGHTS_W8A8, CAIRN_KV_FP8, &l);
}

static void llama3_8b_w8a8_blocks(struct cairn_test *t)
{
	struct load l = of_8b;

	throughput(t, "llama3-8b", "llama3_8b_1024_512_w8a8_blocks", CAIRN_WEIGHTS_W8A8_BLOCKS, CAIRN_KV_FP8,
		   &l);
}

static void llama3_8b_keep(struct cairn_test *t)
{
	struct load load = of_8b;
	struct load_result r;
	struct cairn_impl impl;
	struct cairn_model *m;
	double page_gb;
	char energy[CAIRN_ENERGY_MEMBERS + 64];

	load.host_pages = 2048;		/* 16 GiB; older pages are evicted */
	if (load_open(t, "llama3-8b", &impl, &m))
		return;
	page_gb = 1e-9 * (double)(load.page_size * kv_bytes_per_token(m));
	if (!fit(t, &impl, m, &load) && EXPECT(t, load_run(t, m, &load, &r) == 0) &&
	    EXPECT(t, r.num_wrong == 0 && r.steps > 0))
		cairn_row(t, "llama3_8b_keep", "cuda",
			  "\"tokens_per_s\":%.0f,\"seconds\":%.1f,\"steps\":%lld,\"step_ms\":%.3f,"
			  "\"launch_us\":%.1f,\"host_us\":%.1f,\"host_p95_us\":%.1f,\"idle_pct\":%.3f,"
			  "\"offloaded\":%lld,\"layer_offloads\":%lld,\"gb_per_s\":%.2f%s",
			  tokens_per_s(&r), r.seconds, (long long)r.steps, 1e3 * r.seconds / (double)r.steps,
			  r.launch_us, r.host_us, r.host_p95_us, 100 * r.idle_share, (long long)r.offloaded,
			  (long long)r.layer_offloads, page_gb * (double)r.offloaded / r.seconds,
			  energy_members(&r, r.prompt_tokens + r.new_tokens, energy, sizeof(energy)));
	cairn_model_free(m);
}

static void llama32_1b(struct cairn_test *t)
{
	struct load l = { .in = 1024, .out = 512, .rows = 2048, .num_requests = 8192, .max_s = 6,
			  .page_size = 64 };

	throughput(t, "llama32-1b", "llama32_1b_1024_512", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, &l);
}

static void timeline_row(struct cairn_test *t, const char *name, const struct load_result *r)
{
	char host[LOAD_STEPS * 64] = "", device[LOAD_STEPS * 32] = "";
	size_t h = 0, d = 0;

	for (int32_t i = 0; i < r->num_last; i++) {
		const struct load_step *s = &r->last[i];

		h += (size_t)snprintf(host + h, sizeof(host) - h, "%s[%.1f,%.1f,%.1f,%.1f,%.1f]",
				      i ? "," : "", s->at, s->plan, s->launch, s->wait, s->report);
		d += (size_t)snprintf(device + d, sizeof(device) - d, "%s[%.1f,%.1f]", i ? "," : "", s->begin,
				      s->end);
		if (!EXPECT(t, h < sizeof(host) && d < sizeof(device)))
			return;
	}
	cairn_row(t, name, "cuda", "\"host_us\":[%s],\"device_us\":[%s]", host, device);
}

static void decode_256(struct cairn_test *t)
{
	struct load load = { .in = 64, .out = 800, .rows = 4096, .max_batch = 256, .num_requests = 256,
			     .max_s = 4 };
	char energy[CAIRN_ENERGY_MEMBERS + 64];
	struct load_result r;
	struct cairn_impl impl;
	struct cairn_model *m;

	if (load_open(t, "llama32-1b", &impl, &m))
		return;
	if (EXPECT(t, load_run(t, m, &load, &r) == 0) && EXPECT(t, r.num_wrong == 0 && r.steps > 0)) {
		cairn_row(t, "decode_256", "cuda",
			  "\"steps\":%lld,\"graph_steps\":%lld,\"step_ms\":%.3f,\"plan_us\":%.1f,"
			  "\"launch_us\":%.1f,\"report_us\":%.1f,\"host_us\":%.1f,\"host_p95_us\":%.1f,"
			  "\"idle_pct\":%.3f,\"max_idle_us\":%.1f%s", (long long)r.steps,
			  (long long)r.graph_steps, 1e3 * r.seconds / (double)r.steps, r.plan_us, r.launch_us,
			  r.report_us, r.host_us, r.host_p95_us, 100 * r.idle_share, r.max_idle_us,
			  energy_members(&r, r.new_tokens, energy, sizeof(energy)));
		timeline_row(t, "decode_256_timeline", &r);
	}
	cairn_model_free(m);
}

/* Runs the load on a small model on the host: every answer must have the requested length. */
static void small(struct cairn_test *t, const char *table)
{
	struct load load = { .in = 12, .out = 9, .rows = 16, .max_batch = 12, .num_requests = 60 };
	struct load_result r;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, table, &impl) || open_golden(t, &g, "llama2_tiny"))
		return;
	if (EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0)) {
		EXPECT(t, load_run(t, m, &load, &r) == 0);
		EXPECT(t, r.num_finished == 60 && r.num_wrong == 0);
		/* while requests wait, every step is full */
		EXPECT(t, r.steps > 10 && r.prompt_tokens + r.new_tokens >= 15 * r.steps);
		EXPECT(t, r.running > 3 && r.preempted == 0);
		EXPECT_CONTAINS(t, r.energy.why, "has no card");
		EXPECT(t, r.num_last == (r.steps < LOAD_STEPS ? r.steps : LOAD_STEPS) && r.last[0].at == 0);
		for (int32_t i = 1; i < r.num_last; i++) {
			const struct load_step *a = &r.last[i - 1], *b = &r.last[i];

			EXPECT(t, b->at >= a->at + a->plan + a->launch + a->wait && b->begin >= a->end);
			EXPECT(t, b->end > b->begin);
		}
		/* the same with all KV offloaded */
		load.host_pages = 40;
		EXPECT(t, load_run(t, m, &load, &r) == 0 && r.num_finished == 60 && r.num_wrong == 0);
		EXPECT(t, r.offloaded > 40 && r.layer_offloads == r.offloaded);
		cairn_model_free(m);
	}
	close_golden(&g);
}

static void small_cpu(struct cairn_test *t)
{
	small(t, "cpu");
}

static void small_late(struct cairn_test *t)
{
	small(t, "late");
}

/* Llama-3-8B: 16 GB of weights, 128 KiB of KV per token. */
static void rows_by_memory(struct cairn_test *t)
{
	static const struct {
		double memory_gb;
		int32_t rows;
	} cards[] = { { 150.1, 1024 }, { 109, 1024 }, { 108, 960 }, { 85.0, 704 }, { 40, 192 }, { 24, 0 } };

	for (size_t i = 0; i < ARRAY_SIZE(cards); i++) {
		int32_t got = rows_that_fit(&of_8b, (int64_t)(cards[i].memory_gb * 1e9), 16060522496, 131072);

		if (!EXPECT(t, got == cards[i].rows))
			cairn_note(t, "%.1f GB: %d rows", cards[i].memory_gb, got);
	}
}

static const struct cairn_unit units[] = {
	{ "rows_by_memory", rows_by_memory },
	{ "small", small_cpu },
	{ "small_late", small_late },
};

static const struct cairn_unit measures[] = {
	{ "llama3_8b", llama3_8b },
	{ "llama3_8b_nano", llama3_8b_nano },
	{ "llama3_8b_keep", llama3_8b_keep },
	{ "llama32_1b", llama32_1b },
	{ "llama3_8b_kv_fp8", llama3_8b_kv_fp8 },
	{ "llama3_8b_w8a8", llama3_8b_w8a8 },
	{ "llama3_8b_w8a8_blocks", llama3_8b_w8a8_blocks },
	{ "decode_256", decode_256 },
};

const struct cairn_family cairn_throughput_family = {
	.stage = "serving",
	.name = "throughput",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
