/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_resume_fault - fault injection for serve_resume.c
 *
 * In the normal build FAULT() is 0 and costs nothing. serve_resume_mutants.c compiles the module a second
 * time, under other names, with fault injection; serve_resume_test.c must detect each fault.
 */
#ifndef CAIRN_SERVE_RESUME_FAULT_H
#define CAIRN_SERVE_RESUME_FAULT_H

enum serve_resume_fault {
	FAULT_NONE,
	FAULT_TOKENS_LOST,		/* an answer begins anew behind what the client has */
	FAULT_LAST_LOST,		/* its last token is drawn again */
	FAULT_LENGTH_KEPT,		/* it may have max_tokens more */
	FAULT_SEED_OF_FIRST,		/* all answers go on with the seed of the first one */
	FAULT_FIRST_ONLY,		/* of several answers, only the first one goes on */
	FAULT_FUTILE,			/* a job may make any number of workers fail */
	FAULT_ENDLESS,			/* so may all jobs together */
	NUM_FAULTS
};

#ifdef CAIRN_SERVE_RESUME_MUTANTS
extern int serve_resume_fault;
#define FAULT(name)	(serve_resume_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
