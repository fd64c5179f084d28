// SPDX-License-Identifier: Apache-2.0
/*
 * kv_model_pool - checks the pool against plain arrays
 *
 * The arrays are the memory of the pool's pages and, for each sequence, the tokens it must hold. Growing
 * performs the copy that the pool asks for and writes unique tokens; a page that was written by the wrong
 * sequence, not copied, allocated twice or lost shows up as a wrong token.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/kv/kv_model.h"
#include "serving/kv/kv_pool.h"

enum { POOL_PAGES = 12, POOL_PAGE = 4, POOL_SEQS = 5, POOL_LEN = 60, POOL_HOLDS = 6 };
enum { OPEN, CLOSE, FORK, GROW, GROW_TOO, RESIZE, ADOPT, HOLD, RELEASE, NUM_POOL_OPS };

static const char *const pool_ops[NUM_POOL_OPS] = {
	"open", "close", "fork", "grow by 1", "grow by b % 4 + 1", "resize", "adopt", "hold", "release",
};

struct pool_world {
	struct cairn_kv_pool *pool;
	struct { int open; int32_t len, tokens[POOL_LEN + POOL_PAGE]; } seqs[POOL_SEQS];
	struct { int held; int32_t page, filled, tokens[POOL_PAGE]; } holds[POOL_HOLDS];
	int32_t memory[POOL_PAGES][POOL_PAGE], next_token;
	char *why;
	size_t why_len;
};

static int pool_wrong(struct pool_world *w, const char *what, int64_t got, int64_t want)
{
	snprintf(w->why, w->why_len, "%s: %lld, not %lld (%s)", what, (long long)got, (long long)want,
		 cairn_last_error());
	return -1;
}

/* Counts the references to each page. */
static void count_refs(const struct pool_world *w, int32_t refs[POOL_PAGES])
{
	memset(refs, 0, POOL_PAGES * sizeof(*refs));
	for (int32_t s = 0; s < POOL_SEQS; s++) {
		int32_t n = 0;
		const int32_t *pages = cairn_kv_pool_pages(w->pool, s, &n);

		for (int32_t i = 0; pages && i < n; i++)
			refs[pages[i]]++;
	}
	for (int i = 0; i < POOL_HOLDS; i++) {
		if (w->holds[i].held)
			refs[w->holds[i].page]++;
	}
}

static int pool_look(struct pool_world *w)
{
	int32_t refs[POOL_PAGES], n = 0;

	if (cairn_kv_pool_verify(w->pool))
		return pool_wrong(w, "verify", -EIO, 0);
	count_refs(w, refs);
	for (int32_t p = 0; p < POOL_PAGES; p++) {
		if (cairn_kv_pool_refs(w->pool, p) != refs[p])
			return pool_wrong(w, "references", cairn_kv_pool_refs(w->pool, p), refs[p]);
	}
	for (int32_t s = 0; s < POOL_SEQS; s++) {
		const int32_t *pages = cairn_kv_pool_pages(w->pool, s, &n);

		if (!pages != !w->seqs[s].open)
			return pool_wrong(w, "open", !!pages, w->seqs[s].open);
		if (!pages)
			continue;
		if (cairn_kv_pool_len(w->pool, s) != w->seqs[s].len)
			return pool_wrong(w, "length", cairn_kv_pool_len(w->pool, s), w->seqs[s].len);
		for (int32_t k = 0; k < w->seqs[s].len; k++) {
			int32_t got = w->memory[pages[k / POOL_PAGE]][k % POOL_PAGE];

			if (got != w->seqs[s].tokens[k])
				return pool_wrong(w, "a token in memory", got, w->seqs[s].tokens[k]);
		}
	}
	for (int i = 0; i < POOL_HOLDS; i++) {
		if (w->holds[i].held && memcmp(w->memory[w->holds[i].page], w->holds[i].tokens,
					       (size_t)w->holds[i].filled * sizeof(int32_t)))
			return pool_wrong(w, "a held page was written", w->holds[i].page, -1);
	}
	return 0;
}

/* Computes the cost of a resize by counting. */
static int32_t pool_cost(const struct pool_world *w, int32_t s, int32_t len)
{
	int32_t refs[POOL_PAGES], n = 0, old = w->seqs[s].len;
	const int32_t *pages = cairn_kv_pool_pages(w->pool, s, &n);
	int32_t cost = (len + POOL_PAGE - 1) / POOL_PAGE - (old + POOL_PAGE - 1) / POOL_PAGE;

	count_refs(w, refs);
	cost = len > old ? cost + (old % POOL_PAGE && refs[pages[n - 1]] > 1) : 0;
	return cost > POOL_PAGES ? POOL_PAGES + 1 : cost;
}

static int pool_resize(struct pool_world *w, int32_t s, int32_t len)
{
	int32_t refs[POOL_PAGES], n = 0, num_free = 0, cost;
	struct cairn_kv_copy copy = { -1, -1 };
	const int32_t *pages;
	int ret, want;

	if (!w->seqs[s].open) {
		ret = cairn_kv_pool_resize(w->pool, s, len, &copy);
		return ret == -EINVAL ? 0 : pool_wrong(w, "resize of a closed sequence", ret, -EINVAL);
	}
	count_refs(w, refs);
	for (int32_t p = 0; p < POOL_PAGES; p++)
		num_free += !refs[p];
	cost = pool_cost(w, s, len);
	if (cairn_kv_pool_cost(w->pool, s, len) != cost)
		return pool_wrong(w, "cost", cairn_kv_pool_cost(w->pool, s, len), cost);
	want = cost > num_free ? -ENOSPC : 0;
	ret = cairn_kv_pool_resize(w->pool, s, len, &copy);
	if (ret != want)
		return pool_wrong(w, "resize", ret, want);
	if (ret)
		return 0;
	if (copy.from >= 0)
		memmove(w->memory[copy.to], w->memory[copy.from], sizeof(w->memory[0]));
	pages = cairn_kv_pool_pages(w->pool, s, &n);
	for (int32_t k = w->seqs[s].len; k < len; k++) {
		w->seqs[s].tokens[k] = w->next_token;
		w->memory[pages[k / POOL_PAGE]][k % POOL_PAGE] = w->next_token++;
	}
	w->seqs[s].len = len;
	return 0;
}

static int pool_adopt(struct pool_world *w, int32_t s, int32_t from, uint32_t len)
{
	int32_t n = 0;
	const int32_t *pages = cairn_kv_pool_pages(w->pool, from, &n);
	int want = !w->seqs[s].open || w->seqs[s].len ? -EINVAL : 0, ret;

	if (!w->seqs[from].open || s == from)
		return 0;
	len %= (uint32_t)w->seqs[from].len + 1;
	ret = cairn_kv_pool_adopt(w->pool, s, pages, len);
	if (ret != want)
		return pool_wrong(w, "adopt", ret, want);
	if (!ret) {
		memcpy(w->seqs[s].tokens, w->seqs[from].tokens, len * sizeof(int32_t));
		w->seqs[s].len = (int32_t)len;
	}
	return 0;
}

static int pool_open(struct pool_world *w, int32_t parent)
{
	int32_t child = -1, open = 0;
	int ret, want;

	for (int32_t s = 0; s < POOL_SEQS; s++)
		open += w->seqs[s].open;
	want = parent >= 0 && !w->seqs[parent].open ? -EINVAL : open == POOL_SEQS ? -ENOSPC : 0;
	ret = parent < 0 ? cairn_kv_pool_open(w->pool, &child) : cairn_kv_pool_fork(w->pool, parent, &child);
	if (ret != want || (ret && child != -1))
		return pool_wrong(w, "open or fork", ret, want);
	if (ret)
		return 0;
	if (child < 0 || child >= POOL_SEQS || w->seqs[child].open)
		return pool_wrong(w, "a handle was returned twice", child, -1);
	if (parent >= 0)
		w->seqs[child] = w->seqs[parent];
	w->seqs[child].open = 1;
	return 0;
}

static int pool_hold(struct pool_world *w, int32_t s, int i, uint32_t at)
{
	int32_t n = 0, left;
	const int32_t *pages = cairn_kv_pool_pages(w->pool, s, &n);

	if (w->holds[i].held || !pages || !n)
		return 0;
	at %= (uint32_t)n;
	left = w->seqs[s].len - (int32_t)at * POOL_PAGE;
	w->holds[i].page = pages[at];
	w->holds[i].filled = left < POOL_PAGE ? left : POOL_PAGE;
	memcpy(w->holds[i].tokens, w->memory[pages[at]], sizeof(w->memory[0]));
	w->holds[i].held = 1;
	return cairn_kv_pool_hold(w->pool, pages[at]) ? pool_wrong(w, "hold", -1, 0) : 0;
}

static int pool_op(struct pool_world *w, const struct kv_op *op)
{
	int32_t s = (int32_t)(op->a % POOL_SEQS), i = (int32_t)(op->a % POOL_HOLDS);
	int ret, want;

	switch (op->what) {
	case OPEN:
		return pool_open(w, -1);
	case FORK:
		return pool_open(w, s);
	case CLOSE:
		want = w->seqs[s].open ? 0 : -EINVAL;
		ret = cairn_kv_pool_close(w->pool, s);
		memset(&w->seqs[s], 0, sizeof(w->seqs[s]));
		return ret == want ? 0 : pool_wrong(w, "close", ret, want);
	case GROW:
		return w->seqs[s].len < POOL_LEN ? pool_resize(w, s, w->seqs[s].len + 1) : 0;
	case GROW_TOO:
		return w->seqs[s].len < POOL_LEN - 4 ? pool_resize(w, s, w->seqs[s].len + 1 + op->b % 4) : 0;
	case RESIZE:
		return pool_resize(w, s, op->b % POOL_LEN);
	case ADOPT:
		return pool_adopt(w, s, (int32_t)(op->b % POOL_SEQS), op->c);
	case HOLD:
		return pool_hold(w, (int32_t)(op->b % POOL_SEQS), i, op->c);
	default:
		want = w->holds[i].held ? 0 : -EINVAL;
		ret = cairn_kv_pool_release(w->pool, w->holds[i].held ? w->holds[i].page : -1);
		w->holds[i].held = 0;
		return ret == want ? 0 : pool_wrong(w, "release", ret, want);
	}
}

static int pool_run(const struct kv_op *ops, int n, char *why, size_t why_len)
{
	struct pool_world w = { .next_token = 1, .why = why, .why_len = why_len };
	int i;

	if (cairn_kv_pool_create(&w.pool, POOL_PAGES, POOL_PAGE, POOL_SEQS))
		return 0;
	for (i = 0; i < n; i++) {
		if (pool_op(&w, &ops[i]) || pool_look(&w))
			break;
	}
	cairn_kv_pool_destroy(w.pool);
	return i;
}

const struct kv_model kv_model_pool = { "kv_pool", pool_ops, NUM_POOL_OPS, pool_run };
