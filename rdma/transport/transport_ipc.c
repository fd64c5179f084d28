// SPDX-License-Identifier: Apache-2.0
/* transport_ipc.c - keys and mappings of device memory, by CUDA IPC or peer access */
#include "rdma/transport/transport_ipc.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/launch.h"
#include "rdma/transport/transport_cuda.h"

static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ipc_block *blocks;

int ipc_identify(struct ipc_self *self, int gpu)
{
	self->gpu = gpu;
	transport_identify(&self->process);
	CAIRN_CUDA(cudaDeviceGetPCIBusId(self->bus, sizeof(self->bus), gpu));
	return 0;
}

int ipc_fill(const struct ipc_self *self, const void *addr, uint64_t bytes, struct ipc_key *k)
{
	int gpu = self->gpu, previous;
	cudaError_t err;
	uint64_t size;

	memset(k, 0, sizeof(*k));
	CAIRN_TRY(transport_device_range(gpu, addr, &k->base, &size));
	CAIRN_TRY(transport_enter_gpu(gpu, &previous));
	err = cudaIpcGetMemHandle(&k->handle, (void *)k->base);
	transport_leave_gpu(previous);
	/* Not needed within one process: ipc_map() compares the owner's identity. */
	if (err != cudaSuccess)
		memset(&k->handle, 0, sizeof(k->handle));
	cudaGetLastError();
	k->owner = self->process;
	k->offset = (uintptr_t)addr - k->base;
	k->bytes = bytes;
	k->gpu = gpu;
	memcpy(k->bus, self->bus, sizeof(k->bus));
	return 0;
}

static int reach(int gpu, int peer)
{
	cudaError_t err;
	int can = 0;

	if (gpu == peer)
		return 0;
	CAIRN_CUDA(cudaDeviceCanAccessPeer(&can, gpu, peer));
	if (!can)
		return cairn_error(ENODEV, "GPU %d cannot access the memory of GPU %d", gpu, peer);
	err = cudaDeviceEnablePeerAccess(peer, 0);
	if (err == cudaErrorPeerAccessAlreadyEnabled)
		err = cudaSuccess;
	cudaGetLastError();
	CAIRN_CUDA(err);
	return 0;
}

int ipc_map(const struct ipc_self *self, const struct ipc_key *k, uint8_t **base, void **opened)
{
	static const cudaIpcMemHandle_t none;
	int gpu = self->gpu, previous, ret = 0;
	void *p = NULL;
	cudaError_t err;

	if (k->owner.host != self->process.host)
		return cairn_error(EINVAL, "the owner of the key is on another host");
	CAIRN_TRY(transport_enter_gpu(gpu, &previous));
	if (k->owner.pid == self->process.pid && k->owner.start == self->process.start) {
		ret = reach(gpu, k->gpu);
		p = (void *)k->base;
	} else if (!memcmp(&k->handle, &none, sizeof(none))) {
		ret = cairn_error(EINVAL,
				  "other processes cannot map this kind of memory (not from cudaMalloc)");
	} else {
		err = cudaIpcOpenMemHandle(&p, k->handle, cudaIpcMemLazyEnablePeerAccess);
		if (err != cudaSuccess)
			ret = cairn_cuda_error(err, "cudaIpcOpenMemHandle", __FILE__, __LINE__);
		else
			*opened = p;
	}
	transport_leave_gpu(previous);
	if (!ret)
		*base = p;
	return ret;
}

struct ipc_block *ipc_new_block(uint8_t *base, int gpu, int is_mapped)
{
	struct ipc_block *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	*b = (struct ipc_block) { .base = base, .gpu = gpu, .users = 1, .is_mapped = is_mapped };
	pthread_mutex_lock(&blocks_lock);
	b->next = blocks;
	blocks = b;
	pthread_mutex_unlock(&blocks_lock);
	return b;
}

struct ipc_block *ipc_find_block(uint8_t *base)
{
	struct ipc_block *b;

	pthread_mutex_lock(&blocks_lock);
	for (b = blocks; b && (b->base != base || b->is_mapped); b = b->next)
		;
	if (b)
		b->users++;
	pthread_mutex_unlock(&blocks_lock);
	return b;
}

void ipc_let_go(struct ipc_block *b)
{
	struct ipc_block **at;
	int last;

	if (!b)
		return;
	pthread_mutex_lock(&blocks_lock);
	last = !--b->users;
	for (at = &blocks; *at && *at != b; at = &(*at)->next)
		;
	if (last && *at)
		*at = b->next;
	pthread_mutex_unlock(&blocks_lock);
	if (!last)
		return;
	if (b->is_mapped)
		cudaIpcCloseMemHandle(b->base);
	else
		transport_device_free(b->gpu, b->base);
	free(b);
}
