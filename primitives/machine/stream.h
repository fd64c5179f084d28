/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream - what the memory of this machine can do: a pure read, a pure write, a copy
 *
 *   READ    sum[b]  = sum of the 64-bit words of block b of src, modulo 2^64;
 *                     a block is CAIRN_STREAM_BLOCK bytes, the last one may be short
 *   WRITE   dst[i]  = (seed + i) * 0x9e3779b97f4a7c15 modulo 2^64, i counts 64-bit words
 *   COPY    dst[i]  = src[i]
 *
 *   argument   dtype   shape                                notes
 *   dst        uint64  [bytes / 8]                          out, WRITE and COPY; 16-byte aligned
 *   sum        uint64  [cairn_stream_num_blocks(bytes)]     out, READ
 *   src        uint64  [bytes / 8]                          in, READ and COPY; 16-byte aligned, not dst
 *
 * Supported:   bytes >= 16 and a multiple of 16. Pointers that an op does not name may be NULL.
 * Numerics:    integers: the result is exact.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, bytes, op), -EIO.
 *
 * A sum per block and not one for all: it is written once and never zeroed or added to by atomics, so
 * that the kernel is one launch, and a block read twice or skipped shows where it was. The sums add
 * 0.2% to the traffic; figures count `bytes` alone (COPY: twice that).
 */
#ifndef CAIRN_STREAM_H
#define CAIRN_STREAM_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_STREAM_BLOCK	4096
#define CAIRN_STREAM_MULT	0x9e3779b97f4a7c15ull

enum cairn_stream_op { CAIRN_STREAM_READ, CAIRN_STREAM_WRITE, CAIRN_STREAM_COPY };

struct cairn_stream_args {
	size_t size;
	void *dst;
	uint64_t *sum;
	const void *src;
	uint64_t seed;
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
int cairn_stream_cpu(const struct cairn_stream_args *args, void *stream);
int cairn_stream_ref(const struct cairn_stream_args *args, void *stream);
/* -EINVAL with a text, or 0: what every implementation here checks first. */
int cairn_stream_check(const struct cairn_stream_args *args);

#ifdef __cplusplus
}
#endif
#endif
