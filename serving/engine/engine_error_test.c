// SPDX-License-Identifier: Apache-2.0
/* engine_error_test - what the engine refuses, and how it handles a failing table */
#include "conformance/harness.h"
#include "serving/engine/engine_test.h"

static void bad_requests(struct cairn_test *t)
{
	struct cairn_engine_options opt = { .max_batch = 1, .max_context = 64 };
	struct { const char *text; struct cairn_request r; } rows[10];
	const int32_t outside[] = { 1, 192 }, negative[] = { -1 };
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	struct answer a;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		close_model(m, &g);
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		rows[i].r = request(&g, 10, 10, &a);
		rows[i].r.sampling.temperature = 1;
	}
	rows[0].text = "prompt: is empty", rows[0].r.num_prompt = 0;
	rows[1].text = "max_new_tokens", rows[1].r.max_new_tokens = 0;
	rows[2].text = "exceed the context of 64", rows[2].r.max_new_tokens = 55;
	rows[3].text = "token 1 is 192", rows[3].r.prompt = outside, rows[3].r.num_prompt = 2;
	rows[4].text = "token 0 is -1", rows[4].r.prompt = negative, rows[4].r.num_prompt = 1;
	rows[5].text = "temperature", rows[5].r.sampling.temperature = -1;
	rows[6].text = "temperature", rows[6].r.sampling.temperature = 0.0f / 0.0f;
	rows[7].text = "top_k", rows[7].r.sampling.top_k = -1;
	rows[8].text = "top_p", rows[8].r.sampling.top_p = 0;
	rows[9].text = "min_p", rows[9].r.sampling.min_p = 1;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, cairn_engine_submit(e, &rows[i].r) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
	}
	EXPECT(t, cairn_engine_run(e) == 0 && a.num_ids == 0 && a.num_finished == 0);
	cairn_engine_destroy(e);
	close_model(m, &g);
}

static void bad_options(struct cairn_test *t)
{
	static const struct { struct cairn_engine_options opt; const char *text; } rows[] = {
		{ { .max_batch = 0 }, "max_batch" },
		{ { .max_batch = 1, .max_context = 4097 }, "max_context: 4097" },
		{ { .max_batch = 4, .max_rows = 3 }, "max_rows: 3" },
		{ { .max_batch = 1, .page_size = -1 }, "page_size" },
		{ { .max_batch = 1, .num_pages = 1 << 30 }, "num_pages" },
	};
	struct cairn_engine *e = NULL;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, cairn_engine_create(&e, m, &rows[i].opt) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
	}
	EXPECT(t, e == NULL);
	cairn_engine_destroy(NULL);
	close_model(m, &g);
}

/* When an operation of the table fails, the step returns its error, and all memory is freed. */
static int countdown;

static int failing_gemm(const struct cairn_gemm_args *args, void *stream)
{
	return countdown-- > 0 ? cairn_gemm_cpu(args, stream) : cairn_error(EIO, "an injected failure");
}

static void failing_table(struct cairn_test *t)
{
	struct cairn_engine_options opt = {
		.max_batch = 2, .max_context = 256, .decode = CAIRN_DECODE_UNFUSED,
	};
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	impl.gemm = failing_gemm;
	for (int at = 0; at < 40; at += 13) {
		struct cairn_engine *e;
		struct cairn_request r;
		struct answer a;
		int busy;

		countdown = at;
		if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
			break;
		r = request(&g, g.num_tokens, 16, &a);
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		r.id++;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		EXPECT(t, cairn_engine_run(e) == -EIO);
		EXPECT_CONTAINS(t, cairn_last_error(), "cpu: gemm: an injected failure");
		EXPECT(t, cairn_engine_step(e, &busy) == -EINVAL && a.num_finished == 0);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

static int failing_step(const struct cairn_decode_step_args *args, void *stream)
{
	return countdown-- > 0 ? cairn_decode_step_cpu(args, stream) :
		cairn_error(EIO, "an injected failure");
}

static int refusing_step(const struct cairn_decode_step_args *args, void *stream)
{
	(void)stream;
	return args->kv.batch < countdown ? cairn_decode_step_ref(args, NULL) :
		cairn_error(EOPNOTSUPP, "%d requests are too many", args->kv.batch);
}

static int refusing_query(const struct cairn_decode_step_args *args, size_t *bytes)
{
	(void)bytes;
	return cairn_error(EOPNOTSUPP, "%d requests are too many", args->kv.batch);
}

/* Runs two greedy requests; returns the engine's result. */
static int run_two(struct cairn_test *t, struct cairn_model *m, const struct golden *g,
		   enum cairn_decode_path decode, struct cairn_engine_stats *stats)
{
	struct cairn_engine_options opt = { .max_batch = 2, .max_context = 256, .decode = decode };
	struct answer a, b;
	struct cairn_request r = request(g, g->num_tokens, 16, &b), first = request(g, g->num_tokens, 8, &a);
	struct cairn_engine *e;
	int ret = cairn_engine_create(&e, m, &opt);

	if (ret)
		return ret;
	EXPECT(t, cairn_engine_submit(e, &first) == 0 && cairn_engine_submit(e, &r) == 0);
	ret = cairn_engine_run(e);
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
	if (!ret)
		EXPECT(t, a.num_ids == 8 && b.num_ids == 16 &&
		       !memcmp(b.ids, g->greedy, 16 * sizeof(*b.ids)));
	return ret;
}

/*
 * Tables without decode_step, with a failing one, and with ones that refuse a shape, either in the call or in
 * the workspace query.
 */
static void decode_paths(struct cairn_test *t)
{
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_PERSISTENT, &stats) == 0 && stats.fused_steps == 15);
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_UNFUSED, &stats) == 0 && stats.fused_steps == 0);
	impl.decode_step = failing_step;
	countdown = 5;
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_AUTO, &stats) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "cpu: decode_step: an injected failure");

	/* Refused in the call: batch 1 is accepted, batch 2 is not. */
	impl.decode_step = refusing_step;
	impl.decode_step_workspace = NULL;
	countdown = 2;
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_AUTO, &stats) == 0 && stats.fused_steps == 8);
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_GRAPH, &stats) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "cpu: decode_step: 2 requests are too many");
	impl.decode_step_workspace = refusing_query;
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_AUTO, &stats) == 0 && stats.fused_steps == 0);
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_GRAPH, &stats) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "cpu: decode_step_workspace: 2 requests are too many");

	impl.decode_step = NULL;
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_AUTO, &stats) == 0 && stats.fused_steps == 0);
	EXPECT(t, run_two(t, m, &g, CAIRN_DECODE_GRAPH, &stats) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "cpu: decode graph: the table has no operation decode_step");
	close_model(m, &g);
}

static int no_number(const struct cairn_argmax_args *args, void *stream)
{
	if (countdown-- > 0)
		return cairn_argmax_cpu(args, stream);
	memset(args->out, 0xff, (size_t)args->rows * sizeof(*args->out));
	return 0;
}

/* An answer whose logits are NaN ends without ending the others, and the cache keeps none of its KV. */
static void not_a_number(struct cairn_test *t)
{
	struct cairn_engine_options opt = {
		.max_batch = 2, .max_context = 256, .page_size = 4, .decode = CAIRN_DECODE_UNFUSED,
	};
	struct answer bad, again, third;
	struct cairn_request r;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	impl.argmax = no_number;
	for (int at = 0; at < 6; at++) {
		if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
			break;
		countdown = at;
		r = request(&g, g.num_tokens, 16, &bad);
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		EXPECT(t, bad.num_ids == at && bad.num_finished == 1 && bad.why == CAIRN_FINISH_FAILED);
		countdown = 1000;
		r = request(&g, g.num_tokens, 16, &again);
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		EXPECT(t, again.cached == 0 && again.num_ids == 16 &&
			  !memcmp(again.ids, g.greedy, 16 * sizeof(*again.ids)));
		r = request(&g, g.num_tokens, 16, &third);
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		EXPECT(t, third.cached > 0 && third.num_ids == 16);
		countdown = at;
		r = request(&g, 40, 16, &bad);
		r.salt.lo = 1;
		r.beam_width = 2;
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		EXPECT(t, bad.num_ids == 0 && bad.num_finished == 1 && bad.why == CAIRN_FINISH_FAILED);
		EXPECT(t, cairn_engine_verify(e) == 0);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "bad_requests", bad_requests },
	{ "bad_options", bad_options },
	{ "failing_table", failing_table },
	{ "decode_paths", decode_paths },
	{ "not_a_number", not_a_number },
};

const struct cairn_family cairn_engine_error_family = {
	.stage = "serving",
	.name = "engine_error",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
