/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_tcp - host memory of two processes over TCP; private to transport_tcp.c,
 * transport_tcp_net.c, transport_tcp_move.c and their tests
 *
 * A transport listens at one address. Each end of a channel dials the other, so a channel has two
 * connections: puts travel away from the dialler, acknowledgements come back. A connection opens with a hello
 * that presents the random token of the peer's channel, and a welcome that returns the channel's second
 * secret. Both secrets travel in the channel's address only. A reset makes new ones and closes both
 * connections, so nothing sent before it can arrive after it.
 *
 *   dialler    hello, then (frame, payload of frame.bytes)...
 *   listener   welcome, then ack...
 *
 * Numbers are in the host's byte order; an end of the other order is refused at the hello.
 */
#ifndef CAIRN_TRANSPORT_TCP_H
#define CAIRN_TRANSPORT_TCP_H

#include <sys/types.h>

#include "rdma/transport/transport_impl.h"

#define TCP_VERSION	1
#define TCP_HELLO	0x6f6c6c68u
#define TCP_WELCOME	0x636c6577u
#define TCP_PUT		0x74757074u
#define TCP_ACK		0x6b636174u
#define TCP_PIECE	(256u << 10)	/* bytes of a payload moved at a time */
#define TCP_ROOM	(16u << 10)	/* bytes of a receive buffer; longer payloads go past it */
#define TCP_SECRET	16u		/* bytes of a token */
#define TCP_HELLO_MS	2000u		/* a stranger is disconnected after this time */
#define TCP_STRANGERS	16		/* connections without a hello; more disconnect the oldest */
#define TCP_VANISHED_MS	5000		/* a host that answers nothing for this time is gone */

/* A test that compiles the sources again turns single checks off by name. */
#ifndef TCP_DEFECT
#define TCP_DEFECT(name)	0
#endif

struct tcp_address {		/* in a channel's blob */
	uint8_t ip[16];		/* IPv4: the first 4 bytes */
	uint16_t port, is_ipv6;
	uint32_t num_slots, version;
	uint64_t pid;
	uint8_t token[TCP_SECRET], reply[TCP_SECRET];
};

struct tcp_key {		/* in a region's blob */
	uint64_t key, bytes;	/* key: random */
};

struct tcp_greeting {		/* hello: the token; welcome: the reply */
	uint32_t magic, version;
	uint8_t secret[TCP_SECRET];
};

enum { TCP_ASK = 1 };		/* flag: acknowledge this put */

struct tcp_frame {
	uint32_t magic, flags, slot, unused;
	uint64_t index;		/* counts the puts of a connection from 0 */
	uint64_t key, offset, bytes, value, word;
};

struct tcp_ack {
	uint32_t magic;
	uint32_t refused;	/* TCP_REFUSED_*: put `done` was refused; nothing follows */
	uint64_t done;		/* number of puts that are visible */
};
enum { TCP_REFUSED_KEY = 1, TCP_REFUSED_BOUNDS };

enum tcp_kind { TCP_STRANGER, TCP_IN, TCP_OUT };

struct tcp_conn {
	struct tcp_conn *next;
	uint64_t id;			/* names it in epoll events; never reused */
	int fd;
	enum tcp_kind kind;
	struct tcp_channel *c;
	uint32_t events;		/* that epoll reports; TCP_OUT: changed under out_lock only */
	uint64_t deadline;		/* of a stranger's hello */
	/* bytes read and not yet used; a stranger has room for a hello, a TCP_OUT for a few acks */
	uint8_t *buf, small[64];
	uint32_t have, room;
	struct tcp_frame put;		/* whose payload arrives: `left` bytes are missing */
	uint64_t left;
	int refused;			/* TCP_REFUSED_*; further bytes are dropped */
	struct tcp_ack ack;		/* being sent, from byte ack_at */
	uint32_t ack_at;
	int ack_due;
};

struct tcp_put {
	struct tcp_frame frame;
	const uint8_t *from;
};

/* A signal that has come, but that a slower link would deliver later (transport_tcp_pace.c). */
struct tcp_paced {
	uint64_t due, value, word;
	uint32_t slot;
};

#define TCP_PACED	256	/* most that are kept */

struct tcp_channel {
	struct cairn_channel base;
	struct tcp_channel *next_of_all;
	uint8_t token[TCP_SECRET], reply[TCP_SECRET];
	struct cairn_signal *slots;	/* [num_slots], written by the network thread */
	struct tcp_conn *in, *out;	/* NULL until connected and after a failure */
	uint64_t arrived;		/* puts of the peer that are visible here */
	pthread_mutex_t out_lock;	/* protects out, ring, posted, sent, sent_bytes */
	struct tcp_put *ring;		/* [depth] */
	uint64_t posted, sent;		/* puts in the ring, puts given to the kernel */
	uint64_t sent_bytes;		/* of frame and payload of put `sent` */
	uint64_t done;			/* atomic: puts that the peer acknowledged */
	uint32_t sleepers;		/* atomic: threads in tcp_sleep() */
	/* with a pace: */
	pthread_mutex_t paced_lock;	/* protects what follows, and writes to slots */
	struct tcp_paced *paced;	/* [TCP_PACED], a ring */
	uint64_t paced_begin, paced_end;
	uint64_t carried;		/* time at which the link has carried all puts that have come */
};

struct tcp_region {
	struct cairn_region base;
	struct tcp_region *next_of_all;
	uint64_t key;
};

struct tcp {
	struct cairn_transport base;
	struct tcp_address here;	/* without the channel's members */
	int listener, epoll, wake;
	pthread_t thread;
	int has_thread;
	atomic_int stop;
	struct transport_work work;	/* protects the lists; the network thread holds it while it works */
	struct tcp_channel *channels;
	struct tcp_region *regions;
	struct tcp_conn *conns;
	uint64_t last_id;
	struct transport_pace pace;
};

/* transport_tcp_net.c */
int tcp_net_start(struct tcp *n);
void tcp_net_stop(struct tcp *n);
int tcp_random(void *p, size_t bytes);
void tcp_tune(int fd);
/* The caller has stopped the thread. conn_add takes over the descriptor on success only. */
int tcp_conn_add(struct tcp *n, int fd, enum tcp_kind kind, struct tcp_channel *c, struct tcp_conn **k);
void tcp_conn_cut(struct tcp *n, struct tcp_conn *k);
void tcp_watch(struct tcp *n, struct tcp_conn *k, uint32_t events);
/* Ends a channel: closes both connections, so that the peer sees it too. */
void tcp_end(struct tcp *n, struct tcp_channel *c, int err, const char *text);
/* Receives up to `bytes`. Returns what arrived, 0 if nothing is there now, -1 if the connection is gone. */
ssize_t tcp_take(struct tcp *n, struct tcp_conn *k, void *to, size_t bytes);
/* Stores the word and wakes the threads that sleep on it. */
void tcp_set(struct tcp_channel *c, uint64_t *word, uint64_t value);
/* Sleeps while *word is `have`, at most until the deadline and at most 2 ms, so that errors are seen. */
void tcp_sleep(struct tcp_channel *c, const uint64_t *word, uint64_t have, uint64_t deadline);

/* transport_tcp_pace.c */
void tcp_pace_keep(struct tcp_channel *c, const struct tcp_frame *f);	/* keeps the signal until it is due */
/* Shows the signals that are due. Returns when the next one is; UINT64_MAX: there is none. */
uint64_t tcp_pace_show(struct tcp_channel *c);

/* transport_tcp_move.c */
/* Receive on a TCP_IN and a TCP_OUT: 1 if there were bytes, 0 if there were none, -1 if it is gone. */
int tcp_frames(struct tcp *n, struct tcp_conn *k);
int tcp_acks(struct tcp *n, struct tcp_conn *k);
/* Sends the newest acknowledgement. One that does not fit is finished when the socket has room. */
void tcp_acknowledge(struct tcp *n, struct tcp_conn *k);
/* Sends from the ring what the socket takes, at most about `budget` bytes; the network thread sends the rest.
 * The caller holds out_lock. */
void tcp_push(struct tcp_channel *c, uint64_t budget);

#endif
