/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker - passes of the model on a device, two in flight
 *
 * The engine decides which sequences take part in a pass; the worker builds its index arrays, launches
 * it, through a graph where it can, draws the tokens and brings them back. It knows sequences only as the
 * rows they give.
 *
 *   begin, add, add, ..., launch    one pass; at most CAIRN_WORKER_FLIGHTS are launched and not collected
 *   collect                         waits for the oldest pass and returns its tokens
 *
 * A row may be the token of a draw of the pass before (follows), taken from where it lies on the device: no
 * token need come to the host in between.
 *
 * Not thread-safe. After an error only cairn_worker_destroy() makes sense.
 */
#ifndef CAIRN_WORKER_H
#define CAIRN_WORKER_H

#include <stdint.h>

#include "conformance/abi.h"
#include "serving/model/decode.h"
#include "serving/model/forward.h"
#include "serving/model/sampling.h"

#define CAIRN_WORKER_FLIGHTS	2

struct cairn_worker;

struct cairn_worker_options {
	int32_t max_batch, max_rows;	/* of one pass; max_batch <= max_rows */
	int32_t max_context;		/* keys of one sequence */
	int32_t num_pages, page_size;
	int no_graphs;
	enum cairn_decode_path decode;
	int timeline;			/* times of the passes in the statistics */
};

/* What is done to the logits of a draw beyond its sampling; off where zero, slot where -1. */
struct cairn_worker_treat {
	int32_t slot;			/* its counters of tokens, 0 .. CAIRN_WORKER_SLOTS(max_batch) - 1 */
	int begins;			/* they are to be cleared, and have the prompt counted */
	const int32_t *prompt;		/* [num_prompt]; 0: need not be counted */
	int32_t num_prompt;
	float repetition, frequency, presence;		/* with slot */
	int32_t bias_at, num_bias;	/* of cairn_worker_add_lists() */
	int32_t forbidden_at, num_forbidden;
	int32_t num_logprobs;		/* 1 + k: of the token and of the k likeliest */
	int late;			/* of the logits that are drawn from, not of the model's */
};

#define CAIRN_WORKER_SLOTS(max_batch)	(2 * (max_batch))

/* The part of one sequence in a pass. */
struct cairn_worker_part {
	const int32_t *ids;		/* [num_rows] */
	int32_t follows;		/* its row is the token of that draw of the pass before; -1: ids */
	int32_t num_rows, position;	/* rows position .. position + num_rows - 1 of the sequence */
	const int32_t *pages;		/* [num_pages], room for position + num_rows keys */
	int32_t num_pages;
	const struct cairn_sampling *draw;	/* a token is drawn after the last row; NULL: none */
	uint64_t seed, offset;		/* which draw of which seed; the sampling's own is not used */
	const struct cairn_worker_treat *treat;		/* NULL: nothing */
};

/* What a pass has drawn, in the order in which parts with a draw were added; until the next begin. */
struct cairn_worker_result {
	const int32_t *tokens;		/* [num_tokens] */
	int32_t num_tokens, k;
	/* where wanted: the token's; the k likeliest tokens and theirs, -1 where there are fewer */
	const float *logprob;		/* [num_tokens] */
	const int32_t *top;		/* [num_tokens, k] */
	const float *top_logprob;
};

struct cairn_worker_stats {
	int64_t passes, graph_passes, captures;
	int64_t fused_passes;		/* decode_step took them */
	int64_t wait_ns;		/* the host's, for passes to end */
	/* with timeline: of the device, over the passes collected */
	int64_t busy_ns, idle_ns, max_idle_ns;
};

int cairn_worker_create(struct cairn_worker **out, struct cairn_model *model,
			const struct cairn_worker_options *options);
void cairn_worker_destroy(struct cairn_worker *worker);		/* NULL is legal */

/*
 * The caller keeps to the options: parts <= max_batch, rows <= max_rows, pages <= num_pages. Of a
 * model without a list of operations (forward.h) each part has one row.
 */
void cairn_worker_begin(struct cairn_worker *worker);
void cairn_worker_add(struct cairn_worker *worker, const struct cairn_worker_part *part);
int cairn_worker_launch(struct cairn_worker *worker);
/* Before launch: the pass calls fn as struct cairn_batch says, and is no graph. Not where decode_step takes
 * it: that has no place between two layers. */
void cairn_worker_on_layer(struct cairn_worker *worker, int (*fn)(void *ctx, int32_t layer, void *stream),
			   void *ctx);

/*
 * Brings the lists of a request to the device; its draws name them by their places. -EAGAIN: there is no
 * room now; -EOPNOTSUPP: the table cannot treat logits.
 */
int cairn_worker_add_lists(struct cairn_worker *worker, const struct cairn_logit_bias *bias, int32_t num_bias,
			   const int32_t *forbidden, int32_t num_forbidden, int32_t *bias_at,
			   int32_t *forbidden_at);
void cairn_worker_remove_lists(struct cairn_worker *worker, int32_t bias_at, int32_t num_bias,
			       int32_t forbidden_at, int32_t num_forbidden);

int cairn_worker_collect(struct cairn_worker *worker, struct cairn_worker_result *result);
int cairn_worker_in_flight(const struct cairn_worker *worker);

/* Where keys and values lie, and the stream on which passes follow each other: for who moves pages. */
const struct cairn_kv_store *cairn_worker_kv(const struct cairn_worker *worker);
void *cairn_worker_stream(const struct cairn_worker *worker);

void cairn_worker_stats(const struct cairn_worker *worker, struct cairn_worker_stats *stats);

/* The number of rows that a decoding pass of so many sequences is padded to. */
int32_t cairn_worker_padded(int32_t batch);

#endif
