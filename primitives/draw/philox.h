/* SPDX-License-Identifier: Apache-2.0 */
/*
 * philox - Philox4x32-10, a stateless random number generator
 *
 * The generator maps a 128-bit counter and a 64-bit key to 128 random bits, by ten rounds of two 32 x 32
 * multiplications. A draw depends on nothing else: it is the same on every machine, in every thread and in
 * any order.
 *
 * Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4;
 *         known answers in philox_test.c.
 */
#ifndef CAIRN_PHILOX_H
#define CAIRN_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define CAIRN_HOST_DEVICE __host__ __device__
#else
#define CAIRN_HOST_DEVICE
#endif

static inline CAIRN_HOST_DEVICE void cairn_philox4x32_10(const uint32_t counter[4], const uint32_t key[2],
							 uint32_t out[4])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = key[0], k1 = key[1];

	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;

		c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)b;
		c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)a;
		k0 += 0x9e3779b9u;	/* golden ratio */
		k1 += 0xbb67ae85u;	/* sqrt(3) - 1 */
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* The uniform number u of sample.h times 2^64: 53 random bits, then 11 zero bits. */
static inline CAIRN_HOST_DEVICE uint64_t cairn_philox_uniform(uint64_t seed, uint64_t offset)
{
	const uint32_t counter[4] = { (uint32_t)offset, (uint32_t)(offset >> 32), 0, 0 };
	const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
	uint32_t x[4];

	cairn_philox4x32_10(counter, key, x);
	return ((uint64_t)x[0] << 32 | x[1]) >> 11 << 11;
}

#endif
