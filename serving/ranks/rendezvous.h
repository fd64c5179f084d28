/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous - how the ranks of processes that a launcher has started find rank 0
 *
 * A node is one started program. It has ranks / nodes ranks, which it forks; node 0 has rank 0. Every rank of
 * another node connects to the address on which rank 0 listens, over a channel that is authenticated by a
 * shared secret (serving/remote/control/channel.h), and sends a message of fixed size, struct cairn_join. If
 * rank 0 refuses the rank, its answer says why; a rank that knows the secret but does not match ends the
 * rendezvous.
 * Rank 0 closes the port when all ranks have joined. From then on the channels carry the same messages as the
 * sockets within a node.
 *
 * A stranger, which does not know the secret, can only make rank 0 wait HANDSHAKE_MS for each connection; the
 * time-out of the rendezvous bounds this. The error then gives the last reason why a peer was refused.
 *
 * Errors: -EINVAL (the text names the option or the variable, or a rank that disagrees with rank 0), -EACCES
 * (another secret, or none), -ETIMEDOUT (a peer did not come), -EADDRINUSE, -EIO, -ENOMEM.
 */
#ifndef CAIRN_RENDEZVOUS_H
#define CAIRN_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

#include "serving/remote/control/channel.h"

#define CAIRN_JOIN_VERSION	1u

struct cairn_rendezvous {
	const char *address;		/* HOST:PORT, [HOST]:PORT; ":PORT" with LeaderWorkerSet; NULL: none */
	const char *key_file;		/* NULL: none; then all nodes must be on this machine */
	int32_t nodes, node;		/* 0 <= node < nodes; nodes 0: not given */
	int32_t timeout_ms;		/* for all ranks to come */
};

/* The message in which a rank describes itself. */
struct cairn_join {
	uint32_t version;
	int32_t rank, ranks, nodes;
	char build[32];			/* digest of the sources */
};

/*
 * Takes nodes and node from the variables of Open MPI, PMI, PMIx, Slurm or LeaderWorkerSet, in this order, if
 * they are not given. get: getenv(), or a test's.
 */
int cairn_rendezvous_from_env(struct cairn_rendezvous *r, char *(*get)(const char *name));

/* Checks what has come over a channel against what rank 0 says of itself. *rank: who it is. */
int cairn_join_check(const struct cairn_channel_message *m, const struct cairn_join *mine, int32_t *rank);

/*
 * In rank 0: waits for ranks first .. mine->ranks - 1; channels[r] of each. In another rank: connects to rank
 * 0 as mine->rank. Both take at most timeout_ms.
 */
int cairn_rendezvous_accept(const struct cairn_rendezvous *r, const struct cairn_join *mine, int32_t first,
			    struct cairn_control_channel **channels);
int cairn_rendezvous_connect(const struct cairn_rendezvous *r, const struct cairn_join *mine,
			     struct cairn_control_channel **channel);

#endif
