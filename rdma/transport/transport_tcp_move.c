// SPDX-License-Identifier: Apache-2.0
/*
 * transport_tcp_move.c - sends and receives the puts and acknowledgements of the tcp back end
 *
 * A payload goes from the source to the socket and from the socket to the region without a copy in between,
 * except its part in the receive buffer. The receiver checks key and bounds before each piece, because the
 * region may be released meanwhile, and sets the slot after the last piece.
 *
 * Nothing that a peer sends is trusted: bytes that are no frame, or one out of order, end the channel with
 * -EIO; a key or range that this end has not given away is refused, which ends it with -EACCES at both ends.
 */
#include "rdma/transport/transport_tcp.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define TURNS		4		/* pieces received before another connection has its turn */
#define BATCH		16		/* puts of one sendmsg */

/* ---- sending ---- */

static void advance(struct tcp_channel *c, uint64_t bytes)
{
	uint64_t mask = c->base.t->options.depth - 1, left;

	while (bytes) {
		left = sizeof(struct tcp_frame) + c->ring[c->sent & mask].frame.bytes - c->sent_bytes;
		if (bytes < left) {
			c->sent_bytes += bytes;
			return;
		}
		bytes -= left;
		c->sent++;
		c->sent_bytes = 0;
	}
}

/* Gathers frames and payloads from byte sent_bytes of put `sent`. */
static size_t gather(const struct tcp_channel *c, struct iovec *v)
{
	uint64_t mask = c->base.t->options.depth - 1, i, at = c->sent_bytes, total = 0;
	size_t num = 0;

	for (i = c->sent; i < c->posted && i - c->sent < BATCH && total < TCP_PIECE; i++, at = 0) {
		struct tcp_put *p = &c->ring[i & mask];
		uint64_t left;

		if (at < sizeof(p->frame)) {
			v[num++] = (struct iovec) { (uint8_t *)&p->frame + at, sizeof(p->frame) - at };
			at = sizeof(p->frame);
		}
		left = p->frame.bytes - (at - sizeof(p->frame));
		if (!left)
			continue;
		left = left < TCP_PIECE ? left : TCP_PIECE;
		v[num++] = (struct iovec) { (uint8_t *)p->from + (at - sizeof(p->frame)), left };
		total += left;
		if (at - sizeof(p->frame) + left < p->frame.bytes)
			break;		/* the next put must follow the rest of this one */
	}
	return num;
}

void tcp_push(struct tcp_channel *c, uint64_t budget)
{
	struct iovec v[2 * BATCH];
	uint64_t sent = 0;

	while (c->sent < c->posted && sent < budget && !atomic_load(&c->base.error)) {
		struct msghdr m = { .msg_iov = v, .msg_iovlen = gather(c, v) };
		ssize_t got = sendmsg(c->out->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (got > 0) {
			advance(c, (uint64_t)got);
			sent += (uint64_t)got;
			if (TCP_DEFECT(early_done))
				tcp_set(c, &c->done, c->sent);
		} else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			break;
		} else if (got < 0 && errno != EINTR) {
			transport_fail(&c->base, ECONNRESET, "the peer is gone: put %llu: %s",
				       (unsigned long long)c->sent, strerror(errno));
		}
	}
	tcp_watch((struct tcp *)c->base.t, c->out,
	      EPOLLIN | (c->sent < c->posted && !atomic_load(&c->base.error) ? EPOLLOUT : 0));
}

void tcp_acknowledge(struct tcp *n, struct tcp_conn *k)
{
	ssize_t got;

	while (k->ack_at < sizeof(k->ack) || k->ack_due) {
		if (k->ack_at == sizeof(k->ack)) {
			k->ack = (struct tcp_ack) { TCP_ACK, (uint32_t)k->refused, k->c->arrived };
			k->ack_at = 0;
			k->ack_due = 0;
		}
		got = send(k->fd, (uint8_t *)&k->ack + k->ack_at, sizeof(k->ack) - k->ack_at,
			   MSG_DONTWAIT | MSG_NOSIGNAL);
		if (got <= 0)
			break;		/* an error shows at the next receive */
		k->ack_at += (uint32_t)got;
	}
	tcp_watch(n, k, EPOLLIN | (k->ack_at < sizeof(k->ack) ? EPOLLOUT : 0));
}

/* ---- receiving ---- */

static void refuse(struct tcp_conn *k, int why)
{
	k->refused = why;
	k->ack_due = 1;
	transport_fail(&k->c->base, EACCES, "refused put %llu of the peer: bytes %llu..+%llu of %s",
		       (unsigned long long)k->put.index, (unsigned long long)k->put.offset,
		       (unsigned long long)k->put.bytes,
		       why == TCP_REFUSED_KEY ? "no region of this end" : "a smaller region");
}

/* Returns where the rest of the payload goes; NULL: refused. The region may have been released meanwhile. */
static uint8_t *place(struct tcp *n, struct tcp_conn *k)
{
	struct tcp_frame *p = &k->put;
	struct tcp_region *r;

	for (r = n->regions; r && r->key != p->key && !TCP_DEFECT(key); r = r->next_of_all)
		;
	if (!r) {
		refuse(k, TCP_REFUSED_KEY);
	} else if ((p->offset > r->base.bytes || p->bytes > r->base.bytes - p->offset) &&
		   !TCP_DEFECT(bounds)) {
		refuse(k, TCP_REFUSED_BOUNDS);
	} else {
		return r->base.addr + p->offset + (p->bytes - k->left);
	}
	return NULL;
}

static void signalled(struct tcp_channel *c, const struct tcp_frame *p)
{
	if (p->slot == CAIRN_NO_SIGNAL)
		return;
	__atomic_store_n(&c->slots[p->slot].word, p->word, __ATOMIC_RELAXED);
	tcp_set(c, &c->slots[p->slot].value, p->value);
}

static void complete(struct tcp_conn *k)
{
	k->c->arrived++;
	if (transport_is_paced(&((const struct tcp *)k->c->base.t)->pace))
		tcp_pace_keep(k->c, &k->put);
	else if (!TCP_DEFECT(signal_first))
		signalled(k->c, &k->put);
	k->ack_due |= k->put.flags & TCP_ASK;
}

/* Begins the put of a received frame. Returns nonzero if no peer of this version would send that frame. */
static int begin(struct tcp_conn *k)
{
	const struct tcp_frame *p = &k->put;

	k->left = p->bytes;
	if (TCP_DEFECT(signal_first) && p->slot < k->c->base.t->options.num_slots)
		signalled(k->c, p);
	return p->magic != TCP_PUT || p->flags & ~(uint32_t)TCP_ASK || p->unused ||
	       (p->index != k->c->arrived && !TCP_DEFECT(order)) ||
	       (p->slot >= k->c->base.t->options.num_slots && p->slot != CAIRN_NO_SIGNAL);
}

/* Uses the bytes of the buffer. Returns nonzero if they are wrong. */
static int use(struct tcp *n, struct tcp_conn *k)
{
	uint32_t at = 0, bytes;

	while (!k->refused) {
		if (k->left) {
			uint8_t *to = k->have > at ? place(n, k) : NULL;

			bytes = k->have - at < k->left ? k->have - at : (uint32_t)k->left;
			if (!to)
				break;
			memcpy(to, k->buf + at, bytes);
			at += bytes;
			k->left -= bytes;
		} else {
			if (k->have - at < sizeof(k->put))
				break;
			memcpy(&k->put, k->buf + at, sizeof(k->put));
			at += (uint32_t)sizeof(k->put);
			if (begin(k))
				return -1;
		}
		if (!k->left)
			complete(k);
	}
	k->have = k->refused ? 0 : k->have - at;
	memmove(k->buf, k->buf + at, k->have);
	return 0;
}

int tcp_frames(struct tcp *n, struct tcp_conn *k)
{
	int turn, progress = 0;

	for (turn = 0; turn < TURNS; turn++) {
		uint8_t *to = !k->refused && k->left >= k->room ? place(n, k) : NULL;
		uint64_t bytes = to ? (k->left < TCP_PIECE ? k->left : TCP_PIECE) : k->room - k->have;
		ssize_t got = tcp_take(n, k, to ? to : k->buf + k->have, bytes);

		if (got < 0)
			return -1;
		progress |= got > 0;
		if (to) {
			k->left -= (uint64_t)got;
			if (!k->left)
				complete(k);
		} else {
			k->have += (uint32_t)got;
			if (use(n, k)) {
				tcp_end(n, k->c, EIO, "the peer sent bytes that are no put");
				return -1;
			}
		}
		if ((uint64_t)got < bytes)
			break;
	}
	tcp_acknowledge(n, k);
	return progress;
}

/*
 * Returns nonzero if no peer of this version would send that acknowledgement. A put may be acknowledged only
 * when all of it is sent: afterwards its source may change, and its place in the ring is overwritten. It may
 * be refused as soon as its frame is sent, because that ends the channel.
 */
static int acknowledged(struct tcp_channel *c, const struct tcp_ack *a)
{
	const struct tcp_frame *p = &c->ring[a->done & (c->base.t->options.depth - 1)].frame;
	uint64_t begun;
	int is_wrong;

	pthread_mutex_lock(&c->out_lock);
	begun = c->sent + (c->sent_bytes >= sizeof(struct tcp_frame));
	is_wrong = a->magic != TCP_ACK || a->done < c->done ||
		   a->done > (TCP_DEFECT(early_ack) ? begun : c->sent) || (a->refused && a->done >= begun);
	if (a->refused && !is_wrong)
		transport_fail(&c->base, EACCES, "put %llu: the peer refused bytes %llu..+%llu of %s",
			       (unsigned long long)a->done, (unsigned long long)p->offset,
			       (unsigned long long)p->bytes,
			       a->refused == TCP_REFUSED_KEY ? "no region: it has none with this key" :
			       "a smaller region");
	pthread_mutex_unlock(&c->out_lock);
	if (is_wrong)
		return -1;
	tcp_set(c, &c->done, a->done);
	return 0;
}

int tcp_acks(struct tcp *n, struct tcp_conn *k)
{
	ssize_t got = tcp_take(n, k, k->buf + k->have, k->room - k->have);
	struct tcp_ack a;

	if (got <= 0)
		return (int)got;
	k->have += (uint32_t)got;
	for (; k->have >= sizeof(a); k->have -= (uint32_t)sizeof(a)) {
		memcpy(&a, k->buf, sizeof(a));
		memmove(k->buf, k->buf + sizeof(a), k->have - sizeof(a));
		if (acknowledged(k->c, &a)) {
			tcp_end(n, k->c, EIO, "the peer acknowledged what was not sent");
			return -1;
		}
	}
	return 1;
}
