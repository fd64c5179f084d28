// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_pieces - which rows of a pass each rank of a ring computes, and the lists of their keys
 *
 * The pages that a request's new rows fill are cut into 2n pieces, as equal as whole pages can be:
 *
 *   pages        | found | 0 | 1 | .. | 2n-1 |       the first page of piece 0 may hold older keys, too
 *
 * Rank r computes pieces r and 2n - 1 - r, so its rows see as many keys as those of any other rank. For
 * request b, ranks are counted from b on, so that short requests do not all fall to rank 0.
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

/* Returns the number of piece `half` (0 or 1) that rank r computes of request b. */
static int32_t number_of(const struct lists *l, int32_t r, int32_t b, int half)
{
	const int32_t o = (r + l->ranks - b % l->ranks) % l->ranks;

	if (l->model->exchange == CAIRN_EXCHANGE_BLOCKS)
		return 2 * o + half;
	return half ? 2 * l->ranks - 1 - o : o;
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

/* Returns the keys of one piece that rank r computes of request b, or with r < 0 the older ones. */
static struct piece keys_of(const struct lists *l, int32_t b, int32_t r, int half)
{
	const int32_t size = l->w->opt.page_size;

	return r < 0 ? (struct piece){ 0, past_of(l, b) / size, 0, past_of(l, b) / size * size } :
	       piece_of(l, b, number_of(l, r, b, half));
}

/* Returns whether any row of a piece of this rank sees a key of another piece. */
static int sees(const struct lists *l, int32_t b, int32_t number, const struct piece *keys)
{
	const struct piece rows = piece_of(l, b, number);

	return rows.to > rows.from && keys->to > keys->from && keys->first_page < rows.end_page;
}

/* Lists the keys of a half segment, or older ones (r < 0), for each request of this rank's rows. */
static void put_keys(struct lists *l, struct cairn_ring_keys *keys, int32_t r, int half)
{
	const int32_t size = l->w->opt.page_size, requests = 2 * l->batch;
	int32_t *indptr = put(l, requests + 1), *last = put(l, requests), *pos0 = put(l, requests);
	int32_t *pages = l->to->host + l->used;

	indptr[0] = 0;
	for (int32_t i = 0; i < requests; i++) {
		const int32_t b = i / 2;
		const struct piece p = keys_of(l, b, r, half);
		const int32_t n = sees(l, b, number_of(l, l->rank, b, i % 2), &p) ?
				  p.end_page - p.first_page : 0;

		memcpy(put(l, n), pages_of(l, b) + p.first_page, (size_t)n * sizeof(*pages));
		indptr[i + 1] = indptr[i] + n;
		last[i] = n ? (p.to - 1) % size + 1 : size;
		pos0[i] = p.first_page * size;
		keys->max_keys = max_of(keys->max_keys, n * size);
	}
	keys->indptr = dev(l, indptr);
	keys->pages = dev(l, pages);
	keys->last_len = dev(l, last);
	keys->pos0 = dev(l, pos0);
}

static void put_segment(struct lists *l, int32_t r)
{
	struct cairn_ring_segment *s = &l->ring->segment[r];
	int32_t *pages = l->to->host + l->used;

	for (int32_t i = 0; i < 2 * l->batch; i++) {
		const struct piece p = piece_of(l, i / 2, number_of(l, r, i / 2, i % 2));
		const int32_t n = p.to > p.from ? p.end_page - p.first_page : 0;

		memcpy(put(l, n), pages_of(l, i / 2) + p.first_page, (size_t)n * sizeof(*pages));
		s->num_pages += n;
	}
	s->pages = dev(l, pages);
	l->ring->most_pages = max_of(l->ring->most_pages, s->num_pages);
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

/* Says where the rows whose logits are wanted are, on their ranks and once they have been gathered. */
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

/* Returns an upper bound of the int32s of all lists. */
static size_t bound(const struct lists *l)
{
	const struct cairn_batch *b = &l->w->batch;
	const size_t pages = (size_t)l->w->flight->host.kv_indptr[b->batch];

	return 9 * pages + 2 * (size_t)(b->num_rows + b->num_logits) +
	       (2 * (size_t)l->ranks + 2) * (MANY * (size_t)b->batch + 2);
}

int worker_ring_prepare(struct cairn_worker *w)
{
	const struct cairn_model *m = worker_pass_model(w);
	struct lists l = { w, m, &w->flight->ring, &w->batch_ring, m->context_rank, m->context_ranks,
			   w->batch.batch, 0 };
	int32_t *slots;

	memset(l.ring, 0, sizeof(*l.ring));
	CAIRN_TRY(worker_lists_reserve(w, l.to, bound(&l)));
	put_mine(&l);
	put_keys(&l, &l.ring->past, -1, 0);
	for (int32_t r = 0; r < l.ranks; r++) {
		put_keys(&l, &l.ring->segment[r].keys[0], r, 0);
		put_keys(&l, &l.ring->segment[r].keys[1], r, 1);
		put_segment(&l, r);
	}
	slots = put(&l, l.ring->most_pages);
	for (int32_t i = 0; i < l.ring->most_pages; i++)
		slots[i] = ~i;
	l.ring->slots = dev(&l, slots);
	if (w->batch.num_logits)
		put_logits(&l);
	w->batch.ring = l.ring;
	return TABLE(w, mem_copy, l.to->dev, l.to->host, l.used * sizeof(*l.to->host), CAIRN_COPY_TO_DEVICE,
		     w->stream);
}
