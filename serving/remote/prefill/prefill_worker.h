/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill_worker - a prefill worker: computes the keys and values of prompts, and sends them to the lead
 *
 * It has the whole model, and a cache of its own for CAIRN_PULL_JOBS prompts at a time. It keeps nothing of a
 * prompt that has been sent. The lead computes the row of the prompt's last token, which gives the first
 * token of the answer: so sampling, masks and penalties stay in one place.
 *
 * With a group it has the first layers, and other processes the others (prefill_group.h).
 *
 *   main thread      the channel to the lead: beats every 100 ms, prompts into a queue, leases, a new epoch
 *   epoch's threads  one computes, one sends (prefill_epoch.h)
 *
 * Errors of cairn_prefill_worker_run(): those of member.h, of the table and of the transport.
 */
#ifndef CAIRN_PREFILL_WORKER_H
#define CAIRN_PREFILL_WORKER_H

#include "serving/model/model.h"
#include "serving/remote/member/member.h"

struct cairn_prefill_worker_options {
	struct cairn_member_options member;
	struct cairn_model *model;	/* in host memory or a device's (prefill_epoch.h) */
	struct cairn_prefill_group *group;	/* whose rank 0 this is, with a stage as model; or NULL */
	uint64_t weights;		/* digest of all */
	int64_t max_bytes;		/* of keys and values; refuses a lead that wants more; 0: no limit */
};

/* Joins the lead and serves it until it ends, which is no error. */
int cairn_prefill_worker_run(const struct cairn_prefill_worker_options *options);

#endif
