// SPDX-License-Identifier: Apache-2.0
/*
 * prefix_tree - a radix tree over the pages of a pool
 *
 *   node      state                                              in the heap
 *   root      one per salt: no edge; removed with its last child no
 *   inner     has children                                       no
 *   pinned    a leaf in use                                      no
 *   leaf      referenced by the tree alone                       yes: by time of last use
 *
 * Invariants after every call (cairn_prefix_tree_verify() checks each):
 *   1. An edge has a whole number of grains, at least one; it starts where its parent's edge ends; its node
 *      holds one reference to each page it touches. If it starts within a page, the parent holds it too.
 *   2. The children of a node differ in their first grain, and looking up that grain finds the child.
 *   3. A node was used no later than its parent: the least recently used leaf is the least recently used
 *      node.
 *   4. The heap holds the leaves that are neither pinned nor roots, ordered by their last use.
 *   5. The totals in stats equal the sums over all nodes; every num_children is right.
 *
 * Nodes are indices into an array that grows. In a split the new node is the upper one. The lower one keeps
 * its number, and with it its pins and children. Edges are looked up by parent and first grain in one hash
 * table for the whole tree. The hash function is seeded with the tree's address, so that a prompt cannot be
 * crafted to collide; every candidate is compared token by token.
 */
#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/kv/prefix_tree_impl.h"

static void hash_in(struct cairn_prefix_tree *t, int32_t i)
{
	int32_t *b = bucket(t, hash_node(t, &t->nodes[i]));

	t->nodes[i].next = *b;
	*b = i;
}

static void hash_out(struct cairn_prefix_tree *t, int32_t i)
{
	int32_t *at = bucket(t, hash_node(t, &t->nodes[i]));

	while (*at != i)
		at = &t->nodes[*at].next;
	*at = t->nodes[i].next;
}

/* A binary heap; heap[0] is the least recently used. */
static void heap_put(struct cairn_prefix_tree *t, int32_t at, int32_t i)
{
	t->heap[at] = i;
	t->nodes[i].heap_at = at;
}

static void sift(struct cairn_prefix_tree *t, int32_t at)
{
	int32_t i = t->heap[at];
	uint64_t used = t->nodes[i].used;

	while (at && t->nodes[t->heap[(at - 1) / 2]].used > used) {
		heap_put(t, at, t->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	for (int32_t child = 2 * at + 1; child < t->heap_len; child = 2 * at + 1) {
		if (child + 1 < t->heap_len &&
		    t->nodes[t->heap[child + 1]].used < t->nodes[t->heap[child]].used)
			child++;
		if (t->nodes[t->heap[child]].used >= used)
			break;
		heap_put(t, at, t->heap[child]);
		at = child;
	}
	heap_put(t, at, i);
}

static void heap_remove(struct cairn_prefix_tree *t, int32_t i)
{
	int32_t at = t->nodes[i].heap_at, last = t->heap[--t->heap_len];

	t->nodes[i].heap_at = -1;
	if (last == i)
		return;
	heap_put(t, at, last);
	sift(t, at);
}

/* Updates the heap after node i may have become or ceased to be evictable, or its time has changed. */
static void settle(struct cairn_prefix_tree *t, int32_t i)
{
	struct node *n = &t->nodes[i];

	if (evictable(n)) {
		if (n->heap_at < 0)
			heap_put(t, t->heap_len++, i);
		sift(t, n->heap_at);
	} else if (n->heap_at >= 0) {
		heap_remove(t, i);
	}
}

/* Makes room for one more node in the array, the heap and the hash table. */
static int grow(struct cairn_prefix_tree *t)
{
	int32_t room = t->room ? 2 * t->room : 16;
	int32_t *heap, *buckets;
	struct node *nodes;

	if (t->unused != NONE)
		return 0;
	heap = realloc(t->heap, (size_t)room * sizeof(*heap));
	if (heap)
		t->heap = heap;
	nodes = realloc(t->nodes, (size_t)room * sizeof(*nodes));
	if (nodes)
		t->nodes = nodes;
	buckets = malloc((size_t)room * 2 * sizeof(*buckets));
	if (!heap || !nodes || !buckets) {
		free(buckets);
		return cairn_error(ENOMEM, "prefix_tree: no memory for %d nodes", room);
	}
	free(t->buckets);
	t->buckets = buckets;
	t->num_buckets = 2 * room;
	for (int32_t b = 0; b < t->num_buckets; b++)
		buckets[b] = NONE;
	for (int32_t i = room - 1; i >= t->room; i--) {
		t->nodes[i] = (struct node){ .next = t->unused };
		t->unused = i;
	}
	for (int32_t i = 0; i < t->room; i++)
		hash_in(t, i);		/* all of the old nodes are in use */
	t->room = room;
	return 0;
}

int cairn_prefix_tree_create(struct cairn_prefix_tree **out, struct cairn_kv_pool *pool, int32_t grain)
{
	struct cairn_kv_pool_stats st;
	struct cairn_prefix_tree *t;

	if (!out || !pool)
		return cairn_error(EINVAL, "prefix_tree: null pointer");
	cairn_kv_pool_stats(pool, &st);
	if (grain != 1 && (grain < 1 || grain % st.page_size))
		return cairn_error(EINVAL, "prefix_tree: grain: is %d, must be 1 or a multiple of %d", grain,
				   st.page_size);
	t = calloc(1, sizeof(*t));
	if (!t)
		return cairn_error(ENOMEM, "prefix_tree: no memory");
	t->pool = pool;
	t->page_size = st.page_size;
	t->grain = grain;
	t->unused = NONE;
	t->seed = mix(0x243f6a8885a308d3u, (uint64_t)(uintptr_t)t);
	if (grow(t)) {
		cairn_prefix_tree_destroy(t);
		return cairn_error(ENOMEM, "prefix_tree: no memory");
	}
	*out = t;
	return 0;
}

int cairn_prefix_tree_listen(struct cairn_prefix_tree *t, const struct cairn_prefix_listener *listener)
{
	if (t->num_roots || t->grain != t->page_size)
		return cairn_error(EINVAL, "prefix_tree: a listener needs an empty tree of grain page_size");
	t->listener = *listener;
	return 0;
}

/* Sets the hash of a node whose parent and tokens are set. */
static void hash_end(struct cairn_prefix_tree *t, struct node *n)
{
	const struct node *parent = &t->nodes[n->parent];

	n->told = parent->told;
	if (n->told)
		n->hash = t->listener.hash(t->listener.ctx, parent->hash, n->tokens, n->num_tokens);
}

void cairn_prefix_tree_destroy(struct cairn_prefix_tree *t)
{
	if (!t)
		return;
	for (int32_t i = 0; i < t->room; i++) {
		struct node *n = &t->nodes[i];

		for (int32_t k = 0; n->in_use && k < n->num_pages; k++)
			cairn_kv_pool_release(t->pool, n->pages[k]);
		free(n->tokens);
		free(n->pages);
	}
	free(t->nodes);
	free(t->buckets);
	free(t->heap);
	free(t);
}

/* Allocates a node with room for its edge; the caller fills it and enters it into the hash table. */
static int make_node(struct cairn_prefix_tree *t, int64_t start, int64_t num_tokens, int32_t *out)
{
	int64_t num_pages = (start + num_tokens + t->page_size - 1) / t->page_size - start / t->page_size;
	int32_t *tokens, *pages, i;

	CAIRN_TRY(grow(t));
	tokens = malloc((size_t)(num_tokens + 1) * sizeof(*tokens));
	pages = malloc((size_t)(num_pages + 1) * sizeof(*pages));
	if (!tokens || !pages) {
		free(tokens);
		free(pages);
		return cairn_error(ENOMEM, "prefix_tree: no memory for %lld tokens", (long long)num_tokens);
	}
	i = t->unused;
	t->unused = t->nodes[i].next;
	t->nodes[i] = (struct node){
		.in_use = 1, .parent = NONE, .heap_at = -1, .used = t->clock, .start = start,
		.num_tokens = num_tokens, .tokens = tokens, .pages = pages, .num_pages = (int32_t)num_pages,
	};
	*out = i;
	return 0;
}

static void free_node(struct cairn_prefix_tree *t, int32_t i)
{
	free(t->nodes[i].tokens);
	free(t->nodes[i].pages);
	t->nodes[i] = (struct node){ .next = t->unused };
	t->unused = i;
}

/*
 * Returns an array cut to num elements and the spare one of make_node(). Otherwise the lower node of a split
 * would keep all of its memory, and an edge that is split again and again, each time nearer to its start,
 * would take memory quadratic in its length.
 */
static int32_t *cut(int32_t *array, int64_t num)
{
	int32_t *less = realloc(array, (size_t)(num + 1) * sizeof(*array));

	return less ? less : array;	/* a failure wastes memory only */
}

/* Splits an edge after `at` tokens. *upper: the new node above; the old node is the lower one. */
static int split(struct cairn_prefix_tree *t, int32_t lower, int64_t at, int32_t *upper)
{
	struct node *l, *u;
	int32_t i, first;

	CAIRN_TRY(make_node(t, t->nodes[lower].start, at, &i));
	l = &t->nodes[lower];
	u = &t->nodes[i];
	hash_out(t, lower);
	memcpy(u->tokens, l->tokens, (size_t)at * sizeof(*u->tokens));
	memcpy(u->pages, l->pages, (size_t)u->num_pages * sizeof(*u->pages));
	u->parent = l->parent;
	u->num_children = 1;
	u->used = l->used;

	first = (int32_t)((l->start + at) / t->page_size - l->start / t->page_size);
	if (first < u->num_pages) {	/* split within a page: both nodes hold the page */
		cairn_kv_pool_hold(t->pool, l->pages[first]);
		t->stats.num_pages++;
	}
	l->num_pages -= first;
	memmove(l->pages, l->pages + first, (size_t)l->num_pages * sizeof(*l->pages));
	l->start += at;
	l->num_tokens -= at;
	if (FAULT(SPLIT_OFF_BY_ONE))
		memmove(l->tokens, l->tokens + at + 1, (size_t)(l->num_tokens - 1) * sizeof(*l->tokens));
	else
		memmove(l->tokens, l->tokens + at, (size_t)l->num_tokens * sizeof(*l->tokens));
	l->tokens = cut(l->tokens, l->num_tokens);
	l->pages = cut(l->pages, l->num_pages);
	l->parent = i;
	if (FAULT(EVENTS_SPLIT))
		u->told = l->told;
	else
		hash_end(t, u);
	hash_in(t, lower);
	hash_in(t, i);
	t->stats.num_nodes++;
	t->version++;
	*upper = i;
	return 0;
}

/* Returns how many tokens of an edge agree, in whole grains. */
static int64_t agree(const struct cairn_prefix_tree *t, const struct node *n, const int32_t *tokens,
		     int64_t num_tokens)
{
	int64_t most = num_tokens < n->num_tokens ? num_tokens : n->num_tokens, k = t->grain;

	while (k < most && (n->tokens[k] == tokens[k] || FAULT(FIRST_TOKEN_ONLY)))
		k++;
	return k - k % t->grain;
}

static void touch(struct cairn_prefix_tree *t, int32_t i)
{
	if (FAULT(LRU_NOT_TOUCHED))
		return;
	for (; i != NONE; i = t->nodes[i].parent) {
		t->nodes[i].used = t->clock;
		settle(t, i);
	}
}

/* Walks down from a root, splitting the last edge; returns how many
 * tokens agree, and in *node the last node. */
static int64_t walk(struct cairn_prefix_tree *t, int32_t root, const int32_t *tokens, int64_t num_tokens,
		    int32_t *node)
{
	int32_t at = root, child;
	int64_t pos = 0, common;

	while (num_tokens - pos >= t->grain) {
		child = find_child(t, at, tokens + pos);
		if (child == NONE)
			break;
		common = agree(t, &t->nodes[child], tokens + pos, num_tokens - pos);
		if (common < t->nodes[child].num_tokens) {
			if (split(t, child, common, &at) == 0)
				pos += common;
			break;
		}
		pos += common;
		at = child;
	}
	*node = at;
	return pos;
}

int64_t cairn_prefix_tree_match(struct cairn_prefix_tree *t, struct cairn_cache_salt salt,
				const int32_t *tokens, int64_t num_tokens, int32_t *node, int32_t *pages)
{
	int32_t root = find_root(t, FAULT(SALT_IGNORED) ? (struct cairn_cache_salt){ 0 } : salt), at;
	int64_t len;

	*node = NONE;
	if (root == NONE)
		return 0;
	t->clock++;
	len = walk(t, root, tokens, num_tokens, &at);
	touch(t, at);
	if (len && pages)
		cairn_prefix_tree_path(t, at, NULL, NULL, pages);
	if (len)
		*node = at;
	return len;
}

int64_t cairn_prefix_tree_peek(const struct cairn_prefix_tree *t, struct cairn_cache_salt salt,
			       const int32_t *tokens, int64_t num_tokens)
{
	int32_t at = find_root(t, salt);
	int64_t pos = 0, common;

	while (at != NONE && num_tokens - pos >= t->grain) {
		at = find_child(t, at, tokens + pos);
		if (at == NONE)
			break;
		common = agree(t, &t->nodes[at], tokens + pos, num_tokens - pos);
		pos += common;
		if (common < t->nodes[at].num_tokens)
			break;
	}
	return pos;
}

static int root_of(struct cairn_prefix_tree *t, struct cairn_cache_salt salt, int32_t *root)
{
	*root = find_root(t, salt);
	if (*root != NONE)
		return 0;
	CAIRN_TRY(make_node(t, 0, 0, root));
	t->nodes[*root].is_root = 1;
	t->nodes[*root].salt = salt;
	t->nodes[*root].told = t->listener.stored && ((!salt.hi && !salt.lo) || FAULT(EVENTS_SALTED));
	hash_in(t, *root);
	t->num_roots++;
	return 0;
}

static void drop_root_if_bare(struct cairn_prefix_tree *t, int32_t root)
{
	if (!t->nodes[root].is_root || t->nodes[root].num_children)
		return;
	hash_out(t, root);
	free_node(t, root);
	t->num_roots--;
}

/* Adds a leaf with the tokens that follow those of its parent. */
static int add_leaf(struct cairn_prefix_tree *t, int32_t parent, int64_t start, const int32_t *tokens,
		    int64_t num_tokens, const int32_t *pages, int32_t *out)
{
	struct node *n;
	int32_t i, k;

	CAIRN_TRY(make_node(t, start, num_tokens - start, &i));
	n = &t->nodes[i];
	memcpy(n->tokens, tokens + start, (size_t)n->num_tokens * sizeof(*tokens));
	memcpy(n->pages, pages + start / t->page_size, (size_t)n->num_pages * sizeof(*pages));
	for (k = 0; k < n->num_pages; k++) {
		int ret = cairn_kv_pool_hold(t->pool, n->pages[k]);

		if (ret) {
			while (k--)
				cairn_kv_pool_release(t->pool, n->pages[k]);
			free_node(t, i);
			return ret;
		}
	}
	n->parent = parent;
	hash_in(t, i);
	t->nodes[parent].num_children++;
	settle(t, parent);
	t->stats.num_nodes++;
	t->stats.num_tokens += n->num_tokens;
	t->stats.num_pages += n->num_pages;
	t->version++;
	hash_end(t, n);
	if (n->told)
		t->listener.stored(t->listener.ctx, t->nodes[parent].hash, n->tokens, n->num_tokens);
	*out = i;
	return 0;
}

int cairn_prefix_tree_insert(struct cairn_prefix_tree *t, struct cairn_cache_salt salt,
			     const int32_t *tokens, int64_t num_tokens, const int32_t *pages, int32_t *node)
{
	int32_t root, at;
	int64_t pos;
	int ret = 0;

	num_tokens -= num_tokens % t->grain;
	if (num_tokens <= 0) {
		*node = NONE;
		return 0;
	}
	t->clock++;
	CAIRN_TRY(root_of(t, salt, &root));
	pos = walk(t, root, tokens, num_tokens, &at);
	/* A walk that had no memory to split stopped before an edge with the same first grain. */
	if (pos < num_tokens && find_child(t, at, tokens + pos) != NONE)
		ret = cairn_error(ENOMEM, "prefix_tree: no memory to split an edge");
	else if (pos < num_tokens)
		ret = add_leaf(t, at, pos, tokens, num_tokens, pages, &at);
	if (ret) {
		drop_root_if_bare(t, root);
		return ret;
	}
	touch(t, at);
	*node = at;
	return 0;
}

int cairn_prefix_tree_pin(struct cairn_prefix_tree *t, int32_t node)
{
	struct node *n = lookup(t, node);

	if (!n)
		return cairn_error(EINVAL, "prefix_tree: there is no node %d", node);
	n->pins++;
	t->stats.num_pins++;
	settle(t, node);
	return 0;
}

int cairn_prefix_tree_unpin(struct cairn_prefix_tree *t, int32_t node)
{
	struct node *n = lookup(t, node);

	if (!n || !n->pins)
		return cairn_error(EINVAL, "prefix_tree: node %d is not pinned", node);
	n->pins--;
	t->stats.num_pins--;
	settle(t, node);
	return 0;
}

int32_t cairn_prefix_tree_victim(const struct cairn_prefix_tree *t)
{
	int32_t least = t->heap_len ? t->heap[0] : NONE;

	for (int32_t i = 0; FAULT(EVICT_INNER) && i < t->room; i++) {
		if (lookup(t, i) && !t->nodes[i].pins &&
		    (least == NONE || t->nodes[i].used <= t->nodes[least].used))
			least = i;
	}
	return least;
}

int cairn_prefix_tree_remove(struct cairn_prefix_tree *t, int32_t node)
{
	struct node *n = lookup(t, node);
	int32_t parent;

	if (!n || (!evictable(n) && !FAULT(EVICT_INNER)))
		return cairn_error(EINVAL, "prefix_tree: node %d is not an evictable leaf", node);
	if (n->heap_at >= 0)
		heap_remove(t, node);
	hash_out(t, node);
	/* Release from the end, so that the pool's stack returns the pages in their old order and runs
	 * stay contiguous. */
	for (int32_t k = n->num_pages - 1; k >= 0; k--)
		cairn_kv_pool_release(t->pool, n->pages[k]);
	t->stats.num_nodes--;
	t->stats.num_tokens -= n->num_tokens;
	t->stats.num_pages -= n->num_pages;
	parent = n->parent;
	if (n->told && !FAULT(EVENTS_REMOVAL_LOST))
		t->listener.removed(t->listener.ctx, t->nodes[parent].hash, n->tokens, n->num_tokens);
	free_node(t, node);
	t->nodes[parent].num_children--;
	settle(t, parent);
	drop_root_if_bare(t, parent);
	t->version++;
	return 0;
}

int cairn_prefix_tree_evict(struct cairn_prefix_tree *t, int32_t free_pages)
{
	while (cairn_kv_pool_free_pages(t->pool) < free_pages) {
		int32_t victim = cairn_prefix_tree_victim(t);

		if (victim == NONE)
			return cairn_error(ENOSPC, "prefix_tree: nothing is left to evict");
		CAIRN_TRY(cairn_prefix_tree_remove(t, victim));
	}
	return 0;
}
