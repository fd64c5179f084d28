/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine - runs many requests on one model, one step at a time
 *
 * A request is a prompt of token ids and the parameters that say how to continue it, with one or more
 * answers. cairn_engine_step() has the scheduler (scheduler.h) form a plan, launches it as a pass over the
 * model, and reads the tokens of the previous pass while that pass runs. Callbacks are only made from within
 * cairn_engine_step(); a callback may submit, cancel and stop.
 *
 * Determinism: the tokens of a request are a function of its prompt, sampling and seed, and of the shapes of
 * the passes it takes part in. On tables whose gemm computes each row independently (ref, cpu) and with
 * CAIRN_DECODE_UNFUSED, they are independent of other requests, of prefix cache hits and of preemption.
 *
 * With `repeatable`, tokens and log-probabilities are independent of these on every table whose gemm and
 * gemm_fp8w give a row the same bits at any position in a pass, as the built-in tables do (gemm.h): in one
 * process, with the same model and options, other requests, cache hits and preemption change no bit. (In
 * another process, gemm's trials may choose other algorithms.) A pass then has either one row of each
 * decoding sequence, padded to max_batch rows, or one chunk of one prompt (scheduler.h). This costs speed: no
 * pass runs as decode_step, prompts are computed one after the other, and the caches keep no answers. A
 * cache_grain of 1 is refused.
 *
 * Not thread-safe. After an error from cairn_engine_step() the engine can only be destroyed.
 */
#ifndef CAIRN_ENGINE_H
#define CAIRN_ENGINE_H

#include <stdint.h>

#include "conformance/abi.h"
#include "serving/grammar/masks.h"
#include "serving/model/forward/decode.h"
#include "serving/model/model.h"
#include "serving/engine/worker/sampling.h"
#include "serving/engine/speculate.h"
#include "serving/nano/nano_plan.h"
#include "serving/remote/pull/pull.h"
#include "serving/slices/slices.h"
#include "serving/engine/worker/worker.h"
#include "serving/scheduler/scheduler.h"
#include "serving/scheduler/tiers.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn_engine;

#define CAIRN_LANES_AUTO	(-1)

/*
 * Callbacks that report everything that happens on the device, so that other processes can do the same
 * (ranks.h). create is called once, when worker and tiers exist. moves is called before the moves of a plan
 * are executed; if the plan has no rows, worker.launch follows it without parts. An error that any of them
 * returns becomes an error of the engine.
 */
struct cairn_engine_tap {
	struct cairn_worker_tap worker;
	int (*create)(void *ctx, const struct cairn_worker_options *worker,
		      const struct cairn_tiers_options *tiers);
	void (*moves)(void *ctx, const struct cairn_move *moves, int32_t num_before, int32_t num);
};

struct cairn_engine_options {
	int32_t max_batch;		/* maximum sequences running at once */
	int32_t max_context;		/* tokens of one sequence, prompt and answer; 0: the model's */
	int32_t max_rows;		/* rows of a pass, kept full under load; >= max_batch; 0: 1024 */
	int32_t page_size;		/* tokens; 0: 16 */
	int32_t num_pages;		/* 0: enough for max_batch sequences of max_context */
	int no_graphs;			/* call operations one by one even if the table has graphs */
	enum cairn_decode_path decode;	/* how decoding passes run: decode.h */
	int in_turn;			/* form a plan only after the previous pass's tokens are known */
	int32_t cache_grain;		/* of the prefix tree: 1 or page_size; 0: page_size; -1: no tree */
	/* is told, within calls of the engine, of the pages that the device's prefix tree gains and loses */
	const struct cairn_prefix_listener *listener;	/* NULL: none; needs cache_grain page_size */
	int32_t host_pages;		/* pages of KV in host memory; 0: no host tier */
	int32_t disk_pages;		/* pages of KV in an unnamed file; needs host_pages */
	const char *disk_dir;		/* directory of that file; NULL: /tmp */
	int32_t max_queued;		/* maximum requests that have not started; 0: 1024 */
	int64_t max_queued_tokens;	/* maximum sum of their prompt tokens; 0: no limit */
	int32_t max_passes;		/* later requests that may overtake one; 0: strictly in order */
	int32_t expected_new;		/* initial estimate of an answer's tokens; 0: 256 */
	int64_t recompute_ns, swap_ns;	/* per token; per page and direction; both 0: estimated */
	int timeline;			/* measure the device's busy and idle times */
	int repeatable;			/* see Determinism; prompt_logprobs are refused */
	/*
	 * How passes of the operation list run as nano-batches (nano_plan.h); NULL: they run sequentially.
	 * The plans are copied; what pick reads must outlive the engine. With `repeatable` there must be one
	 * plan without pick, because the shape of a pass depends on other requests. A pass of fewer rows than
	 * its plan wants runs sequentially. With tap, the plans need a digest, by which the other processes
	 * know that they have the same ones.
	 */
	const struct cairn_nano_plans *nano;
	/*
	 * Speculative decoding. A pass may then have up to 256 drafted rows beyond max_batch, as far as
	 * max_rows allows, and the buffers of logits have as many rows more.
	 */
	struct cairn_speculation speculation;
	/*
	 * Passes of the operation list run in these slices of the model, with attention by a local attention
	 * worker (sliced.h): the same bits. NULL: whole. Not together with nano. The slices must outlive the
	 * engine.
	 */
	const struct cairn_slices *slices;
	/* Where the masks of requests with a constraint come from; NULL: these are refused. Must outlive the
	 * engine. Not together with tap. */
	const struct cairn_mask_source *masks;
	const struct cairn_engine_tap *tap;	/* NULL: none. Not with slices and masks */
	/*
	 * Attention by the workers of this lead (serving/remote), which must outlive the engine. When one is
	 * lost, another one takes its heads, and all sequences compute their tokens again. Not together with
	 * host_pages, nano, tap and masks, and with speculation only if attends_all.
	 *
	 * attends_all: workers also attend to the keys of the pass itself. Then tokens are those of an engine
	 * without workers, bitwise, also after a loss; else they are so where the logits decide by more than
	 * rounding, and with `repeatable` a loss changes no bit.
	 */
	struct cairn_lead *attention;
	int attends_all;
	/*
	 * With attention: batches whose passes are under way together, 1 .. CAIRN_MAX_LANES. While the
	 * workers attend for one, this process computes another. 0: 1; CAIRN_LANES_AUTO: as many as measured
	 * times ask for. A request with penalties stays in one lane. Tokens are those of one lane. Each lane
	 * has buffers for max_rows rows and max_batch draws. More than one excludes speculation.
	 */
	int32_t lanes;
	/*
	 * With attention: most bytes of a journal of all keys and values in host memory (journal.h). After a
	 * loss, the workers' caches are restored from it, bit by bit, instead of computing all sequences
	 * again. 0: none.
	 */
	int64_t kv_journal;
	/*
	 * The prefill workers of this lead, which must outlive the engine, compute long prompts, and the
	 * engine pulls the result (engine_pull.c). A prompt is long if at least prefill_min of its tokens,
	 * and at least half of them, are not cached. If a worker fails, the engine computes the prompt. As
	 * with a hit in the prefix cache, answers are the same bit by bit on tables whose gemm computes each
	 * row independently. Latent attention is the exception: there the shape of a pass decides how a
	 * prompt attends. Needs a prefix tree; not together with attention, tap, repeatable and EAGLE3.
	 */
	struct cairn_lead *prefill;
	int32_t prefill_min;		/* 0: max_rows */
	int32_t pulled_pages;		/* most pages of all pulls; 0: two prompts of max_context */
	int32_t chunk_rows;		/* most rows of a chunk of a pipeline (pipeline.h); 0: 1024 */
	/*
	 * How ranks divide a pass (worker.h). In a ring or with `context`, they divide the rows of any pass
	 * with at least context_rows rows (0: half of max_rows), decoding passes excluded. `context` is the
	 * whole model, which computes such passes beside tensor parallelism; NULL: none. If each rank has all
	 * keys, ranks divide the pages of a decoding pass whose rows see at least context_keys keys (0:
	 * CAIRN_CONTEXT_KEYS).
	 */
	int32_t context_rows;
	struct cairn_model *context;
	int64_t context_keys;
	/*
	 * Each rank holds some of the num_pages pages (worker.h). Prompts and decoding sequences have steps
	 * of their own. Not with repeatable, host_pages, EAGLE3 and MTP.
	 */
	int stripes;
};

/* One token of an answer. Its pointers are valid during the callback only. */
struct cairn_token {
	int32_t id;
	float logprob;			/* set with num_logprobs >= 1 or beam search */
	/* For prompt tokens only: the rank by likelihood among all tokens, counted from 1. 0: not among the
	 * first CAIRN_LOGPROBS_MAX. */
	int32_t rank;
	int32_t num_top;		/* num_logprobs - 1, or less if the vocabulary is smaller */
	const int32_t *top;		/* [num_top], most likely first */
	const float *top_logprob;
};

enum cairn_finish {
	CAIRN_FINISH_STOP,		/* end-of-sequence token, stop id, on_token or cairn_engine_stop */
	CAIRN_FINISH_LENGTH,		/* max_new_tokens reached */
	CAIRN_FINISH_CANCELLED,
	CAIRN_FINISH_EXPIRED,		/* its deadline has passed */
	CAIRN_FINISH_FAILED,		/* all logits were NaN: the model cannot continue from there */
	/* its constraint has failed, or none of the tokens that it allows can be drawn */
	CAIRN_FINISH_CONSTRAINT,
};

struct cairn_request {
	uint64_t id;			/* chosen by the caller, unique among current requests */
	const int32_t *prompt;		/* [num_prompt], copied */
	int32_t num_prompt, max_new_tokens;
	int32_t num_seqs;		/* number of answers; 0: 1 */
	/*
	 * To go on with an answer that another engine has begun: the last num_given tokens of the prompt are
	 * the answer's. Draws are numbered on from there, penalties and min_new_tokens count these tokens as
	 * drawn, and a constraint is told them. max_new_tokens is the number still to come. The answer must
	 * be the only one; the seed of answer i of several is cairn_answer_seed(seed, i). Not with beams and
	 * prompt_logprobs.
	 */
	int32_t num_given;
	int ignore_eos;			/* treat end-of-sequence tokens as ordinary tokens; not stop_ids */
	const int32_t *stop_ids;	/* [num_stop_ids], copied; they also end an answer */
	int32_t num_stop_ids;
	struct cairn_sampling sampling;
	struct cairn_cache_salt salt;	/* requests with different salts never share cached prefixes */
	/* 1 + the number of its adapter (lora.h); 0: none. Adapters never share cached prefixes. */
	int32_t adapter;
	int64_t deadline_ns;		/* CLOCK_MONOTONIC; 0: none */
	int keep;			/* keep the KV in host memory for the next turn of a conversation */
	/*
	 * 0: none. Otherwise each token is one that the mask of its draw allows (masks.h): sequence i of this
	 * constraint is answer i. Not with beams, ignore_eos or min_new_tokens: a mask may allow nothing but
	 * the end. Log-probabilities stay those of the model.
	 */
	uint64_t constraint;
	/*
	 * 0: no beam search. Otherwise the answers are the num_seqs best of beam_width beams (num_seqs <=
	 * beam_width) by sum of log-probabilities / length^length_penalty; the token that ends an answer
	 * counts. The tokens are passed to on_token when all beams have ended. Only the bias and
	 * min_new_tokens of sampling apply; penalties are refused. Beams and end tokens together must be at
	 * most 32 (CAIRN_LOGPROBS_MAX).
	 */
	int32_t beam_width;
	float length_penalty;
	/* Callbacks; each may be NULL. Non-zero from on_token ends this answer with CAIRN_FINISH_STOP. */
	int (*on_token)(void *ctx, int32_t index, const struct cairn_token *token);
	/*
	 * Called for prompt tokens 1, 2, ... in order, before any on_token, with the log-probabilities of the
	 * token and of the most likely tokens at its position. Such a prompt is computed whole, without
	 * cached prefixes, and at most max_batch of its tokens per step.
	 */
	int32_t prompt_logprobs;	/* 0: none; 1 + k: with the k most likely tokens; not with beams */
	void (*on_prompt)(void *ctx, int32_t position, const struct cairn_token *token);
	/* token: the end token, which was not passed to on_token; -1: none */
	void (*on_finish)(void *ctx, int32_t index, enum cairn_finish why, int32_t token);
	/* Called after the request's first rows are launched. cached_tokens: number of prompt tokens found
	 * in a cache. */
	void (*on_started)(void *ctx, int32_t cached_tokens);
	void *ctx;
};

struct cairn_engine_stats {
	int64_t steps, graph_steps, fused_steps, captures;
	int64_t nano_steps;		/* run as nano-batches */
	int64_t sliced_steps;
	int64_t recoveries;		/* losses of attention workers */
	int64_t lane_changes;		/* with CAIRN_LANES_AUTO */
	/* with kv_journal: bytes of keys and values recorded, and restored after losses; time of each */
	int64_t journal_bytes, journal_ns, restored_bytes, restore_ns;
	int32_t lanes;			/* number of lanes that new requests may enter; 1 without attention */
	int64_t prompt_tokens;		/* prompt tokens computed; cached tokens are not counted */
	int64_t new_tokens;
	int64_t last_step_ns;		/* CLOCK_MONOTONIC at the end of the last step; 0: none yet */
	int64_t host_ns, wait_ns;	/* sums over all steps: host work; waiting for the device */
	int64_t plan_ns, launch_ns, report_ns;	/* parts of host_ns; callbacks count in report_ns */
	int64_t busy_ns, idle_ns, max_idle_ns;	/* with timeline: device times since the first pass */
	int64_t layer_offloads;		/* pages offloaded to host memory layer by layer */
	struct cairn_pull_stats pull;	/* with prefill */
	int64_t pulls_recomputed;	/* prompts that were given to a worker, but the engine computed */
	struct cairn_speculation_stats speculation;
	struct cairn_scheduler_stats scheduler;
	int64_t context_steps;		/* steps whose rows the ranks divided, as context_rows says */
	int64_t pages_steps;		/* steps whose pages the ranks divided, as context_keys says */
	int64_t stripes_steps;		/* steps whose pages were gathered from all ranks */
};

/* The model must outlive the engine. Errors: -EINVAL or -EOPNOTSUPP,
 * naming the option; -ENOMEM; the table's. */
int cairn_engine_create(struct cairn_engine **out, struct cairn_model *model,
			const struct cairn_engine_options *options);
void cairn_engine_destroy(struct cairn_engine *engine);	/* NULL is legal; requests end without on_finish */

/*
 * Errors: -EINVAL, naming the field first: an id outside the vocabulary, prompt and answer too long, a
 * sampling value out of range. -EAGAIN: the queue is full. -EOPNOTSUPP, naming the field first: the table
 * lacks an operation that the field needs. -ENOMEM.
 */
int cairn_engine_submit(struct cairn_engine *engine, const struct cairn_request *request);
/* Cancels a request. No pass launched from now on has a row of it. The next step calls on_finish with
 * CAIRN_FINISH_CANCELLED for each unfinished answer; no on_token comes before. -ENOENT: no such request, or
 * it ends in this step anyway. */
int cairn_engine_cancel(struct cairn_engine *engine, uint64_t id);
/* The same for one answer, with CAIRN_FINISH_STOP. -ENOENT: no such answer; -EINVAL: a beam search. */
int cairn_engine_stop(struct cairn_engine *engine, uint64_t id, int32_t index);

/* Runs one step. *busy: whether work is left; when it is 0 every request has finished. */
int cairn_engine_step(struct cairn_engine *engine, int *busy);
/* Runs steps until no work is left. */
int cairn_engine_run(struct cairn_engine *engine);

void cairn_engine_stats(const struct cairn_engine *engine, struct cairn_engine_stats *stats);
/* For tests: checks the scheduler's invariants, pools and trees included. */
int cairn_engine_verify(const struct cairn_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
