// SPDX-License-Identifier: Apache-2.0
/*
 * kv_pool - page ownership
 *
 * A page is in one of two states, and moves between them in resize() alone:
 *
 *                resize up: pop
 *      FREE  ----------------------->  OWNED by sequence s, at place i of its table
 *      (on the stack)  <-------------  (owner[page] == s, seqs[s].pages[i] == page)
 *                resize down, close: push
 *
 * Invariants, after every call (cairn_kv_pool_verify() checks each):
 *   1. Every page is on the stack exactly once, or in exactly one table exactly once.
 *   2. owner[] agrees: NOBODY for pages on the stack, the sequence for the others.
 *   3. A sequence of len tokens has ceil(len / page_size) pages, never more than promised to it.
 *   4. The promises of all open sequences together fit in the pool. With 3: a resize within its
 *      promise always finds a free page.
 *   5. Closed handles are on the handle stack exactly once and own nothing.
 *
 * The stacks are last in, first out: a page given back is the next to be handed out, while it is still
 * in cache, and page numbers get shuffled early, so that nothing comes to rely on their order.
 */
#include "kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "../primitives/error.h"

#define NOBODY	(-1)

struct seq {
	int open;
	int64_t len;
	int32_t promised;		/* room in pages[] */
	int32_t num_pages;
	int32_t *pages;
};

struct cairn_kv_pool {
	int32_t num_pages, page_size, max_seqs;
	int32_t promised;		/* sum over open sequences */
	int32_t num_free;
	int32_t *free_pages;		/* stack */
	int32_t *owner;			/* of each page */
	int32_t num_handles;
	int32_t *handles;		/* stack of closed ones */
	struct seq *seqs;
};

static int64_t pages_for(const struct cairn_kv_pool *pool, int64_t len)
{
	return len / pool->page_size + (len % pool->page_size != 0);
}

static struct seq *lookup(const struct cairn_kv_pool *pool, int32_t seq)
{
	return seq >= 0 && seq < pool->max_seqs && pool->seqs[seq].open ? &pool->seqs[seq] : NULL;
}

int cairn_kv_pool_create(struct cairn_kv_pool **out, int32_t num_pages, int32_t page_size,
			 int32_t max_seqs)
{
	struct cairn_kv_pool *pool;

	if (!out || num_pages < 1 || page_size < 1 || max_seqs < 1)
		return cairn_error(EINVAL,
				   "kv_pool: %d pages of %d tokens for %d sequences: each must be >= 1",
				   num_pages, page_size, max_seqs);
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		goto out_nomem;
	pool->num_pages = num_pages;
	pool->page_size = page_size;
	pool->max_seqs = max_seqs;
	pool->free_pages = malloc((size_t)num_pages * sizeof(*pool->free_pages));
	pool->owner = malloc((size_t)num_pages * sizeof(*pool->owner));
	pool->handles = malloc((size_t)max_seqs * sizeof(*pool->handles));
	pool->seqs = calloc((size_t)max_seqs, sizeof(*pool->seqs));
	if (!pool->free_pages || !pool->owner || !pool->handles || !pool->seqs)
		goto out_nomem;
	/* lowest on top */
	for (int32_t i = num_pages - 1; i >= 0; i--) {
		pool->free_pages[pool->num_free++] = i;
		pool->owner[i] = NOBODY;
	}
	for (int32_t i = max_seqs - 1; i >= 0; i--)
		pool->handles[pool->num_handles++] = i;
	*out = pool;
	return 0;

out_nomem:
	cairn_kv_pool_destroy(pool);
	return cairn_error(ENOMEM, "kv_pool: no memory for %d pages", num_pages);
}

void cairn_kv_pool_destroy(struct cairn_kv_pool *pool)
{
	if (!pool)
		return;
	for (int32_t i = 0; pool->seqs && i < pool->max_seqs; i++)
		free(pool->seqs[i].pages);
	free(pool->seqs);
	free(pool->handles);
	free(pool->owner);
	free(pool->free_pages);
	free(pool);
}

int cairn_kv_pool_open(struct cairn_kv_pool *pool, int64_t max_len, int32_t *out)
{
	int64_t want;
	int32_t *pages, handle;
	struct seq *s;

	if (max_len < 1)
		return cairn_error(EINVAL, "kv_pool: max_len: is %lld, must be >= 1", (long long)max_len);
	want = pages_for(pool, max_len);
	if (want > pool->num_pages)
		return cairn_error(EINVAL, "kv_pool: max_len: %lld tokens need %lld pages, the pool has %d",
				   (long long)max_len, (long long)want, pool->num_pages);
	if (want > pool->num_pages - pool->promised)
		return cairn_error(ENOSPC, "kv_pool: %lld pages wanted, %d not promised yet",
				   (long long)want, pool->num_pages - pool->promised);
	if (pool->num_handles == 0)
		return cairn_error(ENOSPC, "kv_pool: all %d sequences are open", pool->max_seqs);
	pages = malloc((size_t)want * sizeof(*pages));
	if (!pages)
		return cairn_error(ENOMEM, "kv_pool: no memory for a table of %lld pages", (long long)want);

	handle = pool->handles[--pool->num_handles];
	s = &pool->seqs[handle];
	s->open = 1;
	s->promised = (int32_t)want;
	s->pages = pages;
	pool->promised += s->promised;
	*out = handle;
	return 0;
}

int cairn_kv_pool_resize(struct cairn_kv_pool *pool, int32_t seq, int64_t len)
{
	struct seq *s = lookup(pool, seq);
	int64_t want;

	if (!s)
		return cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
	if (len < 0 || pages_for(pool, len) > s->promised)
		return cairn_error(EINVAL, "kv_pool: sequence %d: length %lld, at most %lld were promised",
				   seq, (long long)len, (long long)s->promised * pool->page_size);
	want = pages_for(pool, len);
	while (s->num_pages < want) {
		int32_t page = pool->free_pages[--pool->num_free];	/* invariant 4: there is one */

		pool->owner[page] = seq;
		s->pages[s->num_pages++] = page;
	}
	while (s->num_pages > want) {
		int32_t page = s->pages[--s->num_pages];

		pool->owner[page] = NOBODY;
		pool->free_pages[pool->num_free++] = page;
	}
	s->len = len;
	return 0;
}

int cairn_kv_pool_close(struct cairn_kv_pool *pool, int32_t seq)
{
	struct seq *s = lookup(pool, seq);

	if (!s)
		return cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
	CAIRN_TRY(cairn_kv_pool_resize(pool, seq, 0));
	pool->promised -= s->promised;
	pool->handles[pool->num_handles++] = seq;
	free(s->pages);
	memset(s, 0, sizeof(*s));
	return 0;
}

const int32_t *cairn_kv_pool_pages(const struct cairn_kv_pool *pool, int32_t seq, int32_t *num_pages)
{
	const struct seq *s = lookup(pool, seq);

	if (!s)
		return NULL;
	*num_pages = s->num_pages;
	return s->pages;
}

int64_t cairn_kv_pool_len(const struct cairn_kv_pool *pool, int32_t seq)
{
	const struct seq *s = lookup(pool, seq);

	return s ? s->len : cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
}

void cairn_kv_pool_stats(const struct cairn_kv_pool *pool, struct cairn_kv_pool_stats *stats)
{
	*stats = (struct cairn_kv_pool_stats){
		.num_pages = pool->num_pages,
		.page_size = pool->page_size,
		.num_seqs = pool->max_seqs - pool->num_handles,
		.free_pages = pool->num_free,
		.promised_pages = pool->promised,
	};
	for (int32_t i = 0; i < pool->max_seqs; i++)
		stats->num_tokens += pool->seqs[i].len;
}

int cairn_kv_pool_verify(const struct cairn_kv_pool *pool)
{
	int64_t promised = 0;
	int32_t owned = 0;
	int ret = 0;
	/* how often each page, then each handle, was met */
	unsigned char *met = calloc((size_t)pool->num_pages + (size_t)pool->max_seqs, 1);
	unsigned char *met_handle = met + pool->num_pages;

	if (!met)
		return cairn_error(ENOMEM, "kv_pool: no memory to verify");
	for (int32_t i = 0; i < pool->num_free; i++) {
		int32_t page = pool->free_pages[i];

		if (page < 0 || page >= pool->num_pages || met[page]++ || pool->owner[page] != NOBODY) {
			ret = cairn_error(EIO, "kv_pool: invariants 1, 2: free page %d at %d", page, i);
			goto out;
		}
	}
	for (int32_t i = 0; i < pool->num_handles; i++) {
		int32_t h = pool->handles[i];

		if (h < 0 || h >= pool->max_seqs || met_handle[h]++ || pool->seqs[h].open) {
			ret = cairn_error(EIO, "kv_pool: invariant 5: handle %d at %d", h, i);
			goto out;
		}
	}
	for (int32_t h = 0; h < pool->max_seqs; h++) {
		const struct seq *s = &pool->seqs[h];

		if (s->open == met_handle[h] ||
		    (!s->open && (s->len || s->num_pages || s->promised || s->pages))) {
			ret = cairn_error(EIO, "kv_pool: invariant 5: sequence %d", h);
			goto out;
		}
		if (s->num_pages != pages_for(pool, s->len) || s->num_pages > s->promised) {
			ret = cairn_error(EIO, "kv_pool: invariant 3: sequence %d: %d pages for %lld tokens",
					  h, s->num_pages, (long long)s->len);
			goto out;
		}
		for (int32_t i = 0; i < s->num_pages; i++) {
			int32_t page = s->pages[i];

			if (page < 0 || page >= pool->num_pages || met[page]++ || pool->owner[page] != h) {
				ret = cairn_error(EIO, "kv_pool: invariants 1, 2: sequence %d, page %d at %d",
						  h, page, i);
				goto out;
			}
		}
		owned += s->num_pages;
		promised += s->promised;
	}
	if (owned + pool->num_free != pool->num_pages)
		ret = cairn_error(EIO, "kv_pool: invariant 1: %d owned, %d free, %d in all", owned,
				  pool->num_free, pool->num_pages);
	else if (promised != pool->promised || promised > pool->num_pages)
		ret = cairn_error(EIO, "kv_pool: invariant 4: %lld promised, %d noted, %d in all",
				  (long long)promised, pool->promised, pool->num_pages);
out:
	free(met);
	return ret;
}
