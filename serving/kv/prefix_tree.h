/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix_tree - finds the longest prefix of a prompt whose keys and values are already in the pool
 *
 * A radix tree. An edge is a run of tokens. Its node holds its own references (cairn_kv_pool_hold) to the
 * pages with their keys and values, so these pages outlive the sequence that wrote them. A lookup walks from
 * the root as far as the tokens agree. The walk compares tokens; hashes only choose where to look, so a
 * collision cannot give a prompt another prompt's keys.
 *
 * grain is the match granularity: 1, or a multiple of page_size, so that nodes start and end where pages do.
 * With grain 1 and larger pages a node may end within a page. The page is then shared up to that position,
 * and a sequence that continues from there copies the page before it writes (kv_pool.h).
 *
 * A lookup marks its path as used. It splits the last edge where the tokens diverge, so that the unused part
 * keeps its older time of use. Unpinned leaves are evicted, the least recently used first; a node whose
 * children are all evicted is a leaf.
 *
 * Different salts have separate trees that share only memory, so a tenant cannot learn from response times
 * whether another tenant has sent the same prompt.
 *
 * Time: match and insert O(length), evict O(log nodes) per leaf. Not thread-safe.
 */
#ifndef CAIRN_PREFIX_TREE_H
#define CAIRN_PREFIX_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "serving/kv/kv_pool.h"

struct cairn_prefix_tree;

/* 128 bits of a cryptographic digest of a tenant's cache_salt, so that
 * different salts do not collide; zero: none. */
struct cairn_cache_salt {
	uint64_t hi, lo;
};

#define CAIRN_PREFIX_NONE	(-1)	/* no node */

/* A node as seen from outside; its pointers are valid until the next call that changes the tree. */
struct cairn_prefix_node {
	int32_t parent;			/* CAIRN_PREFIX_NONE: child of a root */
	const int32_t *tokens;		/* tokens of its edge, [num_tokens] */
	int64_t start, num_tokens;	/* start: number of tokens before the edge */
	const int32_t *pages;		/* [num_pages], starting with page start / page_size */
	int32_t num_pages, num_children, pins;
	uint64_t used;			/* time of last use, counted in lookups and inserts */
};

struct cairn_prefix_stats {
	int32_t num_nodes;		/* without the roots */
	int32_t num_leaves;		/* leaves that can be evicted now */
	int32_t num_pins;
	int64_t num_tokens;		/* sum over all edges */
	int64_t num_pages;		/* sum over all nodes: references to pool pages */
};

/* The pool must outlive the tree. Errors: -EINVAL (null pointer; grain neither 1 nor a multiple of the pool's
 * page size), -ENOMEM. */
int cairn_prefix_tree_create(struct cairn_prefix_tree **out, struct cairn_kv_pool *pool, int32_t grain);
/* Releases its pages. NULL is legal. */
void cairn_prefix_tree_destroy(struct cairn_prefix_tree *tree);

/*
 * Callbacks that report which whole pages the tree gains (stored) and loses (removed); they are made by the
 * calls that change the tree, and must not call it. A run of pages is identified by its tokens[num_tokens],
 * whole pages, and by `before`, the hash of all tokens before the run (0 at the start of a prompt). Prefixes
 * with a salt are never reported.
 */
struct cairn_prefix_listener {
	void *ctx;
	/* the hash of a run's end, given the one before it */
	uint64_t (*hash)(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens);
	void (*stored)(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens);
	void (*removed)(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens);
};
/*
 * The listener is copied. -EINVAL: the tree is not empty, or its grain is not one page. (With a larger grain
 * the tree may hold two pages of the same tokens.)
 */
int cairn_prefix_tree_listen(struct cairn_prefix_tree *tree, const struct cairn_prefix_listener *listener);

/*
 * Returns the length of the longest prefix of tokens[num_tokens] in the tree. *node: the node
 * where it ends, CAIRN_PREFIX_NONE for length 0. pages: [ceil(num_tokens / page_size)], receives
 * the pages of that prefix; may be NULL. If there is no memory for a split, the prefix ends
 * before the edge that would have to be split.
 */
int64_t cairn_prefix_tree_match(struct cairn_prefix_tree *tree, struct cairn_cache_salt salt,
				const int32_t *tokens, int64_t num_tokens, int32_t *node, int32_t *pages);
/* Returns the same length but changes nothing, not even the order of eviction. */
int64_t cairn_prefix_tree_peek(const struct cairn_prefix_tree *tree, struct cairn_cache_salt salt,
			       const int32_t *tokens, int64_t num_tokens);

/*
 * Inserts a sequence: tokens[num_tokens], rounded down to the grain, whose keys and values are in pages. A
 * prefix that is already in the tree keeps its own pages; the rest becomes a new leaf that holds references
 * to the given pages. *node: the node where the sequence ends; CAIRN_PREFIX_NONE if it is shorter than one
 * grain. -EINVAL: a page is free; -ENOMEM: the tree holds the same prefixes as before.
 */
int cairn_prefix_tree_insert(struct cairn_prefix_tree *tree, struct cairn_cache_salt salt,
			     const int32_t *tokens, int64_t num_tokens, const int32_t *pages, int32_t *node);

/*
 * A pinned node and all nodes between it and the root are not evicted. Pins are counted. A node keeps its
 * number for life; after a split the lower part keeps it. -EINVAL: no such node, or it is not pinned.
 */
int cairn_prefix_tree_pin(struct cairn_prefix_tree *tree, int32_t node);
int cairn_prefix_tree_unpin(struct cairn_prefix_tree *tree, int32_t node);

/* Returns the leaf to be evicted first, or CAIRN_PREFIX_NONE. */
int32_t cairn_prefix_tree_victim(const struct cairn_prefix_tree *tree);
/* Removes a leaf. -EINVAL: no such node, not a leaf, or pinned. */
int cairn_prefix_tree_remove(struct cairn_prefix_tree *tree, int32_t node);
/* Evicts until the pool has free_pages free pages. -ENOSPC: nothing is left to evict. */
int cairn_prefix_tree_evict(struct cairn_prefix_tree *tree, int32_t free_pages);

/* -EINVAL: no such node. */
int cairn_prefix_tree_node(const struct cairn_prefix_tree *tree, int32_t node, struct cairn_prefix_node *out);
/*
 * Returns the number of tokens from the root to the end of a node, and writes these tokens and their pages.
 * Each of the three pointers may be NULL. -EINVAL: no such node.
 */
int64_t cairn_prefix_tree_path(const struct cairn_prefix_tree *tree, int32_t node,
			       struct cairn_cache_salt *salt, int32_t *tokens, int32_t *pages);
/* Changes with every new leaf, split and removal; a peeked length is valid until it changes. */
uint64_t cairn_prefix_tree_version(const struct cairn_prefix_tree *tree);
void cairn_prefix_tree_stats(const struct cairn_prefix_tree *tree, struct cairn_prefix_stats *stats);

/* Checks the invariants at the top of prefix_tree.c over the whole tree: 0, or -EIO naming the broken one. */
int cairn_prefix_tree_verify(const struct cairn_prefix_tree *tree);

#endif
