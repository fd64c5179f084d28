// SPDX-License-Identifier: Apache-2.0
/*
 * attn_epoch - a worker's memory, transport and thread of one epoch (attn_epoch.h)
 *
 * attn_local does the arithmetic. The same memory serves the table and the transport. The weights of
 * latent attention are put into the model's memory before the first signal, which therefore implies them.
 */
#include "serving/remote/attention/attn_epoch_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/remote_fault.h"

/* ---- creation ---- */

static int memory_kind(const struct cairn_attn_epoch *e)
{
	return e->table->features & CAIRN_TRANSPORT_DEVICE_PUT ? CAIRN_MEMORY_DEVICE : CAIRN_MEMORY_HOST;
}

static int make_buffer(struct cairn_attn_epoch *e, char **buffer, size_t bytes, struct cairn_region **r)
{
	void *p = NULL;

	if (e->by_stream)
		CAIRN_TRY(CAIRN_TABLE(e->model.impl, mem_alloc, &p, cairn_share_granules(bytes)));
	else
		p = calloc(1, bytes);
	*buffer = p;
	if (!*buffer)
		return cairn_error(ENOMEM, "no memory for a buffer of %zu bytes", bytes);
	return e->table->region_register(e->t, *buffer, bytes, memory_kind(e), r);
}

static void free_buffer(const struct cairn_attn_epoch *e, char *buffer)
{
	if (buffer && e->by_stream)
		e->model.impl->mem_free(buffer);
	else
		free(buffer);
}

static int open_transport(struct cairn_attn_epoch *e, struct cairn_attn_blob *blob)
{
	const char *name = e->by_stream ? cairn_share_streams_over : "tcp";
	const struct cairn_transport_options o = {
		.size = sizeof(o), .device = e->address, .gpu = e->by_stream ? CAIRN_GPU_OF_THREAD : -1,
	};
	const size_t lanes = (size_t)e->num_lanes;

	e->table = cairn_transport_get((int)e->a.transport);
	if (!e->table || strcmp(e->table->name, name))
		return cairn_error(EOPNOTSUPP, "transport %u: attention workers with table %s need %s",
				   e->a.transport, e->model.impl->name, name);
	CAIRN_TRY(e->table->open(&o, &e->t));
	CAIRN_TRY(make_buffer(e, &e->q, lanes * e->sizes.q_bytes, &e->q_region));
	CAIRN_TRY(make_buffer(e, &e->pages, 2 * lanes * e->sizes.kv_bytes, &e->kv_region));
	if (!e->by_stream)	/* which puts results from where they are */
		CAIRN_TRY(make_buffer(e, &e->result, lanes * e->sizes.result_bytes, &e->result_region));
	for (int32_t i = 0; i < e->num_sources; i++) {
		CAIRN_TRY(e->table->channel_create(e->t, &e->sources[i].c));
		CAIRN_TRY(e->table->channel_address(e->sources[i].c,
						    i ? &blob->channels[i - 1] : &blob->channel));
	}
	CAIRN_TRY(e->table->region_key(e->q_region, &blob->q));
	CAIRN_TRY(e->table->region_key(e->kv_region, &blob->kv));
	if (e->model.bytes) {
		CAIRN_TRY(e->table->region_register(e->t, e->model.base, e->model.bytes, memory_kind(e),
						    &e->weights_region));
		CAIRN_TRY(e->table->region_key(e->weights_region, &blob->weights));
	}
	if (e->a.stripes == 1)
		return 0;
	e->relay = (struct cairn_relay){
		.table = e->table, .c = e->sources[0].c, .bytes = e->sizes.page_bytes,
		.await = attn_epoch_await_page, .ctx = &e->sources[0],
	};
	CAIRN_TRY(make_buffer(e, &e->relay.page, e->relay.bytes, &e->relay.region));
	return e->table->region_key(e->relay.region, &blob->page);
}

static int make_lane(struct cairn_attn_epoch *e, int32_t index)
{
	const struct cairn_control_assign *a = &e->a;
	struct attn_lane *l = &e->lanes[index];

	l->index = index;
	l->stream = e->stream;
	CAIRN_TRY(cairn_attn_local_create(&l->local, &e->model, &e->kv, a->max_rows, a->previous));
	CAIRN_TRY(cairn_lists_create(&l->lists, a));
	return e->by_stream ? attn_queue_create(e, l) : 0;
}

static int make_share(struct cairn_attn_epoch *e)
{
	const struct cairn_impl *impl = e->model.impl;
	const struct cairn_control_assign *a = &e->a;
	const int32_t pages = cairn_stripe_pages(a->num_pages, a->stripe, a->stripes);

	if (e->by_stream && a->stripes > 1)
		return cairn_error(EOPNOTSUPP, "%s: more attention workers than heads need a table with host "
				   "memory so far", impl->name);
	if (e->by_stream && e->num_sources > 1)
		return cairn_error(EOPNOTSUPP, "%s: more than one model worker need a table with host memory "
				   "so far", impl->name);
	CAIRN_TRY(cairn_share_model(&e->model, impl, a, e->scales));
	CAIRN_TRY(cairn_kv_store_create(&e->kv, &e->model, pages, a->page_size));
	/* what no pass has written must be numbers, as rows of padding may read it */
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &e->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_set, e->kv.base, 0, (size_t)a->num_layers * e->kv.layer_bytes,
			      e->stream));
	for (int32_t i = 0; i < e->num_lanes; i++)
		CAIRN_TRY(make_lane(e, i));
	return CAIRN_TABLE(impl, stream_sync, e->stream);
}

/* ---- the thread ---- */

/* Returns whether a plan of one of the source's lanes is under way or waits. Call with the lock held. */
static int any_plan(struct attn_source *s)
{
	struct cairn_attn_epoch *e = s->e;

	for (int32_t i = 0; i < e->num_lanes; i++)
		if (e->lanes[i].plan.bytes && attn_source_of(e, i) == s)
			return 1;
	for (int i = 0; i < e->num_plans; i++)
		if (attn_source_of(e, (int32_t)e->plans[i].lane) == s)
			return 1;
	return 0;
}

/* Waits until the source has a plan, under way or queued. Returns 0 if the epoch ends. */
static int has_work(struct attn_source *s)
{
	struct cairn_epoch_life *l = &s->e->life;

	pthread_mutex_lock(&l->lock);
	while (!any_plan(s) && !atomic_load(&l->stop))
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return !atomic_load(&l->stop);
}

static int prepare(struct cairn_attn_epoch *e)
{
	struct cairn_attn_blob mine = { 0 };
	const struct cairn_attn_blob *theirs;

	CAIRN_TRY(make_share(e));
	CAIRN_TRY(open_transport(e, &mine));
	CAIRN_TRY(cairn_epoch_introduce(&e->life, &mine));
	theirs = (const struct cairn_attn_blob *)(const void *)e->life.theirs;
	for (int32_t i = 0; i < e->num_sources; i++)
		CAIRN_TRY(e->table->remote_import(e->t, i ? &theirs->results[i - 1] : &theirs->q,
						  &e->sources[i].to));
	if (e->relay.bytes)
		CAIRN_TRY(e->table->remote_import(e->t, &theirs->page, &e->relay.to));
	for (int32_t i = 0; i < e->num_sources; i++)
		CAIRN_TRY(e->table->channel_connect(e->sources[i].c,
						    i ? &theirs->channels[i - 1] : &theirs->channel,
						    CAIRN_EPOCH_CONNECT_MS));
	cairn_epoch_connected(&e->life);
	return 0;
}

static void *take_turns(void *arg)
{
	struct attn_source *s = arg;
	int ret = 0;

	while (!ret && has_work(s))
		ret = attn_epoch_turn(s);
	cairn_epoch_ended(&s->e->life, ret);
	return NULL;
}

static void *run(void *arg)
{
	struct cairn_attn_epoch *e = arg;
	int ret = prepare(e);

	if (e->by_stream) {
		while (!ret && has_work(&e->sources[0]))
			ret = attn_queue_plan(e);
		cairn_epoch_ended(&e->life, ret);
		attn_queue_stop(e);
		return NULL;
	}
	for (int32_t i = 1; i < e->num_sources && !ret; i++) {
		ret = pthread_create(&e->sources[i].thread, NULL, take_turns, &e->sources[i]);
		e->sources[i].has_thread = !ret;
		ret = ret ? cairn_error(EIO, "no thread: %s", strerror(ret)) : 0;
	}
	if (ret)
		cairn_epoch_ended(&e->life, ret);
	else
		take_turns(&e->sources[0]);
	for (int32_t i = 1; i < e->num_sources; i++)
		if (e->sources[i].has_thread)
			pthread_join(e->sources[i].thread, NULL);
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
	e->num_sources = assign->models ? (int32_t)assign->models : 1;
	for (int32_t i = 0; i < e->num_sources; i++)
		e->sources[i].e = e;
	e->model.impl = impl;
	e->by_stream = cairn_share_by_stream(impl);
	snprintf(e->address, sizeof(e->address), "%s", address);
	e->scales = malloc(assign->num_bytes + 1);
	if (e->scales)
		memcpy(e->scales, scales, assign->num_bytes);
	ret = e->scales ? cairn_epoch_begin(&e->life, sizeof(struct cairn_attn_blob), run, e) :
	      cairn_error(ENOMEM, "no memory for scales");
	if (ret)
		cairn_attn_epoch_destroy(e);
	else
		*out = e;
	return ret;
}

struct cairn_epoch_life *cairn_attn_epoch_life(struct cairn_attn_epoch *e)
{
	return &e->life;
}

void cairn_attn_epoch_destroy(struct cairn_attn_epoch *e)
{
	if (!e)
		return;
	cairn_epoch_destroy(&e->life);
	if (e->t)
		e->table->close(e->t);
	for (int i = 0; i < e->num_plans; i++)
		free(e->plans[i].bytes);
	for (int i = 0; i < CAIRN_MAX_LANES; i++) {
		free(e->lanes[i].plan.bytes);
		attn_queue_destroy(e, &e->lanes[i]);
		cairn_lists_free(&e->lanes[i].lists);
		cairn_attn_local_destroy(e->lanes[i].local);
	}
	if (e->stream)
		e->model.impl->stream_destroy(e->stream);
	if (e->kv.base)
		cairn_kv_store_destroy(&e->kv, &e->model);
	free(e->scales);
	free_buffer(e, e->q);
	free_buffer(e, e->pages);
	free_buffer(e, e->result);
	free(e->relay.page);
	cairn_share_model_free(&e->model);
	free(e);
}

int cairn_attn_epoch_plan(struct cairn_attn_epoch *e, const struct cairn_control_plan *head,
			  const void *bytes)
{
	struct attn_plan plan = { head->pass, head->lane, head->num_bytes, malloc(head->num_bytes + 1) };
	int ret = 0;

	if (!plan.bytes)
		return cairn_error(ENOMEM, "no memory for a plan");
	memcpy(plan.bytes, bytes, head->num_bytes);
	pthread_mutex_lock(&e->life.lock);
	if (e->num_plans == CAIRN_EPOCH_PLANS)
		ret = cairn_error(EINVAL, "the lead sends plan %llu before its predecessors were carried out",
				  (unsigned long long)head->pass);
	else if (head->pass <= e->last_pass && !FAULT(PLAN_REPEATED))
		ret = cairn_error(EINVAL, "the lead sends plan %llu after %llu",
				  (unsigned long long)head->pass, (unsigned long long)e->last_pass);
	else
		e->plans[e->num_plans++] = plan;
	e->last_pass = ret ? e->last_pass : head->pass;
	pthread_cond_broadcast(&e->life.changed);
	pthread_mutex_unlock(&e->life.lock);
	if (ret)
		free(plan.bytes);
	return ret;
}
