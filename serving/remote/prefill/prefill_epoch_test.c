// SPDX-License-Identifier: Apache-2.0
/* prefill_epoch_test - a prefill worker whose lead gives no credits, renews no lease, breaks the protocol */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/threads.h"
#include "serving/remote/control/sodium_test.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/prefill/prefill_group_test.h"
#include "serving/remote/prefill/prefill_lease_test.h"
#include "serving/remote/prefill/pull_fake_test.h"

static struct pull_rig rig;
static struct pull_fake lead;

/* Returns an epoch that is connected with `lead`, and draws the longest prompt; NULL: there is none. */
static struct cairn_prefill_epoch *begin(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = NULL;
	const struct sodium *s;

	memset(&rig, 0, sizeof(rig));
	if (sodium_load(&s)) {
		cairn_skip(t, "%s", cairn_last_error());
		return NULL;
	}
	if (open_model(t, "cpu", "llama3_tiny", &rig.impl, &rig.g, &rig.m))
		return NULL;
	if (!EXPECT(t, fake_begin(&lead, &rig, &e) == 0))
		cairn_note(t, "%s", cairn_last_error());
	pull_draw(t, &rig, PULL_CONTEXT / PULL_PAGE);
	rig.first = 0;
	return e;
}

static void end(struct cairn_prefill_epoch *e)
{
	cairn_prefill_epoch_destroy(e);
	fake_close(&lead);
	if (rig.m)
		close_model(rig.m, &rig.g);
}

static int amend(struct cairn_prefill_epoch *e, uint64_t job, uint32_t lease_ms)
{
	const struct cairn_control_lease lease = { .job = job, .lease_ms = lease_ms };
	const struct cairn_channel_message m = {
		.kind = lease_ms ? CAIRN_CONTROL_LEASE : CAIRN_CONTROL_DROP, .data = &lease,
	};

	return cairn_prefill_epoch_message(e, &m);
}

/* Without credits the ring is filled and no more; with them the job is completed. */
static void credits(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = begin(t);
	struct cairn_run run;

	if (e && EXPECT(t, fake_prompt(e, &rig, 1, 60000) == 0)) {
		for (int i = 0; i < CAIRN_RUN_RING; i++)
			EXPECT(t, fake_take(&lead, &run, NULL, 10000) == 0 && run.job == 1 && run.num_pages);
		EXPECT(t, fake_take(&lead, &run, NULL, 100) == -ETIMEDOUT);
		EXPECT(t, fake_credit(&lead) == 0 && fake_take_job(&lead, 1) == 0);
	}
	end(e);
}

/*
 * A lease that is not renewed ends the job, although the lead gives no credits: the places are free then. One
 * that is renewed lasts longer than it did at first.
 */
static void leases(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = begin(t);

	if (e && EXPECT(t, fake_prompt(e, &rig, 1, 50) == 0 && fake_prompt(e, &rig, 2, 50) == 0)) {
		nanosleep(&(struct timespec){ 0, 200000000 }, NULL);
		EXPECT(t, fake_take_job(&lead, 1) == ETIMEDOUT);
		EXPECT(t, fake_take_job(&lead, 2) == ETIMEDOUT);
		EXPECT(t, fake_prompt(e, &rig, 3, 100) == 0 && amend(e, 3, 60000) == 0);
		nanosleep(&(struct timespec){ 0, 200000000 }, NULL);
		EXPECT(t, fake_take_job(&lead, 3) == 0);
	}
	end(e);
}

/* A LEASE that comes when computing has been given up changes nothing: most pages were never computed. */
static void revived(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = begin(t);

	if (e)
		EXPECT(t, lease_revive(e, &lead, &rig) == ETIMEDOUT);
	end(e);
}

/* A dropped job ends soon, a job behind it is completed, and a drop of what has ended does nothing. */
static void drops(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = begin(t);

	if (e && EXPECT(t, fake_prompt(e, &rig, 1, 60000) == 0 && fake_prompt(e, &rig, 2, 60000) == 0)) {
		EXPECT(t, amend(e, 1, 0) == 0);
		EXPECT(t, fake_take_job(&lead, 1) == ECANCELED);
		EXPECT(t, fake_take_job(&lead, 2) == 0);
		EXPECT(t, amend(e, 2, 0) == 0 && amend(e, 7, 0) == 0);
		EXPECT(t, fake_prompt(e, &rig, 3, 60000) == 0 && fake_take_job(&lead, 3) == 0);
	}
	end(e);
}

/* Sends the rig's prompt with other sizes. Returns the error. */
static int odd(struct cairn_prefill_epoch *e, int32_t first, int32_t num_tokens)
{
	struct pull_rig other = rig;

	other.first = first;
	other.num_tokens = num_tokens;
	return fake_prompt(e, &other, 1, 60000);
}

static void refused(struct cairn_test *t)
{
	struct cairn_prefill_epoch *e = begin(t);
	const struct cairn_channel_message plan = { .kind = CAIRN_CONTROL_PLAN, .data = "" };

	if (e) {
		EXPECT(t, odd(e, 2, PULL_CONTEXT) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(),
				"the lead wants tokens 2 to 160 of a prompt, in pages of 4, at most 40");
		EXPECT(t, odd(e, 0, PULL_CONTEXT + PULL_PAGE) == -EINVAL);
		rig.ids[5] = 192;
		EXPECT(t, fake_prompt(e, &rig, 1, 60000) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "the lead sends token 192; the vocabulary has 192");
		rig.ids[5] = 191;
		EXPECT(t, cairn_prefill_epoch_message(e, &plan) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "the lead sends plan to a prefill worker");
		EXPECT(t, fake_prompt(e, &rig, 5, 60000) == 0);
		EXPECT(t, fake_prompt(e, &rig, 5, 60000) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "the lead sends prompt 5 after 5, out of order");
		EXPECT(t, fake_prompt(e, &rig, 6, 60000) == 0);
		EXPECT(t, fake_prompt(e, &rig, 7, 60000) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "the lead sends prompt 7 after 6, one too many");
		EXPECT(t, cairn_epoch_connect(cairn_prefill_epoch_life(e), &lead.mine) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "the lead's blob comes twice");
	}
	end(e);		/* with two jobs under way */
}

/* ---- stages ---- */

enum { TAKEN, FOUND };
static _Atomic int *flags;	/* of two processes: TAKEN: a run of stage 1; FOUND: stage 1 has seen that */
static struct cairn_impl right;
static int chunks;

/* In its fourth chunk, stage 1 waits until the lead has taken the first pages, which it has computed. */
static int await_lead(const struct cairn_rope_args *args, void *stream)
{
	chunks++;
	/* after ten seconds the test fails */
	for (int i = 0; chunks == 4 && i < 10000 && !atomic_load(&flags[TAKEN]); i++)
		usleep(1000);
	if (chunks == 4)
		atomic_store(&flags[FOUND], atomic_load(&flags[TAKEN]));
	return right.rope(args, stream);
}

/* Loads a stage, and with rank 0 the whole model for the lead. */
static int open_stage(struct cairn_prefill_group *g, struct cairn_tp *tp)
{
	const int32_t rank = cairn_tp_rank(tp);

	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	CAIRN_TRY(cairn_impl_open("cpu", &rig.impl));
	CAIRN_TRY(cairn_impl_start(&rig.impl, 0));
	CAIRN_TRY(cairn_tp_table(tp, &rig.impl, ""));
	right = rig.impl;
	rig.impl.qkv_append = NULL;	/* so that passes of few rows call it, too */
	if (rank)
		rig.impl.rope = await_lead;
	else
		CAIRN_TRY(cairn_model_load(&rig.m, &rig.impl, rig.g.dir, NULL, NULL));
	CAIRN_TRY(cairn_model_load_stage(&rig.stage, &rig.impl, rig.g.dir, rank, 2, CAIRN_WEIGHTS_PLAIN,
					 CAIRN_KV_PLAIN, NULL, NULL));
	cairn_prefill_group_join(g, tp, rig.stage, PULL_ROWS);
	return 0;
}

/* Takes runs until one comes from stage 1. Returns whether it has the first pages. */
static int take_first_of_stage_1(void)
{
	struct cairn_run run = { 0 };

	while (!run.layer)
		if (fake_take(&lead, &run, NULL, 10000) || fake_credit(&lead))
			return 0;
	return !run.page;
}

/* Keys and values of both stages arrive while later chunks of the prompt are still to be computed. */
static void streams(struct cairn_test *t)
{
	struct cairn_prefill_group *g = NULL;
	struct cairn_prefill_epoch *e = NULL;
	struct cairn_model_config whole;
	struct cairn_tp *tp = NULL;

	if (!have_sodium(t))
		return;
	memset(&rig, 0, sizeof(rig));
	flags = mmap(NULL, 2 * sizeof(*flags), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!EXPECT(t, flags != MAP_FAILED) || open_golden(t, &rig.g, "llama3_tiny") ||
	    !EXPECT(t, !cairn_model_config_load(rig.g.dir, &whole)) ||
	    !EXPECT(t, !cairn_prefill_group_create(&g, &whole)) ||
	    !EXPECT(t, !cairn_tp_fork(&tp, 2, NULL, 60000)))
		return;
	if (cairn_tp_rank(tp)) {
		if (open_stage(g, tp) || cairn_prefill_group_follow(g))
			cairn_tp_fail(tp);
		_exit(0);
	}
	rig.group = g;
	if (EXPECT(t, open_stage(g, tp) == 0 && fake_begin(&lead, &rig, &e) == 0)) {
		pull_draw(t, &rig, PULL_CONTEXT / PULL_PAGE);
		rig.first = 0;
		rig.num_tokens = 3 * PULL_ROWS - 3;	/* the last page has one token */
		EXPECT(t, fake_prompt(e, &rig, 1, 60000) == 0 && take_first_of_stage_1());
		atomic_store(&flags[TAKEN], 1);
		EXPECT(t, fake_take_job(&lead, 1) == 0 && atomic_load(&flags[FOUND]));
	}
	cairn_prefill_epoch_destroy(e);
	fake_close(&lead);
	cairn_tp_close(tp);
	cairn_prefill_group_destroy(g);
	cairn_model_free(rig.stage);
	cairn_model_free(rig.m);
	close_golden(&rig.g);
	munmap((void *)flags, 2 * sizeof(*flags));
}

/* The digests of a random model's stages make that of the whole. */
static void digests(struct cairn_test *t)
{
	static const struct { const char *model; enum cairn_weights weights; } rows[] = {
		{ "llama3_tiny", CAIRN_WEIGHTS_FP8 }, { "qwen3_moe_tiny", CAIRN_WEIGHTS_PLAIN },
	};
	uint64_t whole, sum, one;
	struct cairn_model_config c;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_table(t, "cpu", &impl) || open_golden(t, &g, rows[i].model))
			continue;
		EXPECT(t, !cairn_model_config_load(g.dir, &c));
		sum = 0;
		for (int s = 0; s <= 2; s++) {		/* the last one is the whole */
			const int ret = s < 2 ?
				cairn_model_random_stage(&m, &impl, &c, s, 2, rows[i].weights,
							 CAIRN_KV_PLAIN, 7) :
				cairn_model_random_as(&m, &impl, &c, rows[i].weights, CAIRN_KV_PLAIN, 7);

			if (!EXPECT(t, ret == 0))
				continue;
			EXPECT(t, !cairn_model_digest(m, s < 2 ? &one : &whole));
			sum += s < 2 ? one : 0;
			cairn_model_free(m);
		}
		if (!EXPECT(t, sum == whole))
			cairn_note(t, "%s", rows[i].model);
		close_golden(&g);
	}
}

/* Layers come to their places, chunk by chunk. */
static void stages(struct cairn_test *t)
{
	EXPECT(t, group_differs(t, 0) == 0);
	EXPECT(t, group_differs(t, 1) == 0);
}

static const struct cairn_unit units[] = {
	{ "digests", digests }, { "stages", stages }, { "streams", streams }, { "credits", credits },
	{ "leases", leases }, { "revived", revived }, { "drops", drops }, { "refused", refused },
};

const struct cairn_family cairn_prefill_epoch_family = {
	.stage = "serving", .name = "prefill_epoch", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
