// SPDX-License-Identifier: Apache-2.0
/* engine_beam_test - compares beam search with a naive one that computes every beam separately */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

struct beam_case {
	int prompt, max_new, width, num_seqs;
	float length_penalty;
	int num_stops, min_new, num_pages;
	int page_size, grain;
};

#define PAGES(num, size, granularity) .num_pages = num, .page_size = size, .grain = granularity

static const struct beam_case beam_cases[] = {
	{ .prompt = 20, .max_new = 12, .width = 4, .num_seqs = 4, .length_penalty = 1, PAGES(60, 4, 4) },
	{ .prompt = 33, .max_new = 10, .width = 3, .num_seqs = 2, .num_stops = 5, PAGES(60, 4, 4) },
	{ .prompt = 8, .max_new = 16, .width = 4, .num_seqs = 1, .length_penalty = 1.5f, .num_stops = 5,
	  .min_new = 6, PAGES(60, 4, 4) },
	{ .prompt = 25, .max_new = 14, .width = 1, .num_seqs = 1, .length_penalty = 1, .num_stops = 5,
	  PAGES(60, 4, 4) },
	/* The maximum width needs more log-probabilities than a client may ask for. */
	{ .prompt = 12, .max_new = 6, .width = 16, .num_seqs = 16, .length_penalty = 1, .num_stops = 5,
	  PAGES(120, 4, 4) },
	/* Memory for two of the beams at a time. */
	{ .prompt = 21, .max_new = 12, .width = 4, .num_seqs = 4, .length_penalty = 1, .num_stops = 2,
	  PAGES(15, 4, 4) },
	/* Memory for one beam: held beams are preempted as well. */
	{ .prompt = 21, .max_new = 12, .width = 4, .num_seqs = 4, .length_penalty = 1, .num_stops = 2,
	  PAGES(9, 4, 4) },
	/* Memory for one and a half beams: a preempted beam resumes while another is held for it. */
	{ .prompt = 3, .max_new = 29, .width = 16, .num_seqs = 4, .length_penalty = 1, PAGES(8, 4, 4) },
	/* The same, with rows in every plan. Regression: the preempted beam never resumed. */
	{ .prompt = 11, .max_new = 13, .width = 8, .num_seqs = 4, .length_penalty = 1, PAGES(6, 8, 1) },
};

static double score_of(const struct cairn_request *r, const struct answer *a)
{
	double sum = 0;

	for (int i = 0; i < a->num_ids; i++)
		sum += (double)a->logprob[i];
	return sum / pow(a->num_ids, (double)r->length_penalty);
}

/* Checks that the reported log-probabilities are those of the model. */
static void check_logprobs(struct cairn_test *t, struct naive *n, const struct cairn_request *r,
			   const struct answer *a)
{
	_Alignas(16) float logits[NAIVE_VOCAB];
	double logprobs[NAIVE_VOCAB];
	int32_t tokens[NAIVE_LEN], len = r->num_prompt;

	memcpy(tokens, r->prompt, (size_t)len * sizeof(*tokens));
	for (int i = 0; i < a->num_ids; i++) {
		if (naive_logits(t, n, tokens, len, logits))
			return;
		naive_treat(n, r, tokens, len, logits);
		naive_log_softmax(n, logits, logprobs);
		EXPECT(t, fabs((double)a->logprob[i] - logprobs[a->ids[i]]) < 0.3);
		tokens[len++] = a->ids[i];
	}
}

static void one_beam_search(struct cairn_test *t, struct cairn_engine *e, struct naive *n,
			    const struct golden *g, const struct beam_case *c, int exact)
{
	static const int32_t stops[] = { 17, 44, 99, 133, 178 };
	struct answer *answers = calloc((size_t)c->width, sizeof(*answers)), greedy;
	struct naive_beam *best = calloc((size_t)c->width + 1, sizeof(*best));
	struct cairn_request r = request(g, c->prompt, c->max_new, &answers[0]), other;
	int num;

	r.beam_width = c->width;
	r.num_seqs = c->num_seqs;
	r.length_penalty = c->length_penalty;
	r.stop_ids = stops;
	r.num_stop_ids = c->num_stops;
	r.sampling.min_new_tokens = c->min_new;
	r.ignore_eos = !c->num_stops;
	other = request(g, 15, 10, &greedy);	/* another request runs at the same time */
	EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_submit(e, &other) == 0);
	EXPECT(t, cairn_engine_run(e) == 0);
	EXPECT(t, cairn_engine_verify(e) == 0);
	num = naive_beams(t, n, &r, best);
	for (int i = 0; i < c->num_seqs && EXPECT(t, i < num); i++) {
		const struct answer *a = &answers[i];

		EXPECT(t, a->num_finished == 1);
		EXPECT(t, a->why == (a->end_token >= 0 ? CAIRN_FINISH_STOP : CAIRN_FINISH_LENGTH));
		if (exact && !EXPECT(t, a->num_ids == best[i].num_tokens &&
				     !memcmp(a->ids, best[i].tokens, (size_t)a->num_ids * sizeof(*a->ids))))
			cairn_note(t, "beam %d of width %d: %d tokens, not %d", i, c->width, a->num_ids,
				   best[i].num_tokens);
		EXPECT(t, (a->end_token >= 0) == best[i].ended || !exact);
		check_logprobs(t, n, &r, a);
	}
	/* Different rounding may choose different beams; the best one must still score about as well. */
	if (answers[0].end_token < 0 && !best[0].ended &&
	    !EXPECT(t, score_of(&r, answers) > best[0].score - 0.3))
		cairn_note(t, "score %g, not %g", score_of(&r, answers), best[0].score);
	free(best);
	free(answers);
}

static void beams(struct cairn_test *t, const char *table)
{
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		return;
	if (!naive_open(t, &n, g.dir)) {
		for (size_t i = 0; i < ARRAY_SIZE(beam_cases); i++) {
			struct cairn_engine_options opt = {
				.max_batch = beam_cases[i].width > 5 ? beam_cases[i].width + 1 : 5,
				.max_context = 48, .max_rows = beam_cases[i].grain > 1 ? 24 : 16,
				.page_size = beam_cases[i].page_size, .cache_grain = beam_cases[i].grain,
				.num_pages = beam_cases[i].num_pages, .decode = CAIRN_DECODE_UNFUSED,
			};

			if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
				break;
			one_beam_search(t, e, &n, &g, &beam_cases[i], is_ref(table));
			cairn_engine_destroy(e);
		}
	}
	naive_close(&n);
	close_model(m, &g);
}

static void beams_ref(struct cairn_test *t)
{
	beams(t, "ref");
}

static void beams_cpu(struct cairn_test *t)
{
	beams(t, "cpu");
}

static void beams_cuda(struct cairn_test *t)
{
	beams(t, "cuda");
}

static void beams_late_ref(struct cairn_test *t)
{
	beams(t, "late_ref");
}

/* Returns the third to eighth most likely tokens after a prompt. With these as end tokens, 2 of the 8
 * candidates remain for 4 beams. */
static void likely_tokens(struct cairn_test *t, struct naive *n, const struct cairn_request *r,
			  int32_t *tokens)
{
	_Alignas(16) float logits[NAIVE_VOCAB];

	if (naive_logits(t, n, r->prompt, r->num_prompt, logits))
		return;
	for (int k = -2; k < 6; k++) {
		int best = 0;

		for (int i = 1; i < n->vocab; i++)
			best = logits[i] > logits[best] ? i : best;
		logits[best] = -INFINITY;
		if (k >= 0)
			tokens[k] = best;
	}
}

/* Many end tokens: no beam is lost, and no other request takes a beam's place. */
static void many_ends(struct cairn_test *t)
{
	struct cairn_engine_options opt = {
		.max_batch = 4, .max_context = 48, .max_rows = 24, .page_size = 4, .num_pages = 60,
		.decode = CAIRN_DECODE_UNFUSED,
	};
	static struct answer answers[4], others[12];
	struct naive_beam best[5];
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model(t, "ref", "llama3_tiny", &impl, &g, &m))
		return;
	for (int more = 0; more < 6 && !naive_open(t, &n, g.dir); more++, naive_close(&n)) {
		struct cairn_request r = request(&g, 20 + more, 12, &answers[0]);
		int32_t stops[29] = { 0 };
		int num;

		memset(answers + 1, 0, 3 * sizeof(answers[0]));
		likely_tokens(t, &n, &r, stops);
		r.beam_width = r.num_seqs = 4;
		r.length_penalty = 1;
		r.stop_ids = stops;
		r.ignore_eos = 1;
		if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
			break;
		r.num_stop_ids = 29;	/* more than there can be candidates */
		EXPECT(t, cairn_engine_submit(e, &r) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "stop_ids: 29 ids, beam_width 4 and 0 end-of-");
		r.num_stop_ids = 6;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		for (int i = 0; i < 12; i++) {
			struct cairn_request other = request(&g, 9 + i, 4, &others[i]);

			EXPECT(t, cairn_engine_submit(e, &other) == 0);
		}
		EXPECT(t, cairn_engine_run(e) == 0);
		num = naive_beams(t, &n, &r, best);
		for (int i = 0; i < 4; i++) {
			const struct answer *a = &answers[i];

			EXPECT(t, a->num_finished == 1 && i < num && a->num_ids == best[i].num_tokens &&
			       !memcmp(a->ids, best[i].tokens, (size_t)a->num_ids * sizeof(*a->ids)));
		}
		for (int i = 0; i < 12; i++)
			EXPECT(t, others[i].num_finished == 1);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "beams_ref", beams_ref },
	{ "beams_cpu", beams_cpu },
	{ "beams_cuda", beams_cuda },
	{ "beams_late_ref", beams_late_ref },
	{ "many_ends", many_ends },
};

const struct cairn_family cairn_engine_beam_family = {
	.stage = "serving",
	.name = "engine_beam",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 46,
};
