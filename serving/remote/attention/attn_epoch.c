// SPDX-License-Identifier: Apache-2.0
/*
 * attn_epoch - a worker's memory, transport and thread of one epoch (attn_epoch.h)
 *
 * attn_local does the arithmetic. The same host memory serves the table and the transport.
 */
#include "serving/remote/attention/attn_epoch_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/remote_fault.h"

/* ---- creation ---- */

static int make_buffer(struct cairn_attn_epoch *e, char **buffer, size_t bytes, struct cairn_region **r)
{
	*buffer = calloc(1, bytes);
	if (!*buffer)
		return cairn_error(ENOMEM, "no memory for a buffer of %zu bytes", bytes);
	return e->table->region_register(e->t, *buffer, bytes, CAIRN_MEMORY_HOST, r);
}

static int open_transport(struct cairn_attn_epoch *e, struct cairn_attn_blob *blob)
{
	const struct cairn_transport_options o = { .size = sizeof(o), .device = e->address, .gpu = -1 };
	const size_t lanes = (size_t)e->num_lanes;

	e->table = cairn_transport_get((int)e->a.transport);
	if (!e->table || strcmp(e->table->name, "tcp"))
		return cairn_error(EOPNOTSUPP, "transport %u: only tcp carries host memory between processes",
				   e->a.transport);
	CAIRN_TRY(e->table->open(&o, &e->t));
	CAIRN_TRY(make_buffer(e, &e->q, lanes * e->sizes.q_bytes, &e->q_region));
	CAIRN_TRY(make_buffer(e, &e->pages, 2 * lanes * e->sizes.kv_bytes, &e->kv_region));
	CAIRN_TRY(make_buffer(e, &e->result, lanes * e->sizes.result_bytes, &e->result_region));
	CAIRN_TRY(e->table->channel_create(e->t, &e->c));
	CAIRN_TRY(e->table->channel_address(e->c, &blob->channel));
	CAIRN_TRY(e->table->region_key(e->q_region, &blob->q));
	return e->table->region_key(e->kv_region, &blob->kv);
}

static int make_lane(struct cairn_attn_epoch *e, int32_t index)
{
	const struct cairn_control_assign *a = &e->a;
	const size_t batch = (size_t)a->max_batch, rows = (size_t)a->max_rows;
	const size_t pages = ((size_t)a->max_context + (size_t)a->page_size - 1) / (size_t)a->page_size;
	struct attn_lane *l = &e->lanes[index];

	l->index = index;
	CAIRN_TRY(cairn_attn_local_create(&l->local, &e->model, &e->kv, a->max_rows, a->previous));
	l->lists = calloc(2 * batch + 1 + batch * pages + rows, sizeof(*l->lists));
	return l->lists ? 0 : cairn_error(ENOMEM, "no memory for the lists of %d requests", a->max_batch);
}

static int make_share(struct cairn_attn_epoch *e)
{
	const struct cairn_impl *impl = e->model.impl;
	const struct cairn_control_assign *a = &e->a;

	if (!(impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "%s: attention workers need a table with host memory so far",
				   impl->name);
	CAIRN_TRY(cairn_share_model(&e->model, impl, a, e->scales));
	CAIRN_TRY(cairn_kv_store_create(&e->kv, &e->model, a->num_pages, a->page_size));
	/* what no pass has written must be numbers, as rows of padding may read it */
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &e->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_set, e->kv.base, 0, (size_t)a->num_layers * e->kv.layer_bytes,
			      e->stream));
	for (int32_t i = 0; i < e->num_lanes; i++)
		CAIRN_TRY(make_lane(e, i));
	return 0;
}

/* ---- the thread ---- */

/* Waits until a plan is under way or waits. Returns 0 if the epoch ends. */
static int has_work(struct cairn_attn_epoch *e)
{
	int any = 0;

	for (int32_t i = 0; i < e->num_lanes; i++)
		any |= e->lanes[i].plan.bytes != NULL;
	pthread_mutex_lock(&e->lock);
	while (!any && !e->num_plans && !atomic_load(&e->stop))
		pthread_cond_wait(&e->changed, &e->lock);
	pthread_mutex_unlock(&e->lock);
	return !atomic_load(&e->stop);
}

static void set_state(struct cairn_attn_epoch *e, enum cairn_epoch_state state)
{
	pthread_mutex_lock(&e->lock);
	e->state = state;
	if (state == CAIRN_EPOCH_FAILED)
		snprintf(e->why, sizeof(e->why), "%s", cairn_last_error());
	pthread_mutex_unlock(&e->lock);
}

static int prepare(struct cairn_attn_epoch *e)
{
	struct cairn_attn_blob mine = { 0 };

	CAIRN_TRY(make_share(e));
	CAIRN_TRY(open_transport(e, &mine));
	pthread_mutex_lock(&e->lock);
	e->mine = mine;
	e->state = CAIRN_EPOCH_PREPARED;
	while (!e->has_theirs && !atomic_load(&e->stop))
		pthread_cond_wait(&e->changed, &e->lock);
	pthread_mutex_unlock(&e->lock);
	if (atomic_load(&e->stop))
		return -ECANCELED;
	CAIRN_TRY(e->table->remote_import(e->t, &e->theirs.q, &e->to));
	CAIRN_TRY(e->table->channel_connect(e->c, &e->theirs.channel, CAIRN_EPOCH_CONNECT_MS));
	set_state(e, CAIRN_EPOCH_CONNECTED);
	return 0;
}

static void *run(void *arg)
{
	struct cairn_attn_epoch *e = arg;
	int ret = prepare(e);

	while (!ret && has_work(e))
		ret = attn_epoch_turn(e);
	/* -ECONNRESET: the model worker has closed its end, and the lead decides what follows */
	set_state(e, ret && ret != -ECANCELED && ret != -ECONNRESET ? CAIRN_EPOCH_FAILED : CAIRN_EPOCH_OVER);
	return NULL;
}

/* ---- the main thread ---- */

int cairn_attn_epoch_create(struct cairn_attn_epoch **out, const struct cairn_impl *impl,
			    const struct cairn_control_assign *assign, const void *scales,
			    const char *address)
{
	struct cairn_attn_epoch *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return cairn_error(ENOMEM, "no memory");
	e->a = *assign;
	e->sizes = cairn_share_sizes(assign);
	e->num_lanes = assign->lanes ? (int32_t)assign->lanes : 1;
	e->model.impl = impl;
	snprintf(e->address, sizeof(e->address), "%s", address);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->changed, NULL);
	e->scales = malloc(assign->num_bytes + 1);
	if (e->scales)
		memcpy(e->scales, scales, assign->num_bytes);
	ret = e->scales ? pthread_create(&e->thread, NULL, run, e) : ENOMEM;
	e->has_thread = !ret;
	if (ret) {
		cairn_attn_epoch_destroy(e);
		return cairn_error(ret, "no thread: %s", strerror(ret));
	}
	*out = e;
	return 0;
}

void cairn_attn_epoch_stop(struct cairn_attn_epoch *e)
{
	pthread_mutex_lock(&e->lock);
	atomic_store(&e->stop, 1);
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

void cairn_attn_epoch_destroy(struct cairn_attn_epoch *e)
{
	if (!e)
		return;
	cairn_attn_epoch_stop(e);
	if (e->has_thread)
		pthread_join(e->thread, NULL);
	if (e->t)
		e->table->close(e->t);
	for (int i = 0; i < e->num_plans; i++)
		free(e->plans[i].bytes);
	for (int i = 0; i < CAIRN_MAX_LANES; i++) {
		free(e->lanes[i].plan.bytes);
		free(e->lanes[i].lists);
		cairn_attn_local_destroy(e->lanes[i].local);
	}
	if (e->stream)
		e->model.impl->stream_destroy(e->stream);
	if (e->kv.base)
		cairn_kv_store_destroy(&e->kv, &e->model);
	cairn_share_model_free(&e->model);
	free(e->scales);
	free(e->q);
	free(e->pages);
	free(e->result);
	pthread_cond_destroy(&e->changed);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

int cairn_attn_epoch_connect(struct cairn_attn_epoch *e, const struct cairn_attn_blob *theirs)
{
	int ret = 0;

	pthread_mutex_lock(&e->lock);
	if (e->state != CAIRN_EPOCH_PREPARED || e->has_theirs)
		ret = cairn_error(EINVAL, "the lead's blob comes %s", e->has_theirs ? "twice" : "too early");
	e->theirs = *theirs;
	e->has_theirs = 1;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
	return ret;
}

int cairn_attn_epoch_plan(struct cairn_attn_epoch *e, const struct cairn_control_plan *head,
			  const void *bytes)
{
	struct attn_plan plan = { head->pass, head->lane, head->num_bytes, malloc(head->num_bytes + 1) };
	int ret = 0;

	if (!plan.bytes)
		return cairn_error(ENOMEM, "no memory for a plan");
	memcpy(plan.bytes, bytes, head->num_bytes);
	pthread_mutex_lock(&e->lock);
	if (e->num_plans == CAIRN_EPOCH_PLANS)
		ret = cairn_error(EINVAL, "the lead sends plan %llu before its predecessors were carried out",
				  (unsigned long long)head->pass);
	else if (head->pass <= e->last_pass && !FAULT(PLAN_REPEATED))
		ret = cairn_error(EINVAL, "the lead sends plan %llu after %llu",
				  (unsigned long long)head->pass, (unsigned long long)e->last_pass);
	else
		e->plans[e->num_plans++] = plan;
	e->last_pass = ret ? e->last_pass : head->pass;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
	if (ret)
		free(plan.bytes);
	return ret;
}

enum cairn_epoch_state cairn_attn_epoch_state(struct cairn_attn_epoch *e, struct cairn_attn_blob *blob,
					      char *text, size_t len)
{
	enum cairn_epoch_state state;

	pthread_mutex_lock(&e->lock);
	state = e->state;
	if (blob && state == CAIRN_EPOCH_PREPARED)
		*blob = e->mine;
	if (text)
		snprintf(text, len, "%s", e->why);
	pthread_mutex_unlock(&e->lock);
	return state;
}

uint64_t cairn_attn_epoch_passes(struct cairn_attn_epoch *e)
{
	uint64_t passes;

	pthread_mutex_lock(&e->lock);
	passes = e->passes;
	pthread_mutex_unlock(&e->lock);
	return passes;
}
