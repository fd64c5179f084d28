/* SPDX-License-Identifier: Apache-2.0 */
/*
 * validate - `cairn validate`: is each device of this node sound?
 *
 * One process a device (device.c) runs the tests and reports each as a row, a JSON object on one line; a
 * later row of the same test replaces the earlier one. validate.c starts these processes, judges devices
 * against each other, and prints. Nothing is set, reset or locked on any device.
 */
#ifndef CAIRN_VALIDATE_H
#define CAIRN_VALIDATE_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "conformance/abi.h"
#include "conformance/validate/health.h"
#include "conformance/validate/judge.h"

struct validate_options {
	const char *impl, *only, *replay, *json, *junit;
	int64_t device;			/* -1: all */
	int64_t seed;
	float minutes;			/* 0: quick */
	int strict, shared, identify;
};

enum { VALIDATE_MAX_PLACES = 256 };	/* places that a map covers */

/* One device, in its own process. */
struct validate_device {
	const struct validate_options *opt;
	FILE *out;
	int number;
	struct cairn_impl impl;
	struct cairn_device_info info;
	void *stream;
	char pci[32];
	int started;
	int on_host;			/* a host table: units are threads */
	int32_t units;
	double budget_s;		/* of all tests; replays of an event take at most 2% of it */
	struct cairn_nvml *nvml;
	struct validate_health health;
	double sampled;			/* time of the last sample of the driver's counters */
	char no_health[160];		/* why there are no counters, "" if there are */
	int32_t gpc[VALIDATE_MAX_PLACES];	/* group of each place; -1: unknown */
};

/* A test. run() reports its row; it is called again for each slice of a long run. */
struct validate_test {
	const char *name;
	int (*run)(struct validate_device *d, const struct validate_test *t, double seconds);
	double weight;			/* share of the budget */
	int program;			/* screens: enum cairn_screen_program */
	int required;			/* a device that cannot run it is not validated */
};

extern const struct validate_test validate_tests[];
extern const int validate_num_tests;

/* In the device's process: runs all tests that the options select, and writes lines to out. */
void validate_device_run(FILE *out, const struct validate_options *opt, int number);

/* Returns whether --only selects a test: it lists globs, separated by commas. */
int validate_selects(const char *only, const char *test);

/* Waits for the stream, and samples the driver's counters if 100 ms have passed. */
int validate_sync(struct validate_device *d);

/*
 * A row under construction: {"test", "verdict", "required", "text", "findings": [...], ...}. The caller adds
 * members and calls validate_report(), which frees it. Memory failures show there.
 */
json_t *validate_row(const char *test, int required);
/* Adds a finding and makes the row's verdict at least v. again: the command that repeats it, or NULL. */
json_t *validate_finding(json_t *row, enum validate_verdict v, const char *again, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Sets the verdict and the text. */
void validate_set(json_t *row, enum validate_verdict v, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
enum validate_verdict validate_verdict_of(const json_t *row);
int validate_report(struct validate_device *d, json_t *row);
/* Reports a test that did not run. */
int validate_not_run(struct validate_device *d, const struct validate_test *t, const char *why);

/* screens.c; --replay repeats one step of evidence */
int validate_screen(struct validate_device *d, const struct validate_test *t, double seconds);
int validate_replay(struct validate_device *d, const char *what);
/* map.c */
int validate_pairs(struct validate_device *d, const struct validate_test *t, double seconds);
/* memory.c */
int validate_memory(struct validate_device *d, const struct validate_test *t, double seconds);
int validate_cache(struct validate_device *d, const struct validate_test *t, double seconds);
int validate_copies(struct validate_device *d, const struct validate_test *t, double seconds);

int cairn_cmd_validate(int argc, char **argv);

#endif
