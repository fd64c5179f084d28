// SPDX-License-Identifier: Apache-2.0
/* plan_test - plans arrive unchanged, and damaged or false ones are refused */
#include "conformance/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serving/engine/worker/plan.h"

static const struct cairn_plan_limits limits = {
	.max_batch = 4, .max_rows = 8, .max_context = 64, .num_pages = 10, .page_size = 16, .vocab = 100,
	.host_pages = 5, .disk_pages = 20, .num_drawn = 1, .number = 7,
};

static const int32_t ids[] = { 5, 99, 0 }, pages[] = { 9, 0, 3 }, prompt[] = { 1, 2, 3, 4, 5 };
static const struct cairn_sampling draw = { .temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f, .top_k = 40 };
static const struct cairn_worker_treat treat = {
	.slot = 3, .begins = 1, .prompt = prompt, .num_prompt = 5, .repetition = 1.5f, .frequency = -0.5f,
	.presence = 2, .bias_at = 100, .num_bias = 2, .forbidden_at = 50, .num_forbidden = 1,
	.num_logprobs = 21,
};
static const struct cairn_worker_treat forked = {
	.slot = 2, .forks = 1, .from = 3, .drafts = prompt, .num_drafts = 2, .repetition = 1, .late = 1,
};
static const struct cairn_logit_bias bias[] = { { 99, -1.5f }, { 0, 100 } };
static const struct cairn_plan_lists lists = { bias, ids, 2, 3, 100, 50 };
static const struct cairn_move moves[] = {
	{ CAIRN_MOVE_COPY, 9, 0, 3 }, { CAIRN_MOVE_FETCH, 4, 19, 0 }, { CAIRN_MOVE_OFFLOAD, 0, 4, 0 },
};

/* A chunk of a prompt with a treated draw, two rows of which one is scored, a row that follows a draw. */
static const struct cairn_worker_part good[3] = {
	{ .ids = ids, .follows = -1, .num_rows = 3, .position = 30, .pages = pages, .num_pages = 3,
	  .draw = &draw, .seed = 1ull << 63, .offset = 17, .treat = &treat },
	{ .ids = ids, .follows = -1, .num_rows = 2, .pages = pages, .num_pages = 1, .chained = 1,
	  .targets = ids + 1, .score_from = 1, .num_scored = 1, .score_k = 32 },
	{ .follows = 0, .num_rows = 1, .position = 15, .pages = pages + 1, .num_pages = 1, .decodes = 1,
	  .draw = &draw, .seed = 2 },
};
static const struct cairn_worker_part row = { .draw = &draw, .seed = 3, .offset = 4, .treat = &forked };

/* A plan with a record of each kind; NULL for the parts: that of `good`. */
struct made {
	struct cairn_plan_lists lists;
	struct cairn_move moves[3];
	int32_t num_before, num_moves;
	struct cairn_worker_part part[3], row;
	int32_t row_number, num_parts;
};

static const struct made whole = {
	.lists = { bias, ids, 2, 3, 100, 50 }, .num_before = 2, .num_moves = 3, .row_number = 1,
	.num_parts = 3,
};

static struct made make(void)
{
	struct made m = whole;

	memcpy(m.moves, moves, sizeof(moves));
	memcpy(m.part, good, sizeof(good));
	m.row = row;
	return m;
}

static int write_plan(struct cairn_plan_out *p, const struct made *m)
{
	cairn_plan_begin(p, limits.number);
	cairn_plan_put_lists(p, CAIRN_PLAN_UNLIST, &m->lists);
	cairn_plan_put_lists(p, CAIRN_PLAN_LISTS, &m->lists);
	if (m->num_moves)
		cairn_plan_put_moves(p, m->moves, m->num_before, m->num_moves);
	for (int32_t i = 0; i < m->num_parts; i++) {
		cairn_plan_put_part(p, &m->part[i]);
		if (i == 1)
			cairn_plan_put_draw(p, m->row_number, &m->row);
	}
	return cairn_plan_finish(p);
}

static int same_ids(const int32_t *a, const int32_t *b, int32_t num)
{
	return !num || !memcmp(a, b, (size_t)num * sizeof(*a));
}

static int same_treat(const struct cairn_worker_treat *a, const struct cairn_worker_treat *b)
{
	return a->slot == b->slot && a->begins == b->begins && a->num_prompt == b->num_prompt &&
	       a->forks == b->forks && a->from == b->from && a->num_drafts == b->num_drafts &&
	       a->repetition == b->repetition && a->frequency == b->frequency && a->presence == b->presence &&
	       a->bias_at == b->bias_at && a->num_bias == b->num_bias && a->forbidden_at == b->forbidden_at &&
	       a->num_forbidden == b->num_forbidden && a->num_logprobs == b->num_logprobs &&
	       a->late == b->late &&
	       same_ids(a->prompt, b->prompt, a->num_prompt) &&
	       same_ids(a->drafts, b->drafts, a->num_drafts);
}

static int same_draw(const struct cairn_worker_part *a, const struct cairn_worker_part *b)
{
	const struct cairn_sampling *x = a->draw, *y = b->draw;

	return a->seed == b->seed && a->offset == b->offset && !x == !y && !a->treat == !b->treat &&
	       (!x || (x->temperature == y->temperature && x->top_p == y->top_p && x->min_p == y->min_p &&
		       x->top_k == y->top_k)) &&
	       (!a->treat || same_treat(a->treat, b->treat));
}

static int same_part(const struct cairn_worker_part *a, const struct cairn_worker_part *b)
{
	return same_draw(a, b) && a->follows == b->follows && a->num_rows == b->num_rows &&
	       a->position == b->position && a->num_pages == b->num_pages && a->decodes == b->decodes &&
	       a->chained == b->chained && a->score_from == b->score_from && a->num_scored == b->num_scored &&
	       a->score_k == b->score_k &&
	       (a->follows >= 0 || same_ids(a->ids, b->ids, a->num_rows)) &&
	       same_ids(a->pages, b->pages, a->num_pages) &&
	       same_ids(a->targets, b->targets, a->num_scored);
}

static void round_trip(struct cairn_test *t)
{
	static const int32_t at[] = { 2, 3, 5 };	/* of the parts among the items */
	struct cairn_plan_out out = { 0 };
	struct cairn_plan p = { 0 };
	struct made m = make();

	for (int twice = 0; twice < 2; twice++) {
		EXPECT(t, write_plan(&out, &m) == 0);
		if (!EXPECT(t, cairn_plan_read(&p, out.bytes, out.len, &limits) == 0))
			break;
		EXPECT(t, p.num_items == 6 && p.num_parts == 3 && p.num_draws == 3);
		EXPECT(t, p.items[0].kind == CAIRN_PLAN_UNLIST && p.items[0].lists.num_bias == 2 &&
		       p.items[0].lists.forbidden_at == 50);
		EXPECT(t, p.items[1].kind == CAIRN_PLAN_LISTS && p.items[1].lists.bias_at == 100 &&
		       p.items[1].lists.bias[0].token == 99 && p.items[1].lists.bias[0].bias == -1.5f &&
		       p.items[1].lists.forbidden[1] == 99);
		EXPECT(t, p.num_moves == 3 && p.num_moves_before == 2);
		for (int i = 0; i < 3; i++)
			EXPECT(t, p.moves[i].kind == moves[i].kind && p.moves[i].page == moves[i].page &&
			       p.moves[i].to == moves[i].to && !p.moves[i].request);
		for (int i = 0; i < 3; i++)
			EXPECT(t, p.items[at[i]].kind == CAIRN_PLAN_PART &&
			       same_part(&p.items[at[i]].part, &good[i]));
		EXPECT(t, p.items[4].kind == CAIRN_PLAN_DRAW && p.items[4].row == 1 &&
		       same_draw(&p.items[4].part, &row));
	}
	/* a plan may have moves alone */
	m.num_parts = 0;
	EXPECT(t, write_plan(&out, &m) == 0 && cairn_plan_read(&p, out.bytes, out.len, &limits) == 0);
	EXPECT(t, p.num_moves == 3 && p.num_parts == 0 && p.num_items == 2);
	cairn_plan_out_free(&out);
	cairn_plan_free(&p);
}

/* A plan of which any bit has changed, or that ends early, is refused. */
static void damaged(struct cairn_test *t)
{
	struct cairn_plan_out out = { 0 };
	struct cairn_plan p = { 0 };
	struct made m = make();
	unsigned char *copy;

	EXPECT(t, write_plan(&out, &m) == 0);
	copy = malloc(out.len);
	for (size_t i = 0; i < 8 * out.len; i++) {
		memcpy(copy, out.bytes, out.len);
		copy[i / 8] ^= (unsigned char)(1 << i % 8);
		EXPECT(t, cairn_plan_read(&p, copy, out.len, &limits) == -EINVAL);
	}
	for (size_t len = 0; len < out.len; len++)
		EXPECT(t, cairn_plan_read(&p, out.bytes, len, &limits) == -EINVAL);
	free(copy);
	cairn_plan_out_free(&out);
	cairn_plan_free(&p);
}

/* Well-formed plans that ask for something that this rank does not have. */
static void false_plans(struct cairn_test *t)
{
	static const struct cairn_logit_bias bad_bias[] = { { 100, 0 }, { 1, 0 } };
	static const struct cairn_logit_bias no_bias[] = { { 1, NAN }, { 2, 0 } };
	const int32_t bad_id[] = { 100, 1, 2, 3, 4 }, bad_page[] = { 0, 10, 1 }, minus[] = { -1, 1, 2, 3, 4 };
	struct cairn_plan_out out = { 0 };
	struct cairn_plan p = { 0 };
	struct cairn_plan_limits other;
	struct cairn_sampling s;
	struct cairn_worker_treat w;
	struct made m;

#define REFUSED(member, ...) do { \
		m = make(); \
		s = draw; \
		w = treat; \
		__VA_ARGS__; \
		EXPECT(t, write_plan(&out, &m) == 0); \
		if (!EXPECT(t, cairn_plan_read(&p, out.bytes, out.len, &limits) == -EINVAL)) \
			cairn_note(t, "%s", #__VA_ARGS__); \
		EXPECT_CONTAINS(t, cairn_last_error(), member); \
	} while (0)
#define TREAT(...)	m.part[0].treat = &w; w.__VA_ARGS__
	REFUSED("plan: ids", m.part[0].ids = bad_id);
	REFUSED("plan: ids", m.part[0].ids = minus);
	REFUSED("plan: pages", m.part[0].pages = bad_page);
	REFUSED("plan: pages", m.part[0].pages = minus);
	REFUSED("plan: position", m.part[0].position = 62);
	REFUSED("plan: position", m.part[0].position = -1);
	REFUSED("plan: num_pages", m.part[0].num_pages = 2);
	REFUSED("plan: num_rows", m.part[0].num_rows = 0);
	REFUSED("plan: follows", m.part[0].follows = 0);
	REFUSED("plan: follows", m.part[2].follows = 1);
	REFUSED("plan: decodes", m.part[2].decodes = 2);
	REFUSED("plan: decodes or chained", m.part[1].chained = 2);
	REFUSED("plan: targets", m.part[1].targets = bad_id);
	REFUSED("plan: num_scored", m.part[1].score_from = 2);
	REFUSED("plan: num_scored", m.part[1].score_from = -1);
	REFUSED("plan: num_scored", m.part[1].score_k = 33);
	REFUSED("plan: temperature", s.temperature = NAN; m.part[0].draw = &s);
	REFUSED("plan: top_p", s.top_p = 0; m.part[0].draw = &s);
	REFUSED("plan: top_k", s.top_k = -1; m.part[0].draw = &s);
	REFUSED("plan: row of a draw", m.row_number = 2);
	REFUSED("plan: row of a draw", m.row_number = -1);
	REFUSED("plan: row of a draw", m.part[1].draw = &draw);
	REFUSED("plan: draws", m.row.draw = NULL);
	REFUSED("plan: treatment without a draw", m.part[0].draw = NULL);
	REFUSED("plan: slot", TREAT(slot = 8));
	REFUSED("plan: slot", TREAT(slot = -2));
	REFUSED("plan: slot", TREAT(forks = 1, w.from = 8));
	REFUSED("plan: from", TREAT(forks = 1, w.from = 2));
	REFUSED("plan: prompt", TREAT(prompt = bad_id));
	REFUSED("plan: drafts", TREAT(forks = 1, w.from = 3, w.num_drafts = 1, w.drafts = minus));
	REFUSED("plan: penalty", TREAT(repetition = 0));
	REFUSED("plan: penalty", TREAT(presence = INFINITY));
	REFUSED("plan: bias_at", TREAT(bias_at = CAIRN_WORKER_LISTS - 1));
	REFUSED("plan: forbidden_at", TREAT(forbidden_at = -1));
	REFUSED("plan: num_logprobs", TREAT(num_logprobs = 34));
	REFUSED("plan: bias", m.lists.bias = bad_bias);
	REFUSED("plan: bias", m.lists.bias = no_bias);
	REFUSED("plan: forbidden", m.lists.forbidden = minus);
	REFUSED("plan: bias_at", m.lists.bias_at = -1);
	REFUSED("plan: forbidden_at", m.lists.forbidden_at = CAIRN_WORKER_LISTS - 2);
	REFUSED("plan: move", m.moves[0].page = 10);
	REFUSED("plan: move", m.moves[0].to = -1);
	REFUSED("plan: move", m.moves[1].page = 5);
	REFUSED("plan: move", m.moves[1].to = 20);
	REFUSED("plan: move", m.moves[2].to = 5);
	REFUSED("plan: kind of a move", m.moves[2].kind = CAIRN_NUM_MOVES);
	REFUSED("plan: move", m.moves[2].kind = CAIRN_MOVE_PULL);	/* ranks pull nothing */
	REFUSED("plan: kind of a move", m.num_before = 1; m.moves[1].kind = CAIRN_MOVE_SPILL);
	REFUSED("plan: num_moves", m.num_before = 4);
#undef TREAT
#undef REFUSED
	m = make();
	EXPECT(t, write_plan(&out, &m) == 0);
#define LIMITED(member, change) do { \
		other = limits; \
		change; \
		EXPECT(t, cairn_plan_read(&p, out.bytes, out.len, &other) == -EINVAL); \
		EXPECT_CONTAINS(t, cairn_last_error(), member); \
	} while (0)
	LIMITED("plan: number: 7, want 8", other.number = 8);
	LIMITED("plan: num_rows: 1", other.max_rows = 5);	/* the third part has one row too many */
	LIMITED("plan: num_draws: 4", other.max_batch = 3);	/* with 3 draws and 1 scored row */
	LIMITED("plan: num_draws: 3", other.max_batch = 2);
	LIMITED("plan: move", other.host_pages = 4);
#undef LIMITED
	/* lists must precede the parts, and a plan must not be empty */
	cairn_plan_begin(&out, limits.number);
	EXPECT(t, cairn_plan_finish(&out) == 0);
	EXPECT(t, cairn_plan_read(&p, out.bytes, out.len, &limits) == -EINVAL);
	cairn_plan_begin(&out, limits.number);
	cairn_plan_put_part(&out, &good[0]);
	cairn_plan_put_lists(&out, CAIRN_PLAN_LISTS, &lists);
	EXPECT(t, cairn_plan_finish(&out) == 0);
	EXPECT(t, cairn_plan_read(&p, out.bytes, out.len, &limits) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "lists after parts");
	cairn_plan_out_free(&out);
	cairn_plan_free(&p);
}

static const struct cairn_unit units[] = {
	{ "round_trip", round_trip },
	{ "damaged", damaged },
	{ "false_plans", false_plans },
};

const struct cairn_family cairn_plan_family = {
	.stage = "serving", .name = "plan",
	.units = units, .num_units = ARRAY_SIZE(units),
};
