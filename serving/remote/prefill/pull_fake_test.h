/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pull_fake_test - one end of a pull that says what the test wants: a prefill worker towards a real lead, or
 * the lead's end towards a real epoch of a prefill worker
 */
#ifndef CAIRN_PULL_FAKE_TEST_H
#define CAIRN_PULL_FAKE_TEST_H

#include "rdma/transport/transport.h"
#include "serving/remote/prefill/prefill_epoch.h"
#include "serving/remote/prefill/pull_rig_test.h"
#include "serving/remote/pull/pull_impl.h"

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
	uint32_t patience_ms;		/* for a credit, or for the next run of a job */
};

static inline int fake_open(struct pull_fake *f, int is_lead)
{
	const struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	const size_t ring = CAIRN_RUN_RING * cairn_run_slot_bytes(&f->shape);

	CAIRN_TRY(sodium_load(&f->sodium));
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

	*f = (struct pull_fake){ .patience_ms = 10000 };
	CAIRN_TRY(cairn_address_dial(&fd, r->join, 5000));
	CAIRN_TRY(cairn_channel_open(&f->channel, fd, CAIRN_CHANNEL_MEMBER, NULL, 5000));
	CAIRN_TRY(cairn_channel_send(f->channel, CAIRN_CONTROL_JOIN, &j, sizeof(j), 5000));
	CAIRN_TRY(fake_receive(f, CAIRN_CONTROL_ASSIGN, &m));
	memcpy(&f->a, m.data, sizeof(f->a));
	f->shape = cairn_run_shape(r->m, f->a.page_size, f->a.max_rows);
	CAIRN_TRY(fake_open(f, 0));
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

	CAIRN_TRY(f->tcp->wait(f->c, CAIRN_SLOT_CREDITS, f->runs + 1 - CAIRN_RUN_RING, f->patience_ms, NULL));
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

/* The fault that a fake worker makes in or around a job's second run; PAYLOAD_LATER: in its seventh run. */
enum fake_bad {
	GOOD, PAYLOAD, PAYLOAD_LATER, HEAD, KEY, EPOCH, JOB, LAYER, PAGE, PAGES, TWICE, EARLY, GIVEN_UP, LATE
};

/* Makes run number `i` of a job wrong, if it is the one. Keeps other checksums than those meant good. */
static inline void fake_damage(const struct pull_fake *f, enum fake_bad what, int i, struct cairn_run *head)
{
	uint8_t key[SODIUM_HASH_KEY_BYTES];

	if ((what == PAYLOAD && i == 1) || (what == PAYLOAD_LATER && i == 6))
		((char *)head)[CAIRN_RUN_HEAD_BYTES + 17] ^= 4;
	if (i != 1)
		return;
	memcpy(key, f->theirs.key, sizeof(key));
	key[3] ^= what == KEY;
	head->epoch += what == EPOCH;
	head->job += what == JOB;
	head->layer ^= what == LAYER;
	head->page += what == PAGE;
	head->num_pages -= what == PAGES;
	head->side -= what == TWICE;
	if (what == EARLY || what == GIVEN_UP)
		head->num_pages = 0;
	head->error = what == GIVEN_UP ? ETIMEDOUT : 0;
	head->sum = cairn_run_sum(f->sodium, key, head);
	head->sum ^= what == HEAD;
}

/*
 * Takes a prompt and sends its runs, one of them wrong, until the lead does not take them any more. Returns
 * 0, or the error of what came before the runs.
 */
static inline int fake_send_job(struct pull_fake *f, const struct pull_rig *r, enum fake_bad what)
{
	const struct timespec nap = { 0, 50000000 };
	struct cairn_channel_message m;
	struct cairn_control_prompt p;
	struct cairn_run run = { 0 };
	int ret = 0, i = 0;

	CAIRN_TRY(fake_receive(f, CAIRN_CONTROL_PROMPT, &m));
	memcpy(&p, m.data, sizeof(p));
	if (p.first != r->first || p.num_tokens != r->num_tokens)
		return -EINVAL;
	if (what == LATE)
		nanosleep(&nap, NULL);
	while (!ret && cairn_run_next(&f->shape, p.first / PULL_PAGE, pull_pages(r), &run)) {
		run.job = p.job;
		fake_damage(f, what, i++, fake_fill(f, &run, run.layer * 16 + run.side * 8 + run.page));
		ret = fake_put(f);
		if (i == 2 && (what == EARLY || what == GIVEN_UP))
			return 0;
	}
	fake_fill(f, &(struct cairn_run){ .job = p.job }, 0);
	if (!ret)
		fake_put(f);
	return 0;
}

/* Returns how many pages of a good job do not hold what was sent. */
static inline int fake_wrong_pages(const struct pull_fake *f, const struct pull_rig *r,
				   const struct cairn_pulled *d)
{
	const size_t bytes = f->shape.page_bytes;
	int wrong = 0;

	for (int32_t page = 0; page < pull_pages(r) - r->first / PULL_PAGE; page++) {
		for (size_t part = 0; part < r->page_bytes / bytes; part++) {
			const char *at = pull_part(r, d->id, page, part);
			/* all pages of a run have the number of the first */
			char want = (char)(part / 2 * 16 + part % 2 * 8 +
					   (size_t)(page - page % f->shape.run_pages));

			wrong += at[0] != want || at[bytes - 1] != want;
		}
	}
	return wrong;
}

/* Sends all runs of a job from `run` on, and its end. */
static inline int fake_send_rest(struct pull_fake *f, struct cairn_run run, int value)
{
	const uint64_t job = run.job;

	while (cairn_run_next(&f->shape, 0, PULL_CONTEXT / PULL_PAGE, &run)) {
		fake_fill(f, &run, value ? value : run.layer * 16 + run.side * 8 + run.page);
		CAIRN_TRY(fake_put(f));
	}
	fake_fill(f, &(struct cairn_run){ .job = job }, 0);
	return fake_put(f);
}

/*
 * The rig drops a job of which one run has come; the others follow, and then a second job. Returns 0 if the
 * pages of the first are left alone, those of the second right, and all credits came back.
 */
static inline int fake_drop_job(struct pull_fake *f, struct pull_rig *r)
{
	const size_t bytes = f->shape.page_bytes, parts = r->page_bytes / bytes;
	struct cairn_run run = { .job = 1 };
	struct cairn_channel_message m;
	struct cairn_pull_stats stats;
	struct cairn_pulled d;
	uint64_t dropped;

	r->first = 0;
	r->num_tokens = PULL_CONTEXT;
	if (pull_begin(r) != 1)
		return -EINVAL;
	CAIRN_TRY(fake_receive(f, CAIRN_CONTROL_PROMPT, &m));
	cairn_run_next(&f->shape, 0, PULL_CONTEXT / PULL_PAGE, &run);
	fake_fill(f, &run, 1);
	CAIRN_TRY(fake_put(f));
	do	/* until it is taken, so that the pages may be compared afterwards */
		cairn_pull_stats(r->pull, &stats);
	while (!stats.runs);
	dropped = r->last_id;
	cairn_pull_drop(r->pull, dropped);
	for (size_t i = 0; i < parts * PULL_MOST; i++)
		memset(pull_part(r, dropped, (int32_t)(i / parts), i % parts), 9, bytes);
	if (pull_begin(r) != 1)
		return -EINVAL;
	CAIRN_TRY(fake_send_rest(f, run, 2));
	CAIRN_TRY(fake_send_rest(f, (struct cairn_run){ .job = 2 }, 0));
	if (!pull_end_of(r, &d) || d.failed)
		return -EINVAL;
	for (size_t i = 0; i < parts * PULL_MOST; i++) {
		const char *at = pull_part(r, dropped, (int32_t)(i / parts), i % parts);

		for (size_t k = 0; k < bytes; k++)
			if (at[k] != 9)
				return -EINVAL;
	}
	return fake_wrong_pages(f, r, &d);
}

/* Returns whether the lead keeps the worker for 200 ms, in which its thread looks many times. */
static inline int fake_is_kept(struct pull_rig *r)
{
	struct cairn_pull_stats stats = { .workers = 1 };

	for (int i = 0; i < 100 && stats.workers; i++) {
		nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
		cairn_pull_stats(r->pull, &stats);
	}
	return stats.workers;
}

/*
 * Two jobs, the second of which waits for longer than QUIET_MS while the first is sent. Returns 0 if both are
 * completed, although the worker computes for a while between them.
 */
static inline int fake_send_two(struct pull_fake *f, struct pull_rig *r)
{
	struct cairn_channel_message m;
	struct cairn_pulled d[2];

	r->first = 0;
	r->num_tokens = PULL_CONTEXT;
	for (int i = 0; i < 2; i++) {
		if (pull_begin(r) != 1)
			return -EINVAL;
		CAIRN_TRY(fake_receive(f, CAIRN_CONTROL_PROMPT, &m));
	}
	pthread_mutex_lock(&r->pull->lock);
	for (int j = 0; j < CAIRN_PULL_JOBS; j++)
		if (r->pull->links[0].jobs[j].number == 2)
			r->pull->links[0].jobs[j].heard_ns -= 2 * CAIRN_PULL_QUIET_MS * 1000000ll;
	pthread_mutex_unlock(&r->pull->lock);
	CAIRN_TRY(fake_send_rest(f, (struct cairn_run){ .job = 1 }, 0));
	if (!pull_end_of(r, &d[0]) || !fake_is_kept(r))
		return -ECONNRESET;
	CAIRN_TRY(fake_send_rest(f, (struct cairn_run){ .job = 2 }, 0));
	return pull_end_of(r, &d[1]) && !d[0].failed && !d[1].failed ? 0 : -EIO;
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

/* Takes all runs of a job, with credits. Returns its error, or -errno. */
static inline int fake_take_job(struct pull_fake *f, uint64_t job)
{
	struct cairn_run run;

	do {
		CAIRN_TRY(fake_take(f, &run, NULL, (int)f->patience_ms));
		CAIRN_TRY(fake_credit(f));
	} while (run.num_pages && run.job == job);
	return run.job == job ? (int)run.error : -EINVAL;
}

static inline int fake_await(struct cairn_prefill_epoch *e, enum cairn_epoch_state state,
			     struct cairn_pull_blob *blob)
{
	char text[CAIRN_CONTROL_TEXT];

	for (int i = 0; i < 10000; i++) {
		if (cairn_epoch_state(cairn_prefill_epoch_life(e), blob, text, sizeof(text)) == state)
			return 0;
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
	return -ETIMEDOUT;
}

/* Creates an epoch of a prefill worker, and connects with it. */
static inline int fake_begin(struct pull_fake *f, const struct pull_rig *r, struct cairn_prefill_epoch **e)
{
	const struct cairn_remote_limits limits = {
		PULL_ROWS, 1, PULL_CONTEXT, CAIRN_PULL_JOBS * PULL_CONTEXT / PULL_PAGE, PULL_PAGE, 1, 0,
	};
	float *scales;

	*f = (struct pull_fake){ .patience_ms = 10000 };
	*e = NULL;
	CAIRN_TRY(cairn_share_assign(&f->a, &scales, r->m, &limits, 0, 1, 0));
	f->a.epoch = f->a.rank = 1;
	f->shape = cairn_run_shape(r->m, PULL_PAGE, PULL_ROWS);
	CAIRN_TRY(fake_open(f, 1));
	CAIRN_TRY(cairn_prefill_epoch_create(e, r->group ? r->stage : r->m, r->group, &f->a, "tcp",
					     "127.0.0.1"));
	CAIRN_TRY(fake_await(*e, CAIRN_EPOCH_PREPARED, &f->theirs));
	CAIRN_TRY(cairn_epoch_connect(cairn_prefill_epoch_life(*e), &f->mine));
	CAIRN_TRY(f->tcp->channel_connect(f->c, &f->theirs.channel, 5000));
	return fake_await(*e, CAIRN_EPOCH_CONNECTED, &f->theirs);
}

/* Sends the rig's prompt to the epoch. */
static inline int fake_prompt(struct cairn_prefill_epoch *e, const struct pull_rig *r, uint64_t job,
			      uint32_t lease_ms)
{
	struct {
		struct cairn_control_prompt head;
		int32_t ids[PULL_CONTEXT + PULL_PAGE];
	} said = { .head = { .job = job, .first = r->first, .num_tokens = r->num_tokens,
			     .lease_ms = lease_ms } };
	const struct cairn_channel_message m = { .kind = CAIRN_CONTROL_PROMPT, .data = &said };

	memcpy(said.ids, r->ids, sizeof(r->ids));
	return cairn_prefill_epoch_message(e, &m);
}

#endif
