// SPDX-License-Identifier: Apache-2.0
/* kv_events_mutants_test - checks that subscribers of the tests detect every fault of kv_events_fault.h */
#include "serving/events/kv_events_mutants.h"

#include <unistd.h>

#include "conformance/harness.h"
#include "serving/events/kv_events_fault.h"
#include "serving/events/kv_events_impl.h"

extern int cairn_kv_events_fault;

enum { PAGE = 2, PATIENCE = 20000, MOST = 1024, BATCHES = CAIRN_KV_EVENTS_BATCHES };

static const struct zeromq *z;

struct world {
	struct cairn_kv_events *e;
	const struct cairn_prefix_listener *l;
	void *ctx, *peer;
	uint8_t batch[MOST];
	int len;
	uint64_t number;
};

static void ask(struct world *w, uint64_t first)
{
	uint8_t bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(first >> 8 * (7 - i));
	z->zmq_send(w->peer, "", 0, ZEROMQ_SNDMORE);
	z->zmq_send(w->peer, bytes, 8, 0);
}

/* Receives the next message of a replay. Returns false behind the last one. */
static bool next(struct world *w)
{
	uint8_t frame[MOST];

	z->zmq_recv(w->peer, frame, MOST, 0);
	if (z->zmq_recv(w->peer, frame, MOST, 0) != 8)
		return false;
	w->number = 0;
	for (int i = 0; i < 8; i++)
		w->number = w->number << 8 | frame[i];
	w->len = z->zmq_recv(w->peer, w->batch, MOST, 0);
	return w->number != UINT64_MAX && w->len > 0;
}

static void connect_peer(struct world *w)
{
	int patience = PATIENCE, zero = 0;

	w->peer = z->zmq_socket(w->ctx, ZEROMQ_DEALER);
	z->zmq_setsockopt(w->peer, ZEROMQ_RCVTIMEO, &patience, sizeof(patience));
	z->zmq_setsockopt(w->peer, ZEROMQ_LINGER, &zero, sizeof(zero));
	z->zmq_setsockopt(w->peer, ZEROMQ_RCVHWM, &zero, sizeof(zero));
	z->zmq_connect(w->peer, cairn_kv_events_replay(w->e));
}

static bool has(const struct world *w, const void *bytes, size_t len)
{
	return w->len > 0 && memmem(w->batch, (size_t)w->len, bytes, len);
}

/* Whether the batch has a 64-bit number, with the marks that come before it. */
static bool has_hash(const struct world *w, const char *before, uint64_t hash)
{
	struct msgpack p = { NULL, 0, 0, false };
	bool found;

	msgpack_bytes(&p, before, strlen(before));
	msgpack_uint(&p, hash);
	found = has(w, p.data, p.len);
	free(p.data);
	return found;
}

static void await_sent(struct world *w)
{
	bool sent = false;

	for (int i = 0; !sent && i < PATIENCE; i++) {
		pthread_mutex_lock(&w->e->lock);
		sent = w->e->sent == w->e->end;
		pthread_mutex_unlock(&w->e->lock);
		usleep(sent ? 0 : 1000);
	}
}

static void set_waiting(struct world *w, size_t bytes)
{
	await_sent(w);
	pthread_mutex_lock(&w->e->lock);
	w->e->waiting_bytes = bytes;
	pthread_mutex_unlock(&w->e->lock);
}

/* Batch 0 clears, 1 stores two pages, 2 stores one behind them, 3 is dropped, 4 removes two pages. */
static const char *follow(struct world *w)
{
	static const int32_t tokens[] = { 1, 2, 1, 2 }, more[] = { 1, 2 };
	struct cairn_kv_events_stats s;
	uint64_t a, b;

	w->l->stored(w->l->ctx, 0, tokens, 4);
	cairn_kv_events_flush(w->e);
	a = w->l->hash(w->l->ctx, 0, tokens, 2);
	b = w->l->hash(w->l->ctx, 0, tokens, 4);
	if (a == b)
		return "equal pages behind different ones have one hash";
	w->l->stored(w->l->ctx, b, more, 2);
	cairn_kv_events_flush(w->e);
	set_waiting(w, CAIRN_KV_EVENTS_BYTES);
	w->l->stored(w->l->ctx, 0, more, 2);
	cairn_kv_events_flush(w->e);
	set_waiting(w, 0);
	w->l->removed(w->l->ctx, 0, tokens, 4);
	cairn_kv_events_flush(w->e);
	await_sent(w);
	cairn_kv_events_stats(w->e, &s);
	if (s.published != 4 || s.lost != 1)
		return "other counts";
	ask(w, 0);
	if (!next(w) || w->number != 0 || !has(w, "AllBlocksCleared", 16))
		return "the first batch does not clear";
	if (!next(w) || w->number != 1 || !has_hash(w, "block_hashes\x92", a) ||
	    !has(w, "parent_block_hash\xc0", 18))
		return "the first blocks differ";
	if (!next(w) || w->number != 2 || !has_hash(w, "parent_block_hash", b))
		return "the parent differs";
	if (!next(w) || w->number != 4 || !has_hash(w, "block_hashes\x92", a) || !has(w, "BlockRemoved", 12))
		return "the removal differs";
	return next(w) ? "there is a batch too many" : NULL;
}

static const char *keep(struct world *w)
{
	for (int i = 0; i < BATCHES + 5; i++) {
		if (i % 1000 == 0)
			await_sent(w);
		w->l->stored(w->l->ctx, 0, (const int32_t[]){ i, i }, 2);
		cairn_kv_events_flush(w->e);
	}
	await_sent(w);
	ask(w, 4);
	if (!next(w) || w->number != 10)
		return "other batches are kept";
	z->zmq_close(w->peer);	/* without reading the rest */
	connect_peer(w);
	ask(w, BATCHES + 9);
	if (!next(w) || w->number != BATCHES + 9)
		return "a replay begins elsewhere";
	return next(w) ? "a replay goes on" : NULL;
}

/* Runs both with a fault; returns what was noticed, or NULL. */
static const char *run(int fault)
{
	struct cairn_kv_events_options o = { "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", NULL, PAGE };
	struct world w = { .len = 0 };
	const char *why;

	cairn_kv_events_fault = fault;
	if (cairn_kv_events_open(&w.e, &o))
		return "it cannot be opened";
	w.l = cairn_kv_events_listener(w.e);
	w.ctx = z->zmq_ctx_new();
	connect_peer(&w);
	why = follow(&w);
	if (!why)
		why = keep(&w);
	z->zmq_close(w.peer);
	z->zmq_ctx_term(w.ctx);
	cairn_kv_events_close(w.e);
	cairn_kv_events_fault = FAULT_NONE;
	return why;
}

static void faults(struct cairn_test *t)
{
	const char *why;

	if (zeromq_load(&z)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	why = run(FAULT_NONE);
	if (!EXPECT(t, !why))
		cairn_note(t, "without a fault: %s", why);
	for (int fault = FAULT_NONE + 1; fault < NUM_FAULTS; fault++)
		if (!EXPECT(t, run(fault) != NULL))
			cairn_note(t, "fault %d is not noticed", fault);
}

static const struct cairn_unit units[] = {
	{ "faults", faults },
};

const struct cairn_family cairn_kv_events_mutants_family = {
	.stage = "serving",
	.name = "kv_events_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.waits = 1,
};
