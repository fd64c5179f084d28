// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_model_test - models of each kind give the log-probabilities and tokens of the whole model
 *
 * A prompt is scored and continued by an engine with ranks and by one without. The weights are random, so an
 * error anywhere in a share changes every number. Two runs with ranks must give the same bits.
 */
#include <sys/mman.h>

#include "conformance/harness.h"
#include "serving/ranks/ranks_gpus_test.h"
#include "serving/ranks/ranks_model_test.h"

/* Blocks that are not those of the whole matrix have other scales, so codes are rounded elsewhere. */
#define CLOSE_IN_OWN_BLOCKS	1

/* What a run of one process has scored, in memory that processes share. */
struct run {
	struct scored scored;
	int64_t fused_steps;
	int ret;
};

/*
 * Scores by ranks or as a whole. A run on GPUs is a process of its own, because CUDA does not survive a fork.
 */
static int score_run(struct cairn_test *t, const struct shared *s, const char *dir, const int32_t *tokens,
		     int is_whole, struct scored *to)
{
	struct shared own = *s;
	struct run *run;
	pid_t pid;
	int ret;

	if (!s->cuda)
		return is_whole ? score_whole(s, dir, tokens, to) : score_shared(t, s, dir, tokens, NULL, to);
	run = mmap(NULL, sizeof(*run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!EXPECT(t, run != MAP_FAILED))
		return -ENOMEM;
	run->ret = -ECHILD;
	own.fused_steps = &run->fused_steps;
	pid = fork();
	if (!pid) {
		run->ret = is_whole ? score_whole(&own, dir, tokens, &run->scored) :
				      score_shared(t, &own, dir, tokens, NULL, &run->scored);
		if (run->ret)
			fprintf(stderr, "%s\n", cairn_last_error());
		_exit(0);
	}
	EXPECT(t, pid > 0 && waitpid(pid, NULL, 0) == pid);
	ret = run->ret;
	*to = run->scored;
	if (!is_whole)
		*s->fused_steps = run->fused_steps;
	munmap(run, sizeof(*run));
	return ret;
}

/* Returns whether the tokens drawn at random are the same, too, as far as that can be expected. */
static int compare(struct cairn_test *t, const struct shared *s, const char *dir, const int32_t *tokens)
{
	struct scored whole, shared, again;

	EXPECT(t, score_run(t, s, dir, tokens, 0, &shared) == 0);
	EXPECT(t, score_run(t, s, dir, tokens, 0, &again) == 0);
	EXPECT(t, score_run(t, s, dir, tokens, 1, &whole) == 0);
	EXPECT(t, !memcmp(&shared, &again, sizeof(shared)));
	for (int i = 1; i < NUM; i++)
		EXPECT(t, whole.prompt[i] < 0 && isfinite(shared.prompt[i]));
	if (!EXPECT(t, agree(s, &whole, &shared)))
		cairn_note(t, "%s, %d ranks: logprobs differ by %g, %d tokens are the same",
			   s->name ? s->name : "crafted", s->ranks, (double)apart(&whole, &shared),
			   same_tokens(&whole, &shared));
	return s->close == CLOSE_IN_OWN_BLOCKS || same_drawn(&whole, &shared);
}

/*
 * A number drawn at random may be so close to the limit between two tokens that the rounding decides. That
 * happens to one answer in 15; with wrong logits nearly all answers would differ.
 */
static void run_all(struct cairn_test *t, const struct shared *all, int num)
{
	int32_t tokens[NUM];
	char dir[PATH_MAX];
	int same = 0;

	write_prompt(tokens);
	for (int i = 0; i < num; i++)
		same += !write_model(t, &all[i], dir) && compare(t, &all[i], dir, tokens);
	if (!EXPECT(t, 2 * same >= num - 1))
		cairn_note(t, "%d of %d answers were drawn the same", same, num);
}

/*
 * Partial sums are rounded to the model's dtype, which moves the output of each half layer by as much as its
 * own rounding. The largest difference seen is half of each bound. A bias that is added twice changes
 * log-probabilities of the crafted model by 0.18.
 */
static void dense(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .ranks = 2, .close = 0.001f },
		{ .name = "gemma2_tiny", .ranks = 2, .close = 0.05f },
		/* four ranks, but two KV heads, or one */
		{ .name = "llama3_tiny", .ranks = 4, .close = 0.05f },
		{ .name = "qwen3_tiny", .ranks = 4, .close = 0.05f },
		{ .name = "llama3_tiny", .ranks = 2, .close = 0.05f, .kv = CAIRN_KV_FP8 },
	};

	run_all(t, all, ARRAY_SIZE(all));
}

/* Steps that decode are one operation, which rounds at other places than a list does. */
static void run_fused(struct cairn_test *t, int cuda)
{
	int64_t steps[2] = { 0 };
	const struct shared all[] = {
		{ .name = "llama3_tiny", .ranks = 2, .close = 0.05f, .cuda = cuda, .fused_steps = &steps[0] },
		{ .name = "longrope_tiny", .ranks = 2, .close = 0.05f, .cuda = cuda,
		  .fused_steps = &steps[1] },
	};

	run_all(t, all, ARRAY_SIZE(all));
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		EXPECT(t, steps[i] > 0);
}

static void fused(struct cairn_test *t)
{
	run_fused(t, 0);
}

static void fused_cuda(struct cairn_test *t)
{
	if (has_gpus(1))
		run_fused(t, 1);
	else
		cairn_skip(t, "needs a GPU");
}

static void experts(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "mixtral_tiny", .ranks = 2, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) } },
		/* shares of 32 and 16 columns, padded to 64 */
		{ .name = "qwen3_moe_tiny", .ranks = 2, .close = 0.05f, .edits = { ALL_EXPERTS(3, 8) } },
		{ .name = "qwen3_moe_tiny", .ranks = 4, .close = 0.05f, .edits = { ALL_EXPERTS(3, 8) } },
		{ .name = "gpt_oss_tiny", .ranks = 2, .close = 0.05f, .edits = { ALL_EXPERTS(4, 8) } },
	};

	run_all(t, all, ARRAY_SIZE(all));
}

static void latent(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "deepseek_tiny", .ranks = 2, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) } },
		{ .name = "deepseek_q_tiny", .ranks = 4, .close = 0.05f, .edits = { ALL_EXPERTS(3, 8) } },
		{ .name = "deepseek_v3_tiny", .ranks = 2, .close = 0.05f,
		  .edits = { ALL_EXPERTS(4, 16), ALL_GROUPS(2, 4) } },
		{ .name = "deepseek_v2_group_tiny", .ranks = 2, .close = 0.05f,
		  .edits = { ALL_EXPERTS(3, 16), ALL_GROUPS(2, 4) } },
	};

	run_all(t, all, ARRAY_SIZE(all));
}

/* With plain weights a checkpoint in block fp8 has the same values on all ranks. */
static void eight_bits(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "llama3_tiny", .ranks = 2, .close = 0.05f, .weights = CAIRN_WEIGHTS_FP8 },
		{ .name = "qwen3_moe_tiny", .ranks = 4, .close = 0.05f, .weights = CAIRN_WEIGHTS_FP8,
		  .edits = { ALL_EXPERTS(3, 8) } },
		{ .name = "deepseek_v3_fp8_tiny", .ranks = 2, .close = 0.05f, .weights = CAIRN_WEIGHTS_FP8,
		  .edits = { ALL_EXPERTS(2, 8) } },
		{ .name = "qwen3_moe_tiny", .ranks = 2, .close = 0.1f, .kv = CAIRN_KV_FP8,
		  .weights = CAIRN_WEIGHTS_FP8_BLOCKS, .edits = { ALL_EXPERTS(3, 8) } },
		{ .name = "deepseek_v3_fp8_tiny", .ranks = 2, .close = 0.05f,
		  .edits = { ALL_EXPERTS(2, 8) } },
		{ .name = "deepseek_v3_fp8_tiny", .ranks = 4, .close = 0.05f,
		  .edits = { ALL_EXPERTS(2, 8) } },
		{ .name = "deepseek_v3_fp8_tiny", .ranks = 2, .close = CLOSE_IN_OWN_BLOCKS,
		  .weights = CAIRN_WEIGHTS_FP8_BLOCKS, .edits = { ALL_EXPERTS(2, 8) } },
	};

	run_all(t, all, ARRAY_SIZE(all));
}

#define EXPERTS_OF_192	{ "\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 192" }
#define AWQ_64		"\"quant_method\": \"awq\", \"group_size\": 64"
#define GPTQ_ROWS	"\"quant_method\": \"gptq\", \"group_size\": -1"

static void four_bits(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "qwen3_awq_tiny", .ranks = 2, .close = 0.05f, .weights = CAIRN_WEIGHTS_W4 },
		{ .name = "qwen3_awq_tiny", .ranks = 4, .close = 0.05f },
		/* two groups of 32, which more ranks cannot share: the experts of these are widened */
		{ .name = "gpt_oss_mxfp4_tiny", .ranks = 2, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) } },
		{ .name = "gpt_oss_mxfp4_tiny", .ranks = 4, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) } },
		/* experts of three groups: one for the first rank, and two for the second */
		{ .name = "qwen3_moe_tiny", .ranks = 2, .close = 0.05f, .kind = "awq64", .inter = 192,
		  .edits = { ALL_EXPERTS(3, 8), EXPERTS_OF_192,
			     { RECIPE_STORED("qwen3_moe", AWQ_64) } } },
		/* a scale for a row, and 32 columns of experts for each rank, padded to 64 */
		{ .name = "qwen3_moe_tiny", .ranks = 2, .close = 0.05f, .kind = "gptq0",
		  .edits = { ALL_EXPERTS(3, 8),
			     { RECIPE_STORED("qwen3_moe", GPTQ_ROWS) } } },
		{ .name = "qwen3_moe_tiny", .ranks = 2, .close = 0.05f, .kind = "v16",
		  .edits = { ALL_EXPERTS(3, 8), { RECIPE_STORED("qwen3_moe", RECIPE_NVFP4) } } },
	};

	run_all(t, all, ARRAY_SIZE(all));
}

/*
 * An engine of ranks whose passes run as nano-batches gives the bits of one whose passes do not. Ranks with
 * other plans than rank 0 would make their collectives in another order, and are refused.
 */
static void nano_batches(struct cairn_test *t)
{
	static const struct cairn_nano_plan plan[] = {
		{ .num_batches = 3, .num_lanes = 3, .rows = { 2, 1, 1 }, .decodes = { 1, 1, 1 } },
	};
	static const struct cairn_nano_plans plans = { .plans = plan, .num = 1, .digest = 5 };
	int64_t steps = 0;
	struct shared all[] = {
		{ .name = "llama3_tiny", .ranks = 2 }, { .name = "deepseek_q_tiny", .ranks = 4 },
	};
	struct scored want, got;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	write_prompt(tokens);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		if (write_model(t, &all[i], dir) ||
		    !EXPECT(t, score_shared(t, &all[i], dir, tokens, NULL, &want) == 0))
			continue;
		all[i].nano = &plans;
		all[i].nano_steps = &steps;
		EXPECT(t, score_shared(t, &all[i], dir, tokens, NULL, &got) == 0);
		EXPECT(t, same(&want, &got) && steps > 1);
	}
	all[0].other_plans = 2;
	EXPECT(t, score_shared(t, &all[0], dir, tokens, NULL, &got) < 0);
	EXPECT_CONTAINS(t, cairn_last_error(), "plans of nano-batches: rank 0 has 0000000000000005");
	all[0].other_plans = 0;
	all[0].context = CAIRN_EXCHANGE_HEADS;
	EXPECT(t, score_shared(t, &all[0], dir, tokens, NULL, &got) == -EOPNOTSUPP);
}

static const struct cairn_unit units[] = {
	{ "four_bits", four_bits }, { "nano_batches", nano_batches },
	{ "dense", dense }, { "fused", fused }, { "fused_cuda", fused_cuda },
	{ "experts", experts }, { "latent", latent }, { "eight_bits", eight_bits },
};

const struct cairn_family cairn_ranks_model_family = {
	.stage = "serving", .name = "ranks_model",
	.units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 6,
};
