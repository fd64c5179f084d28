/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile - measures the times that auto-search needs, alone and in pairs
 *
 * Rows have the format of search_profile.h. In this order, so that a run that its time limit ends lacks the
 * least important ones:
 *
 *   alone   each product for each number of rows, on all SMs; attention of decoding requests for each batch
 *           and context, and of a prompt that is alone; with several ranks, their sum
 *   pairs   each product, for each of pair_rows, beside attention of decoding requests: on two streams; with
 *           a higher priority for attention; and with all SMs shared out between both (green contexts).
 *           With several ranks, each product also runs beside their sum of as many rows in these ways
 *   parts   the products of the pairs alone on the SMs that green pairs leave to them
 *
 * r and p compare with the time alone on all SMs. gain is r + p: how much faster a pair runs than one
 * operation after the other if both always run. The energy of a pair is that of one call of its product.
 * at_s: seconds since the profile began.
 *
 * Operations whose CTAs wait for each other (moe) need all SMs and are left out of green pairs. Tables
 * without stream_create_part have neither priorities nor green pairs. The queue form does not exist yet.
 *
 * Source: NanoFlow (Zhu et al. 2024), section 4.1.1 and table 3. It differs: both tasks run for the whole
 * measurement, at settled clocks, and only calls that run beside the other task count.
 */
#ifndef CAIRN_PROFILE_H
#define CAIRN_PROFILE_H

#include "conformance/abi.h"
#include "serving/model/checkpoint/config.h"
#include "serving/search/search_profile.h"

#define PROFILE_LIST	32

struct profile_list {
	int32_t v[PROFILE_LIST];
	int num;
};

struct profile_options {
	const char *ops;		/* names separated by commas, attn for attention; NULL: all */
	struct profile_list rows;	/* of a product */
	struct profile_list batches, contexts;	/* of attention: decoding requests, keys of each */
	struct profile_list prompts;	/* rows of a prompt */
	struct profile_list pair_rows, pair_batches;	/* pairs take the first of contexts */
	struct profile_list part_sms;	/* SMs of attention in green pairs, multiples of 8 */
	unsigned hows;			/* bits of enum cairn_search_how to measure in pairs; 0: all */
	double alone_s, pair_s;		/* of one measurement */
	double limit_s;			/* no measurement begins later */
	int32_t layers, page_size;
	int32_t ranks;			/* above 1: this is one of so many, which all call profile_run() */
};

/* The lists of a profile of a large model within four minutes, and in 80 seconds. */
extern const struct profile_options profile_full, profile_short;

struct profile_sink {
	/* members: JSON members without braces; sm_mhz: mean clock, NAN: unknown */
	int (*row)(void *ctx, const char *case_name, const char *members, double sm_mhz);
	void *ctx;
};

struct profile_result {
	int num_rows;
	int num_late;		/* measurements that the time limit prevented */
	int num_starved;	/* pairs of which one operation hardly ran */
	int num_disturbed;	/* pairs of which one operation seemed faster than alone */
	double seconds;
};

/*
 * config: that of the whole model. Of several ranks, rank 0 decides by its times, and all write the same rows
 * but for the energy. Errors: -EINVAL, naming the option; those of the table and of the sink.
 */
int profile_run(const struct cairn_impl *impl, const struct cairn_model_config *config,
		const struct profile_options *options, const struct profile_sink *sink,
		struct profile_result *result);

#endif
