/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member_rank - roles of the processes that mpirun, srun or LeaderWorkerSet has started with one command line
 *
 *   mpirun -n 3 cairn serve --attention-workers 2 --workers-listen 10.0.0.1:7100 --secret-file F
 *
 * Rank 0 is the command itself, and its first model worker. The next ranks are its other model workers and
 * then its attention or prefill workers, as many as the command wants, and join rank 0 at --workers-listen;
 * any more are spares of the last kind. Rank and size come from the variables that --tp uses, too
 * (rendezvous.h). No call of MPI is made.
 */
#ifndef CAIRN_MEMBER_RANK_H
#define CAIRN_MEMBER_RANK_H

#include "serving/cli/command.h"

/*
 * Returns 0 in rank 0, in a process without ranks, and without workers. In the other ranks it does not
 * return, but executes `cairn model-worker`, `attention-worker` or `prefill-worker`; -EINVAL:
 * --workers-listen is missing, or is no address that they can join. prefill: NULL for commands that have
 * none. shape: NULL for --model.
 */
int cairn_exec_member(const struct cairn_attention_options *attention,
		      const struct cairn_prefill_options *prefill, const struct cairn_common_options *common,
		      const char *shape, int64_t seed);

#endif
