/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_queue - descriptors with which a kernel or the host asks the proxy thread for a put
 *
 * A descriptor has eight words of 64 bits. The top bit of each word is the phase of the lap in which it was
 * written, as in NCCL's LL protocol. The reader can therefore tell for each word whether it is new, and the
 * writer needs neither an order among the words nor a separate ready flag. 63 bits remain in each word:
 *
 *   0  op 8, slot 16 (0xffff: no signal), index & 0x7fffffff << 32
 *   1  local address          2  remote address        3  bytes
 *   4  lkey 32, value bits 0..30 << 32                 5  rkey 32, value bits 31..61 << 32
 *   6  word bits 0..62                                 7  value bits 62, 63; word bit 63 << 2
 *
 * The same functions are compiled by gcc and nvcc.
 */
#ifndef CAIRN_TRANSPORT_QUEUE_H
#define CAIRN_TRANSPORT_QUEUE_H

#include <stdint.h>

#ifdef __CUDACC__
#define QUEUE_FN static __host__ __device__ __forceinline__
#else
#define QUEUE_FN static inline
#endif

#define QUEUE_WORDS	8
#define QUEUE_PUT	1u
#define QUEUE_NO_SLOT	0xffffu

struct queue_entry {
	uint64_t local, remote, bytes, value, word;
	uint32_t lkey, rkey, slot, op;
};

/*
 * Returns the phase bit of all words of descriptor `index`, in a ring of `depth` descriptors (a power of
 * two) that was initially zero.
 */
QUEUE_FN uint64_t queue_phase(uint64_t index, uint32_t depth)
{
	return (index & depth) ? 0 : 1ull << 63;
}

QUEUE_FN void queue_pack(const struct queue_entry *e, uint64_t index, uint32_t depth, uint64_t w[QUEUE_WORDS])
{
	const uint64_t low31 = 0x7fffffffu, phase = queue_phase(index, depth);

	w[0] = phase | (index & low31) << 32 | (uint64_t)(e->slot & 0xffff) << 8 | (e->op & 0xff);
	w[1] = phase | e->local;
	w[2] = phase | e->remote;
	w[3] = phase | e->bytes;
	w[4] = phase | (e->value & low31) << 32 | e->lkey;
	w[5] = phase | (e->value >> 31 & low31) << 32 | e->rkey;
	w[6] = phase | (e->word & ~(1ull << 63));
	w[7] = phase | e->value >> 62 | e->word >> 63 << 2;
}

/* Returns 1 with a descriptor; 0 if not all words are from this lap yet; -1 if they are but have another
 * index or no valid descriptor. */
QUEUE_FN int queue_unpack(const uint64_t w[QUEUE_WORDS], uint64_t index, uint32_t depth,
			  struct queue_entry *e)
{
	const uint64_t rest = ~(1ull << 63), phase = queue_phase(index, depth);
	int i;

	for (i = 0; i < QUEUE_WORDS; i++)
		if ((w[i] & ~rest) != phase)
			return 0;
	e->op = w[0] & 0xff;
	e->slot = w[0] >> 8 & 0xffff;
	e->local = w[1] & rest;
	e->remote = w[2] & rest;
	e->bytes = w[3] & rest;
	e->lkey = (uint32_t)w[4];
	e->rkey = (uint32_t)w[5];
	e->value = (w[4] & rest) >> 32 | (w[5] & rest) >> 32 << 31 | (w[7] & 3) << 62;
	e->word = (w[6] & rest) | (w[7] >> 2 & 1) << 63;
	return e->op == QUEUE_PUT && (w[0] & rest) >> 32 == (index & 0x7fffffffu) ? 1 : -1;
}

#endif
