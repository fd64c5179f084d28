/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers_impl - data structures shared by tiers.c and tiers_disk.c
 */
#ifndef CAIRN_TIERS_IMPL_H
#define CAIRN_TIERS_IMPL_H

#include <pthread.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/scheduler/tiers.h"

struct disk_job {
	int fetch;			/* 1: fetch; 0: spill */
	int32_t buffer, place;		/* place: page number in the file */
	uint64_t request;		/* reported when the job is done; 0: none */
	int64_t pass;			/* the job may start when this pass has ended */
};

/* A queue in an array: jobs[first .. end). */
struct job_queue {
	struct disk_job *jobs;
	int32_t first, end, room;
};

struct move_lists {
	int32_t *host, *dev;		/* [2 * room]: sources, then destinations */
	int32_t *groups;		/* [num_groups]: end of each group */
	int32_t room, num, num_groups;	/* capacity in moves; number of moves; number of groups */
	int32_t groups_before;		/* groups before the rows; -1: not known yet */
	int32_t carried;		/* groups that are already on the stream */
};

struct cairn_tiers {
	const struct cairn_impl *impl;
	const struct cairn_kv_store *kv;
	void *stream;
	struct cairn_tiers_options opt;
	int32_t num_layers;
	size_t page_bytes, slot_bytes;	/* one side of one layer; all layers and sides */
	char *host;			/* [num_buffers, slot_bytes] */
	int32_t num_buffers;
	int32_t *buffer_of;		/* [host_pages]: buffer of each slot */
	struct {
		int32_t slot;		/* -1: no slot */
		int32_t jobs, fetches;	/* unfinished disk jobs on it; those that write to it */
	} *buffers;
	int32_t *spares, num_spares;	/* stack of spare buffers */
	uint64_t *page_marks, *slot_marks, mark;	/* how this group uses a page or slot: see put() */
	struct move_lists lists[2];
	int turn;			/* lists[turn] is the current plan's */
	int32_t groups_room;		/* capacity of both lists[].groups */
	int64_t launched, collected;	/* number of passes */
	/* copies by layer: the side stream; the event of a computed layer; the event of finished copies */
	void *side, *reached, *left;
	int by_layer;			/* the moves after this plan's rows can go layer by layer */
	int32_t layers;			/* layers copied in this plan */
	int64_t num_by_layer;

	/* disk tier */
	int file, thread_runs;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake, done;
	struct job_queue staged;	/* jobs that wait for the stream; used by the engine's thread only */
	struct job_queue todo, finished;	/* protected by lock */
	struct job_queue fetched;	/* jobs whose request is to be reported; engine's thread only */
	int32_t num_open;		/* jobs added and not yet processed by a poll */
	int stop, error;		/* protected by lock; error: an errno */
};

int tiers_disk_create(struct cairn_tiers *t);
void tiers_disk_destroy(struct cairn_tiers *t);
/* Adds a job that is ordered after everything on the stream and after earlier jobs. */
int tiers_disk_add(struct cairn_tiers *t, int fetch, int32_t buffer, int32_t place, uint64_t request);
/* Releases the jobs that wait for passes up to this one. */
void tiers_disk_release(struct cairn_tiers *t, int64_t pass);
/* Processes the finished jobs. */
int tiers_disk_poll(struct cairn_tiers *t);
/* Waits until a job is finished; at least one must have been released. */
int tiers_disk_wait(struct cairn_tiers *t);

#endif
