/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers_impl - what tiers.c and tiers_disk.c share
 */
#ifndef CAIRN_TIERS_IMPL_H
#define CAIRN_TIERS_IMPL_H

#include <pthread.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/scheduler/tiers.h"

struct disk_job {
	int fetch;			/* else a spill */
	int32_t buffer, place;		/* place: on disk */
	uint64_t request;		/* told of when this is done; 0: nobody */
	int64_t pass;			/* it may begin when that one has ended */
};

/* A queue in an array: [first, end) of jobs. */
struct job_queue {
	struct disk_job *jobs;
	int32_t first, end, room;
};

struct move_lists {
	int32_t *host, *dev;		/* [2 * room]: from, and to behind them */
	int32_t *groups;		/* [num_groups]: their ends */
	int32_t room, num, num_groups;
	int32_t groups_before;		/* the rows; -1: it is not known yet */
	int32_t carried;		/* so many groups are on the stream */
};

struct cairn_tiers {
	const struct cairn_impl *impl;
	const struct cairn_kv_store *kv;
	void *stream;
	struct cairn_tiers_options opt;
	int32_t num_layers;
	size_t page_bytes, slot_bytes;	/* of one layer and side; of all */
	char *host;			/* [num_buffers, slot_bytes] */
	int32_t num_buffers;
	int32_t *buffer_of;		/* [host_pages] */
	struct {
		int32_t slot;		/* -1: of none */
		int32_t jobs, fetches;	/* of the disk, not done; fetches: those that write it */
	} *buffers;
	int32_t *spares, num_spares;
	uint64_t *page_marks, *slot_marks, mark;
	struct move_lists lists[2];
	int turn;
	int32_t groups_room;
	int64_t launched, collected;	/* passes */
	/* layer by layer: where the copies run; a layer was reached; its copies have left */
	void *side, *reached, *left;
	int by_layer;			/* the moves behind this plan's rows can */
	int32_t layers;			/* so many have been */
	int64_t num_by_layer;

	/* the disk's */
	int file, thread_runs;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake, done;
	struct job_queue staged;	/* wait for the stream: the step's own */
	struct job_queue todo, finished;	/* under the lock */
	struct job_queue fetched;	/* requests to be told of: the step's own */
	int32_t num_open;		/* jobs added and not polled */
	int stop, error;		/* under the lock; error: errno */
};

int tiers_disk_create(struct cairn_tiers *t);
void tiers_disk_destroy(struct cairn_tiers *t);
/* A job behind all that is on the stream, and behind the other jobs. */
int tiers_disk_add(struct cairn_tiers *t, int fetch, int32_t buffer, int32_t place, uint64_t request);
/* Jobs that wait for passes up to this one may begin. */
void tiers_disk_release(struct cairn_tiers *t, int64_t pass);
/* Takes note of what has been done. */
int tiers_disk_poll(struct cairn_tiers *t);
/* Waits for a job to be done: one must have been released. */
int tiers_disk_wait(struct cairn_tiers *t);

#endif
