// SPDX-License-Identifier: Apache-2.0
/* transport_fhbn_test.c - the conformance cases on work requests posted by Cairn: by a CPU over libmlx5 on
 * the NIC model, in two processes and in one, and on bare rings; and by kernels on both */
#include "conformance/harness.h"
#include "rdma/transport/transport_run.h"

static const struct setting verbs = { .backend = "fhbn", .options = "", .model = 1, .processes = 1 };
static const struct setting troubled = {
	.backend = "fhbn", .options = "quick=1",
	.adversary = "fetch_us=50,completion_us=50,pieces=8,piece_us=5,drop=20", .model = 1,
	.processes = 1,
};
static const struct setting bare = { .backend = "fhbn", .options = "device=bare quick=1" };
static const struct setting verbs_gpu = { .backend = "fhbn", .options = "gpu=0", .model = 1, .gpus = 1 };
static const struct setting bare_gpu = { .backend = "fhbn", .options = "device=bare gpu=0", .gpus = 1 };
static const struct setting bare_gpu_memory = {
	.backend = "fhbn", .options = "device=bare gpu=0 memory=device quick=1", .gpus = 1,
};
#define C(name) static void verbs_##name(struct cairn_test *t) { run(t, &verbs, #name); }
CASES(C)
#undef C
#define C(name) static void troubled_##name(struct cairn_test *t) { run(t, &troubled, #name); }
ORDER_CASES(C)
#undef C
#define C(name) static void bare_##name(struct cairn_test *t) { run(t, &bare, #name); }
CASES(C)
#undef C
#define C(name) static void verbs_gpu_##name(struct cairn_test *t) { run(t, &verbs_gpu, #name); }
DEVICE_CASES(C)
#undef C
#define C(name) static void bare_gpu_##name(struct cairn_test *t) { run(t, &bare_gpu, #name); }
DEVICE_CASES(C)
#undef C
#define C(name) static void bare_gpu_memory_##name(struct cairn_test *t) { run(t, &bare_gpu_memory, #name); }
DEVICE_CASES(C)
#undef C

static const struct cairn_unit fhbn_units[] = {
#define C(name) { #name, verbs_##name },
	CASES(C)
#undef C
#define C(name) { "troubled_" #name, troubled_##name },
	ORDER_CASES(C)
#undef C
#define C(name) { "bare_" #name, bare_##name },
	CASES(C)
#undef C
#define C(name) { #name, verbs_gpu_##name },
	DEVICE_CASES(C)
#undef C
#define C(name) { "bare_" #name, bare_gpu_##name },
	DEVICE_CASES(C)
#undef C
#define C(name) { "gpu_memory_" #name, bare_gpu_memory_##name },
	DEVICE_CASES(C)
#undef C
};
FAMILY(transport_fhbn, fhbn_units, 50, .waits = 1);
