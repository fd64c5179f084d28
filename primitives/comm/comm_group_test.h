/* SPDX-License-Identifier: Apache-2.0 */
/* comm_group_test - ranks on the GPUs of this process, for comm_measure_test.c, and NCCL's on the same */
#ifndef CAIRN_COMM_GROUP_TEST_H
#define CAIRN_COMM_GROUP_TEST_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "primitives/comm/comm_device.h"

#define COMM_DIM	4096
#define COMM_MAX_BYTES	((size_t)32 << 20)
#define COMM_MAX_COUNT	(COMM_MAX_BYTES / 2)	/* elements of bf16 */

struct comm_nccl;

/* Arrays have COMM_MAX_BYTES, those of weights a row. */
struct comm_group {
	int ranks, gpus;		/* gpus < ranks: all ranks share GPU 0 */
	int gpu[CAIRN_COMM_MAX_RANKS];
	cudaStream_t stream[CAIRN_COMM_MAX_RANKS];
	struct cairn_comm comm[CAIRN_COMM_MAX_RANKS];
	uint16_t *x[CAIRN_COMM_MAX_RANKS], *residual[CAIRN_COMM_MAX_RANKS], *out[CAIRN_COMM_MAX_RANKS];
	uint16_t *sum[CAIRN_COMM_MAX_RANKS], *weight[CAIRN_COMM_MAX_RANKS];
	uint16_t *host_x[CAIRN_COMM_MAX_RANKS], *host_residual, *host_weight, *got;
	struct comm_nccl *nccl;		/* NULL: not opened */
};

/* Enqueues the part of rank r in one call. bytes: of x. */
typedef int (*comm_call)(struct comm_group *g, enum comm_op op, int r, size_t bytes);

/* -ENODEV: there are too few GPUs. comm_group_close() is needed after an error, too. */
int comm_group_open(struct comm_group *g, int ranks, uint64_t seed);
void comm_group_close(struct comm_group *g);
/* Copies the inputs to all GPUs. */
int comm_group_upload(struct comm_group *g, size_t bytes);

/* -ENODEV: NCCL is not there, or a GPU has two ranks. */
int comm_nccl_open(struct comm_group *g);
void comm_nccl_close(struct comm_group *g);
int comm_nccl_call(struct comm_group *g, enum comm_op op, int r, size_t bytes);
/*
 * Makes NCCL connect the ranks for this size, in a group: outside one, or in a graph, it would wait for its
 * peers.
 */
int comm_nccl_warm(struct comm_group *g, enum comm_op op, size_t bytes);

#endif
