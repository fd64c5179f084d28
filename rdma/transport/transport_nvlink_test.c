// SPDX-License-Identifier: Apache-2.0
/*
 * transport_nvlink_test.c - the conformance cases over peer memory: two processes or one on one GPU, two
 * processes on two; payloads up to 1 GB between the two
 */
#include "conformance/harness.h"
#include "rdma/transport/transport_run.h"

static const struct setting nvlink = { "nvlink", "gpu=0 memory=device", NULL, 0, 0, 1 };
static const struct setting nvlink_processes = { "nvlink", "gpu=0 memory=device", NULL, 0, 1, 1 };
static const struct setting nvlink_two = { "nvlink", "gpu=0,1 memory=device big=1073741824", NULL, 0, 1, 2 };
#define C(name) static void nvlink_##name(struct cairn_test *t) { run(t, &nvlink, #name); }
CASES(C) DEVICE_CASES(C)
#undef C
#define C(name) static void processes_##name(struct cairn_test *t) { run(t, &nvlink_processes, #name); }
CASES(C) DEVICE_CASES(C)
#undef C
#define C(name) static void nvlink_two_##name(struct cairn_test *t) { run(t, &nvlink_two, #name); }
CASES(C) DEVICE_CASES(C)
#undef C

static const struct cairn_unit nvlink_units[] = {
#define C(name) { "one_process_" #name, nvlink_##name },
	CASES(C) DEVICE_CASES(C)
#undef C
#define C(name) { #name, processes_##name },
	CASES(C) DEVICE_CASES(C)
#undef C
#define C(name) { "two_gpus_" #name, nvlink_two_##name },
	CASES(C) DEVICE_CASES(C)
#undef C
};
FAMILY(transport_nvlink, nvlink_units);
