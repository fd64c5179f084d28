/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_recv - every rank sends bytes to one rank and receives bytes from one rank: steps of a ring, stages of
 * a pipeline
 *
 *   out of rank r = x of rank `from`
 *
 *   argument   shape     notes
 *   out        [bytes]   out, 16-byte aligned; not used if from is -1
 *   x          [bytes]   in, 16-byte aligned; not used if to is -1; overlaps nothing
 *   comm                 the ranks; all make the same calls in the same order (comm.h)
 *
 * `to` of a rank and `from` of its receiver belong together: from of rank `to` is this rank. Either may be
 * -1: this rank sends, or receives, nothing. Both may be the rank itself. Ranks that do neither must call.
 *
 * bytes is equal on all ranks.
 *
 * Supported:   ranks 1..8; bytes a multiple of 16, 0..2^40. Anything else -EOPNOTSUPP.
 *              bytes 0 is legal and does nothing.
 * Numerics:    copies bytes.
 * Waiting:     on every other rank, also on those that send nothing, at most the communicator's time-out
 *              (comm.h).
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, -ETIMEDOUT, -ECANCELED.
 * Source:      Liu et al. 2023 (Ring Attention), section 3.
 */
#ifndef CAIRN_SEND_RECV_H
#define CAIRN_SEND_RECV_H

#include "primitives/comm/comm.h"

struct cairn_exact;

struct cairn_send_recv_args {
	size_t size;
	void *out;
	const void *x;
	struct cairn_comm comm;
	int64_t bytes;
	int32_t to, from;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_send_recv(const struct cairn_send_recv_args *args, void *stream);
int cairn_send_recv_cpu(const struct cairn_send_recv_args *args, void *stream);
int cairn_send_recv_ref(const struct cairn_send_recv_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_send_recv_check(const struct cairn_send_recv_args *args);
/* all[r]: the arguments of rank r. Fills exact[0] for out of rank `rank`, whose elements are int32_t. */
int cairn_send_recv_exact(const struct cairn_send_recv_args *const *all, int32_t rank,
			  struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
