/* SPDX-License-Identifier: Apache-2.0 */
/* pull_impl - shared by pull.c (jobs and pages), pull_link.c (the thread of a rank) and pull_runs.c */
#ifndef CAIRN_PULL_IMPL_H
#define CAIRN_PULL_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/remote/attention/share.h"
#include "serving/remote/pull/pull.h"
#include "serving/remote/pull/run.h"

enum pull_state {
	PULL_FREE, PULL_QUEUED,
	PULL_SENT,			/* the worker has it; the link's thread writes its pages */
	PULL_ENDED			/* ended() has not reported it yet */
};

struct pull_job {
	enum pull_state state;
	uint64_t id, number;		/* number: by which the worker knows the job; ascends in a link */
	int32_t *ids, num_tokens;
	int32_t first, end;		/* pages of the prompt */
	int32_t *pages;			/* [end - first]: where they go */
	int may_write;			/* pages may be written */
	int is_dropped, drop_is_told, failed;
	int64_t lease_ns;		/* when the lease ends */
	int64_t heard_ns;		/* when its last run came, or when the worker could begin to send */
	struct cairn_run at;		/* the last run taken */
};

/* Memory of host_alloc that both the thread of a link and operations on its stream use. */
struct pull_notes {
	struct cairn_run run;		/* the head in the slot */
	int32_t places[];		/* of a run's pages: from, then to (kv_move.h), [run_pages] each */
};

struct pull_link {
	struct cairn_pull *p;
	int32_t rank;
	pthread_t thread;
	int has_thread;
	/* protected by the lock of p: */
	int is_ready;			/* has a worker that takes jobs */
	struct pull_job jobs[CAIRN_PULL_JOBS];
	uint64_t last_number;
	pthread_mutex_t writes;		/* held while pages are written; taken before the lock of p */
	/* used by the link's thread alone; all but failures belong to the current epoch: */
	uint32_t epoch;
	int failures;			/* workers that did not get ready, in a row */
	const struct cairn_transport_table *table;	/* the one that the worker offers */
	struct cairn_transport *t;
	struct cairn_channel *c;
	struct cairn_region *region;
	int on_device;			/* runs come to device_ring */
	uint64_t taken;			/* number of runs taken */
	uint8_t key[SODIUM_HASH_KEY_BYTES];
	char *ring;			/* kept over all epochs, as are the members below */
	/* a copy of a run's payload, in memory of host_alloc: checked here, where no peer can write */
	char *copy;
	/* ring and copy in memory of the device, once a worker has offered a transport of devices */
	char *device_ring, *device_copy;
	struct pull_notes *notes;
	void *stream;
};

struct cairn_pull {
	struct cairn_lead *lead;
	struct cairn_pull_options opt;
	const struct sodium *sodium;
	const struct cairn_impl *impl;
	int gpu;			/* of the thread that has created it; -1: none */
	struct cairn_run_shape shape;
	struct cairn_control_assign assign;
	float *scales;			/* that follow assign */
	atomic_int stop;

	pthread_mutex_t lock;		/* protects what follows, and parts of the links */
	pthread_cond_t ended, begun;	/* begun: also if allowed, and at the end */
	struct cairn_pull_stats stats;

	int32_t num_links;
	struct pull_link links[];
};

/* pull.c; call these with the lock held */
void pull_end(struct cairn_pull *p, struct pull_job *job, const char *why);	/* why NULL: completed */
void pull_free(struct pull_job *job);

/* pull_link.c */
void *pull_link_run(void *link);

/* pull_runs.c */
/* Returns the oldest job in this state; NULL: there is none. Call with the lock held. */
struct pull_job *pull_oldest(struct pull_link *k, enum pull_state state);
/* Takes the next run, whose signal has come, and gives its credit back. */
int pull_take_run(struct pull_link *k);

#endif
