// SPDX-License-Identifier: Apache-2.0
/*
 * transport_tcp_test.c - the conformance cases over TCP: in one process, in two, over IPv6, and through a
 * relay that splits and delays; the cases of tcp alone; addresses; the mutants
 */
#include <dirent.h>

#include "conformance/harness.h"
#include "rdma/transport/transport_pace.h"
#include "rdma/transport/transport_run.h"

static const struct setting tcp = { .backend = "tcp", .options = "quick=1" };
static const struct setting tcp_processes = { .backend = "tcp", .options = "", .processes = 1 };
static const struct setting tcp_detour = {
	.backend = "tcp", .options = "quick=1 depth=16 detour=1", .processes = 1,
};
static const struct setting tcp_ipv6 = { .backend = "tcp", .options = "quick=1 device=::1" };
static const struct setting tcp_own_network = { .backend = "tcp", .options = "network=own" };
#define TCP_CASES(C)	C(strangers) C(cut) C(old_address) C(late_bytes) C(frames) C(early_acks) C(fair)
#define C(name) static void tcp_##name(struct cairn_test *t) { run(t, &tcp, #name); }
CASES(C)
#undef C
#define C(name) static void processes_##name(struct cairn_test *t) { run(t, &tcp_processes, #name); }
CASES(C) TCP_CASES(C) C(stopped) C(peer_gone_killed)
#undef C
#define C(name) static void detour_##name(struct cairn_test *t) { run(t, &tcp_detour, #name); }
ORDER_CASES(C)
#undef C
#define C(name) static void ipv6_##name(struct cairn_test *t) { run(t, &tcp_ipv6, #name); }
C(payload_before_signal) C(reset) C(strangers)
#undef C

static void tcp_vanished(struct cairn_test *t)
{
	run(t, &tcp_own_network, "vanished");
}

/* Addresses of this host, and addresses that are none. */
static void devices(struct cairn_test *t)
{
	static const struct {
		const char *device;
		int want;
		const char *text;
	} cases[] = {
		{ "127.0.0.1", 0, "" }, { "127.1.2.3", 0, "" }, { NULL, 0, "" },
		{ "localhost", -EINVAL, "'localhost' is no numeric" }, { "", -EINVAL, "is no numeric" },
		{ "0.0.0.0", -EINVAL, "cannot dial" }, { "::", -EINVAL, "cannot dial" },
		{ "127.0.0.1:80", -EINVAL, "is no numeric" },
		{ "192.0.2.1", -ENODEV, "cannot listen at 192.0.2.1" },
	};
	const struct cairn_transport_table *table = cairn_transport_find("tcp");
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	struct cairn_transport *tr;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		tr = NULL;
		o.device = cases[i].device;
		EXPECT(t, table->open(&o, &tr) == cases[i].want && !tr == !!cases[i].want);
		if (cases[i].want)
			EXPECT_CONTAINS(t, cairn_last_error(), cases[i].text);
		table->close(tr);
	}
}

static int num_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	int num = 0;

	while (d && readdir(d))
		num++;
	if (d)
		closedir(d);
	return num;
}

/* One thread connects both ends; ends with different numbers of slots do not connect; device memory and
 * closed peers are refused by name. Nothing stays open. */
static void connects(struct cairn_test *t)
{
	const struct cairn_transport_table *table = cairn_transport_find("tcp");
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 }, other = o;
	struct cairn_transport *near = NULL, *far = NULL;
	struct cairn_channel *a, *b, *c;
	struct cairn_region *r;
	struct cairn_blob blob;
	int before = num_files();
	uint64_t memory;

	other.num_slots = 32;
	if (!EXPECT(t, !table->open(&o, &near) && !table->open(&other, &far)) ||
	    !EXPECT(t, !table->channel_create(near, &a) && !table->channel_create(near, &b)) ||
	    !EXPECT(t, !table->channel_create(far, &c)))
		return;
	EXPECT(t, table->region_register(near, &memory, 8, CAIRN_MEMORY_DEVICE, &r) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "host memory only");
	EXPECT(t, !table->channel_address(c, &blob) && table->channel_connect(a, &blob, 1000) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "num_slots: the peer has 32, this end 64");
	table->close(far);
	other.num_slots = 0;
	if (!EXPECT(t, !table->open(&other, &far) && !table->channel_create(far, &c)))
		return;
	EXPECT(t, !table->channel_address(c, &blob));
	table->close(far);
	EXPECT(t, table->channel_connect(a, &blob, 1000) == -ECONNRESET);
	EXPECT_CONTAINS(t, cairn_last_error(), "the peer is gone");
	EXPECT(t, !table->channel_address(a, &blob) && !table->channel_connect(b, &blob, 1000));
	EXPECT(t, !table->channel_address(b, &blob) && !table->channel_connect(a, &blob, 1000));
	EXPECT(t, !table->put(a, &(struct cairn_put) { .slot = 63, .value = 5 }, 1000));
	EXPECT(t, !table->wait(b, 63, 5, 5000, NULL) && !table->flush(a, 5000));
	table->channel_destroy(b);
	EXPECT(t, table->wait(a, 0, 1, 5000, NULL) == -ECONNRESET);
	table->close(near);
	EXPECT(t, num_files() == before);
}

/* Texts of a pace; a wrong one names its variable, whether there is a GPU or not. */
static void pace_text(struct cairn_test *t)
{
	static const struct {
		const char *text;
		uint64_t latency_ns;
		double ns_per_byte;	/* 0: an error */
	} cases[] = {
		{ "5:50000", 5000, 0.02 }, { "0:1000000", 0, 0.001 }, { "100:4", 100000, 250 },
		{ "0.5:1e3", 500, 1 }, { "1000000:0.001", 1000000000, 1e6 },
		{ "", 0, 0 }, { "5", 0, 0 }, { "5:", 0, 0 }, { ":50000", 0, 0 }, { "5:50000:", 0, 0 },
		{ "5:50000x", 0, 0 }, { "x:1", 0, 0 }, { "-1:1", 0, 0 }, { "5:0", 0, 0 }, { "5:-4", 0, 0 },
		{ "nan:1", 0, 0 }, { "1:nan", 0, 0 }, { "1000001:1", 0, 0 }, { "1:inf", 0, 0 },
	};
	static const char *const back_ends[][2] = {
		{ "tcp", "CAIRN_TCP_PACE" }, { "nvlink", "CAIRN_NVLINK_PACE" },
	};
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	struct cairn_transport *tr = NULL;
	struct transport_pace p;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const int is_right = cases[i].ns_per_byte > 0;

		setenv("CAIRN_TCP_PACE", cases[i].text, 1);
		EXPECT(t, transport_pace_read("CAIRN_TCP_PACE", &p) == (is_right ? 0 : -EINVAL));
		EXPECT(t, p.latency_ns == cases[i].latency_ns && transport_is_paced(&p) == is_right);
		EXPECT(t, p.ns_per_byte <= cases[i].ns_per_byte * (1 + 1e-12) &&
		       p.ns_per_byte >= cases[i].ns_per_byte * (1 - 1e-12));
	}
	unsetenv("CAIRN_TCP_PACE");
	EXPECT(t, !transport_pace_read("CAIRN_TCP_PACE", &p) && !transport_is_paced(&p));
	for (size_t i = 0; i < ARRAY_SIZE(back_ends); i++) {
		const struct cairn_transport_table *table = cairn_transport_find(back_ends[i][0]);

		if (!table)
			continue;
		setenv(back_ends[i][1], "5:fast", 1);
		EXPECT(t, table->open(&o, &tr) == -EINVAL && !tr);
		EXPECT_CONTAINS(t, cairn_last_error(), back_ends[i][1]);
		EXPECT_CONTAINS(t, cairn_last_error(), "'5:fast' is not LATENCY_US:MBYTES_PER_S");
		unsetenv(back_ends[i][1]);
	}
}

/* Random puts to a slot over a paced link: waits and looks must agree with a list of all due times. */
static void pace_link(struct cairn_test *t)
{
	const struct transport_pace p = { .latency_ns = 1000, .ns_per_byte = 2 };
	enum { PUTS = 2000 };
	static struct cairn_signal all[PUTS];
	struct cairn_signal dues[TRANSPORT_DUES] = { 0 };
	uint64_t now = 1, carried = 0, link = 0, value = UINT64_MAX - PUTS, shown = 0;

	EXPECT(t, transport_pace_due(dues, 5) == 0 && transport_pace_shown(dues, 5, 0, 1) == 5);
	for (int i = 0, first = 0; i < PUTS; i++) {
		const uint64_t bytes = cairn_rand(t) % 3 * 100;

		now += cairn_rand(t) % 900;
		link = (link > now ? link : now) + 2 * bytes;
		carried = transport_pace_carried(&p, carried, now, bytes);
		EXPECT(t, carried == link);
		value += 1 + cairn_rand(t) % 3;		/* wraps */
		all[i] = dues[i % TRANSPORT_DUES] = (struct cairn_signal){ value, link + p.latency_ns };
		while (first < i && all[first].word <= now)
			first++;		/* ends at the first signal that is not due yet */
		if (i - first >= TRANSPORT_DUES)
			continue;		/* more signals in flight than a slot has due times */
		for (int k = first; k <= i; k++)
			EXPECT(t, transport_pace_due(dues, all[k].value) == all[k].word);
		if (!i)
			shown = value - 1;
		if (i - first == TRANSPORT_DUES - 1)
			continue;		/* the due time of the last visible signal is overwritten */
		shown = transport_pace_shown(dues, value, shown, now);
		EXPECT(t, shown == (first ? all[first - 1].value : all[0].value - 1));
		EXPECT(t, transport_pace_shown(dues, value + 1, shown, now) == value + 1);
	}
	EXPECT(t, transport_pace_shown(dues, value, shown, now + 1000000) == value);
}

static void run_mutants(struct cairn_test *t, const char *words, const char *want)
{
	char text[8192];
	struct child c;

	start_child(t, &c, words, 0, NULL, "out");
	EXPECT(t, finish(t, &c) == 0);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)), want);
	if (c.status)
		remarks(t, &c);
}

static void mutants(struct cairn_test *t)
{
	run_mutants(t, "transport_end mutants tcp",
		    "transport mutants: 33 of 33 caught, 0 right ones blamed");
}

static void own_mutants(struct cairn_test *t)
{
	run_mutants(t, "transport_end tcp_mutants",
		    "transport mutants: 12 of 12 caught, 0 right ones blamed");
}

static const struct cairn_unit tcp_units[] = {
#define C(name) { "one_process_" #name, tcp_##name },
	CASES(C)
#undef C
#define C(name) { #name, processes_##name },
	CASES(C) TCP_CASES(C) C(stopped) C(peer_gone_killed)
#undef C
#define C(name) { "detour_" #name, detour_##name },
	ORDER_CASES(C)
#undef C
#define C(name) { "ipv6_" #name, ipv6_##name },
	C(payload_before_signal) C(reset) C(strangers)
#undef C
	{ "vanished", tcp_vanished }, { "devices", devices }, { "connects", connects },
	{ "pace_text", pace_text }, { "pace_link", pace_link },
	{ "mutants", mutants }, { "own_mutants", own_mutants },
};

const struct cairn_family cairn_transport_tcp_family = {
	.stage = "rdma", .name = "transport_tcp", .units = tcp_units, .num_units = ARRAY_SIZE(tcp_units),
	.cost_s = 35, .waits = 1,
};
