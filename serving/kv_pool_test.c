// SPDX-License-Identifier: Apache-2.0
#include "kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "../conformance/harness.h"

static void sizes_are_checked(struct cairn_test *t)
{
	struct cairn_kv_pool *pool = NULL;

	EXPECT(t, cairn_kv_pool_create(&pool, 0, 16, 1) == -EINVAL);
	EXPECT(t, cairn_kv_pool_create(&pool, 1, 0, 1) == -EINVAL);
	EXPECT(t, cairn_kv_pool_create(&pool, 1, 16, 0) == -EINVAL);
	EXPECT(t, pool == NULL);
	cairn_kv_pool_destroy(NULL);
}

static void pages_follow_length(struct cairn_test *t)
{
	struct cairn_kv_pool_stats st;
	struct cairn_kv_pool *pool;
	int32_t seq = -1, n = -1;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 8, 4, 2) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, 17, &seq) == 0);
	EXPECT(t, cairn_kv_pool_pages(pool, seq, &n) && n == 0);
	/* 17 rounds up to five pages: all their slots may be used */
	for (int64_t len = 0; len <= 20; len++) {
		EXPECT(t, cairn_kv_pool_resize(pool, seq, len) == 0);
		EXPECT(t, cairn_kv_pool_pages(pool, seq, &n) && n == (len + 3) / 4);
		EXPECT(t, cairn_kv_pool_len(pool, seq) == len);
	}
	EXPECT(t, cairn_kv_pool_resize(pool, seq, 21) == -EINVAL);
	EXPECT(t, cairn_kv_pool_resize(pool, seq, -1) == -EINVAL);
	EXPECT(t, cairn_kv_pool_len(pool, seq) == 20);
	EXPECT(t, cairn_kv_pool_resize(pool, seq, 5) == 0);
	cairn_kv_pool_stats(pool, &st);
	EXPECT(t, st.free_pages == 6 && st.promised_pages == 5 && st.num_tokens == 5 && st.num_seqs == 1);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	EXPECT(t, cairn_kv_pool_close(pool, seq) == 0);
	cairn_kv_pool_stats(pool, &st);
	EXPECT(t, st.free_pages == 8 && st.promised_pages == 0 && st.num_tokens == 0 && st.num_seqs == 0);
	cairn_kv_pool_destroy(pool);
}

/* What was promised can always be taken; what was not promised cannot be promised twice. */
static void promises_hold(struct cairn_test *t)
{
	struct cairn_kv_pool *pool;
	int32_t a = -1, b = -1, c = -1;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 10, 16, 4) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, 161, &a) == -EINVAL);	/* would never fit */
	EXPECT(t, cairn_kv_pool_open(pool, 0, &a) == -EINVAL);
	EXPECT(t, a == -1);
	EXPECT(t, cairn_kv_pool_open(pool, 6 * 16, &a) == 0);
	EXPECT(t,
	       cairn_kv_pool_open(pool, 5 * 16, &b) == -ENOSPC); /* all ten pages are free, four promisable */
	EXPECT(t, b == -1);
	EXPECT(t, cairn_kv_pool_open(pool, 4 * 16, &b) == 0);
	EXPECT(t, cairn_kv_pool_open(pool, 1, &c) == -ENOSPC);
	EXPECT(t, cairn_kv_pool_resize(pool, b, 64) == 0);
	EXPECT(t, cairn_kv_pool_resize(pool, a, 96) == 0);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	EXPECT(t, cairn_kv_pool_close(pool, a) == 0);
	EXPECT(t, cairn_kv_pool_open(pool, 1, &c) == 0);
	cairn_kv_pool_destroy(pool);	/* open sequences go with it */
}

static void handles_are_checked(struct cairn_test *t)
{
	struct cairn_kv_pool *pool;
	int32_t n, a = -1, b = -1, c = -1;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 100, 1, 2) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, 1, &a) == 0 && cairn_kv_pool_open(pool, 1, &b) == 0 && a != b);
	EXPECT(t, cairn_kv_pool_open(pool, 1, &c) == -ENOSPC);
	EXPECT_CONTAINS(t, cairn_last_error(), "all 2 sequences");
	EXPECT(t, cairn_kv_pool_close(pool, a) == 0);
	EXPECT(t, cairn_kv_pool_close(pool, a) == -EINVAL);
	EXPECT(t, cairn_kv_pool_resize(pool, a, 1) == -EINVAL);
	EXPECT(t, cairn_kv_pool_len(pool, a) == -EINVAL);
	EXPECT(t, cairn_kv_pool_pages(pool, a, &n) == NULL);
	EXPECT(t, cairn_kv_pool_pages(pool, -1, &n) == NULL && cairn_kv_pool_pages(pool, 2, &n) == NULL);
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
}

#define MODEL_SEQS	12

/*
 * 100,000 random operations against a model of the pool: a length per sequence, and what each page
 * holds. Every page is stamped with (sequence, place) when it joins a table; a page handed out
 * twice, lost, or moved while owned shows as a wrong stamp.
 */
static void random_operations(struct cairn_test *t)
{
	struct { int open; int64_t max_len, len; uint64_t stamp; } m[MODEL_SEQS] = { 0 };
	uint64_t stamps[64] = { 0 }, next_stamp = 1;
	struct cairn_kv_pool *pool;
	int refused = 0, opened = 0;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, 64, 8, MODEL_SEQS) == 0))
		return;
	for (int step = 0; step < 100000; step++) {
		int32_t s = (int32_t)(cairn_rand(t) % MODEL_SEQS), n = 0;
		int what = (int)(cairn_rand(t) % 8);
		int64_t held = 0;

		for (int i = 0; i < MODEL_SEQS; i++)
			held += (m[i].max_len + 7) / 8;
		if (what == 0) {
			int64_t max_len = 1 + (int64_t)(cairn_rand(t) % 160);
			int ret = cairn_kv_pool_open(pool, max_len, &s);

			if (ret == 0) {
				if (!EXPECT(t, held + (max_len + 7) / 8 <= 64 && !m[s].open))
					break;
				m[s].open = 1;
				m[s].max_len = max_len;
				m[s].len = 0;
				m[s].stamp = next_stamp++;
				opened++;
			} else {
				int all_open = 1;

				for (int i = 0; i < MODEL_SEQS; i++)
					all_open &= m[i].open;
				if (!EXPECT(t, ret == -ENOSPC && (all_open || held + (max_len + 7) / 8 > 64)))
					break;
				refused++;
			}
		} else if (what == 1) {
			if (!EXPECT(t, cairn_kv_pool_close(pool, s) == (m[s].open ? 0 : -EINVAL)))
				break;
			memset(&m[s], 0, sizeof(m[s]));
		} else {
			/* mostly growth by a token, as in decoding; sometimes a jump either way */
			int64_t len = what < 6 ? m[s].len + 1 : (int64_t)(cairn_rand(t) % 176);
			int64_t room = (m[s].max_len + 7) / 8 * 8;
			int ok = m[s].open && len <= room;

			if (!EXPECT(t, cairn_kv_pool_resize(pool, s, len) == (ok ? 0 : -EINVAL)))
				break;
			if (ok) {
				const int32_t *pages = cairn_kv_pool_pages(pool, s, &n);

				for (int64_t i = (m[s].len + 7) / 8; i < n; i++)
					stamps[pages[i]] = m[s].stamp << 8 | (uint64_t)i;
				m[s].len = len;
			}
		}
		for (int i = 0; i < MODEL_SEQS; i++) {
			const int32_t *pages = cairn_kv_pool_pages(pool, i, &n);
			int good = !pages == !m[i].open && (!pages || n == (m[i].len + 7) / 8);

			for (int k = 0; good && pages && k < n; k++)
				good = stamps[pages[k]] == (m[i].stamp << 8 | (uint64_t)k);
			if (!good) {
				cairn_note(t, "step %d: sequence %d of %lld tokens", step, i,
					   (long long)m[i].len);
				EXPECT(t, good);
				goto out;
			}
		}
		if (!EXPECT(t, cairn_kv_pool_verify(pool) == 0)) {
			cairn_note(t, "step %d: %s", step, cairn_last_error());
			break;
		}
	}
	cairn_note(t, "%d sequences opened, %d refused", opened, refused);
	EXPECT(t, opened > 1000 && refused > 1000);
out:
	cairn_kv_pool_destroy(pool);
}

static const struct cairn_unit units[] = {
	{ "sizes_are_checked", sizes_are_checked },
	{ "pages_follow_length", pages_follow_length },
	{ "promises_hold", promises_hold },
	{ "handles_are_checked", handles_are_checked },
	{ "random_operations", random_operations },
};

const struct cairn_family cairn_kv_pool_family = {
	.stage = "serving",
	.name = "kv_pool",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
