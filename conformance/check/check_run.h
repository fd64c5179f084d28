/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_run - a run of `cairn check`: its families, and the processes that judge them; for check.c and
 * check_worker.c
 */
#ifndef CAIRN_CHECK_RUN_H
#define CAIRN_CHECK_RUN_H

#include "conformance/check/check_child.h"
#include "conformance/check/check_report.h"

#define CAIRN_MAX_FAMILIES	512

/* A family: its cases, and their results so far. */
struct cairn_check_group {
	struct cairn_check_family r;	/* the family's results */
	struct cairn_check_work work;	/* what each of its processes gets at its start */
	struct cairn_selected *cases;
	uint8_t *takes;
	int *order;
	int running, started;		/* processes */
	int deaths[CAIRN_MAX_IMPLS], hangs[CAIRN_MAX_IMPLS];	/* number of processes, by table */
	int printed;
};

struct cairn_check_worker {
	struct cairn_child child;
	struct cairn_check_run *run;
	struct cairn_check_group *g;	/* the family whose cases it runs now */
	struct cairn_check_work work;
	int impl, item;			/* the case under way; impl -1: none */
	int last_impl, last_item;	/* taken last; last_impl -1: no table has been judged yet */
	int called, called_item;	/* the table called last, or -1, and for which item */
	int beside;			/* the table that runs a call outside the cases, or -1 */
	char doing[32];			/* the name of that call */
	int lost;			/* the device was lost: the process ends */
	char *notes;			/* diagnostics of the case under way */
};

struct cairn_check_run {
	const struct cairn_options *opt;
	struct cairn_impl impls[CAIRN_MAX_IMPLS];
	struct cairn_check_shared *shared;
	struct cairn_check_group *groups[CAIRN_MAX_FAMILIES];
	int num_groups;
	struct cairn_check_worker *workers[CAIRN_CHECK_MAX_WORKERS];
	uint8_t slots[CAIRN_CHECK_MAX_WORKERS];	/* 1: taken by a process */
	int num_workers;
	int jobs;
};

/* Returns the index of the family with the most work left per process, or -1 if none needs one more. */
int cairn_check_neediest(const struct cairn_check_run *r);

/*
 * Starts a process of family g. It continues with item resume_item at table resume_impl (item -1: takes the
 * next item). Returns 0 or -errno.
 */
int cairn_check_start(struct cairn_check_run *r, struct cairn_check_group *g, int resume_item,
		      int resume_impl);
/*
 * Handles the end of the i-th process. If it died, the case under way has failed and another process
 * continues. A table that kills many processes, or hangs, is not called again in that family.
 */
int cairn_check_ended(struct cairn_check_run *r, int i);

#endif
