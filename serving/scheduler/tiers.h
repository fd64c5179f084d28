/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers - moves pages of KV between device memory, host memory and disk
 *
 * Executes the moves of plans (scheduler.h) in order. Moves between device and host are enqueued on the
 * stream of the passes; if the table has the operation kv_move, it does many of them in one launch. The disk
 * has its own thread, so that a step waits only if it needs a page that has not arrived from the disk yet.
 *
 * KV that a pass computes is copied to host memory while the pass runs: a layer's keys and values are copied
 * on a side stream while later layers are computed, and the main stream waits for the last copy. The copy
 * engines do the copies, because matrix multiplications occupy every multiprocessor. throughput_test.c
 * (llama3_8b_keep) measures the cost.
 *
 * A slot of host memory is an index that is mapped to a buffer. There are a few more buffers than slots, so
 * that a slot reused while the disk still reads its old contents can get another buffer.
 *
 * Not thread-safe. Errors: -ENOMEM; -EIO, from any call, when the disk or the table has failed.
 */
#ifndef CAIRN_TIERS_H
#define CAIRN_TIERS_H

#include <stdint.h>

#include "serving/model/model.h"
#include "serving/model/forward/forward.h"
#include "serving/scheduler/scheduler.h"

struct cairn_tiers;

struct cairn_tiers_options {
	int32_t host_pages, disk_pages;		/* 0: no such tier */
	const char *disk_dir;			/* NULL: /tmp */
	/* A store of one layer, with pages of its own size, that is copied where a page is copied on the
	 * device; or NULL. */
	const struct cairn_kv_store *features;
};

/* kv and stream are the worker's and must outlive the tiers. -EINVAL: disk_dir cannot hold the file. */
int cairn_tiers_create(struct cairn_tiers **out, const struct cairn_model *model,
		       const struct cairn_kv_store *kv, void *stream,
		       const struct cairn_tiers_options *options);
void cairn_tiers_destroy(struct cairn_tiers *tiers);	/* NULL is legal; the stream must be idle */

/*
 * Call these for each plan: _before executes the moves before its rows; then launch its pass, if it has rows;
 * then _after executes the moves after the rows. If there are moves but no rows, _after waits for the stream.
 */
int cairn_tiers_before(struct cairn_tiers *tiers, const struct cairn_step_plan *plan);
int cairn_tiers_after(struct cairn_tiers *tiers, const struct cairn_step_plan *plan);
/*
 * _by_layer, called between _before and the pass, returns whether the moves after the rows can be done layer
 * by layer. If so, the pass may call _layer for each layer (cairn_worker_on_layer), and _after does the rest.
 */
int cairn_tiers_by_layer(const struct cairn_tiers *tiers);
int cairn_tiers_layer(void *tiers, int32_t layer, void *stream);
int64_t cairn_tiers_num_by_layer(const struct cairn_tiers *tiers);	/* total moves done by layer */
/* Reports that the oldest pass launched and not yet collected has ended. */
int cairn_tiers_collected(struct cairn_tiers *tiers);

/* 1: all pages that *request waits for have arrived from the disk; 0: no request has become ready. */
int cairn_tiers_fetched(struct cairn_tiers *tiers, uint64_t *request);
/* Waits until the disk has finished a job; returns at once if there is none. */
int cairn_tiers_wait(struct cairn_tiers *tiers);

#endif
