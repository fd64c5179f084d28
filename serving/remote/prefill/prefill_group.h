/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill_group - a prefill worker of several processes, the stages of a pipeline (serving/pipeline)
 *
 *   stage 0 (rank 0)   chunk 0   chunk 1   chunk 2        joins the lead, sends the keys and values of all
 *   stage 1                      chunk 0   chunk 1 ..
 *                          |         |
 *   shared host memory     layers of chunk 0, then of 1: as each stage has computed them
 *
 * The memory is laid out like the cache of a process that has all layers, so that rank 0 sends runs from it
 * as if it had computed them itself. Beside it is, for each job and layer, how many tokens are there. A stage
 * of a device's table copies a layer to memory of its own that the device can write, and from there to the
 * shared memory while it computes the next one: memory that processes share cannot be registered with a
 * device.
 *
 * create() is called before the processes are forked; the other calls by each of them. Errors: -EINVAL,
 * -ENOMEM, -EOPNOTSUPP, those of the table.
 */
#ifndef CAIRN_PREFILL_GROUP_H
#define CAIRN_PREFILL_GROUP_H

#include "serving/ranks/ranks.h"

struct cairn_prefill_group;

int cairn_prefill_group_create(struct cairn_prefill_group **out, const struct cairn_model_config *whole);
void cairn_prefill_group_destroy(struct cairn_prefill_group *g);	/* NULL is legal */
/*
 * After the fork: the ranks, and the stage that this process has loaded. Both must outlive it. chunk_rows:
 * tokens of a prompt's first chunk (pipeline.h).
 */
void cairn_prefill_group_join(struct cairn_prefill_group *g, struct cairn_tp *tp, struct cairn_model *stage,
			      int32_t chunk_rows);
/* What the other ranks do in cairn_tp_follow(). */
int cairn_prefill_group_follow(struct cairn_prefill_group *g);

/* Returns the sum of `mine` of all ranks; all of them call it after join. */
int cairn_prefill_group_sum(struct cairn_prefill_group *g, uint64_t mine, uint64_t *sum);
const struct cairn_model_config *cairn_prefill_group_config(const struct cairn_prefill_group *g);

/* ---- rank 0 ---- */

/* Creates the workers of all ranks, and maps the memory for them. The options lack tap and chunk_rows. */
int cairn_prefill_group_worker(struct cairn_prefill_group *g, struct cairn_worker **out,
			       const struct cairn_worker_options *options);
/* Returns the rows of a pass that keeps all stages busy. */
int32_t cairn_prefill_group_rows(const struct cairn_prefill_group *g);
/* The shared memory of all layers, laid out like the worker's cache. Valid until the next worker. */
char *cairn_prefill_group_base(const struct cairn_prefill_group *g);
/* Computes a pass of one part, whose layers are marked as they come. The job is the part's first page's. */
int cairn_prefill_group_pass(struct cairn_prefill_group *g, struct cairn_worker *worker,
			     const struct cairn_worker_part *part);
/* Returns how many tokens of a job are there in a layer; any thread may call it. clear(): none are. */
int64_t cairn_prefill_group_tokens(const struct cairn_prefill_group *g, int32_t job, int32_t layer);
void cairn_prefill_group_clear(struct cairn_prefill_group *g, int32_t job);

/* ---- the copies of one process, for tests ---- */

int cairn_prefill_group_map(struct cairn_prefill_group *g, const struct cairn_worker *worker,
			    const struct cairn_worker_options *options);
int cairn_prefill_group_part(struct cairn_prefill_group *g, const struct cairn_worker_part *part);
int cairn_prefill_group_chunk(void *group, int32_t first, int32_t end, int32_t layer, void *stream);
int cairn_prefill_group_collected(struct cairn_prefill_group *g);

#endif
