/* SPDX-License-Identifier: Apache-2.0 */
/* transport_bench - kernels and comparisons of `cairn bench rdma.transport`; each run checks what it times */
#ifndef CAIRN_TRANSPORT_BENCH_H
#define CAIRN_TRANSPORT_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "rdma/transport/transport.h"

#define BENCH_SAMPLES	64

enum bench_way {
	BENCH_FLAG,		/* ping-pong of a bare 8-byte flag: the lower bound */
	BENCH_WORD,		/* ping-pong of 8 bytes that arrive with the signal */
	BENCH_PUT,		/* ping-pong of a payload in memory and its signal */
	BENCH_STREAM,		/* rank 0 puts repeatedly; rank 1 waits for the last */
	BENCH_STREAM_BULK,	/* the same with bulk copies */
};

struct bench_result {
	uint64_t errors, code, ns[BENCH_SAMPLES];	/* ns: time of each sample's rounds, at rank 0 */
};

struct bench_args {
	struct cairn_device_channel c;
	struct cairn_device_region local, remote;	/* two halves: source, destination of puts */
	uint64_t half, bytes, rounds, timeout_ns;	/* rounds: in each sample */
	uint64_t first;				/* value of the first signal */
	uint32_t way, rank, num_ctas, num_samples;
	uint64_t *arrived;
	struct bench_result *result;
};

#ifdef __cplusplus
extern "C" {
#endif

int bench_load(int gpu);			/* call it before the first bench_start on any GPU */
int bench_start(int gpu, const struct bench_args *a, void *stream);
/* Compares two buffers of any GPUs of this process; waits for the stream. Returns -EIO if they differ. */
int bench_equal(int gpu, const void *a, const void *b, uint64_t bytes, void *stream);
/* Fills p with pseudo-random words of a seed. */
int bench_fill(int gpu, void *p, uint64_t bytes, uint64_t seed, void *stream);

#ifdef __cplusplus
}
#endif

#endif
