/* SPDX-License-Identifier: Apache-2.0 */
/*
 * advise - which GPUs serve a trace with the most tokens per dollar: whole engines, or model workers apart
 * from attention workers
 *
 * Every way to use up to most_gpus GPUs is replayed: whole engines of 1, 2, 4 or 8 GPUs with ideal tensor
 * parallelism, and every pair of kinds, number of model workers a (replicas of 1, 2, 4 or 8 GPUs), number of
 * attention workers b and 1 to 3 lanes. n replicas of a whole engine deliver n times its rate.
 */
#ifndef CAIRN_DISAGG_ADVISE_H
#define CAIRN_DISAGG_ADVISE_H

#include "serving/disagg/replay.h"

struct cairn_disagg_way {
	const struct cairn_disagg_gpu *model_gpu, *attn_gpu;	/* equal in whole engines */
	int32_t a, b;			/* GPUs; b 0: a whole engine */
	int32_t replicas, lanes;
	bool runs;			/* false: the reason is in why */
	char why[96];
	struct cairn_replay_result result;
	double dollars_per_hour, tokens_per_dollar;
};

struct cairn_disagg_limits {
	int32_t most_gpus, most_lanes;
	int32_t a, b;			/* if not 0, only these degrees of disaggregation */
	const char *model_gpu, *attn_gpu;	/* if not NULL, only these kinds in disaggregated systems */
	struct cairn_replay_options replay;	/* lanes is not read */
};

/* Whether these kinds may be the model workers and the attention workers. */
bool cairn_disagg_allows(const struct cairn_disagg_limits *limits, const struct cairn_disagg_gpu *model_gpu,
			 const struct cairn_disagg_gpu *attn_gpu);

struct cairn_disagg_advice {
	/* whole engines first; each group by descending tokens per dollar */
	struct cairn_disagg_way *ways;
	int32_t num_whole, num_ways;
	const struct cairn_disagg_way *whole, *apart;	/* the best; NULL: none runs */
	/* the best whole engine of the kind of GPU that apart has as model workers; NULL: none runs */
	const struct cairn_disagg_way *same_model;
	double same_tokens_per_s;	/* of the best whole engines on the GPUs of `apart`; 0: none runs */
	char same[96];			/* those engines in words */
	bool do_it;			/* apart delivers more per dollar than any whole engine */
};

int cairn_disagg_advise(struct cairn_disagg_advice *out, const struct cairn_trace *trace,
			const struct cairn_disagg_model *model, const struct cairn_disagg_hardware *hardware,
			const struct cairn_disagg_limits *limits);		/* -ENOMEM */
void cairn_disagg_advice_free(struct cairn_disagg_advice *advice);

#endif
