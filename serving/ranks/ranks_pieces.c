// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_pieces - which rows of a pass each rank of a ring computes, and the lists of their keys
 *
 * The pages that a request's new rows fill are cut into 2n pieces, as equal as whole pages can be:
 *
 *   pages        | found | 0 | 1 | .. | 2n-1 |       the first page of piece 0 may hold older keys, too
 *
 * Rank r computes pieces r and 2n - 1 - r, so its rows see as many keys as those of any other rank. For
 * request b, ranks are counted from b on, so that short requests do not all fall to rank 0. Rows of the later
 * piece come first: they see the most keys, and the work of a call is balanced best if the longest comes
 * first.
 *
 * All ranks make these lists from the same parts, and so agree on them without a message. They are one block
 * of int32, which is allocated when first needed.
 */
#include <string.h>

#include "serving/engine/worker/worker_impl.h"

#define MANY	8	/* arrays for each request of a list, at most */

struct piece {
	int32_t first_page, end_page;		/* of the request's list */
	int32_t from, to;			/* positions of its rows */
};

/* What is being built. */
struct lists {
	struct cairn_worker *w;
	const struct cairn_model *model;
	struct pass_lists *to;
	struct cairn_batch_ring *ring;
	int32_t rank, ranks, batch;
	size_t used;			/* of to->host */
};

static int32_t *put(struct lists *l, int32_t num)
{
	int32_t *at = l->to->host + l->used;

	l->used += (size_t)num;
	return at;
}

/* Returns where the device has what is at `host`. */
static const int32_t *dev(const struct lists *l, const int32_t *host)
{
	return l->to->dev + (host - l->to->host);
}

static int32_t max_of(int32_t a, int32_t b)
{
	return a > b ? a : b;
}

/* Returns the number of a piece that rank r computes of request b: half 0 is the later one. */
static int32_t number_of(const struct lists *l, int32_t r, int32_t b, int half)
{
	const int32_t o = (r + l->ranks - b % l->ranks) % l->ranks;

	if (l->model->exchange == CAIRN_EXCHANGE_BLOCKS)
		return 2 * o + 1 - half;
	return half ? o : 2 * l->ranks - 1 - o;
}

/* Returns the position of the first row of request b. */
static int32_t past_of(const struct lists *l, int32_t b)
{
	const struct arrays *a = &l->w->flight->host;

	return a->positions[a->qo_indptr[b]];
}

static struct piece piece_of(const struct lists *l, int32_t b, int32_t number)
{
	const struct arrays *a = &l->w->flight->host;
	const int32_t size = l->w->opt.page_size, past = past_of(l, b);
	const int32_t end = past + a->qo_indptr[b + 1] - a->qo_indptr[b], first = past / size;
	const int64_t pages = (end + size - 1) / size - first;
	struct piece p = {
		.first_page = first + (int32_t)(pages * number / (2 * l->ranks)),
		.end_page = first + (int32_t)(pages * (number + 1) / (2 * l->ranks)),
	};

	p.from = max_of(past, p.first_page * size);
	p.to = p.end_page * size < end ? p.end_page * size : end;
	p.to = max_of(p.from, p.to);
	return p;
}

static const int32_t *pages_of(const struct lists *l, int32_t b)
{
	const struct arrays *a = &l->w->flight->host;

	return a->kv_indices + a->kv_indptr[b];
}

/* ---- the rows of this rank ---- */

static void add_rows(struct lists *l, int32_t *rows, int32_t *positions)
{
	const struct arrays *a = &l->w->flight->host;
	int32_t n = 0;

	for (int32_t i = 0; i < 2 * l->batch; i++) {
		const int32_t b = i / 2;
		const struct piece p = piece_of(l, b, number_of(l, l->rank, b, i % 2));

		for (int32_t at = p.from; at < p.to; at++, n++) {
			rows[n] = a->qo_indptr[b] + at - past_of(l, b);
			positions[n] = at;
		}
	}
}

/* Describes the requests of this rank's rows: see struct cairn_batch_ring. */
static void put_mine(struct lists *l)
{
	const int latent = l->model->config.latent.kv_lora_rank > 0;
	struct cairn_batch *mine = &l->ring->mine;
	int32_t *qo = put(l, 2 * l->batch + 1), *kv = put(l, 2 * l->batch + 1), *last = put(l, 2 * l->batch);
	int32_t *indices = l->to->host + l->used;

	mine->batch = 2 * l->batch;
	qo[0] = kv[0] = 0;
	for (int32_t i = 0; i < 2 * l->batch; i++) {
		const struct piece p = piece_of(l, i / 2, number_of(l, l->rank, i / 2, i % 2));
		const int32_t first = latent ? 0 : p.first_page;
		const int32_t pages = p.to > p.from ? p.end_page - first : 0;

		memcpy(put(l, pages), pages_of(l, i / 2) + first, (size_t)pages * sizeof(*indices));
		qo[i + 1] = qo[i] + p.to - p.from;
		kv[i + 1] = kv[i] + pages;
		last[i] = pages ? (p.to - 1) % l->w->opt.page_size + 1 : 0;
		mine->max_qo_len = max_of(mine->max_qo_len, p.to - p.from);
		mine->max_kv_len = max_of(mine->max_kv_len, pages * l->w->opt.page_size);
	}
	mine->num_rows = qo[mine->batch];
	mine->qo_indptr = dev(l, qo);
	mine->kv_indptr = dev(l, kv);
	mine->kv_last_page_len = dev(l, last);
	mine->kv_indices = dev(l, indices);
	if (mine->num_rows) {
		int32_t *rows = put(l, mine->num_rows), *positions = put(l, mine->num_rows);

		add_rows(l, rows, positions);
		worker_find_prompts(mine, qo, positions);
		l->ring->rows = dev(l, rows);
		mine->positions = dev(l, positions);
	}
}

/* ---- keys ---- */

/* Pages of a request's list. */
struct span {
	int32_t first, end;
};

/*
 * Sets the runs of keys that this rank's piece i sees, and that it has at first or (others) that other ranks
 * compute. Piece i is half i % 2 of request i / 2.
 */
static void find_runs(const struct lists *l, int32_t i, int others, struct span run[CAIRN_RING_RUNS])
{
	const int32_t b = i / 2, found = past_of(l, b) / l->w->opt.page_size;
	const struct piece later = piece_of(l, b, number_of(l, l->rank, b, 0));
	const struct piece earlier = piece_of(l, b, number_of(l, l->rank, b, 1));
	const struct piece *rows = i % 2 ? &earlier : &later;

	memset(run, 0, CAIRN_RING_RUNS * sizeof(*run));
	if (rows->to == rows->from)
		return;
	if (others) {
		run[0] = (struct span){ found, earlier.first_page };
		if (rows == &later)
			run[1] = (struct span){ earlier.end_page, later.first_page };
		return;
	}
	run[0] = (struct span){ 0, found };
	run[1] = (struct span){ earlier.first_page, earlier.end_page };
	if (rows == &later)
		run[2] = (struct span){ later.first_page, later.end_page };
}

/* Lists the keys of runs from .. to - 1, for each request of this rank's rows. */
static void put_keys(struct lists *l, struct cairn_ring_keys *keys, int others, int from, int to)
{
	const struct arrays *a = &l->w->flight->host;
	const int32_t size = l->w->opt.page_size, requests = 2 * l->batch;
	int32_t *indptr = put(l, requests + 1), *last = put(l, requests), *pos0 = put(l, requests);
	int32_t *pages = l->to->host + l->used;

	indptr[0] = 0;
	for (int32_t i = 0; i < requests; i++) {
		const int32_t b = i / 2, end = past_of(l, b) + a->qo_indptr[b + 1] - a->qo_indptr[b];
		struct span run[CAIRN_RING_RUNS];

		find_runs(l, i, others, run);
		indptr[i + 1] = indptr[i];
		last[i] = size;
		pos0[i] = run[from].first * size;
		for (int k = from; k < to; k++) {
			const int32_t n = run[k].end - run[k].first;

			memcpy(put(l, n), pages_of(l, b) + run[k].first, (size_t)n * sizeof(*pages));
			indptr[i + 1] += n;
			if (n && run[k].end * size > end)
				last[i] = (end - 1) % size + 1;
		}
		keys->max_keys = max_of(keys->max_keys, (indptr[i + 1] - indptr[i]) * size);
	}
	keys->indptr = dev(l, indptr);
	keys->pages = dev(l, pages);
	keys->last_len = dev(l, last);
	keys->pos0 = to - from == 1 ? dev(l, pos0) : NULL;
}

static void put_call(struct lists *l, struct cairn_ring_call *call, int others)
{
	for (int k = 0; k < CAIRN_RING_RUNS; k++)
		put_keys(l, &call->run[k], others, k, k + 1);
	put_keys(l, &call->all, others, 0, CAIRN_RING_RUNS);
}

/* ---- what travels ---- */

/* Lists the pages whose keys rank r computes, and returns how many they are. */
static int32_t put_pages(struct lists *l, int32_t r)
{
	int32_t num = 0;

	for (int32_t i = 0; i < 2 * l->batch; i++) {
		const struct piece p = piece_of(l, i / 2, number_of(l, r, i / 2, i % 2));
		const int32_t n = p.to > p.from ? p.end_page - p.first_page : 0;

		memcpy(put(l, n), pages_of(l, i / 2) + p.first_page, (size_t)n * sizeof(int32_t));
		num += n;
	}
	return num;
}

/* Lists `num` slots from number `first` on. */
static void put_slots(struct lists *l, int32_t first, int32_t num)
{
	int32_t *slots = put(l, num);

	for (int32_t i = 0; i < num; i++)
		slots[i] = ~(first + i);
}

/* The keys of rank r - t arrive as number t; number 0 is those of this rank. */
static void put_travel(struct lists *l)
{
	struct cairn_batch_ring *ring = l->ring;
	int32_t num[CAIRN_COMM_MAX_RANKS] = { 0 };
	const int32_t *at = dev(l, l->to->host + l->used);

	ring->own_pages = at;
	for (int32_t t = 0; t < l->ranks; t++) {
		num[t] = put_pages(l, (l->rank - t + l->ranks) % l->ranks);
		ring->most_pages = max_of(ring->most_pages, num[t]);
		ring->num_arrived += t ? num[t] : 0;
	}
	ring->num_own = num[0];
	ring->arrived_pages = at + num[0];
	ring->own_slots = dev(l, l->to->host + l->used);
	ring->arrived_slots = ring->own_slots + num[0];
	for (int32_t t = 0; t < l->ranks; t++)
		put_slots(l, t * ring->most_pages, num[t]);
}

/* ---- logits ---- */

/* Finds the rank that computes a row of the pass, and the row's number among that rank's. */
static int32_t rank_of_row(const struct lists *l, int32_t row, int32_t *number)
{
	const struct arrays *a = &l->w->flight->host;

	for (int32_t r = 0; r < l->ranks; r++) {
		*number = 0;
		for (int32_t i = 0; i < 2 * l->batch; i++) {
			const int32_t b = i / 2, at = row - a->qo_indptr[b] + past_of(l, b);
			const struct piece p = piece_of(l, b, number_of(l, r, b, i % 2));

			if (row >= a->qo_indptr[b] && row < a->qo_indptr[b + 1] && at >= p.from &&
			    at < p.to) {
				*number += at - p.from;
				return r;
			}
			*number += p.to - p.from;
		}
	}
	return 0;	/* every row of the pass has a rank */
}

/*
 * Lists the rows of this rank that need logits, by their numbers on this rank, and the places of all such
 * rows of the pass once the rows of all ranks have been gathered.
 */
static void put_logits(struct lists *l)
{
	const int32_t num = l->w->batch.num_logits, *logit_rows = l->w->flight->host.logit_rows;
	int32_t *at = put(l, num), *wanted = put(l, num), count[CAIRN_COMM_MAX_RANKS] = { 0 };
	int32_t number = 0;

	memset(wanted, 0, (size_t)num * sizeof(*wanted));
	for (int32_t i = 0; i < num; i++) {
		const int32_t r = rank_of_row(l, logit_rows[i], &number);

		if (r == l->rank)
			wanted[count[r]] = number;
		at[i] = r * num + count[r]++;
		l->ring->most_wanted = max_of(l->ring->most_wanted, count[r]);
	}
	for (int32_t i = 0; i < num; i++)
		at[i] = at[i] / num * l->ring->most_wanted + at[i] % num;
	l->ring->wanted = dev(l, wanted);
	l->ring->logit_rows = dev(l, at);
}

/* ---- the block ---- */

/*
 * Returns an upper bound of the int32s of all lists. A page of the pass is listed for the keys of two pieces,
 * in a run and in `all`, for two pieces of `mine`, as one that travels, and as its slot.
 */
static size_t bound(const struct lists *l)
{
	const struct cairn_batch *b = &l->w->batch;
	const size_t pages = (size_t)l->w->flight->host.kv_indptr[b->batch];

	return 8 * pages + 2 * (size_t)(b->num_rows + b->num_logits) +
	       (2 * (CAIRN_RING_RUNS + 1) + 1) * (MANY * (size_t)b->batch + 2);
}

int worker_ring_prepare(struct cairn_worker *w)
{
	const struct cairn_model *m = worker_pass_model(w);
	struct lists l = { w, m, &w->flight->ring, &w->batch_ring, m->context_rank, m->context_ranks,
			   w->batch.batch, 0 };

	memset(l.ring, 0, sizeof(*l.ring));
	CAIRN_TRY(worker_lists_reserve(w, l.to, bound(&l)));
	put_mine(&l);
	put_call(&l, &l.ring->own, 0);
	put_call(&l, &l.ring->others, 1);
	put_travel(&l);
	if (w->batch.num_logits)
		put_logits(&l);
	w->batch.ring = l.ring;
	return TABLE(w, mem_copy, l.to->dev, l.to->host, l.used * sizeof(*l.to->host), CAIRN_COPY_TO_DEVICE,
		     w->stream);
}
