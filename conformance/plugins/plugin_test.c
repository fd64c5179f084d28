// SPDX-License-Identifier: Apache-2.0
/* plugin_test - plug-ins that are complete, older, incompatible, crashing or hanging */
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/harness.h"
#include "conformance/suite/spawn.h"

/* Sets the path of a test plug-in beside this program; skips the test if the plug-in is missing. */
static int plugin(struct cairn_test *t, const char *name, char *path, size_t len)
{
	char file[64];

	snprintf(file, sizeof(file), "%s_plugin.so", name);
	if (cairn_beside(file, path, len))
		return 1;
	cairn_skip(t, "%s is not in the directory of this program", file);
	return 0;
}

static int check(const char *path, const char *glob, char *out, size_t len)
{
	char *argv[] = { "cairn", "check", "--impl", (char *)path, "--drawn", "0", (char *)glob, NULL };

	return cairn_spawn(argv, out, len);
}

/* The same, with a list of must-pass cases. */
static int check_listed(const char *path, const char *list, const char *glob, char *out, size_t len)
{
	char *argv[] = { "cairn", "check", "--impl", (char *)path, "--drawn", "0", "--mustpass", (char *)list,
			 (char *)glob, NULL };

	return cairn_spawn(argv, out, len);
}

static void example_passes(struct cairn_test *t)
{
	char path[PATH_MAX], out[16384];

	if (!plugin(t, "example", path, sizeof(path)))
		return;
	EXPECT(t, check(path, "primitives.embedding", out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, " 0 failed");
	EXPECT(t, !strstr(out, "\n0 passed"));
	/* operations that the table lacks are skipped */
	EXPECT(t, check(path, "primitives.argmax.rows*", out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "0 passed, 0 failed");
}

static void old_table_is_cut(struct cairn_test *t)
{
	char path[PATH_MAX];
	struct cairn_impl impl;

	if (!plugin(t, "old", path, sizeof(path)))
		return;
	EXPECT(t, cairn_impl_open(path, &impl) == 0);
	EXPECT(t, impl.silu_mul && !impl.embedding && !impl.argmax && !impl.attn_paged);
	EXPECT(t, impl.mem_alloc == cairn_host_runtime.mem_alloc);
}

/* Table cuda with another kernel for decoding must have nothing that attends by itself, or needs a plan. */
static void steps_of_the_ladder(struct cairn_test *t)
{
	struct cairn_impl impl, cuda;

	if (cairn_impl_open("cuda", &cuda)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	EXPECT(t, cairn_impl_open("cuda:ladder2", &impl) == 0 && !strcmp(impl.name, "cuda:ladder2"));
	EXPECT(t, impl.gemm == cuda.gemm && impl.attn_paged && impl.attn_paged != cuda.attn_paged);
	EXPECT(t, impl.attn_paged_workspace != cuda.attn_paged_workspace && !impl.attn_plan);
	EXPECT(t, !impl.decode_step && !impl.decode_step_ranks);
	EXPECT(t, cairn_impl_open("cuda:ladder5", &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "'cuda:ladder5' is none of ref");
}

static void refused_by_name(struct cairn_test *t)
{
	char path[PATH_MAX], text[] = "not a shared object";
	struct cairn_impl impl;

	EXPECT(t, cairn_impl_open("./no/such.so", &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "./no/such.so");
	EXPECT(t, cairn_impl_open("cdua", &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "'cdua'");
	cairn_tmpfile(t, path, sizeof(path), "x.so", text, sizeof(text));
	EXPECT(t, cairn_impl_open(path, &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.so");
	if (!plugin(t, "bad", path, sizeof(path)))
		return;
	setenv("CAIRN_BAD_PLUGIN", "refuse", 1);
	EXPECT(t, cairn_impl_open(path, &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "does not serve ABI version 2");
	setenv("CAIRN_BAD_PLUGIN", "version", 1);
	EXPECT(t, cairn_impl_open(path, &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "abi_version: is 3, this suite has 2");
	unsetenv("CAIRN_BAD_PLUGIN");
	EXPECT(t, cairn_impl_open("libm.so.6", &impl) == -EINVAL);
	EXPECT(t, cairn_impl_open("/lib/x86_64-linux-gnu/libm.so.6", &impl) == -EINVAL);
}

/* A plug-in of an older ABI version is refused with its name, and the user is told what to do. */
static void older_version_is_named(struct cairn_test *t)
{
	static const struct { const char *how, *says; } rows[] = {
		{ "built_for_1",
			"bad_plugin.so: \"vendor\" 1.2 was built for ABI version 1; this suite needs "
				 "version 2: build it again against conformance/abi.h" },
		{ "built_for_1_whatever_is_asked", "\"vendor\" 1.2 was built for ABI version 1;" },
		{ "built_for_1_nameless", "bad_plugin.so: was built for ABI version 1;" },
	};
	char path[PATH_MAX], out[65536];
	struct cairn_impl impl;

	if (!plugin(t, "bad", path, sizeof(path)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		setenv("CAIRN_BAD_PLUGIN", rows[i].how, 1);
		EXPECT(t, cairn_impl_open(path, &impl) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].says);
		EXPECT(t, check(path, "primitives.embedding", out, sizeof(out)) == 2);
		EXPECT_CONTAINS(t, out, rows[i].says);
	}
	unsetenv("CAIRN_BAD_PLUGIN");
}

static void misbehaviour_on_load(struct cairn_test *t)
{
	static const struct { const char *how, *says; } rows[] = {
		{ "load_exit", "being loaded it exited with status 0" },
		{ "load_crash", "being loaded it was ended by signal 11" },
		{ "load_hang", "being loaded it was ended by signal 14" },
		{ "quote", "name, version: must be 1 to 63 characters" },
		{ "version_newline", "name, version: must be 1 to 63 characters" },
	};
	char path[PATH_MAX], out[65536];

	if (!plugin(t, "bad", path, sizeof(path)))
		return;
	setenv("CAIRN_TIMEOUT", "1", 1);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		setenv("CAIRN_BAD_PLUGIN", rows[i].how, 1);
		EXPECT(t, check(path, "primitives.embedding", out, sizeof(out)) == 2);
		EXPECT_CONTAINS(t, out, rows[i].says);
	}
	unsetenv("CAIRN_BAD_PLUGIN");
	unsetenv("CAIRN_TIMEOUT");
}

static void misbehaviour_costs_one_family(struct cairn_test *t)
{
	static const struct { const char *how, *says; } rows[] = {
		{ "crash", "were not run and count as failed" },
		{ "exit", "were not run and count as failed" },
		{ "error", "the call:" },
	};
	char path[PATH_MAX], out[65536];

	if (!plugin(t, "bad", path, sizeof(path)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *argv[] = { "cairn", "check", "--impl", path, "--drawn", "0", "primitives.embedding",
			"primitives.silu_mul.rows*", NULL };

		setenv("CAIRN_BAD_PLUGIN", rows[i].how, 1);
		EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 1);
		EXPECT_CONTAINS(t, out, rows[i].says);
		EXPECT_CONTAINS(t, out, "primitives.silu_mul # 0 passed, 0 failed");
	}
	unsetenv("CAIRN_BAD_PLUGIN");
}

/* With --mustpass a table may neither reject nor lack an operation. */
static void left_out_on_a_device(struct cairn_test *t)
{
	char path[PATH_MAX], list[PATH_MAX], out[65536];
	const char globs[] = "primitives.silu_mul.*\n";
	char *argv[] = { "cairn", "check", "--impl", path, "--mustpass", list, "primitives.silu_mul.rows1_*",
		"primitives.argmax.rows*", NULL };

	if (!plugin(t, "bad", path, sizeof(path)))
		return;
	cairn_tmpfile(t, list, sizeof(list), "list", globs, sizeof(globs) - 1);
	setenv("CAIRN_BAD_PLUGIN", "device", 1);
	EXPECT(t, check(path, "primitives.silu_mul", out, sizeof(out)) == 0);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "may not be skipped");
	EXPECT_CONTAINS(t, out, "not in table bad");
	EXPECT_CONTAINS(t, out, "primitives.argmax # 0 passed, 0 failed");
	setenv("CAIRN_BAD_PLUGIN", "error", 1);		/* the list applies to a host table, too */
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "may not be skipped");
	unsetenv("CAIRN_BAD_PLUGIN");
}

static void hang_is_killed(struct cairn_test *t)
{
	char path[PATH_MAX], out[65536];

	if (!plugin(t, "bad", path, sizeof(path)))
		return;
	setenv("CAIRN_BAD_PLUGIN", "hang", 1);
	setenv("CAIRN_TIMEOUT", "2", 1);
	EXPECT(t, check(path, "primitives.embedding", out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "TIMEOUT after 2 s");
	unsetenv("CAIRN_BAD_PLUGIN");
	unsetenv("CAIRN_TIMEOUT");
}

/*
 * Reads from fd until `text` has arrived or, if text is NULL, until all writers have closed it. Returns 0 on
 * end of file before text, or after 20 s without output.
 */
static int await_output(int fd, const char *text)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char out[4096];
	size_t used = 0;

	while (poll(&p, 1, 20000) > 0) {
		ssize_t n = read(fd, out + used, sizeof(out) - 1 - used);

		if (n <= 0)
			return !text;
		out[used + (size_t)n] = 0;
		if (text && strstr(out, text))
			return 1;
		used = text && used + (size_t)n < sizeof(out) - 1 ? used + (size_t)n : 0;
	}
	return 0;
}

/* Killing the runner, even with SIGKILL, also ends the running family, which would otherwise keep the
 * device busy. */
static void killed_takes_its_family(struct cairn_test *t)
{
	char path[PATH_MAX];
	int fds[2];
	pid_t pid;

	if (!plugin(t, "bad", path, sizeof(path)) || !EXPECT(t, pipe(fds) == 0))
		return;
	pid = fork();
	if (pid == 0) {
		setenv("CAIRN_BAD_PLUGIN", "hang", 1);
		dup2(fds[1], 1);
		close(fds[0]);
		close(fds[1]);
		execl("/proc/self/exe", "cairn", "check", "--impl", path, "primitives.embedding", NULL);
		_exit(127);
	}
	close(fds[1]);
	EXPECT(t, pid > 0 && await_output(fds[0], "hanging"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	EXPECT(t, await_output(fds[0], NULL));
	close(fds[0]);
}

/* If a plug-in has a function with the same name as one of ours, its own is judged. */
static void own_function_is_judged(struct cairn_test *t)
{
	char path[PATH_MAX], out[65536];

	if (!plugin(t, "copy", path, sizeof(path)))
		return;
	EXPECT(t, check(path, "primitives.rmsnorm.rows19_dim64_bf16", out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "elements bad");
}

/* A plug-in that lacks a function does not get ours: it is refused with the function's name. */
static void missing_name_is_named(struct cairn_test *t)
{
	char path[PATH_MAX];
	struct cairn_impl impl;

	if (!plugin(t, "needy", path, sizeof(path)))
		return;
	EXPECT(t, cairn_impl_open(path, &impl) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "needy_plugin.so: undefined symbol: cairn_rmsnorm_cpu");
}

#define EMBEDDING	"primitives.embedding.rows7_dim64_vocab100_bf16.normal"
#define UNKNOWN		"primitives.embedding.reject_unknown_members"
#define FAR		"primitives.embedding.far_rows5_dim16384_vocab270000_bf16.normal"
#define GEMM		"primitives.gemm.m1_n1_k8_f32.normal"

/* Plug-ins that break a rule without wrong values in a single call are caught; correct ones pass. */
static void rules_beside_the_values(struct cairn_test *t)
{
	static const struct { const char *how, *glob, *says; } rows[] = {
		{ "nothing", EMBEDDING, NULL },
		{ "nothing", GEMM, NULL },
		{ "device_defers", EMBEDDING, NULL },
		{ "reads_past", EMBEDDING, "read outside of it, 0 bytes past its end" },
		{ "reads_another_row", FAR, "read element 32768, which the call may not touch" },
		{ "nothing", FAR, NULL },
		{ "reads_before", EMBEDDING, "read outside of it, 64 bytes before it" },
		{ "writes_past", EMBEDDING, "wrote outside of it, 2048 bytes past its end" },
		{ "writes_before", EMBEDDING, "wrote outside of it, 2048 bytes before it" },
		{ "workspace_past", GEMM, "workspace: wrote outside of it, 0 bytes past its end" },
		{ "workspace_before", GEMM, "workspace: written outside: 1 bytes before it" },
		{ "query_crashes", GEMM, "the workspace query crashes when the pointers are NULL" },
		{ "query_depends_on_pointers", GEMM, "the workspace query gives 768 bytes, and 512 when" },
		{ "query_needs_pointers", GEMM, "the workspace query returns -22 when the pointers are" },
		{ "after_itself", EMBEDDING, "with the same inputs, gave other bits" },
		{ "adds_what_is_behind", EMBEDDING, "read outside of it, 64 bytes past its end" },
		{ "from_the_third_on", EMBEDDING, "with the same inputs, gave other bits" },
		{ "every_second", EMBEDDING, "elements bad" },
		{ "remembers", EMBEDDING, "elements bad" },
		{ "exact_size", EMBEDDING, "call 3: " },
		{ "refuses_longer", EMBEDDING, "call 3: returned -95" },
		{ "takes_unknown", UNKNOWN, "returned 0, want -95" },
		{ "nothing", UNKNOWN, NULL },
		{ "reads_next_id", EMBEDDING, "ids: read outside of it, 0 bytes past its end" },
		{ "counts_in_workspace", GEMM, "call 5, with the same inputs, gave other bits" },
		{ "no_texts", "primitives.send_recv.absent_n2_bytes48_ring.normal", NULL },
		{ "plan_unchecked", "fused.attn_bsr.reject_arguments", "returned 0, want -22" },
		{ "device_keeps_args", EMBEDDING, "after the call" },
		{ "device_ignores_the_stream", EMBEDDING, "elements bad" },
	};
	char path[PATH_MAX], out[65536];

	if (!plugin(t, "stray", path, sizeof(path)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		int ok;

		setenv("CAIRN_STRAY_PLUGIN", rows[i].how, 1);
		ok = EXPECT(t, check(path, rows[i].glob, out, sizeof(out)) == (rows[i].says != NULL));
		ok &= EXPECT_CONTAINS(t, out, rows[i].says ? rows[i].says : "1 passed, 0 failed");
		ok &= EXPECT(t, !strstr(out, "CRASH"));
		if (!ok)
			cairn_note(t, "%s: %s", rows[i].how, out);
	}
	unsetenv("CAIRN_STRAY_PLUGIN");
}

/*
 * A far case that exceeds a device's whole memory is skipped with the number of bytes, and must-pass allows
 * that. Any other skip of a must-pass case fails.
 */
static void too_small_a_device(struct cairn_test *t)
{
	char path[PATH_MAX], list[PATH_MAX], out[65536];

	if (!plugin(t, "stray", path, sizeof(path)))
		return;
	cairn_tmpfile(t, list, sizeof(list), "mustpass.txt", "primitives.*\n", 13);
	setenv("CAIRN_STRAY_PLUGIN", "device_of_1_gib", 1);
	EXPECT(t, check_listed(path, list, FAR, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "SKIP needs 88475");
	EXPECT_CONTAINS(t, out, " bytes of memory, and the device has 1073741824");
	EXPECT_CONTAINS(t, out, "0 passed, 0 failed, 1 skipped");
	EXPECT(t, check_listed(path, list, EMBEDDING, out, sizeof(out)) == 0);
	setenv("CAIRN_STRAY_PLUGIN", "device_refuses", 1);
	EXPECT(t, check_listed(path, list, EMBEDDING, out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "may not be skipped (--mustpass)");
	unsetenv("CAIRN_STRAY_PLUGIN");
}

/* A workspace that exceeds memory is not touched: the case is skipped with its size. */
static void too_large_a_workspace(struct cairn_test *t)
{
	char path[PATH_MAX], out[65536];

	if (!plugin(t, "stray", path, sizeof(path)))
		return;
	setenv("CAIRN_STRAY_PLUGIN", "workspace_of_a_pebibyte", 1);
	EXPECT(t, check(path, GEMM, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "SKIP needs a workspace of 1125899906842624 bytes, and memory has ");
	EXPECT_CONTAINS(t, out, "0 passed, 0 failed, 1 skipped");
	unsetenv("CAIRN_STRAY_PLUGIN");
}

static const struct cairn_unit units[] = {
	{ "too_large_a_workspace", too_large_a_workspace },
	{ "too_small_a_device", too_small_a_device },
	{ "example_passes", example_passes },
	{ "old_table_is_cut", old_table_is_cut },
	{ "refused_by_name", refused_by_name },
	{ "steps_of_the_ladder", steps_of_the_ladder },
	{ "older_version_is_named", older_version_is_named },
	{ "misbehaviour_on_load", misbehaviour_on_load },
	{ "misbehaviour_costs_one_family", misbehaviour_costs_one_family },
	{ "left_out_on_a_device", left_out_on_a_device },
	{ "own_function_is_judged", own_function_is_judged },
	{ "missing_name_is_named", missing_name_is_named },
	{ "rules_beside_the_values", rules_beside_the_values },
	{ "hang_is_killed", hang_is_killed },
	{ "killed_takes_its_family", killed_takes_its_family },
};

const struct cairn_family cairn_plugin_family = {
	.stage = "conformance", .name = "plugin", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 12,
};
