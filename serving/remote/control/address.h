/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address - "HOST:PORT" with a numeric host, as in 10.0.0.1:7100 or [::1]:7100
 *
 * Names are not looked up: a resolver may take minutes, and may answer with another machine.
 * Errors: -EINVAL (no such text), -EADDRINUSE and other errors of the socket; the text names the address.
 */
#ifndef CAIRN_REMOTE_ADDRESS_H
#define CAIRN_REMOTE_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

union cairn_address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

int cairn_address_parse(union cairn_address *out, const char *text);
int cairn_address_is_loopback(const union cairn_address *a);
/* Port 0 takes any free one; *port is the one taken. The socket does not block. */
int cairn_address_listen(int *fd, int *port, const char *text);
/* Connects once, within timeout_ms. -ECONNREFUSED: nothing listens there. */
int cairn_address_dial(int *fd, const char *text, int timeout_ms);
/* Writes the numeric host of this end of a connection. */
int cairn_address_own(int fd, char *host, size_t len);

#endif
