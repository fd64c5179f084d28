// SPDX-License-Identifier: Apache-2.0
/*
 * engine_mask_test - requests with constraints among others
 *
 * The masks come from a rule that depends on the constraint, the answer and every token before, so a mask
 * made for another draw, answer or constraint differs. Greedy answers are compared with the naive
 * computation, from whose logits the tokens that the rule excludes are removed; sampled ones with a run
 * without speculation, and token by token with the rule.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

enum { NUM = 9, ANSWERS = 2, LEN = 24, VOCAB_MAX = 512 };

enum fault { NONE, NEIGHBOUR, CONSTRAINT, EARLIER, LATER, OPEN, REVERSED, NUM_FAULTS };
static const char *const fault_names[] = { "none", "neighbour's", "other constraint's", "earlier draw's",
					   "later draw's", "open", "reversed bits" };

/* The tokens of one answer that its constraint has been told. */
struct taken {
	int32_t tokens[LEN + 64];
	int num;
};

/* A source of masks by the rule. */
struct source {
	struct cairn_mask_source masks;
	const struct cairn_model_config *config;
	struct taken taken[NUM + 1][ANSWERS];
	uint32_t bits[256][VOCAB_MAX / 32];
	struct { uint64_t constraint; int32_t seq; int64_t draw; } heads[256];
	int num_masks;
	enum fault fault;
	uint64_t lose;			/* this constraint fails at draw 3 */
	int wrong;			/* items whose draw number is not the number of tokens told */
	int steps, drafts;
};

static uint64_t mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

/*
 * The rule: about one token in six is allowed, and always at least one. An end token is allowed only after
 * four tokens, and then in one case of five.
 */
static int allows(const struct cairn_model_config *c, uint64_t constraint, int32_t seq, const int32_t *tokens,
		  int num, int32_t token)
{
	uint64_t h = mix(constraint, (uint64_t)seq);

	for (int i = 0; i < num; i++)
		h = mix(h, (uint64_t)tokens[i]);
	for (int i = 0; i < c->num_eos; i++)
		if (token == c->eos_token_ids[i])
			return num >= 4 && h % 5 == 0;
	return mix(h, (uint64_t)token) % 6 == 0 ||
	       (uint64_t)token == 100 + (h >> 7) % (uint64_t)(c->vocab_size - 100);
}

static void put_mask(struct source *s, const struct cairn_mask_item *item, const int32_t *tokens, int num)
{
	uint64_t constraint = item->constraint + (s->fault == CONSTRAINT);
	int32_t seq = item->seq + (s->fault == NEIGHBOUR), vocab = s->masks.vocab_size;
	uint32_t *bits = s->bits[s->num_masks];

	s->heads[s->num_masks].constraint = item->constraint;
	s->heads[s->num_masks].seq = item->seq;
	s->heads[s->num_masks++].draw = num;
	num += s->fault == LATER ? 1 : s->fault == EARLIER && num ? -1 : 0;
	memset(bits, s->fault == OPEN ? 0xff : 0, sizeof(s->bits[0]));
	for (int32_t id = 0; id < vocab; id++)
		if (allows(s->config, constraint, seq, tokens, num, id))
			bits[id / 32] |= s->fault == REVERSED ? 1u << (31 - id % 32) : 1u << id % 32;
}

static int step(void *ctx, struct cairn_mask_item *items, int32_t num)
{
	struct source *s = ctx;

	s->num_masks = 0;
	s->steps++;
	for (int32_t i = 0; i < num; i++) {
		struct cairn_mask_item *item = &items[i];
		struct taken *t = &s->taken[item->constraint][item->seq];
		int at;

		memcpy(t->tokens + t->num, item->tokens, (size_t)item->num_tokens * sizeof(*item->tokens));
		t->num += item->num_tokens;
		s->wrong += t->num != item->draw;
		item->first_mask = s->num_masks;
		item->num_valid = -1;
		if (s->lose == item->constraint && t->num >= 3)
			continue;
		s->drafts += item->num_drafts;
		for (at = t->num;; at++) {
			int32_t draft = item->num_valid + 1 < item->num_drafts ?
					item->drafts[item->num_valid + 1] : -1;

			if (item->wants_masks)
				put_mask(s, item, t->tokens, at);
			item->num_valid++;
			if (draft < 0 || !allows(s->config, item->constraint, item->seq, t->tokens, at,
						 draft))
				break;
			t->tokens[at] = draft;
		}
	}
	return 0;
}

static const uint32_t *mask(void *ctx, int32_t i, uint64_t constraint, int32_t seq, int64_t draw)
{
	struct source *s = ctx;

	return i < s->num_masks && s->heads[i].constraint == constraint && s->heads[i].seq == seq &&
	       s->heads[i].draw == draw ? s->bits[i] : NULL;
}

static void make_source(struct source *s, const struct cairn_model *m)
{
	memset(s, 0, sizeof(*s));
	s->masks = (struct cairn_mask_source){ s, m->config.vocab_size, step, mask };
	s->config = &m->config;
}

/* Two requests in three have a constraint; some have penalties, log-probabilities and two answers. */
static void make_requests(const struct golden *g, struct cairn_request *reqs,
			  struct answer (*answers)[ANSWERS], float temperature)
{
	static const struct cairn_logit_bias bias[] = { { 7, 3 }, { 12, 2 } };

	for (int i = 0; i < NUM; i++) {
		struct cairn_sampling *s = &reqs[i].sampling;

		memset(answers[i], 0, sizeof(answers[i]));
		reqs[i] = request(g, 6 + 3 * i, LEN - i, &answers[i][0]);
		answers[i][1].cached = -1;
		reqs[i].num_seqs = i % 4 == 1 ? ANSWERS : 1;
		reqs[i].constraint = i % 3 == 2 ? 0 : (uint64_t)i + 1;
		s->temperature = temperature;
		s->seed = (uint64_t)i;
		s->presence_penalty = i % 4 == 3 ? 0.7f : 0;
		s->repetition_penalty = i % 5 == 4 ? 1.2f : 0;
		s->bias = bias;
		s->num_bias = i % 2 ? 2 : 0;
		s->num_logprobs = i % 2 ? 3 : 0;
	}
}

/* Returns how many answers have a token that the rule excludes, or end otherwise than they may. */
static int count_wrong(const struct source *s, const struct cairn_request *reqs,
		       struct answer (*answers)[ANSWERS])
{
	int wrong = 0;

	for (int i = 0; i < NUM; i++)
		for (int k = 0; k < (reqs[i].num_seqs ? reqs[i].num_seqs : 1); k++) {
			const struct answer *a = &answers[i][k];
			int bad = a->num_finished != 1 ||
				  (a->why != CAIRN_FINISH_STOP && a->why != CAIRN_FINISH_LENGTH);

			for (int j = 0; reqs[i].constraint && j < a->num_ids; j++)
				bad |= !allows(s->config, reqs[i].constraint, k, a->ids, j, a->ids[j]);
			if (reqs[i].constraint && a->why == CAIRN_FINISH_STOP)
				bad |= !allows(s->config, reqs[i].constraint, k, a->ids, a->num_ids,
					       a->end_token);
			wrong += bad;
		}
	return wrong;
}

static int run(struct cairn_test *t, struct cairn_model *m, struct cairn_engine_options opt, struct source *s,
	       const struct cairn_request *reqs, struct cairn_engine_stats *stats)
{
	struct cairn_engine *e;

	opt.masks = &s->masks;
	opt.max_context = 96;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		return -1;
	for (int i = 0; i < NUM; i++)
		EXPECT(t, cairn_engine_submit(e, &reqs[i]) == 0);
	if (EXPECT(t, cairn_engine_run(e) == 0))
		EXPECT(t, cairn_engine_verify(e) == 0);
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
	return 0;
}

/* Checks a greedy answer against the naive logits under the rule, and its log-probabilities against them. */
static void judge(struct cairn_test *t, struct naive *n, const struct source *s,
		  const struct cairn_request *r, const struct answer *a, int seq)
{
	_Alignas(16) float logits[NAIVE_VOCAB];
	double logprobs[NAIVE_VOCAB];
	int32_t tokens[NAIVE_LEN], best;

	memcpy(tokens, r->prompt, (size_t)r->num_prompt * sizeof(*tokens));
	for (int i = 0; i <= a->num_ids && i < r->max_new_tokens; i++) {
		if (naive_logits(t, n, tokens, r->num_prompt + i, logits))
			return;
		naive_log_softmax(n, logits, logprobs);
		naive_treat(n, r, tokens, r->num_prompt + i, logits);
		best = -1;
		for (int32_t id = 0; id < n->vocab; id++)
			if ((!r->constraint || allows(s->config, r->constraint, seq, a->ids, i, id)) &&
			    (best < 0 || logits[id] > logits[best]))
				best = id;
		if (!EXPECT(t, best == (i < a->num_ids ? a->ids[i] : a->end_token)) || i == a->num_ids)
			return;
		if (r->sampling.num_logprobs)
			EXPECT(t, fabs((double)a->logprob[i] - logprobs[best]) <=
				  logprob_error(logprobs[best]));
		tokens[r->num_prompt + i] = best;
	}
}

static void greedy(struct cairn_test *t)
{
	struct answer (*answers)[ANSWERS] = calloc(NUM, sizeof(*answers));
	struct source *s = calloc(1, sizeof(*s));
	struct cairn_engine_options opt = { .max_batch = 5, .max_rows = 32, .page_size = 4,
					    .decode = CAIRN_DECODE_UNFUSED };
	struct cairn_request reqs[NUM];
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model(t, "ref", "llama3_tiny", &impl, &g, &m))
		goto out;
	if (!naive_open(t, &n, g.dir)) {
		make_source(s, m);
		make_requests(&g, reqs, answers, 0);
		run(t, m, opt, s, reqs, &stats);
		EXPECT(t, !s->wrong && !count_wrong(s, reqs, answers) && s->steps > LEN / 2);
		for (int i = 0; i < NUM; i++)
			for (int k = 0; k < (reqs[i].num_seqs ? reqs[i].num_seqs : 1); k++)
				judge(t, &n, s, &reqs[i], &answers[i][k], k);
	}
	naive_close(&n);
	close_model(m, &g);
out:
	free(answers);
	free(s);
}

static int same(const struct cairn_request *reqs, struct answer (*a)[ANSWERS], struct answer (*b)[ANSWERS])
{
	for (int i = 0; i < NUM; i++)
		for (int k = 0; k < (reqs[i].num_seqs ? reqs[i].num_seqs : 1); k++)
			if (a[i][k].num_ids != b[i][k].num_ids || a[i][k].why != b[i][k].why ||
			    memcmp(a[i][k].ids, b[i][k].ids, (size_t)a[i][k].num_ids * sizeof(int32_t)))
				return 0;
	return 1;
}

/* Proposes random tokens; the rule allows some of them. ctx: whether they form a tree. */
static int32_t propose(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
		       int32_t *drafts, int32_t *parents, int32_t room)
{
	static const int32_t tree[] = { 0, 1, 1, 0, 2, 2 };

	if (ctx && room > 6)
		room = 6;
	for (int32_t k = 0; ctx && k < room; k++)
		parents[k] = tree[k];
	for (int32_t k = 0; k < room; k++)
		drafts[k] = (int32_t)(mix(mix(id, (uint64_t)(index + num)), (uint64_t)tokens[num - 1]) >>
				      (5 * k + 3)) & 127;
	return room;
}

/* The same answers however passes are made: in turn, with drafts or preempted, with and without graphs. */
static void other_ways(struct cairn_test *t, const char *table)
{
	static const char *const names[] = { "plain", "in turn", "drafts", "prompt lookup", "preempted",
					     "trees" };
	struct answer (*want)[ANSWERS] = calloc(NUM, sizeof(*want));
	struct answer (*got)[ANSWERS] = calloc(NUM, sizeof(*got));
	struct source *s = calloc(1, sizeof(*s));
	struct cairn_request reqs[NUM];
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, table, "llama3_tiny", &impl, &g, &m))
		goto out;
	for (int way = 0; way < 6; way++) {
		struct cairn_engine_options opt = {
			.max_batch = 5, .max_rows = 48, .page_size = 4, .decode = CAIRN_DECODE_UNFUSED,
			.in_turn = way == 1,
		};

		if (way == 2 || way == 3)
			opt.speculation = (struct cairn_speculation){
				.method = way == 2 ? CAIRN_SPECULATE_CALLER : CAIRN_SPECULATE_NGRAM,
				.num_tokens = 4, .lookup_min = 1, .always = 1, .draft = propose,
			};
		if (way == 5)
			opt.speculation = (struct cairn_speculation){
				.method = CAIRN_SPECULATE_CALLER, .num_tokens = 3, .branches = 2,
				.always = 1, .draft = propose, .ctx = &impl,
			};
		if (way == 4) {
			opt.num_pages = 26;
			opt.expected_new = 1;
		}
		make_source(s, m);
		make_requests(&g, reqs, way ? got : want, 1);
		if (run(t, m, opt, s, reqs, &stats))
			break;
		/* a tree's rows are attended by another kernel: on a GPU, near draws may fall otherwise */
		if (!EXPECT(t, !s->wrong && !count_wrong(s, reqs, way ? got : want)) ||
		    !EXPECT(t, !way || (way == 5 && !strcmp(table, "cuda")) || same(reqs, want, got)))
			cairn_note(t, "%s", names[way]);
		EXPECT(t, (way != 2 && way != 5) || s->drafts > 0);
		EXPECT(t, way != 4 || stats.scheduler.recomputed + stats.scheduler.swapped > 0);
		EXPECT(t, !strcmp(table, "cpu") || way || stats.graph_steps > 0);
	}
	close_model(m, &g);
out:
	free(want);
	free(got);
	free(s);
}

static void other_ways_cpu(struct cairn_test *t) { other_ways(t, "cpu"); }
static void other_ways_late(struct cairn_test *t) { other_ways(t, "late"); }
static void other_ways_cuda(struct cairn_test *t) { other_ways(t, "cuda"); }

/* ---- failures ---- */

/* The answers of a constraint that fails end with an error; no token of theirs comes without a mask. */
static void lost(struct cairn_test *t)
{
	struct answer (*answers)[ANSWERS] = calloc(NUM, sizeof(*answers));
	struct source *s = calloc(1, sizeof(*s));
	struct cairn_request reqs[NUM];
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!open_model(t, "cpu", "llama3_tiny", &impl, &g, &m)) {
		for (int drafts = 0; drafts < 2; drafts++) {
			struct cairn_engine_options opt = { .max_batch = 5, .max_rows = 48 };

			if (drafts)
				opt.speculation = (struct cairn_speculation){
					.method = CAIRN_SPECULATE_CALLER, .num_tokens = 3, .always = 1,
					.draft = propose,
				};
			make_source(s, m);
			make_requests(&g, reqs, answers, 1);
			s->lose = reqs[1].constraint;
			run(t, m, opt, s, reqs, &stats);
			for (int k = 0; k < ANSWERS; k++) {
				EXPECT(t, answers[1][k].why == CAIRN_FINISH_CONSTRAINT);
				EXPECT(t, answers[1][k].num_ids == 3);
			}
			EXPECT(t, count_wrong(s, reqs, answers) == ANSWERS);
		}
		close_model(m, &g);
	}
	free(answers);
	free(s);
}

static int nothing_masked(const struct cairn_mask_logits_args *args, void *stream)
{
	(void)args;
	(void)stream;
	return 0;
}

static int next_mask(const struct cairn_mask_logits_args *args, void *stream)
{
	struct cairn_mask_logits_args other = *args;
	int32_t slot[256];

	for (int32_t i = 0; i < args->rows; i++)
		slot[i] = args->slot[i] < 0 ? -1 : args->slot[i] ? args->slot[i] - 1 : 1;
	other.slot = slot;
	return cairn_mask_logits_ref(&other, stream);
}

static int first_row_alone(const struct cairn_mask_logits_args *args, void *stream)
{
	struct cairn_mask_logits_args other = *args;

	other.rows = other.rows > 1;
	return cairn_mask_logits_ref(&other, stream);
}

/* A table that masks wrongly ends answers with an error: no excluded token is ever given. */
static void wrong_tables(struct cairn_test *t)
{
	static int (*const wrong[])(const struct cairn_mask_logits_args *, void *) = {
		nothing_masked, next_mask, first_row_alone,
	};
	struct answer (*answers)[ANSWERS] = calloc(NUM, sizeof(*answers));
	struct source *s = calloc(1, sizeof(*s));
	struct cairn_engine_options opt = { .max_batch = 5, .max_rows = 48 };
	struct cairn_request reqs[NUM];
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!open_model(t, "cpu", "llama3_tiny", &impl, &g, &m)) {
		for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
			int ended = 0;

			impl.mask_logits = wrong[i];
			make_source(s, m);
			make_requests(&g, reqs, answers, 1);
			run(t, m, opt, s, reqs, &stats);
			for (int k = 0; k < NUM; k++) {
				ended += answers[k][0].why == CAIRN_FINISH_CONSTRAINT;
				if (answers[k][0].why == CAIRN_FINISH_CONSTRAINT)
					answers[k][0].why = CAIRN_FINISH_LENGTH;
				if (answers[k][1].why == CAIRN_FINISH_CONSTRAINT)
					answers[k][1].why = CAIRN_FINISH_LENGTH;
			}
			EXPECT(t, ended > 0 && !count_wrong(s, reqs, answers));
		}
		close_model(m, &g);
	}
	free(answers);
	free(s);
}

/* count_wrong() of this test detects each kind of wrong mask. */
static void noticed(struct cairn_test *t)
{
	struct answer (*answers)[ANSWERS] = calloc(NUM, sizeof(*answers));
	struct source *s = calloc(1, sizeof(*s));
	struct cairn_engine_options opt = { .max_batch = 5, .max_rows = 48 };
	struct cairn_request reqs[NUM];
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!open_model(t, "cpu", "llama3_tiny", &impl, &g, &m)) {
		for (int fault = NONE; fault < NUM_FAULTS; fault++) {
			int wrong;

			make_source(s, m);
			s->fault = (enum fault)fault;
			make_requests(&g, reqs, answers, 1);
			run(t, m, opt, s, reqs, &stats);
			wrong = count_wrong(s, reqs, answers);
			cairn_note(t, "%s: %d answers", fault_names[fault], wrong);
			EXPECT(t, (wrong > 0) == (fault != NONE));
		}
		close_model(m, &g);
	}
	free(answers);
	free(s);
}

static void is_refused(struct cairn_test *t, struct cairn_engine *e, const struct cairn_request *r, int error,
		       const char *why)
{
	EXPECT(t, cairn_engine_submit(e, r) == -error);
	EXPECT_CONTAINS(t, cairn_last_error(), why);
}

static void refusals(struct cairn_test *t)
{
	struct source *s = calloc(1, sizeof(*s));
	struct cairn_engine_options opt = { .max_batch = 2, .max_rows = 32 };
	struct cairn_request r, other;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct answer a;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m)) {
		free(s);
		return;
	}
	r = request(&g, 8, 4, &a);
	r.constraint = 1;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		is_refused(t, e, &r, EOPNOTSUPP, "constraint: the engine has no source of masks");
		cairn_engine_destroy(e);
	}
	make_source(s, m);
	opt.masks = &s->masks;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		other = r;
		other.beam_width = 2;
		is_refused(t, e, &other, EINVAL, "constraint: does not go with beam_width");
		other = r;
		other.ignore_eos = 1;
		is_refused(t, e, &other, EINVAL, "constraint: does not go with ignore_eos");
		other = r;
		other.sampling.min_new_tokens = 1;
		is_refused(t, e, &other, EINVAL, "constraint: does not go with min_new_tokens");
		impl.mask_logits = NULL;
		is_refused(t, e, &r, EOPNOTSUPP, "constraint: cpu: the table has no operation mask_logits");
		cairn_engine_destroy(e);
	}
	s->masks.vocab_size++;
	EXPECT(t, cairn_engine_create(&e, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "engine: masks: of ");
	close_model(m, &g);
	free(s);
}

/* An answer that another engine has begun: its constraint is told the tokens that it has. */
static void goes_on(struct cairn_test *t)
{
	struct cairn_request reqs[NUM];
	struct answer answers[NUM][ANSWERS], rest;
	struct cairn_engine_options opt = {
		.max_batch = 4, .max_context = 96, .decode = CAIRN_DECODE_UNFUSED,
	};
	static struct source s;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	int32_t ids[96];

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	make_source(&s, m);
	make_requests(&g, reqs, answers, 1);
	opt.masks = &s.masks;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out;
	EXPECT(t, cairn_engine_submit(e, &reqs[0]) == 0 && cairn_engine_run(e) == 0);
	for (int given = 1; given < answers[0][0].num_ids; given += 4) {
		struct cairn_request r = reqs[0];

		make_source(&s, m);
		memset(&rest, 0, sizeof(rest));
		memcpy(ids, r.prompt, (size_t)r.num_prompt * sizeof(*ids));
		memcpy(ids + r.num_prompt, answers[0][0].ids, (size_t)given * sizeof(*ids));
		r.prompt = ids;
		r.num_prompt += given;
		r.num_given = given;
		r.max_new_tokens -= given;
		r.ctx = &rest;
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		EXPECT(t, s.wrong == 0 && rest.num_ids == answers[0][0].num_ids - given &&
		       !memcmp(rest.ids, answers[0][0].ids + given,
			       (size_t)rest.num_ids * sizeof(*rest.ids)));
	}
	cairn_engine_destroy(e);
out:
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "greedy", greedy }, { "goes_on", goes_on }, { "other_ways_cpu", other_ways_cpu },
	{ "other_ways_late", other_ways_late }, { "other_ways_cuda", other_ways_cuda },
	{ "lost", lost }, { "wrong_tables", wrong_tables }, { "noticed", noticed }, { "refusals", refusals },
};

const struct cairn_family cairn_engine_mask_family = {
	.stage = "serving", .name = "engine_mask", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 2,
};
