/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_drive - kernels that post through given queues and report the result; for tests and measurements
 *
 * Each function launches one kernel, waits for its end and returns 0, or -errno with a text. The memory
 * between which data moves has two addresses, the card's and the GPU's.
 */
#ifndef CAIRN_FHBN_DRIVE_H
#define CAIRN_FHBN_DRIVE_H

#include "rdma/fhbn/fhbn.h"

struct fhbn_memory {
	uint64_t from, to, flags;		/* addresses as the card uses them */
	uint8_t *gpu_from, *gpu_to;
	uint64_t *gpu_flags;
	uint32_t from_lkey, to_rkey, flags_rkey;
};

/* Each poster is a warp with its own part of the memory; it uses queue number poster % num_queues. */
struct fhbn_drive {
	const struct cairn_fhbn_qp *queues;	/* [num_queues], host */
	int num_queues, num_posters, warps_per_block, count;
	/* every `window` puts, a poster waits for the sequence number and checks its payload */
	int window;
	uint32_t bytes;			/* upper bound of a payload */
	struct fhbn_memory memory;	/* num_posters * window * bytes each; flags: 64 bytes per poster */
	uint64_t timeout_ns;
};

struct fhbn_drive_result {
	int ret, torn;
	uint64_t posted;
	struct cairn_fhbn_fault fault;	/* of the wait for a sequence number */
};

/* Returns byte i of the payload that belongs to a sequence number. */
CAIRN_WQE_FN uint8_t fhbn_pattern(uint64_t sequence, uint32_t i)
{
	return (uint8_t)(sequence * 31 + i * 7 + (i >> 8));
}

CAIRN_WQE_FN uint32_t fhbn_pattern_bytes(uint64_t sequence, uint32_t most)
{
	return sequence % 5 ? (uint32_t)(sequence * 97 % (most + 1)) : most;
}

#ifdef __cplusplus
extern "C" {
#endif

int fhbn_drive(const struct fhbn_drive *d, struct fhbn_drive_result *results);

/* One thread posts the requests; batch[k] requests are posted together in batch k. */
int fhbn_drive_list(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *r, const uint32_t *batch,
		    int num_batches);

/*
 * Runs NVIDIA's own device code (GPUNetIO, from NCCL's headers), which puts a payload and then, inline, its
 * number, `count` times.
 */
int fhbn_drive_gpunetio(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, uint32_t bytes, int count,
			struct fhbn_drive_result *result);

/* ---- costs ---- */

enum { FHBN_STEPS = 4 };		/* build and store, fence, record and fence, doorbell */

/*
 * Times num posts of 64 bytes and a sequence number, each on an idle queue. cycles: SM cycles from the
 * payload's stores to the doorbell's store. steps: the same post timed in parts, [num][FHBN_STEPS]; NULL:
 * not measured. mode must be 0 or SYS, each alone or with BLUEFLAME or SHARED. mhz: average SM clock
 * during the run.
 */
int fhbn_cost(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, int num, int64_t *cycles,
	      int64_t *steps, double *mhz);
int fhbn_cost_gpunetio(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, int num, int64_t *cycles,
		       double *mhz);

/*
 * Runs a ping-pong through two connected queues with rings in host memory: a CTA posts a payload of `bytes`
 * bytes and the number; the other CTA polls the number, reads the payload and sends the same amount back.
 * cycles: of each round trip; wrong: number of corrupted payloads.
 */
int fhbn_pingpong(const struct cairn_fhbn_qp q[2], const struct fhbn_memory m[2], uint32_t bytes,
		  int rounds, int64_t *cycles, double *mhz, int *wrong);

/* The same ping-pong on the conventional path: a kernel ends, a CPU posts, the other end's CPU polls and
 * launches the next kernel. */
int fhbn_pingpong_host(const struct cairn_fhbn_qp q[2], const struct fhbn_memory m[2], uint64_t *flags[2],
		       uint32_t bytes, int rounds, double *ns, int *wrong);

/*
 * A kernel polls *gpu_flag and writes each new number to *gpu_answer. ask(arg, k) is the CPU's part of round
 * k; it returns 0 on success. Returns the kernel's own result.
 */
int fhbn_echo(const uint64_t *gpu_flag, uint64_t *gpu_answer, int rounds, uint64_t timeout_ns,
	      int (*ask)(void *arg, uint64_t k), void *arg);

#ifdef __cplusplus
}
#endif
#endif
