/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill_lease_test - a prefill worker whose computing thread gives a prompt up, and is then told to go on
 *
 * The sending thread is held meanwhile, where it waits for a credit, so that it does not look before the new
 * LEASE has come. pull_mutants_test.c includes this file with the modules under other names. Include
 * conformance/harness.h first.
 */
#ifndef CAIRN_PREFILL_LEASE_TEST_H
#define CAIRN_PREFILL_LEASE_TEST_H

#include <stdatomic.h>

#include "serving/remote/prefill/prefill_impl.h"
#include "serving/remote/prefill/pull_fake_test.h"

/* How far the test is; the threads go on when it is as far as they need. */
enum { LEASE_BEGUN, LEASE_SENDER_WAITS, LEASE_IS_OVER, LEASE_RENEWED };
static atomic_int lease_step;
static struct cairn_impl lease_impl;
static struct cairn_transport_table lease_table;
static int lease_ropes;

/* Returns whether the test gets this far within ten seconds. */
static inline int lease_await(int step)
{
	for (int i = 0; i < 10000 && atomic_load(&lease_step) < step; i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	return atomic_load(&lease_step) >= step;
}

/* The computing thread's: the first layer is computed at once, the second when the lease is over. */
static inline int lease_rope(const struct cairn_rope_args *args, void *stream)
{
	if (++lease_ropes == 2)
		lease_await(LEASE_IS_OVER);
	return lease_impl.rope(args, stream);
}

/* The sending thread's: credits are there from the beginning, and are found when the lease is renewed. */
static inline int lease_wait(struct cairn_channel *c, uint32_t slot, uint64_t value, uint32_t timeout_ms,
			     struct cairn_signal *found)
{
	int begun = LEASE_BEGUN;

	atomic_compare_exchange_strong(&lease_step, &begun, LEASE_SENDER_WAITS);
	lease_await(LEASE_RENEWED);
	return cairn_transport_find("tcp")->wait(c, slot, value, timeout_ms, found);
}

static inline int lease_amend(struct cairn_prefill_epoch *e, uint32_t lease_ms)
{
	const struct cairn_control_lease lease = { .job = 1, .lease_ms = lease_ms };
	const struct cairn_channel_message m = { .kind = CAIRN_CONTROL_LEASE, .data = &lease };

	return cairn_prefill_epoch_message(e, &m);
}

/* Returns whether the computing thread leaves the job within ten seconds. */
static inline int lease_await_over(struct cairn_prefill_epoch *e)
{
	int is_over = 0;

	for (int i = 0; i < 10000 && !is_over; i++) {
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		pthread_mutex_lock(&e->life.lock);
		is_over = e->jobs[0].is_over;
		pthread_mutex_unlock(&e->life.lock);
	}
	return is_over;
}

/*
 * Sends the rig's prompt to an epoch that has no job yet, and renews its lease when computing has been given
 * up after the first pass. Returns the error with which the job ends, or -errno.
 */
static inline int lease_revive(struct cairn_prefill_epoch *e, struct pull_fake *f, struct pull_rig *r)
{
	lease_ropes = 0;
	atomic_store(&lease_step, LEASE_BEGUN);
	lease_impl = r->impl;
	r->impl.rope = lease_rope;
	r->impl.qkv_append = NULL;	/* so that passes of few rows call it, too */
	lease_table = *e->table;
	lease_table.wait = lease_wait;
	e->table = &lease_table;	/* no thread uses it before there is a job */
	CAIRN_TRY(fake_prompt(e, r, 1, 60000));
	if (!lease_await(LEASE_SENDER_WAITS))
		return -ETIMEDOUT;
	CAIRN_TRY(lease_amend(e, 1));
	nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
	atomic_store(&lease_step, LEASE_IS_OVER);
	if (!lease_await_over(e))
		return -ETIMEDOUT;
	CAIRN_TRY(lease_amend(e, 60000));
	atomic_store(&lease_step, LEASE_RENEWED);
	return fake_take_job(f, 1);
}

#endif
