/* SPDX-License-Identifier: Apache-2.0 */
/* comm_join - what comm_open() of all tables does alike; for comm_cpu.c and comm_cuda.c */
#ifndef CAIRN_COMM_JOIN_H
#define CAIRN_COMM_JOIN_H

#include "primitives/comm/comm.h"

/* What every rank tells the others first. The members that follow it belong to the table. */
struct comm_hello {
	int32_t status;			/* 0, or the -errno of what the rank has prepared */
	int32_t pid, ranks, table;	/* table: a number that tells the tables apart */
	uint64_t process;		/* with pid: tells processes of different containers apart */
	uint64_t heap_bytes;
};

enum { COMM_TABLE_HOST = 1, COMM_TABLE_CUDA };

void comm_greet(struct comm_hello *mine, const struct cairn_comm_args *a, int table);
/* Returns 0 if rank r has prepared its part and agrees with this rank, else an error that names it. */
int comm_check_hello(const struct comm_hello *theirs, int32_t r, const struct comm_hello *mine);
int comm_same_process(const struct comm_hello *a, const struct comm_hello *b);
/* Tells all ranks this one's status. Returns 0 if all are 0, else its own or another rank's. */
int comm_agree(const struct cairn_comm_args *a, int status);

#endif
