// SPDX-License-Identifier: Apache-2.0
/* profile_test - from a profile to a measured plan and an engine that is given it, as a user would */
#include "conformance/harness.h"
#include "serving/base/json.h"
#include "serving/model/model_test.h"
#include "serving/profile/nano_ablation_test.h"

#define MAX_ARGS	28

/* Runs `cairn ARGS` and returns its exit status; out: [16 KiB], its output. */
static int cairn(char *out, const char *const *args)
{
	char *argv[MAX_ARGS + 2] = { "cairn" };

	for (int i = 0; i < MAX_ARGS && args[i]; i++)
		argv[i + 1] = (char *)args[i];
	return cairn_spawn(argv, out, 16384);
}

#define CAIRN(out, ...) cairn(out, (const char *const[MAX_ARGS + 1]){ __VA_ARGS__, NULL })

static void expect_ok(struct cairn_test *t, int status, const char *out)
{
	if (!EXPECT(t, status == 0))
		cairn_note(t, "%s", out);
}

/* Returns how many of the *num entries of a plan file have been measured, or -1 if it is none. */
static int count_measured(const char *path, int *num)
{
	json_t *root = json_load_file(path, 0, NULL), *entries = json_object_get(root, "entries");
	int measured = 0;

	*num = (int)json_array_size(entries);
	for (int i = 0; i < *num; i++)
		measured += json_is_real(json_object_get(json_array_get(entries, (size_t)i), "measured_ms"));
	json_decref(root);
	return entries ? measured : -1;
}

/* tp: ranks. Two ranks share the model: their sums are part of the profile and of the plan. */
static void plan_of(struct cairn_test *t, const char *model, const char *tp)
{
	char out[16384], profile[128], plan[128], rows[128];
	int num, status, tries = 0;

	snprintf(profile, sizeof(profile), "%s/profile%s.jsonl", cairn_tmpdir(t), tp);
	snprintf(plan, sizeof(plan), "%s/plan%s.json", cairn_tmpdir(t), tp);
	snprintf(rows, sizeof(rows), "%s/rows%s.jsonl", cairn_tmpdir(t), tp);
	/* on a busy host, the times of two lengths may come out in the wrong order */
	do {
		expect_ok(t, CAIRN(out, "profile", "--impl", "cpu", "--model", model, "--out", profile,
				   "--short", "--rows", "128,256", "--batches", "1,16", "--contexts",
				   "256,16", "--prompts", "16,256", "--pair-rows", "128", "--pair-batches",
				   "16", "--how", "streams", "--alone-seconds", "0", "--pair-seconds", "0",
				   "--tp", tp), out);
		EXPECT_CONTAINS(t, out, " rows in ");
		status = CAIRN(out, "search", "--model", model, "--profile", profile, "--rows", "256",
			       "--decode", "4", "--context", "64", "--nanos", "2", "--gap", "60", "--out",
			       plan, "--json", rows, "--tp", tp);
	} while (status && strstr(out, "does not grow with its keys") && ++tries < 5);
	expect_ok(t, status, out);
	EXPECT(t, !strstr(out, "will refuse the plan"));
	EXPECT(t, (strstr(out, "mlp_norm   network") != NULL) == (*tp > '1'));
	expect_ok(t, CAIRN(out, "search", "--model", model, "--measure", plan, "--impl", "cpu", "--turns",
			   "1", "--turn-seconds", "0", "--json", rows, "--tp", tp), out);
	/* whether this host has a plan that gains depends on the load of its cores */
	EXPECT(t, count_measured(plan, &num) == num);
	cairn_note(t, "%d plans of %s ranks", num, tp);
	EXPECT(t, num == 0 || strstr(out, "sequential"));
	expect_ok(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?\n", "--plan", plan,
			   "--tp", tp, "--collective-timeout", "60"), out);
	/* the embedded model has another shape */
	EXPECT_CONTAINS(t, out, "shape: the plan is for");
}

static void end_to_end(struct cairn_test *t)
{
	struct golden g;

	if (system("cbc -quit >/dev/null 2>&1")) {
		cairn_skip(t, "no program cbc (package coinor-cbc)");
		return;
	}
	if (open_golden(t, &g, "llama3_tiny"))
		return;
	plan_of(t, g.dir, "1");
	plan_of(t, g.dir, "2");
	close_golden(&g);
}

/* Measured times get into the file, and a row into the records for each way to run the pass. */
static void measures(struct cairn_test *t)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	char out[16384], plan[128], rows[128], text[16384] = "";
	struct cairn_plan_file *file;
	struct cairn_model_config c;
	struct cairn_impl impl;
	struct golden g;
	FILE *f;
	int num;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny") ||
	    !EXPECT(t, cairn_model_config_load(g.dir, &c) == 0 && impl.device_info(&info) == 0))
		return;
	file = make_plan(t, &c, "streams");
	if (!file)
		return;
	snprintf(file->gpu, sizeof(file->gpu), "%s", info.name);
	strcpy(file->impl, "cpu");
	snprintf(file->kernels, sizeof(file->kernels), "%s", cairn_kernel_digest());
	snprintf(plan, sizeof(plan), "%s/known.json", cairn_tmpdir(t));
	snprintf(rows, sizeof(rows), "%s/known.jsonl", cairn_tmpdir(t));
	EXPECT(t, cairn_plan_file_write(file, plan) == 0 && count_measured(plan, &num) == 0);
	expect_ok(t, CAIRN(out, "search", "--model", g.dir, "--measure", plan, "--impl", "cpu", "--turns",
			   "1", "--turn-seconds", "0", "--json", rows), out);
	EXPECT(t, count_measured(plan, &num) == 1 && num == 1);
	f = fopen(rows, "r");
	EXPECT(t, f && fread(text, 1, sizeof(text) - 1, f) > 0);
	if (f)
		fclose(f);
	for (const char *const *how = (const char *const[]){ "sequential", "split", "streams", NULL }; *how;
	     how++) {
		char want[64];

		snprintf(want, sizeof(want), "\"how\":\"%s\",\"rows\":224,\"decode\":24", *how);
		EXPECT_CONTAINS(t, text, want);
	}
	EXPECT_CONTAINS(t, text, "\"predicted_gain\":1.0000");
	cairn_plan_file_free(file);
	close_golden(&g);
}

static void refused(struct cairn_test *t)
{
	char out[16384];

	EXPECT(t, CAIRN(out, "profile", "--shape", "llama3-8b") == 2);
	EXPECT_CONTAINS(t, out, "--out is required");
	EXPECT(t, CAIRN(out, "profile", "--out", "/nowhere/x", "--shape", "llama9") == 2);
	EXPECT_CONTAINS(t, out, "--shape: 'llama9'");
	EXPECT(t, CAIRN(out, "profile", "--out", "x", "--shape", "llama3-8b", "--rows", "1,x") == 2);
	EXPECT_CONTAINS(t, out, "--rows: '1,x' is not a list");
	EXPECT(t, CAIRN(out, "search", "--shape", "llama3-8b", "--measure", "/nowhere", "--impl",
			"cpu") == 1);
	EXPECT_CONTAINS(t, out, "/nowhere");
}

static const struct cairn_unit units[] = {
	{ "end_to_end", end_to_end },
	{ "measures", measures },
	{ "refused", refused },
};

const struct cairn_family cairn_profile_family = {
	.stage = "serving",
	.name = "profile",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
