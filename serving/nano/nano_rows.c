// SPDX-License-Identifier: Apache-2.0
/* nano_rows - cuts and index arrays of nano-batches (nano_rows.h) */
#include "serving/nano/nano_rows.h"

#include <stdlib.h>

#include "primitives/base/error.h"

#define REFUSE(fmt, ...)	cairn_error(EINVAL, "nano_rows: " fmt, __VA_ARGS__)

/* ---- cuts ---- */

/*
 * Returns the edge of a request nearest to row `at`, if it is near and in lo .. hi; otherwise `at`. Padding
 * rows have edges everywhere: the cuts of a padded pass depend on its rows alone.
 */
static int32_t seek_edge(const int32_t *qo_indptr, int32_t batch, int32_t at, int32_t lo, int32_t hi)
{
	int32_t a = 0, b = batch, best = -1;

	if (at >= qo_indptr[batch])
		return at;
	while (a < b) {			/* the first edge at or after `at` is qo_indptr[a] */
		int32_t mid = (a + b) / 2;

		if (qo_indptr[mid] < at)
			a = mid + 1;
		else
			b = mid;
	}
	for (int32_t i = a > 0 ? a - 1 : 0; i <= a; i++) {
		int32_t edge = qo_indptr[i];

		if (edge < lo || edge > hi || abs(edge - at) > CAIRN_NANO_SEEK)
			continue;
		if (best < 0 || abs(edge - at) < abs(best - at))
			best = edge;
	}
	return best < 0 ? at : best;
}

static int32_t clamp(int32_t at, int32_t lo, int32_t hi)
{
	return at < lo ? lo : at > hi ? hi : at;
}

/* Returns n * (the first i of the shares) / (all shares), rounded; shares that are all 0 count as equal. */
static int32_t share_of(const int32_t *shares, int32_t num, int32_t i, int32_t n)
{
	int64_t before = 0, all = 0;

	for (int32_t k = 0; k < num; k++) {
		before += k < i ? shares[k] : 0;
		all += shares[k];
	}
	return (int32_t)(all ? (2 * n * before + all) / (2 * all) : ((int64_t)2 * n * i + num) / (2 * num));
}

/*
 * Cuts a pass whose decoding rows change places: g of them come before cut i, which falls at row `at`, and
 * at - g of the other rows, up to the edge of one of their requests.
 */
static void cut_moved(struct cairn_nano_cuts *c, int32_t i, int32_t at, int32_t g, const int32_t *qo_indptr,
		      int32_t batch)
{
	int32_t k = c->num_batches, num_decodes = c->decode[k], others = c->row[k] - num_decodes;
	int32_t before = c->row[i - 1] - c->decode[i - 1];	/* other rows before the previous cut */
	int32_t least = c->row[i - 1] + 1, most = c->row[k] - (k - i), lo, hi;

	lo = at - others > c->decode[i - 1] ? at - others : c->decode[i - 1];
	hi = at - before < num_decodes ? at - before : num_decodes;
	g = clamp(g, lo, hi);
	lo = least - g > before ? least - g : before;
	hi = most - g < others ? most - g : others;
	c->decode[i] = g;
	at = seek_edge(qo_indptr, batch, num_decodes + at - g, num_decodes + lo, num_decodes + hi);
	c->row[i] = g + at - num_decodes;
}

int cairn_nano_cut(struct cairn_nano_cuts *out, const struct cairn_nano_plan *plan, const int32_t *qo_indptr,
		   int32_t batch, int32_t num_rows, int32_t num_decodes)
{
	struct cairn_nano_cuts c = { .num_batches = plan->num_batches };
	int32_t k = plan->num_batches, moves = 0;

	CAIRN_TRY(cairn_nano_plan_check(plan));
	if (batch < 1 || num_rows < qo_indptr[batch] || num_decodes < 0 || num_decodes > batch ||
	    qo_indptr[num_decodes] != num_decodes)
		return REFUSE("qo_indptr: %d requests with %d rows do not begin with %d decoding ones", batch,
			      num_rows, num_decodes);
	if (num_rows < k)
		return cairn_error(ERANGE, "nano_rows: num_rows is %d, less than the plan's %d nano-batches",
				   num_rows, k);
	for (int32_t i = 0; i < k; i++)
		moves |= plan->decodes[i] > 0;
	c.row[k] = num_rows;
	c.decode[k] = num_decodes;
	for (int32_t i = 1; i < k; i++) {
		int32_t least = c.row[i - 1] + 1, most = num_rows - (k - i);
		int32_t at = clamp(share_of(plan->rows, k, i, num_rows), least, most);

		if (moves)
			cut_moved(&c, i, at, share_of(plan->decodes, k, i, num_decodes), qo_indptr, batch);
		else
			c.row[i] = seek_edge(qo_indptr, batch, at, least, most);
		if (!moves)	/* the decoding rows before the cut are those that come first */
			c.decode[i] = c.row[i] < num_decodes ? c.row[i] : num_decodes;
	}
	*out = c;
	return 0;
}

int32_t cairn_nano_row(const struct cairn_nano_cuts *c, int32_t r)
{
	int32_t num_decodes = c->decode[c->num_batches], i = 0;

	if (r < num_decodes) {
		while (r >= c->decode[i + 1])
			i++;
		return c->row[i] + r - c->decode[i];
	}
	while (r - num_decodes >= c->row[i + 1] - c->decode[i + 1])
		i++;
	return c->decode[i + 1] + r - num_decodes;
}

/* ---- index arrays ---- */

struct splitter {
	const struct cairn_nano_host *in;
	const struct cairn_nano_index *to;	/* of the nano-batch being filled */
	struct cairn_batch *b;
	int32_t *pages, num_pages, first_prompt;
};

/* Adds the rows from .. to - 1 of the pass, which belong to request r, to the nano-batch. */
static void add_rows(struct splitter *s, int32_t r, int32_t from, int32_t to)
{
	const struct cairn_nano_host *in = s->in;
	int32_t n = s->b->batch++, pages = in->kv_indptr[r + 1] - in->kv_indptr[r], size = in->page_size;
	int32_t len = pages > 0 ? (pages - 1) * size + in->last_page_len[r] : 0, past;

	past = len - (in->qo_indptr[r + 1] - from);
	len -= in->qo_indptr[r + 1] - to;
	pages = len > 0 ? (len + size - 1) / size : 0;
	for (int32_t i = 0; i < pages; i++)
		s->pages[s->num_pages++] = in->kv_indices[in->kv_indptr[r] + i];
	s->to->qo_indptr[n + 1] = s->to->qo_indptr[n] + to - from;
	s->to->kv_indptr[n + 1] = s->num_pages;
	s->to->last_page_len[n] = pages ? len - (pages - 1) * size : 0;
	if (to - from > s->b->max_qo_len)
		s->b->max_qo_len = to - from;
	if (r < s->first_prompt)
		return;
	s->b->num_prompts++;
	s->b->prompt_rows += to - from;
	s->b->prompt_past += past > 0 ? past : 0;
}

/* Adds the rows first .. end - 1 of the pass. */
static void add_range(struct splitter *s, int32_t batch, int32_t first, int32_t end)
{
	const int32_t *qo = s->in->qo_indptr;
	int32_t lo = 0, hi = batch;

	while (lo < hi) {		/* the first request that ends after row `first` */
		int32_t mid = (lo + hi) / 2;

		if (qo[mid + 1] <= first)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (int32_t r = lo; r < batch && qo[r] < end; r++) {
		int32_t from = qo[r] > first ? qo[r] : first, to = qo[r + 1] < end ? qo[r + 1] : end;

		if (to > from)
			add_rows(s, r, from, to);
	}
}

/* Adds requests without rows and keys. */
static void pad(struct splitter *s)
{
	for (; s->b->batch < s->b->num_rows; s->b->batch++) {
		int32_t n = s->b->batch;

		s->to->qo_indptr[n + 1] = s->to->qo_indptr[n];
		s->to->kv_indptr[n + 1] = s->num_pages;
		s->to->last_page_len[n] = 0;
	}
	s->b->max_qo_len = 1;
}

int cairn_nano_split(struct cairn_nano_pass *pass, const struct cairn_nano_index *host, int32_t *pages,
		     const struct cairn_nano_index *dev, const struct cairn_nano_host *in,
		     const struct cairn_batch *whole, const struct cairn_nano_cuts *c)
{
	int32_t num_decodes = c->decode[c->num_batches];
	struct splitter s = { .in = in, .pages = pages, .first_prompt = whole->batch - whole->num_prompts };

	if (c->row[c->num_batches] != whole->num_rows)
		return REFUSE("cuts: end at row %d of %d", c->row[c->num_batches], whole->num_rows);
	*pass = (struct cairn_nano_pass){ .whole = *whole, .num_batches = c->num_batches };
	for (int32_t i = 0; i < c->num_batches; i++) {
		pass->first_row[i] = c->row[i];
		s.b = &pass->batch[i];
		s.to = &host[i];
		*s.b = (struct cairn_batch){
			.ids = whole->ids + c->row[i], .positions = whole->positions + c->row[i],
			.qo_indptr = dev[i].qo_indptr, .kv_indptr = dev[i].kv_indptr,
			.kv_indices = whole->kv_indices, .kv_last_page_len = dev[i].last_page_len,
			.num_rows = c->row[i + 1] - c->row[i], .max_kv_len = whole->max_kv_len,
		};
		host[i].qo_indptr[0] = 0;
		host[i].kv_indptr[0] = s.num_pages;
		add_range(&s, whole->batch, c->decode[i], c->decode[i + 1]);
		add_range(&s, whole->batch, num_decodes + c->row[i] - c->decode[i],
			  num_decodes + c->row[i + 1] - c->decode[i + 1]);
		if (whole->max_qo_len == 1 && !whole->num_prompts)
			pad(&s);
		if (!s.b->batch)
			return REFUSE("cuts: nano-batch %d has no request", i);
	}
	pass->num_pages = s.num_pages;
	return 0;
}
