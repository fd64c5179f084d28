/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream - measures memory bandwidth by a pure read, a pure write and a copy; adds by atomic operations
 *
 *   READ    sum[b]  = sum of the 64-bit words of block b of src, modulo 2^64;
 *                     a block is CAIRN_STREAM_BLOCK bytes, the last one may be short
 *   WRITE   dst[i]  = (seed + i) * 0x9e3779b97f4a7c15 modulo 2^64; i counts 64-bit words
 *   COPY    dst[i]  = src[i]
 *   ADD     dst[i] += (seed + i) * 0x9e3779b97f4a7c15 modulo 2^64, one atomic addition for each word
 *
 *   argument   dtype   shape                                notes
 *   dst        uint64  [bytes / 8]                          out, WRITE and COPY; in and out, ADD;
 *                                                           16-byte aligned
 *   sum        uint64  [cairn_stream_num_blocks(bytes)]     out, READ
 *   src        uint64  [bytes / 8]                          in, READ and COPY; 16-byte aligned, no overlap
 *                                                           with dst
 *
 * Supported:   bytes >= 16 and a multiple of 16. Pointers that the op does not use may be NULL.
 * Numerics:    integer arithmetic; the result is exact.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, bytes, op), -EOPNOTSUPP (more CTAs than a grid can have), -EIO.
 *
 * READ stores one sum per block instead of a single one. Each sum is written once, without zeroing or
 * atomics, so that the kernel is a single launch; and a wrong sum names the block that was skipped or read
 * twice. The sums add 0.2% to the traffic; bandwidth figures count only `bytes` (COPY: twice that).
 */
#ifndef CAIRN_STREAM_H
#define CAIRN_STREAM_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_STREAM_BLOCK	4096
#define CAIRN_STREAM_MULT	0x9e3779b97f4a7c15ull

enum cairn_stream_op { CAIRN_STREAM_READ, CAIRN_STREAM_WRITE, CAIRN_STREAM_COPY, CAIRN_STREAM_ADD };

struct cairn_stream_args {
	size_t size;		/* sizeof(struct cairn_stream_args) */
	void *dst;
	uint64_t *sum;
	const void *src;
	uint64_t seed;		/* WRITE, ADD */
	int64_t bytes;
	int32_t op;		/* enum cairn_stream_op */
};

static inline int64_t cairn_stream_num_blocks(int64_t bytes)
{
	return (bytes + CAIRN_STREAM_BLOCK - 1) / CAIRN_STREAM_BLOCK;
}

#ifdef __cplusplus
extern "C" {
#endif

int cairn_stream(const struct cairn_stream_args *args, void *stream);
/* The part of cairn_stream() that does ADD, with arguments that have been checked. */
int cairn_stream_add(const struct cairn_stream_args *args, void *stream);
int cairn_stream_cpu(const struct cairn_stream_args *args, void *stream);
int cairn_stream_ref(const struct cairn_stream_args *args, void *stream);
/* Checks args for every implementation here: returns 0, or -EINVAL with the error text set. */
int cairn_stream_check(const struct cairn_stream_args *args);

#ifdef __cplusplus
}
#endif
#endif
