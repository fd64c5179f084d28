// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_foreign_test.c - memory that the model reaches only through a copy function, like GPU memory; needs no
 * GPU
 *
 * The copy function here queues copies until the model waits for them, and then executes them in the order
 * requested. A sequence number must not become visible before its payload, wherever the two are, and a
 * completion not before either.
 */
#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_pair.h"

enum { LATE_COPIES = 32, LATE_BYTES = 4096, PUTS = 60, BYTES = 512 };

static struct {
	struct {
		uint8_t *to, held[LATE_BYTES];
		const uint8_t *from;
		size_t bytes;
	} copies[LATE_COPIES];
	int num;
	struct {
		const uint8_t *first;
		size_t bytes;
	} places[4];
	_Atomic uint64_t waits, most;	/* waits: times the model waited; most: copies pending at once */
} late;

static int late_settle(void)
{
	late.waits++;
	late.most = (uint64_t)late.num > late.most ? (uint64_t)late.num : late.most;
	for (int i = 0; i < late.num; i++) {
		const uint8_t *from = late.copies[i].from ? late.copies[i].from : late.copies[i].held;
		uint64_t word;

		if (late.copies[i].bytes != sizeof(word)) {
			memcpy(late.copies[i].to, from, late.copies[i].bytes);
			continue;
		}
		memcpy(&word, from, sizeof(word));
		__atomic_store_n((uint64_t *)(void *)late.copies[i].to, word, __ATOMIC_RELEASE);
	}
	late.num = 0;
	return 0;
}

/* Queues a copy. A source in the model's own memory is read now, because it may be reused later. */
static int late_copy(void *to, const void *from, size_t bytes)
{
	int i, there = 0;

	if (bytes > LATE_BYTES)
		return -1;
	if (late.num == LATE_COPIES)
		late_settle();
	for (i = 0; i < 4; i++)
		there |= (size_t)((const uint8_t *)from - late.places[i].first) < late.places[i].bytes;
	i = late.num++;
	late.copies[i].to = to;
	late.copies[i].from = there ? from : NULL;
	late.copies[i].bytes = bytes;
	if (!there)
		memcpy(late.copies[i].held, from, bytes);
	return 0;
}

/* Posts puts, waits for the number of each and checks its payload. Returns how many payloads were torn. */
static int put_all(struct cairn_test *t, struct pair *m, const struct cairn_fhbn_qp *q)
{
	struct cairn_fhbn_fault fault = { 0 };
	int torn = 0;

	for (uint64_t seq = 1; seq <= PUTS; seq++) {
		struct cairn_fhbn_request put = cairn_fhbn_write((uintptr_t)m->to, m->to_rkey,
								 (uintptr_t)m->from, m->from_lkey, BYTES);

		for (uint32_t i = 0; i < BYTES; i++)
			m->from[i] = fhbn_pattern(seq, i);
		if (!EXPECT(t, !cairn_fhbn_host_put_signal(q, &put, (uintptr_t)m->flags, m->flags_rkey,
							   seq)) ||
		    !EXPECT(t, !cairn_fhbn_host_wait_signal(m->flags, seq, TIMEOUT, &fault)))
			break;
		for (uint32_t i = 0; i < BYTES; i++)
			torn += m->to[i] != fhbn_pattern(seq, i);
	}
	return torn;
}

/* mask: which of the payload's source, its destination, the numbers, and the queue itself are foreign */
static void trial(struct cairn_test *t, unsigned mask)
{
	const struct cairn_nic_bare *model = fhbn_model();
	const struct cairn_fhbn_qp *q;
	uint64_t rules, requests;
	struct pair m;

	if (pair_open_or_skip(t, &m, NULL, 16, 0, 1))
		return;
	rules = pair_stats()->rules;
	requests = pair_stats()->requests;
	q = cairn_fhbn_queue_view(m.queue[0]);
	memset(&late, 0, sizeof(late));
	late.places[0].first = m.from;
	late.places[1].first = m.to;
	late.places[2].first = (uint8_t *)m.flags;
	late.places[3].first = (uint8_t *)q->sq.segs;
	for (unsigned i = 0; i < 4; i++) {
		if (!(mask & 1u << i))
			continue;
		/* ring, completion queue, doorbell records */
		late.places[i].bytes = i < 3 ? PAIR_BYTES : 3 * 4096;
		EXPECT(t, !model->declare_foreign(late.places[i].first, late.places[i].bytes));
	}
	model->set_copy(late_copy, late_settle);
	EXPECT(t, put_all(t, &m, q) == 0);
	EXPECT(t, !cairn_fhbn_host_flush(q));
	EXPECT(t, pair_stats()->rules == rules && pair_stats()->requests - requests == 2 * PUTS + 1);
	EXPECT(t, !mask || late.waits >= PUTS);
	EXPECT(t, (mask & 6) != 6 || late.most >= 2);	/* payload and number pending at the same wait */
	for (int i = 0; i < 4; i++)
		if (late.places[i].bytes)
			model->forget_foreign(late.places[i].first);
	pair_close(&m);
}

static void copies_under_way(struct cairn_test *t)
{
	for (unsigned mask = 0; mask < 16; mask++)
		trial(t, mask);
}

static const struct cairn_unit units[] = {
	{ "copies_under_way", copies_under_way },
};

const struct cairn_family cairn_fhbn_foreign_family = {
	.stage = "rdma", .name = "fhbn_foreign", .units = units, .num_units = ARRAY_SIZE(units),
};
