// SPDX-License-Identifier: Apache-2.0
/*
 * serve_attention_test - a server whose attention workers and lead are killed and stopped under load
 *
 * Every answer must be that of the undisturbed server, and descriptors and processes must come back.
 */
#include <stdatomic.h>

#include "conformance/harness.h"
#include "serving/remote/control/sodium.h"
#include "serving/serve/serve_test.h"

#define STREAMS	8
#define KILLS	6
#define LEADS	3	/* of them, losses of the lead, with engine and model */
#define NAMED	"attention workers, processes "

static const struct server *server;
static char want[STREAMS][512];
static char bad[512];		/* an answer that is wrong */
static atomic_int served, wrong, stop;

/* Returns whether there is an answer; -1: no worker is ready. */
static int ask_one(int i, char *text, size_t len)
{
	struct reply *r = calloc(1, sizeof(*r));
	char body[256];
	json_t *root;
	int ok;

	snprintf(body, sizeof(body), "{\"prompt\":\"What is %d + %d?\",\"max_tokens\":48,\"seed\":%d,"
		 "\"temperature\":1,\"ignore_eos\":true}", i, 7 * i % 10, i);
	ok = r && post(server, "/v1/completions", body, r) == 200;
	root = ok ? json_of(r) : NULL;
	snprintf(text, len, "%s", root ? json_string_value(at_path(root, "choices.0.text")) :
		 r ? r->text : "");
	json_decref(root);
	ok = ok ? 1 : r && r->status == 503 ? -1 : 0;
	free(r);
	return ok;
}

static void *ask_again(void *arg)
{
	const int i = (int)((char (*)[512])arg - want);
	char text[512];

	while (!atomic_load(&stop)) {
		int ok = ask_one(i, text, sizeof(text));

		if (ok < 0) {
			nap_ms(5);
			continue;
		}
		ok = ok && !strcmp(text, want[i]);
		if (!ok && !atomic_load(&wrong))
			memcpy(bad, text, sizeof(bad));
		atomic_fetch_add(ok ? &served : &wrong, 1);
	}
	return NULL;
}

/* Reads the workers' processes from the last line of the log that names them. Returns their number. */
static int workers_of(const struct server *s, int pids[2])
{
	static char text[1 << 16];
	char *at = log_of(s, text, sizeof(text)), *last = NULL;

	for (; (at = strstr(at, NAMED)); at++)
		last = at;
	return last ? sscanf(last, NAMED "%d, %d", &pids[0], &pids[1]) : 0;
}

static int lines_of(const struct server *s)
{
	static char text[1 << 16];
	int n = 0;

	for (char *at = log_of(s, text, sizeof(text)); (at = strstr(at, NAMED)); at++)
		n++;
	return n;
}

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

static void kill_one(struct cairn_test *t, const struct server *s, int i)
{
	int before = atomic_load(&served), lines = lines_of(s), pids[2];

	/* it has work, and its loss is noticed and told before the next one is killed */
	EXPECT(t, WAIT_FOR(atomic_load(&served) > before, 60000));
	if (!EXPECT(t, workers_of(s, pids) == 2))
		return;
	if (i < LEADS)
		kill(parent_of(pids[0]), SIGKILL);
	else
		kill(pids[i % 2], i % 3 == 2 ? SIGSTOP : SIGKILL);
	EXPECT(t, WAIT_FOR(lines_of(s) > lines, 60000));
}

static void killed_under_load(struct cairn_test *t)
{
	static const char *const args[] = {
		"--impl", "cpu", "--batch", "8", "--quiet", "--attention-workers", "2", "--attention-keys",
		"all", "--lanes", "2", "--resume-limit", "100", NULL
	};
	const struct sodium *sodium;
	pthread_t threads[STREAMS];
	struct server s;
	int pids[2], worker, fds;

	if (sodium_load(&sodium))
		return cairn_skip(t, "%s", cairn_last_error());
	if (!start_server(t, &s, args) || !EXPECT(t, wait_ready(&s)))
		return;
	server = &s;
	for (int i = 0; i < STREAMS; i++)
		EXPECT(t, ask_one(i, want[i], sizeof(want[i])) == 1);
	EXPECT(t, WAIT_FOR(workers_of(&s, pids) == 2, 30000));
	fds = descriptors(parent_of(pids[0]));
	for (int i = 0; i < STREAMS; i++)
		pthread_create(&threads[i], NULL, ask_again, want[i]);
	for (int i = 0; i < KILLS; i++)
		kill_one(t, &s, i);
	atomic_store(&stop, 1);
	for (int i = 0; i < STREAMS; i++)
		pthread_join(threads[i], NULL);
	cairn_note(t, "%d answers, %d wrong or lost", atomic_load(&served), atomic_load(&wrong));
	if (!EXPECT(t, !atomic_load(&wrong)))
		cairn_note(t, "%s", bad);
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == LEADS);
	worker = workers_of(&s, pids) == 2 ? parent_of(pids[0]) : 0;
	EXPECT(t, worker > 0 && parent_of(pids[0]) == worker && parent_of(pids[1]) == worker);
	EXPECT(t, WAIT_FOR(descriptors(worker) <= fds, 30000));
	stop_server(&s);
	EXPECT(t, WAIT_FOR(kill(pids[0], 0) && kill(pids[1], 0), 30000));
}

static const struct cairn_unit units[] = {
	{ "killed_under_load", killed_under_load },
};

const struct cairn_family cairn_serve_attention_family = {
	.stage = "serving", .name = "serve_attention", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
