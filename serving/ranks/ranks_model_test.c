// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_model_test - models of each kind that can be shared give the log-probabilities of the whole model
 *
 * A prompt is scored by an engine with ranks and by one without. The weights are random, so that a share that
 * is wrong anywhere changes every number.
 */
#include "conformance/harness.h"

#include <math.h>

#include "conformance/suite/threads.h"
#include "serving/engine/engine.h"
#include "serving/model/model_test.h"
#include "serving/ranks/ranks.h"

#define NUM	24	/* tokens of the prompt */

struct shared {
	const char *name;		/* a golden checkpoint; NULL: the crafted one, with all biases */
	int ranks;
	enum cairn_kv_form kv;
	/*
	 * Partial sums are rounded to the model's dtype, which moves the output of each half layer by as much
	 * as its own rounding. The largest difference seen is a third of this; a bias that is added twice
	 * changes log-probabilities of the crafted model by 0.18.
	 */
	float close;
};

static void take_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	if (position < NUM)
		((float *)ctx)[position] = token->logprob;
}

static int score(struct cairn_model *m, struct cairn_tp *tp, const int32_t *tokens, float *logprobs)
{
	const struct cairn_engine_options eo = { .max_batch = NUM, .max_rows = 64, .max_context = 64,
						 .tap = tp ? cairn_tp_tap(tp) : NULL };
	const struct cairn_request req = {
		.prompt = tokens, .num_prompt = NUM, .max_new_tokens = 1, .sampling = { .top_p = 1 },
		.prompt_logprobs = 1, .on_prompt = take_prompt, .ctx = logprobs,
	};
	struct cairn_engine *e = NULL;
	int ret = cairn_engine_create(&e, m, &eo);

	if (!ret)
		ret = cairn_engine_submit(e, &req);
	if (!ret)
		ret = cairn_engine_run(e);
	cairn_engine_destroy(e);
	return ret;
}

/* Loads the share of this rank. */
static int load(struct cairn_impl *impl, struct cairn_model **m, struct cairn_tp *tp, const char *dir,
		enum cairn_kv_form kv)
{
	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	CAIRN_TRY(cairn_impl_open("cpu", impl));
	CAIRN_TRY(cairn_impl_start(impl, 0));
	if (!tp)
		return cairn_model_load_as(m, impl, dir, CAIRN_WEIGHTS_PLAIN, kv, NULL, NULL);
	CAIRN_TRY(cairn_tp_table(tp, impl, ""));
	return cairn_model_load_rank(m, impl, dir, cairn_tp_rank(tp), cairn_tp_ranks(tp), kv, NULL, NULL);
}

static void be_other_rank(struct cairn_tp *tp, const char *dir, enum cairn_kv_form kv)
{
	struct cairn_model *m = NULL;
	struct cairn_impl impl;

	if (load(&impl, &m, tp, dir, kv) || cairn_tp_follow(tp, m))
		cairn_tp_fail(tp);
	_exit(0);
}

static void compare(struct cairn_test *t, const struct shared *s, const char *dir, const int32_t *tokens)
{
	float whole[NUM] = { 0 }, shared[NUM] = { 0 }, most = 0;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct cairn_tp *tp;

	if (!EXPECT(t, cairn_tp_fork(&tp, s->ranks, NULL, 60000) == 0))
		return;
	if (cairn_tp_rank(tp))
		be_other_rank(tp, dir, s->kv);
	EXPECT(t, load(&impl, &m, tp, dir, s->kv) == 0 && score(m, tp, tokens, shared) == 0);
	cairn_tp_close(tp);
	cairn_model_free(m);
	m = NULL;
	EXPECT(t, load(&impl, &m, NULL, dir, s->kv) == 0 && score(m, NULL, tokens, whole) == 0);
	cairn_model_free(m);
	for (int i = 1; i < NUM; i++) {
		EXPECT(t, whole[i] < 0 && isfinite(shared[i]));
		most = fmaxf(most, fabsf(whole[i] - shared[i]));
	}
	if (!EXPECT(t, most <= s->close))
		cairn_note(t, "%s, %d ranks: logprobs differ by %g", s->name ? s->name : "crafted", s->ranks,
			   (double)most);
}

static void run(struct cairn_test *t, const struct shared *s)
{
	int32_t tokens[NUM];
	char dir[PATH_MAX];
	struct golden g;

	for (int i = 0; i < NUM; i++)
		tokens[i] = (7 * i + 3) % 48;
	if (!s->name) {
		crafted_checkpoint(t, "float32", "F32", 0, dir);
		compare(t, s, dir, tokens);
	} else if (!open_golden(t, &g, s->name)) {
		compare(t, s, g.dir, tokens);
		close_golden(&g);
	}
}

static void biases(struct cairn_test *t)
{
	const struct shared s = { NULL, 2, CAIRN_KV_PLAIN, 0.02f };

	run(t, &s);
}

static void four_norms(struct cairn_test *t)
{
	const struct shared s = { "gemma2_tiny", 2, CAIRN_KV_PLAIN, 0.3f };

	run(t, &s);
}

/* Four ranks, but two KV heads, or one. */
static void repeated_heads(struct cairn_test *t)
{
	const struct shared two = { "llama3_tiny", 4, CAIRN_KV_PLAIN, 0.3f };
	const struct shared one = { "qwen3_tiny", 4, CAIRN_KV_PLAIN, 0.3f };

	run(t, &two);
	run(t, &one);
}

static void kv_fp8(struct cairn_test *t)
{
	const struct shared s = { "llama3_tiny", 2, CAIRN_KV_FP8, 0.3f };

	run(t, &s);
}

static const struct cairn_unit units[] = {
	{ "biases", biases }, { "four_norms", four_norms }, { "repeated_heads", repeated_heads },
	{ "kv_fp8", kv_fp8 },
};

const struct cairn_family cairn_ranks_model_family = {
	.stage = "serving", .name = "ranks_model",
	.units = units, .num_units = ARRAY_SIZE(units),
};
