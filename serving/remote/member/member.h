/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member - how a worker of any role joins a lead: it dials, shakes hands, says JOIN, and beats
 *
 * The caller then serves the channel: it receives messages, and calls cairn_member_beat() at least every
 * CAIRN_MEMBER_LOOK_MS.
 *
 * Threads: one at a time for each member.
 * Errors: -EACCES (the lead has another secret, or requires one), -ETIMEDOUT and -ECONNREFUSED (the lead
 * cannot be reached), -EINVAL (an option, which the text names), those of channel.h.
 */
#ifndef CAIRN_REMOTE_MEMBER_H
#define CAIRN_REMOTE_MEMBER_H

#include "serving/remote/control/control.h"

#define CAIRN_MEMBER_LOOK_MS	50
#define CAIRN_MEMBER_SEND_MS	1000

struct cairn_member_options {
	const char *join;		/* the lead's HOST:PORT */
	const char *secret_file;	/* NULL: none, which only a lead on this machine allows */
	const char *address;		/* numeric, for the transport; NULL: that which reaches the lead */
	int32_t join_ms;		/* how long to try to reach the lead */
};

struct cairn_member {
	struct cairn_control_channel *c;
	char address[64];		/* numeric, for the transport */
	int64_t beat_ns;		/* when the next beat is due */
};

/*
 * Joins, and fills in all of JOIN but role, config, weights and table. The lead's answer comes later, as the
 * first message: ASSIGN or REFUSE.
 */
int cairn_member_join(struct cairn_member *m, const struct cairn_member_options *o,
		      const struct cairn_control_join *as);
/* Sends BEAT if it is due. passes: completed */
int cairn_member_beat(struct cairn_member *m, uint64_t passes);
/* Returns -EPERM with the lead's reason for a REFUSE, else 0. */
int cairn_member_check_refusal(const struct cairn_channel_message *m);
/*
 * Leaves the lead for the reason `ret` and the last error: tells it unless it has ended or has refused this
 * member. Returns ret, or 0 if the lead has ended in the regular way.
 */
int cairn_member_leave(struct cairn_member *m, int ret);

#endif
