// SPDX-License-Identifier: Apache-2.0
/* lead - creation, and what its user calls (lead.h) */
#include "serving/remote/lead/lead.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/control/address.h"
#include "serving/remote/lead/lead_impl.h"
#include "serving/remote/remote_fault.h"

#define SEND_MS		1000
#define MAX_FAILURES	3	/* started processes that end before they join, in a row */

/* ---- creation ---- */

static int check_options(struct cairn_lead_options *o)
{
	union cairn_address a;

	if (o->workers < 1 || o->workers >= CAIRN_CONTROL_RANKS)
		return cairn_error(EINVAL, "attention_workers: is %d, must be 1 to %d", o->workers,
				   CAIRN_CONTROL_RANKS - 1);
	if (strlen(o->table) >= CAIRN_CONTROL_TABLE)
		return cairn_error(EINVAL, "attention_workers: the table's name, %s, is too long", o->table);
	o->beat_ms = o->beat_ms ? o->beat_ms : 5 * CAIRN_LEAD_BEAT_MS;
	o->join_ms = o->join_ms ? o->join_ms : 30000;
	if (!o->listen)
		return o->secret_file ? cairn_error(EINVAL, "secret_file: needs workers_listen") : 0;
	if (cairn_address_parse(&a, o->listen))
		return cairn_error_prefix(-EINVAL, "workers_listen");
	if (!o->secret_file && !cairn_address_is_loopback(&a))
		return cairn_error(EACCES, "workers_listen: %s can be reached from other machines and needs "
				   "a secret_file", o->listen);
	return 0;
}

static int open_listener(struct cairn_lead *l)
{
	int ret = cairn_address_listen(&l->listener, &l->port, l->opt.listen ? l->opt.listen : "127.0.0.1:0");

	if (ret)
		return cairn_error_prefix(ret, "workers_listen");
	l->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	return l->wake < 0 ? cairn_error(EIO, "lead: eventfd: %s", strerror(errno)) : 0;
}

int cairn_lead_create(struct cairn_lead **out, const struct cairn_lead_options *options)
{
	struct cairn_lead *l = calloc(1, sizeof(*l));
	pthread_condattr_t attr;
	int ret;

	if (!l)
		return cairn_error(ENOMEM, "lead: no memory");
	l->opt = *options;
	l->listener = l->wake = l->secret_fd = -1;
	l->digest = strtoull(cairn_source_digest(), NULL, 16);
	for (int i = 0; i < CAIRN_LEAD_MAX_GUESTS; i++)
		l->guests[i].fd = -1;
	pthread_mutex_init(&l->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&l->changed, &attr);
	pthread_condattr_destroy(&attr);
	ret = check_options(&l->opt);
	if (!ret && !l->opt.listen)
		ret = lead_start_secret(l);
	else if (!ret && l->opt.secret_file)
		ret = cairn_secret_load(l->secret, l->opt.secret_file);
	l->has_secret = !l->opt.listen || l->opt.secret_file ? l->secret : NULL;
	l->children = calloc((size_t)(ret ? 1 : l->opt.workers), sizeof(*l->children));
	if (!ret && !l->children)
		ret = cairn_error(ENOMEM, "lead: no memory");
	if (!ret)
		ret = open_listener(l);
	if (!ret)
		ret = lead_watch_start(l);
	if (ret)
		cairn_lead_destroy(l);
	else
		*out = l;
	return ret;
}

void cairn_lead_destroy(struct cairn_lead *l)
{
	if (!l)
		return;
	lead_watch_stop(l);
	for (int i = 0; l->children && i < l->opt.workers; i++)
		if (l->children[i].pid)
			lead_end_process(l->children[i].pid);
	if (l->listener >= 0)
		close(l->listener);
	if (l->wake >= 0)
		close(l->wake);
	if (l->secret_fd >= 0)
		close(l->secret_fd);
	explicit_bzero(l->secret, sizeof(l->secret));
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->lock);
	free(l->children);
	free(l);
}

int cairn_lead_port(const struct cairn_lead *l)
{
	return l->port;
}

int32_t cairn_lead_workers(const struct cairn_lead *l)
{
	return l->opt.workers;
}

void lead_wake(struct cairn_lead *l)
{
	const uint64_t one = 1;
	ssize_t n = write(l->wake, &one, sizeof(one));

	(void)n;	/* EAGAIN: it is awake */
}

/* ---- losses ---- */

void lead_lose(struct cairn_lead *l, struct lead_member *m, const char *why)
{
	if (m->is_lost)
		return;
	m->is_lost = 1;
	l->stats.lost++;
	if (m->rank) {
		if (!atomic_load(&l->is_lost))
			snprintf(l->why, sizeof(l->why), "attention worker %d: %s", m->rank, why);
		snprintf(l->stats.last_loss, sizeof(l->stats.last_loss), "%s", l->why);
		l->stats.noticed_ns = cairn_clock_ns();
		atomic_store(&l->is_lost, !FAULT(LOSS_FORGOTTEN));
	}
	snprintf(l->refused, sizeof(l->refused), "the last lost: %s", why);
	pthread_cond_broadcast(&l->changed);
	lead_wake(l);
}

struct lead_member *lead_ranked(struct cairn_lead *l, int32_t rank)
{
	for (struct lead_member *m = l->members; m; m = m->next)
		if (m->rank == rank && !m->is_lost)
			return m;
	return NULL;
}

int cairn_lead_lost(const struct cairn_lead *l)
{
	return atomic_load(&((struct cairn_lead *)l)->is_lost);
}

/* Call with the lock held. */
static int why(struct cairn_lead *l)
{
	return cairn_error(ECONNRESET, "%s", *l->why ? l->why : "attention: a worker is lost");
}

int cairn_lead_why(struct cairn_lead *l)
{
	int ret;

	pthread_mutex_lock(&l->lock);
	ret = why(l);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

int cairn_lead_report(struct cairn_lead *l, int32_t rank)
{
	char text[LEAD_TEXT];
	struct lead_member *m;
	int ret;

	snprintf(text, sizeof(text), "%s", cairn_last_error());
	pthread_mutex_lock(&l->lock);
	m = lead_ranked(l, rank);
	if (m)
		lead_lose(l, m, text);
	ret = why(l);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

/* ---- an epoch ---- */

static struct timespec in_ms(int64_t ms)
{
	int64_t then = cairn_clock_ns() + ms * 1000000;

	return (struct timespec){ then / 1000000000, then % 1000000000 };
}

/* Gives ranks without a worker to spares, oldest first. Returns how many ranks have none. */
static int32_t fill_ranks(struct cairn_lead *l)
{
	int32_t missing = 0;

	for (int32_t r = 1; r <= l->opt.workers; r++) {
		struct lead_member *m = l->members;

		if (lead_ranked(l, r))
			continue;
		while (m && (m->rank || m->is_lost))
			m = m->next;
		if (m)
			m->rank = r;
		else
			missing++;
	}
	return missing;
}

static int too_few(struct cairn_lead *l, int32_t missing, const char *because)
{
	return cairn_error(ETIMEDOUT, "attention_workers: %d of %d %s%s%s%s", l->opt.workers - missing,
			   l->opt.workers, because, *l->refused ? " (" : "", l->refused,
			   *l->refused ? ")" : "");
}

/* Asks the thread to start what is missing, less what has been started and has not joined yet. */
static void ask_for(struct cairn_lead *l, int32_t missing)
{
	for (int32_t i = 0; i < l->opt.workers; i++)
		missing -= l->children[i].pid && !l->children[i].has_joined;
	l->wanted = missing > 0 ? missing : 0;
	if (l->wanted)
		lead_wake(l);
}

int cairn_lead_gather(struct cairn_lead *l, uint32_t *epoch)
{
	const struct timespec until = in_ms(l->opt.join_ms);
	int32_t missing;
	int ret = 0;

	pthread_mutex_lock(&l->lock);
	*epoch = ++l->epoch;
	l->failures = 0;
	atomic_store(&l->is_lost, 0);
	l->why[0] = 0;
	for (struct lead_member *m = l->members; m; m = m->next)
		if (m->is_lost)
			m->rank = 0;
	while ((missing = fill_ranks(l)) && !ret) {
		if (l->secret_fd >= 0 && l->failures < MAX_FAILURES)
			ask_for(l, missing);
		else if (l->secret_fd >= 0)
			ret = too_few(l, missing, "run: the others end before they join");
		if (!ret && pthread_cond_timedwait(&l->changed, &l->lock, &until))
			ret = too_few(l, missing, "have joined in time");
	}
	l->wanted = 0;
	for (struct lead_member *m = l->members; m; m = m->next) {
		free(m->blob);
		m->blob = NULL;
	}
	pthread_mutex_unlock(&l->lock);
	return ret;
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
		return cairn_lead_why(l);
	pthread_mutex_lock(&m->busy);
	ret = cairn_control_send(m->c, kind, head, head_bytes, rest, rest_bytes, SEND_MS);
	pthread_mutex_unlock(&m->busy);
	pthread_mutex_lock(&l->lock);
	m->users--;
	if (ret) {
		lead_lose(l, m, cairn_last_error());
		ret = why(l);
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
	while (!atomic_load(&l->is_lost)) {
		m = lead_ranked(l, rank);
		if (!m)
			break;
		*out = m;
		if (wants_blob ? m->blob != NULL : m->ready == l->epoch)
			return 0;
		if (pthread_cond_timedwait(&l->changed, &l->lock, &until))
			lead_lose(l, m, wants_blob ? "does not prepare its share in time" :
				  "does not connect in time");
	}
	pthread_mutex_unlock(&l->lock);
	return cairn_lead_why(l);
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
		ret = why(l);
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

void cairn_lead_stats(struct cairn_lead *l, struct cairn_lead_stats *stats)
{
	pthread_mutex_lock(&l->lock);
	*stats = l->stats;
	stats->members = stats->spares = 0;
	for (const struct lead_member *m = l->members; m; m = m->next) {
		stats->members += !m->is_lost;
		stats->spares += !m->is_lost && !m->rank;
	}
	pthread_mutex_unlock(&l->lock);
}

int cairn_lead_pid(struct cairn_lead *l, int32_t rank)
{
	const struct lead_member *m;
	int pid;

	pthread_mutex_lock(&l->lock);
	m = lead_ranked(l, rank);
	pid = m ? m->pid : 0;
	pthread_mutex_unlock(&l->lock);
	return pid;
}
