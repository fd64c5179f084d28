/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_cuda - memory that a GPU can access, for back ends that also work without a GPU
 *
 * With gpu < 0, or in a build without CUDA, it is ordinary memory. All memory is zeroed. The caller's current
 * device is preserved.
 */
#ifndef CAIRN_TRANSPORT_CUDA_H
#define CAIRN_TRANSPORT_CUDA_H

#include <stddef.h>
#include <stdint.h>

/* Host memory in whole pages; with a GPU, mapped at the same address there. */
int transport_host_alloc(int gpu, uint64_t bytes, void **p);
void transport_host_free(int gpu, void *p, uint64_t bytes);
/* Maps the caller's host memory for the GPU. *mapped is set if this call mapped it and the caller must
 * unmap it. */
int transport_host_map(int gpu, void *p, uint64_t bytes, int *mapped);
void transport_host_unmap(int gpu, void *p);

#ifdef CONFIG_CUDA
/* Makes gpu the current device until transport_leave_gpu(previous). */
int transport_enter_gpu(int gpu, int *previous);
void transport_leave_gpu(int previous);
int transport_device_alloc(int gpu, uint64_t bytes, void **p);
void transport_device_free(int gpu, void *p);
/*
 * Copies with the copy engine, on the thread's own stream, so that running kernels do not delay it. Complete
 * on return.
 */
int transport_device_copy(int gpu, void *dst, const void *src, uint64_t bytes);
/* Returns the allocation that contains p, which must be memory of this GPU. */
int transport_device_range(int gpu, const void *p, uint64_t *base, uint64_t *bytes);
#endif

#endif
