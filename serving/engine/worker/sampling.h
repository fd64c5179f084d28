/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampling - how the tokens of an answer are chosen
 *
 * The logits of a row are modified in this order: penalties, bias, forbidden tokens; then temperature, top_k,
 * top_p and min_p as in sample.h. Reported log-probabilities are those of the model, computed from the logits
 * before any of these steps.
 */
#ifndef CAIRN_SAMPLING_H
#define CAIRN_SAMPLING_H

#include <stdint.h>

#define CAIRN_MAX_LOGPROBS	20

struct cairn_logit_bias {
	int32_t token;
	float bias;
};

struct cairn_sampling {
	float temperature;		/* >= 0; 0: greedy */
	float top_p, min_p;		/* (0, 1], 1: off; [0, 1), 0: off */
	int32_t top_k;			/* 0: off */
	uint64_t seed;			/* answer i of a request draws with a key made from (seed, i) */
	float presence_penalty, frequency_penalty;	/* 0: off; count the answer's tokens so far */
	float repetition_penalty;	/* 0 or 1: off; counts prompt and answer */
	int32_t min_new_tokens;		/* tokens before which no end token may be drawn */
	const struct cairn_logit_bias *bias;	/* [num_bias], copied; at most one per token */
	int32_t num_bias;
	int32_t num_logprobs;		/* 0: none; 1 + k: for the drawn token and the k most likely */
};

/* Each answer of a request draws with its own key; the first one's is the request's seed. */
static inline uint64_t cairn_answer_seed(uint64_t seed, int32_t index)
{
	uint64_t z = seed + (uint64_t)index * 0x9e3779b97f4a7c15u;

	if (!index)
		return seed;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

#endif
