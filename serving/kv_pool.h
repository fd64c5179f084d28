/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_pool - who owns which page of the KV cache
 *
 * Bookkeeping on the host alone: the pool hands out page numbers 0 .. num_pages-1, the memory behind
 * them belongs to the caller (cairn_kv_store of forward.h). A sequence is opened with the most tokens it may
 * ever hold; that many pages are promised to it, so that growing it can never fail half way through a
 * generation. Pages themselves are taken one by one as the sequence grows.
 *
 * Not thread-safe: one scheduler owns a pool.
 */
#ifndef CAIRN_KV_POOL_H
#define CAIRN_KV_POOL_H

#include <stdint.h>

struct cairn_kv_pool;

struct cairn_kv_pool_stats {
	int32_t num_pages, page_size;
	int32_t num_seqs;
	int32_t free_pages;		/* owned by nobody */
	int32_t promised_pages;		/* owned, or promised to an open sequence */
	int64_t num_tokens; /* over all sequences: num_tokens / (owned pages * page_size) is the use */
};

/* -EINVAL: a size < 1; -ENOMEM. */
int cairn_kv_pool_create(struct cairn_kv_pool **out, int32_t num_pages, int32_t page_size,
			 int32_t max_seqs);
void cairn_kv_pool_destroy(struct cairn_kv_pool *pool);		/* NULL is legal */

/*
 * Opens an empty sequence of at most max_len tokens. *seq: its handle, 0 .. max_seqs-1.
 * -ENOSPC: not now, sequences must be closed first; -EINVAL: max_len < 1, or more than the whole pool.
 */
int cairn_kv_pool_open(struct cairn_kv_pool *pool, int64_t max_len, int32_t *seq);

/* Sets a sequence's length, taking or giving back pages at its end. -EINVAL: no such sequence, len beyond
 * max_len. */
int cairn_kv_pool_resize(struct cairn_kv_pool *pool, int32_t seq, int64_t len);

/* Gives everything back. */
int cairn_kv_pool_close(struct cairn_kv_pool *pool, int32_t seq);

/* The pages of a sequence in order of its tokens, valid until the next call on it; NULL: no such sequence. */
const int32_t *cairn_kv_pool_pages(const struct cairn_kv_pool *pool, int32_t seq, int32_t *num_pages);
int64_t cairn_kv_pool_len(const struct cairn_kv_pool *pool, int32_t seq); /* -EINVAL: no such sequence */

void cairn_kv_pool_stats(const struct cairn_kv_pool *pool, struct cairn_kv_pool_stats *stats);

/* Walks everything and verifies the invariants at the top of kv_pool.c: 0, or -EIO with the one that is
 * broken. */
int cairn_kv_pool_verify(const struct cairn_kv_pool *pool);

#endif
