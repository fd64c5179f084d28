/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_impl - the state of a worker: what worker.c builds and worker_pass.c launches
 */
#ifndef CAIRN_WORKER_IMPL_H
#define CAIRN_WORKER_IMPL_H

#include <stddef.h>

#include "../primitives/error.h"
#include "worker.h"

#define MAX_GRAPHS	256
#define MIN_KV_BOUND	256
#define NUM_TIMES	(CAIRN_WORKER_FLIGHTS + 2)

struct arrays {
	uint64_t *seed, *offset;			/* [max_batch], as the following */
	float *temperature, *top_p, *min_p;
	int32_t *top_k, *logit_rows, *last_page_len;
	int32_t *qo_indptr, *kv_indptr;			/* [max_batch + 1] */
	int32_t *positions, *ids, *from;		/* [max_rows] */
	int32_t *kv_indices;				/* last: copied as far as it is used */
};

struct flight {
	struct arrays host;
	char *block;
	int32_t *tokens;
	int32_t *rows;			/* [num_tokens]: where among the tokens on the device; ascending */
	int32_t num_tokens;
	void *event;
	int64_t number;			/* of its pass */
};

struct graph {
	int32_t rows, kv_bound;
	int greedy;
	int64_t used;			/* number of the last pass of this shape; 0: a free entry */
	void *exec;			/* NULL until the second pass */
};

struct cairn_worker {
	struct cairn_model *model;
	const struct cairn_impl *impl;
	struct cairn_worker_options opt;
	int32_t vocab;
	int latent;			/* every pass is decode_step */
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;	/* NULL: latent */
	struct cairn_decoder *decoder;
	void *stream;

	struct arrays dev;
	char *dev_block;
	int32_t *ids;			/* [max_rows]: of the pass, on the device */
	int32_t *drawn;			/* [max_batch] */
	float *logits;			/* [max_batch, vocab] */
	void *sample_workspace;
	size_t sample_workspace_bytes;

	struct flight flights[CAIRN_WORKER_FLIGHTS];
	int first_flight, num_flights;
	struct { void *begin, *end; } times[NUM_TIMES];		/* of pass n: [n % NUM_TIMES] */
	struct graph graphs[MAX_GRAPHS];
	int have_graphs;
	struct cairn_worker_stats stats;

	/* the pass being built */
	struct flight *flight, *last;	/* last: the one launched before; NULL: none */
	struct cairn_batch batch;
	int greedy, fused;
	int32_t follows;		/* how many rows do */
};

#define TABLE(w, fn, ...) CAIRN_TABLE((w)->impl, fn, __VA_ARGS__)

/* worker_pass.c */
struct cairn_sample_args worker_sample_args(const struct cairn_worker *w, int32_t rows);
void worker_drop_graphs(struct cairn_worker *w);

#endif
