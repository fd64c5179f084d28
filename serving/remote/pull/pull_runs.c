// SPDX-License-Identifier: Apache-2.0
/*
 * pull_runs - checks the runs that a worker has put into the ring of a rank, and takes them (run.h)
 *
 * Payloads are copied to where no peer can write, and checked there. With a transport of devices, ring and
 * copy are in the device's memory.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/pull/pull_impl.h"
#include "serving/remote/remote_fault.h"

#define PUT_MS		1000
#define CTAS		4	/* that copy pages: few, because passes run at the same time */

struct pull_job *pull_oldest(struct pull_link *k, enum pull_state state)
{
	struct pull_job *best = NULL;

	for (int j = 0; j < CAIRN_PULL_JOBS; j++)
		if (k->jobs[j].state == state && (!best || k->jobs[j].number < best->number))
			best = &k->jobs[j];
	return best;
}

/*
 * Copies the pages of a run from the copy of its payload to their places. To kv_move, the copy is slots of
 * one layer and side.
 */
static int scatter(struct pull_link *k, const struct pull_job *job, const struct cairn_run *run)
{
	struct cairn_pull *p = k->p;
	const struct cairn_kv_store *kv = p->opt.kv;
	int32_t *from = k->notes->places, *to = from + p->shape.run_pages;
	const struct cairn_kv_move_args move = {
		.size = sizeof(move), .base = kv->base + (size_t)run->layer * kv->layer_bytes +
					      (size_t)run->side * kv->v_offset,
		.slots = k->on_device ? k->device_copy : k->copy, .from = from, .to = to,
		.layer_bytes = (int64_t)kv->layer_bytes, .page_bytes = (int64_t)p->shape.page_bytes,
		.num_moves = run->num_pages, .num_layers = 1, .num_pages = kv->num_pages,
		.num_slots = p->shape.run_pages, .max_ctas = CTAS,
	};

	for (int32_t i = 0; i < run->num_pages; i++) {
		from[i] = ~i;
		to[i] = job->pages[run->page - job->first + (FAULT(PAGES_IN_ONE_PLACE) ? 0 : i)];
	}
	CAIRN_TRY(CAIRN_TABLE(p->impl, kv_move, &move, k->stream));
	return CAIRN_TABLE(p->impl, stream_sync, k->stream);
}

/* The same, unless the job is not wanted any more: then it sets *wanted to 0. */
static int write_pages(struct pull_link *k, struct pull_job *job, const struct cairn_run *run, int *wanted)
{
	int ret = 0;

	pthread_mutex_lock(&k->writes);
	pthread_mutex_lock(&k->p->lock);
	*wanted = !job->is_dropped || FAULT(DROPPED_KEPT);
	pthread_mutex_unlock(&k->p->lock);
	if (*wanted)
		ret = scatter(k, job, run);
	pthread_mutex_unlock(&k->writes);
	return ret;
}

/* Copies the payload from a slot of the ring to where no peer can write, and sets *sum to its checksum. */
static int copy_payload(struct pull_link *k, const char *slot, size_t bytes, uint64_t *sum)
{
	const struct cairn_impl *impl = k->p->impl;
	const char *from = slot + CAIRN_RUN_HEAD_BYTES;

	if (!k->on_device) {
		memcpy(k->copy, from, bytes);
		*sum = cairn_run_hash(k->p->sodium, k->key, k->copy, bytes);
		return 0;
	}
	if (!FAULT(COPY_OF_BEFORE) || !k->taken)
		CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, k->device_copy, from, bytes, CAIRN_COPY_ON_DEVICE,
				      k->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, k->stream));
	return k->table->sum(k->t, FAULT(COPY_OF_BEFORE) ? from : k->device_copy, bytes,
			     cairn_run_device_key(k->key), sum);
}

/*
 * Checks that a head is good and the next one of its job. Returns an error if not: the ring then cannot be
 * trusted any more. *job: whose it is; *next: the run that it must be.
 */
static int check_head(struct pull_link *k, const struct cairn_run *run, struct pull_job **job,
		      struct cairn_run *next)
{
	struct cairn_pull *p = k->p;
	int more;

	if (run->sum != cairn_run_sum(p->sodium, k->key, run) || run->epoch != k->epoch) {
		pthread_mutex_lock(&p->lock);
		p->stats.checksum_errors++;
		pthread_mutex_unlock(&p->lock);
		return cairn_error(EIO, "sends run %llu with a head that is not its own",
				   (unsigned long long)k->taken);
	}
	pthread_mutex_lock(&p->lock);
	*job = pull_oldest(k, PULL_SENT);
	pthread_mutex_unlock(&p->lock);
	if (!*job || run->job != (*job)->number)
		return cairn_error(EINVAL, "sends a run of job %llu out of turn",
				   (unsigned long long)run->job);
	*next = (*job)->at;
	more = cairn_run_next(&p->shape, (*job)->first, (*job)->end, next);
	if (!run->num_pages)		/* the end of the job */
		return more && !run->error && !FAULT(END_TOO_EARLY) ?
		       cairn_error(EINVAL, "ends job %llu before layer %d, page %d",
				   (unsigned long long)run->job, next->layer, next->page) : 0;
	return more && run->layer == next->layer && run->side == next->side && run->page == next->page &&
	       run->num_pages == next->num_pages ? 0 :
	       cairn_error(EINVAL, "sends layer %d, page %d of job %llu out of order", run->layer, run->page,
			   (unsigned long long)run->job);
}

/*
 * Ends a job because of its last run, or because it cannot be completed any more. The worker could not send
 * runs of the next one before.
 */
static void end_job(struct pull_link *k, struct pull_job *job, const struct cairn_run *run)
{
	struct cairn_pull *p = k->p;
	char why[sizeof(p->stats.last_failure)] = "";
	struct pull_job *next;

	pthread_mutex_lock(&p->lock);
	if (job->failed)
		snprintf(why, sizeof(why), "%s", p->stats.last_failure);
	else if (run->error)
		snprintf(why, sizeof(why), "the worker has given it up: %s", strerror((int)run->error));
	pull_end(p, job, *why ? why : NULL);
	next = pull_oldest(k, PULL_SENT);
	if (next && !FAULT(QUIET_SINCE_PROMPT))
		next->heard_ns = cairn_clock_ns();
	pthread_mutex_unlock(&p->lock);
}

/* The job's pages do not count any more; its worker has still to end it. Call with the lock held. */
static void spoil(struct cairn_pull *p, struct pull_job *job, const char *why)
{
	job->failed = 1;
	snprintf(p->stats.last_failure, sizeof(p->stats.last_failure), "%s", why);
}

/* Takes the payload of a run, unless the job is not wanted; sets *taken to whether it is. */
static int take_payload(struct pull_link *k, struct pull_job *job, const struct cairn_run *run,
			const char *slot, int *taken)
{
	struct cairn_pull *p = k->p;
	const size_t bytes = (size_t)run->num_pages * p->shape.page_bytes;
	const int64_t now = cairn_clock_ns();
	int wanted, good = 1;
	uint64_t sum;

	pthread_mutex_lock(&p->lock);
	if (now > job->lease_ns && !job->is_dropped && !job->failed && !FAULT(LEASE_IGNORED)) {
		p->stats.leases_ended++;
		spoil(p, job, "its lease has ended");
	}
	wanted = (!job->is_dropped && !job->failed) || FAULT(DROPPED_KEPT);
	pthread_mutex_unlock(&p->lock);
	if (wanted) {
		CAIRN_TRY(copy_payload(k, slot, bytes, &sum));
		good = sum == run->payload || FAULT(CHECKSUM_IGNORED);
	}
	if (wanted && good)
		CAIRN_TRY(write_pages(k, job, run, &wanted));
	pthread_mutex_lock(&p->lock);
	job->at = *run;
	job->heard_ns = now;
	p->stats.stale_runs += !wanted;
	p->stats.checksum_errors += !good;
	p->stats.runs += wanted && good;
	p->stats.bytes += wanted && good ? (int64_t)bytes : 0;
	if (wanted && good && run->layer == p->shape.num_layers - 1 && run->side == p->shape.sides - 1)
		p->stats.pages += run->num_pages;
	if (!good)
		spoil(p, job, "a run of its pages has a wrong checksum");
	pthread_mutex_unlock(&p->lock);
	*taken = wanted;
	return 0;
}

int pull_take_run(struct pull_link *k)
{
	const char *slot = (k->on_device ? k->device_ring : k->ring) +
			   k->taken % CAIRN_RUN_RING * cairn_run_slot_bytes(&k->p->shape);
	const struct cairn_put credit = { .value = k->taken + 1, .slot = CAIRN_SLOT_CREDITS };
	struct cairn_run run, next;
	struct pull_job *job = NULL;
	int wanted = 1;

	if (k->on_device) {
		CAIRN_TRY(CAIRN_TABLE(k->p->impl, mem_copy, &k->notes->run, slot, sizeof(run),
				      CAIRN_COPY_TO_HOST, k->stream));
		CAIRN_TRY(CAIRN_TABLE(k->p->impl, stream_sync, k->stream));
		run = k->notes->run;
	} else {
		memcpy(&run, slot, sizeof(run));
	}
	CAIRN_TRY(check_head(k, &run, &job, &next));
	if (run.num_pages)
		CAIRN_TRY(take_payload(k, job, &run, slot, &wanted));
	else
		end_job(k, job, &run);
	k->taken++;
	if (FAULT(CREDIT_LEAK) && !wanted)
		return 0;
	return k->table->put(k->c, &credit, PUT_MS);
}
