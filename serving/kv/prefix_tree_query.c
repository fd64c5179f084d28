// SPDX-License-Identifier: Apache-2.0
/*
 * prefix_tree_query - queries that leave the tree unchanged, and the check of its invariants
 */
#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/kv/prefix_tree_impl.h"

int cairn_prefix_tree_node(const struct cairn_prefix_tree *t, int32_t node, struct cairn_prefix_node *out)
{
	const struct node *n = lookup(t, node);

	if (!n)
		return cairn_error(EINVAL, "prefix_tree: there is no node %d", node);
	*out = (struct cairn_prefix_node){
		.parent = t->nodes[n->parent].is_root ? NONE : n->parent, .tokens = n->tokens,
		.start = n->start, .num_tokens = n->num_tokens, .pages = n->pages, .num_pages = n->num_pages,
		.num_children = n->num_children, .pins = n->pins, .used = n->used,
	};
	return 0;
}

int64_t cairn_prefix_tree_path(const struct cairn_prefix_tree *t, int32_t node, struct cairn_cache_salt *salt,
			       int32_t *tokens, int32_t *pages)
{
	const struct node *n = lookup(t, node);
	int64_t len, end;

	if (!n)
		return cairn_error(EINVAL, "prefix_tree: there is no node %d", node);
	len = n->start + n->num_tokens;
	end = (len + t->page_size - 1) / t->page_size;
	for (; !n->is_root; n = &t->nodes[n->parent]) {
		int64_t first = n->start / t->page_size;

		if (tokens)
			memcpy(tokens + n->start, n->tokens, (size_t)n->num_tokens * sizeof(*tokens));
		/* If a child starts within a page, take the page from the child: its copy has the tokens
		 * of both nodes. */
		if (pages && end > first)
			memcpy(pages + first, n->pages, (size_t)(end - first) * sizeof(*pages));
		if (first < end)
			end = first;
	}
	if (salt)
		*salt = n->salt;
	return len;
}

uint64_t cairn_prefix_tree_version(const struct cairn_prefix_tree *t)
{
	return t->version;
}

void cairn_prefix_tree_stats(const struct cairn_prefix_tree *t, struct cairn_prefix_stats *stats)
{
	*stats = t->stats;
	stats->num_leaves = t->heap_len;
}

/* Checks one node against its parent, its pages and the heap. */
static int verify_node(const struct cairn_prefix_tree *t, int32_t i, int32_t *children, int32_t *held)
{
	const struct node *n = &t->nodes[i], *p;
	int64_t end = n->start + n->num_tokens;

	if (n->is_root)
		return n->heap_at < 0 && !n->num_tokens && find_root(t, n->salt) == i ? 0 :
			cairn_error(EIO, "prefix_tree: root %d", i);
	if (n->parent < 0 || n->parent >= t->room || !t->nodes[n->parent].in_use)
		return cairn_error(EIO, "prefix_tree: invariant 1: node %d: parent %d", i, n->parent);
	p = &t->nodes[n->parent];
	children[n->parent]++;
	if (n->start != p->start + p->num_tokens || n->num_tokens < t->grain || n->num_tokens % t->grain ||
	    n->num_pages != (end + t->page_size - 1) / t->page_size - n->start / t->page_size)
		return cairn_error(EIO,
				   "prefix_tree: invariant 1: node %d: %lld tokens from %lld in %d pages", i,
				   (long long)n->num_tokens, (long long)n->start, n->num_pages);
	for (int32_t k = 0; k < n->num_pages; k++) {
		int32_t page = n->pages[k];

		if (cairn_kv_pool_refs(t->pool, page) < 1 ||
		    ++held[page] > cairn_kv_pool_refs(t->pool, page))
			return cairn_error(EIO, "prefix_tree: invariant 1: node %d: page %d is not held", i,
					   page);
	}
	if (find_child(t, n->parent, n->tokens) != i)
		return cairn_error(EIO, "prefix_tree: invariant 2: node %d is not found", i);
	if (n->used > t->clock || (!p->is_root && n->used > p->used))
		return cairn_error(EIO, "prefix_tree: invariant 3: node %d", i);
	if (evictable(n) != (n->heap_at >= 0) || n->pins < 0)
		return cairn_error(EIO, "prefix_tree: invariant 4: node %d: %d pins, place %d", i, n->pins,
				   n->heap_at);
	return 0;
}

int cairn_prefix_tree_verify(const struct cairn_prefix_tree *t)
{
	struct cairn_prefix_stats sum = { 0 };
	struct cairn_kv_pool_stats pool;
	int32_t *children, *held;
	int ret = 0;

	cairn_kv_pool_stats(t->pool, &pool);
	children = calloc((size_t)t->room + (size_t)pool.num_pages, sizeof(*children));
	if (!children)
		return cairn_error(ENOMEM, "prefix_tree: no memory to verify");
	held = children + t->room;
	for (int32_t i = 0; !ret && i < t->room; i++) {
		if (!t->nodes[i].in_use)
			continue;
		ret = verify_node(t, i, children, held);
		sum.num_nodes += !t->nodes[i].is_root;
		sum.num_pins += t->nodes[i].pins;
		sum.num_tokens += t->nodes[i].num_tokens;
		sum.num_pages += t->nodes[i].num_pages;
	}
	for (int32_t i = 0; !ret && i < t->room; i++) {
		if (t->nodes[i].in_use && (children[i] != t->nodes[i].num_children ||
					   (t->nodes[i].is_root && !children[i])))
			ret = cairn_error(EIO, "prefix_tree: invariant 5: node %d has %d children", i,
					  children[i]);
	}
	for (int32_t at = 0; !ret && at < t->heap_len; at++) {
		if (t->nodes[t->heap[at]].heap_at != at ||
		    t->nodes[t->heap[at]].used < t->nodes[t->heap[at ? (at - 1) / 2 : 0]].used)
			ret = cairn_error(EIO, "prefix_tree: invariant 4: place %d of the heap", at);
	}
	if (!ret && (sum.num_nodes != t->stats.num_nodes || sum.num_pins != t->stats.num_pins ||
		     sum.num_tokens != t->stats.num_tokens || sum.num_pages != t->stats.num_pages))
		ret = cairn_error(EIO, "prefix_tree: invariant 5: %d nodes, %lld tokens; stored %d, %lld",
				  sum.num_nodes, (long long)sum.num_tokens, t->stats.num_nodes,
				  (long long)t->stats.num_tokens);
	free(children);
	return ret;
}
