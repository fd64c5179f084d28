// SPDX-License-Identifier: Apache-2.0
/*
 * disagg_fault_test - answers with remote workers, undisturbed and while workers are killed: rows of `cairn
 * bench`
 *
 *   tokens_MODEL, tokens_cuda_MODEL
 *	previous keys at attention workers: tokens that are those of the model alone, and answers with another
 *	token although the logits decide
 *   attention_killed, model_killed
 *	20 workers of this kind are killed while they answer: answers that are lost, and those with a token or
 *	a log-probability that differs from the undisturbed run
 */
#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/remote_engine_test.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/member/model_digest.h"

enum { KILLS = 20, KILLS_A_RUN = 2 };

/* The engine of a tiny model. */
struct setting {
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	struct crowd *want, *got;
	struct cairn_engine_options opt;
	struct cairn_engine_stats stats;
};

static int open_setting(struct cairn_test *t, struct setting *s, const char *table, const char *model)
{
	*s = (struct setting){ .want = calloc(2, sizeof(*s->want)), .opt = options };
	if (!EXPECT(t, s->want != NULL))
		return -1;
	if (open_model(t, table, model, &s->impl, &s->g, &s->m)) {
		free(s->want);
		return -1;
	}
	s->got = s->want + 1;
	s->opt.page_size = strcmp(table, "cpu") ? 16 : s->opt.page_size;
	s->opt.num_pages = strcmp(table, "cpu") ? 60 : 30;
	s->opt.max_passes = 4;
	make_prompts(t, s->want);
	memcpy(s->got->prompts, s->want->prompts, sizeof(s->got->prompts));
	return 0;
}

static void close_setting(struct setting *s)
{
	close_model(s->m, &s->g);
	free(s->want);
}

static void tokens_of(struct cairn_test *t, const char *table, const char *model, int32_t workers)
{
	const int is_cpu = !strcmp(table, "cpu");
	struct setting s;
	char name[64], members[160];
	int equal = 0, wrong;

	if (open_setting(t, &s, table, model))
		return;
	run_all(t, s.want, s.m, &s.opt, &s.stats);
	if (open_lead_as(t, &s.opt.attention, table, workers)) {
		run_all(t, s.got, s.m, &s.opt, &s.stats);
		wrong = count_wrong(t, s.want, s.got, SLACK, &equal);
		snprintf(name, sizeof(name), "tokens_%s%s", is_cpu ? "" : "cuda_", model);
		snprintf(members, sizeof(members),
			 "\"workers\":%d,\"tokens\":%d,\"equal\":%d,\"wrong_answers\":%d", workers,
			 (JOBS - 2 + ANSWERS) * NEW, equal, wrong);
		if (is_cpu)
			cairn_host_row(t, name, table, "%s", members);
		else
			cairn_row(t, name, table, "%s", members);
		cairn_lead_destroy(s.opt.attention);
	}
	close_setting(&s);
}

static void tokens(struct cairn_test *t)
{
	tokens_of(t, "cpu", "llama3_tiny", 2);
	tokens_of(t, "cpu", "mistral_tiny", 2);		/* windows */
	tokens_of(t, "cpu", "gemma2_tiny", 1);		/* windows, softcap */
	tokens_of(t, "cpu", "longrope_tiny", 1);
}

static void tokens_cuda(struct cairn_test *t)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);	/* as the command does */
	if (!cairn_transport_gpus()) {
		cairn_skip(t, "needs a CUDA device");
		return;
	}
	tokens_of(t, "cuda", "llama3_tiny", 1);
	tokens_of(t, "cuda", "mistral_tiny", 2);
}

/* Returns the number of answers that have not ended. */
static int count_lost(const struct crowd *c)
{
	int lost = 0;

	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < (i == 1 || i == 4 ? (i == 4 ? 2 : ANSWERS) : 1); k++)
			lost += c->answers[i][k].num_finished != 1;
	return lost;
}

/* Runs until KILLS workers have been killed. Each run has a lead of its own. */
static void kills_of(struct cairn_test *t, struct setting *s, struct cairn_lead_options *o, int32_t of_model,
		     const char *name)
{
	const int64_t begin = cairn_clock_ns();
	int64_t recoveries = 0;
	int kills = 0, lost = 0, changed = 0, runs = 0;

	for (; kills < KILLS; kills += KILLS_A_RUN, runs++) {
		if (!create_lead(t, &s->opt.attention, o))
			return;
		s->got->victim = s->opt.attention;
		s->got->of_model = of_model;
		run_all(t, s->got, s->m, &s->opt, &s->stats);
		recoveries += s->stats.recoveries;
		lost += count_lost(s->got);
		changed += count_changed(t, s->want, s->got);
		cairn_lead_destroy(s->opt.attention);
	}
	EXPECT(t, !lost && !changed && recoveries >= runs);
	cairn_host_row(t, name, "cpu", "\"kills\":%d,\"answers\":%d,\"lost\":%d,\"changed\":%d,"
		       "\"recoveries\":%lld,\"seconds\":%.1f", kills, runs * (JOBS + ANSWERS), lost, changed,
		       (long long)recoveries, (double)(cairn_clock_ns() - begin) * 1e-9);
}

static void attention_killed(struct cairn_test *t)
{
	struct cairn_lead_options o = { .attention = 2, .table = "cpu", .beat_ms = 20000, .join_ms = 60000 };
	struct setting s;

	if (open_setting(t, &s, "cpu", "mistral_tiny"))
		return;
	run_all(t, s.want, s.m, &s.opt, &s.stats);
	s.opt.attends_all = 1;
	s.opt.lanes = 2;
	kills_of(t, &s, &o, 0, "attention_killed");
	close_setting(&s);
}

static void model_killed(struct cairn_test *t)
{
	struct setting s;

	if (open_setting(t, &s, "cpu", "mistral_tiny"))
		return;
	const char *const model[] = { "--model", s.g.dir, NULL };
	struct cairn_lead_options o = {
		.attention = 2, .model = 1, .table = "cpu", .beat_ms = 20000, .join_ms = 60000,
		.model_options = model, .config = cairn_share_digest(&s.m->config),
	};

	run_all(t, s.want, s.m, &s.opt, &s.stats);
	s.opt.attends_all = 1;
	s.opt.lanes = 2;
	if (EXPECT(t, cairn_model_digest(s.m, &o.weights) == 0))
		kills_of(t, &s, &o, 1, "model_killed");
	close_setting(&s);
}

static const struct cairn_unit measures[] = {
	{ "tokens", tokens }, { "tokens_cuda", tokens_cuda }, { "attention_killed", attention_killed },
	{ "model_killed", model_killed },
};

const struct cairn_family cairn_disagg_fault_family = {
	.stage = "serving", .name = "disagg_fault",
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
};
