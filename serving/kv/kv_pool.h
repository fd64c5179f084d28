/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_pool - who refers to which page of the KV cache
 *
 * Bookkeeping on the host alone: the pool hands out page numbers 0 .. num_pages-1, the memory behind
 * them belongs to the caller (cairn_kv_store of forward.h, or a tier of host memory or disk). A sequence is a
 * length and a table of pages. Tables may share pages: a fork shares all of its parent's, and a sequence may
 * begin with pages that others hold. A page is free again when nobody refers to it.
 *
 * Nobody writes into a page that somebody else refers to. A sequence that grows within a shared last page
 * gets a page of its own for it, and the caller is told which page to copy to which before it writes.
 *
 * Nothing is promised: growing fails with -ENOSPC when no page is free. Who may grow, and who gives way, is
 * the scheduler's to decide.
 *
 * Not thread-safe: one scheduler owns a pool.
 */
#ifndef CAIRN_KV_POOL_H
#define CAIRN_KV_POOL_H

#include <stdint.h>

struct cairn_kv_pool;

struct cairn_kv_copy {
	int32_t from, to;		/* pages; from == -1: nothing to copy */
};

struct cairn_kv_pool_stats {
	int32_t num_pages, page_size;
	int32_t num_seqs;
	int32_t free_pages;		/* nobody refers to them */
	int32_t table_pages;		/* different pages in tables; others that are not free are held */
	int64_t table_entries;		/* pages that the tables would take if nothing were shared */
	int64_t num_tokens; /* over all sequences: num_tokens / (table_entries * page_size) is the use */
};

/* -EINVAL: a size < 1; -ENOMEM. */
int cairn_kv_pool_create(struct cairn_kv_pool **out, int32_t num_pages, int32_t page_size,
			 int32_t max_seqs);
void cairn_kv_pool_destroy(struct cairn_kv_pool *pool);		/* NULL is legal */

/* Opens an empty sequence. *seq: its handle, 0 .. max_seqs-1. -ENOSPC: all handles are in use. */
int cairn_kv_pool_open(struct cairn_kv_pool *pool, int32_t *seq);

/*
 * Gives an empty sequence len tokens that lie in pages[0 .. ceil(len / page_size) - 1]: pages of other
 * tables, or held ones. -EINVAL: no such sequence, not empty, a page that is free.
 */
int cairn_kv_pool_adopt(struct cairn_kv_pool *pool, int32_t seq, const int32_t *pages, int64_t len);

/* Opens a sequence with the same tokens in the same pages. -EINVAL; -ENOSPC: all handles are in use. */
int cairn_kv_pool_fork(struct cairn_kv_pool *pool, int32_t seq, int32_t *child);

/*
 * Sets a sequence's length, taking pages or giving them back at its end. When it grows, its place len is
 * the first to be written. If that lies in a page that is shared, *copy says what to copy before; else
 * copy->from is -1. copy == NULL: the caller shares no pages (-EINVAL if one has to be copied after all).
 * -ENOSPC: not enough pages are free, nothing has changed; -EINVAL: no such sequence, len < 0.
 */
int cairn_kv_pool_resize(struct cairn_kv_pool *pool, int32_t seq, int64_t len, struct cairn_kv_copy *copy);

/* How many free pages that resize would take; num_pages + 1 if it is more than there are. */
int32_t cairn_kv_pool_cost(const struct cairn_kv_pool *pool, int32_t seq, int64_t len);

/* Gives everything back. */
int cairn_kv_pool_close(struct cairn_kv_pool *pool, int32_t seq);

/* A reference from outside of the tables: the prefix tree's. -EINVAL: a free page; one that is not held. */
int cairn_kv_pool_hold(struct cairn_kv_pool *pool, int32_t page);
int cairn_kv_pool_release(struct cairn_kv_pool *pool, int32_t page);

/* The pages of a sequence in order of its tokens, valid until the next call on it; NULL: no such sequence. */
const int32_t *cairn_kv_pool_pages(const struct cairn_kv_pool *pool, int32_t seq, int32_t *num_pages);
int64_t cairn_kv_pool_len(const struct cairn_kv_pool *pool, int32_t seq); /* -EINVAL: no such sequence */
int32_t cairn_kv_pool_refs(const struct cairn_kv_pool *pool, int32_t page); /* 0: free; -EINVAL: no page */
int32_t cairn_kv_pool_free_pages(const struct cairn_kv_pool *pool);

void cairn_kv_pool_stats(const struct cairn_kv_pool *pool, struct cairn_kv_pool_stats *stats);

/* Walks everything and verifies the invariants at the top of kv_pool.c: 0, or -EIO with the one that is
 * broken. */
int cairn_kv_pool_verify(const struct cairn_kv_pool *pool);

#endif
