/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_pool - page tables and reference counts of the KV cache
 *
 * The pool is host bookkeeping only: it hands out page numbers 0 .. num_pages-1, and the memory behind them
 * belongs to the caller (cairn_kv_store of forward.h, or a tier of host memory or disk). A sequence is a
 * length and a page table. Tables may share pages: a fork shares all pages of its parent, and a sequence may
 * start with pages that others hold. A page without references is free.
 *
 * A page with more than one reference is never written (copy-on-write). A sequence that grows within a shared
 * last page gets a page of its own, and resize returns which page the caller must copy before it writes.
 *
 * Pages are not reserved: growing fails with -ENOSPC when no page is free. The scheduler decides which
 * sequence may grow and which is preempted.
 *
 * Not thread-safe: one scheduler owns a pool.
 */
#ifndef CAIRN_KV_POOL_H
#define CAIRN_KV_POOL_H

#include <stdint.h>

struct cairn_kv_pool;

struct cairn_kv_copy {
	int32_t from, to;		/* page numbers; from == -1: nothing to copy */
};

struct cairn_kv_pool_stats {
	int32_t num_pages, page_size;	/* as created */
	int32_t num_seqs;		/* open sequences */
	int32_t free_pages;		/* pages without references */
	int32_t table_pages;		/* different pages in tables; all others in use are held */
	int64_t table_entries;		/* pages the tables would need without sharing */
	int64_t num_tokens; /* over all sequences; utilisation: num_tokens / (table_entries * page_size) */
};

/* Errors: -EINVAL (a size is < 1), -ENOMEM. */
int cairn_kv_pool_create(struct cairn_kv_pool **out, int32_t num_pages, int32_t page_size,
			 int32_t max_seqs);
void cairn_kv_pool_destroy(struct cairn_kv_pool *pool);		/* NULL is legal */

/* Opens an empty sequence. *seq: its handle, 0 .. max_seqs-1. -ENOSPC: all handles are in use. */
int cairn_kv_pool_open(struct cairn_kv_pool *pool, int32_t *seq);

/*
 * Gives an empty sequence len tokens that are stored in pages[0 .. ceil(len / page_size) - 1], which are
 * pages of other tables or held pages. -EINVAL: no such sequence, not empty, len is < 0 or more than the pool
 * holds, or a page is free. -ENOMEM.
 */
int cairn_kv_pool_adopt(struct cairn_kv_pool *pool, int32_t seq, const int32_t *pages, int64_t len);

/* Opens a sequence with the same tokens in the same pages. -EINVAL: no such
 * sequence; -ENOSPC: all handles are in use; -ENOMEM. */
int cairn_kv_pool_fork(struct cairn_kv_pool *pool, int32_t seq, int32_t *child);

/*
 * Sets a sequence's length, taking pages at its end or freeing them. If it grows, the next token is written
 * at the old length. If that position is in a shared page, *copy says which page to copy before writing;
 * otherwise copy->from is -1. A caller that shares no pages may pass copy == NULL (-EINVAL if a copy is
 * needed after all). -ENOSPC: not enough free pages, nothing has changed. -EINVAL: no such sequence, or len <
 * 0. -ENOMEM.
 */
int cairn_kv_pool_resize(struct cairn_kv_pool *pool, int32_t seq, int64_t len, struct cairn_kv_copy *copy);

/* Returns how many free pages the resize would take; num_pages + 1 if that is more than the pool has. */
int32_t cairn_kv_pool_cost(const struct cairn_kv_pool *pool, int32_t seq, int64_t len);

/* Closes a sequence and drops its references. */
int cairn_kv_pool_close(struct cairn_kv_pool *pool, int32_t seq);

/*
 * Adds or drops a reference that belongs to no table, such as the prefix tree's. -EINVAL: hold: the page is
 * free; release: the page is not held.
 */
int cairn_kv_pool_hold(struct cairn_kv_pool *pool, int32_t page);
int cairn_kv_pool_release(struct cairn_kv_pool *pool, int32_t page);

/* Pages of a sequence in token order, valid until its next change; NULL: no such sequence. */
const int32_t *cairn_kv_pool_pages(const struct cairn_kv_pool *pool, int32_t seq, int32_t *num_pages);
int64_t cairn_kv_pool_len(const struct cairn_kv_pool *pool, int32_t seq); /* -EINVAL: no such sequence */
/* 0: free; -EINVAL: no such page */
int32_t cairn_kv_pool_refs(const struct cairn_kv_pool *pool, int32_t page);
int32_t cairn_kv_pool_free_pages(const struct cairn_kv_pool *pool);

void cairn_kv_pool_stats(const struct cairn_kv_pool *pool, struct cairn_kv_pool_stats *stats);

/* Checks the invariants at the top of kv_pool.c over the whole pool: 0, or -EIO naming the broken one. */
int cairn_kv_pool_verify(const struct cairn_kv_pool *pool);

#endif
