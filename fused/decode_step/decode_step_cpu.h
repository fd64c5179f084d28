/* SPDX-License-Identifier: Apache-2.0 */
/* decode_step_cpu - the step on the CPU, alone or as one of the ranks that share a model */
#ifndef CAIRN_DECODE_STEP_CPU_H
#define CAIRN_DECODE_STEP_CPU_H

#include "fused/decode_step/decode_step.h"
#include "primitives/comm/comm.h"

/*
 * Runs the step of one rank (decode_step_ranks.h), or with comm NULL that of decode_step. The arguments have
 * passed their check. op: the name of the operation, for error texts.
 */
int step_cpu_run(const struct cairn_decode_step_args *a, const struct cairn_comm *comm, const char *op);
/* Returns the bytes of the workspace. */
size_t step_cpu_bytes(const struct cairn_decode_step_args *a, const struct cairn_comm *comm);

/* ranks/decode_step_ranks_cpu.c. Both return 0 or the communicator's error. */
/* Replaces sums [batch, hidden] by the sum of those of all ranks, in the order of the ranks. */
int step_cpu_sum(const struct cairn_decode_step_args *a, const struct cairn_comm *comm, float *sums);
/* Gathers the logits of all ranks; share: this rank's, [batch, vocab / ranks]. */
int step_cpu_gather(const struct cairn_decode_step_args *a, const struct cairn_comm *comm,
		    const float *share);

#endif
