// SPDX-License-Identifier: Apache-2.0
/* serve_events_test - a server publishes the blocks of its cache; a worker that is restarted begins anew */
#include "conformance/harness.h"
#include "serving/events/zeromq.h"
#include "serving/serve/tests/serve_test.h"

static const struct zeromq *z;

/* Finds the address of the replays of the n-th worker's events in the log. */
static bool find_address(const struct server *s, int n, char *address, size_t len)
{
	static const char mark[] = ", replays at ";
	static char text[65536];
	const char *at = log_of(s, text, sizeof(text));

	while ((at = strstr(at, mark)) && n--)
		at += sizeof(mark) - 1;
	if (!at)
		return false;
	at += sizeof(mark) - 1;
	snprintf(address, len, "%.*s", (int)strcspn(at, "\n"), at);
	return true;
}

/* Asks for the first batch, which says that the cache is empty. A new worker may not have it yet. */
static bool clears(struct cairn_test *t, const char *address)
{
	int patience = 30000, zero = 0, n;
	bool first;
	void *ctx = z->zmq_ctx_new(), *peer = z->zmq_socket(ctx, ZEROMQ_DEALER);
	uint8_t frame[256];

	z->zmq_setsockopt(peer, ZEROMQ_RCVTIMEO, &patience, sizeof(patience));
	z->zmq_setsockopt(peer, ZEROMQ_LINGER, &zero, sizeof(zero));
	EXPECT(t, z->zmq_connect(peer, address) == 0);
	z->zmq_send(peer, "", 0, ZEROMQ_SNDMORE);
	z->zmq_send(peer, "\0\0\0\0\0\0\0\0", 8, 0);
	EXPECT(t, z->zmq_recv(peer, frame, sizeof(frame), 0) == 0);
	first = z->zmq_recv(peer, frame, sizeof(frame), 0) == 8 && !memcmp(frame, "\0\0\0\0\0\0\0\0", 8);
	n = z->zmq_recv(peer, frame, sizeof(frame), 0);
	z->zmq_close(peer);
	z->zmq_ctx_term(ctx);
	return first && n > 0 && memmem(frame, (size_t)n, "AllBlocksCleared", 16);
}

/* Sends a prompt of more than a page. */
static void store_page(struct cairn_test *t, const struct server *s)
{
	static struct reply r;

	EXPECT(t, post(s, "/v1/completions", "{\"prompt\":\"a prompt of more than sixteen tokens, which is "
		       "what a page of the cache has\",\"max_tokens\":2}", &r) == 200);
}

static void restarts(struct cairn_test *t)
{
	char address[2][256], fault[PATH_MAX];
	static struct reply r;
	struct server s;

	if (zeromq_load(&z)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	if (!beside(t, "fault_plugin.so", fault, sizeof(fault)))
		return;
	if (start_server(t, &s, FAULT_ARGS(fault, "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay",
					   "tcp://127.0.0.1:*", "--page-size", "16", "--resume-limit",
					   "0")) &&
	    EXPECT(t, wait_ready(&s)) &&
	    EXPECT(t, WAIT_FOR(find_address(&s, 0, address[0], sizeof(address[0])), 20000))) {
		EXPECT(t, WAIT_FOR(clears(t, address[0]), 20000));
		store_page(t, &s);
		/* AllBlocksCleared, and a page or more */
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:kv_events_published_total", "") >= 2, 20000));
		EXPECT(t, metric_of(&s, "cairn:kv_events_lost_total", "") == 0);
		EXPECT(t, metric_of(&s, "vllm:cache_config_info", "block_size=\"16\"") == 1);
		tell_fault(&s, "crash");
		EXPECT(t, post(&s, "/v1/completions", "{\"prompt\":\"b\",\"max_tokens\":2}", &r) == 500);
		tell_fault(&s, "none");
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:worker_restarts_total", "") == 1, 30000));
		EXPECT(t, wait_ready(&s));
		/* the log may be written after the answer */
		if (EXPECT(t, WAIT_FOR(find_address(&s, 1, address[1], sizeof(address[1])), 20000)))
			EXPECT(t, WAIT_FOR(clears(t, address[1]), 20000));
		store_page(t, &s);
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:kv_events_published_total", "") >= 4, 20000));
	}
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "restarts", restarts },
};

const struct cairn_family cairn_serve_events_family = {
	.stage = "serving",
	.name = "serve_events",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.waits = 1,
};
