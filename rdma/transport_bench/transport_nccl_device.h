/* SPDX-License-Identifier: Apache-2.0 */
/* transport_nccl_device - kernels over NCCL's device API; its structures are C++, so they are opaque here */
#ifndef CAIRN_TRANSPORT_NCCL_DEVICE_H
#define CAIRN_TRANSPORT_NCCL_DEVICE_H

#include "rdma/transport_bench/transport_bench.h"
#include "rdma/transport/transport_nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nccl_device;

#define NCCL_DEVICE_MAX_CTAS	64

/* Collective: both ranks call it concurrently, each from its own thread. memory: from ncclMemAlloc. */
int nccl_device_open(const struct nccl_functions *n, ncclComm_t comm, int gpu, void *memory, uint64_t bytes,
		     struct nccl_device **out);
void nccl_device_close(struct nccl_device *d);
/* Starts the ping-pong kernel of one end; samples and rounds are as in transport_bench. */
int nccl_device_start(struct nccl_device *d, int way, uint64_t bytes, uint64_t half, uint32_t num_ctas,
		      uint64_t rounds, uint32_t num_samples, struct bench_result *result, void *stream);

#ifdef __cplusplus
}
#endif

#endif
