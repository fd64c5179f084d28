/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_worker - a further model worker: a process that computes the passes of one lane for a lead elsewhere
 *
 * It has the lead's model, all weights of it, and no cache: keys and values are at the attention workers,
 * which are those of the lead, too. See README.md of serving/remote.
 *
 * Errors: those of member.h; -EOPNOTSUPP (the table has no host memory, or no operation list for the model).
 */
#ifndef CAIRN_MODEL_WORKER_H
#define CAIRN_MODEL_WORKER_H

#include "serving/model/model.h"
#include "serving/remote/member/member.h"

struct cairn_model_worker_options {
	struct cairn_member_options member;
	struct cairn_model *model;
	uint64_t weights;		/* their digest (model_digest.h) */
};

/* Joins the lead and serves it until it ends. Returns 0 then. */
int cairn_model_worker_run(const struct cairn_model_worker_options *o);

#endif
