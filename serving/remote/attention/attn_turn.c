// SPDX-License-Identifier: Apache-2.0
/*
 * attn_turn - the turns of an attention worker: one layer of a pass of one lane each
 *
 * Lanes share the cache and nothing else. Turns are carried out one after the other, those of one model
 * worker in its order. Model workers send independently of each other, so a turn of layer l waits until all
 * plans before its own have carried out layer l. So a page that one plan frees can be written by the next: in
 * every layer, the first plan has read the page before the second one writes it. There is no
 * deadlock: of the turns not carried out yet, take those of the lowest layer, and of these the one with the
 * earliest plan. It waits for no other turn. Nor does its model worker wait for another one before it sends
 * this turn, because it sends the turns of its own lanes in the same order.
 *
 * Buffers of a lane: K and V have two, used in turn over all layers of all passes. The layer's parity cannot
 * choose the buffer: with an odd number of layers, the last one of a pass and the first one of the next would
 * share a buffer. The result of layer l tells the model worker that Q(l) has been read and K, V(l - 1)
 * appended, so K, V(l + 1) may come while K, V(l) waits. The result itself is overwritten only after Q(l + 1)
 * has come, because that shows that the model worker has read it.
 */
#include "serving/remote/attention/attn_epoch_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/remote_fault.h"

/* Waits for a signal of a pass under way, looking at times whether to stop. */
static int await(struct attn_source *s, uint32_t slot, uint64_t number, struct cairn_signal *found)
{
	const struct cairn_attn_epoch *e = s->e;
	const int64_t begin = cairn_clock_ns(), until = begin + CAIRN_EPOCH_LAYER_MS * 1000000ll;
	int ret;

	if (FAULT(NO_ACQUIRE) && slot >= CAIRN_SLOT_Q)
		return 0;
	do
		ret = e->table->wait(s->c, slot, number, CAIRN_EPOCH_LOOK_MS, found);
	while (ret == -ETIMEDOUT && !atomic_load(&e->life.stop) && cairn_clock_ns() < until);
	s->waited_ns += cairn_clock_ns() - begin;
	return ret == -ETIMEDOUT && atomic_load(&e->life.stop) ? -ECANCELED : ret;
}

/* As await(); in the order of streams, what the lane enqueues next runs when the signal has come. */
static int await_part(struct attn_source *s, const struct attn_lane *l, uint32_t slot, uint64_t number)
{
	const struct cairn_attn_epoch *e = s->e;

	if (!e->by_stream)
		return slot == CAIRN_SLOT_KV ? await(s, slot, number, NULL) : 0;
	return e->table->stream_wait(s->c, &(struct cairn_stream_wait){
		.now = l->packed.now, .value = number, .timeout_ms = CAIRN_EPOCH_STREAM_MS,
		.lock = slot == CAIRN_SLOT_KV ? NULL : e->lock,
		.slot = slot == CAIRN_SLOT_KV ? CAIRN_SLOT_LANE_KV + (uint32_t)l->index :
			FAULT(NO_ACQUIRE) ? CAIRN_NO_SIGNAL : CAIRN_SLOT_LANE_Q + (uint32_t)l->index,
	}, l->stream);
}

int attn_epoch_await_page(void *ctx, uint32_t slot, uint64_t number)
{
	return await(ctx, slot, number, NULL);
}

/* One side of a page of one layer. */
static char *page_at(const struct cairn_attn_epoch *e, int32_t layer, int side, int32_t page)
{
	return e->kv.base + (size_t)layer * e->kv.layer_bytes + (size_t)side * e->kv.v_offset +
	       (size_t)(page / e->a.stripes) * (e->sizes.page_bytes / (size_t)e->sizes.sides);
}

/* Copies a page of one layer; NULL: the buffer for other stripes, instead of a page. */
static int copy_page(struct cairn_attn_epoch *e, void *stream, int32_t layer, const int32_t *from,
		     const int32_t *to)
{
	const struct cairn_impl *impl = e->model.impl;
	const size_t bytes = e->sizes.page_bytes / (size_t)e->sizes.sides;

	for (int side = 0; side < e->sizes.sides; side++) {
		char *buffer = e->relay.page + (size_t)side * bytes;

		CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, to ? page_at(e, layer, side, *to) : buffer,
				      from ? page_at(e, layer, side, *from) : buffer, bytes,
				      from && to ? CAIRN_COPY_ON_DEVICE : from ? CAIRN_COPY_TO_HOST :
				      CAIRN_COPY_TO_DEVICE, stream));
	}
	return from && to ? 0 : CAIRN_TABLE(impl, stream_sync, stream);
}

/* Carries out the part that this worker has in a move of a page. */
static int move_page(struct cairn_attn_epoch *e, void *stream, int32_t layer, const int32_t *move)
{
	const int gives = move[0] % e->a.stripes == e->a.stripe;
	const int takes = move[1] % e->a.stripes == e->a.stripe;

	if (gives && takes)
		return copy_page(e, stream, layer, &move[0], &move[1]);
	if (gives) {
		CAIRN_TRY(copy_page(e, stream, layer, &move[0], NULL));
		if (FAULT(PAGE_OF_BEFORE))
			FAULT_NAP(10);		/* else the page may come in time by luck */
		return cairn_relay_give(&e->relay);
	}
	if (!takes)
		return 0;
	if (FAULT(PAGE_OF_BEFORE))
		CAIRN_TRY(copy_page(e, stream, layer, NULL, &move[1]));
	CAIRN_TRY(cairn_relay_take(&e->relay));
	if (!FAULT(PAGE_OF_BEFORE))
		CAIRN_TRY(copy_page(e, stream, layer, NULL, &move[1]));
	return cairn_relay_taken(&e->relay);
}

/* Moves the pages of one layer only, because the plan before may still write to those of later layers. */
static int move_pages(struct cairn_attn_epoch *e, const struct attn_lane *l)
{
	const struct cairn_remote_pass *p = &l->p;
	const int32_t layer = l->layer;
	const int32_t end = FAULT(MOVES_AT_ONCE) ? layer ? 0 : e->a.num_layers : layer + 1;

	for (int32_t i = 0; i < p->num_moves && !FAULT(NO_MOVES); i++)
		for (int32_t k = layer; k < end; k++)
			CAIRN_TRY(move_page(e, l->stream, k, p->moves[i]));
	return 0;
}

/* Attends, and sends the result. begin, waited: the clock, and s->waited_ns, when Q had come. */
static int answer(const struct attn_source *s, const struct attn_lane *l, uint64_t number, int64_t begin,
		  int64_t waited)
{
	const struct cairn_attn_epoch *e = s->e;
	const struct cairn_attn_link *link = cairn_attn_local_link(l->local);
	const size_t o = (size_t)l->p.num_rows * e->sizes.o, lse = (size_t)l->p.num_rows * e->sizes.lse;
	const size_t at = (size_t)l->index * e->sizes.result_bytes;
	struct cairn_put put = {
		.local = e->result_region, .local_offset = at, .remote = s->to, .remote_offset = at,
		.bytes = o + lse, .value = number, .slot = CAIRN_SLOT_RESULT,
	};
	float *lse_at = e->a.previous ? (float *)(void *)(e->result + at + o) : NULL;

	FAULT_NAP(2);
	CAIRN_TRY(link->receive(link->ctx, l->layer, e->result + at, lse_at, l->stream));
	CAIRN_TRY(CAIRN_TABLE(e->model.impl, stream_sync, l->stream));
	put.word = (uint64_t)(cairn_clock_ns() - begin - (s->waited_ns - waited));
	return e->table->put(s->c, &put, CAIRN_EPOCH_CONNECT_MS);
}

/* Puts the results from where they are into those of all heads. */
static int answer_by_stream(const struct attn_source *s, const struct attn_lane *l, uint64_t number)
{
	const struct cairn_attn_epoch *e = s->e;
	const struct cairn_share_results at = cairn_share_results(&e->a);
	const size_t lane = (size_t)l->index * at.bytes, rows = (size_t)l->num_rows;
	const void *o;
	const float *lse;
	struct cairn_stream_put put = {
		.now = l->packed.now, .remote = s->to, .unlock = e->lock, .value = number,
		.word = (uint64_t)l->is_replayed,
		.slot = CAIRN_SLOT_LANE_RESULT + (uint32_t)l->index,
	};

	cairn_attn_local_results(l->local, &o, &lse);
	put.part[0] = (struct cairn_stream_rows){
		.from = o, .from_stride = e->sizes.o, .to = lane + at.o,
		.to_stride = FAULT(RESULTS_PACKED) ? e->sizes.o : at.o_stride,
		.bytes = e->sizes.o, .rows = (uint32_t)rows,
	};
	if (e->a.previous)
		put.part[1] = (struct cairn_stream_rows){
			.from = lse, .from_stride = e->sizes.lse, .to = lane + at.lse,
			.to_stride = at.lse_stride, .bytes = e->sizes.lse, .rows = (uint32_t)rows,
		};
	return e->table->stream_put(s->c, &put, l->stream);
}

static int take_kv(struct attn_source *s, const struct attn_lane *l, struct cairn_attn_rows *rows,
		   uint64_t number)
{
	struct cairn_attn_epoch *e = s->e;
	const struct cairn_attn_link *link = cairn_attn_local_link(l->local);
	const size_t lane = FAULT(WORKER_LANES_SHARE) ? 0 : (size_t)l->index;
	const uint64_t layers = FAULT(BUFFER_BY_TURN) ? s->turn : l->layers + (uint64_t)l->layer;
	char *k = e->pages + (2 * lane + cairn_share_buffer(layers, l->layer)) * e->sizes.kv_bytes;

	CAIRN_TRY(await_part(s, l, CAIRN_SLOT_KV, number));
	FAULT_NAP(1);
	/* is overtaken by the next layer */
	if (!e->by_stream && (FAULT(ONE_KV_BUFFER) || FAULT(PARITY_OF_LAYER)))
		e->table->wait(s->c, CAIRN_SLOT_KV, number + 1, 200, NULL);
	rows->k = k;
	rows->v = e->sizes.sides == 1 ? NULL :
		  e->by_stream ? k + cairn_share_v_offset(&e->sizes) :
		  k + (size_t)l->lists.num_new * e->sizes.k;
	if (FAULT(NEVER_APPENDS))
		return 0;
	CAIRN_TRY(link->send_kv(link->ctx, rows, l->stream));
	return e->by_stream ? 0 : CAIRN_TABLE(e->model.impl, stream_sync, l->stream);
}

int attn_epoch_layer(struct attn_source *s, struct attn_lane *l, uint64_t number)
{
	struct cairn_attn_epoch *e = s->e;
	const int64_t begin = cairn_clock_ns(), waited = s->waited_ns;
	const struct cairn_attn_link *link = cairn_attn_local_link(l->local);
	const uint64_t says = number - (uint64_t)FAULT(NUMBER_OF_TURN_BEFORE);
	struct cairn_attn_rows rows = {
		.layer = l->layer, .num_rows = l->num_rows,
		.window = FAULT(WINDOW_IGNORED) ? 0 : cairn_layer_window(&e->model.config, l->layer),
		.q = e->q + (FAULT(WORKER_LANES_SHARE) ? 0 : (size_t)l->index) * e->sizes.q_bytes,
		.q_stride = e->model.dims[CAIRN_D_Q], .kv_stride = e->model.dims[CAIRN_D_KV],
	};

	if (!FAULT(MOVES_LATE))
		CAIRN_TRY(move_pages(e, l));
	CAIRN_TRY(await_part(s, l, CAIRN_SLOT_Q, number));
	CAIRN_TRY(link->send_q(link->ctx, &rows, l->stream));
	if (!e->a.previous)
		CAIRN_TRY(take_kv(s, l, &rows, number));
	CAIRN_TRY(e->by_stream ? answer_by_stream(s, l, says) : answer(s, l, says, begin, waited));
	if (e->a.previous)
		CAIRN_TRY(take_kv(s, l, &rows, number));
	return FAULT(MOVES_LATE) ? move_pages(e, l) : 0;
}

/*
 * Makes the lane's next plan the current one, if it has arrived. Plans and queries travel on different
 * channels, so the first Q may arrive before its plan. Call with the lock held.
 */
static int take_plan(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	int i = 0;

	while (i < e->num_plans && e->plans[i].lane != (uint32_t)l->index)
		i++;
	if (i && e->num_sources == 1)	/* plans begin in their order, so the first must be of this lane */
		return cairn_error(EINVAL, "the model worker sends queries of lane %d before those of plan "
				   "%llu, of lane %u", l->index, (unsigned long long)e->plans[0].pass,
				   e->plans[0].lane);
	if (i == e->num_plans)
		return 0;
	l->plan = e->plans[i];
	l->layer = 0;
	memmove(e->plans + i, e->plans + i + 1, (size_t)(--e->num_plans - i) * sizeof(l->plan));
	return 0;
}

/* Returns whether all plans before the lane's have carried out its layer. Call with the lock held. */
static int is_next(const struct cairn_attn_epoch *e, const struct attn_lane *l)
{
	for (int32_t i = 0; i < e->num_lanes && !FAULT(TURN_UNORDERED); i++)
		if (e->lanes[i].plan.bytes && e->lanes[i].plan.pass < l->plan.pass &&
		    e->lanes[i].layer <= l->layer)
			return 0;
	for (int i = 0; i < e->num_plans && !FAULT(PLAN_OVERTAKES); i++)
		if (e->plans[i].pass < l->plan.pass)
			return 0;
	return !e->is_busy;
}

/* Waits until it is the lane's turn, which leave() ends. */
static int enter(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	int ret = 0;

	pthread_mutex_lock(&e->life.lock);
	while (!ret) {
		if (!l->plan.bytes)
			ret = take_plan(e, l);
		if (!ret && l->plan.bytes && is_next(e, l))
			break;
		if (!ret && atomic_load(&e->life.stop))
			ret = -ECANCELED;
		if (!ret)
			pthread_cond_wait(&e->life.changed, &e->life.lock);
	}
	e->is_busy |= !ret;
	pthread_mutex_unlock(&e->life.lock);
	return ret;
}

static int begin_pass(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_remote_limits limits = cairn_share_limits(&e->a);
	struct cairn_attn_past past;
	struct cairn_batch b;
	int moved;

	CAIRN_TRY(cairn_remote_pass_read(&l->p, l->plan.bytes, l->plan.num_bytes, &limits));
	cairn_lists_make(&l->lists, &l->p, &b, &past);
	l->num_rows = l->p.num_rows;
	return cairn_attn_local_begin(l->local, &b, e->a.previous ? &past : NULL, l->stream, &moved);
}

static void leave(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	void *ended = NULL;

	pthread_mutex_lock(&e->life.lock);
	if (++l->layer == e->a.num_layers) {
		ended = l->plan.bytes;
		l->layers += (uint64_t)e->a.num_layers;
		l->plan.bytes = NULL;
		e->life.passes++;
	}
	e->is_busy = 0;
	if (e->num_sources > 1)
		pthread_cond_broadcast(&e->life.changed);
	pthread_mutex_unlock(&e->life.lock);
	free(ended);
}

int attn_epoch_turn(struct attn_source *s)
{
	struct cairn_attn_epoch *e = s->e;
	const uint64_t turn = ++s->turn, number = cairn_share_number(e->a.epoch, turn);
	struct cairn_signal found = { 0 };
	struct attn_lane *l;

	CAIRN_TRY(await(s, CAIRN_SLOT_Q + turn % CAIRN_TURN_SLOTS, number, &found));
	if (found.word >= (uint64_t)e->num_lanes || attn_source_of(e, (int32_t)found.word) != s)
		return cairn_error(EINVAL, "model worker %d sends queries of lane %llu, of %d",
				   (int)(s - e->sources), (unsigned long long)found.word, e->num_lanes);
	l = &e->lanes[found.word];
	CAIRN_TRY(enter(e, l));
	if (!l->layer)
		CAIRN_TRY(begin_pass(e, l));
	CAIRN_TRY(attn_epoch_layer(s, l, number));
	leave(e, l);
	return 0;
}
