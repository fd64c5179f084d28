/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampling - how the tokens of an answer are chosen
 *
 * The logits of a row are treated in this order: penalties, bias, tokens that are not allowed yet; then
 * temperature, top_k, top_p, min_p as in sample.h. Log-probabilities that are reported are those of the
 * model: of the logits before all of this.
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
	uint64_t seed;			/* answer i of a request draws with a key made of (seed, i) */
	float presence_penalty, frequency_penalty;	/* 0: off; over the tokens of the answer so far */
	float repetition_penalty;	/* 0 or 1: off; over prompt and answer */
	int32_t min_new_tokens;		/* before that nothing is drawn that would end the answer */
	const struct cairn_logit_bias *bias;	/* [num_bias], copied; of one token one at most */
	int32_t num_bias;
	int32_t num_logprobs;		/* 0: none; 1 + k: of the token and of the k likeliest */
};

#endif
