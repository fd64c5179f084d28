// SPDX-License-Identifier: Apache-2.0
/* serve_ranks_test - a server with ranks (--tp, --cp, --pp): answers; ranks killed or stopped under load */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_kill_test.h"

#define PATH	"/v1/completions"
#define RANKS	4	/* the most */

static bool start_ranks(struct cairn_test *t, struct server *s, const char *option, const char *ranks)
{
	const char *const args[] = { "--impl", "cpu", option, ranks, "--batch", "4", "--quiet",
				     "--collective-timeout", "4", NULL };

	return start_server(t, s, args) && EXPECT(t, wait_ready(s));
}

/* Requests of each kind have the answers that the embedded model has learnt. */
static void ask_kinds(struct cairn_test *t, const char *option, const char *ranks)
{
	static const char *const more[] = {
		",\"temperature\":0", ",\"logprobs\":3", ",\"presence_penalty\":0.1",
		",\"repetition_penalty\":1.01",
		",\"logit_bias\":{\"5\":-3}", ",\"min_tokens\":2", ",\"n\":3,\"temperature\":0.1",
		",\"use_beam_search\":true,\"n\":2", ",\"prompt_logprobs\":1",
	};
	static struct reply r;
	struct server s;
	char body[512];

	if (start_ranks(t, &s, option, ranks)) {
		for (size_t i = 0; i < ARRAY_SIZE(more); i++) {
			snprintf(body, sizeof(body), "{\"prompt\":\"What is 55 - 8?\\n\","
				 "\"max_tokens\":8%s}", more[i]);
			if (!EXPECT(t, post(&s, PATH, body, &r) == 200 && says(&r, "choices.0.text", "47")))
				cairn_note(t, "%s: %.600s", body, r.text);
		}
		EXPECT(t, post(&s, PATH, "{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"a\"}}",
			       &r) == 400);
		EXPECT_CONTAINS(t, r.body, "structured_outputs: not supported with --");
		EXPECT_CONTAINS(t, r.body, option);
	}
	stop_server(&s);
}

static void answers(struct cairn_test *t)
{
	ask_kinds(t, "--tp", "2");
}

static void answers_of_pipeline(struct cairn_test *t)
{
	ask_kinds(t, "--pp", "3");
}

/* Returns the process that the log names last as this rank, or -1. */
static int find_rank(const struct server *s, int rank)
{
	char log[1 << 15], what[64], *p, *last = NULL;

	if (!rank)
		return find_worker(s);
	snprintf(what, sizeof(what), "rank %d is process ", rank);
	for (p = log_of(s, log, sizeof(log)); (p = strstr(p, what)); p += strlen(what))
		last = p + strlen(what);
	return last ? atoi(last) : -1;
}

static bool exists(int pid)
{
	return !kill(pid, 0) || errno != ESRCH;
}

/* Ends or stops a rank, and waits until all clients are answered and the server is whole again. */
static void lose(struct cairn_test *t, struct load *l, int ranks, int rank, int sig)
{
	const struct server *s = l->s;
	int old[RANKS], served = atomic_load(&l->served);
	double restarts = metric_of(s, "cairn:worker_restarts_total", "");

	EXPECT(t, WAIT_FOR(atomic_load(&l->served) > served, 60000));
	for (int r = 0; r < ranks; r++)
		old[r] = find_rank(s, r);
	if (!EXPECT(t, old[rank] > 1 && !kill(old[rank], sig)))
		return;
	EXPECT(t, WAIT_FOR(metric_of(s, "cairn:worker_restarts_total", "") > restarts, 60000));
	EXPECT(t, all_answered(l, 30000));
	served = atomic_load(&l->served);
	EXPECT(t, WAIT_FOR(atomic_load(&l->served) > served, 60000));
	for (int r = 0; r < ranks; r++) {
		EXPECT(t, !exists(old[r]));
		EXPECT(t, WAIT_FOR(find_rank(s, r) != old[r], 30000));
	}
}

struct loss {
	int rank, sig;
	const char *says;
};

static void lose_each(struct cairn_test *t, const char *option, int ranks, const struct loss *losses, int num)
{
	struct server s;
	struct load l = { .s = &s };
	pthread_t threads[LOAD_CLIENTS];
	char log[1 << 15], count[16];

	snprintf(count, sizeof(count), "%d", ranks);
	if (!start_ranks(t, &s, option, count))
		return;
	for (int i = 0; i < LOAD_CLIENTS; i++)
		pthread_create(&threads[i], NULL, ask_without_end, &l);
	for (int i = 0; i < num; i++) {
		lose(t, &l, ranks, losses[i].rank, losses[i].sig);
		if (!EXPECT(t, WAIT_FOR(strstr(log_of(&s, log, sizeof(log)), losses[i].says), 5000)))
			cairn_note(t, "%s: %.3000s", losses[i].says, log);
	}
	atomic_store(&l.stop, true);
	for (int i = 0; i < LOAD_CLIENTS; i++)
		pthread_join(threads[i], NULL);
	EXPECT(t, !atomic_load(&l.wrong));
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	cairn_note(t, "%d served, %d failed, %d refused", atomic_load(&l.served), atomic_load(&l.failed),
		   atomic_load(&l.refused));
	stop_server(&s);
}

/* The embedded model has two KV heads, so each is on two ranks. */
static void ranks_are_lost(struct cairn_test *t)
{
	static const struct loss losses[] = {
		{ 0, SIGKILL, "the worker was ended by signal 9 (Killed)" },
		{ 1, SIGSTOP, "rank 1 has been stopped" },
		{ 3, SIGKILL, "rank 3 has ended: signal 9 (Killed)" },
		{ 0, SIGSTOP, "the worker has failed: it has been stopped" },
	};

	lose_each(t, "--tp", 4, losses, ARRAY_SIZE(losses));
}

static void stages_are_lost(struct cairn_test *t)
{
	static const struct loss losses[] = {
		{ 1, SIGKILL, "rank 1 has ended: signal 9 (Killed)" },
		{ 2, SIGSTOP, "rank 2 has been stopped" },
	};

	lose_each(t, "--pp", 3, losses, ARRAY_SIZE(losses));
}

/* A rank that is lost while nothing is asked is noticed, too. */
static void lose_idle(struct cairn_test *t, const char *option, const char *ranks)
{
	static const char question[] = "{\"prompt\":\"What is 55 - 8?\\n\",\"max_tokens\":8}";
	static struct reply r;
	struct server s;

	if (start_ranks(t, &s, option, ranks)) {
		EXPECT(t, post(&s, PATH, question, &r) == 200 && says(&r, "choices.0.text", "47"));
		EXPECT(t, WAIT_FOR(find_rank(&s, 1) > 1, 5000));
		EXPECT(t, !kill(find_rank(&s, 1), SIGKILL));
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:worker_restarts_total", "") >= 1, 30000));
		EXPECT(t, wait_ready(&s));
		EXPECT(t, post(&s, PATH, question, &r) == 200 && says(&r, "choices.0.text", "47"));
	}
	stop_server(&s);
}

static void lost_while_idle(struct cairn_test *t)
{
	lose_idle(t, "--tp", "2");
}

/* Three ranks are a ring, as there are two KV heads. */
static void lost_with_context(struct cairn_test *t)
{
	lose_idle(t, "--cp", "3");
}

static const struct cairn_unit units[] = {
	{ "answers", answers },
	{ "answers_of_pipeline", answers_of_pipeline },
	{ "ranks_are_lost", ranks_are_lost },
	{ "stages_are_lost", stages_are_lost },
	{ "lost_while_idle", lost_while_idle },
	{ "lost_with_context", lost_with_context },
};

const struct cairn_family cairn_serve_ranks_family = {
	.stage = "serving", .name = "serve_ranks", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 240,
	.cost_s = 12, .waits = 1,
};
