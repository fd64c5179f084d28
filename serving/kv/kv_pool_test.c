// SPDX-License-Identifier: Apache-2.0
/* kv_pool_test - page counts, sharing and copy-on-write, held pages, and refused calls of the pool */
#include "serving/kv/kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

static void sizes_are_checked(struct cairn_test *t)
{
	struct cairn_kv_pool *pool = NULL;

	EXPECT(t, cairn_kv_pool_create(&pool, 0, 16, 1) == -EINVAL);
	EXPECT(t, cairn_kv_pool_create(&pool, 1, 0, 1) == -EINVAL);
	EXPECT(t, cairn_kv_pool_create(&pool, 1, 16, 0) == -EINVAL);
	EXPECT(t, pool == NULL);
	cairn_kv_pool_destroy(NULL);
}

static void pages_follow_length(struct cairn_test *t)
{
	struct cairn_kv_pool_stats st;
	struct cairn_kv_pool *pool;
	int32_t seq = -1, n = -1;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 8, 4, 2) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, &seq) == 0);
	EXPECT(t, cairn_kv_pool_pages(pool, seq, &n) && n == 0);
	for (int64_t len = 0; len <= 32; len++) {
		EXPECT(t, cairn_kv_pool_cost(pool, seq, len) == (len % 4 == 1));
		EXPECT(t, cairn_kv_pool_resize(pool, seq, len, NULL) == 0);
		EXPECT(t, cairn_kv_pool_pages(pool, seq, &n) && n == (len + 3) / 4);
		EXPECT(t, cairn_kv_pool_len(pool, seq) == len);
	}
	EXPECT(t, cairn_kv_pool_resize(pool, seq, 33, NULL) == -ENOSPC);
	EXPECT(t, cairn_kv_pool_resize(pool, seq, INT64_MAX, NULL) == -ENOSPC);
	EXPECT(t, cairn_kv_pool_resize(pool, seq, -1, NULL) == -EINVAL);
	EXPECT(t, cairn_kv_pool_len(pool, seq) == 32);
	EXPECT(t, cairn_kv_pool_resize(pool, seq, 5, NULL) == 0);
	cairn_kv_pool_stats(pool, &st);
	EXPECT(t, st.free_pages == 6 && st.table_pages == 2 && st.num_tokens == 5 && st.num_seqs == 1);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	EXPECT(t, cairn_kv_pool_close(pool, seq) == 0);
	cairn_kv_pool_stats(pool, &st);
	EXPECT(t, st.free_pages == 8 && st.table_entries == 0 && st.num_tokens == 0 && st.num_seqs == 0);
	cairn_kv_pool_destroy(pool);
}

/* Three answers share the two pages of a six-token prompt. All but the last one to write copy the second
 * page. */
static void forks_share_until_they_write(struct cairn_test *t)
{
	struct cairn_kv_copy copy = { 7, 7 };
	struct cairn_kv_pool_stats st;
	struct cairn_kv_pool *pool;
	int32_t a = -1, b = -1, c = -1, n, page0, page1;
	const int32_t *pages;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 8, 4, 3) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, &a) == 0);
	EXPECT(t, cairn_kv_pool_resize(pool, a, 6, &copy) == 0 && copy.from == -1);
	pages = cairn_kv_pool_pages(pool, a, &n);
	page0 = pages[0];
	page1 = pages[1];
	EXPECT(t, cairn_kv_pool_fork(pool, a, &b) == 0 && cairn_kv_pool_fork(pool, a, &c) == 0);
	EXPECT(t, cairn_kv_pool_refs(pool, page0) == 3 && cairn_kv_pool_refs(pool, page1) == 3);
	cairn_kv_pool_stats(pool, &st);
	EXPECT(t, st.table_pages == 2 && st.table_entries == 6 && st.free_pages == 6 && st.num_tokens == 18);

	EXPECT(t, cairn_kv_pool_cost(pool, b, 7) == 1 && cairn_kv_pool_cost(pool, b, 9) == 2);
	/* a copy is needed, so copy == NULL is refused */
	EXPECT(t, cairn_kv_pool_resize(pool, b, 7, NULL) == -EINVAL);
	EXPECT(t, cairn_kv_pool_resize(pool, b, 7, &copy) == 0 && copy.from == page1 && copy.to != page1);
	pages = cairn_kv_pool_pages(pool, b, &n);
	EXPECT(t, n == 2 && pages[0] == page0 && pages[1] == copy.to);
	EXPECT(t, cairn_kv_pool_resize(pool, b, 8, &copy) == 0 && copy.from == -1);
	EXPECT(t, cairn_kv_pool_resize(pool, c, 7, &copy) == 0 && copy.from == page1);
	/* it is the only owner now */
	EXPECT(t, cairn_kv_pool_resize(pool, a, 7, &copy) == 0 && copy.from == -1);
	EXPECT(t, cairn_kv_pool_pages(pool, a, &n)[1] == page1);
	EXPECT(t, cairn_kv_pool_refs(pool, page0) == 3 && cairn_kv_pool_refs(pool, page1) == 1);

	/* Shrink into the shared first page and grow again: it is still shared. */
	EXPECT(t, cairn_kv_pool_resize(pool, c, 3, &copy) == 0 && copy.from == -1);
	EXPECT(t, cairn_kv_pool_resize(pool, c, 4, &copy) == 0 && copy.from == page0);
	/* At the end of a full page there is nothing to copy. */
	EXPECT(t, cairn_kv_pool_close(pool, c) == 0 && cairn_kv_pool_fork(pool, b, &c) == 0);
	EXPECT(t, cairn_kv_pool_resize(pool, c, 9, &copy) == 0 && copy.from == -1);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
}

/* A refused resize changes nothing, not even the page that would have been copied. */
static void refusal_changes_nothing(struct cairn_test *t)
{
	struct cairn_kv_copy copy = { 7, 7 };
	struct cairn_kv_pool *pool;
	int32_t a = -1, b = -1, n;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 3, 4, 2) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, &a) == 0 && cairn_kv_pool_resize(pool, a, 6, NULL) == 0);
	EXPECT(t, cairn_kv_pool_fork(pool, a, &b) == 0);
	EXPECT(t, cairn_kv_pool_resize(pool, b, 9, &copy) == -ENOSPC && copy.from == 7);
	EXPECT_CONTAINS(t, cairn_last_error(), "2 pages wanted, 1 are free");
	EXPECT(t, cairn_kv_pool_len(pool, b) == 6 && cairn_kv_pool_free_pages(pool) == 1);
	EXPECT(t, cairn_kv_pool_pages(pool, b, &n)[1] == cairn_kv_pool_pages(pool, a, &n)[1]);
	EXPECT(t, cairn_kv_pool_resize(pool, b, 8, &copy) == 0 && copy.from >= 0);
	EXPECT(t, cairn_kv_pool_resize(pool, a, 9, &copy) == -ENOSPC);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
}

/* Held pages outlive their sequence, and another sequence can start with them. */
static void held_pages_stay(struct cairn_test *t)
{
	struct cairn_kv_copy copy;
	struct cairn_kv_pool_stats st;
	struct cairn_kv_pool *pool;
	int32_t a = -1, n, pages[2];

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 4, 4, 2) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, &a) == 0 && cairn_kv_pool_resize(pool, a, 6, NULL) == 0);
	memcpy(pages, cairn_kv_pool_pages(pool, a, &n), sizeof(pages));
	EXPECT(t, cairn_kv_pool_hold(pool, pages[0]) == 0 && cairn_kv_pool_hold(pool, pages[1]) == 0);
	EXPECT(t, cairn_kv_pool_close(pool, a) == 0 && cairn_kv_pool_free_pages(pool) == 2);
	cairn_kv_pool_stats(pool, &st);
	EXPECT(t, st.table_pages == 0);
	EXPECT(t, cairn_kv_pool_open(pool, &a) == 0 && cairn_kv_pool_adopt(pool, a, pages, 6) == 0);
	EXPECT(t, cairn_kv_pool_adopt(pool, a, pages, 6) == -EINVAL);		/* not empty */
	EXPECT(t, cairn_kv_pool_resize(pool, a, 7, &copy) == 0 && copy.from == pages[1]);
	EXPECT(t, cairn_kv_pool_release(pool, pages[1]) == 0 && cairn_kv_pool_refs(pool, pages[1]) == 0);
	EXPECT(t, cairn_kv_pool_release(pool, pages[1]) == -EINVAL &&
			  cairn_kv_pool_hold(pool, pages[1]) == -EINVAL);
	EXPECT(t, cairn_kv_pool_release(pool, copy.to) == -EINVAL);		/* in a table, but not held */
	EXPECT(t, cairn_kv_pool_close(pool, a) == 0 && cairn_kv_pool_open(pool, &a) == 0);
	EXPECT(t, cairn_kv_pool_adopt(pool, a, pages, 6) == -EINVAL); /* the second page has been freed */
	EXPECT(t, cairn_kv_pool_hold(pool, -1) == -EINVAL && cairn_kv_pool_refs(pool, 4) == -EINVAL);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
}

static void handles_are_checked(struct cairn_test *t)
{
	struct cairn_kv_pool *pool;
	int32_t n, a = -1, b = -1, c = -1;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 100, 1, 2) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, &a) == 0 && cairn_kv_pool_open(pool, &b) == 0 && a != b);
	EXPECT(t, cairn_kv_pool_open(pool, &c) == -ENOSPC && cairn_kv_pool_fork(pool, a, &c) == -ENOSPC);
	EXPECT_CONTAINS(t, cairn_last_error(), "all 2 sequences");
	EXPECT(t, cairn_kv_pool_close(pool, a) == 0);
	EXPECT(t, cairn_kv_pool_close(pool, a) == -EINVAL && cairn_kv_pool_fork(pool, a, &c) == -EINVAL);
	EXPECT(t, cairn_kv_pool_resize(pool, a, 1, NULL) == -EINVAL);
	EXPECT(t, cairn_kv_pool_len(pool, a) == -EINVAL);
	EXPECT(t, cairn_kv_pool_pages(pool, a, &n) == NULL);
	EXPECT(t, cairn_kv_pool_pages(pool, -1, &n) == NULL && cairn_kv_pool_pages(pool, 2, &n) == NULL);
	EXPECT(t, c == -1);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
}

static const struct cairn_unit units[] = {
	{ "sizes_are_checked", sizes_are_checked },
	{ "pages_follow_length", pages_follow_length },
	{ "forks_share_until_they_write", forks_share_until_they_write },
	{ "refusal_changes_nothing", refusal_changes_nothing },
	{ "held_pages_stay", held_pages_stay },
	{ "handles_are_checked", handles_are_checked },
};

const struct cairn_family cairn_kv_pool_family = {
	.stage = "serving",
	.name = "kv_pool",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
