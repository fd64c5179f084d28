// SPDX-License-Identifier: Apache-2.0
/* prefix_tree_test - matches, splits, salts, eviction order, memory and the cost of a lookup */
#include "serving/kv/prefix_tree.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "serving/kv/kv_pool.h"

struct fixture {
	struct cairn_kv_pool *pool;
	struct cairn_prefix_tree *tree;
	int32_t grain;
};

static const struct cairn_cache_salt no_salt, alice = { 1, 2 }, bob = { 1, 3 };

static int set_up(struct cairn_test *t, struct fixture *f, int32_t pages, int32_t page_size, int32_t grain)
{
	memset(f, 0, sizeof(*f));
	f->grain = grain;
	return EXPECT(t, cairn_kv_pool_create(&f->pool, pages, page_size, 2) == 0) &&
		EXPECT(t, cairn_prefix_tree_create(&f->tree, f->pool, grain) == 0);
}

/* Destroys the fixture and checks that every page is free. */
static void tear_down(struct cairn_test *t, struct fixture *f)
{
	struct cairn_kv_pool_stats st;

	if (f->tree)
		EXPECT(t, cairn_prefix_tree_verify(f->tree) == 0);
	cairn_prefix_tree_destroy(f->tree);
	if (!f->pool)
		return;
	cairn_kv_pool_stats(f->pool, &st);
	EXPECT(t, st.free_pages == st.num_pages);
	cairn_kv_pool_destroy(f->pool);
}

/* Computes and ends a sequence for a salt; text: one token per letter. Returns the node where it ends. */
static int32_t put(struct cairn_test *t, struct fixture *f, struct cairn_cache_salt salt, const char *text)
{
	int32_t tokens[64], pages[64], seq, node = -1, n = 0, len = (int32_t)strlen(text);
	struct cairn_kv_copy copy;
	int64_t found;

	for (int32_t i = 0; i < len; i++)
		tokens[i] = text[i];
	found = cairn_prefix_tree_match(f->tree, salt, tokens, len, &node, pages);
	EXPECT(t, cairn_kv_pool_open(f->pool, &seq) == 0 &&
			  cairn_kv_pool_adopt(f->pool, seq, pages, found) == 0);
	EXPECT(t, cairn_kv_pool_resize(f->pool, seq, len, &copy) == 0);
	EXPECT(t, cairn_prefix_tree_insert(f->tree, salt, tokens, len, cairn_kv_pool_pages(f->pool, seq, &n),
					   &node) == 0);
	EXPECT(t, cairn_kv_pool_close(f->pool, seq) == 0);
	EXPECT(t, cairn_prefix_tree_verify(f->tree) == 0 && cairn_kv_pool_verify(f->pool) == 0);
	return node;
}

static int64_t peek(struct fixture *f, struct cairn_cache_salt salt, const char *text)
{
	int32_t tokens[64], len = (int32_t)strlen(text);

	for (int32_t i = 0; i < len; i++)
		tokens[i] = text[i];
	return cairn_prefix_tree_peek(f->tree, salt, tokens, len);
}

static void arguments_are_checked(struct cairn_test *t)
{
	struct cairn_prefix_tree *tree = NULL;
	struct cairn_prefix_node n;
	struct fixture f;
	int32_t tokens[4] = { 0 }, pages[4] = { 3, 3, 3, 3 }, node = -7;

	if (!set_up(t, &f, 8, 4, 4))
		return;
	EXPECT(t, cairn_prefix_tree_create(NULL, f.pool, 1) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_create(&tree, NULL, 1) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_create(&tree, f.pool, 2) == -EINVAL && !tree);
	EXPECT_CONTAINS(t, cairn_last_error(), "grain: is 2, must be 1 or a multiple of 4");
	EXPECT(t,
	       cairn_prefix_tree_pin(f.tree, 0) == -EINVAL && cairn_prefix_tree_unpin(f.tree, -1) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_remove(f.tree, 1 << 30) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_node(f.tree, 0, &n) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_evict(f.tree, 8) == 0 && cairn_prefix_tree_evict(f.tree, 9) == -ENOSPC);
	/* Inserting free pages is refused and leaves nothing behind. */
	EXPECT(t, cairn_prefix_tree_insert(f.tree, no_salt, tokens, 4, pages, &node) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_insert(f.tree, no_salt, tokens, 3, pages, &node) == 0 &&
			  node == CAIRN_PREFIX_NONE);
	tear_down(t, &f);
}

static void longest_prefix(struct cairn_test *t)
{
	struct fixture f;
	struct cairn_prefix_stats st;

	if (!set_up(t, &f, 64, 1, 1))
		return;
	put(t, &f, no_salt, "the cat sat");
	put(t, &f, no_salt, "the cat ran");
	put(t, &f, no_salt, "the dog");
	put(t, &f, no_salt, "a");
	EXPECT(t, peek(&f, no_salt, "the cat sat down") == 11 && peek(&f, no_salt, "the cat slept") == 9);
	EXPECT(t, peek(&f, no_salt, "the cow") == 5 && peek(&f, no_salt, "them") == 3 &&
			  peek(&f, no_salt, "b") == 0);
	EXPECT(t, peek(&f, no_salt, "") == 0);
	cairn_prefix_tree_stats(f.tree, &st);
	/* "the ", "cat ", "sat", "ran", "dog", "a" */
	EXPECT(t, st.num_nodes == 6 && st.num_tokens == 18 && st.num_pages == 18 && st.num_leaves == 4);
	put(t, &f, no_salt, "the cat sat");	/* inserting it again changes nothing */
	cairn_prefix_tree_stats(f.tree, &st);
	EXPECT(t, st.num_nodes == 6 && st.num_pages == 18);
	tear_down(t, &f);
}

/* With grain = page_size, prompts that differ within a page share the pages before it. */
static void whole_pages(struct cairn_test *t)
{
	struct fixture f;
	struct cairn_prefix_stats st;

	if (!set_up(t, &f, 64, 4, 4))
		return;
	put(t, &f, no_salt, "aaaabbbbccccd");
	cairn_prefix_tree_stats(f.tree, &st);
	EXPECT(t, st.num_nodes == 1 && st.num_tokens == 12 && st.num_pages == 3);
	EXPECT(t, peek(&f, no_salt, "aaaabbbbcccx") == 8 && peek(&f, no_salt, "aaa") == 0 &&
			  peek(&f, no_salt, "aaaabbbb") == 8);
	put(t, &f, no_salt, "aaaabbbbccxx");
	put(t, &f, no_salt, "aaaabbbbccyy");	/* two children that start with the same two tokens */
	cairn_prefix_tree_stats(f.tree, &st);
	EXPECT(t, st.num_nodes == 4 && st.num_tokens == 20 && st.num_pages == 5);
	EXPECT(t, peek(&f, no_salt, "aaaabbbbccyy") == 12 && peek(&f, no_salt, "aaaabbbbcczz") == 8);
	tear_down(t, &f);
}

/* Grain 1 with pages of four: continuing within a page copies it, and the tree holds both. */
static void within_a_page(struct cairn_test *t)
{
	struct cairn_prefix_node n;
	struct cairn_prefix_stats st;
	struct fixture f;
	int32_t first, second, pages[4], upper;

	if (!set_up(t, &f, 64, 4, 1))
		return;
	first = put(t, &f, no_salt, "abcdef");
	second = put(t, &f, no_salt, "abcdeXYZW");
	/* "abcde" in 2 pages, "f" in the second of them, "XYZW" in a copy of that one and a third page */
	cairn_prefix_tree_stats(f.tree, &st);
	EXPECT(t, st.num_nodes == 3 && st.num_tokens == 10 && st.num_pages == 2 + 1 + 2);
	EXPECT(t, cairn_prefix_tree_node(f.tree, first, &n) == 0 && n.start == 5 && n.num_tokens == 1);
	upper = n.parent;
	EXPECT(t, cairn_prefix_tree_path(f.tree, first, NULL, NULL, pages) == 6);
	EXPECT(t, cairn_prefix_tree_node(f.tree, upper, &n) == 0 && n.num_pages == 2);
	EXPECT(t,
	       pages[0] == n.pages[0] && pages[1] == n.pages[1] && cairn_kv_pool_refs(f.pool, pages[1]) == 2);
	EXPECT(t, cairn_prefix_tree_path(f.tree, second, NULL, NULL, pages) == 9);
	EXPECT(t, pages[0] == n.pages[0] && pages[1] != n.pages[1]);
	tear_down(t, &f);
}

static void tenants_do_not_meet(struct cairn_test *t)
{
	struct cairn_prefix_stats st;
	struct fixture f;

	if (!set_up(t, &f, 64, 1, 1))
		return;
	put(t, &f, alice, "secret");
	EXPECT(t, peek(&f, alice, "secret") == 6 && peek(&f, bob, "secret") == 0 &&
			  peek(&f, no_salt, "secret") == 0);
	put(t, &f, bob, "secret");
	cairn_prefix_tree_stats(f.tree, &st);
	EXPECT(t, st.num_nodes == 2 && st.num_pages == 12);
	EXPECT(t, cairn_prefix_tree_evict(f.tree, 64 - 6) == 0);	/* different salts share the memory */
	EXPECT(t, peek(&f, alice, "secret") == 0 && peek(&f, bob, "secret") == 6);
	tear_down(t, &f);
}

static void least_recent_leaf_first(struct cairn_test *t)
{
	struct fixture f;
	int32_t node, pages[64], tokens[] = { 'x', '1' }, pinned;

	if (!set_up(t, &f, 64, 1, 1))
		return;
	put(t, &f, no_salt, "x1");
	put(t, &f, no_salt, "x2");
	put(t, &f, no_salt, "y");
	EXPECT(t, cairn_prefix_tree_match(f.tree, no_salt, tokens, 2, &node, pages) ==
			  2); /* x1 is recently used again */
	EXPECT(t, cairn_prefix_tree_evict(f.tree, 61) == 0);
	EXPECT(t, peek(&f, no_salt, "x2") == 1 && peek(&f, no_salt, "x1") == 2 &&
			  peek(&f, no_salt, "y") == 1);
	EXPECT(t, cairn_prefix_tree_remove(f.tree, node) == 0 && cairn_prefix_tree_victim(f.tree) >= 0);
	/* x is a leaf now. Only y is older, but y is now used again and pinned. */
	pinned = put(t, &f, no_salt, "y");
	EXPECT(t, cairn_prefix_tree_pin(f.tree, pinned) == 0 && cairn_prefix_tree_pin(f.tree, pinned) == 0);
	EXPECT(t, cairn_prefix_tree_remove(f.tree, pinned) == -EINVAL);
	EXPECT(t, cairn_prefix_tree_evict(f.tree, 64) == -ENOSPC && peek(&f, no_salt, "x") == 0);
	EXPECT(t, peek(&f, no_salt, "y") == 1 && cairn_prefix_tree_unpin(f.tree, pinned) == 0);
	EXPECT(t, cairn_prefix_tree_evict(f.tree, 64) == -ENOSPC);		/* it was pinned twice */
	EXPECT(t, cairn_prefix_tree_unpin(f.tree, pinned) == 0 && cairn_prefix_tree_evict(f.tree, 64) == 0);
	tear_down(t, &f);
}

#ifdef CAIRN_SANITIZED
static int64_t bytes_in_use(void) { return 0; }		/* the sanitizer's allocator does not report it */
#else
static int64_t bytes_in_use(void)
{
	struct mallinfo2 m = mallinfo2();

	return (int64_t)(m.uordblks + m.hblkhd);
}
#endif

/* Lookups of ever shorter prefixes split the first edge each time. All of its parts together stay as long. */
static void memory_is_linear(struct cairn_test *t)
{
	enum { LEN = 1 << 14, PAGE = 16, NODE_BYTES = 512 };
	static int32_t tokens[LEN], pages[LEN / PAGE];
	struct cairn_prefix_stats st;
	int32_t seq, n, node;
	struct fixture f;
	int64_t before, after;

	if (!set_up(t, &f, LEN / PAGE, PAGE, PAGE))
		return;
	for (int32_t i = 0; i < LEN; i++)
		tokens[i] = i;
	EXPECT(t, cairn_kv_pool_open(f.pool, &seq) == 0 && cairn_kv_pool_resize(f.pool, seq, LEN, NULL) == 0);
	EXPECT(t, cairn_prefix_tree_insert(f.tree, no_salt, tokens, LEN,
					   cairn_kv_pool_pages(f.pool, seq, &n), &node) == 0);
	EXPECT(t, cairn_kv_pool_close(f.pool, seq) == 0);
	before = bytes_in_use();
	for (int32_t len = LEN - PAGE; len > 0; len -= PAGE)
		EXPECT(t, cairn_prefix_tree_match(f.tree, no_salt, tokens, len, &node, pages) == len);
	after = bytes_in_use();
	cairn_prefix_tree_stats(f.tree, &st);
	cairn_note(t, "%d nodes: %lld bytes more", st.num_nodes, (long long)(after - before));
	EXPECT(t, st.num_nodes == LEN / PAGE && after - before < (int64_t)NODE_BYTES * st.num_nodes);
	EXPECT(t, cairn_prefix_tree_match(f.tree, no_salt, tokens, LEN, &node, pages) == LEN);
	tear_down(t, &f);
}

/*
 * Returns the time of a lookup in ns: the least of `rounds` rounds of 10 lookups, because another process may
 * take the processor away during some rounds.
 */
static double lookup_ns(struct cairn_test *t, struct fixture *f, const int32_t *tokens, int32_t len,
			int32_t *pages, int rounds)
{
	double least = 1e300, ns;
	struct timespec a, b;
	int32_t node;

	while (rounds--) {
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (int k = 0; k < 10; k++)
			EXPECT(t, cairn_prefix_tree_match(f->tree, no_salt, tokens, len, &node,
							  pages) == len);
		clock_gettime(CLOCK_MONOTONIC, &b);
		ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
		if (ns / 10 < least)
			least = ns / 10;
	}
	return least;
}

/* The time of a lookup depends on the length of the prompt, not on the size of the tree. */
static void time_is_linear(struct cairn_test *t)
{
	enum { SETS = 64, LEN = 4096, PAGE = 16 };
	static int32_t tokens[SETS * 64][LEN / 16], pages[LEN];
	static int32_t all[LEN];
	int32_t num = 0, seq, n, node;
	struct fixture f;
	double ns[2];

	if (!set_up(t, &f, 1 << 17, PAGE, PAGE))
		return;
	for (int round = 0; round < 2; round++) {
		/* First with a single long prompt, then with 4,000 others that start like it. */
		for (; num < (round ? SETS * 64 - 1 : 1); num++) {
			int32_t len = num ? LEN / 16 : LEN;
			int32_t *tok = num ? tokens[num] : all;

			for (int32_t i = 0; i < len; i++)
				tok[i] = num && i >= (num % 15 + 1) * PAGE ? (int32_t)cairn_rand(t) : i;
			EXPECT(t, cairn_kv_pool_open(f.pool, &seq) == 0);
			EXPECT(t, cairn_kv_pool_resize(f.pool, seq, len, NULL) == 0);
			EXPECT(t, cairn_prefix_tree_insert(f.tree, no_salt, tok, len,
							   cairn_kv_pool_pages(f.pool, seq, &n), &node) == 0);
			EXPECT(t, cairn_kv_pool_close(f.pool, seq) == 0);
		}
		ns[round] = lookup_ns(t, &f, all, LEN, pages, 20);
	}
	cairn_note(t, "lookup of %d tokens: %.1f us alone, %.1f us in a tree of %d prompts", LEN, ns[0] / 1e3,
		   ns[1] / 1e3, num);
	EXPECT(t, ns[1] < 20 * ns[0] + 20e3);
	tear_down(t, &f);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(arguments_are_checked), UNIT(longest_prefix), UNIT(whole_pages), UNIT(within_a_page),
	UNIT(tenants_do_not_meet), UNIT(least_recent_leaf_first), UNIT(memory_is_linear),
	UNIT(time_is_linear),
};

const struct cairn_family cairn_prefix_tree_family = {
	.stage = "serving",
	.name = "prefix_tree",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
