/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_detour - a relay between an end and the address that it dials over tcp
 *
 * The relay passes on the bytes of one connection, in both directions, in pieces of 1 byte to 64 KiB with
 * pauses between some, so that messages are split everywhere. It can also hold back or cut the connection.
 */
#ifndef CAIRN_TRANSPORT_DETOUR_H
#define CAIRN_TRANSPORT_DETOUR_H

#include "rdma/transport_cases/transport_end.h"

enum detour_kind {
	DETOUR_SPLIT,
	DETOUR_HOLD,		/* waits `number` ms with the first bytes after the hello */
	DETOUR_CUT,		/* closes both sides after `number` bytes of the dialler */
};

/* Starts a relay and puts its address in the place of the peer's. */
int detour(struct end *e, struct cairn_blob *address, enum detour_kind kind, uint64_t number);
/* Waits until all relays have passed on what they hold; each ends once one of its two sides is closed. */
void detour_end(struct end *e);
/* A socket that listens on loopback; its port replaces the one in the address. */
int detour_listen(struct cairn_blob *address);
/* Dials the address in a blob. */
int detour_dial(const struct cairn_blob *address);

#endif
