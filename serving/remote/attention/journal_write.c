// SPDX-License-Identifier: Apache-2.0
/*
 * journal_write - writes the rows of ended passes to the pages of a journal (journal.h)
 *
 * With host memory a thread does it, one record after the other. With a device, the journal's stream waits
 * for the copies of the pass and then appends the rows of each layer; pages are moved by the host, which
 * waits for that stream first.
 */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/journal_impl.h"

/* ---- pages ---- */

char *journal_place(const struct cairn_journal *j, int32_t layer, int side, int32_t page)
{
	return j->pages + ((2 * (size_t)layer + (size_t)side) * (size_t)j->limits.num_pages + (size_t)page) *
			  (size_t)j->limits.page_size * (j->row / 2);
}

static void move_pages(struct cairn_journal *j, const struct cairn_remote_pass *p)
{
	const size_t bytes = (size_t)j->limits.page_size * (j->row / 2);

	for (int32_t i = 0; i < p->num_moves && !FAULT(JOURNAL_NO_MOVES); i++) {
		const int32_t from = p->moves[i][0], to = p->moves[i][1];

		for (int32_t k = 0; k < 2 * j->num_layers; k++)
			memcpy(journal_place(j, k / 2, k % 2, to), journal_place(j, k / 2, k % 2, from),
			       bytes);
		j->fill[to] = j->fill[from];
	}
}

/* Notes the last row of each page that a request has new rows in. */
static void note_request(struct cairn_journal *j, const struct cairn_remote_pass *p, int32_t b)
{
	const int32_t ps = j->limits.page_size, num = p->qo_indptr[b + 1] - p->qo_indptr[b];
	const int32_t *pages = p->kv_indices + p->kv_indptr[b];
	const int32_t len = (p->kv_indptr[b + 1] - p->kv_indptr[b] - 1) * ps + p->last_page_len[b];

	/* rows behind these are those of an earlier owner of the page */
	for (int32_t at = len - num, end; at < len; at = end) {
		end = (at / ps + 1) * ps < len ? (at / ps + 1) * ps : len;
		j->fill[pages[at / ps]] = at % ps + (FAULT(JOURNAL_RUN_SHORT) ? 1 : end - at);
	}
}

/* ---- the thread ---- */

/* Moves the rows of one request to its pages. */
static void write_request(struct cairn_journal *j, const struct journal_record *r, int32_t b)
{
	const struct cairn_remote_pass *p = &r->p;
	const int32_t ps = j->limits.page_size, first = p->qo_indptr[b], num = p->qo_indptr[b + 1] - first;
	const int32_t *pages = p->kv_indices + p->kv_indptr[b];
	const int32_t len = (p->kv_indptr[b + 1] - p->kv_indptr[b] - 1) * ps + p->last_page_len[b];
	const size_t rows = (size_t)j->limits.max_rows, half = j->row / 2;

	for (int32_t layer = 0; layer < j->num_layers; layer++) {
		const char *from = r->rows + ((size_t)layer * rows + (size_t)first) * j->row;

		for (int32_t at = len - num; at < len; at++, from += j->row) {
			const size_t slot = (size_t)(FAULT(JOURNAL_SHIFTED) ? (at + 1) % ps : at % ps);

			memcpy(journal_place(j, layer, 0, pages[at / ps]) + slot * half, from, half);
			memcpy(journal_place(j, layer, 1, pages[at / ps]) + slot * half, from + half, half);
		}
	}
	note_request(j, p, b);
}

static void write_record(struct cairn_journal *j, const struct journal_record *r)
{
	move_pages(j, &r->p);
	for (int32_t b = 0; b < r->p.batch; b++)
		write_request(j, r, b);
}

void *journal_thread(void *arg)
{
	struct cairn_journal *j = arg;

	pthread_mutex_lock(&j->lock);
	for (;;) {
		struct journal_record *r = j->full;
		int64_t begin;

		if (!r && j->stop)
			break;
		if (!r) {
			pthread_cond_wait(&j->changed, &j->lock);
			continue;
		}
		j->full = r->next;
		if (!j->full)
			j->last = &j->full;
		j->is_writing = 1;
		pthread_mutex_unlock(&j->lock);
		begin = cairn_clock_ns();
		FAULT_NAP(FAULT(JOURNAL_UNDRAINED) ? 50 : 1);
		write_record(j, r);
		pthread_mutex_lock(&j->lock);
		j->write_ns += cairn_clock_ns() - begin;
		j->is_writing = 0;
		r->is_busy = 0;
		pthread_cond_broadcast(&j->changed);
	}
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

/* ---- with a device ---- */

/* Takes the next part of the lists, and returns where its copy will be. */
static const int32_t *list(const struct journal_record *r, size_t *at, const int32_t *from, int32_t num)
{
	const int32_t *to = (const int32_t *)(const void *)(r->lists + *at);

	memcpy(r->lists_host + *at, from, (size_t)num * sizeof(*from));
	*at += (size_t)num * sizeof(*from);
	return to;
}

/* Has the journal's stream write the rows of a record to their pages, behind the copies of its pass. */
static int append(struct cairn_journal *j, struct journal_record *r)
{
	const struct cairn_impl *impl = j->impl;
	const struct cairn_remote_pass *p = &r->p;
	size_t bytes = 0;
	struct cairn_kv_append_args args = {
		.size = sizeof(args), .qo_indptr = list(r, &bytes, p->qo_indptr, p->batch + 1),
		.kv = {
			.indptr = list(r, &bytes, p->kv_indptr, p->batch + 1),
			.last_page_len = list(r, &bytes, p->last_page_len, p->batch),
			.indices = list(r, &bytes, p->kv_indices, p->num_pages),
			.num_pages = j->limits.num_pages, .page_size = j->limits.page_size,
			.batch = p->batch, .max_len = j->limits.max_context,
		},
		.k_stride = (int64_t)(j->row / j->element), .v_stride = (int64_t)(j->row / j->element),
		.nnz_qo = p->num_rows, .num_kv_heads = j->num_heads, .head_dim = j->head_dim,
		.dtype = j->dtype,
	};

	if (!FAULT(JOURNAL_UNAWAITED))
		CAIRN_TRY(CAIRN_TABLE(impl, stream_wait, j->stream, r->event));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, r->lists, r->lists_host, bytes, CAIRN_COPY_TO_DEVICE,
			      j->stream));
	for (int32_t layer = 0; layer < j->num_layers; layer++) {
		const char *k = r->rows + (size_t)layer * (size_t)j->limits.max_rows * j->row;

		args.k = k;
		args.v = k + j->row / 2;
		args.kv.k_pages = journal_place(j, layer, 0, 0);
		args.kv.v_pages = journal_place(j, layer, 1, 0);
		CAIRN_TRY(CAIRN_TABLE(impl, kv_append, &args, j->stream));
	}
	return CAIRN_TABLE(impl, event_record, r->written, j->stream);
}

/* Pages are moved by the host, when all rows before are in their places. */
int journal_write_on_device(struct cairn_journal *j, struct journal_record *r)
{
	const int64_t begin = cairn_clock_ns();

	if (r->p.num_moves) {
		CAIRN_TRY(CAIRN_TABLE(j->impl, stream_sync, j->stream));
		move_pages(j, &r->p);
		j->write_ns += cairn_clock_ns() - begin;
	}
	for (int32_t b = 0; b < r->p.batch; b++)
		note_request(j, &r->p, b);
	return append(j, r);
}
