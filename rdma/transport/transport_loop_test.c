// SPDX-License-Identifier: Apache-2.0
/* transport_loop_test.c - the conformance cases on the loop, with and without faults; its own faults;
 * descriptors of the proxy's queue; the mutants */
#include "conformance/harness.h"
#include "rdma/transport/transport.h"
#include "rdma/transport/transport_queue.h"
#include "rdma/transport/transport_run.h"

static const struct setting loop = { .backend = "loop", .options = "" };
static const struct setting loop_troubled = {
	.backend = "loop", .options = "faults=pieces=16,window=32,torn=30,again=30,delay_us=1 quick=1",
};
#define C(name) static void loop_##name(struct cairn_test *t) { run(t, &loop, #name); }
CASES(C)
#undef C
#define C(name) static void loop_troubled_##name(struct cairn_test *t) { run(t, &loop_troubled, #name); }
ORDER_CASES(C)
#undef C

/* A fault that ends a channel is reported as such, and a reset restores the channel. */
static void loop_fault(struct cairn_test *t, const char *faults, const char *text)
{
	const struct cairn_transport_table *table = cairn_transport_find("loop");
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1, .faults = faults };
	struct cairn_put p = { .bytes = 64, .slot = 0 };
	uint8_t from[64] = { 1 }, to[64] = { 0 };
	struct cairn_channel *a, *b;
	struct cairn_blob blob;
	struct cairn_region *ra, *rb;
	struct cairn_remote *remote;
	struct cairn_transport *tr;
	int turn, ret, i;

	if (!EXPECT(t, !table->open(&o, &tr)))
		return;
	if (!EXPECT(t, !table->region_register(tr, from, 64, CAIRN_MEMORY_HOST, &ra)) ||
	    !EXPECT(t, !table->region_register(tr, to, 64, CAIRN_MEMORY_HOST, &rb)) ||
	    !EXPECT(t, !table->region_key(rb, &blob) && !table->remote_import(tr, &blob, &remote)) ||
	    !EXPECT(t, !table->channel_create(tr, &a) && !table->channel_create(tr, &b)))
		return;
	p.local = ra;
	p.remote = remote;
	for (turn = 0; turn < 2; turn++) {
		EXPECT(t, !table->channel_address(b, &blob) && !table->channel_connect(a, &blob, 100));
		EXPECT(t, !table->channel_address(a, &blob) && !table->channel_connect(b, &blob, 100));
		for (i = 1, ret = 0; i < 100 && !ret; i++) {
			p.value = (uint64_t)i;
			ret = table->put(a, &p, 1000);
			ret = ret ? ret : table->flush(a, 1000);
		}
		EXPECT(t, ret == (strstr(faults, "lost") ? -ECONNRESET : -EIO));
		EXPECT(t, i == 9);	/* the eighth put failed */
		EXPECT_CONTAINS(t, cairn_last_error(), text);
		EXPECT(t, !table->wait(b, 0, 7, 1000, NULL));
		EXPECT(t, table->wait(b, 0, 8, 10, NULL) == -ETIMEDOUT);
		EXPECT(t, !table->channel_reset(a) && !table->channel_reset(b));
	}
	table->close(tr);
}

static void loop_loses_the_peer(struct cairn_test *t)
{
	loop_fault(t, "lost_at=8", "the peer is gone");
}

static void loop_fails(struct cairn_test *t)
{
	loop_fault(t, "error_at=8", "put 7 failed");
}

static void loop_names_faults(struct cairn_test *t)
{
	static const char *const bad[][2] = {
		{ "no_such=1", "unknown fault 'no_such'" }, { "pieces", "unknown fault" },
		{ "pieces=65", "pieces: not a number of at most 64" }, { "torn=x", "torn: not a number" },
		{ "window=0", "window: 0" }, { "pieces=1;", "pieces: not a number" },
	};
	const struct cairn_transport_table *table = cairn_transport_find("loop");
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	struct cairn_transport *tr = NULL;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		o.faults = bad[i][0];
		EXPECT(t, table->open(&o, &tr) == -EINVAL && !tr);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i][1]);
	}
}

/* A descriptor unpacks to the values packed, and is not accepted before its last word is there. */
static void queue_words(struct cairn_test *t)
{
	uint64_t w[QUEUE_WORDS], old[QUEUE_WORDS], index;
	struct queue_entry e, got;
	int i, k;

	for (i = 0; i < 100000; i++) {
		const uint32_t depth = 64;

		index = cairn_rand(t) >> 20;
		e = (struct queue_entry) {
			.local = cairn_rand(t) >> 1, .remote = cairn_rand(t) >> 1,
			.bytes = cairn_rand(t) >> 1,
			.value = cairn_rand(t), .word = cairn_rand(t), .lkey = (uint32_t)cairn_rand(t),
			.rkey = (uint32_t)cairn_rand(t), .slot = (uint32_t)(cairn_rand(t) & 0xffff),
			.op = QUEUE_PUT,
		};
		queue_pack(&e, index, depth, w);
		queue_pack(&e, index - depth, depth, old);
		if (!EXPECT(t, queue_unpack(w, index, depth, &got) == 1 && !memcmp(&e, &got, sizeof(e))))
			return;
		k = (int)(cairn_rand(t) % QUEUE_WORDS);
		w[k] = old[k];		/* one word is still from the previous lap */
		if (!EXPECT(t, queue_unpack(w, index, depth, &got) == 0))
			return;
		if (!EXPECT(t, queue_unpack(old, index, depth, &got) == 0))
			return;
		queue_pack(&e, index + 2 * depth, depth, w);
		if (!EXPECT(t, queue_unpack(w, index, depth, &got) == -1))
			return;
	}
}

static void mutants(struct cairn_test *t)
{
	char text[8192];
	struct child c;

	start_child(t, &c, "transport_end mutants loop", 0, NULL, "out");
	EXPECT(t, finish(t, &c) == 0);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)),
			"transport mutants: 33 of 33 caught, 0 right ones blamed");
	if (c.status)
		remarks(t, &c);
}

#define UNIT_NAME(name) loop_##name
static const struct cairn_unit loop_units[] = {
	CASES(UNIT)
#undef UNIT_NAME
#define UNIT_NAME(name) loop_troubled_##name
#define TROUBLED(name) { "troubled_" #name, loop_troubled_##name },
	ORDER_CASES(TROUBLED)
	{ "loses_the_peer", loop_loses_the_peer }, { "fails", loop_fails },
	{ "names_faults", loop_names_faults },
	{ "queue_words", queue_words }, { "mutants", mutants },
};
#undef UNIT_NAME

const struct cairn_family cairn_transport_loop_family = {
	.stage = "rdma", .name = "transport_loop", .units = loop_units, .num_units = ARRAY_SIZE(loop_units),
	.cost_s = 33, .waits = 1,
};
