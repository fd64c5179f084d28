// SPDX-License-Identifier: Apache-2.0
/* prefill_epoch - jobs of a prefill worker, and the thread that computes them (prefill_epoch.h) */
#include "serving/remote/prefill/prefill_epoch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/prefill/prefill_impl.h"
#include "serving/remote/remote_fault.h"

/* ---- creation ---- */

static int open_transport(struct cairn_prefill_epoch *e, struct cairn_pull_blob *blob)
{
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	const size_t bytes = (size_t)e->a.num_layers * e->kv->layer_bytes;

	if (e->on_device)
		o.gpu = CAIRN_GPU_OF_THREAD;
	if (!strcmp(e->transport, "tcp"))
		o.device = e->address;
	CAIRN_TRY(e->table->open(&o, &e->t));
	CAIRN_TRY(e->table->region_register(e->t, e->base, bytes, cairn_run_memory(e->table),
					    &e->kv_region));
	e->heads = calloc(CAIRN_RUN_RING, CAIRN_RUN_HEAD_BYTES);
	if (!e->heads)
		return cairn_error(ENOMEM, "no memory for the heads of runs");
	CAIRN_TRY(e->table->region_register(e->t, e->heads, CAIRN_RUN_RING * CAIRN_RUN_HEAD_BYTES,
					    CAIRN_MEMORY_HOST, &e->head_region));
	CAIRN_TRY(e->table->channel_create(e->t, &e->c));
	return e->table->channel_address(e->c, &blob->channel);
}

static int make_mirror(struct cairn_prefill_epoch *e)
{
	const struct cairn_impl *impl = e->model->impl;
	void *p;

	e->base = e->group ? cairn_prefill_group_base(e->group) : e->kv->base;
	if (e->group || impl->flags & CAIRN_IMPL_HOST_MEM || e->on_device)
		return 0;
	if (!impl->host_alloc || !impl->host_free)
		return cairn_error(EOPNOTSUPP, "%s: prefill workers need host_alloc", impl->name);
	CAIRN_TRY(CAIRN_TABLE(impl, host_alloc, &p, (size_t)e->a.num_layers * e->kv->layer_bytes));
	e->base = e->mirror = p;
	return 0;
}

static int make_worker(struct cairn_prefill_epoch *e)
{
	const struct cairn_worker_options o = {
		.max_batch = 1, .max_rows = e->pass_rows, .max_context = e->a.max_context,
		.num_pages = e->a.num_pages, .page_size = e->a.page_size, .no_graphs = 1,
		.decode = CAIRN_DECODE_UNFUSED,
	};

	e->table = cairn_run_transport(e->transport);
	if (!e->table)
		return cairn_error(EOPNOTSUPP, "transport %s: carries no runs between processes",
				   e->transport);
	CAIRN_TRY(cairn_run_check(e->table, e->model->impl));
	e->on_device = cairn_run_on_device(e->table);
	if (e->group && e->on_device)
		return cairn_error(EOPNOTSUPP, "%s: the stages of a worker put their keys and values in host "
				   "memory, which it does not carry; tcp does", e->table->name);
	e->job_pages = e->a.num_pages / CAIRN_PULL_JOBS;
	e->page_list = calloc((size_t)e->job_pages + 1, sizeof(*e->page_list));
	if (!e->page_list)
		return cairn_error(ENOMEM, "no memory for the list of %d pages", e->job_pages);
	CAIRN_TRY(sodium_load(&e->sodium));
	CAIRN_TRY(e->group ? cairn_prefill_group_worker(e->group, &e->worker, &o) :
		  cairn_worker_create(&e->worker, e->model, &o));
	e->kv = cairn_worker_kv(e->worker);
	return make_mirror(e);
}

/* ---- computing ---- */

struct prefill_job *prefill_oldest(struct cairn_prefill_epoch *e, int over)
{
	struct prefill_job *best = NULL;

	for (int i = 0; i < CAIRN_PULL_JOBS; i++) {
		struct prefill_job *job = &e->jobs[i];

		if (job->number && (over || !job->is_over) && (!best || job->number < best->number))
			best = job;
	}
	return best;
}

int prefill_given_up(struct prefill_job *job)
{
	int error = job->error;

	if (!error && job->is_dropped)
		error = ECANCELED;
	else if (!error && cairn_clock_ns() > job->lease_ns && !FAULT(LEASE_ENDLESS))
		error = ETIMEDOUT;
	if (!FAULT(LEASE_REVIVED))
		job->error = error;
	return error;
}

static void note_layers(struct cairn_prefill_epoch *e, struct prefill_job *job, int64_t layers)
{
	pthread_mutex_lock(&e->life.lock);
	job->layers = layers;
	pthread_cond_broadcast(&e->life.changed);
	pthread_mutex_unlock(&e->life.lock);
}

/* Copies the pages of a chunk, one layer of them, to host memory. They lie one behind the other. */
static int mirror_layer(struct cairn_prefill_epoch *e, int64_t chunk, int32_t layer, void *stream)
{
	const int32_t first = (int32_t)chunk * e->shape.chunk_pages, left = e->computing->end - first;
	const int32_t num = left < e->shape.chunk_pages ? left : e->shape.chunk_pages;
	const size_t bytes = (size_t)(num - FAULT(PAGE_NOT_MIRRORED)) * e->shape.page_bytes;

	for (int32_t side = 0; side < e->shape.sides - FAULT(VALUES_NOT_MIRRORED) && num > 0; side++) {
		const size_t at = (size_t)layer * e->kv->layer_bytes + (size_t)side * e->kv->v_offset +
				  (size_t)prefill_page(e, e->computing, first) * e->shape.page_bytes;

		CAIRN_TRY(CAIRN_TABLE(e->model->impl, mem_copy, e->mirror + at, e->kv->base + at, bytes,
				      CAIRN_COPY_TO_HOST, stream));
	}
	return 0;
}

/* Called before the MLP of a layer: its keys and values are on the stream. */
static int on_layer(void *ctx, int32_t layer, void *stream)
{
	struct cairn_prefill_epoch *e = ctx;
	const int64_t chunk = e->computing->layers / e->a.num_layers;

	if (e->computing->layers != chunk * e->a.num_layers + layer)
		return cairn_error(EIO, "layer %d comes out of order", layer);
	if (e->mirror)
		CAIRN_TRY(mirror_layer(e, chunk, layer, stream));
	CAIRN_TRY(CAIRN_TABLE(e->model->impl, stream_sync, stream));
	note_layers(e, e->computing, chunk * e->a.num_layers + layer + 1);
	return 0;
}

static int compute_pass(struct cairn_prefill_epoch *e, struct prefill_job *job, int32_t number)
{
	const int32_t first = number * e->pass_rows, rows = job->num_tokens - first;
	const struct cairn_worker_part part = {
		.ids = job->ids + first, .follows = -1, .position = first,
		.num_rows = rows < e->pass_rows ? rows : e->pass_rows, .pages = e->page_list,
		.num_pages = job->end,
	};
	struct cairn_worker_result result;

	if (e->group) {
		CAIRN_TRY(cairn_prefill_group_pass(e->group, e->worker, &part));
		cairn_epoch_passed(&e->life);
		return 0;
	}
	cairn_worker_begin(e->worker);
	cairn_worker_add(e->worker, &part);
	cairn_worker_on_layer(e->worker, on_layer, e);
	CAIRN_TRY(cairn_worker_launch(e->worker));
	CAIRN_TRY(cairn_worker_collect(e->worker, &result));
	cairn_epoch_passed(&e->life);
	return job->layers == ((int64_t)number + 1) * e->a.num_layers ? 0 :
	       cairn_error(EIO, "a pass has told of %lld layers, not %d", (long long)job->layers,
			   (number + 1) * e->a.num_layers);
}

/* Computes a job until it is given up. An error is one of the table, which is not trusted any more. */
static int compute(struct cairn_prefill_epoch *e, struct prefill_job *job)
{
	int ret = 0, given_up = 0;

	e->computing = job;
	for (int32_t i = 0; i < job->end; i++)
		e->page_list[i] = prefill_page(e, job, i);
	for (int32_t pass = 0; !ret && !given_up && pass * e->pass_rows < job->num_tokens; pass++) {
		ret = compute_pass(e, job, pass);
		pthread_mutex_lock(&e->life.lock);
		given_up = prefill_given_up(job) || atomic_load(&e->life.stop);
		pthread_mutex_unlock(&e->life.lock);
	}
	pthread_mutex_lock(&e->life.lock);
	job->is_over = 1;
	job->error = ret ? -ret : job->error;
	pthread_cond_broadcast(&e->life.changed);
	pthread_mutex_unlock(&e->life.lock);
	return ret;
}

/* ---- the thread ---- */

static int prepare(struct cairn_prefill_epoch *e)
{
	struct cairn_pull_blob mine = { 0 };
	int ret;

	CAIRN_TRY(make_worker(e));
	CAIRN_TRY(open_transport(e, &mine));
	CAIRN_TRY(cairn_epoch_introduce(&e->life, &mine));
	CAIRN_TRY(e->table->remote_import(e->t, &prefill_theirs(e)->ring, &e->ring));
	CAIRN_TRY(e->table->channel_connect(e->c, &prefill_theirs(e)->channel, CAIRN_PREFILL_CONNECT_MS));
	cairn_epoch_connected(&e->life);
	ret = pthread_create(&e->sender, NULL, prefill_send_run, e);
	e->has_sender = !ret;
	return ret ? cairn_error(EIO, "no thread: %s", strerror(ret)) : 0;
}

static struct prefill_job *next_job(struct cairn_prefill_epoch *e)
{
	struct prefill_job *job = NULL;

	pthread_mutex_lock(&e->life.lock);
	while (!atomic_load(&e->life.stop) && !(job = prefill_oldest(e, 0)))
		pthread_cond_wait(&e->life.changed, &e->life.lock);
	pthread_mutex_unlock(&e->life.lock);
	return atomic_load(&e->life.stop) ? NULL : job;
}

static void *run(void *arg)
{
	struct cairn_prefill_epoch *e = arg;
	struct prefill_job *job;
	int ret = prepare(e);

	while (!ret && (job = next_job(e)))
		ret = compute(e, job);
	cairn_epoch_ended(&e->life, ret);
	if (e->has_sender)
		pthread_join(e->sender, NULL);
	return NULL;
}

/* ---- the main thread ---- */

/*
 * Returns the number of rows of a pass, a multiple of the page size. In a group, a pass has several chunks
 * for each stage but one, so that all stages are busy.
 */
static int32_t rows_of_pass(const struct cairn_prefill_epoch *e)
{
	const int32_t ps = e->a.page_size, most = (e->a.max_context + ps - 1) / ps * ps;
	int32_t rows = e->a.max_rows;

	if (e->group && cairn_prefill_group_rows(e->group) > rows)
		rows = (cairn_prefill_group_rows(e->group) + ps - 1) / ps * ps;
	return e->group && rows > most ? most : rows;
}

int cairn_prefill_epoch_create(struct cairn_prefill_epoch **out, struct cairn_model *model,
			       struct cairn_prefill_group *group, const struct cairn_control_assign *assign,
			       const char *transport, const char *address)
{
	struct cairn_prefill_epoch *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return cairn_error(ENOMEM, "no memory for an epoch");
	e->model = model;
	e->transport = transport;
	e->a = *assign;
	e->group = group;
	e->pass_rows = rows_of_pass(e);
	e->shape = cairn_run_shape(model, assign->page_size, assign->max_rows);
	e->shape.num_layers = assign->num_layers;	/* a stage has fewer */
	snprintf(e->address, sizeof(e->address), "%s", address);
	ret = cairn_epoch_begin(&e->life, sizeof(struct cairn_pull_blob), run, e);
	if (ret)
		cairn_prefill_epoch_destroy(e);
	else
		*out = e;
	return ret;
}

struct cairn_epoch_life *cairn_prefill_epoch_life(struct cairn_prefill_epoch *e)
{
	return &e->life;
}

void cairn_prefill_epoch_destroy(struct cairn_prefill_epoch *e)
{
	if (!e)
		return;
	cairn_epoch_destroy(&e->life);
	if (e->t)
		e->table->close(e->t);
	if (e->mirror)
		e->model->impl->host_free(e->mirror);
	cairn_worker_destroy(e->worker);
	for (int i = 0; i < CAIRN_PULL_JOBS; i++)
		free(e->jobs[i].ids);
	free(e->heads);
	free(e->page_list);
	free(e);
}

static int check_prompt(const struct cairn_prefill_epoch *e, const struct cairn_control_prompt *p)
{
	const int32_t *ids = (const int32_t *)(p + 1);

	if (p->first % e->a.page_size || p->num_tokens > e->job_pages * e->a.page_size)
		return cairn_error(EINVAL, "the lead wants tokens %d to %d of a prompt, in pages of %d, at "
				   "most %d", p->first, p->num_tokens, e->a.page_size, e->job_pages);
	for (int32_t i = 0; i < p->num_tokens; i++)
		if (ids[i] >= e->model->config.vocab_size)
			return cairn_error(EINVAL, "the lead sends token %d; the vocabulary has %d", ids[i],
					   e->model->config.vocab_size);
	return 0;
}

/* Call with the lock held. */
static int queue_job(struct cairn_prefill_epoch *e, const struct cairn_control_prompt *p)
{
	const size_t bytes = (size_t)p->num_tokens * sizeof(int32_t);
	struct prefill_job *job = NULL;

	for (int i = 0; i < CAIRN_PULL_JOBS && !job; i++)
		job = e->jobs[i].number ? NULL : &e->jobs[i];
	if (e->life.state == CAIRN_EPOCH_PREPARING || e->life.state == CAIRN_EPOCH_PREPARED)
		return cairn_error(EINVAL, "the lead sends a prompt before this worker is ready");
	if (!job || p->job <= e->last_number)
		return cairn_error(EINVAL, "the lead sends prompt %llu after %llu, %s",
				   (unsigned long long)p->job, (unsigned long long)e->last_number,
				   job ? "out of order" : "one too many");
	*job = (struct prefill_job){
		.number = p->job, .ids = malloc(bytes), .num_tokens = p->num_tokens,
		.first = p->first / e->a.page_size,
		.end = (p->num_tokens + e->a.page_size - 1) / e->a.page_size,
		.lease_ns = cairn_clock_ns() + p->lease_ms * 1000000ll,
	};
	if (!job->ids) {
		job->number = 0;
		return cairn_error(ENOMEM, "no memory for a prompt of %d tokens", p->num_tokens);
	}
	memcpy(job->ids, p + 1, bytes);
	if (e->group)
		cairn_prefill_group_clear(e->group, (int32_t)(job - e->jobs));
	e->last_number = p->job;
	pthread_cond_broadcast(&e->life.changed);
	return 0;
}

/* The lead may speak of a job that has just ended here. */
static void amend_job(struct cairn_prefill_epoch *e, uint64_t number, uint32_t lease_ms)
{
	for (int i = 0; i < CAIRN_PULL_JOBS; i++) {
		struct prefill_job *job = &e->jobs[i];

		if (job->number != number)
			continue;
		job->is_dropped |= !lease_ms;
		if (lease_ms)
			job->lease_ns = cairn_clock_ns() + lease_ms * 1000000ll;
	}
	pthread_cond_broadcast(&e->life.changed);
}

int cairn_prefill_epoch_message(struct cairn_prefill_epoch *e, const struct cairn_channel_message *m)
{
	const struct cairn_control_lease *lease = m->data;
	const struct cairn_control_drop *drop = m->data;
	int ret = 0;

	if (m->kind == CAIRN_CONTROL_PROMPT)
		CAIRN_TRY(check_prompt(e, m->data));
	pthread_mutex_lock(&e->life.lock);
	if (m->kind == CAIRN_CONTROL_PROMPT)
		ret = queue_job(e, m->data);
	else if (m->kind == CAIRN_CONTROL_LEASE)
		amend_job(e, lease->job, lease->lease_ms);
	else if (m->kind == CAIRN_CONTROL_DROP)
		amend_job(e, drop->job, 0);
	else
		ret = cairn_error(EINVAL, "the lead sends %s to a prefill worker",
				  cairn_control_kind_name(m->kind));
	pthread_mutex_unlock(&e->life.lock);
	return ret;
}
