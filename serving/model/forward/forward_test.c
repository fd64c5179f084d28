// SPDX-License-Identifier: Apache-2.0
/* forward_test - logits of whole and chunked passes, workspaces and graphs, checked with model_ref */
#include "conformance/harness.h"
#include "serving/model/forward/forward_test.h"

/*
 * Compares model_ref with the golden logits, which Hugging Face transformers computed in double from the same
 * weights. The remaining difference: the golden file is rounded to f32, and so are the rotary frequencies
 * here (the relative error of an angle is position * 2^-24).
 */
static void reference_is_transformers(struct cairn_test *t)
{
	static const char *const names[] = {
		"llama2_tiny", "llama3_tiny", "qwen2_tiny", "deepseek_tiny", "deepseek_q_tiny",
		"mistral_tiny", "qwen3_tiny", "gemma2_tiny", "mixtral_tiny", "qwen3_moe_tiny",
		"longrope_tiny", "deepseek_v2_group_tiny", "deepseek_v3_tiny", "deepseek_v3_fp8_tiny",
		"qwen3_fp8_rows_tiny", "qwen3_awq_tiny", "qwen2_gptq_tiny", "mistral_w4a16_tiny",
		"gpt_oss_tiny", "gpt_oss_mxfp4_tiny",
	};

	for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
		struct cairn_model_config c;
		double worst = 0, *logits;
		struct golden g;

		if (open_golden(t, &g, names[k]))
			return;
		EXPECT(t, cairn_model_config_load(g.dir, &c) == 0);
		logits = malloc(sizeof(*logits) * (size_t)(g.num_tokens * c.vocab_size));
		EXPECT(t, cairn_model_ref(g.dir, g.tokens, g.num_tokens, 0, 0, logits) == 0);
		for (int i = 0; i < g.num_positions * c.vocab_size; i++) {
			double want = (double)g.logits[i];
			double got = logits[g.positions[i / c.vocab_size] * c.vocab_size + i % c.vocab_size];

			worst = fmax(worst, fabs(got - want));
		}
		cairn_note(t, "%s: largest difference %.2g", names[k], worst);
		EXPECT(t, worst < 1e-4);
		free(logits);
		close_golden(&g);
	}
}

/*
 * Returns how many of the one-row passes decode_step supports; the fixture's bound is
 * always 256 keys, which excludes windows.
 */
static int fused_passes(const struct fixture *f, const char *name, int passes)
{
	const struct cairn_model_config *c = &f->m->config;

	return f->impl.decode_step && name && !c->window && !c->head_norms && !c->block_norms &&
	       !c->experts.sigmoid && !c->experts.num_groups ? passes : 0;
}

static void logits(struct cairn_test *t, const char *table, const char *name, int f16)
{
	static const int whole[] = { 1 << 20 }, chunks[] = { 7, 16, 33, 1, 23 }, single[] = { 1 };
	static const int prompt[] = { 13, 1 };
	struct fixture f;

	if (open_fixture(t, &f, table, name, f16, CAIRN_WEIGHTS_PLAIN))
		goto out;
	judge_passes(t, &f, "in one pass", whole, 1);
	judge_passes(t, &f, "in chunks", chunks, (int)ARRAY_SIZE(chunks));
	judge_passes(t, &f, "token by token", single, 1);
	/* decode_step runs a decoding step as one operation; it does not support all models. */
	if (!EXPECT(t, cairn_decoder_create(&f.decoder, f.m, CAIRN_DECODE_AUTO) == 0))
		goto out;
	judge_passes(t, &f, "token by token, fused", single, 1);
	EXPECT(t, f.fused == fused_passes(&f, name, f.g.num_tokens));
	judge_passes(t, &f, "a prompt, then fused", prompt, 2);
	EXPECT(t, f.fused == fused_passes(&f, name, 2 * f.g.num_tokens - 13));
out:
	close_fixture(&f);
}

/*
 * Latent attention with an rms_norm_eps that its inner norms must not use, large enough to show if they do.
 * decode_step has only one eps and must not be used.
 */
static void two_eps(struct cairn_test *t, const char *table)
{
	static const int whole[] = { 1 << 20 }, single[] = { 1 };
	struct fixture f = { 0 };
	char dir[PATH_MAX];

	if (open_checkpoint(t, &f, table, "deepseek_q_tiny", 0) ||
	    altered_checkpoint(t, f.g.dir, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1.0", dir))
		goto out;
	f.g.num_tokens = 6;
	if (load_fixture(t, &f, dir, 0, CAIRN_WEIGHTS_PLAIN) ||
	    judge_by(t, &f, "deepseek_q_tiny with two eps", dir, 0, CAIRN_WEIGHTS_PLAIN) ||
	    !EXPECT(t, cairn_decoder_create(&f.decoder, f.m, CAIRN_DECODE_AUTO) == 0))
		goto out;
	judge_passes(t, &f, "in one pass", whole, 1);
	judge_passes(t, &f, "token by token", single, 1);
	EXPECT(t, f.fused == 0);
	cairn_decoder_destroy(f.decoder);
	f.decoder = NULL;
	EXPECT(t, cairn_decoder_create(&f.decoder, f.m, CAIRN_DECODE_PERSISTENT) == -EOPNOTSUPP);
	if (f.impl.decode_step)
		EXPECT_CONTAINS(t, cairn_last_error(), "rms_norm_eps");
out:
	close_fixture(&f);
}

static void two_eps_cpu(struct cairn_test *t)
{
	two_eps(t, "cpu");
}

static void two_eps_cuda(struct cairn_test *t)
{
	two_eps(t, "cuda");
}

/* Runs a model on all host tables in one unit, because computing the bounds takes most of the time. */
static void on_host(struct cairn_test *t, const char *name, int f16, int late)
{
	logits(t, "ref", name, f16);
	logits(t, "cpu", name, f16);
	if (late)
		logits(t, "late", name, f16);
}

enum { NOT_LATE, LATE };	/* whether the model runs on table late, too */

#define EACH(what) \
	what(llama2_bf16, "llama2_tiny", 0, NOT_LATE) what(llama2_f16, "llama2_tiny", 1, NOT_LATE) \
	what(llama3_bf16, "llama3_tiny", 0, LATE) what(llama3_f16, "llama3_tiny", 1, NOT_LATE) \
	what(qwen2_bf16, "qwen2_tiny", 0, NOT_LATE) what(qwen2_f16, "qwen2_tiny", 1, NOT_LATE) \
	what(deepseek_bf16, "deepseek_tiny", 0, LATE) what(deepseek_f16, "deepseek_tiny", 1, NOT_LATE) \
	what(deepseek_q_bf16, "deepseek_q_tiny", 0, NOT_LATE) \
	what(deepseek_q_f16, "deepseek_q_tiny", 1, NOT_LATE) \
	what(mistral_bf16, "mistral_tiny", 0, NOT_LATE) what(mistral_f16, "mistral_tiny", 1, NOT_LATE) \
	what(qwen3_bf16, "qwen3_tiny", 0, NOT_LATE) what(qwen3_f16, "qwen3_tiny", 1, NOT_LATE) \
	what(gemma2_bf16, "gemma2_tiny", 0, NOT_LATE) what(gemma2_f16, "gemma2_tiny", 1, LATE) \
	what(mixtral_bf16, "mixtral_tiny", 0, LATE) what(mixtral_f16, "mixtral_tiny", 1, NOT_LATE) \
	what(qwen3_moe_bf16, "qwen3_moe_tiny", 0, NOT_LATE) \
	what(qwen3_moe_f16, "qwen3_moe_tiny", 1, NOT_LATE) \
	what(longrope_bf16, "longrope_tiny", 0, NOT_LATE) what(longrope_f16, "longrope_tiny", 1, NOT_LATE) \
	what(deepseek_v2_group_bf16, "deepseek_v2_group_tiny", 0, NOT_LATE) \
	what(deepseek_v3_f16, "deepseek_v3_tiny", 1, NOT_LATE) \
	what(deepseek_v3_fp8_bf16, "deepseek_v3_fp8_tiny", 0, NOT_LATE) \
	what(qwen3_fp8_rows_bf16, "qwen3_fp8_rows_tiny", 0, NOT_LATE) \
	what(gpt_oss_bf16, "gpt_oss_tiny", 0, LATE) \
	what(gpt_oss_mxfp4_f16, "gpt_oss_mxfp4_tiny", 1, NOT_LATE) \
	what(biases_f16, NULL, 1, LATE)
#define DEFINE(unit, name, f16, late) \
	static void unit##_host(struct cairn_test *t) { on_host(t, name, f16, late); } \
	static void unit##_cuda(struct cairn_test *t) { logits(t, "cuda", name, f16); }
#define LIST_HOST(unit, name, f16, late) { #unit "_host", unit##_host },
#define LIST_CUDA(unit, name, f16, late) { #unit "_cuda", unit##_cuda },
EACH(DEFINE)

/* A table whose operations ask for workspaces must get the size that each asked for. The largest demand comes
 * first and last. */
static struct cairn_impl plain;
static int num_short, num_calls;

static int ask_gemm(const struct cairn_gemm_args *args, size_t *bytes)
{
	*bytes = (size_t)args->n * 24;
	return 0;
}

static int ask_attn(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	*bytes = (size_t)args->nnz_qo * 4096;
	return 0;
}

static void look(const void *workspace, size_t have, size_t want)
{
	num_calls++;
	num_short += !workspace || have < want;
}

static int gemm_in_workspace(const struct cairn_gemm_args *args, void *stream)
{
	look(args->workspace, args->workspace_bytes, (size_t)args->n * 24);
	return plain.gemm(args, stream);
}

static int attn_in_workspace(const struct cairn_attn_paged_args *args, void *stream)
{
	look(args->workspace, args->workspace_bytes, (size_t)args->nnz_qo * 4096);
	return plain.attn_paged(args, stream);
}

static void workspaces_as_asked(struct cairn_test *t)
{
	static const int chunks[] = { 3, 1, 29, 2 };
	struct fixture f;

	if (open_fixture(t, &f, "cpu", "llama3_tiny", 0, CAIRN_WEIGHTS_PLAIN))
		goto out;
	plain = f.impl;
	num_short = num_calls = 0;
	f.impl.gemm_workspace = ask_gemm;
	f.impl.attn_paged_workspace = ask_attn;
	f.impl.gemm = gemm_in_workspace;
	f.impl.attn_paged = attn_in_workspace;
	judge_passes(t, &f, "in chunks", chunks, (int)ARRAY_SIZE(chunks));
	EXPECT(t, num_calls > 0 && num_short == 0);
out:
	close_fixture(&f);
}

static int num_gated, num_appended;

static int counted_gated(const struct cairn_gemm_gated_args *args, void *stream)
{
	num_gated++;
	return plain.gemm_gated(args, stream);
}

static int counted_append(const struct cairn_qkv_append_args *args, void *stream)
{
	num_appended++;
	return plain.qkv_append(args, stream);
}

/* Runs the tokens in two passes. Returns their logits, which the caller frees, or NULL. */
static float *logits_of_two(struct cairn_test *t, struct fixture *f)
{
	float *logits = NULL;

	if (EXPECT(t, run_pass(f, 0, 13) == 0) && EXPECT(t, run_pass(f, 13, f->g.num_tokens - 13) == 0)) {
		logits = f->logits;
		f->logits = NULL;
	}
	return logits;
}

/* A checkpoint, and whether its products cover the activation, and rotation and append. */
struct covering {
	const char *name;
	int gated, appended;
	enum cairn_kv_form kv;
};

/*
 * The bits are the same whether products compute the operations after them or not. They do in the first pass,
 * and in the second one if that has few rows.
 */
static void covered_by_products(struct cairn_test *t, const char *table, const struct covering *c)
{
	float *logits[2] = { NULL, NULL };
	size_t bytes = 0;

	for (int k = 0; k < 2; k++) {
		struct fixture f;

		if (!open_checkpoint(t, &f, table, c->name, 0)) {
			plain = f.impl;
			num_gated = num_appended = 0;
			f.impl.gemm_gated = k ? NULL : counted_gated;
			f.impl.qkv_append = k ? NULL : counted_append;
			f.kv_form = c->kv;
			if (!load_fixture(t, &f, f.g.dir, 0, CAIRN_WEIGHTS_PLAIN)) {
				const int few = 1 + (f.g.num_tokens - 13 <= CAIRN_GEMM_GATED_M);
				const int calls = k ? 0 : few * f.m->config.num_hidden_layers;

				bytes = sizeof(float) * (size_t)(f.g.num_tokens * f.vocab);
				logits[k] = logits_of_two(t, &f);
				EXPECT(t, num_gated == c->gated * calls);
				EXPECT(t, num_appended == c->appended * calls);
			}
		}
		close_fixture(&f);
	}
	if (logits[0] && logits[1] && !EXPECT(t, !memcmp(logits[0], logits[1], bytes)))
		cairn_note(t, "%s", c->name);
	free(logits[0]);
	free(logits[1]);
}

static void all_coverings(struct cairn_test *t, const char *table)
{
	static const struct covering all[] = {
		{ "llama3_tiny", 1, 1, CAIRN_KV_PLAIN }, { "qwen2_tiny", 1, 1, CAIRN_KV_PLAIN },
		{ "llama3_tiny", 1, 1, CAIRN_KV_FP8 }, { "longrope_tiny", 1, 1, CAIRN_KV_PLAIN },
		{ "qwen3_tiny", 1, 0, CAIRN_KV_PLAIN }, { "gemma2_tiny", 0, 1, CAIRN_KV_PLAIN },
		{ "mixtral_tiny", 0, 1, CAIRN_KV_PLAIN },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		covered_by_products(t, table, &all[i]);
}

static void covered_cpu(struct cairn_test *t)
{
	all_coverings(t, "cpu");
}

static void covered_cuda(struct cairn_test *t)
{
	all_coverings(t, "cuda");
}

static struct cairn_attn_paged_args plan_maker;
static int num_planned, num_plans, num_strange;

/* A planned call must have the workspace and window of the call that made the plan. */
static int attn_by_plan(const struct cairn_attn_paged_args *args, void *stream)
{
	const struct cairn_attn_paged_args *maker = &plan_maker;

	if (args->planned)
		num_strange += args->window != maker->window || args->workspace != maker->workspace ||
			       args->nnz_qo != maker->nnz_qo || args->kv.indptr != maker->kv.indptr;
	else
		plan_maker = *args;
	num_planned += args->planned;
	num_plans += !args->planned;
	return plain.attn_paged(args, stream);
}

/*
 * The layers of a pass share one plan. gemma2_tiny has windows in every second layer, so each layer needs a
 * plan of its own.
 */
static void layers_share_a_plan(struct cairn_test *t)
{
	static const char *const names[] = { "llama3_tiny", "gemma2_tiny" };
	static const int chunks[] = { 3, 1, 29, 2 };

	for (int k = 0; k < 2; k++) {
		struct fixture f;

		if (open_fixture(t, &f, "cpu", names[k], 0, CAIRN_WEIGHTS_PLAIN))
			goto close;
		plain = f.impl;
		num_planned = num_plans = num_strange = 0;
		f.impl.attn_paged = attn_by_plan;
		judge_passes(t, &f, "in chunks", chunks, (int)ARRAY_SIZE(chunks));
		EXPECT(t, num_strange == 0 && num_plans > 0);
		EXPECT(t, k == 0 ? num_planned > 0 && num_planned % num_plans == 0 : num_planned == 0);
close:
		close_fixture(&f);
	}
}

/* A decode pass captured at one position and replayed at later ones gives the same bits as the eager pass. */
static void graph_is_eager(struct cairn_test *t, const char *table)
{
	struct cairn_batch b;
	struct fixture f;
	void *graph = NULL;
	int rows, moved;

	if (open_fixture(t, &f, table, "llama3_tiny", 0, CAIRN_WEIGHTS_PLAIN))
		goto out;
	rows = f.g.num_tokens;
	if (!EXPECT(t, run_pass(&f, 0, rows - 20) == 0) || !EXPECT(t, run_pass(&f, rows - 20, 1) == 0) ||
	    !EXPECT(t, prepare_pass(&f, rows - 20, 1, &b) == 0) ||
	    !EXPECT(t, cairn_scratch_reserve(f.s, &f.kv, &b, f.stream, &moved) == 0) ||
	    !EXPECT(t, f.impl.graph_begin(f.stream) == 0))
		goto out;
	EXPECT(t, cairn_forward(f.s, &f.kv, &b, f.stream) == 0);
	if (!EXPECT(t, f.impl.graph_end(f.stream, &graph) == 0))
		goto out;
	for (int at = rows - 19; at < rows; at++) {
		float *eager = f.logits + at * f.vocab, *replayed = f.logits;
		size_t bytes = sizeof(float) * (size_t)f.vocab;

		EXPECT(t, run_pass(&f, at, 1) == 0);
		EXPECT(t, prepare_pass(&f, at, 1, &b) == 0);
		EXPECT(t, f.impl.mem_set(f.dev_logits, 0xff, bytes, f.stream) == 0);
		EXPECT(t, f.impl.graph_launch(graph, f.stream) == 0);
		EXPECT(t, f.impl.mem_copy(replayed, f.dev_logits, bytes, CAIRN_COPY_TO_HOST, f.stream) == 0);
		EXPECT(t, f.impl.stream_sync(f.stream) == 0);
		EXPECT(t, !memcmp(eager, replayed, bytes));
	}
out:
	if (graph)
		f.impl.graph_destroy(graph);
	close_fixture(&f);
}

static void graph_is_eager_cuda(struct cairn_test *t)
{
	graph_is_eager(t, "cuda");
}

static void graph_is_eager_late(struct cairn_test *t)
{
	graph_is_eager(t, "late");
}

/* Table late runs cpu's operations asynchronously: the bits must be the same. */
static void late_is_cpu(struct cairn_test *t)
{
	static const char *const names[] = { "llama3_tiny", "deepseek_tiny", "mixtral_tiny" };
	static const int chunks[] = { 7, 16, 33, 1, 23 };

	for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
		struct fixture cpu, late;

		if (!open_fixture(t, &cpu, "cpu", names[k], 0, CAIRN_WEIGHTS_PLAIN) &&
		    !open_fixture(t, &late, "late", names[k], 0, CAIRN_WEIGHTS_PLAIN)) {
			judge_passes(t, &cpu, "on cpu", chunks, (int)ARRAY_SIZE(chunks));
			judge_passes(t, &late, "late", chunks, (int)ARRAY_SIZE(chunks));
			EXPECT(t, !memcmp(cpu.logits, late.logits,
					  sizeof(float) * (size_t)(cpu.g.num_tokens * cpu.vocab)));
			close_fixture(&late);
		}
		close_fixture(&cpu);
	}
}

/* Opens a random model with experts and the widest rows that moe takes; one layer, and 8 tokens. */
static int open_wide(struct cairn_test *t, struct fixture *f)
{
	static const int32_t tokens[8] = { 1, 7, 30, 3, 3, 9, 27, 0 };
	struct cairn_model_config c;
	void *p;

	memset(f, 0, sizeof(*f));
	f->g.tokens = tokens;
	f->g.num_tokens = ARRAY_SIZE(tokens);
	if (open_table(t, "cpu", &f->impl) || !EXPECT(t, cairn_model_shape("mixtral-8x7b", &c) == 0))
		return -1;
	c.hidden_size = 8192;
	c.intermediate_size = c.experts.intermediate_size = 64;
	c.num_hidden_layers = c.num_key_value_heads = 1;
	c.num_attention_heads = 2;
	c.vocab_size = f->vocab = 32;
	c.experts.num_experts = 3;
	if (!EXPECT(t, cairn_model_random(&f->m, &f->impl, &c, 7) == 0))
		return -1;
	f->logits = malloc(sizeof(float) * ARRAY_SIZE(tokens) * 32);
	if (!EXPECT(t, cairn_kv_store_create(&f->kv, f->m, MAX_PAGES, PAGE_SIZE) == 0) ||
	    !EXPECT(t, cairn_scratch_create(&f->s, f->m, f->g.num_tokens, f->g.num_tokens) == 0) ||
	    !EXPECT(t, f->impl.stream_create(&f->stream) == 0) ||
	    !EXPECT(t, f->impl.mem_alloc(&p, sizeof(float) * ARRAY_SIZE(tokens) * 32) == 0))
		return -1;
	f->dev_logits = p;
	if (!EXPECT(t, f->impl.mem_alloc(&p, sizeof(int32_t) *
					 (INDEX_IDS + 2 * ARRAY_SIZE(tokens) + 1)) == 0))
		return -1;
	f->index = p;
	return 0;
}

/* A few wide rows exceed one call of moe; on cpu the bits are those of one row at a time. */
static void wide_rows_in_parts(struct cairn_test *t)
{
	float at_once[8 * 32];
	struct fixture f;

	if (!open_wide(t, &f) && EXPECT(t, run_pass(&f, 0, 8) == 0)) {
		memcpy(at_once, f.logits, sizeof(at_once));
		for (int i = 0; i < 8; i++)
			EXPECT(t, run_pass(&f, i, 1) == 0);
		EXPECT(t, !memcmp(at_once, f.logits, sizeof(at_once)));
	}
	close_fixture(&f);
}

static int forward(struct fixture *f, const struct cairn_batch *b)
{
	int moved;

	CAIRN_TRY(cairn_scratch_reserve(f->s, &f->kv, b, f->stream, &moved));
	CAIRN_TRY(cairn_forward(f->s, &f->kv, b, f->stream));
	return f->impl.stream_sync(f->stream);
}

/*
 * The states that a pass keeps are those from which it computes its logits, also if no logits are wanted; a
 * pass that is given the embeddings as inputs has the same logits.
 */
static void keeps_states(struct cairn_test *t, const char *name)
{
	enum { ROWS = 20, MOST = 192 };
	static uint16_t states[2][ROWS * MOST], normed[2][ROWS * MOST], inputs[ROWS * MOST];
	static float logits[ROWS * MOST], again[ROWS * MOST];
	struct cairn_gemm_args gemm = {
		.size = sizeof(gemm), .out = logits, .a = normed[0], .m = ROWS, .dtype = CAIRN_BF16,
		.out_dtype = CAIRN_F32,
	};
	const char *embed;
	struct cairn_batch b;
	struct fixture f;

	if (!open_checkpoint(t, &f, "cpu", name, 0) &&
	    !load_fixture(t, &f, f.g.dir, 0, CAIRN_WEIGHTS_PLAIN) &&
	    EXPECT(t, f.vocab <= MOST && f.m->config.hidden_size <= MOST) &&
	    EXPECT(t, prepare_pass(&f, 0, ROWS, &b) == 0)) {
		const size_t row = (size_t)f.m->config.hidden_size * 2;

		b.states = (char *)states[0];
		b.normed = (char *)normed[0];
		EXPECT(t, forward(&f, &b) == 0);
		gemm.b = cairn_model_weight(f.m, 0, CAIRN_W_LM_HEAD);
		gemm.n = f.vocab;
		gemm.k = f.m->config.hidden_size;
		EXPECT(t, f.impl.gemm(&gemm, f.stream) == 0 && f.impl.stream_sync(f.stream) == 0);
		EXPECT(t, !memcmp(logits, f.dev_logits, sizeof(float) * (size_t)(ROWS * f.vocab)));
		embed = cairn_model_weight(f.m, 0, CAIRN_W_EMBED);
		for (int i = 0; i < ROWS; i++)
			memcpy((char *)inputs + (size_t)i * row, embed + (size_t)f.g.tokens[i] * row, row);
		b.inputs = (char *)inputs;
		b.logits = again;
		b.states = (char *)states[1];
		b.normed = (char *)normed[1];
		EXPECT(t, forward(&f, &b) == 0);
		EXPECT(t, !memcmp(logits, again, sizeof(float) * (size_t)(ROWS * f.vocab)));
		memset(states[1], 0xff, sizeof(states[1]));
		b.num_logits = 0;
		EXPECT(t, forward(&f, &b) == 0 && !memcmp(states[0], states[1], ROWS * row) &&
			  !memcmp(normed[0], normed[1], ROWS * row));
	}
	close_fixture(&f);
}

/* Models whose last half layer is added by the last norm, and by the experts. */
static void states_kept(struct cairn_test *t)
{
	keeps_states(t, "llama3_tiny");
	keeps_states(t, "deepseek_v3_tiny");
}

static const struct cairn_unit units[] = {
	{ "reference_is_transformers", reference_is_transformers },
	EACH(LIST_HOST)
	EACH(LIST_CUDA)
	{ "two_eps_cpu", two_eps_cpu }, { "two_eps_cuda", two_eps_cuda },
	{ "workspaces_as_asked", workspaces_as_asked },
	{ "covered_cpu", covered_cpu }, { "covered_cuda", covered_cuda },
	{ "layers_share_a_plan", layers_share_a_plan },
	{ "graph_is_eager", graph_is_eager_cuda },
	{ "graph_is_eager_late", graph_is_eager_late },
	{ "late_is_cpu", late_is_cpu },
	{ "wide_rows_in_parts", wide_rows_in_parts },
	{ "states_kept", states_kept },
};

const struct cairn_family cairn_forward_family = {
	.stage = "serving",
	.name = "forward",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 70,
};
