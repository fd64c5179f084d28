// SPDX-License-Identifier: Apache-2.0
/* pull_bad_test - a prefill worker that damages runs, sends others than it must, or is late */
#include "conformance/harness.h"
#include "serving/remote/prefill/pull_fake_test.h"

static struct pull_rig rig;
static struct pull_fake fake;

static const struct {
	enum fake_bad what;
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

static void one(struct cairn_test *t, size_t i)
{
	const enum fake_bad what = cases[i].what;
	struct cairn_pull_stats stats;
	struct cairn_pulled d;

	if (!EXPECT(t, fake_join(&fake, &rig) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	rig.first = 0;
	rig.num_tokens = 6 * PULL_PAGE;		/* three chunks */
	EXPECT(t, pull_begin(&rig) == 1);
	EXPECT(t, fake_send_job(&fake, &rig, what) == 0);
	EXPECT(t, pull_end_of(&rig, &d) && d.failed == (cases[i].says != NULL));
	cairn_pull_stats(rig.pull, &stats);
	EXPECT(t, stats.checksum_errors == cases[i].errors && stats.leases_ended == (what == LATE));
	if (cases[i].says)
		EXPECT_CONTAINS(t, stats.last_failure, cases[i].says);
	else
		EXPECT(t, fake_wrong_pages(&fake, &rig, &d) == 0);
	if (cases[i].keeps && what != LATE) {
		EXPECT(t, pull_begin(&rig) == 1);
		EXPECT(t, fake_send_job(&fake, &rig, GOOD) == 0);
		EXPECT(t, pull_end_of(&rig, &d) && !d.failed);
		EXPECT(t, fake_wrong_pages(&fake, &rig, &d) == 0);
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

/* A dropped job's runs are read and forgotten; its credits come back, its place is kept until its end. */
static void dropped(struct cairn_test *t)
{
	struct cairn_pull_stats stats;

	if (!pull_open(t, &rig, "llama3_tiny", 1, 0, 60000) && EXPECT(t, fake_join(&fake, &rig) == 0)) {
		EXPECT(t, fake_drop_job(&fake, &rig) == 0);
		cairn_pull_stats(rig.pull, &stats);
		EXPECT(t, stats.dropped == 1 && stats.completed == 1 && stats.stale_runs > CAIRN_RUN_RING);
	}
	pull_close(&rig);
	fake_close(&fake);
}

/* A worker sends one job after the other: the second may wait as long as the first takes. */
static void waits(struct cairn_test *t)
{
	if (!pull_open(t, &rig, "llama3_tiny", 1, 0, 60000) && EXPECT(t, fake_join(&fake, &rig) == 0) &&
	    !EXPECT(t, fake_send_two(&fake, &rig) == 0)) {
		struct cairn_pull_stats stats;

		cairn_pull_stats(rig.pull, &stats);
		cairn_note(t, "%s", stats.last_failure);
	}
	pull_close(&rig);
	fake_close(&fake);
}

static const struct cairn_unit units[] = {
	{ "damaged", damaged }, { "dropped", dropped }, { "waits", waits },
};

const struct cairn_family cairn_pull_bad_family = {
	.stage = "serving", .name = "pull_bad", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};
