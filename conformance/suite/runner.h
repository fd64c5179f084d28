/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner - what the commands of the suite share: options, the selection of cases, test processes
 *
 * Cases run in child processes (child.h), which report one line at a time:
 *   B name           a case begins           P name ratio judged    passed
 *   F name           failed                  S name<TAB>reason      skipped
 *   D text           diagnostic of the case under way
 *   J json           a bench record
 * `cairn check` puts the numbers of the table and the case in front of the name (check_child.h). If a child
 * crashes or hangs, the case under way fails and another child continues.
 */
#ifndef CAIRN_RUNNER_H
#define CAIRN_RUNNER_H

#include <stdint.h>
#include <stdio.h>

#include "conformance/abi.h"
#include "conformance/harness.h"
#include "conformance/suite/child.h"
#include "conformance/suite/lists.h"

#define CAIRN_SANITIZE_CASES	24	/* --sanitize without a number */
#define CAIRN_MAX_IMPLS		8
#define CAIRN_MAX_SKIPS		32
#define CAIRN_DRAWN_FEW		(-1)
#define CAIRN_DRAWN_MANY	(-2)

struct cairn_options {
	const char *impls[CAIRN_MAX_IMPLS];	/* names or paths; at least one */
	int num_impls;
	char *const *globs;			/* num_globs 0: everything */
	int num_globs;
	const char *skips[CAIRN_MAX_SKIPS];	/* globs that exclude cases which globs select */
	int num_skips;
	uint64_t seed;
	int repeat;
	/*
	 * cases that are drawn for each family (draw.h); CAIRN_DRAWN_FEW and _MANY: the family's own numbers,
	 * for built-in tables and for plug-ins
	 */
	int drawn;
	int device;
	const char *device_text;		/* --device as given; NULL: not given */
	int verbose;
	int jobs;		/* check: children at the same time; 0: one for each processor */
	/* check: run every num_shards-th case, beginning with the shard-th (from 1); 0: all cases */
	int shard, num_shards;
	int slowest;		/* check: how many of the slowest cases to print */
	/* run at most this many cases of each family, selected by sanitize.c; 0: all cases */
	int sanitize;
	int one_kind;		/* check: run a case with one of its kinds, in turn */
	int once;		/* bench: one call of a row, for a profiler */
	const char *json;	/* files to write; NULL: none */
	const char *junit;
	struct cairn_list mustpass, waivers, catchers;
	const char *mustpass_file;		/* NULL: not given */
	const char *program;	/* argv[0], for the commands that repeat a case */
};

struct cairn_totals {
	int passed, failed, skipped;
};

/* The ceilings measured in this run, shared between children; 0 until known. */
struct cairn_roofs {
	double gbps[2], tflops[2];	/* [1]: host memory */
};

/* Makes the tables' names unique: two plug-ins may have the same name, and a table may be given twice. */
int cairn_name_apart(const struct cairn_options *opt, struct cairn_impl *impls);

/* Returns whether opt selects the case of f with this full name. */
int cairn_glob_match(const struct cairn_options *opt, const struct cairn_family *f, const char *case_name);
/* Returns whether opt selects any case of f. */
int cairn_family_selected(const struct cairn_options *opt, const struct cairn_family *f);

/* A selected item: a unit, a case with one kind of input, or a refused call. */
struct cairn_selected {
	char name[224];			/* stage.family.case.kind */
	struct cairn_case desc;
	int case_index;			/* index among the cases, units or refused calls of the family */
	enum { CAIRN_SEL_CASE, CAIRN_SEL_REJECT, CAIRN_SEL_UNIT } what;
	enum cairn_kind kind;
	uint64_t seed;
};
typedef int (*cairn_each_fn)(const struct cairn_selected *s, void *arg);
/*
 * Calls fn for each selected case of f, in order, until fn returns non-zero; returns that value, or 0, or
 * -ENOMEM if there was no memory to list all cases.
 */
int cairn_each(const struct cairn_options *opt, const struct cairn_family *f, cairn_each_fn fn, void *arg);
/* Estimates what a case costs the host, in multiplications; refused calls and units cost nothing. */
double cairn_cost(const struct cairn_selected *s);

/*
 * --sanitize: sets takes[i] to 1 for each case to run; i counts in the order of cairn_each(), and num is the
 * length of takes. Returns the number of cases taken, or -ENOMEM.
 */
int cairn_sanitize_plan(const struct cairn_options *opt, const struct cairn_family *f,
			uint8_t *takes, int num);

/*
 * Returns the seconds that a child of f may be silent: the family's time-out, four times as long under
 * --sanitize, or $CAIRN_TIMEOUT.
 */
int cairn_timeout_s(const struct cairn_options *opt, const struct cairn_family *f);

/* Returns the number of processors that this process may use. */
int cairn_num_processors(void);

/*
 * Closes the file of an option, --json or --junit; NULL is legal. Returns -EIO and prints a line on standard
 * error if the file is incomplete.
 */
int cairn_close_output(FILE *f, const char *command, const char *option, const char *path);

int cairn_cmd_check(const struct cairn_options *opt);
int cairn_cmd_bench(const struct cairn_options *opt);
int cairn_cmd_mutants(const struct cairn_options *opt);

/* Units (unit.c) */
enum { CAIRN_UNIT_PASS, CAIRN_UNIT_FAIL, CAIRN_UNIT_SKIP };
int cairn_unit_run(const struct cairn_unit *u, uint64_t seed, FILE *out, char *reason, size_t reason_len);
/* Runs a measure of f; writes its rows to out as J lines, and as P lines too if nothing failed. */
int cairn_measure_run(const struct cairn_family *f, const struct cairn_unit *u, uint64_t seed, FILE *out,
		      char *reason, size_t reason_len);

/*
 * Handles a line from a child of `cairn bench` (measure.c): writes rows to json and the rest to standard
 * output, and adds to sum.
 */
void cairn_bench_line(const char *text, FILE *json, struct cairn_totals *sum);

/* measure.c: runs the measures of f that opt selects, each in a child; prints, and adds to sum. */
int cairn_measures_selected(const struct cairn_options *opt, const struct cairn_family *f);
void cairn_measures(const struct cairn_options *opt, const struct cairn_family *f, FILE *json,
		    struct cairn_totals *sum);

#endif
