// SPDX-License-Identifier: Apache-2.0
/*
 * journal - a second copy of all keys and values (journal.h)
 *
 * Pages: [num_layers, 2, num_pages, page_size, half a row], as kv_append has them. A record is the plan of a
 * pass and its rows, [num_layers, max_rows, row]. A row is K and V. Each lane has two records. With host
 * memory, a committed record waits for its copies, which are looked at when the next pass begins: by then
 * they have usually ended, and the thread need not call the table.
 */
#include "serving/remote/attention/journal_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"

/* ---- creation ---- */

/* With small pages of memory, most of the time of the first copies would go into faults. */
static int take_memory(const struct cairn_journal *j, char **to, size_t bytes)
{
	void *p;

	if (!journal_is_host(j)) {
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

/* The buffer of a pass, and what its stream and the journal's need. */
static int take_record(const struct cairn_journal *j, struct journal_record *r)
{
	const struct cairn_impl *impl = j->impl;
	void *p;

	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &r->event));
	if (journal_is_host(j))
		return take_memory(j, &r->rows, j->record_bytes);
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, j->record_bytes));
	r->rows = p;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, cairn_remote_pass_most(&j->limits, 0)));
	r->lists = p;
	CAIRN_TRY(CAIRN_TABLE(impl, host_alloc, &p, cairn_remote_pass_most(&j->limits, 0)));
	r->lists_host = p;
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &r->written));
	return CAIRN_TABLE(impl, event_record, r->written, j->stream);
}

static void free_memory(const struct cairn_journal *j, char *p, size_t bytes)
{
	if (p && journal_is_host(j))
		munmap(p, bytes);
	else if (p)
		j->impl->host_free(p);
}

static void free_record(const struct cairn_journal *j, const struct journal_record *r)
{
	free(r->plan);
	if (r->rows && journal_is_host(j))
		munmap(r->rows, j->record_bytes);
	else if (r->rows)
		j->impl->mem_free(r->rows);
	if (r->lists)
		j->impl->mem_free(r->lists);
	if (r->lists_host)
		j->impl->host_free(r->lists_host);
	if (r->event)
		j->impl->event_destroy(r->event);
	if (r->written)
		j->impl->event_destroy(r->written);
}

int cairn_journal_create(struct cairn_journal **out, const struct cairn_model *m,
			 const struct cairn_remote_limits *limits, int64_t max_bytes)
{
	const struct cairn_model_config *c = &m->config;
	const size_t records = 2 * (size_t)(limits->lanes ? limits->lanes : 1);
	struct cairn_journal *j = calloc(1, sizeof(*j));
	size_t pages, record;
	double need;
	int ret = 0;

	if (!j)
		return cairn_error(ENOMEM, "journal: no memory");
	j->impl = m->impl;
	j->last_copying = &j->copying;
	j->limits = *limits;
	j->num_layers = c->num_hidden_layers;
	j->element = cairn_dtype_bytes(m->dtype);
	j->num_heads = c->num_key_value_heads;
	j->head_dim = c->head_dim;
	j->dtype = m->dtype;
	j->row = 2 * (size_t)j->num_heads * (size_t)j->head_dim * j->element;
	j->last = &j->full;
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->changed, NULL);
	pages = (size_t)j->num_layers * (size_t)limits->num_pages * (size_t)limits->page_size * j->row;
	record = (size_t)j->num_layers * (size_t)limits->max_rows * j->row;
	j->page_bytes = pages;
	j->record_bytes = record;
	need = (double)pages + (journal_is_host(j) ? (double)records * (double)record : 0);
	if (!j->impl->event_sync)
		ret = cairn_error(EOPNOTSUPP, "kv_journal: %s has no event_sync", j->impl->name);
	else if (!journal_is_host(j) && (!j->impl->kv_append || !j->impl->stream_wait))
		ret = cairn_error(EOPNOTSUPP, "kv_journal: %s has no %s", j->impl->name,
				  j->impl->kv_append ? "stream_wait" : "kv_append");
	else if (need > (double)max_bytes)
		ret = cairn_error(EINVAL, "kv_journal: %.2f GiB are not enough: %d pages and %zu passes of "
				  "%d rows take %.2f", (double)max_bytes / (1 << 30), limits->num_pages,
				  journal_is_host(j) ? records : 0, limits->max_rows, need / (1 << 30));
	if (!ret && !journal_is_host(j))
		ret = CAIRN_TABLE(j->impl, stream_create, &j->stream);
	if (!ret)
		ret = take_memory(j, &j->pages, pages);
	j->fill = calloc((size_t)limits->num_pages, sizeof(*j->fill));
	if (!ret && !j->fill)
		ret = cairn_error(ENOMEM, "kv_journal: no memory for %d pages", limits->num_pages);
	for (size_t i = 0; i < records && !ret; i++)
		ret = take_record(j, &j->records[i]);
	if (!ret && journal_is_host(j)) {
		j->has_thread = !pthread_create(&j->thread, NULL, journal_thread, j);
		ret = j->has_thread ? 0 : cairn_error(EIO, "kv_journal: no thread");
	}
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
	if (j->stream)
		j->impl->stream_sync(j->stream);
	for (int i = 0; i < JOURNAL_RECORDS; i++)
		free_record(j, &j->records[i]);
	if (j->stream)
		j->impl->stream_destroy(j->stream);
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
		struct journal_record *r = j->copying;

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

/* Waits until the record that the lane uses next is free: two passes of it may be under way. */
static int await_record(struct cairn_journal *j, struct journal_record *r)
{
	if (!journal_is_host(j))
		return CAIRN_TABLE(j->impl, event_sync, r->written);
	CAIRN_TRY(hand_over(j));
	pthread_mutex_lock(&j->lock);
	while (r->is_busy)
		pthread_cond_wait(&j->changed, &j->lock);
	pthread_mutex_unlock(&j->lock);
	return 0;
}

int cairn_journal_side(const struct cairn_journal *j, int32_t lane)
{
	return j->next[lane];
}

int cairn_journal_begin(struct cairn_journal *j, int32_t lane, const struct cairn_remote_pass *p)
{
	const size_t bytes = cairn_remote_pass_bytes(p);
	const int64_t begin = cairn_clock_ns();
	struct journal_record *r;

	cairn_journal_drop(j, lane);
	r = &j->records[2 * lane + j->next[lane]];
	CAIRN_TRY(await_record(j, r));
	j->next[lane] = !j->next[lane];
	j->lanes[lane] = r;
	r->stream = NULL;
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
	return CAIRN_TABLE(j->impl, mem_copy, to, from, bytes,
			   journal_is_host(j) ? CAIRN_COPY_TO_HOST : CAIRN_COPY_ON_DEVICE, stream);
}

int cairn_journal_rows(struct cairn_journal *j, int32_t lane, const struct cairn_attn_rows *rows,
		       void *stream)
{
	struct journal_record *r = j->lanes[lane];
	const size_t stride = (size_t)rows->kv_stride * j->element, half = j->row / 2;
	const size_t num = (size_t)rows->num_rows;
	const char *k = rows->k, *v = FAULT(JOURNAL_NO_V) ? k : rows->v;
	const int64_t begin = cairn_clock_ns();
	char *to = r->rows + (size_t)rows->layer * (size_t)j->limits.max_rows * j->row;

	if (rows->num_rows > j->limits.max_rows)
		return cairn_error(EINVAL, "kv_journal: num_rows is %d, at most %d", rows->num_rows,
				   j->limits.max_rows);
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
	j->stats.record_ns += cairn_clock_ns() - begin;
	return 0;
}

int cairn_journal_commit(struct cairn_journal *j, int32_t lane, void *stream)
{
	const int64_t begin = cairn_clock_ns();
	struct journal_record *r = j->lanes[lane];
	int ret = CAIRN_TABLE(j->impl, event_record, r->event, stream);

	j->lanes[lane] = NULL;
	j->stats.passes++;
	j->stats.bytes += (int64_t)((size_t)j->num_layers * (size_t)r->p.num_rows * j->row);
	if (!ret && !journal_is_host(j)) {
		ret = journal_write_on_device(j, r);
		j->stats.record_ns += cairn_clock_ns() - begin;
		return ret;
	}
	r->is_busy = 1;			/* the thread does not have it yet */
	r->next = NULL;
	*j->last_copying = r;
	j->last_copying = &r->next;
	return ret;
}

void cairn_journal_drop(struct cairn_journal *j, int32_t lane)
{
	struct journal_record *r = j->lanes[lane];

	if (!r)
		return;
	if (r->stream)			/* the next pass must not be mixed with late copies of this one */
		j->impl->stream_sync(r->stream);
	j->lanes[lane] = NULL;
	j->next[lane] = !j->next[lane];
}

int cairn_journal_drain(struct cairn_journal *j)
{
	if (!journal_is_host(j))
		return CAIRN_TABLE(j->impl, stream_sync, j->stream);
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

const char *cairn_journal_page(const struct cairn_journal *j, int32_t layer, int side, int32_t page)
{
	return journal_place(j, layer, side, page);
}

void cairn_journal_stats(struct cairn_journal *j, struct cairn_journal_stats *stats)
{
	*stats = j->stats;
	pthread_mutex_lock(&j->lock);
	stats->write_ns = j->write_ns;
	pthread_mutex_unlock(&j->lock);
}
