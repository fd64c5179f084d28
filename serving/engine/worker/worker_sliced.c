// SPDX-License-Identifier: Apache-2.0
/*
 * worker_sliced - runs passes slice by slice, with attention by a local worker that holds the cache, or by
 * workers of other processes
 *
 * With local attention, the products for q, k and v are not split, so that a pass has the bits of
 * cairn_forward() on every table. With remote attention, q is computed first and is under way while k and v
 * are computed.
 */
#include "serving/engine/worker/worker_impl.h"

#include <stdlib.h>

#include "serving/base/clock.h"
#include "serving/model/forward/forward_impl.h"

static int create_remote(struct cairn_worker *w)
{
	const struct cairn_remote_limits limits = {
		.max_rows = w->opt.max_rows, .max_batch = w->opt.max_batch,
		.max_context = w->opt.max_context, .num_pages = w->opt.num_pages,
		.page_size = w->opt.page_size, .lanes = w->opt.lanes,
		.repeatable = w->opt.repeatable,
	};
	const struct cairn_pass_sizes sizes = forward_sizes(w->model, 1, 1);
	const struct cairn_slices *slices = w->opt.slices;
	struct cairn_worker *first = w->opt.first ? w->opt.first : w;

	first->group[w->opt.lane % CAIRN_MAX_LANES] = w;
	if (w->opt.model) {
		worker_model_create(w);
		return 0;
	}
	if (!slices) {
		CAIRN_TRY(cairn_slices_create(&w->own_slices, w->model->graph, &sizes));
		slices = w->own_slices;
	}
	CAIRN_TRY(cairn_sliced_create(&w->sliced, w->scratch, slices, CAIRN_SLICED_PARTS));
	if (w->opt.first || w->opt.remote) {
		w->remote = w->opt.first ? w->opt.first->remote : w->opt.remote;
		return 0;
	}
	return cairn_attn_remote_create(&w->remote, w->opt.attention, w->model, &limits, !w->opt.attends_all,
					w->opt.kv_journal);
}

int worker_sliced_create(struct cairn_worker *w)
{
	if (worker_is_remote(w))
		return create_remote(w);
	CAIRN_TRY(cairn_sliced_create(&w->sliced, w->scratch, w->opt.slices, CAIRN_SLICED_ROWS));
	return cairn_attn_local_create(&w->attn, w->model, &w->kv, w->opt.max_rows, 0);
}

void worker_sliced_destroy(struct cairn_worker *w)
{
	if (!w->opt.first && !w->opt.remote)
		cairn_attn_remote_destroy(w->remote);
	cairn_attn_local_destroy(w->attn);
	cairn_sliced_destroy(w->sliced);
	cairn_slices_destroy(w->own_slices);
	free(w->copies);
	free(w->pass_copies);
}

static const struct cairn_attn_link *link_of(struct cairn_worker *w)
{
	return w->remote ? cairn_attn_remote_link(w->remote, w->opt.lane) : cairn_attn_local_link(w->attn);
}

int worker_sliced_reserve(struct cairn_worker *w, int *moved)
{
	if (w->attn)
		CAIRN_TRY(cairn_attn_local_begin(w->attn, &w->batch, NULL, w->stream, moved));
	return cairn_sliced_reserve(w->sliced, &w->batch, link_of(w), w->stream, moved);
}

/* Padding is not sent: requests without rows, and rows without a request. */
int worker_sliced_begin(struct cairn_worker *w)
{
	const struct arrays *a = &w->flight->host;
	struct cairn_remote_pass p = {
		.num_moves = w->num_pass_copies, .qo_indptr = a->qo_indptr, .kv_indptr = a->kv_indptr,
		.last_page_len = a->last_page_len, .kv_indices = a->kv_indices,
		.moves = (const int32_t (*)[2])w->pass_copies,
	};

	while (p.batch < w->batch.batch && a->qo_indptr[p.batch + 1] > a->qo_indptr[p.batch])
		p.batch++;
	p.num_rows = a->qo_indptr[p.batch];
	p.num_pages = a->kv_indptr[p.batch];
	CAIRN_TRY(cairn_attn_remote_begin(w->remote, w->opt.lane, &p));
	return cairn_attn_remote_number(w->remote, w->opt.lane, w->batch.num_rows, w->stream);
}

void worker_sliced_take_copies(struct cairn_worker *w)
{
	struct cairn_worker *first = w->opt.first ? w->opt.first : w;
	int32_t (*copies)[2] = w->pass_copies;
	const int32_t room = w->room_pass_copies;

	w->pass_copies = first->copies;
	w->num_pass_copies = first->num_copies;
	w->room_pass_copies = first->room_copies;
	first->copies = copies;
	first->room_copies = room;
	first->num_copies = 0;
}

int worker_is_queued(const struct cairn_worker *w)
{
	return w->remote && cairn_share_by_stream(w->impl);
}

int worker_sliced_side(const struct cairn_worker *w)
{
	return w->remote ? cairn_attn_remote_side(w->remote, w->opt.lane) : 0;
}

int worker_sliced_end(struct cairn_worker *w)
{
	if (!worker_is_queued(w))
		return 0;
	w->slices_left = worker_has_lanes(w);
	if (w->slices_left)
		return 0;
	CAIRN_TRY(cairn_attn_remote_finish(w->remote, w->opt.lane, w->stream));
	CAIRN_TRY(worker_taps_after(w));
	return w->kind.masked ? 0 : worker_draw(w);
}

/* The attention worker gets this pass's batch; room for it has been made. */
int worker_sliced_forward(struct cairn_worker *w)
{
	int moved = 0;

	if (w->attn)
		CAIRN_TRY(cairn_attn_local_begin(w->attn, &w->batch, NULL, w->stream, &moved));
	return worker_has_lanes(w) && !worker_is_queued(w) ?
	       cairn_sliced_begin(w->sliced, &w->batch, link_of(w), w->stream, &w->slices_left) :
	       cairn_sliced_forward(w->sliced, &w->batch, link_of(w), w->stream);
}

int cairn_worker_turn(struct cairn_worker *w, int *under_way)
{
	struct cairn_worker *first = w->opt.first ? w->opt.first : w;
	struct cairn_attn_remote_stats before, after;
	const int64_t begin = cairn_clock_ns();

	*under_way = 0;
	if (!w->slices_left)
		return 0;
	if (w->opt.model)
		return worker_model_turn(w, under_way);
	cairn_attn_remote_stats(w->remote, &before);
	if (worker_is_queued(w))
		w->slices_left = 0;
	else
		CAIRN_TRY(cairn_sliced_turn(w->sliced, &w->slices_left));
	if (!w->slices_left) {		/* a pass that is lost must not draw */
		CAIRN_TRY(cairn_attn_remote_finish(w->remote, w->opt.lane, w->stream));
		CAIRN_TRY(worker_end_pass(w));
	}
	cairn_attn_remote_stats(w->remote, &after);
	first->stats.turns++;
	first->stats.turn_rows += w->batch.num_rows;
	first->stats.turn_wait_ns += after.wait_ns - before.wait_ns;
	first->stats.turn_ns += cairn_clock_ns() - begin - (after.wait_ns - before.wait_ns);
	first->stats.attn_ns += after.attn_ns - before.attn_ns;
	*under_way = w->slices_left > 0;
	return 0;
}

void worker_sliced_stats(const struct cairn_worker *w, struct cairn_worker_stats *stats)
{
	struct cairn_attn_remote_stats s;

	if (!w->remote)
		return;
	cairn_attn_remote_stats(w->remote, &s);
	stats->journal_bytes = s.journal.bytes;
	stats->journal_ns = s.journal.record_ns;
	stats->restored_bytes = s.restored_bytes;
	stats->restore_ns = s.restore_ns;
}

/* ---- remote attention ---- */

int cairn_worker_copy_page(struct cairn_worker *w, int32_t from, int32_t to)
{
	w = w->opt.first ? w->opt.first : w;
	if (w->num_copies == w->room_copies) {
		const int32_t room = w->room_copies ? 2 * w->room_copies : 64;
		void *copies = realloc(w->copies, (size_t)room * sizeof(*w->copies));

		if (!copies)
			return cairn_error(ENOMEM, "worker: no memory for %d copies", room);
		w->copies = copies;
		w->room_copies = room;
	}
	w->copies[w->num_copies][0] = from;
	w->copies[w->num_copies++][1] = to;
	return 0;
}

int cairn_worker_lost(const struct cairn_worker *w)
{
	return w->remote && cairn_attn_remote_lost(w->remote);
}

void cairn_worker_drop(struct cairn_worker *w)
{
	w->num_flights = 0;
	w->slices_left = 0;
}

int cairn_worker_restores(const struct cairn_worker *w)
{
	return w->remote && cairn_attn_remote_has_journal(w->remote);
}

int cairn_worker_restart(struct cairn_worker *w)
{
	int ret;

	if (!cairn_worker_restores(w))
		w->num_copies = 0;
	ret = cairn_attn_remote_restart(w->remote);
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++) {
		if (!w->group[i])
			continue;
		w->group[i]->model_passes = 0;
		/* they name channels of the epoch before, which has ended all that was under way */
		worker_drop_graphs(w->group[i]);
	}
	return ret;
}
