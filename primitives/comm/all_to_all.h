/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_to_all - every rank gives every rank a block of rows: head exchange, and gathering
 *
 *   out block s of rank r = x block r of rank s, for all ranks r and s (r == s: a copy)
 *
 *   argument   shape              notes
 *   out        [ranks] blocks     out, 16-byte aligned; block s begins s * out_block bytes after out
 *   x          [ranks] blocks     in, 16-byte aligned; block r begins r * x_block bytes after x
 *   comm                          the ranks; all make the same calls in the same order (comm.h)
 *
 * A block has `rows` rows of row_bytes bytes, which are out_stride or x_stride bytes apart. With x_block 0
 * every rank gets the same block, so that the call gathers. Two examples, with rows of `heads` heads:
 *   - a rank has its share of the rows and wants its share of the heads of all rows: row_bytes is that of
 *     heads / ranks heads; x_block = row_bytes, x_stride = ranks * row_bytes; out_block = rows * row_bytes,
 *     out_stride = row_bytes
 *   - the way back: out_block = row_bytes, out_stride = ranks * row_bytes; x_block = rows * row_bytes,
 *     x_stride = row_bytes
 *
 * All scalars are equal on all ranks, except the strides and blocks.
 *
 * Supported:   ranks 1..8; row_bytes 16..65536. Anything else -EOPNOTSUPP.
 *              row_bytes, blocks and strides are multiples of 16; strides are at least row_bytes. The rows of
 *              out neither overlap each other nor x.
 *              rows 0 is legal and does nothing.
 * Numerics:    copies bytes.
 * Waiting:     on every other rank, at most the communicator's time-out (comm.h).
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, -ETIMEDOUT, -ECANCELED.
 * Source:      Jacobs et al. 2023 (DeepSpeed Ulysses), section 3.
 */
#ifndef CAIRN_ALL_TO_ALL_H
#define CAIRN_ALL_TO_ALL_H

#include "primitives/comm/comm.h"

struct cairn_exact;

struct cairn_all_to_all_args {
	size_t size;
	void *out;
	const void *x;
	struct cairn_comm comm;
	int64_t out_block, out_stride, x_block, x_stride;	/* bytes */
	int32_t rows, row_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_all_to_all(const struct cairn_all_to_all_args *args, void *stream);
int cairn_all_to_all_cpu(const struct cairn_all_to_all_args *args, void *stream);
int cairn_all_to_all_ref(const struct cairn_all_to_all_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_all_to_all_check(const struct cairn_all_to_all_args *args);
/*
 * all[r]: the arguments of rank r. Fills exact[0] for out of rank `rank`, whose elements are int32_t; those
 * between the rows of out keep a NaN bound.
 */
int cairn_all_to_all_exact(const struct cairn_all_to_all_args *const *all, int32_t rank,
			   struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
