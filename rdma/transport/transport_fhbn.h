/* SPDX-License-Identifier: Apache-2.0 */
/* transport_fhbn - what a kernel needs to post by itself; cairn_device_channel.poster points to it */
#ifndef CAIRN_TRANSPORT_FHBN_H
#define CAIRN_TRANSPORT_FHBN_H

#include "rdma/fhbn/fhbn.h"

struct transport_fhbn_poster {
	struct cairn_fhbn_qp qp;
	uint64_t slots;			/* the peer's address of its slots */
	uint32_t slots_rkey, unused;
};

#endif
