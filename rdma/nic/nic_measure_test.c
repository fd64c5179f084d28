// SPDX-License-Identifier: Apache-2.0
/*
 * nic_measure_test.c - rows of `cairn bench rdma.nic`: how much the NIC model was tested
 *
 * There are no times, because the model's times say nothing about a card. Rows are reported for the host (no
 * GPU takes part), impl "model".
 *   golden             requests compared with libmlx5's, those that differ, wraps of the 16-bit index
 *   mutants_NAME       defects planted, and caught
 *   semantics          lines of the semantics test, and those equal to nic_semantics.txt
 *   stock_ib_write_bw  work requests of the unmodified program (ten million), and rules broken
 */
#include "conformance/harness.h"
#include "rdma/nic/nic_child.h"
#include "rdma/nic/nic_measure.h"

/* Runs a program to its end. Returns its output, or NULL if the test has failed or was skipped. */
static const char *run(struct cairn_test *t, const char *words, const char *adversary, char *text, size_t len)
{
	char name[64];
	struct child c;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(words, " "), words);
	if (missing(t, name))
		return NULL;
	start(t, &c, words, adversary, "out");
	if (!EXPECT(t, finish(t, &c) == 0)) {
		cairn_note(t, "%s: status %d", words, c.status);
		return NULL;
	}
	return text_of(c.out, text, len);
}

static void golden(struct cairn_test *t)
{
	long long requests = 0, differ = -1, wraps = 0;
	int caught = 0, mutants = -1;
	char text[16384], *line;

	if (!run(t, "golden 1000000 1", NULL, text, sizeof(text)))
		return;
	line = strstr(text, "golden: 1000000 ");
	EXPECT(t, line && sscanf(line, "golden: %lld work requests: %lld differ", &requests, &differ) == 2);
	line = strstr(text, "golden: seed");
	EXPECT(t, line && sscanf(line, "golden: seed %*u: %*u blocks, %lld wraps", &wraps) == 1);
	line = strstr(text, "wqe mutants: ");
	EXPECT(t, line && sscanf(line, "wqe mutants: %d of %d caught", &caught, &mutants) == 2);
	EXPECT(t, !differ && caught == mutants && reported(t, "rules") == 0);
	cairn_host_row(t, "golden", "model", "\"requests\":%lld,\"differ\":%lld,\"wraps\":%lld,\"rules\":0",
		       requests, differ, wraps);
	cairn_host_row(t, "mutants_entries", "model", "\"caught\":%d,\"planted\":%d", caught, mutants);
}

static void mutants(struct cairn_test *t)
{
	static const struct { const char *row, *words, *adversary, *format; } rows[] = {
		{ "mutants_producers", "nic_mutants", NULL, "nic mutants: %d of %d caught" },
		{ "mutants_producers_late_nic", "nic_mutants trouble",
		  "fetch_us=300,completion_us=300,read_us=20000,pieces=8,piece_us=50",
		  "nic mutants: %d of %d caught" },
		{ "mutants_producers_collapsed_queue", "nic_mutants collapsed", "collapse=1",
		  "nic mutants: %d of %d caught" },
		{ "mutants_arming", "nic_arming", NULL, "arming mutants: %d of %d caught" },
	};
	char text[8192], *line;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		int caught = 0, planted = -1;

		if (!run(t, rows[i].words, rows[i].adversary, text, sizeof(text)))
			return;
		line = strstr(text, " mutants: ");
		while (line && line > text && line[-1] != '\n')
			line--;
		EXPECT(t, line && sscanf(line, rows[i].format, &caught, &planted) == 2);
		EXPECT(t, caught == planted);
		cairn_host_row(t, rows[i].row, "model", "\"caught\":%d,\"planted\":%d", caught, planted);
	}
}

static void semantics(struct cairn_test *t)
{
	char path[4096], want[16384], got[16384];
	int lines = 0, same;

	if (!run(t, "nic_semantics", NULL, got, sizeof(got)))
		return;
	snprintf(path, sizeof(path), "%s/rdma/nic/nic_semantics.txt", cairn_srcdir());
	same = strcmp(text_of(path, want, sizeof(want)), got) == 0;
	EXPECT(t, same);
	for (const char *c = got; *c; c++)
		lines += *c == '\n';
	cairn_host_row(t, "semantics", "model", "\"lines\":%d,\"as_on_file\":%d", lines, same ? lines : 0);
}

/* Uses two processes, in several parts, so that no part comes close to the time-out on a slow machine. */
static void stock_ib_write_bw(struct cairn_test *t)
{
	struct child server, client;
	long long requests, rules;
	int part;

	if (missing(t, "ib_write_bw"))
		return;
	for (part = 0; part < 5; part++)
		if (!start_two(t, &server, &client, "ib_write_bw", "-x 1 -F -s 8 -n 2000000", NULL) ||
		    !finish_two(t, &server, &client))
			return;
	requests = reported(t, "requests");
	rules = reported(t, "rules");
	EXPECT(t, requests >= 10000000 && !rules);
	cairn_host_row(t, "stock_ib_write_bw", "model", "\"requests\":%lld,\"doorbells\":%lld,\"rules\":%lld",
		       requests, reported(t, "doorbells"), rules);
}

#define MEASURE(name) { #name, name }
const struct cairn_unit nic_measures[NIC_NUM_MEASURES] = {
	MEASURE(golden), MEASURE(mutants), MEASURE(semantics), MEASURE(stock_ib_write_bw),
};
