// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_engine_test - an engine with ranks gives the answers of an engine without ranks
 *
 * The tests use all that an engine can ask of a device: pages that are copied, swapped, offloaded and fetched
 * from the disk; penalties, biases, forbidden tokens and log-probabilities; several answers, beams, drafts.
 * Prompts are questions that the embedded model answers with certainty, so that the last bits of logits,
 * which ranks of tensor parallelism and of a ring round at other places, do not decide. Ranks that exchange
 * heads, and stages of a pipeline, give the same bits.
 */
#include "conformance/harness.h"
#include "serving/ranks/ranks_engine_test.h"

/*
 * Logits are at most some 30 here. They are products of a bf16 vector, whose numbers may be rounded to the
 * other side: a step of 2^-8 of each would change a logit by 0.12 at most.
 */
#define CLOSE	0.12f

static void compare(struct cairn_test *t, int num, float close, struct asked *whole, struct asked *shared)
{
	for (int i = 0; i < num; i++)
		for (int k = 0; k < whole[i].req.num_seqs; k++) {
			const struct answer *a = &whole[i].answers[k], *b = &shared[i].answers[k];

			if (!EXPECT(t, a->num_finished == 2 && b->num_finished == 2 && a->num_ids > 1) ||
			    !EXPECT(t, a->num_ids == b->num_ids &&
				       !memcmp(a->ids, b->ids, (size_t)a->num_ids * sizeof(*a->ids))))
				cairn_note(t, "question %d, answer %d: %d and %d tokens", i, k, a->num_ids,
					   b->num_ids);
			for (int n = 0; n < a->num_ids; n++)
				if (!EXPECT(t, fabsf(a->logprob[n] - b->logprob[n]) <= close))
					cairn_note(t, "question %d: %g and %g", i, (double)a->logprob[n],
						   (double)b->logprob[n]);
			EXPECT(t, fabsf(a->prompt_logprob - b->prompt_logprob) <=
				  0.01f * fabsf(a->prompt_logprob));
		}
}

static void check_counts(struct cairn_test *t, const struct setting *s,
			 const struct cairn_engine_stats *stats)
{
	if (s->eo.stripes)
		EXPECT(t, stats->scheduler.moves[CAIRN_MOVE_COPY] > 0 && stats->stripes_steps > 0);
	if (s->eo.speculation.method) {
		EXPECT(t, stats->speculation.accepted_tokens > 0);
		return;
	}
	/* ranks pull no keys from prefill workers */
	for (int k = 0; k < CAIRN_NUM_MOVES && s->moves; k++)
		if (k != CAIRN_MOVE_PULL && !EXPECT(t, stats->scheduler.moves[k] > 0))
			cairn_note(t, "no moves of kind %d", k);
}

static void run_setting(struct cairn_test *t, const struct setting *setting,
			const struct cairn_common_options *ranks)
{
	const int is_ring = ranks->exchange == CAIRN_EXCHANGE_RING;
	const int is_both = ranks->tp > 1 && ranks->cp > 1;
	const int is_exact = ranks->tp < 2 && !is_ring;
	struct cairn_common_options o = *ranks;
	const struct cairn_common_options one = { .impl = "cpu" };
	struct asked *whole = calloc(NUM, sizeof(*whole)), *shared = calloc(NUM, sizeof(*shared));
	struct cairn_session s = { 0 }, w = { 0 };
	struct cairn_engine_stats stats = { 0 }, unused;
	struct cairn_tp *tp = NULL;
	int is_draft = setting->eo.speculation.method == CAIRN_SPECULATE_DRAFT_MODEL;

	o.impl = "cpu";
	o.collective_s = 60;
	if (!EXPECT(t, cairn_ranks_fork(&tp, &o) == 0))
		return;
	if (cairn_tp_rank(tp))
		be_other_rank(&o, tp);
	cairn_set_threads(1);
	if (EXPECT(t, !cairn_session_start_rank(&s, &o, tp, NULL, 0) && !cairn_session_load(&s, NULL)) &&
	    EXPECT(t, !is_draft || !cairn_model_load(&s.drafter, &s.impl, s.dir, NULL, NULL)) &&
	    EXPECT(t, answer_all(t, &s, cairn_tp_tap(tp), setting, shared, &stats) == 0))
		check_counts(t, setting, &stats);
	EXPECT(t, (stats.context_steps > 0) == (is_both || is_ring));
	EXPECT(t, (stats.pages_steps > 0) == (setting->eo.context_keys > 0 || setting->eo.stripes));
	EXPECT(t, setting->eo.decode == CAIRN_DECODE_UNFUSED || !is_ring || stats.fused_steps > 0);
	cairn_tp_close(tp);
	if (EXPECT(t, !cairn_session_start_rank(&w, &one, NULL, NULL, 0) && !cairn_session_load(&w, NULL)) &&
	    EXPECT(t, !is_draft || !cairn_model_load(&w.drafter, &w.impl, w.dir, NULL, NULL)) &&
	    EXPECT(t, answer_all(t, &w, NULL, setting, whole, &unused) == 0))
		compare(t, setting->num, is_exact ? 0 : CLOSE, whole, shared);
	free_asked(whole);
	free_asked(shared);
	cairn_session_close(&w);
	cairn_session_close(&s);
}

static const struct cairn_common_options tensor = { .tp = 2 };

static void moves(struct cairn_test *t)
{
	run_setting(t, &moving, &tensor);
}

static void treats(struct cairn_test *t)
{
	const struct setting s = { { SMALL }, treated, 8, 0 };

	run_setting(t, &s, &tensor);
}

static void drafts(struct cairn_test *t)
{
	struct setting s = { { SMALL, .speculation = { .method = CAIRN_SPECULATE_NGRAM, .always = 1 } },
			     treated, 8, 0 };

	run_setting(t, &s, &tensor);
	/* more rows than a part of the embedded model's chains has, which is 8 */
	s.eo.speculation.num_tokens = 12;
	run_setting(t, &s, &tensor);
	s.eo.speculation.method = CAIRN_SPECULATE_DRAFT_MODEL;
	s.eo.speculation.num_tokens = 0;
	s.ask = greedy;
	run_setting(t, &s, &tensor);
}

/* Their bits are those of one process. decode_step, which only that one has, would round elsewhere. */
static void run_exact(struct cairn_test *t, const struct cairn_common_options *ranks)
{
	struct setting m = moving, s = { { SMALL, .chunk_rows = 16, .decode = CAIRN_DECODE_UNFUSED,
					   .speculation = { .method = CAIRN_SPECULATE_NGRAM, .always = 1 } },
					 treated, 8, 0 };

	m.eo.decode = CAIRN_DECODE_UNFUSED;
	m.eo.chunk_rows = 16;
	run_setting(t, &m, ranks);
	run_setting(t, &s, ranks);
}

static void heads(struct cairn_test *t)
{
	const struct cairn_common_options ranks = { .cp = 2 };

	run_exact(t, &ranks);
}

/* The ranks share out the rows of prompts; a ring shares out pages as well, or decodes by decode_step. */
static void context(struct cairn_test *t)
{
	const struct cairn_common_options ring = { .cp = 3, .exchange = CAIRN_EXCHANGE_RING };
	const struct cairn_common_options both = { .tp = 2, .cp = 2 };
	/* greedy: rounding would decide which beam is the second one */
	const struct setting s = { { SMALL, .context_rows = 8 }, greedy, 8, 0 };
	struct setting m = moving;

	m.eo.decode = CAIRN_DECODE_UNFUSED;
	m.eo.context_rows = 8;
	run_setting(t, &m, &both);
	m.eo.context_keys = 1;
	run_setting(t, &m, &ring);
	run_setting(t, &s, &ring);
}

/*
 * Each rank holds some of the pages, which are so few that requests wait for each other. A prefix may end
 * within a page, which is then copied to another one, of the same rank or not.
 */
static void stripes(struct cairn_test *t)
{
	const struct cairn_common_options ring = { .cp = 2, .exchange = CAIRN_EXCHANGE_RING };
	const struct setting s = { { SMALL, .num_pages = 14, .cache_grain = 1, .context_rows = 16,
				     .expected_new = 1, .decode = CAIRN_DECODE_UNFUSED, .stripes = 1 },
				   forked, 12, 0 };
	struct setting drafted = s;

	run_setting(t, &s, &ring);
	drafted.eo.num_pages = 40;
	drafted.eo.speculation = (struct cairn_speculation){ .method = CAIRN_SPECULATE_DRAFT_MODEL,
							     .always = 1 };
	run_setting(t, &drafted, &ring);
}

/* The embedded model has five layers: stages have one or two, and the embeddings are tied. */
static void pipeline(struct cairn_test *t)
{
	const struct cairn_common_options ranks = { .pp = 4 };
	const struct setting s = { { SMALL, .repeatable = 1, .chunk_rows = 16 }, greedy, 8, 0 };

	run_exact(t, &ranks);
	run_setting(t, &s, &ranks);
}

static const struct cairn_unit units[] = {
	{ "moves", moves }, { "treats", treats }, { "drafts", drafts }, { "heads", heads },
	{ "context", context }, { "stripes", stripes }, { "pipeline", pipeline },
};

const struct cairn_family cairn_ranks_engine_family = {
	.stage = "serving", .name = "ranks_engine",
	.units = units, .num_units = ARRAY_SIZE(units),
};
