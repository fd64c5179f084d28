/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_drive - kernels that post through queues they are given, and what they report; for tests and measures
 *
 * Functions launch one kernel, wait for its end and return 0, or -errno with a text. Memory that is moved has
 * two addresses: the card's, and the GPU's.
 */
#ifndef CAIRN_FHBN_DRIVE_H
#define CAIRN_FHBN_DRIVE_H

#include "rdma/fhbn/fhbn.h"

struct fhbn_memory {
	uint64_t from, to, flags;		/* as the card knows them */
	uint8_t *gpu_from, *gpu_to;
	uint64_t *gpu_flags;
	uint32_t from_lkey, to_rkey, flags_rkey;
};

/* Posters are warps; each has places of its own and queue number poster % num_queues. */
struct fhbn_drive {
	const struct cairn_fhbn_qp *queues;	/* [num_queues], host */
	int num_queues, num_posters, warps_per_block, count;
	int window;			/* the number is awaited, its payload checked, every so many */
	uint32_t bytes;			/* of a payload, at most */
	struct fhbn_memory memory;	/* num_posters * window * bytes each; flags: 64 bytes a poster */
	uint64_t timeout_ns;
};

struct fhbn_drive_result {
	int ret, torn;
	uint64_t posted;
	struct cairn_fhbn_fault fault;	/* of waiting for a sequence number */
};

/* What is sent: byte i of the payload that goes with a sequence number */
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

/* One thread posts these requests, the k-th batch[k] of them together. */
int fhbn_drive_list(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *r, const uint32_t *batch,
		    int num_batches);

/* NVIDIA's own device code (GPUNetIO, from NCCL's headers): put and inline put of the number, count times. */
int fhbn_drive_gpunetio(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, uint32_t bytes, int count,
			struct fhbn_drive_result *result);

/* ---- costs ---- */

enum { FHBN_STEPS = 4 };		/* form and store, fence, record and fence, register */

/*
 * num posts of 64 bytes and a sequence number, each on an idle queue: cycles of the SM from the payload's
 * stores to the register's. steps: the same post taken apart, [num][FHBN_STEPS]; NULL: not wanted. mode must
 * be one of 0, SYS, each alone or with BLUEFLAME or SHARED. mhz: of the SM's clock meanwhile.
 */
int fhbn_cost(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, int num, int64_t *cycles,
	      int64_t *steps, double *mhz);
int fhbn_cost_gpunetio(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, int num, int64_t *cycles,
		       double *mhz);

/*
 * Ping-pong through two connected queues, rings in host memory: a CTA posts a payload of so many bytes and
 * the number, the other polls the number, reads the payload and sends as much back. cycles: of each round
 * trip; wrong: payloads not as sent.
 */
int fhbn_pingpong(const struct cairn_fhbn_qp q[2], const struct fhbn_memory m[2], uint32_t bytes,
		  int rounds, int64_t *cycles, double *mhz, int *wrong);

/* The same by the conventional way: kernel, synchronise, a CPU posts, a CPU polls, launches a kernel. */
int fhbn_pingpong_host(const struct cairn_fhbn_qp q[2], const struct fhbn_memory m[2], uint64_t *flags[2],
		       uint32_t bytes, int rounds, double *ns, int *wrong);

/*
 * A kernel polls *gpu_flag and answers each new number in *gpu_answer. ask(arg, k): the CPU's part of round
 * k, called until all rounds are done; returns 0. *ret: the kernel's own result.
 */
int fhbn_echo(const uint64_t *gpu_flag, uint64_t *gpu_answer, int rounds, uint64_t timeout_ns,
	      int (*ask)(void *arg, uint64_t k), void *arg);

#ifdef __cplusplus
}
#endif
#endif
