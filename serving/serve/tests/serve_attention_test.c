// SPDX-License-Identifier: Apache-2.0
/*
 * serve_attention_test - a server whose lead and attention workers are killed and stopped under load
 *
 * Every answer must be that of the undisturbed server, and descriptors and processes must come back. Rows of
 * `cairn bench`: lead_killed, of 20 kills of the lead.
 */
#include "conformance/harness.h"
#include "serving/remote/control/sodium.h"
#include "serving/serve/tests/serve_kill_test.h"

/* What is lost, one after the other; the lead is one process with engine and model. */
static const struct {
	int of_lead, both, sig;
} hits[] = {
	{ .of_lead = 1, .sig = SIGKILL }, { .of_lead = 1, .sig = SIGSTOP },
	{ .both = 1, .sig = SIGKILL },		/* for the lead, as if it were cut off */
	{ .sig = SIGKILL }, { .sig = SIGSTOP },
};

#define LEADS	2	/* of them are losses of the lead */
#define KILLS	20	/* of the measure, all of the lead */

static void body(char *to, size_t len, int i)
{
	snprintf(to, len, "{\"prompt\":\"What is %d + %d?\",\"max_tokens\":48,\"seed\":%d,"
		 "\"temperature\":1,\"ignore_eos\":true}", i, 7 * i % 10, i);
}

static struct streams streams = { .num = 8, .body = body, .named = "attention workers, processes " };

static int descriptors(int pid)
{
	char path[64];
	int n = 0;

	for (int fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
		n += !access(path, F_OK) || errno == EACCES;
	}
	return n;
}

/* Returns the parent of a process: here, the server's worker. */
static int parent_of(int pid)
{
	char path[64], text[512] = "";
	int fd, parent = 0;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY);
	n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	if (n > 0 && strrchr(text, ')'))
		sscanf(strrchr(text, ')'), ") %*c %d", &parent);
	return parent;
}

static void hit(const int pids[2], int i)
{
	kill(hits[i].of_lead ? parent_of(pids[0]) : pids[i % 2], hits[i].sig);
	if (hits[i].both)
		kill(pids[(i + 1) % 2], hits[i].sig);
}

static void kill_lead(const int pids[2], int i)
{
	(void)i;
	kill(parent_of(pids[0]), SIGKILL);
}

/* Has `how` hit processes under load, one after the other. Returns 0 if there is no server; else stop it. */
static int hit_under_load(struct cairn_test *t, struct server *s, int times,
			  void (*how)(const int pids[2], int i))
{
	static const char *const args[] = {
		"--impl", "cpu", "--batch", "8", "--quiet", "--attention-workers", "2", "--attention-keys",
		"all", "--lanes", "2", "--resume-limit", "100", NULL
	};
	const struct sodium *sodium;
	int pids[2] = { 0 }, worker, fds;

	if (sodium_load(&sodium)) {
		cairn_skip(t, "%s", cairn_last_error());
		return 0;
	}
	if (!start_server(t, s, args) || !EXPECT(t, wait_ready(s)))
		return 0;
	streams_learn(t, &streams, s);
	EXPECT(t, WAIT_FOR(streams_workers(&streams, s, pids) > 0, 30000));
	fds = descriptors(parent_of(pids[0]));
	streams_start(&streams, s);
	for (int i = 0; i < times; i++)
		streams_kill(t, &streams, i, how);
	streams_end(&streams);
	streams_judge(t, &streams);
	EXPECT(t, WAIT_FOR(is_quiet(s), 30000));
	worker = streams_workers(&streams, s, pids) > times ? parent_of(pids[0]) : 0;
	EXPECT(t, worker > 0 && parent_of(pids[0]) == worker && parent_of(pids[1]) == worker);
	EXPECT(t, WAIT_FOR(descriptors(worker) <= fds, 30000));
	return 1;
}

static double restarts(const struct server *s)
{
	return metric_of(s, "cairn:worker_restarts_total", "");
}

static void stop(struct cairn_test *t, struct server *s)
{
	int pids[2] = { 0 };

	streams_workers(&streams, s, pids);
	stop_server(s);
	EXPECT(t, WAIT_FOR(kill(pids[0], 0) && kill(pids[1], 0), 30000));
}

static void killed_under_load(struct cairn_test *t)
{
	struct server s;

	if (!hit_under_load(t, &s, ARRAY_SIZE(hits), hit))
		return;
	EXPECT(t, restarts(&s) == LEADS);
	stop(t, &s);
}

static void lead_killed(struct cairn_test *t)
{
	struct server s;

	if (!hit_under_load(t, &s, KILLS, kill_lead))
		return;
	streams_row(t, &streams, "lead_killed", KILLS, restarts(&s));
	stop(t, &s);
}

static const struct cairn_unit units[] = {
	{ "killed_under_load", killed_under_load },
};

static const struct cairn_unit measures[] = {
	{ "lead_killed", lead_killed },
};

const struct cairn_family cairn_serve_attention_family = {
	.stage = "serving", .name = "serve_attention", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .waits = 1,
};
