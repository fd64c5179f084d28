// SPDX-License-Identifier: Apache-2.0
/*
 * pull_link - the thread of one rank: takes a worker, sends it prompts, and has its runs taken (pull.h)
 *
 * Jobs of a link are sent and end in the order of their numbers, so the runs that arrive are those of the
 * oldest job that was sent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/pull/pull_impl.h"
#include "serving/remote/remote_fault.h"

#define TAKE_MS		100		/* for a worker, before the thread looks whether to stop */
#define IDLE_MS		50		/* without a job, between two looks at the worker */
#define LOOK_MS		5		/* with a job */
#define CONNECT_MS	10000
#define MAX_BACKOFF	6		/* after workers that did not get ready, the next waits up to 2^6 s */

/* ---- set-up ---- */

/* Makes the ring and the copy in the device's memory, of all epochs. */
static int make_device_ring(struct pull_link *k, size_t bytes)
{
	const struct cairn_impl *impl = k->p->impl;
	void *p;

	if (k->device_ring)
		return 0;
	if (!k->device_copy) {
		CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, cairn_run_slot_bytes(&k->p->shape)));
		k->device_copy = p;
	}
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, cairn_share_granules(bytes)));
	k->device_ring = p;
	return 0;
}

/* Opens the transport of which the worker has sent an address. */
static int open_transport(struct pull_link *k, const struct cairn_blob *theirs, struct cairn_pull_blob *blob)
{
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	const struct cairn_transport_table *t = cairn_run_transport(theirs->kind);
	char address[CAIRN_LEAD_ADDRESS];
	const size_t bytes = CAIRN_RUN_RING * cairn_run_slot_bytes(&k->p->shape);

	if (!t || cairn_run_check(t, k->p->impl))
		return cairn_error(EINVAL, "offers a transport that carries no memory of this table between "
				   "processes");
	k->table = t;
	k->on_device = cairn_run_on_device(t);
	if (k->on_device) {
		o.gpu = CAIRN_GPU_OF_THREAD;
		CAIRN_TRY(make_device_ring(k, bytes));
	}
	cairn_lead_address(k->p->lead, k->rank, address);
	if (!strcmp(t->name, "tcp"))
		o.device = address;
	CAIRN_TRY(t->open(&o, &k->t));
	CAIRN_TRY(t->region_register(k->t, k->on_device ? k->device_ring : k->ring, bytes,
				     cairn_run_memory(t), &k->region));
	CAIRN_TRY(t->channel_create(k->t, &k->c));
	CAIRN_TRY(t->channel_address(k->c, &blob->channel));
	return t->region_key(k->region, &blob->ring);
}

static int set_up(struct pull_link *k)
{
	struct cairn_pull *p = k->p;
	struct cairn_pull_blob mine = { 0 }, theirs;
	struct cairn_control_assign a = p->assign;
	const struct cairn_control_blob head = {
		.to = k->rank, .num_bytes = sizeof(mine), .epoch = k->epoch,
	};
	int ret;

	a.epoch = k->epoch;
	a.rank = (uint32_t)k->rank;
	k->taken = 0;
	CAIRN_TRY(cairn_lead_send(p->lead, k->rank, CAIRN_CONTROL_ASSIGN, &a, sizeof(a), p->scales,
				  a.num_bytes));
	CAIRN_TRY(cairn_lead_blob(p->lead, k->rank, &theirs, sizeof(theirs)));
	CAIRN_TRY(open_transport(k, &theirs.channel, &mine));
	p->sodium->randombytes_buf(k->key, sizeof(k->key));
	memcpy(mine.key, k->key, sizeof(k->key));
	ret = cairn_lead_send(p->lead, k->rank, CAIRN_CONTROL_BLOB, &head, sizeof(head), &mine, sizeof(mine));
	p->sodium->sodium_memzero(&mine, sizeof(mine));
	if (!ret)
		ret = k->table->channel_connect(k->c, &theirs.channel, CONNECT_MS);
	return ret ? ret : cairn_lead_ready(p->lead, k->rank);
}

/* Ends the epoch. No put can arrive after the transport is closed. */
static void tear_down(struct pull_link *k, const char *why)
{
	if (k->t)
		k->table->close(k->t);
	k->t = NULL;
	pthread_mutex_lock(&k->p->lock);
	k->is_ready = 0;
	for (int j = 0; j < CAIRN_PULL_JOBS; j++)
		if (k->jobs[j].state == PULL_QUEUED || k->jobs[j].state == PULL_SENT)
			pull_end(k->p, &k->jobs[j], why);
	pthread_mutex_unlock(&k->p->lock);
}

/* ---- jobs ---- */

/* Takes the next queued job. Its ids are then the thread's. Returns 0 if there is none. */
static int next_job(struct pull_link *k, struct cairn_control_prompt *prompt, int32_t **ids)
{
	struct pull_job *job;

	pthread_mutex_lock(&k->p->lock);
	job = pull_oldest(k, PULL_QUEUED);
	if (job) {
		*prompt = (struct cairn_control_prompt){
			.job = job->number, .first = job->first * k->p->opt.kv->page_size,
			.num_tokens = job->num_tokens, .lease_ms = (uint32_t)k->p->opt.lease_ms,
		};
		*ids = job->ids;
		job->ids = NULL;
		job->state = PULL_SENT;
		job->heard_ns = cairn_clock_ns();
		job->lease_ns = job->heard_ns + k->p->opt.lease_ms * 1000000ll;
	}
	pthread_mutex_unlock(&k->p->lock);
	return job != NULL;
}

static int send_jobs(struct pull_link *k)
{
	struct cairn_control_prompt prompt;
	int32_t *ids;
	int ret = 0;

	while (!ret && next_job(k, &prompt, &ids)) {
		ret = cairn_lead_send(k->p->lead, k->rank, CAIRN_CONTROL_PROMPT, &prompt, sizeof(prompt), ids,
				      (size_t)prompt.num_tokens * sizeof(*ids));
		free(ids);
	}
	return ret;
}

/* What the worker must be told about a job that it has. */
struct notice {
	uint64_t number;
	int drop, renew;
};

/* Call with the lock held. */
static struct notice notice_of(struct pull_link *k, struct pull_job *job, int64_t now)
{
	const int64_t lease = k->p->opt.lease_ms * 1000000ll;
	struct notice n = { .number = job->number };

	if (job->state != PULL_SENT)
		return n;
	n.drop = job->is_dropped && !job->drop_is_told;
	job->drop_is_told |= n.drop;
	n.renew = !job->is_dropped && now < job->lease_ns && job->lease_ns - now < lease * 2 / 3;
	if (n.renew)
		job->lease_ns = now + lease;
	return n;
}

/* Renews leases, and tells the worker which jobs are not wanted any more. */
static int send_notices(struct pull_link *k)
{
	const int64_t now = cairn_clock_ns();
	struct notice notices[CAIRN_PULL_JOBS];

	pthread_mutex_lock(&k->p->lock);
	for (int j = 0; j < CAIRN_PULL_JOBS; j++)
		notices[j] = notice_of(k, &k->jobs[j], now);
	pthread_mutex_unlock(&k->p->lock);
	for (int j = 0; j < CAIRN_PULL_JOBS; j++) {
		const struct cairn_control_drop drop = { notices[j].number };
		const struct cairn_control_lease lease = {
			notices[j].number, (uint32_t)k->p->opt.lease_ms, 0,
		};

		if (notices[j].drop)
			CAIRN_TRY(cairn_lead_send(k->p->lead, k->rank, CAIRN_CONTROL_DROP, &drop,
						  sizeof(drop), NULL, 0));
		if (notices[j].renew)
			CAIRN_TRY(cairn_lead_send(k->p->lead, k->rank, CAIRN_CONTROL_LEASE, &lease,
						  sizeof(lease), NULL, 0));
	}
	return 0;
}

/* Returns an error if the worker may send runs of its oldest job, but has sent nothing for too long. */
static int check_quiet(struct pull_link *k)
{
	const int64_t now = cairn_clock_ns();
	struct pull_job *job;
	int64_t quiet;

	pthread_mutex_lock(&k->p->lock);
	job = pull_oldest(k, PULL_SENT);
	quiet = job && job->may_write ? now - job->heard_ns : 0;
	pthread_mutex_unlock(&k->p->lock);
	return quiet > CAIRN_PULL_QUIET_MS * 1000000ll ?
	       cairn_error(ETIMEDOUT, "has sent nothing of a prompt for %d s",
			   CAIRN_PULL_QUIET_MS / 1000) : 0;
}

/* ---- the thread ---- */

static struct timespec in_ms(int ms)
{
	const int64_t then = cairn_clock_ns() + ms * 1000000ll;

	return (struct timespec){ then / 1000000000, then % 1000000000 };
}

/* Returns whether the worker has a job, after waiting for one a little. */
static int has_job(struct pull_link *k)
{
	const struct timespec until = in_ms(IDLE_MS);
	int has;

	pthread_mutex_lock(&k->p->lock);
	has = pull_oldest(k, PULL_SENT) || pull_oldest(k, PULL_QUEUED);
	if (!has && !atomic_load(&k->p->stop))
		pthread_cond_timedwait(&k->p->begun, &k->p->lock, &until);
	has = pull_oldest(k, PULL_SENT) || pull_oldest(k, PULL_QUEUED);
	pthread_mutex_unlock(&k->p->lock);
	return has;
}

/* Returns whether the runs of the oldest job may be taken, after waiting for that a little. */
static int may_take(struct pull_link *k)
{
	const struct timespec until = in_ms(LOOK_MS);
	const struct pull_job *job;
	int may;

	pthread_mutex_lock(&k->p->lock);
	job = pull_oldest(k, PULL_SENT);
	may = !job || job->may_write || job->is_dropped || FAULT(WRITES_UNASKED);
	if (!may)
		pthread_cond_timedwait(&k->p->begun, &k->p->lock, &until);
	pthread_mutex_unlock(&k->p->lock);
	return may;
}

static int serve(struct pull_link *k)
{
	int ret = 0;

	while (!ret && !atomic_load(&k->p->stop)) {
		if (!cairn_lead_has(k->p->lead, k->rank))
			return -ECONNRESET;
		if (!has_job(k))
			continue;
		CAIRN_TRY(send_jobs(k));
		CAIRN_TRY(send_notices(k));
		if (!may_take(k))
			continue;
		ret = k->table->wait(k->c, CAIRN_SLOT_RUNS, k->taken + 1, LOOK_MS, NULL);
		if (!ret)
			ret = pull_take_run(k);
		else if (ret == -ETIMEDOUT)
			ret = check_quiet(k);
	}
	return ret;
}

/*
 * Waits after a worker that did not get ready, each time twice as long: the lead would start the next one at
 * once, which would load the model and might fail in the same way.
 */
static void back_off(struct pull_link *k)
{
	const struct timespec until = in_ms(1000 << (k->failures < MAX_BACKOFF ? k->failures : MAX_BACKOFF));
	int ret = 0;

	k->failures++;
	pthread_mutex_lock(&k->p->lock);
	while (!ret && !atomic_load(&k->p->stop))
		ret = pthread_cond_timedwait(&k->p->begun, &k->p->lock, &until);
	pthread_mutex_unlock(&k->p->lock);
}

void *pull_link_run(void *arg)
{
	struct pull_link *k = arg;
	struct cairn_pull *p = k->p;

	cairn_transport_use_gpu(p->gpu);
	while (!atomic_load(&p->stop)) {
		int ret = cairn_lead_take(p->lead, k->rank, TAKE_MS, &k->epoch), is_set_up;

		if (ret)
			continue;
		ret = set_up(k);
		is_set_up = !ret;
		if (!ret) {
			k->failures = 0;
			pthread_mutex_lock(&p->lock);
			k->is_ready = 1;
			pthread_mutex_unlock(&p->lock);
			ret = serve(k);
		}
		/* the error text becomes the reason why the worker is lost, unless it is lost already */
		if (ret)
			cairn_lead_report(p->lead, k->rank);
		tear_down(k, ret ? cairn_last_error() : "the lead ends");
		if (!is_set_up)
			back_off(k);
	}
	return NULL;
}
