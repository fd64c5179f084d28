// SPDX-License-Identifier: Apache-2.0
/* lead_epoch - gives ranks to members, and passes messages between them and their users (lead.h) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/lead/lead_impl.h"
#include "serving/remote/remote_fault.h"

#define SEND_MS		1000
#define MAX_FAILURES	3	/* started processes that end before they join, in a row */

static struct timespec in_ms(int64_t ms)
{
	int64_t then = cairn_clock_ns() + ms * 1000000;

	return (struct timespec){ then / 1000000000, then % 1000000000 };
}

/* Returns the spare of this role that has waited longest; NULL: there is none. */
static struct lead_member *oldest_spare(struct cairn_lead *l, enum cairn_member_role role)
{
	struct lead_member *m = l->members;

	while (m && (m->rank || m->is_lost || m->role != role))
		m = m->next;
	return m;
}

static void begin(struct lead_member *m, int32_t rank, uint32_t epoch)
{
	m->rank = rank;
	m->epoch = epoch;
	free(m->blob);
	m->blob = NULL;
}

/* Gives a role's ranks without a worker to spares. Returns how many ranks have none. */
static int32_t fill_ranks(struct cairn_lead *l, enum cairn_member_role role)
{
	int32_t num, first = lead_children(l, role, &num) + 1, missing = 0;

	for (int32_t r = first; r < first + num; r++) {
		struct lead_member *m = lead_ranked(l, r);

		if (!m)
			m = oldest_spare(l, role);
		if (m)
			m->rank = r;
		else
			missing++;
	}
	return missing;
}

static int too_few(struct cairn_lead *l, enum cairn_member_role role, int32_t missing, const char *because)
{
	const int of_model = role == CAIRN_MEMBER_MODEL;
	const char *refused = l->stats.last_refused;
	const int32_t wanted = of_model ? l->opt.model + 1 : l->opt.attention;	/* one is this process */

	return cairn_error(ETIMEDOUT, "%s_workers: %d of %d %s%s%s%s", of_model ? "model" : "attention",
			   wanted - missing, wanted, because, *refused ? " (" : "", refused,
			   *refused ? ")" : "");
}

/* Asks the thread to start the missing workers, except for those that are started and have not joined yet. */
static void ask_for(struct cairn_lead *l, enum cairn_member_role role, int32_t missing)
{
	int32_t num, first = lead_children(l, role, &num);

	for (int32_t i = first; i < first + num; i++)
		missing -= l->children[i].pid && !l->children[i].has_joined;
	l->start[role].wanted = missing > 0 ? missing : 0;
	if (l->start[role].wanted)
		lead_wake(l);
}

/* Waits until the ranks of a role that works together have workers. Call with the lock held. */
static int fill(struct cairn_lead *l, enum cairn_member_role role, const struct timespec *until)
{
	struct lead_start *start = &l->start[role];
	int32_t missing;
	int ret = 0;

	start->failures = 0;
	while ((missing = fill_ranks(l, role)) && !ret) {
		if (l->secret_fd >= 0 && start->failures < MAX_FAILURES)
			ask_for(l, role, missing);
		else if (l->secret_fd >= 0)
			ret = too_few(l, role, missing, "run: the others end before they join");
		if (!ret && pthread_cond_timedwait(&l->changed, &l->lock, until))
			ret = too_few(l, role, missing, "have joined in time");
	}
	start->wanted = 0;
	return ret;
}

int cairn_lead_gather(struct cairn_lead *l, uint32_t *epoch)
{
	const struct timespec until = in_ms(l->opt.join_ms);
	int ret;

	pthread_mutex_lock(&l->lock);
	*epoch = ++l->epoch;
	atomic_store(&l->is_lost, 0);
	l->why[0] = 0;
	for (struct lead_member *m = l->members; m; m = m->next)
		if (m->is_lost)
			m->rank = 0;
	if (l->secret_fd >= 0)		/* they load weights, while the others join */
		ask_for(l, CAIRN_MEMBER_MODEL, fill_ranks(l, CAIRN_MEMBER_MODEL));
	ret = fill(l, CAIRN_MEMBER_ATTENTION, &until);
	if (!ret)
		ret = fill(l, CAIRN_MEMBER_MODEL, &until);
	for (struct lead_member *m = l->members; m; m = m->next)
		if (m->rank && !m->is_lost && lead_is_together(l, m->rank))
			begin(m, m->rank, *epoch);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

int cairn_lead_take(struct cairn_lead *l, int32_t rank, int timeout_ms, uint32_t *epoch)
{
	const struct timespec until = in_ms(timeout_ms);
	struct lead_start *start = &l->start[CAIRN_MEMBER_PREFILL];
	struct lead_member *m;
	int ret = 0;

	pthread_mutex_lock(&l->lock);
	for (m = l->members; m; m = m->next)
		if (m->is_lost && m->rank == rank)
			m->rank = 0;
	while (!(m = oldest_spare(l, CAIRN_MEMBER_PREFILL)) && !ret) {
		int32_t missing = l->opt.prefill;

		for (const struct lead_member *o = l->members; o; o = o->next)
			missing -= o->role == CAIRN_MEMBER_PREFILL && !o->is_lost;
		if (l->secret_fd >= 0 && cairn_clock_ns() >= start->not_before)
			ask_for(l, CAIRN_MEMBER_PREFILL, missing);
		if (pthread_cond_timedwait(&l->changed, &l->lock, &until))
			ret = cairn_error(ETIMEDOUT, "prefill_workers: no worker has joined in time");
	}
	if (m) {
		begin(m, rank, ++l->epoch);
		*epoch = m->epoch;
		lead_why_of(l, rank)[0] = 0;
	}
	pthread_mutex_unlock(&l->lock);
	return m ? 0 : ret;
}

int cairn_lead_send(struct cairn_lead *l, int32_t rank, enum cairn_control_kind kind, const void *head,
		    size_t head_bytes, const void *rest, size_t rest_bytes)
{
	struct lead_member *m;
	int ret;

	pthread_mutex_lock(&l->lock);
	m = lead_ranked(l, rank);
	if (m)
		m->users++;
	pthread_mutex_unlock(&l->lock);
	if (!m)
		return lead_lost(l, rank);
	pthread_mutex_lock(&m->busy);
	ret = cairn_control_send(m->c, kind, head, head_bytes, rest, rest_bytes, SEND_MS);
	pthread_mutex_unlock(&m->busy);
	pthread_mutex_lock(&l->lock);
	m->users--;
	if (ret) {
		lead_lose(l, m, cairn_last_error());
		ret = lead_why(l, rank);
	}
	pthread_mutex_unlock(&l->lock);
	return ret;
}

/* Waits until what the worker is to send is there. Returns with the lock held if it is. */
static int await(struct cairn_lead *l, int32_t rank, int wants_blob, struct lead_member **out)
{
	const struct timespec until = in_ms(l->opt.join_ms);
	struct lead_member *m;

	pthread_mutex_lock(&l->lock);
	while (!lead_is_together(l, rank) || !atomic_load(&l->is_lost)) {
		m = lead_ranked(l, rank);
		if (!m)
			break;
		*out = m;
		if (wants_blob ? m->blob != NULL : m->ready == m->epoch)
			return 0;
		if (pthread_cond_timedwait(&l->changed, &l->lock, &until))
			lead_lose(l, m, wants_blob ? "does not prepare its share in time" :
				  "does not connect in time");
	}
	pthread_mutex_unlock(&l->lock);
	return lead_lost(l, rank);
}

int cairn_lead_blob(struct cairn_lead *l, int32_t rank, void *bytes, size_t num_bytes)
{
	struct lead_member *m = NULL;
	int ret = 0;

	CAIRN_TRY(await(l, rank, 1, &m));
	if (m->blob_bytes == num_bytes || FAULT(BLOB_OF_ANY_SIZE)) {
		memcpy(bytes, m->blob, num_bytes);
	} else {
		lead_lose(l, m, "sent a blob of another size");
		ret = lead_why(l, rank);
	}
	pthread_mutex_unlock(&l->lock);
	return ret;
}

int cairn_lead_ready(struct cairn_lead *l, int32_t rank)
{
	struct lead_member *m = NULL;

	CAIRN_TRY(await(l, rank, 0, &m));
	pthread_mutex_unlock(&l->lock);
	return 0;
}
