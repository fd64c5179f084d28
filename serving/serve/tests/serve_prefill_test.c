// SPDX-License-Identifier: Apache-2.0
/*
 * serve_prefill_test - a server whose prefill workers are killed and stopped under load
 *
 * Every answer must be that of a server without prefill workers. Each request has a salt of its own, so that
 * no prompt is found in the cache. Passes are unfused, so that a row's bits do not depend on what is cached.
 */
#include <stdatomic.h>

#include "conformance/harness.h"
#include "serving/remote/control/sodium.h"
#include "serving/serve/tests/serve_test.h"

#define STREAMS	4
#define KILLS	5
#define NAMED	"cairn serve: 2 prefill workers, processes "

static const struct server *server;
static char want[STREAMS][512];
static atomic_int served, wrong, stop, salts;

static int ask_one(int i, char *text, size_t len)
{
	struct reply *r = calloc(1, sizeof(*r));
	char prompt[512] = "", body[1024];
	json_t *root;
	int ok;

	for (size_t at = 0; at < 400; at = strlen(prompt))
		snprintf(prompt + at, sizeof(prompt) - at, "What is %d + %zu? ", i, 7 * at % 10);
	snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"max_tokens\":16,\"seed\":%d,\"temperature\":1,"
		 "\"ignore_eos\":true,\"cache_salt\":\"%d\"}", prompt, i, atomic_fetch_add(&salts, 1));
	ok = r && post(server, "/v1/completions", body, r) == 200;
	root = ok ? json_of(r) : NULL;
	snprintf(text, len, "%s", root ? json_string_value(at_path(root, "choices.0.text")) : "");
	json_decref(root);
	free(r);
	return ok;
}

static void *ask_again(void *arg)
{
	const int i = (int)((char (*)[512])arg - want);
	char text[512];

	while (!atomic_load(&stop)) {
		int ok = ask_one(i, text, sizeof(text)) && !strcmp(text, want[i]);

		atomic_fetch_add(ok ? &served : &wrong, 1);
	}
	return NULL;
}

/* Reads the workers' processes from the last line of the log that names two. Returns the number of lines. */
static int workers_of(const struct server *s, int pids[2])
{
	static char text[1 << 16];
	int n = 0;

	for (char *at = log_of(s, text, sizeof(text)); (at = strstr(at, NAMED)); at++)
		n += sscanf(at, NAMED "%d, %d", &pids[0], &pids[1]) == 2;
	return n;
}

static double pulled(const struct server *s)
{
	return metric_of(s, "cairn:pulled_prompts_total", "");
}

/* The answers of a server without prefill workers. */
static int learn(struct cairn_test *t)
{
	static const char *const args[] = {
		"--impl", "cpu", "--batch", "8", "--quiet", "--decode", "unfused", NULL
	};
	struct server s;

	if (!start_server(t, &s, args) || !EXPECT(t, wait_ready(&s)))
		return 0;
	server = &s;
	for (int i = 0; i < STREAMS; i++)
		EXPECT(t, ask_one(i, want[i], sizeof(want[i])));
	stop_server(&s);
	return 1;
}

static void kill_one(struct cairn_test *t, const struct server *s, int i)
{
	int before = atomic_load(&served), pids[2], lines;
	const double prompts = pulled(s);

	/* there is work, and prompts are pulled; the loss is noticed and told before the next one */
	EXPECT(t, WAIT_FOR(atomic_load(&served) > before, 60000));
	EXPECT(t, WAIT_FOR(pulled(s) > prompts, 60000));
	lines = workers_of(s, pids);
	if (!EXPECT(t, lines > 0))
		return;
	kill(pids[i % 2], i % 3 == 2 ? SIGSTOP : SIGKILL);
	EXPECT(t, WAIT_FOR(workers_of(s, pids) > lines, 60000));
}

static void killed_under_load(struct cairn_test *t)
{
	static const char *const args[] = {
		"--impl", "cpu", "--batch", "8", "--quiet", "--decode", "unfused", "--prefill-workers", "2",
		"--prefill-min", "64", NULL
	};
	const struct sodium *sodium;
	pthread_t threads[STREAMS];
	struct server s;
	int pids[2];

	if (sodium_load(&sodium))
		return cairn_skip(t, "%s", cairn_last_error());
	if (!learn(t) || !start_server(t, &s, args) || !EXPECT(t, wait_ready(&s)))
		return;
	server = &s;
	EXPECT(t, WAIT_FOR(workers_of(&s, pids) == 1, 60000));
	for (int i = 0; i < STREAMS; i++)
		pthread_create(&threads[i], NULL, ask_again, want[i]);
	for (int i = 0; i < KILLS; i++)
		kill_one(t, &s, i);
	atomic_store(&stop, 1);
	for (int i = 0; i < STREAMS; i++)
		pthread_join(threads[i], NULL);
	cairn_note(t, "%d answers, %d wrong or lost; %.0f prompts pulled, %.0f computed here after all",
		   atomic_load(&served), atomic_load(&wrong), pulled(&s),
		   metric_of(&s, "cairn:pulls_recomputed_total", ""));
	EXPECT(t, !atomic_load(&wrong));
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	EXPECT(t, metric_of(&s, "cairn:prefill_workers", "") == 2);
	EXPECT(t, metric_of(&s, "cairn:pulled_pages_total", "") >= 4 * pulled(&s));
	workers_of(&s, pids);
	stop_server(&s);
	EXPECT(t, WAIT_FOR(kill(pids[0], 0) && kill(pids[1], 0), 30000));
}

static const struct cairn_unit units[] = {
	{ "killed_under_load", killed_under_load },
};

const struct cairn_family cairn_serve_prefill_family = {
	.stage = "serving", .name = "serve_prefill", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
