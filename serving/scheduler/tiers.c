// SPDX-License-Identifier: Apache-2.0
/*
 * tiers - executes the moves of a plan on the stream
 *
 * A list of moves is cut into groups within which the order does not matter: no move of a group uses a page
 * or buffer that another move of the group writes. Each group is one launch of kv_move. The lists of all
 * groups of a plan are in one block, which is uploaded once per plan. Two such blocks alternate; the pass of
 * a block's plan is collected before the block is written again.
 *
 * Invariants
 *   1. A buffer belongs to one slot, or is spare, or waits without a slot until the disk is done with it.
 *   2. Neither the stream nor the disk is told to write a buffer that the disk is using.
 *   3. The stream only reads data that has arrived from the disk.
 *   4. The disk starts a job only after everything that was on the stream before the job is done.
 *   5. Copies on the side stream are ordered between two points of the main stream: after the layer they
 *      copy, and before the end of their plan.
 */
#include "serving/scheduler/tiers_impl.h"

#include <stdlib.h>
#include <string.h>

#define NUM_SPARES	64

/* Creates the side stream. Without it all moves go on the main stream. */
static int create_side(struct cairn_tiers *t)
{
	if (!t->opt.host_pages || !t->impl->stream_wait)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(t->impl, stream_create, &t->side));
	CAIRN_TRY(CAIRN_TABLE(t->impl, event_create, &t->reached));
	return CAIRN_TABLE(t->impl, event_create, &t->left);
}

static void destroy_side(struct cairn_tiers *t)
{
	if (t->left)
		t->impl->event_destroy(t->left);
	if (t->reached)
		t->impl->event_destroy(t->reached);
	if (!t->side)
		return;
	t->impl->stream_sync(t->side);	/* a failed pass may have left copies on the side stream */
	t->impl->stream_destroy(t->side);
}

static int create_arrays(struct cairn_tiers *t)
{
	size_t slots = (size_t)t->opt.host_pages;
	size_t pages = (size_t)t->kv->num_pages;
	size_t buffers = (size_t)t->num_buffers;

	t->page_marks = calloc(pages + slots, sizeof(*t->page_marks));
	t->buffer_of = calloc(slots + 1, sizeof(*t->buffer_of));
	t->buffers = calloc(buffers + 1, sizeof(*t->buffers));
	t->spares = calloc(buffers + 1, sizeof(*t->spares));
	if (!t->page_marks || !t->buffer_of || !t->buffers || !t->spares)
		return cairn_error(ENOMEM, "tiers: no memory for %zu pages", pages + slots);
	t->slot_marks = t->page_marks + pages;
	for (int32_t i = 0; i < t->opt.host_pages; i++) {
		t->buffer_of[i] = i;
		t->buffers[i].slot = i;
	}
	for (int32_t i = t->opt.host_pages; i < t->num_buffers; i++) {
		t->buffers[i].slot = -1;
		t->spares[t->num_spares++] = i;
	}
	return 0;
}

int cairn_tiers_create(struct cairn_tiers **out, const struct cairn_model *m, const struct cairn_kv_store *kv,
		       void *stream, const struct cairn_tiers_options *options)
{
	struct cairn_tiers *t = calloc(1, sizeof(*t));
	int ret;
	void *p;

	if (!t)
		return cairn_error(ENOMEM, "tiers: no memory");
	t->impl = m->impl;
	t->kv = kv;
	t->stream = stream;
	t->opt = *options;
	t->num_layers = m->config.num_hidden_layers;
	t->page_bytes = cairn_model_key_bytes(m) * (size_t)kv->page_size;
	t->slot_bytes = t->page_bytes * (size_t)t->num_layers * (kv->v_offset ? 2 : 1);
	t->num_buffers = t->opt.host_pages + (t->opt.disk_pages ? NUM_SPARES : 0);
	t->file = -1;
	ret = create_arrays(t);
	if (!ret && t->num_buffers) {
		ret = t->impl->host_alloc ?
			CAIRN_TABLE(t->impl, host_alloc, &p, (size_t)t->num_buffers * t->slot_bytes) :
			cairn_error(EOPNOTSUPP, "%s: host_pages: the table has no host_alloc", t->impl->name);
		if (!ret)
			t->host = p;
	}
	if (!ret)
		ret = create_side(t);
	if (!ret && t->opt.disk_pages)
		ret = tiers_disk_create(t);
	if (ret) {
		cairn_tiers_destroy(t);
		return ret;
	}
	*out = t;
	return 0;
}

void cairn_tiers_destroy(struct cairn_tiers *t)
{
	if (!t)
		return;
	tiers_disk_destroy(t);
	destroy_side(t);
	for (int i = 0; i < 2; i++) {
		if (t->lists[i].host)
			(t->impl->host_alloc ? t->impl->host_free : free)(t->lists[i].host);
		if (t->lists[i].dev)
			t->impl->mem_free(t->lists[i].dev);
		free(t->lists[i].groups);
	}
	if (t->host)
		t->impl->host_free(t->host);
	free(t->page_marks);
	free(t->buffer_of);
	free(t->buffers);
	free(t->spares);
	free(t);
}

/* ---- lists ---- */

static int reserve(struct cairn_tiers *t, struct move_lists *l, int32_t num)
{
	size_t bytes;
	void *p;

	if (num <= l->room)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(t->impl, stream_sync, t->stream));
	l->room = 0;
	num = 2 * num > 256 ? 2 * num : 256;
	bytes = 2 * (size_t)num * sizeof(*l->host);
	if (l->host)
		(t->impl->host_alloc ? t->impl->host_free : free)(l->host);
	if (l->dev)
		t->impl->mem_free(l->dev);
	l->host = NULL;
	l->dev = NULL;
	if (t->impl->host_alloc) {
		CAIRN_TRY(CAIRN_TABLE(t->impl, host_alloc, &p, bytes));
	} else {
		p = malloc(bytes);
		if (!p)
			return cairn_error(ENOMEM, "tiers: no memory for %d moves", num);
	}
	l->host = p;
	CAIRN_TRY(CAIRN_TABLE(t->impl, mem_alloc, &p, bytes));
	l->dev = p;
	l->room = num;
	return 0;
}

/* Closes the group being collected. */
static void end_group(struct cairn_tiers *t, struct move_lists *l)
{
	int32_t begin = l->num_groups ? l->groups[l->num_groups - 1] : 0;

	if (l->num > begin) {
		l->groups[l->num_groups++] = l->num;
		t->mark += 2;
	}
}

/* Adds a move between two places; a place is page p, or ~b for buffer b. The mark of a place says how this
 * group uses it. */
static void put(struct cairn_tiers *t, struct move_lists *l, int32_t from, uint64_t *from_mark, int32_t to,
		uint64_t *to_mark)
{
	/* t->mark: read in this group; t->mark + 1: written */
	if (*from_mark == t->mark + 1 || *to_mark >= t->mark)
		end_group(t, l);
	*from_mark = t->mark;
	*to_mark = t->mark + 1;
	l->host[l->num] = from;
	l->host[l->room + l->num] = to;
	l->num++;
}

/* Copies one side (K or V) of one layer of one move. */
static int copy_part(struct cairn_tiers *t, int32_t from, int32_t to, int32_t layer, int side, void *stream)
{
	char *pages = t->kv->base + (size_t)layer * t->kv->layer_bytes + (size_t)side * t->kv->v_offset;
	char *slots = t->host + (size_t)(layer * (t->kv->v_offset ? 2 : 1) + side) * t->page_bytes;
	const char *src = from >= 0 ? pages + (size_t)from * t->page_bytes :
		slots + (size_t)~from * t->slot_bytes;
	char *dst = to >= 0 ? pages + (size_t)to * t->page_bytes : slots + (size_t)~to * t->slot_bytes;
	int kind = from < 0 ? CAIRN_COPY_TO_DEVICE : to < 0 ? CAIRN_COPY_TO_HOST : CAIRN_COPY_ON_DEVICE;

	return CAIRN_TABLE(t->impl, mem_copy, dst, src, t->page_bytes, kind, stream);
}

/* Copies one layer of the moves [first, end). */
static int copy_layer(struct cairn_tiers *t, const struct move_lists *l, int32_t first, int32_t end,
		      int32_t layer, void *stream)
{
	for (int32_t i = first; i < end; i++)
		for (int side = 0; side < (t->kv->v_offset ? 2 : 1); side++)
			CAIRN_TRY(copy_part(t, l->host[i], l->host[l->room + i], layer, side, stream));
	return 0;
}

static int move_group(struct cairn_tiers *t, struct move_lists *l, int32_t first, int32_t end)
{
	struct cairn_kv_move_args args = {
		.size = sizeof(args), .base = t->kv->base, .slots = t->host, .from = l->dev + first,
		.to = l->dev + l->room + first, .layer_bytes = (int64_t)t->kv->layer_bytes,
		.v_offset = (int64_t)t->kv->v_offset, .page_bytes = (int64_t)t->page_bytes,
		.num_moves = end - first, .num_layers = t->num_layers, .num_pages = t->kv->num_pages,
		.num_slots = t->num_buffers,
	};
	int ret = t->impl->kv_move ? t->impl->kv_move(&args, t->stream) : -EOPNOTSUPP;

	if (ret != -EOPNOTSUPP)
		return cairn_table_ret(t->impl, ret, "kv_move");
	for (int32_t layer = 0; layer < t->num_layers; layer++)
		CAIRN_TRY(copy_layer(t, l, first, end, layer, t->stream));
	return 0;
}

/* Copies the features of pages that are copied on the device. */
static int copy_features(const struct cairn_tiers *t, const struct move_lists *l, int32_t first, int32_t end)
{
	const struct cairn_kv_store *f = t->opt.features;
	const size_t page = f ? f->v_offset / (size_t)f->num_pages : 0;

	for (int32_t i = first; f && i < end; i++) {
		int32_t from = l->host[i], to = l->host[l->room + i];

		for (size_t side = 0; from >= 0 && to >= 0 && side < 2; side++) {
			char *base = f->base + side * f->v_offset;

			CAIRN_TRY(CAIRN_TABLE(t->impl, mem_copy, base + (size_t)to * page,
					      base + (size_t)from * page, page, CAIRN_COPY_ON_DEVICE,
					      t->stream));
		}
	}
	return 0;
}

/* Executes the moves [first, end), which are one group. */
static int carry_out(struct cairn_tiers *t, struct move_lists *l, int32_t first, int32_t end)
{
	CAIRN_TRY(copy_features(t, l, first, end));
	return move_group(t, l, first, end);
}

/* Uploads the used parts of both halves of the block. */
static int upload(struct cairn_tiers *t, struct move_lists *l)
{
	size_t bytes = (size_t)l->num * sizeof(*l->host);

	if (!t->impl->kv_move || !l->num)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(t->impl, mem_copy, l->dev, l->host, bytes, CAIRN_COPY_TO_DEVICE, t->stream));
	return CAIRN_TABLE(t->impl, mem_copy, l->dev + l->room, l->host + l->room, bytes,
			   CAIRN_COPY_TO_DEVICE, t->stream);
}

static int32_t begin_of(const struct move_lists *l, int32_t group)
{
	return group ? l->groups[group - 1] : 0;
}

/* Enqueues the groups before group `end` that are not on the stream yet. */
static int carry_out_groups(struct cairn_tiers *t, struct move_lists *l, int32_t end)
{
	for (; l->carried < end; l->carried++)
		CAIRN_TRY(carry_out(t, l, begin_of(l, l->carried), l->groups[l->carried]));
	return 0;
}

/* ---- buffers of slots ---- */

/* Waits for the stream and releases the disk jobs that waited for it. */
static int idle(struct cairn_tiers *t)
{
	CAIRN_TRY(CAIRN_TABLE(t->impl, stream_sync, t->stream));
	tiers_disk_release(t, INT64_MAX);
	return 0;
}

/* Like idle(), but while moves are being collected: first enqueues the moves that staged disk jobs must
 * follow. */
static int idle_behind_moves(struct cairn_tiers *t)
{
	struct move_lists *l = &t->lists[t->turn];

	if (l->groups_before < 0)
		end_group(t, l);
	CAIRN_TRY(upload(t, l));
	CAIRN_TRY(carry_out_groups(t, l, l->groups_before < 0 ? l->num_groups : l->groups_before));
	return idle(t);
}

/* Returns a buffer for a slot that the stream or the disk will write. */
static int to_write(struct cairn_tiers *t, int32_t slot, int32_t *buffer)
{
	int32_t b = t->buffer_of[slot];

	CAIRN_TRY(tiers_disk_poll(t));
	if (t->buffers[b].jobs) {
		if (!t->num_spares)
			CAIRN_TRY(idle_behind_moves(t));
		while (!t->num_spares)
			CAIRN_TRY(tiers_disk_wait(t));
		t->buffers[b].slot = -1;
		if (!t->buffers[b].jobs)	/* its jobs ended during the wait */
			t->spares[t->num_spares++] = b;
		b = t->spares[--t->num_spares];
		t->buffers[b].slot = slot;
		t->buffer_of[slot] = b;
	}
	*buffer = b;
	return 0;
}

static int to_read(struct cairn_tiers *t, int32_t slot, int32_t *buffer)
{
	int32_t b = t->buffer_of[slot];

	if (t->buffers[b].fetches) {
		CAIRN_TRY(tiers_disk_poll(t));
		if (t->buffers[b].fetches)
			CAIRN_TRY(idle_behind_moves(t));
		while (t->buffers[b].fetches)
			CAIRN_TRY(tiers_disk_wait(t));
	}
	*buffer = b;
	return 0;
}

/* ---- plans ---- */

static int collect_move(struct cairn_tiers *t, struct move_lists *l, const struct cairn_move *m)
{
	int32_t b;

	switch (m->kind) {
	case CAIRN_MOVE_COPY:
		put(t, l, m->page, &t->page_marks[m->page], m->to, &t->page_marks[m->to]);
		return 0;
	case CAIRN_MOVE_IN:
		CAIRN_TRY(to_read(t, m->to, &b));
		put(t, l, ~b, &t->slot_marks[m->to], m->page, &t->page_marks[m->page]);
		return 0;
	case CAIRN_MOVE_OUT:
	case CAIRN_MOVE_OFFLOAD:
		CAIRN_TRY(to_write(t, m->to, &b));
		put(t, l, m->page, &t->page_marks[m->page], ~b, &t->slot_marks[m->to]);
		return 0;
	case CAIRN_MOVE_FETCH:
		CAIRN_TRY(to_write(t, m->page, &b));
		return tiers_disk_add(t, 1, b, m->to, m->request);
	default:
		return tiers_disk_add(t, 0, t->buffer_of[m->page], m->to, 0);
	}
}

/* Returns whether all moves after the rows are offloads, so that layers can be copied independently. */
static int can_by_layer(const struct cairn_tiers *t, const struct move_lists *l)
{
	if (!t->side || l->num_groups != l->groups_before + 1)
		return 0;
	for (int32_t i = begin_of(l, l->groups_before); i < l->num; i++) {
		if (l->host[i] < 0 || l->host[l->room + i] >= 0)
			return 0;
	}
	return 1;
}

/*
 * Collects all moves of the plan, including those after the rows (none of which involves the disk), and
 * enqueues those before the rows.
 */
int cairn_tiers_before(struct cairn_tiers *t, const struct cairn_step_plan *p)
{
	struct move_lists *l = &t->lists[t->turn];

	l->num = l->num_groups = l->groups_before = l->carried = 0;
	t->by_layer = t->layers = 0;
	if (p->num_moves) {
		CAIRN_TRY(reserve(t, l, p->num_moves));
		if (t->groups_room < p->num_moves) {
			for (int i = 0; i < 2; i++) {
				void *groups = realloc(t->lists[i].groups,
						       2 * (size_t)p->num_moves * sizeof(*l->groups));

				if (!groups)
					return cairn_error(ENOMEM, "tiers: no memory for %d moves",
							   p->num_moves);
				t->lists[i].groups = groups;
			}
			t->groups_room = 2 * p->num_moves;
		}
		t->mark += 2;
		l->groups_before = -1;
		for (int32_t i = 0; i < p->num_moves; i++) {
			if (i == p->num_moves_before) {
				end_group(t, l);
				l->groups_before = l->num_groups;
			}
			CAIRN_TRY(collect_move(t, l, &p->moves[i]));
		}
		end_group(t, l);
		if (p->num_moves_before == p->num_moves)
			l->groups_before = l->num_groups;
		CAIRN_TRY(upload(t, l));
		CAIRN_TRY(carry_out_groups(t, l, l->groups_before));
		t->by_layer = p->num_items && can_by_layer(t, l);
	}
	if (p->num_items)
		t->launched++;
	return 0;
}

int cairn_tiers_by_layer(const struct cairn_tiers *t)
{
	return t->by_layer;
}

int64_t cairn_tiers_num_by_layer(const struct cairn_tiers *t)
{
	return t->num_by_layer;
}

int cairn_tiers_layer(void *tiers, int32_t layer, void *stream)
{
	struct cairn_tiers *t = tiers;
	const struct move_lists *l = &t->lists[t->turn];

	CAIRN_TRY(CAIRN_TABLE(t->impl, event_record, t->reached, stream));
	CAIRN_TRY(CAIRN_TABLE(t->impl, stream_wait, t->side, t->reached));
	CAIRN_TRY(copy_layer(t, l, begin_of(l, l->groups_before), l->num, layer, t->side));
	t->layers++;
	return 0;
}

/* Orders later work on the main stream, which may overwrite pages or read slots, after the side copies. */
static int join_side(struct cairn_tiers *t)
{
	CAIRN_TRY(CAIRN_TABLE(t->impl, event_record, t->left, t->side));
	return CAIRN_TABLE(t->impl, stream_wait, t->stream, t->left);
}

int cairn_tiers_after(struct cairn_tiers *t, const struct cairn_step_plan *p)
{
	struct move_lists *l = &t->lists[t->turn];

	if (t->layers)
		CAIRN_TRY(join_side(t));
	if (t->layers == t->num_layers)
		t->num_by_layer += l->num - begin_of(l, l->groups_before);
	else
		CAIRN_TRY(carry_out_groups(t, l, l->num_groups));
	t->turn ^= 1;
	return p->num_items || !p->num_moves ? 0 : idle(t);
}

int cairn_tiers_collected(struct cairn_tiers *t)
{
	tiers_disk_release(t, ++t->collected);
	return tiers_disk_poll(t);
}
