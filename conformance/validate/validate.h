/* SPDX-License-Identifier: Apache-2.0 */
/*
 * validate - `cairn validate`: is each device of this node sound?
 *
 * One process a device (device.c) runs the tests and reports each as a row, a JSON object on one line; a
 * later row of the same test replaces the earlier one. After that, another process a device tests the links
 * between them (links.h). validate.c starts these processes, judges devices against each other, and prints.
 * Nothing is set, reset or locked on any device.
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
	const char *ranges;		/* folder; NULL: the one that comes with the program */
	int64_t device;			/* -1: all */
	int64_t seed;
	float minutes;			/* 0: quick */
	float stagger;			/* seconds between two devices' starts of full load */
	int strict, shared, identify, nccl;
};

enum {
	VALIDATE_MAX_PLACES = 256,	/* places that a map covers */
	VALIDATE_NAME_LEN = 32,		/* of a test */
	VALIDATE_MAX_DEVICES = 64	/* of a node */
};

/* The load under which a program of screen runs (screens.c). */
enum validate_phase { VALIDATE_COOL, VALIDATE_FULL_LOAD, VALIDATE_PULSES, VALIDATE_NUM_PHASES };

/* What the driver's counters say of a moment; 0: unknown. */
struct validate_load {
	uint32_t mhz, mw, celsius;
};

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
	double budget_s;		/* of all tests; replay.c takes shares of it */
	struct cairn_nvml *nvml;
	struct validate_health health;
	double sampled;			/* time of the last sample of the driver's counters */
	struct validate_load load;	/* that sample */
	const struct validate_test *test;	/* the one that runs; NULL: none */
	json_t *found;			/* findings of earlier turns, by test */
	uint32_t upset[CAIRN_SCREEN_MAX_UNITS];	/* bit i: validate_tests[i] has found the place to differ */
	int staggered;			/* it has waited for its turn to start full load */
	char no_health[160];		/* why there are no counters, "" if there are */
	int32_t gpc[VALIDATE_MAX_PLACES];	/* group of each place; -1: unknown */
	int32_t sibling[VALIDATE_MAX_PLACES];	/* the other place of its TPC; -1: unknown */
	int has_map;			/* gpc and sibling are known, as far as they can be */
	double replayed_s;		/* spent on replays */
	double extended_s;		/* by which upsets have extended the run */
	int turn;			/* turns over all tests so far */
};

enum validate_kind {
	VALIDATE_ONE_TURN,		/* a row is about one turn of a longer run */
	VALIDATE_ALL_TURNS,		/* it is about all turns so far */
	VALIDATE_OF_NODE		/* a test of all devices together, after those of each (links.c) */
};

/* A test. run() reports its row; it is called again for each slice of a long run. */
struct validate_test {
	const char *name;
	int (*run)(struct validate_device *d, const struct validate_test *t, double seconds);
	double seconds;			/* in a quick run, and in each turn of a longer one */
	int required;			/* a device that cannot run it is not validated */
	enum validate_phase phase;
	int program;			/* screens: enum cairn_screen_program */
	int kind;			/* enum validate_kind */
};

extern const struct validate_test validate_tests[];
extern const int validate_num_tests;

/* Returns the sum, by the operation stream, of a block of the words that its WRITE makes from a seed. */
static inline uint64_t validate_block_sum(uint64_t seed, int64_t block)
{
	const uint64_t words = CAIRN_STREAM_BLOCK / 8;

	return ((seed + (uint64_t)block * words) * words + words * (words - 1) / 2) * CAIRN_STREAM_MULT;
}

/*
 * In the device's process: runs all tests that the options select, and writes lines to out. end: when the run
 * is over (cairn_now()); 0: after the time of a quick run.
 */
void validate_device_run(FILE *out, const struct validate_options *opt, int number, double end);
/*
 * Returns how long a test may run. It is planned for `seconds`; it and the tests after it are planned for
 * `planned` seconds together, and `left` seconds remain. The result is the test's share of `left`, but never
 * more than `seconds`, so that short plans end early.
 */
double validate_slice(double seconds, double planned, double left);
/* Opens a device in a process of its own. Returns NULL, or why it may not be tested. */
const char *validate_device_open(struct validate_device *d, FILE *out, const struct validate_options *opt,
				 int number);
void validate_device_close(struct validate_device *d);

/* Returns whether --only selects a test, by its name or by that of its rates: globs, separated by commas. */
int validate_selects(const char *only, const struct validate_test *t);
/* Writes the name of the row of a screen's rates. */
void validate_rate_name(const struct validate_test *t, char name[VALIDATE_NAME_LEN]);

/* Waits for the stream, and samples the driver's counters if 100 ms have passed. */
int validate_sync(struct validate_device *d);
/* Samples the driver's counters now, if there are any. */
void validate_sample(struct validate_device *d);

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
/*
 * Adds a figure by which devices and runs are compared: the medians of v, [n], in windows of time. A name
 * that ends in "gbps" says that more is better, any other name that less is. With --shared it adds nothing.
 */
void validate_figure(const struct validate_device *d, json_t *row, const char *name, const double *v,
		     int32_t n);
int validate_report(struct validate_device *d, json_t *row);
/* Reports a test that did not run. */
int validate_not_run(struct validate_device *d, const struct validate_test *t, const char *why);

/* screens.c; --replay repeats one step of evidence */
int validate_screen(struct validate_device *d, const struct validate_test *t, double seconds);
int validate_replay(struct validate_device *d, const char *what);
/* map.c */
int validate_pairs(struct validate_device *d, const struct validate_test *t, double seconds);
/* map.c: fills gpc and sibling, if dsmem.pairs has not done so. */
void validate_learn_map(struct validate_device *d);
/* memory.c */
int validate_memory(struct validate_device *d, const struct validate_test *t, double seconds);
int validate_cache(struct validate_device *d, const struct validate_test *t, double seconds);
/* stack.c */
int validate_stack(struct validate_device *d, const struct validate_test *t, double seconds);
/* copies.c */
int validate_copies(struct validate_device *d, const struct validate_test *t, double seconds);
int validate_launches(struct validate_device *d, const struct validate_test *t, double seconds);

int cairn_cmd_validate(int argc, char **argv);

#endif
