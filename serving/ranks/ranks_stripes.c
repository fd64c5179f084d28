// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_stripes - ranks that each hold some of the pages, so that n ranks have room for n times the tokens
 *
 * Rank r holds the pages p of the pool with p mod ranks = r, as its page p / ranks. A request may have any
 * pages, so prefixes are shared as without stripes.
 *
 * A decoding pass attends by ranks_pages.c, each rank to the pages that it holds. All ranks have the new keys
 * of all rows. A rank appends those of its pages, and writes the others to slots of their own in spare pages
 * behind the held ones, which nobody reads.
 *
 * Any other pass has one request, and computes on pages of one layer at a time, as if the model had no other:
 *
 *   held pages of all ranks --- all_to_all ---> gathered layer: append, attend (whole, or in a ring)
 *                                                    | pages with new keys, which this rank holds
 *   held pages  <------------------------------------+
 *
 * So results are those of ranks without stripes. Pages travel through room for `chunk` pages of each rank, in
 * as many rounds as the rank with most of them needs. The gathered layer is as long as the longest request.
 */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/engine/worker/worker_impl.h"
#include "serving/model/forward/forward_impl.h"

#define ROUNDS	8	/* rounds that gather max_context keys whose pages are spread evenly over the ranks */

/* ---- a layer of a pass ---- */

static size_t key_page_bytes(const struct cairn_model *m, const struct cairn_kv_store *kv)
{
	return (size_t)kv->page_size * cairn_model_key_bytes(m);
}

/* Returns the bytes of a page of one layer, K and V. */
static size_t page_bytes(const struct cairn_model *m, const struct cairn_kv_store *kv)
{
	return (kv->v_offset ? 2 : 1) * key_page_bytes(m, kv);
}

/* Moves pages of one layer of a store to slots or back. */
static int move(const struct walk *w, const struct cairn_kv_store *kv, int32_t layer, char *slots,
		const int32_t *from, const int32_t *to, int32_t num)
{
	const struct cairn_batch_stripes *s = w->b->stripes;
	const struct cairn_kv_move_args args = {
		.size = sizeof(args), .base = kv->base + (size_t)layer * kv->layer_bytes, .slots = slots,
		.from = from, .to = to, .layer_bytes = (int64_t)kv->layer_bytes,
		.v_offset = (int64_t)kv->v_offset, .page_bytes = (int64_t)key_page_bytes(w->m, kv),
		.num_moves = num, .num_layers = 1, .num_pages = kv->num_pages,
		.num_slots = s->ranks * s->chunk,
	};

	return num ? CAIRN_TABLE(w->m->impl, kv_move, &args, w->stream) : 0;
}

static int32_t min_of(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

/* Returns how many pages each rank sends in a round; those with fewer send what is in their room. */
static int32_t in_round(const struct cairn_batch_stripes *s, int32_t round)
{
	return min_of(s->chunk, s->most - round * s->chunk);
}

static int gather(const struct walk *w, int32_t layer)
{
	const struct cairn_batch_stripes *s = w->b->stripes;
	const int64_t page = (int64_t)page_bytes(w->m, w->kv);

	for (int32_t k = 0; k * s->chunk < s->most; k++) {
		const int32_t first = k * s->chunk, begin = k ? s->arrived_end[k - 1] : 0;

		if (first < s->num_from)
			CAIRN_TRY(move(w, s->held, layer, s->own, s->from + first, s->slots,
				       min_of(s->chunk, s->num_from - first)));
		CAIRN_TRY(forward_gather_rows(w, s->all, s->own, in_round(s, k), page, page));
		CAIRN_TRY(move(w, w->kv, 0, s->all, s->arrived + begin, s->places + begin,
			       s->arrived_end[k] - begin));
	}
	return 0;
}

int forward_stripes_before(const struct walk *w, const struct cairn_graph_op *op)
{
	return w->b->stripes && (op->kind == CAIRN_OP_KV_APPEND || op->kind == CAIRN_OP_MLA_APPEND) ?
	       gather(w, op->layer) : 0;
}

int forward_stripes_after(const struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_batch_stripes *s = w->b->stripes;

	if (!s || (op->kind != CAIRN_OP_ATTN && op->kind != CAIRN_OP_MLA))
		return 0;
	for (int32_t done = 0, n; done < s->num_new; done += n) {
		n = min_of(s->ranks * s->chunk, s->num_new - done);
		CAIRN_TRY(move(w, w->kv, 0, s->all, s->new_places + done, s->slots, n));
		CAIRN_TRY(move(w, s->held, op->layer, s->all, s->slots, s->new_pages + done, n));
	}
	return 0;
}

/* ---- creation ---- */

static int32_t ranks_of(const struct cairn_worker *w)
{
	return worker_context_model(w)->context_ranks;
}

static int holds(const struct cairn_worker *w, int32_t page)
{
	return page % ranks_of(w) == worker_context_model(w)->context_rank;
}

static int32_t most_pages(const struct cairn_worker *w)
{
	return (w->opt.max_context + w->opt.page_size - 1) / w->opt.page_size;
}

/* Pages behind the held ones, with a slot for each row of a decoding pass. */
static int32_t spare_pages(const struct cairn_worker *w)
{
	return (w->opt.max_batch + w->opt.page_size - 1) / w->opt.page_size;
}

static int32_t own_pages(const struct cairn_worker *w)
{
	return (w->opt.num_pages + ranks_of(w) - 1) / ranks_of(w);
}

int32_t worker_held_pages(const struct cairn_worker *w)
{
	return w->opt.stripes && worker_context_model(w) ? own_pages(w) + spare_pages(w) : w->opt.num_pages;
}

static int check(const struct cairn_worker *w)
{
	const int fused = w->opt.decode == CAIRN_DECODE_GRAPH || w->opt.decode == CAIRN_DECODE_PERSISTENT;

	if (!worker_has_all_keys(w))
		return cairn_error(EINVAL, "worker: stripes: is for ranks that would each hold all keys: "
				   "those of a ring, and with latent attention those of tensor and context "
				   "parallelism");
	if (w->opt.repeatable || w->opt.trees || w->opt.taps || fused)
		return cairn_error(EINVAL, "worker: stripes: excludes repeatable, trees, taps and "
				   "decode_step");
	if (w->by_steps || !forward_pages_supported(w->model, worker_context_model(w)))
		return cairn_error(EOPNOTSUPP, "worker: stripes: not for this model on the table %s: layers "
				   "have a window, heads do not divide, or operations are missing",
				   w->impl->name);
	return 0;
}

int worker_stripes_create(struct cairn_worker *w)
{
	const struct cairn_model *m = w->model;
	struct cairn_batch_stripes *s = &w->batch_stripes;
	size_t page, room, copy;
	void *p;

	if (!w->opt.stripes)
		return 0;
	CAIRN_TRY(check(w));
	CAIRN_TRY(cairn_kv_store_create_layers(&w->gathered, m, 1, most_pages(w), w->opt.page_size));
	w->gathered.layer_bytes = 0;	/* all layers lie there, one after the other in time */
	s->held = &w->kv;
	s->ranks = ranks_of(w);
	s->chunk = (most_pages(w) + ROUNDS * s->ranks - 1) / (ROUNDS * s->ranks);
	page = page_bytes(m, &w->kv);
	room = (size_t)(1 + s->ranks) * (size_t)s->chunk * page;
	copy = 2 * (size_t)m->config.num_hidden_layers * page;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, room > copy ? room : copy));
	w->stripes_room = s->own = p;
	s->all = s->own + (size_t)s->chunk * page;
	w->round_ends = calloc((size_t)most_pages(w), sizeof(*w->round_ends));
	s->arrived_end = w->round_ends;
	return w->round_ends ? 0 : cairn_error(ENOMEM, "worker: no memory for %d pages", most_pages(w));
}

void worker_stripes_destroy(struct cairn_worker *w)
{
	cairn_kv_store_destroy(&w->gathered, w->model);
	if (w->stripes_room)
		w->impl->mem_free(w->stripes_room);
	free(w->round_ends);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++)
		worker_lists_free(w, &w->flights[i].stripes);
}

/* ---- passes ---- */

/* Takes `num` int32s of the flight's lists, and sets where they are on the device. */
static int32_t *put(struct pass_lists *to, int32_t *used, int32_t num, const int32_t **dev)
{
	int32_t *at = to->host + *used;

	*dev = to->dev + *used;
	*used += num;
	return at;
}

/* Lists what this rank sends, and what arrives in which slot, round by round. */
static void list_earlier(struct cairn_worker *w, const int32_t *pages, int32_t num, int32_t *from,
			 int32_t *arrived, int32_t *places)
{
	struct cairn_batch_stripes *s = &w->batch_stripes;
	int32_t count[CAIRN_COMM_MAX_RANKS] = { 0 }, n = 0;

	s->most = s->num_from = 0;
	for (int32_t j = 0; j < num; j++) {
		const int32_t r = pages[j] % s->ranks;

		if (holds(w, pages[j]))
			from[s->num_from++] = pages[j] / s->ranks;
		if (++count[r] > s->most)
			s->most = count[r];
	}
	for (int32_t k = 0; k * s->chunk < s->most; k++) {
		memset(count, 0, sizeof(count));
		for (int32_t j = 0; j < num; j++) {
			const int32_t r = pages[j] % s->ranks, i = count[r]++ - k * s->chunk;

			if (i < 0 || i >= s->chunk)
				continue;
			arrived[n] = ~(r * in_round(s, k) + i);
			places[n++] = j;
		}
		w->round_ends[k] = n;
	}
}

int worker_stripes_prepare(struct cairn_worker *w)
{
	struct pass_lists *to = &w->flight->stripes;
	struct cairn_batch_stripes *s = &w->batch_stripes;
	struct arrays *a = &w->flight->host;
	const int32_t num = a->kv_indptr[1], size = w->opt.page_size, past = a->positions[0];
	const int32_t earlier = (past + size - 1) / size;
	int32_t *from, *arrived, *places, *new_places, *new_pages, *slots, used = 0;

	if (!w->opt.stripes)
		return 0;
	if (w->batch.batch != 1)
		return cairn_error(EINVAL, "worker: stripes: a pass has rows of %d requests, of which one "
				   "has several", w->batch.batch);
	CAIRN_TRY(worker_lists_reserve(w, to, 5 * (size_t)num + (size_t)(s->ranks * s->chunk)));
	from = put(to, &used, num, &s->from);
	arrived = put(to, &used, num, &s->arrived);
	places = put(to, &used, num, &s->places);
	new_places = put(to, &used, num, &s->new_places);
	new_pages = put(to, &used, num, &s->new_pages);
	slots = put(to, &used, s->ranks * s->chunk, &s->slots);
	list_earlier(w, a->kv_indices, earlier, from, arrived, places);
	s->num_new = 0;
	for (int32_t j = past / size; j < num; j++) {
		if (!holds(w, a->kv_indices[j]))
			continue;
		new_places[s->num_new] = j;
		new_pages[s->num_new++] = a->kv_indices[j] / s->ranks;
	}
	for (int32_t i = 0; i < s->ranks * s->chunk; i++)
		slots[i] = ~i;
	for (int32_t j = 0; j < num; j++)
		a->kv_indices[j] = j;
	w->batch.stripes = s;
	w->stats.stripes_passes++;
	return TABLE(w, mem_copy, to->dev, to->host, (size_t)used * sizeof(*to->host), CAIRN_COPY_TO_DEVICE,
		     w->stream);
}

/* ---- decoding passes ---- */

int worker_stripes_holds(const struct cairn_worker *w, int32_t j, int32_t page)
{
	return w->opt.stripes ? holds(w, page) : j % ranks_of(w) == worker_context_model(w)->context_rank;
}

int32_t worker_stripes_place(const struct cairn_worker *w, int32_t page)
{
	return w->opt.stripes ? page / ranks_of(w) : page;
}

void worker_stripes_append(struct cairn_worker *w)
{
	struct arrays *a = &w->flight->host;
	const int32_t size = w->opt.page_size;
	int32_t used = 0;

	for (int32_t b = 0; w->opt.stripes && b < w->batch.batch; b++) {
		const int32_t end = a->kv_indptr[b + 1];

		if (a->qo_indptr[b + 1] > a->qo_indptr[b]) {
			const int32_t page = a->kv_indices[end - 1];

			if (!holds(w, page))
				a->last_page_len[b] = b % size + 1;
			a->kv_indices[used++] = holds(w, page) ? page / ranks_of(w) :
						own_pages(w) + b / size;
		}
		a->kv_indptr[b + 1] = used;
	}
}

/* ---- copies of pages ---- */

/* Copies one page between the store and a piece of memory that has it layer by layer. */
static int copy_page(const struct cairn_worker *w, int32_t page, char *memory, int out)
{
	const size_t bytes = key_page_bytes(w->model, &w->kv);

	for (int32_t l = 0; l < w->model->config.num_hidden_layers; l++) {
		for (size_t side = 0; side < (w->kv.v_offset ? 2 : 1); side++, memory += bytes) {
			char *at = w->kv.base + (size_t)l * w->kv.layer_bytes + side * w->kv.v_offset +
				   (size_t)page * bytes;

			CAIRN_TRY(TABLE(w, mem_copy, out ? memory : at, out ? at : memory, bytes,
					CAIRN_COPY_ON_DEVICE, w->stream));
		}
	}
	return 0;
}

static int copy(const struct cairn_worker *w, int32_t from, int32_t to)
{
	const int32_t ranks = ranks_of(w), source = from % ranks, target = to % ranks;
	const int64_t bytes = w->model->config.num_hidden_layers * (int64_t)page_bytes(w->model, &w->kv);
	const int sends = holds(w, from), receives = holds(w, to);
	const struct cairn_send_recv_args args = {
		.size = sizeof(args), .out = w->stripes_room + bytes, .x = w->stripes_room, .bytes = bytes,
		.to = sends ? target : -1, .from = receives ? source : -1,
	};

	if (sends)
		CAIRN_TRY(copy_page(w, from / ranks, w->stripes_room, 1));
	if (source != target)
		CAIRN_TRY(TABLE(w, send_recv, &args, w->stream));
	return receives ? copy_page(w, to / ranks, w->stripes_room + (source != target ? bytes : 0), 0) : 0;
}

int worker_stripes_copies(struct cairn_worker *w)
{
	for (int32_t i = 0; w->opt.stripes && i < w->num_copies; i++)
		CAIRN_TRY(copy(w, w->copies[i][0], w->copies[i][1]));
	w->num_copies = w->opt.stripes ? 0 : w->num_copies;
	return 0;
}
