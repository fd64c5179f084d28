// SPDX-License-Identifier: Apache-2.0
/* lead - creation, and what its user calls (lead.h) */
#include "serving/remote/lead/lead.h"

#include <signal.h>
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
#include "serving/remote/control/sodium.h"
#include "serving/remote/lead/lead_impl.h"
#include "serving/remote/remote_fault.h"

#define MAX_BACKOFF	6	/* the longest wait before another process is started is 2^6 s */

/* ---- creation ---- */

static int check_options(struct cairn_lead_options *o)
{
	const int32_t most = CAIRN_CONTROL_RANKS - CAIRN_MAX_LANES - CAIRN_LEAD_PREFILL;
	union cairn_address a;

	if (o->attention < !o->prefill || o->attention > most)
		return cairn_error(EINVAL, "attention_workers: is %d, must be %d to %d", o->attention,
				   !o->prefill, most);
	if (o->model < 0 || o->model >= CAIRN_MAX_LANES || (o->model && !o->attention))
		return cairn_error(EINVAL, "model_workers: is %d, must be 1 to %d, with attention_workers",
				   o->model + 1, CAIRN_MAX_LANES);
	if (o->prefill < 0 || o->prefill > CAIRN_LEAD_PREFILL)
		return cairn_error(EINVAL, "prefill_workers: is %d, must be 0 to %d", o->prefill,
				   CAIRN_LEAD_PREFILL);
	if (strlen(o->table) >= CAIRN_CONTROL_TABLE)
		return cairn_error(EINVAL, "lead: the table's name, %s, is too long", o->table);
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
	const struct sodium *sodium;
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
	if (!ret)
		ret = sodium_load(&sodium);	/* no member can join without it */
	if (!ret && !l->opt.listen)
		ret = lead_start_secret(l);
	else if (!ret && l->opt.secret_file)
		ret = cairn_secret_load(l->secret, l->opt.secret_file);
	l->has_secret = !l->opt.listen || l->opt.secret_file ? l->secret : NULL;
	if (!ret) {
		l->children = calloc((size_t)lead_num_children(l), sizeof(*l->children));
		l->whys = calloc((size_t)l->opt.prefill + 1, sizeof(*l->whys));
	}
	if (!ret && (!l->children || !l->whys))
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
	/* all at once: a process with a GPU may take seconds to end */
	for (int i = 0; l->children && i < lead_num_children(l); i++)
		if (l->children[i].pid)
			kill(l->children[i].pid, SIGKILL);
	for (int i = 0; l->children && i < lead_num_children(l); i++)
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
	free(l->whys);
	free(l);
}

int cairn_lead_port(const struct cairn_lead *l)
{
	return l->port;
}

int32_t cairn_lead_attention(const struct cairn_lead *l)
{
	return l->opt.attention;
}

int32_t cairn_lead_prefill(const struct cairn_lead *l)
{
	return l->opt.prefill;
}

int32_t cairn_lead_models(const struct cairn_lead *l)
{
	return l->opt.model + 1;
}

int32_t cairn_lead_model_rank(const struct cairn_lead *l, int32_t number)
{
	return l->opt.attention + l->opt.prefill + number;
}

void lead_wake(struct cairn_lead *l)
{
	const uint64_t one = 1;
	ssize_t n = write(l->wake, &one, sizeof(one));

	(void)n;	/* EAGAIN: it is awake */
}

/* ---- losses ---- */

void lead_refused(struct cairn_lead *l, const char *how, const char *why)
{
	snprintf(l->stats.last_refused, sizeof(l->stats.last_refused), "the last %s: %s", how, why);
}

/* Returns where the reason for the loss of this rank is kept (lead_impl.h). */
char *lead_why_of(struct cairn_lead *l, int32_t rank)
{
	return lead_is_together(l, rank) ? l->why : l->whys[rank - l->opt.attention - 1];
}

void lead_lose(struct cairn_lead *l, struct lead_member *m, const char *why)
{
	static const char *const names[CAIRN_NUM_MEMBER_ROLES] = { "model", "attention", "prefill" };
	const int together = m->role != CAIRN_MEMBER_PREFILL &&
			     !(FAULT(MODEL_LOSS_FORGOTTEN) && m->role == CAIRN_MEMBER_MODEL);
	int32_t num, first = lead_children(l, m->role, &num);

	if (m->is_lost)
		return;
	m->is_lost = 1;
	l->stats.lost++;
	if (m->rank) {
		/* of workers that work together, the first loss counts: others may follow from it */
		if (!together || !atomic_load(&l->is_lost))
			snprintf(lead_why_of(l, m->rank), LEAD_TEXT, "%s worker %d: %s", names[m->role],
				 m->rank - first, why);
		snprintf(l->stats.last_loss, sizeof(l->stats.last_loss), "%s", lead_why_of(l, m->rank));
		l->stats.noticed_ns = cairn_clock_ns();
		if (together)
			atomic_store(&l->is_lost, !FAULT(LOSS_FORGOTTEN));
	}
	lead_refused(l, "lost", why);
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

int cairn_lead_has(struct cairn_lead *l, int32_t rank)
{
	int has;

	pthread_mutex_lock(&l->lock);
	has = lead_ranked(l, rank) != NULL;
	pthread_mutex_unlock(&l->lock);
	return has;
}

int lead_why(struct cairn_lead *l, int32_t rank)
{
	const char *text = lead_why_of(l, rank);

	return cairn_error(ECONNRESET, "%s", *text ? text : "a worker is lost");
}

int lead_lost(struct cairn_lead *l, int32_t rank)
{
	int ret;

	pthread_mutex_lock(&l->lock);
	ret = lead_why(l, rank);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

int cairn_lead_why(struct cairn_lead *l)
{
	return lead_lost(l, 0);
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
	ret = lead_why(l, rank);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

/* Each failure doubles the wait before the next process of the role is started. */
void lead_start_failed(struct cairn_lead *l, enum cairn_member_role role)
{
	struct lead_start *s = &l->start[role];
	const int exponent = s->failures < MAX_BACKOFF ? s->failures : MAX_BACKOFF;

	s->failures++;
	s->not_before = cairn_clock_ns() + (1ll << exponent) * 1000000000;
	pthread_cond_broadcast(&l->changed);
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

void cairn_lead_address(struct cairn_lead *l, int32_t rank, char host[CAIRN_LEAD_ADDRESS])
{
	snprintf(host, CAIRN_LEAD_ADDRESS, "127.0.0.1");
	pthread_mutex_lock(&l->lock);
	for (const struct lead_member *m = l->members; m; m = m->next)
		if (m->rank && !m->is_lost && *m->address &&
		    (rank ? m->rank == rank : lead_is_together(l, m->rank)))
			snprintf(host, CAIRN_LEAD_ADDRESS, "%s", m->address);
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
