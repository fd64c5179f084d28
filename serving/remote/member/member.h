/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member - how a worker of any role joins a lead and serves it
 *
 *   dial, handshake, JOIN    then, again and again, an epoch:
 *   ASSIGN --> the epoch prepares --> BLOB to the lead, BLOB of the lead --> it connects --> READY
 *          --> other messages go to the epoch, until the next ASSIGN
 *
 * This thread beats every 100 ms and never waits for an epoch, whose work has threads of its own, nor for the
 * end of one: it is destroyed in a thread of its own, too, and the next one is created when it is gone.
 *
 * Errors: -EPERM (the lead has refused this worker; the text says why), -EACCES (the lead has another secret,
 * or requires one), -ETIMEDOUT and -ECONNREFUSED (the lead cannot be reached), -ECONNRESET (it has ended
 * without a message), -EINVAL (an option, which the text names), those of channel.h and of the epoch.
 */
#ifndef CAIRN_REMOTE_MEMBER_H
#define CAIRN_REMOTE_MEMBER_H

#include "serving/remote/control/control.h"
#include "serving/remote/member/epoch_life.h"

struct cairn_member_options {
	const char *join;		/* the lead's HOST:PORT */
	const char *secret_file;	/* NULL: none, which only a lead on this machine allows */
	const char *transport;		/* name of a back end of transport.h; NULL: tcp */
	const char *address;		/* numeric, for tcp; NULL: that which reaches the lead */
	int32_t join_ms;		/* how long to try to reach the lead */
	int32_t rejoin_ms;		/* how long to try to reach the next one; 0: ends with the lead */
};

/* What a role does in an epoch. All calls but destroy return at once. */
struct cairn_epoch_ops {
	size_t blob_bytes;		/* of each end's blob */
	/* Returns an error for a share that this worker cannot or must not take. */
	int (*check)(void *ctx, const struct cairn_control_assign *a);
	/* rest: what follows *a in its message; address: numeric, for the transport */
	int (*create)(void *ctx, void **epoch, const struct cairn_control_assign *a, const void *rest,
		      const char *address);
	struct cairn_epoch_life *(*life)(void *epoch);
	int (*message)(void *epoch, const struct cairn_channel_message *m);	/* checked by control.h */
	/* Waits for its threads, and may be slow. Any thread may call it; NULL is legal. */
	void (*destroy)(void *epoch);
};

/*
 * Joins the lead as said, in role, config, weights and table, and serves it until it ends; then it joins the
 * next one at this address, if one listens in time. Returns 0 when there is none.
 */
int cairn_member_run(const struct cairn_member_options *o, const struct cairn_control_join *as,
		     const struct cairn_epoch_ops *ops, void *ctx);

#endif
