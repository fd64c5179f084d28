/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_naive_test - what an answer should be, computed the plain way: alone, on the table ref, token after
 * token, its keys and values one behind the other. Include conformance/harness.h first.
 */
#ifndef CAIRN_ENGINE_NAIVE_TEST_H
#define CAIRN_ENGINE_NAIVE_TEST_H

#include "serving/engine/engine_test.h"
#include "serving/model/forward.h"

enum { NAIVE_LEN = 160, NAIVE_VOCAB = 512 };

struct naive {
	struct cairn_impl impl;
	struct cairn_model *m;
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;
	void *stream;
	int32_t *positions, *pages;
	int32_t tokens[NAIVE_LEN];	/* whose keys and values are there */
	int num_tokens, vocab;
};

int naive_open(struct cairn_test *t, struct naive *n, const char *dir);
void naive_close(struct naive *n);

/* Logits of the token that comes after tokens[0 .. len). */
int naive_logits(struct cairn_test *t, struct naive *n, const int32_t *tokens, int len, float *logits);

/* logits as r's penalties, biases and min_new_tokens make them, for the answer tokens[num_prompt .. len). */
void naive_treat(const struct naive *n, const struct cairn_request *r, const int32_t *tokens, int len,
		 float *logits);
void naive_log_softmax(const struct naive *n, const float *logits, double *logprobs);

/* The answer number index of r (no beams): its tokens, at most MAX_NEW; the one that ends it is not there. */
int naive_answer(struct cairn_test *t, struct naive *n, const struct cairn_request *r, int index,
		 int32_t *out);

/*
 * Is a greedy answer one that r may have? Every token leads, after treatment, but for `slack`; the
 * log-probabilities are those of the untreated logits, but for as much.
 */
void naive_judge(struct cairn_test *t, struct naive *n, const struct cairn_request *r, const struct answer *a,
		 double slack);

struct naive_beam {
	int32_t tokens[MAX_NEW];
	int num_tokens, ended;		/* ended: by a token that is not among them */
	double sum, score;
};

/* The beams that r is to get, the best first: [r->beam_width]. Returns how many. */
int naive_beams(struct cairn_test *t, struct naive *n, const struct cairn_request *r,
		struct naive_beam *best);

#endif
