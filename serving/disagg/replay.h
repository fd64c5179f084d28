/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay - runs a trace through the lanes of a system, as fast as its memory and the bounds allow
 *
 * All requests wait from the beginning, in the order of the trace, because the question is how much a full
 * system delivers. Only decoding is simulated, as in the source: a request arrives with its prompt's KV.
 * It is admitted to the lane with the fewest keys as soon as the pages of its prompt and its whole answer are
 * free, so none is ever preempted; it joins at that lane's next pass and gets one token in each.
 *
 * Figures are taken between the admission of the first quarter of the requests and that of the last one,
 * while the system is full, or over the whole run if that interval is empty.
 */
#ifndef CAIRN_DISAGG_REPLAY_H
#define CAIRN_DISAGG_REPLAY_H

#include "serving/disagg/costs.h"
#include "serving/disagg/trace.h"

struct cairn_replay_options {
	int32_t lanes, page_size;
	int32_t most_rows;	/* of a lane */
	double tbt_ms;		/* most predicted time between two tokens; 0: unbounded */
	double memory_share;	/* of a GPU's memory that holds weights and KV */
};

struct cairn_replay_result {
	double tokens_per_s, tbt_ms, p99_tbt_ms;	/* tbt_ms: mean over tokens */
	double batch;			/* requests in all lanes, mean over time */
	double model_busy, attn_busy;	/* shares of the whole time */
	int64_t passes, tokens, room;	/* room: pages */
};

/*
 * Errors: -ERANGE: the weights or the longest request do not fit into memory, a request alone exceeds the
 * bound, or the prices make the system too slow to simulate; the text says which. -ENOMEM.
 */
int cairn_replay(const struct cairn_trace *trace, const struct cairn_disagg_system *system,
		 const struct cairn_replay_options *options, struct cairn_replay_result *result);

#endif
