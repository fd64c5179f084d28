// SPDX-License-Identifier: Apache-2.0
/* pull - jobs and pages of prompts that prefill workers compute (pull.h) */
#include "serving/remote/pull/pull.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/pull/pull_impl.h"
#include "serving/remote/remote_fault.h"

/* ---- creation ---- */

static int check(const struct cairn_impl *impl)
{
	return impl->kv_move && impl->host_alloc && impl->host_free ? 0 :
	       cairn_error(EOPNOTSUPP, "%s: prefill workers need kv_move, host_alloc and host_free",
			   impl->name);
}

/* What a worker is told: all heads, and pages for its jobs. */
static int make_assignment(struct cairn_pull *p, const struct cairn_model *m)
{
	const struct cairn_pull_options *o = &p->opt;
	const int32_t ps = o->kv->page_size, pages = (o->max_context + ps - 1) / ps;
	const struct cairn_remote_limits limits = {
		.max_rows = p->shape.chunk_pages * ps, .max_batch = 1,
		.max_context = o->max_context, .num_pages = CAIRN_PULL_JOBS * pages,
		.page_size = ps,
	};

	return cairn_share_assign(&p->assign, &p->scales, m, &limits, 0, 1, 0);
}

static int create_link(struct cairn_pull *p, int32_t i)
{
	struct pull_link *k = &p->links[i];
	void *copy, *notes;
	int ret;

	k->p = p;
	k->rank = cairn_lead_attention(p->lead) + 1 + i;
	k->ring = calloc(CAIRN_RUN_RING, cairn_run_slot_bytes(&p->shape));
	if (!k->ring)
		return cairn_error(ENOMEM, "pull: no memory for a ring of %d runs", CAIRN_RUN_RING);
	CAIRN_TRY(CAIRN_TABLE(p->impl, host_alloc, &copy, cairn_run_slot_bytes(&p->shape)));
	k->copy = copy;
	CAIRN_TRY(CAIRN_TABLE(p->impl, host_alloc, &notes, sizeof(*k->notes) +
			      2 * (size_t)p->shape.run_pages * sizeof(*k->notes->places)));
	k->notes = notes;
	CAIRN_TRY(CAIRN_TABLE(p->impl, stream_create, &k->stream));
	ret = pthread_create(&k->thread, NULL, pull_link_run, k);
	k->has_thread = !ret;
	return ret ? cairn_error(EIO, "pull: no thread: %s", strerror(ret)) : 0;
}

int cairn_pull_create(struct cairn_pull **out, struct cairn_lead *lead, const struct cairn_model *m,
		      const struct cairn_pull_options *options)
{
	const int32_t num = cairn_lead_prefill(lead);
	struct cairn_pull *p = calloc(1, sizeof(*p) + (size_t)num * sizeof(p->links[0]));
	const int32_t ps = options->kv->page_size;
	pthread_condattr_t attr;
	int ret;

	if (!p)
		return cairn_error(ENOMEM, "pull: no memory");
	p->lead = lead;
	p->impl = m->impl;
	p->gpu = m->impl->flags & CAIRN_IMPL_HOST_MEM ? -1 : cairn_transport_gpu();
	p->opt = *options;
	p->opt.lease_ms = p->opt.lease_ms ? p->opt.lease_ms : CAIRN_PULL_LEASE_MS;
	p->shape = cairn_run_shape(m, ps, options->max_rows < ps ? ps : options->max_rows / ps * ps);
	p->num_links = num;
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->ended, &attr);
	pthread_cond_init(&p->begun, &attr);
	pthread_condattr_destroy(&attr);
	for (int32_t i = 0; i < num; i++)
		pthread_mutex_init(&p->links[i].writes, NULL);
	ret = sodium_load(&p->sodium);
	if (!ret)
		ret = check(p->impl);
	if (!ret)
		ret = make_assignment(p, m);
	for (int32_t i = 0; i < num && !ret; i++)
		ret = create_link(p, i);
	if (ret)
		cairn_pull_destroy(p);
	else
		*out = p;
	return ret;
}

void cairn_pull_destroy(struct cairn_pull *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->stop, 1);
	pthread_cond_broadcast(&p->begun);
	pthread_mutex_unlock(&p->lock);
	for (int32_t i = 0; i < p->num_links; i++) {
		struct pull_link *k = &p->links[i];

		if (k->has_thread && cairn_lead_has(p->lead, k->rank)) {
			cairn_error(ECONNRESET, "the lead ends");
			cairn_lead_report(p->lead, k->rank);	/* ends a wait for its blob */
		}
		if (k->has_thread)
			pthread_join(k->thread, NULL);
		for (int j = 0; j < CAIRN_PULL_JOBS; j++)
			pull_free(&k->jobs[j]);
		free(k->ring);
		if (k->copy)
			p->impl->host_free(k->copy);
		if (k->device_ring)
			p->impl->mem_free(k->device_ring);
		if (k->device_copy)
			p->impl->mem_free(k->device_copy);
		if (k->notes)
			p->impl->host_free(k->notes);
		if (k->stream)
			p->impl->stream_destroy(k->stream);
		pthread_mutex_destroy(&k->writes);
	}
	pthread_cond_destroy(&p->ended);
	pthread_cond_destroy(&p->begun);
	pthread_mutex_destroy(&p->lock);
	free(p->scales);
	free(p);
}

/* ---- jobs ---- */

void pull_free(struct pull_job *job)
{
	free(job->ids);
	free(job->pages);
	*job = (struct pull_job){ 0 };
}

void pull_end(struct cairn_pull *p, struct pull_job *job, const char *why)
{
	if (job->is_dropped) {
		pull_free(job);
		return;
	}
	job->failed = why != NULL;
	p->stats.failed += job->failed;
	p->stats.completed += !job->failed;
	if (why)
		snprintf(p->stats.last_failure, sizeof(p->stats.last_failure), "%s", why);
	job->state = PULL_ENDED;
	pthread_cond_broadcast(&p->ended);
}

static struct pull_job *find_job(struct cairn_pull *p, uint64_t id, struct pull_link **link)
{
	for (int32_t i = 0; i < p->num_links; i++) {
		for (int j = 0; j < CAIRN_PULL_JOBS; j++) {
			struct pull_job *job = &p->links[i].jobs[j];

			*link = &p->links[i];
			if (job->state != PULL_FREE && job->id == id && !job->is_dropped)
				return job;
		}
	}
	return NULL;
}

/* Returns a free place for a job at the worker that has the fewest tokens to compute; NULL: there is none. */
static struct pull_job *find_place(struct cairn_pull *p, struct pull_link **link)
{
	struct pull_job *best = NULL;
	int64_t least = INT64_MAX;

	for (int32_t i = 0; i < p->num_links; i++) {
		struct pull_job *place = NULL;
		int64_t tokens = 0;

		for (int j = 0; j < CAIRN_PULL_JOBS; j++) {
			struct pull_job *job = &p->links[i].jobs[j];

			if (job->state == PULL_FREE)
				place = job;
			else if (job->state != PULL_ENDED)
				tokens += job->num_tokens;
		}
		if (p->links[i].is_ready && place && tokens < least) {
			least = tokens;
			best = place;
			*link = &p->links[i];
		}
	}
	return best;
}

int cairn_pull_has_place(struct cairn_pull *p)
{
	struct pull_link *k;
	int has;

	pthread_mutex_lock(&p->lock);
	has = find_place(p, &k) != NULL;
	pthread_mutex_unlock(&p->lock);
	return has;
}

/* Returns a copy of an array; NULL: there is no memory. */
static int32_t *copy_of(const int32_t *from, int32_t num)
{
	int32_t *to = malloc((size_t)num * sizeof(*to));

	if (to)
		memcpy(to, from, (size_t)num * sizeof(*to));
	return to;
}

int cairn_pull_begin(struct cairn_pull *p, uint64_t id, const int32_t *ids, int32_t num_tokens,
		     int32_t first, const int32_t *pages)
{
	const int32_t ps = p->opt.kv->page_size;
	struct pull_job begun = {
		.state = PULL_QUEUED, .id = id, .num_tokens = num_tokens, .first = first / ps,
		.end = (num_tokens + ps - 1) / ps,
	}, *job;
	struct pull_link *k = NULL;

	if (num_tokens > p->opt.max_context || num_tokens > CAIRN_CONTROL_TOKENS)
		return 0;
	begun.ids = copy_of(ids, num_tokens);
	begun.pages = copy_of(pages, begun.end - begun.first);
	if (!begun.ids || !begun.pages) {
		pull_free(&begun);
		return cairn_error(ENOMEM, "pull: no memory for a prompt of %d tokens", num_tokens);
	}
	pthread_mutex_lock(&p->lock);
	job = find_place(p, &k);
	if (job) {
		begun.number = ++k->last_number;
		*job = begun;
		p->stats.begun++;
		pthread_cond_broadcast(&p->begun);
	}
	pthread_mutex_unlock(&p->lock);
	if (!job)
		pull_free(&begun);
	return job != NULL;
}

void cairn_pull_allow(struct cairn_pull *p, uint64_t id)
{
	struct pull_link *k;
	struct pull_job *job;

	pthread_mutex_lock(&p->lock);
	job = find_job(p, id, &k);
	if (job) {
		job->may_write = 1;
		job->heard_ns = cairn_clock_ns();
		pthread_cond_broadcast(&p->begun);
	}
	pthread_mutex_unlock(&p->lock);
}

void cairn_pull_drop(struct cairn_pull *p, uint64_t id)
{
	struct pull_link *k = NULL;
	struct pull_job *job;
	int is_sent;

	pthread_mutex_lock(&p->lock);
	job = find_job(p, id, &k);
	is_sent = job && job->state == PULL_SENT;
	p->stats.dropped += job && job->state != PULL_ENDED;	/* that one is counted */
	/* a worker may still send it */
	if (is_sent && !FAULT(PLACE_FREED_EARLY))
		job->is_dropped = 1;
	else if (job)
		pull_free(job);
	pthread_mutex_unlock(&p->lock);
	if (!is_sent)
		return;
	pthread_mutex_lock(&k->writes);		/* waits for the end of a copy to its pages */
	pthread_mutex_unlock(&k->writes);
}

int cairn_pull_ended(struct cairn_pull *p, struct cairn_pulled *out)
{
	struct pull_job *job = NULL;

	pthread_mutex_lock(&p->lock);
	for (int32_t i = 0; i < p->num_links && !job; i++)
		for (int j = 0; j < CAIRN_PULL_JOBS && !job; j++)
			if (p->links[i].jobs[j].state == PULL_ENDED)
				job = &p->links[i].jobs[j];
	if (job) {
		*out = (struct cairn_pulled){ .id = job->id, .failed = job->failed };
		pull_free(job);
	}
	pthread_mutex_unlock(&p->lock);
	return job != NULL;
}

static int any_ended(const struct cairn_pull *p)
{
	for (int32_t i = 0; i < p->num_links; i++)
		for (int j = 0; j < CAIRN_PULL_JOBS; j++)
			if (p->links[i].jobs[j].state == PULL_ENDED)
				return 1;
	return 0;
}

void cairn_pull_wait(struct cairn_pull *p, int timeout_ms)
{
	const int64_t then = cairn_clock_ns() + timeout_ms * 1000000ll;
	const struct timespec until = { then / 1000000000, then % 1000000000 };

	pthread_mutex_lock(&p->lock);
	while (!any_ended(p) && !pthread_cond_timedwait(&p->ended, &p->lock, &until))
		;
	pthread_mutex_unlock(&p->lock);
}

void cairn_pull_stats(struct cairn_pull *p, struct cairn_pull_stats *stats)
{
	pthread_mutex_lock(&p->lock);
	*stats = p->stats;
	stats->workers = stats->jobs = 0;
	for (int32_t i = 0; i < p->num_links; i++) {
		stats->workers += p->links[i].is_ready;
		for (int j = 0; j < CAIRN_PULL_JOBS; j++)
			stats->jobs += p->links[i].jobs[j].state != PULL_FREE;
	}
	pthread_mutex_unlock(&p->lock);
}
