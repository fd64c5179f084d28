// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_import - keys and values that another process has computed enter the device's prefix tree
 *
 * The request waits in the queue while they are written to pages that are reserved for them. No other
 * sequence has these pages, and no plan moves anything: the tree takes them as they are.
 *
 * Tail: the tree takes whole pages. The last page, if it is not full, is held for the request until it is
 * admitted, and then becomes its own, so that nothing but the prompt's last row need be computed.
 */
#include <string.h>

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

/* ---- reservations ---- */

static struct reservation *find(struct cairn_scheduler *s, uint64_t request)
{
	for (int32_t i = 0; i < s->num_reservations; i++)
		if (s->reservations[i].request == request)
			return &s->reservations[i];
	return NULL;
}

static int32_t pages_of(const struct cairn_scheduler *s, const struct reservation *v)
{
	return sched_pages(s, v->num_tokens - v->first);
}

/* The request, if it is still there, waits no longer. */
static void end_wait(struct cairn_scheduler *s, uint64_t request)
{
	struct sched_seq *q = sched_find(s, request, -1);

	if (q && q->is_fetching == SCHED_PULLED)
		q->is_fetching = 0;
}

static void free_pages(struct cairn_scheduler *s, struct reservation *v)
{
	if (v->kv == NOWHERE)
		return;
	cairn_kv_pool_close(s->device.pool, v->kv);
	v->kv = NOWHERE;
	s->num_reserved_pages -= pages_of(s, v);
}

static void forget(struct cairn_scheduler *s, struct reservation *v)
{
	const size_t behind = (size_t)(s->reservations + --s->num_reservations - v);

	memmove(v, v + 1, behind * sizeof(*v));
}

void sched_drop_tail(struct cairn_scheduler *s, struct sched_seq *q)
{
	if (q->tail == NOWHERE)
		return;
	cairn_kv_pool_release(s->device.pool, q->tail);
	q->tail = NOWHERE;
	s->num_tails--;
}

int64_t sched_add_tail(const struct cairn_scheduler *s, const struct sched_seq *q, int64_t found,
		       int32_t *pages)
{
	const int64_t before = whole(s, q->tail_end);

	if (q->tail == NOWHERE || found >= q->tail_end || (found < before && !FAULT(TAIL_GAP)))
		return found;
	pages[before / s->opt.page_size] = q->tail;
	return q->tail_end;
}

/* A tail saves less than a page of rows, so it goes before any reservation. */
static int revoke_tail(struct cairn_scheduler *s)
{
	struct sched_seq *q = s->num_tails ? s->queue_end : NULL;

	while (q && q->tail == NOWHERE)
		q = q->prev;
	if (q)
		sched_drop_tail(s, q);
	return q != NULL;
}

int sched_revoke(struct cairn_scheduler *s)
{
	if (revoke_tail(s))
		return 1;
	for (int32_t i = s->num_reservations - 1; i >= 0; i--) {
		struct reservation *v = &s->reservations[i];

		if (v->kv == NOWHERE)
			continue;
		free_pages(s, v);
		end_wait(s, v->request);
		if (FAULT(REVOKED_UNTOLD))
			forget(s, v);
		return 1;
	}
	return 0;
}

int cairn_scheduler_revoked(struct cairn_scheduler *s, uint64_t *request)
{
	for (int32_t i = 0; i < s->num_reservations; i++) {
		if (s->reservations[i].kv != NOWHERE)
			continue;
		*request = s->reservations[i].request;
		forget(s, &s->reservations[i]);
		return 1;
	}
	return 0;
}

void cairn_scheduler_unreserve(struct cairn_scheduler *s, uint64_t request)
{
	struct reservation *v = find(s, request);

	if (v) {
		free_pages(s, v);
		forget(s, v);
	}
	end_wait(s, request);
}

/* Takes free pages, and those of the tree, for a reservation. */
static int take_pages(struct cairn_scheduler *s, struct reservation *v)
{
	const int32_t len = v->num_tokens - v->first;
	int ret = cairn_kv_pool_open(s->device.pool, &v->kv);

	if (ret)
		return ret;
	while ((ret = cairn_kv_pool_resize(s->device.pool, v->kv, len, NULL)) == -ENOSPC) {
		int32_t leaf = cairn_prefix_tree_victim(s->device.tree), before;

		if (leaf == CAIRN_PREFIX_NONE)
			break;
		before = cairn_kv_pool_free_pages(s->device.pool);
		ret = cairn_prefix_tree_remove(s->device.tree, leaf);
		if (ret)
			break;
		s->stats.evicted_pages += cairn_kv_pool_free_pages(s->device.pool) - before;
	}
	if (ret)
		cairn_kv_pool_close(s->device.pool, v->kv);
	return ret;
}

static int reserve(struct cairn_scheduler *s, const struct sched_seq *q, struct reservation *v)
{
	int32_t before;			/* node of the cached tokens before the reserved ones */
	int ret;

	if (!s->device.tree || s->opt.repeat_chunk || v->first < 0 || v->first >= v->num_tokens ||
	    v->num_tokens >= q->num_known || v->first % s->opt.page_size)
		return cairn_error(EINVAL, "scheduler: reserve: tokens %d to %d of %d", v->first,
				   v->num_tokens, q->num_known);
	sched_forecast(s);
	if (s->num_reservations == s->opt.max_reserved ||
	    pages_of(s, v) > s->opt.reserved_pages - s->num_reserved_pages ||
	    !sched_fits(s, q, v->first, 1))
		return cairn_error(ENOSPC, "scheduler: no room to reserve %d pages", pages_of(s, v));
	cairn_prefix_tree_match(s->device.tree, q->req->salt, q->tokens, v->first, &before, NULL);
	if (before != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_pin(s->device.tree, before);
	ret = take_pages(s, v);
	if (before != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_unpin(s->device.tree, before);
	return ret;
}

int cairn_scheduler_reserve(struct cairn_scheduler *s, uint64_t request, int32_t first, int32_t num_tokens,
			    const int32_t **pages)
{
	struct reservation v = { .request = request, .first = first, .num_tokens = num_tokens };
	struct sched_seq *q = sched_find(s, request, -1);
	int32_t num;
	int ret;

	if (!q || q->is_fetching != SCHED_PULLED || find(s, request))
		return cairn_error(ENOENT, "request %llu does not wait for an import",
				   (unsigned long long)request);
	ret = reserve(s, q, &v);
	if (ret) {
		end_wait(s, request);
		return ret;
	}
	s->num_reserved_pages += pages_of(s, &v);
	s->reservations[s->num_reservations++] = v;
	*pages = cairn_kv_pool_pages(s->device.pool, v.kv, &num);
	return 0;
}

/* ---- import ---- */

static int import(struct cairn_scheduler *s, struct sched_seq *q, const struct reservation *v)
{
	const int32_t ps = s->opt.page_size, *pages;
	const int64_t end = whole(s, v->num_tokens);
	int32_t node, n;
	int64_t found = cairn_prefix_tree_match(s->device.tree, q->req->salt, q->tokens, end, &node,
						s->path_pages);

	found = whole(s, found);
	if (found < v->first && !FAULT(IMPORT_GAP))
		return cairn_error(ENOENT, "request %llu: its first %d tokens are not cached any more",
				   (unsigned long long)q->req->id, v->first);
	pages = cairn_kv_pool_pages(s->device.pool, v->kv, &n);
	for (int64_t k = found / ps; k < end / ps; k++) {
		const int64_t at = k - (FAULT(IMPORT_SHIFTED) ? found : v->first) / ps;

		s->path_pages[k] = pages[FAULT(IMPORT_GAP) && at < 0 ? 0 : at];
	}
	CAIRN_TRY(cairn_prefix_tree_insert(s->device.tree, q->req->salt, q->tokens, end, s->path_pages,
					   &node));
	if (v->num_tokens > end) {
		CAIRN_TRY(cairn_kv_pool_hold(s->device.pool, pages[n - 1]));
		q->tail = pages[n - 1];
		q->tail_end = FAULT(TAIL_FULL) ? (int32_t)end + ps - 1 : v->num_tokens;
		s->num_tails++;
	}
	if (v->num_tokens <= found)
		return 0;
	q->imported += v->num_tokens - (int32_t)found;
	s->stats.imported_tokens += v->num_tokens - found;
	s->stats.moves[CAIRN_MOVE_PULL] += sched_pages(s, v->num_tokens - found);
	return v->num_tokens - (int32_t)found;
}

int cairn_scheduler_import(struct cairn_scheduler *s, uint64_t request)
{
	struct reservation *v = find(s, request);
	struct sched_seq *q = sched_find(s, request, -1);
	int ret;

	if (!v || v->kv == NOWHERE || !q || q->is_fetching != SCHED_PULLED)
		ret = cairn_error(ENOENT, "request %llu does not wait for an import, or has no pages for it",
				  (unsigned long long)request);
	else
		ret = import(s, q, v);
	/* a revoked reservation is kept until cairn_scheduler_revoked() has reported it */
	if (v && v->kv != NOWHERE)
		cairn_scheduler_unreserve(s, request);
	else
		end_wait(s, request);
	return ret;
}
