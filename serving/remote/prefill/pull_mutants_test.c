// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_test - checks that the tests of pulls detect each of their faults (remote_fault.h) */
#include "conformance/harness.h"
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/prefill/prefill_group_test.h"
#include "serving/remote/prefill/prefill_lease_test.h"
#include "serving/remote/prefill/pull_fake_test.h"
#include "serving/remote/remote_noticed_test.h"

static struct pull_rig rig;
static struct pull_fake fake;

/* Returns whether pages that are pulled from a worker differ from those computed here, or do not come. */
static int differs(struct cairn_test *t)
{
	int64_t bad = pull_open(t, &rig, "llama3_tiny", 1, 1, 0);

	if (!bad)
		bad = pull_many(t, &rig, PULL_IS_SLOW ? 1 : 3);
	pull_close(&rig);
	return bad != 0;
}

/* The same with a table whose memory is a device's, as far as workers and lead know. */
static int device_differs(struct cairn_test *t)
{
	int ret;

	pull_as_device = 1;
	ret = differs(t);
	pull_as_device = 0;
	return ret;
}

/* The same with a transport that carries runs between devices. */
static int between_differs(struct cairn_test *t)
{
	int ret;

	cairn_run_as_device = "tcp";
	ret = device_differs(t);
	cairn_run_as_device = "";
	return ret;
}

/* Returns whether a job of a worker that does something bad is completed. */
static int completes(struct cairn_test *t, enum fake_bad what)
{
	struct cairn_pulled d = { .failed = 1 };

	if (!pull_open(t, &rig, "llama3_tiny", 1, 0, what == LATE ? 1 : 60000) &&
	    EXPECT(t, fake_join(&fake, &rig) == 0)) {
		rig.first = 0;
		rig.num_tokens = 6 * PULL_PAGE - 1;
		EXPECT(t, pull_begin(&rig) == 1);
		EXPECT(t, fake_send_job(&fake, &rig, what) == 0);
		EXPECT(t, pull_end_of(&rig, &d));
	}
	pull_close(&rig);
	fake_close(&fake);
	return !d.failed;
}

static int damaged(struct cairn_test *t)
{
	return completes(t, PAYLOAD);
}

static int late(struct cairn_test *t)
{
	return completes(t, LATE);
}

static int early(struct cairn_test *t)
{
	return completes(t, EARLY);
}

/* Returns whether a worker is lost because its second job has to wait for the first. */
static int impatient(struct cairn_test *t)
{
	int ret = pull_open(t, &rig, "llama3_tiny", 1, 0, 60000);

	if (!ret)
		ret = fake_join(&fake, &rig);
	if (!ret)
		ret = fake_send_two(&fake, &rig);
	pull_close(&rig);
	fake_close(&fake);
	return ret != 0;
}

/* Returns whether a dropped job does harm: pages that are written, credits that are missing. */
static int drop_left(struct cairn_test *t)
{
	int ret = pull_open(t, &rig, "llama3_tiny", 1, 0, 60000);

	if (!ret)
		ret = fake_join(&fake, &rig);
	fake.patience_ms = cairn_remote_fault ? 300 : 10000;
	if (!ret)
		ret = fake_drop_job(&fake, &rig);
	pull_close(&rig);
	fake_close(&fake);
	return ret != 0;
}

static void close_epoch(struct cairn_prefill_epoch *e)
{
	cairn_prefill_epoch_destroy(e);
	fake_close(&fake);
	close_model(rig.m, &rig.g);
}

/* Opens a worker's epoch for a false server, with a prompt to ask for. Returns NULL after a failure. */
static struct cairn_prefill_epoch *open_epoch(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = NULL;

	memset(&rig, 0, sizeof(rig));
	if (open_model(t, "cpu", "llama3_tiny", &rig.impl, &rig.g, &rig.m))
		return NULL;
	if (EXPECT(t, fake_begin(&fake, &rig, &e) == 0)) {
		pull_draw(t, &rig, PULL_CONTEXT / PULL_PAGE);
		rig.first = 0;
		return e;
	}
	close_epoch(e);
	return NULL;
}

/* Returns whether a worker goes on with a prompt that it has given up. */
static int revives(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = open_epoch(t);
	int ret;

	if (!e)
		return 0;
	fake.patience_ms = cairn_remote_fault ? 300 : 10000;
	ret = lease_revive(e, &fake, &rig);
	close_epoch(e);
	return ret != ETIMEDOUT;
}

/* Returns whether a worker sends more runs than it has credits, or holds a job whose lease has ended. */
static int overdoes(struct cairn_test *t, uint32_t lease_ms)
{
	struct cairn_prefill_epoch *e = open_epoch(t);
	struct cairn_run run = { 0 };
	int ret = 0;

	if (!e)
		return 0;
	EXPECT(t, fake_prompt(e, &rig, 1, lease_ms) == 0);
	for (int i = 0; i < CAIRN_RUN_RING && !ret; i++)
		ret = fake_take(&fake, &run, NULL, 10000);
	if (lease_ms < 1000) {
		nanosleep(&(struct timespec){ 0, 2 * (long)lease_ms * 1000000 }, NULL);
		EXPECT(t, fake_credit(&fake) == 0);
		ret = fake_take_job(&fake, 1) == 0;
	} else {
		ret = !ret && fake_take(&fake, &run, NULL, 100) == 0;
	}
	close_epoch(e);
	return ret;
}

static int overruns(struct cairn_test *t)
{
	return overdoes(t, 60000);
}

static int holds(struct cairn_test *t)
{
	return overdoes(t, 200);
}

/* Returns whether runs of a job are taken before its pages may be written. */
static int unasked(struct cairn_test *t)
{
	struct cairn_pull_stats stats = { 0 };

	if (!pull_open(t, &rig, "llama3_tiny", 1, 1, 0)) {
		pull_draw(t, &rig, PULL_MOST);
		EXPECT(t, pull_begin_held(&rig) == 1);
		for (int i = 0; i < (cairn_remote_fault ? 10000 : 50) && !stats.runs; i++) {
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
			cairn_pull_stats(rig.pull, &stats);
		}
	}
	pull_close(&rig);
	return stats.runs > 0;
}

static int stages_differ(struct cairn_test *t)
{
	return group_differs(t, 0) != 0;
}

static const struct remote_mutant mutants[] = {
	MUTANT(CHECKSUM_IGNORED, damaged), MUTANT(LEASE_IGNORED, late), MUTANT(END_TOO_EARLY, early),
	MUTANT(QUIET_SINCE_PROMPT, impatient),
	MUTANT(CREDIT_LEAK, drop_left), MUTANT(DROPPED_KEPT, drop_left),
	MUTANT(PLACE_FREED_EARLY, drop_left), MUTANT(WRITES_UNASKED, unasked),
	MUTANT(LEASE_ENDLESS, holds), MUTANT(LEASE_REVIVED, revives),
	MUTANT(CREDITS_IGNORED, overruns), MUTANT(LAYER_NOT_AWAITED, differs),
	MUTANT(LAYERS_SWAPPED, differs), MUTANT(SIDES_SWAPPED, differs), MUTANT(PAYLOAD_DAMAGED, differs),
	MUTANT(RUNS_LOST, differs), MUTANT(PAGE_NOT_MIRRORED, device_differs),
	MUTANT(VALUES_NOT_MIRRORED, device_differs),
	MUTANT(STAGE_LAYERS_FROM_0, stages_differ), MUTANT(CHUNK_IS_PASS, stages_differ),
	MUTANT(CLEARED_NOT, stages_differ),
	MUTANT(COPY_OF_BEFORE, between_differs), MUTANT(PAGES_IN_ONE_PLACE, between_differs),
};

_Static_assert(ARRAY_SIZE(mutants) == NUM_FAULTS - FIRST_PULL_FAULT, "every fault has a test");

static void noticed(struct cairn_test *t)
{
	all_noticed(t, mutants, ARRAY_SIZE(mutants));
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed },
};

const struct cairn_family cairn_pull_mutants_family = {
	.stage = "serving", .name = "pull_mutants", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
