// SPDX-License-Identifier: Apache-2.0
/* serve_late_test - --request-timeout holds whatever the worker and the client do */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_kill_test.h"

#define LONG	"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1500"
#define PATH	"/v1/completions"

/* Sends a request whose answer is whole and one that is streamed. */
static void ask_both(const struct server *s, int fds[2])
{
	fds[0] = ask_stream(s, PATH, LONG "}");
	fds[1] = ask_stream(s, PATH, LONG ",\"stream\":true}");
}

/* Both must end as late: with 504, and with an error event after the head of the stream. */
static void expect_late(struct cairn_test *t, const int fds[2])
{
	static struct reply r;

	EXPECT(t, read_reply_of(fds[0], &r, 60000, true) == 504);
	EXPECT(t, says(&r, "error.code", "deadline_exceeded"));
	EXPECT(t, read_reply_of(fds[1], &r, 60000, true) == 200);
	EXPECT_CONTAINS(t, r.body, "\"code\":\"deadline_exceeded\"");
	EXPECT(t, !strstr(r.body, "[DONE]"));
	close(fds[0]);
	close(fds[1]);
}

static void kill_worker(struct cairn_test *t, const struct server *s)
{
	int pid = worker_of(s);

	EXPECT(t, pid > 1 && !kill(pid, SIGKILL));
}

/* The worker hangs. It is replaced only after the requests have ended. */
static void hangs(struct cairn_test *t)
{
	char path[PATH_MAX];
	struct server s;
	int fds[2];

	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--request-timeout", "1", "--hang-timeout", "12")))
		return;
	EXPECT(t, wait_ready(&s));
	tell_fault(&s, "slow 5");
	ask_both(&s, fds);
	EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:generation_tokens_total", "") > 10, 30000));
	tell_fault(&s, "hang");
	expect_late(t, fds);
	EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	kill_worker(t, &s);
	stop_server(&s);
}

/* The worker is killed, and the next one loads for longer than the requests may take. */
static void loads(struct cairn_test *t)
{
	static struct reply r;
	char path[PATH_MAX];
	struct server s;
	int fds[2];

	if (!beside(t, "fault_plugin.so", path, sizeof(path)))
		return;
	setenv("CAIRN_FAULT_LOAD", "60", 1);
	if (start_server(t, &s, FAULT_ARGS(path, "--request-timeout", "1")) && EXPECT(t, wait_ready(&s))) {
		tell_fault(&s, "slow 5");
		ask_both(&s, fds);
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:generation_tokens_total", "") > 10, 30000));
		kill_worker(t, &s);
		expect_late(t, fds);
		EXPECT(t, get(&s, "/ready", &r) == 503);
	}
	unsetenv("CAIRN_FAULT_LOAD");
	stop_server(&s);
}

/*
 * Returns whether the connection is reset, or the unread rest of the answer ends with the error. The latter
 * happens on a machine so slow that the socket has room for what the worker has made in time.
 */
static bool is_cut(int fd)
{
	static char rest[1 << 20];
	size_t num_bytes = 0;
	ssize_t n;

	do {
		n = read_more(fd, rest + num_bytes, sizeof(rest) - 1 - num_bytes, 2000);
		num_bytes += n > 0 ? (size_t)n : 0;
	} while (n > 0);
	rest[num_bytes] = 0;
	return n == -2 || strstr(rest, "deadline_exceeded");
}

/* The worker is done soon, but clients read 10 KB/s. The answers have 450 to 900 KB. */
static void slow_readers(struct cairn_test *t)
{
	static const char *const members[] = {
		",\"n\":4,\"stream\":true}",	/* more than the stream's buffer holds */
		",\"n\":2,\"stream\":true}",	/* which holds this one when the time is over */
		",\"n\":4}",
	};
	enum { NUM = ARRAY_SIZE(members) };
	int fds[NUM], small = 2048, num_open = NUM;
	ssize_t got[NUM] = { 1, 1, 1 };
	double end = now_s() + 15;	/* to read the shortest takes 45 s */
	struct server s;

	if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "16", "--quiet",
							"--request-timeout", "2",
							"--stream-buffer", "600000", NULL }))
		return;
	EXPECT(t, wait_ready(&s));
	for (int i = 0; i < NUM; i++) {
		char body[256];

		snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":350,"
			 "\"logprobs\":20%s", members[i]);
		fds[i] = ask_stream(&s, PATH, body);
		setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	}
	while (num_open && now_s() < end) {
		num_open = 0;
		for (int i = 0; i < NUM; i++) {
			char piece[512];

			if (got[i] > 0 || got[i] == -1)
				got[i] = read_more(fds[i], piece, sizeof(piece), 0);
			if (got[i] > 12 && !memcmp(piece, "HTTP/1.1 504", 12))
				got[i] = -2;	/* there was no answer in time */
			num_open += got[i] > 0 || got[i] == -1;
		}
		nap_ms(50);
	}
	for (int i = 0; i < NUM; i++) {
		if (!EXPECT(t, got[i] == -2 || is_cut(fds[i])))
			cairn_note(t, "answer %d: %zd", i, got[i]);
		close(fds[i]);
	}
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "hangs", hangs }, { "loads", loads }, { "slow_readers", slow_readers },
};

const struct cairn_family cairn_serve_late_family = {
	.stage = "serving", .name = "serve_late", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 8, .waits = 1,
};
