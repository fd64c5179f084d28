// SPDX-License-Identifier: Apache-2.0
/* engine_test - greedy, batched, sampled and stopped requests through the engine, on every table */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_test.h"

static int same(const struct answer *a, const struct answer *b)
{
	return a->num_ids == b->num_ids && a->why == b->why &&
	       !memcmp(a->ids, b->ids, (size_t)a->num_ids * sizeof(*a->ids));
}

static void alone_with(struct cairn_test *t, struct cairn_model *m, const struct cairn_engine_options *opt,
		       const struct cairn_request *r)
{
	struct cairn_engine *e;

	if (!EXPECT(t, cairn_engine_create(&e, m, opt) == 0))
		return;
	EXPECT(t, cairn_engine_submit(e, r) == 0);
	EXPECT(t, cairn_engine_run(e) == 0);
	cairn_engine_destroy(e);
}

/* Runs one request alone, in its own engine. */
static void alone(struct cairn_test *t, struct cairn_model *m, enum cairn_decode_path decode,
		  const struct cairn_request *r)
{
	const struct cairn_engine_options opt = { .max_batch = 1, .max_context = 256, .decode = decode };

	alone_with(t, m, &opt, r);
}

/*
 * Greedy tokens match transformers with any chunk and page size, with or without graphs, and on both decode
 * paths: the golden prompts were chosen so that the margin of the best logit exceeds rounding errors.
 */
static void greedy(struct cairn_test *t, const char *table, const char *name)
{
	static const struct cairn_engine_options opts[] = {
		{ .max_batch = 1, .max_context = 256 },
		{ .max_batch = 1, .max_context = 256, .decode = CAIRN_DECODE_UNFUSED },
		{ .max_batch = 1, .max_context = 256, .max_rows = 7, .page_size = 1 },
		{ .max_batch = 3, .max_context = 130, .max_rows = 33, .page_size = 5, .no_graphs = 1 },
		{ .max_batch = 3, .max_context = 130, .max_rows = 33, .page_size = 5, .no_graphs = 1,
		  .decode = CAIRN_DECODE_UNFUSED },
		{ .max_batch = 2, .max_context = 112, .page_size = 64, .num_pages = 2 },
	};
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	int chunk, fused, captured;

	if (open_model(t, table, name, &impl, &g, &m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(opts); i++) {
		struct answer a;
		struct cairn_request r = request(&g, g.num_tokens, g.num_greedy, &a);
		struct cairn_engine *e;

		if (!EXPECT(t, cairn_engine_create(&e, m, &opts[i]) == 0))
			continue;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		EXPECT(t, cairn_engine_run(e) == 0);
		EXPECT(t, a.num_ids == g.num_greedy && a.why == CAIRN_FINISH_LENGTH && a.num_finished == 1);
		EXPECT(t, !memcmp(a.ids, g.greedy, (size_t)g.num_greedy * sizeof(*g.greedy)));
		cairn_engine_stats(e, &stats);
		EXPECT(t, stats.prompt_tokens == g.num_tokens && stats.new_tokens == g.num_greedy);
		/* No extra pass: the prompt's last token draws the first new one. */
		chunk = opts[i].max_rows ? opts[i].max_rows : 1024;
		EXPECT(t, stats.steps == (g.num_tokens + chunk - 1) / chunk + g.num_greedy - 1);
		/* All steps without prompt rows, and a prompt's last chunk if it has one row. */
		fused = opts[i].decode != CAIRN_DECODE_UNFUSED && impl.decode_step;
		EXPECT(t, stats.fused_steps == (fused ? g.num_greedy - 1 + (g.num_tokens % chunk == 1) : 0));
		/*
		 * The first decoding step warms up, the second captures; so do chunks of the prompt that
		 * draw nothing. Where the first finds its workspace too small, all of its kind are one step
		 * later.
		 */
		captured = g.num_greedy - 2 + (g.num_tokens > 2 * chunk ? (g.num_tokens - 1) / chunk - 1 : 0);
		captured = on_device(&impl) && !opts[i].no_graphs ? captured : 0;
		EXPECT(t, stats.graph_steps <= captured && stats.graph_steps >= captured - 2);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

#define GREEDY(table) \
	static void greedy_llama2_##table(struct cairn_test *t) { greedy(t, #table, "llama2_tiny"); } \
	static void greedy_llama3_##table(struct cairn_test *t) { greedy(t, #table, "llama3_tiny"); } \
	static void greedy_qwen2_##table(struct cairn_test *t) { greedy(t, #table, "qwen2_tiny"); }
GREEDY(ref)
GREEDY(cpu)
GREEDY(cuda)
GREEDY(late)

/*
 * Twenty requests of all lengths, greedy and sampled, in an engine that runs five at a time and has pages for
 * fewer: each must get the tokens it gets alone, because all passes round in the same way.
 */
static void batch_is_alone(struct cairn_test *t, const char *table)
{
	struct cairn_engine_options opt = {
		.max_batch = 5, .max_context = 160, .max_rows = 40, .page_size = 8, .num_pages = 60,
		.decode = CAIRN_DECODE_UNFUSED,
	};
	struct answer in_batch[20], by_itself;
	struct cairn_request reqs[20];
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	int differ = 0;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		return;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		close_model(m, &g);
		return;
	}
	for (int i = 0; i < 20; i++) {
		int prompt = 1 + (int)(cairn_rand(t) % (uint64_t)(g.num_tokens - 1));

		reqs[i] = request(&g, prompt, 1 + (int)(cairn_rand(t) % 40), &in_batch[i]);
		reqs[i].ignore_eos = i % 4 != 0;
		if (i % 2)
			reqs[i].sampling = (struct cairn_sampling){
				.temperature = 1, .top_p = 0.95f, .top_k = 50, .min_p = 0.01f,
				.seed = cairn_rand(t),
			};
		EXPECT(t, cairn_engine_submit(e, &reqs[i]) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	for (int i = 0; i < 20; i++) {
		EXPECT(t, in_batch[i].num_finished == 1);
		reqs[i].ctx = &by_itself;
		memset(&by_itself, 0, sizeof(by_itself));
		alone(t, m, CAIRN_DECODE_UNFUSED, &reqs[i]);
		if (!EXPECT(t, same(&in_batch[i], &by_itself)))
			cairn_note(t, "request %d of %d tokens", i, reqs[i].num_prompt);
		differ += i > 1 && !same(&in_batch[i], &in_batch[i % 2]);
	}
	EXPECT(t, differ > 10);
	cairn_engine_destroy(e);
	close_model(m, &g);
}

static void batch_is_alone_ref(struct cairn_test *t)
{
	batch_is_alone(t, "ref");
}

static void batch_is_alone_cpu(struct cairn_test *t)
{
	batch_is_alone(t, "cpu");
}

static void batch_is_alone_late(struct cairn_test *t)
{
	batch_is_alone(t, "late");
}

static void sampling(struct cairn_test *t, const char *table, enum cairn_decode_path decode)
{
	struct answer a, b, c, hot, best, top1;
	int met[8] = { 0 };
	struct cairn_request r;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, table, "llama2_tiny", &impl, &g, &m))
		return;
	r = request(&g, 20, 40, &a);
	r.ignore_eos = 1;
	r.sampling = (struct cairn_sampling){ .temperature = 1.5f, .top_p = 1, .seed = 11 };
	alone(t, m, decode, &r);
	memset(&b, 0, sizeof(b));
	r.ctx = &b;
	alone(t, m, decode, &r);
	EXPECT(t, a.num_ids == 40 && same(&a, &b));
	memset(&c, 0, sizeof(c));
	r.ctx = &c;
	r.sampling.seed = 12;
	alone(t, m, decode, &r);
	EXPECT(t, !same(&a, &c));
	/* The temperature makes all tokens about equally likely, so reused random numbers would show. */
	memset(&hot, 0, sizeof(hot));
	r.ctx = &hot;
	r.sampling.temperature = 1e4f;
	alone(t, m, decode, &r);
	for (int i = 0; i < 40; i++)
		met[hot.ids[i] * 8 / m->config.vocab_size]++;
	for (int i = 0; i < 8; i++)
		EXPECT(t, met[i] >= 1 && met[i] <= 12);
	/* top_k 1 gives the best token at any temperature. */
	memset(&top1, 0, sizeof(top1));
	r.ctx = &top1;
	r.sampling.top_k = 1;
	alone(t, m, decode, &r);
	memset(&best, 0, sizeof(best));
	r.ctx = &best;
	r.sampling = (struct cairn_sampling){ .top_p = 1 };
	alone(t, m, decode, &r);
	EXPECT(t, same(&top1, &best) && !same(&best, &a));
	close_model(m, &g);
}

static void sampling_ref(struct cairn_test *t)
{
	sampling(t, "ref", CAIRN_DECODE_AUTO);
}

static void sampling_cpu(struct cairn_test *t)
{
	sampling(t, "cpu", CAIRN_DECODE_AUTO);
}

static void sampling_cuda(struct cairn_test *t)
{
	sampling(t, "cuda", CAIRN_DECODE_AUTO);
}

static void sampling_late(struct cairn_test *t)
{
	sampling(t, "late", CAIRN_DECODE_AUTO);
}

static void sampling_unfused_cpu(struct cairn_test *t)
{
	sampling(t, "cpu", CAIRN_DECODE_UNFUSED);
}

static void sampling_unfused_cuda(struct cairn_test *t)
{
	sampling(t, "cuda", CAIRN_DECODE_UNFUSED);
}

static void sampling_unfused_late(struct cairn_test *t)
{
	sampling(t, "late", CAIRN_DECODE_UNFUSED);
}

/* Answers end by an end-of-sequence token or a callback, while other requests continue undisturbed. */
static void stops(struct cairn_test *t, const char *table)
{
	struct cairn_engine_options opt = { .max_batch = 4, .max_context = 256 };
	struct answer eos, cancelled, all;
	struct cairn_request r;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		return;
	m->config.eos_token_ids[1] = g.greedy[5];
	if (!EXPECT(t, m->config.num_eos == 2) || !EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		close_model(m, &g);
		return;
	}
	for (int round = 0; round < 2; round++) {	/* a finished engine must be reusable */
		r = request(&g, g.num_tokens, g.num_greedy, &eos);
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		r = request(&g, g.num_tokens, g.num_greedy, &cancelled);
		cancelled.stop_at = 3;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		r = request(&g, g.num_tokens, g.num_greedy, &all);
		r.ignore_eos = 1;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		EXPECT(t, cairn_engine_run(e) == 0);
		EXPECT(t, eos.num_ids == 5 && eos.why == CAIRN_FINISH_STOP && eos.num_finished == 1);
		EXPECT(t, eos.end_token == g.greedy[5]);
		EXPECT(t, cancelled.num_ids == 3 && cancelled.why == CAIRN_FINISH_STOP);
		EXPECT(t, all.num_ids == g.num_greedy && all.why == CAIRN_FINISH_LENGTH);
		EXPECT(t, !memcmp(all.ids, g.greedy, (size_t)g.num_greedy * sizeof(*g.greedy)));
	}
	cairn_engine_destroy(e);
	close_model(m, &g);
}

static void stops_cpu(struct cairn_test *t)
{
	stops(t, "cpu");
}

static void stops_cuda(struct cairn_test *t)
{
	stops(t, "cuda");
}

static void stops_late(struct cairn_test *t)
{
	stops(t, "late");
}

static struct cairn_impl plain;
static int32_t calls[8];		/* of attn_paged with so many requests */

static int count_requests(const struct cairn_attn_paged_args *args, void *stream)
{
	calls[args->kv.batch < 7 ? args->kv.batch : 7]++;
	return plain.attn_paged(args, stream);
}

/*
 * A few rows of a prompt behind a long past are several requests to attn_paged, here of 8 rows each: its KV
 * heads have two query heads. The answers are those of a prompt in one pass.
 */
static void few_rows(struct cairn_test *t)
{
	static const struct { int32_t rest, requests; } rows[] = {
		{ 8, 1 }, { 12, 2 }, { 32, 4 }, { 33, 1 },
	};
	struct cairn_engine_options opt = {
		.max_batch = 2, .max_context = 512, .page_size = 4, .decode = CAIRN_DECODE_UNFUSED,
	};
	int32_t prompt[400];
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	plain = impl;
	impl.attn_paged = count_requests;
	for (size_t i = 0; i < ARRAY_SIZE(prompt); i++)
		prompt[i] = 3 + (int32_t)(cairn_rand(t) % 180);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct answer a[2];

		for (int k = 0; k < 2; k++) {
			struct cairn_request r = request(&g, 260 + rows[i].rest, 4, &a[k]);

			r.prompt = prompt;
			r.ignore_eos = 1;
			r.sampling.num_logprobs = 5;
			opt.max_rows = k ? 260 : 400;
			memset(calls, 0, sizeof(calls));
			alone_with(t, m, &opt, &r);
			EXPECT(t, !k || rows[i].requests == 1 ||
				  calls[rows[i].requests] == m->config.num_hidden_layers);
			EXPECT(t, k || calls[1] == 4 * m->config.num_hidden_layers);
		}
		EXPECT(t, a[0].num_ids == 4 && same(&a[0], &a[1]) &&
			  !memcmp(a[0].logprob, a[1].logprob, sizeof(a[0].logprob)));
	}
	close_model(m, &g);
}

/*
 * A prompt's pass is captured when the engine has nothing to do after its first time, so that no pass is
 * captured while others are served. In the first time of all, workspaces are allocated.
 */
static void captured_when_idle(struct cairn_test *t, const char *table)
{
	const struct cairn_engine_options opt = { .max_batch = 2, .max_context = 256, .cache_grain = -1 };
	struct cairn_engine_stats before, after = { 0 };
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	struct answer a;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		return;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		for (int i = 0; i < 3; i++) {
			struct cairn_request r = request(&g, 50 + i, 4, &a);

			before = after;
			EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
			cairn_engine_stats(e, &after);
		}
		EXPECT(t, after.steps - before.steps == 4 && after.graph_steps - before.graph_steps == 4);
		EXPECT(t, after.captures == before.captures);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

static void captured_when_idle_late(struct cairn_test *t)
{
	captured_when_idle(t, "late");
}

static void captured_when_idle_cuda(struct cairn_test *t)
{
	captured_when_idle(t, "cuda");
}

static const struct cairn_unit units[] = {
	{ "greedy_llama2_ref", greedy_llama2_ref },
	{ "greedy_llama2_cpu", greedy_llama2_cpu },
	{ "greedy_llama2_cuda", greedy_llama2_cuda },
	{ "greedy_llama3_ref", greedy_llama3_ref },
	{ "greedy_llama3_cpu", greedy_llama3_cpu },
	{ "greedy_llama3_cuda", greedy_llama3_cuda },
	{ "greedy_qwen2_ref", greedy_qwen2_ref },
	{ "greedy_qwen2_cpu", greedy_qwen2_cpu },
	{ "greedy_qwen2_cuda", greedy_qwen2_cuda },
	{ "batch_is_alone_ref", batch_is_alone_ref },
	{ "batch_is_alone_cpu", batch_is_alone_cpu },
	{ "sampling_ref", sampling_ref },
	{ "sampling_cpu", sampling_cpu },
	{ "sampling_cuda", sampling_cuda },
	{ "sampling_unfused_cpu", sampling_unfused_cpu },
	{ "sampling_unfused_cuda", sampling_unfused_cuda },
	{ "stops_cpu", stops_cpu },
	{ "stops_cuda", stops_cuda },
	{ "stops_late", stops_late },
	{ "greedy_llama2_late", greedy_llama2_late },
	{ "greedy_llama3_late", greedy_llama3_late },
	{ "greedy_qwen2_late", greedy_qwen2_late },
	{ "batch_is_alone_late", batch_is_alone_late },
	{ "sampling_late", sampling_late },
	{ "sampling_unfused_late", sampling_unfused_late },
	{ "few_rows", few_rows },
	{ "captured_when_idle_late", captured_when_idle_late },
	{ "captured_when_idle_cuda", captured_when_idle_cuda },
};

const struct cairn_family cairn_engine_family = {
	.stage = "serving",
	.name = "engine",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 6,
};
