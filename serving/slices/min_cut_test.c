// SPDX-License-Identifier: Apache-2.0
/* min_cut_test - minimum cuts against all cuts of small graphs; the certificate detects a wrong flow */
#include "conformance/harness.h"
#include "serving/slices/min_cut_impl.h"

#define MAX_NODES	9
#define MAX_ARCS	24

struct graph {
	int num_nodes, num_arcs;
	int32_t from[MAX_ARCS], to[MAX_ARCS];
	int64_t capacity[MAX_ARCS];
};

static void random_graph(struct cairn_test *t, struct graph *g)
{
	g->num_nodes = 2 + (int)(cairn_rand(t) % (MAX_NODES - 1));
	g->num_arcs = (int)(cairn_rand(t) % (MAX_ARCS + 1));
	for (int i = 0; i < g->num_arcs; i++) {
		g->from[i] = (int32_t)(cairn_rand(t) % (uint64_t)g->num_nodes);
		g->to[i] = (int32_t)(cairn_rand(t) % (uint64_t)g->num_nodes);
		g->capacity[i] = cairn_rand(t) % 8 ? (int64_t)(cairn_rand(t) % 20) : CAIRN_MIN_CUT_INFINITE;
	}
}

static struct cairn_min_cut *open_graph(struct cairn_test *t, const struct graph *g)
{
	struct cairn_min_cut *c = NULL;

	if (EXPECT(t, cairn_min_cut_create(&c, g->num_nodes) == 0))
		for (int i = 0; i < g->num_arcs; i++)
			EXPECT(t, cairn_min_cut_arc(c, g->from[i], g->to[i], g->capacity[i]) == 0);
	return c;
}

/* Returns the capacity of the cheapest cut between nodes 0 and 1; -1: none is finite. *largest: the union of
 * the source sides of all cheapest cuts, as bits. */
static int64_t cheapest(const struct graph *g, uint32_t *largest)
{
	int64_t best = -1;

	for (uint32_t side = 1; side < 1u << g->num_nodes; side += 2) {
		int64_t capacity = 0;
		int finite = !(side & 2);

		for (int i = 0; i < g->num_arcs && finite; i++) {
			if (!(side >> g->from[i] & 1) || side >> g->to[i] & 1)
				continue;
			finite = g->capacity[i] < CAIRN_MIN_CUT_INFINITE;
			capacity += g->capacity[i];
		}
		if (!finite || (best >= 0 && capacity > best))
			continue;
		*largest = capacity == best ? *largest | side : side;
		best = capacity;
	}
	return best;
}

static void judge(struct cairn_test *t, const struct graph *g, int *finite)
{
	struct cairn_min_cut *c = open_graph(t, g);
	uint32_t largest = 0, found = 0;
	int64_t want = cheapest(g, &largest), got = -1;
	uint8_t side[MAX_NODES];
	int ret = cairn_min_cut_solve(c, 0, 1, &got);

	EXPECT(t, want < 0 ? ret == -EINVAL : ret == 0 && got == want);
	if (!ret) {
		cairn_min_cut_side(c, side);
		for (int n = 0; n < g->num_nodes; n++)
			found |= (uint32_t)side[n] << n;
		EXPECT(t, found == largest);
		EXPECT(t, cairn_min_cut_verify(c, side) == 0);
		*finite += 1;
	}
	cairn_min_cut_destroy(c);
}

static void equals_brute_force(struct cairn_test *t)
{
	struct graph g;
	int finite = 0;

	for (int i = 0; i < 10000; i++) {
		random_graph(t, &g);
		judge(t, &g, &finite);
	}
	cairn_note(t, "%d graphs of 10000 have a finite cut", finite);
	EXPECT(t, finite > 3000);
}

/* 0 -> 2 -> 1 and 0 -> 3 -> 1; the cheapest cut is { 0 -> 2, 3 -> 1 } with capacity 7. */
static const struct graph two_ways = {
	.num_nodes = 4, .num_arcs = 4,
	.from = { 0, 2, 0, 3 }, .to = { 2, 1, 3, 1 }, .capacity = { 3, 5, 6, 4 },
};

/* Each change breaks one rule of the certificate. */
static void certificate_can_fail(struct cairn_test *t)
{
	static const struct { int arc; int64_t more; uint8_t side[4]; const char *says; } bad[] = {
		{ -1, 0, { 1, 1, 0, 1 }, "a cut of" },		/* the sink is on the source side */
		{ -1, 0, { 0, 0, 0, 0 }, "a cut of" },
		{ -1, 0, { 1, 0, 1, 1 }, "a cut of 9 for a flow of 7" },
		{ 1, -4, { 1, 0, 0, 1 }, "arc 1 carries -1 of 5" },
		{ 0, 1, { 1, 0, 0, 1 }, "arc 0 carries 4 of 3" },
		{ 1, -1, { 1, 0, 0, 1 }, "is not conserved in node 2" },
		{ 3, -1, { 1, 0, 0, 1 }, "is not conserved in node 3" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct cairn_min_cut *c = open_graph(t, &two_ways);
		int64_t capacity = 0;

		EXPECT(t, cairn_min_cut_solve(c, 0, 1, &capacity) == 0 && capacity == 7);
		if (bad[i].arc >= 0)
			c->arcs[2 * bad[i].arc].left -= bad[i].more;
		EXPECT(t, cairn_min_cut_verify(c, bad[i].side) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].says);
		cairn_min_cut_destroy(c);
	}
}

static void bad_input(struct cairn_test *t)
{
	struct cairn_min_cut *c = NULL;

	EXPECT(t, cairn_min_cut_create(&c, 0) == -EINVAL);
	if (!EXPECT(t, cairn_min_cut_create(&c, 3) == 0))
		return;
	EXPECT(t, cairn_min_cut_arc(c, 0, 3, 1) == -EINVAL);
	EXPECT(t, cairn_min_cut_arc(c, -1, 0, 1) == -EINVAL);
	EXPECT(t, cairn_min_cut_arc(c, 0, 1, -1) == -EINVAL);
	EXPECT(t, cairn_min_cut_arc(c, 0, 1, CAIRN_MIN_CUT_INFINITE + 1) == -EINVAL);
	EXPECT(t, cairn_min_cut_arc(c, 0, 1, CAIRN_MIN_CUT_INFINITE - 1) == 0);
	EXPECT(t, cairn_min_cut_arc(c, 0, 2, 1) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "too large together");
	EXPECT(t, cairn_min_cut_solve(c, 0, 0, NULL) == -EINVAL);
	EXPECT(t, cairn_min_cut_solve(c, 0, 3, NULL) == -EINVAL);
	cairn_min_cut_destroy(c);
}

static const struct cairn_unit units[] = {
	{ "equals_brute_force", equals_brute_force },
	{ "certificate_can_fail", certificate_can_fail },
	{ "bad_input", bad_input },
};

const struct cairn_family cairn_min_cut_family = {
	.stage = "serving", .name = "min_cut", .units = units, .num_units = ARRAY_SIZE(units),
};
