// SPDX-License-Identifier: Apache-2.0
/*
 * nic_stock_test.c - runs unmodified programs of the system on the NIC model, in two processes
 *
 * ibv_rc_pingpong checks the bytes it receives (-c); perftest's programs check statuses. All must succeed,
 * and the model must have seen no broken rule and only libmlx5's doorbells.
 */
#include "conformance/harness.h"
#include "rdma/nic/nic_child.h"

static void two(struct cairn_test *t, const char *program, const char *args, const char *adversary,
		long long requests)
{
	struct child server, client;

	if (missing(t, program) || !start_two(t, &server, &client, program, args, adversary))
		return;
	finish_two(t, &server, &client);
	cairn_note(t, "%lld requests, %lld doorbells (%lld of 64 bytes at least)", reported(t, "requests"),
		   reported(t, "doorbells"), reported(t, "blueflame"));
	EXPECT(t, reported(t, "requests") >= requests);
	EXPECT(t, reported(t, "doorbell_wqe") == reported(t, "doorbells"));
	EXPECT(t, reported(t, "errors") == 0);
	EXPECT(t, reported(t, "rules") == 0);
}

static void pingpong(struct cairn_test *t)
{
	two(t, "ibv_rc_pingpong", "-g 1 -n 200 -c", NULL, 400);
}

/* Programs that sleep on completion channels: one event for each completion that was not polled yet. */
static void with_events(struct cairn_test *t, const char *program, const char *args, const char *adversary,
			long long requests)
{
	two(t, program, args, adversary, requests);
	if (missing(t, program))
		return;
	cairn_note(t, "%lld arms, %lld events", reported(t, "arms"), reported(t, "events"));
	EXPECT(t, reported(t, "events") > 0 && reported(t, "events") <= reported(t, "completions"));
	EXPECT(t, reported(t, "events") <= reported(t, "arms"));
}

static void pingpong_events(struct cairn_test *t)
{
	with_events(t, "ibv_rc_pingpong", "-g 1 -n 1000 -c -e", NULL, 2000);
}

static void pingpong_events_under_trouble(struct cairn_test *t)
{
	with_events(t, "ibv_rc_pingpong", "-g 1 -n 200 -c -e", "fetch_us=100,completion_us=200,drop=20", 400);
}

static void send_lat_events(struct cairn_test *t)
{
	with_events(t, "ib_send_lat", "-x 1 -F -n 1000 -e", NULL, 2000);
}

/*
 * Runs without -q: with it, perftest leaves entries in the queue and waits for an event that no later entry
 * raises.
 */
static void send_bw_events(struct cairn_test *t)
{
	with_events(t, "ib_send_bw", "-x 1 -F -n 2000 -s 64 -b -e", NULL, 4000);
}

static void read_lat_events(struct cairn_test *t)
{
	with_events(t, "ib_read_lat", "-x 1 -F -n 1000 -e", NULL, 1000);
}

static void pingpong_under_trouble(struct cairn_test *t)
{
	two(t, "ibv_rc_pingpong", "-g 1 -n 100 -c", "fetch_us=100,completion_us=100,drop=20", 200);
}

static void write_bw(struct cairn_test *t)
{
	two(t, "ib_write_bw", "-x 1 -F -n 5000", NULL, 5000);
}

static void write_bw_index_wraps(struct cairn_test *t)
{
	two(t, "ib_write_bw", "-x 1 -F -s 8 -n 140000", NULL, 140000);
}

static void write_bw_many_queue_pairs(struct cairn_test *t)
{
	two(t, "ib_write_bw", "-x 1 -F -n 500 -q 16 -b", NULL, 16000);
}

static void write_lat(struct cairn_test *t)
{
	two(t, "ib_write_lat", "-x 1 -F -n 200", NULL, 400);
}

static void read_bw(struct cairn_test *t)
{
	two(t, "ib_read_bw", "-x 1 -F -n 1000", NULL, 1000);
}

static void send_bw(struct cairn_test *t)
{
	two(t, "ib_send_bw", "-x 1 -F -n 1000", NULL, 1000);
}

static void atomic_bw(struct cairn_test *t)
{
	two(t, "ib_atomic_bw", "-x 1 -F -n 1000", NULL, 1000);
}

/* A process is killed. The other end's retries run out; it must get the error and exit. */
static void peer_killed(struct cairn_test *t)
{
	struct timespec wait = { .tv_sec = 2 };
	struct child server, client;
	char text[8192];

	if (missing(t, "ib_write_bw") ||
	    !start_two(t, &server, &client, "ib_write_bw", "-x 1 -F -n 4000000", NULL))
		return;
	nanosleep(&wait, NULL);
	kill(server.pid, SIGKILL);
	EXPECT(t, finish(t, &server) == -SIGKILL);
	EXPECT(t, finish(t, &client) > 0);
	EXPECT_CONTAINS(t, text_of(client.out, text, sizeof(text)), "syndrom 0x88");
	EXPECT(t, reported(t, "errors") >= 1);
	EXPECT(t, reported(t, "rules") == 0);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(pingpong), UNIT(pingpong_under_trouble), UNIT(write_bw), UNIT(write_bw_index_wraps),
	UNIT(write_bw_many_queue_pairs), UNIT(write_lat), UNIT(read_bw), UNIT(send_bw), UNIT(atomic_bw),
	UNIT(pingpong_events), UNIT(pingpong_events_under_trouble), UNIT(send_lat_events),
	UNIT(send_bw_events), UNIT(read_lat_events), UNIT(peer_killed),
};

const struct cairn_family cairn_nic_stock_family = {
	.stage = "rdma", .name = "nic_stock", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 16,
};
