// SPDX-License-Identifier: Apache-2.0
/* pull_bad_test - a prefill worker that damages runs, sends others than it must, or is late */
#include "conformance/harness.h"
#include "serving/remote/prefill/pull_fake_test.h"

static struct pull_rig rig;
static struct pull_fake fake;

enum bad {
	GOOD, PAYLOAD, PAYLOAD_LATER, HEAD, KEY, EPOCH, JOB, LAYER, PAGE, PAGES, TWICE, EARLY, GIVEN_UP,
	NO_JOB, LATE
};

static const struct {
	enum bad what;
	const char *says;		/* why the job fails; NULL: it does not */
	int keeps;			/* the worker is not lost by it */
	int errors;			/* of checksums */
} cases[] = {
	{ GOOD, NULL, 1, 0 },
	{ PAYLOAD, "a run of its pages has a wrong checksum", 1, 1 },
	{ PAYLOAD_LATER, "a run of its pages has a wrong checksum", 1, 1 },
	{ HEAD, "prefill worker 1: sends run 1 with a head that is not its own", 0, 1 },
	{ KEY, "sends run 1 with a head that is not its own", 0, 1 },
	{ EPOCH, "sends run 1 with a head that is not its own", 0, 1 },
	{ JOB, "sends a run of job 2 out of turn", 0, 0 },
	{ LAYER, "sends layer 1, page 0 of job 1 out of order", 0, 0 },
	{ PAGE, "sends layer 0, page 1 of job 1 out of order", 0, 0 },
	{ PAGES, "sends layer 0, page 0 of job 1 out of order", 0, 0 },
	{ TWICE, "sends layer 0, page 0 of job 1 out of order", 0, 0 },
	{ EARLY, "ends job 1 before layer 0, page 0", 0, 0 },
	{ GIVEN_UP, "the worker has given it up: Connection timed out", 1, 0 },
	{ LATE, "its lease has ended", 1, 0 },
};

/* Makes run number `i` of a job wrong, if it is the one. Keeps other checksums than those meant good. */
static void damage(enum bad what, int i, struct cairn_run *head)
{
	uint8_t key[SODIUM_HASH_KEY_BYTES];

	if ((what == PAYLOAD && i == 1) || (what == PAYLOAD_LATER && i == 6))
		((char *)head)[CAIRN_RUN_HEAD_BYTES + 17] ^= 4;
	if (i != 1)
		return;
	memcpy(key, fake.theirs.key, sizeof(key));
	key[3] ^= what == KEY;
	head->epoch += what == EPOCH;
	head->job += what == JOB;
	head->layer ^= what == LAYER;
	head->page += what == PAGE;
	head->num_pages -= what == PAGES;
	head->side -= what == TWICE;
	if (what == EARLY || what == GIVEN_UP)
		head->num_pages = 0;
	head->error = what == GIVEN_UP ? ETIMEDOUT : 0;
	head->sum = cairn_run_sum(fake.sodium, key, head);
	head->sum ^= what == HEAD;
}

/* Sends the runs of a job, one of them wrong, until the lead does not take them any more. */
static void send_job(struct cairn_test *t, enum bad what)
{
	struct cairn_channel_message m;
	struct cairn_control_prompt p;
	struct cairn_run run = { 0 };
	int ret = 0, i = 0;

	if (!EXPECT(t, fake_receive(&fake, CAIRN_CONTROL_PROMPT, &m) == 0))
		return;
	memcpy(&p, m.data, sizeof(p));
	EXPECT(t, p.first == rig.first && p.num_tokens == rig.num_tokens);
	if (what == LATE)
		nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	while (!ret && cairn_run_next(&fake.shape, p.first / PULL_PAGE, p.num_tokens / PULL_PAGE, &run)) {
		struct cairn_run *head;

		run.job = p.job;
		head = fake_fill(&fake, &run, run.layer * 16 + run.side * 8 + run.page);
		damage(what, i++, head);
		ret = fake_put(&fake);
		if (what == GIVEN_UP && i == 2)
			return;
	}
	if (ret)
		return;
	run = (struct cairn_run){ .job = p.job };
	fake_fill(&fake, &run, 0);
	fake_put(&fake);
}

/* Pages of a good job hold what was sent. */
static void check_pages(struct cairn_test *t, const struct cairn_pulled *d)
{
	const size_t bytes = fake.shape.page_bytes;

	for (int32_t page = 0; page < (d->num_tokens - d->first) / PULL_PAGE; page++) {
		const char *at = rig.pages + (size_t)(d->page + page) * rig.page_bytes;

		for (size_t part = 0; part < rig.page_bytes / bytes; part++) {
			/* all pages of a run have the number of the first */
			char want = (char)(part / 2 * 16 + part % 2 * 8 +
					   (size_t)(page - page % fake.shape.run_pages));

			EXPECT(t, at[part * bytes] == want && at[part * bytes + bytes - 1] == want);
		}
	}
}

static void one(struct cairn_test *t, size_t i)
{
	const enum bad what = cases[i].what;
	struct cairn_pull_stats stats;
	struct cairn_pulled d;

	if (!EXPECT(t, fake_join(&fake, &rig) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	rig.first = 0;
	rig.num_tokens = 6 * PULL_PAGE;		/* three chunks */
	EXPECT(t, pull_begin(&rig) == 1);
	send_job(t, what);
	EXPECT(t, pull_end_of(&rig, &d) && d.failed == (cases[i].says != NULL));
	cairn_pull_stats(rig.pull, &stats);
	EXPECT(t, stats.checksum_errors == cases[i].errors && stats.leases_ended == (what == LATE));
	if (cases[i].says)
		EXPECT_CONTAINS(t, stats.last_failure, cases[i].says);
	else
		check_pages(t, &d);
	cairn_pull_release(rig.pull, d.id);
	if (cases[i].keeps && what != LATE) {
		EXPECT(t, pull_begin(&rig) == 1);
		send_job(t, GOOD);
		EXPECT(t, pull_end_of(&rig, &d) && !d.failed);
		check_pages(t, &d);
	} else if (!cases[i].keeps) {
		EXPECT(t, pull_await(&rig, 0));
	}
}

static void damaged(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		if (pull_open(t, &rig, "llama3_tiny", 1, 0, cases[i].what == LATE ? 1 : 60000)) {
			pull_close(&rig);
			return;
		}
		one(t, i);
		pull_close(&rig);
		fake_close(&fake);
	}
}

/* A dropped job's runs are read and forgotten; its credits come back, its pages are kept until its end. */
static void dropped(struct cairn_test *t)
{
	struct cairn_channel_message m;
	struct cairn_pull_stats stats;
	struct cairn_pulled d;

	if (!pull_open(t, &rig, "llama3_tiny", 1, 0, 60000) && EXPECT(t, fake_join(&fake, &rig) == 0)) {
		rig.first = 0;
		rig.num_tokens = PULL_CONTEXT;
		EXPECT(t, pull_begin(&rig) == 1);
		for (int i = 0; i < 5000 && !fake.runs; i++) {	/* until it is sent */
			struct cairn_run run = { .job = 1 };

			if (!fake_receive(&fake, CAIRN_CONTROL_PROMPT, &m)) {
				cairn_run_next(&fake.shape, 0, PULL_CONTEXT / PULL_PAGE, &run);
				fake_fill(&fake, &run, 1);
				EXPECT(t, fake_put(&fake) == 0);
			}
		}
		cairn_pull_drop(rig.pull, rig.last_id);
		EXPECT(t, fake_receive(&fake, CAIRN_CONTROL_DROP, &m) == 0 &&
		       ((const struct cairn_control_drop *)m.data)->job == 1);
		memset(rig.pages, 9, PULL_PAGES * rig.page_bytes);
		EXPECT(t, pull_begin(&rig) == 1);	/* takes other pages */
		for (struct cairn_run run = { .job = 1, .num_pages = 2 };
		     cairn_run_next(&fake.shape, 0, PULL_CONTEXT / PULL_PAGE, &run);) {
			fake_fill(&fake, &run, 2);
			if (!EXPECT(t, fake_put(&fake) == 0))
				break;
		}
		fake_fill(&fake, &(struct cairn_run){ .job = 1 }, 0);
		EXPECT(t, fake_put(&fake) == 0);
		for (size_t i = 0; i < PULL_CONTEXT / PULL_PAGE * rig.page_bytes; i++)
			if (!EXPECT(t, rig.pages[i] == 9))
				break;
		rig.last_id++;
		rig.num_tokens = PULL_CONTEXT;
		for (struct cairn_run run = { .job = 2 };
		     cairn_run_next(&fake.shape, 0, PULL_CONTEXT / PULL_PAGE, &run);) {
			fake_fill(&fake, &run, run.layer * 16 + run.side * 8 + run.page);
			if (!EXPECT(t, fake_put(&fake) == 0))
				break;
		}
		fake_fill(&fake, &(struct cairn_run){ .job = 2 }, 0);
		EXPECT(t, fake_put(&fake) == 0);
		EXPECT(t, pull_end_of(&rig, &d) && !d.failed && d.page == PULL_CONTEXT / PULL_PAGE);
		check_pages(t, &d);
		cairn_pull_stats(rig.pull, &stats);
		EXPECT(t, stats.dropped == 1 && stats.completed == 1 && stats.stale_runs > CAIRN_RUN_RING);
	}
	pull_close(&rig);
	fake_close(&fake);
}

static const struct cairn_unit units[] = {
	{ "damaged", damaged }, { "dropped", dropped },
};

const struct cairn_family cairn_pull_bad_family = {
	.stage = "serving", .name = "pull_bad", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};
