/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zeromq - the functions of libzmq that KV events need, looked up at run time
 *
 * The prototypes and numbers are those of libzmq 4.3, whose ABI is libzmq.so.5. Without the library,
 * zeromq_load() returns -EOPNOTSUPP.
 */
#ifndef CAIRN_ZEROMQ_H
#define CAIRN_ZEROMQ_H

#include <stddef.h>

enum { ZEROMQ_PUB = 1, ZEROMQ_SUB = 2, ZEROMQ_REQ = 3, ZEROMQ_DEALER = 5, ZEROMQ_ROUTER = 6 };
enum {
	ZEROMQ_SUBSCRIBE = 6, ZEROMQ_RCVMORE = 13, ZEROMQ_LINGER = 17, ZEROMQ_MAXMSGSIZE = 22,
	ZEROMQ_SNDHWM = 23, ZEROMQ_RCVHWM = 24, ZEROMQ_RCVTIMEO = 27, ZEROMQ_LAST_ENDPOINT = 32,
	ZEROMQ_IPV6 = 42,
};
enum { ZEROMQ_DONTWAIT = 1, ZEROMQ_SNDMORE = 2, ZEROMQ_POLLIN = 1 };

struct zeromq_msg {		/* zmq_msg_t */
	_Alignas(void *) unsigned char bytes[64];
};
struct zeromq_pollitem {	/* zmq_pollitem_t */
	void *socket;
	int fd;
	short events, revents;
};

#define ZEROMQ_FUNCTIONS(F)										\
	F(void *, zmq_ctx_new, (void))									\
	F(int, zmq_ctx_term, (void *ctx))								\
	F(void *, zmq_socket, (void *ctx, int type))							\
	F(int, zmq_close, (void *socket))								\
	F(int, zmq_setsockopt, (void *socket, int option, const void *value, size_t len))		\
	F(int, zmq_getsockopt, (void *socket, int option, void *value, size_t *len))			\
	F(int, zmq_bind, (void *socket, const char *endpoint))						\
	F(int, zmq_connect, (void *socket, const char *endpoint))					\
	F(int, zmq_send, (void *socket, const void *data, size_t len, int flags))			\
	F(int, zmq_recv, (void *socket, void *data, size_t len, int flags))				\
	F(int, zmq_msg_init_data, (struct zeromq_msg *msg, void *data, size_t len,			\
		void (*release)(void *data, void *hint), void *hint))					\
	F(int, zmq_msg_send, (struct zeromq_msg *msg, void *socket, int flags))				\
	F(int, zmq_msg_close, (struct zeromq_msg *msg))							\
	F(int, zmq_poll, (struct zeromq_pollitem *items, int num, long timeout_ms))			\
	F(int, zmq_errno, (void))									\
	F(const char *, zmq_strerror, (int error))

struct zeromq {
#define F(type, name, args)	type (*name) args;
	ZEROMQ_FUNCTIONS(F)
#undef F
};

/* Loads the library once. -EOPNOTSUPP: it is not there, or lacks a function. */
int zeromq_load(const struct zeromq **out);

#endif
