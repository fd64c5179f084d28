// SPDX-License-Identifier: Apache-2.0
/* plan_file_test - writes, reads, refuses and picks plans */
#include <limits.h>
#include <sys/stat.h>

#include "conformance/harness.h"
#include "serving/plan/plan_file_test.h"
#include "serving/search/search_test.h"

/* Reads plan_text with `from` replaced by `to`. */
static int read_text(struct cairn_test *t, const char *from, const char *to,
		     const struct cairn_plan_file_for *want,
		     struct cairn_plan_file **plan)
{
	char *text = cairn_json_text(plan_text, from, to), path[PATH_MAX];
	int ret;

	*plan = NULL;
	if (!EXPECT(t, text))
		return -EINVAL;
	cairn_tmpfile(t, path, sizeof(path), "plan.json", text, strlen(text));
	free(text);
	ret = cairn_plan_file_read(plan, path, want);
	EXPECT(t, !ret == !!*plan);
	return ret;
}

static void members(struct cairn_test *t)
{
	struct cairn_plan_file *plan;
	const struct cairn_plan_file_entry *e;

	if (!EXPECT(t, read_text(t, "'G'", "'G'", &plan_here, &plan) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	e = plan->entries;
	EXPECT(t, plan->num_entries == 4 && plan->ranks == 1 && plan->sms == 132);
	EXPECT(t, e->rows == 1024 && e->decode_eighths == 3 && e->context == 1024 && e->nanos == 2);
	EXPECT(t, e->cuts[0] == 384 && e->decode[0] == 300 && e->decode[1] == 84 && e->num_parts == 4);
	EXPECT(t, !strcmp(e->parts[1].op, "attn") && e->parts[1].nano == 0 && e->parts[1].start == 0.25 &&
		  e->parts[1].r == 0.5 && e->parts[1].how == CAIRN_SEARCH_QUEUE && e->parts[1].sms == 64);
	EXPECT(t, e->sequential_ms == 33 && e->predicted_ms == 30 && e->gap == 0.01);
	EXPECT(t, e->measured_sequential_ms == 33.5 && e->measured_ms == 30.5);
	EXPECT(t, isinf(e[1].gap) && e[3].nanos == 3 && e[3].cuts[1] == 1024);
	cairn_plan_file_free(plan);
}

/* What is written is read again, byte for byte. */
static void round_trip(struct cairn_test *t)
{
	struct cairn_plan_file *plan, *again = NULL;
	char path[PATH_MAX], name[256];

	if (!EXPECT(t, read_text(t, "'G'", "'G'", &plan_here, &plan) == 0))
		return;
	snprintf(path, sizeof(path), "%s/written.json", cairn_tmpdir(t));
	EXPECT(t, cairn_plan_file_write(plan, path) == 0);
	EXPECT(t, cairn_plan_file_read(&again, path, &plan_here) == 0);
	if (EXPECT(t, again && again->num_entries == plan->num_entries))
		EXPECT(t, !memcmp(again->entries, plan->entries, sizeof(*plan->entries) * 4));
	cairn_plan_file_name("NVIDIA H200", plan->shape, plan->ranks, name, sizeof(name));
	EXPECT(t, !strcmp(name, "NVIDIA_H200_4x64-0a_tp1.json"));
	snprintf(path, sizeof(path), "%s/none/written.json", cairn_tmpdir(t));
	EXPECT(t, cairn_plan_file_write(plan, path) == -EIO);
	cairn_plan_file_free(again);
	cairn_plan_file_free(plan);
}

static void refusals(struct cairn_test *t)
{
	static const struct {
		const char *from, *to, *want;
	} all[] = {
		{ "'v': 2", "'v': 1", "v: " },
		{ "'gpu': 'G'", "'gpu': 'H'", "gpu: the plan is for \"H\", not for \"G\"" },
		{ "'none'", "'cpu'", "impl: the plan is for \"cpu\", not for \"none\"" },
		{ "0123456789abcdef", "0123456789abcdee", "kernels: the plan is for" },
		{ "4x64-0a", "4x64-0b", "shape: the plan is for" },
		{ "'ranks': 1", "'ranks': 2", "ranks: the plan is for 2, not for 1" },
		{ "58.0}]}", "58.0}]", "plan.json: " },	/* truncated */
		{ "'cuts': [384]", "'cuts': [1024]", "entries[0].cuts[0]" },
		{ "'cuts': [384]", "'cuts': [0]", "entries[0].cuts[0]" },
		{ "'cuts': [384]", "'cuts': []", "entries[0].cuts: must have" },
		{ "'cuts': [384]", "'cuts': [384.5]", "entries[0].cuts[0]" },
		{ "'cuts': [384]", "'cuts': [384, 256]", "entries[0].decode" },
		{ "'cuts': [384]", "'cuts': [1, 2, 3, 4]", "entries[0].cuts" },
		{ "[512, 1024]", "[1024, 512]", "entries[3].cuts: must ascend" },
		{ "[512, 1024]", "[512, 512]", "entries[3].cuts: must ascend" },
		{ "[300, 84]", "[385, 0]", "entries[0].decode: has more rows" },
		{ "[300, 84]", "[100, 84]", "entries[0].decode: does not have" },
		{ "[300, 84]", "[300, -84]", "entries[0].decode[1]" },
		{ "'context': 1024", "'context': 1000", "entries[0].context: must be a power of two" },
		{ "'sms': 64", "'sms': 133", "entries[0].parts[1].sms" },
		{ "'sms': 64", "'sms': 0", "entries[0].parts[1].sms" },
		{ "'start': 0.25", "'start': NaN", "plan.json: " },
		{ "'start': 0.25", "'start': 'NaN'", "entries[0].parts[1].start" },
		{ "'start': 0.25", "'start': -1", "entries[0].parts[1].start" },
		{ "'start': 0.25", "'start': 0.35", "entries[0].parts[2].start: is less" },
		{ "'r': 0.5", "'r': 1.5", "entries[0].parts[1].r" },
		{ "'r': 0.5", "'r': 0", "entries[0].parts[1].r" },
		{ "'r': 0.5", "'r': 1", "entries[0].parts[1].how" },
		{ "'queue'", "'fast'", "entries[0].parts[1].how" },
		{ "'nano': 1", "'nano': 2", "entries[0].parts[2].nano" },
		{ "'op': 'qkv', 'nano': 1", "'op': 'qkv', 'nano': 0", "parts[2].op: the nano-batch has" },
		{ "'measured_ms': 30.5", "'measured_ms': null", "entries[0].measured_ms: is null" },
		{ ", 'measured_ms': 30.5", "", "entries[0].measured_ms: is missing" },
		{ "'measured_sequential_ms': 33.5", "'measured_sequential_ms': null",
		  "entries[0].measured_sequential_ms: is null" },
		{ "'predicted_ms': 30.0", "'predicted_ms': 0", "entries[0].predicted_ms" },
	};
	struct cairn_plan_file *plan;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		if (!EXPECT(t, read_text(t, all[i].from, all[i].to, &plan_here, &plan) == -EINVAL))
			cairn_note(t, "'%s' for '%s' is accepted", all[i].to, all[i].from);
		EXPECT_CONTAINS(t, cairn_last_error(), all[i].want);
		cairn_plan_file_free(plan);
	}
	EXPECT(t, cairn_plan_file_read(&plan, "/nowhere/plan.json", &plan_here) == -EIO);
}

/* A plan that has not been measured can be read in order to measure it, and nothing is picked from it. */
static void not_measured(struct cairn_test *t)
{
	struct cairn_plan_file_for want = plan_here;
	struct cairn_plan_file *plan;

	want.measured = false;
	EXPECT(t, read_text(t, "33.5, 'measured_ms': 30.5", "null, 'measured_ms': null", &want, &plan) == 0);
	if (plan)
		EXPECT(t, plan->entries[0].measured_ms == 0 &&
			  !cairn_plan_file_pick(plan, 1024, 384, 1024) &&
			  cairn_plan_file_pick(plan, 1024, 384, 4096) == &plan->entries[2]);
	cairn_plan_file_free(plan);
	EXPECT(t, read_text(t, "'measured_ms': 30.5", "'measured_ms': null", &want, &plan) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "no measured gain");
	cairn_plan_file_free(plan);
}

/* Entry 1 gains 1.3% and is never picked; the others gain at least 9%. */
static void pick(struct cairn_test *t)
{
	static const struct {
		int rows, decode, context, want;
	} all[] = {
		{ 1024, 384, 1024, 0 }, { 1280, 480, 1024, 0 }, { 1023, 384, 1024, -1 },
		{ 1281, 480, 1024, -1 }, { 1024, 320, 1024, 0 }, { 1024, 319, 1024, -1 },
		{ 1024, 448, 1024, 0 }, { 1024, 449, 1024, -1 }, { 1024, 384, 725, 0 },
		{ 1024, 384, 724, -1 }, { 1024, 384, 1448, 0 }, { 1024, 384, 1449, -1 },
		{ 1024, 384, 4096, 2 }, { 1024, 384, 65536, -1 }, { 1024, 768, 1024, -1 },
		{ 1024, 0, 0, -1 }, { 2047, 768, 1024, -1 }, { 2048, 768, 1024, 3 },
		{ 2560, 960, 1000, 3 }, { 9999, 3750, 1, -1 },
		{ 1, 1, 1, -1 },
	};
	struct cairn_plan_file *plan;

	if (!EXPECT(t, read_text(t, "'G'", "'G'", &plan_here, &plan) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		const struct cairn_plan_file_entry *e = cairn_plan_file_pick(plan, all[i].rows, all[i].decode,
									      all[i].context);

		if (!EXPECT(t, e == (all[i].want < 0 ? NULL : &plan->entries[all[i].want])))
			cairn_note(t, "case %zu: entry %d", i, e ? (int)(e - plan->entries) : -1);
	}
	/* exactly 1.02 is enough */
	plan->entries[1].measured_ms = 40.0 / 1.02;
	EXPECT(t, cairn_plan_file_pick(plan, 1024, 768, 1024) == &plan->entries[1]);
	plan->entries[1].measured_ms = 40.0 / 1.0199;
	EXPECT(t, !cairn_plan_file_pick(plan, 1024, 768, 1024));
	/* without decoding rows, the context does not matter */
	plan->entries[0].decode_eighths = 0;
	EXPECT(t, cairn_plan_file_pick(plan, 1100, 0, 0) == &plan->entries[0]);
	cairn_plan_file_free(plan);
}

static const struct cairn_unit units[] = {
	{ "members", members },
	{ "round_trip", round_trip },
	{ "refusals", refusals },
	{ "not_measured", not_measured },
	{ "pick", pick },
};

const struct cairn_family cairn_plan_file_family = {
	.stage = "serving",
	.name = "plan_file",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
