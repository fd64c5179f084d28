/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_report - collects the results of `cairn check` and writes them: TAP here, JSON lines and JUnit in
 * check_record.c
 *
 * A family has a row for each table, or one row if it is a family of units. Results arrive in any order. When
 * the family is complete, they are printed in the order of the cases. A case that no process has run gets the
 * result `failed`, so that every case has one.
 */
#ifndef CAIRN_CHECK_REPORT_H
#define CAIRN_CHECK_REPORT_H

#include "conformance/suite/runner.h"

struct cairn_check_result {
	char verdict;			/* P passed, F failed, S skipped, N not run, which counts as failed */
	int at;				/* index of the case */
	int item;			/* index among the cases times --repeat */
	uint64_t seed;
	double ratio, seconds;
	long long judged;
	/* S, N: the reason; F: how the process died, or NULL. Freed with the family */
	char *text;
	char *notes;			/* lines of diagnostics, or NULL. Freed with the family */
};

struct cairn_check_row {
	const char *impl;		/* the table's name; NULL: units */
	const char *impl_option;	/* the table as given to --impl */
	struct cairn_check_result *results;
	int num_results;
	uint8_t *seen;			/* [expected]: 1: the item has a result */
	char death[256];		/* why no process calls the table any more, or "" */
};

struct cairn_check_family {
	const struct cairn_options *opt;
	const struct cairn_family *f;
	const struct cairn_selected *cases;
	const int *order;		/* item i is case order[i] */
	int num_cases;
	struct cairn_check_row rows[CAIRN_MAX_IMPLS];
	int num_rows, expected;		/* results of each row */
	char left_out[128];		/* why no case runs and no line is printed, or "" */
};

/* impls: NULL for units. Returns 0, or -ENOMEM if there is no memory for the results. */
int cairn_check_family_open(struct cairn_check_family *r, const struct cairn_options *opt,
			    const struct cairn_family *f, const struct cairn_impl *impls, int num_rows,
			    const struct cairn_selected *cases, const int *order, int num_cases);
void cairn_check_family_close(struct cairn_check_family *r);

/* Adds *result and takes over its texts; sets at and seed from item. Drops a second result of an item. */
void cairn_check_result(struct cairn_check_family *r, int row, struct cairn_check_result *result);
/* Turns the result that an item already has into a failure. */
void cairn_check_fail(struct cairn_check_family *r, int row, int item, const char *how);
/* Notes that the row's table is no longer called. */
void cairn_check_death(struct cairn_check_family *r, int row, const char *how);

struct cairn_check_sink {
	const struct cairn_options *opt;
	struct cairn_totals sum;
	/* private */
	FILE *json, *junit;
	int number;			/* rows printed */
	int not_run;			/* how many of sum.failed have not run */
	struct cairn_slow {
		double seconds;
		char name[256];		/* table:stage.family.case.kind */
	} *slow;			/* [opt->slowest], the slowest first */
};

/*
 * Opens the files of opt and prints the head. Returns -EINVAL and prints a line on standard error if a file
 * cannot be written.
 */
int cairn_check_sink_open(struct cairn_check_sink *sink);
/* Prints a complete family; results that are missing count as failed. */
void cairn_check_print(struct cairn_check_sink *sink, struct cairn_check_family *r);
/*
 * Prints the totals, the last line of the output. Returns -EIO and prints a line on standard error if a file
 * is incomplete.
 */
int cairn_check_sink_close(struct cairn_check_sink *sink);

/* ---- check_record.c ---- */

/*
 * Writes the shell command that repeats a case of a row. It contains everything that affects the result: the
 * program, the table as it was given, the device, the list of must-pass cases, and the seed.
 */
void cairn_check_again(const struct cairn_check_family *r, const struct cairn_check_row *w,
		       const struct cairn_check_result *x, char *line, size_t len);
void cairn_check_json(FILE *f, const struct cairn_check_family *r, const struct cairn_check_row *w,
		      const struct cairn_check_result *x);
void cairn_check_junit_suite(FILE *f, const char *suite);
void cairn_check_junit(FILE *f, const struct cairn_check_family *r, const struct cairn_check_row *w,
		       const struct cairn_check_result *x, const char *suite);

#endif
