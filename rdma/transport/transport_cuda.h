/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_cuda - memory that a GPU sees, for back ends that also work without one
 *
 * gpu < 0, or a build without CUDA: plain memory. All memory comes zeroed. The caller's current device is
 * left as it was.
 */
#ifndef CAIRN_TRANSPORT_CUDA_H
#define CAIRN_TRANSPORT_CUDA_H

#include <stddef.h>
#include <stdint.h>

/* Host memory, in whole pages; with a GPU mapped at the same address there. */
int transport_host_alloc(int gpu, uint64_t bytes, void **p);
void transport_host_free(int gpu, void *p, uint64_t bytes);
/* Maps the caller's host memory for the GPU; *mapped: it was not before, and is to be unmapped. */
int transport_host_map(int gpu, void *p, uint64_t bytes, int *mapped);
void transport_host_unmap(int gpu, void *p);

#ifdef CONFIG_CUDA
/* Until transport_leave_gpu(previous) the current device is gpu. */
int transport_enter_gpu(int gpu, int *previous);
void transport_leave_gpu(int previous);
int transport_device_alloc(int gpu, uint64_t bytes, void **p);
void transport_device_free(int gpu, void *p);
/*
 * By the copy engine, on the thread's own stream: kernels that are running do not hold it up. Returns
 * when done.
 */
int transport_device_copy(int gpu, void *dst, const void *src, uint64_t bytes);
/* p is memory of this GPU; the allocation that holds it. */
int transport_device_range(int gpu, const void *p, uint64_t *base, uint64_t *bytes);
#endif

#endif
