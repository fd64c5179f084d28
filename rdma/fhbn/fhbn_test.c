// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_test.c - the poster on a CPU, with rings laid out by hand, on the NIC model's engine
 *
 * With the model preloaded (fhbn_verbs_test.c) the same tests run on queue pairs of libmlx5. The model checks
 * every request by its rules and accepts every doorbell dialect. Each put carries a pattern derived from its
 * sequence number; once the number has arrived, the test checks the pattern.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_measure.h"

static void fill(uint8_t *p, uint64_t seq, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		p[i] = fhbn_pattern(seq, i);
}

static int is_torn(const uint8_t *p, uint64_t seq, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (p[i] != fhbn_pattern(seq, i))
			return 1;
	return 0;
}

/* One poster: its queue, and its own place in all three memories. */
struct poster {
	struct pair *pair;
	const struct cairn_fhbn_qp *q;
	int place, count, ret, torn;
	uint32_t bytes;
	pthread_t thread;
};

/* Posts puts, waits for the number of each and checks its pattern, until all are done or one fails. */
static void *post_all(void *arg)
{
	struct poster *p = arg;
	struct pair *m = p->pair;
	struct cairn_fhbn_fault fault = { 0 };
	size_t at = (size_t)p->place * p->bytes;
	uint64_t *flag = &m->flags[8 * p->place];

	fhbn_host_thread = (uint32_t)p->place;
	for (uint64_t seq = 1; !p->ret && seq <= (uint64_t)p->count; seq++) {
		uint32_t bytes = fhbn_pattern_bytes(seq, p->bytes);
		struct cairn_fhbn_request put = cairn_fhbn_write((uintptr_t)(m->to + at), m->to_rkey,
								 (uintptr_t)(m->from + at), m->from_lkey,
								 bytes);

		fill(m->from + at, seq, bytes);
		p->ret = cairn_fhbn_host_put_signal(p->q, &put, (uintptr_t)flag, m->flags_rkey, seq);
		if (!p->ret)
			p->ret = cairn_fhbn_host_wait_signal(flag, seq, TIMEOUT, &fault);
		if (!p->ret)
			p->torn += is_torn(m->to + at, seq, bytes);
	}
	return NULL;
}

struct seen {
	uint64_t rules, requests, doorbells, by_wqe, by_index, blueflame;
};

static struct seen look(void)
{
	const struct nic_stats *s = pair_stats();

	return (struct seen) { s->rules, s->requests, s->doorbells, s->doorbell_wqe, s->doorbell_index,
			       s->blueflame };
}

/*
 * Runs posters spread over the pair's queues: no payload may be torn, and no rule may be broken. Returns the
 * model's counts.
 */
static struct seen run(struct cairn_test *t, struct pair *m, int num_posters, int count, uint32_t bytes)
{
	struct poster posters[PAIR_QUEUES] = { 0 };
	struct seen before = look(), now;
	int torn = 0, i;

	for (i = 0; i < num_posters; i++) {
		posters[i] = (struct poster) {
			.pair = m, .q = cairn_fhbn_queue_view(m->queue[i % m->num]), .place = i,
			.count = count, .bytes = bytes,
		};
		if (num_posters == 1)
			post_all(&posters[i]);
		else
			EXPECT(t, !pthread_create(&posters[i].thread, NULL, post_all, &posters[i]));
	}
	for (i = 0; i < num_posters; i++) {
		if (num_posters > 1)
			pthread_join(posters[i].thread, NULL);
		if (!EXPECT(t, !posters[i].ret))
			cairn_note(t, "poster %d: %d", i, posters[i].ret);
		torn += posters[i].torn;
	}
	EXPECT(t, torn == 0);
	for (i = 0; i < m->num; i++) {
		EXPECT(t, cairn_fhbn_host_flush(cairn_fhbn_queue_view(m->queue[i])) == 0);
		EXPECT(t, cairn_fhbn_queue_error(m->queue[i]) == 0);
	}
	now = look();
	EXPECT(t, now.rules == before.rules);
	return (struct seen) { now.rules - before.rules, now.requests - before.requests,
			       now.doorbells - before.doorbells, now.by_wqe - before.by_wqe,
			       now.by_index - before.by_index, now.blueflame - before.blueflame };
}

/*
 * Runs one poster in each doorbell dialect, with and without SHARED, with all requests or only a few
 * signalled; checks the model's counts.
 */
static void modes(struct cairn_test *t)
{
	static const uint32_t bells[] = { 0, CAIRN_FHBN_BELL_WQE, CAIRN_FHBN_BLUEFLAME };
	struct pair m;

	for (uint32_t i = 0; i < 12; i++) {
		uint32_t mode = bells[i % 3] | (i / 3 & 1 ? CAIRN_FHBN_SHARED : 0) |
				(i / 6 ? CAIRN_FHBN_QUIET : 0);
		struct seen s;

		if (pair_open_or_skip(t, &m, NULL, 16, mode, 1))
			return;
		s = run(t, &m, 1, 200, 512);
		EXPECT(t, s.requests == 401);
		EXPECT(t, s.doorbells == 201);
		EXPECT(t, mode & CAIRN_FHBN_BLUEFLAME ? s.blueflame > 0 : !s.blueflame);
		EXPECT(t, (i % 3 ? s.by_wqe : s.by_index) == 201);
		pair_close(&m);
	}
}

static void several_posters(struct cairn_test *t)
{
	struct pair m;
	struct seen s;

	if (pair_open_or_skip(t, &m, NULL, 16, CAIRN_FHBN_SHARED, 1))
		return;
	s = run(t, &m, 8, 300, 256);
	EXPECT(t, s.requests == 4801);
	cairn_note(t, "%llu requests, %llu doorbells", (unsigned long long)s.requests,
		   (unsigned long long)s.doorbells);
	pair_close(&m);
}

static void many_queues(struct cairn_test *t)
{
	struct pair m;

	if (pair_open_or_skip(t, &m, NULL, 32, 0, 24))
		return;
	EXPECT(t, run(t, &m, 24, 50, 256).requests == 24 * 101);
	pair_close(&m);
	if (pair_open_or_skip(t, &m, NULL, 16, CAIRN_FHBN_SHARED | CAIRN_FHBN_QUIET, 4))
		return;
	EXPECT(t, run(t, &m, 12, 100, 256).requests == 4 * 601);
	pair_close(&m);
}

static void adversaries(struct cairn_test *t)
{
	static const char *const lists[] = {
		"fetch_us=200,completion_us=200", "pieces=16,piece_us=20", "drop=30,fetch_us=20",
		"drop_bf=50", "fetch_us=100,completion_us=300,pieces=8,piece_us=10,drop=10",
	};
	struct pair m;

	for (uint32_t i = 0; i < ARRAY_SIZE(lists); i++) {
		uint32_t mode = i & 1 ? CAIRN_FHBN_SHARED : CAIRN_FHBN_BLUEFLAME;

		if (pair_open_or_skip(t, &m, lists[i], 16, mode, 1))
			return;
		run(t, &m, i & 1 ? 3 : 1, 60, 512);
		pair_close(&m);
	}
}

/* The 16-bit index wraps 15 times; the sequence number is checked every 64 puts. */
static void index_wraps(struct cairn_test *t)
{
	const uint64_t puts = 15 * 65536 / 2 + 100;
	struct cairn_fhbn_fault fault = { 0 };
	const struct cairn_fhbn_qp *q;
	struct cairn_fhbn_state s;
	uint64_t rules;
	struct pair m;
	int ret = 0, torn = 0;

	if (pair_open_or_skip(t, &m, NULL, 512, CAIRN_FHBN_QUIET, 1))
		return;
	rules = pair_stats()->rules;
	q = cairn_fhbn_queue_view(m.queue[0]);
	for (uint64_t seq = 1; !ret && seq <= puts; seq++) {
		/* a place is reused only after the ring has wrapped */
		size_t at = seq % 1024 * 64;
		struct cairn_fhbn_request put = cairn_fhbn_write((uintptr_t)(m.to + at), m.to_rkey,
								 (uintptr_t)(m.from + at), m.from_lkey, 64);

		memcpy(m.from + at, &seq, sizeof(seq));
		ret = cairn_fhbn_host_put_signal(q, &put, (uintptr_t)m.flags, m.flags_rkey, seq);
		if (ret || seq % 64)
			continue;
		ret = cairn_fhbn_host_wait_signal(m.flags, seq, TIMEOUT, &fault);
		torn += memcmp(m.to + at, &seq, sizeof(seq)) != 0;
	}
	EXPECT(t, !ret && !torn);
	EXPECT(t, cairn_fhbn_host_flush(q) == 0);
	EXPECT(t, cairn_fhbn_queue_state(m.queue[0], &s) == 0);
	EXPECT(t, s.retired == 2 * puts + 1 && s.rung == s.retired && s.reserved == s.retired);
	EXPECT(t, pair_stats()->rules == rules);
	pair_close(&m);
}

/*
 * A READ returns what a WRITE has put there; it is complete after a flush. A READ of 0 bytes is not taken for
 * one of 2 GiB.
 */
static void read_back(struct cairn_test *t)
{
	struct cairn_fhbn_request r[3];
	const struct cairn_fhbn_qp *q;
	struct pair m;
	uint64_t end, rules;

	if (pair_open_or_skip(t, &m, "read_us=200", 16, 0, 1))
		return;
	rules = pair_stats()->rules;
	q = cairn_fhbn_queue_view(m.queue[0]);
	fill(m.from, 1, 1000);
	r[0] = cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, m.from_lkey, 1000);
	r[1] = cairn_fhbn_read((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from + 4096, m.from_lkey, 1000);
	r[2] = cairn_fhbn_write((uintptr_t)m.to + 8192, m.to_rkey, (uintptr_t)m.from + 4096, m.from_lkey,
				1000);
	r[2].flags = CAIRN_WQE_FENCE;
	EXPECT(t, cairn_fhbn_host_post(q, r, 3, &end) == 0 && end == 3);
	r[0] = cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, m.from_lkey, 0);
	EXPECT(t, cairn_fhbn_host_post(q, r, 1, &end) == 0 && end == 4);
	EXPECT(t, cairn_fhbn_host_flush(q) == 0);
	EXPECT(t, !is_torn(m.from + 4096, 1, 1000) && !is_torn(m.to + 8192, 1, 1000));
	EXPECT(t, pair_stats()->rules == rules);
	pair_close(&m);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(modes), UNIT(several_posters), UNIT(many_queues), UNIT(adversaries), UNIT(index_wraps),
	UNIT(read_back),
};

const struct cairn_family cairn_fhbn_family = {
	.stage = "rdma", .name = "fhbn", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = fhbn_measures, .num_measures = FHBN_NUM_MEASURES,
};
