// SPDX-License-Identifier: Apache-2.0
/*
 * pipeline_test - the stages of a model give the bits of the whole model
 *
 * A prompt is scored and continued, and another one is continued at random, so that log-probabilities and
 * tokens from all parts of the last stage come back to rank 0. Passes are cut into chunks of 16 rows.
 */
#include <stdatomic.h>
#include <sys/mman.h>

#include "conformance/harness.h"
#include "serving/ranks/ranks_model_test.h"

static void compare(struct cairn_test *t, const struct shared *s)
{
	struct scored whole, staged;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	write_prompt(tokens);
	if (write_model(t, s, dir))
		return;
	if (!EXPECT(t, score_shared(t, s, dir, tokens, NULL, &staged) == 0))
		cairn_note(t, "%s: %s", s->name, cairn_last_error());
	EXPECT(t, score_whole(s, dir, tokens, &whole) == 0);
	for (int i = 1; i < NUM; i++)
		EXPECT(t, whole.prompt[i] < 0);
	if (!EXPECT(t, same(&whole, &staged)))
		cairn_note(t, "%s, %d stages: logprobs differ by %g, %d tokens are the same", s->name,
			   s->ranks, (double)apart(&whole, &staged), same_tokens(&whole, &staged));
}

static void compare_all(struct cairn_test *t, const struct shared *all, size_t num)
{
	for (size_t i = 0; i < num; i++)
		compare(t, &all[i]);
}

/* With and without tied embeddings, with windows in every second layer, and with 8-bit and 4-bit weights. */
static void dense(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "llama3_tiny", .ranks = 2, .stages = 1 },
		{ .name = "llama3_tiny", .ranks = 2, .stages = 1, .weights = CAIRN_WEIGHTS_FP8,
		  .kv = CAIRN_KV_FP8 },
		{ .name = "gemma2_tiny", .ranks = 3, .stages = 1 },
		{ .name = "qwen3_tiny", .ranks = 2, .stages = 1 },
		{ .name = "qwen3_awq_tiny", .ranks = 2, .stages = 1 },
	};

	compare_all(t, all, ARRAY_SIZE(all));
}

/* The first stage of three has only layers without experts, or one of two has layers of both kinds. */
static void experts(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "mixtral_tiny", .ranks = 2, .stages = 1 },
		{ .name = "qwen3_moe_tiny", .ranks = 3, .stages = 1 },
		{ .name = "gpt_oss_mxfp4_tiny", .ranks = 2, .stages = 1 },
		{ .name = "qwen3_moe_tiny", .ranks = 2, .stages = 1, .kind = "v16",
		  .edits = { { RECIPE_STORED("qwen3_moe", RECIPE_NVFP4) } } },
		{ .name = "deepseek_tiny", .ranks = 3, .stages = 1 },
		{ .name = "deepseek_v3_tiny", .ranks = 2, .stages = 1 },
	};

	compare_all(t, all, ARRAY_SIZE(all));
}

/* ---- two stages at the same time ---- */

/* Shared by the processes of two stages: chunks begun by stage 0, by stage 1, and what stage 1 saw of 0. */
static _Atomic int *begun;		/* [3] */
static struct cairn_impl right;
static int stage;

/* In its first chunk, stage 1 waits until stage 0 has begun the second one. */
static int meet(const struct cairn_rope_args *args, void *stream)
{
	const int nth = atomic_fetch_add(&begun[stage], 1) + 1;

	/* after ten seconds the test fails */
	for (int i = 0; i < 10000 && stage == 1 && nth == 1 && atomic_load(&begun[0]) < 2; i++)
		usleep(1000);
	if (stage == 1 && nth == 1)
		atomic_store(&begun[2], atomic_load(&begun[0]));
	return right.rope(args, stream);
}

static void let_meet(struct cairn_model *m, struct cairn_impl *impl)
{
	stage = m->config.stage;
	right = *impl;
	impl->rope = meet;
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
}

/* While the second of two stages computes the first chunk, the first stage begins the second chunk. */
static void overlap(struct cairn_test *t)
{
	static const struct shared s = { .name = "llama3_tiny", .ranks = 2, .stages = 1 };
	struct scored got;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	begun = mmap(NULL, 3 * sizeof(*begun), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!EXPECT(t, begun != MAP_FAILED) || write_model(t, &s, dir))
		return;
	write_prompt(tokens);
	EXPECT(t, score_shared(t, &s, dir, tokens, let_meet, &got) == 0);
	EXPECT(t, atomic_load(&begun[2]) == 2);
	munmap((void *)begun, 3 * sizeof(*begun));
}

/* A stage has the weights of its layers only, and each weight of the model is in one stage. */
static void weights(struct cairn_test *t)
{
	struct cairn_model *whole = NULL, *m = NULL;
	struct cairn_impl impl;
	struct golden g;
	int64_t bytes = 0;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "qwen3_tiny"))
		return;
	EXPECT(t, !cairn_model_load(&whole, &impl, g.dir, NULL, NULL));
	for (int s = 0; s < 3; s++) {
		if (!EXPECT(t, !cairn_model_load_stage(&m, &impl, g.dir, s, 3, CAIRN_WEIGHTS_PLAIN,
						       CAIRN_KV_PLAIN, NULL, NULL)))
			continue;
		EXPECT(t, m->config.num_hidden_layers == 1 && m->config.first_layer == s);
		EXPECT(t, !!cairn_model_weight(m, 0, CAIRN_W_FINAL_NORM) == (s == 2));
		EXPECT(t, !!m->elements[CAIRN_W_EMBED] == (!s || (s == 2 && m->config.tie_word_embeddings)));
		EXPECT(t, !memcmp(cairn_model_weight(m, 0, CAIRN_W_DOWN),
				  cairn_model_weight(whole, s, CAIRN_W_DOWN), weight_bytes(m, CAIRN_W_DOWN)));
		bytes += (int64_t)m->bytes;
		cairn_model_free(m);
	}
	EXPECT(t, bytes == (int64_t)whole->bytes + (whole->config.tie_word_embeddings ?
						    (int64_t)weight_bytes(whole, CAIRN_W_EMBED) : 0));
	EXPECT(t, cairn_model_load_stage(&m, &impl, g.dir, 0, 4, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL,
					 NULL) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "num_hidden_layers: 3 layers are too few for 4 stages");
	impl.send_recv = NULL;
	EXPECT(t, cairn_model_load_stage(&m, &impl, g.dir, 0, 2, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL,
					 NULL) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "the table has no operation send_recv");
	cairn_model_free(whole);
	close_golden(&g);
}

static void bad_options(struct cairn_test *t)
{
	static const struct { const char *args[8]; const char *says; } rows[] = {
		{ { "--pp", "2", "--tp", "2" }, "--pp: excludes --tp" },
		{ { "--pp", "2", "--cp", "2" }, "--pp: excludes --cp" },
		{ { "--pp-chunk", "64" }, "--pp-chunk: needs --pp" },
		{ { "--pp", "9" }, "--pp" },
		{ { "--tp", "2", "--speculative", "mtp" }, "--speculative: eagle3 and mtp exclude --tp" },
		{ { "--pp", "2", "--json", "/none" }, "--json: not with --pp" },
		{ { "--pp", "2", "--decode", "graph" }, "or ranks" },
		{ { "--pp", "6" }, "num_hidden_layers: 5 layers are too few for 6 stages" },
	};
	char out[4096];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *argv[16] = { "cairn", "generate", "--impl", "cpu", "--prompt", "x" };

		for (int k = 0; rows[i].args[k]; k++)
			argv[6 + k] = (char *)rows[i].args[k];
		EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 2);
		EXPECT_CONTAINS(t, out, rows[i].says);
	}
}

static const struct cairn_unit units[] = {
	{ "dense", dense }, { "experts", experts }, { "overlap", overlap },
	{ "weights", weights }, { "bad_options", bad_options },
};

const struct cairn_family cairn_pipeline_family = {
	.stage = "serving", .name = "pipeline", .units = units, .num_units = ARRAY_SIZE(units),
};
