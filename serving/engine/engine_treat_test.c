// SPDX-License-Identifier: Apache-2.0
/*
 * engine_treat_test - compares penalties, biases and log-probabilities with the naive computation
 *
 * The naive computation has no batches, no caches and no passes that run ahead.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/engine/engine_naive_test.h"

enum { NUM = 8 };

/*
 * Bound on the difference of bf16 logits (up to 8 in size) computed in two ways. The operation list on ref
 * computes the same bits as the naive computation; only treated logits differ, by the tolerance of
 * penalize.h: 11 u |y| is less than 2^-16 for |y| up to 16.
 */
static double slack_of(const char *table, enum cairn_decode_path decode)
{
	return !is_ref(table) || decode != CAIRN_DECODE_UNFUSED ? 0.3 : 0x1p-16;
}

static void make_requests(struct cairn_test *t, const struct golden *g, struct cairn_request *reqs,
			  struct answer (*answers)[2])
{
	static const struct cairn_logit_bias bias[] = { { 7, 1.5f }, { 12, -100 }, { 100, 0.75f } };
	static const int32_t stops[] = { 3, 30, 60, 90, 120, 150, 180 };

	for (int i = 0; i < NUM; i++) {
		struct cairn_sampling *s = &reqs[i].sampling;

		memset(answers[i], 0, sizeof(answers[i]));
		reqs[i] = request(g, 5 + (int)(cairn_rand(t) % 28), 16, &answers[i][0]);
		answers[i][1].cached = -1;
		reqs[i].num_seqs = i % 4 == 3 ? 2 : 1;
		s->presence_penalty = i & 1 ? 0.6f : 0;
		s->frequency_penalty = i & 2 ? 0.4f : 0;
		s->repetition_penalty = i % 3 == 2 ? 1.3f : 0;
		s->bias = bias;
		s->num_bias = i & 4 ? 3 : 0;
		s->min_new_tokens = i & 1 ? 7 : 0;
		reqs[i].stop_ids = stops;
		reqs[i].num_stop_ids = 7;
		s->num_logprobs = i % 5 == 0 ? 0 : i % 5 == 1 ? 1 : 1 + i;
	}
}

static void treated(struct cairn_test *t, const char *table, enum cairn_decode_path decode)
{
	struct cairn_engine_options opt = {
		.max_batch = 6, .max_context = 96, .max_rows = 32, .page_size = 8, .num_pages = 50,
		.decode = decode,
	};
	struct cairn_request reqs[NUM];
	struct answer (*answers)[2] = calloc(NUM, sizeof(*answers));
	struct cairn_engine_stats stats;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		goto out;
	if (naive_open(t, &n, g.dir) || !EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out_model;
	make_requests(t, &g, reqs, answers);
	for (int i = 0; i < NUM; i++) {
		if (!EXPECT(t, cairn_engine_submit(e, &reqs[i]) == 0))
			goto out_engine;
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	EXPECT(t, cairn_engine_verify(e) == 0);
	for (int i = 0; i < NUM; i++) {
		for (int k = 0; k < (reqs[i].num_seqs == 2 ? 2 : 1); k++) {
			const struct answer *a = &answers[i][k];

			EXPECT(t, a->num_finished == 1);
			EXPECT(t, a->num_ids >= reqs[i].sampling.min_new_tokens);
			naive_judge(t, &n, &reqs[i], a, slack_of(table, decode));
			for (int j = 0; j < a->num_ids; j++)
				EXPECT(t, a->num_top[j] == (reqs[i].sampling.num_logprobs ?
					  reqs[i].sampling.num_logprobs - 1 : 0));
		}
	}
	cairn_engine_stats(e, &stats);
	EXPECT(t, stats.scheduler.num_running == 0 && stats.scheduler.device.num_seqs == 0);
out_engine:
	cairn_engine_destroy(e);
out_model:
	naive_close(&n);
	close_model(m, &g);
out:
	free(answers);
}

/* Checks that answer k of request i is the naive one, token by token. */
static void expect_naive(struct cairn_test *t, struct naive *n, const struct cairn_request *r, int i, int k,
			 const struct answer *a)
{
	int32_t want[MAX_NEW];
	int num = naive_answer(t, n, r, k, want);

	if (!EXPECT(t, a->num_ids == num && !memcmp(a->ids, want, (size_t)num * sizeof(*want))))
		cairn_note(t, "request %d, answer %d: %d tokens, not %d", i, k, a->num_ids, num);
}

/* Samples with all features on and all requests at once; on ref every token must match. */
static void drawn(struct cairn_test *t, const char *table)
{
	struct cairn_engine_options opt = {
		.max_batch = 5, .max_context = 96, .max_rows = 40, .page_size = 4, .num_pages = 60,
		.decode = CAIRN_DECODE_UNFUSED,
	};
	struct cairn_request reqs[NUM];
	struct answer (*answers)[2] = calloc(NUM, sizeof(*answers));
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		goto out;
	if (naive_open(t, &n, g.dir) || !EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out_model;
	make_requests(t, &g, reqs, answers);
	for (int i = 0; i < NUM; i++) {
		reqs[i].sampling.temperature = 0.9f + 0.1f * (float)i;
		reqs[i].sampling.top_p = i & 1 ? 0.95f : 1;
		reqs[i].sampling.top_k = i & 2 ? 40 : 0;
		reqs[i].sampling.seed = cairn_rand(t);
		EXPECT(t, cairn_engine_submit(e, &reqs[i]) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	for (int i = 0; i < NUM; i++) {
		for (int k = 0; k < (reqs[i].num_seqs == 2 ? 2 : 1); k++)
			expect_naive(t, &n, &reqs[i], i, k, &answers[i][k]);
		if (reqs[i].num_seqs == 2)
			EXPECT(t, memcmp(answers[i][0].ids, answers[i][1].ids, 4 * sizeof(int32_t)));
	}
	cairn_engine_destroy(e);
out_model:
	naive_close(&n);
	close_model(m, &g);
out:
	free(answers);
}

static void drawn_ref(struct cairn_test *t)
{
	drawn(t, "ref");
}

static void drawn_late_ref(struct cairn_test *t)
{
	drawn(t, "late_ref2");
}

static void submit_counted(struct cairn_test *t, struct cairn_engine *e, const struct golden *g, int i,
			   int32_t num_given, int64_t deadline_ns, struct cairn_request *r, struct answer *a)
{
	*r = request(g, 12 + i, 8, a);
	r->ignore_eos = 1;
	r->num_given = num_given;
	r->deadline_ns = deadline_ns;
	r->sampling.presence_penalty = 0.5f;
	r->sampling.repetition_penalty = 1.4f;
	EXPECT(t, cairn_engine_submit(e, r) == 0);
}

/*
 * The counters of a full batch must suffice for the batch that replaces it in one plan. The first four
 * requests are cancelled while their pass is in flight, or expire in the very plan that admits the others.
 */
static void replaced(struct cairn_test *t, int expires)
{
	const enum cairn_finish ended = expires ? CAIRN_FINISH_EXPIRED : CAIRN_FINISH_CANCELLED;
	const int64_t deadline = expires ? cairn_clock_ns() + 50000000 : 0;
	struct cairn_engine_options opt = {
		.max_batch = NUM / 2, .max_context = 64, .decode = CAIRN_DECODE_UNFUSED,
	};
	struct answer *answers = calloc(NUM, sizeof(*answers));
	struct cairn_request reqs[NUM];
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;
	int busy;

	if (open_model(t, "ref", "llama3_tiny", &impl, &g, &m))
		goto out;
	if (naive_open(t, &n, g.dir) || !EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out_model;
	for (int i = 0; i < NUM; i++)
		submit_counted(t, e, &g, i, 5, i < NUM / 2 ? deadline : 0, &reqs[i], &answers[i]);
	EXPECT(t, cairn_engine_step(e, &busy) == 0);
	if (expires)
		EXPECT(t, cairn_engine_step(e, &busy) == 0);
	for (int i = 0; i < NUM / 2 && !expires; i++)
		EXPECT(t, cairn_engine_cancel(e, reqs[i].id) == 0);
	while (cairn_clock_ns() < deadline)
		;
	EXPECT(t, cairn_engine_run(e) == 0);
	for (int i = 0; i < NUM; i++) {
		EXPECT(t, answers[i].num_finished == 1);
		if (i < NUM / 2)
			EXPECT(t, answers[i].why == ended);
		else
			expect_naive(t, &n, &reqs[i], i, 0, &answers[i]);
	}
	cairn_engine_destroy(e);
out_model:
	naive_close(&n);
	close_model(m, &g);
out:
	free(answers);
}

static void replaced_after_cancel(struct cairn_test *t)
{
	replaced(t, 0);
}

static void replaced_after_deadline(struct cairn_test *t)
{
	replaced(t, 1);
}

static void bad_requests(struct cairn_test *t)
{
	struct cairn_engine_options opt = { .max_batch = 4, .max_context = 64 };
	static const struct cairn_logit_bias outside = { 192, 1 }, infinite = { 1, INFINITY };
	static const struct cairn_logit_bias twice[] = { { 5, 1 }, { 6, 1 }, { 5, 2 } };
	static const int32_t stop = -1;
	struct { const char *text; struct cairn_request r; } rows[18];
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	struct answer a;
	int k = 0;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		rows[i].r = request(&g, 10, 10, &a);
	rows[k].r.sampling.presence_penalty = NAN, rows[k++].text = "presence_penalty: ";
	rows[k].r.sampling.frequency_penalty = INFINITY, rows[k++].text = "frequency_penalty: ";
	rows[k].r.sampling.repetition_penalty = -1, rows[k++].text = "repetition_penalty: ";
	rows[k].r.sampling.min_new_tokens = 11, rows[k++].text = "min_new_tokens: is 11";
	rows[k].r.sampling.num_logprobs = 22, rows[k++].text = "num_logprobs: is 22";
	rows[k].r.sampling.bias = &outside, rows[k].r.sampling.num_bias = 1,
	rows[k++].text = "bias: token 192";
	rows[k].r.sampling.bias = &infinite, rows[k].r.sampling.num_bias = 1,
	rows[k++].text = "bias: the value of token 1";
	rows[k].r.sampling.bias = twice, rows[k].r.sampling.num_bias = 3,
	rows[k++].text = "token 5 occurs twice";
	rows[k].r.sampling.num_bias = 1, rows[k++].text = "bias: 1 entries";
	rows[k].r.num_stop_ids = 1, rows[k].r.stop_ids = &stop, rows[k++].text = "stop_ids: id 0 is -1";
	rows[k].r.num_seqs = 5, rows[k++].text = "num_seqs: is 5";
	rows[k].r.num_seqs = -1, rows[k++].text = "num_seqs: is -1";
	rows[k].r.deadline_ns = -1, rows[k++].text = "deadline_ns";
	rows[k].r.beam_width = 5, rows[k++].text = "beam_width: is 5";
	rows[k].r.beam_width = 2, rows[k].r.num_seqs = 3, rows[k++].text = "num_seqs: is 3";
	rows[k].r.beam_width = 2, rows[k].r.length_penalty = NAN, rows[k++].text = "length_penalty";
	rows[k].r.beam_width = 2, rows[k].r.sampling.presence_penalty = 1;
	rows[k++].text = "beam_width: cannot be combined with";
	rows[k].r.beam_width = 2, rows[k].r.sampling.num_logprobs = 2, rows[k++].text = "num_logprobs: is 2";
	if (EXPECT(t, k == ARRAY_SIZE(rows)) && EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			EXPECT(t, cairn_engine_submit(e, &rows[i].r) == -EINVAL);
			EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
		}
		cairn_engine_destroy(e);
	}
	/* A table built before these operations existed: the error names the field. */
	impl.penalize = NULL;
	impl.logprobs = NULL;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		rows[0].r.sampling.presence_penalty = 1;
		EXPECT(t, cairn_engine_submit(e, &rows[0].r) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "presence_penalty: cpu: the table has no operation");
		rows[4].r.sampling.num_logprobs = 1;
		EXPECT(t, cairn_engine_submit(e, &rows[4].r) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "num_logprobs: cpu: the table has no operation");
		EXPECT(t, cairn_engine_run(e) == 0);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

#define TABLE(table) \
	static void treated_##table(struct cairn_test *t) { treated(t, #table, CAIRN_DECODE_AUTO); } \
	static void listed_##table(struct cairn_test *t) { treated(t, #table, CAIRN_DECODE_UNFUSED); }
TABLE(ref)
TABLE(cpu)
TABLE(cuda)
TABLE(late)
TABLE(late_ref)
#define UNITS(table) \
	{ "treated_" #table, treated_##table }, { "treated_unfused_" #table, listed_##table }

static const struct cairn_unit units[] = {
	UNITS(ref), UNITS(cpu), UNITS(cuda), UNITS(late), UNITS(late_ref),
	{ "drawn_ref", drawn_ref },
	{ "drawn_late_ref", drawn_late_ref },
	{ "replaced_after_cancel", replaced_after_cancel },
	{ "replaced_after_deadline", replaced_after_deadline },
	{ "bad_requests", bad_requests },
};

const struct cairn_family cairn_engine_treat_family = {
	.stage = "serving",
	.name = "engine_treat",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
