// SPDX-License-Identifier: Apache-2.0
/* serve_spec_test - a server that speculates gives the answers of one that does not, and counts its drafts */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

/* Greedy, sampled, with log-probabilities and a stop string, two answers, penalties, and a beam search. */
static const char *const bodies[] = {
	"{\"prompt\":\"abc abc abc abc\",\"temperature\":0,\"max_tokens\":80,\"ignore_eos\":true}",
	"{\"prompt\":\"a b a b a b\",\"temperature\":1,\"seed\":3,\"max_tokens\":60,\"ignore_eos\":true}",
	"{\"prompt\":\"1 1 1 1\",\"temperature\":0,\"max_tokens\":40,\"logprobs\":2,\"stop\":\"9\"}",
	"{\"prompt\":\"x x x x\",\"temperature\":0.8,\"seed\":5,\"n\":2,\"max_tokens\":40,\"top_p\":0.9}",
	"{\"prompt\":\"y y y y\",\"temperature\":0,\"max_tokens\":30,\"frequency_penalty\":0.5}",
	"{\"prompt\":\"z z z z\",\"temperature\":0,\"max_tokens\":12,\"use_beam_search\":true,\"n\":2}",
};

/* Returns the part of an answer that has no times and no numbers of requests. */
static const char *choices_of(struct reply *r)
{
	char *at = strstr(r->body, "\"choices\":"), *end = at ? strstr(at, "\"usage\":") : NULL;

	if (end)
		*end = 0;
	return at ? at : r->body;
}

static void same_answers(struct cairn_test *t)
{
	static struct reply plain[ARRAY_SIZE(bodies)], r;
	struct server s;
	double drafts, tokens, accepted;

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "4", "--decode",
						       "unfused", "--quiet", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)
			EXPECT(t, post(&s, "/v1/completions", bodies[i], &plain[i]) == 200);
		EXPECT(t, metric_of(&s, "vllm:spec_decode_num_drafts_total", "") == -1);
	}
	stop_server(&s);
	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "4", "--decode",
						       "unfused", "--speculative", "ngram",
						       "--num-speculative-tokens", "4", "--quiet", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
			EXPECT(t, post(&s, "/v1/completions", bodies[i], &r) == 200);
			if (!EXPECT(t, !strcmp(choices_of(&r), choices_of(&plain[i]))))
				cairn_note(t, "%.500s", r.body);
		}
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:spec_decode_num_drafts_total", "") > 3, 5000));
		drafts = metric_of(&s, "vllm:spec_decode_num_drafts_total", "");
		tokens = metric_of(&s, "vllm:spec_decode_num_draft_tokens_total", "");
		accepted = metric_of(&s, "vllm:spec_decode_num_accepted_tokens_total", "");
		EXPECT(t, tokens >= drafts && accepted > 0 && accepted <= tokens);
		EXPECT(t, metric_of(&s, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
				    "position=\"0\"") <= drafts);
	}
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "same_answers", same_answers },
};

const struct cairn_family cairn_serve_spec_family = {
	.stage = "serving", .name = "serve_spec", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
};
