// SPDX-License-Identifier: Apache-2.0
/*
 * attn_queue - the turns of an attention worker in the order of streams, for tables of a device
 *
 *   stream of a lane   lists | wait Q(0), attention, put O(0), wait KV(0), append | wait Q(1), ...
 *
 * When a plan comes, all its layers are enqueued at once. Each is behind a wait for the signal of its
 * queries, so the hosts take no part between two GPUs. Lanes have streams of their own: in each layer, a plan
 * waits for the event that the plan before it has stored its keys, so that plans are carried out in their
 * order, layer by layer, as by a worker that takes turns.
 *
 * What operations read of a plan is packed into one block of pinned memory and copied to the device, in the
 * order of the stream. The block is written again when that copy is done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/attention/attn_epoch_impl.h"
#include "serving/remote/remote_fault.h"

#define ALIGNMENT	16

/* ---- creation ---- */

/* The largest lists of a pass: see attn_queue_pack(). */
static size_t most_bytes(const struct cairn_control_assign *a)
{
	const size_t batch = (size_t)a->max_batch, rows = (size_t)a->max_rows;
	const size_t lists = a->kv_lora_rank ? rows : batch;
	const size_t pages = ((size_t)a->max_context + (size_t)a->page_size - 1) / (size_t)a->page_size;

	return sizeof(int32_t) * (rows + 2 * (batch + 1) + batch + batch * pages +
				  2 * (lists + 1) + lists + lists * pages) + 9 * ALIGNMENT;
}

int attn_queue_create(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_impl *impl = e->model.impl;
	const size_t layers = (size_t)e->a.num_layers;
	void *p;

	l->stream = NULL;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &l->stream));
	l->packed.room = most_bytes(&e->a);
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, l->packed.room));
	l->packed.device = p;
	CAIRN_TRY(CAIRN_TABLE(impl, host_alloc, &p, l->packed.room));
	l->packed.host = p;
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &l->packed.copied));
	CAIRN_TRY(CAIRN_TABLE(impl, event_record, l->packed.copied, l->stream));
	if (e->num_lanes == 1)
		return 0;
	if (!impl->stream_wait)
		return cairn_error(EOPNOTSUPP, "%s: lanes: the table has no operation stream_wait",
				   impl->name);
	l->done = calloc(layers, sizeof(*l->done));
	if (!l->done)
		return cairn_error(ENOMEM, "no memory for %zu events", layers);
	for (size_t i = 0; i < layers; i++)
		CAIRN_TRY(CAIRN_TABLE(impl, event_create, &l->done[i]));
	return 0;
}

void attn_queue_destroy(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_impl *impl = e->model.impl;

	if (!e->by_stream)
		return;
	for (int32_t i = 0; l->done && i < e->a.num_layers && l->done[i]; i++)
		impl->event_destroy(l->done[i]);
	free(l->done);
	if (l->packed.copied)
		impl->event_destroy(l->packed.copied);
	if (l->packed.host)
		impl->host_free(l->packed.host);
	if (l->packed.device)
		impl->mem_free(l->packed.device);
	if (l->stream && l->stream != e->stream)
		impl->stream_destroy(l->stream);
}

/* ---- lists ---- */

/* Appends an array to the block, and makes it point to where its copy will be. */
static void pack(struct attn_packed *p, const int32_t **array, int32_t num)
{
	memcpy(p->host + p->bytes, *array, (size_t)num * sizeof(**array));
	*array = (const int32_t *)(const void *)(p->device + p->bytes);
	p->bytes += ((size_t)num * sizeof(**array) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Makes all lists of a pass those on the device. Stripes, whose lists have positions, are not supported. */
static int pack_lists(const struct cairn_attn_epoch *e, struct attn_lane *l, struct cairn_batch *b,
		      struct cairn_attn_past *past)
{
	const struct cairn_impl *impl = e->model.impl;
	const int32_t num_pages = b->kv_indptr[b->batch], num_past = past->indptr[past->num_lists];
	struct attn_packed *p = &l->packed;
	size_t skipped;

	CAIRN_TRY(CAIRN_TABLE(impl, event_sync, p->copied));
	p->bytes = 0;
	pack(p, &b->positions, b->num_rows);
	skipped = FAULT(POSITIONS_OF_BEFORE) && l->layers ? p->bytes : 0;
	pack(p, &b->qo_indptr, b->batch + 1);
	pack(p, &b->kv_indptr, b->batch + 1);
	pack(p, &b->kv_indices, num_pages);
	pack(p, &b->kv_last_page_len, b->batch);
	pack(p, &past->qo_indptr, past->num_lists + 1);
	pack(p, &past->indptr, past->num_lists + 1);
	pack(p, &past->indices, num_past);
	pack(p, &past->last_page_len, past->num_lists);
	CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, p->device + skipped, p->host + skipped, p->bytes - skipped,
			      CAIRN_COPY_TO_DEVICE, l->stream));
	return CAIRN_TABLE(impl, event_record, p->copied, l->stream);
}

/* ---- plans ---- */

static int take_plan(struct cairn_attn_epoch *e, struct attn_plan *plan)
{
	*plan = (struct attn_plan){ 0 };
	pthread_mutex_lock(&e->life.lock);
	if (e->num_plans) {
		*plan = e->plans[0];
		e->num_plans--;
		memmove(e->plans, e->plans + 1, (size_t)e->num_plans * sizeof(*plan));
	}
	pthread_mutex_unlock(&e->life.lock);
	return plan->bytes ? 0 : -ECANCELED;
}

static int begin_pass(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_remote_limits limits = cairn_share_limits(&e->a);
	struct cairn_attn_past past;
	struct cairn_batch b;
	int moved;

	CAIRN_TRY(cairn_remote_pass_read(&l->p, l->plan.bytes, l->plan.num_bytes, &limits));
	cairn_lists_make(&l->lists, &l->p, &b, &past);
	b.max_kv_len = cairn_lists_bound(b.max_kv_len, e->a.max_context);
	CAIRN_TRY(pack_lists(e, l, &b, &past));
	l->layer = 0;
	return cairn_attn_local_begin(l->local, &b, e->a.previous ? &past : NULL, l->stream, &moved);
}

/* A layer begins when the plan before it, which is of another lane, has ended it. */
static int enqueue_layer(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_impl *impl = e->model.impl;
	const int32_t layer = l->layer, last = e->last_lane;

	if (last >= 0 && last != l->index && !FAULT(LANES_UNORDERED))
		CAIRN_TRY(CAIRN_TABLE(impl, stream_wait, l->stream, e->lanes[last].done[layer]));
	CAIRN_TRY(attn_epoch_layer(&e->sources[0], l, cairn_share_number(e->a.epoch, l->layers + 1)));
	l->layer++;
	return l->done ? CAIRN_TABLE(impl, event_record, l->done[layer], l->stream) : 0;
}

int attn_queue_plan(struct cairn_attn_epoch *e)
{
	struct attn_plan plan;
	struct attn_lane *l;

	CAIRN_TRY(take_plan(e, &plan));
	if (plan.lane >= (uint32_t)e->num_lanes) {
		free(plan.bytes);
		return cairn_error(EINVAL, "the lead sends a plan of lane %u, of %d", plan.lane,
				   e->num_lanes);
	}
	l = &e->lanes[plan.lane];
	l->plan = plan;
	CAIRN_TRY(begin_pass(e, l));
	while (l->layer < e->a.num_layers)
		CAIRN_TRY(enqueue_layer(e, l));
	e->last_lane = l->index;
	free(l->plan.bytes);
	l->plan.bytes = NULL;
	cairn_epoch_passed(&e->life);
	return 0;
}

void attn_queue_stop(struct cairn_attn_epoch *e)
{
	if (e->sources[0].c)
		e->table->stream_stop(e->sources[0].c);
	for (int32_t i = 0; i < e->num_lanes; i++)
		if (e->lanes[i].stream)
			e->model.impl->stream_sync(e->lanes[i].stream);
}
