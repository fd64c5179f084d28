/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_worker - an attention worker: holds the keys and values of its heads, and attends
 *
 *   main thread      the channel to the lead: beats every 100 ms, plans into a queue, a new epoch
 *   epoch's thread   takes a plan, copies its pages; for each layer: Q in, attention, O out, K and V in,
 *                    append
 *
 * An epoch begins with ASSIGN: the worker drops what it held, takes memory for its share, opens a transport
 * and exchanges addresses. The model worker's end of the transport and the lead are in one process, rank 0.
 *
 * Errors of cairn_attn_worker_run(): -EPERM (the lead has refused this worker; the text says why),
 * -ECONNRESET (the lead has ended without a message), those of member.h, of the table and of the transport.
 */
#ifndef CAIRN_REMOTE_ATTN_WORKER_H
#define CAIRN_REMOTE_ATTN_WORKER_H

#include "serving/remote/attention/share.h"
#include "serving/remote/member/member.h"

struct cairn_attn_worker_options {
	struct cairn_member_options member;
	const struct cairn_impl *impl;	/* started; a device's table needs the transport nvlink */
	const struct cairn_model_config *config;	/* refuses a lead with another one; NULL: takes any */
	int64_t max_bytes;		/* of keys and values; a larger share is refused; 0: no limit */
};

/* Joins the lead and serves it until it ends, which is no error. */
int cairn_attn_worker_run(const struct cairn_attn_worker_options *options);

#endif
