// SPDX-License-Identifier: Apache-2.0
/*
 * transport_tcp_pace.c - lets loopback connections behave like a slower network (transport_pace.h), for tests
 * and measurements
 *
 * Payloads arrive at full speed, so a receiver must not read one before its signal. A signal that is not due
 * yet is kept here, in order of arrival; a wait moves signals to their slots once they are due. If TCP_PACED
 * signals are kept already, a further one pushes the oldest to its slot too early.
 */
#include "rdma/transport/transport_tcp.h"

static void show_first(struct tcp_channel *c)
{
	const struct tcp_paced *p = &c->paced[c->paced_begin % TCP_PACED];

	c->paced_begin++;
	__atomic_store_n(&c->slots[p->slot].word, p->word, __ATOMIC_RELAXED);
	tcp_set(c, &c->slots[p->slot].value, p->value);
}

void tcp_pace_keep(struct tcp_channel *c, const struct tcp_frame *f)
{
	const struct tcp *n = (const struct tcp *)c->base.t;
	const uint64_t now = transport_now();

	pthread_mutex_lock(&c->paced_lock);
	c->carried = transport_pace_carried(&n->pace, TCP_DEFECT(own_link) ? 0 : c->carried, now, f->bytes);
	if (f->slot != CAIRN_NO_SIGNAL) {
		if (c->paced_end - c->paced_begin == TCP_PACED)
			show_first(c);
		c->paced[c->paced_end++ % TCP_PACED] = (struct tcp_paced){
			TCP_DEFECT(pace) ? now : c->carried + n->pace.latency_ns, f->value, f->word, f->slot,
		};
		/* wake the threads that wait for this slot, so that they sleep until the signal is due */
		tcp_set(c, &c->slots[f->slot].value, c->slots[f->slot].value);
	}
	pthread_mutex_unlock(&c->paced_lock);
}

uint64_t tcp_pace_show(struct tcp_channel *c)
{
	const uint64_t now = transport_now();
	uint64_t next = UINT64_MAX;

	pthread_mutex_lock(&c->paced_lock);
	while (c->paced_begin < c->paced_end && c->paced[c->paced_begin % TCP_PACED].due <= now)
		show_first(c);
	if (c->paced_begin < c->paced_end)
		next = c->paced[c->paced_begin % TCP_PACED].due;
	pthread_mutex_unlock(&c->paced_lock);
	return next;
}
