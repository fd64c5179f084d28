/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_model_test - scores a prompt and continues it, by ranks and by one process; for the files
 * ranks_model_test.c, ranks_share_test.c, ranks_share_mutants_test.c and serving/pipeline
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RANKS_MODEL_TEST_H
#define CAIRN_RANKS_MODEL_TEST_H

#include <math.h>

#include "conformance/suite/threads.h"
#include "primitives/base/dtype.h"
#include "serving/engine/engine.h"
#include "serving/model/model_test.h"
#include "serving/ranks/ranks.h"

#define NUM	24	/* tokens of the prompt */
#define NEW	6	/* tokens of the answer */

struct shared {
	const char *name;		/* a golden checkpoint; NULL: the crafted one, with all biases */
	int ranks;
	enum cairn_exchange context;	/* ranks share rows, not weights; AUTO: they share weights */
	enum cairn_exchange too;	/* they share weights, and the rows of long passes */
	int stages;			/* ranks have layers of their own (serving/pipeline) */
	float close;			/* most that log-probabilities may differ by */
	enum cairn_kv_form kv;
	enum cairn_weights weights;
	int32_t page_size, max_rows, context_rows, context_keys;	/* of the engine; 0: the default */
	const struct cairn_nano_plans *nano;	/* of all ranks; NULL: none */
	uint64_t other_plans;		/* what the other ranks' digest differs by */
	int64_t *nano_steps;		/* gets how many steps ran as nano-batches; NULL: not wanted */
	int32_t stripes, num_pages;
	const char *edits[3][2];	/* what is replaced in config.json, and by what; NULL: nothing */
	/* matrices in 4 bits, and the size of experts (recipe_as()); NULL, 0: as the checkpoint has them */
	const char *kind;
	int inter;
	int late;			/* each rank's table is late, with an order of its own */
	int64_t *fused_steps;		/* steps may be one operation; gets how many were. NULL: lists */
	int cuda;			/* each rank has a GPU of its own, or all have the first one */
};

/* All experts are chosen, so that no rounding, on any machine, changes the choice. */
#define ALL_EXPERTS(chosen, all) \
	{ "\"num_experts_per_tok\": " #chosen, "\"num_experts_per_tok\": " #all }
#define ALL_GROUPS(chosen, all)	{ "\"topk_group\": " #chosen, "\"topk_group\": " #all }

/*
 * The answer has the most likely tokens; gap: by how much they are more likely than the second ones. `drawn`
 * are the tokens of another answer, drawn at temperature 1; with stripes, of two answers that share a page.
 */
struct scored {
	float prompt[NUM], logprobs[NEW], gap[NEW];
	int32_t tokens[NEW], drawn[NEW], second[NEW];
	int num, num_drawn, num_second;
};

/* Changes the model and the table of a rank, once both exist; NULL: no mutant. */
typedef void (*alter_fn)(struct cairn_model *m, struct cairn_impl *impl);

#define LOAD(m, impl, dir, s, rank) \
	cairn_model_load_rank(m, impl, dir, rank, (s)->ranks, (s)->weights, (s)->kv, NULL, NULL)

static inline size_t weight_bytes(const struct cairn_model *m, enum cairn_weight w)
{
	return m->elements[w] * cairn_dtype_bytes(m->dtype);
}

static inline void take_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	if (position < NUM)
		((struct scored *)ctx)->prompt[position] = token->logprob;
}

static inline int take_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct scored *s = ctx;

	(void)index;
	if (s->num < NEW) {
		s->tokens[s->num] = token->id;
		s->gap[s->num] = token->logprob - token->top_logprob[1];
		s->logprobs[s->num++] = token->logprob;
	}
	return 0;
}

static inline int take_drawn(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct scored *s = ctx;

	if (!index && s->num_drawn < NEW)
		s->drawn[s->num_drawn++] = token->id;
	if (index && s->num_second < NEW)
		s->second[s->num_second++] = token->id;
	return 0;
}

static inline int score(struct cairn_model *m, struct cairn_model *context, struct cairn_tp *tp,
			const struct shared *s, const int32_t *tokens, struct scored *to)
{
	const struct cairn_engine_options eo = {
		.max_batch = NUM, .max_rows = s->max_rows ? s->max_rows : 64, .max_context = 64,
		.page_size = s->page_size, .context_rows = s->context_rows, .context = context,
		.context_keys = s->context_keys, .chunk_rows = 16,
		.decode = s->fused_steps ? CAIRN_DECODE_AUTO : CAIRN_DECODE_UNFUSED,
		.stripes = tp && s->stripes, .num_pages = s->num_pages,
		.tap = tp ? cairn_tp_tap(tp) : NULL, .nano = s->nano,
	};
	const struct cairn_request req = {
		.prompt = tokens, .num_prompt = NUM, .max_new_tokens = NEW, .prompt_logprobs = 1,
		.sampling = { .top_p = 1, .num_logprobs = 1 + 2 }, .ignore_eos = 1, .on_prompt = take_prompt,
		.on_token = take_token, .ctx = to,
	};
	const struct cairn_request draws = {
		.id = 1, .prompt = tokens, .num_prompt = NUM, .max_new_tokens = NEW, .ignore_eos = 1,
		.num_seqs = 1 + s->stripes,
		.sampling = { .temperature = 1, .top_p = 0.9f, .top_k = 40, .seed = 1,
			      .repetition_penalty = 1.1f },
		.on_token = take_drawn, .ctx = to,
	};
	struct cairn_engine_stats stats;
	struct cairn_engine *e = NULL;
	int ret = cairn_engine_create(&e, m, &eo);

	memset(to, 0, sizeof(*to));
	if (!ret)
		ret = cairn_engine_submit(e, &req);
	if (!ret)
		ret = cairn_engine_submit(e, &draws);
	if (!ret)
		ret = cairn_engine_run(e);
	if (!ret)
		cairn_engine_stats(e, &stats);
	if (!ret && s->nano_steps)
		*s->nano_steps = stats.nano_steps;
	if (!ret && s->fused_steps && tp)
		*s->fused_steps = stats.fused_steps;
	cairn_engine_destroy(e);
	return ret;
}

/* Starts the table of a rank: cpu, cuda, or late as open_table() does. */
static inline int start_table(struct cairn_impl *impl, const struct shared *s, int rank)
{
	char path[PATH_MAX] = "cpu", seed[16];

	if (s->cuda) {
		CAIRN_TRY(cairn_impl_open("cuda", impl));
		return rank && !cairn_impl_start(impl, rank) ? 0 : cairn_impl_start(impl, 0);
	}
	if (s->late) {
		if (!cairn_beside("late_plugin.so", path, sizeof(path)))
			return cairn_error(ENODEV, "late_plugin.so is not next to the program");
		snprintf(seed, sizeof(seed), "%d", 3 + rank);
		setenv("CAIRN_LATE", seed, 1);
		setenv("CAIRN_LATE_OF", "cpu", 1);
	}
	CAIRN_TRY(cairn_impl_open(path, impl));
	return cairn_impl_start(impl, 0);
}

/* Loads the share of this rank, and in *context what it has for long passes; `alter` changes the latter. */
static inline int load(struct cairn_impl *impl, struct cairn_model **m, struct cairn_model **context,
		       struct cairn_tp *tp, const char *dir, const struct shared *s, alter_fn alter)
{
	const enum cairn_exchange exchange = s->context ? s->context : s->too;

	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	CAIRN_TRY(start_table(impl, s, tp ? cairn_tp_rank(tp) : 0));
	if (!tp)
		return cairn_model_load_as(m, impl, dir, s->weights, s->kv, NULL, NULL);
	CAIRN_TRY(cairn_tp_table(tp, impl, ""));
	if (s->stages)
		CAIRN_TRY(cairn_model_load_stage(m, impl, dir, cairn_tp_rank(tp), s->ranks, s->weights, s->kv,
						 NULL, NULL));
	else if (!s->context)
		CAIRN_TRY(LOAD(m, impl, dir, s, cairn_tp_rank(tp)));
	if (exchange)
		CAIRN_TRY(cairn_model_load_context(s->context ? m : context, impl, dir, cairn_tp_rank(tp),
						   s->ranks, exchange, s->weights, s->kv, NULL, NULL));
	if (alter)
		alter(s->too ? *context : *m, impl);
	return 0;
}

/* Returns the error that ends the run, or 0. */
static inline int score_shared(struct cairn_test *t, const struct shared *s, const char *dir,
			       const int32_t *tokens, alter_fn alter, struct scored *to)
{
	struct cairn_model *m = NULL, *context = NULL;
	struct cairn_nano_plans plans = { .num = 0 };
	struct cairn_impl impl;
	struct cairn_tp *tp;
	char why[512];
	int ret;

	if (!EXPECT(t, cairn_tp_fork(&tp, s->ranks, NULL, 60000) == 0))
		return 0;
	if (cairn_tp_rank(tp)) {
		if (s->nano)
			plans = *s->nano;
		plans.digest ^= s->other_plans;
		if (load(&impl, &m, &context, tp, dir, s, alter) ||
		    cairn_tp_follow(tp, m, context, s->nano ? &plans : NULL))
			cairn_tp_fail(tp);
		_exit(0);
	}
	ret = load(&impl, &m, &context, tp, dir, s, alter);
	if (!ret)
		ret = score(m, context, tp, s, tokens, to);
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	cairn_tp_close(tp);
	cairn_model_free(context);
	cairn_model_free(m);
	return ret ? cairn_error(-ret, "%s", why) : 0;		/* closing may have met other errors */
}

static inline int score_whole(const struct shared *s, const char *dir, const int32_t *tokens,
			      struct scored *to)
{
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	int ret = load(&impl, &m, NULL, NULL, dir, s, NULL);

	if (!ret)
		ret = score(m, NULL, NULL, s, tokens, to);
	cairn_model_free(m);
	return ret;
}

/* Returns how many tokens are the same until the first that is not. */
static inline int same_tokens(const struct scored *a, const struct scored *b)
{
	int n = 0;

	while (n < NEW && n < a->num && n < b->num && a->tokens[n] == b->tokens[n])
		n++;
	return n;
}

/* Returns the largest difference of log-probabilities, of the prompt and of the tokens that are the same. */
static inline float apart(const struct scored *a, const struct scored *b)
{
	float most = 0;

	for (int i = 1; i < NUM; i++)
		most = fmaxf(most, fabsf(a->prompt[i] - b->prompt[i]));
	for (int i = 0; i < same_tokens(a, b); i++)
		most = fmaxf(most, fabsf(a->logprobs[i] - b->logprobs[i]));
	return most;
}

/* Returns whether log-probabilities are close, and tokens the same wherever these decide. */
static inline int agree(const struct shared *s, const struct scored *whole, const struct scored *other)
{
	const int n = same_tokens(whole, other);

	return whole->num == NEW && other->num == NEW && apart(whole, other) <= s->close &&
	       (n == NEW || whole->gap[n] <= 2 * s->close);
}

static inline int same_drawn(const struct scored *a, const struct scored *b)
{
	return a->num_drawn == NEW && b->num_drawn == NEW && !memcmp(a->drawn, b->drawn, sizeof(a->drawn)) &&
	       a->num_second == b->num_second && !memcmp(a->second, b->second, sizeof(a->second));
}

/* Returns whether two runs have given all that was asked for, with the same bits. */
static inline int same(const struct scored *a, const struct scored *b)
{
	return a->num == NEW && a->num_drawn == NEW && !memcmp(a, b, sizeof(*a));
}

/* Returns whether a run by ranks is what one process gives; close 0: the same bits. */
static inline int is_right(const struct shared *s, const struct scored *whole, const struct scored *shared)
{
	return s->close > 0 ? agree(s, whole, shared) && same_drawn(whole, shared) : same(whole, shared);
}

/*
 * Writes the checkpoint. Its dtype is f16, whose rounding is finer than that of bf16, so that bounds can be
 * close.
 */
static inline int write_model(struct cairn_test *t, const struct shared *s, char *dir)
{
	struct golden g;
	int ret = 0;

	if (s->name && (open_golden(t, &g, s->name) ||
			(s->kind && recipe_as(t, s->name, s->kind, s->inter))))
		return -1;
	if (s->name)
		ret = altered_checkpoint(t, g.dir, "\"bfloat16\"", "\"float16\"", dir);
	else
		crafted_checkpoint(t, "float16", "F32", 0, dir);
	for (int i = 0; i < 3 && s->edits[i][0] && !ret; i++)
		ret = altered_config(t, dir, s->edits[i][0], s->edits[i][1]);
	if (s->name)
		close_golden(&g);
	return ret;
}

static inline void write_prompt(int32_t *tokens)
{
	for (int i = 0; i < NUM; i++)
		tokens[i] = (7 * i + 3) % 48;
}

#endif
