// SPDX-License-Identifier: Apache-2.0
/*
 * kv_events_test - messages as subscribers receive them: recorded bytes, order, replays, losses; bad
 * addresses
 *
 * Subscribers are sockets of the same library. Messages are compared with bytes that msgspec, the encoder of
 * vLLM, has written (tools/kv_events_test.py decodes those of a whole server).
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/events/kv_events_impl.h"

enum { PAGE = 2, PATIENCE = 20000, MOST = 4096 };

static const struct zeromq *z;

static bool have_zeromq(struct cairn_test *t)
{
	if (!zeromq_load(&z))
		return true;
	cairn_skip(t, "%s", cairn_last_error());
	return false;
}

/* A publisher with a subscriber of all topics and a peer of its replays. */
struct world {
	struct cairn_kv_events *e;
	const struct cairn_prefix_listener *l;
	void *ctx, *sub, *peer;
};

static void *connect_to(struct world *w, int type, const char *address)
{
	int patience = PATIENCE, zero = 0;
	void *s = z->zmq_socket(w->ctx, type);

	z->zmq_setsockopt(s, ZEROMQ_LINGER, &zero, sizeof(zero));
	z->zmq_setsockopt(s, ZEROMQ_RCVTIMEO, &patience, sizeof(patience));
	z->zmq_setsockopt(s, ZEROMQ_RCVHWM, &zero, sizeof(zero));
	if (type == ZEROMQ_SUB)
		z->zmq_setsockopt(s, ZEROMQ_SUBSCRIBE, "", 0);
	z->zmq_connect(s, address);
	return s;
}

static bool open_world(struct cairn_test *t, struct world *w, const char *topic)
{
	struct cairn_kv_events_options o = { "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", topic, PAGE };

	*w = (struct world){ .ctx = NULL };
	if (!have_zeromq(t))
		return false;
	if (!EXPECT(t, cairn_kv_events_open(&w->e, &o) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return false;
	}
	w->l = cairn_kv_events_listener(w->e);
	w->ctx = z->zmq_ctx_new();
	w->sub = connect_to(w, ZEROMQ_SUB, cairn_kv_events_address(w->e));
	w->peer = connect_to(w, ZEROMQ_DEALER, cairn_kv_events_replay(w->e));
	return true;
}

static void close_world(struct world *w)
{
	z->zmq_close(w->sub);
	z->zmq_close(w->peer);
	z->zmq_ctx_term(w->ctx);
	cairn_kv_events_close(w->e);
}

/* Receives a frame. Returns its bytes, -1: none came; *more: others follow. */
static int receive(void *socket, uint8_t *frame, int *more)
{
	size_t size = sizeof(*more);
	int n = z->zmq_recv(socket, frame, MOST, 0);

	*more = 0;
	z->zmq_getsockopt(socket, ZEROMQ_RCVMORE, more, &size);
	return n;
}

static uint64_t number_of(const uint8_t *frame)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | frame[i];
	return v;
}

/* Receives topic (or the empty frame of a replay), number and batch. Returns the batch's bytes, -1: bad. */
static int message(struct cairn_test *t, void *socket, const char *first, uint64_t *number, uint8_t *batch)
{
	uint8_t frame[MOST];
	int more, n = receive(socket, frame, &more);

	if (!EXPECT(t, n == (int)strlen(first) && !memcmp(frame, first, (size_t)n) && more))
		return -1;
	if (!EXPECT(t, receive(socket, frame, &more) == 8 && more))
		return -1;
	*number = number_of(frame);
	n = receive(socket, batch, &more);
	return EXPECT(t, n >= 0 && !more) ? n : -1;
}

static void ask(struct world *w, uint64_t first)
{
	uint8_t bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(first >> 8 * (7 - i));
	z->zmq_send(w->peer, "", 0, ZEROMQ_SNDMORE);
	z->zmq_send(w->peer, bytes, 8, 0);
}

static void store(struct world *w, uint64_t before, int32_t a, int32_t b)
{
	w->l->stored(w->l->ctx, before, (const int32_t[]){ a, b }, 2);
	cairn_kv_events_flush(w->e);
}

/*
 * Publishes until the subscriber, whose connection is made at some time, gets something. Returns the number
 * that it got.
 */
static uint64_t greet(struct cairn_test *t, struct world *w, const char *topic)
{
	uint8_t batch[MOST];
	uint64_t number = 0;
	struct zeromq_pollitem item = { w->sub, 0, ZEROMQ_POLLIN, 0 };

	for (int i = 0; i < PATIENCE / 20; i++) {
		store(w, 0, 1, 2);
		if (z->zmq_poll(&item, 1, 20) > 0)
			break;
	}
	EXPECT(t, message(t, w->sub, topic, &number, batch) > 0);
	return number;
}

/* Receives until the number comes. Returns the bytes of its batch. */
static int receive_until(struct cairn_test *t, struct world *w, const char *topic, uint64_t number,
			 uint8_t *batch)
{
	uint64_t got = 0;
	int n = 0;

	while (n >= 0 && got != number)
		n = message(t, w->sub, topic, &got, batch);
	return n;
}

/* msgspec.msgpack.encode() of the same events, without the time and what precedes the events. */
static const char recorded[] =
	"\x8a\xa4type\xab" "BlockStored\xac" "block_hashes\x92\xcf" "HHHHHHHH" "\xcf" "IIIIIIII"
	"\xb1" "parent_block_hash\xc0" "\xa9token_ids\x94\x00\x7f\xcc\x80\xce\x00\x01\xf4\xff"
	"\xaa" "block_size\x02" "\xa7lora_id\xc0" "\xa6medium\xa3GPU" "\xa9lora_name\xc0" "\xa9group_idx\x00"
	"\xb2kv_cache_spec_kind\xae" "full_attention"
	"\x84\xa4type\xac" "BlockRemoved\xac" "block_hashes\x92\xcf" "HHHHHHHH" "\xcf" "IIIIIIII"
	"\xa6medium\xa3GPU\xa9group_idx\x00" "\x00";

static void put_hash(char *bytes, size_t len, char mark, uint64_t hash)
{
	char marks[8];

	memset(marks, mark, sizeof(marks));
	for (char *at = bytes; (at = memmem(at, len - (size_t)(at - bytes), marks, sizeof(marks)));)
		for (int k = 0; k < 8; k++)
			at[k] = (char)(hash >> 8 * (7 - k));
}

static void recorded_messages(struct cairn_test *t)
{
	static const int32_t tokens[] = { 0, 127, 128, 128255 };
	char want[sizeof(recorded)];
	uint8_t batch[MOST];
	uint64_t first, a, b;
	struct world w;
	int n;

	if (!open_world(t, &w, "kv@me"))
		return;
	first = greet(t, &w, "kv@me");
	a = w.l->hash(w.l->ctx, 0, tokens, 2);
	b = w.l->hash(w.l->ctx, a, tokens + 2, 2);
	EXPECT(t, w.l->hash(w.l->ctx, 0, tokens, 4) == b && a != b && a > UINT32_MAX && b > UINT32_MAX);
	memcpy(want, recorded, sizeof(want));
	put_hash(want, sizeof(want) - 1, 'H', a);
	put_hash(want, sizeof(want) - 1, 'I', b);
	w.l->stored(w.l->ctx, 0, tokens, 4);
	w.l->removed(w.l->ctx, 0, tokens, 4);
	cairn_kv_events_flush(w.e);
	store(&w, b, 5, 6);
	do {	/* batches of greet() come first */
		n = message(t, w.sub, "kv@me", &first, batch);
	} while (n > 0 && batch[10] == 0x91);
	/* [time as a double, two events, rank 0] */
	if (EXPECT(t, n == 11 + (int)sizeof(want) - 1))
		EXPECT(t, batch[0] == 0x93 && batch[1] == 0xcb && batch[10] == 0x92 &&
			  !memcmp(batch + 11, want, sizeof(want) - 1));
	n = message(t, w.sub, "kv@me", &first, batch);
	EXPECT(t, n > 0 && memmem(batch, (size_t)n, "\xb1parent_block_hash\xcf", 19));
	close_world(&w);
}

/* Numbers are consecutive; a replay has all batches from the one asked for; the first one clears. */
static void replays(struct cairn_test *t)
{
	uint64_t got, first, last;
	uint8_t batch[MOST], frame[MOST];
	struct world w;
	int more, n;

	if (!open_world(t, &w, ""))
		return;
	first = greet(t, &w, "");
	for (int i = 0; i < 100; i++)
		store(&w, 0, i, i);
	last = first;
	for (int i = 0; i < 100; i++) {
		EXPECT(t, message(t, w.sub, "", &got, batch) > 0 && got == last + 1);
		last = got;
	}
	ask(&w, last - 2);
	for (uint64_t i = last - 2; i <= last; i++)
		EXPECT(t, message(t, w.peer, "", &got, batch) > 0 && got == i);
	/* greet() may have published more than it received */
	while ((n = message(t, w.peer, "", &got, batch)) > 0)
		EXPECT(t, got > last);
	EXPECT(t, n == 0 && got == UINT64_MAX);
	ask(&w, 0);
	n = message(t, w.peer, "", &got, batch);
	EXPECT(t, got == 0 && n == 11 + 24 &&
		  !memcmp(batch + 10, "\x91\x81\xa4type\xb0" "AllBlocksCleared", 24));
	while (message(t, w.peer, "", &got, batch) > 0)
		;
	EXPECT(t, got == UINT64_MAX);
	/* what is no request gets no answer, and does not disturb the next one */
	z->zmq_send(w.peer, "abc", 3, 0);
	z->zmq_send(w.peer, "", 0, ZEROMQ_SNDMORE);
	z->zmq_send(w.peer, "1234567", 7, 0);
	for (int i = 0; i < 5; i++)
		z->zmq_send(w.peer, "", 0, i < 4 ? ZEROMQ_SNDMORE : 0);
	ask(&w, UINT64_MAX - 1);
	EXPECT(t, receive(w.peer, frame, &more) == 0 && more && receive(w.peer, frame, &more) == 8 &&
		  number_of(frame) == UINT64_MAX && receive(w.peer, frame, &more) == 0 && !more);
	close_world(&w);
}

/* Waits until the sockets' thread has sent everything. */
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

/* Only as many batches are kept for replays as the bound allows: the oldest are forgotten. */
static void kept(struct cairn_test *t)
{
	enum { MORE = 10 };
	uint64_t got;
	uint8_t batch[MOST];
	struct world w;

	if (!open_world(t, &w, ""))
		return;
	for (int i = 0; i < CAIRN_KV_EVENTS_BATCHES + MORE; i++) {
		if (i % 1000 == 0)
			await_sent(&w);		/* so that none is dropped */
		store(&w, 0, i, i);
	}
	await_sent(&w);
	ask(&w, 0);
	EXPECT(t, message(t, w.peer, "", &got, batch) > 0 && got == MORE + 1);
	close_world(&w);
}

/*
 * Batches that are dropped, because they are too large or because too many bytes wait, are counted, and their
 * numbers are missing.
 */
static void losses(struct cairn_test *t)
{
	enum { TOKENS = 1 << 20 };
	struct cairn_kv_events_stats s = { 0, 0 };
	int32_t *tokens = calloc(TOKENS, sizeof(*tokens));
	struct world w;

	if (!tokens || !open_world(t, &w, "")) {
		free(tokens);
		return;
	}
	for (int i = 0; i < TOKENS; i++)
		tokens[i] = 1 << 30;
	/* a single batch beyond the bound is dropped as a whole: 8 times 10 MB of tokens and hashes */
	for (int i = 0; i < 8; i++)
		w.l->stored(w.l->ctx, 0, tokens, TOKENS);
	cairn_kv_events_flush(w.e);
	cairn_kv_events_stats(w.e, &s);
	EXPECT(t, s.published == 1 && s.lost == 8);
	store(&w, 0, 1, 2);
	cairn_kv_events_stats(w.e, &s);
	EXPECT(t, s.published == 2 && s.lost == 8);
	await_sent(&w);
	pthread_mutex_lock(&w.e->lock);
	w.e->waiting_bytes = CAIRN_KV_EVENTS_BYTES;	/* as if the sockets' thread were far behind */
	pthread_mutex_unlock(&w.e->lock);
	store(&w, 0, 3, 4);
	cairn_kv_events_stats(w.e, &s);
	EXPECT(t, s.published == 2 && s.lost == 9);
	pthread_mutex_lock(&w.e->lock);
	w.e->waiting_bytes = 0;
	pthread_mutex_unlock(&w.e->lock);
	store(&w, 0, 5, 6);
	await_sent(&w);
	cairn_kv_events_stats(w.e, &s);
	EXPECT(t, s.published == 3 && s.lost == 9);
	/* numbers 1 and 3 are missing in the replay */
	for (uint64_t want = 0, got; want != UINT64_MAX; want = got) {
		uint8_t batch[MOST];

		if (!want)
			ask(&w, 0);
		if (!EXPECT(t, message(t, w.peer, "", &got, batch) >= 0) || got == UINT64_MAX)
			break;
		EXPECT(t, got == 0 || got == 2 || got == 4);
	}
	free(tokens);
	close_world(&w);
}

/* Without a flush there is no batch, and without events no flush makes one. */
static void steps(struct cairn_test *t)
{
	uint8_t batch[MOST];
	struct world w;
	uint64_t first;
	int n;

	if (!open_world(t, &w, ""))
		return;
	first = greet(t, &w, "");
	for (int i = 0; i < 3; i++)
		cairn_kv_events_flush(w.e);
	w.l->stored(w.l->ctx, 0, (const int32_t[]){ 7, 8 }, 2);
	w.l->stored(w.l->ctx, 0, (const int32_t[]){ 8, 9 }, 2);
	cairn_kv_events_flush(w.e);
	do {
		n = message(t, w.sub, "", &first, batch);
	} while (n > 0 && batch[10] == 0x91);
	EXPECT(t, n > 0 && batch[10] == 0x92);
	store(&w, 0, 1, 1);
	EXPECT(t, receive_until(t, &w, "", first + 1, batch) > 0 && batch[10] == 0x91);
	close_world(&w);
}

static void bad_addresses(struct cairn_test *t)
{
	static const char *const bad[] = { "", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://:5557",
					   "tcp://127.0.0.1:port", "tcp://127.0.0.1:555555", "ipc:///tmp/x",
					   "127.0.0.1:5557", "inproc://x" };
	struct cairn_kv_events_options o = { "", NULL, NULL, 16 };
	struct cairn_kv_events *e = NULL, *other = NULL;
	char topic[CAIRN_KV_EVENTS_ADDRESS + 1];

	if (!have_zeromq(t))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		o.address = bad[i];
		EXPECT(t, cairn_kv_events_open(&e, &o) == -EINVAL && !e);
		EXPECT_CONTAINS(t, cairn_last_error(), "address: is not tcp://HOST:PORT");
	}
	o.address = "tcp://127.0.0.1:*";
	o.replay = "tcp://x";
	EXPECT(t, cairn_kv_events_open(&e, &o) == -EINVAL && !e);
	EXPECT_CONTAINS(t, cairn_last_error(), "replay: ");
	o.replay = NULL;
	memset(topic, 'a', sizeof(topic));
	topic[sizeof(topic) - 1] = 0;
	o.topic = topic;
	EXPECT(t, cairn_kv_events_open(&e, &o) == -EINVAL && !e);
	EXPECT_CONTAINS(t, cairn_last_error(), "topic: ");
	o.topic = NULL;
	if (!EXPECT(t, cairn_kv_events_open(&e, &o) == 0))
		return;
	EXPECT(t, cairn_kv_events_replay(e)[0] == 0 && cairn_kv_events_is_local(cairn_kv_events_address(e)));
	o.address = cairn_kv_events_address(e);		/* in use */
	EXPECT(t, cairn_kv_events_open(&other, &o) == -EIO && !other);
	EXPECT_CONTAINS(t, cairn_last_error(), "Address already in use");
	cairn_kv_events_close(e);
	EXPECT(t, cairn_kv_events_is_local("tcp://[::1]:5557"));
	EXPECT(t, cairn_kv_events_is_local("tcp://localhost:1"));
	EXPECT(t, !cairn_kv_events_is_local("tcp://*:5557"));
	EXPECT(t, !cairn_kv_events_is_local("tcp://10.0.0.1:5557"));
}

/* Numbers at the limits of each form, as msgspec writes them. */
static void numbers(struct cairn_test *t)
{
	static const struct { uint64_t value; const char *bytes; size_t len; } rows[] = {
		{ 0, "\x00", 1 }, { 127, "\x7f", 1 }, { 128, "\xcc\x80", 2 }, { 255, "\xcc\xff", 2 },
		{ 256, "\xcd\x01\x00", 3 }, { 65535, "\xcd\xff\xff", 3 },
		{ 65536, "\xce\x00\x01\x00\x00", 5 },
		{ UINT32_MAX, "\xce\xff\xff\xff\xff", 5 },
		{ 1ull << 32, "\xcf\x00\x00\x00\x01\x00\x00\x00\x00", 9 },
	};
	struct msgpack p = { NULL, 0, 0, false };

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		p.len = 0;
		msgpack_uint(&p, rows[i].value);
		EXPECT(t, p.len == rows[i].len && !memcmp(p.data, rows[i].bytes, p.len));
	}
	p.len = 0;
	msgpack_array(&p, 15);
	msgpack_array(&p, 16);
	msgpack_array(&p, 65536);
	msgpack_double(&p, -2);
	EXPECT(t, p.len == 18 && !memcmp(p.data, "\x9f\xdc\x00\x10\xdd\x00\x01\x00\x00"
					 "\xcb\xc0\0\0\0\0\0\0\0", 18));
	p.len = 0;
	msgpack_string(&p, "0123456789012345678901234567890");
	EXPECT(t, p.len == 32 && p.data[0] == 0xbf);
	msgpack_string(&p, "01234567890123456789012345678901");
	EXPECT(t, p.len == 66 && p.data[32] == 0xd9 && p.data[33] == 32 && !p.failed);
	free(p.data);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(recorded_messages), UNIT(replays), UNIT(kept), UNIT(losses), UNIT(steps),
	UNIT(bad_addresses), UNIT(numbers),
};

const struct cairn_family cairn_kv_events_family = {
	.stage = "serving",
	.name = "kv_events",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.waits = 1,
};
