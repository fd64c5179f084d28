// SPDX-License-Identifier: Apache-2.0
/*
 * transport_tcp_test.c - the conformance cases over TCP: in one process, in two, over IPv6, and through a
 * relay that splits and delays; the cases of tcp alone; addresses; the mutants
 */
#include <dirent.h>

#include "conformance/harness.h"
#include "rdma/transport/transport.h"
#include "rdma/transport/transport_run.h"

static const struct setting tcp = { .backend = "tcp", .options = "quick=1" };
static const struct setting tcp_processes = { .backend = "tcp", .options = "", .processes = 1 };
static const struct setting tcp_detour = {
	.backend = "tcp", .options = "quick=1 depth=16 detour=1", .processes = 1,
};
static const struct setting tcp_ipv6 = { .backend = "tcp", .options = "quick=1 device=::1" };
static const struct setting tcp_own_network = { .backend = "tcp", .options = "network=own" };
#define TCP_CASES(C)	C(strangers) C(cut) C(old_address) C(late_bytes) C(frames) C(fair)
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
		    "transport mutants: 9 of 9 caught, 0 right ones blamed");
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
	{ "mutants", mutants }, { "own_mutants", own_mutants },
};

const struct cairn_family cairn_transport_tcp_family = {
	.stage = "rdma", .name = "transport_tcp", .units = tcp_units, .num_units = ARRAY_SIZE(tcp_units),
	.cost_s = 35, .waits = 1,
};
