// SPDX-License-Identifier: Apache-2.0
/*
 * nic_events.c - completion channels: arming of completion queues and the resulting events
 *
 * To arm a queue, a consumer writes its arm doorbell record (the second word of the queue's doorbell record:
 * sequence number, solicited only or any, consumer index) and then stores the same word with the queue's
 * number to UAR offset 0x20 of page 0. If an entry beyond that index has arrived since the last event, the
 * event is raised at once, so that no entry is missed between the last poll and the arming (mlx5's queue
 * context keeps last_notified_index for this purpose); otherwise the next entry raises it. Each arming gives
 * one event. The next arming must use another sequence number; otherwise it is stale.
 *
 * All queues of a process share one UAR word, and polling sees only the last store. Therefore a changed
 * record takes effect once any arming doorbell has been seen, because its own doorbell may have been
 * overwritten. A changed record without any doorbell is a broken rule and gives no event.
 *
 * A channel is a socket pair. The consumer reads, polls and closes its end as it would the kernel's file; the
 * model removes events of a destroyed queue at the other end. The engine of another process may write
 * entries; each process raises its own events, from the count of entries in the shared tables.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>

#include "rdma/nic/nic_model.h"

#define MAX_CHANNELS		64
#define FIRST_FD		100	/* above the small numbers that programs expect */
#define ARM_REGISTER		0x20
#define ARM_SOLICITED		(1u << 24)
#define NEVER_ARMED		0x0fffffffu	/* not a valid command; the first arming may be all zeros */
#define UNRUNG_NS		500000000ull
#define INDEX_MASK		0xffffffu

static struct channel {
	atomic_int consumer;		/* fd + 1; 0: free slot */
	int ours;
} channels[MAX_CHANNELS];

/* A queue of this process that is on a channel; protected by the lock. */
static struct watch {
	struct channel *channel;	/* NULL: not on a channel */
	uint64_t user_handle;
	uint32_t seen, record;		/* seen: the arm record as last read; record: the one in force */
	uint32_t notified;		/* entry count at the last event */
	uint32_t num_events;
	int given, last_sn;		/* last_sn: sequence number of the last event, valid if `given` */
	uint64_t unrung_ns;		/* time since which the record differs from `seen`; 0: it does not */
} watches[NIC_MAX_CQS];

/* Read by the engine without the lock, to decide whether it needs the lock. An armed queue is always on a
 * channel. */
static atomic_int num_watches, num_armed;
static atomic_uchar armed[NIC_MAX_CQS];
static uint32_t idle_at[NIC_MAX_CQS];	/* entry count that did not raise an event; engine thread only */

/* Returns the consumer's end of a new channel, or -errno. */
int nic_channel_open(void)
{
	int fds[2], fd, i, free_slot = 0, bytes = 1 << 20;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	/* room for one event of each queue; there is never a second unread one */
	setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	fd = fcntl(fds[0], F_DUPFD_CLOEXEC, FIRST_FD);
	syscall(SYS_close, fds[0]);
	for (i = 0; fd >= 0 && i < MAX_CHANNELS; i++, free_slot = 0)
		if (atomic_compare_exchange_strong(&channels[i].consumer, &free_slot, fd + 1)) {
			channels[i].ours = fds[1];
			return fd;
		}
	if (fd >= 0)
		syscall(SYS_close, fd);
	syscall(SYS_close, fds[1]);
	return -EMFILE;
}

static struct channel *find_channel(int fd)
{
	int i;

	for (i = 0; fd >= 0 && i < MAX_CHANNELS; i++)
		if (atomic_load_explicit(&channels[i].consumer, memory_order_relaxed) == fd + 1)
			return &channels[i];
	return NULL;
}

/* Called when the consumer closes a descriptor, which may be a channel; without the lock. */
void nic_channel_close(int fd)
{
	struct channel *c = find_channel(fd);
	int i;

	if (!c)
		return;
	nic_lock();
	for (i = 0; i < NIC_MAX_CQS; i++)
		if (watches[i].channel == c)
			nic_cq_unwatch(i);
	syscall(SYS_close, c->ours);
	atomic_store(&c->consumer, 0);
	nic_unlock();
}

static uint32_t *arm_record_at(int cq)
{
	return (uint32_t *)(uintptr_t)(nic->cqs[cq].dbrec + 4);
}

static uint32_t arm_record(int cq)
{
	return be32toh(__atomic_load_n(arm_record_at(cq), __ATOMIC_ACQUIRE));
}

static void set_armed(int cq, int is_armed)
{
	if (atomic_exchange(&armed[cq], (unsigned char)is_armed) != is_armed)
		atomic_fetch_add(&num_armed, is_armed ? 1 : -1);
}

int nic_cq_watch(int cq, int fd, uint64_t user_handle)
{
	struct channel *c = find_channel(fd);

	if (!c)
		return -EINVAL;
	*arm_record_at(cq) = htobe32(NEVER_ARMED);
	watches[cq] = (struct watch) { .channel = c, .user_handle = user_handle, .seen = NEVER_ARMED };
	atomic_fetch_add(&num_watches, 1);
	return 0;
}

static _Atomic uint64_t *arm_register(void)
{
	return (_Atomic uint64_t *)(void *)(nic_uar + ARM_REGISTER);
}

/* Returns the number of events given to the consumer. Unread ones are discarded. */
uint32_t nic_cq_unwatch(int cq)
{
	struct ib_uverbs_comp_event_desc kept[NIC_MAX_CQS], event;
	struct watch *w = &watches[cq];
	uint64_t word = atomic_load(arm_register());
	uint32_t taken;
	int num = 0, i;

	if (!w->channel)
		return 0;
	/* its last arming may not have been seen yet */
	if (be32toh((uint32_t)(word >> 32)) == NIC_FIRST_CQN + (uint32_t)cq)
		atomic_compare_exchange_strong(arm_register(), &word, 0);
	taken = w->num_events;
	while (num < NIC_MAX_CQS && recv(atomic_load(&w->channel->consumer) - 1, &event, sizeof(event),
					 MSG_DONTWAIT) == sizeof(event)) {
		if (event.cq_handle == w->user_handle)
			taken--;
		else
			kept[num++] = event;
	}
	for (i = 0; i < num; i++)
		(void)!send(w->channel->ours, &kept[i], sizeof(kept[i]), MSG_DONTWAIT | MSG_NOSIGNAL);
	w->channel = NULL;
	set_armed(cq, 0);
	atomic_fetch_sub(&num_watches, 1);
	return taken;
}

/* Returns whether an entry satisfies the arming. */
static int is_due(int number)
{
	const struct nic_cq *cq = &nic->cqs[number];
	const struct watch *w = &watches[number];
	uint32_t produced = __atomic_load_n(&cq->produced, __ATOMIC_ACQUIRE);
	uint32_t unseen = (produced - w->record) & INDEX_MASK, new = produced - w->notified;

	unseen = new < unseen ? new : unseen;
	if (!(w->record & ARM_SOLICITED))
		return unseen > 0;
	return cq->any_solicited && produced - cq->solicited < unseen;
}

static void give_event(int number)
{
	struct watch *w = &watches[number];
	struct ib_uverbs_comp_event_desc event = { .cq_handle = w->user_handle };

	set_armed(number, 0);
	if (send(w->channel->ours, &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(event))
		return;
	w->given = 1;
	w->last_sn = (int)(w->record >> 28 & 3);
	w->notified = nic->cqs[number].produced;
	w->num_events++;
	nic_count(&nic_stats.events, 1);
}

static void take_record(int number)
{
	struct watch *w = &watches[number];
	uint32_t record = arm_record(number);

	w->unrung_ns = 0;
	if (record == w->seen)
		return;
	w->seen = record;
	if (w->given && (int)(record >> 28 & 3) == w->last_sn)
		return;
	/* a queue armed for any entry stays armed until the event */
	if (atomic_load(&armed[number]) && !(w->record & ARM_SOLICITED))
		record &= ~ARM_SOLICITED;
	w->record = record;
	/* differs from the current count, so that the queue is checked */
	idle_at[number] = nic->cqs[number].produced - 1;
	set_armed(number, 1);
	nic_count(&nic_stats.arms, 1);
}

/* Handles an arming doorbell. The record must agree with it, or belong to a later arming, but not to an
 * earlier one. */
static void take_doorbell(uint64_t word)
{
	uint32_t said = be32toh((uint32_t)word), cqn = be32toh((uint32_t)(word >> 32)), record;
	uint32_t number = cqn - NIC_FIRST_CQN;
	const struct nic_qp none = { 0 };
	int i;

	if (number >= NIC_MAX_CQS || !watches[number].channel) {
		nic_broken(&none, NIC_RULE_arm_cqn, cqn, "arming of queue %#x, which has no channel", cqn);
		return;
	}
	record = arm_record((int)number);
	if ((((record >> 28) - (said >> 28)) & 3) > 1 || ((record - said) & INDEX_MASK) >= 1u << 23) {
		nic_broken(&none, NIC_RULE_arm_record, cqn, "doorbell %#x, record %#x", said, record);
		return;
	}
	for (i = 0; i < NIC_MAX_CQS; i++)
		if (watches[i].channel)
			take_record(i);
}

/* Called by the engine without the lock. Returns whether it did any work. */
int nic_events_poll(void)
{
	int i, left, worked = 0;

	if (!atomic_load_explicit(&num_watches, memory_order_relaxed))
		return 0;
	if (atomic_load_explicit(arm_register(), memory_order_relaxed)) {
		uint64_t word;

		nic_lock();
		word = atomic_exchange_explicit(arm_register(), 0, memory_order_acquire);
		if (word)
			take_doorbell(word);
		nic_unlock();
		worked = 1;
	}
	left = atomic_load_explicit(&num_armed, memory_order_relaxed);
	for (i = 0; i < NIC_MAX_CQS && left > 0; i++) {
		if (!atomic_load_explicit(&armed[i], memory_order_relaxed))
			continue;
		left--;
		if (__atomic_load_n(&nic->cqs[i].produced, __ATOMIC_ACQUIRE) == idle_at[i])
			continue;
		nic_lock();
		if (!atomic_load(&armed[i])) {
			/* the queue has been removed meanwhile */
		} else if (is_due(i)) {
			give_event(i);
			worked = 1;
		} else {
			idle_at[i] = nic->cqs[i].produced;
		}
		nic_unlock();
	}
	return worked;
}

/* Called with the lock held. */
void nic_events_audit(uint64_t now)
{
	const struct nic_qp none = { 0 };
	int i;

	for (i = 0; i < NIC_MAX_CQS; i++) {
		struct watch *w = &watches[i];

		if (!w->channel || arm_record(i) == w->seen) {
			w->unrung_ns = 0;
		} else if (!w->unrung_ns) {
			w->unrung_ns = now;
		} else if (now - w->unrung_ns > UNRUNG_NS) {
			nic_broken(&none, NIC_RULE_arm_not_rung, NIC_FIRST_CQN + (uint32_t)i,
				   "arm record %#x, no doorbell", arm_record(i));
			w->seen = arm_record(i);	/* report it once */
			w->unrung_ns = 0;
		}
	}
}
