/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_report - the results of `cairn check`, and how they are written: TAP, JSON lines, JUnit, the slowest
 * cases
 *
 * A family has a row for each table, one row if it is a family of units. Results arrive in any order and are
 * printed in that of the cases, when the family is complete.
 */
#ifndef CAIRN_CHECK_REPORT_H
#define CAIRN_CHECK_REPORT_H

#include "conformance/suite/runner.h"

struct cairn_check_result {
	char verdict;			/* P passed, F failed, S skipped */
	int at;				/* which case */
	double ratio, seconds;
	long long judged;
	/* S: the reason; F: how the process died, or NULL. Freed with the family */
	char *text;
	char *notes;			/* lines, or NULL. Freed with the family */
};

struct cairn_check_row {
	const char *impl;		/* the table's name; NULL: units */
	struct cairn_check_result *results;
	int num_results, room;
	char death[256];		/* why cases are missing, or "" */
};

struct cairn_check_family {
	const struct cairn_options *opt;
	const struct cairn_family *f;
	const struct cairn_selected *cases;
	struct cairn_check_row rows[CAIRN_MAX_IMPLS];
	int num_rows, expected;		/* results of each row */
	FILE *json;			/* takes a record of each result as it arrives; NULL: none */
};

int cairn_check_family_open(struct cairn_check_family *r, const struct cairn_options *opt,
			    const struct cairn_family *f, const struct cairn_impl *impls, int num_rows,
			    const struct cairn_selected *cases, int expected);
void cairn_check_family_close(struct cairn_check_family *r);

/* Takes over the texts of *result. */
void cairn_check_result(struct cairn_check_family *r, int row, const struct cairn_check_result *result);
/* The row's table is not called any more; at: the case that it died of, or -1. */
void cairn_check_death(struct cairn_check_family *r, int row, int at, const char *how);

struct cairn_check_sink {
	const struct cairn_options *opt;
	struct cairn_totals sum;
	FILE *json;			/* open from cairn_check_sink_open() on, or NULL */
	/* private */
	FILE *junit;
	int number;			/* rows printed */
	struct cairn_slow {
		double seconds;
		char name[224];		/* table:stage.family.case.kind */
	} *slow;			/* [opt->slowest], the slowest first */
};

/*
 * Opens the files of opt and prints the head. -EINVAL, and a line on standard error: a file cannot be
 * written.
 */
int cairn_check_sink_open(struct cairn_check_sink *sink);
/* Prints a complete family; results that are missing count as failed. */
void cairn_check_print(struct cairn_check_sink *sink, struct cairn_check_family *r);
/*
 * Prints the totals, the last line of the output. -EIO, and a line on standard error: a file is incomplete.
 */
int cairn_check_sink_close(struct cairn_check_sink *sink);

#endif
