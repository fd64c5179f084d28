// SPDX-License-Identifier: Apache-2.0
/* plan_test - plans survive the way, and damaged or false ones are refused before any part is added */
#include "conformance/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serving/ranks/plan.h"

static const struct cairn_plan_limits limits = {
	.max_batch = 4, .max_rows = 8, .max_context = 64, .num_pages = 10, .page_size = 16, .vocab = 100,
	.num_drawn = 1, .step = 7,
};

static const int32_t ids[] = { 5, 99, 0 }, pages[] = { 9, 0, 3 };
static const struct cairn_sampling draw = { .temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f, .top_k = 40 };

/* A chunk of a prompt, and a row that follows a draw. */
static const struct cairn_worker_part good[2] = {
	{ .ids = ids, .follows = -1, .num_rows = 3, .position = 30, .pages = pages, .num_pages = 3,
	  .draw = &draw, .seed = 1ull << 63, .offset = 17 },
	{ .follows = 0, .num_rows = 1, .position = 15, .pages = pages + 1, .num_pages = 1, .decodes = 1,
	  .draw = &draw, .seed = 2 },
};

struct got {
	struct cairn_worker_part part[2];
	struct cairn_sampling draw[2];
	int32_t ids[2][8], pages[2][8];
	int num;
};

static void take(void *ctx, const struct cairn_worker_part *part)
{
	struct got *g = ctx;
	int i = g->num++;

	if (i > 1)
		return;
	g->part[i] = *part;
	if (part->draw)
		g->draw[i] = *part->draw;
	if (part->follows < 0)
		memcpy(g->ids[i], part->ids, (size_t)part->num_rows * sizeof(*ids));
	memcpy(g->pages[i], part->pages, (size_t)part->num_pages * sizeof(*pages));
}

static int write_parts(struct cairn_plan_out *p, const struct cairn_worker_part *parts, int num)
{
	cairn_plan_begin(p, limits.step);
	for (int i = 0; i < num; i++)
		cairn_plan_add(p, &parts[i]);
	return cairn_plan_finish(p);
}

static void round_trip(struct cairn_test *t)
{
	struct cairn_plan_out p = { 0 };
	struct got g = { 0 };
	int32_t drawn = -1;

	for (int twice = 0; twice < 2; twice++) {
		memset(&g, 0, sizeof(g));
		EXPECT(t, write_parts(&p, good, 2) == 0);
		EXPECT(t, cairn_plan_read(p.bytes, p.len, &limits, take, &g, &drawn) == 0);
		EXPECT(t, g.num == 2 && drawn == 2);
	}
	EXPECT(t, g.part[0].num_rows == 3 && g.part[0].position == 30 && g.part[0].follows == -1);
	EXPECT(t, g.part[0].seed == 1ull << 63 && g.part[0].offset == 17 && !g.part[0].decodes);
	EXPECT(t, !memcmp(g.ids[0], ids, sizeof(ids)) && !memcmp(g.pages[0], pages, sizeof(pages)));
	EXPECT(t, g.part[1].follows == 0 && g.part[1].decodes == 1 && g.pages[1][0] == 0);
	EXPECT(t, g.draw[0].temperature == 0.5f && g.draw[0].top_p == 0.9f && g.draw[0].min_p == 0.1f &&
	       g.draw[0].top_k == 40);
	cairn_plan_free(&p);
}

/* A plan of which any bit has changed, or that ends early, is refused, and no part of it is added. */
static void damaged(struct cairn_test *t)
{
	struct cairn_plan_out p = { 0 };
	struct got g = { 0 };
	unsigned char *copy;
	int32_t drawn;

	EXPECT(t, write_parts(&p, good, 2) == 0);
	copy = malloc(p.len);
	for (size_t i = 0; i < 8 * p.len; i++) {
		memcpy(copy, p.bytes, p.len);
		copy[i / 8] ^= (unsigned char)(1 << i % 8);
		EXPECT(t, cairn_plan_read(copy, p.len, &limits, take, &g, &drawn) == -EINVAL);
	}
	for (size_t len = 0; len < p.len; len++)
		EXPECT(t, cairn_plan_read(p.bytes, len, &limits, take, &g, &drawn) == -EINVAL);
	EXPECT(t, g.num == 0);
	free(copy);
	cairn_plan_free(&p);
}

/* Well-formed plans that ask for something that this rank does not have. */
static void false_plans(struct cairn_test *t)
{
	struct cairn_plan_out p = { 0 };
	struct cairn_worker_part part;
	struct cairn_sampling s;
	struct cairn_plan_limits other = limits;
	const int32_t bad_id[] = { 100, 1, 2 }, bad_page[] = { 0, 10, 1 }, minus[] = { -1, 1, 2 };
	struct got g = { 0 };
	int32_t drawn;

#define REFUSED(member, change) do { \
		part = good[0]; \
		s = draw; \
		change; \
		EXPECT(t, write_parts(&p, &part, 1) == 0); \
		EXPECT(t, cairn_plan_read(p.bytes, p.len, &limits, take, &g, &drawn) == -EINVAL); \
		EXPECT_CONTAINS(t, cairn_last_error(), member); \
	} while (0)
	REFUSED("plan: ids", part.ids = bad_id);
	REFUSED("plan: ids", part.ids = minus);
	REFUSED("plan: pages", part.pages = bad_page);
	REFUSED("plan: pages", part.pages = minus);
	REFUSED("plan: position", part.position = 62);
	REFUSED("plan: position", part.position = -1);
	REFUSED("plan: num_pages", part.num_pages = 2);
	REFUSED("plan: num_rows", part.num_rows = 0);
	REFUSED("plan: follows", (part.follows = 0, part.num_rows = 2));
	REFUSED("plan: follows", (part.follows = 1, part.num_rows = 1));
	REFUSED("plan: decodes", part.decodes = 2);
	REFUSED("plan: temperature", (s.temperature = NAN, part.draw = &s));
	REFUSED("plan: top_p", (s.top_p = 0, part.draw = &s));
	REFUSED("plan: top_k", (s.top_k = -1, part.draw = &s));
#undef REFUSED
	EXPECT(t, write_parts(&p, good, 0) == 0);
	EXPECT(t, cairn_plan_read(p.bytes, p.len, &limits, take, &g, &drawn) == -EINVAL);
	EXPECT(t, write_parts(&p, good, 2) == 0);
	other.step = 8;
	EXPECT(t, cairn_plan_read(p.bytes, p.len, &other, take, &g, &drawn) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "plan: step: 7, want 8");
	other = limits;
	other.max_rows = 3;		/* the second part has one row too many */
	EXPECT(t, cairn_plan_read(p.bytes, p.len, &other, take, &g, &drawn) == -EINVAL);
	other = limits;
	other.max_batch = 1;
	EXPECT(t, cairn_plan_read(p.bytes, p.len, &other, take, &g, &drawn) == -EINVAL);
	EXPECT(t, g.num == 0);
	cairn_plan_free(&p);
}

static void not_shared(struct cairn_test *t)
{
	const struct cairn_worker_treat treat = { .slot = -1 };
	struct cairn_worker_part part = good[0];
	struct cairn_plan_out p = { 0 };

	part.treat = &treat;
	EXPECT(t, write_parts(&p, &part, 1) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "treats logits");
	part = good[0];
	part.num_scored = 1;
	EXPECT(t, write_parts(&p, &part, 1) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "scores a prompt");
	EXPECT(t, write_parts(&p, good, 2) == 0);	/* the next pass is unharmed */
	cairn_plan_free(&p);
}

static const struct cairn_unit units[] = {
	{ "round_trip", round_trip },
	{ "damaged", damaged },
	{ "false_plans", false_plans },
	{ "not_shared", not_shared },
};

const struct cairn_family cairn_plan_family = {
	.stage = "serving", .name = "plan",
	.units = units, .num_units = ARRAY_SIZE(units),
};
