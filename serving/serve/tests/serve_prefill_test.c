// SPDX-License-Identifier: Apache-2.0
/*
 * serve_prefill_test - a server whose prefill workers are killed and stopped under load
 *
 * Every answer must be that of a server without prefill workers. Each request has a salt of its own, so that
 * no prompt is found in the cache. Passes are unfused, so that a row's bits do not depend on what is cached.
 * Rows of `cairn bench`: prefill_killed, of 20 kills.
 */
#include "conformance/harness.h"
#include "serving/remote/control/sodium.h"
#include "serving/serve/tests/serve_kill_test.h"

#define HITS	5
#define KILLS	20	/* of the measure */

static atomic_int salts;

static void body(char *to, size_t len, int i)
{
	char prompt[512] = "";

	for (size_t at = 0; at < 400; at = strlen(prompt))
		snprintf(prompt + at, sizeof(prompt) - at, "What is %d + %zu? ", i, 7 * at % 10);
	snprintf(to, len, "{\"prompt\":\"%s\",\"max_tokens\":16,\"seed\":%d,\"temperature\":1,"
		 "\"ignore_eos\":true,\"cache_salt\":\"%d\"}", prompt, i, atomic_fetch_add(&salts, 1));
}

static struct streams streams = {
	.num = 4, .body = body, .named = "cairn serve: 2 prefill workers, processes ",
};

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
	streams_learn(t, &streams, &s);
	stop_server(&s);
	return 1;
}

static void hit(const int pids[2], int i)
{
	kill(pids[i % 2], i % 3 == 2 ? SIGSTOP : SIGKILL);
}

static void kill_one(const int pids[2], int i)
{
	kill(pids[i % 2], SIGKILL);
}

/* Has `how` hit workers under load, each after prompts were pulled. Returns the losses noticed. */
static int hit_under_load(struct cairn_test *t, int times, void (*how)(const int pids[2], int i))
{
	static const char *const args[] = {
		"--impl", "cpu", "--batch", "8", "--quiet", "--decode", "unfused", "--prefill-workers", "2",
		"--prefill-min", "64", NULL
	};
	const struct sodium *sodium;
	struct server s;
	int pids[2] = { 0 }, noticed;

	if (sodium_load(&sodium)) {
		cairn_skip(t, "%s", cairn_last_error());
		return 0;
	}
	if (!learn(t) || !start_server(t, &s, args) || !EXPECT(t, wait_ready(&s)))
		return 0;
	EXPECT(t, WAIT_FOR(streams_workers(&streams, &s, pids) == 1, 60000));
	streams_start(&streams, &s);
	for (int i = 0; i < times; i++) {
		const double prompts = pulled(&s);

		EXPECT(t, WAIT_FOR(pulled(&s) > prompts, 60000));
		streams_kill(t, &streams, i, how);
	}
	streams_end(&streams);
	streams_judge(t, &streams);
	cairn_note(t, "%.0f prompts pulled, %.0f computed here after all", pulled(&s),
		   metric_of(&s, "cairn:pulls_recomputed_total", ""));
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	EXPECT(t, metric_of(&s, "cairn:prefill_workers", "") == 2);
	EXPECT(t, metric_of(&s, "cairn:pulled_pages_total", "") >= 4 * pulled(&s));
	noticed = streams_workers(&streams, &s, pids) - 1;	/* a line of the log tells of each */
	EXPECT(t, noticed == times);
	stop_server(&s);
	EXPECT(t, WAIT_FOR(kill(pids[0], 0) && kill(pids[1], 0), 30000));
	return noticed;
}

static void killed_under_load(struct cairn_test *t)
{
	hit_under_load(t, HITS, hit);
}

static void prefill_killed(struct cairn_test *t)
{
	const int noticed = hit_under_load(t, KILLS, kill_one);

	if (noticed)
		streams_row(t, &streams, "prefill_killed", KILLS, noticed);
}

static const struct cairn_unit units[] = {
	{ "killed_under_load", killed_under_load },
};

static const struct cairn_unit measures[] = {
	{ "prefill_killed", prefill_killed },
};

const struct cairn_family cairn_serve_prefill_family = {
	.stage = "serving", .name = "serve_prefill", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .waits = 1,
};
