/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine - many requests, one model, one step at a time
 *
 * A request is a prompt of token ids and how to go on from it, once or several times. cairn_engine_step()
 * has the scheduler (scheduler.h) form a plan, launches it as a pass over the model, and while that runs
 * reads the tokens of the pass before. It calls back from within cairn_engine_step() only; a callback may
 * submit, cancel and stop.
 *
 * Determinism: the tokens of a request are a function of its prompt, sampling and seed, and of the
 * shapes of the passes it takes part in; on tables whose gemm treats each row alone (ref, cpu) and with
 * CAIRN_DECODE_UNFUSED they do not depend on the other requests at all, nor on what the cache had of it, or
 * on whether it was set back meanwhile.
 *
 * Not thread-safe. After an error from cairn_engine_step() only cairn_engine_destroy() makes sense.
 */
#ifndef CAIRN_ENGINE_H
#define CAIRN_ENGINE_H

#include <stdint.h>

#include "conformance/abi.h"
#include "serving/model/decode.h"
#include "serving/model/model.h"
#include "serving/model/sampling.h"
#include "serving/scheduler/scheduler.h"

struct cairn_engine;

struct cairn_engine_options {
	int32_t max_batch;		/* sequences running at once */
	int32_t max_context;		/* tokens of one sequence, prompt and answer; 0: the model's */
	int32_t max_rows;		/* of one pass, kept up while there is work; >= max_batch; 0: 1024 */
	int32_t page_size;		/* 0: 16 */
	int32_t num_pages;		/* 0: enough for max_batch sequences of max_context */
	int no_graphs;			/* call operations one by one even where the table has graphs */
	enum cairn_decode_path decode;	/* one operation for a decoding pass, or the list of them */
	int in_turn;			/* no plan before the tokens of the pass before it are known */
	int32_t cache_grain;		/* of the prefix tree: 1 or page_size; 0: page_size; -1: no tree */
	int32_t host_pages;		/* pages of KV in host memory; 0: no such tier */
	int32_t disk_pages;		/* in a file of its own without a name; needs host_pages */
	const char *disk_dir;		/* where; NULL: /tmp */
	int32_t max_queued;		/* requests that wait and have not started; 0: 1024 */
	int64_t max_queued_tokens;	/* of their prompts; 0: no limit */
	int32_t max_passes;		/* how many later requests may overtake one; 0: order of arrival */
	int32_t expected_new;		/* tokens of an answer, until answers tell; 0: 256 */
	int64_t recompute_ns, swap_ns;	/* of a token; of a page, one way; 0 and 0: by the model's sizes */
	int timeline;			/* the device's times in the statistics */
};

/* One token of an answer. What it points to is there during the call. */
struct cairn_token {
	int32_t id;
	float logprob;			/* with num_logprobs, or beam search */
	int32_t num_top;		/* num_logprobs - 1 */
	const int32_t *top;		/* [num_top], likeliest first */
	const float *top_logprob;
};

enum cairn_finish {
	CAIRN_FINISH_STOP,		/* an end-of-sequence token or a stop id; on_token or _stop said so */
	CAIRN_FINISH_LENGTH,		/* max_new_tokens */
	CAIRN_FINISH_CANCELLED,
	CAIRN_FINISH_EXPIRED,		/* its deadline */
	CAIRN_FINISH_FAILED,		/* no logit was a number: the model cannot go on from there */
};

struct cairn_request {
	uint64_t id;			/* the caller's; of no other request that is there */
	const int32_t *prompt;		/* [num_prompt], copied */
	int32_t num_prompt, max_new_tokens;
	int32_t num_seqs;		/* answers; 0: 1 */
	int ignore_eos;			/* end-of-sequence tokens are tokens like others; stop_ids are not */
	const int32_t *stop_ids;	/* [num_stop_ids], copied; they end an answer, too */
	int32_t num_stop_ids;
	struct cairn_sampling sampling;
	struct cairn_cache_salt salt;	/* who has another one shares nothing in the cache */
	int64_t deadline_ns;		/* CLOCK_MONOTONIC; 0: none */
	int keep;			/* its KV goes to host memory, for a prompt that continues the talk */
	/*
	 * 0: none. Else answers are the num_seqs best of so many beams (num_seqs <= beam_width): by
	 * sum of log-probabilities / length^length_penalty, where the token that ends an answer counts.
	 * Their tokens are given when all have ended. Of sampling then only penalties, bias and
	 * min_new_tokens apply. Beams and the tokens that end an answer are 32 at most.
	 */
	int32_t beam_width;
	float length_penalty;
	/* non-zero ends this answer, with CAIRN_FINISH_STOP; may be NULL, as the following */
	int (*on_token)(void *ctx, int32_t index, const struct cairn_token *token);
	/* token: the one that ended it and was not given to on_token; -1: none */
	void (*on_finish)(void *ctx, int32_t index, enum cairn_finish why, int32_t token);
	/* its first admission; cached_tokens: those of the prompt that need not be computed */
	void (*on_started)(void *ctx, int32_t cached_tokens);
	void *ctx;
};

struct cairn_engine_stats {
	int64_t steps, graph_steps, fused_steps, captures;
	int64_t prompt_tokens;		/* computed; what the cache had is not among them */
	int64_t new_tokens;
	int64_t last_step_ns;		/* CLOCK_MONOTONIC of the end of the last step; 0: none yet */
	int64_t host_ns, wait_ns;	/* of all steps: the host's work, and its waiting for the device */
	int64_t plan_ns, launch_ns, report_ns;	/* what of host_ns went where; callbacks are in report_ns */
	int64_t busy_ns, idle_ns, max_idle_ns;	/* with timeline: of the device, from its first pass on */
	int64_t layer_offloads;		/* pages that left for host memory layer by layer */
	struct cairn_scheduler_stats scheduler;
};

/* The model must outlive the engine. */
int cairn_engine_create(struct cairn_engine **out, struct cairn_model *model,
			const struct cairn_engine_options *options);
void cairn_engine_destroy(struct cairn_engine *engine);	/* NULL is legal; requests die without on_finish */

/*
 * -EINVAL, the text beginning with the name of the field: an id outside the vocabulary, too long, a sampling
 * value out of range. -EAGAIN: the queue is full. -EOPNOTSUPP: the table lacks an operation that this
 * needs, the text beginning with the field.
 */
int cairn_engine_submit(struct cairn_engine *engine, const struct cairn_request *request);
/* No pass launched from now on has a row of it; on_finish with CAIRN_FINISH_CANCELLED for each answer that
 * has not finished, in the next step, and no on_token before it. -ENOENT: no such request. */
int cairn_engine_cancel(struct cairn_engine *engine, uint64_t id);
/* The same for one answer, with CAIRN_FINISH_STOP. -ENOENT; -EINVAL: of a beam search. */
int cairn_engine_stop(struct cairn_engine *engine, uint64_t id, int32_t index);

/* *busy: work is left (when 0 every request has finished). */
int cairn_engine_step(struct cairn_engine *engine, int *busy);
/* Steps until nothing is left. */
int cairn_engine_run(struct cairn_engine *engine);

void cairn_engine_stats(const struct cairn_engine *engine, struct cairn_engine_stats *stats);
/* For tests: the scheduler's invariants, pools and trees included. */
int cairn_engine_verify(const struct cairn_engine *engine);

#endif
