/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_find - what the parts of `cairn doctor` find; private to conformance/doctor */
#ifndef CAIRN_DOCTOR_FIND_H
#define CAIRN_DOCTOR_FIND_H

#include <stdio.h>

enum doctor_state {
	DOCTOR_OK,
	DOCTOR_MISSING,
	DOCTOR_BROKEN,		/* it is there, but cannot be used */
	DOCTOR_LOW,		/* a limit that may be too low */
	DOCTOR_UNUSED,		/* this build would not use it */
	DOCTOR_NUM_STATES
};

struct doctor_finding {
	const char *name;
	enum doctor_state state;
	char found[512];		/* one line */
	const char *costs, *type;	/* shown unless the state is ok or unused; NULL: nothing to show */
};

#define DOCTOR_MOST	64

struct doctor_findings {
	struct doctor_finding list[DOCTOR_MOST];	/* further ones are dropped: a machine with 40 GPUs */
	int num;
	int cpu_runs, usable_gpus;
};

struct doctor_finding *doctor_add(struct doctor_findings *all, const char *name, enum doctor_state state,
				  const char *costs, const char *type, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));

/*
 * Runs probe(out, arg) in a process of its own, which writes lines "STATE<TAB>TEXT", STATE a number. Adds a
 * finding for each line, and one that is broken if the process dies, is silent for 20 seconds
 * ($CAIRN_TIMEOUT) or writes nothing.
 */
void doctor_probe(struct doctor_findings *all, const char *name, const char *costs, const char *type,
		  void (*probe)(FILE *out, void *arg), void *arg);

void doctor_look_cpu(struct doctor_findings *all);
void doctor_look_gpus(struct doctor_findings *all);
void doctor_look_libraries(struct doctor_findings *all);
void doctor_look_limits(struct doctor_findings *all);

#endif
