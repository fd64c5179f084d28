// SPDX-License-Identifier: Apache-2.0
/* transport_cases_trouble.c - rejected arguments, time-outs, errors and death of the peer, and recovery
 * from them */
#include "rdma/transport_cases/transport_end.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdma/transport/transport_impl.h"

#define HALF	END_HALF

void end_still_works(struct end *e, uint64_t value)
{
	if (e->rank)
		end_set(e, HALF, 0xee, HALF);
	NEED(e, !end_barrier(e));
	if (!e->rank) {
		end_fill(e, GUARD, 1000, value);
		NEED(e, !end_put(e, 0, GUARD, GUARD, 1000, 5, value));
		NEED(e, !end_wait(e, 0, 6, value));
		return;
	}
	NEED(e, !end_wait(e, 0, 5, value));
	WANT(e, end_check(e, HALF + GUARD, 1000, value));
	NEED(e, !end_signal(e, 0, 6, value, 0));
}

/* Bad arguments are rejected at this end, by name, and have no effect. */
static void refusals(struct end *e)
{
	struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	struct cairn_put p;
	struct cairn_channel *c;

	NEED(e, !end_open(e, HALF));
	const struct cairn_put good = { .local = e->region, .remote = e->remote, .bytes = 8, .slot = 0,
		.value = 1 };

#define REFUSED(change, text) do {							\
		p = good;								\
		change;									\
		if (WANT(e, e->table->put(e->c[0], &p, WAIT_MS) == -EINVAL))		\
			WANT_ERROR(e, text);						\
	} while (0)
	if (!e->rank) {
		REFUSED(p.local_offset = 2 * HALF - 7, "local_offset");
		REFUSED(p.local_offset = UINT64_MAX - 3, "local_offset");
		REFUSED(p.remote_offset = 2 * HALF - 7, "remote_offset");
		REFUSED(p.remote_offset = UINT64_MAX - 3, "remote_offset");
		REFUSED(p.bytes = UINT64_MAX, "local_offset");
		REFUSED(p.slot = 64, "slot: 64 of 64");
		REFUSED(p.local = NULL, "local: null");
		REFUSED(p.remote = NULL, "remote: null");
		REFUSED((p.bytes = 0, p.slot = CAIRN_NO_SIGNAL), "neither payload nor signal");
		WANT(e, e->table->put(NULL, &good, 0) == -EINVAL);
		WANT(e, e->table->put(e->c[0], NULL, 0) == -EINVAL);
		WANT(e, e->table->wait(e->c[0], 64, 1, 0, NULL) == -EINVAL);
		WANT(e, e->table->flush(NULL, 0) == -EINVAL);
		if (WANT(e, !e->table->channel_create(e->t, &c))) {
			WANT(e, e->table->put(c, &good, 0) == -EINVAL);
			WANT_ERROR(e, "not connected");
			e->table->channel_destroy(c);
		}
		o.depth = 3;
		WANT(e, e->table->open(&o, &e->t) == -EINVAL);
		WANT_ERROR(e, "depth: 3");
		o.size = 1;
		WANT(e, e->table->open(&o, &e->t) == -EINVAL);
		WANT_ERROR(e, "size: 1");
		WANT(e, e->table->channel_error(e->c[0]) == 0);
	}
	NEED(e, !end_barrier(e));
	if (e->rank)	/* none of the rejected puts has arrived */
		WANT(e, e->table->wait(e->c[0], 0, 1, 0, NULL) == -ETIMEDOUT);
	end_still_works(e, 1);
}

/* Blobs that are damaged or of the wrong kind are rejected. */
static void bad_blobs(struct end *e)
{
	struct cairn_remote *remote = NULL;
	struct cairn_blob key, bad, address;

	NEED(e, !end_open(e, HALF));
	NEED(e, !e->table->region_key(e->region, &key));
	NEED(e, !e->table->channel_address(e->c[0], &address));
	bad = key;
	bad.bytes[3] ^= 4;
	WANT(e, e->table->remote_import(e->t, &bad, &remote) == -EINVAL && !remote);
	WANT_ERROR(e, "damaged");
	WANT(e, e->table->remote_import(e->t, &address, &remote) == -EINVAL && !remote);
	WANT_ERROR(e, "what");
	memset(&bad, 0, sizeof(bad));
	WANT(e, e->table->remote_import(e->t, &bad, &remote) == -EINVAL && !remote);
	WANT_ERROR(e, "magic");
	NEED(e, !e->table->channel_reset(e->c[0]));
	WANT(e, e->table->channel_connect(e->c[0], &key, 100) == -EINVAL);
	WANT_ERROR(e, "what");
	NEED(e, !e->table->channel_reset(e->c[1]));
	NEED(e, !end_connect(e));
	end_still_works(e, 1);
}

/* A wait ends at its time-out and not earlier, its error names what it waited for, and it can be repeated. */
static void time_out(struct end *e)
{
	double begin;
	int i, ms;

	NEED(e, !end_open(e, HALF));
	for (i = 0; i < 3; i++) {
		ms = i * 60;
		begin = end_now();
		WANT(e, e->table->wait(e->c[0], 0, 1, (uint32_t)ms, NULL) == -ETIMEDOUT);
		WANT(e, end_now() - begin >= ms * 1e-3 && end_now() - begin < ms * 1e-3 + 1);
		WANT_ERROR(e, "to set slot 0 to 1, it is 0");
		WANT(e, !e->table->channel_error(e->c[0]));
	}
	NEED(e, !end_barrier(e));
	if (e->rank) {
		end_nap(200);
		NEED(e, !end_signal(e, 0, 0, 1, 0));
	} else {
		begin = end_now();
		NEED(e, !end_wait(e, 0, 0, 1));
		WANT(e, end_now() - begin > 0.02);
	}
	NEED(e, !end_barrier(e));
	end_still_works(e, 1);
}

/* Puts and flushes repeatedly until an error appears. */
static int flush_until_error(struct end *e)
{
	double limit = end_now() + (e->plan->quick ? 1 : 8);
	uint64_t i = 0;
	int ret = 0;

	while (!ret && end_now() < limit) {
		ret = end_put(e, 0, GUARD, GUARD, 64, 3, ++i);
		if (!ret)
			ret = e->table->flush(e->c[0], 4000);
	}
	return ret;
}

void end_start_again(struct end *e)
{
	int i;

	for (i = 0; i < NUM_CHANNELS; i++)
		NEED(e, !e->table->channel_reset(e->c[i]));
	NEED(e, !end_barrier(e));
	NEED(e, !end_connect(e));
	WANT(e, !e->table->channel_error(e->c[0]));
	for (i = 0; i < 8; i++)
		WANT(e, e->table->wait(e->c[0], (uint32_t)i, 1, 0, NULL) == -ETIMEDOUT);
	NEED(e, !end_barrier(e));
}

/* The region behind a key is released: the other end refuses the put, and the channel reports this error
 * from then on. */
static void key_released(struct end *e)
{
	struct cairn_blob mine, theirs;

	if (!end_has(e, CAIRN_TRANSPORT_CHECKS, "the other end checks no keys"))
		return;
	NEED(e, !end_open(e, HALF));
	end_still_works(e, 1);
	NEED(e, !end_barrier(e));
	if (e->rank) {
		e->table->region_release(e->region);
		e->region = NULL;
	}
	NEED(e, !end_barrier(e));
	if (!e->rank) {
		if (!WANT(e, flush_until_error(e) == -EACCES))
			return;
		WANT_ERROR(e, "channel 0");
		WANT(e, e->table->channel_error(e->c[0]) == -EACCES);
		WANT(e, end_signal(e, 0, 1, 1, 0) == -EACCES);
		WANT(e, e->table->wait(e->c[0], 9, 1, 100, NULL) == -EACCES);
	}
	NEED(e, !end_barrier(e));
	if (e->rank)
		NEED(e, !e->table->region_register(e->t, e->buf, 2 * HALF, e->plan->memory, &e->region));
	NEED(e, !e->table->region_key(e->region, &mine) && !end_exchange(e, &mine, &theirs, sizeof(mine)));
	e->table->remote_release(e->remote);
	e->remote = NULL;
	NEED(e, !e->table->remote_import(e->t, &theirs, &e->remote));
	end_start_again(e);
	end_still_works(e, 1);
}

/* This end is given too large a size for the region: the other end must refuse the put. */
static void bounds_at_the_far_end(struct end *e)
{
	if (!end_has(e, CAIRN_TRANSPORT_CHECKS, "the other end checks no bounds"))
		return;
	NEED(e, !end_open(e, HALF));
	if (!e->rank) {
		e->remote->bytes += 64;
		NEED(e, !end_put(e, 0, 0, HALF - 60, 64, 0, 1));
		WANT(e, e->table->flush(e->c[0], WAIT_MS) == -EACCES);
		e->remote->bytes -= 64;
	}
	NEED(e, !end_barrier(e));
	if (e->rank)
		WANT(e, e->table->wait(e->c[0], 0, 1, 0, NULL) != 0);
	end_start_again(e);
	end_still_works(e, 2);
}

/* Resets without an error, three times, after signals and puts. */
static void reset(struct end *e)
{
	int i, k;

	NEED(e, !end_open(e, HALF));
	for (i = 0; i < 3; i++) {
		end_still_works(e, 7);
		for (k = 0; k < 10 && e->table->features & CAIRN_TRANSPORT_ONE_SIDED; k++)
			NEED(e, !end_put(e, 0, GUARD, GUARD, 64, 3, (unsigned)k + 1));
		NEED(e, !e->table->flush(e->c[0], WAIT_MS));
		NEED(e, !end_barrier(e));
		end_start_again(e);
	}
	end_still_works(e, 1);
}

static void die(struct end *e)
{
	if (e->plan->processes)
		raise(SIGKILL);
	e->table->close(e->t);		/* the nearest thing to dying that a thread can do */
	e->t = NULL;
}

/* A put to a peer that is gone fails with its error. */
static void peer_gone_put(struct end *e)
{
	double begin;

	if (!end_has(e, CAIRN_TRANSPORT_ONE_SIDED, "puts progress only while the other end waits"))
		return;
	NEED(e, !end_open(e, HALF));
	end_still_works(e, 1);
	NEED(e, !end_barrier(e));
	if (e->rank) {
		die(e);
		return;
	}
	begin = end_now();
	WANT(e, flush_until_error(e) == -ECONNRESET);
	WANT_ERROR(e, "gone");
	WANT(e, end_now() - begin < 4);
	WANT(e, e->table->channel_error(e->c[0]) == -ECONNRESET);
}

/* A wait for a peer that is gone fails before its time-out. */
static void peer_gone_wait(struct end *e)
{
	double begin;

	if (!end_has(e, CAIRN_TRANSPORT_PEER_DEATH, "waiters do not detect the death of their peer"))
		return;
	NEED(e, !end_open(e, HALF));
	end_still_works(e, 1);
	NEED(e, !end_barrier(e));
	if (e->rank) {
		die(e);
		return;
	}
	begin = end_now();
	WANT(e, e->table->wait(e->c[0], 0, 1, WAIT_MS, NULL) == -ECONNRESET);
	WANT_ERROR(e, "gone");
	WANT(e, end_now() - begin < 4);
}

/* There is no channel at the other end: the calls must not hang, and the error must say what is wrong. */
static void never_connected(struct end *e)
{
	struct cairn_blob mine, theirs;

	NEED(e, !end_open(e, HALF));
	NEED(e, !e->table->channel_reset(e->c[0]));
	NEED(e, !e->table->channel_address(e->c[0], &mine));
	NEED(e, !end_exchange(e, &mine, &theirs, sizeof(mine)));
	WANT(e, e->table->put(e->c[0], &(struct cairn_put) { .slot = 0, .value = 1 }, 0) == -EINVAL);
	WANT_ERROR(e, "not connected");
	NEED(e, !e->table->channel_connect(e->c[0], &theirs, WAIT_MS));
	WANT(e, e->table->channel_connect(e->c[0], &theirs, WAIT_MS) == -EINVAL);
	WANT_ERROR(e, "already");
	NEED(e, !end_barrier(e));
	NEED(e, !e->table->channel_reset(e->c[1]) && !e->table->channel_reset(e->c[0]));
	NEED(e, !end_barrier(e));
	NEED(e, !end_connect(e));
	end_still_works(e, 1);
}

const struct end_case transport_trouble_cases[] = {
	{ "refusals", refusals }, { "bad_blobs", bad_blobs }, { "time_out", time_out },
	{ "key_released", key_released }, { "bounds_at_the_far_end", bounds_at_the_far_end },
	{ "reset", reset }, { "peer_gone_put", peer_gone_put }, { "peer_gone_wait", peer_gone_wait },
	{ "never_connected", never_connected }, { NULL, NULL },
};
