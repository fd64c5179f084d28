// SPDX-License-Identifier: Apache-2.0
/* lists - the lists of a pass, as one attention worker needs them (lists.h) */
#include "serving/remote/attention/lists.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/remote_fault.h"

int cairn_lists_create(struct cairn_lists *l, const struct cairn_control_assign *a)
{
	const size_t ps = (size_t)a->page_size, rows = (size_t)a->max_rows;
	const size_t pages = ((size_t)a->max_context + ps - 1) / ps;
	const size_t lists = a->kv_lora_rank ? rows : (size_t)a->max_batch;
	const size_t slots = (size_t)cairn_stripe_pages(a->num_pages, a->stripe, a->stripes) * ps;
	int32_t *at;

	*l = (struct cairn_lists){ .a = *a };
	/* a page of a request has new rows if one of its rows is new: at most one page for each row */
	l->room = calloc(3 * lists + 2 + lists * pages + rows + slots + 4 * rows + 2, sizeof(*l->room));
	if (!l->room)
		return cairn_error(ENOMEM, "no memory for the lists of %d requests", a->max_batch);
	at = l->room;
	l->qo_indptr = at;
	l->indptr = l->qo_indptr + lists + 1;
	l->last_page_len = l->indptr + lists + 1;
	l->indices = l->last_page_len + lists;
	l->positions = l->indices + lists * pages;
	l->key_pos = l->positions + rows;
	l->new_qo_indptr = l->key_pos + slots;
	l->new_indptr = l->new_qo_indptr + rows + 1;
	l->new_indices = l->new_indptr + rows + 1;
	l->new_last_page_len = l->new_indices + rows;
	return 0;
}

void cairn_lists_free(struct cairn_lists *l)
{
	free(l->room);
	l->room = NULL;
}

static int is_mine(const struct cairn_lists *l, int32_t page)
{
	return page % l->a.stripes == l->a.stripe;
}

/* Adds a list of the worker's pages among those that hold the first `before` keys of a request. */
static void add_past(struct cairn_lists *l, int32_t rows, int32_t before, const int32_t *pages)
{
	const int32_t ps = l->a.page_size, i = l->num_lists++, num = (before + ps - 1) / ps;

	l->qo_indptr[i + 1] = l->qo_indptr[i] + rows;
	l->indptr[i + 1] = l->indptr[i];
	l->last_page_len[i] = 0;
	if (l->a.stripes == 1 && num) {		/* all are: thousands in a pass, which waits for its lists */
		memcpy(l->indices + l->indptr[i], pages, (size_t)num * sizeof(*pages));
		l->indptr[i + 1] += num;
		l->last_page_len[i] = FAULT(LAST_PAGE_FULL) ? ps : before - (num - 1) * ps;
		return;
	}
	for (int32_t k = 0; k * ps < before; k++) {
		const int32_t left = before - k * ps;

		if (!is_mine(l, pages[k]))
			continue;
		l->indices[l->indptr[i + 1]++] = pages[k] / l->a.stripes;
		l->last_page_len[i] = left < ps && !FAULT(LAST_PAGE_FULL) ? left : ps;
	}
}

/* Adds the worker's pages that get new rows: keys [before, len) of a request. */
static void add_new(struct cairn_lists *l, int32_t *num, int32_t before, int32_t len, const int32_t *pages)
{
	const int32_t ps = l->a.page_size;

	for (int32_t k = before / ps; k * ps < len; k++) {
		const int32_t first = k * ps < before ? before : k * ps;
		const int32_t end = (k + 1) * ps < len ? (k + 1) * ps : len;

		if (!is_mine(l, pages[k]))
			continue;
		l->new_indices[*num] = pages[k] / l->a.stripes;
		l->new_last_page_len[*num] = end - k * ps;
		l->new_qo_indptr[*num + 1] = l->new_qo_indptr[*num] + end - first;
		l->new_indptr[*num + 1] = *num + 1;
		++*num;
	}
}

static void add_request(struct cairn_lists *l, const struct cairn_remote_pass *p, int32_t b, int32_t *num)
{
	const int32_t *pages = p->kv_indices + p->kv_indptr[b], ps = l->a.page_size;
	const int32_t rows = p->qo_indptr[b + 1] - p->qo_indptr[b];
	const int32_t len = (p->kv_indptr[b + 1] - p->kv_indptr[b] - 1) * ps + p->last_page_len[b];
	const int32_t before = len - rows + FAULT(OWN_KEYS_REMOTE);

	for (int32_t i = 0; i < rows; i++)
		l->positions[p->qo_indptr[b] + i] = len - rows + i;
	for (int32_t i = 0; l->a.kv_lora_rank && i < rows; i++)
		add_past(l, 1, before, pages);
	if (!l->a.kv_lora_rank)
		add_past(l, rows, before, pages);
	if (l->a.stripes == 1)
		return;
	add_new(l, num, len - rows, len, pages);
	for (int32_t k = 0; k * ps < before; k++)
		for (int32_t i = 0; is_mine(l, pages[k]) && i < ps; i++)
			l->key_pos[pages[k] / l->a.stripes * ps + i] = k * ps + i;
}

void cairn_lists_make(struct cairn_lists *l, const struct cairn_remote_pass *p, struct cairn_batch *b,
		      struct cairn_attn_past *past)
{
	const int32_t stripes = l->a.stripes, ps = l->a.page_size;
	int32_t num = 0;

	*b = (struct cairn_batch){
		.positions = l->positions, .qo_indptr = p->qo_indptr, .kv_indptr = p->kv_indptr,
		.kv_indices = p->kv_indices, .kv_last_page_len = p->last_page_len, .num_rows = p->num_rows,
		.batch = p->batch,
	};
	l->num_lists = 0;
	for (int32_t i = 0; i < p->batch; i++) {
		const int32_t rows = p->qo_indptr[i + 1] - p->qo_indptr[i];
		const int32_t len = (p->kv_indptr[i + 1] - p->kv_indptr[i] - 1) * ps + p->last_page_len[i];

		add_request(l, p, i, &num);
		b->max_qo_len = rows > b->max_qo_len ? rows : b->max_qo_len;
		b->max_kv_len = len > b->max_kv_len ? len : b->max_kv_len;
	}
	b->max_kv_len += FAULT(LAST_PAGE_FULL) * ps;
	l->num_new = stripes == 1 ? p->num_rows : l->new_qo_indptr[num];
	if (stripes > 1) {
		b->qo_indptr = l->new_qo_indptr;
		b->kv_indptr = l->new_indptr;
		b->kv_indices = l->new_indices;
		b->kv_last_page_len = l->new_last_page_len;
		b->batch = num;
	}
	*past = (struct cairn_attn_past){
		l->qo_indptr, l->indptr, l->indices, l->last_page_len,
		stripes > 1 && !FAULT(POSITIONS_OF_LIST) ? l->key_pos : NULL, l->num_lists,
	};
}

void cairn_lists_row_pages(const struct cairn_remote_pass *p, int32_t page_size, int32_t *pages)
{
	for (int32_t b = 0; b < p->batch; b++) {
		const int32_t rows = p->qo_indptr[b + 1] - p->qo_indptr[b], first = p->kv_indptr[b];
		const int32_t len = (p->kv_indptr[b + 1] - first - 1) * page_size + p->last_page_len[b];

		for (int32_t i = 0; i < rows; i++)
			pages[p->qo_indptr[b] + i] = p->kv_indices[first + (len - rows + i) / page_size];
	}
}
