/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner - one process and one time-out for each family and table
 *
 * The parent forks a child for each (family, table). The child reports over a pipe, a line each:
 *   B name           a case begins           P name ratio judged    passed
 *   F name           failed                  S name<TAB>reason      skipped
 *   D text           diagnostic for what is underway
 *   J json           a bench record
 * A child that crashes, hangs or loses the device costs the cases it had not finished, no more.
 */
#ifndef CAIRN_RUNNER_H
#define CAIRN_RUNNER_H

#include <stdint.h>
#include <stdio.h>

#include "abi.h"
#include "harness.h"
#include "lists.h"

#define CAIRN_SANITIZE_CASES	24	/* unless it is said how many */

struct cairn_options {
	const char *impls[8];		/* names or paths; at least one */
	int num_impls;
	char *const *globs;		/* none: everything */
	int num_globs;
	const char *skips[8];		/* globs of what is not selected after all */
	int num_skips;
	uint64_t seed;
	int repeat;
	int device;
	int verbose, quiet;
	int sanitize;			/* a small selection of every family: so many cases at most; 0: all */
	int once;			/* bench: one call of a row, for a profiler */
	const char *json;		/* NULL: none */
	struct cairn_list mustpass, waivers;
	const char *program;		/* for repro lines */
};

struct cairn_totals {
	int passed, failed, skipped;
};

/* The ceilings measured in this run, shared between children; 0 until known. */
struct cairn_roofs {
	double gbps[2], tflops[2];	/* [1]: host memory */
};

typedef void (*cairn_child_fn)(FILE *out, const struct cairn_family *f, const struct cairn_impl *impl,
			       const struct cairn_options *opt, void *arg);

int cairn_glob_match(const struct cairn_options *opt, const struct cairn_family *f, const char *case_name);
/* Does any case of f match? */
int cairn_family_selected(const struct cairn_options *opt, const struct cairn_family *f);

/*
 * Calls fn(family case name) for each selected case, in order. kind < 0 for rejects and units.
 * Stops when fn returns non-zero.
 */
struct cairn_selected {
	char name[192];			/* stage.family.case.kind */
	struct cairn_case desc;
	int case_index;			/* also of units and rejects */
	enum { CAIRN_SEL_CASE, CAIRN_SEL_REJECT, CAIRN_SEL_UNIT } what;
	enum cairn_kind kind;
};
typedef int (*cairn_each_fn)(const struct cairn_selected *s, void *arg);
int cairn_each(const struct cairn_options *opt, const struct cairn_family *f, cairn_each_fn fn, void *arg);

/*
 * --sanitize: takes[i] = 1 for what of f is to run, i in the order of cairn_each(); num: how many of these
 * there are. Returns how many it took, or -ENOMEM.
 */
int cairn_sanitize_plan(const struct cairn_options *opt, const struct cairn_family *f,
			uint8_t *takes, int num);

/* Forks, runs fn in the child under the family's time-out, passes its lines to line(). Returns 0, or a
 * text of how the child died. */
const char *cairn_run_child(cairn_child_fn fn, const struct cairn_family *f, const struct cairn_impl *impl,
			    const struct cairn_options *opt, void *arg,
			    void (*line)(char *text, void *line_arg), void *line_arg);

/* Closes the file of --json; -EIO and a line on standard error: not all of it is written. NULL is fine. */
int cairn_close_json(FILE *json, const struct cairn_options *opt, const char *command);

int cairn_cmd_check(const struct cairn_options *opt);
int cairn_cmd_bench(const struct cairn_options *opt);
int cairn_cmd_mutants(const struct cairn_options *opt);

/* Units (unit.c) */
enum { CAIRN_UNIT_PASS, CAIRN_UNIT_FAIL, CAIRN_UNIT_SKIP };
int cairn_unit_run(const struct cairn_unit *u, uint64_t seed, FILE *out, char *reason, size_t reason_len);
/* The same for a measure of f; its rows go to out as J lines, and as P lines if all is well. */
int cairn_measure_run(const struct cairn_family *f, const struct cairn_unit *u, uint64_t seed, FILE *out,
		      char *reason, size_t reason_len);

/* What a child of `cairn bench` says (measure.c): rows to json, the rest to standard output; adds to sum. */
void cairn_bench_line(const char *text, FILE *json, struct cairn_totals *sum);

/* Measures (measure.c): those of f that opt selects, each in a child; prints, and adds to sum. */
int cairn_measures_selected(const struct cairn_options *opt, const struct cairn_family *f);
void cairn_measures(const struct cairn_options *opt, const struct cairn_family *f, FILE *json,
		    struct cairn_totals *sum);

#endif
