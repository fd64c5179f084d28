/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_worker - the state of the worker process
 *
 *   serve_worker.c	start, the loop, what it reports
 *   serve_incoming.c	requests: from the front's frames into the engine, and its callbacks
 *
 * A request with a constraint waits until the grammar process has compiled it, so that one that cannot be
 * used is refused like any other: before its answer begins.
 */
#ifndef CAIRN_SERVE_WORKER_H
#define CAIRN_SERVE_WORKER_H

#include "serving/engine/engine.h"
#include "serving/events/kv_events.h"
#include "serving/grammar/grammar.h"
#include "serving/ranks/ranks.h"
#include "serving/serve/serve.h"
#include "serving/serve/telemetry/serve_power.h"
#include "serving/serve/serve_wire.h"

/* A request whose frames are still arriving. */
struct incoming {
	struct cairn_request r;
	int32_t *ids, *stop_ids;
	struct cairn_logit_bias *bias;
	int64_t num_ids, num_stop_ids, num_bias;	/* received so far */
	int stage;				/* kind of the previous frame; 0: no request is open */
	int is_constrained;			/* a CONSTRAINT comes last */
	struct cairn_constraint constraint;	/* kind NONE: its frame has not come yet */
	char *text;				/* [num_bytes + num_after] */
	size_t num_text;			/* received so far */
	/* complete, and waiting for its constraint to be compiled: */
	struct incoming *later;
	uint64_t opened;			/* the constraint's number; 0: none */
};

/* Context of the engine's callbacks for one request. */
struct client {
	struct worker *w;
	struct client *next, **from;
	uint64_t request;
	int32_t open;				/* number of answers that have not ended */
	uint64_t opened;			/* its constraint; 0: none */
};

struct worker {
	struct cairn_session session;
	struct cairn_tp *tp;		/* the other ranks; NULL: none */
	struct cairn_engine *engine;
	struct cairn_out_queue out;
	struct cairn_wire_in in;
	struct incoming next;
	struct incoming *waiting;	/* requests whose constraints are being compiled, the oldest first */
	struct cairn_grammar *grammar;	/* NULL: no_grammar says why */
	char no_grammar[512];
	struct client *clients;
	int32_t max_context, num_pages, page_size, max_batch;
	int keep;			/* cairn_request.keep of all requests: store KV in host memory */
	int64_t stats_at;
	int64_t lost;			/* attention workers whose loss has been told */
	struct cairn_prefill_told told;
	struct cairn_engine_stats stats;
	struct cairn_serve_power *power;	/* NULL: no card whose power is known */
	struct cairn_kv_events *events;		/* NULL without --kv-events */
	int quit;
};

/* Handles a frame. Returns 0, or an error that ends the worker. */
int worker_take(struct worker *w, const struct cairn_wire_frame *f);
int worker_bad_frame(const struct cairn_wire_frame *f, const char *what);	/* the error of a violation */
/* Submits or refuses requests whose constraints are no longer being compiled. */
int worker_admit(struct worker *w);
/* Frees all requests. Call when the engine is destroyed. */
void worker_drop_requests(struct worker *w);

#endif
