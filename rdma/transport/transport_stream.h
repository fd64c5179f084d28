/* SPDX-License-Identifier: Apache-2.0 */
/* transport_stream - the kernels of rdma/transport_stream: a put of rows, a wait of one CTA, and a sum */
#ifndef CAIRN_TRANSPORT_STREAM_H
#define CAIRN_TRANSPORT_STREAM_H

#include "rdma/transport/transport_pace.h"

struct transport_stream_part {
	uint64_t from, to;		/* addresses */
	uint64_t from_stride, to_stride;
	uint32_t row_units, rows;
	uint32_t unit;			/* bytes that a thread copies at a time: 1, 4 or 16 */
};

struct transport_stream_args {
	struct cairn_device_channel c;
	struct transport_link link;
	struct transport_stream_part part[CAIRN_STREAM_PARTS];
	const struct cairn_stream_now *now;
	uint64_t *ended, *order;	/* of a wait */
	struct cairn_stream_lock *lock;	/* that a wait takes, or a put gives up */
	uint64_t value, word, timeout_ns;
	uint32_t slot;
};

#ifdef __CUDACC__
#define TRANSPORT_SUM_FN static __host__ __device__ __forceinline__
#else
#define TRANSPORT_SUM_FN static inline
#endif

/* The finaliser of splitmix64: each bit of the result depends on all bits of z. */
TRANSPORT_SUM_FN uint64_t transport_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* What word i of a memory adds to its sum; the last word is filled up with zeros. */
TRANSPORT_SUM_FN uint64_t transport_sum_word(uint64_t word, uint64_t i, uint64_t key)
{
	return transport_mix(word ^ transport_mix(key + (i + 1) * 0x9e3779b97f4a7c15u));
}

#define TRANSPORT_SUM_CTAS	64

#ifdef __cplusplus
extern "C" {
#endif

/* Sets partial[i] to the sum of CTA i, of TRANSPORT_SUM_CTAS. Waits. bytes: a multiple of 8 */
int transport_stream_sum(int gpu, const void *addr, uint64_t bytes, uint64_t key, uint64_t *partial);
/*
 * Loads the kernels on the current device. Loading one at its first launch may wait until running kernels
 * end, and those may be waits.
 */
int transport_stream_load(void);
int transport_stream_captured(void *stream);	/* whether calls are captured in a graph */
int transport_stream_launch_put(const struct transport_stream_args *a, void *stream);
int transport_stream_launch_wait(const struct transport_stream_args *a, void *stream);

#ifdef __cplusplus
}
#endif

#endif
