/* SPDX-License-Identifier: Apache-2.0 */
/* transport_nccl_bench - times and checks NCCL's own methods between two GPUs, for comparison with Cairn's */
#ifndef CAIRN_TRANSPORT_NCCL_BENCH_H
#define CAIRN_TRANSPORT_NCCL_BENCH_H

#include <stdint.h>

#include "rdma/transport_bench/transport_bench_pair.h"

struct nccl_bench;

/*
 * Opens two ranks on the two GPUs of this process. Returns -ENODEV without two GPUs or without the library.
 */
int nccl_bench_open(struct nccl_bench **out, uint64_t half);
void nccl_bench_close(struct nccl_bench *b);
int nccl_bench_version(const struct nccl_bench *b);
/* Alternating ncclSend and ncclRecv in a graph; ns, one way. */
int nccl_bench_pingpong(struct nccl_bench *b, uint64_t bytes, struct bench_spread *one_way);
/* ns per send. */
int nccl_bench_stream(struct nccl_bench *b, uint64_t bytes, int sends, int num, struct bench_spread *ns);

/*
 * The device API. LL: ping-pong through the low-latency all-to-all session, 8 bytes per message. LSA:
 * stores through the window's peer pointer, with the barrier session (release, acquire) as the signal.
 */
enum { NCCL_BENCH_LL, NCCL_BENCH_LSA };
int nccl_bench_device(struct nccl_bench *b, int way, uint64_t bytes, uint32_t num_ctas,
		      struct bench_spread *one_way);

#endif
