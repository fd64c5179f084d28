/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_naive_test - computes the expected answer the simplest way
 *
 * One request at a time, on the table ref, token after token, with contiguous keys and values. Include
 * conformance/harness.h first.
 */
#ifndef CAIRN_ENGINE_NAIVE_TEST_H
#define CAIRN_ENGINE_NAIVE_TEST_H

#include <math.h>

#include "serving/engine/engine_test.h"
#include "serving/model/forward/forward.h"

enum { NAIVE_LEN = 160, NAIVE_VOCAB = 512 };

struct naive {
	struct cairn_impl impl;
	struct cairn_model *m;
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;
	void *stream;
	int32_t *positions, *pages;
	int32_t tokens[NAIVE_LEN];	/* [0 .. num_tokens): tokens whose KV is stored */
	int num_tokens, vocab;
};

int naive_open(struct cairn_test *t, struct naive *n, const char *dir);
int naive_open_as(struct cairn_test *t, struct naive *n, const char *dir, enum cairn_kv_form kv);
void naive_close(struct naive *n);

/* Computes the logits after tokens[0 .. len). */
int naive_logits(struct cairn_test *t, struct naive *n, const int32_t *tokens, int len, float *logits);

/* Applies r's penalties, biases and min_new_tokens to the logits; the
 * answer so far is tokens[num_prompt - num_given .. len). */
void naive_treat(const struct naive *n, const struct cairn_request *r, const int32_t *tokens, int len,
		 float *logits);
void naive_log_softmax(const struct naive *n, const float *logits, double *logprobs);

/*
 * Returns how far a log-probability may differ from the one computed from the same logits in double. It is
 * the tolerance of logprobs.h, 2^-15 + 2^-22 |logprob| + 2^-23 (largest logit - logit), where the last
 * difference is at most |logprob|: it is the logprob without its term log(sum), which is not negative.
 */
static inline double logprob_error(double logprob)
{
	return 0x1p-15 + 3 * 0x1p-23 * fabs(logprob);
}

/* Computes answer number index of r (no beams). out: its tokens, at most MAX_NEW,
 * without the end token; returns their number. */
int naive_answer(struct cairn_test *t, struct naive *n, const struct cairn_request *r, int index,
		 int32_t *out);

/*
 * Checks that a greedy answer is valid for r: the treated logit of each token is within `slack` of the
 * maximum, and each reported log-probability is within slack + logprob_error() of that of the untreated
 * logits.
 */
void naive_judge(struct cairn_test *t, struct naive *n, const struct cairn_request *r, const struct answer *a,
		 double slack);

struct naive_beam {
	int32_t tokens[MAX_NEW];
	int num_tokens, ended;		/* ended: by an end token, which is not stored */
	double sum, score;
};

/* Computes the beams that r must get into best[r->beam_width + 1], best first. Returns their number. */
int naive_beams(struct cairn_test *t, struct naive *n, const struct cairn_request *r,
		struct naive_beam *best);

#endif
