// SPDX-License-Identifier: Apache-2.0
/*
 * transport_nvlink_test.c - the conformance cases over peer memory: on one GPU with one or two processes,
 * and on two GPUs with two processes and payloads up to 1 GiB
 */
#include "conformance/harness.h"
#include "rdma/transport/transport_run.h"

static const struct setting nvlink = {
	.backend = "nvlink", .options = "gpu=0 memory=device", .gpus = 1,
};
static const struct setting nvlink_processes = {
	.backend = "nvlink", .options = "gpu=0 memory=device", .processes = 1, .gpus = 1,
};
static const struct setting nvlink_two = {
	.backend = "nvlink", .options = "gpu=0,1 memory=device big=1073741824", .processes = 1,
	.gpus = 2,
};
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
FAMILY(transport_nvlink, nvlink_units, 31, .waits = 1);
