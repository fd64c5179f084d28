// SPDX-License-Identifier: Apache-2.0
/*
 * prefill_send - the thread that sends the keys and values of jobs, in order, as the lead gives credits
 *
 * A run is put straight from the cache. Its head lies in a slot of its own until the lead has returned the
 * credit, so that a put under way never sees another head.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/prefill/prefill_impl.h"
#include "serving/remote/remote_fault.h"

#define PUT_MS		1000

/* Returns whether the keys and values of a run are computed. */
static int is_computed(const struct cairn_prefill_epoch *e, const struct prefill_job *job,
		       const struct cairn_run *run)
{
	const int64_t chunk = run->page / e->shape.chunk_pages;
	const int64_t wanted = chunk * e->shape.num_layers + run->layer + !FAULT(LAYER_NOT_AWAITED);
	const int64_t end = (int64_t)(run->page + run->num_pages) * e->a.page_size;

	return !e->group ? job->layers >= wanted :
	       cairn_prefill_group_tokens(e->group, (int32_t)(job - e->jobs), run->layer) >=
	       (end < job->num_tokens ? end : job->num_tokens);
}

/* Waits until a run is computed. Returns an errno if the job is given up; nothing else ends it uncomputed. */
static int await_layer(struct cairn_prefill_epoch *e, struct prefill_job *job, const struct cairn_run *run)
{
	const int look_ms = e->group ? CAIRN_PREFILL_GROUP_MS : CAIRN_PREFILL_LOOK_MS;
	int ret;

	pthread_mutex_lock(&e->life.lock);
	while (!(ret = prefill_given_up(job)) && !is_computed(e, job, run) && !atomic_load(&e->life.stop)) {
		const int64_t then = cairn_clock_ns() + look_ms * 1000000ll;
		const struct timespec until = { then / 1000000000, then % 1000000000 };

		pthread_cond_clockwait(&e->life.changed, &e->life.lock, CLOCK_MONOTONIC, &until);
	}
	pthread_mutex_unlock(&e->life.lock);
	return atomic_load(&e->life.stop) ? ECANCELED : ret;
}

/* Waits until the ring has a free slot. *given_up: set to an errno if the job is, unless `job` is NULL. */
static int await_credit(struct cairn_prefill_epoch *e, struct prefill_job *job, int *given_up)
{
	const uint64_t wanted = e->sent + 1 - CAIRN_RUN_RING;
	int ret;

	if (FAULT(CREDITS_IGNORED))
		return 0;
	do {
		ret = e->table->wait(e->c, CAIRN_SLOT_CREDITS, wanted, CAIRN_PREFILL_LOOK_MS, NULL);
		if (ret != -ETIMEDOUT)
			return ret;
		pthread_mutex_lock(&e->life.lock);
		*given_up = job ? prefill_given_up(job) : 0;
		pthread_mutex_unlock(&e->life.lock);
	} while (!*given_up && !atomic_load(&e->life.stop));
	return *given_up ? 0 : -ECANCELED;
}

static int put_payload(struct cairn_prefill_epoch *e, const struct prefill_job *job, struct cairn_run *run)
{
	const size_t bytes = (size_t)run->num_pages * e->shape.page_bytes;
	const int32_t layer = FAULT(LAYERS_SWAPPED) ? run->layer ^ 1 : run->layer;
	const uint64_t at = (uint64_t)(layer % e->shape.num_layers) * e->kv->layer_bytes +
			    (uint64_t)(FAULT(SIDES_SWAPPED) ? !run->side : run->side) * e->kv->v_offset +
			    (uint64_t)prefill_page(e, job, run->page) * e->shape.page_bytes;
	const struct cairn_put put = {
		.local = e->kv_region, .local_offset = at, .remote = e->ring, .slot = CAIRN_NO_SIGNAL,
		.remote_offset = e->sent % CAIRN_RUN_RING * cairn_run_slot_bytes(&e->shape) +
				 CAIRN_RUN_HEAD_BYTES,
		.bytes = bytes,
	};

	if (e->on_device)
		CAIRN_TRY(e->table->sum(e->t, e->base + at, bytes,
					cairn_run_device_key(prefill_theirs(e)->key), &run->payload));
	else
		run->payload = cairn_run_hash(e->sodium, prefill_theirs(e)->key, e->base + at, bytes);
	if (FAULT(PAYLOAD_DAMAGED) && run->layer == 1)
		e->base[at] ^= 1;
	return e->table->put(e->c, &put, PUT_MS);
}

/* Sends a run, whose payload has been put if it has one. */
static int put_head(struct cairn_prefill_epoch *e, struct cairn_run *run)
{
	const uint64_t slot = e->sent % CAIRN_RUN_RING;
	const struct cairn_put put = {
		.local = e->head_region, .local_offset = slot * CAIRN_RUN_HEAD_BYTES,
		.bytes = CAIRN_RUN_HEAD_BYTES, .remote = e->ring,
		.remote_offset = slot * cairn_run_slot_bytes(&e->shape), .value = e->sent + 1,
		.slot = CAIRN_SLOT_RUNS,
	};

	run->sum = cairn_run_sum(e->sodium, prefill_theirs(e)->key, run);
	memcpy(e->heads + slot * CAIRN_RUN_HEAD_BYTES, run, sizeof(*run));
	e->sent++;
	return e->table->put(e->c, &put, PUT_MS);
}

/* Sends the runs of a job until it is given up: *given_up is then an errno. */
static int send_runs(struct cairn_prefill_epoch *e, struct prefill_job *job, int *given_up)
{
	struct cairn_run run = { .job = job->number, .epoch = e->a.epoch };

	while (cairn_run_next(&e->shape, job->first, job->end, &run)) {
		*given_up = await_layer(e, job, &run);
		if (*given_up)
			return 0;
		CAIRN_TRY(await_credit(e, job, given_up));
		if (*given_up)
			return 0;
		CAIRN_TRY(put_payload(e, job, &run));
		CAIRN_TRY(put_head(e, &run));
		if (FAULT(RUNS_LOST))
			break;
	}
	return 0;
}

/* Waits until all puts have arrived. */
static int flush(struct cairn_prefill_epoch *e)
{
	int ret;

	do
		ret = e->table->flush(e->c, CAIRN_PREFILL_LOOK_MS);
	while (ret == -ETIMEDOUT && !atomic_load(&e->life.stop));
	return ret;
}

/* Waits until the computing thread does not touch the job any more, and frees its place. */
static int free_job(struct cairn_prefill_epoch *e, struct prefill_job *job)
{
	int is_over;

	pthread_mutex_lock(&e->life.lock);
	while (!job->is_over && !atomic_load(&e->life.stop))
		pthread_cond_wait(&e->life.changed, &e->life.lock);
	is_over = job->is_over;
	if (is_over) {
		free(job->ids);
		*job = (struct prefill_job){ 0 };
	}
	pthread_mutex_unlock(&e->life.lock);
	return is_over ? 0 : -ECANCELED;
}

/* The place is free before the end is sent, because the lead may then send another prompt. */
static int send_job(struct cairn_prefill_epoch *e, struct prefill_job *job)
{
	struct cairn_run end = { .job = job->number, .epoch = e->a.epoch };
	int given_up = 0, none = 0;

	CAIRN_TRY(send_runs(e, job, &given_up));
	if (atomic_load(&e->life.stop))
		return -ECANCELED;
	CAIRN_TRY(await_credit(e, NULL, &none));
	CAIRN_TRY(flush(e));
	CAIRN_TRY(free_job(e, job));
	end.error = (uint32_t)given_up;
	return put_head(e, &end);
}

void *prefill_send_run(void *arg)
{
	struct cairn_prefill_epoch *e = arg;
	int ret = 0;

	while (!ret) {
		struct prefill_job *job = NULL;

		pthread_mutex_lock(&e->life.lock);
		while (!atomic_load(&e->life.stop) && !(job = prefill_oldest(e, 1)))
			pthread_cond_wait(&e->life.changed, &e->life.lock);
		pthread_mutex_unlock(&e->life.lock);
		if (atomic_load(&e->life.stop))
			break;
		ret = send_job(e, job);
	}
	cairn_epoch_ended(&e->life, ret);
	return NULL;
}
