// SPDX-License-Identifier: Apache-2.0
/* serve_process_test - what the processes print while the model loads, and signals to all of them at once */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

/* Returns the worker's process from the server's log, or -1. */
static int worker_of(const struct server *s)
{
	char log[16384];
	const char *at = strstr(log_of(s, log, sizeof(log)), "(worker ");

	return at ? atoi(at + 8) : -1;
}

/* A long load prints its progress in a few lines if standard error is a file, as here. */
static void loading(struct cairn_test *t)
{
	char path[PATH_MAX], log[16384], *line, *next;
	int lines = 0, percent, last = 0;
	struct server s;

	if (!beside(t, "fault_plugin.so", path, sizeof(path)))
		return;
	setenv("CAIRN_FAULT_LOAD", "15", 1);
	if (start_server(t, &s, FAULT_ARGS(path, "--batch", "2")) && EXPECT(t, wait_ready(&s))) {
		log_of(&s, log, sizeof(log));
		for (line = log; (next = strchr(line, '\n')); line = next + 1) {
			if (sscanf(line, "loading %d%% of ", &percent) != 1)
				continue;
			EXPECT(t, percent >= last + 10 && percent < 100);
			last = percent;
			lines++;
		}
		if (!EXPECT(t, lines >= 1 && lines < 10))
			cairn_note(t, "%d lines: %.2000s", lines, log);
	}
	unsetenv("CAIRN_FAULT_LOAD");
	stop_server(&s);
}

/*
 * A service manager that ends a service sends SIGTERM to all of its processes. Requests in flight must still
 * be answered: only the front decides when its worker ends.
 */
static void term_to_all(struct cairn_test *t)
{
	static struct reply r;
	char path[PATH_MAX], log[16384];
	struct server s;
	int fd, worker, status;

	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "2")))
		return;
	EXPECT(t, wait_ready(&s));
	EXPECT(t, WAIT_FOR(worker_of(&s) > 1, 5000));	/* another thread writes the log */
	worker = worker_of(&s);
	tell_fault(&s, "slow 4");
	fd = ask_stream(&s, "/v1/completions",
			"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":60,\"stream\":true}");
	EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:generation_tokens_total", "") > 2, 30000));
	if (EXPECT(t, worker > 1))
		kill(worker, SIGTERM);
	kill(s.pid, SIGTERM);
	EXPECT(t, read_reply_of(fd, &r, 60000, true) == 200);
	EXPECT_CONTAINS(t, r.body, "data: [DONE]");
	close(fd);
	EXPECT(t, has_ended(s.pid, &status, 20000) && WIFEXITED(status) && !WEXITSTATUS(status));
	s.pid = -1;
	EXPECT(t, !strstr(log_of(&s, log, sizeof(log)), "the worker has failed"));
}

static const struct cairn_unit units[] = {
	{ "loading", loading }, { "term_to_all", term_to_all },
};

const struct cairn_family cairn_serve_process_family = {
	.stage = "serving", .name = "serve_process", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
	.waits = 1,
};
