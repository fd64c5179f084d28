// SPDX-License-Identifier: Apache-2.0
/* pull_test - what is pulled has the bits of what is computed here; jobs that are dropped or lost */
#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/remote/control/sodium_test.h"
#include "serving/remote/prefill/pull_rig_test.h"

#define TRANSPORT	"CAIRN_PULL_TRANSPORT"	/* of same_bits; not set: tcp */

static struct pull_rig rig;

/* Every job that the rig has begun has ended, and its place is free again. */
static void expect_all_free(struct cairn_test *t)
{
	struct cairn_pull_stats stats = { .jobs = 1 };
	struct cairn_pulled d;

	for (int i = 0; i < 30000 && stats.jobs; i++) {
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		cairn_pull_stats(rig.pull, &stats);
	}
	EXPECT(t, !stats.jobs);
	pull_draw(t, &rig, PULL_CONTEXT / PULL_PAGE);
	rig.first = 0;
	EXPECT(t, pull_begin(&rig) == 1 && pull_end_of(&rig, &d) && !d.failed);
	EXPECT(t, pull_compare(&rig, &d) == 0);
}

/* The last layers of workers whose memory seems to be a device's come by way of host memory. */
static void from_device(struct cairn_test *t)
{
	static const char *const models[] = { "llama3_tiny", "deepseek_tiny" };

	pull_as_device = 1;
	for (size_t i = 0; i < (PULL_IS_SLOW ? 1 : ARRAY_SIZE(models)); i++) {
		if (!pull_open(t, &rig, models[i], 1, 1, 0))
			EXPECT(t, pull_many(t, &rig, PULL_IS_SLOW ? 1 : 3) == 0);
		pull_close(&rig);
	}
	pull_as_device = 0;
}

static void same_bits(struct cairn_test *t)
{
	static const char *const models[] = {
		"llama3_tiny", "gemma2_tiny", "deepseek_tiny",	/* the last has latents */
	};
	const int prompts = PULL_IS_SLOW ? 1 : 6;
	struct cairn_pull_stats stats;

	pull_transport = getenv(TRANSPORT);
	for (size_t i = 0; i < (PULL_IS_SLOW || pull_transport ? 1 : ARRAY_SIZE(models)); i++) {
		if (!pull_open(t, &rig, models[i], 2, 2, 0)) {
			EXPECT(t, pull_many(t, &rig, prompts) == 0);
			expect_all_free(t);
			cairn_pull_stats(rig.pull, &stats);
			EXPECT(t, stats.completed == prompts + 1 && !stats.failed && stats.bytes ==
			       stats.pages * (int64_t)rig.page_bytes);
			EXPECT(t, stats.runs > 2 * CAIRN_RUN_RING);	/* credits have come back */
			cairn_note(t, "%s over %s", models[i], pull_transport ? pull_transport : "tcp");
		}
		pull_close(&rig);
	}
}

/* Jobs are refused beyond two of a worker, and beyond the longest prompt. */
static void bounds(struct cairn_test *t)
{
	int32_t pages[PULL_MOST + 1] = { 0 };
	struct cairn_pulled d;

	if (!pull_open(t, &rig, "llama3_tiny", 1, 1, 0)) {
		pull_draw(t, &rig, PULL_CONTEXT / PULL_PAGE);
		rig.first = 0;
		EXPECT(t, cairn_pull_has_place(rig.pull));
		EXPECT(t, pull_begin(&rig) == 1 && pull_begin(&rig) == 1 && pull_begin(&rig) == 0);
		EXPECT(t, !cairn_pull_has_place(rig.pull));
		for (int i = 0; i < 2; i++)
			EXPECT(t, pull_end_of(&rig, &d) && !d.failed && pull_compare(&rig, &d) == 0);
		EXPECT(t, pull_begin(&rig) == 1);
		EXPECT(t, pull_end_of(&rig, &d) && !d.failed);
		EXPECT(t, cairn_pull_begin(rig.pull, 99, rig.ids, PULL_CONTEXT + PULL_PAGE, 0, pages) == 0);
	}
	pull_close(&rig);
	if (!pull_open(t, &rig, "llama3_tiny", 1, 0, 0))
		EXPECT(t, !cairn_pull_has_place(rig.pull) && pull_begin(&rig) == 0);	/* no worker */
	pull_close(&rig);
}

/* Until a job's pages may be written, its runs wait, and the job does not fail for it. */
static void held(struct cairn_test *t)
{
	struct cairn_pull_stats stats;
	struct cairn_pulled d;

	if (!pull_open(t, &rig, "llama3_tiny", 1, 1, 0)) {
		pull_draw(t, &rig, PULL_MOST);
		EXPECT(t, pull_begin_held(&rig) == 1);
		nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
		cairn_pull_stats(rig.pull, &stats);
		EXPECT(t, !stats.runs && stats.jobs == 1 && !cairn_pull_ended(rig.pull, &d));
		cairn_pull_allow(rig.pull, rig.last_id);
		EXPECT(t, pull_end_of(&rig, &d) && !d.failed && pull_compare(&rig, &d) == 0);
		EXPECT(t, pull_begin_held(&rig) == 1);
		cairn_pull_drop(rig.pull, rig.last_id);
		expect_all_free(t);
	}
	pull_close(&rig);
}

/* Dropped jobs are not reported, and take nothing with them: neither places nor credits. */
static void dropped(struct cairn_test *t)
{
	struct cairn_pull_stats stats;
	struct cairn_pulled d;
	const int kept = PULL_IS_SLOW ? 1 : 5;
	int num = 0;

	if (!pull_open(t, &rig, "llama3_tiny", 2, 2, 0)) {
		for (int i = 0; i < (PULL_IS_SLOW ? 15 : 60); i++) {
			pull_draw(t, &rig, 30);
			if (pull_begin(&rig) == 1) {
				nanosleep(&(struct timespec){ 0, (long)(cairn_rand(t) % 4000000) }, NULL);
				cairn_pull_drop(rig.pull, rig.last_id);
				num++;
			} else {
				nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
			}
			EXPECT(t, !cairn_pull_ended(rig.pull, &d));
		}
		expect_all_free(t);
		EXPECT(t, pull_many(t, &rig, kept) == 0);
		cairn_pull_stats(rig.pull, &stats);
		cairn_note(t, "%lld dropped, %lld runs of theirs", (long long)stats.dropped,
			   (long long)stats.stale_runs);
		EXPECT(t, stats.begun == num + 1 + kept && stats.dropped > 0 && !stats.failed);
		/* a job that ends just before it is dropped counts as completed */
		EXPECT(t, stats.completed + stats.dropped == stats.begun && stats.completed > kept);
	}
	pull_close(&rig);
}

/* A job of a worker that is lost fails; a spare takes the rank. */
static void lost(struct cairn_test *t)
{
	struct cairn_pull_stats stats;
	struct cairn_pulled d;

	if (!pull_open(t, &rig, "llama3_tiny", 1, 2, 0)) {
		EXPECT(t, pull_many(t, &rig, 2) == 0);
		pull_draw(t, &rig, PULL_CONTEXT / PULL_PAGE);
		EXPECT(t, pull_begin(&rig) == 1);
		cairn_error(EIO, "by the test");
		cairn_lead_report(rig.lead, 1);
		EXPECT(t, pull_end_of(&rig, &d) && d.failed && d.id == rig.last_id);
		cairn_pull_stats(rig.pull, &stats);
		EXPECT(t, stats.failed == 1);
		EXPECT_CONTAINS(t, stats.last_failure, "prefill worker 1: by the test");
		EXPECT(t, pull_await(&rig, 1));
		EXPECT(t, pull_many(t, &rig, 3) == 0);
		expect_all_free(t);
	}
	pull_close(&rig);
}

/* A worker of other weights is refused, and says so; one whose memory does not suffice fails. */
static void refused(struct cairn_test *t)
{
	struct pull_worker *w = &rig.workers[0];

	if (!pull_open(t, &rig, "llama3_tiny", 1, 0, 0)) {
		w->o = (struct cairn_prefill_worker_options){
			.member = { .join = rig.join, .join_ms = 5000 }, .model = rig.m,
			.weights = PULL_WEIGHTS + 1,
		};
		pull_work(w);
		EXPECT(t, w->ret == -EPERM);
		EXPECT_CONTAINS(t, w->text, "other weights");
		w->o.weights = PULL_WEIGHTS;
		w->o.max_bytes = 1 << 10;
		pull_work(w);
		EXPECT(t, w->ret == -ENOMEM);
		EXPECT_CONTAINS(t, w->text, "keys and values of 2 prompts of 160 tokens take");
	}
	pull_close(&rig);
}

/*
 * Runs same_bits over this transport in a process that has the NIC model as its RDMA device. Processes of
 * tests end without the model's destructor, so its files lie in a directory that is removed after this test.
 */
static void carried_by(struct cairn_test *t, const char *transport)
{
	char *argv[] = { "cairn", "check", "-v", "serving.pull.same_bits", NULL };
	char out[8192];
	int ret;

	if (!have_sodium(t))
		return;
	if (PULL_IS_SLOW)
		return cairn_skip(t, "the NIC model does not go with sanitizers");
	if (!cairn_run_transport(transport))
		return cairn_skip(t, "this build has no transport %s", transport);
	setenv(TRANSPORT, transport, 1);
	ret = cairn_spawn_in(cairn_tmpdir(t), "cairn_nic.so", argv, out, sizeof(out));
	unsetenv(TRANSPORT);
	if (ret == -1001)
		return cairn_skip(t, "this build has no NIC model");
	if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", out);
	EXPECT_CONTAINS(t, out, "1 passed, 0 failed, 0 skipped");
	EXPECT_CONTAINS(t, out, transport);
}

static void verbs(struct cairn_test *t)
{
	carried_by(t, "verbs");
}

static void fhbn(struct cairn_test *t)
{
	carried_by(t, "fhbn");
}

static const struct cairn_unit units[] = {
	{ "same_bits", same_bits }, { "from_device", from_device }, { "verbs", verbs }, { "fhbn", fhbn },
	{ "bounds", bounds }, { "held", held }, { "dropped", dropped }, { "lost", lost },
	{ "refused", refused },
};

const struct cairn_family cairn_pull_family = {
	.stage = "serving", .name = "pull", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};
