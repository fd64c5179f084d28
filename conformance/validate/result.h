/* SPDX-License-Identifier: Apache-2.0 */
/*
 * result - what the processes of all devices have reported: compared (compare.c) and written (report.c)
 */
#ifndef CAIRN_VALIDATE_RESULT_H
#define CAIRN_VALIDATE_RESULT_H

#include "conformance/suite/child.h"
#include "conformance/validate/validate.h"

struct validate_result {
	const struct validate_options *opt;
	int number, index, ended;	/* index: among the devices that are tested */
	char testing[64];
	json_t *who;			/* as device.c says it; NULL if it never did */
	json_t *rows;			/* by test */
	struct cairn_child child;
};

/* Returns a member of an object that is a string, or "". */
const char *validate_text(const json_t *object, const char *key);

/*
 * compare.c: compares devices of one model with each other, and adds findings to their rows. -ENOMEM.
 */
int validate_compare(struct validate_result *devices, int num);
/*
 * ranges.c: compares each device's figures with the recorded range of its model and configuration, and adds
 * the row "ranges".
 */
void validate_compare_ranges(struct validate_result *devices, int num);
/* Returns whether more is better of the figure with this name. */
int validate_more_is_better(const char *figure);

/*
 * Prints all results, writes them to json and junit (NULL: not wanted), and returns the exit status. The
 * caller closes the files.
 */
int validate_print(const struct validate_options *opt, struct validate_result *devices, int num, FILE *json,
		   FILE *junit);

#endif
