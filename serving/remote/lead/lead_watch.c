// SPDX-License-Identifier: Apache-2.0
/*
 * lead_watch - the lead's thread: reads members' messages, notices members that are lost, starts processes
 *
 * A channel is used by one thread at a time (lead_member.busy); the watching thread does not wait for it, but
 * looks again in the next round. It reads at most MAX_MESSAGES of a member in a row, so that a member that
 * sends without end keeps neither this thread from the other members, nor other threads from its channel.
 *
 * A member that has been silent for beat_ms is lost. The thread wakes when the first member reaches this, and
 * decides only after it has read what has arrived of each. If a round takes longer than two should, the
 * thread itself did not run, as when the whole machine was suspended; the excess does not count as silence.
 *
 * The thread waits for nothing but poll(): it looks again whether a process that it has killed has ended. The
 * process keeps its place until then, so that the next one finds its memory free.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/lead/lead_impl.h"
#include "serving/remote/remote_fault.h"

#define ROUND_MS	50
#define REAP_MS		5		/* while the end of a killed process is awaited */
#define MAX_MESSAGES	64

/* ---- members ---- */

/* Blobs of an earlier epoch may still be under way. */
static int keep_blob(struct lead_member *m, const struct cairn_channel_message *message)
{
	const struct cairn_control_blob *b = message->data;
	char *copy;

	if (b->epoch != m->epoch)
		return 0;
	if (b->from != m->rank || b->to)
		return cairn_error(EINVAL, "sent a blob of rank %d for rank %d", b->from, b->to);
	copy = malloc(b->num_bytes + 1);
	if (!copy)
		return cairn_error(ENOMEM, "lead: no memory for a blob");
	memcpy(copy, b + 1, b->num_bytes);
	free(m->blob);
	m->blob = copy;
	m->blob_bytes = b->num_bytes;
	return 0;
}

/* Takes one message of a member. Call with the lock held. */
static int take_message(struct cairn_lead *l, struct lead_member *m,
			const struct cairn_channel_message *message)
{
	CAIRN_TRY(cairn_control_check(message, 1));
	m->heard_ns = cairn_clock_ns();
	switch (message->kind) {
	case CAIRN_CONTROL_BEAT:
		return 0;
	case CAIRN_CONTROL_READY:
		m->ready = ((const struct cairn_control_epoch *)message->data)->epoch;
		break;
	case CAIRN_CONTROL_BLOB:
		CAIRN_TRY(keep_blob(m, message));
		break;
	case CAIRN_CONTROL_FAILED:
		return cairn_error(ECONNRESET, "%.*s", (int)message->num_bytes, (const char *)message->data);
	default:
		return cairn_error(EINVAL, "sent %s after it had joined",
				   cairn_control_kind_name(message->kind));
	}
	pthread_cond_broadcast(&l->changed);
	return 0;
}

/* Reads what a member has sent, a part of it if it is much; the member is lost if it breaks the protocol. */
static void read_member(struct cairn_lead *l, struct lead_member *m)
{
	struct cairn_channel_message message;
	int ret = 0;

	if (pthread_mutex_trylock(&m->busy))
		return;
	for (int i = 0; !ret && (i < MAX_MESSAGES || FAULT(FLOOD_READ)); i++) {
		ret = cairn_channel_receive(m->c, &message, 0);
		pthread_mutex_lock(&l->lock);
		if (!ret)
			ret = take_message(l, m, &message);
		if (ret && ret != -ETIMEDOUT)
			lead_lose(l, m, cairn_last_error());
		pthread_mutex_unlock(&l->lock);
	}
	pthread_mutex_unlock(&m->busy);
}

static void read_members(struct cairn_lead *l, const struct pollfd *fds, struct lead_member **members,
			 int num)
{
	for (int i = 2; i < num; i++)
		if (fds[i].revents)
			read_member(l, members[i]);
}

/* Returns when the first member will have been silent for too long. Call with the lock held. */
static int64_t first_silent_ns(const struct cairn_lead *l)
{
	int64_t first = INT64_MAX;

	for (const struct lead_member *m = l->members; m; m = m->next)
		if (!m->is_lost && m->heard_ns < first)
			first = m->heard_ns;
	return first == INT64_MAX ? first : first + (int64_t)l->opt.beat_ms * 1000000;
}

/* Loses members that have been silent for too long. late_ns: how long this thread has not run. */
static void judge_silence(struct cairn_lead *l, struct pollfd *fds, struct lead_member **members, int num,
			  int64_t late_ns)
{
	const int64_t most = (int64_t)l->opt.beat_ms * 1000000;
	char text[128];
	int any;

	pthread_mutex_lock(&l->lock);
	for (struct lead_member *m = l->members; m && late_ns > 0; m = m->next)
		m->heard_ns += late_ns;
	any = cairn_clock_ns() >= first_silent_ns(l) && !FAULT(SILENCE);
	pthread_mutex_unlock(&l->lock);
	if (!any)
		return;
	poll(fds, (nfds_t)num, 0);	/* their beats may have come since the round began */
	read_members(l, fds, members, num);
	pthread_mutex_lock(&l->lock);
	for (struct lead_member *m = l->members; m; m = m->next) {
		const int64_t silent = cairn_clock_ns() - m->heard_ns;

		if (m->is_lost || silent < most)
			continue;
		snprintf(text, sizeof(text), "has been silent for %lld ms", (long long)(silent / 1000000));
		lead_lose(l, m, text);
	}
	pthread_mutex_unlock(&l->lock);
}

static void free_member(struct lead_member *m)
{
	cairn_channel_close(m->c);
	pthread_mutex_destroy(&m->busy);
	free(m->blob);
	free(m);
}

/* Removes a lost member that is not in use from the list. Call with the lock held. NULL: there is none. */
static struct lead_member *take_lost(struct cairn_lead *l)
{
	for (struct lead_member **at = &l->members; *at; at = &(*at)->next) {
		struct lead_member *m = *at;

		if (!m->is_lost || m->users)
			continue;
		*at = m->next;
		l->num_members--;
		return m;
	}
	return NULL;
}

/*
 * Kills the process of a lost member, which would otherwise stay for ever if it was stopped. Its end may take
 * seconds, because its memory is freed; reap() notices it. Call with the lock held.
 */
static void kill_process(struct cairn_lead *l, pid_t pid)
{
	for (int i = 0; i < lead_num_children(l); i++) {
		struct lead_child *child = &l->children[i];

		if (!child->pid || child->pid != pid)
			continue;
		kill(pid, SIGKILL);
		child->is_killed = 1;
		if (FAULT(BURIAL_AWAITED))
			waitpid(pid, NULL, 0);
	}
}

/* Frees lost members, and kills their processes. */
static void bury(struct cairn_lead *l)
{
	struct lead_member *m;

	do {
		pthread_mutex_lock(&l->lock);
		m = take_lost(l);
		if (m)
			kill_process(l, m->pid);
		pthread_mutex_unlock(&l->lock);
		if (m)
			free_member(m);
	} while (m);
}

/* ---- processes ---- */

/* Notes which processes of a role have ended: killed, or before they joined. Call with the lock held. */
static void reap(struct cairn_lead *l, enum cairn_member_role role)
{
	int32_t num, first = lead_children(l, role, &num);

	for (int32_t i = first; i < first + num; i++) {
		struct lead_child *child = &l->children[i];
		const int was_killed = child->is_killed;

		/* a member's loss is noticed by the end of its channel */
		if (!child->pid || (child->has_joined && !was_killed) ||
		    !waitpid(child->pid, NULL, WNOHANG))
			continue;
		*child = (struct lead_child){ 0 };
		if (was_killed)
			pthread_cond_broadcast(&l->changed);	/* another one may take its place */
		else
			lead_start_failed(l, role);
	}
}

/* Call with the lock held. */
static void start_processes(struct cairn_lead *l, enum cairn_member_role role)
{
	int32_t num, first = lead_children(l, role, &num), wanted = l->start[role].wanted;

	l->start[role].wanted = 0;
	for (int32_t i = first; i < first + num && wanted; i++) {
		pid_t pid;

		if (l->children[i].pid)
			continue;
		wanted--;
		if (lead_start_process(l, role, i - first, &pid)) {
			lead_refused(l, "not started", cairn_last_error());
			lead_start_failed(l, role);
		} else {
			l->children[i] = (struct lead_child){ .pid = pid };
			l->stats.started++;
		}
	}
}

/* ---- the thread ---- */

/* Lists what to poll. Only this thread takes members out of the list, so that the pointers stay valid. */
static int list(struct cairn_lead *l, struct pollfd *fds, struct lead_member **members)
{
	int n = 2;

	fds[0] = (struct pollfd){ .fd = l->listener, .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = l->wake, .events = POLLIN };
	pthread_mutex_lock(&l->lock);
	for (struct lead_member *m = l->members; m; m = m->next) {
		if (m->is_lost)
			continue;
		members[n] = m;
		fds[n++] = (struct pollfd){ .fd = cairn_channel_fd(m->c), .events = POLLIN };
	}
	pthread_mutex_unlock(&l->lock);
	return n;
}

/* Returns for how many ms to sleep. */
static int round_ms(struct cairn_lead *l)
{
	int64_t ms, most = ROUND_MS;

	pthread_mutex_lock(&l->lock);
	ms = (first_silent_ns(l) - cairn_clock_ns()) / 1000000 + 1;
	for (int i = 0; i < lead_num_children(l); i++)
		if (l->children[i].is_killed)
			most = REAP_MS;
	pthread_mutex_unlock(&l->lock);
	return (int)(ms < 0 ? 0 : ms < most ? ms : most);
}

static void *watch(void *arg)
{
	struct pollfd fds[2 + CAIRN_CONTROL_RANKS];
	struct lead_member *members[2 + CAIRN_CONTROL_RANKS];
	struct cairn_lead *l = arg;
	int64_t before = cairn_clock_ns();

	while (!atomic_load(&l->stop)) {
		const int num = list(l, fds, members);
		int64_t now;
		uint64_t count;

		poll(fds, (nfds_t)num, round_ms(l));
		now = cairn_clock_ns();
		read_members(l, fds, members, num);
		judge_silence(l, fds, members, num, now - before - 2 * ROUND_MS * 1000000ll);
		before = now;
		if (fds[1].revents && read(l->wake, &count, sizeof(count)) < 0 && errno != EAGAIN)
			break;
		if (fds[0].revents)
			lead_take_guest(l);
		bury(l);
		pthread_mutex_lock(&l->lock);
		for (int role = 0; role < CAIRN_NUM_MEMBER_ROLES; role++) {
			reap(l, role);
			start_processes(l, role);
		}
		pthread_mutex_unlock(&l->lock);
	}
	return NULL;
}

int lead_watch_start(struct cairn_lead *l)
{
	int ret = pthread_create(&l->thread, NULL, watch, l);

	l->has_thread = !ret;
	return ret ? cairn_error(EIO, "lead: no thread: %s", strerror(ret)) : 0;
}

/* Ends the thread, the guests and the members. */
void lead_watch_stop(struct cairn_lead *l)
{
	atomic_store(&l->stop, 1);
	if (l->has_thread) {
		lead_wake(l);
		pthread_join(l->thread, NULL);
	}
	pthread_mutex_lock(&l->lock);
	for (int i = 0; i < CAIRN_LEAD_MAX_GUESTS; i++)
		if (l->guests[i].fd >= 0)
			shutdown(l->guests[i].fd, SHUT_RDWR);
	while (l->num_guests)
		pthread_cond_wait(&l->changed, &l->lock);
	while (l->members) {
		struct lead_member *m = l->members;

		l->members = m->next;
		free_member(m);
	}
	pthread_mutex_unlock(&l->lock);
}
