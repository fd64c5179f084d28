// SPDX-License-Identifier: Apache-2.0
/* serve_fault_test - workers that fail, crash, hang or are killed; shutdown of the server */
#include <sys/resource.h>

#include "conformance/harness.h"
#include "serving/serve/front/serve_front.h"
#include "serving/serve/tests/serve_kill_test.h"

#define LONG	"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1500"
#define SHORT	"{\"prompt\":\"a\",\"max_tokens\":2}"
#define PATH	"/v1/completions"

static bool healthy(const struct server *s)
{
	static struct reply r;

	return get(s, "/health", &r) == 200;
}

/* The device fails while one request streams, one runs without streaming and one is queued. */
static void device_fails(struct cairn_test *t)
{
	static const char *const faults[] = { "error", "crash", "hang" };
	static struct reply r;
	char path[PATH_MAX], log[4096];
	struct server s;

	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "2", "--hang-timeout", "4", "--resume-limit",
					    "0")))
		return;
	EXPECT(t, wait_ready(&s));
	for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
		int fds[3];
		double before = metric_of(&s, "vllm:generation_tokens_total", ""), start;

		tell_fault(&s, "slow 2");
		fds[0] = ask_stream(&s, PATH, LONG ",\"stream\":true}");
		/* wait until it has begun: a failure before the first token would be a 500 */
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:generation_tokens_total", "") > before + 2, 30000));
		for (int k = 1; k < 3; k++)
			fds[k] = ask_stream(&s, PATH, LONG "}");
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") == 2 &&
				   metric_of(&s, "vllm:num_requests_waiting", "") == 1, 30000));
		start = now_s();
		tell_fault(&s, faults[i]);
		for (int k = 0; k < 3; k++) {
			EXPECT(t, read_reply_of(fds[k], &r, 60000, true) == (k ? 500 : 200));
			close(fds[k]);
			if (k) {
				EXPECT(t, is_error(&r) && says(&r, "error.type", "server_error") &&
					  says(&r, "error.code", "worker_failed"));
				continue;
			}
			/* the error comes at once, after complete events and without [DONE] */
			EXPECT(t, now_s() - start < 30);
			EXPECT_CONTAINS(t, r.body, "data: {\"error\":{");
			EXPECT(t, !strstr(r.body, "[DONE]"));
		}
		EXPECT(t, WAIT_FOR(healthy(&s), 30000));
		EXPECT(t, post(&s, PATH, SHORT, &r) == 200);
		EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == (double)i + 1);
	}
	EXPECT(t, is_quiet(&s) || WAIT_FOR(is_quiet(&s), 30000));
	EXPECT(t, WAIT_FOR(strstr(log_of(&s, log, sizeof(log)), "it hangs"), 5000));
	EXPECT_CONTAINS(t, log, "the device has failed, as it was told to");
	EXPECT_CONTAINS(t, log, "it hangs");
	/* no sanitizer report, although the worker died of a signal */
	stop_server(&s);
}

static void killed_under_load(struct cairn_test *t)
{
	struct server s;
	struct load l = { .s = &s };
	pthread_t threads[4];
	double slowest = 0;
	long fds;

	if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "4", "--quiet",
							"--resume-limit", "100", NULL }) ||
	    !EXPECT(t, wait_ready(&s)))
		return;
	fds = descriptors_of(s.pid);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, ask_without_end, &l);
	for (int i = 0; i < 20; i++) {
		int pid = worker_of(&s), served = atomic_load(&l.served);
		double start;

		EXPECT(t, WAIT_FOR(atomic_load(&l.served) > served, 30000));
		start = now_s();
		if (!EXPECT(t, pid > 1 && !kill(pid, SIGKILL)))
			break;
		EXPECT(t, WAIT_FOR(worker_of(&s) != pid, 30000));
		slowest = now_s() - start > slowest ? now_s() - start : slowest;
	}
	atomic_store(&l.stop, true);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	cairn_note(t, "%d served, %d failed, %d refused; back after %.0f ms at most", atomic_load(&l.served),
		   atomic_load(&l.failed), atomic_load(&l.refused), slowest * 1e3);
	EXPECT(t, !atomic_load(&l.wrong) && !atomic_load(&l.failed));
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 20);
	EXPECT(t, WAIT_FOR(descriptors_of(s.pid) <= fds, 30000));
	stop_server(&s);
}

/* Running requests complete and new ones get 503; a second signal ends the server at once. */
static void drain(struct cairn_test *t)
{
	char path[PATH_MAX];
	static struct reply r;

	if (!beside(t, "fault_plugin.so", path, sizeof(path)))
		return;
	for (int twice = 0; twice < 2; twice++) {
		struct server s;
		int fd, whole, idle, status = 0;
		double start;

		if (!start_server(t, &s, FAULT_ARGS(path, "--drain-timeout", "30")) ||
		    !EXPECT(t, wait_ready(&s)))
			return;
		tell_fault(&s, "slow 40");
		fd = ask_stream(
			&s, PATH,
			"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":200,\"stream\":true}");
		whole = ask_stream(&s, PATH,
				   "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":200}");
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") == 2 &&
				   metric_of(&s, "vllm:generation_tokens_total", "") > 5, 30000));
		idle = dial_port(s.port);
		kill(s.pid, SIGTERM);
		EXPECT(t, WAIT_FOR(get(&s, "/ready", &r) == 503, 15000));
		EXPECT(t, post(&s, PATH, SHORT, &r) == 503 && is_error(&r) &&
				  strcasestr(r.text, "\r\nRetry-After: "));
		start = now_s();
		if (twice)
			kill(s.pid, SIGTERM);
		else
			tell_fault(&s, "slow 0");
		read_reply_of(fd, &r, 60000, true);
		EXPECT(t, twice ? !strstr(r.text, "[DONE]") : strstr(r.text, "[DONE]") != NULL);
		/* a request that is cut ends with an error */
		EXPECT(t, !!strstr(r.text, "\"code\":\"shutting_down\"") == twice);
		EXPECT(t, read_reply_of(whole, &r, 60000, true) == (twice ? 503 : 200));
		EXPECT(t, !twice || (is_error(&r) && says(&r, "error.code", "shutting_down")));
		EXPECT(t, has_ended(s.pid, &status, 30000));
		EXPECT(t, WIFEXITED(status) && !WEXITSTATUS(status));
		if (twice)
			EXPECT(t, now_s() - start < 25);
		close(fd);
		close(whole);
		close(idle);
	}
}

/* With the smallest --hang-timeout, an idle worker is not taken for a hung one. */
static void idle_is_well(struct cairn_test *t)
{
	static struct reply r;
	struct server s;

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", "--hang-timeout", "1",
						       NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		double end = now_s() + 2.5;

		while (now_s() < end && EXPECT(t, get(&s, "/health", &r) == 200))
			nap_ms(20);
		EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	}
	stop_server(&s);
}

/* A worker that reports itself busy without computing rows is taken for a hung one. */
static void busy_is_no_life(struct cairn_test *t)
{
	static const struct {
		int rows, busy, lives;
	} says[] = { { 0, 1, 0 }, { 3, 1, 1 }, { 3, 0, 1 }, { 0, 0, 1 } };
	static struct serve s;

	if (!EXPECT(t, cairn_metrics_new("m", "0", 64, &s.metrics) == 0))
		return;
	atomic_store(&s.state, SERVE_READY);
	for (size_t i = 0; i < ARRAY_SIZE(says); i++) {
		struct cairn_wire_frame f = { .kind = CAIRN_WIRE_STEP };

		f.step.num_pages = 1;
		f.step.rows = says[i].rows;
		f.step.busy = says[i].busy;
		atomic_store(&s.beat_ns, 1);
		EXPECT(t, serve_take_frame(&s, &f) == 0 && s.busy == says[i].busy);
		EXPECT(t, (atomic_load(&s.beat_ns) != 1) == says[i].lives);
	}
	cairn_metrics_free(s.metrics);
}

/* If the model cannot be loaded, the exit status is 2 and an error names the file. */
static void cannot_load(struct cairn_test *t)
{
	char dir[PATH_MAX], path[PATH_MAX + 64], log[4096];
	struct server s;
	int status = 0;
	FILE *f;

	cairn_tmpfile(t, dir, sizeof(dir), "x", "", 0);
	*strrchr(dir, '/') = 0;
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "tokenizer.json" : "config.json";

		snprintf(path, sizeof(path), "cp %s/serving/embedded/%s %s/", cairn_srcdir(), name, dir);
		EXPECT(t, !system(path));
	}
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	f = fopen(path, "wb");
	fwrite("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 1, 10, f);
	fclose(f);
	/* every time, the error must be the worker's own and not how the worker ended */
	for (int i = 0; i < 8; i++) {
		if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--model", dir, NULL }))
			break;
		EXPECT(t, has_ended(s.pid, &status, 30000));
		EXPECT(t, WIFEXITED(status) && WEXITSTATUS(status) == 2);
		log_of(&s, log, sizeof(log));
		EXPECT_CONTAINS(t, log, "the worker has failed: ");
		EXPECT_CONTAINS(t, log, "the model cannot be loaded: ");
		if (!EXPECT(t, strstr(log, "cannot be loaded: ") &&
			       strstr(strstr(log, "cannot be loaded: "), "model.safetensors")) ||
		    !EXPECT(t, !strstr(log, "signal")))
			cairn_note(t, "%d: %s", i, log);
	}
}

/* Rows of NaN fail their answers. The worker continues, and no later request reuses their KV. */
static void no_number(struct cairn_test *t)
{
#define LINE                                                                                               \
	"{\"prompt\":\"%s it was a long way to the town, and longer still on the way back, in the "        \
	"rain.\","                                                                                         \
	"\"max_tokens\":3,\"temperature\":0,\"ignore_eos\":true,\"stream\":%s}"
	static struct reply r;
	char path[PATH_MAX], body[512];
	struct server s;

	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "4")) || !EXPECT(t, wait_ready(&s)))
		return;
	for (int i = 0; i < 4; i++) {
		snprintf(body, sizeof(body), LINE, i / 2 ? "then" : "now", i / 2 ? "true" : "false");
		if (i % 2 == 0)
			tell_fault(&s, "nan");
		if (!EXPECT(t, post(&s, PATH, body, &r) == (i % 2 ? 200 : 500)))
			cairn_note(t, "%d: %d: %.300s", i, r.status, r.body);
		if (i % 2 == 0)
			EXPECT(t, is_error(&r) && says(&r, "error.code", "model_failed"));
	}
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	stop_server(&s);
}

/*
 * With a low limit of open files the server raises the soft limit and, if the hard limit is too low, accepts
 * fewer clients, so that a full server can still restart its worker.
 */
static void few_descriptors(struct cairn_test *t)
{
	struct rlimit old, few;
	char log[1 << 15];
	int fds[300];

	getrlimit(RLIMIT_NOFILE, &old);
	for (int hard = 0; hard < 2; hard++) {
		static struct reply r;
		struct server s;
		int num = 0, worker;

		/* must be the last test of this process: only root can raise a hard limit again */
		few = (struct rlimit){ 160, hard ? 160 : old.rlim_max };
		setrlimit(RLIMIT_NOFILE, &few);
		if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet",
								"--max-connections", "1000", NULL }) ||
		    !EXPECT(t, wait_ready(&s)))
			return;
		few.rlim_cur = few.rlim_max;
		setrlimit(RLIMIT_NOFILE, &few);
		worker = worker_of(&s);
		for (int i = 0; i < (hard ? 140 : 300); i++)
			fds[num++] = dial_port(s.port);
		nap_ms(200);
		EXPECT(t, hard || get(&s, "/health", &r) == 200);
		EXPECT(t, worker > 1 && !kill(worker, SIGKILL));
		EXPECT(t, WAIT_FOR(worker_of(&s) != worker, 30000));
		if (!EXPECT(t, !!strstr(log_of(&s, log, sizeof(log)), "at most 64 connections") == hard))
			cairn_note(t, "hard limit %llu: %.2000s", (unsigned long long)few.rlim_max, log);
		while (num)
			close(fds[--num]);
		EXPECT(t, WAIT_FOR(post(&s, PATH, SHORT, &r) == 200, 30000));
		stop_server(&s);
	}
}

static const struct cairn_unit units[] = {
	{ "device_fails", device_fails },
	{ "no_number", no_number },
	{ "killed_under_load", killed_under_load },
	{ "drain", drain },
	{ "idle_is_well", idle_is_well },
	{ "busy_is_no_life", busy_is_no_life },
	{ "cannot_load", cannot_load },
	{ "few_descriptors", few_descriptors },
};

const struct cairn_family cairn_serve_fault_family = {
	.stage = "serving", .name = "serve_fault", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 180,
	.cost_s = 14, .waits = 1,
};
