/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child - processes that report lines over a pipe, under a time-out that restarts with every line
 *
 * Several children run at the same time, and one call waits for all of them. Each child leads its own process
 * group. The group is killed when the child ends, and the kernel kills the child when the suite itself dies.
 */
#ifndef CAIRN_CHILD_H
#define CAIRN_CHILD_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct cairn_child {
	/* set by the caller */
	void (*run)(FILE *out, void *arg);		/* in the child; a line of out reaches line() */
	void (*line)(char *text, void *arg);		/* in the parent, without the newline */
	void *arg;
	int timeout_s;					/* between two lines */

	/* set when the child has ended: "" if it exited with status 0, else how it died */
	char death[96];

	/* private */
	pid_t pid;
	int fd;
	double deadline;
	char *buf;
	size_t len, cap;
};

/* Starts c->run(). Returns 0, or -errno if there is no pipe, process or memory; the text then says which. */
int cairn_child_start(struct cairn_child *c);

/* Passes on the lines of all children until one of them has ended, and returns that one's index. */
int cairn_children_wait(struct cairn_child *const children[], int num);

/* Runs one child from start to end. Returns NULL, or how it died; the text is valid until the next call. */
const char *cairn_child_run(struct cairn_child *c);

#endif
