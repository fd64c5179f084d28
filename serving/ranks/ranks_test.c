// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_test - tensor parallelism: shares of weights, tokens of one and of several ranks, failures
 *
 * Partial sums are rounded at other places than in one rank, so logits differ in their last bits. Where one
 * logit is clearly the largest, as in the arithmetic that the embedded model has learnt, tokens are the same.
 */
#include "conformance/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/suite/spawn.h"
#include "conformance/suite/threads.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/engine/engine.h"
#include "serving/ranks/ranks.h"

#define OUT	16384

#define LOAD(m, impl, dir, rank, ranks) \
	cairn_model_load_rank(m, impl, dir, rank, ranks, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL, NULL)
#define RANDOM(m, impl, config, ranks, weights) \
	cairn_model_random_rank(m, impl, config, ranks, weights, CAIRN_KV_PLAIN, 1)

/* ---- shares of weights ---- */

static const char *embedded(char *path, size_t len)
{
	snprintf(path, len, "%s/serving/embedded", cairn_data_dir());
	return path;
}

/* Returns whether a rank's matrix consists of the given rows and columns of the whole one. */
static int is_part(const uint16_t *part, const uint16_t *whole, int32_t rows, int32_t cols, int32_t first_row,
		   int32_t first_col, int32_t whole_cols)
{
	int same = 1;

	for (int32_t i = 0; i < rows; i++)
		same &= !memcmp(part + (size_t)i * (size_t)cols,
				whole + (size_t)(first_row + i) * (size_t)whole_cols + first_col,
				(size_t)cols * sizeof(*part));
	return same;
}

static void check_share(struct cairn_test *t, const struct cairn_model *whole, const struct cairn_model *m,
			int32_t layer)
{
	const int32_t *d = m->dims, *w = whole->dims, hidden = d[CAIRN_D_HIDDEN], r = m->rank;
	const int32_t q = d[CAIRN_D_Q], kv = d[CAIRN_D_KV], inter = d[CAIRN_D_INTER];
	const uint16_t *qkv = cairn_model_weight(m, layer, CAIRN_W_QKV);
	const uint16_t *all = cairn_model_weight(whole, layer, CAIRN_W_QKV);
	const uint16_t *up = cairn_model_weight(m, layer, CAIRN_W_GATE_UP);
	const uint16_t *all_up = cairn_model_weight(whole, layer, CAIRN_W_GATE_UP);

	EXPECT(t, is_part(qkv, all, q, hidden, r * q, 0, hidden));
	EXPECT(t, is_part(qkv + q * hidden, all, kv, hidden, w[CAIRN_D_Q] + r * kv, 0, hidden));
	EXPECT(t, is_part(qkv + (q + kv) * hidden, all, kv, hidden, w[CAIRN_D_Q] + w[CAIRN_D_KV] + r * kv, 0,
			  hidden));
	EXPECT(t, is_part(up, all_up, inter, hidden, r * inter, 0, hidden));
	EXPECT(t, is_part(up + inter * hidden, all_up, inter, hidden, w[CAIRN_D_INTER] + r * inter, 0,
			  hidden));
	EXPECT(t, is_part(cairn_model_weight(m, layer, CAIRN_W_O),
			  cairn_model_weight(whole, layer, CAIRN_W_O), hidden, q, 0, r * q, w[CAIRN_D_Q]));
	EXPECT(t, is_part(cairn_model_weight(m, layer, CAIRN_W_DOWN),
			  cairn_model_weight(whole, layer, CAIRN_W_DOWN), hidden, inter, 0, r * inter,
			  w[CAIRN_D_INTER]));
	EXPECT(t, is_part(cairn_model_weight(m, layer, CAIRN_W_MLP_NORM),
			  cairn_model_weight(whole, layer, CAIRN_W_MLP_NORM), 1, hidden, 0, 0, hidden));
}

static void shares(struct cairn_test *t)
{
	struct cairn_model *whole = NULL, *m = NULL;
	struct cairn_impl impl;
	char dir[512];

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	if (!EXPECT(t, cairn_model_load(&whole, &impl, embedded(dir, sizeof(dir)), NULL, NULL) == 0))
		return;
	for (int32_t r = 0; r < 2; r++) {
		if (!EXPECT(t, LOAD(&m, &impl, dir, r, 2) == 0))
			break;
		EXPECT(t, m->config.num_attention_heads == 2 && m->config.num_key_value_heads == 1);
		EXPECT(t, m->config.intermediate_size == 160 && m->config.hidden_size == 256);
		for (int32_t layer = 0; layer < m->config.num_hidden_layers; layer++)
			check_share(t, whole, m, layer);
		EXPECT(t, is_part(cairn_model_weight(m, 0, CAIRN_W_EMBED),
				  cairn_model_weight(whole, 0, CAIRN_W_EMBED), 512, 256, 0, 0, 256));
		cairn_model_free(m);
	}
	m = NULL;
	EXPECT(t, RANDOM(&m, &impl, &whole->config, 2, CAIRN_WEIGHTS_PLAIN) == 0);
	EXPECT(t, m && m->dims[CAIRN_D_QKV] == whole->dims[CAIRN_D_QKV] / 2 &&
	       m->dims[CAIRN_D_INTER] == 160);
	cairn_model_free(m);
	EXPECT(t, RANDOM(&m, &impl, &whole->config, 3, CAIRN_WEIGHTS_PLAIN) == -EOPNOTSUPP);
	EXPECT(t, LOAD(&m, &impl, dir, 0, 3) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "num_attention_heads: 4 is not divisible among 3 ranks");
	EXPECT(t, LOAD(&m, &impl, dir, 2, 2) == -EINVAL);
	cairn_model_free(whole);
}

/* Sizes that cannot be divided are refused by name. */
static void refused(struct cairn_test *t)
{
	struct cairn_model_config c;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	char dir[512];

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	snprintf(dir, sizeof(dir), "%s/serving/golden/qwen3_moe_tiny", cairn_data_dir());
	EXPECT(t, cairn_model_config_load(dir, &c) == 0);
	c.num_attention_heads = 6;
	c.num_key_value_heads = 3;
	c.intermediate_size = 96;
	EXPECT(t, RANDOM(&m, &impl, &c, 3, CAIRN_WEIGHTS_PLAIN) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(),
			"moe_intermediate_size: experts of 64 columns are not divisible among 3 ranks");
	c.num_attention_heads = 4;
	c.num_key_value_heads = 2;
	c.intermediate_size = 48;
	EXPECT(t, RANDOM(&m, &impl, &c, 2, CAIRN_WEIGHTS_FP8) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(),
			"intermediate_size: is 24 in the share of one of 2 ranks, must be a multiple of 16");
}

/* ---- tokens ---- */

static int generate(char *out, const char *impl, const char *tp, const char *prompt, const char *option,
		    const char *value)
{
	char *argv[] = { "cairn", "generate", "--impl", (char *)impl, "--tp", (char *)tp, "--prompt",
			 (char *)prompt, (char *)option, (char *)value, NULL };

	return cairn_spawn(argv, out, OUT);
}

static void tokens(struct cairn_test *t, const char *impl, const char *option, const char *value)
{
	static const char *const prompts[] = {
		"What is 55 - 8?\n", "What is 12 + 30?\n", "What is 7 + 6?\n", "What is 90 - 41?\n",
	};
	static const char *const answers[] = { "\n47\n", "\n42\n", "\n13\n", "\n49\n" };
	char out[OUT];

	for (size_t i = 0; i < ARRAY_SIZE(prompts); i++) {
		if (!EXPECT(t, generate(out, impl, "2", prompts[i], option, value) == 0))
			cairn_note(t, "%s", out);
		EXPECT_CONTAINS(t, out, answers[i]);
	}
}

static void tokens_cpu(struct cairn_test *t)
{
	tokens(t, "cpu", NULL, NULL);
	tokens(t, "cpu", "--weights", "fp8");
}

/* Several requests, runs that must be equal, prompts in chunks, and passes in flight. */
static void tokens_batch(struct cairn_test *t)
{
	char *argv[] = { "cairn", "generate", "--impl", "cpu", "--tp", "2", "--prompt-tokens", "37",
			 "--batch", "3", "--repeat", "2", "--prefill-rows", "16", "--max-new-tokens", "20",
			 "--ignore-eos", "--temperature", "1", NULL };
	char out[OUT];

	if (!EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0))
		cairn_note(t, "%s", out);
	EXPECT(t, !strstr(out, "different tokens"));
}

static void bad_options(struct cairn_test *t)
{
	char out[OUT];

	EXPECT(t, generate(out, "cpu", "3", "x", NULL, NULL) == 2);
	EXPECT_CONTAINS(t, out, "num_attention_heads: 4 is not divisible among 3 ranks");
	EXPECT(t, generate(out, "cpu", "9", "x", NULL, NULL) == 2);
	EXPECT_CONTAINS(t, out, "--tp");
	EXPECT(t, generate(out, "ref", "2", "x", "--decode", "graph") == 2);
	EXPECT_CONTAINS(t, out, "the table has no operation decode_step_ranks");
	EXPECT(t, generate(out, "cpu", "2", "x", "--collective-timeout", "0") == 2);
	EXPECT_CONTAINS(t, out, "--collective-timeout");
}

/* ---- failures ---- */

struct lives {
	struct cairn_tp *tp;
	const struct cairn_engine_tap *tap;
	void *ctx;
};

static const struct cairn_worker_options small = {
	.max_batch = 1, .max_rows = 1, .max_context = 16, .num_pages = 1, .page_size = 16,
};

static const struct cairn_tiers_options no_tiers;

/* Forks a group of two. The other rank runs body and ends. */
static int open_group(struct cairn_test *t, struct lives *l, void (*body)(struct cairn_tp *tp))
{
	if (!EXPECT(t, cairn_tp_fork(&l->tp, 2, NULL, 60000) == 0))
		return 0;
	if (cairn_tp_rank(l->tp)) {
		body(l->tp);
		_exit(0);
	}
	l->tap = cairn_tp_tap(l->tp);
	l->ctx = l->tap->worker.ctx;
	return 1;
}

static void ends(struct cairn_tp *tp)
{
	(void)tp;
}

static void is_killed(struct cairn_tp *tp)
{
	(void)tp;
	raise(SIGKILL);
}

/* A rank that has ended is noticed at the next message, by its number. */
static void rank_ends(struct cairn_test *t)
{
	void (*const bodies[])(struct cairn_tp *tp) = { ends, is_killed };
	struct lives l;

	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
		if (!open_group(t, &l, bodies[i]))
			return;
		EXPECT(t, l.tap->create(l.ctx, &small, &no_tiers) == -ECONNRESET);
		EXPECT_CONTAINS(t, cairn_last_error(), "rank 1 has ended");
		cairn_tp_close(l.tp);
	}
}

static void loads_and_follows(struct cairn_tp *tp)
{
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	char dir[512];

	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	if (!cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0) &&
	    !cairn_model_load(&m, &impl, embedded(dir, sizeof(dir)), NULL, NULL) &&
	    cairn_tp_follow(tp, m, NULL, NULL))
		cairn_tp_fail(tp);
}

/* A rank whose tokens differ ends the group, with both tokens in the text. */
static void other_tokens(struct cairn_test *t)
{
	const int32_t id = 5, page = 0, wrong = -1;	/* no rank draws this */
	const struct cairn_sampling greedy = { .top_p = 1 };
	const struct cairn_worker_part part = { .ids = &id, .follows = -1, .num_rows = 1, .pages = &page,
						.num_pages = 1, .draw = &greedy };
	const struct cairn_worker_result result = { .tokens = &wrong, .num_tokens = 1 };
	struct lives l;

	if (!open_group(t, &l, loads_and_follows))
		return;
	EXPECT(t, l.tap->create(l.ctx, &small, &no_tiers) == 0);
	l.tap->worker.add(l.ctx, &part);
	EXPECT(t, l.tap->worker.launch(l.ctx) == 0);
	EXPECT(t, l.tap->worker.collect(l.ctx, &result) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "rank 1 drew ");
	EXPECT_CONTAINS(t, cairn_last_error(), "rank 0 drew -1");
	cairn_tp_close(l.tp);
}

/* A plan that the rank refuses ends it, and rank 0 says why. */
static void refused_plan(struct cairn_test *t)
{
	const int32_t id = 5, page = 1;		/* there is only page 0 */
	const struct cairn_worker_part part = { .ids = &id, .follows = -1, .num_rows = 1, .pages = &page,
						.num_pages = 1 };
	const struct cairn_worker_result result = { .num_tokens = 0 };
	struct lives l;

	if (!open_group(t, &l, loads_and_follows))
		return;
	EXPECT(t, l.tap->create(l.ctx, &small, &no_tiers) == 0);
	l.tap->worker.add(l.ctx, &part);
	EXPECT(t, l.tap->worker.launch(l.ctx) == 0);
	EXPECT(t, l.tap->worker.collect(l.ctx, &result) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "pass 1: collect: rank 1 has failed: plan: pages: 1");
	cairn_tp_close(l.tp);
}

static int start_table(struct cairn_tp *tp, struct cairn_impl *impl)
{
	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	CAIRN_TRY(cairn_impl_open("cpu", impl));
	CAIRN_TRY(cairn_impl_start(impl, 0));
	return cairn_tp_table(tp, impl, "");
}

static void is_stopped(struct cairn_tp *tp)
{
	struct cairn_impl impl;

	if (!start_table(tp, &impl))
		raise(SIGSTOP);
}

/* A rank that has been stopped is noticed long before the time-out of messages, which is a minute here. */
static void rank_stops(struct cairn_test *t)
{
	const int64_t start = cairn_clock_ns();
	struct cairn_impl impl;
	struct lives l;

	if (!open_group(t, &l, is_stopped) || !EXPECT(t, start_table(l.tp, &impl) == 0))
		return;
	EXPECT(t, cairn_tp_beat(l.tp) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), "beat: rank 1 has been stopped");
	EXPECT(t, cairn_clock_ns() - start < (int64_t)30 * 1000000000);
	cairn_tp_close(l.tp);
}

static int pid_of_rank[2];	/* a pipe */

static void tells_and_follows(struct cairn_tp *tp)
{
	const pid_t self = getpid();
	struct cairn_impl impl;
	struct cairn_model *m = NULL;
	char dir[512];

	if (write(pid_of_rank[1], &self, sizeof(self)) != sizeof(self) || start_table(tp, &impl) ||
	    cairn_model_load(&m, &impl, embedded(dir, sizeof(dir)), NULL, NULL) ||
	    cairn_tp_follow(tp, m, NULL, NULL))
		cairn_tp_fail(tp);
}

/* A rank that is stopped and continued at once, again and again, does not end the group. */
static void rank_is_continued(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct lives l;
	pid_t other;

	if (!EXPECT(t, !pipe(pid_of_rank)) || !open_group(t, &l, tells_and_follows) ||
	    !EXPECT(t, read(pid_of_rank[0], &other, sizeof(other)) == sizeof(other)) ||
	    !EXPECT(t, start_table(l.tp, &impl) == 0))
		return;
	EXPECT(t, l.tap->create(l.ctx, &small, &no_tiers) == 0);
	for (int i = 0; i < 50; i++) {
		EXPECT(t, !kill(other, SIGSTOP) && !kill(other, SIGCONT));
		EXPECT(t, cairn_tp_beat(l.tp) == 0);
	}
	cairn_tp_close(l.tp);
	close(pid_of_rank[0]);
	close(pid_of_rank[1]);
}

static const struct cairn_unit units[] = {
	{ "shares", shares },
	{ "refused", refused },
	{ "tokens_cpu", tokens_cpu },
	{ "tokens_batch", tokens_batch },
	{ "bad_options", bad_options },
	{ "rank_ends", rank_ends },
	{ "other_tokens", other_tokens },
	{ "refused_plan", refused_plan },
	{ "rank_stops", rank_stops },
	{ "rank_is_continued", rank_is_continued },
};

const struct cairn_family cairn_ranks_family = {
	.stage = "serving", .name = "ranks",
	.units = units, .num_units = ARRAY_SIZE(units),
};
