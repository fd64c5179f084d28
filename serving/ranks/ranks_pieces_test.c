// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_pieces_test - the lists of a ring, for random passes: each row has one rank, each row sees each key
 * before it once, and the ranks have equal work
 */
#include "conformance/harness.h"
#include "serving/engine/worker/worker_impl.h"
#include "serving/model/model_test.h"

enum { REQUESTS = 5, ROWS = 60, PAST = 40, LOGITS = 6, TRIALS = 40 };

struct pass {
	struct cairn_worker *w;
	struct cairn_model *m;
	int32_t size, batch, rows, logits;
	int32_t num[REQUESTS], past[REQUESTS], pages[REQUESTS][PAST + ROWS + 2];
	int32_t want[LOGITS];			/* rows of the pass */
	int owners[REQUESTS * ROWS];		/* how many ranks compute a row */
	int stored[REQUESTS][PAST + ROWS + 2];	/* how many segments have a page */
	int32_t num_sent[CAIRN_COMM_MAX_RANKS], sent[CAIRN_COMM_MAX_RANKS][REQUESTS * (ROWS + 2)];
	int64_t pairs[CAIRN_COMM_MAX_RANKS];	/* of a row of the rank and a key that it sees */
};

static int32_t below(struct cairn_test *t, int32_t n)
{
	return (int32_t)(cairn_rand(t) % (uint64_t)n);
}

/* Builds a random pass in the worker. */
static void build(struct cairn_test *t, struct pass *p, int32_t requests)
{
	static const int32_t ids[ROWS];
	int32_t next = 0;

	p->batch = requests;
	p->rows = 0;
	memset(p->owners, 0, sizeof(p->owners));
	memset(p->stored, 0, sizeof(p->stored));
	memset(p->pairs, 0, sizeof(p->pairs));
	cairn_worker_begin(p->w);
	for (int32_t b = 0; b < requests; b++) {
		struct cairn_worker_part part = { .ids = ids, .follows = -1, .pages = p->pages[b] };

		part.num_rows = p->num[b] = 1 + below(t, below(t, 4) ? ROWS : 3);
		part.position = p->past[b] = below(t, PAST);
		part.num_pages = (p->past[b] + p->num[b] + p->size - 1) / p->size;
		for (int32_t j = 0; j < part.num_pages; j++)
			p->pages[b][j] = next++;
		cairn_worker_add(p->w, &part);
		p->rows += p->num[b];
	}
	p->logits = p->w->batch.num_logits = below(t, LOGITS + 1);
	for (int32_t i = 0; i < p->logits; i++)
		p->want[i] = p->w->flight->host.logit_rows[i] = below(t, p->rows);
}

/*
 * Counts the keys of a list that a row at this position sees. Pages of others, and slots past the last key,
 * which may hold anything, count -1000.
 */
static void see(const struct pass *p, const struct cairn_ring_keys *k, int32_t q, int32_t position, int *seen)
{
	for (int32_t i = k->indptr[q]; i < k->indptr[q + 1]; i++) {
		const int32_t first = k->pos0[q] + (i - k->indptr[q]) * p->size;
		const int32_t len = i == k->indptr[q + 1] - 1 ? k->last_len[q] : p->size;

		seen[0] -= first + len > p->past[q / 2] + p->num[q / 2] ? 1000 : 0;
		for (int32_t at = first; at < first + len && at <= position; at++)
			seen[at] += k->pages[i] == p->pages[q / 2][at / p->size] ? 1 : -1000;
	}
}

static void check_row(struct cairn_test *t, struct pass *p, const struct cairn_batch_ring *ring, int32_t i,
		      int32_t q)
{
	const int32_t position = ring->mine.positions[i], row = ring->rows[i];
	const int32_t first = p->w->flight->host.qo_indptr[q / 2];
	int seen[PAST + ROWS] = { 0 }, right = 1;

	if (!EXPECT(t, row >= first && row < first + p->num[q / 2] &&
		    position == p->past[q / 2] + row - first))
		return;
	p->owners[row]++;
	for (int k = 0; k < CAIRN_RING_RUNS; k++) {
		see(p, &ring->own.run[k], q, position, seen);
		see(p, &ring->others.run[k], q, position, seen);
	}
	for (int32_t at = 0; at <= position; at++)
		right &= seen[at] == 1;
	EXPECT(t, right);
	p->pairs[p->m->context_rank] += position + 1;
}

/* All keys of a call are those of its runs, one after the other. */
static void check_call(struct cairn_test *t, const struct pass *p, const struct cairn_ring_call *c, int32_t q)
{
	int32_t at = c->all.indptr[q], last = p->size;

	for (int k = 0; k < CAIRN_RING_RUNS; k++) {
		const struct cairn_ring_keys *run = &c->run[k];

		for (int32_t i = run->indptr[q]; i < run->indptr[q + 1]; i++, at++)
			EXPECT(t, last == p->size && c->all.pages[at] == run->pages[i]);
		if (run->indptr[q] < run->indptr[q + 1])
			last = run->last_len[q];
		EXPECT(t, (run->indptr[q + 1] - run->indptr[q]) * p->size <= run->max_keys);
	}
	EXPECT(t, at == c->all.indptr[q + 1] && c->all.last_len[q] == last);
	EXPECT(t, (at - c->all.indptr[q]) * p->size <= c->all.max_keys);
}

/* All own keys end with the last row, and no row sees a later one of others: masks need no positions. */
static void check_ends(struct cairn_test *t, const struct pass *p, const struct cairn_batch_ring *ring,
		       int32_t q)
{
	const int32_t end = ring->mine.qo_indptr[q + 1], keys = ring->own.all.indptr[q + 1];
	int32_t last;

	if (end == ring->mine.qo_indptr[q])
		return;
	last = ring->mine.positions[end - 1];
	EXPECT(t, ring->own.all.pages[keys - 1] == p->pages[q / 2][last / p->size] &&
		  ring->own.all.last_len[q] == last % p->size + 1);
	for (int32_t i = ring->others.all.indptr[q]; i < ring->others.all.indptr[q + 1]; i++)
		for (int32_t j = ring->mine.positions[ring->mine.qo_indptr[q]] / p->size; j <= last / p->size;
		     j++)
			EXPECT(t, ring->others.all.pages[i] != p->pages[q / 2][j]);
}

/* The j-th page of the t-th rank before arrives in slot t * most_pages + j. */
static void check_arrivals(struct cairn_test *t, const struct pass *p, const struct cairn_batch_ring *ring)
{
	const int32_t ranks = p->m->context_ranks, rank = p->m->context_rank;
	int32_t sum = 0;

	for (int32_t r = 0; r < ranks; r++)
		sum += r == rank ? 0 : p->num_sent[r];
	EXPECT(t, ring->num_arrived == sum);
	for (int32_t i = 0; i < ring->num_own; i++)
		EXPECT(t, ring->own_slots[i] == ~i);
	for (int32_t i = 0; i < ring->num_arrived; i++) {
		const int32_t s = ~ring->arrived_slots[i], from = s / ring->most_pages;

		EXPECT(t, from > 0 && from < ranks && ring->arrived_pages[i] ==
			  p->sent[(rank - from + ranks) % ranks][s % ring->most_pages]);
	}
}

static void check_rank(struct cairn_test *t, struct pass *p)
{
	const struct cairn_batch_ring *ring = &p->w->batch_ring;

	for (int32_t q = 0; q < ring->mine.batch; q++) {
		check_call(t, p, &ring->own, q);
		check_call(t, p, &ring->others, q);
		check_ends(t, p, ring, q);
		for (int32_t i = ring->mine.qo_indptr[q]; i < ring->mine.qo_indptr[q + 1]; i++)
			check_row(t, p, ring, i, q);
	}
	check_arrivals(t, p, ring);
	EXPECT(t, ring->num_own <= ring->most_pages);
	for (int32_t i = 0; i < ring->num_own; i++)
		for (int32_t b = 0; b < p->batch; b++)
			for (int32_t j = 0; j * p->size < p->past[b] + p->num[b]; j++)
				p->stored[b][j] += p->pages[b][j] == ring->own_pages[i];
	for (int32_t i = 0; i < p->logits; i++) {
		const int32_t at = ring->logit_rows[i];

		if (at / ring->most_wanted == p->m->context_rank)
			EXPECT(t, ring->rows[ring->wanted[at % ring->most_wanted]] == p->want[i]);
	}
}

static void check_all(struct cairn_test *t, const struct pass *p)
{
	int64_t sum = 0, most = 0;

	for (int32_t i = 0; i < p->rows; i++)
		EXPECT(t, p->owners[i] == 1);
	for (int32_t b = 0; b < p->batch; b++)
		for (int32_t j = 0; j * p->size < p->past[b] + p->num[b]; j++)
			EXPECT(t, p->stored[b][j] == (j >= p->past[b] / p->size));
	for (int32_t r = 0; r < p->m->context_ranks; r++) {
		sum += p->pairs[r];
		most = p->pairs[r] > most ? p->pairs[r] : most;
	}
	/* a piece is whole pages: at most a page more than its share, each row of which sees all keys */
	if (p->batch == 1 && p->m->exchange == CAIRN_EXCHANGE_RING)
		EXPECT(t, most <= sum / p->m->context_ranks + 2 * p->size * (p->past[0] + p->num[0]));
}

/* Notes what a rank sends. */
static void note_sent(struct pass *p)
{
	const struct cairn_batch_ring *ring = &p->w->batch_ring;
	const int32_t r = p->m->context_rank;

	p->num_sent[r] = ring->num_own;
	memcpy(p->sent[r], ring->own_pages, (size_t)ring->num_own * sizeof(p->sent[r][0]));
}

static void run_passes(struct cairn_test *t, struct pass *p)
{
	for (int i = 0; i < TRIALS; i++) {
		p->m->exchange = i % 4 ? CAIRN_EXCHANGE_RING : CAIRN_EXCHANGE_BLOCKS;
		p->m->context_ranks = 2 + below(t, CAIRN_COMM_MAX_RANKS - 1);
		build(t, p, i % 3 ? 1 + below(t, REQUESTS) : 1);
		for (int again = 0; again < 2; again++)
			for (int32_t r = 0; r < p->m->context_ranks; r++) {
				p->m->context_rank = r;
				if (!EXPECT(t, worker_ring_prepare(p->w) == 0))
					return;
				if (again)
					check_rank(t, p);
				else
					note_sent(p);
			}
		check_all(t, p);
	}
}

static void random_passes(struct cairn_test *t)
{
	static const int32_t sizes[] = { 1, 3, 16 };
	static struct pass p;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		const struct cairn_worker_options o = {
			.max_batch = 8, .max_rows = REQUESTS * ROWS, .max_context = 128, .num_pages = 512,
			.page_size = sizes[i],
		};

		p.size = sizes[i];
		if (!EXPECT(t, !cairn_model_load_context(&p.m, &impl, g.dir, 0, 2, CAIRN_EXCHANGE_RING,
							 CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL, NULL)))
			break;
		if (EXPECT(t, cairn_worker_create(&p.w, p.m, &o) == 0))
			run_passes(t, &p);
		cairn_worker_destroy(p.w);
		p.w = NULL;
		cairn_model_free(p.m);
	}
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "random_passes", random_passes },
};

const struct cairn_family cairn_ranks_pieces_family = {
	.stage = "serving", .name = "ranks_pieces",
	.units = units, .num_units = ARRAY_SIZE(units),
};
