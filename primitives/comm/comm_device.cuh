/* SPDX-License-Identifier: Apache-2.0 */
/* comm_device - device functions of collectives: the number of a call, LL words, waits that end */
#ifndef CAIRN_COMM_DEVICE_CUH
#define CAIRN_COMM_DEVICE_CUH

#include "primitives/base/error.h"
#include "primitives/comm/comm_device.h"
#include "primitives/ptx/ptx_sys.cuh"

#define COMM static __device__ __forceinline__

#define COMM_POLLS	64	/* between two looks at the clock */

/* Returns the number of this call. */
COMM uint32_t comm_number(const struct comm_device &c)
{
	return ptx_ld_relaxed_gpu_u32(&c.words->number) + 1;
}

/* Returns whether a wait of this communicator has failed, so that nothing should be sent any more. */
COMM bool comm_has_failed(const struct comm_device &c)
{
	return ptx_ld_relaxed_gpu_u32(&c.words->failed) != ~0u;
}

/*
 * These two advance the number of the call once all CTAs have read it. One thread of each CTA calls
 * comm_enter(), after a barrier that follows the comm_number() of all its threads. At the end the same thread
 * passes the result to comm_leave(), and the CTA that was the last to enter stores the number. In between, no
 * thread waits for the result of the atomic addition. Both functions are relaxed: a release would wait until
 * the stores to the peers have been acknowledged, which takes as long as a crossing.
 */
COMM uint32_t comm_enter(const struct comm_device &c)
{
	return ptx_atom_relaxed_gpu_add_u32(&c.words->entered, 1);
}

COMM void comm_leave(const struct comm_device &c, uint32_t number, uint32_t entered)
{
	if (entered + 2 == gridDim.x) {		/* the last one; the counter begins at ~0 */
		ptx_st_relaxed_gpu_u32(&c.words->entered, ~0u);
		ptx_st_relaxed_gpu_u32(&c.words->number, number);
	}
}

/* Returns word `i` of the mailbox that `sender` writes at rank `owner` in call `number`. */
COMM char *comm_word(const struct comm_device &c, int owner, int sender, uint32_t number, uint32_t i)
{
	return c.mail[owner] + ((uint64_t)((number & 1) * c.ranks + sender) * COMM_WORDS + i) * 16;
}

/* Returns the box that `sender` fills at rank `owner` in call `number`. */
COMM char *comm_box(const struct comm_device &c, int owner, int sender, uint32_t number)
{
	return c.mail[owner] + (uint64_t)2 * c.ranks * COMM_WORDS * 16 +
	       ((uint64_t)(number & 1) * c.ranks + sender) * COMM_BOX;
}

/* Returns flag `i` of the mailbox that `sender` writes at rank `owner`. A call has either words or flags. */
COMM uint32_t *comm_flag(const struct comm_device &c, int owner, int sender, uint32_t number, uint32_t i)
{
	return (uint32_t *)comm_word(c, owner, sender, number, i) + 3;
}

/*
 * Sets flag i at all other ranks. The bytes of piece i must have been stored by this CTA's threads before
 * their last barrier, or by bulk copies whose completion the calling thread has waited for.
 */
COMM void comm_tell(const struct comm_device &c, uint32_t number, uint32_t i)
{
	__threadfence_system();
	for (int r = 0; r < c.ranks; r++)
		if (r != c.rank)
			ptx_st_relaxed_sys_u32(comm_flag(c, r, c.rank, number, i), number);
}

/* Ends all waits of this communicator, and leaves a record of the first that failed. */
COMM bool comm_fail(const struct comm_device &c, int op, uint32_t number, int rank, int code)
{
	if (atomicCAS(&c.words->failed, ~0u, (uint32_t)code) == ~0u) {
		ptx_st_relaxed_sys_u32(&c.record->rank, rank);
		ptx_st_relaxed_sys_u32(&c.record->number, number);
		ptx_st_relaxed_sys_u32(&c.record->op, op);
		ptx_st_release_sys_u32(&c.record->code, code);
	}
	return true;
}

/*
 * A thread that waits for rank calls this from time to time, first with *start 0. Returns whether the wait
 * must end: it has timed out, the communicator was aborted, or another wait has failed.
 */
COMM bool comm_gives_up(const struct comm_device &c, int op, uint32_t number, int rank, uint64_t *start)
{
	const uint64_t now = ptx_globaltimer();

	if (comm_has_failed(c))
		return true;
	if (ptx_ld_relaxed_sys_u32(&c.words->aborted) != ~0u)
		return comm_fail(c, op, number, rank, ECANCELED);
	if (!*start)
		*start = now;
	return now - *start > c.timeout_ns && comm_fail(c, op, number, rank, ETIMEDOUT);
}

/* Waits for a word whose first look gave v. If the wait fails, the payload is undefined. */
COMM uint4 comm_await(const struct comm_device &c, int op, uint32_t number, int rank, const char *word,
		      uint4 v)
{
	uint64_t start = 0;

	while (v.w != number) {
#pragma unroll 1
		for (int i = 0; i < COMM_POLLS && v.w != number; i++)
			v = ptx_ld_relaxed_sys_b128(word);
		if (v.w != number && comm_gives_up(c, op, number, rank, &start))
			break;
	}
	return v;
}

/* Waits for piece i of rank's box. If the wait fails, the bytes are undefined. */
COMM void comm_await_piece(const struct comm_device &c, int op, uint32_t number, int rank, uint32_t i)
{
	const uint32_t *flag = comm_flag(c, c.rank, rank, number, i);
	uint64_t start = 0;

	for (;;) {
#pragma unroll 1
		for (int k = 0; k < COMM_POLLS; k++)
			if (ptx_ld_acquire_sys_u32(flag) == number)
				return;
		if (comm_gives_up(c, op, number, rank, &start))
			return;
	}
}

#endif
