// SPDX-License-Identifier: Apache-2.0
/* transport_nccl_test.c - the conformance cases through ncclSend and ncclRecv, between two GPUs */
#include "conformance/harness.h"
#include "rdma/transport/transport_run.h"

static const struct setting processes = {
	.backend = "nccl", .options = "gpu=0,1 memory=device quick=1", .processes = 1, .gpus = 2,
};
#define C(name) static void name(struct cairn_test *t) { run(t, &processes, #name); }
CASES(C)
#undef C

static const struct cairn_unit nccl_units[] = {
#define C(name) { #name, name },
	CASES(C)
#undef C
};
FAMILY(transport_nccl, nccl_units, 0);
