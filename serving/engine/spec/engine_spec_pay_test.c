// SPDX-License-Identifier: Apache-2.0
/* engine_spec_pay_test - what is counted of drafts, and that they stop where they do not pay */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/spec/engine_spec_test.h"

static int32_t never_right(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
			   int32_t *drafts, int32_t *parents, int32_t room)
{
	(void)ctx, (void)id, (void)index, (void)tokens, (void)num, (void)parents;
	for (int32_t k = 0; k < room; k++)	/* forbidden by the request's biases */
		drafts[k] = 5;
	return room;
}

/* 33 tokens with four drafts a step: the prompt gives one, each step then 5 if all are right, 1 if none. */
static void counts(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct golden g;
	struct crowd *c = crowd_open_single(t, &impl, &g, 33);
	const struct cairn_speculation_stats *s = c ? &c->stats.speculation : NULL;

	if (!c)
		return;
	c->right = 1;
	crowd_run(t, c, 1);
	crowd_compare(t, c);
	/* 1 + 6 * 5 = 31, and a last step with one draft, as only two tokens are left */
	EXPECT(t, c->stats.steps == 8 && s->drafts == 7 && s->draft_tokens == 25 && s->accepted_tokens == 25);
	EXPECT(t, s->accepted_per_position[0] == 7 && s->accepted_per_position[3] == 6);
	EXPECT(t, c->stats.new_tokens == 33 && c->stats.scheduler.accepted_tokens == 25);
	c->right = 0;
	crowd_run(t, c, 1);
	crowd_compare(t, c);
	/* random drafts among 192 tokens are right now and then */
	EXPECT(t, s->accepted_tokens < 10 && c->stats.steps >= 23 && s->drafts >= 20);
	close_model(c->m, &g);
	free(c);
}

/* Drafts that are never right are given up, and tried anew after a pause. */
static void given_up(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct golden g;
	struct crowd *c = crowd_open_single(t, &impl, &g, NEW);
	struct cairn_engine_options opt;
	struct cairn_engine_stats stats;
	struct cairn_engine *e;

	if (!c)
		return;
	opt = c->opt;
	opt.max_context = 512;
	opt.speculation = (struct cairn_speculation){
		.method = CAIRN_SPECULATE_CALLER, .num_tokens = 4, .draft = never_right,
	};
	c->jobs[0].r.max_new_tokens = 480;
	c->jobs[0].r.sampling.temperature = 0;
	c->jobs[0].r.sampling.num_bias = 1;
	c->jobs[0].bias[0] = (struct cairn_logit_bias){ 5, -1000 };
	c->jobs[0].r.ctx = c->jobs[0].got;
	if (EXPECT(t, cairn_engine_create(&e, c->m, &opt) == 0)) {
		EXPECT(t, cairn_engine_submit(e, &c->jobs[0].r) == 0 && cairn_engine_run(e) == 0);
		cairn_engine_stats(e, &stats);
		cairn_note(t, "%lld steps with drafts, %lld pauses", (long long)stats.speculation.drafts,
			   (long long)stats.speculation.pauses);
		EXPECT(t, stats.new_tokens == 480 && stats.speculation.accepted_tokens == 0);
		/* after 64, 128 and 256 tokens */
		EXPECT(t, stats.speculation.pauses >= 3 && stats.speculation.drafts < 150);
		cairn_engine_destroy(e);
	}
	close_model(c->m, &g);
	free(c);
}

static const struct cairn_unit units[] = {
	{ "counts", counts }, { "given_up", given_up },
};

const struct cairn_family cairn_engine_spec_pay_family = {
	.stage = "serving",
	.name = "engine_spec_pay",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
