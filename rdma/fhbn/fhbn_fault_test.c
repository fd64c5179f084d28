// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_fault_test.c - each failing request, timed-out wait and rejected argument gives its error text
 *
 * The poster runs on a CPU. If the model is preloaded, it posts to queue pairs of libmlx5. fhbn_gpu_test.c
 * tests the texts of faults in kernels.
 */
#include <stdio.h>

#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_pair.h"

/* Posts one request that must fail with the given text. Later requests must fail with the same text. */
static void fails(struct cairn_test *t, struct pair *m, struct cairn_fhbn_request r, const char *text)
{
	const struct cairn_fhbn_qp *q = cairn_fhbn_queue_view(m->queue[0]);
	uint64_t end;

	EXPECT(t, cairn_fhbn_host_post(q, &r, 1, &end) == 0);
	EXPECT(t, cairn_fhbn_wait(q, q->mode, end) == -EIO);
	EXPECT(t, cairn_fhbn_queue_error(m->queue[0]) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
	EXPECT(t, cairn_fhbn_host_post(q, &r, 1, &end) == -EIO);
	EXPECT(t, cairn_fhbn_host_flush(q) == -EIO);
}

static void errors(struct cairn_test *t)
{
	struct pair m;

	if (pair_open_or_skip(t, &m, NULL, 16, 0, 1))
		return;
	fails(t, &m, cairn_fhbn_write((uintptr_t)m.to, m.to_rkey ^ 0x100, (uintptr_t)m.from, m.from_lkey, 64),
	      ": WRITE at index 0 failed: remote access error (syndrome 0x13, vendor 0x88), read by CPU ");
	pair_close(&m);
	if (pair_open_or_skip(t, &m, NULL, 16, CAIRN_FHBN_SHARED, 1))
		return;
	fails(t, &m, cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, ~m.from_lkey, 64),
	      "local protection error (syndrome 0x4");
	pair_close(&m);
	if (pair_open_or_skip(t, &m, NULL, 16, 0, 1))
		return;
	fails(t, &m, cairn_fhbn_read((uintptr_t)m.to + PAIR_BYTES - 63, m.to_rkey, (uintptr_t)m.from,
				     m.from_lkey, 64), ": READ at index 0 failed: remote access error");
	pair_close(&m);
	if (pair_open_or_skip(t, &m, NULL, 16, 0, 1))
		return;
	fhbn_model()->revoke_key(m.to_rkey);
	fails(t, &m, cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, m.from_lkey, 64),
	      "remote access error");
	pair_close(&m);
	if (pair_open_or_skip(t, &m, NULL, 16, 0, 1))
		return;
	cairn_fhbn_queue_destroy(m.peer[0]);		/* the other end is gone */
	m.peer[0] = NULL;
	fails(t, &m, cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, m.from_lkey, 64),
	      "transport retries exceeded (syndrome 0x15");
	pair_close(&m);
}

/* Every wait ends. Its text names the waiting thread, what it waited for and what it saw last. */
static void time_outs(struct cairn_test *t)
{
	struct cairn_fhbn_fault fault = { 0 };
	struct cairn_fhbn_request r;
	struct cairn_fhbn_qp q;
	struct pair m;
	uint64_t end;
	char room[96];
	int ret = 0, posted = 0;

	if (pair_open_or_skip(t, &m, "fetch_us=1000000", 16, 0, 1))
		return;
	q = *cairn_fhbn_queue_view(m.queue[0]);
	q.timeout_ns = 20 * MS;
	fhbn_host_thread = 5;
	r = cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, m.from_lkey, 64);
	for (; !ret && posted < 4096; posted++)
		ret = cairn_fhbn_host_post(&q, &r, 1, &end);
	EXPECT(t, ret == -ETIMEDOUT && posted == (int)q.sq.num_blocks + 1);
	EXPECT(t, cairn_fhbn_queue_error(m.queue[0]) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), ": CPU thread 5 waited ");
	snprintf(room, sizeof(room), " ms for room up to index %u; completed up to 0", q.sq.num_blocks + 1);
	EXPECT_CONTAINS(t, cairn_last_error(), room);
	pair_close(&m);

	if (pair_open_or_skip(t, &m, "fetch_us=1000000", 16, 0, 1))
		return;
	q = *cairn_fhbn_queue_view(m.queue[0]);
	q.timeout_ns = 20 * MS;
	EXPECT(t, cairn_fhbn_host_flush(&q) == -ETIMEDOUT);
	EXPECT(t, cairn_fhbn_queue_error(m.queue[0]) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), "ms for completions up to index 1; completed up to 0");
	pair_close(&m);

	if (pair_open_or_skip(t, &m, NULL, 16, CAIRN_FHBN_SHARED, 1))
		return;
	q = *cairn_fhbn_queue_view(m.queue[0]);
	q.timeout_ns = 20 * MS;
	q.state->reserved = 1;			/* a poster that reserved a block and then stopped */
	EXPECT(t, cairn_fhbn_host_post(&q, &r, 1, &end) == -ETIMEDOUT);
	EXPECT(t, cairn_fhbn_queue_error(m.queue[0]) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), "ms for its turn at index 1; published up to 0");
	EXPECT(t, cairn_fhbn_host_wait_signal(m.flags, 3, 20 * MS, &fault) == -ETIMEDOUT);
	EXPECT(t, cairn_fhbn_fault_error(&fault) == -ETIMEDOUT);
	EXPECT(t, fault.waited_ns >= 20 * MS && fault.waited_ns < 2000 * MS);
	EXPECT_CONTAINS(t, cairn_last_error(), "fhbn: CPU thread 5 waited ");
	EXPECT_CONTAINS(t, cairn_last_error(), " ms for sequence number 3; last seen 0");
	pair_close(&m);
}

static void refusals(struct cairn_test *t)
{
	const struct cairn_fhbn_qp_args good = {
		.poster = CAIRN_FHBN_BY_CPU, .num_blocks = 16, .timeout_ns = TIMEOUT,
	};
	struct cairn_fhbn_open_args open = { .provider = CAIRN_FHBN_BARE, .seed = 1 };
	struct cairn_fhbn_qp_args a = good;
	struct cairn_fhbn_queue *q = NULL;
	struct cairn_fhbn_nic *nic;
	int ret = cairn_fhbn_open(&open, &nic);

	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	if (ret)
		return;
#define REFUSED(field, value, text) do {						\
		a = good;								\
		a.field = value;							\
		EXPECT(t, cairn_fhbn_queue_create(nic, &a, &q) == -EINVAL && !q);	\
		EXPECT_CONTAINS(t, cairn_last_error(), text);				\
	} while (0)
	REFUSED(num_blocks, 8, "num_blocks: 8 ");
	REFUSED(num_blocks, 48, "num_blocks: 48 ");
	REFUSED(num_blocks, 65536, "num_blocks: 65536 ");
	REFUSED(mode, 0x40, "mode: 0x40 ");
	REFUSED(timeout_ns, 0, "timeout_ns");
	REFUSED(poster, 3, "poster: 3");
	EXPECT(t, cairn_fhbn_unregister(nic, 0x77) == -EINVAL);
	cairn_fhbn_close(nic);
	open.adversary = "no_such_trouble=1";
	EXPECT(t, cairn_fhbn_open(&open, &nic) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "adversary: 'no_such_trouble=1'");
	open.provider = 7;
	EXPECT(t, cairn_fhbn_open(&open, &nic) == -EINVAL);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(errors), UNIT(time_outs), UNIT(refusals),
};

const struct cairn_family cairn_fhbn_fault_family = {
	.stage = "rdma", .name = "fhbn_fault", .units = units, .num_units = ARRAY_SIZE(units),
};
