/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_test - requests that record their answers
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_ENGINE_TEST_H
#define CAIRN_ENGINE_TEST_H

#include "serving/engine/engine.h"
#include "serving/model/model_test.h"

#define MAX_NEW	64

/* A recorded answer. The answers of one request are adjacent. */
struct answer {
	int32_t ids[MAX_NEW];
	int num_ids, stop_at, num_finished;
	enum cairn_finish why;
	int32_t end_token;
	int32_t cached;			/* from on_started; -1: not called yet */
	float logprob[MAX_NEW];
	int num_top[MAX_NEW];
	int32_t top[MAX_NEW][CAIRN_MAX_LOGPROBS];
	float top_logprob[MAX_NEW][CAIRN_MAX_LOGPROBS];
	/* on_token cancels the request, or stops this answer, at that many tokens. */
	struct cairn_engine *engine;
	uint64_t id;
	int cancel_at, end_at;
};

static inline int take(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct answer *a = (struct answer *)ctx + index;

	if (a->num_ids < MAX_NEW) {
		a->ids[a->num_ids] = token->id;
		a->logprob[a->num_ids] = token->logprob;
		a->num_top[a->num_ids] = token->num_top;
		for (int i = 0; i < token->num_top; i++) {
			a->top[a->num_ids][i] = token->top[i];
			a->top_logprob[a->num_ids][i] = token->top_logprob[i];
		}
	}
	a->num_ids++;
	if (a->num_ids == a->cancel_at)
		cairn_engine_cancel(a->engine, a->id);
	if (a->num_ids == a->end_at)
		cairn_engine_stop(a->engine, a->id, index);
	return a->num_ids == a->stop_at;
}

static inline void done(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct answer *a = (struct answer *)ctx + index;

	a->why = why;
	a->end_token = token;
	a->num_finished++;
}

static inline void started(void *ctx, int32_t cached)
{
	struct answer *a = ctx;

	a->cached = cached;
}

static inline struct cairn_request request(const struct golden *g, int num_prompt, int max_new,
					   struct answer *a)
{
	static uint64_t id;

	memset(a, 0, sizeof(*a));
	a->id = ++id;
	a->cached = -1;
	return (struct cairn_request){
		.id = id, .prompt = g->tokens, .num_prompt = num_prompt, .max_new_tokens = max_new,
		.sampling = { .top_p = 1 }, .on_token = take, .on_finish = done, .on_started = started,
		.ctx = a,
	};
}

static inline int open_model_as(struct cairn_test *t, const char *table, const char *name,
				enum cairn_kv_form kv, struct cairn_impl *impl, struct golden *g,
				struct cairn_model **m)
{
	if (open_table(t, table, impl) || open_golden(t, g, name))
		return -1;
	if (EXPECT(t, cairn_model_load_as(m, impl, g->dir, CAIRN_WEIGHTS_PLAIN, kv, NULL, NULL) == 0))
		return 0;
	close_golden(g);
	return -1;
}

static inline int open_model(struct cairn_test *t, const char *table, const char *name,
			     struct cairn_impl *impl, struct golden *g, struct cairn_model **m)
{
	return open_model_as(t, table, name, CAIRN_KV_PLAIN, impl, g, m);
}

static inline void close_model(struct cairn_model *m, struct golden *g)
{
	cairn_model_free(m);
	close_golden(g);
}

#endif
