// SPDX-License-Identifier: Apache-2.0
/* search_test - searches with a profile of known closed forms, in the program and by its command */
#include <fcntl.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/cli/commands.h"
#include "serving/plan/plan_file.h"
#include "serving/search/search_test.h"

/* Opens a pass of Llama-3-8B. */
static int open_pass(struct cairn_test *t, const struct cairn_search_pass *pass,
		     struct cairn_search_problem *p,
		     struct cairn_search_pipeline *pipeline, struct cairn_search_profile **profile)
{
	struct cairn_model_config c;
	char path[PATH_MAX];

	closed_profile(t, pass->rows, path, sizeof(path));
	EXPECT(t, cairn_model_shape("llama3-8b", &c) == 0 && cairn_search_pipeline(pipeline, &c) == 0);
	return EXPECT(t, cairn_search_profile_read(profile, path) == 0) &&
	       EXPECT(t, cairn_search_problem(p, pipeline, &c, *profile, pass, ~0u) == 0);
}

/* The search's times are those of the simulation, and its plan is read again as it was found. */
static void search(struct cairn_test *t)
{
	static const struct cairn_search_pass pass = { 512, 256, 4096 };
	static const struct cairn_search_options options = { 20, 0.05, 2, NULL };
	static struct cairn_search_problem p;
	static struct cairn_search_found found;
	struct cairn_search_pipeline pipeline;
	struct cairn_search_profile *profile = NULL;
	struct cairn_plan_file *plan = NULL, *again = NULL;
	struct cairn_plan_file_for want = { "closed form", "none", "0123456789abcdef",
					    pipeline.shape, 1, false };
	const struct cairn_search_try *best;
	char path[PATH_MAX];
	double period = 0;

	if (!has_solver(t) || !open_pass(t, &pass, &p, &pipeline, &profile))
		return;
	if (!EXPECT(t, cairn_search(&p, &options, &found) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	best = &found.tries[found.best];
	EXPECT(t, cairn_search_sim_period(&p, &found.parts, &found.schedule, CAIRN_SEARCH_FIXED,
					  &period) == 0);
	EXPECT(t, fabs(period - best->stage2_ms) <= 1e-6 * period);
	EXPECT(t, best->pass_ms < found.sequential_ms);
	EXPECT(t, best->stage1_ms <= best->stage2_ms && best->stage2_ms * p.num_layers <= best->pass_ms);
	EXPECT(t, best->fluid_ms <= best->pass_ms * (1 + 1e-9) && best->stage2_gap <= 0.05);
	EXPECT(t, fabs(found.sequential_ms - p.num_layers * cairn_search_sequential_ms(&p)) < 1e-9);
	cairn_note(t, "sequential %.3f ms, a pass %.3f ms", found.sequential_ms, best->pass_ms);
	snprintf(path, sizeof(path), "%s/plan.json", cairn_tmpdir(t));
	EXPECT(t, cairn_plan_file_create(&plan, profile, &pipeline) == 0);
	EXPECT(t, cairn_plan_file_add(plan, &p, &found) == 0 && cairn_plan_file_write(plan, path) == 0);
	if (!EXPECT(t, cairn_plan_file_read(&again, path, &want) == 0))
		cairn_note(t, "%s", cairn_last_error());
	else
		EXPECT(t, again->num_entries == 1 && again->entries[0].num_parts == found.parts.num_parts &&
			  again->entries[0].cuts[0] == found.schedule.size[0] &&
			  again->entries[0].decode_eighths == 4 && again->sms == 132 &&
			  fabs(again->entries[0].predicted_ms - best->pass_ms) < 1e-9 * best->pass_ms);
	cairn_plan_file_free(again);
	cairn_plan_file_free(plan);
	cairn_search_profile_free(profile);
}

/* Two tiles of rows can be cut once; a third nano-batch ends the search, and a single tile is an error. */
static void few_rows(struct cairn_test *t)
{
	static const struct cairn_search_options options = { 20, 0.1, 4, NULL };
	static struct cairn_search_problem p;
	static struct cairn_search_found found;
	struct cairn_search_pass pass = { 256, 128, 4096 };
	struct cairn_search_pipeline pipeline;
	struct cairn_search_profile *profile = NULL;

	if (!has_solver(t) || !open_pass(t, &pass, &p, &pipeline, &profile))
		return;
	EXPECT(t, cairn_search(&p, &options, &found) == 0 && found.num_tries == 1);
	cairn_search_profile_free(profile);
	profile = NULL;
	pass.rows = 128;
	if (open_pass(t, &pass, &p, &pipeline, &profile))
		EXPECT(t, cairn_search(&p, &options, &found) == -ERANGE);
	EXPECT_CONTAINS(t, cairn_last_error(), "128 rows cannot be cut into 2");
	cairn_search_profile_free(profile);
}

/* Runs the command in a child. Returns its exit status, with what it printed in text. */
static int command(struct cairn_test *t, const char *const *args, char *text, size_t len)
{
	char path[PATH_MAX], *argv[32] = { "cairn search" };
	int argc = 1, status = -1;
	ssize_t n = 0;
	pid_t pid;

	for (; args[argc - 1]; argc++)
		argv[argc] = (char *)args[argc - 1];
	snprintf(path, sizeof(path), "%s/output", cairn_tmpdir(t));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

		dup2(fd, 1);
		dup2(fd, 2);
		optind = 0;	/* the options of this test program have been read already */
		status = cairn_cmd_search(argc, argv);
		fflush(stdout);
		_exit(status);
	}
	if (EXPECT(t, pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status))) {
		int fd = open(path, O_RDONLY);

		n = read(fd, text, len - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = 0;
	return WEXITSTATUS(status);
}

static void commands(struct cairn_test *t)
{
	char profile[PATH_MAX], plan[PATH_MAX], text[16384];
	const char *const args[] = { "--shape", "mixtral-8x7b", "--profile", profile, "--rows", "512",
				     "--decode",
				     "4", "--nanos", "2", "--gap", "5", "--dump-lp", cairn_tmpdir(t),
					     "--out",
				     plan, NULL };

	if (!has_solver(t))
		return;
	closed_profile(t, 512, profile, sizeof(profile));
	snprintf(plan, sizeof(plan), "%s/plan.json", cairn_tmpdir(t));
	if (!EXPECT(t, command(t, args, text, sizeof(text)) == 0))
		cairn_note(t, "%s", text);
	EXPECT_CONTAINS(t, text, "on closed form, kernels 0123456789abcdef of table none");
	EXPECT_CONTAINS(t, text, "it will refuse the plan");
	EXPECT_CONTAINS(t, text, "512 rows, 256 of them decoding, context 1024");
	EXPECT_CONTAINS(t, text, "whole  mlp_norm moe");
	EXPECT_CONTAINS(t, text, "2 nano-batches: a layer ");
	EXPECT_CONTAINS(t, text, "compute |");
	EXPECT_CONTAINS(t, text, "memory  |");
	EXPECT(t, access(plan, R_OK) == 0);
	snprintf(plan, sizeof(plan), "%s/rows512_decode4_context1024_k2_stage2.lp", cairn_tmpdir(t));
	EXPECT(t, access(plan, R_OK) == 0);
}

static void bad_commands(struct cairn_test *t)
{
	static const struct {
		const char *args[10];
		int status;
		const char *want;
	} all[] = {
		{ { "--profile", "x" }, 2, "one of --model and --shape is required" },
		{ { "--shape", "llama3-8b" }, 2, "one of --profile and --measure is required" },
		{ { "--shape", "llama3-8b", "--profile", "/nowhere" }, 1, "/nowhere" },
		{ { "--shape", "llama3-8b", "--profile", "P", "--rows", "512,x" }, 2,
		  "--rows: '512,x' is not" },
		{ { "--shape", "llama3-8b", "--profile", "P", "--decode", "9" }, 2, "--decode: '9' is not" },
		{ { "--shape", "llama3-8b", "--profile", "P", "--context", "1000" }, 2,
		  "--context: 1000 is no" },
		{ { "--shape", "llama3-8b", "--profile", "P", "--rows", "640" }, 2, "no row of qkv_m640" },
		{ { "--shape", "llama3-8b", "--profile", "P", "--nanos", "5" }, 2, "--nanos: '5'" },
		{ { "--shape", "gemma2-9b", "--profile", "P" }, 2, "different attention windows" },
		{ { "--shape", "llama3-8b", "--profile", "P", "--rows", "512" }, 1, "install the package" },
	};
	char profile[PATH_MAX], text[4096];

	closed_profile(t, 512, profile, sizeof(profile));
	setenv("CAIRN_CBC", "no-such-solver", 1);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		const char *args[11] = { NULL };

		for (int k = 0; k < 10 && all[i].args[k]; k++)
			args[k] = strcmp(all[i].args[k], "P") ? all[i].args[k] : profile;
		if (!EXPECT(t, command(t, args, text, sizeof(text)) == all[i].status))
			cairn_note(t, "%s", text);
		EXPECT_CONTAINS(t, text, all[i].want);
	}
	unsetenv("CAIRN_CBC");
}

static const struct cairn_unit units[] = {
	{ "search", search },
	{ "few_rows", few_rows },
	{ "commands", commands },
	{ "bad_commands", bad_commands },
};

const struct cairn_family cairn_search_family = {
	.stage = "serving",
	.name = "search",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 3,
};
