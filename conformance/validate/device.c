// SPDX-License-Identifier: Apache-2.0
/*
 * device - one device in its own process: opens it, runs the tests, and reports rows
 *
 * A long run goes through all tests again and again, in slices as long as those of a quick run, so that each
 * test sees the device cold and hot, and a lost device costs little of what it has already reported.
 *
 * Lines to the parent: "T test" when a test begins, "R row" with a row, "G json" with the device's identity,
 * "E" at the end.
 */
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

#define QUICK_S		50	/* of all tests of a quick run */
#define SAMPLE_S	0.1

static int validate_health_test(struct validate_device *d, const struct validate_test *t, double seconds);

#define SCREEN(name, weight, program)	{ "screen." name, validate_screen, weight, CAIRN_SCREEN_##program, 1 }
/* dsmem.pairs comes first: it tells the groups in which rates are compared. */
const struct validate_test validate_tests[] = {
	{ "dsmem.pairs", validate_pairs, 1, 0, 0 },
	SCREEN("f16", 6, F16), SCREEN("bf16", 3, BF16), SCREEN("tf32", 3, TF32), SCREEN("e4m3", 3, E4M3),
	SCREEN("e5m2", 2, E5M2), SCREEN("s8", 2, S8), SCREEN("f32", 3, F32), SCREEN("f64", 2, F64),
	SCREEN("int", 3, INT), SCREEN("special", 3, SPECIAL), SCREEN("memory", 4, MEMORY),
	SCREEN("mix", 6, MIX),
	{ "l2", validate_cache, 2, 0, 0 },
	{ "hbm", validate_memory, 5, 0, 1 },
	{ "copy", validate_copies, 2, 0, 1 },
	{ "health", validate_health_test, 0, 0, 1 },
};
const int validate_num_tests = sizeof(validate_tests) / sizeof(validate_tests[0]);

int validate_selects(const char *only, const char *test)
{
	char globs[512], *save, *glob;

	if (!only)
		return 1;
	snprintf(globs, sizeof(globs), "%s", only);
	for (glob = strtok_r(globs, ",", &save); glob; glob = strtok_r(NULL, ",", &save))
		if (!fnmatch(glob, test, 0))
			return 1;
	return 0;
}

/* ---- rows ---- */

json_t *validate_row(const char *test, int required)
{
	return json_pack("{s:s, s:s, s:b, s:s, s:[]}", "test", test, "verdict", "pass", "required", required,
			 "text", "", "findings");
}

enum validate_verdict validate_verdict_of(const json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "verdict"));
	int v = VALIDATE_PASS;

	/* a row without memory for its verdict has shown nothing */
	if (!name)
		return VALIDATE_NOT_RUN;
	while (v < VALIDATE_FAIL && strcmp(validate_verdict_name(v), name))
		v++;
	return v;
}

void validate_set(json_t *row, enum validate_verdict v, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	json_object_set_new(row, "verdict", json_string(validate_verdict_name(v)));
	json_object_set_new(row, "text", json_string(text));
}

json_t *validate_finding(json_t *row, enum validate_verdict v, const char *again, const char *fmt, ...)
{
	char text[512];
	va_list args;
	json_t *f;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	f = json_pack("{s:s, s:s, s:s?}", "verdict", validate_verdict_name(v), "text", text, "again", again);
	json_array_append_new(json_object_get(row, "findings"), f);
	if (v > validate_verdict_of(row))
		json_object_set_new(row, "verdict", json_string(validate_verdict_name(v)));
	return f;
}

int validate_report(struct validate_device *d, json_t *row)
{
	char *line = row ? json_dumps(row, JSON_COMPACT) : NULL;

	json_decref(row);
	if (!line)
		return cairn_error(ENOMEM, "no memory for a row");
	fprintf(d->out, "R %s\n", line);
	free(line);
	return 0;
}

int validate_not_run(struct validate_device *d, const struct validate_test *t, const char *why)
{
	json_t *row = validate_row(t->name, t->required);

	validate_set(row, VALIDATE_NOT_RUN, "%s", why);
	return validate_report(d, row);
}

/* ---- health ---- */

static void sample(struct validate_device *d)
{
	struct cairn_nvml_health h;
	uint32_t mw = 0, mhz = 0;

	d->sampled = cairn_now();
	if (cairn_nvml_health(d->nvml, 1u << CAIRN_NVML_REASONS | 1u << CAIRN_NVML_CELSIUS, &h))
		return;
	d->health.reasons |= h.value[CAIRN_NVML_REASONS];
	if (h.value[CAIRN_NVML_CELSIUS] > d->health.max_celsius)
		d->health.max_celsius = (uint32_t)h.value[CAIRN_NVML_CELSIUS];
	if (!cairn_nvml_power(d->nvml, &mw) && mw > d->health.max_mw)
		d->health.max_mw = mw;
	if (cairn_nvml_sm_clock(d->nvml, &mhz))
		return;
	if (mhz > d->health.max_mhz)
		d->health.max_mhz = mhz;
	if (!d->health.min_mhz || mhz < d->health.min_mhz)
		d->health.min_mhz = mhz;
}

int validate_sync(struct validate_device *d)
{
	CAIRN_TRY(d->impl.stream_sync(d->stream));
	if (d->nvml && cairn_now() - d->sampled >= SAMPLE_S)
		sample(d);
	return 0;
}

/* The kernel's log is read from here to the end of the run, if this user may. */
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
	sample(d);
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

/* Returns why the device may not be tested, or NULL. Called before this process has a context on it. */
static const char *busy(struct validate_device *d)
{
	static char why[96];
	int others = d->nvml && !d->opt->shared ? cairn_nvml_processes(d->nvml) : 0;

	/* the context of this process may be listed as well */
	if (others <= 1)
		return NULL;
	snprintf(why, sizeof(why), "the device is busy: %d processes compute on it (--shared allows it)",
		 others);
	return why;
}

static void say_device(struct validate_device *d)
{
	char uuid[96] = "";
	json_t *g;

	if (!d->nvml || cairn_nvml_uuid(d->nvml, uuid, sizeof(uuid)))
		uuid[0] = 0;
	g = json_pack("{s:s, s:s, s:i, s:s, s:s}", "gpu", d->info.name, "driver", d->info.driver, "units",
		      d->info.num_sms, "pci", d->pci, "uuid", uuid);
	if (g) {
		char *line = json_dumps(g, JSON_COMPACT);

		fprintf(d->out, "G %s\n", line ? line : "{}");
		free(line);
	}
	json_decref(g);
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
	d->budget_s = d->on_host ? QUICK_S / 10 : QUICK_S;
	if (d->opt->minutes > 0)
		d->budget_s = d->opt->minutes * 60;
	/* a host of one or two processors still has a majority */
	d->units = d->on_host && d->info.num_sms < 4 ? 4 : d->info.num_sms;
	if (d->units > CAIRN_SCREEN_MAX_UNITS)
		d->units = CAIRN_SCREEN_MAX_UNITS;
	for (int i = 0; i < VALIDATE_MAX_PLACES; i++)
		d->gpc[i] = -1;
	open_health(d);
	say_device(d);
	return 0;
}

/* Runs one pass over the tests. If the device fails, that test fails, and those after it did not run. */
static int run_pass(struct validate_device *d, double seconds, double sum)
{
	const char *lost = NULL;
	char why[600];

	for (int i = 0; i < validate_num_tests; i++) {
		const struct validate_test *t = &validate_tests[i];
		int ret;

		if (!validate_selects(d->opt->only, t->name))
			continue;
		if (lost) {
			validate_not_run(d, t, lost);
			continue;
		}
		fprintf(d->out, "T %s\n", t->name);
		ret = t->run(d, t, sum > 0 ? seconds * t->weight / sum : 0);
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

static void run_all(struct validate_device *d)
{
	double quick = d->on_host ? QUICK_S / 10 : QUICK_S;
	double begun = cairn_now(), all = d->budget_s, sum = 0;

	for (int i = 0; i < validate_num_tests; i++)
		if (validate_selects(d->opt->only, validate_tests[i].name))
			sum += validate_tests[i].weight;
	do {
		if (run_pass(d, all < quick ? all : quick, sum))
			return;
	} while (sum > 0 && all > quick && cairn_now() - begun < all);
}

void validate_device_run(FILE *out, const struct validate_options *opt, int number)
{
	static struct validate_device d;
	const char *why = NULL;
	int ret;

	d.opt = opt;
	d.out = out;
	d.number = number;
	ret = start(&d);
	if (ret || (why = busy(&d))) {
		char text[600];

		snprintf(text, sizeof(text), "%s", why ? why : cairn_last_error());
		for (int i = 0; i < validate_num_tests; i++)
			if (validate_selects(opt->only, validate_tests[i].name))
				validate_not_run(&d, &validate_tests[i], text);
	} else if (opt->replay) {
		if (validate_replay(&d, opt->replay))
			validate_not_run(&d, &(struct validate_test){ .name = "replay", .required = 1 },
					 cairn_impl_error(&d.impl));
	} else {
		run_all(&d);
	}
	cairn_nvml_close(d.nvml);
	if (d.stream)
		d.impl.stream_destroy(d.stream);
	if (d.started)
		cairn_impl_stop(&d.impl);
	fprintf(out, "E\n");
}
