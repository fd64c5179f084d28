// SPDX-License-Identifier: Apache-2.0
/* serve_memory_test - how much memory requests hold, from their arrival to their end */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

#define PATH	"/v1/completions"

/* Returns the resident memory of the server's front in MB. */
static double resident_mb(const struct server *s)
{
	char path[64], line[256];
	double kb = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", s->pid);
	f = fopen(path, "r");
	while (f && kb < 0 && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %lf", &kb) != 1)
			kb = -1;
	if (f)
		fclose(f);
	return kb / 1024;
}

/*
 * Prompts of 1023 tokens wait in the queue, each to be echoed in 64 answers with 20 log-probabilities a
 * token. Such a request has 3 KB. The log-probabilities take 12 MB if there is a list for each answer.
 */
static void echo_queued(struct cairn_test *t)
{
	enum { NUM = 16, TOKENS = 1023 };
	char path[PATH_MAX], body[4000], *p = body + sprintf(body, "{\"prompt\":[5");
	struct server s;
	int fds[NUM], busy;
	double before, after;

	for (int i = 1; i < TOKENS; i++)
		p += sprintf(p, ",5");
	sprintf(p, "],\"n\":64,\"max_tokens\":1,\"echo\":true,\"logprobs\":20}");
	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "64")) || !EXPECT(t, wait_ready(&s)))
		return;
	tell_fault(&s, "slow 200");
	busy = ask_stream(&s, PATH, "{\"prompt\":\"a\",\"n\":64,\"ignore_eos\":true,\"max_tokens\":1500}");
	EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") > 0, 30000));
	before = resident_mb(&s);
	for (int i = 0; i < NUM; i++)
		fds[i] = ask_stream(&s, PATH, body);
	EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_waiting", "") == NUM, 30000));
	after = resident_mb(&s);
	cairn_note(t, "%d requests in the queue hold %.1f MB", NUM, after - before);
	EXPECT(t, before > 0 && after - before < 60);
	for (int i = 0; i < NUM; i++)
		close(fds[i]);
	close(busy);
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "echo_queued", echo_queued },
};

const struct cairn_family cairn_serve_memory_family = {
	.stage = "serving", .name = "serve_memory", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 3, .waits = 1,
};
