/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers - pages of KV in device memory, host memory and on disk, and the moves between them
 *
 * Carries out the moves of plans (scheduler.h) in their order. Those between device and host are enqueued
 * on the stream of the passes; by operation kv_move, many in a launch, where the table has it. The disk has a
 * thread of its own, so that a step never waits for it, but for a page that is needed before it is there.
 *
 * What a pass computes leaves for host memory while it runs: a layer's keys and values are copied on another
 * stream while the layers behind it are computed, and the stream of the passes waits for the last of them.
 * By the engines that copy, since multiplications take every multiprocessor meanwhile; what it costs is
 * measured by throughput_test.c (llama3_8b_keep).
 *
 * A slot of host memory is a name: behind it lies one of a few more buffers than there are slots. When
 * a slot is given out again while the disk still reads what was in it, it gets another buffer.
 *
 * Not thread-safe. Errors: -ENOMEM; -EIO, from any call, when the disk or the table has failed.
 */
#ifndef CAIRN_TIERS_H
#define CAIRN_TIERS_H

#include <stdint.h>

#include "serving/model/model.h"
#include "serving/model/forward.h"
#include "serving/scheduler/scheduler.h"

struct cairn_tiers;

struct cairn_tiers_options {
	int32_t host_pages, disk_pages;		/* 0: no such tier */
	const char *disk_dir;			/* NULL: /tmp */
};

/* -EINVAL: disk_dir cannot hold the file. kv and stream are the worker's. */
int cairn_tiers_create(struct cairn_tiers **out, const struct cairn_model *model,
		       const struct cairn_kv_store *kv, void *stream,
		       const struct cairn_tiers_options *options);
void cairn_tiers_destroy(struct cairn_tiers *tiers);	/* NULL is legal; the stream must be idle */

/*
 * For each plan: before, which carries out the moves that precede its rows; its pass, if it has rows; after,
 * for those behind them. Without rows after waits for the stream.
 */
int cairn_tiers_before(struct cairn_tiers *tiers, const struct cairn_step_plan *plan);
int cairn_tiers_after(struct cairn_tiers *tiers, const struct cairn_step_plan *plan);
/* Between before and the pass: whether it can be done layer by layer; then the pass may call _layer for each
 * of the layers (cairn_worker_on_layer), and after does what is left. */
int cairn_tiers_by_layer(const struct cairn_tiers *tiers);
int cairn_tiers_layer(void *tiers, int32_t layer, void *stream);
int64_t cairn_tiers_num_by_layer(const struct cairn_tiers *tiers);	/* moves that were */
/* The oldest pass that was launched and not collected has ended. */
int cairn_tiers_collected(struct cairn_tiers *tiers);

/* 1: all pages that *request waits for have come from the disk; 0: nothing new. */
int cairn_tiers_fetched(struct cairn_tiers *tiers, uint64_t *request);
/* Waits until the disk has done something; returns at once when it has nothing to do. */
int cairn_tiers_wait(struct cairn_tiers *tiers);

#endif
