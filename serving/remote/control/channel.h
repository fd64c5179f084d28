/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel - an authenticated and encrypted connection between the lead and a member
 *
 * Both sides share a secret. They exchange ephemeral keys (X25519), and hash the result together with the
 * secret and with both hellos into one key for each direction. A process without the secret can therefore
 * neither read nor send messages, not even as a relay, and a secret that leaks later does not reveal old
 * connections. All later messages are frames of libsodium's secretstream (XChaCha20-Poly1305): a frame that
 * was changed, repeated, left out or moved ends the connection.
 *
 *   each side:  "cairnctl" | u32 version | u32 side | public key, 32 bytes
 *   then:       header of its stream, 24 bytes | frame with CONFIRM | frames ...
 *   frame:      u32 bytes of what follows | encrypted: u32 kind | data
 *
 * Numbers are little-endian. The length is authenticated with the frame. The last frame is marked, so that a
 * connection that was cut can be told from one that was closed.
 *
 * Without a secret, a channel is possible only if the peer is on this machine (a Unix socket, or a loopback
 * address); the connection is then encrypted, but the peer can be any process of this machine.
 *
 * Threads: one at a time for each channel.
 * Errors:  -EACCES (the peer has another secret, or none was given and the peer is elsewhere), -EINVAL (the
 *          peer breaks the protocol; a message larger than CAIRN_CHANNEL_MAX), -ETIMEDOUT, -ECONNRESET (the
 *          connection has ended), -EPROTONOSUPPORT (other version), -EOPNOTSUPP (no libsodium), -EIO,
 *          -ENOMEM. After any of these but -ETIMEDOUT of receive(), only close() is allowed.
 */
#ifndef CAIRN_CHANNEL_H
#define CAIRN_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_CHANNEL_MAX	((size_t)1 << 20)	/* bytes of data in a message */
#define CAIRN_SECRET_BYTES	32
/* A peer that acknowledges nothing for this time is gone. */
#define CAIRN_CHANNEL_VANISHED_MS	5000

enum cairn_channel_side { CAIRN_CHANNEL_LEAD, CAIRN_CHANNEL_MEMBER };

struct cairn_control_channel;

struct cairn_channel_message {
	uint32_t kind;
	const void *data;		/* 8-byte aligned; valid until the next call */
	size_t num_bytes;
};

/*
 * Reads a file of 16 to 4096 bytes that only its owner may access, and hashes it. -EACCES: others may access
 * it. -EINVAL: its size.
 */
int cairn_secret_load(uint8_t secret[CAIRN_SECRET_BYTES], const char *path);

/*
 * Opens a channel over a connected stream socket; takes the socket in any case. secret: NULL for none.
 * timeout_ms: for the whole handshake.
 */
int cairn_channel_open(struct cairn_control_channel **out, int fd, enum cairn_channel_side side,
		       const uint8_t *secret, int timeout_ms);
/* Tells the peer that no more follows, if that needs no waiting, and closes the socket. NULL is legal. */
void cairn_channel_close(struct cairn_control_channel *c);
/* Returns whether the peer has said that no more follows. */
int cairn_channel_was_closed(const struct cairn_control_channel *c);
/* For poll(): the socket is readable as long as a message is there. */
int cairn_channel_fd(const struct cairn_control_channel *c);
/* kind: 1 or larger. A message that could not be sent in time ends the channel. */
int cairn_channel_send(struct cairn_control_channel *c, uint32_t kind, const void *data, size_t num_bytes,
		       int timeout_ms);
/* timeout_ms 0: takes what is there. A message that has come in part is kept. */
int cairn_channel_receive(struct cairn_control_channel *c, struct cairn_channel_message *m, int timeout_ms);

#endif
