// SPDX-License-Identifier: Apache-2.0
/* min_cut - minimum cuts by Dinic's algorithm (min_cut.h) */
#include "serving/slices/min_cut_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

int cairn_min_cut_create(struct cairn_min_cut **out, int32_t num_nodes)
{
	struct cairn_min_cut *c = num_nodes > 0 ? calloc(1, sizeof(*c)) : NULL;
	size_t n = (size_t)num_nodes;

	if (num_nodes < 1)
		return cairn_error(EINVAL, "min_cut: num_nodes: is %d", num_nodes);
	if (c)
		c->first = malloc(4 * n * sizeof(*c->first));
	if (!c || !c->first) {
		free(c);
		return cairn_error(ENOMEM, "min_cut: no memory");
	}
	c->num_nodes = num_nodes;
	c->level = c->first + n;
	c->current = c->level + n;
	c->list = c->current + n;
	memset(c->first, 0xff, n * sizeof(*c->first));
	*out = c;
	return 0;
}

void cairn_min_cut_destroy(struct cairn_min_cut *c)
{
	if (!c)
		return;
	free(c->arcs);
	free(c->capacity);
	free(c->first);
	free(c);
}

static int grow(struct cairn_min_cut *c)
{
	int32_t room = c->room ? 2 * c->room : 256;
	struct arc *arcs = realloc(c->arcs, (size_t)room * sizeof(*arcs));
	int64_t *capacity;

	if (arcs)
		c->arcs = arcs;
	capacity = realloc(c->capacity, (size_t)room / 2 * sizeof(*capacity));
	if (capacity)
		c->capacity = capacity;
	if (!arcs || !capacity)
		return cairn_error(ENOMEM, "min_cut: no memory");
	c->room = room;
	return 0;
}

static void add_half(struct cairn_min_cut *c, int32_t from, int32_t to, int64_t left)
{
	c->arcs[c->num_arcs] = (struct arc){ .to = to, .next = c->first[from], .left = left };
	c->first[from] = c->num_arcs++;
}

int cairn_min_cut_arc(struct cairn_min_cut *c, int32_t from, int32_t to, int64_t capacity)
{
	if (from < 0 || from >= c->num_nodes || to < 0 || to >= c->num_nodes)
		return cairn_error(EINVAL, "min_cut: an arc from node %d to node %d of %d", from, to,
				   c->num_nodes);
	if (capacity < 0 || capacity > CAIRN_MIN_CUT_INFINITE)
		return cairn_error(EINVAL, "min_cut: an arc of capacity %lld", (long long)capacity);
	if (capacity < CAIRN_MIN_CUT_INFINITE && (c->finite += capacity) >= CAIRN_MIN_CUT_INFINITE)
		return cairn_error(EINVAL, "min_cut: the finite capacities are too large together");
	if (c->num_arcs == c->room)
		CAIRN_TRY(grow(c));
	c->capacity[c->num_arcs / 2] = capacity;
	add_half(c, from, to, capacity);
	add_half(c, to, from, 0);
	return 0;
}

/* Computes the levels of one phase. Returns whether the sink can be reached. */
static int find_levels(struct cairn_min_cut *c)
{
	int32_t num = 0;

	memset(c->level, 0xff, (size_t)c->num_nodes * sizeof(*c->level));
	c->level[c->source] = 0;
	c->list[num++] = c->source;
	for (int32_t i = 0; i < num; i++) {
		for (int32_t a = c->first[c->list[i]]; a >= 0; a = c->arcs[a].next) {
			int32_t to = c->arcs[a].to;

			if (!c->arcs[a].left || c->level[to] >= 0)
				continue;
			c->level[to] = c->level[c->list[i]] + 1;
			c->list[num++] = to;
		}
	}
	return c->level[c->sink] >= 0;
}

/* Sends what a path of `num` arcs can carry. */
static int64_t push(struct cairn_min_cut *c, int32_t num)
{
	int64_t most = CAIRN_MIN_CUT_INFINITE;

	for (int32_t i = 0; i < num; i++)
		most = c->arcs[c->list[i]].left < most ? c->arcs[c->list[i]].left : most;
	for (int32_t i = 0; i < num; i++) {
		c->arcs[c->list[i]].left -= most;
		c->arcs[c->list[i] ^ 1].left += most;
	}
	return most;
}

/* Finds one more path along ascending levels. Returns what was sent on it; 0: there is none. */
static int64_t augment(struct cairn_min_cut *c)
{
	int32_t node = c->source, num = 0;

	while (node != c->sink) {
		int32_t a = c->current[node];

		while (a >= 0 && (!c->arcs[a].left || c->level[c->arcs[a].to] != c->level[node] + 1))
			a = c->arcs[a].next;
		c->current[node] = a;
		if (a >= 0) {
			c->list[num++] = a;
			node = c->arcs[a].to;
		} else if (num) {
			c->level[node] = -1;
			node = c->arcs[c->list[--num] ^ 1].to;
		} else {
			return 0;
		}
	}
	return push(c, num);
}

int cairn_min_cut_solve(struct cairn_min_cut *c, int32_t source, int32_t sink, int64_t *capacity)
{
	int64_t sent;

	if (source < 0 || source >= c->num_nodes || sink < 0 || sink >= c->num_nodes || source == sink)
		return cairn_error(EINVAL, "min_cut: from node %d to node %d of %d", source, sink,
				   c->num_nodes);
	c->source = source;
	c->sink = sink;
	while (find_levels(c)) {
		memcpy(c->current, c->first, (size_t)c->num_nodes * sizeof(*c->current));
		while ((sent = augment(c)) > 0) {
			c->flow += sent;
			if (c->flow >= CAIRN_MIN_CUT_INFINITE)
				return cairn_error(EINVAL, "min_cut: no cut has a finite capacity");
		}
	}
	if (capacity)
		*capacity = c->flow;
	return 0;
}

void cairn_min_cut_side(const struct cairn_min_cut *c, uint8_t *on_source_side)
{
	int32_t num = 0;

	/* The sink side has just the nodes from which the sink can still be reached. */
	memset(on_source_side, 1, (size_t)c->num_nodes);
	on_source_side[c->sink] = 0;
	c->list[num++] = c->sink;
	for (int32_t i = 0; i < num; i++) {
		for (int32_t a = c->first[c->list[i]]; a >= 0; a = c->arcs[a].next) {
			int32_t from = c->arcs[a].to;

			if (!c->arcs[a ^ 1].left || !on_source_side[from])
				continue;
			on_source_side[from] = 0;
			c->list[num++] = from;
		}
	}
}

int cairn_min_cut_verify(const struct cairn_min_cut *c, const uint8_t *on_source_side)
{
	int64_t *gain = calloc((size_t)c->num_nodes, sizeof(*gain)), across = 0;
	int ret = 0;

	if (!gain)
		return cairn_error(ENOMEM, "min_cut: no memory");
	for (int32_t i = 0; i < c->num_arcs / 2 && !ret; i++) {
		int32_t to = c->arcs[2 * i].to, from = c->arcs[2 * i + 1].to;
		int64_t flow = c->capacity[i] - c->arcs[2 * i].left;

		if (flow < 0 || flow > c->capacity[i])
			ret = cairn_error(EINVAL, "min_cut: arc %d carries %lld of %lld", i, (long long)flow,
					  (long long)c->capacity[i]);
		gain[from] -= flow;
		gain[to] += flow;
		if (on_source_side[from] && !on_source_side[to])
			across = across + c->capacity[i] < CAIRN_MIN_CUT_INFINITE ? across + c->capacity[i] :
				 CAIRN_MIN_CUT_INFINITE;
	}
	for (int32_t n = 0; n < c->num_nodes && !ret; n++)
		if (gain[n] && n != c->source && n != c->sink)
			ret = cairn_error(EINVAL, "min_cut: the flow is not conserved in node %d", n);
	if (!ret && (!on_source_side[c->source] || on_source_side[c->sink] || across != gain[c->sink]))
		ret = cairn_error(EINVAL, "min_cut: a cut of %lld for a flow of %lld", (long long)across,
				  (long long)gain[c->sink]);
	free(gain);
	return ret;
}
