// SPDX-License-Identifier: Apache-2.0
/*
 * cairn - the one program: list, check, bench, attn-variant, generate, eval, serve, attention-worker,
 * convert-gqa, convert-slices, graph, search
 */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/cli/attn_variant.h"
#include "rdma/card/card.h"
#include "serving/bench/bench_serve.h"
#include "serving/cli/commands.h"
#include "serving/serve/serve.h"
#include "conformance/suite/families.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "conformance/suite/runner.h"

static const char usage[] =
	"usage: cairn COMMAND [OPTION]... [GLOB]...\n"
	"\n"
	"  list         names of all cases\n"
	"  check        judges implementations by the references; prints TAP\n"
	"  bench        times what it has verified\n"
	"  bench serve  times an OpenAI-compatible server (--help for its options)\n"
	"  attn-variant compiles, judges and times your lines of attention (--help for its options)\n"
	"  generate     continues a prompt (--help for its options)\n"
	"  eval         scores the embedded model on its held-out questions\n"
	"  serve        serves a model over HTTP (--help for its options)\n"
	"  attention-worker\n"
	"               holds keys and values for a generate or serve elsewhere (--help for its options)\n"
	"  convert-gqa  makes a checkpoint with fewer heads of keys and values\n"
	"  convert-slices\n"
	"               cuts the forward pass of a model at its attention operators\n"
	"  graph        prints the forward pass of a model (--help for its options)\n"
	"  profile      times a model's operations, alone and in pairs (--help for its options)\n"
	"  search       searches how to overlap a model's operations (--help for its options)\n"
	"  version      version and digest of the sources\n"
	"\n"
	"Options of check; bench has --impl, --seed, --device, --json, --skip and --once, list has --skip:\n"
	"  --impl NAME|PATH  ref, cpu, cuda, peers and flashinfer (other libraries), unfused (the\n"
	"                    fused operations as chains of the best separate kernels), ladder1 to\n"
	"                    ladder5 (attention in steps), or a plug-in (a path with a '/'); may be\n"
	"                    repeated (check: cpu and cuda; bench: cuda, peers, flashinfer, unfused,\n"
	"                    but cpu where there is no GPU)\n"
	"  --seed N          of all random inputs (1)\n"
	"  --repeat N        check each case with N seeds (1)\n"
	"  --device N|NAME   CUDA device (0); or an RDMA device, mlx5_0, instead of the NIC model:\n"
	"                    names what this machine lacks for it, or uses it; both may be given\n"
	"  --json FILE       append one JSON object for each case\n"
	"  --junit FILE      write the verdicts as JUnit XML, which CI systems read\n"
	"  --jobs N          test processes at the same time (one for each processor)\n"
	"  --shard I/N       run the I-th of N parts of the cases; all N parts together run every case once\n"
	"  --list-slowest[=N]  print the N slowest cases at the end (20)\n"
	"  --skip GLOB       leave out what it names; may be repeated\n"
	"  --mutants[=FILE]  every deliberately wrong implementation must be caught; FILE names the cases\n"
	"                    that catch them, to save time; takes only --seed, --skip, --jobs and -v\n"
	"  --mustpass FILE   names that may not be skipped\n"
	"  --waivers FILE    names that may fail, each with its reason\n"
	"  --sanitize[=N]    a small selection, for compute-sanitizer: N cases of a family (24)\n"
	"  --once            bench: calls each case once where a profiler sees it, instead of timing rows\n"
	"  -v, --verbose     one line a case\n"
	"\n"
	"A GLOB names cases (primitives.rmsnorm.rows1_*) or a leading part (fused, *.rope).\n"
	"Exit status: 0 success, 1 something failed, 2 bad usage or input.\n";

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
	O_ONCE, O_JUNIT, O_JOBS, O_SHARD, O_SLOWEST, O_VERBOSE, O_HELP };

#define BIT(o)	(1u << ((o) - O_IMPL))

static const struct option suite_options[] = {
	{ "impl", required_argument, NULL, O_IMPL }, { "seed", required_argument, NULL, O_SEED },
	{ "repeat", required_argument, NULL, O_REPEAT }, { "device", required_argument, NULL, O_DEVICE },
	{ "json", required_argument, NULL, O_JSON }, { "skip", required_argument, NULL, O_SKIP },
	{ "mutants", optional_argument, NULL, O_MUTANTS },
	{ "mustpass", required_argument, NULL, O_MUSTPASS },
	{ "waivers", required_argument, NULL, O_WAIVERS },
	{ "sanitize", optional_argument, NULL, O_SANITIZE },
	{ "junit", required_argument, NULL, O_JUNIT }, { "jobs", required_argument, NULL, O_JOBS },
	{ "shard", required_argument, NULL, O_SHARD }, { "list-slowest", optional_argument, NULL, O_SLOWEST },
	{ "once", no_argument, NULL, O_ONCE }, { "verbose", no_argument, NULL, O_VERBOSE },
	{ "help", no_argument, NULL, O_HELP }, { NULL, 0, NULL, 0 },
};

/* Refuses an option that the command does not take; given has the BIT() of each option. */
static int check_given(const char *cmd, unsigned int given)
{
	static const struct {
		const char *cmd;
		unsigned int takes;
	} commands[] = {
		{ "list", BIT(O_SKIP) },
		{ "check --mutants", BIT(O_MUTANTS) | BIT(O_SEED) | BIT(O_SKIP) | BIT(O_JOBS) |
			BIT(O_VERBOSE) },
		{ "check", ~BIT(O_ONCE) },
		{ "bench", BIT(O_IMPL) | BIT(O_SEED) | BIT(O_DEVICE) | BIT(O_JSON) | BIT(O_SKIP) |
			   BIT(O_ONCE) },
	};
	const char *form = !strcmp(cmd, "check") && (given & BIT(O_MUTANTS)) ? "check --mutants" : cmd;
	size_t i = 0;

	while (strcmp(commands[i].cmd, form))
		i++;
	for (const struct option *o = suite_options; o->name; o++)
		if (given & ~commands[i].takes & BIT(o->val)) {
			fprintf(stderr, "cairn %s: --%s: is no option of %s\n", cmd, o->name, form);
			return 2;
		}
	return 0;
}

static const char *program = "cairn";

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
		case O_ONCE:
			opt->once = 1;
			break;
		case O_VERBOSE:
			opt->verbose = 1;
			break;
		case O_HELP:
			fputs(usage, stdout);
			return 0;
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
	if (!opt->num_impls) {
		opt->impls[opt->num_impls++] = "cpu";
		opt->impls[opt->num_impls++] = "cuda";
	}
	return cairn_cmd_check(opt);
}

static int suite_command(const char *cmd, int argc, char **argv)
{
	struct cairn_options opt = { .seed = 1, .repeat = 1, .program = program };
	int status = run_suite(cmd, argc, argv, &opt);

	cairn_list_free(&opt.mustpass);
	cairn_list_free(&opt.waivers);
	cairn_list_free(&opt.catchers);
	return status;
}

static int run(const char *cmd, int argc, char **argv)
{
	if (!strcmp(cmd, "bench") && argc > 2 && !strcmp(argv[2], "serve")) {
		argv[2] = "cairn bench serve";
		return cairn_cmd_bench_serve(argc - 2, argv + 2);
	}
	if (!strcmp(cmd, "list") || !strcmp(cmd, "check") || !strcmp(cmd, "bench"))
		return suite_command(cmd, argc - 1, argv + 1);
	if (!strcmp(cmd, "attn-variant"))
		return cairn_cmd_attn_variant(argc - 1, argv + 1, program);
	if (!strcmp(cmd, "generate"))
		return cairn_cmd_generate(argc - 1, argv + 1);
	if (!strcmp(cmd, "attention-worker"))
		return cairn_cmd_attention_worker(argc - 1, argv + 1);
	if (!strcmp(cmd, "eval"))
		return cairn_cmd_eval(argc - 1, argv + 1);
	if (!strcmp(cmd, "serve"))
		return cairn_cmd_serve(argc - 1, argv + 1);
	if (!strcmp(cmd, "serve-worker"))
		return cairn_cmd_serve_worker(argc - 1, argv + 1);
	if (!strcmp(cmd, "convert-gqa"))
		return cairn_cmd_convert_gqa(argc - 1, argv + 1);
	if (!strcmp(cmd, "convert-slices"))
		return cairn_cmd_convert_slices(argc - 1, argv + 1);
	if (!strcmp(cmd, "graph"))
		return cairn_cmd_graph(argc - 1, argv + 1);
	if (!strcmp(cmd, "profile"))
		return cairn_cmd_profile(argc - 1, argv + 1);
	if (!strcmp(cmd, "search"))
		return cairn_cmd_search(argc - 1, argv + 1);
	if (!strcmp(cmd, "version") || !strcmp(cmd, "--version")) {
		if (argc > 2) {
			fprintf(stderr, "cairn version: '%s': takes no arguments\n", argv[2]);
			return 2;
		}
		printf("cairn %s, source %s\n", CAIRN_VERSION, cairn_source_digest());
		return 0;
	}
	if (!strcmp(cmd, "help") || !strcmp(cmd, "--help") || !strcmp(cmd, "-h")) {
		fputs(usage, stdout);
		return argc > 1 ? 0 : 2;
	}
	fprintf(stderr, "cairn: '%s': no such command; cairn help lists them\n", cmd);
	return 2;
}

int main(int argc, char **argv)
{
	const char *cmd = argc > 1 ? argv[1] : "help";
	char name[32];
	int status;

	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	if (argc > 0 && argv[0][0])
		program = argv[0];
	snprintf(name, sizeof(name), "cairn %s", cmd);
	if (argc > 1)
		argv[1] = name;		/* getopt begins its error messages with it */
	status = run(cmd, argc, argv);
	/*
	 * A closed standard output is no error for the server commands. The other commands print their
	 * results there.
	 */
	if (status || !strcmp(cmd, "serve") || !strcmp(cmd, "serve-worker") ||
	    !(fflush(stdout) || ferror(stdout)))
		return status;
	fprintf(stderr, "%s: standard output: cannot be written\n", name);
	return 1;
}
