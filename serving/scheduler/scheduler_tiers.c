// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_tiers - keeps keys and values in the prefix tree, in host memory and on disk
 *
 * Each tier is a pool with a prefix tree over it, in the same units: a page of the host's pool is a slot of
 * host memory that holds one device page, all layers in one piece. The part of a sequence in the host tier is
 * a sequence of the host's pool, called its shadow. The shadow is a prefix of what the device holds, or held
 * before the sequence was preempted. Sequences share slots as they share pages. When the sequence ends, its
 * shadow is inserted into the host's tree.
 *
 *   device --- OUT, OFFLOAD ---> host --- SPILL, when the host's tree evicts ---> disk
 *          <------- IN --------       <------------------ FETCH ----------------
 */
#include "serving/scheduler/scheduler_impl.h"

/* Rounds len down to whole pages. Shadows share only these, so no slot must be copied before a write. */
static int64_t whole(const struct cairn_scheduler *s, int64_t len)
{
	return len - len % s->opt.page_size;
}

/*
 * Returns how many of q's first len tokens other sequences may share through a tree: all, or with
 * repeat_chunk whole chunks of the prompt. The last row of a prompt with several answers is in no chunk.
 */
int64_t sched_usable(const struct cairn_scheduler *s, const struct sched_seq *q, int64_t len)
{
	if (!s->opt.repeat_chunk)
		return len;
	if (len > q->req->num_prompt - q->req->is_forked && !FAULT(REPEAT_ANSWER_KEPT))
		len = q->req->num_prompt - q->req->is_forked;
	return FAULT(REPEAT_MID_CHUNK) ? len : len - len % s->opt.repeat_chunk;
}

void sched_unpin(struct cairn_scheduler *s, struct sched_seq *q)
{
	if (q->node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_unpin(s->device.tree, q->node);
	if (q->host_node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_unpin(s->host.tree, q->host_node);
	q->node = q->host_node = CAIRN_PREFIX_NONE;
}

void sched_drop_shadow(struct cairn_scheduler *s, struct sched_seq *q)
{
	if (q->shadow >= 0)
		cairn_kv_pool_close(s->host.pool, q->shadow);
	q->shadow = NOWHERE;
}

static int put_in(struct tier *tier, const struct sched_seq *q, int64_t len, int32_t handle, int32_t *node)
{
	int32_t n;
	const int32_t *pages = cairn_kv_pool_pages(tier->pool, handle, &n);

	return cairn_prefix_tree_insert(tier->tree, q->req->salt, q->tokens, len, pages, node);
}

/* Spills a leaf of the host's tree to disk, except what the disk already has. A full disk is no error. */
static int spill(struct cairn_scheduler *s, int32_t leaf)
{
	int32_t *slots = s->path_pages, *places = slots + s->opt.max_context + 1, seq, node, n;
	struct cairn_cache_salt salt;
	int64_t len = cairn_prefix_tree_path(s->host.tree, leaf, &salt, s->path_tokens, slots), found;
	const int32_t *pages;
	int ret;

	found = cairn_prefix_tree_match(s->disk.tree, salt, s->path_tokens, len, &node, places);
	if (found == len)
		return 0;
	found = whole(s, found);
	CAIRN_TRY(cairn_kv_pool_open(s->disk.pool, &seq));
	ret = cairn_kv_pool_adopt(s->disk.pool, seq, places, found);
	while (!ret && (ret = cairn_kv_pool_resize(s->disk.pool, seq, len, NULL)) == -ENOSPC &&
	       cairn_prefix_tree_victim(s->disk.tree) != CAIRN_PREFIX_NONE)
		ret = cairn_prefix_tree_remove(s->disk.tree, cairn_prefix_tree_victim(s->disk.tree));
	if (!ret) {
		pages = cairn_kv_pool_pages(s->disk.pool, seq, &n);
		for (int64_t k = found / s->opt.page_size; !ret && k < n; k++)
			ret = sched_move(s, FAULT(SPILL_LATE) ? &s->after : &s->before, CAIRN_MOVE_SPILL,
					 slots[k], pages[k]);
		if (!ret)
			ret = cairn_prefix_tree_insert(s->disk.tree, salt, s->path_tokens, len, pages, &node);
	}
	cairn_kv_pool_close(s->disk.pool, seq);
	return ret == -ENOSPC ? 0 : ret;
}

/* Makes a sequence of the host's pool len tokens long, evicting from the host's tree if needed. */
static int grow_host(struct cairn_scheduler *s, int32_t seq, int64_t len)
{
	int ret;

	while ((ret = cairn_kv_pool_resize(s->host.pool, seq, len, NULL)) == -ENOSPC && s->host.tree) {
		int32_t leaf = cairn_prefix_tree_victim(s->host.tree);

		if (leaf == CAIRN_PREFIX_NONE)
			return ret;
		if (s->disk.tree)
			CAIRN_TRY(spill(s, leaf));
		CAIRN_TRY(cairn_prefix_tree_remove(s->host.tree, leaf));
	}
	return ret;
}

/* Opens a shadow with the part of q's first len tokens that the host's tree has. -ENOSPC: no free handle. */
static int open_shadow(struct cairn_scheduler *s, struct sched_seq *q, int64_t len)
{
	int32_t node;
	int64_t found = 0;

	CAIRN_TRY(cairn_kv_pool_open(s->host.pool, &q->shadow));
	if (s->host.tree)
		found = cairn_prefix_tree_match(s->host.tree, q->req->salt, q->tokens, len, &node,
						s->path_pages);
	found = whole(s, sched_usable(s, q, found));
	return cairn_kv_pool_adopt(s->host.pool, q->shadow, s->path_pages, found);
}

/* Extends the shadow to the first len tokens on the device. -ENOSPC: the host is full; nothing changes. */
static int extend_shadow(struct cairn_scheduler *s, struct sched_seq *q, int64_t len, struct move_list *list,
			 int kind)
{
	int64_t first = cairn_kv_pool_len(s->host.pool, q->shadow) / s->opt.page_size;
	const int32_t *slots, *pages;
	int32_t n, have;

	CAIRN_TRY(grow_host(s, q->shadow, len));
	slots = cairn_kv_pool_pages(s->host.pool, q->shadow, &n);
	pages = cairn_kv_pool_pages(s->device.pool, q->kv, &have);
	for (int64_t k = first; k < n; k++) {
		if (FAULT(SWAP_PAGE_LOST) && kind == CAIRN_MOVE_OUT && k == n - 1)
			break;
		CAIRN_TRY(sched_move(s, list, kind, pages[k], slots[k]));
	}
	return 0;
}

int sched_swap_out(struct cairn_scheduler *s, struct sched_seq *q, int64_t len)
{
	int ret = 0;

	if (q->shadow < 0)
		ret = open_shadow(s, q, q->computed < q->num_known ? q->computed : q->num_known);
	if (!ret && cairn_kv_pool_len(s->host.pool, q->shadow) < len)
		ret = extend_shadow(s, q, len, &s->before, CAIRN_MOVE_OUT);
	return ret;
}

/*
 * Offloads the pages that this plan fills: while the step runs, each layer's part can be copied as soon as it
 * is computed. Pages filled earlier (a prefix found on the device) are offloaded at most as many per step as
 * one step can fill, so that the copies of all steps take about the same time.
 */
int sched_offload(struct cairn_scheduler *s, struct sched_seq *q)
{
	int64_t len = whole(s, q->computed - (FAULT(DRAFT_OFFLOADED) ? 0 : q->drafted)), have;
	int64_t most = whole(s, s->opt.dense_rows) + s->opt.page_size;
	int ret = 0;

	if (q->shadow < 0)
		ret = open_shadow(s, q, q->computed < q->num_known ? q->computed : q->num_known);
	if (!ret) {
		have = whole(s, cairn_kv_pool_len(s->host.pool, q->shadow));
		if (len > have + most)
			len = have + most;
		if (len > have)
			ret = extend_shadow(s, q, len, FAULT(OFFLOAD_EARLY) ? &s->before : &s->after,
					    CAIRN_MOVE_OFFLOAD);
	}
	return ret == -ENOSPC ? 0 : ret;	/* no room in the host: retried in a later plan */
}

/*
 * Inserts a prompt into the tree as soon as it is computed, so that other requests can share it. Inserts only
 * whole pages: a partly filled page is still written to and would have to be copied first.
 */
int sched_keep_prompt(struct cairn_scheduler *s, struct sched_seq *q)
{
	int32_t node;

	if (!s->device.tree || q->is_cached || q->computed < q->req->num_prompt)
		return 0;
	q->is_cached = 1;
	CAIRN_TRY(put_in(&s->device, q, whole(s, sched_usable(s, q, q->req->num_prompt)), q->kv, &node));
	if (node == CAIRN_PREFIX_NONE)
		return 0;
	cairn_prefix_tree_pin(s->device.tree, node);
	if (q->node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_unpin(s->device.tree, q->node);
	q->node = node;
	return 0;
}

/* Inserts what an ending sequence has computed into the trees. */
int sched_keep_all(struct cairn_scheduler *s, struct sched_seq *q)
{
	int64_t len = q->computed < q->num_known ? q->computed : q->num_known;
	int32_t node;
	int ret = 0;

	if (!s->device.tree)
		return 0;
	len = sched_usable(s, q, len);
	if (!q->is_waiting)
		CAIRN_TRY(put_in(&s->device, q, len, q->kv, &node));
	if (!s->host.tree || !q->req->keep)
		return 0;
	if (!q->is_waiting)
		ret = sched_swap_out(s, q, s->opt.grain == 1 ? len : whole(s, len));
	if (ret && ret != -ENOSPC)
		return ret;
	if (q->shadow < 0)
		return 0;
	len = cairn_kv_pool_len(s->host.pool, q->shadow);
	len = sched_usable(s, q, len < q->num_known ? len : q->num_known);
	return put_in(&s->host, q, len, q->shadow, &node);
}

/* Opens an admitted sequence in the device pool, with the KV that the device or the host still has. */
int sched_place(struct cairn_scheduler *s, struct sched_seq *q)
{
	int64_t ps = s->opt.page_size, limit = q->num_known - !FAULT(FULL_HIT), found = 0, loaded = 0;
	const int32_t *slots, *pages;
	int32_t n;
	int ret = 0;

	if (s->device.tree)
		found = cairn_prefix_tree_match(s->device.tree, q->req->salt, q->tokens, q->num_known,
						&q->node, s->path_pages);
	if (found > limit) /* the last token is always computed: its row gives the next one */
		found = limit;
	found = sched_add_tail(s, q, sched_usable(s, q, found), s->path_pages);
	if (q->node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_pin(s->device.tree, q->node);
	CAIRN_TRY(cairn_kv_pool_open(s->device.pool, &q->kv));
	if (q->shadow >= 0)
		loaded = cairn_kv_pool_len(s->host.pool, q->shadow);
	else if (s->host.tree)
		loaded = cairn_prefix_tree_peek(s->host.tree, q->req->salt, q->tokens, q->num_known);
	if (loaded > limit)
		loaded = limit;
	if (q->shadow < 0 || loaded < q->req->num_prompt)	/* its own answer can be reused to the end */
		loaded = sched_usable(s, q, loaded);
	if (loaded - found >= ps)
		found = whole(s, found);	/* the last, partly filled page is loaded from the host */
	CAIRN_TRY(cairn_kv_pool_adopt(s->device.pool, q->kv, s->path_pages, found));
	sched_drop_tail(s, q);
	q->computed = (int32_t)found;
	q->adopted = (int32_t)(found / ps);
	s->stats.hit_tokens += found - (q->imported < found ? q->imported : found);
	q->imported = 0;
	if (loaded - found < ps)
		goto out;

	if (q->shadow < 0) {
		ret = open_shadow(s, q, limit);
		if (ret)
			goto out;
		loaded = cairn_kv_pool_len(s->host.pool, q->shadow);
	}
	ret = loaded > found ? sched_grow(s, q, loaded, SCHED_RESERVED) : -ENOSPC;
	if (ret)		/* no free pages for the host's part: recompute it */
		goto out;
	slots = cairn_kv_pool_pages(s->host.pool, q->shadow, &n);
	pages = cairn_kv_pool_pages(s->device.pool, q->kv, &n);
	for (int64_t k = found / ps; !ret && k < n; k++)
		ret = sched_move(s, &s->before, CAIRN_MOVE_IN, pages[k], slots[k]);
	q->computed = (int32_t)loaded;
	s->stats.loaded_tokens += loaded - found;
out:
	if (!q->req->keep)
		sched_drop_shadow(s, q);
	if (q->host_node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_unpin(s->host.tree, q->host_node);
	q->host_node = CAIRN_PREFIX_NONE;
	return ret == -ENOSPC ? 0 : ret;
}

/*
 * If the disk has at least one more page of a prompt than host and device, starts to fetch it into the host's
 * tree and returns 1; the request then waits for cairn_scheduler_fetched(). This happens at most once per
 * request.
 */
int sched_fetch(struct cairn_scheduler *s, struct sched_seq *q, int32_t found)
{
	int32_t *slots = s->path_pages, *places = slots + s->opt.max_context + 1, from = NOWHERE,
		to = NOWHERE, n;
	int64_t limit = q->num_known - 1, here, there;
	const int32_t *pages;
	int ret;

	if (!s->disk.tree || q->is_fetching || q->shadow >= 0)
		return 0;
	there = cairn_prefix_tree_peek(s->disk.tree, q->req->salt, q->tokens, limit);
	there = whole(s, sched_usable(s, q, there));
	here = cairn_prefix_tree_peek(s->host.tree, q->req->salt, q->tokens, limit);
	if (there < (here > found ? here : found) + s->opt.page_size)
		return 0;
	q->is_fetching = SCHED_FETCHED;
	/* hold the disk pages by a sequence: spills that make room may evict them from the disk's tree */
	CAIRN_TRY(cairn_kv_pool_open(s->disk.pool, &from));
	cairn_prefix_tree_match(s->disk.tree, q->req->salt, q->tokens, there, &n, places);
	ret = cairn_kv_pool_adopt(s->disk.pool, from, places, there);
	if (ret)
		goto out;
	ret = cairn_kv_pool_open(s->host.pool, &to);
	if (ret)
		goto out;
	here = whole(s, cairn_prefix_tree_match(s->host.tree, q->req->salt, q->tokens, here, &n, slots));
	ret = cairn_kv_pool_adopt(s->host.pool, to, slots, here);
	if (!ret)
		ret = grow_host(s, to, there);
	if (ret)
		goto out;
	pages = cairn_kv_pool_pages(s->host.pool, to, &n);
	places = (int32_t *)cairn_kv_pool_pages(s->disk.pool, from, &n);
	for (int64_t k = here / s->opt.page_size; !ret && k < n; k++) {
		ret = sched_move(s, &s->before, CAIRN_MOVE_FETCH, pages[k], places[k]);
		if (!ret)
			s->before.moves[s->before.num - 1].request = q->req->id;
	}
	if (!ret)
		ret = put_in(&s->host, q, there, to, &q->host_node);
	if (!ret) {
		cairn_prefix_tree_pin(s->host.tree, q->host_node);
		q->is_fetching = SCHED_FETCHING;
	}
out:
	if (to >= 0)
		cairn_kv_pool_close(s->host.pool, to);
	cairn_kv_pool_close(s->disk.pool, from);
	return ret == -ENOSPC ? 0 : ret ? ret : 1;
}
