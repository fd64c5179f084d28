// SPDX-License-Identifier: Apache-2.0
/*
 * attn_remote_stream - the model worker's end of remote attention in the order of streams (attn_remote.h)
 *
 *   stream of a pass   ... | put Q | product | put K, V | own keys | wait for O, lse | merge ...
 *
 * In passes whose requests have one row each, the merge attends to the own keys (sliced.c).
 *
 * A put takes the columns of a worker's heads from the activations into that worker's memory. Results come
 * into memory of the link, where the pass merges them: no copy is made. Each lane counts its layers, and its
 * signals have slots of their own, because lanes are streams.
 *
 * Puts and waits are the same for all passes with equally many rows, so a pass can be captured. They read the
 * number of the pass and its rows without padding from a block on the device, which number() fills in before
 * the pass. The block is not in use then, because finish() has waited for the previous pass.
 *
 * With lanes, one computes at a time, in the order in which results arrive: a pass holds a lock from a result
 * to its next Q. If two shared the GPU, both would send their queries late, and together (attn_queue.c). K
 * and V are sent after the lock is released, because their small product and the puts do not fill the GPU.
 *
 * Activations may change behind the put in the stream. The buffer of results is free for layer l + 1 when a
 * worker has Q(l + 1), which comes behind the merge of layer l.
 *
 * No call waits. A thread looks whether a worker is lost, and then stops what waits on the device. finish()
 * reports it.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/attn_remote_impl.h"
#include "serving/remote/remote_fault.h"

#define LOOK_NS		10000000	/* between two looks at whether a worker is lost */

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;

	if (!rows->layer && !l->is_numbered)
		CAIRN_TRY(cairn_attn_remote_number(r, l->index, rows->num_rows, stream));
	CAIRN_TRY(attn_remote_is_lost(r));
	if (rows->num_rows != l->num_rows)
		return cairn_error(EINVAL, "attn_remote: num_rows is %d, in layer 0 it was %d",
				   rows->num_rows, l->num_rows);
	l->layer = rows->layer;
	for (int32_t i = 0; i < r->num_peers; i++) {
		const struct remote_peer *p = &r->peers[i];
		const size_t first = (size_t)(p->a.first_head * p->a.group);
		const struct cairn_stream_put put = {
			.now = l->now, .remote = p->to_q, .slot = CAIRN_SLOT_LANE_Q + (uint32_t)l->index,
			.value = (uint64_t)rows->layer + 1,
			/* the slice of layer 0 waits for no result, so it has no lock */
			.unlock = rows->layer && !i ? r->lock : NULL,
			.part[0] = {
				.from = (const char *)rows->q + first * head,
				.from_stride = (size_t)rows->q_stride * r->element,
				.to = (size_t)l->index * p->sizes.q_bytes, .to_stride = p->sizes.q,
				.bytes = p->sizes.q, .rows = (uint32_t)rows->num_rows,
			},
		};

		CAIRN_TRY(attn_remote_blame(r, i, r->table->stream_put(p->c, &put, stream)));
	}
	return 0;
}

static int send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;
	const size_t buffer = 2 * (size_t)l->index +
			      cairn_share_buffer(l->layers + (uint64_t)rows->layer, rows->layer);

	for (int32_t i = 0; i < r->num_peers; i++) {
		const struct remote_peer *p = &r->peers[i];
		const int32_t first = p->a.first_head + (FAULT(HEADS_SHIFTED) && r->num_peers > 1 ?
							 i ? -1 : 1 : 0);
		struct cairn_stream_put put = {
			.now = l->now, .remote = p->to_kv, .slot = CAIRN_SLOT_LANE_KV + (uint32_t)l->index,
			.value = (uint64_t)rows->layer + 1,
			.part[0] = {
				.from = (const char *)rows->k + (size_t)first * head,
				.from_stride = (size_t)rows->kv_stride * r->element,
				.to = buffer * p->sizes.kv_bytes, .to_stride = p->sizes.k,
				.bytes = p->sizes.k, .rows = (uint32_t)rows->num_rows,
			},
		};

		if (rows->v) {
			put.part[1] = put.part[0];
			put.part[1].from = (const char *)rows->v + (size_t)first * head;
			put.part[1].to += cairn_share_v_offset(&p->sizes);
		}
		CAIRN_TRY(attn_remote_blame(r, i, r->table->stream_put(p->c, &put, stream)));
	}
	return r->journal && !r->is_restoring && !FAULT(JOURNAL_NOT_QUEUED) ?
	       cairn_journal_rows(r->journal, l->index, rows, stream) : 0;
}

/* Makes the results of padding those of rows that see no key. They stay so over the layers of the pass. */
static int set_padding(const struct remote_lane *l, char *o, float *lse, void *stream)
{
	const struct cairn_attn_remote *r = l->r;
	const size_t row = (size_t)r->m->dims[CAIRN_D_ATTN] * r->element, rows = (size_t)l->p.num_rows;
	const size_t heads = (size_t)r->m->config.num_attention_heads, num = (size_t)l->num_rows - rows;

	if (!num || FAULT(PADDING_KEPT))
		return 0;
	CAIRN_TRY(CAIRN_TABLE(r->m->impl, mem_set, o + rows * row, 0, num * row, stream));
	return lse ? CAIRN_TABLE(r->m->impl, mem_copy, lse + rows * heads, r->empty,
				 num * heads * sizeof(*lse), CAIRN_COPY_ON_DEVICE, stream) : 0;
}

static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const struct cairn_impl *impl = r->m->impl;
	const size_t rows = (size_t)l->num_rows, heads = (size_t)r->m->config.num_attention_heads;
	const size_t row = (size_t)r->m->dims[CAIRN_D_ATTN] * r->element;
	const uint32_t slot = CAIRN_SLOT_LANE_RESULT + (uint32_t)l->index;
	struct cairn_stream_wait wait = {
		.now = l->now, .value = (uint64_t)layer + 1, .timeout_ms = CAIRN_EPOCH_STREAM_MS,
		.slot = FAULT(RESULT_UNAWAITED) ? CAIRN_NO_SIGNAL : slot,
	};

	if (layer != l->layer || !lse != !l->link.previous)
		return cairn_error(EINVAL, "attn_remote: layer %d received, layer %d sent", layer, l->layer);
	for (int32_t i = 0; i < r->num_peers; i++) {
		/* no Q follows the last layer's result */
		if (i == r->num_peers - 1 && layer + 1 < r->m->config.num_hidden_layers)
			wait.lock = r->lock;
		CAIRN_TRY(attn_remote_blame(r, i, r->table->stream_wait(r->peers[i].c, &wait, stream)));
	}
	if (o == l->results)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, o, l->results, rows * row, CAIRN_COPY_ON_DEVICE, stream));
	return lse ? CAIRN_TABLE(impl, mem_copy, lse, l->lse, rows * heads * sizeof(*lse),
				 CAIRN_COPY_ON_DEVICE, stream) : 0;
}

/* Counts what a pass sends and receives. */
static void count(struct cairn_attn_remote *r, const struct remote_lane *l)
{
	size_t row = 0;

	for (int32_t i = 0; i < r->num_peers; i++) {
		const struct cairn_share_sizes *s = &r->peers[i].sizes;

		row += s->q + (size_t)s->sides * s->k + s->o + s->lse;
	}
	r->stats.layers += r->m->config.num_hidden_layers;
	r->stats.bytes += (int64_t)row * l->p.num_rows * r->m->config.num_hidden_layers;
}

int cairn_attn_remote_number(struct cairn_attn_remote *r, int32_t lane, int32_t num_rows, void *stream)
{
	struct remote_lane *l = &r->lanes[lane];

	if (!r->by_stream)
		return 0;
	if (num_rows < l->p.num_rows || num_rows > r->limits.max_rows)
		return cairn_error(EINVAL, "attn_remote: num_rows is %d, of a pass of %d", num_rows,
				   l->p.num_rows);
	l->stream = stream;
	l->num_rows = num_rows;
	l->layers = l->next_layers;
	l->next_layers += (uint64_t)r->m->config.num_hidden_layers;
	l->is_numbered = 1;
	*l->now_host = (struct cairn_stream_now){
		.number = cairn_share_number(r->epoch, FAULT(NUMBER_OF_CAPTURE) ? 0 : l->layers),
		.rows = (uint64_t)l->p.num_rows,
	};
	CAIRN_TRY(CAIRN_TABLE(r->m->impl, mem_copy, l->now, l->now_host, sizeof(*l->now),
			      CAIRN_COPY_TO_DEVICE, stream));
	count(r, l);
	return set_padding(l, l->results, l->lse, stream);
}

int cairn_attn_remote_side(const struct cairn_attn_remote *r, int32_t lane)
{
	return (int)(r->lanes[lane].next_layers % 2) +
	       (r->journal ? 2 * cairn_journal_side(r->journal, lane) : 0);
}

int cairn_attn_remote_replayed(const struct cairn_attn_remote *r, int32_t lane)
{
	const struct remote_lane *l = &r->lanes[lane];
	struct cairn_signal s;

	for (int32_t i = 0; i < r->num_peers; i++)
		if (!r->by_stream || !r->t ||
		    r->table->wait(r->peers[i].c, CAIRN_SLOT_LANE_RESULT + (uint32_t)lane,
				   cairn_share_number(r->epoch, l->next_layers), 0, &s) || !s.word)
			return 0;
	return 1;
}

static void states(void *ctx, void **o, float **lse)
{
	const struct remote_lane *l = ctx;

	*o = l->results;
	*lse = l->lse;
}

int cairn_attn_remote_finish(struct cairn_attn_remote *r, int32_t lane, void *stream)
{
	if (!r->by_stream)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(r->m->impl, stream_sync, stream));
	r->lanes[lane].stream = NULL;
	for (int32_t i = 0; i < r->num_peers && r->t; i++)
		CAIRN_TRY(attn_remote_blame(r, i, r->table->stream_error(r->peers[i].c)));
	CAIRN_TRY(attn_remote_is_lost(r));
	return r->journal && !r->is_restoring ? cairn_journal_commit(r->journal, lane, stream) : 0;
}

void cairn_attn_remote_settled(struct cairn_attn_remote *r, int32_t lane)
{
	r->lanes[lane].stream = NULL;
}

/* ---- of all epochs ---- */

/* Results come from the workers' shares, so all of them agree on the bytes of a lane. */
int attn_stream_create(struct cairn_attn_remote *r)
{
	const struct cairn_impl *impl = r->m->impl;
	const size_t num = (size_t)r->limits.max_rows * (size_t)r->m->config.num_attention_heads;
	struct cairn_share_results at;
	void *p, *stream;
	float *empty;
	int ret;

	if (!r->by_stream)
		return 0;
	at = cairn_share_results(&r->peers[0].a);
	at.lse -= (size_t)(r->peers[0].a.first_head * r->peers[0].a.group) * sizeof(float);
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, cairn_share_granules((size_t)r->limits.lanes * at.bytes)));
	r->results = p;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, num * sizeof(float)));
	r->empty = p;
	/* without a device, one thread computes for all lanes */
	if (r->limits.lanes > 1 && r->table->features & CAIRN_TRANSPORT_DEVICE_PUT) {
		CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, sizeof(*r->lock)));
		r->lock = p;
	}
	for (int32_t i = 0; i < r->limits.lanes; i++) {
		struct remote_lane *l = &r->lanes[i];

		CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, sizeof(*l->now)));
		l->now = p;
		CAIRN_TRY(CAIRN_TABLE(impl, host_alloc, &p, sizeof(*l->now_host)));
		l->now_host = p;
		l->results = r->results + (size_t)i * at.bytes;
		l->lse = r->peers[0].a.previous ? (float *)(void *)(l->results + at.lse) : NULL;
		l->link = (struct cairn_attn_link){ l->link.previous, send_q, send_kv, receive, l,
						    l->link.previous ? states : NULL };
	}
	empty = malloc(num * sizeof(*empty));
	if (!empty)
		return cairn_error(ENOMEM, "attn_remote: no memory for %zu numbers", num);
	for (size_t i = 0; i < num; i++)
		empty[i] = -INFINITY;
	ret = CAIRN_TABLE(impl, stream_create, &stream);
	if (!ret) {
		ret = CAIRN_TABLE(impl, mem_copy, r->empty, empty, num * sizeof(*empty), CAIRN_COPY_TO_DEVICE,
				  stream);
		if (!ret)
			ret = CAIRN_TABLE(impl, mem_set, r->results, 0, (size_t)r->limits.lanes * at.bytes,
					  stream);
		if (!ret)
			ret = CAIRN_TABLE(impl, stream_sync, stream);
		impl->stream_destroy(stream);
	}
	free(empty);
	return ret;
}

void attn_stream_destroy(struct cairn_attn_remote *r)
{
	if (r->results)
		r->m->impl->mem_free(r->results);
	if (r->empty)
		r->m->impl->mem_free(r->empty);
	if (r->lock)
		r->m->impl->mem_free(r->lock);
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++) {
		if (r->lanes[i].now)
			r->m->impl->mem_free(r->lanes[i].now);
		if (r->lanes[i].now_host)
			r->m->impl->host_free(r->lanes[i].now_host);
	}
}

/* ---- of an epoch ---- */

/* A pass of the epoch before may have been stopped with the lock. */
static int free_lock(const struct cairn_attn_remote *r)
{
	const struct cairn_impl *impl = r->m->impl;
	void *stream;
	int ret;

	if (!r->lock)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &stream));
	ret = CAIRN_TABLE(impl, mem_set, r->lock, 0, sizeof(*r->lock), stream);
	if (!ret)
		ret = CAIRN_TABLE(impl, stream_sync, stream);
	impl->stream_destroy(stream);
	return ret;
}

int attn_stream_begin(struct cairn_attn_remote *r)
{
	const int kind = r->table->features & CAIRN_TRANSPORT_DEVICE_PUT ? CAIRN_MEMORY_DEVICE :
			 CAIRN_MEMORY_HOST;

	if (!r->by_stream)
		return 0;
	CAIRN_TRY(free_lock(r));
	return r->table->region_register(r->t, r->results, (size_t)r->limits.lanes *
					 cairn_share_results(&r->peers[0].a).bytes, kind, &r->results_region);
}

/* Stops what waits on the device when a worker is lost: the thread of the pass may wait for the device. */
static void *watch(void *arg)
{
	struct cairn_attn_remote *r = arg;
	int is_lost = 0;

	pthread_mutex_lock(&r->watch_lock);
	while (!r->watch_ends && !is_lost) {
		const int64_t then = cairn_clock_ns() + LOOK_NS;
		const struct timespec until = { then / 1000000000, then % 1000000000 };

		pthread_cond_clockwait(&r->watch_changed, &r->watch_lock, CLOCK_MONOTONIC, &until);
		is_lost = cairn_lead_lost(r->lead);
	}
	pthread_mutex_unlock(&r->watch_lock);
	for (int32_t i = 0; i < r->num_peers && is_lost; i++)
		r->table->stream_stop(r->peers[i].c);
	return NULL;
}

int attn_stream_watch(struct cairn_attn_remote *r)
{
	if (!r->by_stream)
		return 0;
	r->watch_ends = 0;
	pthread_mutex_init(&r->watch_lock, NULL);
	pthread_cond_init(&r->watch_changed, NULL);
	r->has_watch = !pthread_create(&r->watch, NULL, watch, r);
	return r->has_watch ? 0 : cairn_error(EIO, "attn_remote: no thread");
}

void attn_stream_end(struct cairn_attn_remote *r)
{
	if (r->has_watch) {
		pthread_mutex_lock(&r->watch_lock);
		r->watch_ends = 1;
		pthread_cond_broadcast(&r->watch_changed);
		pthread_mutex_unlock(&r->watch_lock);
		pthread_join(r->watch, NULL);
		pthread_cond_destroy(&r->watch_changed);
		pthread_mutex_destroy(&r->watch_lock);
		r->has_watch = 0;
	}
	for (int32_t i = 0; i < r->num_peers && r->by_stream && r->t; i++)
		if (r->peers[i].c)
			r->table->stream_stop(r->peers[i].c);
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++) {
		if (r->lanes[i].stream)
			r->m->impl->stream_sync(r->lanes[i].stream);
		r->lanes[i].stream = NULL;
	}
}
