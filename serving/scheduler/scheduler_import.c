// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_import - keys and values that another process has computed enter the device's prefix tree
 *
 * The request waits in the queue. An import takes free pages, evicting from the tree if needed, but never
 * pages of a running sequence: it may fail, and the prompt is then computed here. Like every prefix in the
 * tree, what was imported belongs to no request, and may be evicted before the request is admitted.
 */
#include "serving/scheduler/scheduler_impl.h"

static int64_t whole(const struct cairn_scheduler *s, int64_t len)
{
	return len - len % s->opt.page_size;
}

int32_t cairn_scheduler_cached(const struct cairn_scheduler *s, struct cairn_cache_salt salt,
			       const int32_t *tokens, int32_t num_tokens, int32_t *on_device)
{
	const int64_t len = num_tokens - 1;	/* the last token is always computed */
	int64_t found = 0, host = 0;

	if (s->device.tree && len > 0)
		found = cairn_prefix_tree_peek(s->device.tree, salt, tokens, len);
	if (s->host.tree && len > 0)
		host = cairn_prefix_tree_peek(s->host.tree, salt, tokens, len);
	*on_device = (int32_t)whole(s, found);
	return (int32_t)whole(s, host > found ? host : found);
}

/* Opens a sequence of `len` tokens. The tree has the first `found` of them, in the pages of path_pages. */
static int take_pages(struct cairn_scheduler *s, int32_t seq, int64_t found, int64_t len)
{
	int ret = cairn_kv_pool_adopt(s->device.pool, seq, s->path_pages, found);

	while (!ret && (ret = cairn_kv_pool_resize(s->device.pool, seq, len, NULL)) == -ENOSPC) {
		int32_t leaf = cairn_prefix_tree_victim(s->device.tree), before;

		if (leaf == CAIRN_PREFIX_NONE)
			return ret;
		before = cairn_kv_pool_free_pages(s->device.pool);
		ret = cairn_prefix_tree_remove(s->device.tree, leaf);
		s->stats.evicted_pages += cairn_kv_pool_free_pages(s->device.pool) - before;
	}
	return ret;
}

static int import(struct cairn_scheduler *s, struct sched_seq *q, int32_t seq, int64_t first, int64_t len,
		  int32_t source)
{
	const int64_t ps = s->opt.page_size;
	const int32_t *pages;
	int32_t node, n;
	int64_t found = cairn_prefix_tree_match(s->device.tree, q->req->salt, q->tokens, len, &node,
						s->path_pages);

	found = whole(s, found);
	if (found < first && !FAULT(IMPORT_GAP))
		return cairn_error(ENOENT, "request %llu: its first %lld tokens are not cached any more",
				   (unsigned long long)q->req->id, (long long)first);
	CAIRN_TRY(take_pages(s, seq, found, len));
	pages = cairn_kv_pool_pages(s->device.pool, seq, &n);
	for (int64_t k = found / ps; k < len / ps; k++)
		CAIRN_TRY(sched_move(s, &s->before, CAIRN_MOVE_PULL, pages[k],
				     source + (int32_t)(k - (FAULT(IMPORT_SHIFTED) ? found : first) / ps)));
	CAIRN_TRY(cairn_prefix_tree_insert(s->device.tree, q->req->salt, q->tokens, len, pages, &node));
	if (len <= found)
		return 0;
	q->imported += (int32_t)(len - found);
	s->stats.imported_tokens += len - found;
	return (int32_t)(len - found);
}

int cairn_scheduler_import(struct cairn_scheduler *s, uint64_t request, int32_t first, int32_t num_tokens,
			   int32_t source)
{
	struct sched_seq *q = sched_find(s, request, -1);
	int32_t seq;
	int ret;

	if (!q || q->is_fetching != SCHED_PULLED)
		return cairn_error(ENOENT, "request %llu does not wait for an import",
				   (unsigned long long)request);
	if (!s->device.tree || s->opt.repeat_chunk || first < 0 || first >= num_tokens ||
	    num_tokens >= q->num_known || first % s->opt.page_size || num_tokens % s->opt.page_size)
		return cairn_error(EINVAL, "scheduler: import: tokens %d to %d of %d", first, num_tokens,
				   q->num_known);
	CAIRN_TRY(cairn_kv_pool_open(s->device.pool, &seq));
	ret = import(s, q, seq, first, num_tokens, source);
	cairn_kv_pool_close(s->device.pool, seq);
	return ret;
}
