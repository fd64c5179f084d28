/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_fp8_blocks - where attn_quant puts a row of q or k and a key of v, and where attn_fp8 finds it
 *
 * The rows of a request are divided into blocks of 128, starting at its first row. The blocks of request b,
 * whose rows begin at indptr[b], have the numbers indptr[b] / 128 + b and following. So blocks of different
 * requests never overlap, and nobody has to sum the lengths of earlier requests. Some block numbers between
 * two requests may be unused.
 */
#ifndef CAIRN_ATTN_FP8_BLOCKS_H
#define CAIRN_ATTN_FP8_BLOCKS_H

#include <stdint.h>

#define ATTN_FP8_BLOCK	128	/* rows of a block, and keys of a key tile of attn_fp8 */

#ifdef __CUDACC__
#define ATTN_FP8_FN static __host__ __device__ __forceinline__
#else
#define ATTN_FP8_FN static inline
#endif

/* Returns the number of blocks of a head: an upper bound that needs only the scalars of a call. */
ATTN_FP8_FN int32_t attn_fp8_blocks(int32_t nnz, int32_t batch)
{
	return nnz / ATTN_FP8_BLOCK + batch;
}

/* Returns the first block of request b, whose rows begin at row `first`. */
ATTN_FP8_FN int32_t attn_fp8_first_block(int32_t first, int32_t b)
{
	return first / ATTN_FP8_BLOCK + b;
}

/*
 * Returns the place of key j (0..127) in a row of a block of v. Thread t of a quad holds the logits of keys
 * 2t, 2t + 1, 2t + 8, 2t + 9 of every 16 in wgmma's accumulator, and as an e4m3 operand it must hold the
 * weights of places 4t .. 4t + 3. This order makes the two the same, so P stays in its registers.
 */
ATTN_FP8_FN int32_t attn_fp8_place(int32_t j)
{
	return (j & ~15) | (j & 6) << 1 | (j & 8) >> 2 | (j & 1);
}

#endif
