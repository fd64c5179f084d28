// SPDX-License-Identifier: Apache-2.0
/*
 * engine_mutants_test - checks that the engine tests detect broken operations
 *
 * Each mutant is a table in which one operation that only an engine calls does less than it should. The
 * requests, which every correct table answers like the naive computation, must then get different answers.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

enum { NUM = 6 };

static int nothing_moved(const struct cairn_kv_move_args *args, void *stream)
{
	(void)args;
	(void)stream;
	return 0;
}

static int last_move_lost(const struct cairn_kv_move_args *args, void *stream)
{
	struct cairn_kv_move_args less = *args;

	less.num_moves -= args->num_moves > 0;
	return cairn_kv_move_ref(&less, stream);
}

/* Only page-to-page copies are broken; moves to and from slots are complete. */
static int other_layers_not_copied(const struct cairn_kv_move_args *args, void *stream)
{
	struct cairn_kv_move_args first = *args;

	first.num_layers = args->num_moves && args->from[0] >= 0 && args->to[0] >= 0 ? 1 : args->num_layers;
	return cairn_kv_move_ref(&first, stream);
}

static int nothing_followed(const struct cairn_pick_ids_args *args, void *stream)
{
	(void)stream;
	memcpy(args->ids, args->host_ids, (size_t)args->rows * sizeof(*args->ids));
	return 0;
}

static int next_followed(const struct cairn_pick_ids_args *args, void *stream)
{
	(void)stream;
	for (int32_t i = 0; i < args->rows; i++)
		args->ids[i] = args->from[i] < 0 ? args->host_ids[i] :
			args->drawn[(args->from[i] + 1) % args->num_drawn];
	return 0;
}

static int nothing_counted(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args clears = *args;

	clears.num_tokens = clears.num_segments = 0;
	clears.tokens = clears.slots = clears.indptr = NULL;
	return cairn_token_counts_ref(&clears, stream);
}

static int prompts_not_counted(const struct cairn_token_counts_args *args, void *stream)
{
	return args->prompt ? nothing_counted(args, stream) : cairn_token_counts_ref(args, stream);
}

/* Loses the tokens of an answer that another engine has begun. A pass counts its own draws without indptr. */
static int given_not_counted(const struct cairn_token_counts_args *args, void *stream)
{
	return args->indptr && !args->prompt ? nothing_counted(args, stream) :
	       cairn_token_counts_ref(args, stream);
}

static int nothing_cleared(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args adds = *args;

	adds.num_copies = 0;
	adds.copy_to = adds.copy_from = NULL;
	return cairn_token_counts_ref(&adds, stream);
}

static int nothing_penalized(const struct cairn_penalize_args *args, void *stream)
{
	(void)args;
	(void)stream;
	return 0;
}

static int nothing_forbidden(const struct cairn_penalize_args *args, void *stream)
{
	struct cairn_penalize_args less = *args;

	less.forbidden_at = less.num_forbidden = less.forbidden_ids = NULL;
	return cairn_penalize_ref(&less, stream);
}

static int of_the_first_row(const struct cairn_logprobs_args *args, void *stream)
{
	int ret = cairn_logprobs_ref(args, stream);

	for (int32_t i = 1; i < args->rows; i++)
		args->chosen[i] = args->chosen[0];
	return ret;
}

#define MUTANT(op, fn)	{ #fn, offsetof(struct cairn_impl, op), (void *)fn }

static const struct mutant {
	const char *name;
	size_t op;
	void *fn;
} mutants[] = {
	MUTANT(kv_move, nothing_moved),
	MUTANT(kv_move, last_move_lost),
	MUTANT(kv_move, other_layers_not_copied),
	MUTANT(pick_ids, nothing_followed),
	MUTANT(pick_ids, next_followed),
	MUTANT(token_counts, nothing_counted),
	MUTANT(token_counts, prompts_not_counted),
	MUTANT(token_counts, given_not_counted),
	MUTANT(token_counts, nothing_cleared),
	MUTANT(penalize, nothing_penalized),
	MUTANT(penalize, nothing_forbidden),
	MUTANT(logprobs, of_the_first_row),
};

/* Makes requests that together depend on all operations above. Several rounds use them, to reuse counters. */
static void make_requests(const struct golden *g, struct cairn_request *reqs, struct answer (*answers)[2],
			  int round)
{
	static const int32_t stops[] = { 17, 44, 99, 133, 178, 60, 61, 62, 63 };

	for (int i = 0; i < NUM; i++) {
		struct cairn_sampling *s = &reqs[i].sampling;

		memset(answers[i], 0, sizeof(answers[i]));
		reqs[i] = request(g, 22 + 3 * i, 14, &answers[i][0]);
		reqs[i].num_seqs = i % 2 + 1;
		reqs[i].num_given = i == 4 ? 9 : 0;
		reqs[i].stop_ids = stops;
		reqs[i].num_stop_ids = 9;
		s->temperature = 1.2f;
		s->seed = (uint64_t)(7 * round + i);
		s->presence_penalty = i == 1 || i == 4 ? 1.5f : 0;
		s->repetition_penalty = i > 1 ? 1.4f : 0;
		s->min_new_tokens = i == 3 ? 14 : 0;
		s->num_logprobs = 1;
	}
}

static int same_answer(struct cairn_test *t, struct naive *n, const struct cairn_request *r, int index,
		       const struct answer *a)
{
	_Alignas(16) float logits[NAIVE_VOCAB];
	int32_t want[MAX_NEW], tokens[NAIVE_LEN];
	double logprobs[NAIVE_VOCAB];
	int num = naive_answer(t, n, r, index, want);

	if (a->num_ids != num || memcmp(a->ids, want, (size_t)num * sizeof(*want)))
		return 0;
	memcpy(tokens, r->prompt, (size_t)r->num_prompt * sizeof(*tokens));
	for (int i = 0; i < num; i++) {
		naive_logits(t, n, tokens, r->num_prompt + i, logits);
		naive_log_softmax(n, logits, logprobs);
		if (!(fabs((double)a->logprob[i] - logprobs[want[i]]) <= logprob_error(logprobs[want[i]])))
			return 0;
		tokens[r->num_prompt + i] = want[i];
	}
	return 1;
}

/* Returns how many answers differ from the naive ones. */
static int run(struct cairn_test *t, struct cairn_model *m, struct naive *n, const struct golden *g)
{
	struct cairn_engine_options opt = {
		.max_batch = 4, .max_context = 64, .max_rows = 24, .page_size = 4, .num_pages = 26,
		.expected_new = 1, .host_pages = 60, .recompute_ns = 100, .swap_ns = 1,
		.decode = CAIRN_DECODE_UNFUSED,
	};
	struct answer (*answers)[2] = calloc(NUM, sizeof(*answers));
	struct cairn_request reqs[NUM];
	struct cairn_engine *e;
	int wrong = 0;

	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		for (int round = 0; round < 2; round++) {
			make_requests(g, reqs, answers, round);
			for (int i = 0; i < NUM; i++)
				EXPECT(t, cairn_engine_submit(e, &reqs[i]) == 0);
			EXPECT(t, cairn_engine_run(e) == 0);
			for (int i = 0; i < NUM; i++) {
				for (int k = 0; k < reqs[i].num_seqs; k++)
					wrong += !same_answer(t, n, &reqs[i], k, &answers[i][k]);
			}
		}
		cairn_engine_destroy(e);
	}
	free(answers);
	return wrong;
}

static void noticed(struct cairn_test *t)
{
	struct cairn_impl impl, whole;
	struct cairn_model *m;
	struct naive n;
	struct golden g;

	if (open_model(t, "ref", "llama3_tiny", &impl, &g, &m))
		return;
	whole = impl;
	if (!naive_open(t, &n, g.dir)) {
		EXPECT(t, run(t, m, &n, &g) == 0);
		for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
			int wrong;

			impl = whole;
			memcpy((char *)&impl + mutants[i].op, &mutants[i].fn, sizeof(mutants[i].fn));
			wrong = run(t, m, &n, &g);
			cairn_note(t, "%s: %d answers", mutants[i].name, wrong);
			EXPECT(t, wrong > 0);
		}
	}
	naive_close(&n);
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed },
};

const struct cairn_family cairn_engine_mutants_family = {
	.stage = "serving",
	.name = "engine_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 9,
};
