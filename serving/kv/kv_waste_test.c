// SPDX-License-Identifier: Apache-2.0
/*
 * kv_waste_test - memory wasted by paging and saved by sharing (claims AT-11,
 * AT-12), on length traces with the real pool
 *
 * Waste: 128 sequences decode concurrently, each replaced by a new one when its answer ends; the waste is the
 * fraction of allocated memory that holds no token, averaged over all steps. It is compared with the waste if
 * each request reserved the longest possible length, or exactly its final length. Saving: the fraction of
 * pages saved, relative to tables that share nothing, averaged over all steps of a request.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

#include "serving/kv/kv_lengths_test.h"
#include "serving/kv/kv_pool.h"

enum { SEQS = 128, STEPS = 3000, LONGEST = 2048, PAGE = 16, MOST_BEAMS = 6, REQUESTS = 40 };

static int is_measure;	/* write rows for `cairn bench` */

struct waste {
	double paged, longest, exact;
};

static struct waste measure_waste(struct cairn_test *t, const struct lengths *l, int32_t page_size)
{
	struct { int32_t handle, len, end; } seqs[SEQS];
	double tokens = 0, paged = 0, exact = 0;
	struct cairn_kv_pool_stats st;
	struct cairn_kv_pool *pool;

	if (!EXPECT(t, cairn_kv_pool_create(&pool, SEQS * LONGEST / page_size, page_size, SEQS) == 0))
		return (struct waste){ 1, 1, 1 };
	for (int i = 0; i < SEQS; i++) {
		EXPECT(t, cairn_kv_pool_open(pool, &seqs[i].handle) == 0);
		seqs[i].len = draw_length(t, l->prompt);
		seqs[i].end = seqs[i].len + draw_length(t, l->answer);
	}
	for (int step = 0; step < STEPS; step++) {
		for (int i = 0; i < SEQS; i++) {
			if (seqs[i].len == seqs[i].end) {
				EXPECT(t, cairn_kv_pool_resize(pool, seqs[i].handle, 0, NULL) == 0);
				seqs[i].len = draw_length(t, l->prompt);
				seqs[i].end = seqs[i].len + draw_length(t, l->answer);
			}
			seqs[i].len += seqs[i].len < seqs[i].end;
			EXPECT(t, cairn_kv_pool_resize(pool, seqs[i].handle, seqs[i].len, NULL) == 0);
			exact += step >= STEPS / 4 ? seqs[i].end : 0;
		}
		if (step < STEPS / 4)		/* warm-up: until short and long requests are mixed */
			continue;
		cairn_kv_pool_stats(pool, &st);
		tokens += (double)st.num_tokens;
		paged += (double)(st.num_pages - st.free_pages) * page_size;
	}
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
	return (struct waste) { 1 - tokens / paged,
				1 - tokens / ((double)SEQS * LONGEST * (STEPS - STEPS / 4)),
				1 - tokens / exact };
}

static void paging_wastes_little(struct cairn_test *t)
{
	static const int32_t page_sizes[] = { 1, 4, 8, 16, 32 };

	for (size_t k = 0; k < ARRAY_SIZE(page_sizes); k++) {
		struct waste s = measure_waste(t, &sharegpt, page_sizes[k]);
		struct waste a = measure_waste(t, &alpaca, page_sizes[k]);

		cairn_note(t,
			   "AT-11: pages of %2d: waste %s %.2f%%, %s %.2f%% (reserving %d: %.1f%%, %.1f%%; "
			   "reserving the final length: %.1f%%, %.1f%%)",
			   page_sizes[k], sharegpt.name, 100 * s.paged, alpaca.name, 100 * a.paged, LONGEST,
			   100 * s.longest, 100 * a.longest, 100 * s.exact, 100 * a.exact);
		if (is_measure) {
			char name[32];

			snprintf(name, sizeof(name), "waste_page%d", page_sizes[k]);
			cairn_host_row(
				t, name, "host",
				"\"sharegpt_waste\":%.4f,\"alpaca_waste\":%.4f,\"sharegpt_reserved\":%.4f,"
				"\"alpaca_reserved\":%.4f,\"simulated\":true",
				s.paged, a.paged, s.longest, a.longest);
		}
		EXPECT(t, page_sizes[k] > PAGE || s.paged < 0.04);
		EXPECT(t, page_sizes[k] > 4 || a.paged < 0.04);
		/* Paging wastes half a page per sequence, which weighs more where sequences are short. */
		EXPECT(t, a.paged > s.paged || page_sizes[k] == 1);
		EXPECT(t, s.longest > 0.6);
	}
}

/*
 * Chooses the n best continuations of n beams with n continuations each. The scores of a beam's continuations
 * decrease by a random log-probability from one to the next.
 */
static void choose_beams(struct cairn_test *t, int n, double *scores, int *parent)
{
	double best[MOST_BEAMS];
	int found = 0;

	for (int i = 0; i < n; i++) {
		double score = scores[i];

		for (int k = 0; k < n; k++) {
			int at;

			score += log(uniform(t));
			if (found == n && best[n - 1] >= score)
				break;
			found += found < n;
			for (at = found - 1; at && best[at - 1] < score; at--) {
				best[at] = best[at - 1];
				parent[at] = parent[at - 1];
			}
			best[at] = score;
			parent[at] = i;
		}
	}
	memcpy(scores, best, (size_t)n * sizeof(*scores));
}

/* Runs one request with n answers or n beams. Adds up the pages its tables name, and how many of them are
 * different. */
static void run_request(struct cairn_test *t, const struct lengths *l, int n, int beams, double *named,
			double *taken)
{
	int32_t seqs[MOST_BEAMS], children[MOST_BEAMS], prompt = draw_length(t, l->prompt);
	int32_t answer = draw_length(t, l->answer), ends[MOST_BEAMS];
	int parent[MOST_BEAMS];
	double scores[MOST_BEAMS] = { 0 };
	struct cairn_kv_pool_stats st;
	struct cairn_kv_copy copy;
	struct cairn_kv_pool *pool;

	if (!EXPECT(t,
		    cairn_kv_pool_create(&pool, 2 * MOST_BEAMS * LONGEST / PAGE, PAGE, 2 * MOST_BEAMS) == 0))
		return;
	EXPECT(t, cairn_kv_pool_open(pool, &seqs[0]) == 0);
	EXPECT(t, cairn_kv_pool_resize(pool, seqs[0], prompt, &copy) == 0);
	for (int i = 0; i < n; i++) {
		if (i)
			EXPECT(t, cairn_kv_pool_fork(pool, seqs[0], &seqs[i]) == 0);
		ends[i] = prompt + (beams ? answer : draw_length(t, l->answer));
	}
	for (int32_t len = prompt + 1; ; len++) {
		int alive = 0;

		for (int i = 0; i < n; i++) {
			if (len <= ends[i])
				EXPECT(t, cairn_kv_pool_resize(pool, seqs[i], len, &copy) == 0);
			else if (len == ends[i] + 1)	/* an answer that has ended frees its pages */
				EXPECT(t, cairn_kv_pool_resize(pool, seqs[i], 0, &copy) == 0);
			alive += len <= ends[i];
		}
		if (!alive)
			break;
		cairn_kv_pool_stats(pool, &st);
		*named += (double)st.table_entries;
		*taken += st.table_pages;
		if (!beams)
			continue;
		choose_beams(t, n, scores, parent);
		for (int i = 0; i < n; i++)
			EXPECT(t, cairn_kv_pool_fork(pool, seqs[parent[i]], &children[i]) == 0);
		for (int i = 0; i < n; i++)
			EXPECT(t, cairn_kv_pool_close(pool, seqs[i]) == 0);
		memcpy(seqs, children, sizeof(seqs));
	}
	EXPECT(t, cairn_kv_pool_verify(pool) == 0);
	cairn_kv_pool_destroy(pool);
}

static void sharing_saves_pages(struct cairn_test *t)
{
	static const struct lengths *const sets[] = { &sharegpt, &alpaca };
	double least_beam = 1, most = 0;

	for (int k = 0; k < 2; k++) {
		for (int n = 2; n <= MOST_BEAMS; n += 2) {
			double saved[2];

			for (int beams = 0; beams < 2; beams++) {
				double named = 0, taken = 0;

				for (int i = 0; i < REQUESTS; i++)
					run_request(t, sets[k], n, beams, &named, &taken);
				saved[beams] = 1 - taken / named;
			}
			cairn_note(t, "AT-12: %s, %d: parallel sampling saves %.1f%%, beam search %.1f%%",
				   sets[k]->name, n, 100 * saved[0], 100 * saved[1]);
			if (is_measure) {
				char name[32];

				snprintf(name, sizeof(name), "sharing_%s_%d", k ? "alpaca" : "sharegpt", n);
				cairn_host_row(
					t, name, "host",
					"\"sampling_saved\":%.4f,\"beam_saved\":%.4f,\"simulated\":true",
					saved[0], saved[1]);
			}
			EXPECT(t, saved[0] > 0 && saved[1] > saved[0]);
			least_beam = saved[1] < least_beam ? saved[1] : least_beam;
			most = saved[1] > most ? saved[1] : most;
		}
	}
	EXPECT(t, least_beam > 0.3 && most > 0.55);
}

/* Writes AT-11 and AT-12 as rows for `cairn bench`. */
static void claims(struct cairn_test *t)
{
	is_measure = 1;
	paging_wastes_little(t);
	sharing_saves_pages(t);
}

static const struct cairn_unit units[] = {
	{ "paging_wastes_little", paging_wastes_little },
	{ "sharing_saves_pages", sharing_saves_pages },
};

static const struct cairn_unit measures[] = {
	{ "claims", claims },
};

const struct cairn_family cairn_kv_waste_family = {
	.stage = "serving",
	.name = "kv_waste",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
