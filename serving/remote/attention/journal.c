// SPDX-License-Identifier: Apache-2.0
/*
 * journal - a second copy of all keys and values (journal.h)
 *
 * Pages: [num_layers, num_pages, page_size, row]. A record is the plan of a pass and its rows, [num_layers,
 * max_rows, row]. A row is K and V. Records go from the pass to the thread and back in two lists. A committed
 * record waits for its copies, which are looked at when the next pass begins: by then they
 * have usually ended, and the thread need not call the table.
 */
#include "serving/remote/attention/journal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
	void *event;			/* after its copies */
	void *stream;			/* of its copies; NULL: none yet */
};

struct cairn_journal {
	const struct cairn_impl *impl;
	struct cairn_remote_limits limits;
	int32_t num_layers;
	size_t row;			/* bytes of K and V of a row */
	size_t element;
	char *pages;
	size_t page_bytes, record_bytes;	/* of all pages; of the rows of a record */
	int32_t *fill;			/* [num_pages], rows */
	struct record records[NUM_RECORDS], *lanes[CAIRN_MAX_LANES];	/* lanes: being recorded */
	struct record *copying, **last_copying;	/* committed, their copies perhaps under way */
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
	return j->pages + ((size_t)layer * (size_t)j->limits.num_pages + (size_t)page) *
			  (size_t)j->limits.page_size * j->row;
}

static void copy_page(struct cairn_journal *j, int32_t from, int32_t to)
{
	for (int32_t layer = 0; layer < j->num_layers; layer++)
		memcpy(place(j, layer, to), place(j, layer, from), (size_t)j->limits.page_size * j->row);
	j->fill[to] = j->fill[from];
}

/* Moves the rows of one request to its pages, as many at a time as are of one page. */
static void write_request(struct cairn_journal *j, const struct record *r, int32_t b)
{
	const struct cairn_remote_pass *p = &r->p;
	const int32_t ps = j->limits.page_size, first = p->qo_indptr[b], num = p->qo_indptr[b + 1] - first;
	const int32_t *pages = p->kv_indices + p->kv_indptr[b];
	const int32_t len = (p->kv_indptr[b + 1] - p->kv_indptr[b] - 1) * ps + p->last_page_len[b];
	const size_t rows = (size_t)j->limits.max_rows;

	for (int32_t i = 0, n; i < num; i += n) {
		const int32_t at = len - num + i, slot = FAULT(JOURNAL_SHIFTED) ? (at + 1) % ps : at % ps;
		const int32_t page = pages[at / ps];

		n = num - i < ps - at % ps ? num - i : ps - at % ps;
		n = FAULT(JOURNAL_SHIFTED) ? 1 : n;
		for (int32_t layer = 0; layer < j->num_layers; layer++)
			memcpy(place(j, layer, page) + (size_t)slot * j->row,
			       r->rows + ((size_t)layer * rows + (size_t)(first + i)) * j->row,
			       (size_t)n * j->row);
		/* rows behind these are those of an earlier owner of the page */
		j->fill[page] = at % ps + (FAULT(JOURNAL_RUN_SHORT) ? 1 : n);
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

static int is_host(const struct cairn_journal *j)
{
	return !j->impl->host_alloc || (j->impl->flags & CAIRN_IMPL_HOST_MEM);
}

/* With small pages of memory, most of the time of the first copies would go into faults. */
static int take_memory(const struct cairn_journal *j, char **to, size_t bytes)
{
	void *p;

	if (!is_host(j)) {
		CAIRN_TRY(CAIRN_TABLE(j->impl, host_alloc, &p, bytes));
	} else {
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			 0);
		if (p == MAP_FAILED)
			return cairn_error(ENOMEM, "kv_journal: no memory for %zu bytes", bytes);
		madvise(p, bytes, MADV_HUGEPAGE);
	}
	*to = p;
	return 0;
}

static void free_memory(const struct cairn_journal *j, char *p, size_t bytes)
{
	if (p && is_host(j))
		munmap(p, bytes);
	else if (p)
		j->impl->host_free(p);
}

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
	j->impl = m->impl;
	j->last_copying = &j->copying;
	j->limits = *limits;
	j->num_layers = c->num_hidden_layers;
	j->element = cairn_dtype_bytes(m->dtype);
	j->row = 2 * (size_t)c->num_key_value_heads * (size_t)c->head_dim * j->element;
	j->last = &j->full;
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->changed, NULL);
	pages = (size_t)j->num_layers * (size_t)limits->num_pages * (size_t)limits->page_size * j->row;
	record = (size_t)j->num_layers * (size_t)limits->max_rows * j->row;
	j->page_bytes = pages;
	j->record_bytes = record;
	if (!j->impl->event_sync)
		ret = cairn_error(EOPNOTSUPP, "kv_journal: %s has no event_sync", j->impl->name);
	else if ((double)pages + (double)records * (double)record > (double)max_bytes)
		ret = cairn_error(EINVAL, "kv_journal: %.2f GiB are not enough: %d pages and %zu passes of "
				  "%d rows take %.2f", (double)max_bytes / (1 << 30), limits->num_pages,
				  records, limits->max_rows,
				  ((double)pages + (double)records * (double)record) / (1 << 30));
	if (!ret)
		ret = take_memory(j, &j->pages, pages);
	j->fill = calloc((size_t)limits->num_pages, sizeof(*j->fill));
	if (!ret && !j->fill)
		ret = cairn_error(ENOMEM, "kv_journal: no memory for %d pages", limits->num_pages);
	for (size_t i = 0; i < records && !ret; i++) {
		ret = take_memory(j, &j->records[i].rows, record);
		if (!ret)
			ret = CAIRN_TABLE(j->impl, event_create, &j->records[i].event);
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
		free_memory(j, j->records[i].rows, j->record_bytes);
		if (j->records[i].event)
			j->impl->event_destroy(j->records[i].event);
	}
	free_memory(j, j->pages, j->page_bytes);
	free(j->fill);
	pthread_cond_destroy(&j->changed);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

/* ---- passes ---- */

/* Gives the thread the committed records, whose copies it waits for. */
static int hand_over(struct cairn_journal *j)
{
	while (j->copying) {
		struct record *r = j->copying;

		if (!FAULT(JOURNAL_UNAWAITED))
			CAIRN_TRY(CAIRN_TABLE(j->impl, event_sync, r->event));
		j->copying = r->next;
		if (!j->copying)
			j->last_copying = &j->copying;
		pthread_mutex_lock(&j->lock);
		r->next = NULL;
		*j->last = r;
		j->last = &r->next;
		pthread_cond_broadcast(&j->changed);
		pthread_mutex_unlock(&j->lock);
	}
	return 0;
}

int cairn_journal_begin(struct cairn_journal *j, int32_t lane, const struct cairn_remote_pass *p)
{
	const size_t bytes = cairn_remote_pass_bytes(p);
	const int64_t begin = cairn_clock_ns();
	struct record *r;

	cairn_journal_drop(j, lane);
	CAIRN_TRY(hand_over(j));
	pthread_mutex_lock(&j->lock);
	while (!j->free)		/* the thread gives one back, as each lane holds one of its two */
		pthread_cond_wait(&j->changed, &j->lock);
	r = j->lanes[lane] = j->free;
	r->stream = NULL;
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

static int copy(struct cairn_journal *j, char *to, const void *from, size_t bytes, void *stream)
{
	return CAIRN_TABLE(j->impl, mem_copy, to, from, bytes, CAIRN_COPY_TO_HOST, stream);
}

int cairn_journal_rows(struct cairn_journal *j, int32_t lane, const struct cairn_attn_rows *rows,
		       void *stream)
{
	struct record *r = j->lanes[lane];
	const size_t stride = (size_t)rows->kv_stride * j->element, half = j->row / 2;
	const size_t num = (size_t)r->p.num_rows;
	const char *k = rows->k, *v = FAULT(JOURNAL_NO_V) ? k : rows->v;
	const int64_t begin = cairn_clock_ns();
	char *to = r->rows + (size_t)rows->layer * (size_t)j->limits.max_rows * j->row;

	r->stream = stream;
	if (v == k + half && stride == j->row)
		CAIRN_TRY(copy(j, to, k, num * j->row, stream));
	else if (v == k + half)
		for (size_t i = 0; i < num; i++)
			CAIRN_TRY(copy(j, to + i * j->row, k + i * stride, j->row, stream));
	else
		for (size_t i = 0; i < num; i++) {
			CAIRN_TRY(copy(j, to + i * j->row, k + i * stride, half, stream));
			CAIRN_TRY(copy(j, to + i * j->row + half, v + i * stride, half, stream));
		}
	j->stats.bytes += (int64_t)(num * j->row);
	j->stats.record_ns += cairn_clock_ns() - begin;
	return 0;
}

int cairn_journal_commit(struct cairn_journal *j, int32_t lane, void *stream)
{
	struct record *r = j->lanes[lane];

	j->lanes[lane] = NULL;
	j->stats.passes++;
	r->next = NULL;
	*j->last_copying = r;
	j->last_copying = &r->next;
	return CAIRN_TABLE(j->impl, event_record, r->event, stream);
}

void cairn_journal_drop(struct cairn_journal *j, int32_t lane)
{
	struct record *r = j->lanes[lane];

	if (!r)
		return;
	if (r->stream)			/* another lane's stream may write to the record next */
		j->impl->stream_sync(r->stream);
	j->lanes[lane] = NULL;
	pthread_mutex_lock(&j->lock);
	r->next = j->free;
	j->free = r;
	pthread_mutex_unlock(&j->lock);
}

int cairn_journal_drain(struct cairn_journal *j)
{
	CAIRN_TRY(hand_over(j));
	if (FAULT(JOURNAL_UNDRAINED))
		return 0;
	pthread_mutex_lock(&j->lock);
	while (j->full || j->is_writing)
		pthread_cond_wait(&j->changed, &j->lock);
	pthread_mutex_unlock(&j->lock);
	return 0;
}

int32_t cairn_journal_fill(const struct cairn_journal *j, int32_t page)
{
	return j->fill[page];
}

const char *cairn_journal_page(const struct cairn_journal *j, int32_t layer, int32_t page)
{
	return place(j, layer, page);
}

void cairn_journal_stats(struct cairn_journal *j, struct cairn_journal_stats *stats)
{
	*stats = j->stats;
	pthread_mutex_lock(&j->lock);
	stats->write_ns = j->write_ns;
	pthread_mutex_unlock(&j->lock);
}
