/* SPDX-License-Identifier: Apache-2.0 */
/* journal_impl - the state of a journal, shared by journal.c and journal_write.c */
#ifndef CAIRN_REMOTE_JOURNAL_IMPL_H
#define CAIRN_REMOTE_JOURNAL_IMPL_H

#include <pthread.h>

#include "serving/remote/attention/journal.h"
#include "serving/remote/control/control.h"
#include "serving/remote/remote_fault.h"

#define JOURNAL_RECORDS	(2 * CAIRN_MAX_LANES)

struct journal_record {
	struct journal_record *next;
	struct cairn_remote_pass p;	/* its arrays point into plan */
	int32_t *plan;
	size_t plan_bytes;
	char *rows;
	void *event;			/* after its copies */
	void *stream;			/* of its copies; NULL: none yet */
	int is_busy;			/* committed, and not in its pages yet */
	/* with a device: */
	char *lists, *lists_host;	/* qo_indptr, kv_indptr, last_page_len, kv_indices; pinned */
	void *written;			/* event: the rows are in their pages */
};

struct cairn_journal {
	const struct cairn_impl *impl;
	struct cairn_remote_limits limits;
	int32_t num_layers;
	size_t row;			/* bytes of K and V of a row */
	size_t element;
	int32_t num_heads, head_dim, dtype;
	void *stream;			/* with a device: writes rows to pages */
	char *pages;
	size_t page_bytes, record_bytes;	/* of all pages; of the rows of a record */
	int32_t *fill;			/* [num_pages], rows */
	struct journal_record records[JOURNAL_RECORDS];
	struct journal_record *lanes[CAIRN_MAX_LANES];	/* being recorded */
	int next[CAIRN_MAX_LANES];	/* which of its two records a lane uses next */
	struct journal_record *copying, **last_copying;	/* committed, their copies perhaps under way */
	struct cairn_journal_stats stats;	/* but write_ns */
	pthread_t thread;
	int has_thread;
	pthread_mutex_t lock;		/* protects what follows, and is_busy of records */
	pthread_cond_t changed;
	struct journal_record *full, **last;	/* last: where the next full one goes */
	int is_writing, stop;
	int64_t write_ns;
};

/* Returns whether rows are in host memory, so that a thread moves them. */
static inline int journal_is_host(const struct cairn_journal *j)
{
	return !j->impl->host_alloc || (j->impl->flags & CAIRN_IMPL_HOST_MEM);
}

/* journal_write.c: the thread, of a journal with host memory */
void *journal_thread(void *journal);
/* Has the journal's stream write a committed record to its pages, behind the copies of its pass. */
int journal_write_on_device(struct cairn_journal *j, struct journal_record *r);
char *journal_place(const struct cairn_journal *j, int32_t layer, int side, int32_t page);

#endif
