// SPDX-License-Identifier: Apache-2.0
/* suite_command - list, check and bench: their options */
#include "conformance/cli/suite_command.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/suite/families.h"
#include "conformance/suite/runner.h"
#include "conformance/tables/tables.h"
#include "rdma/card/card.h"
#include "serving/cli/command.h"

static int print_name(const struct cairn_selected *s, void *arg)
{
	puts(s->name);
	*(int *)arg = 1;
	return 0;
}

static int cmd_list(const struct cairn_options *opt)
{
	int any = 0;

	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		if (cairn_each(opt, *f, print_name, &any) < 0) {
			fprintf(stderr, "cairn list: %s\n", cairn_last_error());
			return 2;
		}
	if (!any)
		fprintf(stderr, "cairn list: no case matches\n");
	return any ? 0 : 2;
}

/* Returns text as an integer in [lo, hi], or exits with status 2 and a line that names the option. */
static long long number(const char *cmd, const char *option, const char *text, long long lo, long long hi)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(text, &end, 10);
	if (errno || end == text || *end || v < lo || v > hi) {
		fprintf(stderr, "cairn %s: --%s: '%s' is not a whole number from %lld to %lld\n", cmd, option,
			text, lo, hi);
		exit(2);
	}
	return v;
}

static int read_shard(const char *cmd, const char *text, struct cairn_options *opt)
{
	int i, n, end = 0;

	if (sscanf(text, "%d/%d%n", &i, &n, &end) == 2 && !text[end] && i >= 1 && i <= n && n <= 1000) {
		opt->shard = i;
		opt->num_shards = n;
		return 0;
	}
	fprintf(stderr, "cairn %s: --shard: '%s' is not I/N with 1 <= I <= N <= 1000\n", cmd, text);
	return 2;
}

struct card {
	const char *cmd, *name;
	/* text of the report's line "device", the only line if the device is missing */
	char says[600];
};

static void card_line(enum cairn_card_state state, const char *what, const char *text, void *arg)
{
	struct card *c = arg;

	if (state != CAIRN_CARD_MISSING)
		printf("# %s: %s: %s\n", c->name, what, text);
	else if (strcmp(what, "device"))
		fprintf(stderr, "cairn %s: --device: %s: %s: %s\n", c->cmd, c->name, what, text);
	else
		snprintf(c->says, sizeof(c->says), "%s", text);
}

/*
 * --device with a name: checks that the machine has everything that the RDMA card needs, and passes the name
 * to the tests in $CAIRN_RDMA_DEVICE. Returns 0, or exit status 2.
 */
static int use_card(const char *cmd, const char *name)
{
	const struct cairn_card_where here = { NULL };
	struct card c = { cmd, name, "" };
	int missing = cairn_card_check(&here, name, card_line, &c);

	if (c.says[0]) {
		const char *has = strstr(c.says, "has ");

		fprintf(stderr, "cairn %s: --device: '%s' is neither a CUDA device (0 to 1023) nor an RDMA "
			"device of this machine (%s)\n", cmd, name, has ? has + 4 : "none");
		return 2;
	}
	if (missing) {
		fprintf(stderr, "cairn %s: --device: %s: %d of 9 preconditions are missing; "
			"nothing was run\n", cmd, name, missing);
		return 2;
	}
	return setenv("CAIRN_RDMA_DEVICE", name, 1) ? 2 : 0;
}

/* Asks in a child process, because a process that has started CUDA cannot fork children that use it. */
static int have_gpu(void)
{
	struct cairn_impl cuda;
	int status = 1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(cairn_impl_open("cuda", &cuda) || cairn_impl_start(&cuda, 0));
	if (pid > 0)
		waitpid(pid, &status, 0);
	return status == 0;
}

enum { O_IMPL = 256, O_SEED, O_REPEAT, O_DEVICE, O_JSON, O_SKIP, O_MUTANTS, O_MUSTPASS, O_WAIVERS, O_SANITIZE,
	O_ONCE, O_JUNIT, O_JOBS, O_SHARD, O_SLOWEST, O_VERBOSE, O_DRAWN,
	O_ONE_KIND, O_HELP };

#define BIT(o)	(1u << ((o) - O_IMPL))

static const struct option suite_options[] = {
	{ "impl", required_argument, NULL, O_IMPL }, { "seed", required_argument, NULL, O_SEED },
	{ "repeat", required_argument, NULL, O_REPEAT }, { "drawn", required_argument, NULL, O_DRAWN },
	{ "device", required_argument, NULL, O_DEVICE },
	{ "json", required_argument, NULL, O_JSON }, { "skip", required_argument, NULL, O_SKIP },
	{ "mutants", optional_argument, NULL, O_MUTANTS },
	{ "mustpass", required_argument, NULL, O_MUSTPASS },
	{ "waivers", required_argument, NULL, O_WAIVERS },
	{ "sanitize", optional_argument, NULL, O_SANITIZE },
	{ "junit", required_argument, NULL, O_JUNIT }, { "jobs", required_argument, NULL, O_JOBS },
	{ "one-kind", no_argument, NULL, O_ONE_KIND },
	{ "shard", required_argument, NULL, O_SHARD }, { "list-slowest", optional_argument, NULL, O_SLOWEST },
	{ "once", no_argument, NULL, O_ONCE }, { "verbose", no_argument, NULL, O_VERBOSE },
	{ "help", optional_argument, NULL, O_HELP }, { NULL, 0, NULL, 0 },
};

/* Returns the BIT() of each option that a form of a command takes. */
static unsigned int taken_by(const char *form)
{
	static const struct {
		const char *form;
		unsigned int takes;
	} forms[] = {
		{ "list", BIT(O_SKIP) | BIT(O_SEED) | BIT(O_DRAWN) },
		{ "check --mutants", BIT(O_MUTANTS) | BIT(O_SEED) | BIT(O_SKIP) | BIT(O_JOBS) |
			BIT(O_VERBOSE) },
		{ "check", ~BIT(O_ONCE) },
		{ "bench", BIT(O_IMPL) | BIT(O_SEED) | BIT(O_DEVICE) | BIT(O_JSON) | BIT(O_SKIP) |
			   BIT(O_ONCE) },
	};
	size_t i = 0;

	while (strcmp(forms[i].form, form))
		i++;
	return forms[i].takes | BIT(O_HELP);
}

/* What --help says of each option. */
static const struct {
	int option;
	const char *text;
} help[] = {
	{ O_IMPL,
	  "  --impl NAME|PATH  ref, cpu, cuda, peers and flashinfer (other libraries), unfused (the\n"
	  "                    fused operations as chains of the best separate kernels), ladder1 to\n"
	  "                    ladder5 (attention in steps), or a plug-in (a path with a '/'); may be\n"
	  "                    repeated (check: cpu and cuda; bench: cuda, peers, flashinfer, unfused,\n"
	  "                    but cpu where there is no GPU)\n" },
	{ O_SEED,
	  "  --seed N          of all random inputs (1)\n" },
	{ O_REPEAT,
	  "  --repeat N        check each case with N seeds (1); each seed draws its own cases\n" },
	{ O_DRAWN,
	  "  --drawn N         draw N cases at random for each operation (two for built-in tables,\n"
	  "                    hundreds to thousands if a table is a plug-in, list: none)\n" },
	{ O_ONE_KIND,
	  "  --one-kind        run a case with one of its kinds of input, in turn\n" },
	{ O_DEVICE,
	  "  --device N|NAME   CUDA device (0); or an RDMA device, mlx5_0, instead of the NIC model:\n"
	  "                    names what this machine lacks for it, or uses it; both may be given\n" },
	{ O_JSON,
	  "  --json FILE       append one JSON object for each case\n" },
	{ O_JUNIT,
	  "  --junit FILE      write the verdicts as JUnit XML, which CI systems read\n" },
	{ O_JOBS,
	  "  --jobs N          test processes at the same time (one for each processor)\n" },
	{ O_SHARD,
	  "  --shard I/N       run the I-th of N parts of the cases; all N parts together run every case\n"
	  "                    once\n" },
	{ O_SLOWEST,
	  "  --list-slowest[=N]  print the N slowest cases at the end (20)\n" },
	{ O_SKIP,
	  "  --skip GLOB       leave out the cases that GLOB matches; may be repeated\n" },
	{ O_MUTANTS,
	  "  --mutants[=FILE]  every deliberately wrong implementation must be caught; FILE names the cases\n"
	  "                    that catch them, to save time; takes only --seed, --skip, --jobs and -v\n" },
	{ O_MUSTPASS,
	  "  --mustpass FILE   names that may not be skipped\n" },
	{ O_WAIVERS,
	  "  --waivers FILE    names that may fail, each with its reason\n" },
	{ O_SANITIZE,
	  "  --sanitize[=N]    a small selection, for compute-sanitizer: N cases of a family (24)\n" },
	{ O_ONCE,
	  "  --once            call each case once where a profiler sees it, instead of timing rows\n" },
	{ O_VERBOSE,
	  "  -v, --verbose     one line a case\n" },
};

static void print_usage(const char *cmd)
{
	printf("usage: cairn %s [OPTION]... [GLOB]...\n\n", cmd);
	for (size_t i = 0; i < ARRAY_SIZE(help); i++)
		if (taken_by(cmd) & BIT(help[i].option))
			fputs(help[i].text, stdout);
	printf("\nA GLOB names cases (primitives.rmsnorm.rows1_*) or a leading part (fused, *.rope).\n%s"
	       "Exit status: 0 success, 1 something failed, 2 bad usage or input.\n",
	       strcmp(cmd, "check") ? "" : "Large rows of `cairn bench` are left to it, unless a GLOB names "
	       "cases.\n");
}

/* Refuses an option that the command does not take; given has the BIT() of each option. */
static int check_given(const char *cmd, unsigned int given)
{
	const char *form = !strcmp(cmd, "check") && (given & BIT(O_MUTANTS)) ? "check --mutants" : cmd;

	for (const struct option *o = suite_options; o->name; o++)
		if (given & ~taken_by(form) & BIT(o->val)) {
			fprintf(stderr, "cairn %s: --%s: is no option of %s\n", cmd, o->name, form);
			return 2;
		}
	return 0;
}

/* --help, or --help=options */
static int print_help(const char *cmd, const char *what)
{
	struct option taken[ARRAY_SIZE(suite_options)];
	int n = 0;

	if (!what) {
		print_usage(cmd);
		return 0;
	}
	if (strcmp(what, "options")) {
		fprintf(stderr, "cairn %s: --help: '%s' is not 'options'\n", cmd, what);
		return 2;
	}
	for (const struct option *o = suite_options; o->name; o++)
		if (taken_by(cmd) & BIT(o->val))
			taken[n++] = *o;
	taken[n] = (struct option){ NULL, 0, NULL, 0 };
	cairn_print_options(taken);
	return 0;
}

static int has_plugin(const struct cairn_options *opt)
{
	int has = 0;

	for (int k = 0; k < opt->num_impls; k++)
		has |= strchr(opt->impls[k], '/') != NULL;
	return has;
}

/* Reads the options of a command of the suite into *opt and runs it. Returns its exit status. */
static int run_suite(const char *cmd, int argc, char **argv, struct cairn_options *opt)
{
	struct cairn_list *list;
	unsigned int given = 0;
	int c;

	while ((c = getopt_long(argc, argv, "v", suite_options, NULL)) != -1) {
		if (c == 'v')
			c = O_VERBOSE;
		if (c >= O_IMPL)
			given |= BIT(c);
		switch (c) {
		case O_IMPL:
			if (opt->num_impls == (int)ARRAY_SIZE(opt->impls)) {
				fprintf(stderr, "cairn %s: --impl: given more than %zu times\n", cmd,
					ARRAY_SIZE(opt->impls));
				return 2;
			}
			opt->impls[opt->num_impls++] = optarg;
			break;
		case O_SEED:
			opt->seed = (uint64_t)number(cmd, "seed", optarg, 0, LLONG_MAX);
			break;
		case O_REPEAT:
			opt->repeat = (int)number(cmd, "repeat", optarg, 1, 1000000);
			break;
		case O_DRAWN:
			opt->drawn = (int)number(cmd, "drawn", optarg, 0, 100000);
			break;
		case O_DEVICE:
			opt->device_text = optarg;
			if (!cairn_card_is_name(optarg))
				opt->device = (int)number(cmd, "device", optarg, 0, 1023);
			else if (use_card(cmd, optarg))
				return 2;
			break;
		case O_JSON:
			opt->json = optarg;
			break;
		case O_SKIP:
			if (opt->num_skips == (int)ARRAY_SIZE(opt->skips)) {
				fprintf(stderr, "cairn %s: --skip: given more than %zu times\n", cmd,
					ARRAY_SIZE(opt->skips));
				return 2;
			}
			opt->skips[opt->num_skips++] = optarg;
			break;
		case O_MUTANTS:
		case O_MUSTPASS:
		case O_WAIVERS:
			list = c == O_WAIVERS ? &opt->waivers :
			       c == O_MUTANTS ? &opt->catchers : &opt->mustpass;
			cairn_list_free(list);	/* a later option replaces an earlier one */
			if (optarg && cairn_list_load(optarg, c != O_MUSTPASS, list)) {
				fprintf(stderr, "cairn %s: %s\n", cmd, cairn_last_error());
				return 2;
			}
			if (c == O_MUSTPASS)
				opt->mustpass_file = optarg;
			break;
		case O_SANITIZE:
			opt->sanitize = optarg ? (int)number(cmd, "sanitize", optarg, 1, 1000000) :
				       CAIRN_SANITIZE_CASES;
			break;
		case O_JUNIT:
			opt->junit = optarg;
			break;
		case O_JOBS:
			opt->jobs = (int)number(cmd, "jobs", optarg, 1, 256);
			break;
		case O_SHARD:
			if (read_shard(cmd, optarg, opt))
				return 2;
			break;
		case O_SLOWEST:
			opt->slowest = optarg ? (int)number(cmd, "list-slowest", optarg, 1, 1000) : 20;
			break;
		case O_ONE_KIND:
			opt->one_kind = 1;
			break;
		case O_ONCE:
			opt->once = 1;
			break;
		case O_VERBOSE:
			opt->verbose = 1;
			break;
		case O_HELP:
			return print_help(cmd, optarg);
		default:
			return 2;	/* getopt has named the option */
		}
	}
	if (check_given(cmd, given))
		return 2;
	opt->globs = argv + optind;
	opt->num_globs = argc - optind;
	if (!strcmp(cmd, "list"))
		return cmd_list(opt);
	if (!strcmp(cmd, "bench")) {
		if (!opt->num_impls && have_gpu()) {
			opt->impls[opt->num_impls++] = "cuda";
			opt->impls[opt->num_impls++] = "peers";
			opt->impls[opt->num_impls++] = "flashinfer";
			opt->impls[opt->num_impls++] = "unfused";
		} else if (!opt->num_impls) {
			opt->impls[opt->num_impls++] = "cpu";
		}
		return cairn_cmd_bench(opt);
	}
	if (given & BIT(O_MUTANTS))
		return cairn_cmd_mutants(opt);
	if (!(given & BIT(O_DRAWN)) && !opt->sanitize)
		opt->drawn = has_plugin(opt) ? CAIRN_DRAWN_MANY : CAIRN_DRAWN_FEW;
	if (!opt->num_impls) {
		opt->impls[opt->num_impls++] = "cpu";
		opt->impls[opt->num_impls++] = "cuda";
	}
	return cairn_cmd_check(opt);
}

int cairn_suite_command(const char *cmd, int argc, char **argv, const char *program)
{
	struct cairn_options opt = { .seed = 1, .repeat = 1, .program = program };
	int status = run_suite(cmd, argc, argv, &opt);

	cairn_list_free(&opt.mustpass);
	cairn_list_free(&opt.waivers);
	cairn_list_free(&opt.catchers);
	return status;
}
