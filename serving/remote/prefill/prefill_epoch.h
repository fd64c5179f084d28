/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill_epoch - what a prefill worker does between two assignments; private to the worker and its tests
 *
 *   create     starts the computing thread (epoch_life.h), which takes memory and opens the transport:
 *              PREPARED; with the lead's blob it connects: CONNECTED; a second thread sends
 *   message    PROMPT queues a job, LEASE prolongs it, DROP ends it
 *   destroy    stops the threads if need be, waits for their end and frees everything
 *
 *   computing   chunk 0: layer 0, 1, ..  | chunk 1: layer 0, 1, ..   | next job
 *   sending              run, run, ..      (as the lead gives credits) .. end of the job
 *
 * Runs are sent from host memory. If the table's memory is a device's, the computing thread copies each
 * layer to host memory, in the order of the stream, before it tells the sending thread of it; that thread
 * makes no call of the table.
 *
 * In a group, the ranks compute a job in passes of many chunks, and each marks its layers of a chunk as they
 * are computed (prefill_group.h).
 *
 * A job has its own part of the cache from its PROMPT until its runs have arrived, so that nothing that a put
 * reads is overwritten. Each job ends by one run without pages, also if it was dropped, its lease has ended
 * or it could not be computed.
 */
#ifndef CAIRN_PREFILL_EPOCH_H
#define CAIRN_PREFILL_EPOCH_H

#include "serving/model/model.h"
#include "serving/remote/member/member.h"
#include "serving/remote/pull/run.h"

#define CAIRN_PREFILL_GROUP_MS		1	/* between two looks at what other processes have computed */
#define CAIRN_PREFILL_LOOK_MS		20	/* between two looks at whether to stop */
#define CAIRN_PREFILL_CONNECT_MS	10000

struct cairn_prefill_epoch;
struct cairn_prefill_group;

/*
 * Model, group and name of the transport must outlive it. group: whose rank 0 this is, the model being its
 * stage; NULL: none. assign: a checked message that suits the (whole) model
 */
int cairn_prefill_epoch_create(struct cairn_prefill_epoch **out, struct cairn_model *model,
			       struct cairn_prefill_group *group, const struct cairn_control_assign *assign,
			       const char *transport, const char *address);
struct cairn_epoch_life *cairn_prefill_epoch_life(struct cairn_prefill_epoch *e);
int cairn_prefill_epoch_message(struct cairn_prefill_epoch *e, const struct cairn_channel_message *m);
void cairn_prefill_epoch_destroy(struct cairn_prefill_epoch *e);	/* NULL is legal */

#endif
