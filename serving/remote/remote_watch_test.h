/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_watch_test - a lead one of whose members keeps its thread busy, while another one is lost
 *
 * Include remote_mutants.h and remote_rig_test.h first: the lead's modules call the functions of this file in
 * the place of those that it names.
 */
#ifndef CAIRN_REMOTE_WATCH_TEST_H
#define CAIRN_REMOTE_WATCH_TEST_H

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serving/remote/lead/lead_impl.h"
#include "serving/remote/remote_fault.h"

#undef cairn_channel_receive
int cairn_channel_receive(struct cairn_control_channel *c, struct cairn_channel_message *m, int timeout_ms);

/* A channel from which beats come without end, until then; NULL: there is none. */
static _Atomic(struct cairn_control_channel *) watch_flood;
static int64_t watch_until_ns;		/* set before the channel */

/* What the lead and the guests receive. */
int mutant_channel_receive(struct cairn_control_channel *c, struct cairn_channel_message *m, int timeout_ms)
{
	static const struct cairn_control_beat beat;

	if (c != atomic_load(&watch_flood) || cairn_clock_ns() > watch_until_ns)
		return cairn_channel_receive(c, m, timeout_ms);
	*m = (struct cairn_channel_message){ CAIRN_CONTROL_BEAT, &beat, sizeof(beat) };
	return 0;
}

#undef waitpid
pid_t waitpid(pid_t pid, int *status, int options);

/* A process that does not end until then, whatever it is sent; 0: there is none. */
static atomic_int watch_dying;

/* What the lead waits with. */
pid_t mutant_waitpid(pid_t pid, int *status, int options)
{
	while (pid == atomic_load(&watch_dying) && cairn_clock_ns() < watch_until_ns) {
		if (options & WNOHANG)
			return 0;
		cairn_remote_nap(1);
	}
	return waitpid(pid, status, options);
}

/*
 * Opens a lead with two attention workers, of which guest i has rank i + 1. The first is this process, which
 * the lead then takes for one that it has started. Returns 0, or an error.
 */
static inline int watch_open(struct rig *r, struct rig_guest g[2], pid_t pid)
{
	const struct cairn_lead_options o = {
		.attention = 2, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 60000, .join_ms = 10000,
	};
	struct cairn_control_join j = rig_join();
	struct cairn_lead_stats stats = { 0 };
	uint32_t epoch;

	CAIRN_TRY(cairn_lead_create(&r->lead, &o));
	pthread_mutex_lock(&r->lead->lock);
	r->lead->children[0].pid = pid;
	r->lead->children[0].has_joined = 1;
	pthread_mutex_unlock(&r->lead->lock);
	snprintf(r->join, sizeof(r->join), "127.0.0.1:%d", cairn_lead_port(r->lead));
	for (int i = 0; i < 2; i++) {
		j.pid = i ? 0 : pid;
		CAIRN_TRY(rig_knock(r, &g[i]));
		CAIRN_TRY(cairn_channel_send(g[i].c, CAIRN_CONTROL_JOIN, &j, sizeof(j), 5000));
		for (int k = 0; k < 5000 && stats.members == i; k++) {
			cairn_lead_stats(r->lead, &stats);
			cairn_remote_nap(1);
		}
	}
	return cairn_lead_gather(r->lead, &epoch);
}

/* Returns whether so many losses are noticed while the lead's thread has something else to do. */
static inline int watch_notices(struct rig *r, int64_t losses)
{
	struct cairn_lead_stats stats = { 0 };

	while (stats.lost < losses && cairn_clock_ns() < watch_until_ns) {
		cairn_lead_stats(r->lead, &stats);
		cairn_remote_nap(1);
	}
	return stats.lost == losses;
}

static inline void watch_begin(void)
{
	watch_until_ns = cairn_clock_ns() + (cairn_remote_fault ? 300 : 10000) * 1000000ll;
}

static inline void watch_leave(struct rig_guest *g)
{
	cairn_channel_close(g->c);
	g->c = NULL;
}

static inline void watch_close(struct rig *r, struct rig_guest g[2])
{
	cairn_lead_destroy(r->lead);
	watch_leave(&g[0]);
	watch_leave(&g[1]);
}

/*
 * The first member floods the lead. Returns whether the lead, as long as that lasts, cannot send it a
 * message, or does not notice that the connection of the second one has ended.
 */
static inline int watch_flooded(struct cairn_test *t, struct rig *r)
{
	const struct cairn_control_epoch status = { .epoch = 1 };
	const struct cairn_control_beat beat = { 0 };
	struct rig_guest g[2] = { { 0 }, { 0 } };
	int is_stuck = 0;

	memset(r, 0, sizeof(*r));
	if (EXPECT(t, watch_open(r, g, 0) == 0)) {
		watch_begin();
		pthread_mutex_lock(&r->lead->lock);
		atomic_store(&watch_flood, r->lead->members->c);
		pthread_mutex_unlock(&r->lead->lock);
		/* nobody reads this one meanwhile, so the connection stays readable */
		EXPECT(t, !cairn_channel_send(g[0].c, CAIRN_CONTROL_BEAT, &beat, sizeof(beat), 5000));
		cairn_remote_nap(20);
		EXPECT(t, !cairn_lead_send(r->lead, 1, CAIRN_CONTROL_STATUS, &status, sizeof(status), NULL,
					   0));
		watch_leave(&g[1]);
		is_stuck = !watch_notices(r, 1);
		atomic_store(&watch_flood, NULL);
	}
	watch_close(r, g);
	return is_stuck;
}

/* Returns whether the place of the first member's process is free within ten seconds. */
static inline int watch_is_reaped(struct rig *r)
{
	pid_t pid = 1;

	for (int i = 0; i < 10000 && pid; i++) {
		cairn_remote_nap(1);
		pthread_mutex_lock(&r->lead->lock);
		pid = r->lead->children[0].pid;
		pthread_mutex_unlock(&r->lead->lock);
	}
	return !pid;
}

/*
 * The process of the first member takes long to end, as one does that has much memory. Returns whether the
 * lead, as long as that lasts, does not notice that the connection of the second one has ended.
 */
static inline int watch_dies(struct cairn_test *t, struct rig *r)
{
	struct rig_guest g[2] = { { 0 }, { 0 } };
	const pid_t pid = fork();
	int is_stuck = 0;

	if (!pid) {
		alarm(30);
		pause();
		_exit(0);
	}
	memset(r, 0, sizeof(*r));
	if (EXPECT(t, pid > 0 && watch_open(r, g, pid) == 0)) {
		watch_begin();
		atomic_store(&watch_dying, pid);
		watch_leave(&g[0]);
		EXPECT(t, watch_notices(r, 1));
		watch_leave(&g[1]);
		is_stuck = !watch_notices(r, 2);
		atomic_store(&watch_dying, 0);
		EXPECT(t, watch_is_reaped(r) && kill(pid, 0) && errno == ESRCH);
	}
	watch_close(r, g);
	return is_stuck;
}

#endif
