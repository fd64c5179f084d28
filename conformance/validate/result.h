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
	int number, ended;
	char testing[64];
	json_t *who;			/* as device.c says it; NULL if it never did */
	json_t *rows;			/* by test */
	struct cairn_child child;
};

/* Returns a member of an object that is a string, or "". */
const char *validate_text(const json_t *object, const char *key);

/* Compares devices of one model with each other; adds findings to their rows. */
void validate_compare(struct validate_result *devices, int num);

/*
 * Prints all results, writes them to json and junit (NULL: not wanted), and returns the exit status. The
 * caller closes the files.
 */
int validate_print(const struct validate_options *opt, struct validate_result *devices, int num, FILE *json,
		   FILE *junit);

#endif
