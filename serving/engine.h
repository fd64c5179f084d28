/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine - many requests, one model, one step at a time
 *
 * A request is a prompt of token ids and how to go on from it. cairn_engine_step() runs one pass over
 * all running requests: each decoding one gives a row, prompts give chunks, as many rows as options
 * allow. Tokens are drawn on the device and fed back there; the host reads them one step behind,
 * while the next step runs (engine.c says when). It calls back from within cairn_engine_step() only;
 * a callback may submit.
 *
 * A request is admitted when the pool can promise it all the pages it may need, in order of submission:
 * once admitted it is never set back.
 *
 * Determinism: the tokens of a request are a function of its prompt, sampling and seed, and of the
 * shapes of the passes it takes part in; on tables whose gemm treats each row alone (ref, cpu) and with
 * CAIRN_DECODE_UNFUSED they do not depend on the other requests at all.
 *
 * Not thread-safe. After an error from cairn_engine_step() only cairn_engine_destroy() makes sense.
 */
#ifndef CAIRN_ENGINE_H
#define CAIRN_ENGINE_H

#include <stdint.h>

#include "../conformance/abi.h"
#include "model.h"
#include "worker.h"

struct cairn_engine;

struct cairn_engine_options {
	int32_t max_batch;		/* requests running at once */
	int32_t max_context;		/* tokens of one request, prompt and answer; 0: the model's */
	int32_t max_rows;		/* rows of one pass: the prefill chunk; >= max_batch; 0: 1024 */
	int32_t page_size;		/* 0: 16 */
	int32_t num_pages;		/* 0: enough for max_batch requests of max_context */
	int no_graphs;			/* call operations one by one even where the table has graphs */
	enum cairn_decode_path decode;	/* one operation for a decoding pass, or the list of them */
};

enum cairn_finish {
	CAIRN_FINISH_STOP,		/* an end-of-sequence token was drawn; it is not reported */
	CAIRN_FINISH_LENGTH,		/* max_new_tokens */
	CAIRN_FINISH_CANCELLED,		/* on_token asked for it */
};

struct cairn_request {
	const int32_t *prompt;		/* [num_prompt], copied */
	int32_t num_prompt, max_new_tokens;
	int ignore_eos;			/* end-of-sequence tokens are tokens like others */
	struct cairn_sampling sampling;
	int (*on_token)(void *ctx, int32_t token);	/* non-zero cancels; may be NULL */
	void (*on_finish)(void *ctx, enum cairn_finish why);	/* may be NULL */
	void *ctx;
};

struct cairn_engine_stats {
	int64_t steps, graph_steps, fused_steps, captures;
	int64_t prompt_tokens, new_tokens;
};

/* The model must outlive the engine. */
int cairn_engine_create(struct cairn_engine **out, struct cairn_model *model,
			const struct cairn_engine_options *options);
void cairn_engine_destroy(struct cairn_engine *engine);	/* NULL is legal; requests die without on_finish */

/* -EINVAL, the text naming the field: an id outside the vocabulary, too long, a sampling value out of range.
 */
int cairn_engine_submit(struct cairn_engine *engine, const struct cairn_request *request);

/* *busy: work is left (when 0 every request has finished). */
int cairn_engine_step(struct cairn_engine *engine, int *busy);
/* Steps until nothing is left. */
int cairn_engine_run(struct cairn_engine *engine);

void cairn_engine_stats(const struct cairn_engine *engine, struct cairn_engine_stats *stats);

#endif
