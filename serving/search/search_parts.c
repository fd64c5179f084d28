// SPDX-License-Identifier: Apache-2.0
/* search_parts - the nano-operations of a pass and what they wait for */
#include <string.h>

#include "serving/search/search_fault.h"
#include "serving/search/search_problem.h"

enum { FAR = 1 << 20 };

static int32_t find_part(const struct cairn_search_parts *s, int32_t op, int32_t nano)
{
	int32_t i = 0;

	while (s->parts[i].op != op)
		i++;
	return i + nano;
}

static void depend(struct cairn_search_parts *s, int32_t from, int32_t to, int32_t lag)
{
	s->deps[s->num_deps++] = (struct cairn_search_dep){ from, to, lag };
}

/* Whether a part of nano-batch j waits for the part of nano-batch i at the other end of the edge. */
static int waits(const struct cairn_search_edge *e, int32_t i, int32_t j)
{
	if (i == j)
		return 1;
	/* Rows of one prompt may lie in any nano-batches, and their order is that of the rows. */
	return e->kind == CAIRN_SEARCH_CACHE && i < j && !FAULT(NO_CACHE_EDGES) &&
	       !(FAULT(CACHE_NEXT_ONLY) && i + 1 < j);
}

static void expand_edge(const struct cairn_search_problem *p, const struct cairn_search_edge *e,
			struct cairn_search_parts *s)
{
	int from_whole = p->ops[e->from].whole, to_whole = p->ops[e->to].whole;
	int32_t from = find_part(s, e->from, 0), to = find_part(s, e->to, 0);

	if ((e->lag && FAULT(NO_LAYER_EDGES)) || (!e->lag && FAULT(NO_DATA_EDGES)))
		return;
	for (int32_t i = 0; i < (from_whole ? 1 : s->nanos); i++)
		for (int32_t j = 0; j < (to_whole ? 1 : s->nanos); j++)
			if ((from_whole || to_whole) ? !(FAULT(WHOLE_MEETS_FIRST) && i) : waits(e, i, j))
				depend(s, from + i, to + j, e->lag);
}

/* Finds by the least lags of paths which parts may run at the same time. */
static void find_together(struct cairn_search_parts *s)
{
	static _Thread_local int32_t lag[CAIRN_SEARCH_MOST_PARTS][CAIRN_SEARCH_MOST_PARTS];
	int32_t n = s->num_parts;

	for (int32_t i = 0; i < n; i++)
		for (int32_t j = 0; j < n; j++)
			lag[i][j] = FAR;
	for (int32_t d = 0; d < s->num_deps; d++) {
		int32_t *at = &lag[s->deps[d].from][s->deps[d].to];

		*at = s->deps[d].lag < *at ? s->deps[d].lag : *at;
	}
	for (int32_t k = 0; k < n; k++)
		for (int32_t i = 0; i < n; i++)
			for (int32_t j = 0; j < n; j++)
				if (lag[i][k] + lag[k][j] < lag[i][j])
					lag[i][j] = lag[i][k] + lag[k][j];
	for (int32_t i = 0; i < n; i++)
		for (int32_t j = 0; j < n; j++)
			s->together[i][j] = i != j && lag[i][j] + lag[j][i] > 1;
}

void cairn_search_list_parts(const struct cairn_search_problem *p, int32_t nanos,
			     struct cairn_search_parts *s)
{
	memset(s, 0, sizeof(*s));
	s->nanos = nanos;
	for (int32_t o = 0; o < p->num_ops; o++)
		for (int32_t i = 0; i < (p->ops[o].whole ? 1 : nanos); i++)
			s->parts[s->num_parts++] = (struct cairn_search_part){ o, i };
	for (int32_t e = 0; e < p->num_edges; e++)
		expand_edge(p, &p->edges[e], s);
	find_together(s);
}
