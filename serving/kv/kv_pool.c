// SPDX-License-Identifier: Apache-2.0
/*
 * kv_pool - reference counts of KV pages
 *
 *              resize up: take                fork, adopt, hold: refs + 1
 *      FREE  ------------------>  IN USE     ---------------------------->  SHARED
 *      refs 0, on the stack       refs 1                                    refs > 1
 *            <------------------             <----------------------------
 *              refs - 1 by resize down, close, release, and by the copy of a shared last page
 *
 * Invariants after every call (cairn_kv_pool_verify() checks each):
 *   1. Every page is either on the stack exactly once with refs 0, or not on the stack with refs > 0.
 *   2. refs[page] is the number of table entries that name it, plus held[page].
 *   3. A sequence of len tokens has ceil(len / page_size) pages, no page twice.
 *   4. Closed handles are on the handle stack exactly once and have no pages.
 *   5. The totals in stats equal the sums over all page tables.
 *
 * The stacks are last in, first out: a freed page is the next to be allocated, while it is still in cache,
 * and page numbers get shuffled early, so that no code comes to rely on their order. The page table of a
 * closed sequence is kept for the next one, so that a pool in use allocates no memory.
 */
#include "serving/kv/kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/kv/kv_fault.h"

struct seq {
	int open;
	int64_t len;
	int32_t num_pages, room;	/* room: capacity of pages[] */
	int32_t *pages;
};

struct cairn_kv_pool {
	int32_t num_pages, page_size, max_seqs;
	int32_t num_free;
	int32_t *free_pages;		/* stack */
	int32_t *refs, *held;		/* [num_pages]: all references; those by hold */
	int32_t table_pages;		/* different pages in tables (refs > held) */
	int64_t table_entries, num_tokens;
	int32_t num_handles;
	int32_t *handles;		/* stack of closed handles */
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

static int in_use(const struct cairn_kv_pool *pool, int32_t page)
{
	return page >= 0 && page < pool->num_pages && pool->refs[page] > 0;
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
	pool->refs = calloc((size_t)num_pages, sizeof(*pool->refs));
	pool->held = calloc((size_t)num_pages, sizeof(*pool->held));
	pool->handles = malloc((size_t)max_seqs * sizeof(*pool->handles));
	pool->seqs = calloc((size_t)max_seqs, sizeof(*pool->seqs));
	if (!pool->free_pages || !pool->refs || !pool->held || !pool->handles || !pool->seqs)
		goto out_nomem;
	/* the lowest numbers on top */
	for (int32_t i = num_pages - 1; i >= 0; i--)
		pool->free_pages[pool->num_free++] = i;
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
	free(pool->held);
	free(pool->refs);
	free(pool->free_pages);
	free(pool);
}

static void drop_reference(struct cairn_kv_pool *pool, int32_t page)
{
	if (FAULT(REF_LEAK) && pool->refs[page] == 2)
		return;
	if (--pool->refs[page] == 0)
		pool->free_pages[pool->num_free++] = page;
}

/* Adds a table entry for a page. leave() removes one. */
static void enter(struct cairn_kv_pool *pool, int32_t page)
{
	pool->table_pages += pool->refs[page] == pool->held[page];
	pool->refs[page]++;
	pool->table_entries++;
}

static void leave(struct cairn_kv_pool *pool, int32_t page)
{
	pool->table_entries--;
	pool->table_pages -= pool->refs[page] - 1 == pool->held[page];
	drop_reference(pool, page);
}

static int32_t take(struct cairn_kv_pool *pool)
{
	int32_t page = pool->free_pages[--pool->num_free];

	enter(pool, page);
	return page;
}

/* Makes room for num_pages entries in the page table. */
static int make_room(struct seq *s, int64_t num_pages)
{
	int64_t room = s->room ? s->room : 8;
	int32_t *pages;

	if (num_pages <= s->room)
		return 0;
	while (room < num_pages)
		room *= 2;
	pages = realloc(s->pages, (size_t)room * sizeof(*pages));
	if (!pages)
		return cairn_error(ENOMEM, "kv_pool: no memory for a table of %lld pages", (long long)room);
	s->pages = pages;
	s->room = (int32_t)room;
	return 0;
}

int cairn_kv_pool_open(struct cairn_kv_pool *pool, int32_t *out)
{
	if (pool->num_handles == 0)
		return cairn_error(ENOSPC, "kv_pool: all %d sequences are open", pool->max_seqs);
	*out = pool->handles[--pool->num_handles];
	pool->seqs[*out].open = 1;
	return 0;
}

static void put_entries(struct cairn_kv_pool *pool, struct seq *s, const int32_t *pages, int64_t len)
{
	s->num_pages = (int32_t)pages_for(pool, len);
	s->len = len;
	pool->num_tokens += len;
	for (int32_t i = 0; i < s->num_pages; i++) {
		s->pages[i] = pages[i];
		enter(pool, pages[i]);
	}
}

int cairn_kv_pool_adopt(struct cairn_kv_pool *pool, int32_t seq, const int32_t *pages, int64_t len)
{
	struct seq *s = lookup(pool, seq);
	int64_t num_pages;

	if (!s || s->len)
		return cairn_error(EINVAL, "kv_pool: sequence %d is not open, or not empty", seq);
	if (len < 0 || (num_pages = pages_for(pool, len)) > pool->num_pages)
		return cairn_error(EINVAL, "kv_pool: %lld tokens cannot be adopted", (long long)len);
	for (int64_t i = 0; i < num_pages; i++) {
		if (!in_use(pool, pages[i]))
			return cairn_error(EINVAL, "kv_pool: page %d is free and cannot be adopted",
					   pages[i]);
	}
	CAIRN_TRY(make_room(s, num_pages));
	put_entries(pool, s, pages, len);
	return 0;
}

int cairn_kv_pool_fork(struct cairn_kv_pool *pool, int32_t seq, int32_t *child)
{
	struct seq *s = lookup(pool, seq), *c;

	if (!s)
		return cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
	if (pool->num_handles == 0)
		return cairn_error(ENOSPC, "kv_pool: all %d sequences are open", pool->max_seqs);
	c = &pool->seqs[pool->handles[pool->num_handles - 1]];
	CAIRN_TRY(make_room(c, s->num_pages));
	CAIRN_TRY(cairn_kv_pool_open(pool, child));
	put_entries(pool, c, s->pages, s->len);
	if (FAULT(FORK_UNCOUNTED) && c->num_pages)
		pool->refs[c->pages[c->num_pages - 1]]--;
	return 0;
}

/* Returns whether growing to len writes into a shared last page, which must be copied first. */
static int must_copy(const struct cairn_kv_pool *pool, const struct seq *s, int64_t len)
{
	return len > s->len && s->len % pool->page_size && pool->refs[s->pages[s->num_pages - 1]] > 1 &&
		!FAULT(COPY_MISSED);
}

int32_t cairn_kv_pool_cost(const struct cairn_kv_pool *pool, int32_t seq, int64_t len)
{
	const struct seq *s = lookup(pool, seq);
	int64_t more = s ? pages_for(pool, len) - s->num_pages : 0;

	if (more < 0)
		return 0;
	more += s && must_copy(pool, s, len);
	return more > pool->num_pages ? pool->num_pages + 1 : (int32_t)more;
}

int cairn_kv_pool_resize(struct cairn_kv_pool *pool, int32_t seq, int64_t len, struct cairn_kv_copy *copy)
{
	struct seq *s = lookup(pool, seq);
	struct cairn_kv_copy c = { -1, -1 };
	int64_t want;

	if (!s)
		return cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
	if (len < 0)
		return cairn_error(EINVAL, "kv_pool: sequence %d: length %lld", seq, (long long)len);
	want = pages_for(pool, len);
	if (want > s->num_pages)
		CAIRN_TRY(make_room(s, want > pool->num_pages ? pool->num_pages : want));
	if (must_copy(pool, s, len) && !copy)
		return cairn_error(EINVAL, "kv_pool: sequence %d: its last page is shared", seq);
	if (cairn_kv_pool_cost(pool, seq, len) > pool->num_free) {
		if (FAULT(GROWTH_HALF_DONE) && pool->num_free)
			s->pages[s->num_pages++] = take(pool);
		return cairn_error(ENOSPC, "kv_pool: %d pages wanted, %d are free",
				   cairn_kv_pool_cost(pool, seq, len), pool->num_free);
	}
	if (must_copy(pool, s, len)) {
		c.from = s->pages[s->num_pages - 1];
		c.to = take(pool);
		leave(pool, c.from);
		s->pages[s->num_pages - 1] = c.to;
		if (FAULT(COPY_TARGET))
			c.to = c.from;
	}
	while (s->num_pages < want)
		s->pages[s->num_pages++] = take(pool);
	while (s->num_pages > want)
		leave(pool, s->pages[--s->num_pages]);
	pool->num_tokens += len - s->len;
	s->len = len;
	if (copy)
		*copy = c;
	return 0;
}

int cairn_kv_pool_close(struct cairn_kv_pool *pool, int32_t seq)
{
	struct seq *s = lookup(pool, seq);

	if (!s)
		return cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
	CAIRN_TRY(cairn_kv_pool_resize(pool, seq, 0, NULL));
	pool->handles[pool->num_handles++] = seq;
	s->open = 0;
	return 0;
}

int cairn_kv_pool_hold(struct cairn_kv_pool *pool, int32_t page)
{
	if (!in_use(pool, page))
		return cairn_error(EINVAL, "kv_pool: page %d is free and cannot be held", page);
	pool->refs[page]++;
	pool->held[page]++;
	return 0;
}

int cairn_kv_pool_release(struct cairn_kv_pool *pool, int32_t page)
{
	if (!in_use(pool, page) || !pool->held[page])
		return cairn_error(EINVAL, "kv_pool: page %d is not held", page);
	pool->held[page]--;
	drop_reference(pool, page);
	return 0;
}

const int32_t *cairn_kv_pool_pages(const struct cairn_kv_pool *pool, int32_t seq, int32_t *num_pages)
{
	static const int32_t none[1];
	const struct seq *s = lookup(pool, seq);

	if (!s)
		return NULL;
	*num_pages = s->num_pages;
	return s->pages ? s->pages : none;
}

int64_t cairn_kv_pool_len(const struct cairn_kv_pool *pool, int32_t seq)
{
	const struct seq *s = lookup(pool, seq);

	return s ? s->len : cairn_error(EINVAL, "kv_pool: sequence %d is not open", seq);
}

int32_t cairn_kv_pool_refs(const struct cairn_kv_pool *pool, int32_t page)
{
	if (page < 0 || page >= pool->num_pages)
		return cairn_error(EINVAL, "kv_pool: there is no page %d", page);
	return pool->refs[page];
}

int32_t cairn_kv_pool_free_pages(const struct cairn_kv_pool *pool)
{
	return pool->num_free;
}

void cairn_kv_pool_stats(const struct cairn_kv_pool *pool, struct cairn_kv_pool_stats *stats)
{
	*stats = (struct cairn_kv_pool_stats){
		.num_pages = pool->num_pages,
		.page_size = pool->page_size,
		.num_seqs = pool->max_seqs - pool->num_handles,
		.free_pages = pool->num_free,
		.table_pages = pool->table_pages,
		.table_entries = pool->table_entries,
		.num_tokens = pool->num_tokens,
	};
}

/* seen: [num_pages], handle + 1 of the last table that named the page;
 * named: [num_pages], entries in all tables. */
static int verify_tables(const struct cairn_kv_pool *pool, int32_t *seen, int32_t *named)
{
	int64_t entries = 0, tokens = 0;
	int32_t different = 0;

	for (int32_t h = 0; h < pool->max_seqs; h++) {
		const struct seq *s = &pool->seqs[h];

		if (s->num_pages != pages_for(pool, s->len))
			return cairn_error(EIO, "kv_pool: invariant 3: sequence %d: %d pages for %lld tokens",
					   h, s->num_pages, (long long)s->len);
		if (!s->open && s->num_pages)
			return cairn_error(EIO, "kv_pool: invariant 4: sequence %d is closed and has pages",
					   h);
		for (int32_t i = 0; i < s->num_pages; i++) {
			int32_t page = s->pages[i];

			if (page < 0 || page >= pool->num_pages || seen[page] == h + 1)
				return cairn_error(EIO, "kv_pool: invariant 3: sequence %d, page %d at %d",
						   h, page, i);
			seen[page] = h + 1;
			different += !named[page]++;
		}
		entries += s->num_pages;
		tokens += s->len;
	}
	if (entries != pool->table_entries || tokens != pool->num_tokens || different != pool->table_pages)
		return cairn_error(EIO,
				   "kv_pool: invariant 5: %lld entries, %lld tokens, %d pages; stored %lld, "
				   "%lld, %d",
				   (long long)entries, (long long)tokens, different,
				   (long long)pool->table_entries, (long long)pool->num_tokens,
				   pool->table_pages);
	return 0;
}

static int verify_stacks(const struct cairn_kv_pool *pool, int32_t *on_stack, int32_t *handle_on_stack)
{
	for (int32_t i = 0; i < pool->num_free; i++) {
		int32_t page = pool->free_pages[i];

		if (page < 0 || page >= pool->num_pages || on_stack[page]++ || pool->refs[page])
			return cairn_error(EIO, "kv_pool: invariant 1: free page %d at %d", page, i);
	}
	for (int32_t i = 0; i < pool->num_handles; i++) {
		int32_t h = pool->handles[i];

		if (h < 0 || h >= pool->max_seqs || handle_on_stack[h]++ || pool->seqs[h].open)
			return cairn_error(EIO, "kv_pool: invariant 4: handle %d at %d", h, i);
	}
	for (int32_t h = 0; h < pool->max_seqs; h++) {
		if (pool->seqs[h].open == handle_on_stack[h])
			return cairn_error(EIO, "kv_pool: invariant 4: sequence %d", h);
	}
	return 0;
}

int cairn_kv_pool_verify(const struct cairn_kv_pool *pool)
{
	size_t num_pages = (size_t)pool->num_pages;
	int32_t *marks = calloc(3 * num_pages + (size_t)pool->max_seqs, sizeof(*marks));
	int32_t *named, *on_stack;
	int ret;

	if (!marks)
		return cairn_error(ENOMEM, "kv_pool: no memory to verify");
	named = marks + num_pages;
	on_stack = named + num_pages;
	ret = verify_tables(pool, marks, named);
	if (!ret)
		ret = verify_stacks(pool, on_stack, on_stack + num_pages);
	for (int32_t page = 0; !ret && page < pool->num_pages; page++) {
		if (pool->held[page] < 0 || pool->refs[page] != named[page] + pool->held[page])
			ret = cairn_error(
				EIO, "kv_pool: invariant 2: page %d: %d references, %d in tables, %d held",
				page, pool->refs[page], named[page], pool->held[page]);
		else if ((pool->refs[page] == 0) != on_stack[page])
			ret = cairn_error(EIO, "kv_pool: invariant 1: page %d: %d references, %son the stack",
					  page, pool->refs[page], on_stack[page] ? "" : "not ");
	}
	free(marks);
	return ret;
}
