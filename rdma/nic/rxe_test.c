// SPDX-License-Identifier: Apache-2.0
/*
 * rxe_test.c - the NIC model against the Linux kernel's soft-RoCE, in an emulated machine (rxe_guest.sh)
 *
 * The two implementations have only the specification in common. Their results for the same cases must be
 * equal except for the lines of nic_semantics_rxe.txt, which gives a reason for each. The guest is booted
 * once for all units, which therefore run in one process. Its times are meaningless and are ignored.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "rdma/nic/rxe_compare.h"

/* Inputs that the comparison must refuse; each has one error. */
static void comparison_can_fail(struct cairn_test *t)
{
	static const char model[] = "case a 'yes'\ncase b 'no'\nend 5\n";
	static const char guest[] = "case a 'yes'\ncase b 'never'\nend 5\n";
	static const char listed[] = "# of all\n\n# of b\n-case b 'no'\n+case b 'never'\n";
	static const struct { const char *model, *guest, *listed, *says; } rows[] = {
		{ model, model, "# none\n", NULL },
		{ model, guest, listed, NULL },
		{ model, guest, "# none\n", "not listed" },
		{ model, "case a 'yes'\ncase b 'maybe'\nend 5\n", listed, "another difference" },
		{ model, model, listed, "not there any more" },
		{ model, "case a 'yes'\ncase b 'never'\nend 6\n", listed, "not listed" },
		{ model, "case a 'yes'\ncase b 'never'\n", listed, "guest nothing" },
		{ model, "", listed, "guest nothing" },
		{ model, "case a 'yes'\ncase b 'never'\nend 5\nmore\n", listed, "prints more: more" },
		{ model, guest, "-case b 'no'\n+case b 'never'\n", "no reason" },
		{ model, guest, "# of b\n-case b 'no'\n", "not a '-' and a '+'" },
		{ model, guest, "# of b\n-case b 'no'\n+case b 'never'\n# of c\n-case c 'x'\n+case c 'y'\n",
		  "no such line: case c" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char why[512] = "";
		int ret = compare(rows[i].model, rows[i].guest, rows[i].listed, why, sizeof(why));

		if (!EXPECT(t, ret == !!rows[i].says))
			cairn_note(t, "row %zu: %s", i, why);
		if (rows[i].says)
			EXPECT_CONTAINS(t, why, rows[i].says);
	}
}

static const char *read_text(const char *name, char *text, size_t len)
{
	char path[4096];
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "%s/rdma/nic/%s", cairn_srcdir(), name);
	f = fopen(path, "re");
	n = f ? fread(text, 1, len - 1, f) : 0;
	text[n] = 0;
	if (f)
		fclose(f);
	return text;
}

/* Returns the guest's report, or NULL if the unit is skipped or has failed, with the reason noted. */
static const char *guest_report(struct cairn_test *t)
{
	static char report[1 << 17];
	static int status = -1;
	char self[2048], command[8192], *slash;
	ssize_t n;
	FILE *f;

	if (status < 0) {
		n = readlink("/proc/self/exe", self, sizeof(self) - 1);
		self[n > 0 ? n : 0] = 0;
		slash = strrchr(self, '/');
		if (slash)
			*slash = 0;
		snprintf(command, sizeof(command),
			 "exec env TMPDIR='%s' '%s/rdma/nic/rxe_guest.sh' run '%s' </dev/null 2>&1",
			 cairn_tmpdir(t), cairn_srcdir(), self);
		f = popen(command, "re");
		n = f ? (ssize_t)fread(report, 1, sizeof(report) - 1, f) : 0;
		report[n] = 0;
		status = f ? pclose(f) : 1;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		cairn_skip(t, "%.*s", (int)strcspn(report, "\n"), report);
		return NULL;
	}
	if (!EXPECT(t, status == 0)) {
		cairn_note(t, "%.3500s", strlen(report) > 3500 ? report + strlen(report) - 3500 : report);
		return NULL;
	}
	return report;
}

/* Returns the text of a section; its last line must report status 0. */
static const char *section(struct cairn_test *t, const char *report, const char *name, char *text,
			   size_t len)
{
	char head[64], tail[64];
	const char *from, *to;

	snprintf(head, sizeof(head), "@@ %s\n", name);
	snprintf(tail, sizeof(tail), "@@ end %s ", name);
	from = strstr(report, head);
	to = from ? strstr(from, tail) : NULL;
	text[0] = 0;
	if (!EXPECT(t, to)) {
		cairn_note(t, "no section %s", name);
		return text;
	}
	from += strlen(head);
	snprintf(text, len, "%.*s", (int)(to - from), from);
	if (!EXPECT(t, atoi(to + strlen(tail)) == 0))
		cairn_note(t, "section %s: status %d:\n%.3000s", name, atoi(to + strlen(tail)), text);
	return text;
}

static void semantics_as_listed(struct cairn_test *t)
{
	char model[8192], listed[8192], guest[8192], why[1024], *digit;
	const char *report = guest_report(t);

	if (!report)
		return;
	cairn_note(t, "kernel of the guest: %.*s", (int)strcspn(report, "\n"), report);
	section(t, report, "semantics", guest, sizeof(guest));
	read_text("nic_semantics.txt", model, sizeof(model));
	read_text("nic_semantics_rxe.txt", listed, sizeof(listed));
	if (!EXPECT(t, compare(model, guest, listed, why, sizeof(why)) == 0))
		cairn_note(t, "%s", why);
	/* the same table with one character altered must be refused */
	digit = strstr(guest, "state 6");
	if (!EXPECT(t, digit))
		return;
	digit[6] = '3';
	EXPECT(t, compare(model, guest, listed, why, sizeof(why)) == 1);
}

/*
 * Traffic between the two devices must go over the network: one end receives what the other sends, without a
 * shortcut within the host.
 */
static void packets_cross(struct cairn_test *t)
{
	long long sent[2] = { 0 }, got[2] = { 0 }, lost[2] = { 0 };
	const char *report = guest_report(t);
	char text[4096];

	if (!report)
		return;
	section(t, report, "links", text, sizeof(text));
	EXPECT_CONTAINS(t, text, "rxe0/1 state ACTIVE");
	EXPECT_CONTAINS(t, text, "rxe1/1 state ACTIVE");
	section(t, report, "counters", text, sizeof(text));
	EXPECT(t, sscanf(text, "v0 %lld %lld %lld v1 %lld %lld %lld", &sent[0], &got[0], &lost[0], &sent[1],
			 &got[1], &lost[1]) == 6);
	/* 200 chains of two requests, and their acknowledgements */
	EXPECT(t, sent[0] > 400 && sent[1] > 200);
	EXPECT(t, got[1] >= sent[0] - 8 && got[0] >= sent[1] - 8);	/* some packets may be in flight */
	EXPECT(t, !lost[0] && !lost[1]);
}

static void stock_programs(struct cairn_test *t)
{
	static const struct { const char *name, *says; } rows[] = {
		{ "pingpong", "200 iters in" }, { "pingpong_events", "100 iters in" },
		{ "write_bw", "RDMA_Write BW Test" }, { "write_lat", "RDMA_Write Latency Test" },
	};
	const char *report = guest_report(t);
	char text[16384], head[64];
	int ran = 0;

	if (!report)
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		snprintf(head, sizeof(head), "@@ %s\n", rows[i].name);
		if (!strstr(report, head)) {
			cairn_note(t, "%s: program not found", rows[i].name);
			continue;
		}
		section(t, report, rows[i].name, text, sizeof(text));
		EXPECT_CONTAINS(t, text, rows[i].says);
		ran++;
	}
	if (!ran)
		cairn_skip(t, "neither ibv_rc_pingpong nor perftest here");
}

/* Runs the verbs back end of transport.h on a kernel's RDMA stack, with the same cases as on the model. */
static void transport(struct cairn_test *t)
{
	const char *report = guest_report(t);
	char text[16384], *line, *save;
	int passed = 0;

	if (!report)
		return;
	if (!strstr(report, "@@ transport\n")) {
		cairn_skip(t, "transport_end was not built");
		return;
	}
	section(t, report, "transport", text, sizeof(text));
	EXPECT_CONTAINS(t, text, "ok payload_before_signal\n");
	EXPECT_CONTAINS(t, text, "ok key_released\n");
	EXPECT_CONTAINS(t, text, "ok peer_gone_put\n");
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		passed += !strncmp(line, "ok ", 3);
	EXPECT(t, passed >= 20);
	cairn_note(t, "%d cases of the verbs back end", passed);
}

/* A row of `cairn bench rdma.rxe`: how far the model and soft-RoCE agree. */
static void agreement(struct cairn_test *t)
{
	char model[8192], listed[8192], guest[8192], why[1024];
	const char *report = guest_report(t);
	struct lines m, d;
	int num_listed = 0;

	if (!report)
		return;
	section(t, report, "semantics", guest, sizeof(guest));
	read_text("nic_semantics.txt", model, sizeof(model));
	read_text("nic_semantics_rxe.txt", listed, sizeof(listed));
	if (!EXPECT(t, compare(model, guest, listed, why, sizeof(why)) == 0))
		cairn_note(t, "%s", why);
	split(&m, model);
	split(&d, listed);
	for (int i = 0; i < d.num; i++)
		num_listed += d.at[i][0] == '-';
	cairn_host_row(t, "semantics", "rxe", "\"lines\":%d,\"listed_differences\":%d,"
		       "\"other_differences\":0,\"kernel\":\"%.*s\"", m.num, num_listed,
		       (int)strcspn(report, "\n"), report);
	free(m.text);
	free(d.text);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(comparison_can_fail), UNIT(semantics_as_listed), UNIT(packets_cross), UNIT(stock_programs),
	UNIT(transport),
};

static const struct cairn_unit measures[] = { UNIT(agreement) };

const struct cairn_family cairn_rxe_family = {
	.stage = "rdma", .name = "rxe", .units = units, .num_units = ARRAY_SIZE(units), .timeout_s = 240,
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.cost_s = 22, .one_process = 1,
};
