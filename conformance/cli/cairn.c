// SPDX-License-Identifier: Apache-2.0
/* cairn - the one program: its commands */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "conformance/cli/attn_variant.h"
#include "conformance/cli/suite_command.h"
#include "conformance/doctor/doctor.h"
#include "conformance/tables/program.h"
#include "conformance/validate/validate.h"
#include "serving/bench/bench_serve.h"
#include "serving/cli/commands.h"
#include "serving/grammar/grammar.h"
#include "serving/serve/serve.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static const char *program = "cairn";

static int run_list(int argc, char **argv)
{
	return cairn_suite_command("list", argc, argv, program);
}

static int run_check(int argc, char **argv)
{
	return cairn_suite_command("check", argc, argv, program);
}

static int run_bench(int argc, char **argv)
{
	return cairn_suite_command("bench", argc, argv, program);
}

static int run_attn_variant(int argc, char **argv)
{
	return cairn_cmd_attn_variant(argc, argv, program);
}

static int run_version(int argc, char **argv)
{
	if (argc > 1) {
		fprintf(stderr, "cairn version: '%s': takes no arguments\n", argv[1]);
		return 2;
	}
	printf("cairn %s, source %s\n", CAIRN_VERSION, cairn_source_digest());
	return 0;
}

/* A name of two words precedes that of its first word alone. */
static const struct command {
	const char *name, *does;	/* does NULL: not for users */
	int (*run)(int argc, char **argv);	/* argv[0] is "cairn NAME" */
} commands[] = {
	{ "list", "names of all cases", run_list },
	{ "check", "judges implementations by the references; prints TAP", run_check },
	{ "bench serve", "times an OpenAI-compatible server", cairn_cmd_bench_serve },
	{ "bench", "times what it has verified", run_bench },
	{ "attn-variant", "compiles, judges and times your lines of attention", run_attn_variant },
	{ "generate", "continues a prompt", cairn_cmd_generate },
	{ "eval", "scores the embedded model on its held-out questions", cairn_cmd_eval },
	{ "serve", "serves a model over HTTP", cairn_cmd_serve },
	{ "attention-worker", "holds keys and values for a generate or serve elsewhere",
	  cairn_cmd_attention_worker },
	{ "prefill-worker", "computes long prompts for a serve elsewhere", cairn_cmd_prefill_worker },
	{ "model-worker", "computes passes for a generate or serve elsewhere", cairn_cmd_model_worker },
	{ "serve-worker", NULL, cairn_cmd_serve_worker },
	{ "grammar", NULL, cairn_cmd_grammar },
	{ "convert-gqa", "makes a checkpoint with fewer heads of keys and values", cairn_cmd_convert_gqa },
	{ "convert-slices", "cuts the forward pass of a model at its attention operators",
	  cairn_cmd_convert_slices },
	{ "graph", "prints the forward pass of a model", cairn_cmd_graph },
	{ "profile", "times a model's operations, alone and in pairs", cairn_cmd_profile },
	{ "search", "searches how to overlap a model's operations", cairn_cmd_search },
	{ "disagg-plan", "simulates how to split GPUs between model and attention workers",
	  cairn_cmd_disagg_plan },
	{ "doctor", "tells what this machine has and lacks for Cairn", cairn_cmd_doctor },
	{ "validate", "tests whether each GPU of this node is sound", cairn_cmd_validate },
	{ "version", "version and digest of the sources", run_version },
};

static void print_usage(void)
{
	printf("usage: cairn COMMAND [OPTION]...\n\n");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (commands[i].does)
			printf("  %-15s %s\n", commands[i].name, commands[i].does);
	printf("\ncairn COMMAND --help describes the options of a command.\n");
}

/* For the shell's completion and the manual (tools/completion, tools/manual.sh). */
static void print_commands(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (commands[i].does)
			printf("%s\t%s\n", commands[i].name, commands[i].does);
}

static int run(int argc, char **argv)
{
	const char *cmd = argc > 1 ? argv[1] : "help";
	char name[32], two[32];

	if (!strcmp(cmd, "--version"))
		cmd = "version";
	snprintf(two, sizeof(two), "%s %s", cmd, argc > 2 ? argv[2] : "");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		int words = !strcmp(commands[i].name, cmd) ? 1 : !strcmp(commands[i].name, two) ? 2 : 0;

		if (!words)
			continue;
		snprintf(name, sizeof(name), "cairn %s", commands[i].name);
		argv[words] = name;	/* getopt begins its error messages with it */
		return commands[i].run(argc - words, argv + words);
	}
	if (!strcmp(cmd, "help") || !strcmp(cmd, "--help") || !strcmp(cmd, "-h")) {
		print_usage();
		return argc > 1 ? 0 : 2;
	}
	if (!strcmp(cmd, "--help=commands")) {
		print_commands();
		return 0;
	}
	fprintf(stderr, "cairn: '%s': no such command; cairn help lists them\n", cmd);
	return 2;
}

int main(int argc, char **argv)
{
	const char *cmd = argc > 1 ? argv[1] : "help";
	int status;

	signal(SIGCHLD, SIG_DFL);	/* where it was ignored, the ends of children would be lost */
	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	if (argc > 0 && argv[0][0])
		program = argv[0];
	status = run(argc, argv);
	/*
	 * A closed standard output is no error for the server commands. The other commands print their
	 * results there.
	 */
	if (status || !strcmp(cmd, "serve") || !strcmp(cmd, "serve-worker") ||
	    !(fflush(stdout) || ferror(stdout)))
		return status;
	fprintf(stderr, "cairn %s: standard output: cannot be written\n", cmd);
	return 1;
}
