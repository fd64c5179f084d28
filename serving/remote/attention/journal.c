// SPDX-License-Identifier: Apache-2.0
/*
 * journal - a second copy of all keys and values (journal.h)
 *
 * Pages: [num_layers, num_pages, 2, page_size, row], K before V. A record is the plan of a pass and its rows,
 * [num_layers, 2, max_rows, row]. Records go from the pass to the thread and back in two lists.
 */
#include "serving/remote/attention/journal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/control/control.h"
#include "serving/remote/remote_fault.h"

#define NUM_RECORDS	(2 * CAIRN_MAX_LANES)

struct record {
	struct record *next;
	struct cairn_remote_pass p;	/* its arrays point into plan */
	int32_t *plan;
	size_t plan_bytes;
	char *rows;
};

struct cairn_journal {
	struct cairn_remote_limits limits;
	int32_t num_layers;
	size_t row;			/* bytes of the K or the V of a row */
	size_t element;
	char *pages;
	int32_t *fill;			/* [num_pages], rows */
	struct record records[NUM_RECORDS], *lanes[CAIRN_MAX_LANES];	/* lanes: being recorded */
	struct cairn_journal_stats stats;	/* but write_ns */
	pthread_t thread;
	int has_thread;
	pthread_mutex_t lock;		/* protects what follows */
	pthread_cond_t changed;
	struct record *free, *full, **last;	/* last: where the next full one goes */
	int is_writing, stop;
	int64_t write_ns;
};

/* ---- the thread ---- */

static char *place(const struct cairn_journal *j, int32_t layer, int32_t page)
{
	const size_t page_bytes = 2 * (size_t)j->limits.page_size * j->row;

	return j->pages + ((size_t)layer * (size_t)j->limits.num_pages + (size_t)page) * page_bytes;
}

static void copy_page(struct cairn_journal *j, int32_t from, int32_t to)
{
	for (int32_t layer = 0; layer < j->num_layers; layer++)
		memcpy(place(j, layer, to), place(j, layer, from),
		       2 * (size_t)j->limits.page_size * j->row);
	j->fill[to] = j->fill[from];
}

/* Moves the rows of one request to its pages. */
static void write_request(struct cairn_journal *j, const struct record *r, int32_t b)
{
	const struct cairn_remote_pass *p = &r->p;
	const int32_t ps = j->limits.page_size, first = p->qo_indptr[b], num = p->qo_indptr[b + 1] - first;
	const int32_t *pages = p->kv_indices + p->kv_indptr[b];
	const int32_t len = (p->kv_indptr[b + 1] - p->kv_indptr[b] - 1) * ps + p->last_page_len[b];
	const size_t rows = (size_t)j->limits.max_rows;

	for (int32_t i = 0; i < num; i++) {
		const int32_t at = len - num + i, slot = FAULT(JOURNAL_SHIFTED) ? (at + 1) % ps : at % ps;
		const int32_t page = pages[at / ps];

		for (int32_t layer = 0; layer < j->num_layers; layer++) {
			const size_t row = 2 * (size_t)layer * rows + (size_t)(first + i);
			const char *from = r->rows + row * j->row;
			char *to = place(j, layer, page) + (size_t)slot * j->row;

			memcpy(to, from, j->row);
			memcpy(to + (size_t)ps * j->row, from + rows * j->row, j->row);
		}
		j->fill[page] = at % ps + 1;	/* rows behind it are those of an earlier owner */
	}
}

static void write_record(struct cairn_journal *j, const struct record *r)
{
	for (int32_t i = 0; i < r->p.num_moves && !FAULT(JOURNAL_NO_MOVES); i++)
		copy_page(j, r->p.moves[i][0], r->p.moves[i][1]);
	for (int32_t b = 0; b < r->p.batch; b++)
		write_request(j, r, b);
}

static void *run(void *arg)
{
	struct cairn_journal *j = arg;

	pthread_mutex_lock(&j->lock);
	for (;;) {
		struct record *r = j->full;
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
		r->next = j->free;
		j->free = r;
		pthread_cond_broadcast(&j->changed);
	}
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

/* ---- creation ---- */

int cairn_journal_create(struct cairn_journal **out, const struct cairn_model *m,
			 const struct cairn_remote_limits *limits, int64_t max_bytes)
{
	const struct cairn_model_config *c = &m->config;
	const size_t records = 2 * (size_t)(limits->lanes ? limits->lanes : 1);
	struct cairn_journal *j = calloc(1, sizeof(*j));
	size_t pages, record;
	int ret = 0;

	if (!j)
		return cairn_error(ENOMEM, "journal: no memory");
	j->limits = *limits;
	j->num_layers = c->num_hidden_layers;
	j->element = cairn_dtype_bytes(m->dtype);
	j->row = (size_t)c->num_key_value_heads * (size_t)c->head_dim * j->element;
	j->last = &j->full;
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->changed, NULL);
	pages = 2 * (size_t)j->num_layers * (size_t)limits->num_pages * (size_t)limits->page_size * j->row;
	record = 2 * (size_t)j->num_layers * (size_t)limits->max_rows * j->row;
	if ((double)pages + (double)records * (double)record > (double)max_bytes)
		ret = cairn_error(EINVAL, "kv_journal: %.2f GiB are not enough: %d pages and %zu passes of "
				  "%d rows take %.2f", (double)max_bytes / (1 << 30), limits->num_pages,
				  records, limits->max_rows,
				  ((double)pages + (double)records * (double)record) / (1 << 30));
	j->pages = ret ? NULL : malloc(pages);
	j->fill = calloc((size_t)limits->num_pages, sizeof(*j->fill));
	if (!ret && (!j->pages || !j->fill))
		ret = cairn_error(ENOMEM, "kv_journal: no memory for %d pages", limits->num_pages);
	for (size_t i = 0; i < records && !ret; i++) {
		j->records[i].rows = malloc(record);
		if (!j->records[i].rows)
			ret = cairn_error(ENOMEM, "kv_journal: no memory for %d rows", limits->max_rows);
		j->records[i].next = j->free;
		j->free = &j->records[i];
	}
	if (!ret && pthread_create(&j->thread, NULL, run, j))
		ret = cairn_error(EIO, "kv_journal: no thread");
	j->has_thread = !ret;
	if (ret)
		cairn_journal_destroy(j);
	else
		*out = j;
	return ret;
}

void cairn_journal_destroy(struct cairn_journal *j)
{
	if (!j)
		return;
	pthread_mutex_lock(&j->lock);
	j->stop = 1;
	pthread_cond_broadcast(&j->changed);
	pthread_mutex_unlock(&j->lock);
	if (j->has_thread)
		pthread_join(j->thread, NULL);
	for (int i = 0; i < NUM_RECORDS; i++) {
		free(j->records[i].plan);
		free(j->records[i].rows);
	}
	free(j->pages);
	free(j->fill);
	pthread_cond_destroy(&j->changed);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

/* ---- passes ---- */

int cairn_journal_begin(struct cairn_journal *j, int32_t lane, const struct cairn_remote_pass *p)
{
	const size_t bytes = cairn_remote_pass_bytes(p);
	const int64_t begin = cairn_clock_ns();
	struct record *r;

	cairn_journal_drop(j, lane);
	pthread_mutex_lock(&j->lock);
	while (!j->free)		/* the thread gives one back, as each lane holds one of its two */
		pthread_cond_wait(&j->changed, &j->lock);
	r = j->lanes[lane] = j->free;
	j->free = r->next;
	pthread_mutex_unlock(&j->lock);
	j->stats.record_ns += cairn_clock_ns() - begin;
	if (bytes > r->plan_bytes) {
		free(r->plan);
		r->plan = malloc(2 * bytes);
		r->plan_bytes = r->plan ? 2 * bytes : 0;
	}
	if (!r->plan)
		return cairn_error(ENOMEM, "kv_journal: no memory for a plan");
	cairn_remote_pass_write(r->plan, p);
	return cairn_remote_pass_read(&r->p, r->plan, bytes, &j->limits);
}

void cairn_journal_rows(struct cairn_journal *j, int32_t lane, const struct cairn_attn_rows *rows)
{
	const struct record *r = j->lanes[lane];
	const size_t stride = (size_t)rows->kv_stride * j->element, most = (size_t)j->limits.max_rows;
	char *k = r->rows + 2 * (size_t)rows->layer * most * j->row, *v = k + most * j->row;
	const char *from = FAULT(JOURNAL_NO_V) ? rows->k : rows->v;
	const int64_t begin = cairn_clock_ns();

	for (size_t i = 0; i < (size_t)r->p.num_rows; i++) {
		memcpy(k + i * j->row, (const char *)rows->k + i * stride, j->row);
		memcpy(v + i * j->row, from + i * stride, j->row);
	}
	j->stats.bytes += 2 * (int64_t)((size_t)r->p.num_rows * j->row);
	j->stats.record_ns += cairn_clock_ns() - begin;
}

void cairn_journal_commit(struct cairn_journal *j, int32_t lane)
{
	struct record *r = j->lanes[lane];

	j->lanes[lane] = NULL;
	j->stats.passes++;
	pthread_mutex_lock(&j->lock);
	r->next = NULL;
	*j->last = r;
	j->last = &r->next;
	pthread_cond_broadcast(&j->changed);
	pthread_mutex_unlock(&j->lock);
}

void cairn_journal_drop(struct cairn_journal *j, int32_t lane)
{
	struct record *r = j->lanes[lane];

	if (!r)
		return;
	j->lanes[lane] = NULL;
	pthread_mutex_lock(&j->lock);
	r->next = j->free;
	j->free = r;
	pthread_mutex_unlock(&j->lock);
}

void cairn_journal_drain(struct cairn_journal *j)
{
	if (FAULT(JOURNAL_UNDRAINED))
		return;
	pthread_mutex_lock(&j->lock);
	while (j->full || j->is_writing)
		pthread_cond_wait(&j->changed, &j->lock);
	pthread_mutex_unlock(&j->lock);
}

int32_t cairn_journal_fill(const struct cairn_journal *j, int32_t page)
{
	return j->fill[page];
}

const char *cairn_journal_page(const struct cairn_journal *j, int32_t layer, int32_t page, size_t *v_offset)
{
	*v_offset = (size_t)j->limits.page_size * j->row;
	return place(j, layer, page);
}

void cairn_journal_stats(struct cairn_journal *j, struct cairn_journal_stats *stats)
{
	*stats = j->stats;
	pthread_mutex_lock(&j->lock);
	stats->write_ns = j->write_ns;
	pthread_mutex_unlock(&j->lock);
}
