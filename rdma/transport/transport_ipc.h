/* SPDX-License-Identifier: Apache-2.0 */
/* transport_ipc - makes device memory of another GPU or process accessible; for transport_nvlink.c */
#ifndef CAIRN_TRANSPORT_IPC_H
#define CAIRN_TRANSPORT_IPC_H

#include <cuda_runtime_api.h>

#include "rdma/transport/transport_impl.h"

struct ipc_self {
	struct transport_identity process;
	int gpu;
	char bus[16];
};

/* Names a piece of device memory for other processes. */
struct ipc_key {
	struct transport_identity owner;
	cudaIpcMemHandle_t handle;
	uint64_t base, offset, bytes;
	struct transport_pace pace;	/* of a channel */
	int32_t gpu, num_slots;
	char bus[16];			/* PCI bus id, because processes may number a device differently */
};

/* Memory of slots, allocated by this process or mapped from another. The last user frees it. Within one
 * process both ends are users. */
struct ipc_block {
	struct ipc_block *next;
	uint8_t *base;
	int gpu, users, is_mapped;
};

int ipc_identify(struct ipc_self *self, int gpu);
int ipc_fill(const struct ipc_self *self, const void *addr, uint64_t bytes, struct ipc_key *k);
/* Returns the allocation that a key names. *opened: the IPC mapping to close, or NULL if none was opened. */
int ipc_map(const struct ipc_self *self, const struct ipc_key *k, uint8_t **base, void **opened);

struct ipc_block *ipc_new_block(uint8_t *base, int gpu, int is_mapped);	/* NULL: out of memory */
/* Finds a block of this process and adds a user. NULL: it has been freed. */
struct ipc_block *ipc_find_block(uint8_t *base);
void ipc_let_go(struct ipc_block *b);

#endif
