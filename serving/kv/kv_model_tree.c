// SPDX-License-Identifier: Apache-2.0
/*
 * kv_model_tree - checks the prefix tree against a list of prefixes
 *
 * The list has every prefix (in whole grains) of everything in the tree, with the time of its last use and
 * its pins. A lookup must find the longest one; an evicted prefix must be the least recently used of those
 * that no other prefix continues and that are not pinned. Like keys and values, the contents of a page depend
 * on everything before it: each token's slot holds a digest of the salt and all tokens up to it. A lookup
 * must return the digests of the prompt. Operation 0 of a list chooses grain and page size.
 */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/kv/kv_model.h"
#include "serving/kv/prefix_tree.h"

enum { TREE_PAGES = 20, TREE_LEN = 14, TREE_PREFIXES = 20 * 3 * TREE_LEN, TREE_PINS = 3 };
enum { SEND, MATCH, PEEK, PIN, UNPIN, EVICT, NUM_TREE_OPS };

static const char *const tree_ops[NUM_TREE_OPS] = { "send", "match", "peek", "pin", "unpin", "evict" };

struct prefix {
	uint32_t salt;
	int32_t len, tokens[TREE_LEN], pins;
	uint64_t used;
};

struct tree_world {
	struct cairn_kv_pool *pool;
	struct cairn_prefix_tree *tree;
	int32_t grain, page_size;
	uint64_t memory[TREE_PAGES][3], clock;
	struct prefix list[TREE_PREFIXES];
	int num;
	struct { int pinned; int32_t node; struct prefix at; } pins[TREE_PINS];
	uint64_t told[TREE_PREFIXES];	/* hashes of the pages that the listener knows */
	int num_told, wrong_told;	/* wrong_told: pages stored twice, or removed without being stored */
	char *why;
	size_t why_len;
};

static int tree_wrong(struct tree_world *w, const char *what, int64_t got, int64_t want)
{
	snprintf(w->why, w->why_len, "%s: %lld, not %lld (%s)", what, (long long)got, (long long)want,
		 cairn_last_error());
	return -1;
}

static uint64_t digest(uint32_t salt, const int32_t *tokens, int32_t len)
{
	uint64_t h = salt + 1;	/* the hash of a run is never 0, which stands for the start of a prompt */

	for (int32_t i = 0; i < len; i++)
		h = (h ^ (uint64_t)(tokens[i] + 2)) * 0x9e3779b97f4a7c15u;
	return h;
}

/* The hash of a run, page by page: that of the salt 0 and all tokens up to it. */
static uint64_t hash_run(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	uint64_t h = before ? before : digest(0, NULL, 0);

	(void)ctx;
	for (int64_t i = 0; i < num_tokens; i++)
		h = (h ^ (uint64_t)(tokens[i] + 2)) * 0x9e3779b97f4a7c15u;
	return h;
}

static int told_at(const struct tree_world *w, uint64_t hash)
{
	int i = 0;

	while (i < w->num_told && w->told[i] != hash)
		i++;
	return i;
}

static void on_stored(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	struct tree_world *w = ctx;

	for (int64_t n = w->page_size; n <= num_tokens; n += w->page_size) {
		uint64_t h = hash_run(NULL, before, tokens, n);

		if (told_at(w, h) < w->num_told || w->num_told == TREE_PREFIXES)
			w->wrong_told++;
		else
			w->told[w->num_told++] = h;
	}
	w->wrong_told += num_tokens % w->page_size != 0;
}

static void on_removed(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	struct tree_world *w = ctx;

	for (int64_t n = w->page_size; n <= num_tokens; n += w->page_size) {
		int at = told_at(w, hash_run(NULL, before, tokens, n));

		if (at < w->num_told)
			w->told[at] = w->told[--w->num_told];
		else
			w->wrong_told++;
	}
}

static int begins(const struct prefix *p, const struct prefix *longer)
{
	return p->salt == longer->salt && p->len <= longer->len &&
		!memcmp(p->tokens, longer->tokens, (size_t)p->len * sizeof(int32_t));
}

static struct prefix *find(struct tree_world *w, const struct prefix *p)
{
	for (int i = 0; i < w->num; i++) {
		if (w->list[i].len == p->len && begins(&w->list[i], p))
			return &w->list[i];
	}
	return NULL;
}

/* Marks all prefixes of p up to len as used now and adds the missing ones. */
static void use(struct tree_world *w, const struct prefix *p, int32_t len)
{
	struct prefix part = *p, *f;

	for (part.len = w->grain; part.len <= len; part.len += w->grain) {
		f = find(w, &part);
		if (!f) {
			f = &w->list[w->num++];
			*f = part;
			f->pins = 0;
		}
		f->used = w->clock;
	}
}

static int32_t longest(struct tree_world *w, const struct prefix *p)
{
	struct prefix part = *p;

	part.len -= part.len % w->grain;
	while (part.len > 0 && !find(w, &part))
		part.len -= w->grain;
	return part.len;
}

static struct cairn_cache_salt salt_of(const struct prefix *p)
{
	return (struct cairn_cache_salt){ 0, p->salt };
}

/* Prompts use two different tokens and two salts, so that they share and diverge often. */
static struct prefix prompt_of(const struct kv_op *op)
{
	struct prefix p = { .salt = op->a % 2, .len = 1 + (int32_t)(op->b % TREE_LEN) };

	for (int32_t i = 0; i < p.len; i++)
		p.tokens[i] = (int32_t)(op->c >> i & 1);
	return p;
}

static int free_to_go(const struct tree_world *w, const struct prefix *p)
{
	if (p->pins)
		return 0;
	for (int i = 0; i < w->num; i++) {
		if (w->list[i].len > p->len && begins(p, &w->list[i]))
			return 0;
	}
	return 1;
}

static int tree_evict(struct tree_world *w, int *none)
{
	int32_t victim = cairn_prefix_tree_victim(w->tree), tokens[TREE_LEN];
	struct cairn_prefix_node node;
	struct cairn_cache_salt salt;
	const struct prefix *least = NULL;
	struct prefix gone = { 0 }, *f;
	int ret;

	for (int i = 0; i < w->num; i++) {
		if (free_to_go(w, &w->list[i]) && (!least || w->list[i].used < least->used))
			least = &w->list[i];
	}
	*none = !least;
	if (victim == CAIRN_PREFIX_NONE || !least)
		return victim == CAIRN_PREFIX_NONE && !least
			       ? 0
			       : tree_wrong(w, "victim", victim, least ? 0 : -1);
	ret = cairn_prefix_tree_node(w->tree, victim, &node);
	if (ret)
		return tree_wrong(w, "node of the victim", ret, 0);
	gone.len = (int32_t)cairn_prefix_tree_path(w->tree, victim, &salt, tokens, NULL);
	gone.salt = (uint32_t)salt.lo;
	memcpy(gone.tokens, tokens, (size_t)gone.len * sizeof(*tokens));
	if (gone.len != least->len || !begins(&gone, least))
		return tree_wrong(w, "the victim is not the least recent leaf, its length", gone.len,
				  least->len);
	for (; gone.len > node.start; gone.len -= w->grain) {
		f = find(w, &gone);
		if (!f || !free_to_go(w, f))
			return tree_wrong(w, "evicted in use, at", gone.len, node.start);
		*f = w->list[--w->num];
	}
	ret = cairn_prefix_tree_remove(w->tree, victim);
	return ret ? tree_wrong(w, "remove", ret, 0) : 0;
}

/* Looks up p and checks that the pages found hold its digests. */
static int tree_match(struct tree_world *w, const struct prefix *p, int32_t *node, int32_t *pages,
		      int32_t *out)
{
	int32_t want = longest(w, p);

	*out = (int32_t)cairn_prefix_tree_match(w->tree, salt_of(p), p->tokens, p->len, node, pages);
	w->clock++;
	use(w, p, want);
	if (*out != want || (*node == CAIRN_PREFIX_NONE) != !want)
		return tree_wrong(w, "match", *out, want);
	for (int32_t i = 0; i < want; i++) {
		if (pages[i / w->page_size] < 0 || pages[i / w->page_size] >= TREE_PAGES ||
		    w->memory[pages[i / w->page_size]][i % w->page_size] != digest(p->salt, p->tokens, i + 1))
			return tree_wrong(w, "keys of another prompt at", i, -1);
	}
	return 0;
}

/* Serves a request: looks up its prefix, computes the rest and inserts it. */
static int tree_send(struct tree_world *w, const struct prefix *p)
{
	int32_t pages[TREE_LEN], node, seq, n, matched;
	struct cairn_kv_copy copy = { -1, -1 };
	const int32_t *table;
	int ret, none = 0;

	if (tree_match(w, p, &node, pages, &matched))
		return -1;
	if (node != CAIRN_PREFIX_NONE) {
		struct prefix part = *p;

		part.len = matched;
		cairn_prefix_tree_pin(w->tree, node);
		find(w, &part)->pins++;
	}
	ret = cairn_kv_pool_open(w->pool, &seq);
	if (!ret)
		ret = cairn_kv_pool_adopt(w->pool, seq, pages, matched);
	while (!ret && (ret = cairn_kv_pool_resize(w->pool, seq, p->len, &copy)) == -ENOSPC && !none)
		ret = tree_evict(w, &none);
	if (ret && ret != -ENOSPC)
		return w->why[0] ? -1 : tree_wrong(w, "send", ret, 0);
	if (!ret) {
		if (copy.from >= 0)
			memmove(w->memory[copy.to], w->memory[copy.from], sizeof(w->memory[0]));
		table = cairn_kv_pool_pages(w->pool, seq, &n);
		for (int32_t i = matched; i < p->len; i++)
			w->memory[table[i / w->page_size]][i % w->page_size] =
				digest(p->salt, p->tokens, i + 1);
	}
	if (node != CAIRN_PREFIX_NONE) {
		struct prefix part = *p;

		part.len = matched;
		if (cairn_prefix_tree_unpin(w->tree, node))
			return tree_wrong(w, "unpin", -1, 0);
		find(w, &part)->pins--;
	}
	if (!ret) {
		table = cairn_kv_pool_pages(w->pool, seq, &n);
		ret = cairn_prefix_tree_insert(w->tree, salt_of(p), p->tokens, p->len, table, &node);
		if (ret)
			return tree_wrong(w, "insert", ret, 0);
		w->clock++;
		use(w, p, p->len);
	}
	return cairn_kv_pool_close(w->pool, seq);
}

static int tree_pin(struct tree_world *w, const struct kv_op *op)
{
	struct prefix p = prompt_of(op), *f;
	int32_t pages[TREE_LEN], node;
	int i = (int)((op->a >> 8) % TREE_PINS);

	if (w->pins[i].pinned)
		return 0;
	if (tree_match(w, &p, &node, pages, &p.len))
		return -1;
	if (node == CAIRN_PREFIX_NONE)
		return 0;
	f = find(w, &p);
	f->pins++;
	w->pins[i].pinned = 1;
	w->pins[i].node = node;
	w->pins[i].at = p;
	return cairn_prefix_tree_pin(w->tree, node) ? tree_wrong(w, "pin", -1, 0) : 0;
}

static int tree_op(struct tree_world *w, const struct kv_op *op)
{
	struct prefix p = prompt_of(op);
	int32_t pages[TREE_LEN], node, len, want;
	int i = (int)((op->a >> 8) % TREE_PINS), none;

	switch (op->what) {
	case SEND:
		return tree_send(w, &p);
	case MATCH:
		return tree_match(w, &p, &node, pages, &len);
	case PEEK:
		want = longest(w, &p);
		len = (int32_t)cairn_prefix_tree_peek(w->tree, salt_of(&p), p.tokens, p.len);
		return len == want ? 0 : tree_wrong(w, "peek", len, want);
	case PIN:
		return tree_pin(w, op);
	case UNPIN:
		if (!w->pins[i].pinned)
			return 0;
		w->pins[i].pinned = 0;
		if (!find(w, &w->pins[i].at) || cairn_prefix_tree_unpin(w->tree, w->pins[i].node))
			return tree_wrong(w, "a pinned node has gone", -1, 0);
		find(w, &w->pins[i].at)->pins--;
		return 0;
	default:
		return tree_evict(w, &none);
	}
}

/* The listener knows exactly the pages of all prefixes without a salt. */
static int check_told(struct tree_world *w)
{
	int pages = 0;

	for (int i = 0; i < w->num; i++) {
		const struct prefix *p = &w->list[i];

		if (p->salt)
			continue;
		pages++;
		if (told_at(w, digest(0, p->tokens, p->len)) == w->num_told)
			return tree_wrong(w, "no page was told that ends at", p->len, p->len);
	}
	return w->wrong_told || w->num_told != pages ?
		tree_wrong(w, "told pages", w->wrong_told ? -w->wrong_told : w->num_told, pages) : 0;
}

static int tree_run(const struct kv_op *ops, int n, char *why, size_t why_len)
{
	static const int32_t shapes[4][2] = { { 1, 1 }, { 1, 3 }, { 3, 3 }, { 6, 3 } };	/* grain, page size */
	static struct tree_world world;
	struct tree_world *w = &world;
	int i;

	memset(w, 0, sizeof(*w));
	w->why = why;
	w->why_len = why_len;
	why[0] = 0;
	w->grain = shapes[n ? ops[0].a / 2 % 4 : 0][0];
	w->page_size = shapes[n ? ops[0].a / 2 % 4 : 0][1];
	if (cairn_kv_pool_create(&w->pool, TREE_PAGES, w->page_size, 1))
		return 0;
	if (cairn_prefix_tree_create(&w->tree, w->pool, w->grain))
		goto out_pool;
	if (w->grain == w->page_size)
		cairn_prefix_tree_listen(w->tree, &(struct cairn_prefix_listener){ w, hash_run, on_stored,
										   on_removed });
	for (i = 0; i < n; i++) {
		struct cairn_prefix_stats st;

		if (tree_op(w, &ops[i]))
			break;
		if (cairn_prefix_tree_verify(w->tree) || cairn_kv_pool_verify(w->pool)) {
			tree_wrong(w, "verify", -EIO, 0);
			break;
		}
		cairn_prefix_tree_stats(w->tree, &st);
		if (st.num_tokens != (int64_t)w->num * w->grain) {
			tree_wrong(w, "tokens in the tree", st.num_tokens, (int64_t)w->num * w->grain);
			break;
		}
		if (w->grain == w->page_size && check_told(w))
			break;
	}
	cairn_prefix_tree_destroy(w->tree);
	if (i == n && cairn_kv_pool_free_pages(w->pool) != TREE_PAGES) {
		tree_wrong(w, "pages left behind", TREE_PAGES - cairn_kv_pool_free_pages(w->pool), 0);
		i = n - 1;
	}
	cairn_kv_pool_destroy(w->pool);
	return i;

out_pool:
	cairn_kv_pool_destroy(w->pool);
	return 0;
}

const struct kv_model kv_model_tree = { "prefix_tree", tree_ops, NUM_TREE_OPS, tree_run };
