// SPDX-License-Identifier: Apache-2.0
/* member - how a worker joins a lead and serves it (member.h) */
#include "serving/remote/member/member.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "rdma/transport/transport.h"
#include "serving/base/clock.h"
#include "serving/remote/control/address.h"
#include "serving/remote/lead/lead.h"
#include "serving/remote/remote_fault.h"

#define SEND_MS		1000
#define LOOK_MS		(CAIRN_LEAD_BEAT_MS / 2)
#define LOOK_BUSY_MS	5		/* while an epoch is being set up */
#define RETRY_NS	50000000	/* between two attempts to reach the lead */

struct member {
	const struct cairn_epoch_ops *ops;
	void *ctx;
	struct cairn_control_channel *c;
	char address[64];		/* numeric, for the transport */
	int64_t beat_ns;		/* when the next beat is due */
	void *epoch;			/* NULL: spare */
	struct cairn_control_assign *next;	/* begins when the epoch is over; NULL: none */
	uint32_t number;		/* of the epoch */
	int32_t rank;
	enum cairn_epoch_state said;	/* how far the lead knows the epoch to be */
	void *old;			/* an epoch that the reaper destroys; NULL: none, and no reaper */
	pthread_t reaper;
	atomic_int is_reaped;		/* set by the reaper, which ends then */
};

/* ---- joining ---- */

/* Dials until the lead listens. */
static int dial(const struct cairn_member_options *o, int64_t until, int *fd)
{
	const struct timespec nap = { 0, RETRY_NS };
	int ret;

	while ((ret = cairn_address_dial(fd, o->join, CAIRN_LEAD_SHAKE_MS)) && ret != -EINVAL &&
	       cairn_clock_ns() < until)
		nanosleep(&nap, NULL);
	return ret;
}

static int open_channel(struct member *m, const struct cairn_member_options *o, int fd)
{
	uint8_t secret[CAIRN_SECRET_BYTES];
	int ret = o->secret_file ? cairn_secret_load(secret, o->secret_file) : 0;

	if (!ret && o->address)
		snprintf(m->address, sizeof(m->address), "%s", o->address);
	else if (!ret)
		ret = cairn_address_own(fd, m->address, sizeof(m->address));
	if (ret) {
		close(fd);
		return ret;
	}
	ret = cairn_channel_open(&m->c, fd, CAIRN_CHANNEL_MEMBER, o->secret_file ? secret : NULL,
				 CAIRN_LEAD_SHAKE_MS);
	explicit_bzero(secret, sizeof(secret));
	return ret;
}

static int say_join(struct member *m, const struct cairn_control_join *as, const char *transport)
{
	struct cairn_control_join j = *as;

	j.version = CAIRN_CONTROL_VERSION;
	j.rank = -1;
	j.digest = strtoull(cairn_source_digest(), NULL, 16);
	j.pid = (int32_t)getpid();
	for (int i = 0; i < 32 && cairn_transport_get(i); i++)
		if (!strcmp(cairn_transport_get(i)->name, transport ? transport : "tcp"))
			j.transports |= 1u << i;
	return cairn_control_send(m->c, CAIRN_CONTROL_JOIN, &j, sizeof(j), NULL, 0, SEND_MS);
}

/* ---- epochs ---- */

/* Ends the epoch and keeps the next assignment; the epoch's threads may take a while to end. */
static int keep_assignment(struct member *m, const struct cairn_channel_message *message)
{
	CAIRN_TRY(m->ops->check(m->ctx, message->data));
	free(m->next);
	m->next = malloc(message->num_bytes);
	if (!m->next)
		return cairn_error(ENOMEM, "no memory for an assignment");
	memcpy(m->next, message->data, message->num_bytes);
	if (m->epoch)
		cairn_epoch_stop(m->ops->life(m->epoch));
	return 0;
}

static void *reap(void *arg)
{
	struct member *m = arg;

	m->ops->destroy(m->old);
	atomic_store(&m->is_reaped, 1);
	return NULL;
}

/*
 * Destroys the epoch, and returns whether it is gone; if not, call again later. A thread of its own destroys
 * it, because a cache takes 0.15 s for each GiB to free, and the member must beat meanwhile.
 */
static int end_epoch(struct member *m)
{
	if (m->epoch) {
		m->old = m->epoch;
		m->epoch = NULL;
		atomic_store(&m->is_reaped, 0);
		if (FAULT(FREED_WITHOUT_BEATS) || pthread_create(&m->reaper, NULL, reap, m)) {
			m->ops->destroy(m->old);
			m->old = NULL;
		}
	}
	if (m->old && atomic_load(&m->is_reaped)) {
		pthread_join(m->reaper, NULL);
		m->old = NULL;
	}
	return !m->old;
}

static int begin_epoch(struct member *m)
{
	const struct cairn_control_assign *a = m->next;
	int ret;

	m->said = CAIRN_EPOCH_PREPARING;
	m->number = a->epoch;
	m->rank = (int32_t)a->rank;
	ret = m->ops->create(m->ctx, &m->epoch, a, a + 1, m->address);
	free(m->next);
	m->next = NULL;
	return ret;
}

static int take_blob(struct member *m, const struct cairn_control_blob *head)
{
	if (head->to != m->rank || head->epoch != m->number || head->num_bytes != m->ops->blob_bytes)
		return cairn_error(EINVAL, "the lead sends a blob of %u bytes for rank %d", head->num_bytes,
				   head->to);
	return cairn_epoch_connect(m->ops->life(m->epoch), head + 1);
}

static int take(struct member *m, const struct cairn_channel_message *message)
{
	CAIRN_TRY(cairn_control_check(message, 0));
	if (message->kind == CAIRN_CONTROL_REFUSE)
		return cairn_error(EPERM, "the lead refuses this worker: %.*s", (int)message->num_bytes,
				   (const char *)message->data);
	if (message->kind == CAIRN_CONTROL_ASSIGN)
		return keep_assignment(m, message);
	if (!m->epoch || m->next)
		return cairn_error(EINVAL, "the lead sends %s without an epoch",
				   cairn_control_kind_name(message->kind));
	if (message->kind == CAIRN_CONTROL_STATUS) {	/* the epoch is over: wait for the next */
		cairn_epoch_stop(m->ops->life(m->epoch));
		return 0;
	}
	if (message->kind == CAIRN_CONTROL_BLOB)
		return take_blob(m, message->data);
	return m->ops->message(m->epoch, message);
}

static int say_state(struct member *m, const void *blob)
{
	const struct cairn_control_epoch ready = { .epoch = m->number };
	const struct cairn_control_blob head = {
		.from = m->rank, .num_bytes = (uint32_t)m->ops->blob_bytes, .epoch = m->number,
	};

	return m->said == CAIRN_EPOCH_PREPARED ?
	       cairn_control_send(m->c, CAIRN_CONTROL_BLOB, &head, sizeof(head), blob, m->ops->blob_bytes,
				  SEND_MS) :
	       cairn_control_send(m->c, CAIRN_CONTROL_READY, &ready, sizeof(ready), NULL, 0, SEND_MS);
}

/* Says how far the epoch is, and begins the next one when it is over and gone. blob: room for one */
static int look_at_epoch(struct member *m, void *blob)
{
	char why[CAIRN_CONTROL_TEXT];
	enum cairn_epoch_state state = m->epoch ? cairn_epoch_state(m->ops->life(m->epoch), blob, why,
								    sizeof(why)) : CAIRN_EPOCH_OVER;

	if (m->next)	/* which may need the memory of this one */
		return (state == CAIRN_EPOCH_OVER || state == CAIRN_EPOCH_FAILED) && end_epoch(m) ?
		       begin_epoch(m) : 0;
	if (state == CAIRN_EPOCH_FAILED)
		return cairn_error(EIO, "%s", why);
	if (state == m->said || state == CAIRN_EPOCH_OVER)
		return 0;
	m->said = state;
	return say_state(m, blob);
}

static int beat(struct member *m)
{
	struct cairn_control_beat beat = { .now_ns = cairn_clock_ns() };

	if (beat.now_ns < m->beat_ns)
		return 0;
	m->beat_ns = beat.now_ns + CAIRN_LEAD_BEAT_MS * 1000000ll;
	beat.passes = m->epoch ? cairn_epoch_passes(m->ops->life(m->epoch)) : 0;
	return cairn_control_send(m->c, CAIRN_CONTROL_BEAT, &beat, sizeof(beat), NULL, 0, SEND_MS);
}

static int serve(struct member *m, void *blob)
{
	struct cairn_channel_message message;
	int ret, begins;

	for (;;) {
		begins = m->next || (m->epoch && m->said != CAIRN_EPOCH_CONNECTED);
		CAIRN_TRY(look_at_epoch(m, blob));
		CAIRN_TRY(beat(m));
		ret = cairn_channel_receive(m->c, &message, begins ? LOOK_BUSY_MS : LOOK_MS);
		if (!ret)
			ret = take(m, &message);
		if (ret && ret != -ETIMEDOUT)
			return ret;
	}
}

/* Tells the lead why the worker ends; the lead may have gone first. */
static void say_failed(struct member *m)
{
	char text[CAIRN_CONTROL_TEXT];

	snprintf(text, sizeof(text), "%s", cairn_last_error());
	cairn_control_send(m->c, CAIRN_CONTROL_FAILED, NULL, 0, text, strlen(text), SEND_MS);
	cairn_error(EIO, "%s", text);
}

/* Serves one lead. *joined: the channel to it was opened; *gone: it has ended, or the connection is lost. */
static int serve_one(const struct cairn_member_options *o, const struct cairn_control_join *as,
		     const struct cairn_epoch_ops *ops, void *ctx, int fd, int *gone, int *joined)
{
	struct member m = { .ops = ops, .ctx = ctx };
	void *blob;
	int ret = open_channel(&m, o, fd);

	*joined = !ret;
	*gone = ret == -ECONNRESET;
	if (ret)
		return ret;
	blob = calloc(1, ops->blob_bytes);
	ret = blob ? say_join(&m, as, o->transport) : cairn_error(ENOMEM, "member: no memory");
	if (!ret)
		ret = serve(&m, blob);
	*gone = ret == -ECONNRESET;
	if (*gone && cairn_channel_was_closed(m.c))
		ret = 0;
	else if (!*gone && ret != -EPERM)
		say_failed(&m);
	ops->destroy(m.epoch);
	if (m.old)
		pthread_join(m.reaper, NULL);
	cairn_channel_close(m.c);
	free(m.next);
	free(blob);
	return ret;
}

int cairn_member_run(const struct cairn_member_options *o, const struct cairn_control_join *as,
		     const struct cairn_epoch_ops *ops, void *ctx)
{
	int64_t until = cairn_clock_ns() + o->join_ms * 1000000ll;
	int fd, ret = 0, last, gone, joined, ever = 0;

	CAIRN_TRY(dial(o, until, &fd));
	for (;;) {
		last = serve_one(o, as, ops, ctx, fd, &gone, &joined);
		ret = joined || !ever ? last : ret;
		if (!gone || !o->rejoin_ms)
			return last;
		ever |= joined;
		if (joined)
			until = cairn_clock_ns() + o->rejoin_ms * 1000000ll;
		/* a lead that ends may still take a connection, and cut it */
		if (cairn_clock_ns() >= until || dial(o, until, &fd))
			return ret;
	}
}
