/* SPDX-License-Identifier: Apache-2.0 */
/* model_blob - the addresses that the lead and a model worker of its own process exchange */
#ifndef CAIRN_MODEL_BLOB_H
#define CAIRN_MODEL_BLOB_H

#include "rdma/transport/transport.h"
#include "serving/remote/control/control.h"

struct cairn_model_blob {
	struct {
		struct cairn_blob channel;	/* to the attention worker, or of it */
		struct cairn_blob q;		/* of the model worker: its buffer for results */
		struct cairn_blob kv;		/* of the model worker: all 0 */
	} of[CAIRN_CONTROL_PEERS];		/* each attention worker */
	struct cairn_blob channel;		/* between the two */
	struct cairn_blob result;		/* of the lead: its buffer for what is drawn */
};

_Static_assert(sizeof(struct cairn_model_blob) <= CAIRN_CONTROL_BLOB_BYTES, "a blob fits its message");

#endif
