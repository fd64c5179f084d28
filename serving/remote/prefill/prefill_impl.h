/* SPDX-License-Identifier: Apache-2.0 */
/* prefill_impl - shared by prefill_epoch.c (jobs, computing) and prefill_send.c (sending) */
#ifndef CAIRN_PREFILL_IMPL_H
#define CAIRN_PREFILL_IMPL_H

#include "serving/engine/worker/worker.h"
#include "serving/remote/prefill/prefill_epoch.h"
#include "serving/remote/prefill/prefill_group.h"

struct prefill_job {
	uint64_t number;		/* 0: a free place */
	int32_t *ids, num_tokens;
	int32_t first, end;		/* pages of the prompt that are wanted */
	int64_t lease_ns;		/* when it ends */
	int is_dropped, error;		/* error: an errno, once it is given up or could not be computed */
	/*
	 * Number of layers that are computed, counted over all chunks: chunk c is complete at (c + 1) *
	 * num_layers. Not used with a group, which has a count for each layer.
	 */
	int64_t layers;
	int is_over;			/* computing has ended, completed or not */
};

struct cairn_prefill_epoch {
	struct cairn_epoch_life life;	/* its lock protects jobs and last_number */
	struct cairn_model *model;
	struct cairn_prefill_group *group;	/* NULL: this process has all layers */
	struct cairn_control_assign a;
	struct cairn_run_shape shape;
	int32_t pass_rows;
	int32_t job_pages;		/* of the cache, of each job */
	const struct sodium *sodium;
	struct cairn_worker *worker;
	const struct cairn_kv_store *kv;
	/*
	 * Where runs are sent from, laid out like the cache: the cache itself, or a copy of it in host memory
	 * if the table's memory is a device's and the transport carries host memory, or the group's.
	 */
	char *base, *mirror;		/* mirror: of the table's host_alloc; NULL: none */
	const char *transport;
	int32_t *page_list;		/* of a pass: [job_pages] */
	struct prefill_job *computing;	/* for the worker's callback */

	const struct cairn_transport_table *table;
	int on_device;			/* runs are sent from the device's memory */
	struct cairn_transport *t;
	struct cairn_channel *c;
	struct cairn_region *kv_region, *head_region;
	struct cairn_remote *ring;	/* the lead's */
	char *heads;			/* of runs under way: [CAIRN_RUN_RING] */
	uint64_t sent;			/* runs; the sending thread's */
	char address[64];

	pthread_t sender;
	int has_sender;
	struct prefill_job jobs[CAIRN_PULL_JOBS];
	uint64_t last_number;
};

/* The lead's blob, once it has come. */
static inline const struct cairn_pull_blob *prefill_theirs(const struct cairn_prefill_epoch *e)
{
	return (const struct cairn_pull_blob *)(const void *)e->life.theirs;
}

/*
 * Returns the job with the lowest number, or NULL. Jobs whose computing has ended are skipped unless `over`
 * is set. Call with the lock held.
 */
struct prefill_job *prefill_oldest(struct cairn_prefill_epoch *e, int over);
/*
 * Returns an errno if the job is not to go on. The first errno is final: computing may have stopped because
 * of a lease that a late LEASE renews. Call with the lock held.
 */
int prefill_given_up(struct prefill_job *job);
/* Where a page of a job is in the cache. */
static inline int32_t prefill_page(const struct cairn_prefill_epoch *e, const struct prefill_job *job,
				   int32_t page)
{
	return (int32_t)(job - e->jobs) * e->job_pages + page;
}

void *prefill_send_run(void *epoch);	/* the sending thread */

#endif
