// SPDX-License-Identifier: Apache-2.0
/* transport_cuda.c - allocation, mapping and copies of memory that a GPU can access */
#include "rdma/transport/transport_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "rdma/transport/transport.h"

#define PAGE	4096u
#define GRANULE	(2u << 20)

static int plain_alloc(uint64_t bytes, void **p)
{
	uint64_t whole = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	void *m = aligned_alloc(PAGE, whole);

	if (!m)
		return cairn_error(ENOMEM, "cannot allocate %llu bytes of host memory",
				   (unsigned long long)bytes);
	memset(m, 0, whole);
	*p = m;
	return 0;
}

#ifndef CONFIG_CUDA

int transport_host_alloc(int gpu, uint64_t bytes, void **p)
{
	if (gpu >= 0)
		return cairn_error(ENODEV, "options: gpu: %d: this build has no CUDA", gpu);
	return plain_alloc(bytes, p);
}

void transport_host_free(int gpu, void *p, uint64_t bytes)
{
	(void)gpu;
	(void)bytes;
	free(p);
}

int transport_host_map(int gpu, void *p, uint64_t bytes, int *mapped)
{
	(void)gpu;
	(void)p;
	(void)bytes;
	*mapped = 0;
	return 0;
}

void transport_host_unmap(int gpu, void *p)
{
	(void)gpu;
	(void)p;
}

int cairn_transport_gpus(void)
{
	return 0;
}

int cairn_transport_gpus_meet(void)
{
	return 0;
}

int cairn_transport_gpu(void)
{
	return -1;
}

void cairn_transport_use_gpu(int gpu)
{
	(void)gpu;
}

#else

#include <cuda.h>

#include "primitives/base/launch.h"

int cairn_transport_gpus(void)
{
	int count = 0;

	if (cudaGetDeviceCount(&count) != cudaSuccess)
		count = 0;
	cudaGetLastError();
	return count;
}

int cairn_transport_gpus_meet(void)
{
	const int gpus = cairn_transport_gpus();
	int can = 1;

	for (int i = 0; i < gpus * gpus && can; i++)
		if (i / gpus != i % gpus && cudaDeviceCanAccessPeer(&can, i / gpus, i % gpus) != cudaSuccess)
			can = 0;
	cudaGetLastError();
	return gpus > 1 && can;
}

int cairn_transport_gpu(void)
{
	int gpu;

	return cairn_transport_gpus() && cudaGetDevice(&gpu) == cudaSuccess ? gpu : -1;
}

void cairn_transport_use_gpu(int gpu)
{
	if (gpu >= 0)
		cudaSetDevice(gpu);
}

int transport_enter_gpu(int gpu, int *previous)
{
	const int count = cairn_transport_gpus();

	if (gpu < 0 || gpu >= count)
		return cairn_error(ENODEV, "options: gpu: %d: this machine has %d CUDA devices", gpu, count);
	CAIRN_CUDA(cudaGetDevice(previous));
	CAIRN_CUDA(cudaSetDevice(gpu));
	return 0;
}

void transport_leave_gpu(int previous)
{
	cudaSetDevice(previous);
}

static int on_gpu(int gpu, int (*fn)(void *arg), void *arg)
{
	int previous, ret;

	CAIRN_TRY(transport_enter_gpu(gpu, &previous));
	ret = fn(arg);
	transport_leave_gpu(previous);
	return ret;
}

struct memory {
	void **out, *p;
	const void *src;
	uint64_t bytes, *base, *size;
	int *flag;
};

static int host_alloc(void *arg)
{
	struct memory *m = arg;
	void *p;

	CAIRN_CUDA(cudaHostAlloc(&p, m->bytes, cudaHostAllocMapped | cudaHostAllocPortable));
	memset(p, 0, m->bytes);
	*m->out = p;
	return 0;
}

int transport_host_alloc(int gpu, uint64_t bytes, void **p)
{
	struct memory m = { .out = p, .bytes = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1) };

	return gpu < 0 ? plain_alloc(bytes, p) : on_gpu(gpu, host_alloc, &m);
}

void transport_host_free(int gpu, void *p, uint64_t bytes)
{
	(void)bytes;
	if (gpu < 0)
		free(p);
	else if (p)
		cudaFreeHost(p);
}

static int host_map(void *arg)
{
	struct memory *m = arg;
	struct cudaPointerAttributes a;

	CAIRN_CUDA(cudaPointerGetAttributes(&a, m->p));
	*m->flag = a.type == cudaMemoryTypeUnregistered;
	if (*m->flag)
		CAIRN_CUDA(cudaHostRegister(m->p, m->bytes,
					    cudaHostRegisterMapped | cudaHostRegisterPortable));
	return 0;
}

int transport_host_map(int gpu, void *p, uint64_t bytes, int *mapped)
{
	struct memory m = { .p = p, .bytes = bytes, .flag = mapped };

	*mapped = 0;
	return gpu < 0 ? 0 : on_gpu(gpu, host_map, &m);
}

void transport_host_unmap(int gpu, void *p)
{
	if (gpu >= 0)
		cudaHostUnregister(p);
}

static int device_alloc(void *arg)
{
	struct memory *m = arg;
	void *p;

	CAIRN_CUDA(cudaMalloc(&p, m->bytes));
	CAIRN_CUDA(cudaMemset(p, 0, m->bytes));
	CAIRN_CUDA(cudaStreamSynchronize(NULL));
	*m->out = p;
	return 0;
}

/* Allocates whole granules: smaller allocations share a granule, and an IPC handle covers all of it. */
int transport_device_alloc(int gpu, uint64_t bytes, void **p)
{
	struct memory m = { .out = p, .bytes = (bytes + GRANULE - 1) & ~(uint64_t)(GRANULE - 1) };

	return on_gpu(gpu, device_alloc, &m);
}

static int device_free(void *arg)
{
	cudaFree(arg);
	return 0;
}

void transport_device_free(int gpu, void *p)
{
	if (p)
		on_gpu(gpu, device_free, p);
}

/* Uses the thread's own stream, because creating one now might wait for running kernels. */
static int device_copy(void *arg)
{
	struct memory *m = arg;

	CAIRN_CUDA(cudaMemcpyAsync(m->p, m->src, m->bytes, cudaMemcpyDefault, cudaStreamPerThread));
	CAIRN_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
	return 0;
}

int transport_device_copy(int gpu, void *dst, const void *src, uint64_t bytes)
{
	struct memory m = { .p = dst, .src = src, .bytes = bytes };

	return on_gpu(gpu, device_copy, &m);
}

/* Uses a function of the driver; the runtime has no equivalent. */
static int device_range(void *arg)
{
	CUresult (*range)(CUdeviceptr *base, size_t *size, CUdeviceptr p);
	enum cudaDriverEntryPointQueryResult found;
	struct memory *m = arg;
	CUdeviceptr base;
	size_t size;

	CAIRN_CUDA(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", (void **)&range, 12040,
						    cudaEnableDefault, &found));
	if (found != cudaDriverEntryPointSuccess || range(&base, &size, (CUdeviceptr)m->src))
		return cairn_error(EINVAL, "addr: %p is not memory of a CUDA device", m->src);
	*m->base = base;
	*m->size = size;
	return 0;
}

int transport_device_range(int gpu, const void *p, uint64_t *base, uint64_t *bytes)
{
	struct memory m = { .src = p, .base = base, .size = bytes };

	return on_gpu(gpu, device_range, &m);
}

#endif
