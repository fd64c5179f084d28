// SPDX-License-Identifier: Apache-2.0
/* transport_verbs_test.c - the conformance cases on libibverbs and libmlx5 over the NIC model: in two
 * processes, in one, under the model's adversary, and with kernels that put through the queue */
#include "conformance/harness.h"
#include "rdma/transport/transport_run.h"

static const struct setting verbs = { .backend = "verbs", .options = "quick=1", .model = 1 };
static const struct setting verbs_processes = {
	.backend = "verbs", .options = "", .model = 1, .processes = 1,
};
static const struct setting verbs_troubled = {
	.backend = "verbs", .options = "quick=1",
	.adversary = "fetch_us=50,completion_us=50,pieces=8,piece_us=5,drop=20", .model = 1,
	.processes = 1,
};
static const struct setting verbs_gpu = {
	.backend = "verbs", .options = "gpu=0", .model = 1, .gpus = 1,
};
#define C(name) static void verbs_##name(struct cairn_test *t) { run(t, &verbs, #name); }
CASES(C)
#undef C
#define C(name) static void verbs_processes_##name(struct cairn_test *t) { run(t, &verbs_processes, #name); }
CASES(C)
#undef C
#define C(name) static void verbs_troubled_##name(struct cairn_test *t) { run(t, &verbs_troubled, #name); }
ORDER_CASES(C)
#undef C
#define C(name) static void verbs_gpu_##name(struct cairn_test *t) { run(t, &verbs_gpu, #name); }
DEVICE_CASES(C)
#undef C

static const struct cairn_unit verbs_units[] = {
#define C(name) { "one_process_" #name, verbs_##name },
	CASES(C)
#undef C
#define C(name) { #name, verbs_processes_##name },
	CASES(C)
#undef C
#define C(name) { "troubled_" #name, verbs_troubled_##name },
	ORDER_CASES(C)
#undef C
#define C(name) { #name, verbs_gpu_##name },
	DEVICE_CASES(C)
#undef C
};
FAMILY(transport_verbs, verbs_units, 21);
