/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_load_test - times of prompts and of decoding steps on several ranks; for the rows of tp_decode,
 * tp_prefill, tp_offline, cp_prefill, cp_decode, ring_attention, pp_prefill and simulated_ranks
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RANKS_LOAD_TEST_H
#define CAIRN_RANKS_LOAD_TEST_H

#include <stdint.h>

#include "serving/model/model.h"

/* A model with random weights, and the ranks that share it. */
struct ranks_model {
	const char *impl, *shape;	/* shape NULL: the embedded model's */
	int32_t tp, cp, pp;		/* ranks; 0: none */
	enum cairn_exchange exchange;
	int64_t context_keys;		/* with cp, as --cp-keys; 0: not given */
	int stripes;			/* as --cp-stripes */
};

/* Requests that come at once. Each run begins when the previous one has ended. */
struct ranks_load {
	int32_t batch, tokens;		/* requests; tokens of a prompt */
	int32_t rows, chunk;		/* of a pass; of the first chunk with pp, else 0 */
	int32_t page_size;		/* 0: 16 */
	int32_t steps;			/* decoding steps of all requests that are timed; 0: none */
	int32_t runs;			/* the first one warms up, and counts only if it is the only one */
};

struct ranks_times {
	int64_t first_ns, first_min_ns;	/* until each request has a token: median and least of the runs */
	int64_t step_ns;		/* median of the steps of the last run */
	int64_t all_ns, all_tokens;	/* of the last run: its time; tokens of prompts and answers */
	int fused;			/* steps were one operation each (decode_step), not a list of them */
};

/*
 * Makes the model once and fills times[i] for loads[i]. Returns 0; or nonzero if the test has been skipped,
 * because there are too few GPUs or these have too little memory, or has failed.
 *
 * All this happens in a process of its own, so that a test may call it several times: ranks are forked before
 * a table is started.
 */
int ranks_measure(struct cairn_test *t, const struct ranks_model *m, const struct ranks_load *loads, int num,
		  struct ranks_times *times);

#endif
