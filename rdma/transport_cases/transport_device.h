/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_device - kernels of the conformance cases, and the content of their rounds
 *
 * Kernels and host use the same functions for a round's offsets, lengths and bytes, so either can be at
 * either end.
 */
#ifndef CAIRN_TRANSPORT_DEVICE_H
#define CAIRN_TRANSPORT_DEVICE_H

#include <stdint.h>

#include "rdma/transport/transport.h"

#ifdef __CUDACC__
#define DEVICE_FN static __host__ __device__ __forceinline__
#else
#define DEVICE_FN static inline
#endif

#define DEVICE_GUARD	64u

enum device_mode { DEVICE_PAYLOAD, DEVICE_STREAM, DEVICE_WORDS, DEVICE_GRID, DEVICE_BULK, DEVICE_TIMEOUT };

struct device_result {
	uint64_t errors, rounds, code, waited_ns;
};

struct device_args {
	struct cairn_device_channel c;
	/* two halves of `half` bytes: source and destination of puts */
	struct cairn_device_region local, remote;
	uint64_t half, rounds, timeout_ns;
	uint32_t mode, rank, num_ctas;
	/* STREAM: bytes per put; the payload is between guards */
	uint32_t cell;
	uint64_t *arrived;				/* device memory, zeroed */
	struct device_result *result;			/* zeroed, accessible to host and GPU */
};

/* Returns the 8 bytes of a payload at offset i (a multiple of 8). */
DEVICE_FN uint64_t device_word(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed * 0x2545f4914f6cdd1dull) ^ (i * 0x9e3779b97f4a7c15ull);

	return (z ^ z >> 29) * 0xbf58476d1ce4e5b9ull;
}

DEVICE_FN uint8_t device_byte(uint64_t seed, uint64_t i)
{
	return (uint8_t)(device_word(seed, i & ~7ull) >> (8 * (i & 7)));
}

/* PAYLOAD: any length up to 9000 at any offset; a third of the rounds in multiples of 16. */
DEVICE_FN void device_round(uint64_t i, uint64_t half, uint64_t *bytes, uint64_t *from, uint64_t *to)
{
	uint64_t unit = i % 3 ? 1 : 16, a = device_word(i, 8), b = device_word(i, 16);

	*bytes = 1 + a % (i % 7 ? 600 : 9000);
	*from = DEVICE_GUARD + b % (half - 9100 - 2 * DEVICE_GUARD);
	*to = DEVICE_GUARD + (b >> 20) % (half - 9100 - 2 * DEVICE_GUARD);
	*bytes = (*bytes + unit - 1) / unit * unit;
	*from = *from / unit * unit + (unit == 16 ? 16 : 0);
	*to = *to / unit * unit + (unit == 16 ? 16 : 0);
}

#ifdef __cplusplus
extern "C" {
#endif

/* Call this before any kernel runs: a kernel loaded at its first launch waits for running kernels, and
 * these for it. */
int device_load(int gpu);
/* Starts the kernel on its own stream; device_join waits for it and frees the stream. */
int device_start(int gpu, const struct device_args *a, void **stream);
int device_join(int gpu, void *stream);

#ifdef __cplusplus
}
#endif

#endif
