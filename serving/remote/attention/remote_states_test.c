// SPDX-License-Identifier: Apache-2.0
/*
 * remote_states_test - all orders in which buffers of remote attention can be written and read
 *
 * A model of the protocol: 3 lanes, 2 attention workers, a pass of 4 layers and the next one's first two.
 * Lanes take turns at the model worker; each has buffers of its own. Three kinds of steps may happen in any
 * order:
 *
 *   the model worker   sends Q(g), then K, V(g) of a lane, when the lane's result of layer g - 1 has come
 *                      from all workers; g counts the layers of all passes
 *   the network        delivers the next message to a worker; only now it reads its source
 *   a worker           for each lane: reads Q(g) and sends the result; reads K, V(g)
 *
 * A state says how far each of them is. The test visits every reachable state. In no state may anything read
 * a buffer that holds another layer's message, and every run must reach its end. Wrong protocols must fail.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

enum { LANES = 3, WORKERS = 2, MORE = 2, MOST_STATES = 1 << 20 };

struct protocol {
	const char *name;
	int layers, lanes;
	int one_buffer;			/* K and V of all layers use one buffer */
	int by_layer;			/* the buffer is chosen by the layer's parity, not in turn */
	int unawaited;			/* Q is read without waiting for it */
	int base_kept;			/* signals carry the layer alone */
	int early_q;			/* Q is sent before the last result has come */
	int appends_first;		/* K, V are read before Q, as without `previous` */
	int fails;
};

struct state {
	uint8_t sent;			/* sends of the model worker, over all lanes */
	uint8_t delivered[WORKERS], done[LANES][WORKERS];
};

struct search {
	const struct protocol *p;
	struct state *queue;
	uint64_t *table;		/* hash of packed states */
	int num, wrong, ended;
};

/* ---- the set of states ---- */

/* Packs a state. The workers are alike, so states that differ by their order alone are one. */
static uint64_t pack(const struct state *x)
{
	uint64_t each[WORKERS];

	for (int w = 0; w < WORKERS; w++) {
		each[w] = x->delivered[w];
		for (int lane = 0; lane < LANES; lane++)
			each[w] = each[w] << 4 | x->done[lane][w];
	}
	return (each[0] < each[1] ? each[0] << 24 | each[1] : each[1] << 24 | each[0]) << 8 | x->sent;
}

static void visit(struct search *s, const struct state *x)
{
	const uint64_t key = pack(x) + 1;
	uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15 >> 40) & (2 * MOST_STATES - 1);

	while (s->table[i] && s->table[i] != key)
		i = (i + 1) & (2 * MOST_STATES - 1);
	if (s->table[i] || s->num == MOST_STATES)
		return;
	s->table[i] = key;
	s->queue[s->num++] = *x;
}

/* ---- the protocol ---- */

static int all_layers(const struct protocol *p)
{
	return p->layers + MORE;
}

/* Returns how many of the first `all` messages are of a lane; its message 2g is Q(g), 2g + 1 is K, V(g). */
static int of_lane(const struct protocol *p, int all, int lane)
{
	const int round = all / (2 * p->lanes), rest = all % (2 * p->lanes);
	const int mine = rest - 2 * lane;

	return 2 * round + (mine < 0 ? 0 : mine > 2 ? 2 : mine);
}

static int buffer_of(const struct protocol *p, int g)
{
	return p->one_buffer ? 0 : p->by_layer ? g % p->layers % 2 : g % 2;
}

/* Returns the layer whose K and V came last, of a lane's first messages that use g's buffer; -1: none did. */
static int last_kv(const struct protocol *p, int messages, int g)
{
	for (int k = messages / 2 - 1; k >= 0; k--)
		if (buffer_of(p, k) == buffer_of(p, g))
			return k;
	return -1;
}

/* Returns whether a lane's result of layer g has been sent. A layer is two steps of a worker. */
static int has_result(const struct protocol *p, int done, int g)
{
	return done > 2 * g + (p->appends_first ? 1 : 0);
}

static void send(struct search *s, const struct state *x)
{
	const struct protocol *p = s->p;
	const int lane = x->sent / 2 % p->lanes, g = x->sent / (2 * p->lanes);
	struct state next = *x;

	if (g == all_layers(p))
		return;
	for (int w = 0; w < WORKERS && x->sent % 2 == 0 && g > p->early_q; w++)
		if (!has_result(p, x->done[lane][w], g - 1 - p->early_q))
			return;
	next.sent++;
	visit(s, &next);
}

/* The source of a message must still hold it: Q has one buffer, K and V those of the lane. */
static void deliver(struct search *s, const struct state *x, int w)
{
	const int all = x->delivered[w], lane = all / 2 % s->p->lanes, g = all / (2 * s->p->lanes);
	const int sent = of_lane(s->p, x->sent, lane);
	struct state next = *x;

	if (all == x->sent)
		return;
	s->wrong += all % 2 ? last_kv(s->p, sent, g) != g : (sent + 1) / 2 - 1 != g;
	next.delivered[w]++;
	visit(s, &next);
}

/* Returns whether the signal of message 2g or 2g + 1 seems to have come. */
static int seems_there(const struct protocol *p, int delivered, int g, int of_kv)
{
	if (delivered > 2 * g + of_kv)
		return 1;
	return p->base_kept && g >= p->layers && delivered >= 2 * p->layers;
}

static void work(struct search *s, const struct state *x, int lane, int w)
{
	const struct protocol *p = s->p;
	const int d = of_lane(p, x->delivered[w], lane), done = x->done[lane][w], g = done / 2;
	const int reads_q = (done % 2 == 0) == !p->appends_first;
	struct state next = *x;

	if (g == all_layers(p))
		return;
	if (!seems_there(p, d, g, !reads_q) && !(reads_q && p->unawaited))
		return;
	s->wrong += reads_q ? (d + 1) / 2 - 1 != g : last_kv(p, d, g) != g;
	next.done[lane][w]++;
	visit(s, &next);
}

static int is_end(const struct protocol *p, const struct state *x)
{
	for (int lane = 0; lane < p->lanes; lane++)
		for (int w = 0; w < WORKERS; w++)
			if (x->done[lane][w] != 2 * all_layers(p))
				return 0;
	return 1;
}

/* Visits all states, or stops at the first that is wrong. Returns whether the protocol is right. */
static int explore(struct search *s)
{
	const struct state first = { 0 };

	memset(s->table, 0, 2 * MOST_STATES * sizeof(*s->table));
	s->num = s->wrong = s->ended = 0;
	visit(s, &first);
	for (int i = 0; i < s->num && !s->wrong; i++) {
		const struct state x = s->queue[i];

		send(s, &x);
		for (int w = 0; w < WORKERS; w++) {
			deliver(s, &x, w);
			for (int lane = 0; lane < s->p->lanes; lane++)
				work(s, &x, lane, w);
		}
		s->ended |= is_end(s->p, &x);
	}
	return !s->wrong && s->ended && s->num < MOST_STATES;
}

static void all_orders(struct cairn_test *t)
{
	static const struct protocol protocols[] = {
		{ .name = "previous keys", .layers = 4, .lanes = LANES },
		{ .name = "previous keys, odd", .layers = 3, .lanes = LANES },
		{ .name = "all keys", .layers = 4, .lanes = LANES, .appends_first = 1 },
		{ .name = "one buffer", .layers = 4, .lanes = LANES, .one_buffer = 1, .fails = 1 },
		{ .name = "buffer by layer, odd", .layers = 3, .lanes = LANES, .by_layer = 1, .fails = 1 },
		{ .name = "Q unawaited", .layers = 4, .lanes = LANES, .unawaited = 1, .fails = 1 },
		{ .name = "base kept", .layers = 4, .lanes = LANES, .base_kept = 1, .fails = 1 },
		{ .name = "Q too early", .layers = 4, .lanes = LANES, .early_q = 1, .fails = 1 },
		{ .name = "buffer by layer, even", .layers = 4, .lanes = 1, .by_layer = 1 },
	};
	struct search s = { 0 };

	s.queue = malloc(MOST_STATES * sizeof(*s.queue));
	s.table = malloc(2 * MOST_STATES * sizeof(*s.table));
	for (size_t i = 0; i < ARRAY_SIZE(protocols) && EXPECT(t, s.queue && s.table); i++) {
		s.p = &protocols[i];
		EXPECT(t, explore(&s) == !protocols[i].fails);
		cairn_note(t, "%s: %d states%s", s.p->name, s.num, s.wrong ? ", wrong" : "");
	}
	free(s.queue);
	free(s.table);
}

static const struct cairn_unit units[] = {
	{ "all_orders", all_orders },
};

const struct cairn_family cairn_remote_states_family = {
	.stage = "serving", .name = "remote_states", .units = units, .num_units = ARRAY_SIZE(units),
};
