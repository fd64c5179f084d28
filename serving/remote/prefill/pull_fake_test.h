/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pull_fake_test - one end of a pull that says what the test wants: a prefill worker towards a real lead, or
 * the lead's end towards a real epoch of a prefill worker
 */
#ifndef CAIRN_PULL_FAKE_TEST_H
#define CAIRN_PULL_FAKE_TEST_H

#include "rdma/transport/transport.h"
#include "serving/remote/prefill/pull_rig_test.h"

struct pull_fake {
	struct cairn_control_channel *channel;	/* of a worker */
	struct cairn_control_assign a;
	struct cairn_run_shape shape;
	const struct sodium *sodium;
	const struct cairn_transport_table *tcp;
	struct cairn_transport *t;
	struct cairn_channel *c;
	struct cairn_region *region;	/* a worker: slots to send; the lead's end: the ring */
	struct cairn_remote *ring;
	struct cairn_pull_blob mine, theirs;
	char *slots;
	uint64_t runs;			/* sent or taken */
};

static inline int fake_open(struct pull_fake *f, const struct pull_rig *r, int is_lead)
{
	const struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	const size_t ring = CAIRN_RUN_RING * cairn_run_slot_bytes(&f->shape);

	CAIRN_TRY(sodium_load(&f->sodium));
	(void)r;
	f->tcp = cairn_transport_find("tcp");
	f->slots = calloc(1, ring);
	CAIRN_TRY(f->tcp->open(&o, &f->t));
	CAIRN_TRY(f->tcp->region_register(f->t, f->slots, ring, CAIRN_MEMORY_HOST, &f->region));
	CAIRN_TRY(f->tcp->channel_create(f->t, &f->c));
	CAIRN_TRY(f->tcp->channel_address(f->c, &f->mine.channel));
	memset(f->mine.key, 7, sizeof(f->mine.key));
	return is_lead ? f->tcp->region_key(f->region, &f->mine.ring) : 0;
}

static inline void fake_close(struct pull_fake *f)
{
	if (f->t)
		f->tcp->close(f->t);
	cairn_channel_close(f->channel);
	free(f->slots);
	*f = (struct pull_fake){ 0 };
}

/* ---- a worker ---- */

/* Waits for a message of this kind, beating meanwhile. */
static inline int fake_receive(struct pull_fake *f, uint32_t kind, struct cairn_channel_message *m)
{
	const int64_t until = cairn_clock_ns() + 10000000000;
	int ret = -ETIMEDOUT;

	while (cairn_clock_ns() < until) {
		ret = cairn_channel_receive(f->channel, m, 50);
		if (ret != -ETIMEDOUT && (ret || m->kind == kind))
			break;
	}
	return ret;
}

static inline int fake_join(struct pull_fake *f, struct pull_rig *r)
{
	struct cairn_control_join j = {
		.version = CAIRN_CONTROL_VERSION, .role = CAIRN_MEMBER_PREFILL, .rank = -1,
		.transports = 0xffffffff, .table = "cpu", .weights = PULL_WEIGHTS,
		.digest = strtoull(cairn_source_digest(), NULL, 16),
	};
	struct {
		struct cairn_control_blob head;
		struct cairn_pull_blob blob;
	} said = { .head = { .from = 1, .num_bytes = sizeof(said.blob) } };
	struct cairn_control_epoch ready = { 0 };
	struct cairn_channel_message m;
	int fd;

	*f = (struct pull_fake){ 0 };
	CAIRN_TRY(cairn_address_dial(&fd, r->join, 5000));
	CAIRN_TRY(cairn_channel_open(&f->channel, fd, CAIRN_CHANNEL_MEMBER, NULL, 5000));
	CAIRN_TRY(cairn_channel_send(f->channel, CAIRN_CONTROL_JOIN, &j, sizeof(j), 5000));
	CAIRN_TRY(fake_receive(f, CAIRN_CONTROL_ASSIGN, &m));
	memcpy(&f->a, m.data, sizeof(f->a));
	f->shape = cairn_run_shape(r->m, f->a.page_size, f->a.max_rows);
	CAIRN_TRY(fake_open(f, r, 0));
	said.head.epoch = ready.epoch = f->a.epoch;
	said.blob = f->mine;
	CAIRN_TRY(cairn_channel_send(f->channel, CAIRN_CONTROL_BLOB, &said, sizeof(said), 5000));
	CAIRN_TRY(fake_receive(f, CAIRN_CONTROL_BLOB, &m));
	memcpy(&f->theirs, (const char *)m.data + sizeof(said.head), sizeof(f->theirs));
	CAIRN_TRY(f->tcp->remote_import(f->t, &f->theirs.ring, &f->ring));
	CAIRN_TRY(f->tcp->channel_connect(f->c, &f->theirs.channel, 5000));
	CAIRN_TRY(cairn_channel_send(f->channel, CAIRN_CONTROL_READY, &ready, sizeof(ready), 5000));
	return pull_await(r, 1) ? 0 : -ETIMEDOUT;
}

/* Sends a run whose slot the caller has filled, head and payload. */
static inline int fake_put(struct pull_fake *f)
{
	const size_t bytes = cairn_run_slot_bytes(&f->shape), at = f->runs % CAIRN_RUN_RING * bytes;
	const struct cairn_put put = {
		.local = f->region, .local_offset = at, .remote = f->ring, .remote_offset = at,
		.bytes = bytes, .value = f->runs + 1, .slot = CAIRN_SLOT_RUNS,
	};

	CAIRN_TRY(f->tcp->wait(f->c, CAIRN_SLOT_CREDITS, f->runs + 1 - CAIRN_RUN_RING, 10000, NULL));
	f->runs++;
	CAIRN_TRY(f->tcp->put(f->c, &put, 5000));
	return f->tcp->flush(f->c, 5000);
}

/* Fills the next slot with a run whose payload is bytes of this value, and good checksums. */
static inline struct cairn_run *fake_fill(struct pull_fake *f, const struct cairn_run *run, int value)
{
	char *slot = f->slots + f->runs % CAIRN_RUN_RING * cairn_run_slot_bytes(&f->shape);
	const size_t bytes = (size_t)run->num_pages * f->shape.page_bytes;
	struct cairn_run *head = (struct cairn_run *)(void *)slot;

	memset(slot + CAIRN_RUN_HEAD_BYTES, value, bytes);
	*head = *run;
	head->epoch = f->a.epoch;
	head->payload = bytes ? cairn_run_hash(f->sodium, f->theirs.key, slot + CAIRN_RUN_HEAD_BYTES, bytes) :
			0;
	head->sum = cairn_run_sum(f->sodium, f->theirs.key, head);
	return head;
}

/* ---- the lead's end ---- */

/* Takes the next run. Returns 0 and the run; -ETIMEDOUT: none has come. */
static inline int fake_take(struct pull_fake *f, struct cairn_run *run, const char **payload, int timeout_ms)
{
	const char *slot = f->slots + f->runs % CAIRN_RUN_RING * cairn_run_slot_bytes(&f->shape);

	CAIRN_TRY(f->tcp->wait(f->c, CAIRN_SLOT_RUNS, f->runs + 1, (uint32_t)timeout_ms, NULL));
	memcpy(run, slot, sizeof(*run));
	if (payload)
		*payload = slot + CAIRN_RUN_HEAD_BYTES;
	f->runs++;
	return 0;
}

static inline int fake_credit(struct pull_fake *f)
{
	const struct cairn_put put = { .value = f->runs, .slot = CAIRN_SLOT_CREDITS };

	return f->tcp->put(f->c, &put, 5000);
}

#endif
