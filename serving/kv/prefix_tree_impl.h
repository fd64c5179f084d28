/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix_tree_impl - the tree's data structures, shared by prefix_tree.c and prefix_tree_query.c
 */
#ifndef CAIRN_PREFIX_TREE_IMPL_H
#define CAIRN_PREFIX_TREE_IMPL_H

#include <stdbool.h>
#include <string.h>

#include "serving/kv/kv_fault.h"
#include "serving/kv/prefix_tree.h"

#define NONE	CAIRN_PREFIX_NONE

struct node {
	int in_use, is_root;		/* in_use 0: in the list of unused nodes */
	int32_t parent, num_children, pins;	/* parent NONE: a root */
	int32_t next;			/* in the same bucket, or in the list of unused nodes */
	int32_t heap_at;		/* index in the heap; -1: none */
	uint64_t used;			/* t->clock at its last use */
	int64_t start, num_tokens;	/* of its edge, in tokens */
	int32_t *tokens, *pages;	/* [num_tokens], [num_pages] */
	int32_t num_pages;
	struct cairn_cache_salt salt;	/* roots only */
	uint64_t hash;			/* the listener's, at the end of the edge; 0: not told, or a root */
	bool told;			/* below a root without salt, and there is a listener */
};

struct cairn_prefix_tree {
	struct cairn_kv_pool *pool;
	int32_t page_size, grain;
	struct node *nodes;
	int32_t room, unused;		/* unused: head of the list of unused nodes */
	int32_t *buckets, num_buckets;	/* num_buckets: a power of two */
	int32_t *heap, heap_len;	/* heap: [room] */
	/* matches and inserts so far; cairn_prefix_tree_version(); seed of the hash function */
	uint64_t clock, version, seed;
	int32_t num_roots;
	struct cairn_prefix_stats stats;
	struct cairn_prefix_listener listener;	/* zeroed: none */
};

static inline uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ (h >> 29);
}

static inline uint64_t hash_edge(const struct cairn_prefix_tree *t, int32_t parent, const int32_t *tokens)
{
	uint64_t h = mix(t->seed, (uint64_t)parent + 1);

	for (int32_t i = 0; i < t->grain; i++)
		h = mix(h, (uint32_t)tokens[i]);
	return h;
}

static inline uint64_t hash_root(const struct cairn_prefix_tree *t, struct cairn_cache_salt salt)
{
	return mix(mix(t->seed, salt.hi), salt.lo);
}

static inline uint64_t hash_node(const struct cairn_prefix_tree *t, const struct node *n)
{
	return n->is_root ? hash_root(t, n->salt) : hash_edge(t, n->parent, n->tokens);
}

static inline int32_t *bucket(const struct cairn_prefix_tree *t, uint64_t hash)
{
	return &t->buckets[hash & (uint64_t)(t->num_buckets - 1)];
}

static inline int32_t find_root(const struct cairn_prefix_tree *t, struct cairn_cache_salt salt)
{
	int32_t i = *bucket(t, hash_root(t, salt));

	while (i != NONE &&
	       !(t->nodes[i].is_root && t->nodes[i].salt.hi == salt.hi && t->nodes[i].salt.lo == salt.lo))
		i = t->nodes[i].next;
	return i;
}

/* Returns the child whose edge starts with the grain at tokens, or NONE. */
static inline int32_t find_child(const struct cairn_prefix_tree *t, int32_t parent, const int32_t *tokens)
{
	int32_t i = *bucket(t, hash_edge(t, parent, tokens));
	size_t bytes = (size_t)t->grain * sizeof(*tokens);

	while (i != NONE && (t->nodes[i].is_root || t->nodes[i].parent != parent ||
			     memcmp(t->nodes[i].tokens, tokens, bytes)))
		i = t->nodes[i].next;
	return i;
}

static inline struct node *lookup(const struct cairn_prefix_tree *t, int32_t node)
{
	return node >= 0 && node < t->room && t->nodes[node].in_use && !t->nodes[node].is_root ?
		&t->nodes[node] : NULL;
}

static inline int evictable(const struct node *n)
{
	return n->in_use && !n->is_root && !n->num_children && (!n->pins || FAULT(EVICT_PINNED));
}

#endif
