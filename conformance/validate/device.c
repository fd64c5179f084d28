// SPDX-License-Identifier: Apache-2.0
/*
 * device - one device in its own process: opens it, runs the tests, and reports rows
 *
 * A long run goes through all tests again and again, in slices as long as those of a quick run, so that each
 * test sees the device cold and hot, and a lost device costs little of what it has already reported.
 *
 * Lines to the parent: "T test" when a test begins, "P" while it goes on (the parent ends a silent process),
 * "R row" with a row, "G json" with the device's identity, "E" at the end.
 */
#include <ctype.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

#define SAMPLE_S	0.1
#define HOST_SHARE	0.1	/* of a device's time that a host table takes */
#define START_S		3	/* until a device has started */
#define REPLAY_S	80	/* --replay takes a few seconds of it (replay.c) */

static int validate_health_test(struct validate_device *d, const struct validate_test *t, double seconds);

#define SCREEN(name, seconds, phase, program) \
	{ name, validate_screen, seconds, 1, VALIDATE_##phase, CAIRN_SCREEN_##program, VALIDATE_ALL_TURNS }
#define TEST(name, run, seconds, required)	{ name, run, seconds, required, 0, 0, VALIDATE_ONE_TURN }
/*
 * dsmem.pairs comes first: it tells the groups in which rates are compared. The device is cool first, and hot
 * when memory and copies are tested. With START_S these seconds and those of the links make 87 of the 90 of a
 * quick run; a device that is slow in one test has less time for those after it (seconds_left()).
 */
const struct validate_test validate_tests[] = {
	TEST("dsmem.pairs", validate_pairs, 2, 0),
	SCREEN("screen.f16", 0.6, COOL, F16), SCREEN("screen.bf16", 0.6, COOL, BF16),
	SCREEN("screen.tf32", 0.6, COOL, TF32), SCREEN("screen.e4m3", 0.6, COOL, E4M3),
	SCREEN("screen.e5m2", 0.6, COOL, E5M2), SCREEN("screen.s8", 0.6, COOL, S8),
	SCREEN("screen.f32", 0.6, COOL, F32), SCREEN("screen.f64", 0.6, COOL, F64),
	SCREEN("screen.int", 0.6, COOL, INT), SCREEN("screen.special", 0.6, COOL, SPECIAL),
	SCREEN("screen.memory", 0.5, COOL, MEMORY), SCREEN("screen.mix", 0.5, COOL, MIX),
	SCREEN("full-load.f16", 9, FULL_LOAD, F16), SCREEN("full-load.bf16", 4, FULL_LOAD, BF16),
	SCREEN("full-load.tf32", 4, FULL_LOAD, TF32), SCREEN("full-load.e4m3", 4, FULL_LOAD, E4M3),
	SCREEN("full-load.e5m2", 4, FULL_LOAD, E5M2), SCREEN("full-load.s8", 4, FULL_LOAD, S8),
	SCREEN("full-load.mix", 4, FULL_LOAD, MIX),
	SCREEN("pulses.f16", 3, PULSES, F16), SCREEN("pulses.mix", 2, PULSES, MIX),
	TEST("l2", validate_cache, 2, 0),
	TEST("hbm", validate_memory, 15, 1),
	TEST("copy", validate_copies, 4, 1),
	TEST("launch", validate_launches, 1, 0),
	TEST("stack", validate_stack, 5, 1),
	{ "health", validate_health_test, 0, 1, 0, 0, VALIDATE_ALL_TURNS },
	{ "links", NULL, 10, 0, 0, 0, VALIDATE_OF_NODE },
	{ "nccl", NULL, 3, 1, 0, 0, VALIDATE_OF_NODE },
};
_Static_assert(sizeof(validate_tests) / sizeof(validate_tests[0]) <= 32, "bits of validate_device.upset");
const int validate_num_tests = sizeof(validate_tests) / sizeof(validate_tests[0]);

void validate_rate_name(const struct validate_test *t, char name[VALIDATE_NAME_LEN])
{
	snprintf(name, VALIDATE_NAME_LEN, "rate.%s", strncmp(t->name, "screen.", 7) ? t->name : t->name + 7);
}

int validate_selects(const char *only, const struct validate_test *t)
{
	char globs[512], rate[VALIDATE_NAME_LEN] = "", *save, *glob;

	if (!only)
		return 1;
	if (t->run == validate_screen)
		validate_rate_name(t, rate);
	snprintf(globs, sizeof(globs), "%s", only);
	for (glob = strtok_r(globs, ",", &save); glob; glob = strtok_r(NULL, ",", &save))
		if (!fnmatch(glob, t->name, 0) || !fnmatch(glob, rate, 0))
			return 1;
	return 0;
}

/* ---- health ---- */

void validate_sample(struct validate_device *d)
{
	struct validate_load now = { 0, 0, 0 };
	struct cairn_nvml_health h;

	d->sampled = cairn_now();
	if (!d->nvml || cairn_nvml_health(d->nvml, 1u << CAIRN_NVML_REASONS | 1u << CAIRN_NVML_CELSIUS, &h))
		return;
	now.celsius = (uint32_t)h.value[CAIRN_NVML_CELSIUS];
	if (cairn_nvml_power(d->nvml, &now.mw))
		now.mw = 0;
	if (cairn_nvml_sm_clock(d->nvml, &now.mhz))
		now.mhz = 0;
	d->load = now;
	d->health.reasons |= h.value[CAIRN_NVML_REASONS];
	if (now.celsius > d->health.max_celsius)
		d->health.max_celsius = now.celsius;
	if (now.mw > d->health.max_mw)
		d->health.max_mw = now.mw;
	if (now.mhz > d->health.max_mhz)
		d->health.max_mhz = now.mhz;
	if (now.mhz && (!d->health.min_mhz || now.mhz < d->health.min_mhz))
		d->health.min_mhz = now.mhz;
}

int validate_sync(struct validate_device *d)
{
	CAIRN_TRY(d->impl.stream_sync(d->stream));
	if (cairn_now() - d->sampled >= SAMPLE_S)
		validate_sample(d);
	return 0;
}

/* Opens the kernel's log at its end, to read only records of this run. Returns -1 if this user may not. */
static int open_log(void)
{
	const char *path = getenv("CAIRN_KMSG");
	int fd = open(path ? path : "/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	/* a test's log is read from its beginning */
	if (fd >= 0 && !path)
		lseek(fd, 0, SEEK_END);
	return fd;
}

static void read_log(struct validate_device *d, int fd)
{
	char line[8192];
	ssize_t n;

	/* each read gives one record */
	while ((n = read(fd, line, sizeof(line) - 1)) > 0) {
		char *save, *at;

		line[n] = 0;
		for (at = strtok_r(line, "\n", &save); at; at = strtok_r(NULL, "\n", &save)) {
			int32_t xid = validate_xid(at, d->pci);

			if (validate_xid_is_own(xid))
				d->health.own_xid = xid;
			else if (xid)
				d->health.xid = xid;
		}
	}
}

static int kernel_log = -1;

static int validate_health_test(struct validate_device *d, const struct validate_test *t, double seconds)
{
	struct validate_finding found[16];
	json_t *row;
	int num;

	(void)seconds;
	if (!d->nvml) {
		row = validate_row(t->name, t->required && !d->on_host);
		validate_set(row, VALIDATE_NOT_RUN, "%s", d->no_health);
		return validate_report(d, row);
	}
	validate_sample(d);
	CAIRN_TRY(cairn_nvml_health(d->nvml, ~0u, &d->health.after));
	if (kernel_log >= 0)
		read_log(d, kernel_log);
	row = validate_row(t->name, t->required);
	num = validate_health_judge(&d->health, found, 16);
	for (int i = 0; i < num; i++)
		validate_finding(row, found[i].verdict, NULL, "%s", found[i].text);
	json_object_set_new(row, "celsius", json_integer(d->health.max_celsius));
	json_object_set_new(row, "watts", json_real(d->health.max_mw / 1000.0));
	json_object_set_new(row, "clock_mhz", json_pack("[i,i]", (int)d->health.min_mhz,
						     (int)d->health.max_mhz));
	json_object_set_new(row, "power_capped", json_boolean(d->health.reasons & VALIDATE_POWER_CAP));
	if (d->health.after.has >> CAIRN_NVML_LINKS_UP & 1)
		json_object_set_new(row, "links", json_integer((json_int_t)
				    d->health.after.value[CAIRN_NVML_LINKS_UP]));
	validate_set(row, validate_verdict_of(row), "%u degrees, %u W, %u to %u MHz%s%s",
		     d->health.max_celsius,
		     d->health.max_mw / 1000, d->health.min_mhz, d->health.max_mhz,
		     d->health.reasons & VALIDATE_POWER_CAP ? ", at the power cap" : "",
		     kernel_log < 0 ? "; the kernel's log is not readable" : "");
	return validate_report(d, row);
}

static void open_health(struct validate_device *d)
{
	const char *library = getenv("CAIRN_NVML");

	if (!d->impl.pci_bus_id || d->impl.pci_bus_id(d->pci, sizeof(d->pci)))
		snprintf(d->no_health, sizeof(d->no_health), "the table has no device with a PCI address");
	else if (cairn_nvml_open(&d->nvml, library, d->pci) ||
		 cairn_nvml_health(d->nvml, ~0u, &d->health.before))
		snprintf(d->no_health, sizeof(d->no_health), "%s", cairn_last_error());
	kernel_log = open_log();
}

/* ---- the run ---- */

/* Returns why the device may not be tested, or NULL. */
static const char *busy(struct validate_device *d)
{
	static char why[96];
	int others = d->nvml && !d->opt->shared ? cairn_nvml_processes(d->nvml) : 0;

	/* one of them is this process, which has a context by now */
	if (others <= 1)
		return NULL;
	snprintf(why, sizeof(why), "the device is busy: %d processes compute on it (--shared allows it)",
		 others);
	return why;
}

/* What rates depend on besides the model: null where the driver does not tell. */
static json_t *config_of(struct validate_device *d)
{
	struct cairn_nvml_settings s = { -1, -1, -1 };
	int64_t gib = (d->info.mem_bytes + (1 << 29)) >> 30;

	if (d->nvml)
		cairn_nvml_settings(d->nvml, &s);
	return json_pack("{s:I, s:o, s:o, s:o, s:o}", "mem_gib", (json_int_t)gib,
			 "limit_w", s.limit_mw < 0 ? json_null() : json_integer(s.limit_mw / 1000),
			 "ecc", s.ecc < 0 ? json_null() : json_boolean(s.ecc),
			 "mig", s.mig < 0 ? json_null() : json_boolean(s.mig),
			 "branch", json_stringn(d->info.driver, strcspn(d->info.driver, ".")));
}

static void say_device(struct validate_device *d)
{
	char uuid[96] = "";
	json_t *g;

	if (!d->nvml || cairn_nvml_uuid(d->nvml, uuid, sizeof(uuid)))
		uuid[0] = 0;
	g = json_pack("{s:s, s:s, s:i, s:s, s:s, s:o}", "gpu", d->info.name, "driver", d->info.driver,
		      "units", d->info.num_sms, "pci", d->pci, "uuid", uuid, "config", config_of(d));
	if (g) {
		char *line = json_dumps(g, JSON_COMPACT);

		fprintf(d->out, "G %s\n", line ? line : "{}");
		free(line);
	}
	json_decref(g);
}

/*
 * Returns the seconds of a test in this turn. From the second turn on, full load takes twice as long: then
 * tensor programs run for more than half of the time, which rare errors need.
 */
static double seconds_of(const struct validate_device *d, const struct validate_test *t)
{
	double seconds = t->seconds * (d->turn && t->phase == VALIDATE_FULL_LOAD ? 2 : 1);

	return d->on_host ? seconds * HOST_SHARE : seconds;
}

static int is_selected(const struct validate_device *d, const struct validate_test *t)
{
	return t->kind != VALIDATE_OF_NODE && validate_selects(d->opt->only, t);
}

/* Returns the seconds of the selected tests from number `first` on. */
static double seconds_left(const struct validate_device *d, int first)
{
	double sum = 0;

	for (int i = first; i < validate_num_tests; i++)
		if (is_selected(d, &validate_tests[i]))
			sum += seconds_of(d, &validate_tests[i]);
	return sum;
}

/* Runs on the processors next to the device, if sysfs tells, so that host buffers lie in their memory. */
static void stay_close(const struct validate_device *d)
{
	char path[128], list[1024] = "", *save, *range;
	cpu_set_t set;
	FILE *f;

	CPU_ZERO(&set);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/local_cpulist", d->pci);
	for (char *c = path; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	f = *d->pci ? fopen(path, "r") : NULL;
	if (f && !fgets(list, sizeof(list), f))
		list[0] = 0;
	if (f)
		fclose(f);
	for (range = strtok_r(list, ",\n", &save); range; range = strtok_r(NULL, ",\n", &save)) {
		int first, last, fields = sscanf(range, "%d-%d", &first, &last);

		for (int cpu = first; fields >= 1 && cpu <= (fields == 2 ? last : first); cpu++)
			if (cpu >= 0 && cpu < CPU_SETSIZE)
				CPU_SET((size_t)cpu, &set);
	}
	/* fails harmlessly if a container has none of them */
	if (CPU_COUNT(&set))
		sched_setaffinity(0, sizeof(set), &set);
}

static int start(struct validate_device *d)
{
	const char *impl = d->opt->impl ? d->opt->impl : "cuda";

	CAIRN_TRY(cairn_impl_open(impl, &d->impl));
	CAIRN_TRY(cairn_impl_start(&d->impl, d->number));
	d->started = 1;
	d->info.size = sizeof(d->info);
	CAIRN_TRY(d->impl.device_info(&d->info));
	CAIRN_TRY(d->impl.stream_create(&d->stream));
	d->on_host = !!(d->impl.flags & CAIRN_IMPL_HOST_MEM);
	/* a host of one or two processors still has a majority */
	d->units = d->on_host && d->info.num_sms < 4 ? 4 : d->info.num_sms;
	if (d->units > CAIRN_SCREEN_MAX_UNITS)
		d->units = CAIRN_SCREEN_MAX_UNITS;
	for (int i = 0; i < VALIDATE_MAX_PLACES; i++)
		d->gpc[i] = d->sibling[i] = -1;
	d->found = json_object();
	open_health(d);
	if (!d->on_host)
		stay_close(d);
	say_device(d);
	return 0;
}

const char *validate_device_open(struct validate_device *d, FILE *out, const struct validate_options *opt,
				 int number)
{
	static char why[600];
	const char *text;

	d->opt = opt;
	d->out = out;
	d->number = number;
	text = start(d) ? cairn_impl_error(&d->impl) : busy(d);
	if (!text)
		return NULL;
	snprintf(why, sizeof(why), "%s", text);
	return why;
}

void validate_device_close(struct validate_device *d)
{
	json_decref(d->found);
	cairn_nvml_close(d->nvml);
	if (d->stream)
		d->impl.stream_destroy(d->stream);
	if (d->started)
		cairn_impl_stop(&d->impl);
}

/* Waits, so that devices do not all start full load at the same time. Returns the seconds. */
static double await_turn(struct validate_device *d)
{
	double wait = (double)d->opt->stagger * d->number, end = cairn_now() + wait;

	d->staggered = 1;
	for (double left = end - cairn_now(); left > 0; left = end - cairn_now()) {
		fprintf(d->out, "T full load begins in %.0f s\n", ceil(left));
		usleep((useconds_t)(1e6 * (left < 1 ? left : 1)));
	}
	return wait;
}

double validate_slice(double seconds, double planned, double left)
{
	return planned > 0 ? seconds * fmax(0, fmin(1, left / planned)) : 0;
}

/*
 * Runs one turn over the tests, until `end`: each test gets its share of what is left, but no more than its
 * seconds. If the device fails, that test fails, and those after it did not run.
 */
static int run_turn(struct validate_device *d, double end)
{
	const char *lost = NULL;
	char why[600];

	for (int i = 0; i < validate_num_tests; i++) {
		const struct validate_test *t = &validate_tests[i];
		int ret;

		if (!is_selected(d, t))
			continue;
		if (lost) {
			validate_not_run(d, t, lost);
			continue;
		}
		if (t->phase == VALIDATE_FULL_LOAD && !d->staggered)
			end += await_turn(d);
		fprintf(d->out, "T %s\n", t->name);
		d->test = t;
		ret = t->run(d, t, validate_slice(seconds_of(d, t), seconds_left(d, i),
						  end + d->extended_s - cairn_now()));
		if (ret) {
			json_t *row = validate_row(t->name, t->required);

			snprintf(why, sizeof(why), "%s", cairn_impl_error(&d->impl));
			validate_finding(row, VALIDATE_FAIL, NULL, "the device failed: %s (%d)", why, ret);
			validate_set(row, VALIDATE_FAIL, "%s", why);
			validate_report(d, row);
			lost = "the device failed in an earlier test";
		}
	}
	return lost ? -EIO : 0;
}

/* Runs turns until `end`. A further turn starts only if at least a quarter of its planned time is left. */
static void run_all(struct validate_device *d, double begun, double end)
{
	double quick = seconds_left(d, 0) + (d->on_host ? 0 : START_S);

	end = end > 0 ? end : begun + quick;
	d->budget_s = end - begun;
	do {
		if (run_turn(d, fmin(end, (d->turn ? cairn_now() - d->extended_s : begun) + quick)))
			return;
		d->turn++;
		quick = seconds_left(d, 0);
	} while (quick > 0 && cairn_now() + quick / 4 < end + d->extended_s);
}

void validate_device_run(FILE *out, const struct validate_options *opt, int number, double end)
{
	static struct validate_device d;
	double begun = cairn_now();
	const char *why = validate_device_open(&d, out, opt, number);

	if (why) {
		for (int i = 0; i < validate_num_tests; i++)
			if (is_selected(&d, &validate_tests[i]))
				validate_not_run(&d, &validate_tests[i], why);
	} else if (opt->replay) {
		d.budget_s = end > 0 ? end - begun : REPLAY_S;
		if (validate_replay(&d, opt->replay))
			validate_not_run(&d, &(struct validate_test){ .name = "replay", .required = 1 },
					 cairn_impl_error(&d.impl));
	} else {
		run_all(&d, begun, end);
	}
	validate_device_close(&d);
	fprintf(out, "E\n");
}
