/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix_tree - which token sequences have their keys and values in the pool
 *
 * A radix tree. An edge is a run of tokens, and its node holds the pages in which their keys and values
 * lie, by references of its own (cairn_kv_pool_hold): the pages outlive the sequence that wrote them. To
 * look up a prompt is to walk from the root as far as the tokens agree; the walk compares tokens, and
 * hashes only choose where to look, so that no prompt is ever given the keys of another one.
 *
 * grain is how finely sequences are told apart: page_size, and then nodes begin and end at pages, or 1.
 * With grain 1 and larger pages a node may end within a page. That page is then shared up to this place:
 * who goes on from there gets a copy of it from the pool before writing.
 *
 * A lookup makes its path recent, and splits the last edge where the tokens part, so that every token is as
 * recent as its last use. Leaves that nobody has pinned can be evicted, the least recent first; when a node's
 * children are gone it is a leaf.
 *
 * Trees of different salts have nothing in common but memory: a tenant cannot learn from the time it takes
 * whether another one has sent the same prompt.
 *
 * Time: match and insert take O(length), evict O(log nodes) for each leaf. Not thread-safe.
 */
#ifndef CAIRN_PREFIX_TREE_H
#define CAIRN_PREFIX_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "serving/kv/kv_pool.h"

struct cairn_prefix_tree;

/* 128 bits of a cryptographic digest of a tenant's cache_salt, so that unequal salts do not meet; zero:
 * none. */
struct cairn_cache_salt {
	uint64_t hi, lo;
};

#define CAIRN_PREFIX_NONE	(-1)	/* no node */

/* A node as the outside sees it; pointers are valid until the next call that is not a query. */
struct cairn_prefix_node {
	int32_t parent;			/* CAIRN_PREFIX_NONE: the root of a salt */
	const int32_t *tokens;		/* of its edge, [num_tokens] */
	int64_t start, num_tokens;	/* start: tokens before the edge */
	const int32_t *pages;		/* [num_pages], from page start / page_size on */
	int32_t num_pages, num_children, pins;
	uint64_t used;			/* when it was used last, in lookups and inserts */
};

struct cairn_prefix_stats {
	int32_t num_nodes;		/* roots of salts not among them */
	int32_t num_leaves;		/* those that can be evicted now */
	int32_t num_pins;
	int64_t num_tokens;		/* over all edges */
	int64_t num_pages;		/* over all nodes: references to the pool */
};

/* -EINVAL: pool NULL, grain neither 1 nor the pool's page size; -ENOMEM. The pool must outlive the tree. */
int cairn_prefix_tree_create(struct cairn_prefix_tree **out, struct cairn_kv_pool *pool, int32_t grain);
/* Gives its pages back. NULL is legal. */
void cairn_prefix_tree_destroy(struct cairn_prefix_tree *tree);

/*
 * The longest prefix of tokens[num_tokens] that is there: its length. *node: where it ends,
 * CAIRN_PREFIX_NONE for length 0. pages: [ceil(num_tokens / page_size)], the pages of that prefix; may be
 * NULL. Out of memory for a split, the prefix ends before the edge that would have to be split.
 */
int64_t cairn_prefix_tree_match(struct cairn_prefix_tree *tree, struct cairn_cache_salt salt,
				const int32_t *tokens, int64_t num_tokens, int32_t *node, int32_t *pages);
/* The same length; changes nothing, the order of eviction included. */
int64_t cairn_prefix_tree_peek(const struct cairn_prefix_tree *tree, struct cairn_cache_salt salt,
			       const int32_t *tokens, int64_t num_tokens);

/*
 * Puts a sequence in: tokens[num_tokens], rounded down to the grain, whose keys and values lie in pages.
 * What is there already keeps its own pages; the rest becomes a new leaf that holds references to these
 * ones. *node: where it ends (CAIRN_PREFIX_NONE: nothing was long enough). -EINVAL: a page is free;
 * -ENOMEM: the tree holds what it did before.
 */
int cairn_prefix_tree_insert(struct cairn_prefix_tree *tree, struct cairn_cache_salt salt,
			     const int32_t *tokens, int64_t num_tokens, const int32_t *pages, int32_t *node);

/*
 * A pinned node, and all between it and the root, stays. Pins are counted. A node keeps its number while it
 * lasts: of one that is split it is the lower part that does. -EINVAL: no such node, or not pinned.
 */
int cairn_prefix_tree_pin(struct cairn_prefix_tree *tree, int32_t node);
int cairn_prefix_tree_unpin(struct cairn_prefix_tree *tree, int32_t node);

/* The leaf that is to be evicted first; CAIRN_PREFIX_NONE: there is none. */
int32_t cairn_prefix_tree_victim(const struct cairn_prefix_tree *tree);
/* Takes a leaf out. -EINVAL: no such node, not a leaf, pinned. */
int cairn_prefix_tree_remove(struct cairn_prefix_tree *tree, int32_t node);
/* Evicts until the pool has so many free pages: 0; -ENOSPC: nothing is left to evict. */
int cairn_prefix_tree_evict(struct cairn_prefix_tree *tree, int32_t free_pages);

/* -EINVAL: no such node. */
int cairn_prefix_tree_node(const struct cairn_prefix_tree *tree, int32_t node, struct cairn_prefix_node *out);
/* All tokens and pages from the root to the end of a node: how many tokens. Either pointer may be NULL. */
int64_t cairn_prefix_tree_path(const struct cairn_prefix_tree *tree, int32_t node,
			       struct cairn_cache_salt *salt, int32_t *tokens, int32_t *pages);
/* Changes with every insertion, split and eviction: what was peeked is still so while it stays. */
uint64_t cairn_prefix_tree_version(const struct cairn_prefix_tree *tree);
void cairn_prefix_tree_stats(const struct cairn_prefix_tree *tree, struct cairn_prefix_stats *stats);

/* Walks everything and verifies the invariants at the top of prefix_tree.c: 0, or -EIO with the broken
 * one. */
int cairn_prefix_tree_verify(const struct cairn_prefix_tree *tree);

#endif
