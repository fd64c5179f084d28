// SPDX-License-Identifier: Apache-2.0
/*
 * lead_guest - lets guests join the lead, or refuses them
 *
 * Each guest is served by its own thread until it is a member, because a handshake may take
 * CAIRN_LEAD_SHAKE_MS and members must be watched meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "rdma/transport/transport.h"
#include "serving/base/clock.h"
#include "serving/remote/control/address.h"
#include "serving/remote/lead/lead_impl.h"
#include "serving/remote/remote_fault.h"

#define REFUSE_MS	1000

struct guest {
	struct cairn_lead *l;
	int fd, seat;
};

/* Model and weights must be the lead's. An attention worker has no weights, and may not know the model. */
static int check_model(const struct cairn_lead *l, const struct cairn_control_join *j)
{
	const int may_lack = j->role == CAIRN_MEMBER_ATTENTION;

	if (l->opt.config && j->config != l->opt.config && (j->config || !may_lack))
		return cairn_error(EPERM, "another model: its configuration has the digest %016llx, the "
				   "lead's %016llx", (unsigned long long)j->config,
				   (unsigned long long)l->opt.config);
	if (l->opt.weights && j->weights != l->opt.weights && (j->weights || !may_lack) &&
	    !FAULT(ANY_WEIGHTS))
		return cairn_error(EPERM, "other weights: theirs have the digest %016llx, the lead's %016llx",
				   (unsigned long long)j->weights, (unsigned long long)l->opt.weights);
	return 0;
}

/* Returns -EPERM with the reason as the error text if the guest does not suit. */
static int check_join(const struct cairn_lead *l, const struct cairn_control_join *j)
{
	const uint32_t needs = CAIRN_TRANSPORT_HOST_MEMORY | CAIRN_TRANSPORT_PROCESSES;
	uint32_t has = 0;
	int32_t wanted;

	for (int i = 0; cairn_transport_get(i); i++) {
		const struct cairn_transport_table *t = cairn_transport_get(i);
		int serves = !strcmp(t->name, "nvlink") || (j->role == CAIRN_MEMBER_PREFILL ?
							    (t->features & needs) == needs :
							    !strcmp(t->name, "tcp"));

		has |= serves ? 1u << i : 0;
	}
	if (j->digest != l->digest && !FAULT(ANY_BUILD))
		return cairn_error(EPERM, "another build: its sources have the digest %016llx, the lead's "
				   "%016llx", (unsigned long long)j->digest, (unsigned long long)l->digest);
	lead_children(l, j->role, &wanted);
	if (!wanted)
		return cairn_error(EPERM, "role %u is not wanted here", j->role);
	if (strcmp(j->table, l->opt.table) && !FAULT(ANY_TABLE))
		return cairn_error(EPERM, "another table: it runs %s, the lead %s", j->table, l->opt.table);
	CAIRN_TRY(check_model(l, j));
	if (!(j->transports & has))
		return cairn_error(EPERM, "no transport in common: the lead has tcp");
	return 0;
}

static int meet(struct cairn_lead *l, struct cairn_control_channel *c, struct cairn_control_join *j)
{
	struct cairn_channel_message m;

	CAIRN_TRY(cairn_channel_receive(c, &m, CAIRN_LEAD_SHAKE_MS));
	if (m.kind == CAIRN_CONTROL_JOIN && m.num_bytes >= sizeof(j->version) &&
	    *(const uint32_t *)m.data != CAIRN_CONTROL_VERSION)
		return cairn_error(EPERM, "another version of the control messages: %u, the lead has %d",
				   *(const uint32_t *)m.data, CAIRN_CONTROL_VERSION);
	CAIRN_TRY(cairn_control_check(&m, 1));
	if (m.kind != CAIRN_CONTROL_JOIN)
		return cairn_error(EINVAL, "its first message is %s", cairn_control_kind_name(m.kind));
	*j = *(const struct cairn_control_join *)m.data;
	return check_join(l, j);
}

static struct lead_member *make_member(struct cairn_control_channel *c, const struct cairn_control_join *j)
{
	struct lead_member *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	pthread_mutex_init(&m->busy, NULL);
	m->c = c;
	m->role = j->role;
	m->pid = j->pid;
	if (cairn_address_own(cairn_channel_fd(c), m->address, sizeof(m->address)) ||
	    !strncmp(m->address, "127.", 4) || !strcmp(m->address, "::1"))
		m->address[0] = 0;
	m->heard_ns = cairn_clock_ns();
	return m;
}

/* Makes the guest a member, or refuses it. Call with the lock held. */
static void admit(struct cairn_lead *l, struct lead_member *m)
{
	struct lead_member **at = &l->members;

	for (int i = 0; i < lead_num_children(l); i++)
		if (l->children[i].pid && l->children[i].pid == m->pid)
			l->children[i].has_joined = 1;
	while (*at)
		at = &(*at)->next;
	*at = m;
	l->num_members++;
	l->stats.joined++;
	l->start[m->role].failures = 0;
}

/*
 * Sends the reason and closes the channel, but first waits for the guest to close its end: closing with
 * unread data would reset the connection, and the guest would not get the reason.
 */
static void refuse(struct cairn_control_channel *c, const char *text)
{
	const int64_t until = cairn_clock_ns() + REFUSE_MS * 1000000ll;
	struct cairn_channel_message m;
	int ret = cairn_control_send(c, CAIRN_CONTROL_REFUSE, NULL, 0, text, strlen(text), REFUSE_MS);

	while (!ret && cairn_clock_ns() < until)
		ret = cairn_channel_receive(c, &m, REFUSE_MS);
	cairn_channel_close(c);
}

static void *serve_guest(void *arg)
{
	struct guest g = *(struct guest *)arg;
	struct cairn_lead *l = g.l;
	struct cairn_control_join j;
	struct cairn_control_channel *c = NULL;
	struct lead_member *m = NULL;
	char text[CAIRN_CONTROL_TEXT];
	int ret;

	free(arg);
	ret = cairn_channel_open(&c, g.fd, CAIRN_CHANNEL_LEAD, l->has_secret, CAIRN_LEAD_SHAKE_MS);
	if (!ret)
		ret = meet(l, c, &j);
	if (!ret) {
		m = make_member(c, &j);
		ret = m ? 0 : cairn_error(ENOMEM, "lead: no memory for a member");
	}
	snprintf(text, sizeof(text), "%s", cairn_last_error());
	pthread_mutex_lock(&l->lock);
	if (!ret && (l->num_members >= CAIRN_CONTROL_RANKS || atomic_load(&l->stop))) {
		ret = -EPERM;
		snprintf(text, sizeof(text), "the lead %s", atomic_load(&l->stop) ? "ends" :
			 "has enough members");
	}
	if (!ret) {
		admit(l, m);
	} else {
		l->stats.refused++;
		lead_refused(l, "refused", text);
	}
	pthread_mutex_unlock(&l->lock);
	if (ret && c) {
		refuse(c, text);
		free(m);
	}
	pthread_mutex_lock(&l->lock);
	close(l->guests[g.seat].fd);
	l->guests[g.seat].fd = -1;
	l->num_guests--;
	pthread_cond_broadcast(&l->changed);
	lead_wake(l);
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* Serves a new connection in a thread of its own; closes it if there are too many. */
void lead_take_guest(struct cairn_lead *l)
{
	int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC), seat = 0;
	struct guest *g;
	pthread_attr_t attr;
	pthread_t thread;
	int ret = -1;

	if (fd < 0)
		return;
	pthread_mutex_lock(&l->lock);
	while (seat < CAIRN_LEAD_MAX_GUESTS && l->guests[seat].fd >= 0)
		seat++;
	g = seat < CAIRN_LEAD_MAX_GUESTS ? malloc(sizeof(*g)) : NULL;
	if (g) {
		*g = (struct guest){ l, fd, seat };
		/* a copy: the channel closes its own, and the end of the lead must reach a waiting guest */
		l->guests[seat].fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		pthread_attr_init(&attr);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ret = l->guests[seat].fd < 0 ? -1 : pthread_create(&thread, &attr, serve_guest, g);
		pthread_attr_destroy(&attr);
		l->num_guests += !ret;
	}
	if (ret) {
		if (g && l->guests[seat].fd >= 0)
			close(l->guests[seat].fd);
		if (g)
			l->guests[seat].fd = -1;
		free(g);
		close(fd);
	}
	pthread_mutex_unlock(&l->lock);
}
