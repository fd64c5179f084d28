/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member_end_test - a member that takes long to free an epoch, and a lead that gives it the next one
 *
 * remote_mutants_test.c includes this file with the modules under other names. Include conformance/harness.h
 * first.
 */
#ifndef CAIRN_MEMBER_END_TEST_H
#define CAIRN_MEMBER_END_TEST_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "serving/base/clock.h"
#include "serving/remote/control/address.h"
#include "serving/remote/member/member.h"

enum { END_BLOB = 8, END_BEATS = 3 };

struct end_rig {
	pthread_t thread;		/* the member's */
	int has_thread;
	struct cairn_member_options o;
	char join[32];
	int ret;			/* how the member ended */
	struct cairn_control_channel *c;	/* the lead's end */
	int patience_ms;		/* how long the first epoch waits for the beats of its member */
	atomic_int is_ending;		/* the first epoch is being freed */
	atomic_int has_beaten;		/* the lead has got beats meanwhile */
	atomic_int num_epochs, most_epochs;	/* that exist, and did at the same time */
};

struct end_epoch {
	struct cairn_epoch_life life;
	struct end_rig *r;
	uint32_t number;
};

/* ---- the member ---- */

static inline int end_check(void *ctx, const struct cairn_control_assign *a)
{
	return ctx && a ? 0 : -EINVAL;
}

static inline void *end_run(void *arg)
{
	static const char blob[END_BLOB];
	struct end_epoch *e = arg;

	cairn_epoch_ended(&e->life, cairn_epoch_introduce(&e->life, blob));
	return NULL;
}

static inline int end_create(void *ctx, void **epoch, const struct cairn_control_assign *a, const void *rest,
			     const char *address)
{
	struct end_rig *r = ctx;
	struct end_epoch *e = rest && address ? calloc(1, sizeof(*e)) : NULL;
	const int num = atomic_fetch_add(&r->num_epochs, 1) + 1;

	if (num > atomic_load(&r->most_epochs))
		atomic_store(&r->most_epochs, num);
	if (!e)
		return -ENOMEM;
	e->r = r;
	e->number = a->epoch;
	*epoch = e;
	return cairn_epoch_begin(&e->life, END_BLOB, end_run, e);
}

static inline struct cairn_epoch_life *end_life(void *epoch)
{
	return &((struct end_epoch *)epoch)->life;
}

static inline int end_message(void *epoch, const struct cairn_channel_message *m)
{
	return epoch && m ? 0 : -EINVAL;
}

/* The first epoch waits until the lead has got beats. */
static inline void end_destroy(void *epoch)
{
	struct end_epoch *e = epoch;

	if (!e)
		return;
	atomic_store(&e->r->is_ending, 1);
	for (int i = 0; e->number == 1 && i < e->r->patience_ms && !atomic_load(&e->r->has_beaten); i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	cairn_epoch_destroy(&e->life);
	atomic_fetch_sub(&e->r->num_epochs, 1);
	free(e);
}

static inline void *end_work(void *arg)
{
	static const struct cairn_epoch_ops ops = {
		END_BLOB, end_check, end_create, end_life, end_message, end_destroy,
	};
	const struct cairn_control_join as = { .role = CAIRN_MEMBER_ATTENTION, .table = "cpu" };
	struct end_rig *r = arg;

	r->ret = cairn_member_run(&r->o, &as, &ops, r);
	return NULL;
}

/* ---- the lead ---- */

/* Starts the member, and takes its connection. */
static inline int end_open(struct end_rig *r)
{
	struct pollfd p = { .events = POLLIN };
	int fd, port;

	CAIRN_TRY(cairn_address_listen(&p.fd, &port, "127.0.0.1:0"));
	snprintf(r->join, sizeof(r->join), "127.0.0.1:%d", port);
	r->o = (struct cairn_member_options){ .join = r->join, .join_ms = 10000 };
	r->has_thread = !pthread_create(&r->thread, NULL, end_work, r);
	poll(&p, 1, 10000);
	fd = accept(p.fd, NULL, NULL);
	close(p.fd);
	return fd < 0 ? -errno : cairn_channel_open(&r->c, fd, CAIRN_CHANNEL_LEAD, NULL, 10000);
}

/* Waits for a message of this kind. Returns 0 when it has come, or an error. */
static inline int end_await(struct end_rig *r, uint32_t kind, int timeout_ms)
{
	const int64_t until = cairn_clock_ns() + timeout_ms * 1000000ll;
	struct cairn_channel_message m = { 0 };
	int ret = 0;

	while ((!ret || ret == -ETIMEDOUT) && m.kind != kind && cairn_clock_ns() < until)
		ret = cairn_channel_receive(r->c, &m, 10);
	return ret ? ret : m.kind == kind ? 0 : -ETIMEDOUT;
}

static inline int end_assign(struct end_rig *r, uint32_t epoch)
{
	const struct cairn_control_assign a = {
		.epoch = epoch, .rank = 1, .num_heads = 1, .num_layers = 1, .num_kv_heads = 1, .head_dim = 64,
		.num_pages = 4, .page_size = 4, .dtype = CAIRN_BF16, .group = 1, .max_rows = 4,
		.max_batch = 4, .max_context = 16, .query_scalar = 64, .attention_factor = 1, .stripes = 1,
	};

	return cairn_control_send(r->c, CAIRN_CONTROL_ASSIGN, &a, sizeof(a), NULL, 0, 5000);
}

/* Waits for beats that were sent while the first epoch is being freed. Returns 0 if they come. */
static inline int end_await_beats(struct end_rig *r)
{
	struct cairn_channel_message m;

	for (int i = 0; i < 10000 && !atomic_load(&r->is_ending); i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	while (!cairn_channel_receive(r->c, &m, 0))
		;	/* of the time before */
	for (int i = 0; i < END_BEATS; i++)
		CAIRN_TRY(end_await(r, CAIRN_CONTROL_BEAT, r->patience_ms / 2));
	atomic_store(&r->has_beaten, 1);
	return 0;
}

/*
 * Returns 0 if a member beats while it frees an epoch, and creates the next one only then, or an error.
 * patience_ms: how long freeing takes if no beats come.
 */
static inline int end_next(int patience_ms)
{
	struct end_rig r = { .patience_ms = patience_ms };
	int ret = end_open(&r);

	if (!ret)
		ret = end_assign(&r, 1);
	if (!ret)
		ret = end_await(&r, CAIRN_CONTROL_BLOB, 10000);
	if (!ret)
		ret = end_assign(&r, 2);
	if (!ret)
		ret = end_await_beats(&r);
	if (!ret)
		ret = end_await(&r, CAIRN_CONTROL_BLOB, 10000);
	cairn_channel_close(r.c);
	if (r.has_thread)
		pthread_join(r.thread, NULL);
	return ret ? ret : r.ret || atomic_load(&r.most_epochs) != 1 ? -EINVAL : 0;
}

#endif
