/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_epoch - what a model worker does between two assignments; private to the worker and its tests
 *
 *   create    starts the epoch's thread (epoch_life.h), which makes a worker (engine/worker/worker.h) for its
 *             lane, whose passes attend at the attention workers, and opens the transport: PREPARED; with
 *             the lead's blob it connects to all of them: CONNECTED
 *   run       queues a pass, which the thread reads, computes and draws; its result is put to the lead.
 *             There is one at a time, because a lane has one pass at a time.
 *   destroy   stops the thread if need be, waits for its end and frees everything
 *
 * A model worker keeps nothing between two passes. So its loss loses only the passes under way.
 */
#ifndef CAIRN_MODEL_EPOCH_H
#define CAIRN_MODEL_EPOCH_H

#include "serving/model/model.h"
#include "serving/remote/member/member.h"

struct cairn_model_epoch;

/* The model must outlive it. assign: a checked message that suits the model */
int cairn_model_epoch_create(struct cairn_model_epoch **out, struct cairn_model *model,
			     const struct cairn_control_assign *assign, const char *address);
struct cairn_epoch_life *cairn_model_epoch_life(struct cairn_model_epoch *e);
int cairn_model_epoch_run(struct cairn_model_epoch *e, const struct cairn_control_run *head,
			  const void *bytes);
void cairn_model_epoch_destroy(struct cairn_model_epoch *e);	/* NULL is legal */

#endif
