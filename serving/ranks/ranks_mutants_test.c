// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_mutants_test - what rank 0 sends to the others is falsified in one point, and the test must detect it
 *
 * A mutant is caught if the run ends with an error (another token was drawn, or a rank refused a plan), or if
 * the answers are not those of the run without mutants. The sums of a pass are the same on all ranks, so
 * wrong keys of one rank change the tokens of all.
 */
#include "conformance/harness.h"
#include "serving/ranks/ranks_engine_test.h"

/* The functions run before a call is passed on, and return 1 if it must be dropped. */
struct mutant {
	const char *name;
	int (*part)(struct cairn_worker_part *p, struct cairn_sampling *s, struct cairn_worker_treat *w);
	int (*draw)(struct cairn_worker_part *p, struct cairn_worker_treat *w, int32_t *row);
	int (*move)(struct cairn_move *m);
	int (*lists)(struct cairn_logit_bias *bias, int32_t *num_bias, int32_t *forbidden,
		     int32_t *num_forbidden);
	int unlist;
};

static const struct mutant *mutant;	/* NULL: none */
static const struct cairn_engine_tap *real;
static int changed;			/* how often the mutant has acted */

#define PART(name, change) \
	static int name(struct cairn_worker_part *p, struct cairn_sampling *s, struct cairn_worker_treat *w) \
	{ \
		(void)p; \
		(void)s; \
		(void)w; \
		change; \
		return 0; \
	}
#define DRAW(name, change) \
	static int name(struct cairn_worker_part *p, struct cairn_worker_treat *w, int32_t *row) \
	{ \
		(void)p; \
		(void)w; \
		(void)row; \
		change; \
		return 0; \
	}
#define LISTS(name, change) \
	static int name(struct cairn_logit_bias *b, int32_t *num_b, int32_t *f, int32_t *num_f) \
	{ \
		(void)b; \
		(void)num_b; \
		(void)f; \
		(void)num_f; \
		change; \
		return 0; \
	}

/* Returns the pages with the first one twice and the last one lost. */
static const int32_t *shifted(const int32_t *pages, int32_t num)
{
	static int32_t copy[1024];

	if (num < 2 || num > (int32_t)ARRAY_SIZE(copy))
		return pages;
	copy[0] = pages[0];
	memcpy(copy + 1, pages, ((size_t)num - 1) * sizeof(*pages));
	return copy;
}

PART(other_seed, p->seed ^= 1)
PART(other_offset, p->offset++)
PART(greedy_draw, s->temperature = 0)
PART(other_top_p, s->top_p = 0.01f)
PART(treat_lost, p->treat = NULL)
PART(slot_lost, w->slot = -1)
PART(prompt_lost, w->num_prompt = 0)
PART(never_begins, w->begins = 0)
PART(penalty_lost, w->repetition = 1)
PART(presence_lost, w->presence = 0)
PART(bias_lost, w->num_bias = 0)
PART(bias_elsewhere, w->bias_at += w->num_bias > 0)
PART(forbidden_lost, w->num_forbidden = 0)
PART(first_page_twice, p->pages = shifted(p->pages, p->num_pages))
PART(row_too_early, p->position -= p->position > 0)
PART(follows_none, p->follows = p->follows > 0 ? 0 : p->follows)
PART(one_row_less, p->num_rows -= p->num_rows > 1)
DRAW(draw_lost, return 1)
DRAW(draw_of_first_row, *row = 0)
DRAW(draw_seed, p->seed++)
DRAW(fork_lost, w->forks = 0)
DRAW(drafts_lost, w->num_drafts = 0)
LISTS(lists_lost, return 1)
LISTS(bias_of_another, b[0].token ^= *num_b > 0)
LISTS(bias_value, b[0].bias += 9)
LISTS(forbidden_other, f[0] ^= *num_f > 0)

static int copies_lost(struct cairn_move *m)
{
	return m->kind == CAIRN_MOVE_COPY;
}

static int in_other_page(struct cairn_move *m)
{
	m->page ^= m->kind == CAIRN_MOVE_IN;
	return 0;
}

static const struct mutant of_treats[] = {
	{ .name = "other_seed", .part = other_seed }, { .name = "other_offset", .part = other_offset },
	{ .name = "greedy_draw", .part = greedy_draw }, { .name = "other_top_p", .part = other_top_p },
	{ .name = "treat_lost", .part = treat_lost },
	{ .name = "slot_lost", .part = slot_lost },
	{ .name = "prompt_lost", .part = prompt_lost },
	{ .name = "never_begins", .part = never_begins }, { .name = "penalty_lost", .part = penalty_lost },
	{ .name = "presence_lost", .part = presence_lost }, { .name = "bias_lost", .part = bias_lost },
	{ .name = "bias_elsewhere", .part = bias_elsewhere },
	{ .name = "forbidden_lost", .part = forbidden_lost },
	{ .name = "first_page_twice", .part = first_page_twice },
	{ .name = "row_too_early", .part = row_too_early }, { .name = "follows_none", .part = follows_none },
	{ .name = "one_row_less", .part = one_row_less },
	{ .name = "lists_lost", .lists = lists_lost },
	{ .name = "bias_of_another", .lists = bias_of_another },
	{ .name = "bias_value", .lists = bias_value },
	{ .name = "forbidden_other", .lists = forbidden_other }, { .name = "unlist_lost", .unlist = 1 },
};

static const struct mutant of_drafts[] = {
	{ .name = "draw_lost", .draw = draw_lost },
	{ .name = "draw_of_first_row", .draw = draw_of_first_row },
	{ .name = "draw_seed", .draw = draw_seed }, { .name = "fork_lost", .draw = fork_lost },
	{ .name = "drafts_lost", .draw = drafts_lost },
};

static const struct mutant of_moves[] = {
	{ .name = "copies_lost", .move = copies_lost }, { .name = "in_other_page", .move = in_other_page },
};

/* ---- the falsified tap ---- */

static struct cairn_worker_part take_part(const struct cairn_worker_part *part, struct cairn_sampling *s,
					  struct cairn_worker_treat *w)
{
	struct cairn_worker_part p = *part;

	*s = p.draw ? *p.draw : (struct cairn_sampling){ .top_p = 1 };
	*w = p.treat ? *p.treat : (struct cairn_worker_treat){ .slot = -1 };
	p.draw = p.draw ? s : NULL;
	p.treat = p.treat ? w : NULL;
	return p;
}

static void add(void *ctx, const struct cairn_worker_part *part)
{
	struct cairn_sampling s;
	struct cairn_worker_treat w;
	struct cairn_worker_part p = take_part(part, &s, &w);

	changed += mutant && mutant->part;
	if (!mutant || !mutant->part || !mutant->part(&p, &s, &w))
		real->worker.add(ctx, &p);
}

static void add_draw(void *ctx, int32_t number, const struct cairn_worker_part *part)
{
	struct cairn_sampling s;
	struct cairn_worker_treat w;
	struct cairn_worker_part p = take_part(part, &s, &w);

	changed += mutant && mutant->draw;
	if (!mutant || !mutant->draw || !mutant->draw(&p, &w, &number))
		real->worker.add_draw(ctx, number, &p);
}

static int lists(void *ctx, const struct cairn_logit_bias *bias, int32_t num_bias, const int32_t *forbidden,
		 int32_t num_forbidden, int32_t bias_at, int32_t forbidden_at)
{
	struct cairn_logit_bias b[8] = { { 0 } };
	int32_t f[8] = { 0 };

	if (num_bias)
		memcpy(b, bias, (size_t)num_bias * sizeof(*b));
	if (num_forbidden)
		memcpy(f, forbidden, (size_t)num_forbidden * sizeof(*f));
	changed += mutant && mutant->lists;
	if (mutant && mutant->lists && mutant->lists(b, &num_bias, f, &num_forbidden))
		return 0;
	return real->worker.lists(ctx, b, num_bias, f, num_forbidden, bias_at, forbidden_at);
}

static void unlist(void *ctx, int32_t bias_at, int32_t num_bias, int32_t forbidden_at, int32_t num_forbidden)
{
	changed += mutant && mutant->unlist;
	if (!mutant || !mutant->unlist)
		real->worker.unlist(ctx, bias_at, num_bias, forbidden_at, num_forbidden);
}

static void tell_moves(void *ctx, const struct cairn_move *moves, int32_t num_before, int32_t num)
{
	struct cairn_move *left = malloc((size_t)num * sizeof(*left));
	int32_t n = 0, before = num_before;

	for (int32_t i = 0; i < num; i++) {
		left[n] = moves[i];
		changed += mutant && mutant->move;
		if (mutant && mutant->move && mutant->move(&left[n]))
			before -= i < num_before;
		else
			n++;
	}
	if (n)
		real->moves(ctx, left, before, n);
	free(left);
}

/* ---- runs ---- */

/* Drawn at random, which makes all of seed, treatment and lists decide. */
static void drawn(struct cairn_request *r, int i)
{
	static const struct cairn_logit_bias bias[] = { { 5, 60 }, { 77, 60 } };
	struct cairn_sampling *s = &r->sampling;

	s->temperature = 1.5f;
	s->top_p = 0.98f;
	s->repetition_penalty = i % 3 == 1 ? 1.5f : 0;
	s->presence_penalty = i % 3 == 1 ? 3 : 0;
	s->min_new_tokens = i % 3 ? 0 : 12;
	s->bias = bias;
	s->num_bias = i % 3 == 2 ? 2 : 0;
	r->num_seqs = 2;
}

static int run(struct cairn_test *t, const struct setting *setting, const struct mutant *m, struct asked *all)
{
	const struct cairn_common_options o = { .impl = "cpu", .tp = 2, .collective_s = 60 };
	struct cairn_session s = { 0 };
	struct cairn_engine_stats stats;
	struct cairn_engine_tap tap;
	struct cairn_tp *tp = NULL;
	int ret;

	if (!EXPECT(t, cairn_ranks_fork(&tp, &o) == 0))
		return 0;
	if (cairn_tp_rank(tp))
		be_other_rank(&o, tp);
	cairn_set_threads(1);
	mutant = m;
	changed = 0;
	real = cairn_tp_tap(tp);
	tap = *real;
	tap.worker.add = add;
	tap.worker.add_draw = add_draw;
	tap.worker.lists = lists;
	tap.worker.unlist = unlist;
	tap.moves = tell_moves;
	EXPECT(t, !cairn_session_start_rank(&s, &o, tp, NULL, 0) && !cairn_session_load(&s, NULL));
	ret = answer_all(t, &s, &tap, setting, all, &stats);
	cairn_tp_close(tp);
	cairn_session_close(&s);
	return ret;
}

static int same_answers(const struct setting *s, const struct asked *a, const struct asked *b)
{
	int same = 1;

	for (int i = 0; i < s->num; i++)
		for (int k = 0; k < a[i].req.num_seqs; k++)
			same &= a[i].answers[k].num_ids == b[i].answers[k].num_ids &&
				!memcmp(a[i].answers[k].ids, b[i].answers[k].ids, sizeof(a->answers->ids));
	return same;
}

static void run_mutants(struct cairn_test *t, const struct setting *s, const struct mutant *mutants, int num)
{
	struct asked *right = calloc(NUM, sizeof(*right)), *again = calloc(NUM, sizeof(*again));

	EXPECT(t, run(t, s, NULL, right) == 0 && run(t, s, NULL, again) == 0);
	EXPECT(t, same_answers(s, right, again));	/* bits are equal from run to run */
	free_asked(again);
	for (int i = 0; i < num; i++) {
		struct asked *all = calloc(NUM, sizeof(*all));

		if (!EXPECT(t, run(t, s, &mutants[i], all) || !same_answers(s, right, all)) ||
		    !EXPECT(t, changed > 0))
			cairn_note(t, "%s was not caught, after %d changes", mutants[i].name, changed);
		free_asked(all);
	}
	free_asked(right);
}

static void mutants_of_treats(struct cairn_test *t)
{
	const struct setting s = { { SMALL }, drawn, 3, 0 };

	run_mutants(t, &s, of_treats, ARRAY_SIZE(of_treats));
}

static void mutants_of_drafts(struct cairn_test *t)
{
	const struct setting s = { { SMALL, .speculation = { .method = CAIRN_SPECULATE_NGRAM, .always = 1 } },
				   drawn, 3, 0 };

	run_mutants(t, &s, of_drafts, ARRAY_SIZE(of_drafts));
}

static void mutants_of_moves(struct cairn_test *t)
{
	run_mutants(t, &moving, of_moves, ARRAY_SIZE(of_moves));
}

static const struct cairn_unit units[] = {
	{ "treats", mutants_of_treats }, { "drafts", mutants_of_drafts }, { "moves", mutants_of_moves },
};

const struct cairn_family cairn_ranks_mutants_family = {
	.stage = "serving", .name = "ranks_mutants",
	.units = units, .num_units = ARRAY_SIZE(units),
};
