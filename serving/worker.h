/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker - passes of the model on a device, two in flight
 *
 * The engine decides which requests take part in a pass; the worker builds its index arrays, launches
 * it, through a graph where it can, draws the tokens and brings them back. It knows requests only as the
 * rows they give.
 *
 *   begin, add, add, ..., launch    one pass; at most CAIRN_WORKER_FLIGHTS are launched and not collected
 *   collect                         waits for the oldest pass and returns its tokens
 *
 * A pass that follows (launch with follow != 0) takes as ids the tokens that the pass before drew,
 * row by row, from where they lie on the device: no token need come to the host in between.
 *
 * Not thread-safe. After an error only cairn_worker_destroy() makes sense.
 */
#ifndef CAIRN_WORKER_H
#define CAIRN_WORKER_H

#include <stdint.h>

#include "../conformance/abi.h"
#include "decode.h"
#include "forward.h"

#define CAIRN_WORKER_FLIGHTS	2

struct cairn_worker;

struct cairn_worker_options {
	int32_t max_batch, max_rows;	/* of one pass; max_batch <= max_rows */
	int32_t max_context;		/* keys of one request */
	int32_t num_pages, page_size;
	int no_graphs;
	enum cairn_decode_path decode;
};

struct cairn_sampling {
	float temperature;		/* >= 0; 0: greedy, and nothing below applies */
	float top_p, min_p;		/* (0, 1], 1: off; [0, 1), 0: off */
	int32_t top_k;			/* >= 0; 0: off */
	uint64_t seed;
};

/* The part of one request in a pass. */
struct cairn_worker_part {
	const int32_t *ids;		/* [num_rows]; not read in a pass that follows */
	int32_t num_rows, position;	/* rows position .. position + num_rows - 1 of the request */
	const int32_t *pages;		/* [num_pages], room for position + num_rows keys */
	int32_t num_pages;
	const struct cairn_sampling *draw;	/* a token is drawn after the last row; NULL: none */
	uint64_t offset;		/* which draw of its seed this is */
};

struct cairn_worker_stats {
	int64_t passes, graph_passes, captures;
	int64_t fused_passes;		/* decode_step took them */
};

int cairn_worker_create(struct cairn_worker **out, struct cairn_model *model,
			const struct cairn_worker_options *options);
void cairn_worker_destroy(struct cairn_worker *worker);		/* NULL is legal */

/*
 * The caller keeps to the options: parts <= max_batch, rows <= max_rows, pages <= num_pages. With latent
 * attention each part has one row.
 */
void cairn_worker_begin(struct cairn_worker *worker);
void cairn_worker_add(struct cairn_worker *worker, const struct cairn_worker_part *part);
int cairn_worker_launch(struct cairn_worker *worker, int follow);

/* *tokens: [*num_tokens], in the order in which parts with a draw were added; valid until the next begin. */
int cairn_worker_collect(struct cairn_worker *worker, const int32_t **tokens, int32_t *num_tokens);
int cairn_worker_in_flight(const struct cairn_worker *worker);

void cairn_worker_stats(const struct cairn_worker *worker, struct cairn_worker_stats *stats);

#endif
