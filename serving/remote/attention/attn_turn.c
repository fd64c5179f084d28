// SPDX-License-Identifier: Apache-2.0
/*
 * attn_turn - the turns of an attention worker: one layer of a pass of one lane each
 *
 * Lanes share the cache and nothing else. The epoch's thread carries out all turns in their order. So a lane
 * needs no lock against another one, and a page that one plan frees can be written by the next: in every
 * layer, the first plan has read the page before the second one writes it.
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
static int await(struct cairn_attn_epoch *e, uint32_t slot, uint64_t number, struct cairn_signal *found)
{
	const int64_t begin = cairn_clock_ns(), until = begin + CAIRN_EPOCH_LAYER_MS * 1000000ll;
	int ret;

	if (FAULT(NO_ACQUIRE) && slot >= CAIRN_SLOT_Q)
		return 0;
	do
		ret = e->table->wait(e->c, slot, number, CAIRN_EPOCH_LOOK_MS, found);
	while (ret == -ETIMEDOUT && !atomic_load(&e->life.stop) && cairn_clock_ns() < until);
	e->waited_ns += cairn_clock_ns() - begin;
	return ret == -ETIMEDOUT && atomic_load(&e->life.stop) ? -ECANCELED : ret;
}

/* As await(); in the order of streams, what the lane enqueues next runs when the signal has come. */
static int await_part(struct cairn_attn_epoch *e, const struct attn_lane *l, uint32_t slot, uint64_t number)
{
	if (!e->by_stream)
		return slot == CAIRN_SLOT_KV ? await(e, slot, number, NULL) : 0;
	if (FAULT(NO_ACQUIRE) && slot == CAIRN_SLOT_Q)
		return 0;
	return e->table->stream_wait(e->c, (slot == CAIRN_SLOT_KV ? CAIRN_SLOT_LANE_KV : CAIRN_SLOT_LANE_Q) +
				     (uint32_t)l->index, number, CAIRN_EPOCH_STREAM_MS, l->stream);
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

/* Moves the pages of one layer: those of the layers behind it may still be written by the plan before. */
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

/* Attends, and sends the result. begin, waited: the time, and the time waited, when Q came. */
static int answer(struct cairn_attn_epoch *e, const struct attn_lane *l, uint64_t number, int64_t begin,
		  int64_t waited)
{
	const struct cairn_attn_link *link = cairn_attn_local_link(l->local);
	const size_t o = (size_t)l->p.num_rows * e->sizes.o, lse = (size_t)l->p.num_rows * e->sizes.lse;
	const size_t at = (size_t)l->index * e->sizes.result_bytes;
	struct cairn_put put = {
		.local = e->result_region, .local_offset = at, .remote = e->to, .remote_offset = at,
		.bytes = o + lse, .value = number, .slot = CAIRN_SLOT_RESULT,
	};
	float *lse_at = e->a.previous ? (float *)(void *)(e->result + at + o) : NULL;

	FAULT_NAP(2);
	CAIRN_TRY(link->receive(link->ctx, l->layer, e->result + at, lse_at, l->stream));
	CAIRN_TRY(CAIRN_TABLE(e->model.impl, stream_sync, l->stream));
	put.word = (uint64_t)(cairn_clock_ns() - begin - (e->waited_ns - waited));
	return e->table->put(e->c, &put, CAIRN_EPOCH_CONNECT_MS);
}

/* Puts the results from where they are into those of all heads. */
static int answer_by_stream(struct cairn_attn_epoch *e, const struct attn_lane *l, uint64_t number)
{
	const struct cairn_share_results at = cairn_share_results(&e->a);
	const size_t lane = (size_t)l->index * at.bytes, rows = (size_t)l->p.num_rows;
	const void *o;
	const float *lse;
	struct cairn_stream_put put = {
		.remote = e->to, .value = number, .slot = CAIRN_SLOT_LANE_RESULT + (uint32_t)l->index,
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
	return e->table->stream_put(e->c, &put, l->stream);
}

static int take_kv(struct cairn_attn_epoch *e, const struct attn_lane *l, struct cairn_attn_rows *rows,
		   uint64_t number)
{
	const struct cairn_attn_link *link = cairn_attn_local_link(l->local);
	const size_t lane = FAULT(WORKER_LANES_SHARE) ? 0 : (size_t)l->index;
	const uint64_t layers = FAULT(BUFFER_BY_TURN) ? e->turn : l->layers;
	char *k = e->pages + (2 * lane + cairn_share_buffer(layers, l->layer)) * e->sizes.kv_bytes;

	CAIRN_TRY(await_part(e, l, CAIRN_SLOT_KV, number));
	FAULT_NAP(1);
	/* is overtaken by the next layer */
	if (!e->by_stream && (FAULT(ONE_KV_BUFFER) || FAULT(PARITY_OF_LAYER)))
		e->table->wait(e->c, CAIRN_SLOT_KV, number + 1, 200, NULL);
	rows->k = k;
	rows->v = e->sizes.sides > 1 ? k + (size_t)l->lists.num_new * e->sizes.k : NULL;
	if (FAULT(NEVER_APPENDS))
		return 0;
	CAIRN_TRY(link->send_kv(link->ctx, rows, l->stream));
	return e->by_stream ? 0 : CAIRN_TABLE(e->model.impl, stream_sync, l->stream);
}

int attn_epoch_layer(struct cairn_attn_epoch *e, struct attn_lane *l, uint64_t number)
{
	const int64_t begin = cairn_clock_ns(), waited = e->waited_ns;
	const struct cairn_attn_link *link = cairn_attn_local_link(l->local);
	const uint64_t says = number - (uint64_t)FAULT(NUMBER_OF_TURN_BEFORE);
	struct cairn_attn_rows rows = {
		.layer = l->layer, .num_rows = l->p.num_rows,
		.window = FAULT(WINDOW_IGNORED) ? 0 : cairn_layer_window(&e->model.config, l->layer),
		.q = e->q + (FAULT(WORKER_LANES_SHARE) ? 0 : (size_t)l->index) * e->sizes.q_bytes,
		.q_stride = e->model.dims[CAIRN_D_Q], .kv_stride = e->model.dims[CAIRN_D_KV],
	};

	if (!FAULT(MOVES_LATE))
		CAIRN_TRY(move_pages(e, l));
	CAIRN_TRY(await_part(e, l, CAIRN_SLOT_Q, number));
	CAIRN_TRY(link->send_q(link->ctx, &rows, l->stream));
	if (!e->a.previous)
		CAIRN_TRY(take_kv(e, l, &rows, number));
	CAIRN_TRY(e->by_stream ? answer_by_stream(e, l, says) : answer(e, l, says, begin, waited));
	if (e->a.previous)
		CAIRN_TRY(take_kv(e, l, &rows, number));
	if (FAULT(MOVES_LATE))
		CAIRN_TRY(move_pages(e, l));
	l->layers++;
	l->layer++;
	return 0;
}

/*
 * Takes the next plan, which may come after its first Q, as they come by different ways. Plans begin in their
 * order, so it is of this lane.
 */
static int take_plan(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	pthread_mutex_lock(&e->life.lock);
	while (!e->num_plans && !atomic_load(&e->life.stop))
		pthread_cond_wait(&e->life.changed, &e->life.lock);
	if (e->num_plans) {
		l->plan = e->plans[0];
		e->num_plans--;
		memmove(e->plans, e->plans + 1, (size_t)e->num_plans * sizeof(l->plan));
	}
	pthread_mutex_unlock(&e->life.lock);
	if (!l->plan.bytes)
		return -ECANCELED;
	return l->plan.lane == (uint32_t)l->index ? 0 :
	       cairn_error(EINVAL, "the model worker sends queries of lane %d before those of plan %llu, of "
			   "lane %u", l->index, (unsigned long long)l->plan.pass, l->plan.lane);
}

static int begin_pass(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_remote_limits limits = cairn_share_limits(&e->a);
	struct cairn_attn_past past;
	struct cairn_batch b;
	int moved;

	CAIRN_TRY(take_plan(e, l));
	CAIRN_TRY(cairn_remote_pass_read(&l->p, l->plan.bytes, l->plan.num_bytes, &limits));
	cairn_lists_make(&l->lists, &l->p, &b, &past);
	l->layer = 0;
	return cairn_attn_local_begin(l->local, &b, e->a.previous ? &past : NULL, l->stream, &moved);
}

void attn_epoch_end_pass(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	free(l->plan.bytes);
	l->plan.bytes = NULL;
	cairn_epoch_passed(&e->life);
}

int attn_epoch_turn(struct cairn_attn_epoch *e)
{
	const uint64_t turn = ++e->turn, number = cairn_share_number(e->a.epoch, turn);
	struct cairn_signal found = { 0 };
	struct attn_lane *l;

	CAIRN_TRY(await(e, CAIRN_SLOT_Q + turn % CAIRN_TURN_SLOTS, number, &found));
	if (found.word >= (uint64_t)e->num_lanes)
		return cairn_error(EINVAL, "the model worker sends queries of lane %llu, of %d",
				   (unsigned long long)found.word, e->num_lanes);
	l = &e->lanes[found.word];
	if (!l->plan.bytes)
		CAIRN_TRY(begin_pass(e, l));
	CAIRN_TRY(attn_epoch_layer(e, l, number));
	if (l->layer == e->a.num_layers)
		attn_epoch_end_pass(e, l);
	return 0;
}
