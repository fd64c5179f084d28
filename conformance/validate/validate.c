// SPDX-License-Identifier: Apache-2.0
#include "conformance/validate/result.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/suite/runner.h"
#include "conformance/tables/tables.h"
#include "conformance/validate/links.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

static const char usage[] =
	"usage: cairn validate [OPTION]...\n"
	"\n"
	"Tests whether each GPU of this node is sound: all SMs compute the same, and their bits are\n"
	"compared; rates, memory, copies and the driver's counters are judged, too. Changes no setting;\n"
	"needs no root.\n"
	"\n"
	"  --impl NAME|PATH  table to test: cuda, cpu, or a plug-in (a path with a '/') (cuda; cpu where\n"
	"                    there is no GPU)\n"
	"  --device N        only this device (all)\n"
	"  --minutes N       rotate through the tests for N minutes (one turn, at most 90 seconds)\n"
	"  --only GLOBS      only these tests, separated by commas: dsmem.pairs, screen.*, full-load.*,\n"
	"                    pulses.*, rate.* (with the programs that it times), l2, hbm, copy, launch,\n"
	"                    stack, health, links\n"
	"  --nccl            also sum through NCCL: all GPUs must get equal bits\n"
	"  --seed N          of all inputs (1)\n"
	"  --replay WHAT     repeat one round on one unit, as a finding prints it\n"
	"  --json FILE       append one JSON object for each test of each device\n"
	"  --junit FILE      write the verdicts as JUnit XML\n"
	"  --ranges DIR      compare rates with the ranges of this folder (those of the program)\n"
	"  --stagger S       start full load on device N only after N times S seconds, so that the load of\n"
	"                    the power supply rises in steps (0)\n"
	"  --strict          a warning also makes the exit status 1\n"
	"  --shared          test a GPU that others use; rates are not judged\n"
	"  --identify        write UUID, PCI address and host name to --json, instead of a keyed hash\n"
	"\n"
	"Exit status: 0 nothing failed, 1 a fault, 2 bad usage or input, 3 something required did not run.\n";

enum { TIMEOUT_S = 120 };

/* ---- devices ---- */

/* When the tests of devices and those of the node are over (cairn_now()). */
static struct {
	struct validate_node *node;
	double devices, node_end;	/* devices: 0: after the time of a quick run */
} plan;

static void run_device(FILE *out, void *arg)
{
	const struct validate_result *d = arg;

	validate_device_run(out, d->opt, d->number, plan.devices);
}

static void run_node(FILE *out, void *arg)
{
	const struct validate_result *d = arg;

	validate_links_run(out, d->opt, d->number, plan.node, d->index, plan.node_end);
}

static void take_line(char *text, void *arg)
{
	struct validate_result *d = arg;

	if (text[0] == 'T') {
		snprintf(d->testing, sizeof(d->testing), "%s", text + 2);
		fprintf(stderr, "# device %d: %s\n", d->number, d->testing);
	} else if (text[0] == 'E') {
		d->ended = 1;
	} else if (text[0] == 'G') {
		json_decref(d->who);
		d->who = json_loads(text + 2, 0, NULL);
	} else if (text[0] == 'R') {
		json_t *row = json_loads(text + 2, 0, NULL);
		const char *test = json_string_value(json_object_get(row, "test"));

		if (test)
			json_object_set(d->rows, test, row);
		json_decref(row);
	}
}

/* Returns 0 if there is such a device, usable or not; opens it in a process of its own, which may crash. */
static int probe(const struct validate_options *opt, int number)
{
	struct cairn_impl impl;
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(TIMEOUT_S);
		status = cairn_impl_open(opt->impl, &impl);
		if (!status)
			status = cairn_impl_start(&impl, number);
		_exit(status == -EINVAL || status == -ENODEV);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -1;
	/* a device that crashes its process is there */
	return WIFEXITED(status) && WEXITSTATUS(status) ? -1 : 0;
}

static int is_of_node(const struct validate_test *t)
{
	return t->kind == VALIDATE_OF_NODE;
}

/* --nccl selects its test, whatever --only says. */
static int is_selected(const struct validate_options *opt, const struct validate_test *t)
{
	return strcmp(t->name, "nccl") ? validate_selects(opt->only, t) : opt->nccl;
}

/* Adds rows for a process that died: its running test failed, and tests without a row did not run. */
static void account_for_death(struct validate_result *d, int of_node)
{
	for (int i = 0; i < validate_num_tests; i++) {
		const struct validate_test *t = &validate_tests[i];
		int at = !strcmp(t->name, d->testing);
		json_t *row;

		if (is_of_node(t) != of_node || !is_selected(d->opt, t) ||
		    (json_object_get(d->rows, t->name) && !at))
			continue;
		row = validate_row(t->name, t->required);
		if (at) {
			validate_finding(row, VALIDATE_FAIL, NULL, "the device's process ended: %s",
					 d->child.death);
			validate_set(row, VALIDATE_FAIL, "%s", d->child.death);
		} else {
			validate_set(row, VALIDATE_NOT_RUN, "the device's process ended at %s",
				     *d->testing ? d->testing : "its start");
		}
		json_object_set_new(d->rows, t->name, row);
	}
}

/* Returns how long a device's process may be silent. */
static int timeout_s(const struct validate_options *opt)
{
	const char *seconds = getenv("CAIRN_TIMEOUT");

	return (seconds ? atoi(seconds) : TIMEOUT_S) + (int)(opt->minutes * 6);
}

/* Runs a process for each device, and waits for all of them. */
static int run_processes(struct validate_result *devices, int num, int of_node)
{
	struct cairn_child *children[VALIDATE_MAX_DEVICES];
	struct validate_result *of[VALIDATE_MAX_DEVICES];
	int running = 0;

	for (int i = 0; i < num; i++) {
		devices[i].ended = 0;
		devices[i].testing[0] = 0;
		devices[i].child = (struct cairn_child){ .run = of_node ? run_node : run_device,
			.line = take_line, .arg = &devices[i],
			.timeout_s = timeout_s(devices[i].opt) };
		CAIRN_TRY(cairn_child_start(&devices[i].child));
		children[running] = &devices[i].child;
		of[running++] = &devices[i];
	}
	while (running) {
		int i = cairn_children_wait(children, running);

		/* its peers need not wait for it */
		if (of_node)
			atomic_store(&plan.node->gone[of[i]->index], 1);
		if (!of[i]->ended) {
			if (!of[i]->child.death[0])
				snprintf(of[i]->child.death, sizeof(of[i]->child.death), "EXIT in a test");
			account_for_death(of[i], of_node);
		}
		children[i] = children[--running];
		of[i] = of[running];
	}
	return 0;
}

/* Returns the seconds of the selected tests in a quick run: of devices, or of the node. */
static double planned(const struct validate_options *opt, int of_node)
{
	double sum = 0;

	for (int i = 0; i < validate_num_tests; i++)
		if (is_of_node(&validate_tests[i]) == of_node && is_selected(opt, &validate_tests[i]))
			sum += validate_tests[i].seconds;
	return sum;
}

static void has_no_peers(struct validate_result *d)
{
	for (int i = 0; i < validate_num_tests; i++) {
		const struct validate_test *t = &validate_tests[i];
		json_t *row;

		if (!is_of_node(t) || !is_selected(d->opt, t))
			continue;
		row = validate_row(t->name, t->required);
		validate_set(row, VALIDATE_NOT_RUN, "one device has no peers");
		json_object_set_new(d->rows, t->name, row);
	}
}

/* The tests of the node get their share of a longer run. */
static int run_all(struct validate_result *devices, int num)
{
	const struct validate_options *opt = devices[0].opt;
	double seconds = planned(opt, 1), own = planned(opt, 0), begun = cairn_now();
	int ret;

	if (opt->minutes > 0) {
		seconds *= num > 1 && seconds > 0 ? opt->minutes * 60 / (seconds + own) : 0;
		plan.devices = begun + opt->minutes * 60 - seconds;
	}
	CAIRN_TRY(run_processes(devices, num, 0));
	if (opt->replay || planned(opt, 1) <= 0)
		return 0;
	if (num < 2) {
		has_no_peers(&devices[0]);
		return 0;
	}
	plan.node = validate_node_open(num);
	if (!plan.node)
		return cairn_error(ENOMEM, "no memory for the meetings of %d devices", num);
	plan.node->timeout_s = timeout_s(opt) / 2;
	plan.node_end = cairn_now() + seconds;
	ret = run_processes(devices, num, 1);
	validate_node_close(plan.node);
	return ret;
}

/* ---- the command ---- */

/* --only must name a test, and --replay a round of screen. */
static int check_options(const struct validate_options *o)
{
	char program[16], inputs[16], name[32];
	long long seed, round;
	int steps, place, end = 0, known = 0, any = 0;

	for (int i = 0; i < validate_num_tests; i++)
		any |= is_selected(o, &validate_tests[i]);
	if (o->nccl)
		CAIRN_TRY(validate_nccl_check());
	if (!any || (o->only && strlen(o->only) > 500))
		return cairn_error(EINVAL, "--only: '%.64s' names no test", o->only);
	if (o->ranges && access(o->ranges, R_OK | X_OK))
		return cairn_error(EINVAL, "--ranges: %.200s: %s", o->ranges, strerror(errno));
	if (!o->replay)
		return 0;
	if (sscanf(o->replay, "%15[^:]:%15[^:]:%lld:%lld:%d:%d%n", program, inputs, &seed, &round, &steps,
		   &place,
		   &end) == 6 && !o->replay[end] && steps >= 1 && steps <= CAIRN_SCREEN_MAX_STEPS &&
	    round >= 0 &&
	    place >= 0 && place < CAIRN_SCREEN_MAX_UNITS) {
		for (int i = 0; i < CAIRN_SCREEN_NUM_PROGRAMS; i++)
			known |= !strcmp(cairn_screen_program_name(i), program);
		for (int i = 0; i < CAIRN_SCREEN_NUM_INPUTS; i++)
			known |= !strcmp(cairn_screen_inputs_name(i), inputs) ? 2 : 0;
	}
	snprintf(name, sizeof(name), "%.20s", o->replay);
	if (known != 3)
		return cairn_error(EINVAL, "--replay: '%s' is not PROGRAM:INPUTS:SEED:ROUND:STEPS:UNIT",
				   name);
	return 0;
}

static int open_output(FILE **f, const char *path, const char *mode, const char *option)
{
	if (!path)
		return 0;
	*f = fopen(path, mode);
	return *f ? 0 : cairn_error(EINVAL, "--%s: %s: %s", option, path, strerror(errno));
}

static int run(struct validate_options *opt)
{
	static struct validate_result devices[VALIDATE_MAX_DEVICES];
	FILE *json = NULL, *junit = NULL;
	struct cairn_impl impl;
	int num = 0, status;

	if (!opt->impl)
		opt->impl = "cuda";
	if (!strcmp(opt->impl, "cuda") && opt->device < 0 && probe(opt, 0))
		opt->impl = "cpu";
	/* a plug-in that does not load, or a name that is no table, is the caller's fault */
	if (strcmp(opt->impl, "cuda"))
		CAIRN_TRY(cairn_impl_open(opt->impl, &impl));
	for (int i = 0; i < VALIDATE_MAX_DEVICES; i++) {
		if (opt->device >= 0 && i)
			break;
		devices[num].number = opt->device >= 0 ? (int)opt->device : i;
		if (probe(opt, devices[num].number))
			break;
		devices[num].opt = opt;
		devices[num].index = num;
		devices[num++].rows = json_object();
	}
	if (!num)
		return cairn_error(EINVAL, "--device: table %s has no device %d", opt->impl,
				   opt->device >= 0 ? (int)opt->device : 0);
	CAIRN_TRY(open_output(&json, opt->json, "a", "json"));
	CAIRN_TRY(open_output(&junit, opt->junit, "w", "junit"));
	CAIRN_TRY(run_all(devices, num));
	CAIRN_TRY(validate_compare(devices, num));
	if (!opt->replay)
		validate_compare_ranges(devices, num);
	status = validate_print(opt, devices, num, json, junit);
	if (cairn_close_output(json, "validate", "json", opt->json))
		status = CAIRN_EXIT_FAILED;
	if (cairn_close_output(junit, "validate", "junit", opt->junit))
		status = CAIRN_EXIT_FAILED;
	for (int i = 0; i < num; i++) {
		json_decref(devices[i].rows);
		json_decref(devices[i].who);
	}
	return status;
}

int cairn_cmd_validate(int argc, char **argv)
{
	struct validate_options o = { .device = -1, .seed = 1 };
	const struct cairn_option options[] = {
		{ "impl", CAIRN_OPT_TEXT, &o.impl, 0, 0, NULL },
		{ "device", CAIRN_OPT_INT, &o.device, 0, 1023, NULL },
		{ "minutes", CAIRN_OPT_FLOAT, &o.minutes, 0.001, 100000, NULL },
		{ "stagger", CAIRN_OPT_FLOAT, &o.stagger, 0, 3600, NULL },
		{ "only", CAIRN_OPT_TEXT, &o.only, 0, 0, NULL },
		{ "seed", CAIRN_OPT_INT, &o.seed, 0, 9e15, NULL },
		{ "replay", CAIRN_OPT_TEXT, &o.replay, 0, 0, NULL },
		{ "json", CAIRN_OPT_TEXT, &o.json, 0, 0, NULL },
		{ "junit", CAIRN_OPT_TEXT, &o.junit, 0, 0, NULL },
		{ "ranges", CAIRN_OPT_TEXT, &o.ranges, 0, 0, NULL },
		{ "strict", CAIRN_OPT_FLAG, &o.strict, 0, 0, NULL },
		{ "shared", CAIRN_OPT_FLAG, &o.shared, 0, 0, NULL },
		{ "nccl", CAIRN_OPT_FLAG, &o.nccl, 0, 0, NULL },
		{ "identify", CAIRN_OPT_FLAG, &o.identify, 0, 0, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = check_options(&o);
	if (!ret)
		ret = run(&o);
	if (ret >= 0)
		return ret;
	if (*cairn_last_error())
		fprintf(stderr, "cairn validate: %s\n", cairn_last_error());
	return CAIRN_EXIT_USAGE;
}
