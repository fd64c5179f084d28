/* SPDX-License-Identifier: Apache-2.0 */
/* transport_ipc - device memory of another GPU, or another process, made reachable; for transport_nvlink.c */
#ifndef CAIRN_TRANSPORT_IPC_H
#define CAIRN_TRANSPORT_IPC_H

#include <cuda_runtime_api.h>

#include "rdma/transport/transport_impl.h"

struct ipc_self {
	struct transport_identity process;
	int gpu;
	char bus[16];
};

/* What a piece of device memory is known by elsewhere. */
struct ipc_key {
	struct transport_identity owner;
	cudaIpcMemHandle_t handle;
	uint64_t base, offset, bytes;
	int32_t gpu, num_slots;
	char bus[16];			/* the same device by any number */
};

/* Memory of slots, of this process or mapped; freed with its last user, and both are users in one process. */
struct ipc_block {
	struct ipc_block *next;
	uint8_t *base;
	int gpu, users, is_mapped;
};

int ipc_identify(struct ipc_self *self, int gpu);
int ipc_fill(const struct ipc_self *self, const void *addr, uint64_t bytes, struct ipc_key *k);
/* The allocation behind a key; *opened: an IPC mapping, to be closed, else left alone. */
int ipc_map(const struct ipc_self *self, const struct ipc_key *k, uint8_t **base, void **opened);

struct ipc_block *ipc_new_block(uint8_t *base, int gpu, int is_mapped);	/* NULL: no memory */
/* One of this process, and one more user of it; NULL: its owner has gone and nobody kept it. */
struct ipc_block *ipc_find_block(uint8_t *base);
void ipc_let_go(struct ipc_block *b);

#endif
