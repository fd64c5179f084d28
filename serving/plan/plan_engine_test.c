// SPDX-License-Identifier: Apache-2.0
/* plan_engine_test - entries of plan files as plans of nano-batches */
#include <limits.h>
#include <sys/stat.h>

#include "conformance/harness.h"
#include "serving/plan/plan_engine_test.h"
#include "serving/search/search_test.h"

static void expect_place(struct cairn_test *t, const struct cairn_nano_plan *p, const char *op, int batch,
			 int lane, double start)
{
	int found = 0;

	for (int32_t i = 0; i < p->num_places; i++) {
		const struct cairn_nano_place *at = &p->places[i];

		if (strcmp(at->op, op) || at->batch != batch)
			continue;
		found++;
		EXPECT(t, at->lane == lane && at->start == start);
	}
	if (!EXPECT(t, found == 1))
		cairn_note(t, "%s of nano-batch %d: %d places", op, batch, found);
}

/* Green parts get lanes of their own, and operations get the place of the part that covers them. */
static void lanes(struct cairn_test *t)
{
	struct cairn_plan_lanes l;
	struct cairn_plan_file *file = open_engine_plan(t, 1, "'how': 'green', 'sms': 40", "", "");
	const struct cairn_nano_plan *p = &l.plan;
	struct cairn_search_pipeline pipeline;

	if (!file || !EXPECT(t, engine_pipeline(&pipeline, 1) == 0) ||
	    !EXPECT(t, cairn_plan_lanes_make(&l, file, 0, &pipeline) == 0))
		return;
	EXPECT(t, p->num_batches == 2 && p->rows[0] == 384 && p->rows[1] == 640 && p->decodes[0] == 300 &&
		  p->decodes[1] == 84 && p->least_rows == 0);
	/* lane 2: attention on the first 40 SMs; lane 3: products on the other 92 */
	EXPECT(t, p->num_lanes == 4 && p->lanes[2].sms == 40 && p->lanes[3].sms == -40);
	EXPECT(t, !p->lanes[0].sms && !p->lanes[1].sms && !p->lanes[1].priority);
	EXPECT(t, p->num_places == 2 * 10);
	expect_place(t, p, "attn", 0, 2, 0.25);
	expect_place(t, p, "attn", 1, 1, 1.25);
	expect_place(t, p, "attn_norm", 0, 0, 0);
	expect_place(t, p, "qkv_proj", 0, 0, 0);
	expect_place(t, p, "kv_append", 0, 0, 0);
	expect_place(t, p, "rope", 1, 3, 0.25);
	expect_place(t, p, "activation", 1, 0, 1.5);
	cairn_plan_lanes_free(&l);
	cairn_plan_file_free(file);
	file = open_engine_plan(t, 1, "'how': 'priority', 'sms': 132", "", "");
	if (file && EXPECT(t, cairn_plan_lanes_make(&l, file, 0, &pipeline) == 0)) {
		EXPECT(t, p->num_lanes == 2 && p->lanes[1].priority == 1 && !p->lanes[1].sms);
		expect_place(t, p, "attn", 0, 1, 0.25);
		expect_place(t, p, "qkv_proj", 1, 0, 0.25);
		cairn_plan_lanes_free(&l);
	}
	cairn_plan_file_free(file);
}

/* Collectives have a lane of their own, and the norms that they are take the places of their parts. */
static void lanes_of_ranks(struct cairn_test *t)
{
	struct cairn_plan_file *file = open_engine_plan(t, 2, "'how': 'priority', 'sms': 132",
		"'op': 'mlp_norm', 'nano': 1, 'start': 1.5, 'r': 1, 'how': 'alone'",
		"'op': 'mlp_norm', 'nano': 1, 'start': 1.5, 'r': 0.5, 'how': 'priority'");
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_lanes l;

	if (!file || !EXPECT(t, engine_pipeline(&pipeline, 2) == 0))
		return;
	if (EXPECT(t, cairn_plan_lanes_make(&l, file, 0, &pipeline) == 0)) {
		EXPECT(t, l.plan.num_lanes == 3 && !l.plan.lanes[2].sms);
		EXPECT(t, l.plan.lanes[1].priority && l.plan.lanes[2].priority);
		expect_place(t, &l.plan, "attn", 0, 1, 0.25);
		expect_place(t, &l.plan, "qkv_proj", 0, 0, 0);
		expect_place(t, &l.plan, "gate_up_proj", 1, 0, 1.5);
		for (int i = 0; i < 4; i++)
			expect_place(t, &l.plan, i < 2 ? "attn_norm" : "mlp_norm", i % 2, 2, 1.5);
		cairn_plan_lanes_free(&l);
	}
	for (int32_t i = 0; i < file->entries[0].num_parts; i++) {
		struct cairn_plan_file_part *p = &file->entries[0].parts[i];

		p->how = strstr(p->op, "norm") ? CAIRN_SEARCH_GREEN : CAIRN_SEARCH_STREAMS;
		p->sms = 16;
	}
	if (EXPECT(t, cairn_plan_lanes_make(&l, file, 0, &pipeline) == 0)) {
		EXPECT(t, l.plan.num_lanes == 4 && l.plan.lanes[3].sms == 16 && l.plan.lanes[3].priority);
		EXPECT(t, !l.plan.lanes[1].priority && !l.plan.lanes[2].priority);
		expect_place(t, &l.plan, "mlp_norm", 1, 3, 1.5);
		expect_place(t, &l.plan, "down_proj", 1, 0, 1.5);
		cairn_plan_lanes_free(&l);
	}
	cairn_plan_file_free(file);
}

static void refusals(struct cairn_test *t)
{
	static const struct {
		const char *how, *from, *to, *want;
		int error;
	} all[] = {
		{ "'how': 'streams', 'sms': 132", "{'op': 'o', 'nano': 1", "{'op': 'p', 'nano': 1",
		  "entries[0]: operation o of nano-batch 1 is missing", -EINVAL },
		{ "'how': 'streams', 'sms': 132", "'parts': [", "'parts': [{'op': 'x', 'nano': 0, 'start': 0,"
		  "'r': 1, 'how': 'alone', 'sms': 132},",
		  "entries[0]: operation x of nano-batch 0 is none of this model", -EINVAL },
		{ "'how': 'queue', 'sms': 40", "", "", "entries[0]: how: no engine runs parts by queue",
		  -EOPNOTSUPP },
	};
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_lanes l;

	if (!EXPECT(t, engine_pipeline(&pipeline, 1) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct cairn_plan_file *file = open_engine_plan(t, 1, all[i].how, all[i].from, all[i].to);

		if (!file)
			continue;
		EXPECT(t, cairn_plan_lanes_make(&l, file, 0, &pipeline) == all[i].error);
		EXPECT_CONTAINS(t, cairn_last_error(), all[i].want);
		cairn_plan_file_free(file);
	}
}

/* With more splits of the SMs than lanes, parts share the lane with the nearest number. */
static void few_lanes(struct cairn_test *t)
{
	struct cairn_plan_file *file = open_engine_plan(t, 1, "'how': 'green', 'sms': 40", "", "");
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_lanes l;
	int attention = 0;

	if (!file || !EXPECT(t, engine_pipeline(&pipeline, 1) == 0))
		return;
	for (int32_t i = 0; i < file->entries[0].num_parts; i++) {
		struct cairn_plan_file_part *p = &file->entries[0].parts[i];

		p->how = CAIRN_SEARCH_GREEN;
		p->r = 0.5;
		p->sms = strcmp(p->op, "attn") ? 124 - 8 * i : 16 + 8 * i;
	}
	if (EXPECT(t, cairn_plan_lanes_make(&l, file, 0, &pipeline) == 0)) {
		EXPECT(t, l.plan.num_lanes == CAIRN_NANO_LANES);
		for (int32_t i = 0; i < l.plan.num_places; i++) {
			const struct cairn_nano_place *p = &l.plan.places[i];
			int32_t sms = l.plan.lanes[p->lane].sms;

			/* attention has the first SMs, products the others */
			EXPECT(t, strcmp(p->op, "attn") ? sms < 0 : sms > 0);
			attention += !strcmp(p->op, "attn");
		}
		EXPECT(t, attention == 2);
		cairn_plan_lanes_free(&l);
	}
	cairn_plan_file_free(file);
}

static void from_files(struct cairn_test *t)
{
	char path[PATH_MAX], folder[PATH_MAX];
	char *text = engine_plan_text(1, "'how': 'streams', 'sms': 132", "", "");
	struct cairn_plan_file_for here = engine_plan_here;
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_engine *plans = NULL;
	struct cairn_model_config c;
	const struct cairn_nano_plans *set;

	if (!EXPECT(t, text && engine_pipeline(&pipeline, 1) == 0 && cairn_model_shape("llama3-8b", &c) == 0))
		return;
	cairn_tmpfile(t, path, sizeof(path), "G_plan.json", text, strlen(text));
	if (EXPECT(t, cairn_plan_engine_open(&plans, path, &c, &here) == 0)) {
		set = cairn_plan_engine_plans(plans);
		EXPECT(t, set->num == 1 && set->plans[0].num_batches == 2);
		EXPECT(t, set->pick(set->ctx, 1024, 384, 1000) == 0);
		EXPECT(t, set->pick(set->ctx, 1023, 384, 1000) < 0);
		/* the second entry gains too little */
		EXPECT(t, set->pick(set->ctx, 2048, 768, 1024) < 0);
		cairn_plan_engine_close(plans);
	} else {
		cairn_note(t, "%s", cairn_last_error());
	}
	/* in a folder, the name says which file */
	snprintf(folder, sizeof(folder), "%s", cairn_tmpdir(t));
	EXPECT(t, cairn_plan_engine_open(&plans, folder, &c, &here) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "_tp1.json");
	cairn_plan_file_name("G", pipeline.shape, 1, path, sizeof(path));
	cairn_tmpfile(t, folder, sizeof(folder), path, text, strlen(text));
	EXPECT(t, cairn_plan_engine_open(&plans, cairn_tmpdir(t), &c, &here) == 0);
	cairn_plan_engine_close(plans);
	/* the share of one of two ranks is another model, but the number of ranks is what the text names */
	if (EXPECT(t, engine_config(&c, 2) == 0)) {
		EXPECT(t, cairn_plan_engine_open(&plans, folder, &c, &here) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "ranks: the plan is for 1, not for 2");
	}
	EXPECT(t, engine_config(&c, 1) == 0);
	here.impl = "cuda:fp8";
	EXPECT(t, cairn_plan_engine_open(&plans, folder, &c, &here) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "impl: the plan is for \"none\", not for \"cuda:fp8\"");
	free(text);
	text = engine_plan_text(1, "'how': 'streams', 'sms': 132", "'measured_ms': 30.5",
				"'measured_ms': 33.4");
	cairn_tmpfile(t, path, sizeof(path), "no_gain.json", text, strlen(text));
	EXPECT(t, cairn_plan_engine_open(&plans, path, &c, &engine_plan_here) == -ENOENT);
	EXPECT_CONTAINS(t, cairn_last_error(), "no_gain.json: no entry has a measured gain of 1.02");
	free(text);
}

static const struct cairn_unit units[] = {
	{ "lanes", lanes },
	{ "lanes_of_ranks", lanes_of_ranks },
	{ "refusals", refusals },
	{ "few_lanes", few_lanes },
	{ "from_files", from_files },
};

const struct cairn_family cairn_plan_engine_family = {
	.stage = "serving",
	.name = "plan_engine",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
